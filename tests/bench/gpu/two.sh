#!/bin/sh
# What two GPUs are for, in one run: what NCCL's communicators take, tests of ranks, 8B with ZeRO, slices and
# stages, sequences of 131,072 tokens over both, the longest that each takes, a GRPO iteration of 30B-A3B with its experts divided.
# About seventeen minutes; of little time name parts, which run in the order that they are given in. A part that fails says so and the rest
# goes on. What each printed is in OUT.
# usage: two.sh BUILD OUT [PART...]   (a release build with -Dcuda=enabled -Dbench=true; OUT/results.jsonl and table.md)
set -u
build=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
tests=$here/../../gpu
gr=$build/tools/graphrun
shift 2
[ $# -gt 0 ] || set -- memory pipeline chunks mesh keys latent rows context longest experts nccl ranks hybrid pools tensor beside

part() { # NAME SECONDS COMMAND...
    name=$1 most=$2
    shift 2
    began=$(date +%s) got=0
    timeout "$most" "$@" >"$out/$name.txt" 2>&1 || got=$?
    echo "== $name: exit $got after $(($(date +%s) - began)) s"
    tail -n 12 "$out/$name.txt"
}
mpi() { # PROGRAM...: on two ranks
    GRAPHRUN_MPI=$build/runtime/comm/graphrun_mpi.so mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 "$@"
}
bench() { # ROW...
    python3 "$here/bench_ranks.py" --gpus 2 --graphrun "$gr" --programs "$build/tests" --out "$out" --skip-theirs "$@"
}
of_a_part() { # NAME: as a command, for timeout
    case $1 in
    memory) mpi "$build/tests/gpu/gpu_nccl" --memory ;;
    nccl) mpi "$build/tests/gpu/gpu_nccl" && mpi "$build/tests/gpu/gpu_tensor" ;;
    rows) # within 12 % of ZeRO at 16 micro-batches; the stages' peak below its plan
        bench update:8B:steps=2 update:8B:steps=2:models.actor.parallel.tensor=2 update:8B:steps=2:models.actor.parallel.pipeline=2 ;;
    experts) # at least 4,000 tokens a second and GPU on sequences of 2,048 tokens, weights with fp32's bits; a rank's share of 256 GiB
        bench --host-budget 110GiB --prompts 16 --prompt-tokens 512 --response-tokens 1536 \
            iteration:30B-A3B:steps=2:models.actor.parallel.expert=2:master=split:grads=bf16 ;;
    esac
}
if [ "${TWO_PART:-}" ]; then
    of_a_part "$TWO_PART"
    exit
fi
for name; do
    case $name in
    context) part context 200 "$here/context.sh" "$gr" 131072 1 2 ;; # at least 1.8 times one GPU's rate
    longest) part longest 300 "$here/context.sh" "$gr" longest ;;    # at least twice one GPU's sequence, of the same memory a GPU
    pipeline) part pipeline 100 "$tests/mesh.sh" "$gr" pipeline ;;
    keys | chunks | latent) part $name 150 "$tests/mesh.sh" "$gr" $name ;;
    beside) part beside 100 "$tests/mesh.sh" "$gr" both ;;
    mesh | ranks | hybrid | pools | tensor) part $name 150 "$tests/$name.sh" "$gr" ;;
    memory | nccl | rows | experts) TWO_PART=$name part $name 330 "$0" "$build" "$out" ;;
    *) echo "there is no part '$name'"; exit 2 ;;
    esac
done
[ ! -s "$out/results.jsonl" ] || python3 "$here/bench.py" --table "$out/results.jsonl" | tee "$out/table.md"
