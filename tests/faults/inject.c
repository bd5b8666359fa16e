/* Loaded into a process (LD_PRELOAD): counts its calls of libc by kind, and makes the n-th of a kind fail,
 * move fewer bytes than asked for, or be the last thing that the process does. Also writes down what the
 * process does to files.
 *
 * FAULT=KIND:N:HOW     HOW: the name of an error (ENOSPC, EIO ...); `short`: half the bytes are moved;
 * `kill`: SIGKILL in the call's place; `killed`: SIGKILL behind it. Without it calls are only counted.
 * FAULT_LASTS=1        the N-th and all that follow, as where a disk is full
 * FAULT_PATH=PREFIX    only calls on files below it count
 * FAULT_CALLER=own     only calls of the program itself and of the libraries that read its input count, not
 * of libc or MPI FAULT_PROGRAM=NAME   only in processes of this name FAULT_COUNTS=FILE    a struct
 * fault_counts (faults.h), which is there even when the process is killed FAULT_TRACE=FILE     each change of
 * a file below FAULT_PATH, as struct trace_record (faults.h), in the order in which they came; what stdio
 * writes by itself is not in it
 *
 * Threads: any. Counts are of all processes that share FAULT_COUNTS. Calls that libc makes by itself are not
 * seen, but for those of malloc. Nothing here allocates.
 */
#undef _FILE_OFFSET_BITS /* or open is a name of open64, and both are stood before here */

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/faults.h"

#define SHOWN __attribute__((visibility("default")))

static const char *const kind_names[] = {
#define X(name) #name,
    FAULT_KINDS(X)
#undef X
};

static const struct {
    const char *name;
    int number;
} errors[] = {{"ENOSPC", ENOSPC}, {"EIO", EIO},       {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM},
              {"EINTR", EINTR},   {"EACCES", EACCES}, {"EAGAIN", EAGAIN}, {"EDQUOT", EDQUOT}};

enum how { HOW_NONE, HOW_ERROR, HOW_SHORT, HOW_KILL, HOW_KILLED };

static bool on, own_only;
static enum how how;
static int error;
static int kind = -1;
static uint64_t nth;
static bool lasts;
static const char *below;
static fault_counts *counts;
static int trace_fd = -1;

/* ---- set up
 * ----------------------------------------------------------------------------------------------------------
 */

struct range {
    uintptr_t begin, end;
};
static struct range own[16]; /* where the program's own code lies */
static unsigned n_own;

static int note_range(struct dl_phdr_info *info, size_t size, void *user)
{
    static const char *const libraries[] = {"libjansson", "libyaml", "libpcre2", "libutf8proc",
                                            "graphrun_mpi"};
    bool wanted = !*info->dlpi_name; /* the program */
    (void)size;
    (void)user;
    for (size_t i = 0; i < sizeof(libraries) / sizeof(*libraries); i++)
        wanted = wanted || strstr(info->dlpi_name, libraries[i]);
    for (int i = 0; wanted && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X) || n_own == sizeof(own) / sizeof(*own)) continue;
        own[n_own++] =
            (struct range){info->dlpi_addr + p->p_vaddr, info->dlpi_addr + p->p_vaddr + p->p_memsz};
    }
    return 0;
}

static void read_fault(const char *text)
{
    char name[16] = "", what[16] = "";
    unsigned long long n = 0;
    if (sscanf(text, "%15[^:]:%llu:%15s", name, &n, what) != 3) abort();
    for (size_t i = 0; i < FAULT_N_KINDS; i++)
        if (!strcmp(name, kind_names[i])) kind = (int)i;
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (!strcmp(what, errors[i].name)) how = HOW_ERROR, error = errors[i].number;
    if (!strcmp(what, "short")) how = HOW_SHORT;
    if (!strcmp(what, "kill")) how = HOW_KILL;
    if (!strcmp(what, "killed")) how = HOW_KILLED;
    if (kind < 0 || !how || !n) abort();
    nth = n;
}

static long open_raw(const char *path, int flags)
{
    return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0666);
}

__attribute__((constructor)) static void set_up(void)
{
    const char *program = getenv("FAULT_PROGRAM"), *fault = getenv("FAULT"), *path = getenv("FAULT_COUNTS");
    const char *trace = getenv("FAULT_TRACE"), *caller = getenv("FAULT_CALLER");
    if (program && strcmp(program, program_invocation_short_name) != 0) return;
    below = getenv("FAULT_PATH");
    lasts = getenv("FAULT_LASTS") != NULL;
    own_only = caller && !strcmp(caller, "own");
    if (own_only) dl_iterate_phdr(note_range, NULL);
    if (fault) read_fault(fault);
    if (path) {
        long fd = open_raw(path, O_RDWR);
        if (fd < 0) abort();
        counts = (void *)syscall(SYS_mmap, NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
        if (counts == MAP_FAILED) abort();
        syscall(SYS_close, fd);
    }
    if (trace) trace_fd = (int)open_raw(trace, O_WRONLY | O_APPEND | O_CREAT);
    on = true;
}

/* ---- which call
 * ------------------------------------------------------------------------------------------------------ */

static bool is_own(const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;
    for (unsigned i = 0; i < n_own; i++)
        if (at >= own[i].begin && at < own[i].end) return true;
    return false;
}

/* The whole path of what is named from a folder (or AT_FDCWD), or of an open file (path NULL). */
static void whole_path(char out[4096], int fd, const char *path)
{
    char link[64];
    long n = 0;
    if (!path || *path != '/') {
        snprintf(link, sizeof(link), fd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", fd);
        n = syscall(SYS_readlinkat, AT_FDCWD, link, out, 4000L);
        n = n < 0 ? 0 : n;
    }
    snprintf(out + n, (size_t)(4096 - n), "%s%s", path && *path != '/' ? "/" : "", path ? path : "");
}

static bool is_below(int fd, const char *path)
{
    char whole[4096];
    whole_path(whole, fd, path);
    return !strncmp(whole, below, strlen(below));
}

static void kill_self(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static void note(const char *function, int fd, const char *path, const void *caller)
{
    char whole[4096] = "";
    Dl_info info = {0};
    if (!counts) return;
    if (path || fd >= 0) whole_path(whole, fd, path);
    dladdr(caller, &info);
    __atomic_fetch_add(&counts->injected, 1, __ATOMIC_RELAXED);
    snprintf(counts->what, sizeof(counts->what), "%s %.200s from %.80s+0x%lx", function, whole,
             info.dli_fname ? info.dli_fname : "?",
             (unsigned long)((uintptr_t)caller - (uintptr_t)info.dli_fbase));
}

/* What is to happen to this call. */
static enum how meet(enum fault_kind k, const char *function, int fd, const char *path, const void *caller)
{
    if (!on) return HOW_NONE;
    if (own_only && !is_own(caller)) return HOW_NONE;
    if (below && (path || fd >= 0) && !is_below(fd, path)) return HOW_NONE;
    static uint64_t alone[FAULT_N_KINDS];
    uint64_t *n = counts ? counts->n : alone;
    const uint64_t i = __atomic_add_fetch(&n[k], 1, __ATOMIC_RELAXED);
    if ((int)k != kind || !(lasts ? i >= nth : i == nth)) return HOW_NONE;
    note(function, fd, path, caller);
    if (how == HOW_KILL) kill_self();
    errno = error;
    return how;
}

static void after(enum how h)
{
    if (h == HOW_KILLED) kill_self();
}

/* ---- the trace
 * ------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t trace_lock = PTHREAD_MUTEX_INITIALIZER;

/* A call and its record are one, so that records have the order of calls. */
static bool trace_begin(int fd, const char *path)
{
    if (!on || trace_fd < 0 || (below && !is_below(fd, path))) return false;
    pthread_mutex_lock(&trace_lock);
    return true;
}

static void put_raw(const void *bytes, size_t n)
{
    for (const char *p = bytes; n;) {
        const long put = syscall(SYS_write, trace_fd, p, n);
        if (put <= 0) abort();
        p += put;
        n -= (size_t)put;
    }
}

/* done: whether the call did what it is there for. path is made whole; more: data of `n` bytes, or a second
 * path. */
static void trace_end(bool traced, bool done, enum trace_op op, int fd, int flags, uint64_t offset,
                      const char *path, const void *more, size_t n)
{
    const int was = errno;
    char whole[4096] = "";
    if (!traced) return;
    if (done) {
        if (path) whole_path(whole, AT_FDCWD, path);
        trace_record r = {op, fd, flags, (uint32_t)strlen(whole), offset, n};
        put_raw(&r, sizeof(r));
        put_raw(whole, r.path_bytes);
        put_raw(more, n);
    }
    pthread_mutex_unlock(&trace_lock);
    errno = was;
}

/* ---- files
 * -----------------------------------------------------------------------------------------------------------
 */

#define CALLER __builtin_return_address(0)
/* The function that this one stands before. */
#define NEXT(name)                  \
    static __typeof__(&name) next_; \
    if (!next_) *(void **)(void *)&next_ = dlsym(RTLD_NEXT, #name);
#define FAIL(h) ((h) == HOW_ERROR)

static int open_at(int dir, const char *path, int flags, mode_t mode, const void *caller)
{
    NEXT(openat)
    const enum how h = meet(FAULT_open, "open", dir, path, caller);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(dir, path);
    const int fd = next_(dir, path, flags, mode);
    trace_end(traced, fd >= 0, TRACE_OPEN, fd, flags, 0, path, NULL, 0);
    after(h);
    return fd;
}

#define MODE_OF(flags)                                      \
    mode_t mode = 0;                                        \
    if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
        va_list ap;                                         \
        va_start(ap, flags);                                \
        mode = va_arg(ap, mode_t);                          \
        va_end(ap);                                         \
    }

SHOWN int open(const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_at(AT_FDCWD, path, flags, mode, CALLER);
}

SHOWN int open64(const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_at(AT_FDCWD, path, flags, mode, CALLER);
}

SHOWN int openat(int dir, const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_at(dir, path, flags, mode, CALLER);
}

SHOWN int openat64(int dir, const char *path, int flags, ...)
{
    MODE_OF(flags)
    return open_at(dir, path, flags, mode, CALLER);
}

SHOWN int mkstemp(char *path)
{
    NEXT(mkstemp)
    const enum how h = meet(FAULT_open, "mkstemp", AT_FDCWD, path, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, path);
    const int fd = next_(path);
    trace_end(traced, fd >= 0, TRACE_OPEN, fd, O_RDWR | O_CREAT, 0, path, NULL, 0);
    after(h);
    return fd;
}

SHOWN int mkstemp64(char *path)
{
    NEXT(mkstemp64)
    const enum how h = meet(FAULT_open, "mkstemp64", AT_FDCWD, path, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, path);
    const int fd = next_(path);
    trace_end(traced, fd >= 0, TRACE_OPEN, fd, O_RDWR | O_CREAT, 0, path, NULL, 0);
    after(h);
    return fd;
}

SHOWN int memfd_create(const char *name, unsigned flags)
{
    NEXT(memfd_create)
    const enum how h = meet(FAULT_open, "memfd_create", -1, NULL, CALLER);
    const int fd = FAIL(h) ? -1 : next_(name, flags);
    after(h);
    return fd;
}

SHOWN FILE *fopen(const char *path, const char *mode)
{
    NEXT(fopen)
    const enum how h = meet(FAULT_open, "fopen", AT_FDCWD, path, CALLER);
    FILE *f = FAIL(h) ? NULL : next_(path, mode);
    after(h);
    return f;
}

SHOWN FILE *fopen64(const char *path, const char *mode)
{
    NEXT(fopen64)
    const enum how h = meet(FAULT_open, "fopen64", AT_FDCWD, path, CALLER);
    FILE *f = FAIL(h) ? NULL : next_(path, mode);
    after(h);
    return f;
}

SHOWN FILE *fdopen(int fd, const char *mode)
{
    NEXT(fdopen)
    const enum how h = meet(FAULT_open, "fdopen", fd, NULL, CALLER);
    FILE *f = FAIL(h) ? NULL : next_(fd, mode);
    after(h);
    return f;
}

SHOWN int fflush(FILE *f)
{
    NEXT(fflush)
    const enum how h = meet(FAULT_flush, "fflush", f ? fileno(f) : -1, NULL, CALLER);
    const int r = FAIL(h) ? EOF : next_(f);
    after(h);
    return r;
}

SHOWN ssize_t read(int fd, void *to, size_t n)
{
    NEXT(read)
    const enum how h = meet(FAULT_read, "read", fd, NULL, CALLER);
    const ssize_t got = FAIL(h) ? -1 : next_(fd, to, h == HOW_SHORT ? (n + 1) / 2 : n);
    after(h);
    return got;
}

/* What goes through a ring is not seen here: whoever asks for one is to make its calls one by one. */
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
SHOWN int io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
    (void)entries, (void)ring, (void)flags;
    return -EPERM;
}

SHOWN ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    NEXT(pread)
    const enum how h = meet(FAULT_read, "pread", fd, NULL, CALLER);
    const ssize_t got = FAIL(h) ? -1 : next_(fd, to, h == HOW_SHORT ? (n + 1) / 2 : n, at);
    after(h);
    return got;
}

SHOWN ssize_t pread64(int fd, void *to, size_t n, off64_t at)
{
    NEXT(pread64)
    const enum how h = meet(FAULT_read, "pread64", fd, NULL, CALLER);
    const ssize_t got = FAIL(h) ? -1 : next_(fd, to, h == HOW_SHORT ? (n + 1) / 2 : n, at);
    after(h);
    return got;
}

SHOWN ssize_t write(int fd, const void *from, size_t n)
{
    NEXT(write)
    const enum how h = meet(FAULT_write, "write", fd, NULL, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(fd, NULL);
    const ssize_t put = next_(fd, from, h == HOW_SHORT ? (n + 1) / 2 : n);
    const uint64_t end = traced ? (uint64_t)lseek(fd, 0, SEEK_CUR) : 0;
    trace_end(traced, put > 0, TRACE_WRITE, fd, 0, end - (uint64_t)put, NULL, from,
              put > 0 ? (size_t)put : 0);
    after(h);
    return put;
}

static ssize_t write_at(ssize_t (*next)(int, const void *, size_t, off_t), int fd, const void *from, size_t n,
                        off_t at, const void *caller)
{
    const enum how h = meet(FAULT_write, "pwrite", fd, NULL, caller);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(fd, NULL);
    const ssize_t put = next(fd, from, h == HOW_SHORT ? (n + 1) / 2 : n, at);
    trace_end(traced, put > 0, TRACE_WRITE, fd, 0, (uint64_t)at, NULL, from, put > 0 ? (size_t)put : 0);
    after(h);
    return put;
}

SHOWN ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
    NEXT(pwrite)
    return write_at(next_, fd, from, n, at, CALLER);
}

SHOWN ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at)
{
    NEXT(pwrite64)
    return write_at(next_, fd, from, n, at, CALLER);
}

SHOWN ssize_t writev(int fd, const struct iovec *v, int n)
{
    NEXT(writev)
    const enum how h = meet(FAULT_write, "writev", fd, NULL, CALLER);
    if (trace_begin(fd, NULL)) abort(); /* nobody does this to files: the trace would not have it */
    const ssize_t put = FAIL(h) ? -1 : next_(fd, v, h == HOW_SHORT ? (n + 1) / 2 : n);
    after(h);
    return put;
}

SHOWN ssize_t send(int fd, const void *from, size_t n, int flags)
{
    NEXT(send)
    const enum how h = meet(FAULT_write, "send", fd, NULL, CALLER);
    const ssize_t put = FAIL(h) ? -1 : next_(fd, from, h == HOW_SHORT ? (n + 1) / 2 : n, flags);
    after(h);
    return put;
}

/* A file is closed all the same, as Linux does it. */
SHOWN int close(int fd)
{
    NEXT(close)
    const enum how h = meet(FAULT_close, "close", fd, NULL, CALLER);
    const int r = next_(fd);
    after(h);
    if (!FAIL(h)) return r;
    errno = error;
    return -1;
}

SHOWN int fsync(int fd)
{
    NEXT(fsync)
    const enum how h = meet(FAULT_sync, "fsync", fd, NULL, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(fd, NULL);
    const int r = next_(fd);
    trace_end(traced, !r, TRACE_SYNC, fd, 0, 0, NULL, NULL, 0);
    after(h);
    return r;
}

SHOWN int fdatasync(int fd)
{
    NEXT(fdatasync)
    const enum how h = meet(FAULT_sync, "fdatasync", fd, NULL, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(fd, NULL);
    const int r = next_(fd);
    trace_end(traced, !r, TRACE_SYNC, fd, 0, 0, NULL, NULL, 0);
    after(h);
    return r;
}

SHOWN int ftruncate(int fd, off_t n)
{
    NEXT(ftruncate)
    const enum how h = meet(FAULT_size, "ftruncate", fd, NULL, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(fd, NULL);
    const int r = next_(fd, n);
    trace_end(traced, !r, TRACE_TRUNCATE, fd, 0, (uint64_t)n, NULL, NULL, 0);
    after(h);
    return r;
}

SHOWN int ftruncate64(int fd, off64_t n)
{
    NEXT(ftruncate64)
    const enum how h = meet(FAULT_size, "ftruncate64", fd, NULL, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(fd, NULL);
    const int r = next_(fd, n);
    trace_end(traced, !r, TRACE_TRUNCATE, fd, 0, (uint64_t)n, NULL, NULL, 0);
    after(h);
    return r;
}

SHOWN int posix_fallocate(int fd, off_t at, off_t n)
{
    NEXT(posix_fallocate)
    const enum how h = meet(FAULT_size, "posix_fallocate", fd, NULL, CALLER);
    const int r = FAIL(h) ? error : next_(fd, at, n);
    after(h);
    return r;
}

SHOWN int posix_fallocate64(int fd, off64_t at, off64_t n)
{
    NEXT(posix_fallocate64)
    const enum how h = meet(FAULT_size, "posix_fallocate64", fd, NULL, CALLER);
    const int r = FAIL(h) ? error : next_(fd, at, n);
    after(h);
    return r;
}

/* ---- folders
 * ---------------------------------------------------------------------------------------------------------
 */

SHOWN int rename(const char *from, const char *to)
{
    NEXT(rename)
    char whole[4096];
    const enum how h = meet(FAULT_rename, "rename", AT_FDCWD, from, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, from);
    const int r = next_(from, to);
    if (traced) whole_path(whole, AT_FDCWD, to);
    trace_end(traced, !r, TRACE_RENAME, 0, 0, 0, from, whole, traced ? strlen(whole) : 0);
    after(h);
    return r;
}

SHOWN int renameat2(int d1, const char *from, int d2, const char *to, unsigned flags)
{
    NEXT(renameat2)
    char whole[4096];
    const enum how h = meet(FAULT_rename, "renameat2", d1, from, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(d1, from);
    const int r = next_(d1, from, d2, to, flags);
    if (traced) whole_path(whole, d2, to);
    trace_end(traced, !r, TRACE_RENAME, 0, (int)flags, 0, from, whole, traced ? strlen(whole) : 0);
    after(h);
    return r;
}

SHOWN int link(const char *from, const char *to)
{
    NEXT(link)
    char whole[4096];
    const enum how h = meet(FAULT_link, "link", AT_FDCWD, to, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, to);
    const int r = next_(from, to);
    if (traced) whole_path(whole, AT_FDCWD, to);
    trace_end(traced, !r, TRACE_LINK, 0, 0, 0, from, whole, traced ? strlen(whole) : 0);
    after(h);
    return r;
}

SHOWN int symlink(const char *target, const char *path)
{
    NEXT(symlink)
    const enum how h = meet(FAULT_link, "symlink", AT_FDCWD, path, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, path);
    const int r = next_(target, path);
    trace_end(traced, !r, TRACE_SYMLINK, 0, 0, 0, path, target, strlen(target));
    after(h);
    return r;
}

SHOWN int unlink(const char *path)
{
    NEXT(unlink)
    const enum how h = meet(FAULT_unlink, "unlink", AT_FDCWD, path, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, path);
    const int r = next_(path);
    trace_end(traced, !r, TRACE_UNLINK, 0, 0, 0, path, NULL, 0);
    after(h);
    return r;
}

SHOWN int rmdir(const char *path)
{
    NEXT(rmdir)
    const enum how h = meet(FAULT_unlink, "rmdir", AT_FDCWD, path, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, path);
    const int r = next_(path);
    trace_end(traced, !r, TRACE_UNLINK, 0, 0, 0, path, NULL, 0);
    after(h);
    return r;
}

SHOWN int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir)
    const enum how h = meet(FAULT_mkdir, "mkdir", AT_FDCWD, path, CALLER);
    if (FAIL(h)) return -1;
    const bool traced = trace_begin(AT_FDCWD, path);
    const int r = next_(path, mode);
    trace_end(traced, !r, TRACE_MKDIR, 0, 0, 0, path, NULL, 0);
    after(h);
    return r;
}

SHOWN char *mkdtemp(char *path)
{
    NEXT(mkdtemp)
    const enum how h = meet(FAULT_mkdir, "mkdtemp", AT_FDCWD, path, CALLER);
    if (FAIL(h)) return NULL;
    const bool traced = trace_begin(AT_FDCWD, path);
    char *r = next_(path);
    trace_end(traced, r != NULL, TRACE_MKDIR, 0, 0, 0, path, NULL, 0);
    after(h);
    return r;
}

SHOWN DIR *opendir(const char *path)
{
    NEXT(opendir)
    const enum how h = meet(FAULT_dir, "opendir", AT_FDCWD, path, CALLER);
    DIR *d = FAIL(h) ? NULL : next_(path);
    after(h);
    return d;
}

SHOWN struct dirent *readdir(DIR *d)
{
    NEXT(readdir)
    const enum how h = meet(FAULT_dir, "readdir", dirfd(d), NULL, CALLER);
    struct dirent *e = FAIL(h) ? NULL : next_(d);
    after(h);
    return e;
}

SHOWN struct dirent64 *readdir64(DIR *d)
{
    NEXT(readdir64)
    const enum how h = meet(FAULT_dir, "readdir64", dirfd(d), NULL, CALLER);
    struct dirent64 *e = FAIL(h) ? NULL : next_(d);
    after(h);
    return e;
}

SHOWN int stat(const char *restrict path, struct stat *restrict s)
{
    NEXT(stat)
    const enum how h = meet(FAULT_stat, "stat", AT_FDCWD, path, CALLER);
    const int r = FAIL(h) ? -1 : next_(path, s);
    after(h);
    return r;
}

SHOWN int stat64(const char *restrict path, struct stat64 *restrict s)
{
    NEXT(stat64)
    const enum how h = meet(FAULT_stat, "stat64", AT_FDCWD, path, CALLER);
    const int r = FAIL(h) ? -1 : next_(path, s);
    after(h);
    return r;
}

SHOWN int lstat(const char *restrict path, struct stat *restrict s)
{
    NEXT(lstat)
    const enum how h = meet(FAULT_stat, "lstat", AT_FDCWD, path, CALLER);
    const int r = FAIL(h) ? -1 : next_(path, s);
    after(h);
    return r;
}

SHOWN int lstat64(const char *restrict path, struct stat64 *restrict s)
{
    NEXT(lstat64)
    const enum how h = meet(FAULT_stat, "lstat64", AT_FDCWD, path, CALLER);
    const int r = FAIL(h) ? -1 : next_(path, s);
    after(h);
    return r;
}

SHOWN int fstat(int fd, struct stat *s)
{
    NEXT(fstat)
    const enum how h = meet(FAULT_stat, "fstat", fd, NULL, CALLER);
    const int r = FAIL(h) ? -1 : next_(fd, s);
    after(h);
    return r;
}

SHOWN int fstat64(int fd, struct stat64 *s)
{
    NEXT(fstat64)
    const enum how h = meet(FAULT_stat, "fstat64", fd, NULL, CALLER);
    const int r = FAIL(h) ? -1 : next_(fd, s);
    after(h);
    return r;
}

SHOWN char *realpath(const char *restrict path, char *restrict to)
{
    NEXT(realpath)
    const enum how h = meet(FAULT_stat, "realpath", AT_FDCWD, path, CALLER);
    char *r = FAIL(h) ? NULL : next_(path, to);
    after(h);
    return r;
}

SHOWN ssize_t readlink(const char *restrict path, char *restrict to, size_t n)
{
    NEXT(readlink)
    const enum how h = meet(FAULT_stat, "readlink", AT_FDCWD, path, CALLER);
    const ssize_t r = FAIL(h) ? -1 : next_(path, to, n);
    after(h);
    return r;
}

SHOWN int flock(int fd, int what)
{
    NEXT(flock)
    const enum how h = meet(FAULT_lock, "flock", fd, NULL, CALLER);
    const int r = FAIL(h) ? -1 : next_(fd, what);
    after(h);
    return r;
}

/* ---- memory
 * ----------------------------------------------------------------------------------------------------------
 */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t each);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

SHOWN void *malloc(size_t n)
{
    const enum how h = meet(FAULT_memory, "malloc", -1, NULL, CALLER);
    void *p = FAIL(h) ? NULL : __libc_malloc(n);
    after(h);
    return p;
}

SHOWN void *calloc(size_t n, size_t each)
{
    const enum how h = meet(FAULT_memory, "calloc", -1, NULL, CALLER);
    void *p = FAIL(h) ? NULL : __libc_calloc(n, each);
    after(h);
    return p;
}

SHOWN void *realloc(void *old, size_t n)
{
    const enum how h = meet(FAULT_memory, "realloc", -1, NULL, CALLER);
    void *p = FAIL(h) ? NULL : __libc_realloc(old, n);
    after(h);
    return p;
}

SHOWN void *memalign(size_t alignment, size_t n)
{
    const enum how h = meet(FAULT_memory, "memalign", -1, NULL, CALLER);
    void *p = FAIL(h) ? NULL : __libc_memalign(alignment, n);
    after(h);
    return p;
}

SHOWN void *aligned_alloc(size_t alignment, size_t n)
{
    const enum how h = meet(FAULT_memory, "aligned_alloc", -1, NULL, CALLER);
    void *p = FAIL(h) ? NULL : __libc_memalign(alignment, n);
    after(h);
    return p;
}

SHOWN int posix_memalign(void **out, size_t alignment, size_t n)
{
    const enum how h = meet(FAULT_memory, "posix_memalign", -1, NULL, CALLER);
    void *p = FAIL(h) ? NULL : __libc_memalign(alignment, n);
    after(h);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

static void *map_at(__typeof__(&mmap) next, void *at, size_t n, int protection, int flags, int fd,
                    off_t offset, const void *caller)
{
    const enum how h = meet(FAULT_map, "mmap", flags & MAP_ANONYMOUS ? -1 : fd, NULL, caller);
    void *p = FAIL(h) ? MAP_FAILED : next(at, n, protection, flags, fd, offset);
    after(h);
    return p;
}

SHOWN void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    NEXT(mmap)
    return map_at(next_, at, n, protection, flags, fd, offset, CALLER);
}

SHOWN void *mmap64(void *at, size_t n, int protection, int flags, int fd, off64_t offset)
{
    NEXT(mmap64)
    return map_at(next_, at, n, protection, flags, fd, offset, CALLER);
}

/* ---- processes, threads
 * ---------------------------------------------------------------------------------------------- */

SHOWN pid_t fork(void)
{
    NEXT(fork)
    const enum how h = meet(FAULT_process, "fork", -1, NULL, CALLER);
    const pid_t pid = FAIL(h) ? -1 : next_();
    if (pid) after(h);
    return pid;
}

SHOWN int posix_spawn(pid_t *restrict pid, const char *restrict path,
                      const posix_spawn_file_actions_t *restrict fa, const posix_spawnattr_t *restrict attr,
                      char *const argv[restrict], char *const env[restrict])
{
    NEXT(posix_spawn)
    const enum how h = meet(FAULT_process, "posix_spawn", -1, NULL, CALLER);
    const int r = FAIL(h) ? error : next_(pid, path, fa, attr, argv, env);
    after(h);
    return r;
}

SHOWN int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *restrict fa, int fd,
                                           const char *restrict path, int flags, mode_t mode)
{
    NEXT(posix_spawn_file_actions_addopen)
    const enum how h = meet(FAULT_process, "posix_spawn_file_actions_addopen", -1, NULL, CALLER);
    const int r = FAIL(h) ? error : next_(fa, fd, path, flags, mode);
    after(h);
    return r;
}

SHOWN int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *fa, int fd, int as)
{
    NEXT(posix_spawn_file_actions_adddup2)
    const enum how h = meet(FAULT_process, "posix_spawn_file_actions_adddup2", -1, NULL, CALLER);
    const int r = FAIL(h) ? error : next_(fa, fd, as);
    after(h);
    return r;
}

SHOWN int pipe2(int fds[2], int flags)
{
    NEXT(pipe2)
    const enum how h = meet(FAULT_process, "pipe2", -1, NULL, CALLER);
    const int r = FAIL(h) ? -1 : next_(fds, flags);
    after(h);
    return r;
}

SHOWN int socketpair(int domain, int type, int protocol, int fds[2])
{
    NEXT(socketpair)
    const enum how h = meet(FAULT_process, "socketpair", -1, NULL, CALLER);
    const int r = FAIL(h) ? -1 : next_(domain, type, protocol, fds);
    after(h);
    return r;
}

SHOWN int poll(struct pollfd *fds, nfds_t n, int ms)
{
    NEXT(poll)
    const enum how h = meet(FAULT_poll, "poll", -1, NULL, CALLER);
    const int r = FAIL(h) ? -1 : next_(fds, n, ms);
    after(h);
    return r;
}

SHOWN pid_t waitpid(pid_t pid, int *status, int options)
{
    NEXT(waitpid)
    const enum how h = meet(FAULT_poll, "waitpid", -1, NULL, CALLER);
    const pid_t r = FAIL(h) ? -1 : next_(pid, status, options);
    after(h);
    return r;
}

SHOWN int pthread_create(pthread_t *restrict t, const pthread_attr_t *restrict attr, void *(*fn)(void *),
                         void *restrict arg)
{
    NEXT(pthread_create)
    const enum how h = meet(FAULT_thread, "pthread_create", -1, NULL, CALLER);
    const int r = FAIL(h) ? error : next_(t, attr, fn, arg);
    after(h);
    return r;
}
