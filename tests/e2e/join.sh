#!/bin/sh
# Rows and responses of their records in the same groups (op join): what of them is where, in training, conversations and selections,
# on ranks, after a stop; and what is refused.
. "$(dirname "$0")/lib.sh"

# Each record has a worked answer, some none, and some a second one.
awk '{ i = NR % 3; sub(/}$/, ""); printf "%s, \"worked\": \"%s\", \"other\": \"%s\"}\n", $0, i ? "3" NR % 7 "=" : "", i == 2 ? "3" : "" }' \
    train.jsonl >worked.jsonl
sed -e 's/, schedule: cosine//; s/steps: 6/steps: 3/; s/data: train.jsonl/data: worked.jsonl/' \
    -e 's|^  reward: *{op: reward, of: rollout|  both: {op: join, of: rollout, responses: ["{worked}", "{other}"], max_tokens: 8}\n  reward: {op: reward, of: both|' \
    -e 's/\(_logprob: {.*\)of: rollout/\1of: both/; s/rollout.length/both.length/; s/^    of: rollout/    of: both/' grpo.yaml >join.yaml
cat >>join.yaml <<'END'
log:
  n: batch_count(both.length)
  own: batch_count(both.source == 0)
  first: batch_count(both.source == 1)
  second: batch_count(both.source == 2)
  told: batch_max(seq_sum(abs(both.logprob)), both.source > 0)
  gap: token_max(abs(both.logprob - old_logprob), both.source == 0)
  sum: token_sum(old_logprob, both.source == 1)
  tokens: token_sum(both.token, both.source == 1)
END
status 0 "$gr" exec join.yaml --out join --check-memory
[ "$(metric join 1 own) $(metric join 1 told) $(metric join 1 gap)" = "32 0 0" ] || fail "the rollout's rows: $(cat join/metrics.jsonl)"
n=$(metric join 1 n) first=$(metric join 1 first) second=$(metric join 1 second)
[ "$n" = $((32 + first + second)) ] && [ "$first" -gt "$second" ] && [ "$second" -gt 0 ] || fail "$n rows, $first and $second of them joined"
lacks join/metrics.jsonl logprob_gap_max
any_stop join join 3 1 2
status 0 "$gr" exec join.yaml --out small --set nodes.old_logprob.micro_tokens=40 --set nodes.update.micro_tokens=40
same_weights join small

# What is joined are the records' texts behind their prompts: the tokens and log-probs of a file that has them.
sed 's/"worked": ""/"worked": "none"/' worked.jsonl | grep -v '"worked": "none"' >only.jsonl
cat >both.yaml <<'END'
graph: both
models: {actor: {checkpoint: model}}
nodes:
  prompts: {op: prompts, file: only.jsonl, batch: 8, shuffle: false, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 6}
  both: {op: join, of: rollout, responses: "{worked}", max_tokens: 8}
  rows: {op: sequences, file: only.jsonl, batch: 8, shuffle: false, prompt: "{question}", response: "{worked}", max_prompt_tokens: 8, max_tokens: 8}
  ours: {op: logprob, model: actor, of: both}
  theirs: {op: logprob, model: actor, of: rows}
log: {ours: "token_sum(ours, both.source == 1)", theirs: token_sum(theirs), ids: "token_sum(both.token, both.source == 1)", their_ids: token_sum(rows.token)}
run: {steps: 2}
END
status 0 "$gr" exec both.yaml --out both
[ "$(metric both 1 ids)" = "$(metric both 1 their_ids)" ] || fail "other tokens: $(metric both 1 ids), $(metric both 1 their_ids)"
awk "BEGIN { exit !(($(metric both 1 ours) - $(metric both 1 theirs)) ^ 2 < 1e-10) }" || fail "other log-probs: $(metric both 1 ours), $(metric both 1 theirs)"

# Behind and before selections; beside conversations, whose masks stay; of rows that are kept.
sed -e 's/^  reward: /  some: {op: select, of: both, sequences: "both.length > 2"}\n&/' -e '/_logprob: {\|^    of: /s/of: both/of: some/' \
    -e '/^log:/,$d' join.yaml >some.yaml
status 0 "$gr" exec some.yaml --out some --steps 2
sed -e 's/^  both: {op: join, of: rollout/  long: {op: select, of: rollout, groups: "group_mean(rollout.length) > 2"}\n  both: {op: join, of: long/' \
    -e '/^log:/,$d' join.yaml >long.yaml
status 0 "$gr" exec long.yaml --out long --steps 2
sed 's/^  rollout: {/&over: 1.5, lag: 2, /; /^log:/,$d' join.yaml >lag.yaml
status 0 "$gr" exec lag.yaml --out lag --steps 2
turns turns.yaml "" "workers: 2"
sed -e 's/data: train.jsonl/data: worked.jsonl/; s/^  reward: .*/  both: {op: join, of: rollout, responses: "{worked}", max_tokens: 8}\n  reward: {op: reward, of: both, from: environment}/' \
    -e 's/\(_logprob: {.*\)of: rollout/\1of: both/; s/^    of: rollout/    of: both/; s/score: {op: compute, of: rollout/score: {op: compute, of: both/; /^log:/,$d' turns.yaml >talks.yaml
cat >>talks.yaml <<'END'
log:
  gap: token_max(abs(both.logprob - old_logprob), both.source == 0)
  shown: batch_max(both.turns, both.source == 1)
  turns: batch_mean(both.turns, both.source == 0)
  asked: batch_mean(rollout.turns)
  paid: batch_max(abs(reward), both.source == 1)
  counted: batch_mean(seq_count(both.model), both.source == 0)
  sampled: batch_mean(rollout.length)
END
status 0 "$gr" exec talks.yaml --out talks --steps 2
[ "$(metric talks 1 gap) $(metric talks 1 shown) $(metric talks 1 paid)" = "0 1 0" ] || fail "beside conversations: $(cat talks/metrics.jsonl)"
[ "$(metric talks 1 turns) $(metric talks 1 counted)" = "$(metric talks 1 asked) $(metric talks 1 sampled)" ] || fail "turns or masks are lost"
status 0 "$gr" plan join.yaml --device cuda --hardware h200
if runs_ranks; then
    status 0 "$gr" exec join.yaml --out ranks --ranks 2 --steps 1
    for name in own first second tokens sum; do
        [ "$(metric ranks 1 $name)" = "$(metric join 1 $name)" ] || fail "two ranks: $name differs"
    done
fi

refused "'of' must be a node that makes sequences" "$gr" check join.yaml --set nodes.both.of=prompts
refused "gone" "$gr" exec join.yaml --out gone --set 'nodes.both.responses="{gone}"'
status 2 "$gr" exec join.yaml --out long2 --set nodes.both.max_tokens=3
has err "a response of 4 tokens, but node 'both' allows 3 .too_long: drop leaves such ones out."
status 0 "$gr" exec join.yaml --out dropped --steps 1 --set nodes.both.max_tokens=3 --set nodes.both.too_long=drop
[ "$(metric dropped 1 first)" = 0 ] && [ "$(metric dropped 1 both.dropped)" -gt 0 ] || fail "what is too long was not left out"
refused "'replay': some rows of 'both' were not sampled" "$gr" check join.yaml --set nodes.old_logprob.replay=rollout
refused "have no prompt that another response could answer" "$gr" check talks.yaml --set 'nodes.rollout.serve={}'
