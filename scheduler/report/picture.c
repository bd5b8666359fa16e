/* scheduler/report/picture.c: what pictures share: colours, axes, texts. */
#include "scheduler/report/picture.h"

#include <stdio.h>
#include <string.h>

static const char style[] =
    "text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2937}\n"
    ".title{font-size:22px;font-weight:600}.sub{fill:#4b5563;font-size:14px;white-space:pre}.panel{font-size:"
    "14px;"
    "font-weight:600}\n.note{fill:#9a6700}.axis,.small{fill:#6b7280;font-size:11px}.end{text-anchor:end}\n"
    ".middle,.band{text-anchor:middle}.band{font-size:11px}.peak-text{font-weight:600;paint-order:stroke;"
    "stroke:#fff;stroke-width:4px;stroke-linejoin:round}.fits{fill:#2f7d4f;"
    "font-size:18px;font-weight:600}\n.over{fill:#c0392b;font-size:18px;font-weight:600}.budget-text{fill:#"
    "c0392b}\n"
    ".grid{stroke:#1f2937;stroke-opacity:.13;fill:none}.loop{stroke:#6b7280;fill:none}\n"
    ".budget{stroke:#c0392b;stroke-dasharray:6 4;stroke-width:1.5;fill:none}\n"
    ".peak{fill:#fff;stroke:#1f2937;stroke-width:2}.line{fill:none;stroke-width:2.5;stroke-linejoin:round}\n";

void gr_picture_begin(gr_str *out, double width, double height)
{
    gr_str_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 "
                  "%.0f %.0f\">\n"
                  "<style>%s</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
                  width, height, width, height, style);
}

void gr_picture_end(gr_str *out)
{
    gr_str_puts(out, "</svg>\n");
}

void gr_text_put(gr_str *out, double x, double y, const char *classes, const char *text)
{
    gr_str_printf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, classes);
    gr_xml_put(out, text);
    gr_str_puts(out, "</text>\n");
}

void gr_text_fit(gr_str *out, double x, double y, double width, const char *classes, const char *text)
{
    size_t n = 0;
    for (const char *c = text; *c; c++) n += ((unsigned char)*c & 0xc0) != 0x80;
    if (n && 6.4 * (double)n + 4 <= width) gr_text_put(out, x, y, classes, text);
}

uint64_t gr_tick_bytes(uint64_t most, unsigned ticks)
{
    uint64_t tick = 1;
    while (most / tick > ticks) tick *= 2;
    return tick;
}

uint64_t gr_tick_ns(uint64_t most, unsigned ticks)
{
    static const unsigned round[] = {1, 2, 5};
    for (uint64_t ten = 1;; ten *= 10)
        for (size_t i = 0; i < GR_LEN(round); i++)
            if (most / (round[i] * ten) <= ticks) return round[i] * ten;
}

char *gr_tick_format(uint64_t bytes, char *buf)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    double x = (double)bytes;
    for (; x >= 1024 && u + 1 < GR_LEN(units); u++) x /= 1024;
    snprintf(buf, 32, "%g %s", x, bytes ? units[u] : "");
    return buf;
}

void gr_tick_time(gr_str *out, uint64_t ns, uint64_t tick)
{
    if (!ns)
        gr_str_putc(out, '0');
    else if (tick >= 1000000000)
        gr_str_printf(out, "%g s", (double)ns / 1e9);
    else if (tick >= 1000000)
        gr_str_printf(out, "%g ms", (double)ns / 1e6);
    else
        gr_str_printf(out, "%g us", (double)ns / 1e3);
}

const char *gr_node_colour(const gr_view *v, const char *node)
{
    static const char *const colours[] = {"#a9c7ec", "#f6cf94", "#a8d8b9", "#e9b3b8", "#cbb9e4",
                                          "#e6dd94", "#a6dcdc", "#e3bfdc", "#cfc3b3", "#c6d3a0"};
    uint32_t n = 0;
    const char *before = NULL;
    for (uint32_t i = 0; i < v->n; i++) {
        const char *at = v->steps[i].node;
        if (!at || (before && !strcmp(at, before))) continue;
        if (!strcmp(at, node)) return colours[n % GR_LEN(colours)];
        before = at;
        n++;
    }
    return "#d4d7dd";
}
