#!/bin/sh
# A run that was stopped, killed or told to end goes on to the bits of an undisturbed one.
. "$(dirname "$0")/lib.sh"

# Stopped after k steps by --steps. A schedule's length is the run's, so the rate is constant here.
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --out whole
for k in 1 4; do
    status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --out part$k --steps $k
    [ "$(last_step part$k)" = $k ] || fail "no checkpoint of step $k"
    status 0 "$gr" exec --resume part$k --steps 6
    same_weights whole part$k
    same_metrics whole part$k
    cmp whole/samples.jsonl part$k/samples.jsonl
done
status 0 "$gr" exec --resume part4 --steps 6
has out 'nothing is left to do: 6 iterations are done, of 6 '
[ ! -s err ] || fail "resuming warns: $(cat err)"
refused "'?--out'? does not go with" "$gr" exec --resume part4 --out elsewhere
refused "'?--seed'? does not go with" "$gr" exec --resume part4 --seed 9

# Another budget is another plan of the same numbers.
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --out moved --steps 3
status 3 "$gr" plan grpo.yaml --budget 4KiB
least=$(least_budget)
status 0 "$gr" exec --resume moved --steps 6 --budget "$least"
[ ! -s err ] || fail "resuming with another budget warns: $(cat err)"
same_weights whole moved
same_metrics whole moved
has moved/plan.json "\"budget_bytes\": $least"
# A change that matters is said.
status 0 "$gr" exec --resume moved --steps 7 --set models.actor.train.lr=0.5
has err 'warning: .*numerics .* its bits may differ'
same_weights whole part4
same_metrics whole part4

# Moments of 8 bits are fp32 in files, and come back as the same codes; a run with fp32 ones goes on with them.
set -- --set models.actor.train.schedule=constant --set models.actor.train.moments=int8
status 0 "$gr" exec grpo.yaml "$@" --out eight
status 0 "$gr" exec grpo.yaml "$@" --out eight-part --steps 3
status 0 "$gr" exec --resume eight-part --steps 6
[ ! -s err ] || fail "resuming warns: $(cat err)"
same_weights eight eight-part
same_metrics eight eight-part
cmp -s whole/checkpoints/step-6/actor/model.safetensors eight/checkpoints/step-6/actor/model.safetensors && fail "int8 changes nothing"
refused "'?--replan.* makes one that does" "$gr" exec --resume part1 --steps 7 --set models.actor.train.moments=int8
status 0 "$gr" exec --resume part1 --steps 7 --set models.actor.train.moments=int8 --replan
has err 'warning: .*numerics .* its bits may differ'

# Killed at random moments, the graph given again or left out.
steps=120
kills=2
[ "$slow" = 0 ] || { kills=20; steps=1000; }
long="--set run.steps=$steps --set run.checkpoint.every=2 --set run.checkpoint.keep=3"
status 0 "$gr" exec grpo.yaml $long --out calm
random=12345
i=0
resume="grpo.yaml $long --out killed"
while [ $i -lt $kills ]; do
    random=$(((random * 1103515245 + 12345) % 2147483648))
    "$gr" exec $resume >out 2>err &
    pid=$!
    sleep 0.$(printf '%03d' $((random / 65536 % 100 + 30)))
    kill -9 $pid 2>/dev/null || echo "attempt $i had ended: $(tail -1 out)"
    wait $pid || :
    for f in killed/checkpoints/step-*; do # whole or absent
        [ ! -d "$f" ] || [ -s "$f/state.json" ] || fail "$f is half a checkpoint"
    done
    if [ -f killed/metrics.jsonl ]; then resume="--resume killed"; fi
    i=$((i + 1))
done
[ ! -d killed/checkpoints ] || [ "$(last_step killed)" != $steps ] || fail "the run was over before the last kill; make it longer"
status 0 "$gr" exec $resume
same_weights calm killed
same_metrics calm killed
[ "$(ls killed/checkpoints | wc -l)" = 3 ] || fail "keep: 3 keeps $(ls killed/checkpoints)"

# Asked to end: the step is finished, a checkpoint written, status 0; and again the same bits.
for signal in INT TERM; do
    "$gr" exec grpo.yaml --set run.steps=$steps --out asked-$signal >out 2>err &
    pid=$!
    while [ ! -s asked-$signal/metrics.jsonl ]; do sleep 0.02; done
    kill -$signal $pid
    wait $pid || fail "exit status $? after SIG$signal"
    n=$(wc -l <asked-$signal/metrics.jsonl)
    [ "$(last_step asked-$signal)" = "$n" ] || fail "$n steps done, checkpoint of $(last_step asked-$signal)"
    [ "$n" -lt $steps ] || fail "SIG$signal came too late to mean anything"
    has err '^stopping after this iteration, .* a second signal'
    has out "^stopped after iteration $n of $steps; graphrun exec --resume asked-$signal goes on"
    status 0 "$gr" exec --resume asked-$signal
    same_weights calm asked-$signal $steps
    same_metrics calm asked-$signal
done

# A second signal ends it at once. The worker of the reward holds the step open.
cat >slow.sh <<'END'
while read -r line; do sleep 30; done
END
sed 's/answer: prompts.answer, rule: .*}}/command: "sh slow.sh"}/' grpo.yaml >slow.yaml
"$gr" exec slow.yaml --out twice >out 2>err &
pid=$!
while [ ! -d twice ]; do sleep 0.02; done
sleep 0.3
kill -INT $pid
sleep 0.2
kill -0 $pid || fail "one signal must let the step finish"
kill -INT $pid
got=0
wait $pid || got=$?
[ $got = 1 ] || fail "exit status $got after a second signal"

# A trace that cannot be written is no reason to end.
mkdir full
ln -s /dev/full full/trace.json
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --out full
has out "^warning: cannot write 'full/trace.json': No space left on device; it is left out from here on"
[ "$(grep -c 'left out' out)" = 1 ] || fail "it is said once: $(cat out)"
same_weights whole full
same_metrics whole full

# A run with nothing left to do leaves every file as it is, bytes and time of its last change.
files() { # RUN: but for its folders, whose lock is taken
    find "$1" ! -type d ! -name '*lock*' -exec stat -c '%n %s %y' {} + | sort
    find "$1" -type f -exec cksum {} + | sort
}
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --set run.checkpoint="{every: 2, best: loss}" --steps 5 --out done
printf '{"step": 99, "later": true}\n' >>done/metrics.jsonl
files done >before
for asked in "done --steps 5" "done --steps 3" "done@2 --steps 2" "done@best --steps 1"; do
    # shellcheck disable=SC2086 # options
    status 0 "$gr" exec --resume $asked
    has out 'nothing is left to do'
    files done | diff before - || fail "--resume $asked changed a run with nothing to do"
    [ ! -d done/aside-2 ] || fail "--resume $asked set checkpoints aside"
done

# Warnings come before the first iteration, not behind the last; on several ranks once.
sed 's/^params: {/params: {unused: 1, /' grpo.yaml >warned.yaml
early() { # N COMMAND...: its N warnings come before its first iteration
    want=$1 got=0
    shift
    "$@" >both 2>&1 || got=$?
    [ $got = 0 ] || { cat both >&2; fail "exit status $got: $*"; }
    awk -v want="$want" '/warning: / { n++; if (stepped) late = 1 } /^step / { stepped = 1 } END { exit n != want || late }' both ||
        { cat both >&2; fail "$want early warnings are asked for: $*"; }
}
early 1 "$gr" exec warned.yaml --steps 2 --out warned
! runs_ranks || early 1 "$gr" exec warned.yaml --steps 2 --out warned-2 --ranks 2
cp train.jsonl own.jsonl
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --set data=own.jsonl --steps 2 --out other-data
tail -n 100 train.jsonl >own.jsonl
early 2 "$gr" exec --resume other-data --steps 4 --accept-changes # that it is another file, and that its epoch starts anew

# What a resumed run was told anew counts for the next one too.
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --out told --steps 1
"$gr" exec --resume told --steps 100000 >out 2>err &
pid=$!
while [ "$(wc -l <told/metrics.jsonl)" -lt 3 ]; do sleep 0.02; done
kill -TERM $pid
wait $pid
has told/graph.yaml 'steps: 100000'

# A run whose files were moved says how it is told where they are.
mkdir there
cp -r model there/base
cp train.jsonl there/kept.jsonl
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --set model=there/base --set data=there/kept.jsonl --out there/run --steps 1
mkdir here
mv there/run there/base there/kept.jsonl here/
refused "exec --resume here/run --set models.actor.checkpoint=DIR --set models.ref.checkpoint=DIR" "$gr" exec --resume here/run --steps 2
now="--set models.actor.checkpoint=here/base --set models.ref.checkpoint=here/base"
# shellcheck disable=SC2086 # settings have no spaces
refused "exec --resume here/run --set nodes.prompts.file=FILE" "$gr" exec --resume here/run --steps 2 $now
# shellcheck disable=SC2086
status 0 "$gr" exec --resume here/run --steps 2 $now --set nodes.prompts.file=here/kept.jsonl
lacks err "numerics"
status 0 "$gr" exec --resume here/run --steps 3 # from here on it knows
