/* tests/unit/model_fixture.h: a small model on the CPU device, and whole passes over it. */
#ifndef GR_TESTS_MODEL_FIXTURE_H
#define GR_TESTS_MODEL_FIXTURE_H

#include "ops/kernels/carried.h"
#include "ops/kernels/layer.h"
#include "ops/model/weights.h"
#include "tests/unit/test.h"

#define K gr_kernels_cpu

enum { FX_CHUNK = 16, FX_TOKENS = 512, FX_SEQS = 16, FX_BLOCKS = 64, FX_SLOTS = 8 };

typedef struct fixture {
    gr_model_shape s;
    gr_queue q;
    float **w, **g; /* buckets: weights, gradients */
    float *x;       /* [FX_TOKENS, H] */
    void *ws;
    void *carried, *d_carried; /* what layers hand on, of FX_TOKENS; NULL: nothing */
    char *kv;                  /* [layers] pools of FX_BLOCKS */
} fixture;

static inline gr_pass_bounds fx_bounds(const fixture *f)
{
    return (gr_pass_bounds){
        .tokens = FX_TOKENS, .seqs = FX_SEQS, .length = FX_TOKENS, .threads = gr_team_size(f->q.team)};
}

/* Floats of unknown content: NaN, so that what is read before it is written shows. */
static inline void *fx_dirty(uint64_t bytes)
{
    return memset(aligned_alloc(256, gr_align(bytes, 256)), 0xff, bytes);
}

static inline fixture fx_new(const gr_model_shape *s, unsigned threads)
{
    fixture f = {.s = *s};
    assert_int_equal(gr_team_new(&f.q.team, threads, NULL), GR_OK);
    const uint32_t n = gr_model_buckets(s);
    f.w = gr_calloc(n, sizeof(*f.w));
    f.g = gr_calloc(n, sizeof(*f.g));
    for (uint32_t b = 0; b < n; b++) {
        f.w[b] = aligned_alloc(256, gr_align(gr_bucket_elems(s, b) * sizeof(float), 256));
        f.g[b] = aligned_alloc(256, gr_align(gr_bucket_elems(s, b) * sizeof(float), 256));
        memset(f.g[b], 0, gr_bucket_elems(s, b) * sizeof(float));
    }
    gr_pass_bounds bounds = fx_bounds(&f);
    uint64_t ws = gr_layers_ws_bytes(&K, s, &bounds, GR_LAYER_FORWARD);
    ws = GR_MAX(ws, gr_layers_ws_bytes(&K, s, &bounds, GR_LAYER_BACKWARD));
    ws = GR_MAX(ws, gr_layers_ws_bytes(&K, s, &bounds, GR_LAYER_EXTEND));
    ws = GR_MAX(ws, K.head_ws_bytes(s, FX_CHUNK, GR_HEAD_GRADIENT, bounds.threads));
    ws = GR_MAX(ws, K.head_ws_bytes(s, FX_CHUNK, GR_HEAD_TRUNCATE, bounds.threads));
    ws = GR_MAX(ws, gr_per_layer_ws_bytes(&K, s, FX_TOKENS, bounds.threads, true));
    f.ws = fx_dirty(ws);
    const uint64_t carried = gr_carried_bytes(&K, s, FX_TOKENS, true);
    if (carried) f.carried = fx_dirty(carried);
    if (carried) f.d_carried = fx_dirty(carried);
    f.x = fx_dirty((uint64_t)FX_TOKENS * s->hidden * sizeof(float));
    f.kv = fx_dirty(
        gr_layer_state_at(&K, s, s->layers, (gr_state_room){.blocks = FX_BLOCKS, .slots = FX_SLOTS}));
    return f;
}

static inline void fx_free(fixture *f)
{
    for (uint32_t b = 0; b < gr_model_buckets(&f->s); b++) free(f->w[b]), free(f->g[b]);
    free(f->w), free(f->g), free(f->x), free(f->ws), free(f->kv), free(f->carried), free(f->d_carried);
    gr_team_free(f->q.team);
}

static inline float fx_random(uint32_t *state) /* in [-1, 1) */
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

/* Random weights; norms around 1, biases around 0. */
static inline void fx_fill(fixture *f, uint32_t seed)
{
    for (uint32_t b = 0; b < gr_model_buckets(&f->s); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        gr_weights_random_bucket(NULL, &f->s, seed, b, f->w[b]);
        for (size_t i = gr_bucket_tensors(&f->s, b, t); i--;)
            if (!t[i].decay)
                for (uint32_t e = 0; e < t[i].rows; e++) f->w[b][t[i].offset + e] += 0.3f * fx_random(&seed);
    }
}

static inline void fx_read(fixture *f, const char *path, const char *prefix, float **into)
{
    gr_weights *w = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_weights_open(&w, &f->s, path, prefix, &d), GR_OK);
    for (uint32_t b = 0; b < gr_model_buckets(&f->s); b++)
        assert_int_equal(gr_weights_read_bucket(w, b, into[b], &d), GR_OK);
    gr_weights_free(w);
    gr_diag_release(&d);
}

static inline const float *fx_norm(const fixture *f)
{
    return f->w[f->s.layers + 1] + gr_tensor_offset(&f->s, f->s.layers + 1, GR_T_NORM);
}

static inline const float *fx_lm(const fixture *f)
{
    uint64_t at;
    const uint32_t b = gr_model_head_bucket(&f->s, &at);
    return f->w[b] + at;
}

/* Embeddings into f->x, and those of each layer. */
static inline gr_packed fx_embed(fixture *f, const gr_packed *p)
{
    gr_packed own = *p;
    own.carried = f->carried;
    own.d_carried = f->d_carried;
    K.embed_forward(&f->q, &f->s, f->w[0], &own, f->x);
    if (f->s.per_layer.vocab)
        gr_per_layer_forward(&K, &f->q, &f->s, f->w[gr_model_per_layer_bucket(&f->s)], &own, f->x, f->ws);
    return own;
}

/* Hidden states into f->x. in, acts: [layers] of kept inputs and activations, or NULL. */
static inline void fx_forward(fixture *f, const gr_packed *p, float **in, void **acts)
{
    const gr_packed own = fx_embed(f, p);
    for (uint32_t l = 0; l < f->s.layers; l++)
        gr_layer_forward(&K, &f->q, &f->s, l, f->w[l + 1], &own, f->x, in ? in[l] : NULL,
                         acts ? acts[l] : NULL, f->ws);
}

typedef struct fx_loss { /* sum of d_logprob logprob + d_entropy entropy over all tokens */
    const int32_t *target;
    const float *d_logprob, *d_entropy;
    float inv_temperature;
} fx_loss;

/* One chunk [at, at + n) of f->x's rows through the head. */
static inline gr_head_rows fx_rows(const fx_loss *l, uint32_t at, uint32_t n, uint32_t row[FX_TOKENS])
{
    for (uint32_t i = 0; i < n; i++) row[i] = at + i;
    return (gr_head_rows){
        .n = n, .row = row, .target = l->target + at, .inv_temperature = l->inv_temperature, .keep = true};
}

static inline void fx_head(fixture *f, uint32_t n, uint32_t chunk, const fx_loss *l, float *logprob,
                           float *entropy, float *sum_p2)
{
    uint32_t row[FX_TOKENS];
    for (uint32_t at = 0; at < n; at += chunk) {
        gr_head_rows rows = fx_rows(l, at, GR_MIN(chunk, n - at), row);
        gr_head_stats out = {logprob + at, entropy ? entropy + at : NULL, sum_p2 ? sum_p2 + at : NULL};
        K.head_forward(&f->q, &f->s, fx_norm(f), fx_lm(f), f->x, &rows, &out, f->ws);
    }
}

/* Forward and backward; gradients into f->g, logprob and entropy [n_tokens] out. */
static inline void fx_backward(fixture *f, const gr_packed *p, const fx_loss *l, float *logprob,
                               float *entropy)
{
    const gr_model_shape *s = &f->s;
    const gr_pass_bounds bounds = fx_bounds(f);
    const uint64_t row_bytes = (uint64_t)FX_TOKENS * s->hidden * sizeof(float);
    float **in = gr_calloc(s->layers, sizeof(*in)), *dx = fx_dirty(row_bytes);
    void **acts = gr_calloc(s->layers, sizeof(*acts));
    for (uint32_t i = 0; i < s->layers; i++) {
        in[i] = fx_dirty(row_bytes);
        acts[i] = fx_dirty(gr_layer_acts_bytes(&K, s, i, &bounds));
    }
    fx_forward(f, p, in, acts);
    uint64_t lm_at;
    const uint32_t lm_bucket = gr_model_head_bucket(s, &lm_at), last = s->layers + 1;
    uint32_t row[FX_TOKENS];
    for (uint32_t at = 0; at < p->n_tokens; at += FX_CHUNK) {
        gr_head_rows rows = fx_rows(l, at, GR_MIN(FX_CHUNK, p->n_tokens - at), row);
        gr_head_stats out = {logprob + at, entropy + at, NULL};
        K.head_forward(&f->q, s, fx_norm(f), fx_lm(f), f->x, &rows, &out, f->ws);
        K.head_backward(&f->q, s, fx_norm(f), fx_lm(f), f->x, &rows, l->d_logprob + at, l->d_entropy + at, dx,
                        f->g[last] + gr_tensor_offset(s, last, GR_T_NORM), f->g[lm_bucket] + lm_at, GR_F32,
                        f->ws);
    }
    gr_packed own = *p;
    own.carried = f->carried;
    own.d_carried = f->d_carried;
    for (uint32_t i = s->layers; i--;)
        gr_layer_backward(&K, &f->q, s, i, f->w[i + 1], NULL, &own, in[i], acts[i], dx, f->g[i + 1], GR_F32,
                          f->ws);
    const uint32_t per_layer = gr_model_per_layer_bucket(s);
    if (s->per_layer.vocab)
        gr_per_layer_backward(&K, &f->q, s, f->w[per_layer], &own, in[0], dx, f->g[per_layer], GR_F32, f->ws);
    K.embed_backward(&f->q, s, p, dx, f->g[0], GR_F32, f->ws);
    for (uint32_t i = 0; i < s->layers; i++) free(in[i]), free(acts[i]);
    free(in), free(acts), free(dx);
}

/* New tokens through all layers into f->x. */
static inline void fx_extend(fixture *f, const gr_extend *e)
{
    const gr_packed p = {.n_tokens = e->n_tokens,
                         .n_seqs = e->n_seqs,
                         .ids = e->ids,
                         .offset = e->offset,
                         .host_offset = e->offset,
                         .position = e->position};
    gr_extend own = *e;
    own.carried = fx_embed(f, &p).carried;
    for (uint32_t l = 0; l < f->s.layers; l++)
        gr_layer_extend(&K, &f->q, &f->s, l, f->w[l + 1], &own, f->x,
                        f->kv + gr_layer_state_at(&K, &f->s, gr_model_keys_of(&f->s, l),
                                                  (gr_state_room){.blocks = FX_BLOCKS, .slots = FX_SLOTS}),
                        f->ws);
}

#endif
