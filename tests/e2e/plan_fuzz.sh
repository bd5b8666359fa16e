#!/bin/sh
# The planner on random legal graphs: shapes of 10M to 72B (dense, with experts, hybrid), one to 8,192 ranks, pools, budgets,
# policies, lag, critics, selections, bits. It ends with a plan or a refusal, the same twice; what is written is proven; it
# never takes more than the budget; the graph in the plan, planned again, gives the same plan; more memory is slower by a
# thousandth at most where the bits are the same; what a refusal says would fit does. GR_SLOW=1: 2,000 of them, each of
# GR_SECONDS (10) of one core and GR_MEGABYTES (300) at most, and a histogram of both. A graph that fails is printed; its
# number, as GR_SEED, makes it alone; with GR_LAST, from one number to the other.
. "$(dirname "$0")/lib.sh"

most=60 # seconds of one core of a command that does not end
[ -z "${GR_SANITIZED:-}" ] || most=900
state=0
pick() { # N: the variable `got` becomes a number below N
    state=$(((state * 1103515245 + 12345) % 2147483648))
    got=$((state / 65536 % $1))
}

one_of() { # WORD...: `got` becomes one of them
    pick $#
    shift "$got"
    got=$1
}

# HIDDEN LAYERS HEADS KV FEED VOCAB: of widths from 10M to 72B parameters
shape() { # FILE
    one_of "256 6 4 2 704 8192" "512 8 8 2 1408 32000" "896 24 14 2 4864 151936" "1024 28 16 8 3072 151936" \
        "2048 28 16 8 6144 151936" "2560 36 32 8 9728 151936" "4096 36 32 8 12288 151936" "4096 32 32 8 14336 128256" \
        "5120 40 40 8 17408 151936" "5120 64 64 8 25600 151936" "8192 80 64 8 28672 128256" "8192 80 64 8 29568 152064"
    # shellcheck disable=SC2086
    set -- "$1" $got
    one_of dense dense dense experts hybrid; family=$got
    one_of true false; tied=$got
    type=qwen3 class=Qwen3 more=
    case $family in
    experts)
        type=qwen3_moe class=Qwen3Moe
        one_of 8 64 128
        more="\"num_experts\": $got, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": $(($6 / 8)), \"norm_topk_prob\": true,"
        [ "$2" -le 2560 ] || { type=qwen3 class=Qwen3 more=; } # no larger than 72B
        ;;
    hybrid)
        type=qwen3_5_text class=Qwen3_5
        more='"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "partial_rotary_factor": 0.25,'
        ;;
    esac
    cat >"$1" <<END
{"architectures": ["${class}ForCausalLM"], "model_type": "$type", "hidden_size": $2, "intermediate_size": $6, "num_hidden_layers": $3,
 "num_attention_heads": $4, "num_key_value_heads": $5, "head_dim": 128, "vocab_size": $7, "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null, $more "hidden_act": "silu", "attention_bias": false,
 "tie_word_embeddings": $tied, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
END
}

# Of each: a critic, a reference, a judge, a second rollout, a selection, pools and a lag, several mini-batches, or not.
random_graph() { # NUMBER FILE: and the variables of its command
    state=$1
    pick 2
    pick 2
    shape policy.json
    one_of 0 0 1; critic=$got
    one_of 0 1; ref=$got
    one_of 0 0 0 1; judge=$got
    one_of 0 0 0 1; select=$got
    one_of 0 0 1; validate=$got
    one_of 8 32 128; batch=$got
    one_of 2 4 8; samples=$got
    one_of 1 2 4; parts=$got
    one_of 1 1 2; epochs=$got
    one_of 64 256 1024; prompt=$got
    one_of 16 128 512 2048; answer=$got
    one_of "" "" "grads: bf16, " "master: none, moments: bf16, "; types=$got
    one_of "" "" "" ", shard: all" ", shard: node"; shard=$got
    one_of "" "" ", micro_tokens: $((2 * (prompt + answer)))"; micro=$got
    one_of "" "" "" ", residency: {optimizer: host}" ", residency: {params: every_node}" ", residency: {kv: transition}"; where=$got
    one_of fit fit fit keep prefer any; bits=$got
    one_of 1 1 2 4 8 1x8 2x2 2x8 8x8 64x8 1024x8; ranks=$got
    one_of cpu h200 h100-80g h100-80g a100-80g a100-40g; hardware=$got
    one_of auto auto auto auto keep transition every_node; policy=$got
    one_of 0 0 0 1; pools=$got
    one_of 0 1; lag=$got
    case $ranks in 1) pools=0 ;; esac
    if [ $hardware = cpu ]; then
        types= how="--device cpu"
        case $ranks in 64x8 | 1024x8) ranks=2x8 ;; esac
    else
        how="--device cuda --hardware $hardware"
    fi
    [ $pools = 0 ] || shard= where=
    rows=rollout
    [ $select = 0 ] || rows=kept
    {
        echo "graph: g$1"
        [ $pools = 0 ] || echo "pools: {train: {share: 1}, rollout: {share: 1}}"
        echo "models:"
        echo "  actor: {checkpoint: policy.json, train: {${types}lr: 1.0e-6, grad_clip: 1.0}$shard$where}"
        [ $ref = 0 ] || echo "  ref: {checkpoint: policy.json}"
        [ $critic = 0 ] || echo "  critic: {checkpoint: policy.json, head: value, train: {lr: 1.0e-5}}"
        [ $judge = 0 ] || echo "  judge: {checkpoint: policy.json}"
        echo "nodes:"
        echo "  prompts: {op: prompts, file: none.jsonl, batch: $batch, max_tokens: $prompt, template: \"{question}\"}"
        echo "  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, max_tokens: $answer$([ $pools = 0 ] || echo ", pool: rollout, lag: $lag")}"
        echo "  reward: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: '(.)', compare: string}}"
        [ $select = 0 ] || echo "  kept: {op: select, of: rollout, groups: group_std(reward) > 0, refill: {until: $batch, rounds: 3, short: error}}"
        echo "  old: {op: logprob, model: actor, of: $rows$micro}"
        [ $ref = 0 ] || echo "  ref_logprob: {op: logprob, model: ref, of: $rows$micro}"
        [ $judge = 0 ] || echo "  judged: {op: logprob, model: judge, of: $rows}"
        [ $critic = 0 ] || echo "  values: {op: value, model: critic, of: $rows}"
        echo "  score: {op: compute, of: $rows, expr: reward$([ $judge = 0 ] || echo " + 0.1 * seq_mean(judged)")}"
        echo "  advantage: {op: compute, of: $rows, expr: (score - group_mean(score)) / (group_std(score) + 1e-6)}"
        [ $critic = 0 ] || echo "  learn: {op: update, model: critic, of: $rows, mini_batch: $((batch / parts)), loss: token_mean((value - score)^2)}"
        echo "  update:"
        echo "    {op: update, model: actor, of: $rows, mini_batch: $((batch / parts)), epochs: $epochs$micro,"
        echo "     loss: token_mean(-advantage * exp(logprob - old)$([ $ref = 0 ] || echo ' + 0.01 * (logprob - ref_logprob)^2'))}"
        [ $validate = 0 ] || {
            echo "  asked: {op: prompts, file: none.jsonl, batch: 8, max_tokens: $prompt, template: \"{question}\", every: 2}"
            echo "  answers: {op: generate, model: actor, prompts: asked, temperature: 0, max_tokens: $answer}"
            echo "  long: {op: compute, expr: answers.length + 0, metrics: {mean: batch_mean(long)}}"
        }
        echo "run: {steps: 3, bits: $bits}"
    } >"$2"
    how="$how --ranks $ranks --policy $policy"
    one_of "" "" "" 4MiB 64MiB 1GiB 8GiB 32GiB 128GiB; host=$got
    one_of 0 0 1 2 3 4 5 6; part=$got
    [ -z "$host" ] || how="$how --host-budget $host"
}

numerics() { # PLAN
    sed -nE 's/.*"numerics": *"([0-9a-f]+)".*/\1/p' "$1" | head -1
}

peaks() { # PLAN: of all roles, and their budget
    sed -nE 's/.*"(peak_bytes)": *([0-9]+).*/\2/p' "$1"
}

seconds() { # PLAN: in nanoseconds
    sed -nE 's/.*"seconds": *([0-9.]+).*/\1/p' "$1" | head -1 | awk '{printf "%.0f\n", $1 * 1e9}'
}

# planned STATUS... -- OPTIONS: a plan in plan.json with any of these; its time and memory go to the table
planned() {
    allowed=
    while [ "$1" != -- ]; do
        allowed="$allowed $1"
        shift
    done
    shift
    code=0
    (ulimit -t $most && exec "$@" --format json -o plan.json) >out 2>err || code=$?
    case "$allowed " in *" $code "*) ;; *) tail -n 5 err >&2; fail "exit status $code: $*" ;; esac
}

measured() { # OPTIONS: `graphrun plan` with them, under the limits
    if [ "$slow" = 0 ]; then
        planned 0 2 3 -- "$gr" plan "$@"
        return
    fi
    planned 0 2 3 -- /usr/bin/time -f '%U %M' -o cost "$gr" plan "$@"
    tail -n 1 cost >>costs
    tail -n 1 cost | awk -v s="${GR_SECONDS:-10}" -v m="${GR_MEGABYTES:-300}" '{exit $1 > s || $2 > m * 1024}' ||
        echo "graph $i: $(tail -n 1 cost) seconds, KB: $*" | tee -a beyond
}

within() { # PLAN
    budget=$(json_number "$1" budget_bytes)
    for peak in $(peaks "$1"); do
        [ "$peak" -le "$budget" ] || fail "$peak bytes in a budget of $budget"
    done
}

# What a refusal says would fit does.
take_advice() {
    sed -nE 's/.*would fit: (--(host-)?budget [0-9]+( --host-budget [0-9]+)?) .*/\1/p' err | head -n 1 >advice
    [ -s advice ] || return 0
    # shellcheck disable=SC2046,SC2086
    planned 0 -- "$gr" plan g.yaml $1 $(cat advice)
    within plan.json
}

again() { # OPTIONS: the same plan twice, and of the graph that it holds
    cp plan.json first.json
    planned 0 -- "$gr" plan g.yaml "$@"
    cmp -s first.json plan.json || fail "two plans of one graph"
    status 0 "$gr" verify first.json
    sed -nE 's/^ "graph_text": "(.*)",$/\1/p' first.json | sed 's/\\"/"/g' >text
    printf '%b' "$(cat text)" >resolved.yaml
    planned 0 -- "$gr" plan resolved.yaml "$@"
    [ "$(numerics first.json) $(seconds first.json)" = "$(numerics plan.json) $(seconds plan.json)" ] ||
        fail "another plan of the resolved graph"
}

# More of the budget: slower by a thousandth at most, where the bits are the same; where any may be taken, in any case.
more_is_faster() { # BUDGET OPTIONS
    less=$1
    shift
    before=$(seconds first.json)
    planned 0 3 -- "$gr" plan g.yaml "$@" --budget $((less + less / 8))
    [ $code = 0 ] || fail "it fits in $less bytes, and not in an eighth more"
    within plan.json
    after=$(seconds plan.json)
    [ "$bits" = any ] || [ "$(numerics first.json)" = "$(numerics plan.json)" ] || return 0
    [ "$after" -le $((before + before / 1000 + 1)) ] || {
        echo "graph $i: $before ns in $less bytes, $after ns in an eighth more" | tee -a slower
    }
}

try_graph() { # NUMBER
    random_graph "$1" g.yaml
    # shellcheck disable=SC2086
    set -- $how
    measured g.yaml "$@"
    if [ $code = 0 ] && [ "$part" != 0 ]; then # a budget between what is taken and a part of it
        peak=$(json_number plan.json peak_bytes)
        less=$((peak - peak * part / 8))
        measured g.yaml "$@" --budget $less
        if [ $code != 0 ]; then
            take_advice "$*"
            echo refused >>kinds
            return 0
        fi
        again "$@" --budget $less
        within first.json
        more_is_faster $less "$@"
    elif [ $code = 0 ]; then
        again "$@"
        within first.json
    elif [ $code = 3 ]; then
        take_advice "$*"
        echo refused >>kinds
        return 0
    else
        echo illegal >>kinds
        return 0
    fi
    echo planned >>kinds
}

first=4 n=5
[ "$slow" = 0 ] || first=1 n=2000
if [ -n "${GR_SEED-}" ]; then first=$GR_SEED n=${GR_LAST:-$GR_SEED}; fi
: >kinds
: >costs
: >slower
: >beyond
i=$first
while [ "$i" -le "$n" ]; do
    (try_graph "$i") || { cat g.yaml policy.json >&2; fail "random graph $i"; }
    i=$((i + 1))
done
sort kinds | uniq -c
[ "$first" = "$n" ] || [ "$(grep -c planned kinds)" -gt $(((n - first) / 4)) ] || fail "hardly any of them is planned"
[ ! -s costs ] || awk '{s = $1; m = $2 / 1024
    a = s < 0.1 ? "0.1" : s < 0.3 ? "0.3" : s < 1 ? "1" : s < 3 ? "3" : s < 10 ? "10" : "more"; t[a]++
    b = m < 10 ? "10" : m < 30 ? "30" : m < 100 ? "100" : m < 300 ? "300" : "more"; k[b]++
    if (s > ms) ms = s; if (m > mm) mm = m}
    END {printf "seconds below:"; for (a in t) printf " %s: %d,", a, t[a]; printf " most %.1f\nMB below:", ms
        for (b in k) printf " %s: %d,", b, k[b]; printf " most %.0f\n", mm}' costs
[ ! -s beyond ] || fail "beyond the limits: $(wc -l <beyond)"
[ ! -s slower ] || fail "slower in more memory: $(wc -l <slower)"
