#!/bin/sh
# A tiny hybrid (layers of the gated delta rule, and one of gated attention with heads of 256, of which a quarter is
# rotated) on a CUDA device. The log-probs of the rollout, whose states go on from prompts in parts, copies and steps, are
# near those of whole sequences; under `strict: true` they have the same bits, whatever the slots, the pool and the sizes
# of passes. Runs have the same bits twice, under budgets that make state move, and resumed; what is measured is within
# what was planned. A value head trains. Skips (77) where there is no device.
# usage: delta.sh GRAPHRUN
. "$(dirname "$0")/one.sh"

cat >model.json <<END
{"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 16,
 "max_position_embeddings": 128, "initializer_range": 0.1, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2,
 "torch_dtype": "bfloat16", "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 128,
 "linear_value_head_dim": 64, "partial_rotary_factor": 0.25}
END
rm -rf model
"$gr" init --config model.json --tokenizer "$project/graphs/quickstart" --seed 1 -o model >/dev/null
long_responses 37

exact() { # RUN: no gap in any iteration
    for step in 1 2 3 4; do
        for name in worst logprob_gap_max; do
            [ "$(metric "$1" $step $name)" = 0 ] || fail "$1: $name of iteration $step is $(metric "$1" $step $name)"
        done
    done
    echo "$1: no gap"
}

train whole
echo "without strict: gaps of $(metric whole 1 gap), at most $(metric whole 1 worst)"
awk "BEGIN {g = $(metric whole 4 gap); exit !(g > 0 && g < 0.05)}" || fail "a gap of $(metric whole 4 gap)"
[ "$(metric whole 4 measured_peak_bytes)" -le "$(metric whole 4 planned_peak_bytes)" ] || fail "measured more than planned"
echo "peak: planned $(metric whole 4 planned_peak_bytes), measured $(metric whole 4 measured_peak_bytes)"
train again
same_bits whole again
train half --steps 2
status 0 "$gr" exec --device cuda --resume half --steps 4
same_bits whole half
train moved --policy every_node
has moved/plan.json '"kind": "offload"'
same_bits whole moved

# States in half of the bytes: a gap of the same size, the same bits again and resumed.
bf16="--set models.actor.precision.state=bf16"
# shellcheck disable=SC2086
train narrow $bf16
echo "states in bf16: gaps of $(metric narrow 1 gap), at most $(metric narrow 1 worst)"
awk "BEGIN {g = $(metric narrow 4 gap); exit !(g > 0 && g < 0.05)}" || fail "a gap of $(metric narrow 4 gap)"
[ "$(metric narrow 4 measured_peak_bytes)" -le "$(metric narrow 4 planned_peak_bytes)" ] || fail "measured more than planned"
# shellcheck disable=SC2086
train narrow-half $bf16 --steps 2
status 0 "$gr" exec --device cuda --resume narrow-half --steps 4
same_bits narrow narrow-half

train strict --set strict=true
exact strict
for set in concurrent=3 concurrent=5 kv_blocks=12; do
    train strict-$set --set strict=true --set nodes.rollout.$set
    same_bits strict strict-$set
done
train strict-passes --set strict=true --set nodes.old_logprob.micro_tokens=256 --policy every_node
same_bits strict strict-passes
status 3 "$gr" plan --device cuda long.yaml --set strict=true --budget 4KiB
least=$(least_budget)
train strict-least --set strict=true --budget "$least"
exact strict-least
for run in strict strict-least; do grep "\"step\": 1, " $run/samples.jsonl >$run.first; done
cmp strict.first strict-least.first || fail "the first rollout of strict-least differs" # later ones follow other sums of gradients

ppo_graph ppo.yaml
classifier judge model
status 0 "$gr" exec --device cuda ppo.yaml --steps 2 --out ppo
[ "$(metric ppo 2 update_critic.off)" != 0 ] || fail "the critic learns nothing"
echo "a value head: off by $(metric ppo 1 update_critic.off), $(metric ppo 2 update_critic.off)"
