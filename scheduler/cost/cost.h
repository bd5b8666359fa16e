/* scheduler/cost/cost.h: how long a task takes on a device.
 */
#ifndef GR_SCHEDULER_COST_COST_H
#define GR_SCHEDULER_COST_COST_H

#include "scheduler/cost/hardware.h"

/* Predicted time of one execution of a task that is no loop; of one that is done on
 * the host lane instead of its own: an optimizer step, which host memory bounds; and what the lane `compute`
 * loses while the task, a reduction, runs on another. */
uint64_t gr_task_ns(const gr_task *w, const gr_hardware *h);
uint64_t gr_task_host_ns(const gr_task *w, const gr_hardware *h);
uint64_t gr_task_lost_ns(const gr_task *w, const gr_hardware *h);

/* Of gr_task_ns: what products of groups take, or with gradients those of weights alone. */
double gr_task_experts_ns(const gr_task *w, const gr_hardware *h);

/* The part of the rate h->rates[i] in that of products of so many rows and such weights: of all rates
 * together 1, of most 0. */
double gr_rate_share(const gr_hardware *h, uint32_t i, double rows, double width);

#endif
