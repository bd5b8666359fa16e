/* Which sequences a pass takes together, in their order and balanced, and where their rows stand. */
#include "ops/pass.h"

#include "test.h"

typedef struct fixture {
    gr_rows_bounds bounds;
    void *block;
    gr_rows rows;
} fixture;

/* Sequences of random lengths, with ids that name sequence and place. */
static fixture make_rows(uint64_t *seed, uint32_t seqs, uint32_t prompt, uint32_t response)
{
    fixture f = {.bounds = {seqs, seqs, prompt, response, false}};
    f.block = gr_calloc(1, gr_rows_bytes(&f.bounds));
    f.rows = gr_rows_at(f.block, &f.bounds);
    *f.rows.n_groups = *f.rows.n_seqs = seqs;
    for (uint32_t s = 0; s < seqs; s++) {
        *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
        f.rows.prompt_len[s] = 1 + (uint32_t)(*seed >> 33) % prompt;
        f.rows.response_len[s] = 1 + (uint32_t)(*seed >> 13) % response;
        f.rows.token_offset[s + 1] = f.rows.token_offset[s] + f.rows.response_len[s];
        for (uint32_t i = 0; i < f.rows.stride; i++)
            f.rows.ids[s * f.rows.stride + i] = (int32_t)(1000 * s + i);
    }
    return f;
}

static uint32_t length_of(const fixture *f, uint32_t s)
{
    return f->rows.prompt_len[s] + f->rows.response_len[s];
}

/* What a whole pass did: the sequences as they came, and the cuts. */
typedef struct walk {
    uint32_t *seqs, n_seqs, n_cuts, most;
} walk;

static void check_rows(const fixture *f, const gr_pass *p, const gr_micro *k, uint32_t head_rows)
{
    uint32_t next = 0;
    for (gr_chunk c = {0}; gr_pass_chunk(p, head_rows, &c); next = c.row + c.n) {
        assert_int_equal(c.row, next);
        assert_in_range(c.n, 1, head_rows);
        for (uint32_t i = 0; i < c.n; i++) {
            uint32_t at = c.at + i, seq = p->last ? at : 0;
            while (!p->last && f->rows.token_offset[seq + 1] <= at) seq++;
            int32_t id = k->ids[k->row[c.row + i]];
            assert_int_equal(id / 1000, seq);
            if (p->last) {
                assert_int_equal(id % 1000, length_of(f, seq) - 1);
                continue;
            }
            uint32_t j = at - f->rows.token_offset[seq];
            assert_int_equal(id % 1000, f->rows.prompt_len[seq] + j - 1); /* the token before predicts it */
            assert_int_equal(k->target[c.row + i], id + 1);
        }
    }
    assert_int_equal(next, p->n_rows);
}

static walk run_pass(const fixture *f, gr_pass *p, uint32_t first, uint32_t end, uint32_t micro_tokens)
{
    gr_deal_bounds most = {end - first, (uint64_t)(end - first) * f->rows.stride};
    gr_micro_bounds b = gr_micro_bounds_of(&f->bounds, &most, micro_tokens);
    uint64_t bytes = gr_micro_bytes(&b);
    void *packed = gr_calloc(1, bytes), *staging = gr_calloc(1, bytes);
    gr_micro k = gr_micro_at(packed, &b);
    gr_queue q = {0};
    walk w = {.seqs = gr_calloc(end - first, sizeof(uint32_t))};
    gr_seqs seqs = {0};
    gr_seqs_range(&seqs, first, end);
    for (gr_pass_begin(p, &seqs); gr_pass_more(p); w.n_cuts++) {
        gr_pass_next(p, &f->rows, &b, &q, packed, staging);
        assert_in_range(p->n_seqs, 1, b.seqs);
        assert_in_range(p->n_tokens, 1, b.tokens);
        assert_in_range(p->n_rows, 0, b.rows);
        for (uint32_t i = 0; i < p->n_seqs; i++) {
            w.seqs[w.n_seqs++] = (uint32_t)k.ids[k.offset[i]] / 1000;
            for (uint32_t t = k.offset[i]; t < k.offset[i + 1]; t++)
                assert_int_equal(k.position[t], t - k.offset[i]);
        }
        check_rows(f, p, &k, 3);
        check_rows(f, p, &k, UINT32_MAX);
        w.most = GR_MAX(w.most, p->n_tokens);
    }
    assert_int_equal(w.n_seqs, end - first);
    assert_in_range(w.n_cuts, 1, b.trips);
    assert_int_equal(gr_pass_count(p, &f->rows, &b, &seqs), w.n_cuts);
    free(seqs.seq);
    free(packed);
    free(staging);
    return w;
}

static void test_sequences_are_taken_in_their_order(void **state)
{
    (void)state;
    uint64_t seed = 1;
    gr_pass p = {0};
    for (uint32_t round = 0; round < 200; round++) {
        fixture f = make_rows(&seed, 1 + round % 23, 5, 9);
        uint32_t first = round % 23 / 3;
        walk w = run_pass(&f, &p, first, 1 + round % 23, 14 + round % 40);
        for (uint32_t i = 0; i < w.n_seqs; i++) assert_int_equal(w.seqs[i], first + i);
        free(w.seqs);
        free(f.block);
    }
    gr_pass_release(&p);
}

/* How many cuts of at most so many tokens the sequences take, as they come. */
static uint32_t cuts_of(const fixture *f, const walk *w, uint32_t most)
{
    uint32_t cuts = 1, tokens = 0;
    for (uint32_t i = 0; i < w->n_seqs; i++) {
        uint32_t n = length_of(f, w->seqs[i]);
        if (tokens + n > most) cuts++, tokens = 0;
        tokens += n;
    }
    return cuts;
}

static void test_balanced_the_longest_come_first_and_cuts_are_even(void **state)
{
    (void)state;
    uint64_t seed = 7;
    gr_pass p = {.balanced = true};
    uint32_t evener = 0;
    for (uint32_t round = 0; round < 200; round++) {
        fixture f = make_rows(&seed, 1 + round % 23, 5, 9);
        uint32_t first = round % 23 / 3, bound = 14 + round % 40;
        p.last = round % 3 == 0;
        walk w = run_pass(&f, &p, first, 1 + round % 23, bound),
             other = run_pass(&f, &p, first, 1 + round % 23, 64);
        for (uint32_t i = 1; i < w.n_seqs; i++) {
            uint32_t m = length_of(&f, w.seqs[i - 1]), n = length_of(&f, w.seqs[i]);
            assert_true(m > n || (m == n && w.seqs[i - 1] < w.seqs[i]));
        }
        /* as few cuts as the bound allows, and none of them could be smaller */
        assert_int_equal(w.n_cuts, cuts_of(&f, &w, bound));
        for (uint32_t less = length_of(&f, w.seqs[0]); less < w.most; less++)
            assert_true(cuts_of(&f, &w, less) > w.n_cuts);
        evener += w.most < bound;
        /* another bound cuts them elsewhere, and takes them in the same order */
        assert_memory_equal(w.seqs, other.seqs, w.n_seqs * sizeof(*w.seqs));
        free(w.seqs);
        free(other.seqs);
        free(f.block);
    }
    assert_true(evener > 50);
    gr_pass_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences_are_taken_in_their_order),
        cmocka_unit_test(test_balanced_the_longest_come_first_and_cuts_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
