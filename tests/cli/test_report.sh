#!/bin/sh
# usage: test_report.sh GRAPHRUN
# The report of a run directory written by hand, and its errors.
set -eu
graphrun=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# report NAME STATUS: runs it; standard output and error in $dir/said
report() {
    status=0
    "$graphrun" report "$dir/$1" >"$dir/said" 2>&1 || status=$?
    [ "$status" = "$2" ] || { echo "$1: exit status $status, not $2"; cat "$dir/said"; exit 1; }
}
has() {
    grep -qF -- "$1" "$dir/said" || { echo "not said: $1"; cat "$dir/said"; exit 1; }
}
lacks() {
    ! grep -qF -- "$1" "$dir/said" || { echo "said: $1"; cat "$dir/said"; exit 1; }
}

mkdir -p "$dir/run/checkpoints/step-2" "$dir/run/checkpoints/.step-3.tmp"
echo '{"version": 1, "graph": "small"}' >"$dir/run/plan.json"
line() { # step reward loss seconds tokens_per_second
    printf '{"step": %s, "reward_mean": %s, "loss": %s, "seconds": %s, "tokens_per_second": %s, "planned_peak_bytes": 2097152, "measured_peak_bytes": 1048576, "seconds.update": 1}\n' "$@"
}
{
    line 1 0.25 3 2 100
    line 2 0.75 1 2 300
    line 3 0.5 2 4 200
} >"$dir/run/metrics.jsonl"
cat >"$dir/run/samples.jsonl" <<'END'
{"step": 1, "sequence": 0, "prompt": "1+1=", "response": "3\n", "reward": 0}
{"step": 3, "sequence": 0, "prompt": "1+1=", "response": "2", "reward": 1}
END
report run 0
has 'small: 3 iterations in 8.0 s, 200 tokens/s (median)'
has 'reward   first 0.25, last 0.5, best 0.75 in step 2'
has '         ▁█▅' # 0.25 is the lowest block, 0.75 the highest, 0.5 half way
has 'loss     first 3, last 2, best 1 in step 2'
has '  update                  1.0000   37.5 %' # 3 of 8 seconds
has 'peak     planned 2.00 MiB, measured 1.00 MiB'
has 'checkpoints step-2'
lacks 'step-3.tmp'
has '  step 1      "1+1=" -> "3\n"  reward 0'
has '  step 3      "1+1=" -> "2"  reward 1'

lacks experts

# Of a model with experts: how even their load is, and where it was compared how many routers agreed with the rollout.
cp -r "$dir/run" "$dir/experts"
sed -i 's/"seconds.update": 1/&, "old.expert_load": 3.25, "old.expert_entropy": 0.5, "old.experts_dead": 2, "update.expert_load": 2, "update.expert_entropy": 1, "update.experts_dead": 0, "update.routing_agreement": 0.9375/' "$dir/experts/metrics.jsonl"
report experts 0
has 'experts, last              load   entropy      dead  agreement'
has '  old                       3.25     0.500         2         -'
has '  update                    2.00     1.000         0    0.9375'

# Several runs: one after the other as text, over each other as a page, which nothing in a run can break out of.
status=0
"$graphrun" report "$dir/run" "$dir/experts" >"$dir/said" || status=$?
[ $status = 0 ] && [ "$(grep -c 'small: 3 iterations' "$dir/said")" = 2 ] || { cat "$dir/said"; exit 1; }
cp -r "$dir/run" "$dir/hostile"
echo '{"step": 3, "sequence": 1, "prompt": "</script><script>", "response": "<!--", "reward": 1}' >>"$dir/hostile/samples.jsonl"
echo 'torn' >>"$dir/hostile/metrics.jsonl"
"$graphrun" report "$dir/run" "$dir/hostile" --format html -o "$dir/page.html" 2>"$dir/said"
has 'hostile/metrics.jsonl: 1 lines are no objects of JSON and are left out'
cp "$dir/page.html" "$dir/said"
has '"reward_mean":0.75'
has '\u003c/script>\u003cscript>'
[ "$(grep -c '</script>' "$dir/page.html")" = 2 ] || { echo "the page is broken out of"; exit 1; }
mkdir "$dir/new"
cp "$dir/run/plan.json" "$dir/new"
status=0
"$graphrun" report "$dir/new" --format html >"$dir/said" 2>&1 || status=$?
[ $status = 2 ]
has 'no iteration of this run has ended'

# A supervised run has no reward; one without samples has an empty file.
cp -r "$dir/run" "$dir/supervised"
sed -i 's/"reward_mean": [0-9.]*/"reward_mean": null/' "$dir/supervised/metrics.jsonl"
: >"$dir/supervised/samples.jsonl"
report supervised 0
lacks reward
has 'loss     first 3'

# One that went on with another graph: a number is gone, another has come.
cp -r "$dir/run" "$dir/changed"
sed -i '3s/"loss": 2, /"other.loss": 5, /' "$dir/changed/metrics.jsonl"
report changed 0
has 'small: 3 iterations in 8.0 s'
has 'loss     first 3, last 1, best 1 in step 2'

report nothing 2
has "no run in '$dir/nothing': there is no '$dir/nothing/plan.json'"
cp -r "$dir/run" "$dir/refused"
: >"$dir/refused/metrics.jsonl"
report refused 2
has 'refused/metrics.jsonl: error: no line: no iteration of this run has ended'
for break in 's/"loss": 1,/"loss": "low",/' 's/"step": 2,//' '2s/.*/{"step": 2, /' '2s/.*/[]/'; do
    rm -rf "$dir/broken"
    cp -r "$dir/run" "$dir/broken"
    sed -i "$break" "$dir/broken/metrics.jsonl"
    report broken 2
    has broken/metrics.jsonl:2
done
rm "$dir/broken/metrics.jsonl"
report broken 2
has broken/metrics.jsonl
cp "$dir/run/metrics.jsonl" "$dir/broken"
echo '{"step": 1, "prompt": 5}' >"$dir/broken/samples.jsonl"
report broken 2
has broken/samples.jsonl:1
echo '{"graph": 5}' >"$dir/broken/plan.json"
report broken 2
has broken/plan.json:1
