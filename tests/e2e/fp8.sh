#!/bin/sh
# Products in FP8: of rollouts, of passes, or of both; the gap between them, the same bits under any budget and after any stop,
# whole plans proven, several ranks and pools, and what is refused.
. "$(dirname "$0")/lib.sh"

cat >more.sed <<'END'
s/, schedule: cosine//
s/steps: 6/steps: 4/
s/metrics: .*/metrics: {ratio_max: token_max(exp(logprob - old_logprob))}/
END
sed -f more.sed grpo.yaml >bf16.yaml
with() { # FILE ROLLOUT TRAIN
    sed "s/actor: {/&precision: {rollout: $2, train: $3}, /" bf16.yaml >"$1"
}
with said.yaml bf16 bf16
with mixed.yaml fp8 bf16
with train.yaml bf16 fp8
with all.yaml fp8 fp8
sed 's/train: fp8/train: fp8, gradients: fp8/' all.yaml >gradients.yaml

# ---- what is not asked for changes nothing
for g in bf16 said mixed all; do
    status 0 "$gr" exec $g.yaml --out whole-$g
done
same_weights whole-bf16 whole-said
same_metrics whole-bf16 whole-said
status 0 "$gr" check mixed.yaml --explain
has out 'products of its layers in FP8: of rollouts$'
has err "mixed.yaml:4:[0-9]+: warning: model 'actor' samples and trains in different precision, and nothing reads 'rollout.logprob'"
status 0 "$gr" check "$project/graphs/grpo_fp8.yaml" --set model=model --set data=train.jsonl --set max_prompt=8 --set max_tokens=8
lacks err 'precision'

# ---- where all passes compute alike there is no gap, else there is one, and it is small
config wide.json qwen2 160 true true # blocks of 128 that are not full, in both directions
sed -i 's/"initializer_range": 0.3/"initializer_range": 0.08/' wide.json
"$gr" init --config wide.json --tokenizer "$project/graphs/quickstart" --seed 1 -o wide >/dev/null
for g in mixed train all; do
    status 0 "$gr" exec $g.yaml --set model=wide --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2 --out one-$g --check-memory
    status 0 "$gr" plan $g.yaml --format json -o plan-$g.json
    status 0 "$gr" verify plan-$g.json
    has plan-$g.json '"actor.fp8.1"'
    lacks plan-$g.json '"actor.fp8.[03]"|"ref.fp8'
done
for step in 1 2; do
    [ "$(metric one-all $step logprob_gap_max)" = 0 ] || fail "a gap of $(metric one-all $step logprob_gap_max) in FP8 alone"
    for g in mixed train; do
        metric one-$g $step logprob_gap_max | awk '{ exit !($1 > 1e-3 && $1 < 0.5) }' ||
            fail "$g: a gap of $(metric one-$g $step logprob_gap_max)"
    done
done
[ "$(metric one-all 1 update.ratio_max)" = 1 ] || fail "the ratio of the first step is $(metric one-all 1 update.ratio_max)"
[ "$(metric one-all 1 kl)" != "$(metric one-mixed 1 kl)" ] || fail "log-probs are not in FP8"
! cmp -s one-all/checkpoints/step-2/actor/model.safetensors one-mixed/checkpoints/step-2/actor/model.safetensors ||
    fail "updates are not in FP8"
# gradients of weights, too: the same forward passes, and others' weights behind a step
status 0 "$gr" check gradients.yaml --explain
has out 'gradients of their weights in FP8$'
status 0 "$gr" plan gradients.yaml --set model=wide --format json -o plan-gradients.json
status 0 "$gr" verify plan-gradients.json
[ "$(sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' plan-gradients.json)" != "$(sed -nE 's/.*"numerics": "([^"]*)".*/\1/p' plan-all.json)" ] ||
    fail "gradients in FP8 have the bits of others"
status 0 "$gr" exec gradients.yaml --set model=wide --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2 --out one-gradients --check-memory
has one-gradients/graph.yaml 'precision: .*train: .?fp8.?, gradients: .?fp8'
for name in loss entropy logprob_gap_max; do
    [ "$(metric one-gradients 1 $name)" = "$(metric one-all 1 $name)" ] || fail "gradients in FP8 change $name"
done
awk "BEGIN {d = $(metric one-gradients 1 grad_norm) / $(metric one-all 1 grad_norm); exit !(d != 1 && d > 0.95 && d < 1.05)}" ||
    fail "norms of gradients: $(metric one-gradients 1 grad_norm) and $(metric one-all 1 grad_norm)"
[ "$(metric one-gradients 2 logprob_gap_max)" = 0 ] || fail "gradients in FP8: a gap of $(metric one-gradients 2 logprob_gap_max)"
status 0 "$gr" exec gradients.yaml --out whole-gradients
any_stop gradients whole-gradients 4 2
rm -r part2
status 3 "$gr" plan gradients.yaml --set run.bits=keep --budget 4KiB
status 0 "$gr" exec gradients.yaml --set run.bits=keep --budget "$(least_budget)" --out least-gradients --check-memory
same_weights whole-gradients least-gradients # where micro-batches are cut matters, and the planner knows
# the rollout's own log-probs, asked again with its weights
sed 's/old_logprob: {/&weights: rollout, /' mixed.yaml >again.yaml
echo 'log: {off: token_max(abs(old_logprob - rollout.logprob))}' >>again.yaml
status 0 "$gr" exec again.yaml --steps 2 --out again
[ "$(metric again 1 off) $(metric again 2 off)" = "0 0" ] || fail "weights: rollout are others: $(metric again 2 off)"

# ---- keys and values of rollouts: a quarter of the pool's bytes on this device, and a gap of their own
kv_bytes() { # PLAN
    sed -nE 's/.*"what": "rollout.kv",.* "bytes": ([0-9]+).*/\1/p' "$1" | head -1
}
sed "s/actor: {/&precision: {kv: fp8}, /" bf16.yaml >kv.yaml
sed "s/actor: {/&precision: {rollout: fp8, kv: fp8}, /; s/old_logprob: {/&weights: rollout, /" bf16.yaml >both.yaml
echo 'log: {off: token_max(abs(old_logprob - rollout.logprob))}' >>both.yaml
status 0 "$gr" check kv.yaml --explain
has out 'keys and values of rollouts in FP8'
has err "kv.yaml:4:[0-9]+: warning: model 'actor' samples and trains in different precision"
for g in bf16 kv both; do
    status 0 "$gr" plan $g.yaml --set model=wide --format json -o plan-$g.json
    status 0 "$gr" verify plan-$g.json
done
[ $((100 * $(kv_bytes plan-kv.json))) -lt $((32 * $(kv_bytes plan-bf16.json))) ] || fail "the pool has $(kv_bytes plan-kv.json) bytes"
for g in kv both; do
    status 0 "$gr" exec $g.yaml --set model=wide --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2 --out one-$g --check-memory
    metric one-$g 2 logprob_gap_max | awk '{ exit !($1 > 1e-4 && $1 < 0.5) }' || fail "$g: a gap of $(metric one-$g 2 logprob_gap_max)"
done
[ "$(metric one-both 1 off) $(metric one-both 2 off)" = "0 0" ] || fail "weights: rollout have other keys: $(metric one-both 2 off)"
status 0 "$gr" exec kv.yaml --out whole-kv
[ "$(metric whole-kv 1 logprob_gap_max)" != "$(metric whole-bf16 1 logprob_gap_max)" ] || fail "keys are not in FP8"
[ "$slow" = 0 ] || any_stop kv whole-kv 4 2
status 3 "$gr" plan kv.yaml --budget 4KiB
status 0 "$gr" exec kv.yaml --budget "$(least_budget)" --out least --check-memory
same_weights whole-kv least

# ---- adapters: they are merged, and what comes of it is rounded; new ones change nothing
sed 's/train: {/train: {lora: {rank: 4, alpha: 8}, /' all.yaml >lora.yaml
sed 's/train: fp8/train: bf16/' lora.yaml >lora-mixed.yaml
status 0 "$gr" exec lora.yaml --set model=wide --set nodes.update.epochs=1 --set nodes.update.mini_batch=8 --steps 2 --out one-lora --check-memory
for name in loss entropy kl reward_mean; do
    [ "$(metric one-lora 1 $name)" = "$(metric one-all 1 $name)" ] || fail "new adapters change $name"
done
[ "$(metric one-lora 1 logprob_gap_max) $(metric one-lora 2 logprob_gap_max)" = "0 0" ] || fail "adapters: a gap of $(metric one-lora 2 logprob_gap_max)"
[ "$(metric one-lora 2 kl)" != "$(metric one-all 2 kl)" ] || fail "adapters are not what is trained"
status 0 "$gr" exec lora.yaml --out whole-lora
[ "$slow" = 0 ] || any_budget lora whole-lora
any_stop lora whole-lora 4 1
rm -r part1
status 0 "$gr" exec lora-mixed.yaml --set model=wide --steps 2 --out lora-mixed
metric lora-mixed 2 logprob_gap_max | awk '{ exit !($1 > 1e-3 && $1 < 0.7) }' || fail "adapters: a gap of $(metric lora-mixed 2 logprob_gap_max)"

# ---- budgets and stops; older weights have a copy of their own
any_budget all whole-all
any_stop all whole-all 4 1
[ "$slow" = 0 ] || any_stop mixed whole-mixed 4 3
sed -e '/epochs: 2/d' -e 's/rollout: {op: generate,/& lag: 1,/' all.yaml >lag.yaml
status 0 "$gr" exec lag.yaml --steps 3 --out lag --check-memory
has lag/plan.json '"actor.lagged_fp8.1"'
metric lag 3 logprob_gap_max | awk '{ exit !($1 > 1e-3) }' || fail "the rollout has the newest weights"

# ---- a validation makes its own, and changes nothing
head -n 20 train.jsonl >test.jsonl
sed 's/^run:/  held: {op: prompts, file: test.jsonl, batch: 64, max_tokens: 8, template: "{question}", every: 2}\n  check: {op: generate, model: actor, prompts: held, temperature: 0, max_tokens: 6}\n  length: {op: compute, of: check, expr: check.length + 0, metrics: {mean: batch_mean(length)}}\n&/' \
    all.yaml >validated.yaml
status 0 "$gr" exec validated.yaml --out validated --check-memory
has validated/plan.json '"actor.validate_fp8.1"'
[ -n "$(metric validated 4 'val\.length\.mean')" ] || fail "no validation"
same_weights whole-all validated

# ---- ranks: whole layers on each; between pools weights cross as they are
if runs_ranks; then
    status 0 "$gr" exec all.yaml --ranks 2 --steps 2 --out two --set run.check=1
    [ "$(metric two 2 logprob_gap_max)" = 0 ] || fail "ranks: a gap of $(metric two 2 logprob_gap_max)"
    sed -e 's/^params:/pools: {train: {share: 1}, roll: {share: 1}}\n&/' -e 's/actor: {/&pool: train, /' -e 's/rollout: {/&pool: roll, /' \
        all.yaml >pools.yaml
    status 0 "$gr" exec pools.yaml --ranks 2 --out pools --set run.check=1
    same_weights whole-all pools
    sed 's/train: {opt/train: {lora: {rank: 4, alpha: 8}, opt/' pools.yaml >lora-pools.yaml
    status 0 "$gr" exec lora-pools.yaml --ranks 2 --out lora-pools --set run.check=1
    same_weights whole-lora lora-pools
fi

# ---- refused, with the place
wrong() { # PATTERN SED
    sed "$2" mixed.yaml >wrong.yaml
    refused "$1" "$gr" check wrong.yaml
}
wrong "wrong.yaml:4:[0-9]+: error: 'rollout' must be (one of )?bf16(,| or) fp8" 's/rollout: fp8/rollout: fp4/'
wrong "wrong.yaml:4:[0-9]+: error: .*'roll'" 's/rollout: fp8/roll: fp8/'
train() { # PATTERN PRECISION SED...
    sed "s/rollout: fp8, train: bf16/$2/${3:+; $3}" mixed.yaml >wrong.yaml
    refused "wrong.yaml:[0-9]+:[0-9]+: error: model 'actor': 'precision: .gradients: fp8.' $1: leave it out" "$gr" check wrong.yaml
}
train "goes with 'train: fp8'.*" 'gradients: fp8'
train "rounds in blocks of 128 tokens .* 'strict: true' cannot hold" 'train: fp8, gradients: fp8' '1s/^/strict: true\n/'
train "is about a layer's own weights, and 'lora' trains others" 'train: fp8, gradients: fp8' 's,train: {,train: {lora: {rank: 4}\, ,'
wrong "wrong.yaml:4:[0-9]+: error: 'gradients' must be (one of )?bf16(,| or) fp8" 's/train: bf16/train: fp8, gradients: fp4/'
hybrid_model hybrid
sed 's/rollout: fp8, train: bf16/kv: fp8/' mixed.yaml >wrong.yaml
refused "error: model 'actor' has layers of the gated delta rule, whose state is not kept in FP8" "$gr" check wrong.yaml --set model=hybrid
refused "error: model 'actor': 'precision: .kv: fp8.' rounds the keys of rollouts .* 'strict: true' cannot hold" "$gr" check wrong.yaml --set strict=true
config heads.json qwen3 96 false false
"$gr" init --config heads.json --tokenizer "$project/graphs/quickstart" --seed 1 -o heads >/dev/null
refused "has heads whose size is no multiple of 16, of which keys and values in FP8 cannot be read.*: the cuda device has no kernels" "$gr" plan wrong.yaml --hardware h200 --set model=heads
sed -i 's/actor: {/&tensor: 2, /' wrong.yaml
refused "error: model 'actor': 'precision: .kv: fp8.' is not built where 'tensor' divides layers" "$gr" check wrong.yaml --ranks 2
model moe qwen3_moe 32 false false
wrong "wrong.yaml:4:[0-9]+: error: model 'actor' has mixtures of experts, whose products are not built in FP8" 's/model: model/model: moe/'
sed 's/actor: {/&tensor: 2, /' mixed.yaml >wrong.yaml
refused "error: model 'actor': 'precision: fp8' needs whole layers on each rank, and 'tensor' divides them" "$gr" check wrong.yaml --ranks 2
