/* ops/text/tokenizer_impl.h: what tokenizer.c (use) and tokenizer_load.c (construction) share. */
#ifndef GR_OPS_TEXT_TOKENIZER_IMPL_H
#define GR_OPS_TEXT_TOKENIZER_IMPL_H

#include "ops/text/bpe.h"
#include "ops/text/pretokenize.h"
#include "ops/text/tokenizer.h"

enum {
    TOKEN_PRESENT = 1, /* the id exists */
    TOKEN_SPECIAL = 2,
    TOKEN_LSTRIP = 4,     /* takes the white space before it */
    TOKEN_RSTRIP = 8,     /* and after it */
    TOKEN_WORD = 16,      /* only where no word character touches it */
    TOKEN_NORMALIZED = 32 /* looked for after normalization */
};

/* Bytes in blob. */
typedef struct span {
    uint32_t at, len;
} span;

typedef struct token {
    span name;  /* of an added token what the file calls it; of others the bytes they stand for */
    span match; /* added tokens: what is looked for in the text, be it normalized */
    span text;  /* what decoding gives */
    uint32_t flags;
} token;

/* One step of normalization, in the order of the file. */
typedef struct norm_step {
    enum { NORM_NFC, NORM_PREPEND, NORM_REPLACE } kind;
    char *from, *to; /* prepend: to */
} norm_step;

/* What a Metaspace pre-tokenizer puts before a text: in each piece, in one that begins the text, or nowhere.
 */
typedef enum metaspace_prefix { PREFIX_NEVER, PREFIX_FIRST, PREFIX_ALWAYS } metaspace_prefix;

/* What decoding takes off the front: one space, or the spaces of the first token. */
typedef enum decode_front { FRONT_KEPT, FRONT_SPACE, FRONT_FIRST_TOKEN } decode_front;

#define METASPACE "\xe2\x96\x81" /* U+2581 */

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
    bool characters, ignore_merges;
    bool pieces; /* SentencePiece's BPE: a word begins as its characters, not its bytes */
    bool byte_fallback, fuse_unk, metaspace;
    int32_t unk; /* of pieces: for characters without a token; -1: none */
    metaspace_prefix prefix_space;
    decode_front front;
    norm_step *steps;
    size_t n_steps, cap_steps;
    gr_ids prefix, suffix; /* of GR_ENCODE_FRAME */
    int32_t role[GR_TOKEN_ROLES];
};

/* Tokens under construction. */
span gr_tokenizer_keep(gr_tokenizer *t, const char *bytes, size_t n);
/* The file's normalization of n bytes, appended to out; map, where not NULL, gets for each byte of out and
 * for its end the byte of the text it comes from; false: that cannot be told. */
bool gr_tokenizer_normalize(const gr_tokenizer *t, const char *text, size_t n, gr_str *out, gr_ids *map);
void gr_tokenizer_set(gr_tokenizer *t, int32_t id, const char *bytes, size_t n, uint32_t flags);
bool gr_tokenizer_hash(gr_tokenizer *t, int32_t id); /* findable by its bytes; false: another id has them */
void gr_tokenizer_index_added(gr_tokenizer *t);      /* after the last added token */

#endif
