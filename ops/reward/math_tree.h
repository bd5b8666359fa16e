/* ops/reward/math_tree.h: an expression in normalised LaTeX (ops/reward/math_text.h) as a tree.
 *
 * Understood: numbers of any length, with repeating digits (0.1\overline{6}), mixed numbers (3\frac{1}{2}, 3
 * 1/2),
 * + - * / ^ ! %, |x|, products without a sign, \frac \sqrt \binom \lfloor \lceil, \pi, e, i, degrees, the
 * usual functions with their LaTeX reading (\sin^2 x, \sin^{-1} x, \cot 2x is cot(2x)), variables with
 * indices and primes, Greek letters, and unknown functions f(x). Everything else, above all a command that is
 * not known, is no expression: it is refused, and never taken for a variable.
 */
#ifndef GR_OPS_REWARD_MATH_TREE_H
#define GR_OPS_REWARD_MATH_TREE_H

#include <stdint.h>

#include "ops/reward/math_text.h"

typedef enum gr_math_kind {
    GR_MATH_NUMBER,   /* text: digits with at most one point; repeat: the digits that repeat after them */
    GR_MATH_VARIABLE, /* text: its name */
    GR_MATH_CALL,  /* text: the name of an unknown function; its arguments: left, a chain of GR_MATH_COMMA */
    GR_MATH_COMMA, /* left: an argument, right: the next GR_MATH_COMMA or GR_MATH_NONE */
    GR_MATH_PI,
    GR_MATH_E,
    GR_MATH_I,
    GR_MATH_ADD,
    GR_MATH_SUB,
    GR_MATH_MUL,
    GR_MATH_DIV,
    GR_MATH_NEG,
    GR_MATH_POW,
    GR_MATH_ROOT, /* left: of what; right: its degree, GR_MATH_NONE for 2 */
    GR_MATH_ABS,
    GR_MATH_FLOOR,
    GR_MATH_CEIL,
    GR_MATH_FACTORIAL,
    GR_MATH_BINOM,
    GR_MATH_LOG,     /* left: of what; right: its base */
    GR_MATH_DEGREE,  /* degrees of an angle */
    GR_MATH_FUNCTION /* function: an index of gr_math_functions */
} gr_math_kind;

#define GR_MATH_NONE UINT32_MAX

typedef struct gr_math_node {
    gr_math_kind kind;
    uint32_t function;
    uint32_t left, right; /* nodes of the same tree, or GR_MATH_NONE */
    gr_span text, repeat; /* into the text that was parsed */
} gr_math_node;

/* Names of LaTeX commands, without their backslash; NULL ends them. */
extern const char *const gr_math_functions[];

typedef struct gr_math_tree {
    gr_math_node *node;
    size_t n, cap;
    uint32_t root;
} gr_math_tree;

/* The tree of s, whose bytes it points into; the caller releases it. false where s is not an expression or is
 * nested deeper than 100 levels. */
bool gr_math_parse(gr_span s, gr_math_tree *out);
void gr_math_tree_release(gr_math_tree *t); /* {0} is fine */
bool gr_math_has_variables(const gr_math_tree *t);

#endif
