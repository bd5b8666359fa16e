#!/bin/sh
# Expressions where numbers stand: learning rate, temperature, `when` and `stop` follow the iteration and states, have the
# bits of the numbers that they come to, go on after a resume, and end a run that they take out of its range.
. "$(dirname "$0")/lib.sh"

same_as() { # RUN RUN: the bits of both, whatever is logged of states
    same_weights "$1" "$2"
    for run in "$1" "$2"; do metrics "$run" | sed -E 's/"state\.[^,}]*(, )?//g; s/, \}$/}/' >"$run.said"; done
    diff "$1.said" "$2.said" || fail "$1 and $2 differ"
}

# ---- what an expression comes to is what the number would be -------------------------------------------------------------

set -- grpo.yaml --set models.actor.train.warmup=0 --set run.steps=4 --set run.checkpoint.every=2
status 0 "$gr" exec "$@" --set lr=0.003 --set nodes.rollout.temperature=0.7 --out fixed
status 0 "$gr" exec "$@" --set 'lr=0.001 + 0.002 * min(step, 1)' --set 'nodes.rollout.temperature=clip(2 * progress + 0.7, 0.5, 0.7)' \
    --out changing
same_as fixed changing
has changing/graph.yaml 'lr: "0.001 \+ 0.002 \* min\(step, 1\)"'

# ---- a state in all of them, killed and resumed ----------------------------------------------------------------------------

sed 's/^state: {/&heat: {init: 1, next: heat * 0.9}, paid: {init: 0, next: paid + batch_mean(reward)}, /
s/, schedule: cosine//; s/\(  update:\)/\1\n    when: heat < 0.95 or step == 1/; s/^run: {/&stop: step == 7 or heat < 0.1 or reward_mean > 2, /' grpo.yaml >state.yaml
set -- state.yaml --set run.steps=12 --set models.actor.train.warmup=0 --set 'models.actor.train.lr=0.002 * heat' --set nodes.rollout.temperature=heat
status 0 "$gr" exec "$@" --out whole
has out "stopped after iteration 7 of 12, in which 'step == 7 or heat < 0.1 or reward_mean > 2' holds"
[ "$(last_step whole)" = 7 ] || fail "the last checkpoint is of step $(last_step whole)"
awk_near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(d < 1e-9 && d > -1e-9) }'; }
awk_near "$(metric whole 3 lr)" "$(echo | awk '{ print 0.002 * 0.9 * 0.9 }')" || fail "lr is $(metric whole 3 lr)"
status 0 "$gr" exec "$@" --out cut --until 4
status 0 "$gr" exec --resume cut
[ "$(last_step cut)" = 7 ] || fail "the resumed run ended at step $(last_step cut)"
same_as whole cut
if runs_ranks; then
    status 0 "$gr" exec "$@" --ranks 2 --out two
    [ "$(last_step two)" = 7 ] || fail "two ranks ended at step $(last_step two)"
fi
status 0 "$gr" plan state.yaml --set 'models.actor.train.lr=heat' --set nodes.rollout.temperature=heat --format json -o plan.json
status 0 "$gr" verify plan.json
peak=$(json_number plan.json peak_bytes)
status 0 "$gr" plan grpo.yaml --format json
[ "$peak" = "$(json_number out peak_bytes)" ] || fail "the peak depends on a scalar: $peak"

# ---- said where they are wrong -----------------------------------------------------------------------------------------------

status 2 "$gr" exec grpo.yaml --set 'lr=1 / (3 - step)' --set run.steps=4 --out beyond
has err "'lr' is inf in iteration 3; it must be a number from 0 to 1"
has err "'lr=1 / \(3 - step\)'"
status 2 "$gr" exec grpo.yaml --set 'nodes.rollout.temperature=1 - step' --set run.steps=4 --out cold
has err "'temperature' of node 'rollout' is 0 in iteration 1; it must be a number from 1e-06 to 100"
refused "'lr' is a number, or an expression over step, epoch, progress, states and parameters, not 'reward': a state can carry its value" \
    "$gr" check grpo.yaml --set 'lr=batch_mean(reward)'
refused "unknown name 'reward_men'; did you mean 'reward_mean'" "$gr" check grpo.yaml --set 'run.stop=reward_men > 1'
refused "'stop' is a number where a condition is wanted" "$gr" check grpo.yaml --set run.stop=reward_mean
