#!/bin/sh
# PPO with a critic and a reward model on a CUDA device: the same bits twice and resumed,
# values and scores near those of the CPU. Skips (77) where there is no device.
. "$(dirname "$0")/one.sh"

ppo_graph ppo.yaml
classifier judge model

same_run() { # RUN RUN
    same_weights "$1" "$2"
    for f in model optimizer; do
        cmp "$1/checkpoints/step-4/critic/$f.safetensors" "$2/checkpoints/step-4/critic/$f.safetensors" ||
            fail "$f of the critics of $1 and $2 differ"
    done
}

near() { # NAME: of step 1, within a tenth of the CPU's, whose samples are all but the same
    a=$(metric host 1 "$1")
    b=$(metric whole 1 "$1")
    echo "$1: $a on the CPU, $b on CUDA"
    awk "BEGIN {a = $a; b = $b; d = a > b ? a - b : b - a; s = a < 0 ? -a : a; exit !(d <= 0.1 * s + 0.05)}" ||
        fail "$1 is $b, not near $a"
}

status 0 "$gr" exec --device cpu ppo.yaml --steps 1 --out host
status 0 "$gr" exec --device cuda ppo.yaml --out whole
near values.mean
near judged.mean
status 0 "$gr" exec --device cuda ppo.yaml --out again
same_run whole again
status 0 "$gr" exec --device cuda ppo.yaml --out half --steps 2
status 0 "$gr" exec --device cuda --resume half --steps 4
same_run whole half
