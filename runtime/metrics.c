#include "runtime/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
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

/* Bytes of whole lines of steps before from_step; the first other line ends them. */
static size_t bytes_kept(const char *text, size_t n, uint64_t from_step)
{
    size_t kept = 0;
    while (kept < n) {
        const char *end = memchr(text + kept, '\n', n - kept);
        if (!end) break;
        json_t *line = json_loadb(text + kept, (size_t)(end - text) - kept, 0, NULL);
        json_t *step = json_object_get(line, "step");
        bool keep = json_is_integer(step) && (uint64_t)json_integer_value(step) < from_step;
        json_decref(line);
        if (!keep) break;
        kept = (size_t)(end - text) + 1;
    }
    return kept;
}

gr_status gr_lines_open(gr_lines **out, const char *path, uint64_t from_step, gr_diag *d)
{
    gr_status st = GR_OK;
    char *text = NULL;
    size_t n = 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return io_error(d, path);
    st = gr_file_read(path, 0, &text, &n, d);
    if (!st && ftruncate(fd, (off_t)bytes_kept(text, n, from_step))) st = io_error(d, path);
    free(text);
    if (st) {
        close(fd);
        return st;
    }
    *out = gr_calloc(1, sizeof(**out));
    (*out)->fd = fd;
    (*out)->path = gr_strdup(path);
    return GR_OK;
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
