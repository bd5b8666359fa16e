/* Hugging Face folders: their configs and tokenizers, init and export, and those of a run. */
#include "ops/model/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ops/model/peft.h"
#include "ops/simd/simd.h"
#include "runtime/base/aside.h"
#include "runtime/io/checkpoint_dir.h"
#include "runtime/base/json.h"
#include "runtime/io/sealed_run.h"
#include "runtime/base/files.h"

static bool is_folder(const char *path)
{
    struct stat info;
    return !stat(path, &info) && S_ISDIR(info.st_mode);
}

/* ---- folders that appear whole ------------------------------------------------------------------------- */

/* Made, filled at aside, finished; release removes what was not. */
typedef struct folder {
    char *path, *aside;
    int fd; /* of aside */
} folder;

static gr_status exists(const char *path, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                         "'%s' exists already; remove it or choose another name", path);
}

static gr_status not_created(const folder *f, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot create '%s': %s", f->path, strerror(errno));
}

/* The folder that path lies in; caller frees. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? gr_strdup(".") : gr_strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static gr_status folder_begin(folder *f, const char *path, gr_diag *d)
{
    struct stat s;
    *f = (folder){.fd = -1};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    f->path = gr_strndup(path, n);
    if (!lstat(f->path, &s)) return exists(f->path, d);
    char *parent = parent_of(f->path);
    gr_status st = gr_dir_make(parent, d);
    if (!st) gr_aside_sweep(parent, f->path); /* left by one who was killed */
    if (!st && (f->fd = gr_aside_new(&f->aside, f->path, true)) < 0) st = not_created(f, d);
    free(parent);
    return st;
}

/* Some file systems cannot rename without replacing; a folder never takes the place of one that has files. */
static gr_status take_place(const folder *f, gr_diag *d)
{
    int failed = renameat2(AT_FDCWD, f->aside, AT_FDCWD, f->path, RENAME_NOREPLACE);
    if (failed && (errno == EINVAL || errno == ENOSYS)) failed = rename(f->aside, f->path);
    if (!failed) return GR_OK;
    const bool made = errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR;
    return made ? exists(f->path, d) : not_created(f, d);
}

static gr_status folder_finish(folder *f, gr_diag *d)
{
    gr_status st = gr_dir_sync(f->aside, d);
    if (!st) st = take_place(f, d);
    if (st) return st;
    free(f->aside);
    f->aside = NULL;
    char *parent = parent_of(f->path);
    st = gr_dir_sync(parent, d);
    free(parent);
    return st;
}

static void folder_release(folder *f)
{
    gr_status st = f->aside ? gr_path_remove(f->aside, NULL) : GR_OK;
    (void)st; /* what stays behind is removed by the next attempt */
    if (f->fd >= 0) close(f->fd);
    free(f->aside);
    free(f->path);
    *f = (folder){.fd = -1};
}

/* ---- config and tokenizer ------------------------------------------------------------------------------ */

const char *const gr_tokenizer_files[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",  "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json", NULL,
};

static gr_status copy_tokenizer(const char *from, const char *dir, gr_diag *d)
{
    bool found = false;
    gr_status st = GR_OK;
    if (!is_folder(from))
        return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "no folder '%s' with a tokenizer", from);
    for (const char *const *f = gr_tokenizer_files; *f && !st; f++)
        st = gr_file_copy(from, *f, dir, &found, d);
    if (!st && !found)
        gr_diag_warn(d, (gr_loc){from, 0, 0}, "no tokenizer.json nor any other file of a tokenizer");
    return st;
}

/* Bytes of the JSON value that begins here; the text was parsed, so it ends. */
static size_t value_length(const char *value)
{
    int depth = 0;
    const char *c = value;
    for (;; c++) {
        if (*c == '"')
            for (c++; *c != '"'; c++) c += *c == '\\';
        else if (*c == '{' || *c == '[')
            depth++;
        else if (depth && (*c == '}' || *c == ']'))
            depth--;
        else if (!depth && strchr(" \t\r\n,}", *c))
            return (size_t)(c - value);
    }
}

/* Give a key of the object in text another value; all else stays as it was written. */
static void set_key(gr_str *text, const char *key, const char *value)
{
    const gr_json j = {.text = text->text, .n = text->len}; /* its root begins the text */
    size_t at = gr_json_find(&j, key);
    gr_str out = {0};
    if (at == j.n) {
        size_t brace = strcspn(j.text, "{") + 1;
        gr_str_add(&out, j.text, brace);
        gr_str_printf(&out, "\n  \"%s\": %s,%s", key, value, j.text + brace);
    } else {
        const char *old = j.text + at + strlen(key) + 2;
        old += strspn(old, " \t\r\n:");
        gr_str_add(&out, j.text, (size_t)(old - j.text));
        gr_str_printf(&out, "%s%s", value, old + value_length(old));
    }
    gr_str_release(text);
    *text = out;
}

/* Take a key out of the object in text. */
static void remove_key(gr_str *text, const char *key)
{
    const gr_json j = {.text = text->text, .n = text->len};
    size_t from = gr_json_find(&j, key), end;
    gr_str out = {0};
    if (from == j.n) return;
    const char *value = j.text + from + strlen(key) + 2;
    value += strspn(value, " \t\r\n:");
    end = (size_t)(value - j.text) + value_length(value);
    const size_t comma = end + strspn(j.text + end, " \t\r\n");
    if (j.text[comma] == ',') {
        end = comma + 1 + strspn(j.text + comma + 1, " \t\r\n");
    } else { /* the last one: the comma before it goes, too, where there is one */
        size_t before = from;
        while (before && strchr(" \t\r\n", j.text[before - 1])) before--;
        if (before && j.text[before - 1] == ',') from = before - 1;
    }
    gr_str_add(&out, j.text, from);
    gr_str_puts(&out, j.text + end);
    gr_str_release(text);
    *text = out;
}

/* Loaders take the dtype at its word and round to it. */
static void set_dtype(gr_str *text, const json_t *root, gr_st_dtype dtype)
{
    set_key(text, json_object_get(root, "dtype") ? "dtype" : "torch_dtype",
            dtype == GR_ST_F32 ? "\"float32\"" : "\"bfloat16\"");
}

static void set_architecture(gr_str *text, const gr_model_shape *s)
{
    char class[GR_ARCHITECTURE_MAX], *list = gr_printf("[\"%s\"]", gr_model_architecture(s, class));
    set_key(text, "architectures", list);
    free(list);
}

/* Name the class that has these tensors; a value head has one label. */
static void set_value_head(gr_str *text, const json_t *root, const gr_model_shape *s)
{
    set_architecture(text, s);
    if (json_object_size(json_object_get(root, "id2label")) != 1) {
        set_key(text, "label2id", "{\"LABEL_0\": 0}");
        set_key(text, "id2label", "{\"0\": \"LABEL_0\"}");
    }
    if (json_object_get(root, "num_labels")) set_key(text, "num_labels", "1");
}

/* Of a model of text and images, the config of its text, which stands by itself; ids that only the model says
 * go with it. */
static void set_text(gr_str *text, gr_json *j, const gr_model_shape *s)
{
    static const char *const ids[] = {"eos_token_id", "bos_token_id", "pad_token_id", "tie_word_embeddings"};
    char *said[GR_LEN(ids)] = {0}, *type = gr_printf("\"%s\"", s->model_type);
    for (size_t i = 0; i < GR_LEN(ids); i++) {
        const json_t *v = json_object_get(j->root, ids[i]);
        if (v) said[i] = json_dumps(v, JSON_ENCODE_ANY);
    }
    const bool found = gr_json_into(j, "text_config"); /* as where the shape was read */
    assert(found);
    (void)found;
    gr_str_add(text, j->text + j->at, value_length(j->text + j->at));
    gr_str_putc(text, '\n');
    for (size_t i = 0; i < GR_LEN(ids); i++) {
        if (said[i] && !json_object_get(j->root, ids[i])) set_key(text, ids[i], said[i]);
        free(said[i]);
    }
    set_key(text, "model_type", type);
    set_architecture(text, s);
    free(type);
}

/* A config must not promise layers that what is written lacks. ahead: those that it has; NULL: none. root:
 * what text says. */
static void set_ahead(gr_str *text, const gr_json *j, const gr_ahead *ahead, gr_diag *d)
{
    for (size_t i = 0; gr_ahead_keys[i]; i++) {
        const char *key = gr_ahead_keys[i];
        const json_int_t said = json_integer_value(json_object_get(j->root, key));
        const uint64_t n = ahead ? gr_ahead_layers(ahead, i) : 0;
        char number[24];
        snprintf(number, sizeof(number), "%llu", (unsigned long long)n);
        if (said < 0 || (uint64_t)said == n) continue;
        set_key(text, key, number);
        if (!ahead)
            gr_diag_warn(d, gr_json_at(j, key),
                         "'%s' is %lld, and 0 in what is written: layers that predict further tokens are not "
                         "in it; 'graphrun export --mtp FOLDER' copies them from the checkpoint in FOLDER",
                         key, (long long)said);
    }
}

/* What becomes of the layers that a config promises beside the model. */
typedef struct promised {
    bool kept; /* they stay as they are said: what is written is a run's own */
    const gr_ahead *ahead;
} promised;

/* The config of what is written, from that of what was read. */
static gr_status config_text(gr_str *text, const char *path, const gr_model_shape *s, gr_st_dtype dtype,
                             promised p, gr_diag *d)
{
    gr_json j;
    gr_status st = gr_json_read(&j, path, d);
    if (st) return st;
    const char *type = json_string_value(json_object_get(j.root, "model_type"));
    if (type && strcmp(type, s->model_type) != 0)
        set_text(text, &j, s);
    else
        gr_str_add(text, j.text, j.n);
    set_dtype(text, j.root, dtype);
    if (s->head == GR_HEAD_VALUE) set_value_head(text, j.root, s);
    remove_key(text, "quantization_config"); /* it is widened */
    if (!p.kept) set_ahead(text, &j, p.ahead, d);
    gr_json_release(&j);
    return GR_OK;
}

static gr_status write_config(const char *dir, const gr_model_shape *s, const char *config,
                              const char *tokenizer, gr_st_dtype dtype, promised p, gr_diag *d)
{
    const char *slash = strrchr(config, '/');
    char *from = is_folder(config) ? gr_strdup(config)
                 : slash           ? gr_strndup(config, (size_t)(slash - config) + 1)
                                   : gr_strdup(".");
    char *path = is_folder(config) ? gr_printf("%s/config.json", config) : gr_strdup(config);
    char *to = gr_printf("%s/config.json", dir);
    bool found = false;
    gr_str text = {0};
    gr_status st = config_text(&text, path, s, dtype, p, d);
    if (!st) st = gr_file_write(to, text.text, text.len, d);
    if (!st) st = gr_file_copy(from, "generation_config.json", dir, &found, d);
    if (!st && tokenizer) st = copy_tokenizer(tokenizer, dir, d);
    gr_str_release(&text);
    free(to);
    free(path);
    free(from);
    return st;
}

gr_status gr_checkpoint_write_config(const char *dir, const gr_model_shape *s, const char *config,
                                     const char *tokenizer, gr_st_dtype dtype, gr_diag *d)
{
    return write_config(dir, s, config, tokenizer, dtype, (promised){.kept = true}, d);
}

/* ---- init and export ----------------------------------------------------------------------------------- */

struct stream {
    const gr_model_shape *shape;
    const gr_weights *weights; /* NULL: random */
    uint64_t seed;
    float *buffer;              /* of the largest bucket */
    const gr_weights *adapters; /* merged into the weights, of this shape; NULL: none */
    const gr_model_shape *adapters_shape;
    const gr_ahead *ahead; /* goes with the weights; NULL: none */
};

/* A bucket of weights with its adapters, of which no copy is kept. */
static gr_status merge_bucket(const struct stream *s, uint32_t bucket, gr_diag *d)
{
    const gr_adapter_desc *desc = &s->adapters_shape->adapter;
    const uint64_t n = gr_bucket_elems(s->adapters_shape, bucket);
    gr_adapter a[GR_N_TARGETS];
    if (!n) return GR_OK;
    float *x = gr_malloc(n * sizeof(*x));
    gr_status st = gr_weights_read_bucket(s->adapters, bucket, x, d);
    const size_t count = st ? 0 : gr_adapters_of(s->shape, s->adapters_shape, bucket, a);
    for (size_t i = 0; i < count; i++)
        for (uint64_t r = 0; r < a[i].rows; r++)
            for (uint32_t k = 0; k < desc->rank; k++)
                gr_simd_best()->axpy(s->buffer + a[i].w + r * a[i].in, x + a[i].a + (uint64_t)k * a[i].in,
                                     desc->scale * x[a[i].b + r * desc->rank + k], a[i].in);
    for (gr_tensor_slot slot = GR_T_VALUE; slot <= GR_T_VALUE_BIAS && !st; slot++) {
        const uint64_t from = gr_tensor_offset(s->adapters_shape, bucket, slot),
                       to = gr_tensor_offset(s->shape, bucket, slot);
        const size_t elems = slot == GR_T_VALUE ? s->shape->hidden : 1;
        if (from != UINT64_MAX) memcpy(s->buffer + to, x + from, elems * sizeof(*x));
    }
    free(x);
    return st;
}

static gr_status next_bucket(void *ctx, size_t set, uint32_t bucket, const float **elems, gr_diag *d)
{
    struct stream *s = ctx;
    (void)set;
    *elems = s->buffer;
    if (s->weights) {
        gr_status st = gr_weights_read_bucket(s->weights, bucket, s->buffer, d);
        return st || !s->adapters ? st : merge_bucket(s, bucket, d);
    }
    gr_weights_random_bucket(NULL, s->shape, s->seed, bucket, s->buffer);
    return GR_OK;
}

static gr_status take_buffer(struct stream *s, gr_diag *d)
{
    uint64_t most = 0;
    for (uint32_t b = 0; b < gr_model_buckets(s->shape); b++)
        most = GR_MAX(most, gr_bucket_elems(s->shape, b));
    s->buffer = malloc(most * sizeof(*s->buffer));
    if (s->buffer) return GR_OK;
    char text[32];
    return gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "cannot take %s for the largest bucket of the model",
                         gr_bytes_format(most * sizeof(*s->buffer), text));
}

/* Make the folder path from a stream of buckets. */
static gr_status write_folder(const char *path, struct stream *s, const char *config, const char *tokenizer,
                              gr_st_dtype dtype, uint64_t shard_bytes, gr_diag *d)
{
    const char *no_prefix = "";
    gr_weights_source from = {next_bucket, s, &no_prefix, 1, s->ahead};
    folder f = {.fd = -1};
    gr_status st = take_buffer(s, d);
    if (!st) st = folder_begin(&f, path, d);
    if (!st) st = write_config(f.aside, s->shape, config, tokenizer, dtype, (promised){.ahead = s->ahead}, d);
    if (!st) st = gr_weights_write(s->shape, f.aside, "model", &from, dtype, shard_bytes, d);
    if (!st) st = folder_finish(&f, d);
    folder_release(&f);
    free(s->buffer);
    return st;
}

/* The layer beside a random model that predicts a further token, of a file that has no name any more. */
static gr_status random_ahead(gr_ahead **out, const char *path, const struct stream *model,
                              const char *config, gr_diag *d)
{
    const char *no_prefix = "";
    const gr_model_shape one = gr_ahead_shape(model->shape);
    struct stream s = {.shape = &one, .seed = model->seed};
    const gr_weights_source from = {next_bucket, &s, &no_prefix, 1, NULL};
    folder f = {.fd = -1};
    gr_status st = take_buffer(&s, d);
    if (!st) st = folder_begin(&f, path, d);
    if (!st) st = write_config(f.aside, model->shape, config, NULL, GR_ST_F32, (promised){.kept = true}, d);
    if (!st) st = gr_weights_write(&one, f.aside, "model", &from, GR_ST_F32, 0, d);
    if (!st) st = gr_ahead_open(out, model->shape, f.aside, d);
    folder_release(&f);
    free(s.buffer);
    return st;
}

gr_status gr_checkpoint_init(const char *path, const char *config, const char *tokenizer, uint64_t seed,
                             gr_diag *d)
{
    gr_model_shape shape;
    gr_status st = gr_model_shape_read(&shape, config, d);
    if (st) return st;
    gr_ahead *ahead = NULL;
    struct stream s = {.shape = &shape, .seed = seed};
    if (shape.n_ahead == 1) st = random_ahead(&ahead, path, &s, config, d);
    s.ahead = ahead;
    if (!st) st = write_folder(path, &s, config, tokenizer, GR_ST_F32, 0, d);
    gr_ahead_free(ahead);
    return st;
}

/* The layers that e asks for, beside a model of s. */
static gr_status open_ahead(gr_ahead **out, const gr_export *e, const gr_model_shape *s, gr_diag *d)
{
    return e->ahead ? gr_ahead_open(out, s, e->ahead, d) : GR_OK;
}

gr_status gr_checkpoint_export(const gr_export *e, gr_diag *d)
{
    gr_model_shape shape;
    gr_weights *w = NULL;
    gr_ahead *ahead = NULL;
    gr_manifest *m = NULL;
    const gr_seal *seal = NULL;
    gr_status st = gr_checkpoint_beside(&m, &seal, e->from, e->accept, d);
    if (!st) st = gr_model_shape_read(&shape, e->from, d);
    if (!st) st = gr_weights_open(&w, &shape, e->from, "", d);
    if (!st && seal) st = gr_weights_hold(w, seal, d);
    if (!st) st = open_ahead(&ahead, e, &shape, d);
    struct stream s = {.shape = &shape, .weights = w, .ahead = ahead};
    if (!st) st = write_folder(e->path, &s, e->from, e->from, e->dtype, e->shard_bytes, d);
    gr_ahead_free(ahead);
    gr_weights_free(w);
    gr_manifest_free(m);
    return st;
}

/* In peft's form, with the config as it is. */
static gr_status write_adapters(const gr_export *e, struct stream *s, gr_diag *d)
{
    const char *no_prefix = "";
    gr_weights_source source = {next_bucket, s, &no_prefix, 1, NULL};
    folder f = {.fd = -1};
    bool found = false;
    gr_status st = take_buffer(s, d);
    if (!st) st = folder_begin(&f, e->path, d);
    if (!st) st = gr_file_copy(e->from, GR_PEFT_CONFIG, f.aside, &found, d);
    if (!st) st = gr_weights_write(s->shape, f.aside, GR_PEFT_STEM, &source, e->dtype, 0, d);
    if (!st) st = folder_finish(&f, d);
    folder_release(&f);
    free(s->buffer);
    return st;
}

static gr_status write_merged(const gr_export *e, const char *base, struct stream *s, gr_diag *d)
{
    gr_weights *w = NULL;
    gr_ahead *ahead = NULL;
    gr_status st = gr_weights_open(&w, s->shape, base, "", d);
    s->weights = w;
    if (!st) st = open_ahead(&ahead, e, s->shape, d);
    s->ahead = ahead;
    if (!st) st = write_folder(e->path, s, base, base, e->dtype, e->shard_bytes, d);
    gr_ahead_free(ahead);
    gr_weights_free(w);
    return st;
}

gr_status gr_checkpoint_export_adapters(const gr_export *e, bool merge, gr_diag *d)
{
    char *base = NULL, *file = gr_printf("%s/" GR_PEFT_STEM ".safetensors", e->from);
    gr_model_shape shape, adapters;
    gr_peft peft;
    gr_weights *w = NULL;
    gr_manifest *m = NULL;
    const gr_seal *seal = NULL;
    gr_status st = gr_checkpoint_beside(&m, &seal, e->from, e->accept, d);
    if (!st) st = gr_peft_base(&base, &shape, e->from, d);
    if (!st) st = gr_peft_read(&peft, e->from, &shape, d);
    if (!st && merge && peft.nf4)
        st = gr_diag_error(
            d, (gr_loc){e->from, 0, 0}, GR_E_INVALID,
            "--merge of adapters that were trained beside weights in NF4 is not built: beside '%s' "
            "as it is they make another model than the one that was trained; export without "
            "--merge, and load the base in 4 bits (NF4, double quantisation) beneath them",
            base);
    if (!st) adapters = gr_peft_shape(&peft, &shape);
    if (!st) st = gr_weights_open(&w, &adapters, file, "", d);
    if (!st && seal) st = gr_weights_hold(w, seal, d);
    struct stream alone = {.shape = &adapters, .weights = w},
                  merged = {.shape = &shape, .adapters = w, .adapters_shape = &adapters};
    if (!st) st = merge ? write_merged(e, base, &merged, d) : write_adapters(e, &alone, d);
    gr_weights_free(w);
    gr_manifest_free(m);
    free(file);
    free(base);
    return st;
}

/* ---- finding a run's checkpoints ----------------------------------------------------------------------- */

/* RUN/checkpoints/step-N of the largest N; NULL: there is none. */
static gr_status last_step(char **out, const char *run, gr_diag *d)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    gr_status st = gr_checkpoint_list(&steps, &n, run, d);
    *out = !st && n ? gr_checkpoint_path(run, steps[n - 1]) : NULL;
    free(steps);
    return st;
}

/* The same of what is behind RUN@. */
static gr_status step_at(char **out, const char *run, const char *at, gr_diag *d)
{
    uint64_t step;
    gr_status st = gr_checkpoint_step(&step, run, at, d);
    *out = st ? NULL : gr_checkpoint_path(run, step);
    return st;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = gr_printf("%s/%s", dir, name);
    bool there = gr_path_exists(path);
    free(path);
    return there;
}

static bool has_model(const char *dir)
{
    return has_file(dir, "config.json") || gr_peft_is(dir);
}

typedef struct model_names {
    gr_str list; /* quoted */
    char *last, *trained;
    size_t n, n_trained; /* trained: with an optimizer's state; others follow these */
} model_names;

static void note_name(char **last, size_t *n, const char *name)
{
    free(*last);
    *last = gr_strdup(name);
    ++*n;
}

static gr_status add_model(void *user, const char *step, const char *name, gr_diag *d)
{
    model_names *m = user;
    char *dir = gr_printf("%s/%s", step, name);
    (void)d;
    if (name[0] != '.' && has_model(dir)) {
        gr_str_printf(&m->list, "%s'%s'", m->n ? ", " : "", name);
        note_name(&m->last, &m->n, name);
        if (has_file(dir, "optimizer.safetensors")) note_name(&m->trained, &m->n_trained, name);
    }
    free(dir);
    return GR_OK;
}

static gr_status find_model(char **out, const char *step, const char *model, gr_diag *d)
{
    model_names m = {0};
    char *path = model ? gr_printf("%s/%s", step, model) : NULL;
    gr_status st = gr_dir_each(step, add_model, &m, d);
    if (!st && m.n == 0)
        st = gr_diag_error(d, (gr_loc){step, 0, 0}, GR_E_INVALID, "no checkpoint of a model");
    else if (!st && model && (strchr(model, '/') || !has_model(path)))
        st = gr_diag_error(d, (gr_loc){step, 0, 0}, GR_E_INVALID, "no model '%s'; it has %s", model,
                           m.list.text);
    else if (!st && !model && m.n > 1 && m.n_trained != 1)
        st = gr_diag_error(d, (gr_loc){step, 0, 0}, GR_E_INVALID, "it has several models, choose one: %s",
                           m.list.text);
    else if (!st)
        *out = gr_printf("%s/%s", step, model ? model : m.n > 1 ? m.trained : m.last);
    free(path);
    free(m.last);
    free(m.trained);
    gr_str_release(&m.list);
    return st;
}

/* at: what stands behind RUN@; NULL: the last step was asked for. */
static gr_status no_step(const char *run, const char *at, gr_diag *d)
{
    enum { SHOWN = 20 };
    uint64_t *steps = NULL;
    size_t n = 0;
    gr_str there = {0};
    if (!gr_checkpoint_list(&steps, &n, run, NULL) && n) {
        gr_str_puts(&there, n > SHOWN ? "; the last it has are" : "; it has");
        for (size_t i = n > SHOWN ? n - SHOWN : 0; i < n; i++)
            gr_str_printf(&there, " %llu", (unsigned long long)steps[i]);
    }
    gr_status st =
        !at ? gr_diag_error(d, (gr_loc){run, 0, 0}, GR_E_INVALID, "no checkpoint in its folder 'checkpoints'")
            : gr_diag_error(d, (gr_loc){run, 0, 0}, GR_E_INVALID,
                            "no checkpoint %s %s in its folder 'checkpoints'%s",
                            strcmp(at, "best") ? "of step" : "called", at, there.len ? there.text : "");
    gr_str_release(&there);
    free(steps);
    return st;
}

char *gr_checkpoint_run(const char *spec, const char **at)
{
    const char *mark = is_folder(spec) ? NULL : strrchr(spec, '@');
    size_t n = mark ? (size_t)(mark - spec) : strlen(spec);
    while (n > 1 && spec[n - 1] == '/') n--;
    *at = mark ? mark + 1 : NULL;
    return gr_strndup(spec, n);
}

/* RUN/checkpoints/step-N or RUN/checkpoints/best, which may not be there. */
static char *path_of(const char *run, const char *at)
{
    return gr_printf("%s/checkpoints/%s%s", run, strcmp(at, "best") ? "step-" : "", at);
}

gr_status gr_checkpoint_step(uint64_t *step, const char *run, const char *at, gr_diag *d)
{
    char *path = path_of(run, at), *real = gr_path_real(path), *slash = real ? strrchr(real, '/') : NULL;
    gr_status st =
        slash && is_folder(path) && gr_checkpoint_number(slash + 1, step) ? GR_OK : no_step(run, at, d);
    free(real);
    free(path);
    return st;
}

gr_status gr_checkpoint_find(char **out, const char *spec, const char *model, gr_diag *d)
{
    const char *at;
    char *run = gr_checkpoint_run(spec, &at);
    char *step = has_file(run, "state.json") ? gr_strdup(run) : NULL; /* a step's own folder */
    gr_status st = step ? GR_OK : at ? step_at(&step, run, at, d) : last_step(&step, run, d);
    if (!st) st = step && is_folder(step) ? find_model(out, step, model, d) : no_step(run, at, d);
    free(step);
    free(run);
    return st;
}
