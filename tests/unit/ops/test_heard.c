/* tests/unit/ops/test_heard.c: answers of an environment as one rank hands them to others: nothing of them is
 * lost, and no bit. */
#include "ops/rollout_heard.h"

#include "tests/unit/test.h"

/* As it is handed over: through text. */
static gr_answer *handed(const gr_answer *a, size_t n_metrics)
{
    json_t *out = gr_heard_write(a, n_metrics);
    assert_non_null(out);
    char *text = json_dumps(out, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_t *in = json_loads(text, 0, NULL);
    gr_answer *b = gr_heard_read(in, n_metrics);
    assert_non_null(b);
    json_decref(in);
    json_decref(out);
    free(text);
    return b;
}

static void is_said(void **state)
{
    (void)state;
    double metrics[] = {1.0 / 3, -0.0, 1e300};
    gr_answer a = {.number = 16777215,
                   .text = json_string("+3=\n\"\xc3\xa9\xe4\xb8\x80"),
                   .reward = 0.1 + 0.2,
                   .metrics = metrics};
    gr_answer *b = handed(&a, 3);
    assert_int_equal(b->number, 16777215);
    assert_true(json_equal(a.text, b->text));
    assert_null(b->messages);
    assert_null(b->error);
    assert_false(b->done || b->late || b->is_call);
    assert_memory_equal(&a.reward, &b->reward, sizeof(a.reward));
    assert_memory_equal(a.metrics, b->metrics, sizeof(metrics));
    gr_answer_free(b);
    json_decref(a.text);
}

static void ends(void **state)
{
    (void)state;
    gr_answer a = {.error = (char *)(uintptr_t) "no reply", .late = true};
    gr_answer *b = handed(&a, 0);
    assert_string_equal(b->error, "no reply");
    assert_true(b->late);
    assert_null(b->text);
    gr_answer_free(b);
    a = (gr_answer){.done = true, .refused = GR_SERVE_ROOM, .messages = json_pack("[{s:s}]", "role", "tool")};
    b = handed(&a, 0);
    assert_true(b->done);
    assert_int_equal(b->refused, GR_SERVE_ROOM);
    assert_true(json_equal(a.messages, b->messages));
    assert_false(b->reminds || b->tools);
    gr_answer_free(b);
    json_decref(a.messages);
    a = (gr_answer){.reminds = true, .tools = json_pack("[{s:s}]", "name", "add")};
    b = handed(&a, 0);
    assert_true(b->reminds);
    assert_true(json_equal(a.tools, b->tools));
    gr_answer_free(b);
    json_decref(a.tools);
}

static void is_call(void **state)
{
    (void)state;
    int32_t ids[] = {0, 151935, INT32_MAX};
    const gr_answer a = {.is_call = true, .ids = {.id = ids, .n = 3}, .max_tokens = UINT32_MAX};
    gr_answer *b = handed(&a, 0);
    assert_true(b->is_call);
    assert_int_equal(b->max_tokens, UINT32_MAX);
    assert_int_equal(b->ids.n, 3);
    assert_memory_equal(b->ids.id, ids, sizeof(ids));
    gr_answer_free(b);
}

static void is_none(void **state)
{
    (void)state;
    static const char wrong[] =
        "{\"number\": 1, \"late\": false, \"reminds\": false, \"ids\": [], \"call\": false, \"most\": 0, "
        "\"done\": 3, \"refused\": 0, \"reward\": 0, \"metrics\": []}";
    const char *const texts[] = {"{}", "[]", "{\"number\": 1}", wrong};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        json_t *from = json_loads(texts[i], 0, NULL);
        assert_null(gr_heard_read(from, 0));
        json_decref(from);
    }
}

/* In the order in which they came, each once. */
static void are_taken_in_order(void **state)
{
    (void)state;
    gr_heard_answers h = {0};
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 20; i++) {
            gr_answer *a = gr_calloc(1, sizeof(*a));
            a->number = i;
            gr_heard_add(&h, a);
        }
        for (uint32_t i = 0; i < (round == 2 ? 5u : 20u); i++) {
            gr_answer *a = gr_heard_next(&h);
            assert_int_equal(a->number, i);
            gr_answer_free(a);
        }
        if (round < 2) assert_null(gr_heard_next(&h));
    }
    gr_heard_release(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_said), cmocka_unit_test(ends),
                                       cmocka_unit_test(is_call), cmocka_unit_test(is_none),
                                       cmocka_unit_test(are_taken_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
