#!/bin/sh
# A power cut behind each change that a run makes to its folder, under five kinds of file systems: see cut.c. GR_SLOW=1: all of
# them, whose rows are those of docs/RELIABILITY.md.
# usage: cuts.sh GRAPHRUN CUT INJECT.SO
[ $# -eq 3 ] || { echo "usage: $0 GRAPHRUN CUT INJECT.SO" >&2; exit 2; }
[ -z "${GR_SANITIZED-}" ] || { echo "skipped: a sanitizer has functions of its own for those that are traced" >&2; exit 77; }
cut=$(realpath "$2") inject=$(realpath "$3")
set -- "$1"
. "$(dirname "$0")/../e2e/lib.sh"
. "$here/graphs.sh"
wrong=0
printf '| what | changes | states | went on | went back, as told | began anew | lines lost | wrong |\n|---|---|---|---|---|---|---|---|\n'

# over TITLE STATES BEFORE GO-ON OPTIONS COMMAND...: so many states where it is quick; GO-ON may ask $FROM
over() {
    title=$1 states=$2 before=$3 go_on=$4 options=$5
    shift 5
    [ "$slow" = 0 ] || states=100000
    # shellcheck disable=SC2086 # options have no spaces
    "$cut" -i "$inject" -t "$before" -r "$go_on" -s $states $options "$@" >said </dev/null || wrong=$((wrong + 1))
    sed "s/^|/| $title |/" said
}

run_anew="$gr exec rich.yaml --out run"
# shellcheck disable=SC2016 # the inner shell's
on='if [ -n "${FROM-}" ]; then '"$gr"' exec --resume "$FROM"; elif [ -e run/graph.yaml ]; then '"$gr"' exec --resume run; else '"$run_anew"'; fi'
# shellcheck disable=SC2086
over '`exec`, the best and the last are kept' 30 start "$on" '-m -a kept -x run/checkpoints' $run_anew
over '`exec --resume`' 20 ran "$gr exec --resume \${FROM-run} --steps 3" '-m -x run/checkpoints' "$gr" exec --resume run --steps 3
over '`exec --resume RUN@STEP`' 20 ran "$gr exec --resume \${FROM-run@1} --steps 3" '-m' "$gr" exec --resume run@1 --steps 3
over '`export`' 20 ran "[ -e out ] || $gr export run -o out --shard 20KB" '' "$gr" export run -o out --shard 20KB
over '`init`' 10 start "[ -e made ] || $gr init --config ../model.json --tokenizer $project/graphs/quickstart --seed 2 -o made" '' \
    "$gr" init --config ../model.json --tokenizer "$project/graphs/quickstart" --seed 2 -o made
over '`plan -o`' 10 ran "[ -e plan.json ] || $gr plan rich.yaml --format json -o plan.json" '' "$gr" plan rich.yaml --format json -o plan.json
[ $wrong = 0 ] || fail "$wrong of them lose what they must not"

# What is never synced is lost, and that is seen.
# shellcheck disable=SC2086
if "$cut" -i "$inject" -t start -r "$on" -s 60 -u -m -a kept -x run/checkpoints $run_anew >said </dev/null; then
    fail "a run that syncs nothing loses nothing"
fi
