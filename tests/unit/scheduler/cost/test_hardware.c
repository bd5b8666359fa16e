/* Hardware files: what is written is read back; what is wrong is said with its place. The cost model by hand.
 */
#include "scheduler/cost/hardware.h"

#include <math.h>
#include <unistd.h>

#include "tests/unit/test.h"
#include "runtime/base/files.h"
#include "scheduler/cost/cost.h"

static char *golden(void)
{
    gr_str s = {0};
    FILE *f = fopen("tests/golden/hardware.json", "r");
    assert_non_null(f);
    for (int c = fgetc(f); c != EOF; c = fgetc(f)) gr_str_putc(&s, (char)c);
    fclose(f);
    return s.text;
}

/* Read text as a file; messages, a line each, without the file's name. */
static gr_status read_text(gr_hardware *h, const char *text, gr_str *messages)
{
    char path[64];
    gr_diag d;
    gr_diag_init(&d);
    snprintf(path, sizeof(path), "/tmp/graphrun-hardware-%d.json", (int)getpid());
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    gr_status st = gr_hardware_find(h, path, &d);
    for (size_t i = 0; i < d.n; i++) {
        assert_string_equal(d.messages[i].at.file, path);
        gr_str_printf(messages, "%s\n", d.messages[i].text);
    }
    assert_int_equal(st != GR_OK, d.n > 0);
    gr_diag_release(&d);
    unlink(path);
    return st;
}

static void test_a_file_is_read_back_as_it_was_written(void **state)
{
    (void)state;
    gr_hardware h, again;
    gr_str messages = {0}, text = {0};
    char *from = golden();
    assert_int_equal(read_text(&h, from, &messages), GR_OK);
    assert_string_equal(h.name, "cpu, 2 threads");
    assert_string_equal(h.device, "cpu");
    assert_int_equal(h.n_rates, 6);
    assert_int_equal(h.n_copies, 2);
    assert_memory_equal(&h.copy, &h.copies[0], sizeof(h.copy));
    assert_int_equal(h.overhead_bytes, 4194304);
    gr_hardware_write(&h, &text);
    assert_int_equal(read_text(&again, text.text, &messages), GR_OK);
    assert_memory_equal(&h, &again, sizeof(h));
    gr_str_release(&text);
    gr_str_release(&messages);
    free(from);
}

/* Change the first `from` to `to`, and expect this message. */
static void assert_refused(const char *from, const char *to, const char *message)
{
    gr_hardware h;
    gr_str text = {0}, messages = {0};
    char *good = golden(), *at = strstr(good, from);
    if (!at) fail_msg("no '%s' in the file", from);
    gr_str_add(&text, good, (size_t)(at - good));
    gr_str_puts(&text, to);
    gr_str_puts(&text, at + strlen(from));
    assert_int_equal(read_text(&h, text.text, &messages), GR_E_INVALID);
    if (!strstr(messages.text, message)) fail_msg("'%s' to '%s' gives: %s", from, to, messages.text);
    gr_str_release(&text);
    gr_str_release(&messages);
    free(good);
}

static void test_what_is_wrong_is_said_with_its_place(void **state)
{
    (void)state;
    assert_refused("\"version\": 4", "\"version\": 3", "$.version: this program reads version 4");
    assert_refused("  \"step_ns\"", "  \"step_n\"", "$: unknown key 'step_n'; did you mean 'step_ns'?");
    assert_refused("  \"step_ns\"", "  \"step_n\"", "$: key 'step_ns' is missing");
    assert_refused("\"step_ns\": ", "\"step_ns\": -", "$.step_ns: -");
    assert_refused("\"device\": \"cpu\"", "\"device\": \"tpu\"", "$.device: should be \"cpu\" or \"cuda\"");
    assert_refused("\"name\": \"cpu, 2 threads\"", "\"name\": 5", "$.name: should be a text");
    assert_refused("\"disk\": ", "\"disk\": -", "$.bytes_per_second.disk: -");
    assert_refused("\"host\"", "\"hosts\"", "$.bytes_per_second: unknown key 'hosts'; did you mean 'host'?");
    assert_refused("\"h2d\"", "\"h2e\"", "$.copies[0]: unknown key 'h2e'; did you mean 'h2d'?");
    assert_refused("\"ranks\": 1", "\"ranks\": 2", "$.copies[0].ranks: should be 1 at first, and rise");
    assert_refused("\"ranks\": 2", "\"ranks\": 1", "$.copies[1].ranks: should be 1 at first, and rise");
    assert_refused("\"ranks\": 2", "\"ranks\": 0", "$.copies[1].ranks: 0 is not in 1 .. ");
    assert_refused("\"both\": 6.8e+09", "\"both\": 1.4e+10",
                   "$.copies[1].both: 1.4e+10 is more than one way");
    assert_refused("\"d2h\": 1.31e+10", "\"d2h\": 0", "$.copies[1].d2h: 0 is not a rate above 0");
    assert_refused(", \"both\": 6.8e+09", "", "$.copies[1]: key 'both' is missing");
    assert_refused("\"copies\": [", "\"copies\": [], \"x\": [", "$.copies: should be a list of 1 to 8 rates");
    assert_refused("\"blas\": 0", "\"blas\": 0.5", "$.overhead.blas: should be a whole number");
    assert_refused("\"blas\": 0, ", "", "$.overhead: key 'blas' is missing");
    assert_refused("\"logits\": ", "\"logits\": \"x\", \"y\": ", "$.logits: should be a number");
    assert_refused("\"devices\": 8", "\"devices\": 0", "$.devices: 0 is not in 1 .. ");
    assert_refused("\"rows\": 64", "\"rows\": 63.5", "$.matrix[2].rows: should be a whole number");
    assert_refused("\"rows\": 64", "\"rows\": 1", "$.matrix[2]: rows and widths should rise");
    assert_refused("\"length\": 1024", "\"length\": 0", "$.attention[0].length: 0 is not in 1 .. ");
    assert_refused("1024, \"forward\": 2.375e+11", "1024", "$.attention[0]: key 'forward' is missing");
    assert_refused("\"kv\": 0", "\"kv\": -5", "$.bytes_per_second.kv: -5 is not a rate above 0, or 0");
    assert_refused("\"disk\": 1.725e+09", "\"disk\": 0", "$.bytes_per_second.disk: 0 is not a rate above 0");
    assert_refused("\"width\": 1024", "\"width\": 512", "$.matrix[3]: rows and widths should rise");
    assert_refused("\"forward\"", "\"forwards\"", "$.matrix[0]: unknown key 'forwards'");
    assert_refused("}\n  ],", "},\n  ],", "unexpected token");
    assert_refused("\n  \"overhead\"", "\n", "expected");
}

static void test_a_file_cut_short_is_refused_wherever_it_ends(void **state)
{
    (void)state;
    char *good = golden();
    for (size_t n = strlen(good) - 2; n > 0; n -= GR_MIN(n, (size_t)37)) {
        gr_hardware h;
        gr_str messages = {0};
        good[n] = 0;
        assert_int_equal(read_text(&h, good, &messages), GR_E_INVALID);
        gr_str_release(&messages);
    }
    free(good);
}

/* Rates of 1e9 at 1 row, 1e11 at 100 rows: at 10 rows, in the middle of the logarithms, 1e10. */
static void test_rates_lie_between_those_measured(void **state)
{
    (void)state;
    gr_hardware h = {.flops = 1, .memory_bytes = 1e15, .step_ns = 7, .n_rates = 4, .logits = 1e6};
    const gr_rate rates[] = {{1, 64, 1e9, 2e9, 4e9},
                             {1, 256, 1e9, 2e9, 4e9},
                             {100, 64, 1e11, 2e11, 4e11},
                             {100, 256, 1e11, 2e11, 4e11}};
    memcpy(h.rates, rates, sizeof(rates));
    gr_task w = {.cost = {.flops = 1e10, .rows = 10, .width = 128}};
    assert_int_equal((gr_task_ns(&w, &h) + 500) / 1000, 1000000);
    w.cost.backward = true;
    assert_int_equal((gr_task_ns(&w, &h) + 500) / 1000, 500000);
    w.cost.rows = 100000; /* no further than measured */
    assert_int_equal((gr_task_ns(&w, &h) + 500) / 1000, 50000);
    w = (gr_task){.cost = {.flops = 1e10, .rows = 10, .width = 128, .paged = true}};
    assert_int_equal((gr_task_ns(&w, &h) + 500) / 1000, 250000);
    w = (gr_task){.cost = {.logits = 1e6, .bytes = 1}};
    assert_int_equal((gr_task_ns(&w, &h) + 500) / 1000, 1000000);
    h.kept = 2e6; /* logits that go through memory have a rate of their own */
    assert_int_equal((gr_task_ns(&w, &h) + 500) / 1000, 1000000);
    w.cost.backward = true;
    assert_int_equal((gr_task_ns(&w, &h) + 500) / 1000, 500000);
    w = (gr_task){.cost = {.bytes = 2e15}};
    assert_int_equal(gr_task_ns(&w, &h), 2000000007);
}

static double seconds(const gr_hardware *h, gr_task w)
{
    return (double)gr_task_ns(&w, h) / 1e9;
}

static void assert_near(double x, double want)
{
    if (!(fabs(x - want) <= 1e-6 * want)) fail_msg("%.9g should be %.9g", x, want);
}

/* Attention by length, forward and backward; in the pool by arithmetic, or by bytes where their rate is
 * known; and what has no rate of its own is arithmetic and traffic like all other. */
static void test_attention_and_the_head_have_rates_of_their_own(void **state)
{
    (void)state;
    gr_hardware h = {.flops = 1e9, .memory_bytes = 1e12};
    assert_near(seconds(&h, (gr_task){.cost = {.attention = 1e9, .flops = 1e9, .head = 1e9, .length = 64}}),
                3);
    assert_near(seconds(&h, (gr_task){.cost = {.bytes = 1e12, .kv = 2e12, .paged = true}}), 3);
    h.n_attention = 2;
    h.attention[0] = (gr_attention_rate){100, 1e9, 5e8, 2e9};
    h.attention[1] = (gr_attention_rate){10000, 1e11, 5e10, 2e11};
    assert_near(seconds(&h, (gr_task){.cost = {.attention = 1e10, .length = 1000}}), 1);
    assert_near(seconds(&h, (gr_task){.cost = {.attention = 1e10, .length = 1000, .backward = true}}), 2);
    gr_task any_order = {.cost = {.attention = 1e10, .length = 1000, .backward = true, .unordered = true}};
    assert_near(seconds(&h, any_order), 0.5);
    any_order.cost.backward = false;
    assert_near(seconds(&h, any_order), 1);
    h.attention[0].unordered = h.attention[1].unordered = 0; /* no rate of its own */
    any_order.cost.backward = true;
    assert_near(seconds(&h, any_order), 2);
    assert_near(seconds(&h, (gr_task){.cost = {.attention = 1e10, .length = 1}}), 10);
    assert_near(seconds(&h, (gr_task){.cost = {.attention = 1e10, .length = 1 << 20}}), 0.1);
    h.decode_attention = 2e9;
    assert_near(
        seconds(&h, (gr_task){.cost = {.attention = 1e10, .kv = 3e12, .length = 1000, .paged = true}}), 5);
    h.kv_bytes = 1e12;
    assert_near(
        seconds(&h, (gr_task){.cost = {.attention = 1e10, .kv = 3e12, .length = 1000, .paged = true}}), 3);
    h.head = 4e9;
    assert_near(seconds(&h, (gr_task){.cost = {.flops = 1e9, .head = 4e9}}), 2);
    assert_near(seconds(&h, (gr_task){.cost = {.flops = 6e9, .fp8 = 4e9}}), 6);
    h.fp8 = 2;
    assert_near(seconds(&h, (gr_task){.cost = {.flops = 6e9, .fp8 = 4e9}}), 4);
}

/* Products by their tiles, or by the weights that they read where rows are few; the rest is added. Without
 * rates of experts, as a dense product of as many rows. */
static void test_experts_have_rates_of_their_own(void **state)
{
    (void)state;
    gr_hardware h = {.flops = 1e9, .memory_bytes = 1e12};
    gr_task w = {
        .cost = {
            .flops = 1e9,
            .experts = {
                .products = 1e12, .weights = 1e12, .moved = 1e12, .launches = 1e6, .rows = 32, .width = 64}}};
    assert_near(seconds(&h, w), 1 + 1000);
    h.n_rates = 1;
    h.rates[0] = (gr_rate){32, 64, 1e9, 2e9, 4e9};
    w.cost.paged = true;
    assert_near(seconds(&h, w), 1 + 250);
    h.n_rates = 0;
    h.experts =
        (gr_experts_rate){.product = 1e12, .gradient = 2e12, .read = 5e11, .padding = 96, .launch_ns = 1000};
    assert_near(seconds(&h, w), 1 + 4 + 1 + 1);
    w.cost.experts.rows = 96;
    assert_near(seconds(&h, w), 1 + 2 + 1 + 1);
    w.cost.experts.weights = 4e12;
    assert_near(seconds(&h, w), 1 + 8 + 1 + 1);
    w.cost.experts.gradients = 1e12;
    w.cost.experts.sums = 3e12;
    assert_near(seconds(&h, w), 1 + 8 + 4 + 0.5 + 1);
}

/* Of 3 ranks all move what lies in the middle of 2 x 51.7 and 4 x 34.4; of 8 together what 4 do. */
static void test_copies_of_ranks_share_what_their_host_moves(void **state)
{
    (void)state;
    gr_hardware h, a100;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_hardware_find(&h, "h200", &d), GR_OK);
    assert_memory_equal(&h.copy, &h.copies[0], sizeof(h.copy));
    assert_near(gr_hardware_copy(&h, 1).d2h, 55.3e9);
    assert_near(gr_hardware_copy(&h, 2).h2d, 54.4e9);
    assert_near(gr_hardware_copy(&h, 3).d2h, (2 * 51.7e9 + 4 * 34.4e9) / 2 / 3);
    assert_near(gr_hardware_copy(&h, 3).both, (2 * 40.3e9 + 4 * 24.7e9) / 2 / 3);
    assert_near(gr_hardware_copy(&h, 4).both, 24.7e9);
    assert_near(gr_hardware_copy(&h, 8).h2d, 44.3e9 / 2);
    assert_near(gr_hardware_copy(&h, 8).both, 24.7e9 / 2);
    assert_int_equal(gr_hardware_find(&a100, "a100-80g", &d), GR_OK);
    assert_near(gr_hardware_copy(&a100, 1).d2h, 25e9);
    assert_near(gr_hardware_copy(&a100, 4).d2h, 25e9 * 34.4 / 55.3);
    gr_diag_release(&d);
}

static void test_what_a_process_takes_beside_its_arena(void **state)
{
    (void)state;
    const gr_hardware h = {.overhead_bytes = 500 << 20,
                           .layer_graph_bytes = 1000,
                           .pinned = 8.0 / 4096,
                           .part = {[GR_LIBRARY_COMM] = 900 << 20},
                           .group_bytes = 300 << 20,
                           .message_bytes = 100 << 20};
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1}), 500 << 20);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1, .captured = 28}), (500 << 20) + 28000);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1, .host_bytes = 1 << 20}),
                     502 << 20); /* in pieces of 2 MiB */
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1, .host_bytes = UINT64_C(4) << 30}),
                     508 << 20);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 2}), 1400 << 20);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 4, .groups = 1}), UINT64_C(1700) << 20);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 4, .groups = 1, .messages = 4}),
                     UINT64_C(2100) << 20);
    assert_int_equal(gr_hardware_overhead(&h, &(gr_tenant){.ranks = 1, .groups = 1}),
                     1400 << 20); /* a role of its own */
}

static void test_ranks_share_a_host(void **state)
{
    (void)state;
    gr_diag d;
    gr_hardware whole, h;
    gr_diag_init(&d);
    assert_int_equal(gr_hardware_find(&whole, "h200", &d), GR_OK);
    h = whole;
    gr_hardware_share(&h, "h200", 4); /* says what there is for one device */
    assert_memory_equal(&h, &whole, sizeof(h));
    gr_hardware_share(&h, "measured.json", 4);
    assert_int_equal(h.host_bytes, whole.host_bytes / 4);
    assert_int_equal(h.device_bytes, whole.device_bytes);
    assert_int_equal(gr_hardware_find(&whole, "cpu", &d), GR_OK);
    for (int i = 0; i < 2; i++) {
        h = whole;
        gr_hardware_share(&h, i ? "cpu" : NULL, 3);
        assert_int_equal(h.host_bytes, whole.host_bytes / 3);
        assert_int_equal(h.device_bytes, whole.device_bytes / 3);
    }
    gr_diag_release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_read_back_as_it_was_written),
        cmocka_unit_test(test_what_is_wrong_is_said_with_its_place),
        cmocka_unit_test(test_a_file_cut_short_is_refused_wherever_it_ends),
        cmocka_unit_test(test_rates_lie_between_those_measured),
        cmocka_unit_test(test_attention_and_the_head_have_rates_of_their_own),
        cmocka_unit_test(test_experts_have_rates_of_their_own),
        cmocka_unit_test(test_copies_of_ranks_share_what_their_host_moves),
        cmocka_unit_test(test_what_a_process_takes_beside_its_arena),
        cmocka_unit_test(test_ranks_share_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
