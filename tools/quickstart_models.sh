#!/bin/sh
# The quickstart's task with models of other kinds: warmed up on the same examples and trained with the same graph, from the
# same seed. Prints the mean reward of each one's last 50 iterations, and of experts how even their load was.
# usage: quickstart_models.sh GRAPHRUN DIR [MODEL...]
#   MODEL: dense; moe, with experts in the place of each MLP; balanced, the same with an auxiliary loss; hybrid, with
#   layers of the gated delta rule. Results are in DIR/MODEL-grpo. WARMUP and STEPS: iterations, where not the graphs' own.
set -eu
[ $# -ge 2 ] || { sed -n '4p' "$0" | cut -c3- >&2; exit 2; }
gr=$(realpath "$1")
mkdir -p "$2"
dir=$(realpath "$2")
shift 2
[ $# -gt 0 ] || set -- dense moe balanced hybrid
graphs=$(dirname "$(realpath "$0")")/../graphs
[ -f "$dir/train.jsonl" ] || "$graphs/quickstart/data.sh" "$dir"
for model in "$@"; do
    config=config_$model.json more=
    case $model in
    dense) config=config.json ;;
    moe) more='--set nodes.update.replay=compare' ;;
    balanced) config=config_moe.json more='--set nodes.update.replay=compare --set nodes.update.router_aux_loss_coef=0.001' ;;
    esac
    "$gr" init --config "$graphs/quickstart/$config" --tokenizer "$graphs/quickstart" --seed 1 -o "$dir/$model" >/dev/null
    "$gr" exec "$graphs/quickstart/warmup.yaml" --set model="$dir/$model" --set data="$dir/warmup.jsonl" --out "$dir/$model-warmup" \
        ${WARMUP:+--steps "$WARMUP"} >"$dir/$model.log"
    "$gr" export "$dir/$model-warmup" -o "$dir/$model-warm" >/dev/null
    # shellcheck disable=SC2086 # settings have no spaces
    "$gr" exec "$graphs/quickstart.yaml" --set model="$dir/$model-warm" --set data="$dir/train.jsonl" --out "$dir/$model-grpo" $more \
        ${STEPS:+--steps "$STEPS"} >>"$dir/$model.log"
    for metric in reward_mean update.expert_load update.expert_entropy update.experts_dead update.routing_agreement; do
        sed -nE "s/.*\"$metric\": ([0-9.e+-]+).*/\1/p" "$dir/$model-grpo/metrics.jsonl" | tail -50 |
            awk -v model="$model" -v metric=$metric '{ sum += $1 } END { if (NR) printf "%s: %s %.4f (mean of %d)\n", model, metric, sum / NR, NR }'
    done
done
