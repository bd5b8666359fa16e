/* ops/reward/worker.h: rewards from a command, by a pool of worker processes (ops/reward/pool.h).
 *
 *     in    {"id": 7, "prompt": "...", "response": "...", "answer": "...", ...}
 *     in    with a number a token, or several requests in flight, also {..., "tokens": [3, 9, 1],
 *           "offsets": [[0, 2], [2, 3], [3, 3]]} (ops/scorer.c)
 *     out   {"id": 7, "score": 0.5}   or [0, 0, 1] (one number a token)   or {"correct": 1, "format": 0.2}
 *     out   several of these in a list
 *
 * A score of the wrong shape is a bad reply. Threads: a pool belongs to one thread at a time.
 */
#ifndef GR_OPS_REWARD_WORKER_H
#define GR_OPS_REWARD_WORKER_H

#include <jansson.h>

#include "runtime/base/base.h"

typedef struct gr_workers_config {
    const char *command;
    gr_loc at;           /* place of the command in the graph, for messages */
    unsigned n;          /* processes, >= 1 */
    unsigned depth;      /* requests a worker holds at once; 0 is 1 */
    unsigned timeout_ms; /* for one request, from when it goes to a worker; 0 is 60 seconds */
    unsigned grace_ms;   /* for workers to end by themselves at gr_workers_free; 0 is 2 seconds */
    size_t line_bytes;   /* longest reply; 0 is 16 MiB */
    /* What a score is: one number; or with per_token one for each token; or with n_names > 0 an object with
     * these names (others in it are ignored). The names are kept, not copied. */
    bool per_token;
    const char *const *names;
    size_t n_names;
    /* Asked before a worker is started again, whether it would be the same one: a failure is told by collect.
     * NULL: nobody. */
    gr_status (*again)(void *user, gr_diag *d);
    void *user;
} gr_workers_config;

typedef struct gr_workers gr_workers;

/* Start the workers. GR_E_IO where a process cannot be started; a command that sh does not know shows as a
 * worker that ends, at the first request. */
GR_NODISCARD gr_status gr_workers_new(gr_workers **out, const gr_workers_config *c, gr_diag *d);

/* End the workers: their input ends, then after the grace time they are killed. NULL is fine. */
void gr_workers_free(gr_workers *w);

/* Queue a request. id names the sequence, unique among those not yet collected; it is added to fields, an
 * object that is read during the call only (gr_json_string of runtime/base/json.h makes a string of any
 * response). n_tokens is how many numbers a per-token reply must have. Never blocks. */
void gr_workers_submit(gr_workers *w, uint64_t id, size_t n_tokens, json_t *fields);

size_t gr_workers_pending(const gr_workers *w); /* submitted and not yet collected */

/* A reply: values is 1, n_tokens or n_names numbers that float32 can hold, as their sum can; free with
 * free(). */
typedef struct gr_reward {
    uint64_t id;
    double *values; /* NULL: nothing came in time */
    size_t n;
} gr_reward;

/* Wait up to timeout_ms (-1: no limit, 0: only look) for one reply and move requests along meanwhile.
 * GR_OK with out->values NULL where the time is up or nothing is pending. GR_E_FAILED, with a message that
 * names the sequence, where a request has failed; out->id is then that request, which is no longer pending.
 */
GR_NODISCARD gr_status gr_workers_collect(gr_workers *w, int timeout_ms, gr_reward *out, gr_diag *d);

#endif
