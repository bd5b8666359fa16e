#!/bin/sh
# A rank whose process lives and answers, but does not go on: all are ended, with a message that names it, its host and its
# step; and the run goes on from its last checkpoint to the bits of an undisturbed one. A step that takes long on all ranks, or
# while nobody waits for it, is none.
# usage: hang.sh GRAPHRUN FREEZE
freeze=$(realpath "$2")
set -- "$1"
. "$(dirname "$0")/lib.sh"

# gone WITHIN PATTERN: the launcher, pid, fails in so many seconds, with this message and no other, and no rank is left
gone() {
    began=$(date +%s)
    got=0
    wait $pid || got=$?
    [ $got = 1 ] || { cat out err >&2; fail "exit status $got"; }
    [ $(($(date +%s) - began)) -le "$1" ] || fail "it took $(($(date +%s) - began)) s"
    [ -z "$(ranks_of $run)" ] || fail "ranks are left: $(ranks_of $run)"
    has err "$2"
    [ "$(grep -c 'error: ' err)" = 1 ] || fail "more than one message: $(cat err)"
}

# Its main thread stops, in a product of matrices. (Caught in a lock of the watch's it could not answer.)
nm -S "$gr" | awk '$4 ~ /^(mm_rows|mm_thin|mm_cols)(\.|$)/ {print $1, $2}' >places
[ -s places ] || fail "the program has no products"
run=hung
set -- --set run.steps=70 --set run.checkpoint.every=10
status 0 "$gr" exec grpo.yaml "$@" --ranks 3 --out calm
"$gr" exec grpo.yaml "$@" --set run.timeout=4 --ranks 3 --out $run >out 2>err &
pid=$!
i=0
while [ ! -d $run/checkpoints/step-10 ]; do
    i=$((i + 1))
    [ $i -lt 300 ] && kill -0 $pid || { cat out err >&2; fail "the run does not start"; }
    sleep 0.1
done
victim=$(ranks_of $run | sed -n 2p)
"$freeze" "$victim" <places >frozen &
tracer=$!
while [ ! -s frozen ]; do
    kill -0 $tracer 2>/dev/null || { wait $tracer || code=$?; [ "${code:-0}" = 77 ] && kill -0 $pid && exit 77; fail "nothing was frozen"; }
    sleep 0.05
done
gone 40 "error: rank 1 on host $(uname -n) has been in iteration [0-9]+, step '[a-z_.0-9]+'"
wait $tracer || :
status 0 "$gr" exec --resume $run --ranks 3
same_weights calm $run
same_metrics calm $run

# A command of the user's that gives rank 1 no data, before the first step.
rm -r $run
cat >data.sh <<'END'
[ "$OMPI_COMM_WORLD_RANK" != "$(cat slow)" ] || sleep 1000
[ "$(cat slow)" != all ] || sleep 5
cat train.jsonl
END
sed 's/file: \$data/command: "sh data.sh"/' grpo.yaml >data.yaml
has data.yaml data.sh
echo 1 >slow
"$gr" exec data.yaml --set run.timeout=4 --ranks 2 --out $run >out 2>err &
pid=$!
gone 40 "error: rank 1 on host $(uname -n) has been in iteration 0, step 'start', for [0-9]+ s, which is too long \(see run: \{timeout\}\), and rank 0 waits"

# All take their time.
echo all >slow
rm -rf $run
status 0 "$gr" exec data.yaml --set run.timeout=2 --set run.steps=1 --ranks 2 --out $run
