#!/bin/sh
# Context parallel training on two CUDA devices: the first iteration's numbers are near those of one rank, runs repeat to the
# bit, sharded or not, resumed or not; strict keeps its promise; a loss of whole sequences; nothing is above the plan. Skips
# (77) where there are not two devices or no mpirun.
# usage: context.sh GRAPHRUN
. "$(dirname "$0")/two.sh"

both() { # OUT OPTIONS...
    train "$@" --ranks 2 --set models.actor.parallel.context=2
}

train one --steps 6
both two --steps 6
for key in loss grad_norm reward_mean entropy tokens; do
    echo "$key of step 1: $(number one 1 $key) on one rank, $(number two 1 $key) over two; of step 6: $(number one 6 $key), $(number two 6 $key)"
    near $key one two
done
both again --steps 6
same two again
both shards --steps 6 --set models.actor.residency.rollout_weights=keep
same two shards
both half --steps 3
timeout 120 "$gr" exec --resume "$work/half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same two half
both small --steps 6 --set nodes.update.micro_tokens=512 --set nodes.old_logprob.micro_tokens=500
for key in loss grad_norm entropy; do near $key one small; done
sed 's/^graph:/strict: true\n&/' graphs/quickstart.yaml >"$work/strict.yaml"
timeout 120 "$gr" exec "$work/strict.yaml" --set model="$work/model" --set data="$work/train.jsonl" --device cuda --ranks 2 \
    --set models.actor.parallel.context=2 --steps 6 --out "$work/strict" >"$work/strict.log" 2>&1 || { cat "$work/strict.log"; exit 1; }
for step in 1 6; do
    [ "$(number strict $step logprob_gap_max)" = 0 ] || { echo "strict: log-probs differ"; exit 1; }
done
within_plan one two shards small
echo "all is well"
