/* tests/e2e/loss_exec.c: `graphrun exec` on the CPU device with losses evaluated as on CUDA: columns copied
 * once a mini-batch, stages by passes (graphs/expr/code.h), their threads run on the host.
 *
 * usage: loss_exec GRAPH OUT [KEY=VALUE ...]
 */
#include "graphs/expr/code.h"
#include "tests/e2e/exec_with.h"
#include "tests/unit/code_host.h"

int main(int argc, char **argv)
{
    gr_kernels k = gr_kernels_cpu;
    k.losses = true;
    k.code_run = code_host_run;
    return exec_with(&k, argc, argv);
}
