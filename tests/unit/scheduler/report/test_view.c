#include "scheduler/report/diff.h"
#include "scheduler/report/draw.h"
#include "scheduler/report/picture.h"
#include "scheduler/report/sweep.h"
#include "tests/unit/test.h"

#include <math.h>

/* A load, a run that waits for it, a loop of four trips whose body is a run and an offload after it, a run;
 * the weights come and go round the iteration's end, the activations live in the loop. */
typedef struct small_plan {
    gr_step steps[6];
    gr_entry ledger[4];
    uint32_t ids[4];
    gr_plan plan;
} small_plan;

static gr_step step(gr_step_kind kind, const char *what, gr_lane lane, uint64_t ns)
{
    return (gr_step){
        .kind = kind, .what = what, .node = "update", .lane = lane, .ns = ns, .body_last = GR_NONE};
}

static void make_plan(small_plan *s)
{
    *s = (small_plan){.ids = {0, 1, 2, 3}};
    s->steps[0] = step(GR_STEP_LOAD, "actor.params.0", GR_LANE_H2D, 10);
    s->steps[1] = step(GR_STEP_RUN, "update.begin", GR_LANE_COMPUTE, 5);
    s->steps[2] = step(GR_STEP_LOOP, "update.loop", GR_LANE_COMPUTE, 40);
    s->steps[3] = step(GR_STEP_RUN, "update.forward.0", GR_LANE_COMPUTE, 4);
    s->steps[4] = step(GR_STEP_OFFLOAD, "update.acts.0", GR_LANE_D2H, 6);
    s->steps[5] = step(GR_STEP_RUN, "update.step, \"all\"", GR_LANE_COMPUTE, 5);
    s->steps[0].bytes = 1024, s->steps[4].bytes = 512;
    s->steps[0].writes = s->ids, s->steps[0].n_writes = 1;
    s->steps[1].after = s->ids, s->steps[1].n_after = 1;
    s->steps[2].body_last = 4, s->steps[2].trips_max = 4, s->steps[2].agreed = true;
    s->steps[4].after = s->ids + 3, s->steps[4].n_after = 1;
    s->steps[4].reads = s->ids + 1, s->steps[4].n_reads = 1;
    s->ledger[0] = (gr_entry){"actor.params.0", GR_CAT_WEIGHTS, GR_DEVICE, 1024, 0, 5, 1};
    s->ledger[1] = (gr_entry){"update.acts.0", GR_CAT_ACTIVATIONS, GR_DEVICE, 512, 1024, 3, 4};
    s->ledger[2] = (gr_entry){"actor.params.0", GR_CAT_WEIGHTS, GR_HOST, 1024, 0, 0, 5};
    s->ledger[3] = (gr_entry){"ref.params.0", GR_CAT_WEIGHTS, GR_DEVICE, 2048, 1536, 0, 5};
    s->plan = (gr_plan){.graph = "small",
                        .graph_text = "graph: small\nlr: 1\n",
                        .hardware = "cpu",
                        .numerics = "00",
                        .notes = "",
                        .reasons = "",
                        .ranks = "0",
                        .pools = "",
                        .fits = true,
                        .budget_bytes = 8192,
                        .peak_bytes = 3840,
                        .arena_bytes = 3584,
                        .overhead_bytes = 256,
                        .host_bytes = 1024,
                        .ns = 60,
                        .ledger = s->ledger,
                        .n_ledger = 4};
    s->plan.paths[GR_PATH_STEADY] = (gr_path){.steps = s->steps, .n = 6};
}

static void test_times_follow_lanes_waits_and_stretched_trips(void **state)
{
    (void)state;
    static const uint64_t begin[] = {0, 10, 15, 15, 31, 55}, end[] = {10, 15, 55, 31, 55, 60};
    small_plan s;
    make_plan(&s);
    gr_view *v = gr_view_new(&s.plan);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(v->begin[i], begin[i]);
        assert_int_equal(v->end[i], end[i]);
        assert_int_equal(v->parent[i], i == 3 || i == 4 ? 2 : GR_NONE);
    }
    assert_int_equal(gr_view_node_ns(v, "update"), 5 + 40 + 5);
    gr_view_free(v);
    s.plan.ns = 120; /* what the plan predicts goes before what its steps sum to */
    v = gr_view_new(&s.plan);
    assert_int_equal(v->end[5], 120);
    assert_int_equal(v->begin[4], 62);
    gr_view_free(v);
}

/* A loop does not wait for what a step of it waits for: it is longer by what `compute` waits there, of which
 * its own time has nothing. */
static void test_a_loop_begins_before_a_load_that_its_end_needs(void **state)
{
    (void)state;
    static const uint64_t begin[] = {0, 0, 0, 0, 30, 35}, end[] = {30, 35, 35, 10, 35, 40};
    static uint32_t load = 0;
    gr_step steps[6] = {step(GR_STEP_LOAD, "actor.state.0", GR_LANE_H2D, 30),
                        step(GR_STEP_LOOP, "update.mini_batches", GR_LANE_COMPUTE, 15),
                        step(GR_STEP_LOOP, "update.micro_batches", GR_LANE_COMPUTE, 15),
                        step(GR_STEP_RUN, "update.backward.0", GR_LANE_COMPUTE, 10),
                        step(GR_STEP_RUN, "update.step.0", GR_LANE_COMPUTE, 5),
                        step(GR_STEP_RUN, "summary", GR_LANE_COMPUTE, 5)};
    steps[1].body_last = steps[2].body_last = 4;
    steps[4].after = &load, steps[4].n_after = 1;
    gr_plan p = {.ns = 40};
    p.paths[GR_PATH_STEADY] = (gr_path){.steps = steps, .n = 6};
    gr_view *v = gr_view_new(&p);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(v->begin[i], begin[i]);
        assert_int_equal(v->end[i], end[i]);
    }
    gr_view_free(v);
    p.ns = 50; /* the loop has two trips of 10, of which the second waits for nothing */
    steps[1].ns = steps[2].ns = 20;
    steps[3].ns = 5;
    v = gr_view_new(&p);
    assert_int_equal(v->end[2], 20 + (30 - 5));
    assert_int_equal(v->end[5], 50);
    gr_view_free(v);
}

static void test_series_hold_what_is_live_round_the_end(void **state)
{
    (void)state;
    static const uint64_t actor[] = {1024, 1024, 0, 0, 0, 1024}, acts[] = {0, 0, 0, 512, 512, 0};
    small_plan s;
    make_plan(&s);
    gr_view *v = gr_view_new(&s.plan);
    assert_int_equal(v->n_series, 4);
    assert_string_equal(v->series[0].name, "ref weights"); /* of a category the largest first */
    assert_string_equal(v->series[1].name, "actor weights");
    assert_string_equal(v->series[2].name, "update activations");
    assert_int_equal(v->series[3].place, GR_HOST);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(v->series[0].bytes[i], 2048);
        assert_int_equal(v->series[1].bytes[i], actor[i]);
        assert_int_equal(v->series[2].bytes[i], acts[i]);
    }
    assert_int_equal(gr_view_most(v, GR_DEVICE), 3072);
    assert_int_equal(gr_view_most(v, GR_HOST), 1024);
    uint64_t holds[4] = {0};
    gr_view_node_holds(v, "update", holds); /* 1024 in steps 0, 1 and 5 are more than 512 */
    assert_int_equal(holds[1], 1024);
    assert_int_equal(holds[0] + holds[2] + holds[3], 0);
    gr_view_free(v);
}

static void test_a_resource_below_a_hundredth_is_summed_by_category(void **state)
{
    (void)state;
    small_plan s;
    make_plan(&s);
    s.ledger[3].bytes = 256 * 1024;
    gr_view *v = gr_view_new(&s.plan);
    assert_string_equal(v->series[1].name, "weights");
    assert_string_equal(v->series[2].name, "activations");
    gr_view_free(v);
}

static void test_times_and_series_of_an_absurd_plan_are_bounded(void **state)
{
    (void)state;
    enum { N = 2000 };
    gr_step *steps = gr_calloc(N, sizeof(*steps));
    gr_entry *ledger = gr_calloc(N, sizeof(*ledger));
    for (uint32_t i = 0; i < N; i++) { /* a loop in a loop in a loop; each step the longest a file may say */
        steps[i] = step(i + 1 < N ? GR_STEP_LOOP : GR_STEP_RUN, "x", GR_LANE_COMPUTE, 1000000000000000000);
        if (i + 1 < N) steps[i].body_last = N - 1;
        char *name = gr_printf("owner%u.x", i);
        ledger[i] = (gr_entry){name, GR_CAT_WORKSPACE, GR_DEVICE, 1024, 0, i, i};
    }
    gr_plan p = {.ns = 1000, .ledger = ledger, .n_ledger = N};
    p.paths[GR_PATH_STEADY] = (gr_path){.steps = steps, .n = N};
    gr_view *v = gr_view_new(&p);
    assert_in_range(v->n_series, 1, 25);
    for (uint32_t i = 0; i < N; i++) assert_true(v->begin[i] <= v->end[i] && v->end[i] <= 1000);
    for (uint32_t i = 0; i < N; i++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; k < v->n_series; k++) sum += v->series[k].bytes[i];
        assert_int_equal(sum, 1024);
        free((char *)(uintptr_t)ledger[i].what);
    }
    gr_view_free(v);
    free(steps);
    free(ledger);
}

static void test_csv_has_a_quoted_row_for_each_step(void **state)
{
    (void)state;
    small_plan s;
    gr_str out = {0};
    make_plan(&s);
    gr_draw_csv(&s.plan, &out);
    assert_string_equal(
        out.text,
        "i,kind,what,node,lane,loop,trips_max,bytes,resident_bytes,seconds,begin,end\n"
        "0,load,actor.params.0,update,h2d,,,1024,0,0.000000010,0.000000000,0.000000010\n"
        "1,run,update.begin,update,compute,,,0,0,0.000000005,0.000000010,0.000000015\n"
        "2,loop,update.loop,update,compute,,4,0,0,0.000000040,0.000000015,0.000000055\n"
        "3,run,update.forward.0,update,compute,2,,0,0,0.000000004,0.000000015,0.000000031\n"
        "4,offload,update.acts.0,update,d2h,2,,512,0,0.000000006,0.000000031,0.000000055\n"
        "5,run,\"update.step, \"\"all\"\"\",update,compute,,,0,0,0.000000005,0.000000055,0.000000060\n");
    gr_str_release(&out);
}

static void test_svg_escapes_names_and_draws_each_resource(void **state)
{
    (void)state;
    small_plan s;
    gr_str out = {0};
    make_plan(&s);
    s.plan.graph = "a<b>&\"c\"";
    gr_draw_svg(&s.plan, NULL, &out);
    assert_non_null(strstr(out.text, "a&lt;b&gt;&amp;&quot;c&quot; on cpu"));
    assert_non_null(strstr(out.text, "<title>actor weights: at most 1.00 KiB</title>"));
    assert_non_null(strstr(out.text, "<title>overhead: at most 256 B</title>"));
    assert_non_null(strstr(out.text, "at most 4 trips"));
    gr_str_release(&out);
}

/* What the part of a picture between two texts says. */
static bool between(const char *text, const char *from, const char *to, const char *what)
{
    const char *a = strstr(text, from), *b = a ? strstr(a, to) : NULL, *at = a ? strstr(a, what) : NULL;
    return b && at && at < b;
}

static void test_svg_fills_the_peak_with_what_is_alive_then(void **state)
{
    (void)state;
    small_plan s;
    gr_str out = {0};
    make_plan(&s);
    s.plan.peak_step = 3; /* the activations live in the loop, the weights that come and go do not */
    s.ledger[0].first = 4, s.ledger[0].last = 5;
    gr_draw_svg(&s.plan, NULL, &out);
    static const char from[] = "What fills the peak", to[] = "Device memory over";
    assert_true(between(out.text, from, to, "ref weights at the peak: 2.00 KiB"));
    assert_true(between(out.text, from, to, "update activations at the peak: 512 B"));
    assert_true(between(out.text, from, to, "overhead at the peak: 256 B"));
    assert_false(between(out.text, from, to, "actor weights at the peak"));
    gr_str_release(&out);
}

/* Where the x of each step of the one area without others of its name lies: by time, not by step. */
static void test_svg_draws_memory_by_time(void **state)
{
    (void)state;
    small_plan s;
    gr_str out = {0};
    make_plan(&s); /* of 60 ns the activations live from 15 to 55 */
    gr_draw_svg(&s.plan, NULL, &out);
    const char *title = strstr(out.text, "<title>update activations: at most");
    assert_non_null(title);
    const char *path = title;
    while (strncmp(path, "<path", 5)) path--;
    const double plot = 1304 - 84 - 300;
    char begin[32], end[32];
    snprintf(begin, sizeof(begin), "H%.1f", 84 + plot * 15 / 60);
    snprintf(end, sizeof(end), "H%.1f", 84 + plot * 55 / 60);
    assert_true(between(path, "<path", "<title>", begin));
    assert_true(between(path, "<path", "<title>", end));
    gr_str_release(&out);
}

static void test_long_names_of_a_picture_are_cut_and_told(void **state)
{
    (void)state;
    small_plan s;
    gr_str out = {0};
    make_plan(&s);
    s.ledger[3].what = "a_reference_policy_with_a_very_long_ä_name.params.0";
    gr_draw_svg(&s.plan, NULL, &out);
    assert_non_null(strstr(out.text, "<title>a_reference_policy_with_a_very_long_ä_name weights</title>"));
    assert_non_null(strstr(out.text, "…"));
    gr_str_release(&out);
}

/* ---- colours ------------------------------------------------------------------------------------------ */

/* What a colour, 0 to 1 linear, becomes for people without one kind of cone: Machado, Oliveira and Fernandes
 * 2009, severity 1. The first is everybody else. */
static const double sights[][3][3] = {
    {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
    {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
    {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
    {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}};

static double cube(double t)
{
    return t > 0.008856 ? cbrt(t) : 7.787 * t + 16.0 / 116;
}

/* CIE L*a*b* of "#rrggbb" as seen. */
static void lab_of(const char *colour, const double sight[3][3], double lab[3])
{
    double rgb[3], seen[3];
    const long hex = strtol(colour + 1, NULL, 16);
    for (int i = 0; i < 3; i++) {
        const double c = (double)(hex >> (16 - 8 * i) & 255) / 255;
        rgb[i] = c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4);
    }
    for (int i = 0; i < 3; i++)
        seen[i] = fmin(1, fmax(0, sight[i][0] * rgb[0] + sight[i][1] * rgb[1] + sight[i][2] * rgb[2]));
    const double x = cube((0.4124 * seen[0] + 0.3576 * seen[1] + 0.1805 * seen[2]) / 0.9505),
                 y = cube(0.2126 * seen[0] + 0.7152 * seen[1] + 0.0722 * seen[2]),
                 z = cube((0.0193 * seen[0] + 0.1192 * seen[1] + 0.9505 * seen[2]) / 1.089);
    lab[0] = 116 * y - 16, lab[1] = 500 * (x - y), lab[2] = 200 * (y - z);
}

static double apart(const char *a, const char *b, const double sight[3][3])
{
    double x[3], y[3];
    lab_of(a, sight, x);
    lab_of(b, sight, y);
    return sqrt((x[0] - y[0]) * (x[0] - y[0]) + (x[1] - y[1]) * (x[1] - y[1]) +
                (x[2] - y[2]) * (x[2] - y[2]));
}

static void test_categories_differ_for_any_colour_vision(void **state)
{
    (void)state;
    small_plan s;
    gr_entry ledger[GR_N_CATEGORIES];
    make_plan(&s);
    for (int c = 0; c < GR_N_CATEGORIES; c++)
        ledger[c] = (gr_entry){"x.0", (gr_category)c, GR_DEVICE, 1024, 1024 * (uint64_t)c, 0, 5};
    s.plan.ledger = ledger, s.plan.n_ledger = GR_N_CATEGORIES;
    gr_view *v = gr_view_new(&s.plan);
    assert_int_equal(v->n_series, GR_N_CATEGORIES);
    for (uint32_t i = 0; i < v->n_series; i++)
        for (uint32_t k = 0; k < i; k++)
            for (size_t sight = 0; sight < GR_LEN(sights); sight++)
                assert_true(apart(v->series[i].colour, v->series[k].colour, sights[sight]) > 14);
    gr_view_free(v);
}

static void test_each_node_keeps_a_colour_of_its_own(void **state)
{
    (void)state;
    small_plan s;
    make_plan(&s);
    s.steps[1].node = "rollout", s.steps[3].node = "reward"; /* update, rollout, update, reward, update */
    gr_view *v = gr_view_new(&s.plan);
    assert_int_equal(v->n_nodes, 3);
    assert_string_not_equal(gr_node_colour(v, "update"), gr_node_colour(v, "rollout"));
    assert_string_not_equal(gr_node_colour(v, "update"), gr_node_colour(v, "reward"));
    assert_string_not_equal(gr_node_colour(v, "rollout"), gr_node_colour(v, "reward"));
    gr_view_free(v);
}

static void test_pictures_of_an_empty_plan_are_whole(void **state)
{
    (void)state;
    gr_plan p = {.graph = "none", .hardware = "cpu", .notes = "", .reasons = "", .ranks = "0"};
    gr_str out = {0};
    gr_draw_svg(&p, NULL, &out);
    assert_string_equal(out.text + out.len - 7, "</svg>\n");
    out.len = 0;
    gr_draw_csv(&p, &out);
    assert_string_equal(strchr(out.text, '\n'), "\n");
    gr_str_release(&out);
}

static char *diff(const gr_plan *a, const gr_plan *b)
{
    gr_str out = {0};
    gr_plan_diff(a, b, &out);
    return out.text;
}

static void test_diff_says_in_words_what_changed(void **state)
{
    (void)state;
    small_plan a, b;
    make_plan(&a);
    make_plan(&b);
    char *text = diff(&a.plan, &b.plan);
    assert_string_equal(text, "the plans are the same\n");
    free(text);

    gr_setting with[] = {{"update", "micro_tokens", 512}, {"update", "threads", 2}},
               without[] = {{"update", "threads", 4}};
    a.plan.settings = with, a.plan.n_settings = 2;
    b.plan.settings = without, b.plan.n_settings = 1;
    b.steps[0] = step(GR_STEP_RUN, "update.first", GR_LANE_COMPUTE, 10);
    b.ledger[0].first = 0, b.ledger[0].last = 5;
    b.plan.budget_bytes = 4096, b.plan.peak_bytes = 3328, b.plan.peak_step = 3, b.plan.ns = 30;
    b.plan.numerics = "01";
    b.plan.graph_text = "graph: small\nlr: 2\n";
    text = diff(&a.plan, &b.plan);
    assert_string_equal(text,
                        "budget      8.00 KiB -> 4.00 KiB, 4.00 KiB less\n"
                        "peak        3.75 KiB in actor.params.0 -> 3.25 KiB in update.forward.0, 512 B less\n"
                        "predicted   60 ns -> 30 ns, 0.5 times the time\n"
                        "numerics    results differ in their bits\n"
                        "time of nodes\n"
                        "  update:   50 ns -> 30 ns, 0.6 times the time\n"
                        "settings\n"
                        "  update: micro_tokens 512 -> unset\n"
                        "  update: threads 2 -> 4\n"
                        "resources on the device\n"
                        "  actor weights: 1 loaded and offloaded -> 1 resident\n"
                        "transitions\n"
                        "  removed load actor weights: 1 step of 1.00 KiB -> none\n"
                        "graph file\n"
                        "  - lr: 1\n"
                        "  + lr: 2\n");
    free(text);
}

static const gr_point points[] = {
    {.value = 1,
     .text = "1",
     .fits = true,
     .peak_bytes = 1024,
     .budget_bytes = 4096,
     .ns = 20,
     .notes = "x, y\nz\n"},
    {.value = 2, .text = "2", .error = "2 does not divide 3"},
    {.value = 3,
     .text = "3",
     .peak_bytes = 8192,
     .budget_bytes = 4096,
     .ns = 40,
     .n_transitions = 5,
     .notes = ""},
};

static void test_a_sweep_is_a_table_and_csv(void **state)
{
    (void)state;
    gr_sweep s = {"small on cpu", "group", points, GR_LEN(points)};
    gr_str out = {0};
    gr_sweep_table(&s, &out);
    assert_string_equal(out.text, "small on cpu\n\n"
                                  "       group  fits         peak  iteration transitions  notes\n"
                                  "           1  yes      1.00 KiB      20 ns           0  x, y; z\n"
                                  "           2       2 does not divide 3\n"
                                  "           3  no       8.00 KiB      40 ns           5\n");
    out.len = 0;
    gr_sweep_csv(&s, &out);
    assert_string_equal(out.text, "group,fits,peak_bytes,seconds,transitions,moved_bytes,notes\n"
                                  "1,yes,1024,0.000000020,0,0,\"x, y; z\"\n"
                                  "2,,,,,,2 does not divide 3\n"
                                  "3,no,8192,0.000000040,5,0,\n");
    out.len = 0;
    gr_sweep_svg(&s, &out);
    assert_non_null(strstr(out.text, "group 3: does not fit, peak 8.00 KiB, 40 ns, 5 transitions"));
    assert_non_null(strstr(out.text, "hollow: does not fit"));
    gr_str_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times_follow_lanes_waits_and_stretched_trips),
        cmocka_unit_test(test_a_loop_begins_before_a_load_that_its_end_needs),
        cmocka_unit_test(test_series_hold_what_is_live_round_the_end),
        cmocka_unit_test(test_a_resource_below_a_hundredth_is_summed_by_category),
        cmocka_unit_test(test_times_and_series_of_an_absurd_plan_are_bounded),
        cmocka_unit_test(test_csv_has_a_quoted_row_for_each_step),
        cmocka_unit_test(test_svg_escapes_names_and_draws_each_resource),
        cmocka_unit_test(test_svg_fills_the_peak_with_what_is_alive_then),
        cmocka_unit_test(test_svg_draws_memory_by_time),
        cmocka_unit_test(test_long_names_of_a_picture_are_cut_and_told),
        cmocka_unit_test(test_categories_differ_for_any_colour_vision),
        cmocka_unit_test(test_each_node_keeps_a_colour_of_its_own),
        cmocka_unit_test(test_pictures_of_an_empty_plan_are_whole),
        cmocka_unit_test(test_diff_says_in_words_what_changed),
        cmocka_unit_test(test_a_sweep_is_a_table_and_csv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
