#!/bin/sh
# Rollouts that keep rows: `over`, `partial` and `lag` above 1. What is taken, how old it is, resumed runs, ranks, rewards, and
# conversations whose environment answers at random times.
. "$(dirname "$0")/lib.sh"

keeps() { # FILE FROM: with settings for all that keeps
    sed -e 's/^  rollout: {/  rollout: {over: $over, partial: $partial, lag: $lag, /' -e 's/, schedule: cosine//' \
        -e 's/^params: {/params: {over: 1.5, partial: keep, lag: 0, /' "$2" >"$1"
    grep -q '^log:' "$1" || echo 'log:' >>"$1"
    cat >>"$1" <<'END'
  age: token_mean(step - rollout.version)
  oldest: token_max(step - rollout.version)
END
}
each() { # RUN NAME: the metric of each iteration, in one line
    sed -nE "s/.*\"$2\": ([^,}]*).*/\1/p" "$1/metrics.jsonl" | tr '\n' ' '
}
drawn_once() { # RUN GROUPS: no prompt was taken twice, and so many were
    sed -E 's/.*"prompt": ("[^"]*").*/\1/' "$1/samples.jsonl" | sort | uniq -c >counts
    [ "$(wc -l <counts) $(awk '$1 != 1' counts | wc -l)" = "$2 0" ] || fail "$1: prompts are lost or doubled: $(sort -n counts | sed -n '1p;$p')"
}
awk 'BEGIN { for (i = 11; i < 99; i++) for (j = 11; j < 15; j++) printf "{\"question\": \"%d+%d=\", \"answer\": \"%d\"}\n", i, j, i + j }' >many.jsonl

# ---- the first complete groups ----------------------------------------------------------------------------------------

keeps over.yaml grpo.yaml
all="--set data=many.jsonl --set run.samples=8"
# shellcheck disable=SC2086 # settings have no spaces
status 0 "$gr" exec over.yaml $all --out over --check-memory
drawn_once over 48
[ "$(each over rollout.kept_groups)" = "4 4 4 4 4 4 " ] || fail "of 12 groups in work 8 are taken: $(each over rollout.kept_groups)"
[ "$(each over oldest)" = "0 1 1 1 1 1 " ] || fail "what is kept grows older than max_lag: $(each over oldest)"
[ "$(each over age)" = "$(each over rollout.staleness)" ] || fail "the age of tokens is counted in two ways"
[ "$(metric over 1 logprob_gap_max)" = 0 ] || fail "a gap where all is new"
[ "$(metric over 3 rollout.resumed_groups)" = 4 ] || fail "what was kept is not taken first"
awk -v a="$(metric over 1 rollout.taken_length)" -v b="$(metric over 1 rollout.left_length)" 'BEGIN { exit !(b > 0 && b < a) }' ||
    fail "lengths of what is left"
# The queue is in the checkpoint: cut in two, a run has the bits of one, and the same queue.
for k in 4 $([ "$slow" = 0 ] || echo 1); do
    # shellcheck disable=SC2086
    status 0 "$gr" exec over.yaml $all --out part$k --steps $k
    status 0 "$gr" exec --resume part$k --steps 6
    same_weights over part$k
    same_metrics over part$k
    cmp over/samples.jsonl part$k/samples.jsonl || fail "samples differ"
    cmp over/checkpoints/step-6/rollout.queue.0 part$k/checkpoints/step-6/rollout.queue.0 || fail "queues differ"
done
"$gr" plan over.yaml --format json -o plan.json
status 0 "$gr" verify plan.json
has plan.json '"what": "rollout.queue"'

# Where weights stay as they are, what goes on in another iteration has the log-probs of one pass.
sed -e 's/, grad_clip: 1.0}/, weight_decay: 0}/' -e 's/lr: 1.0e-2/lr: 1.0e-30/' over.yaml >still.yaml
for slots in 5 $([ "$slow" = 0 ] || echo 48); do
    status 0 "$gr" exec still.yaml --set nodes.rollout.concurrent=$slots --set lag=1 --out still --steps 4
    [ "$(each still logprob_gap_max)" = "0 0 0 0 " ] || fail "rows that go on have gaps: $(each still logprob_gap_max)"
    rm -r still
done

# Dropped: nothing is older than the iteration, and what was dropped is drawn and counted.
# shellcheck disable=SC2086
status 0 "$gr" exec over.yaml $all --set partial=drop --out drop
[ "$(each drop oldest)" = "0 0 0 0 0 0 " ] || fail "dropped groups come back"
[ "$(each drop rollout.dropped_groups)" = "4 4 4 4 4 4 " ] || fail "$(each drop rollout.dropped_groups)"
drawn_once drop 48
# shellcheck disable=SC2086
status 0 "$gr" exec over.yaml $all --set partial=drop --out dropped --steps 3
status 0 "$gr" exec --resume dropped --steps 6
same_weights drop dropped

# ---- lag --------------------------------------------------------------------------------------------------------------

# Iteration 1 samples three batches with the first weights; what is trained on is always the oldest.
# shellcheck disable=SC2086
status 0 "$gr" exec over.yaml $all --set over=1 --set lag=3 --out lag
[ "$(each lag age)$(each lag oldest)" = "0 1 2 3 3 3 0 1 2 3 3 3 " ] || fail "lag 3: $(each lag age)"
drawn_once lag 48
[ "$(each lag rollout.kept_groups)" = "16 16 16 16 16 16 " ] || fail "two batches wait: $(each lag rollout.kept_groups)"
# shellcheck disable=SC2086
status 0 "$gr" exec over.yaml $all --set over=1 --set lag=3 --set nodes.rollout.concurrent=5 --set nodes.rollout.kv_blocks=9 --out lag5 --steps 2
status 0 "$gr" exec --resume lag5 --steps 6
same_weights lag lag5
same_metrics lag lag5
# shellcheck disable=SC2086
status 0 "$gr" exec over.yaml $all --set lag=3 --out both
[ "$(each both oldest)" = "0 1 2 3 4 4 " ] || [ "$(each both oldest)" = "0 1 2 3 3 4 " ] || fail "over and lag: $(each both oldest)"
drawn_once both 48

# ---- rewards ----------------------------------------------------------------------------------------------------------

# A sequence is scored when it ends, also where it is trained on later, or never.
digit_worker
for file in one two; do
    sed "s|^  reward: .*|  reward: {op: reward, of: rollout, command: \"sh count.sh\"}|" over.yaml >$file.yaml
done
sed -i 's/count.sh"/&, workers: 3, in_flight: 7/' two.yaml
for way in keep drop; do
    status 0 "$gr" exec one.yaml --set partial=$way --set lag=2 --out one-$way --steps 4
    status 0 "$gr" exec two.yaml --set partial=$way --set lag=2 --out two-$way --steps 2
    status 0 "$gr" exec --resume two-$way --steps 4
    same_weights one-$way two-$way
done

# ---- conversations ----------------------------------------------------------------------------------------------------

turns turns.yaml slow "record: answers.jsonl, workers: 3, in_flight: 7"
keeps record.yaml turns.yaml
sed 's|command: "[^"]*"|replay: answers.jsonl|; s/, record: answers.jsonl, workers: 3, in_flight: 7//' record.yaml >replay.yaml
status 0 "$gr" exec record.yaml --set lag=3 --out record
status 0 "$gr" exec replay.yaml --set lag=3 --out replay
same_weights record replay
same_metrics record replay
for k in 1 3; do
    status 0 "$gr" exec replay.yaml --set lag=3 --out replay$k --steps $k
    status 0 "$gr" exec --resume replay$k --steps 6
    same_weights record replay$k
    same_metrics record replay$k
done
# What a run recorded behind the checkpoint that it went on from is not what it took.
status 0 "$gr" exec record.yaml --out again --steps 4 --set 'run.checkpoint={every: 2}'
status 0 "$gr" exec --resume again@2 --steps 5
status 0 "$gr" exec replay.yaml --out again2 --steps 5
same_weights again again2
# A file that is not what was saved, and that somebody accepts: each number of it is looked at.
for seed in 1 2 3 4; do
    rm -rf damaged
    cp -r again damaged
    perl -e 'srand $ARGV[1]; open(my $f, "+<", $ARGV[0]); binmode $f; my $n = -s $f;
             for (1 .. 20) { seek($f, rand($n), 0); print $f pack("C", rand 256) }' damaged/checkpoints/step-5/rollout.queue.0 $seed
    "$gr" exec --resume damaged --steps 6 --accept-changes >out 2>err || [ $? = 2 ] || fail "a damaged file (seed $seed): $(tail -n 3 err)"
done
# A run that goes on tells a new environment what was said so far: the same conversations.
rm answers.jsonl
# shellcheck disable=SC2086
status 0 "$gr" exec record.yaml $all --set over=2 --out live --steps 2
ASKED=asked status 0 "$gr" exec --resume live --steps 5
[ "$(each live rollout.failed)" = "0 0 0 0 0 " ] || fail "conversations failed: $(each live rollout.failed)"
drawn_once live 40
has asked '"turn":0'

# ---- ranks ------------------------------------------------------------------------------------------------------------

if runs_ranks; then
    # shellcheck disable=SC2086
    status 0 "$gr" exec over.yaml $all --ranks 2 --out ranks --steps 5
    drawn_once ranks 40
    [ "$(each ranks rollout.kept_groups)$(each ranks oldest)" = "4 4 4 4 4 0 1 1 1 1 " ] || fail "two ranks: $(each ranks rollout.kept_groups)"
    # shellcheck disable=SC2086
    status 0 "$gr" exec over.yaml $all --ranks 2 --out ranks2 --steps 2
    status 2 "$gr" exec --resume ranks2 --steps 5 --ranks 1
    has err "step-2/rollout.queue.0: error: 'rollout' kept its rows on 2 ranks, which each have their own: go on with as many, not 1"
    status 0 "$gr" exec --resume ranks2 --steps 5
    same_weights ranks ranks2
    same_metrics ranks ranks2
    cat >split.yaml <<END
graph: tiny
use: over.yaml
pools: {train: {share: 1}, rollout: {share: 1}, reference: {with: rollout}}
models: {actor: {pool: train}, ref: {pool: reference}}
nodes: {rollout: {pool: rollout}}
END
    # shellcheck disable=SC2086
    status 0 "$gr" exec split.yaml $all --set lag=2 --ranks 2 --out split --steps 3
    status 0 "$gr" exec --resume split --steps 5
    drawn_once split 40
    # shellcheck disable=SC2086
    status 0 "$gr" exec split.yaml $all --set lag=2 --ranks 2 --out split2 --steps 5
    same_weights split split2
    refused "keeps rows on 3 ranks, which a batch of 8 prompts does not divide among" "$gr" plan over.yaml --ranks 3
fi

# ---- what is refused --------------------------------------------------------------------------------------------------

status 0 "$gr" plan over.yaml --device cuda --hardware h200
status 2 "$gr" exec --resume part4 --steps 7 --set nodes.rollout.over=2 --replan
has err "step-6/rollout.queue.0: error: 'rollout' kept rows of other bounds"
# Without `over` they have no use: a run that goes on says that it leaves them, and only then.
cp -r part4 other
status 0 "$gr" exec --resume other --steps 7 --set nodes.rollout.over=1 --set nodes.rollout.partial=keep --replan
has err "step-6/rollout.queue.0: warning: responses that the run had kept are left out"
status 0 "$gr" exec --resume part4 --steps 7 --set models.actor.train.lr=0.02
lacks err "left out"
refused "'partial' goes with 'over: 1.25'" "$gr" check grpo.yaml --set nodes.rollout.partial=drop
model moe qwen3_moe 32 false false
sed 's/model: model,/model: moe,/; s/old_logprob: {/&replay: rollout, /' over.yaml >routed.yaml
refused "'rollout' keeps rows .* and a node asks for the experts that it chose" "$gr" check routed.yaml
refused "max_lag: 2 leaves no time to what is kept: with 'lag: 2' it is at least 3" "$gr" check over.yaml --set lag=2 --set nodes.rollout.max_lag=2
refused "'max_lag' goes with 'partial: keep'" "$gr" check over.yaml --set partial=drop --set nodes.rollout.max_lag=2
refused "'over' must be a number from 1 to 2" "$gr" check over.yaml --set over=3
refused "a 'temperature' that changes does not go with 'over'" "$gr" check over.yaml --set 'nodes.rollout.temperature=1 - 0.1 * progress'
refused "do not go with canonical: true" "$gr" check over.yaml --set canonical=true
refused "'other' has the prompts of 'rollout', which keeps some" "$gr" check over.yaml --set 'nodes.other={op: generate, model: actor, prompts: prompts, max_tokens: 4}' --set 'log.x=batch_mean(other.length)'
refused "'rollout' keeps rows from one iteration to the next: its prompts are not those that were drawn last" "$gr" check over.yaml --set 'log.x=batch_mean(rollout.length - prompts.length)'
