/* Rows as they are appended: groups of pairs, whose records are counted by group and everything else by
 * sequence. Each array is memory of its own, exactly as long as it may be, so that a sanitizer sees what is
 * written beside it. */
#include "ops/base/rows.h"

#include "tests/unit/test.h"

enum { PAIRS = 64, LENGTH = 3, STRIDE = 2 * LENGTH };

static gr_rows make_rows(uint32_t groups, uint32_t seqs)
{
    gr_rows r = {.stride = STRIDE};
    r.n_groups = gr_calloc(1, sizeof(*r.n_groups));
    r.n_seqs = gr_calloc(1, sizeof(*r.n_seqs));
    r.record = gr_calloc(groups, sizeof(*r.record));
    r.group = gr_calloc(seqs, sizeof(*r.group));
    r.prompt_len = gr_calloc(seqs, sizeof(*r.prompt_len));
    r.response_len = gr_calloc(seqs, sizeof(*r.response_len));
    r.token_offset = gr_calloc(seqs + 1, sizeof(*r.token_offset));
    r.truncated = gr_calloc(seqs, 1);
    r.ended = gr_calloc(seqs, 1);
    r.ids = gr_calloc((size_t)seqs * STRIDE, sizeof(*r.ids));
    return r;
}

static void free_rows(gr_rows *r)
{
    void *const all[] = {r->n_groups,     r->n_seqs,       r->record,    r->group, r->prompt_len,
                         r->response_len, r->token_offset, r->truncated, r->ended, r->ids};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

/* Sequence s of group g has prompts and responses of 1 to LENGTH ids that name it. */
static uint32_t prompt_of(uint32_t g)
{
    return 1 + g % LENGTH;
}

static uint32_t response_of(uint32_t s)
{
    return s % (LENGTH + 1);
}

static void add_pair(gr_rows *r, uint32_t g)
{
    assert_int_equal(gr_rows_add_group(r, 1000 + g), g);
    for (uint32_t s = 2 * g; s < 2 * g + 2; s++) {
        int32_t prompt[LENGTH], response[LENGTH];
        for (uint32_t i = 0; i < LENGTH; i++) {
            prompt[i] = (int32_t)(100 * s + i);
            response[i] = (int32_t)(100 * s + 50 + i);
        }
        const gr_seq_ids ids = {prompt, response, prompt_of(g), response_of(s)};
        assert_int_equal(gr_rows_add_seq(r, g, &ids), s);
    }
}

static void test_a_batch_of_pairs_keeps_to_its_rows(void **state)
{
    (void)state;
    gr_rows r = make_rows(PAIRS, 2 * PAIRS);
    uint32_t tokens = 0;
    for (uint32_t g = 0; g < PAIRS; g++) add_pair(&r, g);
    assert_int_equal(*r.n_groups, PAIRS);
    assert_int_equal(*r.n_seqs, 2 * PAIRS);
    for (uint32_t s = 0; s < 2 * PAIRS; s++) {
        const int32_t *ids = gr_rows_ids(&r, s);
        assert_int_equal(r.group[s], s / 2);
        assert_int_equal(r.record[r.group[s]], 1000 + s / 2);
        assert_int_equal(r.prompt_len[s], prompt_of(s / 2));
        assert_int_equal(r.response_len[s], response_of(s));
        assert_int_equal(r.token_offset[s], tokens);
        tokens += response_of(s);
        for (uint32_t i = 0; i < r.prompt_len[s]; i++) assert_int_equal(ids[i], 100 * s + i);
        for (uint32_t i = 0; i < r.response_len[s]; i++)
            assert_int_equal(ids[r.prompt_len[s] + i], 100 * s + 50 + i);
    }
    assert_int_equal(r.token_offset[2 * PAIRS], tokens);
    free_rows(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_batch_of_pairs_keeps_to_its_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
