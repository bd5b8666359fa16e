#!/bin/sh
# What other tests have one at a time, together: lag, selections, a critic, a reward model, validations, nodes that sleep,
# small pools of few slots over prompts of several blocks, packed passes of any cut, state on the host. The same bits
# where all moves, under a budget between, and under the least one with a resume; in memory as planned.
. "$(dirname "$0")/lib.sh"
classifier judge model

# Prompts of 16, 32 and 33 tokens: blocks that end with them, begin with them, and one short of either.
head -n 30 train.jsonl | awk '{
    n = split("1 15 16 30 31 32", pad, " "); p = ""
    for (i = 0; i < pad[NR % n + 1]; i++) p = p "1"
    sub(/"question": *"/, "&" p); print
}' >padded.jsonl

cat >lagging.yaml <<'END2'
graph: lagging
params: {data: padded.jsonl}
models:
  actor:  {checkpoint: model, train: {lr: 1.0e-2, grad_clip: 1.0, weight_decay: 0.1}}
  ref:    {checkpoint: model}
  critic: {checkpoint: model, head: value, train: {lr: 1.0e-2, grad_clip: 1.0}}
  judge:  {checkpoint: judge}
state: {beta: {init: 0.01, next: "beta * (1 + clip(kl_now, -0.2, 0.2))"}}
nodes:
  prompts: {op: prompts, file: $data, batch: 6, max_tokens: 40, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 3, temperature: 1.1, top_k: 7, top_p: 0.9, max_tokens: 17, concurrent: 4, kv_blocks: 9, stop: ["12"], lag: 1}
  rule: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  kept: {op: select, of: rollout, sequences: rollout.length > 1}
  old: {op: logprob, model: actor, of: kept, micro_tokens: 64}
  reflp: {op: logprob, model: ref, of: kept}
  judged: {op: score, model: judge, of: kept}
  kl_now: {op: compute, expr: batch_mean(seq_mean(old - reflp))}
  values: {op: value, model: critic, of: kept}
  r: {op: compute, of: kept, expr: at_last(rule + 0.1 * rollout.length + 0.1 * judged) - beta * (old - reflp)}
  gae: {op: compute, expr: "discounted_sum(r + next(values, 0) - values, 0.95)"}
  returns: {op: compute, expr: gae + values}
  adv: {op: compute, expr: token_whiten(gae)}
  update_critic: {op: update, model: critic, of: kept, mini_batch: 2, loss: "0.5 * token_mean((value - returns)^2)"}
  update:
    op: update
    model: actor
    of: kept
    mini_batch: 3
    epochs: 2
    balance: true
    when: step != 2
    loss: |
      ratio = exp(clip(logprob - old, -20, 20))
      token_mean(max(-adv * ratio, -adv * clip(ratio, 0.8, 1.2)) - 0.01 * entropy)
  vp: {op: prompts, file: $data, batch: 5, max_tokens: 40, template: "{question}", every: 2}
  vr: {op: generate, model: actor, prompts: vp, samples: 2, temperature: 0, max_tokens: 9, every: 2}
  vj: {op: score, model: judge, of: vr, every: 2, metrics: {best: batch_max(vj)}}
run: {steps: 3, seed: 5, samples: 8}
END2

cat >rounds.yaml <<'END2'
graph: rounds
params: {data: padded.jsonl}
strict: true
models:
  actor: {checkpoint: tied, train: {lr: 1.0e-2, grad_clip: 0.1}, residency: {optimizer: host}}
  ref:   {checkpoint: model}
nodes:
  prompts: {op: prompts, file: $data, batch: 4, max_tokens: 40, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 0.85, max_tokens: 16, concurrent: 3}
  rule: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  kept: {op: select, of: rollout, groups: group_std(rule + rollout.length) > 0, refill: {until: 6, rounds: 3, short: keep}}
  old: {op: logprob, model: actor, of: kept}
  reflp: {op: logprob, model: ref, of: kept}
  sc: {op: compute, of: kept, expr: rule + 0.1 * rollout.length}
  adv: {op: compute, expr: (sc - group_mean(sc)) / (group_std(sc) + 1e-6)}
  update:
    op: update
    model: actor
    of: kept
    mini_batch: 2
    micro_tokens: 70
    loss: |
      cov = (adv - token_mean(adv)) * (logprob - token_mean(logprob))
      left_out = choose(cov > 0, token_count() * 0.1)
      x = clip(reflp - logprob, -20, 20)
      token_mean(where(left_out, 0, -adv * exp(logprob - old)) + 0.01 * (exp(x) - x - 1))
    metrics: {ratio: token_max(exp(logprob - old))}
run: {steps: 3, seed: 6, samples: 8}
END2
model tied llama 32 true false

same() { # GRAPH RUN: as the run without a budget
    same_metrics "$1" "$2"
    for f in "$1"/checkpoints/step-3/*/*.safetensors; do
        cmp "$f" "$2${f#"$1"}" || fail "$2 is not $1"
    done
    cmp "$1/samples.jsonl" "$2/samples.jsonl" || fail "samples of $2 are not those of $1"
    rm -r "$2"
}

for g in lagging rounds; do
    status 0 "$gr" exec $g.yaml --out $g
    numerics=$(sed -nE 's/.*"numerics": *"([0-9a-f]+)".*/\1/p' $g/plan.json | head -1)
    peak=$(json_number $g/plan.json peak_bytes)
    status 3 "$gr" plan $g.yaml --set run.bits=keep --budget 4KiB
    least=$(least_budget)
    [ "$least" -lt "$peak" ] || fail "$g: no budget moves anything"
    for how in '--policy transition' '--policy every_node' "--budget $(((peak + least) / 2))"; do
        case $slow$g$how in 0lagging*every_node | 0rounds*transition) continue ;; esac
        # shellcheck disable=SC2086
        status 0 "$gr" exec $g.yaml --set run.bits=keep $how --out run --check-memory
        has run/plan.json "\"numerics\": *\"$numerics\""
        same $g run
    done
    status 0 "$gr" exec $g.yaml --set run.bits=keep --budget "$least" --steps 1 --out run
    status 0 "$gr" exec --resume run --steps 3 --check-memory
    same $g run
done
[ -n "$(metric lagging 2 'val\.vj\.best')" ] || fail "the validation has no score"
for step in 1 2 3; do
    [ "$(metric rounds $step logprob_gap_max)" = 0 ] || fail "rounds: a gap at step $step"
done
