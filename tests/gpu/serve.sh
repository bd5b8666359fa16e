#!/bin/sh
# graphrun serve on a CUDA device: conversations with names, more than there are rows, go on as if each had been alone (with
# `strict: true`); and calls by themselves. Where graphrun-httpd is not built, tests/e2e/wire.pl calls in its place. Skips (77) where
# there is no device.
# usage: serve.sh GRAPHRUN
. "$(dirname "$0")/quickstart.sh"
export GRAPHRUN_SERVE_TOKEN=secret
wired=
if [ ! -x "$(dirname "$gr")/graphrun-httpd" ]; then
    wired=1
    mkdir "$work/bin"
    cp "$gr" "$work/bin/graphrun"
    { echo "#!$(command -v perl)"; cat tests/e2e/wire.pl; } >"$work/bin/graphrun-httpd"
    chmod +x "$work/bin/graphrun-httpd"
    gr=$work/bin/graphrun
fi
asked() { # OUT SESSIONS WAY...: what callers.pl prints, or wire.pl writes
    out=$1 sessions=$2
    shift 2
    : >"$work/said"
    TALKED="$work/$out" "$gr" serve "$work/model" --device cuda --budget 8GiB --set strict=true --set temperature=0 --set sessions="$sessions" \
        --set max_context=60 --set max_tokens=40 >"$work/said" 2>"$work/err" &
    served=$!
    trap 'kill $served 2>/dev/null || :; rm -rf "$work"' EXIT
    until url=$(sed -nE 's/.* listens on ([^,]*),.*/\1/p' "$work/said") && [ -n "$url" ]; do
        kill -0 $served 2>/dev/null || { cat "$work/said" "$work/err"; exit 1; }
        sleep 0.1
    done
    if [ -z "$wired" ]; then
        perl tests/e2e/callers.pl "$url" secret "$@" >"$work/$out" || exit 1
    else
        while [ ! -s "$work/$out" ]; do
            kill -0 $served 2>/dev/null || { cat "$work/said" "$work/err"; exit 1; }
            sleep 0.1
        done
    fi
    kill -TERM $served
    wait $served || { echo "serve ended with status $?: FAIL"; cat "$work/err"; exit 1; }
}
asked talks 3 talks 7 3
asked alone 8 talks 7 3
cmp "$work/talks" "$work/alone" || { echo "a conversation that lost its row went on otherwise: FAIL"; exit 1; }
echo "talks: $(wc -l <"$work/talks") of $(head -n 1 "$work/talks" | tr ',' '\n' | wc -l) tokens, the same with 3 rows and with 8"
if [ -z "$wired" ]; then
    asked single 4 single 16
    [ "$(grep -c '^200 ' "$work/single")" = 16 ] && [ "$(sort -u "$work/single" | wc -l)" = 1 ] || { echo "greedy calls differ: FAIL"; cat "$work/single"; exit 1; }
fi
sed -n 2p "$work/said"
