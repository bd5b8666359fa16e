/* graphs/expr/expr_eval.c: run the instructions of an expression over rows, one at a time, in double.
 *
 * Elements of a level are visited in spans: a sequence's tokens, one sequence, a group's positions, all
 * groups. Within a span an argument is a pointer and a step of 0 or 1, which is how coarse values broadcast.
 * Reductions add one partial a span, in the order of spans, so results do not depend on how the rest of the
 * work is cut.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "graphs/expr/expr_apply.h"
#include "graphs/expr/expr_ir.h"

enum { N_LEVELS = GR_LEVEL_TOKEN + 1 };

typedef struct span {
    gr_level level;
    const gr_expr_rows *rows;
    uint32_t group, seq, begin, n; /* begin: absolute index at the level; n elements */
} span;

typedef struct view { /* elements of an argument within a span */
    const double *p;
    size_t step;
} view;

static const gr_expr_rows *rows_of(const gr_ir_run *r, int rows)
{
    return rows < 0 ? NULL : &r->env->rows[rows];
}

static const uint32_t *positions_of(const gr_ir_run *r, int rows)
{
    unsigned i = 0;
    while (i < r->p->n_position_rows && r->p->position_rows[i] != rows) i++;
    assert(i < r->p->n_position_rows);
    return r->position + (size_t)i * (r->env->n_groups + 1);
}

/* ---- spans -------------------------------------------------------------------------------------------- */

typedef struct walk {
    const gr_ir_run *r;
    span s;
    const uint32_t *positions;
    uint32_t i, end; /* next sequence or group */
} walk;

static walk walk_new(const gr_ir_run *r, gr_level level, int rows)
{
    walk w = {.r = r, .s = {.level = level, .rows = rows_of(r, rows)}, .end = 1};
    if (level == GR_LEVEL_POSITION) {
        w.positions = positions_of(r, rows);
        w.end = r->env->n_groups;
    } else if (level >= GR_LEVEL_SEQ) {
        w.i = r->whole ? 0 : r->first_seq;
        w.end = r->whole ? w.s.rows->n_seqs : r->end_seq;
    }
    return w;
}

static void token_span(const gr_ir_run *r, span *s)
{
    uint32_t begin = s->rows->offset[s->seq], end = s->rows->offset[s->seq + 1];
    s->begin = r->whole ? begin : GR_MAX(begin, r->first);
    s->n = (r->whole ? end : GR_MIN(end, r->end)) - s->begin;
}

static bool walk_next(walk *w)
{
    if (w->i >= w->end) return false;
    span *s = &w->s;
    uint32_t i = w->i++;
    s->n = 1;
    switch (s->level) {
    case GR_LEVEL_SCALAR:
        break;
    case GR_LEVEL_GROUP:
        s->n = w->r->env->n_groups;
        break;
    case GR_LEVEL_POSITION:
        s->group = i;
        s->begin = w->positions[i];
        s->n = w->positions[i + 1] - s->begin;
        break;
    case GR_LEVEL_SEQ:
    case GR_LEVEL_TOKEN:
        s->seq = s->begin = i;
        s->group = s->rows->group[i];
        if (s->level == GR_LEVEL_TOKEN) token_span(w->r, s);
        break;
    }
    return true;
}

static bool counts(const span *s, uint32_t i)
{
    return s->level != GR_LEVEL_TOKEN || !s->rows->mask || s->rows->mask[s->begin + i];
}

/* Index in a slot of this run of the span's first element at a level no finer than the span's. */
static size_t index_at(const gr_ir_run *r, const span *s, gr_level level, int rows, bool ranged)
{
    uint32_t first_seq = ranged && !r->whole ? r->first_seq : 0, first = ranged && !r->whole ? r->first : 0;
    switch (level) {
    case GR_LEVEL_SCALAR:
        return 0;
    case GR_LEVEL_GROUP:
        return s->level == GR_LEVEL_GROUP ? 0 : s->group;
    case GR_LEVEL_SEQ:
        return s->seq - first_seq;
    case GR_LEVEL_POSITION:
        if (s->level == GR_LEVEL_POSITION) return s->begin;
        return positions_of(r, rows)[s->group] + (s->begin - s->rows->offset[s->seq]);
    case GR_LEVEL_TOKEN:
        break;
    }
    return s->begin - first;
}

static view view_of(const gr_ir_run *r, const span *s, int node)
{
    static const double zero = 0;
    if (node < 0) return (view){&zero, 0};
    const gr_ir_node *n = &r->p->ir->nodes[node];
    unsigned place = r->p->place[node];
    if (place == GR_IR_INLINE) return (view){&n->value, 0};
    bool kept = place == GR_IR_KEPT;
    const double *base = gr_ir_slot(kept ? &r->store : &r->frame, n->level, r->p->slot[node]);
    bool moves = n->level == s->level || (n->level == GR_LEVEL_POSITION && s->level == GR_LEVEL_TOKEN);
    return (view){base + index_at(r, s, n->level, n->rows, !kept), moves};
}

static double at(view v, uint32_t i)
{
    return v.p[i * v.step];
}

/* Where the span's elements of a result go. */
static double *target(const gr_ir_run *r, const span *s, int node)
{
    return (double *)view_of(r, s, node).p;
}

/* ---- instructions ------------------------------------------------------------------------------------- */

static void do_sym(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    const gr_expr_column *c = &r->env->columns[n->id];
    for (walk w = walk_new(r, n->level, n->rows); walk_next(&w);) {
        double *out = target(r, &w.s, y);
        for (uint32_t i = 0; i < w.s.n; i++) out[i] = gr_expr_load(c->data, c->dtype, w.s.begin + i);
    }
}

/* One loop an instruction, so that the compiler sees which. */
#define LOOP(OP)                                                                                           \
    case GR_IR_##OP:                                                                                       \
        for (uint32_t i = 0; i < n; i++) out[i] = gr_expr_apply(GR_IR_##OP, at(a, i), at(b, i), at(c, i)); \
        break;

static void apply_span(gr_ir_op op, double *out, view a, view b, view c, uint32_t n)
{
    switch (op) {
        LOOP(ADD)
        LOOP(SUB)
        LOOP(MUL)
        LOOP(MULZ)
        LOOP(DIV)
        LOOP(WHERE)
    default:
        for (uint32_t i = 0; i < n; i++) out[i] = gr_ir_apply(op, at(a, i), at(b, i), at(c, i));
        break;
    }
}

static void do_pointwise(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    for (walk w = walk_new(r, n->level, n->rows); walk_next(&w);) {
        const span *s = &w.s;
        apply_span(n->op, target(r, s, y), view_of(r, s, n->arg[0]), view_of(r, s, n->arg[1]),
                   view_of(r, s, n->arg[2]), s->n);
    }
}

static uint64_t elements(const gr_ir_run *r, gr_level level)
{
    return r->frame.count[level];
}

static void fill(const gr_ir_run *r, const gr_ir_node *n, int y, double v)
{
    double *out = (double *)gr_ir_slot(&r->frame, n->level, r->p->slot[y]);
    for (uint64_t i = 0; i < elements(r, n->level); i++) out[i] = v;
}

/* To position level every element has its own target; otherwise the span has one. */
static void reduce_span(const gr_ir_run *r, const gr_ir_node *n, int y, const span *s)
{
    view x = view_of(r, s, n->arg[0]), mask = view_of(r, s, n->arg[1]);
    bool sum = n->op == GR_IR_SUM, each = n->level == GR_LEVEL_POSITION;
    double partial = sum ? 0 : -INFINITY, *out = target(r, s, y);
    for (uint32_t i = 0; i < s->n; i++) {
        if (!counts(s, i) || (n->arg[1] >= 0 && at(mask, i) == 0)) continue;
        double v = at(x, i), *to = each ? &out[i] : &partial;
        *to = sum ? *to + v : gr_expr_larger(*to, v);
    }
    if (!each) *out = sum ? *out + partial : gr_expr_larger(*out, partial);
}

static void do_reduce(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    fill(r, n, y, n->op == GR_IR_SUM ? 0 : -INFINITY);
    for (walk w = walk_new(r, n->from, n->rows); walk_next(&w);) reduce_span(r, n, y, &w.s);
}

/* carry: the result (scans) or the argument (shifts) at the token before in walking order. */
static void scan_span(const gr_ir_node *n, const span *s, double *out, view x, view p)
{
    bool backward = n->op == GR_IR_SCAN_BACK || n->op == GR_IR_NEXT;
    bool shifts = n->op == GR_IR_NEXT || n->op == GR_IR_PREV;
    double carry = 0, gamma_before = 0;
    bool some = false;
    for (uint32_t k = 0; k < s->n; k++) {
        uint32_t i = backward ? s->n - 1 - k : k;
        if (!counts(s, i)) {
            out[i] = 0;
            continue;
        }
        double v = at(x, i);
        if (shifts) {
            out[i] = some ? carry : at(p, i);
            carry = v;
        } else {
            double gamma = backward ? at(p, i) : gamma_before;
            carry = some ? v + gamma * carry : v;
            gamma_before = at(p, i);
            out[i] = carry;
        }
        some = true;
    }
}

static void do_scan(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    for (walk w = walk_new(r, GR_LEVEL_TOKEN, n->rows); walk_next(&w);) {
        scan_span(n, &w.s, target(r, &w.s, y), view_of(r, &w.s, n->arg[0]), view_of(r, &w.s, n->arg[1]));
    }
}

static void do_repeat(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    for (walk w = walk_new(r, GR_LEVEL_TOKEN, n->rows); walk_next(&w);) {
        view x = view_of(r, &w.s, n->arg[0]);
        double *out = target(r, &w.s, y);
        for (uint32_t i = 0; i < w.s.n; i++) out[i] = at(x, i);
    }
}

/* Index in the span of its last token, or n where it has none. */
static uint32_t last_of(const span *s)
{
    for (uint32_t i = s->n; i > 0; i--) {
        if (counts(s, i - 1)) return i - 1;
    }
    return s->n;
}

static void do_last(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    bool put = n->op == GR_IR_AT_LAST;
    for (walk w = walk_new(r, GR_LEVEL_TOKEN, n->rows); walk_next(&w);) {
        uint32_t last = last_of(&w.s);
        view x = view_of(r, &w.s, n->arg[0]);
        double *out = target(r, &w.s, y), v = last < w.s.n ? at(x, last) : 0;
        for (uint32_t i = 0; put && i < w.s.n; i++) out[i] = i == last ? v : 0;
        if (!put) *out = v;
    }
}

static void do_rank(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    const gr_expr_rows *rows = rows_of(r, n->rows);
    for (walk w = walk_new(r, GR_LEVEL_SEQ, n->rows); walk_next(&w);) {
        double x = at(view_of(r, &w.s, n->arg[0]), 0);
        uint32_t rank = 0, first = w.s.seq;
        while (first > 0 && rows->group[first - 1] == w.s.group) first--;
        for (uint32_t s = first; s < rows->n_seqs && rows->group[s] == w.s.group; s++) {
            span other = w.s;
            other.seq = other.begin = s;
            double v = at(view_of(r, &other, n->arg[0]), 0);
            rank += v > x || (v == x && s < w.s.seq);
        }
        *target(r, &w.s, y) = rank;
    }
}

/* ---- the n-th tokens of a group ----------------------------------------------------------------------- */

static span tokens_of(const gr_expr_rows *rows, uint32_t seq)
{
    return (span){GR_LEVEL_TOKEN,    rows,
                  rows->group[seq],  seq,
                  rows->offset[seq], rows->offset[seq + 1] - rows->offset[seq]};
}

static uint32_t counted(const span *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) n += counts(s, i);
    return n;
}

/* The token after i that counts, or n. */
static uint32_t next_counted(const span *s, uint32_t i)
{
    while (i < s->n && !counts(s, i)) i++;
    return i;
}

/* Add x at s's tokens to the result at the same tokens of longest, or (back) copy them from there. */
static void nth_pass(const gr_ir_run *r, const gr_ir_node *n, int y, const span *s, const span *longest,
                     bool back)
{
    view x = view_of(r, s, n->arg[0]);
    double *sums = target(r, longest, y), *out = target(r, s, y);
    uint32_t k = next_counted(longest, 0);
    for (uint32_t i = next_counted(s, 0); i < s->n; i = next_counted(s, i + 1)) {
        if (back)
            out[i] = sums[k];
        else
            sums[k] += at(x, i);
        k = next_counted(longest, k + 1);
    }
}

/* The sums of a group stand in its longest sequence until all are there. */
static void do_nth(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    const gr_expr_rows *rows = rows_of(r, n->rows);
    fill(r, n, y, 0);
    for (uint32_t first = 0, end; first < rows->n_seqs; first = end) {
        span longest = tokens_of(rows, first);
        for (end = first; end < rows->n_seqs && rows->group[end] == rows->group[first]; end++) {
            span s = tokens_of(rows, end);
            if (counted(&s) > counted(&longest)) longest = s;
        }
        for (int back = 0; back < 2; back++)
            for (uint32_t seq = first; seq < end; seq++) {
                span s = tokens_of(rows, seq);
                if (!back || seq != longest.seq) nth_pass(r, n, y, &s, &longest, back);
            }
    }
}

/* ---- draws and selections ----------------------------------------------------------------------------- */

static double draw(const gr_ir_run *r, int id, const span *s, uint32_t i)
{
    const gr_expr_env *e = r->env;
    const gr_expr_draws d = {e->seed, e->node, e->step, e->epoch, e->round};
    uint32_t element[4] = {UINT32_MAX, s->begin + i, 0, (uint32_t)s->level};
    if (s->rows) element[1] = s->rows->first_seq + s->seq;
    if (s->level == GR_LEVEL_TOKEN) element[0] = s->begin + i - s->rows->offset[s->seq];
    return gr_expr_draw(&d, (uint32_t)id, element);
}

static void do_random(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    for (walk w = walk_new(r, n->level, n->rows); walk_next(&w);) {
        double *out = target(r, &w.s, y);
        for (uint32_t i = 0; i < w.s.n; i++) out[i] = draw(r, n->id, &w.s, i);
    }
}

static bool before(struct gr_ir_key a, struct gr_ir_key b)
{
    return a.key != b.key ? a.key < b.key : a.index < b.index;
}

static void sift(struct gr_ir_key *k, size_t i, size_t n)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && before(k[child], k[child + 1]);
        if (!before(k[i], k[child])) return;
        struct gr_ir_key t = k[i];
        k[i] = k[child];
        k[child] = t;
    }
}

/* Heapsort: in place, no allocation (qsort may allocate). */
static void sort_keys(struct gr_ir_key *k, size_t n)
{
    for (size_t i = n / 2; i-- > 0;) sift(k, i, n);
    for (size_t end = n; end-- > 1;) {
        struct gr_ir_key t = k[0];
        k[0] = k[end];
        k[end] = t;
        sift(k, 0, end);
    }
}

static size_t how_many(double k, size_t n)
{
    if (!(k >= 1)) return 0;
    return k >= (double)n ? n : (size_t)k;
}

/* TOP sorts by falling x (a NaN counts as the smallest), CHOOSE by its draw; the first k are taken. */
static void do_select(const gr_ir_run *r, const gr_ir_node *n, int y)
{
    bool top = n->op == GR_IR_TOP;
    size_t n_keys = 0;
    double k = 0;
    fill(r, n, y, 0);
    double *out = (double *)gr_ir_slot(&r->frame, n->level, r->p->slot[y]);
    for (walk w = walk_new(r, n->level, n->rows); walk_next(&w);) {
        view x = view_of(r, &w.s, n->arg[0]), cond = view_of(r, &w.s, n->arg[top ? 2 : 0]);
        k = at(view_of(r, &w.s, n->arg[1]), 0);
        for (uint32_t i = 0; i < w.s.n; i++) {
            if (!counts(&w.s, i) || at(cond, i) == 0) continue;
            double key = top ? -at(x, i) : draw(r, n->id, &w.s, i);
            r->keys[n_keys++] = (struct gr_ir_key){key != key ? INFINITY : key, w.s.begin + i};
        }
    }
    sort_keys(r->keys, n_keys);
    size_t taken = how_many(k, n_keys);
    for (size_t i = 0; i < taken; i++) out[r->keys[i].index] = 1;
}

/* ---- runs --------------------------------------------------------------------------------------------- */

static void run_node(const gr_ir_run *r, int y)
{
    const gr_ir_node *n = &r->p->ir->nodes[y];
    switch (n->op) {
    case GR_IR_SYM:
        do_sym(r, n, y);
        break;
    case GR_IR_SUM:
    case GR_IR_AMAX:
        do_reduce(r, n, y);
        break;
    case GR_IR_SCAN_FWD:
    case GR_IR_SCAN_BACK:
    case GR_IR_NEXT:
    case GR_IR_PREV:
        do_scan(r, n, y);
        break;
    case GR_IR_AT_LAST:
    case GR_IR_LAST:
        do_last(r, n, y);
        break;
    case GR_IR_REPEAT:
        do_repeat(r, n, y);
        break;
    case GR_IR_RANK:
        do_rank(r, n, y);
        break;
    case GR_IR_NTH:
        do_nth(r, n, y);
        break;
    case GR_IR_TOP:
    case GR_IR_CHOOSE:
        do_select(r, n, y);
        break;
    case GR_IR_RANDOM:
        do_random(r, n, y);
        break;
    default:
        do_pointwise(r, n, y);
        break;
    }
}

/* A group has as many positions as its longest sequence has tokens. */
static void find_positions(const gr_ir_run *r, unsigned which)
{
    const gr_expr_rows *rows = rows_of(r, r->p->position_rows[which]);
    uint32_t *first = r->position + (size_t)which * (r->env->n_groups + 1);
    memset(first, 0, (r->env->n_groups + 1) * sizeof(*first));
    for (uint32_t s = 0; s < rows->n_seqs; s++) {
        uint32_t len = rows->offset[s + 1] - rows->offset[s], *longest = &first[rows->group[s] + 1];
        *longest = GR_MAX(*longest, len);
    }
    for (uint32_t g = 0; g < r->env->n_groups; g++) first[g + 1] += first[g];
}

static uint64_t position_bytes(const gr_ir_program *p, uint64_t groups)
{
    return gr_align(p->n_position_rows * (groups + 1) * sizeof(uint32_t), 16);
}

static uint64_t largest(const uint64_t *count)
{
    uint64_t n = 0;
    for (int l = 0; l < N_LEVELS; l++) n = GR_MAX(n, count[l]);
    return n;
}

static void run_program(gr_ir_run *r, void *work)
{
    char *at_ = work;
    r->position = (uint32_t *)at_;
    at_ += position_bytes(r->p, r->env->n_groups);
    r->keys = (struct gr_ir_key *)at_;
    if (r->p->sorts) at_ += largest(r->frame.count) * sizeof(*r->keys);
    r->frame.base = (double *)at_;
    r->frame.n_slots = r->p->n_slots;
    for (unsigned i = 0; i < r->p->n_position_rows; i++) find_positions(r, i);
    for (size_t i = 0; i < r->p->n; i++) run_node(r, r->p->order[i]);
}

uint64_t gr_ir_program_bytes(const gr_ir_program *p, gr_expr_bounds range, uint32_t groups)
{
    const uint64_t count[N_LEVELS] = {1, groups, range.seqs, range.tokens, range.tokens};
    uint64_t bytes = position_bytes(p, groups) + gr_ir_frame_doubles(p->n_slots, count) * sizeof(double);
    return bytes + (p->sorts ? largest(count) * sizeof(struct gr_ir_key) : 0);
}

static void count_rows(const gr_expr_env *env, int rows, uint64_t *count)
{
    if (rows < 0) return;
    const gr_expr_rows *r = &env->rows[rows];
    uint64_t tokens = r->n_seqs ? r->offset[r->n_seqs] : 0;
    count[GR_LEVEL_SEQ] = GR_MAX(count[GR_LEVEL_SEQ], r->n_seqs);
    count[GR_LEVEL_TOKEN] = GR_MAX(count[GR_LEVEL_TOKEN], tokens);
    count[GR_LEVEL_POSITION] = count[GR_LEVEL_TOKEN];
}

void gr_ir_counts(const gr_ir_program *p, const gr_expr_env *env, uint64_t *count)
{
    memset(count, 0, N_LEVELS * sizeof(*count));
    count[GR_LEVEL_SCALAR] = 1;
    count[GR_LEVEL_GROUP] = env->n_groups;
    for (size_t i = 0; i < p->n; i++) count_rows(env, p->ir->nodes[p->order[i]].rows, count);
}

void gr_ir_run_whole(gr_ir_run *r, const gr_ir_program *p, const gr_expr_env *env, gr_ir_frame store,
                     void *work)
{
    *r = (gr_ir_run){.p = p, .env = env, .store = store, .whole = true};
    gr_ir_counts(p, env, r->frame.count);
    run_program(r, work);
}

void gr_ir_run_range(gr_ir_run *r, const gr_ir_program *p, const gr_expr_env *env, gr_ir_frame store,
                     int rows, uint32_t first, uint32_t end, void *work)
{
    *r = (gr_ir_run){.p = p, .env = env, .store = store, .first = first, .end = end};
    const gr_expr_rows *in = &env->rows[rows];
    if (first < end) {
        r->first_seq = gr_expr_range_of(in->offset, in->n_seqs, first);
        r->end_seq = gr_expr_range_of(in->offset, in->n_seqs, end - 1) + 1;
    }
    const uint64_t count[N_LEVELS] = {1, env->n_groups, r->end_seq - r->first_seq, end - first, end - first};
    memcpy(r->frame.count, count, sizeof(count));
    run_program(r, work);
}

void gr_ir_output(const gr_ir_run *r, int node, gr_level level, int rows, float *out)
{
    for (walk w = walk_new(r, level, rows); walk_next(&w);) {
        view v = view_of(r, &w.s, node);
        for (uint32_t i = 0; i < w.s.n; i++) out[w.s.begin + i] = counts(&w.s, i) ? (float)at(v, i) : 0;
    }
}

double gr_ir_output_scalar(const gr_ir_run *r, int node)
{
    const span s = {.level = GR_LEVEL_SCALAR, .n = 1};
    return at(view_of(r, &s, node), 0);
}
