/* runtime/api/api_run.c: a run, of which the caller asks for one iteration after another. It works on an
 * engine, which rests when it is ready, and behind each iteration. */
#include "runtime/api/api_parts.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ops/model/checkpoint.h"

struct graphrun_run {
    gr_engine engine;
    graphrun_ask a;    /* while it is made ready; later its flags alone */
    graphrun_log *log; /* of the call that waits */
    gr_prepared x;
    gr_api_calls *calls;
    gr_run_listener listener;
    gr_diag d;
    gr_status st;
    bool ready, has_begun, is_told; /* is_told: of its failure */
    atomic_bool stops;
    graphrun_iteration at;
    graphrun_number *number; /* [n of the iteration] */
    gr_arena *names;
    double *set; /* [states] NaN: not set */
};

/* ---- on the engine ---------------------------------------------------------------------------------------
 */

static void iteration(void *user, const gr_run_told *told)
{
    graphrun_run *r = user;
    gr_arena_free(r->names);
    r->names = gr_arena_new();
    r->number = gr_realloc(r->number, told->n * sizeof(*r->number));
    for (size_t i = 0; i < told->n; i++)
        r->number[i] =
            (graphrun_number){gr_arena_strdup(r->names, told->number[i].name), told->number[i].value};
    r->at = (graphrun_iteration){told->step, told->steps, r->number, told->n};
    gr_api_take_messages(r->log, told->said);
    r->has_begun = true;
    gr_engine_rest(&r->engine);
    for (size_t i = 0; i < r->x.g->n_state; i++) {
        if (!isnan(r->set[i])) told->next_state[i] = r->set[i];
        r->set[i] = NAN;
    }
}

static bool stops(void *user)
{
    return atomic_load(&((graphrun_run *)user)->stops);
}

static gr_status saw(void *user, const gr_seen *seen, gr_diag *d)
{
    return gr_api_calls_saw(((graphrun_run *)user)->calls, seen, d);
}

static gr_status check_ranks(const graphrun_run *r, gr_diag *d)
{
    if (r->x.g->ranks < 2) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "a run of %u ranks is started by the program: graphrun exec --ranks %u",
                         r->x.g->ranks, r->x.g->ranks);
}

static gr_status prepare(graphrun_run *r)
{
    gr_request q = gr_api_request(&r->a);
    char *run = r->a.resume ? gr_checkpoint_run(r->a.resume, &q.at) : NULL;
    q.resume = run;
    gr_status st = q.graph || q.resume ? gr_request_prepare(&r->x, &q, &r->d)
                                       : gr_diag_error(&r->d, (gr_loc){0}, GR_E_INVALID,
                                                       "a graph is missing, or a run to resume");
    if (!st) st = check_ranks(r, &r->d);
    r->calls = gr_api_calls_new(&r->a);
    r->set = gr_calloc(r->x.g ? r->x.g->n_state : 0, sizeof(*r->set));
    for (size_t i = 0; r->x.g && i < r->x.g->n_state; i++) r->set[i] = NAN;
    free(run);
    return st;
}

static gr_status run(graphrun_run *r)
{
    r->listener = (gr_run_listener){.user = r, .iteration = iteration, .stops = stops, .saw = saw};
    r->listener.watched = gr_api_calls_watched(r->calls, &r->listener.n_watched);
    const gr_run_options o = {.out = r->x.out,
                              .resume = r->a.resume != NULL,
                              .has_from = r->x.has_step,
                              .from = r->x.step,
                              .until = (uint32_t)GR_MIN(r->a.until, (uint64_t)UINT32_MAX),
                              .accept_changes = r->a.accept_changes,
                              .poison = r->a.check_memory,
                              .threads = r->x.o.threads,
                              .progress = r->a.progress ? stdout : NULL,
                              .functions = gr_api_calls_functions(r->calls),
                              .listener = &r->listener};
    return gr_run(r->x.g, r->x.p, r->x.p->kernels, &o, &r->d);
}

static void work(void *user)
{
    graphrun_run *r = user;
    gr_diag_init(&r->d);
    r->st = prepare(r);
    gr_api_take_messages(r->log, &r->d);
    if (r->st) return;
    r->ready = true;
    gr_engine_rest(&r->engine);
    if (!atomic_load(&r->stops)) r->st = run(r);
    gr_api_take_messages(r->log, &r->d);
}

/* ---- the caller ------------------------------------------------------------------------------------------
 */

/* Of a run whose engine has ended. */
static void release(graphrun_run *r)
{
    gr_engine_join(&r->engine);
    gr_engine_drop_run();
    gr_prepared_release(&r->x);
    gr_api_calls_free(r->calls);
    gr_diag_release(&r->d);
    gr_arena_free(r->names);
    free(r->number);
    free(r->set);
    free(r);
}

static void refuse_second(void *user)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_diag_error(&d, (gr_loc){0}, GR_E_INVALID, "a run is open in this process: there is one at a time");
    gr_api_take_messages(user, &d);
}

graphrun_status graphrun_run_new(graphrun_run **out, const graphrun_ask *given, graphrun_log *l)
{
    graphrun_ask a;
    *out = NULL;
    graphrun_status st = gr_api_read_ask(&a, given, l);
    graphrun_run *r = st ? NULL : calloc(1, sizeof(*r));
    if (!r) return st ? st : GRAPHRUN_E_NOMEM;
    gr_api_begin();
    r->a = a;
    r->log = l;
    if (!gr_engine_take_run(&r->engine)) {
        free(r);
        st = gr_api_do(refuse_second, l);
        return st ? st : GRAPHRUN_E_INVALID;
    }
    if (!gr_engine_start(&r->engine, work, r)) {
        gr_engine_drop_run();
        free(r);
        return GRAPHRUN_E_NOMEM;
    }
    const gr_engine_at at = gr_engine_await(&r->engine);
    if (at == GR_ENGINE_LOST) {
        gr_engine_drop_run();
        return GRAPHRUN_E_NOMEM;
    }
    if (at == GR_ENGINE_RESTS) {
        *out = r;
        return GRAPHRUN_OK;
    }
    st = (graphrun_status)r->st;
    release(r);
    return st;
}

static graphrun_status go_on(graphrun_run *r, graphrun_log *l)
{
    r->log = l;
    gr_engine_go(&r->engine);
    return gr_engine_await(&r->engine) == GR_ENGINE_LOST ? GRAPHRUN_E_NOMEM : GRAPHRUN_OK;
}

graphrun_status graphrun_run_next(graphrun_run *r, const graphrun_iteration **out, graphrun_log *l)
{
    *out = NULL;
    const gr_engine_at before = gr_engine_await(&r->engine);
    if (before == GR_ENGINE_RESTS && go_on(r, l)) return GRAPHRUN_E_NOMEM;
    const gr_engine_at at = gr_engine_await(&r->engine);
    if (at == GR_ENGINE_LOST) return GRAPHRUN_E_NOMEM;
    if (at == GR_ENGINE_RESTS) *out = &r->at;
    r->is_told = at == GR_ENGINE_ENDED;
    return at == GR_ENGINE_ENDED ? (graphrun_status)r->st : GRAPHRUN_OK;
}

void graphrun_run_stop(graphrun_run *r)
{
    atomic_store(&r->stops, true);
}

typedef struct refused_set {
    const graphrun_run *run;
    const char *name;
    double value;
    graphrun_log *log;
} refused_set;

static void refuse_set(void *user)
{
    const refused_set *s = user;
    const gr_graph *g = s->run->x.g;
    gr_diag d;
    gr_diag_init(&d);
    const char **names = gr_calloc(g->n_state, sizeof(*names));
    for (size_t i = 0; i < g->n_state; i++) names[i] = g->state[i].name;
    const char *near = gr_near(s->name, names, g->n_state);
    if (!isfinite(s->value))
        gr_diag_error(&d, (gr_loc){0}, GR_E_INVALID, "state '%s' cannot be set to %g", s->name, s->value);
    else if (!s->run->has_begun)
        gr_diag_error(&d, (gr_loc){0}, GR_E_INVALID,
                      "no iteration has run yet: what '%s' begins with is of the graph (state.%s.init)",
                      s->name, s->name);
    else
        gr_diag_error(&d, (gr_loc){0}, GR_E_INVALID, "the graph has no state '%s'%s%s%s", s->name,
                      near ? "; did you mean '" : ": a value to be set stands in its 'state:'",
                      near ? near : "", near ? "'?" : "");
    free(names);
    gr_api_take_messages(s->log, &d);
}

graphrun_status graphrun_run_set(graphrun_run *r, const char *state, double value, graphrun_log *l)
{
    const gr_graph *g = r->x.g;
    for (size_t i = 0; r->has_begun && i < g->n_state; i++)
        if (!strcmp(g->state[i].name, state) && isfinite(value)) {
            r->set[i] = value;
            return GRAPHRUN_OK;
        }
    refused_set s = {r, state, value, l};
    graphrun_status st = gr_api_do(refuse_set, &s);
    return st ? st : GRAPHRUN_E_INVALID;
}

const char *graphrun_run_out(const graphrun_run *r)
{
    return r->x.out;
}

graphrun_status graphrun_run_free(graphrun_run *r, graphrun_log *l)
{
    if (!r) return GRAPHRUN_OK;
    graphrun_run_stop(r);
    gr_engine_at at = gr_engine_await(&r->engine);
    while (at == GR_ENGINE_RESTS) {
        if (go_on(r, l)) at = GR_ENGINE_LOST;
        if (at != GR_ENGINE_LOST) at = gr_engine_await(&r->engine);
    }
    if (at == GR_ENGINE_LOST) {
        gr_engine_drop_run();
        return GRAPHRUN_E_NOMEM;
    }
    const graphrun_status st = r->is_told ? GRAPHRUN_OK : (graphrun_status)r->st;
    release(r);
    return st;
}
