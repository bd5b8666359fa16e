#!/bin/sh
# What is rare but allowed: nodes that sleep, no model, no stop id, data that changed, a graph of another run.
. "$(dirname "$0")/lib.sh"

# Text of no model's tokenizer.
cat >nobody.yaml <<'END'
graph: nobody
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
log: {length: batch_mean(prompts.length)}
run: {steps: 2}
END
status 2 "$gr" exec nobody.yaml --out nobody
has err "nobody.yaml:3:.*'prompts' needs a tokenizer, but the graph has no model"

# A checkpoint without a stop id: the last token of a response is its own.
cp -r model endless
sed -i 's/"eos_token_id": 1/"eos_token_id": null/' endless/config.json
rm -f endless/generation_config.json
cat >examples.yaml <<'END'
graph: examples
params: {model: endless}
models:
  actor: {checkpoint: $model, train: {lr: 1.0e-2}}
nodes:
  examples: {op: sequences, file: data.jsonl, batch: 2, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: 4, shuffle: false}
  reward: {op: reward, of: examples, answer: examples.answer, rule: {compare: string}}
  update: {op: update, model: actor, of: examples, loss: "-token_mean(logprob)"}
log: {score: batch_mean(reward)}
run: {steps: 2, checkpoint: {every: 1}}
END
head -n 6 train.jsonl >data.jsonl
for m in endless model; do
    status 0 "$gr" exec examples.yaml --set model=$m --out examples-$m
    [ "$(metric examples-$m 1 score)" = 1 ] || fail "$m: answers that are not themselves"
done

# Data that changed since the checkpoint begin anew.
status 0 "$gr" exec examples.yaml --out moved
tail -n 5 train.jsonl >data.jsonl
status 0 "$gr" exec --resume moved --steps 3
has err "warning: the data of node 'examples' changed since the checkpoint"
status 0 "$gr" exec examples.yaml --steps 1 --out afresh
first=$(sed -nE 's/.*"step": 1,.*"prompt": ("[^"]*").*/\1/p' afresh/samples.jsonl | head -1)
grep -F '"step": 3,' moved/samples.jsonl | head -1 | grep -qF -- "$first" || fail "not the first record: $first"
