/* ops/rollout.h: how the op `generate` is planned and run: continuous batching over a paged KV pool.
 *
 * A prompt is computed once for its group: its keys and values, up to but not including the last token, stand
 * in shared blocks; each sample then begins by feeding that last token, into blocks of its own (a shared
 * block that is not full is copied). A sample is admitted when blocks for its longest response are free, so
 * nothing is ever preempted. Groups come strictly in order, and a group only when one of its samples would
 * fit beside its prompt: so a pool that holds one full sequence is enough.
 *
 * Two forms, by what the device has (gr_kernels.steps). Step by step: each trip of one loop is a model step
 * over all running sequences (a token each) and, beside them, the next part of a prompt. By chunks: the
 * device keeps the state of the sequences; each trip is a pass over new prompts, as many as fit, and a chunk
 * of steps, while the host reads what the chunk before the last has brought (ops/rollout_steps.c).
 */
#ifndef GR_OPS_ROLLOUT_H
#define GR_OPS_ROLLOUT_H

#include "ops/base/op.h"

size_t gr_rollout_tunables(const gr_graph *g, const gr_node *n, const gr_kernels *k, const gr_choices *c,
                           gr_tunable *out);
void gr_rollout_default_choice(const gr_node *n, const gr_kernels *k, gr_choices *c);
bool gr_rollout_runs_with(const gr_node *n, const gr_choices *c);
void gr_rollout_declare(const gr_graph *g, const gr_node *n, const gr_choices *how, const gr_kernels *k,
                        gr_tasks *p);
gr_status gr_rollout_open(gr_session *s, const gr_node *n, void **state, gr_diag *d);
void gr_rollout_close(void *state);
gr_status gr_rollout_inputs(const void *state, const char *owner, gr_inputs *in, gr_diag *d);
gr_status gr_rollout_run(const gr_call *c, gr_diag *d);
bool gr_rollout_more(const gr_call *c, uint32_t trip);

/* Ids that end a response: the node's own, or the checkpoint's unless it ignores them. */
typedef struct gr_stop_ids {
    const int32_t *id;
    uint32_t n;
} gr_stop_ids;
gr_stop_ids gr_rollout_stop_ids(const gr_node *n);

/* A layer with a window reads a window's worth of keys. So where responses are longer than that, such layers
 * have blocks of their own: a sample's own ones come again as it goes on, but for the first `first`. Blocks
 * of a prompt are held whole, by all its samples together. All such layers have the widest window's. blocks
 * 0: no ring, as where the kernels are not tried with one (gr_kernels.rings). */
typedef struct gr_ring {
    uint32_t first, blocks;
} gr_ring;

/* The smallest pool that works for these rows, and the largest that can ever be used with so many sequences
 * at once. */
uint32_t gr_rollout_blocks_min(const gr_rows_bounds *b, gr_ring ring);
uint64_t gr_rollout_blocks_max(const gr_rows_bounds *b, uint32_t samples, uint32_t concurrent, gr_ring ring);

#endif
