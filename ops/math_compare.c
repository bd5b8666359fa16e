#include "ops/math_compare.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/math_text.h"
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

/* Cut what may stand around an answer: full stops and commas, and one pair of braces around everything. */
static gr_span stripped(gr_span s)
{
    for (;;) {
        while (s.n && strchr(".,;:", s.p[s.n - 1]) && s.p[s.n - 1]) s.n--;
        while (s.n && strchr(" ,:", *s.p) && *s.p) s = gr_span_skip(s, 1);
        if (s.n > 1 && *s.p == '{' && gr_span_group(s) == s.n)
            s = (gr_span){s.p + 1, s.n - 2};
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
static size_t find_outside(gr_span s, const char *sep, size_t from)
{
    int depth = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (depth == 0 && i >= from && gr_span_starts(gr_span_skip(s, i), sep)) return i;
        depth += depth_change(s.p[i]);
    }
    return s.n;
}

struct list {
    gr_span item[64];
    size_t n;
};

/* s cut at sep; empty pieces are left out. false where there are too many. */
static bool split(gr_span s, const char *sep, struct list *out)
{
    out->n = 0;
    for (size_t from = 0; from <= s.n;) {
        size_t to = find_outside(s, sep, from);
        if (to > from) {
            if (out->n == GR_LEN(out->item)) return false;
            out->item[out->n++] = (gr_span){s.p + from, to - from};
        }
        from = to + strlen(sep);
    }
    return out->n > 0;
}

static bool equal(gr_span a, gr_span b, int depth);

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
static char fence_of(gr_span s)
{
    if (s.n < 3 || depth_change(*s.p) != 1 || depth_change(s.p[s.n - 1]) != -1) return 0;
    int depth = 0;
    for (size_t i = 0; i + 1 < s.n; i++)
        if ((depth += depth_change(s.p[i])) == 0) return 0;
    gr_span inside = {s.p + 1, s.n - 2};
    return find_outside(inside, ",", 0) < inside.n || *s.p == GR_SET_OPEN ? *s.p : 0;
}

static gr_span inside_of(gr_span s)
{
    return (gr_span){s.p + 1, s.n - 2};
}

/* A name that an answer may be given to: x, a_{3}, f(x), |AB|, (p,q), V_1:V_2. */
static bool is_name(gr_span s)
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
static gr_span value_of(gr_span s)
{
    size_t in = find_outside(s, "\\in", 0);
    if (in < s.n && !gr_span_starts(gr_span_skip(s, in), "\\infty") && is_name((gr_span){s.p, in}))
        return gr_span_skip(s, in + 3);
    size_t first = find_outside(s, "=", 0), last = first;
    if (first == s.n || first == 0 || strchr("<>!", s.p[first - 1]) || !is_name((gr_span){s.p, first}))
        return s;
    for (size_t i = first; i < s.n; i = find_outside(s, "=", i + 1)) last = i;
    s = gr_span_skip(s, last + 1);
    s.n = find_outside(s, "~", 0);
    return s;
}

/* ---- relations ---------------------------------------------------------------------------------------- */

/* a < b <= c as its parts and signs. */
struct chain {
    gr_span part[3];
    char sign[2];   /* '<' or '>' */
    bool closed[2]; /* with equality */
    size_t n;       /* signs */
};

static bool read_chain(gr_span s, struct chain *out)
{
    *out = (struct chain){0};
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == '<' || s.p[i] == '>') {
            if (out->n == 2) return false;
            out->part[out->n] = (gr_span){s.p, i};
            out->sign[out->n] = s.p[i];
            out->closed[out->n] = i + 1 < s.n && s.p[i + 1] == '=';
            s = gr_span_skip(s, i + 1 + out->closed[out->n]);
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
static bool equal_relations(gr_span a, gr_span b, int depth)
{
    struct chain ca, cb;
    gr_str ia = {0}, ib = {0};
    bool is_a = read_chain(a, &ca), is_b = read_chain(b, &cb), same = false;
    if (is_a) turn(&ca);
    if (is_b) turn(&cb);
    if (is_a && is_b) same = same_chain(&ca, &cb, depth);
    if (!same && (!is_a || chain_interval(&ca, &ia)) && (!is_b || chain_interval(&cb, &ib)))
        same = equal(is_a ? (gr_span){ia.text, ia.len} : a, is_b ? (gr_span){ib.text, ib.len} : b, depth);
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

static bool equal_values(gr_span a, gr_span b)
{
    for (unsigned trial = 0; trial < TRIALS; trial++) {
        double va, vb;
        if (!gr_math_value(a.p, a.n, trial, &va) || !gr_math_value(b.p, b.n, trial, &vb)) return false;
        if (!close_to(va, vb)) return false;
    }
    return true;
}

/* Two equations are the same where left - right of one is a multiple of that of the other, everywhere. */
static bool equal_equations(gr_span a, gr_span b)
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

static bool is_word(gr_span s)
{
    return s.n > 1 && gr_span_word(s) == s.n;
}

static bool same_word(gr_span a, gr_span b)
{
    if (a.n != b.n) return false;
    for (size_t i = 0; i < a.n; i++)
        if (tolower((unsigned char)a.p[i]) != tolower((unsigned char)b.p[i])) return false;
    return true;
}

static bool equal_matrices(gr_span a, gr_span b, int depth)
{
    struct list rows_a, rows_b, cells_a, cells_b;
    const char row[] = {GR_MATRIX_ROW, 0};
    if (!split(inside_of(a), row, &rows_a) || !split(inside_of(b), row, &rows_b) || rows_a.n != rows_b.n)
        return false;
    for (size_t i = 0; i < rows_a.n; i++)
        if (!split(rows_a.item[i], "&", &cells_a) || !split(rows_b.item[i], "&", &cells_b) ||
            !in_order(&cells_a, &cells_b, depth))
            return false;
    return true;
}

static bool is_matrix(gr_span s)
{
    return s.n > 2 && *s.p == GR_MATRIX_OPEN && find_outside(gr_span_skip(s, 1), "\4", 0) == s.n - 2;
}

/* Lists of answers are sets; a tuple keeps its order; a bare list may stand for a tuple. */
static bool equal_lists(gr_span a, gr_span b, int depth)
{
    struct list la, lb;
    char fa = fence_of(a), fb = fence_of(b);
    if (fa && fb && fa != GR_SET_OPEN && (fa != fb || a.p[a.n - 1] != b.p[b.n - 1])) return false;
    bool ordered = (fa && fa != GR_SET_OPEN) || (fb && fb != GR_SET_OPEN);
    if (!split(fa ? inside_of(a) : a, ",", &la) || !split(fb ? inside_of(b) : b, ",", &lb)) return false;
    if (la.n == 1 && lb.n == 1 && !fa && !fb) return false; /* no lists at all */
    if (ordered) return in_order(&la, &lb, depth);
    return all_in(&la, &lb, depth) && all_in(&lb, &la, depth);
}

static bool has(gr_span s, const char *sep)
{
    return find_outside(s, sep, 0) < s.n;
}

static bool equal_parts(gr_span a, const char *sep_a, gr_span b, const char *sep_b, int depth)
{
    struct list la, lb;
    return split(a, sep_a, &la) && split(b, sep_b, &lb) && la.n == lb.n && all_in(&la, &lb, depth) &&
           all_in(&lb, &la, depth);
}

static bool equal(gr_span a, gr_span b, int depth)
{
    a = stripped(a);
    b = stripped(b);
    if (gr_span_same(a, b)) return true;
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
        gr_span va = value_of(a), vb = value_of(b);
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

/* "1,22" with a point, where it can only be a number with a decimal comma: not a list of digits, not
 * thousands. */
static bool with_point(const gr_str *s, gr_str *out)
{
    size_t whole = s->text ? strspn(s->text, "0123456789") : 0, rest;
    if (!whole || s->text[whole] != ',') return false;
    rest = strspn(s->text + whole + 1, "0123456789");
    if (rest < 2 || rest == 3 || whole + 1 + rest != s->len) return false;
    gr_str_add(out, s->text, s->len);
    out->text[whole] = '.';
    return true;
}

static bool equal_with_point(const gr_str *a, const gr_str *b)
{
    gr_str point = {0};
    bool same = with_point(a, &point) && has((gr_span){b->text, b->len}, ".") &&
                equal((gr_span){point.text, point.len}, (gr_span){b->text, b->len}, 0);
    gr_str_release(&point);
    return same;
}

bool gr_math_equal(const char *truth, size_t n_truth, const char *got, size_t n_got)
{
    gr_str a = {0}, b = {0};
    if (n_truth > GR_MATH_BYTES || n_got > GR_MATH_BYTES) return false;
    gr_math_normalise((gr_span){truth, n_truth}, &a);
    gr_math_normalise((gr_span){got, n_got}, &b);
    bool same = a.len && b.len && equal((gr_span){a.text, a.len}, (gr_span){b.text, b.len}, 0);
    if (!same && a.len && b.len) same = equal_with_point(&a, &b) || equal_with_point(&b, &a);
    if (!same && a.len && b.len) {
        join_thousands(&a);
        join_thousands(&b);
        same = equal((gr_span){a.text, a.len}, (gr_span){b.text, b.len}, 0);
    }
    gr_str_release(&a);
    gr_str_release(&b);
    return same;
}

static size_t spaces(gr_span s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += s.p[i] == ' ';
    return n;
}

bool gr_math_equal_in_text(const char *truth, size_t n_truth, const char *got, size_t n_got)
{
    gr_str a = {0}, b = {0};
    gr_span in_truth = {truth, n_truth}, in_got = {got, n_got};
    gr_math_locate(&in_truth, &a);
    gr_math_place place = gr_math_locate(&in_got, &b);
    bool same = a.len && b.len && gr_math_equal(a.text, a.len, b.text, b.len);
    bool formula = memchr(in_got.p, '=', in_got.n) || memchr(in_got.p, '+', in_got.n) ||
                   memchr(in_got.p, '^', in_got.n) || memchr(in_got.p, '\\', in_got.n);
    if (!same && place == GR_IN_WORDS && (!formula || gr_math_is_prose(in_got)) &&
        gr_math_last_number(in_got, spaces(in_got) < 4, &b))
        same = a.len && gr_math_equal(a.text, a.len, b.text, b.len);
    gr_str_release(&a);
    gr_str_release(&b);
    return same;
}
