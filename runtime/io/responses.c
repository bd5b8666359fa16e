/* runtime/io/responses.c: files of all responses, one an iteration. */
#include "runtime/io/responses.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "runtime/base/aside.h"
#include "runtime/base/files.h"

struct gr_responses {
    int fd;
    char *path, *aside, *dir;
};

static gr_status io_error(gr_diag *d, const char *doing, const char *path)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot %s '%s': %s", doing, path, strerror(errno));
}

static char *path_of(const char *dir, uint64_t step)
{
    return gr_printf("%s/step-%" PRIu64 ".jsonl.gz", dir, step);
}

static char *dir_of(const char *run)
{
    return gr_printf("%s/samples", run);
}

/* ---- writing --------------------------------------------------------------------------------------------
 */

gr_status gr_responses_new(gr_responses **out, const char *dir, uint64_t step, gr_diag *d)
{
    gr_status st = gr_dir_make(dir, d);
    if (st) return st;
    gr_responses *r = gr_calloc(1, sizeof(*r));
    *r = (gr_responses){.fd = -1, .path = path_of(dir, step), .dir = gr_strdup(dir)};
    r->fd = gr_aside_new(&r->aside, r->path, false);
    if (r->fd < 0) {
        st = io_error(d, "write", r->path);
        gr_responses_free(r);
        return st;
    }
    *out = r;
    return GR_OK;
}

/* At level 1: of ids and log-probs, level 6 makes a tenth less and takes five times as long. */
void gr_responses_pack(const gr_str *text, gr_str *packed)
{
    enum { GZIP = 16 };
    z_stream z = {0};
    if (deflateInit2(&z, 1, Z_DEFLATED, MAX_WBITS + GZIP, 8, Z_DEFAULT_STRATEGY))
        gr_out_of_memory(1 << (MAX_WBITS + 3));
    const size_t bound = deflateBound(&z, text->len);
    char *room = gr_malloc(bound);
    z.next_in = (Bytef *)(uintptr_t)(text->text ? text->text : "");
    z.avail_in = (uInt)text->len;
    z.next_out = (Bytef *)room;
    z.avail_out = (uInt)bound;
    const int end = deflate(&z, Z_FINISH);
    assert(end == Z_STREAM_END); /* the bound is of all of it */
    gr_str_add(packed, room, bound - z.avail_out);
    (void)deflateEnd(&z);
    free(room);
}

gr_status gr_responses_add(gr_responses *r, const gr_str *packed, gr_diag *d)
{
    for (size_t done = 0; done < packed->len;) {
        const ssize_t put = write(r->fd, packed->text + done, packed->len - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return io_error(d, "write", r->path);
        done += (size_t)put;
    }
    return GR_OK;
}

void gr_responses_free(gr_responses *r)
{
    if (!r) return;
    if (r->aside) (void)unlink(r->aside);
    if (r->fd >= 0) close(r->fd);
    free(r->aside);
    free(r->path);
    free(r->dir);
    free(r);
}

gr_status gr_responses_end(gr_responses *r, gr_diag *d)
{
    const bool ok = !fsync(r->fd) && !rename(r->aside, r->path);
    gr_status st = ok ? gr_dir_sync(r->dir, d) : io_error(d, "write", r->path);
    if (ok) free(r->aside), r->aside = NULL;
    gr_responses_free(r);
    return st;
}

/* ---- the folder -----------------------------------------------------------------------------------------
 */

typedef struct steps {
    uint64_t *list;
    size_t n, cap;
} steps;

static bool step_of(const char *name, uint64_t *step)
{
    int end = 0;
    return sscanf(name, "step-%" SCNu64 ".jsonl.gz%n", step, &end) == 1 && end && !name[end];
}

static gr_status add_step(void *user, const char *dir, const char *name, gr_diag *d)
{
    steps *s = user;
    uint64_t step;
    (void)dir, (void)d;
    if (step_of(name, &step)) GR_PUSH(s->list, s->n, s->cap, step);
    return GR_OK;
}

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

gr_status gr_responses_steps(const char *run, uint64_t **out, size_t *n, gr_diag *d)
{
    steps s = {0};
    char *dir = dir_of(run);
    gr_status st = gr_dir_each(dir, add_step, &s, d);
    if (s.n) qsort(s.list, s.n, sizeof(*s.list), by_number);
    *out = s.list;
    *n = s.n;
    free(dir);
    return st;
}

gr_status gr_responses_remove_behind(const char *run, uint64_t step, gr_diag *d)
{
    uint64_t *list = NULL;
    size_t n = 0;
    char *dir = dir_of(run);
    gr_status st = gr_responses_steps(run, &list, &n, d);
    for (size_t i = n; !st && i-- > 0 && list[i] > step;) { /* the last first: those that stay have no gap */
        char *path = path_of(dir, list[i]);
        st = gr_path_remove(path, d);
        free(path);
    }
    if (!st && n) gr_aside_sweep(dir, NULL);
    free(list);
    free(dir);
    return st;
}

static gr_status link_one(const char *from_dir, const char *to_dir, uint64_t step, gr_diag *d)
{
    char *from = path_of(from_dir, step), *to = path_of(to_dir, step);
    const char *name = strrchr(from, '/') + 1;
    bool found;
    gr_status st = link(from, to) ? gr_file_copy(from_dir, name, to_dir, &found, d) : GR_OK;
    free(from);
    free(to);
    return st;
}

gr_status gr_responses_link(const char *run, const char *aside, gr_diag *d)
{
    uint64_t *list = NULL;
    size_t n = 0;
    char *from = dir_of(run), *to = dir_of(aside);
    gr_status st = gr_responses_steps(run, &list, &n, d);
    if (!st && n) st = gr_dir_make(to, d);
    for (size_t i = 0; !st && i < n; i++) st = link_one(from, to, list[i], d);
    if (!st && n) st = gr_dir_sync(to, d);
    free(list);
    free(from);
    free(to);
    return st;
}

/* ---- reading --------------------------------------------------------------------------------------------
 */

static gr_status read_bytes(gzFile gz, const char *path, size_t limit, gr_str *out, gr_diag *d)
{
    char block[1 << 16];
    int got = 1;
    while (got > 0 && out->len < limit) {
        got = gzread(gz, block, (unsigned)GR_MIN(sizeof(block), limit - out->len));
        if (got > 0) gr_str_add(out, block, (size_t)got);
    }
    int why = Z_OK;
    const char *what = gzerror(gz, &why);
    if (got >= 0 && (why == Z_OK || why == Z_STREAM_END)) return GR_OK;
    return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID, "is no whole gzip file: %s",
                         why == Z_ERRNO ? strerror(errno) : what);
}

gr_status gr_responses_read(const char *run, uint64_t step, size_t limit, gr_str *out, bool *cut, gr_diag *d)
{
    char *dir = dir_of(run), *path = path_of(dir, step);
    int fd = -1;
    gr_status st = gr_file_open(&fd, path, d);
    gzFile gz = st ? NULL : gzdopen(fd, "rb");
    if (!st && !gz) st = io_error(d, "read", path), close(fd);
    if (gz) st = read_bytes(gz, path, limit, out, d);
    *cut = !st && out->len == limit && gzgetc(gz) != -1;
    while (!st && out->len && out->text[out->len - 1] != '\n') out->len--;
    if (gz) (void)gzclose(gz);
    free(path);
    free(dir);
    return st;
}
