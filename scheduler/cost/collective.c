/* scheduler/cost/collective.c: how long ranks take to tell each other something: within a host as measured,
 * over several by the model by which NCCL chooses among its algorithms and protocols.
 *
 * Within a host a collective is a fixed cost and bytes over the link: gathers go from each rank to each by
 * copy engines, sums by kernels that read all ranks' memory, neither in a ring. Over h hosts of d ranks a
 * ring takes n - 1 steps one after another, n = h d, of which h - 1 are between hosts (an all-reduce twice as
 * many); an all-reduce may be a tree instead, up and down d - 1 ranks of a host and log2 h hosts. Each step
 * has its latency, and bytes go at what the rings of a host's adapters carry together. Of protocols and
 * algorithms the fastest counts.
 *
 * Source: NCCL, src/graph/tuning.cc (ncclTopoTuneModel, ncclTopoGetAlgoTime; commit 5067397 of 2026-06-11),
 * which is the alpha-beta model of Thakur, Rabenseifner and Gropp, Optimization of Collective Communication
 * Operations in MPICH (2005). Of it are left out: switches that add (NVLS, CollNet), PAT, which only hosts of
 * one rank have, and the factors by which trees and rings of medium sizes are slower than the model. */
#include "scheduler/cost/collective.h"

#include <math.h>

/* Ranks of a collective, evenly on so many hosts; each: of one host, all that are planned for. */
typedef struct extent {
    uint32_t ranks, hosts, each;
} extent;

static extent extent_of(const gr_hardware *h, gr_comm_group group)
{
    const uint32_t hosts = GR_MAX(h->hosts, 1u), each = GR_MAX(h->ranks / hosts, 1u);
    if (!h->ranks) return (extent){0, 1, 1};
    switch (group) {
    case GR_GROUP_NODE:
        return (extent){each, 1, each};
    case GR_GROUP_REPLICAS:
        return (extent){hosts, hosts, each};
    default:
        return (extent){h->ranks, hosts, each};
    }
}

/* What so many ranks of a host send to others a second, all together. */
static double host_rate(const gr_hardware *h, uint32_t ranks, bool far)
{
    const uint32_t adapters = h->cluster.adapters ? GR_MIN(h->cluster.adapters, ranks) : ranks;
    const double thinner = far && h->cluster.oversubscription > 0 ? h->cluster.oversubscription : 1;
    return h->network * adapters / thinner;
}

static bool leaves_pod(const gr_hardware *h, uint32_t first, uint32_t hosts)
{
    const uint32_t pod = h->cluster.pod;
    return pod && first / pod != (first + hosts - 1) / pod;
}

/* Bytes a second that each rank of a ring receives. A ring through all ranks has the adapters of a host side
 * by side where it leaves it; rings of replicas share them. */
static double ring_rate(const gr_hardware *h, gr_comm_group group, const extent *e)
{
    if (e->hosts < 2) return h->link;
    const double out = host_rate(h, e->each, leaves_pod(h, 0, e->hosts));
    if (group == GR_GROUP_REPLICAS) return out / e->each;
    return e->each == 1 ? out : GR_MIN(h->link, out);
}

double gr_peers_rate(const gr_hardware *h, uint32_t peers)
{
    const extent e = extent_of(h, GR_GROUP_ALL);
    const uint32_t hosts = (peers + e.each - 1) / e.each;
    if (e.hosts < 2 || hosts < 2) return h->link;
    return GR_MIN(h->link, host_rate(h, e.each, leaves_pod(h, 0, hosts)) / e.each);
}

/* What stays within a host and what leaves it go on at once. */
double gr_exchange_rate(const gr_hardware *h, uint32_t peers, uint32_t apart)
{
    const extent e = extent_of(h, GR_GROUP_ALL);
    const uint32_t hosts = (peers * apart + e.each - 1) / e.each;
    if (e.hosts < 2 || hosts < 2) return h->link;
    const double far = (double)(peers - peers / hosts) / (peers - 1),
                 rate = host_rate(h, e.each, leaves_pod(h, 0, hosts)) / e.each / far;
    return far < 1 ? GR_MIN(h->link / (1 - far), rate) : rate;
}

static double reached(const gr_protocol *p, double rate, double share)
{
    return p->most > 0 ? GR_MIN(p->most, rate * share) : rate * share;
}

/* With one rank of a host in it, nothing hides what a step between hosts takes. */
static double ring_ns(const gr_protocol *p, const extent *e, double rate, bool all_reduce, double bytes)
{
    const uint32_t rounds = all_reduce ? 2 : 1, far = rounds * (e->hosts - 1),
                   near = rounds * (e->ranks - 1) - far;
    const double step = e->ranks == e->hosts ? p->tree_ns[1] : p->ring_ns[1];
    return (double)near * p->ring_ns[0] + far * step + 1e9 * bytes / reached(p, rate, p->ring_share);
}

static uint32_t log2_of(uint32_t n)
{
    return 31 - (uint32_t)__builtin_clz(n);
}

/* All of it goes up and down, where a ring's ranks receive all but their own part of it twice. */
static double tree_ns(const gr_protocol *p, const extent *e, double rate, double bytes)
{
    const uint32_t near = e->ranks / e->hosts - 1, far = log2_of(e->hosts);
    const double whole = bytes * e->ranks / (e->ranks - 1);
    return 2.0 * ((double)near * p->tree_ns[0] + (double)far * p->tree_ns[1]) +
           1e9 * whole / reached(p, rate, p->tree_share);
}

/* By the fastest of NCCL's protocols and algorithms. */
static double device_ns(const gr_hardware *h, const extent *e, double rate, bool all_reduce, double bytes)
{
    double ns = INFINITY;
    for (uint32_t i = 0; i < h->cluster.n_protocols; i++) {
        const gr_protocol *p = &h->cluster.protocols[i];
        ns = fmin(ns, ring_ns(p, e, rate, all_reduce, bytes));
        if (all_reduce) ns = fmin(ns, tree_ns(p, e, rate, bytes));
    }
    return ns;
}

/* The shortest of a message's latencies between hosts. */
static uint32_t message_ns(const gr_hardware *h)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < h->cluster.n_protocols; i++)
        least = GR_MIN(least, h->cluster.protocols[i].tree_ns[1]);
    return least;
}

/* A reduction by halves and a gather by doubling (Rabenseifner's algorithm), in which each rank has its part
 * of its host's adapters: most of what it receives comes from other hosts. */
static double host_ns(const gr_hardware *h, const extent *e, double bytes)
{
    const double rate = host_rate(h, e->each, leaves_pod(h, 0, e->hosts)) / e->each;
    return 2.0 * log2_of(e->ranks) * message_ns(h) + 2e9 * bytes / rate;
}

uint64_t gr_collective_ns(const gr_hardware *h, gr_comm_group group, gr_comm_form form, double bytes)
{
    const extent e = extent_of(h, group);
    if (e.ranks == 1) return 0;
    const double rate = ring_rate(h, group, &e);
    double ns = 1e9 * bytes / rate;
    if (e.hosts > 1 && h->cluster.n_protocols)
        ns = form == GR_FORM_HOST_REDUCE ? host_ns(h, &e, bytes)
                                         : device_ns(h, &e, rate, form == GR_FORM_ALL_REDUCE, bytes);
    return h->collective_ns + (uint64_t)llround(ns);
}

/* ---- from role to role -----------------------------------------------------------------------------------
 */

static bool on_one_host(gr_side a, gr_side b)
{
    return a.hosts == 1 && b.hosts == 1 && a.first_host == b.first_host;
}

double gr_sides_rate(const gr_hardware *h, gr_side a, gr_side b)
{
    const uint32_t first = GR_MIN(a.first_host, b.first_host),
                   end = GR_MAX(a.first_host + a.hosts, b.first_host + b.hosts);
    const gr_side *side[2] = {&a, &b};
    double rate[2];
    if (on_one_host(a, b)) return h->link * GR_MIN(a.ranks, b.ranks);
    for (int i = 0; i < 2; i++) {
        const uint32_t hosts = GR_MAX(side[i]->hosts, 1u), each = (side[i]->ranks + hosts - 1) / hosts;
        rate[i] = host_rate(h, each, leaves_pod(h, first, end - first)) / each * side[i]->ranks;
    }
    return GR_MIN(rate[0], rate[1]);
}

/* Messages of one rank to as many others, a pair of ranks at a time: as Thakur et al. price an all-to-all of
 * long messages. */
double gr_sides_ns(const gr_hardware *h, gr_side a, gr_side b, uint32_t messages)
{
    return on_one_host(a, b) || !h->cluster.n_protocols ? 0 : (double)message_ns(h) * messages;
}

/* ---- ranks that are not alike ---------------------------------------------------------------------------
 */

/* Source: Blom, Statistical Estimates and Transformed Beta-Variables (1958): the largest of n lies near the
 * quantile (n - 3/8) / (n + 1/4). It is found by bisection. */
double gr_largest_of(uint32_t n)
{
    double low = 0, high = 8;
    const double above = 0.625 / (n + 0.25);
    for (int i = 0; i < 60; i++) {
        const double x = (low + high) / 2;
        if (erfc(x / sqrt(2)) / 2 > above)
            low = x;
        else
            high = x;
    }
    return n > 1 ? low : 0;
}
