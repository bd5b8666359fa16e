/* ops/serve/serve.h: sessions of harnesses that bring their own loop and call us for each turn of the model.
 *
 * A session is one conversation, one row of the rollout. Its calls come in one after another; each continues,
 * token by token, what the session holds so far: the prompt of the first call, what the model said, what the
 * harness put between. A call brings its whole context, and what of it is new is found without tokenizing
 * anything twice:
 *
 *     token ids      the context must begin with the session's ids; the rest is new
 *     messages       they must begin with those of the calls before and the replies to them; the chat
 * template is applied to the others, behind the ids that there are. required_prefix_token_ids, or
 *                    prompt_token_ids and generation_token_ids of the last message of the assistant, which
 * must be the session's ids, stand for the messages up to there
 *
 * A call that repeats the one before gets the same reply: a client that lost it may ask again.
 *
 * Where it is open, nobody begins sessions but who calls: a call without the name of a session is one of its
 * own, and a name that is new begins one. Sessions share the rows there are; a call waits until one is free.
 *
 * Everything runs on the caller's thread; the wire (ops/serve/wire.h) is another process. Threads: a gr_serve
 * belongs to one thread at a time.
 */
#ifndef GR_OPS_SERVE_SERVE_H
#define GR_OPS_SERVE_SERVE_H

#include "ops/serve/call.h"
#include "ops/serve/wire.h"
#include "ops/text/chat_template.h"

typedef struct gr_serve_config {
    gr_wire_config wire;
    gr_serve_rules rules;
    const gr_tokenizer *tokenizer;
    const gr_chat_template *chat; /* NULL: only token ids can be sent */
    const char *no_chat;          /* and why */
    const char *date;             /* that templates see */
    uint32_t sessions;            /* by number, from 0; rows */
    bool open;                    /* who calls begins them */
} gr_serve_config;

/* Sessions of an open one, with a name and without a row, that are remembered: the newest. */
#define GR_SERVE_REMEMBERED 4096u

typedef struct gr_serve gr_serve;

/* c's texts and lists live as long as the result. Nobody listens yet. */
gr_serve *gr_serve_new(const gr_serve_config *c);
void gr_serve_free(gr_serve *s); /* NULL is fine */

/* With which tokens are sampled from here on. */
void gr_serve_temperature(gr_serve *s, double temperature);

/* Begin and cease to listen; open calls are told that the rollout has ended. */
GR_NODISCARD gr_status gr_serve_listen(gr_serve *s, gr_diag *d);
void gr_serve_rest(gr_serve *s);
int gr_serve_fd(const gr_serve *s);    /* readable when something is to be done; -1 while it rests */
char *gr_serve_url(const gr_serve *s); /* of the host, to free(); while it listens */

/* Session `number` begins, under the name `id`. What its harness is told: {"url", "token", "model",
 * "session"}; a new reference. */
json_t *gr_serve_begin(gr_serve *s, uint32_t number, uint64_t id);
/* It ends: calls of it are refused from here on, an open one with the reason. Of one that has ended: nothing.
 */
void gr_serve_end(gr_serve *s, uint32_t number, const char *why);

/* A turn that a call asks for. */
typedef struct gr_serve_turn {
    uint32_t number;    /* of the session */
    const int32_t *ids; /* new ones, behind those that it has; valid until the session's next call */
    size_t n;
    uint32_t max_tokens; /* 0: those of a turn */
} gr_serve_turn;

/* Deal with what has come in, up to a call that samples; false: there is none. Never blocks. */
GR_NODISCARD gr_status gr_serve_next(gr_serve *s, gr_serve_turn *out, bool *found, gr_diag *d);

/* What was sampled for a session's open call. */
typedef struct gr_serve_said {
    const int32_t *ids;
    const float *logprobs;
    uint32_t n;
    const char *text; /* without the stop id or the stop text */
    size_t n_text;
    const json_t *tool_calls; /* as gr_tool_calls gives them */
    size_t n_before;          /* bytes of the text before the first of them */
    bool cut;                 /* at max_tokens, or by the room */
} gr_serve_said;
void gr_serve_answer(gr_serve *s, uint32_t number, const gr_serve_said *said);

/* Of one that is open: a row that its session has left, and that is to end and to begin anew; false: none. */
bool gr_serve_over(gr_serve *s, uint32_t *number);
/* No call comes in from here on; sessions leave their rows when their open calls have got their turns. */
void gr_serve_finish(gr_serve *s);

/* Why a session could not have gone on: calls beyond its room or its turns were refused. */
typedef enum gr_serve_end_reason { GR_SERVE_FREE, GR_SERVE_TURNS, GR_SERVE_ROOM } gr_serve_end_reason;
gr_serve_end_reason gr_serve_refused(const gr_serve *s, uint32_t number);

#endif
