#!/bin/sh
# Training on a mesh of ranks of this machine, along one axis: ranks share the sequences of log-prob, value, score and update.
# From one state the loss, the whole gradient and every metric of one rank; in memory as planned; runs repeat, are killed, go
# on, and go on with another mesh.
# usage: mesh.sh GRAPHRUN GRADIENT AXIS
gradient=$(realpath "$2")
axis=$3
set -- "$1"
. "$(dirname "$0")/lib.sh"

models_to_cut
# Scales of what is added up.
sed 's/"llama"/"granite"/; s/LlamaFor/GraniteFor/; s/"hidden_act"/"residual_multiplier": 0.7, "embedding_multiplier": 2.0, "logits_scaling": 1.5, "attention_multiplier": 0.2, "hidden_act"/' \
    llama.json >granite.json
"$gr" init --config granite.json --tokenizer "$project/graphs/quickstart" --seed 1 -o granite >/dev/null

# A vocabulary that slices do not divide.
sed -i 's/"vocab_size": 16/"vocab_size": 17/' qwen3_moe.json
rm -r qwen3_moe
"$gr" init --config qwen3_moe.json --tokenizer "$project/graphs/quickstart" --seed 1 -o qwen3_moe >/dev/null
latent_model
[ $axis = context ] || biased_model
hybrids_to_cut
[ $axis = tensor ] || few_keys # whose heads of keys are on several ranks

# One optimizer step, whose first moments are a share of the gradient. Micro-batches of 25 tokens do not come out even.
sed 's/mini_batch: 4/mini_batch: 8/; s/epochs: 2/epochs: 1/; s/warmup: 2, schedule: cosine, grad_clip: 1.0/grad_clip: 1.0/' grpo.yaml >once.yaml
has once.yaml 'mini_batch: 8'
same_gradient() { # RUN RUN [MODEL]
    "$gradient" "$1/checkpoints/step-1/${3:-actor}/optimizer.safetensors" "$2/checkpoints/step-1/${3:-actor}/optimizer.safetensors" 1e-5 >apart ||
        { cat apart >&2; fail "the gradients of $1 and $2 differ"; }
}

within_plan() { # RUN STEP
    awk -v m="$(metric "$1" "$2" measured_peak_bytes)" -v p="$(metric "$1" "$2" planned_peak_bytes)" \
        'BEGIN { exit !(m + 0 > 0 && m + 0 <= p + 0) }' || fail "$1: more than planned: $(cat "$1/metrics.jsonl")"
}

micro="--set nodes.update.micro_tokens=25 --set nodes.old_logprob.micro_tokens=25"
both="--set models.ref.parallel.$axis"
for type in llama qwen2 qwen3 gemma3_text gemma4_text granite qwen3_moe deepseek_v3 qwen3_5_text qwen3_next few; do
    [ -d $type ] || continue
    case $slow$axis$type in 0contextqwen3_moe) continue ;; esac # its experts: qwen3_next
    case $type in qwen2 | gemma3_text | granite | qwen3_5_text) [ "$slow" = 1 ] || continue ;; esac # biases and scales: of a rank as of one
    status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
    for way in "2 2" "4 2" "4 4"; do
        case $slow$type$way in 0qwen3"4 2" | 0few"2 2") continue ;; 0qwen3"4 4" | 0few"4 4" | 0*"2 2" | 1*) ;; *) continue ;; esac # 4 2: with shared prompts, below
        run=$type-${way% *}x${way#* }
        # shellcheck disable=SC2086
        status 0 "$gr" exec once.yaml --set model=$type --ranks ${way% *} --set models.actor.parallel.$axis=${way#* } \
            $both=2 $micro --steps 1 --out $run --check-memory
        lacks err warning
        close $type-1 $run 1
        same_gradient $type-1 $run
    done
done

# Responses that read their prompt once.
status 0 "$gr" exec once.yaml --set model=qwen3 --ranks 4 --set models.actor.parallel.$axis=2 --set nodes.update.micro_tokens=40 \
    --set nodes.update.share_prompts=4 --steps 1 --out shared --check-memory
close qwen3-1 shared 1
same_gradient qwen3-1 shared

# Along both axes. The vocabulary is cut where slices divide it.
if [ $axis = tensor ]; then
    has llama-2x2/plan.json '"update.embed_forward_ws"'
    lacks qwen3_moe-2x2/plan.json '"update.embed_forward_ws"'
    for type in qwen3_moe $([ "$slow" = 1 ] && echo qwen3 gemma3_text qwen3_next deepseek_v3); do
        # shellcheck disable=SC2086
        status 0 "$gr" exec once.yaml --set model=$type --ranks 4 --set models.actor.parallel.tensor=2 --set models.actor.parallel.context=2 \
            $micro --steps 1 --out $type-both --check-memory
        close $type-1 $type-both 1
        same_gradient $type-1 $type-both
    done
fi

# Of a slice's one KV head two ranks have a copy; and eight ranks have one query head each.
if [ $axis = context ] && [ "$slow" = 1 ]; then
    config two.json qwen3 32 true false
    sed 's/"num_attention_heads": 4/"num_attention_heads": 8/' two.json >eight.json
    for type in two eight; do "$gr" init --config $type.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $type >/dev/null; done
    for way in "two 4 tensor=2 context=2" "eight 8 tensor=1 context=8" "few 8 tensor=1 context=4"; do
        # shellcheck disable=SC2086
        set -- $way
        [ -d "$1-1" ] || status 0 "$gr" exec once.yaml --set model="$1" --steps 1 --out "$1-1"
        # shellcheck disable=SC2086
        status 0 "$gr" exec once.yaml --set model="$1" --ranks "$2" --set "models.actor.parallel.$3" --set "models.actor.parallel.$4" \
            $micro --steps 1 --out beyond --check-memory
        close "$1-1" beyond 1
        same_gradient "$1-1" beyond
        rm -r beyond
    done
fi

# Biases that one of the slices adds, and sinks; in rollouts, too.
if [ $axis = tensor ]; then
    status 0 "$gr" exec once.yaml --set model=gpt_oss --steps 1 --out gpt_oss-1
    for n in 2 $([ "$slow" = 1 ] && echo 4); do
        for how in "" $([ "$slow" = 1 ] && echo --set=models.actor.residency.rollout_weights=keep); do
            # shellcheck disable=SC2086
            status 0 "$gr" exec once.yaml --set model=gpt_oss --ranks $n --set models.actor.parallel.tensor=$n $micro $how \
                --set models.actor.tensor=$n --steps 1 --out gpt_oss-cut --check-memory
            close gpt_oss-1 gpt_oss-cut 1
            same_gradient gpt_oss-1 gpt_oss-cut
            rm -r gpt_oss-cut
        done
    done
fi

# A model whose memory is more than what a process takes anyway stays within its plan.
if [ "$slow" = 1 ] || [ $axis = tensor ]; then
    config wide.json qwen3 512 false false
    sed -i 's/"intermediate_size": 48/"intermediate_size": 1024/' wide.json
    "$gr" init --config wide.json --tokenizer "$project/graphs/quickstart" --seed 1 -o wide >/dev/null
    status 0 "$gr" exec once.yaml --set model=wide --ranks 2 --set models.actor.parallel.$axis=2 --steps 2 --out within
    within_plan within 2
fi

# Losses that read whole sequences, or the whole mini-batch; and in what way weights and gradients are sharded.
sed 's/^      ratio = .*/      u = seq_mean(logprob - old_logprob)\n      ratio = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))/; s/^      token_mean(pg.*/      batch_mean(seq_mean(pg + beta * kl)) - 0.01 * batch_mean(seq_mean(entropy))/' once.yaml >sequence.yaml
sed 's/^      token_mean(pg.*/      token_mean(where(choose(ratio > 0.9, 5), 0, pg + beta * kl) - 0.1 * (logprob - token_mean(logprob)) * advantage)/' once.yaml >batch.yaml
for loss in sequence batch; do
    case $slow$axis$loss in 0tensorbatch | 0contextsequence) continue ;; esac
    status 0 "$gr" exec $loss.yaml --set model=qwen3 --steps 1 --out $loss-1
    for how in "" "--set models.actor.residency.rollout_weights=keep" "--set run.bits=keep"; do
        case $slow$loss$how in 0sequence*bits=keep | 0batch*rollout_weights=keep | 0sequence | 0batch) continue ;; esac
        # shellcheck disable=SC2086
        status 0 "$gr" exec $loss.yaml --set model=qwen3 --ranks 4 --set models.actor.parallel.$axis=2 $micro $how --steps 1 --out $loss-4 \
            --check-memory
        close $loss-1 $loss-4 1
        same_gradient $loss-1 $loss-4
        rm -r $loss-4
    done
done

# A critic and a reward model with meshes of their own, beside an actor that has none.
classifier judge model
ppo_graph ppo-many.yaml
sed 's/mini_batch: 4/mini_batch: 8/' ppo-many.yaml >ppo.yaml
if [ "$slow" = 1 ] || [ $axis = context ]; then
    status 0 "$gr" exec ppo.yaml --steps 1 --out ppo-1
    status 0 "$gr" exec ppo.yaml --steps 1 --ranks 2 --set models.critic.parallel.$axis=2 --set models.judge.parallel.$axis=2 --out ppo-2 \
        --check-memory
    close ppo-1 ppo-2 1
    same_gradient ppo-1 ppo-2 critic
fi

# With rollouts in slices, and shards over the ranks of a node.
if [ "$slow" = 1 ] || [ $axis = context ]; then
    status 0 "$gr" exec once.yaml --set model=llama --ranks 4 --set models.actor.parallel.$axis=2 --set models.actor.tensor=4 --steps 1 --out slices
    close llama-1 slices 1
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 4 "$gr" exec once.yaml --ranks 2x2 --set model=llama \
    --set models.actor.shard=node --set models.actor.parallel.$axis=$([ $axis = tensor ] && echo 2 || echo 4) --steps 1 --out nodes
has nodes/plan.json '"what": "update.across'
close llama-1 nodes 1
same_gradient llama-1 nodes

# A token has the same log-prob in rollout, log-prob pass and update: what a rank attends with is what it was alone. Sums over
# slices have another order.
sed 's/^graph: tiny/&\nstrict: true/' grpo.yaml >strict.yaml
if [ $axis = context ]; then
    status 0 "$gr" exec strict.yaml --ranks 2 --set models.actor.parallel.$axis=2 --steps 2 --out strict
    for step in 1 2; do
        [ "$(metric strict $step logprob_gap_max)" = 0 ] || fail "log-probs differ: $(cat strict/metrics.jsonl)"
    done
    status 0 "$gr" exec strict.yaml --set model=few --ranks 4 --set models.actor.parallel.context=4 --steps 1 --out strict-few
    [ "$(metric strict-few 1 logprob_gap_max)" = 0 ] || fail "log-probs differ: $(cat strict-few/metrics.jsonl)"
else
    refused "'tensor: 2' and strict do not go together" "$gr" plan strict.yaml --ranks 2 --set models.actor.parallel.$axis=2
fi

# Runs repeat, and go on, to the bit; wherever objects lie, and under a budget that recomputes layers or keeps activations elsewhere.
set -- --set model=qwen3 --set models.actor.train.schedule=constant --set models.actor.parallel.$axis=2
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --set run.checkpoint.every=1 --steps 4 --out whole
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 2 --out part
status 0 "$gr" exec --resume part --steps 4
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights whole part
same_metrics whole part
for how in "--policy every_node" "--policy transition"; do
    case $slow$axis$how in *tensor*transition | *context*node) [ "$slow" = 1 ] || continue ;; esac
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 $how --out way --check-memory
    same_weights whole way
    rm -r way
done
status 3 "$gr" plan grpo.yaml "$@" --ranks 2 --set run.bits=keep --budget 4KiB
least=$(least_budget)
status 0 "$gr" plan grpo.yaml "$@" --ranks 2 --set run.bits=keep --budget "$least" --format json -o tight.json
status 0 "$gr" verify tight.json
has tight.json 'recompute|activations: [0-9]+ of [0-9]+ stay on the device' # made again, or in the host pool meanwhile

# So do hybrids whose heads of keys are on several ranks.
if [ $axis = context ] && [ "$slow" = 1 ]; then
    set -- --set model=few --set models.actor.train.schedule=constant --set models.actor.parallel.context=4 --ranks 4
    status 0 "$gr" exec grpo.yaml "$@" --steps 3 --out few-whole
    status 0 "$gr" exec grpo.yaml "$@" --steps 2 --out few-part
    status 0 "$gr" exec --resume few-part --steps 3
    [ ! -s err ] || fail "resuming warns: $(cat err)"
    same_weights few-whole few-part
    same_metrics few-whole few-part
    set -- --set model=qwen3 --set models.actor.train.schedule=constant --set models.actor.parallel.$axis=2
fi

# A hybrid, too: states of the rollout's slots are in slices where it is.
if [ $axis = tensor ] && [ "$slow" = 1 ]; then
    set -- --set model=qwen3_5_text --set models.actor.train.schedule=constant --set models.actor.parallel.tensor=2 --set models.actor.tensor=2
    status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 --out hybrid
    status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 2 --out hybrid-part
    status 0 "$gr" exec --resume hybrid-part --steps 4
    [ ! -s err ] || fail "resuming warns: $(cat err)"
    same_weights hybrid hybrid-part
    same_metrics hybrid hybrid-part
    set -- --set model=qwen3 --set models.actor.train.schedule=constant --set models.actor.parallel.$axis=2
fi

# Killed, it goes on to the same bits (axes.sh has the other axes); and a checkpoint of one mesh goes on with another.
[ "$slow" = 0 ] && [ $axis = tensor ] || killed_goes_on whole "$@"
point whole 2 moved
status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set run.checkpoint.every=1 --ranks 4 \
    --set models.actor.parallel.$axis=4 --resume moved --replan --steps 3
has err 'warning: .*its bits may differ'
close whole moved 3 1e-3
point whole 2 alone
status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set run.checkpoint.every=1 --resume alone \
    --replan --ranks 1 --steps 3
close whole alone 3 1e-3

# The planner's choice is what the run's graph says, and resumes without a word.
if [ $axis = tensor ]; then
    status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --set models.actor.parallel=auto --ranks 2 \
        --steps 2 --out chosen
    has err "note: model 'actor': of 4 meshes of ranks 4 may fit, the fastest is chosen: "
    lacks chosen/graph.yaml 'parallel: auto'
    status 0 "$gr" exec --resume chosen --steps 4
    [ ! -s err ] || fail "resuming warns: $(cat err)"
    status 0 "$gr" plan grpo.yaml --set models.actor.parallel=auto
    lacks err meshes
    status 0 "$gr" plan grpo.yaml --ranks 2 --format json -o read.json
    refused "'parallel: auto' does not go with a plan that is read" "$gr" exec grpo.yaml --ranks 2 --set models.actor.parallel=auto \
        --plan read.json --out never
fi

# One rank has all tokens; what cannot be shared is refused where it is written.
status 0 "$gr" exec once.yaml --set model=llama --set models.actor.parallel.$axis=2 --steps 1 --out alone-2
same_weights llama-1 alone-2
sed "s/^  actor: {/&parallel: {$axis: 4}, /" grpo.yaml >cut.yaml
if [ $axis = context ]; then
    sed 's/context: 4/context: 8/' cut.yaml >far.yaml
    refused "far.yaml:[0-9]+:[0-9]+: error: model 'actor': 'context: 8' does not divide its 4 heads" "$gr" plan far.yaml --ranks 8
    refused "'context: 8' does not divide its 4 heads" "$gr" plan cut.yaml --set model=few --ranks 8 --set models.actor.parallel.context=8
    status 0 "$gr" plan grpo.yaml --set model=few --ranks 4 --set models.actor.parallel=auto
    has err "note: model 'actor': of [0-9]+ meshes of ranks [0-9]+ may fit, .*context 2"
else
    refused "cut.yaml:[0-9]+:[0-9]+: error: model 'actor': 'tensor: 4' does not divide its 2 KV heads" "$gr" plan cut.yaml --ranks 4
fi
refused "'$axis: 4' does not divide the 6 ranks" "$gr" plan cut.yaml --set model=llama --ranks 6
refused "'$axis' must be a whole number from 1 to 64" "$gr" plan cut.yaml --ranks 4 --set models.actor.parallel.$axis=0
refused "unknown key 'sequence'" "$gr" plan cut.yaml --ranks 4 --set models.actor.parallel.sequence=2
[ $axis = context ] || refused "'tensor: 4' does not divide the ranks of a host" "$gr" plan cut.yaml --set model=llama --ranks 2x2

sed 's/^graph: tiny/&\ncanonical: true/' cut.yaml >canonical.yaml
refused 'canonical.yaml:[0-9]+:[0-9]+: error: .*canonical do not go together' "$gr" plan canonical.yaml --set model=llama --ranks 4
