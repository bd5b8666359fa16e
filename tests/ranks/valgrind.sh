#!/bin/sh
# valgrind on what ranks say to each other: no error and nothing lost in code of ours, on 2 ranks, of the communicator by itself
# and of a run with a checkpoint. Usage: valgrind.sh GRAPHRUN COMM_RANKS. With GR_SLOW=1; skips (77) without valgrind.
supp=/usr/share/openmpi/openmpi-valgrind.supp
[ "${GR_SLOW:-0}" = 1 ] || { echo "skipped: for GR_SLOW=1" >&2; exit 77; }
[ "${GR_SANITIZED:-0}" = 0 ] || { echo "skipped: a sanitizer is in it" >&2; exit 77; }
command -v valgrind >/dev/null && [ -r $supp ] || { echo "skipped: there is no valgrind, or no $supp" >&2; exit 77; }
comm=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

watched() { # COMMAND...: on 2 ranks; no message of valgrind's
    status 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 2 valgrind -q --suppressions=$supp \
        --suppressions="$here/valgrind.supp" --num-callers=60 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
        --fair-sched=yes --log-file="$work/said.%p" "$@"
    cat "$work"/said.* >"$work/said"
    [ ! -s "$work/said" ] || fail "$(head -n 60 "$work/said")"
}

watched "$comm"
grep -qx '2 ranks agree' out || fail "$(cat out)"
watched "$gr" exec grpo.yaml --steps 2 --set run.timeout=0 --out run
[ -s run/checkpoints/step-2/state.json ] || fail "no checkpoint"
