#!/bin/sh
# Numbers that records keep: read as they were when the record was drawn, changed at the iteration's end, in checkpoints,
# the same after a resume and on two ranks.
. "$(dirname "$0")/lib.sh"

# 12 records in batches of 8: each is drawn again in the second epoch. seen counts that; last is the iteration that drew it.
head -12 train.jsonl >few.jsonl
sed -e 's/^  prompts: {/&state: {seen: {init: 0, next: prompts.seen + 1}, last: {init: -1, next: step}, paid: {init: 0.25, next: "0.5 * prompts.paid + 0.5 * group_mean(reward)"}}, /' \
    -e 's/(score - group_mean(score))/(score - group_mean(score) + 0.01 * prompts.paid)/; s/, schedule: cosine//' grpo.yaml >kept.yaml
cat >>kept.yaml <<'END'
log: {seen: batch_sum(prompts.seen), first: batch_count(prompts.last < 0), paid: batch_mean(prompts.paid), oldest: batch_max(step - prompts.last)}
END
set -- kept.yaml --set data=few.jsonl --set run.checkpoint.every=2
status 0 "$gr" exec "$@" --out whole --check-memory
# epochs of 12 in draws of 8: 8 new; 4 new, and 4 of the second epoch, which may be among these; 8 of the second; ...
[ "$(metric whole 1 seen)" = 0 ] && [ "$(metric whole 1 first)" = 8 ] || fail "iteration 1: $(metric whole 1 seen), $(metric whole 1 first)"
[ "$(metric whole 2 first)" -ge 4 ] && [ "$(metric whole 2 first)" -lt 8 ] || fail "iteration 2 has $(metric whole 2 first) new records"
[ "$(metric whole 3 first)" = 0 ] && [ "$(metric whole 3 seen)" -ge 8 ] || fail "iteration 3: $(metric whole 3 seen)"
[ "$(metric whole 1 paid)" = 0.25 ] && [ "$(metric whole 3 paid)" != 0.25 ] || fail "paid: $(metric whole 1 paid), $(metric whole 3 paid)"
status 0 "$gr" exec "$@" --out cut --until 3
status 0 "$gr" exec --resume cut
same_weights whole cut
same_metrics whole cut
cmp whole/checkpoints/step-6/state.json cut/checkpoints/step-6/state.json || fail "what records keep differs after a resume"
has whole/graph.yaml 'seen'
if runs_ranks; then
    status 0 "$gr" exec "$@" --ranks 2 --out two
    for step in 1 2 3; do
        [ "$(metric two $step seen)" = "$(metric whole $step seen)" ] || fail "two ranks: $(metric two $step seen) in step $step"
    done
fi

# Of other data nothing is known: its records begin anew. A damaged state is refused.
sed 's/"answer"/"more": 1, "answer"/' few.jsonl >few2.jsonl
cp -r cut other
status 0 "$gr" exec --resume other --steps 8 --accept-changes --set nodes.prompts.file=few2.jsonl --set run.steps=8
[ "$(metric other 7 first)" = 8 ] || fail "records of other data are known: $(metric other 7 first)"

# ---- said where they are wrong -----------------------------------------------------------------------------------------------

change() { sed "s|next: step}|next: $1}|" kept.yaml >wrong.yaml; }
change 'reward'
refused "'last' must be one number a prompt, not one for each sequence: reduce it, e.g. with group_mean" "$gr" check wrong.yaml
sed 's/seen: {init: 0,/length: {init: 0,/; s/prompts\.seen/prompts.length/g' kept.yaml >wrong.yaml
refused "'length' is a value of each 'prompts' node: choose another name" "$gr" check wrong.yaml
sed 's/init: -1, //' kept.yaml >wrong.yaml
refused "state 'last' needs 'init'" "$gr" check wrong.yaml
sed 's/^  old_logprob: /  chosen: {op: select, of: rollout, groups: group_std(score) > 0, refill: {until: 8, rounds: 3, short: keep}}\n&/; s/of: rollout, mini_batch/of: chosen, mini_batch/; s/^    of: rollout/    of: chosen/' kept.yaml >wrong.yaml
refused "'seen' reads 'prompts.seen', which 'chosen' computes anew in each round" "$gr" check wrong.yaml
sed 's/samples: 4,/samples: 4, over: 1.25,/' kept.yaml >wrong.yaml # rows of earlier draws
refused "'reward' has the prompts of 'rollout', but 'prompts.paid' those of 'prompts'" "$gr" check wrong.yaml
has err "'rollout' keeps rows from one iteration to the next"
sed '/^log: /d; s/ + 0.01 \* prompts.paid//; s/next: "0.5 \* prompts.paid + 0.5 \* group_mean(reward)"/next: group_mean(reward)/' wrong.yaml >wrong2.yaml
refused "'paid' is kept of the records of 'prompts', but has the prompts of 'rollout'" "$gr" check wrong2.yaml
sed 's/, paid: {[^}]*}//' wrong2.yaml >drawn.yaml # what reads no rows is right there, too
status 0 "$gr" exec drawn.yaml --steps 3 --out drawn
change '1 / (step - 1)'
status 0 "$gr" exec wrong.yaml --set data=few.jsonl --steps 1 --out odd
has out "'next' of 'prompts.last' is no number for 8 records, which keep what they had"

# A node that nobody reads keeps nothing, and harms nobody.
sed 's/^  rollout:/  spare: {op: prompts, file: $data, batch: 4, template: "{question}", max_tokens: 16, state: {a: {init: 0, next: step}}}\n&/' grpo.yaml >spare.yaml
status 0 "$gr" exec spare.yaml --steps 2 --out spare
has err "node 'spare' is left out"
