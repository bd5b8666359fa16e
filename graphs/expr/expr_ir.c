/* graphs/expr/expr_ir.c: building instructions: constants are computed at once, equal instructions are
 * one; printing. */
#include <stdlib.h>
#include <string.h>

#include "graphs/expr/expr_apply.h"
#include "graphs/expr/expr_ir.h"

static const struct op_info {
    const char *name;
    int n_args;
} ops[] = {
#define X(name, n) {#name, n},
    GR_IR_OPS(X)
#undef X
};

const char *gr_ir_op_str(gr_ir_op op)
{
    return ops[op].name;
}

const char *gr_level_str(gr_level level)
{
    static const char *const names[] = {"scalar", "prompt", "sequence", "position", "token"};
    return names[level];
}

gr_level gr_level_join(gr_level a, gr_level b)
{
    gr_level lo = GR_MIN(a, b), hi = GR_MAX(a, b);
    return lo == GR_LEVEL_SEQ && hi == GR_LEVEL_POSITION ? GR_LEVEL_TOKEN : hi;
}

gr_ir *gr_ir_new(void)
{
    gr_ir *ir = gr_calloc(1, sizeof(*ir));
    ir->arena = gr_arena_new();
    ir->src = "";
    return ir;
}

void gr_ir_free(gr_ir *ir)
{
    if (!ir) return;
    gr_arena_free(ir->arena);
    free(ir->nodes);
    free(ir->table);
    free(ir);
}

/* ---- one instruction for equal ones ------------------------------------------------------------------- */

static bool same(const gr_ir_node *a, const gr_ir_node *b)
{
    return a->op == b->op && a->level == b->level && a->from == b->from && a->rows == b->rows &&
           a->id == b->id && !memcmp(a->arg, b->arg, sizeof(a->arg)) &&
           !memcmp(&a->value, &b->value, sizeof(a->value));
}

static size_t hash_of(const gr_ir_node *n)
{
    uint64_t bits, h = 0xcbf29ce484222325u;
    memcpy(&bits, &n->value, sizeof(bits));
    const uint64_t parts[] = {(uint64_t)n->op,     (uint64_t)n->level,  (uint64_t)n->from,
                              (uint64_t)n->rows,   (uint64_t)n->arg[0], (uint64_t)n->arg[1],
                              (uint64_t)n->arg[2], (uint64_t)n->id,     bits};
    for (size_t i = 0; i < GR_LEN(parts); i++) h = (h ^ parts[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return (size_t)h;
}

static void table_put(gr_ir *ir, int node)
{
    size_t i = hash_of(&ir->nodes[node]) & (ir->table_size - 1);
    while (ir->table[i]) i = (i + 1) & (ir->table_size - 1);
    ir->table[i] = node + 1;
}

static void table_grow(gr_ir *ir)
{
    ir->table_size = ir->table_size ? 2 * ir->table_size : 64;
    free(ir->table);
    ir->table = gr_calloc(ir->table_size, sizeof(*ir->table));
    for (size_t i = 0; i < ir->n; i++) table_put(ir, (int)i);
}

static int add(gr_ir *ir, gr_ir_node n)
{
    if (2 * ir->n >= ir->table_size) table_grow(ir);
    for (size_t i = hash_of(&n) & (ir->table_size - 1); ir->table[i]; i = (i + 1) & (ir->table_size - 1)) {
        if (same(&ir->nodes[ir->table[i] - 1], &n)) return ir->table[i] - 1;
    }
    for (int i = 0; i < 3; i++) n.current |= n.arg[i] >= 0 && ir->nodes[n.arg[i]].current;
    n.at = ir->at;
    n.src = ir->src;
    GR_PUSH(ir->nodes, ir->n, ir->cap, n);
    table_put(ir, (int)ir->n - 1);
    return (int)ir->n - 1;
}

/* ---- pointwise ---------------------------------------------------------------------------------------- */

double gr_ir_apply(gr_ir_op op, double a, double b, double c)
{
    return gr_expr_apply(op, a, b, c);
}

static bool is_const(const gr_ir *ir, int a)
{
    return a >= 0 && ir->nodes[a].op == GR_IR_CONST;
}

static bool is_value(const gr_ir *ir, int a, double v)
{
    return is_const(ir, a) && ir->nodes[a].value == v;
}

static double value_of(const gr_ir *ir, int a)
{
    return a < 0 ? 0 : ir->nodes[a].value;
}

/* An argument that the result always equals, or -1. x + 0 loses the sign of a zero, nothing else. */
static int identity(const gr_ir *ir, gr_ir_op op, const int *arg)
{
    int a = arg[0], b = arg[1];
    switch (op) {
    case GR_IR_ADD:
        if (is_value(ir, a, 0)) return b;
        return is_value(ir, b, 0) ? a : -1;
    case GR_IR_SUB:
        return is_value(ir, b, 0) ? a : -1;
    case GR_IR_MUL:
    case GR_IR_MULZ:
        if (is_value(ir, a, 1)) return b;
        return is_value(ir, b, 1) ? a : -1;
    case GR_IR_DIV:
    case GR_IR_POW:
        return is_value(ir, b, 1) ? a : -1;
    case GR_IR_WHERE:
        return is_const(ir, a) ? (value_of(ir, a) != 0 ? b : arg[2]) : -1;
    case GR_IR_NEG:
        return ir->nodes[a].op == GR_IR_NEG ? ir->nodes[a].arg[0] : -1;
    default:
        return -1;
    }
}

static bool commutes(gr_ir_op op)
{
    return op == GR_IR_ADD || op == GR_IR_MUL || op == GR_IR_EQ || op == GR_IR_NE || op == GR_IR_AND ||
           op == GR_IR_OR;
}

static int pointwise(gr_ir *ir, gr_ir_op op, int a, int b, int c)
{
    if (commutes(op) && a > b) return pointwise(ir, op, b, a, c);
    const int arg[3] = {a, b, c};
    gr_ir_node n = {.op = op, .arg = {a, b, c}, .rows = -1, .id = -1};
    bool constant = true;
    for (int i = 0; i < ops[op].n_args; i++) {
        const gr_ir_node *x = &ir->nodes[arg[i]];
        n.level = gr_level_join(n.level, x->level);
        if (x->level >= GR_LEVEL_SEQ) n.rows = x->rows;
        constant = constant && x->op == GR_IR_CONST;
    }
    if (constant) return gr_ir_const(ir, gr_ir_apply(op, value_of(ir, a), value_of(ir, b), value_of(ir, c)));
    int same_as = identity(ir, op, arg);
    if (same_as >= 0) return same_as;
    n.from = n.level;
    return add(ir, n);
}

int gr_ir_const(gr_ir *ir, double value)
{
    return add(ir,
               (gr_ir_node){.op = GR_IR_CONST, .rows = -1, .arg = {-1, -1, -1}, .id = -1, .value = value});
}

int gr_ir_sym(gr_ir *ir, gr_level level, int rows, int id, bool current)
{
    return add(ir, (gr_ir_node){.op = GR_IR_SYM,
                                .level = level,
                                .from = level,
                                .rows = level >= GR_LEVEL_SEQ ? rows : -1,
                                .arg = {-1, -1, -1},
                                .id = id,
                                .current = current});
}

int gr_ir_op1(gr_ir *ir, gr_ir_op op, int a)
{
    return pointwise(ir, op, a, -1, -1);
}

int gr_ir_op2(gr_ir *ir, gr_ir_op op, int a, int b)
{
    return pointwise(ir, op, a, b, -1);
}

int gr_ir_op3(gr_ir *ir, gr_ir_op op, int a, int b, int c)
{
    return pointwise(ir, op, a, b, c);
}

/* ---- the others --------------------------------------------------------------------------------------- */

int gr_ir_reduce(gr_ir *ir, gr_ir_op op, int x, int mask, gr_level from, int rows, gr_level to)
{
    if (from == to) return x;
    return add(
        ir, (gr_ir_node){.op = op, .level = to, .from = from, .rows = rows, .arg = {x, mask, -1}, .id = -1});
}

int gr_ir_rowwise(gr_ir *ir, gr_ir_op op, int a, int b, int c, gr_level level, int rows, int id)
{
    return add(
        ir, (gr_ir_node){.op = op, .level = level, .from = level, .rows = rows, .arg = {a, b, c}, .id = id});
}
