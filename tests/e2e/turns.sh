#!/bin/sh
# Conversations: turns, what an environment says, masks, failures, records, budgets, resumed runs, ranks.
. "$(dirname "$0")/lib.sh"

turns turns.yaml ""
ASKED=asked status 0 "$gr" exec turns.yaml --out turns
[ "$(metric turns 1 counted)" = "$(metric turns 1 length)" ] || fail "a length is not of the model's tokens"
[ "$(metric turns 1 response_tokens_mean)" = "$(metric turns 1 length)" ] || fail "a mean counts other tokens"
[ "$(metric turns 1 calls)" = "$(metric turns 1 rollout.calls)" ] || fail "the environment's metrics are others"
[ "$(metric turns 1 turns)" = "$(metric turns 1 rollout.turns_mean)" ] || fail "turns are counted in two ways"
[ "$(metric turns 1 logprob_gap_max)" = 0 ] || fail "keys kept over turns are not those of one pass"
has asked '"text":"[^"]*","token_ids":\[[0-9,]+\],"tool_calls":\[\],"last":(true|false),"type":"step","turn":2'
awk -F'"last":' '/"turn":2/ && $2 !~ /^true/ { bad = 1 } END { exit bad }' asked || fail "a last turn is not said to be the last"

# Ids are exact: those that the environment was told are those that count, and no others.
ASKED=told status 0 "$gr" exec turns.yaml --out told-run --steps 1 --set 'log.ids=batch_sum(seq_sum(rollout.token))' --set 'log.n=batch_sum(seq_count(rollout.model))'
sed -E 's/.*"token_ids":\[([0-9,]*)\].*/\1/' told | tr ',' '\n' | awk '{ sum += $1; n++ } END { print sum, n }' >ids
[ "$(metric told-run 1 ids) $(metric told-run 1 n)" = "$(cat ids)" ] || fail "ids that count are not those that were sampled: $(cat ids)"

# A conversation of one turn has the bits of a response that nobody answers.
sed -E "s|^(  rollout: .*max_tokens: [0-9]+.*)\}\$|\\1, turns: 1, max_context: 14, environment: {command: \"perl $here/say.pl slow\"}}|" grpo.yaml >one.yaml
has one.yaml 'turns: 1'
status 0 "$gr" exec grpo.yaml --out alone --steps 2
status 0 "$gr" exec one.yaml --out one --steps 2
same_weights alone one

# When an environment answers, in which order, and how many processes it is, changes no bit; nor do the slots and blocks
# that the rollout has, nor a budget.
turns slow.yaml slow "workers: 3, in_flight: 7"
status 0 "$gr" exec slow.yaml --out slow
same_weights turns slow
same_metrics turns slow
for few in concurrent=5 kv_blocks=3 $([ "$slow" = 0 ] || echo concurrent=1); do
    status 0 "$gr" exec turns.yaml --set nodes.rollout.$few --out few
    same_weights turns few
    rm -rf few
done
# A conversation has its slot up to its last turn: what its environment says then, however late, holds nobody up. One that begins
# anew behind it gets a slot again.
turns last.yaml "last 1"
status 0 "$gr" exec last.yaml --out last --steps 2
turns late.yaml "last 32"
sed -i 's/timeout: 5s/timeout: 60s/' late.yaml
status 0 "$gr" exec late.yaml --set nodes.rollout.concurrent=3 --out late --steps 2
same_weights last late
same_metrics last late
turns die-last.yaml die-last
status 0 "$gr" exec die-last.yaml --set nodes.rollout.kv_blocks=3 --out die-last --steps 2
[ -e died ] || fail "no process died at a last turn"
rm died
same_weights last die-last
any_budget turns turns
any_stop turns turns 6 $([ "$slow" = 0 ] || echo 2) 5

# Tokens that an environment said count nowhere: to leave them out once more changes nothing, and none of them is one of
# the model's.
sed -e 's/^  old_logprob: /  own: {op: select, of: rollout, tokens: rollout.model}\n&/' -e 's/of: rollout}$/of: own}/' -e 's/    of: rollout$/    of: own/' \
    turns.yaml | sed -e '/^  reward: /s/of: rollout/of: own/' -e '/^  score: /s/of: rollout/of: own/' -e '/^  off: /d' >own.yaml
status 0 "$gr" exec own.yaml --out own
same_weights turns own
cat >>turns.yaml <<'END'
  said: batch_sum(seq_count(not rollout.model))
END
status 0 "$gr" exec turns.yaml --out said --steps 1
[ "$(metric said 1 said)" = 0 ] || fail "an expression sees what an environment said"
sed -i '$ d' turns.yaml

# The reward of each turn on its last token.
sed 's/from: environment/from: environment, level: token/; s/expr: reward}/expr: seq_sum(reward)}/' turns.yaml >credit.yaml
status 0 "$gr" exec credit.yaml --out credit
same_weights turns credit

# A rule reads what the model said, and nothing that its environment did: "+3=" is only ever said by that.
sed 's|^  reward: .*|  reward: {op: reward, of: rollout, answer: prompts.answer, rule: {extract: "[+](3)=", answer_extract: "(3)", compare: string}}|; s/train.jsonl/three.jsonl/' \
    turns.yaml >rule.yaml
sed 's/"answer": "[^"]*"/"answer": "3"/' train.jsonl >three.jsonl
status 0 "$gr" exec rule.yaml --out rule --steps 1 --set run.samples=32
has rule/samples.jsonl '\{"by": "environment", "text": "\+3="\}'
[ "$(metric rule 1 reward_mean)" = 0 ] || fail "a rule pays for what an environment said: $(metric rule 1 reward_mean)"
status 0 "$gr" exec rule.yaml --out words --steps 1 --set 'nodes.reward.rule={extract: "^([0-9])", answer_extract: "(3)", compare: string, take: first}' --set run.samples=32
[ "$(grep -c '"response": "3' words/samples.jsonl)" = "$(grep -c '"reward": 1' words/samples.jsonl)" ] || fail "a rule does not read what the model said"
sed 's/^  reward: {op: reward, of: rollout/  some: {op: select, of: rollout, tokens: "rollout.position < 3"}\n  reward: {op: reward, of: some/' rule.yaml >some.yaml
refused "a rule reads what the model said, and 'some' has left out tokens of conversations" "$gr" plan some.yaml

# ---- messages ---------------------------------------------------------------------------------------------------------

# The chat template is applied to what is new alone, behind the model's own tokens; what the environment says cannot end a
# message. The template says the end of a turn that a stop text ended.
cp -r "$project/tests/cli/model" chat-model
cat >template <<'END'
{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}
END
sed -E "s|\"chat_template\": \".*\"|\"chat_template\": \"$(cat template)\"|" "$project/tests/cli/model/tokenizer_config.json" >chat-model/tokenizer_config.json
"$gr" init --config chat-model/config.json --tokenizer chat-model --seed 1 -o chat >/dev/null
turns chat.yaml messages
sed -i -e 's/template: "{question}"/template: chat, messages: "{question}"/; s/max_tokens: 8/max_tokens: 40/; s/max_context: 32/max_context: 200, stop: ["a", "b", "c", "5"]/' chat.yaml
status 0 "$gr" exec chat.yaml --out chat-run --steps 2 --set model=chat --set run.samples=8
has chat-run/samples.jsonl '\{"by": "environment", "text": "Etool:\+[1-4]Euser:\?UEassistant:"\}'
[ "$(metric chat-run 1 rollout.failed)$(metric chat-run 1 logprob_gap_max)" = 00 ] || fail "a conversation by the chat template"
status 0 "$gr" exec turns.yaml --out plain --steps 1 --set "nodes.rollout.environment.command=\"perl $here/say.pl messages\""
has out "an environment answers with 'messages' where prompts have 'template: chat'"

# ---- what goes wrong --------------------------------------------------------------------------------------------------

# One that dies and is started again: each conversation begins anew and samples the same.
turns die.yaml die
status 0 "$gr" exec die.yaml --out die
[ -e died ] || fail "the environment never died"
same_weights turns die
same_metrics turns die
for way in die-always hang lie large; do
    turns $way.yaml $way
    if [ $way = hang ]; then limit=1s; else limit=60s; fi
    sed -i "s/timeout: 5s/timeout: $limit, retries: 0, workers: 32, in_flight: 1/" $way.yaml
    status 0 "$gr" exec $way.yaml --out $way --steps 2
    [ "$(metric $way 1 rollout.failed)" -gt 0 ] || fail "$way: no conversation failed"
    has out "node 'rollout': [0-9]+ conversations failed and count nowhere; the first: sequence [0-9]+: "
    rm -f died
done
has out "bad reply of the environment: too long: '..id\":"
sed -i 's/retries: 0/retries: 1/' large.yaml
status 0 "$gr" exec hang.yaml --out hang2 --steps 1
has out 'sequence [0-9]+: no reply of the environment within 1 seconds'
[ "$(metric hang2 1 stopped)" = 3 ] || fail "a conversation that took too long stopped for $(metric hang2 1 stopped)"
status 0 "$gr" exec lie.yaml --out lie2 --steps 1
has out "bad reply of the environment: no 'id' of a request: "

status 1 "$gr" exec turns.yaml --out none --set nodes.rollout.environment.command=no-such-program
has err "turns.yaml:9:.*node 'rollout': of 32 conversations none came to an end, and none did before: sequence [0-9]+: the environment exited with status 127"

# ---- a record of answers ----------------------------------------------------------------------------------------------

turns record.yaml slow "record: answers.jsonl"
status 0 "$gr" exec record.yaml --out record
sed 's|command: "[^"]*"|replay: answers.jsonl|; s/, record: answers.jsonl//' record.yaml >replay.yaml
status 0 "$gr" exec replay.yaml --out replay
same_weights record replay
same_metrics record replay
status 1 "$gr" exec replay.yaml --out other --set run.seed=8
has err "'answers.jsonl' has no answer [0-9.]+ \(iteration.round.sequence.try.message\)"

sed -e '/^  rollout: /{p;s/rollout/second/}' record.yaml >twice.yaml
refused "'rollout' and 'second' have one file of answers, 'answers.jsonl'" "$gr" plan twice.yaml

# ---- what is refused --------------------------------------------------------------------------------------------------
status 0 "$gr" plan turns.yaml --device cuda --hardware h200
status 0 "$gr" plan turns.yaml --device cuda --hardware h200 --set strict=true

refused "unknown key 'comand' in environment; did you mean 'command'" "$gr" plan turns.yaml --set 'nodes.rollout.environment={comand: x}'
refused "'environment' is a map with 'command'" "$gr" plan turns.yaml --set 'nodes.rollout.environment={workers: 2}'
refused "max_context: 11 holds no prompt of 8 tokens and one turn of 4" "$gr" plan turns.yaml --set nodes.rollout.max_context=11
refused "'turns' goes with 'environment'" "$gr" plan grpo.yaml --set nodes.rollout.turns=2
refused "no environment answers the turns of 'rollout'" "$gr" plan grpo.yaml --set 'nodes.reward={op: reward, of: rollout, from: environment}'
refused "'length' is a value of each 'generate' node" "$gr" plan turns.yaml --set 'nodes.rollout.environment.metrics=[length]'
refused "'failed' is a value of each 'generate' node" "$gr" plan turns.yaml --set 'nodes.rollout.environment.metrics=[failed]'
refused "'turns_mean' is a value of each" "$gr" plan turns.yaml --set 'nodes.rollout.environment.metrics=[turns_mean]'
refused "'calls' is there twice" "$gr" plan turns.yaml --set 'nodes.rollout.environment.metrics=[calls, calls]'
refused "must be a number of seconds" "$gr" plan turns.yaml --set nodes.rollout.environment.timeout=10m

# ---- validations ------------------------------------------------------------------------------------------------------

sed -e 's/^nodes:/&\n  held: {op: prompts, file: $data, batch: 8, max_tokens: 8, template: "{question}", every: 2}/' \
    -e "s|^  update:|  test: {op: generate, every: 2, model: actor, prompts: held, max_tokens: 4, turns: 2, max_context: 32, environment: {command: \"perl $here/say.pl\", metrics: [calls]}}\n  paid: {op: reward, of: test, from: environment, every: 2}\n&|" \
    turns.yaml >validated.yaml
status 0 "$gr" exec validated.yaml --out validated --steps 2
[ "$(metric validated 2 val.test.calls)" = "$(metric validated 2 val.test.turns_mean)" ] || fail "a validation's environment"
[ -n "$(metric validated 2 val.paid)" ] || fail "a validation is not paid"

# ---- ranks ------------------------------------------------------------------------------------------------------------

if runs_ranks; then
    status 0 "$gr" exec turns.yaml --ranks 2 --out ranks2 --steps 2
    for name in reward_mean turns length rollout.calls rollout.failed; do
        [ "$(metric ranks2 1 $name)" = "$(metric turns 1 $name)" ] || fail "two ranks: $name differs"
    done
    cat >split.yaml <<END
graph: tiny
use: turns.yaml
pools: {train: {share: 1}, rollout: {share: 1}, reference: {with: rollout}}
models: {actor: {pool: train}, ref: {pool: reference}}
nodes: {rollout: {pool: rollout}}
END
    status 0 "$gr" exec split.yaml --ranks 2 --out split --steps 2
    for name in reward_mean turns length rollout.calls rollout.failed; do
        [ "$(metric split 2 $name)" = "$(metric turns 2 $name)" ] || fail "two pools: $name differs"
    done
fi
