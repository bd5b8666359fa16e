/* graphs/loader/scope.c: what names of expressions stand for, and the columns they need. */
#include "graphs/loader/loader.h"
#include "ops/base/states.h"

#include <stdlib.h>
#include <string.h>

/* ---- columns ---------------------------------------------------------------------------------------------
 */

/* What column c of the parent's rows is on the rows of a select: added where nobody read it before. Columns
 * of other rows stay what they are. */
static const gr_column *narrowed(gr_graph *g, const gr_node *select, const gr_column *c)
{
    const gr_node *parent = select->of->rows;
    if (c->rows == select) return c;
    if (parent->op->narrows) c = narrowed(g, parent, c);
    if (c->rows != parent && c->rows != parent->groups) return c;
    for (size_t i = 0; i < select->results.n_columns; i++)
        if (select->results.columns[i]->from == c) return select->results.columns[i];
    gr_column own = *c;
    own.node = own.rows = select;
    own.from = c;
    own.name = own.field =
        gr_arena_printf(g->arena, "%s/%s", select->name, c->name); /* no name has a slash */
    const gr_column *new = gr_graph_add_column(g, own);
    gr_node_add_column(g, (gr_node *)select, new);
    return new;
}

const gr_node *gr_formula_rows(const gr_formula *f)
{
    const gr_node *n = f->owner ? f->owner->node : NULL;
    if (n && n->op && n->op->returns && f->role == GR_ROLE_VALUE) return NULL;
    return n && n->op->narrows && f->role == GR_ROLE_VALUE ? n->of->rows : n ? n->rows : NULL;
}

const int *gr_formula_reads(const gr_formula *f, size_t *n)
{
    *n = 0;
    if (f->in_loss) return NULL;
    return f->loss ? gr_loss_reads(f->loss->loss, GR_LOSS_VALUE, n) : gr_expr_reads(f->expr, n);
}

/* logprob, entropy and value are values of the update's own pass. */
static const gr_column *current_column(gr_graph *g, gr_node *n, const char *name)
{
    for (size_t i = 0; i < g->n_columns; i++)
        if (g->columns[i]->current && g->columns[i]->node == n && !strcmp(g->columns[i]->field, name))
            return g->columns[i];
    return gr_graph_add_column(g, (gr_column){.name = gr_arena_printf(g->arena, "%s.%s", n->name, name),
                                              .node = n,
                                              .field = gr_arena_strdup(g->arena, name),
                                              .level = GR_LEVEL_TOKEN,
                                              .kind = GR_KIND_NUMBER,
                                              .rows = n->rows,
                                              .dtype = GR_EXPR_F32,
                                              .current = true});
}

static const char *const run_names[] = {"step", "epoch", "progress"};

void gr_scope_columns(gr_loader *l)
{
    gr_graph *g = l->g;
    uint32_t *ids[GR_LEN(run_names)] = {&g->column_step, &g->column_epoch, &g->column_progress};
    for (size_t i = 0; i < GR_LEN(run_names); i++) {
        *ids[i] = (uint32_t)g->n_columns;
        gr_graph_add_column(g, (gr_column){.name = run_names[i], .dtype = GR_EXPR_F64});
    }
    for (size_t i = 0; i < g->n_state; i++) {
        g->state[i].column = (uint32_t)g->n_columns;
        gr_graph_add_column(g, (gr_column){.name = gr_arena_printf(g->arena, "state.%s", g->state[i].name),
                                           .dtype = GR_EXPR_F64});
    }
}

/* ---- names -----------------------------------------------------------------------------------------------
 */

static bool is_current_name(const char *name)
{
    return !strcmp(name, "logprob") || !strcmp(name, "entropy") || !strcmp(name, "value") ||
           !strcmp(name, "divergence");
}

static bool in_update(const gr_formula *f)
{
    return f->owner && f->owner->updates && (f->role == GR_ROLE_LOSS || f->role == GR_ROLE_METRIC);
}

static bool column_symbol(const gr_column *c, gr_expr_symbol *out)
{
    *out = (gr_expr_symbol){.id = (int)c->id, .level = c->level, .kind = c->kind, .current = c->current};
    out->rows = c->level >= GR_LEVEL_SEQ && c->rows ? (int)c->rows->index : -1;
    return true;
}

static bool param_symbol(gr_loader *l, const char *name, gr_expr_symbol *out)
{
    gr_param *p = gr_param_find(l->g->source, name);
    *out = (gr_expr_symbol){.kind = GR_KIND_NUMBER, .constant = true};
    return p && gr_value_number(&p->value, &out->value);
}

/* An old_logprob that is the update's own, where a formula of that update names it. */
static bool is_alias(const gr_loader *l, const gr_formula *f, const char *name)
{
    const gr_unresolved *dr = in_update(f) ? gr_unresolved_find(l, name) : NULL;
    return dr && dr->alias && dr->alias == f->owner;
}

static const gr_column *named_column(gr_loader *l, const gr_formula *f, const char *name)
{
    gr_graph *g = l->g;
    for (size_t i = 0; i < g->n_columns && !g->columns[i]->node; i++) {
        const char *c = g->columns[i]->name;
        if (!strcmp(c, name) || (!strncmp(c, "state.", 6) && !strcmp(c + 6, name))) return g->columns[i];
    }
    if (in_update(f) && is_current_name(name)) return current_column(g, f->owner->node, name);
    if (is_alias(l, f, name)) return current_column(g, f->owner->node, "logprob");
    const char *dot = strchr(name, '.');
    gr_unresolved *named = gr_unresolved_named(l, name), *dr = gr_unresolved_meant(named);
    const char *field = dr != named ? "logprob" : dot ? dot + 1 : NULL;
    const gr_column *c = dr && dr->node->op && !dr->bad ? gr_graph_column(g, dr->node, field) : NULL;
    const gr_node *rows = gr_formula_rows(f);
    bool narrow = c && c->rows && rows && rows->op->narrows;
    return narrow ? narrowed(g, rows, c) : c;
}

/* Whether a name means a value here: also one of a node that is compiled later, or never, since nobody reads
 * it. */
static bool is_name(const gr_loader *l, const gr_formula *f, const char *name)
{
    for (size_t i = 0; i < GR_LEN(run_names); i++)
        if (!strcmp(run_names[i], name)) return true;
    for (size_t i = 0; i < l->g->n_state; i++)
        if (!strcmp(l->g->state[i].name, name)) return true;
    if (in_update(f) && is_current_name(name)) return true;
    const gr_unresolved *dr = gr_unresolved_find(l, name);
    return dr && dr->node->op && !dr->bad && gr_field_find(dr->node, NULL);
}

static bool resolve(void *user, const char *name, gr_expr_symbol *out)
{
    const gr_scope_user *u = user;
    if (!out) return is_name(u->l, u->formula, name);
    if (*name == '$') return param_symbol(u->l, name + 1, out);
    const gr_column *c = named_column(u->l, u->formula, name);
    if (!c || !column_symbol(c, out)) return false;
    out->stopped = is_alias(u->l, u->formula, name);
    return true;
}

/* Which id it is, only the tokenizer knows: a graph is checked and planned without. */
static bool token(void *user, const char *text, gr_expr_symbol *out)
{
    const gr_scope_user *u = user;
    gr_graph *g = u->l->g;
    for (size_t i = 0; i < g->n_tokens; i++)
        if (!strcmp(g->tokens[i].text, text)) return column_symbol(g->columns[g->tokens[i].column], out);
    gr_token_value t = {gr_arena_strdup(g->arena, text), u->formula->at, (uint32_t)g->n_columns};
    GR_PUSH(g->tokens, g->n_tokens, g->source->cap_tokens, t);
    const char *name = gr_arena_printf(g->arena, "token(\"%s\")", text);
    return column_symbol(gr_graph_add_column(g, (gr_column){.name = name, .dtype = GR_EXPR_F64}), out);
}

static const char *rows_name(void *user, int rows)
{
    const gr_scope_user *u = user;
    return rows >= 0 && (size_t)rows < u->l->n_order ? u->l->order[rows]->node->name : "?";
}

/* What may be meant by an unknown name. */
static struct gr_names list_names(gr_loader *l, bool update)
{
    const char **names = NULL;
    size_t n = 0, cap = 0;
    for (size_t i = 0; i < l->g->source->n_params; i++)
        GR_PUSH(names, n, cap, gr_arena_printf(l->arena, "$%s", l->g->source->params[i].name));
    for (size_t i = 0; i < l->g->n_state; i++) GR_PUSH(names, n, cap, l->g->state[i].name);
    for (size_t i = 0; i < GR_LEN(run_names); i++) GR_PUSH(names, n, cap, run_names[i]);
    if (update) {
        GR_PUSH(names, n, cap, "logprob");
        GR_PUSH(names, n, cap, "entropy");
        GR_PUSH(names, n, cap, "value");
        GR_PUSH(names, n, cap, "divergence");
    }
    for (size_t i = 0; i < l->n_unresolved; i++) {
        const gr_node *node = l->unresolved[i]->node;
        GR_PUSH(names, n, cap, node->name);
        for (const gr_field *f = node->op ? node->op->fields : NULL; f && f->name; f++)
            GR_PUSH(names, n, cap, gr_arena_printf(l->arena, "%s.%s", node->name, f->name));
    }
    const char **copy = gr_arena_alloc(l->arena, n * sizeof(*copy));
    memcpy(copy, names, n * sizeof(*copy));
    free(names);
    return (struct gr_names){copy, n};
}

gr_expr_scope gr_scope(gr_scope_user *u)
{
    const gr_node *rows = gr_formula_rows(u->formula);
    const gr_source *source = u->l->g->source;
    gr_expr_scope s = {.user = u, .resolve = resolve, .token = token, .rows_name = rows_name};
    s.functions = source->functions;
    s.n_functions = source->n_functions;
    s.rows = rows && gr_node_has_seqs(rows) ? (int)rows->index : -1;
    struct gr_names *names = &u->l->names[in_update(u->formula)];
    if (!names->n) *names = list_names(u->l, in_update(u->formula));
    s.names = names->name;
    s.n_names = names->n;
    return s;
}

/* ---- what can be had -------------------------------------------------------------------------------------
 */

static bool param_usable(gr_loader *l, const gr_expr_name *name)
{
    gr_param *p = gr_param_find(l->g->source, name->name + 1);
    double x;
    if (!p) return true; /* the expression says so, with what is near */
    p->used = p->in_expressions = true;
    if (gr_value_number(&p->value, &x) || p->value.broken) return !p->value.broken;
    gr_diag_error(l->d, name->at, GR_E_INVALID, "parameter '%s' is not a number", p->name);
    gr_diag_note(l->d, p->value.at, "its value is here");
    return false;
}

/* Which of them there are depends on the head of the model that is trained. */
static bool current_usable(gr_loader *l, const gr_node *n, const gr_expr_name *name)
{
    const gr_model *m = n->model;
    bool value = !strcmp(name->name, "value");
    if (!strcmp(name->name, "divergence") && !gr_node_teacher(n)) {
        gr_diag_error(l->d, name->at, GR_E_INVALID,
                      "'divergence' is from a teacher, and '%s' has none: 'teacher: NODE' of op logprob",
                      n->name);
        return false;
    }
    if (!m || !m->head_known || value == (m->shape.head == GR_HEAD_VALUE)) return true;
    if (value)
        gr_diag_error(l->d, name->at, GR_E_INVALID,
                      "model '%s' has no value head: its update has logprob and entropy, but no 'value'",
                      m->name);
    else
        gr_diag_error(l->d, name->at, GR_E_INVALID,
                      "model '%s' has a value head: its update has 'value', but no '%s'", m->name,
                      name->name);
    return false;
}

/* What is known when an iteration begins. */
static bool begins_with(const gr_loader *l, const char *name)
{
    for (size_t i = 0; i < GR_LEN(run_names); i++)
        if (!strcmp(run_names[i], name)) return true;
    for (size_t i = 0; i < l->g->n_state; i++)
        if (!strcmp(l->g->state[i].name, name)) return true;
    return false;
}

static bool name_usable(gr_loader *l, const gr_formula *f, const gr_expr_name *name)
{
    const char *s = name->name;
    if (*s == '$') return param_usable(l, name);
    if ((f->role == GR_ROLE_WHEN || f->role == GR_ROLE_NUMBER) && !begins_with(l, s)) {
        gr_diag_error(
            l->d, name->at, GR_E_INVALID, "'%s' %s step, epoch, progress, states and parameters, not '%s'%s",
            f->key, f->role == GR_ROLE_WHEN ? "may read" : "is a number, or an expression over", s,
            gr_unresolved_named(l, s) ? ": a state can carry its value into the next iteration" : "");
        return false;
    }
    if (!strcmp(s, "divergence") && !in_update(f)) {
        gr_diag_error(
            l->d, name->at, GR_E_INVALID,
            "'divergence' is a value of an update's own pass, beside its 'teacher': there is none here");
        return false;
    }
    if (is_current_name(s) && !in_update(f)) {
        gr_diag_error(l->d, name->at, GR_E_INVALID,
                      "'%s' is a value of an update's own pass: here, read a node of op %s", s,
                      strcmp(s, "value") ? "logprob" : "value");
        return false;
    }
    if (is_current_name(s)) return current_usable(l, f->owner->node, name);
    const gr_unresolved *dr = gr_unresolved_named(l, s);
    if (!dr || dr->bad || gr_field_find(dr->node, NULL)) return !dr || !dr->bad;
    gr_diag_error(l->d, name->at, GR_E_INVALID, "node '%s' (op %s) has no value to read", dr->node->name,
                  dr->node->op->name);
    return false;
}

bool gr_scope_check(gr_loader *l, const gr_formula *f)
{
    size_t n;
    bool ok = true;
    const gr_expr_name *names = gr_expr_names(f->expr, &n);
    for (size_t i = 0; i < n; i++) ok = name_usable(l, f, &names[i]) && ok;
    return ok;
}
