#!/bin/sh
# Commands of a graph end with the run, however it ends: kill -9 of graphrun too, and whatever they do: reward workers that
# ignore signals and the end of their input, with children in sessions of their own, and a data command of the same sort.
. "$(dirname "$0")/lib.sh"
command -v setsid >/dev/null || { echo "skipped: there is no setsid" >&2; exit 77; }

export GR_TEST_MARK=orphans$$.$(date +%s%N) # in the environment of all that belongs to the run
left() { # processes that have it, but for this shell's own
    for p in /proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -qx "GR_TEST_MARK=$GR_TEST_MARK" && echo "${p#/proc/}"
    done
    return 0
}
unmarked() { env -u GR_TEST_MARK "$@"; }

# until COMMAND: it holds within a minute
until_() {
    i=0
    while ! "$@"; do
        i=$((i + 1))
        [ $i -lt 600 ] || return 1
        unmarked sleep 0.1
    done
}
none_left() { [ -z "$(left)" ]; }

cat >stubborn.sh <<'END'
trap '' TERM INT HUP QUIT USR1 USR2
sleep 1000 &
setsid sh -c 'trap "" TERM; sleep 1000 & sleep 1000; :' &
(setsid setsid sleep 1000 &)
echo $$ >>workers
END
cat >worker.sh <<'END'
. ./stubborn.sh
while :; do
    while read -r line; do
        id=$(echo "$line" | sed -nE 's/.*"id": *([0-9]+).*/\1/p')
        echo "{\"id\": $id, \"score\": $((id % 3))}"
    done
    sleep 1000 # its input has ended
done
END
sed 's/rule: {extract[^}]*}/command: "sh worker.sh", workers: 2/' grpo.yaml >command.yaml
has command.yaml worker.sh
printf '. ./stubborn.sh\ncat train.jsonl\nsleep 1000\n' >data.sh
sed 's/file: \$data/command: "sh data.sh"/' grpo.yaml >data.yaml

# In order: nothing of them is left when graphrun returns.
status 0 "$gr" exec command.yaml --steps 1 --out calm
none_left || fail "workers are left behind a run that has ended: $(left)"

# strike GRAPH SIGNAL UNTIL...: the run is struck once that holds, and all of it is gone
strike() {
    graph=$1 signal=$2
    shift 2
    rm -rf run workers
    "$gr" exec "$graph" --set run.steps=100000 --out run >out 2>err &
    pid=$!
    until_ "$@" || { cat out err >&2; fail "the run does not start"; }
    kill -"$signal" $pid
    got=0
    wait $pid 2>/dev/null || got=$?
    until_ none_left || fail "after SIG$signal of $graph there are left: $(ps -o pid,ppid,args -p "$(left | tr '\n' ',')0")"
}
for signal in KILL ABRT; do
    strike command.yaml $signal test -s run/metrics.jsonl
    strike data.yaml $signal test -s workers
done
strike command.yaml TERM test -s run/metrics.jsonl
[ $got = 0 ] || { cat out err >&2; fail "exit status $got of a run that was asked to end"; }
