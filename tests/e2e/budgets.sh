#!/bin/sh
# From everything resident down to the smallest budget that can be had: the same bits, and never more memory than
# planned; one step below: refused, with the instant, the culprit and what is missing.
. "$(dirname "$0")/lib.sh"

# Wide enough that weights and optimizer are worth moving.
config wide.json llama 128 false false
sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 4/; s/"intermediate_size": 48/"intermediate_size": 1536/' wide.json
"$gr" init --config wide.json --tokenizer "$project/graphs/quickstart" --seed 1 -o wide >/dev/null
model tied llama 64 true false

sweep() { # MODEL N: N + 1 budgets
    plan="$gr plan grpo.yaml --set model=$1 --format json"
    status 0 $plan
    peak=$(json_number out peak_bytes)
    numerics=$(sed -nE 's/.*"numerics": *"([0-9a-f]+)".*/\1/p' out | head -1)
    status 3 $plan --budget 4KiB
    least=$(least_budget)
    [ -n "$least" ] || fail "the message does not say what would fit: $(cat err)"
    echo "$1: from $peak down to $least bytes"

    status 3 $plan --budget $((least - 1))
    has err "needs .* and the budget is .*: .* missing at step [0-9]+ '.*'; alive then: .* [KM]iB"
    status 3 "$gr" exec grpo.yaml --set model=$1 --budget $((least - 1)) --out below
    [ ! -e below ] || fail "a run that does not fit has begun"

    status 0 "$gr" exec grpo.yaml --set model=$1 --steps 2 --out all-$1
    moved=0
    i=0
    while [ $i -le $2 ]; do
        budget=$((peak - (peak - least) * i / $2))
        rm -rf run
        status 0 $plan --budget $budget
        mv out plan.json
        status 0 "$gr" verify plan.json
        if grep -q '"kind": *"load"' plan.json; then moved=1; fi
        status 0 "$gr" exec grpo.yaml --set model=$1 --steps 2 --plan plan.json --out run
        planned=$(metric run 2 planned_peak_bytes)
        measured=$(metric run 2 measured_peak_bytes)
        [ "$planned" -le $budget ] || fail "planned $planned of $budget"
        # A sanitizer's own memory is measured with the rest.
        [ "$measured" -le "$planned" ] || [ -n "${GR_SANITIZED:-}" ] || fail "measured $measured of planned $planned, budget $budget"
        if grep -q "\"numerics\": *\"$numerics\"" plan.json; then
            same_weights all-$1 run
            same_metrics all-$1 run
        else
            has out 'changes the bits'
            echo "$(metric run 1 loss) $(metric all-$1 1 loss)" | awk '{ d = $1 - $2; exit !(d * d <= 1e-10) }' ||
                fail "the first loss is $(metric run 1 loss), not $(metric all-$1 1 loss)"
            moved=1
        fi
        i=$((i + 1))
    done
    [ $moved = 1 ] || fail "no budget made anything move: the test means nothing"
}

# spills: of what passes keep for backward some waits in the host pool, where the peak is in a deep model's update.
spills() {
    config deep.json llama 32 false false
    sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 12/' deep.json
    "$gr" init --config deep.json --tokenizer "$project/graphs/quickstart" --seed 1 -o deep >/dev/null
    sed -e 's/batch: 8/batch: 16/; s/mini_batch: 4/mini_batch: 16/' grpo.yaml >deep.yaml
    run="deep.yaml --set model=deep --set nodes.update.micro_tokens=448 --set nodes.old_logprob.micro_tokens=448"
    run="$run --set nodes.rollout.concurrent=8 --set nodes.rollout.kv_blocks=16"
    status 3 "$gr" plan $run --budget 4KiB
    least=$(least_budget)
    status 0 "$gr" plan $run --budget $least --format json -o plan.json
    grep -q '"kind": *"offload", *"what": *"update.in.' plan.json || fail "nothing is moved from forward to backward"
    status 0 "$gr" verify plan.json
    status 0 "$gr" exec $run --steps 1 --out all-deep
    rm -rf run
    status 0 "$gr" exec $run --steps 1 --budget $least --out run --check-memory
    same_weights all-deep run
    same_metrics all-deep run
}

qwen3() { # FILE HIDDEN INNER LAYERS HEADS POSITIONS TIED: the config of a model of a usual size
    cat >"$1" <<END
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": $2, "intermediate_size": $3, "num_hidden_layers": $4,
 "num_attention_heads": $5, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": $6,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": $7, "eos_token_id": 1}
END
}

# Where copies run beside the passes, what fits stays: more memory moves less, in the same time.
spills_what_must() {
    qwen3 long.json 2048 6144 28 16 1048576 true
    cat >long.yaml <<END
graph: long
deterministic: false
models:
  actor: {checkpoint: long.json, train: {lr: 1.0e-6}}
nodes:
  docs: {op: sequences, file: none.jsonl, batch: 1, prompt: "{q}", response: "{a}", max_prompt_tokens: 65536, max_tokens: 65536}
  update: {op: update, model: actor, of: docs, loss: "-token_mean(logprob)"}
run: {steps: 1}
END
    before=999 most=""
    for gib in 60 $([ "$slow" = 0 ] || echo 100) 140; do
        status 0 "$gr" plan long.yaml --device cuda --hardware h200 --host-budget 200GiB --budget ${gib}GiB
        moved=$(sed -n 's/.* steps, \([0-9.]*\) GiB in one pass.*/\1/p' out)
        seconds=$(sed -n 's/.*predicted \([0-9.]*\) s an iteration.*/\1/p' out)
        echo "${moved:-0} $before $seconds ${most:-$seconds}" | awk '{ exit !($1 > 0 && $1 < $2 - 30 && $3 <= $4 * 1.01) }' ||
            fail "of $gib GiB: moves ${moved:-nothing} GiB in $seconds s; with less memory $before in $most"
        before=$moved most=$seconds
    done
}

# Offsets leave copies that run beside the passes their bytes: no layer waits for one that still goes, while there is room.
spills_beside() {
    qwen3 wide.json 4096 12288 36 32 40960 false
    status 0 "$gr" plan "$project/tests/bench/gpu/grpo.yaml" --set model=wide.json --set prompts=8 --set samples=8 --set prompt_tokens=128 \
        --set response_tokens=128 --set grads=bf16 --set moments=bf16 --set master=none --hardware h100-80g --host-budget 100GiB --format csv -o wide.csv
    has wide.csv '^[0-9]+,offload,update.acts'
    # A trip is laid out with its waits, then scaled to the time of the loop: where many wait, steps come out shorter than they are.
    awk -F, '$2 == "run" && $3 ~ /^update\.forward\./ { n++; part += ($12 - $11) / $10 } END { exit !(n == 36 && part / n > 0.9) }' wide.csv ||
        fail "layers wait for the offloads before them"
}

n=1
[ "$slow" = 0 ] || n=20
spills_beside
spills
spills_what_must
sweep wide $n
sweep tied $n

# Every step within the memory it declared, at budgets far apart; and with what resumes.
plan="$gr plan grpo.yaml --format json"
status 0 $plan
peak=$(json_number out peak_bytes)
status 3 $plan --budget 4KiB
least=$(least_budget)
for budget in $([ "$slow" = 0 ] || echo $peak) $(((peak + least) / 2)) $least; do
    run="--set models.actor.train.schedule=constant --set run.checkpoint.every=2"
    status 0 "$gr" exec grpo.yaml $run --budget $budget --out free-$budget
    status 0 "$gr" exec grpo.yaml $run --budget $budget --check-memory --steps 3 --out held-$budget
    has out 'touched by steps'
    status 0 "$gr" exec --resume held-$budget --steps 6 --check-memory
    same_weights free-$budget held-$budget
    same_metrics free-$budget held-$budget
done
