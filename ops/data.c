/* ops/data.c: the ops `prompts` and `sequences`: records of a JSONL file, or rows of a rollout, become token
 * ids.
 *
 * Both draw `batch` records an iteration, in file order, shuffled anew each epoch, or by a number in them,
 * and encode a template filled with each record's fields. Text from a field never becomes a special token. A
 * prompt that is too long is refused, dropped (the next record takes its place) or cut on the left.
 * `sequences` adds a response and is an `of:` like a rollout, so supervised training needs no other op.
 */
#include "ops/data.h"

#include "ops/base/configs.h"
#include "ops/encode.h"
#include "ops/rollout_kept.h"
#include "ops/scorer.h"
#include "runtime/base/json.h"
#include "ops/base/rows.h"
#include "runtime/io/inputs.h"
#include "ops/base/session.h"
#include "runtime/io/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const too_long_choices[] = {"error", "drop", "truncate_left", NULL};

#define CFG(f) offsetof(gr_data_cfg, f)

/* clang-format off */
#define DATA_KEYS \
    {"file", GR_KEY_PATH, CFG(file), false, NULL, 0, 0, NULL, "JSONL file, one record a line"}, \
    {"command", GR_KEY_TEXT, CFG(command), false, NULL, 0, 0, NULL, "instead of file: a shell command that prints the JSONL, run once at the start"}, \
    {"batch", GR_KEY_UINT, CFG(batch), false, NULL, 1, 1 << 20, NULL, "records drawn each iteration"}, \
    {"shuffle", GR_KEY_BOOL, CFG(shuffle), false, "true", 0, 0, NULL, "a new order each epoch, from the seed"}, \
    {"curriculum", GR_KEY_TEXT, CFG(curriculum), false, NULL, 0, 0, NULL, "a field with a number: each epoch goes from the smallest to the largest; records of equal numbers keep the order that shuffle gives"}, \
    {"descending", GR_KEY_BOOL, CFG(descending), false, "false", 0, 0, NULL, "the curriculum goes from the largest to the smallest"}, \
    {"state", GR_KEY_VALUE, CFG(state), false, NULL, 0, 0, NULL, "{name: {init: number, next: expression}}: numbers that are kept for each record, fields of it like others; next is a number a prompt, at the end of an iteration that drew it"}, \
    {"messages", GR_KEY_TEXT, CFG(messages), false, "{messages}", 0, 0, NULL, "with a chat template: the user's message; a single {field} may also hold a list of {role, content}"}, \
    {"system", GR_KEY_TEXT, CFG(system), false, NULL, 0, 0, NULL, "with a chat template: text of a system message before the others, with {field}s of the record"}, \
    {"template_args", GR_KEY_VALUE, CFG(args), false, NULL, 0, 0, NULL, "with a chat template: a map of further variables that it reads, such as {enable_thinking: false}"}, \
    {"tools", GR_KEY_VALUE, CFG(tools), false, NULL, 0, 0, NULL, "with a chat template: a list of tools, or one {field} of the record that holds such a list"}, \
    {"tools_file", GR_KEY_PATH, CFG(tools_file), false, NULL, 0, 0, NULL, "instead of tools: a JSON file with the list"}, \
    {"date", GR_KEY_TEXT, CFG(date), false, NULL, 0, 0, NULL, "with a chat template that asks for the date: YEAR-MONTH-DAY; default: 2024-07-26"}, \
    {"too_long", GR_KEY_ENUM, CFG(too_long), false, "error", 0, 0, too_long_choices, "what happens to a record with too many tokens"}

static const gr_key prompts_keys[] = {
    DATA_KEYS,
    {"of", GR_KEY_NODE, CFG(of), false, NULL, 0, 0, NULL, "instead of records: rows, each of which becomes a prompt, whose template has {prompt}, {response} and the fields of its record"},
    {"template", GR_KEY_TEXT, CFG(template), true, NULL, 0, 0, NULL, "prompt text with {field}s of the record; chat: the checkpoint's chat template around messages"},
    {"max_tokens", GR_KEY_UINT, CFG(max_tokens), true, NULL, 1, 1 << 20, NULL, "most tokens of a prompt"},
    {0}};

static const gr_key sequences_keys[] = {
    DATA_KEYS,
    {"prompt", GR_KEY_TEXT, CFG(template), true, NULL, 0, 0, NULL, "prompt text with {field}s of the record; chat: the checkpoint's chat template around messages"},
    {"response", GR_KEY_TEXT, CFG(response), true, NULL, 0, 0, NULL, "response text with {field}s of the record: the tokens that a loss sees"},
    {"pair", GR_KEY_TEXT, CFG(pair), false, NULL, 0, 0, NULL, "text of a second response, with {field}s: each record is then a group of two, the first of them preferred"},
    {"model", GR_KEY_MODEL, CFG(model), false, NULL, 0, 0, NULL, "model whose tokenizer is used; default: the model that reads the rows"},
    {"max_prompt_tokens", GR_KEY_UINT, CFG(max_tokens), true, NULL, 1, 1 << 20, NULL, "most tokens of a prompt"},
    {"max_tokens", GR_KEY_UINT, CFG(max_response_tokens), true, NULL, 1, 1 << 20, NULL, "most tokens of a response, the stop id included"},
    {"ids", GR_KEY_BOOL, CFG(ids), false, "false", 0, 0, NULL, "prompt, response and pair are one {field} each, with a list of token ids, taken as they stand: rows that a run kept"},
    {"eos", GR_KEY_BOOL, CFG(eos), false, "true", 0, 0, NULL, "end each response with the checkpoint's first stop id"},
    {"token_fields", GR_KEY_TEXTS, CFG(token_fields), false, NULL, 0, 0, NULL, "fields of the record with a list of numbers, one for each response token, the stop id included; with pair, two such lists"},
    {0}};

static const gr_field prompts_fields[] = {
    {"length", GR_LEVEL_GROUP, GR_KIND_NUMBER, GR_EXPR_I32, "tokens of the prompt"},
    {0}};

static const gr_field sequences_fields[] = {
    {"token", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "id of each response token"},
    {"length", GR_LEVEL_SEQ, GR_KIND_NUMBER, GR_EXPR_I32, "response tokens"},
    {"second", GR_LEVEL_SEQ, GR_KIND_BOOL, GR_EXPR_U8, "whether it is the second of a pair"},
    {"position", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_I32, "index of each token in its response, from 0"},
    {0}};
/* clang-format on */

/* Where a key of a node is written, else the node. */
static gr_loc key_at(const gr_node *n, const char *key)
{
    const gr_value *v = n->value ? gr_value_get(n->value, key) : NULL;
    return v ? v->at : n->at;
}

static bool is_list(const gr_node *n, const char *field)
{
    return gr_texts_have(&((const gr_data_cfg *)n->cfg)->token_fields, field);
}

/* What an expression names of a record is a number, whatever the data will say. */
static const gr_field *field_of_record(const gr_node *n, const char *name)
{
    static const gr_field number = {"", GR_LEVEL_GROUP, GR_KIND_NUMBER, GR_EXPR_F64,
                                    "a number of the record"},
                          list = {"", GR_LEVEL_TOKEN, GR_KIND_NUMBER, GR_EXPR_F64,
                                  "a list of the record, a number for each response token"};
    return is_list(n, name) ? &list : &number;
}

static bool is_own_field(const gr_node *n, const char *name)
{
    for (const gr_field *f = n->op->fields; f->name; f++)
        if (!strcmp(f->name, name)) return true;
    return false;
}

static void check_token_fields(const gr_node *n, gr_diag *d)
{
    const gr_texts *lists = &((const gr_data_cfg *)n->cfg)->token_fields;
    for (size_t i = 0; i < lists->n; i++)
        if (is_own_field(n, lists->text[i]))
            gr_diag_error(d, lists->at[i], GR_E_INVALID,
                          "'%s' is a value of each '%s' node: a field of the records needs another name",
                          lists->text[i], n->op->name);
}

/* Keys that only a chat template reads. */
static void check_chat(const gr_node *n, gr_diag *d)
{
    static const char *const keys[] = {"system", "template_args", "tools", "tools_file", "date"};
    const gr_data_cfg *c = n->cfg;
    bool chat = c->template && !strcmp(c->template, "chat");
    for (size_t i = 0; i < GR_LEN(keys) && !chat; i++)
        if (gr_value_get(n->value, keys[i]))
            gr_diag_error(d, key_at(n, keys[i]), GR_E_INVALID, "'%s' goes with a chat template: %s: chat",
                          keys[i], c->response ? "prompt" : "template");
    if (c->args && c->args->kind != GR_VALUE_MAP)
        gr_diag_error(d, c->args->at, GR_E_INVALID, "'template_args' must be a map of variables");
    if (c->tools && c->tools->kind != GR_VALUE_LIST &&
        !(c->tools->kind == GR_VALUE_SCALAR && gr_is_one_field(c->tools->text)))
        gr_diag_error(d, c->tools->at, GR_E_INVALID,
                      "'tools' must be a list of tools, or one \"{field}\" of the record");
    if (c->tools && c->tools_file)
        gr_diag_error(d, key_at(n, "tools_file"), GR_E_INVALID,
                      "give 'tools' or 'tools_file', one of the two");
    if (c->date && !gr_date_is_valid(c->date))
        gr_diag_error(d, key_at(n, "date"), GR_E_INVALID,
                      "'date' must be YEAR-MONTH-DAY, such as %s, not '%s'", gr_default_date, c->date);
}

/* Nothing is tokenized, and nothing put beside what is there. */
static void check_ids(const gr_node *n, gr_diag *d)
{
    gr_data_cfg *c = n->cfg;
    const char *const keys[] = {"prompt", "response", "pair"}, *const texts[] = {c->template, c->response,
                                                                                 c->pair};
    for (size_t i = 0; i < GR_LEN(keys) && c->ids; i++)
        if (texts[i] && !gr_is_one_field(texts[i]))
            gr_diag_error(d, key_at(n, keys[i]), GR_E_INVALID,
                          "with 'ids' '%s' is one \"{field}\" of the record, with a list of ids, not '%s'",
                          keys[i], texts[i]);
    if (c->ids && c->eos && gr_value_get(n->value, "eos"))
        gr_diag_error(d, key_at(n, "eos"), GR_E_INVALID,
                      "'eos' does not go with 'ids': responses are taken as they stand");
    c->eos = c->eos && !c->ids; /* so the resolved graph says it */
}

static bool reads_prompt(const gr_node *n)
{
    static const char *const keys[] = {"template", "messages", "system"};
    for (size_t i = 0; i < GR_LEN(keys); i++) {
        const gr_value *v = gr_value_get(n->value, keys[i]);
        if (v && v->text && strstr(v->text, "{prompt}")) return true;
    }
    return false;
}

/* Prompts of rows: as many as there are sequences. */
static void check_of(gr_node *n, gr_diag *d)
{
    const gr_data_cfg *c = n->cfg;
    const char *const keys[] = {c->file ? "file" : NULL,       c->command ? "command" : NULL,
                                c->batch ? "batch" : NULL,     c->curriculum ? "curriculum" : NULL,
                                c->shuffle ? NULL : "shuffle", c->descending ? "descending" : NULL,
                                c->state ? "state" : NULL};
    for (size_t i = 0; i < GR_LEN(keys); i++)
        if (keys[i])
            gr_diag_error(d, key_at(n, keys[i]), GR_E_INVALID,
                          "'%s' does not go with 'of': prompts are made of the rows of '%s'", keys[i],
                          n->of->name);
    if (c->too_long == GR_TOO_LONG_DROP)
        gr_diag_error(
            d, key_at(n, "too_long"), GR_E_INVALID,
            "'too_long: drop' does not go with 'of': each row has its prompt; truncate_left cuts it");
    const gr_node *maker = gr_rows_maker(n->of->rows);
    if (maker->op->generates && ((const gr_generate_cfg *)maker->cfg)->serve.host && reads_prompt(n))
        gr_diag_error(
            d, n->at, GR_E_INVALID,
            "'{prompt}': rows that harnesses made ('serve' of '%s') have no prompt; {response} has the "
            "whole session but for its first token",
            maker->name);
    check_chat(n, d);
    const uint32_t seqs = n->of->rows->bounds.seqs;
    n->bounds = (gr_rows_bounds){.groups = seqs, .seqs = seqs, .prompt_tokens = c->max_tokens};
    gr_rows_check(n, d);
}

static void check_data(gr_graph *g, gr_node *n, gr_diag *d)
{
    (void)g;
    const gr_data_cfg *c = n->cfg;
    if (c->of) {
        check_of(n, d);
        return;
    }
    if (!c->batch)
        gr_diag_error(d, n->at, GR_E_INVALID, "node '%s' needs 'batch': records drawn each iteration",
                      n->name);
    if (!c->file == !c->command)
        gr_diag_error(d, n->at, GR_E_INVALID, "node '%s' needs 'file' or 'command', one of the two", n->name);
    if (c->descending && !c->curriculum)
        gr_diag_error(d, key_at(n, "descending"), GR_E_INVALID, "'descending' goes with 'curriculum'");
    check_token_fields(n, d);
    check_chat(n, d);
    check_ids(n, d);
    uint32_t seqs = c->pair ? 2 * c->batch : c->batch;
    n->bounds = (gr_rows_bounds){.groups = c->batch,
                                 .seqs = seqs,
                                 .prompt_tokens = c->max_tokens,
                                 .response_tokens = c->max_response_tokens};
    gr_rows_check(n, d);
}

enum { KERNEL_DRAW };
enum { DRAW_ROWS, DRAW_OF, N_DRAW }; /* operands; behind them the node's columns */

static void declare_data(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                         gr_tasks *p)
{
    (void)g;
    (void)how;
    (void)k;
    gr_use *uses = gr_arena_alloc(p->arena, (N_DRAW + n->results.n_columns) * sizeof(*uses));
    uses[DRAW_ROWS] = (gr_use){gr_rows_object(p, n), GR_WRITE};
    uses[DRAW_OF] = (gr_use){n->of ? gr_rows_object(p, n->of->rows) : GR_NONE, GR_READ};
    for (size_t i = 0; i < n->results.n_columns; i++)
        uses[N_DRAW + i] = (gr_use){gr_column_object(p, n->results.columns[i]), GR_WRITE};
    gr_tasks_run(p, KERNEL_DRAW, 0, uses, N_DRAW + n->results.n_columns, "draw")->uses.by_code = true;
}

/* ---- running ------------------------------------------------------------------------------------------- */

typedef struct data_state {
    gr_session *session;
    const gr_node *node;
    gr_jsonl *source;
    gr_order order;
    gr_cursor cursor;
    gr_encoder *prompt, *response[2]; /* the second: of a pair */
    uint64_t dropped;
    uint32_t dropped_metric;
    const gr_node *keeper; /* the rollout that keeps rows of its prompts; NULL: none does */
    double **columns;      /* [columns] where a record's numbers go */
    uint32_t *state_of;    /* [columns] its place among the graph's record states; GR_NONE: it is of none */
    float **kept;          /* [record states of the graph]: a number a record; NULL: another node's */
} data_state;

/* A checkpoint without stop ids has none to add. */
static bool adds_eos(const data_state *s)
{
    const gr_data_cfg *c = s->node->cfg;
    return c->eos && gr_session_model(s->session, s->node)->shape.n_eos;
}

/* Whether its last token is a stop id: of ids that are taken as they stand it may be one. */
static bool is_ended(const data_state *s, const gr_ids *response)
{
    const gr_model_shape *m = &gr_session_model(s->session, s->node)->shape;
    bool stops = adds_eos(s);
    for (uint32_t i = 0; i < m->n_eos && ((const gr_data_cfg *)s->node->cfg)->ids; i++)
        stops = stops || response->id[response->n - 1] == m->eos[i];
    return stops;
}

/* The tokens of one record. */
typedef struct sample {
    gr_ids prompt, response[2];
} sample;

static unsigned n_responses(const data_state *s)
{
    return !!s->response[0] + !!s->response[1];
}

/* Where the prompt's template is written: `template` or, of sequences, `prompt`; with a chat template the
 * messages. */
static gr_loc template_at(const gr_node *n)
{
    const gr_data_cfg *c = n->cfg;
    if (c->messages) return key_at(n, "messages");
    return key_at(n, gr_value_get(n->value, "template") ? "template" : "prompt");
}

static gr_status open_encoders(data_state *s, gr_diag *d)
{
    const gr_data_cfg *c = s->node->cfg;
    const gr_model *model = gr_session_model(s->session, s->node);
    if (!model)
        return gr_diag_error(d, s->node->at, GR_E_INVALID,
                             "node '%s' needs a tokenizer, but the graph has no model", s->node->name);
    const gr_tokenizer *t = gr_session_tokenizer(s->session, s->node);
    gr_encoder_config prompt = {.tokenizer = t,
                                .folder = model->files.folder,
                                .text = c->template,
                                .messages = c->messages,
                                .chat = {.system = c->system,
                                         .args = c->args,
                                         .tools = c->tools,
                                         .tools_file = c->tools_file,
                                         .date = c->date},
                                .ids_below = c->ids ? model->shape.vocab : 0,
                                .at = template_at(s->node)};
    gr_status st = gr_encoder_new(&s->prompt, &prompt, d);
    const char *const texts[] = {c->response, c->pair};
    static const char *const keys[] = {"response", "pair"};
    for (size_t i = 0; i < GR_LEN(texts) && texts[i] && !st; i++) {
        gr_encoder_config response = {.tokenizer = t,
                                      .text = texts[i],
                                      .at = key_at(s->node, keys[i]),
                                      .response = true,
                                      .ids_below = prompt.ids_below};
        st = gr_encoder_new(&s->response[i], &response, d);
    }
    return st;
}

/* The number of each record that orders them. */
static gr_status read_keys(const data_state *s, double **out, gr_diag *d)
{
    const gr_data_cfg *c = s->node->cfg;
    size_t n = gr_jsonl_rows(s->source);
    double *keys = gr_malloc(n * sizeof(*keys));
    gr_status st = GR_OK;
    for (size_t i = 0; i < n && !st; i++) {
        json_t *row = NULL;
        st = gr_jsonl_row(s->source, i, &row, d);
        if (!st) st = gr_json_number(row, c->curriculum, gr_jsonl_at(s->source, i), &keys[i], d);
        if (!st && c->descending) keys[i] = -keys[i];
        json_decref(row);
    }
    if (st)
        free(keys);
    else
        *out = keys;
    return st;
}

/* Rows that became prompts are of the records that their own prompts were made of. */
static const data_state *drawn(const void *state)
{
    const data_state *s = state;
    while (s->node->of) s = s->session->state[gr_groups_maker(s->node->of->groups)->index];
    return s;
}

gr_status gr_data_record(const void *state, uint32_t record, json_t **out, gr_diag *d)
{
    return gr_jsonl_row(drawn(state)->source, record, out, d);
}

gr_loc gr_data_at(const void *state, uint32_t record)
{
    return gr_jsonl_at(drawn(state)->source, record);
}

gr_status gr_data_text(const void *state, uint32_t record, const char *field, gr_str *out, gr_diag *d)
{
    json_t *row = NULL;
    gr_status st = gr_data_record(state, record, &row, d);
    if (!st) st = gr_json_text(row, field, gr_data_at(state, record), out, d);
    json_decref(row);
    return st;
}

const gr_encoder *gr_data_encoder(const void *state)
{
    return ((const data_state *)state)->prompt;
}

uint64_t gr_data_epoch(const void *state)
{
    return drawn(state)->cursor.epoch;
}

size_t gr_data_records(const void *state)
{
    return drawn(state)->order.n;
}

uint64_t gr_data_hash(const void *state)
{
    return gr_jsonl_hash(drawn(state)->source);
}

uint32_t gr_data_batch(const void *state)
{
    return ((const gr_data_cfg *)((const data_state *)state)->node->cfg)->batch;
}

static gr_status encode_response(const data_state *s, const gr_encoder *e, json_t *row, gr_loc at,
                                 gr_ids *ids, gr_diag *d)
{
    gr_status st = gr_encoder_run(e, row, at, ids, d);
    if (!st && adds_eos(s))
        GR_PUSH(ids->id, ids->n, ids->cap, gr_session_model(s->session, s->node)->shape.eos[0]);
    return !st && !ids->n ? gr_diag_error(d, at, GR_E_INVALID, "the response has no tokens") : st;
}

static gr_status encode_record(const data_state *s, uint32_t record, sample *x, gr_diag *d)
{
    json_t *row = NULL;
    gr_loc at = gr_data_at(s, record);
    x->prompt.n = x->response[0].n = x->response[1].n = 0;
    gr_status st = gr_data_record(s, record, &row, d);
    if (!st) st = gr_encoder_run(s->prompt, row, at, &x->prompt, d);
    if (!st && !x->prompt.n) st = gr_diag_error(d, at, GR_E_INVALID, "the prompt has no tokens");
    for (unsigned i = 0; i < n_responses(s) && !st; i++)
        st = encode_response(s, s->response[i], row, at, &x->response[i], d);
    json_decref(row);
    return st;
}

/* ---- numbers of records, as columns ---------------------------------------------------------------------
 */

/* The record state that a column is of; GR_NONE: of none. */
static uint32_t state_of(const gr_graph *g, const gr_column *c)
{
    for (size_t i = 0; i < g->n_record_state && c->field; i++)
        if (g->record_state[i].node == c->node && !strcmp(g->record_state[i].name, c->field))
            return (uint32_t)i;
    return GR_NONE;
}

/* Whether column i of the node is read from the records. */
static bool is_of_record(const data_state *s, size_t i)
{
    const gr_column *c = s->node->results.columns[i];
    return c->field && c->of_rows == GR_ROWS_NONE && s->state_of[i] == GR_NONE;
}

/* A list of one response, of so many tokens; of pairs there are two. */
static gr_status read_list(const data_state *s, const json_t *row, gr_loc at, const char *field,
                           unsigned response, size_t tokens, double *out, gr_diag *d)
{
    char *path = n_responses(s) > 1 ? gr_printf("%s.%u", field, response) : gr_strdup(field);
    gr_status st = gr_json_numbers(row, path, at, tokens, "tokens of the response", out, d);
    free(path);
    return st;
}

/* What a column has of one record, whose responses have so many tokens: a number, or lists one behind the
 * other. */
static gr_status read_column(const data_state *s, const json_t *row, gr_loc at, const gr_column *c,
                             const uint32_t tokens[2], double *out, gr_diag *d)
{
    if (c->level == GR_LEVEL_GROUP) return gr_json_number(row, c->field, at, out, d);
    gr_status st = GR_OK;
    for (unsigned i = 0; i < n_responses(s) && !st; i++, out += tokens[i - 1])
        st = read_list(s, row, at, c->field, i, tokens[i], out, d);
    return st;
}

/* All that expressions read of one record; out NULL: only whether it is there. */
static gr_status read_columns(const data_state *s, const json_t *row, gr_loc at, const uint32_t tokens[2],
                              double *const *out, gr_diag *d)
{
    const gr_node *n = s->node;
    double *scratch = out ? NULL : gr_calloc((size_t)tokens[0] + tokens[1] + 1, sizeof(*scratch));
    gr_status st = GR_OK;
    for (size_t i = 0; i < n->results.n_columns && !st; i++) {
        if (!is_of_record(s, i) || (out && !out[i])) continue;
        st = read_column(s, row, at, n->results.columns[i], tokens, out ? out[i] : scratch, d);
        if (st) gr_diag_note(d, at, "an expression reads it, as '%s'", n->results.columns[i]->name);
    }
    free(scratch);
    return st;
}

/* Of the groups of a batch. ptr: a column each, or NULL. */
static gr_status fill_columns(const data_state *s, const gr_rows *r, void *const *ptr, gr_diag *d)
{
    const gr_node *n = s->node;
    double **out = s->columns;
    gr_status st = GR_OK;
    for (uint32_t g = 0, seq = 0; g < *r->n_groups && !st; g++, seq += GR_MAX(n_responses(s), 1u)) {
        const uint32_t tokens[2] = {r->response_len[seq], n_responses(s) > 1 ? r->response_len[seq + 1] : 0};
        json_t *row = NULL;
        for (size_t i = 0; i < n->results.n_columns; i++) {
            const bool group = n->results.columns[i]->level == GR_LEVEL_GROUP;
            out[i] = ptr[i] ? (double *)ptr[i] + (group ? g : r->token_offset[seq]) : NULL;
        }
        st = gr_data_record(s, r->record[g], &row, d);
        if (!st) st = read_columns(s, row, gr_data_at(s, r->record[g]), tokens, out, d);
        json_decref(row);
    }
    return st;
}

static bool has_columns(const data_state *s)
{
    for (size_t i = 0; i < s->node->results.n_columns; i++)
        if (is_of_record(s, i)) return true;
    return false;
}

/* ---- what records keep ----------------------------------------------------------------------------------
 */

static void open_kept(data_state *s)
{
    const gr_graph *g = s->session->graph;
    s->kept = gr_calloc(g->n_record_state + 1, sizeof(*s->kept));
    for (size_t k = 0; k < g->n_record_state; k++) {
        if (g->record_state[k].node != s->node) continue;
        s->kept[k] = gr_calloc(s->order.n, sizeof(**s->kept));
        for (size_t i = 0; i < s->order.n; i++) s->kept[k][i] = (float)g->record_state[k].init;
    }
}

static void close_kept(data_state *s)
{
    for (size_t k = 0; s->kept && k < s->session->graph->n_record_state; k++) free(s->kept[k]);
    free(s->kept);
}

static void fill_kept(const data_state *s, const gr_rows *r, uint32_t state, double *out)
{
    for (uint32_t g = 0; g < *r->n_groups; g++) out[g] = (double)s->kept[state][r->record[g]];
}

void gr_data_keep(void *state, uint32_t which, uint32_t record, float value)
{
    ((data_state *)state)->kept[which][record] = value;
}

/* The bits of each number, in hexadecimal digits. */
static void save_kept(const data_state *s, const char *prefix, gr_state_file *out)
{
    const gr_graph *g = s->session->graph;
    for (size_t k = 0; k < g->n_record_state; k++) {
        gr_str text = {0};
        for (size_t i = 0; s->kept[k] && i < s->order.n; i++) {
            uint32_t bits;
            memcpy(&bits, &s->kept[k][i], sizeof(bits));
            gr_str_printf(&text, "%08x", bits);
        }
        char *key = gr_printf("state.%s", g->record_state[k].name);
        if (s->kept[k]) gr_state_set_text(out, prefix, key, text.text ? text.text : "");
        gr_str_release(&text);
        free(key);
    }
}

static gr_status load_one(const data_state *s, uint32_t k, const char *text, gr_diag *d)
{
    const size_t n = s->order.n;
    bool whole = strlen(text) == 8 * n && strspn(text, "0123456789abcdef") == 8 * n;
    for (size_t i = 0; whole && i < n; i++) {
        char digits[9] = {0};
        memcpy(digits, text + 8 * i, 8);
        const uint32_t bits = (uint32_t)strtoul(digits, NULL, 16);
        memcpy(&s->kept[k][i], &bits, sizeof(bits));
        whole = isfinite(s->kept[k][i]);
    }
    if (whole) return GR_OK;
    return gr_diag_error(d, s->node->at, GR_E_INVALID,
                         "the checkpoint's state '%s' of the records of node '%s' is not a number for each",
                         s->session->graph->record_state[k].name, s->node->name);
}

/* Of other data nothing is known: its records begin anew. */
static gr_status load_kept(const data_state *s, const char *prefix, const gr_state_file *in, bool same_data,
                           gr_diag *d)
{
    const gr_graph *g = s->session->graph;
    gr_status st = GR_OK;
    for (uint32_t k = 0; k < g->n_record_state && !st && same_data; k++) {
        char *key = gr_printf("state.%s", g->record_state[k].name), *text = NULL;
        if (s->kept[k]) st = gr_state_get_text(in, prefix, key, &text, d);
        if (!st && text) st = load_one(s, k, text, d);
        free(text);
        free(key);
    }
    return st;
}

static gr_status check_columns(const data_state *s, uint32_t record, const sample *x, gr_diag *d)
{
    const uint32_t tokens[2] = {(uint32_t)x->response[0].n, (uint32_t)x->response[1].n};
    json_t *row = NULL;
    gr_status st = has_columns(s) ? gr_data_record(s, record, &row, d) : GR_OK;
    if (row) st = read_columns(s, row, gr_data_at(s, record), tokens, NULL, d);
    json_decref(row);
    return st;
}

/* Whether it is within the node's bounds; an error where those are not to be exceeded. */
static gr_status measure(const data_state *s, uint32_t record, const sample *x, bool *fits, gr_diag *d)
{
    const gr_data_cfg *c = s->node->cfg;
    size_t response = GR_MAX(x->response[0].n, x->response[1].n);
    bool long_prompt = x->prompt.n > c->max_tokens,
         long_response = n_responses(s) && response > c->max_response_tokens;
    *fits = !long_prompt && !long_response;
    if (*fits || c->too_long != GR_TOO_LONG_ERROR) return GR_OK;
    return gr_diag_error(d, gr_data_at(s, record), GR_E_INVALID,
                         "%s of %zu tokens, but node '%s' allows %u (too_long: %s)",
                         long_prompt ? "a prompt" : "a response", long_prompt ? x->prompt.n : response,
                         s->node->name, long_prompt ? c->max_tokens : c->max_response_tokens,
                         c->of ? "truncate_left cuts such prompts" : "drop leaves such records out");
}

/* Its last tokens, as many as a prompt may have. */
static void cut_left(const gr_data_cfg *c, gr_ids *prompt)
{
    const size_t cut = prompt->n - c->max_tokens;
    memmove(prompt->id, prompt->id + cut, c->max_tokens * sizeof(*prompt->id));
    prompt->n = c->max_tokens;
}

/* Whether the record stays; cut prompts are cut in place. */
static gr_status fit(data_state *s, uint32_t record, sample *x, bool *keep, gr_diag *d)
{
    const gr_data_cfg *c = s->node->cfg;
    gr_status st = measure(s, record, x, keep, d);
    if (st || *keep) return st;
    *keep = c->too_long == GR_TOO_LONG_TRUNCATE_LEFT && x->response[0].n <= c->max_response_tokens &&
            x->response[1].n <= c->max_response_tokens;
    if (*keep)
        cut_left(c, &x->prompt);
    else
        s->dropped++;
    return GR_OK;
}

gr_status gr_data_open(const void *state, uint32_t record, const json_t *messages, const json_t *tools,
                       gr_ids *ids, gr_diag *d)
{
    const data_state *s = state;
    const gr_data_cfg *c = s->node->cfg;
    const gr_loc at = gr_data_at(s, record);
    json_t *row = NULL;
    gr_status st = gr_data_record(s, record, &row, d);
    if (!st) st = gr_encoder_open(s->prompt, row, at, messages, tools, ids, d);
    json_decref(row);
    if (!st && !ids->n) return gr_diag_error(d, at, GR_E_INVALID, "the conversation opens without a token");
    if (st || ids->n <= c->max_tokens) return st;
    if (c->too_long != GR_TOO_LONG_TRUNCATE_LEFT)
        return gr_diag_error(d, at, GR_E_INVALID,
                             "the conversation opens with %zu tokens, but node '%s' allows %u (too_long: "
                             "truncate_left cuts them)",
                             ids->n, s->node->name, c->max_tokens);
    cut_left(c, ids);
    return GR_OK;
}

static void sample_release(sample *x)
{
    free(x->prompt.id);
    free(x->response[0].id);
    free(x->response[1].id);
}

/* What the first record has, of which nearly always all have the same. */
static void note_fields(const data_state *s, const json_t *row, gr_diag *d)
{
    gr_str names = {0};
    for (void *it = json_object_iter((json_t *)row); it; it = json_object_iter_next((json_t *)row, it))
        gr_str_printf(&names, "%s%s", names.len ? ", " : "", json_object_iter_key(it));
    gr_diag_note(d, gr_data_at(s, 0), "the first record has %s", names.text ? names.text : "no fields");
    gr_str_release(&names);
}

/* A field that the first record has not is said once, where the graph names it, and not of every record. */
static gr_status check_first(const data_state *s, gr_diag *d)
{
    json_t *row = NULL;
    if (!s->order.n || gr_data_record(s, 0, &row, NULL)) return GR_OK; /* said below, with the others */
    gr_status st = gr_encoder_check(s->prompt, row, d);
    for (unsigned i = 0; i < n_responses(s); i++)
        if (gr_encoder_check(s->response[i], row, d)) st = GR_E_INVALID;
    if (st) note_fields(s, row, d);
    json_decref(row);
    return st;
}

gr_status gr_data_check_field(const void *state, const char *field, gr_loc at, gr_diag *d)
{
    const data_state *s = state;
    json_t *row = NULL;
    const json_t *value;
    if (!s->order.n || gr_data_record(s, 0, &row, NULL)) return GR_OK;
    gr_status st = gr_json_field(row, field, at, &value, d);
    if (st) note_fields(s, row, d);
    json_decref(row);
    return st;
}

/* Every record once, before anything runs: one that cannot be used would else end the run in the iteration
 * that draws it, hours later perhaps. */
static gr_status check_records(const data_state *s, gr_diag *d)
{
    enum { MOST_ERRORS = 5 };
    sample x = {0};
    size_t bad = 0, too_long = 0, n = s->order.n;
    if (check_first(s, d)) return GR_E_INVALID;
    for (size_t i = 0; i < n && bad < MOST_ERRORS; i++) {
        bool fits = true;
        gr_status st = encode_record(s, (uint32_t)i, &x, d);
        if (!st) st = check_columns(s, (uint32_t)i, &x, d);
        if (!st) st = measure(s, (uint32_t)i, &x, &fits, d);
        bad += st != GR_OK;
        too_long += !st && !fits;
    }
    sample_release(&x);
    if (bad == MOST_ERRORS)
        gr_diag_note(d, (gr_loc){0}, "there may be more; the rest of node '%s' was not looked at",
                     s->node->name);
    if (bad) return GR_E_INVALID;
    if (too_long == n && ((const gr_data_cfg *)s->node->cfg)->too_long == GR_TOO_LONG_DROP)
        return gr_diag_error(d, s->node->at, GR_E_INVALID, "every record of node '%s' is too long",
                             s->node->name);
    return GR_OK;
}

static void add_record(const data_state *s, gr_rows *r, uint32_t record, const sample *x)
{
    uint32_t group = gr_rows_add_group(r, record);
    for (unsigned i = 0; i < GR_MAX(n_responses(s), 1u); i++) {
        const gr_ids *prompt = &x->prompt, *response = &x->response[i];
        const gr_seq_ids ids = {prompt->id, response->id, (uint32_t)prompt->n, (uint32_t)response->n};
        r->ended[gr_rows_add_seq(r, group, &ids)] = n_responses(s) && is_ended(s, response);
    }
}

/* A validation draws the same records each time: the first of its first epoch, none of them twice. */
static void begin_validation(data_state *s)
{
    s->cursor = (gr_cursor){0, 0};
    s->dropped = 0;
}

static gr_status data_draw(data_state *s, gr_rows *r, gr_diag *d)
{
    const gr_data_cfg *c = s->node->cfg;
    sample x = {0};
    gr_status st = GR_OK;
    size_t dropped_in_a_row = 0;
    const uint32_t wanted = s->keeper ? gr_kept_wanted(s->session->state[s->keeper->index]) : c->batch;
    if (s->node->timing.every) begin_validation(s);
    *r->n_groups = *r->n_seqs = r->token_offset[0] = 0;
    while (!st && *r->n_groups < wanted && !(s->node->timing.every && s->cursor.epoch)) {
        size_t record;
        bool keep = false;
        gr_order_draw(&s->order, &s->cursor, 1, &record);
        st = encode_record(s, (uint32_t)record, &x, d);
        if (!st) st = fit(s, (uint32_t)record, &x, &keep, d);
        dropped_in_a_row = keep ? 0 : dropped_in_a_row + 1;
        /* the only one that fits may be the first of its epoch and the last of the next */
        if (!st && dropped_in_a_row > 2 * s->order.n) break;
        if (!st && keep) add_record(s, r, (uint32_t)record, &x);
    }
    if (!st && !*r->n_groups)
        st = gr_diag_error(d, s->node->at, GR_E_INVALID, "every record of node '%s' is too long",
                           s->node->name);
    sample_release(&x);
    return st;
}

static void data_close(void *state)
{
    data_state *s = state;
    if (!s) return;
    gr_encoder_free(s->prompt);
    gr_encoder_free(s->response[0]);
    gr_encoder_free(s->response[1]);
    close_kept(s);
    gr_order_release(&s->order);
    gr_jsonl_free(s->source);
    free(s->columns);
    free(s->state_of);
    free(s);
}

/* ---- prompts of rows ------------------------------------------------------------------------------------
 */

/* The record of a row, with what was said as `prompt` and `response`. */
static gr_status record_of_row(const data_state *s, const gr_rows *of, uint32_t seq, json_t **out, gr_diag *d)
{
    const gr_node *rows = s->node->of->rows;
    gr_str prompt = {0}, response = {0};
    json_t *record = NULL;
    const gr_status st = gr_data_record(s, of->record[of->group[seq]], &record, d);
    if (st) return st;
    gr_tokenizer_decode(gr_session_tokenizer(s->session, rows), gr_rows_ids(of, seq), of->prompt_len[seq],
                        false, &prompt);
    gr_response_text(s->session, rows, of, seq, &response, NULL);
    *out = json_copy(record);
    json_object_set_new(*out, "prompt", gr_json_string(prompt.len ? prompt.text : "", prompt.len));
    json_object_set_new(*out, "response", gr_json_string(response.len ? response.text : "", response.len));
    json_decref(record);
    gr_str_release(&prompt);
    gr_str_release(&response);
    return GR_OK;
}

static gr_status make_prompt(data_state *s, const gr_rows *of, uint32_t seq, sample *x, gr_rows *r,
                             gr_diag *d)
{
    const uint32_t record = of->record[of->group[seq]];
    json_t *row = NULL;
    bool keep = true;
    x->prompt.n = 0;
    gr_status st = record_of_row(s, of, seq, &row, d);
    if (!st) st = gr_encoder_run(s->prompt, row, gr_data_at(s, record), &x->prompt, d);
    if (!st && !x->prompt.n)
        st = gr_diag_error(d, gr_data_at(s, record), GR_E_INVALID, "the prompt of '%s' has no tokens",
                           s->node->name);
    if (!st) st = fit(s, record, x, &keep, d);
    if (!st) add_record(s, r, record, x);
    json_decref(row);
    return st;
}

static gr_status data_make(data_state *s, const gr_rows *of, gr_rows *r, gr_diag *d)
{
    sample x = {0};
    gr_status st = GR_OK;
    *r->n_groups = *r->n_seqs = r->token_offset[0] = 0;
    for (uint32_t seq = 0; seq < *of->n_seqs && !st; seq++) st = make_prompt(s, of, seq, &x, r, d);
    sample_release(&x);
    return st;
}

static gr_status data_open(gr_session *session, const gr_node *n, void **state, gr_diag *d)
{
    const gr_data_cfg *c = n->cfg;
    data_state *s = gr_calloc(1, sizeof(*s));
    *s = (data_state){.session = session,
                      .node = n,
                      .keeper = gr_kept_of(session->graph, n),
                      .columns = gr_calloc(n->results.n_columns + 1, sizeof(*s->columns)),
                      .dropped_metric = gr_session_name(session, n, "%s.dropped", n->name)};
    s->state_of = gr_calloc(n->results.n_columns + 1, sizeof(*s->state_of));
    for (size_t i = 0; i < n->results.n_columns; i++)
        s->state_of[i] = state_of(session->graph, n->results.columns[i]);
    gr_status st = c->of     ? GR_OK
                   : c->file ? gr_jsonl_open(&s->source, c->file, key_at(n, "file"), d)
                             : gr_jsonl_command(&s->source, c->command, key_at(n, "command"), d);
    double *keys = NULL;
    if (!st) st = open_encoders(s, d);
    if (!st && c->curriculum) st = read_keys(s, &keys, d);
    if (!st && !c->of)
        gr_order_init(&s->order, gr_jsonl_rows(s->source), c->shuffle, keys,
                      session->seed ^ gr_stream(n->name));
    if (!st && !c->of) open_kept(s);
    if (!st && !c->of) st = check_records(s, d);
    if (!st) gr_encoder_warn_of_date(s->prompt, n->name, d);
    if (st)
        data_close(s);
    else
        *state = s;
    return st;
}

static gr_status data_inputs(const void *state, const char *owner, gr_inputs *in, gr_diag *d)
{
    const data_state *s = state;
    (void)d;
    if (!s->source) return GR_OK;
    const gr_jsonl_content c = gr_jsonl_content_of(s->source);
    gr_inputs_add(in, (gr_input){.kind = GR_INPUT_DATA,
                                 .owner = owner,
                                 .name = c.name,
                                 .path = c.path,
                                 .bytes = c.bytes,
                                 .hash = c.hash,
                                 .hashed = true});
    return GR_OK;
}

/* A column that is not read from the records: of the rows, or of what records keep. */
static void fill_own(const data_state *s, const gr_rows *r, size_t i, void *out)
{
    if (!out || is_of_record(s, i)) return;
    if (s->state_of[i] == GR_NONE)
        gr_rows_column(r, s->node->results.columns[i], out);
    else
        fill_kept(s, r, s->state_of[i], out);
}

static gr_status data_run(const gr_call *call, gr_diag *d)
{
    data_state *s = call->state;
    const gr_node *n = call->node;
    gr_rows r = gr_rows_at(call->ptr[DRAW_ROWS], &n->bounds);
    const bool made = n->of != NULL;
    const gr_rows of = made ? gr_rows_at(call->ptr[DRAW_OF], &n->of->rows->bounds) : (gr_rows){0};
    gr_status st = made ? data_make(s, &of, &r, d) : data_draw(s, &r, d);
    if (st) return st;
    for (size_t i = 0; i < n->results.n_columns; i++) fill_own(s, &r, i, call->ptr[N_DRAW + i]);
    if (has_columns(s)) st = fill_columns(s, &r, call->ptr + N_DRAW, d);
    if (s->dropped) gr_session_metric(s->session, s->dropped_metric, (double)s->dropped);
    return st;
}

static void data_save(void *state, const char *prefix, gr_state_file *out)
{
    const data_state *s = state;
    if (s->node->timing.every || !s->source) return; /* begins anew each time */
    gr_state_set_u64(out, prefix, "epoch", s->cursor.epoch);
    gr_state_set_u64(out, prefix, "position", s->cursor.position);
    gr_state_set_u64(out, prefix, "dropped", s->dropped);
    gr_state_set_u64(out, prefix, "data_hash", gr_jsonl_hash(s->source));
    save_kept(s, prefix, out);
}

static gr_status data_load(void *state, const char *prefix, const gr_state_file *in, gr_diag *d)
{
    data_state *s = state;
    uint64_t hash = 0;
    if (s->node->timing.every || !s->source) return GR_OK;
    gr_status st = gr_state_get_u64(in, prefix, "epoch", &s->cursor.epoch, d);
    if (!st) st = gr_state_get_u64(in, prefix, "position", &s->cursor.position, d);
    if (!st) st = gr_state_get_u64(in, prefix, "dropped", &s->dropped, d);
    if (!st) st = gr_state_get_u64(in, prefix, "data_hash", &hash, d);
    if (!st) st = load_kept(s, prefix, in, hash == gr_jsonl_hash(s->source), d);
    if (st || (hash == gr_jsonl_hash(s->source) && s->cursor.position < s->order.n)) return st;
    s->cursor.position = 0;
    if (s->keeper)
        return gr_diag_error(
            d, s->node->at, GR_E_INVALID,
            "the data of node '%s' changed since the checkpoint, and '%s' keeps rows of it: go on "
            "with the data as it was",
            s->node->name, s->keeper->name);
    gr_diag_warn(d, s->node->at, "the data of node '%s' changed since the checkpoint: its epoch starts anew",
                 s->node->name);
    return GR_OK;
}

/* clang-format off */
#define DATA_FACTS /* what the two ops share beyond their keys */ \
    .lane = GR_LANE_COMPUTE, .makes_rows = true, .cfg_bytes = sizeof(gr_data_cfg), \
    .any_field = true, .field = field_of_record, .check = check_data, .declare = declare_data, .open = data_open, .close = data_close, \
    .inputs = data_inputs, .run = data_run, .save = data_save, .load = data_load
/* clang-format on */

const gr_op gr_op_prompts = {
    .name = "prompts",
    .summary = "draw prompts from a JSONL file",
    .doc = "Each record is one prompt, and one group for the nodes that follow. prompts.FIELD is a field of "
           "the record.",
    .keys = prompts_keys,
    .fields = prompts_fields,
    DATA_FACTS,
};

const gr_op gr_op_sequences = {
    .name = "sequences",
    .summary = "draw prompts with their responses from a JSONL file",
    .doc = "Makes rows as a rollout does, for supervised training. Each record is a group of one sequence; "
           "with `pair`, of two.",
    .keys = sequences_keys,
    .fields = sequences_fields,
    DATA_FACTS,
};
