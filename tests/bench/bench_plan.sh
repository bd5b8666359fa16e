#!/bin/sh
# Time and memory of planning: over ranks for an 8B model under two budgets, over the nodes of a graph. A line each: what,
# how many, user seconds, KB. usage: bench_plan.sh GRAPHRUN
set -eu
gr=$(realpath "$1")
project=$(dirname "$(realpath "$0")")/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
sed -n '/^{"architectures"/,/^END/p' "$project/tests/cli/test_verl.sh" | sed '$d' >8b.json
auto="--set params=auto --set optimizer=auto --set gradients=auto --set copy=auto --set gather=direct --set kv=auto --set bits=fit"

timed() { # WHAT N ARGUMENTS...
    what=$1 n=$2
    shift 2
    /usr/bin/time -o time -f "$what $n %U %M" "$gr" plan "$@" >/dev/null 2>err || { cat err >&2; exit 1; }
    cat time
}
for ranks in 1x1 1x2 1x8 8x8 32x8 128x8; do
    for budget in 79GiB 50GiB; do
        timed "ranks,$budget" $ranks "$project/graphs/verl-hybrid-8b.yaml" --set model=8b.json --ranks $ranks \
            --hardware h100-80g $auto --budget $budget
    done
done
graph() { # N POOL: a chain of computed values between a rollout and an update; the rollout may be on another pool
    echo "graph: chain"
    [ -z "${2-}" ] || echo "pools: {train: {share: 3}, rollout: {share: 1}}"
    cat <<'END'
models: {actor: {checkpoint: 8b.json, train: {lr: 0.01}}}
nodes:
  prompts: {op: prompts, file: none.jsonl, batch: 64, max_tokens: 64, template: '{q}'}
END
    echo "  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 64${2:+, pool: $2}}"
    cat <<'END'
  reward: {op: reward, of: rollout, answer: prompts.a, rule: {extract: '(.)', compare: string}}
  c0: {op: compute, expr: reward}
END
    i=1
    while [ $i -lt $(($1 - 4)) ]; do
        echo "  c$i: {op: compute, expr: c$((i - 1)) * 0.5 + reward}"
        i=$((i + 1))
    done
    echo "  update: {op: update, model: actor, of: rollout, loss: token_mean(c$((i - 1)) * logprob)}"
    echo "run: {steps: 2}"
}
for n in 10 100 400 1000 4000 10000; do
    graph $n >chain.yaml
    timed nodes $n chain.yaml --hardware h200 --ranks 128x8
done
for n in 10 100 400 1000 4000 10000; do
    graph $n rollout >chain.yaml
    timed pools $n chain.yaml --hardware h200 --ranks 128x8
done
