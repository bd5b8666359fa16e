#!/bin/sh
# A mixture of experts on a CUDA device, through the quickstart: under `strict: true` rollout, log-prob pass and update
# choose the same experts, so that their gap is exactly 0; runs have the same bits twice, under budgets that make state
# move, and resumed; what is measured is within what was planned. With `latent` its layers have latent attention
# (deepseek_v2). Skips (77) where there is no device.
# usage: experts.sh GRAPHRUN [latent]
. "$(dirname "$0")/quickstart.sh"
type=qwen3_moe class=Qwen3Moe
keys='"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "norm_topk_prob": true'
if [ "${2:-}" = latent ]; then
    type=deepseek_v2 class=DeepseekV2
    keys='"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 48,
        "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32'
fi
echo "$keys" >"$work/keys"
sed "s/\"model_type\": \"[a-z0-9_]*\"/\"model_type\": \"$type\", $(tr '\n' ' ' <"$work/keys")/
    s/\"architectures\": \[\"[A-Za-z0-9]*\"\]/\"architectures\": [\"${class}ForCausalLM\"]/" graphs/quickstart/config.json >"$work/moe.json"
grep -q $class "$work/moe.json" && grep -q num_experts_per_tok "$work/moe.json" || { echo "no config of experts"; exit 1; }
"$gr" init --config "$work/moe.json" --tokenizer graphs/quickstart --seed 1 -o "$work/moe" >/dev/null

train() { # OUT OPTIONS...
    out=$1
    shift
    "$gr" exec graphs/quickstart.yaml --set model="$work/moe" --set data="$work/train.jsonl" --device cuda --out "$work/$out" \
        --set 'log.worst=token_max(abs(old_logprob - rollout.logprob))' "$@" >"$work/$out.log" 2>&1 || { cat "$work/$out.log"; exit 1; }
}

same() { # RUN RUN
    cmp "$work/$1/checkpoints/step-8/actor/model.safetensors" "$work/$2/checkpoints/step-8/actor/model.safetensors" ||
        { echo "$1 and $2 differ"; exit 1; }
    echo "$2: the same bits as $1"
}

values() { # NAME RUN: of all iterations
    grep -o "\"$1\": [^,}]*" "$work/$2/metrics.jsonl" | sed 's/.*: //'
}

train strict --steps 8 --set strict=true
for name in logprob_gap_max worst; do
    [ "$(values $name strict | grep -c .)" -gt 0 ] || { echo "no $name"; exit 1; }
    if values $name strict | grep -qvE '^0(\.0*)?$'; then
        echo "strict: $name is $(values $name strict | tr '\n' ' ')"
        exit 1
    fi
done
echo "strict: $(values worst strict | grep -c .) iterations without a gap"
train strict-moved --steps 8 --set strict=true --policy every_node --set nodes.old_logprob.micro_tokens=64
same strict strict-moved
train whole --steps 8
train again --steps 8
same whole again
echo "without strict: gaps of $(values worst whole | tr '\n' ' ')"
planned=$(values planned_peak_bytes whole | tail -1)
[ "$(values measured_peak_bytes whole | tail -1)" -le "$planned" ] || { echo "measured more than planned"; exit 1; }
train half --steps 4
"$gr" exec --resume "$work/half" --steps 8 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same whole half
train moved --steps 8 --policy every_node
grep -q '"kind": "offload"' "$work/moved/plan.json" || { echo "nothing moves"; exit 1; }
same whole moved

# What the rollout chose, compared and followed: under strict all routers agree, with the same bits as without; without it
# some do not, unless they are told.
agreement() { # RUN: all numbers, sorted
    values 'update.routing_agreement' "$1" | sort -n | tr '\n' ' '
}
train strict-replay --steps 8 --set strict=true --set nodes.update.replay=rollout
[ "$(agreement strict-replay | tr -d '1. ')" = '' ] || { echo "strict: agreement $(agreement strict-replay)"; exit 1; }
same strict strict-replay
train compared --steps 8 --set nodes.old_logprob.replay=compare --set nodes.update.replay=compare
same whole compared
train followed --steps 8 --set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout
train followed-moved --steps 8 --set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout --policy every_node
same followed followed-moved
echo "agreement without strict: $(agreement compared); gaps where it is followed: $(values worst followed | tr '\n' ' ')"
train balanced --steps 8 --set nodes.update.router_aux_loss_coef=0.1
train balanced-moved --steps 8 --set nodes.update.router_aux_loss_coef=0.1 --policy every_node
same balanced balanced-moved
echo "balance loss: $(values update.balance_loss balanced | tr '\n' ' ')"
