/* runtime/run/run_keep.c: rows as lines of RUN/samples. */
#include "runtime/run/run_keep.h"

#include <math.h>
#include <stdlib.h>

#include "ops/base/rows.h"
#include "ops/scorer.h"
#include "ops/summary.h"
#include "runtime/io/metrics.h"
#include "runtime/io/responses.h"
#include "runtime/run/record.h"

static void add_float(gr_str *out, double x)
{
    gr_str_printf(out, isfinite(x) ? "%.9g" : "null", x);
}

static void add_integers(gr_str *out, const char *key, const int32_t *x, uint32_t n)
{
    gr_str_printf(out, ", \"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) gr_str_printf(out, i ? ", %d" : "%d", x[i]);
    gr_str_putc(out, ']');
}

static void add_text(gr_str *out, const char *key, gr_str *text)
{
    gr_str_printf(out, ", \"%s\": ", key);
    gr_json_add_text(out, text->text ? text->text : "", text->len);
    gr_str_release(text);
}

static void add_number(gr_str *out, const char *key, double x)
{
    gr_str_printf(out, ", \"%s\": ", key);
    gr_json_add_number(out, x);
}

static void add_texts(gr_str *out, const gr_session *s, const gr_shown *what, uint32_t seq)
{
    const gr_tokenizer *t = gr_session_tokenizer(s, what->node);
    gr_str prompt = {0}, response = {0}, segments = {0};
    gr_tokenizer_decode(t, gr_rows_ids(what->rows, seq), what->rows->prompt_len[seq], false, &prompt);
    gr_response_text(s, what->node, what->rows, seq, &response, NULL);
    add_text(out, "prompt", &prompt);
    add_text(out, "response", &response);
    if (!what->rows->turns) return;
    gr_record_segments(t, what->rows, seq, true, &segments);
    gr_str_printf(out, ", \"segments\": %s", segments.text);
    gr_str_release(&segments);
}

/* Of a conversation: which of its ids the model sampled. */
static void add_sampled(gr_str *out, const gr_rows *r, uint32_t seq)
{
    const uint32_t first = r->token_offset[seq], end = r->token_offset[seq + 1];
    gr_str_puts(out, ", \"sampled\": [");
    for (uint32_t t = first; t < end; t++)
        gr_str_printf(out, t > first ? ", %d" : "%d", gr_rows_counts(r, t));
    gr_str_putc(out, ']');
}

static void add_tokens(gr_str *out, const gr_shown *what, uint32_t seq)
{
    const gr_rows *r = what->rows;
    const uint32_t n = r->response_len[seq];
    const size_t first = (size_t)seq * what->node->bounds.response_tokens;
    add_integers(out, "prompt_ids", gr_rows_ids(r, seq), r->prompt_len[seq]);
    add_integers(out, "ids", gr_rows_ids(r, seq) + r->prompt_len[seq], n);
    gr_str_printf(out, ", \"truncated\": %s", r->truncated[seq] ? "true" : "false");
    if (r->turns) add_sampled(out, r, seq);
    if (r->version) add_integers(out, "versions", r->version + first, n);
    if (!gr_rows_maker(what->node)->op->generates) return;
    gr_str_puts(out, ", \"logprobs\": [");
    for (uint32_t i = 0; i < n; i++) {
        if (i) gr_str_puts(out, ", ");
        add_float(out, (double)r->logprob[first + i]);
    }
    gr_str_putc(out, ']');
}

static void add_value(gr_str *out, const gr_shown *what, const gr_shown_column *c, uint32_t seq)
{
    const uint32_t first = what->rows->token_offset[seq], end = what->rows->token_offset[seq + 1];
    gr_json_add_text(out, c->column->name, strlen(c->column->name));
    gr_str_puts(out, ": ");
    if (!c->data || c->column->level != GR_LEVEL_TOKEN) {
        add_float(out, gr_shown_at(what, c, seq, 0));
        return;
    }
    for (uint32_t t = first; t < end; t++) {
        gr_str_puts(out, t > first ? ", " : "[");
        add_float(out, gr_shown_at(what, c, seq, t));
    }
    gr_str_puts(out, first == end ? "[]" : "]");
}

static void add_values(gr_str *out, const gr_shown *what, uint32_t seq)
{
    add_number(out, "reward", gr_shown_number(what, &what->reward, seq, false));
    if (what->advantage.column)
        add_number(out, "advantage", gr_shown_number(what, &what->advantage, seq, true));
    gr_str_puts(out, ", \"values\": {");
    for (size_t i = 0; i < what->n_values; i++) {
        if (i) gr_str_puts(out, ", ");
        add_value(out, what, &what->values[i], seq);
    }
    gr_str_putc(out, '}');
}

static void add_line(gr_str *out, const gr_session *s, const gr_shown *what, uint32_t seq)
{
    const uint32_t group = what->rows->group[seq];
    gr_str_printf(out, "{\"step\": %u, \"sequence\": %u, \"group\": %u, \"record\": %u", s->step, seq, group,
                  what->rows->record[group]);
    add_texts(out, s, what, seq);
    add_tokens(out, what, seq);
    add_values(out, what, seq);
    gr_str_puts(out, "}\n");
}

enum { TOGETHER = 16 /* sequences of a member, whatever the threads: so the file's bytes are the same */ };

/* A member for each thread, from sequence `first` on. */
typedef struct packing {
    const gr_session *s;
    const gr_shown *what;
    uint32_t first;
    gr_str *packed; /* [threads] */
} packing;

static void pack_members(void *arg, unsigned rank, unsigned n)
{
    const packing *p = arg;
    const uint32_t first = p->first + rank * TOGETHER, end = GR_MIN(first + TOGETHER, *p->what->rows->n_seqs);
    gr_str lines = {0};
    (void)n;
    p->packed[rank].len = 0;
    for (uint32_t seq = first; seq < end; seq++) add_line(&lines, p->s, p->what, seq);
    if (lines.len) gr_responses_pack(&lines, &p->packed[rank]);
    gr_str_release(&lines);
}

gr_status gr_run_keep(gr_session *s, const gr_shown *what, gr_team *team, gr_diag *d)
{
    const unsigned threads = gr_team_size(team);
    packing p = {.s = s, .what = what, .packed = gr_calloc(threads, sizeof(*p.packed))};
    gr_responses *to = NULL;
    gr_status st = gr_responses_new(&to, s->keep_dir, s->step, d);
    for (; !st && p.first < *what->rows->n_seqs; p.first += threads * TOGETHER) {
        gr_team_run(team, pack_members, &p);
        for (unsigned i = 0; i < threads && !st; i++) st = gr_responses_add(to, &p.packed[i], d);
    }
    for (unsigned i = 0; i < threads; i++) gr_str_release(&p.packed[i]);
    free(p.packed);
    if (!st) return gr_responses_end(to, d);
    gr_responses_free(to);
    return st;
}
