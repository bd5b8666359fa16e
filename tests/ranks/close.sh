# Sourced by tests that compare runs on different numbers of ranks, behind e2e/lib.sh.

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
