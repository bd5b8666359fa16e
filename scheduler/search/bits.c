/* scheduler/search/bits.c: which levels of what changes bits are taken: none that need not be, or those that
 * are worth it. */
#include "scheduler/search/schedule_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    CORNERS = 16,       /* programs looked at before a refusal */
    LEAST_STATES = 800, /* residencies of the smallest */
    FEW_STATES = 10,    /* where it is not shown */
    SHORTEST = 8,       /* a search of a smaller part is one of this until it is known what fits */
    MAY_WIN = 8         /* what waits in the host pool may win, as a part of the time */
};

/* What begins now may take so many hundredths of the work. */
static void begin_part(gr_schedule_search *s, uint32_t hundredths)
{
    s->limit = s->transfers.work + s->work / 100 * hundredths;
    gr_allow(s, s->work);
}

static bool *knobs_of(const gr_schedule_search *s, gr_knob_sort *such)
{
    bool *may = gr_calloc(s->src->n_knobs + 1, sizeof(*may));
    for (size_t k = 0; k < s->src->n_knobs; k++) may[k] = such(&s->src->knobs[k]);
    return may;
}

static uint32_t last_level(const gr_schedule_search *s, size_t knob)
{
    const gr_knob *k = &s->src->knobs[knob];
    return s->o->bits == GR_BITS_KEEP && !gr_keeps_bits(k) ? 0 : k->n_levels - 1;
}

/* Whether no program may fit: since each next level needs less memory, none does where those do not that have
 * every knob at its last level, or of those that keep the bits some at their first. */
bool gr_is_hopeless(gr_schedule_search *s)
{
    const gr_tasks_source *src = s->src;
    uint32_t *level = gr_calloc(src->n_knobs + 1, sizeof(*level)), n_free = 0;
    bool hopeless = true;
    for (size_t k = 0; k < src->n_knobs; k++) n_free += gr_keeps_bits(&src->knobs[k]);
    uint32_t corners = n_free < 5 ? 1u << n_free : CORNERS;
    for (uint32_t c = 0; c < corners && hopeless; c++) {
        uint32_t at = 0;
        for (size_t k = 0; k < src->n_knobs; k++) {
            bool first = gr_keeps_bits(&src->knobs[k]) && at < 5 && c >> at & 1;
            at += gr_keeps_bits(&src->knobs[k]);
            level[k] = first ? 0 : last_level(s, k);
        }
        hopeless = gr_cannot_fit(s, gr_level_set_at(s, level));
    }
    free(level);
    return hopeless;
}

/* ---- plans, and which is taken ------------------------------------------------------------------------- */

typedef struct found_plan {
    gr_plan *plan; /* NULL: none */
    uint32_t *level;
    gr_residency taken;
} found_plan;

static found_plan no_plan(const gr_schedule_search *s)
{
    return (found_plan){.level = gr_calloc(s->src->n_knobs + 1, sizeof(uint32_t))};
}

static void release(found_plan *f)
{
    gr_plan_free(f->plan);
    free(f->level);
}

/* Which of two is kept: the other, where it is faster by more than a share. */
static void keep_faster(found_plan *f, found_plan *other, double share)
{
    if (other->plan && (!f->plan || (double)other->plan->ns < (double)f->plan->ns * (1 - share))) {
        const found_plan was = *f;
        *f = *other;
        *other = was;
    }
    release(other);
}

static found_plan try_levels(gr_schedule_search *s, const uint32_t *walk, bool probe)
{
    found_plan f = no_plan(s);
    f.plan = gr_try_levels(s, walk, f.level, probe);
    f.taken = s->taken;
    return f;
}

/* Put in place of another, if there is one, and it takes no longer. */
static bool take(found_plan *f, found_plan other)
{
    const bool better = other.plan && (!f->plan || other.plan->ns <= gr_near_ns(f->plan->ns));
    if (better) {
        const found_plan was = *f;
        *f = other;
        other = was;
    }
    release(&other);
    return better;
}

/* ---- only what must be --------------------------------------------------------------------------------- */

/* What offsets were not found for does not fit: something is above the budget then, to go on from. */
static void leave_room(gr_schedule_search *s)
{
    s->margin = s->lacking;
    gr_stand_price(s, &s->stand, true);
    while (s->stand.over <= 0 && s->margin < s->o->budget_bytes / 2) {
        s->margin += GR_MAX(s->margin, s->o->budget_bytes / 256);
        gr_stand_price(s, &s->stand, true);
    }
}

/* What fits with one level more of one knob that changes bits, from the way down that did not: the one that
 * brings down most for the time that it costs; and on, until something does. */
static found_plan lower_bits(gr_schedule_search *s, uint32_t *walk)
{
    bool *bits = knobs_of(s, gr_costs_bits), *same = knobs_of(s, gr_keeps_bits);
    found_plan f = no_plan(s);
    begin_part(s, FOR_LOWER);
    if (s->o->hurry > 1) s->limit = GR_MAX(s->limit, s->transfers.work + GR_SEARCH_WORK / SHORTEST);
    gr_allow(s, GR_SEARCH_WORK);
    leave_room(s);
    while (!f.plan && gr_may_go_on(s)) {
        const size_t k = gr_cheapest_knob(s, &s->stand, bits);
        if (k == SIZE_MAX) break;
        walk[k]++;
        gr_allow_down(s, s->down ? 2 * s->down : s->work);
        s->stand = gr_descend_from(s, &s->stand, k, walk[k], same);
        if (s->stand.over <= 0) {
            take(&f, try_levels(s, walk, true));
            leave_room(s);
        }
        gr_allow(s, GR_SEARCH_WORK);
    }
    s->margin = 0;
    free(bits);
    free(same);
    return f;
}

/* Levels that change bits go back up where that fits and costs no time: what need not be lowered is not. Of
 * each the least with which that is so, taken to be so with more. */
static void raise_each(gr_schedule_search *s, uint32_t *walk, found_plan *f)
{
    for (size_t k = 0; k < s->src->n_knobs; k++) {
        uint32_t high = walk[k], low = 0;
        if (!high || !gr_costs_bits(&s->src->knobs[k]) || s->transfers.work >= s->limit) continue;
        walk[k] = 0;
        if (take(f, try_levels(s, walk, true))) continue;
        while (high - low > 1 && s->transfers.work < s->limit) {
            walk[k] = low + (high - low) / 2;
            *(take(f, try_levels(s, walk, true)) ? &high : &low) = walk[k];
        }
        walk[k] = high;
    }
}

/* Twice: what one was lowered for may have been raised since. */
static void raise_bits(gr_schedule_search *s, uint32_t *walk, found_plan *f)
{
    if (!f->plan) return;
    begin_part(s, FOR_RAISE);
    raise_each(s, walk, f);
    raise_each(s, walk, f);
}

/* The least change of the knobs that change bits with which anything fits: from the first levels down, and
 * from the last ones up, which may be another; the faster of the two. walk: 0 at first. */
static found_plan find_with_least_bits(gr_schedule_search *s, uint32_t *walk)
{
    const bool hopeless = gr_is_hopeless(s); /* most likely: not all programs were looked at */
    begin_part(s, hopeless ? FOR_A_DOUBT : FOR_FIRST);
    found_plan f = try_levels(s, walk, false);
    if (f.plan || s->given_up || s->o->bits == GR_BITS_KEEP || hopeless) return f;
    release(&f);
    uint32_t *others = gr_calloc(s->src->n_knobs + 1, sizeof(*others));
    f = lower_bits(s, walk);
    raise_bits(s, walk, &f);
    begin_part(s, FOR_LOWER);
    gr_set_last_levels(s->src, others, gr_costs_bits);
    found_plan last = try_levels(s, others, true);
    raise_bits(s, others, &last);
    if (last.plan && (!f.plan || last.plan->ns < f.plan->ns))
        memcpy(walk, others, s->src->n_knobs * sizeof(*walk));
    keep_faster(&f, &last, 0);
    begin_part(s, FOR_LAST);
    found_plan whole = f.plan ? try_levels(s, walk, false) : no_plan(s);
    keep_faster(&f, &whole, 0);
    free(others);
    return f;
}

/* ---- what is worth it ---------------------------------------------------------------------------------- */

static found_plan try_all_levels(gr_schedule_search *s, const uint32_t *from, uint32_t hundredths)
{
    found_plan f = no_plan(s);
    begin_part(s, hundredths);
    f.plan = gr_try_all_levels(s, from, f.level);
    f.taken = s->taken;
    return f;
}

/* Any levels, from the first on and from those that had to be. */
static void search_freely(gr_schedule_search *s, const uint32_t *walk, found_plan *f)
{
    const double share = s->o->bits == GR_BITS_PREFER ? GR_BITS_WORTH : 0;
    uint32_t *first = gr_calloc(s->src->n_knobs + 1, sizeof(*first));
    found_plan best = try_all_levels(s, first, FOR_FREE), other = try_all_levels(s, walk, FOR_FREE);
    keep_faster(&best, &other, 0);
    keep_faster(f, &best, share);
    free(first);
}

static bool lowers_bits(const gr_schedule_search *s, const uint32_t *walk)
{
    for (size_t k = 0; k < s->src->n_knobs; k++)
        if (gr_costs_bits(&s->src->knobs[k]) && walk[k]) return true;
    return false;
}

/* Luxuries are had where nothing else is at less than its best, and are the first to go. */
static bool has_luxury(const gr_schedule_search *s, const uint32_t *level)
{
    for (size_t k = 0; k < s->src->n_knobs; k++)
        if (gr_is_spare(&s->src->knobs[k]) && !level[k]) return true;
    return false;
}

/* Bits change, for nothing fits without: others that are worth it, which the ways from the first and the last
 * levels did not come by, where one instant after the other is brought down and what has no part in it stays.
 */
static void search_other_bits(gr_schedule_search *s, found_plan *f)
{
    uint32_t *first = gr_calloc(s->src->n_knobs + 1, sizeof(*first));
    found_plan other = try_all_levels(s, first, FOR_OTHER);
    if (other.plan && has_luxury(s, other.level))
        release(&other);
    else
        keep_faster(f, &other, GR_BITS_WORTH);
    free(first);
}

/* The smallest that is found, whatever the device has: its budget would find it again. */
static gr_plan *find_least(gr_schedule_search *s, uint32_t *level)
{
    uint32_t *walk = gr_calloc(s->src->n_knobs + 1, sizeof(*walk));
    for (size_t k = 0; k < s->src->n_knobs; k++) walk[k] = last_level(s, k);
    s->found.n = 0;
    begin_part(s, FOR_LEAST);
    const uint32_t set = gr_level_set_at(s, walk);
    gr_search_set(s, set, s->o->quick ? FEW_STATES : LEAST_STATES);
    if (s->o->quick) { /* it is only asked what fits */
        free(walk);
        return gr_smallest(s, level);
    }
    begin_part(s, FOR_LEAST);
    gr_descend_to_least(s, set, gr_smallest_found(s));
    begin_part(s, FOR_LEAST);
    gr_descend_to_least(s, set, NULL);
    gr_plan *p = gr_choose_plan(s, level);
    free(walk);
    return p ? p : gr_smallest(s, level);
}

/* What passes keep for backward waits in the host pool, where that makes a plan faster by more than plans may
 * differ anyway. */
static void try_spills(gr_schedule_search *s, found_plan *f)
{
    const gr_residency taken = f->taken;
    s->found.n = 0;
    s->probes = false;
    begin_part(s, FOR_SPILLS);
    gr_descend_spilled(s, &taken);
    found_plan other = no_plan(s);
    other.plan = gr_choose_plan(s, other.level);
    other.taken = s->taken;
    if (other.plan && (has_luxury(s, other.level) || f->plan->ns <= gr_near_ns(other.plan->ns)))
        release(&other);
    else
        keep_faster(f, &other, 0);
}

static bool is_within(const gr_schedule_search *s, const gr_plan *p)
{
    return gr_plan_within(p, s->o->budget_bytes, s->o->host_budget_bytes, s->o->disk_budget_bytes);
}

/* Only where what passes keep waits in the host pool does anything fit: the smallest plan does. All is
 * searched once more with that. */
static void search_spilled(gr_schedule_search *s, uint32_t *walk, found_plan *f)
{
    memset(walk, 0, s->src->n_knobs * sizeof(*walk));
    found_plan other = find_with_least_bits(s, walk);
    if (other.plan) {
        const found_plan was = *f;
        *f = other;
        other = was;
    }
    release(&other);
}

gr_plan *gr_find_plan(gr_schedule_search *s, uint32_t *level)
{
    uint32_t *walk = gr_calloc(s->src->n_knobs + 1, sizeof(*walk));
    found_plan f = find_with_least_bits(s, walk);
    s->given_up |= f.plan && gr_is_too_slow(s, f.plan->ns - f.plan->ns / MAY_WIN);
    if (s->given_up) {
        release(&f);
        free(walk);
        return gr_any_plan(s, level);
    }
    const bool priced = s->o->bits == GR_BITS_PREFER || s->o->bits == GR_BITS_ANY;
    if (priced && (f.plan || !gr_is_hopeless(s))) search_freely(s, walk, &f);
    if (s->o->bits == GR_BITS_FIT && f.plan && !s->o->quick && lowers_bits(s, walk)) search_other_bits(s, &f);
    s->spills->spills = true;
    if (!f.plan) {
        f.plan = find_least(s, f.level);
        f.taken = s->taken;
        if (!s->o->quick && s->src->n_knobs && is_within(s, f.plan)) search_spilled(s, walk, &f);
    }
    free(walk);
    if (!s->o->quick && is_within(s, f.plan) && !has_luxury(s, f.level)) try_spills(s, &f);
    if (s->src->n_knobs) memcpy(level, f.level, s->src->n_knobs * sizeof(*level));
    s->taken = f.taken;
    free(f.level);
    return f.plan;
}
