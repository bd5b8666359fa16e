#!/bin/sh
# A run that trains nothing any more says so and ends, and its newest healthy checkpoint stays; one bad byte of the
# history takes no other lines along.
. "$(dirname "$0")/lib.sh"

steps() { ls "$1/checkpoints" | sed -nE 's/^step-([0-9]+)$/\1/p' | sort -n | tr '\n' ' '; }

# A state that becomes infinite, and with it the loss: from iteration 4 on all eight optimizer steps are skipped.
sed 's/^state:.*/state: {beta: {init: 1.0e-300, next: "where(step >= 3, beta * 1e300 * 1e300 * 1e300, beta)"}}/' grpo.yaml >inf.yaml
status 1 "$gr" exec inf.yaml --steps 100 --set run.checkpoint='{every: 1, keep: 2}' --out run
has out "^warning: step 4: state 'beta' is not finite"
has out "warning: step 4: the gradients of 'update' are not finite"
has err "error: the run has diverged in iteration 8: the last 20 optimizer steps of 'update' were skipped, because its gradients are not finite"
has err 'note: the newest checkpoint whose values are all finite is that of iteration 2: graphrun exec --resume run@2 goes on from it'
[ "$(steps run)" = "2 7 8 " ] || fail "kept $(steps run)"
[ "$(metric run 8 skipped_in_a_row)" = 20 ] || fail "of 20 steps that were skipped in a row metrics say $(metric run 8 skipped_in_a_row)"
[ "$(wc -l <run/metrics.jsonl)" = 8 ] || fail "the iterations of a run that diverged are not all there"

# What it went on from counts, also over a resume; 0 never ends it, and the healthy checkpoint stays all the same.
status 1 "$gr" exec --resume run@7 --steps 100
has err 'diverged in iteration 8'
status 0 "$gr" exec inf.yaml --steps 30 --set run.stop_after_skipped=0 --set run.checkpoint='{every: 1, keep: 1}' --out never
[ "$(steps never)" = "2 30 " ] || fail "kept $(steps never)"
status 0 "$gr" exec --resume never@2 --steps 3 --set state.beta.next=beta
[ "$(metric never 3 skipped_in_a_row)" = 0 ] || fail "a run that was mended does not train"

# A state that nobody's loss reads ends a run as well.
sed 's/beta \* kl)/0.01 * kl)/; s/^state:.*/state: {beta: {init: 1, next: "where(step >= 2, beta * 1e300 * 1e300, beta)"}}/' grpo.yaml >unread.yaml
status 1 "$gr" exec unread.yaml --steps 100 --set run.stop_after_skipped=5 --out unread
has err "diverged in iteration 7: state 'beta' has not been finite for 5 iterations"

# Bits of the run are those of one that says nothing about it.
status 0 "$gr" exec grpo.yaml --steps 2 --out said --set run.stop_after_skipped=3 --set run.timeout=7
status 0 "$gr" exec grpo.yaml --steps 2 --out unsaid
[ "$(sed -nE 's/.*numerics": "([^"]*)".*/\1/p' said/plan.json)" = "$(sed -nE 's/.*numerics": "([^"]*)".*/\1/p' unsaid/plan.json)" ] ||
    fail "what ends a run changes its numerics hash"

# ---- history
status 0 "$gr" exec grpo.yaml --steps 4 --out whole
for f in metrics samples; do
    cp -r whole bad
    cp "bad/$f.jsonl" before
    printf 'X' | dd of="bad/$f.jsonl" bs=1 seek=2 conv=notrunc status=none
    status 0 "$gr" exec --resume bad --steps 6
    has err "^bad/$f.jsonl:1:1: warning: 1 line is damaged or out of order, this the first: kept as found"
    [ "$(head -n "$(wc -l <before)" "bad/$f.jsonl" | tail -n +2)" = "$(tail -n +2 before)" ] || fail "$f lost lines"
    [ "$(grep -c '"step": [56]' "bad/$f.jsonl")" -ge 2 ] || fail "$f did not go on"
    rm -rf bad
done
