/* runtime/run/outputs.c: the run directory and the lines for people. */
#include "runtime/run/outputs.h"

#include "ops/base/configs.h"
#include "ops/rollout.h"
#include "ops/summary.h"
#include "runtime/io/checkpoint_dir.h"
#include "runtime/io/metrics.h"
#include "runtime/io/progress.h"
#include "runtime/io/responses.h"
#include "runtime/io/tensorboard.h"
#include "runtime/io/trace.h"
#include "runtime/base/files.h"
#include "runtime/base/visible.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ITERATIONS = GR_N_LANES /* a track of the trace, behind the lanes' */ };

struct gr_outputs {
    const gr_graph *g;
    const gr_plan *plan;
    const gr_run_options *options;
    bool silent; /* of the ranks another than the first: nothing is written */
    int lock;
    bool locked, begun; /* begun: iterations, or what comes before them */
    gr_lines *metrics, *samples;
    gr_trace *trace;
    gr_tensorboard *board;
    gr_progress progress;
    char *first_sample, *last_sample;
    gr_str drops;            /* what data nodes left out, for people */
    uint64_t *peaks;         /* [roles] measured so far */
    gr_told_number *numbers; /* of the last line, where somebody listens */
    size_t n_numbers, cap_numbers;
    gr_arena *names;
};

static char *path_in(const gr_outputs *o, const char *name)
{
    return gr_printf("%s/%s", o->options->out, name);
}

/* ---- opening
 * ------------------------------------------------------------------------------------------------ */

/* What was refused before its first iteration ended is no run: it may begin again in the same place. */
static gr_status refuse_old_run(const gr_outputs *o, gr_diag *d)
{
    char *metrics = path_in(o, "metrics.jsonl"), *checkpoints = path_in(o, "checkpoints");
    struct stat s;
    bool began = (!stat(metrics, &s) && s.st_size > 0) || gr_path_exists(checkpoints);
    gr_status st = GR_OK;
    if (!o->options->resume && began)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                           "'%s' holds a run already; go on with --resume %s, or choose another --out",
                           o->options->out, o->options->out);
    free(checkpoints);
    free(metrics);
    return st;
}

gr_status gr_outputs_what_runs(const gr_outputs *o, const char *dir, gr_diag *d)
{
    gr_str plan = {0};
    char *graph_path = gr_printf("%s/graph.yaml", dir), *plan_path = gr_printf("%s/plan.json", dir);
    gr_plan_write_json(o->plan, &plan);
    gr_status st = gr_file_write(graph_path, o->plan->graph_text, strlen(o->plan->graph_text), d);
    if (!st) st = gr_file_write(plan_path, plan.text, plan.len, d);
    gr_str_release(&plan);
    free(graph_path);
    free(plan_path);
    return st;
}

gr_status gr_outputs_open(gr_outputs **out, const gr_run_options *options, const gr_graph *g,
                          const gr_plan *p, gr_diag *d)
{
    gr_outputs *o = gr_calloc(1, sizeof(*o));
    *o = (gr_outputs){.g = g, .plan = p, .options = options, .silent = gr_comm_rank(options->comm) > 0};
    o->peaks = gr_calloc(p->n_more + 1, sizeof(*o->peaks));
    *out = o; /* gr_outputs_close takes half-opened ones */
    if (o->silent) return GR_OK;
    gr_progress_init(&o->progress, options->progress, options->comm); /* mpirun's terminals are none */
    gr_status st = gr_run_lock(&o->lock, options->out, d);
    if (st) return st;
    o->locked = true;
    st = refuse_old_run(o, d);
    return st || options->resume ? st : gr_outputs_what_runs(o, o->options->out, d);
}

/* ---- what is only looked at ------------------------------------------------------------------------------
 */

/* A trace and the events of TensorBoard are no reason to end a run: one that cannot be written is left out.
 */
static void leave_out_trace(gr_outputs *o)
{
    gr_status st = gr_trace_close(o->trace, NULL);
    (void)st;
    o->trace = NULL;
}

static void leave_out_board(gr_outputs *o)
{
    gr_tensorboard_free(o->board);
    o->board = NULL;
}

static void say_left_out(gr_outputs *o, gr_diag *why)
{
    for (size_t i = 0; i < why->n; i++) {
        char *line = gr_printf("warning: %s; it is left out from here on", why->messages[i].text);
        gr_progress_say(&o->progress, line);
        free(line);
    }
    gr_diag_release(why);
}

static void flush_looked_at(gr_outputs *o)
{
    gr_diag why;
    gr_diag_init(&why);
    if (o->board && gr_tensorboard_flush(o->board, &why)) leave_out_board(o);
    if (o->trace && gr_trace_flush(o->trace, &why)) leave_out_trace(o);
    say_left_out(o, &why);
}

gr_progress *gr_outputs_progress(gr_outputs *o)
{
    return o->options->progress ? &o->progress : NULL;
}

void gr_outputs_look(gr_outputs *o)
{
    if (o->silent) return;
    static const char *const tracks[] = {
#define X(name, text) text,
        GR_LANE_MAP(X)
#undef X
            "iterations"};
    char *trace = path_in(o, "trace.json");
    gr_diag why;
    gr_diag_init(&why);
    if (gr_trace_open(&o->trace, trace, 0, tracks, GR_LEN(tracks), 0, &why)) leave_out_trace(o);
    if (gr_tensorboard_open(&o->board, o->options->out, &why)) leave_out_board(o);
    say_left_out(o, &why);
    free(trace);
}

static gr_status set_aside(gr_outputs *o, uint32_t step, gr_diag *d)
{
    char *aside = NULL;
    gr_status st = gr_checkpoint_set_aside(&aside, o->options->out, step, d);
    if (!st && aside) {
        char *line = gr_printf(
            "going back to iteration %u: what was behind it is kept in %s, a run directory", step, aside);
        gr_progress_say(&o->progress, line);
        free(line);
    }
    free(aside);
    return st;
}

gr_status gr_outputs_resume(gr_outputs *o, uint32_t step, gr_diag *d)
{
    if (o->silent) return GR_OK;
    char *metrics = path_in(o, "metrics.jsonl"), *samples = path_in(o, "samples.jsonl");
    uint64_t from = step ? (uint64_t)step + 1 : 0;
    gr_status st = o->options->has_from ? set_aside(o, step, d) : GR_OK;
    if (!st) st = gr_lines_open(&o->metrics, metrics, from, d);
    if (!st) st = gr_lines_open(&o->samples, samples, from, d);
    if (!st) st = gr_responses_remove_behind(o->options->out, step, d);
    free(metrics);
    free(samples);
    return st;
}

/* ---- lines for people
 * --------------------------------------------------------------------------------------- */

static void print_stop_id(FILE *to, const gr_tokenizer *t, int32_t id)
{
    size_t len = 0;
    const char *text = gr_tokenizer_token(t, id, &len);
    gr_str s = {0};
    gr_str_printf(&s, " %d (", id);
    gr_str_visible(&s, text ? text : "", len, false);
    fprintf(to, "%s)", s.text);
    gr_str_release(&s);
}

/* The node's own, or the checkpoint's. */
static void print_stop_ids(const gr_outputs *o, const gr_session *s, const gr_node *n)
{
    FILE *to = o->options->progress;
    const gr_stop_ids stop = gr_rollout_stop_ids(n);
    const gr_tokenizer *t = gr_session_tokenizer(s, n);
    fprintf(to, "%s: stop ids", n->name);
    for (uint32_t i = 0; i < stop.n; i++) print_stop_id(to, t, stop.id[i]);
    fprintf(to, "%s\n", stop.n ? "" : " none: every response runs to max_tokens");
}

static void print_notes(FILE *to, const char *notes)
{
    for (size_t n; *notes; notes += n + (notes[n] == '\n')) {
        n = strcspn(notes, "\n");
        gr_str s = {0};
        gr_str_puts(&s, "note: ");
        gr_str_visible(&s, notes, n, false);
        fprintf(to, "%s\n", s.text);
        gr_str_release(&s);
    }
}

static void announce(const gr_outputs *o, const gr_session *s)
{
    FILE *to = o->options->progress;
    char peak[32], host[32];
    if (!to) return;
    if (s->step >= s->steps) {
        fprintf(to, "%s: nothing is left to do: %u iterations are done, of %u that are asked for\n",
                o->g->name, s->step, s->steps);
        return;
    }
    fprintf(to, "%s: iterations %u to %u, peak %s, host %s, seed %llu, numerics %s\n", o->g->name,
            s->step + 1, s->steps, gr_bytes_format(gr_plan_peak(o->plan), peak),
            gr_bytes_format(o->plan->host_bytes, host), (unsigned long long)s->seed, o->plan->numerics);
    print_notes(to, o->plan->notes);
    if (!o->g->run.steps && !o->g->run.epochs) fprintf(to, "neither steps nor epochs are given: one epoch\n");
    for (size_t i = 0; i < o->g->n_nodes; i++)
        if (o->g->nodes[i]->op->generates) print_stop_ids(o, s, o->g->nodes[i]);
}

gr_status gr_outputs_begin(gr_outputs *o, const gr_session *s, gr_diag *d)
{
    announce(o, s);
    o->begun = s->step < s->steps;
    return o->options->resume && !o->silent && s->step < s->steps
               ? gr_outputs_what_runs(o, o->options->out, d)
               : GR_OK;
}

void gr_outputs_warn(gr_outputs *o, gr_diag *d)
{
    if (!o->options->progress || !d->n) return;
    for (size_t i = 0; i < d->n; i++) {
        char *line = gr_message_format(&d->messages[i]);
        gr_progress_say(&o->progress, line);
        free(line);
    }
    gr_diag_release(d);
    gr_diag_init(d);
}

void gr_outputs_stopped(gr_outputs *o, const gr_session *s, bool by_rule)
{
    gr_str line = {0};
    gr_str_printf(&line, "stopped after iteration %u of %u", s->step, s->steps);
    if (by_rule) gr_str_printf(&line, ", in which '%s' holds", o->g->run.stop.text);
    gr_str_printf(&line, "; graphrun exec --resume %s goes on", o->options->out);
    gr_progress_say(&o->progress, line.text);
    gr_str_release(&line);
}

/* Of several roles a line each; what steps have touched is known of rank 0's. */
static void print_peaks(const gr_outputs *o, const gr_executor *e)
{
    char planned[32], measured[32], touched[32];
    FILE *to = o->options->progress;
    for (uint32_t c = 0; c <= o->plan->n_more; c++) {
        const gr_plan *p = gr_plan_role(o->plan, c);
        fputs("peak", to);
        if (o->plan->n_more) fprintf(to, " of ranks %s (%s)", p->ranks, p->pools);
        fprintf(to, ": planned %s, measured %s", gr_bytes_format(p->peak_bytes, planned),
                gr_bytes_format(o->peaks[c], measured));
        if (o->options->poison && !c)
            fprintf(to, ", touched by steps %s", gr_bytes_format(gr_executor_touched(e).most, touched));
        fputc('\n', to);
    }
}

static double rate_of(uint64_t bytes, uint64_t ns)
{
    return ns ? (double)bytes / (double)ns : 0; /* GB a second */
}

/* Of this rank: what the plan keeps on a disk, and what was done there. */
static void print_disk(const gr_outputs *o, const gr_executor *e)
{
    const gr_disk_use use = gr_executor_disk(e);
    char planned[32], taken[32], read[32], written[32];
    if (!o->plan->disk_bytes) return;
    fprintf(o->options->progress,
            "disk: planned %s, measured %s, read %s at %.2f GB/s, written %s at %.2f GB/s\n",
            gr_bytes_format(o->plan->disk_bytes, planned), gr_bytes_format(use.taken, taken),
            gr_bytes_format(use.read, read), rate_of(use.read, use.read_ns),
            gr_bytes_format(use.written, written), rate_of(use.written, use.write_ns));
}

static void note_drops(gr_outputs *o, const gr_record *r)
{
    static const char what[] = ".dropped";
    o->drops.len = 0;
    for (size_t i = 0; i < r->n_metrics; i++) {
        const char *name = r->metrics[i].name;
        size_t n = strlen(name), m = strlen(what);
        if (n > m && !strcmp(name + n - m, what))
            gr_str_printf(&o->drops, "%.*s: dropped %.0f records that are too long\n", (int)(n - m), name,
                          r->metrics[i].value);
    }
}

gr_status gr_outputs_touched(const gr_outputs *o, const gr_executor *e, gr_diag *d)
{
    const gr_touched t = gr_executor_touched(e);
    if (t.step == GR_NONE || o->silent) return GR_OK;
    gr_str s = {0};
    gr_str_printf(&s, "what,category,planned_bytes,mark_bytes,touched_bytes\n");
    gr_str_printf(&s, "%s,peak,%llu,%llu,%llu\n", gr_plan_step(o->plan, t.step)->what,
                  (unsigned long long)t.planned, (unsigned long long)t.marks, (unsigned long long)t.touched);
    for (uint32_t i = 0; i < o->plan->n_ledger; i++) {
        const gr_entry *x = &o->plan->ledger[i];
        if (!t.entry[i].live) continue;
        gr_str_printf(&s, "%s,%s,%llu,%llu,%llu\n", x->what, gr_category_str(x->category),
                      (unsigned long long)x->bytes, (unsigned long long)t.entry[i].mark,
                      (unsigned long long)t.entry[i].touched);
    }
    char *path = path_in(o, "touched.csv");
    gr_status st = gr_file_write(path, s.text, s.len, d);
    free(path);
    gr_str_release(&s);
    return st;
}

void gr_outputs_close(gr_outputs *o, const gr_executor *e, uint64_t measured_peak)
{
    if (!o) return;
    FILE *to = o->options->progress;
    if (to) gr_progress_end(&o->progress);
    o->peaks[0] = GR_MAX(o->peaks[0], measured_peak);
    if (to && o->drops.len) fputs(o->drops.text, to);
    if (to && o->begun) print_peaks(o, e);
    if (to && o->begun) print_disk(o, e);
    if (to && o->first_sample && o->last_sample)
        fprintf(to, "sample, first iteration: %s\nsample, last iteration:  %s\n", o->first_sample,
                o->last_sample);
    gr_lines_free(o->metrics);
    gr_lines_free(o->samples);
    gr_tensorboard_free(o->board);
    gr_status st = gr_trace_close(o->trace, NULL);
    (void)st; /* a trace without its end can still be read */
    if (o->locked) gr_run_unlock(o->lock);
    free(o->first_sample);
    free(o->last_sample);
    gr_str_release(&o->drops);
    free(o->peaks);
    free(o->numbers);
    gr_arena_free(o->names);
    free(o);
}

/* ---- an iteration
 * ------------------------------------------------------------------------------------------- */

/* metrics.jsonl names the policy's update without its node: "loss" stands for "update.loss". */
static const char *bare_name(const gr_outputs *o, const char *name)
{
    static const char *const bare[] = {
        "loss",          "grad_norm",        "entropy",   "lr", "logprob_gap_max",
        "skipped_steps", "skipped_in_a_row", "zero_steps"};
    const gr_node *update = gr_graph_subject(o->g).update;
    size_t n = update ? strlen(update->name) : 0;
    if (!update || strncmp(name, update->name, n) || name[n] != '.') return NULL;
    for (size_t i = 0; i < GR_LEN(bare); i++)
        if (!strcmp(name + n + 1, bare[i])) return bare[i];
    return NULL;
}

double gr_outputs_metric(const gr_outputs *o, const gr_record *r, const char *bare)
{
    const gr_node *update = gr_graph_subject(o->g).update;
    char *full = gr_printf("%s.%s", update ? update->name : "", bare);
    const struct gr_metric *m = gr_record_find(r, bare);
    if (!m) m = gr_record_find(r, full);
    free(full);
    return m ? m->value : NAN;
}

void gr_outputs_best(gr_outputs *o, const char *name, double value, uint32_t step)
{
    if (!o->options->progress) return;
    gr_str line = {0};
    gr_str_printf(&line, "best so far: %s %.4g at step %u", name, value, step);
    gr_progress_say(&o->progress, line.text);
    gr_str_release(&line);
}

static void begin_line(gr_outputs *o, uint32_t step)
{
    gr_arena_free(o->names);
    o->names = o->options->listener ? gr_arena_new() : NULL;
    o->n_numbers = 0;
    gr_lines_begin(o->metrics, step);
}

static void keep_number(gr_outputs *o, const char *name, double value)
{
    if (!o->names) return;
    gr_told_number x = {gr_arena_strdup(o->names, name), value};
    GR_PUSH(o->numbers, o->n_numbers, o->cap_numbers, x);
}

const char *gr_outputs_line(const gr_outputs *o, size_t *n)
{
    return gr_lines_last(o->metrics, n);
}

const gr_told_number *gr_outputs_numbers(const gr_outputs *o, size_t *n)
{
    *n = o->n_numbers;
    return o->numbers;
}

static void add_bytes(gr_outputs *o, const char *name, uint64_t bytes)
{
    keep_number(o, name, (double)bytes);
    gr_lines_integer(o->metrics, name, (int64_t)bytes);
}

static void add(gr_outputs *o, uint32_t step, const char *name, double value)
{
    keep_number(o, name, value);
    gr_lines_number(o->metrics, name, value);
    if (o->board) gr_tensorboard_scalar(o->board, step, name, value);
}

static bool of_validation(const char *name)
{
    return !strncmp(name, GR_VALIDATION, strlen(GR_VALIDATION));
}

static void add_seconds(gr_outputs *o, const gr_record *r, size_t node)
{
    const gr_node *n = o->g->nodes[node];
    char *name = gr_printf("%sseconds.%s", n->timing.every ? GR_VALIDATION : "", n->name);
    add(o, r->step, name, (double)r->node_ns[node] * 1e-9);
    free(name);
}

static void add_validation(gr_outputs *o, const gr_record *r)
{
    for (size_t i = 0; i < r->n_metrics; i++)
        if (of_validation(r->metrics[i].name)) add(o, r->step, r->metrics[i].name, r->metrics[i].value);
    for (size_t i = 0; i < o->g->n_nodes; i++)
        if (gr_node_is_due(o->g->nodes[i], r->step)) add_seconds(o, r, i);
}

/* "validation at step 10: check 0.412, check.pass@4 0.6 (12.3 s)" */
static void say_validation(gr_outputs *o, const gr_record *r)
{
    const struct gr_metric *seconds = gr_record_find(r, GR_VALIDATION "seconds");
    gr_str line = {0};
    if (!seconds) return;
    gr_str_printf(&line, "validation at step %u:", r->step);
    for (size_t i = 0, n = 0; i < r->n_metrics; i++)
        if (gr_is_validation_score(r->metrics[i].name))
            gr_str_printf(&line, "%s %s %.4g", n++ ? "," : "", r->metrics[i].name + strlen(GR_VALIDATION),
                          r->metrics[i].value);
    gr_str_printf(&line, " (%.1f s)", seconds->value);
    gr_progress_say(&o->progress, line.text);
    gr_str_release(&line);
}

static gr_status end_line(gr_outputs *o, gr_diag *d)
{
    flush_looked_at(o);
    return gr_lines_end(o->metrics, d);
}

/* One line of text: what a terminal can show. */
static char *shown(const gr_sample *x)
{
    gr_str s = {0}, visible = {0};
    gr_json_add_text(&s, x->prompt.text ? x->prompt.text : "", x->prompt.len);
    gr_str_puts(&s, " -> ");
    gr_json_add_text(&s, x->response.text ? x->response.text : "", x->response.len);
    if (!isnan(x->score)) gr_str_printf(&s, " (reward %g)", x->score);
    gr_str_visible(&visible, s.text, s.len, false);
    gr_str_release(&s);
    return visible.text;
}

static gr_status write_sample(gr_outputs *o, uint32_t step, const gr_sample *x, gr_diag *d)
{
    gr_lines_begin(o->samples, step);
    gr_lines_integer(o->samples, "sequence", x->seq);
    gr_lines_text(o->samples, "prompt", x->prompt.text ? x->prompt.text : "", x->prompt.len);
    gr_lines_text(o->samples, "response", x->response.text ? x->response.text : "", x->response.len);
    if (x->segments.len) gr_lines_json(o->samples, "segments", x->segments.text);
    gr_lines_number(o->samples, "reward", x->score);
    if (x->has_advantage) gr_lines_number(o->samples, "advantage", x->advantage);
    char **keep = o->first_sample ? &o->last_sample : &o->first_sample;
    free(*keep);
    *keep = shown(x);
    return gr_lines_end(o->samples, d);
}

/* The most of the ranks; of several roles that, and each one's. */
static void add_peaks(gr_outputs *o, const gr_heard *h)
{
    const uint32_t n = o->plan->n_more + 1;
    uint64_t most = 0;
    for (uint32_t c = 0; c < n; c++) {
        o->peaks[c] = GR_MAX(o->peaks[c], h->own[c]->peak_bytes);
        most = GR_MAX(most, o->peaks[c]);
    }
    add_bytes(o, "planned_peak_bytes", gr_plan_peak(o->plan));
    add_bytes(o, "measured_peak_bytes", most);
    for (uint32_t c = 0; c < n && n > 1; c++) {
        const gr_plan *p = gr_plan_role(o->plan, c);
        char *planned = gr_printf("planned_peak_bytes.%s", p->ranks),
             *measured = gr_printf("measured_peak_bytes.%s", p->ranks);
        add_bytes(o, planned, p->peak_bytes);
        add_bytes(o, measured, o->peaks[c]);
        free(planned);
        free(measured);
    }
}

/* Steps that were not made are no reason to end a run, but one to look at it: a weight or a loss is NaN. */
static void say_not_finite(gr_outputs *o, const gr_record *r)
{
    static const char what[] = ".grad_norm";
    for (size_t i = 0; i < r->n_metrics; i++) {
        const char *name = r->metrics[i].name;
        size_t n = strlen(name), m = strlen(what);
        if (n <= m || strcmp(name + n - m, what) || isfinite(r->metrics[i].value)) continue;
        char *skipped = gr_printf("%.*s.skipped_steps", (int)(n - m), name);
        const struct gr_metric *so_far = gr_record_find(r, skipped);
        char *line = gr_printf("warning: step %u: the gradients of '%.*s' are not finite; %.0f optimizer "
                               "steps were left out so far",
                               r->step, (int)(n - m), name, so_far ? so_far->value : 0);
        gr_progress_say(&o->progress, line);
        free(line);
        free(skipped);
    }
}

void gr_outputs_say_state(gr_outputs *o, uint32_t step, const char *state)
{
    if (!o->options->progress) return;
    char *line = gr_printf("warning: step %u: state '%s' is not finite", step, state);
    gr_progress_say(&o->progress, line);
    free(line);
}

static void say_notes(gr_outputs *o, const gr_record *r)
{
    const char *text = r->notes.len ? r->notes.text : "";
    for (size_t n; *text; text += n + 1) {
        n = strcspn(text, "\n");
        char *line = gr_printf("warning: step %u: %.*s", r->step, (int)n, text);
        gr_progress_say(&o->progress, line);
        free(line);
    }
}

gr_status gr_outputs_iteration(gr_outputs *o, const gr_heard *h, uint32_t steps, gr_diag *d)
{
    if (o->silent) return GR_OK;
    static const char *const always[] = {
        "reward_mean",        "loss",  "kl", "entropy", "grad_norm", "response_tokens_mean",
        "truncated_fraction", "tokens"};
    const gr_record *r = h->all;
    double seconds = (double)r->ns * 1e-9, tokens = gr_outputs_metric(o, r, "tokens");
    begin_line(o, r->step);
    for (size_t i = 0; i < GR_LEN(always); i++)
        add(o, r->step, always[i], gr_outputs_metric(o, r, always[i]));
    add(o, r->step, "seconds", seconds);
    add(o, r->step, "tokens_per_second", tokens / seconds);
    add_peaks(o, h);
    for (size_t i = 0; i < r->n_metrics; i++) {
        const char *name = bare_name(o, r->metrics[i].name);
        if (of_validation(r->metrics[i].name)) continue;
        bool done = false;
        for (size_t k = 0; k < GR_LEN(always); k++)
            done = done || !strcmp(name ? name : r->metrics[i].name, always[k]);
        if (!done) add(o, r->step, name ? name : r->metrics[i].name, r->metrics[i].value);
    }
    for (size_t i = 0; i < o->g->n_nodes; i++)
        if (!o->g->nodes[i]->timing.every) add_seconds(o, r, i);
    add_validation(o, r);
    note_drops(o, r);
    if (o->trace) gr_trace_iteration(o->trace, ITERATIONS, r->step);
    gr_status st = GR_OK;
    for (size_t i = 0; i < r->n_samples && !st; i++) st = write_sample(o, r->step, &r->samples[i], d);
    if (!st) st = end_line(o, d);
    if (o->options->progress)
        gr_progress_step(&o->progress, r->step, steps, gr_outputs_metric(o, r, "reward_mean"),
                         gr_outputs_metric(o, r, "loss"), tokens, seconds);
    if (o->options->progress) {
        say_not_finite(o, r);
        say_notes(o, r);
        say_validation(o, r);
    }
    return st;
}

gr_status gr_outputs_before(gr_outputs *o, const gr_record *r, gr_diag *d)
{
    if (o->silent) return GR_OK;
    begin_line(o, r->step);
    add_validation(o, r);
    if (o->options->progress) {
        say_notes(o, r);
        say_validation(o, r);
    }
    return end_line(o, d);
}

void gr_outputs_trace(void *user, gr_path_id path, uint32_t i, uint32_t trip, uint64_t begin_ns,
                      uint64_t end_ns)
{
    gr_outputs *o = user;
    const gr_step *s = &o->plan->paths[path].steps[i];
    (void)trip;
    const bool counted = path == GR_PATH_STEADY || path == GR_PATH_VALIDATE;
    const uint32_t before = path == GR_PATH_VALIDATE ? o->plan->paths[GR_PATH_STEADY].n : 0;
    const gr_trace_what what = {s->what, s->node ? s->node : gr_path_str(path),
                                counted ? before + i : GR_TRACE_NO_STEP, s->ns};
    if (!o->trace || s->kind == GR_STEP_LOOP) return;
    gr_trace_event(o->trace, s->lane, &what, begin_ns, end_ns);
    if (s->lane == GR_LANE_COMPUTE) gr_trace_memory(o->trace, begin_ns, s->resident_bytes);
}

/* ---- checkpoints
 * -------------------------------------------------------------------------------------------- */

/* Rank 0 looks; the others take its word. */
gr_status gr_outputs_checkpoint_from(gr_outputs *o, char **dir, gr_diag *d)
{
    uint64_t *steps = NULL, last = 0; /* counted from 1: a step 0 is one, too */
    size_t n = 0;
    if (o->options->has_from) {
        *dir = gr_checkpoint_path(o->options->out, o->options->from);
        return GR_OK;
    }
    gr_status st = o->silent ? GR_OK : gr_checkpoint_list(&steps, &n, o->options->out, d);
    if (!st && n) last = steps[n - 1] + 1;
    if (!st) st = gr_comm_agree(o->options->comm, &last, d);
    *dir = !st && last ? gr_checkpoint_path(o->options->out, last - 1) : NULL;
    free(steps);
    return st;
}

gr_status gr_outputs_checkpoint_begin(gr_outputs *o, uint32_t step, char **aside, gr_diag *d)
{
    if (!o->silent) return gr_checkpoint_begin(aside, o->options->out, step, d);
    *aside = gr_checkpoint_aside(o->options->out, step);
    return GR_OK;
}

gr_status gr_outputs_checkpoint_commit(gr_outputs *o, uint32_t step, gr_checkpoint_kept kept, gr_diag *d)
{
    if (o->silent) return GR_OK;
    gr_status st = gr_lines_sync(o->metrics, d); /* a run that goes on from it has its history */
    if (!st) st = gr_lines_sync(o->samples, d);
    if (!st) st = gr_checkpoint_commit(o->options->out, step, d);
    if (!st && kept.best == step) st = gr_outputs_mark_best(o, kept.best, d);
    return st ? st : gr_checkpoint_prune(o->options->out, kept, d);
}

gr_status gr_outputs_mark_best(gr_outputs *o, uint32_t step, gr_diag *d)
{
    if (o->silent) return GR_OK;
    char *path = gr_checkpoint_path(o->options->out, step);
    bool there = gr_path_exists(path);
    free(path);
    if (!there) return GR_OK; /* taken away by hand */
    return gr_checkpoint_mark_best(o->options->out, step, d);
}
