#!/bin/sh
. "$(dirname "$0")/lib.sh"
status 0 env GR_COUNTS="$work/counts" "$GR_COUNTED" exec grpo.yaml --out one --steps 6
cat counts
if runs_ranks; then
status 0 env GR_COUNTS="$work/two" "$GR_COUNTED" exec grpo.yaml --out two --steps 6 --ranks 2
cat two.0 two.1
fi
