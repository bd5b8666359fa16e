/* graphs/expr/code.c: from instructions to passes.
 *
 * Instructions become items: a sum over tokens that goes further than their sequences is two, the partials
 * and their sum; a goal is one more, unless its value is computed straight into its place. Items are put into
 * passes in their order: a pass takes every item of one form and level whose arguments are there, those that
 * only read their own element's values also beside the items that compute these. Values that no other pass
 * reads live in registers of a thread, the others in slots, which are used again once their last reader's
 * pass is over.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "graphs/expr/code_new.h"

enum { NO_PASS = -1 };

typedef struct item {
    gr_code_form form;
    gr_level level, from;
    gr_ir_op op;
    int rows, id;
    int arg[3]; /* values */
    int value;  /* computed; -1: a goal's own item, which has `to` */
    gr_code_arg to;
    int pass;
} item;

/* Values: those of the instructions, by their number, then partial sums. */
typedef struct value {
    int item; /* -1: nothing computes it: constants, columns, kept */
    gr_level level;
    gr_code_arg place;
    int last;         /* pass of its last reader */
    size_t last_item; /* its last reader */
    bool alone;       /* read in its own pass only, by its own thread */
} value;

typedef struct maker {
    const gr_ir *ir;
    const unsigned *kept;
    gr_code *code;
    item *items;
    size_t n_items, cap_items;
    value *values;
    size_t n_values, cap_values;
} maker;

/* ---- items --------------------------------------------------------------------------------------------- */

static bool computed(const maker *m, int node)
{
    gr_ir_op op = m->ir->nodes[node].op;
    return op != GR_IR_CONST && op != GR_IR_SYM && !(m->kept && m->kept[node]);
}

static gr_code_form form_of(const gr_ir_node *n)
{
    switch (n->op) {
    case GR_IR_SCAN_FWD:
    case GR_IR_SCAN_BACK:
        return GR_CODE_SCAN;
    case GR_IR_TOP:
    case GR_IR_CHOOSE:
        return GR_CODE_SELECT;
    default:
        return GR_CODE_EACH;
    }
}

static int add_item(maker *m, item x)
{
    x.pass = NO_PASS;
    GR_PUSH(m->items, m->n_items, m->cap_items, x);
    return (int)m->n_items - 1;
}

/* The level that a sum passes through: partials are taken over tokens of a sequence, or positions of a
 * prompt. */
static gr_level partial_level(const gr_ir_node *n)
{
    if (n->from == GR_LEVEL_TOKEN && n->level != GR_LEVEL_POSITION) return GR_LEVEL_SEQ;
    return n->from == GR_LEVEL_POSITION ? GR_LEVEL_GROUP : n->from;
}

static item fold_item(const gr_ir_node *n, int y, gr_level level)
{
    return (item){.form = GR_CODE_FOLD,
                  .level = level,
                  .from = n->from,
                  .op = n->op,
                  .rows = n->rows,
                  .id = -1,
                  .arg = {n->arg[0], n->arg[1], -1},
                  .value = y};
}

static void add_node(maker *m, int y)
{
    const gr_ir_node *n = &m->ir->nodes[y];
    bool folds = n->op == GR_IR_SUM || n->op == GR_IR_AMAX;
    gr_level partial = folds ? partial_level(n) : n->level;
    item x = {.form = form_of(n),
              .level = n->level,
              .from = n->from,
              .op = n->op,
              .rows = n->rows,
              .id = n->id,
              .value = y};
    memcpy(x.arg, n->arg, sizeof(x.arg));
    if (folds && partial != n->from) {
        int to = y;
        if (partial != n->level) { /* the sum of partials is the item that follows */
            to = (int)m->n_values;
            GR_PUSH(m->values, m->n_values, m->cap_values, ((value){.level = partial}));
            x.from = partial;
            x.arg[0] = to;
            x.arg[1] = -1;
        }
        m->values[to].item = add_item(m, fold_item(n, to, partial));
        if (to == y) return;
    }
    m->values[y].item = add_item(m, x);
}

static void add_nodes(maker *m, const gr_code_goal *goals, size_t n_goals)
{
    bool *needed = gr_calloc(m->ir->n + 1, sizeof(*needed));
    for (size_t i = 0; i < n_goals; i++) needed[goals[i].node] = true;
    for (size_t i = m->ir->n; i-- > 0;)
        for (int k = 0; needed[i] && computed(m, (int)i) && k < 3; k++)
            if (m->ir->nodes[i].arg[k] >= 0) needed[m->ir->nodes[i].arg[k]] = true;
    for (size_t i = 0; i < m->ir->n; i++)
        if (needed[i] && computed(m, (int)i)) add_node(m, (int)i);
    free(needed);
}

static void add_goal(maker *m, const gr_code_goal *g)
{
    value *v = &m->values[g->node];
    if (g->to.kind == GR_CODE_KEPT && v->item >= 0) {
        v->place = g->to;
        return;
    }
    add_item(m, (item){.form = GR_CODE_EACH,
                       .level = g->to.level,
                       .from = g->to.level,
                       .op = GR_IR_STOP,
                       .rows = g->rows,
                       .id = -1,
                       .arg = {g->node, -1, -1},
                       .value = -1,
                       .to = g->to});
}

/* ---- passes -------------------------------------------------------------------------------------------- */

/* Reads nothing of other elements of its level. */
static bool keeps_to_itself(const item *x)
{
    return x->form == GR_CODE_EACH && (gr_ir_pointwise(x->op) || x->op == GR_IR_RANDOM);
}

static bool fits_beside(const maker *m, const item *x, int v, int pass)
{
    const value *a = &m->values[v];
    if (a->item < 0) return true;
    int at = m->items[a->item].pass;
    if (at == NO_PASS || at > pass) return false;
    return at < pass || (keeps_to_itself(x) && a->level == x->level);
}

static bool ready(const maker *m, const item *x, int pass)
{
    if (x->pass != NO_PASS) return false;
    for (int k = 0; k < 3; k++)
        if (x->arg[k] >= 0 && !fits_beside(m, x, x->arg[k], pass)) return false;
    return true;
}

static unsigned const_at(gr_code_pass *p, double v)
{
    for (unsigned i = 0; i < p->n_consts; i++)
        if (!memcmp(&p->consts[i], &v, sizeof(v))) return i;
    p->consts[p->n_consts] = v;
    return p->n_consts++;
}

static unsigned column_at(gr_code_pass *p, int id)
{
    for (unsigned i = 0; i < p->n_columns; i++)
        if (p->column[i] == id) return i;
    p->column[p->n_columns] = id;
    return p->n_columns++;
}

/* Room for whatever three arguments may bring. */
static bool has_room(const gr_code_pass *p)
{
    return p->n_instrs < GR_CODE_INSTRS && p->n_consts + 3 <= GR_CODE_CONSTS &&
           p->n_columns + 3 <= GR_CODE_COLUMNS;
}

static bool same_kind(const gr_code_pass *p, const item *x)
{
    bool rows = x->rows < 0 || p->rows < 0 || x->rows == p->rows;
    return p->form == x->form && p->level == x->level && rows;
}

static void note_read(const maker *m, gr_code_pass *p, int v)
{
    if (v < 0 || (size_t)v >= m->ir->n || m->values[v].item >= 0 || (m->kept && m->kept[v])) return;
    const gr_ir_node *n = &m->ir->nodes[v];
    if (n->op == GR_IR_CONST)
        const_at(p, n->value);
    else
        column_at(p, n->id);
}

static void take_item(const maker *m, gr_code_pass *p, item *x, int pass)
{
    x->pass = pass;
    p->n_instrs++;
    if (x->rows >= 0) p->rows = (int16_t)x->rows;
    for (int k = 0; k < 3; k++) {
        note_read(m, p, x->arg[k]);
        if (x->arg[k] >= 0) m->values[x->arg[k]].last = pass;
    }
}

static void fill_pass(maker *m, gr_code_pass *p, int pass)
{
    bool open = false;
    for (size_t i = 0; i < m->n_items; i++) {
        item *x = &m->items[i];
        if (!ready(m, x, pass)) continue;
        if (!open) *p = (gr_code_pass){.form = (uint8_t)x->form, .level = (uint8_t)x->level, .rows = -1};
        open = true;
        if (same_kind(p, x) && has_room(p)) take_item(m, p, x, pass);
    }
    assert(open);
}

static void make_passes(maker *m)
{
    size_t left = m->n_items, cap = 0;
    gr_code *c = m->code;
    gr_code_pass *passes = NULL;
    while (left) {
        gr_code_pass p = {0};
        fill_pass(m, &p, (int)c->n);
        left -= p.n_instrs;
        GR_PUSH(passes, c->n, cap, p);
    }
    c->passes = gr_arena_alloc(m->ir->arena, (c->n + 1) * sizeof(*passes));
    if (c->n) memcpy(c->passes, passes, c->n * sizeof(*passes));
    free(passes);
}

/* ---- places -------------------------------------------------------------------------------------------- */

static void find_alone(maker *m)
{
    for (size_t i = 0; i < m->n_items; i++)
        if (m->items[i].value >= 0) m->values[m->items[i].value].alone = m->items[i].form == GR_CODE_EACH;
    for (size_t i = 0; i < m->n_items; i++)
        for (int k = 0; k < 3; k++) {
            int v = m->items[i].arg[k];
            if (v < 0 || m->values[v].item < 0) continue;
            m->values[v].last_item = i;
            if (m->items[m->values[v].item].pass != m->items[i].pass) m->values[v].alone = false;
        }
}

/* Registers of one pass, in the order of its items; what finds none gets a slot. */
static void place_registers(maker *m, int pass)
{
    int held[GR_CODE_REGS];
    for (int r = 0; r < GR_CODE_REGS; r++) held[r] = -1;
    for (size_t i = 0; i < m->n_items; i++) {
        const item *x = &m->items[i];
        if (x->pass != pass || x->value < 0) continue;
        value *v = &m->values[x->value];
        if (v->place.kind || !v->alone) continue;
        for (int r = 0; r < GR_CODE_REGS && !v->place.kind; r++) {
            /* the register of an argument may be taken: arguments are read before the result is written */
            if (held[r] >= 0 && m->values[held[r]].last_item > i) continue;
            held[r] = x->value;
            v->place = (gr_code_arg){GR_CODE_REG, (uint8_t)x->level, (uint16_t)r};
        }
    }
}

/* The lowest free slot. */
static unsigned slot_take(bool *used)
{
    unsigned i = 0;
    while (used[i]) i++;
    assert(i <= UINT16_MAX);
    used[i] = true;
    return i;
}

static void place_slots(maker *m, int pass, bool *const *used)
{
    for (size_t i = 0; i < m->n_items; i++) {
        const item *x = &m->items[i];
        if (x->pass != pass || x->value < 0 || m->values[x->value].place.kind) continue;
        unsigned at = slot_take(used[x->level]);
        m->values[x->value].place = (gr_code_arg){GR_CODE_SLOT, (uint8_t)x->level, (uint16_t)at};
        m->code->n_slots[x->level] = GR_MAX(m->code->n_slots[x->level], at + 1);
    }
}

static void free_slots(maker *m, int pass, bool *const *used)
{
    for (size_t v = 0; v < m->n_values; v++) {
        const value *x = &m->values[v];
        if (x->item < 0 || x->place.kind != GR_CODE_SLOT) continue;
        if (GR_MAX(x->last, m->items[x->item].pass) == pass) used[x->place.level][x->place.at] = false;
    }
}

static void place_all(maker *m)
{
    bool *used[GR_CODE_LEVELS];
    for (int l = 0; l < GR_CODE_LEVELS; l++) used[l] = gr_calloc(m->n_values + 1, sizeof(bool));
    find_alone(m);
    for (int pass = 0; pass < (int)m->code->n; pass++) {
        place_registers(m, pass);
        place_slots(m, pass, used);
        free_slots(m, pass, used);
    }
    for (int l = 0; l < GR_CODE_LEVELS; l++) free(used[l]);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static gr_code_arg arg_of(const maker *m, gr_code_pass *p, int v)
{
    if (v < 0) return (gr_code_arg){0};
    const value *x = &m->values[v];
    if (x->item >= 0) return x->place;
    if (m->kept && m->kept[v])
        return (gr_code_arg){GR_CODE_KEPT, (uint8_t)x->level, (uint16_t)(m->kept[v] - 1)};
    const gr_ir_node *n = &m->ir->nodes[v];
    if (n->op == GR_IR_CONST)
        return (gr_code_arg){GR_CODE_CONST, (uint8_t)x->level, (uint16_t)const_at(p, n->value)};
    return (gr_code_arg){GR_CODE_COLUMN, (uint8_t)x->level, (uint16_t)column_at(p, n->id)};
}

static void write_pass(const maker *m, gr_code_pass *p, int pass)
{
    p->n_instrs = 0;
    for (size_t i = 0; i < m->n_items; i++) {
        const item *x = &m->items[i];
        if (x->pass != pass) continue;
        gr_code_instr *y = &p->instr[p->n_instrs++];
        *y =
            (gr_code_instr){.op = (uint8_t)x->op, .from = (uint8_t)x->from, .id = (uint16_t)GR_MAX(x->id, 0)};
        y->to = x->value < 0 ? x->to : m->values[x->value].place;
        for (int k = 0; k < 3; k++) y->arg[k] = arg_of(m, p, x->arg[k]);
    }
}

gr_code *gr_code_new(const gr_ir *ir, const gr_code_goal *goals, size_t n_goals, const unsigned *kept)
{
    maker m = {.ir = ir, .kept = kept, .code = gr_arena_alloc(ir->arena, sizeof(*m.code))};
    for (size_t i = 0; i < ir->n; i++)
        GR_PUSH(m.values, m.n_values, m.cap_values,
                ((value){.item = -1, .level = ir->nodes[i].level, .last = NO_PASS}));
    add_nodes(&m, goals, n_goals);
    for (size_t i = 0; i < n_goals; i++) add_goal(&m, &goals[i]);
    make_passes(&m);
    place_all(&m);
    for (size_t p = 0; p < m.code->n; p++) write_pass(&m, &m.code->passes[p], (int)p);
    free(m.items);
    free(m.values);
    return m.code;
}

/* ---- printing ------------------------------------------------------------------------------------------ */

static void print_arg(const gr_code_pass *p, gr_code_arg a, gr_str *out)
{
    static const char *const kinds[] = {"", "r", "slot ", "kept ", "", "#", "out "};
    if (a.kind == GR_CODE_NONE) return;
    if (a.kind == GR_CODE_CONST)
        gr_str_printf(out, " %.17g", p->consts[a.at]);
    else
        gr_str_printf(out, " %s%d", kinds[a.kind], a.kind == GR_CODE_COLUMN ? p->column[a.at] : a.at);
}

void gr_code_print(const gr_code *c, gr_str *out)
{
    static const char *const forms[] = {"each", "fold", "scan", "select"};
    for (size_t i = 0; i < c->n; i++) {
        const gr_code_pass *p = &c->passes[i];
        gr_str_printf(out, "pass %s %s:\n", forms[p->form], gr_level_str((gr_level)p->level));
        for (unsigned k = 0; k < p->n_instrs; k++) {
            const gr_code_instr *x = &p->instr[k];
            gr_str_printf(out, " ");
            print_arg(p, x->to, out);
            gr_str_printf(out, " = %s", gr_ir_op_str((gr_ir_op)x->op));
            for (int a = 0; a < 3; a++) print_arg(p, x->arg[a], out);
            gr_str_putc(out, '\n');
        }
    }
}
