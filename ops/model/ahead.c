/* ops/model/ahead.c: layers that predict further tokens, copied from a checkpoint as they are. */
#include "ops/model/ahead.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/model/arch.h"
#include "runtime/base/json.h"

#define PIECE_ELEMS (1u << 20) /* read at once */

const char *const gr_ahead_keys[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers",
                                     NULL};
enum { N_KEYS = GR_LEN(gr_ahead_keys) - 1 };

struct gr_ahead {
    gr_safetensors *file;
    const gr_st_tensor **tensor; /* [n] */
    size_t n, cap;
    uint64_t layers[N_KEYS];
};

bool gr_ahead_is(const gr_model_shape *s, const char *name)
{
    const gr_arch *a = gr_arch_find(s->model_type);
    unsigned long layer = 0;
    if (!strncmp(name, "mtp.", 4) || !strncmp(name, "model.mtp.", 10)) return true;
    return a && a->ahead && !a->ahead->layer && sscanf(name, "model.layers.%lu.", &layer) == 1 &&
           layer >= s->layers;
}

gr_model_shape gr_ahead_shape(const gr_model_shape *s)
{
    gr_model_shape one = *s;
    one.layers = one.n_kinds = 1;
    one.kinds[0] = s->ahead;
    one.kind_of[0] = 0;
    one.n_ahead = 0;
    one.behind = s->layers;
    one.tied = false;
    return one;
}

/* Its tensors would stand beside a model that they were not made for. */
static gr_status check_model(const gr_model_shape *s, const char *folder, gr_diag *d)
{
    gr_model_shape of;
    gr_status st = gr_model_shape_read(&of, folder, d);
    if (st) return st;
    if (!strcmp(of.model_type, s->model_type) && of.layers == s->layers && of.hidden == s->hidden &&
        of.vocab == s->vocab)
        return GR_OK;
    return gr_diag_error(
        d, (gr_loc){folder, 0, 0}, GR_E_INVALID,
        "another model: %s of %u layers, %u wide, %u ids, where %s of %u layers, %u wide, %u "
        "ids is written",
        of.model_type, of.layers, of.hidden, of.vocab, s->model_type, s->layers, s->hidden, s->vocab);
}

/* The numbers that its config.json has: its own, or its text_config's. */
static gr_status read_layers(gr_ahead *a, const char *folder, gr_diag *d)
{
    char *path = gr_printf("%s/config.json", folder);
    gr_json j;
    gr_status st = gr_json_read(&j, path, d);
    for (size_t i = 0; i < N_KEYS && !st; i++) {
        const json_t *text = json_object_get(j.root, "text_config"),
                     *said = json_object_get(json_is_object(text) ? text : j.root, gr_ahead_keys[i]);
        a->layers[i] = (uint64_t)GR_MAX(json_integer_value(said), 0);
    }
    gr_json_release(&j);
    free(path);
    return st;
}

static gr_status take(gr_ahead *a, const gr_st_tensor *t, gr_diag *d)
{
    if (t->n_dims < 1 || t->n_dims > 3)
        return gr_diag_error(d, (gr_loc){t->file, 0, 0}, GR_E_INVALID,
                             "tensor '%s' has %u dimensions, not 1 to 3", t->name, t->n_dims);
    if (t->dtype == GR_ST_F8_E4M3)
        return gr_diag_error(d, (gr_loc){t->file, 0, 0}, GR_E_INVALID,
                             "tensor '%s' is in FP8, which is not copied beside weights that were widened: "
                             "convert the folder to bf16 first",
                             t->name);
    if (!gr_safetensors_want_shape(a->file, t->name, t->dims, t->n_dims, d)) return GR_E_INVALID;
    GR_PUSH(a->tensor, a->n, a->cap, t);
    return GR_OK;
}

gr_status gr_ahead_open(gr_ahead **out, const gr_model_shape *s, const char *folder, gr_diag *d)
{
    gr_ahead *a = gr_calloc(1, sizeof(*a));
    gr_status st = check_model(s, folder, d);
    if (!st) st = read_layers(a, folder, d);
    if (!st) st = gr_safetensors_open(&a->file, folder, d);
    for (size_t i = 0; !st && i < gr_safetensors_count(a->file); i++) {
        const gr_st_tensor *t = gr_safetensors_at(a->file, i);
        if (gr_ahead_is(s, t->name)) st = take(a, t, d);
    }
    if (!st && !a->n)
        st = gr_diag_error(d, (gr_loc){folder, 0, 0}, GR_E_INVALID,
                           "no layers that predict further tokens: no tensor 'mtp.*', nor one of a layer "
                           "behind the last");
    if (st)
        gr_ahead_free(a);
    else
        *out = a;
    return st == GR_E_IO ? GR_E_INVALID : st;
}

void gr_ahead_free(gr_ahead *a)
{
    if (!a) return;
    gr_safetensors_free(a->file);
    free(a->tensor);
    free(a);
}

uint64_t gr_ahead_layers(const gr_ahead *a, size_t i)
{
    return a->layers[i];
}

size_t gr_ahead_count(const gr_ahead *a)
{
    return a->n;
}

gr_st_spec gr_ahead_spec(const gr_ahead *a, size_t i)
{
    const gr_st_tensor *t = a->tensor[i];
    const uint64_t *n = t->dims;
    const bool deep = t->n_dims == 3;
    return (gr_st_spec){.name = t->name,
                        .rows = deep ? n[0] * n[1] : n[0],
                        .cols = t->n_dims > 1 ? n[t->n_dims - 1] : 0,
                        .depth = deep ? n[0] : 0,
                        .exact = t->dtype != GR_ST_BF16};
}

static gr_status put_tensor(const gr_ahead *a, const gr_st_tensor *t, gr_st_writer *to, float *piece,
                            gr_diag *d)
{
    uint64_t all = 1;
    gr_status st = GR_OK;
    for (uint32_t i = 0; i < t->n_dims; i++) all *= t->dims[i]; /* was opened, so it fits */
    for (uint64_t at = 0; at < all && !st; at += PIECE_ELEMS) {
        const uint64_t n = GR_MIN(all - at, (uint64_t)PIECE_ELEMS);
        st = gr_safetensors_read_elems(a->file, t, at, n, piece, d);
        if (!st) st = gr_st_writer_put_piece(to, piece, n, d);
    }
    return st;
}

gr_status gr_ahead_put(const gr_ahead *a, gr_st_writer *to, gr_diag *d)
{
    float *piece = gr_malloc(PIECE_ELEMS * sizeof(*piece));
    gr_status st = GR_OK;
    for (size_t i = 0; i < a->n && !st; i++) st = put_tensor(a, a->tensor[i], to, piece, d);
    free(piece);
    return st;
}
