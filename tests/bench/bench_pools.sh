#!/bin/sh
# One graph on two ranks of this machine, a core each: both ranks doing the same, or one generating and asking the
# reference while the other trains, with and without lag; the files differ in their pools alone. A row of Markdown each with
# predicted and measured seconds of an iteration (the median, the first two left out), and what the plans say is fastest
# beside what was. In each round one core is calibrated anew, then all are planned and run. Random model; every response is
# of the longest. HARDWARE=FILE: what one core was calibrated to be, instead of anew.
# usage: bench_pools.sh GRAPHRUN [ROUNDS [ITERATIONS]]   (GRAPHRUN_MPI=... where it was built; a machine that does nothing else)
set -eu
gr=$(realpath "$1")
rounds=${2:-2}
steps=${3:-6}
HARDWARE=${HARDWARE:+$(realpath "$HARDWARE")}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cores=$(taskset -cp $$ | sed 's/.*: //')
core=${cores%%[-,]*} other=${cores##*[-,]} # a rank each: the system would now and then put both on one
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

mkdir tokenizer
echo '{"char_ords": [48, 49, 50, 51, 52, 53, 54, 55, 56, 57], "model_max_length": 2048}' >tokenizer/tokenizer_config.json
cat >model.json <<'END'
{"model_type": "llama", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
 "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "hidden_act": "silu", "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2,
 "tie_word_embeddings": true}
END
"$gr" init --config model.json --tokenizer tokenizer --seed 1 -o model >/dev/null
awk 'BEGIN {
    for (i = 0; i < 512; i++) {
        q = ""
        for (k = 0; k < 32; k++) q = q (i * 7 + k * k) % 10
        printf "{\"question\": \"%s\", \"answer\": \"%d\"}\n", q, i % 10
    }
}' >prompts.jsonl

graph() { # FILE POOLS
    cat >"$1" <<END
graph: pools
params: {lag: 0, tokens: 32}
pools: {$2}
models:
  actor: {checkpoint: model, train: {lr: 1.0e-5, grad_clip: 1.0}, pool: train}
  ref: {checkpoint: model, pool: reference}
nodes:
  prompts: {op: prompts, file: prompts.jsonl, batch: 8, max_tokens: 32, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 8, max_tokens: \$tokens, ignore_eos: true, pool: rollout, lag: \$lag}
  reward: {op: reward, of: rollout, answer: prompts.answer, rule: exact}
  ref_logprob: {op: logprob, model: ref, of: rollout}
  old_logprob: {op: logprob, model: actor, of: rollout}
  advantage: {op: compute, expr: reward - group_mean(reward) + 0.1}
  update:
    op: update
    model: actor
    of: rollout
    loss: |
      ratio = exp(logprob - old_logprob)
      kl = exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2)) + 0.01 * kl)
run: {steps: 100, seed: 1, checkpoint: {last: false}}
END
}
graph colocated.yaml "train: {share: 1}, rollout: {with: train}, reference: {with: train}"
graph split.yaml "train: {share: 1}, rollout: {share: 1}, reference: {with: rollout}"

one() { # PLACEMENT LAG TOKENS
    placement=$1 row=$1-$2-$3
    set -- --hardware hardware.json --ranks 2 --set "lag=$2" --set "tokens=$3"
    "$gr" plan $placement.yaml "$@" --format json | grep -o '"fits": true, "seconds": *[0-9.e+-]*' | head -1 | sed 's/.*: *//' >>predicted.$row
    rm -rf run
    set -- "$gr" exec $placement.yaml "$@" --steps "$steps" --out run
    mpirun --bind-to none -n 1 taskset -c "$core" "$@" : -n 1 taskset -c "$other" "$@" >run.out
    sed -nE '3,$s/.*"seconds": *([0-9.e+-]+).*/\1/p' run/metrics.jsonl >>measured.$row
}

median() { # FILE
    sort -g "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}

while [ $rounds -gt 0 ]; do
    rounds=$((rounds - 1))
    if [ -n "${HARDWARE-}" ]; then
        cp "$HARDWARE" hardware.json
    else
        taskset -c "$core" "$gr" calibrate -o hardware.json >/dev/null
    fi
    for tokens in 32 128; do
        for lag in 0 1; do
            for placement in colocated split; do one $placement $lag $tokens; done
        done
    done
done
for tokens in 32 128; do
    echo "| 8 x 8 of 32 + $tokens tokens | lag | predicted s | median s | predicted against median |"
    echo "|---|---|---|---|---|"
    for lag in 0 1; do
        for placement in colocated split; do
            row=$placement-$lag-$tokens
            echo "$placement $lag $(median predicted.$row) $(median measured.$row)"
        done
    done | awk '
        { printf "| %s | %s | %.3f | %.3f | %+.0f %% |\n", $1, $2, $3, $4, 100 * ($3 / $4 - 1); p[$1, $2] = $3; m[$1, $2] = $4 }
        END {
            for (lag = 0; lag < 2; lag++)
                printf "lag %d: split takes %.2f times as long as colocated as planned, %.2f as measured: the plan is %s\n", lag,
                    p["split", lag] / p["colocated", lag], m["split", lag] / m["colocated", lag],
                    (p["split", lag] > p["colocated", lag]) == (m["split", lag] > m["colocated", lag]) ? "right" : "wrong"
        }'
    echo
done
