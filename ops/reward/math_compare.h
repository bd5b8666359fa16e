/* ops/reward/math_compare.h: do two answers say the same thing?
 *
 * Mathematics, in LaTeX or plain text, is brought to a normal form (ops/reward/math_text.h), cut into lists,
 * intervals, names, relations and matrices, and the expressions that remain are compared by value: exactly
 * where they are rational, in 512 bits where not (ops/reward/math_value.h). What cannot be parsed is compared
 * as normalised text, and answers of more than 4096 bytes equal nothing. docs/GRADERS.md says what counts as
 * equal, and how often that is right. A comparison takes a bounded time, 0.2 s at most in what was tried, and
 * never fails.
 *
 * The truth decides what is asked: "x = 5" is answered by "5", and "5" by any equation that ends in 5; "2x+z
 * = 1" is not answered by "1".
 *
 * Threads: all are pure functions.
 */
#ifndef GR_OPS_REWARD_MATH_COMPARE_H
#define GR_OPS_REWARD_MATH_COMPARE_H

#include <stdbool.h>
#include <stddef.h>

/* Bare answers, such as the contents of two boxes. */
bool gr_math_equal(const char *truth, size_t n_truth, const char *got, size_t n_got);

/* The same, where both may be part of a longer text, in which the answer is looked for
 * (ops/reward/math_find.h). */
bool gr_math_equal_in_text(const char *truth, size_t n_truth, const char *got, size_t n_got);

#endif
