#!/bin/sh
# What must not change the bits of a run: running it again, the number of threads, the size of the KV pool and of the
# batch that is decoded, how passes are cut into micro-batches, recomputation. For biases, norms of q and k, and tied
# embeddings alike; but for tied ones the cuts of an update do change bits, and numerics tells.
. "$(dirname "$0")/lib.sh"

model qwen2 qwen2 32 false true
model qwen3 qwen3 32 false false
model tied llama 64 true false
# Several mini-batches and epochs, and a loss of each class.
sed '/^    loss:/,/token_mean(pg/d; /metrics:/d' grpo.yaml >start.yaml
{ sed '/^run:/d' start.yaml && cat <<'END'
    loss: |
      u = seq_mean(logprob - old_logprob)
      q = exp(min(logprob - stop_gradient(logprob) + stop_gradient(u), 10))
      batch_mean(seq_mean(max(-advantage * q, -advantage * clip(q, 0.8, 1.2)))) - beta * token_mean(entropy)
run: {steps: 6, seed: 7, samples: 2}
END
} >sequence.yaml
{ sed '/^run:/d' start.yaml && cat <<'END'
    loss: |
      ratio = exp(logprob - old_logprob)
      l1   = -advantage * ratio
      l2   = -advantage * clip(ratio, 0.8, 1.2)
      cov  = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))
      drop = choose(l2 <= l1 and cov > 0.1 and cov < 5, max(floor(0.1 * token_count()), 1))
      token_mean(where(drop, 0, max(l1, l2))) + beta * token_std(logprob)
run: {steps: 6, seed: 7, samples: 2}
END
} >batch.yaml

again() { # GRAPH MODEL OPTION...: the bits of GRAPH-MODEL
    g=$1
    m=$2
    shift 2
    rm -rf again
    status 0 "$gr" exec $g.yaml --set model=$m "$@" --out again
    same_weights $g-$m again
    same_metrics $g-$m again
    cmp $g-$m/samples.jsonl again/samples.jsonl || fail "samples of $g-$m with $*"
}

for m in model qwen2 qwen3 tied; do
    for g in grpo sequence batch; do
        case $slow$g$m in 0grpomodel) continue ;; 1* | 0grpo* | *qwen3) ;; *) continue ;; esac
        status 0 "$gr" exec $g.yaml --set model=$m --out $g-$m
        for change in kv_blocks=1 concurrent=5; do
            again $g $m --set nodes.rollout.$change
        done
        again $g $m --set nodes.old_logprob.micro_tokens=17 --set nodes.ref_logprob.micro_tokens=29
        if [ $m = tied ]; then continue; fi
        again $g $m --set nodes.update.micro_tokens=14
        again $g $m --set nodes.update.micro_tokens=50 --set nodes.rollout.kv_blocks=3 --policy keep
    done
done

# Threads.
taskset -cp "$cores" $$ >/dev/null
for g in grpo sequence batch; do
    again $g qwen3
done
again grpo tied
