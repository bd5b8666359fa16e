#!/bin/sh
# Two hosts with a wire of limited rate between them: what the planner chooses, and what each choice takes. Hosts are namespaces of this
# machine (tests/ranks/two_hosts.sh), with ranks of the CPU device; the wire is tc's tbf. For each rate: predicted and measured
# seconds of an iteration of every layout, and which one the planner takes. GR_HARDWARE: a calibration made before. Skips (77) where there are no namespaces, or no tbf.
# usage: bench_wire.sh GRAPHRUN [MBIT...]      0: as it is
set -eu
. "$(dirname "$0")/../ranks/two_hosts.sh"
enter_hosts "$@"
gr=$1
shift
rates=${*:-0 40}
TMPDIR=/tmp
set -- "$gr"
export GRAPHRUN_SILENCE="${GRAPHRUN_SILENCE:-120}" # many ranks share few cores
. "$(dirname "$0")/../e2e/lib.sh"
taskset -cp "$cores" $$ >/dev/null # lib.sh is for tests: this takes all of them
make_hosts
at_a() { nsenter -t "$(cat a.pid)" --net "$@"; }
at_b() { nsenter -t "$(cat b.pid)" --net "$@"; }
at_a tc qdisc add dev eth-a root tbf rate 1gbit burst 64kb latency 400ms 2>/dev/null || { echo "skipped: this kernel has no tbf" >&2; exit 77; }
at_a tc qdisc del dev eth-a root

cat >bench.json <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
 "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-06,
 "rope_theta": 10000.0, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false,
 "initializer_range": 0.02, "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "float32"}
END
"$gr" init --config bench.json --tokenizer "$project/graphs/quickstart" --seed 1 -o bench >/dev/null
graph() { # NAME SEQUENCES TOKENS: of these many tokens each
    i=0
    while [ $i -lt 64 ]; do
        printf '{"question": "%d+%d=", "answer": "%s"}\n' $((i % 10)) $((i / 10)) "$(seq $i $((i + 400)) | tr -d '\n' | cut -c "1-$(($3 - 1))")"
        i=$((i + 1))
    done >$1.jsonl
    cat >$1.yaml <<END
graph: $1
models:
  actor: {checkpoint: bench, train: {lr: 1.0e-5}}
nodes:
  docs: {op: sequences, file: $1.jsonl, shuffle: false, batch: $2, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: $3}
  before: {op: logprob, model: actor, of: docs}
  update: {op: update, model: actor, of: docs, micro_tokens: 512, loss: "-token_mean(logprob) + 0 * token_mean(before)"}
run: {steps: 4, seed: 1}
END
}
graph shards 16 120 # four ranks: state in shards over all of them, or over each host's
graph one 1 500     # two ranks, one a host, and one sequence for both
[ -e "${GR_HARDWARE:-}" ] || "$gr" calibrate --device cpu -o here.json >calibrated.txt 2>&1 || fail "$(cat calibrated.txt)"
[ ! -e "${GR_HARDWARE:-}" ] || cp "$GR_HARDWARE" here.json

limit() { # MBIT: 0: none
    at_a tc qdisc del dev eth-a root 2>/dev/null || :
    at_b tc qdisc del dev eth-b root 2>/dev/null || :
    [ "$1" = 0 ] && return 0
    at_a tc qdisc add dev eth-a root tbf rate "$1"mbit burst 64kb latency 400ms
    at_b tc qdisc add dev eth-b root tbf rate "$1"mbit burst 64kb latency 400ms
}
predicted() { sed -nE 's/.*predicted ([0-9.]+ m?s) an.*/\1/p' out; }
measured() { # NAME: the least of all iterations of its rounds but each round's first
    sort -g "$1.seconds" | head -n 1
}

# compare RATE NAME HOSTS LAYOUT... : rounds of all layouts, one after another, so that what else this machine does is shared
compare() {
    rate=$1 name=$2 hosts=$3 slots=$4
    shift 4
    for round in $(seq "${GR_ROUNDS:-2}"); do
        for layout in "$@"; do
            status 0 across --host "a:$slots,b:$slots" -n $((2 * slots)) "$gr" exec $name.yaml --hardware "$work/wire.json" --set "models.actor.$layout" \
                --steps 3 --out run
            sed -nE 's/.*"seconds": ([0-9.e-]+).*/\1/p' run/metrics.jsonl | tail -n +2 >>"$layout.seconds"
            rm -r run
        done
    done
    for layout in "$@"; do
        status 0 "$gr" plan $name.yaml --hardware wire.json --ranks "$hosts" --set "models.actor.$layout"
        echo "$rate Mbit/s, $name, $layout: predicted $(predicted), measured $(measured "$layout") s"
        rm "$layout.seconds"
    done
}
for rate in $rates; do
    # Ranks of a host share the wire; where it is as it is, hosts are taken for one: it is this machine's memory.
    sed -E "s/\"network\": [0-9.e+]+/\"network\": $((rate ? rate * 62500 : 4000000000))/; s/\"devices\": [0-9]+/\"devices\": 2/" here.json >wire.json
    limit "$rate"
    compare "$rate" shards 2x2 2 shard=all shard=node
    status 0 "$gr" plan shards.yaml --hardware wire.json --ranks 2x2 --format json
    echo "$rate Mbit/s, shards: the planner takes shard=$(grep -q '"name": "shards", "value": 2' out && echo node || echo all)"
    sed -i -E "s/\"network\": [0-9.e+]+/\"network\": $((rate ? rate * 125000 : 4000000000))/; s/\"devices\": [0-9]+/\"devices\": 1/" wire.json
    compare "$rate" one 2x1 1 parallel.context=1 parallel.context=2 parallel.pipeline=2
    status 0 "$gr" plan one.yaml --hardware wire.json --ranks 2x1 --set models.actor.parallel=auto
    echo "$rate Mbit/s, one: the planner takes $(sed -nE 's/.*the fastest is chosen: (.*)/\1/p' err)"
done
