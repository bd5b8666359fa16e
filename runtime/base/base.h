/* runtime/base/base.h: what every file uses: status codes, messages with file, line and column, memory,
 * strings.
 *
 * Small host objects (parsed files, tables, strings) come from gr_malloc and its kin, which never return
 * NULL: a machine that cannot give a few kilobytes cannot go on, so they print one line and end the program
 * with status 1. So do the libraries for small objects: jansson takes its memory from gr_malloc from the
 * start of the program, PCRE2 where it is given ops/text/pattern.h's context, and of what has no such hook
 * (libyaml, utf8proc, libc) each return is looked at. Large memory, the arenas and pools that a plan sizes,
 * is taken by runtime/device/device.h, which returns a status. Nothing else in the library prints or exits.
 *
 * Threads: a gr_arena, gr_str or gr_diag belongs to one thread at a time.
 */
#ifndef GR_RUNTIME_BASE_BASE_H
#define GR_RUNTIME_BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define GR_NODISCARD         __attribute__((warn_unused_result))
#define GR_LEN(a)            (sizeof(a) / sizeof((a)[0]))
#define GR_MIN(a, b)         ((a) < (b) ? (a) : (b))
#define GR_MAX(a, b)         ((a) > (b) ? (a) : (b))

#define GR_STATUS_MAP(X)                  \
    X(OK, "success")                      \
    X(E_NOMEM, "out of memory")           \
    X(E_INVALID, "invalid input")         \
    X(E_IO, "input or output failed")     \
    X(E_NOFIT, "does not fit the budget") \
    X(E_FAILED, "failed while running")   \
    X(E_STOPPED, "stopped by a signal")   \
    X(E_DIVERGED, "trains nothing any more")

typedef enum gr_status {
#define X(name, text) GR_##name,
    GR_STATUS_MAP(X) /* the same list makes gr_status_str(): a code cannot lack a text */
#undef X
} gr_status;

const char *gr_status_str(gr_status st);

/* ---- messages ---------------------------------------------------------------------------------------- */

/* A place in a user's file. line and col count from 1; line 0 means "no line", file NULL "no place". */
typedef struct gr_loc {
    const char *file;
    unsigned line, col;
} gr_loc;

typedef enum gr_severity { GR_ERROR, GR_WARNING, GR_NOTE } gr_severity;

/* A list of messages, in the order they were added. Texts and file names are copied. */
typedef struct gr_diag {
    struct gr_message *messages; /* text ends without newline */
    size_t n, cap, n_errors;
} gr_diag;

struct gr_message {
    gr_severity severity;
    gr_loc at;
    char *text;
};

void gr_diag_init(gr_diag *d);
void gr_diag_release(gr_diag *d);

/* Add one message and return st, so that callers report and return in one line. d may be NULL. */
GR_PRINTF(4, 5) gr_status gr_diag_error(gr_diag *d, gr_loc at, gr_status st, const char *fmt, ...);
GR_PRINTF(4, 0) gr_status gr_diag_verror(gr_diag *d, gr_loc at, gr_status st, const char *fmt, va_list ap);
GR_PRINTF(3, 4) void gr_diag_warn(gr_diag *d, gr_loc at, const char *fmt, ...);
GR_PRINTF(3, 4) void gr_diag_note(gr_diag *d, gr_loc at, const char *fmt, ...);

/* "file:line:col: error: text", visible (gr_str_visible) and in one line, without newline; caller frees with
 * free(). */
char *gr_message_format(const struct gr_message *m);

/* The candidate nearest to name by edit distance, of equally near ones that with the longest common
 * beginning, or NULL where none is near enough to suggest. */
const char *gr_near(const char *name, const char *const *candidates, size_t n);
/* Looking through thousands of names for each of thousands of errors takes minutes and helps nobody: after
 * so many, nothing is suggested. */
enum { GR_NEAR_ERRORS = 100 };

/* ---- host memory for small objects -------------------------------------------------------------------- */

/* One line on stderr, and the end with status 1, at once: of several threads that find no memory one speaks,
 * no thread runs on to find what exit handlers took away, and files are as a kill leaves them: under their
 * final names whole, or those of before. bytes: that could not be had; 0: not known. */
_Noreturn void gr_out_of_memory(size_t bytes);
/* Where this is a library in another program, which must not end: called in place of that, on the thread that
 * found no memory, and never returns. Set before there are threads. */
void gr_out_of_memory_set(void (*instead)(void));

void *gr_malloc(size_t bytes);           /* never NULL, see above; free with free() */
void *gr_calloc(size_t n, size_t bytes); /* zeroed */
void *gr_realloc(void *p, size_t bytes);
char *gr_strdup(const char *s);
char *gr_strndup(const char *s, size_t n);
GR_PRINTF(1, 2) char *gr_printf(const char *fmt, ...); /* a new string; free() */

void gr_setenv(const char *name, const char *value, bool replace); /* setenv, which always does it */
/* XXH3_createState, never NULL; free with XXH3_freeState. */
struct XXH3_state_s *gr_xxh3_new(void);

/* Append value to the growing array a of n used and cap allocated elements. */
#define GR_PUSH(a, n, cap, value)                        \
    do {                                                 \
        if ((n) == (cap)) {                              \
            (cap) = (cap) ? 2 * (cap) : 8;               \
            (a) = gr_realloc((a), (cap) * sizeof(*(a))); \
        }                                                \
        (a)[(n)++] = (value);                            \
    } while (0)

/* Objects that live and die together: allocate freely, free once. */
typedef struct gr_arena gr_arena;
gr_arena *gr_arena_new(void);
void gr_arena_free(gr_arena *p);                 /* NULL is fine */
void *gr_arena_alloc(gr_arena *p, size_t bytes); /* zeroed, 16-byte aligned */
char *gr_arena_strdup(gr_arena *p, const char *s);
char *gr_arena_strndup(gr_arena *p, const char *s, size_t n);
GR_PRINTF(2, 3) char *gr_arena_printf(gr_arena *p, const char *fmt, ...);

/* A string under construction. {0} is a valid empty one; text is NUL-terminated once anything was added. */
typedef struct gr_str {
    char *text;
    size_t len, cap;
} gr_str;
void gr_str_reserve(gr_str *s, size_t more); /* room for so many bytes more */
void gr_str_add(gr_str *s, const char *bytes, size_t n);
void gr_str_puts(gr_str *s, const char *text);
void gr_str_putc(gr_str *s, char c);
GR_PRINTF(2, 3) void gr_str_printf(gr_str *s, const char *fmt, ...);
void gr_str_vprintf(gr_str *s, const char *fmt, va_list ap);
/* The next whole line, from byte *from on, without its end, of *n bytes; *from goes behind that. NULL: none is
 * whole. */
const char *gr_str_line(const gr_str *s, size_t *from, size_t *n);
void gr_str_drop(gr_str *s, size_t n); /* the first n bytes */
void gr_str_release(gr_str *s);

/* ---- numbers ------------------------------------------------------------------------------------------ */

uint64_t gr_now_ns(void); /* CLOCK_MONOTONIC */

/* "80GiB", "512 MiB", "1.5GB", "4096" to bytes; false on anything else or overflow. */
bool gr_bytes_parse(const char *text, uint64_t *bytes);
/* "1.50 GiB" for people; buf of at least 32 chars, returned. */
char *gr_bytes_format(uint64_t bytes, char *buf);
/* "19.0 s", "1.2 ms" */
void gr_time_put(gr_str *out, uint64_t ns);

static inline uint64_t gr_align(uint64_t bytes, uint64_t alignment) /* alignment: a power of two */
{
    return (bytes + alignment - 1) & ~(alignment - 1);
}

/* Counter-based random numbers (Philox 4x32-10; Salmon et al., SC'11). A draw is a pure function of the key
 * and the counter, so its value never depends on what was drawn before, where, or by which thread.
 * The key is (seed, stream); name streams with gr_stream. */
void gr_philox(uint64_t seed, uint64_t stream, const uint32_t counter[4], uint32_t out[4]);
uint64_t gr_stream(const char *name); /* 64-bit hash of a name, stable across runs and machines */
/* One uniform in (0, 1), never 0 or 1, from 32 random bits. */
static inline float gr_uniform(uint32_t bits)
{
    return ((float)(bits >> 9) + 0.5f) * 0x1p-23f;
}

#endif
