/* ops/reward/math_number.c: plain numbers as digits and a power of ten, compared exactly. */
#include "ops/reward/math_number.h"

#include <gmp.h>
#include <stdlib.h>

#include "ops/reward/math_text.h"

/* digits * 10^exponent */
struct decimal {
    mpz_t digits;
    long exponent;
};

/* text without what does not count. false: something else than a number, or commas and spaces that part no
 * thousands. */
static bool clean_number(gr_span s, gr_str *out)
{
    gr_str text = {0};
    bool ok = s.n <= GR_MATH_BYTES;
    gr_span rest = gr_span_trim(s);
    while (ok && rest.n && strchr("$%. ", rest.p[rest.n - 1]) && rest.p[rest.n - 1]) rest.n--;
    if (ok) gr_math_normalise(rest, &text);
    for (size_t i = 0; i < text.len && ok; i++) {
        char c = text.text[i];
        if (c == GR_THOUSANDS) continue;
        ok = c && strchr("0123456789.+-/eE", c);
        gr_str_putc(out, c);
    }
    gr_str_release(&text);
    return ok && out->len;
}

static bool read_exponent(gr_span s, long *out)
{
    char *end;
    if (!s.n) return true;
    if (!strchr("eE", *s.p)) return false;
    long e = strtol(s.p + 1, &end, 10);
    *out += e;
    return end == s.p + s.n && end > s.p + 1 && labs(e) <= 1000000;
}

/* s stands in a text that a NUL ends. */
static bool read_decimal(gr_span s, struct decimal *out)
{
    gr_str digits = {0};
    bool minus = gr_span_starts(s, "-"), point = false;
    s = gr_span_skip(s, minus || gr_span_starts(s, "+"));
    out->exponent = 0;
    for (; s.n && (isdigit((unsigned char)*s.p) || (*s.p == '.' && !point)); s = gr_span_skip(s, 1)) {
        out->exponent -= point;
        if (*s.p == '.')
            point = true;
        else
            gr_str_putc(&digits, *s.p);
    }
    bool ok = digits.len && read_exponent(s, &out->exponent);
    if (ok) mpz_set_str(out->digits, digits.text, 10);
    if (minus) mpz_neg(out->digits, out->digits);
    gr_str_release(&digits);
    return ok;
}

/* a/b, or a alone. */
static bool read_fraction(const gr_str *text, struct decimal *num, struct decimal *den)
{
    size_t n = strcspn(text->text, "/");
    mpz_set_ui(den->digits, 1);
    den->exponent = 0;
    if (!read_decimal((gr_span){text->text, n}, num)) return false;
    if (n == text->len) return true;
    return read_decimal((gr_span){text->text + n + 1, text->len - n - 1}, den) && mpz_sgn(den->digits);
}

/* a * b, with the zeros at its end in its exponent. */
static void multiply(struct decimal *a, const struct decimal *b)
{
    mpz_t ten;
    mpz_init_set_ui(ten, 10);
    mpz_mul(a->digits, a->digits, b->digits);
    a->exponent += b->exponent;
    a->exponent = mpz_sgn(a->digits) ? a->exponent + (long)mpz_remove(a->digits, a->digits, ten) : 0;
    mpz_clear(ten);
}

static bool same_fractions(const gr_str *a, const gr_str *b)
{
    struct decimal num_a, den_a, num_b, den_b;
    mpz_inits(num_a.digits, den_a.digits, num_b.digits, den_b.digits, NULL);
    bool ok = read_fraction(a, &num_a, &den_a) && read_fraction(b, &num_b, &den_b);
    if (ok) {
        multiply(&num_a, &den_b);
        multiply(&num_b, &den_a);
        ok = num_a.exponent == num_b.exponent && !mpz_cmp(num_a.digits, num_b.digits);
    }
    mpz_clears(num_a.digits, den_a.digits, num_b.digits, den_b.digits, NULL);
    return ok;
}

bool gr_number_equal(const char *a, size_t n_a, const char *b, size_t n_b)
{
    gr_str ta = {0}, tb = {0};
    bool same = clean_number((gr_span){a, n_a}, &ta) && clean_number((gr_span){b, n_b}, &tb) &&
                same_fractions(&ta, &tb);
    gr_str_release(&ta);
    gr_str_release(&tb);
    return same;
}
