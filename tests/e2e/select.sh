#!/bin/sh
# Selections: what is kept, that values narrow with the rows, and rounds of refills: their bits under any budget and
# after a resume, and what happens when they do not suffice.
. "$(dirname "$0")/lib.sh"

# usage: write FILE SELECT, the keys of the select beside `of`. Values that must be 0 are metrics of the update.
write() {
    cat >"$1" <<END
graph: filtered
params: {model: model, data: train.jsonl}
models:
  actor: {checkpoint: \$model, train: {lr: 1.0e-2, grad_clip: 1.0}}
nodes:
  prompts: {op: prompts, file: \$data, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6}
  score: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  all_logprob: {op: logprob, model: actor, of: rollout}
  kept:
    op: select
    of: rollout
    $2
    metrics: {least_spread: -batch_max(-group_std(score)), cut: "batch_max(where(rollout.truncated, 1, 0))"}
  again: {op: reward, of: kept, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  reward: {op: compute, of: kept, expr: score + rollout.length / prompts.length / 10}
  advantage: {op: compute, expr: reward - group_mean(reward)}
  old_logprob: {op: logprob, model: actor, of: kept}
  update:
    op: update
    model: actor
    of: kept
    mini_batch: 4
    loss: |
      ratio = exp(logprob - old_logprob)
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.28)))
    metrics:
      narrowed: token_max(abs(old_logprob - all_logprob)) + token_max(abs(old_logprob - rollout.logprob))
      scored: batch_max(abs(again - score)) + token_max(abs(kept.length - rollout.length))
run: {steps: 4, seed: 3}
END
}
exact() { # RUN: what narrowed is what these rows give by themselves
    for step in 1 2 3 4; do
        [ "$(metric $1 $step update.narrowed)" = 0 ] || fail "$1: log-probs moved: $(metric $1 $step update.narrowed)"
        [ "$(metric $1 $step update.scored)" = 0 ] || fail "$1: scores moved: $(metric $1 $step update.scored)"
        [ "$(metric $1 $step logprob_gap_max)" = 0 ] || fail "$1: sampled log-probs moved"
    done
}

# Everything kept: the bits of a graph without the node.
write all.yaml 'groups: group_count(score) > 0'
sed '/^  kept:/,/^    metrics:/d; s/of: kept/of: rollout/; s/kept\.length/rollout.length/' all.yaml >none.yaml
status 0 "$gr" exec all.yaml --out all --check-memory
status 0 "$gr" exec none.yaml --out none
exact all
same_weights all none
write all.yaml 'groups: group_count(score) > 0
    refill: {until: 8, rounds: 3, short: error}'
status 0 "$gr" exec all.yaml --out all-refilled
same_weights all-refilled none

# A filter of groups, without and with refill.
write some.yaml 'groups: group_std(score) > 0'
status 0 "$gr" exec some.yaml --out some --check-memory
exact some
write refill.yaml 'groups: group_std(score) > 0
    refill: {until: 8, rounds: 30, short: error}'
status 0 "$gr" exec refill.yaml --out refill --check-memory
exact refill
many=0
for step in 1 2 3 4; do
    [ "$(metric some $step kept.prompts)" -lt 8 ] || fail "all groups differ: the test says nothing"
    [ "$(metric refill $step kept.prompts)" = 8 ] || fail "refilled to $(metric refill $step kept.prompts)"
    rounds=$(metric refill $step kept.rounds)
    [ "$(metric refill $step kept.drawn)" = $((8 * rounds)) ] || fail "$rounds rounds drew $(metric refill $step kept.drawn)"
    [ "$rounds" = 1 ] || many=1
    for run in some refill; do
        case $(metric $run $step kept.least_spread) in 0.*[1-9]*) ;; *) fail "$run: a group of equal scores was kept" ;; esac
    done
done
[ $many = 1 ] || fail "one round was always enough: the test says nothing"

# The same bits under any budget, whose plans are proven, and after a stop between iterations of many rounds.
any_budget refill refill
any_stop refill refill 4 1 3

# Too few: an error that says how many, or a smaller batch, or none at all.
write short.yaml 'groups: group_std(score) > 0
    refill: {until: 8, rounds: 2, short: error}'
status 1 "$gr" exec short.yaml --out short
has err "short.yaml:10:3: error: node 'kept' kept [0-7] of the 8 prompts wanted, of 16 drawn in 2 rounds"
sed -i 's/short: error/short: keep/' short.yaml
status 0 "$gr" exec short.yaml --out kept --check-memory
exact kept
[ "$(metric kept 1 kept.prompts)" -lt 8 ] || fail "nothing was missing"
write nothing.yaml 'groups: group_std(score) > 9
    refill: {until: 8, rounds: 2, short: keep}'
status 0 "$gr" exec nothing.yaml --out nothing --check-memory
[ "$(metric nothing 4 kept.prompts)" = 0 ] && [ "$(metric nothing 4 loss)" = 0 ] || fail "trained on nothing"
status 0 "$gr" init --config model.json --tokenizer "$project/graphs/quickstart" --seed 1 -o again
cmp nothing/checkpoints/step-4/actor/model.safetensors again/model.safetensors || fail "no rows, but weights moved"

# All rows together must be what 32 bits count, also those of many rounds.
config long.json llama 32 false false
sed -i 's/"max_position_embeddings": 64/"max_position_embeddings": 4096/' long.json
sed 's/until: 8/until: 1000000/; s/max_tokens: 6}/max_tokens: 2000}/' refill.yaml >many.yaml
refused 'many.yaml:10:3: error: 4000000 sequences of up to 2000 response tokens are more than 4294967295 tokens' \
    "$gr" check many.yaml --set model=long.json
sed -i 's/until: 1000000/until: 100000/' many.yaml
status 0 "$gr" check many.yaml --set model=long.json

# A filter of sequences.
write seqs.yaml 'sequences: not rollout.truncated
    refill: {until: 8, rounds: 30, short: error}'
status 0 "$gr" exec seqs.yaml --out seqs --check-memory
exact seqs
[ "$(metric refill 1 kept.cut)" = 1 ] || fail "nothing is ever cut: the test says nothing"
for step in 1 2 3 4; do
    [ "$(metric seqs $step kept.cut)" = 0 ] || fail "a response that was cut was kept"
done

# A selection of a selection.
sed 's/^  again:/  fewer: {op: select, of: kept, sequences: rollout.length < 6}\n&/; s/of: kept,/of: fewer,/; s/^    of: kept/    of: fewer/; s/kept\.length/fewer.length/; s/^  fewer: .*of: fewer/  fewer: {op: select, of: kept/' \
    refill.yaml | sed 's/scored: /longest: token_max(rollout.length)\n      &/' >twice.yaml
has twice.yaml 'fewer: .op: select, of: kept'
status 0 "$gr" exec twice.yaml --out twice --check-memory
exact twice
[ "$(metric twice 4 update.longest)" -lt 6 ] || fail "the second selection kept what is too long"

# Logs and metrics see each its own prompts; an iteration that leaves the selection out has none.
sed '/^  kept:/,/^  again:/s/^    op: select/&\n    when: step != 2/; s/^  \(again\|reward\|advantage\|old_logprob\): {/&when: step != 2, /; s/^    mini_batch: 4/&\n    when: step != 2/' \
    some.yaml >when.yaml
cat >>when.yaml <<'END'
log: {drawn: batch_sum(group_count(score))}
END
status 0 "$gr" exec when.yaml --out when --check-memory
for step in 1 2 3 4; do
    [ "$(metric when $step drawn)" = 32 ] || fail "the log counts $(metric when $step drawn) of 32 sequences"
done
[ -z "$(metric when 2 kept.prompts)" ] || fail "when: step 2 was not left out"
[ "$(metric when 1 loss)" = "$(metric some 1 loss)" ] || fail "when changes what step 1 trains on"

# Rewards by a command go through rounds as rules do: each score belongs to its own round.
cat >score.sh <<'END'
while read -r line; do
    id=$(echo "$line" | sed 's/.*"id": *\([0-9]*\).*/\1/')
    digits=$(echo "$line" | sed 's/.*"response": *"\([^"]*\)".*/\1/' | tr -cd 0-9)
    echo "{\"id\": $id, \"score\": ${#digits}}"
done
END
sed 's/answer: prompts.answer, rule: .*}}/command: "sh score.sh"}/; s/score) > 0/score) > 1.2/; s/"sh score.sh"}/"sh score.sh", workers: 2}/' refill.yaml >command.yaml
status 0 "$gr" exec command.yaml --steps 2 --out command
[ "$(metric command 1 update.scored)" = 0 ] && [ "$(metric command 2 update.scored)" = 0 ] ||
    fail "rounds mix the scores of a command"
[ "$(metric command 1 kept.rounds)" -gt 1 ] || fail "one round was enough: the test says nothing"
