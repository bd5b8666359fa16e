/* runtime/device/device_cuda.h: the CUDA device of runtime/device/device.h.
 *
 * The arena is a virtual-memory reservation at the recommended granularity, backed by one physical allocation
 * with an exportable handle, so that NCCL can register it; the host pool is page-locked, taken and touched
 * once. Lanes are streams. Every stream has a small page-locked ring, through which write and read pass
 * ordinary host memory.
 *
 * used() is what the driver counts on the whole device, other processes included.
 */
#ifndef GR_RUNTIME_DEVICE_DEVICE_CUDA_H
#define GR_RUNTIME_DEVICE_DEVICE_CUDA_H

#include "runtime/device/device.h"

extern const gr_device_type gr_device_cuda;

/* Whether there is a device that this build can use, and its name and memory. GR_E_FAILED with the driver's
 * reason. */
typedef struct gr_cuda_info {
    char name[256];
    uint64_t bytes, free_bytes; /* of device memory */
    int major, minor, multiprocessors;
} gr_cuda_info;
GR_NODISCARD gr_status gr_cuda_probe(gr_cuda_info *out, gr_diag *d);

/* On a queue's stream, between memory of the device and page-locked memory of the host. One engine makes all
 * copies of a direction, in the order in which they were given, whichever streams they are of: what a step
 * sends or reads would wait there for every load or offload that was given before. So few bytes are moved by
 * a kernel. */
void gr_cuda_copy(gr_queue *q, void *to, const void *from, uint64_t bytes);

#endif
