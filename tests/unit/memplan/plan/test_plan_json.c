#include "tests/unit/synthetic.h"
#include "runtime/base/files.h"

static char *folder_file(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "/tmp/graphrun-json-%d-%s", (int)getpid(), name);
    return path;
}

static char *plan_text(uint64_t budget)
{
    shape s = SMALL;
    uint32_t level[1];
    gr_tasks_source src = {.user = &s, .build = build_shape};
    gr_schedule_options o = {.hardware = machine(),
                             .policy = GR_POLICY_AUTO,
                             .budget_bytes = budget,
                             .host_budget_bytes = 1ULL << 40};
    gr_plan *p = NULL;
    gr_str out = {0};
    assert_int_equal(gr_schedule(&p, level, &src, &o, NULL), GR_OK);
    p->graph = "grpo";
    p->graph_text = "a \"quoted\"\nline\ttab \\ \x01";
    gr_plan_write_json(p, &out);
    gr_plan_free(p);
    return out.text;
}

/* Read a text; the message that refuses it must hold want, or want is NULL. Returns what is written again. */
static char *read_back(const char *text, const char *want)
{
    const char *path = folder_file("plan.json");
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    gr_diag d;
    gr_diag_init(&d);
    gr_plan *p = NULL;
    gr_status st = gr_plan_read_json(&p, path, &d);
    gr_str out = {0};
    if (!want) {
        if (st) print_message("%s\n", d.messages[0].text);
        assert_int_equal(st, GR_OK);
        gr_plan_write_json(p, &out);
    } else {
        assert_int_equal(st, GR_E_INVALID);
        assert_int_equal(d.n, 1);
        if (!strstr(d.messages[0].text, want)) fail_msg("'%s' does not say '%s'", d.messages[0].text, want);
    }
    gr_plan_free(p);
    gr_diag_release(&d);
    unlink(path);
    return out.text;
}

/* text with the first occurrence of one string replaced. */
static char *with(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    assert_non_null(at);
    return gr_printf("%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
}

static void test_a_plan_read_back_is_written_with_the_same_bytes(void **state)
{
    (void)state;
    for (uint64_t budget = 10 << 20; budget <= 40 << 20; budget += 10 << 20) {
        char *text = plan_text(budget), *again = read_back(text, NULL);
        assert_string_equal(text, again);
        free(text);
        free(again);
    }
}

static void test_the_same_input_gives_the_same_bytes(void **state)
{
    (void)state;
    char *a = plan_text(12 << 20), *b = plan_text(12 << 20);
    assert_string_equal(a, b);
    free(a);
    free(b);
}

static void test_edited_files_are_refused_with_their_place(void **state)
{
    (void)state;
    static const char *const edits[][3] = {
        {"\"version\": 1", "\"version\": 2", "$.version: 2 is not the version that this program reads, 1"},
        {"\"fits\": true", "\"fits\": 1", "$.fits: should be true or false"},
        {"\"numerics\"", "\"numeric\"", "$: unknown key 'numeric'; did you mean 'numerics'?"},
        {"\"lane\": \"compute\"", "\"lane\": \"compote\"", "unknown 'compote'; did you mean 'compute'?"},
        {"\"id\": 3", "\"id\": 4", "$.ranks[0].ledger[3].id: should be 3"},
        {"\"offset\": 0", "\"offset\": 100", ".offset: should be a multiple of 256"},
        {"\"offset\": 0", "\"offset\": -256", ".offset: -256 is not in 0 .."},
        {"\"first\": 0", "\"first\": 99999", ".first: 99999 is not in 0 .."},
        {"\"reads\": [", "\"reads\": [77777, ", ".reads: [0] should be a number below"},
        {"\"after\": []", "\"after\": [0]", "$.ranks[0].steps[0].after: [0] should be a number below 0"},
        {"\"place\": \"device\"", "\"place\": \"tape\"", ".place: unknown 'tape'"},
        {"\"seconds\": ", "\"seconds\": -", "$.seconds: should be a number of seconds"},
        {"\"trips_max\": ", "\"trips_max\": 0, \"x\": ", "unknown key 'x'"},
        {"\"checkpoint\": {", "\"checkpoints\": {", "$.ranks[0].paths: unknown key 'checkpoints'"},
        {"\"ranks\": [\n  {", "\"ranks\": [{}, {", "$: key 'hosts' is missing"},
    };
    char *text = plan_text(12 << 20);
    for (size_t i = 0; i < GR_LEN(edits); i++) {
        char *edited = with(text, edits[i][0], edits[i][1]);
        assert_null(read_back(edited, edits[i][2]));
        free(edited);
    }
    free(text);
}

static void test_files_cut_short_anywhere_are_refused(void **state)
{
    (void)state;
    char *text = plan_text(12 << 20);
    size_t n = strlen(text);
    for (size_t cut = 0; cut + 3 < n; cut += 1 + n / 60) {
        char *part = gr_strndup(text, cut);
        assert_null(read_back(part, "no whole JSON file"));
        free(part);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plan_read_back_is_written_with_the_same_bytes),
        cmocka_unit_test(test_the_same_input_gives_the_same_bytes),
        cmocka_unit_test(test_edited_files_are_refused_with_their_place),
        cmocka_unit_test(test_files_cut_short_anywhere_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
