#!/bin/sh
# Selections of tokens: all rows stay, and what is left out does not exist for expressions. So a run has the bits of one
# whose every reduction is given the condition; under any budget, after a resume, behind and before other selections.
. "$(dirname "$0")/lib.sh"

# usage: write FILE KEYS LOSS: the keys of node kept beside `of`; the loss that is trained on it.
write() {
    cat >"$1" <<END
graph: masked
params: {model: model, data: train.jsonl}
models:
  actor: {checkpoint: \$model, train: {lr: 1.0e-2, grad_clip: 1.0}}
nodes:
  prompts: {op: prompts, file: \$data, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6}
  score: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  old_logprob: {op: logprob, model: actor, of: rollout}
  advantage: {op: compute, expr: score + rollout.length / 10 - group_mean(score + rollout.length / 10)}
  kept: {op: select, of: rollout, $2}
  update:
    op: update
    model: actor
    of: kept
    mini_batch: 4
    loss: |
      ratio = exp(logprob - old_logprob)
      $3
run: {steps: 4, seed: 3, samples: 2}
END
}
plain() { # FILE: without the selection
    sed -i '/^  kept: /d; s/of: kept/of: rollout/' "$1"
    lacks "$1" kept
}

# What counts is said by the model: tokens it was undecided about. Each loss, and the same with its reductions' masks.
cond='old_logprob < -2.5'
n=0
for pair in 'token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.28)))|token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.28)), COND)' \
    'batch_mean(seq_mean(-advantage * ratio))|batch_mean(seq_mean(-advantage * ratio, COND))' \
    'batch_mean(-advantage * exp(seq_mean(logprob - old_logprob)) * seq_count())|batch_mean(-advantage * exp(seq_mean(logprob - old_logprob, COND)) * seq_count(COND))' \
    '-token_mean(logprob * rollout.position) * token_count()|-token_mean(logprob * rollout.position, COND) * token_count(COND)'; do
    n=$((n + 1))
    write with.yaml "tokens: $cond" "${pair%|*}"
    write without.yaml "tokens: $cond" "$(echo "${pair#*|}" | sed "s/COND/$cond/g")"
    plain without.yaml
    status 0 "$gr" exec with.yaml --out with-$n --check-memory
    status 0 "$gr" exec without.yaml --out without-$n
    same_weights with-$n without-$n
    for step in 1 2 3 4; do
        for name in loss reward_mean response_tokens_mean logprob_gap_max; do
            [ -n "$(metric with-$n $step $name)" ] && [ "$(metric with-$n $step $name)" = "$(metric without-$n $step $name)" ] ||
                fail "$name of loss $n differs at step $step"
        done
    done
    [ "$(metric with-$n 2 entropy)" != "$(metric without-$n 2 entropy)" ] || fail "the update's entropy is of all tokens"
done

# Scans and places skip what is left out; the number that counts; and rows are whole, for rewards and for fields.
sed 's/^  kept: .*/&\n  again: {op: reward, of: kept, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}/
     s/mini_batch: 4/mini_batch: 0/; s/^nodes:/  ref: {checkpoint: $model}\n&\n  ref_logprob: {op: logprob, model: ref, of: kept}/' with.yaml >told.yaml
sed -i '/^run:/d' told.yaml
cat >>told.yaml <<'END'
    metrics:
      count: token_count()
      step: token_max(where(next(rollout.position, -1) < 0, 0, next(rollout.position, -1) - rollout.position))
      back: token_max(rollout.position - next(rollout.position, 99))
      last: token_sum(at_last(rollout.length)) - batch_sum(where(seq_count() > 0, rollout.length, 0))
      rows: batch_max(abs(again - score)) + batch_max(abs(kept.length - rollout.length)) + token_max(abs(kept.token - rollout.token))
      kl: "token_mean(exp(ref_logprob - old_logprob) - (ref_logprob - old_logprob) - 1)"
run: {steps: 4, seed: 3}
END
status 0 "$gr" exec told.yaml --out told --check-memory
skips=0
for step in 1 2 3 4; do
    counted=$(metric told $step kept.tokens)
    [ "$counted" = "$(metric told $step update.count)" ] || fail "kept.tokens is $counted, token_count() $(metric told $step update.count)"
    awk "BEGIN { exit !($counted > 0 && $counted < 32 * $(metric told $step response_tokens_mean)) }" ||
        fail "$counted tokens count: the test says nothing"
    [ "$(metric told $step update.rows)" = 0 ] || fail "a reward sees other rows, or fields moved"
    [ "$(metric told $step update.last)" = 0 ] || fail "at_last is not at the last token that counts"
    awk "BEGIN { exit !($(metric told $step update.back) < 0) }" || fail "next is not in the order of the response"
    awk "BEGIN { d = $(metric told $step kl) - $(metric told $step update.kl); exit !(d < 1e-6 && d > -1e-6) }" ||
        fail "kl is $(metric told $step kl), not $(metric told $step update.kl): of all tokens"
    awk "BEGIN { exit !($(metric told $step update.step) > 1) }" && skips=1
done
[ $skips = 1 ] || fail "next never skips a token: the test says nothing"

# All tokens: the bits of a graph without the node. None: nothing moves.
write all.yaml 'tokens: rollout.position >= 0' 'token_mean(-advantage * ratio)'
cp all.yaml none.yaml
plain none.yaml
status 0 "$gr" exec all.yaml --out all
status 0 "$gr" exec none.yaml --out none
same_weights all none
sed 's/position >= 0/position < 0/' all.yaml >nothing.yaml
status 0 "$gr" exec nothing.yaml --set models.actor.train.weight_decay=0 --out nothing --check-memory
[ "$(metric nothing 4 kept.tokens)" = 0 ] && [ "$(metric nothing 4 loss)" = 0 ] || fail "trained on nothing"
status 0 "$gr" init --config model.json --tokenizer "$project/graphs/quickstart" --seed 1 -o again
cmp nothing/checkpoints/step-4/actor/model.safetensors again/model.safetensors || fail "no token counts, but weights moved"

# Two of them are one whose condition is both; a selection of sequences keeps the mask, and which is first is the same.
both='rollout.position < 4 and old_logprob < -2'
write both.yaml "tokens: $both" 'token_mean(-advantage * ratio)'
chain() { # FILE FIRST SECOND
    write "$1" "$2" 'token_mean(-advantage * ratio)'
    sed -i "s/^  kept: /  first: /; s/^  update:/  kept: {op: select, of: first, $3}\n&/" "$1"
}
chain chain.yaml 'tokens: rollout.position < 4' 'tokens: old_logprob < -2'
chain after.yaml "tokens: $both" 'sequences: not rollout.truncated'
chain before.yaml 'sequences: not rollout.truncated' "tokens: $both"
for g in both chain after before; do status 0 "$gr" exec $g.yaml --out $g --check-memory; done
same_weights both chain
[ "$(metric both 1 kept.tokens)" = "$(metric chain 1 kept.tokens)" ] || fail "two masks are not both"
same_weights after before
cmp -s both/checkpoints/step-4/actor/model.safetensors after/checkpoints/step-4/actor/model.safetensors &&
    fail "nothing is truncated: the test says nothing"

# The same bits under any budget, whose plans are proven, and after a stop.
any_budget with with-4
any_stop with with-4 4 2

# Supervised: some of a response that a file gives.
cat >sft.yaml <<'END'
graph: sft
models: {actor: {checkpoint: model, train: {lr: 1.0e-2}}}
nodes:
  answers: {op: sequences, file: train.jsonl, batch: 8, prompt: "{question}", response: "{answer}=", max_prompt_tokens: 8, max_tokens: 8}
  kept: {op: select, of: answers, tokens: answers.position > 0}
  update: {op: update, model: actor, of: kept, loss: -token_mean(logprob)}
run: {steps: 2, seed: 3}
END
sed '/kept: /d; s/of: kept/of: answers/; s/loss: .*}/loss: "-token_mean(logprob, answers.position > 0)"}/' sft.yaml >sft-plain.yaml
status 0 "$gr" exec sft.yaml --out sft --check-memory
status 0 "$gr" exec sft-plain.yaml --out sft-plain
same_weights sft sft-plain
