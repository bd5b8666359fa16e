/* ops/text/chat_text.c: the functions of texts that chat templates have both as methods and as filters, with
 * the results of Python's str. */
#include "ops/text/chat_impl.h"

#include <string.h>

#include <utf8proc.h>

static const value undefined = {.kind = V_UNDEFINED};

size_t gr_chat_count_chars(text t)
{
    size_t n = 0;
    for (size_t i = 0; i < t.n; n++) i += gr_chat_char_len(t.s + i, t.n - i);
    return n;
}

/* ---- white space -------------------------------------------------------------------------------------- */

bool gr_chat_is_blank(text c)
{
    size_t len;
    int32_t u = gr_chat_char_at(c, 0, &len);
    if (u < 0) return false;
    utf8proc_category_t k = utf8proc_category(u);
    return (u >= 9 && u <= 13) || (u >= 0x1c && u <= 0x1f) || u == 0x85 || k == UTF8PROC_CATEGORY_ZS ||
           k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

/* Whether the character is one of chars; chars NULL: white space. */
static bool strips(text c, const text *chars)
{
    if (!chars) return gr_chat_is_blank(c);
    for (size_t i = 0, len; i < chars->n; i += len) {
        len = gr_chat_char_len(chars->s + i, chars->n - i);
        if (len == c.n && !memcmp(chars->s + i, c.s, len)) return true;
    }
    return false;
}

/* Bytes of the character that ends at `end`, not before `begin`. */
static size_t last_char(const char *s, size_t begin, size_t end)
{
    size_t len = 1;
    while (len < 4 && end - len > begin && (s[end - len] & 0xc0) == 0x80) len++;
    return len;
}

static value strip(value v, const text *chars, bool left, bool right)
{
    size_t begin = 0, end = v.s.n;
    while (left && begin < end) {
        size_t len = gr_chat_char_len(v.s.s + begin, end - begin);
        if (!strips((text){.s = v.s.s + begin, .n = len}, chars)) break;
        begin += len;
    }
    while (right && end > begin) {
        size_t len = last_char(v.s.s, begin, end);
        if (!strips((text){.s = v.s.s + end - len, .n = len}, chars)) break;
        end -= len;
    }
    return gr_chat_substring(v, begin, end);
}

static value strip_args(render *r, const node *at, value v, const call_args *args, bool left, bool right)
{
    text chars;
    const value *arg = gr_chat_arg(args, 0, "chars");
    if (!arg || arg->kind == V_NONE) return strip(v, NULL, left, right);
    return gr_chat_want_string(r, at, arg, &chars) ? strip(v, &chars, left, right) : undefined;
}

value gr_chat_strip(render *r, const node *at, value v, const call_args *args)
{
    return strip_args(r, at, v, args, true, true);
}

value gr_chat_lstrip(render *r, const node *at, value v, const call_args *args)
{
    return strip_args(r, at, v, args, true, false);
}

value gr_chat_rstrip(render *r, const node *at, value v, const call_args *args)
{
    return strip_args(r, at, v, args, false, true);
}

/* ---- splitting ---------------------------------------------------------------------------------------- */

/* Between runs of white space, `left` times at most. */
static value split_blank(render *r, value v, int64_t left)
{
    value out = gr_chat_new_list(r, LIST);
    for (v = strip(v, NULL, true, false); v.s.n && r->st == GR_OK;) {
        size_t end = 0, len;
        for (; end < v.s.n; end += len) {
            len = gr_chat_char_len(v.s.s + end, v.s.n - end);
            if (left != 0 && gr_chat_is_blank((text){.s = v.s.s + end, .n = len})) break;
        }
        left--;
        value part = gr_chat_substring(v, 0, end);
        v = strip(gr_chat_substring(v, end, v.s.n), NULL, true, false);
        gr_chat_list_push(r, out.list, part);
    }
    return out;
}

/* The separator and how often to split; false: failed. sep: NULL text where it is white space. */
static bool split_args(render *r, const node *at, const call_args *args, text *sep, int64_t *left)
{
    const value *s = gr_chat_arg(args, 0, "sep");
    *sep = (text){0};
    if (!gr_chat_want_int(r, at, gr_chat_arg(args, 1, "maxsplit"), -1, left)) return false;
    if (!s || s->kind == V_NONE) return true;
    if (!gr_chat_want_string(r, at, s, sep)) return false;
    if (!sep->n) gr_chat_fail(r, at, "split by an empty string");
    return sep->n;
}

value gr_chat_split(render *r, const node *at, value v, const call_args *args)
{
    text sep;
    int64_t left;
    if (!split_args(r, at, args, &sep, &left)) return undefined;
    if (!sep.n) return split_blank(r, v, left);
    value out = gr_chat_new_list(r, LIST);
    size_t begin = 0;
    for (size_t found; left-- != 0 && (found = gr_chat_find(v.s, begin, sep)) != SIZE_MAX;
         begin = found + sep.n)
        gr_chat_list_push(r, out.list, gr_chat_substring(v, begin, found));
    gr_chat_list_push(r, out.list, gr_chat_substring(v, begin, v.s.n));
    return out;
}

/* The last place of what in v before `end`, or SIZE_MAX. */
static size_t find_last(text in, size_t end, text what)
{
    for (size_t i = end >= what.n ? end - what.n + 1 : 0; i-- > 0;)
        if (!memcmp(in.s + i, what.s, what.n)) return i;
    return SIZE_MAX;
}

value gr_chat_rsplit(render *r, const node *at, value v, const call_args *args)
{
    text sep;
    int64_t left;
    value parts = gr_chat_new_list(r, LIST), out = gr_chat_new_list(r, LIST);
    if (!split_args(r, at, args, &sep, &left)) return undefined;
    if (!sep.n && left < 0) return split_blank(r, v, left);
    if (!sep.n) return gr_chat_fail(r, at, "rsplit by white space with 'maxsplit' is not supported");
    size_t end = v.s.n;
    for (size_t found; left-- != 0 && (found = find_last(v.s, end, sep)) != SIZE_MAX; end = found)
        gr_chat_list_push(r, parts.list, gr_chat_substring(v, found + sep.n, end));
    gr_chat_list_push(r, parts.list, gr_chat_substring(v, 0, end));
    for (size_t i = parts.list->n; i-- > 0;) gr_chat_list_push(r, out.list, parts.list->v[i]);
    return out;
}

/* Whether a line of str.splitlines ends at byte i; *len: of what ends it. */
static bool line_ends(text t, size_t i, size_t *len)
{
    int32_t c = gr_chat_char_at(t, i, len);
    if (c == '\r' && i + 1 < t.n && t.s[i + 1] == '\n') *len = 2;
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

value gr_chat_splitlines(render *r, const node *at, value v, const call_args *args)
{
    (void)at;
    const value *keep = gr_chat_arg(args, 0, "keepends");
    value out = gr_chat_new_list(r, LIST);
    size_t begin = 0;
    for (size_t i = 0, len; i < v.s.n; i += len) {
        if (!line_ends(v.s, i, &len)) continue;
        gr_chat_list_push(r, out.list,
                          gr_chat_substring(v, begin, keep && gr_chat_truth(*keep) ? i + len : i));
        begin = i + len;
    }
    if (begin < v.s.n) gr_chat_list_push(r, out.list, gr_chat_substring(v, begin, v.s.n));
    return out;
}

value gr_chat_replace(render *r, const node *at, value v, const call_args *args)
{
    text from, to;
    int64_t left;
    const value *count = gr_chat_arg(args, 2, "count");
    if (!gr_chat_want_string(r, at, gr_chat_arg(args, 0, "old"), &from) ||
        !gr_chat_want_string(r, at, gr_chat_arg(args, 1, "new"), &to) ||
        !gr_chat_want_int(r, at, count && count->kind == V_NONE ? NULL : count, -1, &left))
        return undefined;
    if (!from.n) return gr_chat_fail(r, at, "replace of an empty string is not supported");
    builder b = {0};
    size_t begin = 0;
    for (size_t found; left-- != 0 && (found = gr_chat_find(v.s, begin, from)) != SIZE_MAX;
         begin = found + from.n) {
        gr_chat_put(&b, v.s.s + begin, found - begin, v.s.field ? v.s.field + begin : NULL);
        gr_chat_put(&b, to.s, to.n, to.field);
        if (b.s.len > CHAT_MAX_BYTES) break; /* gr_chat_take fails for it */
    }
    gr_chat_put(&b, v.s.s + begin, v.s.n - begin, v.s.field ? v.s.field + begin : NULL);
    return gr_chat_take(r, &b);
}

/* ---- case --------------------------------------------------------------------------------------------- */

typedef enum letter_case { UPPER, LOWER, TITLE } letter_case;

/* Whether Python gives more than one character for c, or looks at its neighbours: utf8proc's tables have one
 * for one. */
static bool is_odd(int32_t c, letter_case to)
{
    utf8proc_int32_t folded[8];
    int boundary = 0;
    if (to == LOWER) return c == 0x130 || c == 0x3a3;
    return c >= 0x80 && utf8proc_decompose_char(c, folded, GR_LEN(folded), UTF8PROC_CASEFOLD, &boundary) > 1;
}

static void put_case(render *r, const node *at, builder *b, text t, size_t i, letter_case to)
{
    static utf8proc_int32_t (*const fn[])(utf8proc_int32_t) = {utf8proc_toupper, utf8proc_tolower,
                                                               utf8proc_totitle};
    size_t len;
    utf8proc_uint8_t utf8[4];
    char marks[4];
    int32_t c = gr_chat_char_at(t, i, &len);
    if (c >= 0 && is_odd(c, to))
        gr_chat_fail(r, at, "the other case of '%.*s' is not supported", (int)len, t.s + i);
    size_t n = c >= 0 ? (size_t)utf8proc_encode_char(fn[to](c), utf8) : 0;
    memset(marks, t.field && t.field[i], sizeof(marks));
    gr_chat_put(b, n ? (char *)utf8 : t.s + i, n ? n : 1, marks);
}

static bool is_cased(text t, size_t i)
{
    size_t len;
    int32_t c = gr_chat_char_at(t, i, &len);
    return c >= 0 &&
           (utf8proc_islower(c) || utf8proc_isupper(c) || utf8proc_category(c) == UTF8PROC_CATEGORY_LT);
}

static bool begins_word(text t, size_t i)
{
    return i == 0 || strchr("-({[<", t.s[i - 1]) ||
           gr_chat_is_blank((text){.s = t.s + i - last_char(t.s, 0, i), .n = last_char(t.s, 0, i)});
}

/* What each character becomes: `first` where it begins the text or a word, LOWER elsewhere. */
typedef enum words { NO_WORDS, WHOLE_TEXT, CASED_RUNS, JINJA_WORDS } words;

static value map_case(render *r, const node *at, value v, letter_case first, words by)
{
    builder b = {0};
    bool in_run = false, safe = v.s.safe;
    for (size_t i = 0; i < v.s.n; i += gr_chat_char_len(v.s.s + i, v.s.n - i)) {
        bool begins = by == NO_WORDS || (by == WHOLE_TEXT && i == 0) || (by == CASED_RUNS && !in_run) ||
                      (by == JINJA_WORDS && begins_word(v.s, i));
        put_case(r, at, &b, v.s, i, begins ? first : LOWER);
        in_run = is_cased(v.s, i);
    }
    value out = gr_chat_take(r, &b);
    if (out.kind == V_STRING) out.s.safe = safe;
    return out;
}

value gr_chat_upper(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    return map_case(r, at, v, UPPER, NO_WORDS);
}

value gr_chat_lower(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    return map_case(r, at, v, LOWER, NO_WORDS);
}

value gr_chat_capitalize(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    return map_case(r, at, v, TITLE, WHOLE_TEXT);
}

value gr_chat_title_method(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    return map_case(r, at, v, TITLE, CASED_RUNS);
}

value gr_chat_title_filter(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    return map_case(r, at, v, UPPER, JINJA_WORDS);
}
