# Sourced by tests of runs of several ranks: tests/e2e/lib.sh, and what they ask of the runs. Skips (77) without mpirun.
. "$(dirname "$0")/../e2e/lib.sh"
# Many ranks share few cores here: silence is of tests that are about it.
[ "${0##*/}" = hang.sh ] || export GRAPHRUN_SILENCE="${GRAPHRUN_SILENCE:-120}"
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun" >&2; exit 77; }

. "$here/close.sh"

# Models whose layers four ranks can share: four KV heads, so that each has one; tied and not, with biases, with norms of q and k,
# with experts; layers of two kinds, with windows, and norms behind what is summed.
models_to_cut() {
    for type in llama qwen2 qwen3 qwen3_moe; do
        tied=$([ $type = qwen3 ] && echo true || echo false)
        bias=$([ $type = qwen2 ] && echo true || echo false)
        config $type.json $type 32 "$tied" "$bias"
        sed -i 's/"num_key_value_heads": 2/"num_key_value_heads": 4/' $type.json
        "$gr" init --config $type.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $type >/dev/null
    done
    sed 's/"qwen3"/"gemma3_text"/; s/Qwen3For/Gemma3For/; s/"hidden_act": "silu"/"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]/' \
        qwen3.json >gemma3_text.json
    sed 's/"qwen3"/"gemma4_text"/; s/"rope_theta": [0-9.e]*,//; s/Qwen3For/Gemma4For/; s/"hidden_act": "silu"/"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0, "global_head_dim": 16, "attention_k_eq_v": true, "num_global_key_value_heads": 4/' \
        qwen3.json >gemma4_text.json
    for type in gemma3_text gemma4_text; do
        "$gr" init --config $type.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $type >/dev/null
    done
}

# Latent attention beside experts, of the sizes of qwen3.json.
latent_model() {
    sed 's/"qwen3"/"deepseek_v3"/; s/Qwen3For/DeepseekV3For/; s/"head_dim": [0-9]*,//; s/"model_type"/"num_experts_per_tok": 2, "n_routed_experts": 8, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, &/' \
        qwen3.json >deepseek_v3.json
    "$gr" init --config deepseek_v3.json --tokenizer "$project/graphs/quickstart" --seed 1 -o deepseek_v3 >/dev/null
}

# Hybrids: layers of the gated delta rule beside gated attention, with dense layers and with experts, whose checkpoints have the
# rule's input in two ways. Leaves qwen3_5_text and qwen3_next.
hybrids_to_cut() {
    rule='"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 4, "linear_value_head_dim": 8, "partial_rotary_factor": 0.5, "full_attention_interval": 2,'
    sed "s/\"qwen3\"/\"qwen3_5_text\"/; s/Qwen3For/Qwen3_5For/; s/\"model_type\"/$rule &/" qwen3.json >qwen3_5_text.json
    sed "s/\"qwen3_moe\"/\"qwen3_next\"/; s/Qwen3MoeFor/Qwen3NextFor/; s/\"model_type\"/$rule \"shared_expert_intermediate_size\": 16, \"mtp_num_hidden_layers\": 0, &/" \
        qwen3_moe.json >qwen3_next.json
    for type in qwen3_5_text qwen3_next; do
        "$gr" init --config $type.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $type >/dev/null
    done
}

# One KV head, and two key heads of the gated delta rule to eight of values: fewer than four ranks. Leaves few, behind
# hybrids_to_cut.
few_keys() {
    sed 's/"num_key_value_heads": 4/"num_key_value_heads": 1/; s/"linear_num_key_heads": 4/"linear_num_key_heads": 2/' qwen3_5_text.json >few.json
    "$gr" init --config few.json --tokenizer "$project/graphs/quickstart" --seed 1 -o few >/dev/null
}

# Biases behind attention and of experts, and sinks, which three iterations have made other than 0. Leaves gpt_oss.
biased_model() {
    sed 's/"qwen3"/"gpt_oss"/; s/Qwen3For/GptOssFor/; s/"tie_word_embeddings": true/"tie_word_embeddings": false/; s/"model_type"/"num_experts_per_tok": 2, "num_local_experts": 8, "sliding_window": 5, "swiglu_limit": 0.5, &/' \
        qwen3.json >gpt_oss.json
    "$gr" init --config gpt_oss.json --tokenizer "$project/graphs/quickstart" --seed 1 -o gpt_oss-new >/dev/null
    status 0 "$gr" exec grpo.yaml --set model=gpt_oss-new --set models.actor.train.schedule=constant --steps 3 --out gpt_oss-run
    cp -r gpt_oss-run/checkpoints/step-3/actor gpt_oss
    rm -r gpt_oss-run
}

# Routers that tell no expert from another choose the first ones for every token: all rows go to the first rank.
without_routers() { # DIR
    header=$(od -An -t u8 -N 8 "$1/model.safetensors" | tr -d ' ')
    tail -c +9 "$1/model.safetensors" | head -c "$header" |
        grep -oE '"model\.layers\.[0-9]+\.mlp\.gate\.weight":\{[^}]*"data_offsets":\[[0-9]+,[0-9]+\]' |
        sed -E 's/.*\[([0-9]+),([0-9]+)\]/\1 \2/' >routers
    while read -r first end; do
        dd if=/dev/zero of="$1/model.safetensors" conv=notrunc bs=1 seek=$((8 + header + first)) count=$((end - first)) 2>/dev/null
    done <routers
    [ "$(wc -l <routers)" = 2 ] || fail "$1 has not two routers: $(cat routers)"
    rm -f "$1/manifest.json"
}

# nodes HxD STATUS OPTION...: exec on so many ranks, in nodes: hosts by devices that are asked for under mpirun are taken as
# nodes, so that one machine has several
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
nodes() {
    shape=$1
    want_status=$2
    shift 2
    status "$want_status" mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n $((${shape%x*} * ${shape#*x})) \
        "$gr" exec "$@" --ranks "$shape"
}

# point RUN STEP TO: a run that ended at this iteration of another one, to go on with
point() {
    mkdir -p "$3/checkpoints"
    cp "$1/graph.yaml" "$1/plan.json" "$1/metrics.jsonl" "$1/samples.jsonl" "$3"
    cp -r "$1/checkpoints/step-$2" "$3/checkpoints"
}

# each_step RUN POINTS TOLERANCE COMMAND...: one step by COMMAND from the state behind each of the first POINTS - 1 iterations
# of RUN, which keeps them all, is RUN's next one. COMMAND takes --resume and --steps behind it
each_step() {
    of=$1 last=$2 tolerance=$3 k=1
    shift 3
    while [ $k -lt "$last" ]; do
        point "$of" $k at
        status 0 "$@" --resume at --steps $((k + 1))
        close "$of" at $((k + 1)) "$tolerance"
        rm -r at
        k=$((k + 1))
    done
}

ranks_of() { # RUN: the processes that are ranks of it, the first one first
    grep -lz '^OMPI_COMM_WORLD_RANK=' /proc/[0-9]*/environ 2>/dev/null | while read -r environ; do
        p=${environ%/environ}
        [ "$(readlink "$p/cwd")" = "$work" ] || continue # another test's
        tr '\0' ' ' 2>/dev/null <"$p/cmdline" | grep -q -- "$1 " || continue
        echo "$(tr "\\0" "\\n" 2>/dev/null <"$environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p') ${p#/proc/}"
    done | sort -n | sed 's/.* //'
}

# A run of which a rank is killed, once it has come to its second iteration: within a minute nothing of it is left, and one message says
# which rank it was. $killed_ranks of them, the last is killed.
kill_a_rank() { # RUN OPTIONS...
    of=$1 n=${killed_ranks:-2} i=0
    shift
    "$gr" exec grpo.yaml "$@" --ranks "$n" --set run.checkpoint.every=1 --steps 400 --out "$of" >out 2>err &
    pid=$!
    while [ ! -d "$of/checkpoints/step-2" ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done
    kill -9 "$(ranks_of "$of" | sed -n "${n}p")"
    began=$(date +%s) got=0
    wait $pid || got=$?
    [ $(($(date +%s) - began)) -le 60 ] || fail "it took $(($(date +%s) - began)) s until all were gone"
    [ -z "$(ranks_of "$of")" ] || fail "ranks are left: $(ranks_of "$of")"
    [ $got = 1 ] || fail "exit status $got of a run that lost a rank"
    has err "error: rank $((n - 1)) on host [^ ]+ ended by signal 9 \\(Killed\\) in iteration [0-9]+, step '[a-z_.0-9]+': all ranks are ended"
    [ "$(last_step "$of")" -ge 2 ] || fail "it had not come to iteration 2"
}

# Such a run goes on from its second iteration to the bits of RUN behind the fourth.
killed_goes_on() { # RUN OPTIONS...
    whole=$1
    shift
    kill_a_rank killed "$@"
    status 0 "$gr" exec --resume killed@2 --steps 4
    same_weights "$whole" killed 4
}

# To the bits of `whole`, four iterations on two ranks: moved in every way, in the least memory, killed; and twenty on four ranks are near to one's.
# keep: the option that keeps the rollout's weights.
in_all_ways_and_long() { # OPTIONS...: the model's, and how it is cut
    for way in "--policy every_node" "--policy transition" "$keep"; do
        # shellcheck disable=SC2086
        status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 $way --out way --check-memory
        same_weights whole way
        rm -r way
    done
    status 3 "$gr" plan grpo.yaml "$@" --ranks 2 --set run.bits=keep --budget 4KiB
    least=$(least_budget)
    status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 --set run.bits=keep --budget "$least" --out tight --check-memory
    has tight/plan.json 'recompute'
    same_weights whole tight
    killed_goes_on whole "$@"
    status 0 "$gr" exec grpo.yaml --set model=qwen3 --set models.actor.train.schedule=constant --steps 20 --out twenty-1
    status 0 "$gr" exec grpo.yaml "$@" --ranks 4 --steps 20 --out twenty --check-memory
    close twenty-1 twenty 1
    close twenty-1 twenty 4 1e-2
}
