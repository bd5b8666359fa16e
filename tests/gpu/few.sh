#!/bin/sh
# Few sequences at once of a model of Qwen3-0.6B's shape, whose decode steps have products of their own: what they say repeats to the
# bit, also where tokens are drafted, and its log-probs are those of the pass over whole rows as nearly as those of many sequences are.
# Skips (77) where there is no device.
# usage: few.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
failed=0
mkdir "$work/large"
cat >"$work/large/config.json" <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
 "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
 "tie_word_embeddings": true, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
 "hidden_act": "silu", "attention_bias": false, "initializer_range": 0.02, "eos_token_id": 1, "pad_token_id": 2,
 "torch_dtype": "bfloat16"}
END
awk 'BEGIN {printf "{\"model_max_length\": 4096, \"char_ords\": [97"; for (i = 98; i < 123; i++) printf ", %d", i
            printf "]}\n"}' >"$work/large/tokenizer_config.json"
awk 'BEGIN {srand(1); for (i = 0; i < 8; i++) {printf "{\"answer\": \"%d\", \"text\": \"", i; n = 1 + int(300 * rand())
            while (n--) printf "%c", 97 + int(26 * rand()); printf "\"}\n"}}' >"$work/prompts.jsonl"
sed 's/{op: generate,/{op: generate, speculate: {always: true, tokens: 3, match: 1, from: group},/' tests/bench/gpu/grpo.yaml >"$work/drafts.yaml"
grep -q speculate "$work/drafts.yaml" || { echo "no rollout to draft in"; exit 1; }
value() { # NAME RUN
    grep -o "\"$1\": [^,}]*" "$work/$2/metrics.jsonl" | sed 's/.*: //' | tail -1
}
run() { # OUT GRAPH OPTIONS...
    out=$work/$1
    graph=$2
    shift 2
    "$gr" exec "$graph" --device cuda --out "$out" --set run.samples=32 \
        --set model="$work/large/config.json" --set data="$work/prompts.jsonl" --set prompts=4 --set prompt_tokens=300 \
        --set response_tokens=60 --steps 1 "$@" >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
}
for few in 1 5 8 13 32; do
    for graph in tests/bench/gpu/grpo.yaml "$work/drafts.yaml"; do
        name=$few-$(basename "$graph" .yaml)
        [ "$name" != 32-drafts ] || continue
        run "$name" "$graph" --set nodes.rollout.concurrent=$few
        run "$name-again" "$graph" --set nodes.rollout.concurrent=$few
        same=same
        cmp "$work/$name/samples.jsonl" "$work/$name-again/samples.jsonl" || same=differ
        echo "$name: samples $same, off by $(value gap "$name") on average, $(value logprob_gap_max "$name") at most, $(value seconds.rollout \
            "$name-again") s"
        [ $same = same ] || failed=1
        awk -v off="$(value gap "$name")" 'BEGIN { exit !(off > 0 && off < 0.01) }' || failed=1
    done
done
exit $failed
