#!/bin/sh
# The steps of an iteration allocate nothing and look nothing up by name: from the third iteration on, on one rank and on
# two, of graphs with every kind of node but workers. What is counted, and what is not and why: counted.c.
. "$(dirname "$0")/lib.sh"

# steady GRAPH ARGUMENTS...: six iterations of GRAPH.yaml. Records that come from files take memory, but of a bounded size,
# and as often as there are records; of several ranks, MPI may take what it likes.
steady() {
    graph=$1
    shift
    rm -f counts counts.*
    status 0 env GR_COUNTS="$work/counts" "$GR_COUNTED" exec "$graph.yaml" --steps 6 --out "counted-$graph" "$@"
    found=0
    for f in counts counts.?; do
        [ -f $f ] || continue
        found=$((found + 1))
        ours='0'
        [ $f = counts ] || ours='[0-9]+' # MPI's
        if grep -Ev "^(outside|counted)|: 0 allocations, $ours of libraries, 0 look-ups$" $f >bad; then
            fail "steps of $graph $* ($f): $(cat bad)"
        fi
        sed -nE 's/^outside: ([0-9]+) times, ([0-9]+) allocations/\1 \2/p' $f |
            awk '{ n = $1; bytes = $2 } END { exit !(NR == 1 && n > 0 && bytes <= 32 * n) }' ||
            fail "records of $graph: $(grep '^outside' $f)"
        [ "$(sed -n 's/^counted \([0-9]*\) steps/\1/p' $f)" -gt 100 ] || fail "$graph: few steps were counted"
    done
    [ $found -gt 0 ] || fail "$graph counted nothing"
    rm -r "counted-$graph"
}

# A count that cannot fail is none: the first iteration opens what the others use.
status 0 env GR_COUNTS="$work/counts" GR_COUNT_FROM=1 "$GR_COUNTED" exec grpo.yaml --steps 1 --out first
grep -v '^outside' counts | grep -Eq ': [1-9][0-9]* allocations' || fail "the first iteration takes no memory"
rm -r first

sed 's/^run:/  vp: {op: prompts, file: $data, batch: 5, max_tokens: 8, template: "{question}", every: 1}\n  vr: {op: generate, model: actor, prompts: vp, samples: 1, temperature: 0, max_tokens: 6, every: 1}\n  vs: {op: reward, of: vr, answer: vp.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}, every: 1}\n&/;
    s/^  rollout: /  raw: /; s/of: rollout/of: kept/; s/op: compute, expr: reward + 0.1 \* rollout/op: compute, of: kept, expr: reward + 0.1 * raw/; s/^  reward:  {op: reward, of: kept/  reward:  {op: reward, of: raw/
    s/^  old_logprob:/  kept: {op: select, of: raw, groups: "group_std(reward) > 0", refill: {until: 8, rounds: 6, short: keep}}\n&/' grpo.yaml >refill.yaml
sed 's/^  rollout: {/  rollout: {lag: 2, over: 1.5, /' grpo.yaml >lag.yaml
sed '/^  update:/,/^run:/s/of: rollout/of: kept/; s/^  update:/  kept: {op: select, of: rollout, resample: score}\n&/' grpo.yaml >drawn.yaml
sed '/^  update:/,/^run:/s/of: rollout/of: kept/; s/^  update:/  kept: {op: select, of: rollout, tokens: old_logprob < -1}\n&/' grpo.yaml >masked.yaml
sed 's/rule: {extract[^}]*}/rule: math/' grpo.yaml >math.yaml
i=0
while [ $i -lt 40 ]; do
    echo "{\"prompt\": \"$((i % 10))+$((i / 10))=\", \"chosen\": \"3\", \"rejected\": \"77\", \"weight\": $i}"
    i=$((i + 1))
done >pairs.jsonl
cat >pairs.yaml <<'END'
graph: pairs
params: {model: model}
models:
  actor: {checkpoint: $model, train: {lr: 1.0e-3}}
  ref: {checkpoint: $model}
nodes:
  pairs: {op: sequences, file: pairs.jsonl, batch: 8, prompt: "{prompt}", response: "{chosen}", pair: "{rejected}", max_prompt_tokens: 8, max_tokens: 3}
  ref_logprob: {op: logprob, model: ref, of: pairs}
  update:
    op: update
    model: actor
    of: pairs
    mini_batch: 4
    balance: true
    loss: |
      s = seq_sum(logprob - ref_logprob)
      -batch_mean(log(sigmoid(0.1 * (1 + pairs.weight / 40) * group_sum(where(pairs.second, -s, s)))))
run: {epochs: 3, seed: 1}
END
cat >split.yaml <<'END'
graph: tiny
use: grpo.yaml
pools: {train: {share: 1}, rollout: {share: 1}}
models: {actor: {pool: train}, ref: {pool: rollout}}
nodes: {rollout: {pool: rollout}}
END
model moe qwen3_moe 32 false false
sed 's/{model: model,/{model: moe,/; s/^  rollout: {/&lag: 1, /; s/old_logprob: {/&replay: compare, /
    s/^    epochs: 2/&\n    replay: rollout\n    router_aux_loss_coef: 0.1/' grpo.yaml >routed.yaml
ppo_graph ppo.yaml
classifier judge model
graphs="grpo math refill lag drawn masked pairs ppo routed"
for graph in $graphs; do steady $graph; done
steady grpo --policy every_node
if runs_ranks; then
    [ "$slow" = 1 ] || graphs="refill lag ppo routed" # what ranks do beside what one does
    for graph in $graphs; do steady $graph --ranks 2; done
    sed 's/^graph:/canonical: true\n&/' grpo.yaml >canonical.yaml
    steady canonical --ranks 2
    steady split --ranks 2
    for graph in refill grpo; do steady $graph --ranks 2 --policy every_node; done
fi
