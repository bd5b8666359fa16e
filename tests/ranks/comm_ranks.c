/* Every call of a communicator, by ranks that mpirun has started; with `hang`, what happens to those who wait
 * for one that has stopped. comm.sh runs it. */
#include "runtime/comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static gr_comm *comm;

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

int main(int argc, char **argv)
{
    gr_diag d;
    gr_diag_init(&d);
    if (gr_comm_open_mpi(&comm, say, &d)) {
        fprintf(stderr, "%s\n", d.messages[0].text);
        return 1;
    }
    gr_comm_at(3, "update.step.1");
    if (argc > 1 && !strcmp(argv[1], "hang")) {
        sleep(2);
        if (comm->rank == 1) raise(SIGSTOP);
    }
    for (int round = 0; round < 20; round++) {
        test_gather();
        test_reduce();
        test_few_bytes();
        if (comm->ranks % 2 == 0) test_point_to_point();
    }
    if (!comm->rank) printf("%u ranks agree\n", comm->ranks);
    gr_comm_close(comm);
    gr_diag_release(&d);
    return 0;
}
