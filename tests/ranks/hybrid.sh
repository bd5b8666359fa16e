#!/bin/sh
# Hybrid sharding: shards over the ranks of a node, nodes as replicas. Hosts by devices that are asked for under mpirun are
# taken as nodes, so that one machine has several. The numbers, and where gradients are summed once, the bits of as many
# ranks that are all one; resumed as other ranks and in other shards; saved once.
. "$(dirname "$0")/lib.sh"
shards() { # RUN: over how many ranks the plan has the update's model
    tr '{' '\n' <"$1/plan.json" | sed -nE 's/"node": "update", "name": "shards", "value": ([0-9]+).*/\1/p'
}

node="--set models.actor.shard=node --set models.ref.shard=node"
set -- --set models.actor.train.schedule=constant

# One reduction and one sum over nodes are together the tree of four ranks: its bits. State is half as much on four
# as on two, and in nodes of two as on two.
status 0 "$gr" exec grpo.yaml "$@" --steps 3 --out one
status 0 "$gr" exec grpo.yaml "$@" --ranks 4 --steps 3 --out four
# shellcheck disable=SC2086
nodes 2x2 0 grpo.yaml "$@" $node --steps 3 --out twice --check-memory
same_weights four twice
close four twice 3 1e-12 # the norm of the gradient is summed shard by shard
cmp four/samples.jsonl twice/samples.jsonl
close one twice 1
[ "$(shards twice)" = 2 ] && [ -z "$(shards four)" ] || fail "shards: $(shards twice) and $(shards four)"
has twice/plan.json '"what": "update.across.3"'
lacks four/plan.json 'across'
state() { tr '{' '\n' <"$1/plan.json" | sed -nE 's/.*"what": "actor.state.1".*"bytes": ([0-9]+).*/\1/p' | head -1; }
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 1 --out two
[ "$(state twice)" = "$(state two)" ] && [ "$(state twice)" = $((2 * $(state four))) ] ||
    fail "state: $(state twice), on two ranks $(state two), on four $(state four)"
[ "$(numerics=$(sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' four/plan.json); grep -c "$numerics" twice/plan.json)" = 0 ] ||
    fail "the numerics hash is the same"

# However weights are kept, gathered and stepped; a replica on every rank; four micro-batches, where sums over nodes come
# behind those over micro-batches: other bits, the same again.
for way in "models.actor.residency.rollout_weights=keep" "models.actor.gather=layer" "models.actor.residency.optimizer=host" \
    "nodes.update.micro_tokens=20"; do
    case $slow$way in 0*rollout_weights* | 0*optimizer*) continue ;; esac
    # shellcheck disable=SC2086
    nodes 2x2 0 grpo.yaml "$@" $node --set $way --steps 3 --out way --check-memory
    case $way in
    nodes.*)
        # shellcheck disable=SC2086
        nodes 2x2 0 grpo.yaml "$@" $node --set $way --set models.actor.residency.rollout_weights=keep --steps 3 --out again
        same_weights way again
        close four way 1
        ;;
    *) same_weights four way ;;
    esac
    rm -rf way again
done
# shellcheck disable=SC2086
nodes 4x1 0 grpo.yaml "$@" $node --steps 3 --out copies --check-memory
same_weights four copies
lacks copies/plan.json 'update.reduce|update.gather'
if [ "$slow" = 1 ]; then # three nodes; three of a host are below
    # shellcheck disable=SC2086
    nodes 3x2 0 grpo.yaml "$@" $node --steps 1 --set nodes.update.mini_batch=8 --out six --check-memory
    status 0 "$gr" exec grpo.yaml "$@" --steps 1 --set nodes.update.mini_batch=8 --out one-mini
    close one-mini six 1
fi

# Canonical: the bits of one rank.
shapes=2x2
[ "$slow" = 0 ] || shapes="2x2 4x1"
for shape in $shapes; do
    # shellcheck disable=SC2086
    nodes $shape 0 grpo.yaml "$@" $node --set canonical=true --set nodes.update.micro_tokens=20 --steps 3 --out canonical-$shape
done
status 0 "$gr" exec grpo.yaml "$@" --set canonical=true --set nodes.update.micro_tokens=20 --steps 3 --out canonical
for shape in $shapes; do
    same_weights canonical canonical-$shape
    same_metrics canonical canonical-$shape
done

# A critic beside the actor, one in replicas and the other not; lag.
ppo_graph ppo.yaml
classifier judge model
status 0 "$gr" exec ppo.yaml --set warmup=1 --steps 2 --out ppo-1
nodes 2x2 0 ppo.yaml --set warmup=1 --set models.critic.shard=node --set models.actor.shard=all --steps 2 --out ppo-22 --check-memory
close ppo-1 ppo-22 1
close ppo-1 ppo-22 2 1e-3
if [ "$slow" = 1 ]; then
    sed 's/^  rollout: {/  rollout: {lag: 1, /' grpo.yaml >lag.yaml
    status 0 "$gr" exec lag.yaml "$@" --ranks 4 --steps 3 --out lag-4
    # shellcheck disable=SC2086
    nodes 2x2 0 lag.yaml "$@" $node --set models.actor.residency.rollout_weights=keep --steps 2 --out lag-22
    # shellcheck disable=SC2086
    nodes 2x2 0 --resume lag-22 --steps 3
    same_weights lag-4 lag-22
fi

# A rollout in slices: from the shards of the node, whole or not.
for keep in auto keep; do
    [ "$slow" = 1 ] || [ $keep = keep ] || continue
    status 0 "$gr" exec grpo.yaml "$@" --ranks 4 --set models.actor.tensor=2 --set models.actor.residency.rollout_weights=$keep \
        --steps 3 --out slices-4
    # shellcheck disable=SC2086
    nodes 2x2 0 grpo.yaml "$@" $node --set models.actor.tensor=2 --set models.actor.residency.rollout_weights=$keep --steps 3 \
        --out slices-22 --check-memory
    same_weights slices-4 slices-22
    rm -r slices-4 slices-22
done

# From 2x2 on as 1x4, as 2 and as 2x2 again: one file each, whoever wrote it.
# shellcheck disable=SC2086
nodes 2x2 0 grpo.yaml "$@" $node --set run.checkpoint.every=1 --steps 2 --out moving
same_weights four twice 3
ls moving/checkpoints/step-2/actor >files
[ "$(tr '\n' ' ' <files)" = "config.json model.safetensors optimizer.safetensors tokenizer_config.json " ] || fail "$(cat files)"
nodes 2x2 0 --resume moving --steps 3
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights twice moving
nodes 1x4 0 --resume moving --steps 4
has err 'warning: .*its bits may differ'
[ -z "$(shards moving)" ] || fail "still in shards of $(shards moving)"
[ "$slow" = 0 ] || status 0 "$gr" exec --resume moving --ranks 2 --steps 5
nodes 2x2 0 --resume moving --steps 6
[ "$(shards moving)" = 2 ] || fail "in shards of '$(shards moving)'"
status 0 "$gr" exec grpo.yaml "$@" --steps 6 --out still
close still moving 5 1e-3

# auto: where predicted collectives take less, and the plan says so; without nodes the key changes nothing.
refused "'shard' must be auto, all or node" "$gr" check grpo.yaml --set models.actor.shard=most
"$gr" plan grpo.yaml --ranks 4 --format json >plain.json
# shellcheck disable=SC2086
"$gr" plan grpo.yaml --ranks 4 $node --format json >keyed.json
same='s/"graph_text": "([^"\\]|\\.)*"//'
[ "$(sed -E "$same" plain.json)" = "$(sed -E "$same" keyed.json)" ] || fail "on one host, 'shard: node' is another plan"
# shellcheck disable=SC2086
status 0 "$gr" plan grpo.yaml --ranks 2x2 $node
has out 'replicas  of the model of .*update: a shard on each of 2 ranks'
[ "$slow" = 0 ] || nodes 2x2 0 grpo.yaml --set models.actor.shard=all --steps 1 --out all
[ "$slow" = 0 ] || [ -z "$(shards all)" ] || fail "'shard: all' is in shards of $(shards all)"

# Nodes are equal parts of a host.
nodes 1x8 2 grpo.yaml --out never --set batch=x
has err 'batch'
status 2 mpirun --oversubscribe --bind-to none -n 4 "$gr" exec grpo.yaml --ranks 8 --out never
has err -- '--ranks 8, but 4 were started'

# A pool of several hosts has nodes of its own; what it sends to other pools is in shards over all of its ranks.
sed 's/^models:/pools: {train: {ranks: 2x2}, judge: {share: 1}}\n&/; s/^  ref:   {/  ref:   {pool: judge, /; s/^  actor: {/  actor: {pool: train, /' grpo.yaml >pools.yaml
sed 's/^  rollout: {/  rollout: {pool: judge, /; s/^  old_logprob: {/  old_logprob: {pool: train, /' pools.yaml >sent.yaml
status 0 "$gr" plan pools.yaml --ranks 2x3 --set models.actor.shard=node --format json -o pools.json
has pools.json '"update.across.0"'
status 0 "$gr" verify pools.json
status 0 "$gr" plan sent.yaml --ranks 2x3 --format json -o sent.json
lacks sent.json 'across'
refused "model 'actor': 'shard: node' is not for a model whose weights other pools read" \
    "$gr" plan sent.yaml --ranks 2x3 --set models.actor.shard=node
nodes 2x3 0 pools.yaml --set models.actor.shard=node --set run.samples=0 --steps 2 --out pools
close one pools 1
