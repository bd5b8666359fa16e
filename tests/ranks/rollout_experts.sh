#!/bin/sh
# Experts that are divided over the ranks of a rollout (`expert:` of a model): the tokens, log-probs and experts of whole copies, to the
# bit, whatever routers choose and however few sequences a rank has; in memory as planned; runs stop, are killed and go on.
. "$(dirname "$0")/lib.sh"

config qwen3_moe.json qwen3_moe 32 true false
"$gr" init --config qwen3_moe.json --tokenizer "$project/graphs/quickstart" --seed 1 -o qwen3_moe >/dev/null

# The log-prob of the same tokens three ways: of training's weights, of the rollout's, as sampled.
sed 's/^  kl_now:/  there: {op: logprob, model: actor, of: rollout, weights: rollout}\n  apart: {op: compute, expr: there - old_logprob, metrics: {most: token_max(abs(apart)), sampled: token_max(abs(there - rollout.logprob))}}\n&/;
    s/, schedule: cosine//' grpo.yaml >both.yaml
has both.yaml 'weights: rollout'
set -- both.yaml --set model=qwen3_moe --check-memory
shards="--set models.actor.residency.rollout_weights=keep"

# as_whole RUN RANKS OPTION...: what ranks do with whole copies, to the bit
as_whole() {
    run=$1 n=$2
    shift 2
    status 0 "$gr" exec "$@" --ranks "$n" --out "$run"
    lacks err warning
    same_weights "whole-$n" "$run"
    same_metrics "whole-$n" "$run"
    cmp "whole-$n/samples.jsonl" "$run/samples.jsonl" || fail "other samples in $run"
    [ "$(metric "$run" 2 apart.most)" = 0 ] && [ "$(metric "$run" 2 apart.sampled)" = 0 ] || fail "log-probs differ in $run"
    [ "$(metric "$run" 2 rollout.expert_trips)" ] || fail "no trips: $(cat "$run/metrics.jsonl")"
}
for n in 2 4; do
    status 0 "$gr" exec "$@" --ranks $n --steps 2 --out whole-$n
done
as_whole two 2 "$@" --steps 2 --set models.actor.expert=2
has two/plan.json '"what": "rollout.sync.1"'
# shellcheck disable=SC2086
as_whole shards 2 "$@" --steps 2 $shards --set models.actor.expert=2
