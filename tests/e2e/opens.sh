#!/bin/sh
# Conversations that their environments open (`opens`): messages and tools of a start stand in the prompt; each sequence has its own.
. "$(dirname "$0")/lib.sh"

# A template that shows tools before the last message, wherever that is.
"$gr" init --config "$project/tests/cli/model/config.json" --tokenizer "$project/tests/cli/model" --seed 1 -o chat >/dev/null
cat >chat/chat_template.jinja <<'END'
{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('who?') }}{% endif %}{% if tools and loop.last %}[{{ tools | map(attribute='function.name') | join(',') }}]{% endif %}{{ m['role'] }}:{{ m['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}
END

opens() { # FILE WAY [KEYS]
    turns "$1" "" "$3"
    sed -i -e "s|perl [^\"]*|perl $project/tests/e2e/opener.pl $2|; s/{model: model,/{model: chat,/" \
        -e 's/template: "{question}"/template: chat, messages: "{question}", system: "sum"/; s/max_tokens: 8/max_tokens: 60/' \
        -e 's/max_context: 32/max_context: 130, stop: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, "0", "1", "2", "4"]/' "$1"
}
opens opens.yaml "" "opens: true"

# A row begins with what its environment said, behind the system message of the graph; of the graph's own prompt there is none.
status 0 "$gr" exec opens.yaml --out opens --set run.samples=8 --steps 2
has opens/samples.jsonl '"prompt": "system:sumE\[add,mul\]user:x[0-9]+\+[0-9]+=Eassistant:"'
has opens/samples.jsonl '"sequence": 4, "prompt": "system:sumEuser:xxxx[0-9]+\+[0-9]+=Eassistant:"'
[ "$(grep -c 'E\[add,mul\]user:' opens/samples.jsonl)" = 8 ] || fail "not every other conversation has tools"
# The tools are those of the whole conversation, also where the template shows them again; they and the messages are no one's loss.
has opens/samples.jsonl '"prompt": "[^"]*\[add,mul\]user:[^"]*".*\{"by": "environment", "text": "E?\[add,mul\]user:\+[1-4]Eassistant:"\}'
lacks opens/samples.jsonl '"prompt": "system:sumEuser:[^"]*", "response": "[^"]*add,mul'
for k in 1 2; do
    [ "$(metric opens $k counted)" = "$(metric opens $k length)" ] || fail "a length is not of the model's tokens"
    [ "$(metric opens $k off) $(metric opens $k rollout.failed)" = "0 0" ] || fail "log-probs are not those of the sampler"
done

# Slots, blocks, budgets, an order of answers, and a process that dies change no bit.
for few in kv_blocks=9 concurrent=5; do
    status 0 "$gr" exec opens.yaml --set nodes.rollout.$few --out few --steps 2
    same_weights opens few
    rm -r few
done
status 0 "$gr" plan opens.yaml --format json -o plan.json
status 0 "$gr" verify plan.json
if [ "$slow" = 1 ]; then
    status 0 "$gr" exec opens.yaml --out checked --check-memory --steps 2
    same_weights opens checked
fi
opens die.yaml die "opens: true"
status 0 "$gr" exec die.yaml --out die --steps 2
[ -e died ] || fail "the environment never died"
same_weights opens die 2

# What a start may say: tools alone, a text behind them, or nothing, which is the graph's prompt with the bits it has without `opens`.
start() { # WAY PATTERN: a run whose prompts and responses have this
    opens "$1.yaml" "$1" "opens: true"
    status 0 "$gr" exec "$1.yaml" --out "$1" --steps 2 --set run.samples=4
    [ "$(metric "$1" 2 off) $(metric "$1" 2 rollout.failed)" = "0 0" ] || fail "$1: log-probs are not those of the sampler"
    has "$1/samples.jsonl" "$2"
}
start tools '"prompt": "system:sumE\[add,mul\]user:[0-9]+\+[0-9]+=Eassistant:"'
start text '"prompt": "system:sumE\[add,mul\]user:[0-9+]+=Eassistant:", "response": "go.*\{"by": "environment", "text": "go"\}'
start none '"prompt": "system:sumEuser:[0-9]+\+[0-9]+=Eassistant:"'
opens closed.yaml none ""
status 0 "$gr" exec closed.yaml --out closed --steps 2
same_weights none closed 2

# ---- records, kept rows, ranks ----------------------------------------------------------------------------------------

# Rows that are kept, with answers at random times: repeated from the record, and gone on with from it, tools included.
opens keep.yaml slow "opens: true, record: answers.jsonl, workers: 2"
sed -i 's/^  rollout: {/&lag: 3, over: 1.5, /' keep.yaml
sed 's|command: "[^"]*"|replay: answers.jsonl|; s/, record: answers.jsonl, workers: 2//' keep.yaml >again.yaml
status 0 "$gr" exec keep.yaml --out keep --steps 4
has answers.jsonl '"tools":\[\{'
status 0 "$gr" exec again.yaml --out again --steps 4
same_weights keep again
same_metrics keep again
status 0 "$gr" exec again.yaml --out again2 --steps 2
status 0 "$gr" exec --resume again2 --steps 4
same_weights keep again2
same_metrics keep again2
# With the environment itself: told again, it opens as before, and what was kept goes on as it was.
opens told.yaml "" "opens: true"
sed -i 's/^  rollout: {/&over: 1.5, /' told.yaml
status 0 "$gr" exec told.yaml --out told --steps 2 --set run.samples=8
status 0 "$gr" exec --resume told --steps 4
for k in 1 2 3 4; do [ "$(metric told $k rollout.failed)" = 0 ] || fail "conversations that were told again failed"; done
lacks told/samples.jsonl '"prompt": "system:sumEuser:[^"]*", "response": "[^"]*add,mul'
lacks told/samples.jsonl '"prompt": "system:sumE\[[^"]*", "response": "[^"]*Euser'

# The shipped environment that opens: it answers, and pays the number that it has.
if python3 -c 'import json' 2>/dev/null; then
    lock="python3 $project/graphs/environments/lock.py"
    status 0 "$gr" exec opens.yaml --out lock --steps 1 --set nodes.prompts.max_tokens=90 --set nodes.rollout.max_context=200 \
        --set "nodes.rollout.environment={command: \"$lock\", opens: true, metrics: [tries, calls]}"
    has lock/samples.jsonl '"prompt": "system:sumE\[try\]user:.pen the lock. .ts number is from 0 to 99.Eassistant:"'
    [ "$(metric lock 1 rollout.failed)" = 0 ] || fail "lock.py failed"
    $lock >out <<'END'
{"id": 1, "type": "start", "record": {"answer": "142"}}
{"id": 1, "type": "step", "turn": 0, "text": "", "token_ids": [], "tool_calls": [{"name": "try", "arguments": {"number": 7}}, {"error": "not JSON", "text": "{"}, {"name": "try", "arguments": {}}], "last": false}
{"id": 1, "type": "step", "turn": 1, "text": "", "token_ids": [], "tool_calls": [{"name": "try", "arguments": {"number": 42}}], "last": false}
END
    has out '"content": "It is higher."\}, \{"role": "tool", "content": "not JSON"\}, \{"role": "tool", "content": "The tool is try, with a number."\}\], "metrics": \{"tries": 3\}\}$'
    has out '^\{"id": 1, "done": true, "reward": 1.0, "metrics": \{"tries": 1\}\}$'
fi

# A server.
if [ -x "$(dirname "$gr")/graphrun-http" ] && perl -MIO::Socket::INET -e 1 2>/dev/null; then
    perl "$here/server.pl" &
    until [ -s PORT ]; do sleep 0.02; done
    status 0 "$gr" exec opens.yaml --out server --steps 1 --set run.samples=8 \
        --set "nodes.rollout.environment={http: \"http://127.0.0.1:$(cat PORT)/opens\", opens: true, metrics: [calls]}"
    has server/samples.jsonl '"prompt": "system:sumE\[add\]user:goEassistant:".*\{"by": "environment", "text": "\+[1-4]="\}'
    [ "$(metric server 1 rollout.failed) $(metric server 1 off)" = "0 0" ] || fail "a server's openings"
fi

# Each conversation has a prompt of its own, also when it comes again in a later iteration.
with_replay opens.yaml replay.yaml 'samples: 2, size: 50, keep: 1'
comes_again replay.yaml 3

# A validation.
sed -e 's/^nodes:/&\n  held: {op: prompts, file: $data, batch: 8, max_tokens: 60, template: chat, messages: "{question}", every: 2}/' \
    -e "s|^  update:|  test: {op: generate, every: 2, model: actor, prompts: held, max_tokens: 4, turns: 2, max_context: 130, environment: {command: \"perl $here/opener.pl\", opens: true}}\n  paid: {op: reward, of: test, from: environment, every: 2}\n&|" \
    opens.yaml >validated.yaml
status 0 "$gr" exec validated.yaml --out validated --steps 2
[ -n "$(metric validated 2 val.paid)" ] || fail "a validation is not paid"
same_weights opens validated 2

if runs_ranks; then
    status 0 "$gr" exec opens.yaml --ranks 2 --out ranks2 --steps 2 --set run.samples=8
    head -n 8 opens/samples.jsonl | sed 's/, "advantage".*//' >one
    head -n 8 ranks2/samples.jsonl | sed 's/, "advantage".*//' >two
    cmp one two || fail "two ranks: other conversations"
fi

# ---- what goes wrong --------------------------------------------------------------------------------------------------

fails() { # WAY KEYS PATTERN: the conversations fail, for this reason
    opens "$1.yaml" "$1" "$2"
    status 1 "$gr" exec "$1.yaml" --out "$1-fails" --steps 1
    has err "$3"
}
for way in bad-messages bad-tool template long tools; do
    case $way in
    bad-messages) keys="opens: true" why="bad reply of the environment: message 0, counted from 0, is no object with a 'role'" ;;
    bad-tool) keys="opens: true" why="bad reply of the environment: tool 0, counted from 0, is a string; an object is wanted" ;;
    template) keys="opens: true" why="who\?" ;;
    long) keys="opens: true" why="opens with 127 tokens, but node 'prompts' allows 60 \(too_long: truncate_left cuts them\)" ;;
    tools) keys="" why="'messages' and 'tools' answer a start where 'environment' has 'opens: true'" ;;
    esac
    fails "$way" "$keys" "none came to an end.*$why"
done
opens cut.yaml long "opens: true"
status 0 "$gr" exec cut.yaml --out cut --steps 1 --set nodes.prompts.too_long=truncate_left
has cut/samples.jsonl '"prompt": "x{49}Eassistant:"'

refused "'opens' must be true or false" "$gr" plan opens.yaml --set nodes.rollout.environment.opens=maybe
refused "'opens' goes with prompts of 'template: chat'" "$gr" plan opens.yaml --set 'nodes.prompts={op: prompts, file: train.jsonl, batch: 8, max_tokens: 60, template: "{question}"}'
refused "has no prompt that is its own" "$gr" check opens.yaml --set 'nodes.both={op: join, of: rollout, responses: "{answer}", max_tokens: 8}' --set 'log.n=batch_count(both.length)'
refused "'opens' does not go with 'serve'" "$gr" plan opens.yaml --set 'nodes.rollout.serve={port: 0}'
