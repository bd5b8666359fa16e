#!/bin/sh
# `share_prompts` on a CUDA device: the first iteration's numbers are near those of responses that read their own prompts, and
# under strict the same; runs repeat to the bit, resumed or not; nothing is above the plan. Skips (77) where there is no device.
# usage: share.sh GRAPHRUN
. "$(dirname "$0")/one.sh"

small_model small
sed -e 's/, schedule: cosine//' -e 's/model: model/model: small/' grpo.yaml >usual.yaml
{ echo 'strict: true'; cat usual.yaml; } >strict.yaml
{ echo 'deterministic: false'; cat usual.yaml; } >loose.yaml
set -- --device cuda
near() { # RUN RUN NAME
    a=$(metric "$1" 1 "$3") b=$(metric "$2" 1 "$3")
    echo "$3: $a, shared $b"
    awk -v a="$a" -v b="$b" 'BEGIN { d = a > b ? a - b : b - a; s = a < 0 ? -a : a; exit !(a != "" && d <= 0.02 * s + 0.002) }' ||
        fail "$3 of $2 is not near"
}
for kernels in usual strict loose; do
    one="--set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2"
    # shellcheck disable=SC2086
    status 0 "$gr" exec $kernels.yaml "$@" $one --out own-$kernels
    # shellcheck disable=SC2086
    status 0 "$gr" exec $kernels.yaml "$@" $one --set nodes.update.share_prompts=4 --out shared-$kernels
    for name in loss entropy grad_norm reward_mean kl; do near own-$kernels shared-$kernels $name; done
    planned=$(metric shared-$kernels 2 planned_peak_bytes) measured=$(metric shared-$kernels 2 measured_peak_bytes)
    [ "$measured" -le "$planned" ] || fail "$measured bytes were taken, $planned planned"
done
for name in loss entropy kl update.ratio_max; do
    [ "$(metric own-strict 1 $name)" = "$(metric shared-strict 1 $name)" ] || fail "strict: $name differs"
done
for step in 1 2; do
    [ "$(metric shared-strict $step logprob_gap_max)" = 0 ] || fail "strict: a rollout has other bits than its update"
done
set -- "$@" --set nodes.update.share_prompts=4
for kernels in usual strict; do
    status 0 "$gr" exec $kernels.yaml "$@" --out whole-$kernels
    status 0 "$gr" exec $kernels.yaml "$@" --out again-$kernels
    same_weights whole-$kernels again-$kernels
    status 0 "$gr" exec $kernels.yaml "$@" --steps 3 --out half-$kernels
    status 0 "$gr" exec --resume half-$kernels --device cuda --steps 6
    same_weights whole-$kernels half-$kernels
done
echo passed
