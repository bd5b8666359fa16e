/* Hashes of files and tensors: blocks are hashed where their bytes are, the rest is read. */
#include "runtime/io/seal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/io/safetensors.h"

static gr_hash canonical(XXH128_hash_t x)
{
    XXH128_canonical_t c;
    gr_hash h;
    XXH128_canonicalFromHash(&c, x);
    memcpy(h.byte, c.digest, sizeof(h.byte));
    return h;
}

gr_hash gr_hash_bytes(const void *bytes, uint64_t n)
{
    return canonical(XXH3_128bits(bytes, n));
}

bool gr_hash_same(gr_hash a, gr_hash b)
{
    return !memcmp(a.byte, b.byte, sizeof(a.byte));
}

const char *gr_hash_hex(gr_hash h, char text[GR_HASH_HEX])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof(h.byte); i++) {
        text[2 * i] = digits[h.byte[i] >> 4];
        text[2 * i + 1] = digits[h.byte[i] & 15];
    }
    text[GR_HASH_HEX - 1] = '\0';
    return text;
}

/* 0 to 15; -1: no digit. */
static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool gr_hash_parse(const char *text, gr_hash *h)
{
    for (size_t i = 0; i < sizeof(h->byte); i++) {
        const int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return false;
        h->byte[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static gr_status read_error(const char *path, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot read '%s': %s", path, strerror(errno));
}

/* Up to n bytes at offset; fewer at the end of the file, -1 with errno on failure. */
static ssize_t read_at(int fd, void *dst, uint64_t n, uint64_t offset)
{
    uint64_t done = 0;
    while (done < n) {
        ssize_t got = pread(fd, (char *)dst + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (!got) break;
        done += (uint64_t)got;
    }
    return (ssize_t)done;
}

gr_status gr_hash_file(const char *path, gr_hash *hash, uint64_t *bytes, gr_diag *d)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe has no bytes to wait for */
    if (fd < 0) return read_error(path, d);
    XXH3_state_t *state = gr_xxh3_new();
    char *buffer = gr_malloc(GR_SEAL_BLOCK);
    ssize_t got = state ? 1 : -1;
    if (state) XXH3_128bits_reset(state);
    for (*bytes = 0; got > 0; *bytes += (uint64_t)GR_MAX(got, 0)) {
        got = read_at(fd, buffer, GR_SEAL_BLOCK, *bytes);
        if (got > 0) XXH3_128bits_update(state, buffer, (size_t)got);
    }
    if (!got) *hash = canonical(XXH3_128bits_digest(state));
    gr_status st = got ? read_error(path, d) : GR_OK;
    XXH3_freeState(state);
    free(buffer);
    close(fd);
    return st;
}

/* ---- the tensors of one file --------------------------------------------------------------------------- */

gr_seal *gr_seal_new(void)
{
    return gr_calloc(1, sizeof(gr_seal));
}

void gr_seal_free(gr_seal *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) free(s->tensors[i].name);
    free(s->tensors);
    free(s->blocks);
    free(s);
}

void gr_seal_add(gr_seal *s, const char *name, uint64_t bytes)
{
    const uint64_t blocks = (bytes + GR_SEAL_BLOCK - 1) / GR_SEAL_BLOCK;
    gr_seal_tensor t = {gr_strdup(name), bytes, s->n_blocks, GR_MAX(blocks, UINT64_C(1))};
    GR_PUSH(s->tensors, s->n, s->cap, t);
    s->blocks = gr_realloc(s->blocks, (s->n_blocks + t.n_blocks) * sizeof(*s->blocks));
    memset(s->blocks + s->n_blocks, 0, t.n_blocks * sizeof(*s->blocks));
    s->n_blocks += t.n_blocks;
}

const gr_seal_tensor *gr_seal_find(const gr_seal *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->tensors[i].name, name)) return &s->tensors[i];
    return NULL;
}

uint64_t gr_seal_block(const gr_seal_tensor *t, uint64_t block, uint64_t *first)
{
    *first = block * GR_SEAL_BLOCK;
    return GR_MIN(t->bytes - *first, GR_SEAL_BLOCK);
}

gr_hash gr_seal_tensor_hash(const gr_seal *s, const gr_seal_tensor *t)
{
    const gr_hash *blocks = s->blocks + t->first_block;
    return t->n_blocks == 1 ? *blocks : gr_hash_bytes(blocks, t->n_blocks * sizeof(*blocks));
}

gr_hash gr_seal_file_hash(const gr_seal *s)
{
    gr_hash *all = gr_calloc(s->n + 1, sizeof(*all));
    all[0] = s->header;
    for (size_t i = 0; i < s->n; i++) all[i + 1] = gr_seal_tensor_hash(s, &s->tensors[i]);
    const gr_hash h = gr_hash_bytes(all, (s->n + 1) * sizeof(*all));
    free(all);
    return h;
}

void gr_sealing_begin(gr_sealing *s, gr_seal *seal, size_t tensor, uint64_t first, uint64_t n,
                      const void *data)
{
    const gr_seal_tensor *t = &seal->tensors[tensor];
    assert(first + n <= t->bytes);
    s->seal = seal;
    s->tensor = tensor;
    s->data = data;
    s->from = first;
    s->first = (first + GR_SEAL_BLOCK - 1) / GR_SEAL_BLOCK;
    s->end = first + n == t->bytes ? t->n_blocks : (first + n) / GR_SEAL_BLOCK;
    atomic_init(&s->next, s->first);
}

bool gr_sealing_one(gr_sealing *s)
{
    const gr_seal_tensor *t = &s->seal->tensors[s->tensor];
    const uint64_t b = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
    if (b >= s->end) return false;
    uint64_t first;
    const uint64_t n = gr_seal_block(t, b, &first);
    s->seal->blocks[t->first_block + b] = gr_hash_bytes(s->data + (first - s->from), n);
    return true;
}

/* ---- read ---------------------------------------------------------------------------------------------- */

static bool is_known(gr_hash h)
{
    return !gr_hash_same(h, (gr_hash){{0}});
}

/* A file whose unknown blocks are read by several threads. */
typedef struct completion {
    gr_seal *seal;
    int fd;
    uint64_t data;         /* where the tensors' bytes begin */
    _Atomic size_t next;   /* tensor */
    _Atomic bool cut, bad; /* the file ends too soon; cannot be read */
} completion;

static void complete_tensor(completion *c, const gr_seal_tensor *t, uint64_t at, char *buffer)
{
    for (uint64_t b = 0; b < t->n_blocks; b++) {
        gr_hash *h = &c->seal->blocks[t->first_block + b];
        uint64_t first;
        const uint64_t n = gr_seal_block(t, b, &first);
        if (is_known(*h)) continue;
        const ssize_t got = read_at(c->fd, buffer, n, at + first);
        if (got < 0) c->bad = true;
        if (got >= 0 && (uint64_t)got < n) c->cut = true;
        if (got >= 0 && (uint64_t)got == n) *h = gr_hash_bytes(buffer, n);
    }
}

static void complete_some(void *arg, unsigned rank, unsigned size)
{
    completion *c = arg;
    char *buffer = gr_malloc(GR_SEAL_BLOCK);
    uint64_t at = c->data;
    (void)rank;
    (void)size;
    for (size_t i, done = 0; (i = atomic_fetch_add(&c->next, 1)) < c->seal->n;) {
        for (; done < i; done++) at += c->seal->tensors[done].bytes;
        complete_tensor(c, &c->seal->tensors[i], at, buffer);
    }
    free(buffer);
}

/* Tensors by their place in the file. */
static int by_place(const void *a, const void *b)
{
    const gr_st_tensor *x = *(const gr_st_tensor *const *)a, *y = *(const gr_st_tensor *const *)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : strcmp(x->name, y->name);
}

/* All of an open set, in the order of the file; caller frees. */
static const gr_st_tensor **in_order(const gr_safetensors *f)
{
    const size_t n = gr_safetensors_count(f);
    const gr_st_tensor **t = gr_calloc(n + 1, sizeof(*t));
    for (size_t i = 0; i < n; i++) t[i] = gr_safetensors_at(f, i);
    qsort(t, n, sizeof(*t), by_place);
    return t;
}

static gr_status check_tensors(const gr_seal *s, const gr_st_tensor *const *t, size_t n, const char *path,
                               gr_diag *d)
{
    bool same = n == s->n;
    for (size_t i = 0; i < n && same; i++)
        same = t[i]->bytes == s->tensors[i].bytes && !strcmp(t[i]->name, s->tensors[i].name);
    return same ? GR_OK
                : gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                                "its tensors are not those that were written");
}

gr_status gr_hash_header(const char *path, gr_hash *hash, uint64_t *bytes, gr_diag *d)
{
    uint64_t n = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    gr_status st = fd < 0 || read_at(fd, &n, sizeof(n), 0) < 0 ? read_error(path, d) : GR_OK;
    char *header = !st && n <= GR_ST_HEADER_MAX ? gr_malloc(sizeof(n) + n) : NULL;
    *bytes = sizeof(n) + n;
    if (!st && (!header || read_at(fd, header, *bytes, 0) != (ssize_t)*bytes))
        st = gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID, "the file ends inside its header");
    if (!st) *hash = gr_hash_bytes(header, *bytes);
    free(header);
    if (fd >= 0) close(fd);
    return st;
}

static gr_status read_blocks(gr_seal *s, const char *path, uint64_t data, gr_team *team, gr_diag *d)
{
    completion c = {.seal = s, .data = data, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (c.fd < 0) return read_error(path, d);
    gr_team_run(team, complete_some, &c);
    close(c.fd);
    if (!c.bad && !c.cut) return GR_OK;
    return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_IO,
                         c.bad ? "cannot be read" : "the file is cut short");
}

gr_status gr_seal_complete(gr_seal *s, const char *path, gr_team *team, gr_diag *d)
{
    gr_safetensors *f = NULL;
    uint64_t data = 0;
    gr_status st = gr_safetensors_open(&f, path, d);
    if (st) return st;
    const gr_st_tensor **t = in_order(f);
    st = check_tensors(s, t, gr_safetensors_count(f), path, d);
    if (!st) st = gr_hash_header(path, &s->header, &data, d);
    if (!st) st = read_blocks(s, path, data, team, d);
    free(t);
    gr_safetensors_free(f);
    return st;
}

gr_status gr_seal_read(gr_seal **out, const char *path, gr_team *team, gr_diag *d)
{
    gr_safetensors *f = NULL;
    gr_status st = gr_safetensors_open(&f, path, d);
    if (st) return st;
    const gr_st_tensor **t = in_order(f);
    gr_seal *s = gr_seal_new();
    for (size_t i = 0; i < gr_safetensors_count(f); i++) gr_seal_add(s, t[i]->name, t[i]->bytes);
    free(t);
    gr_safetensors_free(f);
    st = gr_seal_complete(s, path, team, d);
    if (st)
        gr_seal_free(s);
    else
        *out = s;
    return st;
}

gr_status gr_seal_differs(const char *path, const char *tensor, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                         "tensor '%s' has other bytes than were saved: their hash is not the manifest's",
                         tensor);
}

gr_status gr_seal_header_differs(const char *path, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                         "the header of the file is not the one that was saved: its hash is not the "
                         "manifest's");
}
