#!/bin/sh
# Choices are each made where they bind: models of 14 and 32 billion parameters trained whole on one GPU, in a host pool that
# can only just hold what the device cannot. The peak is in the update's backward pass, so the rollout, of which nothing is
# alive then, keeps all of its sequences; and where there are far too few bytes of host memory, that is said, and what is
# enough. Times are predicted ones. usage: test_choices.sh GRAPHRUN
set -eu
gr=$(realpath "$1")
project=$(dirname "$(realpath "$0")")/../..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
shape() { # FILE HIDDEN INTERMEDIATE LAYERS HEADS: of the published Qwen3 models
    cat >"$1" <<END
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": $2, "intermediate_size": $3,
 "num_hidden_layers": $4, "num_attention_heads": $5, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
 "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "rope_scaling": null,
 "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": false, "initializer_range": 0.02,
 "bos_token_id": 151643, "eos_token_id": 151645, "torch_dtype": "bfloat16"}
END
}
shape 8b.json 4096 12288 36 32
shape 14b.json 5120 17408 40 40
shape 32b.json 5120 25600 64 64
fail() {
    echo "$*" >&2
    cat plan.err >&2
    exit 1
}
# Planning takes little memory itself.
plan() { # STATUS OPTIONS...
    want=$1
    shift
    got=0
    (ulimit -v 1000000 && exec "$gr" plan "$@" --format json -o plan.json) >plan.err 2>&1 || got=$?
    [ $got = "$want" ] || fail "plan $*: status $got"
}
whole() { # MOST_SECONDS CONFIG TYPE MASTER OPTIONS...: the iteration takes no longer, at all 128 sequences at once
    most=$1 config=$2 type=$3 master=$4
    shift 4
    plan 0 "$project/tests/bench/gpu/grpo.yaml" --set model="$config.json" --set prompts=16 --set grads="$type" \
        --set moments="$type" --set master="$master" --hardware h200 --host-budget 118GiB "$@"
    "$gr" verify plan.json >/dev/null || fail "$config: not proven"
    seconds=$(sed -nE 's/.*"seconds": *([0-9.e+-]+).*/\1/p' plan.json | head -1)
    echo "$config $type $*: $seconds s"
    echo "$seconds $most" | awk '{ exit !($1 <= $2) }' || fail "$config takes $seconds s"
    grep -q '"rollout", *"name": *"concurrent", *"value": *128\b' plan.json || fail "$config: fewer sequences at once"
}
long() { # With GR_SLOW=1.
    [ "${GR_SLOW:-0}" = 0 ] || "$@"
}
long whole 70 32b bf16 none
whole 70 32b bf16 none --set nodes.rollout.kv_blocks=8000
grep -q 'update: micro-batch tokens: [0-9]* would need [0-9.]* GiB more device memory than there is at .update.backward' plan.json ||
    fail "nothing is said of the micro-batches"
long whole 60 14b fp32 fp32
# The pool lacks half a gigabyte beside what the device lacks: no single change brings both down (1,150 s once).
whole 60 14b fp32 fp32 --budget 150109880320 --host-budget 122406567936
# Weights that are exact in fp32: 32B with its state beside one H200, 8B with a card of 24 GB.
whole 70 32b bf16 split --set moments=int8
[ "${GR_SLOW:-0}" = 0 ] || {
    plan 3 "$project/tests/bench/gpu/grpo.yaml" --set model=8b.json --set prompts=16 --hardware h200 --budget 23GiB --host-budget 120GiB
    plan 0 "$project/tests/bench/gpu/grpo.yaml" --set model=8b.json --set prompts=16 --set grads=bf16 --set master=split \
        --hardware h200 --budget 23GiB --host-budget 120GiB
    "$gr" verify plan.json >/dev/null || fail "8b in 23 GiB: not proven"
}

# Two models of 14B on two GPUs of 80 GB; refused for want of host memory alone.
[ "${GR_SLOW:-0}" = 0 ] || {
    plan 0 "$project/graphs/ppo.yaml" --set model=14b.json --hardware h100-80g --ranks 2
    "$gr" verify plan.json >/dev/null || fail "ppo.yaml: not proven"
}
grpo="$project/graphs/grpo.yaml --set model=8b.json --hardware h100-80g --ranks 8"
plan 3 $grpo --host-budget 4MiB
budget=$(sed -nE 's/.*would fit: --host-budget ([0-9]+).*/\1/p' plan.err | head -1)
[ -n "$budget" ] && [ "$budget" -lt 20000000 ] || fail "nothing is said of host memory"
plan 0 $grpo --host-budget "$budget"
