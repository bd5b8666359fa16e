#!/bin/sh
# Conversations on a CUDA device, where decode steps go by chunks and answers are read beside prompts. With `strict: true`
# the gap between rollout and update is exactly 0, so the keys kept over turns are those of one pass, and neither when
# answers come nor the number of slots or blocks changes a sample or a weight. Without it the gap is as small as that of one
# turn. How fast they are: turns_rate.sh. Skips (77) where there is no device.
# usage: turns.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
failed=0
fail() {
    echo "$*: FAIL"
    failed=1
}

cat >"$work/turns.yaml" <<'END'
graph: turns
params: {model: model, data: train.jsonl, way: "", prompts: 64, prompt_tokens: 8, max_tokens: 5, turns: 4, context: 60, samples: 8}
models:
  actor: {checkpoint: $model, train: {optimizer: adamw, lr: 1.0e-3, grad_clip: 1.0}}
nodes:
  prompts: {op: prompts, file: $data, batch: $prompts, max_tokens: $prompt_tokens, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: $samples, temperature: 1.0, max_tokens: $max_tokens, stop: ["5", "7", "9"], turns: $turns, max_context: $context, environment: {command: $way, workers: 4, timeout: 30s, metrics: [calls]}}
  reward: {op: reward, of: rollout, from: environment}
  old_logprob: {op: logprob, model: actor, of: rollout}
  advantage: {op: compute, expr: (reward - group_mean(reward)) / (group_std(reward) + 1e-6)}
  update: {op: update, model: actor, of: rollout, loss: "token_mean(-advantage * exp(logprob - old_logprob))"}
log: {turns: batch_mean(rollout.turns)}
run: {steps: 5, seed: 1, samples: 64, checkpoint: {every: 5}}
END
graph=turns
run() { # OUT OPTIONS...
    out=$work/$1
    shift
    "$gr" exec "$work/$graph.yaml" --device cuda --out "$out" --set model="$work/model" --set data="$work/train.jsonl" "$@" \
        >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
}
values() { # NAME RUN: of all iterations
    grep -o "\"$1\": [^,}]*" "$work/$2/metrics.jsonl" | sed 's/.*: //' | tr '\n' ' '
}
same() { # RUN RUN
    cmp "$work/$1/samples.jsonl" "$work/$2/samples.jsonl" || fail "the conversations of $1 and $2 differ"
    cmp "$work/$1/checkpoints/step-5/actor/model.safetensors" "$work/$2/checkpoints/step-5/actor/model.safetensors" ||
        fail "the weights of $1 and $2 differ"
}
said="perl tests/e2e/say.pl"
run strict --set strict=true --set way="$said"
[ "$(values logprob_gap_max strict)" = "0 0 0 0 0 " ] || fail "strict: gaps of $(values logprob_gap_max strict)"
grep -q '"by": "environment"' "$work/strict/samples.jsonl" || fail "nobody answered"
echo "strict: turns of $(values turns strict)"
run slow --set strict=true --set way="$said slow"
same strict slow
# A conversation leaves its slot with its last turn: nobody waits for what is said then, and one that begins anew gets a slot again.
one="--set nodes.rollout.environment.workers=1 --set nodes.rollout.environment.timeout=60 --set nodes.rollout.environment.in_flight=600"
# shellcheck disable=SC2086 # settings have no spaces
{
    run last --set strict=true --set way="$said last 1" $one
    run late --set strict=true --set way="$said last 512" --set nodes.rollout.concurrent=37 $one
    same last late
    rm -f died
    run die-last --set strict=true --set way="$said die-last" --set nodes.rollout.kv_blocks=41
    [ -e died ] || fail "no process died at a last turn"
    rm -f died
    same last die-last
    echo "last turns: as they should be"
}
sed 's/{op: generate, /{op: generate, speculate: {always: true, tokens: 3, match: 1, from: group}, /' "$work/turns.yaml" >"$work/drafts.yaml"
graph=drafts
run drafts --set strict=true --set way="$said"
graph=turns
same strict drafts
[ "$(values rollout.accepted drafts | tr -d '0 ')" ] || fail "no draft of a conversation is accepted"
echo "drafts: accepted $(values rollout.accepted drafts)of $(values rollout.drafted drafts)"
run few --set strict=true --set way="$said" --set nodes.rollout.concurrent=37
same strict few
run blocks --set strict=true --set way="$said slow" --set nodes.rollout.kv_blocks=41
same strict blocks
rm -f died
run die --set strict=true --set way="$said die"
rm -f died
same strict die
for loose in fast slow; do # a slot that waits takes no part in a chunk, whatever its neighbours of the same prompt do
    for slots in 512 37 8; do
        run "loose-$loose-$slots" --set way="$said $loose" --set nodes.rollout.concurrent=$slots
        gaps=$(values logprob_gap_max "loose-$loose-$slots")
        echo "not strict, $loose, $slots slots: gaps of $gaps"
        for gap in $gaps; do awk -v gap="$gap" 'BEGIN { exit !(gap + 0 < 0.2 && gap ~ /^[0-9]/) }' || fail "a gap of $gap"; done
    done
done
exit $failed
