#!/bin/sh
# Families with latent attention through whole runs: rollout and update see the same log-probs to the bit, also in
# conversations, training stops and goes on to the bit, budgets change no bit, value heads train, what is exported is
# read again, and published sizes are planned.
. "$(dirname "$0")/lib.sh"

family() { # NAME TYPE CLASS KEYS: a tiny model in NAME
    cat >"$1.json" <<END
{"architectures": ["$3ForCausalLM"], "model_type": "$2", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
 "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 16, "max_position_embeddings": 64,
 "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "float32",
 "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "n_routed_experts": 8, "num_experts_per_tok": 2,
 "moe_intermediate_size": 8, "first_k_dense_replace": 1, $4}
END
    status 0 "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1"
}

family v3 deepseek_v3 DeepseekV3 '"q_lora_rank": 12, "v_head_dim": 6, "n_group": 4, "topk_group": 2'
family v2 deepseek_v2 DeepseekV2 '"q_lora_rank": null, "v_head_dim": 8'
family lite glm4_moe_lite Glm4MoeLite '"q_lora_rank": 12, "v_head_dim": 12, "n_group": 1'

for m in v3 v2 lite; do
    rm -rf model
    cp -r $m model
    status 0 "$gr" exec grpo.yaml --steps 2 --out whole-$m --check-memory
    status 0 "$gr" exec grpo.yaml --steps 1 --out part-$m
    status 0 "$gr" exec --resume part-$m --steps 2
    same_weights whole-$m part-$m
    same_metrics whole-$m part-$m
    [ "$(metric whole-$m 2 kl)" != 0 ] || fail "$m: nothing was learnt: the test means nothing"
    for name in kl logprob_gap_max; do
        [ "$(metric whole-$m 1 $name)" = 0 ] || fail "$m: $name is $(metric whole-$m 1 $name), not 0"
    done
    status 0 "$gr" export whole-$m -o out-$m --model actor
    rm -rf model
    mv out-$m model
    status 0 "$gr" exec grpo.yaml --steps 1 --out again-$m
done

rm -rf model
cp -r v3 model
cp v3.json model.json
status 0 "$gr" exec grpo.yaml --set nodes.rollout.concurrent=3 --set nodes.old_logprob.micro_tokens=33 --steps 1 --out few
[ "$(metric few 1 logprob_gap_max)" = 0 ] || fail "slots and micro-batches change bits"
status 0 "$gr" exec grpo.yaml --out all
any_budget grpo all
turns turns.yaml ""
status 0 "$gr" exec turns.yaml --steps 1 --out turns
[ "$(metric turns 1 logprob_gap_max)" = 0 ] || fail "latents kept over turns are not those of one pass"

ppo_graph ppo.yaml
classifier judge model
set -- --set nodes.update.micro_tokens=64 --steps 2
status 0 "$gr" exec ppo.yaml "$@" --set critic_lr=0 --out still
[ "$(metric still 1 update_critic.off)" = 0 ] || fail "the values of the first pass are others"
status 0 "$gr" exec ppo.yaml "$@" --out critic
[ "$(metric critic 2 update_critic.off)" != 0 ] || fail "the critic learns nothing"

refused "does not divide its 2 heads" "$gr" plan grpo.yaml --ranks 4 --set models.actor.tensor=4
refused "'context: 4' does not divide its 2 heads" "$gr" plan grpo.yaml --ranks 4 --set 'models.actor.parallel={context: 4}'

# A published model, for a machine that is not here: a row of latents a token, 1,152 bytes a layer.
status 0 "$gr" plan "$project/graphs/grpo.yaml" --set model="$project/tests/golden/configs/DeepSeek-V2-Lite.json" --hardware h200 \
    --format json -o lite.json
blocks=$(grep -o '"kv_blocks", "value": [0-9]*' lite.json | grep -o '[0-9]*$')
bytes=$(grep -o '"what": "rollout.kv", "category": "kv", "bytes": [0-9]*' lite.json | head -1 | grep -o '[0-9]*$')
[ "$bytes" = $((blocks * 16 * 1152 * 27)) ] || fail "the KV cache of $blocks blocks has $bytes bytes"
