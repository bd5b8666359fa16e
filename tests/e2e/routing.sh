#!/bin/sh
# Experts that a rollout chose, followed and compared by later passes: equal where weights are, through selections,
# conversations and ranks; different where weights are older; stops and budgets change no bit. Balance of experts: by a
# loss and by a bias. A router that sends everything to the same experts.
. "$(dirname "$0")/lib.sh"

model moe qwen3_moe 32 false false
sed 's/{model: model,/{model: moe,/; s/schedule: cosine/schedule: constant/' grpo.yaml >moe.yaml
replay='--set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout'

agrees() { # RUN STEP NODE: every router of every token
    for name in routing_agreement routing_agreement_tokens routing_agreement_least; do
        [ "$(metric "$1" "$2" "$3.$name")" = 1 ] || fail "$1: $3.$name is $(metric "$1" "$2" "$3.$name"), not 1"
    done
}

# As long as weights are the rollout's, its experts are those that routers choose: the same bits with them as without,
# whatever is read and fed at once.
one='--steps 1 --set nodes.update.mini_batch=8 --set nodes.update.epochs=1'
status 0 "$gr" exec moe.yaml $one --out own
for how in '' '--set nodes.old_logprob.micro_tokens=33 --set nodes.update.micro_tokens=14 --set nodes.rollout.concurrent=3'; do
    rm -rf first
    # shellcheck disable=SC2086 # settings have no spaces
    status 0 "$gr" exec moe.yaml $one $replay $how --out first --check-memory
    agrees first 1 update
    same_weights own first
done
has first/plan.json '"rollout.routes"'
status 0 "$gr" exec moe.yaml $one --set nodes.old_logprob.replay=compare --out asked
agrees asked 1 old_logprob
same_weights own asked

# A rollout with older weights chose others. To compare changes no bit; to follow does.
sed 's/samples: 4,/samples: 4, lag: 1,/' moe.yaml >older.yaml
compare='--set nodes.old_logprob.replay=compare --set nodes.update.replay=compare'
status 0 "$gr" exec older.yaml --out none
status 0 "$gr" exec older.yaml $compare --out compared
same_weights none compared
agrees compared 1 old_logprob
for name in old_logprob.routing_agreement update.routing_agreement_tokens; do
    less=$(metric compared 6 $name)
    case $less in 0.*) ;; *) fail "$name is $less where weights are older" ;; esac
done
sed 's/replay: none/replay: rollout/; s/old_logprob: {/&replay: rollout, /; s/^    epochs: 2/&\n    replay: rollout/' older.yaml >follow.yaml
status 0 "$gr" exec follow.yaml --out followed --check-memory
! cmp -s none/checkpoints/step-6/actor/model.safetensors followed/checkpoints/step-6/actor/model.safetensors ||
    fail "to follow other experts changed nothing"
any_stop follow followed 6 3
any_budget follow followed
status 0 "$gr" exec follow.yaml --set nodes.update.micro_tokens=20 --set nodes.old_logprob.micro_tokens=14 --out cut
same_weights followed cut
[ "$slow" = 0 ] || status 0 "$gr" exec follow.yaml --steps 3 --out longest --set nodes.update.balance=true

# Rows that were selected bring their experts, also where they are drawn in rounds; and conversations have theirs.
sed 's/^  kl_now: .*//; /^state:/d; s/ + beta \* kl//; s/^      kl    = .*//; /^  ref_logprob/d' moe.yaml >plain.yaml
sed 's/^  score: .*/&\n  kept: {op: select, of: rollout, sequences: rollout.length > 2}/
    s/old_logprob: {op: logprob, model: actor, of: rollout/old_logprob: {op: logprob, model: actor, of: kept/
    s/^    of: rollout/    of: kept/; s/advantage: {op: compute, /&of: kept, /' plain.yaml >kept.yaml
sed 's/sequences: rollout.length > 2/groups: group_std(score) > 0, refill: {until: 8, rounds: 4, short: keep}/' kept.yaml >refill.yaml
for graph in kept refill; do
    status 0 "$gr" exec $graph.yaml $one --set nodes.old_logprob.replay=compare --set nodes.update.replay=rollout --out $graph --check-memory
    agrees $graph 1 old_logprob
    agrees $graph 1 update
done
turns turns.yaml ""
status 0 "$gr" exec turns.yaml --set model=moe --steps 2 $compare --set nodes.update.mini_batch=8 --set nodes.update.epochs=1 --out turns --check-memory
agrees turns 1 old_logprob
agrees turns 2 old_logprob

# Balance: the loss sees the whole mini-batch, however it is cut; the bias follows the load of each optimizer step.
sed 's/^    epochs: 2/&\n    router_aux_loss_coef: 1/' moe.yaml >aux.yaml
status 0 "$gr" exec moe.yaml --out plain
status 0 "$gr" exec aux.yaml --out aux --check-memory
less() { awk "BEGIN { exit !($1 < $2) }" || fail "$3: $1 is not less than $2"; }
less "$(metric plain 6 update.expert_entropy)" "$(metric aux 6 update.expert_entropy)" "a balance loss"
less "$(metric aux 6 update.balance_loss)" "$(metric aux 1 update.balance_loss)" "a balance loss"
[ "$slow" = 0 ] || { any_stop aux aux 6 2; any_budget aux aux; }
status 0 "$gr" exec aux.yaml --set nodes.update.micro_tokens=20 --out cut-aux
same_weights aux cut-aux
sed 's/token_mean(pg/m = token_mean(logprob)\n      token_mean(pg + 0.1 * (logprob - m)^2/' aux.yaml >coupled.yaml
status 0 "$gr" exec coupled.yaml --steps 1 --out coupled
status 0 "$gr" exec coupled.yaml --steps 1 --set nodes.update.micro_tokens=20 --out cut-coupled
same_weights coupled cut-coupled

cat >biased.json <<'END'
{"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 16, "max_position_embeddings": 64,
 "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "tie_word_embeddings": false, "initializer_range": 0.3, "bos_token_id": null,
 "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "float32", "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1,
 "topk_group": 1, "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": true,
 "routed_scaling_factor": 1.0, "partial_rotary_factor": 0.5}
END
status 0 "$gr" init --config biased.json --tokenizer "$project/graphs/quickstart" --seed 1 -o biased
sed 's/{model: moe,/{model: biased,/; s/^    epochs: 2/&\n    router_bias_update_rate: 0.05/' moe.yaml >bias.yaml
status 0 "$gr" exec bias.yaml --set nodes.update.router_bias_update_rate=0 --out unbiased
status 0 "$gr" exec bias.yaml --out bias --check-memory
less "$(metric unbiased 6 update.expert_entropy)" "$(metric bias 6 update.expert_entropy)" "a bias"
any_stop bias bias 6 4

# Weights of a router that are all 0: equal logits, so that every token of every layer goes to the first two experts.
perl -0777 -pe 'my $n = unpack("Q<", $_); my $head = substr($_, 8, $n);
    while ($head =~ /"model\.layers\.\d+\.mlp\.gate\.weight":\{[^}]*"data_offsets":\[(\d+),(\d+)\]/g) { substr($_, 8 + $n + $1, $2 - $1) = "\0" x ($2 - $1); }' \
    moe/model.safetensors >flat.safetensors
cp -r moe flat
mv flat.safetensors flat/model.safetensors
! cmp -s moe/model.safetensors flat/model.safetensors || fail "no router was changed"
sed 's/{model: moe,/{model: flat,/; s/run: {steps: 6/run: {steps: 1/; s/batch: 8/batch: 32/; s/mini_batch: 4/mini_batch: 32/; s/epochs: 2/epochs: 1/' moe.yaml >flat.yaml
status 0 "$gr" exec flat.yaml --out flat-whole --check-memory
[ "$(metric flat-whole 1 update.expert_load)" = 4 ] || fail "expert_load is $(metric flat-whole 1 update.expert_load), not 4"
[ "$(metric flat-whole 1 update.experts_dead)" = 12 ] || fail "experts_dead is $(metric flat-whole 1 update.experts_dead), not 12"
[ "$slow" = 0 ] || any_budget flat flat-whole
# A budget that makes tokens go through the experts in several runs, each of them to the same experts.
status 0 "$gr" plan flat.yaml --format json
peak=$(json_number out peak_bytes)
status 3 "$gr" plan flat.yaml --budget 4KiB
some=$(((peak + $(least_budget)) / 2))
status 0 "$gr" exec flat.yaml --budget $some --out flat-some --check-memory
set_to() { sed -nE "s/.*\"node\": \"update\", \"name\": \"$1\", \"value\": ([0-9]+).*/\1/p" flat-some/plan.json; }
less "$(($(set_to expert_run) * 4))" "$(set_to micro_tokens)" "the tokens of a run"
less "$(set_to expert_run)" "$(metric flat-some 1 tokens)" "the tokens of a run"
same_weights flat-whole flat-some
[ "$(metric flat-some 1 measured_peak_bytes)" -le "$(metric flat-some 1 planned_peak_bytes)" ] ||
    [ -n "${GR_SANITIZED:-}" ] || fail "more memory than was planned"

refused "no layers of experts" "$gr" check grpo.yaml --set nodes.update.replay=rollout
refused "no layers of experts" "$gr" check grpo.yaml --set nodes.update.router_aux_loss_coef=0.1
refused "no routers with a bias" "$gr" check moe.yaml --set nodes.update.router_bias_update_rate=0.1
refused "scores are sigmoids" "$gr" check bias.yaml --set nodes.update.router_aux_loss_coef=0.1
refused "is made for the CPU device alone" "$gr" plan bias.yaml --hardware h200
refused "must be one of none, compare, rollout" "$gr" check moe.yaml --set nodes.update.replay=always
refused "whose routers are not those" "$gr" check moe.yaml --set models.actor.checkpoint=biased --set nodes.ref_logprob.replay=rollout --set models.ref.checkpoint=moe
sed 's/op: generate, model: actor, prompts: prompts, samples: 4, temperature: 1.0, max_tokens: 6/op: sequences, file: $data, batch: 8, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: 6/; /^  prompts:/d' plain.yaml >read.yaml
sed -i 's/prompts\.answer/rollout.answer/' read.yaml
refused "does not go with slices of layers" "$gr" check moe.yaml --set models.actor.parallel.tensor=2 --set nodes.update.replay=rollout
refused "were not sampled" "$gr" check read.yaml --set nodes.update.replay=rollout

# Every family with experts: with the rollout's weights its routers choose what the rollout recorded. Those whose routers others have, too, with GR_SLOW=1.
others="mixtral olmoe granitemoe qwen2_moe qwen3_5_moe"
[ "$slow" = 1 ] || others=
for family in gpt_oss qwen3_next glm4_moe $others; do
    sed 's/"vocab_size": [0-9]*/"vocab_size": 16/; s/"pad_token_id": null/"pad_token_id": 3/' "$project/tests/golden/model/$family/config.json" >$family.json
    status 0 "$gr" init --config $family.json --tokenizer "$project/graphs/quickstart" --seed 1 -o $family
    # shellcheck disable=SC2086
    status 0 "$gr" exec moe.yaml --set model=$family --steps 2 --set nodes.old_logprob.replay=compare --set nodes.update.replay=rollout --out of-$family
    agrees of-$family 1 old_logprob
    agrees of-$family 2 old_logprob
done

# Ranks share what they recorded, and sum up what they counted.
runs_ranks || exit 0
status 0 "$gr" exec moe.yaml --ranks 2 --steps 2 --set nodes.old_logprob.replay=compare $one --steps 2 --out ranks --check-memory
agrees ranks 1 old_logprob
[ "$(metric ranks 1 old_logprob.expert_load)" = "$(metric asked 1 old_logprob.expert_load)" ] || fail "two ranks count otherwise than one"

# Another role trains than samples: what was recorded is sent to it. Canonical sums, with the loads of all ranks.
sed 's/old_logprob: {/&replay: compare, /; s/^    epochs: 2/&\n    replay: rollout\n    router_aux_loss_coef: 0.1/' moe.yaml >both.yaml
cat >split.yaml <<'END'
graph: tiny
use: both.yaml
pools: {train: {share: 1}, rollout: {share: 1}}
models: {actor: {pool: train}, ref: {pool: rollout}}
nodes: {rollout: {pool: rollout}}
END
status 0 "$gr" exec both.yaml --steps 2 --out alone
status 0 "$gr" exec split.yaml --ranks 2 --steps 2 --out split --check-memory
same_weights alone split
sed 's/^graph:/canonical: true\n&/' both.yaml >canonical.yaml
status 0 "$gr" exec canonical.yaml --steps 2 --out eighths
status 0 "$gr" exec canonical.yaml --ranks 2 --steps 2 --out halves
same_weights eighths halves

# Ranks that have parts of each sequence: the same choices, counted once, without the tokens that fill parts up.
sed 's/^  actor: {/&parallel: {context: 2}, /' both.yaml >parts.yaml
status 0 "$gr" exec parts.yaml --ranks 2 --steps 1 --out parts --check-memory
agrees parts 1 old_logprob
for name in old_logprob.expert_load update.routing_agreement update.expert_entropy; do
    [ "$(metric parts 1 $name)" = "$(metric alone 1 $name)" ] || fail "$name of parts of sequences is $(metric parts 1 $name), not $(metric alone 1 $name)"
done
