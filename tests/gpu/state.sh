#!/bin/sh
# Forms of training state on a CUDA device, in fewer bytes and of other optimizers: a split master is the fp32 one after a step, every
# form has the same bits twice, resumed, under a budget, with a disk, and no more memory than planned; muon is near the CPU's; a run goes on
# with another form. Skips (77) where there is no device.
# usage: [FORMS="..."] state.sh GRAPHRUN
. "$(dirname "$0")/one.sh"
. "$project/tests/gpu/rows.sh"

small_model wide
sed -e 's/, schedule: cosine//' -e 's/model: model/model: wide/' -e 's/lr: 1.0e-2/lr: 3.0e-2/' grpo.yaml >state.yaml

run() { # NAME FORM OPTIONS...: FORM is settings of `train` with commas between
    name=$1 form=$2
    shift 2
    for key in $(echo "$form" | tr , ' '); do set -- "$@" --set "models.actor.train.$key"; done
    status 0 "$gr" exec state.yaml --device cuda "$@" --out "$name"
}

disk=$(mktemp -d /var/tmp/graphrun-state.XXXXXX)
trap 'rm -rf "$disk"; finish' EXIT

# disked NAME FORM: with nine tenths of the host pool that moving all takes, and a disk for the rest
disked() {
    name=$1 form=$2
    set -- --device cuda --policy every_node
    for key in $(echo "$form" | tr , ' '); do set -- "$@" --set "models.actor.train.$key"; done
    status 0 "$gr" plan state.yaml "$@" --format json -o all.json
    all=$(json_number all.json host_peak_bytes)
    status 0 "$gr" exec state.yaml "$@" --host-budget $((all * 9 / 10)) --disk "$disk:1GiB" --out "$name"
    sed -n '/^disk: /p' out
    [ "$(json_number "$name/plan.json" disk_peak_bytes)" -gt 0 ] || fail "$form: nothing lies on the disk"
}

run first master=none --steps 1
"$gr" export first -o small --dtype bfloat16 >/dev/null # no weight of bf16 is between two
sed -i 's/model: wide/model: small/' state.yaml
run one-fp32 master=fp32 --steps 1 --set nodes.update.epochs=1 --set nodes.update.mini_batch=8
run one-split master=split --steps 1 --set nodes.update.epochs=1 --set nodes.update.mini_batch=8
same_weights one-fp32 one-split
near_the_cpu '&' --set models.actor.train.optimizer=muon
for form in ${FORMS:-master=split moments=int8 master=split,moments=int8,grads=bf16 optimizer=lion,master=split,moments=int8 optimizer=muon optimizer=muon,master=split,grads=bf16}; do
    echo "== $form"
    run whole $form
    run again $form
    same_weights whole again
    run half $form --steps 3
    status 0 "$gr" exec --resume half --device cuda --steps 6
    same_weights whole half
    planned=$(metric whole 6 planned_peak_bytes) measured=$(metric whole 6 measured_peak_bytes)
    echo "planned $planned, measured $measured"
    [ "$measured" -le "$planned" ] || fail "$measured bytes were taken, $planned planned"
    run moved $form --policy every_node
    same_weights whole moved
    disked kept $form
    same_weights whole kept
    case $form in
    optimizer=muon*) ;; # whose products are the device's
    *)
        run there $form --set models.actor.residency.optimizer=host
        echo "reward and norm: $(metric whole 6 reward_mean) $(metric whole 6 grad_norm), stepped on the host $(metric there 6 reward_mean) $(metric there 6 grad_norm)"
        rm -r there
        ;;
    esac
    rm -r whole again half moved kept
done
run changed master=fp32 --steps 3
refused 'replan' "$gr" exec --resume changed --device cuda --steps 6 --set models.actor.train.master=split
status 0 "$gr" exec --resume changed --device cuda --steps 6 --set models.actor.train.master=split --set models.actor.train.moments=int8 --replan
has err 'warning: .*numerics .* its bits may differ'
echo ok
