/* tools/calibrate_from.c: a hardware file refined with what runs measured of their steps.
 *
 * Each step of a run has a time that was predicted and those that trace.json has of it. Their quotient, steps
 * of one kind of work and all runs together, is the factor by which the machine is slower at that kind than
 * the file says: the median, each step weighted with its time, so that neither a few odd steps nor a busy
 * minute moves it. How far steps lie from it, by their median distance, is how sure it is.
 */
#include "tools/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graphs/loader/load.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "scheduler/cost/cost.h"
#include "scheduler/search/planner.h"
#include "tools/cmd.h"

enum { LEAST_ITERATIONS = 3 };

#define WORK_MAP(X)                      \
    X(FORWARD, "passes forward")         \
    X(BACKWARD, "passes backward")       \
    X(DECODE, "steps of a rollout")      \
    X(HEAD, "output matrices")           \
    X(MEMORY, "what reads and writes")   \
    X(LOAD, "copies to the device")      \
    X(OFFLOAD, "copies from the device") \
    X(EXPERTS, "experts' products")      \
    X(GRADIENTS, "experts' gradients")   \
    X(READ, "experts of few rows")
typedef enum work {
#define X(name, text) WORK_##name,
    WORK_MAP(X)
#undef X
        N_WORKS
} work;

static const char *const work_names[] = {
#define X(name, text) text,
    WORK_MAP(X)
#undef X
};

typedef struct quotient {
    double value, weight;
    uint32_t rows, width; /* of passes */
} quotient;

typedef struct quotients {
    quotient *all;
    size_t n, cap;
} quotients;

/* Durations of a step, in the order in which they were. */
typedef struct durations {
    double *us;
    size_t n, cap;
} durations;

/* ---- one run ------------------------------------------------------------------------------------------- */

/* One line of trace.json, which is one event; others are passed over. */
static void read_event(durations *of, uint32_t n_steps, const char *line, size_t n)
{
    while (n && (line[n - 1] == ',' || line[n - 1] == '\r')) n--;
    json_t *event = json_loadb(line, n, 0, NULL);
    const json_t *step = json_object_get(json_object_get(event, "args"), "step"),
                 *took = json_object_get(event, "dur");
    const json_int_t i = json_is_integer(step) ? json_integer_value(step) : -1;
    if (i >= 0 && i < (json_int_t)n_steps && json_is_number(took))
        GR_PUSH(of[i].us, of[i].n, of[i].cap, json_number_value(took));
    json_decref(event);
}

static gr_status read_trace(durations *of, uint32_t n_steps, const char *run, gr_diag *d)
{
    char *path = gr_printf("%s/trace.json", run), *text = NULL;
    size_t n = 0;
    gr_status st = gr_file_read(path, 0, &text, &n, d);
    for (const char *line = text, *end; !st && line < text + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        if (!end) end = text + n;
        if (end > line && *line == '{') read_event(of, n_steps, line, (size_t)(end - line));
    }
    free(text);
    free(path);
    return st;
}

/* What a step's time says something of; N_WORKS: nothing here. Of a layer of experts that is what they take,
 * its attention being as in others. */
static work work_of(const gr_step *s, const gr_task *t)
{
    if (s->kind == GR_STEP_LOAD) return WORK_LOAD;
    if (s->kind == GR_STEP_OFFLOAD) return WORK_OFFLOAD;
    if (s->kind != GR_STEP_RUN || !t || s->lane != GR_LANE_COMPUTE) return N_WORKS;
    if (t->cost.experts.rows > 0)
        return t->cost.paged ? WORK_READ : t->cost.backward ? WORK_GRADIENTS : WORK_EXPERTS;
    if (t->cost.paged && t->cost.rows) return WORK_DECODE; /* the device may have the head in the same step */
    if (t->cost.head > 0) return WORK_HEAD;
    if (!t->cost.rows) return t->cost.bytes > 0 ? WORK_MEMORY : N_WORKS;
    return t->cost.backward ? WORK_BACKWARD : WORK_FORWARD;
}

/* The mean of a step in one of the iterations, in ns; 0: it was not there. */
static double mean_ns(const durations *x, size_t iteration, size_t iterations)
{
    const size_t from = x->n * iteration / iterations, to = x->n * (iteration + 1) / iterations;
    double sum = 0;
    for (size_t i = from; i < to; i++) sum += x->us[i];
    return to > from ? 1e3 * sum / (double)(to - from) : 0;
}

/* As this program predicts it, whatever predicted it then. */
static double predicted_ns(const gr_step *s, const gr_task *t, const gr_hardware *h)
{
    return (double)(s->kind == GR_STEP_RUN ? gr_task_ns(t, h) : s->ns);
}

/* Of a step's time, what is not of the work that it says something of. */
static double beside_ns(double ns, const gr_task *t, work w, const gr_hardware *h)
{
    return w < WORK_EXPERTS ? (double)h->step_ns : ns - gr_task_experts_ns(t, h);
}

/* One quotient of each iteration but the first, which finds nothing warm. What is beside the work is left out
 * on both sides; steps that take little more say nothing of rates. */
static void add_step(quotients *q, const gr_step *s, const gr_task *t, const durations *of, size_t iterations,
                     const gr_hardware *h)
{
    const work w = work_of(s, t);
    if (w == N_WORKS) return;
    const double ns = predicted_ns(s, t, h), beside = beside_ns(ns, t, w, h);
    if (ns < 4 * (double)h->step_ns || ns <= beside) return;
    for (size_t k = 1; k < iterations; k++) {
        const double measured = mean_ns(of, k, iterations);
        if (measured <= beside) continue;
        const quotient x = {(measured - beside) / (ns - beside), ns * (double)of->n, t ? t->cost.rows : 0,
                            t ? t->cost.width : 0};
        GR_PUSH(q[w].all, q[w].n, q[w].cap, x);
    }
}

static void add_steps(quotients *q, const gr_planned *p, const durations *of, size_t iterations,
                      const gr_hardware *h)
{
    for (uint32_t i = 0; i < p->plan->paths[GR_PATH_STEADY].n; i++)
        add_step(q, gr_plan_step(p->plan, i), p->binding[i].task, &of[i], iterations, h);
}

static size_t count_iterations(const gr_plan *plan, const durations *of)
{
    for (uint32_t i = 0; i < plan->paths[GR_PATH_STEADY].n; i++)
        if (plan->paths[GR_PATH_STEADY].steps[i].kind == GR_STEP_RUN) return of[i].n;
    return 0;
}

static gr_status add_run(quotients *q, const gr_planned *p, const char *run, const gr_hardware *h, gr_diag *d)
{
    const uint32_t n = gr_plan_steps(p->plan);
    durations *of = gr_calloc(n + 1, sizeof(*of));
    gr_status st = read_trace(of, n, run, d);
    const size_t iterations = st ? 0 : count_iterations(p->plan, of);
    if (!st && iterations < LEAST_ITERATIONS)
        st = gr_diag_error(d, (gr_loc){.file = run}, GR_E_INVALID,
                           "its trace has %zu iterations since it was started or resumed: at least %d are "
                           "needed, the first of which does not count",
                           iterations, LEAST_ITERATIONS);
    if (!st) add_steps(q, p, of, iterations, h);
    for (uint32_t i = 0; i < n; i++) free(of[i].us);
    free(of);
    return st;
}

/* Whether the run's predictions are those of the hardware that is refined. */
static gr_status check_plan(const gr_plan *plan, const char *run, const gr_hardware *h, gr_diag *d)
{
    const gr_loc at = {.file = run};
    if (strcmp(plan->hardware, h->name) || strcmp(plan->device, h->device))
        return gr_diag_error(
            d, at, GR_E_INVALID,
            "the run was planned for hardware '%s', device %s, not for '%s', device %s: give its "
            "file with --hardware",
            plan->hardware, plan->device, h->name, h->device);
    if (plan->n_more)
        return gr_diag_error(d, at, GR_E_INVALID, "a run of several roles of ranks is not read");
    return GR_OK;
}

static gr_status read_run(quotients *q, const char *run, const gr_plan_options *o, gr_diag *d)
{
    char *path = gr_printf("%s/plan.json", run);
    gr_plan *plan = NULL;
    gr_graph *g = NULL;
    gr_planned *p = NULL;
    gr_load_options how = {.need_shapes = true};
    gr_status st = gr_plan_read_json(&plan, path, d);
    if (!st) st = check_plan(plan, run, &o->hardware, d);
    if (!st) how.ranks = gr_plan_all_ranks(plan);
    if (!st) st = gr_graph_parse(&g, plan->graph_text, strlen(plan->graph_text), path, &how, d);
    if (!st) st = gr_plan_adopt(&p, plan, g, o, GR_ADOPT_OWN, d);
    if (!st) st = add_run(q, p, run, &o->hardware, d);
    if (p)
        gr_planned_free(p);
    else
        gr_plan_free(plan);
    gr_graph_free(g);
    free(path);
    return st;
}

/* ---- all of them --------------------------------------------------------------------------------------- */

static int by_quotient(const void *a, const void *b)
{
    const double x = ((const quotient *)a)->value, y = ((const quotient *)b)->value;
    return x < y ? -1 : x > y;
}

/* The weighted median; sorts. */
static double median(quotient *all, size_t n)
{
    double sum = 0, below = 0;
    qsort(all, n, sizeof(*all), by_quotient);
    for (size_t i = 0; i < n; i++) sum += all[i].weight;
    for (size_t i = 0; i < n; i++) {
        below += all[i].weight;
        if (2 * below >= sum) return all[i].value;
    }
    return 1;
}

/* The median distance from the median, as a standard deviation would be of as many normal ones, of it. */
static double spread(quotient *all, size_t n, double of)
{
    for (size_t i = 0; i < n; i++) all[i].value = fabs(all[i].value - of);
    return 1.4826 * median(all, n) / of;
}

/* Passes are of many shapes, and each of the file's rates is of its own: it follows the steps that it was
 * part of, as far as it was; where there are none, it stays. */
static void slow_rates(gr_hardware *h, work w, const quotients *q)
{
    const gr_hardware before = *h;
    quotient *its = gr_malloc((q->n + 1) * sizeof(*its));
    for (uint32_t i = 0; i < h->n_rates; i++) {
        gr_rate *r = &h->rates[i];
        size_t n = 0;
        double weight = 0, whole = 0;
        for (size_t k = 0; k < q->n; k++) {
            its[n] = q->all[k];
            its[n].weight *= gr_rate_share(&before, i, its[n].rows, its[n].width);
            if (!(its[n].weight > 0)) continue;
            weight += its[n++].weight;
            whole += q->all[k].weight;
        }
        const double by = n ? pow(median(its, n), weight / whole) : 1;
        *(w == WORK_FORWARD ? &r->forward : w == WORK_BACKWARD ? &r->backward : &r->decode) /= by;
    }
    free(its);
}

static void slow_down(gr_hardware *h, work w, const quotients *q, double by)
{
    if (w == WORK_FORWARD || w == WORK_BACKWARD || w == WORK_DECODE) slow_rates(h, w, q);
    for (uint32_t i = 0; i < h->n_attention; i++) {
        if (w == WORK_FORWARD) h->attention[i].forward /= by;
        if (w == WORK_BACKWARD) h->attention[i].backward /= by, h->attention[i].unordered /= by;
    }
    for (uint32_t i = 0; i < h->n_copies; i++) {
        gr_copy_rate *c = &h->copies[i];
        if (w == WORK_LOAD) c->h2d /= by;
        if (w == WORK_OFFLOAD) c->d2h /= by;
        c->both = fmin(c->both, fmin(c->h2d, c->d2h)); /* beside the other way no copy is faster than alone */
    }
    if (w == WORK_EXPERTS) h->experts.product /= by;
    if (w == WORK_GRADIENTS) h->experts.gradient /= by;
    if (w == WORK_READ) h->experts.read /= by;
    if (w == WORK_MEMORY) h->memory_bytes /= by;
    if (w == WORK_DECODE) h->decode_attention /= by, h->kv_bytes /= by;
    if (w == WORK_HEAD) h->head /= by, h->logits /= by, h->kept /= by;
}

/* Where times of the same work lie so far apart, something else was at it, too. */
static void warn_of_noise(work w, double wide, gr_diag *d)
{
    const double most = 0.25;
    if (wide <= most) return;
    gr_diag_warn(
        d, (gr_loc){0},
        "times of %s differ by %.0f %%: the machine was busy, or the runs were very unlike; refine with "
        "runs of a quiet machine",
        work_names[w], 100 * wide);
}

static void refine(gr_hardware *h, quotients *q, gr_str *said, gr_diag *d)
{
    for (work w = 0; w < N_WORKS; w++) {
        if (!q[w].n) {
            gr_str_printf(said, "  %-24s not in the runs\n", work_names[w]);
            continue;
        }
        const double by = median(q[w].all, q[w].n);
        slow_down(h, w, &q[w], by);
        const double wide = spread(q[w].all, q[w].n, by);
        warn_of_noise(w, wide, d);
        gr_str_printf(
            said,
            "  %-24s %.3f of the time predicted, within %.1f %% of it; steps differ by %.1f %% (%zu "
            "times)\n",
            work_names[w], by, 200 * wide / sqrt((double)q[w].n), 100 * wide, q[w].n);
    }
    h->copy = h->n_copies ? h->copies[0] : h->copy;
}

gr_status gr_calibrate_from(gr_hardware *h, const gr_args *a, const gr_plan_options *o, gr_str *said,
                            gr_diag *d)
{
    quotients q[N_WORKS] = {0};
    gr_status st = GR_OK;
    *h = o->hardware;
    if (!h->n_rates)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                           "hardware '%s' has no measured rates that runs could refine: give the file of "
                           "`graphrun calibrate` that they were planned for with --hardware",
                           h->name);
    for (size_t i = 0; i < a->n_from && !st; i++) st = read_run(q, a->from[i], o, d);
    if (!st) refine(h, q, said, d);
    for (work w = 0; w < N_WORKS; w++) free(q[w].all);
    return st;
}
