/* ops/text/pretokenize.c: text cut into pieces, as a tokenizer's pre-tokenizers say. */
#include "ops/text/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#include "ops/text/pattern.h"

struct gr_split_stage {
    pcre2_code *code;
    gr_split_behavior behavior;
    bool invert;
};

const char gr_pretok_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define SPACES "\\t-\\r\\x{85}\\p{Z}" /* Unicode's White_Space, as the inside of a class */

/* The Oniguruma pattern as PCRE2 should read it; returns why it cannot be, or NULL. */
static char *translate(const char *p, size_t n, gr_str *out)
{
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        char c = p[i], next = i + 1 < n ? p[i + 1] : '\0';
        if (c == '\\') {
            if (next == 'h' || next == 'H') return gr_strdup("'\\h' is not supported");
            if (in_class && next == 'S') return gr_strdup("'\\S' inside a class is not supported");
            if (next == 's')
                gr_str_puts(out, in_class ? SPACES : "[" SPACES "]");
            else if (next == 'S')
                gr_str_puts(out, "[^" SPACES "]");
            else
                gr_str_add(out, p + i, i + 1 < n ? 2 : 1);
            i++;
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && next == '&')))
            return gr_strdup("a class inside a class is not supported");
        if (c == '[')
            in_class = true;
        else if (c == ']')
            in_class = false;
        gr_str_putc(out, c);
    }
    return NULL;
}

/* Compile; NULL or why not. */
static char *compile(pcre2_code **code, const char *pattern, size_t n, uint32_t options)
{
    int error;
    PCRE2_SIZE at;
    *code = gr_pattern_compile(pattern, n, options, &error, &at);
    if (!*code) {
        PCRE2_UCHAR text[256];
        pcre2_get_error_message(error, text, sizeof(text));
        return gr_printf("%s at byte %zu of '%.*s'", (char *)text, at, (int)n, pattern);
    }
    uint32_t empty = 0;
    pcre2_pattern_info(*code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(*code);
        return gr_printf("pattern '%.*s' matches the empty string", (int)n, pattern);
    }
    (void)pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* where there is no JIT, the interpreter serves */
    return NULL;
}

char *gr_pretok_add(gr_pretok *p, const char *pattern, size_t n, bool literal, gr_split_behavior behavior,
                    bool invert)
{
    gr_str translated = {0};
    char *why = NULL;
    pcre2_code *code = NULL;
    if (literal)
        gr_str_add(&translated, pattern, n);
    else
        why = translate(pattern, n, &translated);
    if (!why)
        why = compile(&code, translated.text ? translated.text : "", translated.len,
                      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP));
    if (!why) GR_PUSH(p->stages, p->n, p->cap, ((struct gr_split_stage){code, behavior, invert}));
    gr_str_release(&translated);
    return why;
}

void gr_pretok_release(gr_pretok *p)
{
    for (size_t i = 0; i < p->n; i++) pcre2_code_free(p->stages[i].code);
    free(p->stages);
    *p = (gr_pretok){0};
}

void *gr_pretok_match_new(void)
{
    return pcre2_match_data_create(1, gr_pattern_memory());
}

void gr_pretok_match_free(void *match)
{
    pcre2_match_data_free(match);
}

typedef struct walk {
    const gr_pretok *p;
    pcre2_match_data *match;
    gr_piece_fn piece;
    void *user;
} walk;

static gr_status walk_stage(const walk *w, size_t stage, const char *text, size_t n);

/* One piece of a stage that is not yet handed on, because the next may join it. */
typedef struct pending {
    size_t begin, end;
    bool any, is_match;
} pending;

static gr_status hand_on(const walk *w, size_t stage, const char *text, pending *held)
{
    if (!held->any || held->begin == held->end) return GR_OK;
    held->any = false;
    return walk_stage(w, stage + 1, text + held->begin, held->end - held->begin);
}

static gr_status add_segment(const walk *w, size_t stage, const char *text, pending *held, size_t begin,
                             size_t end, bool is_match)
{
    const struct gr_split_stage *s = &w->p->stages[stage];
    if (begin == end) return GR_OK;
    is_match ^= s->invert;
    bool join = held->any && ((s->behavior == GR_SPLIT_WITH_PREVIOUS && is_match && !held->is_match) ||
                              (s->behavior == GR_SPLIT_WITH_NEXT && !is_match && held->is_match) ||
                              (s->behavior == GR_SPLIT_CONTIGUOUS && is_match == held->is_match));
    gr_status st = join ? GR_OK : hand_on(w, stage, text, held);
    if (!join) held->begin = begin;
    held->end = end;
    held->is_match = is_match;
    held->any = !(is_match && s->behavior == GR_SPLIT_REMOVED);
    return st;
}

static gr_status walk_stage(const walk *w, size_t stage, const char *text, size_t n)
{
    if (stage == w->p->n) return w->piece(w->user, text, n);
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(w->match);
    pending held = {0};
    size_t at = 0;
    gr_status st = GR_OK;
    while (st == GR_OK && at < n) {
        int rc = pcre2_match(w->p->stages[stage].code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, w->match,
                             NULL);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) return GR_E_FAILED;
        size_t begin = found[0], end = found[1];            /* the next stage writes over found */
        if (begin < at || end <= begin) return GR_E_FAILED; /* \K can do this */
        st = add_segment(w, stage, text, &held, at, begin, false);
        if (st == GR_OK) st = add_segment(w, stage, text, &held, begin, end, true);
        at = end;
    }
    if (st == GR_OK) st = add_segment(w, stage, text, &held, at, n, false);
    if (st == GR_OK) st = hand_on(w, stage, text, &held);
    return st;
}

gr_status gr_pretok_walk(const gr_pretok *p, void *match, const char *text, size_t n, gr_piece_fn piece,
                         void *user)
{
    walk w = {p, match, piece, user};
    return n ? walk_stage(&w, 0, text, n) : GR_OK;
}
