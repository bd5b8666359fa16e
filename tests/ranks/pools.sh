#!/bin/sh
# Ranks in classes: a split graph has the bits of the colocated one where as many ranks do each piece of work, else its
# numbers up to rounding; training and a lagging rollout are at work at once; runs go on across placements; a rank that
# dies ends all. With GR_SLOW=1, 50 points instead of 2, and more placements.
. "$(dirname "$0")/lib.sh"

# alike RUN RUN STEPS: the same bits: weights, optimizer, metrics, samples
alike() {
    same_weights "$1" "$2"
    k=1
    while [ $k -le "$3" ]; do
        close "$1" "$2" $k 0
        k=$((k + 1))
    done
    cmp "$1/samples.jsonl" "$2/samples.jsonl" || fail "samples of $1 and $2 differ"
}
pools() { # FILE GRAPH POOLS: the graph with its actor, rollout and reference on pools
    cat >"$1" <<END
graph: tiny
use: $2
params: {lag: 0}
pools: {$3}
models: {actor: {pool: train, train: {schedule: constant}}, ref: {pool: reference}}
nodes: {rollout: {pool: rollout, lag: \$lag}}
END
}
pools colocated.yaml grpo.yaml "train: {share: 1}, rollout: {with: train}, reference: {with: train}"
pools split.yaml grpo.yaml "train: {share: 1}, rollout: {share: 1}, reference: {with: rollout}"
pools first.yaml grpo.yaml "rollout: {share: 1}, train: {share: 1}, reference: {with: train}"
pools three.yaml grpo.yaml "train: {share: 1}, rollout: {share: 1}, reference: {share: 1}"

# One rank a class: what one rank computes, whoever is rank 0, with and without lag, also under a watch over memory.
for lag in 0 1; do
    status 0 "$gr" exec colocated.yaml --set lag=$lag --steps 4 --out one-$lag
    status 0 "$gr" exec split.yaml --set lag=$lag --ranks 2 --steps 4 --out split-$lag
    alike one-$lag split-$lag 4
done
cmp one-1/checkpoints/step-4/actor/lagged.safetensors split-1/checkpoints/step-4/actor/lagged.safetensors
status 0 "$gr" exec first.yaml --set lag=1 --ranks 2 --steps 4 --out first --check-memory
alike one-1 first 4
status 0 "$gr" exec three.yaml --ranks 3 --steps 4 --out three
has out '^peak of ranks 0 \(train\): planned .* measured'
has out '^peak of ranks 2 \(reference\): planned .* measured'
alike one-0 three 4
has split-1/plan.json '"kind": "send"'
status 0 "$gr" report three
has out 'ranks 1 .*planned .*measured'
for key in planned measured; do
    metric three 4 ${key}_peak_bytes | grep -q '^[1-9]' || fail "no ${key}_peak_bytes"
    metric three 4 ${key}_peak_bytes.2 | grep -q '^[1-9]' || fail "no ${key}_peak_bytes of a class"
done
status 0 "$gr" verify split-1/plan.json
status 0 "$gr" diff one-1/plan.json split-1/plan.json
status 0 "$gr" exec split.yaml --set lag=1 --ranks 2 --plan split-1/plan.json --steps 4 --out again
alike split-1 again 4
status 0 "$gr" export split-1 -o exported
cmp exported/model.safetensors split-1/checkpoints/step-4/actor/model.safetensors

# Several ranks a class: weights cross in parts, from whole copies or from shards, a class of two to one of one and of
# two, and one of one to two.
points=2
places="4,0 3,1"
[ "$slow" = 0 ] || { points=50; places="4,0 4,1 3,0 3,1 5,1"; }
for place in $places; do
    ranks=${place%,*} lag=${place#*,}
    set -- --set lag=$lag --set run.checkpoint.every=1
    rm -rf one
    status 0 "$gr" exec colocated.yaml "$@" --out one --steps $points
    each_step one $points 1e-5 "$gr" exec split.yaml "$@" --ranks "$ranks"
done
status 0 "$gr" exec split.yaml --set lag=1 --ranks 4 --steps 3 --out whole
status 0 "$gr" exec split.yaml --set lag=1 --ranks 4 --steps 3 --out shards --check-memory \
    --set models.actor.residency.rollout_weights=keep
alike whole shards 3

# Across placements: two ranks apart, one, two apart the other way round: the bits of a run that stayed on one.
status 0 "$gr" exec split.yaml --set lag=1 --ranks 2 --steps 2 --out moving
status 0 "$gr" exec colocated.yaml --set lag=1 --resume moving --ranks 1 --steps 3
status 0 "$gr" exec first.yaml --set lag=1 --resume moving --ranks 2 --steps 4
alike one-1 moving 4
if [ "$slow" = 1 ]; then
    status 0 "$gr" exec split.yaml --set lag=1 --ranks 2 --steps 2 --out halves
    status 0 "$gr" exec --resume halves --steps 4 # with its own ranks and pools, untold
    [ ! -s err ] || fail "resuming warns: $(cat err)"
    alike one-1 halves 4
fi

# A critic and a judge of their own, an update that is left out at first, validations, the best checkpoint by them.
ppo_graph ppo.yaml
classifier judge model
cat >four.yaml <<'END'
graph: four
use: ppo.yaml
pools: {train: {share: 1}, rollout: {share: 1, models: 1}, critic: {share: 1}, judge: {share: 1}, ref: {with: train}}
models: {actor: {pool: train}, critic: {pool: critic}, judge: {pool: judge}, ref: {pool: ref}}
nodes:
  rollout: {pool: rollout}
  check_prompts: {op: prompts, file: $data, batch: 4, max_tokens: 8, template: "{question}", every: 2, before: true}
  check: {op: generate, model: actor, prompts: check_prompts, temperature: 0, max_tokens: 6, pool: rollout}
  solved: {op: score, model: judge, of: check}
run: {checkpoint: {best: val.solved, every: 3}}
END
status 0 "$gr" exec four.yaml --steps 5 --out ppo-one
status 0 "$gr" exec four.yaml --ranks 4 --steps 5 --out ppo-four
alike ppo-one ppo-four 5
close ppo-one ppo-four 0 0
cmp ppo-one/checkpoints/step-5/critic/model.safetensors ppo-four/checkpoints/step-5/critic/model.safetensors
cmp ppo-one/checkpoints/step-5/critic/optimizer.safetensors ppo-four/checkpoints/step-5/critic/optimizer.safetensors
cmp ppo-one/checkpoints/step-5/state.json ppo-four/checkpoints/step-5/state.json >/dev/null || sed '/numerics/d' ppo-one/checkpoints/step-5/state.json |
    diff - ppo-four/checkpoints/step-5/state.json | grep '^[<>]' | grep -v numerics && fail "state.json differs"
[ "$(ls ppo-one/checkpoints)" = "$(ls ppo-four/checkpoints)" ] || fail "checkpoints are of other steps"
[ "$(readlink ppo-one/checkpoints/best)" = "$(readlink ppo-four/checkpoints/best)" ] || fail "another one is the best"

# A selection that draws anew until it has enough, beside the rollout, groups drawn from it, and of these some tokens; and an
# expression that reads the epoch.
sed 's/^  rollout: {/  raw: {pool: rollout, /; s/of: rollout/of: kept/; s/expr: reward + 0.1 \* rollout/of: kept, expr: reward + 0.01 * epoch + 0.1 * raw/; s/^  reward:  {op: reward, of: kept/  reward:  {op: reward, of: raw/
     s/^  old_logprob/  full: {op: select, of: raw, groups: "group_std(reward) > 0", refill: {until: 8, rounds: 6, short: keep}}\n  drawn: {op: select, of: full, resample: group_mean(reward)}\n  kept: {op: select, of: drawn, tokens: raw.logprob < -1}\n&/
     s/^models:/pools: {train: {share: 1}, rollout: {share: 1}}\n&/; s/{checkpoint: $model, train/{pool: train, checkpoint: $model, train/' grpo.yaml >select.yaml
"$gr" check select.yaml >out 2>&1 || { cat out; fail "select.yaml"; }
status 0 "$gr" exec select.yaml --steps 5 --out select-one
status 0 "$gr" exec select.yaml --ranks 2 --steps 5 --out select-two
alike select-one select-two 5
[ "$(metric select-two 1 full.rounds)" -gt 1 ] || fail "nothing was drawn again"
[ "$(metric select-two 1 drawn.distinct)" -gt 1 ] && [ "$(metric select-two 1 kept.tokens)" -gt 1 ] || fail "nothing was selected"

# Rewards by a command on a pool of its own. And proof that a lagging rollout and training are at work at once: on the
# training's ranks, a reward of each iteration but the last waits until the rollout of the next one has been scored.
cat >gate.sh <<'END'
n=0
while read -r line; do
    id=${line#*\"id\":}
    n=$((n + 1))
    if [ "$1" = waits ]; then
        want=$((n / 32 * 32 + 32)) # 8 prompts of 4 responses
        [ $((n % 32)) -ne 0 ] || want=$((n + 32))
        i=0
        while [ $want -le "$2" ] && [ "$(wc -l <scored)" -lt $want ]; do
            i=$((i + 1))
            [ $i -lt 1000 ] || exit 1
            sleep 0.02
        done
    else
        echo x >>scored
    fi
    printf '{"id": %d, "score": %d}\n' "${id%%[,\}]*}" $((n % 3))
done
END
sed "s/^  reward: .*/  reward: {op: reward, of: rollout, command: \"sh gate.sh goes\", pool: rollout}\n  gate: {op: reward, of: rollout, command: \"sh gate.sh waits 96\", pool: train, timeout: 30, metrics: {mean: batch_mean(gate)}}/; s/^  score: .*/  score: {op: compute, expr: reward + gate}/; /^state:/d; s/beta \* kl/0.01 * kl/; /kl_now/d" grpo.yaml >base.yaml
pools gate.yaml base.yaml "train: {share: 1}, rollout: {share: 1}, reference: {with: rollout}"
: >scored
status 0 "$gr" exec gate.yaml --set lag=1 --ranks 2 --steps 3 --set run.steps=3 --out gate
[ "$(wc -l <scored)" = 96 ] || fail "$(wc -l <scored) responses were scored, not 96: on ranks that do not run the node"

# A rank that dies in either class ends all with one message, and the run goes on to the same bits.
cat >kill.sh <<'END'
n=0
while read -r line; do
    id=${line#*\"id\":}
    n=$((n + 1))
    if [ $n = 75 ] && [ ! -e killed ]; then
        : >killed
        kill -9 "$(sed 's/.*) . \([0-9]*\) .*/\1/' /proc/$PPID/stat)" # the rank: its guard is between
    fi
    printf '{"id": %d, "score": %d}\n' "${id%%[,\}]*}" $((${id%%[,\}]*} % 3))
done
END
for pool in rollout train; do
    [ "$slow" = 1 ] || [ $pool = train ] || continue # of rank 0; others: kill.sh
    sed "s/^  reward: .*/  reward: {op: reward, of: rollout, command: \"exec sh kill.sh\", pool: $pool}/" grpo.yaml >base.yaml
    pools kill.yaml base.yaml "train: {share: 1}, rollout: {share: 1}, reference: {with: train}"
    set -- --set lag=1 --set run.checkpoint.every=1
    : >killed
    status 0 "$gr" exec kill.yaml "$@" --ranks 2 --steps 4 --out calm-$pool
    rm killed
    status 1 "$gr" exec kill.yaml "$@" --ranks 2 --steps 4 --out hit-$pool
    rank=$([ $pool = train ] && echo 0 || echo 1)
    has err "error: rank $rank on host $(uname -n) ended by signal 9 \(Killed\) in iteration 3, step '[a-z_.0-9]+': all ranks are ended"
    [ "$(grep -c . err)" = 1 ] || fail "more than one message: $(cat err)"
    for f in hit-$pool/checkpoints/step-*; do [ -s "$f/state.json" ] || fail "$f is half a checkpoint"; done
    status 0 "$gr" exec --resume hit-$pool --ranks 2
    alike calm-$pool hit-$pool 4
done

# Asked to end, all classes end behind the same iteration, and save.
"$gr" exec split.yaml --set lag=1 --set run.steps=100000 --ranks 2 --out asked >out 2>err &
pid=$!
while [ ! -s asked/metrics.jsonl ]; do sleep 0.1; kill -0 $pid || fail "$(cat err)"; done
kill -TERM $pid
got=0
wait $pid || got=$?
[ $got = 0 ] || { cat out err >&2; fail "exit status $got of a run that was asked to end"; }
[ "$(last_step asked)" = "$(grep -c '"step"' asked/metrics.jsonl)" ] || fail "no checkpoint of the last iteration"
