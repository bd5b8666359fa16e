#!/bin/sh
# Frozen weights in 4 bits beneath adapters: equalities of the first iteration, one copy of what is frozen, the same bits
# under any budget, after any stop and on any number of ranks, what folders of adapters say, and what is refused.
. "$(dirname "$0")/lib.sh"

lora='train: {lora: {rank: 4, alpha: 8, base: nf4}, '
cat >more.sed <<'END'
s/, schedule: cosine//
s/steps: 6/steps: 4/
s/lr: 1.0e-2/lr: 3.0e-2/
s/metrics: .*/metrics: {ratio_max: token_max(exp(logprob - old_logprob)), kl_max: token_max(abs(ref_logprob - logprob))}/
END
sed -f more.sed -e "s/train: {/$lora/" grpo.yaml >nf4.yaml
sed 's/, base: nf4//' nf4.yaml >lora.yaml

# ---- before anything is learnt the policy is the frozen model in 4 bits, to the bit, and that is not the checkpoint
model qwen2 qwen2 32 false true
for m in model qwen2; do
    status 0 "$gr" exec nf4.yaml --set model=$m --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2 --out one-$m --check-memory
    for name in kl update.kl_max logprob_gap_max; do
        [ "$(metric one-$m 1 $name)" = 0 ] || fail "$m: $name is $(metric one-$m 1 $name), not 0"
    done
    [ "$(metric one-$m 1 update.ratio_max)" = 1 ] || fail "$m: the ratio is $(metric one-$m 1 update.ratio_max)"
    [ "$(metric one-$m 1 grad_norm)" != 0 ] && [ "$(metric one-$m 2 kl)" != 0 ] || fail "$m: nothing is learnt"
    [ "$(metric one-$m 2 logprob_gap_max)" = 0 ] || fail "$m: rollout and update have other weights"
done
status 0 "$gr" exec lora.yaml --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 1 --out one-plain
[ "$(metric one-plain 1 grad_norm)" != "$(metric one-model 1 grad_norm)" ] || fail "nothing is rounded"

# ---- one copy of the frozen weights, in 4 bits, of a model that is there or of one that is implied
status 0 "$gr" plan nf4.yaml --format json
cp out plan.json
status 0 "$gr" verify plan.json
has plan.json '"ref.nf4.1"'
has plan.json '"open.1"|\.open\.1"'
has plan.json 'merge\.1"'
lacks plan.json '"actor.(nf4|grads|state).0"|"actor_base|"actor.nf4'
status 0 "$gr" plan nf4.yaml # a layer at a time, within the loop of the pass: there is no opened copy of the whole
has out 'compute    ref_logprob\.open\.1'
sed -e 's/^  ref_logprob.*/&\n  said: {op: generate, model: ref, prompts: prompts, max_tokens: 6}\n  after: {op: logprob, model: ref, of: said}/' \
    -e 's/^  kl_now.*/&\n  gap: {op: compute, expr: batch_max(seq_max(abs(after - said.logprob)))}/' \
    -e 's/^state: {/&seen: {init: 1, next: gap}, /' nf4.yaml >samples.yaml
status 0 "$gr" exec samples.yaml --steps 2 --out samples --check-memory # a rollout has all of it opened, and so has each of two
[ "$(metric samples 2 state.seen)" = 0 ] || fail "rollout and pass of the frozen model are $(metric samples 2 state.seen) apart"
sed -e '/^  ref/d' -e 's/ref_logprob/old_logprob/g' nf4.yaml >alone.yaml
status 0 "$gr" plan alone.yaml --format json
has out '"actor_base.nf4.1"'
lacks out '"actor_base.params.1"'
status 0 "$gr" check nf4.yaml --explain
has out 'on q k v o gate up down; frozen beneath them, in NF4: the weights of ref'

sed -e 's/, schedule: cosine//' grpo.yaml >said.yaml # and of one that the command line asks for
status 0 "$gr" plan said.yaml --set models.actor.train.lora.rank=4 --set models.actor.train.lora.base=nf4 --format json
has out '"ref.nf4.1"'

# ---- budgets and stops
status 0 "$gr" exec nf4.yaml --out whole --set run.checkpoint.every=2
any_budget nf4 whole
any_stop nf4 whole 4 $([ "$slow" = 0 ] || echo 1) 3

# ---- a folder of adapters says what they stood on; merged into the checkpoint they would be another model
status 0 "$gr" export whole -o adapters
has adapters/adapter_config.json '"graphrun_base": "nf4"'
refused 'whole.*--merge of adapters that were trained beside weights in NF4 is not built' "$gr" export whole --merge -o merged
sed 's/rank: 4, alpha: 8/from: adapters/' nf4.yaml >from.yaml
status 0 "$gr" exec from.yaml --set lr=0 --steps 1 --out from
lacks err 'warning: the adapters'
cmp from/checkpoints/step-1/actor/adapter_model.safetensors adapters/adapter_model.safetensors
sed 's/rank: 4, alpha: 8/from: adapters/' lora.yaml >other.yaml
status 0 "$gr" check other.yaml
has err "other.yaml:4:[0-9]+: warning: the adapters in '.*' were trained beside frozen weights in NF4"
status 0 "$gr" export one-plain -o plain
lacks plain/adapter_config.json 'graphrun_base'

# ---- products in FP8 of what is opened; ranks, and pools
sed 's/actor: {/&precision: {rollout: fp8, train: fp8}, /' nf4.yaml >fp8.yaml
status 0 "$gr" exec fp8.yaml --steps 1 --out fp8
[ "$(metric fp8 1 logprob_gap_max)" = 0 ] || fail "in FP8: a gap"
if runs_ranks; then
    sed '1s/^/canonical: true\n/' nf4.yaml >canonical.yaml
    for n in 1 2; do
        status 0 "$gr" exec canonical.yaml --ranks $n --steps 2 --out ranks$n --set run.check=1
        same_weights ranks1 ranks$n
    done
    sed -e 's/^params:/pools: {train: {share: 1}, roll: {share: 1}}\n&/' -e 's/actor: {/&pool: train, /' -e 's/rollout: {/&pool: roll, /' \
        nf4.yaml >pools.yaml
    status 0 "$gr" exec pools.yaml --ranks 2 --out pools --set run.check=1
    same_weights whole pools
fi

# ---- planned for GPUs: the form has as many bytes there
status 0 "$gr" plan nf4.yaml --format json
bytes_of() { # FILE: of a layer in 4 bits
    sed -nE 's/.*"what": "ref.nf4.1",.* "bytes": ([0-9]+).*/\1/p' "$1" | head -1
}
here=$(bytes_of out)
status 0 "$gr" plan nf4.yaml --hardware h200 --set models.actor.train.lora.rank=8 --format json
[ -n "$here" ] && [ "$(bytes_of out)" = "$here" ] || fail "a layer is $here bytes here, '$(bytes_of out)' on a GPU"

# ---- refused, with the place
wrong() { # PATTERN SED
    sed "$2" nf4.yaml >wrong.yaml
    refused "$1" "$gr" check wrong.yaml
}
wrong "wrong.yaml:4:[0-9]+: error: 'base' must be one of bf16, nf4|wrong.yaml:4:[0-9]+: error: .*bf16.*nf4" 's/nf4/int4/'
sed -e 's/^  ref: .*/&\n  second: {checkpoint: $model, train: {lr: 1.0e-2, lora: {rank: 2}}}/' nf4.yaml >wrong.yaml
sed -i 's/^run:/  other: {op: update, model: second, of: rollout, loss: -token_mean(advantage * logprob)}\n&/' wrong.yaml
refused "model 'second' stands on frozen weights that are kept in NF4 for another model's adapters" "$gr" check wrong.yaml
model moe qwen3_moe 32 false false
wrong "wrong.yaml:4:[0-9]+: error: model 'actor' has mixtures of experts, whose weights are not kept in NF4" \
    's/model: model/model: moe/; s/alpha: 8/&, targets: [q, k, v, o]/'
