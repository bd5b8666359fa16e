/* ops/rollout_turns.c: conversations of `generate`: the model's turns, and what an environment answers. */
#include "ops/rollout_impl.h"

#include "ops/base/functions.h"
#include "ops/data.h"
#include "ops/encode.h"
#include "ops/rollout_heard.h"
#include "ops/reward/command_files.h"
#include "ops/reward/environment.h"
#include "ops/reward/http_command.h"
#include "ops/text/tool_calls.h"
#include "runtime/base/json.h"
#include "runtime/base/signals.h"
#include "runtime/comm/watchdog.h"
#include "runtime/io/inputs.h"

#include <stdlib.h>
#include <string.h>

typedef struct turn {
    uint32_t begin;    /* its first response token */
    uint32_t number;   /* from 0 */
    uint32_t attempt;  /* of the conversation */
    uint32_t most;     /* tokens of it; 0: max_tokens */
    bool last;         /* no other follows: the model has had them all, or there is no room */
    bool open;         /* it has begun, and is not over */
    bool asked;        /* the environment has a message that it has not answered */
    bool left;         /* and the conversation, whose last turn that was, has no slot any more */
    uint64_t asked_ns; /* when it got that */
    /* This and the next, of rows that are kept: an answer for which it has no slot so far; and, from 1 on,
     * the message that tells what was said before the run went on here; 0: none does. */
    gr_answer *early;
    uint32_t again;
    json_t *tools; /* with which its environment began it; NULL: the graph's */
} turn;

struct gr_turns {
    gr_environment *env;       /* NULL: another rank asks for this one (ops/rollout_heard.h) */
    gr_comm *peers;            /* those that run it together, this trip; NULL: this one alone */
    gr_heard_answers heard;    /* by them */
    struct gr_served *served;  /* NULL: nobody calls */
    const gr_encoder *encoder; /* of the prompts */
    gr_tool_form form;
    turn *at;              /* [seqs] */
    gr_answer *answer;     /* the next one, waited for and not yet taken */
    uint32_t n_early;      /* conversations that have one */
    bool begun, resumed;   /* resumed: those that are open are to be told again */
    gr_ids ids;            /* of one answer */
    gr_str text;           /* of one turn */
    char *record, *replay; /* paths of this rank */
    char *failure;         /* of the iteration's first conversation that failed */
    uint32_t failures;
    bool any;                              /* conversation of this run that did not fail */
    uint32_t turns_mean, n_failed, *means; /* metrics; means: [measures] */
    struct {
        uint32_t stalled, answer, steps, batch, width, read;
    } pace;           /* metrics */
    gr_status failed; /* of a record that cannot be read */
    gr_diag messages;
};

enum { SESSION_SECONDS = 86400 };

/* ---- opening ---------------------------------------------------------------------------------------------
 */

/* A command that is started again is the one that was started: its files are. */
static gr_status same_files(void *user, gr_diag *d)
{
    const gr_rollout *r = user;
    char *owner = gr_inputs_node(r->node->name);
    gr_status st = gr_inputs_unchanged(r->session->inputs, owner, d);
    free(owner);
    return st;
}

/* What its processes run, to free(). */
static gr_status command_of(const gr_generate_cfg *c, char **out, gr_diag *d)
{
    const gr_environment_cfg *e = &c->environment;
    const double whole =
        c->serve.host ? SESSION_SECONDS : e->timeout; /* of a session: its calls tell whether it lives */
    *out = NULL;
    if (e->http) return gr_http_command(out, e->http, whole, e->in_flight, e->at, d);
    if (e->command) *out = gr_strdup(e->command);
    return GR_OK;
}

/* Behind the first rank's file that of each other. */
static char *file_of_rank(const gr_session *s, const char *path)
{
    return path && s->rank ? gr_printf("%s.%u", path, s->rank) : path ? gr_strdup(path) : NULL;
}

/* Of ranks that run it together, the first. */
static bool asks(const gr_rollout *r)
{
    return r->session->rank % GR_MAX(r->node->placement.parts, 1u) == 0;
}

static gr_status open_environment(gr_rollout *r, gr_diag *d)
{
    const gr_environment_cfg *e = &r->cfg->environment;
    r->turns->replay = file_of_rank(r->session, e->replay);
    r->turns->record = file_of_rank(r->session, e->record);
    char *command;
    gr_status st = command_of(r->cfg, &command, d);
    const gr_function *f = &(gr_function){0};
    if (!st && e->function) st = gr_function_find(&f, r->session->functions, e->function, true, e->at, d);
    if (!st && r->cfg->serve.host && !e->replay) st = gr_served_open(&r->turns->served, r, d);
    if (st) {
        free(command);
        return st;
    }
    const gr_environment_config c = {.command = command,
                                     .answer = f->answer,
                                     .answer_user = f->user,
                                     .answer_name = e->function,
                                     .at = e->at,
                                     .workers = e->workers,
                                     .in_flight = e->in_flight,
                                     .timeout_ms =
                                         (unsigned)(e->timeout * 1000) + (e->http ? GR_HTTP_GRACE_MS : 0),
                                     .conversations = r->work.seqs,
                                     .timed = r->kept != NULL,
                                     .record = r->turns->record,
                                     .replay = r->turns->replay,
                                     .metrics = e->metrics.text,
                                     .n_metrics = e->metrics.n,
                                     .again = same_files,
                                     .user = r,
                                     .serve = gr_served_by(r->turns->served),
                                     .open = r->cfg->serve.open};
    st = gr_environment_new(&r->turns->env, &c, d);
    free(command);
    return st;
}

static void name_metrics(gr_rollout *r)
{
    struct gr_turns *t = r->turns;
    const gr_texts *names = &r->cfg->environment.metrics;
    const char *node = r->node->name;
    t->turns_mean = gr_session_name(r->session, r->node, "%s.turns_mean", node);
    t->n_failed = gr_session_name(r->session, r->node, "%s.failed", node);
    t->means = gr_calloc(names->n + 1, sizeof(*t->means)); /* + 1: never of size 0 */
    for (size_t i = 0; i < names->n; i++)
        t->means[i] = gr_session_name(r->session, r->node, "%s.%s", node, names->text[i]);
    t->pace.stalled = gr_session_name(r->session, r->node, "seconds.%s.stalled", node);
    t->pace.answer = gr_session_name(r->session, r->node, "seconds.%s.answer", node);
    t->pace.steps = gr_session_name(r->session, r->node, "%s.decode_steps", node);
    t->pace.batch = gr_session_name(r->session, r->node, "%s.decode_batch", node);
    t->pace.width = gr_session_name(r->session, r->node, "%s.decode_width", node);
    t->pace.read = gr_session_name(r->session, r->node, "%s.read_tokens", node);
}

gr_status gr_turns_open(gr_rollout *r, gr_diag *d)
{
    r->turns = gr_calloc(1, sizeof(*r->turns));
    r->turns->at = gr_calloc(r->work.seqs, sizeof(*r->turns->at));
    gr_diag_init(&r->turns->messages);
    name_metrics(r);
    return gr_node_runs(r->session->graph, r->node) && asks(r) ? open_environment(r, d) : GR_OK;
}

void gr_turns_close(gr_rollout *r)
{
    struct gr_turns *t = r->turns;
    if (!t) return;
    gr_environment_free(t->env);
    gr_served_close(t->served);
    gr_answer_free(t->answer);
    gr_heard_release(&t->heard);
    for (uint32_t i = 0; i < r->work.seqs; i++) {
        gr_answer_free(t->at[i].early);
        json_decref(t->at[i].tools);
    }
    gr_str_release(&t->text);
    gr_diag_release(&t->messages);
    free(t->ids.id);
    free(t->failure);
    free(t->record);
    free(t->replay);
    free(t->means);
    free(t->at);
    free(t);
}

gr_status gr_turns_inputs(const gr_rollout *r, const char *owner, gr_inputs *in, gr_diag *d)
{
    const gr_environment_cfg *e = &r->cfg->environment;
    return e->command && r->turns->env ? gr_command_inputs(e->command, owner, in, d) : GR_OK;
}

uint64_t gr_turns_trips(const gr_node *n)
{
    if (((const gr_generate_cfg *)n->cfg)->serve.open) return UINT32_MAX; /* it ends when it is asked to */
    return (uint64_t)n->placement.task.seqs * n->bounds.turns * 2 * gr_turns_tries(n);
}

uint64_t gr_turns_rereads(const gr_node *n, const gr_choices *how)
{
    const uint64_t each = n->bounds.prompt_tokens / how->prefill_tokens + 1;
    return n->bounds.turns ? n->placement.task.seqs * (gr_turns_tries(n) - 1) * each : 0;
}

void gr_turns_meet(gr_task *w, const gr_node *n)
{
    const uint32_t parts = n->placement.parts;
    if (!n->bounds.turns || parts < 2) return;
    w->comm.peers = parts;
    w->comm.mesh = (gr_mesh){.size = {[GR_AXIS_TENSOR] = parts}};
}

/* ---- asking ----------------------------------------------------------------------------------------------
 */

static const void *prompts_of(const gr_rollout *r)
{
    return r->session->state[gr_groups_maker(r->node->groups)->index];
}

static void keep_tools(turn *at, const gr_answer *a)
{
    json_decref(at->tools);
    at->tools = json_incref(a->tools);
}

static void clear_turn(turn *at, uint32_t attempt)
{
    json_decref(at->tools);
    *at = (turn){.attempt = attempt};
}

void gr_turns_clear(gr_rollout *r, gr_rows *rows, uint32_t first, uint32_t end)
{
    const size_t n = end - first, turns = rows->turns, measures = rows->measures, at = first * turns;
    memset(rows->counts + (size_t)first * r->longest, 0, n * r->longest);
    memset(rows->stopped + first, 0, n);
    memset(rows->n_turns + first, 0, n * sizeof(*rows->n_turns));
    memset(rows->turn_end + at, 0, n * turns * sizeof(*rows->turn_end));
    memset(rows->turn_reward + at, 0, n * turns * sizeof(*rows->turn_reward));
    if (measures) memset(rows->measure + first * measures, 0, n * measures * sizeof(*rows->measure));
    for (uint32_t seq = first; seq < end; seq++) clear_turn(&r->turns->at[seq], 0);
}

static void tell_again(gr_rollout *r, gr_rows *rows);

static void begin_asking(gr_rollout *r)
{
    struct gr_turns *t = r->turns;
    gr_environment_at(t->env, r->session->step, r->session->round);
    gr_served_begin(t->served, r);
    t->failed = gr_environment_listen(t->env, &t->messages);
    if (!t->failed) gr_served_listens(t->served, r);
    if (r->kept && !t->begun) t->failed = gr_environment_went_on(t->env, r->session->step - 1, &t->messages);
}

void gr_turns_begin(gr_rollout *r, gr_rows *rows)
{
    struct gr_turns *t = r->turns;
    free(t->failure);
    t->failure = NULL;
    t->failures = 0;
    for (uint32_t seq = 0; seq < r->work.seqs; seq++) t->at[seq].left = false; /* of kept rows: it gets one */
    t->encoder = gr_data_encoder(prompts_of(r));
    t->form = gr_tool_form_of(t->served ? gr_served_chat(t->served) : gr_encoder_chat(t->encoder));
    if (t->env) begin_asking(r);
    t->begun = true;
    if (t->resumed) tell_again(r, rows);
}

static json_t *list_of_ids(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* What a start tells of a record; a harness, also how the graph would begin its conversation. */
static json_t *fields_of_start(gr_rollout *r, uint32_t number)
{
    struct gr_turns *t = r->turns;
    json_t *record = NULL, *fields = NULL;
    if (!t->failed) t->failed = gr_data_record(prompts_of(r), number, &record, &t->messages);
    t->ids.n = 0;
    if (!t->failed && t->served)
        t->failed =
            gr_encoder_run(t->encoder, record, gr_data_at(prompts_of(r), number), &t->ids, &t->messages);
    if (!t->failed) fields = json_pack("{s:O}", "record", record);
    if (fields && t->served)
        json_object_set_new(fields, "prompt_token_ids", list_of_ids(t->ids.id, t->ids.n));
    json_decref(record);
    return fields;
}

static void asked(turn *at)
{
    at->asked = true;
    at->asked_ns = gr_now_ns();
}

/* In the record a conversation is of the iteration in which it began. */
static void ask_to_start(gr_rollout *r, const gr_rows *rows, uint32_t seq)
{
    struct gr_turns *t = r->turns;
    t->at[seq].open = true;
    asked(&t->at[seq]);
    if (!t->env) return;
    if (r->cfg->serve.open) {
        gr_environment_start(t->env, seq, t->at[seq].attempt, NULL);
        return;
    }
    json_t *fields = fields_of_start(r, rows->record[rows->group[seq]]);
    if (r->kept) gr_environment_at(t->env, rows->born[rows->group[seq]], r->session->round);
    if (fields) gr_environment_start(t->env, seq, t->at[seq].attempt, fields);
    json_decref(fields);
}

void gr_turns_start(gr_rollout *r, gr_rollout_slot *s, const gr_rows *rows)
{
    const turn *at = &r->turns->at[s->seq];
    if (!at->open) ask_to_start(r, rows, s->seq);
    s->waits = at->asked || at->again;
}

uint32_t gr_turns_limit(const gr_rollout *r, uint32_t seq)
{
    const turn *at = &r->turns->at[seq];
    return GR_MIN(at->begin + (at->most ? at->most : r->cfg->max_tokens), r->longest);
}

/* The turn as its environment sees it: without the stop id, and cut at the first stop text. */
static void turn_text(gr_rollout *r, const int32_t *ids, uint32_t n)
{
    gr_str *text = &r->turns->text;
    const gr_tokenizer *t = gr_session_tokenizer(r->session, r->node);
    text->len = 0;
    for (uint32_t i = 0; i < n; i++) (void)gr_tokenizer_append(t, ids[i], false, text);
    gr_str_puts(text, "");
    for (size_t i = 0; i < r->cfg->stop.n; i++) {
        const char *stop = r->cfg->stop.text[i], *at = memmem(text->text, text->len, stop, strlen(stop));
        if (at) text->len = (size_t)(at - text->text);
    }
}

/* A turn to the environment, of which it is turn `number`: response tokens [begin, end). */
static void say(gr_rollout *r, const gr_rows *rows, uint32_t seq, uint32_t number, uint32_t begin,
                uint32_t end, bool last)
{
    struct gr_turns *t = r->turns;
    const int32_t *ids = gr_rows_ids(rows, seq) + rows->prompt_len[seq] + begin;
    const uint32_t n = end - begin;
    if (!t->env) return;
    turn_text(r, ids, n - (n && gr_rollout_is_stop_id(r, ids[n - 1])));
    json_t *fields = json_pack("{s:o, s:o, s:o, s:b}", "text", gr_json_string(t->text.text, t->text.len),
                               "token_ids", list_of_ids(ids, n), "tool_calls",
                               gr_tool_calls(t->form, t->text.text, t->text.len), "last", last);
    gr_environment_step(t->env, seq, number, fields);
    json_decref(fields);
}

/* The call that asked for the turn gets it. */
static void answer_call(gr_rollout *r, const gr_rows *rows, uint32_t seq)
{
    struct gr_turns *t = r->turns;
    const turn *at = &t->at[seq];
    const int32_t *ids = gr_rows_ids(rows, seq) + rows->prompt_len[seq] + at->begin;
    const uint32_t n = rows->response_len[seq] - at->begin;
    turn_text(r, ids, n - rows->ended[seq]);
    json_t *calls = gr_tool_calls(t->form, t->text.text, t->text.len);
    gr_environment_said(t->env, seq, at->number,
                        &(gr_serve_said){.ids = ids,
                                         .logprobs = rows->logprob + (size_t)seq * r->longest + at->begin,
                                         .n = n,
                                         .text = t->text.text,
                                         .n_text = t->text.len,
                                         .tool_calls = calls,
                                         .n_before = gr_tool_calls_at(t->form, t->text.text, t->text.len),
                                         .cut = rows->truncated[seq]});
    json_decref(calls);
}

/* Calls may go on behind a turn that was cut. */
static bool leaves(const gr_rollout *r, const turn *at)
{
    return at->last && !r->cfg->serve.host;
}

bool gr_turns_step(gr_rollout *r, gr_rollout_slot *s, gr_rows *rows)
{
    turn *at = &r->turns->at[s->seq];
    const uint32_t seq = s->seq;
    at->last =
        at->number + 1 == rows->turns || rows->truncated[seq] || rows->response_len[seq] + 1 >= r->longest;
    rows->turn_end[(size_t)seq * rows->turns + at->number] = rows->response_len[seq];
    rows->n_turns[seq] = at->number + 1;
    s->waits = true;
    asked(at);
    if (r->turns->served)
        answer_call(r, rows, seq);
    else
        say(r, rows, seq, at->number, at->begin, rows->response_len[seq], at->last);
    at->left = leaves(r, at);
    r->n_left += at->left;
    return at->left;
}

/* ---- told again ------------------------------------------------------------------------------------------
 *
 * A run that goes on from a checkpoint has conversations that its environment does not know. They are started
 * once more and told what the model said; what is answered to that has been heard, but for the last answer
 * where it was still to come.
 */

/* Turn `number` as it is in the rows: what the environment said stands before it, and does not count. */
static void tell_turn(gr_rollout *r, const gr_rows *rows, uint32_t seq, uint32_t number)
{
    const uint32_t *ends = rows->turn_end + (size_t)seq * rows->turns, end = ends[number];
    const uint8_t *counts = rows->counts + (size_t)seq * r->longest;
    uint32_t begin = number ? ends[number - 1] : 0;
    while (begin < end && !counts[begin]) begin++;
    say(r, rows, seq, number, begin, end, r->turns->at[seq].last && number + 1 == rows->n_turns[seq]);
}

static void tell_again(gr_rollout *r, gr_rows *rows)
{
    struct gr_turns *t = r->turns;
    t->resumed = false;
    for (uint32_t seq = 0; seq < r->work.seqs; seq++) {
        turn *at = &t->at[seq];
        const bool asked = at->asked;
        if (!at->open) continue;
        if (t->env) gr_environment_at(t->env, rows->born[seq / r->cfg->samples], r->session->round);
        if (r->cfg->environment.replay) {
            if (t->env) gr_environment_go_on(t->env, seq, at->attempt, rows->n_turns[seq], asked);
            continue;
        }
        rows->group[seq] = seq / r->cfg->samples;
        ask_to_start(r, rows, seq);
        at->asked = asked;
        at->again = rows->n_turns[seq] || !asked ? 1 : 0;
    }
}

/* An answer to what was told again; false: it is one that was waited for, or says that it failed. */
static bool hear_again(gr_rollout *r, const gr_rows *rows, uint32_t seq, const gr_answer *a)
{
    turn *at = &r->turns->at[seq];
    const uint32_t heard = at->again - 1;
    if (!at->again) return false;
    at->again = 0;
    if (a->error) return false;
    if (a->tools) keep_tools(at, a);
    if (heard == rows->n_turns[seq]) return !at->asked;
    at->again = heard + 2;
    tell_turn(r, rows, seq, heard);
    return true;
}

/* ---- answers ---------------------------------------------------------------------------------------------
 */

/* Nothing of it counts. */
static void clear_scores(const gr_rollout *r, gr_rows *rows, size_t seq)
{
    const size_t turns = rows->turns, measures = rows->measures;
    memset(rows->counts + seq * r->longest, 0, rows->response_len[seq]);
    memset(rows->turn_reward + seq * turns, 0, turns * sizeof(*rows->turn_reward));
    if (measures) memset(rows->measure + seq * measures, 0, measures * sizeof(*rows->measure));
}

/* From the first message on, once more: the same tokens are sampled again. */
static void forget(gr_rollout *r, gr_rows *rows, gr_rollout_slot *s)
{
    const uint32_t seq = s->seq;
    clear_scores(r, rows, seq);
    rows->n_turns[seq] = rows->response_len[seq] = 0;
    rows->ended[seq] = rows->truncated[seq] = 0;
    s->cached = gr_rollout_opens(r->node) || s->alone ? 0 : rows->prompt_len[seq] - 1;
    clear_turn(&r->turns->at[seq], r->turns->at[seq].attempt);
}

/* A row has a response token, be it one that does not count. */
static void fill_empty(const gr_rollout *r, gr_rows *rows, uint32_t seq)
{
    if (rows->response_len[seq]) return;
    int32_t *ids = rows->ids + (size_t)seq * rows->stride + rows->prompt_len[seq];
    ids[0] = ids[-1];
    rows->logprob[(size_t)seq * r->longest] = 0;
    rows->response_len[seq] = 1;
}

static bool stop(gr_rollout *r, gr_rows *rows, uint32_t seq, gr_stopped why)
{
    rows->stopped[seq] = (uint8_t)why;
    r->turns->at[seq].open = false;
    r->turns->any = r->turns->any || why < GR_STOPPED_TIME;
    rows->truncated[seq] = why == GR_STOPPED_TOKENS;
    fill_empty(r, rows, seq);
    r->spared += r->longest - rows->response_len[seq];
    if (r->turns->env) gr_environment_end(r->turns->env, seq);
    return true;
}

/* The row is the next one's: another try for the rollout, another session for who calls. */
static bool begin_anew(gr_rollout *r, gr_rows *rows, gr_rollout_slot *s)
{
    r->turns->at[s->seq].attempt++;
    forget(r, rows, s);
    s->waits = true;
    ask_to_start(r, rows, s->seq);
    return false;
}

uint32_t gr_turns_draws(const gr_rollout *r, uint32_t seq)
{
    return seq + (r->cfg->serve.open ? r->turns->at[seq].attempt * r->work.seqs : 0);
}

/* It is tried again from the start, or its row is masked. True: it has ended. */
static bool fail(gr_rollout *r, gr_rows *rows, gr_rollout_slot *s, const char *error, bool late)
{
    struct gr_turns *t = r->turns;
    const uint32_t seq = s->seq;
    if (t->at[seq].attempt < r->cfg->environment.retries) return begin_anew(r, rows, s);
    if (!t->failures++) t->failure = gr_strdup(error);
    clear_scores(r, rows, seq);
    return stop(r, rows, seq, late ? GR_STOPPED_TIME : GR_STOPPED_ERROR);
}

/* What a call adds, into t->ids. The first token of a session stands in the place of the prompt. */
static void take_ids(gr_rollout *r, const gr_rows *rows, uint32_t seq, const gr_answer *a)
{
    struct gr_turns *t = r->turns;
    const bool first = !rows->n_turns[seq] && a->ids.n;
    if (first) rows->ids[(size_t)seq * rows->stride] = a->ids.id[0];
    t->ids.n = 0;
    for (size_t i = first; i < a->ids.n; i++) GR_PUSH(t->ids.id, t->ids.n, t->ids.cap, a->ids.id[i]);
    t->at[seq].most = a->max_tokens;
}

/* The function that the turn before called last, to free(); NULL: none. Of calls that are messages by
 * channels: others' templates do not ask. */
static char *called_last(gr_rollout *r, const gr_rows *rows, uint32_t seq)
{
    struct gr_turns *t = r->turns;
    if (t->form != GR_TOOLS_HARMONY) return NULL;
    const uint32_t begin = t->at[seq].begin, n = rows->response_len[seq] - begin;
    turn_text(r, gr_rows_ids(rows, seq) + rows->prompt_len[seq] + begin, n);
    json_t *calls = gr_tool_calls(t->form, t->text.text, t->text.len);
    char *name = NULL;
    for (size_t i = json_array_size(calls); i-- > 0 && !name;) {
        const char *one = json_string_value(json_object_get(json_array_get(calls, i), "name"));
        if (one) name = gr_strdup(one);
    }
    json_decref(calls);
    return name;
}

/* The prompt anew, with the messages and the tools that a start was answered with. */
static gr_status put_opening(gr_rollout *r, gr_rows *rows, uint32_t seq, const gr_answer *a, gr_diag *d)
{
    gr_ids *ids = &r->turns->ids;
    if (!gr_rollout_opens(r->node) && (a->messages || a->tools))
        return gr_diag_error(
            d, r->cfg->environment.at, GR_E_INVALID,
            "'messages' and 'tools' answer a start where 'environment' has 'opens: true': the "
            "prompt is made of them; 'text' goes behind it");
    if (!gr_rollout_opens(r->node)) return GR_OK;
    const gr_status st =
        gr_data_open(prompts_of(r), rows->record[rows->group[seq]], a->messages, a->tools, ids, d);
    if (!st) {
        memcpy(rows->ids + (size_t)seq * rows->stride, ids->id, ids->n * sizeof(*ids->id));
        rows->prompt_len[seq] = (uint32_t)ids->n;
        keep_tools(&r->turns->at[seq], a);
    }
    ids->n = 0;
    return st;
}

/* The ids of what was said, once, into t->ids. What answers a start may change the prompt. */
static gr_status encode(gr_rollout *r, gr_rows *rows, uint32_t seq, const gr_answer *a, gr_diag *d)
{
    struct gr_turns *t = r->turns;
    const gr_tokenizer *tok = gr_session_tokenizer(r->session, r->node);
    const int32_t last = gr_rows_ids(rows, seq)[gr_rollout_length(rows, seq) - 1];
    const bool starts = !rows->n_turns[seq];
    if (a->is_call) {
        take_ids(r, rows, seq, a);
        return GR_OK;
    }
    t->ids.n = 0;
    gr_status st = starts ? put_opening(r, rows, seq, a, d) : GR_OK;
    if (st) return st;
    if (a->text)
        return gr_tokenizer_encode(tok, json_string_value(a->text), json_string_length(a->text), 0, &t->ids,
                                   d);
    if (!a->messages || starts) return GR_OK;
    char *called = called_last(r, rows, seq);
    st = gr_encoder_more(t->encoder, a->messages, t->at[seq].tools, last, called, &t->ids, d);
    free(called);
    return st;
}

/* False: there is no room for them and one token more. */
static bool append(gr_rollout *r, gr_rows *rows, uint32_t seq)
{
    const gr_ids *ids = &r->turns->ids;
    const uint32_t n = rows->response_len[seq];
    if (ids->n >= r->longest - n) return false;
    if (ids->n)
        memcpy(rows->ids + (size_t)seq * rows->stride + rows->prompt_len[seq] + n, ids->id,
               ids->n * sizeof(*ids->id));
    memset(rows->logprob + (size_t)seq * r->longest + n, 0, ids->n * sizeof(*rows->logprob));
    rows->response_len[seq] = n + (uint32_t)ids->n;
    return true;
}

static void add_scores(gr_rows *rows, uint32_t seq, uint32_t number, const gr_answer *a)
{
    if (a->is_call) return;
    rows->turn_reward[(size_t)seq * rows->turns + number] += (float)a->reward;
    for (uint32_t i = 0; i < rows->measures; i++)
        rows->measure[(size_t)seq * rows->measures + i] += (float)a->metrics[i];
}

/* What was said, and the model's next turn. True: the conversation has ended. */
static bool go_on(gr_rollout *r, gr_rows *rows, gr_rollout_slot *s, const gr_answer *a)
{
    turn *at = &r->turns->at[s->seq];
    gr_diag d;
    gr_diag_init(&d);
    bool ended;
    if (encode(r, rows, s->seq, a, &d))
        ended = fail(r, rows, s, d.n ? d.messages[0].text : "it cannot be made into tokens", false);
    else if (!append(r, rows, s->seq))
        ended = stop(r, rows, s->seq, GR_STOPPED_TOKENS);
    else
        ended = s->waits = false;
    if (!ended && !s->waits) {
        at->number = rows->n_turns[s->seq];
        at->begin = rows->response_len[s->seq];
        rows->ended[s->seq] = rows->truncated[s->seq] = 0;
    }
    gr_diag_release(&d);
    return ended;
}

/* True: the conversation has ended. */
static bool take_answer(gr_rollout *r, gr_rows *rows, gr_rollout_slot *s, const gr_answer *a)
{
    const uint32_t seq = s->seq;
    turn *at = &r->turns->at[seq];
    at->asked = false;
    r->pace.answer_ns += gr_now_ns() - at->asked_ns;
    r->pace.answers++;
    if (a->error) return fail(r, rows, s, a->error, a->late);
    add_scores(rows, seq, at->number, a);
    if (a->done && r->cfg->serve.open && !gr_signals_stop()) return begin_anew(r, rows, s);
    if (a->done)
        return stop(r, rows, seq,
                    r->cfg->serve.host ? gr_served_stopped(rows, seq, a->refused) : GR_STOPPED_DONE);
    if (rows->n_turns[seq] && at->last && !a->is_call)
        return stop(r, rows, seq,
                    at->number + 1 == rows->turns && !rows->truncated[seq] ? GR_STOPPED_TURNS
                                                                           : GR_STOPPED_TOKENS);
    return go_on(r, rows, s, a);
}

/* The answer to a last turn: it has ended without a slot, or begins anew and wants one. */
static void take_last(gr_rollout *r, gr_rows *rows, uint32_t seq, const gr_answer *a)
{
    gr_rollout_slot none = {.seq = seq};
    r->n_left--;
    r->turns->at[seq].left = false;
    if (take_answer(r, rows, &none, a)) {
        gr_rollout_finished(r, rows, seq);
    } else {
        r->again[r->n_again++] = seq;
    }
}

/* NULL: it has no slot in this iteration, or not so far. */
static gr_rollout_slot *slot_of(const gr_rollout *r, uint32_t seq)
{
    const uint32_t n = r->steps ? r->bounds.samples : r->n_slots;
    for (uint32_t i = 0; i < n; i++)
        if (r->slots[i].seq == seq) return &r->slots[i];
    return NULL;
}

static gr_status told(struct gr_turns *t, gr_diag *d)
{
    const gr_status st = t->failed;
    for (size_t i = 0; i < t->messages.n; i++)
        gr_diag_error(d, t->messages.messages[i].at, st, "%s", t->messages.messages[i].text);
    gr_diag_release(&t->messages);
    t->failed = GR_OK;
    return st;
}

/* What becomes of an answer, which is released. */
static gr_status take_one(gr_rollout *r, gr_rows *rows, gr_answer *a,
                          void (*end)(gr_rollout *r, gr_rows *rows, uint32_t seq), gr_diag *d)
{
    struct gr_turns *t = r->turns;
    const uint32_t seq = a->number;
    gr_rollout_slot *s = slot_of(r, seq);
    gr_status st = GR_OK;
    if (a->reminds) {
        keep_tools(&t->at[seq], a);
    } else if (hear_again(r, rows, seq, a)) {
        if (s) s->waits = t->at[seq].again;
    } else if (!s && !t->at[seq].left) {
        t->at[seq].early = a;
        t->n_early++;
        return GR_OK;
    } else {
        if (t->env) st = gr_environment_taken(t->env, a, d);
        if (!st && !s)
            take_last(r, rows, seq, a);
        else if (!st && take_answer(r, rows, s, a))
            end(r, rows, seq);
    }
    gr_answer_free(a);
    return st ? st : told(t, d);
}

/* Those that came before their conversations had slots. */
static gr_status take_early(gr_rollout *r, gr_rows *rows,
                            void (*end)(gr_rollout *r, gr_rows *rows, uint32_t seq), gr_diag *d)
{
    struct gr_turns *t = r->turns;
    gr_status st = GR_OK;
    for (uint32_t seq = 0; seq < r->work.seqs && t->n_early && !st; seq++) {
        gr_answer *a = t->at[seq].early;
        if (!a || !slot_of(r, seq)) continue;
        t->at[seq].early = NULL;
        t->n_early--;
        st = take_one(r, rows, a, end, d);
    }
    return st;
}

/* The next answer that there is; NULL: none. */
static gr_status next_answer(struct gr_turns *t, gr_answer **out, gr_diag *d)
{
    *out = t->answer;
    t->answer = NULL;
    return *out ? GR_OK : gr_environment_next(t->env, 0, out, d);
}

/* How long the step may take that waits for an answer. A session of one that is served may last. */
static void have_patience(const gr_rollout *r)
{
    const uint32_t timeout = r->cfg->serve.host ? SESSION_SECONDS : (uint32_t)r->cfg->environment.timeout;
    gr_watchdog_goes_on(timeout + GR_HTTP_GRACE_MS / 1000 + GR_WATCHDOG_PATIENCE);
}

/* What has been answered so far, on all ranks that run it together. */
static gr_status hear(gr_rollout *r, gr_status st, gr_diag *d)
{
    struct gr_turns *t = r->turns;
    gr_answer *a = NULL;
    while (t->env && !st && !(st = next_answer(t, &a, d)) && a) gr_heard_add(&t->heard, a);
    if (!t->env) have_patience(r);
    const gr_status shared = gr_heard_share(&t->heard, r->cfg->environment.metrics.n, st, t->peers, d);
    return st ? st : shared;
}

gr_status gr_turns_take(gr_rollout *r, gr_rows *rows, gr_comm *peers,
                        void (*end)(gr_rollout *r, gr_rows *rows, uint32_t seq), gr_diag *d)
{
    struct gr_turns *t = r->turns;
    t->peers = peers;
    if (t->env) gr_environment_clock(t->env, r->session->step, r->trip);
    gr_status st = told(t, d);
    if (peers) st = hear(r, st, d);
    if (!st) st = take_early(r, rows, end, d);
    while (!st) {
        gr_answer *a = NULL;
        if (peers)
            a = gr_heard_next(&t->heard);
        else
            st = next_answer(t, &a, d);
        if (!a) break;
        if (!st) st = take_one(r, rows, a, end, d);
    }
    return st;
}

static bool has_early(const gr_rollout *r)
{
    for (uint32_t seq = 0; seq < r->work.seqs && r->turns->n_early; seq++)
        if (r->turns->at[seq].early && slot_of(r, seq)) return true;
    return false;
}

enum { LISTEN_MS = 10 };

/* While the next answer is waited for, rewards go on (gr_session_listen): they have requests to send. Of who
 * is served, some calls are nobody's turn. */
static gr_status await_answer(gr_rollout *r, const gr_rows *rows, gr_diag *d)
{
    struct gr_turns *t = r->turns;
    const bool listens = gr_session_is_heard(r->session, r->node);
    gr_status st = GR_OK;
    do {
        have_patience(r);
        st = gr_environment_next(t->env, listens ? LISTEN_MS : -1, &t->answer, d);
        gr_session_finished(r->session, r->node, rows, GR_NONE);
    } while (!st && !t->answer && (listens || t->served) && gr_environment_pending(t->env));
    return st;
}

static gr_status wait_for_answer(gr_rollout *r, const gr_rows *rows, gr_diag *d)
{
    if (r->cfg->environment.replay) return gr_environment_next(r->turns->env, -1, &r->turns->answer, d);
    const uint64_t begin = gr_now_ns();
    const gr_status st = await_answer(r, rows, d);
    r->pace.stalled_ns += gr_now_ns() - begin;
    return st;
}

/* Of ranks that run it together, those that do not ask hear of it in the next trip. */
gr_status gr_turns_wait(gr_rollout *r, const gr_rows *rows, gr_diag *d)
{
    struct gr_turns *t = r->turns;
    if (!t->env) return GR_OK;
    gr_status st = told(t, d);
    if (!st && !has_early(r) && gr_environment_pending(t->env) && !(r->kept && gr_kept_is_enough(r)))
        st = wait_for_answer(r, rows, d);
    return st && t->peers ? hear(r, st, d) : st;
}

/* ---- kept -----------------------------------------------------------------------------------------------
 */

void gr_turns_drop(gr_rollout *r, uint32_t seq)
{
    struct gr_turns *t = r->turns;
    if (t->env && t->at[seq].open) gr_environment_end(t->env, seq);
    if (t->answer && t->answer->number == seq) {
        gr_answer_free(t->answer);
        t->answer = NULL;
    }
    t->n_early -= t->at[seq].early != NULL;
    gr_answer_free(t->at[seq].early);
    clear_turn(&t->at[seq], 0);
}

void gr_turns_save(const gr_rollout *r, const gr_rows *rows)
{
    for (uint32_t seq = 0; seq < r->work.seqs; seq++) {
        const turn *at = &r->turns->at[seq];
        uint32_t *to = rows->turn[seq];
        to[GR_TURN_BEGIN] = at->begin;
        to[GR_TURN_NUMBER] = at->number;
        to[GR_TURN_TRY] = at->attempt;
        to[GR_TURN_LAST] = at->last;
        to[GR_TURN_ASKED] = at->open + at->asked;
    }
}

void gr_turns_restore(gr_rollout *r, const gr_rows *rows)
{
    for (uint32_t seq = 0; seq < r->work.seqs; seq++) {
        const uint32_t *from = rows->turn[seq];
        r->turns->at[seq] = (turn){.asked_ns = gr_now_ns(), /* of this run */
                                   .begin = from[GR_TURN_BEGIN],
                                   .number = from[GR_TURN_NUMBER],
                                   .attempt = from[GR_TURN_TRY],
                                   .last = from[GR_TURN_LAST],
                                   .open = from[GR_TURN_ASKED] > 0,
                                   .asked = from[GR_TURN_ASKED] > 1};
    }
    r->turns->resumed = true;
}

/* ---- what the rollout was like ---------------------------------------------------------------------------
 */

/* Of this rank's conversations. */
static void report_pace(const gr_rollout *r)
{
    const struct gr_turns *t = r->turns;
    const gr_rollout_pace *p = &r->pace;
    const double steps = (double)GR_MAX(p->steps, (uint64_t)1);
    gr_session_metric(r->session, t->pace.stalled, (double)p->stalled_ns * 1e-9);
    if (p->answers)
        gr_session_metric(r->session, t->pace.answer, (double)p->answer_ns * 1e-9 / (double)p->answers);
    gr_session_metric(r->session, t->pace.steps, (double)p->steps);
    gr_session_metric(r->session, t->pace.batch, (double)r->tokens / steps);
    gr_session_metric(r->session, t->pace.width, (double)p->width / steps);
    gr_session_metric(r->session, t->pace.read, (double)p->read);
}

gr_status gr_turns_report(const gr_rollout *r, const gr_rows *rows, gr_diag *d)
{
    const struct gr_turns *t = r->turns;
    if (t->env) gr_environment_rest(t->env);
    double turns = 0, failed = 0, all = GR_MAX(*rows->n_seqs, 1u);
    for (uint32_t i = 0; i < *rows->n_seqs; i++) {
        turns += rows->n_turns[i];
        failed += rows->stopped[i] >= GR_STOPPED_TIME;
    }
    gr_session_metric(r->session, t->turns_mean, turns / all);
    gr_session_metric(r->session, t->n_failed, failed);
    report_pace(r);
    for (uint32_t m = 0; m < rows->measures; m++) {
        double sum = 0;
        for (uint32_t i = 0; i < *rows->n_seqs; i++) sum += rows->measure[(size_t)i * rows->measures + m];
        gr_session_metric(r->session, t->means[m], sum / GR_MAX(all - failed, 1));
    }
    if (t->failures && !t->any)
        return gr_diag_error(d, r->cfg->environment.at, GR_E_FAILED,
                             "node '%s': of %u conversations none came to an end, and none did before: %s",
                             r->node->name, t->failures, t->failure);
    if (t->failures)
        gr_session_note(r->session, "node '%s': %u conversations failed and count nowhere; the first: %s",
                        r->node->name, t->failures, t->failure);
    return GR_OK;
}
