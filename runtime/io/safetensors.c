/* Reading safetensors: headers, which are checked before they are used, sets of shards, data. */
#include "runtime/io/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/half.h"
#include "runtime/base/json.h"
#include "runtime/io/seal.h"
#include "runtime/base/files.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and read as they are");

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
#define X(name, bits) {#name, bits},
    GR_ST_DTYPE_MAP(X)
#undef X
};

const char *gr_st_dtype_str(gr_st_dtype t)
{
    return dtypes[t].name;
}

struct shard {
    const char *path;
    int fd;
};

struct gr_safetensors {
    gr_arena *arena; /* names, paths, dims */
    struct shard *shards;
    size_t n_shards, cap_shards;
    gr_st_tensor *tensors;
    size_t n, cap;
    const gr_seal *seal; /* what is read is held to; NULL: nothing */
};

void gr_safetensors_free(gr_safetensors *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_shards; i++) close(s->shards[i].fd);
    free(s->shards);
    free(s->tensors);
    gr_arena_free(s->arena);
    free(s);
}

static gr_loc in(const char *path)
{
    return (gr_loc){path, 0, 0};
}

/* All n bytes at offset, or GR_E_IO; what: of what, for the message. */
static gr_status read_at(const struct shard *f, void *dst, uint64_t n, uint64_t offset, const char *what,
                         gr_diag *d)
{
    for (char *p = dst; n;) {
        ssize_t got = pread(f->fd, p, GR_MIN(n, UINT64_C(1) << 30), (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return gr_diag_error(d, in(f->path), GR_E_IO, "cannot read '%s': %s", what, strerror(errno));
        if (got == 0)
            return gr_diag_error(d, in(f->path), GR_E_IO, "the file ends inside '%s': was it cut short?",
                                 what);
        p += got;
        n -= (uint64_t)got;
        offset += (uint64_t)got;
    }
    return GR_OK;
}

/* ---- one header --------------------------------------------------------------------------------------- */

static gr_status bad_tensor(const gr_st_tensor *t, const char *what, gr_diag *d)
{
    return gr_diag_error(d, in(t->file), GR_E_INVALID, "tensor '%s': %s", t->name, what);
}

static bool is_size(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0;
}

static gr_status parse_dtype(gr_st_tensor *t, const json_t *info, gr_diag *d)
{
    const char *name = json_string_value(json_object_get(info, "dtype"));
    if (!name) return bad_tensor(t, "no 'dtype'", d);
    for (size_t i = 0; i < GR_LEN(dtypes); i++) {
        if (strcmp(name, dtypes[i].name) != 0) continue;
        t->dtype = (gr_st_dtype)i;
        return GR_OK;
    }
    return gr_diag_error(d, in(t->file), GR_E_INVALID, "tensor '%s': unknown dtype '%s'", t->name, name);
}

/* dims, and in *bytes what they come to. */
static gr_status parse_shape(gr_st_tensor *t, const json_t *info, gr_arena *arena, uint64_t *bytes,
                             gr_diag *d)
{
    const json_t *shape = json_object_get(info, "shape");
    if (!json_is_array(shape)) return bad_tensor(t, "no 'shape'", d);
    t->n_dims = (uint32_t)json_array_size(shape);
    uint64_t *dims = gr_arena_alloc(arena, t->n_dims * sizeof(*dims)), bits = dtypes[t->dtype].bits;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        const json_t *v = json_array_get(shape, i);
        if (!is_size(v)) return bad_tensor(t, "a dimension is not an integer of at least 0", d);
        dims[i] = (uint64_t)json_integer_value(v);
        if (__builtin_mul_overflow(bits, dims[i], &bits)) return bad_tensor(t, "the shape overflows", d);
    }
    if (bits % 8) return bad_tensor(t, "its elements do not fill whole bytes", d);
    t->dims = dims;
    *bytes = bits / 8;
    return GR_OK;
}

static gr_status parse_offsets(gr_st_tensor *t, const json_t *info, uint64_t data_bytes, uint64_t want,
                               gr_diag *d)
{
    const json_t *pair = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(pair, 0), *end = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !is_size(begin) || !is_size(end))
        return bad_tensor(t, "'data_offsets' is not two integers of at least 0", d);
    uint64_t a = (uint64_t)json_integer_value(begin), b = (uint64_t)json_integer_value(end);
    if (a > b || b > data_bytes)
        return gr_diag_error(
            d, in(t->file), GR_E_INVALID,
            "tensor '%s': data_offsets [%ju, %ju] do not lie in the file's %ju bytes of data", t->name,
            (uintmax_t)a, (uintmax_t)b, (uintmax_t)data_bytes);
    if (b - a != want)
        return gr_diag_error(d, in(t->file), GR_E_INVALID,
                             "tensor '%s': data_offsets hold %ju bytes, but its shape needs %ju", t->name,
                             (uintmax_t)(b - a), (uintmax_t)want);
    t->offset = a; /* the start of the data is added when all are known to be sound */
    t->bytes = want;
    return GR_OK;
}

static int by_offset(const void *a, const void *b)
{
    const gr_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first */
}

/* Sorts the tensors [first, s->n) by place and checks that they cover data_bytes exactly. */
static gr_status check_cover(gr_safetensors *s, size_t first, const char *path, uint64_t data_bytes,
                             gr_diag *d)
{
    uint64_t end = 0;
    if (s->n > first) qsort(s->tensors + first, s->n - first, sizeof(*s->tensors), by_offset);
    for (size_t i = first; i < s->n; i++) {
        const gr_st_tensor *t = &s->tensors[i];
        if (t->offset != end)
            return bad_tensor(
                t, t->offset < end ? "its bytes overlap another tensor's" : "a hole lies before it", d);
        end = t->offset + t->bytes;
    }
    if (end == data_bytes) return GR_OK;
    return gr_diag_error(d, in(path), GR_E_INVALID, "%ju bytes at the end belong to no tensor",
                         (uintmax_t)(data_bytes - end));
}

static gr_status parse_tensors(gr_safetensors *s, uint32_t fd_index, json_t *header, uint64_t data_bytes,
                               gr_diag *d)
{
    const char *key, *path = s->shards[fd_index].path;
    json_t *info;
    size_t first = s->n;
    json_object_foreach(header, key, info)
    {
        if (!strcmp(key, "__metadata__")) continue;
        gr_st_tensor t = {.name = gr_arena_strdup(s->arena, key), .file = path, .fd_index = fd_index};
        uint64_t bytes = 0;
        if (!json_is_object(info)) return bad_tensor(&t, "its entry is not an object", d);
        gr_status st = parse_dtype(&t, info, d);
        if (!st) st = parse_shape(&t, info, s->arena, &bytes, d);
        if (!st) st = parse_offsets(&t, info, data_bytes, bytes, d);
        if (st) return st;
        GR_PUSH(s->tensors, s->n, s->cap, t);
    }
    return check_cover(s, first, path, data_bytes, d);
}

/* The JSON text of a header of n bytes that starts at byte 8. */
static gr_status parse_header(gr_safetensors *s, uint32_t fd_index, uint64_t n, uint64_t data_bytes,
                              gr_diag *d)
{
    const struct shard *f = &s->shards[fd_index];
    char *text = gr_malloc(n);
    json_error_t e;
    json_t *header = NULL;
    gr_status st = read_at(f, text, n, 8, "header", d);
    if (st) goto out;
    header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!header)
        st = gr_diag_error(d, in(f->path), GR_E_INVALID, "the header is not sound JSON, at byte %ju: %s",
                           (uintmax_t)8 + (uintmax_t)GR_MAX(e.position, 0), e.text);
    else if (!json_is_object(header))
        st = gr_diag_error(d, in(f->path), GR_E_INVALID, "the header is not a JSON object");
    else
        st = parse_tensors(s, fd_index, header, data_bytes, d);
    size_t first = s->n;
    while (first > 0 && s->tensors[first - 1].fd_index == fd_index) s->tensors[--first].offset += 8 + n;
out:
    json_decref(header);
    free(text);
    return st;
}

/* Open path as the next shard and add its tensors. */
static gr_status add_shard(gr_safetensors *s, const char *path, gr_diag *d)
{
    struct shard f = {.path = gr_arena_strdup(s->arena, path)};
    gr_status st = gr_file_open(&f.fd, path, d);
    if (st) return st;
    GR_PUSH(s->shards, s->n_shards, s->cap_shards, f);
    struct stat info;
    if (fstat(f.fd, &info) || S_ISDIR(info.st_mode))
        return gr_diag_error(d, in(path), GR_E_INVALID, "not a regular file");
    uint64_t size = (uint64_t)info.st_size, n;
    if (size < 8)
        return gr_diag_error(d, in(path), GR_E_INVALID, "%ju bytes are too few for a safetensors file",
                             (uintmax_t)size);
    st = read_at(&f, &n, sizeof(n), 0, "header", d);
    if (st) return st;
    if (n > size - 8 || n > GR_ST_HEADER_MAX)
        return gr_diag_error(
            d, in(path), GR_E_INVALID,
            "the header's length of %ju does not fit the file's %ju bytes; not a safetensors file, "
            "or cut short",
            (uintmax_t)n, (uintmax_t)size);
    return parse_header(s, (uint32_t)(s->n_shards - 1), n, size - 8 - n, d);
}

/* ---- finding ------------------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    const gr_st_tensor *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->fd_index > y->fd_index) - (x->fd_index < y->fd_index);
}

static void sort_by_name(gr_safetensors *s)
{
    if (s->n) qsort(s->tensors, s->n, sizeof(*s->tensors), by_name);
}

static gr_st_tensor *find_in_shard(const gr_safetensors *s, const char *name, uint32_t fd_index)
{
    gr_st_tensor key = {.name = name, .fd_index = fd_index};
    return s->n ? bsearch(&key, s->tensors, s->n, sizeof(key), by_name) : NULL;
}

static int name_to_tensor(const void *name, const void *tensor)
{
    return strcmp(name, ((const gr_st_tensor *)tensor)->name);
}

const gr_st_tensor *gr_safetensors_find(const gr_safetensors *s, const char *name)
{
    return s->n ? bsearch(name, s->tensors, s->n, sizeof(*s->tensors), name_to_tensor) : NULL;
}

size_t gr_safetensors_count(const gr_safetensors *s)
{
    return s->n;
}

const gr_st_tensor *gr_safetensors_at(const gr_safetensors *s, size_t i)
{
    return &s->tensors[i];
}

/* ---- sharded sets ------------------------------------------------------------------------------------- */

static int strings_cmp(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The files a weight map names, each once, sorted; caller frees. False with a message on a bad entry. */
static bool shard_names(const gr_json *j, json_t *map, const char ***out, size_t *n, gr_diag *d)
{
    const char *key;
    json_t *value;
    const char **names = gr_calloc(json_object_size(map), sizeof(*names));
    size_t all = 0;
    bool ok = true;
    json_object_foreach(map, key, value)
    {
        const char *file = json_string_value(value);
        /* a shard lies beside its index: a path could lead anywhere */
        if (file && *file && !strchr(file, '/') && strcmp(file, ".") != 0 && strcmp(file, "..") != 0) {
            names[all++] = file;
            continue;
        }
        gr_diag_error(d, gr_json_at(j, "weight_map"), GR_E_INVALID,
                      "tensor '%s': '%s' is not the name of a file in the same folder", key,
                      file ? file : "?");
        ok = false;
    }
    if (all) qsort(names, all, sizeof(*names), strings_cmp);
    *n = 0;
    for (size_t i = 0; i < all; i++)
        if (!*n || strcmp(names[*n - 1], names[i]) != 0) names[(*n)++] = names[i];
    *out = names;
    return ok;
}

/* Whether a folder's entry is of the set whose files begin with stem: STEM.safetensors, or one of its shards.
 */
static bool is_of_set(const char *name, const char *stem, size_t n_stem)
{
    unsigned i, of;
    int end = 0;
    if (strncmp(name, stem, n_stem) != 0) return false;
    name += n_stem;
    return !strcmp(name, ".safetensors") ||
           (sscanf(name, "-%u-of-%u.safetensors%n", &i, &of, &end) == 2 && end && !name[end]);
}

/* An index, and the files it names, sorted. */
struct named {
    const char *index, *stem; /* stem: what names of its set begin with, in index */
    size_t n_stem;
    const char *const *names;
    size_t n;
};

static gr_status check_name_beside(void *user, const char *dir, const char *name, gr_diag *d)
{
    const struct named *m = user;
    (void)dir;
    if (!is_of_set(name, m->stem, m->n_stem) ||
        bsearch(&name, m->names, m->n, sizeof(*m->names), strings_cmp))
        return GR_OK;
    return gr_diag_error(d, in(m->index), GR_E_INVALID,
                         "'%s' lies beside this index, which does not name it; remove what is not meant",
                         name);
}

/* A shard that the index does not name is of another writing of the set: who can tell which one is meant? */
static gr_status check_beside(const char *path, const char *const *names, size_t n, gr_diag *d)
{
    static const char ending[] = ".safetensors.index.json";
    const char *slash = strrchr(path, '/'), *stem = slash ? slash + 1 : path, *end = strstr(stem, ending);
    if (!end || end[strlen(ending)]) return GR_OK;
    struct named m = {path, stem, (size_t)(end - stem), names, n};
    char *folder = slash ? gr_strndup(path, (size_t)(slash - path) + 1) : gr_strdup(".");
    gr_status st = gr_dir_each(folder, check_name_beside, &m, d);
    free(folder);
    return st;
}

/* Of the tensors that the map does not name for the shard they are in: one that it names for another shard is
 * there twice; the rest is left out. */
static gr_status check_left_out(const gr_safetensors *s, const char *path, const json_t *map,
                                const bool *keep, gr_diag *d)
{
    size_t n = 0;
    const char *first = NULL;
    gr_status st = GR_OK;
    for (size_t i = 0; i < s->n; i++) {
        const gr_st_tensor *t = &s->tensors[i];
        const json_t *mapped = json_object_get(map, t->name);
        if (keep[i]) continue;
        if (mapped)
            st = gr_diag_error(d, in(t->file), GR_E_INVALID, "tensor '%s' is here and in '%s', too", t->name,
                               json_string_value(mapped));
        else if (!n++)
            first = t->name;
    }
    if (n)
        gr_diag_warn(d, in(path),
                     "%zu tensor%s in the shards, but not named here, and left out, such as '%s'", n,
                     n == 1 ? " is" : "s are", first);
    return st;
}

/* Keep the tensors that the map names for the shard they are in. */
static gr_status keep_mapped(gr_safetensors *s, const gr_json *j, json_t *map, const char *const *names,
                             size_t n, gr_diag *d)
{
    const char *key;
    json_t *value;
    gr_status st = GR_OK;
    bool *keep = gr_calloc(s->n, sizeof(*keep));
    sort_by_name(s);
    json_object_foreach(map, key, value)
    {
        const char *file = json_string_value(value);
        const char *const *at = bsearch(&file, names, n, sizeof(*names), strings_cmp);
        gr_st_tensor *t = find_in_shard(s, key, (uint32_t)(at - names));
        if (t)
            keep[t - s->tensors] = true;
        else
            st = gr_diag_error(d, gr_json_at(j, "weight_map"), GR_E_INVALID, "tensor '%s' is not in '%s'",
                               key, file);
    }
    if (!st) st = check_left_out(s, j->path, map, keep, d);
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++)
        if (keep[i]) s->tensors[kept++] = s->tensors[i];
    s->n = kept;
    free(keep);
    return st;
}

static gr_status open_index(gr_safetensors *s, const char *path, gr_diag *d)
{
    gr_json j;
    gr_status st = gr_json_read(&j, path, d);
    if (st) return st;
    const char **names = NULL;
    size_t n = 0;
    json_t *map = json_object_get(j.root, "weight_map");
    if (!json_is_object(map))
        st = gr_diag_error(d, in(path), GR_E_INVALID, "no object 'weight_map'");
    else if (!shard_names(&j, map, &names, &n, d))
        st = GR_E_INVALID;
    else
        st = check_beside(path, names, n, d);
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    for (size_t i = 0; i < n && !st; i++) {
        char *file = gr_printf("%.*s%s", folder, path, names[i]);
        st = add_shard(s, file, d);
        free(file);
    }
    if (!st) st = keep_mapped(s, &j, map, names, n, d);
    free(names);
    gr_json_release(&j);
    return st;
}

static gr_status open_folder(gr_safetensors *s, const char *dir, gr_diag *d)
{
    gr_status st = GR_OK;
    char *one = gr_printf("%s/model.safetensors", dir),
         *index = gr_printf("%s/model.safetensors.index.json", dir);
    char *pickled = gr_printf("%s/pytorch_model.bin", dir);
    if (gr_path_exists(index))
        st = open_index(s, index, d);
    else if (gr_path_exists(one))
        st = add_shard(s, one, d);
    else
        st = gr_diag_error(
            d, in(dir), GR_E_IO, "no model.safetensors and no model.safetensors.index.json%s",
            gr_path_exists(pickled) ? "; pytorch_model.bin is not read, convert it to safetensors" : "");
    free(pickled);
    free(index);
    free(one);
    return st;
}

gr_status gr_safetensors_open(gr_safetensors **out, const char *path, gr_diag *d)
{
    gr_safetensors *s = gr_calloc(1, sizeof(*s));
    s->arena = gr_arena_new();
    struct stat info;
    size_t n = strlen(path);
    gr_status st;
    if (!stat(path, &info) && S_ISDIR(info.st_mode))
        st = open_folder(s, path, d);
    else if (n > 5 && !strcmp(path + n - 5, ".json"))
        st = open_index(s, path, d);
    else
        st = add_shard(s, path, d);
    if (st) {
        gr_safetensors_free(s);
        return st;
    }
    sort_by_name(s);
    *out = s;
    return GR_OK;
}

/* ---- data --------------------------------------------------------------------------------------------- */

static void add_shape(gr_str *s, const uint64_t *dims, size_t n)
{
    for (size_t i = 0; i < n; i++) gr_str_printf(s, "%s%ju", i ? ", " : "[", (uintmax_t)dims[i]);
    gr_str_puts(s, n ? "]" : "[]");
}

static bool has_shape(const gr_st_tensor *t, const uint64_t *dims, size_t n)
{
    return t->n_dims == n && (!n || !memcmp(t->dims, dims, n * sizeof(*dims)));
}

/* A tensor of one of some dtypes, which have names in a message, and of a shape. */
struct wanted {
    const char *name;
    const gr_st_dtype *dtypes;
    size_t n_dtypes;
    const char *dtype_names;
    const uint64_t *dims;
    size_t n;
};

static const gr_st_tensor *find_wanted(const gr_safetensors *s, const struct wanted *w, gr_diag *d)
{
    const gr_st_tensor *t = gr_safetensors_find(s, w->name);
    if (!t) {
        gr_diag_error(d, in(s->n_shards ? s->shards[0].path : NULL), GR_E_INVALID, "no tensor '%s'", w->name);
        return NULL;
    }
    for (size_t i = 0; i < w->n_dtypes; i++)
        if (t->dtype == w->dtypes[i]) return t;
    gr_diag_error(d, in(t->file), GR_E_INVALID, "tensor '%s' is %s; weights are read from %s", w->name,
                  gr_st_dtype_str(t->dtype), w->dtype_names);
    return NULL;
}

static void refuse_shape(const gr_st_tensor *t, const uint64_t *dims, size_t n, gr_diag *d)
{
    gr_str text = {0};
    add_shape(&text, t->dims, t->n_dims);
    gr_str_puts(&text, ", but the model needs ");
    add_shape(&text, dims, n);
    gr_diag_error(d, in(t->file), GR_E_INVALID, "tensor '%s' has the shape %s", t->name, text.text);
    gr_str_release(&text);
}

static const gr_st_tensor *want(const gr_safetensors *s, const struct wanted *w, gr_diag *d)
{
    const gr_st_tensor *t = find_wanted(s, w, d);
    if (!t || has_shape(t, w->dims, w->n)) return t;
    refuse_shape(t, w->dims, w->n, d);
    return NULL;
}

static const gr_st_dtype floats[] = {GR_ST_F32, GR_ST_BF16, GR_ST_F16}, octets[] = {GR_ST_U8},
                         eighths[] = {GR_ST_F8_E4M3};
#define FLOATS floats, GR_LEN(floats), "F32, BF16 and F16"

const gr_st_tensor *gr_safetensors_want_shape(const gr_safetensors *s, const char *name, const uint64_t *dims,
                                              size_t n, gr_diag *d)
{
    return want(s, &(struct wanted){name, FLOATS, dims, n}, d);
}

const gr_st_tensor *gr_safetensors_want_bytes(const gr_safetensors *s, const char *name, const uint64_t *dims,
                                              size_t n, gr_diag *d)
{
    return want(s, &(struct wanted){name, octets, GR_LEN(octets), "U8", dims, n}, d);
}

const gr_st_tensor *gr_safetensors_want_e4m3(const gr_safetensors *s, const char *name, const uint64_t *dims,
                                             size_t n, gr_diag *d)
{
    return want(s, &(struct wanted){name, eighths, GR_LEN(eighths), "F8_E4M3", dims, n}, d);
}

const gr_st_tensor *gr_safetensors_want(const gr_safetensors *s, const char *name, uint64_t rows,
                                        uint64_t cols, gr_diag *d)
{
    /* the weights of a convolution of each channel by itself have a dimension of 1 between */
    const uint64_t dims[] = {rows, cols}, thin[] = {rows, 1, cols};
    const size_t n = cols ? 2 : 1;
    const gr_st_tensor *t = find_wanted(s, &(struct wanted){name, FLOATS, dims, n}, d);
    if (!t || has_shape(t, dims, n) || (cols && has_shape(t, thin, 3))) return t;
    refuse_shape(t, dims, n, d);
    return NULL;
}

static uint64_t size_of(gr_st_dtype dtype)
{
    return dtype == GR_ST_F32 ? 4 : dtype == GR_ST_F8_E4M3 ? 1 : 2;
}

/* Narrower values lie at the end of dst: each float written ends before the next value read. */
static void widen_in_place(float *dst, uint64_t n, gr_st_dtype dtype)
{
    const uint8_t *bytes = (const uint8_t *)dst + 3 * n;
    for (uint64_t i = 0; dtype == GR_ST_F8_E4M3 && i < n; i++) {
        const float f = gr_e4m3_to_f32(bytes[i]);
        memcpy((char *)dst + 4 * i, &f, sizeof(f));
    }
    if (dtype == GR_ST_F8_E4M3) return;
    const char *src = (const char *)dst + 2 * n;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof(h));
        float f = dtype == GR_ST_BF16 ? gr_bf16_to_f32(h) : gr_f16_to_f32(h);
        memcpy((char *)dst + 4 * i, &f, sizeof(f));
    }
}

/* ---- held to a seal
 * ----------------------------------------------------------------------------------------- */

gr_status gr_safetensors_hold(gr_safetensors *s, const gr_seal *seal, gr_diag *d)
{
    const char *path = s->shards[0].path;
    gr_hash header;
    uint64_t bytes;
    gr_status st = s->n_shards == 1 ? gr_hash_header(path, &header, &bytes, d)
                                    : gr_diag_error(d, in(path), GR_E_INVALID,
                                                    "one of several files; the manifest names one");
    if (!st && !gr_hash_same(header, seal->header)) st = gr_seal_header_differs(path, d);
    for (size_t i = 0; i < s->n && !st; i++) {
        const gr_seal_tensor *t = gr_seal_find(seal, s->tensors[i].name);
        if (!t || t->bytes != s->tensors[i].bytes) st = gr_seal_differs(path, s->tensors[i].name, d);
    }
    if (!st) s->seal = seal;
    return st;
}

/* A block of a tensor that lies at data wholly, or NULL: it is read. */
static gr_status check_block(const gr_safetensors *s, const gr_st_tensor *t, const gr_seal_tensor *sealed,
                             uint64_t block, const char *data, gr_diag *d)
{
    uint64_t first;
    const uint64_t n = gr_seal_block(sealed, block, &first);
    char *own = data ? NULL : gr_malloc(n);
    gr_status st = own ? read_at(&s->shards[t->fd_index], own, n, t->offset + first, t->name, d) : GR_OK;
    if (!st &&
        !gr_hash_same(gr_hash_bytes(own ? own : data, n), s->seal->blocks[sealed->first_block + block]))
        st = gr_seal_differs(t->file, t->name, d);
    free(own);
    return st;
}

/* Bytes [first, first + n) of a tensor, held to its seal: block by block, so that the cache still has what is
 * hashed. */
static gr_status read_held(const gr_safetensors *s, const gr_st_tensor *t, uint64_t first, uint64_t n,
                           char *dst, gr_diag *d)
{
    const gr_seal_tensor *sealed = gr_seal_find(s->seal, t->name);
    const uint64_t end = first + n;
    gr_status st = GR_OK;
    for (uint64_t at = first; at < end && !st;) {
        uint64_t begin;
        const uint64_t block = at / GR_SEAL_BLOCK, size = gr_seal_block(sealed, block, &begin);
        const uint64_t to = GR_MIN(begin + size, end);
        char *part = dst + (at - first);
        st = read_at(&s->shards[t->fd_index], part, to - at, t->offset + at, t->name, d);
        if (!st) st = check_block(s, t, sealed, block, to - at == size ? part : NULL, d);
        at = to;
    }
    return st;
}

gr_status gr_safetensors_read_f32(const gr_safetensors *s, const char *name, uint64_t rows, uint64_t cols,
                                  float *dst, gr_diag *d)
{
    return gr_safetensors_read_part_f32(s, name, rows, cols, 0, rows * (cols ? cols : 1), dst, d);
}

gr_status gr_safetensors_read_bytes(const gr_safetensors *s, const gr_st_tensor *t, uint64_t first,
                                    uint64_t n, uint8_t *dst, gr_diag *d)
{
    return s->seal ? read_held(s, t, first, n, (char *)dst, d)
                   : read_at(&s->shards[t->fd_index], dst, n, t->offset + first, t->name, d);
}

gr_status gr_safetensors_read_elems(const gr_safetensors *s, const gr_st_tensor *t, uint64_t first,
                                    uint64_t n, float *dst, gr_diag *d)
{
    const uint64_t size = size_of(t->dtype);
    uint8_t *at = (uint8_t *)dst + n * (sizeof(float) - size);
    const gr_status st = gr_safetensors_read_bytes(s, t, first * size, n * size, at, d);
    if (!st && t->dtype != GR_ST_F32) widen_in_place(dst, n, t->dtype);
    return st;
}

gr_status gr_safetensors_read_part_f32(const gr_safetensors *s, const char *name, uint64_t rows,
                                       uint64_t cols, uint64_t first, uint64_t n, float *dst, gr_diag *d)
{
    const gr_st_tensor *t = gr_safetensors_want(s, name, rows, cols, d);
    return t ? gr_safetensors_read_elems(s, t, first, n, dst, d) : GR_E_INVALID;
}
