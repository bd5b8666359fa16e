/* ops/reward/rules.c: reward rules: extract, compare, score. */
#include "ops/reward/rules.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "ops/reward/math_compare.h"
#include "ops/reward/math_number.h"
#include "ops/reward/math_text.h"
#include "ops/text/pattern.h"
#include "ops/reward/math_find.h"

/* Steps of backtracking from one starting place, and the heap it may take: far above what a sensible pattern
 * needs, and a fraction of a second. */
#define MATCH_LIMIT 200000
#define HEAP_LIMIT  20000 /* KiB */

const char *const gr_compare_names[4] = {"string", "number", "math", "prefix"};

/* A pattern, with what its matches take. */
typedef struct pattern {
    pcre2_code *code; /* NULL: the whole text */
    pcre2_match_data *data;
    pcre2_match_context *limits;
} pattern;

struct gr_rule {
    pattern extract, answer_extract;
    char *strip;
    size_t tail;
    bool take_first, boxed;
    gr_compare compare;
};

bool gr_compare_find(const char *name, gr_compare *out)
{
    for (size_t i = 0; i < GR_LEN(gr_compare_names); i++)
        if (!strcmp(name, gr_compare_names[i])) {
            *out = (gr_compare)i;
            return true;
        }
    return false;
}

/* ---- making rules ------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    gr_rule_config config;
} short_rules[] = {
    {"exact", {.compare = GR_COMPARE_STRING}},
    {"prefix", {.compare = GR_COMPARE_PREFIX}},
    {"gsm8k",
     {.extract = "#### (-?[0-9.,]+)",
      .answer_extract = "(?s)\\A(?:.*####)?\\s*(.*?)\\s*\\z",
      .strip = ",$",
      .tail = 300,
      .compare = GR_COMPARE_STRING}},
    {"boxed", {.boxed = true, .compare = GR_COMPARE_MATH}},
    {"math", {.compare = GR_COMPARE_MATH}},
};

gr_status gr_rule_config_find(const char *name, gr_loc at, gr_rule_config *out, gr_diag *d)
{
    const char *names[GR_LEN(short_rules)];
    for (size_t i = 0; i < GR_LEN(short_rules); i++) {
        names[i] = short_rules[i].name;
        if (strcmp(name, names[i])) continue;
        *out = short_rules[i].config;
        out->at = out->extract_at = out->answer_extract_at = at;
        return GR_OK;
    }
    const char *near = gr_near(name, names, GR_LEN(names));
    if (near) return gr_diag_error(d, at, GR_E_INVALID, "unknown rule '%s'; did you mean '%s'?", name, near);
    return gr_diag_error(d, at, GR_E_INVALID, "unknown rule '%s'; one of exact, prefix, gsm8k, boxed, math",
                         name);
}

static gr_status refuse(const char *text, int code, size_t offset, gr_loc at, gr_diag *d)
{
    char why[256];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
    return gr_diag_error(d, at, GR_E_INVALID, "bad pattern '%s': %s, at its byte %zu", text, why, offset);
}

static gr_status compile(pattern *out, const char *text, gr_loc at, gr_diag *d)
{
    int code;
    PCRE2_SIZE offset;
    if (!text) return GR_OK;
    out->code = gr_pattern_compile(text, strlen(text), PCRE2_UTF, &code, &offset);
    if (!out->code) return refuse(text, code, offset, at, d);
    out->data = pcre2_match_data_create_from_pattern(out->code, NULL);
    out->limits = pcre2_match_context_create(gr_pattern_memory());
    pcre2_set_match_limit(out->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(out->limits, HEAP_LIMIT);
    return GR_OK;
}

static void pattern_release(pattern *p)
{
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->limits);
    pcre2_code_free(p->code);
}

gr_status gr_rule_new(gr_rule **out, const gr_rule_config *c, gr_diag *d)
{
    gr_rule *r = gr_calloc(1, sizeof(*r));
    r->tail = c->tail;
    r->take_first = c->take_first;
    r->boxed = c->boxed;
    r->compare = c->compare;
    r->strip = gr_strdup(c->strip ? c->strip : "");
    gr_status st = compile(&r->extract, c->extract, c->extract_at, d);
    gr_status st2 = compile(&r->answer_extract, c->answer_extract, c->answer_extract_at, d);
    if (st || st2) {
        gr_rule_free(r);
        return GR_E_INVALID;
    }
    *out = r;
    return GR_OK;
}

void gr_rule_free(gr_rule *r)
{
    if (!r) return;
    pattern_release(&r->extract);
    pattern_release(&r->answer_extract);
    free(r->strip);
    free(r);
}

bool gr_rule_is_dense(const gr_rule *r)
{
    return r->compare == GR_COMPARE_PREFIX;
}

/* ---- finding ------------------------------------------------------------------------------------------ */

static bool starts_character(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

static gr_span tail_of(gr_span s, size_t characters)
{
    if (!characters) return s;
    const char *p = s.p + s.n;
    while (p > s.p && characters) characters -= starts_character(*--p);
    return (gr_span){p, s.n - (size_t)(p - s.p)};
}

enum found { FOUND_NOTHING, FOUND, FOUND_LIMIT };

/* NULL where text is UTF-8; else a copy in which each byte that is not has become SUB. PCRE2 can do without,
 * but then it checks the whole text anew for every match. */
static char *repaired(gr_span text)
{
    char *copy = NULL;
    for (size_t i = 0; i < text.n;) {
        const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)text.p + i;
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate(at, (utf8proc_ssize_t)(text.n - i), &c);
        if (n <= 0) {
            if (!copy) copy = memcpy(gr_malloc(text.n), text.p, text.n);
            copy[i] = '\x1A';
            n = 1;
        }
        i += (size_t)n;
    }
    return copy;
}

/* Where to look on after a match of bytes [v[0], v[1]): after it, and after one more character where it was
 * empty. */
static size_t next_start(gr_span text, size_t from, const PCRE2_SIZE *v)
{
    size_t next = GR_MAX(v[1], from + (v[1] <= from || v[1] == v[0]));
    while (next < text.n && !starts_character(text.p[next])) next++;
    return next;
}

/* The first or last match of a pattern in text, the non-overlapping ones counted from the start. */
static enum found find(const pattern *p, bool first, gr_span text, gr_span *out)
{
    enum found result = FOUND_NOTHING;
    char *copy = repaired(text);
    gr_span subject = {copy ? copy : text.p, text.n};
    for (size_t from = 0; from <= text.n && !(first && result);) {
        int rc =
            pcre2_match(p->code, (PCRE2_SPTR)subject.p, text.n, from, PCRE2_NO_UTF_CHECK, p->data, p->limits);
        if (rc < 0) {
            if (rc != PCRE2_ERROR_NOMATCH) result = FOUND_LIMIT;
            break;
        }
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(p->data);
        const PCRE2_SIZE *group = rc > 1 && v[2] != PCRE2_UNSET ? v + 2 : v;
        if (group[0] <= group[1]) { /* \K in a lookahead can turn them around */
            *out = (gr_span){text.p + group[0], group[1] - group[0]};
            result = FOUND;
        }
        from = next_start(subject, from, v);
    }
    free(copy);
    return result;
}

static enum found find_response(const gr_rule *r, const gr_rule_input *in, gr_span *out)
{
    gr_span text = tail_of((gr_span){in->text, in->n}, r->tail);
    *out = text;
    if (r->extract.code) {
        enum found f = find(&r->extract, r->take_first, text, out);
        if (f != FOUND) return f;
    }
    if (r->boxed) {
        size_t from;
        if (!gr_math_boxed(out->p, out->n, &from, &out->n)) return FOUND_NOTHING;
        out->p += from;
    }
    return FOUND;
}

gr_status gr_rule_truth(const gr_rule *r, const char *answer, size_t n, gr_loc at, const char **truth,
                        size_t *n_truth, gr_diag *d)
{
    gr_span s = {answer, n};
    enum found f = r->answer_extract.code ? find(&r->answer_extract, r->take_first, s, &s) : FOUND;
    if (f != FOUND)
        return gr_diag_error(d, at, GR_E_INVALID, "'answer_extract' %s the answer '%.*s'%s",
                             f == FOUND_NOTHING ? "finds nothing in" : "backtracks too much on",
                             (int)GR_MIN(n, (size_t)60), answer, n > 60 ? "..." : "");
    size_t from, len;
    if (r->boxed && gr_math_boxed(s.p, s.n, &from, &len)) s = (gr_span){s.p + from, len};
    *truth = s.p;
    *n_truth = s.n;
    return GR_OK;
}

/* ---- comparing ---------------------------------------------------------------------------------------- */

static bool same_text(gr_span a, gr_span b, const char *strip)
{
    a = gr_span_trim(a);
    b = gr_span_trim(b);
    for (;;) {
        for (; a.n && *a.p && strchr(strip, *a.p); a.n--) a.p++;
        for (; b.n && *b.p && strchr(strip, *b.p); b.n--) b.p++;
        if (!a.n || !b.n) return a.n == b.n;
        if (*a.p != *b.p) return false;
        a.p++, b.p++, a.n--, b.n--;
    }
}

static bool same(const gr_rule *r, gr_span got, gr_span truth)
{
    if (r->compare == GR_COMPARE_NUMBER && gr_number_equal(got.p, got.n, truth.p, truth.n)) return true;
    if (r->compare != GR_COMPARE_MATH) return same_text(got, truth, r->strip);
    if (!r->extract.code && !r->boxed) return gr_math_equal_in_text(truth.p, truth.n, got.p, got.n);
    return gr_math_equal(truth.p, truth.n, got.p, got.n);
}

/* ---- dense -------------------------------------------------------------------------------------------- */

/* Bytes of the first character: up to the next byte that can begin one, also where text is not UTF-8. */
static size_t character_bytes(gr_span s) /* s is not empty */
{
    size_t n = 1;
    while (n < s.n && !starts_character(s.p[n])) n++;
    return n;
}

static gr_span behind_character(gr_span s)
{
    return gr_span_skip(s, character_bytes(s));
}

static size_t characters(gr_span s)
{
    size_t n = 0;
    for (; s.n; s = behind_character(s)) n++;
    return n;
}

static bool same_character(gr_span a, gr_span b)
{
    size_t n = a.n && b.n ? character_bytes(a) : 0;
    return n && n == character_bytes(b) && !memcmp(a.p, b.p, n);
}

static void pay(const gr_rule_input *in, gr_rule_output *out, size_t *token, size_t last_byte, double reward)
{
    out->score += reward;
    if (!out->per_token) return;
    while (*token < in->n_tokens && in->ends[*token] <= last_byte) ++*token;
    if (*token < in->n_tokens) out->per_token[*token] += (float)reward;
}

static void score_prefix(const gr_rule_input *in, gr_span got, gr_span truth, gr_rule_output *out)
{
    double each = 1.0 / (double)(characters(truth) + 1);
    bool empty = got.n == 0 && truth.n == 0, all = got.n > 0;
    for (size_t token = 0; got.n;) {
        all = same_character(got, truth);
        if (!all) break;
        got = behind_character(got);
        truth = behind_character(truth);
        pay(in, out, &token, (size_t)(got.p - in->text) - 1, each);
    }
    if (!in->ended) return;
    double last = empty ? 1 : all ? each : 0;
    out->score += last;
    if (out->per_token && in->n_tokens) out->per_token[in->n_tokens - 1] += (float)last;
}

gr_status gr_rule_score(const gr_rule *r, const gr_rule_input *in, gr_rule_output *out, gr_diag *d)
{
    gr_span truth, got;
    gr_status st = gr_rule_truth(r, in->answer, in->n_answer, in->at, &truth.p, &truth.n, d);
    if (st) return st;
    enum found f = find_response(r, in, &got);
    *out = (gr_rule_output){0, f == FOUND, f == FOUND_LIMIT, out->per_token};
    if (out->per_token) memset(out->per_token, 0, in->n_tokens * sizeof(float));
    if (!out->found) return GR_OK;
    if (gr_rule_is_dense(r)) {
        score_prefix(in, got, truth, out);
        return GR_OK;
    }
    out->score = same(r, got, truth);
    if (out->per_token && in->n_tokens) out->per_token[in->n_tokens - 1] = (float)out->score;
    return GR_OK;
}

/* ---- sets --------------------------------------------------------------------------------------------- */

struct gr_rule_set {
    gr_rule **rules;
    char **values;
    size_t n, cap, n_values, cap_values;
};

gr_rule_set *gr_rule_set_new(void)
{
    return gr_calloc(1, sizeof(gr_rule_set));
}

void gr_rule_set_free(gr_rule_set *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        gr_rule_free(s->rules[i]);
        free(s->values[i]);
    }
    free(s->rules);
    free(s->values);
    free(s);
}

static size_t index_of(const gr_rule_set *s, const char *value)
{
    size_t i = 0;
    while (i < s->n && strcmp(s->values[i], value)) i++;
    return i;
}

gr_status gr_rule_set_add(gr_rule_set *s, const char *value, gr_rule *r, gr_loc at, gr_diag *d)
{
    if (index_of(s, value) < s->n) {
        gr_rule_free(r);
        return gr_diag_error(d, at, GR_E_INVALID, "'%s' has two rules; one is wanted", value);
    }
    GR_PUSH(s->values, s->n_values, s->cap_values, gr_strdup(value));
    GR_PUSH(s->rules, s->n, s->cap, r);
    return GR_OK;
}

gr_status gr_rule_set_find(const gr_rule_set *s, const char *value, gr_loc at, const gr_rule **out,
                           gr_diag *d)
{
    size_t i = index_of(s, value);
    if (i < s->n) {
        *out = s->rules[i];
        return GR_OK;
    }
    const char *near = gr_near(value, (const char *const *)s->values, s->n);
    return near ? gr_diag_error(d, at, GR_E_INVALID, "no rule for '%s'; did you mean '%s'?", value, near)
                : gr_diag_error(d, at, GR_E_INVALID, "no rule for '%s'", value);
}

bool gr_rule_set_is_dense(const gr_rule_set *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (gr_rule_is_dense(s->rules[i])) return true;
    return false;
}
