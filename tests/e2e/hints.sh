#!/bin/sh
# Log-probs of responses under other prompts (`prompts` of a logprob).
. "$(dirname "$0")/lib.sh"

# Behind a prompt that says the same they are the same, to the bit; behind another one they are those of a file in which
# that prompt stands before the response.
cat >hint.yaml <<'END'
graph: hint
models: {actor: {checkpoint: model}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 1, shuffle: false, template: "{question}", max_tokens: 16}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 1, max_tokens: 5}
  same: {op: prompts, of: rollout, template: "{prompt}", max_tokens: 16}
  hints: {op: prompts, of: rollout, template: "{answer}:{prompt}", max_tokens: 20}
  old_logprob: {op: logprob, model: actor, of: rollout}
  again: {op: logprob, model: actor, of: rollout, prompts: same}
  hinted: {op: logprob, model: actor, of: rollout, prompts: hints}
log:
  sum: token_sum(hinted)
  spread: token_sum(hinted.entropy)
  off: token_max(abs(again - old_logprob))
  moved: token_max(abs(hinted - old_logprob))
run: {steps: 12, seed: 3, samples: 1}
END
cat >file.yaml <<'END'
graph: file
models: {actor: {checkpoint: model}}
nodes:
  rows: {op: sequences, file: hinted.jsonl, batch: 1, shuffle: false, prompt: "{answer}:{prompt}", response: "{response}", eos: false, max_prompt_tokens: 20, max_tokens: 5}
  hinted: {op: logprob, model: actor, of: rows}
log: {sum: token_sum(hinted), spread: token_sum(hinted.entropy)}
run: {steps: 20}
END
status 0 "$gr" exec hint.yaml --out hint --check-memory
for k in $(seq 12); do
    [ "$(metric hint "$k" off)" = 0 ] || fail "the same prompt gives others: $(metric hint "$k" off)"
    [ "$(metric hint "$k" moved)" != 0 ] || fail "another prompt changes nothing"
done
: >hinted.jsonl
: >want
for k in $(seq 12); do # responses that max_tokens cut, of characters that stand for themselves
    line=$(sed -n "${k}p" hint/samples.jsonl)
    response=$(echo "$line" | sed -nE 's/.*"response": "([0-9+=]{5})", .*/\1/p')
    [ -n "$response" ] || continue
    answer=$(sed -nE "${k}s/.*\"answer\": \"([0-9]*)\".*/\1/p" train.jsonl)
    prompt=$(echo "$line" | sed -nE 's/.*"prompt": "([^"]*)".*/\1/p')
    echo "{\"answer\": \"$answer\", \"prompt\": \"$prompt\", \"response\": \"$response\"}" >>hinted.jsonl
    echo "$(metric hint "$k" sum) $(metric hint "$k" spread)" >>want
done
n=$(wc -l <want)
[ "$n" -gt 3 ] || fail "too few responses to compare: $n"
status 0 "$gr" exec file.yaml --out file --steps "$n"
for k in $(seq "$n"); do echo "$(metric file "$k" sum) $(metric file "$k" spread)"; done >got
paste -d ' ' want got | awk 'function off(a, b) { return (a - b) ^ 2 > 1e-10 } off($1, $3) || off($2, $4) { exit 1 }' ||
    fail "not the log-probs of those texts: $(paste want got)"

# In training: with what is known of the rows, over mini-batches, selections, conversations and kept rows; whatever the budget,
# the ranks, and wherever it is stopped. An update of one step does not stand for them.
sed -e 's/, schedule: cosine//; s/steps: 6/steps: 3/' \
    -e 's|^  ref_logprob: .*|  hints: {op: prompts, of: rollout, template: "{answer}:{prompt}", max_tokens: 20}\
  ref_logprob: {op: logprob, model: actor, of: rollout, prompts: hints}|' grpo.yaml >taught.yaml
status 0 "$gr" exec taught.yaml --out taught
any_stop taught taught 3 1 2
status 0 "$gr" exec taught.yaml --out small --set nodes.ref_logprob.micro_tokens=40
same_weights taught small
status 0 "$gr" exec taught.yaml --out once --set nodes.update.mini_batch=8 --set nodes.update.epochs=1 --steps 1
[ "$(metric once 1 kl)" = null ] || fail "the kl to a reference is that to a hint: $(metric once 1 kl)"
[ "$(metric once 1 kl_now)" != 0 ] || fail "an update of one step stands for log-probs under other prompts"
sed 's/^  hints: {op: prompts, of: rollout/  kept: {op: select, of: rollout, sequences: "rollout.length > 2"}\n  hints: {op: prompts, of: kept/; s/^\(.*_logprob: {.*\)of: rollout/\1of: kept/; s/^    of: rollout/    of: kept/' \
    taught.yaml >kept.yaml
status 0 "$gr" exec kept.yaml --out kept --steps 2
sed 's/^  rollout: {/&over: 1.5, lag: 2, /' taught.yaml >lag.yaml
status 0 "$gr" exec lag.yaml --out lag --steps 2
turns turns.yaml "" "workers: 2"
sed -i 's|^  ref_logprob: .*|  same: {op: prompts, of: rollout, template: "{prompt}", max_tokens: 20}\
  ref_logprob: {op: logprob, model: actor, of: rollout, prompts: same}|' turns.yaml
echo '  apart: token_max(abs(ref_logprob - old_logprob))' >>turns.yaml
status 0 "$gr" exec turns.yaml --out turns --steps 2
[ "$(metric turns 1 apart)" = 0 ] || fail "conversations behind the same prompt have other log-probs: $(metric turns 1 apart)"
status 0 "$gr" plan taught.yaml --device cuda --hardware h200
if runs_ranks; then
    status 0 "$gr" exec taught.yaml --out ranks --ranks 2 --steps 1
    [ "$(metric ranks 1 kl_now)" = "$(metric taught 1 kl_now)" ] || fail "two ranks: other log-probs"
fi

refused "'prompts' must be made of the rows of 'rollout', one for each of them .op prompts with of: rollout., and 'prompts' is not" \
    "$gr" check taught.yaml --set nodes.ref_logprob.prompts=prompts
refused "'prompts' must be a node that makes prompts, but 'rollout' is of op generate" "$gr" check taught.yaml --set nodes.ref_logprob.prompts=rollout
sed 's/^\(.*ref_logprob: {.*\)of: kept/\1of: rollout/' kept.yaml >other.yaml
refused "'prompts' must be made of the rows of 'rollout'" "$gr" check other.yaml
refused "'replay' has the experts that were chosen behind the rows' own prompts" "$gr" check taught.yaml --set nodes.ref_logprob.replay=rollout
refused "a sequence may have 60 tokens of 'hints' and 6 of a response, but model 'actor' has 64 positions" "$gr" check taught.yaml --set nodes.hints.max_tokens=60
refused "micro_tokens" "$gr" check taught.yaml --set nodes.ref_logprob.micro_tokens=20
refused "only the first token is a prompt" "$gr" check turns.yaml --set 'nodes.rollout.serve={}' --set 'nodes.same.template="{answer}"'
sed 's|^  hinted: .*|&\n  verdict: {op: generate, model: other, prompts: hints, max_tokens: 4, samples: 2}|; s|^models: {|&other: {checkpoint: OTHER}, |; s|^log:|&\n  said: batch_mean(verdict.length)|' hint.yaml >judged.yaml
cp -r model other
sed 's/OTHER/other/' judged.yaml >known.yaml
refused "'hints' has tokens of model 'other', which 'verdict' samples with, and the responses have those of 'actor'" "$gr" check known.yaml
sed 's/OTHER/nowhere/' judged.yaml >unknown.yaml
"$gr" check unknown.yaml >out 2>err || [ $? = 2 ] || fail "a model that is not here: status $?"
lacks err "has tokens of model"
