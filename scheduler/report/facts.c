/* scheduler/report/facts.c: see its header. */
#include "scheduler/report/facts.h"

#include "ops/base/op.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* 1,048,576 */
static void put_count(gr_str *out, uint64_t n)
{
    char digits[24];
    const int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);
    for (int i = 0; i < len; i++) gr_str_printf(out, "%s%c", i && (len - i) % 3 == 0 ? "," : "", digits[i]);
}

static char *taken(gr_str *s)
{
    return s->text ? s->text : gr_strdup("");
}

/* ---- models ------------------------------------------------------------------------------------------- */

/* The folder of a checkpoint, without those around it. */
static void put_folder(gr_str *out, const gr_model *m)
{
    const char *path = m->files.folder;
    size_t end = strlen(path), from;
    while (end > 1 && path[end - 1] == '/') end--;
    for (from = end; from && path[from - 1] != '/';) from--;
    gr_str_add(out, path + from, end - from);
}

static bool same_files(const gr_model *a, const gr_model *b)
{
    return !strcmp(a->files.checkpoint, b->files.checkpoint);
}

static void put_params(gr_str *out, uint64_t n)
{
    if (n >= 1000000000)
        gr_str_printf(out, "%.3g billion", (double)n / 1e9);
    else if (n >= 1000000)
        gr_str_printf(out, "%.3g million", (double)n / 1e6);
    else
        put_count(out, n);
}

/* Each checkpoint once, in the order of the models. */
static char *model_names(const gr_graph *g)
{
    gr_str s = {0};
    for (size_t i = 0; i < g->n_models; i++) {
        size_t k = 0;
        while (k < i && !same_files(g->models[k], g->models[i])) k++;
        if (k < i) continue;
        gr_str_puts(&s, s.len ? ", " : "");
        put_folder(&s, g->models[i]);
    }
    return taken(&s);
}

static bool same_size(const gr_model *a, const gr_model *b)
{
    gr_str x = {0}, y = {0};
    put_params(&x, gr_model_params(&a->shape));
    put_params(&y, gr_model_params(&b->shape));
    const bool same = !strcmp(x.text, y.text);
    gr_str_release(&x);
    gr_str_release(&y);
    return same;
}

/* "actor, ref: 8.19 billion; critic: 596 million parameters" */
static char *model_sizes(const gr_graph *g)
{
    gr_str s = {0};
    for (size_t i = 0; i < g->n_models; i++) {
        const gr_model *m = g->models[i];
        bool told = m->implied;
        for (size_t k = 0; k < i; k++) told |= same_size(g->models[k], m);
        if (told) continue;
        gr_str_printf(&s, "%s%s", s.len ? "; " : "", m->name);
        for (size_t k = i + 1; k < g->n_models; k++)
            if (same_size(g->models[k], m) && !g->models[k]->implied)
                gr_str_printf(&s, ", %s", g->models[k]->name);
        gr_str_puts(&s, ": ");
        put_params(&s, gr_model_params(&m->shape));
    }
    gr_str_puts(&s, s.len ? " parameters" : "");
    return taken(&s);
}

/* ---- the batch ---------------------------------------------------------------------------------------- */

/* The node whose rows an iteration is about: the first that generates, else the first that has rows. */
static const gr_node *batch_node(const gr_graph *g)
{
    const gr_node *rows = NULL;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (n->timing.every || n->rows != n || !n->bounds.seqs) continue;
        if (n->op->generates) return n;
        if (!rows) rows = n;
    }
    return rows;
}

static char *batch_size(const gr_node *n)
{
    gr_str s = {0};
    put_count(&s, n->bounds.seqs);
    gr_str_puts(&s, n->op->generates ? " responses" : " sequences");
    return taken(&s);
}

/* "128 x 8, at most 256 + 512 tokens each" */
static char *batch_note(const gr_node *n)
{
    gr_str s = {0};
    const gr_rows_bounds *b = &n->bounds;
    if (n->op->generates && b->groups && b->seqs % b->groups == 0 && b->seqs > b->groups)
        gr_str_printf(&s, "%u × %u, ", b->groups, b->seqs / b->groups);
    gr_str_puts(&s, "at most ");
    put_count(&s, b->prompt_tokens);
    if (n->op->generates) {
        gr_str_puts(&s, " + ");
        put_count(&s, b->response_tokens);
    }
    gr_str_puts(&s, " tokens each");
    return taken(&s);
}

static char *speed(const gr_plan *p, const gr_node *n)
{
    const uint64_t tokens = (uint64_t)n->bounds.seqs * (n->bounds.prompt_tokens + n->bounds.response_tokens);
    const double rate = p->ns ? (double)tokens / ((double)p->ns * 1e-9) : 0;
    gr_str s = {0};
    if (rate < 1) return taken(&s);
    put_count(&s, (uint64_t)(rate + 0.5));
    gr_str_puts(&s, " tokens/s");
    return taken(&s);
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static char *devices_note(const gr_plan *p)
{
    const uint32_t ranks = gr_plan_all_ranks(p);
    if (p->n_more) return gr_printf("%u roles", p->n_more + 1);
    if (p->hosts > 1 && ranks) return gr_printf("%u hosts of %u", p->hosts, ranks / p->hosts);
    if (p->hosts && ranks > 1) return gr_strdup("on one host");
    return gr_printf("%u rank%s", ranks, ranks == 1 ? "" : "s");
}

void gr_facts(const gr_plan *p, const gr_graph *g, gr_fact out[GR_N_FACTS])
{
    const gr_node *n = g ? batch_node(g) : NULL;
    const uint32_t ranks = gr_plan_all_ranks(p);
    out[GR_FACT_MODEL] =
        (gr_fact){"Model", g ? model_names(g) : gr_strdup(""), g ? model_sizes(g) : gr_strdup("")};
    out[GR_FACT_BATCH] =
        (gr_fact){"Batch", n ? batch_size(n) : gr_strdup(""), n ? batch_note(n) : gr_strdup("")};
    out[GR_FACT_SPEED] = (gr_fact){"Predicted speed", n ? speed(p, n) : gr_strdup(""),
                                   gr_strdup("of prompts and responses at full length")};
    out[GR_FACT_DEVICES] =
        (gr_fact){"Devices", gr_printf("%u × %s", ranks ? ranks : 1, p->hardware), devices_note(p)};
}

void gr_facts_release(gr_fact facts[GR_N_FACTS])
{
    for (int i = 0; i < GR_N_FACTS; i++) {
        free(facts[i].value);
        free(facts[i].note);
    }
}
