/* ops/scorer.c: rewards as sequences finish: rules or workers, and where their scores go. */
#include "ops/scorer.h"

#include "ops/reward/command_files.h"
#include "ops/reward/http_command.h"
#include "ops/base/configs.h"
#include "ops/data.h"
#include "ops/function_score.h"
#include "ops/reward/rules.h"
#include "ops/reward/worker.h"
#include "runtime/base/json.h"
#include "runtime/comm/watchdog.h"

#include <stdlib.h>
#include <string.h>

typedef struct scratch {
    gr_str text;
    gr_str answer, kind; /* of `record`; kind: what its rule is chosen by */
    uint32_t record;     /* GR_NONE: there was none */
    const gr_rule *rule; /* its own */
    uint32_t *ends;      /* [response tokens] */
    float *per_token;    /* the same */
    double *values;
} scratch;

enum { HTTP_IN_FLIGHT = 64 };

struct gr_scorer {
    gr_session *session;
    const gr_node *node;
    const gr_reward_cfg *cfg;
    gr_rule *rule;
    gr_rule_set *set;
    const char *by; /* of the set */
    gr_workers *workers;
    gr_function_score *function;
    uint32_t n_keys; /* sequences that there may be; of a rollout that keeps rows, in work */
    uint64_t
        *submitted;   /* [keys] 1, or more: when the group began; while responses are still being generated */
    double **early;   /* [keys] replies that came meanwhile */
    gr_status failed; /* of a request, and its messages: reported when the node runs */
    gr_diag messages;
    uint64_t over_limit;
    uint32_t over_limit_metric;
    scratch own; /* of the sequence that is scored */
};

/* More than one: requests have the ids of their tokens. */
static unsigned in_flight(const gr_reward_cfg *c)
{
    return c->in_flight ? c->in_flight : c->http ? HTTP_IN_FLIGHT : 1;
}

/* ---- config ----------------------------------------------------------------------------------------------
 */

static const char *const rule_keys[] = {"extract", "answer_extract", "take", "tail", "strip", "compare"};

static gr_status rule_key(gr_rule_config *c, const gr_pair *p, gr_diag *d)
{
    const char *text = p->value.text;
    if (p->value.kind != GR_VALUE_SCALAR)
        return gr_diag_error(d, p->value.at, GR_E_INVALID, "'%s' is a text", p->key);
    if (!strcmp(p->key, "extract")) {
        c->extract = text;
        c->extract_at = p->value.at;
    } else if (!strcmp(p->key, "answer_extract")) {
        c->answer_extract = text;
        c->answer_extract_at = p->value.at;
    } else if (!strcmp(p->key, "strip")) {
        c->strip = text;
    } else if (!strcmp(p->key, "take")) {
        if (strcmp(text, "first") && strcmp(text, "last"))
            return gr_diag_error(d, p->value.at, GR_E_INVALID, "'take' is first or last, not '%s'", text);
        c->take_first = !strcmp(text, "first");
    } else if (!strcmp(p->key, "tail")) {
        char *end;
        unsigned long n = strtoul(text, &end, 10);
        if (*end || end == text || *text == '-')
            return gr_diag_error(d, p->value.at, GR_E_INVALID, "'tail' is a number of characters, not '%s'",
                                 text);
        c->tail = n;
    } else if (!gr_compare_find(text, &c->compare)) {
        return gr_diag_error(d, p->value.at, GR_E_INVALID,
                             "'compare' is string, number, math or prefix, not '%s'", text);
    }
    return GR_OK;
}

static gr_status rule_map(gr_rule_config *c, const gr_value *v, gr_diag *d)
{
    gr_status st = GR_OK;
    *c = (gr_rule_config){.at = v->at};
    for (size_t i = 0; i < v->n; i++) {
        const gr_pair *p = &v->pairs[i];
        bool known = false;
        for (size_t k = 0; k < GR_LEN(rule_keys); k++) known = known || !strcmp(p->key, rule_keys[k]);
        const char *near = gr_near(p->key, rule_keys, GR_LEN(rule_keys));
        if (known)
            st = rule_key(c, p, d) ? GR_E_INVALID : st;
        else
            st = gr_diag_error(d, p->at, GR_E_INVALID, "a rule has no key '%s'%s%s%s", p->key,
                               near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    const gr_value *take = gr_value_get(v, "take");
    if (take && !st && !c->extract && !c->answer_extract)
        st = gr_diag_error(d, take->at, GR_E_INVALID,
                           "'take' chooses among the matches of 'extract', which this rule has not");
    return st;
}

static gr_status rule_of(gr_rule **out, const gr_value *v, gr_diag *d)
{
    gr_rule_config c;
    gr_status st = v->kind == GR_VALUE_SCALAR ? gr_rule_config_find(v->text, v->at, &c, d)
                   : v->kind == GR_VALUE_MAP
                       ? rule_map(&c, v, d)
                       : gr_diag_error(d, v->at, GR_E_INVALID, "a rule is a name or a map with 'compare'");
    return st ? st : gr_rule_new(out, &c, d);
}

static gr_status set_of(gr_scorer *s, const gr_value *v, gr_diag *d)
{
    const gr_value *by = gr_value_get(v, "by");
    if (v->kind != GR_VALUE_MAP || !by || by->kind != GR_VALUE_SCALAR)
        return gr_diag_error(d, v->at, GR_E_INVALID,
                             "'rules' is a map with 'by: FIELD' and a rule for each value");
    s->by = by->text;
    s->set = gr_rule_set_new();
    gr_status st = GR_OK;
    for (size_t i = 0; i < v->n; i++) {
        gr_rule *r = NULL;
        if (!strcmp(v->pairs[i].key, "by")) continue;
        gr_status one = rule_of(&r, &v->pairs[i].value, d);
        if (!one) one = gr_rule_set_add(s->set, v->pairs[i].key, r, v->pairs[i].at, d);
        st = one ? one : st;
    }
    return st;
}

static gr_status rules_of(gr_scorer *s, gr_diag *d)
{
    const gr_reward_cfg *c = s->cfg;
    gr_status st = c->rule ? rule_of(&s->rule, c->rule, d) : c->rules ? set_of(s, c->rules, d) : GR_OK;
    if (st) return st;
    bool dense = s->rule ? gr_rule_is_dense(s->rule) : s->set && gr_rule_set_is_dense(s->set);
    if (dense && !c->level)
        st = gr_diag_error(d, s->node->at, GR_E_INVALID,
                           "compare: prefix scores tokens: node '%s' needs 'level: token'", s->node->name);
    if ((s->rule || s->set) && !c->answer.node)
        st = gr_diag_error(d, s->node->at, GR_E_INVALID,
                           "node '%s' has a rule, which needs 'answer: NODE.FIELD'", s->node->name);
    return st;
}

void gr_scorer_check(const gr_node *n, gr_diag *d)
{
    gr_scorer s = {.node = n, .cfg = n->cfg};
    gr_status st = rules_of(&s, d); /* what it finds is in d */
    (void)st;
    gr_rule_free(s.rule);
    gr_rule_set_free(s.set);
}

/* ---- texts -----------------------------------------------------------------------------------------------
 */

static void cut_at_stop_text(const gr_node *rows_node, gr_str *text, uint32_t *ends, uint32_t n)
{
    rows_node = gr_rows_maker(rows_node);
    if (!rows_node->op->generates || rows_node->bounds.turns || !text->len) return; /* its turns are cut */
    const gr_texts *stop = &((const gr_generate_cfg *)rows_node->cfg)->stop;
    size_t cut = text->len;
    for (size_t i = 0; i < stop->n; i++) {
        const char *at = memmem(text->text, text->len, stop->text[i], strlen(stop->text[i]));
        if (at) cut = GR_MIN(cut, (size_t)(at - text->text));
    }
    text->len = cut;
    text->text[cut] = '\0';
    for (uint32_t i = 0; ends && i < n; i++) ends[i] = GR_MIN(ends[i], (uint32_t)cut);
}

void gr_response_text(const gr_session *s, const gr_node *rows_node, const gr_rows *rows, uint32_t seq,
                      gr_str *text, uint32_t *ends)
{
    const gr_tokenizer *t = gr_session_tokenizer(s, rows_node);
    const int32_t *ids = gr_rows_ids(rows, seq) + rows->prompt_len[seq];
    uint32_t n = rows->response_len[seq] - rows->ended[seq];
    bool at_start = true;
    for (uint32_t i = 0; i < n; i++) {
        at_start = gr_tokenizer_append(t, ids[i], at_start, text);
        if (ends) ends[i] = (uint32_t)text->len;
    }
    if (ends && rows->ended[seq]) ends[n] = (uint32_t)text->len;
    cut_at_stop_text(rows_node, text, ends, rows->response_len[seq]);
}

/* What the model said in a conversation, a line a turn: what its environment said is neither right nor wrong.
 */
static void model_text(const gr_scorer *s, const gr_rows *rows, uint32_t seq, gr_str *text, uint32_t *ends)
{
    const gr_tokenizer *t = gr_session_tokenizer(s->session, s->node->rows);
    const int32_t *ids = gr_rows_ids(rows, seq) + rows->prompt_len[seq];
    const uint32_t n = rows->response_len[seq] - rows->ended[seq];
    bool before = false;
    for (uint32_t i = 0; i < rows->response_len[seq]; i++) {
        const bool said = gr_rows_counts(rows, rows->token_offset[seq] + i);
        if (said && !before && text->len) gr_str_putc(text, '\n');
        if (said && i < n) (void)gr_tokenizer_append(t, ids[i], !before, text);
        if (ends) ends[i] = (uint32_t)text->len;
        before = said;
    }
}

/* ---- scoring ---------------------------------------------------------------------------------------------
 */

static void put(const gr_scorer *s, const gr_rows *rows, const gr_scores *out, uint32_t seq,
                const double *values)
{
    const gr_texts *names = &s->cfg->names;
    uint32_t first = rows->token_offset[seq], n = rows->response_len[seq];
    double sum = 0;
    for (size_t k = 0; k < names->n; k++) sum += values[k];
    for (size_t i = 0; i < out->n_columns; i++) {
        const char *field = out->columns[i]->field;
        float *data = out->data[i];
        if (out->columns[i]->level == GR_LEVEL_TOKEN) {
            for (uint32_t t = 0; t < n; t++) data[first + t] = (float)values[t];
            continue;
        }
        data[seq] = (float)(names->n ? sum : values[0]);
        for (size_t k = 0; field && k < names->n; k++)
            if (!strcmp(field, names->text[k])) data[seq] = (float)values[k];
    }
}

static gr_status rule_for(const gr_scorer *s, const void *data, uint32_t record, gr_str *kind,
                          const gr_rule **rule, gr_diag *d)
{
    *rule = s->rule;
    if (s->rule) return GR_OK;
    kind->len = 0;
    gr_status st = gr_data_text(data, record, s->by, kind, d);
    if (!st) st = gr_rule_set_find(s->set, kind->len ? kind->text : "", gr_data_at(data, record), rule, d);
    return st;
}

/* What a record asks for: read once for all the responses to it, which follow each other. */
static gr_status turn_to(const gr_scorer *s, const void *data, uint32_t record, scratch *x, gr_diag *d)
{
    if (x->record == record) return GR_OK;
    x->record = GR_NONE;
    x->answer.len = 0;
    gr_status st = rule_for(s, data, record, &x->kind, &x->rule, d);
    if (!st) st = gr_data_text(data, record, s->cfg->answer.field, &x->answer, d);
    if (!st) x->record = record;
    return st;
}

static gr_status score_by_rule(gr_scorer *s, const gr_rows *rows, uint32_t seq, scratch *x, gr_diag *d)
{
    const gr_node *groups = s->cfg->answer.node;
    const void *data = s->session->state[groups->index];
    uint32_t record = rows->record[rows->group[seq]], n = rows->response_len[seq];
    gr_status st = turn_to(s, data, record, x, d);
    if (st) return st;
    x->text.len = 0;
    if (rows->turns)
        model_text(s, rows, seq, &x->text, x->ends);
    else
        gr_response_text(s->session, s->node->rows, rows, seq, &x->text, x->ends);
    gr_rule_input in = {.text = x->text.len ? x->text.text : "",
                        .n = x->text.len,
                        .ends = x->ends,
                        .n_tokens = n,
                        .ended = rows->ended[seq],
                        .answer = x->answer.len ? x->answer.text : "",
                        .n_answer = x->answer.len,
                        .at = gr_data_at(data, record)};
    gr_rule_output out = {.per_token = s->cfg->level ? x->per_token : NULL};
    st = gr_rule_score(x->rule, &in, &out, d);
    s->over_limit += out.over_limit;
    x->values[0] = out.score;
    for (uint32_t t = 0; s->cfg->level && t < n; t++) x->values[t] = x->per_token[t];
    return st;
}

/* By which number a sequence is known while its rollout works on it, and when it is one of the rows: of rows
 * that are kept, its place in the queue. */
static uint32_t key_of(const gr_scorer *s, const gr_rows *rows, uint32_t seq)
{
    const gr_rows_bounds *b = &s->node->rows->bounds;
    const uint32_t samples = b->kept ? b->seqs / b->groups : 1;
    return rows->place ? rows->place[rows->group[seq]] * samples + seq % samples : seq;
}

/* Whose it is: another group may have the place later. */
static uint64_t owner_of(const gr_rows *rows, uint32_t seq)
{
    return rows->born ? rows->born[rows->group[seq]] : 1;
}

static json_t *json_text(const gr_str *s)
{
    return gr_json_string(s->text ? s->text : "", s->len);
}

/* The ids of the response, and where in its text each stands. */
static void add_tokens(json_t *fields, const gr_rows *rows, uint32_t seq, const gr_str *response,
                       const uint32_t *ends)
{
    const uint32_t n = rows->response_len[seq];
    const int32_t *ids = gr_rows_ids(rows, seq) + rows->prompt_len[seq];
    json_t *tokens = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(tokens, json_integer(ids[i]));
    json_object_set_new(fields, "tokens", tokens);
    json_object_set_new(fields, "offsets",
                        gr_json_offsets(response->text ? response->text : "", response->len, ends, n));
}

static gr_status submit(gr_scorer *s, const gr_rows *rows, uint32_t seq, gr_diag *d)
{
    const gr_node *groups = gr_groups_maker(s->node->groups);
    uint32_t record = rows->record[rows->group[seq]];
    gr_str response = {0}, prompt = {0};
    json_t *fields = NULL;
    gr_status st = gr_data_record(s->session->state[groups->index], record, &fields, d);
    if (st) return st;
    gr_tokenizer_decode(gr_session_tokenizer(s->session, s->node->rows), gr_rows_ids(rows, seq),
                        rows->prompt_len[seq], false, &prompt);
    uint32_t *ends = gr_calloc(rows->response_len[seq] + 1, sizeof(*ends));
    gr_response_text(s->session, s->node->rows, rows, seq, &response, ends);
    if (s->cfg->level || in_flight(s->cfg) > 1) add_tokens(fields, rows, seq, &response, ends);
    free(ends);
    json_object_set_new(fields, "prompt", json_text(&prompt));
    json_object_set_new(fields, "response", json_text(&response));
    if (s->cfg->answer.node) {
        gr_str answer = {0};
        st = gr_data_text(s->session->state[s->cfg->answer.node->index], record, s->cfg->answer.field,
                          &answer, d);
        json_object_set_new(fields, "answer", json_text(&answer));
        gr_str_release(&answer);
    }
    const uint64_t id = (owner_of(rows, seq) - 1) << 32 | key_of(s, rows, seq);
    if (!st) gr_workers_submit(s->workers, id, rows->response_len[seq], fields);
    json_decref(fields);
    gr_str_release(&response);
    gr_str_release(&prompt);
    return st;
}

static gr_status submit_once(gr_scorer *s, const gr_rows *rows, uint32_t seq, gr_diag *d)
{
    const uint32_t key = key_of(s, rows, seq);
    if (s->submitted[key] == owner_of(rows, seq)) return GR_OK;
    s->submitted[key] = owner_of(rows, seq);
    free(s->early[key]); /* of a group that was dropped */
    s->early[key] = NULL;
    return submit(s, rows, seq, d);
}

static void note_record(const gr_scorer *s, const gr_rows *rows, uint64_t id, gr_diag *d)
{
    const void *data = s->session->state[gr_groups_maker(s->node->groups)->index];
    for (uint32_t seq = 0; seq < *rows->n_seqs; seq++)
        if (key_of(s, rows, seq) == (uint32_t)id && owner_of(rows, seq) == (id >> 32) + 1)
            gr_diag_note(d, gr_data_at(data, rows->record[rows->group[seq]]), "the record that it answers");
}

/* Take one reply that is there within timeout_ms; *any: whether there was one. */
static gr_status collect(gr_scorer *s, const gr_rows *rows, int timeout_ms, bool *any, gr_diag *d)
{
    gr_reward reward = {0};
    gr_status st = gr_workers_collect(s->workers, timeout_ms, &reward, d);
    if (st == GR_E_FAILED) note_record(s, rows, reward.id, d);
    *any = !st && reward.values;
    if (!*any) return st;
    const uint32_t key = (uint32_t)reward.id;
    if (s->submitted[key] == (reward.id >> 32) + 1)
        s->early[key] = reward.values;
    else
        free(reward.values); /* of a group that was dropped */
    return st;
}

/* Send a response on as soon as it is finished, and take what came back meanwhile, so that workers get the
 * next one. Ranks that generate together all finish it: it is sent by the one that scores it. */
static void response_finished(void *user, const gr_rows *rows, uint32_t seq)
{
    gr_scorer *s = user;
    bool any = true;
    const gr_rows_part own = gr_rows_own(s->session, rows, 0, *rows->n_groups);
    const uint32_t group = seq == GR_NONE ? GR_NONE : rows->group[seq]; /* others' are not there yet */
    const bool is_own = group >= own.group && group < own.group_end;
    if (is_own && !s->failed) s->failed = submit_once(s, rows, seq, &s->messages);
    if (!is_own && !gr_workers_pending(s->workers)) return;
    while (!s->failed && any) s->failed = collect(s, rows, 0, &any, &s->messages);
}

static gr_status report_failure(gr_scorer *s, gr_diag *d)
{
    gr_status st = s->failed;
    for (size_t i = 0; i < s->messages.n; i++) {
        const struct gr_message *m = &s->messages.messages[i];
        if (m->severity == GR_NOTE)
            gr_diag_note(d, m->at, "%s", m->text);
        else
            gr_diag_error(d, m->at, st, "%s", m->text);
    }
    gr_diag_release(&s->messages);
    s->failed = GR_OK;
    return st;
}

static gr_status run_workers(gr_scorer *s, const gr_rows *rows, const gr_scores *out, gr_diag *d)
{
    bool any;
    gr_rows_part own = gr_rows_own(s->session, rows, 0, *rows->n_groups);
    gr_status st = report_failure(s, d);
    for (uint32_t seq = own.seq; !st && seq < own.seq_end; seq++) st = submit_once(s, rows, seq, d);
    for (uint32_t seq = own.seq; !st && seq < own.seq_end; seq++) {
        while (!st && !s->early[key_of(s, rows, seq)]) {
            gr_watchdog_goes_on((uint32_t)s->cfg->timeout +
                                GR_WATCHDOG_PATIENCE); /* the workers' own comes before it */
            st = collect(s, rows, -1, &any, d);
        }
    }
    for (uint32_t seq = own.seq; seq < own.seq_end; seq++) {
        const uint32_t key = key_of(s, rows, seq);
        if (!st) put(s, rows, out, seq, s->early[key]);
        free(s->early[key]);
        s->early[key] = NULL;
        s->submitted[key] = 0;
    }
    return st;
}

/* What the environment gave: for all turns together, or for each on its last token. */
static void score_by_environment(const gr_scorer *s, const gr_rows *rows, uint32_t seq, double *values)
{
    values[0] = 0;
    for (uint32_t t = 0; s->cfg->level && t < rows->response_len[seq]; t++) values[t] = 0;
    for (uint32_t i = 0; i < rows->n_turns[seq]; i++) {
        const size_t turn = (size_t)seq * rows->turns + i;
        values[s->cfg->level ? rows->turn_end[turn] - 1 : 0] += rows->turn_reward[turn];
    }
}

static gr_status run_function(gr_scorer *s, const gr_rows *rows, const gr_scores *out, gr_diag *d)
{
    const gr_rows_part own = gr_rows_own(s->session, rows, 0, *rows->n_groups);
    const double *values = NULL;
    gr_status st = gr_function_score_run(s->function, rows, own, &values, d);
    for (uint32_t seq = own.seq; !st && seq < own.seq_end; seq++) {
        put(s, rows, out, seq, values);
        values += s->cfg->level ? rows->response_len[seq] : GR_MAX(s->cfg->names.n, (size_t)1);
    }
    return st;
}

gr_status gr_scorer_run(gr_scorer *s, const gr_rows *rows, const gr_scores *out, gr_diag *d)
{
    if (s->workers) return run_workers(s, rows, out, d);
    if (s->function) return run_function(s, rows, out, d);
    gr_rows_part own = gr_rows_own(s->session, rows, 0, *rows->n_groups);
    gr_status st = GR_OK;
    for (uint32_t seq = own.seq; !st && seq < own.seq_end; seq++) {
        if (s->cfg->from)
            score_by_environment(s, rows, seq, s->own.values);
        else
            st = score_by_rule(s, rows, seq, &s->own, d);
        if (!st) put(s, rows, out, seq, s->own.values);
    }
    if (s->over_limit) gr_session_metric(s->session, s->over_limit_metric, (double)s->over_limit);
    return st;
}

/* ---- opening ---------------------------------------------------------------------------------------------
 */

/* The truth of each record, before anything runs: one that has none would else end the run when it is drawn.
 */
static gr_status check_answers(const gr_scorer *s, gr_diag *d)
{
    enum { MOST_ERRORS = 5 };
    const gr_node *answers = s->cfg->answer.node;
    const void *data = answers ? s->session->state[answers->index] : NULL;
    size_t n = data ? gr_data_records(data) : 0, bad = 0;
    gr_str answer = {0}, kind = {0};
    if (n && gr_data_check_field(data, s->cfg->answer.field, gr_value_get(s->node->value, "answer")->at, d))
        return GR_E_INVALID;
    for (size_t i = 0; i < n && bad < MOST_ERRORS; i++) {
        const gr_rule *rule = NULL;
        const char *truth;
        size_t n_truth;
        answer.len = 0;
        gr_status st = gr_data_text(data, (uint32_t)i, s->cfg->answer.field, &answer, d);
        if (!st && (s->rule || s->set)) st = rule_for(s, data, (uint32_t)i, &kind, &rule, d);
        if (!st && rule)
            st = gr_rule_truth(rule, answer.len ? answer.text : "", answer.len, gr_data_at(data, (uint32_t)i),
                               &truth, &n_truth, d);
        bad += st != GR_OK;
    }
    gr_str_release(&answer);
    gr_str_release(&kind);
    if (bad == MOST_ERRORS)
        gr_diag_note(d, (gr_loc){0}, "there may be more; the rest of node '%s' was not looked at",
                     answers->name);
    return bad ? GR_E_INVALID : GR_OK;
}

/* A worker that is started again is the one that was started: its files are. */
static gr_status same_files(void *user, gr_diag *d)
{
    const gr_scorer *s = user;
    char *owner = gr_inputs_node(s->node->name);
    gr_status st = gr_inputs_unchanged(s->session->inputs, owner, d);
    free(owner);
    return st;
}

enum { BYTES_A_TOKEN = 16 }; /* of text: of responses with more, the buffer grows */

static scratch scratch_new(uint32_t longest)
{
    scratch x = {.record = GR_NONE,
                 .ends = gr_calloc(longest, sizeof(uint32_t)),
                 .per_token = gr_calloc(longest, sizeof(float)),
                 .values = gr_calloc(longest, sizeof(double))};
    gr_str_reserve(&x.text, longest * (size_t)BYTES_A_TOKEN);
    return x;
}

static void scratch_release(scratch *x)
{
    free(x->ends);
    free(x->per_token);
    free(x->values);
    gr_str_release(&x->text);
    gr_str_release(&x->answer);
    gr_str_release(&x->kind);
}

static gr_status open_workers(gr_scorer *s, gr_diag *d)
{
    const gr_reward_cfg *c = s->cfg;
    char *command = c->http ? NULL : gr_strdup(c->command);
    gr_status st =
        c->http ? gr_http_command(&command, c->http, c->timeout, in_flight(c), s->node->at, d) : GR_OK;
    if (st) return st;
    const gr_workers_config w = {.command = command,
                                 .at = s->node->at,
                                 .n = c->http ? 1 : c->workers,
                                 .depth = in_flight(c),
                                 .timeout_ms =
                                     (unsigned)(c->timeout * 1000) + (c->http ? GR_HTTP_GRACE_MS : 0),
                                 .per_token = c->level == 1,
                                 .names = c->names.text,
                                 .n_names = c->names.n,
                                 .again = same_files,
                                 .user = s};
    st = gr_workers_new(&s->workers, &w, d);
    free(command);
    return st;
}

gr_status gr_scorer_new(gr_scorer **out, gr_session *session, const gr_node *n, gr_diag *d)
{
    gr_scorer *s = gr_calloc(1, sizeof(*s));
    *s = (gr_scorer){.session = session,
                     .node = n,
                     .cfg = n->cfg,
                     .over_limit_metric = gr_session_name(session, n, "%s.over_match_limit", n->name),
                     .own = scratch_new(n->rows->bounds.response_tokens)};
    gr_status st = rules_of(s, d);
    if (!st) st = check_answers(s, d);
    if (!st && s->cfg->function && gr_node_runs(session->graph, n))
        st = gr_function_score_new(&s->function, session, n, d);
    if (!st && gr_node_asks(n) && gr_node_runs(session->graph, n)) {
        st = open_workers(s, d);
        s->n_keys = n->rows->bounds.kept ? n->rows->work.seqs : n->rows->bounds.seqs;
        s->submitted = gr_calloc(s->n_keys, sizeof(*s->submitted));
        s->early = gr_calloc(s->n_keys, sizeof(*s->early));
        if (n->rows->placement.role == n->placement.role)
            gr_session_listen(session, n->rows, n, response_finished, s);
    }
    if (st)
        gr_scorer_free(s);
    else
        *out = s;
    return st;
}

gr_status gr_scorer_inputs(const gr_scorer *s, const char *owner, gr_inputs *in, gr_diag *d)
{
    return s->workers && s->cfg->command ? gr_command_inputs(s->cfg->command, owner, in, d) : GR_OK;
}

void gr_scorer_free(gr_scorer *s)
{
    if (!s) return;
    gr_rule_free(s->rule);
    gr_rule_set_free(s->set);
    gr_workers_free(s->workers);
    gr_function_score_free(s->function);
    for (uint32_t i = 0; s->early && i < s->n_keys; i++) free(s->early[i]);
    free(s->early);
    free(s->submitted);
    scratch_release(&s->own);
    gr_diag_release(&s->messages);
    free(s);
}
