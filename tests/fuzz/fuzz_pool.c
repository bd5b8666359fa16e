/* What worker processes print: each input is the output of a pool's only worker, which answers nothing else.
 * Every request comes back, answered or failed, whatever is printed. */
#include "ops/reward/pool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void *read_reply(void *user, size_t about, const json_t *reply, char **why)
{
    (void)user;
    if (json_object_get(reply, "bad")) *why = gr_printf("bad of %zu", about);
    return *why ? NULL : gr_strdup("good");
}

static void run(const char *path, bool keeps_state)
{
    char *command = gr_printf("cat %s; exec cat >/dev/null", path);
    const gr_pool_config c = {.command = command,
                              .who = "worker",
                              .n = 1,
                              .depth = 3,
                              .timeout_ms = 5,
                              .grace_ms = 1,
                              .line_bytes = 4096,
                              .keeps_state = keeps_state,
                              .read = read_reply};
    gr_pool *p = NULL;
    if (gr_pool_new(&p, &c, NULL)) abort();
    json_t *fields = json_object();
    for (uint64_t id = 1; id <= 4; id++)
        gr_pool_submit(p, id, "request", (size_t)id, fields, (gr_pool_worker){0});
    bool seen[5] = {0};
    for (int i = 0; i < 4; i++) {
        gr_pool_reply r;
        if (gr_pool_collect(p, -1, &r, NULL) || r.id < 1 || r.id > 4 || seen[r.id] || !r.result == !r.error)
            abort();
        seen[r.id] = true;
        if (r.worker.number) gr_pool_tell(p, r.id, fields, r.worker);
        free(r.result);
        free(r.error);
    }
    if (gr_pool_pending(p)) abort();
    json_decref(fields);
    gr_pool_free(p);
    free(command);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("output", 0);
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
    }
    if (ftruncate(fd, 0) || pwrite(fd, data, n, 0) != (ssize_t)n) abort();
    run(path, false);
    run(path, true);
    return 0;
}
