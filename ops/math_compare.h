/* ops/math_compare.h: do two answers say the same thing?
 *
 * Numbers are compared as numbers. Mathematics, in LaTeX or plain text, is normalised (units, text, spaces,
 * fences, fractions), cut into lists, intervals, relations and matrices, and the expressions that remain are
 * compared by value: each is evaluated at a few fixed assignments of its variables, and values that agree
 * everywhere to a relative 1e-9 are the same. What cannot be parsed is compared as normalised text, and
 * answers of more than 4096 bytes equal nothing. This may err for texts that nobody writes as an answer; it
 * never runs long and never fails.
 *
 * Threads: all are pure functions.
 */
#ifndef GR_OPS_MATH_COMPARE_H
#define GR_OPS_MATH_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

/* Both texts are one number each, and the same: white space, thousands commas, currency and percent signs, a
 * leading plus and a trailing full stop do not count; a/b is a fraction. Decimals compare exactly. */
bool gr_number_equal(const char *a, size_t n_a, const char *b, size_t n_b);

/* The contents of the last \boxed{...} (or \fbox) of text, braces balanced: n bytes at from. false: none. */
bool gr_math_boxed(const char *text, size_t n_text, size_t *from, size_t *n);

/* Two bare answers, such as the contents of two boxes. */
bool gr_math_equal(const char *truth, size_t n_truth, const char *got, size_t n_got);

/* The same, where both may be part of a longer text: each side is cut down to its last \boxed{}, else its
 * last formula between dollars or \( \), \[ \], else, in prose, its last number. */
bool gr_math_equal_in_text(const char *truth, size_t n_truth, const char *got, size_t n_got);

#endif
