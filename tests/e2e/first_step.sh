#!/bin/sh
# From equal checkpoints, in the first iteration: exact equalities, whatever the shape of the model, the number of
# mini-batches and how passes are cut.
. "$(dirname "$0")/lib.sh"

# All of the first mini-batch, before its step: a graph with one mini-batch, and one whose metric sees the first of
# many through a rate of 0. flat: a group whose scores are all equal.
cat >more.sed <<'END'
s/metrics: .*/metrics: {ratio_max: token_max(exp(logprob - old_logprob)), ratio_min: -token_max(-exp(logprob - old_logprob)), clipped: "token_mean(where(abs(exp(logprob - old_logprob) - 1) > 0.2, 1, 0))", kl_max: token_max(abs(ref_logprob - logprob))}/
s/^  advantage:/  flat: {op: compute, of: rollout, expr: group_mean(reward) + 0.1, metrics: {worst: "batch_max(abs((flat - group_mean(flat)) \/ (group_std(flat) + 1e-6)))"}}\n&/
END
sed -f more.sed grpo.yaml >exact.yaml

check_first() { # RUN
    for name in kl update.clipped update.kl_max logprob_gap_max flat.worst; do
        [ "$(metric $1 1 $name)" = 0 ] || fail "$1: $name is $(metric $1 1 $name), not 0"
    done
    for name in ratio_max ratio_min; do
        [ "$(metric $1 1 update.$name)" = 1 ] || fail "$1: $name is $(metric $1 1 update.$name), not 1"
    done
}

model qwen2 qwen2 32 false true
model qwen3 qwen3 32 false false
model tied llama 64 true false
for m in model qwen2 qwen3 tied; do
    set -- --set model=$m --set nodes.update.epochs=1 --steps 1
    status 0 "$gr" exec exact.yaml "$@" --set nodes.update.mini_batch=8 --out one-$m
    check_first one-$m
    status 0 "$gr" exec exact.yaml "$@" --set lr=0 --out many-$m
    check_first many-$m
    status 0 "$gr" exec exact.yaml "$@" --set lr=0 --set nodes.update.micro_tokens=14 \
        --set nodes.old_logprob.micro_tokens=33 --set nodes.rollout.temperature=0.7 \
        --set nodes.rollout.concurrent=3 --out cut-$m
    check_first cut-$m
    [ "$(metric one-$m 1 grad_norm)" != 0 ] || fail "nothing was learnt: the test means nothing"
done

# And the equalities end once something is learnt.
status 0 "$gr" exec exact.yaml --steps 2 --out two
[ "$(metric two 2 kl)" != 0 ] && [ "$(metric two 1 update.ratio_max)" != 1 ] || fail "the metrics cannot fail"
