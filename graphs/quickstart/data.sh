#!/bin/sh
# Additions as JSONL: DIR/warmup.jsonl (examples to imitate), DIR/train.jsonl (questions with answers).
# The same files everywhere: the numbers come from a multiplicative generator, not from awk's own.
set -eu
dir=${1:?usage: data.sh DIR}
make() {
    awk -v n="$1" -v seed="$2" 'BEGIN {
        x = seed
        for (i = 0; i < n; i++) {
            x = (x * 16807) % 2147483647; a = int(x / 1000) % 100
            x = (x * 16807) % 2147483647; b = int(x / 1000) % 100
            printf "{\"question\": \"%d+%d=\", \"answer\": \"%d\"}\n", a, b, a + b
        }
    }'
}
make 4000 12345 >"$dir/warmup.jsonl"
make 8000 54321 >"$dir/train.jsonl"
