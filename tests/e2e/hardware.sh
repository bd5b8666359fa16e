#!/bin/sh
# Hardware files, budgets and plan files that are wrong: status 2 and the place. With GR_SLOW=1 this machine is
# calibrated, too.
. "$(dirname "$0")/lib.sh"

hw=$project/tests/golden/hardware.json

# The file is read by plan, sweep and exec, and names the plan.
status 0 "$gr" plan grpo.yaml --hardware "$hw" --format json -o plan.json
has plan.json '"hardware": "cpu, 2 threads"'
status 0 "$gr" plan grpo.yaml --hardware "$hw" --sweep budget=1MiB..8MiB:3 --format csv
[ "$(wc -l <out)" = 4 ] || fail "a sweep of three budgets has $(wc -l <out) lines"
status 0 "$gr" exec grpo.yaml --hardware "$hw" --steps 1 --out run
has run/plan.json '"hardware": "cpu, 2 threads"'
[ "$(json_number plan.json peak_bytes)" = "$(json_number run/plan.json peak_bytes)" ] || fail "plan and run differ"

# Every command that reads it refuses what is wrong in it, with file and key.
bad() { # PLACE SED-SCRIPT
    sed -E "$2" "$hw" >bad.json
    ! cmp -s "$hw" bad.json || fail "edit $2 changed nothing"
    refused "^bad.json:? ?.*error: $1" "$gr" plan grpo.yaml --hardware bad.json
    refused "error: $1" "$gr" plan grpo.yaml --hardware bad.json --sweep budget=1MiB..8MiB:3
    refused "error: $1" "$gr" exec grpo.yaml --hardware bad.json --out refused
    [ ! -e refused ] || fail "a refused run left files"
}
bad '\$: key .step_ns. is missing' '/"step_ns"/d'
for key in $(tr '{,' '\n\n' <"$hw" | sed -nE 's/^ *"([a-z0-9_]+)":.*/\1/p' | sort -u); do # every key must be there
    sed "0,/\"$key\":/s//\"no_$key\":/" "$hw" >bad.json
    refused "bad.json: error: \\$.*: key '$key' is missing" "$gr" plan grpo.yaml --hardware bad.json
done
bad '\$: unknown key .speed.' 's/"step_ns"/"speed": 1, &/'
bad '\$.step_ns: -1 is not in' 's/("step_ns": ).*/\1-1,/'
bad '\$.bytes_per_second.disk: should be a number' 's/("disk": )[^,]*/\1"fast"/'
bad '\$.copies\[0\].ranks: should be 1 at first' 's/("ranks": )1/\12/'
bad '\$.matrix\[1\].forward: -' 's/(1024, "forward": )/\1-/'
bad '\$.attention\[0\].length: 0 is not in' 's/("length": )1024/\10/'
bad '\$.head: -1 is not a rate above 0, or 0' 's/("head": )0/\1-1/'
bad '\$.version: this program reads version 4' 's/("version": )4/\13/'
bad '.*(expected|unexpected|premature)' '$d'
# What a cluster is made of may be left out; where it is there, many ranks take longer, and keys and places are checked.
old=$hw hw=$PWD/cluster.json
sed 's/"devices": 8,/&"cluster": {"adapters": 8, "pod": 0, "oversubscription": 1, "peer_bytes": 0, "spread": 0,\
 "protocols": [{"ring_share": 1, "tree_share": 1, "most": 0, "ring_ns": [1000, 10000], "tree_ns": [1000, 10000]}]},/' "$old" >"$hw"
plan_seconds() { # HARDWARE RANKS
    status 0 "$gr" plan grpo.yaml --hardware "$1" --ranks "$2" --format json -o many.json
    tr ',' '\n' <many.json | sed -nE 's/.*"seconds": *([0-9.e-]+).*/\1/p' | head -1
}
few=$(plan_seconds "$hw" 1x8)
[ "$few" ] && [ "$few" = "$(plan_seconds "$old" 1x8)" ] || fail "a cluster changes the plan of one host"
awk -v few="$few" -v many="$(plan_seconds "$hw" 2048x8)" -v old="$(plan_seconds "$old" 2048x8)" \
    'BEGIN { exit !(many > 1.05 * few && many > old) }' || fail "16,384 ranks take as long as 8"
bad '\$.cluster: key .pod. is missing' 's/"pod": 0, //'
bad '\$.cluster: unknown key .pods.' 's/"pod"/"pods": 1, &/'
bad '\$.cluster.adapters: 0 is not in 1' 's/("adapters": )8/\10/'
bad '\$.cluster.oversubscription: 0.1 is less than 1' 's/("oversubscription": )1/\10.1/'
bad '\$.cluster.protocols\[0\].tree_ns: should be two whole numbers' 's/("tree_ns": )\[1000, /\1[/'
hw=$old
refused 'absent.json' "$gr" plan grpo.yaml --hardware ./absent.json
refused "unknown hardware 'h20'; did you mean 'h200'" "$gr" plan grpo.yaml --hardware h20

# Budgets: none, negative, no number, more than there is.
for budget in 0 -1 -80GiB 80GoB 1e99 ''; do
    refused "error: --budget '$budget' must be a size" "$gr" plan grpo.yaml --budget "$budget"
    refused "error: --budget '$budget' must be a size" "$gr" exec grpo.yaml --budget "$budget" --out refused
    refused "error: --host-budget '$budget' must be a size" "$gr" plan grpo.yaml --host-budget "$budget"
done
refused 'error: --budget 17.00 GiB is more than the 16.00 GiB of .cpu, 2 threads' "$gr" plan grpo.yaml --hardware "$hw" --budget 17GiB
# What no setting brings down: the known machine that has room, and what the host lacks, are named; each is enough.
config big.json llama 8192 false false
sed -i 's/"num_hidden_layers": 2/"num_hidden_layers": 80/; s/"intermediate_size": 48/"intermediate_size": 28672/; s/"num_attention_heads": [0-9]*/"num_attention_heads": 64/; s/"head_dim": [0-9]*/"head_dim": 128/' big.json
big="$gr plan grpo.yaml --set model=big.json --format json -o big-plan.json"
status 3 $big --hardware a100-40g --ranks 64
has err 'would fit: --hardware [a-z0-9-]+ instead of a100-40g, with a predicted'
status 0 $big --ranks 64 --hardware "$(sed -nE 's/.*would fit: --hardware ([a-z0-9-]+) .*/\1/p' err)"
status 3 $big --hardware h200 --host-budget 1GiB
has err 'would fit: --host-budget [0-9]+ '
status 0 $big --hardware h200 --host-budget "$(sed -nE 's/.*would fit: --host-budget ([0-9]+) .*/\1/p' err)"
# Where the device has room, the smallest host pool is asked for, and not that of the smallest arena; where neither
# has enough, both are named.
status 3 "$gr" plan grpo.yaml --host-budget 1
least=$(sed -nE 's/.*would fit: --host-budget ([0-9]+) .*/\1/p' err)
status 0 "$gr" plan grpo.yaml --host-budget "$least" --format json
[ "$(json_number out host_peak_bytes)" = "$least" ] || fail "$least bytes are not what the plan takes"
status 3 "$gr" plan grpo.yaml --host-budget $((least - 1))
status 3 "$gr" plan grpo.yaml --host-budget 1 --budget 4KiB
has err 'would fit: --budget [0-9]+ --host-budget [0-9]+ '
status 0 "$gr" plan grpo.yaml $(sed -nE 's/.*would fit: (--budget [0-9]+ --host-budget [0-9]+) .*/\1/p' err)
refused 'error: --budget 141.00 GiB is more than the 140.40 GiB of .h200' "$gr" plan grpo.yaml --hardware h200 --budget 141GiB
refused 'error: --budget 2.00 PiB is more than' "$gr" exec grpo.yaml --budget 2048TiB --out refused
refused 'error: --check-memory is of the CPU device' "$gr" exec grpo.yaml --device cuda --hardware h200 --check-memory --out refused
[ ! -e refused ] || fail "a refused run left files"

# Plan files: of another version, changed by hand, cut short anywhere.
broken() { # PLACE SED-SCRIPT
    sed -E "$2" plan.json >broken.json
    ! cmp -s plan.json broken.json || fail "edit $2 changed nothing"
    refused "broken.json(:[0-9:]+)?: error: " "$gr" verify broken.json
    has err "$1"
    refused "$1" "$gr" exec grpo.yaml --plan broken.json --out refused
    refused "$1" "$gr" diff plan.json broken.json
}
broken '\$.version: 7 is not the version' 's/"version": [0-9]+/"version": 7/'
broken "key 'numerics' is missing" 's/, "numerics": "[^"]*"//'
broken "unknown key 'ledgr'; did you mean 'ledger'" 's/"ledger"/"ledgr"/'
broken '\.bytes: -1 is not in' '0,/"bytes": [0-9]+/s//"bytes": -1/'
broken "kind: unknown 'runs'; did you mean 'run'" '0,/"kind": "run"/s//"kind": "runs"/'
bytes=$(wc -c <plan.json)
for n in 0 1 100 $((bytes / 2)) $((bytes - 3)); do
    head -c $n plan.json >broken.json
    refused 'broken.json(:[0-9]+:[0-9]+)?: error: no whole JSON file' "$gr" verify broken.json
done
sed -E '0,/"lane": "compute"/s//"lane": "host"/' plan.json >broken.json
refused "plan breaks rule 'lanes': step [0-9]+" "$gr" verify broken.json
has err 'broken.json: error: not proven'

[ "$slow" = 1 ] || exit 0
status 0 "$gr" calibrate -o mine.json
has out 'mine.json: cpu, [0-9]+ thread'
has out 'repeats     of half of all measurements within [0-9.]+ %; the worst [0-9]+ %: [a-z]'
has out 'host        [0-9.]+ % of the time that measuring took it waited for a processor; load [0-9.]+ for each processor'
status 0 "$gr" plan grpo.yaml --hardware mine.json
status 0 "$gr" calibrate
has out '"version": 4'
