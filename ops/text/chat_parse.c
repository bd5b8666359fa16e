/* ops/text/chat_parse.c: the text of a chat template to its tree. */
#include "ops/text/chat_lex.h"

#include <stdio.h>
#include <string.h>

/* ---- the tree and the lexemes ------------------------------------------------------------------------- */

static node *new_node(parser *p, node_kind kind, size_t at)
{
    node *x = gr_arena_alloc(p->arena, sizeof(*x));
    x->kind = kind;
    x->depth = 1;
    gr_lex_place(p, at, &x->line, &x->col);
    return x;
}

/* Note that x has the child; refuses trees too deep to walk. */
static node *adopt(parser *p, node *x, const node *child)
{
    for (; child; child = child->next) x->depth = GR_MAX(x->depth, child->depth + 1);
    if (x->depth > CHAT_MAX_DEPTH) gr_lex_fail(p, p->tok.at, "nested too deeply");
    return x;
}

static bool is_op(const parser *p, const char *op_text)
{
    return p->tok.kind == T_OP && !strcmp(p->tok.text, op_text);
}

static bool is_word(const parser *p, const char *word)
{
    return p->tok.kind == T_NAME && !strcmp(p->tok.text, word);
}

static bool take_op(parser *p, const char *op_text)
{
    if (!is_op(p, op_text)) return false;
    gr_lex_next(p);
    return true;
}

static bool take_word(parser *p, const char *word)
{
    if (!is_word(p, word)) return false;
    gr_lex_next(p);
    return true;
}

static void unexpected(parser *p, const char *wanted)
{
    gr_lex_fail(p, p->tok.at, "expected %s, not '%.*s'", wanted, (int)GR_MIN(p->tok.n, 40), p->tok.text);
}

static void want_op(parser *p, const char *op_text)
{
    char quoted[8];
    snprintf(quoted, sizeof(quoted), "'%s'", op_text);
    if (!take_op(p, op_text)) unexpected(p, quoted);
}

static void want_word(parser *p, const char *word)
{
    char quoted[32];
    snprintf(quoted, sizeof(quoted), "'%s'", word);
    if (!take_word(p, word)) unexpected(p, quoted);
}

static const char *want_name(parser *p, const char *what)
{
    const char *name = p->tok.text;
    if (p->tok.kind == T_NAME)
        gr_lex_next(p);
    else
        unexpected(p, what);
    return name;
}

/* ---- expressions -------------------------------------------------------------------------------------- */

static node *parse_expr(parser *p);
static node *parse_or(parser *p);
static node *parse_unary(parser *p, bool with_filter);

static void append(node **first, node *x)
{
    while (*first) first = &(*first)->next;
    *first = x;
}

/* Arguments up to and including the closing mark; names and stars in calls only. */
static node *parse_args(parser *p, const char *close, bool call)
{
    node *first = NULL, **last = &first;
    while (p->st == GR_OK && !is_op(p, close)) {
        node *arg = new_node(p, N_ARG, p->tok.at), *e;
        if (call && take_op(p, "**"))
            arg->kind = N_STAR_STAR;
        else if (call && take_op(p, "*"))
            arg->kind = N_STAR;
        e = parse_expr(p);
        if (call && arg->kind == N_ARG && e->kind == N_NAME && take_op(p, "=")) {
            arg->text = e->text;
            e = parse_expr(p);
        }
        arg->a = e;
        *last = adopt(p, arg, e);
        last = &arg->next;
        if (!is_op(p, close)) want_op(p, ",");
    }
    want_op(p, close);
    return first;
}

static node *parse_dict(parser *p, size_t at)
{
    node *x = new_node(p, N_DICT, at);
    while (p->st == GR_OK && !is_op(p, "}")) {
        node *k = new_node(p, N_ARG, p->tok.at), *v = new_node(p, N_ARG, p->tok.at);
        k->a = parse_expr(p);
        want_op(p, ":");
        v->a = parse_expr(p);
        append(&x->args, adopt(p, k, k->a));
        append(&x->args, adopt(p, v, v->a));
        if (!is_op(p, "}")) want_op(p, ",");
    }
    want_op(p, "}");
    return adopt(p, x, x->args);
}

static node *parse_strings(parser *p)
{
    node *x = new_node(p, N_STRING, p->tok.at);
    gr_str s = {0};
    for (; p->tok.kind == T_STRING; gr_lex_next(p)) gr_str_add(&s, p->tok.text, p->tok.n);
    x->n = s.len;
    x->text = gr_arena_strndup(p->arena, s.text ? s.text : "", s.len);
    gr_str_release(&s);
    return x;
}

static node *parse_name(parser *p)
{
    static const struct {
        const char *word;
        node_kind kind;
        bool is_true;
    } constants[] = {{"true", N_BOOL, true},   {"True", N_BOOL, true},  {"false", N_BOOL, false},
                     {"False", N_BOOL, false}, {"none", N_NONE, false}, {"None", N_NONE, false}};
    node *x = new_node(p, N_NAME, p->tok.at);
    x->text = p->tok.text;
    x->n = p->tok.n;
    for (size_t i = 0; i < GR_LEN(constants); i++)
        if (is_word(p, constants[i].word)) {
            x->kind = constants[i].kind;
            x->i = constants[i].is_true;
        }
    gr_lex_next(p);
    return x;
}

/* What may follow the last comma of a tuple. */
static bool is_tuple_end(const parser *p)
{
    return p->tok.kind == T_END || p->tok.kind == T_EOF || is_op(p, ")") || is_op(p, "]") ||
           is_word(p, "recursive");
}

/* One expression, or several with commas between: a tuple, also without brackets around it. */
static node *parse_tuple(parser *p, node *(*parse)(parser *))
{
    size_t at = p->tok.at;
    node *x = parse(p);
    if (!is_op(p, ",")) return x;
    node *tuple = new_node(p, N_TUPLE, at), **last = &tuple->args;
    for (;; x = parse(p)) {
        node *arg = new_node(p, N_ARG, at);
        arg->a = x;
        *last = adopt(p, arg, x);
        last = &arg->next;
        if (!take_op(p, ",") || is_tuple_end(p)) break;
    }
    return adopt(p, tuple, tuple->args);
}

static node *parse_primary(parser *p)
{
    size_t at = p->tok.at;
    node *x;
    switch (p->tok.kind) {
    case T_NAME:
        return parse_name(p);
    case T_STRING:
        return parse_strings(p);
    case T_INT:
    case T_FLOAT:
        x = new_node(p, p->tok.kind == T_INT ? N_INT : N_FLOAT, at);
        x->i = p->tok.i;
        x->f = p->tok.f;
        gr_lex_next(p);
        return x;
    default:
        break;
    }
    if (take_op(p, "[")) {
        x = new_node(p, N_LIST, at);
        x->args = parse_args(p, "]", false);
        return adopt(p, x, x->args);
    }
    if (take_op(p, "{")) return parse_dict(p, at);
    if (take_op(p, "(")) {
        x = is_op(p, ")") ? new_node(p, N_TUPLE, at) : parse_tuple(p, parse_expr);
        want_op(p, ")");
        return x;
    }
    unexpected(p, "an expression");
    return new_node(p, N_NONE, at);
}

/* After "[": an index, or start:stop:step with any left out. */
static node *parse_subscript(parser *p, node *a, size_t at)
{
    node *x = new_node(p, N_INDEX, at), *part[3] = {NULL};
    bool slice = false;
    for (int i = 0; i < 3 && p->st == GR_OK && !is_op(p, "]"); i++) {
        if (!is_op(p, ":")) part[i] = parse_expr(p);
        if (is_op(p, ",")) gr_lex_fail(p, p->tok.at, "a tuple as an index is not supported");
        if (!is_op(p, "]") && i < 2) {
            want_op(p, ":");
            slice = true;
        }
    }
    x->a = a;
    if (slice) {
        x->kind = N_SLICE;
        for (int i = 0; i < 3; i++) {
            node *arg = new_node(p, N_ARG, at);
            arg->a = part[i];
            append(&x->args, adopt(p, arg, part[i]));
        }
    } else if (part[0]) {
        x->b = part[0];
    } else {
        unexpected(p, "an index");
    }
    want_op(p, "]");
    return adopt(p, adopt(p, adopt(p, x, a), x->b), x->args);
}

static node *parse_postfix(parser *p, node *x)
{
    while (p->st == GR_OK) {
        size_t at = p->tok.at;
        node *y;
        if (is_op(p, ".")) {
            gr_lex_next(p);
            if (p->tok.kind == T_INT) { /* x.0 */
                y = new_node(p, N_INDEX, at);
                y->a = x;
                y->b = parse_primary(p);
                x = adopt(p, adopt(p, y, x), y->b);
                continue;
            }
            y = new_node(p, N_ATTR, at);
            y->text = want_name(p, "an attribute's name");
            y->n = strlen(y->text);
            y->a = x;
            x = adopt(p, y, x);
        } else if (take_op(p, "[")) {
            x = parse_subscript(p, x, at);
        } else if (take_op(p, "(")) {
            y = new_node(p, N_CALL, at);
            y->a = x;
            y->args = parse_args(p, ")", true);
            x = adopt(p, adopt(p, y, x), y->args);
        } else {
            break;
        }
    }
    return x;
}

/* "is [not] name", with arguments in brackets or one without. */
static node *parse_test(parser *p, node *x, size_t at)
{
    node *y = new_node(p, N_TEST, at), *no = NULL;
    if (is_word(p, "not")) {
        no = new_node(p, N_NOT, at);
        gr_lex_next(p);
    }
    y->text = want_name(p, "a test's name");
    y->n = strlen(y->text);
    y->a = x;
    bool ends = is_word(p, "else") || is_word(p, "or") || is_word(p, "and") || is_word(p, "is") ||
                is_word(p, "if") || is_word(p, "in") || is_word(p, "not");
    if (take_op(p, "(")) {
        y->args = parse_args(p, ")", true);
    } else if ((p->tok.kind >= T_NAME && p->tok.kind <= T_FLOAT && !ends) || is_op(p, "[") || is_op(p, "{")) {
        y->args = new_node(p, N_ARG, p->tok.at);
        y->args->a = parse_postfix(p, parse_primary(p));
        adopt(p, y->args, y->args->a);
    }
    adopt(p, adopt(p, y, x), y->args);
    if (!no) return y;
    no->a = y;
    return adopt(p, no, y);
}

/* name, or name(args), after "|". */
static node *parse_filter(parser *p, node *x)
{
    node *y = new_node(p, N_FILTER, p->tok.at);
    y->text = want_name(p, "a filter's name");
    y->n = strlen(y->text);
    y->a = x;
    if (take_op(p, "(")) y->args = parse_args(p, ")", true);
    return adopt(p, adopt(p, y, x), y->args);
}

static node *parse_filters(parser *p, node *x)
{
    while (p->st == GR_OK) {
        size_t at = p->tok.at;
        if (take_op(p, "|")) {
            x = parse_filter(p, x);
        } else if (take_word(p, "is")) {
            x = parse_test(p, x, at);
        } else {
            break;
        }
    }
    return x;
}

static node *parse_unary(parser *p, bool with_filter)
{
    node *x;
    size_t at = p->tok.at;
    if (++p->depth > CHAT_MAX_DEPTH) gr_lex_fail(p, at, "nested too deeply");
    if (is_op(p, "-") || is_op(p, "+")) {
        x = new_node(p, is_op(p, "-") ? N_NEG : N_POS, at);
        gr_lex_next(p);
        x->a = parse_unary(p, false);
        adopt(p, x, x->a);
    } else {
        x = parse_postfix(p, parse_primary(p));
    }
    p->depth--;
    return with_filter ? parse_filters(p, x) : x;
}

typedef struct binary_op {
    const char *text;
    op op;
} binary_op;

static node *join(parser *p, node_kind kind, size_t at, op o, node *a, node *b)
{
    node *x = new_node(p, kind, at);
    x->op = o;
    x->a = a;
    x->b = b;
    return adopt(p, adopt(p, x, a), b);
}

/* One level of left-associative operators; the last level binds most. */
static node *parse_binary(parser *p, int level)
{
    static const binary_op ops[4][5] = {
        {{"+", OP_ADD}, {"-", OP_SUB}},
        {{"~", OP_CONCAT}},
        {{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}},
        {{"**", OP_POW}},
    };
    node *x = level < 3 ? parse_binary(p, level + 1) : parse_unary(p, true);
    for (const binary_op *o = ops[level]; p->st == GR_OK && o->text;) {
        size_t at = p->tok.at;
        if (!take_op(p, o->text)) {
            o++;
            continue;
        }
        x = join(p, N_BINARY, at, o->op, x, level < 3 ? parse_binary(p, level + 1) : parse_unary(p, true));
        o = ops[level];
    }
    return x;
}

static bool take_comparison(parser *p, op *o)
{
    static const binary_op ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE},
                                    {">=", OP_GE}, {"<", OP_LT},  {">", OP_GT}};
    for (size_t i = 0; i < GR_LEN(ops); i++)
        if (take_op(p, ops[i].text)) {
            *o = ops[i].op;
            return true;
        }
    *o = OP_IN;
    if (take_word(p, "in")) return true;
    if (!take_word(p, "not")) return false;
    *o = OP_NOT_IN;
    want_word(p, "in");
    return true;
}

static node *parse_compare(parser *p)
{
    node *x = parse_binary(p, 0), *whole = NULL;
    op o;
    for (size_t at = p->tok.at; p->st == GR_OK && take_comparison(p, &o);
         at = p->tok.at) { /* a < b < c: both */
        node *right = parse_binary(p, 0), *one = join(p, N_COMPARE, at, o, x, right);
        whole = whole ? join(p, N_AND, at, o, whole, one) : one;
        x = right;
    }
    return whole ? whole : x;
}

static node *parse_not(parser *p)
{
    size_t at = p->tok.at;
    if (!take_word(p, "not")) return parse_compare(p);
    node *x = new_node(p, N_NOT, at);
    if (++p->depth > CHAT_MAX_DEPTH) gr_lex_fail(p, at, "nested too deeply");
    x->a = parse_not(p);
    p->depth--;
    return adopt(p, x, x->a);
}

static node *parse_and(parser *p)
{
    node *x = parse_not(p);
    for (size_t at = p->tok.at; take_word(p, "and"); at = p->tok.at)
        x = join(p, N_AND, at, OP_ADD, x, parse_not(p));
    return x;
}

static node *parse_or(parser *p)
{
    node *x = parse_and(p);
    for (size_t at = p->tok.at; take_word(p, "or"); at = p->tok.at)
        x = join(p, N_OR, at, OP_ADD, x, parse_and(p));
    return x;
}

static node *parse_expr(parser *p)
{
    if (++p->depth > CHAT_MAX_DEPTH) gr_lex_fail(p, p->tok.at, "nested too deeply");
    node *x = parse_or(p);
    for (size_t at = p->tok.at; take_word(p, "if"); at = p->tok.at) {
        node *y = new_node(p, N_COND, at);
        y->b = x;
        y->a = parse_or(p);
        if (take_word(p, "else")) y->c = parse_expr(p);
        x = adopt(p, adopt(p, adopt(p, y, y->a), y->b), y->c);
    }
    p->depth--;
    return x;
}

/* ---- statements --------------------------------------------------------------------------------------- */

/* Statements up to a tag whose word is in `ends` (a list with spaces around each word), which is taken into
 * *end; at the top level `ends` is NULL. Stops after that word. */
static node *parse_body(parser *p, const char *ends, const char **end);

static void want_end(parser *p)
{
    if (p->tok.kind != T_END) unexpected(p, "the end of the tag");
}

static node *parse_if(parser *p, size_t at)
{
    node *x = new_node(p, N_IF, at);
    const char *end = "";
    if (++p->depth > CHAT_MAX_DEPTH) gr_lex_fail(p, at, "nested too deeply");
    x->a = parse_tuple(p, parse_or);
    want_end(p);
    x->body = parse_body(p, " elif else endif ", &end);
    if (!strcmp(end, "elif")) {
        x->or_else = parse_if(p, p->tok.at); /* takes the endif */
    } else {
        if (!strcmp(end, "else")) {
            want_end(p);
            x->or_else = parse_body(p, " endif ", &end);
        }
        want_end(p);
    }
    p->depth--;
    return adopt(p, adopt(p, adopt(p, x, x->a), x->body), x->or_else);
}

/* Names with commas between, with brackets around them or not. */
static node *parse_targets(parser *p)
{
    node *first = NULL;
    bool brackets = take_op(p, "(");
    do {
        node *name = new_node(p, N_NAME, p->tok.at);
        if (is_op(p, "(")) gr_lex_fail(p, p->tok.at, "a tuple of variables in another is not supported");
        name->text = want_name(p, "a variable's name");
        name->n = strlen(name->text);
        append(&first, name);
    } while (take_op(p, ",") && !is_word(p, "in") && !is_op(p, "="));
    if (brackets) want_op(p, ")");
    return first;
}

static node *parse_for(parser *p, size_t at)
{
    node *x = new_node(p, N_FOR, at);
    const char *end = "";
    x->args = parse_targets(p);
    want_word(p, "in");
    x->a = parse_tuple(p, parse_or); /* "if" after it is the loop's own */
    if (take_word(p, "if")) x->b = parse_or(p);
    if (is_word(p, "recursive")) gr_lex_fail(p, p->tok.at, "recursive loops are not supported");
    want_end(p);
    p->loops++;
    x->body = parse_body(p, " else endfor ", &end);
    p->loops--;
    want_end(p);
    if (!strcmp(end, "else")) {
        x->or_else = parse_body(p, " endfor ", &end);
        want_end(p);
    }
    return adopt(p, adopt(p, adopt(p, adopt(p, x, x->a), x->b), x->body), x->or_else);
}

static node *parse_jump(parser *p, size_t at, node_kind kind, const char *word)
{
    if (!p->loops) gr_lex_fail(p, at, "'%s' outside a loop", word);
    want_end(p);
    return new_node(p, kind, at);
}

static node *parse_break(parser *p, size_t at)
{
    return parse_jump(p, at, N_BREAK, "break");
}

static node *parse_continue(parser *p, size_t at)
{
    return parse_jump(p, at, N_CONTINUE, "continue");
}

/* x stands above a capture, whose body was read after what lies between. */
static node *above_capture(parser *p, node *x, const node *capture)
{
    if (x != capture) x->depth += capture->depth;
    return adopt(p, x, NULL);
}

/* The statements up to the tag `end`, whose text is a value, through the filters that follow here. */
static node *parse_capture(parser *p, size_t at, const char *end)
{
    node *capture = new_node(p, N_CAPTURE, at), *x = capture;
    const char *found;
    while (p->st == GR_OK && p->tok.kind != T_END) {
        want_op(p, "|");
        x = parse_filter(p, x);
    }
    want_end(p);
    capture->body = parse_body(p, end, &found);
    want_end(p);
    adopt(p, capture, capture->body);
    return above_capture(p, x, capture);
}

static node *parse_set(parser *p, size_t at)
{
    node *x = new_node(p, N_SET, at);
    x->args = parse_targets(p);
    if (take_op(p, ".")) {
        x->kind = N_SET_ATTR;
        x->b = x->args;
        x->text = want_name(p, "an attribute's name");
        x->n = strlen(x->text);
    }
    if (p->tok.kind == T_END || is_op(p, "|")) {
        x->a = parse_capture(p, at, " endset ");
    } else {
        want_op(p, "=");
        x->a = parse_tuple(p, parse_expr);
        want_end(p);
    }
    return adopt(p, x, x->a);
}

/* {% filter upper %} */
static node *parse_filter_block(parser *p, size_t at)
{
    node *capture = new_node(p, N_CAPTURE, at), *x = new_node(p, N_OUTPUT, at);
    const char *end;
    x->a = parse_filter(p, capture);
    while (take_op(p, "|")) x->a = parse_filter(p, x->a);
    want_end(p);
    capture->body = parse_body(p, " endfilter ", &end);
    want_end(p);
    adopt(p, capture, capture->body);
    x->depth = x->a->depth;
    return above_capture(p, x, capture);
}

/* A body that is no part of the loop around it. */
static node *parse_own_body(parser *p, const char *ends)
{
    unsigned loops = p->loops;
    const char *end;
    p->loops = 0;
    node *body = parse_body(p, ends, &end);
    p->loops = loops;
    want_end(p);
    return body;
}

/* transformers marks with it what the assistant wrote; the text is the same. */
static node *parse_generation(parser *p, size_t at)
{
    node *x = new_node(p, N_SCOPE, at);
    want_end(p);
    x->body = parse_own_body(p, " endgeneration ");
    return adopt(p, x, x->body);
}

static node *parse_with(parser *p, size_t at)
{
    node *x = new_node(p, N_SCOPE, at);
    const char *end;
    while (p->st == GR_OK && p->tok.kind != T_END) {
        node *arg = new_node(p, N_ARG, p->tok.at);
        arg->text = want_name(p, "a variable's name");
        arg->n = strlen(arg->text);
        want_op(p, "=");
        arg->a = parse_expr(p);
        append(&x->args, adopt(p, arg, arg->a));
        if (p->tok.kind != T_END) want_op(p, ",");
    }
    want_end(p);
    x->body = parse_body(p, " endwith ", &end);
    want_end(p);
    return adopt(p, adopt(p, x, x->args), x->body);
}

/* "(name, name=default, ...)" */
static node *parse_params(parser *p)
{
    node *first = NULL;
    want_op(p, "(");
    while (p->st == GR_OK && !is_op(p, ")")) {
        node *arg = new_node(p, N_ARG, p->tok.at);
        arg->text = want_name(p, "a parameter's name");
        arg->n = strlen(arg->text);
        if (take_op(p, "=")) arg->a = parse_expr(p);
        append(&first, adopt(p, arg, arg->a));
        if (!is_op(p, ")")) want_op(p, ",");
    }
    want_op(p, ")");
    return first;
}

static node *parse_macro(parser *p, size_t at)
{
    node *x = new_node(p, N_MACRO, at);
    x->text = want_name(p, "a macro's name");
    x->n = strlen(x->text);
    x->args = parse_params(p);
    want_end(p);
    x->body = parse_own_body(p, " endmacro ");
    return adopt(p, adopt(p, x, x->args), x->body);
}

static node *parse_call_block(parser *p, size_t at)
{
    node *x = new_node(p, N_CALL_BLOCK, at), *caller = new_node(p, N_MACRO, at);
    caller->text = "caller";
    caller->n = strlen(caller->text);
    if (is_op(p, "(")) caller->args = parse_params(p);
    x->a = parse_unary(p, true);
    if (x->a->kind != N_CALL) gr_lex_fail(p, at, "'call' needs a call of a macro");
    want_end(p);
    caller->body = parse_own_body(p, " endcall ");
    x->b = adopt(p, adopt(p, caller, caller->args), caller->body);
    return adopt(p, adopt(p, x, x->a), x->b);
}

/* The text up to the next tag, less the white space that the tag takes; NULL where none is left. */
static node *parse_text(parser *p)
{
    size_t begin = p->at, tag = begin;
    while (tag < p->n &&
           !(p->s[tag] == '{' && tag + 1 < p->n && strchr("{%#", p->s[tag + 1]) && p->s[tag + 1]))
        tag++;
    size_t end = tag;
    char kind = tag < p->n ? p->s[tag + 1] : '\0', sign = tag + 2 < p->n ? p->s[tag + 2] : '\0';
    if (kind && sign == '-') {
        while (end > begin && gr_lex_is_blank(p->s[end - 1])) end--;
    } else if ((kind == '%' || kind == '#') && sign != '+') {
        size_t line = end;
        while (line > begin && gr_lex_is_blank(p->s[line - 1]) && p->s[line - 1] != '\n') line--;
        if (line > begin ? p->s[line - 1] == '\n' : p->line_starting) end = line;
    }
    p->at = tag;
    if (begin == end) return NULL;
    node *x = new_node(p, N_TEXT, begin);
    x->text = gr_arena_strndup(p->arena, p->s + begin, end - begin);
    x->n = end - begin;
    return x;
}

static node *parse_output(parser *p, size_t at)
{
    node *x = new_node(p, N_OUTPUT, at);
    x->a = parse_tuple(p, parse_expr);
    want_end(p);
    return adopt(p, x, x->a);
}

static node *parse_statement(parser *p, size_t at)
{
    static const struct {
        const char *word;
        node *(*parse)(parser *, size_t);
    } statements[] = {
        {"if", parse_if},           {"for", parse_for},
        {"set", parse_set},         {"macro", parse_macro},
        {"break", parse_break},     {"continue", parse_continue},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"generation", parse_generation},
    };
    for (size_t i = 0; i < GR_LEN(statements); i++)
        if (take_word(p, statements[i].word)) return statements[i].parse(p, at);
    if (p->tok.kind == T_NAME)
        gr_lex_fail(p, p->tok.at, "statement '%s' is not supported", p->tok.text);
    else
        unexpected(p, "a statement");
    return NULL;
}

/* Whether the words, with spaces around each, have the word. */
static bool in_words(const char *words, const char *word)
{
    char padded[32];
    int n = snprintf(padded, sizeof(padded), " %s ", word);
    return words && n < (int)sizeof(padded) && strstr(words, padded);
}

static node *parse_body(parser *p, const char *ends, const char **end)
{
    node *first = NULL, **last = &first;
    if (++p->depth > CHAT_MAX_DEPTH) gr_lex_fail(p, p->at, "nested too deeply");
    while (p->st == GR_OK) {
        node *x = parse_text(p);
        if (x) {
            *last = x;
            last = &x->next;
        }
        size_t at = p->at;
        if (at >= p->n) {
            if (ends) gr_lex_fail(p, at, "the text ends before one of:%s", ends);
            break;
        }
        if (p->s[at + 1] == '#') {
            gr_lex_comment(p);
            continue;
        }
        gr_lex_open(p);
        if (!p->in_output && p->tok.kind == T_NAME && in_words(ends, p->tok.text)) {
            *end = p->tok.text;
            gr_lex_next(p);
            break;
        }
        if (p->st != GR_OK) break;
        x = p->in_output ? parse_output(p, at) : parse_statement(p, at);
        if (x) {
            *last = x;
            last = &x->next;
        }
    }
    p->depth--;
    return first;
}

gr_status gr_chat_parse(gr_arena *arena, const char *source, size_t n, node **body, gr_diag *d)
{
    gr_str s = {0};
    for (size_t i = 0; i < n; i++) /* lines end in \n; the text's last line end is no part of it */
        if (source[i] != '\r')
            gr_str_putc(&s, source[i]);
        else if (i + 1 == n || source[i + 1] != '\n')
            gr_str_putc(&s, '\n');
    if (s.len && s.text[s.len - 1] == '\n') s.len--;
    parser p = {.arena = arena,
                .d = d,
                .s = s.text ? s.text : "",
                .n = s.len,
                .line_starting = true,
                .line = 1,
                .col = 1};
    *body = parse_body(&p, NULL, NULL);
    gr_str_release(&s);
    return p.st;
}
