/* graphs/expr/expr_check.c: syntax tree to instructions, with levels, kinds and row sets checked. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graphs/expr/expr_functions.h"

enum { CALLS_MAX = 4096, CALL_DEPTH = 32 }; /* of the file's own functions, in one expression */

typedef struct checker {
    const gr_expr *e;
    const gr_expr_scope *scope;
    gr_ir *ir;
    gr_expr_values *b;
    gr_diag *d;
    unsigned depth; /* of calls */
} checker;

static const gr_typed poison = {.node = -1, .rows = -1};

static gr_typed lower(checker *c, const gr_ast *a);

static int words(const gr_ast *a) /* length for "%.*s" */
{
    return (int)GR_MIN(a->end - a->begin, 60);
}
#define WORDS(a) words(a), (a)->begin

GR_PRINTF(3, 4) static gr_typed fail(checker *c, gr_loc at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)gr_diag_verror(c->d, at, GR_E_INVALID, fmt, ap);
    va_end(ap);
    return poison;
}

static const char *rows_name(const checker *c, int rows)
{
    const char *name = c->scope->rows_name ? c->scope->rows_name(c->scope->user, rows) : NULL;
    return name ? name : "?";
}

/* ---- names -------------------------------------------------------------------------------------------- */

static gr_expr_value *value_find(const checker *c, const char *name)
{
    for (size_t i = c->b->n; i > 0; i--) {
        if (!strcmp(c->b->items[i - 1].name, name)) return &c->b->items[i - 1];
    }
    return NULL;
}

static void value_add(checker *c, const char *name, gr_typed value, gr_loc at)
{
    gr_expr_value b = {gr_arena_strdup(c->ir->arena, name), value, at, value.node < 0};
    GR_PUSH(c->b->items, c->b->n, c->b->cap, b);
}

static const gr_expr_function *function_find(const char *name)
{
    size_t n;
    const gr_expr_function *f = gr_expr_functions(&n);
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(f[i].name, name)) return &f[i];
    }
    return NULL;
}

static const char *near_value(const checker *c, const char *name)
{
    size_t n = 0;
    const char **all = gr_calloc(c->scope->n_names + c->b->n + 1, sizeof(*all));
    for (size_t i = 0; i < c->b->n; i++) {
        if (c->b->items[i].value.node >= 0) all[n++] = c->b->items[i].name;
    }
    for (size_t i = 0; i < c->scope->n_names; i++) all[n++] = c->scope->names[i];
    const char *near = gr_near(name, all, n);
    free(all);
    return near;
}

/* Fields of nodes that are called so: "a.length' or 'b.length"; the caller releases it. */
static gr_str fields_called(const checker *c, const char *name)
{
    gr_str s = {0};
    for (size_t i = 0; i < c->scope->n_names; i++) {
        const char *dot = strrchr(c->scope->names[i], '.');
        if (dot && !strcmp(dot + 1, name))
            gr_str_printf(&s, "%s%s", s.len ? "' or '" : "", c->scope->names[i]);
    }
    return s;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static gr_typed unknown_name(checker *c, const gr_ast *a)
{
    value_add(c, a->name, poison, a->at); /* said once */
    for (size_t i = 0; i < c->e->n_lines; i++) {
        const char *defined = c->e->lines[i].name;
        if (defined && !strcmp(defined, a->name))
            return fail(c, a->at, "'%s' is used before its definition; move that line up", a->name);
    }
    if (function_find(a->name))
        return fail(c, a->at, "'%s' is a function; write '%s(...)'", a->name, a->name);
    const char *near = !c->d || c->d->n_errors < GR_NEAR_ERRORS ? near_value(c, a->name) : NULL;
    gr_str fields = near ? (gr_str){0} : fields_called(c, a->name);
    if (fields.len) near = fields.text;
    gr_typed bad = near ? fail(c, a->at, "unknown name '%s'; did you mean '%s'?", a->name, near)
                        : fail(c, a->at, "unknown name '%s'", a->name);
    gr_str_release(&fields);
    if (ends_with(a->name, "logprob") || ends_with(a->name, "logp"))
        gr_diag_note(c->d, a->at,
                     "the log-probs of a model are a node: '%s: {op: logprob, model: MODEL, of: ROLLOUT}'",
                     a->name);
    return bad;
}

static gr_typed from_symbol(checker *c, const gr_expr_symbol *s)
{
    int rows = s->level >= GR_LEVEL_SEQ ? s->rows : -1;
    int node =
        s->constant ? gr_ir_const(c->ir, s->value) : gr_ir_sym(c->ir, s->level, rows, s->id, s->current);
    if (s->stopped) node = gr_ir_op1(c->ir, GR_IR_STOP, node);
    return (gr_typed){node, s->constant ? GR_LEVEL_SCALAR : s->level, s->kind, s->constant ? -1 : rows};
}

static gr_typed lower_name(checker *c, const gr_ast *a)
{
    gr_expr_value *b = value_find(c, a->name);
    if (b) {
        b->used = true;
        return b->value;
    }
    gr_expr_symbol s = {.rows = -1};
    if (!c->scope->resolve(c->scope->user, a->name, &s)) return unknown_name(c, a);
    return from_symbol(c, &s);
}

/* The row set of calls that name none. */
static int ambient_rows(checker *c, const gr_ast *a)
{
    int rows = c->scope->rows;
    if (rows >= 0) return rows;
    for (size_t i = 0; i < c->e->n_names; i++) {
        const gr_expr_value *b = value_find(c, c->e->names[i].name);
        gr_expr_symbol s = {.rows = -1};
        if (b)
            s.rows = b->value.rows;
        else if (!c->scope->resolve(c->scope->user, c->e->names[i].name, &s) || s.constant ||
                 s.level < GR_LEVEL_SEQ)
            continue;
        if (s.rows < 0 || s.rows == rows) continue;
        if (rows >= 0) {
            (void)fail(c, a->at, "'%.*s' does not say whose rows: '%s' or '%s'; give it an argument",
                       WORDS(a), rows_name(c, rows), rows_name(c, s.rows));
            return -1;
        }
        rows = s.rows;
    }
    if (rows < 0)
        (void)fail(c, a->at, "'%.*s' has no rows: nothing here is a sequence or token value", WORDS(a));
    return rows;
}

/* ---- types -------------------------------------------------------------------------------------------- */

static bool want_number(checker *c, const gr_ast *a, gr_typed v)
{
    if (v.node < 0) return false;
    if (v.kind == GR_KIND_NUMBER) return true;
    (void)fail(c, a->at, "'%.*s' is true or false where a number is wanted; use where(..., 1, 0)", WORDS(a));
    return false;
}

static bool want_bool(checker *c, const gr_ast *a, gr_typed v)
{
    if (v.node < 0) return false;
    if (v.kind == GR_KIND_BOOL) return true;
    (void)fail(c, a->at, "'%.*s' is a number where a condition is wanted; compare it, e.g. with > 0",
               WORDS(a));
    return false;
}

static bool want_scalar(checker *c, const gr_ast *a, gr_typed v)
{
    if (v.node < 0) return false;
    if (v.level == GR_LEVEL_SCALAR) return want_number(c, a, v);
    (void)fail(c, a->at, "'%.*s' is a %s value where a scalar is wanted", WORDS(a), gr_level_str(v.level));
    return false;
}

static bool want_constant(checker *c, const gr_ast *a, gr_typed v)
{
    if (v.node < 0) return false;
    if (!c->ir->nodes[v.node].current) return true;
    (void)fail(c, a->at, "'%.*s' depends on this pass; only the first argument may", WORDS(a));
    return false;
}

/* Level and row set where the arguments of a meet; false after an error or where one had failed. */
static bool join(checker *c, const gr_ast *a, const gr_typed *v, gr_level *level, int *rows)
{
    bool ok = true;
    unsigned first = 0;
    *level = GR_LEVEL_SCALAR;
    *rows = -1;
    for (unsigned i = 0; i < a->n_args; i++) {
        if (v[i].node < 0) ok = false;
        if (!ok) continue;
        *level = gr_level_join(*level, v[i].level);
        if (v[i].rows < 0 || v[i].rows == *rows) continue;
        if (*rows >= 0) {
            (void)fail(
                c, a->at,
                "'%.*s' has the rows of '%s' but '%.*s' those of '%s'; only values a prompt cross: bring one "
                "there, e.g. with group_mean(%.*s)",
                WORDS(a->arg[first]), rows_name(c, *rows), WORDS(a->arg[i]), rows_name(c, v[i].rows),
                WORDS(a->arg[i]));
            ok = false;
        }
        *rows = v[i].rows;
        first = i;
    }
    return ok;
}

/* ---- operators and pointwise functions ---------------------------------------------------------------- */

static void mark_place(checker *c, const gr_ast *a)
{
    c->ir->at = a->at;
    char *s = gr_arena_strndup(c->ir->arena, a->begin, (size_t)words(a));
    for (char *p = s; *p; p++) {
        if (*p == '\n') *p = ' ';
    }
    c->ir->src = s;
}

static bool check_kinds(checker *c, const gr_ast *a, gr_ir_op op, const gr_typed *v, gr_kind *result)
{
    bool ok = true, logic = op == GR_IR_AND || op == GR_IR_OR || op == GR_IR_NOT;
    bool any = op == GR_IR_EQ || op == GR_IR_NE || op == GR_IR_STOP;
    *result = logic || (op >= GR_IR_LT && op <= GR_IR_NE) ? GR_KIND_BOOL : GR_KIND_NUMBER;
    for (unsigned i = 0; i < a->n_args; i++) {
        if (any)
            ok = ok && v[i].node >= 0;
        else
            ok = (logic ? want_bool(c, a->arg[i], v[i]) : want_number(c, a->arg[i], v[i])) && ok;
    }
    if (!ok || !any) return ok;
    if (op == GR_IR_STOP)
        *result = v[0].kind;
    else if (v[0].kind != v[1].kind)
        return fail(c, a->at, "a condition is compared with a number").node >= 0;
    return true;
}

static gr_typed lower_pointwise(checker *c, const gr_ast *a, gr_ir_op op, bool swap, const gr_typed *v)
{
    gr_typed r = poison;
    if (!check_kinds(c, a, op, v, &r.kind) || !join(c, a, v, &r.level, &r.rows)) return poison;
    int x = v[0].node, y = a->n_args > 1 ? v[1].node : -1, z = a->n_args > 2 ? v[2].node : -1;
    r.node = swap ? gr_ir_op2(c->ir, op, y, x) : gr_ir_op3(c->ir, op, x, y, z);
    return r;
}

static gr_typed lower_fold(checker *c, const gr_ast *a, gr_ir_op op, const gr_typed *v)
{
    gr_typed r = poison;
    if (!check_kinds(c, a, op, v, &r.kind) || !join(c, a, v, &r.level, &r.rows)) return poison;
    r.node = v[0].node;
    for (unsigned i = 1; i < a->n_args; i++) r.node = gr_ir_op2(c->ir, op, r.node, v[i].node);
    return r;
}

static gr_typed lower_where(checker *c, const gr_ast *a, const gr_typed *v)
{
    gr_typed r = {.kind = v[1].kind};
    if (!want_bool(c, a->arg[0], v[0]) || !join(c, a, v, &r.level, &r.rows)) return poison;
    if (v[1].kind != v[2].kind)
        return fail(c, a->at, "the two values of 'where' are a number and a condition");
    r.node = gr_ir_op3(c->ir, GR_IR_WHERE, v[0].node, v[1].node, v[2].node);
    return r;
}

/* ---- reductions --------------------------------------------------------------------------------------- */

typedef struct reduction {
    gr_ir *ir;
    int mask, rows;
    gr_level from, to;
} reduction;

static int sum_of(const reduction *r, int x)
{
    return gr_ir_reduce(r->ir, GR_IR_SUM, x, r->mask, r->from, r->rows, r->to);
}

static int count_of(const reduction *r)
{
    return sum_of(r, gr_ir_const(r->ir, 1));
}

/* x / max(n, 1): what is empty gives 0. */
static int over(gr_ir *ir, int x, int n)
{
    return gr_ir_op2(ir, GR_IR_DIV, x, gr_ir_op2(ir, GR_IR_MAX, n, gr_ir_const(ir, 1)));
}

static int mean_of(const reduction *r, int x)
{
    return over(r->ir, sum_of(r, x), count_of(r));
}

static int variance_of(const reduction *r, int x, int mean)
{
    int d = gr_ir_op2(r->ir, GR_IR_SUB, x, mean);
    int n_less_one = gr_ir_op2(r->ir, GR_IR_SUB, count_of(r), gr_ir_const(r->ir, 1));
    return over(r->ir, sum_of(r, gr_ir_op2(r->ir, GR_IR_MUL, d, d)), n_less_one);
}

/* sqrt's derivative at 0 is infinite; that of a deviation is 0 there. */
static int std_of(const reduction *r, int x)
{
    gr_ir *ir = r->ir;
    int zero = gr_ir_const(ir, 0), v = variance_of(r, x, mean_of(r, x));
    int positive = gr_ir_op2(ir, GR_IR_LT, zero, v);
    int safe = gr_ir_op3(ir, GR_IR_WHERE, positive, v, gr_ir_const(ir, 1));
    return gr_ir_op3(ir, GR_IR_WHERE, positive, gr_ir_op1(ir, GR_IR_SQRT, safe), zero);
}

static int max_of(const reduction *r, int x)
{
    int zero = gr_ir_const(r->ir, 0), some = gr_ir_op2(r->ir, GR_IR_LT, zero, count_of(r));
    int m = gr_ir_reduce(r->ir, GR_IR_AMAX, x, r->mask, r->from, r->rows, r->to);
    return gr_ir_op3(r->ir, GR_IR_WHERE, some, m, zero);
}

static int statistic(const reduction *r, gr_stat stat, int x)
{
    switch (stat) {
    case GR_STAT_SUM:
        return sum_of(r, x);
    case GR_STAT_MEAN:
        return mean_of(r, x);
    case GR_STAT_STD:
        return std_of(r, x);
    case GR_STAT_MAX:
        return max_of(r, x);
    case GR_STAT_COUNT:
        break;
    }
    return count_of(r);
}

/* The level that f reduces from, given the level of what it is applied to. */
static bool source_level(checker *c, const gr_ast *a, const gr_expr_function *f, gr_level to, gr_level x,
                         gr_level *from)
{
    *from = GR_LEVEL_TOKEN;
    if (f->source[0] == 't') return true; /* "token": coarser values count once a token */
    bool fine = x == GR_LEVEL_POSITION || (x == GR_LEVEL_TOKEN && to == GR_LEVEL_SCALAR);
    if (fine) {
        (void)fail(c, a->at,
                   "'%s' takes a %s value, but '%.*s' is a %s value; reduce it first, e.g. with seq_mean()",
                   f->name, f->source, WORDS(a->arg[0]), gr_level_str(x));
        return false;
    }
    if (x == GR_LEVEL_GROUP && to == GR_LEVEL_SCALAR)
        *from = GR_LEVEL_GROUP;
    else if (x != GR_LEVEL_TOKEN)
        *from = GR_LEVEL_SEQ;
    return true;
}

/* A sum along a sequence of what is not a token's is its length times that, which is seldom meant. */
static void warn_of_repeats(checker *c, const gr_ast *a, const gr_expr_function *f, gr_typed x)
{
    if (x.level != GR_LEVEL_SEQ && x.level != GR_LEVEL_GROUP) return;
    gr_diag_warn(c->d, a->at,
                 "'%s' adds '%.*s', a %s value, once for each token; seq_mean(%.*s) is the value itself",
                 f->name, WORDS(a->arg[0]), gr_level_str(x.level), WORDS(a->arg[0]));
}

/* x or mask, as conditions both. */
static int both(gr_ir *ir, int x, int mask)
{
    return mask < 0 ? x : gr_ir_op2(ir, GR_IR_AND, x, mask);
}

static gr_typed lower_reduce(checker *c, const gr_ast *a, const gr_expr_function *f, const gr_typed *v)
{
    gr_level level;
    reduction r = {.ir = c->ir, .mask = -1, .to = (gr_level)(f->detail >> 3)};
    gr_stat stat = (gr_stat)(f->detail & 7);
    bool compares = r.to == GR_LEVEL_GROUP && (stat == GR_STAT_MEAN || stat == GR_STAT_STD);
    c->ir->compares_groups = c->ir->compares_groups || compares;
    if (!join(c, a, v, &level, &r.rows)) return poison;
    if (!source_level(c, a, f, r.to, level, &r.from)) return poison;
    if (a->n_args > 1) {
        if (!want_bool(c, a->arg[1], v[1])) return poison;
        r.mask = v[1].node;
    }
    if (stat == GR_STAT_COUNT && a->n_args > 0 && v[0].kind == GR_KIND_BOOL)
        r.mask = both(c->ir, v[0].node, r.mask);
    if (r.from == GR_LEVEL_GROUP)
        r.rows = -1;
    else if (r.rows < 0 && (r.rows = ambient_rows(c, a)) < 0)
        return poison;
    if (r.to == GR_LEVEL_SEQ && stat == GR_STAT_SUM) warn_of_repeats(c, a, f, v[0]);
    if (r.to == GR_LEVEL_GROUP && a->n_args && v[0].level == GR_LEVEL_GROUP)
        gr_diag_warn(c->d, a->at, "'%s' takes '%.*s', which is one value for all of a group already", f->name,
                     WORDS(a->arg[0]));
    int x = statistic(&r, stat, a->n_args ? v[0].node : -1);
    return (gr_typed){x, r.to, GR_KIND_NUMBER, r.to >= GR_LEVEL_SEQ ? r.rows : -1};
}

/* ---- quantiles ------------------------------------------------------------------------------------------
 */

/* Value number k in rising order, of those that count: k from 0, at the target's level. */
static int nth_smallest(const reduction *r, int x, int k)
{
    gr_ir *ir = r->ir;
    if (r->to == GR_LEVEL_GROUP) { /* ranks count from the largest; what does not count comes last */
        int low = r->mask < 0 ? x : gr_ir_op3(ir, GR_IR_WHERE, r->mask, x, gr_ir_const(ir, -INFINITY));
        int rank = gr_ir_rowwise(ir, GR_IR_RANK, low, -1, -1, GR_LEVEL_SEQ, r->rows, -1);
        int from_top = gr_ir_op2(ir, GR_IR_SUB, gr_ir_op2(ir, GR_IR_SUB, count_of(r), gr_ir_const(ir, 1)), k);
        int chosen = gr_ir_op2(ir, GR_IR_EQ, rank, from_top);
        return gr_ir_reduce(ir, GR_IR_SUM, x, chosen, r->from, r->rows, r->to);
    }
    int every = r->mask < 0 ? gr_ir_const(ir, 1) : r->mask;
    int n_top = gr_ir_op2(ir, GR_IR_SUB, count_of(r), k);
    int top = gr_ir_rowwise(ir, GR_IR_TOP, x, n_top, every, r->from, r->rows, -1);
    int least = gr_ir_reduce(ir, GR_IR_AMAX, gr_ir_op1(ir, GR_IR_NEG, x), top, r->from, r->rows, r->to);
    return gr_ir_op1(ir, GR_IR_NEG, least);
}

/* Between the two values beside place q (n - 1), as torch.quantile does; NaN where one of them is. */
static int quantile_of(const reduction *r, int x, int q)
{
    gr_ir *ir = r->ir;
    int zero = gr_ir_const(ir, 0), one = gr_ir_const(ir, 1), n = count_of(r);
    int last = gr_ir_op2(ir, GR_IR_MAX, gr_ir_op2(ir, GR_IR_SUB, n, one), zero);
    int place = gr_ir_op2(ir, GR_IR_MUL, gr_ir_op3(ir, GR_IR_CLIP, q, zero, one), last);
    int below = gr_ir_op1(ir, GR_IR_FLOOR, place);
    int above = gr_ir_op2(ir, GR_IR_MIN, gr_ir_op2(ir, GR_IR_ADD, below, one), last);
    int low = nth_smallest(r, x, below), high = nth_smallest(r, x, above);
    int part = gr_ir_op2(ir, GR_IR_SUB, place, below);
    int step = gr_ir_op2(ir, GR_IR_MUL, part, gr_ir_op2(ir, GR_IR_SUB, high, low));
    int bad = gr_ir_reduce(ir, GR_IR_SUM, one, both(ir, gr_ir_op2(ir, GR_IR_NE, x, x), r->mask), r->from,
                           r->rows, r->to);
    int y = gr_ir_op3(ir, GR_IR_WHERE, gr_ir_op2(ir, GR_IR_LT, zero, bad), gr_ir_const(ir, NAN),
                      gr_ir_op2(ir, GR_IR_ADD, low, step));
    return gr_ir_op3(ir, GR_IR_WHERE, gr_ir_op2(ir, GR_IR_LT, zero, n), y, zero);
}

/* Of a group, the share may be a number a prompt. */
static bool want_share(checker *c, const gr_ast *a, gr_typed q, gr_level to)
{
    if (q.level > to) return want_scalar(c, a, q);
    return want_number(c, a, q) && want_constant(c, a, q);
}

static gr_typed lower_quantile(checker *c, const gr_ast *a, const gr_expr_function *f, const gr_typed *v)
{
    const bool median = f->detail & 1;
    const unsigned mask_at = median ? 1 : 2;
    reduction r = {.ir = c->ir, .mask = -1, .to = (gr_level)(f->detail >> 1)};
    gr_level level;
    if (!join(c, a, v, &level, &r.rows) || !want_number(c, a->arg[0], v[0])) return poison;
    if (r.to == GR_LEVEL_GROUP && v[0].level > GR_LEVEL_SEQ)
        return fail(c, a->at,
                    "'%s' takes a sequence value, but '%.*s' is a %s value; reduce it first, e.g. "
                    "with seq_mean()",
                    f->name, WORDS(a->arg[0]), gr_level_str(v[0].level));
    if (!source_level(c, a, f, r.to, level, &r.from)) return poison;
    if (a->n_args > mask_at) {
        if (!want_bool(c, a->arg[mask_at], v[mask_at])) return poison;
        r.mask = v[mask_at].node;
    }
    if (!median && !want_share(c, a->arg[1], v[1], r.to)) return poison;
    if (r.from == GR_LEVEL_GROUP)
        r.rows = -1;
    else if (r.rows < 0 && (r.rows = ambient_rows(c, a)) < 0)
        return poison;
    c->ir->compares_groups = c->ir->compares_groups || r.to == GR_LEVEL_GROUP;
    int y = quantile_of(&r, v[0].node, median ? gr_ir_const(c->ir, 0.5) : v[1].node);
    return (gr_typed){y, r.to, GR_KIND_NUMBER, -1};
}

/* ---- scans and what else walks the tokens -------------------------------------------------------------- */

/* The additive mix of a token value with a sequence or prompt value in what a scan adds up, or -1. */
static int find_mix(const gr_ir *ir, int x)
{
    bool *seen = gr_calloc(ir->n, sizeof(*seen));
    seen[x] = true;
    int found = -1;
    for (int i = x; i >= 0 && found < 0; i--) {
        const gr_ir_node *n = &ir->nodes[i];
        if (!seen[i] || !gr_ir_pointwise(n->op)) continue;
        bool token = false, coarse = false, adds = n->op == GR_IR_ADD || n->op == GR_IR_SUB;
        for (int k = 0; k < 3; k++) {
            if (n->arg[k] < 0) continue;
            seen[n->arg[k]] = true;
            gr_level l = ir->nodes[n->arg[k]].level;
            token = token || l == GR_LEVEL_TOKEN;
            coarse = coarse || l == GR_LEVEL_SEQ || l == GR_LEVEL_GROUP;
        }
        if (adds && token && coarse) found = i;
    }
    free(seen);
    return found;
}

static bool scannable(checker *c, const gr_ast *a, gr_typed x)
{
    if (!want_number(c, a->arg[0], x)) return false;
    if (x.level != GR_LEVEL_TOKEN && x.level != GR_LEVEL_SCALAR) {
        (void)fail(c, a->at,
                   "'%s' would count '%.*s', a %s value, once a token; put it on the last one with "
                   "at_last(%.*s), or write "
                   "repeat(%.*s) where each token should count it",
                   a->name, WORDS(a->arg[0]), gr_level_str(x.level), WORDS(a->arg[0]), WORDS(a->arg[0]));
        return false;
    }
    int mix = find_mix(c->ir, x.node);
    if (mix < 0) return true;
    (void)fail(
        c, a->at,
        "'%s' would count a sequence value once a token, in '%s'; put it on the last one with at_last(x), "
        "or write repeat(x) where each token should count it",
        a->name, c->ir->nodes[mix].src);
    return false;
}

static gr_typed rowwise(checker *c, const gr_ast *a, gr_ir_op op, const gr_typed *v, gr_typed r, int third)
{
    if (r.level >= GR_LEVEL_SEQ && r.rows < 0 && (r.rows = ambient_rows(c, a)) < 0) return poison;
    int second = a->n_args > 1 ? v[1].node : -1;
    bool draws = op == GR_IR_CHOOSE || op == GR_IR_RANDOM;
    int first = op == GR_IR_RANDOM || !a->n_args ? -1 : v[0].node;
    r.node = gr_ir_rowwise(c->ir, op, first, second, third, r.level, r.rows, draws ? c->ir->n_draws++ : -1);
    return r;
}

static gr_typed lower_scan(checker *c, const gr_ast *a, gr_form form, const gr_typed *v)
{
    gr_typed r = {.level = GR_LEVEL_TOKEN, .kind = GR_KIND_NUMBER, .rows = -1};
    gr_level level;
    if (!join(c, a, v, &level, &r.rows)) return poison;
    bool shifts = form == GR_FORM_NEXT || form == GR_FORM_PREV;
    if (shifts ? !want_number(c, a->arg[0], v[0]) : !scannable(c, a, v[0])) return poison;
    gr_typed args[2] = {v[0], {.node = gr_ir_const(c->ir, 1), .rows = -1}};
    if (a->n_args > 1) {
        if (!want_number(c, a->arg[1], v[1]) || !want_constant(c, a->arg[1], v[1])) return poison;
        args[1] = v[1];
    }
    if (r.rows < 0 && (r.rows = ambient_rows(c, a)) < 0) return poison;
    static const gr_ir_op op[] = {[GR_FORM_NEXT] = GR_IR_NEXT,
                                  [GR_FORM_PREV] = GR_IR_PREV,
                                  [GR_FORM_PREFIX] = GR_IR_SCAN_FWD,
                                  [GR_FORM_SUFFIX] = GR_IR_SCAN_BACK,
                                  [GR_FORM_DISCOUNTED] = GR_IR_SCAN_BACK};
    r.node = gr_ir_rowwise(c->ir, op[form], args[0].node, args[1].node, -1, r.level, r.rows, -1);
    return r;
}

static gr_typed lower_at_last(checker *c, const gr_ast *a, const gr_typed *v)
{
    if (!want_number(c, a->arg[0], v[0])) return poison;
    if (v[0].level > GR_LEVEL_SEQ) {
        return fail(
            c, a->at,
            "'at_last' takes a sequence value, but '%.*s' is a %s value, which is on its tokens already",
            WORDS(a->arg[0]), gr_level_str(v[0].level));
    }
    return rowwise(c, a, GR_IR_AT_LAST, v, (gr_typed){-1, GR_LEVEL_TOKEN, GR_KIND_NUMBER, v[0].rows}, -1);
}

static gr_typed lower_repeat(checker *c, const gr_ast *a, const gr_typed *v)
{
    if (!want_number(c, a->arg[0], v[0])) return poison;
    if (v[0].level > GR_LEVEL_SEQ) {
        return fail(c, a->at, "'repeat' takes a sequence value, but '%.*s' is a %s value already",
                    WORDS(a->arg[0]), gr_level_str(v[0].level));
    }
    return rowwise(c, a, GR_IR_REPEAT, v, (gr_typed){-1, GR_LEVEL_TOKEN, GR_KIND_NUMBER, v[0].rows}, -1);
}

static gr_typed lower_rank(checker *c, const gr_ast *a, const gr_typed *v)
{
    if (!want_number(c, a->arg[0], v[0])) return poison;
    if (v[0].level > GR_LEVEL_SEQ) {
        return fail(c, a->at,
                    "'group_rank' takes a sequence value, but '%.*s' is a %s value; reduce it first, e.g. "
                    "with seq_mean()",
                    WORDS(a->arg[0]), gr_level_str(v[0].level));
    }
    c->ir->compares_groups = true;
    return rowwise(c, a, GR_IR_RANK, v, (gr_typed){-1, GR_LEVEL_SEQ, GR_KIND_NUMBER, v[0].rows}, -1);
}

/* Like a reduction by position, but by the number of tokens before it: what is masked does not count. */
static gr_typed lower_nth(checker *c, const gr_ast *a, gr_stat stat, const gr_typed *v)
{
    gr_typed r = {.level = GR_LEVEL_TOKEN, .kind = GR_KIND_NUMBER, .rows = -1};
    gr_level level;
    int zero = gr_ir_const(c->ir, 0), x = gr_ir_const(c->ir, 1), mask = -1;
    if (!join(c, a, v, &level, &r.rows)) return poison;
    if (stat == GR_STAT_SUM && !want_number(c, a->arg[0], v[0])) return poison;
    if (a->n_args > 1) {
        if (!want_bool(c, a->arg[1], v[1])) return poison;
        mask = v[1].node;
    }
    if (stat == GR_STAT_SUM)
        x = v[0].node;
    else if (a->n_args > 0 && v[0].kind == GR_KIND_BOOL)
        mask = both(c->ir, v[0].node, mask);
    if (mask >= 0) x = gr_ir_op3(c->ir, GR_IR_WHERE, mask, x, zero);
    if (r.rows < 0 && (r.rows = ambient_rows(c, a)) < 0) return poison;
    r.node = gr_ir_rowwise(c->ir, GR_IR_NTH, x, -1, -1, r.level, r.rows, -1);
    return r;
}

static gr_typed lower_whiten(checker *c, const gr_ast *a, const gr_typed *v)
{
    reduction r = {.ir = c->ir, .mask = -1, .from = GR_LEVEL_TOKEN, .to = GR_LEVEL_SCALAR};
    gr_level level;
    if (!join(c, a, v, &level, &r.rows) || !want_number(c, a->arg[0], v[0])) return poison;
    if (a->n_args > 1) {
        if (!want_bool(c, a->arg[1], v[1])) return poison;
        r.mask = v[1].node;
    }
    if (r.rows < 0 && (r.rows = ambient_rows(c, a)) < 0) return poison;
    gr_ir *ir = c->ir;
    int mean = mean_of(&r, v[0].node), variance = variance_of(&r, v[0].node, mean);
    int scale = gr_ir_op1(ir, GR_IR_SQRT, gr_ir_op2(ir, GR_IR_ADD, variance, gr_ir_const(ir, 1e-8)));
    int y = gr_ir_op2(ir, GR_IR_DIV, gr_ir_op2(ir, GR_IR_SUB, v[0].node, mean), scale);
    if (r.mask >= 0) y = gr_ir_op3(ir, GR_IR_WHERE, r.mask, y, gr_ir_const(ir, 0));
    return (gr_typed){y, GR_LEVEL_TOKEN, GR_KIND_NUMBER, r.rows};
}

/* ---- draws and selections ------------------------------------------------------------------------------ */

static bool selectable(checker *c, const gr_ast *a, gr_level level)
{
    if (level != GR_LEVEL_SCALAR && level != GR_LEVEL_POSITION) return true;
    (void)fail(c, a->at, "'%s' takes prompt, sequence or token values, not %s values", a->name,
               gr_level_str(level));
    return false;
}

static gr_typed lower_random(checker *c, const gr_ast *a, const gr_typed *v)
{
    gr_typed r = {.level = GR_LEVEL_TOKEN, .kind = GR_KIND_NUMBER, .rows = -1};
    if (a->n_args) {
        if (v[0].node < 0 || !selectable(c, a, v[0].level)) return poison;
        r.level = v[0].level;
        r.rows = v[0].rows;
    }
    return rowwise(c, a, GR_IR_RANDOM, v, r, -1);
}

static gr_typed lower_choose(checker *c, const gr_ast *a, const gr_typed *v)
{
    if (!want_bool(c, a->arg[0], v[0]) || !want_scalar(c, a->arg[1], v[1])) return poison;
    if (!selectable(c, a, v[0].level)) return poison;
    return rowwise(c, a, GR_IR_CHOOSE, v, (gr_typed){-1, v[0].level, GR_KIND_BOOL, v[0].rows}, -1);
}

static gr_typed lower_top(checker *c, const gr_ast *a, const gr_typed *v)
{
    gr_typed r = {.kind = GR_KIND_BOOL};
    bool ok = want_number(c, a->arg[0], v[0]);
    ok = want_scalar(c, a->arg[1], v[1]) && ok;
    ok = want_bool(c, a->arg[2], v[2]) && ok;
    if (!ok || !join(c, a, v, &r.level, &r.rows) || !selectable(c, a, r.level)) return poison;
    return rowwise(c, a, GR_IR_TOP, v, r, v[2].node);
}

static gr_typed lower_token(checker *c, const gr_ast *a)
{
    const gr_ast *text = a->arg[0];
    if (text->kind != GR_AST_TEXT)
        return fail(c, text->at, "'token' takes a text in quotes, e.g. token(\"<think>\")");
    gr_expr_symbol s = {.rows = -1};
    if (!c->scope->token) return fail(c, a->at, "'token' cannot be used here: no tokenizer is named");
    if (!c->scope->token(c->scope->user, text->name, &s)) {
        return fail(c, text->at, "'%s' is not one token of the tokenizer", text->name);
    }
    return from_symbol(c, &s);
}

/* ---- calls --------------------------------------------------------------------------------------------- */

static gr_typed lower_form(checker *c, const gr_ast *a, const gr_expr_function *f, const gr_typed *v)
{
    gr_form form = (gr_form)f->form;
    switch (form) {
    case GR_FORM_POINTWISE:
        return lower_pointwise(c, a, (gr_ir_op)f->detail, false, v);
    case GR_FORM_REDUCE:
        return lower_reduce(c, a, f, v);
    case GR_FORM_MIN:
        return lower_fold(c, a, GR_IR_MIN, v);
    case GR_FORM_MAX:
        return lower_fold(c, a, GR_IR_MAX, v);
    case GR_FORM_WHERE:
        return lower_where(c, a, v);
    case GR_FORM_AT_LAST:
        return lower_at_last(c, a, v);
    case GR_FORM_REPEAT:
        return lower_repeat(c, a, v);
    case GR_FORM_QUANTILE:
        return lower_quantile(c, a, f, v);
    case GR_FORM_RANK:
        return lower_rank(c, a, v);
    case GR_FORM_NTH:
        return lower_nth(c, a, (gr_stat)f->detail, v);
    case GR_FORM_WHITEN:
        return lower_whiten(c, a, v);
    case GR_FORM_RANDOM:
        return lower_random(c, a, v);
    case GR_FORM_CHOOSE:
        return lower_choose(c, a, v);
    case GR_FORM_TOP:
        return lower_top(c, a, v);
    default:
        return lower_scan(c, a, form, v);
    }
}

/* What the functions of other languages are called here; NULL: nothing. Prefixes such as torch. do not count.
 */
static const char *called_here(const char *name)
{
    static const char *const names[][2] = {
        {"mean", "token_mean', 'seq_mean', 'group_mean' or 'batch_mean"},
        {"sum", "token_sum', 'seq_sum', 'group_sum' or 'batch_sum"},
        {"std", "token_std', 'seq_std', 'group_std' or 'batch_std"},
        {"count", "token_count', 'seq_count', 'group_count' or 'batch_count"},
        {"group_avg", "group_mean"},
        {"token_avg", "token_mean"},
        {"seq_avg", "seq_mean"},
        {"batch_avg", "batch_mean"},
        {"avg", "token_mean', 'seq_mean', 'group_mean' or 'batch_mean"},
        {"len", "seq_count', 'group_count' or 'batch_count"},
        {"median", "token_median', 'group_median' or 'batch_median"},
        {"quantile", "token_quantile', 'group_quantile' or 'batch_quantile"},
        {"percentile", "token_quantile', 'group_quantile' or 'batch_quantile"},
        {"fmod", "x % y"},
        {"expand", "repeat"},
        {"broadcast", "repeat"},
        {"masked_mean", "token_mean(x, mask)"},
        {"masked_sum", "token_sum(x, mask)"},
        {"masked_whiten", "token_whiten(x, mask)"},
        {"whiten", "token_whiten"},
        {"clamp", "clip"},
        {"minimum", "min"},
        {"maximum", "max"},
        {"relu", "max(x, 0)"},
        {"pow", "x ^ y"},
        {"square", "x ^ 2"},
        {"detach", "stop_gradient"},
        {"stopgrad", "stop_gradient"},
        {"cumsum", "prefix_sum"},
        {"topk", "top"}};
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    for (size_t i = 0; i < GR_LEN(names); i++)
        if (!strcmp(last, names[i][0])) return names[i][1];
    return NULL;
}

static gr_typed unknown_function(checker *c, const gr_ast *a)
{
    size_t n;
    const char *dot = strrchr(a->name, '.'), *here = called_here(a->name);
    if (here) return fail(c, a->at, "unknown function '%s'; did you mean '%s'?", a->name, here);
    const gr_expr_function *f = gr_expr_functions(&n);
    size_t n_own = c->scope->n_functions;
    const char **names = gr_calloc(n + n_own, sizeof(*names));
    for (size_t i = 0; i < n; i++) names[i] = f[i].name;
    for (size_t i = 0; i < n_own; i++) names[n + i] = c->scope->functions[i].name;
    const char *near = gr_near(dot ? dot + 1 : a->name, names, n + n_own);
    free(names);
    if (near) return fail(c, a->at, "unknown function '%s'; did you mean '%s'?", a->name, near);
    return fail(c, a->at, "unknown function '%s'; 'graphrun ops' lists them", a->name);
}

static bool lower_args(checker *c, const gr_ast *a, gr_typed *v)
{
    bool ok = true;
    for (unsigned i = 0; i < a->n_args; i++) {
        v[i] = lower(c, a->arg[i]);
        ok = ok && v[i].node >= 0;
    }
    return ok;
}

/* ---- functions of the file ----------------------------------------------------------------------------- */

static const gr_expr_custom *custom_find(const checker *c, const char *name)
{
    for (size_t i = 0; i < c->scope->n_functions; i++) {
        if (!strcmp(c->scope->functions[i].name, name)) return &c->scope->functions[i];
    }
    return NULL;
}

static gr_typed wrong_count(checker *c, const gr_ast *a, const gr_expr_custom *f)
{
    gr_str args = {0};
    for (unsigned i = 0; i < f->n_args; i++) gr_str_printf(&args, "%s%s", i ? ", " : "", f->args[i]);
    gr_typed failed = fail(c, a->at, "'%s' is called with %u argument%s; it is %s(%s)", f->name, a->n_args,
                           a->n_args == 1 ? "" : "s", f->name, args.text ? args.text : "");
    gr_str_release(&args);
    return failed;
}

static bool resolve_nothing(void *user, const char *name, gr_expr_symbol *out)
{
    (void)user, (void)name, (void)out;
    return false;
}

static void lower_lines(checker *c, gr_typed *values);

/* The body, with the arguments bound to its names; an error in it also says who called. */
static gr_typed lower_body(checker *c, const gr_ast *a, const gr_expr_custom *f, const gr_typed *v)
{
    gr_expr_scope scope = *c->scope;
    scope.resolve = resolve_nothing;
    scope.names = NULL;
    scope.n_names = 0;
    gr_expr_values b = {0};
    checker in = {f->body, &scope, c->ir, &b, c->d, c->depth + 1};
    for (unsigned i = 0; i < f->n_args; i++) value_add(&in, f->args[i], v[i], a->at);
    size_t before = c->d->n_errors, last = f->body->n_lines - 1;
    gr_typed *values = gr_calloc(f->body->n_lines, sizeof(*values)), result;
    lower_lines(&in, values);
    result = values[last];
    if (c->d->n_errors > before && !c->depth) gr_diag_note(c->d, a->at, "in '%s', called here", f->name);
    free(values);
    free(b.items);
    return result;
}

static gr_typed lower_custom(checker *c, const gr_ast *a, const gr_expr_custom *f)
{
    gr_typed v[GR_AST_ARGS];
    if (a->n_args != f->n_args) return wrong_count(c, a, f);
    if (c->ir->n_calls > CALLS_MAX) return poison; /* said already */
    if (c->depth == CALL_DEPTH) {
        c->ir->n_calls = CALLS_MAX + 1;
        return fail(c, a->at, "'%s' calls itself, or functions call each other more than %d deep", f->name,
                    CALL_DEPTH);
    }
    if (c->ir->n_calls++ == CALLS_MAX)
        return fail(c, a->at, "functions are called more than %d times", CALLS_MAX);
    return lower_args(c, a, v) ? lower_body(c, a, f, v) : poison;
}

static gr_typed lower_call(checker *c, const gr_ast *a)
{
    const gr_expr_function *f = function_find(a->name);
    const gr_expr_custom *own = f ? NULL : custom_find(c, a->name);
    if (own) return lower_custom(c, a, own);
    if (!f) return unknown_function(c, a);
    if (a->n_args < f->min_args || a->n_args > f->max_args) {
        return fail(c, a->at, "'%s' is called with %u argument%s; it is %s(%s)", f->name, a->n_args,
                    a->n_args == 1 ? "" : "s", f->name, f->args);
    }
    if (f->form == GR_FORM_TOKEN) return lower_token(c, a);
    gr_typed v[GR_AST_ARGS];
    if (!lower_args(c, a, v)) return poison;
    mark_place(c, a);
    return lower_form(c, a, f, v);
}

static gr_typed lower(checker *c, const gr_ast *a)
{
    gr_typed v[2];
    switch (a->kind) {
    case GR_AST_NUMBER:
    case GR_AST_BOOL:
        return (gr_typed){gr_ir_const(c->ir, a->number), GR_LEVEL_SCALAR,
                          a->kind == GR_AST_BOOL ? GR_KIND_BOOL : GR_KIND_NUMBER, -1};
    case GR_AST_TEXT:
        return fail(c, a->at, "text stands only inside token(\"...\")");
    case GR_AST_NAME:
        return lower_name(c, a);
    case GR_AST_CALL:
        return lower_call(c, a);
    case GR_AST_OP:
        break;
    }
    for (unsigned i = 0; i < a->n_args; i++) v[i] = lower(c, a->arg[i]);
    mark_place(c, a);
    return lower_pointwise(c, a, a->op, a->swap, v);
}

static void define(checker *c, const gr_ast_line *l, gr_typed v)
{
    if (function_find(l->name)) {
        (void)fail(c, l->at, "'%s' is a function; choose another name", l->name);
    } else if (value_find(c, l->name) && value_find(c, l->name)->value.node >= 0) {
        (void)fail(c, l->at, c->depth ? "'%s' is an argument" : "'%s' is already defined by the loss",
                   l->name);
    } else if (c->scope->resolve(c->scope->user, l->name, NULL)) {
        (void)fail(c, l->at, "'%s' is already the name of a value here; choose another", l->name);
    }
    value_add(c, l->name, v, l->at);
}

static void lower_lines(checker *c, gr_typed *values)
{
    for (size_t i = 0; i < c->e->n_lines; i++) {
        values[i] = lower(c, c->e->lines[i].value);
        if (c->e->lines[i].name) define(c, &c->e->lines[i], values[i]);
    }
}

void gr_expr_lower(const gr_expr *e, const gr_expr_scope *scope, gr_ir *ir, gr_expr_values *b,
                   gr_typed *values, gr_diag *d)
{
    checker c = {e, scope, ir, b, d, 0};
    lower_lines(&c, values);
}

void gr_expr_values_warn_unused(const gr_expr_values *b, gr_diag *d)
{
    for (size_t i = 0; i < b->n; i++) {
        if (!b->items[i].used)
            gr_diag_warn(d, b->items[i].at, "'%s' is defined but not used", b->items[i].name);
    }
}
