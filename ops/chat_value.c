/* ops/chat_value.c: the values of chat templates, and their text as Python and JSON write it. */
#include "ops/chat_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

/* ---- text --------------------------------------------------------------------------------------------- */

size_t gr_chat_char_len(const char *s, size_t n)
{
    int32_t c;
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &c);
    return len > 0 ? (size_t)len : 1;
}

void gr_chat_put(builder *b, const char *s, size_t n, const char *field)
{
    gr_str_add(&b->s, s, n);
    static const char none[256];
    if (field) gr_str_add(&b->field, field, n);
    for (size_t left = field ? 0 : n, some; left; left -= some) {
        some = GR_MIN(left, sizeof(none));
        gr_str_add(&b->field, none, some);
    }
}

static void put_same(builder *b, const char *s, size_t n, bool field)
{
    for (size_t i = 0; i < n; i++) {
        gr_str_putc(&b->s, s[i]);
        gr_str_putc(&b->field, field);
    }
}

/* Room for n bytes of a value's text; fails the rendering where a template builds text without end. */
static char *room(render *r, size_t n)
{
    r->n_bytes += n;
    if (r->n_bytes > CHAT_MAX_BYTES) {
        gr_chat_fail(r, NULL, "the template builds too much text");
        return NULL;
    }
    return gr_pool_alloc(r->pool, n + 1);
}

value gr_chat_string(render *r, const char *s, size_t n, bool field)
{
    value v = {.kind = V_STRING};
    char *copy = room(r, n), *marks = copy && field ? room(r, n) : NULL;
    if (!copy || (field && !marks)) return (value){.kind = V_UNDEFINED};
    memcpy(copy, s, n);
    if (marks) memset(marks, 1, n);
    v.s = (text){copy, marks, n};
    return v;
}

value gr_chat_take(render *r, builder *b)
{
    value v = gr_chat_string(r, b->s.text ? b->s.text : "", b->s.len,
                             b->s.len && memchr(b->field.text, 1, b->s.len));
    if (v.kind == V_STRING && v.s.field) memcpy((char *)v.s.field, b->field.text, v.s.n);
    gr_str_release(&b->s);
    gr_str_release(&b->field);
    return v;
}

value gr_chat_substring(value v, size_t begin, size_t end)
{
    v.s.s += begin;
    if (v.s.field) v.s.field += begin;
    v.s.n = end - begin;
    return v;
}

int gr_chat_text_compare(text a, text b)
{
    int c = memcmp(a.s, b.s, GR_MIN(a.n, b.n));
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

size_t gr_chat_find(text in, size_t from, text what)
{
    const char *at = what.n ? memmem(in.s + from, in.n - from, what.s, what.n) : in.s + from;
    return at ? (size_t)(at - in.s) : SIZE_MAX;
}

/* ---- lists and dicts ---------------------------------------------------------------------------------- */

value gr_chat_new_list(render *r)
{
    return (value){.kind = V_LIST, .list = gr_pool_alloc(r->pool, sizeof(list))};
}

/* A larger copy: pool memory is never given back, so growth doubles. */
static void *grown(render *r, const void *old, size_t n, size_t cap, size_t bytes)
{
    void *p = gr_pool_alloc(r->pool, cap * bytes);
    if (n) memcpy(p, old, n * bytes);
    return p;
}

/* What a container may hold, see chat_impl.h; keeps its depth. */
static bool may_hold(render *r, unsigned *depth, value v)
{
    unsigned inner = v.kind == V_LIST ? v.list->depth : v.kind == V_DICT ? v.dict->depth : 0;
    if (v.kind == V_DICT && v.dict->is_namespace)
        gr_chat_fail(r, NULL, "a namespace inside another value is not supported");
    if (inner >= CHAT_MAX_DEPTH) gr_chat_fail(r, NULL, "a value is nested too deeply");
    *depth = GR_MAX(*depth, inner + 1);
    return r->st == GR_OK;
}

void gr_chat_list_push(render *r, list *l, value v)
{
    if (!may_hold(r, &l->depth, v) || !gr_chat_spend(r, 1)) return;
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 4;
        l->v = grown(r, l->v, l->n, l->cap, sizeof(*l->v));
    }
    l->v[l->n++] = v;
}

const value *gr_chat_dict_get(const dict *d, const char *key, size_t n)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->keys[i].n == n && !memcmp(d->keys[i].s, key, n)) return &d->values[i];
    return NULL;
}

static void put_entry(render *r, dict *d, text key, value v)
{
    value *old = (value *)gr_chat_dict_get(d, key.s, key.n);
    if (old) {
        *old = v;
        return;
    }
    if (d->n == d->cap) {
        d->cap = d->cap ? 2 * d->cap : 8;
        d->keys = grown(r, d->keys, d->n, d->cap, sizeof(*d->keys));
        d->values = grown(r, d->values, d->n, d->cap, sizeof(*d->values));
    }
    d->keys[d->n] = key;
    d->values[d->n++] = v;
}

void gr_chat_dict_set(render *r, dict *d, text key, value v)
{
    if (may_hold(r, &d->depth, v)) put_entry(r, d, key, v);
}

void gr_chat_bind(render *r, frame *f, const char *name, value v)
{
    put_entry(r, &f->vars, (text){name, NULL, strlen(name)}, v);
}

static value list_from_json(render *r, const json_t *j)
{
    value v = gr_chat_new_list(r);
    for (size_t i = 0; i < json_array_size(j); i++)
        gr_chat_list_push(r, v.list, gr_chat_from_json(r, json_array_get(j, i)));
    return v;
}

static value dict_from_json(render *r, const json_t *j)
{
    value v = {.kind = V_DICT, .dict = gr_pool_alloc(r->pool, sizeof(dict))};
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)j, key, item)
    {
        value k = gr_chat_string(r, key, strlen(key), true);
        if (r->st == GR_OK) gr_chat_dict_set(r, v.dict, k.s, gr_chat_from_json(r, item));
    }
    return v;
}

value gr_chat_from_json(render *r, const json_t *j)
{
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return dict_from_json(r, j);
    case JSON_ARRAY:
        return list_from_json(r, j);
    case JSON_STRING:
        return gr_chat_string(r, json_string_value(j), json_string_length(j), true);
    case JSON_INTEGER:
        return gr_chat_int(json_integer_value(j));
    case JSON_REAL:
        return (value){.kind = V_FLOAT, .f = json_real_value(j)};
    case JSON_TRUE:
    case JSON_FALSE:
        return gr_chat_bool(json_is_true(j));
    default:
        return (value){.kind = V_NONE};
    }
}

/* ---- truth and equality ------------------------------------------------------------------------------- */

bool gr_chat_truth(value v)
{
    switch (v.kind) {
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STRING:
        return v.s.n != 0;
    case V_LIST:
        return v.list->n != 0;
    case V_DICT:
        return v.dict->n != 0;
    case V_MACRO:
        return true;
    default:
        return false;
    }
}

static bool is_number(value v)
{
    return v.kind == V_INT || v.kind == V_FLOAT || v.kind == V_BOOL;
}

static double number(value v)
{
    return v.kind == V_FLOAT ? v.f : v.kind == V_INT ? (double)v.i : v.b;
}

/* Lists that hold lists twice over have endless parts: comparing ends as unequal when `left` runs out. */
static bool equal(value a, value b, size_t *left);

static bool equal_lists(const list *a, const list *b, size_t *left)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) same = equal(a->v[i], b->v[i], left);
    return same;
}

static bool equal_dicts(const dict *a, const dict *b, size_t *left)
{
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        const value *other = gr_chat_dict_get(b, a->keys[i].s, a->keys[i].n);
        same = other && equal(a->values[i], *other, left);
    }
    return same;
}

static bool equal(value a, value b, size_t *left)
{
    if (!*left) return false;
    --*left;
    if (is_number(a) && is_number(b)) return number(a) == number(b);
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case V_STRING:
        return !gr_chat_text_compare(a.s, b.s);
    case V_LIST:
        return a.list == b.list || equal_lists(a.list, b.list, left);
    case V_DICT:
        return a.dict == b.dict || equal_dicts(a.dict, b.dict, left);
    case V_MACRO:
        return a.macro == b.macro;
    default:
        return true;
    }
}

bool gr_chat_equal(value a, value b)
{
    size_t left = 1 << 24;
    return equal(a, b, &left);
}

bool gr_chat_contains(render *r, const node *at, value in, value what)
{
    switch (in.kind) {
    case V_STRING:
        if (what.kind == V_STRING) return gr_chat_find(in.s, 0, what.s) != SIZE_MAX;
        break;
    case V_DICT:
        return what.kind == V_STRING && gr_chat_dict_get(in.dict, what.s.s, what.s.n);
    case V_LIST:
        for (size_t i = 0; i < in.list->n; i++)
            if (gr_chat_equal(in.list->v[i], what)) return true;
        return false;
    case V_UNDEFINED:
        return false;
    default:
        break;
    }
    gr_chat_fail(r, at, "'in' needs a string in a string, or anything in a list or a mapping");
    return false;
}

/* ---- as Python's str() -------------------------------------------------------------------------------- */

/* The shortest digits that read back the same. */
static void put_float(builder *b, double f)
{
    char digits[40];
    if (isnan(f) || isinf(f)) {
        gr_chat_put(b, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf", isinf(f) && f < 0 ? 4 : 3, NULL);
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof(digits), "%.*g", precision, f);
        if (strtod(digits, NULL) == f) break;
    }
    bool small = fabs(f) < 1e16 && (fabs(f) >= 1e-4 || f == 0);
    if (small && strchr(digits, 'e')) snprintf(digits, sizeof(digits), "%.0f", f);
    if (!strpbrk(digits, ".e")) strcat(digits, ".0");
    gr_chat_put(b, digits, strlen(digits), NULL);
}

static void put_repr_string(builder *b, text t)
{
    char quote = memchr(t.s, '\'', t.n) && !memchr(t.s, '"', t.n) ? '"' : '\'';
    gr_chat_put(b, &quote, 1, NULL);
    for (size_t i = 0; i < t.n; i++) {
        bool field = t.field && t.field[i];
        unsigned char c = (unsigned char)t.s[i];
        char escaped[8];
        const char *known = c == '\n'   ? "\\n"
                            : c == '\t' ? "\\t"
                            : c == '\r' ? "\\r"
                            : c == '\\' ? "\\\\"
                                        : NULL;
        if (known)
            snprintf(escaped, sizeof(escaped), "%s", known);
        else if (c < 0x20 || c == 0x7f)
            snprintf(escaped, sizeof(escaped), "\\x%02x", c);
        else
            snprintf(escaped, sizeof(escaped), "%s%c", c == quote ? "\\" : "", c);
        put_same(b, escaped, strlen(escaped), field);
    }
    gr_chat_put(b, &quote, 1, NULL);
}

static void put_repr(builder *b, value v)
{
    if (v.kind == V_STRING)
        put_repr_string(b, v.s);
    else
        gr_chat_put_value(b, v);
}

static void put_list(builder *b, const list *l)
{
    gr_chat_put(b, "[", 1, NULL);
    for (size_t i = 0; i < l->n; i++) {
        if (i) gr_chat_put(b, ", ", 2, NULL);
        put_repr(b, l->v[i]);
    }
    gr_chat_put(b, "]", 1, NULL);
}

static void put_dict(builder *b, const dict *d)
{
    gr_chat_put(b, "{", 1, NULL);
    for (size_t i = 0; i < d->n; i++) {
        if (i) gr_chat_put(b, ", ", 2, NULL);
        put_repr_string(b, d->keys[i]);
        gr_chat_put(b, ": ", 2, NULL);
        put_repr(b, d->values[i]);
    }
    gr_chat_put(b, "}", 1, NULL);
}

void gr_chat_put_value(builder *b, value v)
{
    char digits[32];
    if (b->s.len > CHAT_MAX_BYTES) return; /* the renderer fails for it: few values can have endless text */
    switch (v.kind) {
    case V_NONE:
        gr_chat_put(b, "None", 4, NULL);
        break;
    case V_BOOL:
        gr_chat_put(b, v.b ? "True" : "False", v.b ? 4 : 5, NULL);
        break;
    case V_INT:
        gr_chat_put(b, digits, (size_t)snprintf(digits, sizeof(digits), "%lld", (long long)v.i), NULL);
        break;
    case V_FLOAT:
        put_float(b, v.f);
        break;
    case V_STRING:
        gr_chat_put(b, v.s.s, v.s.n, v.s.field);
        break;
    case V_LIST:
        put_list(b, v.list);
        break;
    case V_DICT:
        put_dict(b, v.dict);
        break;
    default:
        break; /* undefined prints as nothing */
    }
}

/* ---- as Python's json.dumps(ensure_ascii=False) ------------------------------------------------------- */

static void put_json_string(builder *b, text t)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    gr_chat_put(b, "\"", 1, NULL);
    for (size_t i = 0; i < t.n; i++) {
        bool field = t.field && t.field[i];
        unsigned char c = (unsigned char)t.s[i];
        const char *known = c ? strchr(from, c) : NULL;
        char escaped[8] = {'\\', known ? to[known - from] : '\0'};
        if (known)
            put_same(b, escaped, 2, field);
        else if (c < 0x20)
            put_same(b, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", c), field);
        else
            put_same(b, &t.s[i], 1, field);
    }
    gr_chat_put(b, "\"", 1, NULL);
}

/* Before an item or a closing bracket: a line of its own where there is an indent, else ", " between items.
 */
static void put_break(builder *b, bool comma, int64_t indent, int64_t level)
{
    if (comma) gr_chat_put(b, ", ", indent < 0 ? 2 : 1, NULL);
    if (indent < 0) return;
    gr_chat_put(b, "\n", 1, NULL);
    for (int64_t i = 0; i < indent * level; i++) gr_chat_put(b, " ", 1, NULL);
}

void gr_chat_put_json(builder *b, value v, int64_t indent, int64_t level)
{
    size_t n = v.kind == V_LIST ? v.list->n : v.kind == V_DICT ? v.dict->n : 0;
    if (b->s.len > CHAT_MAX_BYTES) return;
    switch (v.kind) {
    case V_STRING:
        put_json_string(b, v.s);
        return;
    case V_BOOL:
        gr_chat_put(b, v.b ? "true" : "false", v.b ? 4 : 5, NULL);
        return;
    case V_LIST:
        gr_chat_put(b, "[", 1, NULL);
        break;
    case V_DICT:
        gr_chat_put(b, "{", 1, NULL);
        break;
    case V_INT:
    case V_FLOAT:
        gr_chat_put_value(b, v);
        return;
    default:
        gr_chat_put(b, "null", 4, NULL);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        put_break(b, i > 0, indent, level + 1);
        if (v.kind == V_DICT) {
            put_json_string(b, v.dict->keys[i]);
            gr_chat_put(b, ": ", 2, NULL);
        }
        gr_chat_put_json(b, v.kind == V_DICT ? v.dict->values[i] : v.list->v[i], indent, level + 1);
    }
    if (n) put_break(b, false, indent, level);
    gr_chat_put(b, v.kind == V_DICT ? "}" : "]", 1, NULL);
}
