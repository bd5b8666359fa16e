/* scheduler/search/schedule_parts.h: the parts of the search over choices; private to scheduler/search.
 *
 *     levels.c    vectors of levels, and the programs that they stand for
 *     descend.c   from what does not fit, by the cheapest change at the instant that does not, to what does
 *     schedule.c  for levels of what changes bits: which vectors are tried, and which of all that fits is
 * taken bits.c      which levels of what changes bits explain.c   why what is not at its best is not refuse.c
 * what is said where nothing fits
 */
#ifndef GR_SCHEDULER_SEARCH_SCHEDULE_PARTS_H
#define GR_SCHEDULER_SEARCH_SCHEDULE_PARTS_H

#include "scheduler/search/packings.h"
#include "scheduler/search/prices.h"
#include "scheduler/search/search.h"

/* A vector of levels. Its program is made when it is asked for, and again where too many others were since.
 */
typedef struct gr_level_set {
    uint32_t *level; /* [n_knobs] */
    uint64_t hash;   /* of these */
    gr_tasks *tasks; /* NULL: not there now */
    gr_analysis *analysis;
    uint32_t asked; /* when it was last */
    /* of its program, always there */
    const gr_group *resources; /* [n_groups], of the arena */
    uint32_t n_tasks, n_groups;
    gr_tenant tenant; /* without its host pool */
    uint64_t spare_bytes;
} gr_level_set;

/* One residency of one program, and how far it is from fitting. */
typedef struct gr_stand {
    uint32_t set;
    gr_choice *choice; /* [n_groups], of the arena */
    uint32_t ahead;
    double over, host_over; /* bytes above the budgets: at the worst instant, and in the mean; 0: it fits */
    uint64_t ns;
} gr_stand;

/* Parts of the work, in hundredths. What is not taken is left to those behind. */
enum {
    FOR_FIRST = 50,  /* the first levels of what changes bits */
    FOR_LOWER = 20,  /* other levels of them, until something fits */
    FOR_RAISE = 30,  /* and up again */
    FOR_LAST = 40,   /* the levels that come of it */
    FOR_FREE = 25,   /* all levels alike */
    FOR_OTHER = 40,  /* the same, where bits change anyway */
    FOR_A_DOUBT = 5, /* the first levels, where hardly anything can fit */
    FOR_LEAST = 15,  /* the smallest */
    FOR_A_WAY = 15,  /* one way up of a descent */
    FOR_ROOM = 10,   /* what offsets were not found for, with less of it on the device */
    FOR_ANY = 30,    /* the same, where nothing else was found */
    FOR_SPILLS = 20, /* what waits in the host pool between a forward pass and its backward one */
};

typedef struct gr_schedule_search {
    const gr_tasks_source *src;
    const gr_schedule_options *o;
    gr_schedule_options *spills; /* the same, where it is said that they are allowed */
    gr_level_set *sets;
    size_t n_sets, cap_sets;
    uint32_t n_made, now; /* programs there now; how often one was asked for */
    gr_residencies found;
    gr_transfers transfers;
    uint32_t laid;       /* the set that the arrays of transfers are for */
    gr_price_key placed; /* what stands in transfers, placed and not timed yet; 0: something else */
    gr_prices prices;
    gr_packings packings;
    uint64_t work;           /* that the whole may take */
    bool host_first;         /* bytes that the host pool lacks count for more than the device's */
    bool probes;             /* it is only asked whether anything fits */
    uint64_t each_way;       /* work of each of the two ways up of a descent */
    uint64_t down;           /* the most that a way down took that led to what fits */
    uint64_t until;          /* transfers.work at which what goes on now ends */
    uint64_t limit;          /* and at which all does */
    gr_residency taken;      /* that of the plan chosen last */
    gr_stand stand;          /* where the last way down ended */
    uint64_t lacking;        /* the margin with which offsets were still not found; 0: they were */
    uint64_t margin;         /* that descents leave in the arena, for what offsets waste */
    uint64_t lost_ns, lacks; /* the fastest for which offsets were not found, and what they lacked;
                                UINT64_MAX: they were for all */
    gr_residency lost;
    bool given_up; /* nothing that is found is as fast as o->beat_ns */
    gr_arena *arena;
} gr_schedule_search;

/* ---- levels.c ---- */

/* Which set it is, added where it is new. */
uint32_t gr_level_set_at(gr_schedule_search *s, const uint32_t *level);
/* With its program. Valid until the next call. */
const gr_level_set *gr_level_set_take(gr_schedule_search *s, uint32_t set);
void gr_level_sets_free(gr_schedule_search *s);

/* Sorts of knobs: those that keep the bits; luxuries; those that change the bits only where nothing fits
 * without. */
typedef bool gr_knob_sort(const gr_knob *k);
gr_knob_sort gr_keeps_bits, gr_is_spare, gr_costs_bits;

/* Work that what begins now may take, if the whole has as much left; whether it may go on. */
void gr_allow(gr_schedule_search *s, uint64_t work);
/* The same for a way down. A search that has a small part of the work goes on until it comes to an end: where
 * it is broken off, what is found is not what a longer one finds. */
void gr_allow_down(gr_schedule_search *s, uint64_t work);
static inline bool gr_may_go_on(const gr_schedule_search *s)
{
    return s->transfers.work < s->until;
}

/* The next vector of levels of such knobs, counted like an odometer; false: the last one was it. */
bool gr_next_levels(const gr_tasks_source *src, uint32_t *level, gr_knob_sort *such);
/* The last of them. */
void gr_set_last_levels(const gr_tasks_source *src, uint32_t *level, gr_knob_sort *such);

/* Whether it is given up for a time. Where other bits are looked for, what has these does not tell. */
static inline bool gr_is_too_slow(const gr_schedule_search *s, uint64_t ns)
{
    return s->o->beat_ns && s->o->bits != GR_BITS_PREFER && s->o->bits != GR_BITS_ANY && ns > s->o->beat_ns;
}

gr_policy gr_policy_of(const gr_schedule_options *o, const gr_group *g);
/* The bytes that the arena may have, with so much in the host pool; and that the host pool may. */
uint64_t gr_arena_budget(const gr_schedule_search *s, uint32_t set, uint64_t host_bytes);
uint64_t gr_host_room(const gr_schedule_search *s, uint32_t set);
/* Whether no residency of its program fits. */
bool gr_cannot_fit(gr_schedule_search *s, uint32_t set);
/* For transfers of a set: s->transfers, cleared where they were another's. */
gr_transfers *gr_transfers_for(gr_schedule_search *s, uint32_t set);

/* ---- descend.c ---- */

/* How far above the budgets it is; its time where that is asked for. */
void gr_stand_price(gr_schedule_search *s, gr_stand *st, bool time);
/* Its steps and live bytes, where loads stand as late as they may, in s->transfers. */
void gr_stand_place(gr_schedule_search *s, const gr_stand *st);
/* The same residency of the program with another level of one knob; not priced. */
gr_stand gr_stand_at_level(gr_schedule_search *s, const gr_stand *from, size_t knob, uint32_t level);

/* From all resident: changes of residency and of knobs that keep the bits (may_lower [n_knobs]), of which
 * each brings what does not fit down, in the order of time lost a byte; then back up where there is room.
 * What fits is added to s->found. */
gr_stand gr_descend(gr_schedule_search *s, const uint32_t *level, const bool *may_lower);
/* On from there with another level of one knob, only down. */
gr_stand gr_descend_from(gr_schedule_search *s, const gr_stand *from, size_t knob, uint32_t level,
                         const bool *may_lower);
/* On from a residency that fits, down by the margin, and up again in the rest. What fits is added to
 * s->found. */
void gr_descend_again(gr_schedule_search *s, const gr_residency *from, const bool *may_lower);
/* As small on the device as it can be made, with these levels, from a residency (NULL: all resident); what
 * comes of it is added to s->found. */
void gr_descend_to_least(gr_schedule_search *s, uint32_t set, const gr_residency *from);
/* From what fits: what passes keep for backward waits in the host pool, and other things have its room on the
 * device. What comes of it is added to s->found. */
void gr_descend_spilled(gr_schedule_search *s, const gr_residency *from);
/* From there the level of which knob (may_lower) brings it down at the least loss of time; SIZE_MAX: none
 * does. */
size_t gr_cheapest_knob(gr_schedule_search *s, const gr_stand *from, const bool *may_lower);

/* ---- schedule.c ---- */

/* With such levels of what changes bits, all that do not are tried; level receives those of the plan. NULL:
 * nothing fits, s->stand is where the way down ended. probe: any plan will do. */
gr_plan *gr_try_levels(gr_schedule_search *s, const uint32_t *bits, uint32_t *level, bool probe);
/* Any levels, whether they change bits or not, from these on. */
gr_plan *gr_try_all_levels(gr_schedule_search *s, const uint32_t *first, uint32_t *level);
/* That of the first residency found, packed at a glance. */
gr_plan *gr_any_plan(gr_schedule_search *s, uint32_t *level);
/* Of all that was found last the smallest. */
const gr_residency *gr_smallest_found(const gr_schedule_search *s);
gr_plan *gr_smallest(gr_schedule_search *s, uint32_t *level);
/* Residencies of one set of levels: so many of them, or all resident alone. */
void gr_search_set(gr_schedule_search *s, uint32_t set, uint32_t most);
gr_plan *gr_choose_plan(gr_schedule_search *s, uint32_t *level);

/* ---- bits.c ---- */

/* What fits, or the smallest; any plan where it is given up. */
gr_plan *gr_find_plan(gr_schedule_search *s, uint32_t *level);
/* Whether no program may fit, as far as the corners of what may be chosen show. */
bool gr_is_hopeless(gr_schedule_search *s);

/* ---- explain.c ---- */

/* A line for each level and each group of a residency that is not at its best: what one more would need, and
 * where, and what it would save. In the arena. */
const char *gr_explain(gr_schedule_search *s, const gr_residency *taken, gr_arena *arena);

/* ---- refuse.c ---- */

/* Says what is missing, and what would fit. */
gr_status gr_refuse(const gr_schedule_search *s, const gr_plan *p, gr_diag *d);

#endif
