# Random legal graphs for the planner, and what a plan says: sourced by plan_fuzz.sh and monotone.sh.
# shellcheck disable=SC2034
state=0
pick() { # N: the variable `got` becomes a number below N
    state=$(((state * 1103515245 + 12345) % 2147483648))
    got=$((state / 65536 % $1))
}

one_of() { # WORD...: `got` becomes one of them
    pick $#
    shift "$got"
    got=$1
}

# HIDDEN LAYERS HEADS KV FEED VOCAB: of widths from 10M to 72B parameters
shape() { # FILE
    one_of "256 6 4 2 704 8192" "512 8 8 2 1408 32000" "896 24 14 2 4864 151936" "1024 28 16 8 3072 151936" \
        "2048 28 16 8 6144 151936" "2560 36 32 8 9728 151936" "4096 36 32 8 12288 151936" "4096 32 32 8 14336 128256" \
        "5120 40 40 8 17408 151936" "5120 64 64 8 25600 151936" "8192 80 64 8 28672 128256" "8192 80 64 8 29568 152064"
    # shellcheck disable=SC2086
    set -- "$1" $got
    one_of dense dense dense experts hybrid; family=$got
    one_of true false; tied=$got
    type=qwen3 class=Qwen3 more=
    case $family in
    experts)
        type=qwen3_moe class=Qwen3Moe
        one_of 8 64 128
        more="\"num_experts\": $got, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": $(($6 / 8)), \"norm_topk_prob\": true,"
        [ "$2" -le 2560 ] || { type=qwen3 class=Qwen3 more=; } # no larger than 72B
        ;;
    hybrid)
        type=qwen3_5_text class=Qwen3_5
        more='"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "partial_rotary_factor": 0.25,'
        ;;
    esac
    cat >"$1" <<END
{"architectures": ["${class}ForCausalLM"], "model_type": "$type", "hidden_size": $2, "intermediate_size": $6, "num_hidden_layers": $3,
 "num_attention_heads": $4, "num_key_value_heads": $5, "head_dim": 128, "vocab_size": $7, "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, $more "hidden_act": "silu", "attention_bias": false,
 "tie_word_embeddings": $tied, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
END
}

# Of each: a critic, a reference, a judge, a second rollout, a selection, pools and a lag, several mini-batches, or not.
random_graph() { # NUMBER FILE: and the variables of its command
    state=$1
    pick 2
    pick 2
    shape policy.json
    one_of 0 0 1; critic=$got
    one_of 0 1; ref=$got
    one_of 0 0 0 1; judge=$got
    one_of 0 0 0 1; select=$got
    one_of 0 0 1; validate=$got
    one_of 8 32 128; batch=$got
    one_of 2 4 8; samples=$got
    one_of 1 2 4; parts=$got
    one_of 1 1 2; epochs=$got
    one_of 64 256 1024; prompt=$got
    one_of 16 128 512 2048; answer=$got
    one_of "" "" "grads: bf16, " "master: none, moments: bf16, " "master: split, " "master: split, moments: int8, "; types=$got
    one_of "" "" "" ", shard: all" ", shard: node"; shard=$got
    one_of "" "" ", micro_tokens: $((2 * (prompt + answer)))"; micro=$got
    one_of "" "" "" ", residency: {optimizer: host}" ", residency: {params: every_node}" ", residency: {kv: transition}"; where=$got
    one_of fit fit fit keep prefer any; bits=$got
    one_of 1 1 2 4 8 1x8 2x2 2x8 8x8 64x8 1024x8; ranks=$got
    one_of cpu h200 h100-80g h100-80g a100-80g a100-40g; hardware=$got
    one_of auto auto auto auto keep transition every_node; policy=$got
    one_of 0 0 0 1; pools=$got
    one_of 0 1; lag=$got
    case $ranks in 1) pools=0 ;; esac
    if [ $hardware = cpu ]; then
        types= how="--device cpu"
        case $ranks in 64x8 | 1024x8) ranks=2x8 ;; esac
    else
        how="--device cuda --hardware $hardware"
    fi
    [ $pools = 0 ] || shard= where=
    rows=rollout
    [ $select = 0 ] || rows=kept
    {
        echo "graph: g$1"
        [ $pools = 0 ] || echo "pools: {train: {share: 1}, rollout: {share: 1}}"
        echo "models:"
        echo "  actor: {checkpoint: policy.json, train: {${types}lr: 1.0e-6, grad_clip: 1.0}$shard$where}"
        [ $ref = 0 ] || echo "  ref: {checkpoint: policy.json}"
        [ $critic = 0 ] || echo "  critic: {checkpoint: policy.json, head: value, train: {lr: 1.0e-5}}"
        [ $judge = 0 ] || echo "  judge: {checkpoint: policy.json}"
        echo "nodes:"
        echo "  prompts: {op: prompts, file: none.jsonl, batch: $batch, max_tokens: $prompt, template: \"{question}\"}"
        echo "  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, max_tokens: $answer$([ $pools = 0 ] || echo ", pool: rollout, lag: $lag")}"
        echo "  reward: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: '(.)', compare: string}}"
        [ $select = 0 ] || echo "  kept: {op: select, of: rollout, groups: group_std(reward) > 0, refill: {until: $batch, rounds: 3, short: error}}"
        echo "  old: {op: logprob, model: actor, of: $rows$micro}"
        [ $ref = 0 ] || echo "  ref_logprob: {op: logprob, model: ref, of: $rows$micro}"
        [ $judge = 0 ] || echo "  judged: {op: logprob, model: judge, of: $rows}"
        [ $critic = 0 ] || echo "  values: {op: value, model: critic, of: $rows}"
        echo "  score: {op: compute, of: $rows, expr: reward$([ $judge = 0 ] || echo " + 0.1 * seq_mean(judged)")}"
        echo "  advantage: {op: compute, of: $rows, expr: (score - group_mean(score)) / (group_std(score) + 1e-6)}"
        [ $critic = 0 ] || echo "  learn: {op: update, model: critic, of: $rows, mini_batch: $((batch / parts)), loss: token_mean((value - score)^2)}"
        echo "  update:"
        echo "    {op: update, model: actor, of: $rows, mini_batch: $((batch / parts)), epochs: $epochs$micro,"
        echo "     loss: token_mean(-advantage * exp(logprob - old)$([ $ref = 0 ] || echo ' + 0.01 * (logprob - ref_logprob)^2'))}"
        [ $validate = 0 ] || {
            echo "  asked: {op: prompts, file: none.jsonl, batch: 8, max_tokens: $prompt, template: \"{question}\", every: 2}"
            echo "  answers: {op: generate, model: actor, prompts: asked, temperature: 0, max_tokens: $answer}"
            echo "  long: {op: compute, expr: answers.length + 0, metrics: {mean: batch_mean(long)}}"
        }
        echo "run: {steps: 3, bits: $bits}"
    } >"$2"
    how="$how --ranks $ranks --policy $policy"
    one_of "" "" "" 4MiB 64MiB 1GiB 8GiB 32GiB 128GiB; host=$got
    one_of 0 0 1 2 3 4 5 6; part=$got
    [ -z "$host" ] || how="$how --host-budget $host"
}

numerics() { # PLAN
    sed -nE 's/.*"numerics": *"([0-9a-f]+)".*/\1/p' "$1" | head -1
}

peaks() { # PLAN: of all roles, and their budget
    sed -nE 's/.*"(peak_bytes)": *([0-9]+).*/\2/p' "$1"
}

seconds() { # PLAN: in nanoseconds
    sed -nE 's/.*"seconds": *([0-9.]+).*/\1/p' "$1" | head -1 | awk '{printf "%.0f\n", $1 * 1e9}'
}
