#!/bin/sh
# Learning curves of the quickstart in bf16 (fp32 on the CPU device), with rollouts in FP8, all in FP8, and gradients of weights, too: the mean reward of 25
# iterations behind each hundredth, of four seeds; then the mean reward of what was learnt, sampled again in either type (40 iterations at a rate of 0). A line a run.
# FORMS: those of rollout, passes and gradients, with commas between.
# usage: bench_fp8.sh GRAPHRUN DEVICE [SEED...]
set -eu
gr=$(realpath "$1")
device=$2
shift 2
[ $# -gt 0 ] || set -- 1 2 3 4
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
graphs/quickstart/data.sh "$work"
"$gr" init --config graphs/quickstart/config.json --tokenizer graphs/quickstart --seed 1 -o "$work/model" >/dev/null
"$gr" exec graphs/quickstart/warmup.yaml --set model="$work/model" --set data="$work/warmup.jsonl" --device "$device" --out "$work/warmup" >/dev/null 2>&1
"$gr" export "$work/warmup" -o "$work/warm" >/dev/null
cat >"$work/fp8.yaml" <<END
use: [$PWD/graphs/quickstart.yaml, $PWD/graphs/parts/correction.yaml]
graph: bench-fp8
params: {rollout_in: bf16, train_in: bf16, gradients_in: bf16}
models: {actor: {precision: {rollout: \$rollout_in, train: \$train_in, gradients: \$gradients_in}}}
nodes:
  weight: {op: compute, expr: "token_weight(old_logprob, rollout.logprob, 2)"}
  update:
    loss: |
      ratio = exp(logprob - old_logprob)
      token_mean(weight * max(-advantage * ratio, -advantage * clip(ratio, 1 - \$clip, 1 + \$clip)))
END
run() { # OUT SETTINGS...
    out=$1
    shift
    "$gr" exec "$work/fp8.yaml" --set data="$work/train.jsonl" --device "$device" --out "$out" "$@" >/dev/null 2>"$work/err" || { cat "$work/err" >&2; exit 1; }
}
again() { # TYPE: the mean reward of what was learnt
    run "$work/again" --set model="$work/run@500" --set lr=0 --set run.seed=99 --set rollout_in=$1 --steps 40
    sed -nE 's/.*"reward_mean": ([0-9.e-]+).*/\1/p' "$work/again/metrics.jsonl" | awk '{ s += $1 } END { printf "%.3f", s / NR }'
    rm -rf "$work/again"
}
for in in ${FORMS:-bf16,bf16,bf16 fp8,bf16,bf16 fp8,fp8,bf16 fp8,fp8,fp8}; do
    rollout=${in%%,*} gradients=${in##*,} train=${in#*,} train=${train%,*}
    for seed; do
        run "$work/run" --set model="$work/warm" --set run.seed="$seed" --set rollout_in=$rollout --set train_in=$train --set gradients_in=$gradients
        sed -nE 's/^\{"step": ([0-9]+), .*"reward_mean": ([0-9.e-]+).*"logprob_gap_max": ([0-9.e-]+).*/\1 \2 \3/p' "$work/run/metrics.jsonl" |
            awk -v name="rollout $rollout, train $train, gradients $gradients, seed $seed" '
                ($1 - 1) % 100 >= 75 { n[int(($1 - 1) / 100)]++; sum[int(($1 - 1) / 100)] += $2 }
                $3 > gap { gap = $3 }
                END { printf "%s:", name; for (i = 0; i < 5; i++) if (n[i]) printf " %.3f", sum[i] / n[i]; printf ", largest gap %.3g", gap }'
        in_bf16=$(again bf16) # apart: `set -e` sees no failure within other words
        in_fp8=$(again fp8)
        echo ", sampled again in bf16 $in_bf16, in FP8 $in_fp8"
        rm -rf "$work/run"
    done
done
