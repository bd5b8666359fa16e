/* Files and folders under temporary names until they are whole, and the removal of those that never were. */
#include "runtime/base/aside.h"
#include "runtime/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK ".graphrun-"
enum {
    DIGITS = 8,
    NAME_KEPT = 200, /* bytes of the name, so that with the mark it is no longer than file systems take */
    TRIES = 100,
};

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static char *random_name(const char *path)
{
    uint32_t x =
        (uint32_t)gr_now_ns(); /* of a system without random numbers; the name is tried in any case */
    (void)!getrandom(&x, sizeof(x), GRND_NONBLOCK);
    const char *name = last_part(path);
    return gr_printf("%.*s%.*s" MARK "%08x", (int)(name - path), path, NAME_KEPT, name, x);
}

/* A folder that is gone before it is opened was taken for one that was left: its name is no
 * good, as one that exists. */
static int make(const char *aside, bool folder)
{
    if (!folder) return open(aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (mkdir(aside, 0777)) return -1;
    const int fd = open(aside, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) errno = EEXIST;
    return fd;
}

/* Between its making and its lock it may have been taken for one that was left. */
static bool is_ours(int fd, const char *aside)
{
    struct stat open_one, named;
    (void)flock(fd, LOCK_EX); /* without locks nothing is ever taken for left */
    return !fstat(fd, &open_one) && !lstat(aside, &named) && open_one.st_ino == named.st_ino &&
           open_one.st_dev == named.st_dev;
}

int gr_aside_new(char **aside, const char *path, bool folder)
{
    for (int i = 0; i < TRIES; i++) {
        char *name = random_name(path);
        int fd = make(name, folder);
        const bool again = fd < 0 && errno == EEXIST, ours = fd >= 0 && is_ours(fd, name);
        if (ours) *aside = name;
        if (ours) return fd;
        const int why = errno;
        if (fd >= 0) close(fd);
        free(name);
        errno = why;
        if (fd < 0 && !again) return -1;
    }
    errno = EEXIST;
    return -1;
}

/* Whether it is a name of ours, of path's last part where that is given. */
static bool is_aside(const char *name, const char *path)
{
    const size_t n = strlen(name), tail = strlen(MARK) + DIGITS;
    if (n <= tail || strncmp(name + n - tail, MARK, strlen(MARK)) != 0) return false;
    if (strspn(name + n - DIGITS, "0123456789abcdef") != DIGITS) return false;
    const char *of = path ? last_part(path) : NULL;
    return !of || (n - tail == strnlen(of, NAME_KEPT) && !strncmp(name, of, n - tail));
}

/* Remove it if nobody holds it; files: a folder is another's matter. */
static void remove_left(const char *aside, bool files)
{
    struct stat s;
    int fd = open(aside, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    const bool mine = !fstat(fd, &s) && (S_ISREG(s.st_mode) || (S_ISDIR(s.st_mode) && !files));
    if (mine && !flock(fd, LOCK_EX | LOCK_NB)) {
        gr_status st = gr_path_remove(aside, NULL);
        (void)st; /* another's, or read-only: it is in nobody's way */
    }
    close(fd);
}

static gr_status sweep_name(void *path, const char *dir, const char *name, gr_diag *d)
{
    (void)d;
    if (!is_aside(name, path)) return GR_OK;
    char *aside = gr_printf("%s/%s", dir, name);
    remove_left(aside, !path);
    free(aside);
    return GR_OK;
}

void gr_aside_sweep(const char *dir, const char *path)
{
    gr_status st = gr_dir_each(dir, sweep_name, (char *)(uintptr_t)path, NULL);
    (void)st; /* a folder that cannot be read keeps what it has */
}
