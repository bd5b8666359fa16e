#include "ops/reward/worker.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/unit/test.h"
#include "runtime/base/files.h"

/* Replies to each request with the length of its response, by one awk process. */
#define LENGTHS                                                                  \
    "exec perl -ne 'BEGIN{$|=1} /\"id\":(\\d+).*\"response\":\"([^\"]*)\"/ and " \
    "print qq({\"id\":$1,\"score\":) . length($2) . qq(}\\n)'"

static gr_workers *pool(gr_workers_config c, const char *command)
{
    gr_workers *w;
    c.command = command;
    if (!c.n) c.n = 1;
    c.at = (gr_loc){"g.yaml", 2, 3};
    assert_int_equal(gr_workers_new(&w, &c, NULL), GR_OK);
    return w;
}

static void submit(gr_workers *w, uint64_t id, size_t n_tokens, const char *response)
{
    json_t *fields = json_pack("{s:s, s:s}", "prompt", "p", "response", response);
    gr_workers_submit(w, id, n_tokens, fields);
    json_decref(fields);
}

/* One reply or failure; the failure's message in *error, which lives until the next call. */
static gr_reward collect(gr_workers *w, const char **error)
{
    static char *text;
    gr_reward r;
    gr_diag d;
    gr_diag_init(&d);
    free(text);
    text = NULL;
    gr_status st = gr_workers_collect(w, 10000, &r, &d);
    assert_true(st == GR_OK || st == GR_E_FAILED);
    if (st) text = gr_message_format(&d.messages[0]);
    assert_true(st || r.values);
    *error = text;
    gr_diag_release(&d);
    return r;
}

static void wants_score(gr_workers *w, uint64_t id, double value)
{
    const char *error;
    gr_reward r = collect(w, &error);
    if (error) fail_msg("%s", error);
    assert_int_equal(r.id, id);
    assert_int_equal(r.n, 1);
    assert_close(r.values[0], value, 0, 0);
    free(r.values);
}

static void wants_error(gr_workers *w, uint64_t id, const char *part)
{
    const char *error;
    gr_reward r = collect(w, &error);
    assert_non_null(error);
    assert_int_equal(r.id, id);
    if (!strstr(error, part)) fail_msg("'%s' does not have '%s'", error, part);
}

static size_t open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void test_many_requests_come_back_by_id(void **state)
{
    (void)state;
    enum { n = 500 };
    gr_workers *w = pool((gr_workers_config){.n = 3, .depth = 4}, LENGTHS);
    bool seen[n] = {0};
    char text[n + 1];
    memset(text, 'x', n);
    for (size_t i = 0; i < n; i++) {
        text[i] = '\0';
        submit(w, i, 0, text);
        text[i] = 'x';
    }
    for (size_t i = 0; i < n; i++) {
        const char *error;
        gr_reward r = collect(w, &error);
        assert_null(error);
        assert_true(r.id < n && !seen[r.id]);
        seen[r.id] = true;
        assert_close(r.values[0], (double)r.id, 0, 0);
        free(r.values);
    }
    assert_int_equal(gr_workers_pending(w), 0);
    gr_workers_free(w);
}

static void test_replies_may_change_order_within_a_worker(void **state)
{
    (void)state;
    gr_workers *w =
        pool((gr_workers_config){.depth = 2}, "while read a && read b; do echo '{\"id\":2,\"score\":20}'; "
                                              "echo '{\"score\":10,\"id\":1}'; done");
    submit(w, 1, 0, "a");
    submit(w, 2, 0, "b");
    wants_score(w, 2, 20);
    wants_score(w, 1, 10);
    gr_workers_free(w);
}

static void test_a_large_request_and_reply_do_not_block(void **state)
{
    (void)state;
    enum { n = 3000000 };
    gr_workers *w = pool((gr_workers_config){0}, LENGTHS);
    char *text = gr_malloc(n + 1);
    memset(text, 'y', n);
    text[n] = '\0';
    submit(w, 1, 0, text);
    wants_score(w, 1, n);
    gr_workers_free(w);
    w = pool((gr_workers_config){0}, "while read l; do printf '{\"id\":1,'; perl -e 'print \" \" x 3000000'; "
                                     "echo '\"score\":1}'; done");
    submit(w, 1, 0, "");
    wants_score(w, 1, 1);
    gr_workers_free(w);
    free(text);
}

/* The worker says something about a request that is still on its way: more is not to be written to it. */
static void test_an_answer_to_what_was_not_read(void **state)
{
    (void)state;
    enum { n = 3000000 };
    gr_workers *w =
        pool((gr_workers_config){0}, "head -c 1 >/dev/null; echo '{\"id\":1,\"score\":1}'; sleep 60");
    char *text = gr_malloc(n + 1);
    memset(text, 'y', n);
    text[n] = '\0';
    submit(w, 1, 0, text);
    wants_error(w, 1, "it answers what it has not read");
    submit(w, 2, 0, ""); /* the next one is asked for as ever */
    wants_error(w, 2, "no 'id' of a request");
    gr_workers_free(w);
    free(text);
}

static void test_scores_per_token_and_by_name(void **state)
{
    (void)state;
    const char *error;
    gr_workers *w = pool((gr_workers_config){.per_token = true},
                         "while read l; do echo '{\"id\":1,\"score\":[0,0.5,1]}'; done");
    submit(w, 1, 3, "abc");
    gr_reward r = collect(w, &error);
    assert_null(error);
    assert_int_equal(r.n, 3);
    assert_close(r.values[1], 0.5, 0, 0);
    free(r.values);
    submit(w, 1, 2, "ab");
    wants_error(w, 1, "'score' has 3 numbers, but the response has 2 tokens: ");
    gr_workers_free(w);

    static const char *const names[] = {"format", "correct"};
    w = pool((gr_workers_config){.names = names, .n_names = 2},
             "while read l; do echo '{\"id\":1,\"score\":{\"correct\":1,\"format\":0.25,\"more\":9}}'; done");
    submit(w, 1, 3, "abc");
    r = collect(w, &error);
    assert_null(error);
    assert_int_equal(r.n, 2);
    assert_close(r.values[0], 0.25, 0, 0);
    assert_close(r.values[1], 1, 0, 0);
    free(r.values);
    gr_workers_free(w);
}

/* Shapes of scores that are not what was asked for: what was expected and what came. */
static void test_a_wrong_score_says_expected_and_got(void **state)
{
    (void)state;
    static const char *const names[] = {"format", "correct"};
    static const struct {
        bool per_token;
        const char *score, *wants;
    } cases[] = {
        {true, "1",
         "'score' is a number; a list of one number for each of the response's 3 tokens is wanted"},
        {true, "[]", "'score' has 0 numbers, but the response has 3 tokens"},
        {true, "[1,2,3,4]", "'score' has 4 numbers, but the response has 3 tokens"},
        {true, "[1,\"x\",3]", "'score' of token 1, counted from 0, is a string; a number is wanted"},
        {true, "[1,2,1e39]",
         "'score' of token 2, counted from 0, is 1e+39, more than a 32-bit float can hold"},
        {false, "5", "'score' is a number; an object with a number for each of 'names' is wanted"},
        {false, "{\"format\":1}", "'correct' of 'score' is nothing; a number is wanted"},
        {false, "{\"format\":1,\"correct\":[]}", "'correct' of 'score' is a list; a number is wanted"},
        {false, "{\"format\":-1e39,\"correct\":1}",
         "'format' of 'score' is -1e+39, more than a 32-bit float"},
        {false, "{\"format\":3e38,\"correct\":3e38}", "the numbers of 'score' add up to 6e+38, more than"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        char *command = gr_printf("while read l; do echo '{\"id\":1,\"score\":%s}'; done", cases[i].score);
        gr_workers *w = pool((gr_workers_config){.per_token = cases[i].per_token,
                                                 .names = names,
                                                 .n_names = cases[i].per_token ? 0 : GR_LEN(names)},
                             command);
        submit(w, 1, 3, "abc");
        wants_error(w, 1, cases[i].wants);
        gr_workers_free(w);
        free(command);
    }
}

static void test_nonsense_is_shown_with_its_sequence(void **state)
{
    (void)state;
    static const struct {
        const char *reply, *wants;
    } cases[] = {
        {"hello",
         "sequence 7: bad reply of the reward worker: not JSON (what is no answer goes to stderr): 'hello'"},
        {"[1]", "not an object: '[1]'"},
        {"{\"score\":1}", "no 'id' of a request: '{\"score\":1}'"},
        {"{\"id\":8,\"score\":1}", "no 'id' of a request"},
        {"{\"id\":\"7\",\"score\":1}", "no 'id' of a request"},
        {"{\"id\":7}", "'score' is nothing; a number is wanted"},
        {"{\"id\":7,\"score\":null}", "'score' is null; a number is wanted"},
        {"{\"id\":7,\"score\":true}", "'score' is true; a number is wanted"},
        {"{\"id\":7,\"score\":NaN}", "not JSON"},
        {"{\"id\":7,\"score\":1e999}", "not JSON"},
        {"{\"id\":7,\"score\":1e39}", "'score' is 1e+39, more than a 32-bit float can hold (3.4e38): '{"},
        {"{\"id\":7,\"score\":-3.5e38}", "'score' is -3.5e+38, more than a 32-bit float can hold"},
        {"{\"id\":7,\"score\":[1]}", "'score' is a list; a number is wanted"},
        {"", "not JSON (what is no answer goes to stderr): ''"},
        {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
         "not JSON (what is no answer goes to stderr): "
         "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"},
    };
    for (size_t i = 0; i < GR_LEN(cases); i++) {
        char command[400];
        snprintf(command, sizeof(command),
                 "while read -r l; do case \"$l\" in *good*) echo '{\"id\":9,\"score\":3}';; *) echo '%s';; "
                 "esac; done",
                 cases[i].reply);
        gr_workers *w = pool((gr_workers_config){.timeout_ms = 5000}, command);
        submit(w, 7, 0, "bad");
        submit(w, 9, 0, "good");
        wants_error(w, 7, cases[i].wants);
        wants_score(w, 9, 3);
        gr_workers_free(w);
    }
}

static void test_a_worker_that_hangs_is_killed_with_its_children(void **state)
{
    (void)state;
    char command[200];
    snprintf(command, sizeof(command),
             "while read -r l; do case \"$l\" in *good*) echo '{\"id\":2,\"score\":1}';; "
             "*) trap '' TERM; sleep 1000 & echo $! > test_worker.pid; wait;; esac; done");
    gr_workers *w = pool((gr_workers_config){.timeout_ms = 300}, command);
    submit(w, 1, 0, "bad");
    submit(w, 2, 0, "good");
    wants_error(w, 1, "g.yaml:2:3: error: sequence 1: no reply of the reward worker within 0.3 seconds");
    wants_score(w, 2, 1);
    char *pid;
    size_t n;
    assert_int_equal(gr_file_read("test_worker.pid", 100, &pid, &n, NULL), GR_OK);
    for (int i = 0; i < 200 && !kill(atoi(pid), 0); i++) usleep(10000); /* init has to reap it */
    snprintf(command, sizeof(command), "/proc/%d/stat", atoi(pid));
    char *stat = NULL;
    if (kill(atoi(pid), 0) == 0 && !gr_file_read(command, 0, &stat, &n, NULL))
        assert_non_null(strstr(stat, ") Z ")); /* dead, where nobody reaps orphans */
    free(stat);
    free(pid);
    assert_int_equal(gr_path_remove("test_worker.pid", NULL), GR_OK);
    gr_workers_free(w);
}

static void test_a_crash_is_retried_once(void **state)
{
    (void)state;
    assert_int_equal(gr_path_remove("test_worker.flag", NULL), GR_OK);
    gr_workers *w = pool((gr_workers_config){0},
                         "while read l; do if [ -e test_worker.flag ]; then echo '{\"id\":5,\"score\":1}'; "
                         "else : > test_worker.flag; kill -SEGV $$; fi; done");
    submit(w, 5, 0, "x");
    wants_score(w, 5, 1);
    gr_workers_free(w);
    assert_int_equal(gr_path_remove("test_worker.flag", NULL), GR_OK);

    w = pool((gr_workers_config){.n = 2}, "read l; exit 3");
    submit(w, 5, 0, "x");
    wants_error(w, 5, "sequence 5: the reward worker exited with status 3, and so did the one before it");
    gr_workers_free(w);
    w = pool((gr_workers_config){.n = 2}, "kill -9 $$");
    submit(w, 5, 0, "x");
    wants_error(w, 5, "was killed by signal 9");
    gr_workers_free(w);
    w = pool((gr_workers_config){0}, "exec /no/such/command 2> /dev/null");
    submit(w, 5, 0, "x");
    wants_error(w, 5, "exited with status 127");
    gr_workers_free(w);
}

static gr_status refuse_again(void *user, gr_diag *d)
{
    ++*(unsigned *)user;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "its script has changed");
}

static void test_a_worker_is_not_started_again_as_another_one(void **state)
{
    (void)state;
    unsigned asked = 0;
    gr_diag d;
    gr_reward r;
    gr_diag_init(&d);
    gr_workers *w = pool((gr_workers_config){.again = refuse_again, .user = &asked}, "read l; exit 3");
    assert_int_equal(asked, 0); /* it is the first one */
    submit(w, 5, 0, "x");
    gr_status st = gr_workers_collect(w, 10000, &r, &d);
    assert_int_equal(st, GR_E_FAILED);
    assert_true(asked > 0);
    assert_string_equal(d.messages[0].text, "its script has changed");
    gr_diag_release(&d);
    gr_workers_free(w);
}

static void test_a_worker_that_exits_after_each_reply_is_replaced(void **state)
{
    (void)state;
    gr_workers *w = pool((gr_workers_config){.n = 2},
                         "read l; id=${l#*:}; echo \"{\\\"id\\\":${id%%,*},\\\"score\\\":4}\"");
    for (uint64_t i = 0; i < 10; i++) submit(w, i, 0, "x");
    for (uint64_t i = 0; i < 10; i++) {
        const char *error;
        gr_reward r = collect(w, &error);
        assert_null(error);
        free(r.values);
    }
    gr_workers_free(w);
}

static void test_floods_end(void **state)
{
    (void)state;
    gr_workers *w = pool((gr_workers_config){.line_bytes = 100000, .timeout_ms = 20000},
                         "read l; exec perl -e 'while (1) { print \"x\" x 1000 }'");
    submit(w, 4, 0, "x");
    wants_error(w, 4, "sequence 4: bad reply of the reward worker: too long: 'xxxx");
    gr_workers_free(w);
    w = pool((gr_workers_config){.timeout_ms = 20000}, "exec perl -e 'while (1) { print \"y\\n\" x 1000 }'");
    submit(w, 4, 0, "x");
    wants_error(w, 4, "not JSON (what is no answer goes to stderr): 'y'");
    gr_workers_free(w);
}

static void test_output_nobody_asked_for_restarts_the_worker(void **state)
{
    (void)state;
    gr_workers *w =
        pool((gr_workers_config){0},
             "while read l; do echo '{\"id\":1,\"score\":2}'; echo '{\"id\":1,\"score\":2}'; done");
    for (int i = 0; i < 3; i++) {
        submit(w, 1, 0, "x");
        wants_score(w, 1, 2);
        gr_reward none;
        assert_int_equal(gr_workers_collect(w, 0, &none, NULL), GR_OK);
        assert_null(none.values);
        usleep(50000); /* let the second line arrive while nothing is asked */
        submit(w, 3, 0, "x");
        gr_diag d;
        gr_diag_init(&d);
        assert_int_equal(gr_workers_collect(w, 10000, &none, &d), GR_E_FAILED); /* it answers 1, not 3 */
        gr_diag_release(&d);
    }
    gr_workers_free(w);
}

static void test_collect_returns_when_its_time_is_up(void **state)
{
    (void)state;
    gr_workers *w = pool((gr_workers_config){.grace_ms = 100}, "trap '' TERM; read l; exec sleep 1000");
    gr_reward r;
    submit(w, 1, 0, "x");
    uint64_t from = gr_now_ns();
    assert_int_equal(gr_workers_collect(w, 50, &r, NULL), GR_OK);
    assert_null(r.values);
    assert_in_range(gr_now_ns() - from, 45000000, 2000000000);
    assert_int_equal(gr_workers_pending(w), 1);
    from = gr_now_ns();
    gr_workers_free(w); /* the worker ignores the end of its input */
    assert_true(gr_now_ns() - from < 2000000000);
}

static void test_nothing_is_left_behind(void **state)
{
    (void)state;
    size_t before = open_files();
    for (int i = 0; i < 5; i++) {
        gr_workers *w = pool((gr_workers_config){.n = 3}, i % 2 ? "exit 1" : LENGTHS);
        for (uint64_t j = 0; j < 5; j++) submit(w, j, 0, "x");
        for (int j = 0; j < 3; j++) { /* two are left uncollected */
            const char *error;
            gr_reward r = collect(w, &error);
            assert_int_equal(error != NULL, i % 2);
            free(r.values);
        }
        gr_workers_free(w);
    }
    assert_int_equal(open_files(), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child, dead or alive */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_requests_come_back_by_id),
        cmocka_unit_test(test_replies_may_change_order_within_a_worker),
        cmocka_unit_test(test_a_large_request_and_reply_do_not_block),
        cmocka_unit_test(test_an_answer_to_what_was_not_read),
        cmocka_unit_test(test_scores_per_token_and_by_name),
        cmocka_unit_test(test_a_wrong_score_says_expected_and_got),
        cmocka_unit_test(test_nonsense_is_shown_with_its_sequence),
        cmocka_unit_test(test_a_worker_that_hangs_is_killed_with_its_children),
        cmocka_unit_test(test_a_crash_is_retried_once),
        cmocka_unit_test(test_a_worker_is_not_started_again_as_another_one),
        cmocka_unit_test(test_a_worker_that_exits_after_each_reply_is_replaced),
        cmocka_unit_test(test_floods_end),
        cmocka_unit_test(test_output_nobody_asked_for_restarts_the_worker),
        cmocka_unit_test(test_collect_returns_when_its_time_is_up),
        cmocka_unit_test(test_nothing_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
