/* runtime/io/state.h: state.json of a checkpoint: named values in groups, read back exactly.
 *
 * All values are JSON strings: integers in decimal (JSON's readers differ over 64 bits), numbers in C's
 * hexadecimal form, so that every double, NaN and infinities too, comes back as it was.
 */
#ifndef GR_RUNTIME_IO_STATE_H
#define GR_RUNTIME_IO_STATE_H

#include "runtime/base/base.h"

typedef struct gr_state_file gr_state_file;

gr_state_file *gr_state_new(void);
void gr_state_free(gr_state_file *f); /* NULL is fine */

/* A value set twice keeps the last. text: UTF-8. */
void gr_state_set_u64(gr_state_file *f, const char *group, const char *key, uint64_t value);
void gr_state_set_number(gr_state_file *f, const char *group, const char *key, double value);
void gr_state_set_text(gr_state_file *f, const char *group, const char *key, const char *text);

/* Whole or not at all; keys sorted. */
GR_NODISCARD gr_status gr_state_write(const gr_state_file *f, const char *path, gr_diag *d);
GR_NODISCARD gr_status gr_state_read(gr_state_file **out, const char *path, gr_diag *d);

/* The same as text: appended to out; and read back. */
void gr_state_text(const gr_state_file *f, gr_str *out);
GR_NODISCARD gr_status gr_state_parse(gr_state_file **out, const char *text, size_t n, const char *name,
                                      gr_diag *d);

/* GR_E_INVALID with file, group and key where the value is missing or of another type. Text: caller frees. */
GR_NODISCARD gr_status gr_state_get_u64(const gr_state_file *f, const char *group, const char *key,
                                        uint64_t *value, gr_diag *d);
GR_NODISCARD gr_status gr_state_get_number(const gr_state_file *f, const char *group, const char *key,
                                           double *value, gr_diag *d);
GR_NODISCARD gr_status gr_state_get_text(const gr_state_file *f, const char *group, const char *key,
                                         char **text, gr_diag *d);

#endif
