#!/bin/sh
# Tiny models of gemma4's small forms on a CUDA device: embeddings of each layer, and late layers with the keys and values of earlier
# ones, with windows whose blocks come again. The log-probs of the rollout are near those of whole sequences; under `strict: true` they
# have the same bits, whatever the slots, the pool and the sizes of passes, with drafts too. Runs have the same bits twice, resumed,
# killed and resumed, and under budgets; what is measured is within what was planned. Losses and gradients are near the CPU's, with
# adapters too. A value head trains. Keys and values in FP8 are read by the layers that take them. What divides such layers is refused.
# Skips (77) where there is no device.
# usage: carried.sh GRAPHRUN
. "$(dirname "$0")/one.sh"
. "$project/tests/gpu/rows.sh"

late='"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 18, "num_kv_shared_layers": 3, "use_double_wide_mlp": true'
cat >model.json <<END
{"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "vocab_size": 16, "max_position_embeddings": 256,
 "initializer_range": 0.1, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "bfloat16",
 "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 20, $late,
 "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
END
rm -rf model
"$gr" init --config model.json --tokenizer "$project/graphs/quickstart" --seed 1 -o model >/dev/null
cp -r model small
long_responses 60 -e 's/, schedule: cosine//'

exact() { # RUN: no gap in any iteration
    for step in 1 2 3 4; do
        [ "$(metric "$1" $step worst)" = 0 ] || fail "$1: the gap of iteration $step is $(metric "$1" $step worst)"
    done
    echo "$1: no gap"
}

within() { # RUN: its plan's memory; a small gap
    echo "$1: gaps of $(metric "$1" 4 gap), at most $(metric "$1" 4 worst); planned $(metric "$1" 4 planned_peak_bytes), measured $(metric "$1" 4 measured_peak_bytes)"
    [ "$(metric "$1" 4 measured_peak_bytes)" -le "$(metric "$1" 4 planned_peak_bytes)" ] || fail "$1: measured more than planned"
    awk "BEGIN {g = $(metric "$1" 4 gap); exit !(g > 0 && g < 0.05)}" || fail "$1: a gap of $(metric "$1" 4 gap)"
}

train whole
within whole
train again
same_bits whole again
train half --steps 2
status 0 "$gr" exec --device cuda --resume half --steps 4
same_bits whole half
train moved --policy every_node
has moved/plan.json '"kind": "offload"'
same_bits whole moved

# Killed behind its second checkpoint.
"$gr" exec --device cuda long.yaml --set run.checkpoint.every=1 --steps 400 --out killed >out 2>err &
pid=$! i=0
while [ ! -d killed/checkpoints/step-3 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done
kill -9 $pid
wait $pid || :
status 0 "$gr" exec --device cuda --resume killed@2 --steps 4
same_weights whole killed 4

train strict --set strict=true
exact strict
for set in concurrent=3 kv_blocks=14; do
    train strict-$set --set strict=true --set nodes.rollout.$set
    same_bits strict strict-$set
done
train strict-passes --set strict=true --set nodes.old_logprob.micro_tokens=256 --policy every_node
same_bits strict strict-passes
status 3 "$gr" plan --device cuda long.yaml --set strict=true --budget 4KiB
train strict-least --set strict=true --budget "$(least_budget)"
exact strict-least

sed 's/{op: generate, /&speculate: {always: true, tokens: 4, from: group, match: 1}, /' long.yaml >drafts.yaml
from=drafts.yaml train strict-drafts --set strict=true
exact strict-drafts
same_weights strict strict-drafts
sed 's/actor: {/&precision: {kv: fp8}, /' long.yaml >kv.yaml
for run in kv kv-again; do from=kv.yaml train $run; done
within kv
same_bits kv kv-again
[ "$(metric kv 1 gap)" != "$(metric whole 1 gap)" ] || fail "keys and values are not in FP8"

# Scores are those of normed heads, unscaled, so that roundings to bf16 alone move gradients by a hundredth, and by more behind large steps.
near_the_cpu '&' --set lr=1e-4
near_the_cpu 'train: {lora: {rank: 8, alpha: 16}, ' --set lr=1e-4
sed 's/train: {/train: {lora: {rank: 8, alpha: 16}, /' long.yaml >lora.yaml
for run in lora lora-again; do from=lora.yaml train $run; done
within lora
same_weights lora lora-again
from=lora.yaml train lora-half --steps 2
status 0 "$gr" exec --device cuda --resume lora-half --steps 4
same_weights lora lora-half

ppo_graph ppo.yaml
classifier judge model
status 0 "$gr" exec --device cuda ppo.yaml --steps 2 --out ppo
[ "$(metric ppo 2 update_critic.off)" != 0 ] || fail "the critic learns nothing"
echo "a value head: off by $(metric ppo 1 update_critic.off), $(metric ppo 2 update_critic.off)"

sed 's/actor: {/&precision: {rollout: fp8, train: fp8}, /' long.yaml >fp8.yaml
refused "model 'actor' has embeddings of each layer" "$gr" exec --device cuda fp8.yaml --out fp8
sed 's/"hidden_size_per_layer_input": 16/"hidden_size_per_layer_input": 12/' model.json >odd.json
"$gr" init --config odd.json --tokenizer "$project/graphs/quickstart" --seed 1 -o odd >/dev/null
refused 'embeddings of each layer of 12, which is no multiple of 8' "$gr" exec --device cuda long.yaml --set model=odd --out odd-run
