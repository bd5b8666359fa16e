#!/bin/sh
# Conversations that their environments open, on a CUDA device: each has a prompt of its own, read into blocks of its own. With
# `strict: true` the gap between rollout and update is exactly 0, and neither when answers come, nor slots and blocks, nor a process
# that dies changes a sample or a weight; kept rows go on as they were. Skips (77) where there is no device.
# usage: opens.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
failed=0
fail() {
    echo "$*: FAIL"
    failed=1
}
cat >"$work/model/chat_template.jinja" <<'END'
{% for m in messages %}{% if tools and loop.last %}{{ tools | length }}={% endif %}{{ m['content'] | replace('x', '1') }}{% endfor %}
END
cat >"$work/opens.yaml" <<'END'
graph: opens
params: {model: model, data: train.jsonl, way: ""}
models:
  actor: {checkpoint: $model, train: {optimizer: adamw, lr: 1.0e-3, grad_clip: 1.0}}
nodes:
  prompts: {op: prompts, file: $data, batch: 64, max_tokens: 20, template: chat, messages: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 8, temperature: 1.0, max_tokens: 5, stop: ["5", "7", "9"], turns: 4, max_context: 60, environment: {command: $way, opens: true, workers: 4, timeout: 30s, metrics: [calls]}}
  reward: {op: reward, of: rollout, from: environment}
  old_logprob: {op: logprob, model: actor, of: rollout}
  advantage: {op: compute, expr: (reward - group_mean(reward)) / (group_std(reward) + 1e-6)}
  update: {op: update, model: actor, of: rollout, loss: "token_mean(-advantage * exp(logprob - old_logprob))"}
run: {steps: 3, seed: 1, samples: 64, checkpoint: {every: 3}}
END
run() { # OUT WAY OPTIONS...
    out=$work/$1 way=$2
    shift 2
    "$gr" exec "$work/opens.yaml" --device cuda --out "$out" --set model="$work/model" --set data="$work/train.jsonl" \
        --set "way=perl tests/e2e/opener.pl $way" --set strict=true "$@" >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
    gaps=$(grep -o '"logprob_gap_max": [^,}]*' "$out/metrics.jsonl" | sed 's/.*: //' | tr '\n' ' ')
    if [ "$gaps" != "0 0 0 " ] && [ "${out##*/}" != kept ]; then fail "${out##*/}: gaps of $gaps"; fi
    if grep -q '"rollout.failed": [1-9]' "$out/metrics.jsonl"; then fail "${out##*/}: conversations failed"; fi
}
same() { # RUN RUN
    cmp "$work/$1/samples.jsonl" "$work/$2/samples.jsonl" || fail "the conversations of $1 and $2 differ"
    cmp "$work/$1/checkpoints/step-3/actor/model.safetensors" "$work/$2/checkpoints/step-3/actor/model.safetensors" ||
        fail "the weights of $1 and $2 differ"
}
run opens ""
grep -q '"prompt": "2=111' "$work/opens/samples.jsonl" || fail "no tools in a prompt"
grep -q '"by": "environment", "text": "2=+' "$work/opens/samples.jsonl" || fail "no tools behind a turn"
run few slow --set nodes.rollout.concurrent=37 --set nodes.rollout.kv_blocks=60
same opens few
rm -f died
run die die
rm -f died
same opens die
run kept slow --set nodes.rollout.over=1.5 --set nodes.rollout.lag=2
[ $failed = 1 ] || echo "opens: as it should be"
exit $failed
