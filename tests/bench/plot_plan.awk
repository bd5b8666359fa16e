# From the lines of bench_plan.sh an SVG: user seconds of planning over ranks and over nodes, both on logarithmic axes.
# usage: bench_plan.sh GRAPHRUN | awk -f plot_plan.awk >docs/planning.svg
function x_of(n) { return 60 + 150 * log(n) / log(10) }
function y_of(s) { return 260 - 100 * (log(s < 0.01 ? 0.01 : s) / log(10) + 2) }
BEGIN {
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"560\" height=\"310\" font-family=\"sans-serif\" font-size=\"12\">"
    print "<rect width=\"560\" height=\"310\" fill=\"white\"/>"
    for (n = 1; n <= 1000; n *= 10) printf "<text x=\"%d\" y=\"280\" text-anchor=\"middle\">%d</text>\n", x_of(n), n
    for (s = 0.01; s < 2; s *= 10) {
        printf "<line x1=\"60\" x2=\"520\" y1=\"%d\" y2=\"%d\" stroke=\"#ddd\"/>\n", y_of(s), y_of(s)
        printf "<text x=\"52\" y=\"%d\" text-anchor=\"end\">%g s</text>\n", y_of(s) + 4, s
    }
    colour["ranks,79GiB"] = "#4477aa"; colour["ranks,50GiB"] = "#cc6677"; colour["nodes"] = "#228833"; colour["pools"] = "#aa7733"
}
{
    split($2, part, "x")
    n = part[2] ? part[1] * part[2] : $2
    points[$1] = points[$1] sprintf("%.1f,%.1f ", x_of(n), y_of($3))
}
END {
    for (k in points) {
        printf "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", points[k], colour[k]
        printf "<text x=\"70\" y=\"%d\" fill=\"%s\">%s</text>\n", 20 + 16 * line++, colour[k], k
    }
    print "<text x=\"290\" y=\"302\" text-anchor=\"middle\">ranks, or nodes of a graph; 0.01 s is the least that is shown</text>"
    print "</svg>"
}
