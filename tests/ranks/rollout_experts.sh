#!/bin/sh
# Experts that are divided over the ranks of a rollout (`expert:` of a model): the tokens, log-probs and experts of whole copies, to the
# bit, whatever routers choose and however few sequences a rank has, step by step and by chunks of steps; in memory as planned; runs go
# on, also on other ranks.
# usage: rollout_experts.sh GRAPHRUN STEPS_EXEC
steps_exec=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"

config qwen3_moe.json qwen3_moe 32 true false
"$gr" init --config qwen3_moe.json --tokenizer "$project/graphs/quickstart" --seed 1 -o qwen3_moe >/dev/null
cp -r qwen3_moe adverse
without_routers adverse

# The log-prob of the same tokens three ways: of training's weights, of the rollout's, as sampled; and experts that the rollout chose.
# Three prompts: one rank has more than the other, and of four ranks one has none.
sed 's/^  kl_now:/  there: {op: logprob, model: actor, of: rollout, weights: rollout}\n  apart: {op: compute, expr: there - old_logprob, metrics: {most: token_max(abs(apart)), sampled: token_max(abs(there - rollout.logprob))}}\n&/
    s/  old_logprob: {op: logprob,/& replay: compare,/; s/, schedule: cosine//; s/batch: 8/batch: 3/; s/mini_batch: 4/mini_batch: 3/' grpo.yaml >three.yaml
has three.yaml 'weights: rollout'
keep="--set models.actor.residency.rollout_weights=keep"
divided="--set models.actor.expert"

# as_whole RUN WHOLE OPTION...: with whole copies the same, to the bit
as_whole() {
    run=$1 whole=$2
    shift 2
    status 0 "$gr" exec three.yaml "$@" --out "$run" --check-memory
    lacks err warning
    is_whole "$run" "$whole"
}
is_whole() { # RUN WHOLE
    same_weights "$2" "$1"
    same_metrics "$2" "$1"
    cmp "$2/samples.jsonl" "$1/samples.jsonl" || fail "other samples in $1"
    for m in apart.most apart.sampled; do [ "$(metric "$1" 2 $m)" = 0 ] || fail "$m is $(metric "$1" 2 $m) in $1"; done
    [ "$(metric "$1" 2 old_logprob.routing_agreement)" = 1 ] || fail "other experts in $1: $(cat "$1/metrics.jsonl")"
    [ "$(metric "$1" 2 rollout.expert_trips)" ] || fail "no trips: $(cat "$1/metrics.jsonl")"
}
many=
for model in qwen3_moe adverse; do
    [ $model = qwen3_moe ] || many="--set nodes.rollout.samples=16"
    # shellcheck disable=SC2086
    status 0 "$gr" exec three.yaml --set model=$model $many --ranks 2 --steps 2 --out $model
    # shellcheck disable=SC2086
    as_whole $model-2 $model --set model=$model $many --ranks 2 --steps 2 $divided=2 --set run.checkpoint.every=1
done
has qwen3_moe-2/plan.json '"what": "rollout.sync.1"'
[ "$(metric qwen3_moe-2 1 rollout.expert_trips)" = 1 ] || fail "even choices take several trips"
awk -v trips="$(metric adverse-2 1 rollout.expert_trips)" 'BEGIN { exit !(trips > 1) }' || fail "its rows came at once"

# On four ranks, one of which has no prompt; from shards, by the device's chunks of steps.
# shellcheck disable=SC2086
status 0 "$gr" exec three.yaml --set model=adverse $many --ranks 4 --steps 2 --out four
# shellcheck disable=SC2086
as_whole four-4 four --set model=adverse $many --ranks 4 --steps 2 $keep $divided=4
has four-4/plan.json '"what": "rollout.exchange'
status 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 2 "$steps_exec" three.yaml chunks model=adverse run.steps=2 \
    nodes.rollout.samples=16 models.actor.expert=2
is_whole chunks adverse

# A run goes on to the bit; one that is canonical on other ranks, and in other parts.
point qwen3_moe-2 1 part
status 0 "$gr" exec --resume part --steps 2
same_weights qwen3_moe part 2
sed 's/^graph: tiny/&\ncanonical: true/' three.yaml >canonical.yaml
status 0 "$gr" exec canonical.yaml --set model=qwen3_moe --set run.checkpoint.every=1 --steps 2 --out canonical
point canonical 1 other
# shellcheck disable=SC2086
status 0 "$gr" exec canonical.yaml --resume other --replan --set model=qwen3_moe --set run.checkpoint.every=1 --ranks 2 $divided=2 --steps 2
lacks err warning
same_weights canonical other 2
[ "$slow" = 1 ] || exit 0

# ---- the long form ---------------------------------------------------------------------------------------

# Every way to bring weights there, and every mesh that trains them.
for how in "$keep" "$keep --set models.actor.gather=whole" "$keep --set models.actor.gather=layer" "--policy every_node" \
    "--set models.actor.parallel.expert=2" "--set models.actor.parallel.pipeline=2"; do
    # shellcheck disable=SC2086
    status 0 "$gr" exec three.yaml --set model=qwen3_moe --ranks 2 --steps 2 $how --out way-1
    # shellcheck disable=SC2086
    as_whole way-2 way-1 --set model=qwen3_moe --ranks 2 --steps 2 $how $divided=2
    rm -r way-1 way-2
done

# What else a rollout can do: older weights, rows that are kept, drafts, pools, rounds of a selection.
also() { # GRAPH RANKS OPTION...
    g=$1 n=$2
    shift 2
    # shellcheck disable=SC2086
    status 0 "$gr" exec "$g" --set model=qwen3_moe --set models.actor.train.schedule=constant --ranks "$n" "$@" --steps 3 --out also-1
    # shellcheck disable=SC2086
    status 0 "$gr" exec "$g" --set model=qwen3_moe --set models.actor.train.schedule=constant --ranks "$n" "$@" $divided=2 --steps 3 --out also-2 --check-memory
    same_weights also-1 also-2
    same_metrics also-1 also-2
    cmp also-1/samples.jsonl also-2/samples.jsonl || fail "other samples of $g $*"
    rm -r also-1 also-2
}
for key in lag=1 lag=2 over=1.5; do also grpo.yaml 2 --set nodes.rollout.$key; done
for from in ngram group; do
    sed "s/^  rollout: {op: generate, /&speculate: {tokens: 2, always: true, from: $from}, /" grpo.yaml >drafts.yaml
    also drafts.yaml 2
done
sed 's/^models:/pools: {train: {share: 1}, rollout: {share: 1}}\n&/; s/^  rollout: {/  rollout: {pool: rollout, /; s/^  old_logprob: {/&weights: rollout, pool: rollout, /' \
    grpo.yaml >pools.yaml
sed -i 's/^  ref: *{/&pool: train, /; s/^  actor: {/&pool: train, /' pools.yaml
also pools.yaml 4
sed 's/^  rollout: /  raw: /; s/of: rollout/of: kept/; s/op: compute, expr: reward + 0.1 \* rollout/op: compute, of: kept, expr: reward + 0.1 * raw/; s/^  reward:  {op: reward, of: kept/  reward:  {op: reward, of: raw/
    s/^  old_logprob:/  kept: {op: select, of: raw, groups: "group_std(reward) > 0", refill: {until: 8, rounds: 6, short: keep}}\n&/
    s/^  old_logprob: {/&weights: rollout, /' grpo.yaml >refill.yaml
also refill.yaml 4

# A rank that is killed is the end of all of them, and they go on.
options="--set model=qwen3_moe --set models.actor.train.schedule=constant $divided=2"
# shellcheck disable=SC2086
status 0 "$gr" exec grpo.yaml $options --ranks 2 --set run.checkpoint.every=1 --steps 4 --out every
# shellcheck disable=SC2086
killed_goes_on every $options
