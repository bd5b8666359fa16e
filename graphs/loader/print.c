/* graphs/loader/print.c: a graph as text: the resolved file, and what `check --explain` shows. */
#include "graphs/loader/loader.h"

#include "ops/base/rows.h"
#include "ops/model/adapters.h"
#include "runtime/base/files.h"
#include "graphs/loader/print.h"

#include <errno.h>
#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- values ----------------------------------------------------------------------------------------------
 */

/* What YAML takes as a line's end, or not at all: C1 controls (NEL is one), LS, PS, a BOM and no characters.
 * Bytes of it; 0: text as any other. */
static int unprintable(const unsigned char *p, unsigned *code)
{
    if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) return *code = p[1], 2;
    if (p[0] < 0xe2 || p[0] > 0xef || !p[1] || !p[2]) return 0;
    *code = (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return *code == 0x2028 || *code == 0x2029 || *code == 0xfeff || *code >= 0xfffe ? 3 : 0;
}

void gr_str_quoted(gr_str *out, const char *text)
{
    unsigned code;
    gr_str_putc(out, '"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        const int bytes = unprintable(p, &code);
        if (bytes) {
            gr_str_printf(out, "\\u%04x", code);
            p += bytes - 1;
            continue;
        }
        if (*p == '"' || *p == '\\')
            gr_str_printf(out, "\\%c", *p);
        else if (*p == '\n')
            gr_str_puts(out, "\\n");
        else if (*p < 0x20 || *p == 0x7f)
            gr_str_printf(out, "\\u%04x", *p);
        else
            gr_str_putc(out, (char)*p);
    }
    gr_str_putc(out, '"');
}

static bool safe(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    return *text && strspn(text, letters) == strlen(text) && !strchr("-.+", *text) && strcmp(text, "null");
}

static bool number(const gr_value *v)
{
    double x;
    return gr_value_number(v, &x);
}

static void print_value(gr_str *out, const gr_value *v);

static void print_key(gr_str *out, const char *key)
{
    if (safe(key))
        gr_str_puts(out, key);
    else
        gr_str_quoted(out, key);
    gr_str_puts(out, ": ");
}

static void print_items(gr_str *out, const gr_value *v)
{
    bool map = v->kind == GR_VALUE_MAP;
    gr_str_putc(out, map ? '{' : '[');
    for (size_t i = 0; i < v->n; i++) {
        if (i) gr_str_puts(out, ", ");
        if (map) print_key(out, v->pairs[i].key);
        print_value(out, map ? &v->pairs[i].value : &v->items[i]);
    }
    gr_str_putc(out, map ? '}' : ']');
}

static void print_value(gr_str *out, const gr_value *v)
{
    if (v->kind == GR_VALUE_NULL)
        gr_str_puts(out, "null");
    else if (v->kind != GR_VALUE_SCALAR)
        print_items(out, v);
    else if (!v->quoted && !v->block && (safe(v->text) || number(v)))
        gr_str_puts(out, v->text);
    else
        gr_str_quoted(out, v->text);
}

/* Whether a block may hold it, which has no escapes. */
static bool is_plain(const char *text)
{
    unsigned code;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if ((*p < 0x20 && *p != '\n') || *p == 0x7f || unprintable(p, &code)) return false;
    return true;
}

/* Lines stay lines, where a block holds exactly this text. */
static void print_text(gr_str *out, const gr_value *v, int indent)
{
    size_t n = v->kind == GR_VALUE_SCALAR ? strlen(v->text) : 0;
    bool block = n && strchr(v->text, '\n') && !strchr(" \n", *v->text) && is_plain(v->text);
    if (!block || (n > 1 && v->text[n - 1] == '\n' && v->text[n - 2] == '\n')) {
        print_value(out, v);
        return;
    }
    gr_str_puts(out, v->text[n - 1] == '\n' ? "|" : "|-");
    for (const char *p = v->text; *p;) {
        size_t line = strcspn(p, "\n");
        gr_str_printf(out, "\n%*s%.*s", line ? indent : 0, "", (int)line, p);
        p += line + (p[line] == '\n');
    }
}

/* A text that is no expression, in quotes, as it reads back. */
static void print_plain(gr_str *out, const char *text)
{
    gr_arena *arena = gr_arena_new();
    const gr_value v = {.kind = GR_VALUE_SCALAR, .text = text};
    gr_str_quoted(out, gr_source_as_written(arena, &v).text);
    gr_arena_free(arena);
}

static void print_path(gr_str *out, const char *path, gr_paths how)
{
    char *real = gr_path_real(path), *cwd = getcwd(NULL, 0);
    if (!cwd && errno == ENOMEM) gr_out_of_memory(0);
    char *whole = *path == '/' || !cwd ? gr_strdup(path) : gr_printf("%s/%s", cwd, path);
    const char *found = real ? real : whole, *slash = strrchr(found, '/');
    print_plain(out, how == GR_PATHS_NAME && slash ? slash + 1 : found);
    free(real);
    free(cwd);
    free(whole);
}

/* The shortest text that reads back as the same number. */
static const char *number_text(double x, char buf[32])
{
    bool whole = x == trunc(x) && fabs(x) < 1e15;
    if (whole) snprintf(buf, 32, "%.0f", x);
    for (int digits = 1; !whole && digits <= 17; digits++) {
        snprintf(buf, 32, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) break;
    }
    return buf;
}

static void print_number(gr_str *out, const char *key, double x)
{
    char buf[32];
    gr_str_printf(out, ", %s: %s", key, number_text(x, buf));
}

/* What a key has that may be an expression. */
static void print_scalar(gr_str *out, const gr_number *n)
{
    char buf[32];
    if (n->changes)
        print_plain(out, n->text);
    else
        gr_str_puts(out, number_text(n->value, buf));
}

/* ---- keys of a table -------------------------------------------------------------------------------------
 */

/* What the config holds, which is what was written, the default, or the planner's choice. False: nothing. */
static bool print_config(gr_str *out, const gr_key *k, const void *cfg, bool written, gr_paths paths)
{
    const void *at = (const char *)cfg + k->offset;
    char buf[32];
    bool zero = k->kind == GR_KEY_UINT && !*(const uint32_t *)at;
    switch (k->kind) {
    case GR_KEY_BOOL:
        gr_str_puts(out, *(const bool *)at ? "true" : "false");
        return true;
    case GR_KEY_UINT:
        if (!written && !k->fallback && zero) return false;
        gr_str_printf(out, "%u", *(const uint32_t *)at);
        return true;
    case GR_KEY_NUMBER:
        if (!written && !k->fallback) return false;
        gr_str_puts(out, number_text(*(const double *)at, buf));
        return true;
    case GR_KEY_SCALAR:
        print_scalar(out, at);
        return true;
    case GR_KEY_ENUM:
        if (!written && !k->fallback) return false;
        gr_str_puts(out, k->choices[*(const int *)at]);
        return true;
    case GR_KEY_PATH:
        if (!*(const char *const *)at) return false;
        print_path(out, *(const char *const *)at, paths);
        return true;
    default:
        return false;
    }
}

/* What is printed of the file. */
typedef struct printed {
    const gr_source *source;
    gr_paths paths;
    gr_arena *arena;
} printed;

static void print_expr(gr_str *out, const gr_value *v, const printed *of)
{
    const gr_value whole = gr_source_put_in(of->source, of->arena, v);
    print_text(out, &whole, 6);
}

static void print_keys(gr_str *out, const gr_key *keys, const gr_value *map, const void *cfg,
                       const printed *of)
{
    for (const gr_key *k = keys; k && k->name; k++) {
        const gr_value *v = gr_value_get(map, k->name);
        const bool expr = k->kind == GR_KEY_EXPR || k->kind == GR_KEY_LOSS;
        gr_str one = {0};
        if (!print_config(&one, k, cfg, v != NULL, of->paths)) {
            if (v && expr) {
                print_expr(&one, v, of);
            } else if (v) {
                const gr_value written = gr_source_as_written(of->arena, v);
                print_text(&one, &written, 6);
            } else if (k->fallback) {
                const gr_value fallback = {.kind = GR_VALUE_SCALAR, .text = k->fallback, .quoted = true};
                print_value(&one, &fallback);
            }
        }
        if (one.len) gr_str_printf(out, "    %s: %s\n", k->name, one.text);
        gr_str_release(&one);
    }
}

/* ---- the resolved file -----------------------------------------------------------------------------------
 */

static void print_params(const gr_graph *g, const printed *of, gr_str *out)
{
    bool any = false;
    for (size_t i = 0; i < g->source->n_params; i++) {
        const gr_param *p = &g->source->params[i];
        if (!p->in_expressions || p->replaced) continue; /* these are put in */
        gr_str_puts(out, any ? ", " : "params: {");
        any = true;
        print_key(out, p->name);
        const gr_value written = gr_source_as_written(of->arena, &p->value);
        print_value(out, &written);
    }
    if (any) gr_str_puts(out, "}\n");
}

static void print_lora(const gr_model *m, gr_paths paths, gr_str *out)
{
    const gr_adapter_desc *a = &m->lora.shape.adapter;
    gr_str_printf(out, ", lora: {rank: %u", a->rank);
    print_number(out, "alpha", m->lora.alpha);
    gr_str_puts(out, ", targets: [");
    for (gr_target t = GR_TARGET_Q; t < GR_N_TARGETS; t++)
        if (a->targets >> t & 1)
            gr_str_printf(out, "%s%s", a->targets & ((1u << t) - 1) ? ", " : "", gr_target_str(t));
    gr_str_puts(out, "]");
    if (m->lora.nf4) gr_str_puts(out, ", base: nf4");
    if (m->lora.from) gr_str_puts(out, ", from: "), print_path(out, m->lora.from, paths);
    gr_str_puts(out, "}");
}

static void print_groups(const gr_train *t, gr_str *out)
{
    gr_str_puts(out, ", groups: [");
    for (size_t i = 0; i < t->n_groups; i++) {
        const gr_train_group *g = &t->groups[i];
        gr_str_puts(out, i ? ", {tensors: " : "{tensors: ");
        print_plain(out, g->tensors);
        if (g->has_lr) gr_str_puts(out, ", lr: "), print_scalar(out, &g->lr);
        if (g->has_decay) print_number(out, "weight_decay", g->weight_decay);
        gr_str_putc(out, '}');
    }
    gr_str_putc(out, ']');
}

static void print_train(const gr_model *m, gr_paths paths, gr_str *out)
{
    static const char *const schedules[] = {"constant", "linear", "cosine"};
    const gr_train *t = &m->train;
    char b1[32], b2[32];
    gr_str_printf(out, "    train: {optimizer: %s", gr_optim_name(t->optimizer));
    if (t->master != GR_MASTER_F32)
        gr_str_puts(out, t->master == GR_MASTER_SPLIT ? ", master: split" : ", master: none");
    if (t->grads == GR_BF16) gr_str_puts(out, ", grads: bf16");
    if (t->moments != GR_F32) gr_str_puts(out, t->moments == GR_I8 ? ", moments: int8" : ", moments: bf16");
    gr_str_puts(out, ", lr: ");
    print_scalar(out, &t->lr);
    if (t->optimizer == GR_OPTIM_SGD || t->optimizer == GR_OPTIM_MUON)
        print_number(out, "momentum", t->momentum);
    if (t->optimizer != GR_OPTIM_SGD)
        gr_str_printf(out, ", betas: [%s, %s]", number_text(t->beta1, b1), number_text(t->beta2, b2));
    if (t->optimizer == GR_OPTIM_ADAMW || t->optimizer == GR_OPTIM_MUON) print_number(out, "eps", t->eps);
    print_number(out, "weight_decay", t->weight_decay);
    print_number(out, "grad_clip", t->grad_clip);
    gr_str_printf(out, ", schedule: %s, warmup: %u", schedules[t->schedule], t->warmup);
    if (t->schedule != GR_LR_CONSTANT) print_number(out, "min_lr_ratio", t->min_lr_ratio);
    if (m->lora.given) print_lora(m, paths, out);
    if (t->n_groups) print_groups(t, out);
    gr_str_puts(out, "}\n");
}

static void print_precision(const gr_precision *p, gr_str *out)
{
    if (!p->rollout && !p->train && !p->kv && !p->bf16_state) return;
    gr_str_printf(out, "    precision: {rollout: %s, train: %s%s%s%s}\n", p->rollout ? "fp8" : "bf16",
                  p->train ? "fp8" : "bf16", p->gradients ? ", gradients: fp8" : "", p->kv ? ", kv: fp8" : "",
                  p->bf16_state ? ", state: bf16" : "");
}

static void print_parallel(const gr_mesh *m, gr_str *out)
{
    if (gr_mesh_any(m)) gr_str_puts(out, "    parallel:\n");
    for (int a = 0; a < GR_N_AXES; a++)
        if (gr_mesh_size(m, (gr_axis)a) > 1)
            gr_str_printf(out, "      %s: %u\n", gr_axis_str((gr_axis)a), gr_mesh_size(m, (gr_axis)a));
    if (gr_mesh_chunks(m) > 1) gr_str_printf(out, "      chunks: %u\n", gr_mesh_chunks(m));
}

static void print_residency(const gr_model_residency *r, gr_str *out)
{
#define X(name, text) text,
    static const char *const resources[] = {GR_RESOURCE_MAP(X)}, *const policies[] = {GR_POLICY_MAP(X)};
#undef X
    bool any = false;
    for (int i = 0; i < GR_N_RESOURCES; i++) {
        if (r->policy[i] < 0) continue;
        gr_str_printf(out, "%s%s: %s", any ? ", " : "    residency: {", resources[i], policies[r->policy[i]]);
        any = true;
    }
    if (any) gr_str_puts(out, "}\n");
}

static void print_node(const gr_node *n, const printed *of, gr_str *out)
{
    static const char *const common[] = {"when", "every", "before", "after", "metrics"};
    gr_str_printf(out, "  %s:\n    op: %s\n", n->name, n->op->name);
    print_keys(out, n->op->keys, n->value, n->cfg, of);
    for (size_t i = 0; i < GR_LEN(common); i++) {
        const gr_value *v = gr_value_get(n->value, common[i]);
        if (!v) continue;
        gr_str_printf(out, "    %s: ", common[i]);
        print_expr(out, v, of);
        gr_str_putc(out, '\n');
    }
    if (n->placement.pool && n->placement.at.line)
        gr_str_printf(out, "    pool: %s\n", n->placement.pool->name);
}

#define X(name, text) text,
static const char *const bits_rules[] = {GR_BITS_RULE_MAP(X)};
#undef X

static void print_run(const gr_graph *g, gr_str *out)
{
    const gr_run_settings *r = &g->run;
    gr_str_printf(out, "run: {seed: %llu, samples: ", (unsigned long long)r->seed);
    gr_str_printf(out, r->keep_all ? "all" : "%u", r->samples);
    if (r->bits) gr_str_printf(out, ", bits: %s", bits_rules[r->bits]);
    if (r->timeout != GR_RUN_TIMEOUT) gr_str_printf(out, ", timeout: %u", r->timeout);
    if (r->stop_after_skipped != GR_STOP_AFTER_SKIPPED)
        gr_str_printf(out, ", stop_after_skipped: %u", r->stop_after_skipped);
    if (r->check != GR_CHECK_EVERY) gr_str_printf(out, ", check: %u", r->check);
    if (r->steps) gr_str_printf(out, ", steps: %u", r->steps);
    if (r->epochs) gr_str_printf(out, ", epochs: %u", r->epochs);
    if (r->stop.text) gr_str_puts(out, ", stop: "), print_plain(out, r->stop.text);
    if (r->checkpoint_every || r->checkpoint_keep || !r->checkpoint_last || r->best) {
        size_t begin = out->len;
        if (r->checkpoint_every) gr_str_printf(out, ", every: %u", r->checkpoint_every);
        if (r->checkpoint_keep) gr_str_printf(out, ", keep: %u", r->checkpoint_keep);
        if (r->best) gr_str_puts(out, ", best: "), print_plain(out, r->best);
        if (r->best) gr_str_printf(out, ", best_is: %s", r->best_is_least ? "min" : "max");
        if (!r->checkpoint_last) gr_str_puts(out, ", last: false");
        char *keys = gr_strdup(out->text + begin + 2);
        out->len = begin;
        gr_str_printf(out, ", checkpoint: {%s}", keys);
        free(keys);
    }
    gr_str_puts(out, "}\n");
}

/* In the order of an iteration; what is left out where it would stand, so that the text is read in this order
 * again. What bits are told by has it behind the others. */
static void print_nodes(const gr_graph *g, const printed *of, gr_str *out)
{
    const gr_source *s = g->source;
    for (size_t i = 0; i <= g->n_nodes; i++) {
        for (size_t k = 0; k < s->n_aliases; k++)
            if (of->paths == GR_PATHS_WHOLE ? s->alias_at[k] == i : i == g->n_nodes)
                print_node(s->aliases[k], of, out);
        if (i < g->n_nodes) print_node(g->nodes[i], of, out);
    }
}

/* Settings of trackers are as all other values; the rest of `log` are expressions. */
static gr_value log_value(const printed *of, const gr_value *v)
{
    gr_value out = *v;
    gr_pair *pairs = gr_arena_alloc(of->arena, v->n * sizeof(*pairs));
    for (size_t i = 0; i < v->n; i++) {
        const gr_value *x = &v->pairs[i].value;
        pairs[i] = v->pairs[i];
        pairs[i].value = x->kind == GR_VALUE_MAP ? gr_source_as_written(of->arena, x)
                                                 : gr_source_put_in(of->source, of->arena, x);
    }
    out.pairs = pairs;
    return out;
}

void gr_graph_resolved(const gr_graph *g, gr_paths paths, gr_str *out)
{
    static const struct {
        const char *key;
        bool expressions;
    } tops[] = {{"graph", false}, {"doc", false}, {"functions", true}, {"pools", false},
                {"state", true},  {"log", true},  {"on", false}};
    const printed of = {g->source, paths, gr_arena_new()};
    for (size_t i = 0; i < GR_LEN(tops); i++) {
        const gr_value *v = gr_value_get(&g->source->root, tops[i].key);
        if (!v || v->kind == GR_VALUE_NULL || (!strcmp(tops[i].key, "pools") && !g->n_pools)) continue;
        print_key(out, tops[i].key);
        const gr_value whole = !strcmp(tops[i].key, "log") ? log_value(&of, v)
                               : tops[i].expressions       ? gr_source_put_in(of.source, of.arena, v)
                                                           : gr_source_as_written(of.arena, v);
        print_value(out, &whole);
        gr_str_putc(out, '\n');
    }
    print_params(g, &of, out);
    if (g->n_models) gr_str_puts(out, "models:\n");
    for (size_t i = 0; i < g->n_models; i++) {
        if (g->models[i]->implied) continue;
        gr_str_printf(out, "  %s:\n    checkpoint: ", g->models[i]->name);
        print_path(out, g->models[i]->files.checkpoint, paths);
        gr_str_putc(out, '\n');
        if (g->models[i]->value_head) gr_str_puts(out, "    head: value\n");
        if (g->models[i]->trained && !g->models[i]->follows) print_train(g->models[i], paths, out);
        print_precision(&g->models[i]->precision, out);
        print_residency(&g->models[i]->residency, out);
        if (g->models[i]->pool) gr_str_printf(out, "    pool: %s\n", g->models[i]->pool->name);
        if (g->models[i]->sharding.gather)
            gr_str_printf(out, "    gather: %s\n",
                          g->models[i]->sharding.gather == GR_GATHER_WHOLE ? "whole" : "layer");
        if (g->models[i]->sharding.over)
            gr_str_printf(out, "    shard: %s\n",
                          g->models[i]->sharding.over == GR_SHARD_ALL ? "all" : "node");
        if (g->models[i]->sharding.tensor > 1)
            gr_str_printf(out, "    tensor: %u\n", g->models[i]->sharding.tensor);
        if (g->models[i]->sharding.expert > 1)
            gr_str_printf(out, "    expert: %u\n", g->models[i]->sharding.expert);
        if (g->models[i]->sharding.mesh_auto) gr_str_puts(out, "    parallel: auto\n");
        print_parallel(&g->models[i]->sharding.mesh, out);
    }
    gr_str_puts(out, "nodes:\n");
    print_nodes(g, &of, out);
    print_run(g, out);
    if (g->strict) gr_str_puts(out, "strict: true\n");
    if (g->canonical) gr_str_puts(out, "canonical: true\n");
    if (g->nondeterministic) gr_str_puts(out, "deterministic: false\n");
    gr_arena_free(of.arena);
}

/* ---- check --explain -------------------------------------------------------------------------------------
 */

static void explain_indented(gr_str *out, const char *title, const gr_str *text)
{
    gr_str_printf(out, "    %s\n", title);
    for (const char *p = text->text; p && *p;) {
        size_t line = strcspn(p, "\n");
        gr_str_printf(out, "      %.*s\n", (int)line, p);
        p += line + (p[line] == '\n');
    }
}

static void explain_formulas(const gr_graph *g, const gr_node *n, gr_str *out)
{
    for (size_t i = 0; i < g->source->n_formulas; i++) {
        const gr_formula *f = g->source->formulas[i];
        gr_str text = {0};
        if (f->name_of_owner != (n ? n->name : NULL) || (f->role == GR_ROLE_METRIC && f->in_loss)) continue;
        if (f->loss)
            gr_loss_explain(f->loss->loss, &text);
        else
            gr_expr_explain(f->expr, &text);
        char *key = gr_printf("%s%s%s", f->records ? f->records->name : "", f->records ? "." : "", f->key);
        explain_indented(out, key, &text);
        free(key);
        gr_str_release(&text);
    }
}

static void explain_column(const gr_column *c, gr_str *out)
{
    static const char *const kinds[] = {"number", "condition"};
    char bytes[32];
    gr_str_printf(out, "    %s: one %s a %s", c->name, kinds[c->kind], gr_level_str(c->level));
    const gr_rows_bounds *b = c->rows ? &c->rows->bounds : NULL;
    if (b && c->level >= GR_LEVEL_SEQ) gr_str_printf(out, " of %s", c->rows->name);
    uint64_t most = !b || c->level == GR_LEVEL_SCALAR ? 1 : c->level == GR_LEVEL_GROUP ? b->groups : b->seqs;
    if (b && c->level == GR_LEVEL_TOKEN) most *= b->response_tokens;
    gr_str_printf(out, ", at most %llu, %s\n", (unsigned long long)most,
                  gr_bytes_format(most * gr_dtype_bytes(c->dtype), bytes));
}

static void explain_model(const gr_model *m, gr_str *out)
{
    gr_str_printf(out, "model %s: %s%s%s%s\n", m->name, m->files.checkpoint,
                  m->files.random ? ", random weights" : "",
                  m->shape.head == GR_HEAD_VALUE ? ", value head" : "",
                  m->follows  ? ", follows another"
                  : m->update ? ", trained"
                              : "");
    const gr_precision *p = &m->precision;
    if (p->rollout || p->train)
        gr_str_printf(out, "    products of its layers in FP8: of %s\n",
                      !p->train     ? "rollouts"
                      : !p->rollout ? "log-prob passes and updates"
                                    : "rollouts, log-prob passes and updates");
    if (p->gradients) gr_str_puts(out, "    gradients of their weights in FP8\n");
    if (p->kv) gr_str_puts(out, "    keys and values of rollouts in FP8\n");
    if (p->bf16_state) gr_str_puts(out, "    states of the gated delta rule in bf16, in rollouts\n");
    if (!gr_model_has_lora(m)) return;
    const gr_adapter_desc *a = &m->lora.shape.adapter;
    gr_str_printf(out, "    by adapters of rank %u, which count %g times, on", a->rank, (double)a->scale);
    for (gr_target t = GR_TARGET_Q; t < GR_N_TARGETS; t++)
        if (a->targets >> t & 1) gr_str_printf(out, " %s", gr_target_str(t));
    gr_str_printf(out, "; frozen beneath them%s: the weights of %s\n", m->lora.nf4 ? ", in NF4" : "",
                  m->lora.base->implied ? "its checkpoint" : m->lora.base->name);
}

void gr_graph_explain(const gr_graph *g, gr_str *out)
{
    if (g->strict)
        gr_str_puts(out,
                    "strict: batch-invariant kernels; rollout, log-prob and update give a token the same "
                    "bits\n");
    if (g->nondeterministic)
        gr_str_puts(out, "not deterministic: on CUDA a run's bits differ from those of its repetition\n");
    for (size_t i = 0; i < g->n_models; i++)
        if (!g->models[i]->implied) explain_model(g->models[i], out);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        gr_str_printf(out, "node %s: %s\n", n->name, n->op->name);
        if (n->timing.every)
            gr_str_printf(out, "    runs on validations: behind every %u iterations%s\n", n->timing.every,
                          n->timing.before ? ", and before the first" : "");
        if (n->rows == n)
            gr_str_printf(
                out, "    rows: %u prompts, %u sequences, of at most %u prompt and %u response tokens\n",
                n->bounds.groups, n->bounds.seqs, n->bounds.prompt_tokens, n->bounds.response_tokens);
        if (n->placement.pool)
            gr_str_printf(out, "    runs on pool %s%s%s\n", n->placement.pool->name,
                          g->n_roles > 1 ? ", ranks " : "",
                          g->n_roles > 1 ? g->roles[n->placement.role].text : "");
        if (n->model)
            gr_str_printf(out, "    %s model %s %s\n",
                          n->op->follows          ? "writes"
                          : n->model->update == n ? "trains"
                                                  : "reads",
                          n->model->name,
                          n->timing.new_version ? "after its update" : "as the iteration began");
        for (size_t j = 0; j < n->results.n_columns; j++) explain_column(n->results.columns[j], out);
        explain_formulas(g, n, out);
    }
    for (size_t i = 0; i < g->source->n_aliases; i++) {
        const gr_node *n = g->source->aliases[i];
        gr_str_printf(out, "node %s: left out: ", n->name);
        if (n->stands_for)
            gr_str_printf(out, "strict, so it is %s.logprob\n", n->stands_for->name);
        else
            gr_str_puts(out, "its update makes one optimizer step, so it is stop_gradient(logprob)\n");
    }
    if (g->n_state || g->n_log || g->n_record_state) gr_str_puts(out, "at the end of the iteration\n");
    explain_formulas(g, NULL, out);
}
