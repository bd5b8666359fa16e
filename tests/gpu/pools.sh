#!/bin/sh
# Two classes of a rank each on two CUDA devices: one generates, the other trains, weights cross by NCCL and rows over the
# host: the bits of one device, with and without lag; runs repeat, go on, and change placement; nothing is above the plan.
# Skips (77) where there are not two devices or no mpirun. usage: pools.sh GRAPHRUN
. "$(dirname "$0")/two.sh"

cat >"$work/pools.yaml" <<END
graph: quickstart
use: $PWD/graphs/quickstart.yaml
params: {lag: 0}
pools: {train: {share: 1}, rollout: {share: 1}}
models: {actor: {pool: train}}
nodes: {rollout: {pool: rollout, lag: \$lag}}
END

# run OUT RANKS OPTIONS...: on one rank pools are that rank
run() {
    out=$1 ranks=$2
    shift 2
    timeout 120 "$gr" exec "$work/pools.yaml" --set model="$work/model" --set data="$work/train.jsonl" --device cuda --ranks "$ranks" \
        --set "nodes.reward={op: compute, expr: rollout.length}" --out "$work/$out" "$@" >"$work/$out.log" 2>&1 ||
        { echo "$out: exit $?"; cat "$work/$out.log"; exit 1; }
}

for lag in 0 1; do
    run one-$lag 1 --steps 6 --set lag=$lag
    run split-$lag 2 --steps 6 --set lag=$lag
    grep -q '"kind": "recv"' "$work/split-$lag/plan.json" || { echo "nothing crosses"; exit 1; }
    same one-$lag split-$lag
    grep '^peak' "$work/split-$lag.log"
    for key in loss grad_norm reward_mean tokens seconds; do
        echo "$key of step 6, lag $lag: $(number one-$lag 6 $key) on one device, $(number split-$lag 6 $key) on two"
    done
done
cmp "$work/one-1/checkpoints/step-6/actor/lagged.safetensors" "$work/split-1/checkpoints/step-6/actor/lagged.safetensors" ||
    { echo "the older weights differ"; exit 1; }
run again 2 --steps 6 --set lag=1
same split-1 again
run half 2 --steps 3 --set lag=1
timeout 120 "$gr" exec --resume "$work/half" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same split-1 half
within_plan split-0 split-1
for class in 0 1; do
    measured=$(number split-1 6 measured_peak_bytes.$class) planned=$(number split-1 6 planned_peak_bytes.$class)
    echo "rank $class: measured $measured of planned $planned bytes"
    [ "$measured" -le "$planned" ] || { echo "more than planned"; exit 1; }
done
echo "all is well"
