#!/bin/sh
# Predicted and measured seconds of an iteration in 12 configurations, a row of Markdown each. A machine is not equally
# fast at all times, so that what is compared must come from the same time: each round calibrates the machine anew, plans
# all configurations with it, and runs each for a few iterations (the first is left out). Predicted is the mean over the
# rounds, measured the median over the iterations of all of them. Random models; prompts all of one length, every response
# of the longest.
# usage: bench_predict.sh GRAPHRUN [ROUNDS [ITERATIONS]]   (on a machine that does nothing else)
set -eu
gr=$(realpath "$1")
rounds=${2:-3}
steps=${3:-4}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

number() { # KEY: its first value in a plan
    grep -o "\"$1\": *[0-9.e+-]*" | head -1 | sed 's/.*: *//'
}

model() { # HIDDEN LAYERS VOCABULARY
    name=m$1-$2-$3
    [ ! -e $name ] || return 0
    mkdir tokenizer-$name
    heads=$(($1 / 32))
    [ $1 -lt 256 ] || heads=$(($1 / 64))
    cat >$name.json <<END
{"model_type": "llama", "vocab_size": $3, "hidden_size": $1, "intermediate_size": $((3 * $1)), "num_hidden_layers": $2,
 "num_attention_heads": $heads, "num_key_value_heads": $heads, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "hidden_act": "silu", "bos_token_id": null, "eos_token_id": 1, "pad_token_id": 2,
 "tie_word_embeddings": true}
END
    echo '{"char_ords": [48, 49, 50, 51, 52, 53, 54, 55, 56, 57], "model_max_length": 2048}' >tokenizer-$name/tokenizer_config.json
    "$gr" init --config $name.json --tokenizer tokenizer-$name --seed 1 -o $name >/dev/null
}

data() { # TOKENS
    [ -e p$1.jsonl ] || awk -v n="$1" 'BEGIN {
        for (i = 0; i < 512; i++) {
            q = ""
            for (k = 0; k < n; k++) q = q (i * 7 + k * k) % 10
            printf "{\"question\": \"%s\", \"answer\": \"%d\"}\n", q, i % 10
        }
    }' >p$1.jsonl
}

row() { # NUMBER WHAT MODEL [OPTION...]: plan and run graph.yaml
    row=$1
    echo "$1 | $2 | $3" >title.$1
    shift 3
    "$gr" plan graph.yaml --hardware hardware.json --format json "$@" | number seconds >>predicted.$row
    rm -rf run
    "$gr" exec graph.yaml --hardware hardware.json --steps $steps --out run "$@" >run.out
    sed -nE '2,$s/.*"seconds": *([0-9.e+-]+).*/\1/p' run/metrics.jsonl >>measured.$row
}

table() { # of all rounds
    echo "| | work | model, layers x hidden | predicted s | median s | fastest s | predicted against median |"
    echo "|---|---|---|---|---|---|---|"
    for row in 1 2 3 4 5 6 7 8 9 10 11 12; do
        sort -g measured.$row | awk -v title="$(cat title.$row)" '
            FNR == NR { predicted += $1; n++; next }
            { v[++m] = $1 }
            END {
                p = predicted / n
                median = (v[int((m + 1) / 2)] + v[int(m / 2) + 1]) / 2
                printf "| %s | %.3f | %.3f | %.3f | %+.0f %% |\n", title, p, median, v[1], 100 * (p / median - 1)
            }' predicted.$row -
    done
}

grpo() { # HIDDEN LAYERS VOCABULARY PROMPTS SAMPLES PROMPT-TOKENS RESPONSE-TOKENS [REFERENCE]
    model $1 $2 $3
    data $6
    what="GRPO, $4 x $5 of $6 + $7 tokens"
    shape="$2 x $1, vocabulary $3"
    kl=
    ref=
    if [ -n "${8:-}" ]; then
        what="$what, reference"
        kl=' + 0.01 * (exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1)'
        ref='
  ref_logprob: {op: logprob, model: ref, of: rollout}'
    fi
    cat >graph.yaml <<END
graph: predict
models:
  actor: {checkpoint: $name, train: {lr: 1.0e-5, grad_clip: 1.0}}
${8:+  ref: {checkpoint: $name\}}
nodes:
  prompts: {op: prompts, file: p$6.jsonl, batch: $4, max_tokens: $6, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: $5, max_tokens: $7, ignore_eos: true}
  reward: {op: reward, of: rollout, answer: prompts.answer, rule: exact}
  old_logprob: {op: logprob, model: actor, of: rollout}$ref
  advantage: {op: compute, expr: reward - group_mean(reward) + 0.1}
  update:
    op: update
    model: actor
    of: rollout
    loss: |
      ratio = exp(logprob - old_logprob)
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2))$kl)
run: {steps: 100, seed: 1}
END
}

sft() { # HIDDEN LAYERS VOCABULARY SEQUENCES TOKENS
    model $1 $2 $3
    data $5
    what="fine-tuning, $4 x $5 tokens"
    shape="$2 x $1, vocabulary $3"
    cat >graph.yaml <<END
graph: predict
models:
  actor: {checkpoint: $name, train: {lr: 1.0e-5, grad_clip: 1.0}}
nodes:
  examples: {op: sequences, file: p$5.jsonl, batch: $4, prompt: "1", response: "{question}", max_prompt_tokens: 1, max_tokens: $(($5 + 1))}
  update: {op: update, model: actor, of: examples, loss: "-token_mean(logprob)"}
run: {steps: 100, seed: 1}
END
}

half() { # half of what everything takes
    peak=$("$gr" plan graph.yaml --hardware hardware.json --format json | number peak_bytes)
    echo $((peak / 2))
}

round() {
    "$gr" calibrate -o hardware.json
    grpo 128 4 512 64 8 8 4; row 1 "$what" "$shape"
    grpo 128 4 512 16 8 32 32; row 2 "$what" "$shape"
    grpo 256 6 2048 8 8 64 32; row 3 "$what" "$shape"
    grpo 256 6 8192 8 8 32 64; row 4 "$what" "$shape"
    grpo 512 8 4096 4 8 64 32; row 5 "$what" "$shape"
    grpo 512 8 4096 8 4 256 16; row 6 "$what" "$shape"
    grpo 512 4 4096 4 8 32 16 yes; row 7 "$what" "$shape"
    grpo 768 8 8192 2 8 32 32; row 8 "$what" "$shape"
    grpo 1024 6 16384 2 4 32 16; row 9 "$what" "$shape"
    grpo 256 6 2048 8 8 64 32; row 10 "$what, half the memory" "$shape" --budget "$(half)"
    sft 512 8 4096 16 128; row 11 "$what" "$shape"
    sft 256 4 2048 32 256; row 12 "$what" "$shape"
}

while [ $rounds -gt 0 ]; do
    rounds=$((rounds - 1))
    round
done
table
