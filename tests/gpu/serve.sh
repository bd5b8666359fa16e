#!/bin/sh
# graphrun serve on a CUDA device: calls by themselves, and conversations with names, more than there are rows, which go on as if
# each had been alone (with `strict: true`). Skips (77) where there is no device.
# usage: serve.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
[ -x "$(dirname "$gr")/graphrun-httpd" ] || { echo "built without libmicrohttpd: skipped"; exit 77; }
export GRAPHRUN_SERVE_TOKEN=secret
asked() { # OUT SESSIONS WAY...: what callers.pl prints
    out=$1 sessions=$2
    shift 2
    "$gr" serve "$work/model" --device cuda --budget 8GiB --set strict=true --set temperature=0 --set sessions="$sessions" --set max_context=60 \
        --set max_tokens=40 >"$work/said" 2>"$work/err" &
    served=$!
    until url=$(sed -nE 's/.* listens on ([^,]*),.*/\1/p' "$work/said") && [ -n "$url" ]; do
        kill -0 $served 2>/dev/null || { cat "$work/said" "$work/err"; exit 1; }
        sleep 0.1
    done
    perl tests/e2e/callers.pl "$url" secret "$@" >"$work/$out" || exit 1
    kill -TERM $served
    wait $served || { echo "serve ended with status $?: FAIL"; cat "$work/err"; exit 1; }
}
asked talks 3 talks 7 3
asked alone 8 talks 7 3
cmp "$work/talks" "$work/alone" || { echo "a conversation that lost its row went on otherwise: FAIL"; exit 1; }
asked single 4 single 16
[ "$(grep -c '^200 ' "$work/single")" = 16 ] && [ "$(sort -u "$work/single" | wc -l)" = 1 ] || { echo "greedy calls differ: FAIL"; cat "$work/single"; exit 1; }
sed -n 2p "$work/said"
