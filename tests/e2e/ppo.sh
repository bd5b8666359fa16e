#!/bin/sh
# PPO with a critic and a reward model: what holds in the first iteration, how critic and policy share a small budget,
# what survives a stop, what is written, and what is refused.
. "$(dirname "$0")/lib.sh"

ppo_graph ppo.yaml
classifier judge model

same_critics() { # RUN RUN
    same_weights "$1" "$2"
    step=$(last_step "$1")
    for f in model optimizer; do
        cmp "$1/checkpoints/step-$step/critic/$f.safetensors" "$2/checkpoints/step-$step/critic/$f.safetensors" ||
            fail "$f of the critics of $1 and $2 differ"
    done
    same_metrics "$1" "$2"
}

# The value of an update's first pass has the bits of `op: value`, for any shape of the model and any cut; cuts change
# no bit of what is learnt. A tied embedding is no output matrix here.
model qwen2 qwen2 32 false true
model qwen3 qwen3 32 false false
model mistral mistral 32 false false
model tied llama 64 true false
for m in model tied $([ "$slow" = 0 ] || echo qwen2 qwen3 mistral); do
    set -- --set model=$m --set nodes.update.micro_tokens=64 --steps 2
    status 0 "$gr" exec ppo.yaml "$@" --set critic_lr=0 --out still-$m
    [ "$(metric still-$m 1 update_critic.off)" = 0 ] || fail "$m: the values of the first pass are others"
    status 0 "$gr" exec ppo.yaml "$@" --out whole-$m
    [ "$(metric whole-$m 2 update_critic.off)" != 0 ] || fail "$m: the critic learns nothing"
    status 0 "$gr" exec ppo.yaml "$@" --set nodes.values.micro_tokens=17 --set nodes.update_critic.micro_tokens=14 \
        --set nodes.judged.micro_tokens=29 --out cut-$m
    same_critics whole-$m cut-$m
done

# The critic learns first, and learns to predict; the controller moves beta.
status 0 "$gr" exec ppo.yaml --set run.checkpoint.every=1 --out run
cmp run/checkpoints/step-1/actor/model.safetensors model/model.safetensors || fail "the policy moved before its time"
! cmp -s run/checkpoints/step-2/actor/model.safetensors model/model.safetensors || fail "the policy never moved"
[ "$(metric run 1 loss)" = null ] && [ "$(metric run 2 loss)" != null ] || fail "an update that slept has a loss"
[ "$(metric run 1 state.beta)" = 0.01 ] && [ "$(metric run 4 state.beta)" != 0.01 ] || fail "beta does not move"
has run/metrics.jsonl '"update_critic.grad_norm": [0-9.e-]*[1-9]'
lacks run/metrics.jsonl 'update_critic.entropy'
sed '/^  update:/,/entropy)$/d; /^  advantage:/d; /^  actor:/s/, train: {lr: $lr, grad_clip: 1.0}//; s/, warmup: 2//; s/, lr: 1.0e-2//' ppo.yaml >alone.yaml
status 0 "$gr" exec alone.yaml --set run.steps=60 --out alone
echo "$(metric alone 1 loss) $(metric alone 60 loss)" | awk '{ exit !($2 < $1 / 4) }' ||
    fail "the value loss went from $(metric alone 1 loss) to $(metric alone 60 loss)"

# Stopped and gone on with, also under another budget: the same bits of both models, of beta and of all metrics.
status 3 "$gr" plan ppo.yaml --budget 4KiB
least=$(least_budget)
for k in 1 $([ "$slow" = 0 ] || echo 3); do
    status 0 "$gr" exec ppo.yaml --out part$k --steps $k
    status 0 "$gr" exec --resume part$k --steps 4 --budget "$least" --check-memory
    same_critics run part$k
done

# Budgets in which critic and policy take turns.
config wide.json llama 128 false false
sed -i 's/"intermediate_size": 48/"intermediate_size": 1024/' wide.json
"$gr" init --config wide.json --tokenizer "$project/graphs/quickstart" --seed 1 -o wide >/dev/null
plan="$gr plan ppo.yaml --set model=wide --format json"
status 0 $plan
peak=$(json_number out peak_bytes)
status 3 $plan --budget 4KiB
least=$(least_budget)
status 0 "$gr" exec ppo.yaml --set model=wide --steps 2 --out all
for budget in $([ "$slow" = 0 ] || echo $(((peak + least) / 2))) "$least"; do
    status 0 $plan --budget $budget
    mv out plan.json
    status 0 "$gr" verify plan.json
    status 0 "$gr" exec ppo.yaml --set model=wide --steps 2 --plan plan.json --out small-$budget
    same_critics all small-$budget
    [ "$(metric small-$budget 2 planned_peak_bytes)" -le $budget ] || fail "more planned than the budget"
done
for m in actor critic ref; do
    has plan.json "\"kind\": *\"load\", *\"what\": *\"$m.params"
done

# What is written loads again, with the head it has learnt, whether the graph says head or not; and can be exported.
critic=run/checkpoints/step-4/critic
has $critic/config.json '"architectures": \["LlamaForTokenClassification"\]'
has $critic/config.json '"id2label": \{"0": "LABEL_0"\}'
lacks $critic/model.safetensors lm_head
sed 's/head: value, //; s/^params: {/&critic: none, /; s/critic: {checkpoint: $model/critic: {checkpoint: $critic/' ppo.yaml >again.yaml
status 0 "$gr" exec again.yaml --set critic=$critic --steps 1 --out again
status 0 "$gr" exec ppo.yaml --set models.critic.checkpoint=run/checkpoints/step-4 --steps 1 --out again-head
[ "$(metric again 1 values.mean)" = "$(metric again-head 1 values.mean)" ] || fail "a critic that loads again is another"
[ "$(metric again 1 values.mean)" != "$(metric run 1 values.mean)" ] || fail "a critic that loads again has learnt nothing"
status 0 "$gr" export run --model critic --dtype bfloat16 -o exported
status 0 "$gr" exec again.yaml --set critic=exported --steps 1 --out from-export
echo "$(metric again 1 values.mean) $(metric from-export 1 values.mean)" |
    awk '{ d = $1 - $2; exit !(d * d < 1e-3 * ($1 * $1 + 1e-3)) }' || fail "the exported critic says something else"

# A reward model alone: its score is the reward that is reported.
sed '/^  rule:/d; s/rule + 0.1 \* rollout.length + 0.1 \* judged/judged/; s/batch_count(rule)/batch_count(judged)/' ppo.yaml >judge.yaml
status 0 "$gr" exec judge.yaml --steps 1 --out judged
[ "$(metric judged 1 reward_mean)" = "$(metric judged 1 judged.mean)" ] || fail "reward_mean is not the score's mean"
[ "$(metric judged 1 reward_mean)" != 0 ] || fail "the reward model says nothing"

# Selected rows: scores and values of them are those of the rows they are, and the policy's metrics are the bare ones.
cat >kept.yaml <<'END'
graph: kept
models:
  actor:  {checkpoint: model, train: {lr: 1.0e-2}}
  critic: {checkpoint: model, head: value, train: {lr: 1.0e-2}}
  judge:  {checkpoint: judge}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: 8, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6}
  all:     {op: score, model: judge, of: rollout}
  before:  {op: value, model: critic, of: rollout}
  kept:    {op: select, of: rollout, groups: batch_mean(all) > group_mean(all)}
  judged:  {op: score, model: judge, of: kept, metrics: {off: batch_max(abs(judged - all)), n: batch_count(judged)}}
  values:  {op: value, model: critic, of: kept, metrics: {off: token_max(abs(values - before))}}
  returns: {op: compute, of: kept, expr: suffix_sum(at_last(judged))}
  update_critic: {op: update, model: critic, of: kept, loss: token_mean((value - returns)^2), metrics: {off: token_max(abs(value - values))}}
  update:  {op: update, model: actor, of: kept, loss: -token_mean((returns - values) * logprob)}
run: {steps: 2, seed: 1}
END
status 0 "$gr" exec kept.yaml --out kept
for name in judged.off values.off update_critic.off; do
    [ "$(metric kept 1 $name)" = 0 ] || fail "selected rows: $name is $(metric kept 1 $name)"
done
[ "$(metric kept 1 judged.n)" != 32 ] && [ "$(metric kept 1 judged.n)" != 0 ] || fail "nothing was selected"
has kept/metrics.jsonl '"update_critic.loss": [0-9]'
lacks kept/metrics.jsonl '"update.loss"'

# A judge whose tokens mean something else is said aloud; one without tokenizer is believed.
cp -r judge foreign
sed -i 's/48, 49/49, 48/' foreign/tokenizer_config.json
status 0 "$gr" exec ppo.yaml --set judge=foreign --steps 1 --out foreign-run
has err "warning: 'judged' gives model 'judge' the tokens of model 'actor', but their tokenizers differ: token 4, '0', is another"
rm foreign/tokenizer_config.json
status 0 "$gr" exec ppo.yaml --set judge=foreign --steps 1 --out mute-run
[ ! -s err ] || fail "a judge without tokenizer: $(cat err)"

# Refused: a language model as judge, several labels, a head that is not there, another vocabulary than the rows have.
refused "model 'judge' has no value head" "$gr" check ppo.yaml --set judge=model
has err "ppo.yaml:[0-9]+:[0-9]+: error: model 'judge' has no value head, which op score asks"
sed 's/"id2label": {"0": "reward"}/"id2label": {"0": "bad", "1": "good"}/' judge.json >labels.json
refused "labels.json:1:[0-9]+: error: 'id2label' says 2 labels" "$gr" check ppo.yaml --set judge=labels.json
cp -r model headless
cp judge/config.json headless/
status 2 "$gr" exec ppo.yaml --set judge=headless --out refused
has err "1 tensor is missing: 'score.weight'"
sed 's/"vocab_size": 16/"vocab_size": 3/' judge.json >few.json
status 1 "$gr" exec ppo.yaml --set judge=few.json --out few
has err "ppo.yaml:[0-9]+:[0-9]+: error: 'judged': token [0-9]+ of 'rollout' is not one of the 3 of model 'judge'"
