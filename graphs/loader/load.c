/* graphs/loader/load.c: from file to checked graph, in order. */
#include "graphs/loader/loader.h"
#include "runtime/base/files.h"
#include "graphs/loader/load.h"
#include "ops/base/configs.h"
#include "ops/base/nodes.h"

#include <stdlib.h>
#include <string.h>

/* ---- one node --------------------------------------------------------------------------------------------
 */

static void find_rows(gr_node *n)
{
    if (n->op->makes_rows) {
        n->rows = n;
        n->groups = n->of && (n->op->generates || n->op->joins) ? n->of->groups : n;
    } else if (n->of) {
        n->rows = n->of->rows;
        n->groups = n->of->groups;
    }
}

/* Values of two draws of prompts have nothing in common but the iteration. */
static bool same_groups(gr_loader *l, const gr_formula *f, const int *reads, size_t n, const gr_node **groups)
{
    const gr_column *first = NULL;
    for (size_t i = 0; i < n; i++) {
        const gr_column *c = l->g->columns[reads[i]];
        const gr_node *from = c->level == GR_LEVEL_SCALAR || !c->node ? NULL : c->node->groups;
        if (!from) continue;
        if (*groups && *groups != from) {
            gr_diag_error(l->d, f->at, GR_E_INVALID, "'%s' has the prompts of '%s', but '%s' those of '%s'",
                          first      ? first->name
                          : f->owner ? f->owner->node->name
                                     : f->key,
                          (*groups)->name, c->name, from->name);
            if (gr_node_keeps(*groups) || gr_node_keeps(from))
                gr_diag_note(
                    l->d, f->at,
                    "'%s' keeps rows from one iteration to the next: its prompts are not those that were "
                    "drawn last",
                    gr_node_keeps(from) ? from->name : (*groups)->name);
            return false;
        }
        *groups = from;
        first = first ? first : c;
    }
    return true;
}

/* A group baseline subtracts a group of one from itself. */
static void warn_of_single_groups(gr_loader *l, const gr_formula *f)
{
    if (f->role == GR_ROLE_LOSS || f->in_loss) return; /* compiled in another form */
    if (f->role == GR_ROLE_RECORD) return;             /* a mean is the way to a prompt's level */
    if (!gr_expr_compares_groups(f->expr)) return;
    size_t n;
    const int *reads = gr_expr_reads(f->expr, &n);
    const gr_node *rows = NULL;
    for (size_t i = 0; i < n; i++) {
        const gr_column *c = l->g->columns[reads[i]];
        if (c->level < GR_LEVEL_SEQ || !c->rows) continue;
        if (rows && rows != c->rows)
            return; /* two rollouts that meet at the prompt: the other's is a baseline */
        rows = c->rows;
    }
    if (!rows || !rows->bounds.groups || rows->bounds.seqs != rows->bounds.groups) return;
    if (gr_rows_split(rows))
        gr_diag_warn(
            l->d, f->at,
            "every row that '%s' draws is a group of its own, which is compared with itself: compare "
            "them before they are drawn",
            rows->name);
    else
        gr_diag_warn(
            l->d, f->at,
            "every group of '%s' is one sequence, which is compared with itself: give '%s' more samples, or "
            "compare with another rollout of the same prompts",
            rows->name, gr_rows_maker(rows)->name);
}

/* A number for each sequence of the node that keeps them, or one for all. */
static bool is_of_sequences(gr_loader *l, const gr_formula *f, const gr_node *groups)
{
    const gr_level level = gr_expr_level(f->expr);
    const int rows = gr_expr_rows_id(f->expr);
    if (level > GR_LEVEL_SEQ)
        gr_diag_error(
            l->d, f->at, GR_E_INVALID,
            "'%s' must be one number a sequence, not one for each %s: reduce it, e.g. with seq_mean()",
            f->key, gr_level_str(level));
    else if (rows >= 0 && l->order[rows]->node != f->records)
        gr_diag_error(l->d, f->at, GR_E_INVALID,
                      "'%s' is about the sequences of '%s', but has those of '%s': use values of nodes that "
                      "are 'of: %s'",
                      f->key, f->records->name, l->order[rows]->node->name, f->records->name);
    else if (groups && groups != f->records->groups)
        gr_diag_error(l->d, f->at, GR_E_INVALID, "'%s' is about the prompts of '%s', but has those of '%s'",
                      f->key, f->records->groups->name, groups->name);
    else
        return true;
    return false;
}

/* A number for each prompt of the node that keeps it, or one for all. */
static bool is_of_records(gr_loader *l, const gr_formula *f, const gr_node *groups)
{
    const gr_level level = gr_expr_level(f->expr);
    if (f->records->op->replays) return is_of_sequences(l, f, groups);
    if (level > GR_LEVEL_GROUP)
        gr_diag_error(
            l->d, f->at, GR_E_INVALID,
            "'%s' must be one number a prompt, not one for each %s: reduce it, e.g. with group_mean()",
            f->key, gr_level_str(level));
    else if (groups && groups != f->records)
        gr_diag_error(l->d, f->at, GR_E_INVALID,
                      "'%s' is kept of the records of '%s', but has the prompts of '%s'", f->key,
                      f->records->name, groups->name);
    else
        return true;
    return false;
}

static void compile_one(gr_loader *l, gr_formula *f)
{
    gr_unresolved *owner = f->owner;
    gr_scope_user user = {l, f};
    gr_expr_scope scope = gr_scope(&user);
    const gr_node *about = gr_formula_rows(f), *groups = about ? about->groups : NULL;
    bool ok = gr_scope_check(l, f) && !gr_expr_compile(f->expr, &scope, l->d);
    size_t n;
    if (ok) {
        const int *reads = gr_expr_reads(f->expr, &n);
        ok = same_groups(l, f, reads, n, &groups);
    }
    if (ok && f->role == GR_ROLE_RECORD) ok = is_of_records(l, f, groups);
    if (ok && f->role != GR_ROLE_VALUE && f->role != GR_ROLE_RECORD &&
        gr_expr_level(f->expr) != GR_LEVEL_SCALAR) {
        gr_level level = gr_expr_level(f->expr);
        gr_diag_error(
            l->d, f->at, GR_E_INVALID,
            "'%s' must be one number an iteration, not one for each %s: reduce it, e.g. with %s_mean()",
            f->key, gr_level_str(level), level == GR_LEVEL_TOKEN ? "token" : "batch");
        ok = false;
    }
    if (!ok && owner) owner->bad = true;
    if (!ok || f->role != GR_ROLE_VALUE || owner->node->rows) return;
    int rows = gr_expr_rows_id(f->expr);
    owner->node->groups = groups;
    owner->node->rows = rows >= 0 ? l->order[rows]->node : groups;
}

static void compile_loss(gr_loader *l, gr_unresolved *dr, const gr_formula *f)
{
    gr_source *s = l->g->source;
    gr_scope_user user = {l, f};
    gr_expr_scope scope = gr_scope(&user);
    bool ok = true;
    gr_loss_metric *metrics = gr_arena_alloc(l->arena, dr->node->results.n_metrics * sizeof(*metrics));
    for (size_t i = 0; i < dr->n_formulas; i++)
        if (dr->formulas[i]->role != GR_ROLE_WHEN) ok = gr_scope_check(l, dr->formulas[i]) && ok;
    for (size_t i = 0; i < dr->node->results.n_metrics; i++)
        metrics[i] = (gr_loss_metric){dr->node->results.metrics[i].name, dr->node->results.metrics[i].expr};
    if (!ok || gr_loss_new(&f->loss->loss, f->expr, metrics, dr->node->results.n_metrics, &scope, l->d)) {
        dr->bad = true;
        return;
    }
    GR_PUSH(s->losses, s->n_losses, s->cap_losses, f->loss->loss);
    const gr_node *groups = dr->node->groups;
    size_t n;
    const int *reads = gr_formula_reads(f, &n);
    if (!same_groups(l, f, reads, n, &groups)) dr->bad = true;
}

/* What is wrong with a node is wrong with its readers, and is not said again. */
static void inherit_trouble(gr_unresolved *dr)
{
    for (size_t i = 0; i < dr->n_edges; i++) {
        if (dr->edges[i].why != GR_WHY_READS) continue;
        dr->bad = dr->bad || dr->edges[i].from->bad;
        dr->unsure = dr->unsure || dr->edges[i].from->unsure;
    }
}

static void compile_roles(gr_loader *l, gr_unresolved *dr, unsigned roles)
{
    for (size_t i = 0; i < dr->n_formulas; i++)
        if (roles & 1u << dr->formulas[i]->role) compile_one(l, dr->formulas[i]);
}

static void compile_node(gr_loader *l, gr_unresolved *dr)
{
    gr_node *n = dr->node;
    inherit_trouble(dr);
    compile_roles(l, dr, 1u << GR_ROLE_WHEN);
    if (dr->bad) return;
    find_rows(n);
    compile_roles(l, dr, 1u << GR_ROLE_VALUE);
    if (!n->op->makes_rows && n->rows) n->bounds = n->rows->bounds;
    if (!dr->bad && !dr->unsure && n->op->check) {
        size_t before = l->d->n_errors;
        n->op->check(l->g, n, l->d);
        dr->unsure = l->d->n_errors > before;
    }
    for (size_t i = 0; !dr->bad && i < dr->n_formulas; i++)
        if (dr->formulas[i]->role == GR_ROLE_LOSS) compile_loss(l, dr, dr->formulas[i]);
    if (!dr->bad && !dr->updates) compile_roles(l, dr, 1u << GR_ROLE_METRIC);
}

/* ---- when ------------------------------------------------------------------------------------------------
 */

static bool same_when(const gr_node *a, const gr_node *b)
{
    if (!b->timing.when.expr) return false;
    gr_str x = {0}, y = {0};
    gr_expr_print(a->timing.when.expr, &x);
    gr_expr_print(b->timing.when.expr, &y);
    bool same = x.len == y.len && (!x.len || !memcmp(x.text, y.text, x.len));
    gr_str_release(&x);
    gr_str_release(&y);
    return same;
}

/* A value must be there whenever it is read. */
static void check_when(gr_loader *l)
{
    for (size_t i = 0; i < l->n_order; i++) {
        const gr_unresolved *dr = l->order[i];
        for (size_t j = 0; j < dr->n_edges; j++) {
            const gr_node *from = dr->edges[j].from->node;
            if (dr->edges[j].why != GR_WHY_READS || !from->timing.when.expr || same_when(from, dr->node))
                continue;
            gr_diag_error(l->d, dr->edges[j].at, GR_E_INVALID,
                          "'%s' reads '%s', which is switched by 'when': '%s' needs the same 'when'",
                          dr->node->name, from->name, dr->node->name);
        }
    }
}

static void check_when_outside(gr_loader *l, const gr_formula *f)
{
    size_t n;
    const int *reads = gr_expr_reads(f->expr, &n);
    for (size_t i = 0; i < n; i++) {
        const gr_node *from = l->g->columns[reads[i]]->node;
        if (from && gr_reads_validation(l, f, from)) return;
        if (from && from->timing.when.expr)
            gr_diag_error(l->d, f->at, GR_E_INVALID,
                          "'%s' reads '%s', which is switched by 'when': it may not be there", f->key,
                          from->name);
    }
    reads = gr_expr_row_sets(f->expr, &n);
    for (size_t i = 0; i < n; i++)
        if (gr_reads_validation(l, f, l->g->nodes[reads[i]])) return;
}

/* ---- said aloud ------------------------------------------------------------------------------------------
 */

static void warn_of_truncated_sampling(gr_loader *l, const gr_node *n)
{
    static const char *const keys[] = {"top_p", "top_k"};
    for (size_t i = 0; n->rows && i < GR_LEN(keys); i++) {
        const gr_value *v = gr_value_get(gr_rows_maker(n->rows)->value, keys[i]);
        double x;
        if (!v || !gr_value_number(v, &x) || x == (i == 0)) continue; /* top_p 1 and top_k 0: off */
        gr_diag_warn(
            l->d, v->at,
            "'%s' samples from a part of the vocabulary, but '%s' trains with log-probs over all of it",
            keys[i], n->name);
    }
}

/* Whether anything reads the log-probs that a rollout sampled with, or has them computed again. */
static bool heeds_sampler(const gr_loader *l, const gr_node *rollout)
{
    for (size_t i = 0; i < l->g->n_columns; i++) {
        const gr_column *c = l->g->columns[i];
        if (c->read && c->node == rollout && c->of_rows == GR_ROWS_LOGPROB) return true;
    }
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_node *n = l->g->nodes[i];
        if (n->op->logprob && n->model == rollout->model && gr_reads_rollout(n)) return true;
    }
    return false;
}

static void warn_of_precision(gr_loader *l, const gr_node *n)
{
    const gr_precision *p = &n->model->precision;
    const gr_node *rollout = n->rows ? gr_rows_maker(n->rows) : NULL;
    const bool same = p->rollout == p->train && !p->kv && !p->bf16_state;
    if (same || !rollout || rollout->model != n->model || heeds_sampler(l, rollout)) return;
    gr_diag_warn(
        l->d, p->at,
        "model '%s' samples and trains in different precision, and nothing reads '%s.logprob': weight "
        "the loss of '%s' by token_weight(...) of parts/correction.yaml, as graphs/grpo_fp8.yaml does",
        n->model->name, rollout->name, n->name);
}

static void warn_of_params(gr_loader *l)
{
    for (size_t i = 0; i < l->g->source->n_params; i++) {
        const gr_param *p = &l->g->source->params[i];
        if (!p->used) gr_diag_warn(l->d, p->at, "parameter '%s' is never used", p->name);
    }
}

/* ---- the whole -------------------------------------------------------------------------------------------
 */

/* Those of dead nodes read nothing. */
static void mark_read(gr_loader *l)
{
    for (size_t i = 0; i < l->g->source->n_formulas; i++) {
        const gr_formula *f = l->g->source->formulas[i];
        if (f->owner && !f->owner->live) continue;
        size_t n;
        const int *ids = gr_formula_reads(f, &n);
        for (size_t j = 0; j < n; j++) l->g->columns[ids[j]]->read = true;
    }
}

/* Dead nodes are checked too, last: what only they read is no column of the graph. */
static void compile_dead(gr_loader *l)
{
    size_t n_columns = l->g->n_columns;
    for (size_t i = 0; i < l->g->n_nodes; i++)
        l->order[i]->n_live_columns = l->g->nodes[i]->results.n_columns;
    for (size_t i = l->g->n_nodes; i < l->n_order; i++) compile_node(l, l->order[i]);
    for (size_t i = 0; i < l->g->n_nodes; i++)
        l->g->nodes[i]->results.n_columns = l->order[i]->n_live_columns;
    l->g->n_columns = n_columns;
}

static void compile(gr_loader *l)
{
    gr_scope_columns(l);
    for (size_t i = 0; i < l->g->n_nodes; i++) compile_node(l, l->order[i]);
    for (size_t i = 0; i < l->g->source->n_formulas; i++)
        if (!l->g->source->formulas[i]->owner) compile_one(l, l->g->source->formulas[i]);
    compile_dead(l);
}

/* Settings of a model are about its rollouts, its passes or its updates: those of what it does not do are
 * without effect. */
static void warn_of_idle(gr_loader *l, const gr_model *m)
{
    bool sampled = false, passed = false;
    for (size_t i = 0; i < l->g->n_nodes; i++) {
        const gr_node *n = l->g->nodes[i];
        if (n->model != m) continue;
        sampled = sampled || gr_reads_rollout(n);
        passed = passed || !gr_reads_rollout(n);
    }
    const gr_precision *p = &m->precision;
    const int *of = m->residency.policy;
    const struct {
        bool idle;
        gr_loc at;
        const char *what, *about;
    } settings[] = {
        {p->rollout && !sampled, p->at, "precision: {rollout: fp8}", "rollouts"},
        {p->kv && !sampled, p->at, "precision: {kv: fp8}", "rollouts"},
        {p->bf16_state && !sampled, p->at, "precision: {state: bf16}", "rollouts"},
        {p->train && !passed, p->at, "precision: {train: fp8}", "log-prob passes and updates"},
        {of[GR_RESOURCE_KV] > GR_POLICY_AUTO && !sampled, m->residency.at, "residency: {kv: ...}",
         "rollouts"},
        {of[GR_RESOURCE_ROLLOUT_WEIGHTS] > GR_POLICY_AUTO && !sampled, m->residency.at,
         "residency: {rollout_weights: ...}", "rollouts"},
        {of[GR_RESOURCE_GRADIENTS] > GR_POLICY_AUTO && !m->trained, m->residency.at,
         "residency: {gradients: ...}", "updates"},
        {of[GR_RESOURCE_OPTIMIZER] > GR_POLICY_AUTO && !m->trained && !m->follows, m->residency.at,
         "residency: {optimizer: ...}", "updates"},
    };
    for (size_t i = 0; i < GR_LEN(settings); i++)
        if (settings[i].idle)
            gr_diag_warn(l->d, settings[i].at,
                         "model '%s' has '%s', which is about %s, and none is made with it", m->name,
                         settings[i].what, settings[i].about);
}

/* Warnings of a graph with errors would mostly follow from them. */
static void warn(gr_loader *l)
{
    gr_order_warn(l);
    for (size_t i = 0; i < l->g->n_models; i++) warn_of_idle(l, l->g->models[i]);
    for (size_t i = 0; i < l->g->n_nodes; i++)
        if (l->order[i]->updates && l->g->nodes[i]->model->shape.head == GR_HEAD_LM) {
            warn_of_truncated_sampling(l, l->g->nodes[i]);
            warn_of_precision(l, l->g->nodes[i]);
        }
    for (size_t i = 0; i < l->g->source->n_formulas; i++) {
        const gr_formula *f = l->g->source->formulas[i];
        if (!f->owner || f->owner->live) warn_of_single_groups(l, f);
    }
    warn_of_params(l);
}

static void load(gr_loader *l, const char *text, size_t n, const char *path)
{
    if (gr_source_read(l, text, n, path)) return;
    gr_read_top(l);
    gr_read_functions(l);
    gr_read_pools(l);
    gr_read_models(l);
    gr_read_nodes(l);
    gr_find_checkpoints(l);
    gr_find_bases(l);
    gr_find_states(l);
    if (!l->d->n_errors) gr_find_groups(l);
    gr_order(l);
    compile(l);
    if (!l->d->n_errors) check_when(l);
    for (size_t i = 0; i < l->g->source->n_formulas && !l->d->n_errors; i++)
        if (!l->g->source->formulas[i]->owner) check_when_outside(l, l->g->source->formulas[i]);
    if (!l->d->n_errors) gr_find_repeated(l);
    if (!l->d->n_errors) gr_map_pools(l);
    if (!l->d->n_errors) gr_check_record_state(l);
    if (!l->d->n_errors) gr_find_positions(l);
    if (!l->d->n_errors) gr_check_tensor(l);
    if (!l->d->n_errors) gr_check_kept(l);
    if (!l->d->n_errors) gr_check_parallel(l);
    if (!l->d->n_errors) gr_check_lora(l);
    if (!l->d->n_errors) gr_check_precision(l);
    if (!l->d->n_errors) gr_share_prompts(l);
    if (!l->d->n_errors) gr_check_best(l);
    if (!l->d->n_errors) gr_read_stop(l);
    if (!l->d->n_errors) mark_read(l);
    if (!l->d->n_errors) warn(l);
}

static void loader_release(gr_loader *l)
{
    gr_index_release(&l->by_name);
    for (size_t i = 0; i < l->n_unresolved; i++) {
        free(l->unresolved[i]->edges);
        free(l->unresolved[i]->formulas);
    }
}

/* A message with the notes that follow it. */
typedef struct entry {
    const struct gr_message *m;
    size_t n;
} entry;

static int by_place(const void *a, const void *b)
{
    const struct gr_message *x = ((const entry *)a)->m, *y = ((const entry *)b)->m;
    int file = x->at.file && y->at.file ? strcmp(x->at.file, y->at.file) : 0;
    if (file) return file;
    if (x->at.line != y->at.line) return x->at.line < y->at.line ? -1 : 1;
    if (x->at.col != y->at.col) return x->at.col < y->at.col ? -1 : 1;
    return x < y ? -1 : 1;
}

static void pass_on(gr_diag *to, const gr_diag *from)
{
    entry *entries = gr_calloc(from->n, sizeof(*entries));
    size_t n = 0;
    for (size_t i = 0; i < from->n; i++) {
        if (!n || from->messages[i].severity != GR_NOTE) entries[n++] = (entry){&from->messages[i], 0};
        entries[n - 1].n++;
    }
    qsort(entries, n, sizeof(*entries), by_place);
    for (size_t i = 0; i < n; i++)
        for (const struct gr_message *m = entries[i].m; m < entries[i].m + entries[i].n; m++) {
            if (m->severity == GR_ERROR) gr_diag_error(to, m->at, GR_E_INVALID, "%s", m->text);
            if (m->severity == GR_WARNING) gr_diag_warn(to, m->at, "%s", m->text);
            if (m->severity == GR_NOTE) gr_diag_note(to, m->at, "%s", m->text);
        }
    free(entries);
}

static uint32_t count_ranks(const gr_load_options *o)
{
    return o && o->ranks ? o->ranks : 1;
}

gr_status gr_graph_parse(gr_graph **out, const char *text, size_t n, const char *path,
                         const gr_load_options *o, gr_diag *d)
{
    gr_arena *arena = gr_arena_new();
    gr_diag own; /* its errors are counted apart, and sorted */
    gr_diag_init(&own);
    gr_graph *g = gr_arena_alloc(arena, sizeof(*g));
    g->arena = arena;
    g->path = gr_arena_strdup(arena, path);
    g->source = gr_arena_alloc(arena, sizeof(*g->source));
    gr_loader l = {.g = g, .arena = arena, .d = &own, .o = o};
    load(&l, text, n, g->path);
    loader_release(&l);
    if (d) pass_on(d, &own);
    bool ok = !own.n_errors;
    gr_diag_release(&own);
    if (!ok) {
        gr_graph_free(g);
        return GR_E_INVALID;
    }
    g->ranks = count_ranks(o);
    gr_set_shares(g, g->n_roles > 1);
    gr_copy_for_roles(g);
    *out = g;
    return GR_OK;
}

gr_status gr_graph_load(gr_graph **out, const char *path, const gr_load_options *o, gr_diag *d)
{
    char *text;
    size_t n;
    gr_status st = gr_file_read(path, GR_FILE_LIMIT, &text, &n, d);
    if (st) return st;
    st = gr_graph_parse(out, text, n, path, o, d);
    free(text);
    return st;
}

void gr_graph_free(gr_graph *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->source->n_formulas; i++) gr_expr_free(g->source->formulas[i]->expr);
    for (size_t i = 0; i < g->source->n_losses; i++) gr_loss_free(g->source->losses[i]);
    for (size_t i = 0; i < g->source->n_functions; i++)
        gr_expr_free((gr_expr *)g->source->functions[i].body); /* ours: made by gr_read_functions */
    free(g->source->formulas);
    free(g->source->losses);
    free(g->columns);
    free(g->tokens);
    free(g->changing);
    free(g->record_state);
    gr_expr_free(g->run.stop.expr);
    gr_index_release(&g->by_name);
    gr_arena_free(g->arena);
}
