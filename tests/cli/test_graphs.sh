#!/bin/sh
# usage: test_graphs.sh GRAPHRUN
# Every graph that is shipped checks without a word, plans with a small model put in, its plan is proven, and two
# iterations of it run and learn something.
set -eu
graphrun=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
model=$PWD/tests/cli/model/config.json # random weights, one token a character
judge=$dir/judge.json # the same with a value head
sed 's/"model_type"/"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "reward"}, &/' "$model" >"$judge"
digit='{extract: "([0-9])", answer_extract: "([0-9])"}' # right by chance, now and then

i=0
while [ $i -lt 16 ]; do
    echo "{\"question\": \"$i+1=\", \"prompt\": \"$i\", \"answer\": \"$i #### $i\", \"chosen\": \"$i\", \"rejected\": \"no idea\"}"
    i=$((i + 1))
done >"$dir/data.jsonl"

# The small tokenizer has no <think>: brackets stand for it.
cp -r graphs "$dir/graphs"
sed -i 's/"<think>"/"("/; s/"<\/think>"/")"/' "$dir/graphs/egpo.yaml"

silent() { # COMMAND...: it succeeds and says nothing
    "$@" >"$dir/said" 2>&1 && ! [ -s "$dir/said" ]
}
passes() { # GRAPH SETTINGS...
    silent "$graphrun" check "$1" && silent "$graphrun" plan "$@" --format json -o "$dir/plan.json" &&
        "$graphrun" verify "$dir/plan.json" >"$dir/said" 2>&1 &&
        "$graphrun" exec "$@" --out "$dir/run" >"$dir/said" 2>&1 &&
        [ "$(grep -cE '"loss": -?[0-9]' "$dir/run/metrics.jsonl")" = 2 ] &&
        grep -qE '"grad_norm": [0-9.e-]*[1-9]' "$dir/run/metrics.jsonl"
}

status=0
for graph in graphs/*.yaml graphs/quickstart/warmup.yaml; do
    case $graph in # where a graph has its bounds
    graphs/verl-hybrid-8b.yaml) # trains in bf16, which takes a GPU: tests/cli/test_verl.sh plans it
        silent "$graphrun" check "$graph" || { cat "$dir/said"; status=1; }
        continue ;;
    graphs/quickstart.yaml) set -- --set nodes.reward.rule="$digit" --set run.steps=2 ;;
    graphs/quickstart/warmup.yaml) set -- --set nodes.examples.max_tokens=16 --set run.steps=2 ;;
    graphs/grpo_validated.yaml)
        set -- --set max_tokens=16 --set run.steps=2 --set test="$dir/data.jsonl" --set test_batch=8 --set test_every=2 \
            --set batch=16 --set mini_batch=8 ;;
    graphs/dpo.yaml) set -- --set nodes.pairs.max_tokens=16 --set batch=16 --set epochs=2 ;;
    graphs/sft.yaml) set -- --set nodes.examples.max_tokens=16 --set batch=16 --set epochs=2 ;;
    graphs/arithmetic*.yaml) set -- --set nodes.rollout.max_tokens=16 --set run.steps=2 ;;
    graphs/ppo_reward_model.yaml)
        set -- --set max_tokens=16 --set run.steps=2 --set batch=16 --set mini_batch=8 --set judge="$judge" \
            --set nodes.reward.rule="$digit" ;;
    *) set -- --set max_tokens=16 --set run.steps=2 ;;
    esac
    grep -q '^params:.* batch:\|^use:' "$graph" && grep -q mini_batch "$graph" && set -- "$@" --set batch=16 --set mini_batch=8
    grep -q critic_warmup "$graph" && set -- "$@" --set critic_warmup=0
    grep -q 'rule: gsm8k\|^use:' "$graph" && set -- "$@" --set nodes.reward.rule="$digit"
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
for graph in graphs/arithmetic/*.yaml; do # the same on another task; a small model earns nothing there by chance
    silent "$graphrun" check "$graph" &&
        silent "$graphrun" plan "$graph" --set model="$model" --set data="$dir/data.jsonl" --format json -o "$dir/plan.json" || {
        echo "$graph: failed:"
        cat "$dir/said"
        status=1
    }
done
exit $status
