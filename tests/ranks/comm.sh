#!/bin/sh
# The communicator by itself, on 1 to 4 ranks; and one that has stopped ends the others. Usage: comm.sh PROGRAM
set -eu
program=$(realpath "$1")
. "$(dirname "$0")/mpirun.sh"

for n in 1 2 3 4; do
    ranks $n "$program" >out 2>err || { cat out err >&2; exit 1; }
    grep -qx "$n ranks agree" out || { cat out err >&2; exit 1; }
done
[ "${GR_SLOW:-0}" = 1 ] || exit 0
for where in '' group; do
    begin=$(date +%s)
    # shellcheck disable=SC2086
    if ranks 3 "$program" hang $where >out 2>err; then echo "a rank that had stopped was not missed" >&2; exit 1; fi
    grep "has not answered" err >messages || true
    grep -q "^rank 1 on host $(uname -n) has not answered for 30 s; .* in iteration 3, step 'update.step.1'" messages ||
        { cat err >&2; exit 1; }
    [ "$(wc -l <messages)" = 1 ] || { cat err >&2; exit 1; }
    [ $(($(date +%s) - begin)) -le 60 ] || { echo "it took $(($(date +%s) - begin)) s" >&2; exit 1; }
done
