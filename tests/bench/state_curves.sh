#!/bin/sh
# Learning curves with training state and products in other types: tests/bench/state_curves.sh GRAPHRUN DIR FORM...
# A form is settings of the model `actor` with commas between, such as train.moments=int8 or precision.train=fp8;
# "fp32" is none. Of the quickstart; or, where TASK is a folder with verl's checkpoint and train.jsonl, of digit completion.
# SEEDS: those of the runs ("1 2 3 4"). OPTIONS: of exec, such as "--device cuda". Prints for each form and seed the mean
# reward of the last 50 iterations, and for each form mean and spread. The warmed-up model is made once, in DIR/warm.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
gr=$(readlink -f "$1") dir=$2
shift 2
mkdir -p "$dir"
cd "$dir"
graph=$here/graphs/quickstart.yaml model=warm data=train.jsonl
[ -z "${TASK:-}" ] || graph=$here/graphs/arithmetic.yaml model=$TASK data=$TASK/train.jsonl
[ -n "${TASK:-}" ] || [ -d warm ] || {
    "$here/graphs/quickstart/data.sh" .
    "$gr" init --config "$here/graphs/quickstart/config.json" --tokenizer "$here/graphs/quickstart" --seed 1 -o model
    "$gr" exec "$here/graphs/quickstart/warmup.yaml" --set model=model --set data=warmup.jsonl --out warmup >log
    "$gr" export warmup -o warm
}
for form in "$@"; do
    for seed in ${SEEDS:-1 2 3 4}; do
        set -- "$graph" --set model="$model" --set data="$data" --set run.seed="$seed" --out "$form.$seed"
        [ "$form" = fp32 ] || for key in $(echo "$form" | tr , ' '); do set -- "$@" --set "models.actor.$key"; done
        # shellcheck disable=SC2086
        [ -e "$form.$seed.done" ] || { "$gr" exec "$@" ${OPTIONS:-} >log 2>&1 || { tail -n 3 log >&2; exit 1; }; touch "$form.$seed.done"; }
        tail -n 50 "$form.$seed/metrics.jsonl" | sed -nE 's/.*"reward_mean": *([0-9.eE+-]+).*/\1/p' |
            awk -v f="$form" -v s="$seed" '{t += $1} END {printf "%-28s seed %s  %.4f of %d\n", f, s, t / NR, NR}'
    done | tee table
    awk -v f="$form" '{t += $4; q += $4 * $4} END {m = t / NR; v = q / NR - m * m
        printf "%-28s mean %.4f  spread %.4f\n", f, m, sqrt(v > 0 ? v * NR / (NR - 1) : 0)}' table
done
