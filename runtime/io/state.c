/* runtime/io/state.c: state.json: named values that read back exactly. */
#include "runtime/io/state.h"
#include "runtime/base/files.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

struct gr_state_file {
    json_t *root; /* groups of strings */
    char *path;   /* it was read from, or a name for it; or NULL */
};

gr_state_file *gr_state_new(void)
{
    gr_state_file *f = gr_calloc(1, sizeof(*f));
    f->root = json_object();
    return f;
}

void gr_state_free(gr_state_file *f)
{
    if (!f) return;
    json_decref(f->root);
    free(f->path);
    free(f);
}

/* A value that is not there when the file is read would be missed too late. */
static void put(json_t *in, const char *key, json_t *value)
{
    const int failed = json_object_set_new(in, key, value);
    assert(!failed && "keys and values are UTF-8");
}

void gr_state_set_text(gr_state_file *f, const char *group, const char *key, const char *text)
{
    json_t *in = json_object_get(f->root, group);
    if (!in) {
        in = json_object();
        put(f->root, group, in);
    }
    put(in, key, json_string(text));
}

void gr_state_set_u64(gr_state_file *f, const char *group, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    gr_state_set_text(f, group, key, text);
}

void gr_state_set_number(gr_state_file *f, const char *group, const char *key, double value)
{
    char text[40];
    snprintf(text, sizeof(text), "%a", value);
    gr_state_set_text(f, group, key, text);
}

gr_status gr_state_write(const gr_state_file *f, const char *path, gr_diag *d)
{
    char *text = json_dumps(f->root, JSON_INDENT(2) | JSON_SORT_KEYS); /* never NULL: of strings, not deep */
    gr_status st = gr_file_write(path, text, strlen(text), d);
    free(text);
    return st;
}

void gr_state_text(const gr_state_file *f, gr_str *out)
{
    char *text = json_dumps(f->root, JSON_COMPACT | JSON_SORT_KEYS);
    gr_str_puts(out, text);
    free(text);
}

gr_status gr_state_parse(gr_state_file **out, const char *text, size_t n, const char *name, gr_diag *d)
{
    json_error_t e;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(root)) {
        gr_loc at = root ? (gr_loc){name, 1, 1} : (gr_loc){name, (unsigned)e.line, (unsigned)e.column};
        json_decref(root);
        return gr_diag_error(d, at, GR_E_INVALID, "%s", root ? "not a JSON object" : e.text);
    }
    *out = gr_calloc(1, sizeof(**out));
    **out = (gr_state_file){root, gr_strdup(name)};
    return GR_OK;
}

gr_status gr_state_read(gr_state_file **out, const char *path, gr_diag *d)
{
    char *text = NULL;
    size_t n = 0;
    gr_status st = gr_file_read(path, 64u << 20, &text, &n, d);
    if (st) return st;
    st = gr_state_parse(out, text, n, path, d);
    free(text);
    return st;
}

static gr_status wrong(const gr_state_file *f, const char *group, const char *key, const char *what,
                       gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){f->path, 0, 0}, GR_E_INVALID, "'%s.%s' %s", group, key, what);
}

static const char *find(const gr_state_file *f, const char *group, const char *key)
{
    return json_string_value(json_object_get(json_object_get(f->root, group), key));
}

gr_status gr_state_get_text(const gr_state_file *f, const char *group, const char *key, char **text,
                            gr_diag *d)
{
    const char *found = find(f, group, key);
    if (!found) return wrong(f, group, key, "is missing or no text", d);
    *text = gr_strdup(found);
    return GR_OK;
}

gr_status gr_state_get_u64(const gr_state_file *f, const char *group, const char *key, uint64_t *value,
                           gr_diag *d)
{
    const char *found = find(f, group, key);
    if (!found) return wrong(f, group, key, "is missing or no text", d);
    char *end;
    errno = 0;
    uint64_t number = strtoull(found, &end, 10);
    if (!isdigit((unsigned char)*found) || *end || errno)
        return wrong(f, group, key, "is not an integer of at least 0", d);
    *value = number;
    return GR_OK;
}

gr_status gr_state_get_number(const gr_state_file *f, const char *group, const char *key, double *value,
                              gr_diag *d)
{
    const char *found = find(f, group, key);
    if (!found) return wrong(f, group, key, "is missing or no text", d);
    char *end;
    double number = strtod(found, &end);
    if (end == found || *end) return wrong(f, group, key, "is not a number", d);
    *value = number;
    return GR_OK;
}
