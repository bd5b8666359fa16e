/* tests/gpu/gpu_stress.c: the products of ops/kernels/cuda/pipeline.cuh over and over in sizes of chance, by
 * two threads on a stream each, at times out of a graph, while a third stream takes multiprocessors from
 * them. Every row must have the bits that it had when nothing else ran.
 *
 *     gpu_stress [SECONDS]   5 where not said
 */
#include "tests/gpu/device.h"

enum { ROWS = 700, LOGIT_ROWS = 64, STATS = 4, WORKERS = 2, V_MAX = 151936, I_MAX = 12288 };

/* A matrix and rows for it, and what is right: of the head statistics [STATS][ROWS], of SwiGLU h [ROWS, n].
 */
typedef struct job {
    uint32_t n, H; /* n: ids; columns of gate and as many of up */
    gr_bf16 *x, *w;
    void *want;
} job;

static job heads[] = {
    {.n = 17, .H = 8}, {.n = 5001, .H = 1000}, {.n = 30000, .H = 320}, {.n = V_MAX, .H = 2048}};
static job ups[] = {
    {.n = 194, .H = 64}, {.n = 1030, .H = 1000}, {.n = 6144, .H = 2048}, {.n = I_MAX, .H = 1024}};
static int32_t *target; /* [ROWS] */
static atomic_bool over;

typedef struct worker {
    uint64_t seed, end, rounds, graphs, wrong;
    cudaStream_t st;
    float *part, *logit, *logits, *stats; /* on the device; stats [STATS][ROWS] */
    gr_bf16 *h;
    float *got_stats; /* on the host, page-locked, both */
    gr_bf16 *got_h;
} worker;

/* What a turn does: rows [first, first + rows) of a head, [up_first, up_first + up_rows) of a SwiGLU. */
typedef struct turn {
    const job *head, *up;
    uint32_t first, rows, up_first, up_rows;
    bool logits;
} turn;

static void *pinned(size_t bytes)
{
    void *p;
    CUDA(cudaHostAlloc(&p, bytes, 0));
    return p;
}

static worker worker_new(uint64_t seed)
{
    worker w = {.seed = seed,
                .part = device_poisoned(gr_cu_head_part_bytes(ROWS, V_MAX)),
                .logit = device_poisoned(ROWS * 4),
                .logits = device_poisoned((size_t)LOGIT_ROWS * V_MAX * 4),
                .stats = device_poisoned(STATS * ROWS * 4),
                .h = device_poisoned((size_t)ROWS * I_MAX * 2),
                .got_stats = pinned(STATS * ROWS * 4),
                .got_h = pinned((size_t)ROWS * I_MAX * 2)};
    CUDA(cudaStreamCreateWithFlags(&w.st, cudaStreamNonBlocking));
    return w;
}

static uint32_t below(worker *w, uint32_t n)
{
    w->seed = w->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((w->seed >> 33) % n);
}

static void enqueue(worker *w, const turn *r)
{
    const size_t h_bytes = (size_t)r->up_rows * r->up->n * 2;
    const gr_cu_head_rows rows = {.x = r->head->x + (size_t)r->first * r->head->H,
                                  .lm = r->head->w,
                                  .target = target + r->first,
                                  .inv_temperature = 1,
                                  .n = r->rows,
                                  .V = r->head->n,
                                  .H = r->head->H,
                                  .part = w->part,
                                  .logit = w->logit,
                                  .logits = r->logits ? w->logits : NULL};
    CUDA(cudaMemsetAsync(w->stats, 0xff, STATS * ROWS * 4, w->st));
    CUDA(cudaMemsetAsync(w->h, 0xff, h_bytes, w->st));
    const bool launched = gr_cu_head_product(w->st, &rows) &&
                          gr_cu_swiglu_product(w->st, r->up->x + (size_t)r->up_first * r->up->H, r->up->w,
                                               w->h, r->up_rows, r->up->H, r->up->n);
    w->wrong += !launched;
    gr_cu_head_merge(w->st, &rows, w->stats, w->stats + ROWS, w->stats + 2 * ROWS, w->stats + 3 * ROWS);
    CUDA(cudaMemcpyAsync(w->got_stats, w->stats, STATS * ROWS * 4, cudaMemcpyDeviceToHost, w->st));
    CUDA(cudaMemcpyAsync(w->got_h, w->h, h_bytes, cudaMemcpyDeviceToHost, w->st));
}

static void enqueue_graph(worker *w, const turn *r)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(w->st, cudaStreamCaptureModeThreadLocal));
    enqueue(w, r);
    CUDA(cudaStreamEndCapture(w->st, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) CUDA(cudaGraphLaunch(exec, w->st));
    CUDA(cudaStreamSynchronize(w->st));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    w->graphs++;
}

static bool is_right(const worker *w, const turn *r)
{
    const float *want = r->head->want;
    const gr_bf16 *h = r->up->want;
    bool same = !memcmp(w->got_h, h + (size_t)r->up_first * r->up->n, (size_t)r->up_rows * r->up->n * 2);
    for (int i = 0; i < STATS; i++)
        same &= !memcmp(w->got_stats + i * ROWS, want + i * ROWS + r->first, r->rows * 4);
    return same;
}

static void *work(void *arg)
{
    worker *w = arg;
    while (gr_now_ns() < w->end) {
        turn r = {.head = &heads[below(w, GR_LEN(heads))],
                  .up = &ups[below(w, GR_LEN(ups))],
                  .first = below(w, ROWS),
                  .up_first = below(w, ROWS),
                  .logits = below(w, 3) == 0};
        r.rows = 1 + below(w, GR_MIN(ROWS - r.first, r.logits ? (uint32_t)LOGIT_ROWS : ROWS));
        r.up_rows = 1 + below(w, ROWS - r.up_first);
        if (below(w, 4) == 0)
            enqueue_graph(w, &r);
        else
            enqueue(w, &r);
        CUDA(cudaStreamSynchronize(w->st));
        w->wrong += !is_right(w, &r);
        w->rounds++;
    }
    return NULL;
}

/* Short kernels of few threads, so that clusters find no two multiprocessors free at once now and then. */
static void *disturb(void *arg)
{
    enum { N = 1 << 22 };
    float *x = device_random_f32(N, 9);
    gr_bf16 *y = device_poisoned(N * 2);
    cudaStream_t st;
    (void)arg;
    CUDA(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    for (uint64_t n = 1; !atomic_load(&over); n = n * 7 % N + 1) {
        for (int i = 0; i < 20; i++) gr_cu_round(st, x, y, n);
        CUDA(cudaStreamSynchronize(st));
    }
    CUDA(cudaStreamDestroy(st));
    CUDA(cudaFree(x));
    CUDA(cudaFree(y));
    return NULL;
}

/* What a worker gets alone, and has to get beside others. */
static void prepare(worker *w)
{
    for (size_t i = 0; i < GR_LEN(heads); i++) {
        job *head = &heads[i], *up = &ups[i];
        job *both[] = {head, up};
        for (int k = 0; k < 2; k++) {
            both[k]->x = device_random_bf16((size_t)ROWS * both[k]->H, 1 + i);
            both[k]->w = device_random_bf16((size_t)(1 + k) * both[k]->n * both[k]->H, 11 + i);
        }
        CUDA(cudaDeviceSynchronize()); /* copies on the device go on behind the call, and w->st waits for none
                                        */
        const turn all = {.head = head, .up = up, .rows = ROWS, .up_rows = ROWS};
        enqueue(w, &all);
        CUDA(cudaStreamSynchronize(w->st));
        head->want = memcpy(gr_malloc(STATS * ROWS * 4), w->got_stats, STATS * ROWS * 4);
        up->want = memcpy(gr_malloc((size_t)ROWS * up->n * 2), w->got_h, (size_t)ROWS * up->n * 2);
    }
}

static void stress(double seconds)
{
    pthread_t thread[WORKERS], busy;
    worker w[WORKERS];
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++) ids[i] = i % 17;
    target = device_copy(ids, sizeof(ids));
    for (int i = 0; i < WORKERS; i++) w[i] = worker_new(1 + (uint64_t)i);
    prepare(&w[0]);
    const uint64_t end = gr_now_ns() + (uint64_t)(seconds * 1e9);
    pthread_create(&busy, NULL, disturb, NULL);
    for (int i = 0; i < WORKERS; i++) {
        w[i].end = end;
        pthread_create(&thread[i], NULL, work, &w[i]);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(thread[i], NULL);
    atomic_store(&over, true);
    pthread_join(busy, NULL);
    for (int i = 0; i < WORKERS; i++) {
        const bool ok = w[i].rounds && !w[i].wrong;
        printf("stream %d: %llu rounds in %.0f s, %llu of them graphs, %llu wrong %s\n", i,
               (unsigned long long)w[i].rounds, seconds, (unsigned long long)w[i].graphs,
               (unsigned long long)w[i].wrong, ok ? "OK" : "FAIL");
        check_failures += !ok;
    }
}

int main(int argc, char **argv)
{
    need_device();
    gr_bf16 *probe = device_poisoned(256);
    if (!gr_cu_head_fuses(probe, 64)) {
        printf("fused products: not on this device\n");
        return 77;
    }
    stress(argc > 1 ? atof(argv[1]) : 5);
    CUDA(cudaDeviceSynchronize());
    printf("%d failed\n", check_failures);
    return check_failures != 0;
}
