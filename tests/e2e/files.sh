#!/bin/sh
# Files of the user stay as they are whatever they are called; who writes one name at once wins whole or is refused; what is
# no file is refused at once.
. "$(dirname "$0")/lib.sh"

# Beside what is written, and where links lead.
echo thesis >thesis
mkdir taken.tmp made.tmp
cp thesis taken.tmp/
cp thesis made.tmp/
ln -s thesis plan.json.tmp
status 0 "$gr" plan grpo.yaml --format json -o plan.json
status 0 "$gr" verify plan.json
status 0 "$gr" init --config model.json --seed 1 -o made
status 0 "$gr" exec grpo.yaml --steps 1 --out run
status 0 "$gr" export run -o taken
for f in thesis taken.tmp/thesis made.tmp/thesis plan.json.tmp; do
    [ "$(cat $f)" = thesis ] || fail "$f was changed"
done
[ -L plan.json.tmp ] || fail "a link was replaced"
[ -z "$(ls -A | grep graphrun-)" ] || fail "something was left: $(ls -A)"
ln -s nowhere lost
refused_write() { # COMMAND...
    status 1 "$@"
    has err 'symbolic link to nothing'
}
refused_write "$gr" plan grpo.yaml --format json -o lost
refused "'lost' exists already" "$gr" export run -o lost
refused "'thesis' exists already" "$gr" export run -o thesis

# Other people's names in the folder of checkpoints.
mkdir run/checkpoints/.snapshot
echo keep >run/checkpoints/.gitignore
mkdir run/checkpoints/.step-9.tmp # a run's own
status 0 "$gr" exec --resume run --steps 2
[ -d run/checkpoints/.snapshot ] && [ -f run/checkpoints/.gitignore ] || fail "a start removed what is not a run's"
[ ! -e run/checkpoints/.step-9.tmp ] || fail "what a killed run left is still there"

# One that is killed while it writes leaves what the next one removes.
sed 's/"vocab_size": 16/"vocab_size": 400000/' model.json >large.json
"$gr" init --config large.json --seed 1 -o large >large.out 2>&1 &
pid=$!
until ls -A | grep -q '^large.graphrun-'; do kill -0 $pid 2>/dev/null || break; done
{ kill -9 $pid && wait $pid; } 2>/dev/null || :
if [ ! -e large ]; then
    ls -A | grep -q '^large.graphrun-' || fail "a killed writer left nothing, and no folder"
    status 0 "$gr" init --config model.json --seed 1 -o large
    [ -z "$(ls -A | grep '^large.graphrun-')" ] || fail "what was left is still there"
fi

# Several at once: one wins, whole.
rounds=15
[ "$slow" = 0 ] || rounds=300
for seed in 1 2 3; do status 0 "$gr" init --config model.json --seed $seed -o only$seed; done
for round in $(seq $rounds); do
    rm -rf race
    for seed in 1 2 3; do
        (got=0; "$gr" init --config model.json --seed $seed -o race >race$seed.out 2>race$seed.err || got=$?; echo $got >race$seed.got) &
    done
    wait
    won=0
    for seed in 1 2 3; do
        case $(cat race$seed.got) in
        0) won=$((won + 1)) winner=$seed ;;
        2) has race$seed.err "'race' exists already" ;;
        *) fail "round $round: exit status $(cat race$seed.got): $(cat race$seed.err)" ;;
        esac
    done
    [ $won = 1 ] || fail "round $round: $won of three have won"
    diff -r only$winner race || fail "round $round: the files of several are mixed"
    [ -z "$(ls -A | grep '^race.graphrun-')" ] || fail "round $round: something was left"
done

# Pipes and devices where files are expected: refused at once, by name. Nobody writes them.
at_once() { # PATTERN COMMAND...
    pattern=$1
    shift
    status 2 timeout 60 "$@"
    has err "$pattern"
}
mkfifo pipe
at_once "'pipe' is a pipe; a regular file is expected" "$gr" check pipe
at_once "'pipe' is a pipe" "$gr" plan pipe
at_once "'pipe' is a pipe" "$gr" exec pipe --out never
at_once "'pipe' is a pipe" "$gr" verify pipe
at_once "'pipe' is a pipe" "$gr" plan grpo.yaml --hardware pipe
at_once "'pipe' is a pipe" "$gr" init --config pipe --seed 1 -o never
at_once "'/dev/zero' is a device" "$gr" check /dev/zero
printf 'use: pipe\n' >uses.yaml
at_once "/pipe' is a pipe|'pipe' is a pipe" "$gr" check uses.yaml
for f in config.json generation_config.json model.safetensors tokenizer_config.json; do
    rm -rf piped never
    cp -r model piped
    rm -f piped/$f
    mkfifo piped/$f
    at_once "piped/$f' is a pipe" "$gr" exec grpo.yaml --set model=piped --out never
done
rm -rf never
at_once "'pipe' is a pipe, and rows are read again" "$gr" exec grpo.yaml --set data=pipe --out never
at_once "'/dev/zero' is a device" "$gr" exec grpo.yaml --set data=/dev/zero --out never
cp -r run odd
rm odd/metrics.jsonl
mkfifo odd/metrics.jsonl
at_once "odd/metrics.jsonl" "$gr" report odd
status 1 timeout 60 "$gr" exec --resume odd --steps 3
has err "odd/metrics.jsonl"
[ ! -e never/metrics.jsonl ] || fail "an iteration was made of a pipe"
# What is named on purpose is read.
cat grpo.yaml | status 0 "$gr" check /dev/stdin
status 0 "$gr" check /dev/fd/3 3<grpo.yaml

# Texts of others give no orders to a terminal: ESC, C1 controls, turned writing, bytes that are no UTF-8.
plain() { # FILE...: printable ASCII alone
    for f in "$@"; do
        [ "$(LC_ALL=C tr -d '\n -~' <$f | wc -c)" = 0 ] || { cat -v $f >&2; fail "$f has bytes that a terminal may obey"; }
    done
}
esc=$(printf '\033')
bad=$(printf 'x\033]0;t\007\302\2332J\342\200\256y\377z')
cp -r model renamed
sed -i 's/model.norm.weight/\\u001b[2J.norm.we/' renamed/model.safetensors
status 2 "$gr" exec grpo.yaml --set model=renamed --out never
has err "missing: 'model.norm.weight'"
has err "'.x1b\[2J.norm.we'"
plain out err
cp -r model keyed
sed -i 's/"hidden_act": "silu"/"hidden_act": "\\u001b[31m\\u202e", "odd\\u009bkey": 7/' keyed/config.json
status 2 "$gr" plan grpo.yaml --set model=keyed
has err "hidden_act '.x1b\[31m.u202e' is not supported"
has err "'odd.u009bkey' of 7 is not known"
plain out err
for arguments in "check $bad" "plan grpo.yaml --set model=$bad" "export $bad -o never" "report $bad" "check grpo.yaml --set nodes.$bad=1"; do
    status 2 "$gr" $arguments
    plain out err
done
printf '{"question": "1+1=", "answer": "2"}\n{"%s": 1}\n' "$(printf 'q\\u001b[1m')" >named.jsonl
status 2 "$gr" exec grpo.yaml --set data=named.jsonl --out never
plain out err
printf '{"question": "1+1=", "answer": "2"}\n{"q\377\033": 1}\n' >bytes.jsonl
status 2 "$gr" exec grpo.yaml --set data=bytes.jsonl --out never
plain out err
printf 'graph: "t\\e[1m"\n' >title.yaml
status 2 "$gr" check title.yaml
has err "title.yaml:1:9: error: the graph's name 't.x1b\[1m' has characters that are not shown"
# What a model says, shown behind a run and in its report.
cp -r model loud
sed -i 's/48, 49, 50, .*, 57/27, 155, 50, 8238, 127, 8235, 7, 8, 28, 8207/' loud/tokenizer_config.json
printf '{"question": "2+2=", "answer": "2"}\n' >asked.jsonl
yes "$(cat asked.jsonl)" | head -64 >asks.jsonl
status 0 "$gr" exec grpo.yaml --set model=loud --set data=asks.jsonl --steps 2 --out loud-run
has out 'sample, last'
plain out err
LC_ALL=C grep -q "$(printf '\342\200\256')" loud-run/samples.jsonl || fail "no sample has what this test is about"
status 0 "$gr" report loud-run
for order in '\033' '\302\233' '\342\200\256' '\177'; do
    if LC_ALL=C grep -q "$(printf $order)" out; then fail "the report passes $order on"; fi
done
has out 'u202e'
