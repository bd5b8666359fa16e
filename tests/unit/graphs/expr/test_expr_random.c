/* Random expressions: compiled and evaluated as always, against values worked out element by element while
 * the text is made, by nothing but what docs/LANGUAGE.md says of each function. A difference is printed with
 * its text and number; GR_SLOW=1 tries a hundred times as many. */
#include "tests/unit/expr_batch.h"

enum { DEPTH = 5, MOST_NAMED = 4 };

/* What a text stands for: an element at each place of its level. Conditions are 1 and 0. */
typedef struct value {
    gr_level level;
    double x[MAX_TOKENS];
} value;

typedef struct maker {
    const batch *b;
    uint64_t state;
    value named[MOST_NAMED]; /* lines of the text, u0 ... */
    int n_named;
    bool close; /* a choice hung on the last bits of a number, which other orders of sums do not share */
} maker;

static void note_close(maker *m, double a, double b)
{
    m->close = m->close || (a != b && fabs(a - b) < 1e-9 * (1 + fabs(a)));
}

/* xorshift64*, Vigna 2016. */
static uint32_t draw(maker *m, uint32_t n)
{
    m->state ^= m->state >> 12;
    m->state ^= m->state << 25;
    m->state ^= m->state >> 27;
    return (uint32_t)((m->state * 2685821657736338717u >> 33) % n);
}

/* ---- places ---------------------------------------------------------------------------------------------
 */

static size_t places(const maker *m, gr_level level)
{
    return batch_count(m->b, level);
}

static size_t seq_of(const maker *m, size_t token)
{
    size_t s = 0;
    while (m->b->offset[s + 1] <= token) s++;
    return s;
}

/* The place at a coarser level that place i of a level lies in. */
static size_t place(const maker *m, gr_level from, size_t i, gr_level to)
{
    if (from == to) return i;
    if (to == GR_LEVEL_SCALAR) return 0;
    const size_t s = from == GR_LEVEL_TOKEN ? seq_of(m, i) : i;
    return to == GR_LEVEL_SEQ ? s : m->b->group[s];
}

static double at(const maker *m, const value *v, gr_level level, size_t i)
{
    return v->x[place(m, level, i, v->level)];
}

static bool is_there(const maker *m, gr_level level, size_t i)
{
    return level != GR_LEVEL_TOKEN || m->b->mask[i];
}

/* ---- functions of many elements -------------------------------------------------------------------------
 */

/* Of the elements of v in a place of a coarser level, and where mask (NULL: everywhere) holds. */
static double reduce(const maker *m, const char *what, const value *v, const value *mask, gr_level to,
                     size_t i)
{
    double sum = 0, most = -INFINITY, n = 0, squares = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t k = 0; k < places(m, v->level); k++) {
            if (place(m, v->level, k, to) != i || !is_there(m, v->level, k)) continue;
            if (mask && !at(m, mask, v->level, k)) continue;
            if (pass) {
                squares += (v->x[k] - sum / n) * (v->x[k] - sum / n);
                continue;
            }
            sum += v->x[k];
            most = fmax(most, v->x[k]);
            n++;
        }
    if (!strcmp(what, "sum")) return sum;
    if (!strcmp(what, "mean")) return n ? sum / n : 0;
    if (!strcmp(what, "max")) return n ? most : 0;
    if (!strcmp(what, "std")) return n > 1 ? sqrt(squares / (n - 1)) : 0;
    return n; /* count */
}

/* The nearest existing token of the same sequence in a direction, or -1. */
static long neighbour(const maker *m, size_t token, int way)
{
    const size_t s = seq_of(m, token);
    for (long t = (long)token + way; t >= (long)m->b->offset[s] && t < (long)m->b->offset[s + 1]; t += way)
        if (m->b->mask[t]) return t;
    return -1;
}

/* What goes on from token to token: y = x + factor * (y of the neighbour). */
static double scan(const maker *m, const value *v, size_t token, int way, double factor)
{
    double y = 0, weight = 1;
    for (long t = (long)token; t >= 0; t = neighbour(m, (size_t)t, way), weight *= factor)
        y += weight * at(m, v, GR_LEVEL_TOKEN, (size_t)t);
    return y;
}

static double rank_of(maker *m, const value *v, size_t s)
{
    double before = 0;
    for (size_t k = 0; k < m->b->n_seqs; k++) {
        note_close(m, v->x[k], v->x[s]);
        before += m->b->group[k] == m->b->group[s] && (v->x[k] > v->x[s] || (v->x[k] == v->x[s] && k < s));
    }
    return before;
}

static size_t nth_of(const maker *m, size_t token)
{
    size_t n = 0;
    for (long t = (long)token; (t = neighbour(m, (size_t)t, -1)) >= 0;) n++;
    return n;
}

static double nth_sum(const maker *m, const value *v, size_t token)
{
    double sum = 0;
    for (size_t t = 0; t < m->b->n_tokens; t++)
        if (m->b->mask[t] && m->b->group[seq_of(m, t)] == m->b->group[seq_of(m, token)] &&
            nth_of(m, t) == nth_of(m, token))
            sum += v->x[t];
    return sum;
}

/* ---- texts with their values ----------------------------------------------------------------------------
 */

static void make(maker *m, int depth, gr_str *text, value *out);

static void make_number(maker *m, gr_str *text, value *out)
{
    static const char *const numbers[] = {"0", "1", "2", "0.5", "0.137", "3.71", "1e-3", "100"};
    const char *number = numbers[draw(m, GR_LEN(numbers))];
    gr_str_puts(text, number);
    *out = (value){.level = GR_LEVEL_SCALAR, .x = {strtod(number, NULL)}};
}

static void make_leaf(maker *m, gr_str *text, value *out)
{
    const size_t column = draw(m, (uint32_t)m->b->n_columns);
    const int line = m->n_named ? (int)draw(m, 3 * (uint32_t)m->n_named) : 0;
    if (!draw(m, 5)) {
        make_number(m, text, out);
    } else if (line < m->n_named) {
        gr_str_printf(text, "u%d", line);
        *out = m->named[line];
    } else {
        const batch_column *c = &m->b->columns[column];
        gr_str_puts(text, c->name);
        out->level = c->symbol.level;
        for (size_t i = 0; i < places(m, out->level); i++)
            out->x[i] = c->symbol.constant ? c->symbol.value : (double)c->data[i];
    }
}

static gr_level finer(gr_level a, gr_level b)
{
    return GR_MAX(a, b);
}

/* A condition: values against a number that none of them is likely to meet. */
static void make_condition(maker *m, int depth, gr_str *text, value *out)
{
    static const double numbers[] = {0.0371, -0.2913, 0.7177, 2.0931};
    const double number = numbers[draw(m, GR_LEN(numbers))];
    const uint32_t how = draw(m, 6);
    value a, b;
    gr_str_putc(text, '(');
    if (how > 1 || depth < 1) {
        make(m, depth - 1, text, &a);
        gr_str_printf(text, how & 1 ? " < %g" : " >= %g", number);
        *out = a;
        for (size_t i = 0; i < places(m, a.level); i++) note_close(m, a.x[i], number);
        for (size_t i = 0; i < places(m, a.level); i++)
            out->x[i] = how & 1 ? a.x[i] < number : a.x[i] >= number;
    } else {
        gr_str_puts(text, how ? "not " : "");
        make_condition(m, depth - 1, text, &a);
        gr_str_puts(text, how ? " and " : " or ");
        make_condition(m, depth - 1, text, &b);
        *out = (value){.level = finer(a.level, b.level)};
        for (size_t i = 0; i < places(m, out->level); i++) {
            const bool p = at(m, &a, out->level, i) != 0, q = at(m, &b, out->level, i) != 0;
            out->x[i] = how ? !p && q : p || q;
        }
    }
    gr_str_putc(text, ')');
}

static void make_one(maker *m, int depth, gr_str *text, value *out)
{
    static const char *const forms[] = {
        "-%s",         "abs(%s)",  "exp(clip(%s, -3, 2))",    "log(abs(%s) + 1)", "sqrt(abs(%s))",
        "sigmoid(%s)", "tanh(%s)", "floor(3.7 * %s + 0.123)", "(%s) ^ 2",         "stop_gradient(%s)"};
    const uint32_t form = draw(m, GR_LEN(forms));
    gr_str inner = {0};
    make(m, depth - 1, &inner, out);
    char *shown = gr_printf("(%s)", inner.text);
    const char *hole = strstr(forms[form], "%s");
    gr_str_printf(text, "%.*s%s%s", (int)(hole - forms[form]), forms[form], shown, hole + 2);
    for (size_t i = 0; i < places(m, out->level); i++) {
        const double x = out->x[i];
        if (form == 7) note_close(m, 3.7 * x + 0.123, round(3.7 * x + 0.123));
        const double y[] = {-x,
                            fabs(x),
                            exp(fmin(fmax(x, -3), 2)),
                            log(fabs(x) + 1),
                            sqrt(fabs(x)),
                            1 / (1 + exp(-x)),
                            tanh(x),
                            floor(3.7 * x + 0.123),
                            x * x,
                            x};
        out->x[i] = y[form];
    }
    free(shown);
    gr_str_release(&inner);
}

static void make_two(maker *m, int depth, gr_str *text, value *out)
{
    static const char *const begin[] = {"(", "(", "(", "max(", "min(", "("},
                             *const between[] = {" + ", " - ", " * ", ", ", ", ", " / (1 + abs("},
                             *const end[] = {")", ")", ")", ")", ")", ")))"};
    const uint32_t form = draw(m, GR_LEN(begin));
    value a, b;
    gr_str_puts(text, begin[form]);
    make(m, depth - 1, text, &a);
    gr_str_puts(text, between[form]);
    make(m, depth - 1, text, &b);
    gr_str_puts(text, end[form]);
    *out = (value){.level = finer(a.level, b.level)};
    for (size_t i = 0; i < places(m, out->level); i++) {
        const double x = at(m, &a, out->level, i), y = at(m, &b, out->level, i);
        const double z[] = {x + y, x - y, x * y, fmax(x, y), fmin(x, y), x / (1 + fabs(y))};
        out->x[i] = z[form];
    }
}

static void make_where(maker *m, int depth, gr_str *text, value *out)
{
    value c, a, b;
    gr_str_puts(text, "where(");
    make_condition(m, depth - 1, text, &c);
    gr_str_puts(text, ", ");
    make(m, depth - 1, text, &a);
    gr_str_puts(text, ", ");
    make(m, depth - 1, text, &b);
    gr_str_putc(text, ')');
    *out = (value){.level = finer(c.level, finer(a.level, b.level))};
    for (size_t i = 0; i < places(m, out->level); i++)
        out->x[i] = at(m, &c, out->level, i) ? at(m, &a, out->level, i) : at(m, &b, out->level, i);
}

/* A value at a level, made finer by a column of it where it is not. */
static void make_at(maker *m, int depth, gr_level level, gr_str *text, value *out)
{
    const char *const columns[] = {"step", "g", "s", "", "x"};
    gr_str inner = {0};
    value v;
    do {
        inner.len = 0;
        make(m, depth - 1, &inner, &v);
    } while (v.level > level);
    gr_str_printf(text, v.level < level ? "where(%s < 99, %s, 0)" : "%.0s%s", columns[level], inner.text);
    *out = (value){.level = level};
    for (size_t i = 0; i < places(m, level); i++) out->x[i] = at(m, &v, level, i);
    gr_str_release(&inner);
}

static void make_reduced(maker *m, int depth, gr_str *text, value *out)
{
    static const char *const stats[] = {"sum", "mean", "max", "std", "count"};
    static const struct {
        const char *name;
        gr_level from, to;
    } forms[] = {{"token", GR_LEVEL_TOKEN, GR_LEVEL_SCALAR}, {"seq", GR_LEVEL_TOKEN, GR_LEVEL_SEQ},
                 {"group", GR_LEVEL_TOKEN, GR_LEVEL_GROUP},  {"group", GR_LEVEL_SEQ, GR_LEVEL_GROUP},
                 {"batch", GR_LEVEL_SEQ, GR_LEVEL_SCALAR},   {"batch", GR_LEVEL_GROUP, GR_LEVEL_SCALAR}};
    const uint32_t form = draw(m, GR_LEN(forms)), stat = draw(m, GR_LEN(stats));
    const bool masked = !draw(m, 3);
    value v, mask = {0};
    gr_str_printf(text, "%s_%s(", forms[form].name, stats[stat]);
    make_at(m, depth, forms[form].from, text, &v);
    gr_str_puts(text, masked ? ", " : "");
    if (masked) {
        gr_str inner = {0};
        do {
            inner.len = 0;
            make_condition(m, depth - 1, &inner, &mask);
        } while (mask.level > v.level);
        gr_str_puts(text, inner.text);
        gr_str_release(&inner);
    }
    gr_str_putc(text, ')');
    *out = (value){.level = forms[form].to};
    for (size_t i = 0; i < places(m, out->level); i++)
        out->x[i] = reduce(m, stats[stat], &v, masked ? &mask : NULL, out->level, i);
}

static double neighbour_or(const maker *m, const value *v, size_t token, int way, double fill)
{
    const long t = neighbour(m, token, way);
    return t < 0 ? fill : v->x[t];
}

static void make_walk(maker *m, int depth, gr_str *text, value *out)
{
    static const char *const forms[] = {"prefix_sum(%s)", "suffix_sum(%s)", "discounted_sum(%s, 0.9)",
                                        "next(%s, 0.25)", "prev(%s, -1.5)", "nth_sum(%s)",
                                        "at_last(%s)",    "group_rank(%s)", "token_whiten(%s)"};
    const uint32_t form = draw(m, GR_LEN(forms));
    const gr_level from = form == 6 || form == 7 ? GR_LEVEL_SEQ : GR_LEVEL_TOKEN;
    const char *hole = strstr(forms[form], "%s");
    value v;
    gr_str inner = {0};
    make_at(m, depth, from, &inner, &v);
    gr_str_printf(text, "%.*s%s%s", (int)(hole - forms[form]), forms[form], inner.text, hole + 2);
    gr_str_release(&inner);
    *out = (value){.level = form == 7 ? GR_LEVEL_SEQ : GR_LEVEL_TOKEN};
    const double mean = reduce(m, "mean", &v, NULL, GR_LEVEL_SCALAR, 0),
                 std = reduce(m, "std", &v, NULL, GR_LEVEL_SCALAR, 0);
    for (size_t i = 0; i < places(m, out->level); i++) {
        if (!is_there(m, out->level, i)) continue;
        switch (form) {
        case 0:
            out->x[i] = scan(m, &v, i, -1, 1);
            break;
        case 1:
            out->x[i] = scan(m, &v, i, 1, 1);
            break;
        case 2:
            out->x[i] = scan(m, &v, i, 1, 0.9);
            break;
        case 3:
            out->x[i] = neighbour_or(m, &v, i, 1, 0.25);
            break;
        case 4:
            out->x[i] = neighbour_or(m, &v, i, -1, -1.5);
            break;
        case 5:
            out->x[i] = nth_sum(m, &v, i);
            break;
        case 6:
            out->x[i] = neighbour(m, i, 1) < 0 ? at(m, &v, GR_LEVEL_TOKEN, i) : 0;
            break;
        case 7:
            out->x[i] = rank_of(m, &v, i);
            break;
        default:
            out->x[i] = (v.x[i] - mean) / sqrt(std * std + 1e-8);
        }
    }
}

static void make(maker *m, int depth, gr_str *text, value *out)
{
    if (depth <= 0) {
        make_leaf(m, text, out);
        return;
    }
    switch (draw(m, 9)) {
    case 0:
        make_leaf(m, text, out);
        break;
    case 1:
    case 2:
        make_one(m, depth, text, out);
        break;
    case 3:
    case 4:
        make_two(m, depth, text, out);
        break;
    case 5:
        make_where(m, depth, text, out);
        break;
    case 6:
    case 7:
        make_reduced(m, depth, text, out);
        break;
    default:
        make_walk(m, depth, text, out);
    }
}

/* ---- both ------------------------------------------------------------------------------------------------
 */

static batch *make_batch(uint32_t seed)
{
    int lengths[32];
    const uint32_t n = 2 + (uint32_t)batch_noise(1, seed, 0, 8);
    for (uint32_t i = 0; i < n; i++) lengths[i] = (int)batch_noise(2, 100 * seed + i, 0, i % 4 == 1 ? 1 : 7);
    lengths[n] = -1;
    batch *b = batch_new(1 + seed % 3, lengths);
    for (uint32_t t = 0; t < b->n_tokens && seed % 2; t++)
        b->mask[t] = batch_noise(3, 100 * seed + t, 0, 1) > 0.3;
    batch_random(b, "x", GR_LEVEL_TOKEN, false, -2, 2);
    batch_random(b, "y", GR_LEVEL_TOKEN, false, 0, 1);
    batch_random(b, "s", GR_LEVEL_SEQ, false, -2, 2);
    batch_random(b, "g", GR_LEVEL_GROUP, false, -1, 3);
    batch_random(b, "step", GR_LEVEL_SCALAR, false, 1, 9);
    batch_param(b, "$lo", 0.2);
    for (uint32_t t = 0; t < b->n_tokens; t += 3) b->columns[0].data[t] = 0.5f; /* ties */
    return b;
}

/* Whether a value is beyond what doubles of another order of sums can be compared by. */
static bool is_wild(const maker *m, const value *v)
{
    bool wild = false;
    for (size_t i = 0; i < places(m, v->level); i++) wild = wild || !(fabs(v->x[i]) < 1e8);
    return wild;
}

/* NULL: it is one of the sums that the language refuses. */
static gr_expr *compile(batch *b, const char *text)
{
    gr_expr *e = batch_parse(b, text);
    if (!gr_expr_compile(e, &b->scope, &b->d)) return e;
    if (!strstr(b->d.messages[0].text, "once a token")) {
        batch_show(b);
        fail_msg("does not compile: %s", text);
    }
    gr_expr_free(e);
    return NULL;
}

static void compare(const maker *m, const gr_expr *e, const char *text, const value *want, gr_level level,
                    uint32_t number)
{
    float got[MAX_TOKENS];
    void *work = malloc(gr_expr_bytes(e, batch_bounds(m->b)) + 1);
    gr_expr_eval(e, &m->b->env, level, level >= GR_LEVEL_SEQ ? 0 : -1, got, work);
    free(work);
    for (size_t i = 0; i < places(m, level); i++) {
        const double w = is_there(m, level, i) ? at(m, want, level, i) : 0;
        if (!(fabs((double)got[i] - w) <= 1e-5 + 1e-5 * fabs(w)))
            fail_msg("expression %u, [%zu]: got %.9g, want %.9g of\n%s", number, i, (double)got[i], w, text);
    }
}

/* Whether it was compared. */
static bool try_one(uint32_t number)
{
    batch *b = make_batch(number % 64);
    maker m = {.b = b, .state = 88172645463325252u + 977 * (uint64_t)number};
    gr_str text = {0};
    value v = {0};
    bool wild = false;
    for (uint32_t lines = draw(&m, MOST_NAMED); lines--; m.n_named++) {
        gr_str_printf(&text, "u%d = ", m.n_named);
        make(&m, 2, &text, &v);
        gr_str_putc(&text, '\n');
        m.named[m.n_named] = v;
        wild = wild || is_wild(&m, &v);
    }
    make(&m, 1 + (int)draw(&m, DEPTH), &text, &v);
    gr_expr *e = compile(b, text.text);
    const bool compared = e && !wild && !m.close && !is_wild(&m, &v);
    if (compared) compare(&m, e, text.text, &v, draw(&m, 2) ? gr_expr_level(e) : GR_LEVEL_TOKEN, number);
    gr_expr_free(e);
    gr_str_release(&text);
    batch_free(b);
    return compared;
}

static void test_random_expressions_have_the_values_that_the_language_says(void **state)
{
    (void)state;
    const uint32_t n = getenv("GR_SLOW") ? 400000 : 4000;
    uint32_t compared = 0;
    for (uint32_t i = 0; i < n; i++) compared += try_one(i);
    print_message("%u of %u were compared; the others are refused, or have too large numbers\n", compared, n);
    assert_true(compared > n * 8 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_expressions_have_the_values_that_the_language_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
