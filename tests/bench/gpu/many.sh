#!/bin/sh
# What four and eight GPUs are for, in one run and one table: meshes of training beside FSDP2 and beside what the planner chose and
# predicted, experts divided, Qwen3-32B with fp32 state, a 70B shape, sequences of 262,144 tokens, shards within halves of the
# GPUs, and the table of docs/PERFORMANCE.md for four GPUs once more. About 25 minutes on four. Parts that fail say so and the rest goes on.
# usage: many.sh BUILD GPUS OUT   (a release build with -Dcuda=enabled -Dbench=true; results.jsonl and table.md in OUT)
set -u
build=$(realpath "$1")
gpus=$2
mkdir -p "$3"
out=$(realpath "$3")
here=$(dirname "$(realpath "$0")")
bench() {
    python3 "$here/bench_ranks.py" --gpus "$gpus" --graphrun "$build/tools/graphrun" --programs "$build/tests" --out "$out" --host-budget 100GiB "$@"
}
bench --rows many --timeout 280
bench --rows table
"$here/context.sh" "$build/tools/graphrun" 262144 "$gpus" >"$out/context.txt" 2>&1 || echo "context.sh failed: $out/context.txt"
for test in mesh hybrid pools ranks tensor; do
    "$here/../../gpu/$test.sh" "$build/tools/graphrun" >"$out/$test.txt" 2>&1 || echo "$test.sh failed: $out/$test.txt"
done
python3 "$here/bench.py" --table "$out/results.jsonl" >"$out/table.md"
cat "$out/context.txt" "$out/table.md"
