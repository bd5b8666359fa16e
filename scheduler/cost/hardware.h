/* scheduler/cost/hardware.h: machines, as the cost model sees them: built-in profiles and files that
 * calibration wrote.
 *
 * Units: bytes, seconds; rates are per second.
 */
#ifndef GR_SCHEDULER_COST_HARDWARE_H
#define GR_SCHEDULER_COST_HARDWARE_H

#include "memplan/plan/tasks.h"

#define GR_RATES_MAX     64
#define GR_LENGTHS_MAX   8
#define GR_COPIES_MAX    8
#define GR_PROTOCOLS_MAX 4

/* What products of a matrix of `rows` rows with weights of about width x width reach within a layer's pass,
 * in arithmetic operations a second, all other work of the layer but attention included: forward; backward
 * (gradients of inputs and weights); and in a step of a rollout, one row a sequence. */
typedef struct gr_rate {
    uint32_t rows, width;
    double forward, backward, decode;
} gr_rate;

/* Arithmetic of attention over packed sequences of this length; unordered: of backward where sums need no
 * fixed order, 0: as fast as in one. */
typedef struct gr_attention_rate {
    uint32_t length;
    double forward, backward, unordered;
} gr_attention_rate;

/* Of layers of experts (gr_experts_cost). An expert's rows are multiplied in tiles, which are filled up:
 * padding rows of each expert on average. All 0: experts take what a dense layer of as many rows takes. */
typedef struct gr_experts_rate {
    double product;  /* arithmetic of products of rows, those that fill up included; */
    double gradient; /* of gradients of weights, beside what reads and writes their sums */
    double read;     /* bytes of weights where rows are few */
    double padding;
    uint64_t launch_ns; /* of each kernel, beside what it computes and moves */
} gr_experts_rate;

/* Copies between host pool and arena, of each of so many ranks of a host that all copy at once, bytes: to the
 * device or from it alone, and each of both ways at once. */
typedef struct gr_copy_rate {
    uint32_t ranks;
    double h2d, d2h, both;
} gr_copy_rate;

/* One of the ways in which a collective's messages go between ranks of several hosts; the fastest is taken
 * (collective.c). Steps are between neighbours within a host, and between hosts. */
typedef struct gr_protocol {
    double ring_share, tree_share; /* what rings and trees reach of the rate of links and adapters */
    double most;                   /* bytes a second at most; 0: no limit of its own */
    uint32_t ring_ns[2], tree_ns[2];
} gr_protocol;

/* What is between the hosts of a cluster, and what its ranks differ in. All 0: a collective takes as long
 * for any number of ranks, and each rank has an adapter. */
typedef struct gr_cluster {
    uint32_t adapters;       /* of a host, which its ranks share; 0: one for each rank */
    uint32_t pod;            /* hosts that reach each other at the adapters' full rate; 0: all */
    double oversubscription; /* by how much less others do; 0: they do not */
    gr_protocol protocols[GR_PROTOCOLS_MAX];
    uint32_t n_protocols;
    uint64_t peer_bytes; /* of the device, for each rank of a communicator beyond those of one host */
    double spread;       /* standard deviation of how long the same work takes ranks, of its mean */
} gr_cluster;

/* A disk that state is kept on during a run, read and written past the page cache, bytes; latency: of one
 * transfer, beside its bytes. All 0: as the disk that checkpoints go to. */
typedef struct gr_disk_rate {
    double read, write;
    uint64_t latency_ns;
} gr_disk_rate;

#define GR_LIBRARY_MAP(X) \
    X(PROCESS, "process") \
    X(CONTEXT, "context") \
    X(BLAS, "blas")       \
    X(DNN, "dnn")         \
    X(COMM, "communication")
typedef enum gr_library {
#define X(name, text) GR_LIBRARY_##name,
    GR_LIBRARY_MAP(X)
#undef X
        GR_N_LIBRARIES
} gr_library;

/* A machine. What is 0 or empty is left out of the model: then attention and the head count as matrix
 * arithmetic, keys and values and logits as memory. */
typedef struct gr_hardware {
    char name[64];
    const char *device;                 /* "cpu" or "cuda", static */
    double flops;                       /* matrix arithmetic in the device's own type, at large shapes */
    double memory_bytes;                /* device memory, read + written */
    gr_copy_rate copies[GR_COPIES_MAX]; /* from one rank on, ranks rise */
    uint32_t n_copies;
    gr_copy_rate copy;  /* of the ranks that are planned for; at first of one */
    double host_memory; /* what an optimizer step on the host reads and writes there, bytes; of one rank */
    double disk;        /* bytes */
    gr_disk_rate state_disk;           /* see gr_hardware_disk */
    uint64_t device_bytes, host_bytes; /* usable: the default budgets */
    uint64_t overhead_bytes;           /* what the process takes on the device beside the arena */
    uint64_t layer_graph_bytes;        /* and for each layer in a graph of kernels that it captures, */
    double pinned;          /* and for each byte of the host pool: the device's page tables of it */
    uint64_t step_ns;       /* fixed cost of one step */
    double link;            /* bytes a rank receives in collectives within a host */
    uint64_t collective_ns; /* fixed cost of one, its messages within a host included */
    uint64_t sum_ns;        /* of a sum over neighbours within a task (gr_task.sums) */
    double reduce_share;    /* what `compute` loses beside a reduction, of the time that this takes alone */
    double network;         /* as link, from other hosts, through one adapter */
    uint32_t devices;       /* of one host */
    gr_cluster cluster;
    uint32_t ranks, hosts;       /* that are planned for (gr_hardware_for); 0: on one host */
    double slowest;              /* of them: how many times as long as the mean it takes; 0: as long */
    gr_rate rates[GR_RATES_MAX]; /* a grid: each of some rows with each of some widths, both rising */
    uint32_t n_rates;
    gr_attention_rate attention[GR_LENGTHS_MAX]; /* lengths rise */
    uint32_t n_attention;
    gr_experts_rate experts;
    double fp8; /* how many times as fast products in FP8 of many rows are, roundings included (those
                   of a rollout's steps follow their bytes); 0: as fast */
    double decode_attention; /* arithmetic of attention to keys and values in the pool; */
    double kv_bytes;         /* or, where it is they that take the time, bytes of them read */
    double head;             /* arithmetic of products with an output matrix */
    double logits;           /* logits whose softmax is taken, */
    double kept;             /* and of those that go through memory: sampled from, or kept for gradients;
                                0: as logits */
    uint64_t part[GR_N_LIBRARIES]; /* what overhead_bytes is made of; COMM comes to it where ranks are
                                         several: their first communicator, with collectives of all kinds */
    uint64_t group_bytes;          /* and for each further communicator, split off or of all roles; */
    uint64_t message_bytes; /* and, of each, for each rank of this host that messages go to or come from */
} gr_hardware;

/* What a process does that takes memory of the device beside its arena. */
typedef struct gr_tenant {
    uint32_t ranks;      /* it is one of so many */
    uint32_t groups;     /* communicators beside theirs (each counted as if it were of all) */
    uint32_t messages;   /* ranks that messages go to or come from, of all communicators together */
    uint32_t captured;   /* layers in graphs of kernels */
    uint64_t host_bytes; /* of its host pool */
} gr_tenant;

/* The machine that this program runs on: its CUDA device, or, where device is "cpu", its processors; device
 * NULL: the first that there is of these. GR_E_INVALID or GR_E_FAILED where there is no CUDA device, or this
 * build has none. */
GR_NODISCARD gr_status gr_hardware_local(gr_hardware *out, const char *device, gr_diag *d);

/* A profile by its name, "cpu" (this machine, uncalibrated), or a file that `graphrun calibrate` wrote: what
 * has a
 * '/' or a '.' in it is a file. GR_E_INVALID with the known names, or with the place in the file. */
GR_NODISCARD gr_status gr_hardware_find(gr_hardware *out, const char *name, gr_diag *d);

/* So many ranks of one host each have their part of its memory, and of the CPU device's, which is the same. A
 * profile that has a name, "cpu" apart, is left as it is: it says what there is for one device. name: as for
 * gr_hardware_find, NULL for this machine. */
void gr_hardware_share(gr_hardware *hw, const char *name, uint32_t ranks);

/* The profile of a name, with its network; false: there is none. "cpu" is none: it is of one machine. */
bool gr_hardware_profile(gr_hardware *out, const char *name);

/* Profiles that have names, but for "cpu": NULL after the last. */
const gr_hardware *gr_hardware_known(size_t i);

/* The machines as so many ranks on so many hosts have them: how fast they copy, how far their collectives go,
 * and how long the slowest of them takes. */
gr_hardware gr_hardware_for(const gr_hardware *hw, uint32_t hosts, uint32_t ranks);

/* The disk that state may be kept on; where none was measured that of checkpoints. */
gr_disk_rate gr_hardware_disk(const gr_hardware *hw);

/* Copies of so many ranks of one host at once. Between counts that were measured, what all of them move
 * together is interpolated; beyond the last it stays what it is. */
gr_copy_rate gr_hardware_copy(const gr_hardware *hw, uint32_t ranks);

/* What a process takes of the CPU device beside its arena, with so many cores. */
uint64_t gr_hardware_cpu_overhead(unsigned cores);

/* What a process takes on the device beside its arena. */
uint64_t gr_hardware_overhead(const gr_hardware *hw, const gr_tenant *p);
/* A rank that runs a program. */
gr_tenant gr_tenant_of(const gr_tasks *g, uint64_t host_bytes);

/* scheduler/cost/hardware_file.c: the JSON form. Every key is required but `cluster`, `experts`, `fp8` and
 * `communicators` and `state_disk`, and every unknown one is an error. */
GR_NODISCARD gr_status gr_hardware_read(gr_hardware *out, const char *path, gr_diag *d);
void gr_hardware_write(const gr_hardware *h, gr_str *out);

#endif
