#!/bin/sh
# Updates whose loss is evaluated on the device (its host form: loss_exec.c) train as those of the CPU evaluator do:
# losses of all classes, several mini-batches and epochs, chunks of the head, entropy, critics, states, balanced passes.
. "$(dirname "$0")/lib.sh"

# Numbers of metrics may differ in their last digits: sums within a sequence are taken in strands.
close_metrics() { # RUN RUN
    metrics "$1" >a.metrics
    metrics "$2" >b.metrics
    awk 'function numbers(line, out,    n, i, part, k) {
             n = split(line, part, /[:,{}]/)
             k = 0
             for (i = 1; i <= n; i++) if (part[i] ~ /^ *-?[0-9.]+(e[-+]?[0-9]+)? *$/) out[++k] = part[i] + 0
             return k
         }
         NR == FNR { a[FNR] = $0; lines = FNR; next }
         {
             n = numbers(a[FNR], x); m = numbers($0, y)
             if (n != m || n < 10) { print "line " FNR ": " n " and " m " numbers"; bad = 1 }
             for (i = 1; i <= n; i++) {
                 d = x[i] - y[i]; if (d < 0) d = -d
                 s = x[i] < 0 ? -x[i] : x[i]
                 if (!(d <= 1e-4 + 1e-3 * s)) { print "line " FNR ": " x[i] " and " y[i]; bad = 1 }
             }
         }
         END { if (lines != FNR) { print lines " and " FNR " lines"; bad = 1 } exit bad }' a.metrics b.metrics ||
        fail "metrics of $1 and $2 differ"
}

same() { # GRAPH SETTING...
    two_ways "$GR_LOSS_EXEC" "$@"
    close_metrics a b
}

loss() { # FILE: grpo.yaml with the loss on standard input
    awk 'FNR == NR { loss = loss "      " $0 "\n"; next }
         /^    loss: / { print; printf "%s", loss; skip = 1; next }
         skip && /^      / { next }
         { skip = 0; print }' - short.yaml | sed '/ratio_max/d' >"$1"
}

sed 's/run: .*/run: {steps: 3, seed: 7, samples: 2}/' grpo.yaml >short.yaml
same short.yaml
same short.yaml nodes.update.micro_tokens=20
same short.yaml nodes.update.mini_batch=0 nodes.update.epochs=1

loss sequence.yaml <<'END'
d = seq_mean(logprob - old_logprob)
q = exp(min(d, 10))
batch_mean(seq_mean(max(-advantage * q, -advantage * clip(q, 0.8, 1.2)))) - 0.01 * token_mean(entropy)
END
same sequence.yaml
same sequence.yaml nodes.update.micro_tokens=20

loss batch.yaml <<'END'
ratio = exp(logprob - old_logprob)
cov   = (advantage - token_mean(advantage)) * (logprob - token_mean(logprob))
drop  = choose(cov > 0, max(floor(0.1 * token_count()), 1)) or top(cov, 2, cov > 0)
token_mean(where(drop, 0, max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2)))) - beta * token_mean(entropy)
END
same batch.yaml
same batch.yaml nodes.update.micro_tokens=20

# A critic, whose fresh value is not a log-prob.
ppo_graph ppo.yaml
classifier judge model
same ppo.yaml

# Tokens that a selection leaves out, and rows that one draws: masks and copies are brought to the device.
selected() { # FILE KEYS: the graph, trained on a selection
    sed "/^  update:/,/^run:/s/of: rollout/of: kept/; s/^  update:/  kept: {op: select, of: rollout, $2}\n&/" "$1"
}
selected short.yaml 'tokens: old_logprob < -2' >kept.yaml
has kept.yaml '    of: kept'
same kept.yaml
same kept.yaml nodes.update.micro_tokens=20
selected sequence.yaml 'tokens: old_logprob < -2' >kept.yaml
same kept.yaml
selected batch.yaml 'resample: score' >kept.yaml
same kept.yaml
