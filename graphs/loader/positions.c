/* graphs/loader/positions.c: how long sequences of a graph may be, where a model's positions follow from it.
 */
#include "graphs/loader/loader.h"

/* Of all nodes: what one model makes another reads, and both are to see it alike. */
static uint64_t longest_of(const gr_graph *g)
{
    uint64_t most = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const gr_node *n = g->nodes[i];
        if (n->model && n->rows)
            most = GR_MAX(most, (uint64_t)n->bounds.prompt_tokens + n->bounds.response_tokens);
    }
    return most;
}

void gr_find_positions(gr_loader *l)
{
    const uint64_t longest = longest_of(l->g);
    for (size_t i = 0; i < l->g->n_models; i++) {
        gr_model *m = l->g->models[i];
        uint32_t border = 0;
        if (gr_model_set_longest(&m->shape, longest, &border) && !m->implied)
            gr_diag_note(l->d, (gr_loc){0},
                         "model '%s': sequences may have %llu tokens, more than %u, so 'long_factor' holds "
                         "for all of them",
                         m->name, (unsigned long long)longest, border);
    }
}
