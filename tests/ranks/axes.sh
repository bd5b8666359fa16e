#!/bin/sh
# A rank dies, whatever the mesh: all are gone within a minute, one message names it, the run goes on to the bits of an undisturbed one,
# and on another mesh, of as many ranks or fewer, to nearly the same weights. Stages alone; with GR_SLOW=1 every axis on four ranks, alone
# and in pairs.
. "$(dirname "$0")/lib.sh"
models_to_cut

killed_ranks=2
[ "$slow" = 0 ] || killed_ranks=4

# dies MODEL OTHER KEYS...: with these keys of models.actor; then with OTHER, RANKS:KEY=VALUE[,KEY=VALUE]
dies() {
    type=$1 other=$2
    shift 2
    keys=
    for key in "$@"; do keys="$keys --set models.actor.$key"; done
    common="--set model=$type --set models.actor.train.schedule=constant"
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml $common $keys --ranks $killed_ranks --set run.checkpoint.every=1 --steps 4 --out calm
    # shellcheck disable=SC2086
    kill_a_rank struck $common $keys
    point struck 2 moved
    status 0 "$gr" exec --resume struck@2 --steps 4
    same_weights calm struck 4
    keys=
    for key in $(echo "${other#*:}" | tr ',' ' '); do keys="$keys --set models.actor.$key"; done
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml $common $keys --ranks "${other%%:*}" --set run.checkpoint.every=1 --resume moved --replan --steps 3
    close calm moved 3 1e-3
    rm -r calm struck moved
}

dies qwen3 2:parallel.tensor=2 parallel.pipeline=2
[ "$slow" = 1 ] || exit 0
dies qwen3 2:shard=all shard=all
dies qwen3 2:parallel.context=2 parallel.tensor=4
dies qwen3 2:parallel.pipeline=2 parallel.context=4
dies qwen3_moe 2:parallel.expert=2 parallel.expert=4
dies qwen3 4:parallel.context=2,parallel.tensor=2 parallel.tensor=2 parallel.pipeline=2
dies qwen3 2:parallel.tensor=2 parallel.tensor=2 parallel.context=2
dies qwen3 1:shard=all parallel.context=2 parallel.pipeline=2
dies qwen3_moe 4:parallel.tensor=2,parallel.expert=4 parallel.context=2 parallel.expert=4
dies qwen3_moe 2:parallel.expert=2 parallel.tensor=2 parallel.expert=2
