/* tests/unit/random_tasks.h: small programs of every form, from a seed. */
#ifndef GR_TESTS_RANDOM_PROGRAM_H
#define GR_TESTS_RANDOM_PROGRAM_H

#include "memplan/plan/tasks.h"

#include "tests/unit/test.h"

typedef struct draw {
    uint64_t state;
} draw;

static inline uint32_t pick_below(draw *d, uint32_t n)
{
    d->state = d->state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(d->state >> 33) % n;
}

/* Works of a path use what lives on, and what is its own. */
static inline bool other_path(const gr_tasks *p, uint32_t object, uint32_t n_iteration)
{
    bool validates = p->validate != GR_NONE;
    return p->objects[object].span != GR_SPAN_KEEP && validates != (object >= n_iteration);
}

static inline bool is_state(const gr_tasks *p, uint32_t object)
{
    const gr_object *o = object == GR_NONE ? NULL : &p->objects[object];
    return o && o->place == GR_DEVICE && o->span == GR_SPAN_KEEP && o->category == GR_CAT_OPTIMIZER;
}

/* As of an optimizer's step, the state may stay in the host pool and the work be done there: of temporary
 * objects such a work reads, and it has the state of one bucket. */
static inline void may_be_done_on_host(gr_tasks *p, gr_task *w)
{
    for (uint32_t u = 0; u < w->uses.n && w->lane == GR_LANE_COMPUTE; u++)
        if (is_state(p, w->uses.list[u].object)) w->uses.host_with = w->uses.list[u].object;
    for (uint32_t u = 0; u < w->uses.n && w->uses.host_with != GR_NONE; u++) {
        gr_use *use = &w->uses.list[u];
        if (use->object == GR_NONE || use->object == w->uses.host_with) continue;
        if (gr_span_is_brief(p->objects[use->object].span)) use->mode = GR_READ;
        if (is_state(p, use->object)) use->object = GR_NONE;
    }
}

static inline void random_task(gr_tasks *p, draw *d, uint32_t n_iteration, uint32_t serial)
{
    gr_use uses[5];
    uint32_t n = 1 + pick_below(d, 4), k = 0;
    for (uint32_t i = 0; i < n; i++) {
        gr_use u = {pick_below(d, (uint32_t)p->n_objects), (gr_use_mode)(1 + pick_below(d, 3))};
        bool known = pick_below(d, 12) == 0 || other_path(p, u.object, n_iteration);
        if (known) u.object = GR_NONE;
        for (uint32_t j = 0; j < k && !known; j++) known |= uses[j].object == u.object;
        if (!known || u.object == GR_NONE) uses[k++] = u;
    }
    gr_task *w = gr_tasks_run(p, 0, 0, uses, k, "work.%u", serial);
    w->cost.flops = pick_below(d, 1000000);
    w->cost.bytes = pick_below(d, 100000);
    if (p->n_objects % 2) may_be_done_on_host(p, w);
}

static inline void random_objects(gr_tasks *p, draw *d, const char *prefix, uint32_t n)
{
    static const gr_category kept[] = {GR_CAT_WEIGHTS, GR_CAT_OPTIMIZER};
    static const char *const models[] = {"actor", "ref"};
    for (uint32_t i = 0; i < n; i++) {
        gr_span span = (gr_span)pick_below(d, 3);
        gr_category c = span == GR_SPAN_KEEP      ? kept[pick_below(d, 2)]
                        : span == GR_SPAN_SCRATCH ? (pick_below(d, 2) ? GR_CAT_GRADIENTS : GR_CAT_KV)
                                                  : GR_CAT_COLUMNS;
        char name[32];
        snprintf(name, sizeof(name), "%s.%u", prefix, i);
        gr_place place = pick_below(d, 5) == 0 ? GR_HOST : GR_DEVICE;
        if (span == GR_SPAN_TEMP && place == GR_DEVICE && i % 3 == 0) span = GR_SPAN_SPILL;
        gr_tasks_object(p, &(gr_object){name, c, span, place, GR_ALIGN * (1ULL + pick_below(d, 12)),
                                        gr_span_is_brief(span) ? NULL : models[pick_below(d, 2)], i, 0});
    }
}

/* Draws stand in statements of their own: compilers evaluate arguments in different orders, and the programs
 * are to be the same. */
static inline void random_loop(gr_tasks *p, draw *d, const char *what)
{
    const bool agreed = pick_below(d, 3) == 0;
    gr_tasks_loop(p, 0, 1 + pick_below(d, 3), agreed, what);
}

/* A few works, with loops up to two deep. */
static inline void random_node(gr_tasks *p, draw *d, uint32_t n_iteration, uint32_t *serial)
{
    uint32_t works = 1 + pick_below(d, 5);
    for (uint32_t w = 0; w < works; w++) {
        bool loop = pick_below(d, 4) == 0, inner = loop && pick_below(d, 2);
        char what[32];
        snprintf(what, sizeof(what), "loop.%u", *serial);
        if (loop) {
            random_loop(p, d, what);
            for (uint32_t k = pick_below(d, 3); k-- > 0;) random_task(p, d, n_iteration, (*serial)++);
        }
        snprintf(what, sizeof(what), "inner.%u", *serial);
        if (inner) random_loop(p, d, what);
        for (uint32_t k = pick_below(d, 3) + 1; k-- > 0;) random_task(p, d, n_iteration, (*serial)++);
        if (inner) gr_tasks_end(p);
        for (uint32_t k = loop ? pick_below(d, 2) : 0; k-- > 0;) random_task(p, d, n_iteration, (*serial)++);
        if (loop) gr_tasks_end(p);
    }
}

/* Nodes, some on the host lane, some optional; half of the programs have a path validate with a few more. */
static inline gr_tasks *random_tasks(uint64_t seed)
{
    draw d = {seed * 2654435761u + 17};
    gr_tasks *p = gr_tasks_new();
    uint32_t n_iteration = 3 + pick_below(&d, 14), n_nodes = 1 + pick_below(&d, 6), serial = 0;
    random_objects(p, &d, "object", n_iteration);
    uint32_t n_validate = pick_below(&d, 2) ? 1 + pick_below(&d, 3) : 0;
    for (uint32_t n = 0; n < n_nodes + n_validate; n++) {
        char name[32];
        snprintf(name, sizeof(name), "node%u", n);
        if (n == n_nodes) {
            random_objects(p, &d, "validate", 1 + pick_below(&d, 6));
            gr_tasks_validate(p, 1 + pick_below(&d, 20));
        }
        const bool optional = pick_below(&d, 4) == 0;
        gr_tasks_node(p, name, pick_below(&d, 4) ? GR_LANE_COMPUTE : GR_LANE_HOST, optional);
        p->rollout = (seed + n) % 3 == 0;
        random_node(p, &d, n_iteration, &serial);
    }
    return p;
}

static inline gr_tasks *build_random(void *user, const uint32_t *level)
{
    (void)level;
    return random_tasks(*(const uint64_t *)user);
}

#endif
