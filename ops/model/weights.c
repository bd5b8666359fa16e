/* A model's weights in safetensors: names, what must be there, reading, random ones, writing. */
#include "ops/model/weights.h"

#include "ops/model/arch.h"
#include "ops/model/scales.h"
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
    const char
        *base; /* what tensors' names begin with there instead of "model.", "lm_head." behind `above` */
    const char *above;
    gr_experts_form form; /* of its experts */
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

#define BODY "model."

/* The name of a tensor in the file; the caller frees it. */
static char *stored_name(const gr_weights *w, const char *name)
{
    const char *kind;
    if (w->head && is_head(name, &kind)) return gr_printf("%s%s.%s", w->prefix, w->head, kind);
    if (!strncmp(name, BODY, strlen(BODY)))
        return gr_printf("%s%s%s", w->prefix, w->base, name + strlen(BODY));
    return gr_printf("%s%s%s", w->prefix, is_head(name, NULL) ? "" : w->above, name);
}

static bool has(const gr_weights *w, const char *name)
{
    char *stored = stored_name(w, name);
    const bool there = gr_safetensors_find(w->file, stored) != NULL;
    free(stored);
    return there;
}

/* Where a model of text and images has its text, as transformers 5 and 4 write it. */
static void find_base(gr_weights *w)
{
    static const struct {
        const char *base, *above;
    } places[] = {{BODY, ""}, {"model.language_model.", ""}, {"language_model.model.", "language_model."}};
    const gr_arch *a = gr_arch_find(w->shape.model_type);
    const size_t n = a && a->outer ? GR_LEN(places) : 1;
    for (size_t i = 0; i <= n; i++) { /* where there is none, the first */
        w->base = places[i % n].base;
        w->above = places[i % n].above;
        if (has(w, "model.embed_tokens.weight")) return;
    }
}

static size_t list(const gr_weights *w, uint32_t bucket, gr_tensor t[GR_BUCKET_TENSORS_MAX])
{
    return gr_bucket_tensors_as(&w->shape, bucket, w->form, t);
}

/* A matrix whose values are in blocks, under other names. */
static bool in_blocks(const gr_weights *w, const gr_tensor *t)
{
    return w->form == GR_EXPERTS_MXFP4 && t->woven.depth && t->cols;
}

/* "NAME_blocks" or "NAME_scales"; the caller frees it. */
static char *blocks_name(const gr_weights *w, const gr_tensor *t, const char *what)
{
    char *name = stored_name(w, t->name), *full = gr_printf("%s_%s", name, what);
    free(name);
    return full;
}

static bool is_fused(const gr_weights *w, const gr_tensor *t)
{
    if (!in_blocks(w, t)) return has(w, t->name);
    char *name = blocks_name(w, t, "blocks");
    const bool there = gr_safetensors_find(w->file, name) != NULL;
    free(name);
    return there;
}

/* As the first layer of experts has them. */
static void find_form(gr_weights *w)
{
    const gr_arch *a = gr_arch_find(w->shape.model_type);
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    uint32_t l = 0;
    while (l < w->shape.layers && gr_layer(&w->shape, l)->mlp != GR_MLP_EXPERTS) l++;
    if (!a || l == w->shape.layers) return;
    for (gr_experts_form form = GR_EXPERTS_FUSED; form <= (a->mxfp4 ? GR_EXPERTS_MXFP4 : GR_EXPERTS_FUSED);
         form++) {
        w->form = form;
        size_t i = 0, n = list(w, l + 1, t);
        while (i < n && !(t[i].woven.depth && t[i].cols)) i++;
        if (i < n && is_fused(w, &t[i])) return;
    }
    w->form = GR_EXPERTS_EACH;
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
    const size_t skip = strlen(w->above);
    const bool matrix = !strncmp(name, w->above, skip) && !strcmp(name + skip, "lm_head.weight");
    return (no_matrix && matrix) || strstr(name, "rotary_emb");
}

static bool begins(const char *name, const char *const *with)
{
    for (; *with; with++)
        if (!strncmp(name, *with, strlen(*with))) return true;
    return false;
}

/* What a checkpoint may have beside the model, each said in words of its own. */
enum { OTHERS, IMAGES, AHEAD, SCALES, KEYS, N_BESIDE };

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n >= m && !strcmp(name + n - m, with);
}

/* Of a layer that takes the keys and values of another: projections that it has no use for. */
static bool is_of_taken_keys(const gr_weights *w, const char *name)
{
    const char *layer = strstr(name, "layers.");
    unsigned l;
    int end = 0;
    if (!layer || sscanf(layer, "layers.%u.self_attn.%n", &l, &end) != 1 || !end) return false;
    if (l >= w->shape.layers || gr_layer(&w->shape, l)->attention.keys != GR_KEYS_TAKEN) return false;
    return !strncmp(layer + end, "k_", 2) || !strncmp(layer + end, "v_", 2);
}

static int what_beside(const gr_weights *w, const char *name)
{
    static const char *const images[] = {"model.visual.",
                                         "visual.",
                                         "model.vision_tower.",
                                         "vision_tower.",
                                         "model.multi_modal_projector.",
                                         "multi_modal_projector.",
                                         "model.audio_tower.",
                                         "model.embed_vision.",
                                         "model.embed_audio.",
                                         NULL};
    const gr_arch *a = gr_arch_find(w->shape.model_type);
    if (a && a->outer && begins(name, images)) return IMAGES;
    if (ends(name, ".activation_scale") || ends(name, ".input_scale")) return SCALES;
    if (is_of_taken_keys(w, name)) return KEYS;
    return gr_ahead_is(&w->shape, name) ? AHEAD : OTHERS;
}

static void warn_unexpected(const gr_weights *w, const char *const *known, size_t n, const char *path,
                            gr_diag *d)
{
    static const char *const words[] = {
        "not the model's and ignored", "of images or sound and left out: the model is its text part alone",
        "of layers that predict further tokens and left out: they are not the model's, and never trained",
        "for activations in FP8 and left out: weights are widened",
        "of layers that take the keys and values of another, and left out: nothing reads them"};
    struct names beside[N_BESIDE] = {0};
    size_t skip = strlen(w->prefix);
    for (size_t i = 0; i < gr_safetensors_count(w->file); i++) {
        const char *name = gr_safetensors_at(w->file, i)->name;
        if (strncmp(name, w->prefix, skip) != 0) continue; /* another set's */
        if (bsearch(&name, known, n, sizeof(*known), names_cmp) || is_needless(w, name + skip)) continue;
        add_name(&beside[what_beside(w, name + skip)], name);
    }
    for (int i = 0; i < N_BESIDE; i++) {
        if (!beside[i].n) continue;
        char *text = say_names(&beside[i], words[i]);
        gr_diag_warn(d, (gr_loc){path, 0, 0}, "%s", text);
        free(text);
    }
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
    char *embed = stored_name(w, "model.embed_tokens.weight"), *head = stored_name(w, "lm_head.weight");
    const gr_st_tensor *stored = gr_safetensors_find(w->file, head),
                       *tied = gr_safetensors_find(w->file, embed);
    gr_status st = GR_OK;
    if (stored && !gr_safetensors_want(w->file, head, w->shape.vocab, w->shape.hidden, d)) st = GR_E_INVALID;
    if (stored && !st) st = compare_tied(w, tied, stored, d);
    free(head);
    free(embed);
    return st;
}

/* ---- woven tensors, and those of sums (gr_woven, gr_tensor.sums) ----------------------------------------
 */

static uint64_t stored_rows(const gr_tensor *t)
{
    return t->woven.run ? t->woven.rows : t->sums ? t->rows / t->sums : t->rows;
}

/* n of its elements, which begin and end with a sum's: to [n / sums]. Returns how many. */
static uint64_t sums_of(const gr_tensor *t, const float *elems, uint64_t n, float *to)
{
    assert(t->sums == GR_SELECTION_PARTS && n % t->sums == 0 && n / t->sums <= GR_EXPERTS_MAX);
    for (uint64_t i = 0; i < n / t->sums; i++) to[i] = gr_selection_sum(elems + i * t->sums);
    return n / t->sums;
}

/* Rows of one of `depth`; of the whole. */
static uint64_t rows_each(const gr_tensor *t)
{
    return stored_rows(t) / GR_MAX(t->woven.depth, 1u);
}

/* Its shape in the checkpoint; returns how many dimensions. */
static size_t stored_dims(const gr_tensor *t, uint64_t dims[3])
{
    const uint64_t each = rows_each(t), cols = t->cols;
    size_t n = 0;
    if (t->woven.depth) dims[n++] = t->woven.depth;
    dims[n++] = t->woven.turned ? cols : each;
    if (cols) dims[n++] = t->woven.turned ? each : cols;
    return n;
}

/* The row of the checkpoint's tensor that row r is. */
static uint64_t stored_row(const gr_woven *v, uint64_t r)
{
    return v->run ? v->first + r / v->run * v->period + r % v->run : r;
}

/* Where element i of a tensor that is not turned stands in the checkpoint's; *run: how many stand one after
 * another from there on. */
static uint64_t stored_at(const gr_tensor *t, uint64_t i, uint64_t *run)
{
    const uint64_t cols = GR_MAX(t->cols, 1u), span = t->woven.run * cols;
    *run = span ? span - i % span : UINT64_MAX;
    return stored_row(&t->woven, i / cols) * cols + i % cols;
}

/* ---- what must be there -------------------------------------------------------------------------------- */

/* In FP8, with scales beside it. */
static bool is_scaled(const gr_st_tensor *stored)
{
    return stored && stored->dtype == GR_ST_F8_E4M3;
}

static const gr_st_tensor *want(const gr_weights *w, const char *name, const gr_tensor *t, gr_diag *d)
{
    uint64_t dims[3];
    if (is_scaled(gr_safetensors_find(w->file, name)) && !t->sums && !t->woven.turned)
        return gr_scales_want(w->file, name, dims, stored_dims(t, dims), d);
    if (!t->woven.depth) return gr_safetensors_want(w->file, name, stored_rows(t), t->cols, d);
    return gr_safetensors_want_shape(w->file, name, dims, stored_dims(t, dims), d);
}

/* Values of a block, and bytes that they take. */
enum { BLOCK_VALUES = 32, BLOCK_BYTES = 16 };

/* blocks: else scales. */
static const gr_st_tensor *want_blocks(const gr_weights *w, const char *name, const gr_tensor *t, bool blocks,
                                       gr_diag *d)
{
    const uint64_t dims[] = {t->woven.depth, rows_each(t), t->cols / BLOCK_VALUES, BLOCK_BYTES};
    return gr_safetensors_want_bytes(w->file, name, dims, blocks ? 4 : 3, d);
}

/* Names in the file, sorted at last; missing ones; and how many are not as they should be. */
struct known {
    gr_arena *arena;
    const char **names;
    size_t n, cap, n_bad, n_scaled;
    struct names missing;
};

static void add_scales(const char *name, struct known *k)
{
    char *of = gr_scales_name(name);
    GR_PUSH(k->names, k->n, k->cap, gr_arena_strdup(k->arena, of));
    k->n_scaled++;
    free(of);
}

/* stored: freed here. part: of a tensor in blocks, 'b' or 's', else 0. */
static void check_name(const gr_weights *w, const gr_tensor *t, char *stored, char part, struct known *k,
                       gr_diag *d)
{
    const char *name = gr_arena_strdup(k->arena, stored);
    free(stored);
    if (t->woven.phase) return; /* the first of its parts is looked at */
    GR_PUSH(k->names, k->n, k->cap, name);
    if (is_scaled(gr_safetensors_find(w->file, name))) add_scales(name, k);
    if (!gr_safetensors_find(w->file, name)) {
        if (!is_optional(w, t->name)) add_name(&k->missing, name);
    } else if (k->n_bad < NAMED_MAX) { /* one wrong size makes every layer wrong: no need to say it a
                                          thousand times */
        k->n_bad += part ? !want_blocks(w, name, t, part == 'b', d) : !want(w, name, t, d);
    }
}

static void check_bucket(const gr_weights *w, uint32_t bucket, struct known *k, gr_diag *d)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    const size_t n = list(w, bucket, t);
    for (size_t i = 0; i < n; i++) {
        if (!in_blocks(w, &t[i])) {
            check_name(w, &t[i], stored_name(w, t[i].name), 0, k, d);
            continue;
        }
        check_name(w, &t[i], blocks_name(w, &t[i], "blocks"), 'b', k, d);
        check_name(w, &t[i], blocks_name(w, &t[i], "scales"), 's', k, d);
    }
}

/* Whole blocks alone. */
static gr_status check_blocks(const gr_weights *w, const char *path, gr_diag *d)
{
    for (uint32_t i = 0; w->form == GR_EXPERTS_MXFP4 && i < w->shape.n_kinds; i++)
        if (w->shape.hidden % BLOCK_VALUES || w->shape.kinds[i].experts.inner % BLOCK_VALUES)
            return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                                 "experts in MXFP4 need sizes that are multiples of %d: they have %u and %u",
                                 BLOCK_VALUES, w->shape.hidden, w->shape.kinds[i].experts.inner);
    return GR_OK;
}

static gr_status check_names(const gr_weights *w, const char *path, gr_diag *d)
{
    struct known k = {.arena = gr_arena_new()};
    gr_status st = check_blocks(w, path, d);
    for (uint32_t b = 0; b < gr_model_buckets(&w->shape) && !st; b++) check_bucket(w, b, &k, d);
    if (k.n_bad) st = GR_E_INVALID;
    if (k.missing.n) {
        char *text = say_names(&k.missing, "missing");
        st = gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID, "%s", text);
        free(text);
    }
    if (k.n_scaled && !st)
        gr_diag_note(d, (gr_loc){path, 0, 0},
                     "%zu tensors are in FP8, and widened as they are read; they are written in float32 or "
                     "bfloat16",
                     k.n_scaled);
    if (k.n) qsort(k.names, k.n, sizeof(*k.names), names_cmp);
    if (k.n && !w->shape.behind) warn_unexpected(w, k.names, k.n, path, d);
    free(k.names);
    gr_arena_free(k.arena);
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
    if (!st) find_base(w);
    if (!st) find_form(w);
    if (!st) st = check_names(w, path, d);
    if (!st) st = check_tied(w, d);
    if (!st && w->form == GR_EXPERTS_MXFP4)
        gr_diag_note(
            d, (gr_loc){path, 0, 0},
            "experts are in MXFP4, and widened as they are read; they are written in float32 or bfloat16");
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

/* "[2, 17]" of element i of a stored tensor. */
static void say_place(const gr_st_tensor *t, uint64_t i, gr_str *out)
{
    uint64_t each = 1;
    for (uint32_t k = 0; k < t->n_dims; k++) each *= t->dims[k];
    for (uint32_t k = 0; k < t->n_dims; k++) {
        each /= t->dims[k];
        gr_str_printf(out, "%s%ju", k ? ", " : "[", (uintmax_t)(i / each));
        i %= each;
    }
    gr_str_putc(out, ']');
}

/* Element i of a stored tensor is x. */
static gr_status not_finite(const gr_st_tensor *t, uint64_t i, float x, gr_diag *d)
{
    gr_str place = {0};
    say_place(t, i, &place);
    const gr_status st =
        gr_diag_error(d, (gr_loc){t->file, 0, 0}, GR_E_INVALID,
                      "tensor '%s': element %s is %s, but weights are finite numbers", t->name, place.text,
                      isnan(x) ? "nan"
                      : x < 0  ? "-inf"
                               : "inf");
    gr_str_release(&place);
    return st;
}

/* Elements [first, first + n) of one of our tensors, wanted at dst. */
struct reading {
    const gr_weights *w;
    const gr_st_tensor *stored;
    const gr_tensor *t;
    uint64_t first, n;
    float *dst;
    const gr_scales *scales; /* NULL: it has none */
};

/* In blocks, each checked while it is in the cache. */
static gr_status read_rows(const struct reading *r, gr_diag *d)
{
    gr_status st = GR_OK;
    for (uint64_t i = 0, block; i < r->n && !st; i += block) {
        const uint64_t at = stored_at(r->t, r->first + i, &block);
        block = GR_MIN(GR_MIN(r->n - i, (uint64_t)BLOCK_ELEMS), block);
        float *to = r->dst + i;
        st = gr_safetensors_read_elems(r->w->file, r->stored, at, block, to, d);
        if (!st && r->scales) gr_scales_apply(r->scales, at, block, to);
        if (st || gr_f32_all_finite(to, block)) continue;
        uint64_t bad = 0;
        while (isfinite(to[bad])) bad++;
        st = not_finite(r->stored, at + bad, to[bad], d);
    }
    return st;
}

/* A tensor of sums: the parts of each. */
static gr_status read_sums(const struct reading *r, gr_diag *d)
{
    const uint32_t parts = r->t->sums;
    float sum[GR_EXPERTS_MAX], part[GR_SELECTION_PARTS];
    struct reading whole = *r;
    whole.first = r->first / parts;
    whole.n = (r->first + r->n + parts - 1) / parts - whole.first;
    whole.dst = sum;
    const gr_status st = read_rows(&whole, d);
    for (uint64_t i = 0; i < r->n && !st; i++) {
        const uint64_t at = r->first + i;
        gr_selection_parts(sum[at / parts - whole.first], part);
        r->dst[i] = part[at % parts];
    }
    return st;
}

/* Columns [col, col + n) of a turned tensor, which are rows of the checkpoint's, at band. */
static gr_status take_columns(const struct reading *r, uint64_t col, uint64_t n, const float *band,
                              gr_diag *d)
{
    const uint64_t cols = r->t->cols, each = rows_each(r->t), end = r->first + r->n;
    for (uint64_t row = r->first / cols; row * cols < end; row++) {
        const uint64_t from = stored_row(&r->t->woven, row), expert = from / each;
        for (uint64_t c = col; c < col + n; c++) {
            const uint64_t i = row * cols + c;
            if (i < r->first || i >= end) continue;
            const float x = band[(c - col) * each + from % each];
            if (!isfinite(x)) return not_finite(r->stored, (expert * cols + c) * each + from % each, x, d);
            r->dst[i - r->first] = x;
        }
    }
    return GR_OK;
}

/* A turned tensor: some of its expert's columns at a time. */
static gr_status read_turned(const struct reading *r, gr_diag *d)
{
    const uint64_t cols = r->t->cols, each = rows_each(r->t), expert = r->t->woven.first / each;
    const uint64_t most = GR_MAX((uint64_t)BLOCK_ELEMS / each, UINT64_C(1));
    float *band = gr_malloc(most * each * sizeof(*band));
    gr_status st = GR_OK;
    for (uint64_t col = 0, n; col < cols && !st; col += n) {
        n = GR_MIN(most, cols - col);
        st =
            gr_safetensors_read_elems(r->w->file, r->stored, (expert * cols + col) * each, n * each, band, d);
        if (!st) st = take_columns(r, col, n, band, d);
    }
    free(band);
    return st;
}

/* A row of blocks: two values a byte, the lower half first, times 2^(scale - 127). Source: Open Compute
 * Project, Microscaling Formats (MX) Specification 1.0, E2M1 and E8M0. */
static void widen_blocks(const uint8_t *bytes, const uint8_t *scales, uint64_t cols, float *row)
{
    static const float values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (uint64_t block = 0; block < cols / BLOCK_VALUES; block++) {
        const float scale = ldexpf(1, (int)scales[block] - 127); /* products with it are exact */
        float of[16];
        for (int k = 0; k < 16; k++) of[k] = values[k] * scale;
        for (uint64_t i = 0; i < BLOCK_BYTES; i++) {
            const uint8_t two = bytes[block * BLOCK_BYTES + i];
            *row++ = of[two & 15];
            *row++ = of[two >> 4];
        }
    }
}

/* What is read at a time of a tensor in blocks: rows of the checkpoint's. */
struct band {
    const gr_st_tensor *scales;
    uint64_t row, n; /* of the checkpoint's */
    uint8_t *bytes, *scale;
    float *values; /* a row */
};

/* In row `at` of the band a scale of 2^127 or so makes an infinity. */
static gr_status too_large(const struct band *b, uint64_t at, uint64_t cols, gr_diag *d)
{
    uint64_t i = 0;
    while (i < cols && isfinite(b->values[i])) i++;
    return not_finite(b->scales, ((b->row + at) * cols + i) / BLOCK_VALUES, b->values[GR_MIN(i, cols - 1)],
                      d);
}

/* Rows [row, row + n) of ours, which are in the band. */
static gr_status take_blocks(const struct reading *r, const struct band *b, uint64_t row, uint64_t n,
                             gr_diag *d)
{
    const uint64_t cols = r->t->cols, groups = cols / BLOCK_VALUES, end = r->first + r->n;
    for (uint64_t i = row; i < row + n; i++) {
        const uint64_t at = stored_row(&r->t->woven, i) - b->row, from = GR_MAX(i * cols, r->first),
                       to = GR_MIN((i + 1) * cols, end);
        const uint8_t *scales = b->scale + at * groups,
                      *nan = memchr(scales, 255, groups); /* E8M0 has no infinity */
        if (nan) return not_finite(b->scales, b->row * groups + (uint64_t)(nan - b->scale), NAN, d);
        widen_blocks(b->bytes + at * cols / 2, scales, cols, b->values);
        if (!gr_f32_all_finite(b->values, cols)) return too_large(b, at, cols, d);
        memcpy(r->dst + (from - r->first), b->values + (from - i * cols), (to - from) * sizeof(float));
    }
    return GR_OK;
}

static gr_status read_blocks(const struct reading *r, gr_diag *d)
{
    enum { ROWS = 128 };
    const uint64_t cols = r->t->cols, groups = cols / BLOCK_VALUES, last = (r->first + r->n - 1) / cols;
    const uint64_t most = ROWS * (uint64_t)(r->t->woven.run == 1 ? r->t->woven.period : 1);
    char *name = blocks_name(r->w, r->t, "scales");
    struct band b = {.scales = gr_safetensors_find(r->w->file, name),
                     .bytes = gr_malloc(most * cols / 2),
                     .scale = gr_malloc(most * groups),
                     .values = gr_malloc(cols * sizeof(float))};
    gr_status st = GR_OK;
    for (uint64_t row = r->first / cols, n; row <= last && !st; row += n) {
        n = GR_MIN((uint64_t)ROWS, last - row + 1);
        b.row = stored_row(&r->t->woven, row);
        b.n = stored_row(&r->t->woven, row + n - 1) - b.row + 1;
        st = gr_safetensors_read_bytes(r->w->file, r->stored, b.row * cols / 2, b.n * cols / 2, b.bytes, d);
        if (!st)
            st = gr_safetensors_read_bytes(r->w->file, b.scales, b.row * groups, b.n * groups, b.scale, d);
        if (!st) st = take_blocks(r, &b, row, n, d);
    }
    free(b.values);
    free(b.scale);
    free(b.bytes);
    free(name);
    return st;
}

static gr_status read_scaled(const struct reading *r, gr_diag *d)
{
    gr_scales scales;
    struct reading of = *r;
    of.scales = &scales;
    gr_status st = gr_scales_read(&scales, r->w->file, r->stored, d);
    if (!st) st = read_rows(&of, d);
    gr_scales_release(&scales);
    return st;
}

static gr_status read_tensor(const gr_weights *w, const gr_tensor *t, uint64_t first, uint64_t n, float *dst,
                             gr_diag *d)
{
    char *name = in_blocks(w, t) ? blocks_name(w, t, "blocks") : stored_name(w, t->name);
    const struct reading r = {w, gr_safetensors_find(w->file, name), t, first, n, dst, NULL};
    free(name);
    if (!r.stored) return GR_OK; /* it need not be there */
    if (in_blocks(w, t)) return read_blocks(&r, d);
    if (is_scaled(r.stored)) return read_scaled(&r, d);
    if (t->sums) return read_sums(&r, d);
    return t->woven.turned ? read_turned(&r, d) : read_rows(&r, d);
}

gr_status gr_weights_read_part(const gr_weights *w, uint32_t bucket, uint64_t first, uint64_t n, float *dst,
                               gr_diag *d)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n_tensors = list(w, bucket, t);
    gr_status st = GR_OK;
    if (n) memset(dst, 0, n * sizeof(*dst));
    for (size_t i = 0; i < n_tensors && !st; i++) {
        uint64_t from, to;
        if (!overlap(&t[i], first, first + n, &from, &to)) continue;
        st = read_tensor(w, &t[i], from - t[i].offset, to - from, dst + (from - first), d);
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

/* Philox's words as 24 bits between -spread and spread. */
static void fill_even(float *to, uint64_t n, float spread, uint64_t seed, uint64_t stream)
{
    for (uint64_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), 0, 0};
        uint32_t word[4];
        gr_philox(seed, stream, counter, word);
        for (uint64_t k = i; k < GR_MIN(i + 4, n); k++)
            to[k] = spread * ((float)(word[k - i] >> 8) * 0x1p-23f - 1);
    }
}

static void random_tensor(gr_team *team, const gr_model_shape *s, uint64_t seed, const gr_tensor *t,
                          float *bucket)
{
    float *to = bucket + t->offset;
    if (t->zero) return; /* as the bucket is */
    if (t->spread > 0) {
        fill_even(to, (uint64_t)t->rows * t->cols, t->spread, seed, gr_stream(t->name));
        return;
    }
    if (t->cols) {
        struct fill f = {to, (uint64_t)t->rows * t->cols, s->init_std, seed,
                         gr_stream(t->name) + t->woven.phase};
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
    gr_experts_form form;
};

/* What a file has: sets of arrays, with experts in this form. */
struct contents {
    const gr_model_shape *s;
    const char *const *prefix;
    size_t n_sets;
    gr_experts_form form;
    const gr_ahead *ahead; /* behind all else; NULL: none */
};

static gr_st_spec spec_of(const gr_tensor *t, const char *name)
{
    return (gr_st_spec){.name = name,
                        .rows = stored_rows(t),
                        .cols = t->cols,
                        .thin = t->thin,
                        .depth = t->woven.depth,
                        .turned = t->woven.turned,
                        .exact = t->sums != 0};
}

static gr_st_spec *specs_of(const struct contents *c, gr_arena *arena, size_t *n)
{
    gr_st_spec *specs = NULL;
    size_t cap = 0;
    *n = 0;
    for (uint32_t b = 0; b < gr_model_buckets(c->s); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        size_t n_tensors = gr_bucket_tensors_as(c->s, b, c->form, t);
        for (size_t set = 0; set < c->n_sets; set++)
            for (size_t i = 0; i < n_tensors; i++) {
                if (t[i].woven.phase) continue;
                const char *name = gr_arena_printf(arena, "%s%s", c->prefix[set], t[i].name);
                GR_PUSH(specs, *n, cap, spec_of(&t[i], name));
            }
    }
    for (size_t i = 0; c->ahead && i < gr_ahead_count(c->ahead); i++)
        GR_PUSH(specs, *n, cap, gr_ahead_spec(c->ahead, i));
    return specs;
}

/* Where the file goes. */
struct target {
    const char *dir, *stem;
    bool begun; /* another writer has */
    gr_st_dtype dtype;
    uint64_t shard_bytes;
};

static gr_status open_writer(gr_weights_writer **out, const struct contents *c, const struct target *to,
                             gr_diag *d)
{
    gr_arena *arena = gr_arena_new();
    size_t n;
    gr_st_spec *specs = specs_of(c, arena, &n);
    gr_weights_writer *w = gr_calloc(1, sizeof(*w));
    w->shape = *c->s;
    w->n_sets = c->n_sets;
    w->form = c->form;
    gr_status st =
        to->begun ? gr_st_writer_join(&w->file, to->dir, to->stem, specs, n, d)
                  : gr_st_writer_new(&w->file, to->dir, to->stem, to->dtype, specs, n, to->shard_bytes, d);
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
    return open_writer(out, &(struct contents){s, prefix, n_sets, GR_EXPERTS_EACH, NULL},
                       &(struct target){dir, stem, false, dtype, shard_bytes}, d);
}

gr_status gr_weights_writer_join(gr_weights_writer **out, const gr_model_shape *s, const char *dir,
                                 const char *stem, const char *const *prefix, size_t n_sets, gr_diag *d)
{
    return open_writer(out, &(struct contents){s, prefix, n_sets, GR_EXPERTS_EACH, NULL},
                       &(struct target){dir, stem, true, GR_ST_F32, 0}, d);
}

gr_seal *gr_weights_seal_new(const gr_model_shape *s, const char *const *prefix, size_t n_sets)
{
    gr_arena *arena = gr_arena_new();
    gr_seal *seal = gr_seal_new();
    size_t n;
    gr_st_spec *specs = specs_of(&(struct contents){s, prefix, n_sets, GR_EXPERTS_EACH, NULL}, arena, &n);
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
    for (size_t i = 0; i < n; i++) count += t[i].woven.phase == 0;
    return count;
}

/* Which of them tensor i is: that of its first part. */
static size_t stored_index(const gr_tensor *t, size_t i)
{
    const char *name = t[i].name;
    while (t[i].woven.phase || strcmp(t[i].name, name) != 0) i--;
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

/* What of a tensor lies in rows [at, at + n) of the checkpoint's, into a piece of those rows. */
static void weave(const gr_tensor *t, const float *elems, uint64_t at, uint64_t n, float *piece)
{
    const uint64_t cols = GR_MAX(t->cols, 1u);
    for (uint64_t r = 0; r < t->rows; r++) {
        const uint64_t row = stored_row(&t->woven, r) - at;
        const float *from = elems + t->offset + r * cols;
        if (row >= n) continue; /* or below `at` */
        if (!t->woven.turned) memcpy(piece + row * cols, from, cols * sizeof(*from));
        for (uint64_t c = 0; t->woven.turned && c < cols; c++) piece[c * n + row] = from[c];
    }
}

/* Tensor i and the others of its name, as one: an expert's rows at a time, or all. */
static gr_status put_woven(gr_weights_writer *w, const gr_tensor *t, size_t n, size_t i, const float *elems,
                           gr_diag *d)
{
    const uint64_t rows = rows_each(&t[i]), size = rows * GR_MAX(t[i].cols, 1u);
    float *piece = gr_malloc(size * sizeof(*piece));
    gr_status st = GR_OK;
    size_t end = i + 1;
    for (size_t j = i; j < n; j++)
        if (!strcmp(t[j].name, t[i].name)) end = j + 1;
    for (uint64_t at = 0; at < stored_rows(&t[i]) && !st; at += rows) {
        for (size_t j = i; j < end; j++)
            if (!strcmp(t[j].name, t[i].name)) weave(&t[j], elems, at, rows, piece);
        st = gr_st_writer_put_piece(w->file, piece, size, d);
    }
    free(piece);
    return st;
}

static gr_status put_one(gr_weights_writer *w, const gr_tensor *t, size_t n, size_t i, const float *elems,
                         gr_diag *d)
{
    float sum[GR_EXPERTS_MAX];
    if (t[i].woven.run) return put_woven(w, t, n, i, elems, d);
    if (!t[i].sums) return gr_st_writer_put(w->file, elems + t[i].offset, d);
    sums_of(&t[i], elems + t[i].offset, t[i].rows, sum);
    return gr_st_writer_put(w->file, sum, d);
}

static gr_status put_bucket(gr_weights_writer *w, uint32_t bucket, const float *elems, gr_diag *d)
{
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    size_t n = gr_bucket_tensors_as(&w->shape, bucket, w->form, t);
    gr_status st = GR_OK;
    assert(bucket == w->puts / w->n_sets); /* the file has its tensors in this order */
    w->puts++;
    for (size_t i = 0; i < n && !st; i++)
        if (!t[i].woven.phase) st = put_one(w, t, n, i, elems, d);
    return st;
}

gr_status gr_weights_write(const gr_model_shape *s, const char *dir, const char *stem,
                           const gr_weights_source *from, gr_st_dtype dtype, uint64_t shard_bytes, gr_diag *d)
{
    gr_weights_writer *w = NULL;
    const gr_arch *a = gr_arch_find(s->model_type);
    const gr_experts_form form = a && a->experts_turned ? GR_EXPERTS_FUSED : GR_EXPERTS_EACH;
    gr_status st = open_writer(&w, &(struct contents){s, from->prefix, from->n_sets, form, from->ahead},
                               &(struct target){dir, stem, false, dtype, shard_bytes}, d);
    for (uint32_t b = 0; b < gr_model_buckets(s) && !st; b++)
        for (size_t set = 0; set < from->n_sets && !st; set++) {
            const float *elems = NULL;
            st = from->bucket(from->ctx, set, b, &elems, d);
            if (!st) st = put_bucket(w, b, elems, d);
        }
    if (!st && from->ahead) st = gr_ahead_put(from->ahead, w->file, d);
    if (!st) st = gr_weights_writer_finish(w, d);
    gr_weights_writer_free(w);
    return st;
}
