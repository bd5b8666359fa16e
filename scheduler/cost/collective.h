/* scheduler/cost/collective.h: what collectives and what goes between roles take, in nanoseconds, by NCCL's
 * own tuning model over several hosts and as measured within one. Sources of formulas and constants:
 * scheduler/cost/collective.c. Pure functions; any thread.
 */
#ifndef GR_SCHEDULER_COST_COLLECTIVE_H
#define GR_SCHEDULER_COST_COLLECTIVE_H

#include "scheduler/cost/hardware.h"

/* Predicted time of a collective in which a rank receives so many bytes, beside
 * what a step costs anyway. One rank's takes no time. */
uint64_t gr_collective_ns(const gr_hardware *h, gr_comm_group group, gr_comm_form form, double bytes);

/* Bytes a second that each of so many neighbours receives of the others, who run a task together. */
double gr_peers_rate(const gr_hardware *h, uint32_t peers);
/* The same of ranks so far apart, each of which has as many bytes for each: those of other hosts come through
 * adapters. */
double gr_exchange_rate(const gr_hardware *h, uint32_t peers, uint32_t apart);

/* Ranks of a role, as one side of what goes from role to role. */
typedef struct gr_side {
    uint32_t ranks, hosts, first_host;
} gr_side;
/* Bytes a second that all ranks of two sides move between them at most, and nanoseconds that so many messages
 * of a rank take, one after another, whatever is in them. */
double gr_sides_rate(const gr_hardware *h, gr_side a, gr_side b);
double gr_sides_ns(const gr_hardware *h, gr_side a, gr_side b, uint32_t messages);

/* How many standard deviations the largest of n samples of a normal distribution lies above the mean, in the
 * mean of many tries. */
double gr_largest_of(uint32_t n);

#endif
