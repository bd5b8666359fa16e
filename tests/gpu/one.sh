# Sourced by tests of one CUDA device that use the tiny graphs of tests/e2e/lib.sh. Skips (77) where there is no device.
# usage of a test: NAME.sh GRAPHRUN
probe=$("$1" plan --device cuda /dev/null 2>&1 || :)
case $probe in *"CUDA device"* | *"has no device"*) echo "$probe"; echo "skipped"; exit 77 ;; esac
. "$(dirname "$0")/../e2e/lib.sh"

# small_model NAME: heads as wide as kernels on the device want them at least
small_model() {
    config small.json qwen3 64 false false
    sed -i 's/"head_dim": 16/"head_dim": 32/' small.json
    "$gr" init --config small.json --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1" >/dev/null
}

# long_responses TOKENS SED...: long.yaml, grpo.yaml with prompts of 90 tokens and responses of so many, which logs gaps of log-probs
long_responses() {
    tokens=$1
    shift
    sed -e "s/max_tokens: 6/max_tokens: $tokens, stop: [\"3\", \"+1\"]/" -e 's/run: .*/run: {steps: 4, seed: 7, samples: 32}/' \
        -e 's/max_tokens: 8, template: "{question}"/max_tokens: 90, template: "1+2=3+4=5+6=7+8=1+2=3+4=5+6=7+8=1+2=3+4=5+6=7+8=1+2=3+4=5+6=7+8={question}"/' \
        "$@" grpo.yaml >long.yaml
    cat >>long.yaml <<'END'
log:
  worst: token_max(abs(old_logprob - rollout.logprob))
  gap: token_mean(abs(old_logprob - rollout.logprob))
END
}

train() { # OUT OPTIONS...: of long.yaml, or of $from
    out=$1
    shift
    status 0 "$gr" exec --device cuda "${from:-long.yaml}" --out "$out" "$@"
}

same_bits() { # RUN RUN
    same_weights "$1" "$2"
    same_metrics "$1" "$2"
    cmp "$1/samples.jsonl" "$2/samples.jsonl" || fail "samples of $1 and $2 differ"
    echo "$2: the same bits as $1"
}
