#!/bin/sh
# A rollout in slices on two CUDA devices: the first iteration's numbers are near those of one rank, runs repeat to the bit,
# sharded or not, resumed or not; log-prob by the rollout's weights; nothing is above the plan. Skips (77) where there are
# not two devices or no mpirun.
# usage: tensor.sh GRAPHRUN
. "$(dirname "$0")/two.sh"

sliced() { # OUT OPTIONS...
    train "$@" --ranks 2 --set models.actor.tensor=2
}

train one --steps 6
sliced two --steps 6
for key in loss grad_norm reward_mean entropy tokens; do
    echo "$key of step 1: $(number one 1 $key) on one rank, $(number two 1 $key) in two slices; of step 6: $(number one 6 $key), $(number two 6 $key)"
    near $key one two
done
sliced again --steps 6
same two again
sliced shards --steps 6 --set models.actor.residency.rollout_weights=keep
same two shards
sliced half --steps 3
timeout 120 "$gr" exec --resume "$work/half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same two half
sliced old --steps 6 --set nodes.old_logprob.weights=rollout
for key in loss grad_norm entropy; do near $key one old; done
within_plan one two shards old
echo "all is well"
