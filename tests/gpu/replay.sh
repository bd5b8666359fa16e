#!/bin/sh
# Responses of earlier iterations on a CUDA device (op replay): under strict they have the log-probs that they were sampled with, where
# weights stay; the same bits twice and resumed, no more memory than planned. Skips (77) where there is no device.
probe=$("$1" plan --device cuda /dev/null 2>&1 || :)
case $probe in *"CUDA device"* | *"has no device"*) echo "$probe"; echo "skipped"; exit 77 ;; esac
. "$(dirname "$0")/../e2e/lib.sh"

config small.json qwen3 64 false false
sed -i 's/"head_dim": 16/"head_dim": 32/' small.json
"$gr" init --config small.json --tokenizer "$project/graphs/quickstart" --seed 1 -o small >/dev/null
with_replay grpo.yaml usual.yaml 'samples: 3, size: 20, keep: "1 + reward"'
sed -i 's/model: model/model: small/' usual.yaml
{ echo 'strict: true'; cat usual.yaml; } >strict.yaml
comes_again strict.yaml 3
status 0 "$gr" exec usual.yaml --device cuda --out whole
status 0 "$gr" exec usual.yaml --device cuda --out twice
same_weights whole twice
any_stop usual whole 6 3
planned=$(metric whole 6 planned_peak_bytes) measured=$(metric whole 6 measured_peak_bytes)
echo "came again: $(metric whole 6 old); planned $planned, measured $measured"
[ "$measured" -le "$planned" ] || fail "$measured bytes were taken, $planned planned"
echo ok
