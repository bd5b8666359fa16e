#!/bin/sh
# Every command under faults of the machine: calls of libc that fail, move fewer bytes, or are the last of a process. What must
# hold is at the head of drive.c; the rows that this prints, of all calls (GR_SLOW=1), are those of docs/RELIABILITY.md.
# usage: faults.sh GRAPHRUN DRIVE INJECT.SO
[ $# -eq 3 ] || { echo "usage: $0 GRAPHRUN DRIVE INJECT.SO" >&2; exit 2; }
[ -z "${GR_SANITIZED-}" ] || { echo "skipped: a sanitizer has a malloc of its own" >&2; exit 77; }
drive=$(realpath "$2") inject=$(realpath "$3")
set -- "$1"
. "$(dirname "$0")/../e2e/lib.sh"

. "$here/graphs.sh"

rows='open EMFILE|open EACCES|read EIO|read short|read EINTR|read kill|write ENOSPC|write ENOSPC lasts|write EIO|write short
write EINTR|write kill|write killed|flush ENOSPC|close EIO|sync EIO|sync kill|sync killed|size EIO|rename EIO|rename kill
rename killed|link EIO|link killed|unlink EACCES|unlink kill|unlink killed|mkdir ENOSPC|mkdir killed|dir EIO|stat EIO|stat EACCES
lock EIO|lock EINTR|map ENOMEM|process ENOMEM|process EMFILE|poll EINTR|thread EAGAIN|memory ENOMEM|memory ENOMEM lasts'
wrong=0

# under TITLE SPREAD BEFORE GO-ON OPTIONS COMMAND...: each row of faults, SPREAD calls of each where it is quick
under() {
    title=$1 spread=$2 before=$3 go_on=$4 options=$5
    shift 5
    [ "$slow" = 0 ] || spread=20000
    printf '\n%s\n\n| fault | calls | disturbed | unharmed | ended with a message | killed | went on | wrong |\n|---|---|---|---|---|---|---|---|\n' "$title"
    echo "$rows" | tr '|' '\n' >rows
    # shellcheck disable=SC2086 # options have no spaces
    "$drive" -i "$inject" -f rows $options ${before:+-t $before} ${go_on:+-r "$go_on"} -s $spread "$@" </dev/null || wrong=$((wrong + 1))
}

run_anew="$gr exec rich.yaml --out run"
under '`exec`, with a worker, data by a command, a validation and the best' 1 start \
    "if [ -e run/graph.yaml ]; then $gr exec --resume run; else $run_anew; fi" "-a kept" $run_anew
under '`exec --resume`' 1 ran "$gr exec --resume run --steps 3" "" "$gr" exec --resume run --steps 3
under '`exec --resume RUN@STEP`' 1 ran "$gr exec --resume run@1 --steps 3" "" "$gr" exec --resume run@1 --steps 3
under '`check`' 1 ran "" -c "$gr" check rich.yaml
under '`plan`' 1 ran "" -c "$gr" plan rich.yaml --format json -o plan.json
under '`plan --format html`' 1 ran "" -c "$gr" plan plain.yaml --format html -o plan.html
under '`plan --sweep`, whose rows say why there is no plan' 1 ran "" "" "$gr" plan plain.yaml --sweep budget=1MiB..2GiB:3
under '`verify`' 1 ran "" -c "$gr" verify a.json
under '`diff`' 1 ran "" -c "$gr" diff a.json b.json
under '`report`' 1 ran "" -c "$gr" report run
under '`export`' 1 ran "rm -rf out && $gr export run -o out --shard 20KB" "" "$gr" export run -o out --shard 20KB
under '`init`' 1 ran "rm -rf made && $gr init --config ../model.json --tokenizer $project/graphs/quickstart --seed 2 -o made" "" \
    "$gr" init --config ../model.json --tokenizer "$project/graphs/quickstart" --seed 2 -o made
under '`schema`' 1 ran "" -c "$gr" schema
under '`ops`' 1 ran "" -c "$gr" ops
# State on a disk: its file alone is disturbed.
disk=$(mktemp -d /var/tmp/graphrun-faults.XXXXXX)
trap 'rm -rf "$disk"; finish' EXIT
if [ "$(stat -f -c %T "$disk")" != tmpfs ]; then
    status 0 "$gr" plan start/plain.yaml --policy every_node --format json -o all.json
    set -- --policy every_node --host-budget $(($(json_number all.json host_peak_bytes) * 8 / 10)) --disk "$disk:64MiB"
    status 0 "$gr" plan start/plain.yaml "$@" --format json -o all.json
    [ "$(json_number all.json disk_peak_bytes)" -gt 0 ] || fail "nothing lies on the disk"
    export FAULT_PATH="$disk"
    rows='open EMFILE|read EIO|read short|read EINTR|read kill|write ENOSPC|write EIO|write short|write killed|close EIO'
    under '`exec --disk`, calls on its file' 1 start \
        "if [ -e run/graph.yaml ]; then $gr exec --resume run --disk $disk:64MiB; else $gr exec plain.yaml $* --out run; fi" "" \
        "$gr" exec plain.yaml "$@" --out run
    unset FAULT_PATH
    [ -z "$(ls -A "$disk")" ] || fail "left on the disk: $(ls -A "$disk")"
fi
[ $wrong = 0 ] || fail "under faults, $wrong commands do what they must not"
