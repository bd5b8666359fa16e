/* tests/unit/test.h: cmocka, and what our tests add to it. */
#ifndef GR_TESTS_TEST_H
#define GR_TESTS_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* NaN fails: the comparison is of what must hold, negated. */
#define assert_close(got, want, atol, rtol)                         \
    do {                                                            \
        double got_ = (got), want_ = (want);                        \
        if (!(fabs(got_ - want_) <= (atol) + (rtol)*fabs(want_)))   \
            fail_msg("%s: got %.9g, want %.9g", #got, got_, want_); \
    } while (0)

/* The path of a file in the shared data folder, or NULL where it is not present. The result lives until the
 * next call. */
static inline const char *shared_path(const char *name)
{
    static char path[4096];
    const char *root = getenv("GR_SHARED");
    snprintf(path, sizeof(path), "%s/data/%s", root ? root : "../shared", name);
    return access(path, R_OK) ? NULL : path;
}

/* Skip the running test, with its reason, where a shared file is not there. */
#define need_shared(var, name)                             \
    const char *var = shared_path(name);                   \
    if (!var) {                                            \
        print_message("skipped: no data file %s\n", name); \
        skip();                                            \
    }

#endif
