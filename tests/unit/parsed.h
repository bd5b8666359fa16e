/* tests/unit/parsed.h: graphs of a text and a model's configuration, in the test's folder (test_folder.h). */
#ifndef GR_TESTS_PARSED_H
#define GR_TESTS_PARSED_H

#include "graphs/loader/load.h"
#include "tests/unit/test_folder.h"

#include <stdlib.h>
#include <string.h>

/* Writes it; the path is the caller's to free. */
static inline char *put_config(const char *text)
{
    char *path = gr_printf("%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

/* Frees the text. */
static inline gr_status parse_text(gr_graph **g, char *text, uint32_t ranks, uint32_t hosts, gr_diag *d)
{
    gr_load_options o = {.need_shapes = true, .ranks = ranks, .hosts = hosts};
    gr_status st = gr_graph_parse(g, text, strlen(text), "test.yaml", &o, d);
    free(text);
    return st;
}

/* Tells what was wrong, and releases it. */
static inline void assert_loaded(gr_status st, gr_diag *d)
{
    for (size_t i = 0; st && i < d->n; i++) print_message("%s\n", d->messages[i].text);
    assert_int_equal(st, GR_OK);
    gr_diag_release(d);
}

#endif
