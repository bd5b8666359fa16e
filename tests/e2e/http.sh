#!/bin/sh
# Rewards and environments of servers: the same bits as by a command, requests that fail or that are put off, a token.
. "$(dirname "$0")/lib.sh"
http=$(dirname "$gr")/graphrun-http
[ -x "$http" ] || { echo "built without libcurl: skipped"; exit 77; }
perl -MIO::Socket::INET -e 1 2>/dev/null || { echo "no perl with sockets: skipped"; exit 77; }
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY || :

perl "$here/server.pl" >server.out 2>&1 &
server_pid=$!
while [ ! -s PORT ]; do
    kill -0 $server_pid 2>/dev/null || fail "the server of this test does not start"
    sleep 0.02
done
server=http://127.0.0.1:$(cat PORT)
by() { # FILE PATH [KEYS]: the conversations of turns.yaml
    turns "$1" "" "${3:-}"
    sed -i "s|command: \"[^\"]*\"|http: \"$server/$2\"|" "$1"
}

# ---- environments -----------------------------------------------------------------------------------------------------

turns turns.yaml ""
status 0 "$gr" exec turns.yaml --out turns --steps 3
for way in env slow busy; do # the last one puts each message off once
    by $way.yaml $way
    status 0 "$gr" exec $way.yaml --out $way --steps 3
    same_weights turns $way 3
    same_metrics turns $way
    [ "$(metric $way 1 rollout.failed)" = 0 ] || fail "$way: conversations failed"
done
ls busy-* >/dev/null || fail "nothing was put off"

# What goes wrong with one answer is that conversation's failure, with the reason.
failing() { # PATH PATTERN
    by $1.yaml $1 "retries: 0"
    sed -i 's/timeout: 5s/timeout: 1s/' $1.yaml
    status 0 "$gr" exec $1.yaml --out $1 --steps 1
    [ "$(metric $1 1 rollout.failed)" -gt 0 ] || fail "$1: no conversation failed"
    has out "node 'rollout': [0-9]+ conversations failed and count nowhere; the first: sequence [0-9]+: the environment says: $2"
}
failing broken "the server answers with status 500: 'out of.order'"
failing garbage "the server's reply is not JSON .*: '<html>'"
failing list "the server's reply is no object: '\[\]'"
failing other "the server's reply is to another 'id': '.\"id\":99999999,"
failing large "the server's reply has more than 4 MiB"
failing gone "$server/gone: "
failing hang "no reply of $server/hang within 1 seconds"
[ "$(metric hang 1 rollout.failed)" -lt 20 ] || fail "one slow answer took others with it: $(metric hang 1 rollout.failed)"
[ "$(metric hang 1 stopped)" = 3 ] || fail "a conversation without an answer stopped for $(metric hang 1 stopped)"

# A token goes along, where there is one.
by token.yaml token
status 1 "$gr" exec token.yaml --out unknown --steps 1
has err "none came to an end, and none did before: sequence [0-9]+: the environment says: the server answers with status 401: 'who are you'"
GRAPHRUN_HTTP_TOKEN=secret status 0 "$gr" exec token.yaml --out token --steps 3
same_weights turns token 3

# ---- rewards ----------------------------------------------------------------------------------------------------------

digit_worker
scored() { # FILE KEYS
    sed "s|^  reward: .*|  reward: {op: reward, of: rollout, $2}|; s/^  score: .*/  score: {op: compute, of: rollout, expr: reward}/" grpo.yaml >$1
}
scored command.yaml 'command: "sh count.sh"'
scored http.yaml "http: \"$server/score\""
scored late.yaml "http: \"$server/late\", in_flight: 16"
status 0 "$gr" exec command.yaml --out command --steps 3
for of in http late; do
    status 0 "$gr" exec $of.yaml --out $of --steps 3
    same_weights command $of 3
done
status 1 "$gr" exec http.yaml --out bad --set "nodes.reward.http=$server/broken"
has err "http.yaml:[0-9]+:.*sequence [0-9]+: the reward worker says: the server answers with status 500: 'out of.order'"
status 1 "$gr" exec http.yaml --out bad --set "nodes.reward.http=http://127.0.0.1:1/" --set nodes.reward.timeout=0.3
has err "sequence [0-9]+: the reward worker says: http://127.0.0.1:1/: "

# 512 rewards of 50 ms go beside the rollout: its environment lets no conversation end while more than 100 of those that have
# ended are not scored.
turns gate.yaml gate
sed -i "s|^  reward: .*|  reward: {op: reward, of: rollout, http: \"$server/counted\"}|; s/timeout: 5s/timeout: 60s/" gate.yaml
status 0 "$gr" exec gate.yaml --out gate --steps 1 --set nodes.prompts.batch=32 --set nodes.rollout.samples=16
[ "$(sort -u scored | wc -l) $(metric gate 1 rollout.failed)" = "512 0" ] || fail "rewards wait for the rollout: $(wc -l <scored)"

# ---- what is refused --------------------------------------------------------------------------------------------------

refused "'http': ftp://x is no URL: it begins with http:// or https://" "$gr" check http.yaml --set nodes.reward.http=ftp://x
refused "'http': http://a b is no URL: a character in it must be escaped" "$gr" check http.yaml --set 'nodes.reward.http=http://a b'
refused "'http': http:// is no URL: it names no host" "$gr" check turns.yaml --set 'nodes.rollout.environment={http: "http://"}'
refused "'workers' goes with 'command': one process asks the server" "$gr" check http.yaml --set nodes.reward.workers=2
refused "'workers' goes with 'command'" "$gr" check env.yaml --set nodes.rollout.environment.workers=2
refused "needs one of 'rule', 'rules', 'command', 'http', 'function' and 'from: environment'" "$gr" check http.yaml --set nodes.reward.command=x
refused "'environment' is a map with 'command', .* 'http', .* or 'replay'" "$gr" check env.yaml --set nodes.rollout.environment.command=x
