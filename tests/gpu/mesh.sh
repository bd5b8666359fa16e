#!/bin/sh
# Training on a mesh of two CUDA devices, along each axis: the first iteration's numbers are near those of one rank, runs
# repeat to the bit, sharded or not, resumed or not; along context strict keeps its promise; nothing is above the plan. Skips
# (77) where there are not two devices or no mpirun.
# usage: mesh.sh GRAPHRUN [experts | tensor | both | pipeline | chunks | keys | latent | fp8]   the experts, slices, experts beside slices, stages,
#        stages in chunks, sequences over more devices than there are heads of keys, those of latent attention, or sequences in FP8, alone
. "$(dirname "$0")/two.sh"

both() { # AXIS OUT OPTIONS...
    axis=$1
    shift
    train "$@" --ranks 2 --set models.actor.parallel.$axis=2
}

along() { # AXIS
    both $1 $1-two --steps 6
    for key in loss grad_norm reward_mean entropy tokens; do
        echo "$key of step 1: $(number one 1 $key) on one rank, $(number $1-two 1 $key) along $1; of step 6: $(number one 6 $key), $(number $1-two 6 $key)"
        near $key one $1-two
    done
    both $1 $1-again --steps 6
    same $1-two $1-again
    both $1 $1-shards --steps 6 --set models.actor.residency.rollout_weights=keep
    same $1-two $1-shards
    both $1 $1-half --steps 3
    timeout 120 "$gr" exec --resume "$work/$1-half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
    same $1-two $1-half
    both $1 $1-small --steps 6 --set nodes.update.micro_tokens=512 --set nodes.old_logprob.micro_tokens=500
    for key in loss grad_norm entropy; do near $key one $1-small; done
    within_plan $1-two $1-shards $1-small
}

# Experts divided over both devices: ranks keep sequences of their own, and under strict the gap of one device, 0.
experts() {
    both expert moe-two --steps 6
    for key in loss grad_norm reward_mean entropy tokens; do
        echo "$key of step 1: $(number moe-one 1 $key) on one rank, $(number moe-two 1 $key) with experts on two"
        near $key moe-one moe-two
    done
    both expert moe-again --steps 6
    same moe-two moe-again
    both expert moe-shards --steps 6 --set models.actor.residency.rollout_weights=keep
    same moe-two moe-shards
    both expert moe-half --steps 3
    timeout 120 "$gr" exec --resume "$work/moe-half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
    same moe-two moe-half
    both expert moe-small --steps 6 --set nodes.update.micro_tokens=512 --set nodes.old_logprob.micro_tokens=500
    for key in loss grad_norm entropy; do near $key moe-one moe-small; done
    both expert moe-strict --steps 6 --set strict=true
    for step in 1 6; do
        [ "$(number moe-strict $step logprob_gap_max)" = 0 ] || { echo "strict: log-probs differ"; exit 1; }
    done
    within_plan moe-two moe-shards moe-small moe-strict
}

strict() {
    sed 's/^graph:/strict: true\n&/' graphs/quickstart.yaml >"$work/strict.yaml"
    timeout 120 "$gr" exec "$work/strict.yaml" --set model="$work/model" --set data="$work/train.jsonl" --device cuda --ranks 2 \
        --set models.actor.parallel.context=2 --steps 6 --out "$work/strict" >"$work/strict.log" 2>&1 || { cat "$work/strict.log"; exit 1; }
    for step in 1 6; do
        [ "$(number strict $step logprob_gap_max)" = 0 ] || { echo "strict: log-probs differ"; exit 1; }
    done
}

# A model with adapters, or in FP8, beside one rank; with the options in `ring` where there are stages.
ring=""
cut_of() { # AXIS NAME OPTIONS...
    axis=$1 name=$2
    shift 2
    train $name-one "$@" --steps 6
    # shellcheck disable=SC2086
    both $axis $name-two "$@" --steps 6 $ring
    for key in loss grad_norm reward_mean entropy; do near $key $name-one $name-two; done
    # shellcheck disable=SC2086
    both $axis $name-again "$@" --steps 6 $ring
    same $name-two $name-again
    within_plan $name-two
}

# Stages in chunks around the ring of both devices: as one rank, and the bits of stages without chunks.
chunks() {
    sed "s/\"num_hidden_layers\": *[0-9]*/\"num_hidden_layers\": 6/" graphs/quickstart/config.json >"$work/deep.json"
    "$gr" init --config "$work/deep.json" --tokenizer graphs/quickstart --seed 1 -o "$work/deep" >/dev/null
    rm -rf "$work/model"
    mv "$work/deep" "$work/model"
    small="--set nodes.update.micro_tokens=512 --set nodes.old_logprob.micro_tokens=500"
    ring="--set models.actor.parallel.chunks=2"
    # shellcheck disable=SC2086
    {
        train one --steps 6 $small
        both pipeline plain --steps 6 $small
        both pipeline ring --steps 6 $small $ring
        for key in loss grad_norm reward_mean entropy; do near $key one ring; done
        same plain ring
        both pipeline again --steps 6 $small $ring
        same ring again
        both pipeline shards --steps 6 $small $ring --set models.actor.residency.rollout_weights=keep
        same ring shards
        both pipeline half --steps 3 $small $ring
        timeout 120 "$gr" exec --resume "$work/half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
        same ring half
        both pipeline three --steps 6 $small --set models.actor.parallel.chunks=3
        same ring three
        within_plan ring shards three
        cut_of pipeline lora $small --set models.actor.train.lora.rank=8
    }
}

if [ "${2:-all}" = chunks ]; then
    chunks
    echo "all is well"
    exit 0
fi
fp8="--set models.actor.precision.train=fp8 --set models.actor.precision.rollout=fp8"
if [ "${2:-all}" = fp8 ]; then
    # shellcheck disable=SC2086
    cut_of context fp8 $fp8
    echo "all is well"
    exit 0
fi
if [ "${2:-all}" = pipeline ]; then # the first iteration of one rank is near
    train one --steps 6
    along pipeline
    cut_of pipeline lora --set models.actor.train.lora.rank=8
    # shellcheck disable=SC2086
    cut_of pipeline fp8 $fp8
    echo "all is well"
    exit 0
fi
if [ "${2:-all}" = all ]; then
    train one --steps 6
    along context
    along tensor
    along pipeline
    strict
fi
# Slices of a model whose output matrix is not the embedding, with parts of a vocabulary that fill several tiles.
other_head() {
    sed "s/\"tie_word_embeddings\": *[a-z]*/\"tie_word_embeddings\": $1/; s/\"vocab_size\": *[0-9]*/\"vocab_size\": 1000/" \
        graphs/quickstart/config.json >"$work/head.json"
    "$gr" init --config "$work/head.json" --tokenizer graphs/quickstart --seed 1 -o "$work/head" >/dev/null
    rm -rf "$work/model"
    mv "$work/head" "$work/model"
}

heads() {
    for tied in true false; do
        other_head $tied
        rm -rf "$work/one" "$work"/tensor-*
        train one --steps 6
        along tensor
    done
}

# Experts beside slices: both of one group.
beside() {
    experts_model
    train moe-one --steps 6
    both expert slices-two --steps 6 --set models.actor.parallel.tensor=2
    for key in loss grad_norm reward_mean entropy tokens; do
        echo "$key of step 1: $(number moe-one 1 $key) on one rank, $(number slices-two 1 $key) with experts and slices on two"
        near $key moe-one slices-two
    done
    both expert slices-again --steps 6 --set models.actor.parallel.tensor=2
    same slices-two slices-again
    both expert slices-shards --steps 6 --set models.actor.parallel.tensor=2 --set models.actor.residency.rollout_weights=keep
    same slices-two slices-shards
    within_plan slices-two slices-shards
}

# One KV head, which both devices have; then a hybrid, where they also have the one key head of the gated delta rule, and half of the
# value heads each.
keys() {
    for config in config config_hybrid; do
        sed 's/"num_key_value_heads": 4/"num_key_value_heads": 1/; s/"linear_num_key_heads": 2/"linear_num_key_heads": 1/; s/"linear_num_value_heads": 4/"linear_num_value_heads": 8/; s/"head_dim": 32/"head_dim": 64/' \
            graphs/quickstart/$config.json >"$work/keys.json"
        rm -rf "$work/model" "$work/one" "$work"/context-* "$work/strict"
        "$gr" init --config "$work/keys.json" --tokenizer graphs/quickstart --seed 1 -o "$work/model" >/dev/null
        train one --steps 6
        along context
        strict
    done
    sed 's/"linear_num_value_heads": 8/"linear_num_value_heads": 4/' "$work/keys.json" >"$work/few.json"
    "$gr" init --config "$work/few.json" --tokenizer graphs/quickstart --seed 1 -o "$work/few" >/dev/null
    ! "$gr" plan graphs/quickstart.yaml --set model="$work/few" --set data="$work/train.jsonl" --device cuda --ranks 2 \
        --set models.actor.parallel.context=2 >/dev/null 2>"$work/few.log" || { echo "two value heads a device are not refused"; exit 1; }
    grep -q 'on each of the ranks that a sequence is cut over, value heads that are no multiple of 4' "$work/few.log" || { cat "$work/few.log"; exit 1; }
}

# Latent attention in dense layers: expanded on both devices, and under strict absorbed.
latent() {
    sed 's/"model_type": *"[a-z0-9_]*"/"model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 64, "q_lora_rank": 48, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32/
        s/"architectures": *\["[A-Za-z0-9]*"\]/"architectures": ["DeepseekV3ForCausalLM"]/; s/"num_key_value_heads": *[0-9]*/"num_key_value_heads": 8/; s/"num_attention_heads": *[0-9]*/"num_attention_heads": 8/; s/"head_dim": *[0-9]*,//' \
        graphs/quickstart/config.json >"$work/latent.json"
    rm -rf "$work/model"
    "$gr" init --config "$work/latent.json" --tokenizer graphs/quickstart --seed 1 -o "$work/model" >/dev/null
    train one --steps 6
    along context
    strict
}

if [ "${2:-all}" = latent ]; then
    latent
    echo "all is well"
    exit 0
fi
if [ "${2:-all}" = keys ]; then
    keys
    echo "all is well"
    exit 0
fi
if [ "${2:-all}" = both ]; then
    beside
    echo "all is well"
    exit 0
fi
if [ "${2:-all}" = tensor ]; then
    heads
    echo "all is well"
    exit 0
fi
experts_model
train moe-one --steps 6
experts
echo "all is well"
