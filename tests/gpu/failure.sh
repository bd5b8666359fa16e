#!/bin/sh
# A device that is lost in the middle of a run: status 1, one message, and the run goes on from its last checkpoint to
# the bits of an undisturbed one.
got=0
"$GR_GPU_FAILURE" >/dev/null 2>&1 || got=$?
[ "$got" != 77 ] || { echo "no CUDA device: skipped"; exit 77; }
. "$(dirname "$0")/../e2e/lib.sh"

every="run.checkpoint.every=2"
status 0 "$gr" exec --device cuda grpo.yaml --set $every --out whole
status 1 "$GR_GPU_FAILURE" grpo.yaml lost $every
[ "$(grep -c error: err)" = 1 ] || { cat err >&2; fail "not one message"; }
has err "error: step '[a-z_.0-9]+', op [a-z]+: .*cudaErrorIllegalAddress"
[ "$(last_step lost)" = 2 ] || fail "the last checkpoint is of step $(last_step lost)"
[ -s lost/checkpoints/step-2/state.json ] || fail "it is not whole"
status 0 "$gr" exec --device cuda --resume lost
[ "$(last_step lost)" = 6 ] || fail "the run did not go on"
same_weights whole lost

# A plan that counts on less than context and libraries take is refused before its first iteration.
sed 's/"device": "cpu"/"device": "cuda"/' "$project/tests/golden/hardware.json" >small.json
status 3 "$gr" exec --device cuda grpo.yaml --hardware small.json --out small
has err 'error: [0-9.]+ [MG]iB of the device are in use beside the arena, the plan counts 4.00 MiB'
lacks small/metrics.jsonl step
