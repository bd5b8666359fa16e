#!/bin/sh
# On one host nothing of a run can be reached from elsewhere: what its processes listen on is the loopback device, and the
# commands of a graph are started without what makes mpirun do so.
. "$(dirname "$0")/lib.sh"
export GR_TEST_MARK=home$$.$(date +%s%N)
of_the_run() {
    for p in /proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -qx "GR_TEST_MARK=$GR_TEST_MARK" && echo "$p"
    done
}

# listens FOLDER...: addresses and ports, as /proc/net has them, of the sockets of these processes that others may reach:
# of TCP those that listen (0A), of UDP all that are bound
listens() {
    for p in "$@"; do ls -l "$p/fd" 2>/dev/null; done | sed -n 's/.*socket:\[\([0-9]*\)\].*/\1/p' | sort -u >sockets
    for table in tcp tcp6 udp udp6; do
        [ ! -e /proc/net/$table ] || awk -v table=$table '
            NR == FNR { own[$1]; next }
            ($10 in own) && (table ~ /udp/ || $4 == "0A") { print table, $2 }' sockets /proc/net/$table
    done
}

cat >worker.sh <<'END'
echo "preloaded: '${LD_PRELOAD-}'" >preload
while read -r line; do
    id=$(echo "$line" | sed -nE 's/.*"id": *([0-9]+).*/\1/p')
    echo "{\"id\": $id, \"score\": $((id % 3))}"
done
END
sed 's/rule: {extract[^}]*}/command: "sh worker.sh"/' grpo.yaml >command.yaml
"$gr" exec command.yaml --set run.steps=100000 --ranks 3 --out run >out 2>err &
pid=$!
while [ ! -s run/metrics.jsonl ]; do sleep 0.1; kill -0 $pid || { cat out err >&2; fail "the run does not start"; }; done
# shellcheck disable=SC2046
listens $(of_the_run) >there
kill -TERM $pid
wait $pid || fail "$(cat err)"
grep -q ' 0100007F:' there || fail "mpirun is not seen to listen at all: $(cat there)" # else the test says nothing
if grep -vE ' (0100007F|00000000000000000000000001000000):' there >elsewhere; then fail "others may reach: $(cat elsewhere)"; fi
has preload "^preloaded: ''$"
