#!/bin/sh
# A rollout with lag: 1 uses the weights as the iteration before began; resumed, checkpointed and moved as all else.
. "$(dirname "$0")/lib.sh"

sed 's/^  rollout: {/  rollout: {lag: $lag, /; s/^params: {/params: {lag: 0, /' grpo.yaml >lag.yaml
responses() { # RUN STEP: what was sampled
    grep "\"step\": $2," "$1/samples.jsonl" | sed -E 's/"score".*//; s/"reward".*//'
}

# Iteration 1 is the same, 2 samples with the weights before any training, 3 with those after the first update.
status 0 "$gr" exec lag.yaml --set lag=0 --set run.samples=32 --steps 3 --out plain
status 0 "$gr" exec lag.yaml --set lag=1 --set run.samples=32 --steps 3 --out lagged --check-memory
status 0 "$gr" exec lag.yaml --set lag=0 --set run.samples=32 --set lr=1.0e-30 --set models.actor.train.weight_decay=0 --steps 2 --out frozen
[ -n "$(responses plain 1)" ]
[ "$(responses plain 1)" = "$(responses lagged 1)" ] || fail "the first iteration has older weights than the first"
[ "$(responses frozen 2)" = "$(responses lagged 2)" ] || fail "iteration 2 does not sample with the weights of iteration 1"
[ "$(responses plain 2)" != "$(responses lagged 2)" ] || fail "iteration 2 samples as without lag"
# The log-probs of training are of the newest weights: they leave those that were sampled with from iteration 2 on.
metric lagged 1 logprob_gap_max | awk '{ exit !($1 < 1e-4) }' || fail "a gap at step 1: $(metric lagged 1 logprob_gap_max)"
metric lagged 2 logprob_gap_max | awk '{ exit !($1 > 1e-3) }' || fail "no gap at step 2: $(metric lagged 2 logprob_gap_max)"

# Both copies are in the checkpoint: cut in two, a run has the bits of one; so under a budget, and under each policy.
status 0 "$gr" exec lag.yaml --set lag=1 --steps 4 --out whole
status 0 "$gr" exec lag.yaml --set lag=1 --steps 2 --out parts
[ -s parts/checkpoints/step-2/actor/lagged.safetensors ]
cmp -s parts/checkpoints/step-2/actor/lagged.safetensors parts/checkpoints/step-2/actor/model.safetensors && fail "the copies are the same"
status 0 "$gr" exec --resume parts --steps 4
same_weights whole parts
same_metrics whole parts
for policy in transition every_node; do
    status 0 "$gr" exec lag.yaml --set lag=1 --policy $policy --steps 4 --out $policy --check-memory
    same_weights whole $policy
    same_metrics whole $policy
    rm -r $policy
done
peak=$(json_number whole/plan.json peak_bytes)
status 0 "$gr" exec lag.yaml --set lag=1 --budget $((peak - 16384)) --steps 4 --out tight
same_weights whole tight
