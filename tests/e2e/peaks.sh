#!/bin/sh
# Random graphs, model shapes, batches, policies and budgets (6; with GR_SLOW=1, 200): every step keeps to the memory it
# declared, what is touched is at no step more than planned, and the process never grows by more than the plan's peak.
. "$(dirname "$0")/lib.sh"

model tied llama 64 true false
model wide qwen3 64 false false
random=12345
pick() { # WORD...: one of them, in $word
    random=$(((random * 1103515245 + 12345) % 2147483648))
    shift $((random / 65536 % $#))
    word=$1
}

random_graph() { # a graph and options for it
    pick model tied wide && m=$word
    pick 1 2 3 5 8 && batch=$word
    pick 1 2 3 4 6 && samples=$word
    pick 1 2 4 7 12 && tokens=$word
    pick 1 2 && epochs=$word
    pick 0 1 && mini=$((word * batch))
    pick 0 64 && micro=$word
    pick '' yes && ref=$word
    pick constant cosine && schedule=$word
    cat >random.yaml <<END
graph: random
models:
  actor: {checkpoint: $m, train: {lr: 1.0e-2, schedule: $schedule, grad_clip: 1.0}}
${ref:+  ref: {checkpoint: $m\}}
nodes:
  prompts: {op: prompts, file: train.jsonl, batch: $batch, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, temperature: 1.0, max_tokens: $tokens}
  reward:  {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  old_logprob: {op: logprob, model: actor, of: rollout}
${ref:+  ref_logprob: {op: logprob, model: ref, of: rollout\}}
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
      token_mean(max(-advantage * ratio, -advantage * clip(ratio, 0.8, 1.2))${ref:+ + 0.01 * (exp(ref_logprob - logprob) - (ref_logprob - logprob) - 1)})
run: {steps: 2, seed: $i}
END
}

mebibytes() { # TEXT LABEL: of the sizes that a run ends with
    echo "$1" | sed -nE "s/.*$2 ([0-9.]+) ([KM]iB|B).*/\1 \2/p" | awk '{print $2 == "MiB" ? $1 : $2 == "KiB" ? $1 / 1024 : $1 / 1048576}'
}

n=6
[ "$slow" = 0 ] || n=200
i=0
while [ $i -lt $n ]; do
    i=$((i + 1))
    random_graph
    pick auto auto auto keep transition every_node && policy=$word
    status 0 "$gr" plan random.yaml --policy $policy --format json
    peak=$(json_number out peak_bytes)
    status 3 "$gr" plan random.yaml --policy $policy --budget 4KiB
    least=$(sed -nE 's/.*would fit: --budget ([0-9]+).*/\1/p' err | head -1)
    pick 0 1 2 3 4 && budget=$((least + (peak - least) * word / 4))
    options="random.yaml --policy $policy --budget $budget"
    status 0 "$gr" exec $options --out held --check-memory
    line=$(grep '^peak: planned' out)
    arena=$(json_number held/plan.json arena_bytes)
    touched=$(mebibytes "$line" 'touched by steps')
    echo "$touched $arena" | awk '{exit !($1 > 0 && ($1 - 0.01) * 1048576 <= $2)}' || fail "touched $touched MiB of an arena of $arena"
    status 0 "$gr" exec $options --out run
    planned=$(metric run 2 planned_peak_bytes)
    measured=$(metric run 2 measured_peak_bytes)
    [ "$planned" -le $budget ] || fail "planned $planned of $budget"
    [ "$measured" -le "$planned" ] || [ -n "${GR_SANITIZED:-}" ] || fail "measured $measured of planned $planned: $options"
    same_weights held run
    echo "$touched $arena $measured $planned" >>sizes
    rm -rf held run
done
awk '{t = $1 * 1048576 / $2; m = $3 / $4; a = NR == 1 || t < a ? t : a; b = t > b ? t : b; s += t
      c = NR == 1 || m < c ? m : c; e = m > e ? m : e; u += m}
    END {printf "%d configurations: touched %.0f to %.0f %% of the arena, mean %.0f; measured %.0f to %.0f %% of the peak, mean %.0f\n",
        NR, 100 * a, 100 * b, 100 * s / NR, 100 * c, 100 * e, 100 * u / NR}' sizes
