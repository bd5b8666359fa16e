# Sourced by tests of one CUDA device that use the tiny graphs of tests/e2e/lib.sh. Skips (77) where there is no device.
# usage of a test: NAME.sh GRAPHRUN
probe=$("$1" plan --device cuda /dev/null 2>&1 || :)
case $probe in *"CUDA device"* | *"has no device"*) echo "$probe"; echo "skipped"; exit 77 ;; esac
. "$(dirname "$0")/../e2e/lib.sh"

# small_model NAME: heads as wide as kernels on the device want them at least
small_model() {
    config small.json qwen3 64 false false
    sed -i 's/"head_dim": 16/"head_dim": 32/' small.json
    "$gr" init --config small.json --tokenizer "$project/graphs/quickstart" --seed 1 -o "$1" >/dev/null
}
