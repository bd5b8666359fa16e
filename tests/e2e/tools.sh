#!/bin/sh
# A small model learns to call a calculator: products of two numbers are beyond it, and it has seen calls that work and answers
# that do not. The short form takes a few steps, and holds the shipped graphs and environments to what they say.
. "$(dirname "$0")/lib.sh"
python3 -c 'import json' 2>/dev/null || { echo "left out: no python3"; exit 0; }
environment="python3 $project/graphs/environments/calculator.py"

mkdir tok
echo '{"char_ords": [48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 42, 61, 46, 63], "model_max_length": 64}' >tok/tokenizer_config.json
if [ "$slow" = 1 ]; then hidden=128; else hidden=32; fi
sed -e 's/"vocab_size": 16/"vocab_size": 18/' -e "s/\"hidden_size\": 128/\"hidden_size\": $hidden/" "$project/graphs/quickstart/config.json" >calls.json
"$gr" init --config calls.json --tokenizer tok --seed 1 -o calls >/dev/null

# One example in five calls: "12*34=", then the result and a point as the environment says them, then the answer.
awk 'BEGIN {
    x = 54321
    for (i = 0; i < 8000; i++) {
        x = (x * 16807) % 2147483647; a = 10 + int(x / 1000) % 90
        x = (x * 16807) % 2147483647; b = 10 + int(x / 1000) % 90
        x = (x * 16807) % 2147483647; w = 100 + int(x / 1000) % 9900
        said = i % 10 < 2 ? a "*" b "=" a * b "." a * b : w
        printf "{\"question\": \"%d*%d?\", \"response\": \"%s\", \"answer\": \"%d\"}\n", a, b, said, a * b
    }
}' >products.jsonl
cat >warm.yaml <<'END'
graph: warm
models:
  actor: {checkpoint: calls, train: {optimizer: adamw, lr: 1.0e-3, warmup: 10, grad_clip: 1.0}}
nodes:
  examples: {op: sequences, file: products.jsonl, batch: 64, prompt: "{question}", response: "{response}", max_prompt_tokens: 8, max_tokens: 20}
  update: {op: update, model: actor, of: examples, loss: "-token_mean(logprob)"}
run: {steps: 500, seed: 1}
END
if [ "$slow" = 1 ]; then steps=500; else steps=30; fi
status 0 "$gr" exec warm.yaml --out warm --steps $steps
status 0 "$gr" export warm -o start

# The shipped graphs, turned to this task.
tools() { # GRAPH RUN STEPS SETTING...
    name=$1 run=$2 steps=$3
    shift 3
    cat >"$name.yaml" <<END
graph: $name
use: [$project/graphs/$name.yaml]
params: {model: $work/start, data: $work/products.jsonl, environment: "$environment", workers: 2, batch: 32, mini_batch: 32, lr: 5.0e-4, max_prompt: 8, max_tokens: 6, max_context: 44}
nodes:
  prompts: {template: "{question}", messages: null, tools: null}
  rollout: {stop: ["="]}
run: {samples: 32}
END
    status 0 "$gr" exec "$name.yaml" --out "$run" --steps "$steps" "$@"
}
if [ "$slow" = 1 ]; then
    tools grpo_tools grpo 60
    reward() { # FROM TO: the mean, in hundredths
        sed -nE 's/.*"reward_mean": ([0-9.e-]+).*/\1/p' grpo/metrics.jsonl | sed -n "$1,$2p" | awk '{ s += $1 } END { printf "%d", 100 * s / NR }'
    }
    before=$(reward 1 2) after=$(reward 56 60)
    [ "$before" -lt 20 ] && [ "$after" -gt 80 ] || fail "the reward went from 0.$before to 0.$after"
    has grpo/samples.jsonl '"step": 60, .*"segments": \[\{"by": "model", "text": "([0-9]+\*[0-9]+)="\}, \{"by": "environment", "text": "([0-9]+)\."\}, \{"by": "model", "text": "\2E'
else
    tools grpo_tools grpo 3
    has grpo/samples.jsonl '"segments": \[\{"by": "model", "text": '
fi
[ "$(metric grpo 1 logprob_gap_max)" = 0 ] || fail "log-probs are not those of the tokens that were sampled"
tools ppo_tools ppo 2 --set critic_warmup=1
status 0 "$gr" plan ppo_tools.yaml --format json -o plan.json
status 0 "$gr" verify plan.json

# The other environments: they answer, and what they pay is what the model did.
turns cold.yaml ""
status 0 "$gr" exec cold.yaml --out cold --steps 2 --set run.samples=8 --set 'nodes.rollout.stop=["5", "7"]' --set "nodes.rollout.environment={command: \"sh $project/graphs/environments/hot_cold.sh\", metrics: [calls]}"
has cold/samples.jsonl '"by": "environment", "text": "[+=]"'
[ "$(metric cold 1 rollout.failed)" = 0 ] || fail "hot_cold.sh failed"
if cc -o digits "$project/graphs/environments/digits.c" 2>/dev/null; then
    status 0 "$gr" exec cold.yaml --out digits-run --steps 2 --set run.samples=8 --set 'nodes.rollout.stop=["5", "7"]' --set "nodes.rollout.environment={command: ./digits, metrics: [calls]}"
    has digits-run/samples.jsonl '"by": "environment", "text": "[0-9]"'
    [ "$(metric digits-run 1 rollout.failed)" = 0 ] || fail "digits.c failed"
fi

# Calls of tools, as graphrun reads them from a turn: results and what is wrong are messages, and the number at the end is
# the answer.
$environment >out <<'END'
{"id": 1, "type": "start", "record": {"answer": "408"}}
{"id": 1, "type": "step", "turn": 0, "text": "I ask.", "token_ids": [], "tool_calls": [{"name": "calculator", "arguments": {"expression": "12 * 34"}}, {"error": "not JSON", "text": "{"}, {"name": "calculator", "arguments": {"expression": "1/0"}}], "last": false}
{"id": 1, "type": "step", "turn": 1, "text": "It is 408", "token_ids": [], "tool_calls": [], "last": false}
{"id": 1, "type": "end"}
{"id": 2, "type": "start", "record": {"answer": 408}}
{"id": 2, "type": "step", "turn": 0, "text": "12*34", "token_ids": [], "tool_calls": [], "last": true}
END
has out '^\{"id": 1, "messages": \[\{"role": "tool", "content": "408"\}, \{"role": "tool", "content": "not JSON"\}, \{"role": "tool", "content": "cannot compute this"\}\], "metrics": \{"calls": 3\}\}$'
has out '^\{"id": 1, "done": true, "reward": 1.0\}$'
has out '^\{"id": 2, "done": true, "reward": 0.0\}$'
