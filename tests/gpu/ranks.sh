#!/bin/sh
# Two ranks on two GPUs of this host: the first loss is that of one, the same bits twice and resumed, with whole and with
# sharded weights; nothing above the plan; a run of two goes on with one; a rank that is killed ends the other, and what
# is left resumes. Skips (77) where there are not two.
# usage: ranks.sh GRAPHRUN
set -eu
gr=$(realpath "$1")
cd "$(dirname "$0")/../.."
if [ "$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)" -lt 2 ] || ! command -v mpirun >/dev/null; then
    echo "not two GPUs and mpirun: skipped"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
graphs/quickstart/data.sh "$work"
"$gr" init --config graphs/quickstart/config.json --tokenizer graphs/quickstart --seed 1 -o "$work/model" >/dev/null

fail() {
    echo "$*"
    exit 1
}

train() { # RANKS OUT OPTIONS...
    ranks=$1
    out=$2
    shift 2
    "$gr" exec graphs/quickstart.yaml --set model="$work/model" --set data="$work/train.jsonl" --device cuda --ranks "$ranks" \
        --set 'nodes.reward={op: compute, expr: rollout.length}' --out "$work/$out" "$@" >"$work/$out.log" 2>&1 || { cat "$work/$out.log"; exit 1; }
}

resume() { # OUT OPTIONS...
    out=$1
    shift
    "$gr" exec --resume "$work/$out" --steps 12 "$@" >"$work/$out.log" 2>&1 || { cat "$work/$out.log"; exit 1; }
}

same() { # RUN RUN
    cmp "$work/$1/checkpoints/step-12/actor/model.safetensors" "$work/$2/checkpoints/step-12/actor/model.safetensors" ||
        fail "$1 and $2 differ"
    echo "$2: the same bits as $1"
}

metric() { # RUN STEP KEY
    sed -n "$2p" "$work/$1/metrics.jsonl" | grep -o "\"$3\": [-0-9.e]*" | sed 's/.* //'
}

near() { # RUN STEP KEY: as of one rank, within 1e-3
    a=$(metric one "$2" "$3")
    b=$(metric "$1" "$2" "$3")
    echo "$1: $3 of step $2 is $b, of one rank $a"
    awk "BEGIN {d = $a - $b; s = $a < 0 ? -($a) : $a; exit !(d * d <= (1e-3 * (s + 1)) ^ 2)}" || fail "too far apart"
}

within() { # RUN
    planned=$(metric "$1" 12 planned_peak_bytes)
    measured=$(metric "$1" 12 measured_peak_bytes)
    echo "$1: planned $planned, measured $measured"
    [ "$measured" -le "$planned" ] || fail "measured more than planned"
}

train 1 one --steps 12
for form in whole sharded; do
    copy=
    [ $form = whole ] || copy="--set models.actor.residency.rollout_weights=keep"
    # shellcheck disable=SC2086 # two words or none
    train 2 $form --steps 12 $copy
    near $form 1 loss
    near $form 1 grad_norm
    within $form
    # shellcheck disable=SC2086
    train 2 $form.again --steps 6 $copy
    resume $form.again
    same $form $form.again
done
train 2 fewer --steps 6
resume fewer --ranks 1
near fewer 7 entropy

# A rank that is killed in the middle.
"$gr" exec graphs/quickstart.yaml --set model="$work/model" --set data="$work/train.jsonl" --device cuda --ranks 2 \
    --set 'nodes.reward={op: compute, expr: rollout.length}' --set run.checkpoint.every=4 --steps 100000 --out "$work/killed" \
    >"$work/killed.log" 2>&1 &
launcher=$!
while [ ! -d "$work/killed/checkpoints/step-12" ] && kill -0 $launcher 2>/dev/null; do sleep 0.1; done
begin=$(date +%s)
pkill -9 -n -f "$work/killed" || fail "no rank to kill"
! wait $launcher || fail "a run that lost a rank says that all is well"
[ $(($(date +%s) - begin)) -le 60 ] || fail "it took more than 60 s"
tail -3 "$work/killed.log"
sleep 2
! pgrep -f "exec.*$work/killed" >/dev/null || fail "a rank is left behind"
last=$(find "$work/killed/checkpoints" -maxdepth 1 -name 'step-*' | sed 's/.*step-//' | sort -n | tail -1)
"$gr" exec --resume "$work/killed" --steps $((last + 2)) >"$work/killed.log" 2>&1 || { cat "$work/killed.log"; exit 1; }
echo "all is well"
