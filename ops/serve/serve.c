/* ops/serve/serve.c: see its header. */
#include "ops/serve/serve.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ops/serve/reply.h"
#include "runtime/base/json.h"

enum { NOT_OPEN = 0 }; /* calls are numbered from 1 */

typedef struct session {
    uint64_t id;      /* 0: it has not begun, or has ended */
    gr_ids ids;       /* all that it holds; while a call is open, what that one is about */
    size_t had;       /* of these, those that its row has */
    json_t *messages; /* of the calls so far and the replies, as gr_serve_call has them; NULL: unknown */
    json_t *variables;
    uint32_t turns;
    gr_serve_end_reason refused;
    json_int_t open;      /* the number of the call that waits for its turn; NOT_OPEN */
    gr_serve_call call;   /* the last one */
    json_t *body, *reply; /* of it; reply NULL: it is open */
    /* This and the next, where callers begin sessions. Without a name it has one call. */
    char *name;
    bool taken, leaves; /* somebody's; on its way out of its row */
    uint64_t used;      /* the later, the larger */
} session;

/* Sessions of callers: more than there are rows. */
typedef struct visitors {
    json_t *waiting;  /* calls that wait for a row, as the wire has them */
    session *resting; /* sessions with a name and no row, in the order in which they left theirs */
    size_t n_resting;
    uint32_t *over; /* [sessions] rows that sessions have left */
    uint32_t n_over;
    uint64_t uses;
    bool closing;
} visitors;

struct gr_serve {
    gr_serve_config cfg;
    gr_wire *wire; /* NULL: it rests */
    session *all;
    visitors of; /* where callers begin sessions */
};

/* ---- sessions -------------------------------------------------------------------------------------------
 */

gr_serve *gr_serve_new(const gr_serve_config *c)
{
    gr_serve *s = gr_calloc(1, sizeof(*s));
    s->cfg = *c;
    s->all = gr_calloc(c->sessions, sizeof(*s->all));
    if (!c->open) return s;
    s->of.waiting = json_array();
    s->of.resting = gr_calloc(GR_SERVE_REMEMBERED, sizeof(*s->of.resting));
    s->of.over = gr_calloc(c->sessions, sizeof(*s->of.over));
    return s;
}

static void release(session *x)
{
    gr_serve_call_release(&x->call);
    json_decref(x->messages);
    json_decref(x->variables);
    json_decref(x->body);
    json_decref(x->reply);
    free(x->ids.id);
    free(x->name);
    *x = (session){.open = NOT_OPEN};
}

void gr_serve_free(gr_serve *s)
{
    if (!s) return;
    gr_serve_rest(s);
    for (uint32_t i = 0; i < s->cfg.sessions; i++) release(&s->all[i]);
    for (size_t i = 0; i < s->of.n_resting; i++) release(&s->of.resting[i]);
    json_decref(s->of.waiting);
    free(s->of.resting);
    free(s->of.over);
    free(s->all);
    free(s);
}

void gr_serve_temperature(gr_serve *s, double temperature)
{
    s->cfg.rules.temperature = temperature;
}

gr_status gr_serve_listen(gr_serve *s, gr_diag *d)
{
    return s->wire ? GR_OK : gr_wire_open(&s->wire, &s->cfg.wire, d);
}

void gr_serve_rest(gr_serve *s)
{
    gr_wire_close(s->wire);
    s->wire = NULL;
}

int gr_serve_fd(const gr_serve *s)
{
    return s->wire ? gr_wire_fd(s->wire) : -1;
}

static void answer(gr_serve *s, json_int_t call, unsigned status, json_t *reply)
{
    if (s->wire) gr_wire_answer(s->wire, call, status, reply);
    json_decref(reply);
}

char *gr_serve_url(const gr_serve *s)
{
    const char *host = s->cfg.wire.host, *open = strchr(host, ':') ? "[" : "", *close = *open ? "]" : "";
    return gr_printf("http://%s%s%s:%u", open, host, close, s->wire ? gr_wire_port(s->wire) : 0);
}

/* Out of its row, which is the next one's. */
static void leave(gr_serve *s, session *x)
{
    x->leaves = true;
    s->of.over[s->of.n_over++] = (uint32_t)(x - s->all);
}

json_t *gr_serve_begin(gr_serve *s, uint32_t number, uint64_t id)
{
    session *x = &s->all[number];
    release(x);
    x->id = id;
    if (s->of.closing) leave(s, x);
    char *url = gr_serve_url(s);
    json_t *told =
        json_pack("{s:o, s:s, s:s, s:o}", "url", json_sprintf("%s/session/%" PRIu64 "/v1", url, id), "token",
                  s->cfg.wire.token, "model", s->cfg.rules.model, "session", json_sprintf("%" PRIu64, id));
    free(url);
    return told;
}

void gr_serve_end(gr_serve *s, uint32_t number, const char *why)
{
    session *x = &s->all[number];
    if (x->open != NOT_OPEN) answer(s, x->open, 410, gr_reply_error("session_ended", why));
    const gr_serve_end_reason refused = x->refused;
    release(x);
    x->refused = refused;
}

gr_serve_end_reason gr_serve_refused(const gr_serve *s, uint32_t number)
{
    return s->all[number].refused;
}

/* ---- what of a call is new ------------------------------------------------------------------------------
 */

typedef struct refusal {
    unsigned status;
    const char *code;
    char *why; /* NULL: none */
} refusal;

static refusal bad(const char *code, char *why)
{
    return (refusal){400, code, why};
}

/* Of the session's ids, as far as given ones go: they must be all of them. */
static refusal check_prefix(const session *x, const int32_t *ids, size_t n, const char *what)
{
    const size_t both = GR_MIN(n, x->ids.n);
    for (size_t i = 0; i < both; i++)
        if (ids[i] != x->ids.id[i])
            return bad("not_a_continuation",
                       gr_printf("%s: token %zu, counted from 0, is %d, and the session has %d there", what,
                                 i, ids[i], x->ids.id[i]));
    if (n >= x->ids.n) return (refusal){0};
    return bad(
        "not_a_continuation",
        gr_printf("%s: %zu tokens, and the session has %zu, which every call continues", what, n, x->ids.n));
}

static refusal new_of_tokens(session *x, const gr_serve_call *c)
{
    const refusal r = check_prefix(x, c->ids.id, c->ids.n, "'token_ids'");
    for (size_t i = x->ids.n; !r.why && i < c->ids.n; i++)
        GR_PUSH(x->ids.id, x->ids.n, x->ids.cap, c->ids.id[i]);
    return r;
}

static refusal rendered(gr_status st, const gr_diag *d)
{
    if (!st) return (refusal){0};
    return bad("messages", gr_strdup(d->n ? d->messages[d->n - 1].text : "they cannot be made into tokens"));
}

static gr_chat_options options_of(const gr_serve *s, const json_t *variables)
{
    return (gr_chat_options){.add_generation_prompt = true, .date = s->cfg.date, .variables = variables};
}

static refusal first_messages(const gr_serve *s, session *x, const gr_serve_call *c)
{
    const gr_chat_options o = options_of(s, c->variables);
    gr_diag d;
    gr_diag_init(&d);
    refusal r = rendered(gr_chat_encode(s->cfg.chat, s->cfg.tokenizer, c->messages, &o, &x->ids, &d), &d);
    gr_diag_release(&d);
    for (size_t i = 0; !r.why && c->has_ids && i < c->ids.n; i++)
        if (i >= x->ids.n || c->ids.id[i] != x->ids.id[i])
            r = bad(
                "not_a_continuation",
                gr_printf("'required_prefix_token_ids': the messages do not begin with it, from token %zu on",
                          i));
    return r;
}

/* The index behind the last message of the assistant. */
static size_t behind_assistant(const json_t *messages)
{
    size_t n = json_array_size(messages);
    while (n) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, n - 1), "role"));
        if (role && !strcmp(role, "assistant")) return n;
        n--;
    }
    return 0;
}

/* Ids that a message of the assistant carries along; false: it does not. */
static bool carried_ids(const json_t *message, gr_ids *out)
{
    static const char *const keys[] = {"prompt_token_ids", "generation_token_ids"};
    for (size_t k = 0; k < GR_LEN(keys); k++) {
        const json_t *list = json_object_get(message, keys[k]);
        if (!json_is_array(list)) return false;
        for (size_t i = 0; i < json_array_size(list); i++)
            GR_PUSH(out->id, out->n, out->cap, (int32_t)json_integer_value(json_array_get(list, i)));
    }
    return true;
}

static refusal check_messages(const session *x, const json_t *messages)
{
    const size_t n = json_array_size(x->messages);
    if (!x->messages)
        return bad("not_a_continuation",
                   gr_strdup("the session's earlier calls were of token ids: send those, or "
                             "'required_prefix_token_ids'"));
    for (size_t i = 0; i < n; i++)
        if (!gr_serve_same_message(json_array_get(x->messages, i), json_array_get(messages, i)))
            return bad(
                "not_a_continuation",
                gr_printf("message %zu, counted from 0, is not that of the calls before and of what the "
                          "model said: each "
                          "call continues its session. Or send the ids so far as 'required_prefix_token_ids'",
                          i));
    return (refusal){0};
}

/* Whether the messages stand for what the session holds, and how many of them do. */
static refusal find_known(const session *x, const gr_serve_call *c, size_t *known)
{
    gr_ids carried = {0};
    refusal r;
    *known = behind_assistant(c->messages);
    if (c->has_ids)
        r = check_prefix(x, c->ids.id, c->ids.n, "'required_prefix_token_ids'");
    else if (*known && carried_ids(json_array_get(c->messages, *known - 1), &carried))
        r = check_prefix(x, carried.id, carried.n, "'prompt_token_ids' and 'generation_token_ids'");
    else
        r = check_messages(x, c->messages);
    if (!r.why && !c->has_ids && !carried.id) *known = json_array_size(x->messages);
    const size_t given = c->has_ids ? c->ids.n : carried.n;
    if (!r.why && given > x->ids.n)
        r = bad("not_a_continuation",
                gr_printf("%zu ids are said to stand before the new messages, and the session has %zu", given,
                          x->ids.n));
    free(carried.id);
    return r;
}

static bool same_variables(const session *x, const gr_serve_call *c)
{
    return x->variables ? json_equal(x->variables, c->variables) : !c->variables;
}

/* The function that the last of the first n messages calls; NULL: none. */
static const char *called_last(const json_t *messages, size_t n)
{
    const json_t *calls = n ? json_object_get(json_array_get(messages, n - 1), "tool_calls") : NULL,
                 *call = json_array_get(calls, json_array_size(calls) - 1),
                 *f = json_object_get(call, "function");
    return json_string_value(json_object_get(f ? f : call, "name"));
}

static refusal more_messages(const gr_serve *s, session *x, const gr_serve_call *c)
{
    size_t known = 0;
    refusal r = find_known(x, c, &known);
    if (r.why) return r;
    if (known == json_array_size(c->messages))
        return bad("nothing_new",
                   gr_strdup("the messages end with what the model said: there is nothing to answer"));
    if (x->messages && !same_variables(x, c))
        return bad("tools_changed",
                   gr_strdup("'tools' and 'chat_template_kwargs' stay as the session's first call has them"));
    json_t *more = json_array();
    for (size_t i = known; i < json_array_size(c->messages); i++)
        json_array_append(more, json_array_get(c->messages, i));
    gr_chat_options o = options_of(s, c->variables);
    o.called = called_last(c->messages, known);
    gr_diag d;
    gr_diag_init(&d);
    r = rendered(
        gr_chat_encode_more(s->cfg.chat, s->cfg.tokenizer, more, &o, x->ids.id[x->ids.n - 1], &x->ids, &d),
        &d);
    gr_diag_release(&d);
    json_decref(more);
    return r;
}

static refusal no_chat(const gr_serve *s)
{
    return bad("no_chat_template",
               gr_printf("messages need the checkpoint's chat template (%s); token ids can be sent to "
                         "/inference/v1/generate",
                         s->cfg.no_chat));
}

static refusal new_of_chat(const gr_serve *s, session *x, const gr_serve_call *c)
{
    if (!s->cfg.chat) return no_chat(s);
    return x->ids.n ? more_messages(s, x, c) : first_messages(s, x, c);
}

/* ---- calls that sample ----------------------------------------------------------------------------------
 */

static void remember(session *x, const gr_serve_call *c)
{
    if (c->kind == GR_CALL_CHAT && !x->turns) x->variables = json_incref(c->variables);
    json_decref(x->messages);
    x->messages = c->kind == GR_CALL_CHAT ? json_incref(c->messages) : NULL;
}

/* Add what is new to the session's ids; where it is refused, they are as before. */
static refusal accept(gr_serve *s, session *x, const gr_serve_call *c)
{
    const gr_serve_rules *rules = &s->cfg.rules;
    const size_t before = x->ids.n;
    if (x->turns == rules->turns) {
        x->refused = GR_SERVE_TURNS;
        return bad("turns_exceeded",
                   gr_printf("a session here has at most %u turns of the model", rules->turns));
    }
    refusal r = c->kind == GR_CALL_CHAT && !c->whole ? new_of_chat(s, x, c) : new_of_tokens(x, c);
    if (!r.why && x->ids.n >= rules->max_context) {
        x->refused = GR_SERVE_ROOM;
        r = bad("context_length_exceeded", /* clients look for these words */
                gr_printf("this model's maximum context length is %u tokens in a session, with what it is to "
                          "say; the context has %zu",
                          rules->max_context, x->ids.n));
    }
    if (!r.why && !x->ids.n) r = bad("messages", gr_strdup("the context has no token"));
    if (r.why) x->ids.n = before;
    return r;
}

static void refuse(gr_serve *s, json_int_t call, refusal r)
{
    answer(s, call, r.status, gr_reply_error(r.code, r.why));
    free(r.why);
}

/* True: it asks for a turn. */
static bool take_turn(gr_serve *s, session *x, json_int_t number, gr_call_kind kind, json_t *body)
{
    if (x->body && x->call.kind == kind && json_equal(x->body, body)) { /* once more: its answer was lost */
        if (x->reply) {
            answer(s, number, 200, json_incref(x->reply));
        } else {
            answer(s, x->open, 409,
                   gr_reply_error("asked_again", "the same call has come again and gets the answer"));
            x->open = number;
        }
        return false;
    }
    if (x->open != NOT_OPEN) {
        refuse(s, number,
               (refusal){409, "busy",
                         gr_strdup("a call of this session is open: its calls come one after another")});
        return false;
    }
    gr_serve_call c;
    char *why = gr_serve_call_read(&c, kind, body, &s->cfg.rules);
    const refusal r = why ? bad("request", why) : accept(s, x, &c);
    if (r.why) {
        refuse(s, number, r);
        gr_serve_call_release(&c);
        return false;
    }
    remember(x, &c);
    gr_serve_call_release(&x->call);
    json_decref(x->body);
    json_decref(x->reply);
    x->call = c;
    x->body = json_incref(body);
    x->reply = NULL;
    x->open = number;
    return true;
}

void gr_serve_answer(gr_serve *s, uint32_t number, const gr_serve_said *said)
{
    session *x = &s->all[number];
    char id[48];
    if (!x->id || x->open == NOT_OPEN) return;
    snprintf(id, sizeof(id), "%" PRIu64 "-%" PRIu32, x->id, x->turns);
    x->reply = x->call.kind == GR_CALL_CHAT ? gr_reply_chat(&s->cfg, &x->call, said, &x->ids, id)
                                            : gr_reply_generate(&x->call, said, &x->ids, id);
    if (x->call.stream) x->reply = gr_reply_stream(&x->call, x->reply);
    answer(s, x->open, 200, json_incref(x->reply));
    x->open = NOT_OPEN;
    x->turns++;
    for (uint32_t i = 0; i < said->n; i++) GR_PUSH(x->ids.id, x->ids.n, x->ids.cap, said->ids[i]);
    x->had = x->ids.n;
    if (s->cfg.open && (!x->name || s->of.closing)) leave(s, x);
    if (!x->messages) return;
    json_t *messages = json_copy(x->messages);
    json_array_append_new(messages, gr_reply_message(&x->call, said));
    json_decref(x->messages);
    x->messages = messages;
}

/* ---- calls that do not ----------------------------------------------------------------------------------
 */

static gr_status encode(const gr_serve *s, const gr_serve_call *c, gr_ids *ids, gr_diag *d)
{
    gr_chat_options o = options_of(s, c->variables);
    o.add_generation_prompt = !c->bare;
    if (c->messages) return gr_chat_encode(s->cfg.chat, s->cfg.tokenizer, c->messages, &o, ids, d);
    return gr_tokenizer_encode(s->cfg.tokenizer, json_string_value(c->prompt), json_string_length(c->prompt),
                               GR_ENCODE_SPECIAL | (c->bare ? 0 : GR_ENCODE_FRAME), ids, d);
}

static void tokenize(gr_serve *s, json_int_t number, const json_t *body)
{
    gr_serve_call c;
    gr_ids ids = {0};
    gr_diag d;
    gr_diag_init(&d);
    char *why = gr_serve_call_read(&c, GR_CALL_TOKENIZE, body, &s->cfg.rules);
    refusal r = why                          ? bad("request", why)
                : c.messages && !s->cfg.chat ? no_chat(s)
                                             : rendered(encode(s, &c, &ids, &d), &d);
    if (r.why)
        refuse(s, number, r);
    else
        answer(s, number, 200, gr_reply_tokens(&ids, &s->cfg.rules));
    gr_serve_call_release(&c);
    gr_diag_release(&d);
    free(ids.id);
}

/* ---- sessions that callers begin ------------------------------------------------------------------------
 *
 * Each call without a session's name has a row to itself. A session with a name keeps its row, and so its
 * keys and values, until another call needs it; then it rests, and goes on in another row, from the same ids.
 */

static session *named(const gr_serve *s, const char *name)
{
    for (uint32_t i = 0; name && i < s->cfg.sessions; i++)
        if (s->all[i].name && !s->all[i].leaves && !strcmp(s->all[i].name, name)) return &s->all[i];
    return NULL;
}

static session *free_row(const gr_serve *s)
{
    for (uint32_t i = 0; i < s->cfg.sessions; i++)
        if (s->all[i].id && !s->all[i].taken && !s->all[i].leaves) return &s->all[i];
    return NULL;
}

static void forget_resting(gr_serve *s, size_t i)
{
    memmove(s->of.resting + i, s->of.resting + i + 1, (--s->of.n_resting - i) * sizeof(*s->of.resting));
}

/* What it holds is kept; its row is free. */
static void rest(gr_serve *s, session *x)
{
    if (s->of.n_resting == GR_SERVE_REMEMBERED) {
        release(&s->of.resting[0]);
        forget_resting(s, 0);
    }
    s->of.resting[s->of.n_resting++] = *x;
    *x = (session){.id = x->id, .open = NOT_OPEN, .taken = true};
    leave(s, x);
}

/* The row of a session that has rested has nothing of it yet. */
static void take_row(gr_serve *s, session *x, const char *name)
{
    const uint64_t id = x->id;
    for (size_t i = 0; name && i < s->of.n_resting; i++) {
        if (strcmp(s->of.resting[i].name, name)) continue;
        *x = s->of.resting[i];
        x->had = 0;
        forget_resting(s, i);
        break;
    }
    x->id = id;
    x->taken = true;
    if (name && !x->name) x->name = gr_strdup(name);
}

static session *longest_idle(const gr_serve *s)
{
    session *found = NULL;
    for (uint32_t i = 0; i < s->cfg.sessions; i++) {
        session *x = &s->all[i];
        if (x->name && !x->leaves && x->open == NOT_OPEN && (!found || x->used < found->used)) found = x;
    }
    return found;
}

/* A row for each call that waits, as far as there are sessions without an open one. */
static void make_room(gr_serve *s)
{
    size_t leaving = 0;
    for (uint32_t i = 0; i < s->cfg.sessions; i++) leaving += s->all[i].leaves;
    for (session *x; leaving < json_array_size(s->of.waiting) && (x = longest_idle(s)); leaving++) rest(s, x);
}

bool gr_serve_over(gr_serve *s, uint32_t *number)
{
    if (s->cfg.open && s->wire) make_room(s);
    if (!s->of.n_over) return false;
    *number = s->of.over[0];
    memmove(s->of.over, s->of.over + 1, --s->of.n_over * sizeof(*s->of.over));
    return true;
}

void gr_serve_finish(gr_serve *s)
{
    if (s->of.closing) return;
    s->of.closing = true;
    for (size_t i = 0; i < json_array_size(s->of.waiting); i++)
        answer(s, json_integer_value(json_object_get(json_array_get(s->of.waiting, i), "call")), 503,
               gr_reply_error("closing", "the server is being stopped"));
    json_array_clear(s->of.waiting);
    for (uint32_t i = 0; i < s->cfg.sessions; i++)
        if (s->all[i].id && !s->all[i].leaves && s->all[i].open == NOT_OPEN) leave(s, &s->all[i]);
}

/* True: it asks for a turn of *found. Where there is no row for it, it waits. */
static bool visit(gr_serve *s, const char *name, json_t *line, gr_call_kind kind, session **found)
{
    const json_int_t number = json_integer_value(json_object_get(line, "call"));
    session *x = named(s, name);
    if (s->of.closing) {
        answer(s, number, 503, gr_reply_error("closing", "the server is being stopped"));
        return false;
    }
    if (!x && (x = free_row(s))) take_row(s, x, name);
    if (!x) {
        json_array_append(s->of.waiting, line);
        return false;
    }
    x->used = ++s->of.uses;
    *found = x;
    if (take_turn(s, x, number, kind, json_object_get(line, "body"))) return true;
    if (!x->turns && x->open == NOT_OPEN) { /* it was refused, and there is no session */
        const uint64_t id = x->id;
        release(x);
        x->id = id;
    }
    return false;
}

/* ---- paths ----------------------------------------------------------------------------------------------
 */

/* The name that a path begins with ("/session/7"), else that of the header, to free(); *rest: the path behind
 * it. NULL: the call names none. */
static char *name_of(const json_t *line, const char **rest)
{
    static const char prefix[] = "/session/";
    const char *path = json_string_value(json_object_get(line, "path")),
               *header = json_string_value(json_object_get(line, "session"));
    *rest = path ? path : "";
    if (!path || strncmp(path, prefix, strlen(prefix))) return header ? gr_strdup(header) : NULL;
    const char *name = path + strlen(prefix);
    *rest = name + strcspn(name, "/");
    return gr_strndup(name, (size_t)(*rest - name));
}

/* Of those that harnesses were told of; NULL: none that is open. */
static session *numbered(const gr_serve *s, const char *name)
{
    if (!name || !*name || name[strspn(name, "0123456789")]) return NULL;
    const uint64_t id = strtoull(name, NULL, 10);
    for (uint32_t i = 0; i < s->cfg.sessions && id; i++)
        if (s->all[i].id == id) return &s->all[i];
    return NULL;
}

/* True: it asks for a turn of *x. */
static bool take_call_of(gr_serve *s, json_t *line, const char *name, const char *path, session **x)
{
    const json_int_t number = json_integer_value(json_object_get(line, "call"));
    const char *method = json_string_value(json_object_get(line, "method"));
    json_t *body = json_object_get(line, "body");
    const gr_call_kind kind = gr_call_kind_of(method ? method : "", path);
    if (kind == GR_CALL_MODELS)
        answer(s, number, 200, gr_reply_models(&s->cfg.rules));
    else if (kind == GR_CALL_HEALTH)
        answer(s, number, 200, json_object());
    else if (kind == GR_CALL_TOKENIZE)
        tokenize(s, number, body);
    else if (kind == GR_CALL_UNKNOWN)
        refuse(s, number, (refusal){404, "path", gr_strdup("this path is not served here")});
    else if (s->cfg.open)
        return visit(s, name, line, kind, x);
    else if (!(*x = numbered(s, name)))
        refuse(s, number,
               (refusal){404, "no_session",
                         gr_strdup(name ? "no session of this name is open: it has ended, or never was"
                                        : "a call belongs to a session: by its path, or X-Session-ID")});
    else
        return take_turn(s, *x, number, kind, body);
    return false;
}

static bool take_call(gr_serve *s, json_t *line, session **x)
{
    const char *path;
    char *name = name_of(line, &path);
    const bool asks = take_call_of(s, line, name, path, x);
    free(name);
    return asks;
}

/* One that waited, where there is a row by now; else one of the wire. The caller frees it. */
static gr_status next_line(gr_serve *s, json_t **line, gr_diag *d)
{
    if (!json_array_size(s->of.waiting) || !free_row(s)) return gr_wire_next(s->wire, line, d);
    *line = json_incref(json_array_get(s->of.waiting, 0));
    json_array_remove(s->of.waiting, 0);
    return GR_OK;
}

gr_status gr_serve_next(gr_serve *s, gr_serve_turn *out, bool *found, gr_diag *d)
{
    gr_status st = GR_OK;
    json_t *line = NULL;
    session *x = NULL;
    *found = false;
    if (!s->wire) return GR_OK;
    while (!*found && !(st = next_line(s, &line, d)) && line) {
        *found = take_call(s, line, &x);
        json_decref(line);
    }
    if (*found)
        *out = (gr_serve_turn){.number = (uint32_t)(x - s->all),
                               .ids = x->ids.id + x->had,
                               .n = x->ids.n - x->had,
                               .max_tokens = x->call.max_tokens};
    return st;
}
