#!/bin/sh
# Conversations of a model in slices: one rank of each group asks the environment, all of them take what it answers at the same
# time, and the rows are those of one rank.
. "$(dirname "$0")/lib.sh"
models_to_cut

# same RUN RUN: what was sampled and said, and numbers up to rounding
same() {
    cmp "$1/samples.jsonl" "$2/samples.jsonl" || fail "conversations of $1 and $2 differ"
    close "$1" "$2" 1
    [ "$(metric "$1" 1 turns)" = "$(metric "$2" 1 turns)" ] || fail "turns of $1 and $2 differ"
    [ "$(metric "$1" 1 rollout.calls)" = "$(metric "$2" 1 rollout.calls)" ] || fail "calls of $1 and $2 differ"
}
turns turns.yaml ""
turns slow.yaml slow
sed -i 's/samples: [0-9]*, checkpoint/samples: 64, checkpoint/' turns.yaml slow.yaml
ASKED=asked-1 status 0 "$gr" exec turns.yaml --set model=llama --steps 1 --out whole
for n in 2 4; do
    ASKED=asked-$n status 0 "$gr" exec slow.yaml --set model=llama --set models.actor.tensor=$n --ranks 4 --steps 1 --check-memory --out slices-$n
    same whole slices-$n
    [ "$(wc -l <asked-$n)" = "$(wc -l <asked-1)" ] || fail "$(wc -l <asked-$n) questions of $n slices, $(wc -l <asked-1) of one rank"
done
