#!/bin/sh
# The quickstart's task with a dense model, one with experts and a hybrid: all begin to learn from examples, and train.
# Long form: with experts and as a hybrid it ends with no less reward than the dense one.
. "$(dirname "$0")/lib.sh"

loss() { # RUN STEP
    metric "$1" "$2" loss
}

if [ "$slow" = 0 ]; then
    WARMUP=12 STEPS=2 "$project/tools/quickstart_models.sh" "$gr" short dense moe hybrid >said 2>err || { cat said err >&2; fail "the script failed"; }
    for model in dense moe hybrid; do
        awk "BEGIN { exit !($(loss short/$model-warmup 12) < 0.8 * $(loss short/$model-warmup 1)) }" || fail "$model does not learn"
        has said "^$model: reward_mean "
    done
    has said '^moe: update.routing_agreement 1.0000'
    exit 0
fi
"$project/tools/quickstart_models.sh" "$gr" long >said 2>err || { cat said err >&2; fail "the script failed"; }
cat said
reward() { sed -nE "s/^$1: reward_mean ([0-9.]+) .*/\1/p" said; }
for model in moe balanced hybrid; do
    awk "BEGIN { exit !($(reward $model) >= $(reward dense) - 0.01) }" || fail "$model ends with $(reward $model), the dense one with $(reward dense)"
done
