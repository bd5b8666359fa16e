/* ops/reward/math_find.h: where the answer stands in a longer text, such as a model's response. */
#ifndef GR_OPS_REWARD_MATH_FIND_H
#define GR_OPS_REWARD_MATH_FIND_H

#include "ops/reward/math_text.h"

typedef enum gr_math_place { GR_IN_FORMULA, GR_IN_WORDS, GR_IN_SENTENCE } gr_math_place;

/* Find the answer in *text and put it, not normalised, in out, which is emptied first.
 *
 * The text is first cut down to what its last <answer>...</answer> holds. Then counts the last \boxed{},
 * unless the answer is announced after it: by "answer is", "answer:", or "####" on the last line. What
 * stands right after the announcement comes next; else, after it or in the whole text, the last \boxed{} or
 * formula between dollars, \( \), \[ \] or **, several joined by commas where only connecting words part
 * them. Else the answer is somewhere in the words that *text is cut down to: the sentence of the
 * announcement, or all.
 */
gr_math_place gr_math_locate(gr_span *text, gr_str *out);

/* The number that words give as their answer: the one that an announced sentence begins with, else the last
 * that does not belong to a word. Numbers joined by "or", "and" or a comma are one answer: all of them. In a
 * text without sentences white space must follow, so that the 3 of 3x does not count. out is emptied first.
 */
bool gr_math_find_number(gr_span words, gr_math_place place, gr_str *out);

/* Two words of three letters or more follow each other. */
bool gr_math_is_prose(gr_span s);

/* The contents of the last \boxed{...} (or \fbox) of text, braces balanced: n bytes at from. false: none. */
bool gr_math_boxed(const char *text, size_t n_text, size_t *from, size_t *n);

#endif
