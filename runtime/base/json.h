/* runtime/base/json.h: JSON texts with places, over jansson.
 *
 * jansson keeps no places for values, so a text is kept beside what was parsed from it: errors of syntax have
 * jansson's place, errors of meaning the place of the key, found by a second look at the text.
 * Duplicate keys, bad UTF-8, nesting deeper than 2048 and integers outside int64_t are errors of syntax.
 */
#ifndef GR_RUNTIME_BASE_JSON_H
#define GR_RUNTIME_BASE_JSON_H

#include <jansson.h>

#include "runtime/base/base.h"

typedef struct gr_json {
    char *path, *text;
    size_t n;
    json_t *root; /* always an object */
    size_t at;    /* byte offset in the text where the root begins: 0, or within it (gr_json_into) */
} gr_json;

#define GR_JSON_LIMIT (64u << 20) /* bytes; the largest tokenizers are 20 MB */

/* Read and parse a file that holds one object. On failure *j is empty; gr_json_release is fine either way. */
GR_NODISCARD gr_status gr_json_read(gr_json *j, const char *path, gr_diag *d);
void gr_json_release(gr_json *j);

/* Make the object under a key of the root the root; false: the text has the key with escapes, where its place
 * is not found, and all stays. */
bool gr_json_into(gr_json *j, const char *key);

/* Byte offset in the text of the quote that opens a key of the root object; n where it has no such key. */
size_t gr_json_find(const gr_json *j, const char *key);

/* Place of a key of the root object; the file alone where it has no such key. */
gr_loc gr_json_at(const gr_json *j, const char *key);

/* What a value is, for messages: "a number", "an object"; NULL: "nothing". */
const char *gr_json_kind(const json_t *value);

/* Whether float32 can hold a number: columns are float32, and one that is too large would become an infinity.
 */
bool gr_json_fits_float(double value);

/* Whether a text in it, at any depth, holds the character \u0000, where a C string ends. */
bool gr_json_has_nul(const json_t *value);

/* A JSON string of any text: bytes that are not UTF-8, as a response may hold, become U+FFFD. */
json_t *gr_json_string(const char *text, size_t n);

/* Of pieces of such a text, the i-th from ends[i - 1] (0) to ends[i] in bytes: a list of [begin, end] in
 * characters of the JSON string. A piece of part of a character has all of it; an empty piece begins where it
 * ends. */
json_t *gr_json_offsets(const char *text, size_t n, const uint32_t *ends, size_t n_ends);

#endif
