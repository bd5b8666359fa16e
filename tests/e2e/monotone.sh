#!/bin/sh
# More memory is never slower, by more than a thousandth: of plans whose bits are the same, and with `bits: any` of all. Each
# graph is planned in eight budgets from half of what it takes to all of it, and each two plans are compared. Models of 8, 14
# and 32 billion parameters on one GPU are planned in 60 budgets and six host pools each. GR_SLOW=1: the first 93 random
# legal graphs of plan_fuzz.sh that are planned, these models, and graphs of which it was not so once. GR_SEED, GR_LAST: those
# random graphs alone; GR_ONLY=random, models, judge, 8B, 14B, 32B: a part of the long form. GR_POOL=0 to 5: of 8B, 14B or 32B one
# host pool alone, whose plans are printed; GR_LINES=FILE: such lines of all pools, compared.
. "$(dirname "$0")/lib.sh"
. "$here/random_plans.sh"

# Lines "BUDGET HOST NUMERICS NANOSECONDS" in a file, of what does not fit "BUDGET HOST none 0": those that are slower than
# one with no more of either memory, and those that do not fit where it does.
slower() { # FILE RULE
    awk -v any="$2" '{b[NR] = $1; p[NR] = $2; h[NR] = $3; t[NR] = $4}
        END {for (j = 1; j <= NR; j++) for (i = 1; i <= NR; i++) {
            if (i == j || b[i] > b[j] || p[i] > p[j] || h[i] == "none") continue
            if (h[j] == "none" || ((any == "any" || h[i] == h[j]) && t[j] > t[i] * 1.001 + 1))
                printf "  %s ns in %s and %s bytes, %s in %s and %s\n", t[i], b[i], p[i], t[j], b[j], p[j]}}' "$1"
}

# rung BUDGET HOST OPTIONS...: a plan; its line
rung() {
    budget=$1 pool=$2 code=0
    shift 2
    [ "$pool" = all ] || set -- "$@" --host-budget "$pool"
    "$gr" plan "$@" --budget "$budget" --format json -o plan.json >out 2>err || code=$?
    case $code in
    0) [ "$(json_number plan.json peak_bytes)" -le "$budget" ] || fail "more than the budget of $budget bytes" ;;
    3) ;;
    *) tail -n 5 err >&2; fail "exit status $code" ;;
    esac
    [ "$pool" != all ] || pool=0
    if [ $code = 3 ]; then echo "$budget $pool none 0"; else echo "$budget $pool $(numerics plan.json) $(seconds plan.json)"; fi
}

# rungs N RULE OPTIONS...: plans in so many budgets from half of the peak of plan.json on
rungs() {
    n=$1 rule=$2
    shift 2
    peak=$(json_number plan.json peak_bytes)
    : >lines
    i=0
    while [ $i -le "$n" ]; do
        rung $((peak / 2 + peak / 2 * i / n)) all "$@" >>lines
        i=$((i + 1))
    done
    slower lines "$rule" >found
}

# field NAME FROM TO HOST_FROM HOST_TO OPTIONS...: in 60 budgets and six host pools, in MiB
field() {
    name=$1 from=$2 to=$3 pool_from=$4 pool_to=$5
    shift 5
    : >lines
    for i in $(seq 0 59); do
        for k in ${GR_POOL:-0 1 2 3 4 5}; do
            rung $(((from + (to - from) * i / 59) << 20)) $(((pool_from + (pool_to - pool_from) * k / 5) << 20)) "$@" >>lines
        done
    done
    grep -vq none lines || [ -n "${GR_POOL-}" ] || fail "$name fits nowhere"
    [ -z "${GR_POOL-}" ] || sed "s/^/line $name: /" lines
    slower lines fit >found
    judge "$name"
}

judge() { # NAME
    tried=$((tried + 1))
    [ -s found ] || return 0
    echo "$1:"
    cat found
    wrong=$((wrong + 1))
}

try_random() { # NUMBER RUNGS
    random_graph "$1" g.yaml
    code=0
    # shellcheck disable=SC2086
    "$gr" plan g.yaml $how --format json -o plan.json >out 2>err || code=$?
    [ $code = 0 ] || return 0
    # shellcheck disable=SC2086
    rungs "$2" "$bits" g.yaml $how
    judge "graph $1 ($bits)"
}

published() { # FILE HIDDEN FEED LAYERS HEADS KV HEAD
    cat >"$1" <<END
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": $2, "intermediate_size": $3, "num_hidden_layers": $4,
 "num_attention_heads": $5, "num_key_value_heads": $6, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, "hidden_act": "silu", "attention_bias": false,
 "tie_word_embeddings": false, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
END
}

# An actor of bf16 moments without a master, a frozen judge with a value head, mini-batches of 4 prompts, on 8 H200.
with_judge() { # BITS
    cat >judge.yaml <<END
graph: judge
models:
  actor: {checkpoint: model.json, train: {master: none, moments: bf16, lr: 1.0e-6, grad_clip: 1.0}}
  judge: {checkpoint: model.json, head: value}
nodes:
  prompts: {op: prompts, file: none.jsonl, batch: 32, max_tokens: 512, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, max_tokens: 16}
  judged: {op: value, model: judge, of: rollout}
  old: {op: logprob, model: actor, of: rollout}
  score: {op: compute, of: rollout, expr: seq_mean(judged)}
  advantage: {op: compute, of: rollout, expr: (score - group_mean(score)) / (group_std(score) + 1e-6)}
  update: {op: update, model: actor, of: rollout, mini_batch: 4, loss: token_mean(-advantage * exp(logprob - old))}
run: {steps: 3, bits: $1}
END
}

try_published() { # NAME OPTIONS...
    name=$1
    shift
    status 0 "$gr" plan "$@" --format json -o plan.json
    rungs 8 "$bits" "$@"
    judge "$name"
}

tried=0 wrong=0
bits=fit
if [ -n "${GR_SEED-}" ]; then
    for i in $(seq "$GR_SEED" "${GR_LAST:-$GR_SEED}"); do try_random "$i" 7; done
elif [ "$slow" = 0 ] && [ -z "${GR_LINES-}" ]; then
    try_random 127 2
    [ $tried = 1 ] || fail "nothing was tried"
fi
if [ -n "${GR_LINES-}" ]; then
    sed -n 's/^line //p' "$GR_LINES" >all
    cut -d: -f1 all | sort -u >names
    while read -r name; do
        sed -n "s/^$name: //p" all >lines
        slower lines fit >found
        judge "$name"
    done <names
    slow=0
fi
wants() { # PART...: of the long form
    [ "$slow" = 1 ] && [ -z "${GR_SEED-}" ] || return 1
    for part in all "$@"; do [ "${GR_ONLY:-all}" != "$part" ] || return 0; done
    return 1
}
if wants random; then
    i=1
    while [ $tried -lt 93 ]; do
        try_random $i 7
        i=$((i + 1))
    done
fi
if wants models judge; then
    for bits in fit any; do
        with_judge $bits
        published model.json 4096 12288 36 32 8
        try_published "8B with a judge on 8 H200 ($bits)" judge.yaml --hardware h200 --ranks 8
        published model.json 3584 18944 28 28 4
        try_published "7B with a judge on 8 H200 ($bits)" judge.yaml --hardware h200 --ranks 8
    done
    bits=fit
    published model.json 4096 12288 36 32 8
    try_published "8B on one H100" "$project/graphs/grpo.yaml" --set model=model.json --hardware h100-80g --host-budget 1TB
fi
bench="$project/tests/bench/gpu/grpo.yaml --hardware h200 --set prompts=16 --set model=model.json"
if wants models 8B; then
    published model.json 4096 12288 36 32 8
    # shellcheck disable=SC2086
    field "8B on one H200" 20480 40960 65536 131072 $bench
fi
if wants models 14B; then
    published model.json 5120 17408 40 40 8
    # shellcheck disable=SC2086
    field "14B on one H200" 122880 143155 112640 133120 $bench
fi
if wants models 32B; then
    published model.json 5120 25600 64 64 8
    # shellcheck disable=SC2086
    field "32B on one H200" 122880 143155 112640 133120 $bench --set grads=bf16 --set moments=bf16 --set master=none
fi
echo "$tried graphs, $wrong of them slower in more memory"
[ $wrong = 0 ]
