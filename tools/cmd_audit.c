/* graphrun audit: iterations of a run are executed again from their checkpoint, in a folder of their own, and
 * what they record is compared with what the run has recorded. Nothing is written into the run. */
#include "tools/cmd.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "graphs/graph/graph.h"
#include "ops/base/configs.h"
#include "ops/text/jsonl.h"
#include "runtime/io/checkpoint_dir.h"
#include "runtime/io/sealed_run.h"
#include "runtime/io/state.h"
#include "runtime/base/files.h"
#include "graphs/loader/load.h"

/* What metrics may differ by where the arithmetic is another machine's: of 1 + the recorded value. */
#define TOLERANCE 1e-2

/* A kind of machine. Owned; NULL: not known. */
typedef struct kind {
    char *machine, *numerics;
} kind;

typedef struct audit {
    const char *run;
    char *disk;        /* as --disk says it; NULL: there is none */
    uint64_t from, to; /* the checkpoint of iteration from, 0: the beginning; iterations up to to */
    bool has_end;      /* the run has a checkpoint of iteration to */
    char *scratch;
    gr_graph *graph; /* that ran; NULL: it cannot be read */
    kind was, is;    /* recorded, and here */
    bool exact;      /* they are the same */
    uint64_t n_metrics, n_tensors, n_files;
    char *difference; /* the first; NULL: none so far */
} audit;

static void release(audit *x)
{
    gr_status st = x->scratch ? gr_path_remove(x->scratch, NULL) : GR_OK;
    (void)st; /* a folder of temporary files */
    gr_graph_free(x->graph);
    free(x->scratch);
    free(x->disk);
    free(x->was.machine);
    free(x->was.numerics);
    free(x->is.machine);
    free(x->is.numerics);
    free(x->difference);
}

/* ---- which iterations ---------------------------------------------------------------------------------- */

/* The last iteration that metrics.jsonl has a line of. */
static gr_status last_iteration(const char *run, uint64_t *last, gr_diag *d)
{
    char *path = gr_printf("%s/metrics.jsonl", run);
    gr_jsonl *file = NULL;
    json_t *line = NULL;
    gr_status st = gr_jsonl_open(&file, path, (gr_loc){0}, d);
    if (!st) st = gr_jsonl_row(file, gr_jsonl_rows(file) - 1, &line, d);
    *last = (uint64_t)json_integer_value(json_object_get(line, "step"));
    json_decref(line);
    gr_jsonl_free(file);
    free(path);
    return st;
}

/* The newest step before one; 0: there is none. */
static uint64_t newest_before(const uint64_t *steps, size_t n, uint64_t before)
{
    uint64_t found = 0;
    for (size_t i = 0; i < n && steps[i] < before; i++) found = steps[i];
    return found;
}

static bool is_among(const uint64_t *steps, size_t n, uint64_t step)
{
    return newest_before(steps, n, step + 1) == step;
}

/* Without a number: what ended with the newest checkpoint that has one before it, because that shows weights,
 * too; else what followed the only one; else the first. */
static uint64_t choose(const uint64_t *steps, size_t n, uint64_t last)
{
    if (n > 1) return steps[n - 1];
    return n && steps[0] == last ? last : (n ? steps[0] : 0) + 1;
}

static gr_status choose_iterations(audit *x, const char *asked, gr_diag *d)
{
    uint64_t *steps = NULL, last = 0;
    size_t n = 0;
    char *end = NULL;
    gr_status st = last_iteration(x->run, &last, d);
    if (!st) st = gr_checkpoint_list(&steps, &n, x->run, d);
    x->to = asked ? strtoull(asked, &end, 10) : choose(steps, n, last);
    if (!st && asked && (*asked < '0' || *asked > '9' || *end))
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "'%s' is not the number of an iteration", asked);
    if (!st && (!x->to || x->to > last))
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                           "'%s' has no iteration %llu to run again: its metrics.jsonl has 1 to %llu", x->run,
                           (unsigned long long)x->to, (unsigned long long)last);
    x->from = newest_before(steps, n, x->to);
    x->has_end = is_among(steps, n, x->to);
    free(steps);
    return st;
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

/* The graph and the plan that ran: a checkpoint has those that made it, the run the latest. */
static gr_status copy_what_ran(const audit *x, gr_diag *d)
{
    static const char *const names[] = {"graph.yaml", "plan.json"};
    char *end = gr_checkpoint_path(x->run, x->to);
    gr_status st = GR_OK;
    for (size_t i = 0; i < GR_LEN(names) && !st; i++) {
        bool found = false;
        if (x->has_end) st = gr_file_copy(end, names[i], x->scratch, &found, d);
        if (!st && !found) st = gr_file_copy(x->run, names[i], x->scratch, &found, d);
        if (!st && !found)
            st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "no run in '%s': there is no '%s'", x->run,
                               names[i]);
    }
    free(end);
    return st;
}

/* A link: its bytes are read, and a link is all that could be removed. */
static gr_status link_checkpoint(const audit *x, gr_diag *d)
{
    char *from = gr_checkpoint_path(x->run, x->from), *real = gr_path_real(from);
    char *dir = gr_printf("%s/checkpoints", x->scratch), *to = gr_checkpoint_path(x->scratch, x->from);
    bool found;
    gr_status st = gr_dir_make(dir, d);
    if (!st && (!real || symlink(real, to)))
        st = gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot link '%s': %s", from, strerror(errno));
    if (!st) st = gr_file_copy(x->run, "run.json", x->scratch, &found, d);
    free(to);
    free(dir);
    free(real);
    free(from);
    return st;
}

static gr_status make_scratch(audit *x, gr_diag *d)
{
    const char *tmp = getenv("TMPDIR");
    char *name = gr_printf("%s/graphrun-audit-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (mkdtemp(name))
        x->scratch = name;
    else
        free(name);
    gr_status st = x->scratch ? copy_what_ran(x, d)
                              : gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot make a folder in '%s': %s",
                                              tmp ? tmp : "/tmp", strerror(errno));
    return !st && x->from ? link_checkpoint(x, d) : st;
}

/* ---- executed again ------------------------------------------------------------------------------------ */

/* In the child. What it says goes to files of the folder. */
static void become(const audit *x, char *const argv[])
{
    char *out = gr_printf("%s/out", x->scratch), *err = gr_printf("%s/err", x->scratch);
    const int to = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666),
              also = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (to >= 0 && also >= 0 && dup2(to, STDOUT_FILENO) >= 0 && dup2(also, STDERR_FILENO) >= 0)
        execv("/proc/self/exe", argv);
    _exit(127);
}

/* This program runs the folder as a run of its own: with as many ranks as it had, and the plan it had, or a
 * new one. */
static gr_status execute(const audit *x, bool replan, int *status, gr_diag *d)
{
    char *until = gr_printf("%llu", (unsigned long long)x->to);
    char *argv[] = {(char *)"graphrun",
                    (char *)"exec",
                    (char *)"--resume",
                    x->scratch,
                    (char *)"--until",
                    until,
                    NULL,
                    NULL,
                    NULL,
                    NULL};
    size_t n = 6;
    if (replan) argv[n++] = (char *)"--replan";
    if (x->disk) argv[n++] = (char *)"--disk";
    if (x->disk) argv[n++] = x->disk;
    void (*before)(int) = signal(SIGINT, SIG_IGN); /* the terminal tells the child, too: it ends by itself */
    const pid_t pid = fork();
    if (!pid) {
        signal(SIGINT, SIG_DFL);
        become(x, argv);
    }
    int ended = 0;
    while (pid > 0 && waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
    }
    signal(SIGINT, before);
    free(until);
    *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 1;
    if (pid < 0)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot start a process: %s", strerror(errno));
    return GR_OK;
}

/* What it said on standard error. */
static void pass_on(const audit *x)
{
    char *path = gr_printf("%s/err", x->scratch), *text = NULL;
    size_t n;
    if (!gr_file_read(path, 0, &text, &n, NULL)) fwrite(text, 1, n, stderr);
    free(text);
    free(path);
}

/* A plan that this machine cannot run gives way to one that it can, which is another machine kind then. */
static gr_status execute_again(const audit *x, gr_diag *d)
{
    int status;
    gr_status st = execute(x, false, &status, d);
    if (!st && status == 2) st = execute(x, true, &status, d);
    if (st) return st;
    pass_on(x);
    if (!status) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, status == 1 ? GR_E_FAILED : GR_E_INVALID,
                         "the iterations cannot be run again: graphrun exec ended with status %d", status);
}

/* ---- compared ------------------------------------------------------------------------------------------ */

/* What a checkpoint was made with; of one that is not there nothing is known. */
static kind kind_of(const char *run, uint64_t step)
{
    char *dir = gr_checkpoint_path(run, step), *path = gr_printf("%s/state.json", dir);
    kind k = {0};
    gr_state_file *f = NULL;
    gr_manifest *m = NULL;
    if (gr_state_read(&f, path, NULL) || gr_state_get_text(f, "run", "numerics", &k.numerics, NULL))
        k.numerics = NULL;
    if (!gr_manifest_read(&m, dir, NULL) && m && gr_manifest_says(m).machine)
        k.machine = gr_strdup(gr_manifest_says(m).machine);
    gr_manifest_free(m);
    gr_state_free(f);
    free(path);
    free(dir);
    return k;
}

/* What is not known is taken to be the same. */
static bool is_same(const char *a, const char *b)
{
    return !a || !b || !strcmp(a, b);
}

/* How the steps of a rollout went whose environment answers when it does. */
static bool is_pace(const gr_graph *g, const char *key)
{
    static const char *const names[] = {"decode_steps", "decode_batch", "decode_width",    "read_tokens",
                                        "drafted",      "accepted",     "accepted_length", "tokens_per_step"};
    const char *from = strncmp(key, "val.", 4) ? key : key + 4, *dot = strchr(from, '.');
    char *name = dot ? gr_strndup(from, (size_t)(dot - from)) : NULL;
    const gr_node *n = name && g ? gr_graph_node(g, name) : NULL;
    bool is = false;
    for (size_t i = 0; n && n->op->generates && n->bounds.turns && i < GR_LEN(names); i++)
        is = is || !strcmp(dot + 1, names[i]);
    free(name);
    return is;
}

/* Times and peaks are this execution's, and so is the pace of conversations; all else is the run's. */
static bool is_measured(const audit *x, const char *key)
{
    static const char *const begins[] = {"seconds", "val.seconds", "tokens_per_second", "planned_peak_bytes",
                                         "measured_peak_bytes"};
    for (size_t i = 0; i < GR_LEN(begins); i++)
        if (!strncmp(key, begins[i], strlen(begins[i]))) return true;
    return is_pace(x->graph, key);
}

static double number(const json_t *v)
{
    return json_is_number(v) ? json_number_value(v) : NAN; /* null is how NaN is written */
}

/* The same number with all its digits; or near it. */
static bool agrees(const audit *x, const json_t *was, const json_t *is)
{
    const double a = number(was), b = number(is);
    if (!was || !is || isnan(a) != isnan(b)) return false;
    return isnan(a) || (x->exact ? a == b : fabs(a - b) <= TOLERANCE * (1 + fabs(a)));
}

static char *value_text(const json_t *v)
{
    return !v ? gr_strdup("nothing") : isnan(number(v)) ? gr_strdup("null") : gr_printf("%.17g", number(v));
}

static void note_metric(audit *x, uint64_t step, const char *key, const json_t *was, const json_t *is)
{
    char *a = value_text(was), *b = value_text(is);
    x->difference =
        gr_printf("iteration %llu, '%s': recorded %s, now %s", (unsigned long long)step, key, a, b);
    free(b);
    free(a);
}

/* Keys of one line, in both lines. */
static void compare_lines(audit *x, json_t *was, json_t *is)
{
    const uint64_t step = (uint64_t)json_integer_value(json_object_get(was, "step"));
    const char *key;
    json_t *v;
    json_object_foreach(was, key, v)
    {
        if (is_measured(x, key)) continue;
        x->n_metrics += strcmp(key, "step") != 0;
        if (!x->difference && !agrees(x, v, json_object_get(is, key)))
            note_metric(x, step, key, v, json_object_get(is, key));
    }
    json_object_foreach(is, key, v)
    {
        if (!x->difference && !is_measured(x, key) && !json_object_get(was, key))
            note_metric(x, step, key, NULL, v);
    }
}

/* The line of an iteration; NULL with GR_OK: it has none. */
static gr_status line_of(gr_jsonl *f, uint64_t step, json_t **line, gr_diag *d)
{
    gr_status st = GR_OK;
    *line = NULL;
    for (size_t i = 0; i < gr_jsonl_rows(f) && !st && !*line; i++) {
        st = gr_jsonl_row(f, i, line, d);
        if (st || (uint64_t)json_integer_value(json_object_get(*line, "step")) == step) continue;
        json_decref(*line);
        *line = NULL;
    }
    return st;
}

static gr_status open_metrics(gr_jsonl **f, const char *run, gr_diag *d)
{
    char *path = gr_printf("%s/metrics.jsonl", run);
    gr_status st = gr_jsonl_open(f, path, (gr_loc){0}, d);
    free(path);
    return st;
}

/* Of another machine kind the first iteration alone: what it rounds otherwise grows in those after it. */
static gr_status compare_metrics(audit *x, gr_diag *d)
{
    gr_jsonl *was = NULL, *is = NULL;
    const uint64_t last = x->exact ? x->to : x->from + 1;
    gr_status st = open_metrics(&was, x->run, d);
    if (!st) st = open_metrics(&is, x->scratch, d);
    for (uint64_t step = x->from ? x->from + 1 : 0; step <= last && !st; step++) {
        json_t *a = NULL, *b = NULL;
        st = line_of(was, step, &a, d);
        if (!st) st = line_of(is, step, &b, d);
        if (!st && a && b) compare_lines(x, a, b);
        if (!st && step && !b)
            st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                               "iteration %llu was not run again: it was stopped", (unsigned long long)step);
        if (!st && step && !a && !x->difference)
            x->difference =
                gr_printf("iteration %llu: metrics.jsonl has no line of it", (unsigned long long)step);
        json_decref(a);
        json_decref(b);
    }
    gr_jsonl_free(was);
    gr_jsonl_free(is);
    return st;
}

static gr_status manifest_of(gr_manifest **m, const char *run, uint64_t step, gr_diag *d)
{
    char *dir = gr_checkpoint_path(run, step);
    gr_status st = gr_manifest_read(m, dir, d);
    free(dir);
    return st;
}

/* The one before it in the run is still the one that it names, where it is there. */
static void check_chain(audit *x, const gr_manifest *end, gr_manifest *before)
{
    const gr_manifest_head head = gr_manifest_says(end);
    if (!before || x->difference || !head.has_previous || head.previous_step != x->from) return;
    if (!gr_hash_same(head.previous, gr_manifest_own(before)))
        x->difference =
            gr_printf("the manifest of iteration %llu names another manifest of iteration %llu than "
                      "there is",
                      (unsigned long long)x->to, (unsigned long long)x->from);
}

static gr_status compare_weights(audit *x, gr_diag *d)
{
    gr_manifest *was = NULL, *is = NULL, *before = NULL;
    char *what = NULL;
    gr_status st = manifest_of(&was, x->run, x->to, d);
    if (!st) st = manifest_of(&is, x->scratch, x->to, d);
    if (!st && x->from) st = manifest_of(&before, x->run, x->from, d);
    if (!st && was && is) {
        if (!gr_manifest_same_tensors(was, is, &what) && !x->difference)
            x->difference =
                gr_printf("checkpoint of iteration %llu: %s has other bits", (unsigned long long)x->to, what);
        gr_manifest_count(was, &x->n_files, &x->n_tensors);
        check_chain(x, was, before);
    }
    free(what);
    gr_manifest_free(was);
    gr_manifest_free(is);
    gr_manifest_free(before);
    return st;
}

static void read_graph(audit *x)
{
    char *path = gr_printf("%s/graph.yaml", x->scratch);
    const gr_request run = {.graph = path};
    gr_status st = gr_request_load(&x->graph, &run, NULL, NULL);
    (void)st; /* what it would say is left unsaid then */
    free(path);
}

static gr_status compare(audit *x, gr_diag *d)
{
    read_graph(x);
    x->is = kind_of(x->scratch, x->to);
    x->was = kind_of(x->run, x->has_end ? x->to : x->from);
    x->exact = is_same(x->was.machine, x->is.machine) && is_same(x->was.numerics, x->is.numerics);
    gr_status st = compare_metrics(x, d);
    return !st && x->has_end && x->exact ? compare_weights(x, d) : st;
}

/* ---- said ---------------------------------------------------------------------------------------------- */

/* Rewards that a program gives are the same again only where the program is. */
static void note_commands(const audit *x)
{
    for (size_t i = 0; x->graph && i < x->graph->n_nodes; i++)
        if (gr_node_asks(x->graph->nodes[i]))
            printf("note: what '%s' gives comes from a command: it is the same again only where the command "
                   "gives the same\n",
                   x->graph->nodes[i]->name);
}

static void say_kind(const audit *x)
{
    if (x->exact) return;
    printf(
        "another machine kind: %s, numerics %s then, %s, numerics %s here: sums are rounded otherwise, and "
        "samples may be drawn otherwise; metrics of the first iteration are held to %g of 1 + their value, "
        "weights are not compared\n",
        x->was.machine ? x->was.machine : "unknown", x->was.numerics, x->is.machine, x->is.numerics,
        TOLERANCE);
}

static void say(const audit *x)
{
    const unsigned long long from = x->from, to = x->exact ? x->to : x->from + 1;
    if (from)
        printf("audit of %s: iterations %llu to %llu, from the checkpoint of iteration %llu\n", x->run,
               from + 1, to, from);
    else
        printf("audit of %s: iterations 1 to %llu, from the beginning\n", x->run, to);
    note_commands(x);
    say_kind(x);
    printf("metrics  %llu compared\n", (unsigned long long)x->n_metrics);
    if (x->n_tensors)
        printf("tensors  %llu compared, of %llu files of the checkpoint of iteration %llu\n",
               (unsigned long long)x->n_tensors, (unsigned long long)x->n_files, (unsigned long long)x->to);
    else
        printf("tensors  none: %s\n", !x->exact     ? "another machine kind"
                                      : !x->has_end ? "the run has no checkpoint behind these iterations"
                                                    : "the checkpoint has no manifest");
    if (x->difference)
        printf("different: %s\n", x->difference);
    else
        printf("%s\n", x->exact ? "the same bits" : "the same within the tolerance");
}

int gr_cmd_audit(const gr_args *a, gr_diag *d)
{
    audit x = {.run = a->operand[0], .disk = a->ask.disk ? gr_strdup(a->ask.disk) : NULL};
    gr_status st = choose_iterations(&x, a->operand[1], d);
    if (st) {
        release(&x);
        return gr_exit_status_input(st);
    }
    st = make_scratch(&x, d);
    if (!st) st = execute_again(&x, d);
    if (!st) st = compare(&x, d);
    if (!st) say(&x);
    const int status = st ? gr_exit_status(st) : x.difference ? 1 : 0;
    release(&x);
    return status;
}
