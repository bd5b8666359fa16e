/* runtime/run/bytes.c: save and restore steps: buckets between device memory and checkpoint files. */
#include "runtime/run/bytes.h"

#include "ops/model/checkpoint.h"
#include "ops/model/nf4.h"
#include "ops/model/peft.h"
#include "ops/pass.h"
#include "ops/model/tp.h"
#include "ops/simd/simd.h"
#include "runtime/base/half.h"
#include "runtime/base/files.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SAVED_FILES = 3 };

/* One model's files, while they are open. Sets: weights; first moments; second moments, where the optimizer
 * has them; the weights of the iteration before, which a rollout with `lag` uses. */
typedef struct model_files {
    gr_weights *weights, *m, *v, *lagged;
    gr_weights_writer *to_weights, *to_moments, *to_lagged;
    gr_seal *seals[SAVED_FILES]; /* of the same files, in this order; NULL: nobody saves it */
    gr_manifest *beside;         /* of the run's checkpoint that its own weights are of; or NULL */
} model_files;

static const char *const saved_names[SAVED_FILES] = {"model", "optimizer", "lagged"};

/* Of a model with adapters the file of weights is that of the adapters. */
static const char *weights_stem(const gr_model *m)
{
    return gr_model_has_lora(m) ? GR_PEFT_STEM : saved_names[0];
}

struct gr_bytes {
    const gr_graph *g;
    const gr_tasks *p;
    model_files *files;          /* by model */
    char *from, *to;             /* step directories; from NULL: the models' own checkpoints */
    const gr_manifest *manifest; /* of from; NULL: what is read is held to nothing */
    bool accepts;                /* what models' own checkpoints have in the place of what theirs says */
    const gr_kernels *k;
    float *buffer; /* [cap] of what the device has otherwise */
    uint64_t cap;
    void *small; /* [cap_small] what is put together with or made of the floats: low halves, codes */
    uint64_t cap_small;
    float *whole; /* [cap_whole] a bucket that this rank has a shard of */
    uint64_t cap_whole;
    gr_comm *comm; /* NULL: one rank */
    gr_bytes_saved saved, sealed;
    bool not_finite; /* something that was saved since gr_bytes_to */
};

gr_bytes *gr_bytes_new(const gr_graph *g, const gr_tasks *p, const gr_kernels *k, gr_comm *comm,
                       gr_bytes_saved saved)
{
    gr_bytes *b = gr_calloc(1, sizeof(*b));
    *b = (gr_bytes){.g = g,
                    .p = p,
                    .k = k,
                    .comm = comm,
                    .saved = saved,
                    .files = gr_calloc(g->n_models, sizeof(*b->files))};
    return b;
}

static void close_readers(gr_bytes *b)
{
    for (size_t i = 0; i < b->g->n_models; i++) {
        gr_weights_free(b->files[i].weights);
        gr_weights_free(b->files[i].m);
        gr_weights_free(b->files[i].v);
        gr_weights_free(b->files[i].lagged);
        gr_manifest_free(b->files[i].beside);
        b->files[i].weights = b->files[i].m = b->files[i].v = b->files[i].lagged = NULL;
        b->files[i].beside = NULL;
    }
}

static void close_writers(gr_bytes *b)
{
    for (size_t i = 0; i < b->g->n_models; i++) {
        gr_weights_writer_free(b->files[i].to_weights);
        gr_weights_writer_free(b->files[i].to_moments);
        gr_weights_writer_free(b->files[i].to_lagged);
        b->files[i].to_weights = b->files[i].to_moments = b->files[i].to_lagged = NULL;
    }
}

static void free_seals(gr_bytes *b)
{
    for (size_t i = 0; i < b->g->n_models; i++)
        for (size_t k = 0; k < SAVED_FILES; k++) {
            gr_seal_free(b->files[i].seals[k]);
            b->files[i].seals[k] = NULL;
        }
}

void gr_bytes_free(gr_bytes *b)
{
    if (!b) return;
    close_readers(b);
    close_writers(b);
    free_seals(b);
    free(b->files);
    free(b->buffer);
    free(b->small);
    free(b->whole);
    free(b->from);
    free(b->to);
    free(b);
}

/* The object a step names, and its model. */
static const gr_object *find(const gr_bytes *b, const char *what, const gr_model **m)
{
    const gr_object *o = &b->p->objects[gr_tasks_find(b->p, what)];
    *m = gr_graph_model(b->g, o->model);
    return o;
}

/* ---- restore
 * ------------------------------------------------------------------------------------------------ */

void gr_bytes_from(gr_bytes *b, const char *step_dir)
{
    close_readers(b);
    free(b->from);
    b->from = step_dir ? gr_strdup(step_dir) : NULL;
}

void gr_bytes_hold(gr_bytes *b, const gr_manifest *m, bool accepts)
{
    b->manifest = m;
    b->accepts = accepts;
}

/* A file of the run's checkpoint, to the seal that it has in the manifest. */
static gr_status hold(const gr_bytes *b, gr_weights *w, const gr_model *m, const char *stem, gr_diag *d)
{
    char *name = gr_printf("%s/%s.safetensors", m->name, stem), *path = gr_printf("%s/%s", b->from, name);
    const gr_seal *seal = b->manifest ? gr_manifest_seal(b->manifest, name) : NULL;
    gr_status st = GR_OK;
    if (seal)
        st = gr_weights_hold(w, seal, d);
    else if (b->manifest)
        st = gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID, "the manifest does not name this file");
    free(path);
    free(name);
    return st;
}

/* Weights that are another run's, to the manifest of the checkpoint that they are a part of. What is accepted
 * is read, and warned about, by one rank. */
static gr_status hold_beside(const gr_bytes *b, model_files *f, const gr_model *m, gr_diag *d)
{
    const gr_seal *seal = NULL;
    const bool looks = !b->accepts || !gr_comm_rank(b->comm);
    const char *from = gr_model_has_lora(m) ? m->lora.from : m->files.checkpoint;
    gr_status st = looks ? gr_checkpoint_beside(&f->beside, &seal, from, b->accepts, d) : GR_OK;
    return !st && seal ? gr_weights_hold(f->weights, seal, d) : st;
}

/* How elements lie there: as fp32; as the nearest bf16; as one of the halves of fp32 that runtime/base/half.h
 * defines; as codes of first or second moments, with their scales elsewhere (ops/simd/moments.h); or a
 * layer's bucket in NF4 (ops/model/nf4.h). */
typedef enum form { FORM_F32, FORM_BF16, FORM_HIGH, FORM_LOW, FORM_M8, FORM_V8, FORM_NF4 } form;

static form form_of(gr_dtype type)
{
    return type == GR_F32 ? FORM_F32 : FORM_BF16;
}

static bool is_codes(form f)
{
    return f == FORM_M8 || f == FORM_V8;
}

static uint64_t form_size(form f)
{
    return f == FORM_F32 ? sizeof(float) : is_codes(f) ? 1 : sizeof(uint16_t);
}

/* A piece of an object: n elements at an address. first: which of its bucket's the first one is. */
typedef struct piece {
    char *at;
    uint64_t first, n;
    form form;
    gr_queue *q;
    char *scales;                /* of codes */
    const gr_model_shape *shape; /* of NF4, and the bucket */
    uint32_t bucket;
} piece;

/* What of a bucket's elements is this rank's. */
static piece own_piece(const gr_bytes *b, const gr_model *m, uint32_t bucket)
{
    const gr_shard own = gr_shard_at(gr_placed(b->p, m), m, bucket, gr_comm_rank(b->comm));
    return (piece){.first = own.first, .n = own.n};
}

static bool reads_straight(const piece *p)
{
    return !p->q->device && p->form == FORM_F32;
}

/* Where n floats can be put: at the piece itself, or in the buffer. */
static float *room(gr_bytes *b, const piece *p)
{
    if (reads_straight(p)) return (float *)(void *)p->at;
    if (b->cap < p->n) b->buffer = gr_realloc(b->buffer, (b->cap = p->n) * sizeof(float));
    return b->buffer;
}

/* A piece's part of one thread of a team: elements from first to last. Floats and halves of a part begin at
 * the same byte of the buffer, so that each thread can convert its own in place. */
typedef struct part {
    float *at; /* the part's first element */
    uint64_t first, n;
} part;

static part part_of(const gr_bytes *b, const piece *p, unsigned rank)
{
    uint64_t first, last;
    gr_team_range(p->n, 4096, rank, gr_team_size(p->q->team), &first, &last);
    return (part){b->buffer + first, first, last - first};
}

typedef struct conversion {
    const gr_bytes *b;
    const piece *p;
} conversion;

static void *small_room(gr_bytes *b, uint64_t bytes)
{
    if (b->cap_small < bytes) b->small = gr_realloc(b->small, b->cap_small = bytes);
    return b->small;
}

/* Codes of a piece in that room, and behind them their scales: parts begin at whole blocks. */
static uint64_t codes_bytes(const piece *p)
{
    return gr_align(p->n, GR_MOMENT_BLOCK);
}

static uint64_t scales_bytes(const piece *p)
{
    return codes_bytes(p) / GR_MOMENT_BLOCK * sizeof(float);
}

static float *scales_of(const conversion *c, const part *x)
{
    return (float *)(void *)((char *)c->b->small + codes_bytes(c->p)) + x->first / GR_MOMENT_BLOCK;
}

static void encode(void *arg, unsigned rank, unsigned n)
{
    const conversion *c = arg;
    const part x = part_of(c->b, c->p, rank);
    (void)n;
    gr_simd_best()->moments_narrow(c->p->form == FORM_V8, x.at, x.n, NULL, (char *)c->b->small + x.first,
                                   scales_of(c, &x));
}

static void decode(void *arg, unsigned rank, unsigned n)
{
    const conversion *c = arg;
    const part x = part_of(c->b, c->p, rank);
    (void)n;
    gr_simd_best()->moments_widen(c->p->form == FORM_V8, (char *)c->b->small + x.first, scales_of(c, &x),
                                  x.at, x.n);
}

static void put_codes(gr_bytes *b, const piece *p)
{
    char *codes = small_room(b, codes_bytes(p) + scales_bytes(p));
    gr_team_run(p->q->team, encode, &(conversion){b, p});
    gr_device_write(p->q, p->at, codes, codes_bytes(p));
    gr_device_write(p->q, p->scales, codes + codes_bytes(p), scales_bytes(p));
}

static void get_codes(gr_bytes *b, const piece *p)
{
    char *codes = small_room(b, codes_bytes(p) + scales_bytes(p));
    gr_device_read(p->q, codes, p->at, codes_bytes(p));
    gr_device_read(p->q, codes + codes_bytes(p), p->scales, scales_bytes(p));
    gr_team_run(p->q->team, decode, &(conversion){b, p});
}

static void put_nf4(gr_bytes *b, const piece *p)
{
    const uint64_t bytes = gr_nf4_bucket_bytes(p->shape, p->bucket);
    void *closed = small_room(b, bytes);
    gr_nf4_close_bucket(p->q->team, p->shape, p->bucket, b->buffer, closed);
    gr_device_write(p->q, p->at, closed, bytes);
}

static uint16_t half_of(float x, form f)
{
    return f == FORM_HIGH ? gr_f32_high(x) : f == FORM_LOW ? gr_f32_low(x) : gr_f32_to_bf16(x);
}

static void narrow(void *arg, unsigned rank, unsigned n)
{
    const conversion *c = arg;
    const part x = part_of(c->b, c->p, rank);
    (void)n;
    for (uint64_t i = 0; i < x.n; i++) { /* halves never overtake what is still to be read */
        const uint16_t h = half_of(x.at[i], c->p->form);
        memcpy((char *)x.at + i * sizeof(h), &h, sizeof(h));
    }
}

static void widen(void *arg, unsigned rank, unsigned n)
{
    const conversion *c = arg;
    const part x = part_of(c->b, c->p, rank);
    (void)n;
    for (uint64_t i = x.n; i-- > 0;) { /* from the end: floats never overtake */
        uint16_t h;
        memcpy(&h, (const char *)x.at + i * sizeof(h), sizeof(h));
        x.at[i] = gr_bf16_to_f32(h);
    }
}

/* Upper halves, widened, become what they are the upper halves of. */
static void join(void *arg, unsigned rank, unsigned n)
{
    const conversion *c = arg;
    const part x = part_of(c->b, c->p, rank);
    const uint16_t *low = c->b->small;
    (void)n;
    for (uint64_t i = 0; i < x.n; i++)
        x.at[i] = gr_f32_join((uint16_t)(gr_bits_of_f32(x.at[i]) >> 16), low[x.first + i]);
}

/* Move what room() was filled with. */
static void put(gr_bytes *b, const piece *p)
{
    if (reads_straight(p)) return;
    if (is_codes(p->form)) {
        put_codes(b, p);
        return;
    }
    if (p->form == FORM_NF4) {
        put_nf4(b, p);
        return;
    }
    if (p->form == FORM_F32) {
        gr_device_write(p->q, p->at, b->buffer, p->n * sizeof(float));
        return;
    }
    gr_team_run(p->q->team, narrow, &(conversion){b, p});
    for (unsigned rank = 0; rank < gr_team_size(p->q->team); rank++) {
        const part x = part_of(b, p, rank);
        gr_device_write(p->q, p->at + x.first * sizeof(uint16_t), x.at, x.n * sizeof(uint16_t));
    }
}

/* The floats of a piece: its own, or in the buffer. */
static const float *get(gr_bytes *b, const piece *p)
{
    float *f = room(b, p);
    if (reads_straight(p)) return f;
    if (is_codes(p->form)) {
        get_codes(b, p);
        return f;
    }
    if (p->form == FORM_F32) {
        gr_device_read(p->q, f, p->at, p->n * sizeof(float));
        return f;
    }
    for (unsigned rank = 0; rank < gr_team_size(p->q->team); rank++) {
        const part x = part_of(b, p, rank);
        gr_device_read(p->q, x.at, p->at + x.first * sizeof(uint16_t), x.n * sizeof(uint16_t));
    }
    gr_team_run(p->q->team, widen, &(conversion){b, p});
    return f;
}

static gr_status read_weights(gr_bytes *b, const gr_model *m, uint32_t bucket, const piece *p, gr_diag *d);

/* A value head that is trained beside new adapters begins as that of the frozen model. */
static gr_status begin_head(gr_bytes *b, const gr_model *m, uint32_t bucket, gr_queue *q, float *dst,
                            gr_diag *d)
{
    if (bucket <= m->shape.layers) return GR_OK;
    const uint64_t n = gr_bucket_elems(&m->shape, bucket);
    gr_queue host = {.team = q->team};
    float *whole = gr_malloc(n * sizeof(*whole));
    gr_status st =
        read_weights(b, m->lora.ends, bucket, &(piece){.at = (char *)whole, .n = n, .q = &host}, d);
    for (gr_tensor_slot slot = GR_T_VALUE; slot <= GR_T_VALUE_BIAS && !st; slot++) {
        const uint64_t from = gr_tensor_offset(&m->shape, bucket, slot),
                       to = gr_tensor_offset(&m->lora.shape, bucket, slot);
        const size_t elems = slot == GR_T_VALUE ? m->shape.hidden : 1;
        if (to != UINT64_MAX) memcpy(dst + to, whole + from, elems * sizeof(*dst));
    }
    free(whole);
    return st;
}

/* A model whose weights are random, or whose value head is: all of a bucket is drawn. */
static gr_status draw(gr_bytes *b, const gr_model *m, uint32_t bucket, const gr_weights *from, gr_queue *q,
                      float *dst, gr_diag *d)
{
    uint64_t seed = b->g->run.seed ^ gr_stream(m->name);
    if (!from) {
        gr_weights_random_bucket(q->team, gr_model_trains(m), seed, bucket, dst);
        return gr_model_has_lora(m) ? begin_head(b, m, bucket, q, dst, d) : GR_OK;
    }
    gr_status st = gr_weights_read_bucket(from, bucket, dst, d);
    if (!st) gr_weights_random_head(q->team, &m->shape, seed, dst);
    return st;
}

static gr_status draw_part(gr_bytes *b, const gr_model *m, uint32_t bucket, const gr_weights *from,
                           const piece *p, float *dst, gr_diag *d)
{
    uint64_t n = gr_bucket_elems(gr_model_trains(m), bucket);
    if (p->n == n) return draw(b, m, bucket, from, p->q, dst, d);
    if (b->cap_whole < n) b->whole = gr_realloc(b->whole, (b->cap_whole = n) * sizeof(float));
    gr_status st = draw(b, m, bucket, from, p->q, b->whole, d);
    if (!st) memcpy(dst, b->whole + p->first, p->n * sizeof(*dst));
    return st;
}

/* Where a model's weights are: of one with adapters theirs. own: in the run's checkpoint. */
static char *weights_path(const gr_bytes *b, const gr_model *m, bool own)
{
    if (gr_model_has_lora(m))
        return own ? gr_printf("%s/%s/" GR_PEFT_STEM ".safetensors", b->from, m->name)
                   : gr_printf("%s/" GR_PEFT_STEM ".safetensors", m->lora.from);
    return own ? gr_printf("%s/%s", b->from, m->name) : gr_strdup(m->files.checkpoint);
}

static gr_status open_weights(gr_bytes *b, const gr_model *m, bool own, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    if (f->weights) return GR_OK;
    char *path = weights_path(b, m, own);
    gr_status st = gr_weights_open(&f->weights, gr_model_trains(m), path, "", d);
    if (!st && own) st = hold(b, f->weights, m, weights_stem(m), d);
    if (!st && !own) st = hold_beside(b, f, m, d);
    free(path);
    return st;
}

/* A value head that its checkpoint does not have. */
static bool lacks_head(const gr_bytes *b, const gr_model *m, uint32_t bucket)
{
    return bucket == m->shape.layers + 1 && m->shape.head == GR_HEAD_VALUE && !gr_model_has_lora(m) &&
           !gr_weights_has_head(b->files[m->index].weights);
}

static gr_status read_weights(gr_bytes *b, const gr_model *m, uint32_t bucket, const piece *p, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    bool own = b->from && m->trained; /* models that are never trained are not part of a run's checkpoints */
    bool random = !own && (gr_model_has_lora(m) ? !m->lora.from : m->files.random);
    float *dst = room(b, p);
    gr_status st = random ? GR_OK : open_weights(b, m, own, d);
    if (st) return st;
    if (random || lacks_head(b, m, bucket))
        st = draw_part(b, m, bucket, random ? NULL : f->weights, p, dst, d);
    else
        st = gr_weights_read_part(f->weights, bucket, p->first, p->n, dst, d);
    if (!st) put(b, p);
    return st;
}

static gr_status read_moment(gr_bytes *b, gr_weights *from, uint32_t bucket, const piece *p, gr_diag *d)
{
    if (!from) {
        b->k->zero(p->q, p->at, p->n * form_size(p->form));
        if (is_codes(p->form)) b->k->zero(p->q, p->scales, scales_bytes(p));
        return GR_OK;
    }
    gr_status st = gr_weights_read_part(from, bucket, p->first, p->n, room(b, p), d);
    if (!st) put(b, p);
    return st;
}

static gr_status open_moments(gr_bytes *b, const gr_model *m, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    if (!b->from || f->m || !gr_model_moments(m)) return GR_OK;
    char *path = gr_printf("%s/%s/optimizer.safetensors", b->from, m->name);
    const bool two = gr_model_moments(m) > 1;
    gr_status st = gr_weights_open(&f->m, gr_model_trains(m), path, "m.", d);
    if (!st && two) st = gr_weights_open(&f->v, gr_model_trains(m), path, "v.", d);
    if (!st) st = hold(b, f->m, m, "optimizer", d);
    if (!st && two) st = hold(b, f->v, m, "optimizer", d);
    free(path);
    return st;
}

/* The pieces of a bucket's training state. */
typedef struct state_pieces {
    gr_master master_is;
    bool has_m, has_v;
    piece master, m, v;
} state_pieces;

static state_pieces state_of(const gr_bytes *b, const gr_model *m, uint32_t bucket, const void *address,
                             gr_queue *q)
{
    const gr_state_bytes bytes = gr_state_bytes_of(b->k, m, bucket, gr_placed(b->p, m)->shards);
    const gr_dtype type = m->train.moments;
    const uint64_t n =
        gr_shard_elems(gr_bucket_elems(gr_model_trains(m), bucket), gr_placed(b->p, m)->shards);
    piece own = own_piece(b, m, bucket), master = own, first = own, second = own;
    master.q = first.q = second.q = q;
    master.at = (char *)(uintptr_t)address;
    master.form = bytes.form == GR_MASTER_SPLIT ? FORM_LOW : FORM_F32;
    first.at = master.at + bytes.master;
    first.form = type == GR_I8 ? FORM_M8 : form_of(type);
    first.scales = (char *)gr_moment_scale(first.at, type, n, 0);
    second.at = first.at + bytes.moment;
    second.form = type == GR_I8 ? FORM_V8 : form_of(type);
    second.scales = (char *)gr_moment_scale(second.at, type, n, 0);
    return (state_pieces){bytes.form, bytes.moments > 0, bytes.moments > 1, master, first, second};
}

/* Whether a model's weights are the upper half of their master. */
static bool is_split(const gr_bytes *b, const gr_model *m, uint32_t bucket)
{
    return m->trained && gr_state_bytes_of(b->k, m, bucket, 1).form == GR_MASTER_SPLIT;
}

/* Weights are there as a whole, or as a shard. */
static piece weights_of(const gr_bytes *b, const gr_model *m, uint32_t bucket, const void *address,
                        gr_queue *q)
{
    const bool sharded = gr_part_spread(b->p, m, gr_part_stepped(m), bucket) == GR_SPREAD_FLAT;
    piece p = sharded ? own_piece(b, m, bucket) : (piece){.n = gr_bucket_elems(gr_model_trains(m), bucket)};
    p.at = (char *)(uintptr_t)address;
    p.form = gr_bucket_is_closed(m, bucket) ? FORM_NF4
             : is_split(b, m, bucket)       ? FORM_HIGH
                                            : form_of(b->k->dtype);
    p.shape = &m->shape;
    p.bucket = bucket;
    p.q = q;
    return p;
}

/* A copy that every rank has whole, or its slice of. */
static piece copy_of(const gr_bytes *b, const gr_model *m, uint32_t bucket, const void *address, gr_queue *q)
{
    return (piece){.at = (char *)(uintptr_t)address,
                   .n = gr_bucket_elems(&m->sharding.slice, bucket),
                   .form = is_split(b, m, bucket) ? FORM_HIGH : form_of(b->k->dtype),
                   .q = q};
}

/* Whether it is a slice, and what it has of the bucket. */
static bool is_cut(const gr_bytes *b, const gr_model *m, uint32_t bucket, gr_tp_block *blocks, size_t *n)
{
    const gr_slicing cut = m->sharding.rollout;
    if (gr_part_spread(b->p, m, GR_PART_ROLLOUT, bucket) != GR_SPREAD_SLICED) return false;
    *n = gr_tp_blocks(&m->shape, cut, gr_comm_rank(b->comm) % gr_slicing_parts(cut), bucket, blocks);
    return true;
}

/* Before the first iteration they are the weights. */
static gr_status read_lagged(gr_bytes *b, const gr_model *m, uint32_t bucket, const piece *p, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    gr_status st = GR_OK;
    if (!b->from) return read_weights(b, m, bucket, p, d);
    if (!f->lagged) {
        char *path = gr_printf("%s/%s/lagged.safetensors", b->from, m->name);
        st = gr_weights_open(&f->lagged, &m->shape, path, "", d);
        if (!st) st = hold(b, f->lagged, m, "lagged", d);
        free(path);
    }
    if (!st) st = gr_weights_read_part(f->lagged, bucket, p->first, p->n, room(b, p), d);
    if (!st) put(b, p);
    return st;
}

/* Files have whole buckets. */
static gr_status read_copy(gr_bytes *b, const gr_model *m, uint32_t bucket, const piece *p, gr_diag *d)
{
    gr_tp_block blocks[GR_TP_BLOCKS_MAX];
    size_t n_blocks;
    if (!is_cut(b, m, bucket, blocks, &n_blocks)) return read_lagged(b, m, bucket, p, d);
    const uint64_t n = gr_bucket_elems(&m->shape, bucket);
    float *whole = gr_malloc(n * sizeof(*whole));
    gr_queue host = {.team = p->q->team};
    gr_status st = read_lagged(b, m, bucket, &(piece){.at = (char *)whole, .n = n, .q = &host}, d);
    float *slice = room(b, p);
    memset(slice, 0, p->n * sizeof(*slice));
    for (size_t i = 0; i < n_blocks && !st; i++)
        for (uint64_t r = 0; r < blocks[i].count; r++)
            memcpy(slice + blocks[i].to + r * blocks[i].to_stride,
                   whole + blocks[i].from + r * blocks[i].from_stride, blocks[i].n * sizeof(*slice));
    if (!st) put(b, p);
    free(whole);
    return st;
}

gr_status gr_bytes_restore(gr_bytes *b, const char *what, void *address, gr_queue *q, gr_diag *d)
{
    const gr_model *m;
    const gr_object *o = find(b, what, &m);
    if (o->category == GR_CAT_WEIGHTS) {
        piece p = weights_of(b, m, o->bucket, address, q);
        return read_weights(b, m, o->bucket, &p, d);
    }
    if (o->category == GR_CAT_ROLLOUT) {
        piece p = copy_of(b, m, o->bucket, address, q);
        return read_copy(b, m, o->bucket, &p, d);
    }
    state_pieces s = state_of(b, m, o->bucket, address, q);
    gr_status st = s.master_is != GR_MASTER_NONE ? read_weights(b, m, o->bucket, &s.master, d) : GR_OK;
    if (!st) st = open_moments(b, m, d);
    if (!st && s.has_m) st = read_moment(b, b->files[m->index].m, o->bucket, &s.m, d);
    return st || !s.has_v ? st : read_moment(b, b->files[m->index].v, o->bucket, &s.v, d);
}

/* ---- save
 * --------------------------------------------------------------------------------------------------- */

static const char *const weights[] = {""}, *const moments[] = {"m.", "v."};

static bool saves_state(const gr_bytes *b, const gr_model *m)
{
    return b->saved.state >> m->index & 1;
}

static bool saves_moments(const gr_bytes *b, const gr_model *m)
{
    return saves_state(b, m) && gr_model_moments(m);
}

static bool saves_lagged(const gr_bytes *b, const gr_model *m)
{
    return b->saved.lagged >> m->index & 1;
}

static gr_status write_config(const char *dir, const gr_model *m, gr_diag *d)
{
    if (gr_model_has_lora(m)) {
        char *base = gr_path_real(m->files.checkpoint); /* it is looked for from other folders */
        gr_status st =
            gr_peft_write(dir, &m->lora.shape, m->lora.alpha, base ? base : m->files.checkpoint, d);
        free(base);
        return st;
    }
    return gr_checkpoint_write_config(dir, &m->shape, m->files.checkpoint, m->files.folder, GR_ST_F32, d);
}

static gr_status open_writers(gr_bytes *b, const gr_model *m, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    const gr_model_shape *s = gr_model_trains(m);
    char *dir = gr_printf("%s/%s", b->to, m->name);
    gr_status st = gr_dir_make(dir, d);
    if (!st && saves_state(b, m)) st = write_config(dir, m, d);
    if (!st && saves_state(b, m))
        st = gr_weights_writer_new(&f->to_weights, s, dir, weights_stem(m), weights, 1, GR_ST_F32, 0, d);
    if (!st && saves_moments(b, m))
        st = gr_weights_writer_new(&f->to_moments, s, dir, "optimizer", moments, gr_model_moments(m),
                                   GR_ST_F32, 0, d);
    if (!st && saves_lagged(b, m))
        st = gr_weights_writer_new(&f->to_lagged, &m->shape, dir, "lagged", weights, 1, GR_ST_F32, 0, d);
    free(dir);
    return st;
}

/* The files that rank 0 has opened. */
static gr_status join_writers(gr_bytes *b, const gr_model *m, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    char *dir = gr_printf("%s/%s", b->to, m->name);
    gr_status st = GR_OK;
    if (saves_state(b, m))
        st = gr_weights_writer_join(&f->to_weights, gr_model_trains(m), dir, weights_stem(m), weights, 1, d);
    if (!st && saves_moments(b, m))
        st = gr_weights_writer_join(&f->to_moments, gr_model_trains(m), dir, "optimizer", moments,
                                    gr_model_moments(m), d);
    if (!st && saves_lagged(b, m))
        st = gr_weights_writer_join(&f->to_lagged, &m->shape, dir, "lagged", weights, 1, d);
    free(dir);
    return st;
}

static gr_status await_all(gr_bytes *b, gr_diag *d)
{
    return b->comm ? b->comm->type->barrier(b->comm, d) : GR_OK;
}

void gr_bytes_seal(gr_bytes *b, gr_bytes_saved all)
{
    b->sealed = all;
}

/* Seals of all files of a checkpoint, whoever writes them: ranks put them together. */
static void make_seals(gr_bytes *b)
{
    free_seals(b);
    for (size_t i = 0; i < b->g->n_models; i++) {
        const gr_model *m = b->g->models[i];
        gr_seal **s = b->files[i].seals;
        if (b->sealed.state >> i & 1) s[0] = gr_weights_seal_new(gr_model_trains(m), weights, 1);
        if (b->sealed.state >> i & 1 && gr_model_moments(m))
            s[1] = gr_weights_seal_new(gr_model_trains(m), moments, gr_model_moments(m));
        if (b->sealed.lagged >> i & 1) s[2] = gr_weights_seal_new(&m->shape, weights, 1);
    }
}

static void seal_writers(model_files *f)
{
    gr_weights_writer *const to[SAVED_FILES] = {f->to_weights, f->to_moments, f->to_lagged};
    for (size_t k = 0; k < SAVED_FILES; k++)
        if (to[k] && f->seals[k]) gr_weights_writer_seal(to[k], f->seals[k]);
}

gr_sealed_file *gr_bytes_sealed(gr_bytes *b, size_t *n)
{
    gr_sealed_file *files = NULL;
    size_t cap = 0;
    *n = 0;
    for (size_t i = 0; i < b->g->n_models; i++)
        for (size_t k = 0; k < SAVED_FILES; k++) {
            gr_sealed_file f = {NULL, b->files[i].seals[k]};
            if (!f.seal) continue;
            f.name = gr_printf("%s/%s.safetensors", b->g->models[i]->name,
                               k ? saved_names[k] : weights_stem(b->g->models[i]));
            GR_PUSH(files, *n, cap, f);
        }
    return files;
}

gr_status gr_bytes_to(gr_bytes *b, const char *step_dir, gr_diag *d)
{
    close_writers(b);
    make_seals(b);
    free(b->to);
    b->to = gr_strdup(step_dir);
    b->not_finite = false;
    gr_status st = gr_comm_rank(b->comm) ? await_all(b, d) : GR_OK;
    for (size_t i = 0; i < b->g->n_models && !st; i++) {
        const gr_model *m = b->g->models[i];
        if (!saves_state(b, m) && !saves_lagged(b, m)) continue;
        st = gr_comm_rank(b->comm) ? join_writers(b, m, d) : open_writers(b, m, d);
        if (!st) seal_writers(&b->files[i]);
    }
    return st || gr_comm_rank(b->comm) ? st : await_all(b, d);
}

typedef struct finite_look {
    const float *x;
    uint64_t n;
    atomic_bool bad;
} finite_look;

static void look_finite(void *arg, unsigned rank, unsigned n)
{
    finite_look *l = arg;
    uint64_t first, last;
    gr_team_range(l->n, 4096, rank, n, &first, &last);
    if (!gr_f32_all_finite(l->x + first, last - first)) l->bad = true;
}

/* The floats whose upper halves are at p, or that are there. */
static const float *get_master(gr_bytes *b, const piece *p, const piece *low)
{
    const float *high = get(b, p);
    if (!low) return high;
    const uint64_t bytes = low->n * form_size(low->form);
    gr_device_read(p->q, small_room(b, bytes), low->at, bytes);
    gr_team_run(p->q->team, join, &(conversion){b, p});
    return high;
}

static gr_status put_part(gr_bytes *b, gr_weights_writer *to, size_t set, uint32_t bucket, const piece *p,
                          const piece *low, gr_diag *d)
{
    finite_look look = {.x = get_master(b, p, low), .n = p->n};
    gr_team_run(p->q->team, look_finite, &look);
    b->not_finite = b->not_finite || look.bad;
    return gr_weights_writer_put_part(to, p->q->team, set, bucket, p->first, p->n, look.x, d);
}

/* Of weights that all ranks have, each writes its shard; of what replicas have, the first one. low: the lower
 * halves of what p has the upper ones of, this rank's shard; or NULL. */
static gr_status save_piece(gr_bytes *b, gr_weights_writer *to, size_t set, const gr_model *m,
                            uint32_t bucket, piece p, const piece *low, gr_diag *d)
{
    piece own = own_piece(b, m, bucket);
    if (!to) return GR_OK;                                                 /* ranks of another role save it */
    if (gr_comm_rank(b->comm) >= gr_placed(b->p, m)->shards) return GR_OK; /* as the first replica does */
    p.at += (own.first - p.first) * form_size(p.form);
    p.first = own.first;
    p.n = own.n;
    return p.n ? put_part(b, to, set, bucket, &p, low, d) : GR_OK;
}

/* Of slices, those of the first ranks that have all of them; what each has whole, the first one writes. */
static gr_status save_copy(gr_bytes *b, const gr_model *m, uint32_t bucket, piece p, gr_diag *d)
{
    gr_weights_writer *to = b->files[m->index].to_lagged;
    gr_tp_block blocks[GR_TP_BLOCKS_MAX];
    size_t n;
    if (!is_cut(b, m, bucket, blocks, &n)) return save_piece(b, to, 0, m, bucket, p, NULL, d);
    gr_status st = GR_OK;
    if (!to || gr_comm_rank(b->comm) >= gr_slicing_parts(m->sharding.rollout)) return GR_OK;
    const float *slice = get(b, &p);
    for (size_t i = 0; i < n && !st; i++) {
        if (blocks[i].common && gr_comm_rank(b->comm)) continue;
        for (uint64_t r = 0; r < blocks[i].count && !st; r++)
            st = gr_weights_writer_put_part(to, p.q->team, 0, bucket,
                                            blocks[i].from + r * blocks[i].from_stride, blocks[i].n,
                                            slice + blocks[i].to + r * blocks[i].to_stride, d);
    }
    return st;
}

/* What weights are saved from: a master, or the weights and what they lack of it. */
static gr_status save_master(gr_bytes *b, const gr_model *m, uint32_t bucket, const state_pieces *s,
                             const void *with, gr_queue *q, gr_diag *d)
{
    gr_weights_writer *to = b->files[m->index].to_weights;
    if (s->master_is == GR_MASTER_NONE) return GR_OK; /* saved as they are */
    if (s->master_is == GR_MASTER_F32) return save_piece(b, to, 0, m, bucket, s->master, NULL, d);
    return save_piece(b, to, 0, m, bucket, weights_of(b, m, bucket, with, q), &s->master, d);
}

gr_status gr_bytes_save(gr_bytes *b, const char *what, const void *address, const void *with, gr_queue *q,
                        gr_diag *d)
{
    const gr_model *m;
    const gr_object *o = find(b, what, &m);
    model_files *f = &b->files[m->index];
    if (o->category == GR_CAT_WEIGHTS) {
        if (gr_state_bytes_of(b->k, m, o->bucket, 1).master) return GR_OK; /* saved from it */
        return save_piece(b, f->to_weights, 0, m, o->bucket, weights_of(b, m, o->bucket, address, q), NULL,
                          d);
    }
    if (o->category == GR_CAT_ROLLOUT)
        return save_copy(b, m, o->bucket, copy_of(b, m, o->bucket, address, q), d);
    state_pieces s = state_of(b, m, o->bucket, address, q);
    gr_status st = save_master(b, m, o->bucket, &s, with, q, d);
    if (!st && s.has_m) st = save_piece(b, f->to_moments, 0, m, o->bucket, s.m, NULL, d);
    return st || !s.has_v ? st : save_piece(b, f->to_moments, 1, m, o->bucket, s.v, NULL, d);
}

gr_status gr_bytes_finish(gr_bytes *b, gr_diag *d)
{
    gr_status st = gr_comm_rank(b->comm) ? GR_OK : await_all(b, d);
    for (size_t i = 0; i < b->g->n_models && !st; i++) {
        if (b->files[i].to_weights) st = gr_weights_writer_finish(b->files[i].to_weights, d);
        if (!st && b->files[i].to_moments) st = gr_weights_writer_finish(b->files[i].to_moments, d);
        if (!st && b->files[i].to_lagged) st = gr_weights_writer_finish(b->files[i].to_lagged, d);
    }
    close_writers(b);
    return st || !gr_comm_rank(b->comm) ? st : await_all(b, d);
}

bool gr_bytes_finite(const gr_bytes *b)
{
    return !b->not_finite;
}
