#!/bin/sh
# The graphs of the language's proof: each checks, plans, runs, and says the same when run again
# under half of its memory.
. "$(dirname "$0")/lib.sh"

head='graph: proof
params: {model: model, data: train.jsonl, clip: 0.2, lo: 0.2, hi: 0.28}
models:
  actor: {checkpoint: $model, train: {optimizer: adamw, lr: 1.0e-2, grad_clip: 1.0}}
  ref:   {checkpoint: $model}
nodes:
  prompts: {op: prompts, file: $data, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6}
  answers: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  reward:  {op: compute, expr: answers + 0.1 * rollout.length}
  old_logprob: {op: logprob, model: actor, of: rollout}'
foot='run: {steps: 2, seed: 3}'
grpo_advantage='  advantage: {op: compute, expr: "where(group_count(reward) > 1, (reward - group_mean(reward)) / (group_std(reward) + 1e-6), reward / (1 + 1e-6))"}'
clip_loss='      ratio = exp(logprob - old_logprob)
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 1 - $clip, 1 + $clip)))'

write() { # NAME NODES MINI-BATCH LOSS: unused parameters and models are left out
    cat >$1.yaml <<END
$head
$2
  update:
    op: update
    model: actor
    of: rollout
    mini_batch: $3
    loss: |
$4
    metrics: {ppo_kl: token_mean(old_logprob - logprob)}
$foot
END
    for p in clip lo hi; do
        grep -q "\$$p" $1.yaml || sed -i "s/, $p: [0-9.]*//" $1.yaml
    done
    grep -q 'model: ref' $1.yaml || sed -i '/^  ref:/d' $1.yaml
}

runs() { # NAME CLASS
    status 0 "$gr" check $1.yaml --explain
    has out "class: $2"
    [ ! -s err ] || fail "$1: $(cat err)"
    status 0 "$gr" plan $1.yaml --format json
    peak=$(json_number out peak_bytes)
    status 3 "$gr" plan $1.yaml --budget 4KiB
    least=$(least_budget)
    status 0 "$gr" exec $1.yaml --out $1
    [ "$(wc -l <$1/metrics.jsonl)" = 2 ] || fail "$1 made $(wc -l <$1/metrics.jsonl) lines"
    for name in loss grad_norm update.ppo_kl; do
        case $(metric $1 2 $name) in [0-9-]*) ;; *) fail "$1: $name is '$(metric $1 2 $name)'" ;; esac
    done
    [ "$(metric $1 2 grad_norm)" != 0 ] || fail "$1 learns nothing"
    status 0 "$gr" exec $1.yaml --out half-$1 --budget $(((peak + least) / 2))
    same_weights $1 half-$1
    same_metrics $1 half-$1
}

write grpo "$grpo_advantage" 4 "$clip_loss"
runs grpo token-coupled
sed 's/samples: 4/samples: 1/' grpo.yaml >ones.yaml
status 0 "$gr" check ones.yaml
sed -i 's/answers + 0.1/answers - 0.1/' ones.yaml
status 0 "$gr" exec ones.yaml --out ones
[ "$(metric ones 2 grad_norm)" != 0 ] || fail "groups of one learn nothing"

write gspo "$grpo_advantage" 4 '      u  = seq_mean(logprob - old_logprob)
      q  = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))
      batch_mean(seq_mean(max(-advantage*q, -advantage*clip(q, 1-$lo, 1+$hi))))'
runs gspo sequence-coupled

write remax '  greedy:    {op: generate, model: actor, prompts: prompts, samples: 1, temperature: 0, max_tokens: 6}
  greedy_a:  {op: reward, of: greedy, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}, answer: prompts.answer}
  greedy_r:  {op: compute, expr: greedy_a + 0.1 * greedy.length}
  advantage: {op: compute, expr: suffix_sum(at_last(reward)) - group_mean(greedy_r)}' 8 "$clip_loss"
runs remax token-coupled

write clip_cov "$grpo_advantage" 4 '      ratio = exp(logprob - old_logprob)
      l1   = -advantage * ratio
      l2   = -advantage * clip(ratio, 1-$lo, 1+$hi)
      cov  = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))
      drop = choose(l2 <= l1 and cov > 0.01 and cov < 5, max(floor(0.05 * token_count()), 1))
      token_mean(where(drop, 0, max(l1, l2)))'
runs clip_cov mini-batch-coupled

write kl_cov "$grpo_advantage" 4 '      ratio = exp(logprob - old_logprob)
      cov  = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))
      worst = top(cov, max(floor(0.05 * token_count()), 1), token_count() > 0)
      token_mean(-advantage * ratio + where(worst, abs(logprob - old_logprob), 0))'
runs kl_cov mini-batch-coupled

write otb '  advantage:
    op: compute
    expr: |
      G = suffix_sum(at_last(reward))
      W = prefix_sum(1 - 2*exp(old_logprob) + old_logprob.sum_p2)
      b = position_sum(G*W) / (position_sum(W) + 1e-8)
      G - where(position_count() > 1, b, 0)' 4 "$clip_loss"
runs otb token-coupled

write dapo '  kept:   {op: select, of: rollout, groups: group_std(answers) > 0, refill: {until: 8, rounds: 30, short: error}}
  shaped: {op: compute, of: kept, expr: "answers - clip((rollout.length - 3) / 3, 0, 1)"}
  advantage: {op: compute, expr: (shaped - group_mean(shaped)) / (group_std(shaped) + 1e-6)}' 4 '      ratio = exp(logprob - old_logprob)
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 1 - $lo, 1 + $hi)))'
sed -i '/^  reward:/d; s/^    of: rollout/    of: kept/; s/\(old_logprob:.*\)of: rollout/\1of: kept/' dapo.yaml
runs dapo token-coupled

write ppo '  ref_logprob: {op: logprob, model: ref, of: rollout}
  values:    {op: value, model: critic, of: rollout}
  kl:        {op: compute, expr: old_logprob - ref_logprob}
  kl_now:    {op: compute, expr: batch_mean(seq_mean(kl))}
  r:         {op: compute, expr: at_last(reward) - beta * kl}
  gae:       {op: compute, expr: "discounted_sum(r + $gamma * next(values, 0) - values, $gamma * $lam)"}
  returns:   {op: compute, expr: gae + values}
  advantage: {op: compute, expr: token_whiten(gae)}
  update_critic: {op: update, model: critic, of: rollout, loss: "0.5 * token_mean(max((value - returns)^2, (clip(value, values - 0.5, values + 0.5) - returns)^2))"}' 4 "$clip_loss"
sed -i 's/^params: {/&gamma: 1, lam: 0.95, warmup: 2, /; s/^    mini_batch: 4/&\n    when: step >= $warmup/
s/^  ref:/  critic: {checkpoint: $model, head: value, train: {lr: 1.0e-2}}\n&/
s/^nodes:/state: {beta: {init: 0.001, next: "beta * (1 + clip(kl_now \/ 0.1 - 1, -0.2, 0.2) * batch_count(reward) \/ 10000)"}}\n&/' ppo.yaml
runs ppo token-coupled
cmp half-ppo/checkpoints/step-2/critic/model.safetensors ppo/checkpoints/step-2/critic/model.safetensors || fail "critics differ"

# Switches over steps, and a second reading of a model after its update.
write when "$grpo_advantage
  late:   {op: logprob, model: actor, of: rollout, after: update, metrics: {moved: token_mean(late - old_logprob)}}" 4 "$clip_loss"
sed -i 's/^    mini_batch: 4/&\n    when: step != 2/; s/steps: 2/steps: 3/' when.yaml
status 0 "$gr" exec when.yaml --out when
[ "$(metric when 1 late.moved)" != 0 ] || fail "after: update reads the old weights"
[ "$(metric when 2 late.moved)" = 0 ] || fail "when: step 2 was not left out: $(metric when 2 late.moved)"
[ "$(metric when 3 late.moved)" != 0 ] || fail "after: update reads the old weights"
