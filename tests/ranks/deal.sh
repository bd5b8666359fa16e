#!/bin/sh
# Passes deal sequences to ranks by length: nearly as much work on each, whatever the lengths are, and the numbers of one
# rank. Batches whose lengths rise, pairs, selections, mini-batches and balanced passes, on 2, 3 and 4 ranks.
. "$(dirname "$0")/../e2e/lib.sh"
. "$here/close.sh"
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun" >&2; exit 77; }

# even RUN STEP MOST: ranks have at most so much above the mean, and more were groups dealt in their order
even() {
    awk -v now="$(metric "$1" "$2" update.rank_imbalance)" -v before="$(metric "$1" "$2" update.rank_imbalance_in_order)" \
        -v most="$3" 'BEGIN { exit !(now != "" && now <= most && before > now + 0.1) }' || fail "$1: $(cat "$1/metrics.jsonl")"
}

# Supervised: responses of 1 to 24 tokens, the shortest first, so that in their order one rank has most of the tokens.
awk 'BEGIN { for (i = 0; i < 24; i++) { s = ""; for (j = 0; j <= i; j++) s = s (i + j) % 10; print "{\"question\": \"" i "=\", \"answer\": \"" s "\"}" } }' >rising.jsonl
cat >rising.yaml <<'END'
graph: rising
models:
  actor: {checkpoint: model, train: {lr: 1.0e-2}}
  ref: {checkpoint: model}
nodes:
  answers: {op: sequences, file: rising.jsonl, shuffle: false, batch: 24, prompt: "{question}", response: "{answer}", max_prompt_tokens: 4, max_tokens: 25}
  before: {op: logprob, model: actor, of: answers}
  ref_logprob: {op: logprob, model: ref, of: answers}
  update:
    op: update
    model: actor
    of: answers
    loss: -token_mean(logprob + 0 * before)
    metrics: {gap: token_max(abs(logprob - before)), kl: token_max(abs(before - ref_logprob))}
run: {steps: 2, seed: 3}
END
status 0 "$gr" exec rising.yaml --out rising-1
lacks rising-1/metrics.jsonl rank_imbalance
for n in 3 $([ "$slow" = 0 ] || echo 2 4); do
    status 0 "$gr" exec rising.yaml --ranks $n --out rising-$n --check-memory
    close rising-1 rising-$n 1
    close rising-1 rising-$n 2 1e-4
    even rising-$n 1 0.02
    # log-probs, the reference's and the update's are the same numbers
    [ "$(metric rising-$n 1 update.gap)" = 0 ] || fail "$n ranks: the update differs from the log-prob by $(metric rising-$n 1 update.gap)"
    [ "$(metric rising-$n 1 update.kl)" = 0 ] || fail "$n ranks: the reference differs by $(metric rising-$n 1 update.kl)"
done

# Mini-batches, of which each is dealt by itself; cut small, balanced, in two passes; and the same bits again.
for way in "nodes.update.mini_batch=6" "nodes.update.micro_tokens=40" "nodes.update.balance=true" \
    "nodes.update.loss=-token_mean(where(choose(logprob<0,20),logprob,0))"; do
    status 0 "$gr" exec rising.yaml --set "$way" --steps 1 --out one
    status 0 "$gr" exec rising.yaml --set "$way" --steps 1 --ranks 3 --out three --check-memory
    status 0 "$gr" exec rising.yaml --set "$way" --steps 1 --ranks 3 --out again --set models.actor.residency.rollout_weights=keep
    close one three 1
    same_weights three again
    even three 1 0.25
    rm -r one three again
done

# Pairs, whose loss couples both: the long one of a pair may be on another rank than the short one.
awk 'BEGIN { for (i = 0; i < 8; i++) { s = ""; for (j = 0; j <= 3 * i; j++) s = s j % 10; print "{\"prompt\": \"" i "=\", \"chosen\": \"" i "\", \"rejected\": \"" s "\"}" } }' >pairs.jsonl
set -- --set model="$work/model" --set data="$work/pairs.jsonl" --set batch=8 --set lr=1e-3 --set models.actor.train.warmup=0 \
    --set nodes.pairs.max_prompt_tokens=8 --set 'nodes.pairs.prompt="{prompt}"' --set nodes.pairs.max_tokens=24 \
    --set nodes.pairs.shuffle=false
status 0 "$gr" exec "$project/graphs/dpo.yaml" "$@" --steps 2 --out dpo-1
for n in 3 $([ "$slow" = 0 ] || echo 2); do
    status 0 "$gr" exec "$project/graphs/dpo.yaml" "$@" --steps 2 --ranks $n --out dpo-$n --check-memory
    close dpo-1 dpo-$n 1
    close dpo-1 dpo-$n 2 1e-4
    even dpo-$n 1 0.05
done

# A selection leaves groups of different sizes, or fewer than a rank each; rows drawn are the same ones, each a group; of
# tokens that do not count, all ranks know.
sed 's/^  advantage:.*/  kept: {op: select, of: rollout, SELECT}\n  advantage: {op: compute, of: kept, expr: SCORE}/; /^  update:/,/^run:/s/of: rollout/of: kept/' grpo.yaml >form.yaml
has form.yaml 'of: kept'
for form in 'sequences: rollout.length > 1|score - group_mean(score)|8|2 3 4' 'tokens: old_logprob < -2|score - group_mean(score)|8|2 3' \
    'resample: score|score - batch_mean(score)|32|2 3' 'resample: group_mean(score)|score - group_mean(score)|8|3'; do
    sed "s/SELECT/$(echo "$form" | cut -d '|' -f 1)/; s/SCORE/$(echo "$form" | cut -d '|' -f 2)/" form.yaml >kept.yaml
    # one mini-batch: its loss is of the weights before
    set -- --set nodes.update.mini_batch="$(echo "$form" | cut -d '|' -f 3)" --set nodes.update.epochs=1
    rm -rf kept-*
    status 0 "$gr" exec kept.yaml "$@" --steps 2 --out kept-1
    ranks=${form##*|}
    [ "$slow" = 1 ] || ranks=${ranks##* }
    for n in $ranks; do
        status 0 "$gr" exec kept.yaml "$@" --steps 2 --ranks $n --out kept-$n --check-memory
        close kept-1 kept-$n 1
        for name in loss entropy reward_mean response_tokens_mean; do # of columns, which have the bits of one rank
            [ -n "$(metric kept-1 1 $name)" ] && [ "$(metric kept-$n 1 $name)" = "$(metric kept-1 1 $name)" ] ||
                fail "$form: $name on $n ranks is $(metric kept-$n 1 $name), on one $(metric kept-1 1 $name)"
        done
    done
done
