/* graphs/loader/load.h: a graph from its file.
 */
#ifndef GR_GRAPHS_LOADER_LOAD_H
#define GR_GRAPHS_LOADER_LOAD_H

#include "graphs/graph/graph.h"

typedef struct gr_load_options {
    const char *const *set; /* "k=v" of --set */
    size_t n_set;
    bool need_shapes; /* plan, exec: read each model's config.json; check alone goes without where it is
                         absent */
    const char *run;  /* folder of the run whose graph it is, which goes on; NULL: it is no run's */
    uint32_t ranks;   /* that prompts are divided among, and pools are made of; 0: 1 */
    uint32_t hosts;   /* that these are on, as many on each; 0: 1 */
} gr_load_options;

/* GR_OK and *out (gr_graph_free); GR_E_INVALID: every error is in d. Warnings are in d in both cases. */
GR_NODISCARD gr_status gr_graph_load(gr_graph **out, const char *path, const gr_load_options *o, gr_diag *d);
/* The same from text (fuzzing, tests); relative paths are resolved against the folder of path. */
GR_NODISCARD gr_status gr_graph_parse(gr_graph **out, const char *text, size_t n, const char *path,
                                      const gr_load_options *o, gr_diag *d);
void gr_graph_free(gr_graph *g); /* NULL is fine */

#endif
