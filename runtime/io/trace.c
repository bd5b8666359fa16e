/* runtime/io/trace.c: trace.json: when steps ran, for Perfetto. */
#include "runtime/io/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/io/metrics.h"

struct gr_trace {
    FILE *file;
    char *path;
    unsigned rank;
    uint64_t limit, n, start_ns;
    pthread_mutex_t mutex; /* guards what follows, and n */
    gr_str line;           /* of an event */
    uint64_t first, last;  /* ns: begin and end of the events since the last iteration; last 0: none */
    uint64_t memory;       /* the last value */
};

enum { LINE = 1 << 12 /* bytes: more than an event takes, but for a name of that length */ };

gr_status gr_trace_open(gr_trace **out, const char *path, unsigned rank, const char *const *tracks,
                        size_t n_tracks, uint64_t limit, gr_diag *d)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666); /* no wait for a pipe */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': %s", path, strerror(errno));
    gr_trace *t = gr_calloc(1, sizeof(*t));
    t->file = file;
    t->path = gr_strdup(path);
    t->rank = rank;
    t->limit = limit ? limit : 200000;
    t->start_ns = gr_now_ns();
    gr_str_reserve(&t->line, LINE);
    pthread_mutex_init(&t->mutex, NULL);
    fprintf(file,
            "[\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %u, \"args\": {\"name\": \"rank %u\"}}",
            rank, rank);
    for (size_t i = 0; i < n_tracks; i++)
        fprintf(file,
                ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %u, \"tid\": %zu, \"args\": "
                "{\"name\": \"%s\"}}",
                rank, i, tracks[i]);
    *out = t;
    return gr_trace_flush(t, d);
}

static double us_of(const gr_trace *t, uint64_t ns)
{
    return ((double)ns - (double)t->start_ns) / 1e3;
}

static void put_slice(gr_trace *t, size_t track, uint64_t begin_ns, uint64_t end_ns)
{
    gr_str_printf(&t->line, ", \"pid\": %u, \"tid\": %zu, \"ts\": %.3f, \"dur\": %.3f", t->rank, track,
                  us_of(t, begin_ns), (double)(end_ns - begin_ns) / 1e3);
}

static void write_line(gr_trace *t)
{
    gr_str_puts(&t->line, "}");
    fwrite(t->line.text, 1, t->line.len, t->file);
    t->line.len = 0;
}

void gr_trace_event(gr_trace *t, size_t track, const gr_trace_what *what, uint64_t begin_ns, uint64_t end_ns)
{
    pthread_mutex_lock(&t->mutex);
    if (t->n++ < t->limit) {
        gr_str_puts(&t->line, ",\n{\"ph\": \"X\", \"name\": ");
        gr_json_add_text(&t->line, what->name, strlen(what->name));
        gr_str_puts(&t->line, ", \"cat\": ");
        gr_json_add_text(&t->line, what->category, strlen(what->category));
        put_slice(t, track, begin_ns, end_ns);
        if (what->step != GR_TRACE_NO_STEP)
            gr_str_printf(&t->line, ", \"args\": {\"step\": %u, \"predicted\": %.3f}", what->step,
                          (double)what->predicted_ns / 1e3);
        write_line(t);
        t->first = t->last ? GR_MIN(t->first, begin_ns) : begin_ns;
        t->last = GR_MAX(t->last, end_ns);
    }
    pthread_mutex_unlock(&t->mutex);
}

void gr_trace_memory(gr_trace *t, uint64_t at_ns, uint64_t bytes)
{
    pthread_mutex_lock(&t->mutex);
    if (bytes != t->memory && t->n++ < t->limit) {
        gr_str_printf(&t->line,
                      ",\n{\"ph\": \"C\", \"name\": \"device memory\", \"pid\": %u, \"ts\": %.3f, \"args\": "
                      "{\"planned bytes\": %" PRIu64 "}",
                      t->rank, us_of(t, at_ns), bytes);
        write_line(t);
        t->memory = bytes;
    }
    pthread_mutex_unlock(&t->mutex);
}

void gr_trace_iteration(gr_trace *t, size_t track, uint32_t iteration)
{
    pthread_mutex_lock(&t->mutex);
    if (t->last && t->n++ < t->limit) {
        gr_str_printf(&t->line, ",\n{\"ph\": \"X\", \"name\": \"iteration %u\", \"cat\": \"iteration\"",
                      iteration);
        put_slice(t, track, t->first, t->last);
        write_line(t);
    }
    t->last = 0;
    pthread_mutex_unlock(&t->mutex);
}

gr_status gr_trace_flush(gr_trace *t, gr_diag *d)
{
    if (!fflush(t->file) && !ferror(t->file)) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': %s", t->path, strerror(errno));
}

gr_status gr_trace_close(gr_trace *t, gr_diag *d)
{
    if (!t) return GR_OK;
    if (t->n > t->limit)
        fprintf(t->file,
                ",\n{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": %u, \"args\": {\"labels\": \"%llu "
                "later "
                "events left out\"}}",
                t->rank, (unsigned long long)(t->n - t->limit));
    fputs("\n]\n", t->file);
    gr_status st = gr_trace_flush(t, d);
    fclose(t->file);
    pthread_mutex_destroy(&t->mutex);
    gr_str_release(&t->line);
    free(t->path);
    free(t);
    return st;
}
