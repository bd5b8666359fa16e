#!/bin/sh
# A last checkpoint that is damaged is not passed over: the message says which earlier one is whole, and --resume RUN@STEP goes
# on from that, to the bits of an undisturbed run, and keeps what was behind it.
. "$(dirname "$0")/lib.sh"

set -- --set models.actor.train.schedule=constant --set run.checkpoint.every=2
cut() { # FILE: as a copy that was broken off leaves it
    truncate -s $(($(stat -c %s "$1") - 4)) "$1"
}

status 0 "$gr" exec grpo.yaml "$@" --steps 8 --out whole
status 0 "$gr" exec grpo.yaml "$@" --steps 6 --out run
cp -r run again
cp -r run untouched

cut run/checkpoints/step-6/actor/model.safetensors
cp -r run before
refused "^run/checkpoints/step-6/actor/model.safetensors: error: " "$gr" exec --resume run --steps 8
has err 'note: the checkpoint of iteration 6 is damaged; that of 4 is whole: graphrun exec --resume run@4 goes on'
diff -r -x .lock -x trace.json -x 'events*' before run || fail "a run that could not go on was changed"
cut run/checkpoints/step-4/actor/optimizer.safetensors
refused "error: " "$gr" exec --resume run --steps 8
has err 'that of 2 is whole: graphrun exec --resume run@2 goes on'
refused "error: " "$gr" exec --resume run@4 --steps 8
has err 'the checkpoint of iteration 4 is damaged; that of 2 is whole'
[ ! -e run/aside-4 ] || fail "what is behind a checkpoint was set aside for one that is damaged"
status 0 "$gr" exec --resume run@2 --steps 8
has out '^going back to iteration 2: what was behind it is kept in run/aside-2, a run directory'
same_weights whole run
same_metrics whole run
cmp whole/samples.jsonl run/samples.jsonl

# What was behind it is a run: as it was, to report, to export, and to go on with.
status 0 "$gr" exec --resume again@2 --steps 3
cmp untouched/metrics.jsonl again/aside-2/metrics.jsonl
cmp untouched/samples.jsonl again/aside-2/samples.jsonl
[ "$(last_step again)" = 3 ] || fail "there are later checkpoints than that of iteration 3"
[ "$(grep -c '"step"' again/metrics.jsonl)" = 3 ] || fail "there are later lines than that of iteration 3"
same_weights untouched again/aside-2 6
status 0 "$gr" report again/aside-2
status 0 "$gr" export again/aside-2@4 -o exported
status 0 "$gr" exec --resume again/aside-2 --steps 8
same_weights whole again/aside-2
status 0 "$gr" exec --resume again@2 --steps 8 # once more
[ -d again/aside-2-2/checkpoints/step-3 ] || fail "what came after iteration 2 the second time is lost"
same_weights whole again
same_metrics whole again

# From the last one nothing is set aside; one that is not there is said with those that are.
status 0 "$gr" exec --resume again@8 --steps 9
[ ! -e again/aside-8 ] || fail "nothing was behind the last one"
refused 'no checkpoint of step 5 in its folder .checkpoints.; it has 2 4 6' "$gr" exec --resume untouched@5
refused 'no checkpoint called best' "$gr" exec --resume untouched@best

# Of one alone, and by its state.
status 0 "$gr" exec grpo.yaml "$@" --steps 2 --out one
rm one/checkpoints/step-2/state.json
refused 'state.json' "$gr" exec --resume one --steps 4
has err 'note: the checkpoint of iteration 2 is damaged, and none before it is whole'
# What is no damage is not called so.
refused 'has seed 7' "$gr" exec grpo.yaml --resume untouched --set run.seed=8
lacks err damaged
