#!/bin/sh
# Gradients that each rank sums whole through its micro-batches, and that are reduced once a mini-batch: where memory allows,
# and the numbers of one rank; under a tight budget they are reduced in each micro-batch instead, which is other bits.
. "$(dirname "$0")/lib.sh"
points=2
[ "$slow" = 0 ] || points=50
set -- --set models.actor.train.schedule=constant --set nodes.update.micro_tokens=20

whole() { # PLAN: 1 where the update's gradients are reduced once
    tr '{' '\n' <"$1" | sed -nE 's/.*"node": "update", "name": "whole_grads", "value": ([0-9]+).*/\1/p'
}
numerics() { sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' "$1/plan.json"; }

# From equal state, one step on 2 and 4 ranks is one rank's. The ranks need not agree on the trips of a loop without
# collectives, and those of a rank are its own.
status 0 "$gr" exec grpo.yaml "$@" --set run.checkpoint.every=1 --out one --steps $points
for n in 2 4; do
    each_step one $points 1e-5 "$gr" exec --ranks $n
    status 0 "$gr" exec grpo.yaml "$@" --ranks $n --steps 4 --out ranks-$n --check-memory
    [ "$(whole ranks-$n/plan.json)" = 1 ] || fail "gradients are reduced in each micro-batch of $n ranks"
    has ranks-$n/plan.json '"what": "update.full_grads.3"'
    has ranks-$n/plan.json '"what": "update.last_backward.0"'
    lacks ranks-$n/plan.json 'update.micro_batches.agree'
    close one ranks-$n 1
done

# A run is stopped and goes on to the bit.
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 2 --out resumed
status 0 "$gr" exec --resume resumed --steps 4
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights ranks-2 resumed
same_metrics ranks-2 resumed

# Wherever objects lie between their uses, and whatever is sharded: the same bits.
for way in "--policy every_node" "--policy transition" "--set models.actor.residency.optimizer=host" \
    "--set models.actor.residency.rollout_weights=keep --set models.actor.gather=layer"; do
    case $slow$way in 0--policy* | 0*optimizer*) continue ;; esac
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 $way --out way --check-memory
    [ "$(whole way/plan.json)" = 1 ] || fail "with $way gradients are reduced in each micro-batch"
    same_weights ranks-2 way
    same_metrics ranks-2 way
    rm -r way
done

# A budget takes them: the plan says so, and has the bits of a run that keeps its bits under any budget.
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 --set run.bits=keep --out kept
[ -z "$(whole kept/plan.json)" ] || fail "'bits: keep' reduces once"
has kept/plan.json 'update.micro_batches.agree'
[ "$(numerics kept)" != "$(numerics ranks-2)" ] || fail "the numerics hash is the same"
close kept ranks-2 1
status 3 "$gr" plan grpo.yaml "$@" --ranks 2 --set run.bits=keep --budget 4KiB
least=$(least_budget)
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 --budget "$least" --out tight --check-memory
[ -z "$(whole tight/plan.json)" ] || fail "whole gradients in $least bytes"
has tight/plan.json 'update: gradients: reduced in each micro-batch, to fit the budget'
same_weights kept tight
same_metrics kept tight
[ "$(numerics kept)" = "$(numerics tight)" ] || fail "the numerics hash differs"

# Canonical sums are one tree, for any number of ranks.
for n in 1 2; do
    status 0 "$gr" exec grpo.yaml "$@" --set canonical=true --ranks $n --steps 2 --out canonical-$n
    [ -z "$(whole canonical-$n/plan.json)" ] || fail "a canonical run sums otherwise"
done
same_weights canonical-1 canonical-2

# Two models that are trained, one update that is left out at times; a loss of two passes.
ppo_graph ppo.yaml
classifier judge model
sed 's/      token_mean(pg + beta \* kl)/      token_mean(where(choose(logprob < 0, 9), 0, pg + beta * kl))/' grpo.yaml >choose.yaml
has choose.yaml choose
for graph in ppo choose; do
    status 0 "$gr" exec $graph.yaml --set nodes.update.micro_tokens=20 --steps 3 --out $graph-1
    status 0 "$gr" exec $graph.yaml --set nodes.update.micro_tokens=20 --steps 3 --out $graph-2 --ranks 2 --check-memory
    [ "$(whole $graph-2/plan.json)" = 1 ] || fail "gradients of $graph are reduced in each micro-batch"
    close $graph-1 $graph-2 1
    close $graph-1 $graph-2 3 1e-3
done

# Where a selection leaves a mini-batch few rows or none: every rank comes to the reductions, behind loops whose trips are its
# own and behind agreed ones.
sed 's/^  old_logprob:/  kept: {op: select, of: rollout, groups: group_std(reward) > 0.45}\n&/; s/of: rollout}$/of: kept}/; s/^    of: rollout/    of: kept/
    s/expr: reward + 0.1 \* rollout/of: kept, &/; s/lr: 1.0e-2}/lr: 1.0e-3}/' grpo.yaml >few.yaml
status 0 "$gr" exec few.yaml "$@" --steps 4 --out few
for way in "" "--set models.actor.residency.rollout_weights=keep --set models.actor.gather=layer"; do
    [ "$slow" = 1 ] || [ "$way" ] || continue
    # shellcheck disable=SC2086
    status 0 "$gr" exec few.yaml "$@" --steps 4 --ranks 4 $way --out few-4 --check-memory
    [ "$(whole few-4/plan.json)" = 1 ] || fail "gradients of selected rows are reduced in each micro-batch"
    close few few-4 1
    close few few-4 3 1e-3
    rm -r few-4
done

# A plan that asks for what its graph or its ranks do not have is none.
sed 's/"name": "whole_grads", "value": 1/"name": "whole_grads", "value": 2/' ranks-2/plan.json >two.json
cmp -s ranks-2/plan.json two.json && fail "nothing was changed"
status 2 "$gr" verify two.json
has err "the plan's settings of node 'update' are not enough to run it"
