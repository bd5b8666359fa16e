#!/bin/sh
# Plans for many ranks, made and proven on this machine. Running them: tests/ranks.
. "$(dirname "$0")/lib.sh"

one=$("$gr" plan grpo.yaml --format json | tr ',' '\n' | sed -nE 's/.*"numerics": "(.*)"/\1/p')
last=0
for ranks in 1 2 4 8 64 1x8 2x8 128x8; do
    status 0 "$gr" plan grpo.yaml --ranks $ranks --format json -o plan.json
    status 0 "$gr" verify plan.json
    state=$(grep -o '"what": "actor.state.1", "category": "optimizer", "bytes": [0-9]*' plan.json | grep -o '[0-9]*$')
    case $ranks in
    1) has plan.json '"ranks": "0"'; lacks plan.json '"lane": "comm"'; whole=$state ;;
    [248]) has plan.json "\"ranks\": \"0-$((ranks - 1))\""; [ "$state" -lt "$last" ] || fail "the state of $ranks ranks is $state bytes" ;;
    128x8) has plan.json '"ranks": "0-1023"'; [ "$state" = 512 ] || [ "$state" -le $((whole / 512)) ] ;;
    esac
    last=$state
    [ "$ranks" = 1 ] || lacks plan.json "\"numerics\": \"$one\""
done

# The same rank of the same plan, however the ranks are spread over hosts; the network is slower than the link.
seconds() { "$gr" plan grpo.yaml --ranks "$1" --hardware cpu --format json | sed -nE 's/.*"fits": true, "seconds": ([0-9.]+).*/\1/p'; }
a=$(seconds 1x4) b=$(seconds 4x1)
echo "$a $b" | awk '{ exit !($2 > $1) }' || fail "4 hosts of one device should take longer than one host of 4: $b, $a"

for step in reduce gather agree; do
    status 0 "$gr" plan grpo.yaml --ranks 4 --format json -o a.json
    sed "/\"kind\": \"$step\"/s/\"lane\": \"comm\"/\"lane\": \"compute\"/" a.json >b.json
    refused 'b.json|compute' "$gr" verify b.json
done
sed 's/"ranks": "0-3"/"ranks": "0-1"/' a.json >b.json
refused 'b.json|plan' "$gr" verify b.json
sed 's/"name": "sharded", "value": 1/"name": "sharded", "value": 2/; s/"ranks": "0-3"/"ranks": "3-0"/' a.json >b.json
refused 'b.json|ranks' "$gr" verify b.json

# Weights that are sharded need a copy to generate with; one place of the graph asks for it.
copy="--ranks 4 --set models.actor.residency.rollout_weights=keep"
status 0 "$gr" plan grpo.yaml $copy --format json -o copy.json
status 0 "$gr" verify copy.json
has copy.json '"kind": "sync", "what": "rollout.sync.0"'
has copy.json '"what": "actor.rollout.1", "category": "rollout weights"'
status 0 "$gr" plan grpo.yaml $copy --set models.actor.gather=whole --format json -o whole.json
status 0 "$gr" verify whole.json
[ "$(json_number whole.json peak_bytes)" -ge "$(json_number copy.json peak_bytes)" ]
sed 's/"name": "sharded", "value": 1/"name": "sharded", "value": 0/' copy.json >b.json
refused 'b.json|plan' "$gr" verify b.json
sed '0,/"name": "sharded", "value": 1/s//"name": "sharded", "value": 0/' copy.json >b.json
refused 'b.json|shard' "$gr" verify b.json

refused 'the plan is for ranks 0-3' "$gr" exec grpo.yaml --plan a.json --out two
for wrong in 0 -1 x 2x 0x4 2x2x2 99999999; do
    refused "ranks" "$gr" plan grpo.yaml --ranks $wrong
done
refused 'say hosts by devices, such as 2x8' "$gr" plan grpo.yaml --ranks 9

# A validation generates with a copy of its own, synced on its own path.
sed 's/^run:/  vp: {op: prompts, file: $data, batch: 4, max_tokens: 8, template: "{question}", every: 2}\n  vr: {op: generate, model: actor, prompts: vp, samples: 1, temperature: 0, max_tokens: 6, every: 2}\n  vs: {op: reward, of: vr, answer: vp.answer, rule: {extract: "([0-9])", answer_extract: "([0-9])", compare: string}, every: 2}\n&/' grpo.yaml >validated.yaml
for policy in auto keep transition every_node; do
    status 0 "$gr" plan validated.yaml $copy --policy $policy --format json -o v.json
    status 0 "$gr" verify v.json
    has v.json '"kind": "sync", "what": "vr.sync.0"'
done
