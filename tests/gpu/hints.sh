#!/bin/sh
# Log-probs under other prompts on a CUDA device: behind the same prompt they are the same to the bit with `strict: true`, and behind
# another one those of the CPU device, within its tolerance. Skips (77) where there is no device.
# usage: hints.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
cat >"$work/hints.yaml" <<END
graph: hints
strict: true
models: {actor: {checkpoint: $work/model}}
nodes:
  rows: {op: sequences, file: $work/train.jsonl, batch: 64, prompt: "{question}", response: "{answer}", max_prompt_tokens: 16, max_tokens: 16}
  same: {op: prompts, of: rows, template: "{prompt}", max_tokens: 16}
  hints: {op: prompts, of: rows, template: "{answer}{answer}{prompt}", max_tokens: 24}
  plain: {op: logprob, model: actor, of: rows}
  again: {op: logprob, model: actor, of: rows, prompts: same}
  hinted: {op: logprob, model: actor, of: rows, prompts: hints}
log: {off: token_max(abs(again - plain)), moved: token_max(abs(hinted - plain)), sum: token_mean(hinted)}
run: {steps: 2, seed: 1, checkpoint: {last: false}}
END
for device in cuda cpu; do
    "$gr" exec "$work/hints.yaml" --device $device --out "$work/$device" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
of() { # DEVICE NAME
    sed -nE "s/^\{\"step\": 2, (.*, )?\"$2\": ([^,}]*).*/\2/p" "$work/$1/metrics.jsonl"
}
echo "cuda: off $(of cuda off), moved $(of cuda moved), mean $(of cuda sum); cpu: mean $(of cpu sum)"
awk -v off="$(of cuda off)" -v moved="$(of cuda moved)" -v a="$(of cuda sum)" -v b="$(of cpu sum)" \
    'BEGIN { exit !(off == 0 && moved > 0 && (a - b) ^ 2 < 0.0004) }' || { echo "FAIL"; exit 1; }
