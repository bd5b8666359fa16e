/* runtime/base/visible.h: text that others wrote, for a terminal.
 */
#ifndef GR_RUNTIME_BASE_VISIBLE_H
#define GR_RUNTIME_BASE_VISIBLE_H

#include "runtime/base/base.h"

/* Add text that others wrote (a file's, a model's, a name) so that a terminal shows it and does not obey it:
 * control and format characters, such as those that turn the direction of writing, become \x1b or \u202e, and
 * bytes that are no UTF-8 \xff. Tabs stay, and where lines is set line ends, too. */
void gr_str_visible(gr_str *s, const char *bytes, size_t n, bool lines);

/* The beginning of a text, 60 bytes at most, for a message: control characters and bytes above 126 are '?',
 * and what is left out is "...". To free(). */
char *gr_excerpt(const char *bytes, size_t n);

#endif
