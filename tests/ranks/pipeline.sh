#!/bin/sh
# Training in stages: from one state the loss, the whole gradient and every metric of one rank, with stages alone, beside ranks with
# sequences of their own, and of slices; in memory as planned; runs repeat, go on, and go on with another mesh. With GR_SLOW=1 also on
# eight ranks, of more families, with every kind of loss, killed, under tight budgets, and twenty iterations long.
# Of models with adapters, in FP8, and whose shards are of hosts, the stages of which are on one host or on several.
# usage: pipeline.sh GRAPHRUN GRADIENT
gradient=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"

# Layers that do not come out even.
deep() { # TYPE LAYERS
    sed -i "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": $2/" $1.json
    [ "${1%[34]_text}" != gemma ] ||
        sed -i 's/"sliding_attention", "full_attention"/"sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"/' $1.json
    rm -rf $1
    "$gr" init --config $1.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $1 >/dev/null
}
models_to_cut
for type in llama qwen3; do deep $type 5; done

sed 's/mini_batch: 4/mini_batch: 8/; s/epochs: 2/epochs: 1/; s/warmup: 2, schedule: cosine, grad_clip: 1.0/grad_clip: 1.0/' grpo.yaml >once.yaml
has once.yaml 'mini_batch: 8'
same_gradient() { # RUN RUN [MODEL]
    "$gradient" "$1/checkpoints/step-1/${3:-actor}/optimizer.safetensors" "$2/checkpoints/step-1/${3:-actor}/optimizer.safetensors" 1e-5 >apart ||
        { cat apart >&2; fail "the gradients of $1 and $2 differ"; }
}

# One optimizer step, whose first moments are a share of the gradient.
micro="--set nodes.update.micro_tokens=25 --set nodes.old_logprob.micro_tokens=25"
once() { # TYPE RANKS AXES...: as one rank, see above
    type=$1 ranks=$2 set=
    shift 2
    for axis; do set="$set --set models.actor.parallel.${axis%=*}=${axis#*=}"; done
    # shellcheck disable=SC2086
    status 0 "$gr" exec once.yaml --set model=$type --ranks $ranks $set --set models.ref.parallel.pipeline=2 $micro $how --steps 1 --out once \
        --check-memory
    lacks err warning
    close $type-1 once 1
    same_gradient $type-1 once
    rm -r once
}

keep="--set models.actor.residency.rollout_weights=keep"
how=
for type in qwen3 llama; do # a tied output matrix, and one of its own
    status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
done
once llama 2 pipeline=2
how=$keep
once qwen3 4 pipeline=2 tensor=2
deep qwen3_moe 5
status 0 "$gr" exec once.yaml --set model=qwen3_moe --steps 1 --out qwen3_moe-1
once qwen3_moe 4 pipeline=2 expert=2
refused "'expert: 2' beside 'pipeline: 2' has not run on CUDA devices yet" "$gr" plan once.yaml --device cuda --hardware h200 --ranks 4 \
    --set model=qwen3_moe --set models.actor.parallel.pipeline=2 --set models.actor.parallel.expert=2
[ "$slow" = 0 ] || {
    for type in gemma3_text gemma4_text; do
        deep $type 5
        status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
    done
    for how in "" "$keep"; do
        once qwen3_moe 8 pipeline=2 expert=4
        once qwen3_moe 8 pipeline=4 expert=2
        once qwen3_moe 8 pipeline=2 context=2 expert=2
        once qwen3_moe 8 pipeline=2 tensor=2 expert=2
    done
    for type in qwen3 llama qwen3_moe gemma3_text gemma4_text; do
        for how in "" "$keep"; do
            once $type 2 pipeline=2
            once $type 4 pipeline=2
            once $type 4 pipeline=4
            once $type 4 pipeline=2 tensor=2
            once $type 4 pipeline=2 context=2
            once $type 8 pipeline=4
            once $type 8 pipeline=2 tensor=2
            once $type 8 pipeline=4 tensor=2
        done
    done
    how="--set models.actor.tensor=4"
    once llama 4 pipeline=2
    how=
    once qwen3 6 pipeline=3
    latent_model
    deep deepseek_v3 5
    hybrid_model hybrid
    for type in deepseek_v3 hybrid; do
        status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
        once $type 4 pipeline=4
        once $type 4 pipeline=2
    done
    # A balance loss, whose loads are those of all stages; experts that the rollout chose.
    sed 's/^    epochs: 1/&\n    router_aux_loss_coef: 1/' once.yaml >aux.yaml
    for case in "aux.yaml" "once.yaml --set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout"; do
        # shellcheck disable=SC2086
        status 0 "$gr" exec $case --set model=qwen3_moe --steps 1 --out routed-1
        # shellcheck disable=SC2086
        status 0 "$gr" exec $case --set model=qwen3_moe --ranks 4 --set models.actor.parallel.pipeline=2 $micro --steps 1 --out routed-4 \
            --check-memory
        close routed-1 routed-4 1
        same_gradient routed-1 routed-4
        rm -r routed-1 routed-4
    done
}

# Shards over the ranks of a host: a stage on each host, or all stages on each.
node="--set models.actor.shard=node --set models.ref.shard=node"
on_hosts() { # TYPE HxD AXES...
    type=$1 hosts=$2 set=
    shift 2
    for axis; do set="$set --set models.actor.parallel.${axis%=*}=${axis#*=}"; done
    # shellcheck disable=SC2086
    nodes $hosts 0 once.yaml --set model=$type $node $set $micro $how --steps 1 --out once --check-memory
    close $type-1 once 1
    same_gradient $type-1 once
    has once/plan.json '"update.across.3"'
    rm -r once
}
how=
on_hosts qwen3 2x2 pipeline=4
[ "$slow" = 0 ] || for type in qwen3 llama; do
    for how in "" "$keep"; do
        for way in "2x2 pipeline=2" "2x2 pipeline=4" "4x1 pipeline=2" "2x4 pipeline=2" "2x4 pipeline=4" "4x2 pipeline=4" "4x2 pipeline=4 tensor=2" \
            "2x4 pipeline=2 tensor=2" "2x4 pipeline=2 context=2" "2x2 pipeline=2 context=2"; do
            # shellcheck disable=SC2086
            on_hosts $type $way
        done
    done
done
[ "$slow" = 0 ] || {
    how=
    on_hosts qwen3_moe 2x4 pipeline=2 expert=2
    on_hosts qwen3_moe 4x2 pipeline=4 expert=2
    sed 's/epochs: 2/epochs: 1/' grpo.yaml >steps.yaml
    # shellcheck disable=SC2086
    nodes 2x2 0 steps.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set models.actor.parallel.pipeline=4 $node \
        --set run.checkpoint.every=2 --steps 4 --out hosts
    point hosts 2 hosts-part
    nodes 2x2 0 --resume hosts-part --steps 4
    same_weights hosts hosts-part
}
refused "'pipeline: 2' beside 'shard: node': the 3 ranks of a host are no multiple of the 2" "$gr" plan once.yaml --set model=qwen3 \
    --set models.actor.shard=node --set models.actor.parallel.pipeline=2 --ranks 2x3

# Adapters, whose gradients alone are there; products in FP8.
sed 's/train: {/&lora: {rank: 4, alpha: 8}, /' once.yaml >lora.yaml
sed 's/actor: {/&precision: {train: fp8}, /' once.yaml >fp8.yaml
more=
[ "$slow" = 0 ] || more="4 pipeline=2
4 pipeline=4
4 context=2 pipeline=2
2 context=2"
for kind in lora fp8; do
    status 0 "$gr" exec $kind.yaml --set model=llama --steps 1 --out $kind-1
    while read -r n axes; do
        [ -n "$n" ] || continue
        set --
        for axis in $axes; do set -- "$@" --set "models.actor.parallel.$axis"; done
        # shellcheck disable=SC2086
        status 0 "$gr" exec $kind.yaml --set model=llama --ranks "$n" "$@" $micro --steps 1 --out $kind-n --check-memory </dev/null
        close $kind-1 $kind-n 1
        same_gradient $kind-1 $kind-n
        rm -r $kind-n
    done <<END
2 pipeline=2
$more
END
done
set -- --set model=llama --set models.actor.parallel.pipeline=2 --ranks 2
[ "$slow" = 0 ] || for kind in lora fp8; do
    sed -i 's/mini_batch: 8/mini_batch: 4/' $kind.yaml
    status 0 "$gr" exec $kind.yaml "$@" --set run.checkpoint.every=2 --steps 4 --out $kind-whole
    point $kind-whole 2 $kind-part
    status 0 "$gr" exec --resume $kind-part --steps 4
    same_weights $kind-whole $kind-part
    status 3 "$gr" plan $kind.yaml "$@" --set run.bits=keep --budget 4KiB
    least=$(least_budget)
    status 0 "$gr" exec $kind.yaml "$@" --set run.bits=keep --budget "$least" --steps 4 --out $kind-tight --check-memory
    same_weights $kind-whole $kind-tight
done
status 0 "$gr" plan lora.yaml --set model=llama --set models.actor.parallel=auto --ranks 2
has err "of 4 meshes of ranks 4 may fit" # none, two of tokens, two stages, and these in two chunks
refused "'tensor: 2' and 'lora' do not go together: adapters are not cut" "$gr" plan lora.yaml --set models.actor.parallel.tensor=2 --ranks 2
refused "'tensor: 2' and 'precision: fp8' do not go together: it needs whole layers" "$gr" plan fp8.yaml \
    --set models.actor.parallel.tensor=2 --ranks 2

# Losses that read whole sequences, or the whole mini-batch.
sed 's/^      ratio = .*/      u = seq_mean(logprob - old_logprob)\n      ratio = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))/; s/^      token_mean(pg.*/      batch_mean(seq_mean(pg + beta * kl)) - 0.01 * batch_mean(seq_mean(entropy))/' once.yaml >sequence.yaml
sed 's/^      token_mean(pg.*/      token_mean(where(choose(ratio > 0.9, 5), 0, pg + beta * kl) - 0.1 * (logprob - token_mean(logprob)) * advantage)/' once.yaml >batch.yaml
for loss in sequence batch; do
    [ "$slow" = 1 ] || break
    status 0 "$gr" exec $loss.yaml --set model=qwen3 --steps 1 --out $loss-1
    for way in "2 pipeline=2" "4 pipeline=4" "4 pipeline=2" "4 tensor=2 --set models.actor.parallel.pipeline=2 $keep"; do
        # shellcheck disable=SC2086
        status 0 "$gr" exec $loss.yaml --set model=qwen3 --ranks ${way%% *} --set models.actor.parallel.${way#* } $micro --steps 1 --out $loss-n \
            --check-memory
        close $loss-1 $loss-n 1
        same_gradient $loss-1 $loss-n
        rm -r $loss-n
    done
done

# A critic and a reward model in stages, beside an actor that is not; and a token's log-prob is the rollout's, where a run is strict.
[ "$slow" = 0 ] || {
    classifier judge model
    ppo_graph ppo-many.yaml
    sed 's/mini_batch: 4/mini_batch: 8/' ppo-many.yaml >ppo.yaml
    status 0 "$gr" exec ppo.yaml --steps 1 --out ppo-1
    status 0 "$gr" exec ppo.yaml --steps 1 --ranks 2 --set models.critic.parallel.pipeline=2 --set models.judge.parallel.pipeline=2 \
        --out ppo-2 --check-memory
    close ppo-1 ppo-2 1
    same_gradient ppo-1 ppo-2 critic
    sed 's/^graph: tiny/&\nstrict: true/' grpo.yaml >strict.yaml
    status 0 "$gr" exec strict.yaml --set model=qwen3 --ranks 2 --set models.actor.parallel.pipeline=2 --steps 2 --out strict
    for step in 1 2; do
        [ "$(metric strict $step logprob_gap_max)" = 0 ] || fail "log-probs differ: $(cat strict/metrics.jsonl)"
    done
}

# A model whose memory is more than what a process takes anyway stays within its plan.
[ "$slow" = 0 ] || {
    config wide.json qwen3 512 false false
    sed -i 's/"intermediate_size": 48/"intermediate_size": 1024/' wide.json
    "$gr" init --config wide.json --tokenizer "$project/graphs/quickstart" --seed 1 -o wide >/dev/null
    status 0 "$gr" exec once.yaml --set model=wide --ranks 2 --set models.actor.parallel.pipeline=2 $micro --steps 2 --out within
    awk -v m="$(metric within 2 measured_peak_bytes)" -v p="$(metric within 2 planned_peak_bytes)" \
        'BEGIN { exit !(m + 0 > 0 && m + 0 <= p + 0) }' || fail "more than planned: $(cat within/metrics.jsonl)"
}

# Runs repeat, and go on, to the bit, several mini-batches an iteration; with other ranks near to it.
set -- --set model=qwen3 --set models.actor.train.schedule=constant --set models.actor.parallel.pipeline=2
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --set run.checkpoint.every=2 --steps 4 --out whole
point whole 2 part
status 0 "$gr" exec --resume part --steps 4
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights whole part
same_metrics whole part
point whole 2 alone
status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set run.checkpoint.every=2 --resume alone \
    --replan --ranks 1 --steps 3
close whole alone 3 1e-3
[ "$slow" = 0 ] || {
    for mesh in pipeline=4 tensor=2; do
        point whole 2 moved
        status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set run.checkpoint.every=2 --ranks 4 \
            --set models.actor.parallel.$mesh --resume moved --replan --steps 3
        has err 'warning: .*its bits may differ'
        close whole moved 3 1e-3
        rm -r moved
    done
    in_all_ways_and_long "$@"
}

# One rank has all layers; what cannot be cut is refused where it is written.
status 0 "$gr" exec once.yaml --set model=llama --set models.actor.parallel.pipeline=2 --steps 1 --out alone-2
same_weights llama-1 alone-2
sed "s/^  actor: {/&parallel: {pipeline: 8}, /" grpo.yaml >cut.yaml
refused "cut.yaml:[0-9]+:[0-9]+: error: model 'actor': 'pipeline: 8' is more than its 5 layers" "$gr" plan cut.yaml --set model=llama --ranks 8
refused "'pipeline: 2' does not divide the 3 ranks" "$gr" plan cut.yaml --set models.actor.parallel.pipeline=2 --ranks 3
