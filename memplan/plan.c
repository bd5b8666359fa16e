#include "memplan/plan.h"

#include <stdio.h>
#include <string.h>

void gr_plan_free(gr_plan *p)
{
    if (p) gr_pool_free(p->pool); /* the plan itself lies in its pool */
}

uint32_t gr_plan_ranks(const gr_plan *p)
{
    unsigned last = 0;
    int end = 0;
    if (!strcmp(p->ranks, "0")) return 1;
    return sscanf(p->ranks, "0-%9u%n", &last, &end) == 1 && !p->ranks[end] && last ? last + 1 : 0;
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
