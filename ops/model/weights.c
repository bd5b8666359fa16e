/* A model's weights in safetensors: names, what must be there, reading, random ones, writing. */
#include "ops/model/weights.h"

#include "ops/simd/simd.h"
#include "runtime/base/half.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX   20          /* tensors named in one message */
#define BLOCK_ELEMS (1u << 16u) /* looked at while they are in a core's cache */

struct gr_weights {
    gr_model_shape shape;
    char *prefix;
    gr_safetensors *file;
    const char *head; /* the name that the value head has there; NULL: it has none */
};

void gr_weights_free(gr_weights *w)
{
    if (!w) return;
    gr_safetensors_free(w->file);
    free(w->prefix);
    free(w);
}

/* ---- names -------------------------------------------------------------------------------------------- */

#define HEAD "score." /* what gr_bucket_tensors calls a value head */

/* Whether a tensor is the value head's; *kind: "weight" or "bias". */
static bool is_head(const char *name, const char **kind)
{
    bool head = !strncmp(name, HEAD, strlen(HEAD));
    if (head && kind) *kind = name + strlen(HEAD);
    return head;
}

static const char *find_head(const gr_weights *w)
{
    static const char *const names[] = {
        "score", "classifier", "v_head.summary", "v_head", "value_head", "regression_head", NULL};
    for (const char *const *name = names; *name; name++) {
        char *weight = gr_printf("%s%s.weight", w->prefix, *name);
        bool there = gr_safetensors_find(w->file, weight) != NULL;
        free(weight);
        if (there) return *name;
    }
    return NULL;
}

/* The name of a tensor in the file; the caller frees it. */
static char *stored_name(const gr_weights *w, const char *name)
{
    const char *kind;
    if (w->head && is_head(name, &kind)) return gr_printf("%s%s.%s", w->prefix, w->head, kind);
    return gr_printf("%s%s", w->prefix, name);
}

/* What need not be there: the bias of a head, and a fresh head. */
static bool is_optional(const gr_weights *w, const char *name)
{
    const char *kind;
    return is_head(name, &kind) && (!strcmp(kind, "bias") || w->shape.fresh_head);
}

bool gr_weights_has_head(const gr_weights *w)
{
    return w->head != NULL;
}

/* ---- checking ----------------------------------------------------------------------------------------- */

struct names {
    gr_str text;
    size_t n;
};

static void add_name(struct names *list, const char *name)
{
    if (list->n++ < NAMED_MAX) gr_str_printf(&list->text, "%s'%s'", list->n > 1 ? ", " : "", name);
}

/* "3 tensors are WHAT: 'a', 'b', 'c'"; empties the list. */
static char *say_names(struct names *list, const char *what)
{
    gr_str s = {0};
    gr_str_printf(&s, "%zu tensor%s %s: %s", list->n, list->n == 1 ? " is" : "s are", what, list->text.text);
    if (list->n > NAMED_MAX) gr_str_printf(&s, " and %zu more", list->n - NAMED_MAX);
    gr_str_release(&list->text);
    list->n = 0;
    return s.text;
}

static int names_cmp(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names in checkpoints that carry nothing our model needs. */
static bool is_needless(const gr_weights *w, const char *name)
{
    bool no_matrix = w->shape.tied || w->shape.head == GR_HEAD_VALUE;
    return (no_matrix && !strcmp(name, "lm_head.weight")) || strstr(name, "rotary_emb");
}

static void warn_unexpected(const gr_weights *w, const char *const *known, size_t n, const char *path,
                            gr_diag *d)
{
    struct names unexpected = {0};
    size_t skip = strlen(w->prefix);
    for (size_t i = 0; i < gr_safetensors_count(w->file); i++) {
        const char *name = gr_safetensors_at(w->file, i)->name;
        if (strncmp(name, w->prefix, skip) != 0) continue; /* another set's */
        if (bsearch(&name, known, n, sizeof(*known), names_cmp) || is_needless(w, name + skip)) continue;
        add_name(&unexpected, name);
    }
    if (!unexpected.n) return;
    char *text = say_names(&unexpected, "not the model's and ignored");
    gr_diag_warn(d, (gr_loc){path, 0, 0}, "%s", text);
    free(text);
}

/* Elements [first, first + n) of two tensors of one shape. */
static gr_status compare_block(const gr_weights *w, const gr_st_tensor *a, const gr_st_tensor *b,
                               uint64_t first, uint64_t n, float *values, bool *same, gr_diag *d)
{
    const uint64_t rows = a->dims[0], cols = a->dims[1];
    gr_status st = gr_safetensors_read_part_f32(w->file, a->name, rows, cols, first, n, values, d);
    if (!st)
        st = gr_safetensors_read_part_f32(w->file, b->name, rows, cols, first, n, values + BLOCK_ELEMS, d);
    *same = !st && !memcmp(values, values + BLOCK_ELEMS, n * sizeof(*values));
    return st;
}

/* Whether an output matrix that is stored beside the embedding it is tied to is the same. */
static gr_status compare_tied(const gr_weights *w, const gr_st_tensor *embed, const gr_st_tensor *head,
                              gr_diag *d)
{
    const uint64_t n = embed->dims[0] * embed->dims[1];
    float *values = gr_malloc(2 * BLOCK_ELEMS * sizeof(*values));
    gr_status st = GR_OK;
    bool same = true;
    for (uint64_t i = 0; i < n && same && !st; i += BLOCK_ELEMS)
        st = compare_block(w, embed, head, i, GR_MIN(n - i, (uint64_t)BLOCK_ELEMS), values, &same, d);
    if (!st && !same)
        st = gr_diag_error(d, (gr_loc){head->file, 0, 0}, GR_E_INVALID,
                           "tensor '%s' differs from '%s', but config.json has 'tie_word_embeddings' true; "
                           "set it to false to "
                           "use both, or remove '%s'",
                           head->name, embed->name, head->name);
    free(values);
    return st;
}

static gr_status check_tied(const gr_weights *w, gr_diag *d)
{
    if (!w->shape.tied) return GR_OK;
    char *embed = gr_printf("%smodel.embed_tokens.weight", w->prefix),
         *head = gr_printf("%slm_head.weight", w->prefix);
    const gr_st_tensor *stored = gr_safetensors_find(w->file, head),
                       *tied = gr_safetensors_find(w->file, embed);
    gr_status st = GR_OK;
    if (stored && !gr_safetensors_want(w->file, head, w->shape.vocab, w->shape.hidden, d)) st = GR_E_INVALID;
    if (stored && !st) st = compare_tied(w, tied, stored, d);
    free(head);
    free(embed);
    return st;
}

/* ---- woven tensors, and those of sums (gr_tensor.weave, .sums) ------------------------------------------
 */

static uint64_t stored_rows(const gr_tensor *t)
{
    return t->weave ? UINT64_C(2) * t->rows : t->sums ? t->rows / t->sums : t->rows;
}

/* n of its elements, which begin and end with a sum's: to [n / sums]. Returns how many. */
static uint64_t sums_of(const gr_tensor *t, const float *elems, uint64_t n, float *to)
{
    static_assert(GR_SELECTION_PARTS == 4, "gr_tensor.sums");
    assert(t->sums == GR_SELECTION_PARTS && n % t->sums == 0 && n / t->sums <= GR_EXPERTS_MAX);
    for (uint64_t i = 0; i < n / t->sums; i++) to[i] = gr_selection_sum(elems + i * t->sums);
    return n / t->sums;
}

/* Where element i of a tensor stands in the checkpoint's; *run: how many stand one after another from there
 * on. */
static uint64_t stored_at(const gr_tensor *t, uint64_t i, uint64_t *run)
{
    const uint64_t span = (uint64_t)t->weave * GR_MAX(t->cols, 1u);
    *run = t->weave ? span - i % span : UINT64_MAX;
    return t->weave ? (i / span * 2 + t->phase) * span + i % span : i;
}

static gr_status check_names(const gr_weights *w, const char *path, gr_diag *d)
{
    gr_arena *arena = gr_arena_new();
    const char **known = NULL;
    size_t n = 0, cap = 0, n_bad = 0;
    struct names missing = {0};
    for (uint32_t b = 0; b < gr_model_buckets(&w->shape); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        size_t n_tensors = gr_bucket_tensors(&w->shape, b, t);
        for (size_t i = 0; i < n_tensors; i++) {
            char *stored = stored_name(w, t[i].name);
            const char *name = gr_arena_strdup(arena, stored);
            free(stored);
            GR_PUSH(known, n, cap, name);
            if (!gr_safetensors_find(w->file, name)) {
                if (!is_optional(w, t[i].name)) add_name(&missing, name);
            } else if (n_bad < NAMED_MAX) { /* one wrong size makes every layer wrong: no need to say it a
                                           thousand times */
                n_bad += !gr_safetensors_want(w->file, name, stored_rows(&t[i]), t[i].cols, d);
            }
        }
    }
    gr_status st = n_bad ? GR_E_INVALID : GR_OK;
    if (missing.n) {
        char *text = say_names(&missing, "missing");
        st = gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID, "%s", text);
        free(text);
    }
    qsort(known, n, sizeof(*known), names_cmp);
    warn_unexpected(w, known, n, path, d);
    free(known);
    gr_arena_free(arena);
    return st;
}

gr_status gr_weights_open(gr_weights **out, const gr_model_shape *s, const char *path, const char *prefix,
                          gr_diag *d)
{
    gr_weights *w = gr_calloc(1, sizeof(*w));
    w->shape = *s;
    w->prefix = gr_strdup(prefix);
    gr_status st = gr_safetensors_open(&w->file, path, d);
    if (!st && s->head == GR_HEAD_VALUE) w->head = find_head(w);
    if (!st) st = check_names(w, path, d);
    if (!st) st = check_tied(w, d);
    if (st) {
        gr_weights_free(w);
        return st;
    }
    *out = w;
    return GR_OK;
}

gr_status gr_weights_hold(gr_weights *w, const gr_seal *seal, gr_diag *d)
{
    return gr_safetensors_hold(w->file, seal, d);
}

/* ---- reading ------------------------------------------------------------------------------------------ */

gr_status gr_weights_read_bucket(const gr_weights *w, uint32_t bucket, float *dst, gr_diag *d)
{
    return gr_weights_read_part(w, bucket, 0, gr_bucket_elems(&w->shape, bucket), dst, d);
}

/* Of a tensor, what lies in elements [first, end) of its bucket; false: nothing. */
static bool overlap(const gr_tensor *t, uint64_t first, uint64_t end, uint64_t *from, uint64_t *to)
{
    uint64_t elems = (uint64_t)t->rows * GR_MAX(t->cols, 1u);
    *from = GR_MAX(first, t->offset);
    *to = GR_MIN(end, t->offset + elems);
    return *from < *to;
}

/* x holds the elements from first on of a tensor of cols columns; one of them is not finite. */
static gr_status not_finite(const gr_st_tensor *t, uint64_t first, uint64_t cols, const float *x, gr_diag *d)
{
    uint64_t i = 0;
    while (isfinite(x[i])) i++;
    const uint64_t at = first + i;
    char place[64];
    if (cols)
        snprintf(place, sizeof(place), "[%ju, %ju]", (uintmax_t)(at / cols), (uintmax_t)(at % cols));
    else
        snprintf(place, sizeof(place), "[%ju]", (uintmax_t)at);
    return gr_diag_error(d, (gr_loc){t->file, 0, 0}, GR_E_INVALID,
                         "tensor '%s': element %s is %s, but weights are finite numbers", t->name, place,
                         isnan(x[i]) ? "nan"
                         : x[i] < 0  ? "-inf"
                                     : "inf");
}

/* Elements [first, first + n) of a stored tensor, in blocks, each checked while it is in the cache. */
static gr_status read_finite(const gr_weights *w, const gr_st_tensor *stored, const gr_tensor *t,
                             uint64_t first, uint64_t n, float *dst, gr_diag *d)
{
    gr_status st = GR_OK;
    for (uint64_t i = 0, block; i < n && !st; i += block) {
        const uint64_t at = stored_at(t, first + i, &block);
        block = GR_MIN(GR_MIN(n - i, (uint64_t)BLOCK_ELEMS), block);
        st = gr_safetensors_read_part_f32(w->file, stored->name, stored_rows(t), t->cols, at, block, dst + i,
                                          d);
        if (!st && !gr_f32_all_finite(dst + i, block)) st = not_finite(stored, at, t->cols, dst + i, d);
    }
    return st;
}

/* The same of a tensor of sums: the parts of each. */
static gr_status read_sums(const gr_weights *w, const gr_st_tensor *stored, const gr_tensor *t,
                           uint64_t first, uint64_t n, float *dst, gr_diag *d)
{
    float sum[GR_EXPERTS_MAX], part[GR_SELECTION_PARTS];
    const uint64_t from = first / t->sums, end = (first + n + t->sums - 1) / t->sums;
    gr_tensor whole = *t;
    whole.rows /= t->sums;
    whole.sums = 0;
    const gr_status st = read_finite(w, stored, &whole, from, end - from, sum, d);
    for (uint64_t i = first; i < first + n && !st; i++) {
        gr_selection_parts(sum[i / t->sums - from], part);
        dst[i - first] = part[i % t->sums];
    }
    return st;
}

gr_status gr_weights_read_part(const gr_weights *w, uint32_t bucket, uint64_t first, uint64_t n, float *dst,
                               gr_diag *d)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n_tensors = gr_bucket_tensors(&w->shape, bucket, t);
    gr_status st = GR_OK;
    if (n) memset(dst, 0, n * sizeof(*dst));
    for (size_t i = 0; i < n_tensors && !st; i++) {
        uint64_t from, to;
        if (!overlap(&t[i], first, first + n, &from, &to)) continue;
        char *name = stored_name(w, t[i].name);
        const gr_st_tensor *stored = gr_safetensors_find(w->file, name);
        if (stored)
            st = (t[i].sums ? read_sums : read_finite)(w, stored, &t[i], from - t[i].offset, to - from,
                                                       dst + (from - first), d);
        free(name);
    }
    return st;
}

/* ---- random ------------------------------------------------------------------------------------------- */

struct fill {
    float *dst;
    uint64_t n;
    double std;
    uint64_t seed, stream;
};

static void fill_normal(void *arg, unsigned rank, unsigned size)
{
    const struct fill *f = arg;
    uint64_t first, last;
    gr_team_range(f->n, 4096, rank, size, &first, &last);
    const gr_simd *v = gr_simd_best();
    for (uint64_t i = first; i < last; i += GR_NORMALS) {
        float z[GR_NORMALS];
        v->normals(f->seed, f->stream, i / 4, f->std, z);
        memcpy(f->dst + i, z, GR_MIN(last - i, (uint64_t)GR_NORMALS) * sizeof(*z));
    }
}

static void random_tensor(gr_team *team, const gr_model_shape *s, uint64_t seed, const gr_tensor *t,
                          float *bucket)
{
    float *to = bucket + t->offset;
    if (t->cols) {
        struct fill f = {to, (uint64_t)t->rows * t->cols, s->init_std, seed, gr_stream(t->name) + t->phase};
        gr_team_run(team, fill_normal, &f);
        return;
    }
    for (uint32_t k = 0; k < t->rows; k++) to[k] = t->initial;
}

void gr_weights_random_bucket(gr_team *team, const gr_model_shape *s, uint64_t seed, uint32_t bucket,
                              float *dst)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n = gr_bucket_tensors(s, bucket, t);
    memset(dst, 0, gr_bucket_elems(s, bucket) * sizeof(*dst));
    for (size_t i = 0; i < n; i++) random_tensor(team, s, seed, &t[i], dst);
}

void gr_weights_random_head(gr_team *team, const gr_model_shape *s, uint64_t seed, float *dst)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n = gr_bucket_tensors(s, s->layers + 1, t);
    for (size_t i = 0; i < n; i++)
        if (is_head(t[i].name, NULL)) random_tensor(team, s, seed, &t[i], dst);
}

/* ---- writing ------------------------------------------------------------------------------------------ */

struct gr_weights_writer {
    gr_model_shape shape;
    size_t n_sets, puts;
    gr_st_writer *file;
};

static gr_st_spec *specs_of(const gr_model_shape *s, const char *const *prefix, size_t n_sets,
                            gr_arena *arena, size_t *n)
{
    gr_st_spec *specs = NULL;
    size_t cap = 0;
    *n = 0;
    for (uint32_t b = 0; b < gr_model_buckets(s); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        size_t n_tensors = gr_bucket_tensors(s, b, t);
        for (size_t set = 0; set < n_sets; set++)
            for (size_t i = 0; i < n_tensors; i++) {
                if (t[i].phase) continue;
                const char *name = gr_arena_printf(arena, "%s%s", prefix[set], t[i].name);
                GR_PUSH(specs, *n, cap,
                        ((gr_st_spec){name, stored_rows(&t[i]), t[i].cols, t[i].thin, t[i].sums != 0}));
            }
    }
    return specs;
}

/* A file that another writer has begun, or a new one. */
static gr_status open_writer(gr_weights_writer **out, const gr_model_shape *s, const char *dir,
                             const char *stem, const char *const *prefix, size_t n_sets, bool begun,
                             gr_st_dtype dtype, uint64_t shard_bytes, gr_diag *d)
{
    gr_arena *arena = gr_arena_new();
    size_t n;
    gr_st_spec *specs = specs_of(s, prefix, n_sets, arena, &n);
    gr_weights_writer *w = gr_calloc(1, sizeof(*w));
    w->shape = *s;
    w->n_sets = n_sets;
    gr_status st = begun ? gr_st_writer_join(&w->file, dir, stem, specs, n, d)
                         : gr_st_writer_new(&w->file, dir, stem, dtype, specs, n, shard_bytes, d);
    if (st)
        gr_weights_writer_free(w);
    else
        *out = w;
    free(specs);
    gr_arena_free(arena);
    return st;
}

gr_status gr_weights_writer_new(gr_weights_writer **out, const gr_model_shape *s, const char *dir,
                                const char *stem, const char *const *prefix, size_t n_sets, gr_st_dtype dtype,
                                uint64_t shard_bytes, gr_diag *d)
{
    return open_writer(out, s, dir, stem, prefix, n_sets, false, dtype, shard_bytes, d);
}

gr_status gr_weights_writer_join(gr_weights_writer **out, const gr_model_shape *s, const char *dir,
                                 const char *stem, const char *const *prefix, size_t n_sets, gr_diag *d)
{
    return open_writer(out, s, dir, stem, prefix, n_sets, true, GR_ST_F32, 0, d);
}

gr_seal *gr_weights_seal_new(const gr_model_shape *s, const char *const *prefix, size_t n_sets)
{
    gr_arena *arena = gr_arena_new();
    gr_seal *seal = gr_seal_new();
    size_t n;
    gr_st_spec *specs = specs_of(s, prefix, n_sets, arena, &n);
    for (size_t i = 0; i < n; i++)
        gr_seal_add(seal, specs[i].name, specs[i].rows * GR_MAX(specs[i].cols, UINT64_C(1)) * sizeof(float));
    free(specs);
    gr_arena_free(arena);
    return seal;
}

void gr_weights_writer_seal(gr_weights_writer *w, gr_seal *seal)
{
    gr_st_writer_seal(w->file, seal);
}

/* How many of the first n tensors of a bucket a file has. */
static size_t count_stored(const gr_tensor *t, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += t[i].phase == 0;
    return count;
}

/* Which of them tensor i is: that of its first part. */
static size_t stored_index(const gr_tensor *t, size_t i)
{
    const char *name = t[i].name;
    while (t[i].phase || strcmp(t[i].name, name) != 0) i--;
    return count_stored(t, i);
}

/* Tensors of a file go bucket by bucket, and in each set by set. */
static size_t first_tensor(const gr_weights_writer *w, size_t set, uint32_t bucket)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n = 0;
    for (uint32_t b = 0; b < bucket; b++)
        n += w->n_sets * count_stored(t, gr_bucket_tensors(&w->shape, b, t));
    return n + set * count_stored(t, gr_bucket_tensors(&w->shape, bucket, t));
}

/* Parts of a bucket end at multiples of 64 elements, so with a sum. */
static gr_status put_sums(gr_weights_writer *w, gr_team *team, size_t i, const gr_tensor *t, uint64_t first,
                          uint64_t n, const float *elems, gr_diag *d)
{
    float sum[GR_EXPERTS_MAX];
    assert(first % t->sums == 0);
    return gr_st_writer_put_part(w->file, team, i, first / t->sums, sums_of(t, elems, n, sum), sum, d);
}

gr_status gr_weights_writer_put_part(gr_weights_writer *w, gr_team *team, size_t set, uint32_t bucket,
                                     uint64_t first, uint64_t n, const float *elems, gr_diag *d)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n_tensors = gr_bucket_tensors(&w->shape, bucket, t), at = first_tensor(w, set, bucket);
    gr_status st = GR_OK;
    for (size_t i = 0; i < n_tensors && !st; i++) {
        uint64_t from, to;
        if (!overlap(&t[i], first, first + n, &from, &to)) continue;
        if (t[i].sums) {
            st = put_sums(w, team, at + stored_index(t, i), &t[i], from - t[i].offset, to - from,
                          elems + (from - first), d);
            continue;
        }
        for (uint64_t run; from < to && !st; from += run) {
            const uint64_t stored = stored_at(&t[i], from - t[i].offset, &run);
            run = GR_MIN(run, to - from);
            st = gr_st_writer_put_part(w->file, team, at + stored_index(t, i), stored, run,
                                       elems + (from - first), d);
        }
    }
    return st;
}

gr_status gr_weights_writer_finish(gr_weights_writer *w, gr_diag *d)
{
    return gr_st_writer_finish(w->file, d);
}

void gr_weights_writer_free(gr_weights_writer *w)
{
    if (!w) return;
    gr_st_writer_free(w->file);
    free(w);
}

/* Tensor i and the other of its name, as one. */
static gr_status put_woven(gr_weights_writer *w, const gr_tensor *t, size_t n, size_t i, const float *elems,
                           gr_diag *d)
{
    const uint64_t each = (uint64_t)t[i].rows * GR_MAX(t[i].cols, 1u);
    float *woven = gr_malloc(2 * each * sizeof(*woven));
    for (size_t j = i; j < n; j++) {
        if (strcmp(t[j].name, t[i].name) != 0) continue;
        for (uint64_t e = 0, run; e < each; e += run) {
            float *to = woven + stored_at(&t[j], e, &run);
            memcpy(to, elems + t[j].offset + e, run * sizeof(*to));
        }
    }
    const gr_status st = gr_st_writer_put(w->file, woven, d);
    free(woven);
    return st;
}

static gr_status put_one(gr_weights_writer *w, const gr_tensor *t, size_t n, size_t i, const float *elems,
                         gr_diag *d)
{
    float sum[GR_EXPERTS_MAX];
    if (t[i].weave) return put_woven(w, t, n, i, elems, d);
    if (!t[i].sums) return gr_st_writer_put(w->file, elems + t[i].offset, d);
    sums_of(&t[i], elems + t[i].offset, t[i].rows, sum);
    return gr_st_writer_put(w->file, sum, d);
}

static gr_status put_bucket(gr_weights_writer *w, uint32_t bucket, const float *elems, gr_diag *d)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n = gr_bucket_tensors(&w->shape, bucket, t);
    gr_status st = GR_OK;
    assert(bucket == w->puts / w->n_sets); /* the file has its tensors in this order */
    w->puts++;
    for (size_t i = 0; i < n && !st; i++)
        if (!t[i].phase) st = put_one(w, t, n, i, elems, d);
    return st;
}

gr_status gr_weights_write(const gr_model_shape *s, const char *dir, const char *stem,
                           const gr_weights_source *from, gr_st_dtype dtype, uint64_t shard_bytes, gr_diag *d)
{
    gr_weights_writer *w = NULL;
    gr_status st = gr_weights_writer_new(&w, s, dir, stem, from->prefix, from->n_sets, dtype, shard_bytes, d);
    for (uint32_t b = 0; b < gr_model_buckets(s) && !st; b++)
        for (size_t set = 0; set < from->n_sets && !st; set++) {
            const float *elems = NULL;
            st = from->bucket(from->ctx, set, b, &elems, d);
            if (!st) st = put_bucket(w, b, elems, d);
        }
    if (!st) st = gr_weights_writer_finish(w, d);
    gr_weights_writer_free(w);
    return st;
}
