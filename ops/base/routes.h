/* ops/base/routes.h: the routes of a rollout: which experts each router chose for each of its tokens.
 *
 * A column of choices, recorded where a node asks for it (`replay` of `logprob` and `update`): one block of
 * host memory, an object of the plan named "NODE.routes", beside the rows. A token that the rollout fed to
 * its model has routes, prompts included; the last one of a response was never fed. An expert takes a byte,
 * or two where a router has more than 256.
 */
#ifndef GR_OPS_BASE_ROUTES_H
#define GR_OPS_BASE_ROUTES_H

#include "ops/base/op.h"

/* Values of the key `replay`. */
typedef enum gr_replay { GR_REPLAY_NONE, GR_REPLAY_COMPARE, GR_REPLAY_ROLLOUT } gr_replay;
extern const char *const gr_replay_names[]; /* ends with NULL */

/* What a node asks for: GR_REPLAY_NONE of ops without the key. */
gr_replay gr_node_replay(const gr_node *n);

/* Refuse to replay what was not recorded: rows that no rollout made, a model with other routers. */
void gr_check_replay(const gr_node *n, gr_diag *d);

/* Whether a node of the graph asks for the routes of these rows, or of rows selected from them. */
bool gr_rows_routed(const gr_graph *g, const gr_node *rows);

/* A view of the block of a row maker, or of a select; data NULL: there is none. */
typedef struct gr_routes {
    const gr_model_shape *shape; /* of the model that sampled */
    uint8_t *data;               /* [seqs], then by router [stride, k] */
    uint32_t choices;            /* of a token */
    uint32_t stride;             /* tokens of a sequence */
    uint32_t size;               /* bytes of a choice */
} gr_routes;
gr_routes gr_routes_at(void *block, const gr_node *rows);
uint64_t gr_routes_bytes(const gr_node *rows);

/* The object, added on first use; GR_NONE where nobody asks. */
uint32_t gr_routes_object(gr_tasks *p, const gr_graph *g, const gr_node *rows);

/* Choices of a pass of n tokens (ops/kernels/routing.h): those of tokens [at, at + count) are of a sequence's
 * from its token `first` on. */
typedef struct gr_routed_pass {
    uint32_t n, at, seq, first, count;
} gr_routed_pass;
void gr_routes_record(const gr_routes *r, const gr_routed_pass *p, const uint16_t *choices);
void gr_routes_read(const gr_routes *r, const gr_routed_pass *p, uint16_t *choices);

/* The first so many tokens of a sequence to another one, of the same routes or of others. */
void gr_routes_copy(const gr_routes *from, uint32_t seq, const gr_routes *to, uint32_t at, uint32_t tokens);

#endif
