#!/bin/sh
# The update of a mixture of experts with random weights (12 of the 48 layers of 30B-A3B's shape, fp32 master) on sequences of 2048
# tokens, on two CUDA devices: all experts on each, and half of them. Prints the seconds of the last iteration, predicted and
# measured, tokens a second on a device, and peaks.
# usage: experts.sh GRAPHRUN [SEQUENCES [LAYERS]]
set -eu
gr=$(realpath "$1")
sequences=${2:-64} layers=${3:-12}
project=$(realpath "$(dirname "$0")/../../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp "$project"/graphs/quickstart/tokenizer* . 2>/dev/null || :
cat >config.json <<END
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": $layers,
 "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
 "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false,
 "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "bfloat16"}
END
awk -v rows="$sequences" 'BEGIN { for (r = 0; r < rows; r++) { q = a = ""; for (i = 0; i < 1016; i++) { q = q (i * 7 + r) % 10; a = a (i * 3 + r) % 10 } print "{\"question\": \"" q "\", \"answer\": \"" a "\"}" } }' >rows.jsonl
cat >experts.yaml <<END
graph: experts
models:
  actor: {checkpoint: config.json, train: {lr: 1.0e-6}}
nodes:
  docs: {op: sequences, file: rows.jsonl, shuffle: false, batch: $sequences, prompt: "{question}", response: "{answer}", max_prompt_tokens: 1024, max_tokens: 1024}
  update: {op: update, model: actor, of: docs, loss: "-token_mean(logprob)"}
run: {steps: 3, seed: 1, checkpoint: {last: false}}
END
for experts in 1 2; do
    "$gr" plan experts.yaml --device cuda --ranks 2 --set models.actor.parallel.expert=$experts >plan 2>err || { cat err; exit 1; }
    predicted=$(sed -nE 's/.*predicted ([0-9.]+ m?s) an.*/\1/p' plan)
    "$gr" exec experts.yaml --device cuda --ranks 2 --set models.actor.parallel.expert=$experts --out run-$experts >log 2>&1 || { tail -n 20 log; exit 1; }
    sed -nE 's/.*"step": 3, .*"loss": ([^,]*).*"grad_norm": ([^,]*).*"tokens": ([^,]*).*"seconds": ([^,]*).*"planned_peak_bytes": ([^,]*), "measured_peak_bytes": ([^,]*).*/\1 \2 \3 \4 \5 \6/p' run-$experts/metrics.jsonl |
        while read -r loss norm tokens seconds planned measured; do
            echo "expert $experts: loss $loss, grad_norm $norm, $seconds s an iteration (predicted $predicted), $(awk "BEGIN { print $tokens / $seconds / 2 }") tokens/s a device, peak $measured of $planned planned"
        done
done
