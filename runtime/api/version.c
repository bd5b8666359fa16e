/* runtime/api/version.c: what this build is, from what the build has written down. */
#include "runtime/api/version.h"

#include "runtime/api/build_facts.h"
#include "built_version.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

#ifdef GR_CUDA
#include <cuda_runtime_api.h>
#include <cudnn_version.h>
#include <nccl.h>
#define DEVICES "cpu, cuda"
#define CUDA                                                                                           \
    "\ncuda: " TEXT(CUDART_VERSION) " (1000 x major + 10 x minor), cudnn " TEXT(CUDNN_MAJOR) "." TEXT( \
        CUDNN_MINOR) ", nccl " TEXT(NCCL_MAJOR) "." TEXT(NCCL_MINOR) "; code for" GR_GPUS
#else
#define DEVICES "cpu"
#define CUDA    ""
#endif

const char *gr_version(void)
{
    return "graphrun " GR_VERSION " (devices: " DEVICES ")\n"
           "built with " GR_BUILD "; features: " GR_FEATURES CUDA;
}
