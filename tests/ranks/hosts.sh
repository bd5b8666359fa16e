#!/bin/sh
# Two hosts, as namespaces of this machine (net, uts, ipc: names and addresses of their own, a wire between them), and
# mpirun on the first, which reaches the second by an agent in the place of ssh. Runs of 2 hosts x 2 ranks agree with one
# rank, to 1e-5 or with `canonical` to the bit; go on with as many ranks as there are left; are ended together when a rank
# of the other host dies. Skips (77) where namespaces may not be made. With GR_SLOW=1, 50 points instead of 4.
set -eu
if [ -z "${GR_HOSTS_INSIDE:-}" ]; then
    for tool in mpirun ip unshare nsenter; do
        command -v $tool >/dev/null || { echo "skipped: there is no $tool" >&2; exit 77; }
    done
    [ "$(id -u)" = 0 ] && user='' || user='--user --map-root-user'
    inside="unshare $user --net --mount --uts --pid --fork --kill-child --mount-proc" # with it, all in it is gone
    $inside ip link add eth-a type veth peer name eth-b 2>/dev/null || { echo "skipped: no namespaces here" >&2; exit 77; }
    GR_HOSTS_INSIDE=1 exec $inside sh "$(realpath "$0")" "$@"
fi
. "$(dirname "$0")/lib.sh"

# ---- the hosts

ip link add eth-a type veth peer name eth-b
cat >hosts.txt <<'END_HOSTS'
127.0.0.1 localhost
10.77.0.1 a
10.77.0.2 b
END_HOSTS
mount --bind hosts.txt /etc/hosts
n=0
for host in a b; do
    n=$((n + 1))
    unshare --net --uts --ipc \
        sh -c "hostname $host && echo 1 >$host.up && exec sleep infinity" &
    holder=$!
    while [ ! -s $host.up ]; do sleep 0.05; kill -0 $holder || fail "host $host does not come up"; done
    echo $holder >$host.pid
    ip link set eth-$host netns "$(cat $host.pid)"
    nsenter -t "$(cat $host.pid)" --net sh -c "ip link set lo up; ip addr add 10.77.0.$n/24 dev eth-$host; ip link set eth-$host up"
done

# on.sh HOST COMMAND...: as ssh does it: a shell of its own there, in the home directory, with little environment
cat >on.sh <<END
#!/bin/sh
pid=\$(cat "$work/\$1.pid")
shift
exec nsenter -t "\$pid" --net --uts --ipc env -i PATH="$PATH" HOME=/ sh -c "cd; \$*"
END
chmod +x on.sh
[ "$(./on.sh b hostname)" = b ] && ./on.sh a "getent hosts b" >/dev/null || fail "the hosts are not two"

# across OPTIONS...: mpirun, told on host a
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
pass=
for name in GRAPHRUN_MPI ASAN_OPTIONS TSAN_OPTIONS; do
    ! printenv $name >/dev/null || pass="$pass -x $name"
done
across() {
    # shellcheck disable=SC2086
    nsenter -t "$(cat a.pid)" --net --uts --ipc --wd="$work" mpirun --mca plm_rsh_agent "$work/on.sh" \
        --bind-to none --mca mpi_yield_when_idle 1 $pass "$@"
}
four="--host a:2,b:2 -n 4"

# ---- the runs

# From equal state, one step on two hosts: at points of a run on one rank.
points=4
[ "$slow" = 0 ] || points=50
set -- --set models.actor.train.schedule=constant --set run.checkpoint.every=1
status 0 "$gr" exec grpo.yaml "$@" --out one --steps $points
k=1
while [ $k -lt $points ]; do
    point one $k at
    # shellcheck disable=SC2086
    status 0 across $four "$gr" exec --resume at --steps $((k + 1))
    close one at $((k + 1))
    rm -r at
    k=$((k + 1))
done

# canonical: the same bits; and with two ranks on two hosts, and one, in one run.
steps=6
[ "$slow" = 0 ] || steps=50
set -- --set canonical=true --set models.actor.train.schedule=constant --set run.checkpoint.every=2 --set run.checkpoint.keep=3
status 0 "$gr" exec grpo.yaml "$@" --out still --steps $steps
# shellcheck disable=SC2086
status 0 across $four "$gr" exec grpo.yaml "$@" --out moving --steps $((steps - 4))
status 0 "$gr" plan grpo.yaml "$@" --set run.steps=$((steps - 4)) --ranks 2x2 --format json
cmp out moving/plan.json || fail "what ran is not the plan of two hosts"
# shellcheck disable=SC2086
status 0 across --host a:1,b:1 -n 2 "$gr" exec --resume moving --steps $((steps - 2))
status 0 "$gr" exec --resume moving --ranks 1 --steps $steps
same_weights still moving
same_metrics still moving
cmp still/samples.jsonl moving/samples.jsonl || fail "samples of two hosts differ"

# Each host a replica of the other, in shards over its ranks, which are found without being told: the bits of four ranks
# that share one state, for gradients are summed in one tree.
node="--set models.actor.train.schedule=constant --set models.actor.shard=node"
# shellcheck disable=SC2086
status 0 across $four "$gr" exec grpo.yaml $node --out replicas --steps 2
has replicas/plan.json '"node": "update", "name": "shards", "value": 2'
# shellcheck disable=SC2086
status 0 across --host a:4 -n 4 "$gr" exec grpo.yaml $node --out shared --steps 2
lacks shared/plan.json '"name": "shards"'
same_weights shared replicas

# What one host would do differently is seen before anything runs.
# shellcheck disable=SC2086
status 2 across --host a:2 -n 2 "$gr" exec grpo.yaml --out never : --host b:2 -n 2 "$gr" exec grpo.yaml --set lr=0.5 --out never
has err 'rank 2 on host b has another plan \([0-9a-f]{16}\) than rank 0'
[ ! -e never ] || fail "a run directory of nothing"

# ---- what ends them

# begin RUN ARGUMENTS...: start it, until it has an iteration; its launcher is in pid
begin() {
    run=$1
    shift
    # shellcheck disable=SC2086
    across $four "$gr" exec "$@" >out 2>err &
    pid=$!
    i=0
    while [ "$(ranks_of "$run" | wc -l)" -lt 4 ] || [ ! -s "$run/metrics.jsonl" ]; do
        i=$((i + 1))
        [ $i -lt 600 ] && kill -0 $pid 2>/dev/null || { cat out err >&2; fail "the ranks do not start"; }
        sleep 0.1
    done
}

# all_gone RUN: within a minute of now, with a message of them
all_gone() {
    began=$(date +%s)
    got=0
    wait $pid || got=$?
    while [ -n "$(ranks_of "$1")" ] && [ $(($(date +%s) - began)) -le 60 ]; do sleep 0.5; done
    [ -z "$(ranks_of "$1")" ] || fail "ranks are left: $(ranks_of "$1")"
    [ $(($(date +%s) - began)) -le 60 ] || fail "it took $(($(date +%s) - began)) s until all were gone"
    [ $got != 0 ] || fail "mpirun says that all is well"
}

long="--set run.steps=$((steps * 10)) --set run.checkpoint.every=3 --set run.checkpoint.keep=3"
# shellcheck disable=SC2086
status 0 across $four "$gr" exec grpo.yaml $long --out calm
# shellcheck disable=SC2086
begin struck grpo.yaml $long --out struck
kill -KILL "$(ranks_of struck | sed -n 4p)"
all_gone struck
has err 'process rank 3 with PID [0-9]+ on node b exited on signal 9'
# shellcheck disable=SC2086
status 0 across $four "$gr" exec --resume struck
same_weights calm struck
same_metrics calm struck
