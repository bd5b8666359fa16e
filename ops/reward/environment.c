/* ops/reward/environment.c: messages to an environment, its answers, and the record of these. */
#include "ops/reward/environment.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/reward/pool.h"
#include "runtime/base/json.h"
#include "runtime/base/signals.h"

enum {
    LINE_BYTES = 4 << 20,
    ID_BITS = 24,  /* of an id: the number of the conversation */
    CALLS_MS = 200 /* that calls are waited for without looking for a signal */
};

typedef struct conversation {
    uint64_t id;           /* of this try; 0: none is open */
    gr_pool_worker worker; /* who has it */
    uint32_t step, round, turn, attempt;
    bool runs;       /* a call waits for the model's turn */
    gr_answer *held; /* the session's end, which came meanwhile */
} conversation;

struct gr_environment {
    gr_environment_config cfg;
    gr_pool *pool;     /* who answers; or */
    gr_caller *caller; /* that; both NULL: replay, or calls */
    conversation *all; /* [conversations] */
    uint64_t tries;    /* ever */
    uint32_t step, round;
    struct {
        uint32_t step, trip;
    } now; /* of one that is timed */
    FILE *record;
    json_t *replay;    /* by key_of */
    gr_answer **ready; /* [next, n): of a replay, and of who is served */
    size_t next, n, cap;
    char *missing; /* the key that a replay lacks */
};

/* ---- answers ------------------------------------------------------------------------------------------ */

void gr_answer_free(gr_answer *a)
{
    if (!a) return;
    json_decref(a->messages);
    json_decref(a->tools);
    json_decref(a->text);
    free(a->ids.id);
    free(a->metrics);
    free(a->error);
    free(a);
}

static void drop_answer(void *result)
{
    gr_answer_free(result);
}

static char *take_number(const json_t *v, const char *what, double *out)
{
    if (!v) return NULL;
    if (!json_is_number(v)) return gr_printf("%s is %s; a number is wanted", what, gr_json_kind(v));
    *out = json_number_value(v);
    if (gr_json_fits_float(*out)) return NULL;
    return gr_printf("%s is %g, more than a 32-bit float can hold (3.4e38)", what, *out);
}

static char *take_metrics(gr_answer *a, const json_t *v, const char *const *names, size_t n)
{
    char *why = NULL;
    if (v && !json_is_object(v)) return gr_printf("'metrics' is %s; an object is wanted", gr_json_kind(v));
    for (size_t i = 0; i < n && !why; i++) {
        char *what = gr_printf("'%s' of 'metrics'", names[i]);
        why = take_number(json_object_get(v, names[i]), what, &a->metrics[i]);
        free(what);
    }
    return why;
}

static char *take_messages(gr_answer *a, json_t *v)
{
    if (!v) return NULL;
    if (!json_is_array(v)) return gr_printf("'messages' is %s; a list is wanted", gr_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_object_get(json_array_get(v, i), "role")))
            return gr_printf("message %zu, counted from 0, is no object with a 'role'", i);
    if (json_array_size(v)) a->messages = json_incref(v);
    return NULL;
}

static char *take_tools(gr_answer *a, json_t *v, gr_answer_to to)
{
    if (!v) return NULL;
    if (to != GR_ANSWER_START) return gr_strdup("'tools' answers a start alone: they stand in the prompt");
    if (!json_is_array(v)) return gr_printf("'tools' is %s; a list is wanted", gr_json_kind(v));
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_object(json_array_get(v, i)))
            return gr_printf("tool %zu, counted from 0, is %s; an object is wanted", i,
                             gr_json_kind(json_array_get(v, i)));
    a->tools = json_incref(v);
    return NULL;
}

static char *take_text(gr_answer *a, json_t *v)
{
    if (!v) return NULL;
    if (!json_is_string(v)) return gr_printf("'text' is %s; a text is wanted", gr_json_kind(v));
    if (json_string_length(v)) a->text = json_incref(v);
    return NULL;
}

static char *take_done(gr_answer *a, const json_t *v, gr_answer_to to)
{
    a->done = to == GR_ANSWER_SESSION;
    if (!v) return NULL;
    if (!json_is_boolean(v)) return gr_printf("'done' is %s; true or false is wanted", gr_json_kind(v));
    if (a->done && !json_is_true(v)) return gr_strdup("a session's answer is its end: 'done' is true");
    a->done = json_is_true(v);
    return to == GR_ANSWER_START && a->done ? gr_strdup("'done' answers no start: the model has had no turn")
                                            : NULL;
}

/* A misspelt 'reward' would be a reward of 0. */
static char *check_keys(const json_t *reply)
{
    static const char *const known[] = {"id", "text", "messages", "tools", "done", "reward", "metrics"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)reply, key, v)
    {
        bool is = false;
        for (size_t i = 0; i < GR_LEN(known); i++) is = is || !strcmp(known[i], key);
        if (!is)
            return gr_printf("unknown key '%s'; it has id, text, messages, tools, done, reward, metrics",
                             key);
    }
    return NULL;
}

gr_answer *gr_answer_read(const json_t *reply, gr_answer_to to, const char *const *metrics, size_t n_metrics,
                          char **why)
{
    gr_answer *a = gr_calloc(1, sizeof(*a));
    a->metrics = gr_calloc(n_metrics + 1, sizeof(*a->metrics)); /* + 1: never of size 0 */
    *why = check_keys(reply);
    if (!*why && gr_json_has_nul(reply)) *why = gr_strdup("it holds the character \\u0000");
    if (!*why) *why = take_messages(a, json_object_get(reply, "messages"));
    if (!*why) *why = take_tools(a, json_object_get(reply, "tools"), to);
    if (!*why) *why = take_text(a, json_object_get(reply, "text"));
    if (!*why && a->text && a->messages)
        *why = gr_strdup("it has 'text' and 'messages', of which one is wanted");
    if (!*why && to == GR_ANSWER_SESSION && (a->text || a->messages))
        *why = gr_strdup("what a harness says goes into its calls: its answer ends the session");
    if (!*why) *why = take_done(a, json_object_get(reply, "done"), to);
    if (!*why && to == GR_ANSWER_START && json_object_get(reply, "reward"))
        *why = gr_strdup("'reward' answers no start: the model has had no turn");
    if (!*why) *why = take_number(json_object_get(reply, "reward"), "'reward'", &a->reward);
    if (!*why) *why = take_metrics(a, json_object_get(reply, "metrics"), metrics, n_metrics);
    if (!*why) return a;
    gr_answer_free(a);
    return NULL;
}

/* ---- the record --------------------------------------------------------------------------------------- */

/* Which answer it is, to message `turn`: the same in a run that repeats this one. */
static char *key_of(const gr_environment *e, uint32_t number, uint32_t turn)
{
    const conversation *c = &e->all[number];
    return gr_printf("%u.%u.%u.%u.%u", c->step, c->round, number, c->attempt, turn);
}

static json_t *json_of_call(const gr_answer *a)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < a->ids.n; i++) json_array_append_new(ids, json_integer(a->ids.id[i]));
    return json_pack("{s:o, s:I}", "ids", ids, "max_tokens", (json_int_t)a->max_tokens);
}

/* What a record has beside what processes answer. */
static void take_recorded(gr_answer *a, const json_t *is)
{
    const json_t *call = json_object_get(is, "call"), *ids = json_object_get(call, "ids");
    a->is_call = call;
    for (size_t i = 0; i < json_array_size(ids); i++)
        GR_PUSH(a->ids.id, a->ids.n, a->ids.cap, (int32_t)json_integer_value(json_array_get(ids, i)));
    a->max_tokens = (uint32_t)json_integer_value(json_object_get(call, "max_tokens"));
    a->refused = (gr_serve_end_reason)json_integer_value(json_object_get(is, "refused"));
}

static json_t *json_of(const gr_answer *a, const gr_environment_config *c)
{
    json_t *o = json_object(), *metrics = json_object();
    if (a->error) json_object_set_new(o, "error", gr_json_string(a->error, strlen(a->error)));
    if (a->late) json_object_set_new(o, "late", json_true());
    if (a->messages) json_object_set(o, "messages", a->messages);
    if (a->tools) json_object_set(o, "tools", a->tools);
    if (a->text) json_object_set(o, "text", a->text);
    if (a->is_call) json_object_set_new(o, "call", json_of_call(a));
    if (a->refused) json_object_set_new(o, "refused", json_integer(a->refused));
    if (a->done) json_object_set_new(o, "done", json_true());
    if (a->reward != 0) json_object_set_new(o, "reward", json_real(a->reward));
    for (size_t i = 0; a->metrics && i < c->n_metrics; i++)
        if (a->metrics[i] != 0) json_object_set_new(metrics, c->metrics[i], json_real(a->metrics[i]));
    json_object_set_new(o, "metrics", metrics);
    return o;
}

static gr_status write_record(gr_environment *e, const gr_answer *a, gr_diag *d)
{
    if (!e->record) return GR_OK;
    char *key = key_of(e, a->number, e->all[a->number].turn);
    json_t *line = json_pack("{s:s, s:o}", "answer", key, "is", json_of(a, &e->cfg));
    if (e->cfg.timed) json_object_set_new(line, "at", json_pack("[i, i]", e->now.step, e->now.trip));
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17));
    const bool bad = !text || fprintf(e->record, "%s\n", text) < 0 || fflush(e->record);
    free(text);
    free(key);
    json_decref(line);
    return bad ? gr_diag_error(d, e->cfg.at, GR_E_IO, "cannot write '%s': %s", e->cfg.record, strerror(errno))
               : GR_OK;
}

/* A run that went on from behind an iteration took other answers from there on. */
static void forget_behind(gr_environment *e, json_int_t step)
{
    const char *key;
    json_t *one;
    void *next;
    json_object_foreach_safe(e->replay, next, key, one)
    {
        if (json_integer_value(json_array_get(json_object_get(one, "at"), 0)) > step)
            json_object_del(e->replay, key);
    }
}

gr_status gr_environment_went_on(gr_environment *e, uint32_t step, gr_diag *d)
{
    if (!e->record || (fprintf(e->record, "{\"behind\":%u}\n", step) >= 0 && !fflush(e->record)))
        return GR_OK;
    return gr_diag_error(d, e->cfg.at, GR_E_IO, "cannot write '%s': %s", e->cfg.record, strerror(errno));
}

static gr_status read_record(gr_environment *e, gr_diag *d)
{
    FILE *f = fopen(e->cfg.replay, "r");
    char *line = NULL;
    size_t cap = 0;
    unsigned at = 0;
    gr_status st = GR_OK;
    if (!f)
        return gr_diag_error(d, e->cfg.at, GR_E_IO, "cannot read '%s': %s", e->cfg.replay, strerror(errno));
    e->replay = json_object();
    for (ssize_t n; !st && (n = getline(&line, &cap, f)) >= 0;) {
        json_t *one = json_loadb(line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
        const char *key = json_string_value(json_object_get(one, "answer"));
        at++;
        if (key && json_is_object(json_object_get(one, "is"))) {
            json_object_set_new(one, "line", json_integer(at));
            json_object_set(e->replay, key, one);
        } else if (json_is_integer(json_object_get(one, "behind"))) {
            forget_behind(e, json_integer_value(json_object_get(one, "behind")));
        } else
            st = gr_diag_error(d, (gr_loc){e->cfg.replay, at, 1}, GR_E_INVALID,
                               "no answer that 'record' has written");
        json_decref(one);
    }
    free(line);
    fclose(f);
    return st;
}

static gr_answer *read_recorded(const gr_environment *e, const json_t *is, gr_answer_to to, char **why)
{
    const bool served =
        json_object_get(is, "call") || (json_is_true(json_object_get(is, "done")) && to == GR_ANSWER_START);
    json_t *told = json_copy((json_t *)(uintptr_t)is);
    json_object_del(told, "call");
    json_object_del(told, "refused");
    gr_answer *a =
        gr_answer_read(told, served ? GR_ANSWER_SESSION : to, e->cfg.metrics, e->cfg.n_metrics, why);
    if (a) take_recorded(a, is);
    if (a && a->is_call) a->done = false;
    json_decref(told);
    return a;
}

static void add_ready(gr_environment *e, gr_answer *a)
{
    if (e->next == e->n) e->next = e->n = 0;
    GR_PUSH(e->ready, e->n, e->cap, a);
}

/* The answer of the file to the message that conversation `number` is at. */
static void replay(gr_environment *e, uint32_t number, gr_answer_to to)
{
    char *key = key_of(e, number, e->all[number].turn), *why = NULL;
    const json_t *line = json_object_get(e->replay, key), *is = json_object_get(line, "is"),
                 *error = json_object_get(is, "error");
    gr_answer *a = is && !error ? read_recorded(e, is, to, &why) : NULL;
    if (!a && is) {
        a = gr_calloc(1, sizeof(*a));
        a->error = why ? why : gr_strdup(json_is_string(error) ? json_string_value(error) : "");
        a->late = json_is_true(json_object_get(is, "late"));
    }
    if (a) {
        const json_t *at = json_object_get(line, "at");
        a->number = number;
        a->due.step = (uint32_t)json_integer_value(json_array_get(at, 0));
        a->due.trip = (uint32_t)json_integer_value(json_array_get(at, 1));
        a->due.line = (uint32_t)json_integer_value(json_object_get(line, "line"));
        add_ready(e, a);
        free(key);
    } else if (e->missing) {
        free(key);
    } else {
        e->missing = key;
    }
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static void *read_answer(void *user, size_t about, const json_t *reply, char **why)
{
    const gr_environment *e = user;
    return gr_answer_read(reply, (gr_answer_to)about, e->cfg.metrics, e->cfg.n_metrics, why);
}

static gr_status start_again(void *user, gr_diag *d)
{
    const gr_environment *e = user;
    return e->cfg.again(e->cfg.user, d);
}

static gr_status open_pool(gr_environment *e, gr_diag *d)
{
    const gr_environment_config *c = &e->cfg;
    const gr_pool_config pool = {.command = c->command,
                                 .who = "environment",
                                 .at = c->at,
                                 .n = c->workers,
                                 .depth = c->in_flight,
                                 .timeout_ms = c->timeout_ms,
                                 .line_bytes = LINE_BYTES,
                                 .keeps_state = true,
                                 .read = read_answer,
                                 .drop = drop_answer,
                                 .again = c->again ? start_again : NULL,
                                 .user = e};
    return gr_pool_new(&e->pool, &pool, d);
}

static gr_status open_caller(gr_environment *e, gr_diag *d)
{
    const gr_environment_config *c = &e->cfg;
    const gr_caller_config caller = {.answer = c->answer,
                                     .user = c->answer_user,
                                     .name = c->answer_name,
                                     .at = c->at,
                                     .read = read_answer,
                                     .drop = drop_answer,
                                     .asker = e};
    return gr_caller_new(&e->caller, &caller, d);
}

gr_status gr_environment_new(gr_environment **out, const gr_environment_config *c, gr_diag *d)
{
    gr_environment *e = gr_calloc(1, sizeof(*e));
    e->cfg = *c;
    e->all = gr_calloc(c->conversations, sizeof(*e->all));
    gr_status st = c->replay   ? read_record(e, d)
                   : c->answer ? open_caller(e, d)
                   : c->open   ? GR_OK
                               : open_pool(e, d);
    if (!st && c->record && !(e->record = fopen(c->record, "ae")))
        st = gr_diag_error(d, c->at, GR_E_IO, "cannot write '%s': %s", c->record, strerror(errno));
    if (st)
        gr_environment_free(e);
    else
        *out = e;
    return st;
}

void gr_environment_free(gr_environment *e)
{
    if (!e) return;
    gr_pool_free(e->pool);
    gr_caller_free(e->caller);
    if (e->record) fclose(e->record);
    json_decref(e->replay);
    for (; e->next < e->n; e->next++) gr_answer_free(e->ready[e->next]);
    for (uint32_t i = 0; i < e->cfg.conversations; i++) gr_answer_free(e->all[i].held);
    free(e->ready);
    free(e->missing);
    free(e->all);
    free(e);
}

void gr_environment_at(gr_environment *e, uint32_t step, uint32_t round)
{
    e->step = step;
    e->round = round;
}

void gr_environment_clock(gr_environment *e, uint32_t step, uint32_t trip)
{
    e->now.step = step;
    e->now.trip = trip;
}

bool gr_environment_replays(const gr_environment *e)
{
    return e->replay;
}

/* The tools with which the conversation began. */
static void remind(gr_environment *e, uint32_t number)
{
    char *key = key_of(e, number, 0);
    json_t *tools = json_object_get(json_object_get(json_object_get(e->replay, key), "is"), "tools");
    free(key);
    if (!tools) return;
    gr_answer *a = gr_calloc(1, sizeof(*a));
    *a = (gr_answer){.number = number, .reminds = true, .tools = json_incref(tools)};
    add_ready(e, a);
}

void gr_environment_go_on(gr_environment *e, uint32_t number, uint32_t attempt, uint32_t turns, bool asked)
{
    e->all[number] = (conversation){.id = ++e->tries << ID_BITS | number,
                                    .step = e->step,
                                    .round = e->round,
                                    .attempt = attempt,
                                    .turn = turns};
    if (turns || !asked) remind(e, number);
    if (asked) replay(e, number, turns ? GR_ANSWER_STEP : GR_ANSWER_START);
}

gr_status gr_environment_listen(gr_environment *e, gr_diag *d)
{
    return e->cfg.serve ? gr_serve_listen(e->cfg.serve, d) : GR_OK;
}

void gr_environment_rest(gr_environment *e)
{
    if (e->cfg.serve) gr_serve_rest(e->cfg.serve);
}

static void send(gr_environment *e, uint32_t number, gr_answer_to about, json_t *fields)
{
    const conversation *c = &e->all[number];
    char what[32];
    if (e->caller) {
        gr_caller_submit(e->caller, c->id, about, fields, true);
        return;
    }
    if (gr_environment_replays(e)) {
        replay(e, number, about);
        return;
    }
    snprintf(what, sizeof(what), "sequence %" PRIu32, number);
    gr_pool_submit(e->pool, c->id, what, about, fields, c->worker);
}

void gr_environment_start(gr_environment *e, uint32_t number, uint32_t attempt, const json_t *fields)
{
    json_t *message = json_pack("{s:s}", "type", "start");
    gr_environment_end(e, number);
    e->all[number] = (conversation){
        .id = ++e->tries << ID_BITS | number, .step = e->step, .round = e->round, .attempt = attempt};
    if (fields) json_object_update(message, (json_t *)(uintptr_t)fields);
    if (e->cfg.serve) {
        json_t *told = gr_serve_begin(e->cfg.serve, number, e->all[number].id);
        json_object_update(message, told);
        json_decref(told);
    }
    if (!e->cfg.open) send(e, number, e->cfg.serve ? GR_ANSWER_SESSION : GR_ANSWER_START, message);
    json_decref(message);
}

void gr_environment_step(gr_environment *e, uint32_t number, uint32_t turn, json_t *fields)
{
    e->all[number].turn = turn + 1; /* 0: the start */
    json_object_set_new(fields, "type", json_string("step"));
    json_object_set_new(fields, "turn", json_integer(turn));
    send(e, number, GR_ANSWER_STEP, fields);
}

void gr_environment_said(gr_environment *e, uint32_t number, uint32_t turn, const gr_serve_said *said)
{
    conversation *c = &e->all[number];
    c->turn = turn + 1;
    gr_serve_answer(e->cfg.serve, number, said);
    if (e->pool) gr_pool_alive(e->pool, c->id, false);
    c->runs = false;
    if (c->held) add_ready(e, c->held);
    c->held = NULL;
}

static void tell_end(gr_environment *e, uint64_t id, gr_pool_worker worker)
{
    json_t *fields = json_pack("{s:s}", "type", "end");
    if (e->caller)
        gr_caller_submit(e->caller, id, 0, fields, false);
    else
        gr_pool_tell(e->pool, id, fields, worker);
    json_decref(fields);
}

/* Answers of a replay that nobody waits for any more. */
static void drop_ready(gr_environment *e, uint32_t number)
{
    size_t n = e->next;
    for (size_t i = e->next; i < e->n; i++)
        if (e->ready[i]->number == number)
            gr_answer_free(e->ready[i]);
        else
            e->ready[n++] = e->ready[i];
    e->n = n;
}

void gr_environment_end(gr_environment *e, uint32_t number)
{
    conversation *c = &e->all[number];
    if (c->id && (c->worker.number || e->caller)) tell_end(e, c->id, c->worker);
    if (c->id && e->cfg.serve) gr_serve_end(e->cfg.serve, number, "the session has ended");
    gr_answer_free(c->held);
    drop_ready(e, number);
    *c = (conversation){0};
}

size_t gr_environment_pending(const gr_environment *e)
{
    if (e->caller) return gr_caller_pending(e->caller);
    if (e->cfg.open) return 1; /* whoever may call */
    return (e->pool ? gr_pool_pending(e->pool) : e->missing != NULL) + e->n - e->next;
}

static bool is_due(const gr_environment *e, const gr_answer *a)
{
    if (a->due.step != e->now.step) return a->due.step < e->now.step;
    return a->due.trip <= e->now.trip;
}

/* The first of those that are due, in the order in which they were taken. */
static gr_answer *take_due(gr_environment *e)
{
    size_t at = e->n;
    for (size_t i = e->next; i < e->n; i++)
        if (is_due(e, e->ready[i]) && (at == e->n || e->ready[i]->due.line < e->ready[at]->due.line)) at = i;
    if (at == e->n) return NULL;
    gr_answer *a = e->ready[at];
    e->ready[at] = e->ready[e->next++];
    return a;
}

/* Of one that is timed, what was never taken is not in the file: an answer is missing only where nothing else
 * is to come. */
static gr_status next_replayed(gr_environment *e, int timeout_ms, gr_answer **out, gr_diag *d)
{
    *out = e->next == e->n ? NULL : e->cfg.timed ? take_due(e) : e->ready[e->next++];
    const bool later = e->cfg.timed && (!timeout_ms || e->next < e->n);
    if (*out || !e->missing || later) return GR_OK;
    return gr_diag_error(d, e->cfg.at, GR_E_FAILED,
                         "'%s' has no answer %s (iteration.round.sequence.try.message): it was recorded by "
                         "another run",
                         e->cfg.replay, e->missing);
}

static gr_status collect_any(gr_environment *e, int timeout_ms, gr_pool_reply *reply, gr_diag *d)
{
    return e->caller ? gr_caller_collect(e->caller, timeout_ms, reply, d)
                     : gr_pool_collect(e->pool, timeout_ms, reply, d);
}

/* One that somebody waits for; whoever has a conversation that is over by now is told so. */
static gr_status collect(gr_environment *e, int timeout_ms, gr_pool_reply *reply, gr_diag *d)
{
    gr_status st = collect_any(e, timeout_ms, reply, d);
    while (!st && (reply->result || reply->error) &&
           e->all[reply->id & ((1u << ID_BITS) - 1)].id != reply->id) {
        if (reply->worker.number || e->caller) tell_end(e, reply->id, reply->worker);
        drop_answer(reply->result);
        free(reply->error);
        if (!gr_environment_pending(e)) timeout_ms = 0;
        st = collect_any(e, timeout_ms, reply, d);
    }
    return st;
}

static gr_answer *answer_of(gr_environment *e, const gr_pool_reply *reply)
{
    gr_answer *a = reply->result ? reply->result : gr_calloc(1, sizeof(*a));
    a->number = (uint32_t)(reply->id & ((1u << ID_BITS) - 1));
    a->error = reply->error;
    a->late = reply->late;
    if (reply->worker.number) e->all[a->number].worker = reply->worker;
    return a;
}

/* A call that asks for a turn, as an answer. */
static gr_answer *answer_of_call(gr_environment *e, const gr_serve_turn *t)
{
    gr_answer *a = gr_calloc(1, sizeof(*a));
    conversation *c = &e->all[t->number];
    *a = (gr_answer){.number = t->number, .is_call = true, .max_tokens = t->max_tokens};
    for (size_t i = 0; i < t->n; i++) GR_PUSH(a->ids.id, a->ids.n, a->ids.cap, t->ids[i]);
    if (e->pool) gr_pool_alive(e->pool, c->id, true);
    c->runs = true;
    return a;
}

/* A session that its callers are done with. */
static gr_answer *answer_of_end(const gr_environment *e)
{
    uint32_t number;
    if (!e->cfg.open || !gr_serve_over(e->cfg.serve, &number)) return NULL;
    gr_answer *a = gr_calloc(1, sizeof(*a));
    *a = (gr_answer){.number = number, .done = true};
    a->metrics = gr_calloc(e->cfg.n_metrics + 1, sizeof(*a->metrics)); /* + 1: never of size 0 */
    return a;
}

static gr_status next_ready(gr_environment *e, gr_answer **out, gr_diag *d)
{
    gr_serve_turn turn;
    bool found = false;
    *out = e->next < e->n ? e->ready[e->next++] : NULL;
    if (*out || !e->cfg.serve) return GR_OK;
    if ((*out = answer_of_end(e))) return GR_OK;
    const gr_status st = gr_serve_next(e->cfg.serve, &turn, &found, d);
    if (found) *out = answer_of_call(e, &turn);
    if (!found && !st) *out = answer_of_end(e); /* a call may want a row that another session has */
    if (e->pool) gr_pool_also(e->pool, gr_serve_fd(e->cfg.serve));
    return st;
}

/* Nobody is told anything: calls are all that comes. */
static gr_status next_of_calls(gr_environment *e, int timeout_ms, gr_answer **out, gr_diag *d)
{
    struct pollfd calls = {gr_serve_fd(e->cfg.serve), POLLIN, 0};
    const int wait = timeout_ms < 0 ? CALLS_MS : GR_MIN(timeout_ms, (int)CALLS_MS);
    if (!wait) return GR_OK;
    poll(&calls, 1, wait);
    return next_ready(e, out, d);
}

/* The end of a session whose call still runs is told behind the turn. */
static bool hold(gr_environment *e, gr_answer *a)
{
    conversation *c = &e->all[a->number];
    if (!c->runs) return false;
    c->held = a;
    return true;
}

static gr_status next_of_pool(gr_environment *e, int timeout_ms, gr_answer **out, gr_diag *d)
{
    gr_pool_reply reply;
    const gr_status st = collect(e, timeout_ms, &reply, d);
    if (st || (!reply.result && !reply.error)) return st;
    gr_answer *a = answer_of(e, &reply);
    if (!hold(e, a)) *out = a;
    return GR_OK;
}

gr_status gr_environment_next(gr_environment *e, int timeout_ms, gr_answer **out, gr_diag *d)
{
    *out = NULL;
    if (gr_environment_replays(e)) return next_replayed(e, timeout_ms, out, d);
    if (e->cfg.open && gr_signals_stop()) gr_serve_finish(e->cfg.serve);
    gr_status st = next_ready(e, out, d);
    if (!st && !*out) st = (e->cfg.open ? next_of_calls : next_of_pool)(e, timeout_ms, out, d);
    if (st || !*out) return st;
    if ((*out)->done && e->cfg.serve) (*out)->refused = gr_serve_refused(e->cfg.serve, (*out)->number);
    return e->cfg.timed ? GR_OK : write_record(e, *out, d);
}

gr_status gr_environment_taken(gr_environment *e, const gr_answer *a, gr_diag *d)
{
    return e->cfg.timed ? write_record(e, a, d) : GR_OK;
}
