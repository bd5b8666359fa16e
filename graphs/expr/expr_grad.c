/* graphs/expr/expr_grad.c: reverse-mode differentiation, instructions to instructions.
 *
 * Walks the instructions from the loss down; adj[i] is the instruction of d loss / d i, at the level of i.
 * Where an argument is coarser than its user, the user's contribution is summed down to it. A product of the
 * chain rule is MULZ(adjoint, factor): an adjoint of 0, as `where` sends to the branch not taken, stays 0
 * though the factor be infinite. Rules at ties are PyTorch's.
 */
#include <stdlib.h>

#include "graphs/expr/expr_ir.h"

typedef struct grad {
    gr_ir *ir;
    int *adj;     /* [n of the original], -1: none */
    bool *active; /* has a derivative by a current column */
} grad;

static int konst(grad *g, double v)
{
    return gr_ir_const(g->ir, v);
}

static int two(grad *g, gr_ir_op op, int a, int b)
{
    return gr_ir_op2(g->ir, op, a, b);
}

static int where(grad *g, int cond, int a, int b)
{
    return gr_ir_op3(g->ir, GR_IR_WHERE, cond, a, b);
}

static bool passes(gr_ir_op op, int arg)
{
    switch (op) {
    case GR_IR_CONST:
    case GR_IR_STOP:
    case GR_IR_NOT:
    case GR_IR_FLOOR:
    case GR_IR_PASS:
    case GR_IR_LT:
    case GR_IR_LE:
    case GR_IR_EQ:
    case GR_IR_NE:
    case GR_IR_AND:
    case GR_IR_OR:
    case GR_IR_RANK:
    case GR_IR_TOP:
    case GR_IR_CHOOSE:
    case GR_IR_RANDOM:
        return false;
    case GR_IR_WHERE:
        return arg > 0;
    case GR_IR_SUM:
    case GR_IR_AMAX:
    case GR_IR_SCAN_FWD:
    case GR_IR_SCAN_BACK:
    case GR_IR_NEXT:
    case GR_IR_PREV:
        return arg == 0;
    default:
        return true;
    }
}

/* Add c, a value of level lc, to the adjoint of x. */
static void add_at(grad *g, int x, int c, gr_level lc, int rows)
{
    if (x < 0 || !g->active[x]) return;
    c = gr_ir_reduce(g->ir, GR_IR_SUM, c, -1, lc, rows, g->ir->nodes[x].level);
    g->adj[x] = g->adj[x] < 0 ? c : two(g, GR_IR_ADD, g->adj[x], c);
}

/* Add a * factor to the adjoint of argument k of the pointwise instruction n. */
static void chain(grad *g, const gr_ir_node *n, int k, int a, int factor)
{
    add_at(g, n->arg[k], two(g, GR_IR_MULZ, a, factor), n->level, n->rows);
}

static int one_minus(grad *g, int x)
{
    return two(g, GR_IR_SUB, konst(g, 1), x);
}

static int sign(grad *g, int x)
{
    int zero = konst(g, 0);
    return where(g, two(g, GR_IR_LT, zero, x), konst(g, 1),
                 where(g, two(g, GR_IR_LT, x, zero), konst(g, -1), zero));
}

static void unary(grad *g, const gr_ir_node *n, int y, int a)
{
    int x = n->arg[0], f;
    switch (n->op) {
    case GR_IR_NEG:
        f = konst(g, -1);
        break;
    case GR_IR_EXP:
        f = y;
        break;
    case GR_IR_LOG:
        f = two(g, GR_IR_DIV, konst(g, 1), x);
        break;
    case GR_IR_ABS:
        f = sign(g, x);
        break;
    case GR_IR_SQRT:
        f = two(g, GR_IR_DIV, konst(g, 0.5), y);
        break;
    case GR_IR_SIGMOID:
        f = two(g, GR_IR_MUL, y, one_minus(g, y));
        break;
    default:
        f = one_minus(g, two(g, GR_IR_MUL, y, y));
        break; /* TANH */
    }
    chain(g, n, 0, a, f);
}

static void power(grad *g, const gr_ir_node *n, int y, int a)
{
    int x = n->arg[0], p = n->arg[1], zero = konst(g, 0);
    if (g->active[x]) {
        int f = two(g, GR_IR_MUL, p, two(g, GR_IR_POW, x, two(g, GR_IR_SUB, p, konst(g, 1))));
        chain(g, n, 0, a, where(g, two(g, GR_IR_EQ, p, zero), zero, f));
    }
    if (g->active[p]) {
        int flat = two(g, GR_IR_AND, two(g, GR_IR_EQ, x, zero), two(g, GR_IR_LE, zero, p));
        int f = two(g, GR_IR_MUL, y, gr_ir_op1(g->ir, GR_IR_LOG, x));
        chain(g, n, 1, a, where(g, flat, zero, f));
    }
}

/* first wins where won holds; a tie gives half to each. */
static void extremum(grad *g, const gr_ir_node *n, int a)
{
    bool min = n->op == GR_IR_MIN;
    for (int k = 0; k < 2; k++) {
        int x = n->arg[k], other = n->arg[1 - k];
        int won = min ? two(g, GR_IR_LT, x, other) : two(g, GR_IR_LT, other, x);
        int tie = two(g, GR_IR_EQ, x, other);
        chain(g, n, k, a, where(g, won, konst(g, 1), where(g, tie, konst(g, 0.5), konst(g, 0))));
    }
}

/* clip(x, lo, hi) is min(max(x, lo), hi); x passes on both bounds, inclusive. */
static void clip(grad *g, const gr_ir_node *n, int a)
{
    int x = n->arg[0], lo = n->arg[1], hi = n->arg[2], one = konst(g, 1), zero = konst(g, 0);
    int inside = two(g, GR_IR_AND, two(g, GR_IR_LE, lo, x), two(g, GR_IR_LE, x, hi));
    int ordered = two(g, GR_IR_LT, lo, hi);
    int below = two(g, GR_IR_AND, ordered, two(g, GR_IR_LT, x, lo));
    int above = two(g, GR_IR_OR, two(g, GR_IR_LT, hi, x), two(g, GR_IR_LT, hi, lo));
    chain(g, n, 0, a, where(g, inside, one, zero));
    if (g->active[lo]) chain(g, n, 1, a, where(g, below, one, zero));
    if (g->active[hi]) chain(g, n, 2, a, where(g, above, one, zero));
}

static void binary(grad *g, const gr_ir_node *n, int y, int a)
{
    int l = n->arg[0], r = n->arg[1];
    switch (n->op) {
    case GR_IR_ADD:
        chain(g, n, 0, a, konst(g, 1));
        chain(g, n, 1, a, konst(g, 1));
        break;
    case GR_IR_SUB:
        chain(g, n, 0, a, konst(g, 1));
        chain(g, n, 1, a, konst(g, -1));
        break;
    case GR_IR_MUL:
        chain(g, n, 0, a, r);
        chain(g, n, 1, a, l);
        break;
    case GR_IR_MOD:
        chain(g, n, 0, a, konst(g, 1));
        if (g->active[r])
            chain(g, n, 1, a,
                  gr_ir_op1(g->ir, GR_IR_NEG, gr_ir_op1(g->ir, GR_IR_FLOOR, two(g, GR_IR_DIV, l, r))));
        break;
    default: /* DIV */
        chain(g, n, 0, a, two(g, GR_IR_DIV, konst(g, 1), r));
        if (g->active[r]) chain(g, n, 1, a, gr_ir_op1(g->ir, GR_IR_NEG, two(g, GR_IR_DIV, y, r)));
        break;
    }
}

static void reduction(grad *g, const gr_ir_node *n, int y, int a)
{
    int x = n->arg[0], mask = n->arg[1], zero = konst(g, 0);
    if (n->op == GR_IR_SUM) {
        add_at(g, x, mask < 0 ? a : where(g, mask, a, zero), n->from, n->rows);
        return;
    }
    int tie = two(g, GR_IR_EQ, x, y);
    if (mask >= 0) tie = two(g, GR_IR_AND, mask, tie);
    int ties = gr_ir_reduce(g->ir, GR_IR_SUM, konst(g, 1), tie, n->from, n->rows, n->level);
    int share = two(g, GR_IR_DIV, konst(g, 1), ties);
    add_at(g, x, where(g, tie, two(g, GR_IR_MULZ, a, share), zero), n->from, n->rows);
}

static void scan(grad *g, const gr_ir_node *n, int a)
{
    gr_ir_op op = n->op == GR_IR_SCAN_FWD    ? GR_IR_SCAN_BACK
                  : n->op == GR_IR_SCAN_BACK ? GR_IR_SCAN_FWD
                  : n->op == GR_IR_NEXT      ? GR_IR_PREV
                  : n->op == GR_IR_PREV      ? GR_IR_NEXT
                  : n->op == GR_IR_AT_LAST   ? GR_IR_LAST
                                             : GR_IR_AT_LAST;
    bool shifts = op == GR_IR_NEXT || op == GR_IR_PREV;
    bool last = op == GR_IR_LAST || op == GR_IR_AT_LAST;
    gr_level level = op == GR_IR_LAST ? GR_LEVEL_SEQ : GR_LEVEL_TOKEN;
    int second = last ? -1 : shifts ? konst(g, 0) : n->arg[1];
    int c = gr_ir_rowwise(g->ir, op, a, second, -1, level, n->rows, -1);
    add_at(g, n->arg[0], c, level, n->rows);
}

static void back(grad *g, int y)
{
    gr_ir_node n = g->ir->nodes[y]; /* a copy: nodes grow */
    int a = g->adj[y];
    g->ir->at = n.at;
    g->ir->src = n.src;
    switch (n.op) {
    case GR_IR_SYM:
        break;
    case GR_IR_ADD:
    case GR_IR_SUB:
    case GR_IR_MUL:
    case GR_IR_DIV:
    case GR_IR_MOD:
        binary(g, &n, y, a);
        break;
    case GR_IR_POW:
        power(g, &n, y, a);
        break;
    case GR_IR_MIN:
    case GR_IR_MAX:
        extremum(g, &n, a);
        break;
    case GR_IR_CLIP:
        clip(g, &n, a);
        break;
    case GR_IR_WHERE:
        add_at(g, n.arg[1], where(g, n.arg[0], a, konst(g, 0)), n.level, n.rows);
        add_at(g, n.arg[2], where(g, n.arg[0], konst(g, 0), a), n.level, n.rows);
        break;
    case GR_IR_SUM:
    case GR_IR_AMAX:
        reduction(g, &n, y, a);
        break;
    case GR_IR_SCAN_FWD:
    case GR_IR_SCAN_BACK:
    case GR_IR_NEXT:
    case GR_IR_PREV:
    case GR_IR_AT_LAST:
    case GR_IR_LAST:
        scan(g, &n, a);
        break;
    case GR_IR_REPEAT:
        add_at(g, n.arg[0], a, n.level, n.rows);
        break;
    case GR_IR_NTH: /* each token is in the sums that it reads */
        add_at(g, n.arg[0], gr_ir_rowwise(g->ir, GR_IR_NTH, a, -1, -1, n.level, n.rows, -1), n.level, n.rows);
        break;
    default:
        unary(g, &n, y, a);
        break;
    }
}

static void find_active(grad *g, int y)
{
    for (int i = 0; i <= y; i++) {
        const gr_ir_node *n = &g->ir->nodes[i];
        g->active[i] = n->op == GR_IR_SYM && n->current;
        for (int k = 0; k < 3; k++) {
            if (n->arg[k] >= 0 && passes(n->op, k)) g->active[i] = g->active[i] || g->active[n->arg[k]];
        }
    }
}

static size_t collect(const grad *g, int y, int *id, int *adjoint, size_t max)
{
    size_t n = 0;
    for (int i = 0; i <= y; i++) {
        if (g->ir->nodes[i].op != GR_IR_SYM || g->adj[i] < 0 || n == max) continue;
        size_t k = n++;
        for (; k > 0 && id[k - 1] > g->ir->nodes[i].id; k--) {
            id[k] = id[k - 1];
            adjoint[k] = adjoint[k - 1];
        }
        id[k] = g->ir->nodes[i].id;
        adjoint[k] = g->adj[i];
    }
    return n;
}

size_t gr_ir_differentiate(gr_ir *ir, int y, int *id, int *adjoint, size_t max)
{
    size_t n_old = (size_t)y + 1;
    grad g = {ir, gr_malloc(n_old * sizeof(int)), gr_calloc(n_old, sizeof(bool))};
    for (size_t i = 0; i < n_old; i++) g.adj[i] = -1;
    find_active(&g, y);
    if (g.active[y]) g.adj[y] = gr_ir_const(ir, 1);
    for (int i = y; i >= 0; i--) {
        if (g.adj[i] >= 0 && g.active[i]) back(&g, i);
    }
    size_t n = collect(&g, y, id, adjoint, max);
    free(g.adj);
    free(g.active);
    return n;
}
