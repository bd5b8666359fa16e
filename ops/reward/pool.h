/* ops/reward/pool.h: long-lived worker processes that answer requests, a line of JSON each.
 *
 * Each worker is /bin/sh -c COMMAND. It reads requests from its input, one JSON object a line, each with an
 * "id", and prints replies, a line each, in any order: an object with the id of the request that it answers,
 * or a list of such objects. It may hold `depth` requests at once.
 *
 * Its error output passes through. It should end when its input does; with the pool, and with this process
 * however that ends, it is killed, and so is all that it has started (runtime/base/guard.h). Requests go to
 * free workers in the order they were submitted; replies come back as they arrive.
 *
 * Two kinds of pool. Where workers keep no state, any of them may answer any request, and one whose worker
 * fails is sent to another. Where they keep state (`keeps_state`), a conversation stays with the worker that
 * had its first request; what becomes of it when that worker ends is for the caller to say.
 *
 * What goes wrong, and what then happens (the pool stays usable in every case):
 *
 *     a worker ends      it is started again; its requests are sent once more, and fail if that worker
 *                        ends too; one that has answered and exits with status 0 does not count. With state:
 *                        its requests fail at once, and so do later ones of the conversations that it had
 *     no reply in time   the worker and all that it has started are killed; the request fails; others that
 *                        the worker held are sent again. With state: a worker that has answered another
 *                        request meanwhile goes on, and what it says later of the failed one is dropped
 *     a bad reply        the worker is killed, and the message shows how the reply begins: not JSON, the
 *                        answer to none of its requests, a line without end. Where it answers a request with
 *                        what cannot be read: the same, but with state that request alone fails
 *     a reply with `error`, a text
 *                        the request fails with it; with `"late": true` because its time was up
 *     output while it has no request
 *                        the worker is started again
 *
 * Threads: a pool belongs to one thread at a time.
 */
#ifndef GR_OPS_REWARD_POOL_H
#define GR_OPS_REWARD_POOL_H

#include <jansson.h>

#include "runtime/base/base.h"

typedef struct gr_pool_config {
    const char *command;
    const char *who;     /* in messages: "reward worker" */
    gr_loc at;           /* place of the command in the graph, for messages */
    unsigned n;          /* processes, >= 1 */
    unsigned depth;      /* requests a worker holds at once; 0 is 1 */
    unsigned timeout_ms; /* for one request, from when it goes to a worker, while gr_pool_collect is asked
                            often enough to listen; 0 is 60 seconds */
    unsigned grace_ms;   /* for workers to end by themselves at gr_pool_free; 0 is 2 seconds */
    size_t line_bytes;   /* longest reply; 0 is 16 MiB */
    bool keeps_state;
    /* What a reply says of a request with this `about`: handed to collect. NULL, and why, to free(), where it
     * is bad. */
    void *(*read)(void *user, size_t about, const json_t *reply, char **why);
    void (*drop)(void *result); /* of one that nobody collects; NULL: free() */
    /* Asked before a worker is started again, whether it would be the same one: a failure is told by collect.
     * NULL: nobody. */
    gr_status (*again)(void *user, gr_diag *d);
    void *user;
} gr_pool_config;

typedef struct gr_pool gr_pool;

/* A worker as it was started once; {0}: any. */
typedef struct gr_pool_worker {
    unsigned number; /* from 1 */
    unsigned start;
} gr_pool_worker;

/* Start the workers. GR_E_IO where a process cannot be started; a command that sh does not know shows as a
 * worker that ends, at the first request. */
GR_NODISCARD gr_status gr_pool_new(gr_pool **out, const gr_pool_config *c, gr_diag *d);

/* End the workers: their input ends, then after the grace time they are killed. NULL is fine. */
void gr_pool_free(gr_pool *p);

/* Queue a request. id names it, unique among those not yet collected; it is added to fields, an object that
 * is read during the call only. what: what it is about in messages ("sequence 7"), kept as a copy. worker:
 * who is to have it; {0}: any. Never blocks. */
void gr_pool_submit(gr_pool *p, uint64_t id, const char *what, size_t about, json_t *fields,
                    gr_pool_worker worker);

/* The same without a reply, which is not waited for; dropped where the worker has ended. */
void gr_pool_tell(gr_pool *p, uint64_t id, json_t *fields, gr_pool_worker worker);

size_t gr_pool_pending(const gr_pool *p); /* submitted and not yet collected */

typedef struct gr_pool_reply {
    uint64_t id;
    void *result;          /* what read made of it; NULL: it failed */
    char *error;           /* then why, to free(); both NULL: nothing came in time */
    bool late;             /* it failed because its time was up */
    gr_pool_worker worker; /* that answered it, or has it still; {0}: none */
} gr_pool_reply;

/* Wait up to timeout_ms (-1: no limit, 0: only look) for one reply and move requests along meanwhile. A
 * status other than GR_OK: a worker could not be started. */
GR_NODISCARD gr_status gr_pool_collect(gr_pool *p, int timeout_ms, gr_pool_reply *out, gr_diag *d);

/* Have collect return without a reply, too, when fd is readable; -1: no such file. */
void gr_pool_also(gr_pool *p, int fd);

/* A sign of life of the worker that has request id, other than a reply. held: its time does not count until
 * the next sign; else it begins anew. */
void gr_pool_alive(gr_pool *p, uint64_t id, bool held);

#endif
