/* tests/gpu/gpu_fp8_layer.c: layers in FP8 on CUDA, whose norms, activations and decode steps' attention
 * leave their results rounded, beside the same layers without that, which round them afterwards: the same
 * bits, packed and in steps of a rollout, of any number of tokens.
 *
 *     gpu_fp8_layer           compare; a line a case
 *     gpu_fp8_layer --small   without the large ones
 *     gpu_fp8_layer --bench   times of a layer of 8B and of 1.7B both ways, in turn
 */
#include "ops/kernels/cuda/decode_sizes.h"
#include "ops/kernels/cuda/fp8.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/strict.h"
#include "ops/kernels/layer.h"
#include "ops/kernels/layer_ops.h"
#include "ops/model/fp8.h"
#include "tests/gpu/attach.h"
#include "tests/gpu/device.h"
#include "tests/gpu/models.h"

#include <assert.h>

/* A table of kernels that rounds afterwards. */
typedef struct table {
    gr_kernels kernels;
    gr_layer_ops layer;
} table;

static void without(table *t, const gr_kernels *k)
{
    t->kernels = *k;
    t->layer = *k->layer;
    t->layer.norm_round = NULL;
    t->layer.activate_round = NULL;
    t->layer.attend_round = NULL;
    t->kernels.layer = &t->layer;
}

/* The bucket of a layer, random. */
static char *random_layer(const gr_model_shape *s)
{
    char *w = device_poisoned(gr_fp8_bucket_bytes(s, 1, sizeof(gr_bf16)));
    for (int slot = GR_T_MIXER_NORM; slot <= GR_T_MLP_AFTER; slot++) {
        gr_fp8_tensor t;
        if (!gr_fp8_tensor_at(s, 1, (gr_tensor_slot)slot, sizeof(gr_bf16), &t)) continue;
        const bool norm = t.scales == UINT64_MAX;
        const size_t n = norm ? t.bytes / sizeof(gr_bf16) : (size_t)t.rows * t.cols;
        gr_bf16 *x = device_random_bf16(n, (uint64_t)slot);
        if (norm)
            CUDA(cudaMemcpy(w + t.at, x, n * sizeof(*x), cudaMemcpyDeviceToDevice));
        else
            gr_cu_fp8_weights(NULL, x, (uint8_t *)w + t.at, (float *)(w + t.scales), t.rows, t.cols);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaFree(x));
    }
    return w;
}

/* A layer over tokens: packed sequences, or a step of a rollout with one token a sequence. */
typedef struct pass {
    gr_queue *q;
    const gr_kernels *k;
    gr_model_shape shape;
    char *w;
    uint32_t tokens, seqs;
    uint32_t *host_offset, *offset;
    int32_t *position;
    gr_bf16 *x;
    void *ws, *acts; /* acts NULL: nothing is kept */
    gr_extend step;
    gr_decode decode;
    void *state; /* NULL: packed */
    void *device[16];
    int n_device;
} pass;

static void *kept(pass *p, void *device)
{
    assert(p->n_device < (int)GR_LEN(p->device));
    return p->device[p->n_device++] = device;
}

static void pass_free(pass *p)
{
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < p->n_device; i++) CUDA(cudaFree(p->device[i]));
    free(p->host_offset);
}

/* length: tokens of a sequence, but the last one's. */
static pass packed_pass(gr_queue *q, const gr_model_shape *s, uint32_t tokens, uint32_t length, bool keeps)
{
    pass p = {.q = q, .shape = *s, .tokens = tokens, .seqs = (tokens + length - 1) / length};
    const gr_pass_bounds bounds = {.tokens = tokens, .seqs = p.seqs, .length = length, .threads = 1};
    int32_t *position = gr_calloc(tokens, sizeof(*position));
    p.host_offset = gr_calloc(p.seqs + 1, sizeof(*p.host_offset));
    for (uint32_t i = 0; i <= p.seqs; i++) p.host_offset[i] = GR_MIN(i * length, tokens);
    for (uint32_t t = 0; t < tokens; t++) position[t] = (int32_t)(t % length);
    p.offset = kept(&p, device_copy(p.host_offset, (p.seqs + 1) * sizeof(*p.offset)));
    p.position = kept(&p, device_copy(position, tokens * sizeof(*position)));
    p.ws = kept(&p, device_poisoned(gr_layer_ws_bytes(&gr_kernels_cuda, s, 0, &bounds,
                                                      keeps ? GR_LAYER_KEEP : GR_LAYER_FORWARD)));
    if (keeps) p.acts = kept(&p, device_poisoned(gr_layer_acts_bytes(&gr_kernels_cuda, s, 0, &bounds)));
    p.x = kept(&p, device_poisoned((size_t)tokens * s->hidden * sizeof(*p.x)));
    p.w = kept(&p, random_layer(s));
    free(position);
    return p;
}

static uint32_t *kept_copy(pass *p, uint32_t *host, size_t n)
{
    uint32_t *device = kept(p, device_copy(host, n * sizeof(*host)));
    free(host);
    return device;
}

/* Sequence i has 1 + i % length keys in the pool; none shares them. */
static pass step_pass(gr_queue *q, const gr_model_shape *s, uint32_t n, uint32_t length)
{
    const gr_attention_desc *a = &gr_layer(s, 0)->attention;
    const gr_cu_heads heads = gr_cu_heads_of(a);
    const uint32_t stride = length / GR_KV_BLOCK + 1, most = length + 1;
    const gr_pass_bounds bounds = {.tokens = n, .seqs = n, .threads = 1};
    pass p = {.q = q, .shape = *s, .tokens = n, .seqs = n};
    uint32_t *each = gr_calloc(n + 1, 4), *cached = gr_calloc(n, 4), *keys = gr_calloc(n, 4),
             *blocks = gr_calloc((size_t)n * stride, 4), *slot = gr_calloc(n, 4);
    for (uint32_t i = 0; i <= n; i++) each[i] = i;
    for (uint32_t i = 0; i < n * stride; i++) blocks[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        cached[i] = 1 + i % length;
        keys[i] = cached[i] + 1;
        slot[i] = (i * stride + cached[i] / GR_KV_BLOCK) * GR_KV_BLOCK + cached[i] % GR_KV_BLOCK;
    }
    const uint32_t *row = kept_copy(&p, each, n + 1), *before = kept_copy(&p, cached, n);
    void *work = kept(&p, device_poisoned(gr_cu_decode_work_bytes(&heads, n, most)));
    p.decode = (gr_decode){.length = kept_copy(&p, keys, n),
                           .member = row,
                           .group_first = row,
                           .shared = kept(&p, device_poisoned(n * 4)),
                           .n_groups = n,
                           .max_length = most,
                           .each = 1,
                           .lists = {{.group = a->heads / a->kv_heads, .work = work}},
                           .n_lists = 1,
                           .ws = kept(&p, device_poisoned(GR_MAX(gr_cu_decode_attention_ws(&heads, n, most),
                                                                 gr_cu_strict_ws(&heads, n, most))))};
    CUDA(cudaMemset((void *)(uintptr_t)p.decode.shared, 0, n * 4));
    p.step = (gr_extend){.n_tokens = n,
                         .n_seqs = n,
                         .offset = row,
                         .cached = before,
                         .block_table = kept_copy(&p, blocks, (size_t)n * stride),
                         .table_stride = stride,
                         .position = (const int32_t *)before,
                         .slot = kept_copy(&p, slot, n),
                         .longest = 1};
    const gr_cu_decode list = {.length = p.decode.length,
                               .member = row,
                               .group_first = row,
                               .shared = p.decode.shared,
                               .n = n,
                               .n_groups = n,
                               .max_length = most,
                               .each = 1};
    gr_cu_decode_plan(NULL, &heads, &list, 0, p.step.block_table, stride, work);
    const size_t bytes = (size_t)n * stride * gr_layer_block_bytes(&gr_kernels_cuda, s, 0);
    p.state = kept(&p, device_random_bf16(bytes / sizeof(gr_bf16), 21));
    if (a->kv_fp8) CUDA(cudaMemset(p.state, 0x3c, bytes)); /* 1.5 by 0.0115 */
    p.ws = kept(&p, device_poisoned(gr_layer_ws_bytes(&gr_kernels_cuda, s, 0, &bounds, GR_LAYER_EXTEND)));
    p.x = kept(&p, device_poisoned((size_t)n * s->hidden * sizeof(*p.x)));
    p.w = kept(&p, random_layer(s));
    return p;
}

static void do_pass(void *arg, int i)
{
    pass *p = arg;
    (void)i;
    if (p->state) {
        gr_extend e = p->step;
        e.decode = &p->decode;
        gr_layer_extend(p->k, p->q, &p->shape, 0, p->w, &e, p->x, p->state, p->ws);
        return;
    }
    const gr_packed b = {.n_tokens = p->tokens,
                         .n_seqs = p->seqs,
                         .offset = p->offset,
                         .host_offset = p->host_offset,
                         .position = p->position};
    gr_layer_forward(p->k, p->q, &p->shape, 0, p->w, &b, p->x, NULL, p->acts, p->ws);
}

static gr_bf16 *run_pass(pass *p, const gr_kernels *k, const char *name)
{
    const size_t n = (size_t)p->tokens * p->shape.hidden;
    gr_bf16 *x = random_bf16(n, 1, 22);
    gr_diag d;
    gr_diag_init(&d);
    CUDA(cudaMemcpy(p->x, x, n * sizeof(*x), cudaMemcpyHostToDevice));
    p->k = k;
    do_pass(p, 0);
    expect_ok(k->check(p->q, &d), &d, name);
    CUDA(cudaDeviceSynchronize());
    gr_diag_release(&d);
    free(x);
    return host_copy(p->x, n * sizeof(*x));
}

static void check_pass(pass *p, const gr_kernels *k, const char *name)
{
    table apart;
    without(&apart, k);
    gr_bf16 *want = run_pass(p, &apart.kernels, name), *got = run_pass(p, k, name);
    report_equal(name, "x", got, want, (size_t)p->tokens * p->shape.hidden * sizeof(*got));
    free(want), free(got);
}

typedef struct model {
    const char *name;
    gr_model_shape shape;
} model;

static void check_model(gr_queue *q, const gr_kernels *k, const model *m, bool strict)
{
    static const uint32_t tokens[] = {3, 9, 32, 131, 500}, slots[] = {8, 33, 130};
    char name[96];
    for (size_t i = 0; i < GR_LEN(tokens) - 2 * check_small; i++)
        for (int keeps = 0; keeps < 2; keeps++) {
            pass p = packed_pass(q, &m->shape, tokens[i], 200, keeps);
            snprintf(name, sizeof(name), "%s, %u tokens%s%s", m->name, tokens[i], keeps ? ", kept" : "",
                     strict ? ", strict" : "");
            check_pass(&p, k, name);
            pass_free(&p);
        }
    for (size_t i = 0; i < GR_LEN(slots) - check_small; i++) {
        pass p = step_pass(q, &m->shape, slots[i], 90);
        snprintf(name, sizeof(name), "%s, a step of %u%s", m->name, slots[i], strict ? ", strict" : "");
        check_pass(&p, k, name);
        pass_free(&p);
    }
}

static model in_fp8(const char *name, gr_model_shape s)
{
    s.fp8 = true;
    return (model){name, s};
}

static void check_all(gr_queue *q, const gr_kernels *k, bool strict)
{
    gr_model_shape keys = shape_of("qwen3", 512, 4, 2, 128);
    keys.kinds[0].attention.kv_fp8 = true;
    const model models[] = {in_fp8("qwen3", shape_of("qwen3", 256, 4, 2, 128)),
                            in_fp8("keys in FP8", keys),
                            in_fp8("biases", shape_of("qwen2", 1536, 12, 2, 128)),
                            in_fp8("heads of 64", shape_of("llama", 512, 8, 2, 64)),
                            in_fp8("odd blocks", shape_of("qwen3", 208, 3, 1, 48)),
                            in_fp8("norms behind", sandwich())};
    for (size_t i = 0; i < GR_LEN(models); i++) /* a graph that is strict has no keys in FP8 */
        if (!strict || !models[i].shape.kinds[0].attention.kv_fp8) check_model(q, k, &models[i], strict);
}

/* ---- times ----------------------------------------------------------------------------------------------
 */

static void bench_pass(pass *p, const char *name)
{
    table apart;
    double s[2][3];
    without(&apart, &gr_kernels_cuda);
    for (int turn = 0; turn < 3; turn++)
        for (int i = 0; i < 2; i++) {
            CUDA(cudaMemset(p->x, 0, (size_t)p->tokens * p->shape.hidden * sizeof(*p->x)));
            p->k = i ? &gr_kernels_cuda : &apart.kernels;
            s[i][turn] = time_of(do_pass, p, p->tokens > 1000 ? 3 : 20);
        }
    CUDA(cudaGetLastError());
    const double flop =
        2.0 * p->tokens * (double)(gr_layer_token_macs(gr_layer(&p->shape, 0), p->shape.hidden));
    printf(
        "%-8s %5u %s: rounded afterwards %8.1f %8.1f %8.1f us, as it is made %8.1f %8.1f %8.1f us, %.3f of "
        "it, products at %.0f TFLOP/s\n",
        name, p->tokens, p->state ? "slots " : "tokens", s[0][0] * 1e6, s[0][1] * 1e6, s[0][2] * 1e6,
        s[1][0] * 1e6, s[1][1] * 1e6, s[1][2] * 1e6, s[1][1] / s[0][1], flop / s[1][1] * 1e-12);
    fflush(stdout);
    pass_free(p);
}

static void bench(gr_queue *q)
{
    static const uint32_t slots[] = {16, 64, 128, 256}, tokens[] = {1024, 4096, 16384};
    const model models[] = {in_fp8("8B", shape_of("qwen3", 4096, 32, 8, 128)),
                            in_fp8("1.7B", shape_of("qwen3", 2048, 16, 8, 128))};
    for (size_t m = 0; m < GR_LEN(models); m++) {
        for (size_t i = 0; i < GR_LEN(slots); i++) {
            pass p = step_pass(q, &models[m].shape, slots[i], 512);
            bench_pass(&p, models[m].name);
        }
        for (size_t i = 0; i < GR_LEN(tokens); i++) {
            pass p = packed_pass(q, &models[m].shape, tokens[i], 768, false);
            bench_pass(&p, models[m].name);
        }
    }
}

int main(int argc, char **argv)
{
    gr_queue q = {0}, strict = {0};
    const bool times = read_options(argc, argv);
    need_device();
    attach_queue(&gr_kernels_cuda, &q);
    attach_queue(gr_kernels_cuda.strict, &strict);
    if (times) {
        bench(&q);
    } else {
        check_all(&q, &gr_kernels_cuda, false);
        check_all(&strict, gr_kernels_cuda.strict, true);
    }
    gr_kernels_cuda.detach(&q);
    gr_kernels_cuda.strict->detach(&strict);
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures != 0;
}
