/* The manifest of a checkpoint: written after all other files, and read before any of them is trusted. */
#include "runtime/io/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "runtime/base/json.h"
#include "runtime/base/files.h"

enum { VERSION = 1 };

typedef struct file {
    char *name;
    uint64_t bytes;
    gr_hash hash;
    gr_seal *seal; /* NULL: no safetensors file */
    bool borrowed; /* the seal is the caller's */
} file;

struct gr_manifest {
    char *dir, *path;
    gr_manifest_head head;
    gr_hash own;
    char *machine;
    file *files;
    size_t n, cap;
};

gr_status gr_run_id_new(gr_hash *id, gr_diag *d)
{
    if (getrandom(id->byte, sizeof(id->byte), 0) == sizeof(id->byte)) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "no random bytes for the id of a run: %s",
                         strerror(errno));
}

void gr_manifest_free(gr_manifest *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) {
        free(m->files[i].name);
        if (!m->files[i].borrowed) gr_seal_free(m->files[i].seal);
    }
    free(m->files);
    json_decref(m->head.inputs);
    free(m->machine);
    free(m->path);
    free(m->dir);
    free(m);
}

static gr_manifest *manifest_new(const char *dir)
{
    gr_manifest *m = gr_calloc(1, sizeof(*m));
    m->dir = gr_strdup(dir);
    m->path = gr_printf("%s/" GR_MANIFEST, dir);
    return m;
}

gr_manifest_head gr_manifest_says(const gr_manifest *m)
{
    return m->head;
}

json_t *gr_manifest_inputs(const gr_manifest *m)
{
    return m->head.inputs;
}

gr_hash gr_manifest_own(const gr_manifest *m)
{
    return m->own;
}

static const file *find(const gr_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (!strcmp(m->files[i].name, name)) return &m->files[i];
    return NULL;
}

const gr_seal *gr_manifest_seal(const gr_manifest *m, const char *name)
{
    const file *f = find(m, name);
    return f ? f->seal : NULL;
}

static bool is_safetensors(const char *name)
{
    static const char ending[] = ".safetensors";
    const size_t n = strlen(name), e = sizeof(ending) - 1;
    return n > e && !strcmp(name + n - e, ending);
}

/* ---- what a folder has --------------------------------------------------------------------------------- */

static gr_status add_below(gr_manifest *m, const char *folder, const char *before, gr_diag *d);

/* One entry of a folder: a file is added, a folder entered. */
static gr_status add_entry(gr_manifest *m, const char *path, const char *name, gr_diag *d)
{
    struct stat s;
    if (lstat(path, &s))
        return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot read '%s': %s", path, strerror(errno));
    if (S_ISDIR(s.st_mode)) {
        char *before = gr_printf("%s/", name);
        gr_status st = add_below(m, path, before, d);
        free(before);
        return st;
    }
    if (!S_ISREG(s.st_mode)) return GR_OK;
    file f = {.name = gr_strdup(name), .bytes = (uint64_t)s.st_size};
    GR_PUSH(m->files, m->n, m->cap, f);
    return GR_OK;
}

static int is_name(const struct dirent *e)
{
    return strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
}

static gr_status add_below(gr_manifest *m, const char *folder, const char *before, gr_diag *d)
{
    struct dirent **names = NULL;
    gr_status st = GR_OK;
    const int n = scandir(folder, &names, is_name, alphasort);
    if (n < 0) return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot read '%s': %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        char *path = gr_printf("%s/%s", folder, names[i]->d_name),
             *name = gr_printf("%s%s", before, names[i]->d_name);
        if (!st && strcmp(name, GR_MANIFEST)) st = add_entry(m, path, name, d);
        free(name);
        free(path);
        free(names[i]);
    }
    free(names);
    return st;
}

static gr_status hash_file(gr_manifest *m, file *f, gr_team *team, gr_diag *d)
{
    char *path = gr_printf("%s/%s", m->dir, f->name);
    gr_status st;
    if (!is_safetensors(f->name))
        st = gr_hash_file(path, &f->hash, &f->bytes, d);
    else if (f->seal)
        st = gr_seal_complete(f->seal, path, team, d);
    else
        st = gr_seal_read(&f->seal, path, team, d);
    if (!st && f->seal) f->hash = gr_seal_file_hash(f->seal);
    free(path);
    return st;
}

/* ---- written ------------------------------------------------------------------------------------------- */

static json_t *hex(gr_hash h)
{
    char text[GR_HASH_HEX];
    return json_string(gr_hash_hex(h, text));
}

static json_t *blocks_json(const gr_seal *s, const gr_seal_tensor *t)
{
    gr_str all = {0};
    char text[GR_HASH_HEX];
    for (uint64_t b = 0; b < t->n_blocks; b++)
        gr_str_puts(&all, gr_hash_hex(s->blocks[t->first_block + b], text));
    json_t *j = json_string(all.text);
    gr_str_release(&all);
    return j;
}

static json_t *tensor_json(const gr_seal *s, const gr_seal_tensor *t)
{
    json_t *j = json_pack("{s:s, s:I, s:o}", "name", t->name, "bytes", (json_int_t)t->bytes, "xxh3",
                          hex(gr_seal_tensor_hash(s, t)));
    if (t->n_blocks > 1 && json_object_set_new(j, "blocks", blocks_json(s, t))) {
        json_decref(j);
        return NULL;
    }
    return j;
}

static json_t *file_json(const file *f)
{
    json_t *j =
        json_pack("{s:s, s:I, s:o}", "name", f->name, "bytes", (json_int_t)f->bytes, "xxh3", hex(f->hash));
    json_t *tensors = f->seal ? json_array() : NULL;
    bool ok = j && (!f->seal || !json_object_set_new(j, "header", hex(f->seal->header)));
    for (size_t i = 0; ok && f->seal && i < f->seal->n; i++)
        ok = !json_array_append_new(tensors, tensor_json(f->seal, &f->seal->tensors[i]));
    if (ok && tensors) ok = !json_object_set(j, "tensors", tensors);
    json_decref(tensors);
    if (ok) return j;
    json_decref(j);
    return NULL;
}

static json_t *previous_json(const gr_manifest_head *h)
{
    return !h->has_previous
               ? json_null()
               : json_pack("{s:I, s:o}", "step", (json_int_t)h->previous_step, "xxh3", hex(h->previous));
}

/* All but `sealed`; NULL: out of memory. */
static json_t *manifest_json(const gr_manifest *m, const gr_manifest_head *h)
{
    json_t *files = json_array();
    bool ok = files;
    for (size_t i = 0; i < m->n && ok; i++) ok = !json_array_append_new(files, file_json(&m->files[i]));
    json_t *j =
        !ok ? NULL
            : json_pack("{s:i, s:o, s:I, s:s?, s:o, s:I, s:O, s:O?}", "version", VERSION, "run", hex(h->run),
                        "step", (json_int_t)h->step, "machine", h->machine, "previous", previous_json(h),
                        "block_bytes", (json_int_t)GR_SEAL_BLOCK, "files", files, "inputs", h->inputs);
    json_decref(files);
    return j;
}

#define SEALED ",\n \"sealed\": \""
#define END    "\"\n}\n"

/* The manifest's text, and its hash; empty: out of memory. */
static gr_str text_of(gr_manifest *m, const gr_manifest_head *h)
{
    json_t *j = manifest_json(m, h);
    char *text = j ? json_dumps(j, JSON_INDENT(1)) : NULL, sealed[GR_HASH_HEX];
    gr_str s = {0};
    if (text) { /* which ends with a line of a brace alone */
        gr_str_add(&s, text, strlen(text) - strlen("\n}"));
        m->own = gr_hash_bytes(s.text, s.len);
        gr_hash_hex(m->own, sealed);
        gr_str_printf(&s, SEALED "%s" END, sealed);
    }
    free(text);
    json_decref(j);
    return s;
}

/* What has been written is there. */
static gr_status read_back(gr_hash own, const char *dir, gr_diag *d)
{
    gr_manifest *m = NULL;
    gr_status st = gr_manifest_read(&m, dir, d);
    if (!st && (!m || !gr_hash_same(m->own, own)))
        st = gr_diag_error(d, (gr_loc){m ? m->path : dir, 0, 0}, GR_E_IO,
                           "the manifest reads otherwise than it was written");
    for (size_t i = 0; !st && i < m->n; i++) {
        char *path = gr_printf("%s/%s", dir, m->files[i].name);
        struct stat s;
        if (stat(path, &s) || (uint64_t)s.st_size != m->files[i].bytes)
            st = gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_IO, "the file is not as long as it was written");
        free(path);
    }
    gr_manifest_free(m);
    return st;
}

gr_status gr_manifest_write(const gr_manifest_head *head, const char *dir, gr_sealed_file *sealed, size_t n,
                            gr_hash *own, gr_team *team, gr_diag *d)
{
    gr_manifest *m = manifest_new(dir);
    gr_str text = {0};
    gr_status st = add_below(m, dir, "", d);
    for (size_t i = 0; i < m->n && !st; i++) {
        for (size_t k = 0; k < n; k++)
            if (!strcmp(sealed[k].name, m->files[i].name)) {
                m->files[i].seal = sealed[k].seal;
                m->files[i].borrowed = true;
            }
        st = hash_file(m, &m->files[i], team, d);
    }
    if (!st) text = text_of(m, head);
    if (!st && !text.len)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "cannot write '%s': out of memory", m->path);
    if (!st) st = gr_file_write(m->path, text.text, text.len, d);
    if (!st) st = read_back(m->own, dir, d);
    if (!st && own) *own = m->own;
    gr_str_release(&text);
    gr_manifest_free(m);
    return st;
}

/* ---- read ---------------------------------------------------------------------------------------------- */

static gr_status broken(const gr_manifest *m, const char *what, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){m->path, 0, 0}, GR_E_INVALID,
                         "this is no manifest as graphrun writes it: %s", what);
}

static bool get_hash(const json_t *j, const char *key, gr_hash *h)
{
    const json_t *v = json_object_get(j, key);
    return json_is_string(v) && json_string_length(v) == GR_HASH_HEX - 1 &&
           gr_hash_parse(json_string_value(v), h);
}

static bool get_u64(const json_t *j, const char *key, uint64_t *x)
{
    const json_t *v = json_object_get(j, key);
    *x = (uint64_t)json_integer_value(v);
    return json_is_integer(v) && json_integer_value(v) >= 0;
}

/* A file below the folder: a path could lead anywhere. */
static bool is_below(const char *name)
{
    return name && *name && *name != '/' && strncmp(name, "..", 2) != 0 && !strstr(name, "/..");
}

/* The blocks' hashes, or the tensor's as that of its only one. */
static bool get_blocks(gr_seal *s, const json_t *j)
{
    const gr_seal_tensor *t = &s->tensors[s->n - 1];
    gr_hash whole, *blocks = s->blocks + t->first_block;
    const json_t *all = json_object_get(j, "blocks");
    if (!get_hash(j, "xxh3", &whole)) return false;
    if (t->n_blocks == 1) {
        *blocks = whole;
        return true;
    }
    if (json_string_length(all) != t->n_blocks * (GR_HASH_HEX - 1)) return false;
    for (uint64_t b = 0; b < t->n_blocks; b++)
        if (!gr_hash_parse(json_string_value(all) + b * (GR_HASH_HEX - 1), &blocks[b])) return false;
    return gr_hash_same(gr_seal_tensor_hash(s, t), whole);
}

/* file_bytes: no tensor is larger, so that a number alone takes no memory. */
static bool get_seal(gr_seal *s, const json_t *j, uint64_t file_bytes)
{
    const json_t *tensors = json_object_get(j, "tensors"), *t;
    size_t i;
    bool ok = json_is_array(tensors) && get_hash(j, "header", &s->header);
    json_array_foreach(tensors, i, t)
    {
        const char *name = json_string_value(json_object_get(t, "name"));
        uint64_t bytes;
        ok = ok && name && get_u64(t, "bytes", &bytes) && bytes <= file_bytes;
        if (!ok) break;
        gr_seal_add(s, name, bytes);
        ok = get_blocks(s, t);
    }
    return ok;
}

static bool get_file(gr_manifest *m, const json_t *j)
{
    const char *name = json_string_value(json_object_get(j, "name"));
    file f = {0};
    if (!is_below(name) || !get_u64(j, "bytes", &f.bytes) || !get_hash(j, "xxh3", &f.hash)) return false;
    f.name = gr_strdup(name);
    f.seal = is_safetensors(name) ? gr_seal_new() : NULL;
    GR_PUSH(m->files, m->n, m->cap, f);
    return !f.seal || get_seal(f.seal, j, f.bytes);
}

static bool get_previous(gr_manifest_head *h, const json_t *j)
{
    const json_t *p = json_object_get(j, "previous");
    h->has_previous = json_is_object(p);
    return json_is_null(p) || (get_u64(p, "step", &h->previous_step) && get_hash(p, "xxh3", &h->previous));
}

static gr_status parse(gr_manifest *m, const json_t *j, gr_diag *d)
{
    uint64_t version, block;
    size_t i;
    const json_t *files = json_object_get(j, "files"), *f;
    if (!get_u64(j, "version", &version)) return broken(m, "it has no version", d);
    if (version != VERSION)
        return gr_diag_error(d, (gr_loc){m->path, 0, 0}, GR_E_INVALID,
                             "the manifest is of version %llu, this graphrun reads %d",
                             (unsigned long long)version, VERSION);
    if (!get_u64(j, "block_bytes", &block) || block != GR_SEAL_BLOCK)
        return broken(m, "'block_bytes' is another number", d);
    if (!get_hash(j, "run", &m->head.run) || !get_u64(j, "step", &m->head.step) || !get_previous(&m->head, j))
        return broken(m, "'run', 'step' or 'previous' is missing", d);
    if (!json_is_array(files)) return broken(m, "it has no files", d);
    json_array_foreach(files, i, f) if (!get_file(m, f)) return broken(m, "an entry of 'files' is wrong", d);
    const char *machine = json_string_value(json_object_get(j, "machine"));
    m->machine = machine ? gr_strdup(machine) : NULL;
    m->head.machine = m->machine;
    json_t *inputs = json_object_get(j, "inputs");
    m->head.inputs = inputs && !json_is_null(inputs) ? json_incref(inputs) : NULL;
    return GR_OK;
}

/* Whether the text ends with the hash of what is before it. */
static bool is_sealed(gr_manifest *m, const gr_json *j)
{
    const size_t tail = strlen(SEALED END) + GR_HASH_HEX - 1, body = j->n > tail ? j->n - tail : 0;
    const char *at = j->text + body;
    gr_hash said;
    m->own = gr_hash_bytes(j->text, body);
    return body && !strncmp(at, SEALED, strlen(SEALED)) && gr_hash_parse(at + strlen(SEALED), &said) &&
           !strcmp(j->text + j->n - strlen(END), END) && gr_hash_same(said, m->own);
}

gr_status gr_manifest_read(gr_manifest **out, const char *dir, gr_diag *d)
{
    gr_manifest *m = manifest_new(dir);
    gr_json j = {0};
    *out = NULL;
    if (!gr_path_exists(m->path)) {
        gr_manifest_free(m);
        return GR_OK;
    }
    gr_status st = gr_json_read(&j, m->path, d);
    if (!st && !is_sealed(m, &j)) st = broken(m, "its own hash is of another text", d);
    if (!st) st = parse(m, j.root, d);
    gr_json_release(&j);
    if (st)
        gr_manifest_free(m);
    else
        *out = m;
    return st;
}

/* ---- verified ------------------------------------------------------------------------------------------ */

static gr_status other_bytes(const file *f, const char *path, gr_hash is, gr_diag *d)
{
    char a[GR_HASH_HEX], b[GR_HASH_HEX];
    return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                         "not the file that was saved: its bytes have the hash %s, the manifest says %s",
                         gr_hash_hex(is, a), gr_hash_hex(f->hash, b));
}

static gr_status check_size(const file *f, const char *path, gr_diag *d)
{
    struct stat s;
    if (stat(path, &s) || !S_ISREG(s.st_mode))
        return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                             "the file is not there; the manifest names it, with %llu bytes",
                             (unsigned long long)f->bytes);
    if ((uint64_t)s.st_size == f->bytes) return GR_OK;
    return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                         "the file has %llu bytes, the manifest says %llu", (unsigned long long)s.st_size,
                         (unsigned long long)f->bytes);
}

static gr_status check_plain(const file *f, const char *path, gr_diag *d)
{
    gr_hash is;
    uint64_t bytes;
    gr_status st = gr_hash_file(path, &is, &bytes, d);
    return st || gr_hash_same(is, f->hash) ? st : other_bytes(f, path, is, d);
}

static gr_status check_tensors(const file *f, const char *path, gr_team *team, gr_diag *d)
{
    gr_seal *s = NULL;
    gr_status st = gr_seal_read(&s, path, team, d), all;
    if (st) return st;
    all = gr_hash_same(s->header, f->seal->header) ? GR_OK : gr_seal_header_differs(path, d);
    for (size_t i = 0; i < f->seal->n && i < s->n; i++)
        if (!gr_hash_same(gr_seal_tensor_hash(s, &s->tensors[i]),
                          gr_seal_tensor_hash(f->seal, &f->seal->tensors[i])))
            all = gr_seal_differs(path, f->seal->tensors[i].name, d);
    if (!all && !gr_hash_same(gr_seal_file_hash(s), f->hash))
        all = other_bytes(f, path, gr_seal_file_hash(s), d);
    gr_seal_free(s);
    return all;
}

static gr_status check_all(const gr_manifest *m, bool tensors, gr_team *team, gr_diag *d)
{
    gr_status all = GR_OK;
    for (size_t i = 0; i < m->n; i++) {
        const file *f = &m->files[i];
        char *path = gr_printf("%s/%s", m->dir, f->name);
        gr_status st = check_size(f, path, d);
        if (!st && !f->seal) st = check_plain(f, path, d);
        if (!st && f->seal && tensors) st = check_tensors(f, path, team, d);
        if (st) all = st;
        free(path);
    }
    return all;
}

gr_status gr_manifest_check(const gr_manifest *m, gr_diag *d)
{
    return check_all(m, false, NULL, d);
}

gr_status gr_manifest_verify(const gr_manifest *m, gr_team *team, gr_diag *d)
{
    return check_all(m, true, team, d);
}

/* ---- compared ------------------------------------------------------------------------------------------ */

/* The first tensor of a that b has not with the same hash; NULL: there is none. */
static const char *differing_tensor(const gr_seal *a, const gr_seal *b)
{
    for (size_t i = 0; i < a->n; i++) {
        const gr_seal_tensor *t = gr_seal_find(b, a->tensors[i].name);
        if (!t || !gr_hash_same(gr_seal_tensor_hash(a, &a->tensors[i]), gr_seal_tensor_hash(b, t)))
            return a->tensors[i].name;
    }
    return NULL;
}

void gr_manifest_count(const gr_manifest *m, uint64_t *files, uint64_t *tensors)
{
    *files = *tensors = 0;
    for (size_t i = 0; i < m->n; i++) {
        *files += m->files[i].seal != NULL;
        *tensors += m->files[i].seal ? m->files[i].seal->n : 0;
    }
}

bool gr_manifest_same_tensors(const gr_manifest *a, const gr_manifest *b, char **what)
{
    *what = NULL;
    for (size_t i = 0; i < a->n && !*what; i++) {
        const file *f = &a->files[i], *other = find(b, f->name);
        if (!f->seal) continue;
        const char *tensor = other && other->seal ? differing_tensor(f->seal, other->seal) : NULL;
        if (tensor)
            *what = gr_printf("%s, tensor '%s'", f->name, tensor);
        else if (!other)
            *what = gr_printf("%s, which one of them has not", f->name);
    }
    return !*what;
}
