/* ops/text/chat_filters.c: the filters and tests that chat templates may use. To add one: a function and its
 * line in the table. */
#include "ops/text/chat_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const value undefined = {.kind = V_UNDEFINED};

/* ---- arguments ---------------------------------------------------------------------------------------- */

const value *gr_chat_arg(const call_args *args, size_t i, const char *name)
{
    for (size_t k = 0; k < args->n; k++)
        if (args->name[k] ? name && !strcmp(args->name[k], name) : k == i) return &args->v[k];
    return NULL;
}

/* The index of a parameter, -1: there is none of that name. */
static int param_index(const char *params, const char *name)
{
    int i = 0;
    size_t n = strlen(name);
    for (const char *p = params; *p; i++) {
        size_t len = strcspn(p, " ");
        if (len == n && strcmp(name, "_") && !memcmp(p, name, n)) return i;
        p += len + (p[len] == ' ');
    }
    return -1;
}

static size_t count_params(const char *params)
{
    size_t n = *params != '\0';
    for (; *params; params++) n += *params == ' ';
    return n;
}

bool gr_chat_check_args(render *r, const node *at, const char *what, const char *params,
                        const call_args *args)
{
    size_t n = 0;
    for (size_t i = 0; i < args->n; i++) n += !args->name[i];
    if (n > count_params(params)) gr_chat_fail(r, at, "'%s' takes no %zu arguments", what, n);
    for (size_t i = 0; i < args->n && r->st == GR_OK; i++) {
        int k = args->name[i] ? param_index(params, args->name[i]) : 0;
        if (args->name[i] && (k < 0 || (size_t)k < n))
            gr_chat_fail(r, at,
                         k < 0 ? "argument '%s' of '%s' is not supported"
                               : "argument '%s' of '%s' is given twice",
                         args->name[i], what);
    }
    return r->st == GR_OK;
}

bool gr_chat_want_string(render *r, const node *at, const value *v, text *out)
{
    if (v && v->kind == V_STRING) {
        *out = v->s;
        return true;
    }
    gr_chat_fail(r, at, "expected a string");
    return false;
}

bool gr_chat_want_int(render *r, const node *at, const value *v, int64_t otherwise, int64_t *out)
{
    *out = !v ? otherwise : v->kind == V_BOOL ? v->b : v->i;
    if (v && v->kind != V_INT && v->kind != V_BOOL) gr_chat_fail(r, at, "expected a whole number");
    return r->st == GR_OK;
}

static bool want_flag(const call_args *args, size_t i, const char *name)
{
    const value *v = gr_chat_arg(args, i, name);
    return v && gr_chat_truth(*v);
}

/* ---- one value ---------------------------------------------------------------------------------------- */

static value as_string(render *r, value v)
{
    builder b = {0};
    if (v.kind == V_STRING) return v;
    gr_chat_put_value(r, &b, v);
    return gr_chat_take(r, &b);
}

static value f_string(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return as_string(r, v);
}

/* The filters that are a function of the value's text. */
#define TEXT_FILTER(name, fn)                                                    \
    static value name(render *r, const node *at, value v, const call_args *args) \
    {                                                                            \
        value s = as_string(r, v);                                               \
        return r->st == GR_OK ? fn(r, at, s, args) : undefined;                  \
    }
TEXT_FILTER(f_trim, gr_chat_strip)
TEXT_FILTER(f_upper, gr_chat_upper)
TEXT_FILTER(f_lower, gr_chat_lower)
TEXT_FILTER(f_capitalize, gr_chat_capitalize)
TEXT_FILTER(f_title, gr_chat_title_filter)

static value f_replace(render *r, const node *at, value v, const call_args *args)
{
    call_args texts = {0};
    for (size_t i = 0; i < args->n; i++) /* what is replaced and by what may be any value: its text counts */
        gr_chat_add_arg(r, &texts, args->name[i],
                        i < 2 && args->v[i].kind != V_NONE ? as_string(r, args->v[i]) : args->v[i]);
    value s = as_string(r, v);
    s.s.safe = false;
    return r->st == GR_OK ? gr_chat_replace(r, at, s, &texts) : undefined;
}

static value f_length(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    switch (v.kind) {
    case V_STRING:
        return gr_chat_int((int64_t)gr_chat_count_chars(v.s));
    case V_LIST:
        if (v.list->shape == ITERATOR) break;
        return gr_chat_int((int64_t)v.list->n);
    case V_DICT:
        if (v.dict->is_namespace) break;
        return gr_chat_int((int64_t)v.dict->n);
    case V_LOOP:
        return gr_chat_int((int64_t)v.loop->items->n);
    case V_UNDEFINED:
        return gr_chat_int(0);
    default:
        break;
    }
    return gr_chat_fail(r, at, "this has no length");
}

static value f_default(render *r, const node *at, value v, const call_args *args)
{
    (void)r, (void)at;
    const value *otherwise = gr_chat_arg(args, 0, "default_value");
    bool use = v.kind == V_UNDEFINED || (want_flag(args, 1, "boolean") && !gr_chat_truth(v));
    if (!use) return v;
    return otherwise ? *otherwise : (value){.kind = V_STRING, .s = {.s = ""}};
}

static value f_safe(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    value s = as_string(r, v);
    if (s.kind == V_STRING) s.s.safe = true;
    return s;
}

static value f_abs(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    if (v.kind == V_BOOL) return gr_chat_int(v.b);
    if (v.kind == V_INT && v.i != INT64_MIN) return gr_chat_int(v.i < 0 ? -v.i : v.i);
    if (v.kind == V_FLOAT) return (value){.kind = V_FLOAT, .f = fabs(v.f)};
    return gr_chat_fail(r, at, "'abs' needs a number");
}

/* The number that a text of digits, with a sign, is; false: other texts, of which Python may read more. */
static bool plain_int(text t, int64_t *out)
{
    size_t i = t.n && (t.s[0] == '-' || t.s[0] == '+'), first = i;
    for (; i < t.n && t.s[i] >= '0' && t.s[i] <= '9'; i++) {
    }
    if (i == first || i < t.n || i - first > 18) return false;
    *out = strtoll(t.s, NULL, 10);
    return true;
}

static value f_int(render *r, const node *at, value v, const call_args *args)
{
    const value *otherwise = gr_chat_arg(args, 0, "default");
    int64_t i;
    if (v.kind == V_INT) return v;
    if (v.kind == V_BOOL) return gr_chat_int(v.b);
    if (v.kind == V_FLOAT && fabs(v.f) < 9e18) return gr_chat_int((int64_t)v.f);
    if (v.kind == V_STRING) {
        char *s = gr_arena_strndup(r->arena, v.s.s, v.s.n);
        if (plain_int((text){.s = s, .n = v.s.n}, &i)) return gr_chat_int(i);
        for (size_t k = 0; k < v.s.n; k++)
            if (v.s.s[k] >= '0' && v.s.s[k] <= '9')
                return gr_chat_fail(r, at, "'int' of '%.*s' is not supported", (int)GR_MIN(v.s.n, 40), v.s.s);
        if (v.s.n && (v.s.s[0] & 0x80 || strpbrk(s, "iInN")))
            return gr_chat_fail(r, at, "'int' of '%.*s' is not supported", (int)GR_MIN(v.s.n, 40), v.s.s);
    }
    return otherwise ? *otherwise : gr_chat_int(0);
}

static value f_indent(render *r, const node *at, value v, const call_args *args)
{
    const value *width = gr_chat_arg(args, 0, "width");
    bool first = want_flag(args, 1, "first"), blank = want_flag(args, 2, "blank");
    builder b = {0}, space = {0};
    int64_t n;
    if (width && width->kind == V_STRING)
        gr_chat_put_value(r, &space, *width);
    else if (gr_chat_want_int(r, at, width, 4, &n))
        for (int64_t i = 0; i < GR_MIN(n, (int64_t)1 << 16); i++) gr_chat_put(&space, " ", 1, NULL);
    value tab = gr_chat_take(r, &space), s = v;
    if (v.kind != V_STRING) return gr_chat_fail(r, at, "'indent' needs a string");
    gr_chat_put_value(r, &b, s);
    gr_chat_put(&b, "\n", 1, NULL); /* so that the last line counts, also an empty one */
    s = gr_chat_take(r, &b);
    value lines = r->st == GR_OK ? gr_chat_splitlines(r, at, s, &(call_args){0}) : undefined;
    for (size_t i = 0; r->st == GR_OK && i < lines.list->n; i++) {
        if (i) gr_chat_put(&b, "\n", 1, NULL);
        if (i ? blank || lines.list->v[i].s.n : first) gr_chat_put_value(r, &b, tab);
        gr_chat_put_value(r, &b, lines.list->v[i]);
    }
    return gr_chat_take(r, &b);
}

/* ---- tojson ------------------------------------------------------------------------------------------- */

static bool separators(render *r, const node *at, const call_args *args, json_style *style)
{
    const value *v = gr_chat_arg(args, 2, "separators");
    if (!v || v->kind == V_NONE) return true;
    if (v->kind == V_LIST && v->list->n == 2 && v->list->shape <= TUPLE)
        return gr_chat_want_string(r, at, &v->list->v[0], &style->comma) &&
               gr_chat_want_string(r, at, &v->list->v[1], &style->colon);
    gr_chat_fail(r, at, "'separators' must be two strings");
    return false;
}

static bool indentation(render *r, const node *at, const call_args *args, json_style *style)
{
    static const char spaces[] = "                                                                ";
    const value *v = gr_chat_arg(args, 1, "indent");
    int64_t n;
    if (!v || v->kind == V_NONE) return true;
    style->lines = true;
    style->comma = (text){.s = ",", .n = 1};
    if (v->kind == V_STRING) return gr_chat_want_string(r, at, v, &style->indent);
    if (!gr_chat_want_int(r, at, v, 0, &n)) return false;
    if (n >= (int64_t)sizeof(spaces)) gr_chat_fail(r, at, "an 'indent' of more than 64 is not supported");
    style->indent = (text){.s = spaces, .n = n > 0 ? (size_t)n : 0};
    return r->st == GR_OK;
}

static value f_tojson(render *r, const node *at, value v, const call_args *args)
{
    json_style style = {.ascii = want_flag(args, 0, "ensure_ascii"),
                        .sort_keys = want_flag(args, 3, "sort_keys"),
                        .comma = {.s = ", ", .n = 2},
                        .colon = {.s = ": ", .n = 2}};
    builder b = {0};
    if (!indentation(r, at, args, &style) || !separators(r, at, args, &style)) return undefined;
    gr_chat_put_json(r, &b, v, &style, 0);
    return gr_chat_take(r, &b);
}

/* ---- lists -------------------------------------------------------------------------------------------- */

/* "a.b.0" of v; otherwise, where that is not NULL, stands for each part that is not there */
static value path_of(render *r, const node *at, value v, value path, const value *otherwise)
{
    int64_t index;
    if (path.kind != V_STRING) return gr_chat_item(r, at, v, path);
    for (size_t begin = 0, end; begin <= path.s.n && r->st == GR_OK; begin = end + 1) {
        const char *dot = memchr(path.s.s + begin, '.', path.s.n - begin);
        end = dot ? (size_t)(dot - path.s.s) : path.s.n;
        value part = gr_chat_substring(path, begin, end);
        bool digits =
            plain_int((text){.s = gr_arena_strndup(r->arena, part.s.s, part.s.n), .n = part.s.n}, &index) &&
            part.s.s[0] != '-' && part.s.s[0] != '+';
        v = gr_chat_item(r, at, v, digits ? gr_chat_int(index) : part);
        if (v.kind == V_UNDEFINED && otherwise && otherwise->kind != V_NONE) v = *otherwise;
    }
    return v;
}

static value f_list(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    value items = gr_chat_items(r, at, v), out = gr_chat_new_list(r, LIST);
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++)
        gr_chat_list_push(r, out.list, items.list->v[i]);
    return out;
}

static value f_join(render *r, const node *at, value v, const call_args *args)
{
    const value *sep = gr_chat_arg(args, 0, "d"), *attribute = gr_chat_arg(args, 1, "attribute");
    value items = gr_chat_items(r, at, v);
    builder b = {0};
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        if (i && sep) gr_chat_put_value(r, &b, *sep);
        value item = items.list->v[i];
        gr_chat_put_value(
            r, &b, attribute && attribute->kind != V_NONE ? path_of(r, at, item, *attribute, NULL) : item);
    }
    return gr_chat_take(r, &b);
}

static value f_first(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    bool once = v.kind == V_LIST && v.list->shape == ITERATOR;
    if (once) return v.list->taken < v.list->n ? v.list->v[v.list->taken++] : undefined;
    value items = gr_chat_items(r, at, v);
    return r->st == GR_OK && items.list->n ? items.list->v[0] : undefined;
}

static value f_last(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    if (v.kind == V_LIST && v.list->shape == ITERATOR) return gr_chat_fail(r, at, "this has no last item");
    value items = gr_chat_items(r, at, v);
    return r->st == GR_OK && items.list->n ? items.list->v[items.list->n - 1] : undefined;
}

static value f_reverse(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    if (v.kind == V_LIST && v.list->shape == ITERATOR) return gr_chat_fail(r, at, "this has no reverse");
    value items = gr_chat_items(r, at, v), out = gr_chat_new_list(r, ITERATOR);
    builder b = {0};
    for (size_t i = r->st == GR_OK ? items.list->n : 0; i-- > 0;) {
        if (v.kind == V_STRING)
            gr_chat_put_value(r, &b, items.list->v[i]);
        else
            gr_chat_list_push(r, out.list, items.list->v[i]);
    }
    return v.kind == V_STRING ? gr_chat_take(r, &b) : out;
}

static value f_items(render *r, const node *at, value v, const call_args *args)
{
    (void)args;
    value out = gr_chat_new_list(r, ITERATOR);
    if (v.kind == V_UNDEFINED) return out;
    if (v.kind != V_DICT || v.dict->is_namespace) return gr_chat_fail(r, at, "'items' needs a mapping");
    for (size_t i = 0; i < v.dict->n && r->st == GR_OK; i++)
        gr_chat_list_push(
            r, out.list,
            gr_chat_new_pair(r, (value){.kind = V_STRING, .s = v.dict->keys[i]}, v.dict->values[i]));
    return out;
}

/* What a sort looks at: texts without regard to case, unless that is asked for. */
static value sort_key(render *r, const node *at, value v, bool case_sensitive)
{
    return v.kind == V_STRING && !case_sensitive ? gr_chat_lower(r, at, v, NULL) : v;
}

/* Sorts items by their keys, equal ones as they were. */
static void sort_by(render *r, const node *at, list *items, value *keys, bool reverse)
{
    for (size_t i = 1; i < items->n; i++) {
        value item = items->v[i], key = keys[i];
        size_t k = i;
        for (; k > 0 && gr_chat_spend(r, 1); k--) {
            int order = gr_chat_order(r, at, keys[k - 1], key);
            if (r->st != GR_OK || (reverse ? order >= 0 : order <= 0)) break;
            items->v[k] = items->v[k - 1];
            keys[k] = keys[k - 1];
        }
        items->v[k] = item;
        keys[k] = key;
    }
}

static value f_sort(render *r, const node *at, value v, const call_args *args)
{
    const value *attribute = gr_chat_arg(args, 2, "attribute");
    bool case_sensitive = want_flag(args, 1, "case_sensitive");
    value out = f_list(r, at, v, args);
    if (attribute && attribute->kind == V_STRING && memchr(attribute->s.s, ',', attribute->s.n))
        return gr_chat_fail(r, at, "'sort' by several attributes is not supported");
    if (r->st != GR_OK) return undefined;
    value *keys = gr_arena_alloc(r->arena, (out.list->n + 1) * sizeof(*keys));
    for (size_t i = 0; i < out.list->n && r->st == GR_OK; i++) {
        value item = out.list->v[i];
        bool part = attribute && attribute->kind != V_NONE;
        keys[i] = sort_key(r, at, part ? path_of(r, at, item, *attribute, NULL) : item, case_sensitive);
    }
    if (r->st == GR_OK) sort_by(r, at, out.list, keys, want_flag(args, 0, "reverse"));
    return out;
}

static value f_dictsort(render *r, const node *at, value v, const call_args *args)
{
    const value *by = gr_chat_arg(args, 1, "by");
    text what = {.s = "key", .n = 3};
    if (by && !gr_chat_want_string(r, at, by, &what)) return undefined;
    bool by_value = what.n == 5 && !memcmp(what.s, "value", 5);
    if (!by_value && (what.n != 3 || memcmp(what.s, "key", 3)))
        return gr_chat_fail(r, at, "'dictsort' goes by \"key\" or \"value\"");
    if (v.kind != V_DICT) return gr_chat_fail(r, at, "'dictsort' needs a mapping");
    value pairs = f_items(r, at, v, args), out = f_list(r, at, pairs, args);
    if (r->st != GR_OK) return undefined;
    value *keys = gr_arena_alloc(r->arena, (out.list->n + 1) * sizeof(*keys));
    for (size_t i = 0; i < out.list->n && r->st == GR_OK; i++)
        keys[i] = sort_key(r, at, out.list->v[i].list->v[by_value], want_flag(args, 0, "case_sensitive"));
    if (r->st == GR_OK) sort_by(r, at, out.list, keys, want_flag(args, 2, "reverse"));
    return out;
}

static value f_unique(render *r, const node *at, value v, const call_args *args)
{
    const value *attribute = gr_chat_arg(args, 1, "attribute");
    value items = gr_chat_items(r, at, v), seen = gr_chat_new_list(r, LIST),
          out = gr_chat_new_list(r, ITERATOR);
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        value key = items.list->v[i];
        if (attribute && attribute->kind != V_NONE) key = path_of(r, at, key, *attribute, NULL);
        key = sort_key(r, at, key, want_flag(args, 0, "case_sensitive"));
        if (key.kind == V_LIST || key.kind == V_DICT)
            return gr_chat_fail(r, at, "'unique' of these is not supported");
        if (!gr_chat_spend(r, seen.list->n) || gr_chat_contains(r, at, seen, key)) continue;
        gr_chat_list_push(r, seen.list, key);
        gr_chat_list_push(r, out.list, items.list->v[i]);
    }
    return out;
}

/* ---- filters that apply others ------------------------------------------------------------------------ */

/* What `map`, `select` and their kin walk: nothing where the value is false, be it a number or none. */
static value items_if_any(render *r, const node *at, value v)
{
    return gr_chat_truth(v) ? gr_chat_items(r, at, v) : gr_chat_new_list(r, LIST);
}

static call_args rest_of(render *r, const call_args *args, size_t from)
{
    call_args rest = {0};
    for (size_t i = from; i < args->n; i++) gr_chat_add_arg(r, &rest, args->name[i], args->v[i]);
    return rest;
}

static value f_map(render *r, const node *at, value v, const call_args *args)
{
    const value *attribute = gr_chat_arg(args, SIZE_MAX, "attribute"),
                *otherwise = gr_chat_arg(args, SIZE_MAX, "default");
    bool by_path = args->n && attribute && args->name[0];
    text name = {0};
    if (!by_path && !gr_chat_want_string(r, at, args->n && !args->name[0] ? &args->v[0] : NULL, &name))
        return undefined;
    if (by_path && !gr_chat_check_args(r, at, "map", "attribute default", args)) return undefined;
    call_args rest = rest_of(r, args, 1);
    char *filter = gr_arena_strndup(r->arena, name.s ? name.s : "", name.n);
    value items = items_if_any(r, at, v), out = gr_chat_new_list(r, ITERATOR);
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        value item = items.list->v[i];
        value got = by_path ? path_of(r, at, item, *attribute, otherwise)
                            : gr_chat_filter(r, at, filter, item, &rest);
        gr_chat_list_push(r, out.list, got);
    }
    return out;
}

/* Items for which the test says `keep`; of their attribute, the first argument, where there is one. */
static value filter_by_test(render *r, const node *at, value v, const call_args *args, bool attribute,
                            bool keep)
{
    size_t n = args->n, first = attribute;
    text name = {0};
    if (attribute && !n) return gr_chat_fail(r, at, "'%s' needs an attribute", at->text);
    if (n > first && !gr_chat_want_string(r, at, &args->v[first], &name)) return undefined;
    call_args rest = rest_of(r, args, first + 1);
    char *test = gr_arena_strndup(r->arena, name.s ? name.s : "", name.n);
    value items = items_if_any(r, at, v), out = gr_chat_new_list(r, ITERATOR);
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        value item = items.list->v[i], part = attribute ? path_of(r, at, item, args->v[0], NULL) : item;
        if (r->st != GR_OK) break;
        bool yes = n > first ? gr_chat_test(r, at, test, part, &rest) : gr_chat_truth(part);
        if (yes == keep) gr_chat_list_push(r, out.list, item);
    }
    return out;
}

static value f_select(render *r, const node *at, value v, const call_args *args)
{
    return filter_by_test(r, at, v, args, false, true);
}

static value f_reject(render *r, const node *at, value v, const call_args *args)
{
    return filter_by_test(r, at, v, args, false, false);
}

static value f_selectattr(render *r, const node *at, value v, const call_args *args)
{
    return filter_by_test(r, at, v, args, true, true);
}

static value f_rejectattr(render *r, const node *at, value v, const call_args *args)
{
    return filter_by_test(r, at, v, args, true, false);
}

/* params NULL: the filter looks at its arguments itself. */
static const struct {
    const char *name;
    gr_chat_fn fn;
    const char *params;
} filters[] = {
    {"abs", f_abs, ""},
    {"capitalize", f_capitalize, ""},
    {"count", f_length, ""},
    {"d", f_default, "default_value boolean"},
    {"default", f_default, "default_value boolean"},
    {"dictsort", f_dictsort, "case_sensitive by reverse"},
    {"first", f_first, ""},
    {"indent", f_indent, "width first blank"},
    {"int", f_int, "default"},
    {"items", f_items, ""},
    {"join", f_join, "d attribute"},
    {"last", f_last, ""},
    {"length", f_length, ""},
    {"list", f_list, ""},
    {"lower", f_lower, ""},
    {"map", f_map, NULL},
    {"reject", f_reject, NULL},
    {"rejectattr", f_rejectattr, NULL},
    {"replace", f_replace, "old new count"},
    {"reverse", f_reverse, ""},
    {"safe", f_safe, ""},
    {"select", f_select, NULL},
    {"selectattr", f_selectattr, NULL},
    {"sort", f_sort, "reverse case_sensitive attribute"},
    {"string", f_string, ""},
    {"title", f_title, ""},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys"},
    {"trim", f_trim, "chars"},
    {"unique", f_unique, "case_sensitive attribute"},
    {"upper", f_upper, ""},
};

value gr_chat_filter(render *r, const node *at, const char *name, value v, const call_args *args)
{
    r->at = at; /* not the last of its arguments */
    for (size_t i = 0; i < GR_LEN(filters); i++) {
        if (strcmp(filters[i].name, name)) continue;
        if (filters[i].params && !gr_chat_check_args(r, at, name, filters[i].params, args)) return undefined;
        return filters[i].fn(r, at, v, args);
    }
    return gr_chat_fail(r, at, "filter '%s' is not supported", name);
}

/* ---- tests -------------------------------------------------------------------------------------------- */

/* What a value is, as a set of bits that tests ask for. */
enum {
    IS_UNDEFINED = 1,
    IS_NONE = 2,
    IS_BOOL = 4,
    IS_INT = 8,
    IS_FLOAT = 16,
    IS_STRING = 32,
    IS_MAPPING = 64,
    IS_SEQUENCE = 128, /* has a length and items by number, or may look so */
    IS_ITERABLE = 256, /* what else can be walked */
    IS_CALLABLE = 512,
    IS_OTHER = 1024,
};

static unsigned bits_of(value v)
{
    static const unsigned bits[] = {
        [V_UNDEFINED] = IS_UNDEFINED, [V_NONE] = IS_NONE,
        [V_BOOL] = IS_BOOL,           [V_INT] = IS_INT,
        [V_FLOAT] = IS_FLOAT,         [V_STRING] = IS_STRING,
        [V_LOOP] = IS_ITERABLE,       [V_MACRO] = IS_CALLABLE,
        [V_METHOD] = IS_CALLABLE,     [V_FUNCTION] = IS_CALLABLE,
    };
    if (v.kind == V_LIST) return v.list->shape <= RANGE ? IS_SEQUENCE : IS_ITERABLE;
    if (v.kind == V_DICT) return v.dict->is_namespace ? IS_OTHER : IS_MAPPING;
    return bits[v.kind];
}

static const struct {
    const char *name;
    unsigned bits;
} kind_tests[] = {
    {"undefined", IS_UNDEFINED},
    {"defined", ~(unsigned)IS_UNDEFINED},
    {"none", IS_NONE},
    {"boolean", IS_BOOL},
    {"integer", IS_INT},
    {"float", IS_FLOAT},
    {"number", IS_INT | IS_FLOAT | IS_BOOL},
    {"string", IS_STRING},
    {"mapping", IS_MAPPING},
    {"sequence", IS_STRING | IS_SEQUENCE | IS_MAPPING | IS_UNDEFINED},
    {"iterable", IS_STRING | IS_SEQUENCE | IS_MAPPING | IS_UNDEFINED | IS_ITERABLE},
    {"callable", IS_CALLABLE},
};

static bool t_true(render *r, const node *at, value v, const value *other)
{
    (void)r, (void)at, (void)other;
    return v.kind == V_BOOL && v.b;
}

static bool t_false(render *r, const node *at, value v, const value *other)
{
    (void)r, (void)at, (void)other;
    return v.kind == V_BOOL && !v.b;
}

/* v modulo n */
static int64_t modulo(render *r, const node *at, value v, const value *other)
{
    const node mod = {.op = OP_MOD, .line = at->line, .col = at->col};
    value m = gr_chat_usable(r, at, v) ? gr_chat_binary(r, &mod, v, *other) : undefined;
    if (r->st == GR_OK && m.kind != V_INT)
        gr_chat_fail(r, at, "this test of a number that is not whole is not supported");
    return r->st == GR_OK ? m.i : 0;
}

static const value two = {.kind = V_INT, .i = 2};

static bool t_odd(render *r, const node *at, value v, const value *other)
{
    (void)other;
    return modulo(r, at, v, &two) == 1;
}

static bool t_even(render *r, const node *at, value v, const value *other)
{
    (void)other;
    return modulo(r, at, v, &two) == 0;
}

static bool t_divisibleby(render *r, const node *at, value v, const value *other)
{
    return modulo(r, at, v, other) == 0;
}

static bool compares(render *r, const node *at, op o, value v, const value *other)
{
    bool ordered = o >= OP_LT && o <= OP_GE;
    if (ordered && (!gr_chat_usable(r, at, v) || !gr_chat_usable(r, at, *other))) return false;
    value yes = gr_chat_compare(r, at, o, v, *other);
    return yes.kind == V_BOOL && yes.b;
}

#define COMPARE_TEST(name, o)                                                \
    static bool name(render *r, const node *at, value v, const value *other) \
    {                                                                        \
        return compares(r, at, o, v, other);                                 \
    }
COMPARE_TEST(t_eq, OP_EQ)
COMPARE_TEST(t_ne, OP_NE)
COMPARE_TEST(t_lt, OP_LT)
COMPARE_TEST(t_le, OP_LE)
COMPARE_TEST(t_gt, OP_GT)
COMPARE_TEST(t_ge, OP_GE)
COMPARE_TEST(t_in, OP_IN)

static const struct {
    const char *name;
    bool (*fn)(render *r, const node *at, value v, const value *other);
    size_t n_args;
} tests[] = {
    {"true", t_true, 0},
    {"false", t_false, 0},
    {"odd", t_odd, 0},
    {"even", t_even, 0},
    {"divisibleby", t_divisibleby, 1},
    {"eq", t_eq, 1},
    {"equalto", t_eq, 1},
    {"==", t_eq, 1},
    {"ne", t_ne, 1},
    {"!=", t_ne, 1},
    {"lt", t_lt, 1},
    {"lessthan", t_lt, 1},
    {"<", t_lt, 1},
    {"le", t_le, 1},
    {"<=", t_le, 1},
    {"gt", t_gt, 1},
    {"greaterthan", t_gt, 1},
    {">", t_gt, 1},
    {"ge", t_ge, 1},
    {">=", t_ge, 1},
    {"in", t_in, 1},
};

static bool want_args(render *r, const node *at, const char *name, const call_args *args, size_t n)
{
    if (args->n != n || (n && args->name[0])) gr_chat_fail(r, at, "test '%s' takes %zu arguments", name, n);
    return r->st == GR_OK;
}

bool gr_chat_test(render *r, const node *at, const char *name, value v, const call_args *args)
{
    for (size_t i = 0; i < GR_LEN(kind_tests); i++)
        if (!strcmp(kind_tests[i].name, name))
            return want_args(r, at, name, args, 0) && kind_tests[i].bits & bits_of(v);
    for (size_t i = 0; i < GR_LEN(tests); i++)
        if (!strcmp(tests[i].name, name))
            return want_args(r, at, name, args, tests[i].n_args) && tests[i].fn(r, at, v, args->v);
    gr_chat_fail(r, at, "test '%s' is not supported", name);
    return false;
}
