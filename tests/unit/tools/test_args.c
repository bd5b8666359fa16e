#include "tools/args.h"

#include "tests/unit/test.h"
#include "runtime/base/files.h"

static gr_diag diag;

static gr_status parse(gr_args *a, const char *line)
{
    static char text[512];
    char *argv[32] = {"graphrun"};
    int argc = 1;
    snprintf(text, sizeof(text), "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    gr_diag_release(&diag);
    return gr_args_parse(a, argc, argv, &diag);
}

static void test_options_reach_their_fields(void **state)
{
    (void)state;
    gr_args a;
    assert_int_equal(parse(&a, "plan g.yaml --set a=1 --budget=2KiB --set b=2 -o x --policy keep"), GR_OK);
    assert_string_equal(a.command, "plan");
    assert_string_equal(a.operand[0], "g.yaml");
    assert_int_equal(a.ask.n_set, 2);
    assert_string_equal(a.ask.set[1], "b=2");
    assert_int_equal(a.ask.budget, 2048);
    assert_string_equal(a.ask.out, "x");
    assert_string_equal(a.ask.policy, "keep");
    gr_args_release(&a);
    assert_int_equal(parse(&a, "exec --resume runs/x --steps 1"), GR_OK);
    assert_true(a.ask.has_steps && !a.ask.has_seed);
    assert_int_equal(parse(&a, "plan --help"), GR_OK);
    assert_true(a.help);
}

static void test_wrong_arguments_are_named(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"pln g.yaml", "unknown command 'pln'; did you mean 'plan'?"},
        {"plan g.yaml --bugdet 1", "unknown option '--bugdet' of graphrun plan; did you mean '--budget'?"},
        {"plan g.yaml --budget", "--budget needs a value: BYTES|max"},
        {"plan g.yaml --budget -3", "--budget '-3' must be a size such as 80GiB, or max"},
        {"exec g.yaml --steps 3x", "--steps '3x' must be an integer of at least 0"},
        {"plan g.yaml --policy fast", "--policy 'fast' must be one of auto keep transition every_node"},
        {"plan g.yaml --set a", "--set 'a' must be of the form KEY=VALUE"},
        {"plan a b", "unexpected argument 'b' of graphrun plan"},
        {"plan", "graphrun plan needs GRAPH"},
        {"init --config c", "graphrun init needs --out DIR"},
        {"check g --explain=1", "--explain takes no value"},
        {"", "a command is missing; see graphrun --help"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        gr_args a;
        assert_int_equal(parse(&a, cases[i][0]), GR_E_INVALID);
        assert_string_equal(diag.messages[0].text, cases[i][1]);
        gr_args_release(&a);
    }
}

static void assert_committed(const char *path, void (*print)(gr_str *))
{
    char *text = NULL;
    size_t n;
    gr_str want = {0};
    print(&want);
    if (getenv("GR_UPDATE_GOLDEN")) assert_int_equal(gr_file_write(path, want.text, want.len, &diag), GR_OK);
    assert_int_equal(gr_file_read(path, 0, &text, &n, &diag), GR_OK);
    assert_string_equal(text, want.text);
    free(text);
    gr_str_release(&want);
}

static void complete_bash(gr_str *out)
{
    assert_true(gr_args_completion("bash", out));
}

static void complete_zsh(gr_str *out)
{
    assert_true(gr_args_completion("zsh", out));
}

static void complete_fish(gr_str *out)
{
    assert_true(gr_args_completion("fish", out));
    assert_false(gr_args_completion("csh", out));
}

static void test_man_page_and_completion_are_those_of_the_table(void **state)
{
    (void)state;
    assert_committed("docs/graphrun.1", gr_args_man);
    assert_committed("tools/completion.bash", complete_bash);
    assert_committed("tools/completion.zsh", complete_zsh);
    assert_committed("tools/completion.fish", complete_fish);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_reach_their_fields),
        cmocka_unit_test(test_wrong_arguments_are_named),
        cmocka_unit_test(test_man_page_and_completion_are_those_of_the_table),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gr_diag_release(&diag);
    return failed;
}
