#!/bin/sh
# Two classes of a rank each on two CUDA devices: one generates, the other trains, weights cross by NCCL and rows over the
# host: the bits of one device, with and without lag; runs repeat, go on, and change placement; nothing is above the plan.
# Skips (77) where there are not two devices or no mpirun. usage: pools.sh GRAPHRUN
. "$(dirname "$0")/two.sh"

apart() { # OUT OPTIONS...: the rollout on a pool of its own
    train "$@" --set "pools={train: {share: 1}, rollout: {share: 1}}" --set models.actor.pool=train --set nodes.rollout.pool=rollout
}

for lag in 0 1; do
    train one-$lag --steps 6 --set nodes.rollout.lag=$lag
    apart split-$lag --steps 6 --set nodes.rollout.lag=$lag --ranks 2
    grep -q '"kind": "recv"' "$work/split-$lag/plan.json" || { echo "nothing crosses"; exit 1; }
    same one-$lag split-$lag
    grep '^peak' "$work/split-$lag.log"
    for key in loss grad_norm reward_mean tokens seconds; do
        echo "$key of step 6, lag $lag: $(number one-$lag 6 $key) on one device, $(number split-$lag 6 $key) on two"
    done
done
cmp "$work/one-1/checkpoints/step-6/actor/lagged.safetensors" "$work/split-1/checkpoints/step-6/actor/lagged.safetensors" ||
    { echo "the older weights differ"; exit 1; }
apart again --steps 6 --set nodes.rollout.lag=1 --ranks 2
same split-1 again
apart half --steps 3 --set nodes.rollout.lag=1 --ranks 2
timeout 120 "$gr" exec --resume "$work/half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same split-1 half
within_plan split-0 split-1
echo "all is well"
