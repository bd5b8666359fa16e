#!/bin/sh
# Two ranks on two CUDA devices, over NCCL: the first iteration's numbers are near those of one rank, sharding changes no
# bit, runs repeat and resume to the bit, also on another number of ranks; gradients are reduced once a mini-batch or in each
# micro-batch; nothing is above the plan; a rank that is killed ends the other, and what is left resumes. Skips (77) where there are not two devices or no mpirun.
# usage: ranks.sh GRAPHRUN
. "$(dirname "$0")/two.sh"

train one --steps 6
train two --steps 6 --ranks 2
for key in loss grad_norm reward_mean entropy tokens; do
    for step in 1 2 6; do
        echo "$key of step $step: $(number one $step $key) on one rank, $(number two $step $key) on two"
    done
    near $key one two
done
train again --steps 6 --ranks 2
same two again
for gather in direct whole layer; do
    way="--set models.actor.gather=$gather"
    [ $gather != direct ] || way=
    # shellcheck disable=SC2086
    train shards-$gather --steps 6 --ranks 2 --set models.actor.residency.rollout_weights=keep $way
    grep -q '"kind": "sync"' "$work/shards-$gather/plan.json" || { echo "nothing is sharded"; exit 1; }
    same two shards-$gather
done
train half --steps 3 --ranks 2
timeout 120 "$gr" exec --resume "$work/half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same two half
train moving --steps 2 --ranks 2
timeout 120 "$gr" exec --resume "$work/moving" --ranks 1 --steps 4 >"$work/m.log" 2>&1 || { cat "$work/m.log"; exit 1; }
timeout 120 "$gr" exec --resume "$work/moving" --ranks 2 --steps 6 >"$work/m.log" 2>&1 || { cat "$work/m.log"; exit 1; }
echo "2, 1 and 2 ranks: loss $(number moving 6 loss), of one rank $(number one 6 loss)"
within_plan one two shards-direct

# Gradients that lie whole through six micro-batches and are reduced once, in both types, beside those of each micro-batch.
for type in fp32 bf16; do
    set -- --steps 6 --set nodes.update.micro_tokens=512 --set models.actor.train.grads=$type
    train once-$type "$@" --ranks 2
    train each-$type "$@" --ranks 2 --set run.bits=keep
    train alone-$type "$@"
    grep -q '"name": "whole_grads", "value": 1' "$work/once-$type/plan.json" || { echo "not reduced once"; exit 1; }
    ! grep -q whole_grads "$work/each-$type/plan.json" || { echo "not reduced in each micro-batch"; exit 1; }
    for key in loss grad_norm; do
        echo "$key of step 1: $(number alone-$type 1 $key), $(number each-$type 1 $key) and $(number once-$type 1 $key)"
        near $key alone-$type once-$type
        near $key each-$type once-$type
    done
    train again-$type "$@" --ranks 2
    same once-$type again-$type
    train moved-$type "$@" --ranks 2 --policy every_node
    same once-$type moved-$type
    within_plan once-$type each-$type moved-$type
done

"$gr" exec graphs/quickstart.yaml --set model="$work/model" --set data="$work/train.jsonl" --device cuda --ranks 2 \
    --set run.checkpoint.every=4 --steps 100000 --out "$work/killed" >"$work/killed.log" 2>&1 &
launcher=$!
while [ ! -d "$work/killed/checkpoints/step-8" ] && kill -0 $launcher 2>/dev/null; do sleep 0.1; done
begin=$(date +%s)
pkill -9 -n -f "$work/killed" || { echo "there is no rank to kill"; exit 1; }
! wait $launcher || { echo "a run that lost a rank says that all is well"; exit 1; }
[ $(($(date +%s) - begin)) -le 60 ] || { echo "a run that lost a rank took more than 60 s to end"; exit 1; }
tail -n 1 "$work/killed.log"
sleep 2
! pgrep -f "exec.*$work/killed" >/dev/null || { echo "a rank is left behind"; exit 1; }
last=$(find "$work/killed/checkpoints" -maxdepth 1 -name 'step-*' | sed 's/.*step-//' | sort -n | tail -1)
timeout 120 "$gr" exec --resume "$work/killed" --steps $((last + 2)) >"$work/m.log" 2>&1 || { cat "$work/m.log"; exit 1; }
echo "all is well"
