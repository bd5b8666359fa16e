#include "memplan/verify/verify.h"
#include "tests/unit/random_tasks.h"
#include "scheduler/search/build.h"
#include "scheduler/search/timeline.h"
#include "scheduler/report/view.h"
#include "tests/unit/plan_edit.h"
#include "tests/unit/simulate.h"
#include "tests/unit/synthetic.h"

typedef gr_tasks *build_fn(void *user, const uint32_t *level);

static void print_errors(const gr_diag *d)
{
    for (size_t i = 0; i < d->n; i++) {
        char *text = gr_message_format(&d->messages[i]);
        print_message("%s\n", text);
        free(text);
    }
}

/* Schedule, and prove what comes out. *st: whether it fits. */
static gr_plan *plan_for(build_fn *build, void *user, uint64_t budget, gr_policy policy, gr_status *st)
{
    gr_tasks_source src = {.user = user, .build = build};
    gr_schedule_options o = {
        .hardware = machine(), .policy = policy, .budget_bytes = budget, .host_budget_bytes = 1ULL << 40};
    gr_diag d;
    gr_diag_init(&d);
    gr_plan *p = NULL;
    *st = gr_schedule(&p, NULL, &src, &o, &d);
    if (*st == GR_OK) {
        gr_tasks *g = build(user, NULL);
        assert_true(p->fits && p->peak_bytes <= budget);
        if (gr_plan_verify(p, g, &d)) {
            print_errors(&d);
            fail_msg("the plan for %llu bytes is refused", (unsigned long long)budget);
        }
        gr_tasks_free(g);
    } else {
        assert_int_equal(*st, GR_E_NOFIT);
        assert_false(p->fits);
    }
    gr_diag_release(&d);
    return p;
}

static uint32_t count_kind(const gr_plan *p, gr_step_kind k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->paths[GR_PATH_STEADY].n; i++)
        n += p->paths[GR_PATH_STEADY].steps[i].kind == k;
    return n;
}

static uint32_t count_transitions(const gr_plan *p)
{
    return p->paths[GR_PATH_STEADY].n - count_kind(p, GR_STEP_RUN) - count_kind(p, GR_STEP_LOOP);
}

static void test_everything_stays_where_everything_fits(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_status st;
    gr_plan *p = plan_for(build_shape, &s, 1ULL << 40, GR_POLICY_AUTO, &st);
    assert_int_equal(st, GR_OK);
    assert_int_equal(count_transitions(p), 0);
    gr_plan_free(p);
}

/* By hand: 4 layers; weights of two models 2 x 4 MiB, moments 8 MiB, gradients 4 MiB, KV 2 MiB always; at the
 * loss 4 x 1 MiB of activations, hidden and grad 2 x 256 KiB and four columns of 4 KiB. */
static void test_the_peak_of_all_resident_is_the_sum_by_hand(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_status st;
    gr_plan *p = plan_for(build_shape, &s, 1ULL << 40, GR_POLICY_KEEP, &st);
    uint64_t always = (8 + 8 + 4 + 2) << 20, loss = (4 << 20) + 2 * (256 << 10) + 4 * 4096;
    assert_int_equal(p->arena_bytes, always + loss);
    assert_string_equal(p->paths[GR_PATH_STEADY].steps[p->peak_step].what, "update.loss");
    gr_plan_free(p);
}

static void test_keep_never_moves_anything(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_status st;
    gr_plan *p = plan_for(build_shape, &s, 10 << 20, GR_POLICY_KEEP, &st);
    assert_int_equal(st, GR_E_NOFIT);
    assert_int_equal(count_transitions(p), 0);
    gr_plan_free(p);
}

static void test_smaller_budgets_are_met_and_never_faster(void **state)
{
    (void)state;
    for (int v = 0; v < 4; v++) {
        shape s = SMALL;
        s.optional_ref = v & 1;
        s.host_reward = v & 2;
        gr_status st;
        gr_plan *p = plan_for(build_shape, &s, 1ULL << 40, GR_POLICY_AUTO, &st);
        uint64_t whole = p->peak_bytes, budget = whole, ns = p->ns;
        const uint64_t next = getenv("GR_SLOW") ? 96 : 70; /* in 100 */
        gr_plan_free(p);
        for (st = GR_OK; st == GR_OK; budget = budget * next / 100) {
            p = plan_for(build_shape, &s, budget, GR_POLICY_AUTO, &st);
            if (st == GR_OK) assert_true(gr_near_ns(p->ns) >= ns);
            if (st == GR_OK && p->peak_bytes < whole) assert_true(count_transitions(p) > 0);
            ns = GR_MAX(ns, p->ns);
            gr_plan_free(p);
        }
        assert_true(budget < whole / 3);
    }
}

/* One long work, three short ones that each change an object of their own, a long one. */
static gr_tasks *build_bursts(void *user, const uint32_t *level)
{
    (void)user, (void)level;
    gr_tasks *p = gr_tasks_new();
    gr_tasks_node(p, "n", GR_LANE_COMPUTE, false);
    for (uint32_t w = 0; w < 5; w++) {
        char name[16];
        snprintf(name, sizeof(name), "o.%u", w);
        gr_object o = {name, GR_CAT_WEIGHTS, GR_SPAN_KEEP, GR_DEVICE, 1 << 20, "m", w, 0};
        gr_use u = {w == 0 || w == 4 ? gr_tasks_temp(p, GR_CAT_WORKSPACE, GR_ALIGN, "ws.%u", w)
                                     : gr_tasks_object(p, &o),
                    w == 0 || w == 4 ? GR_WRITE : GR_UPDATE};
        gr_tasks_run(p, 0, 0, &u, 1, "w.%u", w)->cost.flops = w == 0 || w == 4 ? 1e9 : 1e6;
    }
    return p;
}

/* By hand, steps of 1 us: the long works take 1001 us, the short ones 2 us, a copy of 1 MiB at 20 GB/s
 * 53.429 us. All offloads run beside the last work. With room for all three the loads run beside the first:
 * then nothing waits. With room for two the third load waits for the first offload, which waits for its work;
 * with room for one each load waits for the offload before it, and without a unit ahead the first one for the
 * first work. */
static void test_several_copies_are_in_flight_where_memory_allows(void **state)
{
    (void)state;
    gr_tasks *g = build_bursts(NULL, NULL);
    const gr_hardware hw = machine();
    gr_analysis *f = gr_analysis_new(g, &hw);
    gr_choice come_and_go = {.stream = 1};
    gr_transfers l = {0};
    uint64_t ns[4], live[4];
    for (uint32_t room = 0; room < 4; room++) { /* in MiB; at first what it takes anyway */
        gr_transfers_make(&l, f, &come_and_go, 0);
        gr_transfers_widen(&l, f, &come_and_go, ((uint64_t)room << 20) + GR_ALIGN);
        ns[room] = l.ns;
        live[room] = l.live;
        gr_plan *p = gr_plan_pack(&l, f, NULL, (gr_apart){0, 0}, 40);
        gr_plan_finish(p, &l, f);
        char what[128];
        p->ranks = "0";
        p->budget_bytes = p->host_budget_bytes = UINT64_MAX;
        p->fits = true;
        assert_int_equal(gr_plan_verify(p, g, NULL), GR_OK);
        for (uint64_t run = 0; run < 20; run++) assert_null(simulate(p, g, run, NULL, 0, what));
        gr_plan_free(p);
    }
    uint64_t work = 2 * 1001000 + 3 * 2000, copy = 1000 + 52429;
    assert_int_equal(ns[0], work + 5 * copy);
    assert_int_equal(ns[1], work + 4 * copy);
    assert_int_equal(ns[2], work - 2000 + 2 * copy); /* the second work runs meanwhile */
    assert_int_equal(ns[3], work);
    assert_int_equal(live[0], 1 << 20);
    for (uint32_t room = 1; room < 4; room++) assert_int_equal(live[room], (room << 20) + GR_ALIGN);
    gr_transfers_fit(&l, f, &come_and_go, 0, 1ULL << 40); /* no more than it is faster with */
    assert_int_equal(l.ns, work);
    assert_in_range(l.live, (3 << 20) + GR_ALIGN, 3 << 20 | 1 << 18);
    gr_transfers_release(&l);
    gr_analysis_free(f);
    gr_tasks_free(g);
}

/* A layout's time where everything comes and goes, around each use or each node, in so much room. */
static uint64_t moving_ns(gr_tasks *g, const gr_hardware *hw, bool stream, uint64_t room)
{
    gr_analysis *f = gr_analysis_new(g, hw);
    gr_choice come_and_go = {.stream = stream};
    gr_transfers l = {0};
    gr_transfers_make(&l, f, &come_and_go, 0);
    gr_transfers_widen(&l, f, &come_and_go, room);
    const uint64_t ns = l.ns;
    gr_transfers_release(&l);
    gr_analysis_free(f);
    gr_tasks_free(g);
    return ns;
}

/* The bursts above with room for two, and half the rate both ways at once: the third load, which waits for
 * the first offload, runs beside the second one, and both take twice as long. Elsewhere all go one way. */
static void test_copies_both_ways_at_once_are_slower(void **state)
{
    (void)state;
    gr_hardware hw = machine();
    hw.copy.both = 1e10;
    const uint64_t work = 2 * 1001000 + 3 * 2000, copy = 1000 + 52429;
    assert_int_equal(moving_ns(build_bursts(NULL, NULL), &hw, true, (1 << 20) + GR_ALIGN), work + 4 * copy);
    assert_in_range(moving_ns(build_bursts(NULL, NULL), &hw, true, (2 << 20) + GR_ALIGN),
                    work - 2000 + 3 * copy - 2, work - 2000 + 3 * copy + 2);
    assert_int_equal(moving_ns(build_bursts(NULL, NULL), &hw, true, (3 << 20) + GR_ALIGN), work);
}

/* A load that a collective asks for, and an offload that stands behind it but begins before the load has
 * ended: whatever the order, both directions together move no more than they can. By hand, at half the rate
 * both ways at once: the load has been given 53.429 us, the offload may begin at 2 us, and all that one does
 * beside the other it takes from that; so they end when one behind the other would. */
static void test_an_offload_beside_a_load_that_has_its_time(void **state)
{
    (void)state;
    gr_hardware hw = machine();
    for (int part = 1; part <= 2; part++) { /* at the full rate one does nothing to the other */
        gr_tasks *g = gr_tasks_new();
        const gr_object a = {"a.0", GR_CAT_WEIGHTS, GR_SPAN_KEEP, GR_DEVICE, 1 << 20, "m", 0, 0},
                        b = {"b.0", GR_CAT_WEIGHTS, GR_SPAN_KEEP, GR_DEVICE, 1 << 20, "m", 1, 0};
        const gr_use read = {gr_tasks_object(g, &a), GR_READ}, write = {gr_tasks_object(g, &b), GR_WRITE};
        gr_tasks_node(g, "n", GR_LANE_COMPUTE, false);
        gr_tasks_run(g, 0, 0, &read, 1, "collective")->lane = GR_LANE_COMM;
        gr_tasks_run(g, 0, 1, &write, 1, "work")->cost.flops = 1e6;
        gr_tasks_run(g, 0, 2, &read, 1, "end");
        hw.copy.both = part * 1e10;
        const uint64_t copy = 1000 + 52429, want = part == 1 ? 2 * copy : 2000 + copy;
        assert_in_range(moving_ns(g, &hw, false, 1ULL << 40), want - 2, want + 2);
    }
}

/* As four H200s of one host were seen to stream the state of an 8B model through their optimizer's steps: 28
 * buckets of 579 MB to each and 29 from it in 704 ms, and 33 and 34 of them in 774. */
static void test_state_streams_at_the_rates_of_the_host(void **state)
{
    (void)state;
    enum { BUCKETS = 29, BYTES = 578850816 };
    uint64_t ns[3];
    for (uint32_t k = 0; k < GR_LEN(ns); k++) {
        gr_hardware hw;
        gr_tasks *g = gr_tasks_new();
        assert_int_equal(gr_hardware_find(&hw, "h200", NULL), GR_OK);
        hw.copy = gr_hardware_copy(&hw, 1u << k);
        gr_tasks_node(g, "update", GR_LANE_COMPUTE, false);
        for (uint32_t i = 0; i < BUCKETS; i++) {
            char name[16];
            snprintf(name, sizeof(name), "state.%u", i);
            const gr_object o = {name, GR_CAT_OPTIMIZER, GR_SPAN_KEEP, GR_DEVICE, BYTES, "actor", i, 0};
            const gr_use u = {gr_tasks_object(g, &o), i ? GR_UPDATE : GR_WRITE}; /* the first is there */
            gr_tasks_run(g, 0, i, &u, 1, "step.%u", i)->cost.bytes = 3 * BYTES;
        }
        ns[k] = moving_ns(g, &hw, true, 1ULL << 40);
    }
    assert_in_range(ns[2], 670000000, 710000000);
    /* An offload beside each load, and the last one alone. */
    const double alone = BYTES / 55.3, both = BYTES / 50.7;
    assert_close((double)ns[0], 28 * both + alone, 2e6, 0);
    assert_close((double)ns[1], 28 * (BYTES / 40.3) + BYTES / 51.7, 2e6, 0);
}

/* Steps that are done on the host lane instead of their own. */
static uint32_t count_moved(const gr_plan *p, const gr_tasks *g)
{
    uint32_t n = 0, work = 0;
    for (uint32_t i = 0; i < gr_plan_steps(p); i++)
        if (gr_step_is_task(gr_plan_step(p, i)->kind)) n += gr_plan_step(p, i)->lane != g->task[work++].lane;
    return n;
}

static uint64_t device_bytes(const gr_plan *p, const char *what)
{
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == GR_DEVICE && strstr(p->ledger[e].what, what)) bytes += p->ledger[e].bytes;
    return bytes;
}

/* Device and link are those of machine(): moments of 2 MiB a layer come and go in 2 x 105 us, two of them at
 * a time; a step in the host's memory takes 4 MiB / 50 GB/s = 84 us, beside 1 MiB of gradients out and 1 MiB
 * of weights back, 53 us each. So below the budget where the moments stay, the step is done there; and where
 * the host's memory is slow, it is not. */
static void test_the_step_is_done_on_the_host_where_that_is_faster(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_tasks_source src = {.user = &s, .build = build_shape};
    s.mini = 1;
    s.host_step = true;
    gr_schedule_options o = {
        .hardware = machine(), .budget_bytes = 16 << 20, .host_budget_bytes = 1ULL << 40};
    gr_plan *moved = NULL, *slow = NULL, *never = NULL;
    assert_int_equal(gr_schedule(&moved, NULL, &src, &o, NULL), GR_OK);
    o.hardware.host_memory = 1e9;
    assert_int_equal(gr_schedule(&slow, NULL, &src, &o, NULL), GR_OK);
    o.hardware = machine();
    s.host_step = false;
    assert_int_equal(gr_schedule(&never, NULL, &src, &o, NULL), GR_OK);
    s.host_step = true;
    gr_tasks *g = build_shape(&s, NULL);
    assert_true(count_moved(moved, g) > 0);
    assert_int_equal(count_moved(slow, g), 0);
    assert_true(moved->ns < slow->ns && slow->ns == never->ns);
    for (uint32_t i = 0; i < gr_plan_steps(moved);
         i++) /* of buckets whose step is there, nothing comes and goes */
        assert_null(gr_plan_step(moved, i)->kind == GR_STEP_LOAD
                        ? strstr(gr_plan_step(moved, i)->what, "moments")
                        : NULL);
    gr_plan *plans[] = {moved, slow, never};
    for (size_t k = 0; k < GR_LEN(plans); k++) {
        char what[128];
        assert_int_equal(gr_plan_verify(plans[k], g, NULL), GR_OK);
        assert_null(simulate(plans[k], g, k, NULL, 0, what));
        gr_plan_free(plans[k]);
    }
    gr_tasks_free(g);
}

/* Asked for, it is done there whatever the budget: then no moment is ever on the device. */
static void test_the_step_is_done_on_the_host_where_that_is_asked_for(void **state)
{
    (void)state;
    shape s = SMALL;
    s.host_step = true;
    gr_tasks_source src = {.user = &s, .build = build_shape};
    gr_tasks *g = build_shape(&s, NULL);
    const gr_rule rule = {"actor", GR_CAT_OPTIMIZER, GR_POLICY_HOST};
    gr_schedule_options o = {.hardware = machine(),
                             .budget_bytes = 1ULL << 40,
                             .host_budget_bytes = 1ULL << 40,
                             .rules = &rule,
                             .n_rules = 1};
    uint64_t peak = 0;
    for (int policy = GR_POLICY_AUTO; policy <= GR_POLICY_EVERY_NODE; policy++) {
        gr_plan *p = NULL;
        char what[128];
        o.policy = (gr_policy)policy;
        assert_int_equal(gr_schedule(&p, NULL, &src, &o, NULL), GR_OK);
        assert_int_equal(gr_plan_verify(p, g, NULL), GR_OK);
        assert_int_equal(count_moved(p, g), s.layers);
        assert_int_equal(device_bytes(p, "moments"), 0);
        for (uint64_t run = 0; run < 5; run++) assert_null(simulate(p, g, run, NULL, 0, what));
        peak = policy == GR_POLICY_KEEP ? p->arena_bytes : peak;
        gr_plan_free(p);
    }
    /* As where all stays, without 8 MiB of moments: the loss is still the peak. */
    assert_int_equal(peak, ((8 + 4 + 2) << 20) + (4 << 20) + 2 * (256 << 10) + 4 * 4096);
    gr_tasks_free(g);
}

static void test_random_programs_run_in_any_interleaving(void **state)
{
    (void)state;
    uint32_t plans = 0, moved = 0, seeds = getenv("GR_SLOW") ? 300 : 30;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        gr_status st;
        gr_plan *p = plan_for(build_random, &seed, 1ULL << 40, GR_POLICY_AUTO, &st);
        gr_tasks *g = random_tasks(seed);
        uint64_t budget = p->peak_bytes, ns = 0;
        gr_plan_free(p);
        for (int step = 0; step < 4; step++) {
            p = plan_for(build_random, &seed, budget, GR_POLICY_AUTO, &st);
            /* What is done on the host runs beside the rest; where all fits nothing is, however fast it were.
             */
            if (step == 1 && count_moved(p, g)) ns = GR_MIN(ns, p->ns);
            if (st == GR_OK && gr_near_ns(p->ns) < ns)
                fail_msg("seed %lu is faster in %lu bytes: %lu < %lu ns", seed, budget, p->ns, ns);
            ns = GR_MAX(p->ns, ns);
            for (uint64_t run = 0; run < 3 && st == GR_OK; run++) {
                char what[128];
                const char *why = simulate(p, g, seed * 100 + run, NULL, run == 1, what);
                if (why) fail_msg("seed %lu, run %lu: %s: %s", seed, run, why, what);
            }
            plans += st == GR_OK;
            moved += count_moved(p, g);
            uint64_t over = machine().overhead_bytes;
            budget = over + (p->peak_bytes - over) * 8 / 10;
            gr_plan_free(p);
            if (st) break;
        }
        gr_tasks_free(g);
    }
    print_message("%u plans, %u steps moved to the host\n", plans, moved);
    assert_true(plans > seeds && moved > 20);
}

/* What lies on a disk comes and goes at its steps alone, into bytes of the host pool that nobody else uses.
 */
static void test_random_programs_with_a_disk_run_in_any_interleaving(void **state)
{
    (void)state;
    uint32_t plans = 0, hosted = 0, seeds = getenv("GR_SLOW") ? 200 : 8;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        gr_tasks *g = build_stateful(&seed, NULL);
        gr_diag d;
        gr_diag_init(&d);
        gr_plan *p =
            disk_plan(build_stateful, &seed, 50 + 10 * (seed % 3), 40 + 15 * (seed % 4), seed % 4 > 1);
        if (p && gr_plan_verify(p, g, &d)) {
            print_errors(&d);
            fail_msg("seed %lu: refused", seed);
        }
        for (uint64_t run = 0; run < 6 && p; run++) {
            char what[128];
            const char *why = simulate(p, g, seed * 100 + run, NULL, run == 1, what);
            if (why) fail_msg("seed %lu, run %lu: %s: %s", seed, run, why, what);
        }
        plans += p != NULL;
        hosted += p && count_moved(p, g) > 0;
        gr_plan_free(p);
        gr_tasks_free(g);
        gr_diag_release(&d);
    }
    print_message("%u plans with a disk, %u of them with steps on the host\n", plans, hosted);
    assert_true(plans > seeds / 3 && hosted > 0);
}

/* Every policy, as the one of all and as rules about one model's category, on programs of every form. */
static void test_policies_run_in_any_interleaving(void **state)
{
    (void)state;
    uint32_t wraps = 0, apart = 0, moved = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        gr_rule rules[] = {{"actor", GR_CAT_OPTIMIZER, (gr_policy)(seed / 4 % GR_N_POLICIES)},
                           {"ref", GR_CAT_WEIGHTS, (gr_policy)(seed / 16 % 4)}};
        gr_tasks_source src = {.user = &seed, .build = build_random};
        gr_schedule_options o = {.hardware = machine(),
                                 .policy = (gr_policy)(seed % 4),
                                 .budget_bytes = 1ULL << 40,
                                 .host_budget_bytes = 1ULL << 40,
                                 .rules = rules,
                                 .n_rules = seed / 64 % 3};
        gr_plan *p = NULL;
        gr_diag d;
        gr_diag_init(&d);
        assert_int_equal(gr_schedule(&p, NULL, &src, &o, &d), GR_OK);
        gr_tasks *g = random_tasks(seed);
        if (gr_plan_verify(p, g, &d)) {
            print_errors(&d);
            fail_msg("seed %lu: refused", seed);
        }
        for (uint32_t e = 0; e < p->n_ledger; e++) wraps += p->ledger[e].last < p->ledger[e].first;
        apart += count_kind(p, GR_STEP_LOAD);
        moved += count_moved(p, g);
        for (uint64_t run = 0; run < 4; run++) {
            char what[128];
            const char *why = simulate(p, g, seed * 100 + run, NULL, run == 1, what);
            if (why) fail_msg("seed %lu, run %lu: %s: %s", seed, run, why, what);
        }
        gr_tasks_free(g);
        gr_plan_free(p);
        gr_diag_release(&d);
    }
    print_message("%u lives wrap, %u loads, %u steps moved to the host\n", wraps, apart, moved);
    assert_true(wraps > 20 && apart > 200 && moved > 20);
}

/* By hand: the rollout, first of the iteration, uses neither the moments nor the reference; both are away in
 * it. The moments are changed by the update, and live from there over the end to the next rollout. */
static void test_transition_makes_room_for_the_rollout(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_status st;
    gr_plan *keep = plan_for(build_shape, &s, 1ULL << 40, GR_POLICY_KEEP, &st);
    gr_plan *p = plan_for(build_shape, &s, 1ULL << 40, GR_POLICY_TRANSITION, &st);
    const gr_path *a = &keep->paths[GR_PATH_STEADY], *b = &p->paths[GR_PATH_STEADY];
    uint64_t in[2] = {0};
    for (uint32_t i = 0; i < a->n; i++)
        if (!strcmp(a->steps[i].what, "rollout.first")) in[0] = a->steps[i].resident_bytes;
    for (uint32_t i = 0; i < b->n; i++)
        if (!strcmp(b->steps[i].what, "rollout.first")) in[1] = b->steps[i].resident_bytes;
    uint64_t moments = 8 << 20, reference = 4 << 20, gradients = 4 << 20; /* those come with the update */
    assert_int_equal(in[0] - in[1], moments + reference + gradients);
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].category == GR_CAT_OPTIMIZER && p->ledger[e].place == GR_DEVICE)
            assert_true(p->ledger[e].last < p->ledger[e].first);
    gr_plan_free(keep);
    gr_plan_free(p);
}

/* A rollout with 1 MiB of keys and values; then what changes 1 MiB of moments. */
static gr_tasks *build_swap(void *user, const uint32_t *level)
{
    (void)user, (void)level;
    gr_tasks *p = gr_tasks_new();
    gr_tasks_node(p, "rollout", GR_LANE_COMPUTE, false);
    p->rollout = true;
    uint32_t kv = named(p, "m", "kv", 0, GR_CAT_KV, GR_SPAN_SCRATCH, 1 << 20);
    gr_tasks_run(p, 0, 0, &(gr_use){kv, GR_WRITE}, 1, "run")->cost.flops = 1e9;
    gr_tasks_node(p, "update", GR_LANE_COMPUTE, false);
    uint32_t moments = named(p, "m", "moments", 0, GR_CAT_OPTIMIZER, GR_SPAN_KEEP, 1 << 20);
    gr_tasks_run(p, 0, 0, &(gr_use){moments, GR_UPDATE}, 1, "run")->cost.flops = 1e9;
    return p;
}

/* By hand: two works of 1001 us, and a load of 53.429 us between them. The offload is beside the rollout,
 * whose pool waits for it where it has the same bytes: that is known once there are offsets. Where the pool
 * stays it has its own. */
static void test_waits_for_bytes_that_still_leave_are_seen_once_there_are_offsets(void **state)
{
    (void)state;
    const uint64_t copy = 53429, ns = 2 * 1001000 + copy;
    const gr_hardware hw = machine();
    gr_tasks *g = build_swap(NULL, NULL);
    gr_analysis *f = gr_analysis_new(g, &hw);
    gr_transfers l = {0};
    for (int stays = 0; stays < 2; stays++) {
        const gr_choice c[] = {{.policy = stays ? GR_POLICY_KEEP : GR_POLICY_TRANSITION},
                               {.policy = GR_POLICY_TRANSITION}};
        gr_transfers_make(&l, f, c, 0);
        gr_plan *p = gr_plan_pack(&l, f, NULL, (gr_apart){0, 0}, 10);
        gr_plan_finish(p, &l, f);
        assert_int_equal(p->arena_bytes, (1 + stays) << 20);
        assert_int_equal(p->ns, ns);
        assert_int_equal(GR_MAX(p->ns, gr_timeline_waits_ns(p)), stays ? ns : ns + copy);
        gr_plan_free(p);
    }
    gr_transfers_release(&l);
    gr_analysis_free(f);
    gr_tasks_free(g);
}

static void test_what_does_not_fit_is_explained(void **state)
{
    (void)state;
    shape s = SMALL;
    gr_tasks_source src = {.user = &s, .build = build_shape};
    gr_schedule_options o = {.hardware = machine(),
                             .policy = GR_POLICY_KEEP,
                             .budget_bytes = 20 << 20,
                             .host_budget_bytes = 1ULL << 40};
    gr_diag d;
    gr_diag_init(&d);
    gr_plan *p = NULL;
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, &d), GR_E_NOFIT);
    /* 26.52 MiB of arena (see above) and 1 MiB of overhead */
    assert_non_null(
        strstr(d.messages[0].text, "needs 27.52 MiB of device memory and the budget is 20.00 MiB"));
    assert_non_null(strstr(d.messages[0].text, "7.52 MiB missing"));
    assert_non_null(strstr(d.messages[0].text, "'update.loss'"));
    assert_non_null(strstr(d.messages[0].text, "alive then: weights 8.00 MiB, optimizer 8.00 MiB"));
    assert_true(d.n > 1 && strstr(d.messages[1].text, "would fit"));
    assert_true(d.n > 2 && strstr(d.messages[2].text, "would fit: --policy auto"));
    o.budget_bytes = p->peak_bytes;
    gr_plan_free(p);
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, NULL), GR_OK); /* it would indeed */
    gr_plan_free(p);
    gr_diag_release(&d);
}

static void test_models_of_36_layers_are_planned_at_any_budget(void **state)
{
    (void)state;
    shape s = SMALL;
    s.layers = 36;
    s.optional_ref = true;
    gr_status st = GR_OK;
    uint64_t budget = 1ULL << 40, begin = gr_now_ns();
    uint32_t n = 0;
    const uint64_t next = getenv("GR_SLOW") ? 75 : 60; /* in 100 */
    for (; st == GR_OK && n < 20; n++) {
        gr_plan *p = plan_for(build_shape, &s, budget, GR_POLICY_AUTO, &st);
        uint64_t live = 0;
        for (uint32_t i = 0; i < p->paths[GR_PATH_STEADY].n; i++)
            live = GR_MAX(live, p->paths[GR_PATH_STEADY].steps[i].resident_bytes);
        /* Packed at the bound; where copies come and go in loops more of what there is may be taken, so that
         * steps wait for none of them. */
        if (n && st == GR_OK)
            assert_in_range(p->arena_bytes, live, budget - (p->peak_bytes - p->arena_bytes));
        else
            assert_int_equal(p->arena_bytes, live);
        budget = p->peak_bytes * next / 100;
        gr_plan_free(p);
    }
    assert_true(n >= 4);
    print_message("%u plans in %.2f s\n", n, (double)(gr_now_ns() - begin) / 1e9);
}

/* Level of knob 0: recompute (a quarter of the activations); of knob 1: micro-batches of half the tokens. */
static gr_tasks *build_knobs(void *user, const uint32_t *level)
{
    shape s = *(const shape *)user;
    s.recompute = level[0];
    s.act_bytes >>= level[1];
    s.micro <<= level[1];
    return grpo(&s);
}

static void describe_knob(void *user, size_t knob, uint32_t level, gr_str *out)
{
    (void)user;
    gr_str_printf(out, "%s %u", knob ? "halved" : "on", level);
}

static void test_knobs_that_change_bits_are_the_last_resort(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {{"actor: recompute", 2, false}, {"update: micro-batch tokens", 4, true}};
    shape s = SMALL;
    s.act_bytes = 1 << 20;
    gr_tasks_source src = {&s, knobs, 2, build_knobs, describe_knob};
    gr_schedule_options o = {.hardware = machine(),
                             .policy = GR_POLICY_AUTO,
                             .budget_bytes = 1ULL << 40,
                             .host_budget_bytes = 1ULL << 40};
    uint32_t last = 0, level[2];
    bool moved = false, bits = false;
    const uint64_t next = getenv("GR_SLOW") ? 90 : 85; /* in 100 */
    for (gr_status st = GR_OK; st == GR_OK; o.budget_bytes = o.budget_bytes * next / 100) {
        gr_plan *p = NULL;
        st = gr_schedule(&p, level, &src, &o, NULL);
        if (st == GR_OK) {
            gr_tasks *g = build_knobs(&s, level);
            assert_int_equal(gr_plan_verify(p, g, NULL), GR_OK);
            gr_tasks_free(g);
            assert_true(level[1] >= last);
            assert_true(level[1] <= last || moved); /* transitions were tried first */
            last = level[1];
            bits |= level[1] > 0;
            moved |= count_transitions(p) > 0;
            assert_int_equal(level[1] > 0, strstr(p->notes, "changes the bits of results") != NULL);
            assert_int_equal(level[0] > 0, strstr(p->notes, "actor: recompute: on 1") != NULL);
        }
        if (o.budget_bytes == 1ULL << 40) o.budget_bytes = p->peak_bytes;
        gr_plan_free(p);
    }
    assert_true(moved && bits);
}

/* Weights for the second work and the last; the one between them that is next needs their room or, at level
 * 1, more time. */
static gr_tasks *build_trade(void *user, const uint32_t *level)
{
    const double *longer_ns = user;
    gr_tasks *p = gr_tasks_new();
    gr_tasks_node(p, "n", GR_LANE_COMPUTE, false);
    uint32_t o = named(p, "m", "params", 0, GR_CAT_WEIGHTS, GR_SPAN_KEEP, 1 << 20);
    uint32_t ws = gr_tasks_temp(p, GR_CAT_WORKSPACE, level && level[0] ? GR_ALIGN : 1 << 20, "ws");
    const gr_use uses[] = {
        {GR_NONE, GR_READ}, {o, GR_READ}, {ws, GR_WRITE}, {GR_NONE, GR_READ}, {o, GR_READ}};
    for (uint32_t w = 0; w < GR_LEN(uses); w++)
        gr_tasks_run(p, 0, w, &uses[w], 1, "w.%u", w)->cost.flops = 1e9;
    p->task[2].cost.flops += level && level[0] ? *longer_ns * 1e3 : 0;
    return p;
}

/* By hand: five works of 1 ms and 1 us each. Where the third needs the room, the weights are loaded twice,
 * each time beside a work that does not use them: nothing waits, and the plan takes 5.005 ms. Without it
 * nothing moves, which is worth 5.005 us and no more. */
static void test_moves_are_spared_for_a_thousandth_of_the_time(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {{"room", 2, GR_BITS_SAME}};
    for (int over = 0; over < 2; over++) {
        double longer_ns = over ? 5010 : 5000;
        gr_tasks_source src = {&longer_ns, knobs, 1, build_trade, NULL};
        gr_schedule_options o = {.hardware = machine(), .host_budget_bytes = 1ULL << 40};
        o.budget_bytes = o.hardware.overhead_bytes + (1 << 20) + GR_ALIGN;
        gr_plan *p = NULL;
        uint32_t level[1];
        assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK);
        assert_int_equal(level[0], !over);
        assert_int_equal(count_transitions(p), over ? 4 : 0);
        assert_int_equal(p->ns, over ? 5005000 : 5010000);
        gr_plan_free(p);
    }
}

/* Level of knob 1: what takes room and saves time, or neither; of the others: as above. */
static gr_tasks *build_luxury(void *user, const uint32_t *level)
{
    gr_tasks *g = build_knobs(user, (const uint32_t[]){level[0], level[2]});
    gr_tasks_node(g, "luxury", GR_LANE_COMPUTE, false);
    uint32_t room = gr_tasks_temp(g, GR_CAT_GRADIENTS, level[1] ? 256 : 32 << 20, "room");
    cost(gr_tasks_run(g, 30, 0, (gr_use[]){{room, GR_WRITE}}, 1, "work"), level[1] ? 1 << 20 : 0, 100);
    return g;
}

static void describe_luxury(void *user, size_t knob, uint32_t level, gr_str *out)
{
    (void)user;
    gr_str_printf(out, "knob %zu at %u", knob, level);
}

/* It is the first thing that a budget takes: never beside recomputation, and long before bits that nothing
 * but a budget asks for. */
static void test_a_luxury_is_given_up_first(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {{"actor: recompute", 2, GR_BITS_SAME},
                                    {"update: gradients", 2, GR_BITS_SPARE},
                                    {"update: micro-batch tokens", 4, GR_BITS_DIFFER}};
    shape s = SMALL;
    s.act_bytes = 1 << 20;
    gr_tasks_source src = {&s, knobs, 3, build_luxury, describe_luxury};
    gr_schedule_options o = {.hardware = machine(),
                             .policy = GR_POLICY_AUTO,
                             .budget_bytes = 1ULL << 40,
                             .host_budget_bytes = 1ULL << 40};
    uint32_t level[3], taken = 0, moved = 0, without = 0, given_up_alone = 0;
    uint64_t before = 0;
    const uint64_t next = getenv("GR_SLOW") ? 95 : 90; /* in 100 */
    for (gr_status st = GR_OK; st == GR_OK; o.budget_bytes = o.budget_bytes * next / 100) {
        gr_plan *p = NULL;
        st = gr_schedule(&p, level, &src, &o, NULL);
        if (st == GR_OK) {
            gr_tasks *g = build_luxury(&s, level);
            assert_int_equal(gr_plan_verify(p, g, NULL), GR_OK);
            gr_tasks_free(g);
            assert_true(gr_near_ns(p->ns) >= before || level[2]); /* more room is not slower */
            before = p->ns;
            taken += !level[1];
            without += level[1];
            moved += !level[1] && count_transitions(p);
            given_up_alone += level[1] && !level[0] && !level[2];
            assert_true(level[1] || !level[0]);
            assert_int_equal(level[1], strstr(p->notes, "update: gradients: knob 1 at 1, to fit the budget "
                                                        "(changes the bits of results)") != NULL);
        }
        if (o.budget_bytes == 1ULL << 40) o.budget_bytes = p->peak_bytes;
        gr_plan_free(p);
    }
    print_message("%u with it, %u of these with transitions; %u without, %u of these with nothing else\n",
                  taken, moved, without, given_up_alone);
    assert_true(taken > 1 && given_up_alone > 1 && without > given_up_alone);
}

static void test_bits_that_are_kept_are_not_changed_to_fit(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {{"actor: recompute", 2, false}, {"update: micro-batch tokens", 4, true}};
    shape s = SMALL;
    s.act_bytes = 1 << 20;
    gr_tasks_source src = {&s, knobs, 2, build_knobs, describe_knob};
    gr_schedule_options o = {
        .hardware = machine(), .budget_bytes = 1ULL << 40, .host_budget_bytes = 1ULL << 40};
    uint32_t level[2] = {0, 0};
    while (level[1] == 0) { /* down to the first budget that takes other bits */
        gr_plan *p = NULL;
        assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK);
        if (level[1] == 0) o.budget_bytes = GR_MIN(p->peak_bytes, o.budget_bytes) * 9 / 10;
        gr_plan_free(p);
    }
    gr_diag d;
    gr_diag_init(&d);
    gr_plan *p = NULL;
    o.bits = GR_BITS_KEEP;
    assert_int_equal(gr_schedule(&p, level, &src, &o, &d), GR_E_NOFIT);
    assert_int_equal(level[1], 0);
    assert_true(d.n > 2 && strstr(d.messages[2].text, "would fit: with run.bits=fit"));
    gr_plan_free(p);
    gr_diag_release(&d);
}

/* One level of a knob that changes bits saves a part of the time. */
static gr_tasks *build_saving(void *user, const uint32_t *level)
{
    const double *part = user;
    gr_tasks *p = gr_tasks_new();
    gr_tasks_node(p, "n", GR_LANE_COMPUTE, false);
    uint32_t o = named(p, "m", "params", 0, GR_CAT_WEIGHTS, GR_SPAN_KEEP, 1 << 20);
    for (uint32_t w = 0; w < 5; w++)
        gr_tasks_run(p, 0, w, &(gr_use){o, GR_READ}, 1, "w.%u", w)->cost.flops =
            1e9 * (level && level[0] ? 1 - *part : 1);
    return p;
}

static void test_bits_are_changed_where_that_is_worth_what_the_rule_says(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {{"micro", 2, GR_BITS_DIFFER}};
    static const struct {
        double part;
        gr_bits_rule rule;
        uint32_t level;
    } cases[] = {{-0.03, GR_BITS_PREFER, 0}, {-0.03, GR_BITS_ANY, 0},   {0.03, GR_BITS_KEEP, 0},
                 {0.03, GR_BITS_FIT, 0},     {0.03, GR_BITS_PREFER, 0}, {0.03, GR_BITS_ANY, 1},
                 {0.1, GR_BITS_KEEP, 0},     {0.1, GR_BITS_FIT, 0},     {0.1, GR_BITS_PREFER, 1},
                 {0.1, GR_BITS_ANY, 1}};
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        double part = cases[i].part;
        gr_tasks_source src = {&part, knobs, 1, build_saving, NULL};
        gr_schedule_options o = {.hardware = machine(),
                                 .bits = cases[i].rule,
                                 .budget_bytes = 1ULL << 40,
                                 .host_budget_bytes = 1ULL << 40};
        uint32_t level[1];
        gr_plan *p = NULL;
        assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK);
        assert_int_equal(level[0], cases[i].level);
        assert_int_equal(level[0], strstr(p->notes, "changes the bits of results") != NULL);
        gr_plan_free(p);
    }
}

/* From a budget for everything down to the least: `any` is never slower than the others, `prefer` has other
 * bits than `fit` only for five hundredths of the time, and with `any` more memory is never slower. */
static void test_rules_of_bits_keep_their_promise_in_any_budget(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {{"actor: recompute", 2, false}, {"update: micro-batch tokens", 4, true}};
    static const gr_bits_rule rules[] = {GR_BITS_FIT, GR_BITS_PREFER, GR_BITS_ANY};
    shape s = SMALL;
    s.act_bytes = 1 << 20;
    gr_tasks_source src = {&s, knobs, 2, build_knobs, describe_knob};
    gr_schedule_options o = {
        .hardware = machine(), .budget_bytes = 1ULL << 40, .host_budget_bytes = 1ULL << 40};
    uint64_t before = 0;
    uint32_t n = 0;
    const uint32_t wanted = getenv("GR_SLOW") ? 6 : 4;
    for (gr_status st = GR_OK; st == GR_OK && n < wanted; o.budget_bytes = o.budget_bytes * 3 / 4) {
        uint64_t ns[GR_LEN(rules)] = {0}, peak = 0;
        uint32_t level[GR_LEN(rules)][2];
        for (size_t k = 0; k < GR_LEN(rules); k++) {
            gr_plan *p = NULL;
            o.bits = rules[k];
            const gr_status own = gr_schedule(&p, level[k], &src, &o, NULL);
            assert_true(!k || own == st); /* what fits does with any rule */
            st = own;
            ns[k] = p->ns;
            peak = p->peak_bytes;
            gr_plan_free(p);
        }
        if (st) break;
        n++;
        assert_true(ns[2] <= gr_near_ns(ns[0]) && ns[2] <= gr_near_ns(ns[1]));
        if (level[1][1] != level[0][1]) assert_true((double)ns[1] <= (double)ns[0] * (1 - GR_BITS_WORTH));
        assert_true(before <= gr_near_ns(ns[2]));
        before = ns[2];
        o.budget_bytes = GR_MIN(o.budget_bytes, peak);
    }
    assert_true(n >= wanted - 1);
}

/* Five knobs of six levels each, half of which change bits: 7,776 programs. */
typedef struct counted {
    shape s;
    uint32_t builds;
} counted;

static gr_tasks *build_counted(void *user, const uint32_t *level)
{
    counted *c = user;
    uint32_t sum = 0;
    for (int k = 0; k < 5; k++) sum += level[k];
    c->builds++;
    shape s = c->s;
    s.act_bytes = (s.act_bytes >> sum / 5) / GR_ALIGN * GR_ALIGN;
    return grpo(&s);
}

/* What no level brings down is refused after the programs at the corners; what would fit is found likewise.
 */
static void test_a_refusal_looks_at_few_programs(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {
        {"a", 6, true}, {"b", 6, false}, {"c", 6, true}, {"d", 6, false}, {"e", 6, true}};
    counted c = {.s = SMALL};
    c.s.layers = 12;
    gr_tasks_source src = {.user = &c, .knobs = knobs, .n_knobs = 5, .build = build_counted};
    gr_schedule_options o = {
        .hardware = machine(), .budget_bytes = (1 << 20) + (3 << 19), .host_budget_bytes = 1ULL << 40};
    gr_diag d;
    uint32_t level[5];
    gr_diag_init(&d);
    gr_plan *p = NULL;
    assert_int_equal(gr_schedule(&p, level, &src, &o, &d), GR_E_NOFIT);
    print_message("%u programs for a refusal\n", c.builds);
    assert_true(c.builds < 200);
    o.budget_bytes = p->peak_bytes;
    gr_plan_free(p);
    gr_diag_release(&d);
    assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK); /* what it named is enough */
    uint64_t peak = p->peak_bytes;
    gr_plan_free(p);
    c.builds = 0;
    o.quick = true;
    assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK);
    print_message("%u programs for a quick plan\n", c.builds);
    assert_true(c.builds < 200 && p->peak_bytes <= peak);
    gr_tasks *g = build_counted(&c, level);
    assert_int_equal(gr_plan_verify(p, g, NULL), GR_OK);
    gr_tasks_free(g);
    gr_plan_free(p);

    /* 36 MiB of state and reference do not lie on 8 MiB of device and 16 of host: the host's is one change.
     */
    o = (gr_schedule_options){.hardware = machine(), .budget_bytes = 8 << 20, .host_budget_bytes = 16 << 20};
    c.builds = 0;
    gr_diag_init(&d);
    assert_int_equal(gr_schedule(&p, level, &src, &o, &d), GR_E_NOFIT);
    assert_true(c.builds < 200);
    bool said = false;
    for (size_t i = 0; i < d.n; i++) {
        const char *at = strstr(d.messages[i].text, "would fit: --host-budget ");
        if (!at) continue;
        said = true;
        o.host_budget_bytes = strtoull(at + strlen("would fit: --host-budget "), NULL, 10);
    }
    assert_true(said);
    gr_plan_free(p);
    assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK);
    gr_plan_free(p);
    gr_diag_release(&d);
}

/* Where nothing that is found is as fast as what is there already, a search ends with nothing, and says
 * nothing; where other bits may be faster, what has these does not tell. */
static void test_what_is_slower_than_asked_is_given_up(void **state)
{
    (void)state;
    shape s = SMALL;
    s.layers = 12;
    gr_status st;
    gr_plan *roomy = plan_for(build_shape, &s, 1ULL << 40, GR_POLICY_AUTO, &st);
    gr_tasks_source src = {.user = &s, .build = build_shape};
    gr_schedule_options o = {
        .hardware = machine(), .budget_bytes = roomy->peak_bytes / 2, .host_budget_bytes = 1ULL << 40};
    gr_plan *plan = NULL, *p = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_schedule(&plan, NULL, &src, &o, &d), GR_OK);
    assert_true(plan->ns > roomy->ns);
    o.beat_ns = plan->ns;
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, &d), GR_OK);
    assert_true(p->ns == plan->ns && p->peak_bytes == plan->peak_bytes);
    gr_plan_free(p);
    o.beat_ns = roomy->ns / 2;
    uint64_t spent = 0, all = 0;
    o.spent = &spent;
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, &d), GR_E_NOFIT);
    assert_true(!p->fits && !d.n);
    gr_plan_free(p);
    o.bits = GR_BITS_PREFER;
    o.spent = &all;
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, &d), GR_OK);
    assert_true(spent && spent < all / 2);
    gr_plan_free(p);
    gr_plan_free(plan);
    gr_plan_free(roomy);
    gr_diag_release(&d);
}

/* What is said before a search is what a search finds: the time and the bytes of all resident; and that
 * nothing fits only where nothing does, from few programs. */
static void test_an_outlook_is_what_a_search_finds(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {
        {"a", 6, true}, {"b", 6, false}, {"c", 6, true}, {"d", 6, false}, {"e", 6, true}};
    counted c = {.s = SMALL};
    c.s.layers = 12;
    gr_tasks_source src = {.user = &c.s, .build = build_shape};
    gr_schedule_options o = {
        .hardware = machine(), .budget_bytes = 1ULL << 40, .host_budget_bytes = 1ULL << 40};
    gr_plan *p = NULL;
    uint32_t level[5];
    gr_outlook x = gr_schedule_outlook(&src, &o);
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, NULL), GR_OK);
    assert_true(!x.hopeless && x.bytes == p->peak_bytes && x.ns == p->ns);
    gr_plan_free(p);
    src = (gr_tasks_source){.user = &c, .knobs = knobs, .n_knobs = 5, .build = build_counted};
    o.budget_bytes = (1 << 20) + (3 << 19);
    x = gr_schedule_outlook(&src, &o);
    assert_true(x.hopeless && c.builds < 20);
    assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_E_NOFIT);
    o.budget_bytes = p->peak_bytes;
    gr_plan_free(p);
    assert_false(gr_schedule_outlook(&src, &o).hopeless);
}

/* A search that has next to no work still goes down to what fits, and that is not much slower than what a
 * whole one finds. Were it broken off on its way, nothing would fit. */
static void test_a_short_search_is_not_broken_off(void **state)
{
    (void)state;
    static const gr_knob knobs[] = {{"recompute", 2, GR_BITS_SAME}, {"halves", 2, GR_BITS_DIFFER}};
    shape s = SMALL;
    s.layers = 36;
    gr_status st;
    gr_plan *roomy = plan_for(build_shape, &s, 1ULL << 40, GR_POLICY_AUTO, &st);
    gr_tasks_source src = {.user = &s, .knobs = knobs, .n_knobs = 2, .build = build_knobs};
    for (uint32_t part = 2; part <= 16; part *= 8) {
        gr_schedule_options o = {
            .hardware = machine(), .budget_bytes = roomy->peak_bytes / part, .host_budget_bytes = 1ULL << 40};
        gr_plan *whole = NULL, *brief = NULL;
        uint32_t level[2];
        assert_int_equal(gr_schedule(&whole, level, &src, &o, NULL), GR_OK);
        o.hurry = 20000;
        assert_int_equal(gr_schedule(&brief, level, &src, &o, NULL), GR_OK);
        assert_in_range(brief->ns, 1, whole->ns + whole->ns / 8);
        gr_plan_free(brief);
        gr_plan_free(whole);
    }
    gr_plan_free(roomy);
}

/* 24 knobs of nine levels: nobody can go through all of their vectors. What is needed is the last level of
 * those that keep the bits; of the others one step of one. */
enum { MANY = 24, FREE = 0, BITS = 1 };

static void sum_levels(const uint32_t *level, uint32_t *sum)
{
    sum[FREE] = sum[BITS] = 0;
    for (int k = 0; k < MANY; k++) sum[k % 2] += level[k];
}

static gr_tasks *build_many(void *user, const uint32_t *level)
{
    shape s = *(const shape *)user;
    uint32_t sum[2];
    sum_levels(level, sum);
    s.act_bytes >>= (sum[FREE] == MANY / 2 * 8) + (sum[BITS] > 0);
    return grpo(&s);
}

/* The levels taken where there is as much as the smallest plan needs. */
static void schedule_many(bool keep_bits, uint32_t *sum)
{
    gr_knob knobs[MANY];
    for (int k = 0; k < MANY; k++) knobs[k] = (gr_knob){"knob", 9, k % 2 == BITS};
    shape s = SMALL;
    s.act_bytes = 1 << 20;
    gr_tasks_source src = {&s, knobs, MANY, build_many, NULL};
    gr_schedule_options o = {.hardware = machine(),
                             .host_budget_bytes = 1ULL << 40,
                             .bits = keep_bits ? GR_BITS_KEEP : GR_BITS_FIT};
    uint32_t level[MANY];
    gr_plan *p = NULL;
    assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_E_NOFIT);
    o.budget_bytes = p->peak_bytes;
    gr_plan_free(p);
    assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK);
    gr_plan_free(p);
    sum_levels(level, sum);
}

static void test_many_knobs_are_not_gone_through(void **state)
{
    (void)state;
    uint32_t sum[2];
    schedule_many(true, sum);
    assert_true(sum[FREE] == MANY / 2 * 8 && sum[BITS] == 0);
    schedule_many(false, sum);
    assert_true(sum[FREE] == MANY / 2 * 8 && sum[BITS] == 1);
}

static void test_hardware_is_found_by_name_or_suggested(void **state)
{
    (void)state;
    gr_hardware hw;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_hardware_find(&hw, "h200", &d), GR_OK);
    assert_int_equal(hw.device_bytes, 143771ULL << 20);
    assert_int_equal(gr_hardware_find(&hw, "cpu", &d), GR_OK);
    assert_true(hw.device_bytes > 1 << 20 && hw.overhead_bytes < 1 << 30 && hw.flops > 0);
    assert_int_equal(gr_hardware_find(&hw, "h100-80", &d), GR_E_INVALID);
    assert_string_equal(d.messages[0].text,
                        "unknown hardware 'h100-80'; did you mean 'h100-80g'?; known are: cpu, "
                        "h200, h100-80g, a100-80g, a100-40g, rtx4090, h200-one-adapter, "
                        "h100-80g-one-adapter, or a file of `graphrun calibrate`");
    gr_diag_release(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_stays_where_everything_fits),
        cmocka_unit_test(test_the_peak_of_all_resident_is_the_sum_by_hand),
        cmocka_unit_test(test_keep_never_moves_anything),
        cmocka_unit_test(test_smaller_budgets_are_met_and_never_faster),
        cmocka_unit_test(test_several_copies_are_in_flight_where_memory_allows),
        cmocka_unit_test(test_copies_both_ways_at_once_are_slower),
        cmocka_unit_test(test_an_offload_beside_a_load_that_has_its_time),
        cmocka_unit_test(test_state_streams_at_the_rates_of_the_host),
        cmocka_unit_test(test_the_step_is_done_on_the_host_where_that_is_faster),
        cmocka_unit_test(test_the_step_is_done_on_the_host_where_that_is_asked_for),
        cmocka_unit_test(test_random_programs_run_in_any_interleaving),
        cmocka_unit_test(test_random_programs_with_a_disk_run_in_any_interleaving),
        cmocka_unit_test(test_policies_run_in_any_interleaving),
        cmocka_unit_test(test_transition_makes_room_for_the_rollout),
        cmocka_unit_test(test_waits_for_bytes_that_still_leave_are_seen_once_there_are_offsets),
        cmocka_unit_test(test_models_of_36_layers_are_planned_at_any_budget),
        cmocka_unit_test(test_knobs_that_change_bits_are_the_last_resort),
        cmocka_unit_test(test_moves_are_spared_for_a_thousandth_of_the_time),
        cmocka_unit_test(test_a_luxury_is_given_up_first),
        cmocka_unit_test(test_bits_that_are_kept_are_not_changed_to_fit),
        cmocka_unit_test(test_bits_are_changed_where_that_is_worth_what_the_rule_says),
        cmocka_unit_test(test_rules_of_bits_keep_their_promise_in_any_budget),
        cmocka_unit_test(test_a_refusal_looks_at_few_programs),
        cmocka_unit_test(test_what_is_slower_than_asked_is_given_up),
        cmocka_unit_test(test_an_outlook_is_what_a_search_finds),
        cmocka_unit_test(test_a_short_search_is_not_broken_off),
        cmocka_unit_test(test_many_knobs_are_not_gone_through),
        cmocka_unit_test(test_hardware_is_found_by_name_or_suggested),
        cmocka_unit_test(test_what_does_not_fit_is_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
