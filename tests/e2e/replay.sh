#!/bin/sh
# Responses of earlier iterations beside those of this one (op replay): which come again, which are kept, in training, conversations and
# selections, on ranks, after a stop, under budgets; and what is refused.
. "$(dirname "$0")/lib.sh"

with_replay grpo.yaml replay.yaml 'samples: 3, size: 20, keep: "1 + reward"'
echo '  own: "batch_mean(reward, replayed.age == 0)"' >>replay.yaml
status 0 "$gr" exec replay.yaml --out replay --check-memory
[ "$(metric replay 1 new) $(metric replay 1 old) $(metric replay 1 replayed.replayed)" = "32 0 0" ] || fail "the first iteration has old ones"
for k in 2 3 4 5 6; do
    [ "$(metric replay $k new)" = 32 ] && [ "$(metric replay $k old)" -gt 0 ] && [ "$(metric replay $k old)" = "$(metric replay $k replayed.replayed)" ] ||
        fail "iteration $k: $(metric replay $k new) new, $(metric replay $k old) old"
    [ "$(metric replay $k gap)" = 0 ] || fail "a new response has another log-prob"
    [ "$(metric replay $k own)" = "$(metric replay $k reward_mean)" ] || fail "reward_mean is not of this iteration's own"
    [ "$(metric replay $k replayed.kept)" = 20 ] || fail "not as many are kept as have a place"
done
lacks replay/metrics.jsonl logprob_gap_max
comes_again replay.yaml 3
any_stop replay replay 6 3
[ "$slow" = 0 ] || any_budget replay replay
status 0 "$gr" plan replay.yaml --format json -o plan.json
has plan.json '"replayed.store"'
status 0 "$gr" check replay.yaml --explain
has out '^    replayed.keep$'
store=$(json_number plan.json host_peak_bytes)
status 0 "$gr" plan replay.yaml --format json -o plan.json --set nodes.replayed.size=2000
[ "$(json_number plan.json host_peak_bytes)" -gt $((store + 1980 * 6 * 8)) ] || fail "the plan does not count what is kept"
status 0 "$gr" plan replay.yaml --device cuda --hardware h200 --format json -o plan.json
status 0 "$gr" verify plan.json

# All records each time, in their order: what comes again is what the iteration before sampled, with its ids and log-probs.
head -8 train.jsonl >eight.jsonl
cat >all.yaml <<'END'
graph: all
models: {actor: {checkpoint: model, train: {lr: 1.0e-2}}}
nodes:
  prompts: {op: prompts, file: eight.jsonl, batch: 8, shuffle: false, max_tokens: 8, template: "{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 6}
  replayed: {op: replay, of: rollout, samples: 2, size: 100, keep: 1}
  reward: {op: reward, of: replayed, answer: prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
  update: {op: update, model: actor, of: replayed, loss: "-token_mean((reward - group_mean(reward)) * logprob)"}
log:
  sampled: token_sum(rollout.token)
  logprobs: token_sum(rollout.logprob)
  again: "token_sum(replayed.token, replayed.age > 0)"
  again_logprobs: "token_sum(replayed.logprob, replayed.age > 0)"
  n: batch_count(replayed.age > 0)
  oldest: batch_max(replayed.age)
  least: "-batch_max(-reward, replayed.age > 0)"
run: {steps: 5, seed: 3}
END
status 0 "$gr" exec all.yaml --out all
for k in 2 3 4 5; do
    [ "$(metric all $k again) $(metric all $k n) $(metric all $k oldest)" = "$(metric all $((k - 1)) sampled) 16 1" ] || fail "iteration $k: other tokens came again"
    awk "BEGIN { exit !(($(metric all $k again_logprobs) - $(metric all $((k - 1)) logprobs)) ^ 2 < 1e-8) }" || fail "iteration $k: other log-probs"
done
keeps() { # RUN KEEP OPTIONS...
    out=$1 keep=$2
    shift 2
    status 0 "$gr" exec all.yaml --out "$out" --set "nodes.replayed.keep=$keep" "$@"
}
keeps right 'reward > 0' # only right ones; there are some
n=0
for k in 2 3 4 5; do
    [ "$(metric right $k n)" = 0 ] || [ "$(metric right $k least)" = 1 ] || fail "a wrong response came again"
    n=$((n + $(metric right $k n)))
done
[ "$n" -gt 0 ] || fail "no right response came again: the test means nothing"
keeps first '1 + replayed.age' # what is there stays
[ "$(metric first 5 oldest) $(metric first 5 again)" = "4 $(metric first 2 again)" ] || fail "the first ones are gone: $(cat first/metrics.jsonl)"
keeps young '1 + replayed.age' --set nodes.replayed.max_age=2
[ "$(metric young 3 oldest) $(metric young 5 oldest)" = "2 2" ] || fail "max_age: the oldest is of $(metric young 3 oldest), $(metric young 5 oldest)"
keeps none 0
[ "$(metric none 5 n) $(metric none 5 replayed.kept)" = "0 0" ] || fail "0 keeps some"
keeps bad 'log(reward)'
has out "'keep' of 'replayed' is no number for [0-9]+ sequences, of which nothing changes"

# Conversations with their masks and turns, rows that are kept themselves, selections behind.
turns turns.yaml "" "workers: 2"
with_replay turns.yaml talks.yaml 'samples: 2, size: 50, keep: 1'
cat >>talks.yaml <<'END'
  turns: "batch_max(replayed.turns, replayed.age > 0)"
  said: "batch_max(seq_max(replayed.position) + 1 - seq_count(replayed.model), replayed.age > 0)"
END
comes_again talks.yaml 3
status 0 "$gr" exec talks.yaml --out talks --steps 4
[ "$(metric talks 4 old)" -gt 0 ] && [ "$(metric talks 4 turns)" -gt 0 ] || fail "no conversation came again: $(cat talks/metrics.jsonl)"
awk "BEGIN { exit !($(metric talks 4 said) > 0) }" || fail "masks of conversations are lost"
any_stop talks talks 4 2
sed -e 's/^  reward: /  some: {op: select, of: replayed, sequences: "replayed.length > 2"}\n&/' -e '/_logprob: {\|^    of: /s/of: replayed/of: some/' \
    -e '/^log:/,$d' replay.yaml >some.yaml
sed -i 's/keep: "1 + reward"/keep: replayed.length/' some.yaml
status 0 "$gr" exec some.yaml --out some --steps 3
sed 's/^  rollout: {/&over: 1.5, lag: 2, /; s/^  new: .*//; /^log:/,$d' replay.yaml >lag.yaml
status 0 "$gr" exec lag.yaml --out lag --steps 4
[ "$slow" = 0 ] || any_stop lag lag 4 1

# Two ranks keep the same, and any number of ranks goes on with it.
if runs_ranks; then
    for n in 1 2; do
        status 0 "$gr" exec replay.yaml --set canonical=true --ranks $n --out ranks$n
    done
    same_weights ranks1 ranks2
    cmp ranks1/checkpoints/step-6/replayed.store ranks2/checkpoints/step-6/replayed.store || fail "two ranks keep others"
    status 0 "$gr" exec replay.yaml --set canonical=true --ranks 2 --out other --until 3
    status 0 "$gr" exec --resume other --ranks 1
    same_weights ranks1 other
fi

# ---- said where they are wrong -----------------------------------------------------------------------------------------------

status 0 "$gr" exec replay.yaml --out part --steps 3
cp -r part moved
refused "'replayed' kept responses of other bounds" "$gr" exec --resume part --steps 4 --set nodes.replayed.size=30 --replan
tail -8 train.jsonl >>few.jsonl
status 0 "$gr" exec --resume part --steps 4 --accept-changes
has err "the data changed since the checkpoint: 'replayed' begins anew"
[ "$(metric part 4 old)" = 0 ] || fail "responses of other data came again"
head -12 train.jsonl >few.jsonl
printf 'damage' | dd of=moved/checkpoints/step-3/replayed.store bs=1 seek=300 conv=notrunc 2>/dev/null
got=0
"$gr" exec --resume moved --steps 4 >out 2>err || got=$?
[ "$got" != 0 ] || fail "a damaged store was taken"
has err 'replayed.store'
check() { # PATTERN SETTING...
    pattern=$1
    shift
    for s in "$@"; do set -- "$@" --set "$s"; shift; done
    refused "$pattern" "$gr" check replay.yaml "$@"
}
check "'keep' must be one number a sequence, not one for each token: reduce it, e.g. with seq_mean\(\)" 'nodes.replayed.keep=replayed.logprob'
check "'keep' is about the sequences of 'replayed', but has those of 'rollout'" 'nodes.replayed.keep=rollout.length'

check "does not go with 'replay'" 'nodes.rollout.temperature="1 + progress"'
check "'replay': some rows of 'replayed' were not sampled in this iteration" nodes.old_logprob.replay=rollout
sed '/^log:/,/^  least/d' all.yaml >refilled.yaml
refused "'keep': node 'replayed' is run again by 'refill' of 'kept'" "$gr" check refilled.yaml --set nodes.update.of=kept \
    --set 'nodes.kept={op: select, of: replayed, groups: group_std(reward) > 0, refill: {until: 8, rounds: 2, short: keep}}'
refused "reads its rows from a file, where they come again by themselves" "$gr" check all.yaml --set 'nodes.rows={op: sequences, file: eight.jsonl, batch: 8, prompt: "{question}", response: "{answer}", max_prompt_tokens: 8, max_tokens: 8}' --set nodes.replayed.of=rows
sed 's/samples: 3, size: 20/samples: 3/' replay.yaml >sizeless.yaml
refused "needs 'size'" "$gr" check sizeless.yaml
sed 's|, keep: "1 + reward"||' replay.yaml >keepless.yaml
refused "needs 'keep'" "$gr" check keepless.yaml
sed 's|keep: "1 + reward"|keep: null|' replay.yaml >null.yaml
refused "'keep' has no value" "$gr" check null.yaml
