/* ops/math_value.h: the value of an expression in normalised LaTeX, at made-up values of its variables.
 *
 * Understood: numbers, + - * / ^ ! |x|, products without a sign, \frac \sqrt \binom, \pi, e, the usual
 * functions, variables with indices, unknown functions f(x), and mixed numbers 3\frac{1}{2}. \pm is a
 * variable like any other. Everything else is refused.
 */
#ifndef GR_OPS_MATH_VALUE_H
#define GR_OPS_MATH_VALUE_H

#include <stdbool.h>
#include <stddef.h>

/* Evaluate s, with each variable at a value in (0.5, 2.5) drawn from its name and trial. false where s is not
 * an expression, is nested deeper than 100 levels, or has no finite value there. */
bool gr_math_value(const char *s, size_t n, unsigned trial, double *out);

#endif
