#!/bin/sh
# Several ranks end a run that trains nothing any more together: those that train with sharded state, and roles of ranks of
# which one is an iteration ahead. Their newest healthy checkpoint is named, and goes on.
. "$(dirname "$0")/lib.sh"

sed 's/^state:.*/state: {beta: {init: 1.0e-300, next: "where(step >= 3, beta * 1e300 * 1e300 * 1e300, beta)"}}/' grpo.yaml >inf.yaml
cat >split.yaml <<'END'
graph: split
use: inf.yaml
pools: {train: {share: 1}, rollout: {share: 1}, reference: {with: rollout}}
models: {actor: {pool: train, train: {schedule: constant}}, ref: {pool: reference}}
nodes: {rollout: {pool: rollout, lag: 1}}
END
for g in inf split; do
    status 1 "$gr" exec $g.yaml --ranks 2 --steps 100 --set run.checkpoint='{every: 1, keep: 2}' --out $g
    has err "error: .*the run has diverged in iteration [89]: the last [0-9]+ optimizer steps of 'update' were skipped"
    has err "note: .*the newest checkpoint whose values are all finite is that of iteration 2: graphrun exec --resume $g@2"
    [ "$(grep -c 'has diverged' err)" = 1 ] || { cat err >&2; fail "more than one rank says so"; }
    status 0 "$gr" exec --resume $g@2 --steps 3 --set state.beta.next=beta
    [ "$(metric $g 3 skipped_in_a_row)" = 0 ] || fail "$g does not go on from iteration 2"
done
