/* ops/text/pretokenize.h: cut text into the pieces that merges may not cross.
 *
 * A pre-tokenizer is a list of stages; each cuts every piece of the one before by a regular expression, as
 * the `Split` of Hugging Face's tokenizers does. Patterns are written for Oniguruma; PCRE2 matches them in
 * Unicode mode, with \s spelled out (PCRE2's includes U+180E, Oniguruma's does not). Patterns that read
 * differently in the two are refused: nested classes, \h, and ones that match the empty string.
 *
 * Threads: after its last gr_pretok_add a pre-tokenizer never changes; a walk belongs to one thread.
 */
#ifndef GR_OPS_TEXT_PRETOKENIZE_H
#define GR_OPS_TEXT_PRETOKENIZE_H

#include "runtime/base/base.h"

/* What becomes of the matches; the names are those of tokenizer.json. */
typedef enum gr_split_behavior {
    GR_SPLIT_REMOVED,
    GR_SPLIT_ISOLATED,
    GR_SPLIT_WITH_PREVIOUS,
    GR_SPLIT_WITH_NEXT,
    GR_SPLIT_CONTIGUOUS,
} gr_split_behavior;

typedef struct gr_pretok {
    struct gr_split_stage *stages;
    size_t n, cap;
} gr_pretok;

extern const char gr_pretok_gpt2[]; /* the pattern of ByteLevel with use_regex */

/* Add a stage. literal: the pattern is plain text. invert: what does not match is the match. NULL, or why the
 * pattern is refused; the caller frees the text. */
char *gr_pretok_add(gr_pretok *p, const char *pattern, size_t n, bool literal, gr_split_behavior behavior,
                    bool invert);
void gr_pretok_release(gr_pretok *p);

typedef gr_status (*gr_piece_fn)(void *user, const char *text, size_t n);

/* Call piece for every non-empty piece in order; stops at its first status other than GR_OK and returns that.
 * text must be valid UTF-8. match: from gr_pretok_match_new. GR_E_FAILED: a pattern exhausted the matcher. */
GR_NODISCARD gr_status gr_pretok_walk(const gr_pretok *p, void *match, const char *text, size_t n,
                                      gr_piece_fn piece, void *user);

void *gr_pretok_match_new(void); /* matcher state for one thread */
void gr_pretok_match_free(void *match);

#endif
