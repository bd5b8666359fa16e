/* tests/gpu/gpu_delta.c: the gated delta rule on CUDA (ops/kernels/delta.h) against that of the CPU device
 * over the same bf16 values; steps and parts of prompts against the whole; states; the same bits again. Rows
 * of a slot of which some are thrown away, whose state goes back, against steps of one token. As `strict:
 * true` asks for it too, where parts and rows have the bits of the whole; and with states in bf16.
 *
 *     gpu_delta           compare; a line for each tensor
 *     gpu_delta --small   the same with shorter sequences
 *     gpu_delta --race    each kernel once, over sequences of one chunk and a little (check.h)
 */
#include "ops/kernels/delta.h"
#include "tests/gpu/attach.h"

#define SEQS_MAX 16

typedef struct batch {
    const char *name;
    gr_delta_desc d;
    uint32_t n_seqs, length[SEQS_MAX];
    uint32_t offset[SEQS_MAX + 1], tokens, longest; /* derived */
} batch;

/* Weights and rows: what they are, in both forms. */
typedef struct tensor {
    size_t n;
    gr_bf16 *host, *device;
    float *wide;
} tensor;

static tensor tensor_of(size_t n, float scale, uint64_t seed)
{
    tensor t = {n, random_bf16(n, scale, seed), NULL, gr_malloc(n * 4 + 1)};
    for (size_t i = 0; i < n; i++) t.wide[i] = of_bf16(t.host[i]);
    t.device = device_copy(t.host, n * 2);
    return t;
}

static void tensor_release(tensor *t)
{
    CUDA(cudaFree(t->device));
    free(t->host);
    free(t->wide);
}

typedef struct sides {
    tensor in, dout, conv, a_log, dt_bias, norm;
    gr_queue cpu, cuda; /* cuda: with the context of the kernels that are compared */
    uint32_t *offset;   /* device */
} sides;

static void derive(batch *b)
{
    b->longest = 0;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        b->offset[i + 1] = b->offset[i] + b->length[i];
        b->longest = GR_MAX(b->longest, b->length[i]);
    }
    b->tokens = b->offset[b->n_seqs];
}

static sides sides_of(const batch *b, const gr_kernels *k)
{
    const gr_delta_desc *d = &b->d;
    sides s = {.in = tensor_of((size_t)b->tokens * gr_delta_in(d), 1, 1),
               .dout = tensor_of((size_t)b->tokens * gr_delta_out(d), 1, 2),
               .conv = tensor_of((size_t)gr_delta_channels(d) * d->conv, 0.7f, 3),
               .a_log = tensor_of(d->value_heads, 1, 4),
               .dt_bias = tensor_of(d->value_heads, 1, 5),
               .norm = tensor_of(d->value_dim, 1, 6),
               .offset = device_copy(b->offset, (b->n_seqs + 1) * 4)};
    if (gr_team_new(&s.cpu.team, (unsigned)GR_MIN(sysconf(_SC_NPROCESSORS_ONLN), 16), NULL) != GR_OK) exit(1);
    attach_queue(k, &s.cuda);
    return s;
}

static void sides_release(sides *s)
{
    tensor *const all[] = {&s->in, &s->dout, &s->conv, &s->a_log, &s->dt_bias, &s->norm};
    for (size_t i = 0; i < GR_LEN(all); i++) tensor_release(all[i]);
    CUDA(cudaFree(s->offset));
    gr_kernels_cuda.detach(&s->cuda);
    gr_team_free(s->cpu.team);
}

static gr_pass_bounds bounds_of(const gr_delta_call *c, const gr_queue *q)
{
    return (gr_pass_bounds){.tokens = c->n_tokens,
                            .seqs = c->n_seqs,
                            .length = c->longest,
                            .threads = q ? gr_team_size(q->team) : 1};
}

/* Without its workspace. */
static gr_delta_call call_of(const batch *b, const sides *s, bool device)
{
#define SIDE(t) (device ? (const void *)s->t.device : (const void *)s->t.wide)
    return (gr_delta_call){.d = b->d,
                           .eps = 1e-6f,
                           .conv = SIDE(conv),
                           .a_log = SIDE(a_log),
                           .dt_bias = SIDE(dt_bias),
                           .norm = SIDE(norm),
                           .in = SIDE(in),
                           .n_tokens = b->tokens,
                           .n_seqs = b->n_seqs,
                           .longest = b->longest,
                           .offset = device ? s->offset : b->offset};
}

/* Results in floats, of either device. */
typedef struct result {
    float *out, *mixed, *din, *conv, *a_log, *dt_bias, *norm, *states;
} result;

static void result_release(result *r)
{
    float *const all[] = {r->out, r->mixed, r->din, r->conv, r->a_log, r->dt_bias, r->norm, r->states};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

/* Sequences in slots n_seqs - 1, ..., 0. */
static uint32_t *slots_of(const batch *b)
{
    uint32_t *slot = gr_malloc(b->n_seqs * 4 + 1);
    for (uint32_t i = 0; i < b->n_seqs; i++) slot[i] = b->n_seqs - 1 - i;
    return slot;
}

static result run_cpu(const batch *b, sides *s)
{
    const gr_delta_desc *d = &b->d;
    const size_t t = b->tokens, state = gr_delta_state_bytes(d);
    gr_delta_call c = call_of(b, s, false);
    const gr_pass_bounds bounds = bounds_of(&c, &s->cpu);
    const uint64_t forward = gr_delta_cpu.ws_bytes(d, &bounds, GR_LAYER_FORWARD),
                   backward = gr_delta_cpu.ws_bytes(d, &bounds, GR_LAYER_BACKWARD);
    result r = {gr_calloc(t * gr_delta_out(d), 4), gr_calloc(t * gr_delta_out(d), 4),
                gr_calloc(t * gr_delta_in(d), 4),  gr_calloc((size_t)gr_delta_channels(d) * d->conv, 4),
                gr_calloc(d->value_heads, 4),      gr_calloc(d->value_heads, 4),
                gr_calloc(d->value_dim, 4),        gr_calloc(b->n_seqs, state)};
    const gr_delta_grads g = {GR_F32, r.conv, r.a_log, r.dt_bias, r.norm};
    uint32_t *slot = slots_of(b), *cached = gr_calloc(b->n_seqs + 1, 4);
    c.ws = aligned_alloc(256, GR_MAX(forward, backward));
    gr_delta_cpu.forward(&s->cpu, &c, r.out, r.mixed);
    gr_delta_cpu.backward(&s->cpu, &c, r.mixed, s->dout.wide, r.din, &g);
    c.state = r.states, c.slot = slot, c.cached = cached;
    gr_delta_cpu.forward(&s->cpu, &c, r.out, NULL);
    free(c.ws);
    free(slot);
    free(cached);
    return r;
}

static float *widened(const gr_bf16 *device, size_t n)
{
    gr_bf16 *x = host_copy(device, n * 2);
    float *wide = gr_malloc(n * 4 + 1);
    for (size_t i = 0; i < n; i++) wide[i] = of_bf16(x[i]);
    free(x);
    return wide;
}

static result run_cuda(const batch *b, sides *s)
{
    const gr_delta_desc *d = &b->d;
    const size_t t = b->tokens, outs = t * gr_delta_out(d), ins = t * gr_delta_in(d),
                 taps = (size_t)gr_delta_channels(d) * d->conv;
    gr_delta_call c = call_of(b, s, true);
    const gr_pass_bounds bounds = bounds_of(&c, NULL);
    gr_bf16 *out = device_poisoned(outs * 2), *mixed = device_poisoned(outs * 2),
            *din = device_poisoned(ins * 2);
    float *grads = device_poisoned((taps + 2 * d->value_heads + d->value_dim) * 4);
    const gr_delta_grads g = {GR_F32, grads, grads + taps, grads + taps + d->value_heads,
                              grads + taps + 2 * d->value_heads};
    CUDA(cudaMemset(grads, 0, (taps + 2 * d->value_heads + d->value_dim) * 4));
    c.ws = device_poisoned(gr_delta_cuda.ws_bytes(d, &bounds, GR_LAYER_FORWARD));
    gr_delta_cuda.forward(&s->cuda, &c, out, mixed);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(c.ws));
    c.ws = device_poisoned(gr_delta_cuda.ws_bytes(d, &bounds, GR_LAYER_BACKWARD));
    gr_delta_cuda.backward(&s->cuda, &c, mixed, s->dout.device, din, &g);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaGetLastError());
    result r = {widened(out, outs),
                widened(mixed, outs),
                widened(din, ins),
                host_copy(g.conv, taps * 4),
                host_copy(g.a_log, d->value_heads * 4),
                host_copy(g.dt_bias, d->value_heads * 4),
                host_copy(g.norm, d->value_dim * 4),
                NULL};
    void *const all[] = {out, mixed, din, grads, c.ws};
    for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
    return r;
}

/* All sequences in calls of at most `each` tokens, from slots of unknown content. */
static result run_in_calls(const batch *b, sides *s, uint32_t each)
{
    const gr_delta_desc *d = &b->d;
    const size_t in = gr_delta_in(d), wide = gr_delta_out(d), state = gr_delta_state_bytes(d);
    uint32_t *slot = slots_of(b), cached[SEQS_MAX] = {0};
    float *states = device_poisoned(b->n_seqs * state);
    result r = {.out = gr_calloc(b->tokens * wide, 4)};
    gr_bf16 *rows = gr_calloc((b->tokens + b->n_seqs) * in, 2);
    for (bool more = true; more;) {
        uint32_t offset[SEQS_MAX + 1] = {0}, of[SEQS_MAX], longest = 0;
        more = false;
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            const uint32_t n = GR_MIN(each, b->length[i] - cached[i]);
            of[i] = n ? slot[i] : UINT32_MAX; /* a slot that waits has a token all the same */
            offset[i + 1] = offset[i] + GR_MAX(n, 1);
            longest = GR_MAX(longest, GR_MAX(n, 1));
            more |= cached[i] + n < b->length[i];
            for (uint32_t t = 0; t < n; t++)
                memcpy(rows + (offset[i] + t) * in, s->in.host + (b->offset[i] + cached[i] + t) * in, in * 2);
        }
        const uint32_t tokens = offset[b->n_seqs];
        gr_delta_call c = call_of(b, s, true);
        c.n_tokens = tokens, c.longest = longest, c.state = states;
        const gr_pass_bounds bounds = bounds_of(&c, NULL);
        uint32_t *d_offset = device_copy(offset, (b->n_seqs + 1) * 4),
                 *d_slot = device_copy(of, b->n_seqs * 4), *d_cached = device_copy(cached, b->n_seqs * 4);
        gr_bf16 *d_rows = device_copy(rows, tokens * in * 2), *out = device_poisoned(tokens * wide * 2);
        c.in = d_rows, c.offset = d_offset, c.slot = d_slot, c.cached = d_cached;
        c.ws = device_poisoned(gr_delta_cuda.ws_bytes(d, &bounds, GR_LAYER_FORWARD));
        gr_delta_cuda.forward(&s->cuda, &c, out, NULL);
        CUDA(cudaDeviceSynchronize());
        float *got = widened(out, tokens * wide);
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            const uint32_t n = GR_MIN(each, b->length[i] - cached[i]);
            memcpy(r.out + (b->offset[i] + cached[i]) * wide, got + offset[i] * wide, n * wide * 4);
            for (size_t k = 0; !n && k < wide; k++)
                if (got[offset[i] * wide + k] != 0) check_failures++; /* of no slot: zeros */
            cached[i] += n;
        }
        void *const all[] = {d_offset, d_slot, d_cached, d_rows, out, c.ws};
        for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
        free(got);
    }
    r.states = host_copy(states, b->n_seqs * state);
    CUDA(cudaFree(states));
    free(slot);
    free(rows);
    return r;
}

enum { ROWS = 3 };

/* How a step of rows goes for a sequence of which so many tokens are left: rows that are fed, and of these
 * how many count. */
typedef struct rows_step {
    uint32_t fed, taken;
} rows_step;

static rows_step rows_step_of(uint32_t step, uint32_t seq, uint32_t left)
{
    const uint32_t fed = left ? 1 + (step + seq) % ROWS : 0;
    return (rows_step){fed, fed ? GR_MIN(1 + (step / 2 + seq) % fed, left) : 0};
}

/* All sequences in steps of ROWS rows a slot. Behind those that count come others' rows. */
static result run_in_rows(const batch *b, sides *s)
{
    const gr_delta_desc *d = &b->d;
    const size_t in = gr_delta_in(d), wide = gr_delta_out(d), state = gr_delta_state_bytes(d);
    const uint32_t n = b->n_seqs * ROWS;
    uint32_t place[SEQS_MAX * ROWS], slot[SEQS_MAX * ROWS], cached[SEQS_MAX * ROWS],
        offset[SEQS_MAX * ROWS + 1], done[SEQS_MAX] = {0};
    char *states = device_poisoned(n * state);
    gr_bf16 *rows = gr_calloc(n * in, 2);
    result r = {.out = gr_calloc(b->tokens * wide, 4), .states = gr_calloc(b->n_seqs, state)};
    for (uint32_t i = 0; i <= n; i++) offset[i] = i;
    for (uint32_t i = 0; i < n; i++) place[i] = n - 1 - i;
    gr_delta_call c = call_of(b, s, true);
    c.n_tokens = c.n_seqs = n, c.longest = 1, c.each = ROWS, c.state = (float *)(void *)states;
    const gr_pass_bounds bounds = bounds_of(&c, NULL);
    uint32_t *d_offset = device_copy(offset, (n + 1) * 4);
    c.ws = device_poisoned(gr_delta_cuda.ws_bytes(d, &bounds, GR_LAYER_FORWARD));
    bool more = true;
    for (uint32_t step = 0; more; step++) {
        more = false;
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            const rows_step t = rows_step_of(step, i, b->length[i] - done[i]);
            for (uint32_t k = 0; k < ROWS; k++) {
                const uint32_t at = i * ROWS + k,
                               token = (b->offset[i] + done[i] + k + (k < t.taken ? 0 : 7)) % b->tokens;
                slot[at] = k < t.fed ? place[at] : UINT32_MAX;
                cached[at] = done[i] + k;
                memcpy(rows + at * in, s->in.host + token * in, in * 2);
            }
        }
        uint32_t *d_slot = device_copy(slot, n * 4), *d_cached = device_copy(cached, n * 4);
        gr_bf16 *d_rows = device_copy(rows, n * in * 2), *out = device_poisoned(n * wide * 2);
        c.in = d_rows, c.offset = d_offset, c.slot = d_slot, c.cached = d_cached;
        gr_delta_cuda.forward(&s->cuda, &c, out, NULL);
        CUDA(cudaDeviceSynchronize());
        float *got = widened(out, n * wide);
        for (uint32_t i = 0; i < b->n_seqs; i++) {
            const rows_step t = rows_step_of(step, i, b->length[i] - done[i]);
            const float *first = got + i * ROWS * wide;
            memcpy(r.out + (b->offset[i] + done[i]) * wide, first, t.taken * wide * 4);
            for (size_t k = t.fed * wide; k < ROWS * wide; k++)
                if (first[k] != 0) check_failures++; /* of no place: zeros */
            if (t.taken) { /* its state goes back to that behind the last that counts */
                const uint32_t last = i * ROWS + t.taken - 1, own = place[last];
                place[last] = place[i * ROWS];
                place[i * ROWS] = own;
            }
            done[i] += t.taken;
            more |= done[i] < b->length[i];
        }
        void *const all[] = {d_slot, d_cached, d_rows, out};
        for (size_t i = 0; i < GR_LEN(all); i++) CUDA(cudaFree(all[i]));
        free(got);
    }
    char *all = host_copy(states, n * state);
    for (uint32_t i = 0; i < b->n_seqs; i++) /* in the slots of slots_of */
        memcpy((char *)r.states + (b->n_seqs - 1 - i) * state, all + place[i * ROWS] * state, state);
    CUDA(cudaFree(states));
    CUDA(cudaFree(d_offset));
    CUDA(cudaFree(c.ws));
    free(all);
    free(rows);
    return r;
}

static void compare(const batch *b, const char *what, const float *got, const float *want, size_t n,
                    double bound)
{
    char name[96];
    errors e = {0};
    snprintf(name, sizeof(name), "delta %u/%u of %u x %u, %s", b->d.key_heads, b->d.value_heads, b->d.key_dim,
             b->d.value_dim, b->name);
    for (size_t i = 0; i < n; i++) errors_add(&e, (double)got[i], (double)want[i]);
    report_errors(&e, name, what, bound);
}

/* Columns [from, from + n) of rows. */
static void compare_columns(const batch *b, const char *what, const float *got, const float *want,
                            size_t from, size_t n)
{
    const size_t width = gr_delta_in(&b->d);
    float *x = gr_malloc(b->tokens * n * 4 + 1), *y = gr_malloc(b->tokens * n * 4 + 1);
    for (size_t t = 0; t < b->tokens; t++) {
        memcpy(x + t * n, got + t * width + from, n * 4);
        memcpy(y + t * n, want + t * width + from, n * 4);
    }
    compare(b, what, x, y, b->tokens * n, 3e-2);
    free(x);
    free(y);
}

/* A slot's tail and states in floats. */
static void widen_slot(const gr_delta_desc *d, const float *slot, float *to)
{
    const uint64_t tail = gr_delta_tail(d), n = (uint64_t)d->value_heads * d->key_dim * d->value_dim;
    const gr_bf16 *states = (const gr_bf16 *)(slot + tail);
    memcpy(to, slot, (tail + (d->bf16_state ? 0 : n)) * 4);
    for (uint64_t i = 0; d->bf16_state && i < n; i++) to[tail + i] = of_bf16(states[i]);
}

static void compare_states(const batch *b, const char *what, const float *got, const float *want)
{
    const gr_delta_desc *d = &b->d;
    const size_t slot = gr_delta_state_bytes(d) / 4,
                 floats = gr_delta_tail(d) + (size_t)d->value_heads * d->key_dim * d->value_dim;
    float *x = gr_calloc(b->n_seqs, floats * 4), *y = gr_calloc(b->n_seqs, floats * 4);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const size_t at = b->n_seqs - 1 - i;
        if (!b->length[i]) continue; /* its slot was never used */
        widen_slot(d, got + at * slot, x + at * floats);
        widen_slot(d, want + at * slot, y + at * floats);
    }
    compare(b, what, x, y, b->n_seqs * floats, d->bf16_state ? 3e-2 : 1e-2);
    free(x);
    free(y);
}

/* the CPU's are of slots; packed sequences carry fp32, and CUDA rounds states behind a part */
static double bound_of(const gr_delta_desc *d)
{
    return d->bf16_state ? 4e-2 : 2e-2;
}

static void check_again(const batch *b, sides *s, const result *got)
{
    const gr_delta_desc *d = &b->d;
    result again = run_cuda(b, s);
    report_equal(b->name, "out", got->out, again.out, b->tokens * gr_delta_out(d) * 4);
    report_equal(b->name, "din", got->din, again.din, b->tokens * gr_delta_in(d) * 4);
    report_equal(b->name, "dconv", got->conv, again.conv, (size_t)gr_delta_channels(d) * d->conv * 4);
    result_release(&again);
}

/* In calls of so many tokens at most. A chunk one by one would be as many launches. */
static void check_calls(const batch *b, sides *s, const gr_kernels *k, const result *want, const result *got)
{
    const uint32_t all[] = {1, 5, 64, 100, UINT32_MAX}, race[] = {b->longest > 4 ? 40 : 1, UINT32_MAX};
    const uint32_t *calls = check_race ? race : all + (b->longest > 300);
    const size_t n = check_race ? GR_LEN(race) : GR_LEN(all) - (b->longest > 300);
    for (size_t i = 0; i < n; i++) {
        char what[24];
        result parts = run_in_calls(b, s, calls[i]);
        snprintf(what, sizeof(what), "by %d", (int)calls[i]);
        compare(b, what, parts.out, want->out, b->tokens * gr_delta_out(&b->d), bound_of(&b->d));
        if (k->invariant)
            report_equal(b->name, what, parts.out, got->out, b->tokens * gr_delta_out(&b->d) * 4);
        compare_states(b, "state", parts.states, want->states);
        result_release(&parts);
    }
}

/* Rows of slots, beside steps of one token. */
static void check_rows(const batch *b, sides *s, const gr_kernels *k)
{
    const size_t outs = b->tokens * gr_delta_out(&b->d);
    result want = run_in_calls(b, s, 1), got = run_in_rows(b, s);
    compare(b, "rows", got.out, want.out, outs, bound_of(&b->d));
    compare_states(b, "state", got.states, want.states);
    if (k->invariant) {
        report_equal(b->name, "rows", got.out, want.out, outs * 4);
        report_equal(b->name, "state", got.states, want.states, b->n_seqs * gr_delta_state_bytes(&b->d));
    }
    result_release(&want);
    result_release(&got);
}

static void check_batch(batch *b, const gr_kernels *k)
{
    derive(b);
    sides s = sides_of(b, k);
    const gr_delta_desc *d = &b->d;
    const size_t t = b->tokens, outs = t * gr_delta_out(d), qk = (size_t)d->key_heads * d->key_dim,
                 z = gr_delta_out(d);
    result want = run_cpu(b, &s), got = run_cuda(b, &s);
    compare(b, "out", got.out, want.out, outs, bound_of(d));
    compare_columns(b, "dq", got.din, want.din, 0, qk);
    compare_columns(b, "dk", got.din, want.din, qk, qk);
    compare_columns(b, "dv", got.din, want.din, 2 * qk, z);
    compare_columns(b, "dz", got.din, want.din, 2 * qk + z, z);
    compare_columns(b, "db", got.din, want.din, 2 * qk + 2 * z, d->value_heads);
    compare_columns(b, "da", got.din, want.din, 2 * qk + 2 * z + d->value_heads, d->value_heads);
    compare(b, "dconv", got.conv, want.conv, (size_t)gr_delta_channels(d) * d->conv, 3e-2);
    compare(b, "dA_log", got.a_log, want.a_log, d->value_heads, 3e-2);
    compare(b, "ddt", got.dt_bias, want.dt_bias, d->value_heads, 3e-2);
    compare(b, "dnorm", got.norm, want.norm, d->value_dim, 2e-2);
    if (!check_race) check_again(b, &s, &got);
    check_calls(b, &s, k, &want, &got);
    if (b->longest < 300) check_rows(b, &s, k);
    result_release(&want);
    result_release(&got);
    sides_release(&s);
}

int main(int argc, char **argv)
{
    batch all[] = {
        {"one token", {2, 4, 64, 64, 4, false, false}, 1, {1}, {0}, 0, 0},
        {"small mix", {2, 4, 64, 64, 4, false, false}, 6, {63, 64, 0, 65, 1, 130}, {0}, 0, 0},
        {"small mix", {2, 4, 128, 128, 4, false, false}, 5, {2, 64, 129, 0, 200}, {0}, 0, 0},
        {"small mix", {4, 4, 128, 64, 4, false, false}, 4, {70, 3, 64, 128}, {0}, 0, 0},
        {"small mix", {1, 4, 40, 72, 2, false, false}, 3, {5, 66, 127}, {0}, 0, 0},
        {"small mix", {4, 8, 64, 128, 6, false, false}, 3, {100, 1, 193}, {0}, 0, 0},
        {"long", {2, 4, 128, 128, 4, false, false}, 3, {1500, 2048, 77}, {0}, 0, 0},
        {"states in bf16", {2, 4, 128, 128, 4, false, true}, 5, {2, 64, 129, 0, 200}, {0}, 0, 0},
        {"states in bf16", {1, 4, 40, 72, 2, false, true}, 3, {5, 66, 127}, {0}, 0, 0},
    };
    need_device();
    read_options(argc, argv);
    for (size_t i = 0; i < GR_LEN(all); i++) {
        batch *b = &all[i];
        const bool strict = (!check_small || i == 2) && !b->d.bf16_state;
        for (uint32_t k = 0; check_small && k < b->n_seqs; k++) b->length[k] = GR_MIN(b->length[k], 131);
        if (check_race && i && !memcmp(&b->d, &b[-1].d, sizeof(b->d)))
            continue; /* only its lengths are others */
        if (check_race) b->n_seqs = 2, b->length[0] = 66, b->length[1] = 3;
        check_batch(b, &gr_kernels_cuda);
        if (strict) check_batch(b, gr_kernels_cuda.strict);
        if (!check_race) continue;
        b->length[0] = 3, b->length[1] = 1; /* by steps of one token */
        check_batch(b, &gr_kernels_cuda);
        if (strict) check_batch(b, gr_kernels_cuda.strict);
    }
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures != 0;
}
