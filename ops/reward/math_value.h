/* ops/reward/math_value.h: are two expressions equal?
 *
 * Each is evaluated, at made-up values of its variables where it has any. As long as a value is rational it
 * is exact, however long (GMP); from the first root or function on that has no rational value it is a complex
 * number of 512 bits (MPC). Two exact values are equal or not, and that is all; others are where they agree
 * to 400 bits. Variables are rational numbers of both signs, so |x| is not x, and \ln x^2 is not 2\ln x.
 * Eight points must be defined for both sides and agree, half of them whole numbers: by Schwartz and Zippel,
 * for polynomials of degree d, an error is less likely than (d / 300)^4.
 *
 * \sqrt[3]{-8} is -2 or, as computer algebra has it, the principal root: sides that agree under one of the
 * two readings agree.
 *
 * Bounds: an exact value has at most 65,536 bits, an argument of a function at most 2^64; work is paid from
 * fuel, and what has no fuel left equals nothing. A unit of fuel is about 10 ns.
 *
 * Threads: pure functions but for their fuel.
 */
#ifndef GR_OPS_REWARD_MATH_VALUE_H
#define GR_OPS_REWARD_MATH_VALUE_H

#include "ops/reward/math_tree.h"

bool gr_math_same_value(const gr_math_tree *a, const gr_math_tree *b, int64_t *fuel);

/* l = r and p = q say the same: l - r is everywhere the same multiple of p - q. *sign is that of the
 * multiple. */
typedef struct gr_math_sides {
    gr_math_tree left, right;
} gr_math_sides;
bool gr_math_same_equation(const gr_math_sides *a, const gr_math_sides *b, int64_t *fuel, int *sign);

/* a is a decimal that somebody rounded, and b, which has no variables, is what it was rounded from:
 * irrational, to six places or more; a fraction that does not end, to the twelve digits or more that
 * computers print. */
bool gr_math_is_rounded(const gr_math_tree *a, const gr_math_tree *b, int64_t *fuel);

#endif
