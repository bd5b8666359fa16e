#!/bin/sh
# A run whose terminal goes away, or whose reader does, ends its iteration and saves: on one rank and on several. It goes on to
# the bits of an undisturbed one. nohup holds.
# usage: hangup.sh GRAPHRUN, with GR_TERMINAL
[ -n "${GR_HEARS-}" ] || GR_HEARS=1 exec env --default-signal=HUP "$0" "$@" # also where the tests run under nohup
. "$(dirname "$0")/lib.sh"
: "${GR_TERMINAL:?}"

long="--set models.actor.train.schedule=constant --set run.steps=100000 --set run.checkpoint.every=100000"
all=1
if command -v mpirun >/dev/null; then all="1 3"; else echo "one rank only: there is no mpirun" >&2; fi

over() { # RUN: nothing of it runs any more, within two minutes
    i=0
    while grep -lzqs -- "$1" /proc/[0-9]*/cmdline 2>/dev/null; do
        i=$((i + 1))
        [ $i -lt 1200 ] || fail "$1 runs on"
        sleep 0.1
    done
}
saved() { # RUN: its last iteration is in a checkpoint, from which it goes on as if nothing had been
    last=$(grep -c '"step"' "$1/metrics.jsonl")
    [ "$(last_step "$1" 2>/dev/null)" = "$last" ] || fail "$1 has no checkpoint of iteration $last: $(ls "$1/checkpoints" 2>&1)"
    status 0 "$gr" exec --resume "$1" --steps $((last + 2)) $on
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml $long --steps $((last + 2)) --out "$1-calm" $on
    same_weights "$1-calm" "$1"
    same_metrics "$1-calm" "$1"
}

for ranks in $all; do
    on="--ranks $ranks"
    # By itself on its terminal; and below a shell, which the hangup ends, so that the kernel sends a second one.
    run=alone$ranks
    # shellcheck disable=SC2086
    status 0 "$GR_TERMINAL" $run/metrics.jsonl "$gr" exec grpo.yaml $long --out $run $on
    over $run
    saved $run
    run=below$ranks
    # shellcheck disable=SC2086
    "$GR_TERMINAL" $run/metrics.jsonl sh -c '"$@"; :' sh "$gr" exec grpo.yaml $long --out $run $on >out 2>err || :
    over $run
    saved $run

    # SIGHUP by itself, more than once; and then a signal that ends at once.
    run=sent$ranks
    # shellcheck disable=SC2086
    "$gr" exec grpo.yaml $long --out $run $on >out 2>err &
    pid=$!
    while [ ! -s $run/metrics.jsonl ]; do sleep 0.1; kill -0 $pid || fail "$(cat err)"; done
    kill -HUP $pid
    kill -HUP $pid 2>/dev/null || :
    got=0
    wait $pid || got=$?
    [ $got = 0 ] || { cat out err >&2; fail "exit status $got of a run that was hung up"; }
    has out '^stopped after iteration [0-9]+ of 100000; '
    [ "$(grep -c '^stopping after this iteration' err)" = 1 ] || fail "a request is answered once: $(cat err)"
    saved $run

    # Nobody reads what it prints: it runs to its end.
    run=unread$ranks
    "$gr" exec grpo.yaml --steps 3 --out $run $on 2>&1 | head -1 >out
    over $run
    [ "$(last_step $run)" = 3 ] || fail "a run that nobody reads has not come to its end"

    # Under nohup it does not notice.
    run=nohup$ranks
    # shellcheck disable=SC2086
    "$GR_TERMINAL" $run/metrics.jsonl sh -c 'nohup "$@" >out 2>err; :' sh "$gr" exec grpo.yaml --set run.steps=40 --out $run $on >/dev/null || :
    over $run
    [ "$(last_step $run)" = 40 ] || { cat out err >&2; fail "nohup does not hold"; }
done
