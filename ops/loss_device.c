/* ops/loss_device.c: losses where the device evaluates them: columns and rows move there, stages are
 * launched. */
#include "ops/loss_device.h"

#include <assert.h>
#include <stdlib.h>

#include "graphs/expr/code_new.h"
#include "graphs/expr/expr_apply.h"
#include "ops/kernels/workspace.h"

/* The row structure of one row set, on the host and in the same order on the device. */
typedef struct row_block {
    uint32_t *offset, *group, *first, *position;
    uint8_t *mask; /* NULL: no row set has one */
} row_block;

/* One row set of the current mini-batch. */
typedef struct row_set {
    gr_code_rows device;
    const uint32_t *offset; /* on the host */
    uint32_t n_positions;
} row_set;

struct gr_loss_device {
    const gr_kernels *kernels;
    const gr_loss *loss;
    const gr_loss_inputs *in;
    gr_expr_bounds range;
    row_set *rows;           /* by number of the row set */
    row_block *blocks;       /* [2, row sets] on the host, and where they are copied to */
    gr_code_column *columns; /* by id */
    gr_code_keys keys;
    uint32_t n_groups;
};

/* ---- sizes and places ---------------------------------------------------------------------------------- */

static void counts_of(gr_expr_bounds b, uint64_t *count)
{
    const uint64_t c[GR_CODE_LEVELS] = {1, b.groups, b.seqs, b.tokens, b.tokens};
    memcpy(count, c, sizeof(c));
}

static row_block layout_rows(gr_workspace *c, const gr_loss_inputs *in)
{
    row_block r = {0};
    const gr_expr_bounds b = in->bounds;
    r.offset = gr_workspace_bytes(c, (b.seqs + 1ull) * sizeof(uint32_t));
    r.group = gr_workspace_bytes(c, b.seqs * sizeof(uint32_t));
    r.first = gr_workspace_bytes(c, (b.groups + 1ull) * sizeof(uint32_t));
    r.position = gr_workspace_bytes(c, (b.groups + 1ull) * sizeof(uint32_t));
    if (in->masked) r.mask = gr_workspace_bytes(c, b.tokens);
    return r;
}

static uint64_t dtype_bytes(gr_expr_dtype t)
{
    return t == GR_EXPR_F64 ? 8 : t == GR_EXPR_U8 ? 1 : 4;
}

/* What comes from the host as it is written there: row structure, then a number for each scalar column. */
static void layout_host(gr_workspace *c, const gr_loss_inputs *in, row_block *rows, double **scalars)
{
    for (size_t i = 0; i < in->n_rows; i++) {
        row_block r = layout_rows(c, in);
        if (rows) rows[i] = r;
    }
    double *s = gr_workspace_bytes(c, in->n_columns * sizeof(double));
    if (scalars) *scalars = s;
}

uint64_t gr_loss_host_bytes(const gr_loss_inputs *in)
{
    gr_workspace c = {0};
    layout_host(&c, in, NULL, NULL);
    return c.used;
}

/* Behind a copy of the host's part: the columns. */
static void *layout_column(gr_workspace *c, const gr_loss_inputs *in, const gr_loss_column *x)
{
    uint64_t count[GR_CODE_LEVELS];
    counts_of(in->bounds, count);
    return x->level == GR_LEVEL_SCALAR ? NULL
                                       : gr_workspace_bytes(c, count[x->level] * dtype_bytes(x->dtype));
}

uint64_t gr_loss_data_bytes(const gr_loss_inputs *in)
{
    gr_workspace c = {0};
    layout_host(&c, in, NULL, NULL);
    for (size_t i = 0; i < in->n_columns; i++) layout_column(&c, in, &in->columns[i]);
    return c.used;
}

/* Of one adjoint call. */
static gr_expr_bounds of_range(const gr_loss *l, gr_expr_bounds mini_batch, gr_expr_bounds range)
{
    if (gr_loss_class_of(l) == GR_LOSS_BATCH) return mini_batch;
    return (gr_expr_bounds){mini_batch.groups, range.seqs, range.tokens};
}

uint64_t gr_loss_frame_bytes(const gr_loss *l, gr_expr_bounds mini_batch, gr_expr_bounds range)
{
    uint64_t most = 0;
    for (gr_loss_stage s = GR_LOSS_PREPARE; s <= GR_LOSS_VALUE; s++) {
        uint64_t count[GR_CODE_LEVELS];
        gr_expr_bounds b = mini_batch;
        if (s == GR_LOSS_ADJOINT) b = of_range(l, b, range);
        counts_of(b, count);
        most = GR_MAX(most, gr_ir_frame_doubles(gr_loss_code(l, s)->n_slots, count) * sizeof(double));
    }
    return most;
}

static gr_code_frame frame_of(void *memory, const unsigned *n_slots, gr_expr_bounds b)
{
    gr_code_frame f;
    double *at = memory;
    counts_of(b, f.stride);
    for (int l = 0; l < GR_CODE_LEVELS; l++) {
        f.base[l] = at;
        at += n_slots[l] * f.stride[l];
    }
    return f;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

gr_loss_device *gr_loss_device_new(const gr_kernels *k, const gr_loss *l, const gr_loss_inputs *in,
                                   gr_expr_bounds range)
{
    gr_loss_device *x = gr_calloc(1, sizeof(*x));
    *x = (gr_loss_device){.kernels = k, .loss = l, .in = in, .range = range};
    size_t n, n_rows = (size_t)gr_loss_rows(l) + 1;
    const int *ids = gr_loss_reads(l, GR_LOSS_VALUE, &n); /* ascending, and all that any stage reads */
    size_t n_columns = n ? (size_t)ids[n - 1] + 1 : 1;
    for (size_t i = 0; i < in->n_rows; i++) n_rows = GR_MAX(n_rows, (size_t)in->rows[i] + 1);
    for (size_t i = 0; i < in->n_columns; i++) n_columns = GR_MAX(n_columns, (size_t)in->columns[i].id + 1);
    x->rows = gr_calloc(n_rows, sizeof(*x->rows));
    x->columns = gr_calloc(n_columns, sizeof(*x->columns));
    x->blocks = gr_calloc(2 * in->n_rows + 1, sizeof(*x->blocks));
    return x;
}

void gr_loss_device_free(gr_loss_device *x)
{
    if (!x) return;
    free(x->rows);
    free(x->columns);
    free(x->blocks);
    free(x);
}

/* ---- a mini-batch's data ------------------------------------------------------------------------------- */

/* A group has as many positions as its longest sequence has tokens. */
static void fill_rows(const row_block *to, const gr_expr_rows *rows, uint32_t n_groups)
{
    memcpy(to->offset, rows->offset, (rows->n_seqs + 1ull) * sizeof(uint32_t));
    memcpy(to->group, rows->group, rows->n_seqs * sizeof(uint32_t));
    if (rows->mask) memcpy(to->mask, rows->mask, rows->offset[rows->n_seqs]);
    uint32_t seq = 0;
    to->position[0] = 0;
    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t longest = 0;
        for (to->first[g] = seq; seq < rows->n_seqs && rows->group[seq] == g; seq++)
            longest = GR_MAX(longest, rows->offset[seq + 1] - rows->offset[seq]);
        to->position[g + 1] = to->position[g] + longest;
    }
    to->first[n_groups] = rows->n_seqs;
}

static void set_rows(gr_loss_device *x, const gr_expr_env *env, const row_block *host,
                     const row_block *device)
{
    for (size_t i = 0; i < x->in->n_rows; i++) {
        const gr_expr_rows *rows = &env->rows[x->in->rows[i]];
        fill_rows(&host[i], rows, env->n_groups);
        x->rows[x->in->rows[i]] = (row_set){.device = {.offset = device[i].offset,
                                                       .group = device[i].group,
                                                       .first = device[i].first,
                                                       .position = device[i].position,
                                                       .mask = rows->mask ? device[i].mask : NULL,
                                                       .n_seqs = rows->n_seqs,
                                                       .first_seq = rows->first_seq},
                                            .offset = host[i].offset,
                                            .n_positions = host[i].position[env->n_groups]};
    }
}

static double number_at(const gr_expr_column *c)
{
    switch (c->dtype) {
    case GR_EXPR_F32:
        return (double)*(const float *)c->data;
    case GR_EXPR_F64:
        return *(const double *)c->data;
    case GR_EXPR_I32:
        return *(const int32_t *)c->data;
    default:
        return *(const uint8_t *)c->data;
    }
}

static uint64_t count_at(const gr_loss_device *x, const gr_expr_env *env, const gr_loss_column *c)
{
    const gr_expr_rows *rows = c->rows < 0 ? NULL : &env->rows[c->rows];
    if (c->level == GR_LEVEL_GROUP) return x->n_groups;
    return c->level == GR_LEVEL_SEQ ? rows->n_seqs : rows->offset[rows->n_seqs];
}

static void set_column(gr_loss_device *x, gr_queue *q, const gr_expr_env *env, const gr_loss_column *c,
                       void *device)
{
    const gr_expr_column *from = &env->columns[c->id];
    uint64_t bytes = count_at(x, env, c) * dtype_bytes(c->dtype);
    assert(from->dtype == c->dtype);
    if (bytes) x->kernels->copy(q, device, from->data, bytes);
    x->columns[c->id] = (gr_code_column){device, c->dtype};
}

/* All that is read, as it is: fresh columns stay so, the others are then set to their copies. */
static void set_columns(gr_loss_device *x, const gr_expr_env *env)
{
    size_t n;
    const int *ids = gr_loss_reads(x->loss, GR_LOSS_VALUE, &n);
    for (size_t i = 0; i < n; i++)
        x->columns[ids[i]] = (gr_code_column){env->columns[ids[i]].data, env->columns[ids[i]].dtype};
}

/* What the host knows goes in one copy; the columns follow, each from where it lies. */
static void set_data(gr_loss_device *x, gr_queue *q, const gr_expr_env *env, const gr_loss_memory *m)
{
    const gr_loss_inputs *in = x->in;
    gr_workspace host = {.base = m->host}, device = {.base = m->data};
    row_block *blocks = x->blocks;
    double *scalars, *scalars_there;
    layout_host(&host, in, blocks, &scalars);
    layout_host(&device, in, blocks + in->n_rows, &scalars_there);
    set_rows(x, env, blocks, blocks + in->n_rows);
    for (size_t i = 0; i < in->n_columns; i++) {
        const gr_loss_column *c = &in->columns[i];
        void *at = layout_column(&device, in, c);
        if (c->level != GR_LEVEL_SCALAR) {
            set_column(x, q, env, c, at);
            continue;
        }
        scalars[i] = number_at(&env->columns[c->id]);
        x->columns[c->id] = (gr_code_column){scalars_there + i, GR_EXPR_F64};
    }
    x->kernels->copy(q, m->data, m->host, host.used);
}

/* ---- stages -------------------------------------------------------------------------------------------- */

/* The part of the mini-batch that a stage walks. */
typedef struct walked {
    bool whole;
    uint32_t first, end, first_seq, end_seq; /* where not whole: tokens, and their sequences */
} walked;

static void set_span(gr_code_call *c, const gr_loss_device *x, const walked *w)
{
    const row_set *rows = &x->rows[GR_MAX(c->pass.rows, 0)];
    bool sequences = c->pass.form == GR_CODE_SCAN || c->pass.level == GR_LEVEL_SEQ;
    if (c->pass.level == GR_LEVEL_SCALAR) {
        c->n = 1;
    } else if (c->pass.level == GR_LEVEL_GROUP) {
        c->n = x->n_groups;
    } else if (c->pass.level == GR_LEVEL_POSITION) {
        c->n = rows->n_positions;
    } else if (sequences) {
        c->first = w->whole ? 0 : w->first_seq;
        c->n = w->whole ? rows->device.n_seqs : w->end_seq - w->first_seq;
    } else {
        c->first = w->whole ? 0 : w->first;
        c->n = w->whole ? rows->offset[rows->device.n_seqs] : w->end - w->first;
    }
}

static void run_pass(const gr_loss_device *x, gr_queue *q, const gr_code_pass *p, const walked *w,
                     gr_code_call *c)
{
    c->pass = *p;
    c->first = 0;
    set_span(c, x, w);
    if (!c->n) return;
    if (p->rows >= 0) c->rows = x->rows[p->rows].device;
    for (unsigned i = 0; i < p->n_columns; i++) c->column[i] = x->columns[p->column[i]];
    x->kernels->code_run(q, c);
}

/* call: has the outputs. */
static void run_stage(const gr_loss_device *x, gr_queue *q, gr_loss_stage stage, const gr_loss_memory *m,
                      const walked *w, gr_code_call *call)
{
    const gr_code *code = gr_loss_code(x->loss, stage);
    gr_expr_bounds b = x->in->bounds;
    call->kept = frame_of(m->store, gr_loss_kept(x->loss), b);
    if (stage == GR_LOSS_ADJOINT) b = of_range(x->loss, b, x->range);
    call->frame = frame_of(m->work, code->n_slots, b);
    call->n_groups = x->n_groups;
    call->keys = x->keys;
    if (!w->whole) {
        call->begin[GR_LEVEL_SEQ] = w->first_seq;
        call->begin[GR_LEVEL_TOKEN] = w->first;
    }
    for (size_t i = 0; i < code->n; i++) run_pass(x, q, &code->passes[i], w, call);
}

void gr_loss_device_prepare(gr_loss_device *x, gr_queue *q, const gr_expr_env *env, const gr_loss_memory *m)
{
    gr_code_call call = {0};
    x->n_groups = env->n_groups;
    x->keys = (gr_code_keys){env->seed, env->node, env->step, env->epoch, env->round};
    set_columns(x, env);
    set_data(x, q, env, m);
    run_stage(x, q, GR_LOSS_PREPARE, m, &(walked){.whole = true}, &call);
}

void gr_loss_device_adjoint(gr_loss_device *x, gr_queue *q, const gr_loss_memory *m, uint32_t first,
                            uint32_t end, float *const *adjoint)
{
    const row_set *rows = &x->rows[gr_loss_rows(x->loss)];
    walked w = {.whole = gr_loss_class_of(x->loss) == GR_LOSS_BATCH, .first = first, .end = end};
    gr_code_call call = {0};
    size_t n;
    gr_loss_current(x->loss, &n);
    assert(n <= GR_CODE_OUTPUTS && first <= end && end <= rows->offset[rows->device.n_seqs]);
    for (size_t i = 0; i < n; i++) call.out[i] = adjoint[i];
    if (first == end) return;
    w.first_seq = gr_expr_range_of(rows->offset, rows->device.n_seqs, first);
    w.end_seq = gr_expr_range_of(rows->offset, rows->device.n_seqs, end - 1) + 1;
    run_stage(x, q, GR_LOSS_ADJOINT, m, &w, &call);
}

void gr_loss_device_value(gr_loss_device *x, gr_queue *q, const gr_loss_memory *m, double *values)
{
    gr_code_call call = {.value = values};
    run_stage(x, q, GR_LOSS_VALUE, m, &(walked){.whole = true}, &call);
}
