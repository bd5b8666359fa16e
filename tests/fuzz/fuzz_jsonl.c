/* A template, a NUL, and JSONL: whatever parses is rendered. */
#include "ops/text/template.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void render_rows(const gr_template *t, const gr_jsonl *s)
{
    gr_rendered out = {0};
    for (size_t i = 0; i < gr_jsonl_rows(s); i++) {
        json_t *row;
        if (gr_jsonl_row(s, i, &row, NULL)) continue;
        gr_status st = gr_template_check(t, row, NULL),
                  st2 = gr_template_render(t, row, gr_jsonl_at(s, i), &out, NULL);
        if (st && !st2) abort();
        json_decref(row);
    }
    gr_rendered_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    gr_template *t;
    gr_jsonl *s;
    const uint8_t *cut = n ? memchr(data, 0, n) : NULL;
    if (!cut || gr_template_new(&t, (const char *)data, (gr_loc){0}, NULL)) return 0;
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        gr_str name = {0};
        gr_str_printf(&name, "/proc/self/fd/%d", fd);
        strcpy(path, name.text);
        gr_str_release(&name);
    }
    size_t left = n - (size_t)(cut + 1 - data);
    if (ftruncate(fd, 0) || pwrite(fd, cut + 1, left, 0) != (ssize_t)left) abort();
    if (!gr_jsonl_open(&s, path, (gr_loc){0}, NULL)) {
        render_rows(t, s);
        gr_jsonl_free(s);
    }
    gr_template_free(t);
    return 0;
}
