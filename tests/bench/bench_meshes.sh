#!/bin/sh
# What docs/MESHES.md says: predicted time and peak of a training iteration on every mesh along one axis, and of models with
# experts on some along two (also those that are not run on CUDA devices), for models of 8B to 671B on hosts of 8 H200. Nothing runs:
# it plans. Minutes a row for the large ones.
# usage: bench_meshes.sh GRAPHRUN [RANKS [MODEL...]]   ranks: 8x8 64x8 512x8; MESHES="1,1,1,2 ...": these alone
set -eu
gr=$(realpath "$1")
ranks=${2:-8x8 64x8 512x8}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- 8B 32B 70B 235B
project=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GRAPHRUN_TRY_EXPERTS=1
cp "$project"/graphs/quickstart/tokenizer_config.json .
model() { # NAME CLASS TYPE HIDDEN INNER LAYERS HEADS KV VOCAB MORE
    cat >"$1.json" <<END
{"architectures": ["$2ForCausalLM"], "model_type": "$3", "hidden_size": $4, "intermediate_size": $5, "num_hidden_layers": $6,
 "num_attention_heads": $7, "num_key_value_heads": $8, "head_dim": 128, "vocab_size": $9, "max_position_embeddings": 131072,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
 "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, ${10} "torch_dtype": "bfloat16"}
END
}
model 8B Qwen3 qwen3 4096 12288 36 32 8 151936 ""
model 32B Qwen3 qwen3 5120 25600 64 64 8 151936 ""
model 70B Llama llama 8192 28672 80 64 8 128256 ""
model 235B Qwen3Moe qwen3_moe 4096 12288 94 64 4 151936 \
    '"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "norm_topk_prob": true,'
model 30B Qwen3Moe qwen3_moe 2048 6144 48 32 4 151936 \
    '"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,'
cat >671B.json <<'END'
{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
 "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
 "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
 "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
 "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "rms_norm_eps": 1e-06,
 "rope_theta": 10000.0, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": false,
 "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "bfloat16"}
END
cat >train.yaml <<'END'
graph: mesh
params: {model: 8B.json}
models:
  actor: {checkpoint: $model, train: {lr: 1.0e-6}}
nodes:
  docs: {op: sequences, file: none.jsonl, shuffle: false, batch: 512, prompt: "{question}", response: "{answer}", max_prompt_tokens: 4096, max_tokens: 4096}
  before: {op: logprob, model: actor, of: docs}
  update: {op: update, model: actor, of: docs, loss: "-token_mean(logprob) + 0 * token_mean(before)"}
run: {steps: 3, seed: 1}
END
for at in $ranks; do
    for m in "$@"; do
        began=$(date +%s)
        meshes="1,1,1 1,2,1 1,4,1 1,8,1 2,1,1 4,1,1 8,1,1 1,1,1,2 1,1,1,4 1,1,1,8 2,1,1,2 2,1,1,4 4,1,1,2 8,1,1,8"
        case $m in
        30B | 235B) meshes="1,1,1 1,2,1 1,4,1 2,1,1 4,1,1 1,1,2 1,1,4 1,1,8 1,1,16 1,1,32 1,2,8 1,4,4 1,4,8 2,1,8 4,1,8 1,1,1,2 1,1,1,4 1,1,1,8 2,1,1,8 4,1,1,8" ;;
        671B) meshes="1,1,1 2,1,1 4,1,1 8,1,1 2,1,8 4,1,8 8,1,8 1,1,2 1,1,4 1,1,8 1,1,16 1,1,32 1,1,64 1,1,1,2 1,1,1,4 1,1,1,8 8,1,1,8" ;; # of latent attention tokens are not cut
        esac
        for mesh in ${MESHES:-$meshes}; do
            IFS=, read -r tensor context expert pipeline <<AXES
$mesh
AXES
            "$gr" plan train.yaml --hardware h200 --ranks "$at" --set params.model="$m.json" --set models.actor.parallel.tensor=$tensor \
                --set models.actor.parallel.context=$context --set models.actor.parallel.expert=$expert \
                --set models.actor.parallel.pipeline=${pipeline:-1} >out 2>err || :
            echo "$at $m tensor $tensor context $context expert $expert pipeline ${pipeline:-1}: $(sed -nE 's/.*predicted ([0-9.]+ m?s) an.*/\1/p' out), $(sed -nE 's/^ *peak +([0-9.]+ [GM]iB) of.*/\1/p' out)$(grep -oE 'does not (divide .*|fit)' err | head -1)"
        done
        echo "$at $m: planned in $(($(date +%s) - began)) s"
    done
done
