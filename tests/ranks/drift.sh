#!/bin/sh
# Ranks that drift apart: a bit changes in the memory of one, in weights that others hold alike. It is named, with its host and
# what differs, at the next iteration that compares; the run ends, and keeps nothing of that iteration. Comparing changes no bit.
# usage: drift.sh GRAPHRUN FLIP
flip=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
sed -i 's/schedule: cosine/schedule: constant/' grpo.yaml

# ranks HxD COMMAND...: by so many, in nodes
ranks() {
    shape=$1
    shift
    mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n $((${shape%x*} * ${shape#*x})) "$@" --ranks "$shape"
}

entry() { # PLAN WHAT KEY: of its copy on the device
    tr '{' '\n' <"$1" | grep "\"what\": \"$2\"" | grep '"place": "device"' | sed -nE "s/.*\"$3\": ([0-9]+).*/\1/p" | head -1
}

# drifts RANK OBJECT TIMES HxD EVERY SETTING...: in a run of so many ranks that compares every so many iterations
drifts() {
    rank=$1 object=$2 times=$3 shape=$4 every=$5
    shift 5
    rm -rf run
    settings="--set run.check=$every --set run.steps=100000 --set run.checkpoint.every=$every --set run.checkpoint.keep=3"
    for s in "$@"; do settings="$settings --set $s"; done
    # shellcheck disable=SC2086
    status 0 "$gr" plan grpo.yaml --ranks "$shape" $settings --format json -o plan.json
    at=$(entry plan.json "$object" offset)
    [ -n "$at" ] || fail "no copy of $object on the device"
    # shellcheck disable=SC2086
    status 1 ranks "$shape" env LD_PRELOAD="$flip" FLIP_RANK="$rank" FLIP_BYTES="$(json_number plan.json arena_bytes)" \
        FLIP_AT=$((at + 40)) FLIP_TIMES="$times" FLIP_WHEN="$work/run/metrics.jsonl" "$gr" exec grpo.yaml $settings --out run
    named=$(sed -nE 's/.*error: iteration ([0-9]+): rank .*/\1/p' err | head -1)
    [ -n "$named" ] || { cat err >&2; fail "no iteration is named"; }
    [ $((named % every)) = 0 ] || fail "iteration $named compares, every $every do"
    kept=$(wc -l <run/metrics.jsonl)
    [ "$kept" = $((named - 1)) ] || fail "$kept lines of metrics, and iteration $named is not to be kept"
    [ "$(ls run/checkpoints 2>/dev/null | grep -c "step-$named\$")" = 0 ] || fail "there is a checkpoint of iteration $named"
}

# The frozen reference, whole on each rank; once, in the middle of the run.
drifts 1 ref.params.1 1 1x3 4
has err "error: iteration $named: rank 1 on host [^ ]+ has drifted: its ref.params.1 is not that of 2 other ranks, of which rank 0 on host"
drifts 0 ref.params.2 1 1x3 1
has err "error: iteration $named: rank 0 on host [^ ]+ has drifted: its ref.params.2 is not that of 2 other ranks, of which rank 1 on host"
# Of two nobody knows which.
drifts 1 ref.params.0 1 1x2 2
has err "error: iteration $named: rank 1 on host [^ ]+ and rank 0 on host [^ ]+ have drifted apart: ref.params.0, which they hold alike, is another on each"
status 0 ranks 1x2 "$gr" exec --resume run --steps $((named + 1)) # and the last checkpoint is sound
# Trained weights, which each optimizer step gathers anew: compared as they have been used.
drifts 2 actor.params.1 100000 1x3 2
has err "rank 2 on host [^ ]+ has drifted: its actor.params.1 is not that of 2 other ranks"
# The rollout's copy of weights that are cut over all ranks.
drifts 1 actor.rollout.1 100000 1x3 1 models.actor.residency.rollout_weights=keep
has err "rank 1 on host [^ ]+ has drifted: its actor.rollout.1 is not that of 2 other ranks"
# Shards, of which each node has a replica: two of four hold the same. A flip before the rollout's copy is gathered reaches
# both ranks of the node in that copy, which is then another one than rank 0's.
drifts 3 actor.params.1 100000 2x2 1 models.actor.shard=node models.actor.residency.rollout_weights=keep
has err "rank 3 on host [^ ]+ and rank [01] on host [^ ]+ have drifted apart: actor.(params|rollout).1|rank 3 on host [^ ]+ has drifted: its actor.rollout.1"

# Not compared, it is not noticed: it is this that notices.
status 0 "$gr" plan grpo.yaml --ranks 2 --set run.check=0 --format json -o plan.json
status 0 ranks 1x2 env LD_PRELOAD="$flip" FLIP_RANK=1 FLIP_BYTES="$(json_number plan.json arena_bytes)" FLIP_TIMES=1 \
    FLIP_AT=$(($(entry plan.json ref.params.1 offset) + 40)) FLIP_WHEN="$work/blind/metrics.jsonl" \
    "$gr" exec grpo.yaml --set run.check=0 --set run.steps=60 --out blind
lacks err drifted

# No bit of a result changes, nothing is said, whatever is sharded, and poison finds no work out of bounds.
for way in "" "--set models.actor.residency.rollout_weights=keep" "--set models.actor.residency.optimizer=host"; do
    case $slow$way in 0*optimizer*) continue ;; esac
    rm -rf on off
    # shellcheck disable=SC2086
    status 0 ranks 1x2 "$gr" exec grpo.yaml $way --set run.check=1 --out on --check-memory
    [ ! -s err ] || fail "comparing says: $(cat err)"
    # shellcheck disable=SC2086
    status 0 ranks 1x2 "$gr" exec grpo.yaml $way --set run.check=0 --out off
    same_weights on off
    same_metrics on off
done

# What a GPU leaves of it is counted, 1 KiB for each bucket of both models, and only where there is somebody to compare with.
host() { # RANKS EVERY: the plan's bytes of the host pool
    status 0 "$gr" plan grpo.yaml --device cuda --hardware h200 --ranks "$1" --set run.check="$2" --format json -o gpu.json
    status 0 "$gr" verify gpu.json
    json_number gpu.json host_peak_bytes
}
[ "$(host 1 100)" = "$(host 1 0)" ] || fail "one rank has nothing to compare"
[ "$(host 2 100)" = $(($(host 2 0) + 2 * 4 * 1024)) ] || fail "$(host 2 0) bytes without and $(host 2 100) with"
