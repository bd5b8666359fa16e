/* ops/base/session.c: what a running graph offers its ops: tokenizers, states, metrics, listeners. */
#include "ops/base/session.h"

#include "ops/base/configs.h"
#include "runtime/comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Metrics and notes come from several lanes. */
static pthread_mutex_t metrics_lock = PTHREAD_MUTEX_INITIALIZER;

/* There is room for a value of each name. */
static uint32_t add_name(gr_session *s, const struct gr_metric_name *name)
{
    GR_PUSH(s->metric_names, s->n_metric_names, s->cap_metric_names, *name);
    s->metrics = gr_realloc(s->metrics, s->cap_metric_names * sizeof(*s->metrics));
    return (uint32_t)s->n_metric_names - 1;
}

uint32_t gr_session_name(gr_session *s, const gr_node *n, const char *fmt, ...)
{
    struct gr_metric_name x = {0};
    int prefix = n->timing.every ? snprintf(x.text, sizeof(x.text), GR_VALIDATION) : 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x.text + prefix, sizeof(x.text) - (size_t)prefix, fmt, ap);
    va_end(ap);
    for (uint32_t i = 0; i < s->n_metric_names; i++)
        if (!strcmp(s->metric_names[i].text, x.text)) return i;
    return add_name(s, &x);
}

void gr_session_metric(gr_session *s, uint32_t metric, double value)
{
    struct gr_metric_name *name = &s->metric_names[metric];
    pthread_mutex_lock(&metrics_lock);
    if (name->at >= s->n_metrics || s->metrics[name->at].of != metric) {
        name->at = s->n_metrics++;
        s->metrics[name->at].of = metric;
        memcpy(s->metrics[name->at].name, name->text, sizeof(name->text));
    }
    s->metrics[name->at].value = value;
    pthread_mutex_unlock(&metrics_lock);
}

void gr_session_note(gr_session *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&metrics_lock);
    gr_str_vprintf(&s->notes, fmt, ap);
    gr_str_putc(&s->notes, '\n');
    pthread_mutex_unlock(&metrics_lock);
    va_end(ap);
}

bool gr_node_is_due(const gr_node *n, uint32_t step)
{
    return n->timing.every && (step ? step % n->timing.every == 0 : n->timing.before);
}

bool gr_validation_is_due(const gr_graph *g, uint32_t step)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (gr_node_is_due(g->nodes[i], step)) return true;
    return false;
}

void gr_session_listen(gr_session *s, const gr_node *rows, const gr_node *node,
                       void (*finished)(void *user, const struct gr_rows *rows, uint32_t seq), void *user)
{
    GR_PUSH(s->listeners, s->n_listeners, s->cap_listeners,
            ((struct gr_listener){rows, node, finished, user}));
}

void gr_session_finished(const gr_session *s, const gr_node *node, const struct gr_rows *rows, uint32_t seq)
{
    for (size_t i = 0; i < s->n_listeners; i++) {
        const struct gr_listener *l = &s->listeners[i];
        if (l->rows == node && !s->skipped[l->node->index]) l->finished(l->user, rows, seq);
    }
}

bool gr_session_is_heard(const gr_session *s, const gr_node *node)
{
    for (size_t i = 0; i < s->n_listeners; i++)
        if (s->listeners[i].rows == node && !s->skipped[s->listeners[i].node->index]) return true;
    return false;
}

/* The first model that reads these rows, or that answers these prompts. */
const gr_model *gr_session_model(const gr_session *s, const gr_node *rows)
{
    rows = gr_rows_maker(rows);
    if (rows->model) return rows->model;
    for (size_t i = 0; i < s->graph->n_nodes; i++) {
        const gr_node *n = s->graph->nodes[i];
        if (n->model && n != rows && (n->rows == rows || n->groups == rows)) return n->model;
    }
    if (rows->of) return gr_session_model(s, rows->of->rows); /* prompts of rows that nobody samples behind */
    return s->graph->n_models ? s->graph->models[0] : NULL;
}

const gr_tokenizer *gr_session_tokenizer(const gr_session *s, const gr_node *rows)
{
    return s->tokenizer[gr_session_model(s, rows)->index];
}

static bool needs_tokenizer(const gr_session *s, const gr_model *m)
{
    for (size_t i = 0; i < s->graph->n_nodes; i++)
        if (s->graph->nodes[i]->op->makes_rows && gr_session_model(s, s->graph->nodes[i]) == m) return true;
    return false;
}

static gr_status load_tokenizers(gr_session *s, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < s->graph->n_models && !st; i++) {
        const gr_model *m = s->graph->models[i];
        if (!needs_tokenizer(s, m)) continue;
        st = gr_tokenizer_load(&s->tokenizer[i], m->files.folder, d);
        if (!st && gr_tokenizer_size(s->tokenizer[i]) > m->shape.vocab)
            st = gr_diag_error(d, m->files.at, GR_E_INVALID,
                               "the tokenizer of model '%s' has ids up to %zu, the model %u", m->name,
                               gr_tokenizer_size(s->tokenizer[i]) - 1, m->shape.vocab);
    }
    return st;
}

/* The text of a token; the caller frees it. */
static gr_str text_of(const gr_tokenizer *t, int32_t id)
{
    gr_str s = {0};
    (void)gr_tokenizer_append(t, id, false, &s);
    gr_str_puts(&s, "");
    return s;
}

/* The first id that is another text in b than in a; -1: none. */
static int32_t first_difference(const gr_tokenizer *a, const gr_tokenizer *b)
{
    size_t n = GR_MIN(gr_tokenizer_size(a), gr_tokenizer_size(b));
    bool same = true;
    int32_t id = 0;
    for (; same && (size_t)id < n; id++) {
        gr_str x = text_of(a, id), y = text_of(b, id);
        same = x.len == y.len && !memcmp(x.text, y.text, x.len);
        gr_str_release(&x);
        gr_str_release(&y);
    }
    return same ? -1 : id - 1;
}

/* A model reads the ids that another has sampled: they must mean the same text to it. A folder without
 * tokenizer is believed. */
static void warn_of_tokenizer(const gr_session *s, const gr_node *n, gr_diag *d)
{
    const gr_model *own = n->model, *rows = gr_session_model(s, n->rows);
    const gr_tokenizer *theirs = s->tokenizer[rows->index];
    gr_tokenizer *t = NULL;
    if (own->files.random || !theirs || !strcmp(own->files.folder, rows->files.folder) ||
        gr_tokenizer_load(&t, own->files.folder, NULL))
        return;
    int32_t id = first_difference(theirs, t);
    gr_tokenizer_free(t);
    if (id < 0) return;
    gr_str want = text_of(theirs, id);
    gr_diag_warn(
        d, n->at,
        "'%s' gives model '%s' the tokens of model '%s', but their tokenizers differ: token %d, '%s', "
        "is another",
        n->name, own->name, rows->name, id, want.text);
    gr_str_release(&want);
}

/* Said once a model: at the first node that has it read rows of others. */
static void warn_of_tokenizers(const gr_session *s, gr_diag *d)
{
    for (size_t m = 0; m < s->graph->n_models; m++)
        for (size_t i = 0; i < s->graph->n_nodes; i++) {
            const gr_node *n = s->graph->nodes[i];
            if (!n->model || n->model->index != m || !n->rows || n->rows == n) continue;
            warn_of_tokenizer(s, n, d);
            break;
        }
}

/* Models that meet in one graph may have tokenizers of their own: those must agree on what is named. */
static gr_status find_token(gr_session *s, const gr_token_value *t, gr_diag *d)
{
    int32_t found = -1;
    for (size_t i = 0; i < s->graph->n_models; i++) {
        if (!s->tokenizer[i]) continue;
        int32_t id = gr_tokenizer_id(s->tokenizer[i], t->text, strlen(t->text));
        if (id < 0)
            return gr_diag_error(d, t->at, GR_E_INVALID, "'%s' is not one token of model '%s'", t->text,
                                 s->graph->models[i]->name);
        if (found >= 0 && id != found)
            return gr_diag_error(d, t->at, GR_E_INVALID,
                                 "'%s' has one id, %d, in model '%s', and %d in another", t->text, id,
                                 s->graph->models[i]->name, found);
        found = id;
    }
    s->scalars[t->column] = found;
    return GR_OK;
}

static gr_status open_node(gr_session *s, const gr_node *n, gr_diag *d)
{
    return n->op->open ? n->op->open(s, n, &s->state[n->index], d) : GR_OK;
}

gr_status gr_session_open(gr_session *s, const gr_graph *g, const gr_kernels *k, const gr_comm *ranks,
                          const struct gr_functions *functions, gr_diag *d)
{
    *s = (gr_session){.graph = g,
                      .kernels = k,
                      .seed = g->run.seed,
                      .rank = gr_comm_rank(ranks),
                      .ranks = gr_comm_ranks(ranks),
                      .functions = functions};
    s->scalars = gr_calloc(g->n_columns, sizeof(*s->scalars));
    s->next_state = gr_calloc(g->n_state, sizeof(*s->next_state));
    s->numbers = gr_calloc(g->n_changing, sizeof(*s->numbers));
    s->state = gr_calloc(g->n_nodes + GR_LEN(s->added), sizeof(*s->state));
    s->skipped = gr_calloc(g->n_nodes + GR_LEN(s->added), sizeof(*s->skipped));
    s->tokenizer = gr_calloc(g->n_models, sizeof(*s->tokenizer));
    for (size_t i = 0; i < g->n_state; i++) s->next_state[i] = g->state[i].init;
    gr_status st = load_tokenizers(s, d);
    if (!st) warn_of_tokenizers(s, d);
    for (size_t i = 0; i < g->n_tokens && !st; i++) st = find_token(s, &g->tokens[i], d);
    for (size_t i = 0; i < g->n_nodes && !st; i++) st = open_node(s, g->nodes[i], d);
    return st;
}

double gr_session_scalar(const gr_session *s, const gr_expr *e)
{
    const gr_graph *g = s->graph;
    gr_expr_column *columns = gr_calloc(g->n_columns, sizeof(*columns));
    for (size_t i = 0; i < g->n_columns; i++) columns[i] = (gr_expr_column){&s->scalars[i], GR_EXPR_F64};
    const gr_expr_env env = {.columns = columns, .seed = s->seed, .step = s->step};
    void *work = gr_calloc(1, gr_expr_bytes(e, (gr_expr_bounds){1, 1, 1}));
    const double value = gr_expr_scalar(e, &env, work);
    free(work);
    free(columns);
    return value;
}

gr_status gr_session_begin(gr_session *s, gr_diag *d)
{
    for (size_t i = 0; i < s->graph->n_changing; i++) {
        const gr_changing *c = &s->graph->changing[i];
        const double v = s->numbers[i] = gr_session_scalar(s, c->expr);
        if (v >= c->min && v <= c->max) continue; /* a NaN is neither */
        return gr_diag_error(d, c->at, GR_E_INVALID,
                             "%s is %g in iteration %u; it must be a number from %g to %g", c->key, v,
                             s->step, c->min, c->max);
    }
    return GR_OK;
}

gr_status gr_session_add(gr_session *s, const gr_node *n, gr_diag *d)
{
    s->added[n->index - s->graph->n_nodes] = n;
    return open_node(s, n, d);
}

static void close_node(gr_session *s, const gr_node *n)
{
    if (n && s->state[n->index]) n->op->close(s->state[n->index]);
}

void gr_session_close(gr_session *s)
{
    for (size_t i = 0; s->state && i < s->graph->n_nodes; i++) close_node(s, s->graph->nodes[i]);
    for (size_t i = 0; s->state && i < GR_LEN(s->added); i++) close_node(s, s->added[i]);
    for (size_t i = 0; s->tokenizer && i < s->graph->n_models; i++) gr_tokenizer_free(s->tokenizer[i]);
    free(s->scalars);
    free(s->next_state);
    free(s->numbers);
    free(s->state);
    free(s->skipped);
    free(s->tokenizer);
    free(s->metrics);
    free(s->metric_names);
    gr_str_release(&s->notes);
    free(s->listeners);
    *s = (gr_session){0};
}
