#!/bin/sh
# How fast conversations are: 256 at once, of four turns of 128 tokens on average, whose environment takes 50 ms for each answer;
# beside them responses of one turn: all of 512 tokens, and some of lengths that differ as much as those of conversations, which a
# server scores, 50 ms for each. 512 of each, so that a slot which is free is filled again. All in one iteration of one graph without training, with a model of Qwen3-0.6B's shape and
# random weights; the second iteration counts. What is printed is for people: tokens, seconds, tokens a second, and how long the
# scores took behind the rollout. Skips (77) where there is no device.
# usage: turns_rate.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
here=$PWD/tests/e2e
# A small vocabulary, so that random weights write letters; a turn ends at one of eight pairs of them, after 128 on average.
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
# It holds each answer back for so many seconds, of all conversations at once.
cat >"$work/late.pl" <<'END'
use strict; use Time::HiRes qw(time); $| = 1;
my $delay = shift;
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
            push @late, [time + $delay, $line =~ /"start"/ ? "{\"id\":$id}\n" : "{\"id\":$id,\"text\":\"ok\"}\n"];
        }
    }
    print shift(@late)->[1] while @late && $late[0][0] <= time;
}
END
cat >"$work/rate.yaml" <<END
graph: rate
models: {actor: {checkpoint: $work/large/config.json}}
nodes:
  prompts: {op: prompts, file: $work/prompts.jsonl, batch: 512, max_tokens: 100, template: "{question}"}
  late: {op: generate, model: actor, prompts: prompts, concurrent: 256, max_tokens: 1024, ignore_eos: true, turns: 4, max_context: 3000, stop: [aq, bx, cv, dj, ez, fk, gy, hw], environment: {command: "perl $work/late.pl 0.05"}}
  one: {op: generate, model: actor, prompts: prompts, concurrent: 256, max_tokens: 512, ignore_eos: true}
  scored: {op: generate, model: actor, prompts: prompts, concurrent: 256, max_tokens: 2048, ignore_eos: true, stop: [aq, bx]}
SCORED
log:
  late_tokens: batch_sum(late.length)
  late_turns: batch_mean(late.turns)
  one_tokens: batch_sum(one.length)
  scored_tokens: batch_sum(scored.length)
run: {steps: 2, seed: 1, samples: 0, checkpoint: {last: false}}
END
score=
if [ -x "$(dirname "$gr")/graphrun-http" ] && perl -MIO::Socket::INET -e 1 2>/dev/null; then
    (cd "$work" && exec perl "$here/server.pl") &
    server=$!
    trap 'kill $server 2>/dev/null || :; rm -rf "$work"' EXIT
    until [ -s "$work/PORT" ]; do sleep 0.05; done
    score="  reward: {op: reward, of: scored, http: \"http://127.0.0.1:$(cat "$work/PORT")/late\", in_flight: 128}\n  paid: {op: compute, expr: reward, metrics: {mean: batch_mean(reward)}}"
fi
sed -i "s|^SCORED$|$score|" "$work/rate.yaml"
"$gr" exec "$work/rate.yaml" --device cuda --out "$work/run" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
of() { # NAME: of the second iteration
    sed -nE "s/^\{\"step\": 2, (.*, )?\"$1\": ([^,}]*).*/\2/p" "$work/run/metrics.jsonl"
}
for node in late one scored; do
    echo "$node: $(of ${node}_tokens) tokens in $(of seconds.$node) s, $(awk -v n="$(of ${node}_tokens)" -v s="$(of seconds.$node)" 'BEGIN { printf "%.0f", n / s }') a second"
done
echo "late: $(of late_turns) turns; the 512 scores of 50 ms took $(of seconds.reward) s behind the rollout of 'scored'"
