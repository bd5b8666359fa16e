/* tests/bench/bench_pack.c: the packers on public and on made instances.
 *
 *     bench_pack [FOLDER]    FOLDER: of data/minimalloc; default ../shared/data/minimalloc
 *
 * First table: the public instances at their capacity, best of 5 runs: as they are, with time reversed, with
 * their lines shuffled. Second: those with room below, as low as they get, in the same three forms. Third:
 * 200 made inputs whose lowest packing is known, for it has no gap. Fourth: random lives, many of them, by
 * orders alone.
 */
#include "memplan/pack/lowest.h"

#include "tests/unit/known_packing.h"
#include "tests/unit/public_packing.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static double seconds_since(uint64_t start)
{
    return (double)(gr_now_ns() - start) * 1e-9;
}

typedef enum variant { AS_IS, REVERSED, SHUFFLED, VARIANTS } variant;
static const char *const variant_names[] = {"", " reversed", " shuffled"};

static void shuffle(gr_pack_item *it, size_t n, uint64_t seed)
{
    known_packing k = {.random = seed};
    for (size_t i = n; i > 1; i--) {
        uint32_t j = known_below(&k, (uint32_t)i);
        gr_pack_item swap = it[i - 1];
        it[i - 1] = it[j];
        it[j] = swap;
    }
}

static double capacity_row(const char *folder, char name, variant how)
{
    gr_pack_item it[PUBLIC_ITEMS];
    gr_solution s = {0};
    double best = 1e9;
    size_t n = public_read(it, folder, name, how == REVERSED);
    if (!n) return 0;
    if (how == SHUFFLED) shuffle(it, n, (uint64_t)name);
    for (int k = 0; k < 5; k++) {
        uint64_t start = gr_now_ns();
        s = gr_solve(it, n, PUBLIC_STEPS, UINT64_MAX, PUBLIC_CAPACITY, 10000000);
        double t = seconds_since(start);
        best = GR_MIN(best, t);
    }
    printf("| %c%s | %zu | %.4f | %llu | %llu | %s |\n", name, variant_names[how], n, best,
           (unsigned long long)s.nodes, (unsigned long long)s.height, s.height == s.bound ? "yes" : "no");
    return best;
}

static void lowest_row(const char *folder, char name, variant how)
{
    gr_pack_item it[PUBLIC_ITEMS];
    size_t n = public_read(it, folder, name, how == REVERSED);
    if (!n) return;
    if (how == SHUFFLED) shuffle(it, n, (uint64_t)name);
    uint64_t start = gr_now_ns();
    gr_solution s = gr_pack_lowest(it, n, PUBLIC_STEPS, 0);
    printf("| %c%s | %zu | %.4f | %llu | %llu | %llu | %s |\n", name, variant_names[how], n,
           seconds_since(start), (unsigned long long)s.nodes, (unsigned long long)s.height,
           (unsigned long long)s.bound, s.height == s.bound ? "yes" : "no");
}

/* Inputs without any free byte: 20 to 120 buffers, at their known height. */
static void known_rows(void)
{
    uint32_t solved = 0;
    double all = 0, worst = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        gr_pack_item it[128];
        size_t n = known_packing_make(it, 20 + seed % 101, 300, 500, seed);
        uint64_t start = gr_now_ns();
        gr_solution s = gr_solve(it, n, 300, UINT64_MAX, 500 * 256, 200000);
        double t = seconds_since(start);
        solved += s.height == 500 * 256;
        all += t;
        worst = GR_MAX(worst, t);
    }
    printf("\n| made inputs | solved | seconds, all | the slowest |\n|---|---|---|---|\n| 200 | %u | %.3f | "
           "%.4f |\n",
           solved, all, worst);
}

/* Lives and sizes from short and small to long and large, the short and small the most common. */
static void large_row(uint32_t n, uint64_t seed)
{
    known_packing k = {.random = seed};
    gr_pack_item *it = gr_malloc(n * sizeof(*it));
    uint32_t steps = 4 * n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first = known_below(&k, steps), most = 1 + steps / (1 + known_below(&k, 2000));
        uint32_t last = first + 1 + known_below(&k, most);
        uint32_t units = 1 + known_below(&k, 1 + 100000 / (1 + known_below(&k, 300)));
        it[i] = (gr_pack_item){256 * (uint64_t)units, first, GR_MIN(last, steps - 1), 0};
    }
    uint64_t bound = gr_pack_bound(it, n, steps), start = gr_now_ns();
    uint64_t height = gr_pack(it, n, steps, 0, 5);
    double t = seconds_since(start);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    printf("| %u | %.2f | %.2f %% | %ld MiB |\n", n, t, 100 * ((double)height / (double)bound - 1),
           use.ru_maxrss / 1024);
    free(it);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "../shared/data/minimalloc";
    printf("| instance | buffers | seconds | nodes | height | proven |\n|---|---|---|---|---|---|\n");
    for (variant how = AS_IS; how < VARIANTS; how++) {
        double sum = 0;
        for (const char *c = public_names; *c; c++) sum += capacity_row(folder, *c, how);
        printf("| sum | | %.4f | | | |\n", sum);
    }
    printf("\n| instance | buffers | seconds | nodes | height | bound | proven "
           "|\n|---|---|---|---|---|---|---|\n");
    for (const char *c = "CDJ"; *c; c++)
        for (variant how = AS_IS; how < VARIANTS; how++) lowest_row(folder, *c, how);
    known_rows();
    printf("\n| buffers | seconds | above the bound | memory |\n|---|---|---|---|\n");
    for (uint32_t n = 10000; n <= 60000; n += 25000) large_row(n, 3);
    return 0;
}
