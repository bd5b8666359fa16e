# Sourced by tests of runs of several ranks: tests/e2e/lib.sh, and what they ask of the runs. Skips (77) without mpirun.
. "$(dirname "$0")/../e2e/lib.sh"
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun" >&2; exit 77; }

# close RUN RUN STEP [TOLERANCE]: all metrics that are not measured agree
close() {
    for run in "$1" "$2"; do
        metrics "$run" | grep "^{\"step\": $3, " | tr -d '{}' | sed 's/, "/\n"/g' | sed 's/": / /; s/"//g' >"$run.numbers"
        [ -s "$run.numbers" ] || fail "$run has no step $3"
    done
    awk -v most="${4:-1e-5}" -v what="$1 and $2 at step $3" '
        NR == FNR { want[$1] = $2; n++; next }
        !($1 in want) { print what ": " $1 " is in one alone"; exit 1 }
        { m++; d = $2 - want[$1]; if (d < 0) d = -d; s = want[$1] < 0 ? -want[$1] : want[$1] }
        ($2 == "null") != (want[$1] == "null") || !(d <= most * (1 + s)) { print what ": " $1 " is " want[$1] " and " $2; exit 1 }
        END { if (n != m) exit 1 }' "$1.numbers" "$2.numbers" || fail "the metrics of $1 and $2 differ at step $3"
}

# point RUN STEP TO: a run that ended at this iteration of another one, to go on with
point() {
    mkdir -p "$3/checkpoints"
    cp "$1/graph.yaml" "$1/plan.json" "$1/metrics.jsonl" "$1/samples.jsonl" "$3"
    cp -r "$1/checkpoints/step-$2" "$3/checkpoints"
}

ranks_of() { # RUN: the processes that are ranks of it, the first one first
    for p in /proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -q '^OMPI_COMM_WORLD_RANK=' || continue
        tr '\0' ' ' 2>/dev/null <"$p/cmdline" | grep -q -- "$1 " || continue
        echo "$(tr "\\0" "\\n" 2>/dev/null <"$p/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p') ${p#/proc/}"
    done | sort -n | sed 's/.* //'
}
