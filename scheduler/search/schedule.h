/* scheduler/search/schedule.h: from a program to a plan: where every object is at every step, and at what
 * offset.
 *
 * The scheduler proposes residencies, memplan packs and prices them, until the least predicted time under the
 * budget is found. Of the plans that take this long, or a thousandth longer, the one is taken whose loads and
 * offloads move the fewest bytes in an iteration: copies that are predicted to be hidden still take of
 * memory, links and host what the work beside them, other ranks and a less exact prediction want. First the
 * choices that keep the bits are tried (residency, streaming, recomputation, KV size where it does not change
 * bits), then knobs that change them, the cheapest first, which the plan's notes say; none of them is left
 * changed that saves no time. Search limits count candidates and steps laid out, never seconds: the same
 * input gives the same plan.
 */
#ifndef GR_SCHEDULER_SEARCH_SCHEDULE_H
#define GR_SCHEDULER_SEARCH_SCHEDULE_H

#include "memplan/plan/policy.h"
#include "memplan/plan/tasks.h"
#include "scheduler/cost/hardware.h"

/* What a plan with other bits must save at least, as a share of its time, where those of the first levels are
 * preferred. */
#define GR_BITS_WORTH 0.05

/* What a plan may take where the fastest takes `ns`, so that it moves less. */
static inline uint64_t gr_near_ns(uint64_t ns)
{
    return ns + ns / 1000;
}

/* What a model's objects of one category are to do, whatever the policy for all is. */
typedef struct gr_rule {
    const char *model;
    gr_category category;
    gr_policy policy;
} gr_rule;

/* A choice the program depends on. Level 0 is the fastest where everything fits; each next level needs less
 * memory. */
typedef struct gr_knob {
    const char *name; /* "actor: recompute", "rollout: kv blocks", "update: micro-batch tokens" */
    uint32_t n_levels;
    gr_level_bits bits;
} gr_knob;

/* Where programs come from: the graph, for given levels of its knobs. Same levels, same program. */
typedef struct gr_tasks_source {
    void *user;
    const gr_knob *knobs;
    size_t n_knobs;
    gr_tasks *(*build)(void *user, const uint32_t *level);                  /* caller frees */
    void (*describe)(void *user, size_t knob, uint32_t level, gr_str *out); /* "256 blocks" */
} gr_tasks_source;

typedef struct gr_schedule_options {
    gr_hardware hardware;
    gr_policy policy;                         /* of what no rule is about */
    uint64_t budget_bytes, host_budget_bytes; /* of device (overhead included) and host pool */
    uint64_t disk_budget_bytes; /* of a disk, for what these have no room for; 0: there is none */
    const gr_rule *rules;
    size_t n_rules;
    gr_bits_rule bits;
    bool spills;      /* what passes keep for backward may wait in the host pool: where that is faster */
    uint32_t hurry;   /* a search of so small a part of the work, about as good; 0: all of it */
    bool quick;       /* whether anything fits, and a time, which a full search may change: a short search */
    uint32_t parts;   /* of as many that plan together, which share the work; 0: 1 */
    uint64_t *spent;  /* the work of the search is added; NULL: nobody asks */
    uint64_t beat_ns; /* what is slower is of no use, and is given up where that is seen; 0: all is of use */
} gr_schedule_options;

/* The work of a whole search, in steps looked at; about, for packings may take more. */
#define GR_SEARCH_WORK 160000000

/* What is known of a program without a search. */
typedef struct gr_outlook {
    uint64_t ns, bytes; /* all resident, in memory without an end: predicted time; bytes of the device */
    bool hopeless;      /* it is seen that nothing fits; else something may */
} gr_outlook;

gr_outlook gr_schedule_outlook(const gr_tasks_source *src, const gr_schedule_options *o);

/* A note to d: "would fit: WHAT, with a predicted 1.2 s an iteration". */
void gr_note_fits(gr_diag *d, const char *what, uint64_t ns);

/* A note to d: "would fit: --budget 1234 (1.21 KiB)", of what the smallest plans need beyond their budgets.
 */
void gr_note_budgets(gr_diag *d, const gr_schedule_options *o, uint64_t device, uint64_t host);

/* Make a plan. level [n_knobs] receives the levels chosen. The caller fills in graph, graph_text and numerics
 * of *out and frees it. GR_E_NOFIT: nothing fits; *out is then the smallest plan found, fits false, so that
 * it can be shown, and d names the instant, the largest objects alive then, the missing bytes and the nearest
 * changes that would fit; of several parts not the budgets, which are to be enough for all. Where it is given
 * up for beat_ns, too: *out is any plan then, and d is told nothing. */
GR_NODISCARD gr_status gr_schedule(gr_plan **out, uint32_t *level, const gr_tasks_source *src,
                                   const gr_schedule_options *o, gr_diag *d);

#endif
