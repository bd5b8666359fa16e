#!/bin/sh
# Rows drawn by weight: a copy has every value of the row that was drawn, weights are what is drawn by, draws follow from
# the seed and the iteration alone, under any budget and after a resume; what are no weights ends the run.
. "$(dirname "$0")/lib.sh"

# usage: write FILE WEIGHT [KEYS]: node drawn, and values that must be 0 as metrics of the update.
write() {
    cat >"$1" <<END
graph: drawn
params: {model: model, data: train.jsonl}
models:
  actor: {checkpoint: \$model, train: {lr: 1.0e-2, grad_clip: 1.0}}
nodes:
  prompts: {op: prompts, file: \$data, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6}
  score: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  all_logprob: {op: logprob, model: actor, of: rollout}
  earned: {op: compute, expr: score + rollout.length / 10}
  advantage: {op: compute, expr: earned - group_mean(earned)}
  spread: {op: compute, expr: group_std(earned)}
  drawn: {op: select, of: rollout, resample: "$2", metrics: {longest: batch_max(rollout.length), shortest: -batch_max(-rollout.length), rows: batch_count(rollout.length)}}
  again: {op: reward, of: drawn, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  old_logprob: {op: logprob, model: actor, of: drawn}
  update:
    op: update
    model: actor
    of: drawn
    mini_batch: ${3:-16}
    loss: |
      ratio = exp(logprob - old_logprob)
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.28)))
    metrics:
      copied: token_max(abs(old_logprob - all_logprob)) + token_max(abs(old_logprob - rollout.logprob))
      scored: batch_max(abs(again - score)) + token_max(abs(drawn.length - rollout.length)) + token_max(abs(drawn.token - rollout.token))
      prompts: batch_max(abs(prompts.length - group_mean(prompts.length + 0 * score)))
      earned: batch_mean(earned)
      spread: batch_mean(spread)
run: {steps: 4, seed: 3, samples: 2}
END
}
exact() { # RUN: copies are what these rows give by themselves, and metrics of the rollout those of all its rows
    for step in 1 2 3 4; do
        for name in copied scored prompts; do
            [ "$(metric $1 $step update.$name)" = 0 ] || fail "$1: $name is $(metric $1 $step update.$name)"
        done
        [ "$(metric $1 $step logprob_gap_max)" = 0 ] || fail "$1: sampled log-probs moved"
        [ "$(metric $1 $step drawn.rows)" = 32 ] || fail "$1: $(metric $1 $step drawn.rows) rows were drawn of 32"
    done
}
holds() { awk "BEGIN { exit !($1) }" || fail "${2:-not so: $1}"; }

# All alike: some rows several times, so that about 1 - 1/e of them are there; others in each iteration.
write even.yaml 1
status 0 "$gr" exec even.yaml --out even --check-memory
exact even
for step in 1 2 3 4; do holds "$(metric even $step drawn.distinct) > 12 && $(metric even $step drawn.distinct) < 29"; done
[ "$(for step in 1 2 3 4; do metric even $step drawn.distinct; done | sort -u | wc -l)" -gt 1 ] || fail "the same is drawn in each iteration"

# Weights choose: only the longest responses; none of weight 0.
write longest.yaml 'where(rollout.length == batch_max(rollout.length), 0.25, 0)'
status 0 "$gr" exec longest.yaml --out longest --check-memory
exact longest
for step in 1 2 3 4; do holds "$(metric longest $step drawn.shortest) == $(metric longest $step drawn.longest)"; done
holds "$(metric even 1 drawn.shortest) < $(metric even 1 drawn.longest)" "all responses are of one length: the test says nothing"
# A condition is 0 or 1; the sampled rows of the first iteration are the same, and reward_mean is theirs.
write condition.yaml 'rollout.length == batch_max(rollout.length)'
status 0 "$gr" exec condition.yaml --out condition
same_weights longest condition
for name in reward_mean response_tokens_mean truncated_fraction tokens; do
    [ -n "$(metric even 1 $name)" ] && [ "$(metric even 1 $name)" = "$(metric longest 1 $name)" ] || fail "$name is of the rows drawn"
done

# A weight a prompt draws whole groups: rows compare with those of their group, and mini-batches count groups.
write groups.yaml 'group_mean(earned)' 4
sed -i 's/^  again: /  inside: {op: compute, of: drawn, expr: earned - group_mean(earned)}\n&/; s/^      spread: .*/&\n      grouped: batch_max(abs(inside - advantage)) + batch_max(abs(group_count(earned) - 4)) + batch_max(abs(spread - group_std(earned)))/' groups.yaml
status 0 "$gr" exec groups.yaml --out groups --check-memory
exact groups
for step in 1 2 3 4; do
    holds "$(metric groups $step update.grouped) < 1e-6" "groups were torn: $(metric groups $step update.grouped)"
    holds "$(metric groups $step drawn.distinct) <= 8 && $(metric groups $step drawn.distinct) > 1"
done

# Every weight on one row: a whole batch of copies, whose mean is that row's value. The row is the best one.
write one.yaml 'top(earned, 1, earned > -1)' 8
sed -i 's/^      spread: .*/      best: batch_max(earned) - earned_best/; s/^  again: /  earned_best_: {op: compute, expr: batch_max(earned)}\n&/; s/earned_best$/earned_best_/' one.yaml
status 0 "$gr" exec one.yaml --out one --check-memory
exact one
for step in 1 2 3 4; do
    [ "$(metric one $step drawn.distinct)" = 1 ] || fail "$(metric one $step drawn.distinct) rows were drawn of one"
    [ "$(metric one $step update.best)" = 0 ] || fail "another row than the best was drawn"
done

# The same bits under any budget, whose plans are proven, after a stop, and for the same seed alone.
any_budget even even
any_stop even even 4 1 3

# Other rows are drawn from: of a selection, and of one that refills; and what was drawn can be selected from.
write refill.yaml 1
sed -i 's/^  drawn: {op: select, of: rollout/  kept: {op: select, of: rollout, groups: group_std(earned) > 0, refill: {until: 8, rounds: 30, short: error}}\n  drawn: {op: select, of: kept/' refill.yaml
status 0 "$gr" exec refill.yaml --out refill --check-memory
exact refill
[ "$(metric refill 1 kept.prompts)" = 8 ] || fail "refilled to $(metric refill 1 kept.prompts)"
write inside.yaml 1
sed -i 's/^  again: /  kept: {op: select, of: drawn, sequences: rollout.length > 2, refill: {until: 32, rounds: 30, short: error}}\n&/; s/of: drawn/of: kept/; s/^  kept: {op: select, of: kept/  kept: {op: select, of: drawn/; s/^\(  drawn: .*"\), metrics: .*/\1}/' inside.yaml
status 0 "$gr" exec inside.yaml --out inside --check-memory
for step in 1 2 3 4; do
    [ "$(metric inside $step update.copied)" = 0 ] || fail "copies of a round moved"
    [ "$(metric inside $step kept.prompts)" = 32 ] || fail "refilled to $(metric inside $step kept.prompts)"
done
holds "$(metric inside 1 kept.rounds) > 1" "one round was enough: the test says nothing"

# What is no weight ends the run, and says which.
refuse() { # WEIGHT PATTERN
    write wrong.yaml "$1" 8
    status 1 "$gr" exec wrong.yaml --out wrong
    has err "$2"
    rm -rf wrong
}
refuse '0 - rollout.length' "wrong.yaml:13:[0-9]+: error: node 'drawn': the weight of sequence 1 of 32 is -[1-6]; weights are finite, and 0 or more"
refuse 'where(rollout.length == batch_max(rollout.length), log(0 - 1), 1)' "the weight of sequence [0-9]+ of 32 is -?nan; weights are finite"
refuse '1 / where(group_rank(earned) == 1, 0, 1)' "the weight of sequence [0-9]+ of 32 is inf"
refuse 'group_std(earned) - 9' "the weight of prompt 1 of 8 is -[89]"
refuse 'rollout.length > 9' "wrong.yaml:13:[0-9]+: error: node 'drawn': all 32 weights are 0, so that nothing can be drawn"

# PF-PPO: its three weights, on the same responses.
for weight in 'weight_pow(reward, $power)' 'weight_max_min(reward)' 'weight_max_random(reward)'; do
    status 0 "$gr" exec "$project/graphs/pf_ppo.yaml" --set model="$work/model" --set data="$work/train.jsonl" --set batch=8 \
        --set mini_batch=4 --set max_prompt=8 --set max_tokens=6 --set 'nodes.prompts.template="{question}"' --set nodes.prompts.messages= \
        --set 'nodes.reward.rule={extract: "([0-9])", answer_extract: "([0-9])", compare: string}' \
        --set "nodes.drawn.resample=$weight" --steps 2 --out pf
    holds "$(metric pf 1 drawn.distinct) >= 1 && $(metric pf 1 drawn.distinct) <= 8"
    rm -r pf
done
