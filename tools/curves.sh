#!/bin/sh
# usage: curves.sh METRIC BAR NAME=RUN... >picture.svg
# Learning curves of finished or running runs: a metric of metrics.jsonl over the iterations, its mean over the last ten
# as a line, each iteration as a faint one. BAR: a horizontal line to pass; - for none.
set -eu
[ $# -ge 3 ] || { sed -n '2p' "$0" | cut -c3- >&2; exit 2; }
metric=$1 bar=$2
shift 2
for run in "$@"; do
    [ -r "${run#*=}/metrics.jsonl" ] || { echo "curves.sh: no ${run#*=}/metrics.jsonl" >&2; exit 2; }
    echo "run ${run%%=*}"
    sed -nE "s/^\{\"step\": ([0-9]+),.*\"$metric\": (-?[0-9.e+-]+)[,}].*/\1 \2/p" "${run#*=}/metrics.jsonl"
done | awk -v metric="$metric" -v bar="$bar" '
    $1 == "run" { n++; sub(/^run /, ""); name[n] = $0; next }
    {
        k = ++count[n]; x[n, k] = $1; y[n, k] = $2
        if ($1 > right) right = $1
        if ($2 > top) top = $2
        if ($2 < bottom) bottom = $2
    }
    function px(v) { return 60 + 620 * v / right }
    function py(v) { return 330 - 300 * (v - bottom) / (top - bottom) }
    function nice(span,   s) { # a round step with about five of them in span
        s = 10 ^ int(log(span) / log(10) - (span < 1)); return span / s > 5 ? 2 * s : span / s > 2 ? s : s / 2
    }
    function line(i, mean, style,   k, j, sum, m) {
        printf "<polyline fill=\"none\" %s points=\"", style
        for (k = 1; k <= count[i]; k++) {
            sum = m = 0
            for (j = k; j > 0 && j > k - mean; j--) { sum += y[i, j]; m++ }
            printf "%.1f,%.1f ", px(x[i, k]), py(sum / m)
        }
        print "\"/>"
    }
    END {
        if (!right || top == bottom) { print "curves.sh: no numbers called " metric >"/dev/stderr"; exit 1 }
        if (bar != "-" && bar > top) top = bar
        split("#1f77b4 #d62728 #2ca02c #9467bd #ff7f0e #17becf #8c564b #e377c2", colour, " ")
        print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 380\" font-family=\"sans-serif\" font-size=\"12\">"
        print "<rect width=\"860\" height=\"380\" fill=\"white\"/>"
        for (v = bottom; v <= top; v += nice(top - bottom)) {
            printf "<path d=\"M60 %.1fH680\" stroke=\"#ddd\"/><text x=\"54\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", py(v), py(v) + 4, v
        }
        for (v = 0; v <= right; v += nice(right))
            printf "<text x=\"%.1f\" y=\"348\" text-anchor=\"middle\">%g</text>\n", px(v), v
        printf "<text x=\"370\" y=\"370\" text-anchor=\"middle\">iteration</text><text x=\"60\" y=\"20\">%s</text>\n", metric
        if (bar != "-") printf "<path d=\"M60 %.1fH680\" stroke=\"black\" stroke-dasharray=\"4 3\"/>\n", py(bar)
        for (i = 1; i <= n; i++) {
            c = "stroke=\"" colour[(i - 1) % 8 + 1] "\""
            line(i, 1, c " stroke-opacity=\"0.2\""); line(i, 10, c " stroke-width=\"2\"")
            printf "<path d=\"M700 %dh24\" %s stroke-width=\"2\"/><text x=\"730\" y=\"%d\">%s</text>\n", 20 * i + 30, c, 20 * i + 34, name[i]
        }
        print "</svg>"
    }'
