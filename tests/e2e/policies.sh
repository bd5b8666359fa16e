#!/bin/sh
# Where state is kept changes no bit: --policy and `residency:`, each proven and run, with memory checked, and resumed.
. "$(dirname "$0")/lib.sh"

run() { # NAME OPTIONS...: plan, prove, run four iterations with a resume after two; the same weights and metrics
    name=$1
    shift
    status 0 "$gr" plan grpo.yaml "$@" --format json -o "$name.json"
    status 0 "$gr" verify "$name.json"
    status 0 "$gr" exec grpo.yaml "$@" --set run.checkpoint.every=2 --set models.actor.train.schedule=constant \
        --steps 2 --check-memory --out "$name"
    status 0 "$gr" exec --resume "$name" --steps 4 --check-memory
    [ "$name" = auto ] || { same_weights auto "$name"; same_metrics auto "$name"; }
    measured=$(metric "$name" 2 measured_peak_bytes)
    planned=$(metric "$name" 2 planned_peak_bytes)
    [ -n "$measured" ] && { [ "$measured" -le "$planned" ] || [ -n "${GR_SANITIZED:-}" ]; } ||
        fail "$name: measured $measured of planned $planned"
}

steps() { # FILE KIND WHAT: how many of the steady iteration
    grep -Ec "\"kind\": \"$2\", \"what\": \"$3" "$1" || :
}

run auto
run keep --policy keep
run transition --policy transition
run every --policy every_node
run mixed --set models.actor.residency.optimizer=transition --set models.ref.residency.params=every_node \
    --set models.actor.residency.kv=every_node
run spared --policy every_node --set models.actor.residency.params=keep --set models.ref.residency.params=transition

# keep moves nothing; every_node loads weights for each node that reads them, transition only what the rollout left out.
for kind in load offload resume release; do
    [ "$(steps keep.json $kind '')" = 0 ] || fail "keep has a step '$kind'"
done
[ "$(steps every.json load actor.params.1)" = 3 ] || fail "rollout, old_logprob and update each load the weights"
[ "$(steps every.json offload actor.params.1)" = 1 ] || fail "only the update changes them"
[ "$(steps every.json load actor.state.1)" = 1 ]
[ "$(steps transition.json load actor.params)" = 0 ] || fail "the rollout uses the weights, too"
[ "$(steps transition.json load actor.state.1)" = 1 ]
[ "$(steps transition.json offload actor.state.1)" = 1 ]
[ "$(steps transition.json load ref.params.1)" = 1 ]
[ "$(steps transition.json resume rollout.kv)" = 1 ]
[ "$(steps mixed.json load actor.params)" = 0 ]
[ "$(steps spared.json load actor.params)" = 0 ]

# What training changes stays over the iteration's end under transition: its life wraps, and the rollout is without it.
sed -nE 's/.*"what": "actor.state.1".*"first": ([0-9]+), "last": ([0-9]+), "place": "device".*/\1 \2/p' transition.json >life
awk '{ if ($2 < $1) n++ } END { exit n != 1 }' life || fail "the moments should live from the update to the rollout: $(cat life)"
begin=$(sed -nE 's/.*"i": ([0-9]+), "kind": "run", "what": "rollout.begin".*/\1/p' transition.json)
last=$(cut -d' ' -f2 life)
[ "$last" -lt "$begin" ] || fail "the moments go at step $last, the rollout begins at $begin"
[ "$(json_number transition.json peak_bytes)" -le "$(json_number keep.json peak_bytes)" ]

# The optimizer's step on the host: the same bits, its state never on the device, all its buckets stepped there.
run host --set models.actor.residency.optimizer=host
run host_every --policy every_node --set models.actor.residency.optimizer=host
run host_keep --policy keep --set models.actor.residency.optimizer=host
for plan in host host_every host_keep; do
    [ "$(grep -c '"what": "actor.state.*"place": "device"' $plan.json)" = 0 ] || fail "$plan: state on the device"
    [ "$(grep -Ec '"what": "update.step.[0-9]+".*"lane": "host"' $plan.json)" = 4 ] || fail "$plan: not all steps on the host"
    [ "$(steps $plan.json offload actor.grads.1)" = 1 ] || fail "$plan: the gradients should go to the host"
    [ "$(steps $plan.json load actor.state)" = 0 ]
done
# Weights are loaded for the rollout and what follows, and again for the passes before each step.
[ "$(steps host_keep.json load actor.params.1)" = 2 ] || fail "weights that stay do so between the steps"
refused "must be one of auto, keep, transition, every_node" "$gr" plan grpo.yaml --set models.actor.residency.kv=host

# Where copies are slow, that is what the planner chooses below what the device can hold of the state.
sed -E 's/"(h2d|d2h|both)": [0-9.e+]+/"\1": 1e+07/g' "$here/../golden/hardware.json" >slow.json
status 3 "$gr" plan grpo.yaml --hardware ./slow.json --budget 4KiB
least=$(least_budget)
run slow_link --hardware ./slow.json --budget $((least + 200000))
grep -Eq '"what": "update.step.[0-9]+".*"lane": "host"' slow_link.json || fail "copies of state are slower than a step on the host"

# One resource that moves at every node makes the other's transition yield.
status 0 "$gr" plan grpo.yaml --policy transition --set models.actor.residency.params=every_node --format json -o yield.json
has err "warning: model 'actor': 'every_node' of params .* 'transition' of optimizer yields: it is kept"
[ "$(steps yield.json load actor.state)" = 0 ]
run yield --policy transition --set models.actor.residency.params=every_node

refused 'auto, keep, transition' "$gr" plan grpo.yaml --set models.actor.residency.params=sometimes
refused "unknown key 'param' in residency; did you mean 'params'" "$gr" check grpo.yaml --set models.actor.residency.param=keep
refused 'policy' "$gr" plan grpo.yaml --policy sometimes
# What a policy forbids to move is refused where it does not fit, with the policy as the way out.
status 3 "$gr" plan grpo.yaml --policy keep --budget 4KiB
least=$(least_budget)
status 3 "$gr" plan grpo.yaml --policy keep --budget $((least - 1))
has err 'would fit: .*--policy auto'
has err 'would fit: --ranks [24] instead of 1'

# bits: keep refuses what would fit with other bits only, and says so; and where it fits, it changes nothing.
model tied llama 64 true false
status 3 "$gr" plan grpo.yaml --set model=tied --budget 4KiB
least=$(least_budget)
status 0 "$gr" plan grpo.yaml --set model=tied --budget $least
has out 'changes the bits'
status 3 "$gr" plan grpo.yaml --set model=tied --budget $least --set run.bits=keep
has err "would fit: with run.bits=fit, with a predicted"
lacks out 'changes the bits'
status 0 "$gr" plan grpo.yaml --set model=tied --format json -o any.json
status 0 "$gr" plan grpo.yaml --set model=tied --set run.bits=keep --format json -o kept.json
[ "$(sed -nE 's/.*"numerics": "([0-9a-f]+)".*/\1/p' any.json)" = "$(sed -nE 's/.*"numerics": "([0-9a-f]+)".*/\1/p' kept.json)" ]
refused "'bits' must be one of fit, keep, prefer, any" "$gr" check grpo.yaml --set run.bits=some
