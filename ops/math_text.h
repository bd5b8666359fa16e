/* ops/math_text.h: mathematics as text: its normal form, and where the answer stands in a longer text.
 *
 * A gr_span points into a text that somebody else owns.
 */
#ifndef GR_OPS_MATH_TEXT_H
#define GR_OPS_MATH_TEXT_H

#include <ctype.h>
#include <string.h>

#include "runtime/base.h"

typedef struct gr_span {
    const char *p;
    size_t n;
} gr_span;

static inline gr_span gr_span_skip(gr_span s, size_t n)
{
    n = GR_MIN(n, s.n);
    return (gr_span){s.p + n, s.n - n};
}

static inline bool gr_span_same(gr_span a, gr_span b)
{
    return a.n == b.n && (!a.n || !memcmp(a.p, b.p, a.n));
}

static inline bool gr_span_starts(gr_span s, const char *text)
{
    size_t n = strlen(text);
    return s.n >= n && !memcmp(s.p, text, n);
}

static inline bool gr_span_is(gr_span s, const char *text)
{
    return s.n == strlen(text) && gr_span_starts(s, text);
}

/* White space at both ends cut off. */
static inline gr_span gr_span_trim(gr_span s)
{
    while (s.n && isspace((unsigned char)s.p[s.n - 1])) s.n--;
    while (s.n && isspace((unsigned char)*s.p)) s = gr_span_skip(s, 1);
    return s;
}

/* Longer texts are no mathematical answers. The limit bounds the time and the depth of all that reads them.
 */
#define GR_MATH_BYTES ((size_t)4096)

size_t gr_span_word(gr_span s);  /* bytes of the letters s starts with */
size_t gr_span_group(gr_span s); /* s starts with '{': bytes up to and with its '}', 0 where there is none */

/* What stands for set braces, matrices and their rows in the normal form, to be told from grouping. */
enum { GR_SET_OPEN = 1, GR_SET_CLOSE, GR_MATRIX_OPEN, GR_MATRIX_CLOSE, GR_MATRIX_ROW };

/* Append the normal form of s: no spaces, units, fences or styles; \frac with braces; <= >= != for their many
 * spellings. A command is followed by one space where a letter follows it. */
void gr_math_normalise(gr_span s, gr_str *out);

typedef enum gr_math_place { GR_IN_FORMULA, GR_IN_WORDS } gr_math_place;

/* Find the answer in *text and put it, not normalised, in out, which is emptied first. What stands right
 * behind the last "answer is"; else after it, else in the whole: the last \boxed{}, or formula between
 * dollars or \( \), \[ \], several joined by commas where only connecting words part them. Else it is
 * somewhere in the words that *text is cut down to.
 */
gr_math_place gr_math_locate(gr_span *text, gr_str *out);

/* The last number in text that does not belong to a word. alone: white space must follow it, so that the 3 of
 * 3x does not count. out is emptied first. */
bool gr_math_last_number(gr_span text, bool alone, gr_str *out);

/* Two words of three letters or more follow each other. */
bool gr_math_is_prose(gr_span s);

#endif
