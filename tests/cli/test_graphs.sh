#!/bin/sh
# usage: test_graphs.sh GRAPHRUN
# Every graph that is shipped checks without a word, plans with a small model put in, its plan is proven, and two
# iterations of this plan run, each with a loss that is a number and a gradient that is not 0: of few prompts, or with
# GR_SLOW=1 of a batch of a usual size.
set -eu
graphrun=$1
# One core: a tiny model's steps are shorter than the time in which a busy machine wakes a second thread.
core=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
taskset -cp "$core" $$ >/dev/null
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model=$PWD/tests/cli/model/config.json # random weights, one token a character
teacher=$dir/teacher.json # wider
sed 's/"hidden_size": [0-9]*/"hidden_size": 64/' "$model" >"$teacher"
judge=$dir/judge.json # the same with a value head
sed 's/"model_type"/"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "reward"}, &/' "$model" >"$judge"
batch=8 mini_batch=4
[ -z "${GR_SLOW:-}" ] || batch=32 mini_batch=8
records=256
digit='{extract: "([0-9])", answer_extract: "([0-9])"}' # right by chance, now and then

i=0
while [ $i -lt $records ]; do
    echo "{\"question\": \"$i+1=\", \"prompt\": \"$i\", \"answer\": \"$i #### $i\", \"chosen\": \"$i\", \"rejected\": \"no idea\", \"completion\": \"$i\", \"other\": \"$i$i\", \"label\": $((i % 2)), \"difficulty\": $((i % 5))}"
    i=$((i + 1))
done >"$dir/data.jsonl"

# The small tokenizer has no <think>: brackets stand for it.
cp -r graphs "$dir/graphs"
sed -i 's/"<think>"/"("/; s/"<\/think>"/")"/' "$dir/graphs/egpo.yaml"

silent() { # COMMAND...: it succeeds and says nothing
    "$@" >"$dir/said" 2>&1 && ! [ -s "$dir/said" ]
}
sound() { # GRAPH: no error and no warning, but of data that is not here
    "$graphrun" check "$1" 2>"$dir/said" >/dev/null && ! grep -qv " is not here: " "$dir/said"
}
passes() { # GRAPH SETTINGS...
    sound "$1" && silent "$graphrun" plan "$@" --format json -o "$dir/plan.json" &&
        "$graphrun" verify "$dir/plan.json" >"$dir/said" 2>&1 &&
        "$graphrun" exec "$@" --plan "$dir/plan.json" --out "$dir/run" >"$dir/said" 2>&1 &&
        [ "$(grep -cE '^\{"step": [12],.*"loss": -?[0-9].*"grad_norm": [0-9]' "$dir/run/metrics.jsonl")" = 2 ] &&
        ! grep -E '"([a-z_]+\.)?grad_norm": (0[,}]|null)' "$dir/run/metrics.jsonl" >"$dir/said"
}

status=0
for graph in graphs/*.yaml graphs/quickstart/warmup.yaml graphs/arithmetic/*.yaml; do
    case $graph in # where a graph has its bounds
    graphs/verl-hybrid-8b.yaml) # in types of the CPU device; tests/cli/test_verl.sh plans it in its own
        set -- --set nodes.rollout.max_tokens=16 --set run.steps=2 --set nodes.prompts.batch=$batch --set nodes.update.mini_batch=$((batch / 2)) \
            --set kv_blocks=500 --set models.actor.train.grads=fp32 --set models.actor.train.moments=fp32 ;;
    graphs/quickstart.yaml) set -- --set nodes.reward.rule="$digit" --set run.steps=2 --set nodes.prompts.batch=$batch ;;
    graphs/quickstart/warmup.yaml) set -- --set nodes.examples.max_tokens=16 --set run.steps=2 --set nodes.examples.batch=$batch ;;
    graphs/grpo_validated.yaml)
        set -- --set max_tokens=16 --set run.steps=2 --set test="$dir/data.jsonl" --set test_batch=$batch --set test_every=2 ;;
    graphs/dpo.yaml | graphs/tr_dpo.yaml | graphs/ipo.yaml | graphs/orpo.yaml | graphs/simpo.yaml) set -- --set nodes.pairs.max_tokens=16 --set batch=$batch --set epochs=1 ;;
    graphs/kto.yaml)
        set -- --set nodes.examples.max_tokens=16 --set nodes.mismatched.max_tokens=16 --set batch=$batch --set epochs=1 ;;
    graphs/vapo.yaml | graphs/rest_em.yaml) set -- --set max_tokens=16 --set run.steps=2 --set group=4 ;;
    graphs/topr.yaml) # of rows that a run kept
        [ -d "$dir/kept" ] || { mkdir "$dir/kept"; for i in $(seq $batch); do
            echo "{\"prompt_ids\": [$((i % 7 + 3)), 5], \"ids\": [$((i % 5 + 4)), 6, 1], \"logprobs\": [-1, -2, -0.5], \"reward\": $((i % 2))}"
        done | gzip >"$dir/kept/step-1.jsonl.gz"; }
        set -- --set data="$dir/kept" --set max_tokens=16 --set batch=$((batch / 2)) --set mini_batch=$mini_batch ;;
    graphs/gfpo.yaml) set -- --set max_tokens=16 --set run.steps=2 --set group=4 --set keep=2 ;;
    graphs/distill.yaml) set -- --set max_tokens=16 --set run.steps=2 --set teacher="$model" --set lr=1e-3 ;;
    graphs/gkd.yaml) set -- --set max_tokens=16 --set run.steps=2 --set teacher="$teacher" ;;
    graphs/sft.yaml) set -- --set nodes.examples.max_tokens=16 --set batch=$batch --set epochs=1 ;;
    graphs/arithmetic/*) set -- --set max_tokens=16 --set run.steps=2 --set group=16 ;;
    graphs/arithmetic*) set -- --set nodes.rollout.max_tokens=16 --set run.steps=2 --set group=16 ;;
    graphs/ppo_reward_model.yaml) set -- --set max_tokens=16 --set run.steps=2 --set judge="$judge" ;;
    graphs/*_tools.yaml)
        set -- --set max_tokens=16 --set max_prompt=500 --set max_context=600 --set run.steps=2 --set environment="perl tests/e2e/say.pl" ;;
    graphs/*_served.yaml)
        [ -x "$(dirname "$graphrun")/graphrun-httpd" ] || continue
        set -- --set max_tokens=16 --set max_prompt=500 --set max_context=600 --set run.steps=2 --set group=2 --set workers=4 \
            --set nodes.rollout.environment.in_flight=1 --set environment="perl tests/e2e/harness.pl" ;;
    *) set -- --set max_tokens=16 --set run.steps=2 ;;
    esac
    grep -q '^params:.* batch:\|^use:' "$graph" && ! grep -q 'op: sequences\|preferences.yaml\|use: dpo.yaml' "$graph" && set -- "$@" --set batch=$batch --set mini_batch=$mini_batch
    case $graph in graphs/online_dpo.yaml) set -- "$@" --set batch=32 ;; esac # hardly any of its pairs differ
    grep -q critic_warmup "$graph" && set -- "$@" --set critic_warmup=0
    case $graph in
    graphs/arithmetic* | graphs/*_tools.yaml | graphs/*_served.yaml) ;; # paid by their own rule for each leading character that is right
    graphs/tr_dpo.yaml | graphs/ipo.yaml | graphs/orpo.yaml | graphs/simpo.yaml) ;; # of preferences
    *) grep -q 'rule: gsm8k\|^use:' "$graph" && set -- "$@" --set nodes.reward.rule="$digit" ;;
    esac
    rm -rf "$dir/run"
    file=$graph
    case $graph in graphs/egpo.yaml) file=$dir/$graph ;; esac
    passes "$file" --set model="$model" --set data="$dir/data.jsonl" "$@" || {
        echo "$graph: failed:"
        cat "$dir/said" "$dir/run/metrics.jsonl" || true
        status=1
    }
    head -n 1 "$graph" | grep -q '^# ' || { echo "$graph: no comment at its head"; status=1; }
done
exit $status
