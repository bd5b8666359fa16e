/* ops/rollout_heard.c: answers of an environment, handed by one rank to those that it runs a rollout with. */
#include "ops/rollout_heard.h"

#include "runtime/base/json.h"

#include <stdlib.h>
#include <string.h>

void gr_heard_add(gr_heard_answers *h, gr_answer *a)
{
    if (h->taken == h->n) h->taken = h->n = 0;
    GR_PUSH(h->answer, h->n, h->cap, a);
}

gr_answer *gr_heard_next(gr_heard_answers *h)
{
    return h->taken < h->n ? h->answer[h->taken++] : NULL;
}

void gr_heard_release(gr_heard_answers *h)
{
    for (gr_answer *a; (a = gr_heard_next(h));) gr_answer_free(a);
    free(h->answer);
    *h = (gr_heard_answers){0};
}

/* ---- as text ---------------------------------------------------------------------------------------------
 */

static json_t *numbers(const double *x, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}

static json_t *ids_list(const gr_ids *ids)
{
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++) json_array_append_new(list, json_integer(ids->id[i]));
    return list;
}

json_t *gr_heard_write(const gr_answer *a, size_t n_metrics)
{
    return json_pack("{s:I, s:s*, s:b, s:O*, s:O*, s:b, s:O*, s:o, s:b, s:I, s:b, s:I, s:f, s:o}", "number",
                     (json_int_t)a->number, "error", a->error, "late", a->late, "messages", a->messages,
                     "tools", a->tools, "reminds", a->reminds, "text", a->text, "ids", ids_list(&a->ids),
                     "call", a->is_call, "most", (json_int_t)a->max_tokens, "done", a->done, "refused",
                     (json_int_t)a->refused, "reward", a->reward, "metrics",
                     numbers(a->metrics, a->metrics ? n_metrics : 0));
}

static void read_ids(gr_ids *to, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        GR_PUSH(to->id, to->n, to->cap, (int32_t)json_integer_value(json_array_get(list, i)));
}

gr_answer *gr_heard_read(const json_t *from, size_t n_metrics)
{
    gr_answer *a = gr_calloc(1, sizeof(*a));
    json_int_t number = 0, most = 0, refused = 0;
    json_t *messages = NULL, *tools = NULL, *text = NULL, *ids = NULL, *metrics = NULL;
    const char *error = NULL;
    int late = 0, reminds = 0, call = 0, done = 0;
    const int bad = json_unpack(
        (json_t *)(uintptr_t)from, "{s:I, s?s, s:b, s?O, s?O, s:b, s?O, s:o, s:b, s:I, s:b, s:I, s:F, s:o}",
        "number", &number, "error", &error, "late", &late, "messages", &messages, "tools", &tools, "reminds",
        &reminds, "text", &text, "ids", &ids, "call", &call, "most", &most, "done", &done, "refused",
        &refused, "reward", &a->reward, "metrics", &metrics);
    a->messages = messages;
    a->tools = tools;
    a->reminds = reminds;
    a->text = text;
    if (bad) {
        gr_answer_free(a);
        return NULL;
    }
    a->number = (uint32_t)number;
    a->error = error ? gr_strdup(error) : NULL;
    a->late = late;
    a->is_call = call;
    a->max_tokens = (uint32_t)most;
    a->done = done;
    a->refused = (gr_serve_end_reason)refused;
    a->metrics = gr_calloc(n_metrics + 1, sizeof(*a->metrics)); /* + 1: never of size 0 */
    for (size_t i = 0; i < n_metrics; i++) a->metrics[i] = json_number_value(json_array_get(metrics, i));
    read_ids(&a->ids, ids);
    return a;
}

/* ---- from rank to rank -----------------------------------------------------------------------------------
 */

/* To free(); of no answers empty. */
static char *text_of(const gr_heard_answers *h, size_t n_metrics)
{
    json_t *list = json_array();
    for (size_t i = h->taken; i < h->n; i++)
        json_array_append_new(list, gr_heard_write(h->answer[i], n_metrics));
    char *text = h->taken < h->n ? json_dumps(list, JSON_COMPACT | JSON_REAL_PRECISION(17)) : gr_strdup("");
    json_decref(list);
    return text;
}

static gr_status read_text(gr_heard_answers *h, const char *text, size_t n_metrics, gr_diag *d)
{
    json_t *list = json_loads(text, 0, NULL);
    gr_status st = list ? GR_OK : GR_E_FAILED;
    for (size_t i = 0; i < json_array_size(list) && !st; i++) {
        gr_answer *a = gr_heard_read(json_array_get(list, i), n_metrics);
        if (a)
            gr_heard_add(h, a);
        else
            st = GR_E_FAILED;
    }
    json_decref(list);
    if (st)
        gr_diag_error(d, (gr_loc){0}, st,
                      "what the first rank of a model in slices hands over is no list of answers");
    return st;
}

/* Bytes of a message that is none: the first rank goes no further. */
#define ENDED UINT64_MAX

gr_status gr_heard_share(gr_heard_answers *h, size_t n_metrics, bool failed, gr_comm *c, gr_diag *d)
{
    const bool asks = c->rank == 0;
    char *text = asks && !failed ? text_of(h, n_metrics) : NULL;
    uint64_t bytes = failed ? ENDED : text ? strlen(text) : 0;
    gr_status st = c->type->broadcast(c, &bytes, sizeof(bytes), d);
    if (!st && !asks && bytes == ENDED)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                           "the rank that asks the environment for this one has failed");
    if (!st && bytes && bytes != ENDED) {
        if (!asks) text = gr_calloc(bytes + 1, 1);
        st = c->type->broadcast(c, text, bytes, d);
        if (!st && !asks) st = read_text(h, text, n_metrics, d);
    }
    free(text);
    return st;
}
