/* tests/fuzz/fuzz_graph.c: any bytes as a graph file; what loads prints a file that loads again. */
#include "graphs/graph/graph.h"
#include "graphs/loader/load.h"
#include "graphs/loader/print.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const set[] = {"run.steps=2", "group=3"};
    const gr_load_options o = {.set = set, .n_set = n ? data[n - 1] % 3 : 0};
    gr_diag d;
    gr_diag_init(&d);
    gr_graph *g = NULL, *again = NULL;
    gr_status st = gr_graph_parse(&g, (const char *)data, n, "fuzz.yaml", &o, &d);
    if ((st == GR_OK) != (d.n_errors == 0)) abort(); /* refused without a message, or the reverse */
    if (g) {
        gr_str text = {0}, explained = {0};
        gr_graph_resolved(g, GR_PATHS_WHOLE, &text);
        gr_graph_explain(g, &explained);
        if (gr_graph_parse(&again, text.text, text.len, "again.yaml", NULL, &d)) abort();
        gr_str_release(&text);
        gr_str_release(&explained);
    }
    gr_graph_free(again);
    gr_graph_free(g);
    gr_diag_release(&d);
    return 0;
}
