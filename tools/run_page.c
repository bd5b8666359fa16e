/* tools/run_page.c: see its header. */
#include "tools/run_page.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "graphs/loader/load.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/io/metrics.h"
#include "runtime/io/responses.h"
#include "runtime/io/seal.h"

extern const char gr_run_page[]; /* tools/run.html */

/* ---- lines ----------------------------------------------------------------------------------------------
 */

static void mark_line(const char *line, size_t n, char mark[17])
{
    char hex[GR_HASH_HEX];
    memcpy(mark, gr_hash_hex(gr_hash_bytes(line, n), hex), 16);
    mark[16] = '\0';
}

/* The bytes from `from` to `to` of an open file. */
static gr_status read_part(int fd, const char *path, uint64_t from, uint64_t to, gr_str *out, gr_diag *d)
{
    enum { BLOCK = 1 << 16 };
    char block[BLOCK];
    while (from < to) {
        const ssize_t got = pread(fd, block, (size_t)GR_MIN(to - from, (uint64_t)BLOCK), (off_t)from);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_IO, "%s", strerror(errno));
        if (!got) return GR_OK; /* it has become shorter: the next call sees that */
        gr_str_add(out, block, (size_t)got);
        from += (uint64_t)got;
    }
    return GR_OK;
}

/* Of text, which begins and ends anywhere: up to its last whole line. */
static size_t whole_lines(const gr_str *text)
{
    size_t n = text->len;
    while (n && text->text[n - 1] != '\n') n--;
    return n;
}

static size_t last_line(const char *text, size_t n)
{
    size_t from = n ? n - 1 : 0;
    while (from && text[from - 1] != '\n') from--;
    return from;
}

/* Whether the line that ends at at->to is still the one that was read. */
static bool is_same(int fd, const char *path, const gr_page_place *at, uint64_t size, gr_diag *d)
{
    enum { REACH = 1 << 20 }; /* the longest line that is looked at; behind a longer one all is read again */
    if (!at->to || at->to > size) return false;
    gr_str text = {0};
    char mark[17] = "";
    if (!read_part(fd, path, at->to - GR_MIN(at->to, (uint64_t)REACH), at->to, &text, d) && text.len) {
        const size_t from = last_line(text.text, text.len);
        mark_line(text.text + from, text.len - from, mark);
    }
    gr_str_release(&text);
    return !strcmp(mark, at->mark);
}

/* Returns how many are no objects. */
static uint64_t take_lines(json_t *list, const char *text, size_t n)
{
    uint64_t damaged = 0;
    for (size_t from = 0; from < n;) {
        const size_t len = (size_t)((const char *)memchr(text + from, '\n', n - from) - text) - from;
        json_t *line = json_loadb(text + from, len, JSON_REJECT_DUPLICATES, NULL);
        damaged += !json_is_object(line);
        if (json_is_object(line)) json_array_append(list, line);
        json_decref(line);
        from += len + 1;
    }
    return damaged;
}

/* Of a file that is read from its start and is too large the end, from the first whole line on. */
static gr_status read_lines(int fd, const char *path, gr_page_place *at, uint64_t size, json_t *list,
                            gr_diag *d)
{
    const bool cut = !at->from && size > GR_PAGE_LINES_BYTES;
    const uint64_t first = cut ? size - GR_PAGE_LINES_BYTES : at->from,
                   end = GR_MIN(size, first + GR_PAGE_LINES_BYTES);
    gr_str text = {0};
    gr_status st = read_part(fd, path, first, end, &text, d);
    const size_t n = st ? 0 : whole_lines(&text);
    const char *newline = cut && n ? memchr(text.text, '\n', n) : NULL;
    const size_t skip = newline ? (size_t)(newline - text.text) + 1 : 0;
    at->damaged = n ? take_lines(list, text.text + skip, n - skip) : 0;
    if (n) mark_line(text.text + last_line(text.text, n), n - last_line(text.text, n), at->mark);
    at->to = first + n;
    gr_str_release(&text);
    return st;
}

static gr_status lines_of(const char *path, gr_page_place *at, json_t *list, gr_diag *d)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        *at = (gr_page_place){0};
        return GR_OK;
    }
    if (fd < 0 || fstat(fd, &info)) {
        const gr_status st = gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_IO, "%s", strerror(errno));
        if (fd >= 0) close(fd);
        return st;
    }
    const uint64_t size = (uint64_t)info.st_size;
    if (is_same(fd, path, at, size, d))
        at->from = at->to;
    else
        *at = (gr_page_place){0};
    const gr_status st = read_lines(fd, path, at, size, list, d);
    close(fd);
    return st;
}

json_t *gr_page_lines(const char *run, const char *name, gr_page_place *at, gr_diag *d)
{
    char *path = gr_printf("%s/%s", run, name);
    json_t *list = json_array();
    const gr_status st = lines_of(path, at, list, d);
    free(path);
    if (!st) return list;
    json_decref(list);
    return NULL;
}

/* ---- all responses --------------------------------------------------------------------------------------
 */

/* What a person does not read, of which there is most. */
static void drop_lists(json_t *line)
{
    static const char *const lists[] = {"prompt_ids", "ids", "logprobs", "versions", "sampled"};
    json_t *values = json_object_get(line, "values"), *value;
    const char *key;
    void *next;
    for (size_t i = 0; i < GR_LEN(lists); i++) json_object_del(line, lists[i]);
    json_object_foreach_safe(values, next, key, value) if (json_is_array(value)) json_object_del(values, key);
}

json_t *gr_page_responses(const char *run, uint64_t step, gr_diag *d)
{
    gr_str text = {0};
    bool cut = false;
    json_t *lines = NULL, *line;
    size_t i;
    if (!gr_responses_read(run, step, GR_PAGE_LINES_BYTES, &text, &cut, d)) {
        lines = json_array();
        if (text.len) take_lines(lines, text.text, text.len);
        json_array_foreach(lines, i, line) drop_lists(line);
    }
    gr_str_release(&text);
    return lines ? json_pack("{s:o, s:b}", "lines", lines, "cut", cut) : NULL;
}

json_t *gr_page_kept(const char *run)
{
    uint64_t *steps = NULL;
    size_t n = 0;
    gr_diag unheard;
    gr_diag_init(&unheard);
    json_t *list = json_array();
    if (!gr_responses_steps(run, &steps, &n, &unheard) && n) {
        json_array_append_new(list, json_integer((json_int_t)steps[0]));
        json_array_append_new(list, json_integer((json_int_t)steps[n - 1]));
    }
    gr_diag_release(&unheard);
    free(steps);
    return list;
}

/* ---- the page -------------------------------------------------------------------------------------------
 */

static gr_status graph_name(const char *run, json_t **out, gr_diag *d)
{
    char *path = gr_printf("%s/plan.json", run);
    gr_json plan = {0};
    gr_status st = gr_path_exists(path) ? gr_json_read(&plan, path, d)
                                        : gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                                                        "no run in '%s': there is no '%s'", run, path);
    json_t *name = st ? NULL : json_object_get(plan.root, "graph");
    if (!st && !json_is_string(name))
        st = gr_diag_error(d, gr_json_at(&plan, "graph"), GR_E_INVALID, "'graph' is not the name of a graph");
    *out = json_incref(name);
    gr_json_release(&plan);
    free(path);
    return st;
}

/* How many iterations the run is for; 0 where its graph cannot be read here, as of a run that was moved. */
static json_int_t steps_of(const char *run)
{
    gr_diag unheard;
    gr_graph *g = NULL;
    const gr_load_options as_it_ran = {0};
    char *path = gr_printf("%s/graph.yaml", run);
    gr_diag_init(&unheard);
    const json_int_t steps = gr_graph_load(&g, path, &as_it_ran, &unheard) ? 0 : (json_int_t)g->run.steps;
    gr_graph_free(g);
    gr_diag_release(&unheard);
    free(path);
    return steps;
}

/* A folder's name tells runs apart; of a trailing slash there is none. */
static json_t *shown_name(const char *run)
{
    size_t n = strlen(run);
    while (n > 1 && run[n - 1] == '/') n--;
    return gr_json_string(run, n);
}

static gr_status all_lines(const char *run, const char *name, json_t *entry, const char *key, gr_diag *d)
{
    gr_page_place at = {0};
    json_t *list = gr_page_lines(run, name, &at, d);
    if (!list) return GR_E_IO;
    if (at.to > GR_PAGE_LINES_BYTES)
        gr_diag_warn(d, (gr_loc){0}, "%s/%s: the page has its last %zu lines alone", run, name,
                     json_array_size(list));
    if (at.damaged)
        gr_diag_warn(d, (gr_loc){0}, "%s/%s: %" PRIu64 " lines are no objects of JSON and are left out", run,
                     name, at.damaged);
    json_object_set_new(entry, key, list);
    return GR_OK;
}

static gr_status add_lines(const char *run, json_t *entry, gr_diag *d)
{
    const gr_status st = all_lines(run, "metrics.jsonl", entry, "metrics", d);
    if (!st && !json_array_size(json_object_get(entry, "metrics")))
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "%s/metrics.jsonl: no iteration of this run has ended", run);
    return st ? st : all_lines(run, "samples.jsonl", entry, "samples", d);
}

/* Of a page that asks nobody: those of the last iteration. */
static gr_status add_responses(const char *run, json_t *entry, gr_diag *d)
{
    json_t *kept = gr_page_kept(run), *last = json_array_get(kept, 1);
    json_t *got = last ? gr_page_responses(run, (uint64_t)json_integer_value(last), d) : NULL;
    const gr_status st = last && !got ? GR_E_INVALID : GR_OK;
    if (got) json_object_set_new(entry, "responses", json_pack("{s:O, s:o}", "step", last, "got", got));
    json_decref(kept);
    return st;
}

static gr_status describe(const char *run, bool live, json_t *list, gr_diag *d)
{
    json_t *entry = json_object(), *graph = NULL;
    gr_status st = graph_name(run, &graph, d);
    if (!st) {
        json_object_set(entry, "graph", graph);
        json_object_set_new(entry, "name", shown_name(run));
        json_object_set_new(entry, "steps", json_integer(steps_of(run)));
        json_object_set_new(entry, "metrics", json_array());
        json_object_set_new(entry, "samples", json_array());
        if (!live) st = add_lines(run, entry, d);
        if (!st && !live) st = add_responses(run, entry, d);
    }
    json_decref(graph);
    json_array_append_new(list, entry);
    return st;
}

/* Within a page, where a < might begin a tag. */
static void add_for_page(gr_str *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    for (const char *c = text; c && *c; c++) {
        const size_t n = strcspn(c, "<");
        gr_str_add(out, c, n);
        c += n;
        if (!*c) break;
        gr_str_puts(out, "\\u003c");
    }
    free(text);
}

gr_status gr_page_runs(const char *const *runs, size_t n, bool live, gr_str *out, gr_diag *d)
{
    static const char slot[] = "@RUNS@";
    json_t *list = json_array();
    gr_status st = GR_OK;
    for (size_t i = 0; i < n && !st; i++) st = describe(runs[i], live, list, d);
    json_t *data = json_pack("{s:b, s:o}", "live", live, "runs", list);
    if (!st) {
        const char *at = strstr(gr_run_page, slot);
        gr_str_add(out, gr_run_page, (size_t)(at - gr_run_page));
        add_for_page(out, data);
        gr_str_puts(out, at + strlen(slot));
    }
    json_decref(data);
    return st;
}

/* ---- Prometheus -----------------------------------------------------------------------------------------
 */

/* graphrun_ and what a name may hold; `seconds.rollout` becomes graphrun_seconds_rollout. */
static void add_metric_name(gr_str *out, const char *key)
{
    gr_str_puts(out, "graphrun_");
    for (; *key; key++) gr_str_putc(out, isalnum((unsigned char)*key) ? *key : '_');
}

static void add_label(gr_str *out, const char *run)
{
    gr_str_puts(out, "{run=\"");
    for (; *run; run++) {
        if (*run == '\n')
            gr_str_puts(out, "\\n");
        else if (*run == '"' || *run == '\\')
            gr_str_printf(out, "\\%c", *run);
        else
            gr_str_putc(out, *run);
    }
    gr_str_puts(out, "\"} ");
}

static void add_gauge(gr_str *out, const char *key, const char *run, const json_t *line)
{
    const json_t *value = json_object_get(line, key);
    if (!json_is_number(value)) return;
    add_metric_name(out, key);
    add_label(out, run);
    gr_json_add_number(out, json_number_value(value));
    gr_str_putc(out, '\n');
}

static bool is_in_one_of(const char *key, json_t *const *lines, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (json_object_get(lines[i], key)) return true;
    return false;
}

/* Of the newest line; NULL with a message where it cannot be read. A new reference. */
static json_t *last_metrics(const char *run, gr_diag *d)
{
    gr_page_place at = {0};
    json_t *lines = gr_page_lines(run, "metrics.jsonl", &at, d);
    if (!lines) return NULL;
    const size_t n = json_array_size(lines);
    json_t *last = n ? json_incref(json_array_get(lines, n - 1)) : json_object();
    json_decref(lines);
    return last;
}

/* All runs have a name's numbers side by side, as the format wants them. */
gr_status gr_page_prometheus(const char *const *runs, size_t n, gr_str *out, gr_diag *d)
{
    json_t **last = gr_calloc(n + 1, sizeof(json_t *));
    gr_status st = GR_OK;
    for (size_t i = 0; i < n && !st; i++)
        if (!(last[i] = last_metrics(runs[i], d))) st = GR_E_IO;
    for (size_t i = 0; i < n && !st; i++) {
        const char *key;
        json_t *value;
        json_object_foreach(last[i], key, value) for (size_t k = i; k < n && !is_in_one_of(key, last, i); k++)
            add_gauge(out, key, runs[k], last[k]);
    }
    for (size_t i = 0; i < n; i++) json_decref(last[i]);
    free(last);
    return st;
}
