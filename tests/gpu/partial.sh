#!/bin/sh
# Rollouts that keep rows, on a CUDA device (`over`, `partial`, `lag` above 1; tests/e2e/partial.sh is their test). With weights
# that stay as they are, and `strict: true`, what goes on in another iteration has the log-probs of one pass: the gap is
# exactly 0. Stopped and resumed, or with its environment's answers replayed, a run has the same bits. Skips (77) where there
# is no device.
# usage: partial.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
failed=0
fail() {
    echo "$*: FAIL"
    failed=1
}
cat >"$work/kept.yaml" <<'END'
graph: kept
params: {model: model, data: train.jsonl, lr: 1.0e-3, over: 1.5, partial: keep, lag: 0}
models:
  actor: {checkpoint: $model, train: {optimizer: adamw, lr: $lr, weight_decay: 0}}
nodes:
  prompts: {op: prompts, file: $data, batch: 64, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 8, max_tokens: 40, stop: ["57", "79"], over: $over, partial: $partial, lag: $lag}
  reward: {op: reward, of: rollout, answer: prompts.answer, rule: exact}
  old_logprob: {op: logprob, model: actor, of: rollout}
  score: {op: compute, expr: reward + 0.01 * rollout.length}
  advantage: {op: compute, expr: (score - group_mean(score)) / (group_std(score) + 1e-6)}
  update: {op: update, model: actor, of: rollout, loss: "token_mean(-advantage * exp(logprob - old_logprob))"}
log: {oldest: token_max(step - rollout.version), gap: token_max(abs(old_logprob - rollout.logprob))}
run: {steps: 5, seed: 1, samples: 64, checkpoint: {every: 5}}
END
sed -e "s/^params: {/&way: perl, /" -e 's/max_tokens: 40,/max_tokens: 5, turns: 4, max_context: 60, environment: {command: $way, workers: 4, timeout: 30s},/' \
    -e 's/^  reward: .*/  reward: {op: reward, of: rollout, from: environment}/' "$work/kept.yaml" >"$work/turns.yaml"
run() { # GRAPH OUT OPTIONS...
    out=$work/$2 graph=$work/$1.yaml
    shift 2
    "$gr" exec "$graph" --device cuda --out "$out" --set model="$work/model" --set data="$work/train.jsonl" "$@" \
        >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
    [ "$(grep -c 'warning' "$out.log")" = 0 ] || grep warning "$out.log"
}
resume() { # OUT
    "$gr" exec --resume "$work/$1" --steps 5 --device cuda >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; exit 1; }
}
values() { # NAME RUN: of all iterations
    grep -o "\"$1\": [^,}]*" "$work/$2/metrics.jsonl" | sed 's/.*: //' | tr '\n' ' '
}
same() { # RUN RUN
    cmp "$work/$1/samples.jsonl" "$work/$2/samples.jsonl" || fail "the samples of $1 and $2 differ"
    cmp "$work/$1/checkpoints/step-5/actor/model.safetensors" "$work/$2/checkpoints/step-5/actor/model.safetensors" ||
        fail "the weights of $1 and $2 differ"
}
within_plan() { # RUN
    grep 'peak: planned' "$work/$1.log"
    for s in planned measured; do grep -o "\"${s}_peak_bytes\": [0-9]*" "$work/$1/metrics.jsonl" | tail -1 | sed 's/.*: //'; done |
        awk 'NR == 1 { planned = $1 } NR == 2 && $1 > planned { exit 1 }' || fail "$1 takes more than was planned"
}
run kept still --set strict=true --set lr=1.0e-30
[ "$(values logprob_gap_max still)$(values gap still)" = "0 0 0 0 0 0 0 0 0 0 " ] || fail "strict: gaps of $(values gap still)"
echo "kept: $(values rollout.kept_groups still), of these not complete: $(values rollout.partial_groups still), taken up again: $(values rollout.resumed_groups still)"
echo "tokens of what is taken: $(values rollout.taken_length still), of what is left: $(values rollout.left_length still)"
within_plan still
run kept loose --set lr=1.0e-30
echo "not strict: gaps of $(values gap loose)"
for gap in $(values gap loose); do awk -v gap="$gap" 'BEGIN { exit !(gap + 0 < 0.2 && gap ~ /^[0-9]/) }' || fail "a gap of $gap"; done
for how in "lag=0" "lag=3" "partial=drop"; do
    name=$(echo "$how" | tr = -)
    run kept "$name" --set "$how"
    run kept "$name-2" --set "$how" --steps 2
    resume "$name-2"
    same "$name" "$name-2"
    echo "$how: oldest tokens of $(values oldest "$name")"
    within_plan "$name"
done
[ "$(values oldest lag-3)" = "0 1 2 3 4 " ] || [ "$(values oldest lag-3)" = "0 1 2 3 3 " ] || fail "lag 3: $(values oldest lag-3)"
cd "$work"
said="perl $OLDPWD/tests/e2e/say.pl slow"
sed "s|command: [^,]*, workers: 4|&, record: answers.jsonl|" turns.yaml >record.yaml
sed "s|command: [^,]*, workers: 4|replay: answers.jsonl|" turns.yaml >replay.yaml
run record recorded --set strict=true --set lag=3 --set way="$said"
run replay replayed --set strict=true --set lag=3
same recorded replayed
run replay replayed-2 --set strict=true --set lag=3 --steps 2
resume replayed-2
same recorded replayed-2
echo "conversations: kept $(values rollout.kept_groups recorded), taken up again $(values rollout.resumed_groups recorded), failed $(values rollout.failed recorded)"
[ $failed = 0 ] && echo passed
exit $failed
