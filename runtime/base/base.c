/* runtime/base/base.c: memory, arenas, strings, messages. */
#include "runtime/base/base.h"
#include "runtime/base/philox.h"
#include "runtime/base/visible.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <xxhash.h>

const char *gr_status_str(gr_status st)
{
    static const char *const texts[] = {
#define X(name, text) text,
        GR_STATUS_MAP(X)
#undef X
    };
    return texts[st];
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* What stdout still holds is written where nobody else is at it: a thread may wait in there for ever. */
static void flush_output(void)
{
    if (ftrylockfile(stdout)) return;
    fflush_unlocked(stdout);
    funlockfile(stdout);
}

static void (*instead_of_end)(void);

void gr_out_of_memory_set(void (*instead)(void))
{
    instead_of_end = instead;
}

_Noreturn void gr_out_of_memory(size_t bytes)
{
    if (instead_of_end) instead_of_end();
    static atomic_flag said = ATOMIC_FLAG_INIT;
    char text[96] = "graphrun: error: out of host memory\n";
    if (bytes) snprintf(text, sizeof(text), "graphrun: error: out of host memory (%zu bytes)\n", bytes);
    while (atomic_flag_test_and_set(&said)) pause(); /* another thread ends the program */
    (void)!write(STDERR_FILENO, text, strlen(text)); /* takes no memory */
    flush_output();
    _exit(1);
}

/* Before any other code: jansson may not change its functions once it has given memory. */
__attribute__((constructor)) static void give_jansson_memory(void)
{
    json_set_alloc_funcs(gr_malloc, free);
}

void *gr_realloc(void *p, size_t bytes)
{
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) gr_out_of_memory(bytes);
    return q;
}

void *gr_malloc(size_t bytes)
{
    return gr_realloc(NULL, bytes);
}

void *gr_calloc(size_t n, size_t bytes)
{
    void *p = calloc(n ? n : 1, bytes ? bytes : 1);
    if (!p) gr_out_of_memory(n * bytes);
    return p;
}

void gr_setenv(const char *name, const char *value, bool replace)
{
    if (setenv(name, value, replace)) gr_out_of_memory(0); /* our names are no reason */
}

struct XXH3_state_s *gr_xxh3_new(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) gr_out_of_memory(0);
    return state;
}

char *gr_strndup(const char *s, size_t n)
{
    char *copy = gr_malloc(n + 1);
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *gr_strdup(const char *s)
{
    return gr_strndup(s, strlen(s));
}

char *gr_printf(const char *fmt, ...)
{
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    return s.text;
}

enum { POOL_CHUNK_MIN = 512, POOL_CHUNK_MAX = 16384 }; /* most pools hold little: the first are small */

struct pool_chunk {
    struct pool_chunk *next;
    size_t used, size;
    _Alignas(16) char bytes[];
};

struct gr_arena {
    struct pool_chunk *head;
};

gr_arena *gr_arena_new(void)
{
    return gr_calloc(1, sizeof(gr_arena));
}

void gr_arena_free(gr_arena *p)
{
    if (!p) return;
    for (struct pool_chunk *c = p->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(p);
}

void *gr_arena_alloc(gr_arena *p, size_t bytes)
{
    bytes = gr_align(bytes ? bytes : 1, 16);
    struct pool_chunk *c = p->head;
    if (!c || c->size - c->used < bytes) {
        size_t size = c ? GR_MIN(2 * c->size, (size_t)POOL_CHUNK_MAX) : (size_t)POOL_CHUNK_MIN;
        size = GR_MAX(bytes, size);
        c = gr_calloc(1, sizeof(*c) + size);
        c->size = size;
        c->next = p->head;
        p->head = c;
    }
    void *out = c->bytes + c->used;
    c->used += bytes;
    return out;
}

char *gr_arena_strndup(gr_arena *p, const char *s, size_t n)
{
    char *copy = gr_arena_alloc(p, n + 1);
    memcpy(copy, s, n);
    return copy;
}

char *gr_arena_strdup(gr_arena *p, const char *s)
{
    return gr_arena_strndup(p, s, strlen(s));
}

char *gr_arena_printf(gr_arena *p, const char *fmt, ...)
{
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    char *copy = gr_arena_strndup(p, s.text, s.len);
    gr_str_release(&s);
    return copy;
}

/* ---- strings ------------------------------------------------------------------------------------------ */

static void reserve(gr_str *s, size_t more)
{
    if (s->cap - s->len > more) return;
    size_t cap = GR_MAX(2 * s->cap, s->len + more + 1);
    s->text = gr_realloc(s->text, GR_MAX(cap, (size_t)64));
    s->cap = GR_MAX(cap, (size_t)64);
}

void gr_str_reserve(gr_str *s, size_t more)
{
    reserve(s, more);
}

void gr_str_add(gr_str *s, const char *bytes, size_t n)
{
    reserve(s, n);
    if (n) memcpy(s->text + s->len, bytes, n);
    s->len += n;
    s->text[s->len] = '\0';
}

void gr_str_puts(gr_str *s, const char *text)
{
    gr_str_add(s, text, strlen(text));
}

void gr_str_putc(gr_str *s, char c)
{
    gr_str_add(s, &c, 1);
}

void gr_str_vprintf(gr_str *s, const char *fmt, va_list ap)
{
    enum { USUAL = 63 }; /* most texts are that short: they are written once */
    va_list again;
    va_copy(again, ap);
    reserve(s, USUAL);
    int n = vsnprintf(s->text + s->len, s->cap - s->len, fmt, ap);
    if (n < 0) gr_out_of_memory(0); /* no format here has a wide character, the other thing that can fail */
    if ((size_t)n >= s->cap - s->len) {
        reserve(s, (size_t)n);
        vsnprintf(s->text + s->len, (size_t)n + 1, fmt, again);
    }
    s->len += (size_t)n;
    va_end(again);
}

void gr_str_printf(gr_str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(s, fmt, ap);
    va_end(ap);
}

const char *gr_str_line(const gr_str *s, size_t *from, size_t *n)
{
    if (*from >= s->len) return NULL;
    const char *line = s->text + *from, *end = memchr(line, '\n', s->len - *from);
    if (!end) return NULL;
    *n = (size_t)(end - line);
    *from += *n + 1;
    return line;
}

void gr_str_drop(gr_str *s, size_t n)
{
    if (n) memmove(s->text, s->text + n, s->len - n);
    s->len -= n;
}

void gr_str_release(gr_str *s)
{
    free(s->text);
    *s = (gr_str){0};
}

/* ---- messages ----------------------------------------------------------------------------------------- */

void gr_diag_init(gr_diag *d)
{
    *d = (gr_diag){0};
}

void gr_diag_release(gr_diag *d)
{
    for (size_t i = 0; i < d->n; i++) {
        free((char *)d->messages[i].at.file);
        free(d->messages[i].text);
    }
    free(d->messages);
    *d = (gr_diag){0};
}

static void diag_add(gr_diag *d, gr_severity severity, gr_loc at, const char *fmt, va_list ap)
{
    if (!d) return;
    gr_str s = {0};
    gr_str_vprintf(&s, fmt, ap);
    if (at.file) at.file = gr_strdup(at.file);
    struct gr_message m = {severity, at, s.text};
    GR_PUSH(d->messages, d->n, d->cap, m);
    d->n_errors += severity == GR_ERROR;
}

gr_status gr_diag_error(gr_diag *d, gr_loc at, gr_status st, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    diag_add(d, GR_ERROR, at, fmt, ap);
    va_end(ap);
    return st;
}

gr_status gr_diag_verror(gr_diag *d, gr_loc at, gr_status st, const char *fmt, va_list ap)
{
    diag_add(d, GR_ERROR, at, fmt, ap);
    return st;
}

void gr_diag_warn(gr_diag *d, gr_loc at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    diag_add(d, GR_WARNING, at, fmt, ap);
    va_end(ap);
}

void gr_diag_note(gr_diag *d, gr_loc at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    diag_add(d, GR_NOTE, at, fmt, ap);
    va_end(ap);
}

char *gr_message_format(const struct gr_message *m)
{
    static const char *const words[] = {"error", "warning", "note"};
    gr_str s = {0};
    if (m->at.file) {
        gr_str_visible(&s, m->at.file, strlen(m->at.file), false);
        gr_str_putc(&s, ':');
    }
    if (m->at.file && m->at.line) gr_str_printf(&s, "%u:%u:", m->at.line, m->at.col);
    gr_str_printf(&s, "%s%s: ", s.len ? " " : "", words[m->severity]);
    gr_str_visible(&s, m->text, strlen(m->text), false);
    return s.text;
}

/* Levenshtein distance, cut short at limit: lengths that differ by more cannot be nearer. */
static size_t edit_distance(const char *a, const char *b, size_t limit)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > 63 || nb > 63 || (na > nb ? na - nb : nb - na) > limit) return limit + 1;
    size_t row[64];
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = GR_MIN(change, 1 + GR_MIN(row[j], row[j - 1]));
        }
    }
    return row[nb];
}

static size_t same_begin(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

const char *gr_near(const char *name, const char *const *candidates, size_t n)
{
    size_t best = GR_MAX(strlen(name) / 3, (size_t)1) + 1;
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t distance = edit_distance(name, candidates[i], best);
        bool longer = found && distance == best && same_begin(name, candidates[i]) > same_begin(name, found);
        if (distance >= best && !longer) continue;
        best = distance;
        found = candidates[i];
    }
    return found;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

uint64_t gr_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double unit_of(const char *s)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},      {"B", 1},      {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},    {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 1024}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    for (size_t i = 0; i < GR_LEN(units); i++)
        if (!strcmp(s, units[i].name)) return units[i].bytes;
    return 0;
}

bool gr_bytes_parse(const char *text, uint64_t *bytes)
{
    if (*text < '0' || *text > '9') return false;
    char *end;
    double value = strtod(text, &end);
    for (const char *c = text; c < end; c++)
        if ((*c < '0' || *c > '9') && *c != '.') return false; /* no hexadecimal, no exponent */
    while (*end == ' ') end++;
    value *= unit_of(end);
    if (unit_of(end) == 0 || !(value < 0x1p63)) return false;
    *bytes = (uint64_t)value;
    return true;
}

void gr_time_put(gr_str *out, uint64_t ns)
{
    if (ns < 10000)
        gr_str_printf(out, "%u ns", (unsigned)ns);
    else if (ns < 10000000)
        gr_str_printf(out, "%.1f us", (double)ns / 1e3);
    else if (ns < 10000000000)
        gr_str_printf(out, "%.1f ms", (double)ns / 1e6);
    else
        gr_str_printf(out, "%.1f s", (double)ns / 1e9);
}

char *gr_bytes_format(uint64_t bytes, char *buf)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= 1024 && unit + 1 < GR_LEN(units)) {
        value /= 1024;
        unit++;
    }
    snprintf(buf, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return buf;
}

void gr_philox(uint64_t seed, uint64_t stream, const uint32_t counter[4], uint32_t out[4])
{
    gr_philox_4x32(seed, stream, counter, out);
}

uint64_t gr_stream(const char *name)
{
    return XXH64(name, strlen(name), 0);
}
