#!/bin/sh
# Faults in one of several ranks, or in their launcher, end all of them with a message, and the run goes on: see drive.c. Only
# calls of graphrun itself are disturbed, not Open MPI's own.
# usage: ranks.sh GRAPHRUN DRIVE INJECT.SO
[ $# -eq 3 ] || { echo "usage: $0 GRAPHRUN DRIVE INJECT.SO" >&2; exit 2; }
[ -z "${GR_SANITIZED-}" ] || { echo "skipped: a sanitizer has a malloc of its own" >&2; exit 77; }
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun" >&2; exit 77; }
drive=$(realpath "$2") inject=$(realpath "$3")
set -- "$1"
. "$(dirname "$0")/../e2e/lib.sh"
. "$here/graphs.sh"
wrong=0
times=1
[ "$slow" = 0 ] || times=40
run_anew="$gr exec plain.yaml --out run --ranks 2"
printf '| fault, two ranks | calls | disturbed | unharmed | ended with a message | killed | went on | wrong |\n|---|---|---|---|---|---|---|---|\n'
# under SPREAD FAULTS: so many calls of each
under() {
    echo "$2" | tr '|' '\n' >rows
    # shellcheck disable=SC2086 # the command has no other spaces
    "$drive" -i "$inject" -o -f rows -s $(($1 * times)) -t start \
        -r "if [ -e run/graph.yaml ]; then $gr exec --resume run; else $run_anew; fi" $run_anew </dev/null || wrong=1
}
under 3 'memory ENOMEM'
under 1 'write ENOSPC|sync killed|rename EIO|process EMFILE|map ENOMEM'
[ $wrong = 0 ] || fail "there are faults under which ranks do what they must not"
