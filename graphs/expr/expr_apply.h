/* graphs/expr/expr_apply.h: what the evaluator and device code have in common: elements of columns, the
 * ranges that they lie in, and, as its definition, the value of one pointwise instruction.
 */
#ifndef GR_GRAPHS_EXPR_EXPR_APPLY_H
#define GR_GRAPHS_EXPR_EXPR_APPLY_H

#include <math.h>
#include <stddef.h>

#include "graphs/expr/expr_ops.h"
#include "runtime/base/philox.h"

/* Last i < n with start[i] <= x; start[0] <= x. Empty ranges are passed over. */
GR_BOTH uint32_t gr_expr_range_of(const uint32_t *start, uint32_t n, uint32_t x)
{
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (start[mid] <= x)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Element i of a column of a gr_expr_dtype. */
GR_BOTH double gr_expr_load(const void *data, uint32_t dtype, size_t i)
{
    switch (dtype) {
    case GR_EXPR_F32:
        return (double)((const float *)data)[i];
    case GR_EXPR_F64:
        return ((const double *)data)[i];
    case GR_EXPR_I32:
        return ((const int32_t *)data)[i];
    default:
        return ((const uint8_t *)data)[i];
    }
}

/* 1 - C(n - c, k) / C(n, k), as a product of factors that are at most 1 (Chen et al., arXiv:2107.03374,
 * figure 3). k of more than n is n. */
GR_BOTH double gr_expr_pass_at(double n, double c, double k)
{
    if (!(n >= 1 && n <= 1e9)) return n != n ? n : 0;
    double miss = 1;
    for (double i = 0; i < fmin(k, n) && miss > 0; i++) miss *= fmax(n - c - i, 0.0) / (n - i);
    return c != c || k != k ? NAN : 1 - miss;
}

GR_BOTH double gr_expr_min(double a, double b)
{
    return a < b || a != a ? a : b; /* a NaN stays, on either side */
}

GR_BOTH double gr_expr_max(double a, double b)
{
    return a > b || a != a ? a : b;
}

/* The larger of what was seen so far and x; a NaN is the largest. */
GR_BOTH double gr_expr_larger(double m, double x)
{
    return x > m || x != x ? x : m;
}

/* a - b floor(a / b), exactly: Python's a % b. */
GR_BOTH double gr_expr_modulo(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

GR_BOTH double gr_expr_apply(gr_ir_op op, double a, double b, double c)
{
    switch (op) {
    case GR_IR_STOP:
        return a;
    case GR_IR_NEG:
        return -a;
    case GR_IR_NOT:
        return a == 0;
    case GR_IR_EXP:
        return exp(a);
    case GR_IR_LOG:
        return log(a);
    case GR_IR_ABS:
        return fabs(a);
    case GR_IR_SQRT:
        return sqrt(a);
    case GR_IR_FLOOR:
        return floor(a);
    case GR_IR_SIGMOID:
        return 1 / (1 + exp(-a));
    case GR_IR_TANH:
        return tanh(a);
    case GR_IR_ADD:
        return a + b;
    case GR_IR_SUB:
        return a - b;
    case GR_IR_MUL:
        return a * b;
    case GR_IR_MULZ:
        return a == 0 ? 0 : a * b;
    case GR_IR_DIV:
        return a / b;
    case GR_IR_POW:
        return b == 2 ? a * a : pow(a, b);
    case GR_IR_MOD:
        return gr_expr_modulo(a, b);
    case GR_IR_MIN:
        return gr_expr_min(a, b);
    case GR_IR_MAX:
        return gr_expr_max(a, b);
    case GR_IR_LT:
        return a < b;
    case GR_IR_LE:
        return a <= b;
    case GR_IR_EQ:
        return a == b;
    case GR_IR_NE:
        return a != b;
    case GR_IR_AND:
        return a != 0 && b != 0;
    case GR_IR_OR:
        return a != 0 || b != 0;
    case GR_IR_WHERE:
        return a != 0 ? b : c;
    case GR_IR_PASS:
        return gr_expr_pass_at(a, b, c);
    case GR_IR_CLIP:
        return gr_expr_min(gr_expr_max(a, b), c);
    default:
        return NAN;
    }
}

/* A draw, uniform in (0, 1): a function of the keys of the evaluation, the number of the draw, and the
 * element: {index of the token in its sequence or UINT32_MAX, number of the sequence or index of the prompt,
 * 0, level}. */
typedef struct gr_expr_draws {
    uint64_t seed, node;
    uint32_t step, epoch, round;
} gr_expr_draws;

GR_BOTH double gr_expr_draw(const gr_expr_draws *d, uint32_t id, const uint32_t element[4])
{
    uint32_t out[4], key[4];
    key[0] = d->step, key[1] = d->epoch, key[2] = d->round, key[3] = id;
    gr_philox_4x32(d->seed, d->node, key, out);
    gr_philox_4x32(d->seed, out[0] | (uint64_t)out[1] << 32, element, out);
    return ((double)((uint64_t)out[0] << 20 | out[1] >> 12) + 0.5) * 0x1p-52;
}

#endif
