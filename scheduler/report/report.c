/* scheduler/report/report.c: the table that `graphrun plan` prints. */
#include "scheduler/report/report.h"

#include "scheduler/report/view.h"
#include "runtime/base/visible.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAR        20 /* characters */
#define MAX_PERIOD 12
#define WHAT_WIDTH 34

typedef struct table {
    const gr_plan *p;
    gr_str *out;
    bool colour;
    const gr_view *v;
    uint64_t scale; /* bytes of a full bar */
} table;

typedef enum paint_with { BOLD, DIM, RED, GREEN, YELLOW, BLUE, MAGENTA, OFF } paint_with;

static const char *paint(const table *t, paint_with c)
{
    static const char *const codes[] = {
        [BOLD] = "\033[1m",    [DIM] = "\033[2m",   [RED] = "\033[31m",     [GREEN] = "\033[32m",
        [YELLOW] = "\033[33m", [BLUE] = "\033[34m", [MAGENTA] = "\033[35m", [OFF] = "\033[0m"};
    return t->colour ? codes[c] : "";
}

/* A bar in eighths of a character. */
static void put_bar(table *t, uint64_t bytes)
{
    static const char *const part[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double share = t->scale ? (double)bytes / (double)t->scale : 0;
    unsigned eighths = (unsigned)(GR_MIN(share, 1) * BAR * 8 + 0.5);
    gr_str_puts(t->out, paint(t, share > 0.95 ? RED : share > 0.8 ? YELLOW : GREEN));
    for (unsigned i = 0; i < eighths / 8; i++) gr_str_puts(t->out, "█");
    gr_str_puts(t->out, part[eighths % 8]);
    gr_str_puts(t->out, paint(t, OFF));
}

/* ---- folding ------------------------------------------------------------------------------------------ */

/* The last run of digits of a name: its place, length and value. Names without one: length 0. */
typedef struct numeral {
    size_t at, len;
    long value;
} numeral;

static numeral last_number(const char *what)
{
    size_t end = strlen(what);
    while (end && !isdigit((unsigned char)what[end - 1])) end--;
    size_t at = end;
    while (at && isdigit((unsigned char)what[at - 1])) at--;
    if (end - at > 9) at = end;
    return (numeral){at, end - at, end > at ? strtol(what + at, NULL, 10) : 0};
}

/* Whether two steps differ only in their number. */
static bool alike(const gr_step *a, const gr_step *b, long *delta)
{
    numeral x = last_number(a->what), y = last_number(b->what);
    *delta = y.value - x.value;
    return a->kind == b->kind && a->kind != GR_STEP_LOOP && a->lane == b->lane && x.len && y.len &&
           x.at == y.at && !memcmp(a->what, b->what, x.at) &&
           !strcmp(a->what + x.at + x.len, b->what + y.at + y.len);
}

/* How often the period steps from i repeat with all numbers going up or down by one. */
static uint32_t repeats(const table *t, uint32_t i, uint32_t period)
{
    const gr_step *steps = t->v->steps;
    uint32_t n = 1;
    for (;; n++) {
        for (uint32_t k = 0; k < period; k++) {
            uint32_t at = i + n * period + k, before = at - period;
            long delta, first;
            if (at >= t->v->n || at == t->v->n_steady || t->v->parent[at] != t->v->parent[i] ||
                !alike(&steps[before], &steps[at], &delta) || labs(delta) != 1)
                return n;
            if (n > 1 && alike(&steps[before - period], &steps[before], &first) && first != delta) return n;
        }
    }
}

/* The folding at i whose repeats cover most steps: its period and its repeats, 1 for none. */
static uint32_t best_fold(const table *t, uint32_t i, uint32_t *n)
{
    uint32_t best = 1, most = 0;
    *n = 1;
    for (uint32_t period = 1; period <= MAX_PERIOD && i + period <= t->v->n; period++) {
        if (t->v->steps[i + period - 1].kind == GR_STEP_LOOP ||
            t->v->parent[i + period - 1] != t->v->parent[i])
            break;
        uint32_t r = repeats(t, i, period);
        if (r < 2 || r * period <= most) continue;
        most = r * period;
        best = period;
        *n = r;
    }
    return best;
}

/* As best_fold, but a short one gives way to a long one that begins inside it. */
static uint32_t fold(const table *t, uint32_t i, uint32_t *n)
{
    uint32_t period = best_fold(t, i, n), cover = period * *n, later;
    for (uint32_t j = i + 1; *n > 1 && j < i + cover && j < i + 2 * MAX_PERIOD; j++)
        if (best_fold(t, j, &later) * later > 2 * cover) *n = 1;
    return *n > 1 ? period : 1;
}

/* ---- lines -------------------------------------------------------------------------------------------- */

/* Text cut or filled to a width; all characters of names are one byte wide. */
static void put_cell(gr_str *out, const char *text, size_t width)
{
    size_t n = strlen(text);
    if (n <= width)
        gr_str_printf(out, "%-*s", (int)width, text);
    else
        gr_str_printf(out, "%.*s…", (int)width - 1, text);
}

static paint_with kind_colour(gr_step_kind k)
{
    if (k == GR_STEP_LOAD || k == GR_STEP_FETCH) return BLUE;
    if (k == GR_STEP_OFFLOAD || k == GR_STEP_STORE) return MAGENTA;
    return k == GR_STEP_RUN ? OFF : k == GR_STEP_LOOP ? BOLD : DIM;
}

static void put_name(const table *t, uint32_t i, uint32_t last, gr_str *name)
{
    const gr_step *s = &t->v->steps[i];
    gr_str_printf(name, "%*s", (int)(2 * t->v->depth[i]), "");
    if (s->kind != GR_STEP_RUN && s->kind != GR_STEP_LOOP)
        gr_str_printf(name, "%s ", gr_step_kind_str(s->kind));
    numeral x = last_number(s->what), y = last_number(t->v->steps[last].what);
    if (last == i)
        gr_str_puts(name, s->what);
    else
        gr_str_printf(name, "%.*s..%ld%s", (int)(x.at + x.len), s->what, y.value, s->what + x.at + x.len);
    if (s->kind == GR_STEP_LOOP)
        gr_str_printf(name, " %s%u times", s->agreed ? "at most " : "", s->trips_max);
}

/* One line for n steps, each period steps after the one before. */
static void put_line(table *t, uint32_t i, uint32_t period, uint32_t n)
{
    uint64_t moved = 0, resident = 0;
    uint32_t last = i + (n - 1) * period;
    bool peak = false;
    for (uint32_t k = i; k <= last; k += period) {
        moved += t->v->steps[k].bytes;
        resident = GR_MAX(resident, t->v->steps[k].resident_bytes);
        peak |= k == t->p->peak_step;
    }
    const gr_step *s = &t->v->steps[i];
    gr_str name = {0};
    char number[32], bytes[32] = "", live[32];
    if (n > 1)
        snprintf(number, sizeof(number), "%u..%u", i, last);
    else
        snprintf(number, sizeof(number), "%u", i);
    put_name(t, i, last, &name);
    gr_str_printf(t->out, "%s%-11s%s %-7s  %s", paint(t, DIM), number, paint(t, OFF), gr_lane_str(s->lane),
                  paint(t, kind_colour(s->kind)));
    put_cell(t->out, name.text, WHAT_WIDTH);
    gr_str_printf(t->out, "%s %10s %10s ", paint(t, OFF), moved ? gr_bytes_format(moved, bytes) : "",
                  gr_bytes_format(resident, live));
    put_bar(t, resident);
    gr_str_puts(t->out, peak ? " ◀\n" : "\n");
    gr_str_release(&name);
}

/* ---- the head ----------------------------------------------------------------------------------------- */

static void put_culprits(table *t)
{
    const gr_plan *p = t->p;
    uint64_t sum[GR_N_CATEGORIES] = {0};
    char buf[32];
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        const gr_entry *x = &p->ledger[e];
        if (x->place == GR_DEVICE && gr_entry_live(x, p->peak_step)) sum[x->category] += x->bytes;
    }
    if (t->v->n)
        gr_str_printf(t->out, "  at step   %u %s%s%s\n  alive     ", p->peak_step, paint(t, BOLD),
                      t->v->steps[p->peak_step].what, paint(t, OFF));
    uint64_t others = 0;
    for (int shown = 0; shown < GR_N_CATEGORIES; shown++) {
        int top = 0;
        for (int c = 1; c < GR_N_CATEGORIES; c++)
            if (sum[c] > sum[top]) top = c;
        if (shown >= 3)
            others += sum[top];
        else if (sum[top])
            gr_str_printf(t->out, "%s%s %s", shown ? ", " : "", gr_category_str((gr_category)top),
                          gr_bytes_format(sum[top], buf));
        sum[top] = 0;
    }
    if (others) gr_str_printf(t->out, ", others %s", gr_bytes_format(others, buf));
    gr_str_putc(t->out, '\n');
}

/* A peak against the budget. */
static void put_peak(table *t, uint64_t peak, uint64_t budget)
{
    char a[32], b[32], c[32];
    gr_str_printf(t->out, "  peak      %s%s%s of %s  ", paint(t, BOLD), gr_bytes_format(peak, a),
                  paint(t, OFF), gr_bytes_format(budget, b));
    t->scale = budget;
    put_bar(t, peak);
    bool over = peak > budget;
    gr_str_printf(t->out, "  %s %s\n", over ? "missing" : "headroom",
                  gr_bytes_format(over ? peak - budget : budget - peak, c));
}

/* Whether a little more than was planned, such as another process of the device, would not fit. */
static bool is_tight(const gr_plan *p)
{
    const uint64_t peak = gr_plan_peak(p);
    return p->budget_bytes - GR_MIN(peak, p->budget_bytes) < p->budget_bytes / 100;
}

static void put_title(table *t)
{
    const gr_plan *p = t->v->all;
    bool fits = gr_plan_fits(p);
    gr_str_puts(t->out, paint(t, BOLD));
    gr_str_visible(t->out, p->graph, strlen(p->graph), false);
    gr_str_printf(t->out, "%s on ", paint(t, OFF));
    gr_str_visible(t->out, p->hardware, strlen(p->hardware), false);
    const bool barely = fits && is_tight(p);
    gr_str_printf(t->out, ": %s%s%s%s\n",
                  paint(t, !fits    ? RED
                           : barely ? YELLOW
                                    : GREEN),
                  fits ? "fits" : "does not fit", barely ? ", with less than 1 % to spare" : "",
                  paint(t, OFF));
}

enum { TEXT_COLUMNS = 86 }; /* of a line of text, beside what it is */

/* As much of a line as fits, to a blank. */
static size_t part_of(const char *line, size_t len)
{
    size_t n = GR_MIN(len, (size_t)TEXT_COLUMNS);
    while (n < len && n && line[n] != ' ') n--;
    return n ? n : len;
}

static void put_lines(table *t, const char *line, const char *what)
{
    while (*line) {
        const char *name = what;
        for (size_t left = strcspn(line, "\n"), n; left; left -= n, line += n, name = "") {
            n = part_of(line, left);
            gr_str_printf(t->out, "  %s%-9s%s ", paint(t, YELLOW), name, paint(t, OFF));
            gr_str_visible(t->out, line + (*line == ' '), n - (*line == ' '), false);
            gr_str_putc(t->out, '\n');
        }
        line += *line == '\n';
    }
}

static void put_notes(table *t)
{
    put_lines(t, t->v->all->notes, "note");
    put_lines(t, t->v->all->reasons, "reason");
}

/* Nodes whose model is sharded over the ranks of a node, the hosts being replicas. */
static void put_shards(table *t)
{
    const gr_plan *p = t->v->all;
    uint64_t each = 0;
    for (uint32_t i = 0; i < p->n_settings; i++) {
        if (strcmp(p->settings[i].name, "shards")) continue;
        gr_str_printf(t->out, "%s%s", each ? ", " : "  replicas  of the model of ", p->settings[i].node);
        each = p->settings[i].value;
    }
    if (each) gr_str_printf(t->out, ": a shard on each of %u ranks\n", (uint32_t)each);
}

/* Peak, memory and time of the role that is shown; of several, the time is its own. */
static void put_head(table *t)
{
    const gr_plan *p = t->p;
    char a[32], b[32], c[32];
    uint64_t moved;
    uint32_t n = gr_transitions(&t->p->paths[GR_PATH_STEADY], &moved);
    put_peak(t, p->peak_bytes, p->budget_bytes);
    put_culprits(t);
    gr_str_printf(t->out, "  memory    arena %s, overhead %s, host pool %s",
                  gr_bytes_format(p->arena_bytes, a), gr_bytes_format(p->overhead_bytes, b),
                  gr_bytes_format(p->host_bytes, c));
    if (p->disk_bytes)
        gr_str_printf(t->out, ", disk %s of %s", gr_bytes_format(p->disk_bytes, a),
                      gr_bytes_format(t->v->all->disk_budget_bytes, b));
    gr_str_putc(t->out, '\n');
    put_shards(t);
    gr_str_puts(t->out, "  predicted ");
    gr_time_put(t->out, t->v->all->n_more ? p->own_ns : p->ns);
    gr_str_puts(t->out, t->v->all->n_more ? " an iteration of its own" : " an iteration");
    if (n)
        gr_str_printf(t->out, ", %u transition steps, %s in one pass over them\n", n,
                      gr_bytes_format(moved, a));
    else
        gr_str_puts(t->out, ", no transitions\n");
}

/* What stands above the steps that a validation runs. */
static void put_validation(table *t)
{
    gr_str_printf(t->out, "%svalidation, between iterations: ", paint(t, DIM));
    gr_time_put(t->out, t->v->ns - t->v->steady_ns);
    gr_str_printf(t->out, " predicted%s\n", paint(t, OFF));
}

static void put_steps(table *t)
{
    t->scale = t->p->arena_bytes;
    gr_str_printf(t->out, "\n%s%-11s %-7s  %-*s %10s %10s %s%s\n", paint(t, DIM), "step", "lane", WHAT_WIDTH,
                  "what", "moved", "resident", "of the arena", paint(t, OFF));
    for (uint32_t i = 0; i < t->v->n;) {
        if (i == t->v->n_steady) put_validation(t);
        uint32_t n, period = fold(t, i, &n);
        for (uint32_t k = 0; k < (n > 1 ? period : 1); k++) put_line(t, i + k, period, n);
        i += n > 1 ? n * period : 1;
    }
}

/* Bytes that all ranks of a role send to others, or receive. */
static uint64_t crosses(const gr_plan *p, gr_step_kind kind)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->paths[GR_PATH_STEADY].n; i++)
        if (p->paths[GR_PATH_STEADY].steps[i].kind == kind) bytes += p->paths[GR_PATH_STEADY].steps[i].bytes;
    return bytes;
}

/* All roles, a line each. */
static void put_roles(table *t)
{
    const gr_plan *all = t->v->all;
    char a[32], b[32], c[32];
    put_peak(t, gr_plan_peak(all), all->budget_bytes);
    gr_str_puts(t->out, "  predicted ");
    gr_time_put(t->out, all->ns);
    gr_str_puts(t->out, " an iteration of all ranks\n");
    gr_str_printf(t->out, "\n%s%-14s %-26s %10s %10s %5s %10s %10s%s\n", paint(t, DIM), "ranks", "pools",
                  "peak", "works", "busy", "sends", "receives", paint(t, OFF));
    for (uint32_t k = 0; k <= all->n_more; k++) {
        const gr_plan *p = gr_plan_role(all, k);
        gr_str own = {0};
        gr_time_put(&own, p->own_ns);
        put_cell(t->out, p->ranks, 14);
        gr_str_putc(t->out, ' ');
        put_cell(t->out, p->pools, 26);
        gr_str_printf(t->out, " %10s %10s %4.0f%% %10s %10s\n", gr_bytes_format(p->peak_bytes, a), own.text,
                      100 * (double)p->own_ns / (double)GR_MAX(all->ns, (uint64_t)1),
                      gr_bytes_format(crosses(p, GR_STEP_SEND), b),
                      gr_bytes_format(crosses(p, GR_STEP_RECV), c));
        gr_str_release(&own);
    }
}

void gr_plan_table(const gr_plan *p, gr_str *out, bool colour)
{
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_view *v = gr_view_of_role(p, c);
        table t = {.p = gr_plan_role(p, c), .out = out, .colour = colour, .v = v};
        if (!c) put_title(&t);
        if (!c && p->n_more) put_roles(&t), put_notes(&t);
        if (p->n_more)
            gr_str_printf(out, "\n%sranks %s: %s%s\n", paint(&t, BOLD), t.p->ranks, t.p->pools,
                          paint(&t, OFF));
        put_head(&t);
        if (!p->n_more) put_notes(&t);
        put_steps(&t);
        gr_view_free(v);
    }
}
