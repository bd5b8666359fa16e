/* ops/serve/reply.h: bodies of replies, as OpenAI's chat completions and vLLM write them.
 *
 * Threads: any.
 */
#ifndef GR_OPS_SERVE_REPLY_H
#define GR_OPS_SERVE_REPLY_H

#include "ops/serve/serve.h"

/* All return a new reference. */
json_t *gr_reply_error(const char *code, const char *why);
json_t *gr_reply_models(const gr_serve_rules *rules);
json_t *gr_reply_tokens(const gr_ids *ids, const gr_serve_rules *rules); /* of /tokenize */

/* A call's own answer. context: [n_context] ids that it was about; id: names the completion. */
json_t *gr_reply_chat(const gr_serve_config *c, const gr_serve_call *call, const gr_serve_said *said,
                      const gr_ids *context, const char *id);
json_t *gr_reply_generate(const gr_serve_call *call, const gr_serve_said *said, const gr_ids *context,
                          const char *id);

/* A chat's answer in chunks, as a list: reply, which is taken over, is that of gr_reply_chat. */
json_t *gr_reply_stream(const gr_serve_call *call, json_t *reply);

/* The message of a chat's answer, as it is compared with what comes back: contents and arguments as templates
 * take them. */
json_t *gr_reply_message(const gr_serve_call *call, const gr_serve_said *said);

#endif
