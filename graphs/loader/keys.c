/* graphs/loader/keys.c: maps of a graph file against key tables. */
#include "graphs/loader/loader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const gr_node_keys[] = {"op", "when", "every", "before", "after", "pool", "metrics", NULL};

static bool listed(const char *const *list, const char *name)
{
    for (; list && *list; list++)
        if (!strcmp(*list, name)) return true;
    return false;
}

/* ---- kinds of values -------------------------------------------------------------------------------------
 */

static const char *kind_str(const gr_value *v)
{
    return v->kind == GR_VALUE_MAP ? "a map" : v->kind == GR_VALUE_LIST ? "a list" : "empty";
}

/* "'samples' must be <wanted>, not 'x'" */
static bool wrong(gr_loader *l, const char *key, const gr_value *v, const char *wanted)
{
    gr_value bare = *v;
    double x;
    bare.quoted = bare.block = false;
    if (v->broken) return false;
    if (v->kind == GR_VALUE_SCALAR)
        gr_diag_error(l->d, v->at, GR_E_INVALID, "'%s' must be %s, not %s'%s'", key, wanted,
                      (v->quoted || v->block) && gr_value_number(&bare, &x) ? "the quoted text " : "",
                      v->text);
    else
        gr_diag_error(l->d, v->at, GR_E_INVALID, "'%s' must be %s, but is %s", key, wanted, kind_str(v));
    return false;
}

bool gr_value_is_map(gr_loader *l, const char *key, const gr_value *v)
{
    if (v->kind == GR_VALUE_MAP) return true;
    return wrong(l, key, v, "a map");
}

const char *gr_value_text(gr_loader *l, const char *key, const gr_value *v)
{
    if (v->kind == GR_VALUE_SCALAR && !v->broken) return v->text;
    wrong(l, key, v, "a text");
    return NULL;
}

bool gr_value_number(const gr_value *v, double *out)
{
    if (v->kind != GR_VALUE_SCALAR || v->quoted || v->block || !*v->text) return false;
    if (strspn(v->text, "0123456789+-.eE") != strlen(v->text)) return false; /* no hex, inf, nan, spaces */
    char *end;
    *out = strtod(v->text, &end);
    return !*end && isfinite(*out);
}

static void range_str(const gr_key *k, const char *what, char *buf, size_t n)
{
    bool any = k->min == 0 && k->max == 0;
    if (any)
        snprintf(buf, n, "%s", what);
    else if (!(k->max < 1e9))
        snprintf(buf, n, "%s of at least %.10g", what, k->min);
    else
        snprintf(buf, n, "%s from %.10g to %.10g", what, k->min, k->max);
}

static bool number_in_range(gr_loader *l, const gr_key *k, const gr_value *v, bool whole, double *out)
{
    char wanted[128];
    const bool any = k->min == 0 && k->max == 0;
    range_str(k,
              whole && any ? "a whole number below 2^32"
              : k->choices ? gr_arena_printf(l->arena, "'%s' or a whole number", k->choices[0])
              : whole      ? "a whole number"
                           : "a number",
              wanted, sizeof(wanted));
    bool ok = gr_value_number(v, out);
    if (ok && (k->min != 0 || k->max != 0)) ok = *out >= k->min && *out <= k->max;
    if (ok && whole) ok = *out >= 0 && *out <= UINT32_MAX && *out == floor(*out);
    return ok || wrong(l, k->name, v, wanted);
}

static bool fill_bool(gr_loader *l, const gr_key *k, const gr_value *v, bool *out)
{
    bool scalar = v->kind == GR_VALUE_SCALAR && !v->quoted && !v->block;
    bool yes = scalar && !strcmp(v->text, "true"), no = scalar && !strcmp(v->text, "false");
    if (yes || no) *out = yes;
    return yes || no || wrong(l, k->name, v, "true or false");
}

static bool fill_enum(gr_loader *l, const gr_key *k, const gr_value *v, int *out)
{
    gr_str s = {0};
    size_t n = 0;
    gr_str_puts(&s, "one of ");
    for (; k->choices[n]; n++) {
        if (v->kind == GR_VALUE_SCALAR && !strcmp(k->choices[n], v->text)) {
            *out = (int)n;
            gr_str_release(&s);
            return true;
        }
        gr_str_printf(&s, "%s%s", n ? ", " : "", k->choices[n]);
    }
    wrong(l, k->name, v, s.text);
    gr_str_release(&s);
    return false;
}

/* One scalar or a list of them: calls one(v, i) for each. */
static const gr_value *items_of(const gr_value *v, size_t *n)
{
    bool many = v->kind == GR_VALUE_LIST;
    *n = many ? v->n : 1;
    return many ? v->items : v;
}

static void fill_texts(gr_loader *l, const gr_key *k, const gr_value *v, gr_texts *out)
{
    size_t n;
    const gr_value *items = items_of(v, &n);
    const char **text = gr_arena_alloc(l->arena, n * sizeof(*text));
    gr_loc *at = gr_arena_alloc(l->arena, n * sizeof(*at));
    *out = (gr_texts){text, at, 0};
    for (size_t i = 0; i < n; i++) {
        const char *t = gr_value_text(l, k->name, &items[i]);
        if (!t) continue;
        text[out->n] = t;
        at[out->n++] = items[i].at;
    }
}

static void fill_uints(gr_loader *l, const gr_key *k, const gr_value *v, gr_uints *out)
{
    size_t n;
    const gr_value *items = items_of(v, &n);
    uint32_t *value = gr_arena_alloc(l->arena, n * sizeof(*value));
    *out = (gr_uints){value, 0};
    for (size_t i = 0; i < n; i++) {
        double x;
        if (number_in_range(l, k, &items[i], true, &x)) value[out->n++] = (uint32_t)x;
    }
}

/* ---- references ------------------------------------------------------------------------------------------
 */

/* `prompts:` wants a maker of groups, every other reference a maker of sequences. */
static void fill_node(gr_loader *l, const gr_key *k, const gr_value *v, const gr_node **out,
                      gr_unresolved *owner)
{
    const char *name = gr_value_text(l, k->name, v);
    gr_unresolved *from = name ? gr_unresolved_find(l, name) : NULL;
    bool prompts = !strcmp(k->name, "prompts"), teacher = !strcmp(k->name, "teacher");
    const gr_op *op = from ? from->node->op : NULL;
    if (op && teacher && !(op->logprob && op->passes)) {
        gr_diag_error(l->d, v->at, GR_E_INVALID,
                      "'teacher' must be a node of op logprob, but '%s' is of op %s", name, op->name);
        op = NULL;
    } else if (op && !teacher && (!op->makes_rows || gr_node_has_seqs(from->node) == prompts)) {
        const gr_value *of = prompts ? NULL : gr_value_get(from->map, "of");
        const char *near = of && of->kind == GR_VALUE_SCALAR ? of->text : NULL;
        gr_diag_error(l->d, v->at, GR_E_INVALID,
                      "'%s' must be a node that makes %s, but '%s' is of op %s%s%s%s", k->name,
                      prompts ? "prompts" : "sequences", name, op->name, near ? "; did you mean '" : "",
                      near ? near : "", near ? "'?" : "");
        op = NULL;
    } else if (name) {
        gr_draft_ref(l, owner, k->name, name, v->at, GR_WHY_READS);
    }
    if (!op) {
        owner->bad = true;
        return;
    }
    *out = from->node;
    if (prompts ? owner->node->op->generates : !strcmp(k->name, "of")) owner->node->of = from->node;
}

static void fill_field(gr_loader *l, const gr_key *k, const gr_value *v, gr_field_ref *out,
                       gr_unresolved *owner)
{
    const char *text = gr_value_text(l, k->name, v), *dot = text ? strchr(text, '.') : NULL;
    if (!text) return;
    if (!dot || dot == text || !dot[1]) {
        wrong(l, k->name, v, "NODE.FIELD, a field of data such as prompts.answer");
        return;
    }
    const char *name = gr_arena_strndup(l->arena, text, (size_t)(dot - text));
    gr_unresolved *from = gr_draft_ref(l, owner, k->name, name, v->at, GR_WHY_READS);
    if (!from || !from->node->op) return;
    if (!from->node->op->any_field)
        gr_diag_error(l->d, v->at, GR_E_INVALID,
                      "'%s' must be a field of data, but node '%s' (%s) reads no data", k->name, name,
                      from->node->op->name);
    *out = (gr_field_ref){from->node, dot + 1, v->at};
}

static void fill_model(gr_loader *l, const gr_key *k, const gr_value *v, gr_model **out, gr_model **of_node)
{
    const char *name = gr_value_text(l, k->name, v);
    if (!name) return;
    const char **names = gr_calloc(l->g->n_models, sizeof(*names));
    for (size_t i = 0; i < l->g->n_models; i++) {
        names[i] = l->g->models[i]->name;
        if (!strcmp(names[i], name)) *out = *of_node = l->g->models[i];
    }
    const char *near = gr_near(name, names, l->g->n_models);
    gr_str hint = {0};
    if (near) gr_str_printf(&hint, "; did you mean '%s'?", near);
    for (size_t i = 0; i < l->g->n_models && !near; i++)
        gr_str_printf(&hint, "%s%s", i ? ", " : "; there are ", names[i]);
    if (!*out)
        gr_diag_error(l->d, v->at, GR_E_INVALID, "unknown model '%s'%s", name,
                      hint.len ? hint.text : "; the graph has none");
    gr_str_release(&hint);
    free(names);
}

static void fill_expression(gr_loader *l, const gr_key *k, const gr_value *v, void *at, gr_unresolved *owner)
{
    bool loss = k->kind == GR_KEY_LOSS;
    gr_formula *f = gr_formula_read(l, loss ? GR_ROLE_LOSS : GR_ROLE_VALUE, k->name, v, owner);
    if (!f) {
        owner->bad = true;
    } else if (loss) {
        f->loss = at;
        f->loss->at = f->at;
    } else {
        *(gr_expression *)at = (gr_expression){f->expr, f->at};
    }
}

/* A number, or a text that is an expression over what an iteration begins with. */
static void fill_scalar(gr_loader *l, const gr_key *k, const gr_value *v, gr_number *out,
                        const gr_unresolved *owner)
{
    gr_graph *g = l->g;
    gr_value bare = *v;
    double x;
    bare.quoted = bare.block = false;
    if (gr_value_number(&bare, &x) || v->kind != GR_VALUE_SCALAR) {
        number_in_range(l, k, v, false, &out->value);
        return;
    }
    gr_formula *f = gr_formula_read(l, GR_ROLE_NUMBER, k->name, v, NULL);
    if (!f) return;
    const char *key = owner ? gr_arena_printf(g->arena, "'%s' of node '%s'", k->name, owner->node->name)
                            : gr_arena_printf(g->arena, "'%s'", k->name);
    const gr_changing c = {key, v->at, f->expr, k->min, k->max};
    GR_PUSH(g->changing, g->n_changing, g->source->cap_changing, c);
    *out = (gr_number){.value = k->max, .changes = (uint32_t)g->n_changing, .text = f->text};
}

/* What a node cannot be compiled without. */
static bool is_link(const gr_key *k)
{
    return k->kind == GR_KEY_NODE || k->kind == GR_KEY_MODEL || k->kind == GR_KEY_SECOND_MODEL ||
           k->kind == GR_KEY_FIELD || k->kind == GR_KEY_EXPR || k->kind == GR_KEY_LOSS;
}

/* ---- one key, one map ------------------------------------------------------------------------------------
 */

static void fill(gr_loader *l, const gr_key *k, const gr_value *v, void *cfg, gr_unresolved *owner)
{
    void *at = (char *)cfg + k->offset;
    double x;
    if (v->kind == GR_VALUE_NULL && !v->broken)
        gr_diag_error(l->d, v->at, GR_E_INVALID, "'%s' has no value", k->name);
    if (v->kind == GR_VALUE_NULL || v->broken) {
        if (owner) owner->unsure = true;
        if (owner && is_link(k)) owner->bad = true;
        return;
    }
    switch (k->kind) {
    case GR_KEY_BOOL:
        fill_bool(l, k, v, at);
        break;
    case GR_KEY_UINT:
        if (k->choices && v->kind == GR_VALUE_SCALAR && !strcmp(v->text, k->choices[0]))
            *(uint32_t *)at = UINT32_MAX;
        else if (number_in_range(l, k, v, true, &x))
            *(uint32_t *)at = (uint32_t)x;
        break;
    case GR_KEY_NUMBER:
        number_in_range(l, k, v, false, at);
        break;
    case GR_KEY_SCALAR:
        fill_scalar(l, k, v, at, owner);
        break;
    case GR_KEY_TEXT:
        *(const char **)at = gr_value_text(l, k->name, v);
        break;
    case GR_KEY_PATH: {
        const char *path = gr_value_text(l, k->name, v);
        *(const char **)at = path ? gr_path_from(l->arena, v->at, path) : NULL;
        break;
    }
    case GR_KEY_ENUM:
        fill_enum(l, k, v, at);
        break;
    case GR_KEY_TEXTS:
        fill_texts(l, k, v, at);
        break;
    case GR_KEY_UINTS:
        fill_uints(l, k, v, at);
        break;
    case GR_KEY_NODE:
        fill_node(l, k, v, at, owner);
        break;
    case GR_KEY_FIELD:
        fill_field(l, k, v, at, owner);
        break;
    case GR_KEY_MODEL:
        fill_model(l, k, v, at, &owner->node->model);
        break;
    case GR_KEY_SECOND_MODEL:
        fill_model(l, k, v, at, &owner->node->second);
        break;
    case GR_KEY_EXPR:
    case GR_KEY_LOSS:
        fill_expression(l, k, v, at, owner);
        break;
    case GR_KEY_VALUE:
        *(const gr_value **)at = v;
        break;
    }
}

/* What other tools call a key, where it is one of these names. */
static const char *called_here(const char *key, const char *const *names, size_t n)
{
    static const char *const words[][2] = {{"n", "samples"},
                                           {"num_generations", "samples"},
                                           {"num_return_sequences", "samples"},
                                           {"group_size", "samples"},
                                           {"max_new_tokens", "max_tokens"},
                                           {"max_response_length", "max_tokens"},
                                           {"max_prompt_length", "max_tokens"},
                                           {"max_grad_norm", "grad_clip"},
                                           {"clip_grad", "grad_clip"},
                                           {"learning_rate", "lr"},
                                           {"warmup_steps", "warmup"},
                                           {"lr_scheduler", "schedule"},
                                           {"lr_scheduler_type", "schedule"},
                                           {"batch_size", "batch"},
                                           {"train_batch_size", "batch"},
                                           {"mini_batch_size", "mini_batch"},
                                           {"ppo_mini_batch_size", "mini_batch"},
                                           {"micro_batch_size", "micro_tokens"},
                                           {"max_token_len", "micro_tokens"},
                                           {"data", "file"},
                                           {"reward_fn", "command"},
                                           {"max_steps", "steps"},
                                           {"total_steps", "steps"},
                                           {"save_steps", "checkpoint"},
                                           {"path", "checkpoint"},
                                           {"model_path", "checkpoint"},
                                           {"num_turns", "turns"},
                                           {"max_turns", "turns"},
                                           {"max_model_len", "max_context"}};
    for (size_t i = 0; i < GR_LEN(words); i++)
        for (size_t k = 0; k < n && !strcmp(words[i][0], key); k++)
            if (!strcmp(words[i][1], names[k])) return names[k];
    return NULL;
}

void gr_unknown_key(gr_loader *l, const gr_pair *p, const char *what, const gr_key *keys,
                    const char *const *also)
{
    const char *names[256] = {0};
    size_t n = 0;
    for (; keys && keys->name && n < GR_LEN(names); keys++) names[n++] = keys->name;
    for (; also && *also && n < GR_LEN(names); also++) names[n++] = *also;
    const char *near = called_here(p->key, names, n);
    if (!near) near = gr_near(p->key, names, n);
    gr_str all = {0};
    for (size_t i = 0; !near && i < n; i++) gr_str_printf(&all, "%s%s", i ? ", " : "; it has ", names[i]);
    if (near) gr_str_printf(&all, "; did you mean '%s'?", near);
    gr_diag_error(l->d, p->at, GR_E_INVALID, "unknown key '%s' in %s%s", p->key, what,
                  all.text ? all.text : "");
    gr_str_release(&all);
}

static void fill_absent(gr_loader *l, const gr_key *k, gr_loc at, const char *what, void *cfg,
                        gr_unresolved *owner)
{
    if (k->fallback) {
        const gr_value v = {.kind = GR_VALUE_SCALAR, .at = at, .text = k->fallback};
        fill(l, k, &v, cfg, owner);
    } else if (k->required) {
        gr_diag_error(l->d, at, GR_E_INVALID, "%s needs '%s': %s", what, k->name, k->doc);
        if (owner && is_link(k)) owner->bad = true;
    }
}

void gr_keys_pick(gr_loader *l, const gr_value *map, const gr_key *keys, void *cfg, gr_unresolved *owner)
{
    for (const gr_key *k = keys; k->name; k++) {
        const gr_value *v = gr_value_get(map, k->name);
        if (v) fill(l, k, v, cfg, owner);
    }
}

void gr_keys_read(gr_loader *l, const gr_value *map, gr_loc at, const char *what, const gr_key *keys,
                  const char *const *also, void *cfg, gr_unresolved *owner)
{
    for (size_t i = 0; i < map->n; i++) {
        const gr_key *k = keys;
        while (k->name && strcmp(k->name, map->pairs[i].key)) k++;
        if (!k->name && !listed(also, map->pairs[i].key)) gr_unknown_key(l, &map->pairs[i], what, keys, also);
    }
    for (const gr_key *k = keys; k->name;
         k++) { /* in the order of the table: errors and edges do not depend on it */
        const gr_value *v = gr_value_get(map, k->name);
        if (v)
            fill(l, k, v, cfg, owner);
        else
            fill_absent(l, k, at, what, cfg, owner);
    }
}
