#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <time.h>

#include <jansson.h>

#include "runtime/io/checkpoint_dir.h"
#include "runtime/io/metrics.h"
#include "runtime/io/progress.h"
#include "runtime/base/signals.h"
#include "runtime/io/tensorboard.h"
#include "runtime/io/trace.h"

#include "tests/unit/test.h"
#include "runtime/base/files.h"

static char dir[64];
static gr_diag diag;

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/gr_run_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    gr_diag_release(&diag);
    return gr_path_remove(dir, NULL) != GR_OK;
}

static const char *in_dir(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void assert_file(const char *name, const char *want)
{
    char *text = NULL;
    size_t n;
    assert_int_equal(gr_file_read(in_dir(name), 0, &text, &n, &diag), GR_OK);
    assert_string_equal(text, want);
    free(text);
}

static void test_lines_hold_what_was_added_and_a_resume_cuts_them(void **state)
{
    (void)state;
    gr_lines *l = NULL;
    assert_int_equal(gr_lines_open(&l, in_dir("m"), 0, &diag), GR_OK);
    for (uint64_t step = 1; step <= 3; step++) {
        gr_lines_begin(l, step);
        gr_lines_number(l, "a", 0.1 * (double)step);
        gr_lines_number(l, "nan", NAN);
        gr_lines_integer(l, "i", -5);
        gr_lines_null(l, "kl");
        gr_lines_text(l, "t", "\"\n\x01\xC3\xA9\xFF", 6);
        assert_int_equal(gr_lines_end(l, &diag), GR_OK);
    }
    gr_lines_free(l);
    FILE *f = fopen(in_dir("m"), "a");
    fputs("{\"step\": 4, \"a\"", f); /* cut short by a kill */
    fclose(f);
    assert_int_equal(gr_lines_open(&l, in_dir("m"), 2, &diag), GR_OK);
    gr_lines_begin(l, 2);
    assert_int_equal(gr_lines_end(l, &diag), GR_OK);
    gr_lines_free(l);
    assert_file("m", "{\"step\": 1, \"a\": 0.1, \"nan\": null, \"i\": -5, \"kl\": null, "
                     "\"t\": \"\\\"\\n\\u0001\xC3\xA9\xEF\xBF\xBD\"}\n{\"step\": 2}\n");
}

/* What a file of lines is after a resume behind iteration 3, and the first line that is warned of; 0: none.
 */
static void check_history(const char *before, const char *after, unsigned line, int warnings)
{
    gr_lines *l = NULL;
    gr_diag said;
    gr_diag_init(&said);
    FILE *f = fopen(in_dir("h"), "w");
    fputs(before, f);
    fclose(f);
    assert_int_equal(gr_lines_open(&l, in_dir("h"), 4, &said), GR_OK);
    gr_lines_free(l);
    assert_file("h", after);
    assert_int_equal(said.n, warnings);
    if (warnings) assert_int_equal(said.messages[0].at.line, line);
    gr_diag_release(&said);
}

#define LINE(n) "{\"step\": " #n "}\n"

static void test_one_bad_byte_takes_no_history_along(void **state)
{
    (void)state;
    const char all[] = LINE(1) LINE(2) LINE(3);
    check_history(LINE(1) LINE(2) LINE(3) LINE(4) LINE(5), all, 0, 0);
    check_history(LINE(1) LINE(2) LINE(3) LINE(4) "{\"step\": 5, \"a", all, 0, 0);
    check_history("{\"step\"; 1}\n" LINE(2) LINE(3) LINE(4), "{\"step\"; 1}\n" LINE(2) LINE(3), 1, 1);
    check_history(LINE(1) "\xFF\n" LINE(3) LINE(4), LINE(1) "\xFF\n" LINE(3), 2, 1);
    check_history(LINE(1) LINE(9) LINE(3) LINE(4), LINE(1) LINE(9) LINE(3), 2, 1); /* a bit of a step */
    check_history(LINE(1) LINE(2) "{\"step\": 3]\n" LINE(4), LINE(1) LINE(2) "{\"step\": 3]\n", 3, 1);
    check_history(LINE(1) LINE(2) "{\"step\": 3}", all, 0, 0); /* of its end */
    check_history(LINE(1) LINE(2) "{\"step\": 3, \"a", LINE(1) LINE(2) "{\"step\": 3, \"a\n", 3, 1);
    check_history(LINE(1) LINE(2) "{\"step\": 3}x" LINE(4), LINE(1) LINE(2) "{\"step\": 3}x" LINE(4), 3, 1);
    check_history("x\ny\n", "x\ny\n", 1, 1);
    check_history("", "", 0, 0);
}

static void test_numbers_read_back_exactly(void **state)
{
    (void)state;
    const double values[] = {1.0 / 3, 5e-324, 1.7976931348623157e308, 0.30000000000000004, -0.0, 123456789};
    for (size_t i = 0; i < GR_LEN(values); i++) {
        gr_str s = {0};
        gr_json_add_number(&s, values[i]);
        double back = strtod(s.text, NULL);
        assert_memory_equal(&back, &values[i], sizeof(back));
        gr_str_release(&s);
    }
}

static void test_a_trace_is_valid_json_and_bounded(void **state)
{
    (void)state;
    const char *const tracks[] = {"compute", "host"};
    const gr_trace_what what = {"a\"b", "run", 7, 2500};
    gr_trace *t = NULL;
    assert_int_equal(gr_trace_open(&t, in_dir("t.json"), 0, tracks, 2, 3, &diag), GR_OK);
    uint64_t now = gr_now_ns();
    for (int i = 0; i < 5; i++) gr_trace_event(t, 1, &what, now, now + 1000);
    assert_int_equal(gr_trace_close(t, &diag), GR_OK);
    json_t *root = json_load_file(in_dir("t.json"), 0, NULL);
    assert_int_equal(json_array_size(root), 3 + 3 + 1); /* names, events, what was left out */
    json_t *event = json_array_get(root, 3);
    assert_string_equal(json_string_value(json_object_get(event, "name")), "a\"b");
    assert_true(json_number_value(json_object_get(event, "dur")) >= 1);
    const json_t *args = json_object_get(event, "args");
    assert_int_equal(json_integer_value(json_object_get(args, "step")), 7);
    assert_true(json_number_value(json_object_get(args, "predicted")) == 2.5);
    json_decref(root);
}

static void test_a_trace_has_iterations_and_memory(void **state)
{
    (void)state;
    const char *const tracks[] = {"compute", "iterations"};
    const gr_trace_what what = {"forward", "update", 7, 2500};
    gr_trace *t = NULL;
    assert_int_equal(gr_trace_open(&t, in_dir("m.json"), 0, tracks, 2, 0, &diag), GR_OK);
    const uint64_t now = gr_now_ns();
    gr_trace_iteration(t, 1, 0); /* of nothing: none */
    gr_trace_event(t, 0, &what, now + 5000, now + 6000);
    gr_trace_memory(t, now + 5000, 512);
    gr_trace_event(t, 0, &what, now + 2000, now + 3000); /* of another lane, told of later */
    gr_trace_memory(t, now + 6000, 512);
    gr_trace_memory(t, now + 7000, 256);
    gr_trace_iteration(t, 1, 1);
    gr_trace_event(t, 0, &what, now + 8000, now + 9000);
    gr_trace_iteration(t, 1, 2);
    assert_int_equal(gr_trace_close(t, &diag), GR_OK);
    json_t *root = json_load_file(in_dir("m.json"), 0, NULL);
    assert_int_equal(json_array_size(root), 3 + 3 + 2 + 2); /* names, steps, values, iterations */
    const json_t *first = json_array_get(root, 7), *second = json_array_get(root, 9),
                 *memory = json_array_get(root, 6);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "iteration 1");
    assert_true(fabs(json_number_value(json_object_get(first, "dur")) - 4) < 0.01);
    assert_true(fabs(json_number_value(json_object_get(second, "dur")) - 1) < 0.01);
    assert_string_equal(json_string_value(json_object_get(memory, "ph")), "C");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(memory, "args"), "planned bytes")),
                     256);
    json_decref(root);
}

static void test_crc32c_has_its_published_check_value(void **state)
{
    (void)state;
    assert_int_equal(gr_crc32c("123456789", 9), 0xE3069283u); /* RFC 3720's polynomial */
}

static void test_tensorboard_records_are_framed_and_hold_the_scalar(void **state)
{
    (void)state;
    gr_tensorboard *t = NULL;
    assert_int_equal(gr_tensorboard_open(&t, dir, &diag), GR_OK);
    gr_tensorboard_scalar(t, 300, "loss", 1.5);
    assert_int_equal(gr_tensorboard_flush(t, &diag), GR_OK);
    gr_tensorboard_free(t);
    char *command = gr_printf("cat %s/events.out.tfevents.*", dir), bytes[256];
    FILE *f = popen(command, "r");
    size_t n = fread(bytes, 1, sizeof(bytes), f);
    pclose(f);
    free(command);
    uint64_t first, second;
    memcpy(&first, bytes, 8);
    memcpy(&second, bytes + first + 16, 8);
    assert_int_equal(n, first + 16 + second + 16);
    const char *event = bytes + first + 16 + 12;
    /* step 300 as a varint; summary { value { tag "loss" simple_value 1.5f } } */
    static const unsigned char want[] = {0x10, 0xAC, 0x02, 0x2A, 0x0D, 0x0A, 0x0B, 0x0A, 0x04,
                                         'l',  'o',  's',  's',  0x15, 0x00, 0x00, 0xC0, 0x3F};
    assert_int_equal(second, 9 + sizeof(want));
    assert_memory_equal(event + 9, want, sizeof(want));
}

/* A line that was not synced when the power went may be zeros where a later one was written. */
static void test_what_a_power_cut_left_unwritten_is_no_history(void **state)
{
    (void)state;
    static const char kept[] = LINE(1) LINE(2) LINE(3), zeros[16];
    gr_lines *l = NULL;
    gr_diag said;
    gr_diag_init(&said);
    FILE *f = fopen(in_dir("z"), "w");
    fputs(kept, f);
    fwrite(zeros, 1, sizeof(zeros), f); /* of iteration 4, with its end */
    fputs(LINE(5), f);
    fclose(f);
    assert_int_equal(gr_lines_open(&l, in_dir("z"), 4, &said), GR_OK);
    gr_lines_free(l);
    assert_file("z", kept);
    assert_int_equal(said.n, 0);
    gr_diag_release(&said);
}

static void test_progress_is_a_line_an_iteration_where_there_is_no_terminal(void **state)
{
    (void)state;
    FILE *f = fopen(in_dir("p"), "w");
    gr_progress p;
    gr_progress_init(&p, f, false);
    gr_progress_step(&p, 1, 41, 0.25, NAN, 500, 2);
    gr_progress_step(&p, 2, 41, NAN, NAN, NAN, 2); /* all was left out by its `when` */
    gr_progress_end(&p);
    fclose(f);
    assert_file("p", "step 1/41  reward 0.250  250 tokens/s  2.00 s/step  1m20s left\n"
                     "step 2/41  2.00 s/step  1m18s left\n");
    char buf[32];
    assert_string_equal(gr_duration_format(7.4, buf), "7s");
    assert_string_equal(gr_duration_format(7620, buf), "2h07m");
    assert_string_equal(gr_duration_format(NAN, buf), "?");
}

/* What comes from the other end of a terminal, until it holds a text; false: not within 20 s. */
static bool comes(int from, gr_str *seen, const char *text)
{
    const uint64_t end = gr_now_ns() + UINT64_C(20000000000);
    while (!seen->text || !strstr(seen->text, text)) {
        char bytes[512];
        struct pollfd p = {.fd = from, .events = POLLIN};
        if (gr_now_ns() > end) return false;
        if (poll(&p, 1, 100) <= 0) continue;
        ssize_t n = read(from, bytes, sizeof(bytes));
        if (n <= 0) return false;
        gr_str_add(seen, bytes, (size_t)n);
    }
    return true;
}

static void test_a_long_iteration_is_told_of_on_a_terminal(void **state)
{
    (void)state;
    gr_str seen = {0};
    gr_progress p;
    const int other = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(other >= 0 && !grantpt(other) && !unlockpt(other));
    FILE *f = fopen(ptsname(other), "w");
    assert_non_null(f);
    assert_int_equal(ioctl(fileno(f), TIOCSWINSZ, &(struct winsize){.ws_col = 100, .ws_row = 24}), 0);
    gr_progress_init(&p, f, false);
    assert_true(p.terminal);
    p.every_ns = 1000000;
    gr_progress_begin(&p, 7, 40);
    gr_progress_at(&p, "rollout", 0, 0, NULL);
    assert_true(comes(other, &seen, "\rstep 7/40  rollout  "));
    gr_progress_at(&p, "rollout", 12, 640, "tokens");
    gr_progress_at(&p, "rollout", 0, 0, NULL); /* its next step: how far it is stays */
    assert_true(comes(other, &seen, "\rstep 7/40  rollout 12/640 tokens  "));
    gr_progress_at(&p, "update", 0, 0, NULL);
    assert_true(comes(other, &seen, "\rstep 7/40  update  ")); /* and is not another's */
    gr_progress_step(&p, 7, 40, 0.25, NAN, 500, 2);
    gr_progress_begin(&p, 8, 40);
    gr_progress_at(&p, "rollout", 3, 640, "tokens");
    assert_true(comes(other, &seen, "s left  | 8: rollout 3/640 tokens  ")); /* behind the one before */
    gr_progress_at(&p, "a_name_that_does_not_fit_beside_it", 3, 640, "tokens");
    assert_true(comes(other, &seen, "\rstep 8/40  a_name_that_does_not_fit_beside_it 3/640 tokens  "));
    assert_null(strchr(seen.text, '\n'));
    gr_progress_end(&p);
    assert_true(comes(other, &seen, "\n"));
    fclose(f);
    close(other);
    gr_str_release(&seen);
}

static void test_a_long_iteration_is_told_of_in_lines_elsewhere(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = fopen(in_dir("q"), "w");
    gr_progress p;
    gr_progress_init(&p, f, false);
    p.every_ns = 1000000;
    gr_progress_begin(&p, 7, 40);
    for (uint64_t done = 0; !text || !strstr(text, "step 7/40  update 3"); done++) { /* while it writes */
        gr_progress_at(&p, "update", done, UINT64_MAX, "sequences");
        free(text);
        assert_int_equal(gr_file_read(in_dir("q"), 0, &text, &n, &diag), GR_OK);
    }
    gr_progress_step(&p, 7, 40, 0.25, NAN, 500, 2);
    gr_progress_end(&p);
    fclose(f);
    free(text);
    assert_int_equal(gr_file_read(in_dir("q"), 0, &text, &n, &diag), GR_OK);
    assert_null(strchr(text, '\r'));
    assert_non_null(strstr(text, "\nstep 7/40  reward 0.250  250 tokens/s"));
    free(text);
}

static void test_progress_to_nowhere_is_nothing(void **state)
{
    (void)state;
    gr_progress p;
    gr_progress_init(&p, NULL, false);
    assert_false(p.terminal);
    gr_progress_begin(&p, 1, 41);
    gr_progress_at(&p, "rollout", 1, 2, "tokens");
    gr_progress_at(NULL, "rollout", 1, 2, "tokens");
    gr_progress_step(&p, 1, 41, 0.25, NAN, 500, 2);
    gr_progress_say(&p, "kept");
    gr_progress_end(&p);
}

static void test_the_first_signal_asks_and_the_second_exits(void **state)
{
    (void)state;
    pid_t child = fork();
    if (!child) {
        gr_signals_catch();
        raise(SIGTERM);
        if (!gr_signals_stop()) _exit(7);
        raise(SIGINT);
        _exit(8);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 1);
}

/* The exit status of a process that gets these signals, the last one 0; 9 when it has got through them. */
static int after_signals(const int *signals, bool nohup)
{
    int status;
    pid_t child = fork();
    if (!child) {
        signal(SIGHUP, nohup ? SIG_IGN : SIG_DFL); /* whoever started the test */
        gr_signals_catch();
        for (; *signals; signals++) raise(*signals);
        _exit(gr_signals_stop() ? 9 : 7);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void test_a_terminal_that_goes_away_asks_and_never_ends(void **state)
{
    (void)state;
    assert_int_equal(after_signals((const int[]){SIGHUP, 0}, false), 9);
    assert_int_equal(after_signals((const int[]){SIGHUP, SIGHUP, SIGHUP, 0}, false), 9);
    assert_int_equal(after_signals((const int[]){SIGINT, SIGHUP, 0}, false), 9);
    assert_int_equal(after_signals((const int[]){SIGHUP, SIGTERM, 0}, false), 1);
    assert_int_equal(after_signals((const int[]){SIGHUP, 0}, true), 7); /* nobody is asked under nohup */
}

static gr_status write_checkpoint(uint64_t step)
{
    char *aside = NULL;
    gr_status st = gr_checkpoint_begin(&aside, dir, step, NULL);
    for (int i = 0; !st && i < 3; i++) {
        char *path = gr_printf("%s/f%d", aside, i);
        FILE *f = fopen(path, "w");
        fprintf(f, "%llu", (unsigned long long)step);
        fclose(f);
        free(path);
    }
    if (!st) st = gr_checkpoint_commit(dir, step, NULL);
    free(aside);
    return st;
}

static void test_old_checkpoints_are_pruned(void **state)
{
    (void)state;
    for (uint64_t step = 8; step <= 12; step++) assert_int_equal(write_checkpoint(step), GR_OK);
    assert_int_equal(write_checkpoint(9), GR_OK); /* again */
    assert_int_equal(gr_checkpoint_prune(dir, (gr_checkpoint_kept){.newest = 2}, &diag), GR_OK);
    uint64_t *steps;
    size_t n;
    assert_int_equal(gr_checkpoint_list(&steps, &n, dir, &diag), GR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(steps[0], 11);
    assert_int_equal(steps[1], 12);
    free(steps);
}

static void test_the_best_checkpoint_stays(void **state)
{
    (void)state;
    for (uint64_t step = 1; step <= 6; step++) assert_int_equal(write_checkpoint(step), GR_OK);
    assert_int_equal(gr_checkpoint_mark_best(dir, 1, &diag), GR_OK);
    assert_int_equal(gr_checkpoint_mark_best(dir, 2, &diag), GR_OK); /* again, of another */
    assert_int_equal(gr_checkpoint_prune(dir, (gr_checkpoint_kept){1, 2, 0}, &diag), GR_OK);
    uint64_t *steps;
    size_t n;
    assert_int_equal(gr_checkpoint_list(&steps, &n, dir, &diag), GR_OK);
    assert_int_equal(n, 2);
    assert_int_equal(steps[0], 2);
    assert_int_equal(steps[1], 6);
    free(steps);
    assert_file("checkpoints/best/f1", "2");
}

static void test_the_newest_finite_checkpoint_stays(void **state)
{
    (void)state;
    for (uint64_t step = 1; step <= 9; step++) assert_int_equal(write_checkpoint(step), GR_OK);
    assert_int_equal(gr_checkpoint_prune(dir, (gr_checkpoint_kept){2, 3, 5}, &diag), GR_OK);
    uint64_t *steps;
    size_t n;
    assert_int_equal(gr_checkpoint_list(&steps, &n, dir, &diag), GR_OK);
    assert_int_equal(n, 4);
    const uint64_t left[] = {3, 5, 8, 9};
    assert_memory_equal(steps, left, sizeof(left));
    assert_int_equal(gr_checkpoint_prune(dir, (gr_checkpoint_kept){0}, &diag), GR_OK); /* all stay */
    free(steps);
    assert_int_equal(gr_checkpoint_list(&steps, &n, dir, &diag), GR_OK);
    assert_int_equal(n, 4);
    free(steps);
}

static void test_a_run_directory_has_one_owner(void **state)
{
    (void)state;
    int a, b;
    assert_int_equal(gr_run_lock(&a, dir, &diag), GR_OK);
    assert_int_equal(gr_run_lock(&b, dir, &diag), GR_E_INVALID);
    gr_run_unlock(a);
    assert_int_equal(gr_run_lock(&b, dir, &diag), GR_OK);
    gr_run_unlock(b);
}

static void make(const char *name, bool folder)
{
    const char *path = in_dir(name);
    assert_int_equal(folder ? gr_dir_make(path, NULL) : gr_file_write(path, "mine", 4, NULL), GR_OK);
}

static bool there(const char *name)
{
    struct stat s;
    return !lstat(in_dir(name), &s);
}

/* A start removes what runs have left half done there, and nothing else that begins with a dot. */
static void test_a_start_removes_its_own_alone(void **state)
{
    (void)state;
    static const char *const left[] = {"checkpoints/.step-7.tmp", "checkpoints/.step-12.old"};
    static const char *const folders[] = {"checkpoints/.snapshot", "checkpoints/.step-7",
                                          "checkpoints/.step-.tmp", "checkpoints/.step-7x.tmp",
                                          "checkpoints/.step-7.tmp.bak"};
    static const char *const files[] = {"checkpoints/.gitignore",  "checkpoints/.nfs000123",
                                        "checkpoints/.step-8.tmp", "checkpoints/.best.tmp",
                                        "checkpoints/.step-9.old", "graph.yaml.tmp",
                                        "plan.json.graphrun-mine"};
    int lock;
    for (size_t i = 0; i < GR_LEN(left); i++) make(left[i], true);
    for (size_t i = 0; i < GR_LEN(folders); i++) make(folders[i], true);
    for (size_t i = 0; i < GR_LEN(files); i++) make(files[i], false);
    make("plan.json.graphrun-0badf00d", false);
    make("checkpoints/.step-7.tmp/half", false);
    assert_int_equal(gr_run_lock(&lock, dir, &diag), GR_OK);
    gr_run_unlock(lock);
    for (size_t i = 0; i < GR_LEN(left); i++) assert_false(there(left[i]));
    for (size_t i = 0; i < GR_LEN(folders); i++) assert_true(there(folders[i]));
    for (size_t i = 0; i < GR_LEN(files); i++) assert_true(there(files[i]));
    assert_false(there("plan.json.graphrun-0badf00d"));
}

/* Stands before the C library's: what a file system without locks says. */
static int no_locks;

int flock(int fd, int op)
{
    if (!no_locks) return (int)syscall(SYS_flock, fd, op);
    errno = no_locks;
    return -1;
}

static void test_a_file_system_without_locks_is_warned_of(void **state)
{
    (void)state;
    const int without[] = {ENOSYS, EOPNOTSUPP, ENOLCK};
    int lock;
    for (size_t i = 0; i < GR_LEN(without); i++) {
        no_locks = without[i];
        assert_int_equal(gr_run_lock(&lock, dir, &diag), GR_OK);
        assert_int_equal(diag.n, i + 1);
        assert_int_equal(diag.messages[i].severity, GR_WARNING);
        assert_non_null(strstr(diag.messages[i].text, "let no other process use this folder"));
        gr_run_unlock(lock);
    }
    no_locks = EIO;
    assert_int_equal(gr_run_lock(&lock, dir, &diag), GR_E_IO);
    no_locks = 0;
}

static void test_a_folder_without_a_name_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(gr_dir_make("", &diag), GR_E_IO);
    assert_int_equal(gr_dir_make("/", &diag), GR_OK);
}

static void test_a_killed_writer_leaves_whole_checkpoints(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        pid_t child = fork();
        if (!child)
            for (uint64_t step = 1;; step++)
                if (write_checkpoint(step) ||
                    gr_checkpoint_prune(dir, (gr_checkpoint_kept){.newest = 3}, NULL))
                    _exit(1);
        nanosleep(&(struct timespec){0, 3000000 + round * 700000}, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        int lock;
        assert_int_equal(gr_run_lock(&lock, dir, &diag), GR_OK);
        uint64_t *steps;
        size_t n;
        assert_int_equal(gr_checkpoint_list(&steps, &n, dir, &diag), GR_OK);
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < 3; k++) {
                char *name = gr_printf("checkpoints/step-%d/f%d", (int)steps[i], k);
                char *want = gr_printf("%d", (int)steps[i]);
                assert_file(name, want);
                free(name);
                free(want);
            }
        free(steps);
        gr_run_unlock(lock);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_lines_hold_what_was_added_and_a_resume_cuts_them),
        TEST(test_one_bad_byte_takes_no_history_along),
        TEST(test_what_a_power_cut_left_unwritten_is_no_history),
        TEST(test_numbers_read_back_exactly),
        TEST(test_a_trace_is_valid_json_and_bounded),
        TEST(test_a_trace_has_iterations_and_memory),
        TEST(test_crc32c_has_its_published_check_value),
        TEST(test_tensorboard_records_are_framed_and_hold_the_scalar),
        TEST(test_progress_is_a_line_an_iteration_where_there_is_no_terminal),
        TEST(test_a_long_iteration_is_told_of_on_a_terminal),
        TEST(test_a_long_iteration_is_told_of_in_lines_elsewhere),
        TEST(test_progress_to_nowhere_is_nothing),
        TEST(test_the_first_signal_asks_and_the_second_exits),
        TEST(test_a_terminal_that_goes_away_asks_and_never_ends),
        TEST(test_old_checkpoints_are_pruned),
        TEST(test_the_best_checkpoint_stays),
        TEST(test_the_newest_finite_checkpoint_stays),
        TEST(test_a_start_removes_its_own_alone),
        TEST(test_a_run_directory_has_one_owner),
        TEST(test_a_file_system_without_locks_is_warned_of),
        TEST(test_a_folder_without_a_name_is_an_error),
        TEST(test_a_killed_writer_leaves_whole_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
