/* runtime/device/disk.c: state on a disk: a file without a name, O_DIRECT, io_uring. */
#include "runtime/device/disk.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <xxhash.h>

enum {
    PART = 1 << 20, /* bytes of one request */
    DEPTH = 16      /* requests at a time */
};

/* What was written at an offset. */
typedef struct written {
    uint64_t offset, bytes, hash;
} written;

struct gr_disk {
    char *folder;
    int fd;
    uint64_t bytes;
    struct io_uring ring;
    bool has_ring;
    char *block; /* of what does not end at a whole block */
    written *all;
    size_t n, cap;
    gr_disk_use use;
};

/* ---- opening ------------------------------------------------------------------------------------------- */

static gr_status no_folder(const char *folder, gr_diag *d)
{
    struct stat s;
    if (stat(folder, &s))
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--disk '%s': %s", folder, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "--disk '%s' is no folder: a file without a name is made in one", folder);
    return GR_OK;
}

static gr_status in_memory(const char *folder, gr_diag *d)
{
    struct statfs f;
    if (statfs(folder, &f) || (f.f_type != TMPFS_MAGIC && f.f_type != RAMFS_MAGIC)) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "--disk '%s' lies in memory (tmpfs): what is kept there takes the host's memory, "
                         "which --host-budget is for",
                         folder);
}

/* A file that nobody else can open, and that is gone when it is closed. */
static int open_nameless(const char *folder, int more)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | more, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
    char *path = gr_printf("%s/.graphrun-disk-XXXXXX", folder);
    fd = mkostemp(path, O_CLOEXEC | more);
    if (fd >= 0) unlink(path);
    free(path);
    return fd;
}

static gr_status open_file(gr_disk *k, gr_diag *d)
{
    k->fd = open_nameless(k->folder, O_DIRECT);
    if (k->fd < 0 && errno == EINVAL) {
        k->fd = open_nameless(k->folder, 0);
        if (k->fd >= 0)
            gr_diag_warn(d, (gr_loc){0},
                         "--disk '%s': its file system has no O_DIRECT, so that copies go by way of the page "
                         "cache, which takes memory and time",
                         k->folder);
    }
    if (k->fd >= 0) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "--disk '%s': cannot make a file there: %s", k->folder,
                         strerror(errno));
}

static gr_status no_room(const gr_disk *k, int error, gr_diag *d)
{
    struct statvfs f;
    char want[32], have[32] = "what is not known";
    if (!fstatvfs(k->fd, &f)) gr_bytes_format((uint64_t)f.f_bavail * f.f_frsize, have);
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO,
                         "--disk '%s': the plan keeps %s there, which cannot be reserved: %s; free are %s",
                         k->folder, gr_bytes_format(k->bytes, want), strerror(error), have);
}

/* Its bytes are its own from now on, where the file system can promise it. */
static gr_status reserve(gr_disk *k, gr_diag *d)
{
    int failed = fallocate(k->fd, 0, 0, (off_t)k->bytes) ? errno : 0;
    if (!failed) return GR_OK;
    if (failed != EOPNOTSUPP) return no_room(k, failed, d);
    if (ftruncate(k->fd, (off_t)k->bytes)) return no_room(k, errno, d);
    gr_diag_warn(d, (gr_loc){0},
                 "--disk '%s': its file system cannot reserve bytes: the run ends if others take them",
                 k->folder);
    return GR_OK;
}

static gr_status open_ring(gr_disk *k, gr_diag *d)
{
    const int failed = io_uring_queue_init(DEPTH, &k->ring, 0);
    k->has_ring = !failed;
    if (failed)
        gr_diag_warn(d, (gr_loc){0},
                     "--disk: the system allows no io_uring (%s), so that one request is made at a time, "
                     "which may be slower",
                     strerror(-failed));
    return GR_OK;
}

gr_status gr_disk_open(gr_disk **out, const char *folder, uint64_t bytes, gr_diag *d)
{
    gr_disk *k = gr_calloc(1, sizeof(*k));
    *k = (gr_disk){.folder = gr_strdup(folder), .fd = -1};
    k->bytes = (bytes + GR_DISK_BLOCK - 1) / GR_DISK_BLOCK * GR_DISK_BLOCK;
    k->block = aligned_alloc(GR_DISK_BLOCK, GR_DISK_BLOCK);
    gr_status st = k->block ? no_folder(folder, d)
                            : gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "out of memory for a block");
    if (!st) st = in_memory(folder, d);
    if (!st) st = open_file(k, d);
    if (!st) st = reserve(k, d);
    if (!st) st = open_ring(k, d);
    if (st)
        gr_disk_close(k);
    else
        *out = k;
    return st;
}

void gr_disk_close(gr_disk *k)
{
    if (!k) return;
    if (k->has_ring) io_uring_queue_exit(&k->ring);
    if (k->fd >= 0) close(k->fd);
    free(k->all);
    free(k->block);
    free(k->folder);
    free(k);
}

/* ---- moving -------------------------------------------------------------------------------------------- */

typedef struct request { /* a part, and what is left of it */
    const char *part;
    uint64_t first, size;
    char *at;
    uint64_t offset, bytes;
} request;

/* A copy of whole blocks. */
typedef struct copying {
    gr_disk *k;
    bool writes;
    request slots[DEPTH];
    unsigned n_free, free[DEPTH], flying;
    char *at; /* what has not been asked for yet */
    uint64_t offset, left;
    uint64_t hash; /* of the parts that have been moved, whatever their order was */
    gr_diag *d;
} copying;

static gr_status failed(const copying *c, const request *r, const char *why)
{
    return gr_diag_error(c->d, (gr_loc){0}, GR_E_IO,
                         "--disk '%s': %s %llu bytes at byte %llu of its file failed: %s", c->k->folder,
                         c->writes ? "writing" : "reading", (unsigned long long)r->bytes,
                         (unsigned long long)r->offset, why);
}

/* Of a request so many bytes were moved, or it failed with -result. *again: the rest of it is to be asked
 * for: from a whole block on, as all are. */
static gr_status advance(const copying *c, request *r, int64_t result, bool *again)
{
    *again = true;
    if (result == -EINTR || result == -EAGAIN) return GR_OK;
    if (result < 0) return failed(c, r, strerror((int)-result));
    if (!result) return failed(c, r, "the file is shorter than it was");
    const bool all = (uint64_t)result >= r->bytes;
    const uint64_t done = all ? r->bytes : (uint64_t)result / GR_DISK_BLOCK * GR_DISK_BLOCK;
    if (!done) return failed(c, r, "less than a block was moved");
    r->at += done;
    r->offset += done;
    r->bytes -= done;
    *again = r->bytes > 0;
    return GR_OK;
}

static request next_part(copying *c)
{
    const uint64_t size = GR_MIN(c->left, (uint64_t)PART);
    const request r = {c->at, c->offset, size, c->at, c->offset, size};
    c->at += r.bytes;
    c->offset += r.bytes;
    c->left -= r.bytes;
    return r;
}

/* While other parts move. */
static void add_hash(copying *c, const request *r)
{
    c->hash += XXH3_64bits_withSeed(r->part, r->size, r->first);
}

static void ask(copying *c, unsigned slot)
{
    struct io_uring_sqe *e = io_uring_get_sqe(&c->k->ring); /* there is one for each slot */
    const request *r = &c->slots[slot];
    if (c->writes)
        io_uring_prep_write(e, c->k->fd, r->at, (unsigned)r->bytes, r->offset);
    else
        io_uring_prep_read(e, c->k->fd, r->at, (unsigned)r->bytes, r->offset);
    io_uring_sqe_set_data(e, &c->slots[slot]);
    c->flying++;
}

static gr_status await_answer(copying *c, struct io_uring_cqe **e)
{
    int waited;
    do waited = io_uring_submit_and_wait(&c->k->ring, 1);
    while (waited == -EINTR);
    while (waited >= 0 && (waited = io_uring_wait_cqe(&c->k->ring, e)) == -EINTR) waited = 0;
    return waited < 0 ? failed(c, &(request){.offset = c->offset}, strerror(-waited)) : GR_OK;
}

static gr_status take_answer(copying *c)
{
    struct io_uring_cqe *e = NULL;
    bool again = false;
    gr_status st = await_answer(c, &e);
    if (st) return st;
    request *r = io_uring_cqe_get_data(e);
    const int64_t result = e->res;
    io_uring_cqe_seen(&c->k->ring, e);
    c->flying--;
    st = advance(c, r, result, &again);
    if (!st && again) {
        ask(c, (unsigned)(r - c->slots));
        return GR_OK;
    }
    if (!st) add_hash(c, r);
    c->free[c->n_free++] = (unsigned)(r - c->slots);
    return st;
}

/* Nothing may be left to the ring when memory goes back to others, also where something failed. */
static gr_status copy_by_ring(copying *c)
{
    gr_status st = GR_OK;
    for (c->n_free = 0; c->n_free < DEPTH; c->n_free++) c->free[c->n_free] = c->n_free;
    while (c->flying || (c->left && !st)) {
        while (c->n_free && c->left && !st) {
            const unsigned slot = c->free[--c->n_free];
            c->slots[slot] = next_part(c);
            ask(c, slot);
        }
        const unsigned were = c->flying;
        const gr_status one = take_answer(c);
        st = st ? st : one;
        if (one && c->flying == were) break; /* the ring itself fails */
        if (st) c->left = 0;
    }
    return st;
}

static gr_status copy_one_by_one(copying *c)
{
    gr_status st = GR_OK;
    while (c->left && !st) {
        request r = next_part(c);
        bool again = true;
        while (again && !st) {
            const ssize_t n = c->writes ? pwrite(c->k->fd, r.at, r.bytes, (off_t)r.offset)
                                        : pread(c->k->fd, r.at, r.bytes, (off_t)r.offset);
            st = advance(c, &r, n < 0 ? -errno : n, &again);
        }
        if (!st) add_hash(c, &r);
    }
    return st;
}

static gr_status copy_blocks(gr_disk *k, bool writes, uint64_t offset, char *at, uint64_t bytes,
                             uint64_t *hash, gr_diag *d)
{
    copying c = {.k = k, .writes = writes, .at = at, .offset = offset, .left = bytes, .d = d};
    gr_status st = k->has_ring ? copy_by_ring(&c) : copy_one_by_one(&c);
    *hash += c.hash;
    return st;
}

/* Whole blocks where they are, and the rest by way of a block. *hash: of all that was moved. */
static gr_status copy_all(gr_disk *k, bool writes, uint64_t offset, char *at, uint64_t bytes, uint64_t *hash,
                          gr_diag *d)
{
    const uint64_t rest = bytes % GR_DISK_BLOCK, whole = bytes - rest;
    assert((uintptr_t)at % GR_DISK_BLOCK == 0 && offset % GR_DISK_BLOCK == 0); /* the plan was proven so */
    gr_status st = copy_blocks(k, writes, offset, at, whole, hash, d);
    if (st || !rest) return st;
    if (writes) {
        memset(k->block + rest, 0, GR_DISK_BLOCK - rest);
        memcpy(k->block, at + whole, rest);
    }
    st = copy_blocks(k, writes, offset + whole, k->block, GR_DISK_BLOCK, hash, d);
    if (!st && !writes) memcpy(at + whole, k->block, rest);
    return st;
}

/* ---- what was written ---------------------------------------------------------------------------------- */

static written *find(gr_disk *k, uint64_t offset)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->all[i].offset == offset) return &k->all[i];
    return NULL;
}

static void remember(gr_disk *k, written now)
{
    written *was = find(k, now.offset);
    if (was)
        *was = now;
    else
        GR_PUSH(k->all, k->n, k->cap, now);
}

static gr_status hold_to(gr_disk *k, written read, gr_diag *d)
{
    const written *was = find(k, read.offset);
    if (was && was->bytes == read.bytes && was->hash == read.hash) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO,
                         "--disk '%s': %llu bytes at byte %llu of its file are not those that were written "
                         "there: the disk is not to be trusted",
                         k->folder, (unsigned long long)read.bytes, (unsigned long long)read.offset);
}

gr_status gr_disk_write(gr_disk *k, uint64_t offset, const void *from, uint64_t bytes, gr_diag *d)
{
    const uint64_t begin = gr_now_ns();
    uint64_t hash = 0;
    gr_status st = copy_all(k, true, offset, (char *)(uintptr_t)from, bytes, &hash, d);
    if (!st) remember(k, (written){offset, bytes, hash});
    k->use.written += bytes;
    k->use.write_ns += gr_now_ns() - begin;
    k->use.touched = GR_MAX(k->use.touched, offset + bytes);
    return st;
}

gr_status gr_disk_read(gr_disk *k, uint64_t offset, void *to, uint64_t bytes, gr_diag *d)
{
    const uint64_t begin = gr_now_ns();
    uint64_t hash = 0;
    gr_status st = copy_all(k, false, offset, to, bytes, &hash, d);
    if (!st) st = hold_to(k, (written){offset, bytes, hash}, d);
    k->use.read += bytes;
    k->use.read_ns += gr_now_ns() - begin;
    return st;
}

gr_disk_use gr_disk_used(const gr_disk *k)
{
    gr_disk_use use = k->use;
    struct stat s;
    if (!fstat(k->fd, &s)) use.taken = (uint64_t)s.st_blocks * 512;
    return use;
}
