#include "ops/model/model.h"
#include "ops/pass.h"

#include "tests/unit/test.h"

/* Llama-3.2-1B's geometry, whose parameter count its model card gives: 1.23 B with the embedding tied. */
static gr_model_shape llama_1b(void)
{
    gr_model_shape s = {.vocab = 128256, .hidden = 2048, .layers = 16, .max_positions = 131072, .tied = true};
    const gr_layer_desc d = gr_layer_plain(32, 8, 64, 8192);
    gr_model_of(&s, &d);
    return s;
}

/* All that is optional, and sizes that are not multiples of 64. */
static gr_model_shape odd(void)
{
    gr_model_shape s = {.vocab = 7, .hidden = 6, .layers = 2};
    gr_layer_desc d = gr_layer_plain(4, 2, 3, 5);
    d.attention.qkv_bias = true;
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    gr_model_of(&s, &d);
    return s;
}

static void test_parameter_count_matches_a_known_model(void **state)
{
    (void)state;
    gr_model_shape s = llama_1b();
    /* 128256*2048 + 16*(2*2048 + 3072*2048 + 2048*2048 + 3*8192*2048) + 2048 */
    assert_int_equal(gr_model_params(&s), 1235814400);
}

/* Flat shards of 2 to 64 ranks are of one size and begin at multiples of 64: what gathers and reduces them
 * need not move them one by one. */
static void test_buckets_are_cut_evenly(void **state)
{
    (void)state;
    gr_model_shape s = llama_1b();
    for (uint32_t b = 0; b < gr_model_buckets(&s); b++)
        for (uint32_t ranks = 1; ranks <= 64; ranks *= 2) {
            const uint64_t n = gr_bucket_elems(&s, b);
            assert_int_equal(gr_shard_elems(n, ranks) * ranks, n);
        }
    /* 2*2048 + 3072*2048 + 2048*2048 + 3*8192*2048, a multiple of 4096 */
    assert_int_equal(gr_bucket_elems(&s, 1), 60821504);
    assert_int_equal(gr_bucket_elems(&s, 17), 4096); /* of 2048 */
}

static void test_offsets_are_aligned_and_follow_the_slots(void **state)
{
    (void)state;
    gr_model_shape s = odd();
    /* each slot starts at the next multiple of 64: in_norm 6, qkv 24*6 = 144, bias 24, norms 3 and 3, o 6*12
     * = 72, post 6, gate_up 10*6 = 60, down 6*5 = 30 */
    const uint64_t want[] = {0, 64, 256, 320, 384, 448, 576, 640, 704};
    const gr_tensor_slot slots[] = {GR_T_MIXER_NORM, GR_T_QKV,      GR_T_QKV_BIAS, GR_T_Q_NORM, GR_T_K_NORM,
                                    GR_T_O,          GR_T_MLP_NORM, GR_T_GATE_UP,  GR_T_DOWN};
    for (unsigned i = 0; i < GR_LEN(want); i++) assert_int_equal(gr_tensor_offset(&s, 1, slots[i]), want[i]);
    for (uint32_t b = 0; b < 4; b++) assert_int_equal(gr_bucket_elems(&s, b), 4096);
    assert_true(gr_tensor_offset(&s, 0, GR_T_QKV) == UINT64_MAX);
    s.kinds[0].attention.qk_norm = GR_QK_NORM_NONE;
    assert_true(gr_tensor_offset(&s, 1, GR_T_Q_NORM) == UINT64_MAX);
    assert_int_equal(gr_tensor_offset(&s, 1, GR_T_O), 320);
}

static void test_fused_slots_are_listed_as_checkpoint_tensors(void **state)
{
    (void)state;
    gr_model_shape s = odd();
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    assert_int_equal(gr_bucket_tensors(&s, 2, t), 14);
    assert_string_equal(t[1].name, "model.layers.1.self_attn.q_proj.weight");
    assert_string_equal(t[3].name, "model.layers.1.self_attn.v_proj.weight");
    assert_int_equal(t[3].rows, 6);
    assert_int_equal(t[3].cols, 6);
    assert_int_equal(t[3].offset, 64 + 72 + 36);
    assert_true(t[3].decay);
    assert_string_equal(t[5].name, "model.layers.1.self_attn.k_proj.bias");
    assert_int_equal(t[5].offset, 256 + 12);
    assert_int_equal(t[5].cols, 0);
    assert_false(t[5].decay);
    assert_string_equal(t[12].name, "model.layers.1.mlp.up_proj.weight");
    assert_int_equal(t[12].offset, 640 + 30);
    assert_int_equal(gr_bucket_tensors(&s, 0, t), 1);
    assert_int_equal(gr_bucket_tensors(&s, 3, t), 2);
    assert_string_equal(t[1].name, "lm_head.weight");
}

static void test_listed_tensors_add_up_to_the_parameters(void **state)
{
    (void)state;
    gr_model_shape shapes[] = {odd(), llama_1b()};
    for (size_t i = 0; i < GR_LEN(shapes); i++) {
        uint64_t sum = 0;
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        for (uint32_t b = 0; b < gr_model_buckets(&shapes[i]); b++) {
            size_t n = gr_bucket_tensors(&shapes[i], b, t);
            for (size_t k = 0; k < n; k++) sum += (uint64_t)t[k].rows * GR_MAX(t[k].cols, 1u);
        }
        assert_int_equal(sum, gr_model_params(&shapes[i]));
    }
}

static void test_the_head_is_the_embedding_where_tied(void **state)
{
    (void)state;
    gr_model_shape tied = llama_1b(), untied = odd();
    uint64_t offset = 1;
    assert_int_equal(gr_model_head_bucket(&tied, &offset), 0);
    assert_int_equal(offset, 0);
    assert_int_equal(gr_model_head_bucket(&untied, &offset), 3);
    assert_int_equal(offset, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameter_count_matches_a_known_model),
        cmocka_unit_test(test_buckets_are_cut_evenly),
        cmocka_unit_test(test_offsets_are_aligned_and_follow_the_slots),
        cmocka_unit_test(test_fused_slots_are_listed_as_checkpoint_tensors),
        cmocka_unit_test(test_listed_tensors_add_up_to_the_parameters),
        cmocka_unit_test(test_the_head_is_the_embedding_where_tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
