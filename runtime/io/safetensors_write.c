/* Writing safetensors: shards that appear when they are whole. */
#include "runtime/io/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "runtime/base/half.h"
#include "runtime/io/seal.h"
#include "runtime/base/files.h"

#define ROUND_ELEMS 65536 /* bf16 values rounded at a time */

struct gr_st_writer {
    char *dir, *stem;
    gr_st_dtype dtype;
    gr_st_spec *specs; /* names are owned */
    uint32_t *shard;   /* [n] the file of each */
    size_t n, next;    /* next: the spec whose data comes next */
    uint64_t given;    /* elements of the one before it, which is given in pieces */
    uint32_t n_shards;
    uint32_t n_renamed; /* files [0, n_renamed) are in place */
    int fd;             /* of the current shard; -1: none */
    bool joined;        /* the file is another's */
    bool parts;         /* given in parts */
    uint64_t data;      /* where the tensors begin in the file */
    uint64_t *at;       /* [n] each of them, from there */
    uint16_t *rounded;
    gr_seal *seal; /* of parts; NULL: they are not hashed */
};

static uint64_t elems(const gr_st_spec *t)
{
    return t->rows * (t->cols ? t->cols : 1);
}

static gr_st_dtype dtype_of(const gr_st_writer *w, const gr_st_spec *t)
{
    return t->exact ? GR_ST_F32 : w->dtype;
}

static uint64_t bytes_of(const gr_st_writer *w, const gr_st_spec *t)
{
    return elems(t) * (dtype_of(w, t) == GR_ST_F32 ? 4 : 2);
}

static char *shard_name(const gr_st_writer *w, uint32_t shard)
{
    if (w->n_shards == 1) return gr_printf("%s.safetensors", w->stem);
    return gr_printf("%s-%05u-of-%05u.safetensors", w->stem, shard + 1, w->n_shards);
}

static char *shard_path(const gr_st_writer *w, uint32_t shard, const char *suffix)
{
    char *name = shard_name(w, shard), *path = gr_printf("%s/%s%s", w->dir, name, suffix);
    free(name);
    return path;
}

static gr_status write_error(const char *path, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': %s", path, strerror(errno));
}

static bool write_all(int fd, const void *src, uint64_t n)
{
    for (const char *p = src; n;) {
        ssize_t put = write(fd, p, GR_MIN(n, UINT64_C(1) << 30));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        p += put;
        n -= (uint64_t)put;
    }
    return true;
}

/* ---- headers ------------------------------------------------------------------------------------------ */

static void add_json_string(gr_str *s, const char *text)
{
    json_t *v = json_string(text);
    assert(v); /* our names are UTF-8 */
    char *quoted = json_dumps(v, JSON_ENCODE_ANY);
    gr_str_puts(s, quoted);
    free(quoted);
    json_decref(v);
}

static void add_shape(gr_str *s, const gr_st_spec *t)
{
    const uint64_t each = t->depth ? t->rows / t->depth : t->rows;
    if (t->depth) gr_str_printf(s, "%ju,", (uintmax_t)t->depth);
    if (t->turned)
        gr_str_printf(s, "%ju,%ju", (uintmax_t)t->cols, (uintmax_t)each);
    else
        gr_str_printf(s, "%ju%s", (uintmax_t)each, t->thin ? ",1" : "");
    if (t->cols && !t->turned) gr_str_printf(s, ",%ju", (uintmax_t)t->cols);
}

static void add_header(gr_str *s, const gr_st_writer *w, uint32_t shard)
{
    uint64_t at = 0;
    gr_str_puts(s, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < w->n; i++) {
        if (w->shard[i] != shard) continue;
        uint64_t end = at + bytes_of(w, &w->specs[i]);
        gr_str_putc(s, ',');
        add_json_string(s, w->specs[i].name);
        gr_str_printf(s, ":{\"dtype\":\"%s\",\"shape\":[", gr_st_dtype_str(dtype_of(w, &w->specs[i])));
        add_shape(s, &w->specs[i]);
        gr_str_printf(s, "],\"data_offsets\":[%ju,%ju]}", (uintmax_t)at, (uintmax_t)end);
        at = end;
    }
    gr_str_putc(s, '}');
    while (s->len % 8) gr_str_putc(s, ' '); /* so that the data is aligned */
}

static gr_status begin_shard(gr_st_writer *w, uint32_t shard, gr_diag *d)
{
    gr_str header = {0};
    char *aside = shard_path(w, shard, ".tmp");
    add_header(&header, w, shard);
    uint64_t n = header.len;
    w->data = sizeof(n) + n;
    w->fd = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool ok = w->fd >= 0 && write_all(w->fd, &n, sizeof(n)) && write_all(w->fd, header.text, n);
    gr_status st = ok ? GR_OK : write_error(aside, d);
    gr_str_release(&header);
    free(aside);
    return st;
}

static gr_status end_shard(gr_st_writer *w, uint32_t shard, gr_diag *d)
{
    char *aside = shard_path(w, shard, ".tmp");
    bool ok = !fsync(w->fd);
    gr_status st = ok ? GR_OK : write_error(aside, d);
    if (close(w->fd) && !st) st = write_error(aside, d);
    w->fd = -1;
    free(aside);
    return st;
}

/* ---- the writer --------------------------------------------------------------------------------------- */

static void assign_shards(gr_st_writer *w, uint64_t shard_bytes)
{
    uint64_t used = 0;
    w->n_shards = 1;
    for (size_t i = 0; i < w->n; i++) {
        uint64_t bytes = bytes_of(w, &w->specs[i]);
        if (shard_bytes && used && used + bytes > shard_bytes) {
            w->n_shards++;
            used = 0;
        }
        used += bytes;
        w->shard[i] = w->n_shards - 1;
    }
}

static gr_st_writer *writer_of(const char *dir, const char *stem, gr_st_dtype dtype, const gr_st_spec *specs,
                               size_t n, uint64_t shard_bytes)
{
    uint64_t at = 0;
    gr_st_writer *w = gr_calloc(1, sizeof(*w));
    *w = (gr_st_writer){.dir = gr_strdup(dir), .stem = gr_strdup(stem), .dtype = dtype, .n = n, .fd = -1};
    w->specs = gr_calloc(n, sizeof(*specs));
    w->shard = gr_calloc(n, sizeof(*w->shard));
    w->at = gr_calloc(n, sizeof(*w->at));
    for (size_t i = 0; i < n; i++) {
        w->specs[i] = specs[i];
        w->specs[i].name = gr_strdup(specs[i].name);
        w->at[i] = at;
        at += bytes_of(w, &w->specs[i]);
    }
    if (dtype == GR_ST_BF16) w->rounded = gr_calloc(ROUND_ELEMS, sizeof(*w->rounded));
    assign_shards(w, shard_bytes);
    return w;
}

/* The file is there, with its header. */
static gr_status join_shard(gr_st_writer *w, gr_diag *d)
{
    char *aside = shard_path(w, 0, ".tmp");
    uint64_t n = 0;
    w->fd = open(aside, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    gr_status st = w->fd >= 0 && pread(w->fd, &n, sizeof(n), 0) == sizeof(n) ? GR_OK : write_error(aside, d);
    w->data = sizeof(n) + n;
    free(aside);
    return st;
}

gr_status gr_st_writer_join(gr_st_writer **out, const char *dir, const char *stem, const gr_st_spec *specs,
                            size_t n, gr_diag *d)
{
    gr_st_writer *w = writer_of(dir, stem, GR_ST_F32, specs, n, 0);
    w->joined = true;
    gr_status st = join_shard(w, d);
    if (st)
        gr_st_writer_free(w);
    else
        *out = w;
    return st;
}

gr_status gr_st_writer_new(gr_st_writer **out, const char *dir, const char *stem, gr_st_dtype dtype,
                           const gr_st_spec *specs, size_t n, uint64_t shard_bytes, gr_diag *d)
{
    assert(n > 0 && (dtype == GR_ST_F32 || dtype == GR_ST_BF16));
    gr_st_writer *w = writer_of(dir, stem, dtype, specs, n, shard_bytes);
    gr_status st = begin_shard(w, 0, d);
    if (st) {
        gr_st_writer_free(w);
        return st;
    }
    *out = w;
    return GR_OK;
}

static bool write_rounded(gr_st_writer *w, const float *src, uint64_t n)
{
    while (n) {
        uint64_t part = GR_MIN(n, (uint64_t)ROUND_ELEMS);
        for (uint64_t i = 0; i < part; i++) w->rounded[i] = gr_f32_to_bf16(src[i]);
        if (!write_all(w->fd, w->rounded, part * sizeof(*w->rounded))) return false;
        src += part;
        n -= part;
    }
    return true;
}

/* The file of the next tensor, which begins. */
static gr_status begin_tensor(gr_st_writer *w, gr_diag *d)
{
    assert(w->next < w->n);
    const size_t i = w->next++;
    w->given = 0;
    if (!i || w->shard[i] == w->shard[i - 1]) return GR_OK;
    const gr_status st = end_shard(w, w->shard[i - 1], d);
    return st ? st : begin_shard(w, w->shard[i], d);
}

gr_status gr_st_writer_put_piece(gr_st_writer *w, const float *src, uint64_t n, gr_diag *d)
{
    const bool begins = !w->next || w->given == elems(&w->specs[w->next - 1]);
    gr_status st = begins ? begin_tensor(w, d) : GR_OK;
    if (st) return st;
    w->given += n;
    assert(w->given <= elems(&w->specs[w->next - 1]));
    const bool exact = dtype_of(w, &w->specs[w->next - 1]) == GR_ST_F32;
    bool ok = exact ? write_all(w->fd, src, n * sizeof(*src)) : write_rounded(w, src, n);
    if (ok) return GR_OK;
    char *aside = shard_path(w, w->shard[w->next - 1], ".tmp");
    st = write_error(aside, d);
    free(aside);
    return st;
}

gr_status gr_st_writer_put(gr_st_writer *w, const float *src, gr_diag *d)
{
    assert(w->next < w->n);
    return gr_st_writer_put_piece(w, src, elems(&w->specs[w->next]), d);
}

void gr_st_writer_seal(gr_st_writer *w, gr_seal *seal)
{
    assert(seal->n == w->n);
    w->seal = seal;
}

/* A part on its way to the file and, with a seal, to its hashes. */
typedef struct part {
    int fd, error; /* error: errno of what failed; 0 */
    const char *src;
    uint64_t n, at;
    gr_sealing sealing;
} part;

/* One call for tens of megabytes takes longer than many do (docs/PERFORMANCE.md). */
static void write_block(part *p)
{
    for (uint64_t n = GR_MIN(GR_SEAL_BLOCK, p->n); n && !p->error;) {
        ssize_t put = pwrite(p->fd, p->src, n, (off_t)p->at);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) p->error = errno;
        p->src += GR_MAX(put, 0);
        p->at += (uint64_t)GR_MAX(put, 0);
        p->n -= (uint64_t)GR_MAX(put, 0);
        n -= (uint64_t)GR_MAX(put, 0);
    }
}

/* Of several threads one writes, the others hash, and it joins them: writing takes longer. One thread alone
 * hashes what it has just written, while the cache has it. */
static void write_and_hash(void *arg, unsigned rank, unsigned size)
{
    part *p = arg;
    while (!rank && p->n && !p->error) {
        write_block(p);
        if (size == 1) gr_sealing_one(&p->sealing);
    }
    while (gr_sealing_one(&p->sealing)) {
    }
}

gr_status gr_st_writer_put_part(gr_st_writer *w, gr_team *team, size_t i, uint64_t first, uint64_t n,
                                const float *src, gr_diag *d)
{
    assert(w->dtype == GR_ST_F32 && w->n_shards == 1 && !w->next && first + n <= elems(&w->specs[i]));
    part p = {.fd = w->fd,
              .src = (const char *)src,
              .n = n * sizeof(*src),
              .at = w->data + w->at[i] + first * sizeof(*src)};
    w->parts = true;
    if (w->seal) gr_sealing_begin(&p.sealing, w->seal, i, first * sizeof(*src), p.n, src);
    if (w->seal && p.sealing.first < p.sealing.end) gr_team_run(team, write_and_hash, &p);
    while (p.n && !p.error) write_block(&p);
    if (!p.error) return GR_OK;
    char *aside = shard_path(w, 0, ".tmp");
    errno = p.error;
    gr_status st = write_error(aside, d);
    free(aside);
    return st;
}

static gr_status write_index(const gr_st_writer *w, gr_diag *d)
{
    uint64_t total = 0;
    for (size_t i = 0; i < w->n; i++) total += bytes_of(w, &w->specs[i]);
    gr_str s = {0};
    gr_str_printf(&s, "{\n  \"metadata\": {\n    \"total_size\": %ju\n  },\n  \"weight_map\": {\n",
                  (uintmax_t)total);
    for (size_t i = 0; i < w->n; i++) {
        char *file = shard_name(w, w->shard[i]);
        gr_str_puts(&s, "    ");
        add_json_string(&s, w->specs[i].name);
        gr_str_puts(&s, ": ");
        add_json_string(&s, file);
        gr_str_puts(&s, i + 1 < w->n ? ",\n" : "\n");
        free(file);
    }
    gr_str_puts(&s, "  }\n}\n");
    char *path = gr_printf("%s/%s.safetensors.index.json", w->dir, w->stem);
    gr_status st = gr_file_write(path, s.text, s.len, d);
    free(path);
    gr_str_release(&s);
    return st;
}

gr_status gr_st_writer_finish(gr_st_writer *w, gr_diag *d)
{
    assert(w->next == w->n || w->parts || w->joined);
    gr_status st = end_shard(w, w->n_shards - 1, d);
    if (w->joined) return st;
    while (!st && w->n_renamed < w->n_shards) {
        char *aside = shard_path(w, w->n_renamed, ".tmp"), *path = shard_path(w, w->n_renamed, "");
        if (rename(aside, path))
            st = write_error(path, d);
        else
            w->n_renamed++;
        free(path);
        free(aside);
    }
    if (!st && w->n_shards > 1) st = write_index(w, d);
    return st ? st : gr_dir_sync(w->dir, d);
}

void gr_st_writer_free(gr_st_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    for (uint32_t i = w->n_renamed; i < w->n_shards && !w->joined; i++) {
        char *aside = shard_path(w, i, ".tmp");
        unlink(aside);
        free(aside);
    }
    for (size_t i = 0; i < w->n; i++) free((char *)w->specs[i].name);
    free(w->specs);
    free(w->shard);
    free(w->at);
    free(w->rounded);
    free(w->stem);
    free(w->dir);
    free(w);
}
