#!/bin/sh
# The main job from nothing: set up, build, make data and a random model, warm it up on examples, train it with
# GRPO until it can add, and show answers before and after. Results are in runs/quickstart.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh
run=build/tools/graphrun
rm -rf runs/quickstart
mkdir -p runs/quickstart
graphs/quickstart/data.sh runs/quickstart
$run init --config graphs/quickstart/config.json --tokenizer graphs/quickstart --seed 1 -o runs/quickstart/model
echo "== warm-up: a few examples, not enough to be good at it"
$run exec graphs/quickstart/warmup.yaml --out runs/quickstart/warmup
$run export runs/quickstart/warmup -o runs/quickstart/warm
echo "== the plan"
$run plan graphs/quickstart.yaml
echo "== GRPO"
$run exec graphs/quickstart.yaml --out runs/quickstart/grpo
$run report runs/quickstart/grpo
