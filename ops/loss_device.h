/* ops/loss_device.h: the loss of an update on a device with memory of its own: no value of it visits the host
 * within a mini-batch.
 *
 * Prepare copies what the loss reads to the device once a mini-batch: which tokens, sequences and prompts
 * there are, and the columns, from the host pool; fresh values and adjoints are on the device for all the
 * update. Every stage is a few launches (graphs/expr/code.h) on the queue. Calls only enqueue. The host
 * memory given to prepare is read until the queue has run it, and the row structure in it by later adjoint
 * calls.
 *
 * Threads: one at a time.
 */
#ifndef GR_OPS_LOSS_DEVICE_H
#define GR_OPS_LOSS_DEVICE_H

#include "graphs/expr/code.h"
#include "graphs/expr/loss.h"
#include "ops/kernels/kernels.h"

/* What the loss reads beside the fresh values, and how much of it there can be in a mini-batch. */
typedef struct gr_loss_column {
    int id, rows; /* rows: row set, at sequence and token level */
    gr_level level;
    gr_expr_dtype dtype;
} gr_loss_column;

typedef struct gr_loss_inputs {
    const gr_loss_column *columns;
    const int *rows; /* row sets */
    size_t n_columns, n_rows;
    gr_expr_bounds bounds; /* over all its row sets */
    bool masked;           /* of some row set tokens are left out: there is room for masks */
} gr_loss_inputs;

/* Bytes of the memory that calls are given; aligned to 256. */
uint64_t gr_loss_data_bytes(const gr_loss_inputs *in);
uint64_t gr_loss_host_bytes(const gr_loss_inputs *in);
/* Slots of all stages; range: bounds of one adjoint call. The store is gr_loss_store_bytes of in->bounds. */
uint64_t gr_loss_frame_bytes(const gr_loss *l, gr_expr_bounds mini_batch, gr_expr_bounds range);

typedef struct gr_loss_memory {
    void *data, *store, *work; /* on the device */
    void *host;                /* that the device can copy from; prepare alone needs it */
} gr_loss_memory;

/* For one mini-batch after another. inputs and loss outlive it. */
typedef struct gr_loss_device gr_loss_device;
gr_loss_device *gr_loss_device_new(const gr_kernels *k, const gr_loss *l, const gr_loss_inputs *in,
                                   gr_expr_bounds range);
void gr_loss_device_free(gr_loss_device *x); /* NULL is fine */

/* env: of the mini-batch, in host memory, but for fresh columns, which are on the device; read during the
 * call, the columns' data until the queue has run it. */
void gr_loss_device_prepare(gr_loss_device *x, gr_queue *q, const gr_expr_env *env, const gr_loss_memory *m);
/* As gr_loss_adjoint and gr_loss_value; the results are on the device. */
void gr_loss_device_adjoint(gr_loss_device *x, gr_queue *q, const gr_loss_memory *m, uint32_t first,
                            uint32_t end, float *const *adjoint);
void gr_loss_device_value(gr_loss_device *x, gr_queue *q, const gr_loss_memory *m, double *values);

#endif
