#!/bin/sh
# usage: test_view.sh GRAPHRUN
# A plan as csv, dot, svg and html; two plans compared; plans over a range; what is refused.
set -eu
graphrun=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
    echo "$*" >&2
    exit 1
}
plan() { # OPTION...: of the quickstart with a small model; output in $dir/said
    "$graphrun" plan graphs/quickstart.yaml --set model="$PWD/graphs/quickstart" "$@" >"$dir/said" 2>&1
}
has() {
    grep -qF -- "$1" "$dir/said" || { cat "$dir/said"; fail "not said: $1"; }
}
refused() { # TEXT COMMAND...
    text=$1 status=0
    shift
    "$@" >"$dir/said" 2>&1 || status=$?
    [ "$status" = 2 ] || fail "exit status $status, not 2: $*"
    has "$text"
}

# The same plan gives the same bytes; a smaller budget another plan.
for format in csv dot svg html; do
    plan --budget 64MiB --format $format -o "$dir/a.$format"
    case ${GR_SLOW:-0}$format in 0csv | 0dot) continue ;; esac
    plan --budget 64MiB --format $format -o "$dir/b.$format"
    cmp "$dir/a.$format" "$dir/b.$format"
done
for budget in 64MiB 1GiB; do plan --budget $budget --format json -o "$dir/$budget.json"; done

steps=$(grep -c '"i": [0-9]*, "kind"' "$dir/64MiB.json") # of all paths
rows=$(($(wc -l <"$dir/a.csv") - 1))
[ "$rows" -gt 30 ] && [ "$rows" -le "$steps" ] || fail "$rows rows of csv, $steps steps"
[ "$(tail -n 1 "$dir/a.csv" | tr -dc , | wc -c)" = 11 ] || fail "a row of csv has not 12 columns"

grep -q '"node rollout" -> "node reward"' "$dir/a.dot"
grep -q '"model actor" -> "node update".*dir=both' "$dir/a.dot"
! command -v dot >/dev/null || dot -Tsvg "$dir/a.dot" -o "$dir/dot.svg" 2>"$dir/said" && [ ! -s "$dir/said" ] ||
    fail "Graphviz refuses the dot file"
! command -v xmllint >/dev/null || xmllint --noout "$dir/a.svg"

# Table, page and picture agree about transitions, also of several ranks, whose collectives are none.
agree() { # OPTION...
    plan "$@"
    n=$(sed -nE 's/.*, ([0-9]+) transition steps, .*/\1/p' "$dir/said")
    [ "${n:-0}" -gt 0 ] || { cat "$dir/said"; fail "no transitions: plan $*"; }
    plan "$@" --format html -o "$dir/moves.html"
    grep -qF "\"transitions\":{\"steps\":$n," "$dir/moves.html" || fail "the page has not the table's $n transitions: plan $*"
    plan "$@" --format svg -o "$dir/moves.svg"
    grep -qF "$n transition steps" "$dir/moves.svg" || fail "the picture has not the table's $n transitions: plan $*"
}
agree --budget 18MiB
agree --budget 32MiB --ranks 4

# Model, batch, speed and devices, in both.
for format in html svg; do
    grep -qF 'quickstart' "$dir/a.$format" && grep -qF ' responses' "$dir/a.$format" && grep -qE '[0-9] tokens/s' "$dir/a.$format" ||
        fail "$format says nothing of model, batch and speed"
done
plan --set nodes.prompts.batch=6 --set nodes.rollout.samples=7 --set nodes.update.mini_batch=6 --hardware h200 --format svg -o "$dir/batch.svg" || { cat "$dir/said"; exit 1; }
grep -q '42 responses (6 × 7, at most [0-9]* + [0-9]* tokens each).* 1 × h200' "$dir/batch.svg" || fail "the batch is not 6 x 7"

# Nothing comes from outside, and no text of the graph ends the page's data.
! grep -qE '(src|href)="?(https?:)?//|@import|fetch\(' "$dir/a.html" || fail "the page asks the network"
sed 's/{question}/<\/script><b>{question}/' graphs/quickstart.yaml >"$dir/odd.yaml"
"$graphrun" plan "$dir/odd.yaml" --set model="$PWD/graphs/quickstart" --set data=x --format html -o "$dir/odd.html"
grep -qF 'u003c/script>\u003cb>{question}' "$dir/odd.html" || fail "the graph's text is not in the page"
[ "$(grep -cF '</script>' "$dir/odd.html")" = 3 ] || fail "the graph's text ends a script"

"$graphrun" diff "$dir/64MiB.json" "$dir/64MiB.json" >"$dir/said"
has 'the plans are the same'
"$graphrun" diff "$dir/1GiB.json" "$dir/64MiB.json" >"$dir/said"
has 'budget      1.00 GiB -> 64.00 MiB, 960.00 MiB less'
has 'settings'
refused "$dir/no.json" "$graphrun" diff "$dir/no.json" "$dir/64MiB.json"
head -c 500 "$dir/64MiB.json" >"$dir/short.json"
refused "$dir/short.json" "$graphrun" diff "$dir/64MiB.json" "$dir/short.json"
refused 'needs PLAN_A.json PLAN_B.json' "$graphrun" diff "$dir/64MiB.json"

plan --sweep budget=32MiB..256MiB:3
has '32.00 MiB  yes'
has '144.00 MiB  yes'
has '256.00 MiB  yes'
plan --sweep group=2..8:4 --format csv
has 'group,fits,peak_bytes,seconds,transitions,moved_bytes,notes'
[ "$(cut -d, -f1 "$dir/said" | tr '\n' ' ')" = 'group 2 4 6 8 ' ] || fail "the values are not 2 4 6 8"
plan --sweep budget=32MiB..256MiB:3 --format svg -o "$dir/sweep.svg"
grep -q 'budget 144.00 MiB: fits' "$dir/sweep.svg"
plan --sweep nodes.update.mini_batch=31..33:3
has '31       mini_batch: 31 does not divide the batch of 64 prompts'
has '32  yes'
status=0
plan --sweep budget=1MiB..2MiB:2 || status=$?
[ "$status" = 3 ] || fail "nothing of the sweep fits, and the exit status is $status"
has '1.00 MiB  no'
for bad in budget budget=1GiB =1..2 budget=0..1GiB budget=2GiB..1GiB group=a..3 group=1..b group=1..3:0 group=1..3:x; do
    refused "--sweep '$bad'" plan --sweep $bad
done
refused "unknown parameter 'grop'" plan --sweep grop=1..2
refused "a sweep has no format 'html'" plan --sweep group=2..8 --format html

# What does not fit comes with the nearest changes that do, and they do.
status=0
plan --set nodes.update.micro_tokens=8192 --budget 48MiB || status=$?
[ "$status" = 3 ] || fail "exit status $status, not 3"
has 'would fit: --budget '
has 'would fit: --set nodes.update.micro_tokens=0 instead of 8192, with a predicted '
plan --set nodes.update.micro_tokens=0 --budget 48MiB
mkdir "$dir/long"
sed 's/"max_position_embeddings": 64/"max_position_embeddings": 65536/' graphs/quickstart/config.json >"$dir/long/config.json"
long() {
    plan --set model="$dir/long" --set nodes.prompts.max_tokens=40000 --budget 64MiB "$@"
}
status=0
long || status=$?
[ "$status" = 3 ] || fail "exit status $status, not 3"
set=$(sed -n 's/.*would fit: --set \(nodes.prompts.max_tokens=[0-9]*\) instead of 40000.*/\1/p' "$dir/said")
[ -n "$set" ] || { cat "$dir/said"; fail "no smaller prompt is named"; }
long --set "$set"

# A rollout that one rank's memory does not hold, of a model of 70 billion parameters: slices of it are named, and fit.
mkdir "$dir/large"
sed 's/"hidden_size": 128/"hidden_size": 8192/; s/"intermediate_size": 384/"intermediate_size": 28672/; s/"num_hidden_layers": 3/"num_hidden_layers": 80/
    s/"num_attention_heads": 4/"num_attention_heads": 64/; s/"num_key_value_heads": 4/"num_key_value_heads": 8/' graphs/quickstart/config.json >"$dir/large/config.json"
large() {
    plan --set model="$dir/large" --device cuda --hardware h200 --ranks 8 --budget 120GiB "$@"
}
status=0
large || status=$?
[ "$status" = 3 ] || fail "exit status $status, not 3"
has 'would fit: --set models.actor.tensor=2 instead of 1, with a predicted '
large --set models.actor.tensor=2
