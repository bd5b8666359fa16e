#include "runtime/comm/watchdog.h"

#include "runtime/comm/comm.h"
#include "tests/unit/test.h"

#define SECOND UINT64_C(1000000000)

enum { N = 4 };
static const uint64_t now = 1000 * SECOND;

/* All at work, heard just now. */
static void calm(gr_watched x[N])
{
    for (int r = 0; r < N; r++)
        x[r] = (gr_watched){.sign = {.iteration = 3, .limit = 45, .step = "update.forward.1"},
                            .heard_ns = now,
                            .host = r < 2 ? "a" : "b"};
}

static void waiting(gr_watched *x, uint32_t seconds)
{
    x->sign =
        (gr_sign){.iteration = 3, .seconds = seconds, .limit = 600, .waits = true, .step = "update.reduce.1"};
}

static void expect(const gr_watched x[N], const char *want)
{
    char *why = gr_watchdog_judge(x, N, now);
    if (want) {
        assert_non_null(why);
        assert_non_null(strstr(why, want));
    } else {
        assert_null(why);
    }
    free(why);
}

static void test_silence(void **state)
{
    gr_watched x[N];
    (void)state;
    calm(x);
    expect(x, NULL);
    x[2].heard_ns = now - GR_COMM_SILENCE * SECOND;
    expect(x, NULL);
    x[2].heard_ns -= SECOND;
    expect(x, "rank 2 on host b has not answered for 30 s; it was last heard of in iteration 3, step "
              "'update.forward.1'");
    assert_null(gr_watchdog_lost(x, 2, now));
}

static void test_silence_may_be_longer(void **state)
{
    static const char *const wrong[] = {"", "x", "1", "30s", "-5", "99999999"};
    gr_watched x[N];
    gr_diag d;
    (void)state;
    gr_diag_init(&d);
    for (size_t i = 0; i < GR_LEN(wrong); i++)
        assert_int_equal(gr_watchdog_set_silence(wrong[i], &d), GR_E_INVALID);
    gr_diag_release(&d);
    assert_int_equal(gr_watchdog_silence(), GR_COMM_SILENCE);
    assert_int_equal(gr_watchdog_set_silence("120", NULL), GR_OK);
    assert_int_equal(gr_watchdog_silence_alone(), 180);
    calm(x);
    x[1].heard_ns = now - 120 * SECOND;
    expect(x, NULL);
    x[1].heard_ns -= SECOND;
    expect(x, "rank 1 on host a has not answered for 120 s");
    assert_int_equal(gr_watchdog_set_silence("30", NULL), GR_OK);
}

/* Long is too long where others wait, and only there. */
static void test_one_that_others_wait_for(void **state)
{
    gr_watched x[N];
    (void)state;
    calm(x);
    for (int r = 0; r < N; r++) x[r].sign.seconds = 500;
    expect(x, NULL);
    waiting(&x[0], GR_WATCHDOG_PATIENCE - 1);
    expect(x, NULL);
    waiting(&x[0], GR_WATCHDOG_PATIENCE);
    x[1].sign.seconds = 501;
    expect(x, "rank 1 on host a has been in iteration 3, step 'update.forward.1', for 501 s, which is too "
              "long (see run: "
              "{timeout}), and rank 0 waits for others in step 'update.reduce.1'");
    for (int r = 1; r < N; r++) x[r].sign.seconds = 44;
    waiting(&x[0], 500);
    expect(x, NULL);
    x[3].sign.seconds = 45;
    expect(x, "rank 3 on host b has been");
    x[3].sign.limit = 0;
    expect(x, NULL);
}

static void test_all_wait(void **state)
{
    gr_watched x[N];
    (void)state;
    calm(x);
    for (int r = 0; r < N; r++) waiting(&x[r], 600);
    x[2].sign.seconds = 599;
    expect(x, NULL);
    x[2].sign.seconds = 600;
    snprintf(x[2].sign.step, sizeof(x[2].sign.step), "update.norm.0");
    expect(x,
           "for 600 s all ranks have waited for each other, or for their devices; rank 0 on host a, rank 1 "
           "on host a, "
           "rank 3 on host b in iteration 3, step 'update.reduce.1'; rank 2 on host b in iteration 3, step "
           "'update.norm.0': all ranks are ended");
    x[1].sign.limit = 0;
    expect(x, NULL);
}

static gr_sign sign(void)
{
    gr_sign s;
    gr_watchdog_sign(&s);
    return s;
}

/* Two lanes and what is between: at work counts before waiting, and paths hide what is between. */
static void test_signs(void **state)
{
    (void)state;
    gr_sign board[2] = {0};
    assert_string_equal(sign().step, "start");
    assert_false(sign().waits);
    assert_int_equal(sign().limit, GR_WATCHDOG_TIMEOUT);
    gr_watchdog_wait(true);
    assert_true(sign().waits);
    gr_watchdog_wait(false);
    gr_watchdog_between(70);
    gr_watchdog_path(true, true, 90);
    assert_true(sign().waits); /* no lane is at anything */
    assert_int_equal(sign().limit, 90);
    gr_watchdog_path(true, false, 90);
    assert_false(sign().waits); /* the executor is */
    assert_int_equal(sign().limit, 70);
    gr_watchdog_tell(board, 1, 2);
    gr_watchdog_step(0, 5, "rollout.decode", 45);
    assert_string_equal(sign().step, "rollout.decode");
    assert_int_equal(sign().iteration, 5);
    assert_int_equal(sign().limit, 45);
    assert_string_equal(board[1].step, "rollout.decode");
    gr_watchdog_tell_of(0, &(gr_sign){.iteration = 4, .step = "reward"});
    gr_watchdog_tell_of(2, &(gr_sign){.iteration = 9}); /* nobody's */
    assert_string_equal(board[0].step, "reward");
    assert_int_equal(board[0].iteration, 4);
    gr_watchdog_goes_on(100);
    assert_int_equal(sign().limit, 100);
    gr_watchdog_step(3, 5, "update.gather.1", 50);
    gr_watchdog_wait(true); /* the calling thread's last: lane 3 */
    assert_false(sign().waits);
    assert_string_equal(sign().step, "rollout.decode");
    gr_watchdog_done(0);
    assert_true(sign().waits);
    assert_int_equal(sign().limit, 90);
    assert_string_equal(sign().step, "update.gather.1");
    gr_watchdog_done(3);
    gr_watchdog_path(false, false, 0);
    assert_false(sign().waits);
    assert_int_equal(sign().limit, 70);
    assert_string_equal(sign().step, "update.gather.1"); /* the last that began */
    gr_watchdog_tell(NULL, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signs),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_silence_may_be_longer),
        cmocka_unit_test(test_one_that_others_wait_for),
        cmocka_unit_test(test_all_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
