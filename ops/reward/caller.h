/* ops/reward/caller.h: requests that a function of this process answers, on a thread of its own, so that who
 * asks goes on meanwhile. It stands in for a pool of worker processes (ops/reward/pool.h) whose workers keep
 * state.
 *
 * The function is handed all requests that have come since it was called last, as a JSON list of objects,
 * each with its "id". It gives a JSON list with a reply to each but those that want none. What is not that,
 * and a failure of the function, ends the asking: there is no process to start again. A reply with `error`, a
 * text, fails its request alone.
 *
 * Threads: a caller belongs to one thread at a time; the function is called on another, once at a time.
 */
#ifndef GR_OPS_REWARD_CALLER_H
#define GR_OPS_REWARD_CALLER_H

#include "ops/reward/pool.h"

/* requests: n bytes and a NUL. replies: to be filled. GR_OK, or a failure with its message in d. */
typedef gr_status gr_answering(void *user, const char *requests, size_t n, gr_str *replies, gr_diag *d);

typedef struct gr_caller_config {
    gr_answering *answer;
    void *user;       /* of answer */
    const char *name; /* of the function, for messages */
    gr_loc at;        /* where the graph names it */
    /* What a reply says of a request with this `about`, as of a pool. */
    void *(*read)(void *asker, size_t about, const json_t *reply, char **why);
    void (*drop)(void *result);
    void *asker;
} gr_caller_config;

typedef struct gr_caller gr_caller;

GR_NODISCARD gr_status gr_caller_new(gr_caller **out, const gr_caller_config *c, gr_diag *d);
void gr_caller_free(gr_caller *c); /* waits for a call that runs; NULL is fine */

/* Queue a request; fields: an object that is read during the call, and its id, unique among those not yet
 * collected. wants_reply false: nothing is collected of it. Never blocks. */
void gr_caller_submit(gr_caller *c, uint64_t id, size_t about, json_t *fields, bool wants_reply);

size_t gr_caller_pending(gr_caller *c); /* submitted and not yet collected */

/* Wait up to timeout_ms (-1: no limit, 0: only look) for one reply, as gr_pool_collect. */
GR_NODISCARD gr_status gr_caller_collect(gr_caller *c, int timeout_ms, gr_pool_reply *out, gr_diag *d);

#endif
