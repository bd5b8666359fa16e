/* tests/gpu/gpu_steps.c: slots, chunks and their graphs (ops/kernels/cuda/steps.c) against a simulation on
 * the host.
 *
 * The model of this test is a table: the token after `id` is next[id], its log-prob value[id]. Orders are
 * random; after every chunk its report, and at times all state on the device, must be what the simulation
 * says. One line a case, exit 1 where one fails, 77 where there is no device.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/kernels/cuda/steps_layout.h"

enum { VOCAB = 500, ROW = 8, TRIPS = 60 }; /* a row of the table: 8 bf16, of which the first 8 bytes count */

static int failures;

static void check_cuda(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
#define CUDA(call) check_cuda((call), #call)

static uint64_t random_state = 88172645463325252ull;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(((random_state >> 32) * n) >> 32);
}

typedef struct token { /* what the table says of one id */
    int32_t next;
    float value;
} token;

typedef struct sim { /* one slot */
    bool live;
    int32_t id;
    uint32_t position, sequence, token, held;
} sim;

typedef struct world {
    gr_model_shape shape;
    gr_steps_bounds b;
    gr_steps_rules rules;
    int32_t stop[3];
    token table[VOCAB][2]; /* ROW bf16 each */
    gr_bf16 *d_table, *d_x;
    gr_queue q;
    gr_steps *steps;
    char *device, *host;
    gr_cu_steps_device at; /* where steps keeps what, for a look at it */
    sim *slots;
    uint32_t *tables;
    int32_t *want_id[2]; /* [chunk, slots] of the last two trips */
    float *want_logprob[2];
    uint32_t n[2];
    uint64_t wrong, tokens, ended;
} world;

static void model(void *user, gr_queue *q, const gr_extend *e, const gr_steps_draw *d)
{
    world *w = user;
    cudaStream_t st = q->stream;
    gr_cu_embed(st, w->d_table, e->ids, 1, w->d_x, e->n_seqs, ROW);
    const size_t pitch = ROW * sizeof(gr_bf16);
    CUDA(cudaMemcpy2DAsync(d->id, 4, w->d_x, pitch, 4, e->n_seqs, cudaMemcpyDeviceToDevice, st));
    CUDA(cudaMemcpy2DAsync(d->logprob, 4, (char *)w->d_x + 4, pitch, 4, e->n_seqs, cudaMemcpyDeviceToDevice,
                           st));
}

/* ---- the simulation -------------------------------------------------------------------------------------
 */

static void simulate_step(world *w, uint32_t n, int32_t *id, float *logprob)
{
    for (uint32_t i = 0; i < n; i++) {
        sim *s = &w->slots[i];
        id[i] = -1;
        logprob[i] = 0;
        if (!s->live) continue;
        id[i] = w->table[s->id][0].next;
        logprob[i] = w->table[s->id][0].value;
        s->id = id[i];
        s->position++;
        s->token++;
        w->tokens++;
        bool last = s->token >= w->rules.max_tokens;
        for (uint32_t k = 0; k < w->rules.n_stop; k++) last = last || s->id == w->stop[k];
        s->live = !last;
        w->ended += last;
    }
}

static void expect(world *w, const char *what, uint32_t i, long long got, long long want)
{
    if (got == want) return;
    if (w->wrong++ < 5) printf("  %s of slot %u: %lld instead of %lld\n", what, i, got, want);
}

static void check_report(world *w, uint32_t trip)
{
    gr_steps_report r;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_steps_cuda.report(w->steps, trip, &r, &d)) {
        printf("  report failed: %s\n", d.n ? d.messages[0].text : "");
        exit(1);
    }
    for (uint32_t k = 0; k < w->b.chunk; k++)
        for (uint32_t i = 0; i < w->n[trip % 2]; i++) {
            const size_t at = (size_t)k * w->b.slots + i;
            uint32_t a, b;
            memcpy(&a, &r.logprob[at], 4);
            memcpy(&b, &w->want_logprob[trip % 2][at], 4);
            expect(w, "token", i, r.id[at], w->want_id[trip % 2][at]);
            expect(w, "log-prob", i, a, b);
        }
    gr_diag_release(&d);
}

static void read_words(const void *from, uint32_t *to, size_t n)
{
    CUDA(cudaMemcpy(to, from, n * sizeof(*to), cudaMemcpyDeviceToHost));
}

static void check_state(world *w)
{
    const uint32_t n = w->b.slots, stride = w->b.stride;
    uint32_t *x = malloc((8 * (size_t)n + (size_t)n * stride) * sizeof(*x));
    uint32_t *id = x, *position = x + n, *kv = x + 2 * n, *length = x + 3 * n, *draw = x + 4 * n,
             *held = x + 6 * n, *window = x + 7 * n, *table = x + 8 * n;
    CUDA(cudaStreamSynchronize(w->q.stream));
    read_words(w->at.slots.id, id, n);
    read_words(w->at.slots.position, position, n);
    read_words(w->at.slots.kv_slot, kv, n);
    read_words(w->at.slots.length, length, n);
    read_words(w->at.slots.draw, draw, 2 * (size_t)n);
    read_words(w->at.slots.table, table, (size_t)n * stride);
    if (w->b.states) read_words(w->at.slots.held, held, n);
    if (w->b.window_at) read_words(w->at.slots.window_slot, window, n);
    for (uint32_t i = 0; i < n; i++) {
        const sim *s = &w->slots[i];
        expect(w, "length", i, length[i], s->live ? s->position + 1 : 0);
        if (w->b.states) expect(w, "place of its state", i, held[i], s->live ? s->held : UINT32_MAX);
        if (!s->live) {
            expect(w, "place of keys", i, kv[i], UINT32_MAX);
            if (w->b.window_at) expect(w, "place of a window's keys", i, window[i], UINT32_MAX);
            continue;
        }
        const uint32_t column = s->position / 16, block = w->tables[(size_t)i * stride + column];
        expect(w, "id", i, (int32_t)id[i], s->id);
        expect(w, "position", i, position[i], s->position);
        expect(w, "place of keys", i, kv[i], block * 16 + s->position % 16);
        if (w->b.window_at)
            expect(w, "place of a window's keys", i, window[i],
                   w->tables[(size_t)i * stride + w->b.window_at + column] * 16 + s->position % 16);
        expect(w, "sequence", i, draw[2 * i], s->sequence);
        expect(w, "draw", i, draw[2 * i + 1], s->token);
        for (uint32_t k = 0; k < stride; k++)
            expect(w, "table", i, table[(size_t)i * stride + k], w->tables[(size_t)i * stride + k]);
    }
    free(x);
}

/* ---- random orders --------------------------------------------------------------------------------------
 */

static void order_set(world *w, const gr_steps_input *in, uint32_t n, uint32_t slot, uint32_t trip)
{
    sim *s = &w->slots[slot];
    *s = (sim){.live = true,
               .id = (int32_t)random_below(VOCAB),
               .position = 16 + random_below(w->b.max_length - w->rules.max_tokens - 16),
               .sequence = trip * 1000 + slot,
               .held = random_below(1000000)};
    uint32_t *row = w->tables + (size_t)slot * w->b.stride;
    for (uint32_t k = 0; k < w->b.stride; k++) row[k] = random_below(1000000);
    memcpy(in->table + (size_t)n * w->b.stride, row, w->b.stride * sizeof(*row));
    if (w->b.states) in->held[n] = s->held;
    in->change[n] = (gr_slot_change){slot, GR_SLOT_SET, s->id, s->position, s->sequence, 0};
}

static void order_move(world *w, const gr_steps_input *in, uint32_t n, uint32_t slot, uint32_t from)
{
    const size_t row = w->b.stride * sizeof(*w->tables);
    memcpy((char *)w->tables + slot * row, (char *)w->tables + from * row, row);
    w->slots[slot] = w->slots[from];
    w->slots[from].live = false;
    in->change[n] = (gr_slot_change){.slot = slot, .from = from};
}

/* Each slot is named once at most: they are taken from a shuffled list. */
static uint32_t give_orders(world *w, const gr_steps_input *in, uint32_t trip)
{
    const uint32_t n = w->b.slots;
    uint32_t *order = malloc(n * sizeof(*order)), n_changes = 0;
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t j = random_below(i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t what = random_below(8);
        if (what < 3 && !w->slots[order[i]].live) {
            order_set(w, in, n_changes++, order[i], trip);
        } else if (what == 3) {
            w->slots[order[i]].live = false;
            in->change[n_changes++] = (gr_slot_change){.slot = order[i], .from = GR_SLOT_CLEAR};
        } else if (what == 4 && i + 1 < n) {
            order_move(w, in, n_changes++, order[i], order[i + 1]);
            i++;
        }
    }
    free(order);
    return n_changes;
}

static uint32_t give_groups(const world *w, const gr_steps_input *in)
{
    uint32_t n = 0, n_groups = 0;
    for (uint32_t i = 0; i < w->b.slots; i++) {
        if (!w->slots[i].live) continue;
        if (!n || random_below(3) == 0) {
            in->shared[n_groups] = 16 * random_below(2);
            in->group_first[n_groups++] = n;
        }
        in->member[n++] = i;
    }
    in->group_first[n_groups] = n;
    return n_groups;
}

static void one_trip(world *w, uint32_t trip, uint64_t key)
{
    if (trip >= 2) check_report(w, trip - 2);
    const gr_steps_input in = gr_steps_cuda.input(w->steps, trip);
    const uint32_t n_changes = give_orders(w, &in, trip);
    gr_steps_cuda.change(w->steps, &w->q, trip, n_changes, give_groups(w, &in));
    if (trip % 7 == 3) check_state(w);
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->b.slots; i++) n = w->slots[i].live ? i + 1 : n;
    if (random_below(2)) n = w->b.slots;
    const gr_steps_chunk c = {.n = n, .step = model, .user = w, .key = key};
    gr_steps_cuda.run(w->steps, &w->q, trip, &c);
    w->n[trip % 2] = n;
    for (uint32_t k = 0; k < w->b.chunk; k++)
        simulate_step(w, n, w->want_id[trip % 2] + (size_t)k * w->b.slots,
                      w->want_logprob[trip % 2] + (size_t)k * w->b.slots);
    if (trip % 7 == 5) check_state(w);
}

static void fill_table(world *w)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        w->table[i][0] = (token){(int32_t)random_below(VOCAB), -(float)random_below(1000) * 0x1p-6f};
        w->table[i][1] = (token){-5, 1e30f};
    }
    for (int i = 0; i < 3; i++) w->stop[i] = (int32_t)random_below(VOCAB);
    CUDA(cudaMemcpy(w->d_table, w->table, sizeof(w->table), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
}

/* window: layers with one have blocks of their own. */
static void check_case(uint32_t slots, uint32_t chunk, uint32_t max_tokens, uint32_t max_length, bool states,
                       bool window)
{
    const uint32_t blocks = (max_length + 15) / 16;
    world *w = calloc(1, sizeof(*w));
    const gr_layer_desc plain = gr_layer_plain(4, 2, 16, 64);
    w->shape = (gr_model_shape){.layers = 2};
    gr_model_of(&w->shape, &plain);
    w->b = (gr_steps_bounds){.slots = slots,
                             .stride = window ? 2 * blocks : blocks,
                             .window_at = window ? blocks : 0,
                             .max_length = max_length,
                             .chunk = chunk,
                             .stop_ids = 3,
                             .states = states};
    w->rules = (gr_steps_rules){.max_tokens = max_tokens, .stop = w->stop, .n_stop = 3};
    w->slots = calloc(slots, sizeof(*w->slots));
    w->tables = calloc((size_t)slots * w->b.stride, sizeof(*w->tables));
    for (int i = 0; i < 2; i++) {
        w->want_id[i] = calloc((size_t)slots * chunk, sizeof(int32_t));
        w->want_logprob[i] = calloc((size_t)slots * chunk, sizeof(float));
    }
    CUDA(cudaStreamCreateWithFlags((cudaStream_t *)&w->q.stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&w->d_table, sizeof(w->table)));
    CUDA(cudaMalloc((void **)&w->d_x, slots * ROW * sizeof(gr_bf16)));
    const uint64_t bytes = gr_steps_cuda.device_bytes(&w->shape, &w->b);
    CUDA(cudaMalloc((void **)&w->device, bytes));
    CUDA(cudaMemset(w->device, 0xFF, bytes));
    CUDA(cudaHostAlloc((void **)&w->host, gr_steps_cuda.host_bytes(&w->shape, &w->b), cudaHostAllocDefault));
    fill_table(w);
    gr_diag d;
    gr_diag_init(&d);
    const gr_cu_steps_model model = gr_cu_steps_model_of(&w->shape);
    gr_workspace c = {.base = w->device};
    gr_cu_steps_layout_device(&c, &model, &w->b, &w->at);
    gr_status st = gr_steps_cuda.open(&w->steps, &w->shape, &w->b, &d);
    for (uint32_t rollout = 0; rollout < 2 && !st; rollout++) {
        memset(w->slots, 0, slots * sizeof(*w->slots));
        st = gr_steps_cuda.begin(w->steps, &w->q, w->device, w->host, &w->rules, &d);
        for (uint32_t trip = 0; trip < TRIPS && !st; trip++) one_trip(w, trip, trip > TRIPS / 2);
        for (uint32_t trip = TRIPS - 2; trip < TRIPS && !st; trip++) check_report(w, trip);
        if (!st) check_state(w);
    }
    if (st) printf("  %s\n", d.n ? d.messages[0].text : gr_status_str(st));
    const bool ok = !st && !w->wrong && w->tokens && w->ended;
    printf("steps: %u slots%s%s, chunks of %u, %u tokens at most: %llu tokens, %llu ends, %llu wrong %s\n",
           slots, states ? " with states" : "", window ? " and windows" : "", chunk, max_tokens,
           (unsigned long long)w->tokens, (unsigned long long)w->ended, (unsigned long long)w->wrong,
           ok ? "OK" : "FAIL");
    failures += !ok;
    gr_steps_cuda.close(w->steps);
    gr_diag_release(&d);
    CUDA(cudaFree(w->d_table));
    CUDA(cudaFree(w->d_x));
    CUDA(cudaFree(w->device));
    CUDA(cudaFreeHost(w->host));
    CUDA(cudaStreamDestroy(w->q.stream));
    for (int i = 0; i < 2; i++) {
        free(w->want_id[i]);
        free(w->want_logprob[i]);
    }
    free(w->slots);
    free(w->tables);
    free(w);
}

int main(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
        puts("no CUDA device: skipped");
        return 77;
    }
    check_case(1, 8, 20, 100, false, false);
    check_case(7, 3, 30, 200, false, false);
    check_case(7, 3, 30, 200, false, true);
    check_case(64, 8, 50, 700, false, false);
    check_case(64, 8, 50, 700, true, true);
    check_case(1500, 8, 9, 300, true, false); /* more than one CTA has threads */
    printf("%s\n", failures ? "FAILED" : "all OK");
    return failures > 0;
}
