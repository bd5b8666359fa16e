#include "runtime/run/executor.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "tests/unit/test.h"

/* A plan made by hand: one path, entries and steps added one at a time. */
struct made {
    gr_plan plan;
    gr_entry ledger[32];
    gr_step steps[64];
    gr_diag d;
};

static struct made *made_new(void)
{
    struct made *m = gr_calloc(1, sizeof(*m));
    m->plan.arena = gr_arena_new();
    m->plan.ledger = m->ledger;
    m->plan.paths[GR_PATH_STEADY].steps = m->steps;
    return m;
}

static void made_free(struct made *m)
{
    gr_arena_free(m->plan.arena);
    gr_diag_release(&m->d);
    free(m);
}

static uint32_t entry(struct made *m, gr_place place, uint64_t offset, uint64_t bytes, uint32_t first,
                      uint32_t last)
{
    m->ledger[m->plan.n_ledger] = (gr_entry){.what = gr_arena_printf(m->plan.arena, "e%u", m->plan.n_ledger),
                                             .place = place,
                                             .bytes = bytes,
                                             .offset = offset,
                                             .first = first,
                                             .last = last};
    uint64_t *space = place == GR_HOST ? &m->plan.host_bytes : &m->plan.arena_bytes;
    *space = GR_MAX(*space, offset + bytes);
    return m->plan.n_ledger++;
}

static gr_step *step(struct made *m, gr_step_kind kind, gr_lane lane)
{
    gr_path *p = &m->plan.paths[GR_PATH_STEADY];
    gr_step *s = &m->steps[p->n];
    *s = (gr_step){.kind = kind,
                   .lane = lane,
                   .what = gr_arena_printf(m->plan.arena, "s%u", p->n),
                   .body_last = GR_NONE};
    p->n++;
    return s;
}

static void add(struct made *m, uint32_t **list, uint32_t *n, uint32_t value)
{
    uint32_t *longer = gr_arena_alloc(m->plan.arena, (*n + 1) * sizeof(*longer));
    if (*n) memcpy(longer, *list, *n * sizeof(*longer));
    longer[(*n)++] = value;
    *list = longer;
}

static void after(struct made *m, gr_step *s, uint32_t i)
{
    add(m, &s->after, &s->n_after, i);
}

static void reads(struct made *m, gr_step *s, uint32_t e)
{
    add(m, &s->reads, &s->n_reads, e);
}

static void writes(struct made *m, gr_step *s, uint32_t e)
{
    add(m, &s->writes, &s->n_writes, e);
}

static gr_step *loop(struct made *m, uint32_t body, uint32_t trips)
{
    gr_step *s = step(m, GR_STEP_LOOP, GR_LANE_COMPUTE);
    s->body_last = m->plan.paths[GR_PATH_STEADY].n - 1 + body;
    s->trips_max = trips;
    return s;
}

/* What happened: one record an execution, in order of their begins. */
struct record {
    uint32_t step;
    unsigned begin, end;
};

struct scene {
    const gr_plan *plan;
    gr_executor *e;
    struct record records[4096];
    _Atomic unsigned n, clock;
    unsigned more_calls[64];
    uint32_t fail_at, trips; /* an agreed loop makes `trips` trips */
    const char *skipped;
    bool jitter;
    gr_status (*body)(struct scene *, uint32_t i);
};

static gr_status run(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d)
{
    struct scene *c = user;
    (void)path;
    assert_non_null(q);
    unsigned k = atomic_fetch_add(&c->n, 1);
    c->records[k] = (struct record){i, atomic_fetch_add(&c->clock, 1), 0};
    if (c->jitter && (k * 2654435761u) >> 30 == 0) sched_yield();
    if (c->jitter && (k * 2654435761u) >> 28 == 15) nanosleep(&(struct timespec){0, 30000}, NULL);
    gr_status st = c->body ? c->body(c, i) : GR_OK;
    if (i == c->fail_at) st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "step %u broke", i);
    c->records[k].end = atomic_fetch_add(&c->clock, 1);
    return st;
}

static bool more(void *user, gr_path_id path, uint32_t i, uint32_t trip)
{
    struct scene *c = user;
    (void)path;
    c->more_calls[i]++;
    return trip < c->trips;
}

static bool skip_step(void *user, gr_path_id path, uint32_t i)
{
    struct scene *c = user;
    return c->skipped && !strcmp(c->skipped, c->plan->paths[path].steps[i].node);
}

static gr_executor *executor_of(struct made *m, struct scene *c, bool poison)
{
    const gr_exec_hooks hooks = {c, run, more, skip_step};
    const gr_exec_options o = {.threads = 1, .poison = poison};
    gr_executor *e = NULL;
    assert_int_equal(gr_executor_new(&e, &m->plan, &hooks, &o, &m->d), GR_OK);
    c->e = e;
    c->plan = &m->plan;
    return e;
}

static struct scene *scene_new(void)
{
    struct scene *c = gr_calloc(1, sizeof(*c));
    c->fail_at = GR_NONE;
    return c;
}

/* ---- copies -------------------------------------------------------------------------------------------- */

enum { COPY = 1 << 20 };

static gr_status add_one(struct scene *c, uint32_t i)
{
    (void)i;
    float *x = gr_executor_address(c->e, 1);
    for (size_t k = 0; k < COPY / sizeof(*x); k++) x[k] += 1;
    return GR_OK;
}

/* host -> device on one lane, + 1 on compute, device -> host on another */
static struct made *round_trip(void)
{
    struct made *m = made_new();
    uint32_t host = entry(m, GR_HOST, 256, COPY, 0, 2), dev = entry(m, GR_DEVICE, 512, COPY, 0, 2);
    gr_step *s = step(m, GR_STEP_LOAD, GR_LANE_H2D);
    s->bytes = COPY;
    reads(m, s, host);
    writes(m, s, dev);
    s = step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    after(m, s, 0);
    writes(m, s, dev);
    s = step(m, GR_STEP_OFFLOAD, GR_LANE_D2H);
    s->bytes = COPY;
    after(m, s, 1);
    reads(m, s, dev);
    writes(m, s, host);
    return m;
}

static void test_copies_go_to_the_device_and_back(void **state)
{
    (void)state;
    for (int poison = 0; poison < 2; poison++) {
        struct made *m = round_trip();
        struct scene *c = scene_new();
        c->body = add_one;
        gr_executor *e = executor_of(m, c, poison);
        float *host = gr_executor_address(e, 0);
        for (size_t k = 0; k < COPY / sizeof(*host); k++) host[k] = (float)k;
        for (int i = 0; i < 20; i++) assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
        for (size_t k = 0; k < COPY / sizeof(*host); k++) assert_true(host[k] == (float)k + 20);
        if (poison) assert_int_equal(gr_executor_touched(e).most, COPY);
        gr_executor_free(e);
        made_free(m);
        free(c);
    }
}

/* Sanitizers keep memory of their own, so the system's count is only near there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static gr_status touch_half(struct scene *c, uint32_t i)
{
    (void)i;
    memset(gr_executor_address(c->e, 0), 1, 32 << 20);
    memset(gr_executor_address(c->e, 1), 1, 16 << 20);
    return GR_OK;
}

static void test_the_measured_peak_is_what_was_touched_on_the_device(void **state)
{
    (void)state;
#ifdef SANITIZED
    skip();
#endif
    struct made *m = made_new();
    struct scene *c = scene_new();
    entry(m, GR_DEVICE, 0, 64 << 20, 0, 0);
    entry(m, GR_HOST, 0, 64 << 20, 0, 0);
    step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    c->body = touch_half;
    gr_executor *e = executor_of(m, c, false);
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    assert_close((double)gr_executor_measured_peak(e), 32 << 20, 3 << 20, 0); /* a huge page, and the heap */
    assert_int_equal(gr_executor_touched(e).most, 0);
    gr_executor_free(e);
    made_free(m);
    free(c);
}

/* Two steps at the plan's peak, the second of which writes less; and one below it that writes all it has. */
static gr_status touch_some(struct scene *c, uint32_t i)
{
    char *a = gr_executor_address(c->e, 0), *b = gr_executor_address(c->e, 1);
    if (i == 0) a[0] = a[9 * 256 + 255] = 1; /* up to the tenth unit, with holes */
    if (i == 1) b[0] = 1;
    if (i == 3) memset(gr_executor_address(c->e, 2), 1, 4096);
    return GR_OK;
}

static void test_poison_tells_how_much_of_the_peak_was_touched(void **state)
{
    (void)state;
    struct made *m = made_new();
    struct scene *c = scene_new();
    uint32_t a = entry(m, GR_DEVICE, 0, 4096, 0, 2), b = entry(m, GR_DEVICE, 4096, 4096, 0, 2);
    uint32_t after_them = entry(m, GR_DEVICE, 0, 4096, 3, 3);
    entry(m, GR_HOST, 0, 4096, 0, 3);
    for (int i = 0; i < 4; i++) step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    gr_step *steps = m->plan.paths[GR_PATH_STEADY].steps;
    writes(m, &steps[0], a);
    writes(m, &steps[1], b);
    writes(m, &steps[3], after_them);
    c->body = touch_some;
    gr_executor *e = executor_of(m, c, true);
    assert_int_equal(gr_executor_touched(e).step, GR_NONE);
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    gr_touched t = gr_executor_touched(e);
    assert_int_equal(t.most, 4096);
    assert_int_equal(t.step, 1);
    assert_int_equal(t.planned, 8192);
    assert_int_equal(t.marks, 11 * 256);
    assert_int_equal(t.touched, 3 * 256);
    assert_true(t.entry[a].live && t.entry[b].live && !t.entry[after_them].live && !t.entry[3].live);
    assert_int_equal(t.entry[a].mark, 10 * 256);
    assert_int_equal(t.entry[a].touched, 2 * 256);
    assert_int_equal(t.entry[b].mark, 256);
    gr_executor_free(e);
    made_free(m);
    free(c);
}

/* ---- loops, skipping, failing -------------------------------------------------------------------------- */

static unsigned executions(const struct scene *c, uint32_t i)
{
    unsigned n = 0;
    for (unsigned k = 0; k < c->n; k++) n += c->records[k].step == i;
    return n;
}

/* loop 0 (agreed) { run 1, loop 2 (3 trips) { run 3 host, run 4 }, run 5 }, run 6 */
static struct made *nested(void)
{
    struct made *m = made_new();
    loop(m, 5, 10)->agreed = true;
    step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    loop(m, 2, 3);
    step(m, GR_STEP_RUN, GR_LANE_HOST);
    step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    step(m, GR_STEP_RUN, GR_LANE_H2D)->node = "n";
    step(m, GR_STEP_RUN, GR_LANE_D2H);
    return m;
}

static void test_loops_run_the_trips_agreed_and_counted(void **state)
{
    (void)state;
    for (int poison = 0; poison < 2; poison++)
        for (uint32_t trips = 0; trips < 12; trips += 4) {
            struct made *m = nested();
            struct scene *c = scene_new();
            c->trips = trips;
            gr_executor *e = executor_of(m, c, poison);
            assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
            assert_int_equal(executions(c, 1), trips);
            assert_int_equal(executions(c, 3), 3 * trips);
            assert_int_equal(executions(c, 4), 3 * trips);
            assert_int_equal(executions(c, 5), trips);
            assert_int_equal(executions(c, 6), 1);
            assert_int_equal(c->more_calls[0], trips + 1); /* the last says no */
            gr_executor_free(e);
            made_free(m);
            free(c);
        }
}

static void test_an_agreed_loop_never_makes_more_than_its_trips(void **state)
{
    (void)state;
    struct made *m = nested();
    struct scene *c = scene_new();
    c->trips = 1000;
    gr_executor *e = executor_of(m, c, false);
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    assert_int_equal(executions(c, 5), 10);
    assert_int_equal(c->more_calls[0], 10);
    gr_executor_free(e);
    made_free(m);
    free(c);
}

static _Atomic bool passed; /* steps 2 and 4 of the next test have run */

/* A trip of the loop does not end before the copies on both sides of it have been made. */
static gr_status until_passed(struct scene *c, uint32_t i)
{
    (void)c;
    if (i == 4) passed = true;
    for (int k = 0; i == 3 && !passed && k < 2000; k++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    return i != 3 || passed ? GR_OK : GR_E_FAILED;
}

/* step 0 compute, step 1 h2d, loop 2 { step 3 compute }, step 4 h2d, step 5 compute after 4: the lane h2d has
 * no step in the loop and goes on while it runs. */
static void test_lanes_without_a_step_in_a_loop_pass_it_by(void **state)
{
    (void)state;
    struct made *m = made_new();
    struct scene *c = scene_new();
    step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    step(m, GR_STEP_RUN, GR_LANE_H2D);
    loop(m, 1, 3);
    step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    step(m, GR_STEP_RUN, GR_LANE_H2D);
    after(m, step(m, GR_STEP_RUN, GR_LANE_COMPUTE), 4);
    c->body = until_passed;
    gr_executor *e = executor_of(m, c, false);
    for (int round = 0; round < 3; round++) {
        passed = false;
        assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    }
    assert_int_equal(executions(c, 3), 9);
    /* and where it waits for the loop, it does not */
    after(m, &m->steps[4], 2);
    m->steps[4].lane = GR_LANE_D2H;
    gr_executor_free(e);
    c->body = NULL;
    c->n = 0;
    e = executor_of(m, c, false);
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    assert_int_equal(c->n, 7);
    for (unsigned k = 0; k < c->n; k++)
        if (c->records[k].step == 3) assert_true(c->records[k].end < c->records[5].begin);
    gr_executor_free(e);
    made_free(m);
    free(c);
}

static void test_a_skipped_node_does_no_work_and_moves_nothing(void **state)
{
    (void)state;
    struct made *m = round_trip();
    struct scene *c = scene_new();
    for (int i = 0; i < 3; i++) m->steps[i].node = "n";
    c->skipped = "n";
    gr_executor *e = executor_of(m, c, false);
    memset(gr_executor_address(e, 0), 7, COPY);
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    assert_int_equal(c->n, 0);
    assert_int_equal(*(char *)gr_executor_address(e, 1), 0);
    c->skipped = NULL; /* asked again for each path */
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    assert_int_equal(c->n, 1);
    assert_int_equal(*(char *)gr_executor_address(e, 1), 7);
    gr_executor_free(e);
    made_free(m);
    free(c);
}

static void test_a_failing_step_stops_all_lanes_and_the_next_path_runs(void **state)
{
    (void)state;
    for (uint32_t fail_at = 3; fail_at < 7; fail_at++) {
        struct made *m = nested();
        struct scene *c = scene_new();
        c->trips = 2;
        c->fail_at = fail_at;
        after(m, &m->steps[6], 0);
        gr_executor *e = executor_of(m, c, false);
        assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_E_FAILED);
        assert_int_equal(m->d.n, 1);
        assert_int_equal(executions(c, fail_at), 1);
        if (fail_at < 6) assert_int_equal(executions(c, 6), 0);
        c->n = 0;
        c->fail_at = GR_NONE;
        assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
        assert_int_equal(executions(c, 6), 1);
        gr_executor_free(e);
        made_free(m);
        free(c);
    }
}

static void test_plans_that_could_not_run_are_refused(void **state)
{
    (void)state;
    for (int what = 0; what < 6; what++) {
        struct made *m = nested();
        struct scene *c = scene_new();
        const gr_exec_hooks hooks = {c, run, more, skip_step};
        const gr_exec_options o = {.threads = 1};
        gr_executor *e = NULL;
        if (what == 0) after(m, &m->steps[1], 6);
        if (what == 1) m->steps[2].body_last = 6;
        if (what == 2) reads(m, &m->steps[1], 0);
        if (what == 3) m->steps[6].kind = GR_STEP_GATHER;
        if (what == 4) m->steps[6] = (gr_step){.kind = GR_STEP_LOAD, .what = "l", .bytes = 1};
        if (what == 5) {
            entry(m, GR_DEVICE, 0, 256, 0, 6);
            m->plan.arena_bytes = 255;
        }
        assert_int_equal(gr_executor_new(&e, &m->plan, &hooks, &o, &m->d), GR_E_INVALID);
        assert_int_equal(m->d.n_errors, 1);
        assert_null(e);
        made_free(m);
        free(c);
    }
}

/* ---- poison -------------------------------------------------------------------------------------------- */

static size_t stray_offset;

static gr_status write_stray(struct scene *c, uint32_t i)
{
    char *declared = gr_executor_address(c->e, 0);
    declared[0] = (char)(i + 1);
    if (i == 1) declared[stray_offset] ^= 1;
    return GR_OK;
}

static void test_poison_catches_writes_that_were_not_declared(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        const char *message; /* NULL: declared */
    } cases[] = {
        {100, NULL},
        {256, "step 1 's1' wrote to byte 256 of the arena, where nothing is live"},
        {1023, "step 1 's1' wrote to byte 1023 of the arena, where nothing is live"},
        {512, "step 1 's1' changed 'e1', which it does not declare to write"},
    };
    for (size_t k = 0; k < GR_LEN(cases); k++) {
        struct made *m = made_new();
        struct scene *c = scene_new();
        entry(m, GR_DEVICE, 0, 256, 0, 2);
        entry(m, GR_DEVICE, 512, 256, 0, 2); /* live all the time */
        entry(m, GR_DEVICE, 768, 256, 2, 0); /* round the end: dead in step 1 */
        for (int i = 0; i < 3; i++) writes(m, step(m, GR_STEP_RUN, GR_LANE_COMPUTE), 0);
        reads(m, &m->steps[1], 1);
        stray_offset = cases[k].offset;
        c->body = write_stray;
        gr_executor *e = executor_of(m, c, true);
        gr_status st = gr_executor_path(e, GR_PATH_STEADY, &m->d);
        assert_int_equal(st, cases[k].message ? GR_E_FAILED : GR_OK);
        if (cases[k].message) assert_string_equal(m->d.messages[0].text, cases[k].message);
        gr_executor_free(e);
        made_free(m);
        free(c);
    }
}

static gr_status expect_memory_check(struct scene *c, uint32_t i)
{
    char *x = gr_executor_address(c->e, 0);
    bool empty = x[0] == 0x5A;
    x[0] = 1;
    return (i == 2 || i == 4) == empty ? GR_OK : GR_E_FAILED;
}

static void test_poison_empties_what_was_released_or_resumed(void **state)
{
    (void)state;
    struct made *m = made_new();
    struct scene *c = scene_new();
    entry(m, GR_DEVICE, 0, 256, 0, 5); /* always live: only the steps empty it */
    static const gr_step_kind kinds[] = {GR_STEP_RUN,    GR_STEP_RELEASE, GR_STEP_RUN,
                                         GR_STEP_RESUME, GR_STEP_RUN,     GR_STEP_RUN};
    for (size_t i = 0; i < GR_LEN(kinds); i++) writes(m, step(m, kinds[i], GR_LANE_COMPUTE), 0);
    c->body = expect_memory_check;
    gr_executor *e = executor_of(m, c, true);
    memset(gr_executor_address(e, 0), 3, 256);
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
    gr_executor_free(e);
    made_free(m);
    free(c);
}

/* ---- random plans -------------------------------------------------------------------------------------- */

static uint32_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static void random_steps(struct made *m, uint32_t n, int depth)
{
    gr_path *p = &m->plan.paths[GR_PATH_STEADY];
    while (n) {
        uint32_t i = p->n, body = 0;
        gr_step *s;
        if (depth < 3 && n > 2 && !below(4)) {
            body = 1 + below(n - 1);
            s = loop(m, body, below(4));
            s->agreed = below(2);
        } else {
            s = step(m, GR_STEP_RUN, (gr_lane)below(GR_N_LANES));
            if (!below(12)) s->node = "n";
        }
        for (uint32_t k = i ? below(3) : 0; k; k--) after(m, s, below(i));
        if (body) random_steps(m, body, depth + 1);
        n -= body + 1;
    }
}

/* What must happen, in the order of one thread: executions, and which lanes meet before which of them. */
struct expected {
    uint32_t step[4096], n, n_meets;
    struct {
        uint32_t before;
        unsigned lanes;
    } meets[8192];
};

static void expect(const struct made *m, const struct scene *c, uint32_t first, uint32_t last,
                   struct expected *x)
{
    for (uint32_t i = first; i <= last && i != GR_NONE; i++) {
        const gr_step *s = &m->steps[i];
        if (s->kind != GR_STEP_LOOP) {
            if (!(s->node && c->skipped)) x->step[x->n++] = i;
            continue;
        }
        unsigned lanes = 1u << GR_LANE_COMPUTE;
        for (uint32_t k = i + 1; k <= s->body_last; k++)
            if (m->steps[k].kind == GR_STEP_RUN) lanes |= 1u << m->steps[k].lane;
        uint32_t trips = s->agreed ? GR_MIN(s->trips_max, c->trips) : s->trips_max;
        for (uint32_t t = 0; t < trips; t++) {
            expect(m, c, i + 1, s->body_last, x);
            assert_true(x->n_meets < GR_LEN(x->meets));
            x->meets[x->n_meets].before = x->n;
            x->meets[x->n_meets++].lanes = lanes;
        }
        i = s->body_last;
    }
}

static bool within(const struct made *m, uint32_t a, uint32_t i)
{
    return i == a || (m->steps[a].kind == GR_STEP_LOOP && i > a && i <= m->steps[a].body_last);
}

/* Step a, or the outermost loop around it that i is not in. */
static uint32_t seen_from(const struct made *m, uint32_t a, uint32_t i)
{
    for (uint32_t l = 0; l < a; l++)
        if (within(m, l, a) && !within(m, l, i)) return l;
    return a;
}

static bool must_precede(const struct made *m, const struct expected *x, uint32_t k, uint32_t j)
{
    const gr_step *a = &m->steps[x->step[k]], *b = &m->steps[x->step[j]];
    if (a->lane == b->lane) return true;
    const unsigned both = 1u << a->lane | 1u << b->lane;
    for (uint32_t t = 0; t < x->n_meets; t++)
        if (x->meets[t].before > k && x->meets[t].before <= j && (x->meets[t].lanes & both) == both)
            return true;
    for (uint32_t t = 0; t < b->n_after; t++) {
        uint32_t target = seen_from(m, b->after[t], x->step[j]);
        if (within(m, target, x->step[k]) && !within(m, target, x->step[j])) return true;
    }
    return false;
}

/* Executions of one step follow each other, so the k-th expected one of a step is its k-th record. */
static void assert_order(const struct made *m, const struct expected *x, const struct scene *c)
{
    static const struct record *of[4096];
    assert_int_equal(c->n, x->n);
    for (uint32_t i = 0; i < m->plan.paths[GR_PATH_STEADY].n; i++)
        for (uint32_t k = 0, r = 0; k < x->n; k++) {
            if (x->step[k] != i) continue;
            while (r < c->n && c->records[r].step != i) r++;
            assert_true(r < c->n);
            of[k] = &c->records[r++];
        }
    for (uint32_t j = 0; j < x->n; j++)
        for (uint32_t k = 0; k < j; k++)
            if (must_precede(m, x, k, j) && !(of[k]->end < of[j]->begin))
                fail_msg("step %u ran before step %u was done", x->step[j], x->step[k]);
}

static void test_thousands_of_random_plans_run_in_an_order_that_is_right(void **state)
{
    (void)state;
    alarm(100); /* a deadlock fails */
    static struct expected x;
    for (uint32_t seed = 0; seed < 3000; seed++) {
        random_state = seed * 7919 + 1;
        struct made *m = made_new();
        struct scene *c = scene_new();
        random_steps(m, 1 + below(24), 0);
        c->trips = below(4);
        c->jitter = true;
        c->skipped = below(2) ? "n" : NULL;
        gr_executor *e = executor_of(m, c, below(8) == 0);
        for (int round = 0; round < 2; round++) {
            c->n = 0;
            memset(&x, 0, sizeof(x));
            expect(m, c, 0, m->plan.paths[GR_PATH_STEADY].n - 1, &x);
            assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_OK);
            assert_order(m, &x, c);
        }
        gr_executor_free(e);
        made_free(m);
        free(c);
    }
    alarm(0);
}

/* ---- a device that runs work later, and is lost ---- */

static struct {
    _Atomic bool broken;
    _Atomic int ranges, begun; /* open ranges; steps that have run */
    uint32_t break_at;         /* the step that breaks it */
    bool notices, innocent;    /* the step fails itself; it fails and breaks nothing */
} later;

static gr_status later_told(gr_queue *q, const char *seen, gr_diag *d)
{
    if (!later.broken) return GR_OK;
    q->at.told = true;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "%s: lost, %s", q->at.step, seen ? seen : "noticed");
}

static gr_status later_check(gr_queue *q, gr_diag *d)
{
    return later_told(q, NULL, d);
}

static gr_status later_queue(gr_device *dev, gr_queue *q, bool host_lane, gr_diag *d)
{
    (void)host_lane, (void)d;
    q->device = dev;
    return GR_OK;
}

static void later_queue_close(gr_queue *q)
{
    q->device = NULL;
}

static void later_event(gr_queue *q, uint32_t event)
{
    (void)q, (void)event;
}

static void later_range(const char *name)
{
    later.ranges += name ? 1 : -1;
}

static gr_status later_open(gr_device **out, const gr_device_needs *needs, gr_diag *d);

static void later_close(gr_device *dev)
{
    gr_device_cpu.close(dev);
}

static uint64_t later_used(gr_device *dev)
{
    return dev->arena.bytes + 77;
}

static const gr_device_type device_later = {.name = "later",
                                            .open = later_open,
                                            .close = later_close,
                                            .used = later_used,
                                            .queue_open = later_queue,
                                            .queue_close = later_queue_close,
                                            .mark = later_event,
                                            .follow = later_event,
                                            .finish = later_check,
                                            .check = later_check,
                                            .lost = later_told,
                                            .range = later_range};

static gr_status later_open(gr_device **out, const gr_device_needs *needs, gr_diag *d)
{
    gr_status st = gr_device_cpu.open(out, needs, d);
    if (!st) (*out)->type = &device_later;
    return st;
}

static gr_status later_run(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d)
{
    (void)user, (void)path, (void)q;
    later.begun++;
    if (i != later.break_at) return GR_OK;
    later.broken = !later.innocent;
    if (!later.notices) return GR_OK;
    gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "product: broken");
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "sum: broken too");
}

/* Three steps on two lanes, one after the other; the path's messages. */
static void path_breaks(const char *first, const char *second)
{
    struct made *m = made_new();
    entry(m, GR_DEVICE, 0, 4096, 0, 2);
    step(m, GR_STEP_RUN, GR_LANE_COMPUTE);
    for (uint32_t i = 0; i < 2; i++) after(m, step(m, GR_STEP_RUN, i ? GR_LANE_COMPUTE : GR_LANE_H2D), i);
    gr_executor *e = NULL;
    const gr_exec_hooks hooks = {.run = later_run};
    later.broken = false;
    later.begun = 0;
    assert_int_equal(
        gr_executor_new(&e, &m->plan, &hooks, &(gr_exec_options){.device = &device_later}, &m->d), GR_OK);
    assert_int_equal(gr_executor_overhead(e), 77);
    assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_E_FAILED);
    assert_int_equal(later.begun, later.break_at + 1);
    assert_int_equal(later.ranges, 0);
    assert_int_equal(m->d.n, 1 + (second != NULL));
    assert_string_equal(m->d.messages[0].text, first);
    if (second) assert_string_equal(m->d.messages[1].text, second);
    if (later.broken) { /* nothing more is begun on it */
        assert_int_equal(gr_executor_path(e, GR_PATH_STEADY, &m->d), GR_E_FAILED);
        assert_int_equal(later.begun, later.break_at + 1);
        assert_int_equal(m->d.n, 2);
        assert_string_equal(m->d.messages[1].text, "s0: lost, noticed");
    }
    gr_executor_free(e);
    made_free(m);
}

static void test_a_lost_device_is_told_once_by_the_step_that_noticed(void **state)
{
    (void)state;
    for (later.break_at = 0; later.break_at < 3; later.break_at++) {
        const char *const by_check[] = {"s0: lost, noticed", "s1: lost, noticed", "s2: lost, noticed"};
        const char *const by_step[] = {"s0: lost, product: broken", "s1: lost, product: broken",
                                       "s2: lost, product: broken"};
        later.notices = later.innocent = false;
        path_breaks(by_check[later.break_at], NULL);
        later.notices = true;
        path_breaks(by_step[later.break_at], NULL);
        later.innocent = true; /* a step that fails for a reason of its own says it itself */
        path_breaks("product: broken", "sum: broken too");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_go_to_the_device_and_back),
        cmocka_unit_test(test_the_measured_peak_is_what_was_touched_on_the_device),
        cmocka_unit_test(test_loops_run_the_trips_agreed_and_counted),
        cmocka_unit_test(test_an_agreed_loop_never_makes_more_than_its_trips),
        cmocka_unit_test(test_lanes_without_a_step_in_a_loop_pass_it_by),
        cmocka_unit_test(test_a_skipped_node_does_no_work_and_moves_nothing),
        cmocka_unit_test(test_a_failing_step_stops_all_lanes_and_the_next_path_runs),
        cmocka_unit_test(test_plans_that_could_not_run_are_refused),
        cmocka_unit_test(test_poison_tells_how_much_of_the_peak_was_touched),
        cmocka_unit_test(test_poison_catches_writes_that_were_not_declared),
        cmocka_unit_test(test_poison_empties_what_was_released_or_resumed),
        cmocka_unit_test(test_a_lost_device_is_told_once_by_the_step_that_noticed),
        cmocka_unit_test(test_thousands_of_random_plans_run_in_an_order_that_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
