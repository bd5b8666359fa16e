#!/bin/sh
# graphrun serve: an endpoint over a checkpoint, which is planned like any graph.
. "$(dirname "$0")/lib.sh"
[ -x "$(dirname "$gr")/graphrun-httpd" ] || { echo "built without libmicrohttpd: skipped"; exit 77; }
perl -MIO::Socket::INET -e 1 2>/dev/null || { echo "no perl with sockets: skipped"; exit 77; }
export GRAPHRUN_SERVE_TOKEN=secret TMPDIR="$work/tmp"
mkdir tmp

begins() { # OPTION...: serve; its URL is in $url
    : >served.out
    "$gr" serve "$@" --device cpu --set sessions=3 --set max_context=60 --set max_tokens=40 >served.out 2>served.err &
    served=$!
    for _ in $(seq 600); do
        url=$(sed -nE 's/.* listens on ([^,]*),.*/\1/p' served.out)
        [ -z "$url" ] || return 0
        kill -0 $served 2>/dev/null || { cat served.err >&2; fail "serve has ended: $*"; }
        sleep 0.05
    done
    fail "serve does not listen: $*"
}

ends() { # with a signal, cleanly
    kill -TERM $served
    wait $served || { cat served.err >&2; fail "serve ended with status $?"; }
    [ ! -s served.err ] || { cat served.err >&2; fail "serve says something"; }
    [ -z "$(ls tmp)" ] || fail "serve leaves $(ls tmp)"
}

callers() {
    perl "$here/callers.pl" "$url" secret "$@" || fail "callers $*"
}

# Calls by themselves: more at once than there are rows; each samples for itself.
begins model --budget 64MiB --out kept
has served.out '^serve on cpu: fits'
has served.out '^  peak .* of 64.00 MiB'
callers single 12 >single
[ "$(grep -c '^200 ' single)" = 12 ] || fail "not every call was answered: $(cat single)"
[ "$(sort -u single | wc -l)" -gt 9 ] || fail "calls have the same draws: $(cat single)"
callers lies >lies
[ ! -s lies ] || fail "$(cat lies)"
ends
[ -f kept/plan.json ] || fail "--out keeps no plan"
awk "BEGIN { exit !($(metric kept 1 measured_peak_bytes) <= $(metric kept 1 planned_peak_bytes)) }" ||
    fail "measured $(metric kept 1 measured_peak_bytes) of planned $(metric kept 1 planned_peak_bytes)"

# Conversations with names: more than rows. What they hold outlives their rows, so they go on as if they had been alone.
begins model --set temperature=0
callers talks 7 3 >talks
ends
begins model --set temperature=0 --set sessions=8
callers talks 7 3 >alone
ends
cmp talks alone || fail "a conversation that lost its row went on otherwise"

# Asked to stop, it answers the call that is open, and none that waits or comes.
begins model --set sessions=1
callers long open >long &
caller=$!
until [ -e open ]; do sleep 0.02; done
sleep 0.1
ends
wait $caller || fail "a call that was open"
grep -Eqx '200 said|503 ' long || fail "an open call: $(cat long)"

# A run's checkpoint: the newest, one by its number; of several models the one that is named.
status 0 "$gr" exec grpo.yaml --out run --steps 2
begins run --set temperature=0
callers single 1 >newest
ends
begins run@2 --model actor --set temperature=0
callers single 1 >second
ends
cmp newest second || fail "the newest checkpoint is another than the second"

refused "no checkpoint|no step|step 7" "$gr" serve run@7
refused "no model 'critic'|'critic'" "$gr" serve run --model critic
refused "'model' is none" "$gr" serve model --model actor
refused "config.json" "$gr" serve nowhere
refused "holds no turn" "$gr" serve model --set max_context=8 --set max_tokens=8
refused "80 positions|positions" "$gr" serve model --set max_context=100000
refused "unknown option '--ranks'" "$gr" serve model --ranks 2
status 3 "$gr" serve model --budget 3MiB --set max_context=60 --set max_tokens=40
[ -z "$(ls tmp)" ] || fail "what was refused leaves $(ls tmp)"

# The key that it sets is no graph's that trains.
refused "'update' would never train" "$gr" plan grpo.yaml --set 'nodes.rollout.serve={open: true}' --set nodes.rollout.max_context=64
refused "'open' must be true or false" "$gr" plan grpo.yaml --set 'nodes.rollout.serve={open: maybe}'
turns turns.yaml "" "workers: 1"
refused "'open' of 'serve' does not go with 'environment'" "$gr" plan turns.yaml --set 'nodes.rollout.serve={open: true}'
