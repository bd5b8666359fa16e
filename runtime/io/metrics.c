/* runtime/io/metrics.c: lines of JSON in files, and what of them stays when a run is resumed. */
#include "runtime/io/metrics.h"
#include "runtime/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>
#include <utf8proc.h>

struct gr_lines {
    int fd;
    char *path;
    gr_str line;
};

void gr_json_add_number(gr_str *s, double value)
{
    char text[40];
    if (!isfinite(value)) {
        gr_str_puts(s, "null");
        return;
    }
    if (value == trunc(value) && fabs(value) < 1e15) {
        gr_str_printf(s, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    gr_str_puts(s, text);
}

void gr_json_add_text(gr_str *s, const char *bytes, size_t n)
{
    gr_str_putc(s, '"');
    while (n) {
        utf8proc_int32_t code;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)bytes, (utf8proc_ssize_t)n, &code);
        if (used <= 0) {
            gr_str_puts(s, "\xEF\xBF\xBD"); /* U+FFFD */
            used = 1;
        } else if (code == '"' || code == '\\') {
            gr_str_printf(s, "\\%c", (char)code);
        } else if (code == '\n') {
            gr_str_puts(s, "\\n");
        } else if (code < 0x20) {
            gr_str_printf(s, "\\u%04x", (unsigned)code);
        } else {
            gr_str_add(s, bytes, (size_t)used);
        }
        bytes += used;
        n -= (size_t)used;
    }
    gr_str_putc(s, '"');
}

static gr_status io_error(gr_diag *d, const char *path)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': %s", path, strerror(errno));
}

/* What a line says of its step. CUT: it has no end, as a killed run leaves its last one, or bytes that were
 * never written (zeros), as a power cut leaves the last ones: what a checkpoint covers was synced. */
typedef enum line_kind { EARLIER, LATER, DAMAGED, CUT } line_kind;

static line_kind kind_of(const char *line, size_t n, bool has_end, uint64_t from_step)
{
    json_t *whole = json_loadb(line, n, 0, NULL), *value = json_object_get(whole, "step");
    const bool there = json_is_integer(value) && json_integer_value(value) >= 0;
    uint64_t step = there ? (uint64_t)json_integer_value(value) : 0;
    json_decref(whole);
    if (there) return step < from_step ? EARLIER : LATER;
    const bool written = has_end && !memchr(line, '\0', n);
    const bool says = !written && sscanf(line, "{\"step\": %" SCNu64, &step) == 1;
    return written || (says && step < from_step) ? DAMAGED : CUT;
}

/* What stays of a file of lines. */
typedef struct history {
    size_t kept;      /* bytes */
    unsigned damaged; /* lines in them that say no step, or one that is done again */
    unsigned first;   /* of these */
} history;

/* One bad byte, in the digit of a step perhaps, must not take all lines after it along: what is done again
 * begins after the last line of an earlier step, and after damaged ones that follow it. text ends with 0.
 */
static history find_history(const char *text, size_t n, uint64_t from_step)
{
    history h = {0};
    unsigned suspects = 0, first = 0; /* lines after what is kept */
    size_t next;
    for (size_t at = 0, line = 1; at < n && from_step; at = next, line++) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t length = end ? (size_t)(end - text) - at : n - at;
        const line_kind kind = kind_of(text + at, length, end != NULL, from_step);
        next = at + length + (end != NULL);
        if (kind != EARLIER && !suspects++) first = (unsigned)line;
        if (kind != EARLIER && (kind != DAMAGED || suspects > 1)) continue;
        if (!h.damaged && suspects) h.first = first;
        h.damaged += suspects;
        suspects = 0;
        h.kept = next;
    }
    return h;
}

static gr_status cut_back(int fd, const char *path, uint64_t from_step, gr_diag *d)
{
    char *text = NULL;
    size_t n = 0;
    gr_status st = gr_file_read(path, 0, &text, &n, d);
    if (st) return st;
    const history h = find_history(text, n, from_step);
    const bool has_end = !h.kept || text[h.kept - 1] == '\n';
    if (ftruncate(fd, (off_t)h.kept) || (!has_end && write(fd, "\n", 1) != 1)) st = io_error(d, path);
    if (h.damaged)
        gr_diag_warn(d, (gr_loc){path, h.first, 1},
                     "%u line%s damaged or out of order, this the first: kept as found", h.damaged,
                     h.damaged > 1 ? "s are" : " is");
    free(text);
    return st;
}

gr_status gr_lines_open(gr_lines **out, const char *path, uint64_t from_step, gr_diag *d)
{
    int fd =
        open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666); /* no wait for a pipe */
    if (fd < 0) return io_error(d, path);
    gr_status st = cut_back(fd, path, from_step, d);
    if (st) {
        close(fd);
        return st;
    }
    *out = gr_calloc(1, sizeof(**out));
    (*out)->fd = fd;
    (*out)->path = gr_strdup(path);
    return GR_OK;
}

gr_status gr_lines_sync(gr_lines *l, gr_diag *d)
{
    return fsync(l->fd) && errno != EINVAL ? io_error(d, l->path) : GR_OK; /* a pipe cannot be synced */
}

void gr_lines_free(gr_lines *l)
{
    if (!l) return;
    close(l->fd);
    gr_str_release(&l->line);
    free(l->path);
    free(l);
}

static void add_key(gr_lines *l, const char *key)
{
    gr_str_puts(&l->line, ", ");
    gr_json_add_text(&l->line, key, strlen(key));
    gr_str_puts(&l->line, ": ");
}

void gr_lines_begin(gr_lines *l, uint64_t step)
{
    l->line.len = 0;
    gr_str_printf(&l->line, "{\"step\": %llu", (unsigned long long)step);
}

void gr_lines_number(gr_lines *l, const char *key, double value)
{
    add_key(l, key);
    gr_json_add_number(&l->line, value);
}

void gr_lines_integer(gr_lines *l, const char *key, int64_t value)
{
    add_key(l, key);
    gr_str_printf(&l->line, "%lld", (long long)value);
}

void gr_lines_null(gr_lines *l, const char *key)
{
    add_key(l, key);
    gr_str_puts(&l->line, "null");
}

void gr_lines_text(gr_lines *l, const char *key, const char *bytes, size_t n)
{
    add_key(l, key);
    gr_json_add_text(&l->line, bytes, n);
}

void gr_lines_json(gr_lines *l, const char *key, const char *json)
{
    add_key(l, key);
    gr_str_puts(&l->line, json);
}

const char *gr_lines_last(const gr_lines *l, size_t *n)
{
    *n = l->line.len;
    return l->line.text;
}

gr_status gr_lines_end(gr_lines *l, gr_diag *d)
{
    gr_str_puts(&l->line, "}\n");
    for (size_t done = 0; done < l->line.len;) {
        ssize_t put = write(l->fd, l->line.text + done, l->line.len - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return io_error(d, l->path);
        done += (size_t)put;
    }
    return GR_OK;
}
