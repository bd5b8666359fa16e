#!/bin/sh
# usage: test_graphs.sh GRAPHRUN
# Every graph that is shipped checks without a word, plans with a small model put in, and its plan is proven.
set -eu
graphrun=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
status=0
for graph in graphs/*.yaml graphs/quickstart/warmup.yaml; do
    if ! "$graphrun" check "$graph" >"$dir/said" 2>&1 || [ -s "$dir/said" ] ||
        ! "$graphrun" plan "$graph" --set model="$PWD/tests/cli/model" --format json -o "$dir/plan.json" >"$dir/said" 2>&1 ||
        [ -s "$dir/said" ] || ! "$graphrun" verify "$dir/plan.json" >"$dir/said" 2>&1; then
        echo "$graph: failed:"
        cat "$dir/said"
        status=1
    fi
    head -n 1 "$graph" | grep -q '^# ' || { echo "$graph: no comment at its head"; status=1; }
done
exit $status
