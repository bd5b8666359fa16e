/* tests/unit/test_folder.h: a folder of its own for a group of tests, made before the first and removed after
 * the last: cmocka_run_group_tests(tests, make_folder, remove_folder). */
#ifndef GR_TESTS_TEST_FOLDER_H
#define GR_TESTS_TEST_FOLDER_H

#include "runtime/base/base.h"
#include "runtime/base/files.h"

#include <stdlib.h>

static char dir[] = "/tmp/gr_test_XXXXXX";

static inline int make_folder(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    return gr_path_remove(dir, NULL);
}

/* The path of a file in it; the caller frees it. */
static inline char *in_dir(const char *name)
{
    return gr_printf("%s/%s", dir, name);
}

#endif
