/* graphs/expr/code_run.h: the threads of a pass of graphs/expr/code.h, in functions that the host can run
 * too, one thread at a time. What they compute is defined by graphs/expr/expr_eval.c.
 */
#ifndef GR_GRAPHS_EXPR_CODE_RUN_H
#define GR_GRAPHS_EXPR_CODE_RUN_H

#include <string.h>

#include "graphs/expr/code.h"
#include "graphs/expr/expr_apply.h"

#ifdef __CUDACC__
#define GR_UNROLL _Pragma("unroll")
#else
#define GR_UNROLL
#endif

/* The element of each level that a thread's own lies in. */
typedef struct gr_code_place {
    uint32_t at[GR_CODE_LEVELS];
} gr_code_place;

GR_BOTH gr_code_place gr_code_at_seq(const gr_code_call *c, uint32_t seq)
{
    gr_code_place p = {{0, c->rows.group[seq], seq, 0, 0}};
    return p;
}

GR_BOTH gr_code_place gr_code_at_token(const gr_code_call *c, uint32_t seq, uint32_t t)
{
    uint32_t group = c->rows.group[seq];
    gr_code_place p = {{0, group, seq, c->rows.position[group] + (t - c->rows.offset[seq]), t}};
    return p;
}

GR_BOTH gr_code_place gr_code_at(const gr_code_call *c, int level, uint32_t i)
{
    gr_code_place p = {{0, 0, 0, 0, 0}};
    switch (level) {
    case GR_LEVEL_GROUP:
        p.at[GR_LEVEL_GROUP] = i;
        return p;
    case GR_LEVEL_SEQ:
        return gr_code_at_seq(c, i);
    case GR_LEVEL_POSITION:
        p.at[GR_LEVEL_GROUP] = gr_expr_range_of(c->rows.position, c->n_groups, i);
        p.at[GR_LEVEL_POSITION] = i;
        return p;
    case GR_LEVEL_TOKEN:
        return gr_code_at_token(c, gr_expr_range_of(c->rows.offset, c->rows.n_seqs, i), i);
    default:
        return p;
    }
}

/* ---- values -------------------------------------------------------------------------------------------- */

/* Of a SLOT or KEPT value. */
GR_BOTH double *gr_code_address(const gr_code_call *c, gr_code_arg a, const gr_code_place *p)
{
    uint32_t i = p->at[a.level];
    if (a.kind == GR_CODE_KEPT) return c->kept.base[a.level] + a.at * c->kept.stride[a.level] + i;
    return c->frame.base[a.level] + a.at * c->frame.stride[a.level] + (i - c->begin[a.level]);
}

GR_BOTH double gr_code_get(const gr_code_call *c, gr_code_arg a, const gr_code_place *p, const double *reg)
{
    switch (a.kind) {
    case GR_CODE_REG:
        return reg[a.at];
    case GR_CODE_CONST:
        return c->pass.consts[a.at];
    case GR_CODE_COLUMN:
        return gr_expr_load(c->column[a.at].data, c->column[a.at].dtype, p->at[a.level]);
    case GR_CODE_NONE:
        return 0;
    default:
        return *gr_code_address(c, a, p);
    }
}

GR_BOTH bool gr_code_counts(const gr_code_call *c, uint32_t t)
{
    return !c->rows.mask || c->rows.mask[t];
}

GR_BOTH void gr_code_put(const gr_code_call *c, gr_code_arg to, const gr_code_place *p, double *reg, double v)
{
    if (to.kind == GR_CODE_REG)
        reg[to.at] = v;
    else if (to.kind != GR_CODE_OUT)
        *gr_code_address(c, to, p) = v;
    else if (to.level == GR_LEVEL_SCALAR)
        c->value[to.at] = v;
    else
        c->out[to.at][p->at[GR_LEVEL_TOKEN]] = gr_code_counts(c, p->at[GR_LEVEL_TOKEN]) ? (float)v : 0;
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

GR_BOTH double gr_code_fold_start(const gr_code_instr *x)
{
    return x->op == GR_IR_SUM ? 0 : -INFINITY;
}

GR_BOTH double gr_code_fold_join(const gr_code_instr *x, double a, double b)
{
    return x->op == GR_IR_SUM ? a + b : gr_expr_larger(a, b);
}

/* Whether the element is summed, and its value. */
GR_BOTH bool gr_code_term(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p, double *v)
{
    *v = gr_code_get(c, x->arg[0], p, NULL);
    return x->arg[1].kind == GR_CODE_NONE || gr_code_get(c, x->arg[1], p, NULL) != 0;
}

GR_BOTH double gr_code_fold_one(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p,
                                double sum)
{
    double v;
    return gr_code_term(c, x, p, &v) ? gr_code_fold_join(x, sum, v) : sum;
}

/* One strand of a sequence's tokens, or of a prompt's positions. */
GR_BOTH double gr_code_fold_lane(const gr_code_call *c, const gr_code_instr *x, uint32_t unit, uint32_t lane)
{
    double sum = gr_code_fold_start(x);
    if (c->pass.level == GR_LEVEL_SEQ) {
        for (uint32_t t = c->rows.offset[unit] + lane; t < c->rows.offset[unit + 1]; t += GR_CODE_LANES) {
            gr_code_place p = gr_code_at_token(c, unit, t);
            if (gr_code_counts(c, t)) sum = gr_code_fold_one(c, x, &p, sum);
        }
        return sum;
    }
    gr_code_place p = {{0, unit, 0, 0, 0}};
    for (uint32_t i = c->rows.position[unit] + lane; i < c->rows.position[unit + 1]; i += GR_CODE_LANES) {
        p.at[GR_LEVEL_POSITION] = i;
        sum = gr_code_fold_one(c, x, &p, sum);
    }
    return sum;
}

/* Of a position, the sum over the prompt's sequences that have it, in their order. */
GR_BOTH double gr_code_fold_position(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *at)
{
    double sum = gr_code_fold_start(x);
    uint32_t group = at->at[GR_LEVEL_GROUP];
    uint32_t k = at->at[GR_LEVEL_POSITION] - c->rows.position[group];
    for (uint32_t seq = c->rows.first[group]; seq < c->rows.first[group + 1]; seq++) {
        uint32_t t = c->rows.offset[seq] + k;
        if (t >= c->rows.offset[seq + 1] || !gr_code_counts(c, t)) continue;
        gr_code_place p = gr_code_at_token(c, seq, t);
        sum = gr_code_fold_one(c, x, &p, sum);
    }
    return sum;
}

enum { GR_CODE_AHEAD = 8 };

/* Of a prompt or of all, the sum over prompts or sequences, in their order. One thread: it loads some ahead,
 * so that it waits for additions, not for memory. */
GR_BOTH double gr_code_fold_each(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *at)
{
    double sum = gr_code_fold_start(x);
    bool all = c->pass.level == GR_LEVEL_SCALAR;
    uint32_t group = at->at[GR_LEVEL_GROUP], first = all ? 0 : c->rows.first[group], end = c->n_groups;
    if (x->from == GR_LEVEL_SEQ) end = all ? c->rows.n_seqs : c->rows.first[group + 1];
    for (uint32_t i = first; i < end; i += GR_CODE_AHEAD) {
        double v[GR_CODE_AHEAD];
        bool in[GR_CODE_AHEAD];
        GR_UNROLL
        for (uint32_t k = 0; k < GR_CODE_AHEAD; k++) {
            in[k] = i + k < end;
            if (!in[k]) continue;
            gr_code_place p = gr_code_at(c, x->from, i + k);
            in[k] = gr_code_term(c, x, &p, &v[k]);
        }
        GR_UNROLL
        for (uint32_t k = 0; k < GR_CODE_AHEAD; k++)
            if (in[k]) sum = gr_code_fold_join(x, sum, v[k]);
    }
    return sum;
}

/* ---- neighbours ---------------------------------------------------------------------------------------- */

/* The first token at or after t that counts, or end; the last before t, or UINT32_MAX. */
GR_BOTH uint32_t gr_code_next(const gr_code_call *c, uint32_t t, uint32_t end)
{
    while (t < end && !gr_code_counts(c, t)) t++;
    return t;
}

GR_BOTH uint32_t gr_code_prev(const gr_code_call *c, uint32_t first, uint32_t t)
{
    while (t > first)
        if (gr_code_counts(c, --t)) return t;
    return UINT32_MAX;
}

GR_BOTH double gr_code_shift(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p)
{
    uint32_t seq = p->at[GR_LEVEL_SEQ], t = p->at[GR_LEVEL_TOKEN], end = c->rows.offset[seq + 1];
    if (!gr_code_counts(c, t)) return 0;
    uint32_t other =
        x->op == GR_IR_NEXT ? gr_code_next(c, t + 1, end) : gr_code_prev(c, c->rows.offset[seq], t);
    if (other == end || other == UINT32_MAX) return gr_code_get(c, x->arg[1], p, NULL);
    gr_code_place q = gr_code_at_token(c, seq, other);
    return gr_code_get(c, x->arg[0], &q, NULL);
}

/* The token of a sequence that is number k of those that count, or UINT32_MAX. */
GR_BOTH uint32_t gr_code_kth(const gr_code_call *c, uint32_t seq, uint32_t k)
{
    uint32_t t = c->rows.offset[seq], end = c->rows.offset[seq + 1];
    if (!c->rows.mask) return k < end - t ? t + k : UINT32_MAX;
    for (t = gr_code_next(c, t, end); t < end && k; k--) t = gr_code_next(c, t + 1, end);
    return t < end ? t : UINT32_MAX;
}

GR_BOTH double gr_code_nth(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p)
{
    uint32_t t = p->at[GR_LEVEL_TOKEN], begin = c->rows.offset[p->at[GR_LEVEL_SEQ]], k = t - begin;
    uint32_t group = p->at[GR_LEVEL_GROUP];
    if (!gr_code_counts(c, t)) return 0;
    if (c->rows.mask) {
        k = 0;
        for (uint32_t i = begin; i < t; i++) k += gr_code_counts(c, i);
    }
    double sum = 0;
    for (uint32_t seq = c->rows.first[group]; seq < c->rows.first[group + 1]; seq++) {
        uint32_t same = gr_code_kth(c, seq, k);
        if (same == UINT32_MAX) continue;
        gr_code_place q = gr_code_at_token(c, seq, same);
        sum += gr_code_get(c, x->arg[0], &q, NULL);
    }
    return sum;
}

GR_BOTH double gr_code_rank(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p)
{
    uint32_t seq = p->at[GR_LEVEL_SEQ], group = p->at[GR_LEVEL_GROUP], rank = 0;
    double mine = gr_code_get(c, x->arg[0], p, NULL);
    for (uint32_t s = c->rows.first[group]; s < c->rows.first[group + 1]; s++) {
        gr_code_place q = gr_code_at_seq(c, s);
        double v = gr_code_get(c, x->arg[0], &q, NULL);
        rank += v > mine || (v == mine && s < seq);
    }
    return rank;
}

/* AT_LAST: at tokens; LAST: at sequences. */
GR_BOTH double gr_code_last(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p)
{
    uint32_t seq = p->at[GR_LEVEL_SEQ];
    uint32_t last = gr_code_prev(c, c->rows.offset[seq], c->rows.offset[seq + 1]);
    if (x->op == GR_IR_AT_LAST) return last == p->at[GR_LEVEL_TOKEN] ? gr_code_get(c, x->arg[0], p, NULL) : 0;
    if (last == UINT32_MAX) return 0;
    gr_code_place q = gr_code_at_token(c, seq, last);
    return gr_code_get(c, x->arg[0], &q, NULL);
}

GR_BOTH double gr_code_draw(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p)
{
    int level = c->pass.level;
    uint32_t element[4] = {UINT32_MAX, p->at[level], 0, (uint32_t)level};
    gr_expr_draws d = {c->keys.seed, c->keys.node, c->keys.step, c->keys.epoch, c->keys.round};
    if (level >= GR_LEVEL_SEQ) element[1] = c->rows.first_seq + p->at[GR_LEVEL_SEQ];
    if (level == GR_LEVEL_TOKEN) element[0] = p->at[level] - c->rows.offset[p->at[GR_LEVEL_SEQ]];
    return gr_expr_draw(&d, x->id, element);
}

/* ---- threads ------------------------------------------------------------------------------------------- */

GR_BOTH double gr_code_value(const gr_code_call *c, const gr_code_instr *x, const gr_code_place *p,
                             const double *reg)
{
    switch (x->op) {
    case GR_IR_SUM:
    case GR_IR_AMAX:
        return x->from == GR_LEVEL_TOKEN ? gr_code_fold_position(c, x, p) : gr_code_fold_each(c, x, p);
    case GR_IR_NEXT:
    case GR_IR_PREV:
        return gr_code_shift(c, x, p);
    case GR_IR_AT_LAST:
    case GR_IR_LAST:
        return gr_code_last(c, x, p);
    case GR_IR_NTH:
        return gr_code_nth(c, x, p);
    case GR_IR_RANK:
        return gr_code_rank(c, x, p);
    case GR_IR_REPEAT:
        return gr_code_get(c, x->arg[0], p, reg);
    case GR_IR_RANDOM:
        return gr_code_draw(c, x, p);
    default:
        return gr_expr_apply((gr_ir_op)x->op, gr_code_get(c, x->arg[0], p, reg),
                             gr_code_get(c, x->arg[1], p, reg), gr_code_get(c, x->arg[2], p, reg));
    }
}

/* EACH: element i of the level. */
GR_BOTH void gr_code_each(const gr_code_call *c, uint32_t i)
{
    double reg[GR_CODE_REGS];
    gr_code_place p = gr_code_at(c, c->pass.level, i);
    for (uint32_t k = 0; k < c->pass.n_instrs; k++) {
        const gr_code_instr *x = &c->pass.instr[k];
        gr_code_put(c, x->to, &p, reg, gr_code_value(c, x, &p, reg));
    }
}

/* SCAN: the tokens of a sequence in order, or from the last. One thread: its loads do not wait for each
 * other, only the multiply-adds do, and sequences are many. */
GR_BOTH void gr_code_scan(const gr_code_call *c, const gr_code_instr *x, uint32_t seq)
{
    uint32_t begin = c->rows.offset[seq], n = c->rows.offset[seq + 1] - begin;
    bool back = x->op == GR_IR_SCAN_BACK, some = false;
    double carry = 0, gamma_before = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t t = begin + (back ? n - 1 - k : k);
        gr_code_place p = gr_code_at_token(c, seq, t);
        double y = 0;
        if (gr_code_counts(c, t)) {
            double v = gr_code_get(c, x->arg[0], &p, NULL), gamma = gr_code_get(c, x->arg[1], &p, NULL);
            y = carry = some ? v + (back ? gamma : gamma_before) * carry : v;
            gamma_before = gamma;
            some = true;
        }
        gr_code_put(c, x->to, &p, NULL, y);
    }
}

/* ---- selections ---------------------------------------------------------------------------------------- */

/* A block's threads; on the host there is one. */
#ifdef __CUDACC__
#define GR_CODE_SYNC()     __syncthreads()
#define GR_CODE_COUNT(bin) atomicAdd(&(bin), 1u) /* integers: any order gives the same */
#else
#define GR_CODE_SYNC()     (void)0
#define GR_CODE_COUNT(bin) ((bin)++)
#endif

/* What the threads of a selection share. */
typedef struct gr_code_selection {
    uint32_t count[256], left; /* how many are still to be taken among those that begin like key, index */
    uint64_t key;
    uint32_t index;
} gr_code_selection;

/* Numbers in the order of doubles, -0 as 0; a NaN comes last of all that are candidates. */
GR_BOTH uint64_t gr_code_sortable(double key)
{
    uint64_t bits;
    key = key != key ? (double)INFINITY : key + 0.0;
    memcpy(&bits, &key, sizeof(bits));
    return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

#define GR_CODE_NO_CANDIDATE UINT64_MAX

GR_BOTH uint64_t gr_code_key(const gr_code_call *c, const gr_code_instr *x, uint32_t i)
{
    bool top = x->op == GR_IR_TOP;
    gr_code_place p = gr_code_at(c, c->pass.level, i);
    if (c->pass.level == GR_LEVEL_TOKEN && !gr_code_counts(c, i)) return GR_CODE_NO_CANDIDATE;
    if (gr_code_get(c, x->arg[top ? 2 : 0], &p, NULL) == 0) return GR_CODE_NO_CANDIDATE;
    return gr_code_sortable(top ? -gr_code_get(c, x->arg[0], &p, NULL) : gr_code_draw(c, x, &p));
}

/* Whether (key, i) begins with the bytes that are known, of 12. */
GR_BOTH bool gr_code_begins(const gr_code_selection *s, uint64_t key, uint32_t i, int known)
{
    if (known < 8) return !known || (key ^ s->key) >> (64 - 8 * known) == 0;
    return key == s->key && (known == 8 || (i ^ s->index) >> (96 - 8 * known) == 0);
}

GR_BOTH uint32_t gr_code_byte(uint64_t key, uint32_t i, int known)
{
    return (uint32_t)(known < 8 ? key >> (56 - 8 * known) : i >> (88 - 8 * known)) & 255;
}

GR_BOTH uint32_t gr_code_how_many(double k, uint32_t n)
{
    if (!(k >= 1)) return 0;
    return k >= (double)n ? n : (uint32_t)k;
}

/* One thread: the next byte of the last one taken. */
GR_BOTH void gr_code_narrow(gr_code_selection *s, int known)
{
    uint32_t b = 0;
    while (b < 255 && s->count[b] < s->left) s->left -= s->count[b++];
    if (known < 8)
        s->key |= (uint64_t)b << (56 - 8 * known);
    else
        s->index |= b << (88 - 8 * known);
}

/* The address of the result of element i; it holds keys until the last step. */
GR_BOTH double *gr_code_selected(const gr_code_call *c, const gr_code_instr *x, uint32_t i)
{
    gr_code_place p = {{i, i, i, i, i}};
    return gr_code_address(c, x->to, &p);
}

GR_BOTH uint64_t gr_code_key_of(const double *at)
{
    uint64_t key;
    memcpy(&key, at, sizeof(key));
    return key;
}

/* TOP and CHOOSE: 1 for the k smallest of (key, index), by radix: from the first byte on, count and narrow.
 */
GR_BOTH void gr_code_select(const gr_code_call *c, const gr_code_instr *x, uint32_t thread, uint32_t threads,
                            gr_code_selection *s)
{
    const gr_code_place all = {{0, 0, 0, 0, 0}};
    double k = gr_code_get(c, x->arg[1], &all, NULL);
    if (!thread) s->key = s->index = 0;
    for (uint32_t i = thread; i < c->n; i += threads) {
        uint64_t key = gr_code_key(c, x, i);
        memcpy(gr_code_selected(c, x, i), &key, sizeof(key));
    }
    for (int known = 0; known < 12; known++) {
        for (uint32_t b = thread; b < 256; b += threads) s->count[b] = 0;
        GR_CODE_SYNC();
        for (uint32_t i = thread; i < c->n; i += threads) {
            uint64_t key = gr_code_key_of(gr_code_selected(c, x, i));
            if (key != GR_CODE_NO_CANDIDATE && gr_code_begins(s, key, i, known))
                GR_CODE_COUNT(s->count[gr_code_byte(key, i, known)]);
        }
        GR_CODE_SYNC();
        if (!thread) {
            uint32_t there = 0;
            for (int b = 0; b < 256 && !known; b++) there += s->count[b];
            if (!known) s->left = gr_code_how_many(k, there);
            if (s->left) gr_code_narrow(s, known);
        }
        GR_CODE_SYNC();
        if (!s->left) break;
    }
    for (uint32_t i = thread; i < c->n; i += threads) {
        double *at = gr_code_selected(c, x, i);
        uint64_t key = gr_code_key_of(at);
        *at = s->left && (key < s->key || (key == s->key && i <= s->index));
    }
    GR_CODE_SYNC(); /* s is used again */
}

#endif
