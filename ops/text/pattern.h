/* ops/text/pattern.h: where PCRE2 takes its memory: from gr_malloc, so that none of its calls fails for want
 * of it.
 *
 * Whoever compiles a pattern gives this context's compile context; what is made from the pattern then takes
 * its memory there, too. A match that a limit ends still says so.
 */
#ifndef GR_OPS_TEXT_PATTERN_H
#define GR_OPS_TEXT_PATTERN_H

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include "runtime/base/base.h"

/* One for the program, made by the first call and never freed; any thread. */
pcre2_general_context *gr_pattern_memory(void);

/* As pcre2_compile, with that memory. Free with pcre2_code_free. */
pcre2_code *gr_pattern_compile(const char *pattern, size_t n, uint32_t options, int *error, size_t *at);

#endif
