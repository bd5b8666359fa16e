#!/bin/sh
# exec --restarts: a run that is killed, crashes or whose worker fails goes on by itself, to the bits of an undisturbed one,
# on one rank and on several; from the beginning where it has no checkpoint yet. What is wrong with the input, or was asked for,
# ends it, and so do N failures without a newer checkpoint. With GR_SLOW=1, 20 kills instead of 2.
. "$(dirname "$0")/lib.sh"
kills=2 steps=60
[ "$slow" = 0 ] || kills=20 steps=150
all=1
if command -v mpirun >/dev/null; then all="1 2"; else echo "one rank only: there is no mpirun" >&2; fi
random=$((4711 + kills))

by_chance() { # N: a number below it, in chance
    random=$(((random * 1103515245 + 12345) % 2147483648))
    chance=$((random / 65536 % $1))
}
left() { # processes of the run
    grep -lzx "GR_TEST_MARK=$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3
}
none_left() {
    i=0
    while [ -n "$(left)" ]; do
        i=$((i + 1))
        [ $i -lt 600 ] || fail "there are left $(ps -o pid,ppid,args -p "$(left | tr '\n' ',')0")"
        sleep 0.1
    done
}

# begin RUN ARGUMENT...: in the background
begin() {
    run=$1
    shift
    mark=restarts$$.$(date +%s%N)
    GR_TEST_MARK=$mark "$gr" exec "$@" >out 2>err &
    pid=$!
}
# Those that work on it: not who restarts it, nor guards, mpirun and its launcher.
workers_of() {
    for p in $(left); do
        line=$(tr '\0' ' ' 2>/dev/null <"/proc/$p/cmdline") || continue
        case $line in graphrun-guard* | *--restarts* | mpirun*) continue ;; esac
        [ "$ranks" = 1 ] || tr '\0' '\n' 2>/dev/null <"/proc/$p/environ" | grep -q '^OMPI_COMM_WORLD_RANK=' || continue
        echo "$p"
    done
}
until_() { # COMMAND...: it holds within two minutes
    i=0
    while ! "$@"; do
        i=$((i + 1))
        [ $i -lt 1200 ] && { kill -0 $pid 2>/dev/null || "$@"; } || { cat out err >&2; fail "$*: it does not come"; }
        sleep 0.1
    done
}
works() { [ "$(workers_of | wc -l)" -ge "$ranks" ]; }
works_or_ended() { works || ! kill -0 $pid 2>/dev/null; }
ends() { # STATUS
    got=0
    wait $pid 2>/dev/null || got=$?
    [ $got = "$1" ] || { cat out err >&2; fail "exit status $got"; }
    none_left
}
restarts() { grep -c '^restart [0-9]* of ' err || :; }
has_restarted() { [ "$(restarts)" -ge "$1" ]; }

long="--set run.steps=$steps --set run.checkpoint.every=3 --set run.checkpoint.keep=2"
for ranks in $all; do
    on="--ranks $ranks"
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml $long $on --out calm

    # Killed before anything has begun, then wherever it is.
    # shellcheck disable=SC2086
    begin hit grpo.yaml $long $on --out hit --restarts 5
    until_ works
    kill -KILL "$(workers_of | head -n 1)" 2>/dev/null || :
    n=1
    while [ $n -lt $kills ]; do
        until_ has_restarted $n
        until_ works_or_ended
        by_chance 900
        sleep 0.$(printf '%03d' $chance)
        by_chance "$ranks"
        signal=$(echo KILL SEGV BUS | cut -d' ' -f$((n % 3 + 1)))
        victim=$(workers_of | sed -n $((chance + 1))p)
        [ -n "$victim" ] && kill -"$signal" "$victim" 2>/dev/null || break # it has ended
        n=$((n + 1))
    done
    ends 0
    has_restarted 1 || { cat err >&2; fail "nothing was restarted"; }
    has err '^restart 1 of 5 in 1 s, (as it was started|from the beginning|from iteration [0-9]+): the run (was killed by signal|failed with exit status 1)'
    same_weights calm hit
    same_metrics calm hit
    cmp calm/samples.jsonl hit/samples.jsonl
    rm -rf hit calm
done

# A worker that fails now and then; a folder that nobody has named.
ranks=1
cat >worker.sh <<'END'
while read -r line; do
    id=${line#*\"id\":}
    id=$((${id%%[,\}]*}))
    asked=0
    [ ! -e asked ] || read -r asked <asked
    echo $((asked + 1)) >asked
    case $asked in 40 | 41 | 200 | 201) exit 1 ;; esac
    echo "{\"id\": $id, \"score\": $((id % 3))}"
done
END
sed 's/rule: {extract[^}]*}/command: "sh worker.sh"/' grpo.yaml >command.yaml
status 0 "$gr" exec command.yaml --set run.steps=9 --set run.checkpoint.every=1 --restarts 2
[ "$(restarts)" = 2 ] || { cat err >&2; fail "a worker failed twice"; }
has err 'the reward worker exited with status 1'
has err '^restart 1 of 2 in 1 s, from iteration [0-9]+: the run failed with exit status 1$'
lacks err '^restart 2'
echo 1 >asked # what was given for this command alone holds behind a restart, too
status 0 "$gr" exec command.yaml --set run.steps=9 --set run.checkpoint.every=1 --until 3 --out until --restarts 2
[ "$(restarts)" -gt 0 ] || { cat err >&2; fail "a worker failed"; }
[ "$(last_step until)" = 3 ] || fail "a restart goes on behind iteration 3: $(ls until/checkpoints)"
echo 1000 >asked
status 0 "$gr" exec command.yaml --set run.steps=9 --out calm
found=$(echo runs/tiny-*)
same_weights calm "$found"
same_metrics calm "$found"

# One that fails for ever: N times, each wait twice as long.
echo 'exit 1' >worker.sh
status 1 "$gr" exec command.yaml --out never --restarts 2
[ "$(grep '^restart' err | cut -d, -f1 | tr '\n' ' ')" = "restart 1 of 2 in 1 s restart 2 of 2 in 2 s " ] || fail "$(cat err)"
has err 'error: the run failed with exit status 1, and 2 restarts have brought no newer checkpoint; graphrun exec --resume never'

# What is wrong with the input is said once.
refused "unknown op" "$gr" exec --restarts 3 --set nodes.update.op=updat grpo.yaml
refused "holds a run already" "$gr" exec grpo.yaml --restarts=3 --out calm
status 3 "$gr" exec grpo.yaml --budget 4KiB --out none --restarts 3
lacks err '^restart'
[ ! -e none ] || fail "a run directory of nothing"

# A run that trains nothing any more would do so again.
sed 's/^state:.*/state: {beta: {init: 1.0e-300, next: "where(step >= 3, beta * 1e300 * 1e300 * 1e300, beta)"}}/' grpo.yaml >inf.yaml
for ranks in $all; do
    status 1 "$gr" exec inf.yaml --ranks "$ranks" --steps 100 --set run.checkpoint='{every: 1, keep: 2}' --out inf$ranks --restarts 3
    has err 'the run has diverged in iteration [0-9]+'
    lacks err '^restart'
done
ranks=1

# Signals are passed on: the first one ends it in order, one that comes while it waits ends the wait.
begin asked grpo.yaml --set run.steps=100000 --out asked-to --restarts 3
until_ test -s asked-to/metrics.jsonl
kill -TERM $pid
ends 0
has out '^stopped after iteration [0-9]+ of 100000; '
lacks err '^restart'
begin waits command.yaml --out waits --restarts 9
until_ has_restarted 2
kill -TERM $pid
ends 1

# Killed itself, it leaves nothing.
begin alone grpo.yaml --set run.steps=100000 --out alone --restarts 3
until_ test -s alone/metrics.jsonl
kill -KILL $pid
ends 137

# A run that is gone on with is gone on with further; ranks that others have started cannot be.
begin more --resume alone --steps 100000 --restarts 3
lines=$(wc -l <alone/metrics.jsonl)
more() { [ "$(wc -l <alone/metrics.jsonl)" -gt "$1" ]; }
until_ more "$lines"
kill -KILL "$(workers_of | head -n 1)"
until_ has_restarted 1
until_ works
kill -TERM $pid
ends 0
case $all in *2*)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    status 2 mpirun --oversubscribe --bind-to none -n 2 "$gr" exec grpo.yaml --out never2 --restarts 2
    has err -- '--restarts is of an exec that starts its ranks itself'
esac
