#!/bin/sh
# Cores that a launcher has bound ranks to are theirs; those that it has left to all of them are divided.
# usage: cores.sh GRAPHRUN PRETEND
pretend=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"
taskset -cp "$cores" $$ >/dev/null # all of them again
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

threads() { # RUN: of each node, as its plan has it, each number once
    tr '{' '\n' <"$1/plan.json" | sed -nE 's/.*"threads", *"value": *([0-9]+).*/\1/p' | sort -u | tr '\n' ' '
}

each_has() { # RUN N
    [ "$(threads "$1")" = "$2 " ] || fail "$1: a rank has '$(threads "$1")' threads instead of $2"
}

# As the machine is: a core for each of two ranks, or all cores for both.
status 0 "$gr" exec grpo.yaml --steps 1 --out whole
each=$(threads whole | tr -d ' ')
[ "$each" -gt 1 ] || { echo "skipped: one core" >&2; exit 77; }
status 0 mpirun --bind-to none -n 2 --mca mpi_yield_when_idle 1 "$gr" exec grpo.yaml --steps 1 --out free
each_has free $((each / 2))
status 0 mpirun --bind-to core -n 2 "$gr" exec grpo.yaml --steps 1 --out bound
same_weights free bound
status 0 mpirun --bind-to none --mca mpi_yield_when_idle 1 -n 1 taskset -c "${cores%%[-,]*}" "$gr" exec grpo.yaml --steps 1 --out one : \
    -n 1 taskset -c "${cores##*[-,]}" "$gr" exec grpo.yaml --steps 1 --out one
each_has one 1

# As a larger one would be: 4 cores for each of two ranks, 4 for both, or 6 of which both may use 2.
[ -z "${GR_SANITIZED:-}" ] || exit 0 # what is loaded before them is in their way
cat >pretending.sh <<'END2'
first=$(($1 * OMPI_COMM_WORLD_LOCAL_RANK))
export PRETEND_CORES=$first-$((first + 3)) LD_PRELOAD=$2
shift 2
exec "$@"
END2
for case in 4:4 0:2 2:3; do # cores between the first ones of both; threads of each
    status 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 2 sh pretending.sh ${case%:*} "$pretend" \
        "$gr" exec grpo.yaml --steps 1 --out pretended-${case%:*}
    each_has pretended-${case%:*} ${case#*:}
done
