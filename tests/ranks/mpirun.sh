# Sourced by tests of several ranks: a folder of its own to work in, and `ranks N COMMAND...`, which runs a command on
# N ranks of this machine, however few cores it has. Skips (77) where there is no mpirun.
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun" >&2; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ranks() {
    n=$1
    shift
    mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n "$n" "$@"
}
