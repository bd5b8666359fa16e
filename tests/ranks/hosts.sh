#!/bin/sh
# Two hosts, as namespaces of this machine (two_hosts.sh). Runs of 2 hosts x 2 ranks
# agree with one rank, to 1e-5 or with `canonical` to the bit; go on with as many ranks as there are left; are ended together,
# with one message, when a rank of the other host dies. Skips (77) where namespaces may not be made. With GR_SLOW=1, 50 points
# instead of 2.
set -eu
. "$(dirname "$0")/two_hosts.sh"
enter_hosts "$@"
TMPDIR=/tmp # hosts share it, and have /dev/shm each for itself
. "$(dirname "$0")/lib.sh"

make_hosts
four="--host a:2,b:2 -n 4"

# ---- the runs

# From equal state, one step on two hosts: at points of a run on one rank.
points=2
[ "$slow" = 0 ] || points=50
set -- --set models.actor.train.schedule=constant --set run.checkpoint.every=1
status 0 "$gr" exec grpo.yaml "$@" --out one --steps $points
# shellcheck disable=SC2086
each_step one $points 1e-5 across $four "$gr" exec

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

# Pools: one host generates while the other trains, with lag: the bits of one rank.
cat >apart.yaml <<'END'
graph: apart
use: grpo.yaml
pools: {train: {share: 1, same_node: true}, rollout: {share: 1, same_node: true}}
models: {actor: {pool: train}}
nodes: {rollout: {pool: rollout, lag: 1}}
END
status 0 "$gr" exec apart.yaml --out alone --steps 3
status 0 across --host a:1,b:1 -n 2 "$gr" exec apart.yaml --out apart --steps 3
has apart/plan.json '"ranks": "1", "pools": "rollout"'
same_weights alone apart
cmp alone/samples.jsonl apart/samples.jsonl || fail "samples of a rollout on another host differ"

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

# graphrun starts mpirun itself, and says of a rank that dies where it was.
long="--set run.steps=$((steps * 8)) --set run.checkpoint.every=3 --set run.checkpoint.keep=3"
both="--ranks 2x2 --hosts a,b"
# shellcheck disable=SC2086
status 0 here_is_a "$gr" exec grpo.yaml $long $both --out calm
# strike: begin, and kill rank 3 behind the first checkpoint; all are gone within a minute
strike() {
    rm -rf struck
    # shellcheck disable=SC2086
    here_is_a "$gr" exec grpo.yaml $long $both --out struck >out 2>err &
    pid=$!
    i=0
    while [ ! -d struck/checkpoints/step-3 ]; do
        i=$((i + 1))
        [ $i -lt 1200 ] && kill -0 $pid 2>/dev/null || { cat out err >&2; fail "the ranks do not start"; }
        sleep 0.05
    done
    began=$(date +%s)
    kill -KILL "$(ranks_of struck | sed -n 4p)"
    got=0
    wait $pid || got=$?
    while [ -n "$(ranks_of struck)" ] && [ $(($(date +%s) - began)) -le 60 ]; do sleep 0.5; done
    [ -z "$(ranks_of struck)" ] || fail "ranks are left: $(ranks_of struck)"
    [ $(($(date +%s) - began)) -le 60 ] || fail "it took $(($(date +%s) - began)) s until all were gone"
    [ $got = 1 ] || fail "exit status $got"
}
strike
# mpirun of Open MPI 4.1 may fall itself while it ends, of the other ranks' word about the dead one (in pmix_server_log_fn):
# then nobody can say more.
tries=1
while grep -q 'error: mpirun ended by signal 11' err && [ $tries -lt 4 ]; do
    tries=$((tries + 1))
    strike
done
has err "error: rank 3 on host b ended by signal 9 \(Killed\) in iteration [0-9]+, step '[a-z_.0-9]+': all ranks are ended"
# Of Open MPI's own there may be lines, by ranks that write to the dead one before they are ended themselves.
[ "$(grep -vc '^\[[ab]\]\[\[' err)" = 1 ] || fail "more than one message: $(cat err)"
# shellcheck disable=SC2086
status 0 here_is_a "$gr" exec --resume struck $both
same_weights calm struck
same_metrics calm struck
refused 'hosts .a,b. names 2 hosts' "$gr" exec grpo.yaml --ranks 4 --hosts a,b --out never

# Ctrl-C before the ranks of both are there, or soon after.
for delay in 0.7 $([ "$slow" = 0 ] || echo 0.1 0.4 1.2); do
    # shellcheck disable=SC2086
    nsenter -t "$(cat a.pid)" --net --uts --ipc --mount --wd="$work" env --default-signal=INT \
        "$gr" exec grpo.yaml --set run.steps=100000 $both --out early >out 2>err &
    pid=$!
    sleep $delay
    kill -INT $pid
    got=0
    wait $pid 2>/dev/null || got=$?
    [ -z "$(ranks_of early)" ] || fail "ranks are left, $delay s after the start: $(ranks_of early)"
    [ $got = 0 ] || [ $got = 130 ] || { cat out err >&2; fail "exit status $got, $delay s after the start"; }
    rm -rf early
done

# mpirun's daemon on the other host has been stopped: before it has started a rank, and while ranks run, which end well and
# then cannot leave. (On a machine of its own it would stay there, until somebody lets it go on.)
export GRAPHRUN_SILENCE=6
[ "${GR_SANITIZED:-0}" = 0 ] || GRAPHRUN_SILENCE=30
daemon_of_b() { ps -eo pid,args | sed -nE 's/^ *([0-9]+) ([^ ]*\/)?orted .*/\1/p' | head -n 1; }
for moment in start run; do
    # shellcheck disable=SC2086
    here_is_a "$gr" exec grpo.yaml --set run.steps=40 $both --out held >out 2>err &
    pid=$!
    i=0
    while [ -z "$(daemon_of_b)" ] || { [ $moment = run ] && [ ! -s held/metrics.jsonl ]; }; do
        i=$((i + 1))
        [ $i -lt 6000 ] && kill -0 $pid 2>/dev/null || { cat out err >&2; fail "the daemon does not come"; }
        sleep 0.03
    done
    kill -STOP "$(daemon_of_b)"
    began=$(date +%s)
    got=0
    wait $pid || got=$?
    [ $(($(date +%s) - began)) -le $((60 + 2 * GRAPHRUN_SILENCE)) ] || fail "it took $(($(date +%s) - began)) s until all were gone"
    [ -z "$(ranks_of held)$(daemon_of_b)" ] || fail "there are left: $(ps -ef)"
    [ $got = 1 ] || { cat out err >&2; fail "exit status $got with a daemon that was stopped at its $moment"; }
    case $moment in
    start) has err "error: (mpirun has started no rank for [0-9]+ s: a host is slow or out of reach|rank 0 on host a has waited in MPI_Init)" ;;
    run) has err "error: rank 0 on host a has waited in MPI_Finalize for [0-9]+ s" ;;
    esac
    [ "$(grep -c 'error: ' err)" = 1 ] || fail "more than one message: $(cat err)"
    rm -rf held
done
unset GRAPHRUN_SILENCE

# The wire is cut: each side misses the other.
[ "$slow" = 1 ] || exit 0
# shellcheck disable=SC2086
here_is_a "$gr" exec grpo.yaml --set run.steps=100000 --set run.checkpoint.every=3 --set run.checkpoint.keep=3 $both --out cut >out 2>err &
pid=$!
while [ ! -d cut/checkpoints ]; do sleep 0.1; kill -0 $pid || fail "the ranks do not start: $(cat err)"; done
nsenter -t "$(cat b.pid)" --net ip link set eth-b down
began=$(date +%s)
got=0
wait $pid || got=$?
[ $(($(date +%s) - began)) -le 60 ] || fail "it took $(($(date +%s) - began)) s until mpirun was gone"
[ -z "$(ranks_of cut)" ] || fail "ranks are left: $(ranks_of cut)"
[ $got = 1 ] || fail "exit status $got"
has err 'error: rank [0-9] on host [ab] has not answered for 30 s; it was last heard of in iteration [0-9]+'
