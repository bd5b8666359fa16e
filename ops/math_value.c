#include "ops/math_value.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base.h"

#define DEPTH 100

/* A recursive descent parser that evaluates as it goes. */
struct reader {
    const char *p, *end;
    unsigned trial;
    int depth;
    bool failed; /* not an expression; kept apart from the value, as NAN^0 is 1 */
};

static double read_sum(struct reader *r);
static double read_factor(struct reader *r);

static double fail(struct reader *r)
{
    r->failed = true;
    return NAN;
}

static bool at(const struct reader *r, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(r->end - r->p) >= n && !memcmp(r->p, text, n);
}

static bool take(struct reader *r, const char *text)
{
    if (!at(r, text)) return false;
    r->p += strlen(text);
    return true;
}

/* A command and not the beginning of a longer one. */
static bool take_command(struct reader *r, const char *name)
{
    size_t n = strlen(name);
    if (!at(r, name) || (r->p + n < r->end && isalpha((unsigned char)r->p[n]))) return false;
    r->p += n;
    take(r, " ");
    return true;
}

static double read_number(struct reader *r)
{
    char text[64];
    size_t n = 0;
    for (; r->p < r->end && n < sizeof(text) - 1 && (isdigit((unsigned char)*r->p) || *r->p == '.'); r->p++)
        text[n++] = *r->p;
    text[n] = '\0';
    char *end;
    double v = strtod(text, &end);
    return end == text || *end ? fail(r) : v;
}

static double made_up(uint64_t name, unsigned trial)
{
    uint32_t bits[4];
    gr_philox(trial, name, (const uint32_t[4]){0}, bits);
    return 0.5 + 2 * (double)gr_uniform(bits[0]);
}

static double read_closed(struct reader *r, const char *close)
{
    double v = read_sum(r);
    return take(r, close) ? v : fail(r);
}

/* What a command takes: a group, or the one sign that follows. */
static double read_argument(struct reader *r)
{
    take(r, " ");
    if (take(r, "{")) return read_closed(r, "}");
    if (r->p < r->end && isdigit((unsigned char)*r->p)) return *r->p++ - '0';
    return read_factor(r);
}

static double factorial(double n)
{
    return n >= 0 && n <= 170 && n == floor(n) ? round(tgamma(n + 1)) : NAN;
}

static double read_root(struct reader *r)
{
    double degree = 2;
    if (take(r, "[")) degree = read_closed(r, "]");
    double v = read_argument(r);
    return degree == 2 ? sqrt(v) : degree == 3 ? cbrt(v) : pow(v, 1 / degree);
}

static double read_logarithm(struct reader *r)
{
    double base = take(r, "_") ? read_argument(r) : 10;
    return log(read_factor(r)) / log(base);
}

static bool read_function(struct reader *r, double *out)
{
    static const struct {
        const char *name;
        double (*of)(double);
    } known[] = {{"\\sin", sin},     {"\\cos", cos},     {"\\tan", tan}, {"\\ln", log},
                 {"\\arcsin", asin}, {"\\arccos", acos}, {"\\exp", exp}, {"\\arctan", atan}};
    for (size_t i = 0; i < GR_LEN(known); i++) {
        if (!take_command(r, known[i].name)) continue;
        double power = take(r, "^") ? read_argument(r) : 1;
        *out = pow(known[i].of(read_factor(r)), power);
        return true;
    }
    return false;
}

static double read_command(struct reader *r)
{
    double v;
    if (read_function(r, &v)) return v;
    if (take(r, "\\frac")) {
        double top = read_argument(r), bottom = read_argument(r);
        return top / bottom;
    }
    if (take(r, "\\binom")) {
        double n = read_argument(r), k = read_argument(r);
        return factorial(n) / (factorial(k) * factorial(n - k));
    }
    if (take(r, "\\sqrt")) return read_root(r);
    if (take_command(r, "\\log")) return read_logarithm(r);
    if (take_command(r, "\\pi")) return acos(-1);
    const char *name = r->p++; /* an unknown command is a variable: \alpha, \theta */
    while (r->p < r->end && isalpha((unsigned char)*r->p)) r->p++;
    char text[32];
    size_t n = (size_t)(r->p - name);
    take(r, " ");
    if (n < 2 || n >= sizeof(text)) return fail(r);
    memcpy(text, name, n);
    text[n] = '\0';
    return made_up(gr_stream(text), r->trial);
}

/* The index of x_1 or x_{12}, put in out[64] from its second byte on. */
static bool read_index(struct reader *r, char *out)
{
    bool group = take(r, "{");
    const char *close = group ? memchr(r->p, '}', (size_t)(r->end - r->p)) : r->p + 1;
    if (!close || close > r->end || close - r->p > 62) return false;
    memcpy(out + 1, r->p, (size_t)(close - r->p));
    r->p = close + group;
    return true;
}

/* x, x_1, and f(2, x): a function that nothing is known of, so a value made up from its arguments. */
static double read_variable(struct reader *r)
{
    char text[64] = {*r->p};
    bool function = strchr("fghPFG", *r->p++) != NULL;
    if (take(r, "_")) {
        if (!read_index(r, text)) return fail(r);
    } else if (text[0] == 'e') {
        return exp(1);
    }
    uint64_t name = gr_stream(text);
    if (!function || !take(r, "(")) return made_up(name, r->trial);
    do {
        double v = read_sum(r);
        uint64_t bits;
        memcpy(&bits, &v, sizeof(bits));
        name = (name ^ (bits >> 16)) * 0x9E3779B97F4A7C15u; /* without the bits that rounding touches */
    } while (take(r, ","));
    return take(r, ")") ? made_up(name, r->trial) : fail(r);
}

static double read_atom(struct reader *r)
{
    if (r->p == r->end) return fail(r);
    if (take(r, "(")) return read_closed(r, ")");
    if (take(r, "[")) return read_closed(r, "]");
    if (take(r, "{")) return read_closed(r, "}");
    if (take(r, "|")) return fabs(read_closed(r, "|"));
    if (*r->p == '\\') return read_command(r);
    if (isalpha((unsigned char)*r->p)) return read_variable(r);
    return read_number(r);
}

static bool take_whole(struct reader *r, double *out)
{
    if (!take(r, "{")) return false;
    const char *from = r->p;
    for (*out = 0; r->p < r->end && isdigit((unsigned char)*r->p); r->p++) *out = *out * 10 + (*r->p - '0');
    return r->p > from && take(r, "}");
}

/* The fraction of a mixed number, 3\frac{1}{2}: both parts whole numbers; 0 where it is a product. */
static double read_mixed(struct reader *r)
{
    struct reader ahead = *r;
    double top, bottom;
    if (!take(&ahead, "\\frac") || !take_whole(&ahead, &top) || !take_whole(&ahead, &bottom)) return 0;
    if (!(top < bottom)) return 0;
    r->p = ahead.p;
    return top / bottom;
}

static double read_power(struct reader *r)
{
    bool digit = r->p < r->end && isdigit((unsigned char)*r->p);
    double v = read_atom(r);
    if (digit && v == floor(v)) v += read_mixed(r);
    while (take(r, "!")) v = factorial(v);
    if (take(r, "^")) v = pow(v, take(r, "-") ? -read_argument(r) : read_argument(r));
    return v;
}

static double read_factor(struct reader *r)
{
    if (++r->depth > DEPTH) return fail(r);
    double v = take(r, "-") ? -read_factor(r) : take(r, "+") ? read_factor(r) : read_power(r);
    r->depth--;
    return v;
}

static bool starts_factor(const struct reader *r)
{
    if (r->p == r->end || at(r, "\\pm")) return false;
    return isalnum((unsigned char)*r->p) || strchr("([{\\.", *r->p);
}

static double read_product(struct reader *r)
{
    double v = read_factor(r);
    while (!r->failed) {
        if (take(r, "*"))
            v *= read_factor(r);
        else if (take(r, "/"))
            v /= read_factor(r);
        else if (starts_factor(r))
            v *= read_power(r);
        else
            break;
    }
    return v;
}

static double read_sum(struct reader *r)
{
    if (++r->depth > DEPTH) return fail(r);
    double v = at(r, "\\pm") ? 0 : read_product(r);
    while (!r->failed) {
        if (take(r, "+"))
            v += read_product(r);
        else if (take(r, "-"))
            v -= read_product(r);
        else if (take_command(r, "\\pm"))
            v += made_up(gr_stream("\\pm"), r->trial) * read_product(r);
        else
            break;
    }
    r->depth--;
    return v;
}

bool gr_math_value(const char *s, size_t n, unsigned trial, double *out)
{
    struct reader r = {s, s + n, trial, 0, false};
    *out = read_sum(&r);
    return !r.failed && r.p == r.end && isfinite(*out);
}
