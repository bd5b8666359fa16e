/* ops/reward/math_value.c: trees of expressions evaluated exactly, and in 512 bits where that cannot be. */
#include "ops/reward/math_value.h"

#include <gmp.h>
#include <mpc.h>
#include <mpfr.h>
#include <stdlib.h>

#include "runtime/base/base.h"

#define BITS       512        /* of a value that is not rational */
#define AGREE      400        /* bits in which two of them must agree */
#define EXACT_BITS 65536      /* of a rational value, above and below its line */
#define MAX_EXP    (1l << 20) /* exponents of values that are not rational */
#define POINTS     8          /* that must be defined and agree */
#define TRIALS     24         /* to find them */
#define FUNCTION   1500       /* units of fuel for a function that is not rational */

typedef struct value {
    bool exact;
    mpq_t q; /* where exact */
    mpc_t c; /* else */
} value;

struct eval {
    const gr_math_tree *t;
    unsigned trial;
    bool real_roots; /* roots of odd degree of negative numbers are negative */
    int angle;       /* depth inside functions of angles */
    long scale;      /* binary exponent of the largest term of any sum that was not exact */
    int64_t *fuel;
};

/* Each operation is done in place: v = v op w. All return false where there is no value. */
static bool eval(struct eval *e, uint32_t node, value *out);

static void value_init(value *v)
{
    v->exact = true;
    mpq_init(v->q);
    mpc_init2(v->c, BITS);
}

static void value_clear(value *v)
{
    mpq_clear(v->q);
    mpc_clear(v->c);
}

static bool pay(struct eval *e, int64_t units)
{
    *e->fuel -= units;
    return *e->fuel > 0;
}

static size_t bits_of(mpq_srcptr q)
{
    return GR_MAX(mpz_sizeinbase(mpq_numref(q), 2), mpz_sizeinbase(mpq_denref(q), 2));
}

static void make_inexact(value *v)
{
    if (v->exact) mpc_set_q(v->c, v->q, MPC_RNDNN);
    v->exact = false;
}

static long exponent_of(mpc_srcptr c)
{
    bool re = mpfr_regular_p(mpc_realref(c)), im = mpfr_regular_p(mpc_imagref(c));
    long a = re ? mpfr_get_exp(mpc_realref(c)) : -MAX_EXP, b = im ? mpfr_get_exp(mpc_imagref(c)) : -MAX_EXP;
    return GR_MAX(a, b);
}

/* A part that is nothing but rounding error beside the other is 0, so that it chooses no side of a branch
 * cut. */
static void snap(mpfr_t part, long exponent)
{
    if (mpfr_zero_p(part) || mpfr_get_exp(part) < exponent - AGREE - 50) mpfr_set_zero(part, 1);
}

/* The bounds of a value; what every operation ends with. */
static bool tame(struct eval *e, value *v)
{
    if (v->exact) {
        int64_t limbs = (int64_t)bits_of(v->q) / 64;
        return limbs * 64 <= EXACT_BITS && pay(e, 10 + limbs * limbs / 2);
    }
    if (!mpfr_number_p(mpc_realref(v->c)) || !mpfr_number_p(mpc_imagref(v->c))) return false;
    long exponent = exponent_of(v->c);
    snap(mpc_realref(v->c), exponent);
    snap(mpc_imagref(v->c), exponent);
    return exponent <= MAX_EXP && exponent >= -MAX_EXP && pay(e, 100);
}

static bool is_real(const value *v)
{
    return v->exact || mpfr_zero_p(mpc_imagref(v->c));
}

static bool is_zero(const value *v)
{
    return v->exact ? mpq_sgn(v->q) == 0 : mpfr_zero_p(mpc_realref(v->c)) && mpfr_zero_p(mpc_imagref(v->c));
}

/* v is real. */
static int sign_of(const value *v)
{
    return v->exact ? mpq_sgn(v->q) : mpfr_sgn(mpc_realref(v->c));
}

/* v as a whole number that fits. */
static bool as_long(const value *v, long *out)
{
    if (!v->exact || mpz_cmp_ui(mpq_denref(v->q), 1) || !mpz_fits_slong_p(mpq_numref(v->q))) return false;
    *out = mpz_get_si(mpq_numref(v->q));
    return true;
}

/* ---- arithmetic --------------------------------------------------------------------------------------- */

static void both_inexact(value *v, value *w)
{
    if (v->exact && w->exact) return;
    make_inexact(v);
    make_inexact(w);
}

static void note_scale(struct eval *e, const value *v)
{
    e->scale = GR_MAX(e->scale, exponent_of(v->c));
}

static bool add(struct eval *e, value *v, value *w, bool minus)
{
    both_inexact(v, w);
    if (v->exact) {
        (minus ? mpq_sub : mpq_add)(v->q, v->q, w->q);
        return tame(e, v);
    }
    note_scale(e, v);
    note_scale(e, w);
    (minus ? mpc_sub : mpc_add)(v->c, v->c, w->c, MPC_RNDNN);
    return tame(e, v);
}

static bool multiply(struct eval *e, value *v, value *w)
{
    both_inexact(v, w);
    if (v->exact)
        mpq_mul(v->q, v->q, w->q);
    else
        mpc_mul(v->c, v->c, w->c, MPC_RNDNN);
    return tame(e, v);
}

static bool divide(struct eval *e, value *v, value *w)
{
    if (is_zero(w)) return false;
    both_inexact(v, w);
    if (v->exact)
        mpq_div(v->q, v->q, w->q);
    else
        mpc_div(v->c, v->c, w->c, MPC_RNDNN);
    return tame(e, v);
}

static void negate(value *v)
{
    if (v->exact)
        mpq_neg(v->q, v->q);
    else
        mpc_neg(v->c, v->c, MPC_RNDNN);
}

/* q^n, where that stays within its bits. */
static bool exact_power(mpq_t q, long n)
{
    unsigned long m = n < 0 ? -(unsigned long)n : (unsigned long)n;
    size_t bits = bits_of(q);
    bool unit = !mpz_cmpabs_ui(mpq_numref(q), 1) && !mpz_cmp_ui(mpq_denref(q), 1);
    if (mpq_sgn(q) == 0) return n > 0;
    if (unit) m %= 2;
    if (m > EXACT_BITS || bits * m > EXACT_BITS + bits) return false;
    mpz_pow_ui(mpq_numref(q), mpq_numref(q), m);
    mpz_pow_ui(mpq_denref(q), mpq_denref(q), m);
    if (n < 0) mpq_inv(q, q);
    return true;
}

/* The root of degree n of q > 0, where it is rational; q is kept where not. */
static bool exact_root(mpq_t q, unsigned long n)
{
    mpz_t top, bottom;
    mpz_inits(top, bottom, NULL);
    bool whole = mpz_root(top, mpq_numref(q), n) && mpz_root(bottom, mpq_denref(q), n);
    if (whole) {
        mpq_set_num(q, top);
        mpq_set_den(q, bottom);
    }
    mpz_clears(top, bottom, NULL);
    return whole;
}

/* v^(p/n) of v > 0 by whole roots. */
static bool rational_power(value *v, const mpq_t power)
{
    if (!mpz_fits_slong_p(mpq_numref(power)) || !mpz_fits_ulong_p(mpq_denref(power))) return false;
    unsigned long n = mpz_get_ui(mpq_denref(power));
    return n <= 1000 && exact_root(v->q, n) && exact_power(v->q, mpz_get_si(mpq_numref(power)));
}

/* v^w as exp(w log v). */
static bool general_power(struct eval *e, value *v, value *w)
{
    if (is_zero(v)) return is_real(w) && sign_of(w) > 0;
    make_inexact(v);
    make_inexact(w);
    mpc_log(v->c, v->c, MPC_RNDNN);
    mpc_mul(v->c, v->c, w->c, MPC_RNDNN);
    if (!tame(e, v) || exponent_of(v->c) > 20) return false;
    mpc_exp(v->c, v->c, MPC_RNDNN);
    return pay(e, 2 * FUNCTION) && tame(e, v);
}

static bool is_half(const value *w)
{
    return w->exact && !mpz_cmp_ui(mpq_numref(w->q), 1) && !mpz_cmp_ui(mpq_denref(w->q), 2);
}

static bool inexact_power(struct eval *e, value *v, value *w)
{
    long n;
    if (is_half(w)) {
        make_inexact(v);
        mpc_sqrt(v->c, v->c, MPC_RNDNN);
        return tame(e, v);
    }
    if (!as_long(w, &n) || labs(n) > 1000) return general_power(e, v, w);
    if (is_zero(v)) return n > 0;
    mpc_pow_si(v->c, v->c, n, MPC_RNDNN);
    return tame(e, v);
}

static bool power(struct eval *e, value *v, value *w)
{
    long n;
    if (v->exact && as_long(w, &n)) return exact_power(v->q, n) && tame(e, v);
    if (v->exact && w->exact && !mpz_cmp_ui(mpq_denref(w->q), 1)) return false; /* too large */
    if (v->exact && w->exact && mpq_sgn(v->q) > 0 && rational_power(v, w->q)) return tame(e, v);
    return inexact_power(e, v, w);
}

static bool root(struct eval *e, value *v, value *degree)
{
    long n;
    bool odd = as_long(degree, &n) && n % 2 && n > 1;
    bool turned = odd && e->real_roots && is_real(v) && sign_of(v) < 0;
    value one;
    value_init(&one);
    mpq_set_ui(one.q, 1, 1);
    if (turned) negate(v);
    bool ok = divide(e, &one, degree) && (is_zero(v) || power(e, v, &one));
    if (turned) negate(v);
    value_clear(&one);
    return ok;
}

static bool absolute(struct eval *e, value *v)
{
    if (v->exact) {
        mpq_abs(v->q, v->q);
        return true;
    }
    mpc_abs(mpc_realref(v->c), v->c, MPFR_RNDN);
    mpfr_set_zero(mpc_imagref(v->c), 1);
    return tame(e, v);
}

/* ---- whole numbers ------------------------------------------------------------------------------------ */

/* Down or up to a whole number; what is not exact must be clearly away from one. */
static bool step(struct eval *e, value *v, bool up)
{
    if (v->exact) {
        (up ? mpz_cdiv_q : mpz_fdiv_q)(mpq_numref(v->q), mpq_numref(v->q), mpq_denref(v->q));
        mpz_set_ui(mpq_denref(v->q), 1);
        return true;
    }
    if (!is_real(v) || exponent_of(v->c) > 64 || e->scale > 64) return false;
    mpz_t near, whole;
    mpz_inits(near, whole, NULL);
    mpfr_get_z(near, mpc_realref(v->c), MPFR_RNDN);
    mpfr_get_z(whole, mpc_realref(v->c), up ? MPFR_RNDU : MPFR_RNDD);
    mpfr_sub_z(mpc_realref(v->c), mpc_realref(v->c), near, MPFR_RNDN);
    bool clear = mpfr_regular_p(mpc_realref(v->c)) && mpfr_get_exp(mpc_realref(v->c)) > -300;
    mpq_set_z(v->q, whole);
    v->exact = true;
    mpz_clears(near, whole, NULL);
    return clear;
}

static bool factorial(struct eval *e, value *v)
{
    long n;
    if (as_long(v, &n)) {
        if (n < 0 || n > 5000 || !pay(e, n)) return false;
        mpz_fac_ui(mpq_numref(v->q), (unsigned long)n);
        return tame(e, v);
    }
    make_inexact(v);
    if (!is_real(v) || exponent_of(v->c) > 8) return false;
    mpfr_add_ui(mpc_realref(v->c), mpc_realref(v->c), 1, MPFR_RNDN);
    mpfr_gamma(mpc_realref(v->c), mpc_realref(v->c), MPFR_RNDN);
    return pay(e, 50 * FUNCTION) && tame(e, v);
}

static void copy(value *v, const value *from)
{
    v->exact = from->exact;
    if (v->exact)
        mpq_set(v->q, from->q);
    else
        mpc_set(v->c, from->c, MPC_RNDNN);
}

/* v (v - 1) ... (v - k + 1) / k! */
static bool falling(struct eval *e, value *v, long k)
{
    value term, one, n;
    bool ok = true;
    value_init(&term), value_init(&one), value_init(&n);
    copy(&term, v);
    v->exact = true;
    mpq_set_ui(v->q, 1, 1);
    for (long i = 1; i <= k && ok; i++) {
        mpq_set_si(n.q, i, 1), n.exact = true;
        mpq_set_si(one.q, 1, 1), one.exact = true;
        ok = multiply(e, v, &term) && divide(e, v, &n) && add(e, &term, &one, true);
    }
    value_clear(&term), value_clear(&one), value_clear(&n);
    return ok;
}

static bool binomial(struct eval *e, value *v, value *w)
{
    long k;
    if (as_long(w, &k)) return k >= 0 && k <= 5000 && falling(e, v, k);
    value rest;
    value_init(&rest);
    copy(&rest, v);
    bool ok = add(e, &rest, w, true) && factorial(e, &rest) && factorial(e, w) && factorial(e, v) &&
              divide(e, v, w) && divide(e, v, &rest);
    value_clear(&rest);
    return ok;
}

/* ---- functions ---------------------------------------------------------------------------------------- */

typedef int (*mpc_function)(mpc_ptr, mpc_srcptr, mpc_rnd_t);

/* In the order of gr_math_functions. inverted: the reciprocal is taken of the result (1) or the argument (2).
 */
static const struct {
    mpc_function of;
    int inverted;
} functions[] = {{mpc_sin, 0},  {mpc_cos, 0},  {mpc_tan, 0},  {mpc_tan, 1},  {mpc_cos, 1},  {mpc_sin, 1},
                 {mpc_asin, 0}, {mpc_acos, 0}, {mpc_atan, 0}, {mpc_atan, 2}, {mpc_sinh, 0}, {mpc_cosh, 0},
                 {mpc_tanh, 0}, {mpc_tanh, 1}, {mpc_exp, 0},  {mpc_log, 0},  {mpc_log10, 0}};

static bool invert(struct eval *e, value *v)
{
    if (is_zero(v)) return false;
    mpc_ui_div(v->c, 1, v->c, MPC_RNDNN);
    return tame(e, v);
}

static bool is_logarithm(uint32_t which)
{
    return which >= 15;
}

/* The largest binary exponent of an argument: complex ones of tangents, and real ones of hyperbolic tangents,
 * come too near to a limit, which takes MPC long and says nothing; those of logarithms cannot. */
static long largest_argument(const value *v, uint32_t which)
{
    bool tangent = functions[which].of == mpc_tan, hyperbolic = functions[which].of == mpc_tanh;
    if (is_logarithm(which)) return MAX_EXP;
    if (hyperbolic || (tangent && !is_real(v))) return 5;
    return is_real(v) ? 20 : 8;
}

static bool function(struct eval *e, value *v, uint32_t which)
{
    if (is_logarithm(which) && is_zero(v)) return false;
    make_inexact(v);
    if (exponent_of(v->c) > largest_argument(v, which)) return false;
    if (functions[which].inverted == 2 && !invert(e, v)) return false;
    note_scale(e, v);
    functions[which].of(v->c, v->c, MPC_RNDNN);
    if (!pay(e, FUNCTION) || !tame(e, v)) return false;
    return functions[which].inverted != 1 || invert(e, v);
}

static bool logarithm(struct eval *e, value *v, value *base)
{
    return function(e, v, 15) && function(e, base, 15) && divide(e, v, base);
}

static bool is_of_angles(uint32_t which)
{
    return which < 6;
}

static bool degrees(struct eval *e, value *v)
{
    if (!e->angle) return true;
    value turn;
    value_init(&turn);
    make_inexact(&turn);
    mpfr_const_pi(mpc_realref(turn.c), MPFR_RNDN);
    mpc_div_ui(turn.c, turn.c, 180, MPC_RNDNN);
    bool ok = multiply(e, v, &turn);
    value_clear(&turn);
    return ok;
}

/* ---- leaves ------------------------------------------------------------------------------------------- */

/* digits * 10^-places, digits without their point. */
static void set_digits(mpq_t out, gr_str *digits, unsigned long places)
{
    mpz_set_str(mpq_numref(out), digits->len ? digits->text : "0", 10);
    mpz_ui_pow_ui(mpq_denref(out), 10, places);
    mpq_canonicalize(out);
}

/* d repeated after the p-th place is d / (10^p (10^n - 1)). */
static void add_repeat(mpq_t out, gr_span repeat, unsigned long places)
{
    mpq_t part;
    gr_str digits = {0};
    mpq_init(part);
    gr_str_add(&digits, repeat.p, repeat.n);
    mpz_set_str(mpq_numref(part), digits.text, 10);
    mpz_ui_pow_ui(mpq_denref(part), 10, repeat.n);
    mpz_sub_ui(mpq_denref(part), mpq_denref(part), 1);
    mpz_ui_pow_ui(mpq_numref(out), 10, places);
    mpz_mul(mpq_denref(part), mpq_denref(part), mpq_numref(out));
    mpq_canonicalize(part);
    mpq_set(out, part);
    mpq_clear(part);
    gr_str_release(&digits);
}

static size_t places_of(gr_span number)
{
    const char *point = number.n ? memchr(number.p, '.', number.n) : NULL;
    return point ? number.n - (size_t)(point - number.p) - 1 : 0;
}

static bool number(struct eval *e, const gr_math_node *n, value *out)
{
    gr_str digits = {0};
    size_t places = places_of(n->text);
    for (size_t i = 0; i < n->text.n; i++)
        if (n->text.p[i] != '.') gr_str_putc(&digits, n->text.p[i]);
    set_digits(out->q, &digits, places);
    gr_str_release(&digits);
    if (n->repeat.n) {
        mpq_t repeat;
        mpq_init(repeat);
        add_repeat(repeat, n->repeat, places);
        mpq_add(out->q, out->q, repeat);
        mpq_clear(repeat);
    }
    return tame(e, out);
}

/* A rational number that is made up from a name: over 101, and whole in two of four trials, where floors
 * step; its sign is opposite in trials 2i and 2i+1. */
static void made_up(struct eval *e, uint64_t name, value *out)
{
    uint32_t bits[4];
    gr_philox(e->trial / 2, name, (const uint32_t[4]){0}, bits);
    bool whole = e->trial % 4 >= 2, minus = (bits[1] + e->trial) % 2;
    long top = whole ? 2 + (long)(bits[0] % 9) : 30 + (long)(bits[0] % 301) + (long)(e->trial % 2) * 307;
    mpq_set_si(out->q, minus ? -top : top, whole ? 1 : 101);
    mpq_canonicalize(out->q);
}

/* The hash of a name without its braces: x_1 is x_{1}. */
static uint64_t hash_name(gr_span name)
{
    gr_str text = {0};
    gr_str_puts(&text, "");
    for (size_t i = 0; i < name.n; i++)
        if (!strchr("{} ", name.p[i])) gr_str_putc(&text, name.p[i]);
    uint64_t hash = gr_stream(text.text ? text.text : "");
    gr_str_release(&text);
    return hash;
}

/* A value as a hash, of its first 200 bits where it is not exact. */
static uint64_t hash_value(value *v)
{
    if (!v->exact) {
        mpfr_prec_round(mpc_realref(v->c), 200, MPFR_RNDN);
        mpfr_prec_round(mpc_imagref(v->c), 200, MPFR_RNDN);
    }
    char *re = v->exact ? mpq_get_str(NULL, 16, v->q) : mpc_get_str(16, 0, v->c, MPC_RNDNN);
    uint64_t hash = gr_stream(re);
    void (*release)(void *, size_t);
    mp_get_memory_functions(NULL, NULL, &release);
    if (v->exact)
        release(re, strlen(re) + 1);
    else
        mpc_free_str(re);
    return hash;
}

/* A function that nothing is known of has a value made up from its name and its arguments. */
static bool call(struct eval *e, const gr_math_node *n, value *out)
{
    uint64_t hash = hash_name(n->text);
    bool ok = true;
    for (uint32_t at = n->left; at != GR_MATH_NONE && ok; at = e->t->node[at].right) {
        value v;
        value_init(&v);
        ok = eval(e, e->t->node[at].left, &v);
        if (ok) hash = (hash ^ hash_value(&v)) * 0x9E3779B97F4A7C15u;
        value_clear(&v);
    }
    made_up(e, hash, out);
    return ok;
}

static bool constant(gr_math_kind kind, value *out)
{
    make_inexact(out);
    if (kind == GR_MATH_PI) mpfr_const_pi(mpc_realref(out->c), MPFR_RNDN);
    if (kind == GR_MATH_I) mpc_set_ui_ui(out->c, 0, 1, MPC_RNDNN);
    if (kind != GR_MATH_E) return true;
    mpc_set_ui(out->c, 1, MPC_RNDNN);
    mpc_exp(out->c, out->c, MPC_RNDNN);
    return true;
}

/* ---- nodes -------------------------------------------------------------------------------------------- */

static bool eval_one(struct eval *e, const gr_math_node *n, value *out)
{
    bool angle = n->kind == GR_MATH_FUNCTION && is_of_angles(n->function);
    e->angle += angle;
    bool ok = eval(e, n->left, out);
    e->angle -= angle;
    if (!ok) return false;
    switch (n->kind) {
    case GR_MATH_NEG:
        negate(out);
        return true;
    case GR_MATH_ABS:
        return absolute(e, out);
    case GR_MATH_FLOOR:
        return step(e, out, false);
    case GR_MATH_CEIL:
        return step(e, out, true);
    case GR_MATH_FACTORIAL:
        return factorial(e, out);
    case GR_MATH_DEGREE:
        return degrees(e, out);
    default:
        return function(e, out, n->function);
    }
}

static bool apply(struct eval *e, gr_math_kind kind, value *v, value *w)
{
    switch (kind) {
    case GR_MATH_ADD:
        return add(e, v, w, false);
    case GR_MATH_SUB:
        return add(e, v, w, true);
    case GR_MATH_MUL:
        return multiply(e, v, w);
    case GR_MATH_DIV:
        return divide(e, v, w);
    case GR_MATH_POW:
        return power(e, v, w);
    case GR_MATH_BINOM:
        return binomial(e, v, w);
    case GR_MATH_LOG:
        return logarithm(e, v, w);
    default:
        return root(e, v, w);
    }
}

static bool eval_two(struct eval *e, const gr_math_node *n, value *out)
{
    value right;
    value_init(&right);
    bool ok = eval(e, n->left, out);
    if (n->right == GR_MATH_NONE)
        mpq_set_ui(right.q, 2, 1); /* of a root */
    else
        ok = ok && eval(e, n->right, &right);
    ok = ok && apply(e, n->kind, out, &right);
    value_clear(&right);
    return ok;
}

static bool eval(struct eval *e, uint32_t node, value *out)
{
    const gr_math_node *n = &e->t->node[node];
    if (!pay(e, 20)) return false;
    switch (n->kind) {
    case GR_MATH_NUMBER:
        return number(e, n, out);
    case GR_MATH_VARIABLE:
        made_up(e, hash_name(n->text), out);
        return true;
    case GR_MATH_CALL:
        return call(e, n, out);
    case GR_MATH_PI:
    case GR_MATH_E:
    case GR_MATH_I:
        return constant(n->kind, out);
    case GR_MATH_NEG:
    case GR_MATH_ABS:
    case GR_MATH_FLOOR:
    case GR_MATH_CEIL:
    case GR_MATH_FACTORIAL:
    case GR_MATH_DEGREE:
    case GR_MATH_FUNCTION:
        return eval_one(e, n, out);
    default:
        return eval_two(e, n, out);
    }
}

/* ---- comparing ---------------------------------------------------------------------------------------- */

/* A point at which expressions are compared. scale grows to the largest term met there. */
struct point {
    unsigned trial;
    bool real_roots;
    long scale;
    int64_t *fuel;
};

static bool value_at(const gr_math_tree *t, struct point *p, value *out)
{
    struct eval e = {t, p->trial, p->real_roots, 0, p->scale, p->fuel};
    bool ok = eval(&e, t->root, out);
    p->scale = e.scale;
    return ok;
}

/* Equal exactly; else the difference is at most 2^-400 of the largest number that was met. */
static bool same(value *a, value *b, long scale)
{
    if (a->exact && b->exact) return mpq_equal(a->q, b->q);
    make_inexact(a);
    make_inexact(b);
    long size = GR_MAX(exponent_of(a->c), exponent_of(b->c));
    if (scale > GR_MAX(size, 0) + 100 || size > 300)
        return false; /* too little is left of the digits, or after the point */
    mpc_sub(a->c, a->c, b->c, MPC_RNDNN);
    return exponent_of(a->c) <= GR_MAX(size, scale) - AGREE;
}

enum outcome { UNDEFINED, SAME, DIFFERENT };

static enum outcome compare_at(const gr_math_tree *a, const gr_math_tree *b, struct point *p)
{
    value va, vb;
    value_init(&va), value_init(&vb);
    enum outcome is = UNDEFINED;
    if (value_at(a, p, &va) && value_at(b, p, &vb)) is = same(&va, &vb, p->scale) ? SAME : DIFFERENT;
    value_clear(&va), value_clear(&vb);
    return is;
}

static bool same_everywhere(const gr_math_tree *a, const gr_math_tree *b, bool real_roots, int64_t *fuel)
{
    unsigned wanted = gr_math_has_variables(a) || gr_math_has_variables(b) ? POINTS : 1, agree = 0;
    enum outcome is = SAME;
    for (unsigned trial = 0; trial < TRIALS && agree < wanted && is != DIFFERENT && *fuel > 0; trial++) {
        struct point p = {trial, real_roots, -MAX_EXP, fuel};
        is = compare_at(a, b, &p);
        agree += is == SAME;
    }
    return agree == wanted;
}

static bool has_odd_roots(const gr_math_tree *t)
{
    bool any = false;
    for (size_t i = 0; i < t->n && !any; i++)
        any = t->node[i].kind == GR_MATH_ROOT && t->node[i].right != GR_MATH_NONE;
    return any;
}

bool gr_math_same_value(const gr_math_tree *a, const gr_math_tree *b, int64_t *fuel)
{
    bool is = same_everywhere(a, b, false, fuel);
    if (!is && (has_odd_roots(a) || has_odd_roots(b))) is = same_everywhere(a, b, true, fuel);
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
    return is;
}

/* left - right */
static bool difference_at(const gr_math_sides *s, struct point *p, value *out)
{
    value right;
    value_init(&right);
    struct eval e = {NULL, 0, false, 0, -MAX_EXP, p->fuel};
    bool ok = value_at(&s->left, p, out) && value_at(&s->right, p, &right) && add(&e, out, &right, true);
    p->scale = GR_MAX(p->scale, e.scale);
    value_clear(&right);
    return ok;
}

/* The ratio of the two differences. */
static bool ratio_at(const gr_math_sides *a, const gr_math_sides *b, struct point *p, value *out)
{
    value below;
    value_init(&below);
    struct eval e = {NULL, 0, false, 0, -MAX_EXP, p->fuel};
    bool ok =
        difference_at(a, p, out) && difference_at(b, p, &below) && !is_zero(out) && divide(&e, out, &below);
    value_clear(&below);
    return ok;
}

bool gr_math_same_equation(const gr_math_sides *a, const gr_math_sides *b, int64_t *fuel, int *sign)
{
    value first, ratio;
    unsigned agree = 0;
    bool is = true;
    value_init(&first), value_init(&ratio);
    for (unsigned trial = 0; trial < TRIALS && agree < POINTS && is && *fuel > 0; trial++) {
        struct point p = {trial, false, -MAX_EXP, fuel};
        ratio.exact = true;
        if (!ratio_at(a, b, &p, &ratio)) continue;
        if (!agree) copy(&first, &ratio);
        is = is_real(&ratio) && exponent_of(ratio.c) < 100 && same(&ratio, &first, p.scale);
        agree++;
    }
    *sign = is && agree == POINTS ? sign_of(&first) : 0;
    value_clear(&first), value_clear(&ratio);
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
    return *sign != 0;
}

/* ---- rounded decimals --------------------------------------------------------------------------------- */

static size_t significant(gr_span number)
{
    size_t n = 0;
    for (size_t i = 0; i < number.n; i++) n += number.p[i] != '.' && (n || number.p[i] != '0');
    return n;
}

/* The literal of a tree that is a decimal with or without a minus. */
static const gr_math_node *decimal_of(const gr_math_tree *t)
{
    const gr_math_node *n = &t->node[t->root];
    if (n->kind == GR_MATH_NEG) n = &t->node[n->left];
    return n->kind == GR_MATH_NUMBER && !n->repeat.n && places_of(n->text) ? n : NULL;
}

/* |a - b| <= 10^-places / parts; b becomes the difference. */
static bool within(const value *a, value *b, size_t places, unsigned parts)
{
    mpfr_t limit;
    mpfr_init2(limit, BITS);
    make_inexact(b);
    mpfr_sub_q(mpc_realref(b->c), mpc_realref(b->c), a->q, MPFR_RNDN);
    mpfr_set_ui(limit, 10, MPFR_RNDN);
    mpfr_pow_si(limit, limit, -(long)places, MPFR_RNDN);
    mpfr_div_ui(limit, limit, parts, MPFR_RNDU);
    bool is = mpfr_cmpabs(mpc_realref(b->c), limit) <= 0;
    mpfr_clear(limit);
    return is;
}

/* Its decimals end: nothing but 2 and 5 divides what is below the line. */
static bool terminates(const mpq_t q)
{
    mpz_t rest, prime;
    mpz_inits(rest, prime, NULL);
    mpz_set_ui(prime, 2);
    mpz_remove(rest, mpq_denref(q), prime);
    mpz_set_ui(prime, 5);
    mpz_remove(rest, rest, prime);
    bool is = !mpz_cmp_ui(rest, 1);
    mpz_clears(rest, prime, NULL);
    return is;
}

bool gr_math_is_rounded(const gr_math_tree *a, const gr_math_tree *b, int64_t *fuel)
{
    const gr_math_node *decimal = decimal_of(a);
    if (!decimal || gr_math_has_variables(b) || decimal_of(b)) return false;
    size_t places = places_of(decimal->text);
    struct point p = {0, true, -MAX_EXP, fuel};
    value va, vb;
    value_init(&va), value_init(&vb);
    bool is = value_at(a, &p, &va) && value_at(b, &p, &vb) && is_real(&vb) && p.scale < 100 && places < 100;
    bool printed = significant(decimal->text) >= 12; /* by a machine, whose last digit may be one off */
    is = is && (vb.exact ? printed && !terminates(vb.q) : places >= 6);
    is = is && within(&va, &vb, places, printed ? 1 : 2);
    value_clear(&va), value_clear(&vb);
    mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE);
    return is;
}
