/* ops/reward/math_text.h: pieces of text, and the normal form of mathematics.
 *
 * A gr_span points into a text that somebody else owns.
 */
#ifndef GR_OPS_REWARD_MATH_TEXT_H
#define GR_OPS_REWARD_MATH_TEXT_H

#include <ctype.h>
#include <string.h>

#include "runtime/base/base.h"

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

/* Where text stands first in s; s.n where nowhere. */
static inline size_t gr_span_find(gr_span s, const char *text)
{
    const char *at = s.p && s.n ? memmem(s.p, s.n, text, strlen(text)) : NULL;
    return at ? (size_t)(at - s.p) : s.n;
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

/* Bytes of the normal form: set braces, matrices and their rows, to be told from grouping; a degree; a comma
 * of thousands that may part a list instead; "is not"; and what stands on both sides of words. */
enum {
    GR_SET_OPEN = 1,
    GR_SET_CLOSE,
    GR_MATRIX_OPEN,
    GR_MATRIX_CLOSE,
    GR_DEGREE,
    GR_THOUSANDS,
    GR_NOT_EQUAL,
    GR_TEXT,
    GR_MATRIX_ROW = 14
};

/* Append the normal form of s: no units, fences or styles; \frac with braces; <= >= ~ for their many
 * spellings; a space between digits alone; thousands joined. A command is followed by one space where a
 * letter follows it. Nesting: as deep as s has braces. */
void gr_math_normalise(gr_span s, gr_str *out);

#endif
