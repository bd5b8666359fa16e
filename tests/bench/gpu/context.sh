#!/bin/sh
# The update of a 1.7B model with random weights on one long sequence: on one CUDA device, and with the sequence over
# two, or over as many as are given. Prints the seconds of the last iteration, tokens a second and peaks.
# Of `longest`: the longest sequence, in steps of 4,096 tokens, whose plan fits on one device and on two with as much memory each, and
# one update of each. Fails where two do not take a sequence twice as long, or where a run takes more than its plan.
# usage: context.sh GRAPHRUN [TOKENS [DEVICES]...]
#        context.sh GRAPHRUN longest [BUDGET HOST_BUDGET [HARDWARE]]   (of one device each; with HARDWARE, plans alone)
set -eu
gr=$(realpath "$1")
shift
project=$(realpath "$(dirname "$0")/../../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cp "$project"/graphs/quickstart/tokenizer* . 2>/dev/null || :
cat >config.json <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
 "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 1048576,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false,
 "tie_word_embeddings": true, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "bfloat16"}
END

of_length() { # TOKENS: the graph of sequences of so many, and their text
    half=$(($1 / 2))
    awk -v n="$half" 'BEGIN { for (r = 0; r < 4; r++) { q = a = ""; for (i = 0; i < n - 8; i++) { q = q (i * 7 + r) % 10; a = a (i * 3 + r) % 10 } print "{\"question\": \"" q "\", \"answer\": \"" a "\"}" } }' >long.jsonl
    cat >long.yaml <<END
graph: long
deterministic: false
models:
  actor: {checkpoint: config.json, train: {lr: 1.0e-6}}
nodes:
  docs: {op: sequences, file: long.jsonl, shuffle: false, batch: 1, prompt: "{question}", response: "{answer}", max_prompt_tokens: $half, max_tokens: $half}
  update: {op: update, model: actor, of: docs, loss: "-token_mean(logprob)"}
run: {steps: 2, seed: 1, checkpoint: {last: false}}
END
}
over() { # COMMAND RANKS [OPTION...]
    command=$1 ranks=$2
    shift 2
    "$gr" "$command" long.yaml --device cuda --ranks $ranks --set models.actor.parallel.context=$ranks "$@"
}
predict() { # RANKS [OPTION...]
    over plan "$@" 2>/dev/null | grep -E 'peak|predicted|recomputation:' | head -3
}
run() { # RANKS [OPTION...]
    over exec "$@" --out run-$1 >log 2>&1 || { tail -n 20 log; exit 1; }
    sed -nE 's/.*"step": [0-9]+, .*"loss": ([^,]*).*"grad_norm": ([^,]*).*"seconds": ([^,]*).*"planned_peak_bytes": ([^,]*), "measured_peak_bytes": ([^,]*).*/context '$1': loss \1, grad_norm \2, \3 s an iteration, peak \5 of \4 planned/p' run-$1/metrics.jsonl | tail -n 1
}
find_longest() { # RANKS OPTION...: prints the tokens; the step of 4,096 that fits is between `from` and `to`
    from=0 to=256
    while [ $((to - from)) -gt 1 ]; do
        tokens=$(((from + to) / 2 * 4096))
        if over plan "$@" --set nodes.docs.max_prompt_tokens=$((tokens / 2)) --set nodes.docs.max_tokens=$((tokens / 2)) >/dev/null 2>&1; then
            from=$((tokens / 4096))
        else
            to=$((tokens / 4096))
        fi
    done
    echo $((from * 4096))
}
run_within_plan() { # RANKS [OPTION...]
    line=$(run "$@") || { echo "$line"; exit 1; }
    echo "$line"
    echo "$line" | awk '{ for (i = 1; i < NF; i++) if ($i == "peak") fits = $(i + 1) > 0 && $(i + 1) + 0 <= $(i + 3) + 0 } END { exit !fits }' ||
        { echo "that is no run within its plan"; exit 1; }
}

if [ "${1:-}" = longest ]; then
    budget=${2:-16GiB} host=${3:-32GiB} hardware=${4:-}
    set -- --budget "$budget" --host-budget "$host" ${hardware:+--hardware "$hardware"}
    of_length 4096
    find_longest 2 "$@" >two &
    one=$(find_longest 1 "$@")
    wait
    two=$(cat two)
    echo "longest sequence with $budget, and $host of the host's memory: $one tokens on one device, $two on two"
    [ $one -gt 0 ] && [ $two -ge $((2 * one)) ] || { echo "that is not twice as long"; exit 1; }
    for ranks in 1 2; do
        of_length $([ $ranks = 1 ] && echo $one || echo $two)
        predict $ranks "$@"
        [ "$hardware" ] || run_within_plan $ranks "$@" --steps 1
    done
    exit
fi
of_length ${1:-131072}
[ $# -gt 1 ] && shift || set -- 1 2
for ranks; do
    predict $ranks
    run $ranks
done
