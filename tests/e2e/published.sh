#!/bin/sh
# Plans of published sizes, from their config.json alone: each family on a machine that is large enough, and where one is
# too small, what is missing is said.
. "$(dirname "$0")/lib.sh"

configs=$project/tests/golden/configs
sed 's/"device_bytes": [0-9]*/"device_bytes": 17592186044416/; s/"host_bytes": [0-9]*/"host_bytes": 17592186044416/' \
    "$project/tests/golden/hardware.json" >large.json
for config in "$configs"/*.json; do
    name=$(basename "$config" .json)
    case $slow$name in 0GLM-4.7 | 0Qwen3.5-27B | 0gemma-3-27b-it | 0DeepSeek-V2-Lite | 0gemma-4-31b-it | 0Qwen3-235B-A22B) continue ;; esac # what takes longest: larger or smaller ones are as these
    mkdir "$name"
    cp "$config" "$name/config.json"
    status 0 "$gr" plan "$project/graphs/grpo.yaml" --set model="$name" --set data=absent.jsonl --hardware large.json
    has out 'fits'
    [ ! -s err ] || fail "$name: $(cat err)"
done

plan() { # NAME OPTIONS...
    name=$1
    shift
    "$gr" plan "$project/graphs/grpo.yaml" --set model="$name" --set data=absent.jsonl --hardware h200 "$@"
}
status 3 plan gpt-oss-120b
has err 'the smallest plan found needs .* of device memory and the budget is 140.40 GiB'
status 0 plan gpt-oss-120b --ranks 1x8 --set models.actor.tensor=8
refused "gpt_oss.json|'sliding_window' is null" sh -c \
    "mkdir bad && sed 's/\"sliding_window\": 128/\"sliding_window\": null/' gpt-oss-20b/config.json >bad/config.json &&
     '$gr' plan '$project/graphs/grpo.yaml' --set model=bad --set data=absent.jsonl"

[ "$slow" = 1 ] || exit 0
status 0 plan gemma-3-27b-it --ranks 8x8
status 0 plan Qwen3-235B-A22B --ranks 8x8 --set models.actor.tensor=4
status 3 plan gpt-oss-120b --ranks 8x8
has err "rollout weights 217.61 GiB"
