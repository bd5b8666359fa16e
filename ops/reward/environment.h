/* ops/reward/environment.h: conversations with an environment outside: who answers the model's turns.
 *
 * Worker processes (ops/reward/pool.h) that keep state answer three messages, each an object on a line of its
 * own; docs/ENVIRONMENTS.md is the protocol:
 *
 *     {"id": 7, "type": "start", "record": {...}}      reply: {"id": 7, "text" or "messages"?, "tools"?}
 *     {"id": 7, "type": "step", "turn": 0, "text": ..., "token_ids": [...], "tool_calls": [...], "last":
 * false} reply: {"id": 7, "text" or "messages"?, "done"?, "reward"?, "metrics"?}
 *     {"id": 7, "type": "end"}                                             no reply
 *
 * So does a function of this program, which is handed lists of them (ops/reward/caller.h).
 *
 * Where the rollout is served (ops/serve/serve.h), the processes are harnesses: they are told of a session,
 * call us for each turn of the model, and answer the start when the session has ended:
 *
 *     {"id": 7, "type": "start", "record": {...}, "url", "token", "model", "session", "prompt_token_ids"}
 * reply: {"id": 7, "reward"?, "metrics"?}
 *
 * What a call adds is an answer like another: ids, in place of a text. Where the endpoint is open nobody is
 * told of sessions: a conversation that starts waits for whoever calls, and is done when its session leaves.
 *
 * An id names one try at one conversation and is never used again. What was answered may be written to a file
 * and, in another run, read from it instead of asking anybody.
 *
 * Threads: an environment belongs to one thread at a time.
 */
#ifndef GR_OPS_REWARD_ENVIRONMENT_H
#define GR_OPS_REWARD_ENVIRONMENT_H

#include <jansson.h>

#include "ops/reward/caller.h"
#include "ops/serve/serve.h"
#include "runtime/base/base.h"

typedef struct gr_environment_config {
    const char *command;  /* who answers: its processes, or */
    gr_answering *answer; /* a function of this program; both NULL: replay */
    void *answer_user;
    const char *answer_name;
    gr_loc at;
    unsigned workers, in_flight, timeout_ms;
    uint32_t conversations;      /* at once, by number */
    const char *record, *replay; /* files of answers, or NULL */
    const char *const *metrics;  /* names that are read of "metrics" */
    size_t n_metrics;
    bool timed; /* when an answer is taken decides more than itself: the record has the time, too */
    gr_status (*again)(void *user, gr_diag *d); /* as of a pool */
    void *user;
    gr_serve *serve; /* whom the processes call; NULL: they answer turns. Not with a replay, nor timed */
    bool open;       /* there are none: who calls begins a session, until the process is asked to stop */
} gr_environment_config;

typedef struct gr_environment gr_environment;

GR_NODISCARD gr_status gr_environment_new(gr_environment **out, const gr_environment_config *c, gr_diag *d);
void gr_environment_free(gr_environment *e); /* NULL is fine */

/* What a conversation that starts from here on is of, in the record of answers: with the number, the turn and
 * the try it names one answer. */
void gr_environment_at(gr_environment *e, uint32_t step, uint32_t round);

/* Where it is served, calls may come in from here on, until it rests. */
GR_NODISCARD gr_status gr_environment_listen(gr_environment *e, gr_diag *d);
void gr_environment_rest(gr_environment *e);

/* Of one that is timed: what time it is, for the record, and for a replay, which gives no answer before its
 * time. And that an answer is taken now; not of those that only told the story so far again. */
void gr_environment_clock(gr_environment *e, uint32_t step, uint32_t trip);
struct gr_answer;
GR_NODISCARD gr_status gr_environment_taken(gr_environment *e, const struct gr_answer *a, gr_diag *d);
/* The run goes on from behind this iteration: what a record has of later ones is of another run. */
GR_NODISCARD gr_status gr_environment_went_on(gr_environment *e, uint32_t step, gr_diag *d);
/* Whether answers are read from a file; then a conversation goes on, without being told again, that had so
 * many turns of this try, and, where it was asked, waits for the answer to the last message. */
bool gr_environment_replays(const gr_environment *e);
void gr_environment_go_on(gr_environment *e, uint32_t number, uint32_t attempt, uint32_t turns, bool asked);

/* Send a message about conversation `number`. fields: what the message holds beside its type; a step's are
 * added to. A start while it has one begins another try, whose number `attempt` is. */
void gr_environment_start(gr_environment *e, uint32_t number, uint32_t attempt, const json_t *fields);
void gr_environment_step(gr_environment *e, uint32_t number, uint32_t turn, json_t *fields);
/* The same where it is served: the call gets its answer. */
void gr_environment_said(gr_environment *e, uint32_t number, uint32_t turn, const gr_serve_said *said);
/* It is over, whether or not a message is open: what is answered to that is dropped. */
void gr_environment_end(gr_environment *e, uint32_t number);

/* An answer. Release it with gr_answer_free. */
typedef struct gr_answer {
    struct {
        uint32_t step, trip, line; /* of a replay that is timed: when it is to be taken, in which order */
    } due;
    uint32_t number;  /* of the conversation */
    char *error;      /* why there is none; the rest is empty then */
    bool late;        /* because its time was up */
    json_t *messages; /* a list of objects with role and content; NULL */
    json_t *tools;    /* of a start: a list of objects, the conversation's tools; NULL */
    bool reminds;     /* it answers nothing: these are the tools of a conversation that goes on */
    json_t *text;     /* a string; NULL */
    gr_ids ids;       /* of a call: what it adds */
    bool is_call;
    uint32_t max_tokens; /* of a call: of the turn, at most; 0: as ever */
    bool done;
    gr_serve_end_reason refused; /* of a served session that is done: what kept it from going on */
    double reward;               /* 0: none given */
    double *metrics;             /* [n_metrics]; 0: none given */
} gr_answer;
void gr_answer_free(gr_answer *a); /* NULL is fine */

/* The next answer, waiting up to timeout_ms (-1: no limit) where none is there; *out NULL: none came. A
 * status other than GR_OK: a worker cannot be started, or the replayed file lacks an answer. */
GR_NODISCARD gr_status gr_environment_next(gr_environment *e, int timeout_ms, gr_answer **out, gr_diag *d);
size_t gr_environment_pending(const gr_environment *e); /* messages without an answer so far */

/* Read one reply to a message: for tests and fuzzing. NULL, and why, to free(). */
typedef enum gr_answer_to { GR_ANSWER_START, GR_ANSWER_STEP, GR_ANSWER_SESSION } gr_answer_to;
gr_answer *gr_answer_read(const json_t *reply, gr_answer_to to, const char *const *metrics, size_t n_metrics,
                          char **why);

#endif
