/* scheduler/report/draw.h: a plan as CSV, DOT, SVG and HTML.
 *
 * Of several roles of ranks all are drawn: csv has a first column `class`, the number of the role; dot a box
 * for each, svg its memory and lanes, html a choice among them.
 *
 * csv   the steps of the steady iteration, a row each, after a line of column names:
 *       i, kind, what, node, lane   as in the plan's JSON
 *       loop                        the number of the loop step around it; empty: none
 *       trips_max                   of a loop step; empty else
 *       bytes, resident_bytes       as in JSON
 *       seconds                     predicted, one execution; a loop: of all its trips
 *       begin, end                  predicted, seconds from the iteration's begin; of a loop's trips one is
 *                                   shown, stretched to the time of all (scheduler/report/view.h)
 * dot   for Graphviz: nodes with op, time and what they hold at most; models; edges with the columns read
 * svg   a picture: models, batch and speed; what fills the peak; device memory over time as stacked areas,
 * the host pool, lanes; in the colours, dark or light, that the reader's browser prefers html  one page that
 * needs no network: the same pictures, by time or by step, with details under the pointer, the graph with the
 * columns that its edges carry, tables
 *
 * The html page is plan.html with page.css and page.js, which the program carries as a string, with the
 * plan's JSON put into it. tests/cli/test_page.sh opens it in a headless Chromium (GR_SLOW=1).
 *
 * All append to *out, which the caller frees. The same plan gives the same bytes.
 */
#ifndef GR_SCHEDULER_REPORT_DRAW_H
#define GR_SCHEDULER_REPORT_DRAW_H

#include "graphs/graph/graph.h"
#include "scheduler/report/view.h"

void gr_draw_csv(const gr_plan *p, gr_str *out);
void gr_draw_dot(const gr_plan *p, const gr_graph *g, gr_str *out);
void gr_draw_svg(const gr_plan *p, const gr_graph *g, gr_str *out); /* g NULL: of a plan alone */
void gr_draw_html(const gr_plan *p, const gr_graph *g, gr_str *out);

#endif
