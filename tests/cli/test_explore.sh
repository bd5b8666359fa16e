#!/bin/sh
# Layouts that a graph could have: what --explore says of one is what a plan of it takes, and of what does not fit it finds
# what does. usage: test_explore.sh GRAPHRUN
set -eu
gr=$(realpath "$1")
project=$(dirname "$(realpath "$0")")/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
    echo "$*" >&2
    cat out err >&2
    exit 1
}
grpo() { # STATUS OPTIONS...
    want=$1 got=0
    shift
    "$gr" plan "$project/graphs/grpo.yaml" --set model="$project/tests/cli/model/config.json" --set batch=8 --set mini_batch=8 \
        --device cpu "$@" >out 2>err || got=$?
    [ $got = "$want" ] || fail "plan $*: status $got"
}
grpo 0 --ranks 2 --explore
grep -q '^grpo on cpu: layouts that no other beats$' out || fail "no title"
[ "$(grep -c ' as it is$' out)" = 1 ] || fail "nothing is said of the graph as it is"
grep -q ' --set ' out || fail "no other layout"
first=$(sed -nE 's/^ *([0-9.]+ [a-z]+) .* same .*as it is$/\1/p' out)
set -- $(sed -nE 's/.*(same|other) *((--set [^ ]+ ?)+)$/\2/p' out | head -n 1)
said=$(sed -nE 's/^ *([0-9.]+ [a-z]+) .*--set .*/\1/p' out | head -n 1)
[ -n "$first" ] && [ -n "$said" ] || fail "no times"
grpo 0 --ranks 2 "$@"
grep -q "predicted $said an iteration" out || fail "the plan of $* does not take $said"

# A mesh left to the planner is chosen first, and kept: layouts are around the graph with it.
grpo 0 --ranks 2 --set models.actor.parallel=auto
chosen=$(sed -nE 's/.*predicted ([0-9.]+ [a-z]+) an iteration.*/\1/p' out)
grpo 0 --ranks 2 --set models.actor.parallel=auto --explore
grep -q 'the fastest is chosen' err || fail "nothing is said of meshes"
[ "$(sed -nE 's/^ *([0-9.]+ [a-z]+) .* as it is$/\1/p' out)" = "$chosen" ] || fail "as it is takes not $chosen"

# Stages wait less in chunks, which are tried beside other changes and predicted as a plan of them is.
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 8/' "$project/tests/cli/model/config.json" >config.json
cp "$project"/tests/cli/model/tokenizer* .
stages="--ranks 2 --set model=$PWD/config.json --set models.actor.parallel.pipeline=2"
grpo 0 $stages --set nodes.update.micro_tokens=4096 --explore
set -- $(sed -nE 's/.*(same|other) *((--set [^ ]+ ?)+)$/\2/p' out | grep 'parallel.chunks=2' | head -n 1)
said=$(sed -nE 's/^ *([0-9.]+ [a-z]+) .*parallel.chunks=2.*/\1/p' out | head -n 1)
[ -n "$said" ] || fail "no layout has chunks"
grpo 0 $stages "$@"
grep -q "predicted $said an iteration" out || fail "the plan of $* does not take $said"

# Nothing fits in so little; and an own layout that does not, where others do.
grpo 3 --budget 4KiB --explore
grep -q 'neither the graph as it is nor any of its layouts fits' err || fail "nothing is said"
