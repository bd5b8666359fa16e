#!/bin/sh
# A small or full /dev/shm, as containers have it: nobody dies of SIGBUS. Where it is too small for MPI, its memory lies
# elsewhere; where nothing is left in it, that is said, with the path and the bytes wanted. Skips (77) where no file systems may
# be mounted.
if [ -z "${GR_ROOM_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] && user='' || user='--user --map-root-user'
    unshare $user --mount mount -t tmpfs -o size=64k shm /dev/shm 2>/dev/null || { echo "skipped: no mounts here" >&2; exit 77; }
    GR_ROOM_INSIDE=1 exec unshare $user --mount sh "$(realpath "$0")" "$@"
fi
TMPDIR=$(mktemp -d /tmp/graphrun-room.XXXXXX) # not in what is mounted over
export TMPDIR
. "$(dirname "$0")/lib.sh"
trap 'umount small 2>/dev/null || :; cd /; finish; rm -rf "$TMPDIR"' EXIT

memory() { # BYTES...: /dev/shm has so many
    mount -t tmpfs -o size="$1" shm /dev/shm
}
full() { # to the last byte
    dd if=/dev/zero of=/dev/shm/full bs=4k 2>/dev/null || :
}

status 0 "$gr" exec grpo.yaml --ranks 2 --steps 2 --out wide
memory 1m
status 0 "$gr" exec grpo.yaml --ranks 2 --steps 2 --out narrow
same_weights wide narrow
lacks err .
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status 0 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n 2 "$gr" exec grpo.yaml --steps 2 --out under
same_weights wide under
[ -z "$(ls /dev/shm)" ] || fail "files are left in /dev/shm: $(ls /dev/shm)"

# Nothing is left: one message, and no half of a run.
full
status 1 "$gr" exec grpo.yaml --ranks 2 --steps 2 --out never
has err "error: cannot make '/dev/shm/graphrun-[A-Za-z0-9]+' of [0-9]+ bytes, memory in which ranks tell where they are: No space left"
[ "$(grep -c . err)" = 1 ] || fail "more than one message: $(cat err)"
[ ! -e never ] || fail "a run directory of nothing"

# Neither there nor elsewhere.
rm /dev/shm/full
mkdir small
mount -t tmpfs -o size=6m small small
status 1 env TMPDIR="$work/small" "$gr" exec grpo.yaml --ranks 2 --steps 2 --out never
has err "error: '/dev/shm' has [0-9.]+ [KM]iB left, the ranks of this host need 10.* MiB there for messages, and '$work/small' has no room"
[ "$(grep -c 'error: ' err)" = 1 ] || fail "more than one message: $(cat err)"
umount small
status 0 env OMPI_MCA_btl_vader_backing_directory="$work" "$gr" exec grpo.yaml --ranks 2 --steps 2 --out named
same_weights wide named
