#!/bin/sh
# A process of a run that has been stopped, at any moment from its start to its end, ends all of it, with a message that names
# it and where it was: a rank before, in and behind MPI_Init and MPI_Finalize and while it runs, mpirun, and under mpirun
# alone. A launcher that is stopped holds nobody up, and when it is killed all are gone. With GR_SLOW=1, 60 moments by chance.
# usage: stopped.sh GRAPHRUN STOPS
stops=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export GRAPHRUN_SILENCE=6 # seconds in the place of 30
[ "${GR_SANITIZED:-0}" = 0 ] || export GRAPHRUN_SILENCE=30
within=$((60 + 2 * GRAPHRUN_SILENCE)) # what is promised is 60 s with 30 of silence; a machine may be busy
host=$(uname -n)
random=90210

by_chance() { # N: a number below it, in chance
    random=$(((random * 1103515245 + 12345) % 2147483648))
    chance=$((random / 65536 % $1))
}

left() { # processes of the run
    grep -lzx "GR_TEST_MARK=$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3
}

# begin STEPS RANKS [COMMAND...]: a run, by COMMAND where RANKS is 0, in the background, with a mark on all that belongs to it
begin() {
    steps=$1
    shift
    ranks=$1
    shift
    set -- "$@" "$gr" exec grpo.yaml --set run.steps="$steps" --out run
    [ "$ranks" = 0 ] || set -- "$@" --ranks "$ranks"
    mark=stopped$$.${folder:-}.$(date +%s%N)
    rm -rf run
    env GR_TEST_MARK="$mark" LD_PRELOAD="$stops" STOP_RANK=1 STOP_AT="${at:-}" STOP_AFTER="${after:-0}" \
        "$@" >out 2>err &
    pid=$!
}

process_of() { # PATTERN of its command line: of the run's processes, the first one
    for p in $(left); do
        tr '\0' ' ' 2>/dev/null <"/proc/$p/cmdline" | grep -Eq -- "$1" && { echo "$p"; return; }
    done
    return 0
}

until_there() { # COMMAND...: prints something, or succeeds where it is test
    i=0
    while ! "$@" >/dev/null 2>&1; do
        i=$((i + 1))
        [ $i -lt 600 ] && kill -0 $pid 2>/dev/null || { cat out err >&2; fail "the run does not start"; }
        sleep 0.1
    done
}
mpirun_is_there() { [ -n "$(process_of '^mpirun ')" ]; }

# gone STATUS: it ends in time, so, and nothing is left
gone() {
    began=$(date +%s)
    got=0
    while kill -0 $pid 2>/dev/null && [ $(($(date +%s) - began)) -le $within ]; do sleep 0.2; done
    kill -0 $pid 2>/dev/null && { cat out err >&2; ps -ef >&2; fail "$what: it is still there after $within s"; }
    wait $pid 2>/dev/null || got=$?
    i=0
    while [ -n "$(left)" ] && [ $i -lt 300 ]; do i=$((i + 1)); sleep 0.1; done
    [ -z "$(left)" ] || fail "$what: there are left $(ps -o pid,ppid,stat,args -p "$(left | tr '\n' ',')0")"
    [ $got = "$1" ] || { cat out err >&2; fail "$what: exit status $got"; }
}
one_message() { # PATTERN
    has err "error: $1"
    [ "$(grep -c 'error: ' err)" = 1 ] || fail "$what: more than one message: $(cat err)"
}

# beside N COMMAND...: in a folder of its own, beside the others of the test. What is stopped takes no processor: a few of them
# wait for their end at once.
given=$(ls)
beside() {
    folder=beside-$1
    shift
    mkdir "$folder"
    for file in $given; do ln -s "../$file" "$folder"; done
    (
        trap - EXIT
        cd "$folder"
        "$@"
    ) &
    others="$others $!"
}
others=
together() { # waits for them
    for other in $others; do wait "$other" || exit 1; done
    others=
}

# A rank stops itself at each of these moments.
at_moment() { # AT STEP
    at=$1 what="rank 1 stopped at $1"
    begin 2 2
    gone 1
    one_message "rank 1 on host $host has been stopped \(process [0-9]+\) for [0-9]+ s in iteration [0-9]+, step '$2': all ranks are ended"
}
# What is caught in MPI_Finalize by chance may be at its end by then.
in_finalize() {
    at=in_finalize what="rank 1 stopped in MPI_Finalize"
    begin 2 2
    gone 1
    one_message "rank 1 on host $host has been stopped .* step '(MPI_Finalize|end of the process)'"
}
behind_main() {
    at=exit what="rank 1 stopped behind main"
    begin 2 2
    gone 1
    one_message "rank 1 on host $host has been stopped .* step 'end of the process'"
}
under_mpirun_alone() { # MOMENT: the other ranks see it
    at=$1 what="under mpirun, rank 1 stopped at $1"
    begin 2 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 2
    gone 1
    has err "error: rank 0 on host $host has waited in MPI_(Init|Finalize) for [0-9]+ s, in iteration [0-9]+, step 'MPI_(Init|Finalize)': another rank, or who has started them, has stopped"
}
after=0
beside 1 at_moment load 'start of the process'
beside 2 at_moment init MPI_Init
beside 3 at_moment finalize MPI_Finalize
together
beside 4 at_moment in_init MPI_Init
beside 5 in_finalize
beside 6 behind_main
together
beside 7 under_mpirun_alone init
beside 8 under_mpirun_alone finalize
together
at=

# mpirun, when it has just begun, and while ranks run: they would go on for ever.
what="mpirun stopped at its start"
begin 100000 2
until_there mpirun_is_there
kill -STOP "$(process_of '^mpirun ')"
gone 1
one_message "mpirun on host $host has been stopped \(process [0-9]+\) for [0-9]+ s"
what="mpirun stopped while ranks run"
begin 100000 2
until_there test -s run/metrics.jsonl
kill -STOP "$(process_of '^mpirun ')"
gone 1
one_message "mpirun on host $host has been stopped \(process [0-9]+\) for [0-9]+ s, rank 0 in iteration [0-9]+, step '"
what="mpirun killed"
begin 100000 2
until_there test -s run/metrics.jsonl
kill -KILL "$(process_of '^mpirun ')"
gone 1
one_message 'mpirun ended by signal 9 \(Killed\)'

# The launcher: stopped, ranks go on; killed, all are gone, though a rank and mpirun are stopped.
what="the launcher killed"
begin 100000 2
until_there test -s run/metrics.jsonl
kill -STOP $pid
before=$(wc -l <run/metrics.jsonl)
i=0
while [ "$(wc -l <run/metrics.jsonl)" -le $((before + 2)) ]; do
    i=$((i + 1))
    [ $i -lt 600 ] || fail "ranks wait for a launcher that has been stopped"
    sleep 0.1
done
kill -STOP "$(process_of '^mpirun ')" "$(ranks_of run | sed -n 2p)"
kill -KILL $pid
gone 137

# Anybody, at any moment.
[ "$slow" = 1 ] || exit 0
n=0
while [ $n -lt 60 ]; do
    by_chance 3000
    delay=$chance
    begin 100 3
    sleep $((delay / 1000)).$(printf '%03d' $((delay % 1000)))
    by_chance 4
    case $chance in 0) victim=$(process_of '^mpirun ') ;; *) victim=$(ranks_of run | sed -n ${chance}p) ;; esac
    what="$(tr '\0' ' ' 2>/dev/null <"/proc/$victim/cmdline") stopped after $delay ms"
    [ -z "$victim" ] || kill -STOP "$victim" 2>/dev/null || :
    began=$(date +%s)
    got=0
    wait $pid || got=$?
    [ $(($(date +%s) - began)) -le $within ] || fail "$what: it took $(($(date +%s) - began)) s"
    [ -z "$(left)" ] || fail "$what: there are left $(left)"
    [ $got = 0 ] || [ "$(grep -c 'error: ' err)" = 1 ] || fail "$what: $(cat err)"
    n=$((n + 1))
done
