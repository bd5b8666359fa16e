/* graphs/loader/records.c: what is kept at an iteration's end: `state:` of prompts and sequences, numbers of
 * each record; `keep:` of a replay, which of its sequences. */
#include "graphs/loader/loader.h"

#include <string.h>

static void read_one(gr_loader *l, gr_unresolved *dr, const gr_pair *p)
{
    static const char *const keys[] = {"init", "next", NULL};
    gr_graph *g = l->g;
    gr_record_state s = {.name = p->key, .node = dr->node, .at = p->at};
    gr_name_allowed(l, "a state", p->key, p->at);
    for (const gr_field *f = dr->node->op->fields; f && f->name; f++)
        if (!strcmp(f->name, p->key))
            gr_diag_error(l->d, p->at, GR_E_INVALID, "'%s' is a value of each '%s' node: choose another name",
                          p->key, dr->node->op->name);
    if (p->value.broken || !gr_value_is_map(l, p->key, &p->value)) return;
    const gr_value *init = gr_value_get(&p->value, "init"), *next = gr_value_get(&p->value, "next");
    for (size_t i = 0; i < p->value.n; i++)
        if (&p->value.pairs[i].value != init && &p->value.pairs[i].value != next)
            gr_unknown_key(l, &p->value.pairs[i], gr_arena_printf(l->arena, "state '%s'", p->key), NULL,
                           keys);
    if (!init || !next)
        gr_diag_error(l->d, p->at, GR_E_INVALID, "state '%s' needs '%s'", p->key, init ? "next" : "init");
    if (init && !init->broken && !gr_value_number(init, &s.init))
        gr_diag_error(l->d, init->at, GR_E_INVALID, "'init' must be a number");
    gr_formula *f = next ? gr_formula_read(l, GR_ROLE_RECORD, p->key, next, NULL) : NULL;
    if (!f) return;
    f->records = dr->node;
    s.next = f->expr;
    GR_PUSH(g->record_state, g->n_record_state, g->source->cap_record_state, s);
}

static void read_keep(gr_loader *l, gr_unresolved *dr)
{
    gr_graph *g = l->g;
    const gr_value *keep = gr_value_get(dr->map, "keep");
    if (!keep || keep->broken || keep->kind == GR_VALUE_NULL) return; /* said already */
    gr_formula *f = gr_formula_read(l, GR_ROLE_RECORD, "keep", keep, NULL);
    if (!f) return;
    f->records = dr->node;
    const gr_record_state s = {.name = "keep", .node = dr->node, .at = keep->at, .next = f->expr};
    GR_PUSH(g->record_state, g->n_record_state, g->source->cap_record_state, s);
}

void gr_read_record_state(gr_loader *l, gr_unresolved *dr)
{
    if (dr->node->op->replays) read_keep(l, dr);
    const gr_value *v = gr_value_get(dr->map, "state");
    if (!dr->node->op->any_field || !v || v->broken || v->kind == GR_VALUE_NULL) return;
    if (!gr_value_is_map(l, "state", v)) return;
    for (size_t i = 0; i < v->n; i++) read_one(l, dr, &v->pairs[i]);
}

/* A node that nobody reads is left out, and keeps nothing. */
static void leave_out_dead(gr_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n_record_state; i++)
        if (g->record_state[i].node->index < g->n_nodes) g->record_state[n++] = g->record_state[i];
    g->n_record_state = n;
}

void gr_check_record_state(gr_loader *l)
{
    leave_out_dead(l->g);
    for (size_t i = 0; i < l->g->n_record_state; i++) {
        const gr_record_state *s = &l->g->record_state[i];
        const gr_node_timing *t = &s->node->timing;
        const char *key = s->node->op->replays ? "keep" : "state";
        if (t->every)
            gr_diag_error(l->d, s->at, GR_E_INVALID, "'%s': node '%s' is a validation, which keeps nothing",
                          key, s->node->name);
        else if (t->repeated_by)
            gr_diag_error(
                l->d, s->at, GR_E_INVALID,
                "'%s': node '%s' is run again by 'refill' of '%s', and only the last round is there "
                "at the iteration's end",
                key, s->node->name, t->repeated_by->name);
        else if (l->g->n_roles > 1)
            gr_diag_error(l->d, s->at, GR_E_INVALID,
                          "'%s' of '%s' is not built for pools on several sets of ranks", key, s->node->name);
    }
}
