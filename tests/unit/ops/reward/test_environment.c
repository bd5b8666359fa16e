/* An environment's answers: their shapes, many conversations in one process, and faults of each kind. */
#include "ops/reward/environment.h"

#include <time.h>

#include "tests/unit/test.h"

enum { CONVERSATIONS = 64 };
static const char *const metrics[] = {"calls"};

static gr_environment *open_environment(gr_environment_config c, const char *command)
{
    gr_environment *e = NULL;
    gr_diag d;
    gr_diag_init(&d);
    c.command = c.replay ? NULL : command;
    c.at = (gr_loc){"g.yaml", 2, 3};
    if (!c.workers) c.workers = 1;
    if (!c.in_flight) c.in_flight = CONVERSATIONS;
    if (!c.timeout_ms) c.timeout_ms = 20000;
    c.conversations = CONVERSATIONS;
    c.metrics = metrics;
    c.n_metrics = 1;
    if (gr_environment_new(&e, &c, &d)) fail_msg("%s", d.messages[0].text);
    gr_diag_release(&d);
    return e;
}

static void start(gr_environment *e, uint32_t number, uint32_t attempt)
{
    json_t *fields = json_pack("{s:{s:s}}", "record", "answer", "7");
    gr_environment_start(e, number, attempt, fields);
    json_decref(fields);
}

static void step(gr_environment *e, uint32_t number, uint32_t turn, const char *text)
{
    json_t *fields = json_pack("{s:s, s:[i]}", "text", text, "token_ids", 1);
    gr_environment_step(e, number, turn, fields);
    json_decref(fields);
}

static gr_answer *next(gr_environment *e)
{
    gr_answer *a = NULL;
    assert_int_equal(gr_environment_next(e, 20000, &a, NULL), GR_OK);
    assert_non_null(a);
    return a;
}

static void wants_answer(gr_environment *e, uint32_t number, const char *text)
{
    gr_answer *a = next(e);
    if (a->error) fail_msg("%s", a->error);
    assert_int_equal(a->number, number);
    if (text)
        assert_string_equal(json_string_value(a->text), text);
    else
        assert_null(a->text);
    gr_answer_free(a);
}

static void wants_failure(gr_environment *e, uint32_t number, const char *part, bool late)
{
    gr_answer *a = next(e);
    assert_non_null(a->error);
    assert_int_equal(a->number, number);
    assert_int_equal(a->late, late);
    if (!strstr(a->error, part)) fail_msg("'%s' does not have '%s'", a->error, part);
    gr_answer_free(a);
}

/* Says each turn's text again, with how many messages it has had; start of N: nothing. */
#define ECHO                                                                                \
    "exec perl -ne 'BEGIN{$|=1} ($i) = /\"id\":(\\d+)/; next if /\"type\":\"end\"/; $n++; " \
    "if (/\"text\":\"(\\w*)/) { print qq({\"id\":$i,\"text\":\"$1$n\"}\\n) } else { print " \
    "qq({\"id\":$i}\\n) }'"

static void test_many_conversations_in_one_process(void **state)
{
    (void)state;
    gr_environment *e = open_environment((gr_environment_config){.workers = 3}, ECHO);
    bool seen[CONVERSATIONS] = {0};
    for (uint32_t i = 0; i < CONVERSATIONS; i++) start(e, i, 0);
    for (uint32_t i = 0; i < CONVERSATIONS; i++) {
        gr_answer *a = next(e);
        assert_null(a->error);
        assert_false(seen[a->number]);
        seen[a->number] = true;
        gr_answer_free(a);
    }
    for (uint32_t turn = 0; turn < 3; turn++)
        for (uint32_t i = 0; i < CONVERSATIONS; i++) step(e, i, turn, "x");
    for (uint32_t i = 0; i < 3 * CONVERSATIONS; i++) gr_answer_free(next(e));
    assert_int_equal(gr_environment_pending(e), 0);
    gr_environment_free(e);
}

static void test_a_line_may_have_several_answers(void **state)
{
    (void)state;
    gr_environment *e = open_environment(
        (gr_environment_config){0},
        "exec perl -ne 'BEGIN{$|=1} push @i, /\"id\":(\\d+)/; if (@i == 2) { "
        "print \"[\" . join(\",\", map { qq({\"id\":$_}) } reverse @i) . \"]\\n\"; @i = () }'");
    start(e, 4, 0);
    start(e, 5, 0);
    wants_answer(e, 5, NULL);
    wants_answer(e, 4, NULL);
    gr_environment_free(e);
}

static void test_a_process_that_ends_takes_its_conversations(void **state)
{
    (void)state;
    gr_environment *e = open_environment(
        (gr_environment_config){0},
        "exec perl -ne 'BEGIN{$|=1} exit 5 if /die/; /\"id\":(\\d+)/ and print qq({\"id\":$1}\\n)'");
    start(e, 1, 0);
    wants_answer(e, 1, NULL);
    start(e, 2, 0);
    wants_answer(e, 2, NULL);
    step(e, 1, 0, "die");
    wants_failure(e, 1, "sequence 1: the environment exited with status 5", false);
    step(e, 2, 0, "x"); /* its state is gone */
    wants_failure(e, 2,
                  "sequence 2: the environment that had it has ended (the last time because of this: the "
                  "environment exited with status 5)",
                  false);
    start(e, 2, 1); /* another process has it now */
    wants_answer(e, 2, NULL);
    step(e, 2, 0, "x");
    wants_answer(e, 2, NULL);
    gr_environment_free(e);
}

/* Whichever failure is shown says what the process did wrong. */
static void test_all_that_fail_with_a_process_say_why(void **state)
{
    (void)state;
    gr_environment *e = open_environment((gr_environment_config){0},
                                         "exec perl -ne 'BEGIN{$|=1} $. == 2 and print qq(hm\\n)'");
    start(e, 1, 0);
    start(e, 2, 0);
    for (int i = 0; i < 2; i++) {
        gr_answer *a = next(e);
        assert_non_null(a->error);
        assert_non_null(strstr(a->error, "sequence 1: bad reply of the environment: not JSON"));
        gr_answer_free(a);
    }
    gr_environment_free(e);
}

/* One conversation is slow, the others go on; what is said of it later is dropped. */
static void test_a_late_answer_fails_alone(void **state)
{
    (void)state;
    gr_environment *e = open_environment(
        (gr_environment_config){.timeout_ms = 400},
        "exec perl -ne 'BEGIN{$|=1} ($i) = /\"id\":(\\d+)/; if (/slow/) { $late = $i; next } "
        "print qq({\"id\":$late}\\n) if /wake/; print qq({\"id\":$i}\\n)'");
    start(e, 1, 0);
    start(e, 2, 0);
    wants_answer(e, 1, NULL);
    wants_answer(e, 2, NULL);
    step(e, 1, 0, "slow");
    for (int i = 0; i < 3; i++) {
        step(e, 2, 0, "x");
        wants_answer(e, 2, NULL);
    }
    wants_failure(e, 1, "no reply of the environment within 0.4 seconds", true);
    step(e, 2, 1, "wake"); /* the late one comes first */
    wants_answer(e, 2, NULL);
    gr_environment_free(e);
}

/* What passes while nobody listens is not the process's: its answers wait, more of them than a pipe holds. */
static void test_time_counts_while_somebody_listens(void **state)
{
    (void)state;
    enum { MANY = 40 };
    gr_environment *e = open_environment((gr_environment_config){.timeout_ms = 300},
                                         "exec perl -ne 'BEGIN{$|=1} ($i) = /\"id\":(\\d+)/; print "
                                         "qq({\"id\":$i,\"text\":\"), \"x\" x 8192, qq(\"}\\n)'");
    for (uint32_t i = 0; i < MANY; i++) start(e, i, 0);
    gr_answer *a = NULL;
    assert_int_equal(gr_environment_next(e, 0, &a, NULL), GR_OK);
    nanosleep(&(struct timespec){0, 800000000}, NULL);
    for (uint32_t i = a ? 1 : 0; i < MANY; i++) {
        gr_answer *next_one = next(e);
        if (next_one->error) fail_msg("%s", next_one->error);
        gr_answer_free(next_one);
    }
    gr_answer_free(a);
    gr_environment_free(e);
}

static void test_a_process_that_hangs_is_killed(void **state)
{
    (void)state;
    gr_environment *e = open_environment((gr_environment_config){.timeout_ms = 300}, "sleep 1000");
    start(e, 1, 0);
    start(e, 2, 0);
    gr_answer *a = next(e), *b = next(e);
    assert_non_null(a->error);
    assert_non_null(b->error);
    assert_true(a->late || b->late);
    gr_answer_free(a);
    gr_answer_free(b);
    gr_environment_free(e);
}

static void test_wrong_answers_fail_alone(void **state)
{
    (void)state;
    static const struct {
        const char *reply, *wants;
    } wrong[] = {
        {"\"text\": 3", "'text' is a number; a text is wanted"},
        {"\"messages\": {}", "'messages' is an object; a list is wanted"},
        {"\"messages\": [{\"content\": \"x\"}]", "message 0, counted from 0, is no object with a 'role'"},
        {"\"text\": \"a\", \"messages\": [{\"role\": \"user\"}]", "it has 'text' and 'messages'"},
        {"\"done\": \"yes\"", "'done' is a string; true or false is wanted"},
        {"\"reward\": \"1\"", "'reward' is a string; a number is wanted"},
        {"\"reward\": 1e300", "more than a 32-bit float can hold"},
        {"\"text\": \"a\\u0000b\"", "it holds the character \\u0000"},
        {"\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]", "it holds the character \\u0000"},
        {"\"Reward\": 1", "unknown key 'Reward'; it has id, text, messages, tools, done, reward, metrics"},
        {"\"tools\": []", "'tools' answers a start alone: they stand in the prompt"},
        {"\"metrics\": []", "'metrics' is a list; an object is wanted"},
        {"\"metrics\": {\"calls\": true}", "'calls' of 'metrics' is"},
    };
    for (size_t i = 0; i < GR_LEN(wrong); i++) {
        char *text = gr_printf("{\"id\": 1, %s}", wrong[i].reply), *why = NULL;
        json_t *reply = json_loads(text, JSON_ALLOW_NUL, NULL);
        assert_non_null(reply);
        assert_null(gr_answer_read(reply, GR_ANSWER_STEP, metrics, 1, &why));
        if (!strstr(why, wrong[i].wants)) fail_msg("'%s' does not have '%s'", why, wrong[i].wants);
        json_decref(reply);
        free(text);
        free(why);
    }
    char *why = NULL;
    json_t *paid = json_pack("{s:i, s:f}", "id", 1, "reward", 1.0);
    assert_null(gr_answer_read(paid, GR_ANSWER_START, metrics, 1, &why));
    assert_string_equal(why, "'reward' answers no start: the model has had no turn");
    free(why);
    static const struct {
        const char *reply, *why;
    } starts[] = {{"{\"tools\": {}}", "'tools' is an object; a list is wanted"},
                  {"{\"tools\": [{}, \"add\"]}", "tool 1, counted from 0, is a string; an object is wanted"},
                  {"{\"text\": \"a\", \"tools\": []}", NULL},
                  {"{\"messages\": [{\"role\": \"user\"}], \"tools\": [{\"name\": \"add\"}]}", NULL}};
    for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++) {
        json_t *reply = json_loads(starts[i].reply, 0, NULL);
        gr_answer *a = gr_answer_read(reply, GR_ANSWER_START, metrics, 1, &why);
        if (starts[i].why)
            assert_string_equal(why, starts[i].why);
        else
            assert_true(json_equal(a->tools, json_object_get(reply, "tools")));
        gr_answer_free(a);
        json_decref(reply);
        free(why);
    }
    gr_answer *end =
        gr_answer_read(paid, GR_ANSWER_SESSION, metrics, 1, &why); /* a harness's answer is the end */
    assert_true(end->done && end->reward == 1);
    gr_answer_free(end);
    json_object_set_new(paid, "text", json_string("more"));
    assert_null(gr_answer_read(paid, GR_ANSWER_SESSION, metrics, 1, &why));
    assert_string_equal(why, "what a harness says goes into its calls: its answer ends the session");
    json_decref(paid);
    free(why);
    gr_environment *e = open_environment((gr_environment_config){0},
                                         "exec perl -ne 'BEGIN{$|=1} ($i) = /\"id\":(\\d+)/; print /wrong/ ? "
                                         "qq({\"id\":$i,\"done\":3}\\n) : qq({\"id\":$i}\\n)'");
    start(e, 1, 0);
    start(e, 2, 0);
    wants_answer(e, 1, NULL);
    wants_answer(e, 2, NULL);
    step(e, 1, 0, "wrong");
    wants_failure(e, 1, "sequence 1: bad reply of the environment: 'done' is a number", false);
    step(e, 2, 0, "x"); /* the process lives */
    wants_answer(e, 2, NULL);
    gr_environment_free(e);
}

static void test_the_end_is_told(void **state)
{
    (void)state;
    gr_environment *e = open_environment((gr_environment_config){0},
                                         "exec perl -ne 'BEGIN{$|=1} if (/\"end\"/) { $n++; next } "
                                         "/\"id\":(\\d+)/; print qq({\"id\":$1,\"text\":\"$n\"}\\n)'");
    start(e, 1, 0);
    gr_answer_free(next(e));
    gr_environment_end(e, 1);
    gr_environment_end(e, 1); /* nothing is open: nothing is told */
    start(e, 2, 0);
    wants_answer(e, 2, "1");
    start(e, 2, 1); /* another try: the first one ends */
    wants_answer(e, 2, "2");
    gr_environment_free(e);
}

static void test_a_record_gives_the_same_answers(void **state)
{
    (void)state;
    char *path = gr_printf("/tmp/test_environment.%d", (int)getpid());
    gr_environment *e = open_environment((gr_environment_config){.record = path}, ECHO);
    gr_environment_at(e, 3, 0);
    start(e, 9, 0);
    wants_answer(e, 9, NULL);
    step(e, 9, 0, "a");
    wants_answer(e, 9, "a2");
    gr_environment_free(e);
    e = open_environment((gr_environment_config){.replay = path}, NULL);
    gr_environment_at(e, 3, 0);
    start(e, 9, 0);
    wants_answer(e, 9, NULL);
    step(e, 9, 0, "whatever");
    wants_answer(e, 9, "a2");
    step(e, 9, 1, "more");
    gr_answer *a = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_environment_next(e, 0, &a, &d), GR_E_FAILED);
    assert_non_null(strstr(d.messages[0].text, "has no answer 3.0.9.0.2"));
    gr_diag_release(&d);
    gr_environment_free(e);
    unlink(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_conversations_in_one_process),
        cmocka_unit_test(test_a_line_may_have_several_answers),
        cmocka_unit_test(test_a_process_that_ends_takes_its_conversations),
        cmocka_unit_test(test_a_late_answer_fails_alone),
        cmocka_unit_test(test_time_counts_while_somebody_listens),
        cmocka_unit_test(test_a_process_that_hangs_is_killed),
        cmocka_unit_test(test_all_that_fail_with_a_process_say_why),
        cmocka_unit_test(test_wrong_answers_fail_alone),
        cmocka_unit_test(test_the_end_is_told),
        cmocka_unit_test(test_a_record_gives_the_same_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
