#!/bin/sh
# Experts that are divided over ranks: from one state the loss, the whole gradient and every metric of one rank, whatever
# routers choose; in memory as planned; runs repeat, are killed, go on, and go on with another mesh.
# usage: experts.sh GRAPHRUN GRADIENT
gradient=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"

expert_model() { # NAME TYPE CLASS KEYS: 8 experts a layer, four KV heads
    cat >"$1.json" <<END
{"architectures": ["$3ForCausalLM"], "model_type": "$2", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 16, "max_position_embeddings": 64,
 "num_experts_per_tok": 2, "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 1,
 "pad_token_id": 2, "torch_dtype": "float32", $4}
END
    [ "$2" != deepseek_v3 ] || sed -i 's/"head_dim": 8, //' "$1.json"
    "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1" >/dev/null 2>&1
}

# One optimizer step, whose first moments are a share of the gradient. Micro-batches of 25 tokens do not come out even.
sed 's/mini_batch: 4/mini_batch: 8/; s/epochs: 2/epochs: 1/; s/warmup: 2, schedule: cosine, grad_clip: 1.0/grad_clip: 1.0/' grpo.yaml >once.yaml
has once.yaml 'mini_batch: 8'
micro="--set nodes.update.micro_tokens=25 --set nodes.old_logprob.micro_tokens=25"
same_gradient() { # RUN RUN [MODEL]
    "$gradient" "$1/checkpoints/step-1/${3:-actor}/optimizer.safetensors" "$2/checkpoints/step-1/${3:-actor}/optimizer.safetensors" 1e-5 >apart ||
        { cat apart >&2; fail "the gradients of $1 and $2 differ"; }
}

# as_alone MODEL RANKS SETTING...: one step on a mesh is that of one rank
as_alone() {
    model=$1 ranks=$2
    shift 2
    rm -rf mesh
    # shellcheck disable=SC2086 # settings have no spaces
    status 0 "$gr" exec once.yaml --set model="$model" --ranks "$ranks" $micro "$@" --steps 1 --out mesh --check-memory
    lacks err warning
    close "$model-1" mesh 1
    same_gradient "$model-1" mesh
}

expert_model qwen3_moe qwen3_moe Qwen3Moe '"num_experts": 8, "norm_topk_prob": true, "tie_word_embeddings": true, "moe_intermediate_size": 16'
cp -r qwen3_moe adverse
without_routers adverse
for model in qwen3_moe adverse; do
    status 0 "$gr" exec once.yaml --set model=$model --steps 1 --out $model-1
    as_alone $model 2 --set models.actor.parallel.expert=2
done
has mesh/plan.json '"update.gather.1"'
[ "$(metric mesh 1 update.expert_trips)" = 2 ] || fail "its rows came at once: $(cat mesh/metrics.jsonl)"
[ "$(metric adverse-1 1 update.experts_dead)" = 12 ] || fail "its routers chose others: $(cat adverse-1/metrics.jsonl)"

# Beside slices of attention, over the same ranks: as many of both, and more of either.
slices() { # MODEL RANKS TENSOR EXPERT SETTING...
    of=$1 over=$2 tensor=$3 expert=$4
    shift 4
    as_alone "$of" "$over" --set models.actor.parallel.tensor="$tensor" --set models.actor.parallel.expert="$expert" "$@"
}
slices qwen3_moe 2 2 2
slices adverse 4 2 4 --set nodes.update.micro_tokens=100
[ "$(metric mesh 1 update.expert_trips)" = 2 ] || fail "beside slices its rows came at once: $(cat mesh/metrics.jsonl)"

# Runs repeat, and go on, to the bit; and elsewhere with another mesh.
constant="--set model=qwen3_moe --set models.actor.train.schedule=constant"
# shellcheck disable=SC2086
run() { "$gr" exec grpo.yaml $constant "$@"; }
status 0 run --ranks 2 --set models.actor.parallel.expert=2 --set run.checkpoint.every=1 --steps 3 --out whole
point whole 2 part
status 0 "$gr" exec --resume part --steps 3
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights whole part 3
point whole 2 alone
status 0 run --resume alone --set run.checkpoint.every=1 --replan --ranks 1 --steps 3
has err 'warning: .*its bits may differ'
close whole alone 3 1e-3

# What cannot be divided is refused where it is written.
sed "s/^  actor: {/&parallel: {expert: 3}, /" grpo.yaml >cut.yaml
refused "cut.yaml:[0-9]+:[0-9]+: error: model 'actor': 'expert: 3' does not divide its 8 experts" \
    "$gr" plan cut.yaml --set model=qwen3_moe --ranks 3
refused "'expert: 3' does not go with 'tensor: 2': one must divide the other" \
    "$gr" plan cut.yaml --set model=qwen3_moe --set models.actor.parallel.tensor=2 --ranks 6
refused "'expert: 3' does not divide its layers, which have no experts" "$gr" plan cut.yaml --ranks 3
set -- --set model=qwen3_moe --set models.actor.parallel.expert=4
refused "'expert: 4' does not divide the 6 ranks" "$gr" plan cut.yaml "$@" --ranks 6
refused "'expert: 4' does not divide the ranks of a host.*shard: node" "$gr" plan cut.yaml "$@" --set models.actor.shard=node --ranks 2x2
sed 's/^graph: tiny/&\ncanonical: true/' cut.yaml >canonical.yaml
refused "'expert: 4' and canonical do not go together" "$gr" plan canonical.yaml "$@" --ranks 4
[ "$slow" = 1 ] || exit 0

# ---- the long form ---------------------------------------------------------------------------------------

# Every family with experts; more ranks than parts, groups within those that share sequences, and beyond them.
expert_model qwen2_moe qwen2_moe Qwen2Moe '"num_experts": 8, "shared_expert_intermediate_size": 8, "moe_intermediate_size": 16'
expert_model gpt_oss gpt_oss GptOss '"num_local_experts": 8, "sliding_window": 5, "swiglu_limit": 0.5'
expert_model glm4_moe glm4_moe Glm4Moe '"n_routed_experts": 8, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16'
expert_model olmoe olmoe Olmoe '"num_experts": 8'
expert_model deepseek_v3 deepseek_v3 DeepseekV3 \
    '"n_routed_experts": 8, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8'
expert_model qwen3_5_moe qwen3_5_moe_text Qwen3_5Moe \
    '"num_experts": 8, "shared_expert_intermediate_size": 8, "moe_intermediate_size": 16, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "full_attention_interval": 2, "partial_rotary_factor": 0.5'
for model in qwen2_moe gpt_oss glm4_moe olmoe deepseek_v3 qwen3_5_moe; do
    status 0 "$gr" exec once.yaml --set model=$model --steps 1 --out $model-1
    as_alone $model 2 --set models.actor.parallel.expert=2 --set models.ref.parallel.expert=2
    as_alone $model 4 --set models.actor.parallel.expert=2
done
for model in qwen3_moe adverse qwen2_moe deepseek_v3; do
    slices $model 4 2 4
    slices $model 4 4 2
    slices $model 8 2 2
done
context=--set\ models.actor.parallel.context
for model in qwen3_moe adverse; do
    for how in "4 2 1" "4 4 1" "4 2 2" "4 4 2" "4 2 4" "8 4 2"; do
        # shellcheck disable=SC2086
        set -- $how
        as_alone $model "$1" --set models.actor.parallel.expert="$2" --set models.actor.parallel.context="$3"
    done
done

# Weights whole or sharded, gradients in every way; rollouts in slices; hosts that are replicas.
for how in --set=models.actor.residency.rollout_weights=keep --set=run.bits=keep --set=models.actor.tensor=4 --policy=every_node; do
    as_alone qwen3_moe 4 --set models.actor.parallel.expert=2 "$how"
done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 4 "$gr" exec once.yaml --ranks 2x2 --set model=qwen3_moe \
    --set models.actor.shard=node --set models.actor.parallel.expert=2 --steps 1 --out nodes
has nodes/plan.json '"what": "update.across'
close qwen3_moe-1 nodes 1
same_gradient qwen3_moe-1 nodes

# Critics and reward models have meshes of their own.
rm -rf model
cp -r qwen3_moe model
cp qwen3_moe.json model.json
classifier judge model
ppo_graph ppo-many.yaml
sed 's/mini_batch: 4/mini_batch: 8/' ppo-many.yaml >ppo.yaml
status 0 "$gr" exec ppo.yaml --steps 1 --out ppo-1
status 0 "$gr" exec ppo.yaml --steps 1 --ranks 2 --set models.critic.parallel.expert=2 --set models.judge.parallel.expert=2 --out ppo-2 \
    --check-memory
close ppo-1 ppo-2 1
same_gradient ppo-1 ppo-2 critic

# A balance loss, experts that the rollout chose, a bias that follows the load.
sed 's/^    epochs: 1/&\n    router_aux_loss_coef: 1/' once.yaml >aux.yaml
sed 's/^    epochs: 1/&\n    router_bias_update_rate: 0.01/' once.yaml >bias.yaml
for case in "aux qwen3_moe" "bias glm4_moe"; do
    # shellcheck disable=SC2086
    set -- $case
    status 0 "$gr" exec "$1.yaml" --set model="$2" --steps 1 --out "$1-1"
    # shellcheck disable=SC2086
    status 0 "$gr" exec "$1.yaml" --set model="$2" --ranks 4 --set models.actor.parallel.expert=2 $micro --steps 1 --out "$1-4" --check-memory
    close "$1-1" "$1-4" 1
    same_gradient "$1-1" "$1-4"
done
replay="--set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout"
# shellcheck disable=SC2086
status 0 "$gr" exec once.yaml --set model=qwen3_moe $replay --steps 1 --out replay-1
# shellcheck disable=SC2086
status 0 "$gr" exec once.yaml --set model=qwen3_moe --ranks 2 --set models.actor.parallel.expert=2 $micro $replay --steps 1 --out replay-2
close replay-1 replay-2 1
same_gradient replay-1 replay-2

# What a token gets is to the bit what it was in the rollout, strict or not.
sed 's/^graph: tiny/&\nstrict: true/' grpo.yaml >strict.yaml
status 0 "$gr" exec strict.yaml --set model=qwen3_moe --ranks 2 --set models.actor.parallel.expert=2 --steps 2 --out strict
for step in 1 2; do
    [ "$(metric strict $step logprob_gap_max)" = 0 ] || fail "log-probs differ: $(cat strict/metrics.jsonl)"
done

# 20 iterations, each from one rank's state.
status 0 run --set run.checkpoint.every=1 --set run.checkpoint.keep=25 --steps 20 --out twenty
for k in 1 5 10 15 19; do
    point twenty $k at
    # shellcheck disable=SC2086
    status 0 run --ranks 4 --set models.actor.parallel.expert=2 --set run.checkpoint.every=1 --set run.checkpoint.keep=25 --resume at --replan \
        --steps $((k + 1))
    close twenty at $((k + 1)) 1e-5
    rm -r at
done

# Wherever objects lie; under a budget that recomputes layers; killed; with another mesh.
status 0 run --ranks 2 --set models.actor.parallel.expert=2 --steps 4 --out steps
for how in "--policy every_node" "--policy transition"; do
    # shellcheck disable=SC2086
    status 0 run --ranks 2 --set models.actor.parallel.expert=2 --steps 4 $how --out way --check-memory
    same_weights steps way
    rm -r way
done
# shellcheck disable=SC2086
status 3 "$gr" plan grpo.yaml $constant --ranks 2 --set models.actor.parallel.expert=2 --set run.bits=keep --budget 4KiB
least=$(least_budget)
# shellcheck disable=SC2086
status 0 "$gr" plan grpo.yaml $constant --ranks 2 --set models.actor.parallel.expert=2 --set run.bits=keep --budget "$least" --format json -o tight.json
status 0 "$gr" verify tight.json
has tight.json 'recompute'
status 0 run --ranks 2 --set models.actor.parallel.expert=2 --set run.bits=keep --budget "$least" --steps 4 --out tight --check-memory
same_weights steps tight
status 0 run --ranks 2 --set models.actor.parallel.expert=2 --set run.checkpoint.every=1 --steps 4 --out every
# shellcheck disable=SC2086
killed_goes_on every $constant --set models.actor.parallel.expert=2
point every 2 moved
status 0 run --ranks 4 --set models.actor.parallel.expert=4 --set models.actor.parallel.context=2 --set run.checkpoint.every=1 --resume moved \
    --replan --steps 3
close every moved 3 1e-3
