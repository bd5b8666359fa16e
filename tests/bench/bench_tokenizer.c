/* tests/bench/bench_tokenizer.c: how fast a tokenizer loads and encodes.
 *
 *     bench_tokenizer DIR FILE    DIR: a checkpoint's directory; FILE: text, encoded line by line
 */
#include "ops/text/tokenizer.h"
#include "runtime/base/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_tokenizer *t = NULL;
    char *text = NULL;
    size_t n = 0;
    gr_ids ids = {0};
    uint64_t start = gr_now_ns();
    gr_status st = argc == 3 ? gr_tokenizer_load(&t, argv[1], &d) : GR_E_INVALID;
    uint64_t loaded = gr_now_ns();
    if (st == GR_OK) st = gr_file_read(argv[2], 0, &text, &n, &d);
    uint64_t read = gr_now_ns();
    for (char *line = text, *end; st == GR_OK && line < text + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        if (!end) end = text + n;
        st = gr_tokenizer_encode(t, line, (size_t)(end - line), 0, &ids, &d);
    }
    double seconds = (double)(gr_now_ns() - read) * 1e-9;
    if (st == GR_OK)
        printf("load %.3f s; %zu bytes, %zu tokens, %.2f MB/s\n", (double)(loaded - start) * 1e-9, n, ids.n,
               (double)n * 1e-6 / seconds);
    else
        fprintf(stderr, "%s\n", d.n ? d.messages[0].text : "usage: bench_tokenizer DIR FILE");
    free(ids.id);
    free(text);
    gr_tokenizer_free(t);
    gr_diag_release(&d);
    return st != GR_OK;
}
