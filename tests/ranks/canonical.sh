#!/bin/sh
# `canonical: true`: the same bits on 1, 2 and 4 ranks, over 16 iterations (GR_SLOW=1: 50), however weights are sharded, with
# leaves of several micro-batches, losses of two passes, tied embeddings; and when the number of ranks changes on the way.
. "$(dirname "$0")/lib.sh"

equal() { # RUN RUN
    same_weights "$1" "$2"
    same_metrics "$1" "$2"
    cmp "$1/samples.jsonl" "$2/samples.jsonl"
}

set -- --set canonical=true --set models.actor.train.schedule=constant
first=4
[ "$slow" = 0 ] || first=20
next=4
[ "$slow" = 0 ] || next=10
for n in 1 2 4; do status 0 "$gr" exec grpo.yaml "$@" --ranks $n --steps $((first + 3 * next)) --out long$n; done
equal long1 long2
equal long1 long4

sed 's/      token_mean(pg + beta \* kl)/      token_mean(where(choose(logprob < 0, 9), 0, pg + beta * kl))/' grpo.yaml >choose.yaml
model tied llama 64 true false
for graph in "grpo.yaml --set nodes.update.micro_tokens=20" "choose.yaml" "grpo.yaml --set model=tied" \
    "grpo.yaml --set nodes.update.mini_batch=2 --set models.actor.train.moments=int8"; do
    case $slow$graph in 0*micro_tokens=20) continue ;; esac # hybrid.sh, too
    # shellcheck disable=SC2086
    status 0 "$gr" exec $graph "$@" --steps 2 --out one
    # shellcheck disable=SC2086
    status 0 "$gr" exec $graph "$@" --steps 2 --ranks 2 --out two --check-memory
    # shellcheck disable=SC2086
    status 0 "$gr" exec $graph "$@" --steps 2 --ranks 4 --out four --set models.actor.residency.rollout_weights=keep
    has four/plan.json '"kind": "sync"'
    equal one two
    equal one four
    rm -r one two four
done

# Another number of ranks is no other run: nothing is warned of.
status 0 "$gr" exec grpo.yaml "$@" --ranks 4 --steps $first --out moving
for n in 2 1 4; do
    steps=$((${steps:-$first} + next))
    status 0 "$gr" exec --resume moving --ranks $n --steps $steps
    [ ! -s err ] || fail "$(cat err)"
done
equal long1 moving

refused 'canonical is for 1, 2, 4 or 8 ranks' "$gr" plan grpo.yaml "$@" --ranks 3
refused 'canonical needs kernels' "$gr" plan grpo.yaml "$@" --hardware h200
