#!/bin/sh
# A rollout whose steps go by chunks, with their state on the device (its host form: steps_exec.c), has the bits of one
# that goes step by step: whatever the number of slots, the size of the pool, stop texts and long prompts.
. "$(dirname "$0")/lib.sh"

long() { # What the long form tries, too.
    [ "$slow" = 0 ] || echo "$@"
}

same() { # GRAPH SETTING...
    two_ways "$GR_STEPS_EXEC" "$@"
    cp out steps.out
    same_metrics a b
    same_weights a b
    cmp a/samples.jsonl b/samples.jsonl || fail "samples of $*"
}

# With tokens drafted by chunks, against a rollout that drafts none.
drafted() { # GRAPH KEYS SETTING...
    from=$1
    sed "s/{op: generate,/{op: generate, speculate: {always: true, $2},/" $from >drafted.yaml
    grep -q speculate drafted.yaml || fail "no rollout in $from"
    shift 2
    two_ways "$GR_STEPS_EXEC" $from "$@"
    rm -rf b
    status 0 "$GR_STEPS_EXEC" drafted.yaml b "$@"
    sed -E 's/"[a-z_]*\.(drafted|accepted|accepted_length|tokens_per_step)": [^,}]*(, )?//g; s/, \}$/}/' b/metrics.jsonl >plain.jsonl
    accepted=$(metric b 1 rollout.accepted)
    [ "$accepted" -gt 0 ] || fail "nothing is accepted of $from $*"
    [ "$accepted" -lt "$(metric b 1 rollout.drafted)" ] || fail "all is accepted of $from $*"
    mv plain.jsonl b/metrics.jsonl
    same_metrics a b
    same_weights a b
    cmp a/samples.jsonl b/samples.jsonl || fail "samples of $from $*"
}

# Rows that a rollout keeps, whose weights stay as they are: what goes on in another iteration has the log-probs of one pass.
still() { # FROM
    sed -e 's/, grad_clip: 1.0}/, weight_decay: 0}/' -e 's/lr: 1.0e-2/lr: 1.0e-30/' "$1"
}
no_gaps() { # WHAT
    [ "$(sed -nE 's/.*"logprob_gap_max": ([^,}]*).*/\1/p' b/metrics.jsonl | tr '\n' ' ')" = "0 0 0 0 " ] || fail "$*: rows that go on have gaps"
    [ "$(metric b 3 rollout.kept_groups)" = 4 ] || fail "$*: $(metric b 3 rollout.kept_groups) groups are kept"
    [ "$(metric b 3 rollout.resumed_groups)" -gt 0 ] || fail "$*: nothing goes on"
    rm -rf b
}
goes_on() { # GRAPH SETTING
    rm -rf b
    status 0 "$GR_STEPS_EXEC" $1.yaml b nodes.rollout.over=1.5 nodes.rollout.$2 run.steps=4
    no_gaps "$@"
}

sed 's/run: .*/run: {steps: 2, seed: 7, samples: 32}/' grpo.yaml >tiny.yaml
same tiny.yaml
for slots in 3 $(long 1 7 20); do same tiny.yaml nodes.rollout.concurrent=$slots; done
for blocks in 1 $(long 2 5 9); do same tiny.yaml nodes.rollout.kv_blocks=$blocks; done
same tiny.yaml nodes.rollout.samples=1
# Responses of several chunks, prompts of several blocks.
sed -e 's/max_tokens: 6/max_tokens: 37/' -e 's/max_tokens: 8, template: "{question}"/max_tokens: 26, template: "1+2=3+4=5+6=7+8={question}"/' \
    tiny.yaml >long.yaml
same long.yaml
has steps.out '[1-9][0-9]* moves'
same long.yaml nodes.rollout.concurrent=5
same long.yaml nodes.rollout.kv_blocks=6
# The host ends what the device does not know to end.
sed 's/max_tokens: 37/max_tokens: 37, stop: ["3", "+1"]/' long.yaml >stop.yaml
same stop.yaml
has steps.out '[1-9][0-9]* clears'
for set in kv_blocks=7 $(long concurrent=5); do same stop.yaml nodes.rollout.$set; done
sed 's/max_tokens: 37/max_tokens: 37, stop_ids: [3, 4, 9]/' long.yaml >ids.yaml
same ids.yaml nodes.rollout.concurrent=6
# Drafts: of slots that end, wait for blocks, or are ended by the host in the middle of one.
drafted long.yaml "tokens: 4"
drafted long.yaml "tokens: 7, from: group, match: 1" nodes.rollout.concurrent=5
drafted stop.yaml "tokens: 3, from: group, match: 1" nodes.rollout.kv_blocks=7
# By the layer of the checkpoint: the same drafts, of which as many are accepted.
sed 's/{op: generate,/{op: generate, speculate: {always: true, from: mtp, tokens: 3},/' stop.yaml >ahead.yaml
for name in glm4_moe $(long deepseek_v3); do
    cp -r "$project/tests/golden/mtp/$name" $name
    cp "$project"/graphs/quickstart/tokenizer* $name
    same ahead.yaml model=$name nodes.rollout.concurrent=5
    [ "$(metric b 1 rollout.accepted)" -gt 0 ] || fail "no draft of $name is accepted"
done
# Keys and values in FP8, whose blocks are copied as others are.
sed 's/actor: {/&precision: {kv: fp8}, /' long.yaml >kv.yaml
same kv.yaml nodes.rollout.concurrent=5
# Layers whose state has one size: prompts that are read where their first sample runs, and those that wait for slots,
# for blocks or for a second trip with their state in a place of its own.
mv model dense
hybrid_model model
same long.yaml
has steps.out '[1-9][0-9]* moves'
for set in concurrent=5 $(long kv_blocks=6 concurrent=3 concurrent=20 samples=1); do same long.yaml nodes.rollout.$set; done
for set in kv_blocks=7 $(long concurrent=5); do same stop.yaml nodes.rollout.$set; done
# Prompts of several parts, beside others: their state goes on from trip to trip.
for n in 7 $(long 30); do
    export GR_PREFILL=$n
    for set in concurrent=5 $(long samples=1 concurrent=40); do same long.yaml nodes.rollout.$set; done
done
unset GR_PREFILL
# What goes on in another iteration goes on from its prompt's state.
still long.yaml >still.yaml
for set in concurrent=5 $(long concurrent=40); do goes_on still $set; done
if [ "$slow" = 1 ]; then
    status 0 "$gr" exec still.yaml --out b --set nodes.rollout.over=1.5 --set run.steps=4
    no_gaps still
fi
# Layers with a window, whose blocks come again: what a rollout's step computes is what one pass over the row does, to the
# bit. The pool has no more than it did, and layers with a window take less of it.
window_model model
sed 's/max_tokens: 37/max_tokens: 100, ignore_eos: true/' long.yaml >ring.yaml
echo 'log: {off: token_max(abs(old_logprob - rollout.logprob)), length: batch_max(rollout.length)}' >>ring.yaml
for set in kv_blocks=12 $(long samples=4); do
    same ring.yaml nodes.rollout.$set run.steps=1
    [ "$(metric a 1 off)" = 0 ] || fail "a window's keys were lost: $(cat a/metrics.jsonl)"
    [ "$(metric a 1 length)" -gt 60 ] || fail "responses are too short for a block to come again"
done
sed 's/max_tokens: 100/max_tokens: 100, stop: ["3", "+1"]/' ring.yaml >ring-stop.yaml
[ "$slow" = 0 ] || same ring-stop.yaml nodes.rollout.concurrent=5 run.steps=1
kv() { # bytes of keys and values in a plan
    status 0 "$gr" plan ring.yaml --format json
    sed -nE 's/.*"what": "rollout.kv",.* "bytes": ([0-9]+).*/\1/p' out | head -1
}
drafted ring.yaml "tokens: 5, from: group, match: 1" nodes.rollout.samples=4 run.steps=1
window=$(kv)
sed -i 's/sliding_attention/full_attention/g' model/config.json
[ $((10 * window)) -lt $((6 * $(kv))) ] || fail "a window's layers take as much as others: $window of $(kv) bytes"
sed -i 's/"full_attention", "full_attention", "full_attention", "full_attention"/"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"/' model/config.json
# Conversations, one of which dies and begins anew behind its prompt; answers are read a few tokens at a time.
turns ring-turns.yaml die "retries: 2"
export GR_PREFILL=5
for set in concurrent=3 $(long concurrent=20); do
    rm -f died
    same ring-turns.yaml nodes.rollout.max_tokens=40 nodes.rollout.max_context=130 nodes.rollout.$set run.steps=1
    [ "$(metric b 1 off)" = 0 ] || fail "a conversation's keys were lost: $(cat b/metrics.jsonl)"
done
still ring.yaml >ring-still.yaml # what a sample had before is read again, a few tokens at a time
goes_on ring-still concurrent=40
unset GR_PREFILL
# Layers that take keys and values read those of the layer that lends them, rings too; embeddings of each layer are a step's own.
carried_model model
same ring.yaml nodes.rollout.kv_blocks=12 run.steps=1
[ "$(metric a 1 off)" = 0 ] || fail "layers read other keys than a pass over the row: $(cat a/metrics.jsonl)"
export GR_PREFILL=7
same long.yaml nodes.rollout.concurrent=5 run.steps=1
unset GR_PREFILL
[ "$slow" = 0 ] || drafted ring.yaml "tokens: 5, from: group, match: 1" nodes.rollout.samples=4 run.steps=1
rm -rf model
mv dense model
# Conversations: slots that wait, answers that are read beside prompts, turns that the host ends.
turns turns.yaml ""
turns slow.yaml slow
same turns.yaml run.steps=2
for slots in $(long 1 3 20); do same turns.yaml nodes.rollout.concurrent=$slots run.steps=2; done
for blocks in 2 $(long 5); do same turns.yaml nodes.rollout.kv_blocks=$blocks run.steps=2; done
same slow.yaml run.steps=2
drafted turns.yaml "tokens: 3, match: 1, from: group" run.steps=2
for slots in 6 $(long 40); do same turns.yaml nodes.rollout.max_tokens=11 nodes.rollout.max_context=60 nodes.rollout.concurrent=$slots run.steps=2; done

# Rows that are kept. What waits for its turn has the bits of the other form. Which groups are complete first it has not, for a
# chunk's end is known later; but what goes on in another iteration has the log-probs of one pass, where weights stay as they
# are.
same long.yaml nodes.rollout.lag=3 nodes.rollout.concurrent=11 run.steps=3
still long.yaml >still.yaml
still turns.yaml >still-turns.yaml
for set in concurrent=5 $(long concurrent=40 samples=1); do
    goes_on still $set
    goes_on still-turns $set
done

# Experts that a rollout with older weights chose, which later passes follow.
model moe qwen3_moe 32 false false
routed() { # FROM TO
    sed 's/{model: model,/{model: moe,/; s/^  rollout: {/&lag: 1, /; s/old_logprob: {/&replay: rollout, /; s/^    epochs: 2/&\n    replay: rollout/' "$1" >"$2"
}
routed tiny.yaml routed.yaml
routed stop.yaml routed-stop.yaml
routed turns.yaml routed-turns.yaml
for set in concurrent=3 $(long concurrent=40); do same routed.yaml nodes.rollout.$set; done
same routed-stop.yaml nodes.rollout.concurrent=5
same routed-turns.yaml nodes.rollout.concurrent=3 run.steps=3
[ "$(metric a 3 old_logprob.routing_agreement)" != 1 ] || fail "older weights chose the same experts: the test means nothing"
