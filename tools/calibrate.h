/* tools/calibrate.h: what `graphrun calibrate` measures with: one layer on a device, at sizes that suit it;
 * and what is measured on a CUDA device alone.
 */
#ifndef GR_TOOLS_CALIBRATE_H
#define GR_TOOLS_CALIBRATE_H

#include "ops/kernels/kernels.h"
#include "scheduler/cost/hardware.h"
#include "scheduler/search/planner.h"
#include "tools/args.h"
#include "tools/repeats.h"

typedef struct gr_bench_sizes {
    uint32_t rows[8], n_rows, widths[8], n_widths; /* the grid of matrix rates */
    uint32_t rounds;                               /* at most */
    uint32_t short_length;                         /* of sequences of the grid */
    uint32_t lengths[GR_LENGTHS_MAX], n_lengths, attention_width, attention_tokens;
    uint32_t pool_length, pool_shared, group,
        slots; /* of sequences in the pool: what a group of them shares */
    uint32_t head_rows, head_hidden, vocab;
    uint64_t copy_bytes, arena_bytes, pool_bytes;
} gr_bench_sizes;

/* One layer, several times over, and its batch, in the device's arena. */
typedef struct gr_bench {
    const gr_kernels *k;
    gr_device *dev;
    gr_queue q;
    unsigned threads;
    const gr_bench_sizes *sizes;
    gr_repeats repeats;
    double burst_least,
        burst_most; /* seconds of a run in the fastest and the slowest burst of the last measurement */
    gr_status st;   /* of the first failure; its message is in d */
    gr_diag *d;
    uint64_t used; /* of the arena */
    gr_model_shape shape;
    uint32_t tokens, seqs, length, shared;
    bool heavy;                       /* long enough of it lowers the device's clocks */
    uint32_t *offset;                 /* host */
    uint32_t layers, turn;            /* that are run in turn, their weights one after the other; the next */
    uint64_t layer_bytes, grad_bytes; /* of one */
    void *w, *grad, *x, *dx, *in, *acts, *ws, *kv;
    gr_packed packed;
    gr_extend extend;
    gr_decode decode;
    void *own; /* of what is being measured */
    struct {
        void *lm, *ws;
        const uint32_t *row;
        const int32_t *target;
        float *logprob;
    } head;
} gr_bench;

/* Bytes of the arena, with what the host has, or zeros. */
void *gr_bench_place(gr_bench *b, const void *host, uint64_t bytes);
/* n random numbers of the arena, in the type of weights. */
void *gr_bench_random(gr_bench *b, uint64_t n);

/* Seconds of the usual run, the one in the middle, or of the only one where that takes long: rounds repeat
 * it; of a device that runs later the mean over bursts of runs, long enough to see the clocks that it keeps.
 */
double gr_bench_seconds(gr_bench *b, void (*run)(gr_bench *));

/* Begin with an empty arena. Sequences of `length` tokens (the last of them shorter); paged: in the pool,
 * `tokens` of them, of each of which the last token is new. */
void gr_bench_open(gr_bench *b, uint32_t width, uint32_t tokens, uint32_t length, bool paged);
void gr_bench_close(gr_bench *b);
void gr_bench_forward(gr_bench *b);
void gr_bench_backward(gr_bench *b);
void gr_bench_extend(gr_bench *b);

/* Of a paged bench: what a device's decode attention wants beside b->extend, where it wants something. */
void gr_bench_decode(gr_bench *b);

/* ---- CUDA (tools/calibrate_cuda.c); refused in a build without it -----------------------------------------
 */

/* What context, libraries and graphs take, by the driver's count around their making; attaches the kernels to
 * the queue. The device should be idle: what other processes hold would be taken for the context's. */
GR_NODISCARD gr_status gr_calibrate_cuda_overhead(gr_hardware *h, gr_bench *b, gr_diag *d);
GR_NODISCARD gr_status gr_calibrate_cuda_memory(gr_hardware *h, gr_bench *b, gr_diag *d);
/* Copies of 1, 2, 4 ... and all of the devices that this process sees, at once, as ranks of a run would: a
 * GiB of each and of page-locked memory. Of the devices after one that cannot be used, which is told,
 * nothing is measured. Other work on any of them, or in the host's memory, is measured with it. */
GR_NODISCARD gr_status gr_calibrate_cuda_copies(gr_hardware *h, gr_diag *d);
/* What has been loaded since: kernels of all the shapes measured. */
void gr_calibrate_cuda_rest(gr_hardware *h, const gr_bench *b);
/* Rates of attention, forward and backward, of the lengths in b->sizes: measured apart from the layers that
 * it is a small part of. */
GR_NODISCARD gr_status gr_calibrate_cuda_attention(gr_hardware *h, gr_bench *b, gr_diag *d);
/* Seconds of a layer in the step of a rollout, captured in a graph as it is there; of a paged bench. */
double gr_calibrate_cuda_decode(gr_bench *b);

/* calibrate_from.c: o's hardware refined with what the runs a->from measured; said: how, and how sure. The
 * runs are of one role each, and were planned for that hardware. */
GR_NODISCARD gr_status gr_calibrate_from(gr_hardware *h, const gr_args *a, const gr_plan_options *o,
                                         gr_str *said, gr_diag *d);

#endif
