#!/bin/sh
# Every command: exit status, and what goes to standard output and what to standard error.
. "$(dirname "$0")/lib.sh"

status 0 "$gr" --help
for c in check plan exec verify init ops schema export report diff pack calibrate; do
    has out "^ *$c "
done
for c in check plan exec verify init ops schema export report diff pack calibrate; do
    for form in "$c --help" "help $c"; do
        status 0 "$gr" $form
        has out "^usage: graphrun $c"
        [ ! -s err ] || fail "graphrun $form prints errors"
    done
done
status 0 "$gr" --completion
status 0 "$gr" --man

refused 'command is missing' "$gr"
refused "did you mean 'plan'" "$gr" plam
refused 'needs GRAPH' "$gr" check
refused "unexpected argument 'b'" "$gr" check a b
refused "did you mean '--steps'" "$gr" exec grpo.yaml --step 3
refused 'needs a value' "$gr" exec grpo.yaml --out
refused "error: --steps '0' must be an integer of at least 1" "$gr" exec grpo.yaml --steps 0
status 0 "$gr" --version
has out '^graphrun [0-9.]+ .devices: cpu'
refused "seed '-1'" "$gr" exec grpo.yaml --seed -1
refused "budget 'much'" "$gr" plan grpo.yaml --budget much
refused "policy 'foo'" "$gr" plan grpo.yaml --policy foo
refused 'needs --config' "$gr" init -o x
refused 'of several hosts, --hosts, mpirun or srun starts them' "$gr" exec grpo.yaml --ranks 2x2
refused 'does not go with --hardware' "$gr" plan grpo.yaml --device cpu --hardware h200

# Files that are not there.
for c in "check no" "plan no" "exec no" "verify no" "diff no no" "pack no -o x" "export no -o x" "init --config no -o x" "exec --resume no" \
    "exec grpo.yaml --plan no --out x"; do
    refused "no" "$gr" $c
    [ ! -e x ] || fail "graphrun $c made its output"
done

status 0 "$gr" check grpo.yaml
[ ! -s err ] && grep -qx "[a-z_]*: no errors; nodes: [0-9]*; models: .*" out || fail "check of a sound graph says something else"
status 0 "$gr" check grpo.yaml --explain
has out 'class: token-coupled'
[ "$(tail -c 1 out | od -An -c | tr -d ' ')" = '\n' ] || fail "--explain ends without a newline"
status 0 "$gr" ops
has out '^update: '
status 0 "$gr" schema
has out '"\$schema"'
status 0 "$gr" plan grpo.yaml
has out 'tiny on cpu: fits'
status 3 "$gr" plan grpo.yaml --budget 1MiB
has err 'MiB missing at step [0-9]+ .*; alive then: .*'
has err 'would fit: --budget'
status 3 "$gr" plan grpo.yaml --budget 1MiB --format json -o small.json # it is shown, and neither proven nor run
status 3 "$gr" verify small.json
has err 'the plan does not fit, and says so: it needs .* of device memory, its budget is 1.00 MiB'
status 3 "$gr" exec grpo.yaml --plan small.json --out small
status 3 "$gr" exec grpo.yaml --budget 1MiB --out small
[ ! -s out ] && [ ! -e small ] || fail "what does not fit has begun"
status 1 "$gr" plan grpo.yaml -o absent/plan
status 1 timeout 20 "$gr" calibrate -o absent/here.json # at once: measuring takes minutes
has err "cannot write 'absent/here.json': No such file"

status 0 "$gr" exec grpo.yaml --out run
has out 'step 6/6'
has out 'peak: planned'
[ ! -s err ] || fail "a sound run prints errors"
refused 'holds a run already' "$gr" exec grpo.yaml --out run
status 1 "$gr" exec grpo.yaml --out grpo.yaml/x
status 0 "$gr" export run -o last
status 0 "$gr" export run@6 -o same --dtype bfloat16
status 0 "$gr" export run@6 -o short-name --dtype bf16
cmp same/model.safetensors short-name/model.safetensors
cmp last/model.safetensors run/checkpoints/step-6/actor/model.safetensors
refused 'step 5 in .*; it has 6$' "$gr" export run@5 -o x
status 0 "$gr" export run/checkpoints/step-6/ -o folder
cmp last/model.safetensors folder/model.safetensors
refused "it is a run: name a step of it, such as 'run@100'" "$gr" exec grpo.yaml --set model=run --out x
sed 's/^  update:/  unread: {op: reward, of: rollout, answer: prompts.answer, rule: exact}\n&/' grpo.yaml >unread.yaml
status 0 "$gr" check unread.yaml
has err "'unread' is left out: nothing reads it; 'log: .NAME: batch_mean\(unread\).' would report it"
refused 'exists' "$gr" export run -o last
status 0 "$gr" exec grpo.yaml --set model=last --out next # what was exported is a checkpoint
has next/metrics.jsonl '"kl": 0,'
status 0 "$gr" exec grpo.yaml --set model=run/checkpoints/step-6/actor --out step
status 0 "$gr" exec grpo.yaml --set model=run@6 --out at # the same by its number
same_metrics step at
refused 'no checkpoint at .*run@5' "$gr" exec grpo.yaml --set model=run@5 --out x
same_weights next step
status 0 "$gr" exec grpo.yaml --seed 8 --out seeded
! cmp -s run/samples.jsonl seeded/samples.jsonl || fail "another seed must draw other samples"

# A number of steps is one of the three ways to say how long.
sed 's/run: {steps: 6, /run: {epochs: 1, /; s/batch: 8/batch: 4/; /mini_batch/d' grpo.yaml >epoch.yaml
head -n 10 train.jsonl >ten.jsonl
status 0 "$gr" exec epoch.yaml --set data=ten.jsonl --out epoch
[ "$(wc -l <epoch/metrics.jsonl)" = 3 ] || fail "10 records in batches of 4 are not 3 iterations"
sed -i 's/epochs: 1, //' epoch.yaml
status 0 "$gr" exec epoch.yaml --set data=ten.jsonl --out one
has out 'neither steps nor epochs'

# Runs without --out that begin in the same second are in folders of their own.
for i in 1 2 3 4; do "$gr" exec grpo.yaml --steps 1 >default-$i 2>&1 & done
wait
[ "$(ls runs | wc -l)" = 4 ] || fail "$(ls runs; cat default-*)"
[ "$(sed -n 's/^results are in //p' default-* | sort -u | wc -l)" = 4 ] || fail "$(cat default-*)"

# Standard output that is gone or full is no reason to lose a run.
"$gr" exec grpo.yaml --out deaf >/dev/full 2>err || fail "exit status $? with a full standard output"
same_weights run deaf

# A file that may not become as long as it must is an error that names it.
(ulimit -f 100 && status 1 "$gr" exec grpo.yaml --steps 1 --out short && has err "cannot write '.*safetensors.*': File too large") || exit 1
[ -z "$(ls short/checkpoints)" ] || fail "half a checkpoint"
