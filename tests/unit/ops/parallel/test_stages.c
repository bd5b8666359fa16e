/* Units of work in a ring of ranks: every one passes every stage once, what comes is what a neighbour has
 * made in the trip before, and no rank holds more than is planned. */
#include "ops/parallel/stages.h"

#include "tests/unit/test.h"

enum { RANKS_MAX = 8, MICRO_MAX = 24, UNITS_MAX = 256 };

/* Micro-batch m has m + 1 tokens. What a rank has done in the current trip and in the one before. */
typedef struct way {
    gr_stage_flow flow;
    uint32_t next, own;
    uint32_t micro, before;       /* of the current micro-batch, MICRO_MAX: none; of the trip before */
    bool works, worked;           /* with tokens */
    uint32_t chunk, chunk_before; /* of the current unit */
} way;

typedef struct ring {
    gr_stages s;
    uint32_t micro_batches;
    way forward[RANKS_MAX], back[RANKS_MAX];
    uint32_t done[RANKS_MAX][2], held[RANKS_MAX], most[RANKS_MAX]; /* units with tokens */
    uint32_t reached[2][MICRO_MAX];                                /* stages that have passed it */
} ring;

static void step(ring *r, uint32_t rank, uint32_t trip, bool back)
{
    way *w = back ? &r->back[rank] : &r->forward[rank];
    w->before = w->micro, w->chunk_before = w->chunk, w->worked = w->works;
    const bool ends =
        w->worked && (back ? !rank && !w->chunk : rank + 1 == r->s.ranks && w->chunk + 1 == r->s.chunks);
    gr_stage_flow_next(&w->flow, &r->s, rank, trip, back, &w->next, w->own);
    assert_int_equal(w->flow.out, w->worked && !ends ? w->before + 1 : 0);
    w->works = w->flow.works && w->next < r->micro_batches;
    w->micro = w->works ? w->next : MICRO_MAX;
    w->chunk = w->flow.chunk;
    w->own = w->works ? w->next + 1 : 0;
    if (w->works) assert_int_equal(w->flow.micro, w->next);
    if (w->works) w->next++;
}

/* What comes to a unit is of the same micro-batch, from the stage before it, in the trip before. */
static void check_comes(const ring *r, uint32_t rank, bool back)
{
    const way *w = back ? &r->back[rank] : &r->forward[rank];
    const uint32_t ranks = r->s.ranks, from = back ? (rank + 1) % ranks : (rank + ranks - 1) % ranks,
                   stage = w->chunk * ranks + rank;
    const bool begins = back ? stage + 1 == r->s.n : !stage;
    const way *x = back ? &r->back[from] : &r->forward[from];
    if (!w->works || begins) return;
    assert_true(x->worked);
    assert_int_equal(x->before, w->micro);
    assert_int_equal(x->chunk_before * ranks + from, back ? stage + 1 : stage - 1);
}

static void count(ring *r, uint32_t rank)
{
    const way *f = &r->forward[rank], *b = &r->back[rank];
    if (f->works) {
        assert_int_equal(r->reached[0][f->micro]++, f->chunk * r->s.ranks + rank);
        r->done[rank][0]++;
        r->held[rank]++;
    }
    r->most[rank] = GR_MAX(r->most[rank], r->held[rank]);
    if (!b->works) return;
    const uint32_t stage = b->chunk * r->s.ranks + rank;
    assert_int_equal(r->reached[1][b->micro]++, r->s.n - 1 - stage);
    assert_true(r->reached[0][b->micro] > stage); /* it has come forward */
    r->done[rank][1]++;
    r->held[rank]--;
}

static void run(uint32_t ranks, uint32_t chunks, uint32_t micro_batches, bool back)
{
    ring r = {.s = {.n = ranks * chunks, .ranks = ranks, .chunks = chunks}, .micro_batches = micro_batches};
    const uint32_t trips = gr_stages_trips(&r.s, micro_batches, back);
    uint32_t full = 0, last = 0;
    for (uint32_t i = 0; i < ranks; i++) r.forward[i].micro = r.back[i].micro = MICRO_MAX;
    for (uint32_t trip = 0; trip < trips; trip++) {
        bool forward = false, backward = false;
        for (uint32_t i = 0; i < ranks; i++) {
            step(&r, i, trip, false);
            if (back) step(&r, i, trip, true);
        }
        for (uint32_t i = 0; i < ranks; i++) {
            check_comes(&r, i, false);
            if (back) check_comes(&r, i, true);
            count(&r, i);
            forward = forward || r.forward[i].works;
            backward = backward || r.back[i].works;
        }
        full += forward;
        if (forward || backward) last = trip;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        assert_int_equal(r.done[i][0], micro_batches * chunks);
        assert_int_equal(r.done[i][1], back ? micro_batches * chunks : 0);
        if (back) assert_true(r.most[i] <= gr_stages_held(&r.s, micro_batches));
    }
    assert_int_equal(last + 1, trips);                              /* there is none too many */
    assert_true(full <= gr_stages_full_trips(&r.s, micro_batches)); /* of these are the empty units, too */
    if (micro_batches % ranks) return;
    assert_int_equal(full, gr_stages_full_trips(&r.s, micro_batches));
    assert_int_equal(full, micro_batches * chunks + ranks - 1);
    if (back && micro_batches > ranks) assert_int_equal(r.most[0], ranks * chunks + ranks - 1);
}

static void test_units_meet_their_neighbours(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks++)
        for (uint32_t chunks = 2; chunks <= 4; chunks++)
            for (uint32_t m = 1; m < MICRO_MAX; m++)
                for (int back = 0; back < 2; back++) run(ranks, chunks, m, back);
}

/* By hand: two ranks of two chunks, four micro-batches. */
static void test_the_order_of_units(void **state)
{
    (void)state;
    static const uint32_t chunk[2][8] = {{0, 0, 1, 1, 0, 0, 1, 1}, {1, 1, 0, 0, 1, 1, 0, 0}},
                          micro[8] = {0, 1, 0, 1, 2, 3, 2, 3},
                          unit[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {2, 3, 0, 1, 6, 7, 4, 5}};
    const gr_stages s = {.n = 4, .ranks = 2, .chunks = 2};
    for (uint32_t rank = 0; rank < 2; rank++)
        for (int back = 0; back < 2; back++) {
            gr_stage_flow f = {0};
            const uint32_t behind = back ? 4 - rank : rank;
            uint32_t next = 0;
            for (uint32_t trip = 0; trip < behind + 8; trip++) {
                gr_stage_flow_next(&f, &s, rank, trip, back, &next, 1);
                assert_int_equal(f.works, trip >= behind);
                if (!f.works) continue;
                assert_int_equal(next++, micro[trip - behind]);
                assert_int_equal(f.micro, micro[trip - behind]);
                assert_int_equal(f.chunk, chunk[back][trip - behind]);
                assert_int_equal(f.unit, unit[back][trip - behind]);
            }
        }
    assert_int_equal(gr_stages_trips(&s, 4, false), 9);
    assert_int_equal(gr_stages_trips(&s, 4, true), 12);
    assert_int_equal(gr_stages_full_trips(&s, 4), 9);
    assert_int_equal(gr_stages_trips(&s, 3, true), 11); /* the last round's second unit of a chunk is empty */
    assert_int_equal(gr_stages_trips(&s, 0, true), 0);
    const gr_stages plain = {.n = 4, .ranks = 4, .chunks = 1};
    assert_int_equal(gr_stages_trips(&plain, 4, true), 7);
    assert_int_equal(gr_stages_trips(&plain, 4, false), 4);
    assert_int_equal(gr_stages_full_trips(&plain, 4), 7);
    assert_int_equal(gr_stages_held(&plain, 9), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_meet_their_neighbours),
        cmocka_unit_test(test_the_order_of_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
