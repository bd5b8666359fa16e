#!/bin/sh
# A rank that dies ends all, with one message that names it, its host and where it was; the run goes on to the bits of an
# undisturbed one. SIGTERM to the launcher ends the iteration and leaves a checkpoint. With GR_SLOW=1: 4 ranks, killed 20
# times, and a rank that stops.
. "$(dirname "$0")/lib.sh"

steps=60
kills=2
run=hit$$ # found by its name among all processes
ranks=3
[ "$slow" = 0 ] || { steps=600; kills=20; ranks=4; }
long="--set run.steps=$steps --set run.checkpoint.every=3 --set run.checkpoint.keep=3"
# shellcheck disable=SC2086
status 0 "$gr" exec grpo.yaml $long --ranks $ranks --out calm

# hit SIGNAL RANK DELAY: start or go on with the run, and signal one of its ranks after so long; the exit status
# is in got, the seconds until all were gone in took
hit() {
    "$gr" exec $resume --ranks $ranks >out 2>err &
    pid=$!
    i=0
    while [ "$(ranks_of $run | wc -l)" -lt $ranks ] || [ ! -s $run/metrics.jsonl ]; do
        i=$((i + 1))
        [ $i -lt 300 ] && kill -0 $pid 2>/dev/null || { cat out err >&2; fail "the ranks do not start"; }
        sleep 0.1
    done
    sleep "$3"
    kill -"$1" "$(ranks_of $run | sed -n "$(($2 + 1))p")" 2>/dev/null || echo "attempt had ended: $(tail -1 out)"
    began=$(date +%s)
    got=0
    wait $pid || got=$?
    took=$(($(date +%s) - began))
    [ $took -le 60 ] || fail "it took $took s until all were gone"
    [ -z "$(ranks_of $run)" ] || fail "ranks are left: $(ranks_of $run)"
    for f in $run/checkpoints/step-*; do # whole or absent
        [ ! -d "$f" ] || [ -s "$f/state.json" ] || fail "$f is half a checkpoint"
    done
}

random=4711
resume="grpo.yaml $long --out $run"
n=0
hits=0
while [ $n -lt $kills ]; do
    random=$(((random * 1103515245 + 12345) % 2147483648))
    hit KILL $((random / 65536 % ranks)) 0.$(printf '%03d' $((random / 256 % 400)))
    if [ $got != 0 ]; then
        [ $got = 1 ] || fail "exit status $got"
        has err "error: rank $((random / 65536 % ranks)) on host $(uname -n) ended by signal 9 \(Killed\) in iteration [0-9]+, step '[a-z_.0-9]+': all ranks are ended"
        [ "$(grep -c . err)" -le 2 ] || fail "more than one message: $(cat err)" # of a resume, what it warns of
        hits=$((hits + 1))
    fi
    resume="--resume $run"
    n=$((n + 1))
done
[ $hits -gt 0 ] || fail "no rank was hit while it ran"
status 0 "$gr" exec --resume $run --ranks $ranks
same_weights calm $run
same_metrics calm $run

# Asked to end, it ends its iteration and saves.
rm -rf $run
"$gr" exec grpo.yaml --set run.steps=100000 --ranks 2 --out $run >out 2>err &
pid=$!
while [ ! -s $run/metrics.jsonl ]; do sleep 0.1; kill -0 $pid || fail "$(cat err)"; done
kill -TERM $pid
got=0
wait $pid || got=$?
[ $got = 0 ] || { cat out err >&2; fail "exit status $got of a run that was asked to end"; }
[ "$(last_step $run)" = "$(grep -c '"step"' $run/metrics.jsonl)" ] || fail "no checkpoint of the last iteration"
[ "$(grep -c '^stopping after this iteration' err)" = 1 ] || fail "a request is answered once: $(cat err)"
has out "^stopped after iteration $(last_step $run) of 100000; graphrun exec --resume $run goes on"

[ "$slow" = 1 ] || exit 0
rm -rf $run
resume="grpo.yaml --set run.steps=100000 --out $run"
hit STOP 1 0.5
[ $got = 1 ] || fail "exit status $got"
has err "error: rank 1 on host .* has not answered for 30 s; it was last heard of in iteration [0-9]+, step '"
