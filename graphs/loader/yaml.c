/* graphs/loader/yaml.c: YAML text to gr_value, every value with its place. */
#include "graphs/loader/loader.h"

#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "runtime/base/index.h"

enum { MAX_KEYS = 20000 }; /* of one map */

typedef struct reader {
    yaml_parser_t parser;
    gr_arena *arena;
    gr_diag *d;
    const char *file, *text;
    size_t n, n_values;
    unsigned depth;
    unsigned line; /* the last one asked for, from 1, and where it begins; 0: none yet */
    const char *line_begin;
    bool failed; /* libyaml cannot go on */
} reader;

/* libyaml counts lines and columns from 0; people and editors count from 1. */
static gr_loc loc_of(const reader *r, yaml_mark_t m)
{
    return (gr_loc){r->file, (unsigned)m.line + 1, (unsigned)m.column + 1};
}

static gr_loc loc_of_byte(const reader *r, size_t offset)
{
    gr_loc at = {r->file, 1, 1};
    for (size_t i = 0; i < offset && i < r->n; i++, at.col++)
        if (r->text[i] == '\n') {
            at.line++;
            at.col = 0;
        }
    return at;
}

/* A key that is further in or out than those beside it is said by its column: libyaml says what it expected.
 */
static bool indented_otherwise(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const bool map = p->context && !strcmp(p->context, "while parsing a block mapping");
    if (!map || !p->problem || strcmp(p->problem, "did not find expected key")) return false;
    if (p->problem_mark.column == p->context_mark.column) return false;
    gr_diag_error(r->d, loc_of(r, p->problem_mark), GR_E_INVALID,
                  "this line is indented by %zu spaces; the keys of the map that it stands in by %zu",
                  p->problem_mark.column, p->context_mark.column);
    gr_diag_note(r->d, loc_of(r, p->context_mark), "that map begins here");
    return true;
}

static void yaml_failed(reader *r)
{
    const yaml_parser_t *p = &r->parser;
    r->failed = true;
    if (p->error == YAML_MEMORY_ERROR) gr_out_of_memory(0);
    if (p->error == YAML_READER_ERROR) { /* bad bytes: libyaml sets an offset and no mark */
        gr_diag_error(r->d, loc_of_byte(r, p->problem_offset), GR_E_INVALID, "not UTF-8 text: %s",
                      p->problem);
        return;
    }
    if (indented_otherwise(r)) return;
    bool tab = p->problem_mark.index < r->n && r->text[p->problem_mark.index] == '\t';
    const char *problem = tab ? "a tab cannot stand here: indent with spaces" : p->problem;
    gr_diag_error(r->d, loc_of(r, p->problem_mark), GR_E_INVALID, "%s", problem);
    if (p->context) gr_diag_note(r->d, loc_of(r, p->context_mark), "%s", p->context);
}

static bool next_event(reader *r, yaml_event_t *e)
{
    if (r->failed) return false;
    if (yaml_parser_parse(&r->parser, e)) return true;
    yaml_failed(r);
    return false;
}

#define refuse(r, mark, ...) gr_diag_error((r)->d, loc_of(r, mark), GR_E_INVALID, __VA_ARGS__)

/* ---- scalars ---------------------------------------------------------------------------------------------
 */

/* Where a line begins, or the end of the text. Lines are asked for from the first to the last. */
static const char *line_at(reader *r, unsigned line)
{
    const char *end = r->text + r->n;
    if (!r->line || line < r->line) {
        r->line = 1;
        r->line_begin = r->text;
    }
    for (; r->line < line && r->line_begin < end; r->line++) {
        const char *nl = memchr(r->line_begin, '\n', (size_t)(end - r->line_begin));
        r->line_begin = nl ? nl + 1 : end;
    }
    return r->line_begin;
}

/* The text of a block scalar starts on the line after its header; its indent is that of its first line that
 * has any text. */
static void place_block(reader *r, const yaml_event_t *e, gr_value *v)
{
    const char *end = r->text + r->n, *p = line_at(r, v->at.line + 1);
    for (;;) {
        size_t spaces = 0;
        while (p + spaces < end && p[spaces] == ' ') spaces++;
        v->indent = (unsigned)spaces;
        if (p + spaces >= end || (p[spaces] != '\n' && p[spaces] != '\r')) break;
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        if (!nl) break;
        p = nl + 1;
    }
    size_t lead = strspn((const char *)e->data.scalar.value, " "); /* more than the block's own, by "|2" */
    v->indent -= (unsigned)GR_MIN(lead, (size_t)v->indent);
    v->at.line++;
    v->at.col = v->indent + 1;
}

static void read_scalar(reader *r, const yaml_event_t *e, gr_value *v)
{
    yaml_scalar_style_t style = e->data.scalar.style;
    v->kind = GR_VALUE_SCALAR;
    v->text = gr_arena_strndup(r->arena, (const char *)e->data.scalar.value, e->data.scalar.length);
    v->quoted = style == YAML_SINGLE_QUOTED_SCALAR_STYLE || style == YAML_DOUBLE_QUOTED_SCALAR_STYLE;
    v->block = style == YAML_LITERAL_SCALAR_STYLE || style == YAML_FOLDED_SCALAR_STYLE;
    if (v->quoted) v->at.col++;
    if (v->block) place_block(r, e, v);
    if (strlen(v->text) != e->data.scalar.length) {
        gr_diag_error(r->d, v->at, GR_E_INVALID, "a NUL character in a text");
        v->broken = true;
    }
    bool plain = !v->quoted && !v->block;
    if (plain && (!*v->text || !strcmp(v->text, "~") || !strcmp(v->text, "null"))) v->kind = GR_VALUE_NULL;
}

/* ---- maps ------------------------------------------------------------------------------------------------
 */

typedef struct pairs {
    gr_pair *p;
    size_t n, cap;
} pairs;

static int open_parens(const char *text)
{
    int open = 0;
    for (; *text; text++) open += (*text == '(') - (*text == ')');
    return open;
}

static bool plain(const gr_value *v)
{
    return v->kind == GR_VALUE_SCALAR && !v->quoted && !v->block;
}

/* In { }, YAML ends an unquoted value at a comma, so that max(a, b) becomes "max(a" and a key "b)". Once the
 * parentheses balance again, say so once, with the text as it was meant. */
static void mend_split_value(reader *r, pairs *list)
{
    for (size_t i = 0; i < list->n; i++) {
        gr_value *v = &list->p[i].value;
        int open = plain(v) ? open_parens(v->text) : 0;
        if (open <= 0) continue;
        gr_str whole = {0};
        gr_str_puts(&whole, v->text);
        size_t end = i + 1;
        for (; end < list->n && open > 0 && list->p[end].value.kind == GR_VALUE_NULL; end++) {
            gr_str_printf(&whole, ", %s", list->p[end].key);
            open += open_parens(list->p[end].key);
        }
        if (end > i + 1) {
            gr_diag_error(r->d, v->at, GR_E_INVALID,
                          "a comma ends an unquoted value inside { }: quote it, %s: \"%s\"", list->p[i].key,
                          whole.text);
            v->broken = true;
            memmove(list->p + i + 1, list->p + end, (list->n - end) * sizeof(*list->p));
            list->n -= end - i - 1;
        }
        gr_str_release(&whole);
    }
}

static void refuse_duplicates(reader *r, pairs *list)
{
    size_t kept = 0;
    gr_index index = {0};
    for (size_t i = 0; i < list->n; i++) {
        const char *key = list->p[i].key;
        if (gr_index_add(&index, key, (uint32_t)kept)) {
            list->p[kept++] = list->p[i];
            continue;
        }
        gr_diag_error(r->d, list->p[i].at, GR_E_INVALID, "duplicate key '%s'", key);
        gr_diag_note(r->d, list->p[gr_index_find(&index, key, strlen(key))].at, "'%s' is first given here",
                     key);
    }
    gr_index_release(&index);
    list->n = kept;
}

static bool read_value(reader *r, yaml_event_t *e, gr_value *v);

static bool read_pair(reader *r, yaml_event_t *key, pairs *list)
{
    yaml_event_t e;
    gr_value k = {0};
    gr_pair pair = {0};
    bool is_name = key->type == YAML_SCALAR_EVENT && key->data.scalar.length;
    yaml_mark_t mark = key->start_mark;
    bool ok = read_value(r, key, &k);
    if (!is_name && ok) refuse(r, mark, "a key must be a name");
    pair.at = k.at;
    pair.key = is_name && k.text ? k.text : NULL;
    if (!ok || !next_event(r, &e) || !read_value(r, &e, &pair.value)) return false;
    if (pair.key) GR_PUSH(list->p, list->n, list->cap, pair);
    return true;
}

static bool read_map(reader *r, yaml_event_t *start, gr_value *v)
{
    pairs list = {0};
    bool ok = true, flow = start->data.mapping_start.style == YAML_FLOW_MAPPING_STYLE;
    v->kind = GR_VALUE_MAP;
    while (ok) {
        yaml_event_t e;
        if (!(ok = next_event(r, &e))) break;
        if (e.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&e);
            break;
        }
        ok = read_pair(r, &e, &list);
    }
    if (flow) mend_split_value(r, &list);
    if (list.n > MAX_KEYS) {
        gr_diag_error(r->d, v->at, GR_E_INVALID, "more than %d keys in one map", MAX_KEYS);
        list.n = 0;
    }
    refuse_duplicates(r, &list);
    gr_pair *copy = gr_arena_alloc(r->arena, list.n * sizeof(*copy));
    if (list.n) memcpy(copy, list.p, list.n * sizeof(*copy));
    free(list.p);
    v->pairs = copy;
    v->n = list.n;
    return ok;
}

static bool read_list(reader *r, gr_value *v)
{
    gr_value *items = NULL;
    size_t n = 0, cap = 0;
    bool ok = true;
    v->kind = GR_VALUE_LIST;
    while (ok) {
        yaml_event_t e;
        if (!(ok = next_event(r, &e))) break;
        if (e.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&e);
            break;
        }
        gr_value item = {0};
        ok = read_value(r, &e, &item);
        GR_PUSH(items, n, cap, item);
    }
    gr_value *copy = gr_arena_alloc(r->arena, n * sizeof(*copy));
    if (n) memcpy(copy, items, n * sizeof(*copy));
    free(items);
    v->items = copy;
    v->n = n;
    return ok;
}

/* ---- any value -------------------------------------------------------------------------------------------
 */

/* Anchors and tags are part of YAML, not of this language. */
static void refuse_extras(reader *r, const yaml_event_t *e)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_SCALAR_EVENT) anchor = e->data.scalar.anchor, tag = e->data.scalar.tag;
    if (e->type == YAML_SEQUENCE_START_EVENT)
        anchor = e->data.sequence_start.anchor, tag = e->data.sequence_start.tag;
    if (e->type == YAML_MAPPING_START_EVENT)
        anchor = e->data.mapping_start.anchor, tag = e->data.mapping_start.tag;
    if (anchor)
        refuse(r, e->start_mark, "anchor '&%s': graph files have no anchors; use params",
               (const char *)anchor);
    if (tag) refuse(r, e->start_mark, "tag '%s': graph files have no tags", (const char *)tag);
}

static bool too_large(reader *r, const yaml_event_t *e)
{
    bool deep = r->depth > GR_YAML_DEPTH, many = ++r->n_values > GR_YAML_VALUES;
    if (deep) refuse(r, e->start_mark, "more than 64 levels of lists and maps inside each other");
    if (many) refuse(r, e->start_mark, "more than 200000 values in one file");
    r->failed = r->failed || deep || many;
    return deep || many;
}

/* Takes e. False: nothing more can be read. */
static bool read_value(reader *r, yaml_event_t *e, gr_value *v)
{
    bool ok = !too_large(r, e);
    v->at = loc_of(r, e->start_mark);
    r->depth++;
    refuse_extras(r, e);
    if (!ok) {
    } else if (e->type == YAML_SCALAR_EVENT) {
        read_scalar(r, e, v);
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        ok = read_map(r, e, v);
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        ok = read_list(r, v);
    } else {
        refuse(r, e->start_mark, "alias '*%s': graph files have no aliases; use params",
               e->type == YAML_ALIAS_EVENT ? (const char *)e->data.alias.anchor : "");
        v->broken = true;
    }
    r->depth--;
    yaml_event_delete(e);
    return ok;
}

static void read_documents(reader *r, gr_value *v)
{
    yaml_event_t e;
    bool any = false;
    while (next_event(r, &e)) {
        yaml_event_type_t type = e.type;
        bool content = type == YAML_SCALAR_EVENT || type == YAML_MAPPING_START_EVENT ||
                       type == YAML_SEQUENCE_START_EVENT || type == YAML_ALIAS_EVENT;
        if (content && !any) {
            any = true;
            if (!read_value(r, &e, v)) return;
            continue;
        }
        if (content) refuse(r, e.start_mark, "a second document: one file is one graph");
        yaml_event_delete(&e);
        if (content || type == YAML_STREAM_END_EVENT || type == YAML_NO_EVENT) break;
    }
    if (!any && !r->failed) gr_diag_error(r->d, (gr_loc){r->file, 0, 0}, GR_E_INVALID, "the file is empty");
}

gr_status gr_yaml_parse(gr_value *out, gr_arena *arena, const char *text, size_t n, const char *file,
                        gr_diag *d)
{
    size_t before = d->n_errors;
    reader r = {.arena = arena, .d = d, .file = file, .text = text, .n = n};
    gr_value v = {0};
    if (!yaml_parser_initialize(&r.parser)) gr_out_of_memory(0);
    if (n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) { /* where the encoding is given, a BOM is text to it */
        text += 3;
        n -= 3;
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, n);
    read_documents(&r, &v);
    yaml_parser_delete(&r.parser);
    bool hopeless = r.failed || r.depth || v.kind == GR_VALUE_NULL; /* else go on and find more errors */
    if (d->n_errors > before && hopeless) return GR_E_INVALID;
    *out = v;
    return GR_OK;
}
