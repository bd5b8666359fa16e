#!/bin/sh
# Conversations of a model in slices: one rank of each group asks the environment, all of them take what it answers at the same
# time, and the rows are those of one rank.
. "$(dirname "$0")/lib.sh"
models_to_cut

# same RUN RUN: what was sampled and said, and numbers up to rounding
same() {
    cmp "$1/samples.jsonl" "$2/samples.jsonl" || fail "conversations of $1 and $2 differ"
    close "$1" "$2" 1
    [ "$(metric "$1" 1 turns)" = "$(metric "$2" 1 turns)" ] || fail "turns of $1 and $2 differ"
    [ "$(metric "$1" 1 rollout.calls)" = "$(metric "$2" 1 rollout.calls)" ] || fail "calls of $1 and $2 differ"
}
turns turns.yaml ""
turns slow.yaml slow
sed -i 's/samples: [0-9]*, checkpoint/samples: 64, checkpoint/' turns.yaml slow.yaml
ASKED=asked-1 status 0 "$gr" exec turns.yaml --set model=llama --steps 1 --out whole
for n in 2 $([ "$slow" = 0 ] || echo 4); do
    ASKED=asked-$n status 0 "$gr" exec slow.yaml --set model=llama --set models.actor.tensor=$n --ranks 4 --steps 1 --check-memory --out slices-$n
    same whole slices-$n
    [ "$(wc -l <asked-$n)" = "$(wc -l <asked-1)" ] || fail "$(wc -l <asked-$n) questions of $n slices, $(wc -l <asked-1) of one rank"
done

# A rank's number is its record's: those that ask write one, and a run with their files needs no environment.
sed 's/workers: 1, //; s/timeout: 5s/timeout: 5s, record: answers.jsonl, workers: 2/' slow.yaml >record.yaml
status 0 "$gr" exec record.yaml --set model=llama --set models.actor.tensor=2 --ranks 4 --steps 2 --out record
[ -s answers.jsonl ] && [ -s answers.jsonl.2 ] && [ ! -e answers.jsonl.1 ] && [ ! -e answers.jsonl.3 ] || fail "records: $(ls answers*)"
sed 's|command: "[^"]*"|replay: answers.jsonl|; s/, timeout: 5s, record: answers.jsonl, workers: 2//' record.yaml >replay.yaml
status 0 "$gr" exec replay.yaml --set model=llama --set models.actor.tensor=2 --ranks 4 --steps 2 --out replay
same_weights record replay
same_metrics record replay
cmp record/samples.jsonl replay/samples.jsonl || fail "other conversations in a replay"

# A process that dies, and one whose every conversation fails: all ranks begin anew, and end, together.
turns die.yaml die "retries: 2"
sed -i 's/samples: [0-9]*, checkpoint/samples: 64, checkpoint/' die.yaml
status 0 "$gr" exec die.yaml --set model=llama --set models.actor.tensor=2 --ranks 2 --steps 1 --out die
[ -e died ] || fail "no process died"
same whole die
status 1 "$gr" exec turns.yaml --set 'nodes.rollout.environment.command=exit 3' --set model=llama --set models.actor.tensor=2 --ranks 2 --steps 1 --out never
has err "none came to an end.*exited with status 3"

# Rows that are kept, with older weights, and answers at random times: repeated from the record, and gone on with, to the bit.
turns keep.yaml slow "record: kept.jsonl, workers: 2"
sed -i 's/^  rollout: {/&lag: 3, over: 1.5, /' keep.yaml
sed 's|command: "[^"]*"|replay: kept.jsonl|; s/, timeout: 5s, record: kept.jsonl, workers: 2//' keep.yaml >again.yaml
status 0 "$gr" exec keep.yaml --set model=llama --set models.actor.tensor=2 --ranks 2 --steps 4 --out keep
status 0 "$gr" exec again.yaml --set model=llama --set models.actor.tensor=2 --ranks 2 --steps 2 --out again
status 0 "$gr" exec --resume again --steps 4
same_weights keep again
same_metrics keep again

# Conversations that their environment opens, kept, and gone on with from the record: the tools are those of all ranks.
cat >llama/chat_template.jinja <<'END'
{% for m in messages %}{% if tools and loop.last %}{{ tools | length }}={% endif %}{{ m['content'] | replace('x', '1') }}{% endfor %}
END
turns opens.yaml "" "opens: true"
sed -i "s|perl [^\"]*\"|perl $project/tests/e2e/opener.pl\"|; s/template: \"{question}\"/template: chat, messages: \"{question}\"/; s/max_tokens: 8/max_tokens: 20/; s/max_context: 32/max_context: 60/; s/samples: [0-9]*, checkpoint/samples: 64, checkpoint/" opens.yaml
status 0 "$gr" exec opens.yaml --set model=llama --steps 1 --out opens
status 0 "$gr" exec opens.yaml --set model=llama --set models.actor.tensor=2 --ranks 4 --steps 1 --out opens-2
same opens opens-2
has opens/samples.jsonl '"prompt": "2=1[0-9]+\+'
sed 's/^  rollout: {/&over: 1.5, /; s/timeout: 5s/record: opened.jsonl/' opens.yaml >open-keep.yaml
sed 's|command: "[^"]*"|replay: opened.jsonl|; s/, record: opened.jsonl//' open-keep.yaml >open-again.yaml
status 0 "$gr" exec open-keep.yaml --set model=llama --set models.actor.tensor=2 --ranks 2 --steps 3 --out open-keep
status 0 "$gr" exec open-again.yaml --set model=llama --set models.actor.tensor=2 --ranks 2 --steps 1 --out open-again
status 0 "$gr" exec --resume open-again --steps 3
same_weights open-keep open-again

# A rollout that is served: harnesses call the rank that asks.
if [ -x "$(dirname "$gr")/graphrun-httpd" ]; then
    turns served.yaml ""
    sed -i "s|perl [^\"]*\"|perl $project/tests/e2e/harness.pl\"|; s|, environment:|, serve: {port: 0}, environment:|; s/samples: [0-9]*, checkpoint/samples: 64, checkpoint/" served.yaml
    status 0 "$gr" exec served.yaml --set model=llama --steps 1 --out served
    status 0 "$gr" exec served.yaml --set model=llama --set models.actor.tensor=2 --ranks 2 --steps 1 --out served-2
    same served served-2
fi

# What trains on conversations in slices, by tokens and in stages.
for mesh in "tensor: 2" "context: 2" "pipeline: 2"; do
    case $slow$mesh in 0tensor*) continue ;; esac
    status 0 "$gr" exec turns.yaml --set model=llama --set "models.actor.parallel={$mesh}" --ranks 2 --steps 1 --out "mesh-${mesh%%:*}"
    same whole "mesh-${mesh%%:*}"
done

refused "on the cuda device 'environment' with a model in slices \('tensor'\) has not run so far" "$gr" plan turns.yaml --set model=llama --hardware h200 --set models.actor.tensor=2 --ranks 2
