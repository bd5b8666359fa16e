#!/bin/sh
# Optimizers by name, and settings for some of a model's tensors: what they keep is in the plan, a resumed run and one
# under a small budget have the bits of the whole one, and a rate of 0 leaves tensors as they are.
. "$(dirname "$0")/lib.sh"

tensor() { # FILE NAME: the bytes of one tensor
    n=$(od -An -N8 -t u8 "$1" | tr -d ' ')
    range=$(tail -c +9 "$1" | head -c "$n" | tr -d ' ' | sed -nE "s/.*\"$2\":\{[^}]*\"data_offsets\":\[([0-9]+),([0-9]+)\].*/\1 \2/p")
    [ -n "$range" ] || fail "no tensor $2 in $1"
    # shellcheck disable=SC2086 # two numbers
    set -- "$1" $range
    tail -c +$((9 + n + $2)) "$1" | head -c $(($3 - $2)) | cksum
}
changed() { # RUN NAME
    [ "$(tensor "$1/checkpoints/step-$(last_step "$1")/actor/model.safetensors" "$2")" != "$(tensor model/model.safetensors "$2")" ]
}
state_of() { # GRAPH SETTINGS...: bytes of optimizer state in the ledger
    "$gr" plan "$@" --format json | tr '{' '\n' | sed -nE 's/.*"category": *"optimizer".*"bytes": *([0-9]+).*/\1/p; s/.*"bytes": *([0-9]+).*"category": *"optimizer".*/\1/p' |
        awk '{ s += $1 } END { print s }'
}

two=$(state_of grpo.yaml)
for o in lion sgd; do
    set -- grpo.yaml --set models.actor.train.optimizer=$o --set run.steps=4
    one=$(state_of "$@")
    [ "$two" -gt 0 ] && [ $((2 * one)) = "$two" ] || fail "$o keeps $one bytes where adamw keeps $two"
    status 0 "$gr" exec "$@" --out $o --check-memory
    has $o/graph.yaml "optimizer: $o"
    changed $o model.layers.1.mlp.up_proj.weight || fail "$o has learnt nothing"
    if [ "$slow" = 1 ] || [ $o = lion ]; then
        status 0 "$gr" exec "$@" --out cut-$o --until 2
        status 0 "$gr" exec --resume cut-$o
        same_weights $o cut-$o
        same_metrics $o cut-$o
        status 0 "$gr" exec "$@" --out host-$o --set 'models.actor.residency={optimizer: host}'
        same_weights $o host-$o
    fi
done
sed "s/optimizer: adamw/optimizer: lion/; s/steps: 6/steps: 4/" grpo.yaml >budget.yaml
any_budget budget lion
if runs_ranks; then
    status 0 "$gr" exec budget.yaml --ranks 2 --out ranks
    has ranks/metrics.jsonl '"step": 4, '
fi
lacks sgd/graph.yaml 'betas'
has lion/graph.yaml 'betas: \[0.9, 0.99\]'
refused "the moments of model 'actor' are of optimizer lion, and the graph has sgd" "$gr" exec --resume lion --steps 5 --set models.actor.train.optimizer=sgd
status 0 "$gr" exec --resume lion --steps 5 --set models.actor.train.optimizer=sgd --accept-changes
has err "optimizer lion, and the graph has sgd.*accepted"

# ---- muon ---------------------------------------------------------------------------------------------------------------

# Of matrices of layers; all else, the embedding too, is adamw's to the bit in the first step. A rate of 0 leaves a matrix as it is.
sed 's/optimizer: adamw/optimizer: muon/; s/steps: 6/steps: 4/' grpo.yaml >muon.yaml
status 0 "$gr" exec muon.yaml --out muon --check-memory
has muon/graph.yaml 'optimizer: muon, .*momentum: 0.95, betas: \[0.9, 0.999\], eps: '
weights() { echo "$1/checkpoints/step-$(last_step "$1")/actor/model.safetensors"; }
for o in adamw muon; do
    status 0 "$gr" exec grpo.yaml --set models.actor.train.optimizer=$o --set models.actor.train.warmup=0 \
        --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --set run.steps=1 --out one-$o
done
for name in model.embed_tokens.weight lm_head.weight model.layers.0.input_layernorm.weight; do
    [ "$(tensor "$(weights one-adamw)" $name)" = "$(tensor "$(weights one-muon)" $name)" ] || fail "$name is not adamw's"
done
for name in self_attn.q_proj self_attn.o_proj mlp.gate_proj mlp.down_proj; do
    [ "$(tensor "$(weights one-adamw)" model.layers.1.$name.weight)" != "$(tensor "$(weights one-muon)" model.layers.1.$name.weight)" ] || fail "$name is adamw's"
    changed one-muon model.layers.1.$name.weight || fail "$name has not moved"
done
status 0 "$gr" exec muon.yaml --set run.steps=1 --set 'models.actor.train.groups=[{tensors: q_proj, lr: 0, weight_decay: 0}]' --out still
changed still model.layers.1.self_attn.q_proj.weight && fail "a matrix with a rate of 0 has moved"
any_stop muon muon 4 2
any_budget muon muon
status 0 "$gr" plan muon.yaml --format json -o plan.json
has plan.json '"update.muon.1"'
has plan.json 'orthogonalize.2'
if runs_ranks; then # matrices are cut by shards, and gathered
    status 0 "$gr" exec muon.yaml --set canonical=true --out muon-one
    status 0 "$gr" exec muon.yaml --set canonical=true --ranks 2 --out muon-two
    same_weights muon-one muon-two
    ways="actor.gather=layer actor.parallel={tensor:2}"
    [ "$slow" = 0 ] || ways="$ways actor.parallel={context:2} actor.parallel={pipeline:2}"
    # shellcheck disable=SC2086 # one word a way
    near_over_two_ranks muon.yaml muon 1e-3 $ways
fi
refused "'muon' is made for 'moments: fp32'" "$gr" check muon.yaml --set models.actor.train.moments=bf16
refused "'muon' is made for the weights of layers, and model 'actor' trains adapters" "$gr" check muon.yaml --set 'models.actor.train.lora={rank: 2}'
refused "'optimizer: host' does not go with 'muon'" "$gr" check muon.yaml --set 'models.actor.residency={optimizer: host}'
model routed qwen3_moe 32 false false
refused "'muon' is made for layers of attention and dense feed-forward networks, and model 'actor' has others" "$gr" check muon.yaml --set model=routed
status 0 "$gr" plan muon.yaml --device cuda --hardware h200 --format json -o plan.json
status 0 "$gr" verify plan.json

# ---- groups --------------------------------------------------------------------------------------------------------------

set -- grpo.yaml --set models.actor.train.weight_decay=0.1
status 0 "$gr" exec "$@" --out all
status 0 "$gr" exec "$@" --out some \
    --set 'models.actor.train.groups=[{tensors: "embed_tokens|lm_head", lr: 0}, {tensors: norm, lr: "0.01 * (1 - progress)", weight_decay: 0}]'
changed all model.embed_tokens.weight || fail "the embedding does not learn: the test means nothing"
changed some model.embed_tokens.weight && fail "an embedding with a rate of 0 has changed"
changed some lm_head.weight && fail "a head with a rate of 0 has changed"
changed some model.layers.0.self_attn.q_proj.weight || fail "what is in no group does not learn"
changed some model.layers.1.input_layernorm.weight || fail "a norm of a group does not learn"
status 0 "$gr" exec "$@" --out none --set 'models.actor.train.groups=[{tensors: .}]' # a group that says nothing
same_weights all none
status 0 "$gr" check some/graph.yaml

# ---- said where they are wrong -----------------------------------------------------------------------------------------------

refused "'optimizer' must be one of adamw, lion, sgd, muon, not 'adafactor'" "$gr" check grpo.yaml --set models.actor.train.optimizer=adafactor
refused "no tensor of model 'actor' is called like 'wte'" "$gr" check grpo.yaml --set 'models.actor.train.groups=[{tensors: wte}]'
refused "'tensors': missing closing parenthesis at character" "$gr" check grpo.yaml --set 'models.actor.train.groups=[{tensors: "(a"}]'
refused "a group of tensors needs 'tensors'" "$gr" check grpo.yaml --set 'models.actor.train.groups=[{lr: 0}]'
refused "'groups' must be a list" "$gr" check grpo.yaml --set 'models.actor.train.groups={tensors: a}'
status 0 "$gr" check grpo.yaml --set models.actor.train.optimizer=sgd --set 'models.actor.train.betas=[0.9, 0.99]'
has err "'betas' has no effect with optimizer sgd"
