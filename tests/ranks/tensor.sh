#!/bin/sh
# Tensor parallel rollout and log-prob on ranks of this machine: from one sharded state the numbers of whole models up to
# rounding, the same greedy tokens, in memory as planned; checkpoints go from one degree to another.
. "$(dirname "$0")/lib.sh"

models_to_cut

# Latent attention: of a slice the latents are whole, and its rows in the KV cache; beside experts.
latent_model
hybrids_to_cut

[ "$slow" != 1 ] || biased_model

# The log-prob of the same tokens three ways: of training's weights, of the rollout's, as sampled.
sed 's/^  kl_now:/  there: {op: logprob, model: actor, of: rollout, weights: rollout}\n  apart: {op: compute, expr: there - old_logprob, metrics: {most: token_max(abs(apart)), entropy: token_max(abs(there.entropy - old_logprob.entropy)), sampled: token_max(abs(there - rollout.logprob))}}\n&/' \
    grpo.yaml >both.yaml
has both.yaml 'weights: rollout'

# below RUN STEP METRIC LIMIT
below() {
    awk -v x="$(metric "$1" "$2" "$3")" -v most="$4" 'BEGIN { exit !(x != "" && x != "null" && x + 0 <= most) }' ||
        fail "$3 of $1 at step $2 is '$(metric "$1" "$2" "$3")', not at most $4"
}

# What one rank samples, ranks do, from equal weights: the first iteration is one rank's.
shards="--set models.actor.residency.rollout_weights=keep"
for type in llama qwen3_moe deepseek_v3 qwen3_5_text $([ "$slow" = 1 ] && echo gemma4_text qwen3 gemma3_text qwen3_next qwen2 gpt_oss); do
    status 0 "$gr" exec both.yaml --set model=$type --steps 1 --out $type-1
    for n in 2 4; do
        [ "$slow" = 1 ] || [ $n = 4 ] || continue # 2: below
        # shellcheck disable=SC2086
        status 0 "$gr" exec both.yaml --set model=$type --ranks 4 --steps 1 $shards --set models.actor.tensor=$n \
            --check-memory --out $type-$n
        has $type-$n/plan.json '"what": "rollout.exchange'
        lacks err warning
        close $type-1 $type-$n 1
        below $type-$n 1 apart.most 1e-5
        below $type-$n 1 apart.entropy 1e-5
        below $type-$n 1 apart.sampled 1e-5
        [ "$(metric $type-$n 1 apart.most)" != 0 ] || fail "slices have the bits of whole layers: is anything cut?"
        cmp $type-1/samples.jsonl $type-$n/samples.jsonl || fail "other samples in slices"
    done
done

# Greedy, the same tokens; from whole weights, and through gathered copies, the same bits as straight from shards.
greedy="--set nodes.rollout.temperature=0 --set run.samples=32"
for way in 'whole 1' 'whole 2' 'whole 4' 'direct 2' 'gather_whole 2' 'gather_layer 2' 'every_node 2'; do
    case $slow$way in 0*'whole 4' | 0gather_whole* | 0every*) continue ;; esac
    n=${way#* }
    case $way in
    whole*) how= ;;
    direct*) how=$shards ;;
    gather*) how="$shards --set models.actor.gather=${way%% *}" ;;
    every*) how="--policy every_node $shards" ;;
    esac
    how=$(echo "$how" | sed 's/gather=gather_/gather=/')
    # shellcheck disable=SC2086
    status 0 "$gr" exec both.yaml --set model=llama --ranks $((n > 2 ? n : 2)) --steps 2 $greedy $how --set models.actor.tensor=$n \
        --check-memory --out "$(echo $way | tr ' ' -)"
done
for run in whole-2 $([ "$slow" = 0 ] || echo whole-4); do
    close whole-1 $run 1
    cmp whole-1/samples.jsonl $run/samples.jsonl || fail "other greedy tokens in $run"
done
for run in direct-2 gather_layer-2 $([ "$slow" = 0 ] || echo gather_whole-2 every_node-2); do
    same_weights whole-2 $run
    same_metrics whole-2 $run
    cmp whole-2/samples.jsonl $run/samples.jsonl
done

# Every kind of trip: rounds of a selection, a validation behind, prompts that no group of ranks has one of.
sed 's/^run:/  vp: {op: prompts, file: $data, batch: 3, max_tokens: 8, template: "{question}", every: 1}\n  vr: {op: generate, model: actor, prompts: vp, samples: 2, temperature: 0, max_tokens: 6, every: 1}\n  vs: {op: reward, of: vr, answer: vp.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}, every: 1}\n&/;
    s/^  rollout: /  raw: /; s/of: rollout/of: kept/; s/op: compute, expr: reward + 0.1 \* rollout/op: compute, of: kept, expr: reward + 0.1 * raw/; s/^  reward:  {op: reward, of: kept/  reward:  {op: reward, of: raw/
    s/^  old_logprob:/  kept: {op: select, of: raw, groups: "group_std(reward) > 0", refill: {until: 8, rounds: 6, short: keep}}\n&/
    s/^  old_logprob: {/&weights: rollout, /' grpo.yaml >refill.yaml
status 0 "$gr" exec refill.yaml --set model=qwen2 --steps 2 --out refill-1
for how in "" "$shards"; do
    [ "$slow" = 1 ] || [ "$how" ] || continue
    # shellcheck disable=SC2086
    status 0 "$gr" exec refill.yaml --set model=qwen2 --ranks 4 --steps 2 $how --set models.actor.tensor=4 --check-memory --out refill-4
    close refill-1 refill-4 1
    rm -r refill-4
done

# A response that several ranks have generated together is scored by one of them.
cat >answer.sh <<'END'
while read -r line; do
    id=$(echo "$line" | sed -nE 's/.*"id": *([0-9]+).*/\1/p')
    echo "$id" >>asked
    echo "{\"id\": $id, \"score\": $((id % 3))}"
done
END
sed 's/rule: {extract[^}]*}/command: "sh answer.sh", workers: 1/' grpo.yaml >command.yaml
status 0 "$gr" exec command.yaml --set model=llama --steps 1 --out command-1
sort <asked >asked-1
rm asked
status 0 "$gr" exec command.yaml --set model=llama --ranks 2 --set models.actor.tensor=2 --steps 1 --out command-2
close command-1 command-2 1
[ "$(wc -l <asked)" = "$(wc -l <asked-1)" ] || fail "asked $(wc -l <asked) times, not $(wc -l <asked-1)"

# What an update has trained is what generates after it, in slices as in whole copies.
sed 's/^run:/  again: {op: generate, model: actor, prompts: prompts, samples: 1, temperature: 0, max_tokens: 6, after: update, metrics: {length: batch_mean(again.length), logprob: token_mean(again.logprob)}}\n&/' grpo.yaml >again.yaml
status 0 "$gr" exec again.yaml --set model=llama --steps 2 --out again-one
for n in 1 2; do
    [ "$slow" = 1 ] || [ $n = 2 ] || continue
    # shellcheck disable=SC2086
    status 0 "$gr" exec again.yaml --set model=llama --ranks 4 --steps 2 $shards --set models.actor.tensor=$n --out again-$n
    close again-one again-$n 1
done

# On ranks of their own: whole layers come from those that train, in whatever way these have them, and are cut here.
sed 's/^models:/pools: {train: {share: 1}, rollout: {share: 1}}\n&/; s/^  rollout: {/  rollout: {pool: rollout, /; s/^  old_logprob: {/&weights: rollout, pool: rollout, /' \
    grpo.yaml >pools.yaml
status 0 "$gr" exec pools.yaml --set model=qwen3 --ranks 4 --steps 2 --out pools-1
for how in "" "$shards"; do
    [ "$slow" = 1 ] || [ "$how" ] || continue
    # shellcheck disable=SC2086
    status 0 "$gr" exec pools.yaml --set model=qwen3 --ranks 4 --steps 2 $how --set models.actor.tensor=2 --check-memory --out pools-2
    has pools-2/plan.json '"what": "rollout.received'
    for run in pools-1 pools-2; do sed -i -E 's/"(planned|measured)_peak_bytes[^,]*, //g' $run/metrics.jsonl; done
    close pools-1 pools-2 1
    cmp pools-1/samples.jsonl pools-2/samples.jsonl || fail "other samples in slices of a pool"
    rm -r pools-2
done
refused "pools.yaml:[0-9]+:[0-9]+: error: 'old_logprob' asks model 'actor', which another pool trains" \
    "$gr" plan pools.yaml --set model=qwen3 --ranks 4 --set models.actor.tensor=2 --set nodes.old_logprob.weights=params

# Shards over the ranks of a node, slices over these, too: nothing of it leaves the node.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for n in 1 2; do
    # shellcheck disable=SC2086
    status 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 4 "$gr" exec grpo.yaml --ranks 2x2 \
        --set model=qwen2 --steps 2 $shards --set models.actor.shard=node --set models.actor.tensor=$n --out nodes-$n
done
has nodes-2/plan.json '"what": "rollout.exchange'
has nodes-2/plan.json '"what": "update.across'
close nodes-1 nodes-2 1
cmp nodes-1/samples.jsonl nodes-2/samples.jsonl || fail "other samples in slices of nodes"

# With lag the older copy is in slices, and in checkpoints whole: any degree goes on from them. Filled from shards, from
# whole layers, and on ranks of their own from those that train.
sed 's/^  rollout: {/&lag: 1, /' grpo.yaml >lag.yaml
sed 's/^  rollout: {/&lag: 1, /; s/^  old_logprob: {weights: rollout, pool: rollout, /  old_logprob: {/' pools.yaml >lag-pools.yaml
set -- --set model=qwen3 --set models.actor.train.schedule=constant --set run.checkpoint.every=1
status 0 "$gr" exec lag.yaml "$@" --ranks 4 --steps 3 --out lag-whole
for run in "lag " "lag $shards" "lag-pools " "lag-pools $shards"; do
    case $slow$run in "0lag " | "0lag-pools $shards") continue ;; esac
    # shellcheck disable=SC2086
    status 0 "$gr" exec "${run%% *}.yaml" "$@" --ranks 4 ${run#* } --set models.actor.tensor=2 --steps 3 --check-memory --out older
    [ "${run%% *}" != lag ] || close lag-whole older 2
    cmp lag-whole/checkpoints/step-1/actor/lagged.safetensors older/checkpoints/step-1/actor/lagged.safetensors
    cmp lag-whole/samples.jsonl older/samples.jsonl || fail "other samples of older slices: $run"
    rm -r older
done
if [ "$slow" = 1 ]; then
    status 0 "$gr" exec lag.yaml "$@" --ranks 4 --set models.actor.tensor=4 --steps 2 --out lag-moving
    status 0 "$gr" exec lag.yaml "$@" --ranks 4 --set models.actor.tensor=2 --steps 3 --replan --resume lag-moving
    close lag-whole lag-moving 3 1e-3
fi

# From one degree to another.
set -- --set model=llama --set models.actor.train.schedule=constant
# shellcheck disable=SC2086
status 0 "$gr" exec grpo.yaml "$@" --ranks 4 $shards --steps 3 --out still
# shellcheck disable=SC2086
status 0 "$gr" exec grpo.yaml "$@" --ranks 4 $shards --set models.actor.tensor=4 --steps 1 --out moving
for n in 2 1; do
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml "$@" --ranks 4 $shards --set models.actor.tensor=$n --steps $((4 - n)) --resume moving --replan
    has err 'warning: .*its bits may differ'
done
close still moving 3 1e-3

# One rank has all slices; what ranks cannot share is refused where it is written.
status 0 "$gr" exec grpo.yaml --set model=llama --steps 2 --out alone
status 0 "$gr" exec grpo.yaml --set model=llama --set models.actor.tensor=4 --steps 2 --out alone-4
same_weights alone alone-4
refused "'tensor: 4' does not divide its 2 KV heads" "$gr" exec grpo.yaml --ranks 4 --set models.actor.tensor=4 --out never
refused "'tensor: 4' does not divide the 2 ranks of a host" "$gr" plan grpo.yaml --set model=llama --ranks 2x2 --set models.actor.tensor=4
sed 's/^  actor: {/&tensor: 2, /' grpo.yaml >sliced.yaml
sed 's/^graph: tiny/&\ncanonical: true/' sliced.yaml >canonical.yaml
refused 'canonical.yaml:[0-9]+:[0-9]+: error: .*canonical do not go together' "$gr" plan canonical.yaml --ranks 2
[ ! -e never ] || fail "a run directory of nothing"
