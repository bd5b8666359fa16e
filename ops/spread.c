#include "ops/spread.h"

#include <stdio.h>

static bool sharded(const gr_program *p, const gr_model *m)
{
    return p->ranks > 1 && (p->sharded >> m->index & 1);
}

static bool remote(const gr_program *p, const gr_model *m)
{
    return p->remote >> m->index & 1;
}

/* Bytes a rank receives where every rank ends with all of `bytes`, or with its reduced part of them. */
static double moved(const gr_program *p, uint64_t bytes)
{
    return (double)bytes * (p->ranks - 1) / p->ranks;
}

static void collective(gr_program *p, gr_step_kind kind, double bytes, const gr_use *uses, size_t n,
                       const char *what)
{
    gr_work *w = gr_program_run(p, 0, 0, uses, n, "%s", what);
    w->kind = kind;
    w->lane = GR_LANE_COMM;
    w->moved = (uint64_t)bytes;
}

static void named(char out[64], const char *pass, const char *kind, uint32_t bucket)
{
    snprintf(out, 64, "%s%s.%u", pass, kind, bucket);
}

bool gr_spread_gathers(const gr_program *p, const gr_model *m)
{
    return sharded(p, m);
}

static uint32_t gathered(gr_program *p, const gr_kernels *k, const gr_model *m, const char *pass,
                         uint32_t bucket)
{
    return gr_program_temp(p, GR_CAT_COMM, gr_part_bytes(k, m, GR_PART_PARAMS, bucket), "%sgathered.%u", pass,
                           bucket);
}

uint32_t gr_spread_params(gr_program *p, const gr_kernels *k, const gr_model *m, const char *pass,
                          uint32_t bucket)
{
    if (sharded(p, m)) return gathered(p, k, m, pass, bucket);
    return gr_model_object(p, k, m, remote(p, m) ? GR_PART_ROLLOUT : GR_PART_PARAMS, bucket);
}

void gr_spread_gather(gr_program *p, const gr_kernels *k, const gr_model *m, const char *pass,
                      uint32_t bucket)
{
    char what[64];
    if (!sharded(p, m) || bucket >= gr_model_buckets(&m->shape)) return;
    named(what, pass, "gather", bucket);
    collective(p, GR_STEP_GATHER, moved(p, gr_part_bytes(k, m, GR_PART_PARAMS, bucket)),
               (gr_use[]){{gr_model_object(p, k, m, GR_PART_PARAMS, bucket), GR_READ},
                          {gathered(p, k, m, pass, bucket), GR_WRITE}},
               2, what);
}

uint32_t gr_spread_rollout(gr_program *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    bool copy = sharded(p, m) || remote(p, m);
    return gr_model_object(p, k, m,
                           p->lagged ? GR_PART_LAGGED
                           : copy    ? GR_PART_ROLLOUT
                                     : GR_PART_PARAMS,
                           bucket);
}

/* Straight into the rollout's weights; or, where the graph asks for it, through a gathered copy: of all
 * buckets before the first is synced, or of one at a time. */
void gr_spread_sync(gr_program *p, const gr_kernels *k, const gr_model *m)
{
    char what[64];
    uint32_t n = gr_model_buckets(&m->shape);
    if (!sharded(p, m) || p->lagged || (p->synced >> m->index & 1)) return;
    p->synced |= 1ULL << m->index;
    for (uint32_t b = 0; b < n && m->gather == GR_GATHER_WHOLE; b++) gr_spread_gather(p, k, m, "sync_", b);
    for (uint32_t b = 0; b < n; b++) {
        bool through = m->gather != GR_GATHER_DIRECT;
        if (m->gather == GR_GATHER_LAYER) gr_spread_gather(p, k, m, "sync_", b);
        uint32_t from = through ? gathered(p, k, m, "sync_", b) : gr_model_object(p, k, m, GR_PART_PARAMS, b);
        named(what, "", "sync", b);
        collective(p, GR_STEP_SYNC, through ? 0 : moved(p, gr_part_bytes(k, m, GR_PART_PARAMS, b)),
                   (gr_use[]){{from, GR_READ}, {gr_model_object(p, k, m, GR_PART_ROLLOUT, b), GR_WRITE}}, 2,
                   what);
        if (through) p->works[p->n_works - 1].bytes = 2.0 * (double)gr_part_bytes(k, m, GR_PART_PARAMS, b);
    }
}

void gr_spread_lag(gr_program *p, const gr_kernels *k, const gr_model *m)
{
    char what[64];
    for (uint32_t b = 0; b < gr_model_buckets(&m->shape); b++) {
        uint64_t bytes = gr_part_bytes(k, m, GR_PART_PARAMS, b);
        named(what, "", "lag", b);
        collective(p, GR_STEP_SYNC, sharded(p, m) ? moved(p, bytes) : 0,
                   (gr_use[]){{gr_model_object(p, k, m, GR_PART_PARAMS, b), GR_READ},
                              {gr_model_object(p, k, m, GR_PART_LAGGED, b), GR_WRITE}},
                   2, what);
        p->works[p->n_works - 1].bytes = 2.0 * (double)bytes;
    }
}

static uint32_t full_grads(gr_program *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    return gr_program_temp(p, GR_CAT_GRADIENTS, gr_part_bytes(k, m, GR_PART_GRADS, bucket), "full_grads.%u",
                           bucket);
}

gr_use gr_spread_grads(gr_program *p, const gr_kernels *k, const gr_model *m, uint32_t bucket, bool first)
{
    if (p->ranks < 2) return (gr_use){gr_model_object(p, k, m, GR_PART_GRADS, bucket), GR_UPDATE};
    return (gr_use){full_grads(p, k, m, bucket), first ? GR_WRITE : GR_UPDATE};
}

void gr_spread_reduce(gr_program *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    char what[64];
    if (p->ranks < 2) return;
    named(what, "", "reduce", bucket);
    collective(p, GR_STEP_REDUCE, moved(p, gr_part_bytes(k, m, GR_PART_GRADS, bucket)),
               (gr_use[]){{full_grads(p, k, m, bucket), GR_READ},
                          {gr_model_object(p, k, m, GR_PART_GRADS, bucket), GR_UPDATE}},
               2, what);
}

void gr_spread_stepped(gr_program *p, const gr_kernels *k, const gr_model *m, uint32_t bucket)
{
    char what[64];
    if (p->ranks < 2 || sharded(p, m)) return;
    named(what, "", "gather", bucket);
    collective(p, GR_STEP_GATHER, moved(p, gr_part_bytes(k, m, GR_PART_PARAMS, bucket)),
               (gr_use[]){{gr_model_object(p, k, m, GR_PART_PARAMS, bucket), GR_UPDATE}}, 1, what);
}

void gr_spread_total(gr_program *p, uint32_t object, const char *what)
{
    if (p->ranks < 2) return;
    collective(p, GR_STEP_REDUCE, GR_ALIGN, (gr_use[]){{object, GR_UPDATE}}, 1, what);
}

gr_work *gr_spread_loop(gr_program *p, uint32_t kernel, uint32_t trips_max, bool collectives,
                        const char *what)
{
    if (p->ranks < 2 || !collectives) return gr_program_loop(p, kernel, trips_max, true, what);
    uint32_t trips = gr_program_temp(p, GR_CAT_COMM, sizeof(uint32_t), "%s.trips", what);
    char *agree = gr_pool_printf(p->pool, "%s.agree", what);
    collective(p, GR_STEP_AGREE, sizeof(uint32_t), (gr_use[]){{trips, GR_WRITE}}, 1, agree);
    gr_work *w = gr_program_loop(p, kernel, trips_max, true, what);
    w->uses = gr_pool_alloc(p->pool, sizeof(*w->uses));
    w->uses[0] = (gr_use){trips, GR_READ};
    w->n_uses = 1;
    return w;
}
