/* ops/serve/call.h: what a call of the endpoint asks for, read from its body and checked against what is
 * served.
 *
 * The names are those of OpenAI's chat completions and of vLLM. What would change how tokens are sampled must
 * be what the rollout samples with, or be left out: a request that asks for anything else is refused, and so
 * is a key that is not known. Nothing in a call names a file.
 *
 * Threads: any.
 */
#ifndef GR_OPS_SERVE_CALL_H
#define GR_OPS_SERVE_CALL_H

#include <jansson.h>

#include "ops/text/tokenizer.h"

typedef enum gr_call_kind {
    GR_CALL_CHAT,     /* POST /v1/chat/completions, and .../tokens */
    GR_CALL_TOKENS,   /* POST /inference/v1/generate */
    GR_CALL_TOKENIZE, /* POST /tokenize */
    GR_CALL_MODELS,   /* GET /v1/models */
    GR_CALL_HEALTH,   /* GET /health */
    GR_CALL_UNKNOWN
} gr_call_kind;

/* Of a path without its session, and a method. */
gr_call_kind gr_call_kind_of(const char *method, const char *path);

/* How the rollout samples, and what it has room for; borrowed. */
typedef struct gr_serve_rules {
    const char *model; /* its name */
    double temperature, top_p;
    uint32_t top_k;
    const char *const *stop;
    size_t n_stop;
    const int32_t *stop_ids;
    size_t n_stop_ids;
    bool ignore_eos;
    uint32_t max_tokens;  /* of one call */
    uint32_t max_context; /* of a session */
    uint32_t turns;       /* calls that sample, of a session */
    uint32_t vocab;
} gr_serve_rules;

typedef struct gr_serve_call {
    gr_call_kind kind;
    json_t *messages;     /* as templates take them: contents are texts, arguments objects; NULL: none */
    json_t *variables;    /* of the template: tools among them; NULL: none */
    const json_t *prompt; /* tokenize: a text, of the body; NULL */
    gr_ids ids;           /* the whole context of GR_CALL_TOKENS; of a chat, what it must begin with */
    bool has_ids, whole;  /* whole: of a chat, too, they are the whole context */
    uint32_t max_tokens;  /* 0: not said */
    bool logprobs, tokens_as_ids, return_ids;
    bool stream, stream_usage; /* of a chat: the answer comes as chunks; the last one says how many tokens */
    bool bare; /* tokenize: without what the template puts where the model speaks, or without BOS */
} gr_serve_call;

/* Read the body of a call. NULL, or why it is refused, to free(); release *out in either case. body:
 * borrowed, and must live as long as *out. */
char *gr_serve_call_read(gr_serve_call *out, gr_call_kind kind, const json_t *body,
                         const gr_serve_rules *rules);
void gr_serve_call_release(gr_serve_call *c);

/* Whether two messages of calls say the same: role, content, calls of tools by name and arguments. */
bool gr_serve_same_message(const json_t *a, const json_t *b);

#endif
