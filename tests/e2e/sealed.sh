#!/bin/sh
# A checkpoint whose bytes, files or numbers are not those that were saved is refused, by --resume and by export, and the message
# names the file; nothing of the run changes. What is meant goes through with --accept-changes, and is named.
. "$(dirname "$0")/lib.sh"

set -- --set models.actor.train.schedule=constant --set run.checkpoint.every=2
status 0 "$gr" exec grpo.yaml "$@" --steps 6 --out whole
status 0 "$gr" exec grpo.yaml "$@" --steps 4 --out run
status 0 "$gr" exec grpo.yaml "$@" --steps 4 --seed 8 --out other
c=run/checkpoints/step-4
[ "$(ls $c)" = "actor
graph.yaml
manifest.json
plan.json
state.json" ] || fail "a checkpoint holds $(ls $c)"
grep -o '"xxh3": "[0-9a-f]*"' $c/manifest.json >/dev/null || fail "no hashes"
id() { sed -nE 's/.*"run": "([0-9a-f]{32})".*/\1/p' "$1"; }
[ "$(id run/run.json)" = "$(id $c/manifest.json)" ] || fail "the run's id is not its checkpoint's"
[ "$(id run/run.json)" != "$(id other/run.json)" ] || fail "two runs have one id"

# The run as it was before each change.
cp -r run kept
again() { rm -rf run x; cp -r kept run; }

# caught NAME PATTERN: both commands refuse it, say where, and change nothing.
caught() {
    rm -rf before x
    cp -r run before
    got=0
    "$gr" exec --resume run --steps 6 >out 2>err || got=$?
    [ $got = 2 ] || { cat out err >&2; fail "$1: --resume ends with status $got"; }
    has err "$2"
    diff -r -q -x .lock -x trace.json -x 'events*' before run >diffs || fail "$1: a run that could not go on was changed: $(cat diffs)"
    case $1 in *optimizer*) return 0 ;; esac # which export does not read
    got=0
    "$gr" export run -o x >out 2>err || got=$?
    [ $got = 2 ] || { cat out err >&2; fail "$1: export ends with status $got"; }
    has err "$2"
    [ ! -e x ] || fail "$1: export has written"
}

flip() { # FILE BYTE BIT
    printf "$(printf '\\%03o' $(($(od -An -tu1 -j "$2" -N 1 "$1") ^ (1 << $3))))" |
        dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# Bits, spread over all files.
places=4
[ "$slow" = 0 ] || places=25
random=4711
for file in actor/model.safetensors actor/optimizer.safetensors actor/config.json actor/tokenizer_config.json state.json manifest.json; do
    size=$(stat -c %s "$c/$file")
    i=0
    while [ $i -lt $places ]; do
        random=$(((random * 1103515245 + 12345) % 2147483648))
        at=$((size * i / places + random / 65536 % (size / places)))
        flip "$c/$file" $at $((random / 256 % 8))
        caught "a bit of $file, byte $at" "$file:([0-9:]+)? error: "
        again
        i=$((i + 1))
    done
done

# A tensor is named.
flip $c/actor/model.safetensors $(($(stat -c %s $c/actor/model.safetensors) - 5)) 3
refused "$c/actor/model.safetensors: error: tensor '[a-z.0-9_]+' has other bytes than were saved" "$gr" exec --resume run --steps 6
has err 'the checkpoint of iteration 4 is damaged; that of 2 is whole: graphrun exec --resume run@2 goes on'
again
flip $c/actor/optimizer.safetensors $(($(stat -c %s $c/actor/optimizer.safetensors) - 5)) 3
refused "$c/actor/optimizer.safetensors: error: tensor '[vm]\.[a-z.0-9_]+' has other bytes" "$gr" exec --resume run --steps 6
again

# Files of another iteration, and of another run; and the whole folder.
for from in run/checkpoints/step-2 other/checkpoints/step-4; do
    for file in actor/model.safetensors actor/optimizer.safetensors state.json manifest.json; do
        cp $from/$file $c/$file
        caught "$file of $from" "(${file}|$c):([0-9:]+)? error: "
        again
    done
    rm -r $c
    cp -r $from $c
    case $from in
    run*) caught "all of $from" "$c: error: the manifest is that of iteration 2, the folder's name 4" ;;
    *) caught "all of $from" "$c: error: the checkpoint is another run's" ;;
    esac
    again
done
ln -sfn ../../other/checkpoints/step-4 run/checkpoints/best
status 0 "$gr" export run@best -o x # which is this run's of that iteration
cmp x/model.safetensors $c/actor/model.safetensors
again

# Files that are gone; a manifest that is, too.
for file in actor/config.json actor/tokenizer_config.json state.json manifest.json; do
    rm $c/$file
    case $file in
    state.json) # without which export sees no checkpoint either
        refused "$file: error: " "$gr" exec --resume run --steps 6 ;;
    manifest.json) caught "no $file" "$c: error: the checkpoint has no manifest.json, which all of this run have" ;;
    *) caught "no $file" "$file: error: the file is not there|step-4: error: no checkpoint of a model" ;;
    esac
    again
done
rm $c/manifest.json run/run.json
caught "no manifest and no run.json" 'has no manifest.json, which all of this run have'
again

# Numbers that cannot be, in a checkpoint of before there were manifests.
old() { again; rm -f run/run.json run/checkpoints/*/manifest.json; }
number() { # KEY VALUE
    old
    sed -i -E "s/(\"$1\": )\"[^\"]*\"/\1\"$2\"/" $c/state.json
}
for value in nan inf -inf; do
    number beta $value
    refused "state.json: error: 'state.beta' is $value" "$gr" exec --resume run --steps 6
done
for value in 2 5 4294967296 18446744073709551615; do
    number step $value
    refused "state.json: error: 'run.step' is $value, but the folder is that of iteration 4" "$gr" exec --resume run --steps 6
done
number beta nan
status 0 "$gr" exec --resume run --steps 5 --accept-changes
has err "warning: 'state.beta' is nan.*accepted, as asked for"
again

# Names that are no checkpoint's are left out, and said; where there are no others nothing begins anew.
for name in step-99999999999999999999 step-4294967296 step-007 step-0 step-4.bak step-; do
    cp -r $c run/checkpoints/$name
    status 0 "$gr" exec --resume run --steps 4
    has err "warning: 'run/checkpoints/$name' is left out"
    has out 'nothing is left to do: 4 iterations'
    status 0 "$gr" export run -o x
    cmp x/model.safetensors whole/checkpoints/step-4/actor/model.safetensors
    again
    mkdir run/aside
    mv run/checkpoints/* run/aside
    mv run/aside/step-4 run/checkpoints/$name
    caught "$name alone" "none of what is in its folder 'checkpoints' has the name of a checkpoint"
    again
done

# Old ones go on, with a warning, and are sealed from there; one of the sealed ones may then not be without.
old
status 0 "$gr" exec --resume run --steps 6
has err "warning: the checkpoint is of a graphrun that wrote no manifests"
same_weights whole run
has run/run.json '"sealed_after": 4'
status 0 "$gr" exec --resume run@4 --steps 6
has err "warning: the checkpoint is of a graphrun that wrote no manifests"
same_weights whole run
rm run/checkpoints/step-6/manifest.json
refused 'has no manifest.json' "$gr" exec --resume run --steps 7
again

# The id stays, the chain goes on: over a resume, over one that goes back, and in what is set aside.
was=$(id run/run.json)
sealed() { sed -nE 's/^ *"sealed": "([0-9a-f]+)".*/\1/p' "$1/manifest.json"; }
status 0 "$gr" exec --resume run --steps 6
[ "$(id run/run.json)$(id run/checkpoints/step-6/manifest.json)" = "$was$was" ] || fail "a resumed run has another id"
has run/checkpoints/step-6/manifest.json "\"xxh3\": \"$(sealed $c)\""
same_weights whole run
status 0 "$gr" exec --resume run@2 --steps 4
[ "$(id run/run.json)$(id run/aside-2/run.json)" = "$was$was" ] || fail "what is set aside has another id"
status 0 "$gr" exec --resume run/aside-2 --steps 7
again

# What is meant: named, and gone on with.
cp other/checkpoints/step-4/actor/model.safetensors $c/actor
status 0 "$gr" exec --resume run --steps 6 --accept-changes
has err "actor/model.safetensors: warning: tensor '[a-z.0-9_]+' has other bytes than were saved.*accepted, as asked for"
status 0 "$gr" exec --resume run --steps 7
[ ! -s err ] || fail "a run that accepted changes is sealed no more: $(cat err)"
again
cp other/checkpoints/step-4/actor/model.safetensors $c/actor
status 0 "$gr" export run -o x --accept-changes
has err "actor/model.safetensors: warning: "
cmp x/model.safetensors other/checkpoints/step-4/actor/model.safetensors
again

# A model that is a checkpoint of a run is held to its manifest, by whatever name: other bytes, another iteration's folder.
frozen() { sed "s|ref:   {checkpoint: \$model}|ref: {checkpoint: $1}|" grpo.yaml; }
ln -s step-4 other/checkpoints/best
cp -r other kept-other
for name in other@4 other@best other/checkpoints/step-4/actor; do
    frozen $name >frozen.yaml
    rm -rf frozen
    status 0 "$gr" exec frozen.yaml --steps 1 --out frozen
    [ ! -s err ] || fail "$(cat err)"
    cp whole/checkpoints/step-4/actor/model.safetensors other/checkpoints/step-4/actor
    rm -rf frozen
    refused "other/checkpoints/.*/actor/model.safetensors: error: tensor '" "$gr" exec frozen.yaml --steps 1 --out frozen
    status 0 "$gr" exec frozen.yaml --steps 1 --out frozen --accept-changes
    has err "model.safetensors: warning: tensor '.*accepted, as asked for"
    rm -r other/checkpoints/step-4
    cp -r other/checkpoints/step-2 other/checkpoints/step-4
    rm -rf frozen
    refused 'step-4: error: the manifest is that of iteration 2' "$gr" exec frozen.yaml --steps 1 --out frozen
    rm -rf other
    cp -r kept-other other
done
# One that was copied out of a run is a folder like any.
cp -r other/checkpoints/step-4/actor alone
frozen alone >frozen.yaml
rm -rf frozen
status 0 "$gr" exec frozen.yaml --steps 1 --out frozen
[ ! -s err ] || fail "$(cat err)"
