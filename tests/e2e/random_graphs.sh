#!/bin/sh
# Random graphs: whatever budget they are planned under, wherever they stop and go on, the bits are the same, and each plan is
# proven. GR_SLOW=1: many. A graph that fails is printed; its number, as GR_SEED, makes it alone.
. "$(dirname "$0")/lib.sh"

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

# Of each run: two mini-batches or more of the batch, or none; a critic, a reference, a validation, or not.
random_graph() { # NUMBER FILE
    state=$1
    pick 2
    pick 2
    one_of 4 8; batch=$got
    one_of 0 2 4; mini=$got
    one_of 2 3 4; samples=$got
    one_of 1 2; epochs=$got
    one_of 1.0 0.7; temperature=$got
    one_of llama qwen2 qwen3 mistral; type=$got
    one_of true false; tied=$got
    one_of 0 1; ref=$got
    one_of 0 1; critic=$got
    one_of 0 1; check=$got
    one_of "" "micro_tokens: 64"; micro=$got
    one_of "" ", warmup: 2" ", grad_clip: 0.5"; train=$got
    one_of "token_mean(-advantage * ratio)" "batch_mean(seq_sum(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2))) / 8)" \
        "token_sum(-advantage * ratio) / 50 - 0.01 * token_mean(entropy)"; loss=$got
    one_of "" "" ", precision: {rollout: fp8}" ", precision: {train: fp8}" ", precision: {rollout: fp8, train: fp8}"; precision=$got
    bias=false
    [ "$type" != qwen2 ] || bias=true
    rm -rf policy policy.json
    model policy "$type" 32 "$tied" "$bias"
    {
        echo "graph: g$1"
        echo "models:"
        echo "  actor: {checkpoint: policy, train: {lr: 1.0e-2$train}$precision}"
        [ $ref = 0 ] || echo "  ref: {checkpoint: policy}"
        [ $critic = 0 ] || echo "  critic: {checkpoint: policy, head: value, train: {lr: 1.0e-2}}"
        echo "nodes:"
        echo "  prompts: {op: prompts, file: train.jsonl, batch: $batch, max_tokens: 8, template: \"{question}\"}"
        echo "  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, temperature: $temperature, max_tokens: 6}"
        echo "  old: {op: logprob, model: actor, of: rollout}"
        [ $ref = 0 ] || echo "  ref_logprob: {op: logprob, model: ref, of: rollout}"
        [ $critic = 0 ] || echo "  values: {op: value, model: critic, of: rollout}"
        echo "  score: {op: compute, of: rollout, expr: rollout.length + 0}"
        echo "  advantage: {op: compute, expr: (score - group_mean(score)) / (group_std(score) + 1e-6)}"
        [ $critic = 0 ] || {
            echo "  learn: {op: update, model: critic, of: rollout, loss: token_mean((value - score)^2)}"
        }
        echo "  update:"
        echo "    op: update"
        echo "    model: actor"
        echo "    of: rollout"
        echo "    mini_batch: $mini"
        echo "    epochs: $epochs"
        [ -z "$micro" ] || echo "    $micro"
        echo "    loss: |"
        echo "      ratio = exp(logprob - old)"
        [ $ref = 0 ] || echo "      kl = exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1"
        echo "      $loss$([ $ref = 0 ] || echo ' + 0.01 * token_mean(kl)')"
        [ $check = 0 ] || {
            echo "  asked: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: \"{question}\", every: 2}"
            echo "  answers: {op: generate, model: actor, prompts: asked, temperature: 0, max_tokens: 6}"
            echo "  long: {op: compute, expr: answers.length + 0, metrics: {mean: batch_mean(long)}}"
        }
        echo "run: {steps: 3, seed: $1, samples: 1, checkpoint: {every: 1}}"
    } >"$2"
}

numerics() { # PLAN
    sed -nE 's/.*"numerics": *"([0-9a-f]+)".*/\1/p' "$1" | head -1
}

# From all that is there down to the least that can be had. What a budget forces may have other bits, and says so: then the plan
# has another hash of its numerics, and a run of it has the bits of any other of that hash.
every_budget() {
    status 0 "$gr" plan g.yaml --format json
    mv out plan-0.json
    peak=$(json_number plan-0.json peak_bytes)
    status 3 "$gr" plan g.yaml --budget 4KiB
    least=$(least_budget)
    k=0
    while [ $k -lt $budgets ]; do
        k=$((k + 1))
        status 0 "$gr" plan g.yaml --budget $((peak - (peak - least) * k / budgets)) --format json -o plan-$k.json
        status 0 "$gr" verify plan-$k.json
        status 0 "$gr" exec g.yaml --plan plan-$k.json --out g-$k --check-memory
        of=0
        while [ "$(numerics plan-$of.json)" != "$(numerics plan-$k.json)" ]; do of=$((of + 1)); done
        [ $of = $k ] || { same_weights g-$of g-$k && same_metrics g-$of g-$k; }
    done
}

head -n 40 train.jsonl >few && mv few train.jsonl
n=2 budgets=2
[ "$slow" = 0 ] || n=300 budgets=3
i=${GR_SEED:-1}
[ -z "${GR_SEED-}" ] || n=$i
while [ "$i" -le "$n" ]; do
    rm -rf g-* part* plan-*
    random_graph "$i" g.yaml
    (
        status 0 "$gr" exec g.yaml --out g-0
        every_budget
        any_stop g g-0 3 $([ "$slow" = 0 ] || echo 1) 2
    ) || { cat g.yaml >&2; fail "random graph $i"; }
    i=$((i + 1))
done
