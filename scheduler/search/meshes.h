/* scheduler/search/meshes.h: `parallel: auto`: the mesh of ranks on which each such model's training passes
 * take the least predicted time.
 *
 * Of every mesh whose sizes divide what they must (gr_mesh_serves) it is worked out without a search whether
 * it cannot fit, and what it takes in memory without an end (gr_plan_outlook). Those that may be the fastest
 * by that are compared by short searches, in that order. Such a search is given up where what it has found is
 * clearly slower than the best so far. Together they take a few times the work of a plan at most: what is
 * left then is not looked at. The best, and what is close to it, is planned at its best. Models take turns in
 * their order, each with what was chosen for those before, and one rank to a sequence, with all experts, for
 * those behind. Then, where its file leaves that open, over how many ranks the experts of its rollouts are
 * divided
 * (`expert`): that is looked for on the mesh that was chosen, and taken where it is much faster. Where whole
 * copies fit on no mesh, meshes are compared with divided experts. The search counts candidates, never
 * seconds: the same input gives the same meshes.
 */
#ifndef GR_SCHEDULER_SEARCH_MESHES_H
#define GR_SCHEDULER_SEARCH_MESHES_H

#include "scheduler/search/planner.h"

/* As gr_plan_graph, with the meshes chosen, which g says from then on: it is no longer `auto`. What was
 * chosen, and the nearest others with their times and peaks, are notes in d. */
GR_NODISCARD gr_status gr_plan_meshes(gr_planned **out, gr_graph *g, const gr_plan_options *o, gr_diag *d);

/* Whether a model of the graph leaves its mesh to the planner, and several ranks run it. */
bool gr_meshes_open(const gr_graph *g);

#endif
