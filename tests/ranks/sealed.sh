#!/bin/sh
# Manifests of runs of several ranks: each hashes what it writes, blocks that two have written are read; any number of ranks goes
# on from them and holds its own parts to them, and a rank that finds other bytes ends the run with the tensor's name.
. "$(dirname "$0")/lib.sh"

# Tensors of several blocks, which shards cut at any byte.
config big.json llama 512 false false
sed -i 's/"intermediate_size": 48/"intermediate_size": 1111/' big.json
"$gr" init --config big.json --tokenizer "$project/graphs/quickstart" --seed 1 -o big >/dev/null
set -- --set model=big --set models.actor.train.schedule=constant
status 0 "$gr" exec grpo.yaml "$@" --ranks 1 --steps 1 --out one
for n in 2 3; do
    status 0 "$gr" exec grpo.yaml "$@" --ranks $n --steps 1 --out many
    [ ! -s err ] || fail "$(cat err)"
    has many/checkpoints/step-1/manifest.json '"blocks"'
    # The hashes are those of the bytes: of what is read as one rank's whole, and as others' parts.
    for m in $(case $slow$n in 02) echo 1 3 ;; 03) echo 2 ;; *) echo 1 2 3 ;; esac); do
        cp -r many again
        status 0 "$gr" exec --resume again --steps 2 --ranks $m
        lacks err 'manifest|bytes' # other numerics alone
        rm -r again
    done
    status 0 "$gr" export many -o x
    rm -r x
    [ $n = 3 ] || { rm -r many; continue; }
    # A bit in a quarter of the moments of each rank's part.
    file=many/checkpoints/step-1/actor/optimizer.safetensors
    size=$(stat -c %s $file)
    for quarter in 1 $([ "$slow" = 0 ] || echo 2 3) 4; do
        cp $file kept
        at=$((size * quarter / 4 - 1000))
        printf "$(printf '\\%03o' $(($(od -An -tu1 -j $at -N 1 $file) ^ 4)))" | dd of=$file bs=1 seek=$at conv=notrunc 2>/dev/null
        cp -r many before
        got=0
        "$gr" exec --resume many --steps 2 --ranks 2 >out 2>err || got=$?
        [ $got = 2 ] || { cat err >&2; fail "status $got with another bit at byte $at"; }
        has err "$file: error: tensor '[mv]\.[a-z_.0-9]+' has other bytes than were saved"
        diff -r -q -x .lock -x trace.json -x 'events*' before many || fail "a run that could not go on was changed"
        rm -r before
        mv kept $file
    done
    rm -r many
done

# A run that began on several ranks has one id, and its chain.
status 0 "$gr" exec grpo.yaml --ranks 2 --set run.checkpoint.every=1 --steps 3 --out chain
[ "$(cat chain/run.json chain/checkpoints/*/manifest.json | sed -nE 's/.*"run": "([0-9a-f]+)".*/\1/p' | sort -u | wc -l)" = 1 ] || fail "two ids"
status 0 "$gr" audit chain
has out '^the same bits'
status 0 "$gr" exec --resume chain --steps 4
status 0 "$gr" audit chain
has out '^audit of chain: iterations 4 to 4'
has out '^the same bits'
