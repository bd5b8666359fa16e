#!/bin/sh
# Prompts of rows, and the way back: a rollout whose responses another model reads, and what it makes of them as the reward.
. "$(dirname "$0")/lib.sh"

# The second rollout's prompt is the first one's prompt and response, and its worker counts the digits of that: as many as the
# first one's worker counts of its own two.
cat >digits.pl <<'END'
$| = 1;
while (<STDIN>) {
    my ($id, $text) = (/"id":(\d+)/, /"$ARGV[0]":"([^"]*)"/);
    printf "{\"id\": %d, \"score\": %d}\n", $id, $text =~ tr/0-9//;
}
END
sed -e 's/^  reward: .*/  reward: {op: back, of: rollout, expr: "group_mean(counted)"}/' -e 's/^  score: .*/  score: {op: compute, expr: reward}/' \
    -e 's/, schedule: cosine//; s/steps: 6/steps: 3/' grpo.yaml >judge.yaml
sed -i 's|^  reward: |  checks: {op: prompts, of: rollout, max_tokens: 20, template: "{prompt}{response}+"}\
  verdict: {op: generate, model: ref, prompts: checks, max_tokens: 3, samples: 2}\
  counted: {op: reward, of: verdict, command: "perl digits.pl prompt"}\
  asked: {op: reward, of: rollout, command: "perl digits.pl prompt"}\
  said: {op: reward, of: rollout, command: "perl digits.pl response"}\
  right: {op: reward, of: verdict, answer: prompts.answer, rule: exact}\
  level: {op: back, of: rollout, expr: checks.length}\
&|' judge.yaml
cat >>judge.yaml <<'END'
log:
  off: batch_max(abs(reward - asked - said))
  spread: batch_max(abs(reward - batch_mean(reward)))
  longest: batch_max(level)
  right: batch_mean(right)
END
status 0 "$gr" exec judge.yaml --out judge --check-memory
sed -nE 's/.*"off": ([^,}]*), "spread": ([^,}]*).*/\1 \2/p' judge/metrics.jsonl | awk '$1 != 0 || $2 == 0 { bad = 1 } END { exit bad || NR != 3 }' ||
    fail "what comes back is of other rows: $(grep -o '"off": .*' judge/metrics.jsonl)"
[ "$(metric judge 1 longest)" -gt 8 ] || fail "prompts of rows are as short as those of records"
any_stop judge judge 3 2
status 0 "$gr" plan judge.yaml --device cuda --hardware h200

# Of chosen rows, of conversations, and of rows that are kept.
sed -e 's/^  checks: {op: prompts, of: rollout/  long: {op: select, of: rollout, sequences: "rollout.length > 1"}\n  checks: {op: prompts, of: long/' \
    -e 's/op: back, of: rollout/op: back, of: long/; /^  asked:/s/of: rollout/of: long/; /^  said:/s/of: rollout/of: long/' \
    -e 's/_logprob: {\(.*\)of: rollout/_logprob: {\1of: long/; s/^    of: rollout/    of: long/' judge.yaml >long.yaml
status 0 "$gr" exec long.yaml --out long --steps 2
[ "$(metric long 2 off)" = 0 ] || fail "what comes back to chosen rows is of others: $(metric long 2 off)"
sed 's/^  rollout: {/&over: 1.5, lag: 2, /' judge.yaml >kept.yaml
status 0 "$gr" exec kept.yaml --out kept --steps 3
[ "$(metric kept 3 off)" = 0 ] || fail "what comes back to rows that are kept is of others: $(metric kept 3 off)"
if runs_ranks; then
    status 0 "$gr" exec judge.yaml --out ranks --ranks 2 --steps 2
    [ "$(metric ranks 2 off)" = 0 ] || fail "two ranks: what comes back is of others"
fi

refused "'batch' does not go with 'of'" "$gr" check judge.yaml --set nodes.checks.batch=3
refused "'too_long: drop' does not go with 'of'" "$gr" check judge.yaml --set nodes.checks.too_long=drop
refused "'expr' of op back must be one number a prompt, not one a sequence: reduce it, e.g. with group_mean" "$gr" check judge.yaml --set nodes.reward.expr=counted
refused "'expr' must be about prompts that were made of the rows of 'rollout'" "$gr" check judge.yaml --set 'nodes.reward.expr=prompts.length'
refused "node 'prompts' needs 'batch': records drawn each iteration" "$gr" check judge.yaml --set 'nodes.prompts={op: prompts, file: train.jsonl, template: "{question}", max_tokens: 8}'
status 2 "$gr" exec judge.yaml --out short --steps 1 --set nodes.checks.max_tokens=7
has err "a prompt of [0-9]+ tokens, but node 'checks' allows 7 .too_long: truncate_left cuts such prompts."
status 0 "$gr" exec judge.yaml --out cut --steps 1 --set nodes.checks.max_tokens=7 --set nodes.checks.too_long=truncate_left
