#!/bin/sh
# try
gradient=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"
deep() { # TYPE LAYERS
    sed -i "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": $2/" $1.json
    [ $1 != gemma3_text ] ||
        sed -i 's/"sliding_attention", "full_attention"/"sliding_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"/' $1.json
    rm -rf $1
    "$gr" init --config $1.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $1 >/dev/null
}
models_to_cut
for type in llama qwen3; do deep $type 5; done
sed 's/mini_batch: 4/mini_batch: 8/; s/epochs: 2/epochs: 1/; s/warmup: 2, schedule: cosine, grad_clip: 1.0/grad_clip: 1.0/' grpo.yaml >once.yaml
same_gradient() { # RUN RUN [MODEL]
    "$gradient" "$1/checkpoints/step-1/${3:-actor}/optimizer.safetensors" "$2/checkpoints/step-1/${3:-actor}/optimizer.safetensors" 1e-5 >apart ||
        { cat apart >&2; fail "the gradients of $1 and $2 differ"; }
}
micro="--set nodes.update.micro_tokens=25 --set nodes.old_logprob.micro_tokens=25"
for type in qwen3 llama; do # a tied output matrix, and one of its own
    status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
done
for c in 1 2; do
status 0 "$gr" exec once.yaml --set model=llama --ranks 2 --set models.actor.parallel.pipeline=2 --set models.actor.parallel.chunks=$c $micro --steps 1 --out once$c --check-memory
cat err
close llama-1 once$c 1
same_gradient llama-1 once$c
done
same_weights once1 once2
has once2/plan.json '"update.around"'
lacks once1/plan.json '"update.around"'
try() { # TYPE RANKS sets...
    type=$1 ranks=$2 set=
    shift 2
    for axis; do set="$set --set models.actor.parallel.${axis%=*}=${axis#*=}"; done
    echo "$type $ranks $*"
    status 0 "$gr" exec once.yaml --set model=$type --ranks $ranks $set $micro --steps 1 --out once --check-memory
    lacks err warning
    close $type-1 once 1
    same_gradient $type-1 once
    rm -r once
}
for type in qwen3 llama; do
try $type 2 pipeline=2 chunks=2
try $type 4 pipeline=2 chunks=2
try $type 4 pipeline=2 chunks=2 tensor=2
try $type 4 pipeline=2 chunks=2 context=2
done
for type in qwen3 llama; do deep $type 8; sed -i 's/"num_hidden_layers": 5/"num_hidden_layers": 8/' $type.json;  rm -rf $type $type-1
    "$gr" init --config $type.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $type >/dev/null
    status 0 "$gr" exec once.yaml --set model=$type --steps 1 --out $type-1
try $type 2 pipeline=2 chunks=4
try $type 2 pipeline=2 chunks=3
try $type 4 pipeline=4 chunks=2
try $type 8 pipeline=4 chunks=2
done
