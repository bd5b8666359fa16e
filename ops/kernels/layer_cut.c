/* ops/kernels/layer_cut.c: tokens that are cut over ranks: from some tokens of all heads to all tokens of
 * some heads, and back; or, of ranks that have slices of a layer, from some tokens to all tokens, and from
 * partial sums of all to the sums of some. */
#include "ops/kernels/layer_impl.h"

#include <assert.h>

#include "runtime/comm/comm.h"

uint32_t gr_layer_cut(const gr_layer_call *l)
{
    return GR_MAX(l->bounds.cut, 1u);
}

void *gr_layer_all_rows(gr_workspace *c, const gr_layer_call *l, uint64_t values)
{
    return gr_workspace_bytes(c, (uint64_t)l->bounds.tokens * gr_layer_cut(l) * values *
                                     gr_dtype_size(l->k->dtype));
}

static uint64_t width_of(const gr_layer_columns *g)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n; i++) n += g->width[i];
    return n;
}

/* Between rows of ld values, with the columns of all ranks, and parts, rank by rank, of dense rows with the
 * columns of one. */
static void place(const gr_layer_call *l, const gr_layer_columns *g, char *rows, uint64_t ld, char *parts,
                  bool to_parts)
{
    const uint64_t size = gr_dtype_size(l->k->dtype), cut = gr_layer_cut(l), part = width_of(g) / cut * size;
    for (uint64_t r = 0, n = l->b.n; r < cut; r++) {
        uint64_t in_row = 0, in_part = 0;
        for (uint32_t i = 0; i < g->n; i++) {
            const uint64_t bytes = g->width[i] / cut * size;
            char *at = rows + in_row + r * bytes, *of = parts + r * n * part + in_part;
            if (to_parts)
                l->k->copy_rows(l->q, of, part, at, ld * size, bytes, n);
            else
                l->k->copy_rows(l->q, at, ld * size, of, part, bytes, n);
            in_row += g->width[i] * size;
            in_part += bytes;
        }
    }
}

static uint64_t part_bytes(const gr_layer_call *l, const gr_layer_columns *g)
{
    return l->b.n * (width_of(g) / gr_layer_cut(l)) * gr_dtype_size(l->k->dtype);
}

/* What each rank gets of another's tokens are dense rows: side by side they are all tokens. */
void gr_layer_to_heads(const gr_layer_call *l, const gr_layer_columns *g, const void *rows, uint64_t ld,
                       void *heads, void *parts)
{
    place(l, g, (char *)(uintptr_t)rows, ld, parts, true);
    gr_tp_exchange(l->q, parts, heads, part_bytes(l, g), (uint32_t)gr_dtype_size(l->k->dtype));
}

void gr_layer_to_tokens(const gr_layer_call *l, const gr_layer_columns *g, const void *heads, void *rows,
                        uint64_t ld, void *parts)
{
    gr_tp_exchange(l->q, heads, parts, part_bytes(l, g), (uint32_t)gr_dtype_size(l->k->dtype));
    place(l, g, rows, ld, parts, false);
}

/* ---- slices ----------------------------------------------------------------------------------------------
 */

bool gr_layer_gathers(const gr_layer_call *l)
{
    return l->s->parts > 1 && gr_layer_cut(l) > 1 && !l->whole;
}

gr_layer_call gr_layer_half(const gr_layer_call *l)
{
    gr_layer_call inner = *l;
    if (!gr_layer_gathers(l)) return inner;
    inner.b.n *= l->s->parts;
    inner.bounds.tokens *= l->s->parts;
    inner.bounds.cut /= l->s->parts; /* over ranks that have the same slice */
    if (inner.bounds.cut < 2) inner.b = l->all;
    inner.outer = l;
    return inner;
}

static uint64_t own_values(const gr_layer_call *l)
{
    return (uint64_t)l->b.n * l->s->hidden;
}

void *gr_layer_own(const gr_layer_call *l, void *all)
{
    return (char *)all + l->q->peers->comm->rank * own_values(l) * gr_dtype_size(l->k->dtype);
}

void gr_layer_gather(const gr_layer_call *l, void *all)
{
    gr_tp_gather(l->q, all, own_values(l), (uint32_t)gr_dtype_size(l->k->dtype));
}

void gr_layer_scatter(const gr_layer_call *l, void *all, void *staging)
{
    gr_tp_scatter(l->q, all, own_values(l), (uint32_t)gr_dtype_size(l->k->dtype), staging);
}
