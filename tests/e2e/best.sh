#!/bin/sh
# checkpoint: {best: METRIC}: the best checkpoint is written when it comes, stays, and is known after a resume.
. "$(dirname "$0")/lib.sh"

graph best.yaml
sed -i '/^run:/d' best.yaml
head -n 20 train.jsonl >test.jsonl
cat >>best.yaml <<'END'
  check_prompts: {op: prompts, file: test.jsonl, batch: 20, max_tokens: 8, template: "{question}", every: 2}
  check: {op: generate, model: actor, prompts: check_prompts, samples: 4, max_tokens: 6}
  digits: {op: reward, of: check, answer: check_prompts.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}}
run: {steps: 24, seed: 7, samples: 0, checkpoint: {every: 5, keep: 1, best: val.digits}}
END

# best_of RUN NAME SIGN: the first step with the largest value (SIGN 1) or the smallest (-1)
best_of() {
    sed -nE "s/^\{\"step\": ([1-9][0-9]*),(.*, )? ?\"$2\": ([^,}]*).*/\1 \3/p" "$1/metrics.jsonl" |
        awk -v sign="$3" 'NR == 1 || sign * $2 > sign * best {best = $2; at = $1} END {print at}'
}
kept() { ls "$1/checkpoints" | sed -nE 's/^step-([0-9]+)$/\1/p' | sort -n | tr '\n' ' '; }
points() { readlink "$1/checkpoints/best"; }

status 0 "$gr" exec best.yaml --out run
at=$(best_of run 'val\.digits' 1)
[ -n "$at" ] && [ "$at" -lt 24 ] || fail "the best is the last; the test needs another seed"
[ "$(kept run)" = "$at 24 " ] || fail "kept $(kept run), and the best was $at"
[ "$(points run)" = "step-$at" ] || fail "best points at $(points run), not $at"
has out "^best so far: val.digits [0-9.]+ at step $at\$"
status 0 "$gr" export run@best -o exported
status 0 "$gr" export "run@$at" -o named
cmp exported/model.safetensors named/model.safetensors
refused "no checkpoint called best" "$gr" export nowhere@best -o none

# To go on from the best: what came after it is set aside, and what was the best stays it.
cp -r run back
status 0 "$gr" exec --resume back@best
[ "$(points back)" = "step-$at" ] && [ -d "back/checkpoints/step-$at" ] || fail "best points at $(points back), not $at"
[ -d "back/aside-$at/checkpoints/step-24" ] || fail "what came after the best is lost"
same_metrics run back

# The smallest is the best of a loss, and of any metric of the iterations.
status 0 "$gr" exec best.yaml --set run.checkpoint.best=reward_mean --set run.checkpoint.best_is=min --out least
at=$(best_of least reward_mean -1)
[ "$(points least)" = "step-$at" ] || fail "the least was $at, but best points at $(points least)"
for name in loss update.ratio_max state.beta val.check.truncated_fraction; do
    status 0 "$gr" check best.yaml --set run.checkpoint.best=$name
done

# A run that is stopped anywhere and goes on keeps the same ones.
flat='--set models.actor.train.schedule=constant'
status 0 "$gr" exec best.yaml $flat --out whole
for k in 17 $([ "$slow" = 0 ] || echo 4 9); do
    status 0 "$gr" exec best.yaml $flat --steps $k --out part$k
    status 0 "$gr" exec --resume part$k --steps 24
    [ "$(points part$k)" = "$(points whole)" ] || fail "stopped at $k: best is $(points part$k), not $(points whole)"
    [ "$(kept part$k)" = "$(kept whole)" ] || fail "stopped at $k: kept $(kept part$k), not $(kept whole)"
    same_weights whole part$k
    same_metrics whole part$k
done
# Killed: whatever was done last is done again, and the best is there at any moment. The run is on the same core as what waits
# for its lines, and gives way to it.
lines() { if [ -f killed/metrics.jsonl ]; then wc -l <killed/metrics.jsonl; else echo 0; fi; }
long="--set run.steps=200 $flat"
status 0 "$gr" exec best.yaml $long --out calm
resume="best.yaml $long --out killed"
for until in 12 40 $([ "$slow" = 0 ] || echo 67); do
    nice -n 19 "$gr" exec $resume >out 2>err &
    pid=$!
    while [ "$(lines)" -lt $until ]; do
        kill -0 $pid 2>/dev/null || fail "the run ended before line $until: $(tail -n 3 out err)"
        sleep 0.01
    done
    kill -9 $pid 2>/dev/null || fail "the run was over at line $(lines), before its kill; make it longer"
    wait $pid || :
    if [ -L killed/checkpoints/best ]; then
        [ -s killed/checkpoints/best/state.json ] || fail "killed: best points at nothing"
    fi
    resume="--resume killed"
done
status 0 "$gr" exec --resume killed
[ "$(points killed)" = "$(points calm)" ] || fail "killed: best is $(points killed), not $(points calm)"
[ "$(kept killed)" = "$(kept calm)" ] || fail "killed: kept $(kept killed), not $(kept calm)"
same_weights calm killed
same_metrics calm killed

# Told another metric, a resumed run looks for its best from there on.
status 0 "$gr" exec best.yaml $flat --steps 12 --out told
status 0 "$gr" exec --resume told --steps 24 --set run.checkpoint.best=reward_mean
sed -i -E '/^\{"step": ([0-9]|1[0-2]),/d' told/metrics.jsonl
[ "$(points told)" = "step-$(best_of told reward_mean 1)" ] || fail "told: best is $(points told)"

refused "best.yaml:[0-9]+:[0-9]+: error: the run has no metric 'val.digit'; did you mean 'val.digits'" \
    sh -c "sed 's/best: val.digits/best: val.digit/' best.yaml >bad-best.yaml; '$gr' check bad-best.yaml"
refused "'best_is' must be one of max, min" "$gr" check best.yaml --set run.checkpoint.best_is=largest
