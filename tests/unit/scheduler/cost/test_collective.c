/* Collectives over hosts by hand, what they do as ranks, bytes and links grow, and the files that say so. */
#include "scheduler/cost/collective.h"
#include "runtime/base/files.h"
#include "scheduler/cost/cost.h"
#include "scheduler/cost/hardware.h"

#include <math.h>
#include <unistd.h>

#include "tests/unit/test.h"

#define GB 1e9

/* Hosts of 4 with round numbers: rings of a host's adapters carry 40 GB/s together, the links 80. */
static gr_hardware cluster(void)
{
    return (gr_hardware){.device = "cuda",
                         .flops = 1e12,
                         .memory_bytes = 1e12,
                         .link = 80 * GB,
                         .network = 10 * GB,
                         .collective_ns = 1000,
                         .step_ns = 7,
                         .devices = 4,
                         .copies = {{1, 1e10, 1e10, 1e10}},
                         .n_copies = 1,
                         .cluster = {.adapters = 4,
                                     .oversubscription = 1,
                                     .peer_bytes = 100,
                                     .protocols = {{.ring_share = 0.5,
                                                    .tree_share = 0.25,
                                                    .most = 4 * GB,
                                                    .ring_ns = {10, 100},
                                                    .tree_ns = {20, 300}},
                                                   {.ring_share = 1,
                                                    .tree_share = 0.8,
                                                    .ring_ns = {1000, 5000},
                                                    .tree_ns = {2000, 7000}}},
                                     .n_protocols = 2}};
}

static gr_hardware on(uint32_t hosts, uint32_t ranks)
{
    const gr_hardware h = cluster();
    return gr_hardware_for(&h, hosts, ranks);
}

static uint64_t all_ns(const gr_hardware *h, gr_comm_form form, double bytes)
{
    return gr_collective_ns(h, GR_GROUP_ALL, form, bytes);
}

static void test_within_a_host_it_is_a_fixed_cost_and_the_link(void **state)
{
    (void)state;
    const gr_hardware one = on(1, 1), two = on(1, 2), four = on(1, 4), far = on(3, 12);
    assert_int_equal(all_ns(&one, GR_FORM_SHARDS, 8e9), 0); /* nobody to wait for */
    assert_int_equal(all_ns(&two, GR_FORM_SHARDS, 8e9), 1000 + 100000000);
    assert_int_equal(all_ns(&four, GR_FORM_ALL_REDUCE, 8e9), 1000 + 100000000);
    assert_int_equal(gr_collective_ns(&far, GR_GROUP_NODE, GR_FORM_SHARDS, 8e9), 1000 + 100000000);
    const gr_hardware unsaid = cluster(); /* not planned for any ranks: as one host */
    assert_int_equal(all_ns(&unsaid, GR_FORM_SHARDS, 8e9), 1000 + 100000000);
}

/* 3 hosts of 4: 11 steps, 2 of them between hosts; twice as many to end with all of it. */
static void test_a_ring_over_hosts_by_hand(void **state)
{
    (void)state;
    const gr_hardware h = on(3, 12);
    /* 4 bytes: the protocol of short steps, 4 GB/s at most */
    assert_int_equal(all_ns(&h, GR_FORM_SHARDS, 4), 1000 + 9 * 10 + 2 * 100 + 1);
    /* 4 GB: the other one, at all that four adapters carry */
    assert_int_equal(all_ns(&h, GR_FORM_SHARDS, 4e9), 1000 + 9 * 1000 + 2 * 5000 + 100000000);
    assert_int_equal(all_ns(&h, GR_FORM_ALL_REDUCE, 4e9), 1000 + 18 * 1000 + 4 * 5000 + 100000000);
    /* one rank of each host: steps between hosts take what a tree's take, and a ring has its adapter alone */
    assert_int_equal(gr_collective_ns(&h, GR_GROUP_REPLICAS, GR_FORM_SHARDS, 1e9),
                     1000 + 2 * 7000 + 100000000);
}

/* Up and down 3 ranks of a host and 10 levels of hosts, at a quarter and 4 GB/s or at eight tenths. */
static void test_a_tree_over_hosts_by_hand(void **state)
{
    (void)state;
    const gr_hardware h = on(1024, 4096);
    assert_int_equal(all_ns(&h, GR_FORM_ALL_REDUCE, 0), 1000 + 2 * (3 * 20 + 10 * 300));
    const double whole = 4.095e8 * 4096 / 4095;
    assert_int_equal(all_ns(&h, GR_FORM_ALL_REDUCE, 4.095e8),
                     1000 + 2 * (3 * 2000 + 10 * 7000) + llround(1e9 * whole / (32 * GB)));
    /* what has no tree is a ring: 3,072 steps and 1,023 */
    assert_int_equal(all_ns(&h, GR_FORM_SHARDS, 0), 1000 + 3072 * 10 + 1023 * 100);
}

/* By MPI: 2 x 12 messages, and what is received twice through a quarter of four adapters. */
static void test_host_memory_goes_by_mpi(void **state)
{
    (void)state;
    const gr_hardware h = on(1024, 4096), one = on(1, 4);
    assert_int_equal(all_ns(&h, GR_FORM_HOST_REDUCE, 0), 1000 + 2 * 12 * 300);
    assert_int_equal(all_ns(&h, GR_FORM_HOST_REDUCE, 1e9), 1000 + 2 * 12 * 300 + 200000000);
    assert_int_equal(all_ns(&one, GR_FORM_HOST_REDUCE, 8e9), 1000 + 100000000); /* as measured on one */
}

static void test_adapters_and_pods_bound_what_leaves_a_host(void **state)
{
    (void)state;
    gr_hardware h = cluster();
    const double bytes = 4e12; /* steps do not count */
    h.cluster.n_protocols = 0; /* and are not known */
    gr_hardware x = gr_hardware_for(&h, 2, 8);
    assert_int_equal(all_ns(&x, GR_FORM_SHARDS, bytes), 1000 + 100000000000);
    h.cluster.adapters = 1; /* for four ranks */
    x = gr_hardware_for(&h, 2, 8);
    assert_int_equal(all_ns(&x, GR_FORM_SHARDS, bytes), 1000 + 400000000000);
    assert_int_equal(gr_collective_ns(&x, GR_GROUP_REPLICAS, GR_FORM_ALL_REDUCE, bytes),
                     1000 + 1600000000000);
    h.cluster.adapters = 0; /* one for each */
    x = gr_hardware_for(&h, 2, 8);
    assert_int_equal(gr_collective_ns(&x, GR_GROUP_REPLICAS, GR_FORM_ALL_REDUCE, bytes), 1000 + 400000000000);
    h.network = 30 * GB; /* links are slower than adapters then */
    x = gr_hardware_for(&h, 2, 8);
    assert_int_equal(all_ns(&x, GR_FORM_SHARDS, bytes), 1000 + 50000000000);
    h.network = 10 * GB, h.cluster.pod = 2, h.cluster.oversubscription = 4;
    x = gr_hardware_for(&h, 2, 8);
    assert_int_equal(all_ns(&x, GR_FORM_SHARDS, bytes), 1000 + 100000000000);
    x = gr_hardware_for(&h, 3, 12); /* one host more than a pod has */
    assert_int_equal(all_ns(&x, GR_FORM_SHARDS, bytes), 1000 + 400000000000);
}

/* With links of any speed what is left are the steps; of few bytes, too. */
static void test_latency_is_what_infinite_bandwidth_leaves(void **state)
{
    (void)state;
    gr_hardware h = cluster();
    h.link = h.network = 1e29;
    h.cluster.protocols[0].most = 0;
    for (uint32_t hosts = 2; hosts <= 4096; hosts *= 4) {
        const gr_hardware x = gr_hardware_for(&h, hosts, 4 * hosts);
        assert_int_equal(all_ns(&x, GR_FORM_SHARDS, 1e12), all_ns(&x, GR_FORM_SHARDS, 0));
        assert_int_equal(all_ns(&x, GR_FORM_SHARDS, 0), 1000 + (3ull * hosts) * 10 + (hosts - 1) * 100ull);
    }
}

/* More ranks, on as many hosts or on more, and more bytes never take less; 16,384 much more than 8. */
static void test_it_grows_with_ranks_and_bytes(void **state)
{
    (void)state;
    static const char *const names[] = {"h200", "h200-one-adapter", "h100-80g-one-adapter", "a100-80g",
                                        "rtx4090"};
    static const gr_comm_group groups[] = {GR_GROUP_ALL, GR_GROUP_NODE, GR_GROUP_REPLICAS};
    for (size_t i = 0; i < GR_LEN(names); i++) {
        gr_hardware h;
        assert_int_equal(gr_hardware_find(&h, names[i], NULL), GR_OK);
        assert_string_equal(h.name, names[i]);
        for (size_t k = 0; k < 3 * GR_LEN(groups); k++) {
            uint64_t before[40] = {0};
            for (uint32_t hosts = 1; hosts <= 2048; hosts *= 2) {
                const gr_hardware x = gr_hardware_for(&h, hosts, 8 * hosts);
                const gr_comm_group g = groups[k / 3];
                const gr_comm_form form = (gr_comm_form)(k % 3);
                const uint32_t n = g == GR_GROUP_ALL ? 8 * hosts : g == GR_GROUP_NODE ? 8 : hosts;
                uint64_t less = 0;
                for (uint32_t b = 0; b < 40; b++) { /* of 2^b bytes that all have together */
                    const double moved = (double)(1ull << b) * (n - 1) / n;
                    const uint64_t ns =
                        gr_collective_ns(&x, g, form, form == GR_FORM_ALL_REDUCE ? 2 * moved : moved);
                    assert_true(ns >= less && ns >= before[b]);
                    less = before[b] = ns;
                }
            }
        }
        const gr_hardware small = gr_hardware_for(&h, 1, 8), large = gr_hardware_for(&h, 2048, 16384);
        assert_true(all_ns(&large, GR_FORM_SHARDS, 0) > 100 * all_ns(&small, GR_FORM_SHARDS, 0));
    }
}

static void test_what_goes_from_role_to_role(void **state)
{
    (void)state;
    gr_hardware h = cluster();
    const gr_side a = {2, 1, 0}, b = {2, 1, 0}, c = {8, 2, 1}, d = {1, 1, 5};
    assert_true(gr_sides_rate(&h, a, b) == 160 * GB); /* of one host: each over its link */
    assert_true(gr_sides_ns(&h, a, b, 100) == 0);
    assert_true(gr_sides_rate(&h, a, c) == 20 * GB && gr_sides_rate(&h, c, a) == 20 * GB);
    assert_true(gr_sides_rate(&h, c, d) == 10 * GB);
    assert_true(gr_sides_ns(&h, a, c, 8) == 2400);
    h.cluster.adapters = 1;
    assert_true(gr_sides_rate(&h, a, c) == 10 * GB && gr_sides_rate(&h, c, c) == 20 * GB);
    h.cluster.pod = 3, h.cluster.oversubscription = 2; /* hosts 0 to 2 are one, 5 is of another */
    assert_true(gr_sides_rate(&h, a, c) == 10 * GB);
    assert_true(gr_sides_rate(&h, c, d) == 5 * GB);
    h.cluster.n_protocols = 0;
    assert_true(gr_sides_ns(&h, a, c, 8) == 0);
}

/* Means of the largest of n, as tables of order statistics have them (Harter 1961): 0.5642, 1.0294, 1.7660,
 * 2.5076. */
static void test_the_slowest_of_many_ranks(void **state)
{
    (void)state;
    const struct {
        uint32_t n;
        double is;
    } of[] = {{2, 0.5642}, {4, 1.0294}, {16, 1.7660}, {100, 2.5076}};
    assert_true(gr_largest_of(1) == 0);
    for (size_t i = 0; i < GR_LEN(of); i++) assert_true(fabs(gr_largest_of(of[i].n) - of[i].is) < 0.03);
    for (uint32_t n = 2; n <= 1u << 20; n *= 2) assert_true(gr_largest_of(n) > gr_largest_of(n / 2));
    gr_hardware h = cluster();
    h.step_ns = 0;
    const gr_task w = {.cost = {.flops = 1e12}};
    gr_hardware x = gr_hardware_for(&h, 4, 16);
    assert_int_equal(gr_task_ns(&w, &x), 1000000000);
    h.cluster.spread = 0.1;
    x = gr_hardware_for(&h, 4, 16);
    assert_int_equal(gr_task_ns(&w, &x), llround(1e9 * (1 + 0.1 * gr_largest_of(16))));
    x = gr_hardware_for(&h, 1, 1);
    assert_int_equal(gr_task_ns(&w, &x), 1000000000);
}

static void test_memory_of_peers_beyond_a_host(void **state)
{
    (void)state;
    gr_hardware h = cluster();
    h.part[GR_LIBRARY_COMM] = h.group_bytes = 5000;
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1}), 0);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 4}),
                     5000); /* as was measured on one host */
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1004}), 105000);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1004, .groups = 2}), 315000);
}

/* ---- files ----------------------------------------------------------------------------------------------
 */

/* The profile h200 as a file, the first `from` in it changed to `to`. The answer's messages, a line each. */
static char *read_changed(gr_hardware *h, const char *from, const char *to)
{
    gr_hardware known;
    gr_str text = {0}, changed = {0}, messages = {0};
    char path[64];
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_hardware_find(&known, "h200", NULL), GR_OK);
    gr_hardware_write(&known, &text);
    char *at = strstr(text.text, from);
    if (!at) fail_msg("no '%s' in %s", from, text.text);
    gr_str_add(&changed, text.text, (size_t)(at - text.text));
    gr_str_puts(&changed, to);
    gr_str_puts(&changed, at + strlen(from));
    snprintf(path, sizeof(path), "/tmp/graphrun-cluster-%d.json", (int)getpid());
    assert_int_equal(gr_file_write(path, changed.text, changed.len, NULL), GR_OK);
    const gr_status st = gr_hardware_find(h, path, &d);
    gr_str_puts(&messages, "");
    for (size_t i = 0; i < d.n; i++) {
        assert_string_equal(d.messages[i].at.file, path);
        gr_str_printf(&messages, "%s\n", d.messages[i].text);
    }
    assert_int_equal(st != GR_OK, d.n > 0);
    gr_diag_release(&d);
    gr_str_release(&text);
    gr_str_release(&changed);
    unlink(path);
    return messages.text;
}

static void test_a_cluster_is_read_back_as_it_was_written(void **state)
{
    (void)state;
    gr_hardware known, h;
    assert_int_equal(gr_hardware_find(&known, "h200", NULL), GR_OK);
    char *messages = read_changed(&h, "\"pod\": 0", "\"pod\": 32");
    assert_string_equal(messages, "");
    assert_int_equal(h.cluster.pod, 32);
    assert_int_equal(h.cluster.adapters, 8);
    assert_int_equal(h.cluster.n_protocols, 3);
    assert_memory_equal(&h.experts, &known.experts, sizeof(h.experts));
    for (uint32_t i = 0; i < 3; i++) {
        const gr_protocol *a = &h.cluster.protocols[i], *b = &known.cluster.protocols[i];
        assert_true(fabs(a->tree_share - b->tree_share) < 1e-4 && a->most == b->most);
        assert_memory_equal(a->ring_ns, b->ring_ns, sizeof(a->ring_ns));
        assert_memory_equal(a->tree_ns, b->tree_ns, sizeof(a->tree_ns));
    }
    free(messages);
}

/* A file from before there was anything of clusters in it: each rank has an adapter, and no step a latency.
 */
static void test_old_files_are_read(void **state)
{
    (void)state;
    gr_hardware h;
    assert_int_equal(gr_hardware_find(&h, "tests/golden/hardware.json", NULL), GR_OK);
    const gr_cluster none = {0};
    const gr_experts_rate plain = {0};
    assert_memory_equal(&h.cluster, &none, sizeof(none));
    assert_memory_equal(&h.experts, &plain, sizeof(plain));
    for (uint32_t hosts = 2; hosts <= 4096; hosts *= 2) {
        const gr_hardware x = gr_hardware_for(&h, hosts, hosts); /* one rank each, over a network of 1 GB/s */
        assert_int_equal(all_ns(&x, GR_FORM_SHARDS, 1e6), 20000 + 1000000);
    }
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 4096}),
                     gr_hardware_overhead(&h, &(gr_tenant){.ranks = 2}));
    assert_int_equal(h.group_bytes, h.part[GR_LIBRARY_COMM]); /* nor was there of messages */
    assert_int_equal(h.message_bytes, 0);
}

static void test_what_is_wrong_is_said_with_its_place(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"\"adapters\": 8", "\"adapters\": 0", "$.cluster.adapters: 0 is not in 1 .. 65536"},
        {"\"adapters\"", "\"adapter\"", "$.cluster: unknown key 'adapter'; did you mean 'adapters'?"},
        {"\"pod\": 0,", "", "$.cluster: key 'pod' is missing"},
        {"\"oversubscription\": 1", "\"oversubscription\": 0.5",
         "$.cluster.oversubscription: 0.5 is less than 1"},
        {"\"peer_bytes\": ", "\"peer_bytes\": -", "$.cluster.peer_bytes: -"},
        {"\"spread\": 0", "\"spread\": 2", "$.cluster.spread: 2 is more than the mean itself"},
        {"\"spread\": 0", "\"spread\": -1", "$.cluster.spread: -1 is not a rate above 0, or 0"},
        {"\"protocols\": [", "\"protocols\": [], \"x\": [",
         "$.cluster.protocols: should be a list of 1 to 4"},
        {"\"ring_share\": 0.5", "\"ring_share\": 1.5",
         "$.cluster.protocols[0].ring_share: 1.5 is more than all"},
        {"\"most\": 2.04e+10", "\"most\": -1", "$.cluster.protocols[0].most: -1 is not a rate above 0, or 0"},
        {"[1000, 2700]", "[1000]", "$.cluster.protocols[0].ring_ns: should be two whole numbers"},
        {"[1250, 8500]", "[1250, 8.5]", "$.cluster.protocols[1].tree_ns: should be two whole numbers"},
        {"\"tree_ns\"", "\"tree\"", "$.cluster.protocols[0]: unknown key 'tree'"},
        {"\"padding\": 64", "\"padding\": -1", "$.experts.padding: -1 is not a rate above 0, or 0"},
        {"\"padding\": 64,", "", "$.experts: key 'padding' is missing"},
        {"\"gradient\"", "\"gradients\"", "$.experts: unknown key 'gradients'; did you mean 'gradient'?"},
        {"\"messages\": ", "\"messages\": -", "$.communicators.messages: -"},
        {"\"group\": ", "\"groups\": ", "$.communicators: unknown key 'groups'; did you mean 'group'?"},
        {"\"cluster\": {", "\"cluster\": 5, \"x\": {", "$.cluster: should be an object"},
        {"\"cluster\": {", "\"clusters\": {", "$: unknown key 'clusters'; did you mean 'cluster'?"},
    };
    for (size_t i = 0; i < GR_LEN(wrong); i++) {
        gr_hardware h;
        char *messages = read_changed(&h, wrong[i][0], wrong[i][1]);
        if (!strstr(messages, wrong[i][2])) fail_msg("'%s' gives: %s", wrong[i][1], messages);
        free(messages);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_within_a_host_it_is_a_fixed_cost_and_the_link),
        cmocka_unit_test(test_a_ring_over_hosts_by_hand),
        cmocka_unit_test(test_a_tree_over_hosts_by_hand),
        cmocka_unit_test(test_host_memory_goes_by_mpi),
        cmocka_unit_test(test_adapters_and_pods_bound_what_leaves_a_host),
        cmocka_unit_test(test_latency_is_what_infinite_bandwidth_leaves),
        cmocka_unit_test(test_it_grows_with_ranks_and_bytes),
        cmocka_unit_test(test_what_goes_from_role_to_role),
        cmocka_unit_test(test_the_slowest_of_many_ranks),
        cmocka_unit_test(test_memory_of_peers_beyond_a_host),
        cmocka_unit_test(test_a_cluster_is_read_back_as_it_was_written),
        cmocka_unit_test(test_old_files_are_read),
        cmocka_unit_test(test_what_is_wrong_is_said_with_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
