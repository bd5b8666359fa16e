#!/bin/sh
# Settings that the other tests leave alone: data from a command, sampling from a part, stop texts and ids, a value a
# token, greedy sampling, supervised graphs, two trained models; all of them resume, and run in the least memory.
. "$(dirname "$0")/lib.sh"

same_everywhere() { # GRAPH STEPS MODEL...: undisturbed, resumed half-way, and in the least memory, held to it
    graph=$1
    steps=$2
    shift 2
    status 0 "$gr" exec $graph.yaml --steps $steps --out $graph
    status 0 "$gr" exec $graph.yaml --steps $((steps / 2)) --out part-$graph
    status 0 "$gr" exec --resume part-$graph --steps $steps
    status 3 "$gr" plan $graph.yaml --budget 4KiB
    least=$(least_budget)
    status 0 "$gr" exec $graph.yaml --steps $steps --out least-$graph --budget $least --check-memory
    for other in part least; do
        for m in "$@"; do
            for f in model optimizer; do
                cmp $graph/checkpoints/step-$steps/$m/$f.safetensors $other-$graph/checkpoints/step-$steps/$m/$f.safetensors ||
                    fail "$graph: $f of $m differs: $other"
            done
        done
        same_metrics $graph $other-$graph
    done
}

cat >odd.yaml <<'END'
graph: odd
models:
  actor: {checkpoint: model, train: {lr: 1.0e-2, weight_decay: 0.1, betas: [0.9, 0.95]}}
nodes:
  prompts: {op: prompts, command: "cat train.jsonl", batch: 6, max_tokens: 8, template: "{question}", shuffle: false}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 3, temperature: 1.3, top_k: 5, top_p: 0.9, max_tokens: 9, stop: ["=", "12"], stop_ids: [3, 4]}
  reward:  {op: reward, of: rollout, answer: prompts.answer, rule: {compare: prefix}, level: token}
  old:     {op: logprob, model: actor, of: rollout}
  adv:     {op: compute, expr: "suffix_sum(reward) + random() - 0.5"}
  update: {op: update, model: actor, of: rollout, mini_batch: 2, loss: "-token_mean(adv * exp(logprob - old)) - 0.01 * token_mean(entropy)", when: step > 1}
run: {steps: 5, samples: 6}
END
same_everywhere odd 6 actor
status 0 "$gr" exec odd.yaml --out said
has out 'stop ids 3 \(U\) 4 \(0\)$'
has err "warning: 'top_k'"
has err "warning: 'top_p'"
lacks odd/samples.jsonl '"response": "[^"]*(=|12)'
lacks odd/samples.jsonl '"response": "[^"]*[0U]'

sed 's/temperature: 1.3, top_k: 5, top_p: 0.9/temperature: 0/' odd.yaml >greedy.yaml
same_everywhere greedy 4 actor
[ "$(metric greedy 4 logprob_gap_max)" = 0 ] || fail "greedy: gap of $(metric greedy 4 logprob_gap_max)"

head -n 300 train.jsonl >few.jsonl
cat >warm.yaml <<'END'
graph: warm
models:
  actor: {checkpoint: model, train: {lr: 1.0e-2}}
nodes:
  examples: {op: sequences, file: few.jsonl, batch: 32, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: 4}
  update: {op: update, model: actor, of: examples, mini_batch: 8, loss: "-token_mean(logprob)"}
run: {epochs: 2, checkpoint: {every: 7, keep: 1}}
END
status 0 "$gr" exec warm.yaml --out epochs
[ "$(last_step epochs)" = 19 ] && [ "$(ls epochs/checkpoints | wc -l)" = 1 ] || fail "$(ls epochs/checkpoints)"
same_everywhere warm 24 actor # past the ends of epochs

status 0 "$gr" exec warm.yaml --set run.checkpoint.last=false --out unfinished
[ "$(grep -c . unfinished/metrics.jsonl)" = 19 ] && [ "$(ls unfinished/checkpoints)" = step-14 ] || fail "$(ls unfinished/checkpoints)"

cat >two.yaml <<'END'
graph: two
models:
  a: {checkpoint: model, train: {lr: 1.0e-2}}
  b: {checkpoint: model, train: {lr: 1.0e-3}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: a, prompts: prompts, samples: 2, max_tokens: 6}
  base: {op: logprob, model: b, of: rollout}
  gain: {op: compute, expr: rollout.length - group_mean(rollout.length)}
  ua: {op: update, model: a, of: rollout, loss: "-token_mean(gain * exp(logprob - base))"}
  ub: {op: update, model: b, of: rollout, loss: "-token_mean(logprob)", after: ua}
run: {steps: 4}
END
same_everywhere two 4 a b
refused 'choose one' "$gr" export two -o x
status 0 "$gr" export two --model b -o x
refused "no model 'c'" "$gr" export two --model c -o y

# What a setting is about is not there: it is refused, or a warning says that it does nothing.
for key in workers=2 in_flight=2 timeout=2; do
    refused "'${key%=*}' goes with 'command' or 'http': a rule asks nobody" "$gr" check grpo.yaml --set nodes.reward.$key
done
refused "'take' chooses among the matches of 'extract'" "$gr" check grpo.yaml --set 'nodes.reward.rule={compare: string, take: first}'
idle() { # PATTERN SETTING
    status 0 "$gr" check grpo.yaml --set "$2"
    has err "warning: $1"
}
idle "'best_is' has no effect with no 'best' beside it" run.checkpoint.best_is=min
for key in 'precision={rollout: fp8}' 'precision={kv: fp8}' 'residency={kv: keep}' 'residency={rollout_weights: keep}'; do
    idle "model 'ref' has '.*: .*', which is about rollouts, and none is made with it" "models.ref.$key"
done
for key in gradients optimizer; do
    idle "model 'ref' has 'residency: \\{$key: ...\\}', which is about updates, and none is made with it" models.ref.residency.$key=keep
done
status 0 "$gr" check grpo.yaml --set 'models.ref.precision={train: fp8}' --set models.actor.residency='{kv: keep, gradients: keep}'
lacks err 'and none is made with it'
