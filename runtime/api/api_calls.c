/* runtime/api/api_calls.c: functions and watches of the caller, as the run calls them. */
#include "runtime/api/api_parts.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(graphrun_text) == sizeof(gr_text) && offsetof(graphrun_text, n) == offsetof(gr_text, n),
               "texts are handed on as they are");

struct graphrun_call {
    char *failure; /* NULL: none */
    gr_str *reply; /* NULL: there is none to give */
};

void graphrun_fail(graphrun_call *c, const char *message)
{
    if (!c->failure) c->failure = gr_strdup(message);
}

void graphrun_reply(graphrun_call *c, const char *bytes, size_t n)
{
    if (c->reply && n) gr_str_add(c->reply, bytes, n);
}

struct gr_api_calls {
    gr_function *function; /* [n_functions] whose users are: */
    graphrun_function *given;
    graphrun_watch *watch;
    const char **watched;
    size_t n_watches;
    gr_functions functions;
};

static gr_status failure_of(graphrun_call *c, const char *what, const char *name, gr_diag *d)
{
    if (!c->failure) return GR_OK;
    gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "%s '%s' failed: %s", what, name, c->failure);
    free(c->failure);
    return GR_E_FAILED;
}

static graphrun_rows rows_from(const gr_rows *r, uint32_t first, uint32_t n, uint32_t longest)
{
    return (graphrun_rows){.n = n,
                           .n_tokens = r->token_offset[first + n] - r->token_offset[first],
                           .stride = r->stride,
                           .longest = longest,
                           .group = r->group + first,
                           .prompt_len = r->prompt_len + first,
                           .response_len = r->response_len + first,
                           .token_offset = r->token_offset + first,
                           .truncated = r->truncated + first,
                           .ids = r->ids + (size_t)first * r->stride,
                           .logprob = r->logprob + (size_t)first * longest};
}

/* ---- functions -------------------------------------------------------------------------------------------
 */

static gr_status score(void *user, const gr_batch *b, gr_diag *d)
{
    const graphrun_function *f = user;
    graphrun_call call = {0};
    const graphrun_batch batch = {.node = b->node,
                                  .step = b->step,
                                  .rows = rows_from(b->rows, b->first, b->n, b->longest),
                                  .prompt = (const graphrun_text *)(const void *)b->prompt,
                                  .response = (const graphrun_text *)(const void *)b->response,
                                  .answer = (const graphrun_text *)(const void *)b->answer,
                                  .record = (const graphrun_text *)(const void *)b->record,
                                  .names = b->names,
                                  .n_names = b->n_names,
                                  .per_token = b->per_token,
                                  .scores = b->scores};
    f->score(f->user, &batch, &call);
    return failure_of(&call, "the function", f->name, d);
}

static gr_status answer(void *user, const char *requests, size_t n, gr_str *replies, gr_diag *d)
{
    const graphrun_function *f = user;
    graphrun_call call = {.reply = replies};
    f->answer(f->user, requests, n, &call);
    return failure_of(&call, "the function", f->name, d);
}

/* ---- watches ---------------------------------------------------------------------------------------------
 */

static const graphrun_type types[] = {[GR_EXPR_F32] = GRAPHRUN_F32,
                                      [GR_EXPR_F64] = GRAPHRUN_F64,
                                      [GR_EXPR_I32] = GRAPHRUN_I32,
                                      [GR_EXPR_U8] = GRAPHRUN_U8};

static graphrun_level level_of(gr_level l)
{
    return l == GR_LEVEL_GROUP   ? GRAPHRUN_GROUP
           : l == GR_LEVEL_SEQ   ? GRAPHRUN_SEQUENCE
           : l == GR_LEVEL_TOKEN ? GRAPHRUN_TOKEN
                                 : GRAPHRUN_SCALAR;
}

gr_status gr_api_calls_saw(gr_api_calls *c, const gr_seen *seen, gr_diag *d)
{
    graphrun_call call = {0};
    graphrun_rows rows = {0};
    graphrun_column *column = gr_calloc(seen->n, sizeof(*column));
    if (seen->rows)
        rows = rows_from(seen->rows, 0, *seen->rows->n_seqs, seen->node->rows->bounds.response_tokens);
    for (size_t i = 0; i < seen->n; i++) {
        const gr_seen_column *x = &seen->column[i];
        column[i] = (graphrun_column){x->column->name, types[x->column->dtype], level_of(x->column->level),
                                      x->data, x->n};
    }
    const graphrun_seen s = {seen->node->name, seen->step, seen->rows ? &rows : NULL, column, seen->n};
    for (size_t i = 0; i < c->n_watches && !call.failure; i++)
        if (!strcmp(c->watch[i].node, seen->node->name)) c->watch[i].saw(c->watch[i].user, &s, &call);
    free(column);
    return failure_of(&call, "the watch of node", seen->node->name, d);
}

/* ---- taken and freed -------------------------------------------------------------------------------------
 */

gr_api_calls *gr_api_calls_new(const graphrun_ask *a)
{
    gr_api_calls *c = gr_calloc(1, sizeof(*c));
    c->given = gr_calloc(a->n_functions, sizeof(*c->given));
    c->function = gr_calloc(a->n_functions, sizeof(*c->function));
    for (size_t i = 0; i < a->n_functions; i++) {
        c->given[i] = a->functions[i];
        c->given[i].name = gr_strdup(a->functions[i].name);
        c->function[i] = (gr_function){.name = c->given[i].name,
                                       .score = c->given[i].score ? score : NULL,
                                       .answer = c->given[i].answer ? answer : NULL,
                                       .user = &c->given[i]};
    }
    c->functions = (gr_functions){.of = c->function, .n = a->n_functions};
    c->n_watches = a->n_watches;
    c->watch = gr_calloc(a->n_watches, sizeof(*c->watch));
    c->watched = gr_calloc(a->n_watches, sizeof(*c->watched));
    for (size_t i = 0; i < a->n_watches; i++) {
        c->watch[i] = a->watches[i];
        c->watch[i].node = c->watched[i] = gr_strdup(a->watches[i].node);
    }
    return c;
}

void gr_api_calls_free(gr_api_calls *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->functions.n; i++) free((char *)(uintptr_t)c->given[i].name);
    for (size_t i = 0; i < c->n_watches; i++) free((char *)(uintptr_t)c->watched[i]);
    free(c->given);
    free(c->function);
    free(c->watch);
    free(c->watched);
    free(c);
}

const gr_functions *gr_api_calls_functions(const gr_api_calls *c)
{
    return &c->functions;
}

const char *const *gr_api_calls_watched(const gr_api_calls *c, size_t *n)
{
    *n = c->n_watches;
    return c->watched;
}
