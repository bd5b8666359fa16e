#!/bin/sh
# `strict: true` on the CPU device, whose kernels are batch-invariant anyway: the gap between rollout and update is 0, an
# old_logprob of the rollout's own weights is left out, and all that changes is the time. Nothing is left out where the
# graph asks for the difference.
. "$(dirname "$0")/lib.sh"

without="--set nodes.old_logprob.micro_tokens=20"
status 0 "$gr" exec grpo.yaml --device cpu --out plain $without
status 0 "$gr" exec grpo.yaml --device cpu --out strict --set strict=true
same_weights plain strict
same_metrics plain strict
has plain/plan.json '"node": "old_logprob"'
lacks strict/plan.json '"node": "old_logprob"'
has strict/graph.yaml '^strict: true'
for step in 1 2 3 4 5 6; do
    for run in plain strict; do
        [ "$(metric $run $step logprob_gap_max)" = 0 ] || fail "$run has a gap at step $step"
    done
done

# The resolved graph of a run is a graph that does the same.
status 0 "$gr" exec grpo.yaml --device cpu --out half --set strict=true --set models.actor.train.schedule=constant --steps 3
status 0 "$gr" exec --resume half --steps 6
status 0 "$gr" exec grpo.yaml --device cpu --out constant --set strict=true --set models.actor.train.schedule=constant
same_weights constant half

# Compared with the rollout's, or asked for another field, it is computed: and it is the same.
gap='log.gap=token_max(abs(old_logprob - rollout.logprob))'
status 0 "$gr" exec grpo.yaml --device cpu --out compared --set strict=true --set "$gap"
has compared/plan.json '"node": "old_logprob"'
[ "$(metric compared 6 gap)" = 0 ] || fail "the log-prob pass is not what the rollout has"
status 0 "$gr" check grpo.yaml --explain --set strict=true --set 'log.e=token_mean(old_logprob.entropy)'
lacks out 'old_logprob: left out'
status 0 "$gr" check grpo.yaml --explain --set strict=true --set nodes.rollout.model=ref
lacks out 'old_logprob: left out'
status 0 "$gr" check grpo.yaml --explain --set strict=true
has out '^node old_logprob: left out: strict, so it is rollout.logprob$'
has out '^strict: '
