# Sourced by every test: a folder of its own with a tiny model, its data and a GRPO graph, and small assertions.
# usage of a test: NAME.sh GRAPHRUN; the long forms run with GR_SLOW=1.
set -eu
[ $# -eq 1 ] || { echo "usage: $0 GRAPHRUN" >&2; exit 2; }
gr=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
project=$here/../..
slow=${GR_SLOW:-0}
# Memory where there is enough: checkpoints are synced to the disk, which then takes most of the time.
memory=$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)
if [ "${memory:-0}" -gt 500000 ]; then TMPDIR=${TMPDIR:-/dev/shm}; fi
work=$(mktemp -d "${TMPDIR:-/tmp}/graphrun-e2e.XXXXXX")
cd "$work"
finish() { # also of a test that failed with a run in the background
    jobs -p >"$work/jobs"
    while read -r job; do kill -9 "$job" 2>/dev/null || :; done <"$work/jobs"
    wait
    rm -rf "$work"
}
trap finish EXIT
# One core: a tiny model's steps are shorter than the time in which a busy machine wakes a second thread.
cores=$(taskset -cp $$ | sed 's/.*: //')
if [ $(($$ % 2)) = 0 ]; then core=${cores%%[-,]*}; else core=${cores##*[-,]}; fi
taskset -cp "$core" $$ >/dev/null

fail() {
    echo "$0: $*" >&2
    exit 1
}

# status N COMMAND...: run it with outputs in out and err, and expect exit status N.
status() {
    want=$1
    shift
    got=0
    "$@" >out 2>err || got=$?
    [ "$got" = "$want" ] || { tail -n 20 out err >&2; fail "exit status $got instead of $want: $*"; }
}

has() { # FILE PATTERN (extended)
    grep -Eq -- "$2" "$1" || { cat "$1" >&2; fail "no '$2' in $1"; }
}

lacks() { # FILE PATTERN
    if grep -Eq -- "$2" "$1"; then cat "$1" >&2; fail "'$2' in $1"; fi
}

refused() { # PATTERN COMMAND...: exit status 2, nothing on standard output, and the pattern in the messages
    pattern=$1
    shift
    status 2 "$@"
    [ ! -s out ] || fail "prints to standard output: $*"
    has err "$pattern"
}

last_step() { # RUN
    ls "$1/checkpoints" | sed 's/step-//' | sort -n | tail -1
}

same_weights() { # RUN RUN [STEP]: model and optimizer have the same bits
    step=${3:-$(last_step "$1")}
    weights=model
    [ ! -e "$1/checkpoints/step-$step/actor/adapter_model.safetensors" ] || weights=adapter_model
    for f in $weights optimizer; do
        cmp "$1/checkpoints/step-$step/actor/$f.safetensors" "$2/checkpoints/step-$step/actor/$f.safetensors" ||
            fail "$f of $1 and $2 differ at step $step"
    done
}

metrics() { # RUN: its lines but for what is measured, or is of several ranks alone
    sed -E 's/"((val\.)?seconds[^"]*|tokens_per_second|(planned|measured)_peak_bytes[^"]*|[^"]*rank_imbalance[^"]*|[^"]*expert_trips|[^"]*\.(decode_(steps|batch|width)|read_tokens))": [^,}]*(, )?//g; s/, \}$/}/' \
        "$1/metrics.jsonl"
}

same_metrics() { # RUN RUN
    metrics "$1" >a.metrics
    metrics "$2" >b.metrics
    diff a.metrics b.metrics || fail "metrics of $1 and $2 differ"
}

metric() { # RUN STEP NAME: the number of one line
    sed -nE "s/^\{\"step\": $2, (.*, )?\"$3\": ([^,}]*).*/\2/p" "$1/metrics.jsonl"
}

runs_ranks() { # whether this build has MPI, to run several ranks; else it says that these are left out
    [ -z "${GR_SANITIZED:-}" ] || export ASAN_OPTIONS=detect_leaks=0 # Open MPI leaves what it has allocated
    "$gr" exec grpo.yaml --ranks 2 --steps 1 --out ranks-probe >ranks-probe.out 2>&1 || grep -q 'need MPI' ranks-probe.out || return 0
    rm -rf ranks-probe
    ! grep -q 'need MPI' ranks-probe.out || { echo "several ranks are left out: no MPI in this build"; return 1; }
}

json_number() { # FILE KEY: of the first such key
    tr ',' '\n' <"$1" | sed -nE "s/.*\"$2\": *([0-9]+).*/\1/p" | head -1
}

config() { # FILE TYPE HIDDEN TIED BIAS: a tiny model's config.json for the quickstart's characters
    more=
    case $2 in
    llama) class=Llama ;;
    mistral) class=Mistral ;;
    qwen2) class=Qwen2 ;;
    qwen3) class=Qwen3 ;;
    qwen3_moe)
        class=Qwen3Moe
        more='"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": true,'
        ;;
    esac
    cat >"$1" <<END
{"architectures": ["${class}ForCausalLM"], "model_type": "$2", "hidden_size": $3, "intermediate_size": 48, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": $(($3 / 4)), "vocab_size": 16,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "rope_scaling": null, $more
 "hidden_act": "silu", "attention_bias": $5, "mlp_bias": false, "tie_word_embeddings": $4,
 "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "float32"}
END
}

model() { # DIR TYPE HIDDEN TIED BIAS
    config "$1.json" "$2" "$3" "$4" "$5"
    "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1" >/dev/null
}

hybrid_model() { # DIR: a tiny hybrid, of layers of the gated delta rule and one of gated attention
    cat >"$1.json" <<END
{"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 16, "intermediate_size": 24,
 "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 16,
 "max_position_embeddings": 64, "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2,
 "torch_dtype": "float32", "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
 "linear_value_head_dim": 8, "partial_rotary_factor": 0.5}
END
    rm -rf "$1"
    "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1" >/dev/null
}

window_model() { # DIR: a tiny model with a window of 20 in three of four layers, and room for long responses
    cat >"$1.json" <<END
{"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 16, "intermediate_size": 24,
 "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 16,
 "max_position_embeddings": 256, "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2,
 "torch_dtype": "float32", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 20,
 "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]}
END
    rm -rf "$1"
    "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1" >/dev/null
}

carried_model() { # DIR: one of gemma4 with such a window, embeddings of each layer, and six layers of which the last three take keys
    cat >"$1.json" <<END
{"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 16, "intermediate_size": 24,
 "num_hidden_layers": 6, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 16,
 "max_position_embeddings": 256, "initializer_range": 0.3, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2,
 "torch_dtype": "float32", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 20, "global_head_dim": 16,
 "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 18, "num_kv_shared_layers": 3,
 "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
END
    rm -rf "$1"
    "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1" >/dev/null
}

least_budget() { # bytes that the last command, refused for want of memory, says would fit
    sed -nE 's/.*would fit: --budget ([0-9]+).*/\1/p' err | head -1
}

# any_budget GRAPH RUN: under the least budget, with GR_SLOW=1 under one between it and all there is, too, the plan is proven, and
# what it runs of GRAPH.yaml has the bits of RUN
any_budget() {
    status 3 "$gr" plan "$1.yaml" --budget 4KiB
    least=$(least_budget)
    middle=
    if [ "$slow" = 1 ]; then
        status 0 "$gr" plan "$1.yaml" --format json
        middle=$((($(json_number out peak_bytes) + least) / 2))
    fi
    for budget in $middle "$least"; do
        status 0 "$gr" plan "$1.yaml" --budget $budget --format json -o plan.json
        status 0 "$gr" verify plan.json
        status 0 "$gr" exec "$1.yaml" --plan plan.json --out "$1-$budget" --check-memory
        same_weights "$2" "$1-$budget"
        same_metrics "$2" "$1-$budget"
    done
}

# any_stop GRAPH RUN STEPS K...: runs of GRAPH.yaml that stop behind iteration K and go on have the bits of RUN, of STEPS
any_stop() {
    stopped=$1 whole=$2 steps=$3
    shift 3
    for k in "$@"; do
        status 0 "$gr" exec "$stopped.yaml" --out part$k --steps $k
        status 0 "$gr" exec --resume part$k --steps $steps
        same_weights "$whole" part$k
        same_metrics "$whole" part$k
    done
}

# two_ways PROGRAM GRAPH SETTING...: run a by graphrun and run b by PROGRAM GRAPH RUN SETTING..., whose output is left in out
two_ways() {
    program=$1 g=$2
    shift 2
    set_options=
    for s in "$@"; do set_options="$set_options --set $s"; done
    rm -rf a b
    # shellcheck disable=SC2086 # settings have no spaces
    status 0 "$gr" exec $g $set_options --out a
    status 0 "$program" $g b "$@"
}

# A GRPO graph with everything that has state: shuffled data, two mini-batches, two epochs, warm-up, state, a
# reference. The reward (the number of digits) differs among untrained responses.
graph() { # FILE
    cat >"$1" <<'END'
graph: tiny
params: {model: model, data: train.jsonl, lr: 1.0e-2}
models:
  actor: {checkpoint: $model, train: {optimizer: adamw, lr: $lr, warmup: 2, schedule: cosine, grad_clip: 1.0}}
  ref:   {checkpoint: $model}
state: {beta: {init: 0.01, next: "beta * (1 + clip(kl_now, 0, 0.2))"}}
nodes:
  prompts: {op: prompts, file: $data, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6}
  reward:  {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  old_logprob: {op: logprob, model: actor, of: rollout}
  ref_logprob: {op: logprob, model: ref, of: rollout}
  kl_now:    {op: compute, expr: batch_mean(seq_mean(old_logprob - ref_logprob))}
  score:     {op: compute, expr: reward + 0.1 * rollout.length}
  advantage: {op: compute, expr: (score - group_mean(score)) / (group_std(score) + 1e-6)}
  update:
    op: update
    model: actor
    of: rollout
    mini_batch: 4
    epochs: 2
    loss: |
      ratio = exp(logprob - old_logprob)
      pg    = max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2))
      kl    = exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1
      token_mean(pg + beta * kl)
    metrics: {ratio_max: token_max(exp(logprob - old_logprob))}
run: {steps: 6, seed: 7, samples: 2}
END
}

# A GRPO graph of conversations of three turns, whose environment is say.pl.
turns() { # FILE WAY [KEYS]
    sed -e 's/, schedule: cosine//' -e "s|^  rollout: .*|  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 4, turns: 3, max_context: 32, environment: {command: \"perl $project/tests/e2e/say.pl $2\", metrics: [calls], timeout: 5s${3:+, $3}}}|" \
        -e 's|^  reward: .*|  reward: {op: reward, of: rollout, from: environment}|' \
        -e 's|^  score: .*|  score: {op: compute, of: rollout, expr: reward}|' grpo.yaml >"$1"
    cat >>"$1" <<'END'
log:
  turns: batch_mean(rollout.turns)
  counted: batch_mean(seq_count(rollout.model))
  length: batch_mean(rollout.length)
  stopped: batch_max(rollout.stopped)
  calls: batch_mean(rollout.calls)
  off: token_max(abs(old_logprob - rollout.logprob))
END
}

# with_replay FROM TO KEYS: a graph of lib.sh over the same twelve records, with a replay between its rollout and what follows
with_replay() {
    head -12 train.jsonl >few.jsonl
    sed -e 's/, schedule: cosine//; s/data: train.jsonl/data: few.jsonl/' -e "s|^  reward: *{op: reward, of: rollout|  replayed: {op: replay, of: rollout, $3}\\n  reward: {op: reward, of: replayed|" \
        -e 's/\(_logprob: {.*\)of: rollout/\1of: replayed/; s/rollout.length}/replayed.length}/; s/^    of: rollout/    of: replayed/' -e 's/score: {op: compute, of: rollout/score: {op: compute, of: replayed/' -e '/^log:/,$d' "$1" >"$2"
    cat >>"$2" <<'END'
log:
  new: batch_count(replayed.age == 0)
  old: batch_count(replayed.age > 0)
  oldest: batch_max(replayed.age)
  gap: token_max(abs(replayed.logprob - old_logprob), replayed.age == 0)
  old_gap: token_max(abs(replayed.logprob - old_logprob), replayed.age > 0)
END
}

# Weights that do not move give what comes again the log-probs that it was sampled with, if it is what it was.
comes_again() { # GRAPH STEPS
    status 0 "$gr" exec "$1" --out came-again --steps "$2" --set models.actor.train.lr=0 --set models.actor.train.weight_decay=0
    [ "$(metric came-again "$2" old)" -gt 0 ] && [ "$(metric came-again "$2" old_gap) $(metric came-again "$2" gap)" = "0 0" ] ||
        fail "$1: $(metric came-again "$2" old) came again, whose log-probs are $(metric came-again "$2" old_gap) off"
    rm -r came-again
}

# count.sh, a worker in sh: for each sequence the digits of its response. (In awk it would wait for more input than one request:
# mawk reads by blocks but with -W interactive.)
digit_worker() {
    cat >count.sh <<'END'
while read -r line; do
    id=${line#*\"id\":}
    text=${line#*\"response\":\"}
    digits=$(printf %s "${text%%\"*}" | tr -cd 0-9)
    printf '{"id": %d, "score": %d}\n' "${id%%[,\}]*}" ${#digits}
done
END
}

classifier() { # DIR FROM: the reward model of this shape, with random weights
    sed 's/ForCausalLM"\]/ForSequenceClassification"], "id2label": {"0": "reward"}/' "$2.json" >"$1.json"
    "$gr" init --config "$1.json" --tokenizer "$project/graphs/quickstart" --seed 9 -o "$1" >/dev/null
}

# PPO with everything that has state: two trained models, warm-up of the critic, two mini-batches, an adaptive price of
# the KL. Its reward model is `classifier judge model`.
ppo_graph() { # FILE
    cat >"$1" <<'END'
graph: ppo
params: {model: model, judge: judge, data: train.jsonl, lr: 1.0e-2, critic_lr: 1.0e-2, warmup: 2}
models:
  actor:  {checkpoint: $model, train: {lr: $lr, grad_clip: 1.0}}
  ref:    {checkpoint: $model}
  critic: {checkpoint: $model, head: value, train: {lr: $critic_lr, grad_clip: 1.0}}
  judge:  {checkpoint: $judge}
state: {beta: {init: 0.01, next: "beta * (1 + clip(kl_now / 0.001 - 1, -0.2, 0.2) * batch_count(rule) / 100)"}}
nodes:
  prompts: {op: prompts, file: $data, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6}
  rule:    {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  judged:  {op: score, model: judge, of: rollout, metrics: {mean: batch_mean(judged)}}
  reward:  {op: compute, expr: rule + 0.1 * rollout.length + 0.1 * judged}
  old_logprob: {op: logprob, model: actor, of: rollout}
  ref_logprob: {op: logprob, model: ref, of: rollout}
  values:  {op: value, model: critic, of: rollout, metrics: {mean: token_mean(values)}}
  kl:      {op: compute, expr: old_logprob - ref_logprob}
  kl_now:  {op: compute, expr: abs(batch_mean(seq_mean(kl)))}
  r:       {op: compute, expr: at_last(reward) - beta * kl}
  gae:     {op: compute, expr: "discounted_sum(r + next(values, 0) - values, 0.95)"}
  returns: {op: compute, expr: gae + values}
  advantage: {op: compute, expr: token_whiten(gae)}
  update_critic:
    op: update
    model: critic
    of: rollout
    mini_batch: 4
    loss: |
      clipped = clip(value, values - 0.5, values + 0.5)
      0.5 * token_mean(max((value - returns)^2, (clipped - returns)^2))
    metrics: {off: token_max(abs(value - values))}
  update:
    op: update
    model: actor
    of: rollout
    mini_batch: 4
    when: step >= $warmup
    loss: |
      ratio = exp(logprob - old_logprob)
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2)) - 0.01 * entropy)
run: {steps: 4, seed: 7, samples: 2}
END
}

# near_over_two_ranks GRAPH WHOLE DIFFERENCE WAY...: on two ranks, each way with memory checked and the plan proven, the loss of iteration
# 2 is that of the run WHOLE but for so much. WAY is a setting under `models`, as actor.parallel={tensor:2}.
near_over_two_ranks() {
    over=$1 near=$2 least=$3
    shift 3
    for way in "$@"; do
        rm -rf over-two
        status 0 "$gr" exec "$over" --ranks 2 --set "models.$(echo "$way" | sed 's/:/: /')" --out over-two --steps 2 --check-memory
        awk -v a="$(metric over-two 2 loss)" -v b="$(metric "$near" 2 loss)" -v d="$least" 'BEGIN { exit !((a - b) * (a - b) < d * d) }' ||
            fail "$way: another loss: $(metric over-two 2 loss)"
        status 0 "$gr" verify over-two/plan.json
    done
}

"$project/graphs/quickstart/data.sh" .
head -n 1000 train.jsonl >rows.jsonl # a run looks at them all before it begins
mv rows.jsonl train.jsonl
model model llama 32 false false
graph grpo.yaml
