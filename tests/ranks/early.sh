#!/bin/sh
# Ctrl-C at any moment of a start: before mpirun is there, before ranks are, before they listen. Either nothing has begun,
# and all are gone by the signal, or the run stops in good order. With GR_SLOW=1, 120 times instead of 12.
. "$(dirname "$0")/lib.sh"

times=8
[ "$slow" = 0 ] || times=120
run=early$$ # found by its name among all processes

left() { # processes of the run, mpirun too
    set -- /proc/[0-9]*/cmdline # before there is a grep, whose own line has the name
    grep -lz -- "$run" "$@" 2>/dev/null | cut -d/ -f3
}

milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

begin() { # in the background, where a shell has programs ignore Ctrl-C
    rm -rf "$run"
    env --default-signal=INT,TERM,USR1 "$gr" exec grpo.yaml --set run.steps=100000 --ranks 2 --out "$run" >out 2>err &
    pid=$!
}

# stop SIGNAL: the exit status is in got; ended: whether an iteration had
stop() {
    ended=no
    [ ! -s "$run/metrics.jsonl" ] || ended=yes
    kill -"$1" $pid
    got=0
    wait $pid 2>/dev/null || got=$? # shells tell of signals
    [ -z "$(left)" ] || fail "processes are left after SIG$1: $(left)"
}

# How long it takes until an iteration has ended.
began=$(milliseconds)
begin
while [ ! -s "$run/metrics.jsonl" ]; do sleep 0.02; kill -0 $pid || fail "$(cat err)"; done
whole=$(($(milliseconds) - began))
stop INT
[ $got = 0 ] || fail "exit status $got of a run that was asked to end"

i=0
random=2024
early=0
while [ $i -lt $times ]; do
    random=$(((random * 1103515245 + 12345) % 2147483648))
    signal=$(echo INT TERM USR1 | cut -d' ' -f$((i % 3 + 1)))
    number=$(env kill -l "$signal")
    delay=$((random / 65536 % whole))
    begin
    sleep $((delay / 1000)).$(printf '%03d' $((delay % 1000)))
    stop "$signal"
    if [ $got = $((128 + number)) ]; then # as a program that has not begun ends by it
        early=$((early + 1))
        [ ! -s err ] || fail "there is nothing to say: $(cat err)"
        [ $ended = no ] || fail "it had begun after $delay of $whole ms, and was ended"
    elif [ $got = 0 ]; then
        has out '^stopped after iteration [0-9]+ of 100000; '
        [ "$(grep -c '^stopping after this iteration' err)" = 1 ] || fail "a request is answered once: $(cat err)"
        last=$(sed -n 's/^stopped after iteration \([0-9]*\) .*/\1/p' out)
        [ "$last" = 0 ] || [ -d "$run/checkpoints/step-$last" ] || fail "no checkpoint of iteration $last"
    else
        cat out err >&2
        fail "exit status $got after SIG$signal at $delay of $whole ms"
    fi
    i=$((i + 1))
done
[ $early -gt 0 ] || fail "no signal came early: the test says nothing"
