#!/bin/sh
# What ops make of a conversation is what they make of the same tokens from a file: log-probs, values of a critic, the score of a
# reward model. So nothing of it is lost between the rollout and them.
. "$(dirname "$0")/lib.sh"

classifier judge model
cat >models.yaml <<'END'
graph: models
models:
  actor: {checkpoint: model}
  critic: {checkpoint: model, head: value}
  judge: {checkpoint: judge}
run: {steps: 24, seed: 5, samples: 1}
END
cat >talks.yaml <<END
graph: talks
use: models.yaml
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 1, shuffle: false, template: "{question}", max_tokens: 8}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 1, max_tokens: 4, ignore_eos: true, stop: ["0", "4", "9"], turns: 3, max_context: 40, environment: {command: "perl $here/say.pl"}}
  logprobs: {op: logprob, model: actor, of: rollout}
  values: {op: value, model: critic, of: rollout}
  judged: {op: score, model: judge, of: rollout}
log:
  gap: token_max(abs(logprobs - rollout.logprob))
  last: batch_sum(seq_sum(where(rollout.position == seq_max(rollout.position), logprobs, 0)))
  first: batch_sum(seq_sum(where(rollout.position == 0, logprobs, 0)))
  value: batch_sum(seq_sum(where(rollout.position == seq_max(rollout.position), values, 0)))
  score: batch_sum(judged)
END
cat >file.yaml <<'END'
graph: file
use: models.yaml
nodes:
  rows: {op: sequences, file: said.jsonl, batch: 1, shuffle: false, prompt: "{prompt}", response: "{response}", model: actor, eos: false, max_prompt_tokens: 8, max_tokens: 32}
  logprobs: {op: logprob, model: actor, of: rows}
  values: {op: value, model: critic, of: rows}
  judged: {op: score, model: judge, of: rows}
log:
  last: batch_sum(seq_sum(where(rows.position == seq_max(rows.position), logprobs, 0)))
  first: batch_sum(seq_sum(where(rows.position == 0, logprobs, 0)))
  value: batch_sum(seq_sum(where(rows.position == seq_max(rows.position), values, 0)))
  score: batch_sum(judged)
END
status 0 "$gr" exec talks.yaml --out talks
: >said.jsonl
: >want
for k in $(seq 24); do # what has characters that stand for themselves, and an answer in between
    [ "$(metric talks "$k" gap)" = 0 ] || fail "log-probs are not those of the sampler: $(metric talks "$k" gap)"
    sed -n "${k}p" talks/samples.jsonl | grep -E '"response": "[0-9+=]*", .*"by": "environment"' >line || continue
    sed -E 's/.*("prompt": "[^"]*", "response": "[^"]*").*/{\1}/' line >>said.jsonl
    for name in last first value score; do printf '%s ' "$(metric talks "$k" $name)"; done >>want
    echo >>want
done
n=$(wc -l <said.jsonl)
[ "$n" -gt 3 ] || fail "too few conversations to compare: $n"
status 0 "$gr" exec file.yaml --out file --steps "$n"
for k in $(seq "$n"); do
    for name in last first value score; do printf '%s ' "$(metric file "$k" $name)"; done
    echo
done >got
paste -d ' ' want got | awk 'function off(a, b) { return (a - b) ^ 2 > 1e-10 } { for (i = 1; i < 5; i++) if (off($i, $(i + 4))) exit 1 }' ||
    fail "ops see other tokens in a conversation: $(paste want got)"
awk '$3 == 0 || $4 == 0 { exit 1 }' want || fail "a value or a score of 0"

# Selections and draws bring turns, masks and ends along; what is made of a conversation comes back to it.
cat >rows.yaml <<END
graph: rows
use: models.yaml
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, template: "{question}", max_tokens: 8}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, max_tokens: 4, turns: 3, max_context: 40, environment: {command: "perl $here/say.pl"}}
  long: {op: select, of: rollout, sequences: "rollout.stopped < 3 and rollout.turns > 1"}
  drawn: {op: select, of: rollout, resample: rollout.turns}
  again: {op: logprob, model: actor, of: drawn}
  apart: {op: compute, of: drawn, expr: abs(again - rollout.logprob)}
  checks: {op: prompts, of: rollout, template: "{prompt}{response}", max_tokens: 48}
  size: {op: back, of: rollout, expr: checks.length}
log:
  turns: batch_sum(long.turns)
  their_turns: batch_sum(rollout.turns, rollout.turns > 1)
  ends: batch_sum(long.stopped)
  their_ends: batch_sum(rollout.stopped, rollout.turns > 1)
  counted: token_sum(long.turn + 1)
  their_counted: token_sum(rollout.turn + 1, rollout.turns > 1)
  apart: token_max(apart)
  short: batch_max(prompts.length + seq_max(rollout.position) + 1 - size)
  grows: batch_max(size - prompts.length)
END
status 0 "$gr" exec rows.yaml --out rows --steps 2
for name in turns ends counted; do
    [ "$(metric rows 1 $name)" = "$(metric rows 1 their_$name)" ] || fail "a selection has other $name: $(metric rows 1 $name), $(metric rows 1 their_$name)"
done
[ "$(metric rows 1 apart)" = 0 ] || fail "conversations that were drawn have other log-probs"
[ "$(metric rows 1 short)" -le 1 ] && [ "$(metric rows 1 grows)" -gt 8 ] || # all that was said, but for a last stop id
    fail "prompts of conversations lack tokens: $(metric rows 1 short), $(metric rows 1 grows)"
