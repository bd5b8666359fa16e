#!/bin/sh
# Conversations on a CUDA device, where decode steps go by chunks and answers are read beside prompts. With `strict: true`
# the gap between rollout and update is exactly 0, so the keys kept over turns are those of one pass, and neither when
# answers come nor the number of slots or blocks changes a sample or a weight. Without it the gap is as small as that of one
# turn. Then 256 conversations of four turns with a model of Qwen3-0.6B's shape, beside as many tokens of one turn: what is
# printed is for people. Skips (77) where there is no device.
# usage: turns.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
failed=0
fail() {
    echo "$*: FAIL"
    failed=1
}

cat >"$work/turns.yaml" <<'END'
graph: turns
params: {model: model, data: train.jsonl, way: "", prompts: 64, prompt_tokens: 8, max_tokens: 5, turns: 4, context: 60, samples: 8}
models:
  actor: {checkpoint: $model, train: {optimizer: adamw, lr: 1.0e-3, grad_clip: 1.0}}
nodes:
  prompts: {op: prompts, file: $data, batch: $prompts, max_tokens: $prompt_tokens, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, temperature: 1.0, max_tokens: $max_tokens, stop: ["5", "7", "9"], turns: $turns, max_context: $context, environment: {command: $way, workers: 4, timeout: 30s, metrics: [calls]}}
  reward: {op: reward, of: rollout, from: environment}
  old_logprob: {op: logprob, model: actor, of: rollout}
  advantage: {op: compute, expr: (reward - group_mean(reward)) / (group_std(reward) + 1e-6)}
  update: {op: update, model: actor, of: rollout, loss: "token_mean(-advantage * exp(logprob - old_logprob))"}
log: {turns: batch_mean(rollout.turns)}
run: {steps: 5, seed: 1, samples: 64, checkpoint: {every: 5}}
END
run() { # OUT OPTIONS...
    out=$work/$1
    shift
    "$gr" exec "$work/turns.yaml" --device cuda --out "$out" --set model="$work/model" --set data="$work/train.jsonl" "$@" \
        >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
}
values() { # NAME RUN: of all iterations
    grep -o "\"$1\": [^,}]*" "$work/$2/metrics.jsonl" | sed 's/.*: //' | tr '\n' ' '
}
same() { # RUN RUN
    cmp "$work/$1/samples.jsonl" "$work/$2/samples.jsonl" || fail "the conversations of $1 and $2 differ"
    cmp "$work/$1/checkpoints/step-5/actor/model.safetensors" "$work/$2/checkpoints/step-5/actor/model.safetensors" ||
        fail "the weights of $1 and $2 differ"
}
said="perl tests/e2e/say.pl"
run strict --set strict=true --set way="$said"
[ "$(values logprob_gap_max strict)" = "0 0 0 0 0 " ] || fail "strict: gaps of $(values logprob_gap_max strict)"
grep -q '"by": "environment"' "$work/strict/samples.jsonl" || fail "nobody answered"
echo "strict: turns of $(values turns strict)"
run slow --set strict=true --set way="$said slow"
same strict slow
run few --set strict=true --set way="$said" --set nodes.rollout.concurrent=37
same strict few
run blocks --set strict=true --set way="$said slow" --set nodes.rollout.kv_blocks=41
same strict blocks
rm -f died
run die --set strict=true --set way="$said die"
rm -f died
same strict die
for loose in fast slow; do # a slot that waits takes no part in a chunk, whatever its neighbours of the same prompt do
    for slots in 512 37 8; do
        run "loose-$loose-$slots" --set way="$said $loose" --set nodes.rollout.concurrent=$slots
        gaps=$(values logprob_gap_max "loose-$loose-$slots")
        echo "not strict, $loose, $slots slots: gaps of $gaps"
        for gap in $gaps; do awk -v gap="$gap" 'BEGIN { exit !(gap + 0 < 0.2 && gap ~ /^[0-9]/) }' || fail "a gap of $gap"; done
    done
done
# 256 conversations of 4 turns of 128 tokens on average, until one of eight pairs of letters; an answer takes 50 ms. (A
# small vocabulary, so that random weights write letters.)
mkdir "$work/large"
cat >"$work/large/config.json" <<'END'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
 "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32,
 "tie_word_embeddings": true, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
 "hidden_act": "silu", "attention_bias": false, "initializer_range": 0.02, "eos_token_id": 1, "pad_token_id": 2,
 "torch_dtype": "bfloat16"}
END
awk 'BEGIN {printf "{\"model_max_length\": 4096, \"char_ords\": [97"; for (i = 98; i < 123; i++) printf ", %d", i
            printf "]}\n"}' >"$work/large/tokenizer_config.json"
awk 'BEGIN {for (i = 0; i < 512; i++) {printf "{\"question\": \""; for (j = 0; j < 100; j++) printf "%c", 97 + (i * 7 + j * 3) % 26
            printf "\"}\n"}}' >"$work/prompts.jsonl"
# It holds each answer back for 50 ms, of all conversations at once.
cat >"$work/late.pl" <<'END'
use strict; use Time::HiRes qw(time); $| = 1;
my (@late, $in);
while (1) {
    my $r = ""; vec($r, 0, 1) = 1;
    my $wait = @late ? $late[0][0] - time : undef;
    if (!defined($wait) || $wait > 0 ? select($r, undef, undef, $wait) : 0) {
        sysread(STDIN, $in, 1 << 20, length($in // "")) or exit;
        while ($in =~ s/^([^\n]*)\n//) {
            my $line = $1;
            next if $line =~ /"type":"end"/;
            my ($id) = $line =~ /"id":(\d+)/;
            push @late, [time + 0.05, $line =~ /"start"/ ? "{\"id\":$id}\n" : "{\"id\":$id,\"text\":\"ok\"}\n"];
        }
    }
    print shift(@late)->[1] while @late && $late[0][0] <= time;
}
END
large() { # OUT OPTIONS...
    name=$1
    shift
    run "$name" --set model="$work/large/config.json" --set data="$work/prompts.jsonl" --set prompts=256 --set samples=1 \
        --set prompt_tokens=100 --set 'nodes.rollout.stop_ids=[31]' --set run.steps=2 --set max_tokens=512 "$@"
    echo "$name: seconds of the rollout $(values seconds.rollout "$name"), tokens a sequence $(values response_tokens_mean "$name"), turns $(values turns "$name")"
}
large four --set turns=4 --set context=2500 --set way="perl $work/late.pl" \
    --set 'nodes.rollout.stop=["aq", "bx", "cv", "dj", "ez", "fk", "gy", "hw"]'
large one --set turns=1 --set context=612 --set way="perl $work/late.pl" --set 'nodes.rollout.stop=["~"]'
exit $failed
