/* ops/reward/worker.c: scores that worker processes give. */
#include "ops/reward/worker.h"

#include <inttypes.h>
#include <stdlib.h>

#include "ops/reward/pool.h"
#include "runtime/base/json.h"

struct gr_workers {
    gr_pool *pool;
    gr_workers_config cfg;
};

/* NULL, or why not, to free(). what: the number's name. */
static char *take_number(const json_t *v, const char *what, double *out)
{
    if (!json_is_number(v)) return gr_printf("%s is %s; a number is wanted", what, gr_json_kind(v));
    *out = json_number_value(v);
    if (gr_json_fits_float(*out)) return NULL;
    return gr_printf("%s is %g, more than a 32-bit float can hold (3.4e38)", what, *out);
}

static char *take_names(const gr_workers_config *c, const json_t *score, double *values)
{
    char *why = NULL;
    double sum = 0;
    if (!json_is_object(score))
        return gr_printf("'score' is %s; an object with a number for each of 'names' is wanted",
                         gr_json_kind(score));
    for (size_t i = 0; i < c->n_names && !why; i++) {
        char *what = gr_printf("'%s' of 'score'", c->names[i]);
        why = take_number(json_object_get(score, c->names[i]), what, &values[i]);
        sum += values[i];
        free(what);
    }
    if (!why && !gr_json_fits_float(sum))
        why =
            gr_printf("the numbers of 'score' add up to %g, more than a 32-bit float can hold (3.4e38)", sum);
    return why;
}

static char *take_tokens(size_t n_tokens, const json_t *score, double *values)
{
    char *why = NULL;
    if (!json_is_array(score))
        return gr_printf(
            "'score' is %s; a list of one number for each of the response's %zu tokens is wanted",
            gr_json_kind(score), n_tokens);
    if (json_array_size(score) != n_tokens)
        return gr_printf("'score' has %zu numbers, but the response has %zu tokens", json_array_size(score),
                         n_tokens);
    for (size_t i = 0; i < n_tokens && !why; i++) {
        char *what = gr_printf("'score' of token %zu, counted from 0,", i);
        why = take_number(json_array_get(score, i), what, &values[i]);
        free(what);
    }
    return why;
}

/* The values of a score; NULL and why in *error, to free(), where they are not what was asked for. */
static double *take_values(const gr_workers_config *c, size_t n_tokens, const json_t *score, size_t *n,
                           char **error)
{
    *n = c->n_names ? c->n_names : c->per_token ? n_tokens : 1;
    double *values = gr_calloc(*n + 1, sizeof(*values)); /* + 1: never of size 0 */
    *error = c->n_names     ? take_names(c, score, values)
             : c->per_token ? take_tokens(n_tokens, score, values)
                            : take_number(score, "'score'", values);
    if (!*error) return values;
    free(values);
    return NULL;
}

static void *read_score(void *user, size_t n_tokens, const json_t *reply, char **why)
{
    const gr_workers *w = user;
    gr_reward *r = gr_calloc(1, sizeof(*r));
    if (gr_json_has_nul(reply)) {
        *why = gr_strdup("it holds the character \\u0000");
        free(r);
        return NULL;
    }
    r->values = take_values(&w->cfg, n_tokens, json_object_get(reply, "score"), &r->n, why);
    if (r->values) return r;
    free(r);
    return NULL;
}

static void drop_score(void *result)
{
    free(((gr_reward *)result)->values);
    free(result);
}

static gr_status again(void *user, gr_diag *d)
{
    const gr_workers *w = user;
    return w->cfg.again(w->cfg.user, d);
}

gr_status gr_workers_new(gr_workers **out, const gr_workers_config *c, gr_diag *d)
{
    gr_workers *w = gr_calloc(1, sizeof(*w));
    w->cfg = *c;
    const gr_pool_config pool = {.command = c->command,
                                 .who = "reward worker",
                                 .at = c->at,
                                 .n = c->n,
                                 .depth = c->depth,
                                 .timeout_ms = c->timeout_ms,
                                 .grace_ms = c->grace_ms,
                                 .line_bytes = c->line_bytes,
                                 .read = read_score,
                                 .drop = drop_score,
                                 .again = c->again ? again : NULL,
                                 .user = w};
    const gr_status st = gr_pool_new(&w->pool, &pool, d);
    if (st)
        free(w);
    else
        *out = w;
    return st;
}

void gr_workers_free(gr_workers *w)
{
    if (!w) return;
    gr_pool_free(w->pool);
    free(w);
}

void gr_workers_submit(gr_workers *w, uint64_t id, size_t n_tokens, json_t *fields)
{
    char *what = gr_printf("sequence %" PRIu32, (uint32_t)id);
    gr_pool_submit(w->pool, id, what, n_tokens, fields, (gr_pool_worker){0});
    free(what);
}

size_t gr_workers_pending(const gr_workers *w)
{
    return gr_pool_pending(w->pool);
}

gr_status gr_workers_collect(gr_workers *w, int timeout_ms, gr_reward *out, gr_diag *d)
{
    gr_pool_reply reply;
    *out = (gr_reward){0};
    gr_status st = gr_pool_collect(w->pool, timeout_ms, &reply, d);
    if (st) return st;
    if (reply.result) *out = *(gr_reward *)reply.result;
    if (reply.error) st = gr_diag_error(d, w->cfg.at, GR_E_FAILED, "%s", reply.error);
    out->id = reply.id;
    free(reply.result);
    free(reply.error);
    return st;
}
