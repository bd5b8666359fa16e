#!/bin/sh
# `samples: all`: every response of each iteration, with ids, log-probs and advantages; conversations, resumed runs, ranks.
. "$(dirname "$0")/lib.sh"
lines() { # RUN STEP
    gzip -dc "$1/samples/step-$2.jsonl.gz"
}
same_responses() { # RUN RUN STEPS
    [ "$(ls "$1/samples" | wc -l) $(ls "$2/samples" | wc -l)" = "$3 $3" ] || fail "files of $1 and $2: $(ls "$1/samples" "$2/samples")"
    for i in $(seq "$3"); do cmp "$1/samples/step-$i.jsonl.gz" "$2/samples/step-$i.jsonl.gz" || fail "responses of $1 and $2 differ"; done
}

# All of them, each once, with what the loss reads; the run's bits and its hash stay.
flat="--set models.actor.train.schedule=constant"
# shellcheck disable=SC2086 # options
status 0 "$gr" exec grpo.yaml $flat --out few
# shellcheck disable=SC2086
status 0 "$gr" exec grpo.yaml $flat --set run.samples=all --out all
same_weights few all
same_metrics few all
[ "$(wc -l <few/samples.jsonl) $(wc -l <all/samples.jsonl)" = "12 24" ] || fail "lines of samples.jsonl"
for i in 1 2 3 4 5 6; do
    [ "$(lines all $i | wc -l)" = 32 ] || fail "iteration $i has $(lines all $i | wc -l) responses"
    [ "$(lines all $i | sed -E 's/.*"sequence": ([0-9]+).*/\1/' | sort -nu | wc -l)" = 32 ] || fail "a sequence is there twice"
done
lines all 3 >three
has three '^\{"step": 3, "sequence": 31, "group": 7, "record": [0-9]+, "prompt": "[0-9+]+=", "response": ".*", "prompt_ids": \[[0-9, ]+\], "ids": \[[0-9, ]+\], "truncated": (true|false), "logprobs": \[[-0-9., e]+\], "reward": [0-9.]+, "advantage": [-0-9.e]+, "values": \{.*"advantage": .*"old_logprob": \[.*"ref_logprob": \['
grep -c '"step": 3' all/samples.jsonl >/dev/null
# What samples.jsonl shows is among them, with the same advantage; those of a group sum up to nothing.
sed -nE 's/.*"step": 3, .*"response": ("[^"]*"), "reward": ([^,]*), "advantage": ([^}]*)\}/\1 \2 \3/p' all/samples.jsonl >shown
[ "$(wc -l <shown)" = 4 ] || fail "samples have no advantage: $(cat all/samples.jsonl)"
sed -E 's/.*"response": ("[^"]*"), .*"reward": ([^,]*), "advantage": ([^,]*),.*/\1 \2 \3/' three >whole
while read -r line; do grep -qxF -- "$line" whole || fail "not among all: $line"; done <shown
sed -E 's/.*"group": ([0-9]+),.*"advantage": ([^,]*), "values".*/\1 \2/' three |
    awk '{ sum[$1] += $2; n++ } END { for (g in sum) if (sum[g] > 1e-3 || sum[g] < -1e-3) bad = 1; exit bad || n != 32 }' || fail "advantages of a group: $(cat three)"
# A log-prob for each id; the first update's loss reads what was sampled.
awk -F'"ids": \\[|\\], "truncated"|"logprobs": \\[|\\], "reward"' '{
    n = split($2, ids, ", "); if (split($4, l, ", ") != n || n < 1) bad = 1
    m = split($0, o, "\"old_logprob\": \\["); split(o[2], p, "]"); if (split(p[1], q, ", ") != n) bad = 1
    for (i = 1; i <= n; i++) if (l[i] - q[i] > 1e-5 || q[i] - l[i] > 1e-5) bad = 1 } END { exit bad }' three || fail "log-probs are not one for each id"

# Stopped, killed, sent back: none is lost, none is there twice.
# shellcheck disable=SC2086
status 0 "$gr" exec grpo.yaml $flat --set run.samples=all --set run.checkpoint.every=2 --out part --steps 4
cp part/samples/step-4.jsonl.gz part/samples/step-5.jsonl.gz # as of a run that was killed behind it
status 0 "$gr" exec --resume part --steps 6
same_responses all part 6
lines part 5 | grep -q '^{"step": 5' || fail "another iteration's responses stayed"
status 0 "$gr" exec --resume part@2 --steps 6
same_responses all part 6
same_responses all part/aside-2 6
[ ! -d few/samples ] || fail "they are kept unasked"
ls -a part/samples | grep -q graphrun- && fail "temporary files stay"

# Rows that were selected, a loss of a token's advantages, an update that waits.
sed -e 's/^  old_logprob: /  kept: {op: select, of: rollout, resample: "1"}\n&/' -e 's/    of: rollout$/    of: kept\n    when: step > 1/' \
    -e 's/^  advantage: .*/  advantage: {op: compute, expr: "suffix_sum(at_last(score - group_mean(score)))"}/' grpo.yaml >drawn.yaml
# shellcheck disable=SC2086
status 0 "$gr" exec drawn.yaml $flat --set run.samples=all --set nodes.update.mini_batch=16 --out drawn --steps 2
lines drawn 2 | sed -E 's/.*"values": (.*)/\1/' | sort -u >values
has values '"advantage": \[[-0-9.e]+(, [-0-9.e]+)*\]'

# A conversation: who said what, in tokens; versions of tokens that waited.
turns turns.yaml ""
status 0 "$gr" exec turns.yaml --set run.samples=all --out turns --steps 1
lines turns 1 >turn
has turn '"segments": \[\{"by": "model", "tokens": [0-9]+, "text": "[^"]*"\}, \{"by": "environment", "tokens": [0-9]+, "text": "'
awk -F'"ids": \\[|\\], "truncated"' '{ n = split($2, ids, ", "); sum = 0; s = $0
    while (match(s, /"tokens": [0-9]+/)) { sum += substr(s, RSTART + 10, RLENGTH - 10); s = substr(s, RSTART + RLENGTH) }
    if (sum != n) bad = 1 } END { exit bad }' turn || fail "segments are not the response: $(cat turn)"

# Several ranks: one of them writes what one rank writes.
if runs_ranks; then
    # shellcheck disable=SC2086
    status 0 "$gr" exec grpo.yaml $flat --set run.samples=all --out ranks --ranks 2 --steps 1
    lines ranks 1 | sed -E 's/"(values|logprobs)".*//; s/"(reward|advantage)".*//' >a
    lines all 1 | sed -E 's/"(values|logprobs)".*//; s/"(reward|advantage)".*//' >b
    cmp a b || fail "two ranks keep other responses"
fi

# Rows that were kept are rows again, by their ids: the model that sampled them gives them the log-probs that they had.
cat >again.yaml <<'END'
graph: again
params: {model: model, at: all/samples/step-1.jsonl.gz}
models: {actor: {checkpoint: $model, train: {lr: 1e-3}}}
nodes:
  kept: {op: sequences, command: "zcat $at", batch: 32, shuffle: false, ids: true, prompt: "{prompt_ids}", response: "{ids}",
         max_prompt_tokens: 8, max_tokens: 6, token_fields: [logprobs, ids]}
  now: {op: logprob, model: actor, of: kept}
  update: {op: update, model: actor, of: kept, loss: -token_mean(kept.advantage * logprob)}
log:
  off: token_max(abs(now - kept.logprobs))
  other: token_max(abs(kept.token - kept.ids))
  advantage: batch_mean(abs(kept.advantage))
  stopped: batch_mean(seq_count(kept.token == 1))
run: {steps: 1, samples: all}
END
status 0 "$gr" exec again.yaml --out again
awk -v off="$(metric again 1 off)" 'BEGIN { exit !(off < 1e-5) }' || fail "log-probs are off by $(metric again 1 off)"
[ "$(metric again 1 other)" = 0 ] || fail "ids are not those that were kept"
lines all 1 | sed -E 's/.*("ids": \[[^]]*\]).*/\1/' >a
lines again 1 | sed -E 's/.*("ids": \[[^]]*\]).*/\1/' >b
cmp a b || fail "rows of rows are others"
lines again 1 | sed -E 's/.*("response": "[^"]*").*/\1/' >a
lines all 1 | sed -E 's/.*("response": "[^"]*").*/\1/' >b
cmp a b || fail "texts of rows are others: a stop id shows"
no() { # PATTERN SED
    sed "$2" again.yaml >bad.yaml
    refused "$1" "$gr" exec bad.yaml --out bad --steps 1
}
no "with 'ids' 'response' is one .*not '.ids. '" 's/response: "{ids}"/response: "{ids} "/'
no "'eos' does not go with 'ids'" 's/ids: true/ids: true, eos: true/'
no "field 'response' must be a list of ids" 's/response: "{ids}"/response: "{response}"/'
no "field 'logprobs': item 0 is no id of the model, from 0 to 15" 's/response: "{ids}"/response: "{logprobs}"/'
no "field 'idz'|no field 'idz'|'idz'" 's/response: "{ids}"/response: "{idz}"/'

# Pages and reports read them, and say where one is damaged.
status 0 "$gr" report all
has out 'advantage -?[0-9]'
has out '^responses  kept whole in all/samples, of steps 1 to 6'
status 0 "$gr" report all --format html -o page.html
has page.html '"responses":\{"step":6,"got":\{"lines":\['
head -c 300 all/samples/step-6.jsonl.gz >cut && mv cut all/samples/step-6.jsonl.gz
refused 'samples/step-6.jsonl.gz: error: is no whole gzip file: ' "$gr" report all --format html -o page.html
refused "'samples' must be 'all' or a whole number from 0 to 1048576, not 'every'" "$gr" check grpo.yaml --set run.samples=every
refused "'samples' must be a whole number from 1 to 65536, not 'all'" "$gr" check grpo.yaml --set nodes.rollout.samples=all

# What cannot be written ends the run with its reason.
mkdir full
: >full/samples
status 1 "$gr" exec grpo.yaml --set run.samples=all --out full --steps 1
has err "'full/samples': Not a directory"
