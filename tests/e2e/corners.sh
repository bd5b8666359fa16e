#!/bin/sh
# What is rare but allowed: nodes that sleep, no model, no stop id, data that changed, a graph of another run.
. "$(dirname "$0")/lib.sh"

# Text of no model's tokenizer.
cat >nobody.yaml <<'END'
graph: nobody
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
log: {length: batch_mean(prompts.length)}
run: {steps: 2}
END
status 2 "$gr" exec nobody.yaml --out nobody
has err "nobody.yaml:3:.*'prompts' needs a tokenizer, but the graph has no model"

# A checkpoint without a stop id: the last token of a response is its own.
cp -r model endless
sed -i 's/"eos_token_id": 1/"eos_token_id": null/' endless/config.json
rm -f endless/generation_config.json
cat >examples.yaml <<'END'
graph: examples
params: {model: endless}
models:
  actor: {checkpoint: $model, train: {lr: 1.0e-2}}
nodes:
  examples: {op: sequences, file: data.jsonl, batch: 2, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: 4, shuffle: false}
  reward: {op: reward, of: examples, answer: examples.answer, rule: {compare: string}}
  update: {op: update, model: actor, of: examples, loss: "-token_mean(logprob)"}
log: {score: batch_mean(reward)}
run: {steps: 2, checkpoint: {every: 1}}
END
head -n 6 train.jsonl >data.jsonl
for m in endless model; do
    status 0 "$gr" exec examples.yaml --set model=$m --out examples-$m
    [ "$(metric examples-$m 1 score)" = 1 ] || fail "$m: answers that are not themselves"
done

# Data that changed since the checkpoint begin anew.
status 0 "$gr" exec examples.yaml --out moved
tail -n 5 train.jsonl >data.jsonl
refused "'data.jsonl' of nodes.examples is not what the checkpoint was made with" "$gr" exec --resume moved --steps 3
status 0 "$gr" exec --resume moved --steps 3 --accept-changes
has err "warning: the data of node 'examples' changed since the checkpoint"
status 0 "$gr" exec examples.yaml --steps 1 --out afresh
first=$(sed -nE 's/.*"step": 1,.*"prompt": ("[^"]*").*/\1/p' afresh/samples.jsonl | head -1)
grep -F '"step": 3,' moved/samples.jsonl | head -1 | grep -qF -- "$first" || fail "not the first record: $first"

# While their nodes sleep, no rows are reported; a command scores nothing, and later not what it has slept through.
cat >late.yaml <<'END'
graph: late
models:
  actor: {checkpoint: model, train: {lr: 1.0e-2}}
nodes:
  examples: {op: sequences, file: train.jsonl, batch: 4, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: 4, when: step > 1}
  update: {op: update, model: actor, of: examples, loss: "-token_mean(logprob)", when: step > 1}
run: {steps: 2}
END
status 0 "$gr" exec late.yaml --out late --check-memory
[ "$(metric late 1 tokens)" = null ] && [ "$(metric late 2 tokens)" != null ] || fail "$(cat late/metrics.jsonl)"

cat >digits.sh <<'END'
while read -r line; do
    response=$(printf '%s\n' "$line" | sed 's/.*"response": *"\([^"]*\)".*/\1/')
    id=$(printf '%s\n' "$line" | sed 's/.*"id": *\([0-9]*\).*/\1/')
    echo "{\"id\": $id, \"score\": ${#response}}"
done
END
cat >asleep.yaml <<'END'
graph: asleep
models:
  actor: {checkpoint: model, train: {lr: 1.0e-2}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 4, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 6}
  reward: {op: reward, of: rollout, command: "sh digits.sh", when: step != 1, metrics: {mean: batch_mean(reward)}}
  update: {op: update, model: actor, of: rollout, loss: "-token_mean(logprob * reward)", when: step != 1}
  wake: {op: update, model: other, of: rollout, loss: "-token_mean(logprob)"}
run: {steps: 3}
END
sed -i 's/^nodes:/  other: {checkpoint: model, train: {lr: 1.0e-2}}\nnodes:/' asleep.yaml
sed 's/ when: step != 1,//; s/, when: step != 1//' asleep.yaml >awake.yaml
sed -i 's/lr: 1.0e-2/lr: 0/' asleep.yaml awake.yaml
for g in asleep awake; do status 0 "$gr" exec $g.yaml --out $g; done
[ -z "$(metric asleep 1 reward[.]mean)" ] || fail "a metric of a node that sleeps"
[ "$(metric asleep 2 reward[.]mean)" = "$(metric awake 2 reward[.]mean)" ] || fail "rewards of another iteration"

# Each expression of the log counts the prompts of its own rows.
cat >twice.yaml <<'END'
graph: twice
models:
  actor: {checkpoint: model, train: {lr: 1.0e-2}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
  others:  {op: prompts, file: train.jsonl, batch: 2, max_tokens: 8, template: "1+1="}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 6}
  check: {op: generate, model: actor, prompts: others, samples: 1, max_tokens: 3}
  update: {op: update, model: actor, of: rollout, loss: "-token_mean(logprob)"}
log: {a: batch_sum(prompts.length), b: batch_sum(others.length), c: batch_mean(prompts.length), d: batch_mean(others.length)}
run: {steps: 1}
END
status 0 "$gr" exec twice.yaml --out twice
[ "$(metric twice 1 b) $(metric twice 1 d)" = "8 4" ] || fail "$(cat twice/metrics.jsonl)"

# Two updates of one model take their steps as two epochs of one do; only the first has the rollout's weights. An
# update may have any number of metrics.
cat >epochs.yaml <<'END'
graph: epochs
models:
  actor: {checkpoint: model, train: {lr: 1.0e-2}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 6}
  update: {op: update, model: actor, of: rollout, loss: "-token_mean(logprob * rollout.length)", epochs: 2}
run: {steps: 3}
END
sed 's/, epochs: 2}/}/; /^  update:/{p; s/update:/second:/; s/}$/, after: update}/}' epochs.yaml >pair.yaml
for g in epochs pair; do status 0 "$gr" exec $g.yaml --out $g; done
cmp epochs/checkpoints/step-3/actor/model.safetensors pair/checkpoints/step-3/actor/model.safetensors ||
    fail "two updates are not two epochs"
[ "$(metric pair 3 logprob_gap_max)" = 0 ] || fail "$(cat pair/metrics.jsonl)"
lacks pair/metrics.jsonl 'second.logprob_gap_max'

many=$(for i in $(seq 100); do printf 'm%s: token_count(), ' $i; done)
sed "s/, epochs: 2}/, metrics: {${many%, }}}/" epochs.yaml >many.yaml
status 0 "$gr" exec many.yaml --out many
has many/metrics.jsonl '"update.m100": '

# Without --out a run has a folder of its own below runs, whatever its graph is called.
sed 's|^graph: .*|graph: ../b/c|' epochs.yaml >slashed.yaml
status 0 "$gr" exec slashed.yaml --steps 1
has out '^results are in runs/.._b_c-[0-9]+-[0-9]+$'

# A graph that does not go with a run's checkpoint leaves its directory as it was.
status 0 "$gr" exec epochs.yaml --steps 1 --seed 7 --out own
cp -r own was
status 2 "$gr" exec epochs.yaml --resume own --steps 2
has err "state.json: error: the run has seed 7, but graph 'epochs' has 0"
model wider llama 48 false false
sed 's/samples: 2/samples: 3/' epochs.yaml >more.yaml
status 2 "$gr" exec more.yaml --resume own --steps 2 --set run.seed=7
has err "own/plan.json: error: the run's plan does not serve its graph as it is now set: --replan makes"
refused "unknown parameter 'lr'; the graph has none: a key is set by its path" "$gr" exec --resume own --steps 2 --set lr=0.1
status 2 "$gr" exec epochs.yaml --resume own --steps 2 --replan --set run.seed=7 --set models.actor.checkpoint=wider
has err "'config.json' of models.actor is not what the checkpoint was made with: it was .*'model/config.json'.*'wider/config.json'"
status 2 "$gr" exec epochs.yaml --resume own --steps 2 --replan --accept-changes --set run.seed=7 --set models.actor.checkpoint=wider
has err 'own/checkpoints/step-1/actor'
diff -r -x trace.json -x 'events.*' own was || fail "a refused graph changed the run"
status 0 "$gr" exec epochs.yaml --resume own --steps 2 --set run.seed=7
[ ! -s err ] || fail "$(cat err)"

# What cannot be printed is an error.
got=0
"$gr" ops >/dev/full 2>err || got=$?
[ $got = 1 ] || fail "exit status $got with a full disk"
has err 'cannot write to standard output'
got=0
"$gr" --man >/dev/full 2>err || got=$?
[ $got = 1 ] || fail "exit status $got of a text with a full disk"

# What ends no response: its ids are the checkpoint's, not those that the graph lists, nor texts.
sed 's/max_tokens: 6}/max_tokens: 6, ignore_eos: true}/' grpo.yaml >full.yaml
cmp -s full.yaml grpo.yaml && fail "ignore_eos is not in the graph"
status 0 "$gr" exec grpo.yaml --steps 1 --out short
[ "$(metric short 1 truncated_fraction)" != 1 ] || fail "every response of the model runs to its end anyway"
status 0 "$gr" exec full.yaml --steps 1 --out full
has out 'rollout: stop ids none: every response runs to max_tokens'
[ "$(metric full 1 truncated_fraction)" = 1 ]
[ "$(metric full 1 response_tokens_mean)" = 6 ]
status 0 "$gr" exec full.yaml --steps 1 --set 'nodes.rollout.stop_ids=[3,4,5,6,7,8]' --out listed
has out 'rollout: stop ids 3 '
[ "$(metric listed 1 truncated_fraction)" != 1 ] || fail "listed stop ids end nothing"

# As many nodes as a file may have, each the reader of the one below it; and one more.
chain() { # NODES: six of them are others
    cat <<'GRAPH'
graph: chain
models: {actor: {checkpoint: model, train: {lr: 0.01}}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 2, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 4}
  reward: {op: reward, of: rollout, answer: prompts.answer, rule: exact}
  old: {op: logprob, model: actor, of: rollout}
  update: {op: update, model: actor, of: rollout, loss: token_mean(c0 * exp(logprob - old))}
GRAPH
    awk -v n=$(($1 - 6)) 'BEGIN {
        for (i = 0; i < n; i++) printf "  c%d: {op: compute, expr: c%d * 0.5 + reward}\n", i, i + 1
        printf "  c%d: {op: compute, expr: reward}\nrun: {steps: 1}\n", n
    }'
}
chain 10000 >chain.yaml
status 0 "$gr" check chain.yaml
chain 10001 >chain.yaml
refused 'chain.yaml:4:.*more than 10000 nodes' "$gr" check chain.yaml
chain 9000 | sed 's/expr: c/expr: d/' >chain.yaml # an error each; the first are told what may be meant
refused "unknown name 'd2'; did you mean" "$gr" check chain.yaml
has err "unknown name 'd8994'$"
chain 400 >chain.yaml
status 0 "$gr" exec chain.yaml --out chain --check-memory
