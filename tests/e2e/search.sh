#!/bin/sh
# A small model learns to search a table: the answer stands two rows away from the question, and each record has a table of its
# own, so that nothing can be learned by heart. It has seen searches that find it, and more guesses. The short form takes a few
# steps.
. "$(dirname "$0")/lib.sh"
python3 -c 'import json' 2>/dev/null || { echo "left out: no python3"; exit 0; }
environment="python3 $project/graphs/environments/search.py"

mkdir tok
echo '{"char_ords": [97, 98, 99, 100, 101, 102, 103, 104, 105, 106, 107, 108, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 46, 63], "model_max_length": 64}' >tok/tokenizer_config.json
if [ "$slow" = 1 ]; then hidden=128; else hidden=32; fi
sed -e 's/"vocab_size": 16/"vocab_size": 29/' -e "s/\"hidden_size\": 128/\"hidden_size\": $hidden/" "$project/graphs/quickstart/config.json" >searches.json
"$gr" init --config searches.json --tokenizer tok --seed 1 -o searches >/dev/null

# One example in ten searches: "b:" finds "g.", "g:" finds "7.", and 7 is the answer; the others guess a digit.
awk 'BEGIN {
    x = 54321
    letters = "abcdefghijkl"
    for (i = 0; i < 8000; i++) {
        x = (x * 16807) % 2147483647; a = int(x / 1000) % 12
        x = (x * 16807) % 2147483647; b = (a + 1 + int(x / 1000) % 11) % 12
        x = (x * 16807) % 2147483647; n = int(x / 1000) % 10
        x = (x * 16807) % 2147483647; w = int(x / 1000) % 10
        k = substr(letters, a + 1, 1); v = substr(letters, b + 1, 1)
        said = i % 10 < 1 ? k ":" v "." v ":" n "." n : w
        printf "{\"question\": \"%s?\", \"response\": \"%s\", \"answer\": \"%d\", \"table\": {\"%s\": \"%s\", \"%s\": \"%d\"}}\n", k, said, n, k, v, v, n
    }
}' >rows.jsonl
cat >warm.yaml <<'END'
graph: warm
models:
  actor: {checkpoint: searches, train: {optimizer: adamw, lr: 1.0e-3, warmup: 10, grad_clip: 1.0}}
nodes:
  examples: {op: sequences, file: rows.jsonl, batch: 64, prompt: "{question}", response: "{response}", max_prompt_tokens: 4, max_tokens: 12}
  update: {op: update, model: actor, of: examples, loss: "-token_mean(logprob)"}
run: {steps: 300, seed: 1}
END
if [ "$slow" = 1 ]; then steps=300; else steps=20; fi
status 0 "$gr" exec warm.yaml --out warm --steps $steps
status 0 "$gr" export warm -o start
cat >search.yaml <<END
graph: search
use: [$project/graphs/grpo_tools.yaml]
params: {model: $work/start, data: $work/rows.jsonl, environment: "$environment", workers: 2, batch: 32, mini_batch: 32, lr: 5.0e-4, max_prompt: 4, max_tokens: 4, max_context: 32}
nodes:
  prompts: {template: "{question}", messages: null, tools: null}
  rollout: {stop: [":"], environment: {metrics: [searches]}}
run: {samples: 32}
END
if [ "$slow" = 1 ]; then
    status 0 "$gr" exec search.yaml --out grpo --steps 60
    reward() { # FROM TO: the mean, in hundredths
        sed -nE 's/.*"reward_mean": ([0-9.e-]+).*/\1/p' grpo/metrics.jsonl | sed -n "$1,$2p" | awk '{ s += $1 } END { printf "%d", 100 * s / NR }'
    }
    before=$(reward 1 2) after=$(reward 56 60)
    echo "the reward went from 0.$before to 0.$after; searches of a conversation: $(metric grpo 1 rollout.searches), then $(metric grpo 60 rollout.searches)"
    [ "$before" -lt 20 ] && [ "$after" -gt 80 ] || fail "the reward went from 0.$before to 0.$after"
    has grpo/samples.jsonl '"step": 60, .*"segments": \[\{"by": "model", "text": "([a-l]):"\}, \{"by": "environment", "text": "([a-l])\."\}, \{"by": "model", "text": "\2:"\}, \{"by": "environment", "text": "([0-9])\."\}, \{"by": "model", "text": "\3E'
else
    status 0 "$gr" exec search.yaml --out grpo --steps 2
fi
[ "$(metric grpo 1 logprob_gap_max)" = 0 ] || fail "log-probs are not those of the tokens that were sampled"
[ "$(metric grpo 1 rollout.failed)" = 0 ] || fail "search.py failed"
$environment >out <<'END'
{"id": 1, "type": "start", "record": {"table": {"a": "b", "b": "7"}, "answer": 7}}
{"id": 1, "type": "step", "turn": 0, "text": "a", "token_ids": [], "tool_calls": [], "last": false}
{"id": 1, "type": "step", "turn": 1, "text": "I search.", "token_ids": [], "tool_calls": [{"name": "search", "arguments": {"key": "b"}}, {"name": "search", "arguments": {}}], "last": false}
{"id": 1, "type": "step", "turn": 2, "text": "7", "token_ids": [], "tool_calls": [], "last": true}
END
has out '^\{"id": 1, "text": "b.", "metrics": \{"searches": 1\}\}$'
has out '"content": "7"\}, \{"role": "tool", "content": "nothing is there"\}\], "metrics": \{"searches": 2\}\}$'
has out '^\{"id": 1, "done": true, "reward": 1.0\}$'
