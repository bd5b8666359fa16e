#!/bin/sh
# Runs on a CUDA device: the same bits twice, under budgets that make state move, and resumed; what is measured is
# within what was planned. Skips (77) where there is no device.
# usage: exec.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"

train() { # OUT OPTIONS...
    out=$1
    shift
    "$gr" exec graphs/quickstart.yaml --set model="$work/model" --set data="$work/train.jsonl" --device cuda --out "$work/$out" "$@" \
        >"$work/$out.log" 2>&1 || { cat "$work/$out.log"; exit 1; }
}

same() { # RUN RUN
    cmp "$work/$1/checkpoints/step-12/actor/model.safetensors" "$work/$2/checkpoints/step-12/actor/model.safetensors" ||
        { echo "$1 and $2 differ"; exit 1; }
    echo "$2: the same bits as $1"
}

number() { # KEY FILE
    grep -o "\"$1\": [0-9]*" "$2" | tail -1 | sed 's/.* //'
}

train whole --steps 12
train again --steps 12
same whole again
peak=$(number planned_peak_bytes "$work/whole/metrics.jsonl")
[ "$(number measured_peak_bytes "$work/whole/metrics.jsonl")" -le "$peak" ] || { echo "measured more than planned"; exit 1; }
train half --steps 6
"$gr" exec --resume "$work/half" --steps 12 >"$work/resume.log" 2>&1 || { cat "$work/resume.log"; exit 1; }
same whole half
train moved --steps 12 --policy every_node
grep -q '"kind": "offload"' "$work/moved/plan.json" || { echo "nothing moves"; exit 1; }
same whole moved

# AdamW on the host: the same bits twice, by a hash of their own; up to its rounding the device's first iteration.
host="--set models.actor.residency.optimizer=host"
train stepped --steps 12 $host
train stepped-again --steps 12 $host
same stepped stepped-again
grep -Eq '"what": "update.step.[0-9]+".*"lane": "host"' "$work/stepped/plan.json" || { echo "no step on the host"; exit 1; }
hash() { sed -nE 's/.*"numerics": *"([0-9a-f]+)".*/\1/p' "$work/$1/plan.json" | head -1; }
[ "$(hash whole)" != "$(hash stepped)" ] || { echo "the hash hides the step's place"; exit 1; }
first() { sed -nE '1s/.*"loss": (-?[0-9.e+-]+).*/\1/p' "$work/$1/metrics.jsonl"; }
echo "$(first whole) $(first stepped)" | awk '{ d = $1 - $2; if (d < 0) d = -d; exit !(d <= 1e-3) }' ||
    { echo "the first loss is $(first stepped), on the device $(first whole)"; exit 1; }
