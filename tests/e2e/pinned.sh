#!/bin/sh
# What a run reads is pinned by its checkpoints: --resume refuses each file that is another one by then, names what it was
# and what it is, and leaves the run as it was; with --accept-changes it warns, goes on, and pins what is there. What changes
# behind a run that goes on is an error that names it.
. "$(dirname "$0")/lib.sh"

cp -r model reference
cp model/config.json tiny.json
sed -i 's|ref:   {checkpoint: $model}|ref:   {checkpoint: reference}|; s/schedule: cosine/schedule: constant/' grpo.yaml
cat >reward.sh <<'END_REWARD'
#!/bin/sh
while read -r line; do
    id=${line#*'"id":'}
    echo "{\"id\": ${id%%[,\}]*}, \"score\": $(wc -c <"$1")}"
done
END_REWARD
echo one >rules.txt
sed 's/rule: {.*compare: string}/command: "exec sh reward.sh rules.txt", workers: 1/' grpo.yaml >command.yaml
printf '{%%- for m in messages %%}{{ m.content }}{%%- endfor %%}' >model/chat_template.jinja

status 0 "$gr" exec command.yaml --out first --steps 2
has first/checkpoints/step-2/manifest.json '"owner": "models.ref"'
hash=$(sed -n '/"name": "train.jsonl"/,/}/p' first/checkpoints/step-2/manifest.json | sed -nE 's/.*"xxh3": "([0-9a-f]{32})".*/\1/p')
[ ${#hash} = 32 ] || fail "no hash of the data in the manifest"

sums() { # RUN: of all it has
    find "$1" -type f ! -name .lock -exec md5sum {} + | sort
}

# changed NAME OWNER COMMAND...: after COMMAND the run is refused for the sake of this file alone, goes on when it is accepted,
# and is not asked again
changed() {
    name=$1 owner=$2
    shift 2
    rm -rf run
    cp -r first run
    "$@"
    sums run >before.sums
    refused "error: '$name' of $owner is not what the checkpoint was made with: it was .*, and is " "$gr" exec --resume run --steps 3
    [ "$(grep -c ' error: ' err)" = 1 ] || fail "more than one error: $(cat err)"
    has err 'note: .*--accept-changes'
    sums run | diff before.sums - || fail "a run that was refused is another one"
    status 0 "$gr" exec --resume run --steps 3 --accept-changes
    has err "warning: '$name' of $owner is not what the checkpoint was made with: it was .*, and is "
    status 0 "$gr" exec --resume run --steps 4
    lacks err "is not what the checkpoint"
}

# back: files as they were
mkdir kept
cp -r model reference train.jsonl reward.sh rules.txt kept
back() {
    rm -rf model reference
    cp -r kept/. .
}

# Nothing, or nothing that counts: times, another folder of the same bytes.
cp -r first run
find model reference train.jsonl reward.sh -type f -exec touch {} +
mkdir moved && cp -r reference moved/reference
status 0 "$gr" exec --resume run --steps 3 --set models.ref.checkpoint=moved/reference
[ ! -s err ] || fail "the same bytes: $(cat err)"
status 0 "$gr" exec --resume run --steps 4
[ ! -s err ] || fail "the same bytes: $(cat err)"
# The weights that training began with are not read again; they stay in the list.
"$gr" init --config tiny.json --tokenizer "$project/graphs/quickstart" --seed 5 -o elsewhere >/dev/null
cp elsewhere/model.safetensors model/model.safetensors
status 0 "$gr" exec --resume run --steps 5
[ ! -s err ] || fail "weights that are not read: $(cat err)"
for step in 2 5; do
    sed -n '/"inputs"/,$p' run/checkpoints/step-$step/manifest.json | grep -A6 '"kind": "weights"' | grep xxh3 >weights.$step
done
[ "$(wc -l <weights.2)" = 2 ] || fail "weights of two models are read: $(cat weights.2)"
[ "$(sort weights.2)" = "$(sort weights.5)" ] || fail "what training began with is not pinned any more"
back

append() { # FILE: one byte more that means nothing
    echo >>"$1"
}
weights() { # of the frozen model
    cp elsewhere/model.safetensors reference/model.safetensors
}
changed train.jsonl nodes.prompts sed -i '1s/[0-9]/9/' train.jsonl
cmp -s train.jsonl kept/train.jsonl && fail "the data is the same"
back
changed train.jsonl nodes.prompts append train.jsonl
back
changed model.safetensors models.ref weights
back
changed config.json models.ref append reference/config.json
back
changed tokenizer_config.json models.actor append model/tokenizer_config.json
back
changed chat_template.jinja models.actor rm model/chat_template.jinja
has run/checkpoints/step-4/manifest.json '"name": "tokenizer_config.json"'
lacks run/checkpoints/step-4/manifest.json 'chat_template.jinja'
back
echo '{"eos_token_id": 1}' >generation.json
changed generation_config.json models.actor cp generation.json model/generation_config.json
back
changed reward.sh nodes.reward append reward.sh
back
changed rules.txt nodes.reward append rules.txt
back

# What a command prints.
sed 's|file: $data|command: "cat train.jsonl"|' grpo.yaml >printed.yaml
has printed.yaml 'command: "cat'
status 0 "$gr" exec printed.yaml --out printed --steps 2
append train.jsonl
refused "'output of 'cat train.jsonl'' of nodes.prompts is not what" "$gr" exec --resume printed --steps 3
back

# Another build of the program is said, and goes on.
cp "$gr" program
printf ' ' >>program
cp -r first run2
status 0 env GRAPHRUN_MPI="${GRAPHRUN_MPI-}" ./program exec --resume run2 --steps 3
has err 'warning: this is another build of program: it was [0-9]+ bytes, xxh3 '

# ---- behind a run

# behind COMMAND...: a run of command.yaml that has begun when COMMAND is executed, and has to end by it
behind() {
    rm -rf run
    "$gr" exec command.yaml --out run --set run.steps=1000000 --set run.checkpoint.every=5 --set run.checkpoint.keep=2 >out 2>err &
    pid=$!
    while [ -z "$(ls run/checkpoints 2>/dev/null)" ]; do sleep 0.05; kill -0 $pid || fail "it does not start: $(cat err)"; done
    "$@"
    got=0
    wait $pid || got=$?
    [ $got = 1 ] || fail "exit status $got: $(cat err)"
}

in_place() { # all numbers of the data, and not one byte more
    tr '0-9' '1-90' <train.jsonl >new
    dd if=new of=train.jsonl conv=notrunc status=none
}
behind in_place
has err 'train.jsonl:[0-9]+:1: error: the file has changed while in use: this is not the row it was'
back
behind append model/tokenizer_config.json
has err "error: 'tokenizer_config.json' of models.actor has changed while the run uses it: it was [0-9]+ bytes, xxh3 .*, and is "
n=$(last_step run)
back
status 0 "$gr" exec --resume run --steps $((n + 1)) # which is as it was

# A worker that is started again is the one it was: this one ends after each reply.
sed -i 's/^done/exit 0; done/' reward.sh
behind append reward.sh
has err "error: 'reward.sh' of nodes.reward has changed while the run uses it"
