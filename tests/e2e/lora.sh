#!/bin/sh
# Adapters beside frozen weights: equalities of the first iteration, one copy of what is frozen, the same bits under any
# budget, after any stop and on any number of ranks, small checkpoints, peft's files out and in, and what is refused.
. "$(dirname "$0")/lib.sh"

lora='train: {lora: {rank: 4, alpha: 8}, '
cat >more.sed <<'END'
s/, schedule: cosine//
s/metrics: .*/metrics: {ratio_max: token_max(exp(logprob - old_logprob)), kl_max: token_max(abs(ref_logprob - logprob))}/
END
sed -f more.sed -e "s/train: {/$lora/" grpo.yaml >lora.yaml
sed -i 's/lr: 1.0e-2/lr: 3.0e-2/' lora.yaml

# ---- before anything is learnt the policy is the frozen model, to the bit
model qwen2 qwen2 32 false true
model tied qwen3 64 true false
for m in qwen2 tied $([ "$slow" = 0 ] || echo model); do
    status 0 "$gr" exec lora.yaml --set model=$m --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2 --out one-$m
    for name in kl update.kl_max logprob_gap_max; do
        [ "$(metric one-$m 1 $name)" = 0 ] || fail "$m: $name is $(metric one-$m 1 $name), not 0"
    done
    [ "$(metric one-$m 1 update.ratio_max)" = 1 ] || fail "$m: the ratio is $(metric one-$m 1 update.ratio_max)"
    [ "$(metric one-$m 1 grad_norm)" != 0 ] && [ "$(metric one-$m 2 kl)" != 0 ] || fail "$m: nothing is learnt"
    [ "$(metric one-$m 2 logprob_gap_max)" = 0 ] || fail "$m: rollout and update have other weights"
done

# ---- one copy of the frozen weights, of a model that is there or of one that is implied
status 0 "$gr" plan lora.yaml --format json
cp out plan.json
status 0 "$gr" verify plan.json
has plan.json '"ref.params.0"'
has plan.json '"actor.adapters.1"'
lacks plan.json '"actor.(params|adapters|grads|state).0"|"actor_base'
sed -e '/^  ref/d' -e 's/ref_logprob/old_logprob/g' lora.yaml >alone.yaml
status 0 "$gr" plan alone.yaml --format json
has out '"actor_base.params.0"'
status 0 "$gr" check alone.yaml --explain
lacks out 'actor_base'
has out 'by adapters of rank 4, which count 2 times, on q k v o gate up down; frozen beneath them: the weights of its checkpoint'

# ---- budgets and stops
status 0 "$gr" exec lora.yaml --out whole --set run.checkpoint.every=3
any_budget lora whole
any_stop lora whole 6 $([ "$slow" = 0 ] || echo 1) 4

# ---- checkpoints have the adapters alone, and no more bytes than these and their moments
folder=whole/checkpoints/step-6/actor
[ "$(ls $folder | tr '\n' ' ')" = 'adapter_config.json adapter_model.safetensors optimizer.safetensors ' ] ||
    fail "a checkpoint has $(ls $folder)"
[ "$(du -bc $folder/*.safetensors | tail -1 | cut -f1)" -lt "$(stat -c %s model/model.safetensors)" ] || fail "they are large"

# ---- out, in peft's form or merged; and in
status 0 "$gr" export whole -o adapters
cmp adapters/adapter_model.safetensors $folder/adapter_model.safetensors
has adapters/adapter_config.json '"peft_type": "LORA"'
status 0 "$gr" export whole --merge -o merged
refused 'mtp is for whole models: say --merge' "$gr" export whole --mtp model -o other
refused 'no layers that predict further tokens' "$gr" export whole --merge --mtp model -o other
has merged/config.json 'LlamaForCausalLM'
# the rate may be 0: what begins as these adapters is the merged model, up to rounding, and what ended is what begins
begin='train: {lora: {from: adapters}, '
sed -e "s/$lora/$begin/" -e 's/ref: .*/ref: {checkpoint: merged}/' lora.yaml >from.yaml
status 0 "$gr" exec from.yaml --set lr=0 --steps 1 --out from
echo "$(metric from 1 update.kl_max)" | awk '{ exit !($1 < 1e-5) }' || fail "merged is another model: $(metric from 1 update.kl_max)"
cmp from/checkpoints/step-1/actor/adapter_model.safetensors adapters/adapter_model.safetensors
sed -e 's/from: adapters/from: whole@6/' from.yaml >step.yaml
status 0 "$gr" exec step.yaml --set lr=0 --steps 1 --out step
cmp from/checkpoints/step-1/actor/adapter_model.safetensors step/checkpoints/step-1/actor/adapter_model.safetensors
sed -e 's/^  ref: .*/  ref: {checkpoint: whole@6}/' lora.yaml >none.yaml
refused 'there are adapters alone' "$gr" plan none.yaml
status 0 "$gr" exec lora.yaml --set lr=0 --steps 1 --out new # and is not the frozen one
! cmp -s new/checkpoints/step-1/actor/adapter_model.safetensors adapters/adapter_model.safetensors || fail "nothing was read"
status 0 "$gr" exec grpo.yaml --steps 1 --out full
refused 'for a model with adapters' "$gr" export full --merge -o other

# ---- a critic with a value head, trained whole beside its adapters, on the policy's frozen weights
ppo_graph plain.yaml
classifier judge model
sed -e "s/train: {/$lora/" plain.yaml >ppo.yaml
status 0 "$gr" plan ppo.yaml --format json
has out '"ref.params.1"'
has out '"critic_base.params.3"'
lacks out '"critic_base.params.[012]"'
status 0 "$gr" exec ppo.yaml --out ppo
any_stop ppo ppo 4 2
[ "$(metric ppo 1 update_critic.off)" = 0 ] || [ "$(metric ppo 2 update_critic.off)" != 0 ] || fail "the critic learns nothing"
cmp -s ppo/checkpoints/step-4/critic/adapter_model.safetensors part2/checkpoints/step-4/critic/adapter_model.safetensors ||
    fail "the critics differ"
has ppo/checkpoints/step-4/critic/adapter_config.json '"score"'
status 0 "$gr" export ppo --model critic --merge -o critic
has critic/config.json 'LlamaForTokenClassification'

# ---- two policies on one frozen model, each with its own update
sed -e 's/^  ref: .*/&\n  second: {checkpoint: $model, train: {lr: 1.0e-2, lora: {rank: 2, targets: [q, v]}}}/' \
    -e 's/^run:/  other: {op: update, model: second, of: rollout, loss: -token_mean(advantage * logprob)}\n&/' lora.yaml >several.yaml
status 0 "$gr" exec several.yaml --steps 2 --out several
status 0 "$gr" exec lora.yaml --steps 2 --out one
same_weights several one
has several/plan.json '"second.adapters.1"'
lacks several/plan.json '"(actor|second)_base'
! cmp -s several/checkpoints/step-2/second/adapter_model.safetensors several/checkpoints/step-2/actor/adapter_model.safetensors

# ---- ranks: shards of adapters and their state, whole frozen weights
if runs_ranks; then
    sed '1s/^/canonical: true\n/' lora.yaml >canonical.yaml
    for n in 1 2 $([ "$slow" = 0 ] || echo 4); do
        status 0 "$gr" exec canonical.yaml --ranks $n --steps 2 --out ranks$n --set run.check=1
        same_weights ranks1 ranks$n
    done
    # between pools adapters cross, and are merged on both sides
    sed -e 's/^params:/pools: {train: {share: 1}, roll: {share: 1}}\n&/' -e 's/actor: {/&pool: train, /' -e 's/rollout: {/&pool: roll, /' \
        lora.yaml >pools.yaml
    status 0 "$gr" exec pools.yaml --ranks 2 --out pools --set run.check=1
    same_weights whole pools
    has pools/plan.json '"to.[01].actor.adapters.1"|to.[01].actor.adapters.1'
    lacks pools/plan.json 'to.[01].[a-z_]*.params'
    status 0 "$gr" exec lora.yaml --ranks 2 --steps 4 --out two --set run.check=1
    status 0 "$gr" exec lora.yaml --ranks 2 --steps 2 --out half
    status 0 "$gr" exec --resume half --ranks 2 --steps 4
    same_weights two half
fi

# ---- refused, with the place
wrong() { # PATTERN SED
    sed "$2" lora.yaml >wrong.yaml
    refused "$1" "$gr" check wrong.yaml
}
wrong "wrong.yaml:4:[0-9]+: error: 'rank' must be a whole number from 1 to 1024" 's/rank: 4/rank: 0/'
wrong "wrong.yaml:4:[0-9]+: error: 'lora' needs 'rank'" 's/rank: 4, //'
wrong "wrong.yaml:4:[0-9]+: error: no target 'w1'; there are q, k, v, o, gate, up and down" 's/rank: 4/rank: 4, targets: [q, w1]/'
wrong "wrong.yaml:4:[0-9]+: error: 'dropout' of adapters is not built" 's/rank: 4/rank: 4, dropout: 0.1/'
wrong "wrong.yaml:4:[0-9]+: error: 'alpha' must be above 0" 's/alpha: 8/alpha: 0/'
wrong "wrong.yaml:4:[0-9]+: error: .*unknown key 'r'|wrong.yaml:4:[0-9]+: error: unknown" 's/rank: 4/r: 4/'
sed 's/actor: {/&residency: {optimizer: host}, /' lora.yaml >wrong.yaml
refused "error: model 'actor': 'residency: .optimizer: host.' shards weights" "$gr" check wrong.yaml --ranks 2
sed 's/actor: {/&parallel: {tensor: 2}, /' lora.yaml >wrong.yaml
refused "error: model 'actor': 'tensor: 2' and 'lora' do not go together" "$gr" check wrong.yaml --ranks 2
wrong "'groups' of tensors beside 'lora' are not built" 's/alpha: 8}/&, groups: [{tensors: "q_proj", lr: 1.0e-3}]/'
model moe qwen3_moe 32 false false
wrong "wrong.yaml:4:[0-9]+: error: model 'actor': target 'gate': layer 0 has a mixture of experts" 's/model: model/model: moe/'
sed -e 's/model: model/model: moe/' -e 's/alpha: 8/&, targets: [q, k, v, o]/' lora.yaml >moe.yaml # and attention has adapters
status 0 "$gr" exec moe.yaml --steps 2 --out moe-run
[ "$(metric moe-run 1 kl)" = 0 ] && [ "$(metric moe-run 2 kl)" != 0 ] || fail "of experts: the first kl is $(metric moe-run 1 kl), the second $(metric moe-run 2 kl)"
wrong "'rollout' has 'lag', which is not built for model 'actor'" 's/samples: 4/samples: 4, lag: 1/'
wrong "cannot (open|read) .*nowhere" 's/rank: 4, alpha: 8/from: nowhere/'
wrong "'rank' is not that of the adapters" 's/rank: 4, alpha: 8/from: adapters, rank: 5/'
sed 's/"use_dora": false/"use_dora": true/' adapters/adapter_config.json >dora.json
mkdir dora && cp adapters/adapter_model.safetensors dora && mv dora.json dora/adapter_config.json
wrong "'use_dora' is set, which is not built" 's/rank: 4, alpha: 8/from: dora/'
