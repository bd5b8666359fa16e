#!/bin/sh
# A rollout whose experts are divided over two CUDA devices (`expert: 2` of a model): under strict the bits of whole copies, also where a
# device has no sequences; without it the first iteration's numbers are near those of whole copies, runs repeat to the bit, sharded or not,
# resumed or not; log-prob by the rollout's weights; rows that are kept; nothing is above the plan. Skips (77) where there are not two
# devices or no mpirun.
# usage: rollout_experts.sh GRAPHRUN
. "$(dirname "$0")/two.sh"

whole() { # OUT OPTIONS...
    train "$@" --ranks 2
}

divided() { # OUT OPTIONS...
    whole "$@" --set models.actor.expert=2
}

experts_model
for batch in 64 1; do
    set -- --steps 6 --set strict=true --set nodes.rollout.max_tokens=20 --set nodes.prompts.batch=$batch
    whole strict-whole "$@"
    divided strict-two "$@"
    same strict-whole strict-two
    for step in 1 6; do
        [ "$(number strict-two $step logprob_gap_max)" = 0 ] || { echo "strict: log-probs differ"; exit 1; }
    done
    within_plan strict-two
    rm -rf "$work/strict-whole" "$work/strict-two"
done

whole one --steps 6
divided two --steps 6
for key in loss grad_norm reward_mean entropy tokens; do
    echo "$key of step 1: $(number one 1 $key) of whole copies, $(number two 1 $key) of divided experts; of step 6: $(number one 6 $key), $(number two 6 $key)"
    near $key one two
done
echo "$(number two 6 rollout.expert_trips) trips; a rollout in $(number one 6 seconds.rollout) s, divided in $(number two 6 seconds.rollout) s"
divided again --steps 6
same two again
divided shards --steps 6 --set models.actor.residency.rollout_weights=keep
same two shards
divided half --steps 3
timeout 120 "$gr" exec --resume "$work/half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same two half
divided old --steps 6 --set nodes.old_logprob.weights=rollout
for key in loss grad_norm entropy; do near $key one old; done
divided train --steps 6 --set models.actor.parallel.expert=2
for key in loss grad_norm entropy; do near $key one train; done
divided over --steps 6 --set nodes.rollout.over=1.5
within_plan one two shards old train over
echo "all is well"
