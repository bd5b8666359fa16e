# Sourced by tests of a CUDA device: the quickstart's data and a random model of its shape in a folder of the test's own.
# Skips (77) where there is no device. Goes to the project's folder; sets gr and work.
# usage of a test: NAME.sh GRAPHRUN
set -eu
gr=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
graphs/quickstart/data.sh "$work"
"$gr" init --config graphs/quickstart/config.json --tokenizer graphs/quickstart --seed 1 -o "$work/model" >/dev/null
if ! "$gr" plan graphs/quickstart.yaml --set model="$work/model" --device cuda >/dev/null 2>"$work/err"; then
    cat "$work/err"
    grep -q 'CUDA device\|has no device' "$work/err" || exit 1
    echo "skipped"
    exit 77
fi
