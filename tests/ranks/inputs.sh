#!/bin/sh
# Two ranks, of which the second sees another file in the place of one: other data, fewer records, other weights, another
# tokenizer, chat template, reward script, program. Each is refused before the first iteration, and named. Skips (77) where
# mounts of one's own may not be made.
set -eu
if [ -z "${GR_INPUTS_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] && user='' || user='--user --map-root-user'
    inside="unshare $user --mount --pid --fork --kill-child --mount-proc"
    $inside true 2>/dev/null || { echo "skipped: no namespaces here" >&2; exit 77; }
    GR_INPUTS_INSIDE=1 exec $inside sh "$(realpath "$0")" "$@"
fi
TMPDIR=/tmp
. "$(dirname "$0")/lib.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none

# sees OTHER FILE COMMAND...: a command to whom FILE has the bytes of OTHER
cat >sees.sh <<'END_SEES'
#!/bin/sh
other=$(realpath "$1") file=$(realpath "$2")
shift 2
exec unshare --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' "$other" "$file" "$@"
END_SEES
chmod +x sees.sh

# apart OTHER FILE OPTIONS...: exec by two ranks, of which the second sees OTHER for FILE
apart() {
    other=$1 file=$2
    shift 2
    rm -rf run
    mpirun -n 1 "$gr" exec "$@" --out run : -n 1 ./sees.sh "$other" "$file" "$gr" exec "$@" --out run
}

# differs NAME OWNER OTHER FILE OPTIONS...: and that is refused by the name of the file, before anything is trained
differs() {
    name=$1 owner=$2
    shift 2
    status 2 apart "$@"
    here_and_there="[0-9]+ bytes, xxh3 [0-9a-f]{32}.*; on rank 0 [0-9]+ bytes, xxh3 [0-9a-f]{32}"
    has err "rank 1 on host [^ ]+ has another '$name' of $owner than rank 0 on host [^ ]+: $here_and_there"
    [ ! -s run/metrics.jsonl ] && [ ! -e run/checkpoints ] || fail "the run has begun"
}

# flip FROM TO BYTE: a copy with another value in one byte
flip() {
    cp "$1" "$2"
    was=$(od -An -tu1 -j "$3" -N 1 "$1" | tr -d ' ')
    printf "\\$(printf %o $((was ^ 1)))" | dd of="$2" bs=1 seek="$3" conv=notrunc status=none
}

cp model/model.safetensors reference.safetensors
cp -r model reference
sed -i 's|ref:   {checkpoint: $model}|ref:   {checkpoint: reference}|' grpo.yaml

# The same files, seen through another mount: nothing is said.
cp train.jsonl same.jsonl
status 0 apart same.jsonl train.jsonl grpo.yaml --steps 2
[ ! -s err ] || fail "equal files: $(cat err)"

# Data: another text, fewer records.
sed '1s/[0-9]/5/' train.jsonl >other.jsonl
cmp -s other.jsonl train.jsonl && sed '1s/[0-9]/6/' train.jsonl >other.jsonl
differs train.jsonl nodes.prompts other.jsonl train.jsonl grpo.yaml
head -n 9 train.jsonl >fewer.jsonl
differs train.jsonl nodes.prompts fewer.jsonl train.jsonl grpo.yaml

# Weights: one bit of the trained model, of the frozen one, of the file's last byte.
bytes=$(wc -c <model/model.safetensors)
flip model/model.safetensors other.safetensors $((bytes - 5000))
differs model.safetensors models.actor other.safetensors model/model.safetensors grpo.yaml
differs model.safetensors models.ref other.safetensors reference/model.safetensors grpo.yaml
flip model/model.safetensors other.safetensors $((bytes - 1))
differs model.safetensors models.actor other.safetensors model/model.safetensors grpo.yaml

# A config that plans do not tell apart, a tokenizer, a chat template.
sed 's/"initializer_range"/"use_cache": true, "initializer_range"/' model/config.json >other.json
differs config.json models.actor other.json model/config.json grpo.yaml
{ cat model/tokenizer_config.json; echo; } >other.json
differs tokenizer_config.json models.actor other.json model/tokenizer_config.json grpo.yaml
printf '{%%- for m in messages %%}{{ m.content }}{%%- endfor %%}' >model/chat_template.jinja
printf '{%%- for m in messages %%}{{ m.content }} {%%- endfor %%}' >other.jinja
differs chat_template.jinja models.actor other.jinja model/chat_template.jinja grpo.yaml

# The script of a reward, and rules that it is given.
cat >reward.sh <<'END_REWARD'
#!/bin/sh
while read -r line; do
    id=${line#*'"id":'}
    echo "{\"id\": ${id%%[,\}]*}, \"score\": $(cat "$1")}"
done
END_REWARD
echo 1 >one.txt
echo 0 >zero.txt
sed 's/rule: {.*compare: string}/command: sh reward.sh one.txt/' grpo.yaml >command.yaml
has command.yaml 'command: sh'
status 0 apart same.jsonl train.jsonl command.yaml --steps 1
differs one.txt nodes.reward zero.txt one.txt command.yaml
{ cat reward.sh; echo; } >other.sh
differs reward.sh nodes.reward other.sh reward.sh command.yaml

# Another build of the program.
cp "$gr" program
cp "$gr" other
printf ' ' >>other
status 2 mpirun -n 1 ./program exec grpo.yaml --out run : -n 1 ./other exec grpo.yaml --out run
has err "rank 1 on host [^ ]+ has another 'graphrun' of program than rank 0"

# A file that only one of them has.
cp -r model bare
rm bare/chat_template.jinja
cat >bare.sh <<'END_BARE'
#!/bin/sh
exec unshare --mount sh -c 'mount --bind bare model && exec "$@"' sh "$@"
END_BARE
chmod +x bare.sh
rm -rf run
status 2 mpirun -n 1 "$gr" exec grpo.yaml --out run : -n 1 ./bare.sh "$gr" exec grpo.yaml --out run
has err "rank 1 on host [^ ]+ has another 'chat_template.jinja' of models.actor than rank 0 on host [^ ]+: it is not there; on rank 0"
rm -rf run
status 2 mpirun -n 1 ./bare.sh "$gr" exec grpo.yaml --out run : -n 1 "$gr" exec grpo.yaml --out run
has err "rank 1 on host [^ ]+ has another 'chat_template.jinja' of models.actor than rank 0 .*on rank 0 it is not there"
