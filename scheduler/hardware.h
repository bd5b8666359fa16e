/* scheduler/hardware.h: machines, as the cost model sees them: built-in profiles and files that calibration
 * wrote.
 *
 * Units: bytes, seconds; rates are per second.
 */
#ifndef GR_SCHEDULER_HARDWARE_H
#define GR_SCHEDULER_HARDWARE_H

#include "memplan/program.h"

#define GR_RATES_MAX 64

/* What products of a matrix of `rows` rows with weights of about width x width reach within a layer's pass,
 * in arithmetic operations a second: forward, and backward (gradients of inputs and weights). */
typedef struct gr_rate {
    uint32_t rows, width;
    double forward, backward;
} gr_rate;

#define GR_LIBRARY_MAP(X) \
    X(PROCESS, "process") \
    X(CONTEXT, "context") \
    X(BLAS, "blas")       \
    X(DNN, "dnn")         \
    X(GRAPHS, "graphs")   \
    X(COMM, "communication")
typedef enum gr_library {
#define X(name, text) GR_LIBRARY_##name,
    GR_LIBRARY_MAP(X)
#undef X
        GR_N_LIBRARIES
} gr_library;

/* A machine. Those that only calibration knows are 0 elsewhere,
 * and left out of the model: then attention counts as matrix arithmetic, logits as memory. */
typedef struct gr_hardware {
    char name[64];
    const char *device;  /* "cpu" or "cuda", static */
    double flops;        /* matrix arithmetic in the device's own type, at large shapes */
    double memory_bytes; /* device memory, read + written */
    double h2d, d2h;     /* copies between host pool and arena, bytes */
    double host_memory;  /* what an optimizer step on the host reads and writes there, bytes; of one rank */
    double disk;         /* bytes */
    uint64_t device_bytes, host_bytes; /* usable: the default budgets */
    uint64_t overhead_bytes;           /* what the process takes on the device beside the arena */
    uint64_t step_ns;                  /* fixed cost of one step */
    double link;                       /* bytes a rank receives in collectives within a host */
    uint64_t collective_ns;            /* fixed cost of one */
    double network;                    /* as link, from other hosts */
    uint32_t devices;                  /* of one host */
    gr_rate rates[GR_RATES_MAX];       /* a grid: each of some rows with each of some widths, both rising */
    uint32_t n_rates;
    double attention,
        decode_attention; /* arithmetic of attention, over packed sequences and from the KV pool */
    double logits;        /* logits whose softmax is taken */
    uint64_t library[GR_N_LIBRARIES]; /* what overhead_bytes is made of */
} gr_hardware;

/* The machine that this program runs on: its CUDA device, or, where device is "cpu", its processors; device
 * NULL: the first that there is of these. GR_E_INVALID or GR_E_FAILED where there is no CUDA device, or this
 * build has none. */
GR_NODISCARD gr_status gr_hardware_local(gr_hardware *out, const char *device, gr_diag *d);

/* A profile by its name, "cpu" (this machine, uncalibrated), or a file that `graphrun calibrate` wrote: what
 * has a
 * '/' or a '.' in it is a file. GR_E_INVALID with the known names, or with the place in the file. */
GR_NODISCARD gr_status gr_hardware_find(gr_hardware *out, const char *name, gr_diag *d);

/* Profiles that have names, but for "cpu": NULL behind the last. */
const gr_hardware *gr_hardware_known(size_t i);

/* What a rank of so many receives a second in collectives, on so many hosts. */
double gr_hardware_link(const gr_hardware *hw, uint32_t hosts, uint32_t ranks);

/* scheduler/hardware_file.c: the JSON form. Every key is required, and every unknown one is an error. */
GR_NODISCARD gr_status gr_hardware_read(gr_hardware *out, const char *path, gr_diag *d);
void gr_hardware_write(const gr_hardware *h, gr_str *out);

/* scheduler/cost.c: predicted time of one execution of a work that is no loop; and of one that is done on the
 * host lane instead of its own: an optimizer step, which host memory bounds. */
uint64_t gr_work_ns(const gr_work *w, const gr_hardware *h);
uint64_t gr_work_host_ns(const gr_work *w, const gr_hardware *h);

#endif
