/* ops/text/tokenizer.h: text to token ids and back, as a checkpoint's own files say.
 *
 * Three kinds of tokenizer:
 *
 *   byte-level BPE   tokenizer.json as Hugging Face writes it for GPT-2, Qwen and Llama-3: added tokens, NFC,
 *                    Split and ByteLevel pre-tokenizers, merges, TemplateProcessing. Ids equal those of the
 *                    `tokenizers` library. Any part of the file this does not know is refused by name.
 *   SentencePiece    tokenizer.json of model BPE with byte_fallback or without ByteLevel, as of Llama-2,
 * Mistral and Gemma: Prepend and Replace, or Metaspace; characters without a token are bytes <0x..>.
 *   characters       tokenizer_config.json with `char_ords`: ids 0 to 3 are the special tokens S (separator),
 *                    E (end), P (padding), U (unknown); id 4 + i is code point char_ords[i].
 *
 * Where the ways differ from `tokenizers`: a byte that is not part of well-formed UTF-8 stands alone and gets
 * its own byte token (theirs takes no such text), so decode(encode(x)) == x for any x that NFC leaves alone;
 * a byte for which the vocabulary has no token is an error (theirs drops it). Unicode classes come from PCRE2
 * and NFC from utf8proc, whose tables are newer: of some 24,000 random strings in many scripts 3 differed,
 * all by the order of combining marks that Unicode gained after version 9.
 *
 * "Special" is what the file flags `"special": true`. Added tokens without the flag (Qwen3's <think>) are
 * always recognised, in any text, as `tokenizers` does.
 *
 * Source of the method: Sennrich et al., arXiv:1508.07909; GPT-2's byte alphabet.
 * Threads: a tokenizer never changes once loaded; any number of threads may use it at once.
 */
#ifndef GR_OPS_TEXT_TOKENIZER_H
#define GR_OPS_TEXT_TOKENIZER_H

#include "runtime/base/base.h"

typedef struct gr_tokenizer gr_tokenizer;

/* A growing list of token ids; {0} is a valid empty one. free(ids.id) when done. */
typedef struct gr_ids {
    int32_t *id;
    size_t n, cap;
} gr_ids;

/* Bytes [begin, end) of a text. */
typedef struct gr_text_range {
    size_t begin, end;
} gr_text_range;

enum {
    GR_ENCODE_SPECIAL = 1, /* the text of a special token is that token; without it, plain text */
    GR_ENCODE_FRAME = 2,   /* add what the file's post-processor adds (BOS, for some also EOS) */
};

/* Load tokenizer.json and, where present, tokenizer_config.json of a checkpoint's directory; or a character
 * tokenizer's tokenizer_config.json. *out: gr_tokenizer_free. GR_E_IO, or GR_E_INVALID with the path inside
 * the JSON of what is wrong. On failure *out is left as it was. */
GR_NODISCARD gr_status gr_tokenizer_load(gr_tokenizer **out, const char *dir, gr_diag *d);

/* The same from memory. tokenizer_json NULL: a character tokenizer; config_json NULL: no such file. The texts
 * are read during the call and not kept. Messages call them by their usual names. */
GR_NODISCARD gr_status gr_tokenizer_parse(gr_tokenizer **out, const char *tokenizer_json, size_t n_tokenizer,
                                          const char *config_json, size_t n_config, gr_diag *d);
void gr_tokenizer_free(gr_tokenizer *t); /* NULL is fine */

/* Append the ids of n bytes of text (no NUL needed) to ids. flags: GR_ENCODE_*. GR_E_INVALID where a byte has
 * no token, GR_E_FAILED where a pattern of the file exhausts the matcher; ids then holds what came before. */
GR_NODISCARD gr_status gr_tokenizer_encode(const gr_tokenizer *t, const char *text, size_t n, unsigned flags,
                                           gr_ids *ids, gr_diag *d);

/* The same, with GR_ENCODE_SPECIAL in force only outside the given ranges, which are sorted and disjoint: a
 * special token that shares a byte with one of them is plain text. This is how text with fields in it is
 * encoded: merges run across a field's border as in the joined text. */
GR_NODISCARD gr_status gr_tokenizer_encode_fields(const gr_tokenizer *t, const char *text, size_t n,
                                                  const gr_text_range *fields, size_t n_fields,
                                                  unsigned flags, gr_ids *ids, gr_diag *d);

/* Append the text of n ids. Where the file's decoder takes a space off the front, so does this. Ids the
 * tokenizer does not have give nothing (a model's output layer may be wider than its vocabulary). The bytes
 * may end inside a character. */
void gr_tokenizer_decode(const gr_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                         gr_str *text);

/* The same for one id; at_start: nothing stands before it. Returns whether the next one is at the start, too.
 */
bool gr_tokenizer_append(const gr_tokenizer *t, int32_t id, bool at_start, gr_str *text);

/* Largest id plus one. */
size_t gr_tokenizer_size(const gr_tokenizer *t);

/* The id whose bytes are exactly the given ones (" the", "<think>"), or -1. */
int32_t gr_tokenizer_id(const gr_tokenizer *t, const char *bytes, size_t n);

/* The bytes of one id, *n of them, owned by the tokenizer; NULL where there is no such id. */
const char *gr_tokenizer_token(const gr_tokenizer *t, int32_t id, size_t *n);
bool gr_tokenizer_is_special(const gr_tokenizer *t, int32_t id);

/* Tokens that tokenizer_config.json names; id -1 where it does not. */
typedef enum gr_token_role {
    GR_TOKEN_BOS,
    GR_TOKEN_EOS,
    GR_TOKEN_PAD,
    GR_TOKEN_UNK,
    GR_TOKEN_SEP
} gr_token_role;
#define GR_TOKEN_ROLES 5
extern const char
    *const gr_token_role_names[GR_TOKEN_ROLES]; /* "bos_token", ...: also the template variables */
int32_t gr_tokenizer_role(const gr_tokenizer *t, gr_token_role role);

#endif
