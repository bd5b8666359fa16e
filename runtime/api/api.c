/* runtime/api/api.c: what all calls of the library have in common, and the shortest of them. */
#include "runtime/api/api_parts.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graphs/loader/load.h"
#include "runtime/api/version.h"
#include "runtime/base/guard.h"

#define SAME(name) _Static_assert((int)GRAPHRUN_##name == (int)GR_##name, "the statuses of both are the same")
SAME(OK);
SAME(E_NOMEM);
SAME(E_INVALID);
SAME(E_IO);
SAME(E_NOFIT);
SAME(E_FAILED);
SAME(E_STOPPED);
SAME(E_DIVERGED);

uint32_t graphrun_api(void)
{
    return GRAPHRUN_API;
}

const char *graphrun_version(void)
{
    return gr_version();
}

const char *graphrun_status_text(graphrun_status s)
{
    return s <= GRAPHRUN_E_DIVERGED ? gr_status_str((gr_status)s) : "unknown status";
}

/* ---- where the program is --------------------------------------------------------------------------------
 */

/* As built, as installed, and in a Python package. */
static const char *const places[] = {"tools/graphrun", "../bin/graphrun", "../../bin/graphrun",
                                     "bin/graphrun"};

static pthread_once_t begun = PTHREAD_ONCE_INIT;
static char library[PATH_MAX], program[PATH_MAX];

static bool look(const char *folder, const char *place)
{
    const int n = snprintf(program, sizeof(program), "%s/%s", folder, place);
    return n > 0 && (size_t)n < sizeof(program) && !access(program, X_OK);
}

static void find_program(void)
{
    Dl_info info;
    char folder[PATH_MAX];
    const char *named = getenv("GRAPHRUN_PROGRAM");
    if (!dladdr((const void *)places, &info) || !realpath(info.dli_fname, library)) return;
    strcpy(folder, library);
    *strrchr(folder, '/') = '\0';
    bool found = false;
    for (size_t i = 0; !named && i < GR_LEN(places) && !found; i++) found = look(folder, places[i]);
    gr_own_path_set(named ? named : found ? program : NULL, library);
}

void gr_api_begin(void)
{
    pthread_once(&begun, find_program);
}

graphrun_status gr_api_do(void (*work)(void *user), void *user)
{
    gr_engine *e = calloc(1, sizeof(*e));
    gr_api_begin();
    if (!e || !gr_engine_start(e, work, user)) {
        free(e);
        return GRAPHRUN_E_NOMEM;
    }
    if (gr_engine_await(e) == GR_ENGINE_LOST) return GRAPHRUN_E_NOMEM;
    gr_engine_join(e);
    free(e);
    return GRAPHRUN_OK;
}

/* ---- messages --------------------------------------------------------------------------------------------
 */

struct graphrun_log {
    graphrun_message *message;
    size_t n, cap;
    gr_arena *texts;
};

graphrun_log *graphrun_log_new(void)
{
    return calloc(1, sizeof(graphrun_log));
}

void graphrun_log_clear(graphrun_log *l)
{
    if (!l) return;
    gr_arena_free(l->texts);
    l->texts = NULL;
    l->n = 0;
}

void graphrun_log_free(graphrun_log *l)
{
    if (!l) return;
    graphrun_log_clear(l);
    free(l->message);
    free(l);
}

size_t graphrun_log_count(const graphrun_log *l)
{
    return l ? l->n : 0;
}

const graphrun_message *graphrun_log_at(const graphrun_log *l, size_t i)
{
    return l && i < l->n ? &l->message[i] : NULL;
}

static void take_message(graphrun_log *l, const struct gr_message *m)
{
    if (!l->texts) l->texts = gr_arena_new();
    char *whole = gr_message_format(m);
    graphrun_message x = {.severity = (graphrun_severity)m->severity,
                          .file = m->at.file ? gr_arena_strdup(l->texts, m->at.file) : NULL,
                          .line = m->at.line,
                          .col = m->at.col,
                          .text = gr_arena_strdup(l->texts, m->text),
                          .whole = gr_arena_strdup(l->texts, whole)};
    free(whole);
    GR_PUSH(l->message, l->n, l->cap, x);
}

void gr_api_take_messages(graphrun_log *l, gr_diag *d)
{
    for (size_t i = 0; l && i < d->n; i++) take_message(l, &d->messages[i]);
    gr_diag_release(d);
    gr_diag_init(d);
}

/* ---- what is asked for -----------------------------------------------------------------------------------
 */

typedef struct refusal {
    graphrun_log *log;
    size_t size;
} refusal;

static void refuse_size(void *user)
{
    const refusal *r = user;
    gr_diag d;
    gr_diag_init(&d);
    gr_diag_error(
        &d, (gr_loc){0}, GR_E_INVALID,
        "graphrun_ask.size is %zu, of which this library (API %d) knows %zu: fill in sizeof(graphrun_ask)",
        r->size, GRAPHRUN_API, sizeof(graphrun_ask));
    gr_api_take_messages(r->log, &d);
}

graphrun_status gr_api_read_ask(graphrun_ask *out, const graphrun_ask *a, graphrun_log *l)
{
    memset(out, 0, sizeof(*out));
    if (a->size >= offsetof(graphrun_ask, set) && a->size <= sizeof(*out)) {
        memcpy(out, a, a->size);
        return GRAPHRUN_OK;
    }
    refusal r = {l, a->size};
    graphrun_status st = gr_api_do(refuse_size, &r);
    return st ? st : GRAPHRUN_E_INVALID;
}

gr_request gr_api_request(const graphrun_ask *a)
{
    return (gr_request){.graph = a->graph || !a->text ? a->graph : "graph",
                        .text = a->text,
                        .text_bytes = a->text_bytes,
                        .set = (const char **)(uintptr_t)a->set,
                        .n_set = a->n_set,
                        .ranks = a->ranks,
                        .device = a->device,
                        .hardware = a->hardware,
                        .policy = a->policy,
                        .budget = a->budget,
                        .host_budget = a->host_budget,
                        .steps = a->steps,
                        .has_steps = a->steps > 0,
                        .seed = a->seed,
                        .has_seed = a->has_seed,
                        .out = a->out,
                        .plan = a->plan,
                        .replan = a->replan,
                        .check_memory = a->check_memory};
}

/* ---- check -----------------------------------------------------------------------------------------------
 */

typedef struct checking {
    gr_request q;
    graphrun_log *log;
    gr_status st;
} checking;

static void check(void *user)
{
    checking *c = user;
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    c->st = gr_request_check(&g, &c->q, &d);
    gr_graph_free(g);
    gr_api_take_messages(c->log, &d);
}

graphrun_status graphrun_check(const graphrun_ask *given, graphrun_log *l)
{
    graphrun_ask a;
    graphrun_status st = gr_api_read_ask(&a, given, l);
    checking *c = st ? NULL : calloc(1, sizeof(*c));
    if (!c) return st ? st : GRAPHRUN_E_NOMEM;
    *c = (checking){.q = gr_api_request(&a), .log = l};
    st = gr_api_do(check, c);
    if (st) return st;
    st = (graphrun_status)c->st;
    free(c);
    return st;
}
