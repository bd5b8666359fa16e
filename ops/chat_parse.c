/* ops/chat_parse.c: the text of a chat template to its tree. */
#include "ops/chat_impl.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

typedef enum token_kind { T_EOF, T_END, T_NAME, T_STRING, T_INT, T_FLOAT, T_OP } token_kind;

typedef struct lexeme {
    token_kind kind; /* T_END: the tag's end, "%}" or "}}" */
    const char *text;
    size_t n, at;
    int64_t i;
    double f;
} lexeme;

typedef struct parser {
    gr_pool *pool;
    gr_diag *d;
    gr_status st;
    const char *s;
    size_t n, at;
    bool in_output;     /* the open tag is "{{" */
    bool line_starting; /* the text at `at` begins a line */
    lexeme tok;
    unsigned depth, brackets; /* brackets: open in this tag */
    unsigned line, col;       /* of byte `counted`, so that places cost no second walk */
    size_t counted;
} parser;

/* ---- places and messages ------------------------------------------------------------------------------ */

static void place(parser *p, size_t at, unsigned *line, unsigned *col)
{
    if (at < p->counted) {
        p->counted = 0;
        p->line = p->col = 1;
    }
    for (; p->counted < at; p->counted++) {
        if (p->s[p->counted] == '\n') {
            p->line++;
            p->col = 1;
        } else {
            p->col += (p->s[p->counted] & 0xc0) != 0x80; /* characters, not bytes */
        }
    }
    *line = p->line;
    *col = p->col;
}

/* The first error stands; after it everything looks like the end of the text, so that all loops end. */
GR_PRINTF(3, 4)
static void fail(parser *p, size_t at, const char *fmt, ...)
{
    if (p->st != GR_OK) return;
    gr_str s = {0};
    gr_loc loc = {.file = CHAT_FILE};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    place(p, at, &loc.line, &loc.col);
    p->st = gr_diag_error(p->d, loc, GR_E_INVALID, "%s", s.text);
    gr_str_release(&s);
    p->at = p->n;
    p->tok = (lexeme){.kind = T_EOF, .text = "", .at = p->n};
}

static node *new_node(parser *p, node_kind kind, size_t at)
{
    node *x = gr_pool_alloc(p->pool, sizeof(*x));
    x->kind = kind;
    x->depth = 1;
    place(p, at, &x->line, &x->col);
    return x;
}

/* Note that x has the child; refuses trees too deep to walk. */
static node *adopt(parser *p, node *x, const node *child)
{
    for (; child; child = child->next) x->depth = GR_MAX(x->depth, child->depth + 1);
    if (x->depth > CHAT_MAX_DEPTH) fail(p, p->tok.at, "nested too deeply");
    return x;
}

/* ---- lexemes inside a tag ----------------------------------------------------------------------------- */

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void put_code_point(parser *p, gr_str *out, const char *digits, size_t n, size_t at)
{
    char hex[9] = {0}, *end;
    utf8proc_uint8_t utf8[4];
    memcpy(hex, digits, n);
    unsigned long c = strtoul(hex, &end, 16);
    if (end != hex + n || !utf8proc_codepoint_valid((utf8proc_int32_t)c))
        fail(p, at, "bad escape in string");
    else
        gr_str_add(out, (char *)utf8, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, utf8));
}

/* One backslash escape at p->at; moves past it. */
static void read_escape(parser *p, gr_str *out)
{
    static const char from[] = "ntr'\"\\bfav0", to[] = "\n\t\r'\"\\\b\f\a\v";
    char c = p->at + 1 < p->n ? p->s[p->at + 1] : '\0';
    const char *known = c ? strchr(from, c) : NULL;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    size_t at = p->at;
    if (digits && p->n - p->at < 2 + digits) {
        fail(p, at, "bad escape in string");
        return;
    }
    p->at += 2 + digits;
    if (digits)
        put_code_point(p, out, p->s + at + 2, digits, at);
    else if (known)
        gr_str_putc(out, to[known - from]);
    else if (c != '\n') /* a line continued */
        gr_str_add(out, p->s + at, 2);
}

static void read_string(parser *p)
{
    char quote = p->s[p->at];
    size_t start = p->at++;
    gr_str out = {0};
    while (p->at < p->n && p->s[p->at] != quote) {
        if (p->s[p->at] == '\\' && p->at + 1 < p->n)
            read_escape(p, &out);
        else
            gr_str_putc(&out, p->s[p->at++]);
    }
    if (p->at < p->n) {
        p->at++;
        p->tok = (lexeme){.kind = T_STRING,
                          .text = gr_pool_strndup(p->pool, out.text ? out.text : "", out.len),
                          .n = out.len,
                          .at = start};
    } else {
        fail(p, start, "unterminated string");
    }
    gr_str_release(&out);
}

static void read_number(parser *p)
{
    size_t start = p->at;
    char digits[64];
    bool real = false;
    size_t n = 0;
    for (; p->at < p->n && n + 1 < sizeof(digits); p->at++) {
        char c = p->s[p->at];
        bool point =
            c == '.' && !real && p->at + 1 < p->n && p->s[p->at + 1] >= '0' && p->s[p->at + 1] <= '9';
        if (!point && (c < '0' || c > '9')) break;
        real |= point;
        digits[n++] = c;
    }
    digits[n] = '\0';
    if (n > 18 && !real) fail(p, start, "number '%s' is too large", digits);
    if (p->at < p->n && is_name_char(p->s[p->at])) fail(p, start, "bad number '%s%c'", digits, p->s[p->at]);
    if (p->st != GR_OK) return;
    p->tok = (lexeme){.kind = real ? T_FLOAT : T_INT, .text = p->s + start, .n = n, .at = start};
    p->tok.i = real ? 0 : strtoll(digits, NULL, 10);
    p->tok.f = strtod(digits, NULL);
}

/* At the end of a tag: step over it and the white space it takes. */
static bool read_tag_end(parser *p)
{
    const char *end = p->in_output ? "}}" : "%}";
    size_t at = p->at;
    char sign = p->s[at] == '-' || p->s[at] == '+' ? p->s[at++] : '\0';
    if (p->brackets || p->n - at < 2 || memcmp(p->s + at, end, 2)) return false;
    p->tok = (lexeme){.kind = T_END, .text = end, .n = 2, .at = p->at};
    p->at = at + 2;
    if (sign == '-')
        while (p->at < p->n && is_blank(p->s[p->at])) p->at++;
    else if (!p->in_output && sign != '+' && p->at < p->n && p->s[p->at] == '\n')
        p->at++;
    p->line_starting = p->s[p->at - 1] == '\n';
    return true;
}

static void next(parser *p)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
    if (p->st != GR_OK) return;
    while (p->at < p->n && is_blank(p->s[p->at])) p->at++;
    if (p->at >= p->n) {
        fail(p, p->n, "the text ends inside a tag");
        return;
    }
    char c = p->s[p->at];
    size_t start = p->at;
    if (read_tag_end(p)) return;
    if (c == '"' || c == '\'') {
        read_string(p);
    } else if (c >= '0' && c <= '9') {
        read_number(p);
    } else if (is_name_char(c)) {
        while (p->at < p->n && is_name_char(p->s[p->at])) p->at++;
        size_t n = p->at - start;
        p->tok =
            (lexeme){.kind = T_NAME, .text = gr_pool_strndup(p->pool, p->s + start, n), .n = n, .at = start};
    } else if (c > 0 && strchr("+-*/%~<>=!.,:|()[]{}", c)) {
        size_t n = 1;
        for (size_t i = 0; i < GR_LEN(two); i++)
            if (p->n - start >= 2 && !memcmp(p->s + start, two[i], 2)) n = 2;
        if (strchr("([{", c)) p->brackets++;
        if (strchr(")]}", c) && p->brackets) p->brackets--;
        p->at += n;
        p->tok =
            (lexeme){.kind = T_OP, .text = gr_pool_strndup(p->pool, p->s + start, n), .n = n, .at = start};
    } else {
        fail(p, start, "unexpected character '%.*s'", (int)gr_chat_char_len(p->s + start, p->n - start),
             p->s + start);
    }
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
    next(p);
    return true;
}

static bool take_word(parser *p, const char *word)
{
    if (!is_word(p, word)) return false;
    next(p);
    return true;
}

static void unexpected(parser *p, const char *wanted)
{
    fail(p, p->tok.at, "expected %s, not '%.*s'", wanted, (int)GR_MIN(p->tok.n, 40), p->tok.text);
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
        next(p);
    else
        unexpected(p, what);
    return name;
}

/* ---- expressions -------------------------------------------------------------------------------------- */

static node *parse_expr(parser *p);
static node *parse_unary(parser *p, bool with_filter);

static void append(node **first, node *x)
{
    while (*first) first = &(*first)->next;
    *first = x;
}

/* Arguments up to and including the closing mark; names allowed in calls only. */
static node *parse_args(parser *p, const char *close, bool names)
{
    node *first = NULL, **last = &first;
    while (p->st == GR_OK && !is_op(p, close)) {
        node *arg = new_node(p, N_ARG, p->tok.at), *e = parse_expr(p);
        if (names && e->kind == N_NAME && take_op(p, "=")) {
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
    for (; p->tok.kind == T_STRING; next(p)) gr_str_add(&s, p->tok.text, p->tok.n);
    x->n = s.len;
    x->text = gr_pool_strndup(p->pool, s.text ? s.text : "", s.len);
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
    next(p);
    return x;
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
        next(p);
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
        x = parse_expr(p);
        if (is_op(p, ",")) fail(p, p->tok.at, "tuples are not supported");
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
        if (is_op(p, ",")) fail(p, p->tok.at, "tuples are not supported");
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
        node *y = NULL;
        if (take_op(p, ".")) {
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
        next(p);
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

static node *parse_filters(parser *p, node *x)
{
    while (p->st == GR_OK) {
        size_t at = p->tok.at;
        if (take_op(p, "|")) {
            node *y = new_node(p, N_FILTER, p->tok.at);
            y->text = want_name(p, "a filter's name");
            y->n = strlen(y->text);
            y->a = x;
            if (take_op(p, "(")) y->args = parse_args(p, ")", true);
            x = adopt(p, adopt(p, y, x), y->args);
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
    if (++p->depth > CHAT_MAX_DEPTH) fail(p, at, "nested too deeply");
    if (take_op(p, "-")) {
        x = new_node(p, N_NEG, at);
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

/* One level of left-associative operators; level 2 binds most. */
static node *parse_binary(parser *p, int level)
{
    static const binary_op ops[3][5] = {
        {{"+", OP_ADD}, {"-", OP_SUB}},
        {{"~", OP_CONCAT}},
        {{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}},
    };
    node *x = level < 2 ? parse_binary(p, level + 1) : parse_unary(p, true);
    for (const binary_op *o = ops[level]; p->st == GR_OK && o->text;) {
        size_t at = p->tok.at;
        if (!take_op(p, o->text)) {
            o++;
            continue;
        }
        x = join(p, N_BINARY, at, o->op, x, level < 2 ? parse_binary(p, level + 1) : parse_unary(p, true));
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
    if (++p->depth > CHAT_MAX_DEPTH) fail(p, at, "nested too deeply");
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
    if (++p->depth > CHAT_MAX_DEPTH) fail(p, p->tok.at, "nested too deeply");
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
    if (++p->depth > CHAT_MAX_DEPTH) fail(p, at, "nested too deeply");
    x->a = parse_expr(p);
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

static node *parse_for(parser *p, size_t at)
{
    node *x = new_node(p, N_FOR, at);
    const char *end = "";
    do {
        node *name = new_node(p, N_NAME, p->tok.at);
        name->text = want_name(p, "a variable's name");
        name->n = strlen(name->text);
        append(&x->args, name);
    } while (take_op(p, ","));
    want_word(p, "in");
    x->a = parse_or(p); /* "if" after it is the loop's own */
    if (take_word(p, "if")) x->b = parse_or(p);
    if (is_word(p, "recursive")) fail(p, p->tok.at, "recursive loops are not supported");
    want_end(p);
    x->body = parse_body(p, " else endfor ", &end);
    want_end(p);
    if (!strcmp(end, "else")) {
        x->or_else = parse_body(p, " endfor ", &end);
        want_end(p);
    }
    return adopt(p, adopt(p, adopt(p, adopt(p, x, x->a), x->b), x->body), x->or_else);
}

static node *parse_set(parser *p, size_t at)
{
    node *x = new_node(p, N_SET, at), *owner = new_node(p, N_NAME, p->tok.at);
    x->text = want_name(p, "a variable's name");
    if (take_op(p, ".")) {
        owner->text = x->text;
        owner->n = strlen(owner->text);
        x->kind = N_SET_ATTR;
        x->b = owner;
        x->text = want_name(p, "an attribute's name");
    }
    x->n = strlen(x->text);
    if (p->tok.kind == T_END) fail(p, at, "set without '=' is not supported");
    want_op(p, "=");
    x->a = parse_expr(p);
    want_end(p);
    return adopt(p, x, x->a);
}

static node *parse_macro(parser *p, size_t at)
{
    node *x = new_node(p, N_MACRO, at);
    const char *end;
    x->text = want_name(p, "a macro's name");
    x->n = strlen(x->text);
    want_op(p, "(");
    while (p->st == GR_OK && !is_op(p, ")")) {
        node *arg = new_node(p, N_ARG, p->tok.at);
        arg->text = want_name(p, "a parameter's name");
        arg->n = strlen(arg->text);
        if (take_op(p, "=")) arg->a = parse_expr(p);
        append(&x->args, adopt(p, arg, arg->a));
        if (!is_op(p, ")")) want_op(p, ",");
    }
    want_op(p, ")");
    want_end(p);
    x->body = parse_body(p, " endmacro ", &end);
    want_end(p);
    return adopt(p, adopt(p, x, x->args), x->body);
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
        while (end > begin && is_blank(p->s[end - 1])) end--;
    } else if ((kind == '%' || kind == '#') && sign != '+') {
        size_t line = end;
        while (line > begin && is_blank(p->s[line - 1]) && p->s[line - 1] != '\n') line--;
        if (line > begin ? p->s[line - 1] == '\n' : p->line_starting) end = line;
    }
    p->at = tag;
    if (begin == end) return NULL;
    node *x = new_node(p, N_TEXT, begin);
    x->text = gr_pool_strndup(p->pool, p->s + begin, end - begin);
    x->n = end - begin;
    return x;
}

static void skip_comment(parser *p)
{
    const char *end = memmem(p->s + p->at + 2, p->n - p->at - 2, "#}", 2);
    if (!end) {
        fail(p, p->at, "unterminated comment");
        return;
    }
    size_t at = p->at;
    p->at = (size_t)(end - p->s) + 2;
    char sign = (size_t)(end - p->s) > at + 2 ? end[-1] : '\0';
    if (sign == '-')
        while (p->at < p->n && is_blank(p->s[p->at])) p->at++;
    else if (sign != '+' && p->at < p->n && p->s[p->at] == '\n')
        p->at++;
    p->line_starting = p->s[p->at - 1] == '\n';
}

static node *parse_output(parser *p, size_t at)
{
    node *x = new_node(p, N_OUTPUT, at);
    x->a = parse_expr(p);
    want_end(p);
    return adopt(p, x, x->a);
}

static node *parse_statement(parser *p, size_t at)
{
    static const struct {
        const char *word;
        node *(*parse)(parser *, size_t);
    } statements[] = {{"if", parse_if}, {"for", parse_for}, {"set", parse_set}, {"macro", parse_macro}};
    for (size_t i = 0; i < GR_LEN(statements); i++)
        if (take_word(p, statements[i].word)) return statements[i].parse(p, at);
    if (p->tok.kind == T_NAME)
        fail(p, p->tok.at, "statement '%s' is not supported", p->tok.text);
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

/* Open the tag at p->at and read its first lexeme. */
static void open_tag(parser *p)
{
    p->in_output = p->s[p->at + 1] == '{';
    p->brackets = 0;
    p->at += 2;
    if (p->at < p->n && (p->s[p->at] == '-' || (p->s[p->at] == '+' && !p->in_output))) p->at++;
    next(p);
}

static node *parse_body(parser *p, const char *ends, const char **end)
{
    node *first = NULL, **last = &first;
    if (++p->depth > CHAT_MAX_DEPTH) fail(p, p->at, "nested too deeply");
    while (p->st == GR_OK) {
        node *x = parse_text(p);
        if (x) {
            *last = x;
            last = &x->next;
        }
        size_t at = p->at;
        if (at >= p->n) {
            if (ends) fail(p, at, "the text ends before one of:%s", ends);
            break;
        }
        if (p->s[at + 1] == '#') {
            skip_comment(p);
            continue;
        }
        open_tag(p);
        if (!p->in_output && p->tok.kind == T_NAME && in_words(ends, p->tok.text)) {
            *end = p->tok.text;
            next(p);
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

gr_status gr_chat_parse(gr_pool *pool, const char *source, size_t n, node **body, gr_diag *d)
{
    gr_str s = {0};
    for (size_t i = 0; i < n; i++) /* lines end in \n; the text's last line end is no part of it */
        if (source[i] != '\r')
            gr_str_putc(&s, source[i]);
        else if (i + 1 == n || source[i + 1] != '\n')
            gr_str_putc(&s, '\n');
    if (s.len && s.text[s.len - 1] == '\n') s.len--;
    parser p = {.pool = pool,
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
