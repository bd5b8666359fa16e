/* ops/function_score.c: the batch that a scoring function sees, and what it gave. */
#include "ops/function_score.h"

#include "ops/base/configs.h"
#include "ops/base/session.h"
#include "ops/data.h"
#include "ops/scorer.h"
#include "runtime/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT, RESPONSE, RECORD, ANSWER, N_TEXTS };

struct gr_function_score {
    const gr_session *session;
    const gr_node *node;
    const gr_reward_cfg *cfg;
    const gr_function *function;
    gr_str bytes;           /* of all texts, one behind the other, each with its NUL */
    gr_text *text[N_TEXTS]; /* [seqs] */
    size_t *at;             /* [N_TEXTS x seqs] where each begins: bytes move while they grow */
    double *scores;         /* [tokens, or names of all sequences] */
};

static size_t most_scores(const gr_node *n, const gr_reward_cfg *c)
{
    const size_t seqs = n->rows->bounds.seqs;
    return c->level ? seqs * n->rows->bounds.response_tokens : seqs * GR_MAX(c->names.n, (size_t)1);
}

gr_status gr_function_score_new(gr_function_score **out, const gr_session *s, const gr_node *n, gr_diag *d)
{
    const gr_reward_cfg *cfg = n->cfg;
    const gr_function *function = NULL;
    gr_status st = gr_function_find(&function, s->functions, cfg->function, false,
                                    gr_value_get(n->value, "function")->at, d);
    if (st) return st;
    gr_function_score *f = gr_calloc(1, sizeof(*f));
    *f = (gr_function_score){.session = s, .node = n, .cfg = cfg, .function = function};
    for (int i = 0; i < N_TEXTS; i++) f->text[i] = gr_calloc(n->rows->bounds.seqs, sizeof(gr_text));
    f->at = gr_calloc((size_t)n->rows->bounds.seqs * N_TEXTS, sizeof(*f->at));
    f->scores = gr_calloc(most_scores(n, cfg), sizeof(*f->scores));
    *out = f;
    return GR_OK;
}

void gr_function_score_free(gr_function_score *f)
{
    if (!f) return;
    gr_str_release(&f->bytes);
    for (int i = 0; i < N_TEXTS; i++) free(f->text[i]);
    free(f->at);
    free(f->scores);
    free(f);
}

/* ---- texts -----------------------------------------------------------------------------------------------
 */

static gr_status put_record(gr_function_score *f, uint32_t record, gr_diag *d)
{
    json_t *fields = NULL;
    gr_status st =
        gr_data_record(f->session->state[gr_groups_maker(f->node->groups)->index], record, &fields, d);
    char *text = st ? NULL : json_dumps(fields, JSON_COMPACT);
    gr_str_puts(&f->bytes, text ? text : "");
    free(text);
    json_decref(fields);
    return st;
}

static gr_status put_text(gr_function_score *f, int which, const gr_rows *rows, uint32_t seq, gr_diag *d)
{
    const gr_node *answers = f->cfg->answer.node, *of = f->node->rows;
    const uint32_t record = rows->record[rows->group[seq]];
    gr_str response = {0}; /* it is cut at a stop text, which is sought in all that there is */
    switch (which) {
    case PROMPT:
        gr_tokenizer_decode(gr_session_tokenizer(f->session, of), gr_rows_ids(rows, seq),
                            rows->prompt_len[seq], false, &f->bytes);
        return GR_OK;
    case RESPONSE:
        gr_response_text(f->session, of, rows, seq, &response, NULL);
        if (response.len) gr_str_add(&f->bytes, response.text, response.len);
        gr_str_release(&response);
        return GR_OK;
    case RECORD:
        return put_record(f, record, d);
    default:
        return answers ? gr_data_text(f->session->state[answers->index], record, f->cfg->answer.field,
                                      &f->bytes, d)
                       : GR_OK;
    }
}

static gr_status read_texts(gr_function_score *f, const gr_rows *rows, gr_rows_part own, gr_diag *d)
{
    const uint32_t n = own.seq_end - own.seq;
    gr_status st = GR_OK;
    f->bytes.len = 0;
    for (uint32_t i = 0; i < n * N_TEXTS && !st; i++) {
        gr_text *text = &f->text[i % N_TEXTS][i / N_TEXTS];
        f->at[i] = f->bytes.len;
        st = put_text(f, (int)(i % N_TEXTS), rows, own.seq + i / N_TEXTS, d);
        text->n = f->bytes.len - f->at[i];
        gr_str_putc(&f->bytes, '\0');
    }
    for (uint32_t i = 0; i < n * N_TEXTS && !st; i++)
        f->text[i % N_TEXTS][i / N_TEXTS].text = f->bytes.text + f->at[i];
    return st;
}

/* ---- scores ----------------------------------------------------------------------------------------------
 */

static gr_status check_scores(const gr_function_score *f, const gr_batch *b, size_t n, gr_diag *d)
{
    size_t bad = 0;
    while (bad < n && gr_json_fits_float(b->scores[bad])) bad++;
    if (bad == n) return GR_OK;
    uint32_t seq = (uint32_t)(bad / GR_MAX(b->n_names, 1u));
    for (seq = b->per_token ? 0 : seq; b->per_token; seq++)
        if (bad < b->rows->token_offset[b->first + seq + 1] - b->rows->token_offset[b->first]) break;
    return gr_diag_error(d, gr_value_get(f->node->value, "function")->at, GR_E_FAILED,
                         "the function '%s' gave %g for sequence %u, which is no number that a 32-bit float "
                         "can hold",
                         f->cfg->function, b->scores[bad], b->first + seq);
}

gr_status gr_function_score_run(gr_function_score *f, const gr_rows *rows, gr_rows_part own,
                                const double **values, gr_diag *d)
{
    const bool per_token = f->cfg->level == 1;
    const uint32_t n = own.seq_end - own.seq,
                   tokens = rows->token_offset[own.seq_end] - rows->token_offset[own.seq];
    const size_t n_scores = per_token ? tokens : n * GR_MAX(f->cfg->names.n, (size_t)1);
    const gr_batch b = {.node = f->node->name,
                        .step = f->session->step,
                        .first = own.seq,
                        .n = n,
                        .n_tokens = tokens,
                        .longest = f->node->rows->bounds.response_tokens,
                        .rows = rows,
                        .prompt = f->text[PROMPT],
                        .response = f->text[RESPONSE],
                        .answer = f->cfg->answer.node ? f->text[ANSWER] : NULL,
                        .record = f->text[RECORD],
                        .n_names = (uint32_t)f->cfg->names.n,
                        .names = f->cfg->names.text,
                        .per_token = per_token,
                        .scores = f->scores};
    for (size_t i = 0; i < n_scores; i++) f->scores[i] = NAN;
    *values = f->scores;
    gr_status st = read_texts(f, rows, own, d);
    if (!st) st = f->function->score(f->function->user, &b, d);
    return st ? st : check_scores(f, &b, n_scores, d);
}
