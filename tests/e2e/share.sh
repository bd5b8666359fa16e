#!/bin/sh
# share: responses of a prompt read it once in an update and in the log-probs of its rows. Every value of a sequence or token,
# and so the loss, keeps its bits; gradients of weights are sums over fewer tokens, and the same within rounding.
. "$(dirname "$0")/lib.sh"

sed 's/mini_batch: 4/mini_batch: 8/; s/epochs: 2/epochs: 1/' grpo.yaml >whole.yaml
tolerance=1e-5
close() { # RUN RUN STEP NAME: relative difference
    awk -v a="$(metric "$1" "$3" "$4")" -v b="$(metric "$2" "$3" "$4")" -v t=$tolerance \
        'BEGIN {d = a - b; if (d < 0) d = -d; m = a < 0 ? -a : a; exit !(a != "" && d <= t * m)}' ||
        fail "$4 of step $3: $(metric "$1" "$3" "$4") and $(metric "$2" "$3" "$4")"
}

# Losses of each class: token-coupled, sequence-coupled, mini-batch-coupled.
cp whole.yaml token.yaml
sed 's/^      ratio = .*/      u = seq_mean(logprob - old_logprob)\n      ratio = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))/; s/^      token_mean(pg.*/      batch_mean(seq_mean(pg + beta * kl)) - 0.01 * batch_mean(seq_mean(entropy))/' whole.yaml >seq.yaml
sed 's/^      token_mean(pg.*/      token_mean(where(choose(ratio > 0.9, 5), 0, pg + beta * kl) - 0.1 * (logprob - token_mean(logprob)) * advantage)/' whole.yaml >batch.yaml
for class in token seq batch; do
    status 0 "$gr" exec $class.yaml --set nodes.update.micro_tokens=40 --steps 2 --out $class
    for n in 4 3; do
        status 0 "$gr" exec $class.yaml --set nodes.update.share_prompts=$n --set nodes.update.micro_tokens=40 --steps 2 \
            --out $class.$n --check-memory
        for name in loss reward_mean entropy kl update.ratio_max logprob_gap_max; do
            [ "$(metric $class 1 $name)" = "$(metric $class.$n 1 $name)" ] ||
                fail "$class: $name is $(metric $class 1 $name), shared $(metric $class.$n 1 $name)"
        done
        close $class $class.$n 1 grad_norm
        close $class $class.$n 2 loss
        ! cmp -s $class/checkpoints/step-2/actor/model.safetensors $class.$n/checkpoints/step-2/actor/model.safetensors ||
            fail "$class: $n responses did not share a prompt"
    done
done

# Where the cuts are changes no bit, whoever chooses them; several mini-batches and epochs; small budgets; a resume.
sed 's/, schedule: cosine//; s/^    epochs: 2/&\n    share_prompts: 4/' grpo.yaml >shared.yaml
status 0 "$gr" exec shared.yaml --out shared
status 0 "$gr" exec shared.yaml --set nodes.update.micro_tokens=35 --set nodes.ref_logprob.micro_tokens=71 --out small
same_weights shared small
same_metrics shared small
any_budget shared shared
any_stop shared shared 6 3

# It is part of what fixes the bits, and of what is planned for: a micro-batch of 200 tokens has four sequences of 48, or 8 whose
# prompts are read twice.
numerics() { sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' "$1/plan.json"; }
[ "$(numerics token)" != "$(numerics token.4)" ] || fail "shared or not, the numerics hash is the same"
sed 's/max_tokens: 8/max_tokens: 24/; s/max_tokens: 6/max_tokens: 24/; s/^    share_prompts: 4/&\n    micro_tokens: 200/' shared.yaml >long.yaml
seconds() { tr ',' '\n' <out | sed -nE 's/.*"seconds": *([0-9.e-]+).*/\1/p' | head -1; }
status 0 "$gr" plan long.yaml --format json
shared=$(seconds)
status 0 "$gr" plan long.yaml --set nodes.update.share_prompts=0 --format json
awk -v a="$shared" -v b="$(seconds)" 'BEGIN { exit !(a > 0 && a < 0.9 * b) }' || fail "predicted: $shared s, and $(seconds) s not shared"

# What it does not go together with.
refused "[0-9]+:[0-9]+: error: 'share_prompts' of 'update' and 'balance' do not go together" "$gr" check shared.yaml --set nodes.update.balance=true
refused "micro_tokens: 34, but a prompt and the 4 responses that share it \('share_prompts'\) may have 35 tokens" \
    "$gr" check shared.yaml --set nodes.update.micro_tokens=34
refused "micro_tokens: 34, but a prompt and the 4 responses" "$gr" check shared.yaml --set nodes.ref_logprob.micro_tokens=34
refused "'share_prompts' must be a whole number" "$gr" check shared.yaml --set nodes.update.share_prompts=all
hybrid_model hybrid
refused "model 'actor' of 'old_logprob' has layers of the gated delta rule, which read each sequence from its beginning" \
    "$gr" check shared.yaml --set models.actor.checkpoint=hybrid --set models.ref.checkpoint=hybrid
window_model window
refused "has layers with a sliding window" "$gr" check shared.yaml --set models.actor.checkpoint=window
model mixed qwen3_moe 16 false false
refused "'share_prompts' of 'update' and 'router_aux_loss_coef' do not go together" \
    "$gr" check shared.yaml --set model=mixed --set nodes.update.router_aux_loss_coef=0.01

# Experts, and those that the rollout chose.
for replay in rollout compare; do
    status 0 "$gr" exec whole.yaml --set model=mixed --set nodes.update.replay=$replay --steps 1 --out mixed.$replay
    status 0 "$gr" exec whole.yaml --set model=mixed --set nodes.update.replay=$replay --set nodes.update.share_prompts=4 --steps 1 \
        --out mixed.$replay.4 --check-memory
    close mixed.$replay mixed.$replay.4 1 grad_norm
    [ "$(metric mixed.$replay 1 loss)" = "$(metric mixed.$replay.4 1 loss)" ] || fail "experts, replay: $replay: the loss differs"
done

# Adapters; and products in FP8, which round the gradient of a token, so a sum of several otherwise than each.
for key in lora fp8; do
    case $key in lora) train='s/train: {/train: {lora: {rank: 4, alpha: 8}, /' ;; fp8) train='s/actor: {/&precision: {train: fp8}, /' ;; esac
    sed "$train" token.yaml >$key.yaml
    status 0 "$gr" exec $key.yaml --steps 1 --out $key
    status 0 "$gr" exec $key.yaml --set nodes.update.share_prompts=4 --steps 1 --out $key.4 --check-memory
    [ "$(metric $key 1 loss)" = "$(metric $key.4 1 loss)" ] || fail "$key: the loss differs"
    [ $key = lora ] || tolerance=1e-2
    close $key $key.4 1 grad_norm
done
