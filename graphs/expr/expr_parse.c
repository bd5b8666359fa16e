/* graphs/expr/expr_parse.c: text to syntax tree, by recursive descent. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graphs/expr/expr_ast.h"

enum { MAX_TEXT = 1 << 16, MAX_DEPTH = 400 };

typedef enum tok_kind { TOK_END, TOK_LINE, TOK_NUMBER, TOK_NAME, TOK_TEXT, TOK_PUNCT, TOK_BAD } tok_kind;

typedef struct token {
    tok_kind kind;
    const char *begin, *end;
    gr_loc at;
} token;

typedef struct parser {
    gr_expr *e;
    gr_diag *d;
    const char *p, *line_start;
    const char *prev_end; /* of the last token taken */
    gr_loc start;
    unsigned line, indent;
    int nesting; /* open parentheses: newlines are spaces inside */
    unsigned depth;
    bool failed; /* in this line; later errors of the line would only follow from it */
    token tok;
} parser;

static gr_loc place(const parser *ps, const char *p)
{
    gr_loc at = ps->start;
    if (!at.line) return at;
    unsigned col = (unsigned)(p - ps->line_start);
    at.col = ps->line ? ps->indent + 1 + col : at.col + col;
    at.line += ps->line;
    return at;
}

GR_PRINTF(3, 4) static void fail(parser *ps, gr_loc at, const char *fmt, ...)
{
    if (ps->failed) return;
    ps->failed = true;
    va_list ap;
    va_start(ap, fmt);
    (void)gr_diag_verror(ps->d, at, GR_E_INVALID, fmt, ap);
    va_end(ap);
}

/* ---- tokens ------------------------------------------------------------------------------------------- */

static void skip_space(parser *ps)
{
    for (;; ps->p++) {
        if (*ps->p == '#') ps->p += strcspn(ps->p, "\n");
        if (*ps->p == '\n' && ps->nesting > 0) {
            ps->line++;
            ps->line_start = ps->p + 1;
        } else if (*ps->p != ' ' && *ps->p != '\t' && *ps->p != '\r') {
            return;
        }
    }
}

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static const char *scan_name(const char *p)
{
    if (*p == '$') p++;
    while (name_char(*p) || (*p == '.' && name_char(p[1]))) p++;
    return p;
}

static const char *scan_digits(const char *p)
{
    while (isdigit((unsigned char)*p)) p++;
    return p;
}

static const char *scan_number(const char *p)
{
    p = scan_digits(p);
    if (*p == '.') p = scan_digits(p + 1);
    if (*p == 'e' || *p == 'E') {
        const char *exponent = p + 1 + (p[1] == '+' || p[1] == '-');
        if (isdigit((unsigned char)*exponent)) p = scan_digits(exponent);
    }
    return p;
}

static const char *scan_text(parser *ps, const char *p, gr_loc at)
{
    char quote = *p++;
    while (*p && *p != '\n' && *p != quote) p += 1 + (*p == '\\' && p[1] && p[1] != '\n');
    if (*p == quote) return p + 1;
    fail(ps, at, "text without its closing quote");
    return p;
}

static const char *scan_punct(const char *p)
{
    static const char *const two[] = {"<=", ">=", "==", "!="};
    for (size_t i = 0; i < GR_LEN(two); i++) {
        if (!strncmp(p, two[i], 2)) return p + 2;
    }
    return p + 1;
}

static void advance(parser *ps)
{
    ps->prev_end = ps->p;
    skip_space(ps);
    const char *p = ps->p;
    token t = {.begin = p, .at = place(ps, p)};
    if (!*p) {
        t.kind = TOK_END;
    } else if (*p == '\n') {
        t.kind = TOK_LINE;
        ps->line++;
        ps->line_start = ++p;
    } else if (isdigit((unsigned char)*p) || (*p == '.' && isdigit((unsigned char)p[1]))) {
        t.kind = TOK_NUMBER;
        p = scan_number(p);
    } else if (isalpha((unsigned char)*p) || *p == '_' || (*p == '$' && name_char(p[1]))) {
        t.kind = TOK_NAME;
        p = scan_name(p);
    } else if (*p == '"' || *p == '\'') {
        t.kind = TOK_TEXT;
        p = scan_text(ps, p, t.at);
    } else {
        t.kind = strchr("+-*/%^()<>=!,", *p) ? TOK_PUNCT : TOK_BAD;
        p = t.kind == TOK_BAD ? p + 1 : scan_punct(p);
    }
    t.end = ps->p = p;
    ps->tok = t;
}

static bool tok_is(const parser *ps, const char *text)
{
    size_t n = strlen(text);
    return (ps->tok.kind == TOK_PUNCT || ps->tok.kind == TOK_NAME) &&
           (size_t)(ps->tok.end - ps->tok.begin) == n && !memcmp(ps->tok.begin, text, n);
}

static bool accept(parser *ps, const char *text)
{
    if (!tok_is(ps, text)) return false;
    advance(ps);
    return true;
}

/* How what other languages write so is written here; "" for all else. */
static const char *written_here(const parser *ps)
{
    switch (*ps->tok.begin) {
    case '&':
        return "; it is written 'and'";
    case '|':
        return "; it is written 'or'";
    case '!':
    case '~':
        return "; it is written 'not'";
    case '*': /* the second of two */
        return ps->prev_end == ps->tok.begin && ps->tok.begin[-1] == '*' ? "; a power is written x ^ 2" : "";
    default:
        return tok_is(ps, "if") || *ps->tok.begin == '?' ? "; a choice is written where(condition, x, y)"
                                                         : "";
    }
}

static void unexpected(parser *ps, const char *wanted)
{
    const token *t = &ps->tok;
    if (t->kind == TOK_END || t->kind == TOK_LINE) {
        fail(ps, t->at, "the line ends where %s was expected", wanted);
    } else {
        fail(ps, t->at, "unexpected '%.*s' where %s was expected%s", (int)GR_MIN(t->end - t->begin, 40),
             t->begin, wanted, written_here(ps));
    }
}

/* ---- the tree ----------------------------------------------------------------------------------------- */

static gr_ast *parse_or(parser *ps);

static gr_ast *node_new(parser *ps, gr_ast_kind kind, const char *begin, gr_loc at)
{
    gr_ast *n = gr_arena_alloc(ps->e->arena, sizeof(*n));
    n->kind = kind;
    n->begin = begin;
    n->end = begin;
    n->at = at;
    n->depth = 1;
    return n;
}

static void node_add(parser *ps, gr_ast *n, gr_ast *arg)
{
    if (!arg) return;
    n->arg[n->n_args++] = arg;
    n->depth = GR_MAX(n->depth, arg->depth + 1);
    if (n->depth > MAX_DEPTH) fail(ps, n->at, "expression nested more than %d deep", MAX_DEPTH);
}

static gr_ast *node_op(parser *ps, gr_ir_op op, gr_loc at, gr_ast *a, gr_ast *b)
{
    gr_ast *n = node_new(ps, GR_AST_OP, a ? a->begin : ps->prev_end, at);
    n->op = op;
    node_add(ps, n, a);
    node_add(ps, n, b);
    n->end = ps->prev_end;
    return n;
}

static char *unquote(parser *ps, const token *t)
{
    char *s = gr_arena_alloc(ps->e->arena, (size_t)(t->end - t->begin) + 1), *w = s;
    for (const char *p = t->begin + 1; p < t->end && *p != *t->begin; p++) {
        if (*p == '\\' && p + 1 < t->end) p++;
        *w++ = *p;
    }
    return s;
}

static void note_name(parser *ps, const char *name, gr_loc at)
{
    gr_expr *e = ps->e;
    for (size_t i = 0; i < e->n_lines; i++) {
        if (e->lines[i].name && !strcmp(e->lines[i].name, name)) return;
    }
    for (size_t i = 0; i < e->n_names; i++) {
        if (!strcmp(e->names[i].name, name)) return;
    }
    GR_PUSH(e->names, e->n_names, e->cap_names, ((gr_expr_name){name, at}));
}

/* The end of what a parenthesis at `open` begins. */
static void close_parenthesis(parser *ps, gr_loc open, const char *wanted)
{
    if (ps->failed || accept(ps, ")")) return;
    unexpected(ps, wanted);
    gr_diag_note(ps->d, open, "the '(' that is not closed stands here");
}

static gr_ast *parse_call(parser *ps, gr_ast *n)
{
    const gr_loc open = ps->tok.at;
    n->kind = GR_AST_CALL;
    ps->nesting++;
    advance(ps); /* the parenthesis; what follows may be on the next line */
    if (!tok_is(ps, ")")) {
        do {
            if (n->n_args == GR_AST_ARGS) {
                fail(ps, ps->tok.at, "more than %d arguments of '%s'", GR_AST_ARGS, n->name);
                break;
            }
            node_add(ps, n, parse_or(ps));
        } while (!ps->failed && accept(ps, ","));
    }
    ps->nesting--;
    close_parenthesis(ps, open, "',' or ')'");
    return n;
}

static gr_ast *parse_name(parser *ps, token t)
{
    gr_ast *n = node_new(ps, GR_AST_NAME, t.begin, t.at);
    n->name = gr_arena_strndup(ps->e->arena, t.begin, (size_t)(t.end - t.begin));
    if (!strcmp(n->name, "true") || !strcmp(n->name, "false")) {
        n->kind = GR_AST_BOOL;
        n->number = n->name[0] == 't';
        return n;
    }
    if (tok_is(ps, "(")) return parse_call(ps, n);
    note_name(ps, n->name, n->at);
    return n;
}

static double number_of(parser *ps, const token *t)
{
    char *s = gr_strndup(t->begin, (size_t)(t->end - t->begin));
    double v = strtod(s, NULL);
    free(s);
    if (!isfinite(v)) fail(ps, t->at, "number too large");
    return v;
}

static gr_ast *parse_group(parser *ps)
{
    const gr_loc open = ps->tok.at;
    ps->nesting++;
    advance(ps);
    gr_ast *n = parse_or(ps);
    ps->nesting--;
    close_parenthesis(ps, open, "')'");
    return n;
}

static bool keyword(const parser *ps)
{
    return tok_is(ps, "and") || tok_is(ps, "or") || tok_is(ps, "not");
}

static gr_ast *parse_atom(parser *ps)
{
    token t = ps->tok;
    gr_ast *n = NULL;
    if (tok_is(ps, "(")) return parse_group(ps);
    if (t.kind == TOK_NUMBER) {
        n = node_new(ps, GR_AST_NUMBER, t.begin, t.at);
        n->number = number_of(ps, &t);
        advance(ps);
    } else if (t.kind == TOK_TEXT) {
        n = node_new(ps, GR_AST_TEXT, t.begin, t.at);
        n->name = unquote(ps, &t);
        advance(ps);
    } else if (t.kind == TOK_NAME && !keyword(ps)) {
        advance(ps);
        n = parse_name(ps, t);
    } else {
        unexpected(ps, "a value");
        return NULL;
    }
    n->end = ps->prev_end;
    return n;
}

static gr_ast *parse_unary(parser *ps);

static gr_ast *parse_power(parser *ps)
{
    gr_ast *a = parse_atom(ps);
    gr_loc at = ps->tok.at;
    if (ps->failed || !accept(ps, "^")) return a;
    return node_op(ps, GR_IR_POW, at, a, parse_unary(ps));
}

/* Every recursion of the grammar passes here. */
static gr_ast *parse_unary(parser *ps)
{
    if (ps->depth >= MAX_DEPTH) {
        fail(ps, ps->tok.at, "expression nested more than %d deep", MAX_DEPTH);
        return NULL;
    }
    ps->depth++;
    gr_ast *n;
    token t = ps->tok;
    if (accept(ps, "-")) {
        n = node_op(ps, GR_IR_NEG, t.at, parse_unary(ps), NULL);
        n->begin = t.begin;
    } else {
        n = parse_power(ps);
    }
    ps->depth--;
    return n;
}

typedef struct binary {
    const char *text;
    gr_ir_op op;
    bool swap;
} binary;

static const binary *take_binary(parser *ps, const binary *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!tok_is(ps, ops[i].text)) continue;
        advance(ps);
        while (ps->tok.kind == TOK_LINE) advance(ps); /* an operator at the end of a line goes on */
        return &ops[i];
    }
    return NULL;
}

static gr_ast *parse_chain(parser *ps, const binary *ops, size_t n, gr_ast *(*operand)(parser *))
{
    gr_ast *a = operand(ps);
    while (!ps->failed) {
        gr_loc at = ps->tok.at;
        const binary *op = take_binary(ps, ops, n);
        if (!op) break;
        a = node_op(ps, op->op, at, a, operand(ps));
        a->swap = op->swap;
    }
    return a;
}

static gr_ast *parse_product(parser *ps)
{
    static const binary ops[] = {{"*", GR_IR_MUL, false}, {"/", GR_IR_DIV, false}, {"%", GR_IR_MOD, false}};
    return parse_chain(ps, ops, GR_LEN(ops), parse_unary);
}

static gr_ast *parse_sum(parser *ps)
{
    static const binary ops[] = {{"+", GR_IR_ADD, false}, {"-", GR_IR_SUB, false}};
    return parse_chain(ps, ops, GR_LEN(ops), parse_product);
}

static gr_ast *parse_comparison(parser *ps)
{
    static const binary ops[] = {{"<", GR_IR_LT, false}, {"<=", GR_IR_LE, false}, {">", GR_IR_LT, true},
                                 {">=", GR_IR_LE, true}, {"==", GR_IR_EQ, false}, {"!=", GR_IR_NE, false}};
    gr_ast *a = parse_sum(ps);
    gr_loc at = ps->tok.at;
    const binary *op = ps->failed ? NULL : take_binary(ps, ops, GR_LEN(ops));
    if (!op) return a;
    a = node_op(ps, op->op, at, a, parse_sum(ps));
    a->swap = op->swap;
    at = ps->tok.at;
    if (!ps->failed && take_binary(ps, ops, GR_LEN(ops))) {
        fail(ps, at, "comparisons do not chain; join two with 'and'");
    }
    return a;
}

static gr_ast *parse_not(parser *ps)
{
    token t = ps->tok;
    if (!accept(ps, "not")) return parse_comparison(ps);
    if (ps->depth >= MAX_DEPTH) {
        fail(ps, t.at, "expression nested more than %d deep", MAX_DEPTH);
        return NULL;
    }
    ps->depth++;
    gr_ast *n = node_op(ps, GR_IR_NOT, t.at, parse_not(ps), NULL);
    ps->depth--;
    n->begin = t.begin;
    return n;
}

static gr_ast *parse_and(parser *ps)
{
    static const binary ops[] = {{"and", GR_IR_AND, false}};
    return parse_chain(ps, ops, GR_LEN(ops), parse_not);
}

static gr_ast *parse_or(parser *ps)
{
    static const binary ops[] = {{"or", GR_IR_OR, false}};
    return parse_chain(ps, ops, GR_LEN(ops), parse_and);
}

/* ---- lines -------------------------------------------------------------------------------------------- */

static bool starts_definition(parser *ps)
{
    if (ps->tok.kind != TOK_NAME || keyword(ps)) return false;
    const char *p = ps->p + strspn(ps->p, " \t");
    return *p == '=' && p[1] != '=';
}

static void take_definition(parser *ps, gr_ast_line *l)
{
    l->name = gr_arena_strndup(ps->e->arena, ps->tok.begin, (size_t)(ps->tok.end - ps->tok.begin));
    if (strpbrk(l->name, ".$") || !strcmp(l->name, "true") || !strcmp(l->name, "false")) {
        fail(ps, l->at, "'%s' cannot be defined here; use a plain name", l->name);
    }
    for (size_t i = 0; i < ps->e->n_lines; i++) {
        const char *other = ps->e->lines[i].name;
        if (other && !strcmp(other, l->name)) fail(ps, l->at, "'%s' is defined twice", l->name);
    }
    advance(ps);
    advance(ps);
}

static void skip_line(parser *ps)
{
    ps->nesting = 0;
    while (ps->tok.kind != TOK_END && ps->tok.kind != TOK_LINE) advance(ps);
}

static void parse_line(parser *ps)
{
    gr_ast_line l = {.at = ps->tok.at};
    ps->failed = false;
    ps->depth = 0;
    if (starts_definition(ps)) take_definition(ps, &l);
    if (!ps->failed) l.value = parse_or(ps);
    if (!ps->failed && tok_is(ps, "=")) {
        fail(ps, ps->tok.at,
             "unexpected '='; a comparison is '==', a definition is 'name = value' on a line of its own");
    }
    if (!ps->failed && ps->tok.kind != TOK_END && ps->tok.kind != TOK_LINE) {
        unexpected(ps, "an operator or the end of the line");
    }
    skip_line(ps);
    GR_PUSH(ps->e->lines, ps->e->n_lines, ps->e->cap_lines, l);
}

static void check_lines(parser *ps)
{
    gr_expr *e = ps->e;
    if (!e->n_lines) {
        (void)gr_diag_error(
            ps->d, ps->start, GR_E_INVALID,
            "empty expression: it says what is computed, such as reward - group_mean(reward)");
        return;
    }
    for (size_t i = 0; i + 1 < e->n_lines; i++) {
        if (e->lines[i].name) continue;
        (void)gr_diag_error(ps->d, e->lines[i].at, GR_E_INVALID,
                            "only the last line is the result; write 'name = ...' before it");
    }
    const gr_ast_line *last = &e->lines[e->n_lines - 1];
    if (last->name) {
        (void)gr_diag_error(ps->d, last->at, GR_E_INVALID,
                            "the last line defines '%s'; it must be the result, an expression without '='",
                            last->name);
    }
}

gr_status gr_expr_parse(gr_expr **out, const gr_expr_source *src, gr_diag *d)
{
    gr_diag own;
    gr_diag_init(&own);
    if (!d) d = &own; /* errors are counted there */
    size_t before = d->n_errors;
    gr_expr *e = gr_calloc(1, sizeof(*e));
    e->arena = gr_arena_new();
    if (strlen(src->text) > MAX_TEXT) {
        (void)gr_diag_error(d, src->at, GR_E_INVALID, "expression longer than %d characters", MAX_TEXT);
    } else {
        e->text = gr_arena_strdup(e->arena, src->text);
        parser ps = {
            .e = e, .d = d, .p = e->text, .line_start = e->text, .start = src->at, .indent = src->indent};
        for (advance(&ps); ps.tok.kind != TOK_END;) {
            if (ps.tok.kind == TOK_LINE)
                advance(&ps);
            else
                parse_line(&ps);
        }
        check_lines(&ps);
    }
    gr_status st = d->n_errors == before ? GR_OK : GR_E_INVALID;
    gr_diag_release(&own);
    if (st == GR_OK)
        *out = e;
    else
        gr_expr_free(e);
    return st;
}

const gr_expr_name *gr_expr_names(const gr_expr *e, size_t *n)
{
    *n = e->n_names;
    return e->names;
}

void gr_expr_free(gr_expr *e)
{
    if (!e) return;
    gr_ir_free(e->ir);
    gr_arena_free(e->arena);
    free(e->lines);
    free(e->names);
    free(e->values);
    free(e);
}
