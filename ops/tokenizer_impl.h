/* ops/tokenizer_impl.h: what tokenizer.c (use) and tokenizer_load.c (construction) share. */
#ifndef GR_OPS_TOKENIZER_IMPL_H
#define GR_OPS_TOKENIZER_IMPL_H

#include "ops/bpe.h"
#include "ops/pretokenize.h"
#include "ops/tokenizer.h"

enum {
    TOKEN_PRESENT = 1, /* the id exists */
    TOKEN_SPECIAL = 2,
    TOKEN_LSTRIP = 4,     /* takes the white space before it */
    TOKEN_RSTRIP = 8,     /* and after it */
    TOKEN_WORD = 16,      /* only where no word character touches it */
    TOKEN_NORMALIZED = 32 /* looked for after normalization */
};

typedef struct token {
    uint32_t at, len; /* its bytes in blob */
    uint32_t flags;
} token;

struct gr_tokenizer {
    gr_str blob;
    token *tokens; /* by id */
    size_t n, cap;
    uint32_t *slots; /* hash of a token's bytes to id + 1; open addressing; 0: free */
    size_t n_slots, n_hashed;
    int32_t *added; /* ids found in text before anything else, longest first */
    size_t n_added, cap_added;
    bool first_byte[2][256]; /* by TOKEN_NORMALIZED: some added token begins with it */
    int32_t byte_id[256];    /* -1: none */
    gr_merges merges;
    gr_pretok pretok;
    bool characters, ignore_merges, nfc;
    gr_ids prefix, suffix; /* of GR_ENCODE_FRAME */
    int32_t role[GR_TOKEN_ROLES];
};

/* Tokens under construction. */
void gr_tokenizer_set(gr_tokenizer *t, int32_t id, const char *bytes, size_t n, uint32_t flags);
bool gr_tokenizer_hash(gr_tokenizer *t, int32_t id); /* findable by its bytes; false: another id has them */
void gr_tokenizer_index_added(gr_tokenizer *t);      /* after the last added token */

#endif
