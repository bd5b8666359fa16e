/* ops/text/chat_methods.c: the attributes and methods that values have in chat templates. To add a method: a
 * function and its line in the table. */
#include "ops/text/chat_impl.h"

#include <string.h>

static const value undefined = {.kind = V_UNDEFINED};

typedef enum method_of { OF_STRING, OF_LIST, OF_DICT, OF_LOOP, OF_NUMBER, OF_NOTHING } method_of;

typedef struct method_def {
    method_of of;
    const char *name;
    gr_chat_fn fn;      /* NULL: Python has it, we do not */
    const char *params; /* as gr_chat_check_args reads them */
} method_def;

struct method {
    const method_def *def;
    value self;
};

/* ---- strings ------------------------------------------------------------------------------------------ */

/* Whether v begins (or ends) with the string, or with one of the strings, of the argument. */
static value has_affix(render *r, const node *at, value v, const call_args *args, bool end)
{
    const value *arg = gr_chat_arg(args, 0, NULL);
    bool several = arg && arg->kind == V_LIST && arg->list->shape == TUPLE, yes = false;
    text s;
    for (size_t i = 0; i < (several ? arg->list->n : 1) && !yes; i++) {
        if (!gr_chat_want_string(r, at, several ? &arg->list->v[i] : arg, &s)) return undefined;
        yes = v.s.n >= s.n && !memcmp(v.s.s + (end ? v.s.n - s.n : 0), s.s, s.n);
    }
    return gr_chat_bool(yes);
}

static value m_startswith(render *r, const node *at, value v, const call_args *args)
{
    return has_affix(r, at, v, args, false);
}

static value m_endswith(render *r, const node *at, value v, const call_args *args)
{
    return has_affix(r, at, v, args, true);
}

static value m_removeprefix(render *r, const node *at, value v, const call_args *args)
{
    value has = has_affix(r, at, v, args, false);
    return has.kind == V_BOOL && has.b ? gr_chat_substring(v, args->v[0].s.n, v.s.n) : v;
}

static value m_removesuffix(render *r, const node *at, value v, const call_args *args)
{
    value has = has_affix(r, at, v, args, true);
    return has.kind == V_BOOL && has.b ? gr_chat_substring(v, 0, v.s.n - args->v[0].s.n) : v;
}

static value m_find(render *r, const node *at, value v, const call_args *args)
{
    text s;
    if (!gr_chat_want_string(r, at, gr_chat_arg(args, 0, NULL), &s)) return undefined;
    size_t found = gr_chat_find(v.s, 0, s);
    return gr_chat_int(found == SIZE_MAX ? -1 : (int64_t)gr_chat_count_chars((text){.s = v.s.s, .n = found}));
}

static value m_count(render *r, const node *at, value v, const call_args *args)
{
    text s;
    int64_t n = 0;
    if (!gr_chat_want_string(r, at, gr_chat_arg(args, 0, NULL), &s)) return undefined;
    if (!s.n) return gr_chat_int((int64_t)gr_chat_count_chars(v.s) + 1);
    for (size_t i = 0; (i = gr_chat_find(v.s, i, s)) != SIZE_MAX; i += s.n) n++;
    return gr_chat_int(n);
}

static value m_join(render *r, const node *at, value v, const call_args *args)
{
    const value *arg = gr_chat_arg(args, 0, NULL);
    builder b = {0};
    value items = gr_chat_items(r, at, arg ? *arg : undefined);
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        text s;
        if (!gr_chat_want_string(r, at, &items.list->v[i], &s)) break;
        if (i) gr_chat_put_value(r, &b, v);
        gr_chat_put_value(r, &b, items.list->v[i]);
    }
    return gr_chat_take(r, &b);
}

/* ---- mappings and loops ------------------------------------------------------------------------------- */

static value dict_items(render *r, const dict *d, list_shape shape)
{
    value out = gr_chat_new_list(r, shape);
    for (size_t i = 0; i < d->n && r->st == GR_OK; i++) {
        value key = {.kind = V_STRING, .s = d->keys[i]};
        gr_chat_list_push(r, out.list,
                          shape == KEYS     ? key
                          : shape == VALUES ? d->values[i]
                                            : gr_chat_new_pair(r, key, d->values[i]));
    }
    return out;
}

static value m_items(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return dict_items(r, v.dict, ITEMS);
}

static value m_keys(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return dict_items(r, v.dict, KEYS);
}

static value m_values(render *r, const node *at, value v, const call_args *args)
{
    (void)at, (void)args;
    return dict_items(r, v.dict, VALUES);
}

static value m_get(render *r, const node *at, value v, const call_args *args)
{
    const value *otherwise = gr_chat_arg(args, 1, NULL), *key = gr_chat_arg(args, 0, NULL);
    if (!key) return gr_chat_fail(r, at, "'get' needs a key");
    const value *found = key->kind == V_STRING ? gr_chat_dict_get(v.dict, key->s.s, key->s.n) : NULL;
    return found ? *found : otherwise ? *otherwise : (value){.kind = V_NONE};
}

static value m_copy(render *r, const node *at, value v, const call_args *args)
{
    (void)r, (void)at, (void)args; /* nothing changes it */
    return v;
}

static value m_cycle(render *r, const node *at, value v, const call_args *args)
{
    return args->n ? args->v[v.loop->i % args->n] : gr_chat_fail(r, at, "'cycle' needs items");
}

/* ---- the table ---------------------------------------------------------------------------------------- */

/* What the sandbox forbids because it changes the value is not here: to a template it is undefined. */
static const method_def methods[] = {
    {OF_STRING, "strip", gr_chat_strip, "_"},
    {OF_STRING, "lstrip", gr_chat_lstrip, "_"},
    {OF_STRING, "rstrip", gr_chat_rstrip, "_"},
    {OF_STRING, "split", gr_chat_split, "sep maxsplit"},
    {OF_STRING, "rsplit", gr_chat_rsplit, "sep maxsplit"},
    {OF_STRING, "splitlines", gr_chat_splitlines, "keepends"},
    {OF_STRING, "startswith", m_startswith, "_"},
    {OF_STRING, "endswith", m_endswith, "_"},
    {OF_STRING, "removeprefix", m_removeprefix, "_"},
    {OF_STRING, "removesuffix", m_removesuffix, "_"},
    {OF_STRING, "find", m_find, "_"},
    {OF_STRING, "count", m_count, "_"},
    {OF_STRING, "join", m_join, "_"},
    {OF_STRING, "replace", gr_chat_replace, "_ _ _"},
    {OF_STRING, "upper", gr_chat_upper, ""},
    {OF_STRING, "lower", gr_chat_lower, ""},
    {OF_STRING, "capitalize", gr_chat_capitalize, ""},
    {OF_STRING, "title", gr_chat_title_method, ""},
    {OF_DICT, "items", m_items, ""},
    {OF_DICT, "keys", m_keys, ""},
    {OF_DICT, "values", m_values, ""},
    {OF_DICT, "get", m_get, "_ _"},
    {OF_DICT, "copy", m_copy, ""},
    {OF_LIST, "copy", m_copy, ""},
    {OF_LOOP, "cycle", m_cycle, NULL},
};

/* Python's others, of which a template sees that they are there; a space around each. */
static const char *const others[] = {
    [OF_STRING] =
        (" casefold center encode expandtabs format format_map index isalnum isalpha isascii isdecimal "
         "isdigit "
         "isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans partition rfind "
         "rindex rjust rpartition swapcase translate zfill "),
    [OF_LIST] = " count index ",
    [OF_DICT] = " fromkeys ",
    [OF_LOOP] = " changed ",
    [OF_NUMBER] = (" as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag "
                   "is_integer "
                   "numerator real to_bytes "),
    [OF_NOTHING] = "",
};

static method_of kind_of(value v)
{
    switch (v.kind) {
    case V_STRING:
        return OF_STRING;
    case V_LIST:
        return v.list->shape <= TUPLE ? OF_LIST : OF_NOTHING;
    case V_DICT:
        return v.dict->is_namespace ? OF_NOTHING : OF_DICT;
    case V_LOOP:
        return OF_LOOP;
    case V_BOOL:
    case V_INT:
    case V_FLOAT:
        return OF_NUMBER;
    default:
        return OF_NOTHING;
    }
}

static bool in_words(const char *words, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = words; n && (p = strstr(p, name)); p += n)
        if (p[-1] == ' ' && p[n] == ' ') return true;
    return false;
}

static value new_method(render *r, const method_def *def, value self)
{
    method *m = gr_arena_alloc(r->arena, sizeof(*m));
    *m = (method){def, self};
    return (value){.kind = V_METHOD, .method = m};
}

static value find_method(render *r, value of, const char *name)
{
    method_of kind = kind_of(of);
    for (size_t i = 0; i < GR_LEN(methods); i++)
        if (methods[i].of == kind && !strcmp(methods[i].name, name)) return new_method(r, &methods[i], of);
    if (!in_words(others[kind], name)) return gr_chat_name_of(name);
    method_def *unknown = gr_arena_alloc(r->arena, sizeof(*unknown));
    *unknown = (method_def){.of = kind, .name = name};
    return new_method(r, unknown, of);
}

value gr_chat_call_method(render *r, const node *at, const method *m, const call_args *args)
{
    static const char keeps_safe[] = " strip lstrip rstrip startswith endswith upper lower capitalize ";
    const char *name = m->def->name;
    if (!m->def->fn) return gr_chat_fail(r, at, "method '%s' is not supported here", name);
    if (m->self.kind == V_STRING && m->self.s.safe && !in_words(keeps_safe, name))
        return gr_chat_fail(r, at, "method '%s' on a text that went through 'safe' is not supported", name);
    if (m->def->params && !gr_chat_check_args(r, at, name, m->def->params, args)) return undefined;
    return m->def->fn(r, at, m->self, args);
}

/* ---- attributes --------------------------------------------------------------------------------------- */

static value loop_attribute(render *r, const loop_state *loop, const char *name)
{
    size_t i = loop->i, n = loop->items->n;
    const value *v = loop->items->v;
    const struct {
        const char *name;
        value v;
    } parts[] = {
        {"index0", gr_chat_int((int64_t)i)},
        {"index", gr_chat_int((int64_t)i + 1)},
        {"revindex0", gr_chat_int((int64_t)(n - i) - 1)},
        {"revindex", gr_chat_int((int64_t)(n - i))},
        {"first", gr_chat_bool(i == 0)},
        {"last", gr_chat_bool(i + 1 == n)},
        {"length", gr_chat_int((int64_t)n)},
        {"depth0", gr_chat_int(0)}, /* of recursion */
        {"depth", gr_chat_int(1)},
        {"previtem", i && i <= n ? v[i - 1] : gr_chat_name_of("previtem")},
        {"nextitem", i + 1 < n ? v[i + 1] : gr_chat_name_of("nextitem")},
    };
    for (size_t k = 0; k < GR_LEN(parts); k++)
        if (!strcmp(parts[k].name, name)) return parts[k].v;
    return find_method(r, (value){.kind = V_LOOP, .loop = loop}, name);
}

value gr_chat_attribute(render *r, const node *at, value of, const char *name)
{
    if (of.kind == V_LOOP) return loop_attribute(r, of.loop, name);
    if (of.kind == V_MACRO || of.kind == V_METHOD || of.kind == V_FUNCTION)
        return gr_chat_fail(r, at, "the attribute '%s' of a macro or function is not supported", name);
    value v = find_method(r, of, name);
    const value *found =
        of.kind == V_DICT && v.kind == V_UNDEFINED ? gr_chat_dict_get(of.dict, name, strlen(name)) : NULL;
    return found ? *found : v;
}
