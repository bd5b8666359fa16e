#!/bin/sh
# `teacher` of an update: distillation over the whole vocabulary. The whole gradient against the loss that it leads to, passes cut
# differently, resumed runs, budgets, other prompts, selections, ranks, refusals.
. "$(dirname "$0")/lib.sh"

model teacher llama 64 true false
model wide qwen3 32 false false
cat >gkd.yaml <<'END'
graph: gkd
params: {student: model, teacher: teacher, lr: 1.0e-2}
models:
  actor: {checkpoint: $student, train: {lr: $lr, grad_clip: 1.0}}
  teacher: {checkpoint: $teacher}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 0.8, max_tokens: 6}
  taught: {op: logprob, model: teacher, of: rollout}
  update:
    op: update
    model: actor
    of: rollout
    mini_batch: 4
    teacher: taught
    loss: token_mean(divergence)
    metrics: {by_samples: token_mean(logprob - taught), least: -token_max(-divergence)}
run: {steps: 6, seed: 7, samples: 0}
END

# The loss of the same rows behind a small step of plain descent is less by the step times the squared norm, for every kind of
# divergence and every class of loss: so the gradient is the loss's, through both layers and the head.
sed -e 's/^  prompts: .*/  rows: {op: sequences, file: train.jsonl, batch: 8, shuffle: false, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: 6}/; /^  rollout:/d; s/of: rollout/of: rows/; /mini_batch/d' \
    -e 's/^  actor: .*/  actor: {checkpoint: $student, train: {optimizer: sgd, momentum: 0, weight_decay: 0, lr: $lr, grad_clip: 0}}/; s/samples: 0/samples: 0, checkpoint: {last: false}/' \
    -e "s|file: train|file: first|" gkd.yaml >descent.yaml
head -8 train.jsonl >first.jsonl
for way in "reverse_kl|token_mean(divergence)" "forward_kl|batch_mean(seq_mean(divergence) ^ 2)" "jsd|token_mean(divergence) ^ 2 + token_mean(0.1 * entropy - logprob)"; do
    set -- descent.yaml --set "nodes.update.divergence=${way%%|*}" --set "nodes.update.loss=${way#*|}" --steps 2
    rm -rf descent
    status 0 "$gr" exec "$@" --set lr=2e-6 --out descent
    for name in loss grad_norm; do metric descent 1 $name; metric descent 2 $name; done | tr '\n' ' ' |
        awk '{ want = 2e-6 * $3 * $3; got = $1 - $2; if (!(want > 0 && got > 0.97 * want && got < 1.03 * want)) { print "want " want ", got " got; exit 1 } }' ||
        fail "$way: the loss does not follow its gradient: $(cat descent/metrics.jsonl)"
done

# A teacher that is the student is at no distance; one that is not is, and less so with time.
status 0 "$gr" exec gkd.yaml --set teacher=model --steps 1 --out own
metric own 1 loss | awk '{ exit !($1 < 1e-4) }' || fail "from itself: $(metric own 1 loss)"
status 0 "$gr" exec gkd.yaml --out whole --check-memory
awk -v a="$(metric whole 1 loss)" -v b="$(metric whole 6 loss)" 'BEGIN { exit !(a > 1 && b < a) }' || fail "it has not come nearer"
awk -v a="$(metric whole 1 update.least)" 'BEGIN { exit !(a >= 0) }' || fail "a divergence below 0"

# Whatever is chosen for its passes, wherever it is stopped, under any budget.
for way in nodes.update.micro_tokens=40 nodes.taught.micro_tokens=40; do
    rm -rf cut
    status 0 "$gr" exec gkd.yaml --set $way --out cut
    same_weights whole cut
done
any_stop gkd whole 6 2
any_budget gkd whole
status 0 "$gr" plan gkd.yaml --format json
has out '"taught.states"'
has out '"update.taught"'

# Other prompts before the teacher, rows that a select kept, several updates by one teacher, a teacher that follows the student.
sed 's|^  taught: .*|  hints: {op: prompts, of: rollout, template: "{answer}:{prompt}", max_tokens: 20}\n  taught: {op: logprob, model: teacher, of: rollout, prompts: hints}|' gkd.yaml >hinted.yaml
status 0 "$gr" exec hinted.yaml --steps 1 --out hinted
[ "$(metric hinted 1 loss)" != "$(metric whole 1 loss)" ] || fail "another prompt teaches the same"
sed 's|^  taught: .*|  kept: {op: select, of: rollout, sequences: rollout.length > 3}\n  taught: {op: logprob, model: teacher, of: kept}|; s/^    of: rollout/    of: kept/' gkd.yaml >kept.yaml
status 0 "$gr" exec kept.yaml --steps 2 --out kept
sed 's|^run:|  follow: {op: copy, from: actor, to: teacher, decay: 0.9, after: update}\n&|; s/^params:.*teacher: teacher/params: {student: model, teacher: model/' gkd.yaml >follow.yaml
status 0 "$gr" exec follow.yaml --steps 3 --out follow
[ "$(metric follow 3 grad_norm)" != 0 ] || fail "a teacher that follows has stayed"
sed 's/grad_clip: 1.0}/grad_clip: 1.0, lora: {rank: 2}}/' gkd.yaml >lora.yaml
status 0 "$gr" exec lora.yaml --steps 2 --out lora
status 0 "$gr" exec gkd.yaml --set student=wide --steps 1 --out wide
sed 's/"update/&/; s/^    loss: .*/    epochs: 2\n    loss: token_mean(divergence) - 0.01 * token_mean(entropy)/' gkd.yaml >epochs.yaml
status 0 "$gr" exec epochs.yaml --steps 2 --out epochs

if runs_ranks; then
    status 0 "$gr" exec gkd.yaml --set canonical=true --out one --steps 2
    status 0 "$gr" exec gkd.yaml --set canonical=true --ranks 2 --out two --steps 2
    same_weights one two
    ways="teacher.gather=layer actor.parallel={context:2}"
    [ "$slow" = 0 ] || ways="$ways actor.gather=layer teacher.parallel={context:2}"
    # shellcheck disable=SC2086 # one word a way
    near_over_two_ranks gkd.yaml whole 1e-4 $ways
    # Of models of one form both output matrices are of one bucket, and gathered for the same pass.
    sed 's/teacher: teacher, lr/teacher: wide, lr/' gkd.yaml >alike.yaml
    status 0 "$gr" exec alike.yaml --steps 2 --out alike
    near_over_two_ranks alike.yaml alike 1e-4 teacher.gather=whole
fi
status 0 "$gr" plan gkd.yaml --ranks 8 --device cuda --hardware h200 --set models.actor.parallel=auto
status 0 "$gr" plan gkd.yaml --device cuda --hardware h200 --format json -o plan.json
status 0 "$gr" verify plan.json

not() { # PATTERN SETTING...
    pattern=$1
    shift
    refused "$pattern" "$gr" check gkd.yaml "$@"
}
not "'teacher' must be a node of op logprob, but 'rollout' is of op generate" --set nodes.update.teacher=rollout
not "unknown node 'tought'" --set nodes.update.teacher=tought
not "'taught' has the model that 'update' trains, whose output matrix changes with each step" --set nodes.taught.model=actor
not "'beta' is of 'divergence: jsd'" --set nodes.update.beta=0.3
not "'beta' must be above 0 and below 1" --set nodes.update.divergence=jsd --set nodes.update.beta=1
not "'divergence' must be one of reverse_kl, forward_kl, jsd, not 'js'" --set nodes.update.divergence=js
not "model 'teacher' of 'taught' is trained itself" --set 'models.teacher.train={lr: 1e-3}'
not "'tensor: 2' does not go with an update that has a 'teacher'" --set 'models.actor.parallel={tensor: 2}'
not "'pipeline: 2' does not go with an update that has a 'teacher'" --set 'models.teacher.parallel={pipeline: 2}'
sed '/^    teacher:/d' gkd.yaml >none.yaml
refused "'divergence' is from a teacher, and 'update' has none: 'teacher: NODE' of op logprob" "$gr" check none.yaml
refused "'beta' says how far a 'teacher' is, and 'update' has none" "$gr" check none.yaml --set nodes.update.beta=0.3
refused "'divergence' is a value of an update's own pass" "$gr" check gkd.yaml --set 'log.far=token_mean(divergence)'
sed 's/^  taught: .*of: kept/  taught: {op: logprob, model: teacher, of: rollout/' kept.yaml >other.yaml
refused "'taught' is of the rows of 'rollout', and 'update' trains on those of 'kept': give it 'of: kept'" "$gr" check other.yaml
sed 's/, after: update}$/}/; s/^    op: update/&\n    after: follow/' follow.yaml >sides.yaml
refused "stand on two sides of 'follow', which changes model 'teacher'" "$gr" check sides.yaml
config less.json llama 32 true false && sed -i 's/"vocab_size": 16/"vocab_size": 12/' less.json
refused "model 'actor' has 16 ids, and its teacher 'teacher' 12" "$gr" check gkd.yaml --set teacher=less.json
sed 's/^models:/pools: {one: {share: 1}, two: {share: 1}}\n&/; s/^  actor: {/&pool: one, /; s/^  teacher: {/&pool: two, /' gkd.yaml >pools.yaml
refused "'taught' teaches on pool 'two' and 'update' learns on pool 'one'" "$gr" plan pools.yaml --ranks 2
