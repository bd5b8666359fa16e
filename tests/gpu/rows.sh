# Sourced by tests of a CUDA device, behind tests/e2e/lib.sh.

# Of rows from a file, for samples differ between the devices: losses and gradients of three updates of `small` are near the CPU's.
near_the_cpu() { # KEYS OPTIONS...: sed's replacement of "train: {" in the model; of both runs
    keys=$1
    shift
    sed -e "s/train: {/$keys/" -e 's/warmup: 10, //' "$project/graphs/quickstart/warmup.yaml" >rows.yaml
    rm -rf rows-cpu rows-cuda
    for d in cpu cuda; do
        status 0 "$gr" exec rows.yaml --set model=small --set data=warmup.jsonl --device $d --steps 3 --out rows-$d "$@"
    done
    for step in 1 3; do
        for name in loss grad_norm; do
            a=$(metric rows-cpu $step $name) b=$(metric rows-cuda $step $name)
            echo "$name of step $step: $a on the CPU, $b on CUDA"
            awk "BEGIN {d = $a - $b; if (d < 0) d = -d; exit !($a > 0 && d <= 0.05 * $a)}" || fail "$b is not near $a"
        done
    done
}
