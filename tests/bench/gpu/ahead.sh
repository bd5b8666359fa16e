#!/bin/sh
# What drafts of a checkpoint's layer bring where all of them are right: greedy responses of 1,024 tokens of a random model whose
# layer tests/gpu/mtp_right.py makes right, seconds of the third iteration without drafts and with 1 and 3 a step. How many are right
# in use is the checkpoint's; what a step costs whose drafts are not says bench_decode --ahead.
# usage: ahead.sh GRAPHRUN [HIDDEN [LAYERS [DEVICE]]]     1024, 24, cuda
set -eu
gr=$(realpath "$1")
hidden=${2:-1024} layers=${3:-24} device=${4:-cuda}
cd "$(dirname "$0")/../../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/config.json" <<END
{"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": $hidden, "intermediate_size": $((3 * hidden)),
 "num_hidden_layers": $layers, "num_attention_heads": $((hidden / 64)), "num_key_value_heads": $((hidden / 128)), "head_dim": 64,
 "vocab_size": 16, "max_position_embeddings": 2048, "initializer_range": 0.05, "eos_token_id": 1, "pad_token_id": 2, "use_qk_norm": true,
 "moe_intermediate_size": $hidden, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": $layers, "num_nextn_predict_layers": 1}
END
"$gr" init --config "$work/config.json" --tokenizer graphs/quickstart --seed 1 -o "$work/model" >/dev/null
python3 tests/gpu/mtp_right.py "$work/model" ids
echo '{"question": "12+34="}' >"$work/one.jsonl"
cat >"$work/none.yaml" <<END
graph: ahead
models: {actor: {checkpoint: model}}
nodes:
  prompts: {op: prompts, file: one.jsonl, batch: 1, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 1, temperature: 0, max_tokens: 1024, ignore_eos: true}
log: {length: batch_mean(rollout.length)}
run: {steps: 3, seed: 1, samples: 1, checkpoint: {last: false}}
END
for n in 1 3; do
    sed "s/ignore_eos: true/&, speculate: {from: mtp, tokens: $n, always: true}/" "$work/none.yaml" >"$work/$n.yaml"
done
for samples in 1 8 64; do
    for drafts in none 1 3; do
        run=$work/$drafts-$samples
        "$gr" exec "$work/$drafts.yaml" --device "$device" --set nodes.rollout.samples=$samples --out "$run" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
        cmp "$run/samples.jsonl" "$work/none-$samples/samples.jsonl" >/dev/null || echo "other responses than without drafts (they may be, without strict)"
        value() { sed -nE "\$s/.*\"$1\": ([0-9.]+).*/\1/p" "$run/metrics.jsonl"; }
        echo "$samples at once, drafts $drafts: $(value seconds) s, tokens a step $(value rollout.tokens_per_step)"
    done
done
