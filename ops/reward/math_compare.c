/* ops/reward/math_compare.c: the structure of answers (lists, intervals, names, relations, matrices),
 * compared part by part. */
#include "ops/reward/math_compare.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ops/reward/math_find.h"
#include "ops/reward/math_number.h"
#include "ops/reward/math_text.h"
#include "ops/reward/math_value.h"
#include "runtime/base/base.h"

#define FUEL ((int64_t)10000000) /* of one comparison (ops/reward/math_value.h) */

/* What one comparison has: memory for the texts it makes, and fuel. */
struct job {
    gr_arena *arena;
    int64_t fuel;
};

/* ---- structure ---------------------------------------------------------------------------------------- */

static int depth_change(char c)
{
    if (c && strchr("([{\1\3", c)) return 1;
    return c && strchr(")]}\2\4", c) ? -1 : 0;
}

/* Where sep stands in s outside of all brackets and words, from `from` on; s.n where nowhere. */
static size_t find_outside(gr_span s, const char *sep, size_t from)
{
    int depth = 0;
    bool words = false;
    for (size_t i = 0; i < s.n; i++) {
        if (depth == 0 && !words && i >= from && gr_span_starts(gr_span_skip(s, i), sep)) return i;
        if (s.p[i] == GR_TEXT) words = !words;
        depth += depth_change(s.p[i]);
    }
    return s.n;
}

static bool has(gr_span s, const char *sep)
{
    return find_outside(s, sep, 0) < s.n;
}

static bool holds(gr_span s, const char *text)
{
    return gr_span_find(s, text) < s.n;
}

/* Cut what may stand around an answer: full stops and commas, a plus, a sign of equality, and one pair of
 * braces around everything. */
static gr_span stripped(gr_span s)
{
    for (;;) {
        while (s.n && strchr(".,;: ", s.p[s.n - 1]) && s.p[s.n - 1]) s.n--;
        while (s.n && strchr(" ,;:+=", *s.p) && *s.p) s = gr_span_skip(s, 1);
        if (s.n > 1 && *s.p == '{' && gr_span_group(s) == s.n)
            s = (gr_span){s.p + 1, s.n - 2};
        else
            return s;
    }
}

struct list {
    gr_span item[64];
    size_t n;
    bool full; /* there are more */
};

static void list_add(struct list *l, gr_span item)
{
    l->full |= l->n == GR_LEN(l->item);
    if (!l->full) l->item[l->n++] = item;
}

/* s with its \pm and \mp one way and the other: both are values of s. */
static gr_span one_sign(struct job *j, gr_span s, bool minus)
{
    char *out = gr_arena_alloc(j->arena, s.n + 1);
    size_t n = 0;
    while (s.n) {
        bool pm = gr_span_starts(s, "\\pm"), mp = gr_span_starts(s, "\\mp");
        out[n++] = pm ? "+-"[minus] : mp ? "-+"[minus] : *s.p;
        s = gr_span_skip(s, pm || mp ? 3 : 1);
        if (pm || mp) s = gr_span_trim(s);
    }
    return (gr_span){out, n};
}

static bool has_two_signs(gr_span s)
{
    return holds(s, "\\pm") || holds(s, "\\mp");
}

/* s cut at sep; empty pieces are left out, and what has two signs is two. false where there are too many. */
static bool split(struct job *j, gr_span s, const char *sep, struct list *out)
{
    *out = (struct list){.n = 0};
    for (size_t from = 0; from <= s.n;) {
        size_t to = find_outside(s, sep, from);
        gr_span item = {s.p + from, to - from};
        if (item.n && has_two_signs(item)) {
            list_add(out, one_sign(j, item, false));
            item = one_sign(j, item, true);
        }
        if (item.n) list_add(out, item);
        from = to + strlen(sep);
    }
    return out->n > 0 && !out->full;
}

static bool equal(struct job *j, gr_span truth, gr_span got, int depth);

static bool all_in(struct job *j, const struct list *a, const struct list *b, bool turned, int depth)
{
    bool all = true;
    for (size_t i = 0; i < a->n && all; i++) {
        bool found = false;
        for (size_t k = 0; k < b->n && !found; k++)
            found =
                turned ? equal(j, b->item[k], a->item[i], depth) : equal(j, a->item[i], b->item[k], depth);
        all = found;
    }
    return all;
}

static bool same_set(struct job *j, const struct list *a, const struct list *b, int depth)
{
    return all_in(j, a, b, false, depth) && all_in(j, b, a, true, depth);
}

static bool in_order(struct job *j, const struct list *a, const struct list *b, int depth)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) same = equal(j, a->item[i], b->item[i], depth);
    return same;
}

/* The brackets around all of s, with a comma or semicolon inside: a tuple, an interval or a set. 0: none. */
static char fence_of(gr_span s)
{
    if (s.n < 3 || depth_change(*s.p) != 1 || depth_change(s.p[s.n - 1]) != -1 || *s.p == '{') return 0;
    int depth = 0;
    for (size_t i = 0; i + 1 < s.n; i++)
        if ((depth += depth_change(s.p[i])) == 0) return 0;
    gr_span inside = {s.p + 1, s.n - 2};
    return has(inside, ",") || has(inside, ";") || *s.p == GR_SET_OPEN ? *s.p : 0;
}

static gr_span inside_of(gr_span s)
{
    return (gr_span){s.p + 1, s.n - 2};
}

/* ---- names -------------------------------------------------------------------------------------------- */

/* s starts with a command that computes: no name holds it. */
static bool starts_arithmetic(gr_span s)
{
    static const char *const commands[] = {"\\frac", "\\sqrt", "\\binom", "\\pi",  "\\inf", "\\pm",  "\\mp",
                                           "\\cup",  "\\cap",  "\\log",   "\\ln",  "\\sin", "\\cos", "\\tan",
                                           "\\exp",  "\\sum",  "\\int",   "\\lim", "\\set", "\\emp"};
    bool starts = false;
    for (size_t i = 0; i < GR_LEN(commands) && !starts; i++) starts = gr_span_starts(s, commands[i]);
    return starts;
}

/* A name that an answer may be given to: x, a_{3}, f(x), f(2), |AB|, (p,q), V_1:V_2. */
static bool is_name(gr_span s)
{
    bool letter = false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        if (isdigit((unsigned char)c) && (i == 0 || !strchr("_{(,0123456789", s.p[i - 1]))) return false;
        if (!isalnum((unsigned char)c) && !strchr("_{}(),|:\\' \10", c)) return false;
        if (c == '\\' && starts_arithmetic(gr_span_skip(s, i))) return false;
        letter |= isalpha((unsigned char)c) != 0;
    }
    return letter;
}

/* \frac{NO}{BO}, the ratio of two segments, may be given a value like a name. */
static bool is_ratio_of_names(gr_span s)
{
    if (!gr_span_starts(s, "\\frac{")) return false;
    gr_span top = gr_span_skip(s, 5), bottom = gr_span_skip(top, gr_span_group(top));
    bool letters = top.n > bottom.n && gr_span_group(bottom) == bottom.n && bottom.n > 2;
    for (size_t i = 0; i < top.n && letters; i++)
        letters = isupper((unsigned char)top.p[i]) || strchr("{}", top.p[i]);
    return letters;
}

/* Where the next sign of equality stands from `from` on, one that is no part of <= or >=. */
static size_t find_equals(gr_span s, size_t from)
{
    size_t at = find_outside(s, "=", from);
    while (at < s.n && at && strchr("<>", s.p[at - 1])) at = find_outside(s, "=", at + 1);
    return at;
}

/* name = ... = value: its ends. n of name is 0 where s is no equation. */
struct equation {
    gr_span name, value;
    bool assigns; /* name is one */
};

static struct equation equation_of(gr_span s)
{
    size_t in = find_outside(s, "\\in", 0);
    if (in < s.n && !gr_span_starts(gr_span_skip(s, in), "\\inf") && is_name((gr_span){s.p, in}))
        return (struct equation){{s.p, in}, gr_span_trim(gr_span_skip(s, in + 3)), true};
    size_t first = find_equals(s, 0);
    if (first == s.n || first == 0) return (struct equation){.value = s};
    gr_span name = {s.p, first}, value = gr_span_skip(s, first + 1);
    for (size_t next; (next = find_equals(value, 0)) < value.n;) value = gr_span_skip(value, next + 1);
    return (struct equation){name, value, is_name(name) || is_ratio_of_names(name)};
}

/* The same bytes, but for braces, spaces and the marks around words. */
static bool same_name(gr_span a, gr_span b)
{
    for (;;) {
        while (a.n && strchr("{} \10", *a.p) && *a.p) a = gr_span_skip(a, 1);
        while (b.n && strchr("{} \10", *b.p) && *b.p) b = gr_span_skip(b, 1);
        if (!a.n || !b.n || *a.p != *b.p) return a.n == b.n && !a.n;
        a = gr_span_skip(a, 1);
        b = gr_span_skip(b, 1);
    }
}

/* The name without its index: x_1 and x_2 are both an x. */
static gr_span base_of(gr_span name)
{
    const char *index = name.n ? memchr(name.p, '_', name.n) : NULL;
    return index ? (gr_span){name.p, (size_t)(index - name.p)} : name;
}

/* How the items of a list are named. */
enum naming { UNNAMED, ONE_NAME, MANY_NAMES };

static enum naming naming_of(const struct list *l)
{
    enum naming is = UNNAMED;
    gr_span first = {NULL, 0};
    for (size_t i = 0; i < l->n; i++) {
        struct equation e = equation_of(stripped(l->item[i]));
        if (!e.assigns) continue;
        if (!first.p) first = base_of(e.name);
        if (is == UNNAMED) is = ONE_NAME;
        if (!same_name(first, base_of(e.name))) is = MANY_NAMES;
    }
    return is;
}

static void drop_names(struct list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        struct equation e = equation_of(stripped(l->item[i]));
        if (e.assigns) l->item[i] = e.value;
    }
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

/* The part of a chain that bounds are put on. */
static size_t bounded_part(const struct chain *c)
{
    return c->n == 2 ? 1 : is_name(c->part[0]) ? 0 : 1;
}

/* Bounds on one name as an interval: x >= 5 is [5,\infty). */
static bool chain_interval(struct job *j, const struct chain *c, gr_span *out)
{
    size_t name = bounded_part(c);
    if (!is_name(c->part[name])) return false;
    bool low = name == 1, high = name + 1 <= c->n;
    gr_span from = low ? c->part[0] : (gr_span){"-\\infty", 7};
    gr_span to = high ? c->part[c->n] : (gr_span){"\\infty", 6};
    char open = low && c->closed[0] ? '[' : '(', close = high && c->closed[c->n - 1] ? ']' : ')';
    char *text =
        gr_arena_printf(j->arena, "%c%.*s,%.*s%c", open, (int)from.n, from.p, (int)to.n, to.p, close);
    *out = (gr_span){text, strlen(text)};
    return true;
}

static bool parse_sides(gr_span left, gr_span right, gr_math_sides *out)
{
    *out = (gr_math_sides){0};
    return gr_math_parse(left, &out->left) && gr_math_parse(right, &out->right);
}

static void release_sides(gr_math_sides *s)
{
    gr_math_tree_release(&s->left);
    gr_math_tree_release(&s->right);
}

/* The sign of the multiple that one difference of sides is of the other, 0 where it is none. */
static int multiple_of(struct job *j, gr_span a, gr_span b, gr_span c, gr_span d)
{
    gr_math_sides first, second;
    int sign = 0;
    bool parsed = parse_sides(a, b, &first), both = parse_sides(c, d, &second) && parsed;
    if (both && !gr_math_same_equation(&first, &second, &j->fuel, &sign)) sign = 0;
    release_sides(&first);
    release_sides(&second);
    return sign;
}

static bool same_chain(struct job *j, const struct chain *a, const struct chain *b, int depth)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) same = a->closed[i] == b->closed[i];
    if (same && a->n == 1 && multiple_of(j, a->part[0], a->part[1], b->part[0], b->part[1]) > 0) return true;
    for (size_t i = 0; i <= a->n && same; i++) same = equal(j, a->part[i], b->part[i], depth);
    return same;
}

/* At least one side is an inequality; the other may be an interval. */
static bool equal_relations(struct job *j, gr_span a, gr_span b, int depth)
{
    struct chain ca, cb;
    bool is_a = read_chain(a, &ca), is_b = read_chain(b, &cb);
    if (is_a) turn(&ca);
    if (is_b) turn(&cb);
    if (is_a && is_b) return same_chain(j, &ca, &cb, depth);
    if (is_a ? !chain_interval(j, &ca, &a) : !chain_interval(j, &cb, &b)) return false;
    return equal(j, a, b, depth);
}

/* ---- values ------------------------------------------------------------------------------------------- */

static bool equal_trees(struct job *j, const gr_math_tree *a, const gr_math_tree *b)
{
    return gr_math_same_value(a, b, &j->fuel) || gr_math_is_rounded(a, b, &j->fuel) ||
           gr_math_is_rounded(b, a, &j->fuel);
}

static bool equal_expressions(struct job *j, gr_span a, gr_span b)
{
    gr_math_tree ta = {0}, tb = {0};
    bool same = gr_math_parse(a, &ta) && gr_math_parse(b, &tb) && equal_trees(j, &ta, &tb);
    gr_math_tree_release(&ta);
    gr_math_tree_release(&tb);
    return same;
}

static gr_span without_percent(gr_span s)
{
    return (gr_span){s.p, s.n - (s.n && s.p[s.n - 1] == '%')};
}

/* A letter that belongs to no command. */
static bool has_letters(gr_span s)
{
    bool any = false;
    for (; s.n && !any; s = gr_span_skip(s, 1)) {
        if (*s.p == '\\')
            s = gr_span_skip(s, gr_span_word(gr_span_skip(s, 1)));
        else
            any = isalpha((unsigned char)*s.p) != 0;
    }
    return any;
}

/* 9 % is 9 and 0.09; x % is not x. */
static bool equal_values(struct job *j, gr_span a, gr_span b)
{
    if (gr_number_equal(a.p, a.n, b.p, b.n)) return true;
    gr_span bare_a = without_percent(a), bare_b = without_percent(b);
    bool one = (bare_a.n != a.n) != (bare_b.n != b.n);
    if (!(one && has_letters(bare_a)) && equal_expressions(j, bare_a, bare_b)) return true;
    return one && equal_expressions(j, a, b);
}

static bool equal_equations(struct job *j, gr_span a, gr_span b)
{
    size_t at_a = find_equals(a, 0), at_b = find_equals(b, 0);
    return multiple_of(j, (gr_span){a.p, at_a}, gr_span_skip(a, at_a + 1), (gr_span){b.p, at_b},
                       gr_span_skip(b, at_b + 1)) != 0;
}

/* ---- words -------------------------------------------------------------------------------------------- */

/* s without the marks around words and without brackets around everything. */
static gr_span words_of(struct job *j, gr_span s)
{
    char *out = gr_arena_alloc(j->arena, s.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] != GR_TEXT) out[n++] = s.p[i];
    gr_span words = {out, n};
    bool bracketed =
        n > 2 && *out == '(' && out[n - 1] == ')' && gr_span_word(gr_span_skip(words, 1)) == n - 2;
    return bracketed ? inside_of(words) : words;
}

static bool is_word(gr_span s)
{
    return s.n > 1 && gr_span_word(s) == s.n;
}

static bool same_letters(gr_span a, gr_span b)
{
    bool same = a.n == b.n;
    for (size_t i = 0; i < a.n && same; i++)
        same = tolower((unsigned char)a.p[i]) == tolower((unsigned char)b.p[i]);
    return same;
}

/* ---- matrices and lists ------------------------------------------------------------------------------- */

/* The cells of a row, empty ones too. false where there are too many. */
static bool cells_of(gr_span row, struct list *out)
{
    *out = (struct list){.n = 0};
    for (size_t from = 0; from <= row.n;) {
        size_t to = find_outside(row, "&", from);
        list_add(out, (gr_span){row.p + from, to - from});
        from = to + 1;
    }
    return !out->full;
}

static bool equal_matrices(struct job *j, gr_span a, gr_span b, int depth)
{
    struct list rows_a, rows_b, cells_a, cells_b;
    const char row[] = {GR_MATRIX_ROW, 0};
    if (!split(j, inside_of(a), row, &rows_a) || !split(j, inside_of(b), row, &rows_b)) return false;
    bool same = rows_a.n == rows_b.n;
    for (size_t i = 0; i < rows_a.n && same; i++)
        same = cells_of(rows_a.item[i], &cells_a) && cells_of(rows_b.item[i], &cells_b) &&
               in_order(j, &cells_a, &cells_b, depth);
    return same;
}

/* The matrix that s is, without brackets around it; n is 0 where it is none. */
static gr_span matrix_of(gr_span s)
{
    if (s.n > 4 && (*s.p == '(' || *s.p == '[') && s.p[1] == GR_MATRIX_OPEN) s = inside_of(s);
    const char close[] = {GR_MATRIX_CLOSE, 0};
    bool is = s.n > 2 && *s.p == GR_MATRIX_OPEN && find_outside(gr_span_skip(s, 1), close, 0) == s.n - 2;
    return (gr_span){s.p, is ? s.n : 0};
}

static bool lists_of(struct job *j, gr_span s, char fence, struct list *out)
{
    gr_span inside = fence ? inside_of(s) : s;
    return split(j, inside, has(inside, ";") ? ";" : ",", out);
}

/* Named on one side and bare on the other: names that differ by their index at most say no order. */
static bool equal_named(struct job *j, struct list *a, struct list *b, enum naming naming, int depth)
{
    drop_names(a);
    drop_names(b);
    return naming == ONE_NAME ? same_set(j, a, b, depth) : in_order(j, a, b, depth);
}

/* (x,y)=(5,3) as x=5, y=3, in place of the one item of l; other lists stay. */
static void name_parts(struct job *j, struct list *l)
{
    struct equation e = equation_of(stripped(l->item[0]));
    struct list names, values;
    if (l->n != 1 || !e.assigns || fence_of(e.name) != '(' || fence_of(e.value) != '(') return;
    if (!lists_of(j, e.name, '(', &names) || !lists_of(j, e.value, '(', &values) || names.n != values.n)
        return;
    for (l->n = 0; l->n < names.n; l->n++) {
        gr_span name = names.item[l->n], value = values.item[l->n];
        char *text = gr_arena_printf(j->arena, "%.*s=%.*s", (int)name.n, name.p, (int)value.n, value.p);
        l->item[l->n] = (gr_span){text, strlen(text)};
    }
}

/* Lists of answers are sets; a tuple keeps its order; a bare list may stand for a tuple. */
static bool equal_lists(struct job *j, gr_span a, gr_span b, int depth)
{
    struct list la, lb;
    char fa = fence_of(a), fb = fence_of(b);
    if (fa && fb && fa != GR_SET_OPEN && fb != GR_SET_OPEN && (fa != fb || a.p[a.n - 1] != b.p[b.n - 1]))
        return false;
    if (!lists_of(j, a, fa, &la) || !lists_of(j, b, fb, &lb)) return false;
    if (la.n == 1 && lb.n == 1 && !fa && !fb) return false; /* no lists at all */
    if (!fa && !fb) {
        name_parts(j, &la);
        name_parts(j, &lb);
    }
    if (!fa != !fb && (holds(a, "\\emptyset") || holds(a, "\\varnothing"))) return false;
    enum naming na = fa ? UNNAMED : naming_of(&la), nb = fb ? UNNAMED : naming_of(&lb);
    if (na != UNNAMED && nb == UNNAMED && la.n > 1) return equal_named(j, &la, &lb, na, depth);
    if (nb != UNNAMED && na == UNNAMED && lb.n > 1) return equal_named(j, &la, &lb, nb, depth);
    bool ordered = (fa && fa != GR_SET_OPEN) || (fb && fb != GR_SET_OPEN);
    return ordered ? in_order(j, &la, &lb, depth) : same_set(j, &la, &lb, depth);
}

static bool equal_parts(struct job *j, gr_span a, const char *sep_a, gr_span b, const char *sep_b, int depth)
{
    struct list la, lb;
    return split(j, a, sep_a, &la) && split(j, b, sep_b, &lb) && la.n == lb.n && same_set(j, &la, &lb, depth);
}

static bool equal_ratios(struct job *j, gr_span a, gr_span b, int depth)
{
    struct list la, lb;
    return split(j, a, ":", &la) && split(j, b, ":", &lb) && la.n > 1 && in_order(j, &la, &lb, depth);
}

/* ---- answers ------------------------------------------------------------------------------------------ */

/* a ~ b says both a and b. */
static bool equal_about(struct job *j, gr_span a, gr_span b, int depth)
{
    gr_span about = has(b, "~") ? b : a;
    size_t at = find_outside(about, "~", 0);
    gr_span first = {about.p, at}, rest = gr_span_skip(about, at + 1);
    struct equation e = equation_of(first);
    bool named = e.assigns || is_name(first);
    if (about.p == b.p) return (!is_name(first) && equal(j, a, first, depth)) || equal(j, a, rest, depth);
    return (!is_name(first) && equal(j, first, b, depth)) || (named && equal(j, rest, b, depth));
}

/* At least one side has a sign of equality, or "is in". */
static bool equal_assigned(struct job *j, gr_span a, gr_span b, int depth)
{
    struct equation ea = equation_of(a), eb = equation_of(b);
    if (ea.name.n && eb.name.n) {
        if (ea.assigns && eb.assigns && same_name(ea.name, eb.name) && equal(j, ea.value, eb.value, depth))
            return true;
        return equal_equations(j, a, b);
    }
    if (eb.name.n) return equal(j, a, eb.value, depth);
    return ea.assigns && equal(j, ea.value, b, depth);
}

static bool equal_words(struct job *j, gr_span a, gr_span b, bool *decided)
{
    gr_span wa = words_of(j, a), wb = words_of(j, b);
    bool marked = wa.n != a.n || wb.n != b.n, words = is_word(wa) && is_word(wb);
    *decided = words && (marked || wa.n > 2);
    return gr_span_same(wa, wb) || (words && same_letters(wa, wb));
}

static bool either_has(gr_span a, gr_span b, const char *sep)
{
    return has(a, sep) || has(b, sep);
}

/* Neither side is a list. */
static bool equal_single(struct job *j, gr_span a, gr_span b, int depth)
{
    if (either_has(a, b, "~")) return equal_about(j, a, b, depth);
    if (either_has(a, b, "<") || either_has(a, b, ">")) {
        if (equation_of(a).name.n || equation_of(b).name.n) return equal_assigned(j, a, b, depth);
        return equal_relations(j, a, b, depth);
    }
    if (equation_of(a).name.n || equation_of(b).name.n) return equal_assigned(j, a, b, depth);
    if (either_has(a, b, "\\cup")) return equal_parts(j, a, "\\cup", b, "\\cup", depth);
    if (either_has(a, b, ":")) return equal_ratios(j, a, b, depth);
    if (fence_of(a) || fence_of(b)) return equal_lists(j, a, b, depth);
    return equal_values(j, a, b);
}

/* \mathbb{R}, with or without one number taken out, as intervals; other texts as they are. */
static gr_span real_line(struct job *j, gr_span s)
{
    if (!gr_span_starts(s, "\\mathbb{R}")) return s;
    gr_span rest = gr_span_skip(s, 10);
    if (!rest.n) return (gr_span){"(-\\infty,\\infty)", 16};
    if (!gr_span_starts(rest, "\\setminus\1")) return s;
    gr_span set = gr_span_skip(rest, 9), out = inside_of(set);
    if (set.n < 3 || fence_of(set) != GR_SET_OPEN || has(out, ",")) return s;
    char *text =
        gr_arena_printf(j->arena, "(-\\infty,%.*s)\\cup(%.*s,\\infty)", (int)out.n, out.p, (int)out.n, out.p);
    return (gr_span){text, strlen(text)};
}

static bool equal(struct job *j, gr_span a, gr_span b, int depth)
{
    const char differs[] = {GR_NOT_EQUAL, 0};
    bool decided;
    a = real_line(j, stripped(a));
    b = real_line(j, stripped(b));
    if (gr_span_same(a, b)) return true;
    if (depth > 8 || !a.n || !b.n || (j->fuel -= 100) < 0) return false;
    depth++;
    bool words = equal_words(j, a, b, &decided);
    if (words || decided) return words;
    gr_span ma = matrix_of(a), mb = matrix_of(b);
    if (ma.n || mb.n) return ma.n && mb.n && equal_matrices(j, ma, mb, depth);
    if (either_has(a, b, differs))
        return has(a, differs) && has(b, differs) && equal_parts(j, a, differs, b, differs, depth);
    bool fenced = fence_of(a) || fence_of(b);
    if (either_has(a, b, ";") && !fenced)
        return equal_parts(j, a, has(a, ";") ? ";" : ",", b, has(b, ";") ? ";" : ",", depth);
    bool list = either_has(a, b, ",") || either_has(a, b, ";") || has_two_signs(a) || has_two_signs(b);
    return list ? equal_lists(j, a, b, depth) : equal_single(j, a, b, depth);
}

/* ---- commas ------------------------------------------------------------------------------------------ */

/* s with its thousands joined; in brackets their commas part a list. */
static gr_span join_thousands(struct job *j, gr_span s)
{
    char *out = gr_arena_alloc(j->arena, s.n + 1);
    size_t n = 0;
    int depth = 0;
    for (size_t i = 0; i < s.n; i++) {
        depth += strchr("{}", s.p[i]) ? 0 : depth_change(s.p[i]);
        if (s.p[i] != GR_THOUSANDS)
            out[n++] = s.p[i];
        else if (depth > 0)
            out[n++] = ',';
    }
    return (gr_span){out, n};
}

/* "1,22" with a point, where it can only be a number with a decimal comma: not a list of digits, not
 * thousands. */
static bool with_point(struct job *j, gr_span s, gr_span *out)
{
    size_t whole = 0, rest = 0;
    while (whole < s.n && isdigit((unsigned char)s.p[whole])) whole++;
    if (!whole || whole == s.n || s.p[whole] != ',') return false;
    while (whole + 1 + rest < s.n && isdigit((unsigned char)s.p[whole + 1 + rest])) rest++;
    bool thousands = rest == 3 && *s.p != '0';
    if (rest < 2 || thousands || whole + 1 + rest != s.n) return false;
    char *text = gr_arena_strndup(j->arena, s.p, s.n);
    text[whole] = '.';
    *out = (gr_span){text, s.n};
    return true;
}

static bool equal_with_point(struct job *j, gr_span a, gr_span b)
{
    gr_span point;
    return with_point(j, a, &point) && has(b, ".") && equal(j, point, b, 0);
}

static bool equal_answers(struct job *j, gr_span a, gr_span b)
{
    a = join_thousands(j, a);
    b = join_thousands(j, b);
    return equal(j, a, b, 0) || equal_with_point(j, a, b) || equal_with_point(j, b, a);
}

bool gr_math_equal(const char *truth, size_t n_truth, const char *got, size_t n_got)
{
    gr_str a = {0}, b = {0};
    if (n_truth > GR_MATH_BYTES || n_got > GR_MATH_BYTES) return false;
    struct job j = {gr_arena_new(), FUEL};
    gr_math_normalise((gr_span){truth, n_truth}, &a);
    gr_math_normalise((gr_span){got, n_got}, &b);
    bool same = a.len && b.len && equal_answers(&j, (gr_span){a.text, a.len}, (gr_span){b.text, b.len});
    gr_str_release(&a);
    gr_str_release(&b);
    gr_arena_free(j.arena);
    return same;
}

/* The words of a response are no formula that a number may not be taken out of. */
static bool may_take_number(gr_span words)
{
    bool formula = holds(words, "=") || holds(words, "+") || holds(words, "^") || holds(words, "\\");
    return !formula || gr_math_is_prose(words);
}

bool gr_math_equal_in_text(const char *truth, size_t n_truth, const char *got, size_t n_got)
{
    gr_str a = {0}, b = {0};
    gr_span in_truth = {truth, n_truth}, in_got = {got, n_got};
    gr_math_locate(&in_truth, &a);
    gr_math_place place = gr_math_locate(&in_got, &b);
    bool same = a.len && b.len && gr_math_equal(a.text, a.len, b.text, b.len);
    if (!same && a.len && place != GR_IN_FORMULA && may_take_number(in_got) &&
        gr_math_find_number(in_got, place, &b))
        same = gr_math_equal(a.text, a.len, b.text, b.len);
    gr_str_release(&a);
    gr_str_release(&b);
    return same;
}
