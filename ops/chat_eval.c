/* ops/chat_eval.c: walk the tree of a chat template. */
#include "ops/chat_impl.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_MACROS = 16 };

static const value undefined = {.kind = V_UNDEFINED};

value gr_chat_fail(render *r, const node *at, const char *fmt, ...)
{
    if (r->st != GR_OK) return undefined;
    if (!at) at = r->at;
    gr_loc loc = at ? (gr_loc){CHAT_FILE, at->line, at->col} : (gr_loc){0};
    va_list ap;
    va_start(ap, fmt);
    r->st = gr_diag_verror(r->d, loc, GR_E_INVALID, fmt, ap);
    va_end(ap);
    return undefined;
}

bool gr_chat_spend(render *r, size_t steps)
{
    r->n_steps += steps;
    if (r->n_steps > CHAT_MAX_STEPS) gr_chat_fail(r, NULL, "the template runs too long");
    if (r->out->s.len > CHAT_MAX_BYTES) gr_chat_fail(r, NULL, "the template builds too much text");
    return r->st == GR_OK;
}

/* Begin with a node. */
static bool enter(render *r, const node *n)
{
    r->at = n;
    return gr_chat_spend(r, 1);
}

static text name_text(const char *s)
{
    return (text){s, NULL, strlen(s)};
}

static value lookup(render *r, const node *n)
{
    for (const frame *f = r->scope; f; f = f->parent) {
        const value *v = gr_chat_dict_get(&f->vars, n->text, n->n);
        if (v) return *v;
    }
    return (value){.kind = V_UNDEFINED, .s = {n->text, NULL, n->n}};
}

/* ---- operators ---------------------------------------------------------------------------------------- */

/* A value that an operation needs: undefined ones are named. */
static bool is_usable(render *r, const node *at, value v)
{
    if (v.kind == V_UNDEFINED)
        gr_chat_fail(r, at, "'%.*s' is undefined", (int)GR_MIN(v.s.n, 80), v.s.n ? v.s.s : "");
    return v.kind != V_UNDEFINED;
}

static value concat(render *r, value a, value b)
{
    builder s = {0};
    gr_chat_put_value(&s, a);
    gr_chat_put_value(&s, b);
    return gr_chat_take(r, &s);
}

static value add_lists(render *r, value a, value b)
{
    value out = gr_chat_new_list(r);
    for (size_t i = 0; i < a.list->n; i++) gr_chat_list_push(r, out.list, a.list->v[i]);
    for (size_t i = 0; i < b.list->n; i++) gr_chat_list_push(r, out.list, b.list->v[i]);
    return out;
}

/* Python's: the quotient rounds down, the remainder has the divisor's sign. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static value int_op(render *r, const node *n, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool bad = false;
    switch (n->op) {
    case OP_ADD:
        bad = __builtin_add_overflow(a, b, &out);
        break;
    case OP_SUB:
        bad = __builtin_sub_overflow(a, b, &out);
        break;
    case OP_MUL:
        bad = __builtin_mul_overflow(a, b, &out);
        break;
    default:
        bad = !b || (a == INT64_MIN && b == -1);
        if (!bad && n->op == OP_DIV) return (value){.kind = V_FLOAT, .f = (double)a / (double)b};
        if (!bad) out = n->op == OP_FLOORDIV ? floor_div(a, b) : a - b * floor_div(a, b);
    }
    return bad ? gr_chat_fail(r, n, b ? "number too large" : "division by zero") : gr_chat_int(out);
}

static value float_op(render *r, const node *n, double a, double b)
{
    value v = {.kind = V_FLOAT};
    switch (n->op) {
    case OP_ADD:
        v.f = a + b;
        break;
    case OP_SUB:
        v.f = a - b;
        break;
    case OP_MUL:
        v.f = a * b;
        break;
    default:
        if (b == 0) return gr_chat_fail(r, n, "division by zero");
        v.f = n->op == OP_DIV ? a / b : n->op == OP_FLOORDIV ? floor(a / b) : a - b * floor(a / b);
    }
    return v;
}

static bool is_number(value v)
{
    return v.kind == V_INT || v.kind == V_FLOAT;
}

static double number(value v)
{
    return v.kind == V_INT ? (double)v.i : v.f;
}

static value binary(render *r, const node *n)
{
    value a = gr_chat_eval(r, n->a), b = gr_chat_eval(r, n->b);
    if (r->st != GR_OK) return undefined;
    if (n->op == OP_CONCAT) return concat(r, a, b);
    if (!is_usable(r, n->a, a) || !is_usable(r, n->b, b)) return undefined;
    if (n->op == OP_ADD && a.kind == V_STRING && b.kind == V_STRING) return concat(r, a, b);
    if (n->op == OP_ADD && a.kind == V_LIST && b.kind == V_LIST) return add_lists(r, a, b);
    if (a.kind == V_INT && b.kind == V_INT) return int_op(r, n, a.i, b.i);
    if (is_number(a) && is_number(b)) return float_op(r, n, number(a), number(b));
    static const char *const kinds[] = {"undefined", "none",   "a boolean", "a whole number", "a number",
                                        "a string",  "a list", "a mapping", "a macro"};
    return gr_chat_fail(r, n, "no such operation on %s and %s", kinds[a.kind], kinds[b.kind]);
}

static value compare(render *r, const node *n)
{
    value a = gr_chat_eval(r, n->a), b = gr_chat_eval(r, n->b);
    if (r->st != GR_OK) return undefined;
    switch (n->op) {
    case OP_EQ:
        return gr_chat_bool(gr_chat_equal(a, b));
    case OP_NE:
        return gr_chat_bool(!gr_chat_equal(a, b));
    case OP_IN:
        return gr_chat_bool(gr_chat_contains(r, n, b, a));
    case OP_NOT_IN:
        return gr_chat_bool(!gr_chat_contains(r, n, b, a));
    default:
        break;
    }
    if (!is_usable(r, n->a, a) || !is_usable(r, n->b, b)) return undefined;
    int order;
    if (a.kind == V_STRING && b.kind == V_STRING)
        order = gr_chat_text_compare(a.s, b.s);
    else if (is_number(a) && is_number(b))
        order = (number(a) > number(b)) - (number(a) < number(b));
    else
        return gr_chat_fail(r, n, "only two numbers or two strings have an order");
    return gr_chat_bool(n->op == OP_LT   ? order < 0
                        : n->op == OP_LE ? order <= 0
                        : n->op == OP_GT ? order > 0
                                         : order >= 0);
}

/* ---- parts of values ---------------------------------------------------------------------------------- */

static value attribute(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a);
    if (r->st != GR_OK || !is_usable(r, n->a, v)) return undefined;
    const value *found = v.kind == V_DICT ? gr_chat_dict_get(v.dict, n->text, n->n) : NULL;
    return found ? *found : (value){.kind = V_UNDEFINED, .s = {n->text, NULL, n->n}};
}

/* The characters of a string as a list, so that one kind of index serves both. */
static value as_items(render *r, const node *at, value v)
{
    const node list_filter = {.kind = N_FILTER, .line = at->line, .col = at->col, .text = "list", .n = 4};
    const call_args none = {0};
    return v.kind == V_STRING ? gr_chat_filter(r, &list_filter, v, &none) : v;
}

static value subscript(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a), key = gr_chat_eval(r, n->b);
    if (r->st != GR_OK || !is_usable(r, n->a, v)) return undefined;
    if (v.kind == V_DICT && key.kind == V_STRING) {
        const value *found = gr_chat_dict_get(v.dict, key.s.s, key.s.n);
        return found ? *found : (value){.kind = V_UNDEFINED, .s = key.s};
    }
    value items = as_items(r, n, v);
    if (r->st != GR_OK || items.kind != V_LIST || key.kind != V_INT) return undefined;
    int64_t i = key.i, len = (int64_t)items.list->n;
    if (i < 0) i += len;
    return i >= 0 && i < len ? items.list->v[i] : undefined;
}

/* A bound of a slice as Python reads it: from the end where negative, clamped to [low, high]. */
static int64_t slice_bound(render *r, const node *n, int64_t otherwise, int64_t len, int64_t low,
                           int64_t high)
{
    if (!n->a) return otherwise;
    value v = gr_chat_eval(r, n->a);
    if (v.kind == V_NONE) return otherwise;
    if (v.kind != V_INT) {
        gr_chat_fail(r, n->a, "a slice needs whole numbers");
        return 0;
    }
    int64_t i = v.i < 0 ? v.i + len : v.i;
    return i < low ? low : i > high ? high : i;
}

static value slice(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a), items = as_items(r, n, v), out = gr_chat_new_list(r);
    if (r->st != GR_OK || !is_usable(r, n->a, v)) return undefined;
    if (items.kind != V_LIST) return gr_chat_fail(r, n, "only lists and strings have slices");
    int64_t len = (int64_t)items.list->n;
    int64_t step = slice_bound(r, n->args->next->next, 1, 0, -(1 << 30), 1 << 30), low = step < 0 ? -1 : 0;
    int64_t from = slice_bound(r, n->args, step < 0 ? len - 1 : 0, len, low, len + low);
    int64_t to = slice_bound(r, n->args->next, step < 0 ? -1 : len, len, low, len + low);
    if (r->st == GR_OK && !step) return gr_chat_fail(r, n, "a slice's step is zero");
    for (int64_t i = from; r->st == GR_OK && (step > 0 ? i < to : i > to); i += step)
        gr_chat_list_push(r, out.list, items.list->v[i]);
    if (v.kind != V_STRING) return out;
    builder b = {0};
    for (size_t i = 0; i < out.list->n; i++) gr_chat_put_value(&b, out.list->v[i]);
    return gr_chat_take(r, &b);
}

/* ---- calls -------------------------------------------------------------------------------------------- */

static void eval_args(render *r, const node *first, call_args *args)
{
    for (const node *n = first; n && r->st == GR_OK; n = n->next) {
        if (args->n == GR_LEN(args->v)) {
            gr_chat_fail(r, n, "more than %zu arguments are not supported", GR_LEN(args->v));
            return;
        }
        args->name[args->n] = n->text;
        args->v[args->n++] = gr_chat_eval(r, n->a);
    }
}

static value strftime_now(render *r, const node *n, const call_args *args)
{
    struct tm when = {0};
    char out[256];
    if (args->n != 1 || args->v[0].kind != V_STRING) return gr_chat_fail(r, n, "strftime_now needs a format");
    if (!strptime(r->date, "%Y-%m-%d", &when))
        return gr_chat_fail(r, n, "date '%s' is not YEAR-MONTH-DAY", r->date);
    char *format = gr_pool_strndup(r->pool, args->v[0].s.s, args->v[0].s.n);
    size_t len = *format ? strftime(out, sizeof(out), format, &when) : 0;
    return gr_chat_string(r, out, len, false);
}

static value new_namespace(render *r, const call_args *args)
{
    value v = {.kind = V_DICT, .dict = gr_pool_alloc(r->pool, sizeof(dict))};
    v.dict->is_namespace = true;
    for (size_t i = 0; i < args->n; i++)
        if (args->name[i]) gr_chat_dict_set(r, v.dict, name_text(args->name[i]), args->v[i]);
    return v;
}

static value call_macro(render *r, const node *n, const node *macro, const call_args *args)
{
    frame f = {.parent = &r->root}, *outer_scope = r->scope;
    builder out = {0}, *outer_out = r->out;
    size_t i = 0;
    if (r->n_macros == MAX_MACROS) return gr_chat_fail(r, n, "macros call each other too deeply");
    for (const node *p = macro->args; p; p = p->next, i++) {
        const value *given = gr_chat_arg(args, i, p->text);
        gr_chat_bind(r, &f, p->text, given ? *given : p->a ? gr_chat_eval(r, p->a) : undefined);
    }
    r->n_macros++;
    r->scope = &f;
    r->out = &out;
    gr_chat_exec(r, macro->body);
    r->out = outer_out;
    r->scope = outer_scope;
    r->n_macros--;
    return gr_chat_take(r, &out);
}

/* A function by its name, where no variable has it. */
static value call_function(render *r, const node *n, const call_args *args)
{
    const char *name = n->a->text;
    if (!strcmp(name, "namespace")) return new_namespace(r, args);
    if (!strcmp(name, "strftime_now") && r->date) return strftime_now(r, n, args);
    if (!strcmp(name, "raise_exception")) {
        const value *v = gr_chat_arg(args, 0, "message");
        text s = v && v->kind == V_STRING ? v->s : (text){"(no reason given)", NULL, 17};
        return gr_chat_fail(r, n, "the template refuses this conversation: %.*s", (int)GR_MIN(s.n, 500), s.s);
    }
    return gr_chat_fail(r, n->a, "function '%s' is not supported", name);
}

static value call(render *r, const node *n)
{
    call_args args = {0};
    bool is_method = n->a->kind == N_ATTR, is_name = n->a->kind == N_NAME;
    value self = is_name ? lookup(r, n->a) : gr_chat_eval(r, is_method ? n->a->a : n->a);
    eval_args(r, n->args, &args);
    if (r->st != GR_OK) return undefined;
    if (self.kind == V_MACRO && !is_method) return call_macro(r, n, self.macro, &args);
    if (is_name && self.kind == V_UNDEFINED) return call_function(r, n, &args);
    if (!is_method) return gr_chat_fail(r, n, "this is no function");
    return is_usable(r, n->a->a, self) ? gr_chat_method(r, n->a, self, n->a->text, &args) : undefined;
}

/* ---- expressions -------------------------------------------------------------------------------------- */

static value new_list_of(render *r, const node *n)
{
    value v = gr_chat_new_list(r);
    for (const node *a = n->args; a && r->st == GR_OK; a = a->next)
        gr_chat_list_push(r, v.list, gr_chat_eval(r, a->a));
    return v;
}

static value new_dict_of(render *r, const node *n)
{
    value v = {.kind = V_DICT, .dict = gr_pool_alloc(r->pool, sizeof(dict))};
    for (const node *a = n->args; a && r->st == GR_OK; a = a->next->next) {
        value key = gr_chat_eval(r, a->a), item = gr_chat_eval(r, a->next->a);
        if (key.kind != V_STRING)
            gr_chat_fail(r, a, "keys must be strings");
        else
            gr_chat_dict_set(r, v.dict, key.s, item);
    }
    return v;
}

static value negate(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a);
    if (v.kind == V_INT && v.i != INT64_MIN) return gr_chat_int(-v.i);
    if (v.kind == V_FLOAT) return (value){.kind = V_FLOAT, .f = -v.f};
    return gr_chat_fail(r, n, "only a number has a negative");
}

static value filter_or_test(render *r, const node *n)
{
    call_args args = {0};
    value v = gr_chat_eval(r, n->a);
    eval_args(r, n->args, &args);
    if (r->st != GR_OK) return undefined;
    return n->kind == N_FILTER ? gr_chat_filter(r, n, v, &args) : gr_chat_bool(gr_chat_test(r, n, v, &args));
}

static value choose(render *r, const node *n)
{
    const node *part = gr_chat_truth(gr_chat_eval(r, n->a)) ? n->b : n->c;
    return part ? gr_chat_eval(r, part) : undefined;
}

static value name(render *r, const node *n)
{
    value v = lookup(r, n);
    static const node known = {.kind = N_MACRO}; /* a function, where only its being defined is asked for */
    if (v.kind == V_UNDEFINED && r->date && !strcmp(n->text, "strftime_now"))
        return (value){.kind = V_MACRO, .macro = &known};
    return v;
}

value gr_chat_eval(render *r, const node *n)
{
    if (!enter(r, n)) return undefined;
    value v;
    switch (n->kind) {
    case N_NONE:
        return (value){.kind = V_NONE};
    case N_BOOL:
        return gr_chat_bool(n->i);
    case N_INT:
        return gr_chat_int(n->i);
    case N_FLOAT:
        return (value){.kind = V_FLOAT, .f = n->f};
    case N_STRING:
        return (value){.kind = V_STRING, .s = {n->text, NULL, n->n}};
    case N_NAME:
        return name(r, n);
    case N_LIST:
        return new_list_of(r, n);
    case N_DICT:
        return new_dict_of(r, n);
    case N_ATTR:
        return attribute(r, n);
    case N_INDEX:
        return subscript(r, n);
    case N_SLICE:
        return slice(r, n);
    case N_CALL:
        return call(r, n);
    case N_FILTER:
    case N_TEST:
        return filter_or_test(r, n);
    case N_NOT:
        return gr_chat_bool(!gr_chat_truth(gr_chat_eval(r, n->a)));
    case N_NEG:
        return negate(r, n);
    case N_AND:
        v = gr_chat_eval(r, n->a);
        return gr_chat_truth(v) ? gr_chat_eval(r, n->b) : v;
    case N_OR:
        v = gr_chat_eval(r, n->a);
        return gr_chat_truth(v) ? v : gr_chat_eval(r, n->b);
    case N_BINARY:
        return binary(r, n);
    case N_COMPARE:
        return compare(r, n);
    case N_COND:
        return choose(r, n);
    default:
        assert(!"not an expression");
        return undefined;
    }
}

/* ---- statements --------------------------------------------------------------------------------------- */

static void bind_targets(render *r, const node *n, frame *f, value item)
{
    if (!n->args->next) {
        gr_chat_bind(r, f, n->args->text, item);
        return;
    }
    size_t i = 0;
    for (const node *t = n->args; t; t = t->next, i++) {
        if (item.kind != V_LIST || i >= item.list->n || (!t->next && i + 1 != item.list->n)) {
            gr_chat_fail(r, t, "the item has not as many parts as there are variables");
            return;
        }
        gr_chat_bind(r, f, t->text, item.list->v[i]);
    }
}

static value loop_value(render *r, const list *items, size_t i)
{
    value v = {.kind = V_DICT, .dict = gr_pool_alloc(r->pool, sizeof(dict))};
    const struct {
        const char *name;
        value v;
    } parts[] = {
        {"index0", gr_chat_int((int64_t)i)},
        {"index", gr_chat_int((int64_t)i + 1)},
        {"revindex0", gr_chat_int((int64_t)(items->n - i - 1))},
        {"revindex", gr_chat_int((int64_t)(items->n - i))},
        {"first", gr_chat_bool(i == 0)},
        {"last", gr_chat_bool(i + 1 == items->n)},
        {"length", gr_chat_int((int64_t)items->n)},
        {"previtem", i ? items->v[i - 1] : undefined},
        {"nextitem", i + 1 < items->n ? items->v[i + 1] : undefined},
    };
    for (size_t k = 0; k < GR_LEN(parts); k++)
        gr_chat_dict_set(r, v.dict, name_text(parts[k].name), parts[k].v);
    return v;
}

/* The items for which the loop's own condition holds. */
static value loop_items(render *r, const node *n)
{
    const node list_filter = {.kind = N_FILTER, .line = n->a->line, .col = n->a->col, .text = "list", .n = 4};
    const call_args none = {0};
    value all = gr_chat_filter(r, &list_filter, gr_chat_eval(r, n->a), &none), kept = gr_chat_new_list(r);
    if (r->st != GR_OK || !n->b) return r->st == GR_OK ? all : kept;
    frame f = {.parent = r->scope};
    r->scope = &f;
    for (size_t i = 0; r->st == GR_OK && i < all.list->n; i++) {
        bind_targets(r, n, &f, all.list->v[i]);
        if (r->st == GR_OK && gr_chat_truth(gr_chat_eval(r, n->b)))
            gr_chat_list_push(r, kept.list, all.list->v[i]);
    }
    r->scope = f.parent;
    return kept;
}

static void exec_for(render *r, const node *n)
{
    value items = loop_items(r, n);
    for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++) {
        frame f = {.parent = r->scope}; /* what an iteration sets, the next does not see */
        bind_targets(r, n, &f, items.list->v[i]);
        gr_chat_bind(r, &f, "loop", loop_value(r, items.list, i));
        r->scope = &f;
        gr_chat_exec(r, n->body);
        r->scope = f.parent;
    }
    if (r->st == GR_OK && !items.list->n) gr_chat_exec(r, n->or_else);
}

static void exec_set_attr(render *r, const node *n)
{
    value owner = lookup(r, n->b), v = gr_chat_eval(r, n->a);
    if (r->st == GR_OK && !(owner.kind == V_DICT && owner.dict->is_namespace))
        gr_chat_fail(r, n->b, "'%s' is no namespace", n->b->text);
    if (r->st == GR_OK) gr_chat_dict_set(r, owner.dict, name_text(n->text), v);
}

void gr_chat_exec(render *r, const node *body)
{
    for (const node *n = body; n && enter(r, n); n = n->next) {
        value v;
        switch (n->kind) {
        case N_TEXT:
            gr_chat_put(r->out, n->text, n->n, NULL);
            break;
        case N_OUTPUT:
            v = gr_chat_eval(r, n->a);
            if (r->st == GR_OK) gr_chat_put_value(r->out, v);
            break;
        case N_IF:
            v = gr_chat_eval(r, n->a);
            if (r->st == GR_OK) gr_chat_exec(r, gr_chat_truth(v) ? n->body : n->or_else);
            break;
        case N_FOR:
            exec_for(r, n);
            break;
        case N_SET:
            gr_chat_bind(r, r->scope, n->text, gr_chat_eval(r, n->a));
            break;
        case N_SET_ATTR:
            exec_set_attr(r, n);
            break;
        case N_MACRO:
            gr_chat_bind(r, r->scope, n->text, (value){.kind = V_MACRO, .macro = n});
            break;
        default:
            assert(!"not a statement");
        }
    }
}
