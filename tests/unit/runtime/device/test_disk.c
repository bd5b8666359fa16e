/* A file of state on a disk: what is written comes back, of any length; what cannot be had is refused by
 * name. */
#include "runtime/device/disk.h"
#include "tests/unit/test.h"
#include "runtime/base/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/var/tmp/graphrun-disk-XXXXXX";

static void assert_says(gr_diag *d, const char *text)
{
    char *all = d->n ? gr_message_format(&d->messages[d->n - 1]) : gr_strdup("nothing");
    if (!strstr(all, text)) fail_msg("no '%s' in '%s'", text, all);
    free(all);
    gr_diag_release(d);
    gr_diag_init(d);
}

static gr_disk *open_here(uint64_t bytes)
{
    gr_disk *k = NULL;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_disk_open(&k, folder, bytes, &d)) {
        char *why = gr_message_format(&d.messages[0]);
        print_message("skipped: %s\n", why);
        free(why);
    }
    gr_diag_release(&d);
    return k;
}

static char *bytes_of(uint64_t n, unsigned seed)
{
    char *b = aligned_alloc(GR_DISK_BLOCK, (n + GR_DISK_BLOCK) / GR_DISK_BLOCK * GR_DISK_BLOCK);
    for (uint64_t i = 0; i < n; i++) b[i] = (char)((i * 2654435761u + seed) >> 7);
    return b;
}

static void test_what_was_written_comes_back_whatever_its_length(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {256, 4096, 4352, (1 << 20) - 256, (1 << 20) + 512, (37 << 20) + 768};
    gr_disk *k = open_here(64 << 20);
    if (!k) skip();
    for (size_t i = 0; i < GR_LEN(lengths); i++) {
        const uint64_t n = lengths[i], at = i % 2 ? 8192 : 24 << 20;
        char *from = bytes_of(n, (unsigned)i), *to = bytes_of(n + 256, 99);
        char after = to[n];
        assert_int_equal(gr_disk_write(k, at, from, n, NULL), GR_OK);
        assert_int_equal(gr_disk_read(k, at, to, n, NULL), GR_OK);
        assert_memory_equal(from, to, n);
        assert_int_equal(to[n], after); /* not a byte more */
        free(from), free(to);
    }
    const gr_disk_use use = gr_disk_used(k);
    assert_true(use.taken >= 64 << 20); /* all of it, from the begin */
    assert_true(use.read == use.written && use.touched == 8192 + lengths[5]);
    gr_disk_close(k);
}

/* The file has no name; its descriptor is found among the process's. */
static int descriptor(uint64_t bytes)
{
    for (int fd = 3; fd < 64; fd++) {
        struct stat s;
        if (!fstat(fd, &s) && S_ISREG(s.st_mode) && s.st_nlink == 0 && (uint64_t)s.st_size == bytes)
            return fd;
    }
    return -1;
}

static void test_bytes_that_changed_on_the_disk_are_refused(void **state)
{
    (void)state;
    const uint64_t n = (3 << 20) + 256, size = 4 << 20;
    gr_disk *k = open_here(size);
    if (!k) skip();
    gr_diag d;
    gr_diag_init(&d);
    char *from = bytes_of(n, 1), *block = bytes_of(GR_DISK_BLOCK, 2);
    assert_int_equal(gr_disk_read(k, 0, from, n, &d), GR_E_IO); /* that nobody wrote */
    assert_says(&d, "are not those that were written");
    assert_int_equal(gr_disk_write(k, 0, from, n, &d), GR_OK);
    const int fd = descriptor(size);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, block, GR_DISK_BLOCK, 1 << 20), GR_DISK_BLOCK);
    assert_int_equal(gr_disk_read(k, 0, from, n, &d), GR_E_IO);
    assert_says(&d, "are not those that were written");
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    assert_int_equal(gr_disk_read(k, 0, from, n, &d), GR_E_IO);
    assert_says(&d, "the file is shorter than it was");
    free(from), free(block);
    gr_diag_release(&d);
    gr_disk_close(k);
}

static void test_places_that_are_no_disk_are_refused(void **state)
{
    (void)state;
    gr_disk *k = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_int_equal(gr_disk_open(&k, "/nowhere", 4096, &d), GR_E_INVALID);
    assert_says(&d, "--disk '/nowhere': No such file");
    assert_int_equal(gr_disk_open(&k, "/etc/passwd", 4096, &d), GR_E_INVALID);
    assert_says(&d, "is no folder");
    if (!access("/dev/shm", W_OK)) {
        assert_int_equal(gr_disk_open(&k, "/dev/shm", 4096, &d), GR_E_INVALID);
        assert_says(&d, "lies in memory");
    }
    assert_int_equal(gr_disk_open(&k, folder, 1ULL << 52, &d), GR_E_IO);
    gr_diag_release(&d);
    assert_null(k);
}

static void test_nothing_is_left_in_the_folder(void **state)
{
    (void)state;
    gr_disk *k = open_here(1 << 20);
    if (!k) skip();
    assert_int_equal(rmdir(folder), 0); /* it is empty while the file is there */
    gr_disk_close(k);
    assert_int_equal(mkdir(folder, 0700), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_written_comes_back_whatever_its_length),
        cmocka_unit_test(test_bytes_that_changed_on_the_disk_are_refused),
        cmocka_unit_test(test_places_that_are_no_disk_are_refused),
        cmocka_unit_test(test_nothing_is_left_in_the_folder),
    };
    if (!mkdtemp(folder)) return 77;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
