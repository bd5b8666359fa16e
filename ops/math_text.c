#include "ops/math_text.h"

#include <stddef.h>
#include <stdlib.h>

#include "ops/math_compare.h"

size_t gr_span_word(gr_span s)
{
    size_t n = 0;
    while (n < s.n && isalpha((unsigned char)s.p[n])) n++;
    return n;
}

size_t gr_span_group(gr_span s)
{
    int depth = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\\') {
            i++;
            continue;
        }
        depth += (s.p[i] == '{') - (s.p[i] == '}');
        if (depth == 0) return i + 1;
    }
    return 0;
}

/* ---- normal form ------------------------------------------------------------------------------------- */

struct rewrite {
    const char *from, *to;
};

/* Commands, by whole name. */
static const struct rewrite commands[] = {
    {"left", ""},       {"right", ""},         {"big", ""},         {"Big", ""},          {"bigl", ""},
    {"bigr", ""},       {"quad", ""},          {"qquad", ""},       {"displaystyle", ""}, {"limits", ""},
    {"circ", ""},       {"degree", ""},        {"dfrac", "\\frac"}, {"tfrac", "\\frac"},  {"cfrac", "\\frac"},
    {"cdot", "*"},      {"times", "*"},        {"div", "/"},        {"le", "<="},         {"leq", "<="},
    {"leqslant", "<="}, {"ge", ">="},          {"geq", ">="},       {"geqslant", ">="},   {"lt", "<"},
    {"gt", ">"},        {"ne", "!="},          {"neq", "!="},       {"approx", "~"},      {"lvert", "|"},
    {"rvert", "|"},     {"dots", "..."},       {"ldots", "..."},    {"cdots", "..."},     {"lbrace", "\1"},
    {"rbrace", "\2"},   {"dbinom", "\\binom"},
};

/* Other byte sequences; the first that fits counts. */
static const struct rewrite signs[] = {
    {"\\{", "\1"},
    {"\\}", "\2"},
    {"\\!", ""},
    {"\\,", ""},
    {"\\;", ""},
    {"\\:", ""},
    {"\\ ", ""},
    {"\\%", ""},
    {"\\$", ""},
    {"\\(", ""},
    {"\\)", ""},
    {"\\[", ""},
    {"\\]", ""},
    {"$", ""},
    {"%", ""},
    {"^\\circ", ""},
    {"^{\\circ}", ""},
    {"\xC2\xB0", ""},
    {"\xE2\x82\xAC", ""},
    {"\xE2\x88\x92", "-"},
    {"\xC3\x97", "*"},
    {"\xC2\xB7", "*"},
    {"\xCF\x80", "\\pi"},
    {"\xE2\x89\xA4", "<="},
    {"\xE2\x89\xA5", ">="},
    {"\xE2\x89\xA0", "!="},
    {"\xE2\x88\x9E", "\\infty"},
    {"\xE2\x88\x9A", "\\sqrt"},
    {"\xC2\xB2", "^2"},
    {"\xC2\xB3", "^3"},
    {"\xE2\x88\xAA", "\\cup"},
    {"\xE2\x88\x88", "\\in"},
    {"**", "^"},
};

static const char *const text_commands[] = {"text",   "textbf", "textit",       "textrm", "mbox",  "mathrm",
                                            "mathbf", "hbox",   "operatorname", "mathit", "boxed", "fbox"};

static char last_of(const gr_str *s)
{
    return s->len ? s->text[s->len - 1] : '\0';
}

static bool is_connector(gr_span word)
{
    static const char *const words[] = {"and", "or"};
    for (size_t i = 0; i < GR_LEN(words); i++)
        if (gr_span_is(word, words[i])) return true;
    return false;
}

/* The exponent of a unit, as in cm^2. */
static gr_span skip_exponent(gr_span s)
{
    gr_span t = gr_span_trim(s);
    if (!gr_span_starts(t, "^")) return s;
    t = gr_span_skip(t, 1);
    return gr_span_skip(t, gr_span_starts(t, "{") ? gr_span_group(t) : 1);
}

/* \text{...}: a connector, a unit after a quantity, or words that are the answer. */
static gr_span put_text(gr_span rest, bool boxed, gr_str *out)
{
    size_t n = gr_span_group(rest);
    if (n < 2) return gr_span_skip(rest, 1);
    gr_span inside = {rest.p + 1, n - 2}, word = gr_span_trim(inside);
    rest = gr_span_skip(rest, n);
    if (is_connector(word)) {
        gr_str_putc(out, ',');
        return rest;
    }
    char before = last_of(out);
    bool unit =
        !boxed && word.n != 1 && (isdigit((unsigned char)before) || (before && strchr("})]", before)));
    if (unit) return skip_exponent(rest);
    gr_math_normalise(inside, out);
    return rest;
}

static gr_span put_environment(gr_span rest, bool begin, gr_str *out)
{
    size_t n = gr_span_group(rest);
    gr_span name = {rest.p + 1, n >= 2 ? n - 2 : 0};
    bool matrix = name.n >= 6 && !memcmp(name.p + name.n - 6, "matrix", 6);
    if (matrix) gr_str_putc(out, begin ? GR_MATRIX_OPEN : GR_MATRIX_CLOSE);
    return gr_span_skip(rest, n);
}

/* \frac12, \frac{1}2 and \sqrt3 get their braces. */
static gr_span put_arguments(gr_span rest, int n_args, gr_str *out)
{
    for (int i = 0; i < n_args; i++) {
        rest = gr_span_trim(rest);
        if (!rest.n || *rest.p == '{' || *rest.p == '\\' || *rest.p == '[') break;
        gr_str_putc(out, '{');
        gr_str_putc(out, *rest.p);
        gr_str_putc(out, '}');
        rest = gr_span_skip(rest, 1);
    }
    return rest;
}

/* s starts with a backslash and a letter. */
static gr_span put_command(gr_span s, gr_str *out)
{
    gr_span name = {s.p + 1, gr_span_word(gr_span_skip(s, 1))};
    if (name.n > 4 && !memcmp(name.p, "quad", 4)) name.n = 4; /* \quadx, seen in published answers */
    gr_span rest = gr_span_skip(s, name.n + 1);
    for (size_t i = 0; i < GR_LEN(text_commands); i++)
        if (gr_span_is(name, text_commands[i]) && gr_span_starts(gr_span_trim(rest), "{"))
            return put_text(gr_span_trim(rest), gr_span_is(name, "boxed") || gr_span_is(name, "fbox"), out);
    if (gr_span_is(name, "begin")) return put_environment(rest, true, out);
    if (gr_span_is(name, "end")) return put_environment(rest, false, out);
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        if (!gr_span_is(name, commands[i].from)) continue;
        gr_str_puts(out, commands[i].to);
        if (!strcmp(commands[i].to, "\\frac")) return put_arguments(rest, 2, out);
        return rest;
    }
    gr_str_putc(out, '\\');
    gr_str_add(out, name.p, name.n);
    if (gr_span_word(gr_span_trim(rest)) && !gr_span_starts(rest, "{"))
        gr_str_putc(out, ' '); /* \pi r is not \pir */
    if (gr_span_is(name, "frac")) return put_arguments(rest, 2, out);
    if (gr_span_is(name, "sqrt")) return put_arguments(rest, 1, out);
    return rest;
}

static gr_span put_sign(gr_span s, gr_str *out)
{
    for (size_t i = 0; i < GR_LEN(signs); i++) {
        if (!gr_span_starts(s, signs[i].from)) continue;
        gr_str_puts(out, signs[i].to);
        return gr_span_skip(s, strlen(signs[i].from));
    }
    if (!isspace((unsigned char)*s.p)) gr_str_putc(out, *s.p);
    return gr_span_skip(s, 1);
}

/* A word in plain text; percent, pct and connectors are not words of an answer. */
static gr_span put_word(gr_span s, gr_str *out)
{
    gr_span word = {s.p, gr_span_word(s)};
    if (is_connector(word))
        gr_str_putc(out, ',');
    else if (!gr_span_is(word, "percent") && !gr_span_is(word, "pct"))
        gr_str_add(out, word.p, word.n);
    return gr_span_skip(s, word.n);
}

void gr_math_normalise(gr_span s, gr_str *out)
{
    while (s.n) {
        bool backslash = *s.p == '\\' && s.n > 1;
        if (backslash && s.p[1] == '\\' && s.n > 2 && isalpha((unsigned char)s.p[2]))
            s = gr_span_skip(s, 1); /* a command escaped once too often */
        else if (backslash && s.p[1] == '\\') {
            gr_str_putc(out, GR_MATRIX_ROW);
            s = gr_span_skip(s, 2);
        } else if (backslash && isalpha((unsigned char)s.p[1]))
            s = put_command(s, out);
        else if (isalpha((unsigned char)*s.p))
            s = put_word(s, out);
        else
            s = put_sign(s, out);
    }
}

/* ---- the answer in a text ----------------------------------------------------------------------------- */

/* A box or formula: all of it, and what it holds. */
struct find {
    gr_span whole, inside;
};

static bool find_box(gr_span text, size_t from, struct find *out)
{
    for (size_t i = from; i < text.n; i++) {
        gr_span s = gr_span_skip(text, i);
        size_t name = gr_span_starts(s, "\\boxed") ? 6 : gr_span_starts(s, "\\fbox") ? 5 : 0;
        if (!name || !gr_span_starts(gr_span_trim(gr_span_skip(s, name)), "{")) continue;
        gr_span group = gr_span_trim(gr_span_skip(s, name));
        group.n = GR_MIN(group.n, GR_MATH_BYTES);
        size_t n = gr_span_group(group);
        if (!n) continue;
        *out = (struct find){{s.p, (size_t)(group.p - s.p) + n}, {group.p + 1, n - 2}};
        return true;
    }
    return false;
}

bool gr_math_boxed(const char *text, size_t n_text, size_t *from, size_t *n)
{
    struct find f;
    bool any = false;
    for (size_t i = 0; find_box((gr_span){text, n_text}, i, &f); any = true) {
        *from = (size_t)(f.inside.p - text);
        *n = f.inside.n;
        i = (size_t)(f.whole.p + f.whole.n - text);
    }
    return any;
}

/* Between dollars stands prose, not a formula, where two words of three letters follow each other. */
bool gr_math_is_prose(gr_span s)
{
    size_t words = 0;
    for (; s.n; s = gr_span_skip(s, 1)) {
        if (*s.p == '\\') {
            s = gr_span_skip(s, gr_span_word(gr_span_skip(s, 1)));
            words = 0;
            continue;
        }
        size_t n = gr_span_word(s);
        if (n >= 3 && ++words == 2) return true;
        if (n)
            s = gr_span_skip(s, n - 1);
        else if (*s.p != ' ')
            words = 0;
    }
    return false;
}

static bool find_formula(gr_span text, size_t from, struct find *out)
{
    static const char *const fences[][2] = {{"$$", "$$"}, {"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};
    for (size_t i = from; i < text.n; i++) {
        if (gr_span_starts(gr_span_skip(text, i), "\\$")) i += 2;
        for (size_t k = 0; k < GR_LEN(fences); k++) {
            size_t n = strlen(fences[k][0]);
            if (!gr_span_starts(gr_span_skip(text, i), fences[k][0])) continue;
            gr_span rest = gr_span_skip(text, i + n);
            const char *end = rest.n ? memmem(rest.p, GR_MIN(rest.n, GR_MATH_BYTES), fences[k][1], n) : NULL;
            gr_span inside = {rest.p, end ? (size_t)(end - rest.p) : 0};
            if (!inside.n || gr_math_is_prose(inside)) continue;
            *out = (struct find){{text.p + i, inside.n + 2 * n}, inside};
            return true;
        }
    }
    return false;
}

/* Nothing but connecting words between two parts of one answer. */
static bool is_gap(gr_span s)
{
    gr_str out = {0};
    if (s.n > 200) return false;
    for (size_t n; s.n; s = gr_span_skip(s, n)) {
        gr_span group = gr_span_skip(s, 5);
        n = gr_span_starts(s, "\\text{") ? 5 + GR_MAX(gr_span_group(group), (size_t)1) : 1;
        if (n == 1) gr_str_putc(&out, *s.p);
    }
    gr_span rest = {out.text, out.len};
    out = (gr_str){0};
    gr_math_normalise(rest, &out);
    free((char *)rest.p);
    bool gap = true;
    for (size_t i = 0; i < out.len && gap; i++) gap = strchr(",;$", out.text[i]) != NULL;
    gr_str_release(&out);
    return gap;
}

/* The last finds of a text that only connecting words part, joined by commas. */
static bool last_finds(gr_span text, bool (*next)(gr_span, size_t, struct find *), gr_str *out,
                       const char **end)
{
    struct find f;
    *end = text.p;
    for (size_t i = 0; next(text, i, &f); i = (size_t)(*end - text.p)) {
        gr_span gap = {*end, (size_t)(f.whole.p - *end)};
        if (!out->len || !is_gap(gap)) out->len = 0;
        if (out->len) gr_str_putc(out, ',');
        gr_str_add(out, f.inside.p, f.inside.n);
        *end = f.whole.p + f.whole.n;
    }
    return out->len > 0;
}

/* The finds that a text begins with, after marks alone, and those that only connecting words part from them.
 */
static bool leading_finds(gr_span text, bool (*next)(gr_span, size_t, struct find *), gr_str *out)
{
    struct find f;
    size_t marks = 0;
    while (marks < text.n && strchr(" \t\n\r:*", text.p[marks]) && text.p[marks]) marks++;
    out->len = 0;
    const char *end = text.p + marks;
    while (next(text, (size_t)(end - text.p), &f)) {
        gr_span gap = {end, (size_t)(f.whole.p - end)};
        if (out->len ? !is_gap(gap) : gap.n > 0) break;
        if (out->len) gr_str_putc(out, ',');
        gr_str_add(out, f.inside.p, f.inside.n);
        end = f.whole.p + f.whole.n;
    }
    return out->len > 0;
}

/* What follows the last "answer is" or "answer:", NULL where nothing does. */
static const char *after_announcement(gr_span text)
{
    const char *found = NULL;
    for (gr_span s = text; s.n; s = gr_span_skip(s, 1))
        if (gr_span_starts(s, "nswer is") || gr_span_starts(s, "nswer:"))
            found = s.p + (s.p[5] == ':' ? 6 : 8);
    return found;
}

/* The last number that does not belong to a word. In a text without sentences it must stand alone: the 3 of
 * 3x is no answer, while that of "it has 3m" is. */
bool gr_math_last_number(gr_span text, bool alone, gr_str *out)
{
    out->len = 0;
    for (size_t i = 0; i < text.n; i++) {
        const char *p = text.p + i;
        if (!isdigit((unsigned char)*p)) continue;
        bool word = i && isalpha((unsigned char)p[-1]);
        size_t before = i && p[-1] == '.';
        before += i > before && p[-1 - (ptrdiff_t)before] == '-';
        size_t n = 1;
        while (i + n < text.n && p[n] && (isdigit((unsigned char)p[n]) || strchr(".,/", p[n]))) n++;
        i += n;
        if (alone && i < text.n && (unsigned char)*(p + n) > ' ') word = true;
        while (n > 1 && !isdigit((unsigned char)p[n - 1])) n--;
        if (word) continue;
        out->len = 0;
        gr_str_add(out, p - before, n + before);
    }
    return out->len > 0;
}

gr_math_place gr_math_locate(gr_span *text, gr_str *out)
{
    const char *end;
    bool boxed = last_finds(*text, find_box, out, &end);
    const char *after = after_announcement(*text);
    if (boxed && (!after || after < end)) return GR_IN_FORMULA;
    if (after) *text = (gr_span){after, text->n - (size_t)(after - text->p)};
    if (after && (leading_finds(*text, find_box, out) || leading_finds(*text, find_formula, out)))
        return GR_IN_FORMULA;
    out->len = 0;
    if (last_finds(*text, find_box, out, &end) || last_finds(*text, find_formula, out, &end)) {
        gr_span tail = {end, text->n - (size_t)(end - text->p)};
        gr_str number = {0};
        bool goes_on = gr_math_is_prose(tail) && gr_math_last_number(tail, true, &number);
        gr_str_release(&number);
        if (!goes_on) return GR_IN_FORMULA;
        *text = tail;
    }
    out->len = 0;
    gr_str_add(out, text->p, text->n);
    return GR_IN_WORDS;
}
