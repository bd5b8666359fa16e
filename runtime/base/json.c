/* runtime/base/json.c: JSON from files, with places for messages. */
#include "runtime/base/json.h"
#include "runtime/base/files.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

/* The parser passes over zero bytes, but who copies the text would end at one. */
static gr_status refuse_zeros(const char *path, const char *text, size_t n, gr_diag *d)
{
    const char *zero = memchr(text, '\0', n);
    if (!zero) return GR_OK;
    gr_loc at = {path, 1, 1};
    for (const char *c = text; c < zero; c++) {
        at.line += *c == '\n';
        at.col = *c == '\n' ? 1 : at.col + 1;
    }
    return gr_diag_error(d, at, GR_E_INVALID, "a zero byte, which JSON text does not have");
}

gr_status gr_json_read(gr_json *j, const char *path, gr_diag *d)
{
    *j = (gr_json){0};
    char *text;
    size_t n;
    gr_status st = gr_file_read(path, GR_JSON_LIMIT, &text, &n, d);
    if (st) return st;
    st = refuse_zeros(path, text, n, d);
    if (st) {
        free(text);
        return st;
    }
    json_error_t e;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (json_is_object(root)) {
        *j = (gr_json){gr_strdup(path), text, n, root, 0};
        return GR_OK;
    }
    if (root)
        st = gr_diag_error(d, (gr_loc){path, 1, 1}, GR_E_INVALID, "expected an object in { }");
    else
        st = gr_diag_error(d, (gr_loc){path, (unsigned)GR_MAX(e.line, 1), (unsigned)GR_MAX(e.column, 1)},
                           GR_E_INVALID, "%s", e.text);
    json_decref(root);
    free(text);
    return st;
}

void gr_json_release(gr_json *j)
{
    json_decref(j->root);
    free(j->text);
    free(j->path);
    *j = (gr_json){0};
}

/* The end of the string that starts at the quote at; the text was parsed, so there is one. */
static const char *string_end(const char *at)
{
    for (at++; *at != '"'; at++)
        if (*at == '\\') at++;
    return at;
}

size_t gr_json_find(const gr_json *j, const char *key)
{
    size_t n = strlen(key);
    int depth = 0;
    for (const char *c = j->text + j->at; c < j->text + j->n; c++) {
        depth += (*c == '{' || *c == '[') - (*c == '}' || *c == ']');
        if (!depth && (*c == '}' || *c == ']')) break; /* the end of the root */
        if (*c != '"') continue;
        const char *end = string_end(c), *next = end + 1 + strspn(end + 1, " \t\r\n");
        if (depth == 1 && (size_t)(end - c) == n + 1 && !memcmp(c + 1, key, n) && *next == ':')
            return (size_t)(c - j->text);
        c = end;
    }
    return j->n;
}

bool gr_json_into(gr_json *j, const char *key)
{
    json_t *inner = json_object_get(j->root, key);
    const size_t quote = gr_json_find(j, key);
    assert(json_is_object(inner));
    if (quote == j->n) return false;
    json_incref(inner);
    json_decref(j->root);
    j->root = inner;
    j->at = quote + strlen(key) + 2;
    j->at += strcspn(j->text + j->at, "{");
    return true;
}

gr_loc gr_json_at(const gr_json *j, const char *key)
{
    size_t offset = gr_json_find(j, key);
    if (offset == j->n) return (gr_loc){j->path, 0, 0};
    gr_loc at = {j->path, 1, 1};
    for (size_t i = 0; i < offset; i++) {
        at.line += j->text[i] == '\n';
        at.col = j->text[i] == '\n' ? 1 : at.col + 1;
    }
    return at;
}

const char *gr_json_kind(const json_t *value)
{
    static const char *const kinds[] = {"an object", "a list", "a string", "a number",
                                        "a number",  "true",   "false",    "null"};
    return value ? kinds[json_typeof(value)] : "nothing";
}

bool gr_json_fits_float(double value)
{
    return fabs(value) <= (double)FLT_MAX;
}

bool gr_json_has_nul(const json_t *value)
{
    const char *key;
    json_t *v, *all = (json_t *)(uintptr_t)value;
    size_t i;
    if (json_is_string(value)) return strlen(json_string_value(value)) != json_string_length(value);
    json_object_foreach(all, key, v) if (gr_json_has_nul(v)) return true;
    json_array_foreach(all, i, v) if (gr_json_has_nul(v)) return true;
    return false;
}

/* Bytes of the character at the beginning of a text that is not empty; *whole: it is one, and not a byte of
 * none. */
static size_t character(const char *text, size_t n, bool *whole)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &c);
    *whole = len > 0;
    return len > 0 ? (size_t)len : 1;
}

json_t *gr_json_string(const char *text, size_t n)
{
    json_t *v = json_stringn(text, n);
    if (v) return v;
    gr_str s = {0};
    for (size_t i = 0, len; i < n; i += len) {
        bool whole;
        len = character(text + i, n - i, &whole);
        gr_str_add(&s, whole ? text + i : "\xEF\xBF\xBD", whole ? len : 3);
    }
    v = json_stringn(s.text, s.len);
    gr_str_release(&s);
    return v;
}

json_t *gr_json_offsets(const char *text, size_t n, const uint32_t *ends, size_t n_ends)
{
    json_t *list = json_array();
    size_t at = 0, characters = 0; /* bytes after the last character counted, which may go beyond its piece */
    for (size_t i = 0; i < n_ends; i++) {
        const size_t from = i ? ends[i - 1] : 0;
        const size_t first = at > from && ends[i] > from ? characters - 1 : characters;
        for (bool whole; at < ends[i]; characters++) at += character(text + at, n - at, &whole);
        json_array_append_new(list, json_pack("[I, I]", (json_int_t)first, (json_int_t)characters));
    }
    return list;
}
