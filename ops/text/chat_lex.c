/* ops/text/chat_lex.c: the text of a chat template to lexemes. */
#include "ops/text/chat_lex.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

/* ---- places and messages ------------------------------------------------------------------------------ */

void gr_lex_place(parser *p, size_t at, unsigned *line, unsigned *col)
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

GR_PRINTF(3, 4)
void gr_lex_fail(parser *p, size_t at, const char *fmt, ...)
{
    if (p->st != GR_OK) return;
    gr_loc loc = {.file = CHAT_FILE};
    gr_lex_place(p, at, &loc.line, &loc.col);
    va_list ap;
    va_start(ap, fmt);
    p->st = gr_diag_verror(p->d, loc, GR_E_INVALID, fmt, ap);
    va_end(ap);
    p->at = p->n;
    p->tok = (lexeme){.kind = T_EOF, .text = "", .at = p->n};
}

/* ---- lexemes inside a tag ----------------------------------------------------------------------------- */

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool gr_lex_is_blank(char c)
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
        gr_lex_fail(p, at, "bad escape in string");
    else
        gr_str_add(out, (char *)utf8, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, utf8));
}

/* A code point of up to three octal digits after the backslash at p->at. */
static void read_octal(parser *p, gr_str *out)
{
    utf8proc_uint8_t utf8[4];
    int32_t c = 0;
    for (int i = 0; i < 3 && p->at + 1 < p->n && p->s[p->at + 1] >= '0' && p->s[p->at + 1] <= '7'; i++)
        c = 8 * c + p->s[++p->at] - '0';
    p->at++;
    gr_str_add(out, (char *)utf8, (size_t)utf8proc_encode_char(c, utf8));
}

/* One backslash escape at p->at; moves past it. */
static void read_escape(parser *p, gr_str *out)
{
    static const char from[] = "ntr'\"\\bfav", to[] = "\n\t\r'\"\\\b\f\a\v";
    char c = p->at + 1 < p->n ? p->s[p->at + 1] : '\0';
    const char *known = c ? strchr(from, c) : NULL;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    size_t at = p->at;
    if (c >= '0' && c <= '7') {
        read_octal(p, out);
        return;
    }
    if (c == 'N') gr_lex_fail(p, at, "the escape '\\N' is not supported");
    if (digits && p->n - p->at < 2 + digits) gr_lex_fail(p, at, "bad escape in string");
    if (p->st != GR_OK) return;
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
                          .text = gr_arena_strndup(p->arena, out.text ? out.text : "", out.len),
                          .n = out.len,
                          .at = start};
    } else {
        gr_lex_fail(p, start, "unterminated string");
    }
    gr_str_release(&out);
}

static bool is_digit_at(const parser *p, size_t at)
{
    return at < p->n && p->s[at] >= '0' && p->s[at] <= '9';
}

static void skip_digits(parser *p)
{
    while (is_digit_at(p, p->at)) p->at++;
}

/* A fraction and an exponent where they follow; a number after a dot (x.0.y) has none. */
static bool skip_fraction(parser *p, size_t start)
{
    size_t whole = p->at;
    if (start && p->s[start - 1] == '.') return false;
    if (p->at < p->n && p->s[p->at] == '.' && is_digit_at(p, p->at + 1)) {
        p->at++;
        skip_digits(p);
    }
    if (p->at < p->n && (p->s[p->at] == 'e' || p->s[p->at] == 'E')) {
        bool sign = p->at + 1 < p->n && strchr("+-", p->s[p->at + 1]) && p->s[p->at + 1];
        if (is_digit_at(p, p->at + 1 + sign)) {
            p->at += 1 + sign;
            skip_digits(p);
        }
    }
    return p->at > whole;
}

static void read_number(parser *p)
{
    size_t start = p->at;
    skip_digits(p);
    bool real = skip_fraction(p, start);
    size_t n = p->at - start;
    if ((n > 18 && !real) || n > 60 || (n > 1 && !real && p->s[start] == '0'))
        gr_lex_fail(p, start, "the number '%.*s' is not supported", (int)GR_MIN(n, 40), p->s + start);
    if (p->at < p->n && is_name_char(p->s[p->at]))
        gr_lex_fail(p, start, "the number '%.*s%c' is not supported", (int)GR_MIN(n, 40), p->s + start,
                    p->s[p->at]);
    if (p->st != GR_OK) return;
    char *digits = gr_arena_strndup(p->arena, p->s + start, n);
    p->tok = (lexeme){.kind = real ? T_FLOAT : T_INT, .text = digits, .n = n, .at = start};
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
        while (p->at < p->n && gr_lex_is_blank(p->s[p->at])) p->at++;
    else if (!p->in_output && sign != '+' && p->at < p->n && p->s[p->at] == '\n')
        p->at++;
    p->line_starting = p->s[p->at - 1] == '\n';
    return true;
}

void gr_lex_next(parser *p)
{
    static const char *const two[] = {"==", "!=", "<=", ">=", "//", "**"};
    if (p->st != GR_OK) return;
    while (p->at < p->n && gr_lex_is_blank(p->s[p->at])) p->at++;
    if (p->at >= p->n) {
        gr_lex_fail(p, p->n, "the text ends inside a tag");
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
        p->tok = (lexeme){
            .kind = T_NAME, .text = gr_arena_strndup(p->arena, p->s + start, n), .n = n, .at = start};
    } else if (c > 0 && strchr("+-*/%~<>=!.,:|()[]{}", c)) {
        size_t n = 1;
        for (size_t i = 0; i < GR_LEN(two); i++)
            if (p->n - start >= 2 && !memcmp(p->s + start, two[i], 2)) n = 2;
        if (strchr("([{", c)) p->brackets++;
        if (strchr(")]}", c) && p->brackets) p->brackets--;
        p->at += n;
        p->tok =
            (lexeme){.kind = T_OP, .text = gr_arena_strndup(p->arena, p->s + start, n), .n = n, .at = start};
    } else {
        gr_lex_fail(p, start, "unexpected character '%.*s'",
                    (int)gr_chat_char_len(p->s + start, p->n - start), p->s + start);
    }
}

void gr_lex_comment(parser *p)
{
    const char *end = memmem(p->s + p->at + 2, p->n - p->at - 2, "#}", 2);
    if (!end) {
        gr_lex_fail(p, p->at, "unterminated comment");
        return;
    }
    size_t at = p->at;
    p->at = (size_t)(end - p->s) + 2;
    char sign = (size_t)(end - p->s) > at + 2 ? end[-1] : '\0';
    if (sign == '-')
        while (p->at < p->n && gr_lex_is_blank(p->s[p->at])) p->at++;
    else if (sign != '+' && p->at < p->n && p->s[p->at] == '\n')
        p->at++;
    p->line_starting = p->s[p->at - 1] == '\n';
}

void gr_lex_open(parser *p)
{
    p->in_output = p->s[p->at + 1] == '{';
    p->brackets = 0;
    p->at += 2;
    if (p->at < p->n && (p->s[p->at] == '-' || (p->s[p->at] == '+' && !p->in_output))) p->at++;
    gr_lex_next(p);
}
