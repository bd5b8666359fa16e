#!/bin/sh
# speculate: {from: mtp}: the layer of the checkpoint that predicts a further token drafts. The ids, and so every bit, are those
# without; greedy responses and how their drafts go are those of an oracle; what drafts is frozen; what cannot be is refused.
. "$(dirname "$0")/lib.sh"

ahead_model() { # NAME: with its layer, and a tokenizer
    cp -r "$project/tests/golden/mtp/$1" "$1"
    cp "$project"/graphs/quickstart/tokenizer* "$1"
}
drafts() { # FILE KEYS: with drafts in the rollout
    sed "s/{op: generate, /{op: generate, speculate: {always: true, from: mtp, $2}, /" "$1" >some.yaml
    grep -q 'from: mtp' some.yaml || fail "no rollout in $1"
}
without() { # RUN: its metrics but those of drafts
    metrics "$1" | sed -E 's/"[a-z_]*\.(drafted|accepted|accepted_length|tokens_per_step)": [^,}]*(, )?//g; s/, \}$/}/'
}
same() { # RUN RUN: weights, optimizer and metrics but those of drafts
    same_weights "$1" "$2"
    without "$1" >a.metrics
    without "$2" >b.metrics
    diff a.metrics b.metrics || fail "metrics of $1 and $2 differ"
}
for name in qwen3_5_text glm4_moe deepseek_v3 qwen3_next; do ahead_model $name; done

# Greedy responses, token by token and draft by draft.
cat >greedy.yaml <<'END'
graph: greedy
params: {model: glm4_moe}
models: {actor: {checkpoint: $model}}
nodes:
  prompts: {op: prompts, file: one.jsonl, batch: 1, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, temperature: 0, max_tokens: 40, ignore_eos: true,
            speculate: {from: mtp, always: true}}
log: {n: batch_mean(rollout.length)}
run: {steps: 1, seed: 1, samples: all}
END
tried=0
while read -r line; do
    of() { echo "$line" | sed -E "s/.*\"$1\": (\[[^]]*\]|\"[^\"]*\"|[0-9]*).*/\1/; s/\"//g"; }
    echo "{\"question\": \"$(of prompt)\"}" >one.jsonl
    rm -rf greedy
    status 0 "$gr" exec greedy.yaml --set model="$(of model)" --set nodes.rollout.speculate.tokens="$(of tokens)" --out greedy
    gzip -dc greedy/samples/step-1.jsonl.gz | grep -Fq "$(of response)" || fail "another response of $(of model) to $(of prompt)"
    for what in drafted accepted; do
        [ "$(metric greedy 1 rollout.$what)" = "$(of $what)" ] ||
            fail "$(of model) to $(of prompt), $(of tokens): $what $(metric greedy 1 rollout.$what), not $(of $what)"
    done
    tried=$((tried + 1))
done <"$project/tests/golden/mtp/greedy.jsonl"
[ $tried = 8 ] || fail "$tried greedy responses"

# Sampled and trained: a hybrid, whose states go back behind a token that is not kept, latent attention, experts.
for name in qwen3_5_text deepseek_v3; do
    sed -e 's/max_tokens: 6}/max_tokens: 40}/' -e "s/model: model,/model: $name,/" grpo.yaml >$name.yaml
    grep -q 'max_tokens: 40' $name.yaml || fail "the graph's responses are not longer"
    drafts $name.yaml "tokens: 3"
    status 0 "$gr" exec $name.yaml --steps 2 --out none-$name
    status 0 "$gr" exec some.yaml --steps 2 --out some-$name --check-memory
    same none-$name some-$name
    [ "$(metric some-$name 1 rollout.accepted)" -gt 0 ] || fail "no draft of $name is accepted"
done

# What drafts is in the plan, of the checkpoint's bits, whatever the model has become; drafts follow from their sequence alone,
# however few run at once, and wherever it stops; under the least budget its weights move as all others do.
drafts qwen3_5_text.yaml "tokens: 2"
status 0 "$gr" plan some.yaml --format json -o plan.json
status 0 "$gr" verify plan.json
has plan.json '"actor_mtp.params.1"'
status 0 "$gr" exec some.yaml --out whole
for few in concurrent=3 $([ "$slow" = 0 ] || echo kv_blocks=9); do
    rm -rf few
    status 0 "$gr" exec some.yaml --set nodes.rollout.$few --out few
    same_weights whole few
    same_metrics whole few
done
any_stop some whole "$(last_step whole)" 1
status 3 "$gr" plan some.yaml --budget 4KiB
least=$(least_budget)
rm -rf few
status 0 "$gr" plan some.yaml --budget "$least" --format json -o plan.json
status 0 "$gr" verify plan.json
status 0 "$gr" exec some.yaml --budget "$least" --out few --check-memory
same_weights whole few
same_metrics whole few
[ ! -e whole/checkpoints/step-1/actor_mtp ] || fail "a frozen layer is saved"
status 0 "$gr" export whole -o exported --mtp qwen3_5_text
refused 'no-such-folder.*(cannot|No such file)' "$gr" export whole -o never --mtp no-such-folder

# Conversations, whose answers are read in between.
turns turns.yaml ""
sed -i 's/model: model,/model: glm4_moe,/' turns.yaml
drafts turns.yaml "tokens: 3"
status 0 "$gr" exec turns.yaml --steps 2 --out turns-none
status 0 "$gr" exec some.yaml --steps 2 --out turns
same turns-none turns
[ "$(metric turns 1 rollout.drafted)" -gt 0 ] || fail "nothing is drafted in conversations"

# Older weights, adapters, and prompts in parts; rows that are kept, which a stop changes no bit of.
sed 's/, schedule: cosine//' qwen3_5_text.yaml >plain.yaml
sed 's/train: {/train: {lora: {rank: 2, targets: [q, k, v, o]}, /; s/qwen3_5_text/glm4_moe/' plain.yaml >lora.yaml
grep -q 'lora' lora.yaml && grep -q glm4_moe lora.yaml || fail "no adapters"
for more in "plain nodes.rollout.lag=1" "lora nodes.rollout.samples=4" "plain run.seed=3"; do
    case $slow$more in 0*seed*) continue ;; esac
    rm -rf none few
    drafts "${more%% *}.yaml" "tokens: 2"
    status 0 "$gr" exec "${more%% *}.yaml" --set "${more#* }" --steps 3 --out none
    status 0 "$gr" exec some.yaml --set "${more#* }" --steps 3 --out few --check-memory
    same none few
done
sed 's/{op: generate, /{op: generate, over: 1.5, /' plain.yaml >kept.yaml
awk 'BEGIN { for (i = 11; i < 99; i++) for (j = 11; j < 13; j++) printf "{\"question\": \"%d+%d=\", \"answer\": \"%d\"}\n", i, j, i + j }' >many.jsonl
sed -i 's/data: train.jsonl/data: many.jsonl/' kept.yaml
drafts kept.yaml "tokens: 2"
cp some.yaml kept.yaml
status 0 "$gr" exec kept.yaml --steps 3 --out kept
any_stop kept kept 3 2

# Ranks have the same drafts, sharded or not.
if [ "$slow" = 1 ] && runs_ranks; then
    drafts qwen3_5_text.yaml "tokens: 2"
    rm -rf none few
    status 0 "$gr" exec qwen3_5_text.yaml --ranks 2 --steps 2 --out none
    status 0 "$gr" exec some.yaml --ranks 2 --steps 2 --out few
    same none few
    refused "'from: mtp' is not built for a model in slices" "$gr" exec some.yaml --ranks 2 --set model=deepseek_v3 --set models.actor.tensor=2 --out never
fi

# A validation has the same layer; the planner leaves drafts out where it predicts no gain, and the layer with them.
sed 's/always: true, //; s/speculate: {/speculate: {rate: 0, /' some.yaml >off.yaml
status 0 "$gr" plan off.yaml --format json -o plan.json
lacks plan.json 'actor_mtp'
status 0 "$gr" plan off.yaml
has out "rollout: nothing is drafted: it is predicted to save no time"

# A random model has a random layer. CUDA has it in plans as this device does, and no kernels for the sizes of the others.
sed 's/"head_dim": 8/"head_dim": 32/' glm4_moe/config.json >fit.json
status 0 "$gr" init --config fit.json --tokenizer glm4_moe --seed 1 -o fit
lacks err 'num_nextn_predict_layers'
sed 's/qwen3_5_text/glm4_moe/' qwen3_5_text.yaml >glm4_moe.yaml
drafts glm4_moe.yaml "tokens: 2"
status 0 "$gr" exec some.yaml --set model=fit --steps 1 --out fit-run
[ "$(metric fit-run 1 rollout.drafted)" -gt 0 ] || fail "nothing is drafted with a random layer"
status 0 "$gr" plan some.yaml --set model=fit --hardware h200 --format json -o plan.json
status 0 "$gr" verify plan.json
has plan.json '"actor_mtp.params.1"'
refused "model 'actor_mtp' has an odd part of each head rotated: the cuda device has no kernels for it" "$gr" plan some.yaml --hardware h200

# What cannot be is refused.
drafts qwen3_5_text.yaml "tokens: 2"
refused "some.yaml:[0-9]+:[0-9]+.*'from: mtp': the checkpoint of model 'actor' has no layer that predicts a further token" \
    "$gr" check some.yaml --set model="$project/tests/golden/model/qwen3_5_text"
cp -r qwen3_5_text two
sed -i 's/"mtp_num_hidden_layers": 1/"mtp_num_hidden_layers": 2/' two/config.json
refused "has 2 layers that predict further tokens; one alone is supported" "$gr" check some.yaml --set model=two
cp "$project/tests/golden/model/qwen3_5_text/model.safetensors" two
sed -i 's/"mtp_num_hidden_layers": 2/"mtp_num_hidden_layers": 1/' two/config.json
refused "15 tensors are missing: 'mtp.pre_fc_norm_embedding.weight'" "$gr" exec some.yaml --set model=two --out never
sed 's/tokens: 2/tokens: 2, match: 3/' some.yaml >bad.yaml
refused "bad.yaml:[0-9]+:[0-9]+.*'match' is of tokens that are looked up" "$gr" check bad.yaml
