# Sourced by tests of two CUDA devices: runs of the quickstart over NCCL, and what they are compared by. Skips (77) where
# there are not two devices or no mpirun.
# usage of a test: NAME.sh GRAPHRUN
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
[ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ] || { echo "skipped: there are not two devices"; exit 77; }
. "$(dirname "$0")/quickstart.sh"

train() { # OUT OPTIONS...
    out=$1
    shift
    timeout 120 "$gr" exec graphs/quickstart.yaml --set model="$work/model" --set data="$work/train.jsonl" --device cuda \
        --set "nodes.reward={op: compute, expr: rollout.length}" --out "$work/$out" "$@" >"$work/$out.log" 2>&1 || { echo "$out: exit $?"; cat "$work/$out.log"; exit 1; }
}

same() { # RUN RUN
    weights=model
    [ ! -e "$work/$1/checkpoints/step-6/actor/adapter_model.safetensors" ] || weights=adapter_model
    for f in $weights optimizer; do
        cmp "$work/$1/checkpoints/step-6/actor/$f.safetensors" "$work/$2/checkpoints/step-6/actor/$f.safetensors" ||
            { echo "$f of $1 and $2 differ"; exit 1; }
    done
    echo "$2: the same bits as $1"
}

number() { # RUN STEP KEY
    sed -nE "s/^\{\"step\": $2, (.*, )?\"$3\": ([^,}]*).*/\2/p" "$work/$1/metrics.jsonl"
}

# Of the first iteration; what ranks add up in another order is rounded otherwise.
near() { # KEY RUN RUN
    awk -v a="$(number "$2" 1 "$1")" -v b="$(number "$3" 1 "$1")" \
        'BEGIN { d = a > b ? a - b : b - a; s = a < 0 ? -a : a; exit !(d <= 0.05 * s + 0.02) }' || { echo "$1 of $3 is far off"; exit 1; }
}

within_plan() { # RUN...
    for run; do
        measured=$(number "$run" 6 measured_peak_bytes)
        planned=$(number "$run" 6 planned_peak_bytes)
        echo "$run: $(number "$run" 6 seconds) s, measured $measured of planned $planned bytes"
        [ "$measured" -le "$planned" ] || { echo "more than planned"; exit 1; }
    done
}

# A mixture in the place of the quickstart's model.
experts_model() {
    keys='"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "norm_topk_prob": true'
    sed "s/\"model_type\": \"[a-z0-9_]*\"/\"model_type\": \"qwen3_moe\", $keys/; s/LlamaForCausalLM/Qwen3MoeForCausalLM/" \
        graphs/quickstart/config.json >"$work/moe.json"
    "$gr" init --config "$work/moe.json" --tokenizer graphs/quickstart --seed 1 -o "$work/moe" >/dev/null
    rm -rf "$work/model"
    mv "$work/moe" "$work/model"
}
