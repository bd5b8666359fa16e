#!/bin/sh
# Validations: planned beside the iterations, the same records each time, no influence on what is trained.
. "$(dirname "$0")/lib.sh"

head -n 20 train.jsonl >test.jsonl
# with_validation FILE EVERY BEFORE: the tiny graph and two validations of it, one sampled and one greedy
with_validation() {
    graph "$1"
    sed -i '/^run:/d' "$1"
    cat >>"$1" <<END
  check_prompts: {op: prompts, file: test.jsonl, batch: 64, max_tokens: 8, template: "{question}", every: $2, before: $3}
  check: {op: generate, model: actor, prompts: check_prompts, samples: 4, temperature: 0.7, max_tokens: 6}
  digits: {op: reward, of: check, answer: check_prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  solved: {op: compute, expr: digits > 0.5, metrics: {of_any: "batch_mean(group_max(where(solved, 1, 0)))", pass_4: "batch_mean(pass_at(group_count(digits), group_count(solved), 4))", prompts: batch_count(check_prompts.length)}}
  greedy: {op: generate, model: actor, prompts: check_prompts, temperature: 0, max_tokens: 6}
  greedy_digits: {op: reward, of: greedy, answer: check_prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
run: {steps: 6, seed: 7, samples: 2}
END
}
with_validation val.yaml 2 true

# Named val. in the lines of steps 0, 2, 4 and 6; the line of step 0 has nothing else.
status 0 "$gr" exec val.yaml --out run --check-memory
has out 'validation at step 0: digits [0-9.]+, greedy_digits [0-9.]+, solved.of_any [0-9.]+, solved.pass_4 [0-9.]+, solved.prompts 20'
has out 'validation at step 6: digits'
for step in 0 2 4 6; do
    for name in digits greedy_digits check.response_tokens_mean greedy.truncated_fraction solved.of_any seconds; do
        [ -n "$(metric run $step "val\.$name")" ] || fail "no val.$name at step $step"
    done
    [ "$(metric run $step 'val\.solved\.pass_4')" = "$(metric run $step 'val\.solved\.of_any')" ] ||
        fail "pass@4 of 4 is that any is right"
    [ "$(metric run $step 'val\.solved\.prompts')" = 20 ] || fail "20 records are there, and none twice"
    [ -n "$(metric run $step 'val\.seconds\.check')" ] || fail "no time of the validation's rollout"
done
for step in 1 3 5; do [ -z "$(metric run $step 'val\.digits')" ] || fail "a validation at step $step"; done
[ -z "$(metric run 0 loss)" ] || fail "step 0 has a loss"
[ -z "$(metric run 2 'seconds\.check')" ] || fail "the validation counts as the iteration's time"

# What is trained does not know of it, and its numbers have no other hash.
status 0 "$gr" exec grpo.yaml --out plain
same_weights run plain
without() { metrics "$1" | sed -E '/^\{"step": 0,/d; s/, "val\.[^:]*": [^,}]*//g'; }
without run >a
without plain >b
diff a b || fail "a validation changes an iteration's metrics"
[ "$(sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' run/plan.json)" = "$(sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' plain/plan.json)" ] ||
    fail "a validation changes the hash of what is trained"

# The same weights give the same numbers: with greedy sampling whatever the step is.
status 0 "$gr" exec val.yaml --set models.actor.train.lr=0 --out still
for step in 2 4 6; do
    [ "$(metric still $step 'val\.greedy_digits')" = "$(metric still 0 'val\.greedy_digits')" ] ||
        fail "other records or weights at step $step"
done
# Behind an update it reads the new weights: step 0 of a run from the checkpoint of step 2 is step 2.
status 0 "$gr" exec val.yaml --set run.checkpoint.every=2 --out saved
status 0 "$gr" exec val.yaml --set model=saved/checkpoints/step-2/actor --out from2
for name in greedy_digits greedy.response_tokens_mean; do
    [ "$(metric from2 0 "val\.$name")" = "$(metric run 2 "val\.$name")" ] || fail "$name of step 2 is of other weights"
done

# A budget that makes everything come and go changes nothing.
status 3 "$gr" plan val.yaml --budget 4KiB
least=$(least_budget)
status 0 "$gr" exec val.yaml --budget "$least" --out tight --check-memory
has tight/plan.json '"validate": \{"entry": \[[0-9, ]+\], "exit": \[[0-9, ]+\], "steps": \[$'
sed -n '/"validate"/,/"checkpoint"/p' tight/plan.json >validate.json
has validate.json '"kind": "load", "what": "actor.params'
has validate.json '"kind": "release", "what": "actor.params'
same_weights run tight
same_metrics run tight
status 0 "$gr" verify tight/plan.json
for policy in transition $([ "$slow" = 0 ] || echo keep every_node); do
    status 0 "$gr" exec val.yaml --policy $policy --out $policy --check-memory
    same_weights run $policy
    same_metrics run $policy
done
status 0 "$gr" plan val.yaml
has out 'validation, between iterations'
status 0 "$gr" plan val.yaml --format csv
has out ',run,check.finish,check,'

# NeMo-RL PR 1159: what validation brought to the device must leave it. A plan in which it stays is refused.
drop() { # FILE LINE-PATTERN: the first such step of the path validate becomes another kind
    awk -v pattern="$2" '/"validate"/ {on = 1} on && $0 ~ pattern && !done {sub(/"kind": "release"/, "\"kind\": \"resume\""); done = 1} {print}' \
        tight/plan.json >"$1"
    ! cmp -s tight/plan.json "$1" || fail "nothing was dropped"
}
drop left.json '"kind": "release", "what": "actor.params'
refused 'plan breaks rule' "$gr" verify left.json
refused 'plan breaks rule' "$gr" exec val.yaml --plan left.json --out left

# Stopped and resumed, it goes on as if it had not been.
status 0 "$gr" exec val.yaml --set models.actor.train.schedule=constant --out whole
for k in 1 2; do # within, and at a validation
    status 0 "$gr" exec val.yaml --set models.actor.train.schedule=constant --steps $k --out part$k
    status 0 "$gr" exec --resume part$k --steps 6
    same_weights whole part$k
    same_metrics whole part$k
done

# Two rhythms, of which one alone begins before the first iteration.
with_validation two.yaml 2 false
sed -i '/^run:/d' two.yaml
cat >>two.yaml <<'END'
  other_prompts: {op: prompts, file: test.jsonl, batch: 4, shuffle: false, max_tokens: 8, template: "{question}", every: 3, before: true}
  other: {op: generate, model: ref, prompts: other_prompts, temperature: 0, max_tokens: 6}
  other_digits: {op: reward, of: other, answer: other_prompts.answer, rule: exact}
run: {steps: 6, seed: 7, samples: 2}
END
status 0 "$gr" exec two.yaml --out two --check-memory
there() { sed -nE "s/^\{\"step\": ([0-9]+),.*\"val\.$1\":.*/\1/p" two/metrics.jsonl | tr '\n' ' '; }
[ "$(there digits)" = "2 4 6 " ] || fail "digits at $(there digits)"
[ "$(there other_digits)" = "0 3 6 " ] || fail "other_digits at $(there other_digits)"
same_weights run two

# The report shows them.
status 0 "$gr" report run
has out '^tiny: 6 iterations'
has out '^val.digits first .* in step [0246]$'
lacks out 'val.check.tokens'

# Refused, each with its place.
bad() { # PATTERN SED-SCRIPT
    sed -E "$2" val.yaml >bad.yaml
    ! cmp -s val.yaml bad.yaml || fail "nothing changed: $2"
    refused "bad.yaml:[0-9]+:[0-9]+: error: $1" "$gr" check bad.yaml
}
bad "'every' must be a whole number of at least 1" 's/every: 2/every: 0/'
bad "'check' runs on validations, but 'prompts', which it reads, in the iterations" \
    's/(check: .*)prompts: check_prompts, (.*)\}$/\1prompts: prompts, \2, every: 2}/'
bad "'before' goes with 'every'" 's/(  old_logprob: .*)\}$/\1, before: true}/'
bad "'check' runs every 3 iterations, but 'check_prompts', which it reads, every 2" 's/(  check: .*)\}$/\1, every: 3}/'
bad "'update' would train on a validation" 's/of: rollout$/of: check/'
bad "'when' does not go with 'every'" 's/(  check: .*)\}$/\1, when: step > 3}/'
bad "'kl_now' runs in every iteration, and cannot wait for 'digits' of a validation" 's/(  kl_now: .*)\}$/\1, after: digits}/'
bad "'n' reads 'digits', which runs on validations alone" 's/^nodes:$/log: {n: batch_mean(digits)}\nnodes:/'
