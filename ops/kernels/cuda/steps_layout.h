/* ops/kernels/cuda/steps_layout.h: the memory of ops/kernels/cuda/steps.c; sizes without a device, for the
 * planner. */
#ifndef GR_OPS_KERNELS_CUDA_STEPS_LAYOUT_H
#define GR_OPS_KERNELS_CUDA_STEPS_LAYOUT_H

#include "ops/kernels/workspace.h"
#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/steps.h"

/* The orders of a trip; the same layout on host and device, tables last: what is not used of them is not
 * copied. Texts are copied by themselves. */
typedef struct gr_cu_orders {
    uint32_t *group_first, *shared, *member;
    gr_slot_change *change;
    uint32_t *held; /* NULL without states */
    uint32_t *table;
    int32_t *text; /* NULL: nothing is looked up */
} gr_cu_orders;

/* Written once a rollout. */
typedef struct gr_cu_rules {
    gr_cu_sampling sampling, best; /* best: of what a layer drafts */
    gr_cu_ending ending;
    int32_t stop[]; /* [stop_ids] */
} gr_cu_rules;
uint64_t gr_cu_rules_bytes(const gr_steps_bounds *b);

/* What decode steps know of a model: the heads of each kind of its layers of attention, one that drafts
 * included; and of each list of keys that they read the window, and heads of the layers that read it. */
enum { GR_CU_STEPS_KINDS = GR_LAYER_KINDS_MAX + 1 };
typedef struct gr_cu_steps_list {
    gr_cu_heads heads;
    uint32_t window;
} gr_cu_steps_list;
typedef struct gr_cu_steps_model {
    gr_cu_heads heads[GR_CU_STEPS_KINDS];
    uint32_t n_heads;
    gr_cu_steps_list lists[GR_CU_STEPS_KINDS];
    uint32_t n_lists;
} gr_cu_steps_model;
gr_cu_steps_model gr_cu_steps_model_of(const gr_model_shape *s);

typedef struct gr_cu_steps_device {
    gr_cu_orders orders;
    gr_cu_rules *rules;
    uint32_t *row, *offset; /* [rows + 1] 0, 1, ... */
    gr_cu_slots slots;
    uint16_t *choices, *report_choices; /* of a step, and of a chunk's; NULL: not recorded */
    void *work[GR_CU_STEPS_KINDS];      /* of the attention: the model's lists of keys */
    void *ws;
} gr_cu_steps_device;
void gr_cu_steps_layout_device(gr_workspace *c, const gr_cu_steps_model *m, const gr_steps_bounds *b,
                               gr_cu_steps_device *s);

typedef struct gr_cu_steps_host {
    gr_cu_orders orders[2]; /* by trip modulo 2 */
    int32_t *report_id[2];
    float *report_logprob[2];
    uint16_t *report_choices[2];
    gr_cu_rules *rules;
    uint32_t *count; /* [rows + 1] 0, 1, ... */
} gr_cu_steps_host;
void gr_cu_steps_layout_host(gr_workspace *c, const gr_steps_bounds *b, gr_cu_steps_host *s);

/* ops/kernels/cuda/steps.c, for the table */
gr_status gr_cuda_steps_open(gr_steps **out, const gr_model_shape *shape, const gr_steps_bounds *b,
                             gr_diag *d);
void gr_cuda_steps_close(gr_steps *s);
gr_status gr_cuda_steps_begin(gr_steps *s, gr_queue *q, void *device, void *host, const gr_steps_rules *r,
                              gr_diag *d);
gr_steps_input gr_cuda_steps_input(gr_steps *s, uint32_t trip);
void gr_cuda_steps_change(gr_steps *s, gr_queue *q, uint32_t trip, uint32_t n_changes, uint32_t n_groups);
void gr_cuda_steps_copy(gr_steps *s, gr_queue *q, const gr_steps_blocks *b, const uint32_t *src,
                        const uint32_t *dst, uint32_t n);
void gr_cuda_steps_run(gr_steps *s, gr_queue *q, uint32_t trip, const gr_steps_chunk *c);
gr_status gr_cuda_steps_report(gr_steps *s, uint32_t trip, gr_steps_report *out, gr_diag *d);

#endif
