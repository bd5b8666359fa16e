#include "ops/math_compare.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "ops/math_value.h"
#include "runtime/base.h"

/* ---- numbers ------------------------------------------------------------------------------------------ */

#define NUMBER_BYTES 128 /* longer texts are no numbers */

/* text without what does not count, in out[NUMBER_BYTES]; false where something else than a number is
 * left.
 */
static bool clean_number(const char *text, size_t n, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (isspace(c) || c == ',' || c == '$' || c == '%') continue;
        if (n - i >= 3 && !memcmp(text + i, "\xE2\x88\x92", 3)) { /* the true minus sign */
            c = '-';
            i += 2;
        }
        if (used == NUMBER_BYTES - 1 || !strchr("0123456789.+-/eE", c) || !c) return false;
        out[used++] = (char)c;
    }
    if (used && out[used - 1] == '.') used--;
    out[used] = '\0';
    return used > 0;
}

/* A decimal as sign, digits without leading and trailing zeros, and a power of ten: equal numbers become
 * equal values of this. */
struct decimal {
    char digits[NUMBER_BYTES];
    long exponent; /* of the last digit */
    bool negative;
};

static bool read_decimal(const char *s, size_t n, struct decimal *out)
{
    size_t i = 0, used = 0, seen = 0;
    bool point = false;
    *out = (struct decimal){0};
    if (i < n && (s[i] == '+' || s[i] == '-')) out->negative = s[i++] == '-';
    for (; i < n && (isdigit((unsigned char)s[i]) || (s[i] == '.' && !point)); i++) {
        if (s[i] == '.') {
            point = true;
            continue;
        }
        seen++;
        out->exponent -= point;
        if (used || s[i] != '0') out->digits[used++] = s[i];
    }
    if (!seen) return false;
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        char *end;
        long e = strtol(s + i + 1, &end, 10);
        if (end == s + i + 1 || labs(e) > 1000000) return false;
        out->exponent += e;
        i = (size_t)(end - s);
    }
    for (; used && out->digits[used - 1] == '0'; out->exponent++) out->digits[--used] = '\0';
    if (!used) *out = (struct decimal){0};
    return i == n;
}

static bool read_fraction(const char *s, struct decimal *num, struct decimal *den, double *value)
{
    size_t n = strcspn(s, "/");
    if (!read_decimal(s, n, num)) return false;
    *den = (struct decimal){.digits = "1"};
    *value = strtod(s, NULL);
    if (!s[n]) return true;
    if (!read_decimal(s + n + 1, strlen(s + n + 1), den) || !*den->digits) return false;
    *value /= strtod(s + n + 1, NULL);
    return true;
}

static bool same_decimal(const struct decimal *a, const struct decimal *b)
{
    return a->negative == b->negative && a->exponent == b->exponent && !strcmp(a->digits, b->digits);
}

bool gr_number_equal(const char *a, size_t n_a, const char *b, size_t n_b)
{
    char ta[NUMBER_BYTES], tb[NUMBER_BYTES];
    struct decimal num_a, den_a, num_b, den_b;
    double va, vb;
    if (!clean_number(a, n_a, ta) || !clean_number(b, n_b, tb)) return false;
    if (!read_fraction(ta, &num_a, &den_a, &va) || !read_fraction(tb, &num_b, &den_b, &vb)) return false;
    if (same_decimal(&den_a, &den_b)) return same_decimal(&num_a, &num_b);
    return isfinite(va) && fabs(va - vb) <= 1e-12 * fabs(va);
}

/* ---- spans of text ------------------------------------------------------------------------------------ */

typedef struct span {
    const char *p;
    size_t n;
} span;

static bool same_text(span a, span b)
{
    return a.n == b.n && !memcmp(a.p, b.p, a.n);
}

static bool starts(span s, const char *text)
{
    size_t n = strlen(text);
    return s.n >= n && !memcmp(s.p, text, n);
}

static span skip(span s, size_t n)
{
    n = GR_MIN(n, s.n);
    return (span){s.p + n, s.n - n};
}

static size_t word_length(span s)
{
    size_t n = 0;
    while (n < s.n && isalpha((unsigned char)s.p[n])) n++;
    return n;
}

/* s starts with '{': its length up to and with the matching '}', or 0. */
static size_t group_length(span s)
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

/* ---- normal form --------------------------------------------------------------------------------------
 * No spaces, units, fences or styles; \frac with braces; <= >= != for their many spellings. Set braces and
 * matrices become single bytes, to be told from grouping. */

enum { SET_OPEN = 1, SET_CLOSE, MATRIX_OPEN, MATRIX_CLOSE, ROW };

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

static void normalise(span s, gr_str *out);

static char last_of(const gr_str *s)
{
    return s->len ? s->text[s->len - 1] : '\0';
}

static bool is_connector(span word)
{
    static const char *const words[] = {"and", "or"};
    for (size_t i = 0; i < GR_LEN(words); i++)
        if (word.n == strlen(words[i]) && !memcmp(word.p, words[i], word.n)) return true;
    return false;
}

static span trimmed(span s)
{
    while (s.n && isspace((unsigned char)s.p[s.n - 1])) s.n--;
    while (s.n && isspace((unsigned char)*s.p)) s = skip(s, 1);
    return s;
}

/* The exponent of a unit, as in cm^2. */
static span skip_exponent(span s)
{
    span t = trimmed(s);
    if (!starts(t, "^")) return s;
    t = skip(t, 1);
    return skip(t, starts(t, "{") ? group_length(t) : 1);
}

/* \text{...}: a connector, a unit after a quantity, or words that are the answer. */
static span put_text(span rest, bool boxed, gr_str *out)
{
    size_t n = group_length(rest);
    if (n < 2) return skip(rest, 1);
    span inside = {rest.p + 1, n - 2}, word = trimmed(inside);
    rest = skip(rest, n);
    if (is_connector(word)) {
        gr_str_putc(out, ',');
        return rest;
    }
    char before = last_of(out);
    bool unit =
        !boxed && word.n != 1 && (isdigit((unsigned char)before) || (before && strchr("})]", before)));
    if (unit) return skip_exponent(rest);
    normalise(inside, out);
    return rest;
}

static span put_environment(span rest, bool begin, gr_str *out)
{
    size_t n = group_length(rest);
    span name = {rest.p + 1, n >= 2 ? n - 2 : 0};
    bool matrix = name.n >= 6 && !memcmp(name.p + name.n - 6, "matrix", 6);
    if (matrix) gr_str_putc(out, begin ? MATRIX_OPEN : MATRIX_CLOSE);
    return skip(rest, n);
}

/* \frac12, \frac{1}2 and \sqrt3 get their braces. */
static span put_arguments(span rest, int n_args, gr_str *out)
{
    for (int i = 0; i < n_args; i++) {
        rest = trimmed(rest);
        if (!rest.n || *rest.p == '{' || *rest.p == '\\' || *rest.p == '[') break;
        gr_str_putc(out, '{');
        gr_str_putc(out, *rest.p);
        gr_str_putc(out, '}');
        rest = skip(rest, 1);
    }
    return rest;
}

/* s starts with a backslash and a letter. */
static span put_command(span s, gr_str *out)
{
    span name = {s.p + 1, word_length(skip(s, 1))};
    if (name.n > 4 && !memcmp(name.p, "quad", 4)) name.n = 4; /* \quadx, seen in published answers */
    span rest = skip(s, name.n + 1);
    for (size_t i = 0; i < GR_LEN(text_commands); i++)
        if (name.n == strlen(text_commands[i]) && !memcmp(name.p, text_commands[i], name.n) &&
            starts(trimmed(rest), "{"))
            return put_text(trimmed(rest), name.p[name.n - 1] == 'd' && name.p[0] != 'm', out);
    if (same_text(name, (span){"begin", 5})) return put_environment(rest, true, out);
    if (same_text(name, (span){"end", 3})) return put_environment(rest, false, out);
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        if (name.n != strlen(commands[i].from) || memcmp(name.p, commands[i].from, name.n)) continue;
        gr_str_puts(out, commands[i].to);
        if (!strcmp(commands[i].to, "\\frac")) return put_arguments(rest, 2, out);
        return rest;
    }
    gr_str_putc(out, '\\');
    gr_str_add(out, name.p, name.n);
    if (word_length(trimmed(rest)) && !starts(rest, "{")) gr_str_putc(out, ' '); /* \pi r is not \pir */
    if (same_text(name, (span){"frac", 4})) return put_arguments(rest, 2, out);
    if (same_text(name, (span){"sqrt", 4})) return put_arguments(rest, 1, out);
    return rest;
}

static span put_sign(span s, gr_str *out)
{
    for (size_t i = 0; i < GR_LEN(signs); i++) {
        if (!starts(s, signs[i].from)) continue;
        gr_str_puts(out, signs[i].to);
        return skip(s, strlen(signs[i].from));
    }
    if (!isspace((unsigned char)*s.p)) gr_str_putc(out, *s.p);
    return skip(s, 1);
}

/* A word in plain text; percent, pct and connectors are not words of an answer. */
static span put_word(span s, gr_str *out)
{
    span word = {s.p, word_length(s)};
    if (is_connector(word))
        gr_str_putc(out, ',');
    else if (!same_text(word, (span){"percent", 7}) && !same_text(word, (span){"pct", 3}))
        gr_str_add(out, word.p, word.n);
    return skip(s, word.n);
}

static void normalise(span s, gr_str *out)
{
    while (s.n) {
        bool backslash = *s.p == '\\' && s.n > 1;
        if (backslash && s.p[1] == '\\' && s.n > 2 && (isalpha((unsigned char)s.p[2])))
            s = skip(s, 1); /* a command escaped once too often */
        else if (backslash && s.p[1] == '\\') {
            gr_str_putc(out, ROW);
            s = skip(s, 2);
        } else if (backslash && isalpha((unsigned char)s.p[1]) && !starts(s, "^\\circ"))
            s = put_command(s, out);
        else if (isalpha((unsigned char)*s.p))
            s = put_word(s, out);
        else
            s = put_sign(s, out);
    }
}

/* Cut what may stand around an answer: full stops and commas, and one pair of braces around everything. */
static span stripped(span s)
{
    for (;;) {
        while (s.n && strchr(".,;:", s.p[s.n - 1]) && s.p[s.n - 1]) s.n--;
        while (s.n && strchr(" ,:", *s.p) && *s.p) s = skip(s, 1);
        if (s.n > 1 && *s.p == '{' && group_length(s) == s.n)
            s = (span){s.p + 1, s.n - 2};
        else
            return s;
    }
}

/* ---- structure ---------------------------------------------------------------------------------------- */

static int depth_change(char c)
{
    if (c && strchr("([{\1\3", c)) return 1;
    return c && strchr(")]}\2\4", c) ? -1 : 0;
}

/* Where sep stands in s outside of all brackets, from `from` on; s.n where nowhere. */
static size_t find_outside(span s, const char *sep, size_t from)
{
    int depth = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (depth == 0 && i >= from && starts(skip(s, i), sep)) return i;
        depth += depth_change(s.p[i]);
    }
    return s.n;
}

struct list {
    span item[64];
    size_t n;
};

/* s cut at sep; empty pieces are left out. false where there are too many. */
static bool split(span s, const char *sep, struct list *out)
{
    out->n = 0;
    for (size_t from = 0; from <= s.n;) {
        size_t to = find_outside(s, sep, from);
        if (to > from) {
            if (out->n == GR_LEN(out->item)) return false;
            out->item[out->n++] = (span){s.p + from, to - from};
        }
        from = to + strlen(sep);
    }
    return out->n > 0;
}

static bool equal(span a, span b, int depth);

static bool all_in(const struct list *a, const struct list *b, int depth)
{
    for (size_t i = 0; i < a->n; i++) {
        bool found = false;
        for (size_t j = 0; j < b->n && !found; j++) found = equal(a->item[i], b->item[j], depth);
        if (!found) return false;
    }
    return true;
}

static bool in_order(const struct list *a, const struct list *b, int depth)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) same = equal(a->item[i], b->item[i], depth);
    return same;
}

/* The brackets around all of s, with a comma inside: a tuple, an interval or a set. 0: none. */
static char fence_of(span s)
{
    if (s.n < 3 || depth_change(*s.p) != 1 || depth_change(s.p[s.n - 1]) != -1) return 0;
    int depth = 0;
    for (size_t i = 0; i + 1 < s.n; i++)
        if ((depth += depth_change(s.p[i])) == 0) return 0;
    span inside = {s.p + 1, s.n - 2};
    return find_outside(inside, ",", 0) < inside.n || *s.p == SET_OPEN ? *s.p : 0;
}

static span inside_of(span s)
{
    return (span){s.p + 1, s.n - 2};
}

/* A name that an answer may be given to: x, a_{3}, f(x), |AB|, (p,q), V_1:V_2. */
static bool is_name(span s)
{
    bool letter = false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (isdigit((unsigned char)c) && (i == 0 || !strchr("_{0123456789", s.p[i - 1]))) return false;
        if (!isalnum((unsigned char)c) && !strchr("_{}(),|:\\'", c)) return false;
        letter |= isalpha((unsigned char)c) != 0;
    }
    return letter;
}

/* The value of "name = ... = value" or "name \in value"; s itself where it is something else. */
static span value_of(span s)
{
    size_t in = find_outside(s, "\\in", 0);
    if (in < s.n && !starts(skip(s, in), "\\infty") && is_name((span){s.p, in})) return skip(s, in + 3);
    size_t first = find_outside(s, "=", 0), last = first;
    if (first == s.n || first == 0 || strchr("<>!", s.p[first - 1]) || !is_name((span){s.p, first})) return s;
    for (size_t i = first; i < s.n; i = find_outside(s, "=", i + 1)) last = i;
    s = skip(s, last + 1);
    s.n = find_outside(s, "~", 0);
    return s;
}

/* ---- relations ---------------------------------------------------------------------------------------- */

/* a < b <= c as its parts and signs. */
struct chain {
    span part[3];
    char sign[2];   /* '<' or '>' */
    bool closed[2]; /* with equality */
    size_t n;       /* signs */
};

static bool read_chain(span s, struct chain *out)
{
    *out = (struct chain){0};
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '<' || s.p[i] == '>') {
            if (out->n == 2) return false;
            out->part[out->n] = (span){s.p, i};
            out->sign[out->n] = s.p[i];
            out->closed[out->n] = i + 1 < s.n && s.p[i + 1] == '=';
            s = skip(s, i + 1 + out->closed[out->n]);
            out->n++;
            i = (size_t)-1;
        }
    out->part[out->n] = s;
    return out->n > 0 && (out->n == 1 || out->sign[0] == out->sign[1]);
}

/* The same, read from the small end: all signs '<'. */
static void turn(struct chain *c)
{
    if (c->sign[0] != '>') return;
    struct chain t = *c;
    for (size_t i = 0; i <= c->n; i++) c->part[i] = t.part[c->n - i];
    for (size_t i = 0; i < c->n; i++) {
        c->sign[i] = '<';
        c->closed[i] = t.closed[c->n - 1 - i];
    }
}

/* Bounds on one name as an interval: x >= 5 is [5,\infty). */
static bool chain_interval(const struct chain *c, gr_str *out)
{
    size_t name = c->n == 2 ? 1 : is_name(c->part[0]) ? 0 : 1;
    if (!is_name(c->part[name])) return false;
    bool low = name == 1, high = name + 1 <= c->n;
    gr_str_putc(out, low && c->closed[0] ? '[' : '(');
    gr_str_add(out, low ? c->part[0].p : "-\\infty", low ? c->part[0].n : 7);
    gr_str_putc(out, ',');
    gr_str_add(out, high ? c->part[c->n].p : "\\infty", high ? c->part[c->n].n : 6);
    gr_str_putc(out, high && c->closed[c->n - 1] ? ']' : ')');
    return true;
}

static bool same_chain(const struct chain *a, const struct chain *b, int depth)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) same = a->closed[i] == b->closed[i];
    for (size_t i = 0; i <= a->n && same; i++) same = equal(a->part[i], b->part[i], depth);
    return same;
}

/* At least one side is an inequality. */
static bool equal_relations(span a, span b, int depth)
{
    struct chain ca, cb;
    gr_str ia = {0}, ib = {0};
    bool is_a = read_chain(a, &ca), is_b = read_chain(b, &cb), same = false;
    if (is_a) turn(&ca);
    if (is_b) turn(&cb);
    if (is_a && is_b) same = same_chain(&ca, &cb, depth);
    if (!same && (!is_a || chain_interval(&ca, &ia)) && (!is_b || chain_interval(&cb, &ib)))
        same = equal(is_a ? (span){ia.text, ia.len} : a, is_b ? (span){ib.text, ib.len} : b, depth);
    gr_str_release(&ia);
    gr_str_release(&ib);
    return same;
}

/* ---- values ------------------------------------------------------------------------------------------- */

#define TRIALS 3

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-9 * GR_MAX(fabs(a), fabs(b)) + 1e-12;
}

static bool equal_values(span a, span b)
{
    for (unsigned trial = 0; trial < TRIALS; trial++) {
        double va, vb;
        if (!gr_math_value(a.p, a.n, trial, &va) || !gr_math_value(b.p, b.n, trial, &vb)) return false;
        if (!close_to(va, vb)) return false;
    }
    return true;
}

/* Two equations are the same where left - right of one is a multiple of that of the other, everywhere. */
static bool equal_equations(span a, span b)
{
    size_t at_a = find_outside(a, "=", 0), at_b = find_outside(b, "=", 0);
    double ratio = 0;
    for (unsigned trial = 0; trial < TRIALS; trial++) {
        double v[4];
        if (!gr_math_value(a.p, at_a, trial, &v[0]) || !gr_math_value(b.p, at_b, trial, &v[2])) return false;
        if (!gr_math_value(a.p + at_a + 1, a.n - at_a - 1, trial, &v[1])) return false;
        if (!gr_math_value(b.p + at_b + 1, b.n - at_b - 1, trial, &v[3])) return false;
        double da = v[0] - v[1], db = v[2] - v[3];
        if (fabs(db) < 1e-9 || fabs(da) < 1e-9) return false;
        if (trial && !close_to(da / db, ratio)) return false;
        ratio = da / db;
    }
    return true;
}

static bool is_word(span s)
{
    return s.n > 1 && word_length(s) == s.n;
}

static bool same_word(span a, span b)
{
    if (a.n != b.n) return false;
    for (size_t i = 0; i < a.n; i++)
        if (tolower((unsigned char)a.p[i]) != tolower((unsigned char)b.p[i])) return false;
    return true;
}

static bool equal_matrices(span a, span b, int depth)
{
    struct list rows_a, rows_b, cells_a, cells_b;
    const char row[] = {ROW, 0};
    if (!split(inside_of(a), row, &rows_a) || !split(inside_of(b), row, &rows_b) || rows_a.n != rows_b.n)
        return false;
    for (size_t i = 0; i < rows_a.n; i++)
        if (!split(rows_a.item[i], "&", &cells_a) || !split(rows_b.item[i], "&", &cells_b) ||
            !in_order(&cells_a, &cells_b, depth))
            return false;
    return true;
}

static bool is_matrix(span s)
{
    return s.n > 2 && *s.p == MATRIX_OPEN && find_outside(skip(s, 1), "\4", 0) == s.n - 2;
}

/* Lists of answers are sets; a tuple keeps its order; a bare list may stand for a tuple. */
static bool equal_lists(span a, span b, int depth)
{
    struct list la, lb;
    char fa = fence_of(a), fb = fence_of(b);
    if (fa && fb && fa != SET_OPEN && (fa != fb || a.p[a.n - 1] != b.p[b.n - 1])) return false;
    bool ordered = (fa && fa != SET_OPEN) || (fb && fb != SET_OPEN);
    if (!split(fa ? inside_of(a) : a, ",", &la) || !split(fb ? inside_of(b) : b, ",", &lb)) return false;
    if (la.n == 1 && lb.n == 1 && !fa && !fb) return false; /* no lists at all */
    if (ordered) return in_order(&la, &lb, depth);
    return all_in(&la, &lb, depth) && all_in(&lb, &la, depth);
}

static bool has(span s, const char *sep)
{
    return find_outside(s, sep, 0) < s.n;
}

static bool equal_parts(span a, const char *sep_a, span b, const char *sep_b, int depth)
{
    struct list la, lb;
    return split(a, sep_a, &la) && split(b, sep_b, &lb) && la.n == lb.n && all_in(&la, &lb, depth) &&
           all_in(&lb, &la, depth);
}

static bool equal(span a, span b, int depth)
{
    a = stripped(a);
    b = stripped(b);
    if (same_text(a, b)) return true;
    if (depth > 8 || !a.n || !b.n) return false;
    depth++;
    if (gr_number_equal(a.p, a.n, b.p, b.n) && !has(a, ",") && !has(b, ",")) return true;
    if (is_word(a) && is_word(b)) return same_word(a, b);
    if (is_matrix(a) && is_matrix(b)) return equal_matrices(a, b, depth);
    if (has(a, "!=") || has(b, "!="))
        return has(a, "!=") && has(b, "!=") && equal_parts(a, "!=", b, "!=", depth);
    if (has(a, ";") || has(b, ";"))
        return equal_parts(a, has(a, ";") ? ";" : ",", b, has(b, ";") ? ";" : ",", depth);
    bool commas = has(a, ",") || has(b, ",");
    if (!commas && (has(a, "<") || has(a, ">") || has(b, "<") || has(b, ">")))
        return equal_relations(a, b, depth);
    if (!commas) {
        span va = value_of(a), vb = value_of(b);
        bool assigns_a = va.p != a.p, assigns_b = vb.p != b.p;
        if (has(a, "=") && has(b, "=") && !(assigns_a && assigns_b)) return equal_equations(a, b);
        if (assigns_a || assigns_b) return equal(va, vb, depth);
        if (has(a, "=") || has(b, "=")) return false;
        if (has(a, "\\cup") || has(b, "\\cup")) return equal_parts(a, "\\cup", b, "\\cup", depth);
        if (has(a, ":") || has(b, ":")) return false;
    }
    if (commas || fence_of(a) || fence_of(b)) return equal_lists(a, b, depth);
    return equal_values(a, b);
}

/* Commas between three digits, outside brackets, are those of thousands: removed in place. */
static void join_thousands(gr_str *s)
{
    size_t used = 0;
    int depth = 0;
    for (size_t i = 0; i < s->len; i++) {
        const char *p = s->text + i;
        depth += depth_change(*p);
        size_t digits = 0;
        while (i + 1 + digits < s->len && isdigit((unsigned char)p[1 + digits])) digits++;
        bool joins = *p == ',' && depth == 0 && digits == 3 && i && isdigit((unsigned char)p[-1]);
        if (!joins) s->text[used++] = *p;
    }
    s->len = used;
    if (s->text) s->text[used] = '\0';
}

bool gr_math_equal(const char *truth, size_t n_truth, const char *got, size_t n_got)
{
    gr_str a = {0}, b = {0};
    normalise((span){truth, n_truth}, &a);
    normalise((span){got, n_got}, &b);
    bool same = a.len && b.len && equal((span){a.text, a.len}, (span){b.text, b.len}, 0);
    if (!same && a.len && b.len) {
        join_thousands(&a);
        join_thousands(&b);
        same = equal((span){a.text, a.len}, (span){b.text, b.len}, 0);
    }
    gr_str_release(&a);
    gr_str_release(&b);
    return same;
}

/* ---- the answer in a text ----------------------------------------------------------------------------- */

/* A box or formula: all of it, and what it holds. */
struct find {
    span whole, inside;
};

static bool find_box(span text, size_t from, struct find *out)
{
    for (size_t i = from; i < text.n; i++) {
        span s = skip(text, i);
        size_t name = starts(s, "\\boxed") ? 6 : starts(s, "\\fbox") ? 5 : 0;
        if (!name || !starts(trimmed(skip(s, name)), "{")) continue;
        span group = trimmed(skip(s, name));
        size_t n = group_length(group);
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
    for (size_t i = 0; find_box((span){text, n_text}, i, &f); any = true) {
        *from = (size_t)(f.inside.p - text);
        *n = f.inside.n;
        i = (size_t)(f.whole.p + f.whole.n - text);
    }
    return any;
}

/* Between dollars stands prose, not a formula, where two words of three letters follow each other. */
static bool is_prose(span s)
{
    size_t words = 0;
    for (; s.n; s = skip(s, 1)) {
        if (*s.p == '\\') {
            s = skip(s, word_length(skip(s, 1)));
            words = 0;
            continue;
        }
        size_t n = word_length(s);
        if (n >= 3 && ++words == 2) return true;
        if (n)
            s = skip(s, n - 1);
        else if (*s.p != ' ')
            words = 0;
    }
    return false;
}

static bool find_formula(span text, size_t from, struct find *out)
{
    static const char *const fences[][2] = {{"$$", "$$"}, {"$", "$"}, {"\\(", "\\)"}, {"\\[", "\\]"}};
    for (size_t i = from; i < text.n; i++) {
        if (starts(skip(text, i), "\\$")) i += 2;
        for (size_t k = 0; k < GR_LEN(fences); k++) {
            size_t n = strlen(fences[k][0]);
            if (!starts(skip(text, i), fences[k][0])) continue;
            span rest = skip(text, i + n);
            const char *end = rest.n ? memmem(rest.p, rest.n, fences[k][1], n) : NULL;
            span inside = {rest.p, end ? (size_t)(end - rest.p) : 0};
            if (!inside.n || is_prose(inside)) continue;
            *out = (struct find){{text.p + i, inside.n + 2 * n}, inside};
            return true;
        }
    }
    return false;
}

/* Nothing but connecting words between two parts of one answer. */
static bool is_gap(span s)
{
    gr_str out = {0};
    for (size_t n; s.n; s = skip(s, n)) {
        span group = skip(s, 5);
        n = starts(s, "\\text{") ? 5 + GR_MAX(group_length(group), (size_t)1) : 1;
        if (n == 1) gr_str_putc(&out, *s.p);
    }
    span rest = {out.text, out.len};
    out = (gr_str){0};
    normalise(rest, &out);
    free((char *)rest.p);
    bool gap = true;
    for (size_t i = 0; i < out.len && gap; i++) gap = strchr(",;$", out.text[i]) != NULL;
    gr_str_release(&out);
    return gap;
}

/* The last finds of a text that only connecting words part, joined by commas. */
static bool last_finds(span text, bool (*next)(span, size_t, struct find *), gr_str *out, const char **end)
{
    struct find f;
    *end = text.p;
    for (size_t i = 0; next(text, i, &f); i = (size_t)(*end - text.p)) {
        span gap = {*end, (size_t)(f.whole.p - *end)};
        if (!out->len || !is_gap(gap)) out->len = 0;
        if (out->len) gr_str_putc(out, ',');
        gr_str_add(out, f.inside.p, f.inside.n);
        *end = f.whole.p + f.whole.n;
    }
    return out->len > 0;
}

/* What follows the last "answer is" or "answer:", NULL where nothing does. */
static const char *after_announcement(span text)
{
    const char *found = NULL;
    for (size_t i = 0; i + 10 < text.n; i++)
        if (starts(skip(text, i), "answer is") || starts(skip(text, i), "Answer:") ||
            starts(skip(text, i), "answer:"))
            found = text.p + i + (text.p[i + 6] == ' ' ? 9 : 7);
    return found;
}

/* The last number that does not belong to a word. In a text without sentences it must stand alone: the 3 of
 * 3x is no answer, while that of "it has 3m" is. */
static bool last_number(span text, bool alone, gr_str *out)
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

static size_t spaces(span s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += s.p[i] == ' ';
    return n;
}

/* Where the answer of a text was found: in a box or formula, or in its plain words. */
enum place { IN_FORMULA, IN_WORDS };

static enum place locate(span *text, gr_str *out)
{
    const char *end;
    bool boxed = last_finds(*text, find_box, out, &end);
    const char *after = after_announcement(*text);
    if (boxed && (!after || after < end)) return IN_FORMULA;
    if (after) *text = (span){after, text->n - (size_t)(after - text->p)};
    out->len = 0;
    if (last_finds(*text, find_box, out, &end) || last_finds(*text, find_formula, out, &end)) {
        span tail = {end, text->n - (size_t)(end - text->p)};
        gr_str number = {0};
        bool goes_on = is_prose(tail) && last_number(tail, true, &number);
        gr_str_release(&number);
        if (!goes_on) return IN_FORMULA;
        *text = tail;
    }
    out->len = 0;
    gr_str_add(out, text->p, text->n);
    return IN_WORDS;
}

bool gr_math_equal_in_text(const char *truth, size_t n_truth, const char *got, size_t n_got)
{
    gr_str a = {0}, b = {0};
    span in_truth = {truth, n_truth}, in_got = {got, n_got};
    locate(&in_truth, &a);
    enum place place = locate(&in_got, &b);
    bool same = a.len && b.len && gr_math_equal(a.text, a.len, b.text, b.len);
    bool formula = memchr(in_got.p, '=', in_got.n) || memchr(in_got.p, '+', in_got.n) ||
                   memchr(in_got.p, '^', in_got.n) || memchr(in_got.p, '\\', in_got.n);
    if (!same && place == IN_WORDS && (!formula || is_prose(in_got)) &&
        last_number(in_got, spaces(in_got) < 4, &b))
        same = a.len && gr_math_equal(a.text, a.len, b.text, b.len);
    gr_str_release(&a);
    gr_str_release(&b);
    return same;
}
