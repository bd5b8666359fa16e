/* ops/text/chat_lex.h: the text of a chat template to lexemes, with Jinja's rules for white space around tags
 * (trim_blocks and lstrip_blocks on). Used by chat_parse.c only. */
#ifndef GR_OPS_TEXT_CHAT_LEX_H
#define GR_OPS_TEXT_CHAT_LEX_H

#include "ops/text/chat_impl.h"

typedef enum token_kind { T_EOF, T_END, T_NAME, T_STRING, T_INT, T_FLOAT, T_OP } token_kind;

typedef struct lexeme {
    token_kind kind; /* T_END: the tag's end, "%}" or "}}" */
    const char *text;
    size_t n, at;
    int64_t i;
    double f;
} lexeme;

typedef struct parser {
    gr_arena *arena;
    gr_diag *d;
    gr_status st;
    const char *s;
    size_t n, at;
    bool in_output;     /* the open tag is "{{" */
    bool line_starting; /* the text at `at` begins a line */
    lexeme tok;
    unsigned depth, brackets; /* brackets: open in this tag */
    unsigned loops;           /* around, in the innermost macro: break and continue need one */
    unsigned line, col;       /* of byte `counted`, so that places cost no second walk */
    size_t counted;
} parser;

/* Line and column of byte `at`, from 1; columns count characters. */
void gr_lex_place(parser *p, size_t at, unsigned *line, unsigned *col);

/* The first error stands; after it everything looks like the end of the text, so that all loops end. */
GR_PRINTF(3, 4) void gr_lex_fail(parser *p, size_t at, const char *fmt, ...);

void gr_lex_open(parser *p);    /* step into the tag at p->at, to its first lexeme */
void gr_lex_next(parser *p);    /* the next lexeme of the tag into p->tok */
void gr_lex_comment(parser *p); /* step over the comment at p->at */
bool gr_lex_is_blank(char c);

#endif
