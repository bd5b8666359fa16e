#!/bin/sh
# usage: test_watch.sh GRAPHRUN
# The server of a run's page: who may ask, what comes of the lines of a run that goes on or back, numbers for Prometheus,
# refusals, its end. Skips (77) where there is no libmicrohttpd.
set -eu
graphrun=$1
[ -x "$(dirname "$graphrun")/graphrun-watch" ] || { echo "skipped: built without libmicrohttpd"; exit 77; }
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$dir"' EXIT
fail() {
    echo "$*" >&2
    cat "$dir/got" >&2
    exit 1
}
has() {
    grep -qF -- "$1" "$dir/got" || fail "not said: $1"
}
lacks() {
    ! grep -qF -- "$1" "$dir/got" || fail "said: $1"
}

# ask STATUS METHOD PATH [TOKEN]: the answer's head and body in got
ask() {
    perl -MIO::Socket::INET -e '
        my ($host, $method, $path, $token) = @ARGV;
        my $s = IO::Socket::INET->new(PeerAddr => $host, Timeout => 20) or die "$host: $!";
        print $s "$method $path HTTP/1.1\r\nHost: $host\r\nConnection: close\r\n", $token ? "Authorization: Bearer $token\r\n" : "", "\r\n";
        print while <$s>' "${url#http://}" "$2" "$3" "${4-}" | tr -d '\r' >"$dir/got"
    grep -q "^HTTP/1.1 $1 " "$dir/got" || fail "$2 $3: not $1"
}
place() { # KIND: where the lines of the last answer end
    sed -n "s/.*\"$1\":{\"anew\":[a-z]*,\"to\":\"\([^\"]*\)\".*/\1/p" "$dir/got"
}

run=$dir/run
mkdir "$run"
echo '{"version": 1, "graph": "small <i>"}' >"$run/plan.json"
echo '{"step": 1, "reward_mean": 0.25, "kl": null, "seconds.update": 2}' >"$run/metrics.jsonl"
echo '{"step": 1, "sequence": 0, "prompt": "</script>", "response": "3", "reward": 0}' >"$run/samples.jsonl"

# What is no run, and what cannot be listened to.
for wrong in "$dir/none" "$dir"; do
    status=0
    "$graphrun" watch "$run" "$wrong" >"$dir/got" 2>&1 || status=$?
    [ $status = 2 ] || fail "exit status $status"
    has "no run in '$wrong'"
done
status=0
"$graphrun" watch "$run" --host 203.0.113.9 >"$dir/got" 2>&1 || status=$?
[ $status = 1 ] || fail "exit status $status"
has 'cannot listen on 203.0.113.9'

mkdir "$run/samples"
echo '{"step": 1, "sequence": 0, "prompt": "1+2=", "response": "3", "prompt_ids": [7], "ids": [5, 1], "logprobs": [-1, 0], "reward": 0, "advantage": 0.5, "values": {"adv": 0.5, "old": [1, 2]}}' |
    gzip >"$run/samples/step-1.jsonl.gz"

"$graphrun" watch "$run" >"$dir/said" &
server=$!
i=0
while ! [ -s "$dir/said" ] && [ $i -lt 200 ]; do sleep 0.1; i=$((i + 1)); done
token=$(sed -n 's/.*?token=//p' "$dir/said")
url=$(sed -n 's/\/?token=.*//p' "$dir/said")
case $url in http://127.0.0.1:[1-9]*) ;; *) fail "listens on $url" ;; esac

# Only who has the token, and only to read what is served.
ask 401 GET /
ask 401 GET / "${token%?}"
ask 401 GET "/data?run=0" "x$token"
ask 401 GET "/?token=$token$token"
ask 405 POST / "$token"
ask 404 GET /metrics.jsonl "$token"
ask 404 GET /../run/plan.json "$token"
ask 400 GET "/data?run=1" "$token"
ask 400 GET "/data?run=x" "$token"
ask 400 GET /data "$token"
ask 200 GET "/?token=$token"
has "Content-Security-Policy: default-src 'none'"
has '"graph":"small \u003ci>"'
has '"live":true'
lacks 0.25

# All responses of an iteration, without what is there for each of their ids.
ask 401 GET "/responses?run=0&step=1"
ask 200 GET "/responses?run=0&step=1" "$token"
has '{"lines":[{"step":1,"sequence":0,"prompt":"1+2=","response":"3","reward":0,"advantage":0.5,"values":{"adv":0.5}}],"cut":false}'
ask 500 GET "/responses?run=0&step=2" "$token"
has "samples/step-2.jsonl.gz'"
for wrong in "run=0" "run=1&step=1" "run=0&step=1x" "run=0&step=../run"; do ask 400 GET "/responses?$wrong" "$token"; done
ask 200 GET "/data?run=0" "$token"
has '"kept":[1,1]'

# Lines, those that come, half a line, none.
ask 200 GET "/data?run=0" "$token"
has '"metrics":{"anew":true'
has '{"step":1,"reward_mean":0.25,"kl":null,"seconds.update":2}'
has '"prompt":"</script>"'
at=$(place metrics)
printf '{"step": 2, "reward_mean": 0.5}\nno line\n{"step": 3, "rew' >>"$run/metrics.jsonl"
ask 200 GET "/data?run=0&metrics=$at&samples=$(place samples)" "$token"
has '"metrics":{"anew":false'
has '"damaged":1,"lines":[{"step":2,"reward_mean":0.5}]'
has '"samples":{"anew":false'
has '"lines":[]'
at=$(place metrics)
echo 'ard_mean": 0.75}' >>"$run/metrics.jsonl"
ask 200 GET "/data?run=0&metrics=$at" "$token"
has '"lines":[{"step":3,"reward_mean":0.75}]'
at=$(place metrics)

# A run that went back, to fewer lines and to as many others: all are told again. So is what no place is.
sed -i '2,$d' "$run/metrics.jsonl"
ask 200 GET "/data?run=0&metrics=$at" "$token"
has '"metrics":{"anew":true'
printf '{"step": 2, "reward_mean": 0.1}\nno line\n{"step": 3, "reward_mean": 0.11}\n' >>"$run/metrics.jsonl"
ask 200 GET "/data?run=0&metrics=$at" "$token"
has '"metrics":{"anew":true'
has '0.11'
for wrong in -1-00 99999999999999999999-ab 5 abc '%00'; do
    ask 200 GET "/data?run=0&metrics=$wrong" "$token"
    has '"metrics":{"anew":true'
done

ask 200 GET /metrics "$token"
has "graphrun_reward_mean{run=\"$run\"} 0.11"
rm "$run/metrics.jsonl"
ask 200 GET /metrics "$token"
lacks graphrun_reward_mean

kill "$server"
wait "$server" || fail "exit status $? at its end"
server=
