/* ops/kernels/kernels.c: the tables of kernels by device, and what each can do. */
#include "ops/kernels/layer_ops.h"

#include <string.h>

static const struct {
    gr_kernel_set set;
    const char *what;
} names[] = {
    {GR_KERNELS_FORWARD, "passes of a model"}, {GR_KERNELS_BACKWARD, "training"},
    {GR_KERNELS_LM_HEAD, "output matrices"},   {GR_KERNELS_VALUE_HEAD, "value heads"},
    {GR_KERNELS_ROLLOUT, "generation"},
};

unsigned gr_kernels_sets(const gr_kernels *k)
{
    unsigned sets = 0;
    if (k->layer) sets |= GR_KERNELS_FORWARD;
    if (k->layer && k->embed_ws_bytes && k->sum_squares_ws_bytes) sets |= GR_KERNELS_BACKWARD;
    if (k->head_ws_bytes) sets |= GR_KERNELS_LM_HEAD;
    if (k->value_ws_bytes) sets |= GR_KERNELS_VALUE_HEAD;
    if (k->layer && k->layer->kv_block_bytes) sets |= GR_KERNELS_ROLLOUT;
    return sets;
}

void gr_kernel_sets_name(unsigned sets, gr_str *out)
{
    const char *between = "";
    for (size_t i = 0; i < GR_LEN(names); i++) {
        if (!(sets & names[i].set)) continue;
        gr_str_printf(out, "%s%s", between, names[i].what);
        between = ", ";
    }
}

const gr_kernels *const gr_all_kernels[] = {&gr_kernels_cpu, &gr_kernels_cuda, NULL};

const gr_kernels *gr_kernels_find(const char *device)
{
    for (const gr_kernels *const *k = gr_all_kernels; *k; k++)
        if (!strcmp((*k)->device, device)) return *k;
    return NULL;
}

const gr_kernels *gr_kernels_as(const gr_kernels *k, bool strict, bool deterministic)
{
    if (strict && k->strict) k = k->strict;
    return !deterministic && k->nondeterministic ? k->nondeterministic : k;
}
