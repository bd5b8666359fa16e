/* memplan/plan/plan.c: plans as data: texts of their kinds, steps and roles by number, what they need. */
#include "memplan/plan/plan.h"

#include <stdlib.h>
#include <string.h>

void gr_rank_list_begin(gr_rank_list *l, const char *text)
{
    *l = (gr_rank_list){.at = text, .end = 0};
}

/* A number without sign, zeros before it or spaces; UINT32_MAX: none stands here. */
static uint32_t number_at(const char **t)
{
    char *end;
    if (**t < '0' || **t > '9' || (**t == '0' && (*t)[1] >= '0' && (*t)[1] <= '9')) return UINT32_MAX;
    unsigned long n = strtoul(*t, &end, 10);
    *t = end;
    return n <= GR_RANKS_MAX ? (uint32_t)n : UINT32_MAX;
}

bool gr_rank_list_next(gr_rank_list *l)
{
    if (!*l->at) {
        l->bad = l->bad || !l->end;
        return false;
    }
    l->first = l->last = number_at(&l->at);
    if (*l->at == '-') {
        l->at++;
        l->last = number_at(&l->at);
        l->bad = l->last <= l->first;
    }
    l->bad = l->bad || l->first == UINT32_MAX || l->last == UINT32_MAX || l->first < l->end;
    l->end = l->last + 1;
    bool more = *l->at == ',';
    l->at += more;
    l->bad = l->bad || (more ? !*l->at : *l->at != 0);
    return !l->bad;
}

void gr_plan_free(gr_plan *p)
{
    if (!p) return;
    for (uint32_t c = 0; c < p->n_more; c++) gr_plan_free(p->more[c]);
    gr_arena_free(p->arena); /* the plan itself lies in its pool */
}

uint32_t gr_plan_ranks(const gr_plan *p)
{
    gr_rank_list l;
    uint32_t n = 0;
    for (gr_rank_list_begin(&l, p->ranks); gr_rank_list_next(&l);) n += l.last - l.first + 1;
    return l.bad ? 0 : n;
}

uint32_t gr_plan_all_ranks(const gr_plan *p)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c <= p->n_more; c++) {
        uint32_t own = gr_plan_ranks(gr_plan_role(p, c));
        if (!own) return 0;
        n += own;
    }
    return n;
}

uint64_t gr_plan_peak(const gr_plan *p)
{
    uint64_t most = 0;
    for (uint32_t c = 0; c <= p->n_more; c++) most = GR_MAX(most, gr_plan_role(p, c)->peak_bytes);
    return most;
}

bool gr_plan_fits(const gr_plan *p)
{
    bool fits = true;
    for (uint32_t c = 0; c <= p->n_more; c++) fits = fits && gr_plan_role(p, c)->fits;
    return fits;
}

uint32_t gr_plan_steps(const gr_plan *p)
{
    return p->paths[GR_PATH_STEADY].n + p->paths[GR_PATH_VALIDATE].n;
}

const gr_step *gr_plan_step(const gr_plan *p, uint32_t i)
{
    uint32_t n = p->paths[GR_PATH_STEADY].n;
    return i < n ? &p->paths[GR_PATH_STEADY].steps[i] : &p->paths[GR_PATH_VALIDATE].steps[i - n];
}

#define X(name, text) text,
const char *gr_place_str(gr_place p)
{
    static const char *const text[] = {GR_PLACE_MAP(X)};
    return text[p];
}

const char *gr_lane_str(gr_lane l)
{
    static const char *const text[] = {GR_LANE_MAP(X)};
    return text[l];
}

const char *gr_category_str(gr_category c)
{
    static const char *const text[] = {GR_CATEGORY_MAP(X)};
    return text[c];
}

const char *gr_step_kind_str(gr_step_kind k)
{
    static const char *const text[] = {GR_STEP_MAP(X)};
    return text[k];
}

const char *gr_path_str(gr_path_id p)
{
    static const char *const text[] = {GR_PATH_MAP(X)};
    return text[p];
}
#undef X
