/* ops/drafts.c: see its header. */
#include "ops/drafts.h"

#include "ops/environment_keys.h"
#include "ops/model/ahead.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST_MATCH = 32, REST_MOST = 5 /* doublings */ };

/* ---- the key ------------------------------------------------------------------------------------------ */

static const char *const known[] = {"tokens", "from", "match", "rate", "always", NULL};
static const char *const from_names[] = {"ngram", "group", "mtp", NULL};

static gr_status read_from(int *out, const gr_pair *p, gr_diag *d)
{
    for (*out = 0; p->value.kind == GR_VALUE_SCALAR && from_names[*out]; ++*out)
        if (!strcmp(p->value.text, from_names[*out])) return GR_OK;
    return gr_diag_error(
        d, p->value.at, GR_E_INVALID,
        "'from' must be ngram (the sequence itself), group (and the other samples of its prompt) or mtp (the "
        "layer of its checkpoint that predicts a further token)");
}

static gr_status read_rate(double *out, const gr_pair *p, gr_diag *d)
{
    char *end = NULL;
    const char *text = p->value.kind == GR_VALUE_SCALAR ? p->value.text : "";
    *out = strtod(text, &end);
    if (end != text && !*end && *out >= 0 && *out < 1) return GR_OK;
    return gr_diag_error(d, p->value.at, GR_E_INVALID,
                         "'rate' must be a share from 0 to below 1, such as 0.5");
}

static gr_status read_always(bool *out, const gr_pair *p, gr_diag *d)
{
    const char *text = p->value.kind == GR_VALUE_SCALAR ? p->value.text : "";
    *out = !strcmp(text, "true");
    if (*out || !strcmp(text, "false")) return GR_OK;
    return gr_diag_error(d, p->value.at, GR_E_INVALID, "'always' must be true or false");
}

static gr_status read_pair(gr_speculate_cfg *s, const gr_pair *p, gr_diag *d)
{
    if (!strcmp(p->key, "tokens")) return gr_map_count(&s->tokens, p, 1, GR_DRAFT_MOST, d);
    if (!strcmp(p->key, "match")) return gr_map_count(&s->match, p, 1, LONGEST_MATCH, d);
    if (!strcmp(p->key, "from")) return read_from(&s->from, p, d);
    if (!strcmp(p->key, "rate")) return read_rate(&s->rate, p, d);
    if (!strcmp(p->key, "always")) return read_always(&s->always, p, d);
    const char *near = gr_near(p->key, known, GR_LEN(known) - 1);
    return gr_diag_error(d, p->at, GR_E_INVALID, "unknown key '%s' in speculate%s%s%s", p->key,
                         near ? "; did you mean '" : "; it has tokens, from, match, rate, always",
                         near ? near : "", near ? "'?" : "");
}

/* ---- the layer that predicts a further token ----------------------------------------------------------- */

static bool is_ahead_of(const gr_model *a, const gr_model *m)
{
    return a->shape.behind && a->files.checkpoint && m->files.checkpoint &&
           !strcmp(a->files.checkpoint, m->files.checkpoint);
}

static bool is_taken(const gr_graph *g, const char *name)
{
    for (size_t i = 0; i < g->n_models; i++)
        if (!strcmp(g->models[i]->name, name)) return true;
    return false;
}

/* A frozen model of the same checkpoint, with a shape of its own. */
static gr_model *add_ahead(gr_graph *g, const gr_model *m)
{
    gr_model *a = gr_arena_alloc(g->arena, sizeof(*a));
    const char *name = gr_arena_printf(g->arena, "%s_mtp", m->name);
    while (is_taken(g, name)) name = gr_arena_printf(g->arena, "%s_", name);
    *a = (gr_model){.name = name,
                    .at = m->at,
                    .index = (uint32_t)g->n_models,
                    .files = m->files,
                    .shape = gr_ahead_shape(&m->shape),
                    .head_known = true,
                    .implied = true,
                    .residency = m->residency,
                    .sharding = {.tensor = 1, .expert = 1, .rollout = {1, 1, 1}},
                    .pool = m->pool,
                    .pool_at = m->pool_at};
    g->models[g->n_models++] = a;
    return a;
}

/* Rollouts with the weights of one checkpoint have one. */
static void find_ahead(gr_graph *g, gr_node *n, gr_loc at, gr_diag *d)
{
    const gr_model *m = n->model;
    for (size_t i = 0; i < g->n_models && !n->second; i++)
        if (is_ahead_of(g->models[i], m)) n->second = g->models[i];
    if (n->second) return;
    if (g->n_models == GR_MODELS_MAX)
        gr_diag_error(d, at, GR_E_INVALID, "more than %d models, with the layers that predict further tokens",
                      GR_MODELS_MAX);
    else
        n->second = add_ahead(g, m);
}

static void check_ahead(gr_graph *g, gr_node *n, gr_diag *d)
{
    const gr_value *v = ((const gr_generate_cfg *)n->cfg)->drafts, *match = gr_value_get(v, "match");
    const gr_loc at = gr_value_get(v, "from")->at;
    const gr_model *m = n->model;
    if (match)
        gr_diag_error(d, match->at, GR_E_INVALID,
                      "'match' is of tokens that are looked up: with 'from: mtp' none are; leave it out");
    if (!m->shape.n_ahead)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'from: mtp': the checkpoint of model '%s' has no layer that predicts a further token: "
                      "its config.json promises none; 'from' can be ngram or group",
                      m->name);
    else if (m->shape.n_ahead > 1)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'from: mtp': the checkpoint of model '%s' has %u layers that predict further tokens; "
                      "one alone is supported",
                      m->name, m->shape.n_ahead);
    else
        find_ahead(g, n, at, d);
}

void gr_drafts_read(gr_graph *g, gr_node *n, gr_diag *d)
{
    gr_generate_cfg *c = n->cfg;
    const gr_value *v = c->drafts;
    c->speculate = (gr_speculate_cfg){0};
    if (!v) return;
    gr_speculate_cfg s = {.match = 2, .rate = 0.5};
    if (v->kind != GR_VALUE_MAP)
        gr_diag_error(d, v->at, GR_E_INVALID, "'speculate' is a map, such as {tokens: 4, from: group}");
    for (size_t i = 0; v->kind == GR_VALUE_MAP && i < v->n; i++) (void)!read_pair(&s, &v->pairs[i], d);
    if (c->endpoint)
        gr_diag_error(
            d, v->at, GR_E_INVALID,
            "'speculate' does not go with 'serve': sessions that call from outside are sampled a token a "
            "step; leave one of them out");
    if (!s.tokens) s.tokens = s.from == GR_DRAFT_MTP ? 1 : 4;
    if (s.from == GR_DRAFT_MTP) check_ahead(g, n, d);
    c->speculate = s;
}

double gr_drafts_yield(uint32_t draft, double rate)
{
    double yield = 1, valid = 1;
    for (uint32_t i = 0; i < draft; i++) yield += valid *= rate;
    return yield;
}

/* ---- looking up --------------------------------------------------------------------------------------- */

/* How many tokens before a and before b are the same, up to the longest that counts. */
static uint32_t same_before(const int32_t *a, uint32_t at_a, const int32_t *b, uint32_t at_b)
{
    const uint32_t most = GR_MIN(GR_MIN(at_a, at_b), (uint32_t)LONGEST_MATCH);
    uint32_t n = 0;
    while (n < most && a[at_a - 1 - n] == b[at_b - 1 - n]) n++;
    return n;
}

uint32_t gr_draft(const gr_draft_source *sources, uint32_t n, uint32_t least, uint32_t most, int32_t *out)
{
    const gr_draft_source *own = &sources[0], *best = NULL;
    uint32_t longest = least - 1, at = 0;
    for (uint32_t k = 0; k < n && longest < LONGEST_MATCH; k++) {
        const gr_draft_source *s = &sources[k];
        for (uint32_t i = s->n; i-- > GR_MAX(s->from, 1u) && longest < LONGEST_MATCH;) {
            const uint32_t m = same_before(s->ids, i, own->ids, own->n);
            if (m > longest) best = s, at = i, longest = m;
        }
    }
    const uint32_t found = best ? GR_MIN(most, best->n - at) : 0;
    if (found) memcpy(out, best->ids + at, found * sizeof(*out));
    return found;
}

/* ---- how it goes --------------------------------------------------------------------------------------- */

bool gr_draft_now(gr_draft_record *r)
{
    if (!r->rest) return true;
    r->rest--;
    return false;
}

void gr_draft_went(gr_draft_record *r, uint32_t drafted, uint32_t accepted)
{
    if (!drafted) return;
    r->misses = accepted ? 0 : GR_MIN(r->misses + 1, (uint32_t)REST_MOST);
    r->rest = (1u << r->misses) - 1;
}
