#!/bin/sh
# Products in FP8 on a CUDA device: no gap under strict where all passes are in FP8, a small one where they differ; the same bits
# twice, resumed and under budgets; near what the CPU computes; as many bytes as planned. Skips (77) where there is no device.
. "$(dirname "$0")/one.sh"
. "$project/tests/gpu/rows.sh"

config small.json qwen3 256 false false
sed -i -e 's/"intermediate_size": 48/"intermediate_size": 208/' -e 's/"initializer_range": 0.3/"initializer_range": 0.08/' small.json
"$gr" init --config small.json --tokenizer "$project/graphs/quickstart" --seed 1 -o small >/dev/null
sed -e 's/, schedule: cosine//' -e 's/model: model/model: small/' -e 's/lr: 1.0e-2/lr: 1.0e-3/' grpo.yaml >bf16.yaml
with() { # FILE ROLLOUT TRAIN
    sed "s/actor: {/&precision: {rollout: $2, train: $3}, /" bf16.yaml >"$1"
}
with mixed.yaml fp8 bf16
with train.yaml bf16 fp8
with all.yaml fp8 fp8
sed '1s/^/strict: true\n/' all.yaml >strict.yaml
set -- --device cuda
for g in bf16 mixed train all strict; do
    status 0 "$gr" exec $g.yaml "$@" --out whole-$g
    status 0 "$gr" exec $g.yaml "$@" --out again-$g
    same_weights whole-$g again-$g
    status 0 "$gr" exec $g.yaml "$@" --steps 3 --out half-$g
    status 0 "$gr" exec --resume half-$g "$@" --steps 6
    same_weights whole-$g half-$g
    planned=$(metric whole-$g 6 planned_peak_bytes) measured=$(metric whole-$g 6 measured_peak_bytes)
    echo "$g: gaps $(metric whole-$g 1 logprob_gap_max) $(metric whole-$g 6 logprob_gap_max), loss $(metric whole-$g 6 loss), norm $(metric whole-$g 6 grad_norm); planned $planned, measured $measured"
    [ "$measured" -le "$planned" ] || fail "$g: $measured bytes were taken, $planned planned"
done
for step in 1 2 6; do
    [ "$(metric whole-strict $step logprob_gap_max)" = 0 ] || fail "strict: a gap of $(metric whole-strict $step logprob_gap_max)"
    for g in mixed train; do
        awk "BEGIN {exit !($(metric whole-$g $step logprob_gap_max) < 1)}" || fail "$g: a gap of $(metric whole-$g $step logprob_gap_max)"
    done
done
status 0 "$gr" plan all.yaml "$@" --format json
peak=$(json_number out peak_bytes)
status 3 "$gr" plan all.yaml "$@" --set run.bits=keep --budget 4KiB
for budget in $(((peak + $(least_budget)) / 2)) "$(least_budget)"; do
    status 0 "$gr" plan all.yaml "$@" --set run.bits=keep --budget $budget --format json -o plan.json
    status 0 "$gr" verify plan.json
    status 0 "$gr" exec all.yaml "$@" --set run.bits=keep --budget $budget --out budget
    same_weights whole-all budget
    rm -rf budget
done
near_the_cpu 'precision: {rollout: fp8, train: fp8}, &'
sed -e 's/small/odd/' all.yaml >odd.yaml
config odd.json qwen3 96 false false
"$gr" init --config odd.json --tokenizer "$project/graphs/quickstart" --seed 1 -o odd >/dev/null
refused 'no multiple of 16' "$gr" exec odd.yaml "$@" --out odd-run
