/* scheduler/search/levels.c: vectors of levels, their programs, and what of them can never fit. */
#include "scheduler/search/schedule_parts.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum {
    MOST_MADE = 32,      /* programs kept at a time */
    MOST_TASKS = 100000, /* and all of their tasks, where there are more than two */
    MAKING = 40,         /* what it takes to make one, a task */
    A_WAY_DOWN = 20000000
};

bool gr_keeps_bits(const gr_knob *k)
{
    return k->bits == GR_BITS_SAME;
}

bool gr_is_spare(const gr_knob *k)
{
    return k->bits == GR_BITS_SPARE;
}

bool gr_costs_bits(const gr_knob *k)
{
    return k->bits == GR_BITS_DIFFER;
}

bool gr_next_levels(const gr_tasks_source *src, uint32_t *level, gr_knob_sort *such)
{
    for (size_t k = src->n_knobs; k-- > 0;) {
        if (!such(&src->knobs[k])) continue;
        if (++level[k] < src->knobs[k].n_levels) return true;
        level[k] = 0;
    }
    return false;
}

void gr_set_last_levels(const gr_tasks_source *src, uint32_t *level, gr_knob_sort *such)
{
    for (size_t k = 0; k < src->n_knobs; k++)
        if (such(&src->knobs[k])) level[k] = src->knobs[k].n_levels - 1;
}

void gr_allow(gr_schedule_search *s, uint64_t work)
{
    const uint64_t now = s->transfers.work;
    s->until = now + GR_MIN(work, s->limit - GR_MIN(s->limit, now));
}

void gr_allow_down(gr_schedule_search *s, uint64_t work)
{
    gr_allow(s, work);
    if (s->o->hurry > 1) s->until = GR_MAX(s->until, s->transfers.work + A_WAY_DOWN);
}

/* ---- sets ---------------------------------------------------------------------------------------------- */

static void drop_program(gr_schedule_search *s, gr_level_set *set)
{
    gr_analysis_free(set->analysis);
    gr_tasks_free(set->tasks);
    set->analysis = NULL;
    set->tasks = NULL;
    s->n_made--;
}

/* The program that was not asked for longest. */
static void drop_oldest(gr_schedule_search *s)
{
    gr_level_set *oldest = NULL;
    for (size_t i = 0; i < s->n_sets; i++)
        if (s->sets[i].analysis && (!oldest || s->sets[i].asked < oldest->asked)) oldest = &s->sets[i];
    drop_program(s, oldest);
}

/* What is carried over from one program to another is asked for more often than programs are kept. */
static const gr_group *keep_groups(gr_schedule_search *s, const gr_analysis *f)
{
    gr_group *own = gr_arena_alloc(s->arena, (f->n_groups + 1) * sizeof(*own));
    memcpy(own, f->groups, f->n_groups * sizeof(*own));
    for (uint32_t g = 0; g < f->n_groups; g++) {
        own[g].name = gr_arena_strdup(s->arena, own[g].name);
        own[g].model = own[g].model ? gr_arena_strdup(s->arena, own[g].model) : NULL;
    }
    return own;
}

const gr_level_set *gr_level_set_take(gr_schedule_search *s, uint32_t at)
{
    gr_level_set *set = &s->sets[at];
    set->asked = s->now++;
    if (set->tasks) return set;
    if (s->n_made == MOST_MADE) drop_oldest(s);
    set->tasks = s->src->build(s->src->user, set->level);
    while (s->n_made > 2 && (s->n_made + 1) * set->tasks->n_tasks > MOST_TASKS) drop_oldest(s);
    s->transfers.work += MAKING * set->tasks->n_tasks;
    set->analysis = gr_analysis_new(set->tasks, &s->o->hardware);
    s->n_made++;
    set->n_tasks = (uint32_t)set->tasks->n_tasks;
    set->n_groups = set->analysis->n_groups;
    set->spare_bytes = set->tasks->spare_bytes;
    set->analysis->disk = (gr_disk_room){s->o->disk_budget_bytes, gr_host_room(s, at)};
    if (!set->resources) set->resources = keep_groups(s, set->analysis);
    set->tenant = gr_tenant_of(set->tasks, 0);
    return set;
}

uint32_t gr_level_set_at(gr_schedule_search *s, const uint32_t *level)
{
    const size_t bytes = s->src->n_knobs * sizeof(*level);
    const uint64_t hash = XXH3_64bits(level, bytes);
    for (size_t i = 0; i < s->n_sets; i++)
        if (s->sets[i].hash == hash && !memcmp(s->sets[i].level, level, bytes)) return (uint32_t)i;
    gr_level_set set = {.level = gr_arena_alloc(s->arena, bytes + 1), .hash = hash};
    if (bytes) memcpy(set.level, level, bytes);
    GR_PUSH(s->sets, s->n_sets, s->cap_sets, set);
    gr_level_set_take(s, (uint32_t)s->n_sets - 1);
    return (uint32_t)s->n_sets - 1;
}

void gr_level_sets_free(gr_schedule_search *s)
{
    for (size_t i = 0; i < s->n_sets; i++)
        if (s->sets[i].tasks) drop_program(s, &s->sets[i]);
    free(s->sets);
}

gr_transfers *gr_transfers_for(gr_schedule_search *s, uint32_t set)
{
    if (s->laid != set) gr_transfers_release(&s->transfers); /* another program: other array sizes */
    s->laid = set;
    s->placed = (gr_price_key){0, 0};
    return &s->transfers;
}

/* ---- budgets ------------------------------------------------------------------------------------------- */

gr_policy gr_policy_of(const gr_schedule_options *o, const gr_group *g)
{
    if (g->span == GR_SPAN_SPILL && !o->spills) return GR_POLICY_KEEP;
    for (size_t i = 0; i < o->n_rules; i++)
        if (g->model && !strcmp(o->rules[i].model, g->model) && o->rules[i].category == g->category)
            return o->rules[i].policy;
    return o->policy;
}

uint64_t gr_arena_budget(const gr_schedule_search *s, uint32_t set, uint64_t host_bytes)
{
    gr_tenant tenant = s->sets[set].tenant;
    tenant.host_bytes = host_bytes;
    const uint64_t over = gr_hardware_overhead(&s->o->hardware, &tenant);
    return s->o->budget_bytes > over ? s->o->budget_bytes - over : 0;
}

uint64_t gr_host_room(const gr_schedule_search *s, uint32_t set)
{
    const uint64_t spare = s->sets[set].spare_bytes, all = s->o->host_budget_bytes;
    return all > spare ? all - spare : 0;
}

/* Whether it is on the device from its first use to its last in every residency. */
static bool is_always_there(const gr_schedule_search *s, const gr_analysis *f, uint32_t o)
{
    if (f->g->objects[o].span != GR_SPAN_SPILL) return f->g->objects[o].span == GR_SPAN_TEMP;
    return f->group[o] == GR_NONE || gr_policy_of(s->o, &f->groups[f->group[o]]);
}

/* What no residency of a program goes below: at each work the temporary objects that are live, and the others
 * that it uses, if it is not done on the host; and all the time what a policy keeps. */
static uint64_t least_live(const gr_schedule_search *s, const gr_analysis *f)
{
    const gr_tasks *g = f->g;
    uint64_t *delta = gr_calloc(g->n_tasks + 1, sizeof(*delta)), kept = 0, live = 0, most = 0;
    bool *keep = gr_calloc(f->n_groups + 1, sizeof(*keep));
    for (uint32_t i = 0; i < f->n_groups; i++) /* weights of a step on the host are not there all the time */
        keep[i] = gr_policy_of(s->o, &f->groups[i]) == GR_POLICY_KEEP && !f->n_movable;
    for (uint32_t o = 0; o < g->n_objects; o++) {
        const gr_object *ob = &g->objects[o];
        if (ob->place == GR_HOST || f->begin[o] == f->begin[o + 1]) continue;
        const bool there = is_always_there(s, f, o);
        if (!there && f->group[o] != GR_NONE && keep[f->group[o]]) kept += ob->bytes;
        if (!there) continue;
        uint32_t last = f->last[o];
        if (last != GR_NONE && g->task[last].loop.body_last != GR_NONE) last = g->task[last].loop.body_last;
        delta[f->first[o]] += ob->bytes;
        delta[last == GR_NONE ? g->n_tasks : last + 1] -= ob->bytes;
    }
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        uint64_t used = 0;
        live += delta[w];
        for (uint32_t u = 0; u < g->task[w].uses.n; u++) {
            uint32_t o = g->task[w].uses.list[u].object;
            if (o == GR_NONE || g->objects[o].place == GR_HOST || is_always_there(s, f, o) ||
                g->task[w].uses.host_with != GR_NONE)
                continue;
            used += f->group[o] != GR_NONE && keep[f->group[o]] ? 0 : g->objects[o].bytes;
        }
        most = GR_MAX(most, live + used);
    }
    free(delta);
    free(keep);
    return most + kept;
}

/* At each work: what its place must have of what is live then, wherever the rest is. */
typedef struct least_bytes {
    uint64_t host, both; /* most in the host pool; most in both places together */
} least_bytes;

/* What lives on lies on the device or in the host pool (or on a disk); so does what a resource holds between
 * its first use and its last. */
static least_bytes least_anywhere(const gr_analysis *f)
{
    const gr_tasks *g = f->g;
    int64_t *delta[2], host = 0, both = 0;
    least_bytes least = {0, 0};
    for (int i = 0; i < 2; i++) delta[i] = gr_calloc(g->n_tasks + 2, sizeof(**delta));
    for (uint32_t o = 0; o < g->n_objects; o++) {
        const gr_object *ob = &g->objects[o];
        const int64_t bytes = (int64_t)ob->bytes;
        const bool keep = ob->span == GR_SPAN_KEEP;
        if (!keep && f->begin[o] == f->begin[o + 1]) continue;
        uint32_t first = keep ? 0 : f->first[o], last = keep ? GR_NONE : f->last[o];
        if (last != GR_NONE && g->task[last].loop.body_last != GR_NONE) last = g->task[last].loop.body_last;
        const uint32_t path = !keep && first < gr_tasks_steady(g) ? gr_tasks_steady(g) : (uint32_t)g->n_tasks;
        const uint32_t end = last == GR_NONE ? path : GR_MAX(last, first) + 1;
        for (int i = ob->place == GR_HOST ? 0 : 1; i < 2; i++) {
            delta[i][first] += bytes;
            delta[i][end] -= bytes;
        }
    }
    for (uint32_t w = 0; w < g->n_tasks; w++) {
        host += delta[0][w];
        both += delta[1][w];
        least.host = GR_MAX(least.host, (uint64_t)host);
        least.both = GR_MAX(least.both, (uint64_t)both);
    }
    for (int i = 0; i < 2; i++) free(delta[i]);
    return least;
}

bool gr_cannot_fit(gr_schedule_search *s, uint32_t set)
{
    const uint64_t arena = gr_arena_budget(s, set, 0), host = gr_host_room(s, set),
                   disk = s->o->disk_budget_bytes;
    const gr_level_set *p = gr_level_set_take(s, set);
    const least_bytes least = least_anywhere(p->analysis);
    if (least.host > host) return true;
    if (host < UINT64_MAX - arena && least.both > arena + host && least.both - arena - host > disk)
        return true;
    return least_live(s, p->analysis) > arena;
}
