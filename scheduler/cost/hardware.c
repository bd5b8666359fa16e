/* scheduler/cost/hardware.c: known hardware, this machine, and rates between places. */
#include "scheduler/cost/collective.h"
#include "scheduler/cost/hardware.h"

#include "runtime/base/files.h"
#include "runtime/base/limits.h"

#ifdef GR_CUDA
#include "runtime/device/device_cuda.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB  (1ULL << 30)
#define MIB  (1ULL << 20)
#define GB   1e9
#define TERA 1e12

/* Of an H200, beside its grid below. */
#define H200_KV           (4145 * GB)
#define H200_HEAD         (700 * TERA)
#define H200_LOGITS       1.725e12
#define H200_KEPT         0.41e12
#define LAYER_GRAPH_BYTES 24576

/* Of 4,096 and 16,384 rows, for the four products of a layer of 8B: 1.29 to 1.47 times as fast with the
 * rounding of their rows (tests/gpu/gpu_fp8 --bench on an H200, 2026-11-23). */
#define FP8 1.4

/* Rates: of H200 measured (device copies, pinned copies over PCIe 5 x16; what layers, attention and the rest
 * reach is below); of the others three quarters of the published bf16 peak, nine tenths of the published
 * memory bandwidth, and what a pinned copy reaches on their PCIe generation. flops: bf16 matrices at large
 * shapes. Usable memory: as the driver reports it. Overhead: context, libraries and loaded kernels, on H200
 * as calibration counts them (564.8 MiB, of which runs were seen to take 546.8), and NCCL, as two ranks were
 * seen to take it (docs/CLUSTER.md, "What NCCL takes"); elsewhere an upper bound of all up to the first
 * communicator, and of further ones and messages what H200 take, which is what two H100 were seen to.
 * host_bytes: what a host of such machines has for one device. Link: what a rank of an all-gather within a
 * host receives a second for large messages, and what a collective takes beside that (H200: fitted to 64 MB,
 * 512 MB and 2 GB over four devices; the others: the same part of their links' published rate); a sum over
 * neighbours: as two H200 were seen to add 8 KB to 134 MB of bf16 in captured graphs, which fits the link's
 * rate and 8 us. Reductions: backward of a layer of 8B took 1.07 ms more on four H200 beside one that takes
 * 1.97 ms alone. Network: nine tenths of an adapter, 400 Gb/s of H200 and H100, 200 Gb/s of A100; one for
 * each device, as in NVIDIA's reference designs (DGX H100, A100), or, where the name says so, one for a host.
 * What steps between hosts take is below. Host memory: six tenths of what the channels of such a host move
 * (H200, H100: 16 of DDR5-4800; A100: 16 of DDR4-3200; of a desktop, 2 of DDR5-5200), shared by its devices.
 */
static const gr_hardware profiles[] = {
    {.name = "h200",
     .device = "cuda",
     .flops = 773 * TERA,
     .fp8 = FP8,
     .memory_bytes = 4260 * GB,
     .copy = {.h2d = 55.3 * GB},
     .host_memory = 46 * GB,
     .disk = 3 * GB,
     .device_bytes = 143771 * MIB,
     .host_bytes = 224 * GIB,
     .overhead_bytes = 565 * MIB,
     .part = {[GR_LIBRARY_COMM] = 920 * MIB},
     .group_bytes = 256 * MIB,
     .message_bytes = 448 * MIB,
     .step_ns = 5000,
     .link = 339 * GB,
     .collective_ns = 100000,
     .sum_ns = 8000,
     .reduce_share = 0.5,
     .network = 45 * GB,
     .devices = 8,
     .cluster = {.adapters = 8}},
    {.name = "h100-80g",
     .device = "cuda",
     .flops = 742 * TERA,
     .fp8 = FP8,
     .memory_bytes = 3015 * GB,
     .copy = {.h2d = 55 * GB},
     .host_memory = 46 * GB,
     .disk = 3 * GB,
     .device_bytes = 81559 * MIB,
     .host_bytes = 224 * GIB,
     .overhead_bytes = 1536 * MIB,
     .group_bytes = 256 * MIB,
     .message_bytes = 448 * MIB,
     .step_ns = 5000,
     .link = 339 * GB,
     .collective_ns = 100000,
     .sum_ns = 8000,
     .reduce_share = 0.5,
     .network = 45 * GB,
     .devices = 8,
     .cluster = {.adapters = 8}},
    {.name = "a100-80g",
     .device = "cuda",
     .flops = 234 * TERA,
     .memory_bytes = 1835 * GB,
     .copy = {.h2d = 25 * GB},
     .host_memory = 31 * GB,
     .disk = 2 * GB,
     .device_bytes = 81920 * MIB,
     .host_bytes = 224 * GIB,
     .overhead_bytes = 1280 * MIB,
     .group_bytes = 256 * MIB,
     .message_bytes = 448 * MIB,
     .step_ns = 6000,
     .link = 226 * GB,
     .collective_ns = 100000,
     .sum_ns = 8000,
     .reduce_share = 0.5,
     .network = 22 * GB,
     .devices = 8,
     .cluster = {.adapters = 8}},
    {.name = "a100-40g",
     .device = "cuda",
     .flops = 234 * TERA,
     .memory_bytes = 1400 * GB,
     .copy = {.h2d = 25 * GB},
     .host_memory = 31 * GB,
     .disk = 2 * GB,
     .device_bytes = 40960 * MIB,
     .host_bytes = 112 * GIB,
     .overhead_bytes = 1280 * MIB,
     .group_bytes = 256 * MIB,
     .message_bytes = 448 * MIB,
     .step_ns = 6000,
     .link = 226 * GB,
     .collective_ns = 100000,
     .sum_ns = 8000,
     .reduce_share = 0.5,
     .network = 22 * GB,
     .devices = 8,
     .cluster = {.adapters = 8}},
    {.name = "rtx4090",
     .device = "cuda",
     .flops = 124 * TERA,
     .memory_bytes = 907 * GB,
     .copy = {.h2d = 25 * GB},
     .host_memory = 50 * GB,
     .disk = 2 * GB,
     .device_bytes = 24564 * MIB,
     .host_bytes = 56 * GIB,
     .overhead_bytes = 1024 * MIB,
     .step_ns = 5000,
     .link = 18 * GB,
     .collective_ns = 100000,
     .sum_ns = 8000,
     .reduce_share = 0.5,
     .network = 11 * GB,
     .devices = 8,
     .cluster = {.adapters = 8}},
};

/* The same machines with another network, by names of their own. */
static const struct {
    const char *name, *of;
    uint32_t adapters;
} variants[] = {{"h200-one-adapter", "h200", 1}, {"h100-80g-one-adapter", "h100-80g", 1}};

/* NCCL's protocols LL, LL128 and Simple: what they reach of a link's rate, and steps, by its own constants
 * (collective.c says where). LL: half of it in rings and 1 / 3.8 in trees, and 20.4 GB/s at most on more than
 * two hosts; its steps within a host take at least the 1 us in which a network step is posted. LL128: 120
 * bytes of 128. Trees reach 0.92 of rings. */
static const gr_protocol over_nvlink[] = {{0.5, 0.92 / 3.8, 20.4 * GB, {1000, 2700}, {600, 5000}},
                                          {0.92, 0.92 * 120 / 128, 0, {1900, 4000}, {1250, 8500}},
                                          {1, 0.92, 0, {3400, 14000}, {4000, 14000}}};
/* LL128 needs NVLink. */
static const gr_protocol over_pcie[] = {{0.5, 0.92 / 3.8, 20.4 * GB, {1000, 2700}, {1000, 5000}},
                                        {1, 0.92, 0, {5700, 14000}, {4000, 14000}}};

/* Of each rank of a communicator NCCL keeps on the device, in each of 32 channels, four connections of 152
 * bytes, a pointer to them and the rank's place in the ring (src/include/device.h: ncclDevChannelPeer;
 * src/channel.cc: initChannel). */
#define PEER_BYTES (32 * (4 * 152 + 8 + 4))

static void describe_network(gr_hardware *h)
{
    const bool pcie = !strcmp(h->name, "rtx4090");
    gr_cluster *c = &h->cluster;
    c->n_protocols = pcie ? GR_LEN(over_pcie) : GR_LEN(over_nvlink);
    memcpy(c->protocols, pcie ? over_pcie : over_nvlink, c->n_protocols * sizeof(*c->protocols));
    c->oversubscription = 1;
    c->peer_bytes = PEER_BYTES;
}

/* Of 4,096 rows and more, and in a rollout's step of 64 and 256: what layers reach in iterations of seconds,
 * while the power limit holds the clocks down. They follow from what log-prob passes, updates and rollouts of
 * 0.6B, 1.7B and 8B took, whose widths these are (2026-11-22, docs/PERFORMANCE.md), and step times of traces
 * agree with them: a layer of 1.7B takes 2.93 ms forward and 6.14 backward, where 2.91 to 2.95 and 6.11
 * to 6.17 were seen. The rest is of a calibration. The head: a bare product of it beside others; logits: kept
 * ones of an update's head (21.3 ms of 0.6B, 10,752 rows), the others of a calibration. */
static const gr_rate h200_rates[] = {
    {1, 512, 0.0619 * TERA, 0.0748 * TERA, 0.223 * TERA},
    {1, 1024, 0.258 * TERA, 0.309 * TERA, 0.692 * TERA},
    {1, 2048, 1.34 * TERA, 0.784 * TERA, 1.92 * TERA},
    {1, 4096, 2.67 * TERA, 1.14 * TERA, 3.2 * TERA},
    {16, 512, 1.4 * TERA, 1.59 * TERA, 3.7 * TERA},
    {16, 1024, 5.68 * TERA, 5.75 * TERA, 11.9 * TERA},
    {16, 2048, 20.6 * TERA, 11.4 * TERA, 29.8 * TERA},
    {16, 4096, 42.5 * TERA, 15.7 * TERA, 50.2 * TERA},
    {64, 512, 4 * TERA, 5 * TERA, 14 * TERA},
    {64, 1024, 17 * TERA, 19 * TERA, 46.3 * TERA},
    {64, 2048, 70 * TERA, 45 * TERA, 102 * TERA},
    {64, 4096, 164 * TERA, 63 * TERA, 185 * TERA},
    {256, 512, 25 * TERA, 26 * TERA, 55 * TERA},
    {256, 1024, 99 * TERA, 79 * TERA, 161 * TERA},
    {256, 2048, 273 * TERA, 163 * TERA, 355 * TERA},
    {256, 4096, 507 * TERA, 233 * TERA, 486 * TERA},
    {1024, 512, 86 * TERA, 91 * TERA, 160 * TERA},
    {1024, 1024, 265 * TERA, 234 * TERA, 354 * TERA},
    {1024, 2048, 531 * TERA, 416 * TERA, 559 * TERA},
    {1024, 4096, 723 * TERA, 541 * TERA, 697 * TERA},
    {4096, 512, 236 * TERA, 230 * TERA, 236 * TERA},
    {4096, 1024, 457 * TERA, 395 * TERA, 457 * TERA},
    {4096, 2048, 582 * TERA, 555 * TERA, 582 * TERA},
    {4096, 4096, 696 * TERA, 657 * TERA, 696 * TERA},
    {16384, 512, 364 * TERA, 371 * TERA, 364 * TERA},
    {16384, 1024, 540 * TERA, 497 * TERA, 540 * TERA},
    {16384, 2048, 594 * TERA, 590 * TERA, 594 * TERA},
    {16384, 4096, 636 * TERA, 631 * TERA, 636 * TERA},
};
/* In no fixed order, and of 16,384 tokens: by a calibration of 2026-11-24. */
static const gr_attention_rate h200_attention[] = {
    {256, 187 * TERA, 89 * TERA, 77 * TERA},    {512, 290 * TERA, 151 * TERA, 140 * TERA},
    {1024, 395 * TERA, 217 * TERA, 215 * TERA}, {2048, 474 * TERA, 248 * TERA, 279 * TERA},
    {4096, 545 * TERA, 243 * TERA, 330 * TERA}, {16384, 548 * TERA, 289 * TERA, 399 * TERA},
};

/* Experts, by tests/bench/gpu/bench_experts with 8,192 tokens, each to 8 of 128 experts of 2,048 x 768, so
 * 512 rows an expert (docs/PERFORMANCE.md). Products reach 613 to 620 Tera, and their tiles of 128 rows are
 * half empty at each expert's end: 64 rows more. Gradients of weights, of which fp32 sums take 0.74 ms to
 * read and write and bf16 ones 0.37, take 0.45 to 0.47 ms longer than that, where the products are 412 GFLOP.
 * Steps of 64 and 256 sequences read 3.89 and 3.79 TB/s. Launches: a dense layer's step takes 36 to 39 us
 * longer than the reading of its weights, in ten kernels, whatever its width (h200_rates, 64 rows). */
static const gr_experts_rate h200_experts = {
    .product = 690 * TERA, .gradient = 880 * TERA, .read = 3840 * GB, .padding = 64, .launch_ns = 3700};

/* Pinned copies of 4 GiB on 1, 2 and 4 of the H200s of a host at once, 2026-11-22. What bounds several is the
 * host, and hosts differ: on another one four moved 54.3 to the devices and 40.9 from them, each. */
static const gr_copy_rate h200_copies[] = {
    {1, 55.3 * GB, 55.3 * GB, 50.7 * GB},
    {2, 54.4 * GB, 51.7 * GB, 40.3 * GB},
    {4, 44.3 * GB, 34.4 * GB, 24.7 * GB},
};

/* A profile with what a layer, attention and the rest reach on it: measured on an H200 (docs/PERFORMANCE.md),
 * the same part of the peaks elsewhere; steps of a rollout, which read weights and keys, by the memory's, and
 * copies of several ranks by those of one. */
static gr_hardware whole_profile(const gr_hardware *p)
{
    gr_hardware h = *p;
    const double faster = p->flops / profiles[0].flops, wider = p->memory_bytes / profiles[0].memory_bytes;
    h.n_rates = GR_LEN(h200_rates);
    for (uint32_t i = 0; i < h.n_rates; i++) {
        const gr_rate *r = &h200_rates[i];
        h.rates[i] =
            (gr_rate){r->rows, r->width, r->forward * faster, r->backward * faster, r->decode * wider};
    }
    h.n_attention = GR_LEN(h200_attention);
    for (uint32_t i = 0; i < h.n_attention; i++) {
        const gr_attention_rate *a = &h200_attention[i];
        h.attention[i] =
            (gr_attention_rate){a->length, a->forward * faster, a->backward * faster, a->unordered * faster};
    }
    const double closer = p->copy.h2d / h200_copies[0].h2d;
    h.n_copies = GR_LEN(h200_copies);
    for (uint32_t i = 0; i < h.n_copies; i++) {
        const gr_copy_rate *c = &h200_copies[i];
        h.copies[i] = (gr_copy_rate){c->ranks, c->h2d * closer, c->d2h * closer, c->both * closer};
    }
    h.copy = h.copies[0];
    h.kv_bytes = H200_KV * wider;
    h.head = H200_HEAD * faster;
    h.logits = H200_LOGITS * wider;
    h.kept = H200_KEPT * wider;
    h.experts = h200_experts;
    h.experts.product *= faster;
    h.experts.gradient *= faster;
    h.experts.read *= wider;
    h.layer_graph_bytes = LAYER_GRAPH_BYTES;
    h.pinned = 8.0 / 4096;
    describe_network(&h);
    return h;
}

bool gr_hardware_profile(gr_hardware *out, const char *name)
{
    const char *of = name;
    uint32_t adapters = 0;
    for (size_t i = 0; i < GR_LEN(variants); i++)
        if (!strcmp(name, variants[i].name)) of = variants[i].of, adapters = variants[i].adapters;
    for (size_t i = 0; i < GR_LEN(profiles); i++) {
        if (strcmp(of, profiles[i].name)) continue;
        *out = whole_profile(&profiles[i]);
        snprintf(out->name, sizeof(out->name), "%s", name);
        if (adapters) out->cluster.adapters = adapters;
        return true;
    }
    return false;
}

/* A copy is a core's, as long as memory has what all of them read and write. */
static void describe_cpu_copies(gr_hardware *h)
{
    for (uint32_t ranks = 1; ranks <= h->devices && h->n_copies < GR_COPIES_MAX; ranks *= 2) {
        const double all = h->memory_bytes / 2 / ranks, alone = GR_MIN(5e9, all);
        h->copies[h->n_copies++] = (gr_copy_rate){ranks, alone, alone, GR_MIN(5e9, all / 2)};
    }
    h->copy = h->copies[0];
}

uint64_t gr_hardware_cpu_overhead(unsigned cores)
{
    return 3 * MIB + (uint64_t)cores * 256 * 1024;
}

/* Rates are those of one ordinary core with 256-bit vectors, times the cores. Device and host pool share the
 * machine's memory: half each by default, less an eighth for everything else. Overhead: what a
 * run touches beside its arena once it has started: small objects, buffers of files, the threads' stacks. */
static void describe_cpu(gr_hardware *out)
{
    const unsigned cores = gr_usable_cores();
    uint64_t memory = gr_usable_memory() / 16 * 7;
    *out = (gr_hardware){.name = "cpu",
                         .device = "cpu",
                         .flops = 20e9 * (double)cores,
                         .memory_bytes = GR_MIN(6e9 * (double)cores, 100e9),
                         .host_memory = GR_MIN(6e9 * (double)cores, 100e9),
                         .disk = 0.5e9,
                         .device_bytes = memory,
                         .host_bytes = memory,
                         .overhead_bytes = gr_hardware_cpu_overhead(cores),
                         .step_ns = 2000,
                         .link = 4e9,
                         .collective_ns = 20000,
                         .sum_ns = 20000,
                         .network = 1e9,
                         .devices = 8};
    describe_cpu_copies(out);
}

#ifdef GR_CUDA
/* The profile whose name the device's name holds ("NVIDIA H200": h200), with the memory that is really there;
 * of an unknown device the rates of an H100, which it may not reach. */
static gr_status describe_cuda(gr_hardware *out, gr_diag *d)
{
    gr_cuda_info info;
    gr_status st = gr_cuda_probe(&info, d);
    if (st) return st;
    *out = whole_profile(&profiles[1]);
    for (size_t i = 0; i < GR_LEN(profiles); i++) {
        char model[32];
        snprintf(model, sizeof(model), "%.31s", profiles[i].name);
        model[strcspn(model, "-")] = '\0';
        if (strcasestr(info.name, model) && profiles[i].device_bytes <= info.bytes + GIB) {
            *out = whole_profile(&profiles[i]);
            break;
        }
    }
    out->device_bytes = info.bytes;
    out->host_bytes = gr_usable_memory() / 8 * 7;
    return GR_OK;
}
#endif

gr_status gr_hardware_local(gr_hardware *out, const char *device, gr_diag *d)
{
    if (device && !strcmp(device, "cpu")) return gr_hardware_find(out, "cpu", d);
#ifdef GR_CUDA
    gr_diag quiet;
    gr_diag_init(&quiet);
    gr_status st = describe_cuda(out, device ? d : &quiet);
    gr_diag_release(&quiet);
    return st && !device ? gr_hardware_find(out, "cpu", d) : st;
#else
    if (!device) return gr_hardware_find(out, "cpu", d);
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "this build of graphrun has no device '%s'; it can plan for one: --hardware h200",
                         device);
#endif
}

gr_status gr_hardware_find(gr_hardware *out, const char *name, gr_diag *d)
{
    const char *names[1 + GR_LEN(profiles) + GR_LEN(variants)] = {"cpu"};
    if (!strcmp(name, "cpu")) {
        describe_cpu(out);
        return GR_OK;
    }
    if (gr_hardware_profile(out, name)) return GR_OK;
    if (strpbrk(name, "/.") || gr_path_exists(name)) return gr_hardware_read(out, name, d);
    for (size_t i = 0; i < GR_LEN(profiles); i++) names[1 + i] = profiles[i].name;
    for (size_t i = 0; i < GR_LEN(variants); i++) names[1 + GR_LEN(profiles) + i] = variants[i].name;
    gr_str known = {0};
    for (size_t i = 0; i < GR_LEN(names); i++) gr_str_printf(&known, "%s%s", i ? ", " : "", names[i]);
    const char *near = gr_near(name, names, GR_LEN(names));
    for (size_t i = 0; !near && i < GR_LEN(names); i++) /* a100 */
        if (!strncmp(name, names[i], strlen(name))) near = names[i];
    gr_status st =
        gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                      "unknown hardware '%s'%s%s%s; known are: %s, or a file of "
                      "`graphrun calibrate`",
                      name, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", known.text);
    gr_str_release(&known);
    return st;
}

void gr_hardware_share(gr_hardware *hw, const char *name, uint32_t ranks)
{
    gr_hardware known;
    if (name && gr_hardware_profile(&known, name)) return;
    hw->host_bytes /= ranks;
    if (!strcmp(hw->device, "cpu")) hw->device_bytes /= ranks;
}

/* What a communicator takes beside what was measured on one host. */
static uint64_t peers_bytes(const gr_hardware *hw, uint32_t ranks)
{
    return ranks > hw->devices ? (ranks - hw->devices) * hw->cluster.peer_bytes : 0;
}

/* Page tables are taken in pieces of 2 MiB. */
uint64_t gr_hardware_overhead(const gr_hardware *hw, const gr_tenant *p)
{
    const uint64_t comms = (p->ranks > 1) + (uint64_t)p->groups,
                   comm = comms ? hw->part[GR_LIBRARY_COMM] + (comms - 1) * hw->group_bytes +
                                      comms * peers_bytes(hw, p->ranks) + p->messages * hw->message_bytes
                                : 0,
                   tables = (uint64_t)((double)p->host_bytes * hw->pinned);
    return hw->overhead_bytes + comm + p->captured * hw->layer_graph_bytes + gr_align(tables, 2 * MIB);
}

gr_tenant gr_tenant_of(const gr_tasks *g, uint64_t host_bytes)
{
    return (gr_tenant){.ranks = g->ranks,
                       .groups = g->groups,
                       .messages = g->messages,
                       .captured = g->captured,
                       .host_bytes = host_bytes};
}

const gr_hardware *gr_hardware_known(size_t i)
{
    return i < GR_LEN(profiles) ? &profiles[i] : NULL;
}

gr_hardware gr_hardware_for(const gr_hardware *hw, uint32_t hosts, uint32_t ranks)
{
    gr_hardware out = *hw;
    out.ranks = ranks;
    out.hosts = hosts;
    out.copy = gr_hardware_copy(hw, GR_MAX(ranks / GR_MAX(hosts, 1u), 1u));
    if (hw->cluster.spread > 0) out.slowest = 1 + hw->cluster.spread * gr_largest_of(ranks);
    return out;
}

gr_disk_rate gr_hardware_disk(const gr_hardware *hw)
{
    static const uint64_t usual_ns = 100000;
    if (hw->state_disk.read > 0) return hw->state_disk;
    return (gr_disk_rate){hw->disk, hw->disk, usual_ns};
}

gr_copy_rate gr_hardware_copy(const gr_hardware *hw, uint32_t ranks)
{
    uint32_t i = 0;
    while (i + 1 < hw->n_copies && hw->copies[i + 1].ranks <= ranks) i++;
    const gr_copy_rate *a = &hw->copies[i], *b = i + 1 < hw->n_copies ? a + 1 : a;
    const double part = b > a ? (double)(ranks - a->ranks) / (b->ranks - a->ranks) : 0;
    const double first = a->ranks * (1 - part) / ranks, last = b->ranks * part / ranks;
    return (gr_copy_rate){ranks, first * a->h2d + last * b->h2d, first * a->d2h + last * b->d2h,
                          first * a->both + last * b->both};
}
