/* ops/text/chat_ops.c: the operators of chat templates, with the results that Python has. */
#include "ops/text/chat_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const value undefined = {.kind = V_UNDEFINED};

bool gr_chat_usable(render *r, const node *at, value v)
{
    if (v.kind == V_UNDEFINED)
        gr_chat_fail(r, at, "'%.*s' is undefined", (int)GR_MIN(v.s.n, 80), v.s.n ? v.s.s : "");
    return v.kind != V_UNDEFINED;
}

static const char *kind_name(value v)
{
    static const char *const kinds[] = {
        [V_UNDEFINED] = "undefined", [V_NONE] = "none",       [V_BOOL] = "a boolean",
        [V_INT] = "a whole number",  [V_FLOAT] = "a number",  [V_STRING] = "a string",
        [V_LIST] = "a list",         [V_DICT] = "a mapping",  [V_LOOP] = "loop",
        [V_MACRO] = "a macro",       [V_METHOD] = "a method", [V_FUNCTION] = "a function"};
    return kinds[v.kind];
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static bool is_whole(value v)
{
    return v.kind == V_INT || v.kind == V_BOOL;
}

static bool is_number(value v)
{
    return is_whole(v) || v.kind == V_FLOAT;
}

static int64_t whole(value v)
{
    return v.kind == V_BOOL ? v.b : v.i;
}

static double number(value v)
{
    return v.kind == V_FLOAT ? v.f : (double)whole(v);
}

/* Python's: the quotient rounds down, the remainder has the divisor's sign. */
static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

/* a to the power b >= 0 by squaring; true where it is too large. */
static bool power_overflows(int64_t a, int64_t b, int64_t *out)
{
    bool bad = false;
    for (*out = 1; b && !bad; b /= 2) {
        if (b % 2) bad = __builtin_mul_overflow(*out, a, out);
        if (b > 1) bad |= __builtin_mul_overflow(a, a, &a);
    }
    return bad;
}

static value int_op(render *r, const node *at, int64_t a, int64_t b)
{
    static const int64_t exact = (int64_t)1 << 53; /* whole numbers that a double holds */
    int64_t out = 0;
    bool bad = false;
    if (at->op == OP_POW && b < 0) return (value){.kind = V_FLOAT, .f = pow((double)a, (double)b)};
    if (!b && (at->op == OP_DIV || at->op == OP_FLOORDIV || at->op == OP_MOD))
        return gr_chat_fail(r, at, "division by zero");
    switch (at->op) {
    case OP_ADD:
        bad = __builtin_add_overflow(a, b, &out);
        break;
    case OP_SUB:
        bad = __builtin_sub_overflow(a, b, &out);
        break;
    case OP_MUL:
        bad = __builtin_mul_overflow(a, b, &out);
        break;
    case OP_POW:
        bad = power_overflows(a, b, &out);
        break;
    case OP_DIV:
        bad = a > exact || a < -exact || b > exact || b < -exact;
        if (!bad) return (value){.kind = V_FLOAT, .f = (double)a / (double)b};
        break;
    default:
        bad = a == INT64_MIN && b == -1;
        if (!bad) out = at->op == OP_FLOORDIV ? floor_div(a, b) : a - b * floor_div(a, b);
    }
    return bad ? gr_chat_fail(r, at, "a number this large is not supported") : gr_chat_int(out);
}

static value float_op(render *r, const node *at, double a, double b)
{
    value v = {.kind = V_FLOAT};
    double rest = 0;
    if (b == 0 && (at->op == OP_DIV || at->op == OP_FLOORDIV || at->op == OP_MOD))
        return gr_chat_fail(r, at, "division by zero");
    if (at->op == OP_FLOORDIV || at->op == OP_MOD) {
        rest = fmod(a, b);
        if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    }
    switch (at->op) {
    case OP_ADD:
        v.f = a + b;
        break;
    case OP_SUB:
        v.f = a - b;
        break;
    case OP_MUL:
        v.f = a * b;
        break;
    case OP_DIV:
        v.f = a / b;
        break;
    case OP_POW:
        if (a < 0 && b != floor(b)) return gr_chat_fail(r, at, "a complex number is not supported");
        v.f = pow(a, b);
        break;
    case OP_MOD:
        v.f = rest;
        break;
    default:
        v.f = floor((a - rest) / b + 0.5); /* the quotient is whole but for rounding */
    }
    return v;
}

/* ---- text and lists ----------------------------------------------------------------------------------- */

static value concat(render *r, value a, value b)
{
    builder s = {0};
    gr_chat_put_value(r, &s, a);
    gr_chat_put_value(r, &s, b);
    return gr_chat_take(r, &s);
}

static void put_escaped(builder *b, text t)
{
    static const char from[] = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    for (size_t i = 0; i < t.n; i++) {
        const char *known = t.s[i] ? strchr(from, t.s[i]) : NULL, *s = known ? to[known - from] : &t.s[i];
        char marks[8];
        memset(marks, t.field && t.field[i], sizeof(marks));
        gr_chat_put(b, s, known ? strlen(s) : 1, marks);
    }
}

/* A string that went through `safe` escapes what + adds to it. */
static value add_texts(render *r, value a, value b)
{
    builder s = {0};
    bool safe = a.s.safe || b.s.safe;
    const value parts[] = {a, b};
    for (size_t i = 0; i < GR_LEN(parts); i++) {
        if (safe && !parts[i].s.safe)
            put_escaped(&s, parts[i].s);
        else
            gr_chat_put_value(r, &s, parts[i]);
    }
    value v = gr_chat_take(r, &s);
    if (v.kind == V_STRING) v.s.safe = safe;
    return v;
}

static value add_lists(render *r, value a, value b)
{
    value out = gr_chat_new_list(r, a.list->shape);
    for (size_t i = 0; i < a.list->n; i++) gr_chat_list_push(r, out.list, a.list->v[i]);
    for (size_t i = 0; i < b.list->n; i++) gr_chat_list_push(r, out.list, b.list->v[i]);
    return out;
}

static bool is_sequence(value v)
{
    return (v.kind == V_STRING && !v.s.safe) || (v.kind == V_LIST && v.list->shape <= TUPLE);
}

/* A string or a list n times. */
static value repeat(render *r, value v, int64_t n)
{
    builder b = {0};
    value out = v.kind == V_LIST ? gr_chat_new_list(r, v.list->shape) : undefined;
    for (int64_t i = 0; i < n && gr_chat_spend(r, 1) && b.s.len <= CHAT_MAX_BYTES; i++) {
        if (v.kind == V_STRING) gr_chat_put_value(r, &b, v);
        for (size_t k = 0; v.kind == V_LIST && k < v.list->n; k++)
            gr_chat_list_push(r, out.list, v.list->v[k]);
    }
    return v.kind == V_STRING ? gr_chat_take(r, &b) : out;
}

value gr_chat_binary(render *r, const node *at, value a, value b)
{
    bool both_lists = a.kind == V_LIST && b.kind == V_LIST && a.list->shape == b.list->shape;
    if (at->op == OP_CONCAT) return concat(r, a, b);
    if (at->op == OP_ADD && a.kind == V_STRING && b.kind == V_STRING) return add_texts(r, a, b);
    if (at->op == OP_ADD && both_lists && a.list->shape <= TUPLE) return add_lists(r, a, b);
    if (is_whole(a) && is_whole(b)) return int_op(r, at, whole(a), whole(b));
    if (is_number(a) && is_number(b)) return float_op(r, at, number(a), number(b));
    if (at->op == OP_MUL && is_sequence(a) && is_whole(b)) return repeat(r, a, whole(b));
    if (at->op == OP_MUL && is_whole(a) && is_sequence(b)) return repeat(r, b, whole(a));
    if (at->op == OP_MOD && a.kind == V_STRING) return gr_chat_fail(r, at, "%% on a string is not supported");
    return gr_chat_fail(r, at, "no such operation on %s and %s", kind_name(a), kind_name(b));
}

/* ---- comparing ---------------------------------------------------------------------------------------- */

int gr_chat_order(render *r, const node *at, value a, value b)
{
    if (a.kind == V_STRING && b.kind == V_STRING) return gr_chat_text_compare(a.s, b.s);
    if (is_whole(a) && is_whole(b)) return (whole(a) > whole(b)) - (whole(a) < whole(b));
    if (is_number(a) && is_number(b)) return (number(a) > number(b)) - (number(a) < number(b));
    if (a.kind == V_LIST && b.kind == V_LIST)
        gr_chat_fail(r, at, "an order of lists is not supported");
    else
        gr_chat_fail(r, at, "only two numbers or two strings have an order");
    return 0;
}

value gr_chat_compare(render *r, const node *at, op o, value a, value b)
{
    if (o == OP_EQ || o == OP_NE) return gr_chat_bool(gr_chat_equal(a, b) == (o == OP_EQ));
    if (o == OP_IN || o == OP_NOT_IN) return gr_chat_bool(gr_chat_contains(r, at, b, a) == (o == OP_IN));
    bool nan = (a.kind == V_FLOAT && isnan(a.f)) || (b.kind == V_FLOAT && isnan(b.f));
    int order = gr_chat_order(r, at, a, b);
    if (r->st != GR_OK) return undefined;
    return gr_chat_bool(!nan && (o == OP_LT   ? order < 0
                                 : o == OP_LE ? order <= 0
                                 : o == OP_GT ? order > 0
                                              : order >= 0));
}

/* ---- parts -------------------------------------------------------------------------------------------- */

static value item_at(render *r, const node *at, value of, int64_t i)
{
    value items = of.kind == V_STRING ? gr_chat_items(r, at, of) : of;
    int64_t n = r->st == GR_OK ? (int64_t)items.list->n : 0;
    if (i < 0) i += n;
    return i >= 0 && i < n ? items.list->v[i] : undefined;
}

value gr_chat_item(render *r, const node *at, value of, value key)
{
    bool indexed = of.kind == V_STRING || (of.kind == V_LIST && of.list->shape <= RANGE);
    if (!gr_chat_usable(r, at, of)) return undefined;
    if (indexed && is_whole(key)) return item_at(r, at, of, whole(key));
    if (key.kind != V_STRING) return undefined;
    const value *found = of.kind == V_DICT ? gr_chat_dict_get(of.dict, key.s.s, key.s.n) : NULL;
    return found ? *found : gr_chat_attribute(r, at, of, gr_arena_strndup(r->arena, key.s.s, key.s.n));
}
