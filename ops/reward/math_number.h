/* ops/reward/math_number.h: are two plain numbers the same?
 *
 * Threads: a pure function.
 */
#ifndef GR_OPS_REWARD_MATH_NUMBER_H
#define GR_OPS_REWARD_MATH_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

/* Both texts are one number each, and the same, exactly and at any length up to 4096 bytes: commas and spaces
 * of thousands, signs of currency, a percent sign, a leading plus and a trailing full stop do not count; a/b
 * is a fraction; exponents (1e3) are at most 1,000,000. */
bool gr_number_equal(const char *a, size_t n_a, const char *b, size_t n_b);

#endif
