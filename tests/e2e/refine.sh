#!/bin/sh
# A run's trace has the prediction of each step beside what it took, and `calibrate --from` brings the two together; runs
# that do not say enough, or are of another machine, are refused.
. "$(dirname "$0")/lib.sh"

hw=$here/../golden/hardware.json
config wide.json llama 128 false false
sed -i 's/"intermediate_size": 48/"intermediate_size": 768/' wide.json
rm -rf model
"$gr" init --config wide.json --tokenizer "$project/graphs/quickstart" --seed 1 -o model >/dev/null
for n in 1 2; do
    status 0 "$gr" exec grpo.yaml --hardware "$hw" --steps 5 --out run$n --seed $n
    has run$n/trace.json '"dur": [0-9.]+, "args": \{"step": [0-9]+, "predicted": [0-9.]+\}\}'
done
status 0 "$gr" calibrate --hardware "$hw" --from run1 --from run2 -o new.json
has out 'passes forward +[0-9.]+ of the time predicted, within [0-9.]+ % of it; steps differ by [0-9.]+ % \([0-9]+ times\)'
has out 'copies to the device +not in the runs'

# Attention changes by the factor that it says. The rates of passes change where the runs had such rows and widths, and
# nowhere else; nor does anything that the runs do not have.
factor() { sed -nE "s/^ +$1 +([0-9.]+) of the time.*/\1/p" out; }
first() { # FILE KEY
    grep -o "\"$2\": *[0-9.e+-]*" "$1" | head -1 | sed 's/.*: *//'
}
column() { # FILE KEY [LENGTH]: of the rates by rows, or of attention
    grep "\"${3:-rows}\": " "$1" | sed -nE "s/.*\"$2\": ([0-9.e+]+).*/\1/p"
}
for pair in 'forward;passes forward' 'backward;passes backward' 'decode;steps of a rollout'; do
    column "$hw" "${pair%;*}" >was
    column new.json "${pair%;*}" >is
    paste was is | awk '{ n += $1 != $2; same += $1 == $2 } END { exit !(n > 0 && same > 0) }' ||
        fail "$pair: $(paste was is)"
done
for pair in 'forward;passes forward' 'backward;passes backward'; do
    echo "$(column "$hw" "${pair%;*}" length) $(column new.json "${pair%;*}" length) $(factor "${pair#*;}")" | awk '
        { d = $1 / $2 / $3; exit !($3 > 0 && d > 0.999 && d < 1.001) }' || fail "$pair: $(cat out)"
done
[ "$(first new.json disk)" = "$(first "$hw" disk)" ] || fail "what runs do not show has changed"

# Runs that were predicted with the refined file need no more of it: what is left is noise, which has no bound here; the
# file is read, and the runs are of it by its name.
status 0 "$gr" plan grpo.yaml --hardware new.json

# Copies that are slower than the file says, each way, leave a file that says no more of both ways at once.
sed -E 's/("(h2d|d2h|both)": )[0-9.e+]+/\1 4e+10/g' "$hw" >fast.json
peak=$("$gr" plan grpo.yaml --hardware fast.json --format json | sed -nE 's/.*"peak_bytes": ([0-9]+).*/\1/p' | head -1)
status 0 "$gr" exec grpo.yaml --hardware fast.json --steps 4 --out moves --budget $((peak * 8 / 10))
status 0 "$gr" calibrate --hardware fast.json --from moves -o slower.json
has out 'copies to the device +[0-9.]+ of the time predicted'
status 0 "$gr" plan grpo.yaml --hardware slower.json

# Refused, by name.
refused "run1: error: the run was planned for hardware '.*', device cpu, not for 'h200', device cuda" \
    "$gr" calibrate --hardware h200 --from run1 -o no.json
refused "has no measured rates that runs could refine" "$gr" calibrate --hardware cpu --from run1
refused "hardware is for --from" "$gr" calibrate --hardware "$hw"
refused "absent" "$gr" calibrate --hardware "$hw" --from absent
status 0 "$gr" exec grpo.yaml --hardware "$hw" --steps 2 --out short
refused "its trace has 2 iterations .* at least 3" "$gr" calibrate --hardware "$hw" --from short
[ ! -e no.json ] || fail "a refused calibration left a file"
