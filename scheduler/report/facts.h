/* scheduler/report/facts.h: what somebody who sees a plan for the first time asks: of which models, how large
 * a batch, how fast, on what.
 *
 * Texts are in plain words, with their units. Threads: as a plan.
 */
#ifndef GR_SCHEDULER_REPORT_FACTS_H
#define GR_SCHEDULER_REPORT_FACTS_H

#include "graphs/graph/graph.h"
#include "memplan/plan/plan.h"

typedef enum gr_fact_id {
    GR_FACT_MODEL,
    GR_FACT_BATCH,
    GR_FACT_SPEED,
    GR_FACT_DEVICES,
    GR_N_FACTS
} gr_fact_id;

/* "Batch": "1,024 responses", "128 x 8, at most 256 + 512 tokens each". */
typedef struct gr_fact {
    const char *name;
    char *value, *note;
} gr_fact;

/* Fills out; release it. The speed counts prompts and responses, all as long as they may be, which is what
 * the predicted time counts too: the rate of an iteration. g NULL: a plan alone has no model and no batch,
 * whose values are "" then. */
void gr_facts(const gr_plan *p, const gr_graph *g, gr_fact out[GR_N_FACTS]);
void gr_facts_release(gr_fact facts[GR_N_FACTS]);

#endif
