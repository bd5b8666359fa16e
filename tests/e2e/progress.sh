#!/bin/sh
# On a terminal an iteration that takes long says how far it is, in the line of the one before; elsewhere a run prints a line an
# iteration, as ever.
. "$(dirname "$0")/lib.sh"
command -v script >/dev/null || { echo "skipped: there is no script(1) to make a terminal" >&2; exit 77; }

# A fast machine needs more of it for a line to be due.
for samples in 96 192 768 3072; do
    sed "s/samples: 4/samples: $samples, ignore_eos: true, concurrent: 2/; s/max_tokens: 6/max_tokens: 40/; s/epochs: 2/epochs: 1/" grpo.yaml |
        sed 's/batch: 8/batch: 64/; s/mini_batch: 4/mini_batch: 32/' >long.yaml
    rm -rf shown
    script -qec "stty cols 150; $gr exec long.yaml --steps 2 --out shown" typed >/dev/null 2>&1 </dev/null
    tr '\r' '\n' <typed >lines
    [ "$(grep -c '^step 1/2  rollout [0-9]' lines)" -lt 2 ] || [ "$(grep -c '^step 1/2  update [0-9]' lines)" -lt 2 ] || break
done
has lines "^step 1/2  rollout [0-9]+/$((samples * 64 * 40)) tokens  [0-9]+s *\$"
has lines "^step 1/2  update [0-9]+/$((samples * 64)) sequences  [0-9ms]+ *\$"
has lines '^step 1/2  reward [0-9.]+  loss .* left  \| 2: (rollout|update) [0-9]+/[0-9]+ [a-z]+  [0-9ms]+ *$'
[ "$(grep -c '^step 2/2  reward' lines)" = 1 ] || fail "the last line: $(cat lines)"
# How far it is only grows.
for node in rollout update; do
    sed -nE "s/^step 1\/2  $node ([0-9]+)\/.*/\1/p" lines >far
    sort -n far | cmp - far || fail "$node goes back: $(tr '\n' ' ' <far)"
    [ "$(head -n 1 far)" -lt "$(tail -n 1 far)" ] || fail "$node does not go on: $(tr '\n' ' ' <far)"
done

status 0 "$gr" exec grpo.yaml --steps 1 --out plain
[ "$(grep -c '^step' out)" = 1 ] || fail "more than a line an iteration: $(cat out)"
lacks out '(rollout|update) [0-9]'
