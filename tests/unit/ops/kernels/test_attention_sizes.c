/* How batches are cut for attention on CUDA devices, and that the workspace planned for bounds holds every
 * batch within them. What cuDNN really asks is checked where it runs (ops/kernels/cuda/attention.c). Also for
 * which heads those devices have attention, what layers that hand on more than hidden states take there, and
 * what decode steps keep where heads differ by layer. */
#include "ops/kernels/carried.h"
#include "ops/kernels/layer.h"
#include "ops/kernels/cuda/decode_sizes.h"
#include "ops/kernels/cuda/gemm.h"
#include "ops/kernels/cuda/layer.h"
#include "ops/kernels/cuda/layout.h"
#include "ops/kernels/cuda/sizes.h"
#include "ops/kernels/cuda/steps_layout.h"
#include "ops/kernels/cuda/strict.h"
#include "runtime/base/base.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define SEQS_MAX 600

static const gr_cu_attention_shape shapes[] = {
    {16, 8, 128, true}, {32, 8, 128, true}, {14, 2, 64, true},
    {4, 4, 16, true},   {4, 1, 256, true},  {16, 8, 128, false},
};

static uint32_t below(uint64_t *state, uint32_t n)
{
    uint32_t out[4];
    const uint32_t counter[4] = {(uint32_t)*state, (uint32_t)(*state >> 32), 0, 0};
    gr_philox(7, 1, counter, out);
    ++*state;
    return out[0] % n;
}

/* Lengths of one kind: all short, all about the same, or a few long ones among short. */
static uint32_t random_batch(uint64_t *state, uint32_t *offset)
{
    const uint32_t n = 1 + below(state, SEQS_MAX), kind = below(state, 3),
                   most = 1u << (4 + below(state, 10));
    offset[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length = below(state, most + 1);
        if (kind == 1) length = most - below(state, most / 8);
        if (kind == 2 && below(state, 16)) length = below(state, 20);
        offset[i + 1] = offset[i] + length;
    }
    return n;
}

static uint64_t run_bytes(const gr_cu_attention_shape *s, const gr_cu_attention_run *r, bool backward)
{
    return gr_cu_attention_index_bytes(r->batch) + gr_cu_attention_cudnn_bytes(s, r, backward) +
           (backward ? gr_cu_attention_delta_bytes(s, r) + gr_cu_attention_dq_bytes(s, r) : 0);
}

static void test_runs_cover_a_batch_once_and_fit_what_was_planned(void **state)
{
    static uint32_t offset[SEQS_MAX + 1];
    uint64_t draws = 0;
    (void)state;
    for (int trial = 0; trial < 400; trial++) {
        const uint32_t n = random_batch(&draws, offset);
        const gr_cu_attention_shape *s = &shapes[trial % GR_LEN(shapes)];
        uint32_t longest = 0;
        for (uint32_t i = 0; i < n; i++) longest = GR_MAX(longest, offset[i + 1] - offset[i]);
        for (int backward = 0; backward < 2; backward++) {
            const uint64_t planned = gr_cu_attention_ws_bytes(s, offset[n], n, longest, backward);
            for (uint32_t first = 0; first < n;) {
                const gr_cu_attention_run r = gr_cu_attention_cut(s, offset, first, n, backward);
                assert_int_equal(r.first, first);
                assert_true(r.n >= 1 && first + r.n <= n && r.batch >= r.n && r.batch < 2 * r.n);
                assert_true(r.kv_heads >= 1 && s->kv_heads % r.kv_heads == 0);
                assert_true(r.n == 1 || r.kv_heads == s->kv_heads);
                for (uint32_t i = first; i < first + r.n; i++)
                    assert_true(offset[i + 1] - offset[i] <= r.longest);
                assert_true((uint64_t)(offset[first + r.n] - offset[first]) * (s->heads + 2 * s->kv_heads) *
                                s->head_dim <=
                            INT32_MAX);
                assert_true(run_bytes(s, &r, backward) <= planned);
                first += r.n;
            }
        }
    }
}

static void test_bounds_never_shrink_as_batches_grow(void **state)
{
    const uint32_t sizes[] = {1, 2, 17, 127, 128, 129, 384, 385, 768, 1000, 4096, 16384, 20000, 200000};
    (void)state;
    for (size_t k = 0; k < GR_LEN(shapes); k++)
        for (size_t t = 1; t < GR_LEN(sizes); t++)
            for (size_t l = 1; l <= t; l++) {
                const uint64_t at = gr_cu_attention_ws_bytes(&shapes[k], sizes[t], 8, sizes[l], true);
                assert_true(at >= gr_cu_attention_ws_bytes(&shapes[k], sizes[t - 1], 8, sizes[l], true));
                assert_true(at >= gr_cu_attention_ws_bytes(&shapes[k], sizes[t], 8, sizes[l - 1], true));
                assert_true(at >= gr_cu_attention_ws_bytes(&shapes[k], sizes[t], 7, sizes[l], true));
            }
}

/* 16 heads of 128, 8 of keys: a row of 768 tokens brings 2 * 768 bytes of dP, 4 * 128 of dK and dV and 4 of
 * its sum. */
static void test_256_sequences_of_768_tokens_go_in_runs_of_32(void **state)
{
    uint32_t offset[257];
    (void)state;
    for (uint32_t i = 0; i < 257; i++) offset[i] = 768 * i;
    const gr_cu_attention_run r = gr_cu_attention_cut(&shapes[0], offset, 0, 256, true);
    assert_int_equal(r.n, 32); /* 64 would take 64 * 768 * 16 * 2052 bytes, 1.5 GiB */
    assert_int_equal(r.longest, 768);
    assert_int_equal(gr_cu_attention_cudnn_bytes(&shapes[0], &r, true) / (1 << 20),
                     32 * 768 * 16 * 2048 / (1 << 20));
    const gr_cu_attention_run whole = gr_cu_attention_cut(&shapes[0], offset, 0, 256, false);
    assert_int_equal(whole.n, 256);
}

/* One sequence of 16,384: 512 MiB of dP a head, so two heads would be 1 GiB and a little. */
static void test_one_long_sequence_goes_in_parts_of_its_heads(void **state)
{
    const uint32_t offset[] = {0, 16384};
    (void)state;
    const gr_cu_attention_run r = gr_cu_attention_cut(&shapes[0], offset, 0, 1, true);
    assert_int_equal(r.kv_heads, 1);
    assert_int_equal(r.longest, 16384);
    const uint64_t ws = gr_cu_attention_ws_bytes(&shapes[0], 16384, 1, 16384, true);
    assert_in_range(ws >> 20, 1040, 1048);
    const gr_cu_attention_shape nondeterministic = {16, 8, 128, false};
    assert_int_equal(gr_cu_attention_cut(&nondeterministic, offset, 0, 1, true).kv_heads, 8);
}

/* ---- heads that cuDNN does not take ---------------------------------------------------------------------
 */

static void test_wide_heads_take_the_sums_of_their_rows_alone(void **state)
{
    const gr_cu_attention_shape wide = {8, 1, 512, true}, loose = {8, 1, 512, false},
                                most = {8, 1, 256, true};
    (void)state;
    assert_int_equal(gr_cu_attention_ws_bytes(&wide, 1000, 7, 300, true), 4 * 1000 * 8);
    assert_int_equal(gr_cu_attention_ws_bytes(&loose, 1000, 7, 300, true), 4 * 1000 * 8);
    assert_int_equal(gr_cu_attention_ws_bytes(&wide, 1000, 7, 300, false), 0);
    assert_int_equal(gr_cu_attention_prefix_bytes(&wide, 300, true), 0);
    assert_true(gr_cu_attention_ws_bytes(&most, 1000, 7, 300, true) > 4 * 1000 * 8);
    assert_true(gr_cu_attention_prefix_bytes(&most, 300, true) > 0);
}

static gr_model_shape published(const char *path)
{
    gr_model_shape s;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_model_shape_read(&s, path, &d), GR_OK);
    gr_diag_release(&d);
    return s;
}

static void assert_unfit(const gr_model_shape *s, const char *want)
{
    char buf[GR_UNFIT_MAX];
    const char *why = gr_layers_unfit(&gr_kernels_cuda, s, buf);
    assert_non_null(why);
    assert_non_null(strstr(why, want));
}

/* The layer of 31B without a window, changed. */
typedef void (*change)(gr_attention_desc *a);
static void to_fp8(gr_attention_desc *a)
{
    a->kv_fp8 = true;
}
static void to_528(gr_attention_desc *a)
{
    a->head_dim = a->rope.dims = 528;
}
static void to_264(gr_attention_desc *a)
{
    a->head_dim = a->rope.dims = 264;
}
static void to_values_alone(gr_attention_desc *a)
{
    a->qk_norm = GR_QK_NORM_NONE;
}

static void test_cuda_devices_have_gemma4_and_name_what_they_have_not(void **state)
{
    char buf[GR_UNFIT_MAX];
    (void)state;
    const gr_model_shape dense = published("tests/golden/configs/gemma-4-31b-it.json"),
                         experts = published("tests/golden/configs/gemma-4-26b-a4b-it.json"),
                         small = published("tests/golden/configs/gemma-4-e2b-it.json"),
                         less_small = published("tests/golden/configs/gemma-4-e4b-it.json");
    const gr_model_shape *const all[] = {&dense, &experts, &small, &less_small};
    for (size_t i = 0; i < GR_LEN(all); i++) assert_null(gr_layers_unfit(&gr_kernels_cuda, all[i], buf));
    static const struct {
        change change;
        const char *why;
    } cases[] = {{to_fp8, "heads wider than 256, whose keys and values are not kept in FP8"},
                 {to_528, "heads of 528, which is more than 512"},
                 {to_264, "heads wider than 256 whose size is no multiple of 16"},
                 {to_values_alone, "a norm of values without norms of the heads of q and k"}};
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        gr_model_shape s = dense;
        gr_attention_desc *full = &s.kinds[s.kind_of[s.layers - 1]].attention;
        assert_int_equal(full->head_dim, 512);
        cases[i].change(full);
        assert_unfit(&s, cases[i].why);
    }
}

/* ---- layers that hand on more than hidden states ---------------------------------------------------------
 */

static void test_cuda_devices_name_embeddings_of_each_layer_that_no_vector_holds(void **state)
{
    (void)state;
    gr_model_shape s = published("tests/golden/configs/gemma-4-e2b-it.json");
    s.per_layer.width = s.kinds[0].per_layer = 12;
    assert_unfit(&s, "embeddings of each layer of 12, which is no multiple of 8");
}

/* Queries alone are fewer blocks across, so that there may be more along the tokens. */
static void test_rotating_queries_back_has_room_for_its_own_parts(void **state)
{
    (void)state;
    for (uint32_t heads = 1; heads <= 128; heads *= 2)
        for (uint32_t kv_heads = 1; kv_heads <= heads; kv_heads *= 2) {
            gr_layer_desc d = gr_layer_plain(heads, kv_heads, 512, 8);
            d.attention.keys = GR_KEYS_TAKEN;
            gr_cu_heads queries = gr_cu_heads_of(&d.attention);
            queries.kv_heads = 0;
            for (uint32_t tokens = 1; tokens < 100000; tokens = 3 * tokens + 1)
                assert_true(gr_cu_back_ws_bytes(&d, 8, tokens) >=
                            gr_cu_qk_rope_backward_ws(&queries, tokens));
        }
}

/* One norm over P values of each token and layer, beside products as wide as all layers' together. */
static void test_embeddings_of_each_layer_take_what_their_norm_takes(void **state)
{
    const gr_model_shape s = published("tests/golden/configs/gemma-4-e2b-it.json");
    const gr_kernels *k = &gr_kernels_cuda;
    const uint32_t tokens = 1000, all = 35 * 256;
    (void)state;
    assert_int_equal(gr_carried_bytes(k, &s, tokens, false), tokens * all * 2);
    assert_int_equal(gr_per_layer_ws_bytes(k, &s, tokens, 1, false), GR_CU_GEMM_WS_BYTES + tokens * all * 2);
    const uint64_t back = GR_CU_GEMM_WS_BYTES + tokens * all * 2 +
                          gr_align(gr_cu_rmsnorm_backward_ws(tokens * 35, 256), 256) +
                          gr_align(gr_cu_embed_backward_ws(tokens), 256) + tokens * s.hidden * 2;
    assert_int_equal(gr_per_layer_ws_bytes(k, &s, tokens, 1, true), back);
}

/* ---- decode steps of layers whose heads differ ----------------------------------------------------------
 */

static void test_decode_steps_have_a_list_for_each_window_and_group_of_heads(void **state)
{
    const gr_steps_bounds b = {.slots = 6, .max_length = 1000, .chunk = 2, .stop_ids = 1, .stride = 63};
    (void)state;
    gr_model_shape s = published("tests/golden/configs/gemma-4-31b-it.json");
    gr_cu_steps_model m = gr_cu_steps_model_of(&s);
    assert_int_equal(m.n_heads, 2);
    assert_int_equal(m.n_lists, 1); /* heads of 512 read none */
    assert_int_equal(m.lists[0].heads.head_dim, 256);
    assert_int_equal(m.lists[0].window, gr_layer(&s, 0)->attention.window);
    const gr_layer_desc full = *gr_layer(&s, s.layers - 1);
    gr_layer_desc narrow = full;
    narrow.attention.head_dim = narrow.attention.rope.dims = 128;
    narrow.attention.window = gr_layer(&s, 0)->attention.window;
    gr_model_set_layer(&s, 1, &narrow);
    m = gr_cu_steps_model_of(&s);
    assert_int_equal(m.n_heads, 3);
    assert_int_equal(m.n_lists, 2);
    assert_int_equal(m.lists[1].heads.kv_heads, full.attention.kv_heads);
    s.n_ahead = 1; /* a layer that may draft reads keys, too */
    s.ahead = narrow;
    s.ahead.attention.window = 0;
    m = gr_cu_steps_model_of(&s);
    assert_int_equal(m.n_heads, 4);
    assert_int_equal(m.n_lists, 3);
    assert_int_equal(m.lists[2].window, 0);

    gr_workspace c = {0};
    gr_cu_steps_device at;
    uint64_t most = 0;
    gr_cu_steps_layout_device(&c, &m, &b, &at);
    for (uint32_t i = 0; i < m.n_heads; i++) {
        const gr_cu_heads *h = &m.heads[i];
        most = GR_MAX(most, gr_cu_strict_ws(h, b.slots, b.max_length));
        if (h->head_dim <= 256) most = GR_MAX(most, gr_cu_decode_attention_ws(h, b.slots, b.max_length));
    }
    assert_int_equal(c.used, gr_steps_cuda.device_bytes(&s, &b));
    assert_true(c.used >= most + gr_cu_decode_work_bytes(&m.lists[0].heads, b.slots, b.max_length) +
                              gr_cu_decode_work_bytes(&m.lists[1].heads, b.slots, b.max_length));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_cover_a_batch_once_and_fit_what_was_planned),
        cmocka_unit_test(test_bounds_never_shrink_as_batches_grow),
        cmocka_unit_test(test_256_sequences_of_768_tokens_go_in_runs_of_32),
        cmocka_unit_test(test_one_long_sequence_goes_in_parts_of_its_heads),
        cmocka_unit_test(test_wide_heads_take_the_sums_of_their_rows_alone),
        cmocka_unit_test(test_cuda_devices_have_gemma4_and_name_what_they_have_not),
        cmocka_unit_test(test_cuda_devices_name_embeddings_of_each_layer_that_no_vector_holds),
        cmocka_unit_test(test_rotating_queries_back_has_room_for_its_own_parts),
        cmocka_unit_test(test_embeddings_of_each_layer_take_what_their_norm_takes),
        cmocka_unit_test(test_decode_steps_have_a_list_for_each_window_and_group_of_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
