/* scheduler/report/view.c: what pictures of a plan show: series of memory, nodes, columns. */
#include "scheduler/report/view.h"

#include "scheduler/search/timeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SERIES = 24 /* of a place, beside those of categories */ };

/* ---- series ------------------------------------------------------------------------------------------- */

bool gr_entry_live(const gr_entry *e, uint32_t step)
{
    return e->first <= e->last ? e->first <= step && step <= e->last : step >= e->first || step <= e->last;
}

char *gr_resource_name(const gr_entry *e)
{
    return gr_printf("%.*s %s", (int)strcspn(e->what, "."), e->what, gr_category_str(e->category));
}

/* Columns are many and small: one series. */
static char *series_name(const gr_entry *e, bool small)
{
    if (small || e->category == GR_CAT_COLUMNS) return gr_strdup(gr_category_str(e->category));
    return gr_resource_name(e);
}

static uint32_t find_series(gr_view *v, const gr_entry *e, bool small)
{
    char *name = series_name(e, small);
    uint32_t i = 0;
    while (i < v->n_series && (v->series[i].place != e->place || strcmp(v->series[i].name, name))) i++;
    if (i == v->n_series) {
        gr_series s = {gr_arena_strdup(v->arena, name), e->category, e->place, NULL, 0, ""};
        s.bytes = gr_arena_alloc(v->arena, (v->n + 2) * sizeof(*s.bytes));
        v->series[v->n_series++] = s;
    }
    free(name);
    return i;
}

/* Steps [first, last] hold so much more. Differences first: sums follow when all entries are in. */
static void add_range(gr_series *s, uint32_t first, uint32_t last, uint64_t bytes)
{
    s->bytes[first] += bytes;
    s->bytes[last + 1] -= bytes;
}

static void add_entry(gr_series *s, const gr_entry *e, uint32_t n)
{
    if (e->first <= e->last) {
        add_range(s, e->first, e->last, e->bytes);
    } else { /* round the iteration's end */
        add_range(s, 0, e->last, e->bytes);
        add_range(s, e->first, n - 1, e->bytes);
    }
}

/* Sum the entries; those for which small is true under their category alone. */
static void sum_entries(gr_view *v, const bool *small)
{
    const gr_plan *p = v->plan;
    v->n_series = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        v->series_of[e] = find_series(v, &p->ledger[e], small[e]);
        add_entry(&v->series[v->series_of[e]], &p->ledger[e], v->n);
    }
    for (uint32_t k = 0; k < v->n_series; k++)
        for (uint32_t i = 0; i < v->n; i++) {
            gr_series *r = &v->series[k];
            if (i) r->bytes[i] += r->bytes[i - 1];
            r->most = GR_MAX(r->most, r->bytes[i]);
        }
}

static int by_place(const void *a, const void *b, void *user)
{
    const gr_view *v = user;
    const gr_series *x = &v->series[*(const uint32_t *)a], *y = &v->series[*(const uint32_t *)b];
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    if (x->category != y->category) return x->category < y->category ? -1 : 1;
    return x->most != y->most ? (x->most > y->most ? -1 : 1) : strcmp(x->name, y->name);
}

static void sort_series(gr_view *v)
{
    uint32_t *order = gr_malloc((v->n_series + 1) * sizeof(*order));
    uint32_t *rank = gr_malloc((v->n_series + 1) * sizeof(*rank));
    gr_series *sorted = gr_arena_alloc(v->arena, (v->n_series + 1) * sizeof(*sorted));
    for (uint32_t k = 0; k < v->n_series; k++) order[k] = k;
    qsort_r(order, v->n_series, sizeof(*order), by_place, v);
    for (uint32_t k = 0; k < v->n_series; k++) sorted[k] = v->series[order[k]], rank[order[k]] = k;
    for (uint32_t e = 0; e < v->plan->n_ledger; e++) v->series_of[e] = rank[v->series_of[e]];
    v->series = sorted;
    free(order);
    free(rank);
}

static void paint_series(gr_view *v)
{
    /* Okabe and Ito's colours and two more, which people with any colour vision tell apart (test_view). */
    static const uint32_t colours[GR_N_CATEGORIES] = {
        [GR_CAT_WEIGHTS] = 0x0072b2, [GR_CAT_GRADIENTS] = 0xd55e00,   [GR_CAT_OPTIMIZER] = 0xcc79a7,
        [GR_CAT_KV] = 0x009e73,      [GR_CAT_ACTIVATIONS] = 0xe69f00, [GR_CAT_WORKSPACE] = 0x56b4e9,
        [GR_CAT_ROLLOUT] = 0x5b45c0, [GR_CAT_COLUMNS] = 0x8f2d5c,     [GR_CAT_COMM] = 0xf0e442};
    for (uint32_t k = 0, nth = 0; k < v->n_series; k++) {
        gr_series *s = &v->series[k];
        bool same = k && s[-1].category == s->category && s[-1].place == s->place;
        nth = same ? nth + 1 : 0;
        uint32_t c = colours[s->category], pale = GR_MIN(nth * 26, 65), rgb = 0;
        for (int shift = 16; shift >= 0; shift -= 8) {
            uint32_t part = c >> shift & 255;
            rgb |= (part + (255 - part) * pale / 100) << shift;
        }
        snprintf(s->colour, sizeof(s->colour), "#%06x", rgb & 0xffffff);
    }
}

/* ---- which resources are large enough for a series of their own -----------------------------------------
 */

typedef struct event {
    uint32_t step;
    uint64_t bytes; /* added from this step on; what is taken away is added as its complement */
} event;

static int by_step(const void *a, const void *b)
{
    const event *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

/* Most bytes live at once of n entries. */
static uint64_t most_live(const gr_view *v, const uint32_t *entries, uint32_t n)
{
    event *list = gr_malloc((4 * (size_t)n + 1) * sizeof(*list));
    uint32_t n_events = 0;
    for (uint32_t i = 0; i < n; i++) {
        const gr_entry *e = &v->plan->ledger[entries[i]];
        if (e->first > e->last) list[n_events++] = (event){0, e->bytes}; /* round the iteration's end */
        list[n_events++] = (event){e->first, e->bytes};
        list[n_events++] = (event){e->last + 1, -e->bytes};
    }
    if (n) qsort(list, n_events, sizeof(*list), by_step);
    uint64_t live = 0, most = 0;
    for (uint32_t i = 0; i < n_events; i++) {
        live += list[i].bytes;
        if (i + 1 == n_events || list[i + 1].step != list[i].step) most = GR_MAX(most, live);
    }
    free(list);
    return most;
}

static int by_resource(const void *a, const void *b, void *user)
{
    const gr_view *v = user;
    const gr_entry *x = &v->plan->ledger[*(const uint32_t *)a], *y = &v->plan->ledger[*(const uint32_t *)b];
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    if (x->category != y->category) return x->category < y->category ? -1 : 1;
    size_t m = strcspn(x->what, "."), n = strcspn(y->what, ".");
    int c = memcmp(x->what, y->what, GR_MIN(m, n));
    return c ? c : (m > n) - (m < n);
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* What a resource must reach at a place: a hundredth of all, and to be among the largest few. */
static uint64_t least_most(const gr_view *v, const uint32_t *order, uint32_t n, const uint64_t *most)
{
    uint64_t *sorted = gr_malloc((n + 1) * sizeof(*sorted)), least = most_live(v, order, n) / 100 + 1;
    uint32_t n_sorted = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!i || by_resource(&order[i - 1], &order[i], (void *)(uintptr_t)v))
            sorted[n_sorted++] = most[order[i]];
    if (n_sorted) qsort(sorted, n_sorted, sizeof(*sorted), descending);
    if (n_sorted > MAX_SERIES) least = GR_MAX(least, sorted[MAX_SERIES] + 1);
    free(sorted);
    return least;
}

/* small [n_ledger]: whether the resource of an entry is too small. */
static void find_small(gr_view *v, bool *small)
{
    uint32_t n = v->plan->n_ledger, host = 0;
    uint32_t *order = gr_malloc((n + 1) * sizeof(*order));
    uint64_t *most = gr_malloc((n + 1) * sizeof(*most));
    for (uint32_t e = 0; e < n; e++) order[e] = e;
    qsort_r(order, n, sizeof(*order), by_resource, v);
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !by_resource(&order[i], &order[end], v);) end++;
        uint64_t m = most_live(v, order + i, end - i);
        for (uint32_t k = i; k < end; k++) most[order[k]] = m;
        host += v->plan->ledger[order[i]].place == GR_DEVICE ? end - i : 0;
    }
    uint64_t least[2] = {least_most(v, order, host, most), least_most(v, order + host, n - host, most)};
    for (uint32_t e = 0; e < n; e++) small[e] = most[e] < least[v->plan->ledger[e].place != GR_DEVICE];
    free(order);
    free(most);
}

static void find_series_all(gr_view *v)
{
    const gr_plan *p = v->plan;
    bool *small = gr_calloc(p->n_ledger + 1, sizeof(*small));
    v->series = gr_arena_alloc(v->arena, (p->n_ledger + 1) * sizeof(*v->series));
    v->series_of = gr_arena_alloc(v->arena, (p->n_ledger + 1) * sizeof(*v->series_of));
    find_small(v, small);
    sum_entries(v, small);
    free(small);
    sort_series(v);
    paint_series(v);
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static void find_nodes(gr_view *v)
{
    v->nodes = gr_arena_alloc(v->arena, (v->n + 1) * sizeof(*v->nodes));
    for (uint32_t i = 0; i < v->n; i++) {
        const char *node = v->steps[i].node;
        if (!node || (i && v->steps[i - 1].node && !strcmp(node, v->steps[i - 1].node))) continue;
        uint32_t k = 0;
        while (k < v->n_nodes && strcmp(v->nodes[k], node)) k++;
        if (k == v->n_nodes) v->nodes[v->n_nodes++] = node;
    }
}

gr_view *gr_view_new(const gr_plan *p)
{
    return gr_view_of_role(p, 0);
}

gr_view *gr_view_of_role(const gr_plan *p, uint32_t role)
{
    gr_view *v = gr_calloc(1, sizeof(*v));
    v->arena = gr_arena_new();
    const gr_timeline t = gr_timeline_of_role(p, role, v->arena);
    v->all = p;
    v->plan = t.plan;
    v->role = role;
    v->steps = t.steps;
    v->n = t.n;
    v->n_steady = t.n_steady;
    v->ns = t.ns;
    v->steady_ns = t.steady_ns;
    v->parent = t.parent;
    v->depth = t.depth;
    v->begin = t.begin;
    v->end = t.end;
    find_nodes(v);
    find_series_all(v);
    return v;
}

void gr_view_free(gr_view *v)
{
    if (!v) return;
    gr_arena_free(v->arena);
    free(v);
}

uint64_t gr_view_most(const gr_view *v, gr_place place)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; k < v->n_series; k++)
            sum += v->series[k].place == place ? v->series[k].bytes[i] : 0;
        most = GR_MAX(most, sum);
    }
    return most;
}

/* ---- nodes -------------------------------------------------------------------------------------------- */

static bool serves(const gr_step *s, const char *node)
{
    return s->node && !strcmp(s->node, node);
}

uint64_t gr_view_node_ns(const gr_view *v, const char *node)
{
    uint64_t ns = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        const gr_step *s = &v->steps[i];
        bool crosses = s->kind == GR_STEP_SEND || s->kind == GR_STEP_RECV;
        if (!serves(s, node) || !gr_step_is_task(s->kind) || crosses) continue;
        ns += v->end[i] - v->begin[i];
        if (s->kind == GR_STEP_LOOP) i = s->body_last;
    }
    return ns;
}

static bool *used_by(const gr_view *v, const char *node)
{
    bool *used = gr_calloc(v->plan->n_ledger + 1, sizeof(*used));
    for (uint32_t i = 0; i < v->n; i++) {
        const gr_step *s = &v->steps[i];
        if (!serves(s, node)) continue;
        for (uint32_t k = 0; k < s->n_reads; k++) used[s->reads[k]] = true;
        for (uint32_t k = 0; k < s->n_writes; k++) used[s->writes[k]] = true;
    }
    return used;
}

/* The step of a node at which what its tasks use takes most of the device; GR_NONE: it has no steps. */
static uint32_t fullest_step(const gr_view *v, const char *node, const bool *used)
{
    uint64_t most = 0;
    uint32_t fullest = GR_NONE;
    uint64_t *live = gr_calloc(v->n + 1, sizeof(*live));
    for (uint32_t e = 0; e < v->plan->n_ledger; e++)
        for (uint32_t i = 0; used[e] && v->plan->ledger[e].place == GR_DEVICE && i < v->n; i++)
            if (gr_entry_live(&v->plan->ledger[e], i)) live[i] += v->plan->ledger[e].bytes;
    for (uint32_t i = 0; i < v->n; i++) {
        if (!serves(&v->steps[i], node) || (fullest != GR_NONE && live[i] <= most)) continue;
        most = live[i];
        fullest = i;
    }
    free(live);
    return fullest;
}

void gr_view_node_holds(const gr_view *v, const char *node, uint64_t *bytes)
{
    bool *used = used_by(v, node);
    uint32_t at = fullest_step(v, node, used);
    for (uint32_t e = 0; e < v->plan->n_ledger && at != GR_NONE; e++)
        if (used[e] && gr_entry_live(&v->plan->ledger[e], at))
            bytes[v->series_of[e]] += v->plan->ledger[e].bytes;
    free(used);
}

uint64_t gr_view_columns(const gr_view *v, const char *from, const char *to, gr_str *out)
{
    bool *used = used_by(v, to);
    size_t len = strlen(from), was = out->len;
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < v->plan->n_ledger; e++) {
        const gr_entry *x = &v->plan->ledger[e];
        bool of = !strncmp(x->what, from, len) && (x->what[len] == '.' || !x->what[len]);
        if (!used[e] || !of || x->category != GR_CAT_COLUMNS) continue;
        gr_str_printf(out, "%s%s", out->len > was ? ", " : "", x->what[len] ? x->what + len + 1 : x->what);
        bytes += x->bytes;
    }
    free(used);
    return bytes;
}

/* ---- texts -------------------------------------------------------------------------------------------- */

uint32_t gr_transitions(const gr_path *path, uint64_t *bytes)
{
    uint32_t n = 0;
    *bytes = 0;
    for (uint32_t i = 0; i < path->n; i++) {
        if (gr_step_is_task(path->steps[i].kind)) continue;
        *bytes += path->steps[i].bytes;
        n++;
    }
    return n;
}

void gr_xml_put(gr_str *out, const char *text)
{
    for (; *text; text++) switch (*text) {
        case '&':
            gr_str_puts(out, "&amp;");
            break;
        case '<':
            gr_str_puts(out, "&lt;");
            break;
        case '>':
            gr_str_puts(out, "&gt;");
            break;
        case '"':
            gr_str_puts(out, "&quot;");
            break;
        default:
            gr_str_putc(out, *text);
        }
}

void gr_csv_put(gr_str *out, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        gr_str_puts(out, text);
        return;
    }
    gr_str_putc(out, '"');
    for (; *text; text++) {
        if (*text == '"') gr_str_putc(out, '"');
        gr_str_putc(out, *text);
    }
    gr_str_putc(out, '"');
}
