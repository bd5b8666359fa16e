#!/bin/sh
# Rollouts that are served: harnesses bring their own loop and call for each turn of the model.
. "$(dirname "$0")/lib.sh"
[ -x "$(dirname "$gr")/graphrun-httpd" ] || { echo "built without libmicrohttpd: skipped"; exit 77; }
perl -MIO::Socket::INET -e 1 2>/dev/null || { echo "no perl with sockets: skipped"; exit 77; }

served() { # FILE WAY [KEYS]: sessions of two turns, of harness.pl
    turns "$1" "" "workers: 4, in_flight: 1${3:+, $3}"
    sed -i "s|perl [^\"]*\"|perl $here/harness.pl $2\"|; s|, environment:|, serve: {port: 0}, environment:|; s|steps: 6|steps: 3|" "$1"
}
exact='--set log.ids=batch_sum(seq_sum(rollout.token)) --set log.n=batch_sum(seq_count(rollout.model))'

# ---- sessions by token ids --------------------------------------------------------------------------------------------

served served.yaml tokens
SAMPLED=sampled status 0 "$gr" exec served.yaml --out served
for name in logprob_gap_max off rollout.failed; do
    [ "$(metric served 1 $name)" = 0 ] || fail "$name is $(metric served 1 $name)"
done
[ "$(metric served 1 rollout.turns_mean) $(metric served 1 turns)" = "2 2" ] || fail "a session has not two turns"
[ "$(metric served 1 calls)" = 1 ] || fail "a harness's metrics are lost"
has served/samples.jsonl '"prompt": "[0-9]", .*"segments": \[\{"by": "environment", "text": "[^"]*="\}, \{"by": "model", "text": "[^"]*"\}, \{"by": "environment", "text": "\+[1-4]="\}, \{"by": "model"'

# Ids are exact: those that the harness got are those that count, and no others.
# shellcheck disable=SC2086 # settings have no spaces
SAMPLED=told status 0 "$gr" exec served.yaml --out told-run --steps 1 $exact
tr ',' '\n' <told | awk '{ sum += $1; n++ } END { print sum, n }' >ids
[ "$(metric told-run 1 ids) $(metric told-run 1 n)" = "$(cat ids)" ] || fail "ids that count are not those that were sampled: $(cat ids)"

# When calls come, and to how many processes, changes no bit; nor does a call that is made twice, a process that dies, or
# the slots of the rollout. Nor does what is refused.
for way in again die faults $([ "$slow" = 0 ] || echo slow); do # slow is in a record, too, below
    served $way.yaml $way
    status 0 "$gr" exec $way.yaml --out $way
    [ ! -s wrong ] || fail "$way: $(cat wrong)"
    same_weights served $way
    same_metrics served $way
done
[ -e died ] || fail "no harness died"
status 0 "$gr" exec served.yaml --set nodes.rollout.concurrent=3 --out few
same_weights served few
any_stop served served 3 2

# ---- messages ---------------------------------------------------------------------------------------------------------

# The chat template is applied to what is new alone. Sessions go by the messages, or by the ids beside messages that say
# something else.
cp -r "$project/tests/cli/model" chat-model
cat >template <<'END'
{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}
END
sed -E "s|\"chat_template\": \".*\"|\"chat_template\": \"$(cat template)\"|" "$project/tests/cli/model/tokenizer_config.json" >chat-model/tokenizer_config.json
"$gr" init --config chat-model/config.json --tokenizer chat-model --seed 1 -o chat >/dev/null
for way in chat prefix whole stream; do
    served $way.yaml $way
    sed -i 's/max_context: 32/max_context: 60/' $way.yaml
    rm -f told
    # shellcheck disable=SC2086
    SAMPLED=told status 0 "$gr" exec $way.yaml --out $way-run --steps 1 --set model=chat --set run.samples=8 $exact
    tr ',' '\n' <told | awk '{ sum += $1; n++ } END { print sum, n }' >ids
    [ "$(metric $way-run 1 ids) $(metric $way-run 1 n)" = "$(cat ids)" ] || fail "$way: ids that count are not those that were sampled"
    [ "$(metric $way-run 1 rollout.failed)$(metric $way-run 1 logprob_gap_max)" = 00 ] || fail "a session by messages"
    has $way-run/samples.jsonl '\{"by": "environment", "text": "ser:[0-9+]*=Eassistant:"\}'
    if [ $way = whole ]; then tail="tool:"; else tail="E?tool:[1-4]Eassistant:"; fi
    has $way-run/samples.jsonl "\{\"by\": \"environment\", \"text\": \"$tail\"\}"
done
same_metrics chat-run prefix-run
same_metrics chat-run stream-run
if python3 -c 'import urllib' 2>/dev/null; then # the shipped graph and its harness
    cat >agent.yaml <<END
graph: agent
use: [$project/graphs/grpo_served.yaml]
params: {model: $work/chat, data: $work/train.jsonl, environment: "python3 $project/graphs/environments/agent.py", batch: 8, group: 2, mini_batch: 8, max_tokens: 6, max_context: 60}
run: {samples: 8}
END
    status 0 "$gr" exec agent.yaml --out agent --steps 1
    [ "$(metric agent 1 rollout.failed)$(metric agent 1 logprob_gap_max)" = 00 ] || fail "the shipped harness"
    has agent/samples.jsonl '\{"by": "environment", "text": "ser:[0-9+]*=Eassistant:"\}, \{"by": "model"'
fi
status 1 "$gr" exec chat.yaml --out plain --steps 1 --set nodes.rollout.environment.retries=0
has err "v1/chat/completions: 400 .*messages need the checkpoint's chat template"

# ---- a record of calls ------------------------------------------------------------------------------------------------

served record.yaml slow "record: calls.jsonl"
status 0 "$gr" exec record.yaml --out record
same_weights served record
sed 's|command: "[^"]*"|replay: calls.jsonl|; s/, record: calls.jsonl//; s/workers: 4, in_flight: 1/retries: 1/' record.yaml >replay.yaml
status 0 "$gr" exec replay.yaml --out replay
same_weights record replay
same_metrics record replay

# ---- what goes wrong --------------------------------------------------------------------------------------------------

for way in hang lie; do
    served $way.yaml $way "retries: 0"
    sed -i 's/workers: 4/workers: 16/' $way.yaml
    if [ $way = hang ]; then sed -i 's/timeout: 5s/timeout: 2s/' hang.yaml; fi
    status 0 "$gr" exec $way.yaml --out $way --steps 1
    [ "$(metric $way 1 rollout.failed)" -gt 0 ] || fail "$way: no session failed"
    [ "$(metric $way 1 rollout.failed)" -lt 32 ] || fail "$way: every session failed"
done
has out "bad reply of the environment: no 'id' of a request: "
[ "$(metric hang 1 stopped)" = 3 ] || fail "a session that took too long stopped for $(metric hang 1 stopped)"

# The process of the wire is killed: calls that it had are made again, and nothing else is seen of it.
served killed.yaml killed
status 0 "$gr" exec killed.yaml --out killed
[ -e died-wire ] || fail "the wire never died"
same_weights served killed

# The wire by itself: who comes without the token, too large, too slow, or as one too many.
mkfifo wire.in
"$(dirname "$gr")/graphrun-httpd" --patience 1 --calls 2 --body 1000 <wire.in >wire.out &
wire_pid=$!
exec 3>wire.in
echo '{"token": "secret"}' >&3
perl "$here/flood.pl" wire.out || fail "the wire"
exec 3>&-
wait $wire_pid || fail "the wire ended with status $?"

# ---- what is refused --------------------------------------------------------------------------------------------------

status 0 "$gr" plan served.yaml --device cuda --hardware h200
status 0 "$gr" plan served.yaml --device cuda --hardware h200 --set strict=true
refused "unknown key 'prt' in serve; did you mean 'port'" "$gr" plan served.yaml --set 'nodes.rollout.serve={prt: 1}'
refused "'port' must be a whole number from 0 to 65535" "$gr" plan served.yaml --set nodes.rollout.serve.port=70000
refused "'body' must be a size from 1KiB to 1GiB" "$gr" plan served.yaml --set nodes.rollout.serve.body=1
refused "'token' goes into a header" "$gr" plan served.yaml --set 'nodes.rollout.serve.token="a b"'
refused "'serve' does not go with 'over'" "$gr" plan served.yaml --set nodes.rollout.over=1.5
refused "'serve' needs 'environment'" "$gr" plan grpo.yaml --set 'nodes.rollout.serve={}'
refused "max_context: 4 holds no turn of 4 tokens" "$gr" plan served.yaml --set nodes.rollout.max_context=4
sed 's/^  old_logprob: /  again: {op: prompts, of: rollout, template: "{prompt}", max_tokens: 40}\n&/' served.yaml >again.yaml
refused "rows that harnesses made .* have no prompt" "$gr" plan again.yaml
status 1 "$gr" exec served.yaml --out nowhere --steps 1 --set nodes.rollout.serve.host=192.0.2.1
has err "graphrun-httpd does not listen on 192.0.2.1, port 0"

# ---- ranks ------------------------------------------------------------------------------------------------------------

if runs_ranks; then
    status 0 "$gr" exec served.yaml --ranks 2 --out ranks2 --steps 2
    for name in reward_mean turns length rollout.calls rollout.failed; do
        [ "$(metric ranks2 1 $name)" = "$(metric served 1 $name)" ] || fail "two ranks: $name differs"
    done
fi
