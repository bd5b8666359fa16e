#!/bin/sh
# Random graphs, model shapes, batches, policies and budgets (12; with GR_SLOW=1, 200; GR_PEAKS=FIRST-LAST: some of
# them). Batches fill what their plans count on: prompts of the longest length, responses that no stop id ends. Then
# every step keeps to the memory it declared; at no step is more touched than planned; at the plan's peak every entry is
# written to its last byte, but for the few that shorter sequences would fill further; and the process never grows by
# more than the plan's peak.
. "$(dirname "$0")/lib.sh"

model tied llama 64 true false
model wide qwen3 64 false false
model bias qwen2 32 false true
random=12345
pick() { # WORD...: one of them, in $word
    random=$(((random * 1103515245 + 12345) % 2147483648))
    shift $((random / 65536 % $#))
    word=$1
}

two() { # NUMBER: the largest power of two up to it, in $word
    word=1
    while [ $((2 * word)) -le $1 ]; do word=$((2 * word)); done
}

data() { # LENGTH: prompts of so many tokens
    [ -e p$1.jsonl ] || awk -v n="$1" 'BEGIN {
        for (i = 0; i < 64; i++) {
            q = ""
            for (k = 0; k < n; k++) q = q (i * 7 + k * k + (k == 0) * i) % 10
            printf "{\"question\": \"%s\", \"answer\": \"%d\"}\n", q, i % 10
        }
    }' >p$1.jsonl
}

# A loss of each class: one pass; the whole sequence's values first; the whole mini-batch's.
losses() { # KIND
    case $1 in
    token) loss='token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2)))' ;;
    sequence) loss='batch_mean(-advantage * exp(clip(seq_mean(logprob - old_logprob), -1, 1)))' ;;
    batch) loss='token_mean(-advantage * ratio) + 0.01 * token_std(logprob)' ;;
    esac
}

random_graph() { # a graph and options for it
    pick tied wide bias && m=$word
    pick 1 2 3 5 8 && batch=$word
    pick 1 2 3 4 6 && samples=$word
    pick 1 2 3 7 && prompt=$word
    pick 1 2 4 7 12 25 && tokens=$word
    pick 1 2 && epochs=$word
    pick 0 1 && mini=$word
    pick 1 2 64 64 64 && micro=$((word * (prompt + tokens))) # whole sequences fill it
    pick 0 0 8 16 32 # as they do what the planner chooses, a power of two, where there are as many to each cut
    [ $word = 0 ] || { tokens=$((word - prompt)); micro=0; two $batch && batch=$word; two $samples && samples=$word; }
    pick '' yes && ref=$word
    pick constant cosine && schedule=$word
    pick token token sequence batch && losses $word
    pick 0 0 3 && top_k=$word
    data $prompt
    cat >random.yaml <<END
graph: random
models:
  actor: {checkpoint: $m, train: {lr: 1.0e-2, schedule: $schedule, grad_clip: 1.0}}
${ref:+  ref: {checkpoint: $m\}}
nodes:
  prompts: {op: prompts, file: p$prompt.jsonl, batch: $batch, max_tokens: $prompt, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, max_tokens: $tokens, top_k: $top_k, ignore_eos: true}
  reward:  {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  old_logprob: {op: logprob, model: actor, of: rollout, micro_tokens: $micro}
${ref:+  ref_logprob: {op: logprob, model: ref, of: rollout, micro_tokens: $micro\}}
  advantage: {op: compute, expr: reward + 0.1 * rollout.length - group_mean(reward)}
  update:
    op: update
    model: actor
    of: rollout
    mini_batch: $mini
    epochs: $epochs
    micro_tokens: $micro
    loss: |
      ratio = exp(logprob - old_logprob)
      $loss${ref:+ + 0.01 * token_mean(exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1)}
run: {steps: 2, seed: $i}
END
}

# What a plan counts on that these batches cannot fill, and why:
#   *.kv    blocks hold 16 positions, and a sequence ends inside its last one; a pool that holds some sequences at once
#           may have blocks over that are too few for one more
#   a pass that is cut into micro-batches of so many tokens: of shorter sequences it would have more; each has blocks
#           of keys in the workspace of a layer forward, an offset in `packed`, a place in a loss of whole sequences;
#           and with shorter prompts more of the tokens are responses, which the head and the loss have rows for
cut() { # NODE SEQUENCES: of a pass, and whether it is cut
    micro_of=$(sed -nE "s/.*\"node\": \"$1\", \"name\": \"micro_tokens\", \"value\": ([0-9]+).*/\1/p" held/plan.json)
    [ -n "$micro_of" ] && [ $(($2 * (prompt + tokens))) -gt $micro_of ] || return 0
    bounds="$bounds|^$1\\.(fresh_|forward_|recompute_)?ws(\\.[0-9]+)?$|^$1\\.(fresh_)?head_ws$|^$1\\.(packed|adjoint_ws)$"
}

touched() { # RUN: touched.csv against the plan
    awk -F, -v bounds="$bounds" '
        NR == 1 { next }
        NR == 2 { step = $1; planned = $3; mark = $4; bytes = $5; next }
        { sum += $3; marks += $4 }
        $4 > $3 { print "more than planned: " $0; bad = 1 }
        $4 < $3 && $1 !~ bounds { print "at the peak, " step ": " $0; bad = 1 }
        END {
            if (sum != planned || marks != mark || mark > planned) { print "the sums are wrong"; bad = 1 }
            exit bad
        }' "$1/touched.csv" || { cat random.yaml; fail "configuration $i: $options"; }
}

first=1
last=8
[ "$slow" = 0 ] || last=200
[ -z "${GR_PEAKS:-}" ] || { first=${GR_PEAKS%-*}; last=${GR_PEAKS#*-}; }
i=0
while [ $i -lt $last ]; do
    i=$((i + 1))
    random_graph
    pick auto auto auto keep transition every_node && policy=$word
    pick 0 1 2 3 4 && quarter=$word
    [ $i -ge $first ] || continue
    status 0 "$gr" plan random.yaml --policy $policy --format json
    peak=$(json_number out peak_bytes)
    status 3 "$gr" plan random.yaml --policy $policy --budget 4KiB
    least=$(least_budget)
    budget=$((least + (peak - least) * quarter / 4))
    options="random.yaml --policy $policy --budget $budget"
    status 0 "$gr" exec $options --out held --check-memory
    bounds='\\.kv$'
    for pass in old_logprob ref_logprob; do cut $pass $((batch * samples)); done
    cut update $((mini ? mini * samples : batch * samples))
    touched held
    status 0 "$gr" exec $options --out run
    planned=$(metric run 2 planned_peak_bytes)
    measured=$(metric run 2 measured_peak_bytes)
    [ "$planned" -le $budget ] || fail "planned $planned of $budget"
    [ "$measured" -le "$planned" ] || [ -n "${GR_SANITIZED:-}" ] || fail "measured $measured of planned $planned: $options"
    same_weights held run
    sed -n 2p held/touched.csv | awk -F, -v m=$measured -v p=$planned '{print $3, $4, $5, m, p}' >>sizes
    sed 1,2d held/touched.csv | awk -F, '$4 < $3 {print $1, $3, $4}' >>rest
    rm -rf held run
done
awk '{w = $2 / $1; t = $3 / $1; m = $4 / $5; full += $1 == $2
      a = NR == 1 || w < a ? w : a; b += w; c = NR == 1 || t < c ? t : c; d += t; e = m > e ? m : e; f += m}
    END {printf "%d configurations: at the peak written up to %.2f %% of what is live, mean %.3f, to the last byte in %d; written at all %.1f %% at least, mean %.1f; measured at most %.1f %% of the peak, mean %.1f\n",
        NR, 100 * a, 100 * b / NR, full, 100 * c, 100 * d / NR, 100 * e, 100 * f / NR}' sizes
sort rest | awk '{n[$1]++; s[$1] += $2 - $3; if ($2 - $3 > m[$1]) m[$1] = $2 - $3} END {for (x in n) printf "%s: not full in %d, by %d bytes at most, %d on average\n", x, n[x], m[x], s[x] / n[x]}'
