#!/bin/sh
# Products in FP8 on a CUDA device: no gap under strict where all passes are in FP8, a small one where they differ; the same bits
# twice, resumed and under budgets; near what the CPU computes; as many bytes as planned. Keys and values in FP8: about half the pool; of
# models with windows, with drafts, and read again by log-probs. Skips (77) where there is no device.
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
sed 's/train: fp8/train: fp8, gradients: fp8/' all.yaml >gradients.yaml
sed '1s/^/strict: true\n/' all.yaml >strict.yaml
sed 's/train: {/train: {lora: {rank: 8, alpha: 16}, /' strict.yaml >lora.yaml
set -- --device cuda
for g in bf16 mixed train all gradients strict lora; do
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
[ "$(metric whole-lora 1 reward_mean)" = "$(metric whole-strict 1 reward_mean)" ] || fail 'new adapters change what is sampled'
for step in 1 2 6; do
    for g in strict lora; do
        [ "$(metric whole-$g $step logprob_gap_max)" = 0 ] || fail "$g: a gap of $(metric whole-$g $step logprob_gap_max)"
    done
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
[ "$(metric whole-gradients 6 grad_norm)" != "$(metric whole-all 6 grad_norm)" ] || fail 'gradients are not in FP8'
near_the_cpu 'precision: {rollout: fp8, train: fp8}, &'
near_the_cpu 'precision: {rollout: fp8, train: fp8, gradients: fp8}, &'
sed -e 's/small/odd/' all.yaml >odd.yaml
config odd.json qwen3 96 false false
"$gr" init --config odd.json --tokenizer "$project/graphs/quickstart" --seed 1 -o odd >/dev/null
refused 'no multiple of 16' "$gr" exec odd.yaml "$@" --out odd-run

# ---- keys and values of rollouts
kv_bytes() { # PLAN
    sed -nE 's/.*"what": "rollout.kv",.* "bytes": ([0-9]+).*/\1/p' "$1" | head -1
}
config heads.json qwen3 256 false false
sed -i -e 's/"head_dim": 64/"head_dim": 128/' -e 's/"initializer_range": 0.3/"initializer_range": 0.08/' heads.json
"$gr" init --config heads.json --tokenizer "$project/graphs/quickstart" --seed 1 -o heads >/dev/null
window_model windows
sed -i 's/"head_dim": 8/"head_dim": 16/' windows.json
rm -r windows
"$gr" init --config windows.json --tokenizer "$project/graphs/quickstart" --seed 1 -o windows >/dev/null
sed -e "s/actor: {/&precision: {kv: fp8}, /" -e 's/model: small/model: heads/' bf16.yaml >kv.yaml
sed -e "s/precision: {kv: fp8}/precision: {rollout: fp8, train: fp8, kv: fp8}/; s/old_logprob: {/&weights: rollout, /" kv.yaml >again.yaml
echo 'log: {off: token_max(abs(old_logprob - rollout.logprob))}' >>again.yaml
sed -e 's/model: heads/model: windows/' -e 's/max_tokens: 6/max_tokens: 60, ignore_eos: true/' kv.yaml >windows.yaml
sed -e 's/{op: generate, /&speculate: {always: true, tokens: 4, from: group, match: 1}, /' kv.yaml >drafts.yaml
sed -e 's/{op: generate, /&concurrent: 5, /' kv.yaml >few.yaml
for g in kv again windows drafts few; do
    status 0 "$gr" exec $g.yaml "$@" --out whole-$g
    status 0 "$gr" exec $g.yaml "$@" --out again-$g
    same_weights whole-$g again-$g
    status 0 "$gr" exec $g.yaml "$@" --steps 3 --out half-$g
    status 0 "$gr" exec --resume half-$g "$@" --steps 6
    same_weights whole-$g half-$g
    planned=$(metric whole-$g 6 planned_peak_bytes) measured=$(metric whole-$g 6 measured_peak_bytes)
    echo "$g: gaps $(metric whole-$g 1 logprob_gap_max) $(metric whole-$g 6 logprob_gap_max), loss $(metric whole-$g 6 loss); planned $planned, measured $measured"
    [ "$measured" -le "$planned" ] || fail "$g: $measured bytes were taken, $planned planned"
    awk "BEGIN {g = $(metric whole-$g 1 logprob_gap_max); exit !(g > 1e-4 && g < 1)}" || fail "$g: a gap of $(metric whole-$g 1 logprob_gap_max)"
done
echo "read again: off by $(metric whole-again 1 off) and $(metric whole-again 6 off)"
sed -e 's/, kv: fp8//' again.yaml >usual.yaml
status 0 "$gr" exec usual.yaml "$@" --steps 1 --out usual
awk "BEGIN {exit !($(metric whole-again 1 off) < 3 * $(metric usual 1 off) + 0.01)}" || fail "weights: rollout has other keys: $(metric whole-again 1 off), and $(metric usual 1 off) in bf16"
sed 's/precision: {kv: fp8}, //' kv.yaml >wide.yaml
for g in kv wide; do
    status 0 "$gr" plan $g.yaml "$@" --format json -o plan-$g.json
    status 0 "$gr" verify plan-$g.json
done
echo "pool: $(kv_bytes plan-kv.json) bytes, $(kv_bytes plan-wide.json) in bf16"
[ $((32 * $(kv_bytes plan-kv.json))) -le $((17 * $(kv_bytes plan-wide.json) + 32 * 4096)) ] || fail "the pool has $(kv_bytes plan-kv.json) bytes"
status 3 "$gr" plan kv.yaml "$@" --set run.bits=keep --budget 4KiB
status 0 "$gr" exec kv.yaml "$@" --set run.bits=keep --budget "$(least_budget)" --out least
same_weights whole-kv least
