/* scheduler/report/diff.c: two plans side by side. */
#include "scheduler/report/diff.h"

#include "scheduler/report/view.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINES 30 /* of the graph that are shown of each file */

/* Counts by name, for both plans. */
typedef enum state { MOVED, FREED, RESIDENT, N_STATES } state;

typedef struct tally {
    char *name;
    uint64_t n[2][N_STATES], bytes[2], ns[2];
} tally;

typedef struct tallies {
    tally *list;
    size_t n, cap;
} tallies;

static tally *find(tallies *t, char *name)
{
    size_t i = 0;
    while (i < t->n && strcmp(t->list[i].name, name)) i++;
    if (i < t->n) {
        free(name);
    } else {
        tally added = {.name = name};
        GR_PUSH(t->list, t->n, t->cap, added);
    }
    return &t->list[i];
}

static void release(tallies *t)
{
    for (size_t i = 0; i < t->n; i++) free(t->list[i].name);
    free(t->list);
}

static const gr_path *steady(const gr_plan *p)
{
    return &p->paths[GR_PATH_STEADY];
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static void put_change(gr_str *out, const char *name, uint64_t a, uint64_t b, const char *at_a,
                       const char *at_b)
{
    char x[32], y[32], z[32];
    if (a == b && !strcmp(at_a, at_b)) return;
    gr_str_printf(out, "%-12s%s%s -> %s%s", name, gr_bytes_format(a, x), at_a, gr_bytes_format(b, y), at_b);
    if (a != b)
        gr_str_printf(out, ", %s %s", gr_bytes_format(a > b ? a - b : b - a, z), a > b ? "less" : "more");
    gr_str_putc(out, '\n');
}

static void put_times(gr_str *out, const char *name, uint64_t a, uint64_t b)
{
    gr_str_printf(out, "%-12s", name);
    gr_time_put(out, a);
    gr_str_puts(out, " -> ");
    gr_time_put(out, b);
    if (a && b) gr_str_printf(out, ", %.3g times the time", (double)b / (double)a);
    gr_str_putc(out, '\n');
}

static char *peak_place(const gr_plan *p)
{
    const gr_path *path = steady(p);
    return path->n ? gr_printf(" in %s", gr_plan_step(p, p->peak_step)->what) : gr_strdup("");
}

static void put_text(gr_str *out, const char *name, const char *a, const char *b)
{
    if (strcmp(a, b)) gr_str_printf(out, "%-12s%s -> %s\n", name, a, b);
}

/* The role with the highest peak. */
static const gr_plan *fullest(const gr_plan *p)
{
    const gr_plan *most = p;
    for (uint32_t c = 0; c < p->n_more; c++)
        if (p->more[c]->peak_bytes > most->peak_bytes) most = p->more[c];
    return most;
}

/* "0-1 train, 2-3 rollout" */
static char *roles_of(const gr_plan *p)
{
    gr_str s = {0};
    for (uint32_t c = 0; c <= p->n_more; c++) {
        const gr_plan *k = gr_plan_role(p, c);
        gr_str_printf(&s, "%s%s%s%s", c ? "; " : "", k->ranks, *k->pools ? " " : "", k->pools);
    }
    return s.text;
}

static void put_whole(const gr_plan *a, const gr_plan *b, gr_str *out)
{
    const gr_plan *x = fullest(a), *y = fullest(b);
    char *at_a = peak_place(x), *at_b = peak_place(y), *ranks_a = roles_of(a), *ranks_b = roles_of(b);
    put_text(out, "graph", a->graph, b->graph);
    put_text(out, "hardware", a->hardware, b->hardware);
    put_text(out, "ranks", ranks_a, ranks_b);
    put_text(out, "fits", gr_plan_fits(a) ? "yes" : "no", gr_plan_fits(b) ? "yes" : "no");
    put_change(out, "budget", a->budget_bytes, b->budget_bytes, "", "");
    put_change(out, "peak", x->peak_bytes, y->peak_bytes, at_a, at_b);
    put_change(out, "host pool", x->host_bytes, y->host_bytes, "", "");
    put_change(out, "disk", x->disk_bytes, y->disk_bytes, "", "");
    free(ranks_a);
    free(ranks_b);
    if (a->ns != b->ns) put_times(out, "predicted", a->ns, b->ns);
    if (strcmp(a->numerics, b->numerics)) gr_str_puts(out, "numerics    results differ in their bits\n");
    free(at_a);
    free(at_b);
}

/* ---- settings and graph ------------------------------------------------------------------------------- */

static const gr_setting *setting_of(const gr_plan *p, const gr_setting *like)
{
    for (uint32_t i = 0; i < p->n_settings; i++)
        if (!strcmp(p->settings[i].node, like->node) && !strcmp(p->settings[i].name, like->name))
            return &p->settings[i];
    return NULL;
}

static void put_setting(gr_str *out, const gr_setting *x, const gr_setting *y)
{
    const gr_setting *s = x ? x : y;
    if (x && y && x->value == y->value) return;
    gr_str_printf(out, "  %s: %s ", s->node, s->name);
    gr_str_printf(out, x ? "%" PRIu64 : "unset", x ? x->value : 0);
    gr_str_printf(out, y ? " -> %" PRIu64 "\n" : " -> unset\n", y ? y->value : 0);
}

static void put_settings(const gr_plan *a, const gr_plan *b, gr_str *out)
{
    for (uint32_t i = 0; i < a->n_settings; i++)
        put_setting(out, &a->settings[i], setting_of(b, &a->settings[i]));
    for (uint32_t i = 0; i < b->n_settings; i++)
        if (!setting_of(a, &b->settings[i])) put_setting(out, NULL, &b->settings[i]);
}

static bool has_line(const char *text, const char *line, size_t len)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n == len && !memcmp(text, line, len)) return true;
        text += n + (text[n] != 0);
    }
    return false;
}

/* Lines of one text that the other has nowhere. */
static void put_lines(const char *text, const char *other, char mark, gr_str *out)
{
    unsigned n = 0;
    while (*text) {
        size_t len = strcspn(text, "\n");
        if (len && !has_line(other, text, len) && n++ < MAX_LINES)
            gr_str_printf(out, "  %c %.*s\n", mark, (int)len, text);
        text += len + (text[len] != 0);
    }
    if (n > MAX_LINES) gr_str_printf(out, "  %c and %u more\n", mark, n - MAX_LINES);
}

static void put_graphs(const gr_plan *a, const gr_plan *b, gr_str *out)
{
    put_lines(a->graph_text, b->graph_text, '-', out);
    put_lines(b->graph_text, a->graph_text, '+', out);
}

/* ---- nodes, resources, transitions -------------------------------------------------------------------- */

/* A transfer between roles has the node's name on both, but the node runs on one. */
static bool runs(const gr_step *s)
{
    return s->kind != GR_STEP_SEND && s->kind != GR_STEP_RECV;
}

static void add_nodes(const gr_plan *p, int side, tallies *t)
{
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_view *v = gr_view_of_role(p, c);
        for (uint32_t i = 0; i < v->n; i++) {
            if (!v->steps[i].node || !runs(&v->steps[i])) continue;
            tally *of = find(t, gr_strdup(v->steps[i].node));
            if (!of->n[side][RESIDENT]++) of->ns[side] = gr_view_node_ns(v, v->steps[i].node);
        }
        gr_view_free(v);
    }
}

/* Nodes whose time changes by a hundredth of the iteration or more. */
static void put_nodes(const gr_plan *a, const gr_plan *b, gr_str *out)
{
    tallies t = {0};
    add_nodes(a, 0, &t);
    add_nodes(b, 1, &t);
    double least = (double)GR_MIN(a->ns, b->ns) / 100;
    for (size_t i = 0; i < t.n; i++) {
        double change = (double)t.list[i].ns[1] - (double)t.list[i].ns[0];
        if (fabs(change) < least || !change) continue;
        char *name = gr_printf("  %s: ", t.list[i].name);
        put_times(out, name, t.list[i].ns[0], t.list[i].ns[1]);
        free(name);
    }
    release(&t);
}

/* How each entry is on the device: N_STATES for one that is temporary or on the host. */
static state *find_states(const gr_plan *p)
{
    const gr_path *path = steady(p);
    state *of = gr_malloc((p->n_ledger + 1) * sizeof(*of));
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        const gr_entry *x = &p->ledger[e];
        bool always = x->first == 0 && (x->last + 1 == path->n || x->last + 1 == gr_plan_steps(p));
        of[e] = x->place == GR_DEVICE && always ? RESIDENT : N_STATES;
    }
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *s = &path->steps[i];
        if (s->kind == GR_STEP_LOAD && s->n_writes) of[s->writes[0]] = MOVED;
        if (s->kind == GR_STEP_OFFLOAD && s->n_reads) of[s->reads[0]] = MOVED;
        bool freed = (s->kind == GR_STEP_RESUME || s->kind == GR_STEP_RELEASE) && s->n_writes;
        if (freed && of[s->writes[0]] != MOVED) of[s->writes[0]] = FREED;
    }
    return of;
}

static int by_name(const void *a, const void *b, void *user)
{
    const gr_plan *p = user;
    return strcmp(p->ledger[*(const uint32_t *)a].what, p->ledger[*(const uint32_t *)b].what);
}

/* Count objects, each once, under their resource: an object that comes and goes has an entry each time. */
static void add_resources_of(const gr_plan *p, int side, tallies *t)
{
    void *user = (void *)(uintptr_t)p; /* qsort_r has no const */
    state *of = find_states(p);
    uint32_t *order = gr_malloc((p->n_ledger + 1) * sizeof(*order));
    for (uint32_t e = 0; e < p->n_ledger; e++) order[e] = e;
    qsort_r(order, p->n_ledger, sizeof(*order), by_name, user);
    for (uint32_t i = 0, last; i < p->n_ledger; i = last + 1) {
        state least = of[order[i]];
        for (last = i; last + 1 < p->n_ledger && !by_name(&order[i], &order[last + 1], user); last++)
            least = GR_MIN(least, of[order[last + 1]]);
        if (least == N_STATES || p->ledger[order[i]].category == GR_CAT_COLUMNS) continue;
        tally *sum = find(t, gr_resource_name(&p->ledger[order[i]]));
        sum->n[side][least]++;
    }
    free(order);
    free(of);
}

static void add_resources(const gr_plan *p, int side, tallies *t)
{
    for (uint32_t c = 0; c <= p->n_more; c++) add_resources_of(gr_plan_role(p, c), side, t);
}

static void put_states(gr_str *out, const uint64_t *n)
{
    static const char *const words[N_STATES] = {"loaded and offloaded", "freed in between", "resident"};
    bool some = false;
    for (int s = N_STATES - 1; s >= 0; s--) {
        if (!n[s]) continue;
        gr_str_printf(out, "%s%" PRIu64 " %s", some ? ", " : "", n[s], words[s]);
        some = true;
    }
    if (!some) gr_str_puts(out, "none");
}

static void put_resources(const gr_plan *a, const gr_plan *b, gr_str *out)
{
    tallies t = {0};
    add_resources(a, 0, &t);
    add_resources(b, 1, &t);
    for (size_t i = 0; i < t.n; i++) {
        if (!memcmp(t.list[i].n[0], t.list[i].n[1], sizeof(t.list[i].n[0]))) continue;
        gr_str_printf(out, "  %s: ", t.list[i].name);
        put_states(out, t.list[i].n[0]);
        gr_str_puts(out, " -> ");
        put_states(out, t.list[i].n[1]);
        gr_str_putc(out, '\n');
    }
    release(&t);
}

static void add_transitions_of(const gr_plan *p, int side, tallies *t)
{
    const gr_path *path = steady(p);
    for (uint32_t i = 0; i < path->n; i++) {
        const gr_step *s = &path->steps[i];
        bool crosses = s->kind == GR_STEP_SEND || s->kind == GR_STEP_RECV;
        if ((gr_step_is_task(s->kind) && !crosses) || !(s->n_reads + s->n_writes)) continue;
        char *resource = gr_resource_name(&p->ledger[s->n_writes ? s->writes[0] : s->reads[0]]);
        tally *sum = find(t, gr_printf("%s %s", gr_step_kind_str(s->kind), resource));
        free(resource);
        sum->n[side][MOVED]++;
        sum->bytes[side] += s->bytes;
    }
}

static void add_transitions(const gr_plan *p, int side, tallies *t)
{
    for (uint32_t c = 0; c <= p->n_more; c++) add_transitions_of(gr_plan_role(p, c), side, t);
}

static void put_count(gr_str *out, uint64_t n, uint64_t bytes)
{
    char buf[32];
    if (!n) gr_str_puts(out, "none");
    if (n) gr_str_printf(out, "%" PRIu64 " step%s", n, n == 1 ? "" : "s");
    if (bytes) gr_str_printf(out, " of %s", gr_bytes_format(bytes, buf));
}

static void put_transitions(const gr_plan *a, const gr_plan *b, gr_str *out)
{
    tallies t = {0};
    add_transitions(a, 0, &t);
    add_transitions(b, 1, &t);
    for (size_t i = 0; i < t.n; i++) {
        const tally *x = &t.list[i];
        if (x->n[0][MOVED] == x->n[1][MOVED] && x->bytes[0] == x->bytes[1]) continue;
        gr_str_printf(out, "  %s %s: ",
                      !x->n[0][MOVED]   ? "added  "
                      : !x->n[1][MOVED] ? "removed"
                                        : "changed",
                      x->name);
        put_count(out, x->n[0][MOVED], x->bytes[0]);
        gr_str_puts(out, " -> ");
        put_count(out, x->n[1][MOVED], x->bytes[1]);
        gr_str_putc(out, '\n');
    }
    release(&t);
}

/* ---- all ---------------------------------------------------------------------------------------------- */

/* A part under its title, if it says anything. */
static void put_part(gr_str *out, const char *title, gr_str *part)
{
    if (part->len) gr_str_printf(out, "%s\n%s", title, part->text);
    gr_str_release(part);
    *part = (gr_str){0};
}

static bool same_bytes(const gr_plan *a, const gr_plan *b)
{
    gr_str x = {0}, y = {0};
    gr_plan_write_json(a, &x);
    gr_plan_write_json(b, &y);
    bool same = x.len == y.len && !memcmp(x.text, y.text, x.len);
    gr_str_release(&x);
    gr_str_release(&y);
    return same;
}

void gr_plan_diff(const gr_plan *a, const gr_plan *b, gr_str *out)
{
    gr_str part = {0};
    if (same_bytes(a, b)) {
        gr_str_puts(out, "the plans are the same\n");
        return;
    }
    size_t was = out->len;
    put_whole(a, b, out);
    put_nodes(a, b, &part), put_part(out, "time of nodes", &part);
    put_settings(a, b, &part), put_part(out, "settings", &part);
    put_resources(a, b, &part), put_part(out, "resources on the device", &part);
    put_transitions(a, b, &part), put_part(out, "transitions", &part);
    put_graphs(a, b, &part), put_part(out, "graph file", &part);
    if (out->len == was) gr_str_puts(out, "the plans differ only in offsets, order or waits\n");
}
