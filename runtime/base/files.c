/* Files and folders: read whole, written whole, made, synced, removed. */
#include "runtime/base/aside.h"
#include "runtime/base/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static gr_status io_error(gr_diag *d, const char *doing, const char *path)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot %s '%s': %s", doing, path, strerror(errno));
}

static const char *kind_of(mode_t mode)
{
    return S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

/* What a shell puts in place of <(...), and where its pipes end. */
static bool is_stream(const char *path)
{
    return !strcmp(path, "/dev/stdin") || !strncmp(path, "/dev/fd/", 8) ||
           !strncmp(path, "/proc/self/fd/", 14);
}

/* Without waiting for whoever writes a pipe. A folder, and where streams are allowed one that is named as
 * one, is left to read(2). */
static gr_status open_for_reading(int *out, const char *path, bool streams, gr_diag *d)
{
    struct stat s;
    gr_status st = GR_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &s)) st = io_error(d, "read", path);
    if (!st && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode)) {
        if (!streams || !is_stream(path))
            st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "'%s' is %s; a regular file is expected", path,
                               kind_of(s.st_mode));
        else if (fcntl(fd, F_SETFL, 0)) /* it may come slowly */
            st = io_error(d, "read", path);
    }
    if (st && fd >= 0) close(fd);
    if (!st) *out = fd;
    return st;
}

gr_status gr_file_open(int *fd, const char *path, gr_diag *d)
{
    return open_for_reading(fd, path, false, d);
}

gr_status gr_file_read(const char *path, size_t limit_bytes, char **out, size_t *n, gr_diag *d)
{
    char *bytes = NULL;
    size_t used = 0, cap = 0;
    int fd;
    gr_status st = open_for_reading(&fd, path, true, d);
    if (st) return st;
    for (;;) {
        if (cap - used < 65536) bytes = gr_realloc(bytes, cap = GR_MAX(2 * cap, (size_t)131072));
        ssize_t got = read(fd, bytes + used, cap - used - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            st = io_error(d, "read", path);
            goto out;
        }
        if (got == 0) break;
        used += (size_t)got;
        if (limit_bytes && used > limit_bytes) {
            st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "'%s' is larger than %zu bytes", path,
                               limit_bytes);
            goto out;
        }
    }
    bytes[used] = '\0';
    *out = bytes;
    *n = used;
    bytes = NULL;
out:
    free(bytes);
    close(fd);
    return st;
}

static bool write_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return false;
        bytes += put;
        n -= (size_t)put;
    }
    return true;
}

/* The folder a path lies in; caller frees. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return gr_strdup(".");
    return slash == path ? gr_strdup("/") : gr_strndup(path, (size_t)(slash - path));
}

/* Aside first, then in place of what was there: a file is never half written. */
static gr_status write_aside(const char *path, const void *bytes, size_t n, gr_diag *d)
{
    gr_status st = GR_OK;
    char *aside = NULL, *parent = parent_of(path);
    int fd = gr_aside_new(&aside, path, false);
    if (fd < 0 || !write_all(fd, bytes, n) || fsync(fd) || rename(aside, path))
        st = io_error(d, "write", path);
    if (st && aside) unlink(aside);
    if (fd >= 0 && close(fd) && !st) st = io_error(d, "write", path);
    if (!st) st = gr_dir_sync(parent, d);
    free(parent);
    free(aside);
    return st;
}

/* Pipes, terminals and devices stay what they are. */
static gr_status write_into(const char *path, const void *bytes, size_t n, gr_diag *d)
{
    gr_status st = GR_OK;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || !write_all(fd, bytes, n)) st = io_error(d, "write", path);
    if (fd >= 0 && close(fd) && !st) st = io_error(d, "write", path);
    return st;
}

gr_status gr_file_write(const char *path, const void *bytes, size_t n, gr_diag *d)
{
    struct stat s;
    const bool there = !stat(path, &s);
    if (there && !S_ISREG(s.st_mode)) return write_into(path, bytes, n, d);
    if (!there && !lstat(path, &s) && S_ISLNK(s.st_mode))
        return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': it is a symbolic link to nothing",
                             path);
    char *target = gr_path_real(path); /* a link stays one, too */
    gr_status st = !target && errno != ENOENT ? io_error(d, "write", path)
                                              : write_aside(target ? target : path, bytes, n, d);
    free(target);
    return st;
}

gr_status gr_file_copy(const char *from_dir, const char *name, const char *to_dir, bool *found, gr_diag *d)
{
    char *from = gr_printf("%s/%s", from_dir, name), *to = gr_printf("%s/%s", to_dir, name), *bytes = NULL;
    gr_status st = GR_OK;
    size_t n = 0;
    if (gr_path_exists(from)) {
        *found = true;
        st = gr_file_read(from, 0, &bytes, &n, d);
        if (!st) st = gr_file_write(to, bytes, n, d);
    }
    free(bytes);
    free(from);
    free(to);
    return st;
}

/* Its name is on the disk, too, before anything is put in it. */
static gr_status make_one(const char *path, gr_diag *d)
{
    if (mkdir(path, 0777)) return errno == EEXIST ? GR_OK : io_error(d, "create", path);
    char *parent = parent_of(path);
    gr_status st = gr_dir_sync(parent, d);
    free(parent);
    return st;
}

gr_status gr_dir_make(const char *path, gr_diag *d)
{
    gr_status st = GR_OK;
    char *copy = gr_strdup(path);
    for (char *c = copy + (*copy != '\0'); !st; c++) {
        if (*c && *c != '/') continue;
        char was = *c;
        *c = '\0';
        st = make_one(copy, d);
        *c = was;
        if (!was) break;
    }
    struct stat s;
    if (!st && (stat(path, &s) || !S_ISDIR(s.st_mode))) {
        errno = ENOTDIR;
        st = io_error(d, "create", path);
    }
    free(copy);
    return st;
}

gr_status gr_dir_sync(const char *path, gr_diag *d)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error(d, "open", path);
    gr_status st = fsync(fd) && errno != EINVAL ? io_error(d, "sync", path) : GR_OK;
    close(fd);
    return st;
}

static gr_status remove_child(void *user, const char *dir, const char *name, gr_diag *d)
{
    (void)user;
    char *child = gr_printf("%s/%s", dir, name);
    gr_status st = gr_path_remove(child, d);
    free(child);
    return st;
}

gr_status gr_path_remove(const char *path, gr_diag *d)
{
    struct stat s;
    if (lstat(path, &s)) return errno == ENOENT ? GR_OK : io_error(d, "remove", path);
    if (!S_ISDIR(s.st_mode)) return unlink(path) ? io_error(d, "remove", path) : GR_OK;
    gr_status st = gr_dir_each(path, remove_child, NULL, d);
    if (!st && rmdir(path)) st = io_error(d, "remove", path);
    return st;
}

/* The errors of a path that names nothing. */
static bool is_nothing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
}

bool gr_path_exists(const char *path)
{
    struct stat s;
    return !stat(path, &s) || !is_nothing(errno);
}

char *gr_path_real(const char *path)
{
    char *real = realpath(path, NULL);
    if (!real && errno == ENOMEM) gr_out_of_memory(0);
    return real;
}

gr_status gr_dir_each(const char *dir, gr_status (*fn)(void *, const char *, const char *, gr_diag *),
                      void *user, gr_diag *d)
{
    DIR *open_dir = opendir(dir);
    if (!open_dir) return errno == ENOENT ? GR_OK : io_error(d, "read", dir);
    gr_status st = GR_OK;
    struct dirent *e;
    while (errno = 0, !st && (e = readdir(open_dir)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) st = fn(user, dir, e->d_name, d);
    if (!st && errno) st = io_error(d, "read", dir); /* or a name is not seen, and not synced */
    closedir(open_dir);
    return st;
}
