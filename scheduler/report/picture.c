/* scheduler/report/picture.c: what pictures share: colours, axes, texts. */
#include "scheduler/report/picture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    "text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#1f2937}\n"
    ".paper,.peak{fill:#ffffff}.title{font-size:22px;font-weight:600}.sub{fill:#4b5563;font-size:14px;"
    "white-space:pre}.panel{font-size:14px;font-weight:600}\n"
    ".note{fill:#8a5a00}.axis,.small{fill:#5f6875;font-size:11px}.end{text-anchor:end}\n"
    ".middle,.band{text-anchor:middle}.band{font-size:11px;fill:#1f2937}.area{stroke:#ffffff;stroke-width:.4;"
    "stroke-opacity:.5}"
    "\n"
    ".peak-text{font-weight:600;paint-order:stroke;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round}\n"
    ".fits{fill:#2f7d4f;font-size:18px;font-weight:600}.over{fill:#b3372a;font-size:18px;font-weight:600}\n"
    ".budget-text{fill:#b3372a;paint-order:stroke;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round}\n"
    ".grid{stroke:#1f2937;stroke-opacity:.13;fill:none}.loop{stroke:#5f6875;fill:none}.free{fill:#e1e4e9}\n"
    ".budget{stroke:#b3372a;stroke-dasharray:6 4;stroke-width:1.5;fill:none}\n"
    ".peak{stroke:#1f2937;stroke-width:2}.line{fill:none;stroke-width:2.5;stroke-linejoin:round}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e5e7eb}.paper,.peak{fill:#1c2027}.sub,.axis,.small{fill:#"
    "9ca3af}\n"
    ".note{fill:#e0b050}.area,.peak-text,.budget-text{stroke:#1c2027}.fits{fill:#6cc390}.over,.budget-text"
    "{fill:#ef8377}\n"
    ".band{fill:#1f2937}.grid,.peak{stroke:#e5e7eb}.loop{stroke:#9ca3af}.free{fill:#323843}.budget{stroke:#"
    "ef8377}}\n";

void gr_picture_begin(gr_str *out, double width, double height)
{
    gr_str_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 "
                  "%.0f %.0f\">\n"
                  "<style>%s</style>\n<rect class=\"paper\" width=\"100%%\" height=\"100%%\"/>\n",
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

static size_t characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

double gr_text_width(const char *text)
{
    return 6.7 * (double)characters(text);
}

void gr_text_fit(gr_str *out, double x, double y, double width, const char *classes, const char *text)
{
    const size_t n = characters(text);
    if (n && 6.4 * (double)n + 4 <= width) gr_text_put(out, x, y, classes, text);
}

/* How many bytes the first n characters of a text have. */
static size_t bytes_of(const char *text, size_t n)
{
    size_t at = 0;
    for (; text[at]; at++)
        if (((unsigned char)text[at] & 0xc0) != 0x80 && !n--) break;
    return at;
}

void gr_text_cut(gr_str *out, double x, double y, double width, const char *classes, const char *text)
{
    const size_t n = characters(text), room = GR_MAX((size_t)(width / 6.7), (size_t)8);
    if (n <= room) {
        gr_text_put(out, x, y, classes, text);
        return;
    }
    const size_t tail = room * 2 / 5; /* names often differ at their end */
    char *cut =
        gr_printf("%.*s…%s", (int)bytes_of(text, room - tail - 1), text, text + bytes_of(text, n - tail));
    gr_str_printf(out, "<g><title>");
    gr_xml_put(out, text);
    gr_str_puts(out, "</title>");
    gr_text_put(out, x, y, classes, cut);
    gr_str_puts(out, "</g>\n");
    free(cut);
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
    /* Light enough for dark text: tints of what paint_series takes. */
    static const char *const colours[] = {"#aad9f4", "#f2cf80", "#80ceb9", "#e5bcd3",
                                          "#f7f1a0", "#66a9d1", "#eaae80", "#c9c9c9"};
    for (uint32_t i = 0; i < v->n_nodes; i++)
        if (!strcmp(v->nodes[i], node)) return colours[i % GR_LEN(colours)];
    return "#d4d7dd";
}
