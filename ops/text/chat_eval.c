/* ops/text/chat_eval.c: walk the tree of a chat template. */
#include "ops/text/chat_impl.h"

#include <assert.h>
#include <stdio.h>
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

value gr_chat_name_of(const char *name)
{
    return (value){.kind = V_UNDEFINED, .s = {.s = name, .n = strlen(name)}};
}

static text name_text(const char *s)
{
    return (text){.s = s, .n = strlen(s)};
}

static frame *new_frame(render *r, frame *parent)
{
    frame *f = gr_arena_alloc(r->arena, sizeof(*f));
    f->parent = parent;
    return f;
}

/* ---- names -------------------------------------------------------------------------------------------- */

static const char *const functions[] = {"range",        "dict",   "namespace", "raise_exception",
                                        "strftime_now", "lipsum", "cycler",    "joiner"};

static bool is_function(const render *r, const char *name)
{
    bool known = false;
    for (size_t i = 0; i < GR_LEN(functions); i++) known |= !strcmp(functions[i], name);
    return known && (r->date || strcmp(name, "strftime_now"));
}

static const value *find_variable(const frame *scope, const node *n)
{
    const value *v = NULL;
    for (const frame *f = scope; f && !v; f = f->parent) v = gr_chat_dict_get(&f->vars, n->text, n->n);
    return v;
}

/* The first name with "date" in it that nobody has set yet. */
static void note_date_variable(render *r, const char *name)
{
    if (!*r->asked.date_variable && strcasestr(name, "date"))
        snprintf(r->asked.date_variable, sizeof(r->asked.date_variable), "%s", name);
}

static value lookup(render *r, const node *n)
{
    const value *v = find_variable(r->scope, n);
    if (v) return *v;
    if (r->n_macros && (!strcmp(n->text, "varargs") || !strcmp(n->text, "kwargs")))
        return gr_chat_fail(r, n, "'%s' in a macro is not supported", n->text);
    note_date_variable(r, n->text);
    return (value){.kind = is_function(r, n->text) ? V_FUNCTION : V_UNDEFINED,
                   .s = {.s = n->text, .n = n->n}};
}

/* ---- parts of values ---------------------------------------------------------------------------------- */

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
    value v = gr_chat_eval(r, n->a);
    if (r->st != GR_OK || !gr_chat_usable(r, n->a, v)) return undefined;
    if (v.kind != V_STRING && !(v.kind == V_LIST && v.list->shape <= RANGE))
        return gr_chat_fail(r, n, "only lists and strings have slices");
    value items = gr_chat_items(r, n, v), out = gr_chat_new_list(r, v.kind == V_LIST ? v.list->shape : LIST);
    int64_t len = r->st == GR_OK ? (int64_t)items.list->n : 0;
    int64_t step = slice_bound(r, n->args->next->next, 1, 0, -(1 << 30), 1 << 30), low = step < 0 ? -1 : 0;
    int64_t from = slice_bound(r, n->args, step < 0 ? len - 1 : 0, len, low, len + low);
    int64_t to = slice_bound(r, n->args->next, step < 0 ? -1 : len, len, low, len + low);
    if (r->st == GR_OK && !step) return gr_chat_fail(r, n, "a slice's step is zero");
    for (int64_t i = from; r->st == GR_OK && (step > 0 ? i < to : i > to); i += step)
        gr_chat_list_push(r, out.list, items.list->v[i]);
    if (v.kind != V_STRING) return out;
    builder b = {0};
    for (size_t i = 0; i < out.list->n; i++) gr_chat_put_value(r, &b, out.list->v[i]);
    return gr_chat_take(r, &b);
}

static value subscript(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a), key = gr_chat_eval(r, n->b);
    return r->st == GR_OK && gr_chat_usable(r, n->a, v) ? gr_chat_item(r, n, v, key) : undefined;
}

static value attribute(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a);
    return r->st == GR_OK && gr_chat_usable(r, n->a, v) ? gr_chat_attribute(r, n, v, n->text) : undefined;
}

/* ---- arguments ---------------------------------------------------------------------------------------- */

void gr_chat_add_arg(render *r, call_args *args, const char *name, value v)
{
    if (args->n == args->cap) {
        call_args old = *args;
        args->cap = old.cap ? 2 * old.cap : 4;
        args->v = gr_arena_alloc(r->arena, args->cap * sizeof(*args->v));
        args->name = gr_arena_alloc(r->arena, args->cap * sizeof(*args->name));
        for (size_t i = 0; i < old.n; i++) args->v[i] = old.v[i], args->name[i] = old.name[i];
    }
    args->name[args->n] = name;
    args->v[args->n++] = v;
}

/* *list or **mapping */
static void sharding_args(render *r, const node *n, value v, call_args *args)
{
    if (n->kind == N_STAR) {
        value items = gr_chat_items(r, n, v);
        for (size_t i = 0; r->st == GR_OK && i < items.list->n; i++)
            gr_chat_add_arg(r, args, NULL, items.list->v[i]);
    } else if (v.kind != V_DICT || v.dict->is_namespace) {
        gr_chat_fail(r, n, "'**' needs a mapping");
    } else {
        for (size_t i = 0; i < v.dict->n; i++)
            gr_chat_add_arg(r, args, gr_arena_strndup(r->arena, v.dict->keys[i].s, v.dict->keys[i].n),
                            v.dict->values[i]);
    }
}

static void eval_args(render *r, const node *first, call_args *args)
{
    for (const node *n = first; n && gr_chat_spend(r, 1); n = n->next) {
        value v = gr_chat_eval(r, n->a);
        if (r->st != GR_OK) return;
        if (n->kind == N_ARG)
            gr_chat_add_arg(r, args, n->text, v);
        else
            sharding_args(r, n, v, args);
    }
}

/* ---- calls -------------------------------------------------------------------------------------------- */

static value strftime_now(render *r, const node *n, const call_args *args)
{
    enum { MOST = 4096 };
    struct tm when = {0};
    text format;
    r->asked.date = true;
    if (!gr_chat_want_string(r, n, gr_chat_arg(args, 0, "format"), &format)) return undefined;
    if (!strptime(r->date, "%Y-%m-%d", &when))
        return gr_chat_fail(r, n, "date '%s' is not YEAR-MONTH-DAY", r->date);
    /* the point tells an empty result from one that has no room */
    char *out = gr_arena_alloc(r->arena, MOST),
         *pattern = gr_arena_printf(r->arena, "%.*s.", (int)GR_MIN(format.n, MOST), format.s);
    size_t len = strftime(out, MOST, pattern, &when);
    return len ? gr_chat_string(r, out, len - 1, false) : gr_chat_fail(r, n, "the date's format is too long");
}

static value new_namespace(render *r, const node *n, const call_args *args, bool is_namespace)
{
    value v = gr_chat_new_dict(r);
    for (size_t i = 0; r->st == GR_OK && i < args->n; i++) {
        const dict *from = args->v[i].kind == V_DICT ? args->v[i].dict : NULL;
        if (args->name[i]) {
            gr_chat_dict_set(r, v.dict, name_text(args->name[i]), args->v[i]);
        } else if (i || !from || from->is_namespace) {
            gr_chat_fail(r, n, "'%s' of this is not supported", is_namespace ? "namespace" : "dict");
        } else {
            for (size_t k = 0; k < from->n; k++) gr_chat_dict_set(r, v.dict, from->keys[k], from->values[k]);
        }
    }
    v.dict->is_namespace = is_namespace;
    return v;
}

static value range(render *r, const node *n, const call_args *args)
{
    int64_t from = 0, to = 0, step = 1;
    enum { MOST = 100000 }; /* the sandbox's own bound */
    value v = gr_chat_new_list(r, RANGE);
    bool one = args->n == 1;
    if (!args->n || !gr_chat_want_int(r, n, gr_chat_arg(args, one ? 1 : 0, NULL), 0, &from) ||
        !gr_chat_want_int(r, n, gr_chat_arg(args, one ? 0 : 1, NULL), 0, &to) ||
        !gr_chat_want_int(r, n, gr_chat_arg(args, 2, NULL), 1, &step) || !step)
        return gr_chat_fail(r, n, "'range' needs one to three whole numbers, the step not zero");
    for (int64_t i = from; r->st == GR_OK && (step > 0 ? i < to : i > to); i += step) {
        gr_chat_list_push(r, v.list, gr_chat_int(i));
        if (v.list->n > MOST) gr_chat_fail(r, n, "'range' of more than %d numbers", MOST);
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step) break;
    }
    return v;
}

static void bind_params(render *r, const node *n, const macro *m, const call_args *args)
{
    size_t i = 0, used = 0;
    for (const node *p = m->def->args; p && r->st == GR_OK; p = p->next, i++) {
        const value *given = gr_chat_arg(args, i, p->text);
        used += given != NULL;
        gr_chat_bind(r, r->scope, p->text,
                     given  ? *given
                     : p->a ? gr_chat_eval(r, p->a)
                            : gr_chat_name_of(p->text));
    }
    const value *caller = gr_chat_arg(args, SIZE_MAX, "caller");
    if (caller && !find_variable(&(frame){.vars = r->scope->vars}, &(node){.text = "caller", .n = 6})) {
        gr_chat_bind(r, r->scope, "caller", *caller);
        used++;
    }
    if (r->st == GR_OK && used < args->n)
        gr_chat_fail(r, n, "macro '%s' does not take these arguments", m->def->text);
}

/* The text that a body makes in a scope of its own. */
static value capture(render *r, const node *body, frame *scope)
{
    builder out = {0}, *outer_out = r->out;
    frame *outer = r->scope;
    r->scope = scope;
    r->out = &out;
    gr_chat_exec(r, body);
    r->out = outer_out;
    r->scope = outer;
    return gr_chat_take(r, &out);
}

static value call_macro(render *r, const node *n, const macro *m, const call_args *args)
{
    frame *outer = r->scope;
    if (r->n_macros == MAX_MACROS) return gr_chat_fail(r, n, "macros call each other too deeply");
    r->n_macros++;
    r->scope = new_frame(r, m->scope);
    bind_params(r, n, m, args);
    frame *own = r->scope;
    r->scope = outer;
    value v = r->st == GR_OK ? capture(r, m->def->body, own) : undefined;
    r->n_macros--;
    return v;
}

static value raise_exception(render *r, const node *n, const call_args *args)
{
    const value *v = gr_chat_arg(args, 0, "message");
    builder b = {0};
    if (v) gr_chat_put_value(r, &b, *v);
    value s = gr_chat_take(r, &b);
    if (r->st != GR_OK) return undefined;
    if (!s.s.n) s.s = name_text("(no reason given)");
    return gr_chat_fail(r, n, "the template refuses this conversation: %.*s", (int)GR_MIN(s.s.n, 500), s.s.s);
}

static value call_function(render *r, const node *n, const char *name, const call_args *args)
{
    if (!strcmp(name, "namespace")) return new_namespace(r, n, args, true);
    if (!strcmp(name, "dict")) return new_namespace(r, n, args, false);
    if (!strcmp(name, "raise_exception")) return raise_exception(r, n, args);
    if (!strcmp(name, "strftime_now") && gr_chat_check_args(r, n, name, "format", args))
        return strftime_now(r, n, args);
    if (!strcmp(name, "range") && gr_chat_check_args(r, n, name, "_ _ _", args)) return range(r, n, args);
    return r->st == GR_OK ? gr_chat_fail(r, n->a, "function '%s' is not supported", name) : undefined;
}

static value call_value(render *r, const node *n, value callee, const call_args *args)
{
    switch (callee.kind) {
    case V_MACRO:
        return call_macro(r, n, callee.macro, args);
    case V_METHOD:
        return gr_chat_call_method(r, n->a, callee.method, args);
    case V_FUNCTION:
        return call_function(r, n, gr_arena_strndup(r->arena, callee.s.s, callee.s.n), args);
    case V_UNDEFINED:
        if (n->a->kind == N_NAME) return gr_chat_fail(r, n->a, "function '%s' is not supported", n->a->text);
        if (n->a->kind == N_ATTR)
            return gr_chat_fail(r, n->a, "method '%s' is not supported here", n->a->text);
        return gr_chat_fail(r, n, "this is no function");
    default:
        return gr_chat_fail(r, n, "this is no function");
    }
}

static value call_with(render *r, const node *n, const value *caller)
{
    call_args args = {0};
    value callee = gr_chat_eval(r, n->a);
    if (r->st == GR_OK) eval_args(r, n->args, &args);
    if (caller && r->st == GR_OK) gr_chat_add_arg(r, &args, "caller", *caller);
    return r->st == GR_OK ? call_value(r, n, callee, &args) : undefined;
}

/* ---- expressions -------------------------------------------------------------------------------------- */

static value new_list_of(render *r, const node *n, list_shape shape)
{
    value v = gr_chat_new_list(r, shape);
    for (const node *a = n->args; a && r->st == GR_OK; a = a->next)
        gr_chat_list_push(r, v.list, gr_chat_eval(r, a->a));
    return v;
}

static value new_dict_of(render *r, const node *n)
{
    value v = gr_chat_new_dict(r);
    for (const node *a = n->args; a && r->st == GR_OK; a = a->next->next) {
        value key = gr_chat_eval(r, a->a), item = gr_chat_eval(r, a->next->a);
        if (key.kind != V_STRING)
            gr_chat_fail(r, a, "a key that is no string is not supported");
        else
            gr_chat_dict_set(r, v.dict, key.s, item);
    }
    return v;
}

/* -a or +a */
static value with_sign(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a);
    int sign = n->kind == N_NEG ? -1 : 1;
    if (r->st != GR_OK || !gr_chat_usable(r, n->a, v)) return undefined;
    if (v.kind == V_BOOL) return gr_chat_int(sign * v.b);
    if (v.kind == V_INT && v.i != INT64_MIN) return gr_chat_int(sign * v.i);
    if (v.kind == V_FLOAT) return (value){.kind = V_FLOAT, .f = sign * v.f};
    return gr_chat_fail(r, n, "only a number has a sign");
}

static value filter_or_test(render *r, const node *n)
{
    call_args args = {0};
    value v = gr_chat_eval(r, n->a);
    if (r->st == GR_OK) eval_args(r, n->args, &args);
    if (r->st != GR_OK) return undefined;
    return n->kind == N_FILTER ? gr_chat_filter(r, n, n->text, v, &args)
                               : gr_chat_bool(gr_chat_test(r, n, n->text, v, &args));
}

static value binary(render *r, const node *n)
{
    value a = gr_chat_eval(r, n->a), b = gr_chat_eval(r, n->b);
    if (r->st != GR_OK) return undefined;
    if (n->op != OP_CONCAT && (!gr_chat_usable(r, n->a, a) || !gr_chat_usable(r, n->b, b))) return undefined;
    return gr_chat_binary(r, n, a, b);
}

static value compare(render *r, const node *n)
{
    value a = gr_chat_eval(r, n->a), b = gr_chat_eval(r, n->b);
    if (r->st != GR_OK) return undefined;
    bool ordered = n->op >= OP_LT && n->op <= OP_GE;
    if (ordered && (!gr_chat_usable(r, n->a, a) || !gr_chat_usable(r, n->b, b))) return undefined;
    return gr_chat_compare(r, n, n->op, a, b);
}

static value choose(render *r, const node *n)
{
    const node *part = gr_chat_truth(gr_chat_eval(r, n->a)) ? n->b : n->c;
    return part ? gr_chat_eval(r, part) : undefined;
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
        return (value){.kind = V_STRING, .s = {.s = n->text, .n = n->n}};
    case N_NAME:
        return lookup(r, n);
    case N_LIST:
        return new_list_of(r, n, LIST);
    case N_TUPLE:
        return new_list_of(r, n, TUPLE);
    case N_CAPTURE:
        return capture(r, n->body, new_frame(r, r->scope));
    case N_DICT:
        return new_dict_of(r, n);
    case N_ATTR:
        return attribute(r, n);
    case N_INDEX:
        return subscript(r, n);
    case N_SLICE:
        return slice(r, n);
    case N_CALL:
        return call_with(r, n, NULL);
    case N_FILTER:
    case N_TEST:
        return filter_or_test(r, n);
    case N_NOT:
        return gr_chat_bool(!gr_chat_truth(gr_chat_eval(r, n->a)));
    case N_NEG:
    case N_POS:
        return with_sign(r, n);
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

static void bind_targets(render *r, const node *names, frame *f, value item)
{
    if (!names->next) {
        gr_chat_bind(r, f, names->text, item);
        return;
    }
    value parts = gr_chat_items(r, names, item);
    size_t i = 0, n = 0;
    for (const node *t = names; t; t = t->next) n++;
    if (r->st == GR_OK && parts.list->n != n)
        gr_chat_fail(r, names, "%zu variables for %zu parts", n, parts.list->n);
    for (const node *t = names; t && r->st == GR_OK; t = t->next)
        gr_chat_bind(r, f, t->text, parts.list->v[i++]);
}

/* The items for which the loop's own condition holds. */
static value loop_items(render *r, const node *n)
{
    value all = gr_chat_eval(r, n->a), kept = gr_chat_new_list(r, LIST);
    if (r->st == GR_OK) all = gr_chat_items(r, n->a, all);
    if (r->st != GR_OK || !n->b) return r->st == GR_OK ? all : kept;
    frame *outer = r->scope;
    for (size_t i = 0; r->st == GR_OK && i < all.list->n; i++) {
        r->scope = new_frame(r, outer);
        bind_targets(r, n->args, r->scope, all.list->v[i]);
        if (r->st == GR_OK && gr_chat_truth(gr_chat_eval(r, n->b)))
            gr_chat_list_push(r, kept.list, all.list->v[i]);
    }
    r->scope = outer;
    return kept;
}

static void exec_in(render *r, const node *body, frame *scope)
{
    frame *outer = r->scope;
    r->scope = scope;
    gr_chat_exec(r, body);
    r->scope = outer;
}

static void exec_for(render *r, const node *n)
{
    value items = loop_items(r, n);
    loop_state *loop = gr_arena_alloc(r->arena, sizeof(*loop));
    loop->items = items.list;
    for (; r->st == GR_OK && loop->i < items.list->n; loop->i++) {
        frame *f = new_frame(r, r->scope); /* what an iteration sets, the next does not see */
        bind_targets(r, n->args, f, items.list->v[loop->i]);
        gr_chat_bind(r, f, "loop", (value){.kind = V_LOOP, .loop = loop});
        if (gr_chat_spend(r, 4)) exec_in(r, n->body, f); /* counts what the frame takes */
        bool leave = r->flow == FLOW_BREAK;
        r->flow = FLOW_ON;
        if (leave) break;
    }
    if (r->st == GR_OK && !items.list->n) exec_in(r, n->or_else, new_frame(r, r->scope));
}

static void exec_set(render *r, const node *n)
{
    value v = gr_chat_eval(r, n->a);
    if (r->st == GR_OK) bind_targets(r, n->args, r->scope, v);
}

static void exec_set_attr(render *r, const node *n)
{
    value owner = lookup(r, n->b), v = gr_chat_eval(r, n->a);
    if (r->st == GR_OK && !(owner.kind == V_DICT && owner.dict->is_namespace))
        gr_chat_fail(r, n->b, "'%s' is no namespace", n->b->text);
    if (r->st == GR_OK) gr_chat_dict_set(r, owner.dict, name_text(n->text), v);
}

static void exec_scope(render *r, const node *n)
{
    frame *f = new_frame(r, r->scope);
    for (const node *a = n->args; a && r->st == GR_OK; a = a->next)
        gr_chat_bind(r, f, a->text, gr_chat_eval(r, a->a));
    if (r->st == GR_OK) exec_in(r, n->body, f);
}

static value new_macro(render *r, const node *def)
{
    macro *m = gr_arena_alloc(r->arena, sizeof(*m));
    *m = (macro){def, r->scope};
    return (value){.kind = V_MACRO, .macro = m};
}

static void exec_output(render *r, const node *at, value v)
{
    r->at = at;
    if (r->st == GR_OK && r->flow == FLOW_ON) gr_chat_put_value(r, r->out, v);
}

static void exec_statement(render *r, const node *n)
{
    value v;
    switch (n->kind) {
    case N_TEXT:
        gr_chat_put(r->out, n->text, n->n, NULL);
        break;
    case N_OUTPUT:
        exec_output(r, n->a, gr_chat_eval(r, n->a));
        break;
    case N_IF:
        v = gr_chat_eval(r, n->a);
        if (r->st == GR_OK) gr_chat_exec(r, gr_chat_truth(v) ? n->body : n->or_else);
        break;
    case N_FOR:
        exec_for(r, n);
        break;
    case N_BREAK:
    case N_CONTINUE:
        r->flow = n->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        break;
    case N_SET:
        exec_set(r, n);
        break;
    case N_SET_ATTR:
        exec_set_attr(r, n);
        break;
    case N_SCOPE:
        exec_scope(r, n);
        break;
    case N_MACRO:
        gr_chat_bind(r, r->scope, n->text, new_macro(r, n));
        break;
    case N_CALL_BLOCK:
        v = new_macro(r, n->b);
        exec_output(r, n, call_with(r, n->a, &v));
        break;
    default:
        assert(!"not a statement");
    }
}

void gr_chat_exec(render *r, const node *body)
{
    for (const node *n = body; n && r->flow == FLOW_ON && enter(r, n); n = n->next) exec_statement(r, n);
}
