/* Every call of a communicator, by ranks that mpirun has started: of all of them, and of groups; with `hang`,
 * what happens to those who wait for one that has stopped, with `hang group` where only its group does.
 * comm.sh runs it. */
#include "runtime/comm/comm.h"
#include "runtime/comm/watchdog.h"

#include "runtime/base/half.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static gr_comm *comm; /* under test */

static void check(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "rank %u: %s\n", comm->rank, what);
    gr_comm_abort(comm, 1);
}

static void say(const char *message)
{
    fprintf(stderr, "%s\n", message);
}

/* Part lengths that divide, that leave a short part, and one that leaves ranks without any. */
static const uint64_t sizes[] = {64, 65, 1, 3, 100003};

static void test_gather(void)
{
    for (size_t s = 0; s < GR_LEN(sizes); s++) {
        uint64_t n = sizes[s], part = (n + comm->ranks - 1) / comm->ranks;
        float *x = gr_calloc(n, sizeof(*x));
        for (uint64_t i = 0; i < n; i++) x[i] = i / part == comm->rank ? (float)i + 0.5f : -1;
        gr_status st = comm->type->all_gather(comm, NULL, &(gr_comm_parts){x, n, part, sizeof(*x)}, NULL);
        check(!st, "all_gather");
        for (uint64_t i = 0; i < n; i++) check(x[i] == (float)i + 0.5f, "all_gather: an element is wrong");
        free(x);
    }
}

static float value(uint32_t rank, uint64_t i)
{
    return 1.0f / (float)(1 + 7 * rank + i % 13);
}

/* By hand: neighbours, then neighbouring pairs; of three, the third alone. */
static float tree(uint32_t first, uint32_t n, uint64_t i)
{
    if (n == 1) return value(first, i);
    uint32_t half = 1;
    while (2 * half < n) half *= 2;
    return tree(first, half, i) + tree(first + half, n - half, i);
}

static void test_reduce(void)
{
    for (size_t s = 0; s < GR_LEN(sizes); s++) {
        uint64_t n = sizes[s], part = (n + comm->ranks - 1) / comm->ranks, first = comm->rank * part;
        float *x = gr_calloc(n, sizeof(*x)), *staging = gr_calloc(part * comm->ranks, sizeof(*staging));
        for (uint64_t i = 0; i < n; i++) x[i] = value(comm->rank, i);
        gr_status st =
            comm->type->reduce_scatter(comm, NULL, &(gr_comm_parts){x, n, part, sizeof(*x)}, staging, NULL);
        check(!st, "reduce_scatter");
        for (uint64_t i = first; i < n && i < first + part; i++)
            check(x[i] == tree(0, comm->ranks, i), "reduce_scatter: a sum is wrong");
        free(x);
        free(staging);
    }
}

/* Above what is added at once, and with a last part that is short. */
static const uint64_t sum_sizes[] = {1, 7, 300007};

static void test_sum_f32(uint64_t n)
{
    float *x = gr_calloc(n, sizeof(*x));
    for (uint64_t i = 0; i < n; i++) x[i] = value(comm->rank, i);
    check(!comm->type->all_reduce(comm, NULL, x, n * sizeof(*x), GR_COMM_SUM_F32, NULL), "all_reduce");
    for (uint64_t i = 0; i < n; i++) check(x[i] == tree(0, comm->ranks, i), "a sum of fp32 is wrong");
    free(x);
}

static float rounded(float x)
{
    return gr_bf16_to_f32(gr_f32_to_bf16(x));
}

/* Sums of so few values of 8 bits are exact in fp32: what is rounded once is known. */
static void test_sum_bf16(uint64_t n)
{
    uint16_t *x = gr_calloc(n, sizeof(*x));
    for (uint64_t i = 0; i < n; i++) x[i] = gr_f32_to_bf16(value(comm->rank, i));
    check(!comm->type->all_reduce(comm, NULL, x, n * sizeof(*x), GR_COMM_SUM_BF16, NULL), "all_reduce");
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < comm->ranks; r++) sum += rounded(value(r, i));
        check(x[i] == gr_f32_to_bf16((float)sum), "a sum of bf16 is not rounded once");
    }
    free(x);
}

static void test_few_bytes(void)
{
    uint8_t bytes[7] = {0};
    double sums[2] = {comm->rank, 0.25};
    uint64_t most = 100 - comm->rank;
    uint32_t word = comm->rank ? 0 : 12345, all = comm->ranks * (comm->ranks - 1) / 2;
    bool same;
    bytes[comm->rank % 7] = (uint8_t)(200 + comm->rank);
    check(!comm->type->all_reduce(comm, NULL, bytes, sizeof(bytes), GR_COMM_MAX_U8, NULL), "all_reduce");
    for (uint32_t r = 0; r < GR_MIN(comm->ranks, 7u); r++) check(bytes[r] == 200 + r, "a byte is lost");
    check(!comm->type->all_reduce(comm, NULL, sums, sizeof(sums), GR_COMM_SUM_F64, NULL), "all_reduce");
    check(sums[0] == all && sums[1] == 0.25 * comm->ranks, "a sum of doubles is wrong");
    check(!gr_comm_agree(comm, &most, NULL) && most == 100, "agree");
    check(!comm->type->broadcast(comm, &word, sizeof(word), NULL) && word == 12345, "broadcast");
    check(!gr_comm_same(comm, 7, &same, NULL) && same, "same values are called different");
    check(!gr_comm_same(comm, comm->rank, &same, NULL) && same == (comm->ranks == 1),
          "different ones the same");
    check(!comm->type->barrier(comm, NULL), "barrier");
}

/* Round the ring, of an even number: even ranks send first. */
static void test_point_to_point(void)
{
    uint32_t next = (comm->rank + 1) % comm->ranks, before = (comm->rank + comm->ranks - 1) % comm->ranks;
    enum { N = 300000 };
    uint32_t *out = gr_calloc(N, sizeof(*out)), *in = gr_calloc(N, sizeof(*in));
    for (uint32_t i = 0; i < N; i++) out[i] = i * (comm->rank + 1);
    for (uint32_t turn = 0; turn < 2; turn++) {
        gr_status st = comm->rank % 2 == turn
                           ? comm->type->send(comm, NULL, out, N * sizeof(*out), next, NULL)
                           : comm->type->recv(comm, NULL, in, N * sizeof(*in), before, NULL);
        check(!st, "send, recv");
    }
    for (uint32_t i = 0; i < N; i++) check(in[i] == i * (before + 1), "what was sent did not come");
    free(out);
    free(in);
}

/* What rank a sends b: as many bytes as follow from both, of a few from none. */
static uint64_t sent(uint32_t a, uint32_t b, uint64_t unit)
{
    return (a + 2 * b) % 5 * unit;
}

/* Parts that begin anywhere, in units that MPI knows and in bytes; all ranks are sent from one place. */
static void test_exchange(uint64_t unit)
{
    const uint32_t n = comm->ranks;
    uint64_t *from_at = gr_calloc(4 * (size_t)n, sizeof(*from_at)), *from = from_at + n, *to_at = from + n,
             *to = to_at + n, sum = 0;
    uint8_t *out = gr_calloc(8, unit), *in;
    for (uint64_t i = 0; i < 8 * unit; i++) out[i] = (uint8_t)(comm->rank * 31 + i);
    for (uint32_t r = 0; r < n; r++) {
        from_at[r] = r % 3 * unit;
        from[r] = sent(comm->rank, r, unit);
        to_at[r] = sum;
        sum += to[r] = sent(r, comm->rank, unit);
    }
    in = gr_calloc(sum + 1, 1);
    const gr_comm_exchange e = {out, from_at, from, in, to_at, to, unit % 8 ? (unit % 2 ? 1 : 2) : 8};
    check(!comm->type->all_to_all(comm, NULL, &e, NULL), "all_to_all");
    for (uint32_t r = 0; r < n; r++)
        for (uint64_t i = 0; i < to[r]; i++)
            check(in[to_at[r] + i] == (uint8_t)(r * 31 + comm->rank % 3 * unit + i),
                  "all_to_all: a byte is wrong");
    free(from_at);
    free(out);
    free(in);
}

static void test_all(void)
{
    test_exchange(1);
    test_exchange(6);
    test_exchange(1024);

    test_gather();
    test_reduce();
    test_few_bytes();
    for (size_t s = 0; s < GR_LEN(sum_sizes); s++) {
        test_sum_f32(sum_sizes[s]);
        test_sum_bf16(sum_sizes[s]);
    }
    if (comm->ranks % 2 == 0) test_point_to_point();
}

/* By color of each rank: how many have it, and how many of those come before this one. */
static void test_group(const uint32_t *colors)
{
    gr_comm *all = comm, *group = NULL;
    uint32_t ranks = 0, rank = 0, own = colors[all->rank];
    for (uint32_t r = 0; r < all->ranks; r++) {
        ranks += colors[r] == own;
        rank += colors[r] == own && r < all->rank;
    }
    check(!gr_comm_split(&group, all, own, NULL), "split");
    check(group->ranks == ranks && group->rank == rank, "a group is not of those who asked for it");
    check(group->local == rank && group->locals == ranks, "a group's ranks are not all on this host");
    comm = group;
    test_all();
    comm = all;
    test_few_bytes(); /* beside it, the one that it comes from */
    gr_comm_close(group);
}

/* Of sizes that differ; of neighbours; in turn; each alone; all. */
static void test_groups(void)
{
    uint32_t *colors = gr_calloc(comm->ranks, sizeof(*colors));
    for (uint32_t r = 0; r < comm->ranks; r++) colors[r] = r ? 7 : INT32_MAX;
    test_group(colors);
    for (uint32_t r = 0; r < comm->ranks; r++) colors[r] = r / 2;
    test_group(colors);
    for (uint32_t r = 0; r < comm->ranks; r++) colors[r] = r % 2;
    test_group(colors);
    for (uint32_t r = 0; r < comm->ranks; r++) colors[r] = r;
    test_group(colors);
    for (uint32_t r = 0; r < comm->ranks; r++) colors[r] = 3;
    test_group(colors);
    free(colors);
}

/* A group of a group; it may be used after the group beside it is closed. */
static void test_nested(void)
{
    gr_comm *all = comm, *group = NULL, *inner = NULL;
    uint64_t most;
    check(!gr_comm_split(&group, all, 1, NULL), "split");
    check(!gr_comm_split(&inner, group, group->rank / 2, NULL), "split of what was split");
    most = all->rank;
    check(!gr_comm_agree(inner, &most, NULL) && most == GR_MIN(all->rank | 1u, all->ranks - 1),
          "a group of a group is not of neighbours");
    gr_comm_close(inner);
    gr_comm_close(group);
}

/* Left before anybody asks for them, and larger than what goes without being asked for; taken in order. */
static void test_messages(void)
{
    static const uint64_t lengths[] = {1, 1000003, 17};
    uint32_t next = (comm->rank + 1) % comm->ranks, before = (comm->rank + comm->ranks - 1) % comm->ranks;
    char *x = gr_malloc(lengths[1]);
    for (size_t i = 0; i < GR_LEN(lengths); i++) {
        memset(x, (int)(comm->rank + 10 * i), lengths[i]);
        check(!comm->type->post(comm, x, lengths[i], next, NULL), "post");
    }
    free(x);
    check(!comm->type->barrier(comm, NULL), "barrier");
    for (size_t i = 0; i < GR_LEN(lengths); i++) {
        void *got;
        uint64_t bytes;
        check(!comm->type->collect(comm, &got, &bytes, before, NULL), "collect");
        check(bytes == lengths[i], "a letter has another length");
        for (uint64_t k = 0; k < bytes; k++)
            check(((char *)got)[k] == (char)(before + 10 * i), "a letter has other bytes");
        free(got);
    }
}

enum { AT_ONCE = 100 };

static void *sum_often(void *arg)
{
    gr_comm *group = arg;
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        float x[3] = {(float)group->rank, (float)i, 1};
        check(!group->type->all_reduce(group, NULL, x, sizeof(x), GR_COMM_SUM_F32, NULL), "all_reduce");
        check(x[0] == (float)(group->ranks * (group->ranks - 1) / 2) && x[1] == (float)(i * group->ranks) &&
                  x[2] == (float)group->ranks,
              "a sum is wrong beside another thread's calls");
    }
    return NULL;
}

/* Lanes have threads: sums of a group on one, gathers of all ranks on another. */
static void test_threads(void)
{
    pthread_t thread;
    gr_comm *group = NULL;
    uint64_t *x = gr_calloc(comm->ranks, sizeof(*x));
    check(!gr_comm_split(&group, comm, comm->rank / 2, NULL), "split");
    check(!pthread_create(&thread, NULL, sum_often, group), "thread");
    for (uint64_t i = 0; i < AT_ONCE; i++) {
        x[comm->rank] = i * (comm->rank + 1);
        check(!comm->type->all_gather(comm, NULL, &(gr_comm_parts){x, comm->ranks * 2, 2, 4}, NULL),
              "all_gather");
        for (uint32_t r = 0; r < comm->ranks; r++)
            check(x[r] == i * (r + 1), "an element is wrong beside another thread's calls");
    }
    pthread_join(thread, NULL);
    gr_comm_close(group);
    free(x);
}

/* A group's calls on one place of every rank's memory go on; one of them elsewhere on one rank is found by
 * all, at the latest when as many have come as are kept, and nothing is done from there on. */
static void test_places(uint32_t before, uint32_t after)
{
    static float memory[4 * GR_TP_PLACES], staging[GR_PEERS_MAX];
    gr_diag d;
    gr_diag_init(&d);
    gr_tp_group group = {.comm = comm, .d = &d, .arena = {(char *)memory, sizeof(memory)}};
    gr_queue q = {.peers = &group};
    for (uint32_t i = 0; i < before; i++) gr_tp_sum(&q, memory + i, sizeof(*memory), GR_COMM_SUM_F32);
    check(!group.failed, "calls at one place are refused");
    gr_watchdog_step(0, 4, "update.forward.1", GR_WATCHDOG_TIMEOUT);
    gr_tp_gather(&q, memory + (comm->rank == 1), 1, sizeof(*memory));
    gr_watchdog_step(0, 4, "update.forward.2", GR_WATCHDOG_TIMEOUT);
    for (uint32_t i = 1; i < after; i++) gr_tp_scatter(&q, memory, 1, sizeof(*memory), staging);
    check((group.failed == GR_E_FAILED) == (comm->ranks > 1), "a call at two places is not found");
    check(comm->ranks < 2 || strstr(d.messages[0].text, "iteration 4, step 'update.forward.1': its"),
          "it is not said which call lies at two places");
    gr_diag_release(&d);
    gr_watchdog_step(0, 3, "update.step.1", GR_WATCHDOG_TIMEOUT);
}

static void test_refused(void)
{
    gr_comm *none = comm;
    gr_diag d;
    gr_diag_init(&d);
    check(!gr_comm_split(&none, NULL, 0, &d) && !none, "one rank is split");
    none = comm;
    check(gr_comm_split(&none, comm, comm->rank + 1 < comm->ranks ? 0 : UINT32_C(1) << 31, &d) ==
                  GR_E_INVALID &&
              !none,
          "a color that MPI has not is taken");
    check(d.n == 1 && strstr(d.messages[0].text, "color 2147483648"), "it is not said which color");
    gr_diag_release(&d);
}

/* Ranks 0 and 1 are a group; the others come to a barrier of all. */
static void hang(bool in_group)
{
    gr_comm *group = NULL;
    check(!in_group || !gr_comm_split(&group, comm, comm->rank / 2, NULL), "split");
    sleep(2);
    if (comm->rank == 1) raise(SIGSTOP);
    if (in_group && !comm->rank) check(!group->type->barrier(group, NULL), "barrier");
    check(!comm->type->barrier(comm, NULL), "barrier");
}

int main(int argc, char **argv)
{
    gr_diag d;
    gr_diag_init(&d);
    if (gr_comm_open_mpi(&comm, say, &d)) {
        fprintf(stderr, "%s\n", d.messages[0].text);
        return 1;
    }
    gr_watchdog_step(0, 3, "update.step.1", GR_WATCHDOG_TIMEOUT);
    if (argc > 1 && !strcmp(argv[1], "hang")) hang(argc > 2);
    for (int round = 0; round < 10; round++) test_all();
    test_groups();
    test_nested();
    test_messages();
    test_threads();
    test_places(0, 1); /* the first is compared before it is made */
    test_places(5, 3);
    test_places(GR_TP_PLACES + 1, GR_TP_PLACES - 1);
    test_refused();
    if (!comm->rank) printf("%u ranks agree\n", comm->ranks);
    gr_comm_close(comm);
    gr_diag_release(&d);
    return 0;
}
