#!/bin/sh
# Checkpoints, tokenizers and data that lie: status 2, the place in the message, nothing left half done.
. "$(dirname "$0")/lib.sh"

exec_fails() { # PATTERN OPTION...: refused before the first iteration
    pattern=$1
    shift
    rm -rf run
    status 2 "$gr" exec grpo.yaml "$@" --out run
    has err "$pattern"
    lacks out '^step '
    [ ! -s run/metrics.jsonl ] || fail "an iteration was made of bad input: $*"
}

copy() { # NAME
    rm -rf "$1"
    cp -r model "$1"
}

# model.safetensors: cut short, a header that is no JSON, that is longer than the file, a tensor that is missing or of
# another name, a shape that is not the config's.
bytes=$(wc -c <model/model.safetensors)
for n in 0 4 8 100 $((bytes - 1)); do
    copy cut
    head -c $n model/model.safetensors >cut/model.safetensors
    exec_fails 'cut/model.safetensors' --set model=cut
done
copy noise
head -c 4000 /dev/urandom >noise/model.safetensors
exec_fails 'noise/model.safetensors' --set model=noise
copy long
printf '\377\377\377\377\377\377\377\177' | dd of=long/model.safetensors conv=notrunc status=none
exec_fails 'long/model.safetensors' --set model=long
copy other
sed -i 's/model.norm.weight/model.norm.WEIGHT/' other/model.safetensors
exec_fails "model.norm.weight" --set model=other
copy wide
sed -i 's/"intermediate_size": 48/"intermediate_size": 56/' wide/config.json
exec_fails "mlp.*\[" --set model=wide
copy deep
sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' deep/config.json
exec_fails "layers.2" --set model=deep
copy none
rm none/model.safetensors
exec_fails 'none' --set model=none
copy hole # an index of files that are not there
rm hole/model.safetensors
echo '{"metadata": {}, "weight_map": {"model.norm.weight": "model-00001.safetensors"}}' >hole/model.safetensors.index.json
exec_fails 'hole' --set model=hole

# What was refused is no run: the next one may begin in its place. A step of a run is no run either.
copy short
head -c 4000 model/model.safetensors >short/model.safetensors
status 2 "$gr" exec grpo.yaml --set model=short --out again
status 0 "$gr" exec grpo.yaml --steps 1 --out again
refused "'again' holds a run already" "$gr" exec grpo.yaml --steps 1 --out again
refused 'takes the folder of a run, and goes on from its last checkpoint' "$gr" exec --resume again/checkpoints/step-1 --steps 2
cp again/graph.yaml was.yaml # nothing to do, and nothing done
status 0 "$gr" exec --resume again --steps 1
cmp was.yaml again/graph.yaml || fail "a run with nothing left to do has another graph"

# A weight that is not a number is refused. One that is, but so large that sums with it are none, trains nothing, and that is
# said.
overwrite() { # DIR BYTES: the last weight, four bytes
    printf "$2" | dd of=$1/model.safetensors bs=1 seek=$((bytes - 4)) conv=notrunc status=none
}
copy nan
for number in '\000\000\300\177;nan' '\000\000\200\177;inf' '\000\000\200\377;-inf'; do
    overwrite nan "${number%;*}"
    exec_fails "^nan/model.safetensors: error: tensor '[a-z_.]+': element .[0-9, ]+. is ${number#*;}, but weights are finite" \
        --set model=nan
done
copy huge
overwrite huge '\377\377\177\177'
status 0 "$gr" exec grpo.yaml --set model=huge --steps 1 --out nan-run
has out "warning: step 1: the gradients of 'update' are not finite; 4 optimizer steps were left out so far"
has nan-run/metrics.jsonl '"skipped_steps": 4'

# A tied output matrix that is stored and differs; one that is the same is dropped. Positions that would be misread.
copy tied
sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' tied/config.json
exec_fails "^tied/model.safetensors: error: tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'" --set model=tied
for edit in "longrope;'rope_scaling.short_factor' is not a list of 1 to 64 positive numbers" "linear;'rope_scaling' and 'rope_parameters' say different things"; do
    copy rope
    sed -i "s/\"rope_scaling\": null/\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0},\n \"rope_scaling\": {\"type\": \"${edit%;*}\", \"factor\": 4.0}/" rope/config.json
    exec_fails "rope/config.json:4:2: error: ${edit#*;}" --set model=rope
done

# One of two lists of longrope holds for all sequences: the second if any may be beyond the border, which is 13 of up to 8 + 6 tokens.
config phi3.json llama 16 true false
sed -i 's/"llama"/"phi3"/; s/LlamaFor/Phi3For/; s/"head_dim": 4,//; s/"rope_scaling": null/"original_max_position_embeddings": 13, "rope_scaling": {"type": "longrope", "short_factor": [1, 1], "long_factor": [3, 9]}/' phi3.json
"$gr" init --config phi3.json --tokenizer "$project/graphs/quickstart" --seed 1 -o phi3 >/dev/null
status 0 "$gr" check grpo.yaml --set model=phi3
has err "note: model 'ref': sequences may have 14 tokens, more than 13, so 'long_factor' holds for all of them"
status 0 "$gr" check grpo.yaml --set model=phi3 --set nodes.rollout.max_tokens=5
lacks err long_factor

# config.json: missing, no JSON, of an unknown kind, with nonsense sizes. plan says so too.
plan_fails() {
    refused "$@"
    exec_fails "$1" --set model=$config
}
config=absent
plan_fails 'absent' "$gr" plan grpo.yaml --set model=absent
for edit in 's/"hidden_size"/"hidden"/;hidden_size' 's/"llama"/"gpt9"/;gpt9' 's/"hidden_size": 32/"hidden_size": -1/;hidden_size' \
    's/"num_key_value_heads": 2/"num_key_value_heads": 3/;num_key_value_heads' 's/}$//;config.json' \
    's/"vocab_size": 16/"vocab_size": 1e99/;vocab_size' 's/"hidden_size": 32/"hidden_size": "32"/;hidden_size' \
    's/"hidden_act": "silu"/"hidden_act": "gelu"/;hidden_act'; do
    config=config-bad
    copy $config
    sed -i "${edit%;*}" $config/config.json
    ! cmp -s model/config.json $config/config.json || fail "edit $edit changed nothing"
    plan_fails "config.json.*${edit##*;}|${edit##*;}" "$gr" plan grpo.yaml --set model=$config
done

# The tokenizer: none, none that is understood, more ids than the model has rows.
copy mute
rm mute/tokenizer_config.json
exec_fails 'mute' --set model=mute
copy loud
echo '{"model": {"type": "Telepathy"}}' >loud/tokenizer.json
exec_fails "tokenizer.json: .*Telepathy" --set model=loud
copy broken
echo '{"char_ords": [48, "x"]}' >broken/tokenizer_config.json
exec_fails 'tokenizer_config.json: char_ords.1.' --set model=broken
copy many
sed -i 's/48, 49/33, 34, 35, 36, 37, 38, 39, 40, 41, 48, 49/' many/tokenizer_config.json
exec_fails "tokenizer.*ids" --set model=many

# Data: missing, empty, and, though no iteration of the run draws it, a line that is no JSON, one without the field, one too long.
exec_fails 'absent.jsonl' --set data=absent.jsonl
: >empty.jsonl
exec_fails 'empty.jsonl' --set data=empty.jsonl
sed '700s/.*/{"question": "1+1=", /' train.jsonl >line.jsonl
exec_fails 'line.jsonl:700' --set data=line.jsonl
sed '700s/.*/[1]/' train.jsonl >array.jsonl
exec_fails 'array.jsonl:700' --set data=array.jsonl
sed '700s/question/query/' train.jsonl >field.jsonl
exec_fails "field.jsonl:700.*question" --set data=field.jsonl
sed '700s/"answer"/"reply"/' train.jsonl >answer.jsonl
exec_fails "answer.jsonl:700.*answer" --set data=answer.jsonl
sed '700s/"question": "/&1+1+1+1+1+/' train.jsonl >toolong.jsonl
exec_fails 'toolong.jsonl:700.*8' --set data=toolong.jsonl
sed '700s/:.*/: "1+1=", "answer": ""}/' train.jsonl >mute.jsonl # no number in it
exec_fails "mute.jsonl:700.*'answer_extract' finds nothing" --set data=mute.jsonl
sed 's/question/query/' train.jsonl >all.jsonl
exec_fails "^grpo.yaml:[0-9]+:[0-9]+: error: no field 'question'" --set data=all.jsonl # where the graph names it
has err '^all.jsonl:1:1: note: the first record has query, answer'
[ "$(grep -c "no field 'question'" err)" = 1 ] || fail "said once: $(cat err)"
sed 's/answer/reply/' train.jsonl >all.jsonl
exec_fails "^grpo.yaml:[0-9]+:[0-9]+: error: no field 'answer'" --set data=all.jsonl
[ "$(grep -c "no field 'answer'" err)" = 1 ] || fail "said once: $(cat err)"
sed '2,$s/question/query/' train.jsonl >all.jsonl
exec_fails 'note: there may be more' --set data=all.jsonl
[ "$(grep -c "no field 'question'" err)" = 5 ] || fail "all faults are said, or one: $(cat err)"
sed '5s/"question": "/&1+1+1+1+1+/; 8q' train.jsonl >toolong.jsonl
status 0 "$gr" exec grpo.yaml --set data=toolong.jsonl --set nodes.prompts.too_long=truncate_left --out truncated
status 0 "$gr" exec grpo.yaml --set data=toolong.jsonl --set nodes.prompts.too_long=drop --out dropped
has out 'prompts: dropped [0-9]+ records'
# Where only one fits, it may be the first of an epoch and the last of the next.
sed '2,$s/"question": "/&1+1+1+1+1+/; 20q' train.jsonl >onefits.jsonl
status 0 "$gr" exec grpo.yaml --set data=onefits.jsonl --set nodes.prompts.too_long=drop --out onefits

# Shapes that a device has no kernels for: said where the plan is made, whatever this machine has.
for edit in 's/"hidden_size": 32/"hidden_size": 36/;hidden states of 36, which is no multiple of 8' \
    's/"hidden_size": 32/"hidden_size": 16392/;hidden states of 16392, which is more than 16384' \
    's/"head_dim": 8/"head_dim": 12/;heads of 12, which is no multiple of 8' \
    's/"intermediate_size": 48/"intermediate_size": 44/;a feed-forward network of 44, which is no multiple of 8' \
    's/"vocab_size": 16/"vocab_size": 1048577/;a vocabulary of 1048577, which is more than 1048576'; do
    sed "${edit%;*}" model.json >shape.json
    refused "grpo.yaml:4:3: error: model 'actor' has ${edit#*;}: the cuda device has no kernels for it" \
        "$gr" plan grpo.yaml --set model=shape.json --hardware h200
    [ "${edit#*16392}" != "$edit" ] || status 0 "$gr" plan grpo.yaml --set model=shape.json --device cpu
done
refused "model 'actor' has heads wider than 256, whose keys and values are not kept in FP8: the cuda device has no kernels for it" \
    "$gr" plan "$project/graphs/grpo.yaml" --set 'models.actor.precision={kv: fp8}' --set model="$project/tests/golden/configs/gemma-4-31b-it.json" --set data=absent.jsonl --hardware h200
sed 's/"intermediate_size": 48/"intermediate_size": 40/' model.json >shape.json
status 0 "$gr" plan grpo.yaml --set model=shape.json --hardware h200
refused "model 'actor' has, in slices, a feed-forward network of 20, which is no multiple of 8" \
    "$gr" plan grpo.yaml --set model=shape.json --hardware h200 --ranks 2 --set models.actor.tensor=2

# A run directory that was tampered with.
status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --steps 2 --out kept
tamper() { # PATTERN COMMAND
    rm -rf spoilt
    cp -r kept spoilt
    (cd spoilt/checkpoints/step-2 && eval "$2")
    status 2 "$gr" exec --resume spoilt --steps 4
    has err "$1"
    [ "$(wc -l <spoilt/metrics.jsonl)" = 2 ] || fail "a refused run lost lines: $2"
}
tamper 'state.json' 'rm state.json'
tamper 'state.json' 'echo {} >state.json'
tamper 'state.json' 'head -c 20 state.json >x; mv x state.json'
tamper 'optimizer.safetensors' 'rm actor/optimizer.safetensors'
tamper 'optimizer.safetensors' 'head -c 5000 actor/optimizer.safetensors >x; mv x actor/optimizer.safetensors'
tamper 'model.safetensors' ': >actor/model.safetensors'
rm -rf spoilt
cp -r kept spoilt
: >spoilt/plan.json
refused 'plan.json' "$gr" exec --resume spoilt --steps 4
status 0 "$gr" exec --resume spoilt --steps 4 --replan

# Two processes in one run directory.
"$gr" exec grpo.yaml --steps 100000 --out busy >busy.out 2>&1 &
pid=$!
while [ ! -s busy/metrics.jsonl ]; do sleep 0.02; done
status 2 "$gr" exec --resume busy --steps 100000
has err 'in use by another process'
kill -INT $pid
wait $pid || fail "exit status $?: $(tail -2 busy.out)"
