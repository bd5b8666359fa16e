/* scheduler/report/view.h: what pictures of a plan are drawn from: when each step runs, and what fills the
 * memory.
 *
 * A series is one resource at one place, "actor weights" on the device: the bytes of its ledger entries that
 * are live at each step. All series of a place, and on the device the overhead, sum
 * to what is in use at that step (a loop step: when the loop begins). Resources that never reach a hundredth
 * of the pool are gathered in one series of their category, so that a picture has few.
 *
 * Times are those of scheduler/search/timeline.h.
 *
 * Threads: as a plan.
 */
#ifndef GR_SCHEDULER_REPORT_VIEW_H
#define GR_SCHEDULER_REPORT_VIEW_H

#include "memplan/plan/plan.h"

typedef struct gr_series {
    const char *name; /* "actor weights"; "columns" */
    gr_category category;
    gr_place place;
    uint64_t *bytes; /* [n] */
    uint64_t most;
    char colour[8]; /* "#4477aa": of the category, paler for each further series of it */
} gr_series;

typedef struct gr_view {
    const gr_plan *all;  /* of all roles */
    const gr_plan *plan; /* of the role that is shown */
    uint32_t role;
    gr_step *steps; /* of the iteration, then of validate; numbers in them count as the ledger does */
    uint32_t n, n_steady;
    uint64_t ns, steady_ns; /* of all of them; of the iteration's */
    const char **nodes;     /* that steps serve, by their first step */
    uint32_t n_nodes;
    uint32_t *parent, *depth; /* loop around each step, or GR_NONE; loops around it */
    uint64_t *begin, *end;    /* nanoseconds from the iteration's begin */
    gr_series *series;        /* by place, then category; the device comes first */
    uint32_t n_series;
    uint32_t *series_of; /* of ledger entries */
    gr_arena *arena;
} gr_view;

/* The plan must outlive the view. Of several roles: of the first, or of one. */
gr_view *gr_view_new(const gr_plan *p);
gr_view *gr_view_of_role(const gr_plan *p, uint32_t role);
void gr_view_free(gr_view *v); /* NULL is fine */

/* Live at a step: last < first wraps round the iteration's end. */
bool gr_entry_live(const gr_entry *e, uint32_t step);

/* "actor weights": the first part of an entry's name, who owns it, and its category. Caller frees. */
char *gr_resource_name(const gr_entry *e);

/* Most bytes of a place that are live at one step. */
uint64_t gr_view_most(const gr_view *v, gr_place place);

/* Predicted time of a node's tasks, whole loops included, without transfers between roles. */
uint64_t gr_view_node_ns(const gr_view *v, const char *node);

/* bytes [n_series], zeroed: what a node's tasks use of each series, at the step of the node at which that
 * takes most of the device. */
void gr_view_node_holds(const gr_view *v, const char *node, uint64_t *bytes);

/* "token, length": the columns of node `from` that tasks of node `to` read; the main one by the node's name.
 * Returns how many bytes they have. */
uint64_t gr_view_columns(const gr_view *v, const char *from, const char *to, gr_str *out);

/* Steps that the planner added, which move or free this rank's memory: no tasks (gr_step_is_task), and so no
 * collectives. bytes: what one pass over them moves. */
uint32_t gr_transitions(const gr_path *path, uint64_t *bytes);

/* Text as it stands in XML: &, <, > and quotes escaped. */
void gr_xml_put(gr_str *out, const char *text);

/* Text as a field of CSV (RFC 4180): quoted where it holds a comma, a quote or a line's end. */
void gr_csv_put(gr_str *out, const char *text);

#endif
