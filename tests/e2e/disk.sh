#!/bin/sh
# What device and host have no room for lies on a disk: the same bits, as many bytes there as planned, refusals.
. "$(dirname "$0")/lib.sh"
disk=$(mktemp -d /var/tmp/graphrun-e2e-disk.XXXXXX)
trap 'rm -rf "$disk"; finish' EXIT
[ "$(stat -f -c %T "$disk")" != tmpfs ] || { echo "skipped: /var/tmp lies in memory" >&2; exit 77; }

# most PLAN.json: four fifths of the host pool that a plan takes
most() { json_number "$1" host_peak_bytes | awk '{ printf "%d\n", $1 * 8 / 10 }'; }

# run NAME OPTIONS...: with a host pool of four fifths of what these options take, and a disk: planned, proven, run with
# memory checked, and resumed; the bits of the run with all the memory there is
run() {
    name=$1
    shift
    status 0 "$gr" plan grpo.yaml "$@" --format json -o all.json
    budget=$(most all.json)
    status 0 "$gr" plan grpo.yaml "$@" --host-budget "$budget" --disk "$disk:64MiB" --format json -o "$name.json"
    status 0 "$gr" verify "$name.json"
    planned=$(json_number "$name.json" disk_peak_bytes)
    [ "$planned" -gt 0 ] || fail "$name: nothing lies on the disk"
    [ "$(json_number "$name.json" host_peak_bytes)" -le "$budget" ]
    for kind in fetch store; do has "$name.json" "\"kind\": \"$kind\".*\"lane\": \"disk\""; done
    status 0 "$gr" exec grpo.yaml "$@" --host-budget "$budget" --disk "$disk:64MiB" --set run.checkpoint.every=2 \
        --set models.actor.train.schedule=constant --steps 2 --check-memory --out "$name"
    status 0 "$gr" exec --resume "$name" --disk "$disk:64MiB" --steps 4
    same_weights plain "$name"
    same_metrics plain "$name"
    read -r want is <<END
$(sed -nE 's/^disk: planned (.*), measured (.*), read .*, written .*/\1|\2/p' out | tr -d ' ' | tr '|' ' ')
END
    [ -n "$want" ] && [ "$want" = "$is" ] || fail "$name: planned $want on the disk, measured $is: $(cat out)"
    status 0 "$gr" audit "$name" --disk "$disk:64MiB"
    has out '^the same bits'
}

status 0 "$gr" exec grpo.yaml --set models.actor.train.schedule=constant --steps 4 --out plain
run every --policy every_node
run host --policy every_node --set models.actor.residency.optimizer=host
run moments --policy every_node --set models.actor.residency.params=keep --set models.ref.residency.params=keep

# For a device that runs work later than it is given: what a task's code touches in the host pool lies apart from what visits it.
proven=0
for option in "models.actor.train.master=split" "models.actor.train.moments=int8" "models.actor.residency.optimizer=host"; do
    set -- --device cuda --hardware h200 --policy every_node --set "$option"
    status 0 "$gr" plan grpo.yaml "$@" --format json -o all.json
    for tenths in 7 8 9; do
        budget=$(json_number all.json host_peak_bytes | awk -v n=$tenths '{ printf "%d\n", $1 * n / 10 }')
        code=0
        "$gr" plan grpo.yaml "$@" --host-budget "$budget" --disk "$disk:64MiB" --format json -o queued.json >out 2>err || code=$?
        [ $code = 3 ] && continue
        [ $code = 0 ] || fail "$option, $tenths tenths: $(cat err)"
        status 0 "$gr" verify queued.json
        proven=$((proven + 1))
    done
done
[ $proven -ge 3 ] || fail "hardly any plan with a disk fits"

# A disk that nobody needs takes no part: the plan is that without it, but for what says that there is one.
status 0 "$gr" plan grpo.yaml --format json -o without.json
status 0 "$gr" plan grpo.yaml --disk "$disk:64MiB" --format json -o with.json
sed -E 's/"disk_[a-z]*_bytes": [0-9]+, //g; s/, "disk_peak_bytes": 0//' with.json | diff - without.json || fail "a disk changes a plan that needs none"

# A run that is killed leaves nothing there, and goes on.
status 0 "$gr" plan grpo.yaml --policy every_node --format json -o all.json
set -- --policy every_node --host-budget "$(most all.json)" --disk "$disk:64MiB" --set run.checkpoint.every=1 --set models.actor.train.schedule=constant
"$gr" exec grpo.yaml "$@" --steps 4 --out killed >killed.out 2>&1 &
pid=$!
while kill -0 $pid 2>/dev/null && [ ! -e killed/checkpoints/step-1 ]; do sleep 0.01; done
kill -9 $pid 2>/dev/null || :
wait $pid || :
[ -z "$(ls -A "$disk")" ] || fail "a killed run leaves $(ls -A "$disk")"
refused 'the plan keeps .* on a disk, and --disk is not given' "$gr" exec --resume killed
status 0 "$gr" exec --resume killed --disk "$disk:64MiB" --steps 4
same_weights plain killed

# Two ranks, a file each.
if runs_ranks; then
    set -- --ranks 2 --policy every_node --set models.actor.train.schedule=constant --steps 2
    status 0 "$gr" exec grpo.yaml "$@" --out two
    less=$(($(json_number two/plan.json host_peak_bytes) * 55 / 100)) # so that shards alone are not enough
    status 0 "$gr" exec grpo.yaml "$@" --host-budget $less --disk "$disk:64MiB" --out two-disks
    has two-disks/plan.json '"place": "disk"'
    has out '^disk: planned'
    same_weights two two-disks
fi

# What is no disk, or too small a one.
refused "must be a folder and a size, such as /nvme:500GiB" "$gr" plan grpo.yaml --disk "$disk"
refused "must be a folder and a size" "$gr" plan grpo.yaml --disk "$disk:much"
refused "must be a folder and a size" "$gr" audit killed --disk "$disk:much"
refused 'the plan keeps .* on a disk, and --disk 4.00 KiB' "$gr" exec --resume killed --disk "$disk:4KiB" --steps 5
set -- --policy every_node --host-budget "$(most all.json)" --out none --steps 1
status 2 "$gr" exec grpo.yaml "$@" --disk "$work/grpo.yaml:64MiB"
has err "is no folder"
if [ "$(stat -f -c %T /dev/shm)" = tmpfs ]; then
    status 2 "$gr" exec grpo.yaml "$@" --disk /dev/shm:64MiB
    has err 'lies in memory .*--host-budget is for'
fi
# The refusal names the disk that would do.
status 3 "$gr" plan grpo.yaml --policy every_node --host-budget "$(most all.json)"
has err 'note: .* may lie on a disk: --disk FOLDER:SIZE'
status 3 "$gr" plan grpo.yaml --policy every_node --host-budget "$(most all.json)" --disk "$disk:4KiB"
size=$(sed -nE 's/.*would fit: --disk FOLDER:([0-9]+) .*/\1/p' err)
status 0 "$gr" plan grpo.yaml --policy every_node --host-budget "$(most all.json)" --disk "$disk:$size"
has out ', disk .* of '
