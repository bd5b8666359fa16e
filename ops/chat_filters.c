/* ops/chat_filters.c: the filters, tests and methods that chat templates may use. To add one: a function and
 * its line in the table. */
#include "ops/chat_impl.h"

#include <string.h>

#include <utf8proc.h>

static const value undefined = {.kind = V_UNDEFINED};

const value *gr_chat_arg(const call_args *args, size_t i, const char *name)
{
    for (size_t k = 0; k < args->n; k++)
        if (args->name[k] ? name && !strcmp(args->name[k], name) : k == i) return &args->v[k];
    return NULL;
}

/* An argument that must be a string; false and a failed rendering where it is not. */
static bool want_string(render *r, const node *at, const value *v, text *out)
{
    if (v && v->kind == V_STRING) {
        *out = v->s;
        return true;
    }
    gr_chat_fail(r, at, "expected a string");
    return false;
}

/* ---- text --------------------------------------------------------------------------------------------- */

static size_t count_chars(text t)
{
    size_t n = 0;
    for (size_t i = 0; i < t.n; n++) i += gr_chat_char_len(t.s + i, t.n - i);
    return n;
}

/* Whether the character is one of chars; chars NULL: white space as Python's str.isspace has it. */
static bool strips(text c, const text *chars)
{
    if (chars) {
        for (size_t i = 0, len; i < chars->n; i += len) {
            len = gr_chat_char_len(chars->s + i, chars->n - i);
            if (len == c.n && !memcmp(chars->s + i, c.s, len)) return true;
        }
        return false;
    }
    int32_t u;
    if (utf8proc_iterate((const utf8proc_uint8_t *)c.s, (utf8proc_ssize_t)c.n, &u) <= 0) return false;
    utf8proc_category_t k = utf8proc_category(u);
    return (u >= 9 && u <= 13) || (u >= 0x1c && u <= 0x1f) || u == 0x85 || k == UTF8PROC_CATEGORY_ZS ||
           k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

static value strip(value v, const text *chars, bool left, bool right)
{
    size_t begin = 0, end = v.s.n;
    while (left && begin < end) {
        size_t len = gr_chat_char_len(v.s.s + begin, end - begin);
        if (!strips((text){v.s.s + begin, NULL, len}, chars)) break;
        begin += len;
    }
    while (right && end > begin) {
        size_t len = 1;
        while (len < 4 && end - len > begin && (v.s.s[end - len] & 0xc0) == 0x80) len++;
        if (!strips((text){v.s.s + end - len, NULL, len}, chars)) break;
        end -= len;
    }
    return gr_chat_substring(v, begin, end);
}

static value strip_args(render *r, const node *at, value v, const call_args *args, bool left, bool right)
{
    text chars;
    const value *arg = gr_chat_arg(args, 0, "chars");
    if (!arg || arg->kind == V_NONE) return strip(v, NULL, left, right);
    return want_string(r, at, arg, &chars) ? strip(v, &chars, left, right) : undefined;
}

static value m_strip(render *r, const node *at, value v, const call_args *args)
{
    return strip_args(r, at, v, args, true, true);
}

static value m_lstrip(render *r, const node *at, value v, const call_args *args)
{
    return strip_args(r, at, v, args, true, false);
}

static value m_rstrip(render *r, const node *at, value v, const call_args *args)
{
    return strip_args(r, at, v, args, false, true);
}

/* split(): between runs of white space. */
static value split_blank(render *r, value v)
{
    value out = gr_chat_new_list(r);
    for (v = strip(v, NULL, true, true); v.s.n && r->st == GR_OK;) {
        size_t end = 0;
        while (end < v.s.n) {
            size_t len = gr_chat_char_len(v.s.s + end, v.s.n - end);
            if (strips((text){v.s.s + end, NULL, len}, NULL)) break;
            end += len;
        }
        gr_chat_list_push(r, out.list, gr_chat_substring(v, 0, end));
        v = strip(gr_chat_substring(v, end, v.s.n), NULL, true, false);
    }
    return out;
}

static value m_split(render *r, const node *at, value v, const call_args *args)
{
    const value *sep = gr_chat_arg(args, 0, "sep"), *max = gr_chat_arg(args, 1, "maxsplit");
    text s;
    int64_t left = max && max->kind == V_INT ? max->i : -1;
    if (!sep || (sep->kind == V_NONE && !max)) return split_blank(r, v);
    if (!want_string(r, at, sep, &s)) return undefined;
    if (!s.n) return gr_chat_fail(r, at, "split by an empty string");
    value out = gr_chat_new_list(r);
    size_t begin = 0;
    for (size_t found; left-- != 0 && (found = gr_chat_find(v.s, begin, s)) != SIZE_MAX; begin = found + s.n)
        gr_chat_list_push(r, out.list, gr_chat_substring(v, begin, found));
    gr_chat_list_push(r, out.list, gr_chat_substring(v, begin, v.s.n));
    return out;
}

static value m_startswith(render *r, const node *at, value v, const call_args *args)
{
    text s;
    if (!want_string(r, at, gr_chat_arg(args, 0, NULL), &s)) return undefined;
    return gr_chat_bool(v.s.n >= s.n && !memcmp(v.s.s, s.s, s.n));
}

static value m_endswith(render *r, const node *at, value v, const call_args *args)
{
    text s;
    if (!want_string(r, at, gr_chat_arg(args, 0, NULL), &s)) return undefined;
    return gr_chat_bool(v.s.n >= s.n && !memcmp(v.s.s + v.s.n - s.n, s.s, s.n));
}

static value m_replace(render *r, const node *at, value v, const call_args *args)
{
    text from, to;
    if (!want_string(r, at, gr_chat_arg(args, 0, NULL), &from) ||
        !want_string(r, at, gr_chat_arg(args, 1, NULL), &to))
        return undefined;
    if (!from.n) return gr_chat_fail(r, at, "replace of an empty string is not supported");
    builder b = {0};
    size_t begin = 0;
    for (size_t found; (found = gr_chat_find(v.s, begin, from)) != SIZE_MAX; begin = found + from.n) {
        gr_chat_put(&b, v.s.s + begin, found - begin, v.s.field ? v.s.field + begin : NULL);
        gr_chat_put(&b, to.s, to.n, to.field);
    }
    gr_chat_put(&b, v.s.s + begin, v.s.n - begin, v.s.field ? v.s.field + begin : NULL);
    return gr_chat_take(r, &b);
}

static value map_chars(render *r, value v, utf8proc_int32_t (*fn)(utf8proc_int32_t))
{
    builder b = {0};
    for (size_t i = 0, len; i < v.s.n; i += len) {
        int32_t c;
        utf8proc_uint8_t utf8[4];
        char marks[4];
        utf8proc_ssize_t got =
            utf8proc_iterate((const utf8proc_uint8_t *)v.s.s + i, (utf8proc_ssize_t)(v.s.n - i), &c);
        len = got > 0 ? (size_t)got : 1;
        size_t n = got > 0 ? (size_t)utf8proc_encode_char(fn(c), utf8) : 0;
        memset(marks, v.s.field && v.s.field[i], sizeof(marks));
        gr_chat_put(&b, n ? (char *)utf8 : v.s.s + i, n ? n : 1, marks);
    }
    return gr_chat_take(r, &b);
}

static value m_upper(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return map_chars(r, v, utf8proc_toupper);
}

static value m_lower(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return map_chars(r, v, utf8proc_tolower);
}

/* ---- dicts -------------------------------------------------------------------------------------------- */

static value dict_items(render *r, const dict *d, bool keys, bool values)
{
    value out = gr_chat_new_list(r);
    for (size_t i = 0; i < d->n; i++) {
        value key = {.kind = V_STRING, .s = d->keys[i]}, pair = gr_chat_new_list(r);
        gr_chat_list_push(r, pair.list, key);
        gr_chat_list_push(r, pair.list, d->values[i]);
        gr_chat_list_push(r, out.list, keys && values ? pair : keys ? key : d->values[i]);
    }
    return out;
}

static value m_items(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return dict_items(r, v.dict, true, true);
}

static value m_keys(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return dict_items(r, v.dict, true, false);
}

static value m_values(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return dict_items(r, v.dict, false, true);
}

static value m_get(render *r, const node *at, value v, const call_args *args)
{
    text key;
    const value *otherwise = gr_chat_arg(args, 1, "default");
    if (!want_string(r, at, gr_chat_arg(args, 0, "key"), &key)) return undefined;
    const value *found = gr_chat_dict_get(v.dict, key.s, key.n);
    return found ? *found : otherwise ? *otherwise : (value){.kind = V_NONE};
}

typedef value (*value_fn)(render *r, const node *at, value v, const call_args *args);

value gr_chat_method(render *r, const node *at, value self, const char *name, const call_args *args)
{
    static const struct {
        value_kind of;
        const char *name;
        value_fn fn;
    } methods[] = {
        {V_STRING, "strip", m_strip},
        {V_STRING, "lstrip", m_lstrip},
        {V_STRING, "rstrip", m_rstrip},
        {V_STRING, "split", m_split},
        {V_STRING, "startswith", m_startswith},
        {V_STRING, "endswith", m_endswith},
        {V_STRING, "replace", m_replace},
        {V_STRING, "upper", m_upper},
        {V_STRING, "lower", m_lower},
        {V_DICT, "items", m_items},
        {V_DICT, "keys", m_keys},
        {V_DICT, "values", m_values},
        {V_DICT, "get", m_get},
    };
    for (size_t i = 0; i < GR_LEN(methods); i++)
        if (methods[i].of == self.kind && !strcmp(methods[i].name, name))
            return methods[i].fn(r, at, self, args);
    return gr_chat_fail(r, at, "method '%s' is not supported here", name);
}

/* ---- filters ------------------------------------------------------------------------------------------ */

static value as_string(render *r, value v)
{
    builder b = {0};
    if (v.kind == V_STRING) return v;
    gr_chat_put_value(&b, v);
    return gr_chat_take(r, &b);
}

static value f_string(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return as_string(r, v);
}

static value f_trim(render *r, const node *at, value v, const call_args *args)
{
    return m_strip(r, at, as_string(r, v), args);
}

static value f_replace(render *r, const node *at, value v, const call_args *args)
{
    return m_replace(r, at, as_string(r, v), args);
}

static value f_upper(render *r, const node *at, value v, const call_args *args)
{
    return m_upper(r, at, as_string(r, v), args);
}

static value f_lower(render *r, const node *at, value v, const call_args *args)
{
    return m_lower(r, at, as_string(r, v), args);
}

static value f_length(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    switch (v.kind) {
    case V_STRING:
        return gr_chat_int((int64_t)count_chars(v.s));
    case V_LIST:
        return gr_chat_int((int64_t)v.list->n);
    case V_DICT:
        return gr_chat_int((int64_t)v.dict->n);
    case V_UNDEFINED:
        return gr_chat_int(0);
    default:
        return gr_chat_fail(r, at, "this has no length");
    }
}

static value f_tojson(render *r, const node *at, value v, const call_args *args)
{
    const value *indent = gr_chat_arg(args, 0, "indent");
    builder b = {0};
    bool plain = !indent || indent->kind == V_NONE;
    if (!plain && (indent->kind != V_INT || indent->i < 0 || indent->i > 16))
        return gr_chat_fail(r, at, "'indent' must be a number from 0 to 16");
    if (v.kind == V_UNDEFINED || v.kind == V_MACRO)
        return gr_chat_fail(r, at, "this cannot be written as JSON");
    gr_chat_put_json(&b, v, plain ? -1 : indent->i, 0);
    return gr_chat_take(r, &b);
}

/* What a loop over v walks: a list's items, a dict's keys, a string's characters. */
static value f_list(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    if (v.kind == V_LIST) return v;
    if (v.kind == V_DICT) return dict_items(r, v.dict, true, false);
    value out = gr_chat_new_list(r);
    if (v.kind == V_UNDEFINED) return out;
    if (v.kind != V_STRING) return gr_chat_fail(r, at, "this cannot be walked");
    for (size_t i = 0, len; i < v.s.n; i += len) {
        len = gr_chat_char_len(v.s.s + i, v.s.n - i);
        gr_chat_list_push(r, out.list, gr_chat_substring(v, i, i + len));
    }
    return out;
}

static value f_join(render *r, const node *at, value v, const call_args *args)
{
    const value *sep = gr_chat_arg(args, 0, "d");
    value items = f_list(r, at, v, args);
    builder b = {0};
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        if (i && sep) gr_chat_put_value(&b, *sep);
        gr_chat_put_value(&b, items.list->v[i]);
    }
    return gr_chat_take(r, &b);
}

static value f_first(render *r, const node *at, value v, const call_args *args)
{
    value items = f_list(r, at, v, args);
    return r->st == GR_OK && items.list->n ? items.list->v[0] : undefined;
}

static value f_last(render *r, const node *at, value v, const call_args *args)
{
    value items = f_list(r, at, v, args);
    return r->st == GR_OK && items.list->n ? items.list->v[items.list->n - 1] : undefined;
}

static value f_items(render *r, const node *at, value v, const call_args *args)
{
    if (v.kind == V_UNDEFINED) return gr_chat_new_list(r);
    return v.kind == V_DICT ? m_items(r, at, v, args) : gr_chat_fail(r, at, "'items' needs a mapping");
}

static value f_default(render *r, const node *at, value v, const call_args *args)
{
    (void)r, (void)at;
    const value *otherwise = gr_chat_arg(args, 0, "default_value"),
                *boolean = gr_chat_arg(args, 1, "boolean");
    bool use = v.kind == V_UNDEFINED || (boolean && gr_chat_truth(*boolean) && !gr_chat_truth(v));
    if (!use) return v;
    return otherwise ? *otherwise : (value){.kind = V_STRING, .s = {"", NULL, 0}};
}

static value f_safe(render *r, const node *at, value v, const call_args *args)
{
    (void)r, (void)at, (void)args; /* nothing is escaped, so all is safe */
    return v;
}

/* select("test", args...) and reject: items for which the test says `keep`. */
static value filter_by_test(render *r, const node *at, value v, const call_args *args, bool keep)
{
    value items = f_list(r, at, v, args), out = gr_chat_new_list(r);
    node test = *at;
    text name = {"", NULL, 0};
    call_args rest = {0};
    if (r->st != GR_OK || (args->n && !want_string(r, at, &args->v[0], &name))) return undefined;
    test.text = name.s;
    for (size_t i = 1; i < args->n; i++) rest.v[rest.n++] = args->v[i];
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        bool yes =
            args->n ? gr_chat_test(r, &test, items.list->v[i], &rest) : gr_chat_truth(items.list->v[i]);
        if (yes == keep) gr_chat_list_push(r, out.list, items.list->v[i]);
    }
    return out;
}

static value f_select(render *r, const node *at, value v, const call_args *args)
{
    return filter_by_test(r, at, v, args, true);
}

static value f_reject(render *r, const node *at, value v, const call_args *args)
{
    return filter_by_test(r, at, v, args, false);
}

value gr_chat_filter(render *r, const node *at, value v, const call_args *args)
{
    static const struct {
        const char *name;
        value_fn fn;
    } filters[] = {
        {"count", f_length},    {"d", f_default},     {"default", f_default}, {"first", f_first},
        {"items", f_items},     {"join", f_join},     {"last", f_last},       {"length", f_length},
        {"list", f_list},       {"lower", f_lower},   {"reject", f_reject},   {"safe", f_safe},
        {"replace", f_replace}, {"select", f_select}, {"string", f_string},   {"tojson", f_tojson},
        {"trim", f_trim},       {"upper", f_upper},
    };
    for (size_t i = 0; i < GR_LEN(filters); i++)
        if (!strcmp(filters[i].name, at->text)) return filters[i].fn(r, at, v, args);
    return gr_chat_fail(r, at, "filter '%s' is not supported", at->text);
}

/* ---- tests -------------------------------------------------------------------------------------------- */

/* Tests that only look at the kind, as a set of kinds. */
#define KIND(k) (1u << (k))
static bool test_kind(const char *name, value v, bool *yes)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } tests[] = {
        {"undefined", KIND(V_UNDEFINED)},
        {"defined", ~KIND(V_UNDEFINED)},
        {"none", KIND(V_NONE)},
        {"boolean", KIND(V_BOOL)},
        {"integer", KIND(V_INT)},
        {"float", KIND(V_FLOAT)},
        {"number", KIND(V_INT) | KIND(V_FLOAT) | KIND(V_BOOL)},
        {"string", KIND(V_STRING)},
        {"mapping", KIND(V_DICT)},
        {"sequence", KIND(V_STRING) | KIND(V_LIST) | KIND(V_DICT) | KIND(V_UNDEFINED)},
        {"iterable", KIND(V_STRING) | KIND(V_LIST) | KIND(V_DICT) | KIND(V_UNDEFINED)},
        {"callable", KIND(V_MACRO)},
    };
    for (size_t i = 0; i < GR_LEN(tests); i++)
        if (!strcmp(tests[i].name, name)) {
            *yes = tests[i].kinds & KIND(v.kind);
            return true;
        }
    return false;
}

bool gr_chat_test(render *r, const node *at, value v, const call_args *args)
{
    static const char *const equal[] = {"eq", "equalto", "=="};
    const char *name = at->text;
    const value *other = gr_chat_arg(args, 0, "other");
    bool yes;
    if (test_kind(name, v, &yes)) return yes;
    if (!strcmp(name, "true")) return v.kind == V_BOOL && v.b;
    if (!strcmp(name, "false")) return v.kind == V_BOOL && !v.b;
    for (size_t i = 0; other && i < GR_LEN(equal); i++)
        if (!strcmp(name, equal[i])) return gr_chat_equal(v, *other);
    if (other && !strcmp(name, "in")) return gr_chat_contains(r, at, *other, v);
    gr_chat_fail(r, at, "test '%s' is not supported", name);
    return false;
}
