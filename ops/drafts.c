/* ops/drafts.c: see its header. */
#include "ops/drafts.h"

#include "ops/environment_keys.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST_MATCH = 32, REST_MOST = 5 /* doublings */ };

/* ---- the key ------------------------------------------------------------------------------------------ */

static const char *const known[] = {"tokens", "from", "match", "rate", "always", NULL};
static const char *const from_names[] = {"ngram", "group", NULL};

static gr_status read_from(int *out, const gr_pair *p, gr_diag *d)
{
    for (*out = 0; p->value.kind == GR_VALUE_SCALAR && from_names[*out]; ++*out)
        if (!strcmp(p->value.text, from_names[*out])) return GR_OK;
    return gr_diag_error(
        d, p->value.at, GR_E_INVALID,
        "'from' must be ngram (the sequence itself) or group (and the other samples of its prompt)");
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

/* What was sampled behind a token that is not kept must leave no trace. */
static void check_model(const gr_node *n, const gr_value *v, gr_diag *d)
{
    const gr_model_shape *s = &n->model->shape;
    for (uint32_t kind = 0; kind < s->n_kinds; kind++) {
        if (gr_layer_state(&s->kinds[kind]) == GR_STATE_PAGED) continue;
        gr_diag_error(
            d, v->at, GR_E_INVALID,
            "'speculate': model '%s' has layers of the gated delta rule, whose state cannot go back behind "
            "a token that is not kept; leave 'speculate' out",
            n->model->name);
        return;
    }
}

void gr_drafts_read(gr_generate_cfg *c, const gr_node *n, gr_diag *d)
{
    const gr_value *v = c->drafts;
    c->speculate = (gr_speculate_cfg){0};
    if (!v) return;
    gr_speculate_cfg s = {.tokens = 4, .match = 2, .rate = 0.5};
    if (v->kind != GR_VALUE_MAP)
        gr_diag_error(d, v->at, GR_E_INVALID, "'speculate' is a map, such as {tokens: 4, from: group}");
    for (size_t i = 0; v->kind == GR_VALUE_MAP && i < v->n; i++) (void)!read_pair(&s, &v->pairs[i], d);
    if (c->endpoint)
        gr_diag_error(
            d, v->at, GR_E_INVALID,
            "'speculate' does not go with 'serve': sessions that call from outside are sampled a token a "
            "step; leave one of them out");
    check_model(n, v, d);
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
