/* tests/bench/bench_update.c: one training step of a llama-like model of 25 million parameters: forward,
 * loss, backward, clipping norm and AdamW over 8 sequences of 256 tokens. tests/bench/bench_update_torch.py
 * does the same work in PyTorch; run them in turn. Prints the seconds of each step and tokens/s of the best.
 *
 * bench_update [threads [steps]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/kernels/layer.h"
#include "ops/model/weights.h"

#define K gr_kernels_cpu

enum { SEQS = 8, LENGTH = 256, T = SEQS * LENGTH, CHUNK = 512 };

static gr_model_shape shape = {
    .vocab = 4096, .hidden = 512, .layers = 8, .max_positions = 2048, .tied = true, .init_std = 0.02};

struct model {
    gr_queue q;
    float *w[16], *g[16], *m[16], *v[16], *in[16];
    void *acts[16], *ws;
    float *x, *dx;
    int32_t ids[T];
    uint32_t offset[SEQS + 1];
};

static void *buffer(uint64_t bytes)
{
    return memset(aligned_alloc(256, gr_align(bytes, 256)), 0, bytes);
}

static void model_init(struct model *p, unsigned threads)
{
    if (gr_team_new(&p->q.team, threads, NULL)) exit(1);
    const gr_pass_bounds b = {.tokens = T, .seqs = SEQS, .length = LENGTH, .threads = threads};
    uint64_t ws = GR_MAX(gr_layers_ws_bytes(&K, &shape, &b, GR_LAYER_FORWARD),
                         gr_layers_ws_bytes(&K, &shape, &b, GR_LAYER_BACKWARD));
    p->ws = buffer(GR_MAX(ws, K.head_ws_bytes(&shape, CHUNK, GR_HEAD_GRADIENT, threads)));
    p->x = buffer((uint64_t)T * shape.hidden * sizeof(float));
    p->dx = buffer((uint64_t)T * shape.hidden * sizeof(float));
    for (uint32_t i = 0; i < gr_model_buckets(&shape); i++) {
        const uint64_t bytes = gr_bucket_elems(&shape, i) * sizeof(float);
        p->w[i] = buffer(bytes);
        p->g[i] = buffer(bytes);
        p->m[i] = buffer(bytes);
        p->v[i] = buffer(bytes);
        gr_weights_random_bucket(NULL, &shape, 1, i, p->w[i]);
        p->in[i] = buffer((uint64_t)T * shape.hidden * sizeof(float));
        p->acts[i] = buffer(gr_layers_acts_bytes(&K, &shape, &b));
    }
    for (uint32_t i = 0; i < T; i++) p->ids[i] = (int32_t)(i * 2654435761u >> 20);
    for (uint32_t i = 0; i <= SEQS; i++) p->offset[i] = i * LENGTH;
}

static double head(struct model *p)
{
    const uint32_t last = shape.layers + 1;
    float logprob[CHUNK], d_logprob[CHUNK];
    uint32_t row[CHUNK];
    int32_t target[CHUNK];
    double loss = 0;
    for (uint32_t at = 0; at < T; at += CHUNK) {
        for (uint32_t i = 0; i < CHUNK; i++) {
            row[i] = at + i;
            target[i] = p->ids[(at + i + 1) % T];
            d_logprob[i] = -1.0f / T;
        }
        const gr_head_rows rows = {
            .n = CHUNK, .row = row, .target = target, .inv_temperature = 1, .keep = true};
        K.head_forward(&p->q, &shape, p->w[last], p->w[0], p->x, &rows, &(gr_head_stats){.logprob = logprob},
                       p->ws);
        K.head_backward(&p->q, &shape, p->w[last], p->w[0], p->x, &rows, d_logprob, NULL, p->dx, p->g[last],
                        p->g[0], GR_F32, p->ws);
        for (uint32_t i = 0; i < CHUNK; i++) loss -= (double)logprob[i] / T;
    }
    return loss;
}

static double step(struct model *p, uint32_t n)
{
    const gr_packed b = {
        .n_tokens = T, .n_seqs = SEQS, .ids = p->ids, .offset = p->offset, .host_offset = p->offset};
    K.embed_forward(&p->q, &shape, p->w[0], &b, p->x);
    for (uint32_t l = 0; l < shape.layers; l++)
        gr_layer_forward(&K, &p->q, &shape, l, p->w[l + 1], &b, p->x, p->in[l], p->acts[l], p->ws);
    const double loss = head(p);
    for (uint32_t l = shape.layers; l--;)
        gr_layer_backward(&K, &p->q, &shape, l, p->w[l + 1], NULL, &b, p->in[l], p->acts[l], p->dx,
                          p->g[l + 1], GR_F32, p->ws);
    K.embed_backward(&p->q, &shape, &b, p->dx, p->g[0], GR_F32, p->ws);
    double squares = 0;
    for (uint32_t i = 0; i < gr_model_buckets(&shape); i++) {
        double part;
        K.sum_squares(&p->q, p->g[i], GR_F32, gr_bucket_elems(&shape, i), &part, NULL);
        squares += part;
    }
    const gr_optim how = {
        1e-4,          0.9, 0.999, 1e-8, 0.01, n, squares > 1 ? (float)(1 / __builtin_sqrt(squares)) : 1,
        GR_OPTIM_ADAMW};
    for (uint32_t i = 0; i < gr_model_buckets(&shape); i++) {
        const uint64_t elems = gr_bucket_elems(&shape, i);
        K.optim_step(&p->q, &how, true,
                     &(gr_optim_range){.w = p->w[i], .g = p->g[i], .m = p->m[i], .v = p->v[i]}, elems);
        K.zero(&p->q, p->g[i], elems * sizeof(float));
    }
    return loss;
}

int main(int argc, char **argv)
{
    const unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
    const uint32_t steps = argc > 2 ? (uint32_t)atoi(argv[2]) : 6;
    struct model *p = gr_calloc(1, sizeof(*p));
    const gr_layer_desc layer = gr_layer_plain(8, 4, 64, 1408);
    gr_model_of(&shape, &layer);
    model_init(p, threads);
    printf("graphrun, %.1f M parameters, %u threads\n", (double)gr_model_params(&shape) / 1e6, threads);
    double best = 1e30;
    for (uint32_t i = 1; i <= steps; i++) {
        const uint64_t t0 = gr_now_ns();
        const double loss = step(p, i), seconds = (double)(gr_now_ns() - t0) / 1e9;
        printf("step %u: loss %.4f, %.3f s\n", i, loss, seconds);
        best = GR_MIN(best, seconds);
    }
    printf("best: %.0f tokens/s\n", T / best);
}
