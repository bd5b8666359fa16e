/* tests/bench/gpu/bench_delta.c: the gated delta rule of 4 x 8,192 tokens, 32 heads of 128: the rule alone,
 * by chunks, forward and backward (its states made again), its kernels one by one, and token by token; whole
 * passes with convolution, gates and norm; decode steps of 256 slots with states in fp32 and in bf16, as
 * bytes of states read and written, its two kernels one by one, and a copy of as many bytes. Lines of JSON;
 * tests/bench/gpu/bench_delta.py is the other side.
 *
 *     bench_delta [SEQUENCES LENGTH HEADS]
 */
#include <string.h>

#include "ops/kernels/cuda/delta_impl.h"
#include "tests/bench/gpu/timing.h"

enum { DIM = 128, CONV = 4, SLOTS = 256 };

typedef struct rule {
    gr_delta_call c;
    gr_delta_grads grads;
    gr_cu_delta a; /* as gr_delta_cuda.backward lays them out */
    gr_cu_delta_back b;
    void *out, *mixed, *dout, *din;
} rule;

static void whole_forward(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_delta_cuda.forward(q, &r->c, r->out, r->mixed);
}

static void whole_backward(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_delta_cuda.backward(q, &r->c, r->mixed, r->dout, r->din, &r->grads);
}

static void prepare(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_prepare(q->stream, &r->a, r->b.inverse);
}

static void chunks(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_chunked(q->stream, &r->a);
}

static void states(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_states(q->stream, &r->a, &r->b);
}

static void states_backward(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_states_backward(q->stream, &r->a, &r->b);
}

static void chunks_backward(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_chunked_backward(q->stream, &r->a, &r->b);
}

static void rule_forward(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_prepare(q->stream, &r->a, NULL);
    gr_cu_delta_chunked(q->stream, &r->a);
}

static void rule_backward(gr_queue *q, int which, void *arg)
{
    prepare(q, which, arg);
    states(q, which, arg);
    states_backward(q, which, arg);
    chunks_backward(q, which, arg);
}

static void steps_forward(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_step(q->stream, &r->a);
}

/* n bf16 of about one, whose signs and digits vary. */
static void *some_values(bench *b, gr_queue *q, uint64_t n, uint64_t state)
{
    enum { PERIOD = 1 << 20 };
    gr_bf16 *p = bench_take(b, n * sizeof(*p)), *host = gr_malloc(PERIOD * sizeof(*host));
    for (uint64_t i = 0; i < PERIOD; i++) {
        state = state * UINT64_C(6364136223846793005) + 1;
        host[i] = (gr_bf16)((state >> 63 << 15) | 0x3e80 | (state >> 40 & 0xff));
    }
    for (uint64_t at = 0; at < n; at += PERIOD)
        gr_device_write(q, p + at, host, GR_MIN((uint64_t)PERIOD, n - at) * sizeof(*p));
    need(b, gr_queue_finish(q, &b->d));
    free(host);
    return p;
}

static void *written(bench *b, gr_queue *q, const void *host, uint64_t bytes)
{
    void *p = bench_take(b, bytes);
    gr_device_write(q, p, host, bytes);
    need(b, gr_queue_finish(q, &b->d));
    return p;
}

static rule rule_new(bench *b, gr_queue *q, uint32_t n_seqs, uint32_t length, uint32_t keys, uint32_t heads,
                     gr_layer_use use)
{
    const gr_delta_desc d = {keys, heads, DIM, DIM, CONV, false, false};
    const uint32_t tokens = n_seqs * length;
    const uint64_t taps = (uint64_t)gr_delta_channels(&d) * CONV;
    const gr_pass_bounds bounds = {.tokens = tokens, .seqs = n_seqs, .length = length, .threads = 1};
    uint32_t *offset = gr_malloc((n_seqs + 1) * sizeof(*offset));
    for (uint32_t i = 0; i <= n_seqs; i++) offset[i] = i * length;
    rule r = {.c = {.d = d, .eps = 1e-6f, .n_tokens = tokens, .n_seqs = n_seqs, .longest = length}};
    r.c.conv = some_values(b, q, taps, 1);
    r.c.a_log = some_values(b, q, heads, 2);
    r.c.dt_bias = some_values(b, q, heads, 3);
    r.c.norm = some_values(b, q, DIM, 4);
    r.c.in = some_values(b, q, (uint64_t)tokens * gr_delta_in(&d), 5);
    r.c.offset = written(b, q, offset, (n_seqs + 1) * sizeof(*offset));
    r.c.ws = bench_take(b, gr_delta_cuda.ws_bytes(&d, &bounds, use));
    r.out = bench_take(b, (uint64_t)tokens * gr_delta_out(&d) * 2);
    r.mixed = bench_take(b, (uint64_t)tokens * gr_delta_out(&d) * 2);
    free(offset);
    return r;
}

static void bench_passes(bench *b, gr_queue *q, uint32_t n_seqs, uint32_t length, uint32_t heads)
{
    char row[96];
    rule r = rule_new(b, q, n_seqs, length, heads, heads, GR_LAYER_BACKWARD);
    const gr_delta_desc *d = &r.c.d;
    const uint64_t taps = (uint64_t)gr_delta_channels(d) * CONV, tokens = r.c.n_tokens;
    float *grads = bench_take(b, (taps + 2 * heads + DIM) * sizeof(*grads));
    r.grads = (gr_delta_grads){GR_F32, grads, grads + taps, grads + taps + heads, grads + taps + 2 * heads};
    r.dout = some_values(b, q, tokens * gr_delta_out(d), 6);
    r.din = bench_take(b, tokens * gr_delta_in(d) * 2);
    const double forward = seconds_of(b, q, 1, whole_forward, &r),
                 back = seconds_of(b, q, 1, whole_backward, &r);
    gr_workspace w = {.base = r.c.ws}; /* where backward has left rows and states */
    r.a = gr_cu_delta_of(&r.c);
    gr_cu_delta_lay_out(&w, d, r.c.n_tokens, n_seqs, &r.a, &r.b);
    r.a.mixed = r.mixed;
    const struct {
        const char *name;
        double seconds;
    } all[] = {{"rule, forward", seconds_of(b, q, 1, rule_forward, &r)},
               {"rule, backward", seconds_of(b, q, 1, rule_backward, &r)},
               {"rule, prepare", seconds_of(b, q, 1, prepare, &r)},
               {"rule, chunks", seconds_of(b, q, 1, chunks, &r)},
               {"rule, states", seconds_of(b, q, 1, states, &r)},
               {"rule, states backward", seconds_of(b, q, 1, states_backward, &r)},
               {"rule, chunks backward", seconds_of(b, q, 1, chunks_backward, &r)},
               {"rule, forward, strict", seconds_of(b, q, 1, steps_forward, &r)},
               {"whole, forward", forward},
               {"whole, backward", back}};
    for (size_t i = 0; i < GR_LEN(all); i++) {
        snprintf(row, sizeof(row), "delta %s, %u x %u, %u heads of %d", all[i].name, n_seqs, length, heads,
                 DIM);
        print_result(row, all[i].seconds * 1e3, "ms");
    }
}

static void decode_rows(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_decode_rows(q->stream, &r->a);
}

static void decode(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    (void)which;
    gr_cu_delta_decode(q->stream, &r->a, r->out);
}

/* Half of the states over the other half: as many bytes as one step moves of half of the slots. */
static void copy(gr_queue *q, int which, void *arg)
{
    const rule *r = arg;
    const uint64_t half = SLOTS / 2 * gr_delta_state_bytes(&r->c.d);
    (void)which;
    gr_kernels_cuda.copy(q, (char *)r->c.state + half, r->c.state, half);
}

static void print_states(const char *what, const rule *r, double seconds)
{
    char row[96];
    const gr_delta_desc *d = &r->c.d;
    snprintf(row, sizeof(row), "delta %s of %d slots, %u / %u heads of %d, %s", what, SLOTS, d->key_heads,
             d->value_heads, DIM, d->bf16_state ? "bf16" : "fp32");
    print_result(row, seconds * 1e3, "ms");
    strcat(row, ": states");
    print_result(row, 2 * (double)SLOTS * (double)gr_delta_state_bytes(d) / seconds * 1e-9, "GB/s");
}

static void bench_steps(bench *b, gr_queue *q, uint32_t keys, uint32_t heads, bool bf16)
{
    uint32_t slot[SLOTS], cached[SLOTS];
    rule r = rule_new(b, q, SLOTS, 1, keys, heads, GR_LAYER_FORWARD);
    r.c.d.bf16_state = bf16;
    const uint64_t bytes = SLOTS * gr_delta_state_bytes(&r.c.d);
    for (uint32_t i = 0; i < SLOTS; i++) slot[i] = i, cached[i] = 0;
    r.c.slot = written(b, q, slot, sizeof(slot));
    r.c.cached = written(b, q, cached, sizeof(cached)); /* zeros first: states become numbers */
    r.c.state = bench_take(b, bytes);
    whole_forward(q, 0, &r);
    for (uint32_t i = 0; i < SLOTS; i++) cached[i] = 8;
    r.c.cached = written(b, q, cached, sizeof(cached));
    print_states("step", &r, seconds_of(b, q, 1, whole_forward, &r));
    gr_workspace w = {.base = r.c.ws};
    r.a = gr_cu_delta_of(&r.c);
    gr_cu_delta_lay_out(&w, &r.c.d, SLOTS, SLOTS, &r.a, NULL);
    print_states("step, rows", &r, seconds_of(b, q, 1, decode_rows, &r));
    print_states("step, states", &r, seconds_of(b, q, 1, decode, &r));
    print_states("step, copy of half", &r, 2 * seconds_of(b, q, 1, copy, &r));
}

int main(int argc, char **argv)
{
    const uint32_t n = argc > 3 ? (uint32_t)atoi(argv[1]) : 4,
                   length = argc > 3 ? (uint32_t)atoi(argv[2]) : 8192,
                   heads = argc > 3 ? (uint32_t)atoi(argv[3]) : 32;
    bench b = {0};
    bench_open(&b, 24 * GIB, GIB);
    gr_queue q = bench_queue(&b);
    need(&b, gr_kernels_cuda.attach(&q, &b.d));
    bench_passes(&b, &q, n, length, heads);
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (uint32_t each = 1; each <= 2 && heads % each == 0; each++) { /* value heads a key head */
            b.used = 0;
            bench_steps(&b, &q, heads / each, heads, bf16);
        }
    gr_kernels_cuda.detach(&q);
    b.dev->type->queue_close(&q);
    b.dev->type->close(b.dev);
    gr_diag_release(&b.d);
    return 0;
}
