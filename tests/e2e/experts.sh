#!/bin/sh
# A mixture of experts through GRPO: exact equalities of the first iteration, stops, budgets, ranks, and what its
# checkpoints hold.
. "$(dirname "$0")/lib.sh"

model moe qwen3_moe 32 false false
sed 's/{model: model,/{model: moe,/; s/schedule: cosine/schedule: constant/' grpo.yaml >moe.yaml

# From equal checkpoints: the same experts in rollout, log-prob and update.
sed 's/metrics: .*/metrics: {ratio_max: token_max(exp(logprob - old_logprob)), ratio_min: -token_max(-exp(logprob - old_logprob))}/' \
    moe.yaml >exact.yaml
for how in '--set nodes.update.mini_batch=8 --set nodes.update.epochs=1' \
    '--set lr=0 --set nodes.update.micro_tokens=14 --set nodes.old_logprob.micro_tokens=33 --set nodes.rollout.concurrent=3'; do
    rm -rf first
    # shellcheck disable=SC2086 # settings have no spaces
    status 0 "$gr" exec exact.yaml $how --steps 1 --out first
    [ "$(metric first 1 kl)" = 0 ] || fail "the KL of the first iteration is $(metric first 1 kl)"
    for name in ratio_max ratio_min; do
        [ "$(metric first 1 update.$name)" = 1 ] || fail "$how: $name is $(metric first 1 update.$name), not 1"
    done
done

status 0 "$gr" exec moe.yaml --out whole
[ "$(metric whole 1 grad_norm)" != 0 ] || fail "nothing was learnt: the test means nothing"
any_stop moe whole 6 1 4
any_budget moe whole

# Its checkpoints have each expert under the name that transformers saves, and are models like any other.
at=whole/checkpoints/step-6/actor/model.safetensors
for name in layers.0.mlp.gate layers.1.mlp.experts.7.gate_proj layers.1.mlp.experts.0.up_proj layers.0.mlp.experts.3.down_proj; do
    grep -aq "model.$name.weight" "$at" || fail "no tensor $name"
done
status 0 "$gr" exec moe.yaml --set model=whole/checkpoints/step-6/actor --steps 1 --out again
grep -q '"num_experts": 8' whole/checkpoints/step-6/actor/config.json || fail "the checkpoint's config has no experts"

refused "'num_experts_per_tok' 9 is more than the 'num_experts' 8" sh -c \
    "sed 's/_per_tok\": 2/_per_tok\": 9/' moe.json >bad.json && '$gr' init --config bad.json --seed 1 -o bad"

# Ranks add gradients up in another order; what of them is sharded changes no bit.
runs_ranks || exit 0
status 0 "$gr" exec moe.yaml --ranks 2 --steps 2 --out ranks
status 0 "$gr" exec moe.yaml --ranks 2 --steps 2 --set models.actor.residency.rollout_weights=keep --check-memory --out shards
has shards/plan.json '"kind": "sync"'
same_weights ranks shards
same_metrics ranks shards
