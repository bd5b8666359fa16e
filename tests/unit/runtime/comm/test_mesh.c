/* Ranks on a mesh: coordinates, and who is in a group along an axis. */
#include "runtime/comm/mesh.h"

#include "tests/unit/test.h"

static void test_ranks_are_counted_along_the_first_axis_first(void **state)
{
    (void)state;
    const gr_mesh m = {.size = {[GR_AXIS_TENSOR] = 2, [GR_AXIS_CONTEXT] = 3}};
    assert_int_equal(gr_mesh_ranks(&m), 6);
    for (uint32_t data = 0; data < 4; data++)
        for (uint32_t context = 0; context < 3; context++)
            for (uint32_t tensor = 0; tensor < 2; tensor++) {
                const uint32_t rank = (data * 3 + context) * 2 + tensor;
                assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_TENSOR), tensor);
                assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_CONTEXT), context);
                assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_DATA), data);
            }
}

/* Ranks of one group differ in that coordinate alone. */
static void test_groups_are_those_that_differ_along_the_axis_alone(void **state)
{
    (void)state;
    const gr_mesh m = {.size = {[GR_AXIS_TENSOR] = 2, [GR_AXIS_CONTEXT] = 3}};
    const gr_axis axes[] = {GR_AXIS_TENSOR, GR_AXIS_CONTEXT, GR_AXIS_DATA};
    for (uint32_t a = 0; a < 24; a++)
        for (uint32_t b = 0; b < 24; b++)
            for (size_t i = 0; i < 3; i++) {
                bool same = true;
                for (size_t k = 0; k < 3; k++)
                    same = same && (k == i || gr_mesh_place(&m, a, axes[k]) == gr_mesh_place(&m, b, axes[k]));
                assert_int_equal(gr_mesh_group(&m, a, axes[i]) == gr_mesh_group(&m, b, axes[i]), same);
            }
}

static void test_axes_that_are_not_said_have_one(void **state)
{
    (void)state;
    const gr_mesh m = {.size = {0}};
    assert_int_equal(gr_mesh_chunks(&m), 1);
    assert_int_equal(gr_mesh_ranks(&m), 1);
    assert_false(gr_mesh_any(&m));
    assert_int_equal(gr_mesh_place(&m, 5, GR_AXIS_DATA), 5);
    assert_int_equal(gr_mesh_place(&m, 5, GR_AXIS_CONTEXT), 0);
    assert_string_equal(gr_axis_str(GR_AXIS_CONTEXT), "context");
}

/* Experts are folded onto all other axes: of neighbours, whatever they have. */
static void test_experts_are_folded_onto_the_other_axes(void **state)
{
    (void)state;
    const gr_mesh m = {.size = {[GR_AXIS_TENSOR] = 2, [GR_AXIS_CONTEXT] = 2, [GR_AXIS_EXPERT] = 4}};
    assert_int_equal(gr_mesh_ranks(&m), 4);
    assert_true(gr_mesh_any(&(gr_mesh){.size = {[GR_AXIS_EXPERT] = 4}}));
    assert_int_equal(gr_mesh_ranks(&(gr_mesh){.size = {[GR_AXIS_EXPERT] = 4}}), 1);
    for (uint32_t rank = 0; rank < 16; rank++) {
        assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_EXPERT), rank % 4);
        assert_int_equal(gr_mesh_group(&m, rank, GR_AXIS_EXPERT), rank / 4 * 4);
        assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_DATA), rank / 4);
    }
}

/* Stages are of ranks that share sequences, which are neighbours; what is left has sequences of its own. */
static void test_stages_are_apart_by_those_that_share_sequences(void **state)
{
    (void)state;
    const gr_mesh m = {.size = {[GR_AXIS_TENSOR] = 2, [GR_AXIS_CONTEXT] = 3, [GR_AXIS_PIPELINE] = 4}};
    assert_int_equal(gr_mesh_sharers(&m), 6);
    assert_int_equal(gr_mesh_ranks(&m), 24);
    assert_int_equal(gr_mesh_stride(&m, GR_AXIS_PIPELINE), 6);
    for (uint32_t rank = 0; rank < 48; rank++) {
        assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_PIPELINE), rank / 6 % 4);
        assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_DATA), rank / 24);
        assert_int_equal(gr_mesh_group(&m, rank, GR_AXIS_PIPELINE), rank / 24 * 24 + rank % 6);
    }
    assert_string_equal(gr_axis_str(GR_AXIS_PIPELINE), "pipeline");
}

/* Experts are divided over ranks of one stage: 2 with the tokens of a sequence, 3 times. */
static void test_a_stage_has_whole_groups_of_experts(void **state)
{
    (void)state;
    const gr_mesh m = {.size = {[GR_AXIS_CONTEXT] = 2, [GR_AXIS_EXPERT] = 6, [GR_AXIS_PIPELINE] = 2}};
    assert_int_equal(gr_mesh_ranks(&m), 4);
    assert_int_equal(gr_mesh_block(&m), 12);
    for (uint32_t rank = 0; rank < 24; rank++) {
        assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_PIPELINE), rank / 6 % 2);
        assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_CONTEXT), rank % 2);
        assert_int_equal(gr_mesh_place(&m, rank, GR_AXIS_DATA), rank / 12 * 3 + rank % 6 / 2);
        assert_int_equal(gr_mesh_group(&m, rank, GR_AXIS_EXPERT), rank / 6 * 6);
        assert_int_equal(gr_mesh_group(&m, rank, GR_AXIS_PIPELINE), rank / 12 * 12 + rank % 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_are_counted_along_the_first_axis_first),
        cmocka_unit_test(test_groups_are_those_that_differ_along_the_axis_alone),
        cmocka_unit_test(test_axes_that_are_not_said_have_one),
        cmocka_unit_test(test_experts_are_folded_onto_the_other_axes),
        cmocka_unit_test(test_stages_are_apart_by_those_that_share_sequences),
        cmocka_unit_test(test_a_stage_has_whole_groups_of_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
