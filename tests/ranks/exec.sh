#!/bin/sh
# Graphs on several ranks of this machine: the numbers of one rank up to rounding, whatever is sharded; checkpoints that
# any number of ranks goes on from; one voice. With GR_SLOW=1, 50 points instead of 2.
. "$(dirname "$0")/lib.sh"

# From equal state, one step on 2 and 4 ranks: behind the first iteration of a run on one, or behind 49.
points=2
[ "$slow" = 0 ] || points=50
set -- --set models.actor.train.schedule=constant --set run.checkpoint.every=1
status 0 "$gr" exec grpo.yaml "$@" --out one --steps $points
for n in 2 4; do each_step one $points 1e-5 "$gr" exec --ranks $n; done

# What is sharded, and how it is gathered, changes nothing; nor does a rank more than there are groups for all.
status 0 "$gr" exec grpo.yaml --ranks 2 --steps 2 --out whole
for way in direct layer $([ "$slow" = 0 ] || echo whole); do
    gather="--set models.actor.gather=$way"
    [ $way != direct ] || gather=
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml --ranks 2 --steps 2 --out $way-shards --check-memory \
        --set models.actor.residency.rollout_weights=keep $gather
    has $way-shards/plan.json '"kind": "sync"'
    same_weights whole $way-shards
    same_metrics whole $way-shards
done
status 0 "$gr" exec grpo.yaml --ranks 3 --steps 1 --out three
close one three 1
if [ "$slow" = 1 ]; then
    status 0 "$gr" exec grpo.yaml --ranks 5 --steps 1 --set nodes.update.mini_batch=8 --out five
    status 0 "$gr" exec grpo.yaml --steps 1 --set nodes.update.mini_batch=8 --out one-mini
    close one-mini five 1
fi

# Nor does an optimizer step on the host, where each rank has the state of its shard.
status 0 "$gr" exec grpo.yaml --ranks 2 --steps 2 --set models.actor.residency.optimizer=host --check-memory --out stepped-here
grep -Eq '"what": "update.step.[0-9]+".*"lane": "host"' stepped-here/plan.json || fail "no step on the host"
same_weights whole stepped-here

# Every kind of node: a selection drawn again, validations, a loss of two passes, a reward command, token scores.
sed 's/^run:/  vp: {op: prompts, file: $data, batch: 5, max_tokens: 8, template: "{question}", every: 1}\n  vr: {op: generate, model: actor, prompts: vp, samples: 1, temperature: 0, max_tokens: 6, every: 1}\n  vs: {op: reward, of: vr, answer: vp.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}, every: 1}\n&/;
    s/^  rollout: /  raw: /; s/of: rollout/of: kept/; s/op: compute, expr: reward + 0.1 \* rollout/op: compute, of: kept, expr: reward + 0.1 * raw/; s/^  reward:  {op: reward, of: kept/  reward:  {op: reward, of: raw/
    s/^  old_logprob:/  kept: {op: select, of: raw, groups: "group_std(reward) > 0", refill: {until: 8, rounds: 6, short: keep}}\n&/' grpo.yaml >refill.yaml
cat >answer.sh <<'END'
while read -r line; do
    id=$(echo "$line" | sed -nE 's/.*"id": *([0-9]+).*/\1/p')
    echo "{\"id\": $id, \"score\": $((id % 3))}"
done
END
sed 's/rule: {extract[^}]*}/command: "sh answer.sh", workers: 2/' grpo.yaml >command.yaml
sed 's/      token_mean(pg + beta \* kl)/      token_mean(where(choose(logprob < 0, 9), 0, pg + beta * kl))/' grpo.yaml >choose.yaml
has choose.yaml choose
ppo_graph ppo.yaml
classifier judge model
for graph in refill command $([ "$slow" = 0 ] || echo choose ppo); do # of those two: grads.sh
    status 0 "$gr" exec $graph.yaml --steps 2 --out $graph-1
    status 0 "$gr" exec $graph.yaml --steps 2 --out $graph-2 --ranks 2 --check-memory
    close $graph-1 $graph-2 1
    close $graph-1 $graph-2 2 1e-3
    lacks err warning
done
[ "$(metric refill-2 1 kept.rounds)" -gt 1 ] || fail "nothing was drawn again"
[ -n "$(metric refill-2 1 'val\.vs')" ] || fail "nothing was validated"

# A run of 4 ranks, gone on with by 2, by 1 and by 4, in one directory: each rank wrote its shards of one file.
status 0 "$gr" exec grpo.yaml "$@" --ranks 4 --steps 2 --out moving
for n in 2 1 4; do
    s=$((s_last = ${s_last:-2} + 1))
    status 0 "$gr" exec --resume moving --ranks $n --steps $s
    has err 'warning: .*its bits may differ'
    [ "$(grep -c warning err)" = 1 ] || fail "$n ranks warn more than once"
done
status 0 "$gr" exec grpo.yaml "$@" --steps 5 --out still
close still moving 3 1e-3
[ "$(grep -c '"step"' moving/metrics.jsonl)" = 5 ] || fail "a line for each step, from one rank"
ls moving/checkpoints/step-5/actor >files
[ "$(tr '\n' ' ' <files)" = "config.json model.safetensors optimizer.safetensors tokenizer_config.json " ] || fail "$(cat files)"

# The same ranks, without being told, and the same bits.
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 4 --out calm
status 0 "$gr" exec grpo.yaml "$@" --ranks 2 --steps 2 --out stopped
status 0 "$gr" exec --resume stopped --steps 4
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights calm stopped
same_metrics calm stopped
cmp calm/samples.jsonl stopped/samples.jsonl

# Back to an earlier iteration, and what was behind it is kept.
cp -r calm back
status 0 "$gr" exec --resume back@2 --steps 4
same_weights calm back
same_metrics calm back
same_weights calm back/aside-2 3

# Under mpirun ranks find themselves; what does not fit together is said once.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpi="mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
# shellcheck disable=SC2086
status 0 $mpi -n 2 "$gr" exec grpo.yaml "$@" --steps 4 --out outside
same_weights calm outside
# shellcheck disable=SC2086
status 2 $mpi -n 2 "$gr" exec grpo.yaml --ranks 4 --out never
has err -- '--ranks 4, but 2 were started'
# shellcheck disable=SC2086
status 2 $mpi -n 1 "$gr" exec grpo.yaml --out never : -n 1 "$gr" exec grpo.yaml --set lr=0.5 --out never
has err 'rank 1 on host .* has another plan \([0-9a-f]{16}\) than rank 0'
[ "$(grep -c 'error: ' err)" = 1 ] || fail "one rank speaks: $(cat err)"
status 2 "$gr" exec grpo.yaml --ranks 2 --set batch=x --out never
[ "$(grep -c 'error: ' err)" = 1 ] || fail "one rank speaks: $(cat err)"
status 2 "$gr" exec grpo.yaml --ranks 2x2 --out never
has err 'of several hosts, --hosts, mpirun or srun starts them'
status 3 "$gr" exec grpo.yaml --ranks 2 --budget 4KiB --out never
[ "$(grep -c 'error: ' err)" = 1 ] || fail "one rank speaks: $(cat err)"
[ ! -e never ] || fail "a run directory of nothing"
mkdir -p nothing
PATH=$work/nothing status 1 "$gr" exec grpo.yaml --ranks 2 --out never
has err 'mpirun, which is not in PATH'

# With lag, each rank has the whole older copy, filled from shards or from whole weights.
sed 's/^  rollout: {/  rollout: {lag: 1, /' grpo.yaml >lag.yaml
status 0 "$gr" exec lag.yaml --steps 3 --out lag-one
for keep in auto keep; do
    status 0 "$gr" exec lag.yaml --ranks 2 --set models.actor.residency.rollout_weights=$keep --steps 2 --out lag-$keep
    status 0 "$gr" exec --resume lag-$keep --steps 3
done
same_weights lag-auto lag-keep
close lag-one lag-auto 1
