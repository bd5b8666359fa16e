/* Of an update whose every gradient is exactly 0: which values that its loss reads are 0 throughout. */
#include "ops/zeros.h"

#include <stdlib.h>
#include <string.h>

void gr_zeros_init(gr_zeros *z, const gr_env_reads *reads, gr_session *s, const gr_node *update)
{
    *z = (gr_zeros){.reads = reads,
                    .zero = gr_calloc(reads->n + 1, sizeof(*z->zero)),
                    .metric = gr_session_name(s, update, "%s.zero_steps", update->name)};
}

void gr_zeros_release(gr_zeros *z)
{
    free(z->zero);
}

/* Elements of a column in the mini-batch. Of ids, lengths and positions none: they are 0 for other reasons.
 */
static size_t count(const gr_column *c, const gr_env *e)
{
    if (!c->rows || c->dtype == GR_EXPR_I32) return 0;
    const gr_expr_rows *rows = &e->rows[c->rows->index];
    return c->level == GR_LEVEL_GROUP ? e->env.n_groups
           : c->level == GR_LEVEL_SEQ ? rows->n_seqs
                                      : rows->offset[rows->n_seqs];
}

/* Of a number -0 is 0, too. */
static bool is_zero(const void *data, gr_expr_dtype type, size_t n)
{
    bool zero = true;
    for (size_t i = 0; i < n && zero; i++)
        zero = type == GR_EXPR_F64   ? ((const double *)data)[i] == 0
               : type == GR_EXPR_F32 ? ((const float *)data)[i] == 0
                                     : ((const uint8_t *)data)[i] == 0;
    return zero;
}

gr_status gr_zeros_look(gr_zeros *z, const gr_env *e, const gr_node *update, const gr_graph *g, gr_queue *q,
                        void *back, gr_diag *d)
{
    gr_status st = GR_OK;
    const gr_expr_rows *rows = &e->rows[update->rows->index];
    for (size_t i = 0; i < z->reads->n && !st; i++) {
        const gr_column *c = g->columns[z->reads->columns[i]];
        const void *data = e->columns[z->reads->columns[i]].data;
        const size_t n = count(c, e);
        if (n && q) {
            gr_device_read(q, back, data, n * gr_dtype_bytes(c->dtype));
            st = gr_queue_finish(q, d);
            data = back;
        }
        z->zero[i] = !st && n && (!z->steps || z->zero[i]) && is_zero(data, c->dtype, n);
    }
    z->steps++;
    z->tokens += rows->offset[rows->n_seqs];
    return st;
}

static void add_columns(const gr_zeros *z, const gr_graph *g, gr_str *out)
{
    size_t n = 0, named = 0;
    for (size_t i = 0; i < z->reads->n; i++) n += z->zero[i];
    for (size_t i = 0; i < z->reads->n; i++) {
        if (!z->zero[i]) continue;
        named++;
        gr_str_printf(out, "%s'%s'",
                      named == 1   ? ""
                      : named == n ? " and "
                                   : ", ",
                      g->columns[z->reads->columns[i]]->name);
    }
    gr_str_printf(out, " %s 0 everywhere (as an advantage is where all rewards of each group are equal)",
                  n == 1 ? "is" : "are");
}

static void add_reason(const gr_zeros *z, const gr_graph *g, gr_str *out)
{
    if (!z->tokens)
        gr_str_puts(out, "its responses have no tokens");
    else if (memchr(z->zero, true, z->reads->n))
        add_columns(z, g, out);
    else
        gr_str_puts(out,
                    "none of the values that its loss reads is 0 everywhere, so its clips, conditions or "
                    "masks leave no token that is learned from");
}

static void say(const gr_zeros *z, gr_session *s, const gr_node *update, uint32_t mini_batches)
{
    gr_str why = {0};
    if (mini_batches) {
        gr_str_printf(
            &why, "every gradient of '%s' is exactly 0 (%u optimizer step%s), so its rows teach nothing: ",
            update->name, mini_batches, mini_batches == 1 ? "" : "s");
        add_reason(z, s->graph, &why);
    } else {
        gr_str_printf(&why, "'%s' has no rows to learn from: '%s' kept none", update->name,
                      update->rows->name);
    }
    gr_session_note(s, "%s", why.text);
    gr_str_release(&why);
}

void gr_zeros_end(gr_zeros *z, gr_session *s, const gr_node *update, uint32_t mini_batches)
{
    bool nothing = z->steps == mini_batches;
    gr_session_metric(s, z->metric, z->steps);
    if (nothing && !z->before) say(z, s, update, mini_batches);
    z->before = nothing;
    z->steps = 0;
    z->tokens = 0;
}
