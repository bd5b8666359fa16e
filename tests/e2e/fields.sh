#!/bin/sh
# Fields of records as values of expressions: a number a prompt, lists of a number a response token; in selections,
# validations and losses, on several ranks, after a resume. What is no such number is refused with its place.
. "$(dirname "$0")/lib.sh"

# ---- a number a prompt ----------------------------------------------------------------------------------------------

# Each record says the sum that its question asks for, once more inside an object, and a half.
sed -E 's/"question": "([0-9]+)\+([0-9]+)=", "answer": "([0-9]+)"/&, "sum": \3, "deep": {"sum": [\3.5]}, "exact": 0.1/' train.jsonl >sums.jsonl
cat >numbers.yaml <<'END'
graph: numbers
models: {actor: {checkpoint: model, train: {lr: 1.0e-2}}}
nodes:
  prompts: {op: prompts, file: sums.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, max_tokens: 6}
  reward: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  score: {op: compute, expr: reward + 0.01 * rollout.length}
  kept: {op: select, of: rollout, groups: prompts.sum > 60, refill: {until: 8, rounds: 20, short: keep}}
  low: {op: compute, of: kept, expr: batch_count(prompts.sum <= 60), metrics: {any: low}}
  advantage: {op: compute, of: kept, expr: (score - group_mean(score)) * prompts.sum / 100}
  update: {op: update, model: actor, of: kept, mini_batch: 4, loss: -token_mean(advantage * logprob / (1 + prompts.deep.sum.0 / 1000))}
  checked: {op: prompts, file: sums.jsonl, batch: 16, max_tokens: 8, template: "{question}", every: 2}
  hard: {op: compute, expr: batch_mean(checked.sum), metrics: {mean: hard}}
run: {steps: 4, seed: 5, samples: 8}
END
status 0 "$gr" exec numbers.yaml --out numbers
for step in 1 2 3 4; do [ "$(metric numbers $step low.any)" = 0 ] || fail "a prompt of a smaller sum was kept"; done
[ "$(grep -c '"val.hard.mean": [0-9]' numbers/metrics.jsonl)" = 2 ] || fail "validations have no number of their records"

if runs_ranks; then
    status 0 "$gr" exec numbers.yaml --out two --ranks 2 --steps 2
    for step in 1 2; do
        [ "$(metric two $step kept.drawn)" = "$(metric numbers $step kept.drawn)" ] || fail "two ranks select other prompts"
    done
fi
status 0 "$gr" exec numbers.yaml --out part --steps 2
status 0 "$gr" exec --resume part --steps 4
same_weights numbers part
same_metrics numbers part

# The numbers are those of the records drawn, to the last bit: of all the prompts of an iteration.
sed '/kept:/d; /low:/d; /checked:/d; /hard:/d; s/of: kept/of: rollout/; s/, refill.*//' numbers.yaml >all.yaml
cat >>all.yaml <<'END'
log: {sum: batch_sum(prompts.sum), deep: batch_sum(prompts.deep.sum.0), exact: batch_count(prompts.exact == 0.1)}
END
status 0 "$gr" exec all.yaml --out all
for step in 1 2 3 4; do
    want=$(grep "\"step\": $step," all/samples.jsonl | sed -E 's/.*"prompt": "([0-9]+)\+([0-9]+)=".*/\1 \2/' | awk '{ s += $1 + $2 } END { print s, s + NR / 2, NR }')
    [ "$(metric all $step sum) $(metric all $step deep) $(metric all $step exact)" = "$want" ] ||
        fail "step $step: sums $(metric all $step sum), $(metric all $step deep), $(metric all $step exact), not $want"
done

no() { # PATTERN SED: of the data, in which a record is wrong that no iteration draws
    sed "$2" sums.jsonl >wrong.jsonl
    refused "$1" "$gr" exec all.yaml --out no --set nodes.prompts.file=wrong.jsonl --steps 1
    has err "wrong.jsonl:700:1: note: an expression reads it, as 'prompts.sum'"
    rm -rf no
}
no "wrong.jsonl:700:1: error: field 'sum' is a string; a number is wanted" '700s/"sum": [0-9]*/"sum": "many"/'
no "wrong.jsonl:700:1: error: field 'sum' is null" '700s/"sum": [0-9]*/"sum": null/'
no "wrong.jsonl:700:1: error: field 'sum' is true; a number is wanted" '700s/"sum": [0-9]*/"sum": true/'
no "wrong.jsonl:700:1: error: no field 'sum'; did you mean 'num'" '700s/"sum": \([0-9]*\),/"num": \1,/'
no "wrong.jsonl:700:1: error: field 'sum' is a list; a number is wanted" '700s/"sum": [0-9]*/"sum": [1]/'
refused "sums.jsonl:1:1: error: field 'answer' is a string; a number is wanted" "$gr" exec all.yaml --out no --set 'nodes.score.expr=reward + prompts.answer'
has err "sums.jsonl:1:1: note: an expression reads it, as 'prompts.answer'"
rm -rf no

# ---- lists of a number a token --------------------------------------------------------------------------------------

# A weight of each token that names its record and its place; the stop id has one, too.
awk 'BEGIN { for (r = 1; r <= 100; r++) { n = 1 + r % 3; text = substr("7890", 1, n); list = ""
    for (t = 0; t <= n; t++) list = list (t ? ", " : "") r + t / 8
    printf "{\"q\": \"%d=\", \"a\": \"%s\", \"base\": %d, \"w\": [%s], \"none\": [], \"pair\": [[%s], [%d, %d.125, %d.25]]}\n", r % 10, text, r, list, list, r, r, r } }' >lists.jsonl
cat >lists.yaml <<'END'
graph: lists
models: {actor: {checkpoint: model, train: {lr: 1.0e-2}}}
nodes:
  examples: {op: sequences, file: lists.jsonl, batch: 16, prompt: "{q}", response: "{a}", max_prompt_tokens: 4, max_tokens: 5, token_fields: [w, pair, none, a]}
  off: {op: compute, expr: token_sum(abs(examples.w - examples.base - examples.position / 8)), metrics: {sum: off}}
  odd: {op: select, of: examples, sequences: examples.length > 2}
  kept: {op: compute, of: odd, expr: token_sum(abs(examples.w - examples.base - examples.position / 8)), metrics: {off: kept}}
  update: {op: update, model: actor, of: examples, mini_batch: 4, loss: -token_mean(examples.w / 100 * logprob), metrics: {weight: token_sum(examples.w)}}
run: {steps: 6, seed: 5}
END
status 0 "$gr" exec lists.yaml --out lists
for step in 1 2 3 4 5 6; do
    [ "$(metric lists $step off.sum) $(metric lists $step kept.off)" = '0 0' ] || fail "step $step: weights of other tokens"
    awk -v w="$(metric lists $step update.weight)" 'BEGIN { exit !(w > 0) }' || fail "the loss sees no weights"
done
# A loss with the list is a loss with the number that the list is made of.
status 0 "$gr" exec lists.yaml --out made --set 'nodes.update.loss=-token_mean((examples.base + examples.position / 8) / 100 * logprob)'
same_weights lists made
if runs_ranks; then
    status 0 "$gr" exec lists.yaml --out two-lists --ranks 2 --steps 2
    [ "$(metric two-lists 2 off.sum) $(metric two-lists 2 update.weight)" = "0 $(metric lists 2 update.weight)" ] || fail "two ranks have other weights"
fi

# Of pairs, a list each.
status 0 "$gr" exec lists.yaml --out pairs --set nodes.examples.pair='78' \
    --set 'nodes.off.expr=token_sum(abs(examples.pair - examples.base - examples.position / 8))' \
    --set 'nodes.kept.expr=token_sum(abs(examples.pair - examples.base - examples.position / 8))' \
    --set 'nodes.update.loss=-token_mean(examples.pair * logprob)' --set 'nodes.update.metrics={weight: token_sum(examples.pair)}'
for step in 1 2 3; do
    [ "$(metric pairs $step off.sum) $(metric pairs $step kept.off)" = '0 0' ] || fail "step $step: pairs have weights of other tokens"
done

# Without a stop id there is one number less.
refused "lists.jsonl:1:1: error: field 'w' has 3 numbers, but there are 2 tokens of the response" "$gr" exec lists.yaml --out no --set nodes.examples.eos=false
has err "lists.jsonl:1:1: note: an expression reads it, as 'examples.w'"
refused "lists.jsonl:1:1: error: field 'base' is a number; a list of 3 numbers is wanted, one for each of the tokens of the response" \
    "$gr" exec lists.yaml --out no --set nodes.examples.token_fields=base --set 'nodes.off.expr=token_sum(examples.base)' \
    --set nodes.kept.expr=token_sum\(examples.base\) --set 'nodes.update.loss=-token_mean(examples.base * logprob)' --set nodes.update.metrics.weight=0
sed '57s/"w": \[57, /"w": [57, "x", /; 57s/, [0-9.]*\], "none"/], "none"/' lists.jsonl >text.jsonl
refused "text.jsonl:57:1: error: field 'w' has a string at 1, counted from 0; a number is wanted" "$gr" exec lists.yaml --out no --set nodes.examples.file=text.jsonl
sed '57s/"w": \[57, /"w": [/' lists.jsonl >short.jsonl
refused "short.jsonl:57:1: error: field 'w' has 1 numbers, but there are 2 tokens of the response" "$gr" exec lists.yaml --out no --set nodes.examples.file=short.jsonl
