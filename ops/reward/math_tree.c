/* ops/reward/math_tree.c: a recursive descent parser of normalised LaTeX. */
#include "ops/reward/math_tree.h"

#include <stdlib.h>

#define DEPTH   100
#define LETTERS 3 /* more in a row are a word, not a product of variables */

const char *const gr_math_functions[] = {"sin",    "cos",    "tan",    "cot",    "sec",  "csc",
                                         "arcsin", "arccos", "arctan", "arccot", "sinh", "cosh",
                                         "tanh",   "coth",   "exp",    "ln",     "lg",   NULL};

static const char *const letters[] = {
    "alpha",    "beta", "gamma",  "delta",  "epsilon", "varepsilon", "zeta",  "eta",   "theta",
    "vartheta", "iota", "kappa",  "lambda", "mu",      "nu",         "xi",    "rho",   "sigma",
    "tau",      "phi",  "varphi", "chi",    "psi",     "omega",      "Gamma", "Delta", "Theta",
    "Lambda",   "Xi",   "Sigma",  "Phi",    "Psi",     "Omega",      "ell"};

struct reader {
    gr_span s; /* what is left */
    gr_math_tree *out;
    int depth;
    bool in_bars; /* between |: the next one closes */
    bool failed;
};

static uint32_t read_sum(struct reader *r);
static uint32_t read_factor(struct reader *r);
static uint32_t read_power(struct reader *r);
static uint32_t read_product(struct reader *r);

static uint32_t fail(struct reader *r)
{
    r->failed = true;
    r->s.n = 0;
    return GR_MATH_NONE;
}

static uint32_t put(struct reader *r, gr_math_node node)
{
    GR_PUSH(r->out->node, r->out->n, r->out->cap, node);
    return (uint32_t)r->out->n - 1;
}

static uint32_t put_two(struct reader *r, gr_math_kind kind, uint32_t left, uint32_t right)
{
    return put(r, (gr_math_node){.kind = kind, .left = left, .right = right});
}

static uint32_t put_one(struct reader *r, gr_math_kind kind, uint32_t left)
{
    return put_two(r, kind, left, GR_MATH_NONE);
}

static uint32_t put_number(struct reader *r, const char *text)
{
    return put(r, (gr_math_node){.kind = GR_MATH_NUMBER, .text = {text, strlen(text)}});
}

static bool at(const struct reader *r, const char *text)
{
    return gr_span_starts(r->s, text);
}

static bool accept(struct reader *r, const char *text)
{
    if (!at(r, text)) return false;
    r->s = gr_span_skip(r->s, strlen(text));
    return true;
}

static bool at_digit(const struct reader *r)
{
    return r->s.n && isdigit((unsigned char)*r->s.p);
}

/* The name of the command that s starts with; n is 0 where it starts with none. */
static gr_span command_of(gr_span s)
{
    if (s.n < 2 || *s.p != '\\') return (gr_span){s.p, 0};
    s = gr_span_skip(s, 1);
    return (gr_span){s.p, gr_span_word(s)};
}

static bool take_command(struct reader *r, const char *name)
{
    gr_span command = command_of(r->s);
    if (!command.n || !gr_span_is(command, name)) return false;
    r->s = gr_span_skip(r->s, command.n + 1);
    accept(r, " ");
    return true;
}

static uint32_t index_in(const char *const *names, size_t n, gr_span name)
{
    for (size_t i = 0; i < n; i++)
        if (gr_span_is(name, names[i])) return (uint32_t)i;
    return GR_MATH_NONE;
}

static uint32_t function_of(gr_span s)
{
    gr_span name = command_of(s);
    size_t n = 0;
    while (gr_math_functions[n]) n++;
    return name.n ? index_in(gr_math_functions, n, name) : GR_MATH_NONE;
}

static bool at_function(const struct reader *r)
{
    return function_of(r->s) != GR_MATH_NONE || gr_span_is(command_of(r->s), "log");
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static size_t digits_of(gr_span s)
{
    size_t n = 0;
    while (n < s.n && isdigit((unsigned char)s.p[n])) n++;
    return n;
}

/* \overline{12} after the digits of a decimal. */
static void read_repeat(struct reader *r, gr_math_node *number)
{
    if (!take_command(r, "overline") && !take_command(r, "bar") && !take_command(r, "dot")) return;
    bool group = accept(r, "{");
    size_t n = digits_of(r->s);
    if (!group) n = GR_MIN(n, (size_t)1);
    number->repeat = (gr_span){r->s.p, n};
    r->s = gr_span_skip(r->s, n);
    if (!n || (group && !accept(r, "}"))) fail(r);
}

/* The index and the primes after a name. false: there is an index, and it is broken. */
static bool take_index(struct reader *r)
{
    while (accept(r, "'")) {
    }
    if (!accept(r, "_")) return true;
    size_t n = at(r, "{") ? gr_span_group(r->s) : r->s.n && isalnum((unsigned char)*r->s.p);
    r->s = gr_span_skip(r->s, n);
    return n > 0;
}

static uint32_t put_name(struct reader *r, const char *from)
{
    if (!take_index(r)) return fail(r);
    return put(r, (gr_math_node){.kind = GR_MATH_VARIABLE, .text = {from, (size_t)(r->s.p - from)}});
}

/* A number in another base, 2112_6, is a name: nothing is computed with it. */
static uint32_t read_number(struct reader *r)
{
    gr_math_node number = {.kind = GR_MATH_NUMBER, .text = r->s};
    size_t n = digits_of(r->s);
    if (n && gr_span_starts(gr_span_skip(r->s, n), "_")) {
        r->s = gr_span_skip(r->s, n);
        return put_name(r, number.text.p);
    }
    bool point = n < r->s.n && r->s.p[n] == '.';
    number.text.n = n + point + (point ? digits_of(gr_span_skip(r->s, n + 1)) : 0);
    if (number.text.n == point && !gr_span_starts(gr_span_skip(r->s, point), "\\")) return fail(r);
    r->s = gr_span_skip(r->s, number.text.n);
    if (point) read_repeat(r, &number);
    if (at(r, ".") || at_digit(r) || number.text.n + number.repeat.n == point) return fail(r);
    return put(r, number);
}

/* {12}, all digits. */
static bool take_whole(struct reader *r, gr_span *digits)
{
    if (!accept(r, "{")) return false;
    *digits = (gr_span){r->s.p, digits_of(r->s)};
    r->s = gr_span_skip(r->s, digits->n);
    return digits->n && accept(r, "}");
}

static bool is_less(gr_span a, gr_span b)
{
    while (a.n && *a.p == '0') a = gr_span_skip(a, 1);
    while (b.n && *b.p == '0') b = gr_span_skip(b, 1);
    return a.n != b.n ? a.n < b.n : memcmp(a.p, b.p, a.n) < 0;
}

/* The fraction of a mixed number, \frac{1}{2} or " 1/2" after a whole one. */
static bool take_mixed(struct reader *r, gr_span *top, gr_span *bottom)
{
    struct reader ahead = *r;
    if (accept(&ahead, " ")) {
        *top = (gr_span){ahead.s.p, digits_of(ahead.s)};
        ahead.s = gr_span_skip(ahead.s, top->n);
        if (!accept(&ahead, "/")) return false;
        *bottom = (gr_span){ahead.s.p, digits_of(ahead.s)};
        ahead.s = gr_span_skip(ahead.s, bottom->n);
    } else if (!take_command(&ahead, "frac") || !take_whole(&ahead, top) || !take_whole(&ahead, bottom)) {
        return false;
    }
    if (!is_less(*top, *bottom)) return false;
    r->s = ahead.s;
    return true;
}

static uint32_t read_mixed(struct reader *r, uint32_t whole)
{
    gr_span top, bottom;
    if (!take_mixed(r, &top, &bottom)) return whole;
    uint32_t a = put(r, (gr_math_node){.kind = GR_MATH_NUMBER, .text = top});
    uint32_t b = put(r, (gr_math_node){.kind = GR_MATH_NUMBER, .text = bottom});
    return put_two(r, GR_MATH_ADD, whole, put_two(r, GR_MATH_DIV, a, b));
}

/* ---- brackets and arguments --------------------------------------------------------------------------- */

/* A sum up to the bracket that closes it. */
static uint32_t read_closed(struct reader *r, const char *close)
{
    bool in_bars = r->in_bars;
    r->in_bars = *close == '|';
    uint32_t v = read_sum(r);
    r->in_bars = in_bars;
    return accept(r, close) ? v : fail(r);
}

static uint32_t read_atom(struct reader *r);

/* What a command takes: a group, or the one sign that follows. */
static uint32_t read_argument(struct reader *r)
{
    accept(r, " ");
    if (accept(r, "{")) return read_closed(r, "}");
    if (!at_digit(r)) return read_atom(r);
    uint32_t v = put(r, (gr_math_node){.kind = GR_MATH_NUMBER, .text = {r->s.p, 1}});
    r->s = gr_span_skip(r->s, 1);
    return v;
}

/* An exponent: 2^10 is a thousand, as it is in plain text. */
static uint32_t read_exponent(struct reader *r)
{
    if (accept(r, "-")) return put_one(r, GR_MATH_NEG, read_exponent(r));
    return at_digit(r) ? read_number(r) : read_argument(r);
}

/* What a function without brackets is of: the product that follows, up to a bracket or another function. */
static uint32_t read_operand(struct reader *r)
{
    bool minus = accept(r, "-");
    if (at(r, "(") || at(r, "[") || at(r, "{") || at_function(r)) {
        uint32_t v = read_power(r);
        return minus ? put_one(r, GR_MATH_NEG, v) : v;
    }
    uint32_t v = read_power(r);
    while (!r->failed && r->s.n && !at_function(r) && !at(r, "\\pm") &&
           (isalnum((unsigned char)*r->s.p) || *r->s.p == '\\') && !at(r, "\\rfloor") && !at(r, "\\rceil"))
        v = put_two(r, GR_MATH_MUL, v, read_power(r));
    return minus ? put_one(r, GR_MATH_NEG, v) : v;
}

/* ---- commands ----------------------------------------------------------------------------------------- */

static uint32_t read_root(struct reader *r)
{
    uint32_t degree = accept(r, "[") ? read_closed(r, "]") : GR_MATH_NONE;
    return put_two(r, GR_MATH_ROOT, read_argument(r), degree);
}

static uint32_t powered(struct reader *r, uint32_t v, uint32_t power)
{
    return power == GR_MATH_NONE ? v : put_two(r, GR_MATH_POW, v, power);
}

static uint32_t read_logarithm(struct reader *r)
{
    uint32_t base = accept(r, "_") ? read_argument(r) : put_number(r, "10");
    uint32_t power = accept(r, "^") ? read_exponent(r) : GR_MATH_NONE;
    accept(r, " ");
    return powered(r, put_two(r, GR_MATH_LOG, read_operand(r), base), power);
}

/* The inverse of a trigonometric function: \sin^{-1}. */
static uint32_t inverse_of(struct reader *r, uint32_t function)
{
    if (function >= 4 || (!accept(r, "^{-1}") && !accept(r, "^-1"))) return function;
    static const char *const names[] = {"arcsin", "arccos", "arctan", "arccot"};
    size_t n = 0;
    while (strcmp(gr_math_functions[n], names[function]) != 0) n++;
    return (uint32_t)n;
}

static uint32_t read_function(struct reader *r)
{
    uint32_t function = function_of(r->s);
    take_command(r, gr_math_functions[function]);
    function = inverse_of(r, function);
    uint32_t power = accept(r, "^") ? read_exponent(r) : GR_MATH_NONE;
    accept(r, " ");
    uint32_t of = read_operand(r);
    return powered(r,
                   put(r, (gr_math_node){.kind = GR_MATH_FUNCTION,
                                         .function = function,
                                         .left = of,
                                         .right = GR_MATH_NONE}),
                   power);
}

/* \alpha, \overline{AB} and \bar{x}, which are names like any other. */
static uint32_t read_name(struct reader *r)
{
    static const char *const accents[] = {"overline", "bar", "hat", "tilde"};
    gr_span name = command_of(r->s);
    const char *from = r->s.p;
    bool greek = index_in(letters, GR_LEN(letters), name) != GR_MATH_NONE;
    if (!greek && index_in(accents, GR_LEN(accents), name) == GR_MATH_NONE) return fail(r);
    r->s = gr_span_skip(r->s, name.n + 1);
    if (!greek) {
        size_t n = gr_span_group(r->s);
        if (n < 3 || gr_span_word(gr_span_skip(r->s, 1)) != n - 2) return fail(r);
        r->s = gr_span_skip(r->s, n);
    }
    uint32_t v = put_name(r, from);
    accept(r, " ");
    return v;
}

static uint32_t read_two(struct reader *r, gr_math_kind kind)
{
    uint32_t top = read_argument(r);
    return put_two(r, kind, top, read_argument(r));
}

/* \frac{dy}{dx}, \frac{d^2}{dx^2}: a derivative, which is no fraction. */
static bool at_derivative(const struct reader *r)
{
    gr_span top = gr_span_skip(r->s, 5), bottom = gr_span_skip(top, gr_span_group(top));
    return at(r, "\\frac{d") && gr_span_starts(bottom, "{d") && gr_span_word(gr_span_skip(bottom, 2)) > 0;
}

static uint32_t read_command(struct reader *r)
{
    if (at_derivative(r)) return fail(r);
    if (function_of(r->s) != GR_MATH_NONE) return read_function(r);
    if (take_command(r, "frac")) return read_two(r, GR_MATH_DIV);
    if (take_command(r, "binom")) return read_two(r, GR_MATH_BINOM);
    if (take_command(r, "sqrt")) return read_root(r);
    if (take_command(r, "log")) return read_logarithm(r);
    if (take_command(r, "pi")) return put(r, (gr_math_node){.kind = GR_MATH_PI});
    if (take_command(r, "lfloor")) return put_one(r, GR_MATH_FLOOR, read_closed(r, "\\rfloor"));
    if (take_command(r, "lceil")) return put_one(r, GR_MATH_CEIL, read_closed(r, "\\rceil"));
    return read_name(r);
}

/* ---- variables ---------------------------------------------------------------------------------------- */

/* f(...), and P(x) with one letter or number: P(1+r) is a product. */
static bool is_call(gr_span name, gr_span rest)
{
    if (!gr_span_starts(rest, "(") || !strchr("fghPFG", *name.p)) return false;
    if (strchr("fgh", *name.p)) return true;
    gr_span inside = gr_span_skip(rest, 1);
    size_t n = GR_MAX(digits_of(inside), GR_MIN(gr_span_word(inside), (size_t)1));
    return n && gr_span_starts(gr_span_skip(inside, n), ")");
}

/* The arguments of a call after its '('. */
static uint32_t read_arguments(struct reader *r)
{
    uint32_t first = put_one(r, GR_MATH_COMMA, read_sum(r)), last = first;
    while (accept(r, ",")) {
        uint32_t next = put_one(r, GR_MATH_COMMA, read_sum(r));
        r->out->node[last].right = next;
        last = next;
    }
    return accept(r, ")") ? first : fail(r);
}

static uint32_t read_call(struct reader *r, gr_span name)
{
    accept(r, "(");
    bool in_bars = r->in_bars;
    r->in_bars = false;
    uint32_t arguments = read_arguments(r);
    r->in_bars = in_bars;
    return put(r,
               (gr_math_node){.kind = GR_MATH_CALL, .text = name, .left = arguments, .right = GR_MATH_NONE});
}

static uint32_t read_variable(struct reader *r)
{
    const char *from = r->s.p;
    size_t run = gr_span_word(r->s);
    if (run > LETTERS) return fail(r);
    r->s = gr_span_skip(r->s, 1);
    bool bare = !at(r, "_") && !at(r, "'");
    if (bare && *from == 'e') return put(r, (gr_math_node){.kind = GR_MATH_E});
    if (bare && *from == 'i') return put(r, (gr_math_node){.kind = GR_MATH_I});
    if (!take_index(r)) return fail(r);
    gr_span name = {from, (size_t)(r->s.p - from)};
    if (is_call(name, r->s)) return read_call(r, name);
    return put(r, (gr_math_node){.kind = GR_MATH_VARIABLE, .text = name});
}

/* ---- operators ---------------------------------------------------------------------------------------- */

static uint32_t read_atom(struct reader *r)
{
    if (!r->s.n || ++r->depth > DEPTH) return fail(r);
    uint32_t v;
    if (accept(r, "("))
        v = read_closed(r, ")");
    else if (accept(r, "["))
        v = read_closed(r, "]");
    else if (accept(r, "{"))
        v = read_closed(r, "}");
    else if (accept(r, "|"))
        v = put_one(r, GR_MATH_ABS, read_closed(r, "|"));
    else if (*r->s.p == '\\')
        v = read_command(r);
    else if (isalpha((unsigned char)*r->s.p))
        v = read_variable(r);
    else
        v = read_number(r);
    r->depth--;
    return v;
}

/* What stands after a value: %, degrees. */
static uint32_t read_behind(struct reader *r, uint32_t v)
{
    const char degree[] = {GR_DEGREE, 0};
    if (accept(r, "%")) return put_two(r, GR_MATH_DIV, v, put_number(r, "100"));
    return accept(r, degree) ? put_one(r, GR_MATH_DEGREE, v) : v;
}

static uint32_t read_power(struct reader *r)
{
    bool digit = at_digit(r);
    uint32_t v = read_atom(r);
    if (digit && !r->failed && !memchr(r->out->node[v].text.p, '.', r->out->node[v].text.n))
        v = read_mixed(r, v);
    while (accept(r, "!")) v = put_one(r, GR_MATH_FACTORIAL, v);
    if (accept(r, "^")) v = put_two(r, GR_MATH_POW, v, read_exponent(r));
    if (at(r, "^")) return fail(r);
    return read_behind(r, v);
}

static uint32_t read_factor(struct reader *r)
{
    if (++r->depth > DEPTH) return fail(r);
    uint32_t v = accept(r, "-")   ? put_one(r, GR_MATH_NEG, read_factor(r))
                 : accept(r, "+") ? read_factor(r)
                                  : read_power(r);
    r->depth--;
    return v;
}

static bool starts_factor(const struct reader *r)
{
    if (!r->s.n || at(r, "\\rfloor") || at(r, "\\rceil")) return false;
    return isalpha((unsigned char)*r->s.p) || strchr("([{\\", *r->s.p) || (*r->s.p == '|' && !r->in_bars);
}

static uint32_t read_product(struct reader *r)
{
    uint32_t v = read_factor(r);
    while (!r->failed) {
        if (accept(r, "*"))
            v = put_two(r, GR_MATH_MUL, v, read_factor(r));
        else if (accept(r, "/"))
            v = put_two(r, GR_MATH_DIV, v, read_factor(r));
        else if (starts_factor(r) || (at_digit(r) && r->out->node[v].kind != GR_MATH_NUMBER))
            v = put_two(r, GR_MATH_MUL, v, read_power(r));
        else
            break;
    }
    return v;
}

static uint32_t read_sum(struct reader *r)
{
    if (++r->depth > DEPTH) return fail(r);
    uint32_t v = read_product(r);
    while (!r->failed) {
        if (accept(r, "+"))
            v = put_two(r, GR_MATH_ADD, v, read_product(r));
        else if (accept(r, "-"))
            v = put_two(r, GR_MATH_SUB, v, read_product(r));
        else
            break;
    }
    r->depth--;
    return v;
}

bool gr_math_parse(gr_span s, gr_math_tree *out)
{
    *out = (gr_math_tree){0};
    struct reader r = {.s = s, .out = out};
    if (s.n) out->root = read_sum(&r);
    if (s.n && !r.failed && !r.s.n) return true;
    gr_math_tree_release(out);
    return false;
}

void gr_math_tree_release(gr_math_tree *t)
{
    free(t->node);
    *t = (gr_math_tree){0};
}

bool gr_math_has_variables(const gr_math_tree *t)
{
    bool any = false;
    for (size_t i = 0; i < t->n && !any; i++)
        any = t->node[i].kind == GR_MATH_VARIABLE || t->node[i].kind == GR_MATH_CALL;
    return any;
}
