/* runtime/device/move.h: the one kernel of the CUDA device itself, as a plain C function that launches it.
 *
 * Errors: those of a launch; the queue's next check has them. Threads: as the stream.
 */
#ifndef GR_RUNTIME_DEVICE_MOVE_H
#define GR_RUNTIME_DEVICE_MOVE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* to [bytes] = from, of any alignment; either may be page-locked memory of the host, which all devices reach
 * by the host's own addresses. For few bytes: see gr_cuda_copy (runtime/device/device_cuda.h). */
#define GR_CU_MOVE_MAX (UINT64_C(4) << 20)
void gr_cu_move(cudaStream_t st, void *to, const void *from, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
