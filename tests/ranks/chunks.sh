#!/bin/sh
# Training in stages of several chunks a rank (`chunks`), around a ring of ranks: from one state the loss, the whole gradient and every
# metric of one rank, in memory as planned, and the bits of stages without chunks; runs repeat, go on, and go on with another mesh. With
# GR_SLOW=1 also on eight ranks, of any number of micro-batches, of more families, with every kind of loss, with adapters, in FP8,
# with shards of hosts, killed, under tight budgets, and twenty iterations long.
# usage: chunks.sh GRAPHRUN GRADIENT
gradient=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"

deep() { # TYPE LAYERS
    sed -i "s/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": $2/" $1.json
    [ $1 != gemma3_text ] ||
        sed -i 's/"sliding_attention", "full_attention"/"sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"/' $1.json
    rm -rf $1
    "$gr" init --config $1.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $1 >/dev/null
}
models_to_cut
for type in llama qwen3 qwen3_moe; do deep $type 5; done # which do not come out even

sed 's/mini_batch: 4/mini_batch: 8/; s/epochs: 2/epochs: 1/; s/warmup: 2, schedule: cosine, grad_clip: 1.0/grad_clip: 1.0/' grpo.yaml >once.yaml
has once.yaml 'mini_batch: 8'
same_gradient() { # RUN RUN [MODEL]
    "$gradient" "$1/checkpoints/step-1/${3:-actor}/optimizer.safetensors" "$2/checkpoints/step-1/${3:-actor}/optimizer.safetensors" 1e-5 >apart ||
        { cat apart >&2; fail "the gradients of $1 and $2 differ"; }
}

# One optimizer step, whose first moments are a share of the gradient.
micro="--set nodes.update.micro_tokens=25 --set nodes.old_logprob.micro_tokens=25"
keep="--set models.actor.residency.rollout_weights=keep"
how= graph=once
sets() { # AXES...
    set=
    for axis; do set="$set --set models.actor.parallel.${axis%=*}=${axis#*=}"; done
}
once() { # TYPE RANKS AXES...: as one rank
    type=$1 ranks=$2
    shift 2
    sets "$@"
    # shellcheck disable=SC2086
    status 0 "$gr" exec $graph.yaml --set model=$type --ranks $ranks $set $micro $how --steps 1 --out once --check-memory
    [ $graph = fp8 ] || lacks err warning # it says that models sample in another precision
    has once/plan.json '"update.around"'
    lacks once/plan.json '"update.next"'
    close $type-1 once 1
    same_gradient $type-1 once
    rm -r once
}
for type in qwen3 llama qwen3_moe; do # a tied output matrix, and two of their own
    status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
done
once llama 2 pipeline=2 chunks=2
how="$keep --set models.ref.parallel.pipeline=2 --set models.ref.parallel.chunks=2"
once qwen3 4 pipeline=2 chunks=2 tensor=2
how=
once qwen3_moe 4 pipeline=2 chunks=2 expert=2
[ "$slow" = 0 ] || {
    deep gemma3_text 5
    latent_model
    deep deepseek_v3 5
    hybrid_model hybrid
    for type in gemma3_text deepseek_v3 hybrid; do status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1; done
    for how in "" "$keep"; do
        once qwen3_moe 8 pipeline=2 chunks=2 expert=4
        for type in qwen3 llama qwen3_moe gemma3_text; do
            once $type 2 pipeline=2 chunks=2
            once $type 4 pipeline=2 chunks=2
            once $type 4 pipeline=2 chunks=2 tensor=2
            once $type 4 pipeline=2 chunks=2 context=2
            once $type 8 pipeline=2 chunks=2 tensor=2
        done
        once deepseek_v3 4 pipeline=2 chunks=2
        once hybrid 2 pipeline=2 chunks=2
    done
    how="--set models.actor.tensor=4"
    once llama 4 pipeline=2 chunks=2
    how=
    # One micro-batch and many, fewer than ranks and no multiple of them.
    for type in qwen3 llama; do
        deep $type 9
        rm -r $type-1
        status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
        for tokens in 25 40 60 100 400; do
            micro="--set nodes.update.micro_tokens=$tokens --set nodes.old_logprob.micro_tokens=$tokens"
            once $type 2 pipeline=2 chunks=4
            once $type 3 pipeline=3 chunks=3
            once $type 4 pipeline=4 chunks=2
        done
        micro="--set nodes.update.micro_tokens=25 --set nodes.old_logprob.micro_tokens=25"
        once $type 8 pipeline=4 chunks=2
        once $type 8 pipeline=4 chunks=2 tensor=2
        deep $type 5
        rm -r $type-1
        status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
    done
    # A balance loss, whose loads are those of all chunks; experts that the rollout chose.
    sed 's/^    epochs: 1/&\n    router_aux_loss_coef: 1/' once.yaml >aux.yaml
    sets pipeline=2 chunks=2
    for case in "aux.yaml" "once.yaml --set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout"; do
        # shellcheck disable=SC2086
        status 0 "$gr" exec $case --set model=qwen3_moe --steps 1 --out routed-1
        # shellcheck disable=SC2086
        status 0 "$gr" exec $case --set model=qwen3_moe --ranks 4 $set $micro --steps 1 --out routed-4 --check-memory
        close routed-1 routed-4 1
        same_gradient routed-1 routed-4
        rm -r routed-1 routed-4
    done
    # Losses that read whole sequences, or the whole mini-batch.
    sed 's/^      ratio = .*/      u = seq_mean(logprob - old_logprob)\n      ratio = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))/; s/^      token_mean(pg.*/      batch_mean(seq_mean(pg + beta * kl)) - 0.01 * batch_mean(seq_mean(entropy))/' once.yaml >sequence.yaml
    sed 's/^      token_mean(pg.*/      token_mean(where(choose(ratio > 0.9, 5), 0, pg + beta * kl) - 0.1 * (logprob - token_mean(logprob)) * advantage)/' once.yaml >batch.yaml
    # Adapters, whose gradients alone are there; products in FP8.
    sed 's/train: {/&lora: {rank: 4, alpha: 8}, /' once.yaml >lora.yaml
    sed 's/actor: {/&precision: {train: fp8}, /' once.yaml >fp8.yaml
    for graph in sequence batch lora fp8; do
        rm -r llama-1
        status 0 "$gr" exec $graph.yaml --set model=llama --steps 1 --out llama-1
        once llama 2 pipeline=2 chunks=2
        once llama 4 pipeline=2 chunks=2
        once llama 4 pipeline=2 chunks=2 context=2
    done
    graph=once
    rm -r llama-1
    status 0 "$gr" exec once.yaml --set model=llama --steps 1 --out llama-1
    # Shards over the ranks of a host: all stages on each, or one on each.
    for shape in 2x2 4x1 2x4; do
        nodes $shape 0 once.yaml --set model=llama --set models.actor.shard=node --set models.ref.shard=node \
            --set models.actor.parallel.pipeline=2 --set models.actor.parallel.chunks=2 --steps 1 --out hosts --check-memory
        close llama-1 hosts 1
        same_gradient llama-1 hosts
        rm -r hosts
    done
    # A critic and a reward model, beside an actor that is not in stages; a token's log-prob is the rollout's, where a run is strict.
    deep model 5
    classifier judge model
    ppo_graph ppo-many.yaml
    sed 's/mini_batch: 4/mini_batch: 8/' ppo-many.yaml >ppo.yaml
    set --
    for model in critic judge; do
        set -- "$@" --set models.$model.parallel.pipeline=2 --set models.$model.parallel.chunks=2
    done
    status 0 "$gr" exec ppo.yaml --steps 1 --out ppo-1
    status 0 "$gr" exec ppo.yaml --steps 1 --ranks 2 "$@" --out ppo-2 --check-memory
    for node in values judged update_critic; do has ppo-2/plan.json "\"$node.around\""; done
    close ppo-1 ppo-2 1
    same_gradient ppo-1 ppo-2 critic
    sed 's/^graph: tiny/&\nstrict: true/' grpo.yaml >strict.yaml
    status 0 "$gr" exec strict.yaml --set model=qwen3 --ranks 2 --set models.actor.parallel.pipeline=2 --set models.actor.parallel.chunks=2 \
        --steps 2 --out strict
    for step in 1 2; do
        [ "$(metric strict $step logprob_gap_max)" = 0 ] || fail "log-probs differ: $(cat strict/metrics.jsonl)"
    done
    # A model whose memory is more than what a process takes anyway stays within its plan.
    config wide.json qwen3 512 false false
    sed -i 's/"intermediate_size": 48/"intermediate_size": 1024/' wide.json
    deep wide 5
    # shellcheck disable=SC2086
    status 0 "$gr" exec once.yaml --set model=wide --ranks 2 --set models.actor.parallel.pipeline=2 --set models.actor.parallel.chunks=2 $micro \
        --steps 2 --out within
    awk -v m="$(metric within 2 measured_peak_bytes)" -v p="$(metric within 2 planned_peak_bytes)" \
        'BEGIN { exit !(m + 0 > 0 && m + 0 <= p + 0) }' || fail "more than planned: $(cat within/metrics.jsonl)"
}

# Runs repeat, and go on, to the bit, several mini-batches an iteration; so do they without chunks, and near to it with other ranks.
set -- --set model=qwen3 --set models.actor.train.schedule=constant --set models.actor.parallel.pipeline=2
status 0 "$gr" exec grpo.yaml "$@" --set models.actor.parallel.chunks=2 --ranks 2 --set run.checkpoint.every=2 --steps 4 --out whole
point whole 2 part
status 0 "$gr" exec --resume part --steps 4
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights whole part
same_metrics whole part
point whole 2 plain
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --set run.checkpoint.every=2 --resume plain --replan --steps 4
lacks err 'its bits may differ'
lacks plain/plan.json '"update.around"'
same_weights whole plain
point whole 2 alone
status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set run.checkpoint.every=2 --resume alone \
    --replan --ranks 1 --steps 3
close whole alone 3 1e-3
set -- "$@" --set models.actor.parallel.chunks=2
[ "$slow" = 0 ] || {
    point whole 2 moved
    status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set run.checkpoint.every=2 --ranks 4 \
        --set models.actor.parallel.tensor=2 --resume moved --replan --steps 3
    has err 'warning: .*its bits may differ'
    close whole moved 3 1e-3
    in_all_ways_and_long "$@"
}

# One rank has all layers; what cannot be cut is refused where it is written; the planner tries chunks, too.
sed "s/^  actor: {/&parallel: {pipeline: 2, chunks: 3}, /" grpo.yaml >cut.yaml
refused "cut.yaml:[0-9]+:[0-9]+: error: model 'actor': 'pipeline: 2' times 'chunks: 3' is more than its 5 layers" "$gr" plan cut.yaml \
    --set model=llama --ranks 2
refused "'pipeline: 1' does not go with 'chunks: 2': they are of the ranks that have stages" "$gr" plan grpo.yaml --set model=llama --ranks 2 \
    --set models.actor.parallel.chunks=2
status 0 "$gr" plan once.yaml --set model=llama --set models.actor.parallel=auto --ranks 2
has err "of 5 meshes of ranks 5 may fit"
