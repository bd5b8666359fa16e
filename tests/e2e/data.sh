#!/bin/sh
# Where records come from, and in which order: a command that prints them, and curricula by a number in them.
. "$(dirname "$0")/lib.sh"

# A command is as good as the file it prints, after a resume too.
sed 's/file: $data/command: "cat train.jsonl"/; s/^params: {model: model, data: train.jsonl, /params: {model: model, /' grpo.yaml >command.yaml
flat='--set models.actor.train.schedule=constant'
status 0 "$gr" exec grpo.yaml $flat --out file
status 0 "$gr" exec command.yaml $flat --out command
same_weights file command
same_metrics file command
status 0 "$gr" exec command.yaml $flat --steps 2 --out part
status 0 "$gr" exec --resume part --steps 6
[ ! -s err ] || fail "resuming a command warns: $(cat err)"
# Its signals are its own: what writes to a reader that has gone is ended by that, and says nothing.
status 0 "$gr" exec command.yaml $flat --steps 1 --out piped --set 'nodes.prompts.command=(while cat train.jsonl; do :; done) 2>complaints | head -n 100'
[ ! -s complaints ] || fail "SIGPIPE is ignored in commands: $(head -n 3 complaints)"
same_weights file part
same_metrics file part

# Parameters are put into texts, quoted ones too; two dollars before a name are one, for the shell. A resumed run reads
# its own graph, where both are done.
cat >put.yaml <<'END'
graph: put
params: {data: train.jsonl, lines: 50, lead: "1+", by: longest}
models: {actor: {checkpoint: model, train: {lr: 1.0e-2}}}
nodes:
  prompts: {op: prompts, command: "n=$lines; head -n $$n $data", batch: 8, max_tokens: 12, template: "$lead{question}"}
  rollout: {op: generate, model: actor, prompts: prompts, samples: 4, max_tokens: 6}
  reward: {op: reward, of: rollout, command: "exec sh $by.sh"}
  advantage: {op: compute, expr: reward - group_mean(reward)}
  update: {op: update, model: actor, of: rollout, loss: -token_mean(advantage * logprob)}
run: {steps: 4, seed: 3}
END
cat >longest.sh <<'END'
while read -r line; do
    response=${line#*'"response":"'}
    response=${response%%'"'*}
    id=${line#*'"id":'}
    echo "{\"id\": ${id%%,*}, \"score\": ${#response}}"
done
END
status 0 "$gr" exec put.yaml --out put
has put/samples.jsonl '"prompt": "1[+][0-9]+[+][0-9]+="'
status 0 "$gr" exec put.yaml --out put-part --steps 2
has put-part/graph.yaml 'n=50; head -n \$\$n .*train.jsonl'
status 0 "$gr" exec --resume put-part --steps 4
same_weights put put-part
same_metrics put put-part
refused "unknown parameter 'n'; there are data, lines, lead, by" "$gr" exec put.yaml --out none --set 'nodes.prompts.command=n=5; head -n $n $data'
has err "note: for the text '.n' itself write '..n'"

# One that prints other rows now begins its epoch anew, and says so.
status 0 "$gr" exec command.yaml $flat --steps 2 --out moved --set 'nodes.prompts.command=head -n 100 train.jsonl'
status 0 "$gr" exec --resume moved --steps 3 --accept-changes --set 'nodes.prompts.command=tail -n 100 train.jsonl'
has err "warning: 'output of 'tail -n 100 train.jsonl'' of nodes.prompts is not what the checkpoint was made with: it was "
has err "warning: the data of node 'prompts' changed since the checkpoint: its epoch starts anew"

# What goes wrong is told before anything runs: status, what it said, and the line that is no row.
bad() { # PATTERN COMMAND
    refused "$1" "$gr" exec command.yaml --out bad --set "nodes.prompts.command=$2"
    rm -rf bad
}
bad "error: 'sh absent.sh' exited with status [0-9]+" 'sh absent.sh'
has err 'note: it said: .*absent.sh'
bad "was killed by signal 15" 'kill -15 $$'
bad "holds no rows" 'true'
bad "output of 'cat train.jsonl; echo 5':1001:1: error: the row is a number; an object is wanted" 'cat train.jsonl; echo 5'
bad "output of 'echo loading; cat train.jsonl':1:[0-9]+: error: not JSON" 'echo loading; cat train.jsonl'

# A curriculum: each epoch from the smallest to the largest, here by the sum of an addition of 20 records.
head -n 20 train.jsonl | sed -E 's/"answer": "([0-9]+)"/&, "sum": \1/' >sums.jsonl
course() { # RUN ...: the sums as they were drawn, one epoch a line
    run=$1
    shift
    status 0 "$gr" exec grpo.yaml --set data=sums.jsonl --set nodes.prompts.batch=4 --set nodes.update.mini_batch=2 \
        --set run.samples=4 --set nodes.prompts.curriculum=sum $flat --steps 10 --out "$run" "$@"
    drawn "$run"
}
drawn() { sed -E 's/.*"prompt": "([0-9]+)\+([0-9]+)=".*/\1 \2/' "$1/samples.jsonl" | awk '{print $1 + $2}'; }
sed -E 's/.*"sum": ([0-9]+).*/\1/' sums.jsonl | sort -n >up
course up.run >up.got
cat up up | diff - up.got || fail "not from the smallest to the largest"
sort -rn up >down
course down.run --set nodes.prompts.descending=true >down.got
cat down down | diff - down.got || fail "not from the largest to the smallest"

# Stopped within an epoch, it goes on where it was.
course stop.run --steps 3 >/dev/null
status 0 "$gr" exec --resume stop.run --steps 10
drawn stop.run | diff - up.got || fail "the curriculum of a resumed run"
same_weights up.run stop.run
same_metrics up.run stop.run

no() { # PATTERN --set ...
    pattern=$1
    shift
    refused "$pattern" "$gr" exec grpo.yaml --set data=sums.jsonl --out no "$@"
    rm -rf no
}
no "sums.jsonl:1:1: error: no field 'size'" --set nodes.prompts.curriculum=size
no "sums.jsonl:1:1: error: field 'answer' is a string; a number is wanted" --set nodes.prompts.curriculum=answer
no "error: 'descending' goes with 'curriculum'" --set nodes.prompts.descending=true

# Around messages: a system message, variables, tools and the date, which are part of the graph and of what fixes the bits.
cp -r model chat
echo "{% for m in messages %}{{ m.content }}{% endfor %}{{ n }}{% if tools %}1{% endif %}{% if day is defined %}{{ strftime_now('%d') }}{% endif %}=" >chat/chat_template.jinja
sed 's/^params: {model: model,/params: {model: chat, n: 3,/; s/template: "[^"]*"/template: chat, messages: "{question}", template_args: {n: $n}/; s/max_tokens: 8/max_tokens: 16/' grpo.yaml >chat.yaml
has chat.yaml 'template_args: \{n: \$n\}'
told() { # NUMERICS_FILE SETTING...
    file=$1
    shift
    status 0 "$gr" plan chat.yaml --format json $(for s in "$@"; do printf ' --set %s' "$s"; done)
    sed -nE 's/.*"numerics": *"([0-9a-f]+)".*/\1/p' out >"$file"
    [ -s "$file" ] || fail "no numerics"
}
told plain.bits
told n.bits n=4
told system.bits nodes.prompts.system=1
told date.bits nodes.prompts.date=2025-03-09
told day.bits nodes.prompts.template_args.day=1
[ "$(sort -u plain.bits n.bits system.bits date.bits day.bits | wc -l)" = 5 ] || fail "what a chat template is told does not count"
status 0 "$gr" exec chat.yaml --steps 1 --out chat.run --set run.samples=1
has chat.run/samples.jsonl '"prompt": "[0-9]+\+[0-9]+=?3='
lacks err warning
status 0 "$gr" exec chat.yaml --steps 1 --out day.run --set run.samples=1 --set nodes.prompts.template_args.day=true
has day.run/samples.jsonl '"prompt": "[0-9]+\+[0-9]+=?326='
has err "warning: node 'prompts': the chat template asks for today's date and gets 2024-07-26 in every run; 'date' sets another"
echo '[1]' >tools.json
status 0 "$gr" exec chat.yaml --steps 1 --out tools.run --set run.samples=1 --set nodes.prompts.tools_file=tools.json
has tools.run/samples.jsonl '"prompt": "[0-9]+\+[0-9]+=?31='
refused "'date' must be YEAR-MONTH-DAY, such as 2024-07-26, not 'today'" "$gr" check chat.yaml --set nodes.prompts.date=today
refused "'tools' must be a list of tools, or one" "$gr" check chat.yaml --set nodes.prompts.tools=x
refused "'template_args' must be a map of variables" "$gr" check chat.yaml --set nodes.prompts.template_args=x
refused "'system' goes with a chat template: template: chat" "$gr" check grpo.yaml --set nodes.prompts.system=x
