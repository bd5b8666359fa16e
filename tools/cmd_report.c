/* graphrun report: what a run directory tells, on one screen. */
#include "tools/cmd.h"
#include "tools/run_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ops/text/jsonl.h"
#include "ops/summary.h"
#include "runtime/io/checkpoint_dir.h"
#include "runtime/base/json.h"
#include "runtime/io/metrics.h"
#include "runtime/io/responses.h"
#include "ops/base/session.h"
#include "runtime/base/files.h"
#include "runtime/base/visible.h"

enum { CURVE_COLUMNS = 60, SAMPLES = 3 };

/* One number of metrics.jsonl over the iterations that have it; null is NaN. */
typedef struct series {
    char *key;
    double *values, *steps;
    size_t n, cap, n_steps, cap_steps;
} series;

typedef struct report {
    char *graph;
    series *s; /* in the order of their first lines */
    size_t n_series, cap_series, n_steps;
} report;

static void report_release(report *r)
{
    for (size_t i = 0; i < r->n_series; i++) {
        free(r->s[i].key);
        free(r->s[i].values);
        free(r->s[i].steps);
    }
    free(r->s);
    free(r->graph);
}

static char *path_in(const char *run, const char *name)
{
    return gr_printf("%s/%s", run, name);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static gr_status read_graph_name(report *r, const char *run, gr_diag *d)
{
    char *path = path_in(run, "plan.json");
    gr_json plan = {0};
    gr_status st = gr_path_exists(path) ? gr_json_read(&plan, path, d)
                                        : gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                                        "no run in '%s': there is no '%s'", run, path);
    const char *name = st ? NULL : json_string_value(json_object_get(plan.root, "graph"));
    if (name)
        r->graph = gr_strdup(name);
    else if (!st)
        st = gr_diag_error(d, gr_json_at(&plan, "graph"), GR_E_INVALID, "'graph' is not the name of a graph");
    gr_json_release(&plan);
    free(path);
    return st;
}

static series *series_of(report *r, const char *key)
{
    for (size_t i = 0; i < r->n_series; i++)
        if (!strcmp(r->s[i].key, key)) return &r->s[i];
    series s = {.key = gr_strdup(key)};
    GR_PUSH(r->s, r->n_series, r->cap_series, s);
    return &r->s[r->n_series - 1];
}

/* Lines need not have the same keys: step 0 is a validation before the first iteration, some lines have one
 * after them, and a run may have gone on with another graph. */
static gr_status add_line(report *r, json_t *line, gr_loc at, gr_diag *d)
{
    const json_t *number = json_object_get(line, "step");
    double step = json_number_value(number);
    bool before = step == 0;
    if (!json_is_number(number)) return gr_diag_error(d, at, GR_E_INVALID, "'step' is not a number");
    for (void *i = json_object_iter(line); i; i = json_object_iter_next(line, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *v = json_object_iter_value(i);
        if (!json_is_number(v) && !json_is_null(v))
            return gr_diag_error(d, at, GR_E_INVALID, "'%s' is not a number or null", key);
        gr_str shown = {0};
        gr_str_visible(&shown, key, strlen(key), false);
        series *s = series_of(r, shown.len ? shown.text : "");
        gr_str_release(&shown);
        GR_PUSH(s->values, s->n, s->cap, json_is_null(v) ? NAN : json_number_value(v));
        GR_PUSH(s->steps, s->n_steps, s->cap_steps, step);
    }
    r->n_steps += !before;
    return GR_OK;
}

static gr_status read_metrics(report *r, const char *run, gr_diag *d)
{
    char *path = path_in(run, "metrics.jsonl");
    gr_jsonl *file = NULL;
    struct stat info;
    gr_status st = stat(path, &info) || info.st_size
                       ? gr_jsonl_open(&file, path, (gr_loc){0}, d)
                       : gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID,
                                       "no line: no iteration of this run has ended");
    for (size_t i = 0; !st && i < gr_jsonl_rows(file); i++) {
        json_t *line = NULL;
        st = gr_jsonl_row(file, i, &line, d);
        if (!st) st = add_line(r, line, gr_jsonl_at(file, i), d);
        json_decref(line);
    }
    gr_jsonl_free(file);
    free(path);
    return st;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static const series *find(const report *r, const char *key)
{
    for (size_t i = 0; i < r->n_series; i++)
        if (!strcmp(r->s[i].key, key)) return &r->s[i];
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the values that are numbers; NaN where there is none, or no such series. */
static double median(const series *s)
{
    double *v = gr_calloc(s ? s->n + 1 : 1, sizeof(*v)), m = NAN;
    size_t n = 0;
    for (size_t i = 0; s && i < s->n; i++)
        if (!isnan(s->values[i])) v[n++] = s->values[i];
    qsort(v, n, sizeof(*v), ascending);
    if (n) m = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    free(v);
    return m;
}

static double sum(const series *s)
{
    double total = 0;
    for (size_t i = 0; s && i < s->n; i++) total += isnan(s->values[i]) ? 0 : s->values[i];
    return total;
}

/* Index of the largest value (sign 1) or the smallest (-1); n where all are NaN. */
static size_t extreme(const series *s, double sign)
{
    size_t at = s->n;
    for (size_t i = 0; i < s->n; i++)
        if (!isnan(s->values[i]) && (at == s->n || sign * s->values[i] > sign * s->values[at])) at = i;
    return at;
}

/* ---- printing ------------------------------------------------------------------------------------------ */

/* Means of equal parts of the run, from the lowest block to the highest; a part without numbers is blank. */
static void add_curve(gr_str *out, const series *s)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    size_t columns = GR_MIN(s->n, (size_t)CURVE_COLUMNS);
    double mean[CURVE_COLUMNS], lo = INFINITY, hi = -INFINITY;
    for (size_t c = 0; c < columns; c++) {
        size_t n = 0;
        mean[c] = 0;
        for (size_t i = c * s->n / columns; i < (c + 1) * s->n / columns; i++)
            if (!isnan(s->values[i])) mean[c] += s->values[i], n++;
        mean[c] = n ? mean[c] / (double)n : NAN;
        lo = fmin(lo, mean[c]);
        hi = fmax(hi, mean[c]);
    }
    for (size_t c = 0; c < columns; c++) {
        double part = hi > lo ? (mean[c] - lo) / (hi - lo) : 0;
        gr_str_puts(out, isnan(mean[c]) ? " " : blocks[(size_t)(fmin(part, 1) * 7 + 0.5)]);
    }
}

static void add_series_line(gr_str *out, const report *r, const char *name, const char *key, double best)
{
    const series *s = find(r, key);
    size_t at = s ? extreme(s, best) : 0;
    if (!s || at == s->n) return;
    gr_str_printf(out, "%-8s first %.4g, last %.4g, best %.4g in step %.0f\n         ", name, s->values[0],
                  s->values[s->n - 1], s->values[at], s->steps[at]);
    add_curve(out, s);
    gr_str_putc(out, '\n');
}

static void add_node_line(gr_str *out, const char *name, double seconds, double part, double whole)
{
    gr_str_printf(out, "  %-20s %9.4f %6.1f %%\n", name, seconds, whole > 0 ? 100 * part / whole : 0);
}

/* Share is of the whole time, the median of an iteration's. Nodes overlap where lanes do. */
static void add_nodes(gr_str *out, const report *r)
{
    static const char prefix[] = "seconds.";
    double whole = sum(find(r, "seconds"));
    gr_str_puts(out, "seconds an iteration     median   share\n");
    for (size_t i = 0; i < r->n_series; i++)
        if (!strncmp(r->s[i].key, prefix, strlen(prefix)))
            add_node_line(out, r->s[i].key + strlen(prefix), median(&r->s[i]), sum(&r->s[i]), whole);
    add_node_line(out, "whole", median(find(r, "seconds")), whole, whole);
}

static void add_last(gr_str *out, const report *r, const char *node, const char *metric, int digits)
{
    char *key = gr_printf("%s.%s", node, metric);
    const series *s = find(r, key);
    if (s && !isnan(s->values[s->n - 1]))
        gr_str_printf(out, " %9.*f", digits, s->values[s->n - 1]);
    else
        gr_str_printf(out, " %9s", "-");
    free(key);
}

/* Of each node that counted what routers chose, in its last iteration (ops/tally.h). */
static void add_experts(gr_str *out, const report *r)
{
    static const char load[] = ".expert_load";
    bool any = false;
    for (size_t i = 0; i < r->n_series; i++) {
        const char *key = r->s[i].key;
        const size_t len = strlen(key), n = len - GR_MIN(len, strlen(load));
        if (strcmp(key + n, load)) continue;
        if (!any) gr_str_puts(out, "experts, last              load   entropy      dead  agreement\n");
        any = true;
        char *node = gr_printf("%.*s", (int)n, key);
        gr_str_printf(out, "  %-20s", node);
        add_last(out, r, node, "expert_load", 2);
        add_last(out, r, node, "expert_entropy", 3);
        add_last(out, r, node, "experts_dead", 0);
        add_last(out, r, node, "routing_agreement", 4);
        gr_str_putc(out, '\n');
        free(node);
    }
}

static void add_peak(gr_str *out, const report *r, const char *ranks)
{
    char *keys[] = {gr_printf("planned_peak_bytes%s", ranks), gr_printf("measured_peak_bytes%s", ranks)};
    const series *planned = find(r, keys[0]), *measured = find(r, keys[1]);
    size_t p = planned ? extreme(planned, 1) : 0, m = measured ? extreme(measured, 1) : 0;
    char a[32], b[32];
    if (planned && measured && p < planned->n && m < measured->n)
        gr_str_printf(out, "%s%-8s planned %s, measured %s\n", *ranks ? "  ranks " : "",
                      *ranks ? ranks + 1 : "peak", gr_bytes_format((uint64_t)planned->values[p], a),
                      gr_bytes_format((uint64_t)measured->values[m], b));
    free(keys[0]);
    free(keys[1]);
}

/* Of several roles of ranks the highest, and each one's. */
static void add_peaks(gr_str *out, const report *r)
{
    static const char prefix[] = "planned_peak_bytes";
    for (size_t i = 0; i < r->n_series; i++)
        if (!strncmp(r->s[i].key, prefix, strlen(prefix))) add_peak(out, r, r->s[i].key + strlen(prefix));
}

static gr_status add_checkpoints(gr_str *out, const char *run, gr_diag *d)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    gr_status st = gr_checkpoint_list(&steps, &n, run, d);
    gr_str_puts(out, "checkpoints");
    for (size_t i = 0; i < n; i++) gr_str_printf(out, " step-%llu", (unsigned long long)steps[i]);
    gr_str_puts(out, n ? "\n" : " none\n");
    free(steps);
    return st;
}

static gr_status add_sample(gr_str *out, const gr_jsonl *file, size_t row, gr_diag *d)
{
    static const char *const keys[] = {"prompt", "response"};
    json_t *line = NULL;
    gr_status st = gr_jsonl_row(file, row, &line, d);
    const json_t *step = NULL;
    if (!st) st = gr_json_field(line, "step", gr_jsonl_at(file, row), &step, d);
    if (!st) gr_str_printf(out, "  step %-6lld ", (long long)json_integer_value(step));
    for (size_t i = 0; !st && i < GR_LEN(keys); i++) {
        gr_str text = {0};
        st = gr_json_text(line, keys[i], gr_jsonl_at(file, row), &text, d);
        gr_json_add_text(out, text.text ? text.text : "", text.len);
        gr_str_puts(out, i ? "" : " -> ");
        gr_str_release(&text);
    }
    const json_t *reward = st ? NULL : json_object_get(line, "reward"),
                 *advantage = st ? NULL : json_object_get(line, "advantage");
    if (json_is_number(reward)) gr_str_printf(out, "  reward %g", json_number_value(reward));
    if (json_is_number(advantage)) gr_str_printf(out, "  advantage %.3g", json_number_value(advantage));
    gr_str_putc(out, '\n');
    json_decref(line);
    return st;
}

/* The first and the last of the samples. */
static gr_status add_samples(gr_str *out, const char *run, gr_diag *d)
{
    char *path = path_in(run, "samples.jsonl"), *text = NULL;
    gr_jsonl *file = NULL;
    size_t bytes = 0;
    gr_status st = gr_file_read(path, 0, &text, &bytes, d);
    bool any = !st && strspn(text, " \t\r\n") < bytes; /* `samples: 0` leaves the file empty */
    free(text);
    if (any) st = gr_jsonl_open(&file, path, (gr_loc){0}, d);
    size_t n = any && !st ? gr_jsonl_rows(file) : 0, first = GR_MIN(n, (size_t)SAMPLES);
    if (n) gr_str_puts(out, "samples\n");
    for (size_t i = 0; !st && i < first; i++) st = add_sample(out, file, i, d);
    for (size_t i = GR_MAX(first, n - first); !st && i < n; i++) st = add_sample(out, file, i, d);
    gr_jsonl_free(file);
    free(path);
    return st;
}

static gr_status add_kept(gr_str *out, const char *run, gr_diag *d)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    gr_status st = gr_responses_steps(run, &steps, &n, d);
    if (n)
        gr_str_printf(out, "responses  kept whole in %s/samples, of steps %llu to %llu\n", run,
                      (unsigned long long)steps[0], (unsigned long long)steps[n - 1]);
    free(steps);
    return st;
}

/* One run as text. */
static gr_status sum_up(const char *run, gr_str *out, gr_diag *d)
{
    report r = {0};
    gr_status st = read_graph_name(&r, run, d);
    if (!st) st = read_metrics(&r, run, d);
    if (!st) {
        gr_str_printf(out, "%s: %zu iterations in %.1f s, %.0f tokens/s (median)\n", r.graph, r.n_steps,
                      sum(find(&r, "seconds")), median(find(&r, "tokens_per_second")));
        add_series_line(out, &r, "reward", "reward_mean", 1);
        add_series_line(out, &r, "loss", "loss", -1);
        for (size_t i = 0; i < r.n_series; i++)
            if (gr_is_validation_score(r.s[i].key)) add_series_line(out, &r, r.s[i].key, r.s[i].key, 1);
        add_nodes(out, &r);
        add_experts(out, &r);
        add_peaks(out, &r);
        st = add_checkpoints(out, run, d);
    }
    if (!st) st = add_kept(out, run, d);
    if (!st) st = add_samples(out, run, d);
    report_release(&r);
    return st;
}

static gr_status as_text(const gr_args *a, gr_str *shown, gr_diag *d)
{
    gr_str out = {0};
    gr_status st = GR_OK;
    for (size_t i = 0; i < a->n_operands && !st; i++) {
        if (a->n_operands > 1) gr_str_printf(&out, "%s%s\n", i ? "\n" : "", a->operand[i]);
        st = sum_up(a->operand[i], &out, d);
    }
    gr_str_visible(shown, out.text ? out.text : "", out.len, true);
    gr_str_release(&out);
    return st;
}

int gr_cmd_report(const gr_args *a, gr_diag *d)
{
    gr_str out = {0};
    const bool page = a->format && !strcmp(a->format, "html");
    const gr_status st = page ? gr_page_runs(a->operand, a->n_operands, false, &out, d) : as_text(a, &out, d);
    if (!st) return gr_cmd_finish(&out, a->ask.out, d);
    gr_str_release(&out);
    return 2;
}
