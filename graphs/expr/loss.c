/* graphs/expr/loss.c: a differentiated loss, cut into prepare, adjoint and value. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "graphs/expr/loss.h"
#include "graphs/expr/code_new.h"
#include "graphs/expr/expr_ast.h"

enum { MAX_FRESH = 16, N_STAGES = 3, N_LEVELS = GR_LEVEL_TOKEN + 1 };

typedef struct named {
    const char *name;
    gr_typed value;
    bool metric; /* the value of a metric, or a name of its own */
} named;

struct gr_loss {
    gr_ir *ir;
    gr_loss_class class;
    const char *why;
    gr_loc why_at;
    const char *file; /* of the loss; a function it calls may stand in another */
    int rows;         /* row set of the current values */
    int current[MAX_FRESH], adjoint[MAX_FRESH];
    size_t n_current;
    int *results; /* the loss, then the metrics */
    size_t n_results;
    named *names; /* for explain */
    size_t n_names, cap_names;
    int *keeps; /* instructions of the store: by level, then slot */
    size_t n_keeps;
    unsigned n_kept[N_LEVELS], *kept;
    gr_ir_program *stage[N_STAGES];
    gr_code *code[N_STAGES];
    int *reads[N_STAGES];
    size_t n_reads[N_STAGES];
};

/* ---- checking ----------------------------------------------------------------------------------------- */

static bool is_result(const gr_expr *e, gr_typed v, const char *what, gr_diag *d)
{
    if (v.node < 0) return false;
    gr_loc at = e->lines[e->n_lines - 1].value->at;
    if (v.kind != GR_KIND_NUMBER) {
        (void)gr_diag_error(d, at, GR_E_INVALID, "%s is true or false; it must be a number", what);
    } else if (v.level != GR_LEVEL_SCALAR) {
        (void)gr_diag_error(
            d, at, GR_E_INVALID,
            "%s is a %s value; it must be a scalar: reduce it, e.g. with token_mean() or batch_mean()", what,
            gr_level_str(v.level));
    }
    return true;
}

static void lower_one(gr_loss *l, const gr_expr *e, size_t i, const char *what, const gr_expr_scope *scope,
                      gr_expr_values *b, gr_diag *d)
{
    gr_typed *v = gr_calloc(e->n_lines, sizeof(*v));
    size_t n_before = b->n;
    gr_expr_lower(e, scope, l->ir, b, v, d);
    for (size_t k = 0; k < e->n_lines; k++) {
        const char *name = e->lines[k].name ? e->lines[k].name : what;
        GR_PUSH(l->names, l->n_names, l->cap_names,
                ((named){gr_arena_strdup(l->ir->arena, name), v[k], i > 0}));
    }
    if (is_result(e, v[e->n_lines - 1], what, d)) l->results[i] = v[e->n_lines - 1].node;
    if (i > 0) b->n = n_before; /* a metric's own names are its own */
    free(v);
}

static void lower_all(gr_loss *l, const gr_expr *loss, const gr_loss_metric *metrics, size_t n_metrics,
                      const gr_expr_scope *scope, gr_diag *d)
{
    gr_expr_values b = {0};
    l->file = loss->lines[0].at.file;
    lower_one(l, loss, 0, "loss", scope, &b, d);
    for (size_t i = 0; i < n_metrics; i++)
        lower_one(l, metrics[i].expr, i + 1, metrics[i].name, scope, &b, d);
    gr_expr_values_warn_unused(&b, d);
    free(b.items);
}

static void differentiate(gr_loss *l, const gr_expr *loss, gr_diag *d)
{
    l->n_current = gr_ir_differentiate(l->ir, l->results[0], l->current, l->adjoint, MAX_FRESH);
    for (size_t i = 0; i < l->ir->n; i++) {
        const gr_ir_node *n = &l->ir->nodes[i];
        if (n->op == GR_IR_SYM && n->current) l->rows = n->rows;
    }
    if (l->n_current) return;
    (void)gr_diag_error(
        d, loss->lines[loss->n_lines - 1].value->at, GR_E_INVALID,
        "the loss depends on nothing that trains: it must read logprob, entropy or value, not only "
        "under stop_gradient, comparisons or floor");
}

/* ---- stages ------------------------------------------------------------------------------------------- */

static void mark_reachable(const gr_loss *l, bool *marks)
{
    for (size_t i = 0; i < l->n_current; i++) marks[l->adjoint[i]] = true;
    for (size_t i = l->ir->n; i-- > 0;) {
        for (int k = 0; marks[i] && k < 3; k++) {
            if (l->ir->nodes[i].arg[k] >= 0) marks[l->ir->nodes[i].arg[k]] = true;
        }
    }
}

/* A constant of the pass that a range cannot, or need not, compute again. Token-level arithmetic over columns
 * is cheaper than its memory. */
static bool worth_keeping(const gr_ir_node *n)
{
    if (n->current || n->op == GR_IR_CONST) return false;
    return n->level < GR_LEVEL_TOKEN || !(n->op == GR_IR_SYM || gr_ir_pointwise(n->op));
}

/* What the adjoint reads directly, from the derivatives up; nothing below a kept value is read. */
static void choose_kept(gr_loss *l)
{
    gr_ir *ir = l->ir;
    bool *read = gr_calloc(ir->n, sizeof(*read));
    l->kept = gr_arena_alloc(ir->arena, ir->n * sizeof(*l->kept));
    l->keeps = gr_arena_alloc(ir->arena, ir->n * sizeof(*l->keeps));
    for (size_t i = 0; i < l->n_current; i++) read[l->adjoint[i]] = true;
    for (size_t i = ir->n; i-- > 0;) {
        const gr_ir_node *n = &ir->nodes[i];
        if (!read[i]) continue;
        if (worth_keeping(n)) {
            l->keeps[l->n_keeps++] = (int)i;
            l->kept[i] = 1 + l->n_kept[n->level]++;
            continue;
        }
        for (int k = 0; k < 3; k++) {
            if (n->arg[k] >= 0) read[n->arg[k]] = true;
        }
    }
    free(read);
}

static gr_loss_class class_of(const gr_ir_node *n)
{
    if (!n->current || n->op == GR_IR_SYM) return GR_LOSS_TOKEN;
    bool across = n->op == GR_IR_TOP || n->op == GR_IR_CHOOSE || n->op == GR_IR_RANK || n->op == GR_IR_NTH;
    bool coarse = n->level != GR_LEVEL_TOKEN && n->level != GR_LEVEL_SEQ;
    if (across || coarse || n->from == GR_LEVEL_POSITION) return GR_LOSS_BATCH;
    return n->level == GR_LEVEL_TOKEN && gr_ir_pointwise(n->op) ? GR_LOSS_TOKEN : GR_LOSS_SEQ;
}

static void classify(gr_loss *l)
{
    bool *marks = gr_calloc(l->ir->n, sizeof(*marks));
    mark_reachable(l, marks);
    l->why = "";
    for (size_t i = 0; i < l->ir->n; i++) {
        const gr_ir_node *n = &l->ir->nodes[i];
        if (!marks[i] || class_of(n) <= l->class) continue;
        l->class = class_of(n);
        l->why_at = n->at;
        l->why =
            gr_arena_printf(l->ir->arena, "the derivative of '%s' needs the fresh values of the whole %s",
                            n->src, l->class == GR_LOSS_SEQ ? "sequence" : "mini-batch");
    }
    free(marks);
}

static void make_stages(gr_loss *l)
{
    choose_kept(l);
    gr_ir *ir = l->ir;
    l->stage[GR_LOSS_PREPARE] = gr_ir_program_new(ir, l->keeps, l->n_keeps, NULL);
    l->stage[GR_LOSS_ADJOINT] = gr_ir_program_new(ir, l->adjoint, l->n_current, l->kept);
    l->stage[GR_LOSS_VALUE] = gr_ir_program_new(ir, l->results, l->n_results, NULL);
    for (int s = 0; s < N_STAGES; s++) l->reads[s] = gr_ir_program_reads(l->stage[s], &l->n_reads[s]);
}

static gr_code_arg kept_arg(const gr_loss *l, int node)
{
    return (gr_code_arg){GR_CODE_KEPT, (uint8_t)l->ir->nodes[node].level, (uint16_t)(l->kept[node] - 1)};
}

static void make_code(gr_loss *l)
{
    size_t n = GR_MAX(GR_MAX(l->n_keeps, l->n_current), l->n_results);
    gr_code_goal *goals = gr_calloc(n + 1, sizeof(*goals));
    for (size_t i = 0; i < l->n_keeps; i++)
        goals[i] = (gr_code_goal){l->keeps[i], l->ir->nodes[l->keeps[i]].rows, kept_arg(l, l->keeps[i])};
    l->code[GR_LOSS_PREPARE] = gr_code_new(l->ir, goals, l->n_keeps, NULL);
    for (size_t i = 0; i < l->n_current; i++)
        goals[i] = (gr_code_goal){l->adjoint[i], l->rows, {GR_CODE_OUT, GR_LEVEL_TOKEN, (uint16_t)i}};
    l->code[GR_LOSS_ADJOINT] = gr_code_new(l->ir, goals, l->n_current, l->kept);
    for (size_t i = 0; i < l->n_results; i++)
        goals[i] = (gr_code_goal){l->results[i], -1, {GR_CODE_OUT, GR_LEVEL_SCALAR, (uint16_t)i}};
    l->code[GR_LOSS_VALUE] = gr_code_new(l->ir, goals, l->n_results, NULL);
    free(goals);
}

gr_status gr_loss_new(gr_loss **out, const gr_expr *loss, const gr_loss_metric *metrics, size_t n_metrics,
                      const gr_expr_scope *scope, gr_diag *d)
{
    gr_diag own;
    gr_diag_init(&own);
    if (!d) d = &own;
    size_t before = d->n_errors;
    gr_loss *l = gr_calloc(1, sizeof(*l));
    l->ir = gr_ir_new();
    l->n_results = 1 + n_metrics;
    l->results = gr_arena_alloc(l->ir->arena, l->n_results * sizeof(*l->results));
    lower_all(l, loss, metrics, n_metrics, scope, d);
    if (d->n_errors == before) differentiate(l, loss, d);
    if (d->n_errors == before) {
        classify(l);
        make_stages(l);
        make_code(l);
        *out = l;
    } else {
        gr_loss_free(l);
    }
    gr_status st = d->n_errors == before ? GR_OK : GR_E_INVALID;
    gr_diag_release(&own);
    return st;
}

void gr_loss_free(gr_loss *l)
{
    if (!l) return;
    gr_ir_free(l->ir);
    free(l->names);
    free(l);
}

/* ---- questions ---------------------------------------------------------------------------------------- */

gr_loss_class gr_loss_class_of(const gr_loss *l)
{
    return l->class;
}

const char *gr_loss_why(const gr_loss *l, gr_loc *at)
{
    *at = l->why_at;
    return l->why;
}

const int *gr_loss_current(const gr_loss *l, size_t *n)
{
    *n = l->n_current;
    return l->current;
}

const int *gr_loss_reads(const gr_loss *l, gr_loss_stage stage, size_t *n)
{
    *n = l->n_reads[stage];
    return l->reads[stage];
}

const gr_code *gr_loss_code(const gr_loss *l, gr_loss_stage stage)
{
    return l->code[stage];
}

const unsigned *gr_loss_kept(const gr_loss *l)
{
    return l->n_kept;
}

int gr_loss_rows(const gr_loss *l)
{
    return l->rows;
}

size_t gr_loss_results(const gr_loss *l)
{
    return l->n_results;
}

static const char *const class_names[] = {"token", "sequence", "mini-batch"};

void gr_loss_explain(const gr_loss *l, gr_str *out)
{
    for (size_t i = 0; i < l->n_names; i++) {
        const named *v = &l->names[i];
        if (v->metric) gr_str_puts(out, "metric ");
        gr_expr_explain_line(v->name, v->value, out);
        gr_str_printf(out, ", %s\n",
                      l->ir->nodes[v->value.node].current ? "of this pass" : "known before it");
    }
    gr_str_printf(out, "class: %s-coupled", class_names[l->class]);
    if (l->class != GR_LOSS_TOKEN) {
        bool elsewhere = l->why_at.file && l->file && strcmp(l->why_at.file, l->file);
        gr_str_printf(out, ": %s (%s%s%u:%u)", l->why, elsewhere ? l->why_at.file : "", elsewhere ? ":" : "",
                      l->why_at.line, l->why_at.col);
    }
    gr_str_putc(out, '\n');
}

void gr_loss_print(const gr_loss *l, gr_str *out)
{
    static const char *const names[] = {"prepare", "adjoint", "value"};
    for (int s = 0; s < N_STAGES; s++) {
        gr_str_printf(out, "%s:\n", names[s]);
        gr_ir_program_print(l->stage[s], out);
    }
    for (size_t i = 0; i < l->n_keeps; i++) gr_str_printf(out, "keep %%%d\n", l->keeps[i]);
    for (size_t i = 0; i < l->n_current; i++)
        gr_str_printf(out, "adjoint #%d = %%%d\n", l->current[i], l->adjoint[i]);
    for (size_t i = 0; i < l->n_results; i++) gr_str_printf(out, "result %%%d\n", l->results[i]);
}

/* ---- evaluating --------------------------------------------------------------------------------------- */

static void counts_of_bounds(gr_expr_bounds b, uint64_t *count)
{
    const uint64_t c[N_LEVELS] = {1, b.groups, b.seqs, b.tokens, b.tokens};
    memcpy(count, c, sizeof(c));
}

uint64_t gr_loss_store_bytes(const gr_loss *l, gr_expr_bounds mini_batch)
{
    uint64_t count[N_LEVELS];
    counts_of_bounds(mini_batch, count);
    return gr_align(gr_ir_frame_doubles(l->n_kept, count) * sizeof(double), 16);
}

uint64_t gr_loss_work_bytes(const gr_loss *l, gr_loss_stage stage, gr_expr_bounds mini_batch,
                            gr_expr_bounds range)
{
    return gr_align(gr_ir_program_bytes(l->stage[stage], stage == GR_LOSS_ADJOINT ? range : mini_batch,
                                        mini_batch.groups),
                    16);
}

/* The same layout for whoever fills and whoever reads it. */
static gr_ir_frame store_frame(const gr_loss *l, const gr_expr_env *env, const void *store)
{
    gr_ir_frame f = {(double *)store, l->n_kept, {0}};
    gr_ir_counts(l->stage[GR_LOSS_PREPARE], env, f.count);
    return f;
}

void gr_loss_prepare(const gr_loss *l, const gr_expr_env *env, void *store, void *work)
{
    gr_ir_run r;
    gr_ir_frame to = store_frame(l, env, store);
    gr_ir_run_whole(&r, l->stage[GR_LOSS_PREPARE], env, (gr_ir_frame){0}, work);
    for (size_t i = 0; i < l->n_keeps; i++) {
        int x = l->keeps[i];
        gr_level level = l->ir->nodes[x].level;
        double *slot = (double *)gr_ir_slot(&to, level, l->kept[x] - 1);
        const double *from = gr_ir_slot(&r.frame, level, r.p->slot[x]);
        memcpy(slot, from, to.count[level] * sizeof(*slot));
    }
}

void gr_loss_adjoint(const gr_loss *l, const gr_expr_env *env, const void *store, uint32_t first,
                     uint32_t end, float *const *adjoint, void *work)
{
    const gr_expr_rows *rows = &env->rows[l->rows];
    assert(first <= end && end <= rows->offset[rows->n_seqs]);
    assert(l->class != GR_LOSS_BATCH || (first == 0 && end == rows->offset[rows->n_seqs]));
    gr_ir_run r;
    const gr_ir_program *p = l->stage[GR_LOSS_ADJOINT];
    gr_ir_frame kept = store_frame(l, env, store);
    if (l->class == GR_LOSS_BATCH)
        gr_ir_run_whole(&r, p, env, kept, work);
    else
        gr_ir_run_range(&r, p, env, kept, l->rows, first, end, work);
    for (size_t i = 0; i < l->n_current; i++)
        gr_ir_output(&r, l->adjoint[i], GR_LEVEL_TOKEN, l->rows, adjoint[i]);
}

void gr_loss_value(const gr_loss *l, const gr_expr_env *env, double *values, void *work)
{
    gr_ir_run r;
    gr_ir_run_whole(&r, l->stage[GR_LOSS_VALUE], env, (gr_ir_frame){0}, work);
    for (size_t i = 0; i < l->n_results; i++) values[i] = gr_ir_output_scalar(&r, l->results[i]);
}
