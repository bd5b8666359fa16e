/* ops/reward/caller.c: a thread that hands requests to a function, and its replies back. */
#include "ops/reward/caller.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/json.h"

typedef struct asked {
    uint64_t id;
    size_t about;
    bool answered; /* or given up: there is no reply to come */
} asked;

typedef struct asked_list {
    asked *of;
    size_t n, cap;
} asked_list;

struct gr_caller {
    gr_caller_config cfg;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool over;
    json_t *queue;     /* requests that the function has not had */
    asked_list queued; /* those of them that want a reply */
    gr_pool_reply *ready;
    size_t next, n, cap;
    size_t pending;
    gr_status failed; /* of the function, with its messages */
    gr_diag why;
};

/* ---- replies ---------------------------------------------------------------------------------------------
 */

static asked *find(asked_list *l, const json_t *id)
{
    for (size_t i = 0; json_is_integer(id) && i < l->n; i++)
        if ((json_int_t)l->of[i].id == json_integer_value(id) && !l->of[i].answered) return &l->of[i];
    return NULL;
}

static void push(gr_caller *c, const gr_pool_reply *r)
{
    pthread_mutex_lock(&c->lock);
    if (c->next == c->n) c->next = c->n = 0;
    GR_PUSH(c->ready, c->n, c->cap, *r);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static gr_status bad_reply(const gr_caller *c, const char *why, gr_diag *d)
{
    return gr_diag_error(d, c->cfg.at, GR_E_FAILED, "the function '%s' gave %s", c->cfg.name, why);
}

static gr_status take_reply(gr_caller *c, asked_list *l, const json_t *reply, gr_diag *d)
{
    asked *a = find(l, json_object_get(reply, "id"));
    const json_t *error = json_object_get(reply, "error");
    char *why = NULL;
    if (!a) return bad_reply(c, "a reply whose 'id' is that of no message that waits for one", d);
    gr_pool_reply r = {.id = a->id};
    a->answered = true;
    if (error)
        r.error = gr_strdup(json_is_string(error) ? json_string_value(error) : "an error that is no text");
    else
        r.result = c->cfg.read(c->cfg.asker, a->about, reply, &why);
    if (r.error || r.result) {
        push(c, &r);
        return GR_OK;
    }
    char *text = gr_printf("a bad reply to message %" PRIu64 ": %s", a->id, why);
    gr_status st = bad_reply(c, text, d);
    free(text);
    free(why);
    return st;
}

static gr_status take_replies(gr_caller *c, asked_list *l, const gr_str *text, gr_diag *d)
{
    json_error_t error;
    json_t *list = json_loadb(text->len ? text->text : "", text->len, JSON_REJECT_DUPLICATES, &error);
    size_t left = 0;
    gr_status st = json_is_array(list) ? GR_OK : bad_reply(c, "no JSON list of replies", d);
    for (size_t i = 0; !st && i < json_array_size(list); i++)
        st = take_reply(c, l, json_array_get(list, i), d);
    for (size_t i = 0; i < l->n; i++) left += !l->of[i].answered;
    json_decref(list);
    if (st || !left) return st;
    char *why = gr_printf("no reply to %zu of %zu messages", left, l->n);
    st = bad_reply(c, why, d);
    free(why);
    return st;
}

/* ---- its thread ------------------------------------------------------------------------------------------
 */

static gr_status call(gr_caller *c, const json_t *requests, asked_list *l, gr_diag *d)
{
    gr_str replies = {0};
    char *text = json_dumps(requests, JSON_COMPACT);
    gr_status st = text ? c->cfg.answer(c->cfg.user, text, strlen(text), &replies, d)
                        : bad_reply(c, "nothing: its messages are nested too deep", d);
    if (!st) st = take_replies(c, l, &replies, d);
    gr_str_release(&replies);
    free(text);
    return st;
}

/* Under the lock. */
static json_t *take_queue(gr_caller *c, asked_list *l)
{
    json_t *requests = c->queue;
    *l = c->queued;
    c->queue = json_array();
    c->queued = (asked_list){0};
    return requests;
}

static void *work(void *user)
{
    gr_caller *c = user;
    pthread_mutex_lock(&c->lock);
    while (!c->over) {
        asked_list l;
        gr_diag d;
        if (!json_array_size(c->queue) || c->failed) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        json_t *requests = take_queue(c, &l);
        pthread_mutex_unlock(&c->lock);
        gr_diag_init(&d);
        gr_status st = call(c, requests, &l, &d);
        json_decref(requests);
        free(l.of);
        pthread_mutex_lock(&c->lock);
        gr_diag_release(&c->why);
        c->failed = st;
        c->why = d;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- who asks --------------------------------------------------------------------------------------------
 */

gr_status gr_caller_new(gr_caller **out, const gr_caller_config *cfg, gr_diag *d)
{
    gr_caller *c = gr_calloc(1, sizeof(*c));
    pthread_condattr_t clock;
    c->cfg = *cfg;
    c->queue = json_array();
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &clock);
    pthread_condattr_destroy(&clock);
    const int error = pthread_create(&c->thread, NULL, work, c);
    if (!error) {
        *out = c;
        return GR_OK;
    }
    json_decref(c->queue);
    free(c);
    return gr_diag_error(d, cfg->at, GR_E_NOMEM, "cannot start a thread: %s", strerror(error));
}

void gr_caller_free(gr_caller *c)
{
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->over = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    for (; c->next < c->n; c->next++) {
        if (c->ready[c->next].result) c->cfg.drop(c->ready[c->next].result);
        free(c->ready[c->next].error);
    }
    json_decref(c->queue);
    free(c->queued.of);
    free(c->ready);
    gr_diag_release(&c->why);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void gr_caller_submit(gr_caller *c, uint64_t id, size_t about, json_t *fields, bool wants_reply)
{
    json_t *request = json_copy(fields);
    json_object_set_new(request, "id", json_integer((json_int_t)id));
    pthread_mutex_lock(&c->lock);
    json_array_append_new(c->queue, request);
    if (wants_reply) {
        GR_PUSH(c->queued.of, c->queued.n, c->queued.cap, ((asked){.id = id, .about = about}));
        c->pending++;
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

size_t gr_caller_pending(gr_caller *c)
{
    pthread_mutex_lock(&c->lock);
    const size_t n = c->pending;
    pthread_mutex_unlock(&c->lock);
    return n;
}

static void await(gr_caller *c, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const long ns = until.tv_nsec + (timeout_ms % 1000) * 1000000L;
    until.tv_sec += timeout_ms / 1000 + ns / 1000000000L;
    until.tv_nsec = ns % 1000000000L;
    int error = 0;
    while (c->pending && c->next == c->n && !c->failed && timeout_ms && !error)
        error = timeout_ms < 0 ? pthread_cond_wait(&c->changed, &c->lock)
                               : pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

gr_status gr_caller_collect(gr_caller *c, int timeout_ms, gr_pool_reply *out, gr_diag *d)
{
    *out = (gr_pool_reply){0};
    pthread_mutex_lock(&c->lock);
    await(c, timeout_ms);
    gr_status st = c->failed;
    for (size_t i = 0; st && i < c->why.n; i++)
        gr_diag_error(d, c->why.messages[i].at, st, "%s", c->why.messages[i].text);
    if (!st && c->next < c->n) {
        *out = c->ready[c->next++];
        c->pending--;
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}
