/* ops/text/jsonl.c: rows of JSON from a file or from what a command prints, found again by their places. */
#include "ops/text/jsonl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utf8proc.h>
#include <xxhash.h>

#include "runtime/base/guard.h"

struct line {
    off_t offset;
    uint32_t bytes, number; /* number counts from 1 */
    uint64_t hash;          /* of its bytes: what is read again later must be the same */
};

struct gr_jsonl {
    char *name; /* path or command, for messages */
    int fd;
    struct line *lines;
    size_t n, cap;
    uint64_t hash, bytes;
    gr_hash content;
    bool is_file;
};

/* What the indexing pass knows of the line it is in. */
struct indexer {
    off_t start;
    uint64_t bytes;
    uint32_t number;
    bool blank;
    XXH3_state_t *hash; /* of its bytes so far */
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static gr_status end_line(gr_jsonl *s, struct indexer *ix, gr_diag *d)
{
    gr_loc here = {s->name, ix->number, 1};
    if (ix->bytes > GR_JSONL_LINE_BYTES)
        return gr_diag_error(d, here, GR_E_INVALID, "line of %llu bytes; at most %u are read",
                             (unsigned long long)ix->bytes, GR_JSONL_LINE_BYTES);
    if (!ix->blank)
        GR_PUSH(s->lines, s->n, s->cap,
                ((struct line){ix->start, (uint32_t)ix->bytes, ix->number, XXH3_64bits_digest(ix->hash)}));
    XXH3_64bits_reset(ix->hash);
    *ix = (struct indexer){ix->start + (off_t)ix->bytes + 1, 0, ix->number + 1, true, ix->hash};
    return GR_OK;
}

static gr_status index_block(gr_jsonl *s, struct indexer *ix, const char *bytes, size_t n, gr_diag *d)
{
    while (n) {
        const char *end = memchr(bytes, '\n', n);
        size_t len = end ? (size_t)(end - bytes) : n;
        for (size_t i = 0; i < len && ix->blank; i++) ix->blank = is_blank(bytes[i]);
        ix->bytes += len;
        XXH3_64bits_update(ix->hash, bytes, len);
        if (!end) return GR_OK;
        gr_status st = end_line(s, ix, d);
        if (st) return st;
        bytes += len + 1;
        n -= len + 1;
    }
    return GR_OK;
}

static gr_status read_failed(const gr_jsonl *s, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot read '%s': %s", s->name, strerror(errno));
}

/* Hashes of all bytes, in one pass: of 64 bits, which states of runs have, and of 128. */
typedef struct hashes {
    XXH3_state_t *small, *large;
} hashes;

static hashes hashes_new(void)
{
    hashes h = {gr_xxh3_new(), gr_xxh3_new()};
    XXH3_64bits_reset(h.small);
    XXH3_128bits_reset(h.large);
    return h;
}

static void hashes_end(const hashes *h, gr_jsonl *s)
{
    XXH128_canonical_t large;
    s->hash = XXH3_64bits_digest(h->small);
    XXH128_canonicalFromHash(&large, XXH3_128bits_digest(h->large));
    memcpy(s->content.byte, large.digest, sizeof(s->content.byte));
    XXH3_freeState(h->small);
    XXH3_freeState(h->large);
}

static gr_status index_bytes(gr_jsonl *s, struct indexer *ix, const hashes *all, gr_diag *d)
{
    enum { block = 1 << 18 };
    gr_status st = GR_OK;
    char *bytes = gr_malloc(block);
    while (!st) {
        ssize_t got = pread(s->fd, bytes, block, (off_t)s->bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) st = read_failed(s, d);
        if (got <= 0) break;
        XXH3_64bits_update(all->small, bytes, (size_t)got);
        XXH3_128bits_update(all->large, bytes, (size_t)got);
        st = index_block(s, ix, bytes, (size_t)got, d);
        s->bytes += (uint64_t)got;
    }
    free(bytes);
    return st;
}

static gr_status index_lines(gr_jsonl *s, gr_loc at, gr_diag *d)
{
    struct indexer ix = {0, 0, 1, true, gr_xxh3_new()};
    const hashes all = hashes_new();
    XXH3_64bits_reset(ix.hash);
    gr_status st = index_bytes(s, &ix, &all, d);
    if (!st && ix.bytes) st = end_line(s, &ix, d);
    if (!st && !s->n) st = gr_diag_error(d, at, GR_E_INVALID, "'%s' holds no rows", s->name);
    hashes_end(&all, s);
    XXH3_freeState(ix.hash);
    return st;
}

static gr_status source_new(gr_jsonl **out, const char *name, bool is_file, int fd, gr_loc at, gr_diag *d)
{
    gr_jsonl *s = gr_calloc(1, sizeof(*s));
    *s = (gr_jsonl){.name = gr_strdup(name), .fd = fd, .is_file = is_file};
    gr_status st = index_lines(s, at, d);
    if (st)
        gr_jsonl_free(s);
    else
        *out = s;
    return st;
}

gr_status gr_jsonl_open(gr_jsonl **out, const char *path, gr_loc at, gr_diag *d)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes must not stop us */
    if (fd < 0) return gr_diag_error(d, at, GR_E_IO, "cannot read '%s': %s", path, strerror(errno));
    if (!fstat(fd, &info) && (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))) {
        close(fd);
        return gr_diag_error(d, at, GR_E_INVALID, "'%s' is a device; a regular file is expected", path);
    }
    if (!fstat(fd, &info) && S_ISFIFO(info.st_mode)) {
        close(fd);
        return gr_diag_error(
            d, at, GR_E_INVALID,
            "'%s' is a pipe, and rows are read again and again: write them to a file, or give "
            "the command that prints them",
            path);
    }
    return source_new(out, path, true, fd, at, d);
}

/* The command's exit status, or -1 with errno where it could not be started. out, err: where it prints. It is
 * of our process group: a terminal's Ctrl-C is meant for it, too. */
static int run_into(const char *command, int out, int err)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    gr_guard guard;
    int status = -1;
    errno = gr_guard_start(&guard,
                           &(gr_guarded){.argv = argv, .in = -1, .out = out, .err = err, .group = getpgrp()});
    if (errno) return -1;
    while (waitpid(guard.pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(guard.leash);
    return status;
}

/* The last lines of what a command complained of, a note each. */
static void note_complaints(int err, gr_diag *d)
{
    enum { bytes = 2000, lines = 8 };
    char text[bytes + 1];
    off_t end = lseek(err, 0, SEEK_END), from = end > bytes ? end - bytes : 0;
    ssize_t got = pread(err, text, bytes, from);
    size_t n = got > 0 ? (size_t)got : 0, begin = n, found = 0;
    while (n && (text[n - 1] == '\n' || is_blank(text[n - 1]))) n--;
    for (begin = n; begin > 0 && found < lines; begin--) found += text[begin - 1] == '\n';
    if (found == lines) begin++; /* after the line's end that was one too many */
    text[n] = '\0';
    for (char *line = text + begin, *next; line < text + n; line = next) {
        size_t len = strcspn(line, "\n");
        next = line + len + (line[len] == '\n');
        gr_diag_note(d, (gr_loc){0}, "it said: %.*s", (int)len, line);
    }
}

static gr_status command_failed(const char *command, int status, int err, gr_loc at, gr_diag *d)
{
    if (status < 0) return gr_diag_error(d, at, GR_E_IO, "cannot run '%s': %s", command, strerror(errno));
    gr_status st =
        WIFEXITED(status)
            ? gr_diag_error(d, at, GR_E_IO, "'%s' exited with status %d", command, WEXITSTATUS(status))
            : gr_diag_error(d, at, GR_E_IO, "'%s' was killed by signal %d", command, WTERMSIG(status));
    note_complaints(err, d);
    return st;
}

/* "output of 'COMMAND'", of a long one its beginning. */
static char *output_name(const char *command)
{
    enum { most = 60 };
    size_t n = strcspn(command, "\n");
    bool whole = !command[n] && n <= most;
    return gr_printf("output of '%.*s%s'", (int)GR_MIN(n, (size_t)most), command, whole ? "" : "...");
}

static gr_status check_rows(const gr_jsonl *s, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < s->n && !st; i++) {
        json_t *row = NULL;
        st = gr_jsonl_row(s, i, &row, d);
        json_decref(row);
    }
    return st;
}

gr_status gr_jsonl_command(gr_jsonl **out, const char *command, gr_loc at, gr_diag *d)
{
    gr_jsonl *s = NULL;
    char *name = output_name(command);
    int fd = memfd_create("jsonl", MFD_CLOEXEC), err = memfd_create("errors", MFD_CLOEXEC);
    gr_status st = GR_OK;
    if (fd < 0 || err < 0) {
        st = gr_diag_error(d, at, GR_E_IO, "cannot keep the output of a command: %s", strerror(errno));
    } else {
        int status = run_into(command, fd, err);
        if (status) st = command_failed(command, status, err, at, d);
    }
    if (!st) {
        st = source_new(&s, name, false, fd, at, d);
        fd = -1; /* the source's now, also where it failed */
    }
    if (!st) st = check_rows(s, d);
    if (fd >= 0) close(fd);
    if (err >= 0) close(err);
    free(name);
    if (st)
        gr_jsonl_free(s);
    else
        *out = s;
    return st;
}

void gr_jsonl_free(gr_jsonl *s)
{
    if (!s) return;
    close(s->fd);
    free(s->lines);
    free(s->name);
    free(s);
}

size_t gr_jsonl_rows(const gr_jsonl *s)
{
    return s->n;
}

uint64_t gr_jsonl_hash(const gr_jsonl *s)
{
    return s->hash;
}

gr_jsonl_content gr_jsonl_content_of(const gr_jsonl *s)
{
    const char *slash = s->is_file ? strrchr(s->name, '/') : NULL;
    return (gr_jsonl_content){s->is_file ? s->name : NULL, slash ? slash + 1 : s->name, s->bytes, s->content};
}

gr_loc gr_jsonl_at(const gr_jsonl *s, size_t row)
{
    assert(row < s->n);
    return (gr_loc){s->name, s->lines[row].number, 1};
}

/* ---- rows and fields ---------------------------------------------------------------------------------- */

static gr_status read_line(const gr_jsonl *s, size_t row, char *bytes, gr_diag *d)
{
    const struct line *l = &s->lines[row];
    for (size_t used = 0; used < l->bytes;) {
        ssize_t got = pread(s->fd, bytes + used, l->bytes - used, l->offset + (off_t)used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return read_failed(s, d);
        if (got == 0)
            return gr_diag_error(d, gr_jsonl_at(s, row), GR_E_IO, "the file has become shorter while in use");
        used += (size_t)got;
    }
    if (XXH3_64bits(bytes, l->bytes) == l->hash) return GR_OK;
    return gr_diag_error(d, gr_jsonl_at(s, row), GR_E_IO,
                         "the file has changed while in use: this is not the row it was");
}

gr_status gr_jsonl_row(const gr_jsonl *s, size_t row, json_t **out, gr_diag *d)
{
    assert(row < s->n);
    gr_loc at = gr_jsonl_at(s, row);
    size_t n = s->lines[row].bytes;
    char *bytes = gr_malloc(n + 1);
    gr_status st = read_line(s, row, bytes, d);
    if (st) goto out;
    size_t bom = row == 0 && n >= 3 && !memcmp(bytes, "\xEF\xBB\xBF", 3) ? 3 : 0;
    json_error_t e;
    json_t *v =
        json_loadb(bytes + bom, n - bom, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!v) {
        at.col = e.position > 0 ? (unsigned)e.position + (unsigned)bom : 1;
        st = gr_diag_error(d, at, GR_E_INVALID, "not JSON: %s", e.text);
    } else if (!json_is_object(v)) {
        st = gr_diag_error(d, at, GR_E_INVALID, "the row is %s; an object is wanted", gr_json_kind(v));
        json_decref(v);
    } else {
        *out = v;
    }
out:
    free(bytes);
    return st;
}

static gr_status no_field(const json_t *object, const char *path, gr_loc at, gr_diag *d)
{
    const char **names = gr_malloc((json_object_size(object) + 1) * sizeof(*names));
    size_t n = 0;
    for (void *it = json_object_iter((json_t *)object); it; it = json_object_iter_next((json_t *)object, it))
        names[n++] = json_object_iter_key(it);
    const char *near = gr_near(path, names, n);
    gr_status st = near ? gr_diag_error(d, at, GR_E_INVALID, "no field '%s'; did you mean '%s'?", path, near)
                        : gr_diag_error(d, at, GR_E_INVALID, "no field '%s'", path);
    free(names);
    return st;
}

/* One step of a dotted path: a key of an object, or an index of a list. */
static const json_t *step_into(const json_t *value, const char *key, size_t n)
{
    char name[256];
    if (n == 0 || n >= sizeof(name)) return NULL;
    memcpy(name, key, n);
    name[n] = '\0';
    if (json_is_object(value)) return json_object_get(value, name);
    char *end;
    unsigned long i = strtoul(name, &end, 10);
    bool digits = strspn(name, "0123456789") == n;
    return digits && !*end && json_is_array(value) ? json_array_get(value, i) : NULL;
}

gr_status gr_json_field(const json_t *object, const char *path, gr_loc at, const json_t **out, gr_diag *d)
{
    const json_t *v = json_object_get(object, path);
    if (!v && strchr(path, '.')) {
        v = object;
        for (const char *p = path; v; p++) {
            size_t n = strcspn(p, ".");
            v = step_into(v, p, n);
            p += n;
            if (!*p) break;
        }
    }
    if (!v) return no_field(object, path, at, d);
    if (json_is_null(v)) return gr_diag_error(d, at, GR_E_INVALID, "field '%s' is null", path);
    *out = v;
    return GR_OK;
}

static void put_real(double v, gr_str *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) { /* the shortest that reads back as the same number */
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    gr_str_puts(out, text);
}

gr_status gr_json_text(const json_t *object, const char *path, gr_loc at, gr_str *out, gr_diag *d)
{
    const json_t *v;
    gr_status st = gr_json_field(object, path, at, &v, d);
    if (st) return st;
    if (json_is_string(v))
        gr_str_add(out, json_string_value(v), json_string_length(v));
    else if (json_is_integer(v))
        gr_str_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        put_real(json_real_value(v), out);
    else if (json_is_boolean(v))
        gr_str_puts(out, json_is_true(v) ? "true" : "false");
    else
        st = gr_diag_error(d, at, GR_E_INVALID, "field '%s' is %s; text is wanted", path, gr_json_kind(v));
    return st;
}

gr_status gr_json_number(const json_t *object, const char *path, gr_loc at, double *out, gr_diag *d)
{
    const json_t *v;
    gr_status st = gr_json_field(object, path, at, &v, d);
    if (st) return st;
    if (!json_is_number(v))
        return gr_diag_error(d, at, GR_E_INVALID, "field '%s' is %s; a number is wanted", path,
                             gr_json_kind(v));
    *out = json_number_value(v);
    return GR_OK;
}

gr_status gr_json_numbers(const json_t *object, const char *path, gr_loc at, size_t n, const char *what,
                          double *out, gr_diag *d)
{
    const json_t *v;
    gr_status st = gr_json_field(object, path, at, &v, d);
    if (st) return st;
    if (!json_is_array(v))
        return gr_diag_error(d, at, GR_E_INVALID,
                             "field '%s' is %s; a list of %zu numbers is wanted, one for each of the %s",
                             path, gr_json_kind(v), n, what);
    if (json_array_size(v) != n)
        return gr_diag_error(d, at, GR_E_INVALID, "field '%s' has %zu numbers, but there are %zu %s", path,
                             json_array_size(v), n, what);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_number(x))
            return gr_diag_error(d, at, GR_E_INVALID,
                                 "field '%s' has %s at %zu, counted from 0; a number is wanted", path,
                                 gr_json_kind(x), i);
        out[i] = json_number_value(x);
    }
    return GR_OK;
}

/* ---- order -------------------------------------------------------------------------------------------- */

/* A whole number in [0, n). With 64 random bits the bias of the remainder is below 2^-32. */
static uint32_t pick(uint64_t seed, uint64_t epoch, uint32_t i, uint32_t n)
{
    const uint32_t counter[4] = {i, (uint32_t)epoch, (uint32_t)(epoch >> 32), 0};
    uint32_t r[4];
    gr_philox(seed, gr_stream("jsonl.order"), counter, r);
    return (uint32_t)(((uint64_t)r[0] << 32 | r[1]) % n);
}

/* Rows of one key stay in the order they were in: merge sort, with room for half of them. */
static void sort_rows(const gr_order *o, uint32_t *rows, size_t n, uint32_t *room)
{
    if (n < 2) return;
    size_t half = n / 2, i = 0, j = half, k = 0;
    sort_rows(o, rows, half, room);
    sort_rows(o, rows + half, n - half, room);
    memcpy(room, rows, half * sizeof(*rows));
    while (i < half && j < n) rows[k++] = o->key[room[i]] <= o->key[rows[j]] ? room[i++] : rows[j++];
    memcpy(rows + k, room + i, (half - i) * sizeof(*rows));
}

static void order_rows(gr_order *o, uint64_t epoch)
{
    o->epoch = epoch;
    for (size_t i = 0; i < o->n; i++) o->rows[i] = (uint32_t)i;
    for (uint32_t i = (uint32_t)o->n - 1; o->shuffle && i > 0; i--) {
        uint32_t j = pick(o->seed, epoch, i, i + 1), row = o->rows[i];
        o->rows[i] = o->rows[j];
        o->rows[j] = row;
    }
    if (!o->key) return;
    uint32_t *room = gr_malloc((o->n / 2 + 1) * sizeof(*room));
    sort_rows(o, o->rows, o->n, room);
    free(room);
}

void gr_order_init(gr_order *o, size_t n, bool shuffle, double *key, uint64_t seed)
{
    assert(n > 0 && n <= UINT32_MAX);
    *o = (gr_order){.n = n, .shuffle = shuffle, .key = key, .seed = seed};
    if (!shuffle && !key) return;
    o->rows = gr_malloc(n * sizeof(*o->rows));
    order_rows(o, 0);
}

void gr_order_release(gr_order *o)
{
    free(o->rows);
    free(o->key);
    *o = (gr_order){0};
}

void gr_order_draw(gr_order *o, gr_cursor *c, size_t n, size_t *rows)
{
    assert(c->position < o->n);
    for (size_t i = 0; i < n; i++) {
        if (o->rows && o->epoch != c->epoch) order_rows(o, c->epoch);
        rows[i] = o->rows ? o->rows[c->position] : c->position;
        if (++c->position == o->n) *c = (gr_cursor){c->epoch + 1, 0};
    }
}
