#!/bin/sh
# How fast conversations are beside responses of one turn that have the same numbers of tokens. 256 at once, of a model of Qwen3-0.6B's shape
# that counts (counting.pl): the prompt, and each answer of the environment, says how long the next turn is. Three pairs: 256
# conversations of four turns of 128 tokens beside 256 responses of 512; 512 of each; and 512 conversations with turns of 2 to 400 tokens, 128
# on average, beside responses that are each as long as one of these conversations, which a server scores, 50 ms for each. The environment takes 0 or 50 ms
# for each answer. All in one iteration of one graph without training; the second iteration counts. What is printed is for people: of each
# node its tokens, seconds, tokens a second, steps, the conversations that sample in a step, and the slots that it computes; then, of
# its device time, what decode steps, the reading of prompts and answers, and the rest took (trace.json). Exits with 1 where the conversations of an
# environment of 50 ms have less than 0.8 of the rate of one turn. Skips (77) where there is no device.
# usage: turns_rate.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
here=$PWD/tests/e2e counting=$PWD/tests/gpu/counting.pl
vocab=${TURNS_VOCAB:-1728} hidden=${TURNS_HIDDEN:-1024} layers=${TURNS_LAYERS:-28} device=${TURNS_DEVICE:-cuda}
mkdir "$work/tokens"
cat >"$work/config.json" <<END
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": $hidden, "intermediate_size": $((3 * hidden)),
 "num_hidden_layers": $layers, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": $((hidden / 8)), "vocab_size": $vocab,
 "tie_word_embeddings": false, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
 "hidden_act": "silu", "attention_bias": false, "initializer_range": 0.02, "eos_token_id": 1, "pad_token_id": 2,
 "torch_dtype": "bfloat16"}
END
perl -e 'print "{\"model_max_length\": 4096, \"char_ords\": [", join(", ", map { 0x4e00 + $_ } 0 .. $ARGV[0] - 5), "]}\n"' "$vocab" >"$work/tokens/tokenizer_config.json"
"$gr" init --config "$work/config.json" --tokenizer "$work/tokens" --seed 1 -o "$work/large" >/dev/null
perl "$counting" "$work/large" "$vocab" "$hidden"
# Of each record: a prompt of 100 characters for four turns, whose others are in `next`; and one for as many tokens in one turn.
perl -e 'use strict; my ($vocab, $dir) = @ARGV; my $x = 1; binmode STDOUT;
sub draw { $x = ($x * 1103515245 + 12345) % 2147483648; $x / 2147483648 }
sub of { my $c = 0x4e00 + $vocab - 4 - shift; utf8::encode(my $s = chr $c); $s } # begins a turn of so many tokens
sub out { my ($name, @turns) = @_; my $sum = 0; $sum += $_ for @turns;
    open my $many, ">>", "$dir/$name.jsonl" or die; open my $one, ">>", "$dir/$name-one.jsonl" or die; my $fill = of(7) x 99;
    printf $many "{\"question\": \"%s%s\", \"next\": \"%s\"}\n", $fill, of($turns[0]), join("", map { of($_) } @turns[1 .. 3]);
    printf $one "{\"question\": \"%s%s\"}\n", $fill, of($sum) }
for my $i (0 .. 511) {
    out("even", (128) x 4);
    out("uneven", map { my $n = 2 + int(-126 * log(1 - draw())); $n > 400 ? 400 : $n } 1 .. 4);
}' "$vocab" "$work"
# It holds each answer back for so many seconds, of all conversations at once.
cat >"$work/late.pl" <<'END'
use strict; use Time::HiRes qw(time); $| = 1;
my $delay = shift;
my (@late, $in, %next);
sub answer {
    my $line = shift;
    my ($id) = $line =~ /"id":\s*(\d+)/;
    if ($line =~ /"start"/) {
        ($next{$id}) = $line =~ /"next":\s*"([^"]*)"/;
        return "{\"id\":$id}\n";
    }
    return $next{$id} =~ s/^(...)// ? "{\"id\":$id,\"text\":\"$1\"}\n" : "{\"id\":$id,\"done\":true}\n"; # three bytes a character
}
while (1) {
    my $r = ""; vec($r, 0, 1) = 1;
    my $wait = @late ? $late[0][0] - time : undef;
    if (!defined($wait) || $wait > 0 ? select($r, undef, undef, $wait) : 0) {
        sysread(STDIN, $in, 1 << 20, length($in // "")) or exit;
        while ($in =~ s/^([^\n]*)\n//) {
            my $line = $1;
            push @late, [time + $delay, answer($line)] if $line !~ /"type":\s*"end"/;
        }
    }
    my $out = "";
    $out .= (shift @late)->[1] while @late && $late[0][0] <= time;
    syswrite(STDOUT, $out) if length $out;
}
END
rows=${TURNS_ROWS:-512}
node() { # NAME PROMPTS TOKENS [DELAY]
    printf '  %s: {op: generate, model: actor, prompts: %s, concurrent: %d, max_tokens: %d' "$1" "$2" "$((rows / 2))" "$3"
    [ -z "${4-}" ] || printf ', turns: 4, max_context: 1760, environment: {command: "perl %s/late.pl %s"}' "$work" "$4"
    echo "}"
}
prompts() { # NAME FILE ROWS
    echo "  $1: {op: prompts, file: $work/$2.jsonl, batch: $3, max_tokens: 100, template: \"{question}\", shuffle: false}"
}
{
    echo "graph: rate"
    echo "models: {actor: {checkpoint: $work/large}}"
    echo "nodes:"
    prompts few even $((rows / 2))
    prompts few_one even-one $((rows / 2))
    prompts even even "$rows"
    prompts even_prompts even-one "$rows"
    prompts uneven uneven "$rows"
    prompts uneven_prompts uneven-one "$rows"
    node few_0 few 400 0
    node few_50 few 400 0.05
    node few_turn few_one 1640
    node even_0 even 400 0
    node even_50 even 400 0.05
    node even_turn even_prompts 1640
    node uneven_0 uneven 400 0
    node uneven_50 uneven 400 0.05
    node uneven_turn uneven_prompts 1640
    echo SCORED
    echo "log:"
    for node in few_0 few_50 few_turn even_0 even_50 even_turn uneven_0 uneven_50 uneven_turn; do echo "  tokens_$node: batch_sum($node.length)"; done
    echo "run: {steps: 2, seed: 1, samples: 0, checkpoint: {last: false}}"
} >"$work/rate.yaml"
score=
if [ -x "$(dirname "$gr")/graphrun-http" ] && perl -MIO::Socket::INET -e 1 2>/dev/null; then
    (cd "$work" && exec perl "$here/server.pl") &
    server=$!
    trap 'kill $server 2>/dev/null || :; rm -rf "$work"' EXIT
    until [ -s "$work/PORT" ]; do sleep 0.05; done
    score="  reward: {op: reward, of: uneven_turn, http: \"http://127.0.0.1:$(cat "$work/PORT")/late\", in_flight: 128}\n  paid: {op: compute, expr: reward, metrics: {mean: batch_mean(reward)}}"
fi
sed -i "s|^SCORED$|$score|" "$work/rate.yaml"
"$gr" exec "$work/rate.yaml" --device "$device" --out "$work/run" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
perl -e 'use strict; my ($dir, $device) = @ARGV; my (%m, %took, $failed);
open my $f, "<", "$dir/metrics.jsonl" or die; while (<$f>) { next unless /^\{"step": 2,/; $m{$1} = $2 while /"([^"]+)": ([^,}]+)/g }
open $f, "<", "$dir/trace.json" or die;
my (@event, $begin); while (<$f>) { # of the second iteration alone
    next unless /"name": ?"([^"]+)".*"ts": ?([\d.]+).*"dur": ?([\d.]+)/; push @event, [$1, $2, $3]; $begin = $2 if $1 eq "iteration 2" }
for (@event) { my ($name, $ts, $dur) = @$_; $took{$1}{$2} += $dur / 1e6 if $ts >= $begin && $name =~ /^(\w+)\.(plan|prefill|decode|begin|embed|layer|sample)\b/ }
sub rate { $m{"tokens_$_[0]"} / $m{"seconds.$_[0]"} }
for my $kind ("few", "even", "uneven") {
    for my $n ("${kind}_turn", "${kind}_0", "${kind}_50") {
        printf "%-12s %6d tokens %6.3f s %6.0f/s", $n, $m{"tokens_$n"}, $m{"seconds.$n"}, rate($n);
        printf "; steps %d of %.1f, width %.1f; read %d; stalled %.3f s, an answer %.4f s", map { $m{$_} } "$n.decode_steps", "$n.decode_batch", "$n.decode_width", "$n.read_tokens", "seconds.$n.stalled", "seconds.$n.answer" if defined $m{"$n.decode_steps"};
        printf "; device: %s\n", join ", ", map { sprintf "%s %.3f", $_, $took{$n}{$_} } sort keys %{$took{$n}};
    }
    my $ratio = rate("${kind}_50") / rate("${kind}_turn");
    printf "%s: %.3f of the rate of one turn (%.3f with answers at once)\n", $kind, $ratio, rate("${kind}_0") / rate("${kind}_turn");
    $failed = 1 if $ratio < 0.8 && $device eq "cuda";
}
printf "the scores of 50 ms took %s s behind the rollout\n", $m{"seconds.reward"} // "no";
exit($failed ? 1 : 0)' "$work/run" "$device"
