#!/bin/sh
# graphrun audit: iterations that are run again from their checkpoint have the recorded bits, in metrics and weights; what is not
# as it was is named, and the run is left as it is.
. "$(dirname "$0")/lib.sh"

unchanged() { # RUN COMMAND...: as status 0, and nothing in the run is another
    audited=$1
    shift
    rm -rf before
    cp -r "$audited" before
    "$@"
    diff -r -q before "$audited" || fail "an audit has changed the run"
    [ -z "$(ls tmp)" ] || fail "an audit leaves $(ls tmp)"
}
mkdir tmp
export TMPDIR="$work/tmp"

# A schedule, warm-up, two epochs, a state: whatever iteration.
status 0 "$gr" exec grpo.yaml --set run.checkpoint.every=2 --out run
unchanged run status 0 "$gr" audit run
has out '^audit of run: iterations 5 to 6, from the checkpoint of iteration 4'
has out '^metrics +[1-9][0-9]+ compared'
has out '^tensors +[1-9][0-9]+ compared, of 2 files of the checkpoint of iteration 6'
has out '^the same bits'
[ ! -s err ] || fail "$(cat err)"
unchanged run status 0 "$gr" audit run 2
has out 'iterations 1 to 2, from the beginning'
has out 'files of the checkpoint of iteration 2'
unchanged run status 0 "$gr" audit run 3
has out 'iterations 3 to 3, from the checkpoint of iteration 2'
has out '^tensors +none: the run has no checkpoint behind these iterations'
has out '^the same bits'
for wrong in 0 7 99999999999999999999 x 3x -1; do
    status 2 "$gr" audit run -- $wrong
    has err "no iteration|not the number of an iteration"
done
refused 'no run|cannot read' "$gr" audit nothing
[ ! -e nothing ] || fail "an audit has made a folder"

# Resumed: with other steps, whose schedule is another; from before that, and from behind.
status 0 "$gr" exec grpo.yaml --set run.checkpoint.every=2 --steps 4 --out resumed
status 0 "$gr" exec --resume resumed --steps 8
for step in 2 4 6 7 8; do
    unchanged resumed status 0 "$gr" audit resumed $step
    has out '^the same bits'
done
# Killed in between, and gone back.
status 0 "$gr" exec --resume resumed@4 --steps 6
unchanged resumed status 0 "$gr" audit resumed
unchanged resumed status 0 "$gr" audit resumed/aside-4

# Stopped in between: schedules stay as they are.
status 0 "$gr" exec grpo.yaml --until 3 --out until
has out '^stopped after iteration 3 of 6; graphrun exec --resume until goes on'
for n in 3 2; do
    status 0 "$gr" exec --resume until --until $n
    has out '^stopped after iteration 3 of 6'
    [ "$(last_step until)" = 3 ] || fail "it went on to iteration $(last_step until)"
done
refused 'until 7 is behind the last iteration: the run has 6' "$gr" exec --resume until --until 7
status 0 "$gr" exec --resume until
same_weights run until
same_metrics run until
unchanged until status 0 "$gr" audit until

# A number that was changed, a weight, a data file; the chain.
sed -i -E '/"step": 5,/s/("reward_mean": )[^,]*/\10.123/' run/metrics.jsonl
unchanged run status 1 "$gr" audit run
has out "^different: iteration 5, 'reward_mean': recorded 0.123, now 0\."
status 0 "$gr" audit run 4
cp -r run other
status 0 "$gr" exec grpo.yaml --set run.checkpoint.every=2 --set models.actor.train.lr=0.02 --out faster
cp faster/metrics.jsonl run
cp faster/checkpoints/step-6/state.json faster/checkpoints/step-6/manifest.json run/checkpoints/step-6
unchanged run status 1 "$gr" audit run
has out '^different: iteration 5, '
rm -r run
status 0 "$gr" exec grpo.yaml --set run.checkpoint.every=2 --out run
rm -r run/checkpoints/step-4
cp -r other/checkpoints/step-4 run/checkpoints
status 2 "$gr" audit run # step 4 is another run's
has err "the checkpoint is another run's"

# Rewards of a command are said to be its own.
cat >answer.sh <<'END'
while read -r line; do
    id=$(echo "$line" | sed -nE 's/.*"id": *([0-9]+).*/\1/p')
    echo "{\"id\": $id, \"score\": $((id % 3 + ${1:-0}))}"
done
END
sed 's/answer: prompts.answer, rule: {extract[^}]*}/command: "sh answer.sh $(cat more)"/' grpo.yaml >command.yaml
echo 0 >more
status 0 "$gr" exec command.yaml --steps 2 --out command
status 0 "$gr" audit command
has out "^note: what 'reward' gives comes from a command"
has out '^the same bits'
echo 1 >more
status 1 "$gr" audit command
has out "^different: iteration 1, 'reward_mean'"

# When an environment answers decides by what steps conversations are decoded, and nothing else.
turns slow.yaml slow "workers: 2"
status 0 "$gr" exec slow.yaml --steps 2 --out slow
sed -i -E 's/("rollout.(decode_(steps|batch|width)|read_tokens)": )/\11/g' slow/metrics.jsonl
status 0 "$gr" audit slow
has out '^the same bits'
sed -i -E 's/("rollout.turns_mean": )/\11/g' slow/metrics.jsonl
status 1 "$gr" audit slow
has out "^different: iteration 1, 'rollout.turns_mean'"

# Of before there were manifests.
status 0 "$gr" exec grpo.yaml --set run.checkpoint.every=2 --steps 4 --out old
rm old/run.json old/checkpoints/step-*/manifest.json
status 0 "$gr" audit old
has out '^tensors +none: the checkpoint has no manifest'
has out '^the same bits'

# Where the arithmetic was another, the first iteration's metrics are held to a tolerance.
status 0 "$gr" exec grpo.yaml --set run.checkpoint.every=2 --steps 4 --out far
rm far/run.json far/checkpoints/step-*/manifest.json
sed -i -E 's/("numerics": )"[0-9a-f]*"/\1"0123456789abcdef"/' far/checkpoints/step-4/state.json
status 0 "$gr" audit far
has out '^another machine kind: unknown, numerics 0123456789abcdef then, cpu, cpu-fma, numerics [0-9a-f]+ here'
has out '^the same within the tolerance'
sed -i -E '/"step": 3,/s/("reward_mean": )([0-9.]+)/\11\2/' far/metrics.jsonl
status 1 "$gr" audit far
has out "^different: iteration 3, 'reward_mean'"
