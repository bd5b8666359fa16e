/* Communicators over NCCL against sums on the CPU: parts of equal and of unequal size, both types, sums of
 * counts, columns, and messages between two. Started by mpirun, one process a device; skips (77) where there
 * is only one.
 *
 *     mpirun -n 2 gpu_nccl [--bench | --memory]
 *
 * --memory: what communicators take of the device, first when they are opened and then with each kind of use:
 * the `communication` and `messages` of hardware files (docs/CLUSTER.md).
 */
#include "ops/kernels/cuda/gemm.h"
#include "runtime/comm/comm.h"
#include "runtime/device/device_cuda.h"
#include "tests/gpu/check.h"

enum { ARENA = 64 << 20 };

static gr_comm *comm;
static gr_diag diag;
static gr_queue queue;
static char *arena;

static _Noreturn void lost(const char *message)
{
    fprintf(stderr, "%s\n", message);
    exit(1);
}

/* What rank r brings as its element i: any rank can say it. */
static float element(uint32_t r, uint64_t i)
{
    uint64_t state = r * UINT64_C(1000003) + i * 7919;
    return random_float(&state);
}

static void store(void *x, uint64_t i, uint32_t bytes, float v)
{
    if (bytes == 4)
        ((float *)x)[i] = v;
    else
        ((gr_bf16 *)x)[i] = bf16_of(v);
}

static float loaded(const void *x, uint64_t i, uint32_t bytes)
{
    return bytes == 4 ? ((const float *)x)[i] : of_bf16(((const gr_bf16 *)x)[i]);
}

/* A value as it is held in so many bytes. */
static float held(float v, uint32_t bytes)
{
    return bytes == 4 ? v : of_bf16(bf16_of(v));
}

static void upload(void *to, const void *from, uint64_t bytes)
{
    CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize()); /* the last of it may still be on its way, and the queue does not wait */
}

static void test_gather(uint64_t n, uint64_t part, uint32_t bytes)
{
    char *x = gr_malloc(n * bytes), name[64];
    const gr_comm_parts whole = {arena, n, part, bytes};
    snprintf(name, sizeof(name), "all-gather of %llu in parts of %llu, %u bytes", (unsigned long long)n,
             (unsigned long long)part, bytes);
    memset(x, 0xff, n * bytes); /* not-a-number, where it is another rank's */
    for (uint64_t i = 0; i < n; i++)
        if (i / part == comm->rank) store(x, i, bytes, element(comm->rank, i));
    upload(arena, x, n * bytes);
    expect_ok(comm->type->all_gather(comm, &queue, &whole, &diag), &diag, name);
    CUDA(cudaStreamSynchronize(queue.stream));
    char *got = host_copy(arena, n * bytes);
    for (uint64_t i = 0; i < n; i++) store(x, i, bytes, element((uint32_t)(i / part), i));
    report_equal(name, "whole", got, x, n * bytes);
    free(got);
    free(x);
}

static char *reduced(const char *name, const void *x, const gr_comm_parts *whole, uint64_t own)
{
    upload(whole->at, x, whole->n * whole->elem_bytes);
    expect_ok(comm->type->reduce_scatter(comm, &queue, whole, NULL, &diag), &diag, name);
    CUDA(cudaStreamSynchronize(queue.stream));
    return host_copy((char *)whole->at + GR_MIN(comm->rank * whole->part, whole->n) * whole->elem_bytes,
                     own * whole->elem_bytes);
}

static void test_reduce(uint64_t n, uint64_t part, uint32_t bytes)
{
    const uint64_t first = GR_MIN(comm->rank * part, n), own = GR_MIN(part, n - first);
    const gr_comm_parts whole = {arena, n, part, bytes};
    char *x = gr_malloc(n * bytes), name[64];
    errors e = {0};
    snprintf(name, sizeof(name), "reduce-scatter of %llu in parts of %llu, %u bytes", (unsigned long long)n,
             (unsigned long long)part, bytes);
    for (uint64_t i = 0; i < n; i++) store(x, i, bytes, element(comm->rank, i));
    char *got = reduced(name, x, &whole, own), *again = reduced(name, x, &whole, own);
    for (uint64_t i = 0; i < own; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < comm->ranks; r++) sum += held(element(r, first + i), bytes);
        errors_add(&e, loaded(got, i, bytes), sum);
    }
    report_errors(&e, name, "own", bytes == 4 ? 1e-6 : 1e-2);
    report_equal(name, "again", got, again, own * bytes);
    free(got);
    free(again);
    free(x);
}

static void test_totals(void)
{
    double sums[3] = {1.5 * comm->rank, -1, 1e-300}, all = 0;
    uint8_t column[1000] = {0}, whole[1000];
    for (uint32_t r = 0; r < comm->ranks; r++) all += 1.5 * r;
    const double want[3] = {all, -(double)comm->ranks, comm->ranks * 1e-300};
    upload(arena, sums, sizeof(sums));
    expect_ok(comm->type->all_reduce(comm, &queue, arena, sizeof(sums), GR_COMM_SUM_F64, &diag), &diag,
              "sums");
    CUDA(cudaStreamSynchronize(queue.stream));
    double *got = host_copy(arena, sizeof(sums));
    report_equal("sums of doubles", "", got, want, sizeof(want));
    free(got);
    for (size_t i = 0; i < sizeof(column); i++) {
        whole[i] = (uint8_t)(i * 37 + 1);
        if (i % comm->ranks == comm->rank) column[i] = whole[i];
    }
    upload(arena, column, sizeof(column));
    expect_ok(comm->type->all_reduce(comm, &queue, arena, sizeof(column), GR_COMM_MAX_U8, &diag), &diag,
              "column");
    CUDA(cudaStreamSynchronize(queue.stream));
    uint8_t *back = host_copy(arena, sizeof(column));
    report_equal("a column of which each has a part", "", back, whole, sizeof(whole));
    free(back);
}

/* Activations: near the sum, and the same bits on all ranks and again. */
static void test_sum(uint64_t n, uint32_t bytes)
{
    const gr_comm_reduction how = bytes == 4 ? GR_COMM_SUM_F32 : GR_COMM_SUM_BF16;
    char *x = gr_malloc(n * bytes), *first = NULL, name[64];
    snprintf(name, sizeof(name), "all-reduce of %llu, %u bytes, %u ranks", (unsigned long long)n, bytes,
             comm->ranks);
    for (uint64_t i = 0; i < n; i++) store(x, i, bytes, element(comm->rank, i));
    for (int turn = 0; turn < 2; turn++) {
        upload(arena, x, n * bytes);
        expect_ok(comm->type->all_reduce(comm, &queue, arena, n * bytes, how, &diag), &diag, name);
        CUDA(cudaStreamSynchronize(queue.stream));
        char *got = host_copy(arena, n * bytes);
        if (first) report_equal(name, "again", got, first, n * bytes);
        free(first);
        first = got;
    }
    errors e = {0};
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < comm->ranks; r++) sum += held(element(r, i), bytes);
        errors_add(&e, loaded(first, i, bytes), sum);
    }
    report_errors(&e, name, "sum", bytes == 4 ? 1e-6 : 1e-2);
    memcpy(x, first, n * bytes);
    expect_ok(comm->type->broadcast(comm, x, n * bytes, &diag), &diag, name);
    report_equal(name, "as rank 0", first, x, n * bytes);
    free(first);
    free(x);
}

static void test_sums(void)
{
    static const uint64_t sizes[] = {1, 4096, 32 * 1024 + 1, 5 << 20};
    for (size_t i = 0; i < GR_LEN(sizes); i++)
        for (uint32_t bytes = 2; bytes <= 4; bytes += 2) test_sum(sizes[i], bytes);
}

/* Sums inside a captured graph, as decode steps have them: x becomes ranks^turns times what rank 0 has. */
static void test_captured(void)
{
    enum { N = 4096, TURNS = 3 };
    float *x = gr_malloc(N * sizeof(*x));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeThreadLocal));
    for (int turn = 0; turn < TURNS; turn++)
        expect_ok(comm->type->all_reduce(comm, &queue, arena, N * sizeof(*x), GR_COMM_SUM_F32, &diag), &diag,
                  "captured sum");
    CUDA(cudaStreamEndCapture(queue.stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int launch = 0; launch < 2; launch++) {
        for (uint64_t i = 0; i < N; i++) x[i] = (float)(i + launch);
        upload(arena, x, N * sizeof(*x));
        CUDA(cudaGraphLaunch(exec, queue.stream));
        CUDA(cudaStreamSynchronize(queue.stream));
        for (uint64_t i = 0; i < N; i++)
            for (int turn = 0; turn < TURNS; turn++) x[i] *= (float)comm->ranks;
        float *got = host_copy(arena, N * sizeof(*x));
        report_equal("sums in a captured graph", "", got, x, N * sizeof(*x));
        free(got);
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    free(x);
}

static void test_message(void)
{
    enum { N = 1 << 20 };
    const uint32_t pair = comm->rank ^ 1;
    if (pair >= comm->ranks) return;
    float *x = gr_malloc(N * sizeof(*x));
    for (uint64_t i = 0; i < N; i++) x[i] = element(0, i);
    if (comm->rank < pair) {
        upload(arena, x, N * sizeof(*x));
        expect_ok(comm->type->send(comm, &queue, arena, N * sizeof(*x), pair, &diag), &diag, "send");
        CUDA(cudaStreamSynchronize(queue.stream));
    } else {
        CUDA(cudaMemset(arena, 0xff, N * sizeof(*x)));
        CUDA(cudaDeviceSynchronize());
        expect_ok(comm->type->recv(comm, &queue, arena, N * sizeof(*x), pair, &diag), &diag, "recv");
        CUDA(cudaStreamSynchronize(queue.stream));
        float *got = host_copy(arena, N * sizeof(*x));
        report_equal("a message to a neighbour", "", got, x, N * sizeof(*x));
        free(got);
    }
    free(x);
}

/* Rank s has for rank r `least` + 10 s + r elements; what goes to different ranks overlaps. */
static void test_exchange(uint64_t least)
{
    enum { MOST = 64 };
    const uint64_t step = least / 2, all = (step + 11) * comm->ranks + least;
    uint64_t from_at[MOST], from_bytes[MOST], to_at[MOST], to_bytes[MOST], total = 0, n = 0;
    if (comm->ranks > MOST) return;
    for (uint32_t r = 0; r < comm->ranks; r++) {
        from_at[r] = step * r * sizeof(float);
        from_bytes[r] = (least + 10 * comm->rank + r) * sizeof(float);
        to_at[r] = total;
        to_bytes[r] = (least + 10 * r + comm->rank) * sizeof(float);
        total += to_bytes[r];
    }
    float *x = gr_malloc(all * sizeof(*x)), *want = gr_malloc(total);
    char *to = arena + gr_align(all * sizeof(*x), 256);
    for (uint64_t i = 0; i < all; i++) x[i] = element(comm->rank, i);
    for (uint32_t r = 0; r < comm->ranks; r++)
        for (uint64_t i = 0; i < to_bytes[r] / sizeof(*x); i++) want[n++] = element(r, step * comm->rank + i);
    upload(arena, x, all * sizeof(*x));
    CUDA(cudaMemset(to, 0xff, total));
    CUDA(cudaDeviceSynchronize());
    const gr_comm_exchange e = {arena, from_at, from_bytes, to, to_at, to_bytes, sizeof(float)};
    expect_ok(comm->type->all_to_all(comm, &queue, &e, &diag), &diag, "exchange");
    CUDA(cudaStreamSynchronize(queue.stream));
    float *got = host_copy(to, total);
    report_equal("an exchange of all with all", "", got, want, total);
    free(got);
    free(x);
    free(want);
}

/* Messages, and then parts that do not fill the buffer, of so many bytes that NCCL moves them without a copy
 * in between. For the messages it learns where the other rank's window is, and 2.28 does not learn it again
 * for what passes parts on: that was written to address 0 + its place in the window, which may be somebody's
 * memory. */
static void test_after_messages(void)
{
    const uint64_t n = 16000001, part = gr_align((n + comm->ranks - 1) / comm->ranks, 64);
    if (comm->ranks < 2) return;
    test_exchange(1 << 20);
    test_gather(n, part, 4);
    test_reduce(n, part, 4);
    test_exchange(1 << 20);
}

static void test_group(uint32_t color)
{
    gr_comm *all = comm, *group = NULL;
    const double before = (double)gr_device_cuda.used(queue.device);
    expect_ok(gr_comm_split(&group, all, color, &diag), &diag, "split");
    if (check_failures) gr_comm_abort(all, 1);
    comm = group;
    for (uint32_t bytes = 2; bytes <= 4; bytes += 2) {
        test_gather(100003, (100003 + group->ranks - 1) / group->ranks, bytes);
        test_reduce(64 * group->ranks, 64, bytes);
    }
    test_totals();
    test_sums();
    test_captured();
    test_exchange(100);
    test_after_messages();
    printf("rank %u of %u in a group of %u: %.1f MiB of its own\n", all->rank, all->ranks, group->ranks,
           ((double)gr_device_cuda.used(queue.device) - before) / (1 << 20));
    comm = all;
    test_sum(1000, 4); /* the one it comes from goes on */
    gr_comm_close(group);
}

/* ---- --memory --------------------------------------------------------------------------------------------
 */

static void even_parts(void)
{
    test_gather(64 * comm->ranks, 64, 4);
    test_reduce(64 * comm->ranks, 64, 2);
    test_gather(12000000 / comm->ranks * comm->ranks, 12000000 / comm->ranks, 4);
    test_reduce(12000000 / comm->ranks * comm->ranks, 12000000 / comm->ranks, 4);
}

static void uneven_parts(void)
{
    test_gather(16000001, gr_align((16000001 + comm->ranks - 1) / comm->ranks, 64), 4);
    test_reduce(16000001, gr_align((16000001 + comm->ranks - 1) / comm->ranks, 64), 4);
}

static void large_messages(void)
{
    test_exchange(1 << 20);
}

/* Of one kind of use after another what a communicator takes more. */
static void measure_memory(const char *which, uint64_t before, bool messages_first)
{
    static const struct {
        const char *what;
        void (*use)(void);
    } uses[] = {{"gathers and reductions of even parts", even_parts},
                {"totals and columns", test_totals},
                {"sums", test_sums},
                {"captured sums", test_captured},
                {"messages to a neighbour", test_message},
                {"large messages to all", large_messages},
                {"gathers and reductions of uneven parts", uneven_parts},
                {"all of it again", even_parts}};
    enum { MESSAGES = 4 };
    uint64_t now = gr_device_cuda.used(queue.device);
    if (!comm->rank) printf("memory, %s: %8.1f MiB when opened\n", which, (double)(now - before) / (1 << 20));
    for (size_t i = 0; i < GR_LEN(uses); i++) {
        const size_t k = messages_first ? (i + MESSAGES) % GR_LEN(uses) : i;
        uses[k].use();
        const uint64_t then = gr_device_cuda.used(queue.device);
        if (!comm->rank)
            printf("memory, %s: %8.1f MiB more with %s\n", which, ((double)then - (double)now) / (1 << 20),
                   uses[k].what);
        now = then;
    }
    if (!comm->rank)
        printf("memory, %s: %8.1f MiB in all\n", which, ((double)now - (double)before) / (1 << 20));
}

/* The communicator of all, one split off that is used alike, and one of which messages are the first use. */
static void memory(uint64_t before)
{
    gr_comm *all = comm;
    measure_memory("of all ranks", before, false);
    for (int messages_first = 0; messages_first < 2; messages_first++) {
        before = gr_device_cuda.used(queue.device);
        expect_ok(gr_comm_split(&comm, all, 0, &diag), &diag, "split");
        if (check_failures) gr_comm_abort(all, 1);
        measure_memory(messages_first ? "split off, messages first" : "split off", before, messages_first);
        gr_comm_close(comm);
    }
    comm = all;
}

/* ---- --bench ---------------------------------------------------------------------------------------------
 */

typedef enum collective { GATHER, REDUCE, SUM } collective;

typedef struct timing {
    gr_comm *comm;
    gr_comm_parts whole;
    collective what;
    cudaGraphExec_t graph;
} timing;

static void one(void *arg, int i)
{
    const timing *t = arg;
    const gr_comm_parts *w = &t->whole;
    const gr_comm_type *type = t->comm->type;
    (void)i;
    gr_status st = t->what == GATHER ? type->all_gather(t->comm, &queue, w, &diag)
                   : t->what == REDUCE
                       ? type->reduce_scatter(t->comm, &queue, w, NULL, &diag)
                       : type->all_reduce(t->comm, &queue, w->at, w->n * w->elem_bytes,
                                          w->elem_bytes == 2 ? GR_COMM_SUM_BF16 : GR_COMM_SUM_F32, &diag);
    expect_ok(st, &diag, "bench");
}

static void launched(void *arg, int i)
{
    const timing *t = arg;
    (void)i;
    CUDA(cudaGraphLaunch(t->graph, queue.stream));
}

/* Of one of the sums of a decode step, which are in a captured graph: two a layer. */
static double captured_time(timing *t)
{
    enum { SUMS = 72 };
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < SUMS; i++) one(t, i);
    CUDA(cudaStreamEndCapture(queue.stream, &graph));
    CUDA(cudaGraphInstantiate(&t->graph, graph, 0));
    const double s = time_of(launched, t, 1) / SUMS;
    CUDA(cudaGraphExecDestroy(t->graph));
    CUDA(cudaGraphDestroy(graph));
    return s;
}

static void bench_sums(gr_comm *c, const char *how)
{
    static const uint64_t rows[] = {1, 16, 64, 256, 1024};
    static const uint32_t hidden[] = {1024, 4096};
    for (size_t h = 0; h < GR_LEN(hidden); h++)
        for (size_t i = 0; i < GR_LEN(rows); i++)
            for (uint32_t bytes = 2; bytes <= 4; bytes += 2) {
                timing t = {c, {arena, rows[i] * hidden[h], 0, bytes}, SUM, NULL};
                const double s = captured_time(&t);
                if (!c->rank)
                    printf("captured sum of [%4llu, %u], %s %-10s %8.1f us\n", (unsigned long long)rows[i],
                           hidden[h], bytes == 2 ? "bf16" : "fp32", how, s * 1e6);
            }
}

static void bench(gr_comm *c, const char *how)
{
    static const struct {
        const char *what;
        uint64_t n;
        uint32_t bytes;
        collective op;
    } cases[] = {
        {"gather of a layer of 0.6B, bf16", 15730944, 2, GATHER},
        {"gather of a layer of 8B, bf16", 192946432, 2, GATHER},
        {"gather of the head of 8B, bf16", 622329856, 2, GATHER},
        {"reduction of a layer of 0.6B, fp32", 15730944, 4, REDUCE},
        {"reduction of a layer of 8B, fp32", 192946432, 4, REDUCE},
        {"reduction of a layer of 8B, bf16", 192946432, 2, REDUCE},
        {"sum of [16384, 4096], bf16", 67108864, 2, SUM},
        {"sum of [16384, 4096], fp32", 67108864, 4, SUM},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        const uint64_t part = (cases[i].n + c->ranks * 64 - 1) / (c->ranks * 64) * 64;
        timing t = {c, {arena, cases[i].n, part, cases[i].bytes}, cases[i].op, NULL};
        const double s = time_of(one, &t, 5);
        double bytes = (double)cases[i].n * cases[i].bytes * (c->ranks - 1) / c->ranks;
        if (cases[i].op == SUM) bytes *= 2; /* each part to its rank, and back */
        if (!c->rank)
            printf("%-36s %-10s %8.1f us %7.1f GB/s a rank, parts %s\n", cases[i].what, how, s * 1e6,
                   bytes / s / 1e9, cases[i].n == part * c->ranks ? "equal" : "unequal");
    }
    bench_sums(c, how);
}

/* Products of a layer's size, on a stream of their own. */
typedef struct products {
    gr_cu_gemm *gemm;
    gr_cu_gemm_call call;
    cudaStream_t stream;
    void *ws;
} products;

static products products_new(void)
{
    enum { ROWS = 16384, H = 4096, I = 12288 };
    gr_bf16 *x = random_bf16((size_t)ROWS * H, 1, 5), *w = random_bf16((size_t)I * H, 1, 6);
    products p = {.call = {.form = GR_CU_GEMM_NT, .m = ROWS, .n = I, .k = H, .lda = H, .ldb = H, .ldd = I}};
    expect_ok(gr_cu_gemm_open(&p.gemm, &diag), &diag, "cuBLASLt");
    p.call.a = device_copy(x, (size_t)ROWS * H * 2);
    p.call.b = device_copy(w, (size_t)I * H * 2);
    p.call.d = device_poisoned((size_t)ROWS * I * 2);
    p.call.type = GR_CU_BF16;
    p.ws = device_poisoned(GR_CU_GEMM_WS_BYTES);
    CUDA(cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking));
    free(x);
    free(w);
    return p;
}

static void products_free(products *p)
{
    gr_cu_gemm_close(p->gemm);
    CUDA(cudaFree((void *)(uintptr_t)p->call.a));
    CUDA(cudaFree((void *)(uintptr_t)p->call.b));
    CUDA(cudaFree(p->call.d));
    CUDA(cudaFree(p->ws));
    CUDA(cudaStreamDestroy(p->stream));
}

/* A pass as it might be: eight products a layer, and behind each layer a collective on another stream, t
 * NULL: none. ms: of a layer; of a collective, in the mean of all but the last, which nothing is beside. */
static void beside(products *p, const timing *t, float ms[2])
{
    enum { LAYERS = 16, PRODUCTS = 8 };
    cudaEvent_t begin, behind[LAYERS], done[LAYERS];
    float each;
    CUDA(cudaEventCreate(&begin));
    expect_ok(comm->type->barrier(comm, &diag), &diag, "barrier");
    CUDA(cudaEventRecord(begin, p->stream));
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < PRODUCTS; i++)
            expect_ok(gr_cu_gemm_run(p->gemm, p->stream, &p->call, p->ws, &diag), &diag, "product");
        CUDA(cudaEventCreate(&behind[l]));
        CUDA(cudaEventCreate(&done[l]));
        CUDA(cudaEventRecord(behind[l], p->stream));
        CUDA(cudaStreamWaitEvent(queue.stream, behind[l], 0));
        if (t) one((void *)(uintptr_t)t, l);
        CUDA(cudaEventRecord(done[l], queue.stream));
    }
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaEventElapsedTime(&ms[0], begin, behind[LAYERS - 1]));
    ms[0] /= LAYERS;
    ms[1] = 0;
    for (int l = 0; l < LAYERS; l++) {
        CUDA(cudaEventElapsedTime(&each, behind[l], done[l]));
        if (l + 1 < LAYERS) ms[1] += each / (LAYERS - 1);
        CUDA(cudaEventDestroy(behind[l]));
        CUDA(cudaEventDestroy(done[l]));
    }
    CUDA(cudaEventDestroy(begin));
}

/* What a layer of 8B loses to what is moved beside it, and how long that takes there. */
static void bench_beside(void)
{
    const uint64_t n = 192950272, part = n / comm->ranks / 64 * 64;
    const timing cases[] = {{comm, {arena, part * comm->ranks, part, 2}, GATHER, NULL},
                            {comm, {arena, part * comm->ranks, part, 4}, REDUCE, NULL}};
    static const char *const names[] = {"nothing", "a gather of one, bf16", "a reduction of one, fp32"};
    products p = products_new();
    for (int turn = 0; turn < 3; turn++) /* the first is of a device that is not warm */
        for (size_t i = 0; i <= GR_LEN(cases); i++) {
            float ms[2];
            beside(&p, i ? &cases[i - 1] : NULL, ms);
            if (turn && !comm->rank)
                printf("products of a layer of 8B beside %-26s %7.3f ms, which takes %7.3f ms\n", names[i],
                       ms[0], ms[1]);
        }
    products_free(&p);
}

int main(int argc, char **argv)
{
    const bool benching = argc > 1 && !strcmp(argv[1], "--bench"),
               measuring = argc > 1 && !strcmp(argv[1], "--memory");
    const gr_device_needs needs = {.arena_bytes = benching ? UINT64_C(4) << 30 : ARENA, .events = 1};
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK"), *locals = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    gr_comm *host = NULL, *plain = NULL;
    gr_device *device = NULL;
    int n = 0;
    gr_diag_init(&diag);
    if (local && locals) gr_comm_take_device((uint32_t)atoi(local), (uint32_t)atoi(locals));
    if (!local || cudaGetDeviceCount(&n) != cudaSuccess || n < 1) {
        printf("not one of several processes that mpirun started, or no CUDA device: skipped\n");
        return 77;
    }
    expect_ok(gr_comm_open_mpi(&host, lost, &diag), &diag, "MPI");
    if (check_failures) return 1;
    expect_ok(gr_device_cuda.open(&device, &needs, &diag), &diag, "device");
    if (check_failures) gr_comm_abort(host, 1);
    expect_ok(gr_device_cuda.queue_open(device, &queue, false, &diag), &diag, "queue");
    arena = device->arena.base;
    uint64_t before = gr_device_cuda.used(device);
    expect_ok(gr_comm_open_nccl(&comm, host, &device->arena, &diag), &diag, "NCCL");
    if (check_failures) gr_comm_abort(host, 1);
    uint64_t opened = gr_device_cuda.used(device);
    if (benching) {
        CUDA(cudaMemset(arena, 0, needs.arena_bytes));
        gr_device_cuda.queue_close(&queue);
        cudaStream_t stream; /* which waits for the events of time_of, on the null stream, and they for it */
        CUDA(cudaStreamCreate(&stream));
        queue = (gr_queue){.device = device, .stream = stream};
        bench(comm, "registered");
        bench_beside();
        expect_ok(gr_comm_open_nccl(&plain, host, &(gr_memory){0}, &diag), &diag, "NCCL, no window");
        bench(plain, "plain");
    } else if (measuring) {
        memory(before);
    } else {
        const uint64_t sizes[][2] = {
            {64 * comm->ranks, 64}, {1 << 20, (1 << 20) / comm->ranks}, {100003, 64 * 800}, {65, 64}};
        for (size_t i = 0; i < GR_LEN(sizes); i++)
            for (uint32_t bytes = 2; bytes <= 4; bytes += 2) {
                test_gather(sizes[i][0], sizes[i][1], bytes);
                test_reduce(sizes[i][0], sizes[i][1], bytes);
            }
        test_totals();
        test_message();
        test_sums();
        test_captured();
        test_exchange(100);
        test_after_messages();
        test_group(0);
        test_group(comm->rank);         /* each alone */
        test_group(comm->rank ? 5 : 9); /* of sizes that differ */
        test_group(comm->rank / 2);
    }
    printf("rank %u of %u: NCCL took %.1f MiB when it was opened, %.1f MiB with use\n", comm->rank,
           comm->ranks, (double)(opened - before) / (1 << 20),
           (double)(gr_device_cuda.used(device) - before) / (1 << 20));
    gr_comm_close(plain);
    gr_comm_close(comm);
    gr_comm_close(host);
    gr_device_cuda.queue_close(&queue);
    gr_device_cuda.close(device);
    printf("%s\n", check_failures ? "FAILED" : "0 failures");
    return check_failures != 0;
}
