#include "runtime/bytes.h"

#include "ops/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* One model's files, while they are open. Sets: weights; first moments; second moments. */
typedef struct model_files {
    gr_weights *weights, *m, *v;
    gr_weights_writer *to_weights, *to_moments;
} model_files;

struct gr_bytes {
    const gr_graph *g;
    const gr_program *p;
    model_files *files; /* by model */
    char *from, *to;    /* step directories; from NULL: the models' own checkpoints */
};

gr_bytes *gr_bytes_new(const gr_graph *g, const gr_program *p)
{
    gr_bytes *b = gr_calloc(1, sizeof(*b));
    *b = (gr_bytes){.g = g, .p = p, .files = gr_calloc(g->n_models, sizeof(*b->files))};
    return b;
}

static void close_readers(gr_bytes *b)
{
    for (size_t i = 0; i < b->g->n_models; i++) {
        gr_weights_free(b->files[i].weights);
        gr_weights_free(b->files[i].m);
        gr_weights_free(b->files[i].v);
        b->files[i].weights = b->files[i].m = b->files[i].v = NULL;
    }
}

static void close_writers(gr_bytes *b)
{
    for (size_t i = 0; i < b->g->n_models; i++) {
        gr_weights_writer_free(b->files[i].to_weights);
        gr_weights_writer_free(b->files[i].to_moments);
        b->files[i].to_weights = b->files[i].to_moments = NULL;
    }
}

void gr_bytes_free(gr_bytes *b)
{
    if (!b) return;
    close_readers(b);
    close_writers(b);
    free(b->files);
    free(b->from);
    free(b->to);
    free(b);
}

/* The object a step names, and its model. */
static const gr_object *find(const gr_bytes *b, const char *what, const gr_model **m)
{
    const gr_object *o = &b->p->objects[gr_program_find(b->p, what)];
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

static gr_status restore_weights(gr_bytes *b, const gr_model *m, uint32_t bucket, float *dst, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    bool own = b->from && m->trained; /* models that are never trained are not part of a run's checkpoints */
    if (m->random && !own) {
        gr_weights_random_bucket(&m->shape, b->g->run.seed ^ gr_stream(m->name), bucket, dst);
        return GR_OK;
    }
    gr_status st = GR_OK;
    if (!f->weights) {
        char *path = own ? gr_printf("%s/%s", b->from, m->name) : gr_strdup(m->checkpoint);
        st = gr_weights_open(&f->weights, &m->shape, path, "", d);
        free(path);
    }
    if (!st) st = gr_weights_read_bucket(f->weights, bucket, dst, d);
    if (!st && bucket == m->shape.layers + 1 && m->shape.head == GR_HEAD_VALUE &&
        !gr_weights_has_head(f->weights))
        gr_weights_random_head(&m->shape, b->g->run.seed ^ gr_stream(m->name), dst);
    return st;
}

static gr_status restore_moments(gr_bytes *b, const gr_model *m, uint32_t bucket, float *dst, gr_diag *d)
{
    model_files *f = &b->files[m->index];
    uint64_t n = gr_bucket_elems(&m->shape, bucket);
    gr_status st = GR_OK;
    if (!b->from) {
        memset(dst, 0, 2 * n * sizeof(*dst));
        return GR_OK;
    }
    if (!f->m) {
        char *path = gr_printf("%s/%s/optimizer.safetensors", b->from, m->name);
        st = gr_weights_open(&f->m, &m->shape, path, "m.", d);
        if (!st) st = gr_weights_open(&f->v, &m->shape, path, "v.", d);
        free(path);
    }
    if (!st) st = gr_weights_read_bucket(f->m, bucket, dst, d);
    return st ? st : gr_weights_read_bucket(f->v, bucket, dst + n, d);
}

gr_status gr_bytes_restore(gr_bytes *b, const char *what, void *address, gr_diag *d)
{
    const gr_model *m;
    const gr_object *o = find(b, what, &m);
    return o->category == GR_CAT_WEIGHTS ? restore_weights(b, m, o->bucket, address, d)
                                         : restore_moments(b, m, o->bucket, address, d);
}

/* ---- save
 * --------------------------------------------------------------------------------------------------- */

static gr_status open_writers(gr_bytes *b, const gr_model *m, gr_diag *d)
{
    static const char *const weights[] = {""}, *const moments[] = {"m.", "v."};
    model_files *f = &b->files[m->index];
    char *dir = gr_printf("%s/%s", b->to, m->name);
    gr_status st = gr_dir_make(dir, d);
    if (!st) st = gr_checkpoint_write_config(dir, &m->shape, m->checkpoint, m->folder, GR_ST_F32, d);
    if (!st) st = gr_weights_writer_new(&f->to_weights, &m->shape, dir, "model", weights, 1, GR_ST_F32, 0, d);
    if (!st)
        st = gr_weights_writer_new(&f->to_moments, &m->shape, dir, "optimizer", moments, 2, GR_ST_F32, 0, d);
    free(dir);
    return st;
}

gr_status gr_bytes_to(gr_bytes *b, const char *step_dir, gr_diag *d)
{
    close_writers(b);
    free(b->to);
    b->to = gr_strdup(step_dir);
    gr_status st = GR_OK;
    for (size_t i = 0; i < b->g->n_models && !st; i++)
        if (b->g->models[i]->trained) st = open_writers(b, b->g->models[i], d);
    return st;
}

gr_status gr_bytes_save(gr_bytes *b, const char *what, const void *address, gr_diag *d)
{
    const gr_model *m;
    const gr_object *o = find(b, what, &m);
    model_files *f = &b->files[m->index];
    const float *elems = address;
    if (o->category == GR_CAT_WEIGHTS) return gr_weights_writer_put(f->to_weights, o->bucket, elems, d);
    gr_status st = gr_weights_writer_put(f->to_moments, o->bucket, elems, d);
    return st ? st
              : gr_weights_writer_put(f->to_moments, o->bucket, elems + gr_bucket_elems(&m->shape, o->bucket),
                                      d);
}

gr_status gr_bytes_finish(gr_bytes *b, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < b->g->n_models && !st; i++) {
        if (!b->files[i].to_weights) continue;
        st = gr_weights_writer_finish(b->files[i].to_weights, d);
        if (!st) st = gr_weights_writer_finish(b->files[i].to_moments, d);
    }
    close_writers(b);
    return st;
}
