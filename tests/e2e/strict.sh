#!/bin/sh
# `strict: true` on the CPU device, whose kernels are batch-invariant anyway: the gap between rollout and update is 0, an
# old_logprob of the rollout's own weights is left out, and all that changes is the time. Nothing is left out where the
# graph asks for the difference.
. "$(dirname "$0")/lib.sh"

without="--set nodes.old_logprob.micro_tokens=20"
status 0 "$gr" exec grpo.yaml --device cpu --out plain $without
status 0 "$gr" exec grpo.yaml --device cpu --out strict --set strict=true
same_weights plain strict
same_metrics plain strict
has plain/plan.json '"node": "old_logprob"'
lacks strict/plan.json '"node": "old_logprob"'
has strict/graph.yaml '^strict: true'
for step in 1 2 3 4 5 6; do
    for run in plain strict; do
        [ "$(metric $run $step logprob_gap_max)" = 0 ] || fail "$run has a gap at step $step"
    done
done

# At temperatures whose inverse rounds otherwise than that of the nearest float.
for t in 1.1 0.85 0.55; do
    status 0 "$gr" exec grpo.yaml --device cpu --steps 1 --set nodes.rollout.temperature=$t --out warm-$t
    [ "$(metric warm-$t 1 logprob_gap_max)" = 0 ] || fail "a gap at temperature $t"
done
refused "'temperature' must be 0, which is greedy, or at least 1e-6" "$gr" check grpo.yaml --set nodes.rollout.temperature=1e-30

# The resolved graph of a run is a graph that does the same.
status 0 "$gr" exec grpo.yaml --device cpu --out half --set strict=true --set models.actor.train.schedule=constant --steps 3
status 0 "$gr" exec --resume half --steps 6
status 0 "$gr" exec grpo.yaml --device cpu --out constant --set strict=true --set models.actor.train.schedule=constant
same_weights constant half

# Compared with the rollout's, or asked for another field, it is computed: and it is the same.
gap='log.gap=token_max(abs(old_logprob - rollout.logprob))'
status 0 "$gr" exec grpo.yaml --device cpu --out compared --set strict=true --set "$gap"
has compared/plan.json '"node": "old_logprob"'
[ "$(metric compared 6 gap)" = 0 ] || fail "the log-prob pass is not what the rollout has"
status 0 "$gr" check grpo.yaml --explain --set strict=true --set 'log.e=token_mean(old_logprob.entropy)'
lacks out 'old_logprob: left out'
status 0 "$gr" check grpo.yaml --explain --set strict=true --set nodes.rollout.lag=1
lacks out 'old_logprob: left out'
status 0 "$gr" check grpo.yaml --explain --set strict=true --set nodes.rollout.model=ref
lacks out 'old_logprob: left out'
status 0 "$gr" check grpo.yaml --explain --set strict=true
has out '^node old_logprob: left out: strict, so it is rollout.logprob$'
has out '^strict: '

# For CUDA it is planned anywhere: other kernels, so other bits, seconds and workspaces.
planned() { # OUT OPTIONS...
    out=$1
    shift
    status 0 "$gr" plan grpo.yaml --hardware h200 --format json --set model=wide.json --set nodes.rollout.max_tokens=900 "$@"
    mv out "$out"
}
json_seconds() { grep -o '"seconds": [0-9.e-]*' "$1" | head -1 | sed 's/.* //'; }
hash_of() { sed -n 's/.*"numerics": "\([0-9a-f]*\)".*/\1/p' "$1"; }
config wide.json qwen3 512 true false
sed -i 's/"max_position_embeddings": 64/"max_position_embeddings": 1024/' wide.json
planned default.json
planned strict.json --set strict=true --set "$gap"
planned again.json --set "$gap"
planned loose.json --set deterministic=false
[ "$(hash_of default.json)" != "$(hash_of loose.json)" ] || fail "a plan with sums in no fixed order has the same numerics"
[ "$(hash_of again.json)" != "$(hash_of strict.json)" ] || fail "a strict plan has the same numerics"
awk "BEGIN {exit !($(json_seconds strict.json) > $(json_seconds again.json))}" || fail "strict costs nothing"
[ "$(json_number loose.json arena_bytes)" -lt "$(json_number default.json arena_bytes)" ] ||
    fail "nothing is saved where attention's gradients need no order"
for more in strict=true deterministic=false; do
    status 0 "$gr" plan grpo.yaml --device cpu --format json --set "$gap" --set $more
    hash_of out >"$more.hash"
done
status 0 "$gr" plan grpo.yaml --device cpu --format json --set "$gap"
for more in strict=true deterministic=false; do
    [ "$(hash_of out)" = "$(cat $more.hash)" ] || fail "$more changes the numerics of the CPU device"
done
