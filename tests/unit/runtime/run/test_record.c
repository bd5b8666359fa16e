/* What roles of ranks tell each other of an iteration: as bytes and back, whole or refused; put together.
 */
#include "runtime/run/record.h"

#include "tests/unit/test.h"

#include <math.h>

enum { NODES = 3 };

static void add_metric(gr_record *r, const char *name, double value)
{
    struct gr_metric m = {.value = value};
    snprintf(m.name, sizeof(m.name), "%s", name);
    GR_PUSH(r->metrics, r->n_metrics, r->cap_metrics, m);
}

static void add_sample(gr_record *r, uint32_t seq, const char *prompt, const char *response, double score)
{
    gr_sample s = {.seq = seq, .score = score, .has_advantage = seq == 3, .advantage = score - 0.5};
    gr_str_puts(&s.prompt, prompt);
    if (*response) gr_str_puts(&s.response, response);
    GR_PUSH(r->samples, r->n_samples, r->cap_samples, s);
}

static gr_record *example(void)
{
    gr_record *r = gr_record_new(NODES);
    r->step = 7;
    r->asked_to_stop = true;
    r->ns = 1ull << 40;
    r->peak_bytes = 12345;
    for (uint64_t i = 0; i < NODES; i++) r->node_ns[i] = 100 + i;
    add_metric(r, "loss", -0.25);
    add_metric(r, "kl", NAN);
    add_sample(r, 3, "2+2=", "4\n\x80", 1);
    add_sample(r, 9, "2+3=", "", NAN);
    gr_str_puts(&r->notes, "all is 0\n");
    gr_str_puts(&r->state, "{\"prompts\":{\"epoch\":\"1\"}}");
    return r;
}

static void test_a_record_comes_back_as_it_was(void **state)
{
    (void)state;
    gr_record *r = example(), *back = NULL;
    gr_str bytes = {0};
    gr_record_pack(r, &bytes);
    assert_int_equal(gr_record_unpack(&back, bytes.text, bytes.len, NODES, NULL), GR_OK);
    assert_int_equal(back->step, 7);
    assert_true(back->asked_to_stop);
    assert_int_equal(back->ns, 1ull << 40);
    assert_int_equal(back->peak_bytes, 12345);
    assert_memory_equal(back->node_ns, r->node_ns, sizeof(*r->node_ns) * NODES);
    assert_int_equal(back->n_metrics, 2);
    assert_true(gr_record_find(back, "loss")->value == -0.25);
    assert_true(isnan(gr_record_find(back, "kl")->value));
    assert_null(gr_record_find(back, "lo"));
    assert_int_equal(back->n_samples, 2);
    assert_int_equal(back->samples[0].seq, 3);
    assert_string_equal(back->samples[0].prompt.text, "2+2=");
    assert_string_equal(back->samples[0].response.text, "4\n\x80");
    assert_true(back->samples[0].score == 1 && isnan(back->samples[1].score));
    assert_int_equal(back->samples[1].response.len, 0);
    assert_true(back->samples[0].has_advantage && back->samples[0].advantage == 0.5);
    assert_false(back->samples[1].has_advantage);
    assert_string_equal(back->notes.text, "all is 0\n");
    assert_string_equal(back->state.text, r->state.text);
    gr_record_free(back);
    gr_record_free(r);
    gr_str_release(&bytes);
}

/* Of a graph of other nodes, cut anywhere, with more behind it; lengths that overflow. */
static void test_what_is_no_record_is_refused(void **state)
{
    (void)state;
    gr_record *r = example(), *back = NULL;
    gr_str bytes = {0};
    gr_record_pack(r, &bytes);
    assert_int_equal(gr_record_unpack(&back, bytes.text, bytes.len, NODES + 1, NULL), GR_E_FAILED);
    for (size_t n = 0; n < bytes.len; n++) {
        char *cut = gr_malloc(n + 1); /* its own, so that a byte too far is seen */
        memcpy(cut, bytes.text, n);
        assert_int_equal(gr_record_unpack(&back, cut, n, NODES, NULL), GR_E_FAILED);
        free(cut);
    }
    for (size_t at = 0; at + 8 <= bytes.len; at += 8) {
        char *wrong = gr_malloc(bytes.len);
        memcpy(wrong, bytes.text, bytes.len);
        memset(wrong + at, 0xff, 8);
        if (!gr_record_unpack(&back, wrong, bytes.len, NODES, NULL)) gr_record_free(back);
        free(wrong);
    }
    gr_str_puts(&bytes, "x");
    assert_int_equal(gr_record_unpack(&back, bytes.text, bytes.len, NODES, NULL), GR_E_FAILED);
    gr_record_free(r);
    gr_str_release(&bytes);
}

static void test_records_of_roles_become_one(void **state)
{
    (void)state;
    gr_record *a = gr_record_new(NODES), *b = example();
    (void)state;
    a->step = 7;
    a->peak_bytes = 20000;
    a->node_ns[1] = 500;
    add_metric(a, "loss", 1);
    gr_str_puts(&a->notes, "its own\n");
    add_metric(a, "val.seconds", 0.5);
    add_metric(b, "val.seconds", 2);
    gr_record_merge(a, b);
    assert_true(a->asked_to_stop);
    assert_int_equal(a->peak_bytes, 20000);
    assert_int_equal(a->node_ns[0], 100);
    assert_int_equal(a->node_ns[1], 500);
    assert_true(gr_record_find(a, "loss")->value == 1); /* its own */
    assert_true(isnan(gr_record_find(a, "kl")->value)); /* the other's */
    assert_true(gr_record_find(a, "val.seconds")->value == 2);
    assert_int_equal(a->n_metrics, 3);
    assert_int_equal(a->n_samples, 2);
    assert_int_equal(b->n_samples, 0);
    assert_string_equal(a->notes.text, "its own\nall is 0\n");
    gr_record_free(a);
    gr_record_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_comes_back_as_it_was),
        cmocka_unit_test(test_what_is_no_record_is_refused),
        cmocka_unit_test(test_records_of_roles_become_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
