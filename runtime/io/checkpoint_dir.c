/* The checkpoints of a run directory, and its lock. */
#include "runtime/io/checkpoint_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/aside.h"
#include "runtime/base/files.h"
#include "runtime/io/responses.h"

static gr_status io_error(gr_diag *d, const char *doing, const char *path)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot %s '%s': %s", doing, path, strerror(errno));
}

/* Names that nobody but a run gives, in a folder that it has locked: .step-N.tmp, .step-N.old, .best.tmp. */
static bool is_left(const char *name, mode_t mode)
{
    static const char step[] = ".step-";
    const char *number = name + strlen(step);
    if (!strcmp(name, ".best.tmp")) return S_ISLNK(mode);
    if (strncmp(name, step, strlen(step)) != 0 || !S_ISDIR(mode)) return false;
    const char *end = number + strspn(number, "0123456789");
    return end > number && (!strcmp(end, ".tmp") || !strcmp(end, ".old"));
}

static gr_status remove_left(void *user, const char *dir, const char *name, gr_diag *d)
{
    (void)user;
    struct stat s;
    char *path = gr_printf("%s/%s", dir, name);
    gr_status st = !lstat(path, &s) && is_left(name, s.st_mode) ? gr_path_remove(path, d) : GR_OK;
    free(path);
    return st;
}

/* Some file systems of clusters know no locks: the run goes on without. */
static gr_status not_locked(const char *path, const char *run, gr_diag *d)
{
    if (errno == EWOULDBLOCK)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "run directory '%s' is in use by another process",
                             run);
    if (errno != ENOSYS && errno != EOPNOTSUPP && errno != ENOLCK) return io_error(d, "lock", path);
    gr_diag_warn(d, (gr_loc){0}, "cannot lock '%s': %s; let no other process use this folder", path,
                 strerror(errno));
    return GR_OK;
}

gr_status gr_run_lock(int *lock, const char *run, gr_diag *d)
{
    gr_status st = gr_dir_make(run, d);
    if (st) return st;
    char *path = gr_printf("%s/.lock", run), *checkpoints = gr_printf("%s/checkpoints", run);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        st = io_error(d, "create", path);
    else if (flock(fd, LOCK_EX | LOCK_NB))
        st = not_locked(path, run, d);
    if (!st) st = gr_dir_each(checkpoints, remove_left, NULL, d);
    if (!st) gr_aside_sweep(run, NULL);
    if (st && fd >= 0) close(fd);
    if (!st) *lock = fd;
    free(path);
    free(checkpoints);
    return st;
}

void gr_run_unlock(int lock)
{
    close(lock);
}

char *gr_checkpoint_path(const char *run, uint64_t step)
{
    return gr_printf("%s/checkpoints/step-%llu", run, (unsigned long long)step);
}

static char *aside_path(const char *run, uint64_t step, const char *suffix)
{
    return gr_printf("%s/checkpoints/.step-%llu.%s", run, (unsigned long long)step, suffix);
}

char *gr_checkpoint_aside(const char *run, uint64_t step)
{
    return aside_path(run, step, "tmp");
}

gr_status gr_checkpoint_begin(char **aside, const char *run, uint64_t step, gr_diag *d)
{
    char *path = gr_checkpoint_aside(run, step);
    gr_status st = gr_path_remove(path, d);
    if (!st) st = gr_dir_make(path, d);
    if (st)
        free(path);
    else
        *aside = path;
    return st;
}

static gr_status sync_tree(void *user, const char *dir, const char *name, gr_diag *d)
{
    char *path = gr_printf("%s/%s", dir, name);
    struct stat s;
    gr_status st = lstat(path, &s) ? io_error(d, "sync", path) : GR_OK;
    if (!st && S_ISDIR(s.st_mode)) {
        st = gr_dir_each(path, sync_tree, user, d);
        if (!st) st = gr_dir_sync(path, d);
    } else if (!st && S_ISREG(s.st_mode)) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fsync(fd)) st = io_error(d, "sync", path);
        if (fd >= 0) close(fd);
    }
    free(path);
    return st;
}

gr_status gr_checkpoint_commit(const char *run, uint64_t step, gr_diag *d)
{
    char *aside = gr_checkpoint_aside(run, step), *old = aside_path(run, step, "old");
    char *path = gr_checkpoint_path(run, step), *parent = gr_printf("%s/checkpoints", run);
    gr_status st = gr_dir_each(aside, sync_tree, NULL, d);
    if (!st) st = gr_dir_sync(aside, d);
    if (!st && rename(path, old) && errno != ENOENT) st = io_error(d, "replace", path);
    if (!st && rename(aside, path)) st = io_error(d, "create", path);
    if (!st) st = gr_dir_sync(parent, d);
    if (!st) st = gr_path_remove(old, d);
    free(aside);
    free(old);
    free(path);
    free(parent);
    return st;
}

struct steps {
    uint64_t *list;
    size_t n, cap;
    size_t others; /* names that look like a checkpoint's and are none */
    bool tell;
};

bool gr_checkpoint_number(const char *name, uint64_t *step)
{
    char *end;
    if (strncmp(name, "step-", 5) || name[5] < '1' || name[5] > '9') return false;
    errno = 0;
    *step = strtoull(name + 5, &end, 10);
    return !*end && !errno && *step <= UINT32_MAX;
}

static gr_status add_step(void *user, const char *dir, const char *name, gr_diag *d)
{
    struct steps *s = user;
    uint64_t step;
    if (gr_checkpoint_number(name, &step)) {
        GR_PUSH(s->list, s->n, s->cap, step);
    } else if (!strncmp(name, "step-", 5)) {
        s->others++;
        if (s->tell)
            gr_diag_warn(d, (gr_loc){0}, "'%s/%s' is left out: it is no checkpoint's name, which is step-N",
                         dir, name);
    }
    return GR_OK;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* tell: of names that are left out. */
static gr_status list_steps(struct steps *s, const char *run, bool tell, gr_diag *d)
{
    char *dir = gr_printf("%s/checkpoints", run);
    *s = (struct steps){.tell = tell};
    gr_status st = gr_dir_each(dir, add_step, s, d);
    if (s->n) qsort(s->list, s->n, sizeof(*s->list), ascending);
    free(dir);
    return st;
}

gr_status gr_checkpoint_list(uint64_t **steps, size_t *n, const char *run, gr_diag *d)
{
    struct steps s;
    gr_status st = list_steps(&s, run, true, d);
    if (!st && !s.n && s.others)
        st =
            gr_diag_error(d, (gr_loc){run, 0, 0}, GR_E_INVALID,
                          "none of what is in its folder 'checkpoints' has the name of a checkpoint, step-N");
    *steps = s.list;
    *n = s.n;
    return st;
}

/* The step that RUN/checkpoints/best points at, 0 for none. */
static uint64_t best_step(const char *run)
{
    char *path = gr_printf("%s/checkpoints/best", run), target[64] = "";
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    free(path);
    uint64_t step;
    return n > 0 && gr_checkpoint_number(target, &step) ? step : 0;
}

gr_status gr_checkpoint_mark_best(const char *run, uint64_t step, gr_diag *d)
{
    if (best_step(run) == step) return GR_OK;
    char *path = gr_printf("%s/checkpoints/best", run), *aside = gr_printf("%s/checkpoints/.best.tmp", run);
    char *target = gr_printf("step-%llu", (unsigned long long)step),
         *parent = gr_printf("%s/checkpoints", run);
    gr_status st = gr_path_remove(aside, d);
    if (!st && (symlink(target, aside) || rename(aside, path))) st = io_error(d, "create", path);
    if (!st) st = gr_dir_sync(parent, d);
    free(path);
    free(aside);
    free(target);
    free(parent);
    return st;
}

gr_status gr_checkpoint_prune(const char *run, gr_checkpoint_kept kept, gr_diag *d)
{
    struct steps s;
    gr_status st = list_steps(&s, run, false, d);
    const uint64_t *steps = s.list;
    const size_t n = s.n;
    for (size_t i = 0; !st && kept.newest && i + kept.newest < n; i++) {
        if (steps[i] == kept.best || steps[i] == kept.finite) continue;
        /* renamed first: a half removed one must not look complete */
        char *path = gr_checkpoint_path(run, steps[i]), *old = aside_path(run, steps[i], "old");
        if (rename(path, old)) st = io_error(d, "remove", path);
        if (!st) st = gr_path_remove(old, d);
        free(path);
        free(old);
    }
    free(s.list);
    return st;
}

/* ---- set aside ------------------------------------------------------------------------------------------
 */

/* RUN/aside-STEP, which is made here, with its folder checkpoints; caller frees. */
static gr_status make_aside(char **out, const char *run, uint64_t step, gr_diag *d)
{
    char *aside = gr_printf("%s/aside-%llu", run, (unsigned long long)step);
    for (unsigned i = 2; gr_path_exists(aside); i++) {
        free(aside);
        aside = gr_printf("%s/aside-%llu-%u", run, (unsigned long long)step, i);
    }
    char *checkpoints = gr_printf("%s/checkpoints", aside);
    gr_status st = gr_dir_make(checkpoints, d);
    free(checkpoints);
    *out = aside;
    return st;
}

static gr_status copy_records(const char *run, const char *aside, gr_diag *d)
{
    static const char *const names[] = {"graph.yaml", "plan.json", "run.json", "metrics.jsonl",
                                        "samples.jsonl"};
    gr_status st = GR_OK;
    bool found;
    for (size_t i = 0; i < GR_LEN(names) && !st; i++) st = gr_file_copy(run, names[i], aside, &found, d);
    return st;
}

static gr_status move_checkpoint(const char *run, const char *aside, const char *name, gr_diag *d)
{
    char *from = gr_printf("%s/checkpoints/%s", run, name), *to = gr_printf("%s/checkpoints/%s", aside, name);
    gr_status st = rename(from, to) ? io_error(d, "move", from) : GR_OK;
    free(from);
    free(to);
    return st;
}

/* The newest first: a process killed in between leaves those that belong together. */
static gr_status move_behind(const char *run, const char *aside, uint64_t step, const uint64_t *steps,
                             size_t n, gr_diag *d)
{
    gr_status st = best_step(run) > step ? move_checkpoint(run, aside, "best", d) : GR_OK;
    for (size_t i = n; !st && i-- > 0 && steps[i] > step;) {
        char *name = gr_printf("step-%llu", (unsigned long long)steps[i]);
        st = move_checkpoint(run, aside, name, d);
        free(name);
    }
    const char *const changed[] = {aside, run};
    for (size_t i = 0; !st && i < GR_LEN(changed); i++) {
        char *dir = gr_printf("%s/checkpoints", changed[i]);
        st = gr_dir_sync(dir, d);
        free(dir);
    }
    return st;
}

gr_status gr_checkpoint_set_aside(char **aside, const char *run, uint64_t step, gr_diag *d)
{
    struct steps s;
    gr_status st = list_steps(&s, run, false, d);
    *aside = NULL;
    if (!st && s.n && s.list[s.n - 1] > step) {
        st = make_aside(aside, run, step, d);
        if (!st) st = copy_records(run, *aside, d);
        if (!st) st = gr_responses_link(run, *aside, d);
        if (!st) st = move_behind(run, *aside, step, s.list, s.n, d);
    }
    free(s.list);
    return st;
}
