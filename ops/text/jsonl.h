/* ops/text/jsonl.h: rows of data from a JSONL file, or from a command that prints JSONL.
 *
 * A source is indexed once: where each line starts, how many there are, a hash of each, and one of all bytes.
 * A line is read and parsed only when its row is asked for, and is then still the one that was indexed. Lines
 * of white space alone are no rows. Row numbers count from 0, line numbers in messages from 1. A row must be
 * one JSON object in UTF-8.
 *
 * Errors: GR_E_INVALID, with "file:line:col", for an empty source, a line that is not one JSON object, a
 * missing field, or one of the wrong type; GR_E_IO where the file cannot be read or has changed since it was
 * indexed, or the command ended badly.
 * Threads: an opened source never changes; any thread may read it.
 */
#ifndef GR_OPS_TEXT_JSONL_H
#define GR_OPS_TEXT_JSONL_H

#include <jansson.h>

#include "runtime/base/json.h"
#include "runtime/io/seal.h"

#define GR_JSONL_LINE_BYTES (64u << 20) /* a longer line is refused */

typedef struct gr_jsonl gr_jsonl;

/* Open and index a file. path is copied; at is the place in the graph that named it, used where the file has
 * no place of its own to name. */
GR_NODISCARD gr_status gr_jsonl_open(gr_jsonl **out, const char *path, gr_loc at, gr_diag *d);

/* Run a command with /bin/sh -c, wait for its end, and index what it printed. Every row is parsed at once:
 * what a program prints beside its rows is found before anything runs. Rows are named "output of 'COMMAND'",
 * cut where that is long. An exit status other than 0 is an error, with the last lines of its error output as
 * notes. */
GR_NODISCARD gr_status gr_jsonl_command(gr_jsonl **out, const char *command, gr_loc at, gr_diag *d);
void gr_jsonl_free(gr_jsonl *s); /* NULL is fine */

size_t gr_jsonl_rows(const gr_jsonl *s);
uint64_t gr_jsonl_hash(const gr_jsonl *s); /* of all bytes: tells a resumed run that its data changed */
/* All its bytes: how many, and their hash. */
typedef struct gr_jsonl_content {
    const char *path; /* NULL: a command's output */
    const char *name; /* for people */
    uint64_t bytes;
    gr_hash hash;
} gr_jsonl_content;
gr_jsonl_content gr_jsonl_content_of(const gr_jsonl *s); /* texts live as long as s */
gr_loc gr_jsonl_at(const gr_jsonl *s, size_t row);       /* its file, line and column 1; lives as long as s */

/* Parse a row. *out is a new reference: json_decref it. */
GR_NODISCARD gr_status gr_jsonl_row(const gr_jsonl *s, size_t row, json_t **out, gr_diag *d);

/* A field of a parsed row; at is the row's place. path is a key, or keys and list indices joined by dots
 * ("reward_model.ground_truth", "messages.0.content"); a key that holds the whole path goes first.
 * *out is borrowed from object. A null value counts as a field of the wrong type. */
GR_NODISCARD gr_status gr_json_field(const json_t *object, const char *path, gr_loc at, const json_t **out,
                                     gr_diag *d);

/* Append a field as text: a string as it is, a number in its shortest exact form, true or false. Anything
 * else is of the wrong type. */
GR_NODISCARD gr_status gr_json_text(const json_t *object, const char *path, gr_loc at, gr_str *out,
                                    gr_diag *d);

/* A field as a number; a text that looks like one is of the wrong type. */
GR_NODISCARD gr_status gr_json_number(const json_t *object, const char *path, gr_loc at, double *out,
                                      gr_diag *d);

/* A field that is a list of n numbers, one for each of what, such as "tokens of the response". */
GR_NODISCARD gr_status gr_json_numbers(const json_t *object, const char *path, gr_loc at, size_t n,
                                       const char *what, double *out, gr_diag *d);

/* ---- order -------------------------------------------------------------------------------------------- */

/* In which order rows are drawn: as they stand, or shuffled anew each epoch (Fisher-Yates), or by a key of
 * each row from the smallest, rows of one key in the order they would have without. The order of an epoch
 * depends on the number of rows, their keys, the seed and the epoch alone. */
typedef struct gr_order {
    uint32_t *rows; /* the order of `epoch`, NULL where it is the file's own */
    double *key;    /* [n] or NULL */
    size_t n;
    bool shuffle;
    uint64_t seed, epoch;
} gr_order;

/* Where the next row comes from: all there is to save and restore. Start with {0}. */
typedef struct gr_cursor {
    uint64_t epoch, position; /* position < number of rows */
} gr_cursor;

/* n: rows of the source, 1 to 2^32 - 1. key [n]: taken over, to free(); none is a NaN; NULL: no keys. */
void gr_order_init(gr_order *o, size_t n, bool shuffle, double *key, uint64_t seed);
void gr_order_release(gr_order *o);

/* Draw n rows and move the cursor on. A batch that reaches the end of an epoch is filled from the next one:
 * every batch is whole, and each epoch draws every row once. */
void gr_order_draw(gr_order *o, gr_cursor *c, size_t n, size_t *rows);

#endif
