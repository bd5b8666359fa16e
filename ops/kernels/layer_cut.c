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

/* A group of columns: where it begins in a row and in a part; and its runs, each of one head or, where there
 * are no copies, of all of a rank's. */
typedef struct span {
    const struct gr_layer_group *g;
    uint64_t in_row, in_part;
    uint64_t run;   /* columns */
    uint32_t count; /* of a rank */
} span;

/* Fills all of them; columns of a part. */
static uint64_t spans_of(const gr_layer_columns *g, uint32_t cut, span out[GR_LAYER_GROUPS])
{
    uint64_t in_row = 0, in_part = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct gr_layer_group *of = &g->group[i];
        const bool copied = of->copies > 1;
        out[i] = (span){of, in_row, in_part, of->width / (copied ? of->heads : cut),
                        copied ? of->heads * of->copies / cut : 1};
        in_row += of->width;
        in_part += out[i].run * out[i].count;
    }
    return in_part;
}

/* Where run i of rank r is in a row. */
static uint64_t run_at(const span *s, uint64_t r, uint32_t i)
{
    return s->in_row + (r * s->count + i) / s->g->copies * s->run;
}

/* Rows with the columns of all ranks, and dense rows with those of one. */
typedef struct layouts {
    char *all, *own;
    uint64_t ld, n, size; /* values in a row of all; rows; bytes of a value */
} layouts;

/* From one to the other, of rank r; copies: of groups that have copies, too. */
static void move(const gr_layer_call *l, const gr_layer_columns *g, const layouts *x, uint64_t r, bool to_own,
                 bool copies)
{
    span s[GR_LAYER_GROUPS];
    const uint64_t part = spans_of(g, gr_layer_cut(l), s) * x->size, ld = x->ld * x->size;
    for (uint32_t i = 0; i < g->n; i++) {
        const uint64_t bytes = s[i].run * x->size;
        if (s[i].g->copies > 1 && !copies) continue;
        for (uint32_t k = 0; k < s[i].count; k++) {
            char *all = x->all + run_at(&s[i], r, k) * x->size,
                 *own = x->own + s[i].in_part * x->size + k * bytes;
            if (to_own)
                l->k->copy_rows(l->q, own, part, all, ld, bytes, x->n);
            else
                l->k->copy_rows(l->q, all, ld, own, part, bytes, x->n);
        }
    }
}

/* ---- sums of copies --------------------------------------------------------------------------------------
 */

static uint32_t copies_of(const gr_layer_columns *g)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < g->n; i++) most = GR_MAX(most, g->group[i].copies);
    return most;
}

/* Columns of all groups that have copies. */
static uint64_t copied_width(const gr_layer_columns *g)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < g->n; i++) n += g->group[i].copies > 1 ? g->group[i].width : 0;
    return n;
}

static uint64_t sum_bytes(const gr_layer_call *l, const gr_layer_columns *g, uint64_t tokens)
{
    return gr_align(tokens * copied_width(g) * gr_dtype_size(l->k->dtype), 256);
}

/* Sums that are open at once: one for each level of the tree, and its leaf. */
static uint32_t open_sums(uint32_t copies)
{
    uint32_t n = 1;
    while (1u << (n - 1) < copies) n++;
    return n;
}

/* What came of copy `copy` of each head that has copies, dense. */
static void copy_leaf(const gr_layer_call *l, const gr_layer_columns *g, const char *parts, uint32_t copy,
                      char *to)
{
    span s[GR_LAYER_GROUPS];
    const uint64_t size = gr_dtype_size(l->k->dtype), part = spans_of(g, gr_layer_cut(l), s) * size,
                   ld = copied_width(g) * size;
    for (uint32_t i = 0; i < g->n; i++) {
        const uint64_t bytes = s[i].run * size;
        if (s[i].g->copies < 2) continue;
        for (uint32_t head = 0; head < s[i].g->heads; head++, to += bytes) {
            const uint64_t of = (uint64_t)head * s[i].g->copies + copy, r = of / s[i].count;
            l->k->copy_rows(l->q, to, ld,
                            parts + r * l->b.n * part + s[i].in_part * size + of % s[i].count * bytes, part,
                            bytes, l->b.n);
        }
    }
}

/* Of copies [first, first + n), at sums. */
static void sum_copies(const gr_layer_call *l, const gr_layer_columns *g, const char *parts, uint32_t first,
                       uint32_t n, char *sums)
{
    const uint32_t half = (n + 1) / 2;
    char *other = sums + sum_bytes(l, g, l->b.n);
    if (n == 1) {
        copy_leaf(l, g, parts, first, sums);
        return;
    }
    sum_copies(l, g, parts, first, half, sums);
    sum_copies(l, g, parts, first + half, n - half, other);
    l->k->add(l->q, sums, other, l->k->dtype, l->b.n * copied_width(g));
}

/* From dense sums to where the groups stand. */
static void put_sums(const gr_layer_call *l, const gr_layer_columns *g, const char *sums, char *all,
                     uint64_t ld)
{
    const uint64_t size = gr_dtype_size(l->k->dtype), from = copied_width(g) * size;
    for (uint32_t i = 0; i < g->n; i++) {
        const uint64_t bytes = g->group[i].width * size;
        if (g->group[i].copies > 1) {
            l->k->copy_rows(l->q, all, ld * size, sums, from, bytes, l->b.n);
            sums += bytes;
        }
        all += bytes;
    }
}

/* ---- exchanges -------------------------------------------------------------------------------------------
 */

static uint64_t part_bytes(const gr_layer_call *l, const gr_layer_columns *g, uint64_t tokens)
{
    span s[GR_LAYER_GROUPS];
    return tokens * spans_of(g, gr_layer_cut(l), s) * gr_dtype_size(l->k->dtype);
}

static uint64_t parts_bytes(const gr_layer_call *l, const gr_layer_columns *g, uint64_t tokens)
{
    return gr_align(gr_layer_cut(l) * part_bytes(l, g, tokens), 256);
}

void *gr_layer_parts(gr_workspace *c, const gr_layer_call *l, const gr_layer_columns *g, bool back)
{
    const uint32_t copies = copies_of(g), sums = back && copies > 1 ? open_sums(copies) : 0;
    const uint64_t tokens = l->bounds.tokens;
    return gr_workspace_bytes(c, parts_bytes(l, g, tokens) + sums * sum_bytes(l, g, tokens));
}

/* Between a row's columns and the parts of all ranks. */
static void place(const gr_layer_call *l, const gr_layer_columns *g, void *all, uint64_t ld, char *parts,
                  bool to_parts)
{
    const uint64_t bytes = part_bytes(l, g, l->b.n);
    for (uint64_t r = 0; r < gr_layer_cut(l); r++) {
        const layouts x = {all, parts + r * bytes, ld, l->b.n, gr_dtype_size(l->k->dtype)};
        move(l, g, &x, r, to_parts, to_parts);
    }
}

/* What each rank gets of another's tokens are dense rows: side by side they are all tokens. */
void gr_layer_to_heads(const gr_layer_call *l, const gr_layer_columns *g, const void *rows, uint64_t ld,
                       void *heads, void *parts)
{
    place(l, g, (void *)(uintptr_t)rows, ld, parts, true);
    gr_tp_exchange(l->q, parts, heads, part_bytes(l, g, l->b.n), (uint32_t)gr_dtype_size(l->k->dtype));
}

void gr_layer_to_tokens(const gr_layer_call *l, const gr_layer_columns *g, const void *heads, void *rows,
                        uint64_t ld, void *parts)
{
    char *sums = (char *)parts + parts_bytes(l, g, l->b.n);
    gr_tp_exchange(l->q, heads, parts, part_bytes(l, g, l->b.n), (uint32_t)gr_dtype_size(l->k->dtype));
    place(l, g, rows, ld, parts, false);
    if (copies_of(g) < 2) return;
    sum_copies(l, g, parts, 0, copies_of(g), sums);
    put_sums(l, g, sums, rows, ld);
}

/* ---- weights ---------------------------------------------------------------------------------------------
 */

uint32_t gr_layer_place(const gr_layer_call *l)
{
    return gr_layer_cut(l) > 1 ? l->q->sharers->comm->rank : 0;
}

void gr_layer_take_own(const gr_layer_call *l, const gr_layer_columns *g, gr_dtype type, const void *all,
                       void *own)
{
    const layouts x = {(char *)(uintptr_t)all, own, 0, 1, gr_dtype_size(type)};
    move(l, g, &x, gr_layer_place(l), true, true);
}

void gr_layer_put_own(const gr_layer_call *l, const gr_layer_columns *g, gr_dtype type, const void *own,
                      void *all)
{
    const layouts x = {all, (char *)(uintptr_t)own, 0, 1, gr_dtype_size(type)};
    move(l, g, &x, gr_layer_place(l), false, true);
}

void *gr_layer_of_heads(const gr_layer_call *l, const void *of_heads, uint32_t own, gr_dtype type)
{
    return of_heads ? (char *)(uintptr_t)of_heads + (uint64_t)gr_layer_place(l) * own * gr_dtype_size(type)
                    : NULL;
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
