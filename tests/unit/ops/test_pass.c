/* Which sequences a pass takes together, in their order and the longest first, and where their rows stand. */
#include "ops/kernels/layer_ops.h"
#include "ops/pass.h"

#include "tests/unit/test.h"

typedef struct fixture {
    gr_rows_bounds bounds;
    void *block;
    gr_rows rows;
} fixture;

/* Sequences of random lengths, with ids that name sequence and place. */
static fixture make_rows(uint64_t *seed, uint32_t seqs, uint32_t prompt, uint32_t response)
{
    fixture f = {
        .bounds = {.groups = seqs, .seqs = seqs, .prompt_tokens = prompt, .response_tokens = response}};
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

/* The same in groups of so many, whose sequences answer one prompt, but for some that say another in its
 * middle. */
static fixture make_groups(uint64_t *seed, uint32_t groups, uint32_t each, uint32_t prompt, uint32_t response)
{
    fixture f = make_rows(seed, groups * each, prompt, response);
    *f.rows.n_groups = groups;
    for (uint32_t s = 0; s < groups * each; s++) {
        const uint32_t first = s - s % each, length = f.rows.prompt_len[first];
        int32_t *ids = f.rows.ids + (size_t)s * f.rows.stride;
        f.rows.group[s] = s / each;
        f.rows.prompt_len[s] = length;
        memcpy(ids, gr_rows_ids(&f.rows, first), length * sizeof(*ids));
        if (s % 7 == 3) ids[length / 2] = (int32_t)(1000 * s + 999);
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
            const int32_t id = k->ids[k->row[c.row + i]], *ids = gr_rows_ids(&f->rows, seq);
            if (p->last) {
                assert_int_equal(id, ids[length_of(f, seq) - 1]);
                continue;
            }
            uint32_t j = f->rows.prompt_len[seq] + at - f->rows.token_offset[seq];
            assert_int_equal(id, ids[j - 1]); /* the token before predicts it */
            assert_int_equal(k->target[c.row + i], ids[j]);
        }
    }
    assert_int_equal(next, p->n_rows);
}

static walk run_pass(const fixture *f, gr_pass *p, uint32_t first, uint32_t end, uint32_t micro_tokens)
{
    gr_balance_bounds most = {end - first, (uint64_t)(end - first) * f->rows.stride};
    gr_micro_bounds b = gr_micro_bounds_of(&f->bounds, &most, micro_tokens, 1);
    uint64_t bytes = gr_micro_bytes(&b);
    void *packed = gr_calloc(1, bytes), *staging = gr_calloc(1, bytes);
    gr_micro k = gr_micro_at(packed, &b);
    gr_queue q = {0};
    walk w = {.seqs = gr_calloc(end - first, sizeof(uint32_t))};
    gr_seqs seqs = gr_seqs_new(end - first);
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

/* As few cuts as the bound allows, and of so many none could be smaller than the fullest. */
static void check_cuts(const fixture *f, const walk *w, uint32_t bound)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < w->n_seqs; i++) longest = GR_MAX(longest, length_of(f, w->seqs[i]));
    assert_int_equal(w->n_cuts, cuts_of(f, w, bound));
    for (uint32_t less = longest; less < w->most; less++) assert_true(cuts_of(f, w, less) > w->n_cuts);
}

/* Whatever the bound. */
static void check_order(const fixture *f, const walk *w, bool longest_first)
{
    for (uint32_t i = 1; i < w->n_seqs; i++) {
        uint32_t m = length_of(f, w->seqs[i - 1]), n = length_of(f, w->seqs[i]);
        if (longest_first)
            assert_true(m > n || (m == n && w->seqs[i - 1] < w->seqs[i]));
        else
            assert_int_equal(w->seqs[i], w->seqs[i - 1] + 1);
    }
}

static void check_passes(bool longest_first)
{
    uint64_t seed = 7;
    gr_pass p = {.longest_first = longest_first};
    uint32_t evener = 0;
    gr_pass_open(&p, 23);
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t bounds[] = {14 + round % 40, 64};
        fixture f = make_rows(&seed, 1 + round % 23, 5, 9);
        p.last = round % 3 == 0;
        for (size_t i = 0; i < GR_LEN(bounds); i++) {
            walk w = run_pass(&f, &p, round % 23 / 3, 1 + round % 23, bounds[i]);
            check_order(&f, &w, longest_first);
            check_cuts(&f, &w, bounds[i]);
            evener += w.most < bounds[i] && w.n_cuts > 1;
            free(w.seqs);
        }
        free(f.block);
    }
    assert_true(evener > 50);
    gr_pass_release(&p);
}

static void test_sequences_are_taken_in_their_order_and_cuts_are_even(void **state)
{
    (void)state;
    check_passes(false);
}

static void test_the_longest_come_first_where_asked(void **state)
{
    (void)state;
    check_passes(true);
}

/* All of one length: no rest is left for the last. */
static void test_one_length_gives_equal_micro_batches(void **state)
{
    (void)state;
    static const struct {
        uint32_t seqs, length, bound, cuts, most; /* sequences of the fullest */
    } cases[] = {{64, 768, 16384, 4, 16}, {64, 768, 8192, 7, 10}, {65, 768, 16384, 4, 17}, {3, 10, 30, 1, 3},
                 {3, 10, 29, 2, 2},       {5, 10, 10, 5, 1},      {1, 10, 4096, 1, 1}};
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        uint64_t seed = 1;
        fixture f = make_rows(&seed, cases[i].seqs, 2, cases[i].length);
        for (uint32_t s = 0; s < cases[i].seqs; s++) {
            f.rows.response_len[s] = cases[i].length - f.rows.prompt_len[s];
            f.rows.token_offset[s + 1] = f.rows.token_offset[s] + f.rows.response_len[s];
        }
        gr_pass p = {0};
        gr_pass_open(&p, cases[i].seqs);
        walk w = run_pass(&f, &p, 0, cases[i].seqs, cases[i].bound);
        assert_int_equal(w.n_cuts, cases[i].cuts);
        assert_int_equal(w.most, cases[i].most * cases[i].length);
        gr_pass_release(&p);
        free(w.seqs);
        free(f.block);
    }
}

/* Relative to the part of the vocabulary that a rank has; -1: another rank has it. */
static int32_t in_part(int32_t id, const gr_micro_bounds *b, uint32_t place)
{
    const uint32_t part = place % b->slices;
    return (uint32_t)id / b->vocab == part ? id - (int32_t)(part * b->vocab) : -1;
}

/* Of neighbours with parts of the vocabulary each knows the tokens and targets of all, as far as they are of
 * its part; their windows are alike, and have all rows of each once, in runs of the batch's columns. */
static void check_parts(const gr_pass *part, void *const *mine, const gr_micro_bounds *b, uint32_t cut)
{
    for (uint32_t r = 0; r < cut; r++) {
        const gr_micro own = gr_micro_at(mine[r], b);
        const uint32_t n = part[r].n_own, first = r / b->slices * b->slices;
        uint32_t rows = 0, most = 0;
        for (uint32_t k = 0; k < b->slices; k++) {
            const gr_micro other = gr_micro_at(mine[first + k], b);
            const int32_t *target = own.part_target + (uint64_t)k * b->own_rows;
            most = GR_MAX(most, part[first + k].n_rows);
            for (uint32_t t = 0; t < n; t++)
                assert_int_equal(own.part_ids[k * n + t], in_part(other.ids[t], b, r));
            for (uint32_t i = 0; i < b->own_rows && !part[r].last; i++)
                assert_int_equal(target[i], i < part[first + k].n_rows ? in_part(other.target[i], b, r) : -1);
        }
        if (part[r].last) continue;
        assert_int_equal(part[r].most_rows, most);
        for (gr_window w = {0}; gr_pass_window(&part[r], 3, &w);) {
            assert_int_equal(w.each, GR_MIN(most - w.first, 3u));
            for (gr_chunk c = {.row = w.first}; gr_pass_run(&part[r], &w, &c); rows += c.n) {
                assert_int_equal(c.row, rows);
                assert_in_range(c.row + c.n, w.first + 1, w.first + w.n);
            }
        }
        assert_int_equal(rows, part[r].n_rows);
    }
}

/* What the ranks of a group have of a micro-batch: side by side their tokens are those of one rank, with
 * padding behind, as many each; and each row is one rank's, whose token predicts it. */
static void check_cut(const fixture *f, uint32_t seqs, uint32_t bound, uint32_t cut, bool last,
                      uint32_t shares)
{
    const gr_balance_bounds most = {seqs, (uint64_t)seqs * f->rows.stride};
    gr_micro_bounds b = gr_micro_bounds_of(&f->bounds, &most, bound, cut);
    gr_micro_bounds one = gr_micro_bounds_of(&f->bounds, &most, bound, 1);
    gr_micro_set_shares(&b, shares);
    gr_micro_set_shares(&one, shares);
    gr_pass whole = {.last = last}, *part = gr_calloc(cut, sizeof(*part));
    b.slices = cut % 2 ? cut : cut / (1 + seqs % 2); /* two groups of neighbours, or one */
    b.vocab = 1 + 1000 / b.slices;
    void *block = gr_calloc(1, gr_micro_bytes(&one)), *room = gr_calloc(1, gr_micro_bytes(&one));
    void **mine = gr_calloc(cut, sizeof(*mine)), *staging = gr_calloc(1, gr_micro_bytes(&b));
    gr_seqs all = gr_seqs_new(seqs);
    gr_queue q = {0};
    gr_seqs_range(&all, 0, seqs);
    gr_pass_open(&whole, seqs);
    gr_pass_begin(&whole, &all);
    for (uint32_t r = 0; r < cut; r++) {
        part[r] = (gr_pass){.last = last, .place = r};
        mine[r] = gr_calloc(1, gr_micro_bytes(&b));
        gr_pass_open(&part[r], seqs);
        gr_pass_begin(&part[r], &all);
    }
    while (gr_pass_more(&whole)) {
        const gr_micro k = gr_micro_at(block, &one);
        uint8_t *asked = gr_calloc(f->rows.token_offset[seqs] + seqs + 1, 1);
        uint32_t rows = 0, in_whole = 0;
        gr_pass_next(&whole, &f->rows, &one, &q, block, room);
        for (uint32_t r = 0; r < cut; r++) {
            const gr_micro own = gr_micro_at(mine[r], &b);
            gr_pass_next(&part[r], &f->rows, &b, &q, mine[r], staging);
            const gr_packed packed = gr_pass_packed(&part[r], &b, &own);
            assert_int_equal(part[r].n_tokens, whole.n_tokens);
            assert_int_equal(packed.n_tokens, (whole.n_tokens + cut - 1) / cut);
            assert_int_equal(packed.host_offset[packed.n_seqs], packed.n_tokens * cut);
            assert_in_range(packed.n_tokens, 1, gr_micro_own(&b, b.tokens));
            assert_in_range(part[r].n_rows, 0, b.own_rows);
            for (uint32_t t = 0, at = r * packed.n_tokens; t < packed.n_tokens; t++, at++)
                assert_int_equal(own.ids[t], at < whole.n_tokens ? k.ids[at] : 0);
            for (uint32_t t = 0; t < whole.n_tokens; t++) assert_int_equal(own.position[t], k.position[t]);
            check_rows(f, &part[r], &own, 3);
            for (gr_chunk c = {0}; gr_pass_chunk(&part[r], 2, &c);)
                for (uint32_t i = 0; i < c.n; i++) assert_int_equal(asked[c.at + i]++, 0);
            rows += part[r].n_rows;
        }
        assert_int_equal(rows, whole.n_rows);
        if (b.slices) check_parts(part, mine, &b, cut);
        for (gr_chunk c = {0}; gr_pass_chunk(&whole, UINT32_MAX, &c);)
            for (uint32_t i = 0; i < c.n; i++) assert_int_equal(asked[c.at + i], 1);
        for (gr_chunk c = {0}; !last && gr_pass_whole(&part[0], &c);)
            for (uint32_t i = 0; i < c.n; i++, in_whole++) assert_int_equal(asked[c.at + i]++, 1);
        assert_int_equal(in_whole, last ? 0 : whole.n_rows);
        free(asked);
    }
    for (uint32_t r = 0; r < cut; r++) {
        assert_false(gr_pass_more(&part[r]));
        gr_pass_release(&part[r]);
        free(mine[r]);
    }
    gr_pass_release(&whole);
    free(part);
    free(mine);
    free(block);
    free(room);
    free(staging);
    free(all.seq);
}

static void test_ranks_of_a_group_share_the_tokens(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (uint32_t round = 0; round < 120; round++) {
        const uint32_t seqs = 1 + round % 17;
        fixture f = make_rows(&seed, seqs, 5, 9);
        check_cut(&f, seqs, 14 + round % 50, 1 + round % 8, round % 3 == 0, 0);
        free(f.block);
    }
}

/* Sequence for sequence, its tokens are those of the part that it goes on from and its own. Returns how many
 * parts others go on from. */
static uint32_t check_parts_of(const fixture *f, const gr_pass *p, const gr_micro *k, uint32_t shares,
                               uint32_t *next)
{
    uint32_t prefixes = 0, on = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const uint32_t of = k->prefix[i], before = gr_seq_before(k->offset, k->prefix, i),
                       n = k->offset[i + 1] - k->offset[i];
        assert_in_range(of, 0, i);
        assert_int_equal(k->prefix[of], of);
        for (uint32_t t = 0; t < n; t++) assert_int_equal(k->position[k->offset[i] + t], before + t);
        if (i + 1 < p->n_seqs && k->prefix[i + 1] == i) {
            prefixes++, on = 0;
            continue;
        }
        const int32_t *ids = gr_rows_ids(&f->rows, *next);
        assert_int_equal(before, before ? f->rows.prompt_len[*next] - 1 : 0);
        assert_int_equal(before + n, length_of(f, *next));
        assert_memory_equal(k->ids + k->offset[of], ids, before * sizeof(*ids));
        assert_memory_equal(k->ids + k->offset[i], ids + before, n * sizeof(*ids));
        if (before) assert_in_range(++on, 1, shares);
        (*next)++;
    }
    return prefixes;
}

/* Units as they are in one micro-batch that holds all are those of any. */
static uint32_t check_shared(const fixture *f, uint32_t bound, uint32_t shares)
{
    const uint32_t seqs = *f->rows.n_seqs;
    const gr_balance_bounds most = {seqs, (uint64_t)seqs * f->rows.stride};
    gr_micro_bounds b = gr_micro_bounds_of(&f->bounds, &most, bound, 1);
    gr_micro_set_shares(&b, shares);
    void *block = gr_calloc(1, gr_micro_bytes(&b)), *staging = gr_calloc(1, gr_micro_bytes(&b));
    const gr_micro k = gr_micro_at(block, &b);
    gr_pass p = {0};
    gr_seqs all = gr_seqs_new(seqs);
    gr_queue q = {0};
    uint32_t next = 0, prefixes = 0, cuts = 0;
    gr_seqs_range(&all, 0, seqs);
    gr_pass_open(&p, seqs);
    for (gr_pass_begin(&p, &all); gr_pass_more(&p); cuts++) {
        gr_pass_next(&p, &f->rows, &b, &q, block, staging);
        assert_in_range(p.n_tokens, 1, b.tokens);
        assert_in_range(p.n_seqs, 1, b.seqs);
        prefixes += check_parts_of(f, &p, &k, shares, &next);
        check_rows(f, &p, &k, 3);
    }
    assert_int_equal(next, seqs);
    assert_int_equal(cuts, gr_pass_count(&p, &f->rows, &b, &all));
    assert_in_range(cuts, 1, b.trips);
    gr_pass_release(&p);
    free(all.seq);
    free(block);
    free(staging);
    return prefixes;
}

static void test_responses_of_a_prompt_read_it_together(void **state)
{
    (void)state;
    uint64_t seed = 3;
    uint32_t shared = 0;
    for (uint32_t round = 0; round < 120; round++) {
        const uint32_t each = 1 + round % 5, shares = 2 + round % 3, most = 5 - 1 + shares * (9 + 1);
        fixture f = make_groups(&seed, 1 + round % 6, each, 5, 9);
        const uint32_t n = check_shared(&f, 10000, shares);
        assert_int_equal(check_shared(&f, most + round % 20, shares), n);
        check_cut(&f, *f.rows.n_seqs, most, 1 + round % 4, round % 3 == 0, shares);
        shared += n;
        free(f.block);
    }
    assert_true(shared > 100);
}

/* Of one prompt of 5 tokens and 4 responses of 10 a unit has 4 + 4 x 11 tokens; the first 4 see 1 to 4 keys,
 * each response's 5 to 15. */
static void test_what_sharing_saves(void **state)
{
    (void)state;
    const gr_rows_bounds rows = {.groups = 2, .seqs = 8, .prompt_tokens = 5, .response_tokens = 10};
    const gr_balance_bounds most = {8, 8 * 15};
    gr_micro_bounds b = gr_micro_bounds_of(&rows, &most, 100, 1);
    assert_true(gr_micro_cost_of(&b, &rows, 8).tokens == 60 && gr_micro_cost_of(&b, &rows, 8).length == 15);
    gr_micro_set_shares(&b, 4);
    const gr_micro_cost c = gr_micro_cost_of(&b, &rows, 8);
    assert_int_equal(c.trips, 1);
    assert_true(c.tokens == 2 * 48 && c.rows == 80);
    assert_close(c.length, (4 * 4 + 4 * 11 * (2 * 4 + 11)) / 48.0, 1e-12, 0);
}

/* 4 experts of which 2 tokens choose 2 each touch 3 on average; a second run reads again those that it
 * touches. Weights [2 I, H] and [H, I] of 3 x 4 x 8 elements. */
static void test_what_experts_take(void **state)
{
    (void)state;
    gr_model_shape s = {.hidden = 8, .layers = 1};
    gr_layer_desc d = gr_layer_plain(2, 1, 4, 16);
    gr_model_of(&s, &d);
    gr_task dense = {0}, w = {0};
    const gr_kernels k = {.dtype = GR_BF16, .attention_cost = 1};
    gr_experts_price(&dense, &k, &s, 0, 2, 0, 0);
    assert_true(dense.cost.experts.products == 0);
    d.mlp = GR_MLP_EXPERTS;
    d.dense.inner = 0;
    d.experts = (gr_experts_desc){.count = 4, .top_k = 2, .inner = 4};
    gr_model_of(&s, &d);
    gr_experts_price(&w, &k, &s, 0, 2, 0, 0);
    const gr_experts_cost *c = &w.cost.experts;
    assert_true(c->products == 2 * 2 * 2 * 3 * 4 * 8 && c->gradients == 0 && c->sums == 0);
    assert_true(c->weights == 3 * 3 * 4 * 8 * 2);
    assert_true(c->rows == 4.0 / 3 && c->launches == 10);
    gr_experts_price(&w, &k, &s, 0, 4, 2, sizeof(float));
    assert_true(c->products == 2 * 4 * 2 * 3 * 4 * 8 && c->gradients == c->products);
    assert_true(c->weights == 2 * 3 * 3 * 4 * 8 * 2 && c->sums == 2 * 2 * 3 * 3 * 4 * 8 * 4);
    assert_true(c->rows == 4.0 / 3 && c->launches == 2 * 14);
    d.experts.shared_inner = 4; /* of which every token has one */
    gr_model_of(&s, &d);
    const double chosen = c->products;
    gr_experts_price(&w, &k, &s, 0, 4, 2, sizeof(float));
    assert_true(c->products == 1.5 * chosen && c->rows == 4.0 / 3 && c->launches == 2 * 28);
    gr_layer_cost(&w, &k, &s, 0, 4, 4, 1); /* attention and the router's logits are the layer's */
    assert_true(w.cost.flops == 2 * 4 * ((8 + 4 + 4) * 8 + 8 * 8 + 4 * 8));
    d.experts.shared_inner = 0;
    d.experts.holders = 2; /* each with 2 of them, which 4 tokens leave out with the chance 1/16 */
    gr_model_of(&s, &d);
    gr_experts_price(&w, &k, &s, 0, 2, 0, 0);
    assert_true(c->products == 2 * 2 * 2 * 3 * 4 * 8 && c->weights == 3 * 1.875 * 4 * 8 * 2);
    assert_true(c->rows == 4.0 / 1.875 && c->launches == 2 * 10);
}

static double launches(const gr_model_shape *s, double times)
{
    const gr_kernels k = {.dtype = GR_BF16, .attention_cost = 1};
    gr_task w = {0};
    gr_layer_cost(&w, &k, s, 0, 8, 8, times);
    return w.cost.launches;
}

/* Roundings that are kernels of their own. */
static void test_what_roundings_to_fp8_take(void **state)
{
    (void)state;
    gr_model_shape s = {.hidden = 256, .layers = 1};
    gr_layer_desc d = gr_layer_plain(2, 1, 128, 256);
    gr_model_of(&s, &d);
    assert_true(launches(&s, 1) == 0 && launches(&s, 3) == 0);
    s.fp8 = true;
    assert_true(launches(&s, 1) == 0 && launches(&s, 3) == 4);
    s.fp8_gradients = true;
    assert_true(launches(&s, 1) == 0 && launches(&s, 3) == 12);
    d.attention.gate = true;
    gr_model_of(&s, &d);
    assert_true(launches(&s, 1) == 1);
    d = gr_layer_plain(4, 1, 64, 256);
    gr_model_of(&s, &d);
    assert_true(launches(&s, 1) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences_are_taken_in_their_order_and_cuts_are_even),
        cmocka_unit_test(test_the_longest_come_first_where_asked),
        cmocka_unit_test(test_one_length_gives_equal_micro_batches),
        cmocka_unit_test(test_ranks_of_a_group_share_the_tokens),
        cmocka_unit_test(test_responses_of_a_prompt_read_it_together),
        cmocka_unit_test(test_what_sharing_saves),
        cmocka_unit_test(test_what_experts_take),
        cmocka_unit_test(test_what_roundings_to_fp8_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
