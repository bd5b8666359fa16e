#!/bin/sh
# speculate: tokens drafted by looking up what was said before. The ids, and so every bit, are those without: in all forms of
# rollouts, under any budget, after a stop; what was sampled is counted; what cannot be is refused.
. "$(dirname "$0")/lib.sh"

drafts() { # FILE FROM KEYS: with drafts in the rollout
    sed "s/{op: generate, /{op: generate, speculate: {always: true, $3}, /" "$2" >"$1"
    grep -q speculate "$1" || fail "no rollout in $2"
}
without() { # RUN: its metrics but those of drafts
    metrics "$1" | sed -E 's/"[a-z_]*\.(drafted|accepted|accepted_length|tokens_per_step)": [^,}]*(, )?//g; s/, \}$/}/'
}
same() { # RUN RUN: weights, optimizer and metrics
    same_weights "$1" "$2"
    without "$1" >a.metrics
    without "$2" >b.metrics
    diff a.metrics b.metrics || fail "metrics of $1 and $2 differ"
}
accepts() { # RUN: some of what it drafted, and not all
    awk -v d="$(metric "$1" 1 rollout.drafted)" -v a="$(metric "$1" 1 rollout.accepted)" -v l="$(metric "$1" 1 rollout.accepted_length)" \
        -v t="$(metric "$1" 1 rollout.tokens_per_step)" 'BEGIN { exit !(a > 0 && a < d && l > 0 && t > 1) }' ||
        fail "$1: drafted $(metric "$1" 1 rollout.drafted), accepted $(metric "$1" 1 rollout.accepted)"
}

# Long responses of few different characters, of which some repeat themselves.
sed -e 's/max_tokens: 6}/max_tokens: 40}/' grpo.yaml >long.yaml
grep -q 'max_tokens: 40' long.yaml || fail "the graph's responses are not longer"
status 0 "$gr" exec long.yaml --out none
rarely=
if [ "$slow" = 1 ]; then rarely="tokens: 1, from: group, match: 3"; fi
for form in "tokens: 4, from: ngram" "tokens: 7, from: group, match: 1" ${rarely:+"$rarely"}; do
    rm -rf some
    drafts some.yaml long.yaml "$form"
    status 0 "$gr" exec some.yaml --out some --check-memory
    same none some
    accepts some
done
[ "$(metric some 1 rollout.tokens_per_step)" != "$(metric some 2 rollout.tokens_per_step)" ] || fail "two iterations draft alike"
has some/plan.json '"name": "draft", "value": [17]'

# However few run at once, and wherever it stops.
drafts some.yaml long.yaml "tokens: 4, from: group"
each="concurrent=5"
if [ "$slow" = 1 ]; then each="concurrent=1 concurrent=5 kv_blocks=9"; fi
for few in $each; do
    rm -rf few
    status 0 "$gr" exec some.yaml --set nodes.rollout.$few --out few
    same none few
done
status 0 "$gr" exec some.yaml --out whole
any_stop some whole "$(last_step whole)" 1
status 0 "$gr" plan some.yaml --format json
peak=$(json_number out peak_bytes)
status 3 "$gr" plan some.yaml --budget 4KiB
each=$(least_budget)
if [ "$slow" = 1 ]; then each="$each $(((peak + each) / 2))"; fi
for budget in $each; do
    status 0 "$gr" plan some.yaml --budget "$budget" --format json -o plan.json
    status 0 "$gr" verify plan.json
    rm -rf few
    status 0 "$gr" exec some.yaml --budget "$budget" --out few --check-memory
    same none few
done

# Greedy, one after the other: the samples of a prompt are the same, and all but the first are drafted whole.
greedy='--set nodes.rollout.temperature=0 --set nodes.rollout.concurrent=1 --set nodes.rollout.ignore_eos=true --set nodes.rollout.max_tokens=50 --steps 2'
# shellcheck disable=SC2086 # settings have no spaces
status 0 "$gr" exec long.yaml $greedy --out greedy-none
# shellcheck disable=SC2086
status 0 "$gr" exec some.yaml $greedy --out greedy
same greedy-none greedy
awk -v t="$(metric greedy 1 rollout.tokens_per_step)" 'BEGIN { exit !(t > 2) }' || fail "greedy: $(metric greedy 1 rollout.tokens_per_step) tokens a step"

# Texts that end a response, cut in the middle of a draft; experts that a rollout chose; windows whose blocks come again; states
# that go back behind a token that is not kept.
sed "s/max_tokens: 40}/max_tokens: 40, stop: ['77', '=0']}/" long.yaml >stops.yaml
model moe qwen3_moe 32 false false
sed 's/{model: model,/{model: moe,/; s/schedule: cosine/schedule: constant/' long.yaml >moe.yaml
window_model window
sed -e 's/{model: model,/{model: window,/; s/max_tokens: 40}/max_tokens: 90}/' long.yaml >window.yaml
hybrid_model hybrid
sed -e 's/{model: model,/{model: hybrid,/' long.yaml >hybrid.yaml
moe='--set nodes.old_logprob.replay=rollout --set nodes.update.replay=rollout'
for form in stops moe window hybrid; do
    more=
    if [ $form = moe ]; then more=$moe; fi
    drafts some.yaml $form.yaml "tokens: 5, from: group"
    # shellcheck disable=SC2086
    status 0 "$gr" exec $form.yaml $more --steps 2 --out $form-none
    # shellcheck disable=SC2086
    status 0 "$gr" exec some.yaml $more --steps 2 --out $form --check-memory
    same $form-none $form
    accepts $form
done
[ "$(metric moe 1 old_logprob.routing_agreement)" = 1 ] || fail "experts of drafted tokens are recorded wrongly"

# Conversations.
turns turns.yaml ""
sed 's/{op: generate,/{op: generate, speculate: {always: true, tokens: 3, match: 1, from: group},/' turns.yaml >some.yaml
status 0 "$gr" exec turns.yaml --out turns-none
status 0 "$gr" exec some.yaml --out turns
same turns-none turns
[ "$(metric turns 1 rollout.accepted)" != 0 ] || fail "no draft of a conversation is accepted"

# Rows that are kept from one iteration to the next: stops, and the queue, change no bit.
sed -e 's/{op: generate, /{op: generate, over: 1.5, speculate: {always: true, tokens: 4}, /; s/, schedule: cosine//' long.yaml >kept.yaml
awk 'BEGIN { for (i = 11; i < 99; i++) for (j = 11; j < 13; j++) printf "{\"question\": \"%d+%d=\", \"answer\": \"%d\"}\n", i, j, i + j }' >many.jsonl
sed -i 's/data: train.jsonl/data: many.jsonl/' kept.yaml
status 0 "$gr" exec kept.yaml --out kept
any_stop kept kept "$(last_step kept)" 2

# Ranks, and slices of a model: both have the same drafts.
if [ "$slow" = 1 ] && runs_ranks; then
    drafts some.yaml long.yaml "tokens: 4, from: group"
    for how in "" "--set models.actor.tensor=2"; do
        rm -rf one two
        # shellcheck disable=SC2086
        status 0 "$gr" exec long.yaml --ranks 2 $how --steps 2 --out one
        # shellcheck disable=SC2086
        status 0 "$gr" exec some.yaml --ranks 2 $how --steps 2 --out two
        same one two
    done
fi

# The planner drafts where that is predicted to be faster, and says where it is not.
sed 's/{op: generate, /{op: generate, speculate: {tokens: 4, rate: 0}, /' long.yaml >off.yaml
status 0 "$gr" plan off.yaml
has out "rollout: nothing is drafted: it is predicted to save no time"
status 0 "$gr" exec off.yaml --out off
same none off
[ "$(metric off 1 rollout.drafted)" = 0 ] || fail "it drafts all the same"
status 0 "$gr" plan off.yaml --set nodes.rollout.speculate.rate=0.99 --format json
has out '"name": "draft", "value": 4'

# What cannot be is refused.
refused "unknown key 'token' in speculate; did you mean 'tokens'" sh -c "sed 's/rate: 0/token: 2/' off.yaml >bad.yaml; '$gr' check bad.yaml"
refused "'tokens' must be a whole number from 1 to 32" sh -c "sed 's/tokens: 4/tokens: 0/' off.yaml >bad.yaml; '$gr' check bad.yaml"
refused "'from' must be ngram .* or mtp" sh -c "sed 's/rate: 0/from: model/' off.yaml >bad.yaml; '$gr' check bad.yaml"
refused "'rate' must be a share from 0 to below 1" "$gr" check off.yaml --set nodes.rollout.speculate.rate=1

# A CUDA device drafts by itself: its plan has the texts, and the rows of longer steps.
sed 's/rate: 0/always: true/' off.yaml >some.yaml
for form in long some; do
    status 0 "$gr" plan $form.yaml --hardware h200 --format json -o $form.json
    status 0 "$gr" verify $form.json
done
[ "$(json_number long.json peak_bytes)" -lt "$(json_number some.json peak_bytes)" ] || fail "drafts take no memory"
has some.json '"name": "draft", "value": 4'
sed 's/"linear_num_value_heads": 2/"linear_num_value_heads": 4/; s/"head_dim": 8/"head_dim": 32/' hybrid.json >four.json
"$gr" init --config four.json --tokenizer "$project/graphs/quickstart" --seed 1 -o four >/dev/null
kv_bytes() { # FORM: of the pool, with states of one size, of a hybrid
    status 0 "$gr" plan $1.yaml --hardware h200 --set model=four --format json -o four.plan
    status 0 "$gr" verify four.plan
    sed -nE 's/.*"what": "rollout.kv",.* "bytes": ([0-9]+).*/\1/p' four.plan | head -1
}
none=$(kv_bytes long) drafted=$(kv_bytes some)
[ "${none:-0}" -gt 0 ] && [ "$drafted" -gt "$none" ] || fail "states that may go back take no memory: $drafted bytes, $none without drafts"
