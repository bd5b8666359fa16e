#!/bin/sh
# Adapters on a CUDA device, beside frozen weights in bf16 and in NF4: equalities of the first iteration, the same bits twice, resumed
# and under budgets, near what the CPU computes, as many bytes as planned; and what is refused there. Skips (77) where there is no device.
. "$(dirname "$0")/one.sh"
. "$project/tests/gpu/rows.sh"

small_model small
lora='train: {lora: {rank: 8, alpha: 16}, '
sed -e 's/, schedule: cosine//' -e "s/train: {/$lora/" -e 's/model: model/model: small/' -e 's/lr: 1.0e-2/lr: 3.0e-2/' \
    -e 's/metrics: .*/metrics: {ratio_max: token_max(exp(logprob - old_logprob)), kl_max: token_max(abs(ref_logprob - logprob))}/' \
    grpo.yaml >lora.yaml
closed='train: {lora: {rank: 8, alpha: 16, base: nf4}, '
cp lora.yaml usual.yaml
sed "s/train: {lora: {[^}]*}, /$closed/" lora.yaml >nf4.yaml
for kernels in usual nf4; do
    sed '1s/^/strict: true\n/' $kernels.yaml >$kernels-strict.yaml
done
first() { # RUN: policy and reference are passes of one kind; that of the update has another size, which strict alone allows for
    [ "$(metric "$1" 1 kl)" = 0 ] || fail "$1: kl is $(metric "$1" 1 kl), not 0"
    echo "$1: the ratio is $(metric "$1" 1 update.ratio_max), the largest kl $(metric "$1" 1 update.kl_max)"
    [ "${1%-strict}" = "$1" ] || [ "$(metric "$1" 1 update.ratio_max) $(metric "$1" 1 update.kl_max)" = '1 0' ] || fail "$1: neither is exact"
}
set -- --device cuda
for kernels in usual usual-strict nf4 nf4-strict; do
    status 0 "$gr" exec $kernels.yaml "$@" --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2 --out one-$kernels
    first one-$kernels
    echo "$kernels: gap $(metric one-$kernels 1 logprob_gap_max) and $(metric one-$kernels 2 logprob_gap_max), kl $(metric one-$kernels 2 kl), norm $(metric one-$kernels 1 grad_norm)"
    [ "$(metric one-$kernels 2 kl)" != 0 ] || fail "$kernels: nothing is learnt"
    status 0 "$gr" exec $kernels.yaml "$@" --out whole-$kernels
    status 0 "$gr" exec $kernels.yaml "$@" --out again-$kernels
    same_weights whole-$kernels again-$kernels
    status 0 "$gr" exec $kernels.yaml "$@" --steps 3 --out half-$kernels
    status 0 "$gr" exec --resume half-$kernels "$@" --steps 6
    same_weights whole-$kernels half-$kernels
    planned=$(metric whole-$kernels 6 planned_peak_bytes) measured=$(metric whole-$kernels 6 measured_peak_bytes)
    echo "$kernels: planned $planned, measured $measured"
    [ "$measured" -le "$planned" ] || fail "$measured bytes were taken, $planned planned"
done
for kernels in usual nf4; do
    [ "$(metric one-$kernels-strict 2 logprob_gap_max)" = 0 ] || fail "$kernels, strict: a rollout has other bits than its update"
    status 0 "$gr" plan $kernels.yaml "$@" --format json
    peak=$(json_number out peak_bytes)
    status 3 "$gr" plan $kernels.yaml "$@" --set run.bits=keep --budget 4KiB
    least=$(least_budget)
    for budget in $(((peak + least) / 2)) "$least"; do
        status 0 "$gr" plan $kernels.yaml "$@" --set run.bits=keep --budget $budget --format json -o plan.json
        status 0 "$gr" verify plan.json
        status 0 "$gr" exec $kernels.yaml "$@" --set run.bits=keep --budget $budget --out budget
        same_weights whole-$kernels budget
        rm -rf budget
    done
done
[ "$(metric one-usual 1 grad_norm)" != "$(metric one-nf4 1 grad_norm)" ] || fail "nothing is rounded to 4 bits"
near_the_cpu "$lora"
near_the_cpu "$closed"
ppo_graph plain.yaml
classifier judge model
sed -e "s/train: {/$lora/" plain.yaml >ppo.yaml
status 0 "$gr" exec ppo.yaml "$@" --set model=small --out ppo
status 0 "$gr" exec ppo.yaml "$@" --set model=small --out ppo-again
same_weights ppo ppo-again
cmp ppo/checkpoints/step-4/critic/adapter_model.safetensors ppo-again/checkpoints/step-4/critic/adapter_model.safetensors ||
    fail "the critics differ"
sed 's/rank: 8/rank: 12/' lora.yaml >odd.yaml
refused 'must be a multiple of 8' "$gr" exec odd.yaml "$@" --out odd
