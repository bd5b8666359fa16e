/* tests/bench/gpu/bench_head.c: the fused head's log-probs of 8192 rows, vocabulary 151,936, hidden 4,096, in
 * chunks as the product takes them, against the matrix product alone, in one call. Lines of JSON;
 * tests/bench/gpu/torch_work.py head is the other side. bench_head [ROWS VOCABULARY HIDDEN]
 */
#include "tests/bench/gpu/timing.h"

#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/kernels.h"

#define K gr_kernels_cuda

typedef struct head {
    gr_model_shape shape;
    uint32_t rows, chunk;
    bool keep;
    gr_bf16 *x, *norm, *lm, *product;
    uint32_t *row;
    int32_t *target;
    float *logprob;
    void *ws;
    gr_cu_gemm *gemm;
    bench *b;
} head;

static void forward(gr_queue *q, int which, void *arg)
{
    const head *h = arg;
    (void)which;
    for (uint32_t at = 0; at < h->rows; at += h->chunk) {
        const gr_head_rows rows = {.n = GR_MIN(h->chunk, h->rows - at),
                                   .row = h->row + at,
                                   .target = h->target + at,
                                   .inv_temperature = 1,
                                   .keep = h->keep};
        K.head_forward(q, &h->shape, h->norm, h->lm, h->x, &rows,
                       &(gr_head_stats){.logprob = h->logprob + at}, h->ws);
    }
}

static void product(gr_queue *q, int which, void *arg)
{
    head *h = arg;
    const uint32_t hidden = h->shape.hidden, vocab = h->shape.vocab;
    const gr_cu_gemm_call call = {.form = GR_CU_GEMM_NT,
                                  .m = h->rows,
                                  .n = vocab,
                                  .k = hidden,
                                  .a = h->x,
                                  .b = h->lm,
                                  .lda = hidden,
                                  .ldb = hidden,
                                  .ldd = vocab,
                                  .d = h->product,
                                  .type = GR_CU_BF16};
    (void)which;
    need(h->b, gr_cu_gemm_run(h->gemm, q->stream, &call, h->ws, &h->b->d));
}

enum { WARM = 40 }; /* products: half a second of an H200 */

static void write_rows(bench *b, gr_queue *q, head *h)
{
    uint32_t *row = gr_malloc(h->rows * sizeof(*row));
    int32_t *target = gr_malloc(h->rows * sizeof(*target));
    for (uint32_t i = 0; i < h->rows; i++) {
        row[i] = i;
        target[i] = (int32_t)(i * UINT64_C(2654435761) % h->shape.vocab);
    }
    h->row = bench_take(b, h->rows * sizeof(*row));
    h->target = bench_take(b, h->rows * sizeof(*target));
    h->logprob = bench_take(b, h->rows * sizeof(float));
    gr_device_write(q, h->row, row, h->rows * sizeof(*row));
    gr_device_write(q, h->target, target, h->rows * sizeof(*target));
    free(row);
    free(target);
}

/* The head between two products each time, TIMES times: a device that is hot, or short of power, is so for
 * both. The share is the median of the neighbours' ratios. */
static void measure(bench *b, gr_queue *q, head *h, bool planned)
{
    const double flops = 2.0 * h->rows * (double)h->shape.vocab * (double)h->shape.hidden * 1e-12;
    double alone[TIMES], fused[TIMES], share[TIMES];
    char row[96];
    once(b, q, forward, h);
    double before = once(b, q, product, h);
    for (int i = 0; i < TIMES; i++) {
        fused[i] = once(b, q, forward, h);
        const double after = once(b, q, product, h);
        alone[i] = (before + after) / 2;
        share[i] = alone[i] / fused[i];
        before = after;
    }
    const double middle = median(share); /* sorts them */
    if (planned) print_result("head log-prob, share of the product", middle, "");
    const char *what = h->keep ? "head log-prob, logits kept" : "head log-prob";
    snprintf(row, sizeof(row), "%s, chunks of %u rows: share of the product", what, h->chunk);
    print_result(row, middle, "");
    snprintf(row, sizeof(row), "%s, chunks of %u rows: least share", what, h->chunk);
    print_result(row, share[0], "");
    snprintf(row, sizeof(row), "%s, chunks of %u rows", what, h->chunk);
    print_result(row, flops / median(fused), "TFLOP/s");
    snprintf(row, sizeof(row), "%s, chunks of %u rows: product beside it", what, h->chunk);
    print_result(planned ? "head product alone" : row, flops / median(alone), "TFLOP/s");
}

int main(int argc, char **argv)
{
    const uint32_t planned = K.sizes.head_rows, chunks[] = {planned, 768, 1024, 2048, 8192};
    const uint32_t rows = argc > 3 ? (uint32_t)atoi(argv[1]) : 8192;
    bench b = {0};
    head h = {.rows = rows,
              .shape = {.vocab = argc > 3 ? (uint32_t)atoi(argv[2]) : 151936,
                        .hidden = argc > 3 ? (uint32_t)atoi(argv[3]) : 4096,
                        .norm_eps = 1e-6f},
              .b = &b};
    const uint64_t vocab = h.shape.vocab, hidden = h.shape.hidden;
    const uint32_t kept =
        GR_MAX(K.sizes.head_elems / h.shape.vocab / K.sizes.head_step * K.sizes.head_step, 1u);
    const uint64_t ws = GR_MAX(K.head_ws_bytes(&h.shape, 8192, GR_HEAD_LOGPROB, 1),
                               K.head_ws_bytes(&h.shape, kept, GR_HEAD_GRADIENT, 1));
    bench_open(&b, 2 * (vocab * hidden + rows * hidden + rows * vocab) + ws + GIB / 4, 0);
    gr_queue q = bench_queue(&b);
    need(&b, K.attach(&q, &b.d));
    need(&b, gr_cu_gemm_open(&h.gemm, &b.d));
    h.lm = random_values(&b, &q, vocab * hidden, 1);
    h.x = random_values(&b, &q, rows * hidden, 2);
    h.norm = random_values(&b, &q, hidden, 3);
    h.product = bench_take(&b, rows * vocab * sizeof(gr_bf16));
    h.ws = bench_take(&b, ws);
    write_rows(&b, &q, &h);
    for (int i = 0; i < WARM; i++) once(&b, &q, product, &h);
    for (size_t i = 0; i < GR_LEN(chunks); i++) {
        h.chunk = chunks[i];
        measure(&b, &q, &h, i == 0);
    }
    h.chunk = kept;
    h.keep = true;
    measure(&b, &q, &h, false);
    need(&b, K.check(&q, &b.d));
    gr_cu_gemm_close(h.gemm);
    K.detach(&q);
    b.dev->type->queue_close(&q);
    b.dev->type->close(b.dev);
}
