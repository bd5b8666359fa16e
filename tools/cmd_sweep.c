/* graphrun plan --sweep: plans over a range of one setting. */
#include "scheduler/search/meshes.h"
#include "tools/cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/report/sweep.h"
#include "scheduler/report/view.h"
#include "graphs/loader/load.h"

enum { DEFAULT_POINTS = 8, MAX_POINTS = 1000 };

typedef struct range {
    char *name;
    bool bytes, whole; /* sizes; whole numbers */
    double from, to;
    size_t n;
} range;

static gr_status wrong(const gr_args *a, const char *why, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "--sweep '%s' %s; it should be like budget=24GiB..140GiB:8 or group=2..16:4",
                         a->sweep, why);
}

static bool parse_end(const char *text, range *r, double *out)
{
    uint64_t bytes;
    char *end;
    if (r->bytes) {
        if (!gr_bytes_parse(text, &bytes) || !bytes) return false;
        *out = (double)bytes;
        return true;
    }
    *out = strtod(text, &end);
    r->whole = r->whole && !strpbrk(text, ".eE");
    return *text && !*end && isfinite(*out);
}

static gr_status parse_values(range *r, char *text, const gr_args *a, gr_diag *d)
{
    char *count = strrchr(text, ':'), *dots = strstr(text, ".."), *end = "";
    if (!dots) return wrong(a, "lacks '..' between two values", d);
    if (count && count > dots) {
        *count++ = 0;
        long n = strtol(count, &end, 10);
        if (n < 1 || n > MAX_POINTS || *end)
            return wrong(a, "has a number of plans that is not in 1 .. 1000", d);
        r->n = (size_t)n;
    }
    *dots = 0;
    if (!parse_end(text, r, &r->from)) return wrong(a, "begins with no value", d);
    if (!parse_end(dots + 2, r, &r->to)) return wrong(a, "ends with no value", d);
    return r->from <= r->to ? GR_OK : wrong(a, "ends before it begins", d);
}

static gr_status parse(range *r, const gr_args *a, gr_diag *d)
{
    const char *equals = strchr(a->sweep, '=');
    if (!equals || equals == a->sweep) return wrong(a, "lacks a name and '='", d);
    *r = (range){
        .name = gr_strndup(a->sweep, (size_t)(equals - a->sweep)), .whole = true, .n = DEFAULT_POINTS};
    r->bytes = !strcmp(r->name, "budget") || !strcmp(r->name, "host-budget");
    char *values = gr_strdup(equals + 1);
    gr_status st = parse_values(r, values, a, d);
    free(values);
    return st;
}

static double value_at(const range *r, size_t i)
{
    double x = r->n > 1 ? r->from + (r->to - r->from) * (double)i / (double)(r->n - 1) : r->from;
    return r->bytes || r->whole ? round(x) : x;
}

static char *value_text(const range *r, double value)
{
    char buf[32];
    return r->bytes ? gr_strdup(gr_bytes_format((uint64_t)value, buf))
                    : gr_printf(r->whole ? "%.0f" : "%g", value);
}

/* The arguments with the swept setting in. *set: its text; the caller frees it, and with->set. */
static gr_args with_value(const gr_args *a, const range *r, double value, char **set)
{
    gr_args with = *a;
    *set = NULL;
    with.ask.set = gr_calloc(a->ask.n_set + 1, sizeof(*with.ask.set));
    if (a->ask.n_set) memcpy(with.ask.set, a->ask.set, a->ask.n_set * sizeof(*with.ask.set));
    if (!strcmp(r->name, "budget"))
        with.ask.budget = (uint64_t)value;
    else if (!strcmp(r->name, "host-budget"))
        with.ask.host_budget = (uint64_t)value;
    else if (!strcmp(r->name, "ranks"))
        with.ask.ranks = *set = gr_printf("%.0f", value);
    else
        with.ask.set[with.ask.n_set++] = *set = gr_printf(r->whole ? "%s=%.0f" : "%s=%.17g", r->name, value);
    return with;
}

static gr_status plan_point(const gr_args *a, gr_planned **p, gr_diag *d)
{
    gr_plan_options o;
    gr_graph *g = NULL;
    gr_status st = gr_request_options(&o, &a->ask, d);
    if (!st) st = gr_request_load(&g, &a->ask, &o, d);
    if (!st) st = gr_plan_meshes(p, g, &o, d);
    gr_graph_free(g);
    return st;
}

static const char *first_error(const gr_diag *d)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->messages[i].severity == GR_ERROR) return d->messages[i].text;
    return "no plan";
}

/* Texts of the point are copied to pool. title is set from the first plan. */
static gr_status make_point(gr_point *pt, const gr_args *a, const range *r, gr_arena *arena,
                            const char **title, gr_diag *d)
{
    char *set, *text = value_text(r, pt->value);
    gr_args with = with_value(a, r, pt->value, &set);
    gr_planned *p = NULL;
    gr_status st = plan_point(&with, &p, d);
    pt->text = gr_arena_strdup(arena, text);
    if (p) {
        const gr_plan *plan = p->plan;
        pt->fits = gr_plan_fits(plan);
        pt->peak_bytes = gr_plan_peak(plan);
        pt->budget_bytes = plan->budget_bytes;
        pt->ns = plan->ns;
        for (uint32_t c = 0; c <= plan->n_more; c++) {
            uint64_t moved;
            pt->n_transitions += gr_transitions(&gr_plan_role(plan, c)->paths[GR_PATH_STEADY], &moved);
            pt->moved_bytes += moved;
        }
        pt->notes = gr_arena_strdup(arena, plan->notes);
        if (!*title) *title = gr_arena_printf(arena, "%s on %s", plan->graph, plan->hardware);
    } else {
        pt->error = gr_arena_strdup(arena, first_error(d));
    }
    gr_planned_free(p);
    free(with.ask.set);
    free(set);
    free(text);
    return p || st ? st : GR_E_FAILED;
}

static void add_errors(gr_diag *d, const gr_diag *from)
{
    for (size_t m = 0; m < from->n; m++)
        if (from->messages[m].severity == GR_ERROR)
            (void)gr_diag_error(d, from->messages[m].at, GR_E_INVALID, "%s", from->messages[m].text);
}

/* All points. GR_OK: something fits; GR_E_NOFIT: nothing does; else no value gives a plan, and d says why. */
static gr_status make_points(gr_sweep *s, gr_point *points, const gr_args *a, const range *r, gr_arena *arena,
                             gr_diag *d)
{
    gr_status st = GR_E_INVALID;
    gr_diag first;
    gr_diag_init(&first);
    for (size_t i = 0; i < r->n; i++) {
        double value = value_at(r, i);
        if (s->n && points[s->n - 1].value == value) continue; /* whole numbers can fall together */
        gr_diag own;
        gr_diag_init(&own);
        points[s->n] = (gr_point){.value = value};
        gr_status now = make_point(&points[s->n++], a, r, arena, &s->title, &own);
        if (!now || (now == GR_E_NOFIT && st)) st = now;
        if (!first.n) add_errors(&first, &own);
        gr_diag_release(&own);
    }
    if (!s->title) add_errors(d, &first);
    gr_diag_release(&first);
    return st;
}

static gr_status check_format(const gr_args *a, gr_diag *d)
{
    const char *f = a->format;
    if (!f || !strcmp(f, "table") || !strcmp(f, "csv") || !strcmp(f, "svg")) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "a sweep has no format '%s'; use table, csv or svg",
                         f);
}

int gr_cmd_sweep(const gr_args *a, gr_diag *d)
{
    range r = {0};
    gr_status st = check_format(a, d), parsed = parse(&r, a, d);
    if (!st) st = parsed;
    gr_arena *arena = gr_arena_new();
    gr_point *points = gr_arena_alloc(arena, (r.n + 1) * sizeof(*points));
    gr_sweep s = {.name = r.name, .points = points};
    if (!st) st = make_points(&s, points, a, &r, arena, d);
    int status = gr_exit_status_input(st);
    if (s.title) { /* there is a plan to show */
        gr_str text = {0};
        const char *format = a->format ? a->format : "table";
        if (!strcmp(format, "csv"))
            gr_sweep_csv(&s, &text);
        else if (!strcmp(format, "svg"))
            gr_sweep_svg(&s, &text);
        else
            gr_sweep_table(&s, &text);
        if (gr_cmd_finish(&text, a->ask.out, d)) status = 1;
    }
    free(r.name);
    gr_arena_free(arena);
    return status;
}
