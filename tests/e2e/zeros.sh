#!/bin/sh
# An iteration whose every gradient is exactly 0 says so, with what was 0, once for such iterations in a row; one with a
# gradient says nothing.
. "$(dirname "$0")/lib.sh"

says() { # TIMES PATTERN: lines of the last command's output
    [ "$(grep -cE "$2" out)" = "$1" ] || { cat out >&2; fail "'$2' is not said $1 times"; }
}
zero_steps() { # RUN: of each iteration
    sed -nE 's/.*"zero_steps": ([0-9]+).*/\1/p' "$1/metrics.jsonl" | paste -sd' '
}

# ---- nothing to say -------------------------------------------------------------------------------------------------

status 0 "$gr" exec grpo.yaml --steps 3 --out usual
lacks out 'every gradient'
[ "$(zero_steps usual)" = '0 0 0' ] || fail "zero_steps of a usual run: $(zero_steps usual)"

# ---- every advantage is 0: all rewards are equal; but for every third iteration --------------------------------------

cat >equal.yaml <<'END'
graph: equal
params: {again: 3}
models: {actor: {checkpoint: model, train: {lr: 1.0e-2}}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, max_tokens: 6}
  reward: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "absent", answer_extract: "([0-9])"}}
  score: {op: compute, expr: "reward + where(floor(step / $again) * $again == step, rollout.length, 0)"}
  advantage: {op: compute, expr: score - group_mean(score)}
  update: {op: update, model: actor, of: rollout, mini_batch: 4, epochs: 2, loss: -token_mean(advantage * reward * 2 * logprob + advantage * logprob)}
run: {steps: 7, seed: 9}
END
status 0 "$gr" exec equal.yaml --out equal
says 1 "^warning: step 1: every gradient of 'update' is exactly 0 \(4 optimizer steps\), so its rows teach nothing: 'reward' and 'advantage' are 0 everywhere"
says 1 "^warning: step 4: every gradient"
says 1 "^warning: step 7: every gradient"
says 3 'every gradient'
case $(zero_steps equal) in
'4 4 '[0-3]' 4 4 '[0-3]' 4') ;;
*) fail "zero_steps: $(zero_steps equal)" ;;
esac
if runs_ranks; then
    status 0 "$gr" exec equal.yaml --out two --ranks 2 --steps 2
    says 1 "^warning: step 1: every gradient of 'update' is exactly 0 \(4 optimizer steps\).*'reward' and 'advantage' are 0"
fi

# One mini-batch with a gradient is enough.
status 0 "$gr" exec equal.yaml --out some --steps 2 --set 'nodes.score.expr=reward + where(prompts.length > 5, rollout.length, 0)' \
    --set nodes.update.epochs=1 --set nodes.update.mini_batch=1
lacks out 'every gradient'
awk -v all="$(zero_steps some)" 'BEGIN { split(all, n, " "); exit !(n[1] > 0 && n[1] < 8) }' || fail "zero_steps: $(zero_steps some)"

# ---- other reasons --------------------------------------------------------------------------------------------------

# A condition that never holds: no value is 0.
status 0 "$gr" exec equal.yaml --out masked --steps 1 --set 'nodes.update.loss=token_mean(where(rollout.length > 100, logprob * rollout.logprob, 0))'
says 1 "step 1: every gradient of 'update' is exactly 0 .*: none of the values that its loss reads is 0 everywhere, so its clips, conditions or masks leave no token"

# A selection that keeps nothing.
sed 's/^  advantage:.*/  kept: {op: select, of: rollout, groups: group_mean(reward) > 0}/; s/of: rollout, mini/of: kept, mini/; s/loss: .*/loss: -token_mean(logprob)}/; /score:/d' equal.yaml |
    sed 's/^params: .*//' >none.yaml
status 0 "$gr" exec none.yaml --out none --steps 2
says 1 "^warning: step 1: 'update' has no rows to learn from: 'kept' kept none"

# A critic has its own.
ppo_graph ppo.yaml
classifier judge model
status 0 "$gr" exec ppo.yaml --out critic --steps 2 --set 'nodes.update_critic.loss=token_mean(0 * value)'
says 1 "step 1: every gradient of 'update_critic' is exactly 0"
[ "$(metric critic 1 update_critic.zero_steps)" = 2 ] || fail "zero_steps of the critic"
