/* Every tests/golden/graphs/NAME.yaml is checked, and must print exactly NAME.stderr. GR_UPDATE_GOLDEN=1
 * rewrites those files; the difference is then for review. */
#include "graphs/graph/graph.h"

#include <dirent.h>

#include "tests/unit/test.h"
#include "runtime/base/files.h"
#include "graphs/loader/load.h"

#define FOLDER "tests/golden/graphs"

static char *messages_of(const char *path)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_graph *g = NULL;
    gr_str out = {0};
    gr_status st = gr_graph_load(&g, path, NULL, &d);
    assert_int_equal(st == GR_OK, d.n_errors == 0);
    gr_str_puts(&out, "");
    for (size_t i = 0; i < d.n; i++) {
        char *text = gr_message_format(&d.messages[i]);
        gr_str_printf(&out, "%s\n", text);
        free(text);
    }
    gr_graph_free(g);
    gr_diag_release(&d);
    return out.text;
}

static bool check_file(const char *name)
{
    char *path = gr_printf(FOLDER "/%s.yaml", name), *want_path = gr_printf(FOLDER "/%s.stderr", name);
    char *got = messages_of(path), *want = NULL;
    size_t n;
    bool same = true;
    if (getenv("GR_UPDATE_GOLDEN")) {
        assert_int_equal(gr_file_write(want_path, got, strlen(got), NULL), GR_OK);
    } else {
        assert_int_equal(gr_file_read(want_path, 0, &want, &n, NULL), GR_OK);
        same = !strcmp(got, want);
        if (!same) print_message("%s\nexpected:\n%sgot:\n%s", path, want, got);
    }
    free(path);
    free(want_path);
    free(got);
    free(want);
    return same;
}

static void test_messages_of_broken_graphs_are_as_written(void **state)
{
    (void)state;
    DIR *dir = opendir(FOLDER);
    assert_non_null(dir);
    size_t n = 0, failed = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".yaml")) continue;
        *dot = '\0';
        failed += !check_file(e->d_name);
        n++;
    }
    closedir(dir);
    assert_true(n >= 40);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages_of_broken_graphs_are_as_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
