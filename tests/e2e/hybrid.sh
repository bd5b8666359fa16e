#!/bin/sh
# A tiny hybrid (layers of the gated delta rule, and of gated attention) through whole runs: the first pass sees the
# log-probs of the rollout to the bit, training stops and goes on to the bit, budgets change no bit, and what is exported
# is read again.
. "$(dirname "$0")/lib.sh"

hybrid_model model
cp -r model first
status 0 "$gr" exec grpo.yaml --steps 2 --out whole --check-memory
status 0 "$gr" exec grpo.yaml --steps 1 --out part
status 0 "$gr" exec --resume part --steps 2
same_weights whole part
same_metrics whole part
has whole/metrics.jsonl '"step": 2, '
[ "$(metric whole 2 kl)" != 0 ] || fail "nothing was learnt: the test means nothing"
for set in '--steps 1' '--steps 1 --set nodes.rollout.concurrent=3 --set nodes.old_logprob.micro_tokens=33'; do
    rm -rf one
    status 0 "$gr" exec grpo.yaml $set --out one
    for name in kl logprob_gap_max; do
        [ "$(metric one 1 $name)" = 0 ] || fail "$set: $name is $(metric one 1 $name), not 0"
    done
done
status 0 "$gr" export whole -o exported --model actor
rm -rf model
mv exported model
status 0 "$gr" exec grpo.yaml --steps 1 --out again
rm -rf model
cp -r first model
status 0 "$gr" exec grpo.yaml --out all
any_budget grpo all

turns turns.yaml ""
refused "turns.yaml:[0-9]+:[0-9]+: .*conversations are not supported of model 'actor', which has layers of the gated" \
    "$gr" check turns.yaml

# For a GPU, which has kernels of four value heads at least and heads of which a multiple of 16 is rotated: plans are made
# and proven here too; what it has no kernels for is refused by name.
refused "grpo.yaml:[0-9]+:[0-9]+: .*model 'actor' has value heads that are no multiple of 4" \
    "$gr" plan grpo.yaml --device cuda --hardware h200
sed 's/"linear_num_value_heads": 2/"linear_num_value_heads": 4/; s/"head_dim": 8/"head_dim": 64/' model.json >four.json
"$gr" init --config four.json --tokenizer "$project/graphs/quickstart" --seed 1 -o four >/dev/null
for set in strict=false strict=true; do
    status 0 "$gr" plan grpo.yaml --device cuda --hardware h200 --set model=four --set $set --format json -o four.plan
    status 0 "$gr" verify four.plan
done
