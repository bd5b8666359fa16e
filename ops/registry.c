/* ops/registry.c: the list of all ops. To add one: write ops/<name>.c, add its extern and its table line
 * here, its file in ops/meson.build, its cases in tests/unit. No more. */
#include "ops/base/op.h"
#include "ops/registry.h"

#include <string.h>

extern const gr_op gr_op_back, gr_op_compute, gr_op_copy, gr_op_generate, gr_op_join, gr_op_logprob,
    gr_op_prompts, gr_op_replay, gr_op_reward, gr_op_score, gr_op_select, gr_op_sequences, gr_op_update,
    gr_op_value;

const gr_op *const gr_ops[] = {
    &gr_op_back,    &gr_op_compute,   &gr_op_copy,   &gr_op_generate, &gr_op_join,
    &gr_op_logprob, &gr_op_prompts,   &gr_op_replay, &gr_op_reward,   &gr_op_score,
    &gr_op_select,  &gr_op_sequences, &gr_op_update, &gr_op_value,    NULL,
};

void gr_op_devices(const gr_op *op, gr_str *out)
{
    const char *between = "";
    for (const gr_kernels *const *k = gr_all_kernels; *k; k++) {
        if (op->kernels & ~gr_kernels_sets(*k)) continue;
        gr_str_printf(out, "%s%s", between, (*k)->device);
        between = ", ";
    }
}

const gr_op *gr_op_find(const char *name)
{
    for (const gr_op *const *op = gr_ops; *op; op++)
        if (!strcmp((*op)->name, name)) return *op;
    return NULL;
}
