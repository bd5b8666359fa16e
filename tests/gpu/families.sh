#!/bin/sh
# Families of models on a CUDA device: the loss and the norm of gradients of fixed rows are near those of the CPU device;
# under `strict: true` the log-prob pass sees the rollout's numbers; a run repeats to the bit. Skips (77) where there is no device.
# usage: families.sh GRAPHRUN [NAME...]: of these families alone
. "$(dirname "$0")/quickstart.sh"
wrong=0
shift
only=$*

value() { # NAME RUN: of the last iteration
    grep -o "\"$1\": [^,}]*" "$work/$2/metrics.jsonl" | sed 's/.*: //' | tail -1
}

exec_() { # OUT GRAPH OPTIONS...
    out=$1
    graph=$2
    shift 2
    "$gr" exec "graphs/$graph.yaml" --set model="$work/$name" --out "$work/$out" "$@" >"$work/$out.log" 2>&1
}

# Norms of queries with 512 columns become 1/8. At 1, as they are drawn, scores spread by 22 and softmax is nearly one-hot: a model whose weights
# are rounded to bf16 then has gradients of another norm, by 40 % (transformers 5.24 in fp32: 6.68, rounded 9.32), and no bound tells rounding from
# a fault. Now scores spread by 2.8, and rounding moves the norm by less than 1 %.
flatten() { # FILE: fp32
    header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
    found=0
    for at in $(head -c $((header + 8)) "$1" | tail -c "$header" | grep -ao '"[^"]*\.q_norm\.weight":{[^}]*"shape":\[512\][^}]*}' |
        grep -o 'data_offsets":\[[0-9]*' | grep -o '[0-9]*$'); do
        # shellcheck disable=SC2046
        printf '\0\0\0>%.0s' $(seq 512) | dd of="$1" bs=1 seek=$((8 + header + at)) conv=notrunc status=none
        found=$((found + 1))
    done
    [ $found = 2 ] || { echo "$name: $found norms of 512 columns"; wrong=1; }
}

family() { # NAME TYPE CLASS KEYS
    name=$1
    case " ${only:-$name} " in *" $name "*) ;; *) return 0 ;; esac
    cat >"$work/$name.json" <<END
{"architectures": ["$3ForCausalLM"], "model_type": "$2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16, "max_position_embeddings": 64, "initializer_range": 0.15,
 "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, $4}
END
    "$gr" init --config "$work/$name.json" --tokenizer graphs/quickstart --seed 1 -o "$work/$name" >/dev/null
    case $name in gemma4*_wide) flatten "$work/$name/model.safetensors" ;; esac
    if ! exec_ $name-a quickstart --set data="$work/train.jsonl" --device cuda --steps 2 --set strict=true \
        --set 'log.worst=token_max(abs(old_logprob - rollout.logprob))'; then
        sed "s/^/$name: /" "$work/$name-a.log" | grep -m 1 . || :
        wrong=1
        return 0
    fi
    exec_ $name-b quickstart --set data="$work/train.jsonl" --device cuda --steps 2 --set strict=true \
        --set 'log.worst=token_max(abs(old_logprob - rollout.logprob))'
    for d in cpu cuda; do
        exec_ $name-$d quickstart/warmup --set data="$work/warmup.jsonl" --device $d --steps 1 || { cat "$work/$name-$d.log"; wrong=1; }
    done
    same=differ
    cmp -s "$work/$name-a/checkpoints/step-2/actor/model.safetensors" "$work/$name-b/checkpoints/step-2/actor/model.safetensors" && same=same
    by=0.05
    case $name in gemma4_moe) ;; gemma4*) by=0.02 ;; esac
    echo "$name: gap $(value worst $name-a), bits $same, loss $(value loss $name-cpu) $(value loss $name-cuda), gradients $(value \
        grad_norm $name-cpu) $(value grad_norm $name-cuda)"
    awk -v gap="$(value worst $name-a)" -v same=$same -v l="$(value loss $name-cpu)" -v m="$(value loss $name-cuda)" \
        -v g="$(value grad_norm $name-cpu)" -v h="$(value grad_norm $name-cuda)" -v by=$by 'function near(a, b, by) { return a - b < by * a && b - a < by * a }
        BEGIN { exit !(gap == 0 && same == "same" && l > 0 && near(l, m, 0.02) && near(g, h, by)) }' || wrong=1
    case $4 in *sliding_window*) long ;; esac
}

# Responses longer than the window, whose blocks come again: rollouts attend to the keys that a pass over the whole row does.
long() {
    for strict in true false; do
        exec_ $name-long-$strict quickstart --set data="$work/train.jsonl" --device cuda --steps 2 --set strict=$strict \
            --set nodes.rollout.max_tokens=48 --set nodes.rollout.ignore_eos=true --set nodes.rollout.concurrent=200 \
            --set 'log.worst=token_max(abs(old_logprob - rollout.logprob))' --set 'log.off=token_mean(abs(old_logprob - rollout.logprob))' ||
            { cat "$work/$name-long-$strict.log"; wrong=1; return 0; }
    done
    echo "$name: 48 tokens: gap $(value worst $name-long-true), without strict $(value off $name-long-false), at most $(value worst \
        $name-long-false)"
    awk -v gap="$(value worst $name-long-true)" -v off="$(value off $name-long-false)" 'BEGIN { exit !(gap == 0 && off < 0.03) }' || wrong=1
}

few='"num_local_experts": 8, "num_experts_per_tok": 2'
shared='"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32'
delta='"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "full_attention_interval": 2, "partial_rotary_factor": 0.5'
turns='"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]'
family phi3 phi3 Phi3 "\"sliding_window\": 5"
family longrope phi3 Phi3 '"original_max_position_embeddings": 4, "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1], "long_factor": [1, 2, 3, 4, 6, 9, 14, 20]}'
family ministral3 ministral3 Ministral3 '"head_dim": 16, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}'
family mixtral mixtral Mixtral "$few"
family olmoe olmoe Olmoe '"num_experts": 8, "num_experts_per_tok": 2'
family granitemoe granitemoe GraniteMoe "$few, \"residual_multiplier\": 0.5, \"attention_multiplier\": 0.3"
family seed_oss seed_oss SeedOss '"head_dim": 16, "attention_out_bias": true'
family exaone4 exaone4 Exaone4 "\"head_dim\": 16, $turns"
family gemma gemma Gemma '"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"'
family gemma4 gemma4_text Gemma4 "\"head_dim\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size_per_layer_input\": 0, \"global_head_dim\": 32, \"attention_k_eq_v\": true, $turns"
family gemma4_wide gemma4_text Gemma4 "\"head_dim\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size_per_layer_input\": 0, \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1, $turns"
family gemma4_moe gemma4_text Gemma4 "\"head_dim\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size_per_layer_input\": 0, \"global_head_dim\": 32, \"enable_moe_block\": true, \"num_experts\": 8, \"top_k_experts\": 2, \"moe_intermediate_size\": 32, $turns"
late='"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 18, "num_kv_shared_layers": 2'
family gemma4_small gemma4_text Gemma4 "\"head_dim\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"global_head_dim\": 32, \"use_double_wide_mlp\": true, $late, $turns"
family gemma4_small_wide gemma4_text Gemma4 "\"head_dim\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1, $late, $turns"
family gpt_oss gpt_oss GptOss "\"head_dim\": 16, $few, $turns, \"swiglu_limit\": 0.5"
family glm4_moe glm4_moe Glm4Moe '"head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32'
family qwen2_moe qwen2_moe Qwen2Moe "$shared"
family qwen3_5 qwen3_5_text Qwen3_5 "\"head_dim\": 64, $delta"
family qwen3_5_moe qwen3_5_moe_text Qwen3_5Moe "\"head_dim\": 64, $delta, $shared"
family qwen3_next qwen3_next Qwen3Next "\"head_dim\": 64, $delta, $shared"
exit $wrong
