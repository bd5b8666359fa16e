/* ops/kernels/cuda/cudnn_graph.h: what attention needs of cuDNN's backend API: tensors, four kinds of
 * operations, and a plan made of them.
 *
 * Errors stick: after the first failed call every further one does nothing and returns NULL, so that a graph
 * is written down without a check on each line; gr_cudnn_plan_build reports the call that failed. Descriptors
 * live until gr_cudnn_graph_release, or move into the plan that was built of them.
 *
 * Threads: a graph, and a plan while it is being executed, belong to one thread at a time.
 */
#ifndef GR_OPS_KERNELS_CUDA_CUDNN_GRAPH_H
#define GR_OPS_KERNELS_CUDA_CUDNN_GRAPH_H

#include "runtime/base/base.h"
#include <cudnn.h>

typedef cudnnBackendDescriptor_t gr_cudnn_desc;

#define GR_CUDNN_OPS_MAX 64

typedef struct gr_cudnn_graph {
    cudnnHandle_t handle;
    gr_cudnn_desc device; /* where not NULL, plans are for this described device and handle is not needed */
    gr_cudnn_desc *made;
    size_t n_made, cap_made;
    gr_cudnn_desc ops[GR_CUDNN_OPS_MAX];
    int64_t n_ops, next_uid;
    cudnnStatus_t status; /* of the first call that failed */
    const char *failed;   /* that call */
    char why[512];        /* and what the library says of it */
} gr_cudnn_graph;

typedef struct gr_cudnn_shape {
    int64_t dim[4], stride[4]; /* elements */
} gr_cudnn_shape;

typedef struct gr_cudnn_plan {
    gr_cudnn_desc plan;
    gr_cudnn_graph graph; /* what the plan was built of: cuDNN does not say that it keeps copies */
    uint64_t ws_bytes;
    char engine[64]; /* which engine runs it, for messages and benchmarks */
} gr_cudnn_plan;

void gr_cudnn_graph_init(gr_cudnn_graph *g, cudnnHandle_t handle, gr_cudnn_desc device);
void gr_cudnn_graph_release(gr_cudnn_graph *g);

/* A tensor in device memory; ragged: NULL, or the tensor of its int32 offsets [dim[0] + 1], in elements. */
gr_cudnn_desc gr_cudnn_tensor(gr_cudnn_graph *g, int64_t uid, cudnnDataType_t type, const gr_cudnn_shape *s,
                              gr_cudnn_desc ragged);
/* One fp32 value passed by pointer to host memory at execution. */
gr_cudnn_desc gr_cudnn_scalar(gr_cudnn_graph *g, int64_t uid);
/* A value between operations that is never stored. */
gr_cudnn_desc gr_cudnn_virtual(gr_cudnn_graph *g, cudnnDataType_t type, const gr_cudnn_shape *s,
                               gr_cudnn_desc ragged);

/* y = mode(x, b, t); b, t NULL where the mode takes fewer. Returns y. */
gr_cudnn_desc gr_cudnn_pointwise(gr_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math,
                                 gr_cudnn_desc x, gr_cudnn_desc b, gr_cudnn_desc t, gr_cudnn_desc y);
/* y = the index along axis, in the shape of x. */
gr_cudnn_desc gr_cudnn_index(gr_cudnn_graph *g, int64_t axis, cudnnDataType_t math, gr_cudnn_desc x,
                             gr_cudnn_desc y);
/* c = a b over the last two dimensions; m, n, k: NULL, or int32 tensors [B, 1, 1, 1] of the true sizes.
 * Returns c. */
gr_cudnn_desc gr_cudnn_matmul(gr_cudnn_graph *g, gr_cudnn_desc a, gr_cudnn_desc b, gr_cudnn_desc c,
                              gr_cudnn_desc m, gr_cudnn_desc n, gr_cudnn_desc k);
gr_cudnn_desc gr_cudnn_reduce(gr_cudnn_graph *g, cudnnReduceTensorOp_t op, gr_cudnn_desc x, gr_cudnn_desc y);
gr_cudnn_desc gr_cudnn_reshape(gr_cudnn_graph *g, gr_cudnn_desc x, gr_cudnn_desc y);

/* Takes the descriptors of g on success. The first engine of cuDNN's heuristics that takes the graph;
 * deterministic: and that does not call itself nondeterministic. GR_E_FAILED with a message that ends in
 * `what` where there is none. */
GR_NODISCARD gr_status gr_cudnn_plan_build(gr_cudnn_plan *out, gr_cudnn_graph *g, bool deterministic,
                                           const char *what, gr_diag *d);
void gr_cudnn_plan_release(gr_cudnn_plan *p);

/* Enqueue on the handle's stream. uid [n] and pointer [n] name every tensor and scalar of the graph. */
GR_NODISCARD gr_status gr_cudnn_plan_execute(const gr_cudnn_plan *p, cudnnHandle_t handle, const int64_t *uid,
                                             void *const *pointer, size_t n, void *ws, const char *what,
                                             gr_diag *d);

#endif
