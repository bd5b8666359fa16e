#!/bin/sh
# `op: copy`: a model that follows another: its weights against the formula, versions, resumed runs, budgets, ranks, refusals.
. "$(dirname "$0")/lib.sh"

flat="--set models.actor.train.schedule=constant"
sed -e 's/^run: .*/run: {steps: 4, seed: 7, samples: 0, checkpoint: {every: 1}}/' grpo.yaml >own.yaml
sed -e 's/^    metrics: {ratio.*/&\n  sync: {op: copy, from: actor, to: ref, after: update}/' own.yaml >copied.yaml
run() { # GRAPH RUN [OPTION]...
    g=$1 to=$2
    shift 2
    # shellcheck disable=SC2086 # options
    status 0 "$gr" exec "$g.yaml" $flat --out "$to" "$@"
}
model() { echo "$1/checkpoints/step-$2/$3/model.safetensors"; }
numbers() { tail -c +$(($(od -An -tu8 -N8 "$1" | tr -d ' ') + 9)) "$1" | od -An -v -w4 -tf4; } # all of a file, in its order

# With decay 0 they are the other's, to the bit: at the end of each iteration, or as it began.
run copied copied
for i in 1 4; do cmp "$(model copied $i actor)" "$(model copied $i ref)" || fail "the reference is not the policy at step $i"; done
[ ! -e copied/checkpoints/step-4/ref/optimizer.safetensors ] || fail "a model that follows has moments"
[ "$(metric copied 1 kl)" = "$(metric copied 3 kl)" ] || fail "the reference is as old as the policy: no distance"
sed 's/, after: update}$/}/' copied.yaml >older.yaml
run older older
cmp "$(model older 3 actor)" "$(model older 4 ref)" || fail "without 'after' it takes the weights as the iteration began"
# Every other iteration.
sed 's/, after: update}$/, after: update, when: step % 2 == 0}/' copied.yaml >second.yaml
run second second
cmp "$(model second 2 actor)" "$(model second 2 ref)" || fail "not in iteration 2"
cmp "$(model second 2 ref)" "$(model second 3 ref)" || fail "and not in 3"
! cmp -s "$(model second 3 actor)" "$(model second 3 ref)" || fail "the policy has not moved"

# With a decay: decay to + (1 - decay) from, in float32. Nobody reads it: training is as without it.
sed 's/  sync: .*/  sync: {op: copy, from: actor, to: mean, decay: 0.75, after: update}/; s/^  ref:   .*/&\n  mean:  {checkpoint: $model}/' copied.yaml >mean.yaml
run own own
run mean mean
same_weights own mean
same_metrics own mean
for i in 1 2 3 4; do numbers "$(model mean $i actor)" >actor$i; numbers "$(model mean $i mean)" >mean$i; done
"$gr" export mean@1 --model mean -o exported >/dev/null
"$gr" export mean@1 -o policy >/dev/null || fail "it is asked which model, where one alone is trained"
cmp policy/model.safetensors "$(model mean 1 actor)" || fail "not the policy is exported"
[ -s exported/config.json ] || fail "a model that follows is not exported"
for i in 2 3 4; do
    paste mean$((i - 1)) actor$i mean$i | awk '{ want = 0.75 * $1 + 0.25 * $2; off = want - $3; if (off < 0) off = -off
        size = ($1 < 0 ? -$1 : $1) + ($2 < 0 ? -$2 : $2); if (off > 3e-7 * size + 1e-12) bad++ ; n++ } END { exit bad || n < 1000 }' || fail "mean at step $i"
done
# A decay that is an expression: nothing stays in the first iteration.
sed 's/decay: 0.75/decay: "where(step == 1, 0, 0.75)"/' mean.yaml >warm.yaml
run warm warm
cmp "$(model warm 1 actor)" "$(model warm 1 mean)" || fail "a decay of 0 is a copy"
! cmp -s "$(model warm 2 actor)" "$(model warm 2 mean)" || fail "a decay of 0.75 is none"

# Stopped, under budgets, on ranks.
for k in 1 3; do
    run mean part$k --steps $k
    status 0 "$gr" exec --resume part$k --steps 4
    same_weights mean part$k
    cmp "$(model mean 4 mean)" "$(model part$k 4 mean)" || fail "resumed behind $k: another mean"
done
status 0 "$gr" audit mean 4
status 3 "$gr" plan mean.yaml --budget 4KiB
least=$(least_budget)
run mean small --budget "$least" --check-memory
same_weights mean small
cmp "$(model mean 4 mean)" "$(model small 4 mean)" || fail "under a budget another mean"
status 0 "$gr" verify small/plan.json
if runs_ranks; then
    run mean one --set canonical=true --steps 2
    run mean ranks --set canonical=true --ranks 2 --steps 2
    cmp "$(model one 2 mean)" "$(model ranks 2 mean)" || fail "on two ranks another mean"
    for who in actor mean "actor mean"; do # whose weights are sharded; elsewhere they are whole
        rm -rf sharded
        # shellcheck disable=SC2046,SC2086
        run mean sharded --set canonical=true --ranks 2 --steps 2 $(printf -- '--set models.%s.gather=layer ' $who)
        has sharded/plan.json '"gather'
        cmp "$(model one 2 mean)" "$(model sharded 2 mean)" || fail "shards of $who: another mean"
    done
fi

# The plan says it, and so does check.
status 0 "$gr" check mean.yaml --explain
has out 'model mean: .*, follows another'
has out '    writes model mean after'
status 0 "$gr" plan mean.yaml --device cuda --hardware h200 --format json
has out '"mean.state.1"'
status 0 "$gr" plan copied.yaml --device cuda --hardware h200 --format json
lacks out '"ref.state'

# A run that goes on without the copy says that it leaves the mean behind.
status 0 "$gr" exec mean.yaml --steps 1 --out left
sed '/op: copy/d' mean.yaml >never.yaml
status 0 "$gr" exec never.yaml --resume left --replan --accept-changes --steps 2
has err "step-1/mean: warning: this model's weights are left out"

# Refused.
"$gr" init --config "$(config other.json llama 16 false false; echo other.json)" --tokenizer "$project/graphs/quickstart" --seed 1 -o other >/dev/null
"$gr" init --config "$(config qwen.json qwen2 32 false false; echo qwen.json)" --tokenizer "$project/graphs/quickstart" --seed 1 -o qwen >/dev/null
not() { # PATTERN SED
    sed "$2" mean.yaml >bad.yaml
    refused "$1" "$gr" check bad.yaml
}
not "'to' is the model that 'from' names" 's/to: mean/to: actor/'
not "model 'ref' has no 'train' settings: its weights never change" 's/from: actor/from: ref/'
not "model 'mean' has 'train' settings: a model is trained, or it follows another" 's/^  mean:.*/  mean: {checkpoint: $model, train: {lr: 1e-3}}/'
not "models 'actor' and 'mean' have other widths" 's/^  mean:.*/  mean: {checkpoint: other}/'
not "models 'actor' and 'mean' have other families" 's/^  mean:.*/  mean: {checkpoint: qwen}/'
not "model 'mean' follows another itself, by 'sync'" 's/^  sync:.*/&\n  more: {op: copy, from: mean, to: ref}/'
not "two nodes write model 'mean': 'more' needs 'after: sync'" 's/^  sync:.*/&\n  more: {op: copy, from: actor, to: mean}/'
not "'decay' must be a number from 0 to 1" 's/decay: 0.75/decay: 1.5/'
not "'decay' is a number, or an expression over step.*not 'half'" 's/decay: 0.75/decay: half/'
not "'sync' would copy weights on a validation" 's/decay: 0.75/every: 2/'
not "model 'actor' trains adapters" 's/lr: $lr, /lr: $lr, lora: {rank: 2}, /'
not "unknown model 'men'" 's/to: mean/to: men/'
not "needs 'from'" 's/from: actor, //'
sed 's/^models:/pools: {one: {share: 1}, two: {share: 1}}\n&/; s/^  actor: {/&pool: one, /; s/^  rollout: {/&pool: two, /' mean.yaml >pools.yaml
refused "'sync' copies weights, which is not built for pools on several sets of ranks" "$gr" plan pools.yaml --ranks 2
