#!/bin/sh
# Two CUDA devices as two nodes of one, replicas of each other: gradients are summed over NCCL once a mini-batch, the first
# iteration's numbers are near those of one rank, runs repeat and resume to the bit, also as one node of two; nothing is
# above the plan. And passes are dealt by length. Skips (77) where there are not two devices or no mpirun.
# usage: hybrid.sh GRAPHRUN
. "$(dirname "$0")/two.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

begin() { # LOG ARGUMENTS...: as two nodes
    log=$1
    shift
    timeout 120 mpirun -n 2 --bind-to none "$gr" exec "$@" --ranks 2x1 >"$work/$log.log" 2>&1 || { echo "$log: exit $?"; cat "$work/$log.log"; exit 1; }
}
nodes() { # OUT STEPS
    begin "$1" graphs/quickstart.yaml --set model="$work/model" --set data="$work/train.jsonl" --device cuda \
        --set "nodes.reward={op: compute, expr: rollout.length}" --set models.actor.shard=node --steps "$2" --out "$work/$1"
}

train one --steps 6
train two --steps 6 --ranks 2
nodes replicas 6
nodes again 6
grep -q '"what": "update.across.0"' "$work/replicas/plan.json" || { echo "nothing is summed over nodes"; exit 1; }
! grep -q '"what": "update.reduce.0"' "$work/replicas/plan.json" || { echo "a node of one rank reduces"; exit 1; }
for key in loss grad_norm reward_mean entropy tokens; do
    for step in 1 6; do
        echo "$key of step $step: $(number one $step $key) on one rank, $(number two $step $key) on two, $(number replicas $step $key) as replicas"
    done
    near $key one replicas
done
same replicas again
nodes half 3
begin half-on --resume "$work/half" --steps 6
same replicas half
timeout 120 "$gr" exec --resume "$work/half" --ranks 2 --steps 8 >"$work/m.log" 2>&1 || { cat "$work/m.log"; exit 1; }
within_plan two replicas
for run in two replicas; do
    for step in 1 6; do
        now=$(number $run $step update.rank_imbalance)
        before=$(number $run $step update.rank_imbalance_in_order)
        echo "$run, step $step: the fuller rank is $now above the mean, in order it would be $before"
        [ "${now:-none}" != none ] && awk -v now="$now" -v before="$before" 'BEGIN { exit !(now <= before && now < 0.05) }' || exit 1
    done
done
echo "all is well"
