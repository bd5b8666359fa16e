/* tests/gpu/gpu_failure.c: a kernel that reads where nothing is. The device is lost with it; the run is told
 * so once, by step, op and call, and ends.
 *
 *     gpu_failure                               an executor's path
 *     gpu_failure GRAPH OUT [KEY=VALUE ...]     `graphrun exec` on CUDA whose optimizer fails at its 14th
 * step (tests/gpu/failure.sh)
 */
#include "ops/kernels/kernels.h"
#include "runtime/device/device_cuda.h"
#include "runtime/run/executor.h"
#include "tests/e2e/exec_with.h"
#include "tests/gpu/check.h"

enum { FAILING_STEP = 14, SECONDS_MAX = 120 };

static void read_nothing(gr_queue *q)
{
    gr_cu_round(q->stream, (const float *)4096, (gr_bf16 *)8192, 1024);
}

/* ---- a run ----------------------------------------------------------------------------------------------
 */

static void failing_adamw(gr_queue *q, const gr_optim *how, bool decay, const gr_optim_range *r, uint64_t n)
{
    if (how->step == FAILING_STEP) read_nothing(q);
    gr_kernels_cuda.optim_step(q, how, decay, r, n);
}

/* ---- a path: work on all lanes, the second step of which is the bad one ---- */

enum { STEPS = 6, BAD = 1 };

typedef struct path_user {
    uint32_t begun[STEPS];
    bool fails;
} path_user;

static gr_status run_step(void *user, gr_path_id path, uint32_t i, gr_queue *q, gr_diag *d)
{
    path_user *u = user;
    uint32_t x[64];
    (void)path;
    __atomic_add_fetch(&u->begun[i], 1, __ATOMIC_RELAXED);
    q->at.op = "test";
    if (i == BAD && u->fails) read_nothing(q);
    if (q->stream) gr_device_read(q, x, q->device->arena.base + i * sizeof(x), sizeof(x));
    return i == STEPS - 1 ? gr_queue_finish(q, d) : GR_OK;
}

static gr_plan *plan_of_lanes(void)
{
    static uint32_t after[STEPS] = {0, 0, 1, 1, 2, 4}; /* step i waits for after[i] */
    static const gr_lane lane[STEPS] = {GR_LANE_COMPUTE, GR_LANE_COMPUTE, GR_LANE_HOST,
                                        GR_LANE_H2D,     GR_LANE_COMPUTE, GR_LANE_D2H};
    gr_arena *arena = gr_arena_new();
    gr_plan *p = gr_arena_alloc(arena, sizeof(*p));
    gr_path *path = &p->paths[GR_PATH_STEADY];
    p->arena = arena;
    p->arena_bytes = 1 << 20;
    path->n = STEPS;
    path->steps = gr_arena_alloc(arena, STEPS * sizeof(*path->steps));
    for (uint32_t i = 0; i < STEPS; i++)
        path->steps[i] = (gr_step){.kind = GR_STEP_RUN,
                                   .what = gr_arena_printf(arena, "node.work.%u", i),
                                   .node = "node",
                                   .lane = lane[i],
                                   .body_last = GR_NONE,
                                   .after = &after[i],
                                   .n_after = i > 0};
    return p;
}

static void expect(bool ok, const char *what)
{
    printf("%-72s %s\n", what, ok ? "OK" : "FAIL");
    check_failures += !ok;
    fflush(stdout);
}

static bool one_message(const gr_diag *d, const char *a, const char *b, const char *c)
{
    for (size_t i = 0; i < d->n; i++) printf("message: %s\n", d->messages[i].text);
    return d->n == 1 && strstr(d->messages[0].text, a) && strstr(d->messages[0].text, b) &&
           strstr(d->messages[0].text, c);
}

static void check_path(void)
{
    path_user user = {.fails = false};
    const gr_exec_hooks hooks = {.user = &user, .run = run_step};
    gr_plan *p = plan_of_lanes();
    gr_executor *e = NULL;
    gr_diag d;
    gr_diag_init(&d);
    expect_ok(gr_executor_new(&e, p, &hooks, &(gr_exec_options){.device = &gr_device_cuda, .threads = 1}, &d),
              &d, "executor");
    if (!e) return;
    expect_ok(gr_executor_path(e, GR_PATH_STEADY, &d), &d, "a path without a failure");
    expect(user.begun[STEPS - 1] == 1, "all steps have run");
    user.fails = true;
    expect(gr_executor_path(e, GR_PATH_STEADY, &d) == GR_E_FAILED, "a path that loses the device fails");
    expect(one_message(&d, "step 'node.work.", ", op test: cuda", "cudaErrorIllegalAddress"),
           "one message names step, op, call and error");
    expect(user.begun[STEPS - 1] == 1, "what waits for the step does not begin");
    gr_diag_release(&d);
    gr_diag_init(&d);
    expect(gr_executor_path(e, GR_PATH_STEADY, &d) == GR_E_FAILED, "so does every later one");
    expect(user.begun[0] == 2 && one_message(&d, "step 'node.work.0'", ": ", "cudaErrorIllegalAddress"),
           "before its first step, in one message");
    gr_executor_free(e);
    expect(true, "the executor is taken apart");
    gr_plan_free(p);
    gr_diag_release(&d);
}

int main(int argc, char **argv)
{
    gr_kernels k = gr_kernels_cuda;
    k.optim_step = failing_adamw;
    alarm(SECONDS_MAX); /* nothing may hang */
    if (argc > 1) return exec_with(&k, argc, argv);
    need_device();
    check_path();
    printf("%s: %d failed\n", argv[0], check_failures);
    return check_failures != 0;
}
