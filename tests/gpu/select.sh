#!/bin/sh
# Selections on a CUDA device, whose losses are evaluated there: masks of tokens are brought to it, and say the same as the
# condition in each reduction; rows drawn by weight are the same ones twice, and after a resume.
# usage: select.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"

train() { # GRAPH OUT OPTIONS...
    graph=$1
    out=$2
    shift 2
    "$gr" exec "$work/$graph.yaml" --set model="$work/model" --set data="$work/train.jsonl" --device cuda --out "$work/$out" "$@" \
        >"$work/$out.log" 2>&1 || { cat "$work/$out.log"; exit 1; }
}

value() { # RUN LINE KEY
    sed -nE "$2s/.*\"$3\": (-?[0-9.e+-]+).*/\1/p" "$work/$1/metrics.jsonl"
}

graph() { # NAME KEYS OF LOSS
    cat >"$work/$1.yaml" <<END
graph: $1
use: $PWD/graphs/quickstart.yaml
nodes:
  advantage: {op: compute, expr: (rollout.token - token_mean(rollout.token)) / 4}
  kept: {op: select, of: rollout, $2}
  update:
    of: $3
    mini_batch: $4
    loss: |
      ratio = exp(logprob - old_logprob)
      $5
END
}
surrogate='max(-advantage * ratio, -advantage * clip(ratio, 1 - $clip, 1 + $clip))'
graph masked 'tokens: old_logprob < -2' kept 32 "token_mean($surrogate) + batch_mean(seq_mean(-advantage * ratio))"
graph plain 'tokens: old_logprob < -2' rollout 32 "token_mean($surrogate, old_logprob < -2) + batch_mean(seq_mean(-advantage * ratio, old_logprob < -2))"
graph drawn 'resample: reward + 0.1' kept 128 "token_mean($surrogate)"

train masked masked --steps 4
train plain plain --steps 4
for key in loss grad_norm; do
    echo "$(value masked 1 $key) $(value plain 1 $key)" |
        awk '{ d = $1 - $2; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2; exit !(NF == 2 && d <= 1e-5 + 1e-4 * s && s > 0) }' ||
        { echo "$key is $(value masked 1 $key) with a mask, and $(value plain 1 $key) with its condition"; exit 1; }
done
echo "a mask says what its condition says: $(value masked 1 kept.tokens) tokens, loss $(value masked 1 loss), $(value plain 1 loss)"

train drawn drawn --steps 6
train drawn again --steps 6
train drawn part --steps 3
"$gr" exec --resume "$work/part" --steps 6 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
for run in again part; do
    cmp "$work/drawn/checkpoints/step-6/actor/model.safetensors" "$work/$run/checkpoints/step-6/actor/model.safetensors" ||
        { echo "$run has other bits than the run drawn"; exit 1; }
done
echo "rows drawn: the same bits twice and resumed; $(value drawn 1 kept.distinct) of 512 rows at first"
