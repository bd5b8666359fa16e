#!/bin/sh
# Pairs of responses from a file, at batches where what is counted by pair and what is counted by sequence lie in different
# bytes: preferences train, and a reward reads the record that the sequence is of.
. "$(dirname "$0")/lib.sh"

# Records whose fields all say which one it is: the chosen response is the answer, the rejected one never is.
i=0
while [ $i -lt 200 ]; do
    echo "{\"prompt\": \"$((i % 10))+$((i / 10))=\", \"chosen\": \"$((i + 100))\", \"rejected\": \"$((i + 300))\", \"answer\": \"$((i + 100))\"}"
    i=$((i + 1))
done >pairs.jsonl

# ---- graphs/dpo.yaml ------------------------------------------------------------------------------------------------

dpo() { # RUN SETTING...
    run=$1
    shift
    status 0 "$gr" exec "$project/graphs/dpo.yaml" --set model="$work/model" --set data="$work/pairs.jsonl" --set lr=1e-3 \
        --set models.actor.train.warmup=0 --set models.actor.train.schedule=constant --set nodes.pairs.max_prompt_tokens=8 \
        --set nodes.pairs.max_tokens=4 --set 'nodes.pairs.prompt="{prompt}"' --out "$run" "$@"
}
trains() { # RUN STEPS: each with a gradient, and the pairs are told apart better than before
    step=1
    while [ $step -le "$2" ]; do
        awk -v norm="$(metric "$1" $step grad_norm)" 'BEGIN { exit !(norm > 0) }' ||
            fail "$1: the gradient of step $step is $(metric "$1" $step grad_norm)"
        step=$((step + 1))
    done
    awk -v first="$(metric "$1" 1 loss)" -v last="$(metric "$1" "$2" loss)" 'BEGIN { exit !(last < first) }' ||
        fail "$1: the loss went from $(metric "$1" 1 loss) to $(metric "$1" "$2" loss)"
}
for batch in 1 7 64 65 128; do
    dpo dpo-$batch --set batch=$batch --steps 3
    [ $batch -lt 64 ] || trains dpo-$batch 3
done
# With a term of the responses alone, which asks for the sequences of every pair: more than one pair a mini-batch.
dpo nll --set batch=64 --set nodes.update.mini_batch=16 --steps 3 --set 'nodes.update.loss=s = seq_sum(logprob - ref_logprob)
margin = group_sum(where(pairs.second, -s, s))
-batch_mean(log(sigmoid($beta * margin))) - token_mean(logprob, not pairs.second)'
trains nll 3

# ---- rewards of pairs -----------------------------------------------------------------------------------------------

# Every chosen response is right and every rejected one is wrong, by a rule, by rules that the record names and by a
# command that is told the record; in a selection, and for the pairs that a validation draws.
cat >told.sh <<'END'
while read -r line; do
    id=${line#*'"id":'}
    response=${line#*'"response":"'}
    chosen=${line#*'"chosen":"'}
    score=0
    [ "${response%%'"'*}" != "${chosen%%'"'*}" ] || score=1
    echo "{\"id\": ${id%%[,\}]*}, \"score\": $score}"
done
END
cat >paid.yaml <<END
graph: paid
params: {batch: 64}
models: {actor: {checkpoint: model, train: {lr: 1.0e-3}}}
nodes:
  pairs: {op: sequences, file: pairs.jsonl, batch: \$batch, prompt: "{prompt}", response: "{chosen}", pair: "{rejected}", max_prompt_tokens: 8, max_tokens: 4}
  rule: {op: reward, of: pairs, answer: pairs.answer, rule: exact}
  rules: {op: reward, of: pairs, answer: pairs.answer, rules: {by: prompt, $(sed -E 's/.*"prompt": ("[^"]*").*/\1: exact/' pairs.jsonl | sort -u | paste -sd,)}}
  told: {op: reward, of: pairs, command: "sh told.sh", workers: 2}
  right: {op: compute, expr: "where(pairs.second, 0, 1)"}
  odd: {op: select, of: pairs, groups: group_max(pairs.length) > 0}
  odd_rule: {op: reward, of: odd, answer: pairs.answer, rule: exact}
  odds: {op: compute, of: odd, expr: "odd_rule != right", metrics: {wrong: batch_sum(odds)}}
  checked: {op: sequences, file: pairs.jsonl, batch: \$batch, prompt: "{prompt}", response: "{chosen}", pair: "{rejected}", max_prompt_tokens: 8, max_tokens: 4, every: 1}
  check: {op: reward, of: checked, answer: checked.answer, rule: exact}
  checks: {op: compute, expr: "check != where(checked.second, 0, 1)", metrics: {wrong: batch_sum(checks)}}
  update: {op: update, model: actor, of: pairs, loss: "-token_mean(rule * rules * told * logprob)"}
log: {rule: batch_sum(rule != right), rules: batch_sum(rules != right), told: batch_sum(told != right)}
run: {steps: 2, seed: 3, samples: 1000}
END
for batch in 3 64 100; do
    status 0 "$gr" exec paid.yaml --set batch=$batch --out paid-$batch
    for step in 1 2; do
        for what in rule rules told odds.wrong val.checks.wrong; do
            [ "$(metric paid-$batch $step $what)" = 0 ] ||
                fail "batch $batch, step $step: '$what' pays $(metric paid-$batch $step $what) sequences by another record"
        done
    done
    [ "$(grep -c '"step": 2' paid-$batch/samples.jsonl)" = $batch ] || fail "a sample of each pair is asked for"
done
