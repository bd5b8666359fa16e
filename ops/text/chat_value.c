/* ops/text/chat_value.c: the values of chat templates, and their text as Python and JSON write it. */
#include "ops/text/chat_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

/* ---- text --------------------------------------------------------------------------------------------- */

int32_t gr_chat_char_at(text t, size_t i, size_t *len)
{
    int32_t c = -1;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)t.s + i, (utf8proc_ssize_t)(t.n - i), &c);
    *len = n > 0 ? (size_t)n : 1;
    return n > 0 ? c : -1;
}

size_t gr_chat_char_len(const char *s, size_t n)
{
    size_t len;
    (void)gr_chat_char_at((text){.s = s, .n = n}, 0, &len);
    return len;
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
    return gr_arena_alloc(r->arena, n + 1);
}

value gr_chat_string(render *r, const char *s, size_t n, bool field)
{
    value v = {.kind = V_STRING};
    char *copy = room(r, n), *marks = copy && field ? room(r, n) : NULL;
    if (!copy || (field && !marks)) return (value){.kind = V_UNDEFINED};
    memcpy(copy, s, n);
    if (marks) memset(marks, 1, n);
    v.s = (text){.s = copy, .field = marks, .n = n};
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

value gr_chat_new_list(render *r, list_shape shape)
{
    value v = {.kind = V_LIST, .list = gr_arena_alloc(r->arena, sizeof(list))};
    v.list->shape = shape;
    return v;
}

value gr_chat_new_dict(render *r)
{
    return (value){.kind = V_DICT, .dict = gr_arena_alloc(r->arena, sizeof(dict))};
}

value gr_chat_new_pair(render *r, value a, value b)
{
    value v = gr_chat_new_list(r, TUPLE);
    gr_chat_list_push(r, v.list, a);
    gr_chat_list_push(r, v.list, b);
    return v;
}

/* A larger copy: pool memory is never given back, so growth doubles. */
static void *grown(render *r, const void *old, size_t n, size_t cap, size_t bytes)
{
    void *p = gr_arena_alloc(r->arena, cap * bytes);
    if (n) memcpy(p, old, n * bytes);
    return p;
}

/* What a container may hold, see chat_impl.h; keeps its depth. */
static bool may_hold(render *r, unsigned *depth, value v)
{
    unsigned inner = v.kind == V_LIST                            ? v.list->depth
                     : v.kind == V_DICT && !v.dict->is_namespace ? v.dict->depth
                                                                 : 0;
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
    put_entry(r, &f->vars, (text){.s = name, .n = strlen(name)}, v);
}

/* What an iterator has left, which is then taken. */
static value take_rest(render *r, list *from)
{
    value v = gr_chat_new_list(r, LIST);
    *v.list = (list){from->n ? from->v + from->taken : NULL,
                     from->n - from->taken,
                     from->n - from->taken,
                     0,
                     from->depth,
                     LIST};
    from->taken = from->n;
    return v;
}

static value characters(render *r, value v)
{
    value out = gr_chat_new_list(r, LIST);
    for (size_t i = 0, len; i < v.s.n && r->st == GR_OK; i += len) {
        len = gr_chat_char_len(v.s.s + i, v.s.n - i);
        gr_chat_list_push(r, out.list, gr_chat_substring(v, i, i + len));
    }
    return out;
}

static value keys_of(render *r, const dict *d)
{
    value out = gr_chat_new_list(r, LIST);
    for (size_t i = 0; i < d->n; i++)
        gr_chat_list_push(r, out.list, (value){.kind = V_STRING, .s = d->keys[i]});
    return out;
}

value gr_chat_items(render *r, const node *at, value v)
{
    if (v.kind == V_LIST) return v.list->shape == ITERATOR ? take_rest(r, v.list) : v;
    if (v.kind == V_DICT && !v.dict->is_namespace) return keys_of(r, v.dict);
    if (v.kind == V_UNDEFINED) return gr_chat_new_list(r, LIST);
    if (v.kind == V_STRING) return characters(r, v);
    return gr_chat_fail(r, at,
                        v.kind == V_LOOP ? "walking 'loop' is not supported" : "this cannot be walked");
}

static value list_from_json(render *r, const json_t *j)
{
    value v = gr_chat_new_list(r, LIST);
    for (size_t i = 0; i < json_array_size(j); i++)
        gr_chat_list_push(r, v.list, gr_chat_from_json(r, json_array_get(j, i)));
    return v;
}

static value dict_from_json(render *r, const json_t *j)
{
    value v = gr_chat_new_dict(r);
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
        return v.list->n != 0 || v.list->shape == ITERATOR;
    case V_DICT:
        return v.dict->n != 0 || v.dict->is_namespace;
    case V_LOOP:
    case V_MACRO:
    case V_METHOD:
    case V_FUNCTION:
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
    bool same = a->n == b->n && a->shape == b->shape && a->shape <= RANGE;
    for (size_t i = 0; same && i < a->n; i++) same = equal(a->v[i], b->v[i], left);
    return same;
}

/* keys() and items() are sets. */
static bool equal_sets(const list *a, const list *b, size_t *left)
{
    bool same = a->n == b->n && a->shape == b->shape && (a->shape == KEYS || a->shape == ITEMS);
    for (size_t i = 0; same && i < a->n; i++) {
        same = false;
        for (size_t k = 0; !same && k < b->n; k++) same = equal(a->v[i], b->v[k], left);
    }
    return same;
}

static bool equal_dicts(const dict *a, const dict *b, size_t *left)
{
    bool same = a->n == b->n && !a->is_namespace && !b->is_namespace;
    for (size_t i = 0; same && i < a->n; i++) {
        const value *other = gr_chat_dict_get(b, a->keys[i].s, a->keys[i].n);
        same = other && equal(a->values[i], *other, left);
    }
    return same;
}

static bool equal_numbers(value a, value b)
{
    if (a.kind == V_FLOAT || b.kind == V_FLOAT) return number(a) == number(b);
    return (a.kind == V_BOOL ? a.b : a.i) == (b.kind == V_BOOL ? b.b : b.i);
}

static bool equal(value a, value b, size_t *left)
{
    if (!*left) return false;
    --*left;
    if (is_number(a) && is_number(b)) return equal_numbers(a, b);
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case V_STRING:
        return !gr_chat_text_compare(a.s, b.s);
    case V_LIST:
        return a.list == b.list || equal_lists(a.list, b.list, left) || equal_sets(a.list, b.list, left);
    case V_DICT:
        return a.dict == b.dict || equal_dicts(a.dict, b.dict, left);
    case V_LOOP:
        return a.loop == b.loop;
    case V_MACRO:
        return a.macro == b.macro;
    case V_METHOD:
        return a.method == b.method;
    case V_FUNCTION:
        return !gr_chat_text_compare(a.s, b.s);
    default:
        return true;
    }
}

bool gr_chat_equal(value a, value b)
{
    size_t left = 1 << 24;
    return equal(a, b, &left);
}

static bool list_contains(list *in, value what)
{
    bool once = in->shape == ITERATOR, found = false; /* an iterator is taken up to what is found */
    size_t i = once ? in->taken : 0;
    for (; i < in->n && !found; i++) found = gr_chat_equal(in->v[i], what);
    if (once) in->taken = i;
    return found;
}

bool gr_chat_contains(render *r, const node *at, value in, value what)
{
    bool hashed = in.kind == V_DICT && !in.dict->is_namespace;
    if (in.kind == V_UNDEFINED) return false;
    if (in.kind == V_LIST) return list_contains(in.list, what);
    if (in.kind == V_STRING && what.kind == V_STRING) return gr_chat_find(in.s, 0, what.s) != SIZE_MAX;
    if (hashed && what.kind != V_LIST && what.kind != V_DICT)
        return what.kind == V_STRING && gr_chat_dict_get(in.dict, what.s.s, what.s.n);
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

/* Whether Python's repr writes the character as it is. */
static bool is_printable(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    bool separator = k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP;
    return c == ' ' || (!separator && k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_CC);
}

static void put_repr_char(builder *b, const char *s, size_t n, int32_t c, char quote, bool field)
{
    static const char from[] = "\n\t\r\\", to[] = "ntr\\";
    const char *known = c > 0 && c < 0x80 ? strchr(from, c) : NULL, *form = c < 0x100     ? "\\x%02x"
                                                                            : c < 0x10000 ? "\\u%04x"
                                                                                          : "\\U%08x";
    char escaped[16];
    if (known || c == quote)
        put_same(b, (char[]){'\\', known ? to[known - from] : quote}, 2, field);
    else if (c >= 0 && !is_printable(c))
        put_same(b, escaped, (size_t)snprintf(escaped, sizeof(escaped), form, (unsigned)c), field);
    else
        put_same(b, s, n, field);
}

static void put_repr_string(builder *b, text t)
{
    char quote = t.n && memchr(t.s, '\'', t.n) && !memchr(t.s, '"', t.n) ? '"' : '\'';
    gr_chat_put(b, &quote, 1, NULL);
    for (size_t i = 0, len; i < t.n; i += len) {
        int32_t c = gr_chat_char_at(t, i, &len);
        put_repr_char(b, t.s + i, len, c, quote, t.field && t.field[i]);
    }
    gr_chat_put(b, &quote, 1, NULL);
}

static void put_repr(render *r, builder *b, value v)
{
    if (v.kind == V_STRING)
        put_repr_string(b, v.s);
    else if (v.kind == V_UNDEFINED)
        gr_chat_put(b, "Undefined", 9, NULL);
    else
        gr_chat_put_value(r, b, v);
}

static void put_list(render *r, builder *b, const list *l)
{
    static const char *const marks[][2] = {[LIST] = {"[", "]"},
                                           [TUPLE] = {"(", ")"},
                                           [RANGE] = {NULL, NULL},
                                           [KEYS] = {"dict_keys([", "])"},
                                           [VALUES] = {"dict_values([", "])"},
                                           [ITEMS] = {"dict_items([", "])"},
                                           [ITERATOR] = {NULL, NULL}};
    const char *const *mark = marks[l->shape];
    if (!mark[0]) {
        gr_chat_fail(
            r, NULL,
            "the text of a range or of a filter's result is not supported; | list makes a list of it");
        return;
    }
    gr_chat_put(b, mark[0], strlen(mark[0]), NULL);
    for (size_t i = 0; i < l->n && r->st == GR_OK; i++) {
        if (i) gr_chat_put(b, ", ", 2, NULL);
        put_repr(r, b, l->v[i]);
    }
    if (l->shape == TUPLE && l->n == 1) gr_chat_put(b, ",", 1, NULL);
    gr_chat_put(b, mark[1], strlen(mark[1]), NULL);
}

static void put_dict(render *r, builder *b, const dict *d)
{
    if (d->is_namespace) {
        gr_chat_fail(r, NULL, "the text of a namespace is not supported");
        return;
    }
    gr_chat_put(b, "{", 1, NULL);
    for (size_t i = 0; i < d->n && r->st == GR_OK; i++) {
        if (i) gr_chat_put(b, ", ", 2, NULL);
        put_repr_string(b, d->keys[i]);
        gr_chat_put(b, ": ", 2, NULL);
        put_repr(r, b, d->values[i]);
    }
    gr_chat_put(b, "}", 1, NULL);
}

void gr_chat_put_value(render *r, builder *b, value v)
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
        put_list(r, b, v.list);
        break;
    case V_DICT:
        put_dict(r, b, v.dict);
        break;
    case V_UNDEFINED:
        break; /* prints as nothing */
    default:
        gr_chat_fail(r, NULL, "the text of a function, a macro or 'loop' is not supported");
    }
}

/* ---- as Python's json.dumps --------------------------------------------------------------------------- */

/* One character of a string: n bytes at s, code point c, negative where they are none. */
static void put_json_char(builder *b, const char *s, size_t n, int32_t c, bool ascii, bool field)
{
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *known = c > 0 && c < 0x80 ? strchr(from, c) : NULL;
    char escaped[16];
    if (known)
        put_same(b, (char[]){'\\', to[known - from]}, 2, field);
    else if (c >= 0 && c < 0x20)
        put_same(b, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)c), field);
    else if (ascii && c >= 0x10000)
        put_same(b, escaped,
                 (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x\\u%04x", 0xd7c0u + ((unsigned)c >> 10),
                                  0xdc00u + ((unsigned)c & 0x3ff)),
                 field);
    else if (ascii && c >= 0x7f)
        put_same(b, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)c), field);
    else
        put_same(b, s, n, field);
}

static void put_json_string(builder *b, text t, bool ascii)
{
    gr_chat_put(b, "\"", 1, NULL);
    for (size_t i = 0, len; i < t.n; i += len) {
        int32_t c = gr_chat_char_at(t, i, &len);
        put_json_char(b, t.s + i, len, c, ascii, t.field && t.field[i]);
    }
    gr_chat_put(b, "\"", 1, NULL);
}

static void put_text(builder *b, text t)
{
    gr_chat_put(b, t.s, t.n, t.field);
}

/* A line of its own, where the style has lines. */
static void put_break(builder *b, const json_style *style, unsigned level)
{
    if (!style->lines) return;
    gr_chat_put(b, "\n", 1, NULL);
    for (unsigned i = 0; i < level; i++) put_text(b, style->indent);
}

static void put_json_float(builder *b, double f)
{
    if (isfinite(f))
        put_float(b, f);
    else
        put_text(b, isnan(f) ? (text){.s = "NaN", .n = 3}
                    : f > 0  ? (text){.s = "Infinity", .n = 8}
                             : (text){.s = "-Infinity", .n = 9});
}

static void put_json_list(render *r, builder *b, const list *l, const json_style *style, unsigned level)
{
    if (l->shape > TUPLE) {
        gr_chat_fail(r, NULL, "this cannot be written as JSON");
        return;
    }
    gr_chat_put(b, "[", 1, NULL);
    for (size_t i = 0; i < l->n && r->st == GR_OK; i++) {
        if (i) put_text(b, style->comma);
        put_break(b, style, level + 1);
        gr_chat_put_json(r, b, l->v[i], style, level + 1);
    }
    if (l->n) put_break(b, style, level);
    gr_chat_put(b, "]", 1, NULL);
}

static int by_key(const void *a, const void *b, void *user)
{
    const dict *d = user;
    return gr_chat_text_compare(d->keys[*(const size_t *)a], d->keys[*(const size_t *)b]);
}

static void put_json_dict(render *r, builder *b, const dict *d, const json_style *style, unsigned level)
{
    size_t *order = gr_arena_alloc(r->arena, (d->n + 1) * sizeof(*order));
    for (size_t i = 0; i < d->n; i++) order[i] = i;
    if (style->sort_keys) qsort_r(order, d->n, sizeof(*order), by_key, (void *)d);
    if (d->is_namespace) gr_chat_fail(r, NULL, "this cannot be written as JSON");
    gr_chat_put(b, "{", 1, NULL);
    for (size_t i = 0; i < d->n && r->st == GR_OK; i++) {
        if (i) put_text(b, style->comma);
        put_break(b, style, level + 1);
        put_json_string(b, d->keys[order[i]], style->ascii);
        put_text(b, style->colon);
        gr_chat_put_json(r, b, d->values[order[i]], style, level + 1);
    }
    if (d->n) put_break(b, style, level);
    gr_chat_put(b, "}", 1, NULL);
}

void gr_chat_put_json(render *r, builder *b, value v, const json_style *style, unsigned level)
{
    if (b->s.len > CHAT_MAX_BYTES) return;
    switch (v.kind) {
    case V_STRING:
        put_json_string(b, v.s, style->ascii);
        break;
    case V_BOOL:
        gr_chat_put(b, v.b ? "true" : "false", v.b ? 4 : 5, NULL);
        break;
    case V_LIST:
        put_json_list(r, b, v.list, style, level);
        break;
    case V_DICT:
        put_json_dict(r, b, v.dict, style, level);
        break;
    case V_INT:
        gr_chat_put_value(r, b, v);
        break;
    case V_FLOAT:
        put_json_float(b, v.f);
        break;
    case V_NONE:
        gr_chat_put(b, "null", 4, NULL);
        break;
    default:
        gr_chat_fail(r, NULL, "this cannot be written as JSON");
    }
}
