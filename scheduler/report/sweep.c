/* scheduler/report/sweep.c: plans over a range of one setting. */
#include "scheduler/report/sweep.h"

#include "scheduler/report/picture.h"
#include "runtime/base/visible.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts -------------------------------------------------------------------------------------------- */

/* Lines joined by "; ". */
static void put_notes(gr_str *out, const char *notes)
{
    while (*notes) {
        size_t len = strcspn(notes, "\n");
        gr_str_add(out, notes, len);
        notes += len + (notes[len] != 0);
        if (*notes) gr_str_puts(out, "; ");
    }
}

static void put_line(gr_str *out, const gr_point *p)
{
    char buf[32];
    if (p->error) {
        gr_str_printf(out, "%12s  %-4s %s\n", p->text, "", p->error);
        return;
    }
    gr_str seconds = {0};
    gr_time_put(&seconds, p->ns);
    gr_str_printf(out, "%12s  %-4s %12s %10s %11u  ", p->text, p->fits ? "yes" : "no",
                  gr_bytes_format(p->peak_bytes, buf), seconds.text, p->n_transitions);
    put_notes(out, p->notes);
    while (out->text[out->len - 1] == ' ') out->text[--out->len] = 0;
    gr_str_putc(out, '\n');
    gr_str_release(&seconds);
}

void gr_sweep_table(const gr_sweep *s, gr_str *out)
{
    gr_str_visible(out, s->title, strlen(s->title), false);
    gr_str_printf(out, "\n\n%12s  %-4s %12s %10s %11s  %s\n", s->name, "fits", "peak", "iteration",
                  "transitions", "notes");
    for (size_t i = 0; i < s->n; i++) put_line(out, &s->points[i]);
}

void gr_sweep_csv(const gr_sweep *s, gr_str *out)
{
    gr_str_printf(out, "%s,fits,peak_bytes,seconds,transitions,moved_bytes,notes\n", s->name);
    for (size_t i = 0; i < s->n; i++) {
        const gr_point *p = &s->points[i];
        gr_str notes = {0};
        put_notes(&notes, p->error ? p->error : p->notes);
        gr_str_printf(out, "%.17g,", p->value);
        if (p->error)
            gr_str_puts(out, ",,,,,");
        else
            gr_str_printf(out, "%s,%" PRIu64 ",%" PRIu64 ".%09" PRIu64 ",%u,%" PRIu64 ",",
                          p->fits ? "yes" : "no", p->peak_bytes, p->ns / 1000000000, p->ns % 1000000000,
                          p->n_transitions, p->moved_bytes);
        gr_csv_put(out, notes.len ? notes.text : "");
        gr_str_putc(out, '\n');
        gr_str_release(&notes);
    }
}

/* ---- picture ------------------------------------------------------------------------------------------ */

enum { WIDTH = 860, LEFT = 84, RIGHT = 30, HEIGHT = 220 };

typedef struct chart {
    const gr_sweep *s;
    gr_str *out;
    double top;
    uint64_t most;    /* at the upper edge */
    const char *line; /* colour */
    uint64_t (*of)(const gr_point *p);
} chart;

static uint64_t time_of(const gr_point *p)
{
    return p->ns;
}

static uint64_t peak_of(const gr_point *p)
{
    return p->peak_bytes;
}

static double value_x(const chart *c, double value)
{
    double a = c->s->points[0].value, b = c->s->points[c->s->n - 1].value;
    return LEFT + 14 + (WIDTH - LEFT - RIGHT - 28) * (b > a ? (value - a) / (b - a) : 0.5);
}

static double y_of(const chart *c, uint64_t value)
{
    return c->top + HEIGHT * (1 - (double)value / (double)GR_MAX(c->most, (uint64_t)1));
}

static void put_points(const chart *c)
{
    gr_str path = {0};
    char move = 'M';
    for (size_t i = 0; i < c->s->n; i++) {
        const gr_point *p = &c->s->points[i];
        if (p->error || !p->fits) continue;
        gr_str_printf(&path, "%c%.1f %.1f", move, value_x(c, p->value), y_of(c, c->of(p)));
        move = 'L';
    }
    gr_str_printf(c->out, "<path class=\"line\" stroke=\"%s\" d=\"%s\"/>\n", c->line,
                  path.len ? path.text : "");
    gr_str_release(&path);
    for (size_t i = 0; i < c->s->n; i++) {
        const gr_point *p = &c->s->points[i];
        char buf[32];
        if (p->error) continue;
        gr_str_printf(c->out,
                      "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\" stroke=\"%s\" "
                      "stroke-width=\"2\"><title>",
                      p->fits ? "" : "paper", value_x(c, p->value), y_of(c, c->of(p)), c->line,
                      p->fits ? c->line : "#d55e00");
        gr_xml_put(c->out, c->s->name);
        gr_str_printf(c->out, " %s: %s, peak %s, ", p->text, p->fits ? "fits" : "does not fit",
                      gr_bytes_format(p->peak_bytes, buf));
        gr_time_put(c->out, p->ns);
        gr_str_printf(c->out, ", %u transitions</title></circle>\n", p->n_transitions);
    }
}

static void put_budgets(const chart *c)
{
    gr_str path = {0};
    char move = 'M';
    for (size_t i = 0; i < c->s->n; i++) {
        const gr_point *p = &c->s->points[i];
        if (p->error || p->budget_bytes > c->most) continue;
        gr_str_printf(&path, "%c%.1f %.1f", move, value_x(c, p->value), y_of(c, p->budget_bytes));
        move = 'L';
    }
    if (path.len) {
        gr_str_printf(c->out, "<path class=\"budget\" d=\"%s\"/>", path.text);
        gr_text_put(c->out, WIDTH - RIGHT, c->top - 10, "budget-text end", "dashed: the budget");
    }
    gr_str_release(&path);
}

static void put_grid(const chart *c, bool time)
{
    uint64_t tick = time ? gr_tick_ns(c->most, 5) : gr_tick_bytes(c->most, 5);
    for (uint64_t v = 0; v <= c->most; v += tick) {
        gr_str text = {0};
        char buf[32];
        if (time)
            gr_tick_time(&text, v, tick);
        else
            gr_str_puts(&text, gr_tick_format(v, buf));
        gr_str_printf(c->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, y_of(c, v), WIDTH - RIGHT);
        gr_text_put(c->out, LEFT - 8, y_of(c, v) + 4, "axis end", text.text);
        gr_str_release(&text);
    }
}

/* The values under the chart, as many as there is room for. */
static void put_values(const chart *c)
{
    double free_from = 0;
    for (size_t i = 0; i < c->s->n; i++) {
        double x = value_x(c, c->s->points[i].value), half = 3.4 * (double)strlen(c->s->points[i].text);
        if (x - half < free_from) continue;
        gr_text_put(c->out, x, c->top + HEIGHT + 18, "axis middle", c->s->points[i].text);
        free_from = x + half + 8;
    }
}

static void put_chart(chart *c, const char *title, bool time)
{
    c->most = 1;
    for (size_t i = 0; i < c->s->n; i++)
        if (!c->s->points[i].error) c->most = GR_MAX(c->most, c->of(&c->s->points[i]));
    c->most += c->most / 10;
    gr_text_put(c->out, 20, c->top, "panel", title);
    c->top += 16;
    put_grid(c, time);
    if (!time) put_budgets(c);
    put_points(c);
    put_values(c);
    c->top += HEIGHT + 52;
}

void gr_sweep_svg(const gr_sweep *s, gr_str *out)
{
    gr_str body = {0};
    chart c = {.s = s, .out = &body, .top = 82, .line = "#0072b2", .of = time_of};
    bool over = false;
    for (size_t i = 0; i < s->n; i++) over = over || (!s->points[i].error && !s->points[i].fits);
    char *sub = gr_printf("plans for values of %s%s", s->name,
                          over ? "; hollow: does not fit, the smallest plan found" : "");
    gr_text_put(&body, 20, 34, "title", s->title);
    gr_text_put(&body, 20, 56, "sub", sub);
    free(sub);
    if (s->n) {
        put_chart(&c, "Predicted time of an iteration", true);
        c.line = "#009e73";
        c.of = peak_of;
        put_chart(&c, "Peak of device memory", false);
    }
    gr_picture_begin(out, WIDTH, c.top);
    gr_str_add(out, body.text, body.len);
    gr_picture_end(out);
    gr_str_release(&body);
}
