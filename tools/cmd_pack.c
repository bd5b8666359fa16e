/* graphrun pack: buffers with lifetimes, in the CSV of minimalloc, get their offsets. */
#include "tools/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memplan/pack/lowest.h"
#include "runtime/base/files.h"

enum { ID, LOWER, UPPER, SIZE, OFFSET, N_COLUMNS };
static const char *const column_names[N_COLUMNS] = {"id", "lower", "upper", "size", "offset"};

typedef struct row {
    char *id;
    uint64_t lower, upper, size; /* live from lower to before upper */
} row;

typedef struct table {
    const char *path;
    unsigned line;
    uint8_t column[N_COLUMNS]; /* what stands where */
    unsigned n_columns;
    row *rows;
    size_t n, cap;
    uint64_t total;
    gr_diag *d;
} table;

/* One field of a line: from at, n bytes; text is the line. */
typedef struct field {
    const char *text, *at;
    size_t n;
} field;

static gr_status refuse(const table *t, const field *f, const char *what)
{
    gr_loc at = {t->path, t->line, (unsigned)(f->at - f->text) + 1};
    return gr_diag_error(t->d, at, GR_E_INVALID, "'%.*s' %s", (int)GR_MIN(f->n, 100), f->at, what);
}

/* The next field of a line of n bytes; false at its end. */
static bool next_field(field *f, size_t n)
{
    const char *end = f->text + n;
    const char *at = f->at ? f->at + f->n + 1 : f->text;
    if (at > end) return false;
    const char *comma = memchr(at, ',', (size_t)(end - at));
    f->at = at;
    f->n = (size_t)((comma ? comma : end) - at);
    return true;
}

static gr_status read_header(table *t, const char *line, size_t n)
{
    bool seen[N_COLUMNS] = {0};
    gr_status st = GR_OK;
    for (field f = {.text = line}; next_field(&f, n);) {
        unsigned c = 0;
        while (c < N_COLUMNS && (strlen(column_names[c]) != f.n || memcmp(column_names[c], f.at, f.n))) c++;
        if (c == N_COLUMNS || seen[c])
            return refuse(t, &f, "is not a column, once each of id, lower, upper, size and offset");
        seen[c] = true;
        t->column[t->n_columns++] = (uint8_t)c;
    }
    for (unsigned c = 0; c < OFFSET; c++)
        if (!seen[c])
            st = gr_diag_error(t->d, (gr_loc){t->path, t->line, 1}, GR_E_INVALID, "column '%s' is missing",
                               column_names[c]);
    return st;
}

static bool parse_whole(const field *f, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < f->n; i++) {
        unsigned digit = (unsigned char)f->at[i] - '0';
        if (digit > 9 || *out > ((UINT64_C(1) << 62) - digit) / 10) return false;
        *out = *out * 10 + digit;
    }
    return f->n > 0;
}

static gr_status check_row(table *t, const row *r, const field *upper, const field *size)
{
    if (r->upper <= r->lower) return refuse(t, upper, "must be greater than lower");
    if (!r->size) return refuse(t, size, "must be greater than 0");
    if (r->size > (UINT64_C(1) << 62) - t->total)
        return refuse(t, size, "is too large: the sum of sizes overflows");
    t->total += r->size;
    return GR_OK;
}

static gr_status read_row(table *t, const char *line, size_t n)
{
    uint64_t value[N_COLUMNS] = {0};
    field at[N_COLUMNS] = {0}, f = {.text = line};
    gr_status st = GR_OK;
    unsigned k = 0;
    while (next_field(&f, n)) {
        if (k == t->n_columns) return refuse(t, &f, "is one field more than there are columns");
        unsigned c = t->column[k++];
        at[c] = f;
        if (c != ID && !(c == OFFSET && !f.n) && !parse_whole(&f, &value[c]))
            st = refuse(t, &f, "must be a whole number of at least 0, below 2^62");
    }
    if (st) return st;
    if (k < t->n_columns)
        return gr_diag_error(t->d, (gr_loc){t->path, t->line, (unsigned)n + 1}, GR_E_INVALID,
                             "%u fields where the header has %u", k, t->n_columns);
    row r = {NULL, value[LOWER], value[UPPER], value[SIZE]};
    st = check_row(t, &r, &at[UPPER], &at[SIZE]);
    if (st) return st;
    r.id = gr_strndup(at[ID].at, at[ID].n);
    GR_PUSH(t->rows, t->n, t->cap, r);
    return GR_OK;
}

static gr_status read_table(table *t)
{
    enum { MOST_ERRORS = 20 };
    char *text = NULL;
    size_t n = 0;
    gr_status st = gr_file_read(t->path, 0, &text, &n, t->d);
    if (st) return st;
    for (const char *line = text, *end; line < text + n && t->d->n_errors < MOST_ERRORS; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + n - line));
        if (!end) end = text + n;
        size_t length = (size_t)(end - line);
        if (length && line[length - 1] == '\r') length--;
        t->line++;
        if (!length) continue;
        gr_status now = t->n_columns ? read_row(t, line, length) : read_header(t, line, length);
        if (!now) continue;
        st = now;
        if (!t->rows && t->line == 1) break; /* rows mean nothing without a header */
    }
    if (!st && !t->n_columns)
        st = gr_diag_error(t->d, (gr_loc){t->path, 1, 1}, GR_E_INVALID,
                           "a header 'id,lower,upper,size' is missing");
    free(text);
    return st;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t rank_of(const uint64_t *times, size_t n, uint64_t time)
{
    return (uint32_t)((const uint64_t *)bsearch(&time, times, n, sizeof(*times), by_value) - times);
}

/* Rows to items; times are numbered. Returns the number of steps. */
static uint32_t make_items(const table *t, gr_pack_item *items)
{
    uint64_t *times = gr_malloc((2 * t->n + 1) * sizeof(*times));
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        times[2 * i] = t->rows[i].lower;
        times[2 * i + 1] = t->rows[i].upper;
    }
    qsort(times, 2 * t->n, sizeof(*times), by_value);
    for (size_t i = 0; i < 2 * t->n; i++)
        if (!n || times[n - 1] != times[i]) times[n++] = times[i];
    for (size_t i = 0; i < t->n; i++)
        items[i] = (gr_pack_item){t->rows[i].size, rank_of(times, n, t->rows[i].lower),
                                  rank_of(times, n, t->rows[i].upper) - 1, 0};
    free(times);
    return n ? (uint32_t)n - 1 : 0; /* nothing lives from the last on */
}

static gr_status write_table(const table *t, const gr_pack_item *items, const char *path)
{
    gr_str s = {0};
    gr_status st = GR_OK;
    gr_str_puts(&s, "id,lower,upper,size,offset\n");
    for (size_t i = 0; i < t->n; i++) {
        const row *r = &t->rows[i];
        gr_str_printf(&s, "%s,%llu,%llu,%llu,%llu\n", r->id, (unsigned long long)r->lower,
                      (unsigned long long)r->upper, (unsigned long long)r->size,
                      (unsigned long long)items[i].offset);
    }
    if (path)
        st = gr_file_write(path, s.text, s.len, t->d);
    else
        fwrite(s.text, 1, s.len, stdout);
    gr_str_release(&s);
    return st;
}

static gr_status say(const table *t, const gr_solution *s, uint64_t capacity)
{
    unsigned long long height = s->height, bound = s->bound, room = capacity;
    gr_loc at = {.file = t->path};
    const char *proof = height == bound ? "proven the lowest" : "not proven the lowest";
    if (!capacity || height <= capacity) {
        gr_diag_note(t->d, at, "height %llu, lower bound %llu, %s", height, bound, proof);
        return GR_OK;
    }
    if (bound > capacity)
        return gr_diag_error(t->d, at, GR_E_NOFIT,
                             "cannot fit %llu bytes: lower bound %llu, best height found %llu, %s", room,
                             bound, height, proof);
    return gr_diag_error(t->d, at, GR_E_NOFIT,
                         "no packing into %llu bytes found, nor proven that there is none: best height found "
                         "%llu, lower bound %llu",
                         room, height, bound);
}

int gr_cmd_pack(const gr_args *a, gr_diag *d)
{
    table t = {.path = a->operand[0], .d = d};
    gr_status st = read_table(&t);
    if (!st) {
        gr_pack_item *items = gr_malloc((t.n + 1) * sizeof(*items));
        uint32_t n_steps = make_items(&t, items);
        gr_solution s = gr_pack_lowest(items, t.n, n_steps, a->capacity);
        st = say(&t, &s, a->capacity);
        if (!st && write_table(&t, items, a->ask.out)) st = GR_E_FAILED;
        free(items);
    }
    for (size_t i = 0; i < t.n; i++) free(t.rows[i].id);
    free(t.rows);
    return gr_exit_status_input(st);
}
