#!/bin/sh
# Families beyond the first four, whole runs: training stops and goes on to the bit, budgets change none, value heads
# train, what is exported is read again, and slices are made or refused by name.
. "$(dirname "$0")/lib.sh"

family() { # NAME TYPE CLASS KEYS [LAYERS]: a tiny model in NAME
    cat >"$1.json" <<END
{"architectures": ["$3ForCausalLM"], "model_type": "$2", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": ${5:-2},
 "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 16, "max_position_embeddings": 64,
 "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "float32", $4}
END
    status 0 "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1"
}

turns='"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]'
family mistral mistral Mistral '"sliding_window": 5'
family olmo2 olmo2 Olmo2 '"tie_word_embeddings": false'
family smollm3 smollm3 SmolLM3 '"no_rope_layers": [1, 0]'
family granite granite Granite '"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.4, "logits_scaling": 2.5'
family gemma2 gemma2 Gemma2 "$turns, \"final_logit_softcapping\": 5.0"
family gemma3 gemma3_text Gemma3 "$turns, \"rope_local_base_freq\": 100.0"
family untied gemma3_text Gemma3 "$turns, \"rope_local_base_freq\": 100.0, \"tie_word_embeddings\": false"
heads='"global_head_dim": 16, "attention_k_eq_v": true, "num_global_key_value_heads": 1, "final_logit_softcapping": 5.0'
family wide gemma4_text Gemma4 "$turns, $heads, \"hidden_size_per_layer_input\": 0, \"tie_word_embeddings\": false"
# As wide is, and embeddings of each layer; of five layers the last three take the keys of the first two.
late='"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 18, "num_kv_shared_layers": 3, "use_double_wide_mlp": true'
types='"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]'
family small gemma4_text Gemma4 "\"hidden_activation\": \"gelu_pytorch_tanh\", \"sliding_window\": 5, \"tie_word_embeddings\": false, $types, $heads, $late" 5
family beside gemma4_text Gemma4 "$turns, $heads, \"hidden_size_per_layer_input\": 0, \"tie_word_embeddings\": false, \"enable_moe_block\": true, \"num_experts\": 4, \"top_k_experts\": 2, \"moe_intermediate_size\": 8"

delta='"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "full_attention_interval": 2, "partial_rotary_factor": 0.5'
experts='"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8'
family next qwen3_next Qwen3Next "$delta, $experts"
family moe35 qwen3_5_moe_text Qwen3_5Moe "$delta, $experts"
family oss gpt_oss GptOss '"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5, "swiglu_limit": 0.5'

family olmo3 olmo3 Olmo3 '"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]'
family ministral ministral Ministral '"sliding_window": 5'
family glm glm4_moe Glm4Moe '"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8'
family moe2 qwen2_moe Qwen2Moe "$experts"
few='"num_local_experts": 4, "num_experts_per_tok": 2'
family phi3 phi3 Phi3 '"sliding_window": 5, "partial_rotary_factor": 0.5'
family mixtral mixtral Mixtral "$few"
family granitemoe granitemoe GraniteMoe "$few, \"residual_multiplier\": 0.3, \"attention_multiplier\": 0.4"
family olmoe olmoe Olmoe '"num_experts": 4, "num_experts_per_tok": 2'
family seed seed_oss SeedOss '"attention_out_bias": true'
family exaone exaone4 Exaone4 '"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]'
family gemma gemma Gemma '"hidden_act": "gelu"'

# Of those whose parts the others have too, and whose numbers the unit tests compare, only with GR_SLOW=1.
others="mixtral olmoe seed gemma granite gemma2 olmo3 ministral moe2 moe35 wide mistral olmo2 smollm3 gemma3"
[ "$slow" = 1 ] || others=
for m in phi3 granitemoe exaone small beside next oss glm $others; do
    rm -rf model
    cp -r $m model
    status 0 "$gr" exec grpo.yaml --steps 2 --out whole-$m --check-memory
    status 0 "$gr" exec grpo.yaml --steps 1 --out part-$m
    status 0 "$gr" exec --resume part-$m --steps 2
    same_weights whole-$m part-$m
    same_metrics whole-$m part-$m
    has whole-$m/metrics.jsonl '"step": 2, '
    status 0 "$gr" export whole-$m -o out-$m --model actor
    cmp $m/config.json out-$m/config.json >/dev/null || has out-$m/config.json bfloat16
    rm -rf model
    mv out-$m model
    status 0 "$gr" exec grpo.yaml --steps 1 --out again-$m
done

# Checkpoints as published: a text within a model of images, with experts as one tensor; experts in MXFP4; keys that no layer reads. What a run writes
# of them is a model by itself, and what is exported, too.
for m in qwen3_5_moe gpt_oss_mxfp4 mistral3 gemma4_shared; do
    rm -rf model
    cp -r "$project/tests/golden/model/$m" model
    cp "$project"/graphs/quickstart/tokenizer* model/
    status 0 "$gr" exec grpo.yaml --steps 2 --out whole-$m --check-memory
    cat err out >said
    case $m in
    gpt_oss_mxfp4) has said 'experts are in MXFP4, and widened' ;;
    gemma4_shared) has said 'of layers that take the keys and values of another, and left out' ;;
    *) has said 'of images or sound and left out' ;;
    esac
    if [ "$slow" = 1 ] || [ $m = gpt_oss_mxfp4 ]; then
        status 0 "$gr" exec grpo.yaml --steps 1 --out part-$m
        status 0 "$gr" exec --resume part-$m --steps 2
        same_weights whole-$m part-$m
        same_metrics whole-$m part-$m
    fi
    status 0 "$gr" export whole-$m --dtype bfloat16 -o out-$m --model actor
    if [ $m = qwen3_5_moe ]; then
        status 0 "$gr" export whole-$m --mtp "$project/tests/golden/model/$m" -o ahead-$m --model actor
        grep -aq '"mtp.fc.weight"' ahead-$m/model.safetensors || fail "layers that predict further tokens are not copied"
    fi
    for written in whole-$m/checkpoints/step-2/actor out-$m; do
        grep -qE 'text_config|quantization_config|ConditionalGeneration' $written/config.json &&
            fail "$m: $(cat $written/config.json)"
        rm -rf model
        cp -r $written model
        status 0 "$gr" exec grpo.yaml --steps 1 --out "again-$m-${written%%/*}"
        if grep -qE 'warning|note.*MXFP4' err; then fail "$m: $(cat err)"; fi
    done
done

# The first pass after a rollout sees its log-probs to the bit, whatever is in a batch.
for m in gemma3 small beside next oss; do
    for set in '--steps 1' '--steps 1 --set nodes.rollout.concurrent=3 --set nodes.old_logprob.micro_tokens=33'; do
        [ "$slow" = 1 ] || [ "$set" != '--steps 1' ] || continue
        rm -rf model one
        cp -r $m model
        # shellcheck disable=SC2086 # settings have no spaces
        status 0 "$gr" exec grpo.yaml $set --out one
        for name in kl logprob_gap_max; do
            [ "$(metric one 1 $name)" = 0 ] || fail "$m, $set: $name is $(metric one 1 $name), not 0"
        done
    done
done

# Kinds of layers under budgets; value heads behind norms of both forms, and on experts.
sed 's/steps: 6/steps: 3/' grpo.yaml >short.yaml
for m in small beside next oss $([ "$slow" = 0 ] || echo untied); do
    rm -rf model all
    cp -r $m model
    status 0 "$gr" exec short.yaml --out all
    any_budget short all
done
ppo_graph ppo.yaml
for m in gemma3 olmo2 oss $([ "$slow" = 0 ] || echo small next); do
    rm -rf model
    cp -r $m model
    cp $m.json model.json
    rm -rf judge
    sed -i 's/Gemma3ForCausalLM/Gemma3TextForCausalLM/' model.json # whose value heads have another class
    classifier judge model
    set -- --set nodes.update.micro_tokens=64 --steps 2
    status 0 "$gr" exec ppo.yaml "$@" --set critic_lr=0 --out still-$m
    [ "$(metric still-$m 1 update_critic.off)" = 0 ] || fail "$m: the values of the first pass are others"
    status 0 "$gr" exec ppo.yaml "$@" --out critic-$m
    [ "$(metric critic-$m 2 update_critic.off)" != 0 ] || fail "$m: the critic learns nothing"
done
