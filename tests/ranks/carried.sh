#!/bin/sh
# A model whose layers hand on more than hidden states (gemma4 with embeddings of each layer, and with layers that take the
# keys and values of others): shards over ranks have the bits of one rank where sums are canonical, adapters on all targets
# and on keys alone, and what divides layers is refused by name.
# usage: carried.sh GRAPHRUN
. "$(dirname "$0")/lib.sh"

config qwen3.json qwen3 32 true false
late='"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 18, "num_kv_shared_layers": 2, "use_double_wide_mlp": true'
types='"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]'
sed "s/\"qwen3\"/\"gemma4_text\"/; s/\"rope_theta\": [0-9.e]*,//; s/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": 4/; s/Qwen3For/Gemma4For/; s/\"hidden_act\": \"silu\"/\"hidden_activation\": \"gelu_pytorch_tanh\", \"sliding_window\": 5, \"global_head_dim\": 16, $types, $late/" \
    qwen3.json >small.json
rm -rf model
status 0 "$gr" init --config small.json --tokenizer "$project/graphs/quickstart" --seed 1 -o model

# ---- shards
for ranks in 1 2 $([ "$slow" = 1 ] && echo 4); do
    status 0 "$gr" exec grpo.yaml --set canonical=true --ranks $ranks --steps 2 --out shards-$ranks --check-memory
    [ $ranks = 1 ] || same_weights shards-1 shards-$ranks
done

# ---- adapters: layers that take keys have none of keys and values, embeddings of each layer none at all
for targets in '[q, k, v, o, gate, up, down]' '[k, v]'; do # of the latter the last layers have none
    sed "s/train: {/train: {lora: {rank: 4, alpha: 8, targets: $targets}, /" grpo.yaml >lora.yaml
    rm -rf adapters-1 adapters-2 out-adapters
    for ranks in $([ "$slow$targets" = '0[k, v]' ] || echo 1) 2; do
        status 0 "$gr" exec lora.yaml --set canonical=true --ranks $ranks --steps 1 --out adapters-$ranks --check-memory
    done
    [ ! -d adapters-1 ] || same_weights adapters-1 adapters-2
    status 0 "$gr" export adapters-2 -o out-adapters
    written=out-adapters/adapter_model.safetensors
    grep -aq 'layers.1.self_attn.k_proj.lora_A' $written || fail "a layer that lends keys has no adapter of them"
    if grep -aqE 'layers.[23].self_attn.[kv]_proj|per_layer' $written; then fail "adapters of what is not there"; fi
done

# ---- keys and values in FP8 are read by the layers that take them
sed 's/actor: {/&precision: {kv: fp8}, /' grpo.yaml >kv.yaml
status 0 "$gr" exec kv.yaml --steps 1 --out kv --check-memory
[ "$(metric kv 1 logprob_gap_max)" != 0 ] || fail "keys in FP8 are as exact as those of the update"

# ---- what is not built
named='embeddings of each layer'
refused "'pipeline: 2' is not built for $named: its stages hand on hidden states alone" \
    "$gr" plan grpo.yaml --ranks 2 --set models.actor.parallel.pipeline=2
refused "'context: 2' does not divide its $named" "$gr" plan grpo.yaml --ranks 2 --set models.actor.parallel.context=2
refused "'tensor: 2' does not divide its $named" "$gr" plan grpo.yaml --ranks 2 --set models.actor.parallel.tensor=2
refused "'tensor: 2' does not divide its $named" "$gr" plan grpo.yaml --ranks 2 --set models.actor.tensor=2
sed 's/actor: {/&precision: {rollout: fp8, train: fp8}, /' grpo.yaml >fp8.yaml
refused "model 'actor' has $named" "$gr" plan fp8.yaml
sed 's/train: {/train: {lora: {rank: 4, alpha: 8, base: nf4}, /' grpo.yaml >nf4.yaml
refused "$named" "$gr" plan nf4.yaml

# ---- CUDA devices have them, too: tests/gpu/carried.sh; what a step hands on is in the plan
for ranks in 1 2; do
    status 0 "$gr" plan grpo.yaml --device cuda --hardware h200 --ranks $ranks --format json -o plan.json
    status 0 "$gr" verify plan.json
    has plan.json '"what": "rollout.carried"'
done
