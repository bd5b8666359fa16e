/* graphs/expr/expr_program.c: which instructions a result needs, in which slots; printing. */
#include <stdlib.h>
#include <string.h>

#include "graphs/expr/expr_ir.h"

enum { N_LEVELS = GR_LEVEL_TOKEN + 1 };

uint64_t gr_ir_frame_doubles(const unsigned *n_slots, const uint64_t *count)
{
    uint64_t n = 0;
    for (int l = 0; l < N_LEVELS; l++) n += n_slots[l] * count[l];
    return n;
}

const double *gr_ir_slot(const gr_ir_frame *f, gr_level level, unsigned slot)
{
    const double *p = f->base;
    for (unsigned l = 0; l < (unsigned)level; l++) p += f->n_slots[l] * f->count[l];
    return p + slot * f->count[level];
}

/* Free slots of one level. */
typedef struct slots {
    unsigned *free;
    size_t n, cap;
} slots;

static unsigned slot_take(gr_ir_program *p, slots *s, gr_level level)
{
    return s[level].n ? s[level].free[--s[level].n] : p->n_slots[level]++;
}

static void mark_needed(gr_ir_program *p, const int *roots, size_t n_roots, const unsigned *kept)
{
    for (size_t i = 0; i < n_roots; i++) p->place[roots[i]] = GR_IR_SLOT;
    for (size_t i = p->ir->n; i-- > 0;) {
        const gr_ir_node *n = &p->ir->nodes[i];
        if (p->place[i] == GR_IR_UNUSED) continue;
        if (n->op == GR_IR_CONST) {
            p->place[i] = GR_IR_INLINE;
        } else if (kept && kept[i]) {
            p->place[i] = GR_IR_KEPT;
            p->slot[i] = kept[i] - 1;
        } else {
            p->n++;
            for (int k = 0; k < 3; k++) {
                if (n->arg[k] >= 0) p->place[n->arg[k]] = GR_IR_SLOT;
            }
        }
    }
}

static void find_last_uses(const gr_ir_program *p, const int *roots, size_t n_roots, int *last)
{
    for (size_t i = 0; i < p->n; i++) {
        const gr_ir_node *n = &p->ir->nodes[p->order[i]];
        last[p->order[i]] = (int)i;
        for (int k = 0; k < 3; k++) {
            if (n->arg[k] >= 0) last[n->arg[k]] = (int)i;
        }
    }
    for (size_t i = 0; i < n_roots; i++) last[roots[i]] = (int)p->n;
}

/* A result never takes the slot of its own arguments: reductions and scans read while they write. */
static void assign_slots(gr_ir_program *p, const int *last)
{
    slots s[N_LEVELS] = {0};
    for (size_t i = 0; i < p->n; i++) {
        int x = p->order[i];
        const gr_ir_node *n = &p->ir->nodes[x];
        p->slot[x] = slot_take(p, s, n->level);
        for (int k = 0; k < 3; k++) {
            int a = n->arg[k];
            bool repeated = (k > 0 && a == n->arg[0]) || (k > 1 && a == n->arg[1]);
            if (a < 0 || repeated || p->place[a] != GR_IR_SLOT || last[a] != (int)i) continue;
            slots *l = &s[p->ir->nodes[a].level];
            GR_PUSH(l->free, l->n, l->cap, p->slot[a]);
        }
    }
    for (int l = 0; l < N_LEVELS; l++) free(s[l].free);
}

static void note_position_rows(gr_ir_program *p, int rows)
{
    for (unsigned i = 0; i < p->n_position_rows; i++) {
        if (p->position_rows[i] == rows) return;
    }
    p->position_rows[p->n_position_rows++] = rows;
}

/* Also what is only read: a kept value of position level is indexed too. */
static void find_features(gr_ir_program *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->ir->n; i++)
        n += p->place[i] != GR_IR_UNUSED && p->ir->nodes[i].level == GR_LEVEL_POSITION;
    p->position_rows = gr_arena_alloc(p->ir->arena, (n + 1) * sizeof(int));
    for (size_t i = 0; i < p->ir->n; i++) {
        const gr_ir_node *x = &p->ir->nodes[i];
        if (p->place[i] == GR_IR_UNUSED) continue;
        if (x->level == GR_LEVEL_POSITION) note_position_rows(p, x->rows);
        if (p->place[i] == GR_IR_SLOT) p->sorts = p->sorts || x->op == GR_IR_CHOOSE || x->op == GR_IR_TOP;
    }
}

gr_ir_program *gr_ir_program_new(gr_ir *ir, const int *roots, size_t n_roots, const unsigned *kept)
{
    gr_ir_program *p = gr_arena_alloc(ir->arena, sizeof(*p));
    p->ir = ir;
    p->place = gr_arena_alloc(ir->arena, ir->n + 1);
    p->slot = gr_arena_alloc(ir->arena, (ir->n + 1) * sizeof(*p->slot));
    mark_needed(p, roots, n_roots, kept);
    p->order = gr_arena_alloc(ir->arena, (p->n + 1) * sizeof(*p->order));
    size_t k = 0;
    for (size_t i = 0; i < ir->n; i++) {
        if (p->place[i] == GR_IR_SLOT) p->order[k++] = (int)i;
    }
    int *last = gr_calloc(ir->n + 1, sizeof(*last));
    find_last_uses(p, roots, n_roots, last);
    assign_slots(p, last);
    free(last);
    find_features(p);
    return p;
}

static int by_value(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static int *each_once(int *ids, size_t *n)
{
    qsort(ids, *n, sizeof(*ids), by_value);
    size_t k = 0;
    for (size_t i = 0; i < *n; i++) {
        if (!i || ids[i] != ids[i - 1]) ids[k++] = ids[i];
    }
    *n = k;
    return ids;
}

int *gr_ir_program_reads(const gr_ir_program *p, size_t *n)
{
    int *ids = gr_arena_alloc(p->ir->arena, (p->n + 1) * sizeof(*ids));
    *n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const gr_ir_node *x = &p->ir->nodes[p->order[i]];
        if (x->op == GR_IR_SYM) ids[(*n)++] = x->id;
    }
    return each_once(ids, n);
}

int *gr_ir_program_rows(const gr_ir_program *p, size_t *n)
{
    int *ids = gr_arena_alloc(p->ir->arena, (p->n + 1) * sizeof(*ids));
    *n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const gr_ir_node *x = &p->ir->nodes[p->order[i]];
        if (x->rows >= 0) ids[(*n)++] = x->rows;
    }
    return each_once(ids, n);
}

static void print_arg(const gr_ir_program *p, int a, gr_str *out)
{
    if (a < 0) return;
    if (p->place[a] == GR_IR_INLINE)
        gr_str_printf(out, " %.17g", p->ir->nodes[a].value);
    else
        gr_str_printf(out, " %s%d", p->place[a] == GR_IR_KEPT ? "kept " : "%", a);
}

void gr_ir_program_print(const gr_ir_program *p, gr_str *out)
{
    for (size_t i = 0; i < p->n; i++) {
        const gr_ir_node *n = &p->ir->nodes[p->order[i]];
        gr_str_printf(out, "%%%d = %s", p->order[i], gr_ir_op_str(n->op));
        for (int k = 0; k < 3; k++) print_arg(p, n->arg[k], out);
        if (n->id >= 0) gr_str_printf(out, " #%d", n->id);
        if (n->from != n->level) gr_str_printf(out, " from %s", gr_level_str(n->from));
        gr_str_printf(out, " : %s", gr_level_str(n->level));
        if (n->rows >= 0) gr_str_printf(out, " rows %d", n->rows);
        gr_str_putc(out, '\n');
    }
}
