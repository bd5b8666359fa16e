/* tests/unit/mutants.h: random changes to plans, and whether a changed plan breaks in some run. */
#ifndef GR_TESTS_MUTANTS_H
#define GR_TESTS_MUTANTS_H

#include "tests/unit/plan_edit.h"
#include "tests/unit/random_tasks.h"
#include "tests/unit/simulate.h"
#include "tests/unit/synthetic.h"

/* The changes that `mutate` makes. */
enum { MUTATIONS = 9 };
static const char *const mutations[MUTATIONS] = {
    "step taken away",   "step doubled",   "two steps changed over", "step and the next changed over",
    "memory moved",      "wait forgotten", "wait for another step",  "life changed",
    "another copy named"};

/* One random change, and which it is. Returns false where it changed nothing. */
static inline bool mutate_as(gr_plan *p, draw *d, unsigned *which)
{
    static const gr_path_id ids[] = {GR_PATH_STEADY,   GR_PATH_STEADY, GR_PATH_STEADY,     GR_PATH_STEADY,
                                     GR_PATH_VALIDATE, GR_PATH_INIT,   GR_PATH_CHECKPOINT, GR_PATH_FINAL};
    gr_path_id id = ids[pick_below(d, GR_LEN(ids))];
    gr_path *path = &p->paths[id];
    *which = 0;
    if (path->n < 2) return false;
    uint32_t i = pick_below(d, path->n), j = pick_below(d, path->n);
    gr_step *s = &path->steps[i];
    gr_entry *e = &p->ledger[pick_below(d, p->n_ledger)];
    switch (*which = pick_below(d, MUTATIONS)) {
    case 0:
        delete_step(p, id, i);
        return true;
    case 1:
        double_step(p, id, i);
        return true;
    case 2:
        swap_steps(p, id, i, j);
        return i != j;
    case 3: /* shift */
        if (i + 1 >= path->n) return false;
        swap_steps(p, id, i, i + 1);
        return true;
    case 4:
        e->offset = pick_below(d, 2) ? e->offset + GR_ALIGN
                                     : GR_ALIGN * pick_below(d, (uint32_t)(p->arena_bytes / GR_ALIGN));
        return true;
    case 5: /* forget a wait */
        for (uint32_t k = 0; k < path->n && !s->n_after; k++) s = &path->steps[(i + k) % path->n];
        if (!s->n_after) return false;
        s->after[pick_below(d, s->n_after)] = s->after[s->n_after - 1];
        s->n_after--;
        return true;
    case 6: /* wait for another step */
        if (!s->n_after) return false;
        s->after[pick_below(d, s->n_after)] = j;
        return true;
    case 7:
        if (pick_below(d, 2))
            e->first = pick_below(d, gr_plan_steps(p));
        else
            e->last = pick_below(d, gr_plan_steps(p));
        return true;
    default: /* another copy */
        if (s->n_reads + s->n_writes == 0) return false;
        uint32_t k = pick_below(d, s->n_reads + s->n_writes), other = pick_below(d, p->n_ledger);
        uint32_t *id_of = k < s->n_reads ? &s->reads[k] : &s->writes[k - s->n_reads];
        if (*id_of == other) return false;
        *id_of = other;
        return true;
    }
}

static inline bool mutate(gr_plan *p, draw *d)
{
    unsigned which;
    return mutate_as(p, d, &which);
}

/* Whether some interleaving of the mutant goes wrong; only for mutants whose indices make sense. Of the runs
 * one leaves out all optional nodes, and some leave out one. */
static inline const char *breaks(const gr_plan *p, const gr_tasks *g, uint64_t seed, char what[128])
{
    for (uint64_t r = 0; r < 12; r++) {
        const char *one = r >= 8 ? g->task[(seed * 31 + r * 7) % g->n_tasks].node : NULL;
        for (uint32_t w = 0; w < g->n_tasks && one; w++)
            if (!strcmp(g->task[w].node, one) && !g->task[w].optional) one = NULL;
        if (r >= 8 && !one) continue;
        const char *why = simulate(p, g, seed + r, one, r == 3, what);
        if (why) return why;
    }
    return NULL;
}

/* Whether a step has what the simulation takes of one of its kind: a copy's two sides, or the uses of a task,
 * in their number and order. */
static inline bool can_simulate_step(const gr_plan *p, const gr_tasks *g, const gr_step *s)
{
    const bool copy = s->kind == GR_STEP_LOAD || s->kind == GR_STEP_OFFLOAD,
               makes = s->kind == GR_STEP_RESTORE || s->kind == GR_STEP_RESUME || s->kind == GR_STEP_RELEASE;
    uint32_t reads = 0, writes = 0, w = 0;
    if (copy)
        return s->n_reads && s->n_writes && p->ledger[s->reads[0]].bytes == p->ledger[s->writes[0]].bytes;
    if (makes) return s->n_writes;
    if (s->kind == GR_STEP_SAVE) return s->n_reads;
    while (w < g->n_tasks && strcmp(g->task[w].what, s->what)) w++;
    if (w == g->n_tasks) return false;
    for (uint32_t u = 0; u < g->task[w].uses.n; u++) {
        const gr_use *use = &g->task[w].uses.list[u];
        reads += use->object != GR_NONE && use->mode & GR_READ;
        writes += use->object != GR_NONE && use->mode & GR_WRITE;
    }
    return reads == s->n_reads && writes == s->n_writes;
}

/* The simulation needs reads and writes in the number and size of the uses; the verifier needs nothing. */
static inline bool can_simulate(const gr_plan *p, const gr_tasks *g)
{
    for (int id = 0; id < GR_N_PATHS; id++)
        for (uint32_t i = 0; i < p->paths[id].n; i++) {
            const gr_step *s = &p->paths[id].steps[i];
            if (s->body_last != GR_NONE && (s->body_last <= i || s->body_last >= p->paths[id].n))
                return false;
            if (!can_simulate_step(p, g, s)) return false;
            if (s->kind == GR_STEP_LOOP)
                for (uint32_t j = i + 1; j <= s->body_last; j++)
                    if (p->paths[id].steps[j].body_last != GR_NONE &&
                        p->paths[id].steps[j].body_last > s->body_last)
                        return false;
            for (uint32_t k = 0; k < s->n_after; k++)
                if (s->after[k] >= p->paths[id].n) return false;
        }
    return true;
}

/* After the random programs some like GRPO, whose rollout is the peak, so that loads run under the passes. */
static inline gr_tasks *build_any(void *user, const uint32_t *level)
{
    uint64_t seed = *(const uint64_t *)user;
    shape s = SMALL;
    if (seed <= 60) return build_random(user, level);
    s.layers = 2, s.micro = 2, s.mini = 1 + seed % 2, s.decode = 2, s.kv_bytes = 12 << 20;
    s.optional_ref = seed % 3 == 0;
    return build_shape(&s, level);
}

#endif
