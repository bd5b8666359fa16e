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
    status 0 "$gr" exec "$@" --out cut-$o --until 2
    status 0 "$gr" exec --resume cut-$o
    same_weights $o cut-$o
    same_metrics $o cut-$o
    status 0 "$gr" exec "$@" --out host-$o --set 'models.actor.residency={optimizer: host}'
    same_weights $o host-$o
done
sed "s/optimizer: adamw/optimizer: lion/; s/steps: 6/steps: 4/" grpo.yaml >budget.yaml
any_budget budget lion
if runs_ranks; then
    status 0 "$gr" exec budget.yaml --ranks 2 --out ranks
    has ranks/metrics.jsonl '"step": 4, '
fi
lacks sgd/graph.yaml 'betas'
has lion/graph.yaml 'betas: \[0.9, 0.99\]'

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

refused "'muon' is not built: it orthogonalizes whole matrices" "$gr" check grpo.yaml --set models.actor.train.optimizer=muon
refused "'optimizer' must be one of adamw, lion, sgd, not 'adafactor'" "$gr" check grpo.yaml --set models.actor.train.optimizer=adafactor
refused "no tensor of model 'actor' is called like 'wte'" "$gr" check grpo.yaml --set 'models.actor.train.groups=[{tensors: wte}]'
refused "'tensors': missing closing parenthesis at character" "$gr" check grpo.yaml --set 'models.actor.train.groups=[{tensors: "(a"}]'
refused "a group of tensors needs 'tensors'" "$gr" check grpo.yaml --set 'models.actor.train.groups=[{lr: 0}]'
refused "'groups' must be a list" "$gr" check grpo.yaml --set 'models.actor.train.groups={tensors: a}'
status 0 "$gr" check grpo.yaml --set models.actor.train.optimizer=sgd --set 'models.actor.train.betas=[0.9, 0.99]'
has err "'betas' has no effect with optimizer sgd"
