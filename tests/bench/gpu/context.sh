#!/bin/sh
# The update of a 1.7B model with random weights on sequences of 131,072 tokens: on one CUDA device, and with each sequence over
# two, or over as many as are given. Prints the seconds of the last iteration, tokens a second and peaks.
# usage: context.sh GRAPHRUN [TOKENS [DEVICES]...]
set -eu
gr=$(realpath "$1")
half=$((${2:-131072} / 2))
[ $# -gt 2 ] && shift 2 || set -- 1 2
project=$(realpath "$(dirname "$0")/../../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp "$project"/graphs/quickstart/tokenizer* . 2>/dev/null || :
cat >config.json <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
 "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 1048576,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false,
 "tie_word_embeddings": true, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "bfloat16"}
END
awk -v n="$half" 'BEGIN { for (r = 0; r < 4; r++) { q = a = ""; for (i = 0; i < n - 8; i++) { q = q (i * 7 + r) % 10; a = a (i * 3 + r) % 10 } print "{\"question\": \"" q "\", \"answer\": \"" a "\"}" } }' >long.jsonl
cat >long.yaml <<END
graph: long
deterministic: false
models:
  actor: {checkpoint: config.json, train: {lr: 1.0e-6}}
nodes:
  docs: {op: sequences, file: long.jsonl, shuffle: false, batch: 1, prompt: "{question}", response: "{answer}", max_prompt_tokens: $half, max_tokens: $half}
  update: {op: update, model: actor, of: docs, loss: "-token_mean(logprob)"}
run: {steps: 2, seed: 1, checkpoint: {last: false}}
END
for ranks; do
    "$gr" plan long.yaml --device cuda --ranks $ranks --set models.actor.parallel.context=$ranks 2>/dev/null | grep -E 'predicted|recomputation:' | head -2
    "$gr" exec long.yaml --device cuda --ranks $ranks --set models.actor.parallel.context=$ranks --out run-$ranks >log 2>&1 || { tail -n 20 log; exit 1; }
    sed -nE 's/.*"step": 2, .*"loss": ([^,]*).*"grad_norm": ([^,]*).*"seconds": ([^,]*).*"planned_peak_bytes": ([^,]*), "measured_peak_bytes": ([^,]*).*/context '$ranks': loss \1, grad_norm \2, \3 s an iteration, peak \5 of \4 planned/p' run-$ranks/metrics.jsonl
done
