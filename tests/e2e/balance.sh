#!/bin/sh
# balance: the passes of an update and of the log-probs of its rows take the longest sequences first. Every value of a
# sequence or token, and so the loss, keeps its bits; sums over tokens are added up in another order.
. "$(dirname "$0")/lib.sh"

sed 's/mini_batch: 4/mini_batch: 8/; s/epochs: 2/epochs: 1/' grpo.yaml >whole.yaml
close() { # RUN RUN STEP NAME: relative difference at most 1e-5
    awk -v a="$(metric "$1" "$3" "$4")" -v b="$(metric "$2" "$3" "$4")" \
        'BEGIN {d = a - b; if (d < 0) d = -d; m = a < 0 ? -a : a; exit !(a != "" && d <= 1e-5 * m)}' ||
        fail "$4 of step $3: $(metric "$1" "$3" "$4") and $(metric "$2" "$3" "$4")"
}

# Losses of each class: token-coupled, sequence-coupled (GSPO), mini-batch-coupled (as clip_cov).
cp whole.yaml token.yaml
loss() { # FILE: the loss is standard input
    sed '/^    loss: |/,/^      token_mean(pg/d' whole.yaml >"$1"
    sed 's/^/      /' >loss.txt
    sed -i -e '/^    epochs: 1/{a\    loss: |
r loss.txt
}' "$1"
}
loss seq.yaml <<'END'
u = seq_mean(logprob - old_logprob)
q = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))
kl = ref_logprob - logprob
batch_mean(seq_mean(max(-advantage * q, -advantage * clip(q, 0.9, 1.1)) + beta * kl))
END
loss batch.yaml <<'END'
ratio = exp(logprob - old_logprob)
cov = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))
kl = ref_logprob - logprob
token_mean(where(choose(cov > 0.1, 5), 0, -advantage * ratio) + beta * kl)
END
for class in token seq batch; do
    "$gr" check $class.yaml --explain >explained
    case $class in token) says=token ;; seq) says=sequence ;; batch) says=mini-batch ;; esac
    has explained "class: $says-coupled"
    status 0 "$gr" exec $class.yaml --set nodes.update.micro_tokens=40 --steps 2 --out $class
    status 0 "$gr" exec $class.yaml --set nodes.update.balance=true --set nodes.update.micro_tokens=40 --steps 2 \
        --out $class.even --check-memory
    for name in loss reward_mean entropy kl update.ratio_max logprob_gap_max; do
        [ "$(metric $class 1 $name)" = "$(metric $class.even 1 $name)" ] ||
            fail "$class: $name is $(metric $class 1 $name), balanced $(metric $class.even 1 $name)"
    done
    close $class $class.even 1 grad_norm
    # what was added up in another order differs in its last bits, or nothing was in another order
    ! cmp -s $class/checkpoints/step-2/actor/model.safetensors $class.even/checkpoints/step-2/actor/model.safetensors ||
        fail "$class: nothing was in another order"
done

# The first step's ratio is exactly 1 and the KL to an equal reference exactly 0: log-prob, reference and update see the
# same values.
status 0 "$gr" exec token.yaml --set nodes.update.balance=true --steps 1 --out first
[ "$(metric first 1 update.ratio_max)" = 1 ] || fail "the ratio of the first step is $(metric first 1 update.ratio_max)"
[ "$(metric first 1 kl)" = 0 ] || fail "the KL of the first step is $(metric first 1 kl)"

# Where the cuts are changes no bit, whoever chooses them; several mini-batches and epochs; a resume.
even="--set nodes.update.balance=true --set models.actor.train.schedule=constant"
status 0 "$gr" exec grpo.yaml $even --out even
for tokens in 14 20 33; do
    status 0 "$gr" exec grpo.yaml $even --set nodes.update.micro_tokens=$tokens --set nodes.ref_logprob.micro_tokens=$tokens \
        --out even$tokens
    same_weights even even$tokens
    same_metrics even even$tokens
done
status 3 "$gr" plan grpo.yaml $even --budget 4KiB
least=$(least_budget)
status 0 "$gr" exec grpo.yaml $even --budget "$least" --out tight
same_weights even tight
status 0 "$gr" exec grpo.yaml $even --steps 3 --out part
status 0 "$gr" exec --resume part --steps 6
same_weights even part
same_metrics even part

# It is part of what fixes the bits.
numerics() { sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' "$1/plan.json"; }
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --steps 1 --out plain
[ "$(numerics plain)" != "$(numerics even)" ] || fail "balanced or not, the numerics hash is the same"
refused "'balance' must be true or false" "$gr" check grpo.yaml --set nodes.update.balance=much
