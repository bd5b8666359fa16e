/* scheduler/cost/cost.c: how long a task takes on a device. */
#include "scheduler/cost/collective.h"
#include "scheduler/cost/hardware.h"
#include "scheduler/cost/cost.h"

#include <math.h>

/* Where x lies in a rising list, in the logarithm: index of the value before, and the share of the next. */
static double place_in(const uint32_t *list, uint32_t n, double x, uint32_t *at)
{
    *at = 0;
    while (*at + 2 < n && list[*at + 1] <= x) ++*at;
    if (n < 2) return 0;
    double share = log(x / list[*at]) / log((double)list[*at + 1] / list[*at]);
    return fmin(fmax(share, 0), 1);
}

static double rate_at(const gr_rate *r, const gr_task_cost *c)
{
    return c->paged ? r->decode : c->backward ? r->backward : r->forward;
}

/* Widths are as their squares, the elements of weights, whose time is that of the bytes and the operations
 * beside what the kernels of a layer take by themselves: so the time of an operation goes straight with 1 /
 * width^2. */
static double place_width(const uint32_t *list, uint32_t n, double x, uint32_t *at)
{
    *at = 0;
    while (*at + 2 < n && list[*at + 1] <= x) ++*at;
    if (n < 2) return 0;
    const double low = pow(list[*at], -2), high = pow(list[*at + 1], -2);
    return fmin(fmax((low - pow(x, -2)) / (low - high), 0), 1);
}

/* The four rates around so many rows and such weights, and the part of each: two widths of fewer rows and two
 * of more. */
typedef struct corners {
    uint32_t at[4];
    double down, across;
} corners;

static corners corners_of(const gr_hardware *h, double rows, double width)
{
    uint32_t list[2][GR_RATES_MAX], n_widths = 0, row, col;
    while (n_widths < h->n_rates && h->rates[n_widths].rows == h->rates[0].rows) n_widths++;
    uint32_t n_rows = h->n_rates / n_widths;
    for (uint32_t i = 0; i < n_rows; i++) list[0][i] = h->rates[i * n_widths].rows;
    for (uint32_t i = 0; i < n_widths; i++) list[1][i] = h->rates[i].width;
    corners c = {.down = place_in(list[0], n_rows, rows, &row),
                 .across = place_width(list[1], n_widths, fmax(width, 1), &col)};
    for (uint32_t i = 0; i < 4; i++) /* where there is one row or width alone its part is all */
        c.at[i] = GR_MIN(row + i / 2, n_rows - 1) * n_widths + GR_MIN(col + i % 2, n_widths - 1);
    return c;
}

/* The rate of so many rows and such weights between those measured, of rows straight in the logarithms;
 * beyond them that of the nearest. */
static double matrix_rate(const gr_hardware *h, const gr_task_cost *c, double rows, double width)
{
    const corners x = corners_of(h, rows, width);
    double rate[2];
    for (uint32_t i = 0; i < 2; i++)
        rate[i] = 1 / ((1 - x.across) / rate_at(&h->rates[x.at[2 * i]], c) +
                       x.across / rate_at(&h->rates[x.at[2 * i + 1]], c));
    return exp((1 - x.down) * log(rate[0]) + x.down * log(rate[1]));
}

double gr_rate_share(const gr_hardware *h, uint32_t i, double rows, double width)
{
    const corners x = corners_of(h, rows, width);
    double share = 0;
    for (uint32_t k = 0; k < 4; k++)
        if (x.at[k] == i) share += (k / 2 ? x.down : 1 - x.down) * (k % 2 ? x.across : 1 - x.across);
    return share;
}

static double attention_rate(const gr_hardware *h, const gr_task_cost *c)
{
    uint32_t length[GR_LENGTHS_MAX], at;
    double rate[2];
    for (uint32_t i = 0; i < h->n_attention; i++) length[i] = h->attention[i].length;
    const double share = place_in(length, h->n_attention, c->length ? c->length : 1, &at);
    for (uint32_t i = 0; i < 2; i++) {
        const gr_attention_rate *a = &h->attention[GR_MIN(at + i, h->n_attention - 1)];
        rate[i] = !c->backward ? a->forward : c->unordered && a->unordered > 0 ? a->unordered : a->backward;
    }
    return exp((1 - share) * log(rate[0]) + share * log(rate[1]));
}

/* What takes its time beside matrix products and plain traffic, in seconds; what has no rate of its own is
 * added to those. */
static double special_seconds(const gr_task_cost *c, const gr_hardware *h, double *flops, double *bytes)
{
    double seconds = 0;
    if (c->paged && h->kv_bytes > 0)
        seconds += c->kv / h->kv_bytes;
    else if (c->paged && h->decode_attention > 0)
        seconds += c->attention / h->decode_attention;
    else if (!c->paged && h->n_attention)
        seconds += c->attention / attention_rate(h, c);
    else
        *flops += c->attention, *bytes += c->kv;
    const double logits = h->kept > 0 && (c->backward || c->paged) ? h->kept : h->logits;
    if (logits > 0) seconds += c->logits / logits;
    return seconds;
}

/* Where a device's products of groups have no rates, each is as a dense one of as many rows. */
static double plain_experts_seconds(const gr_task_cost *c, const gr_hardware *h)
{
    const gr_experts_cost *e = &c->experts;
    const double rate = h->n_rates ? matrix_rate(h, c, e->rows, e->width) : h->flops;
    return fmax((e->products + e->gradients) / rate, (e->weights + e->sums + e->moved) / h->memory_bytes);
}

/* Products take as long as their tiles or, of few rows, as the weights take to come; the rest stands around
 * them. */
static double experts_seconds(const gr_task_cost *c, const gr_hardware *h)
{
    const gr_experts_cost *e = &c->experts;
    const gr_experts_rate *x = &h->experts;
    if (!(e->rows > 0)) return 0;
    if (!(x->product > 0)) return plain_experts_seconds(c, h);
    return fmax(e->products * (1 + x->padding / e->rows) / x->product, e->weights / x->read) +
           e->gradients / x->gradient + (e->sums + e->moved) / h->memory_bytes +
           1e-9 * e->launches * (double)x->launch_ns;
}

double gr_task_experts_ns(const gr_task *w, const gr_hardware *h)
{
    const gr_experts_cost *e = &w->cost.experts;
    const gr_experts_rate *x = &h->experts;
    if (!(e->rows > 0) || !(x->product > 0)) return 0;
    if (w->cost.backward) return 1e9 * e->gradients / x->gradient;
    return 1e9 * fmax(e->products * (1 + x->padding / e->rows) / x->product, e->weights / x->read);
}

/* What is done one after another with the products. */
static double beside_seconds(const gr_task_cost *c, const gr_hardware *h)
{
    return c->moved / h->memory_bytes + 1e-9 * c->launches * (double)h->experts.launch_ns;
}

/* A rollout's steps take as long as weights and kernels take to come: in FP8 each weight is a byte less. */
static double saved_seconds(const gr_task_cost *c, const gr_hardware *h)
{
    return h->fp8 > 0 && c->paged && c->rows ? c->fp8 / (2.0 * c->rows) / h->memory_bytes : 0;
}

/* Of the task itself; sums over its tensor-parallel group are within it. */
static double own_seconds(const gr_task *w, const gr_hardware *h)
{
    const gr_task_cost *c = &w->cost;
    const gr_task_comm *m = &w->comm;
    double flops = c->flops, bytes = c->bytes;
    if (h->fp8 > 0 && !c->paged) flops -= c->fp8 * (1 - 1 / h->fp8);
    double seconds = special_seconds(c, h, &flops, &bytes);
    const double rate = h->n_rates && c->rows ? matrix_rate(h, c, c->rows, c->width) : h->flops;
    seconds += experts_seconds(c, h) + beside_seconds(c, h);
    seconds += fmax(flops / rate - saved_seconds(c, h) + c->head / (h->head > 0 ? h->head : rate),
                    bytes / h->memory_bytes);
    if (h->slowest > 0) seconds *= h->slowest; /* the others wait for it at the next collective */
    if (m->sums > 0) seconds += m->summed / gr_peers_rate(h, m->peers) + m->sums * (double)h->sum_ns * 1e-9;
    if (m->exchanged > 0)
        seconds += m->exchanged / gr_exchange_rate(h, gr_mesh_size(&m->mesh, GR_AXIS_EXPERT),
                                                   gr_mesh_stride(&m->mesh, GR_AXIS_EXPERT));
    return seconds;
}

/* Of a send or recv. */
static uint64_t transfer_ns(const gr_task_comm *m, const gr_hardware *h)
{
    return h->collective_ns + (uint64_t)llround(1e9 * (double)m->moved / m->rate + m->messages_ns);
}

/* Messages both ways between neighbouring stages, which go at once. */
static uint64_t exchange_ns(const gr_task_comm *m, const gr_hardware *h)
{
    const uint32_t apart = gr_mesh_stride(&m->mesh, GR_AXIS_DATA);
    return h->collective_ns + (uint64_t)llround(1e9 * (double)m->moved / gr_peers_rate(h, apart));
}

uint64_t gr_task_ns(const gr_task *w, const gr_hardware *h)
{
    const gr_task_comm *m = &w->comm;
    if (w->kind == GR_STEP_EXCHANGE) return h->step_ns + exchange_ns(m, h);
    if (m->rate > 0) return h->step_ns + transfer_ns(m, h);
    const uint64_t ns = (uint64_t)llround(1e9 * own_seconds(w, h)) + h->step_ns;
    return m->moved ? ns + gr_collective_ns(h, m->group, m->form, (double)m->moved) : ns;
}

uint64_t gr_task_host_ns(const gr_task *w, const gr_hardware *h)
{
    const double bytes = w->cost.host_bytes > 0 ? w->cost.host_bytes : w->cost.bytes;
    uint64_t ns = (uint64_t)llround(1e9 * bytes / h->host_memory) + h->step_ns;
    return GR_MAX(ns, gr_task_ns(w, h)); /* no host is faster than its device */
}

uint64_t gr_task_lost_ns(const gr_task *w, const gr_hardware *h)
{
    const bool beside = w->kind == GR_STEP_REDUCE && w->lane != GR_LANE_COMPUTE;
    return beside ? (uint64_t)llround((double)gr_task_ns(w, h) * h->reduce_share) : 0;
}
