/* memplan/plan/plan_read.c: a plan back from JSON. What a file says is checked here for form; the verifier
 * checks what it means. */
#include "memplan/plan/plan.h"
#include "runtime/base/files.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the reader is: "$.ranks[0].steps[3]". After the first error nothing more is reported. */
typedef struct reader {
    const char *file;
    gr_diag *d;
    gr_str at;
    bool failed;
    gr_plan *p;
    uint32_t n_steps; /* as the ledger counts them */
} reader;

GR_PRINTF(3, 4) static void bad(reader *r, const char *key, const char *fmt, ...)
{
    if (r->failed) return;
    r->failed = true;
    gr_str s = {0};
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&s, fmt, ap);
    va_end(ap);
    (void)gr_diag_error(r->d, (gr_loc){.file = r->file}, GR_E_INVALID, "%s%s%s: %s", r->at.text,
                        key ? "." : "", key ? key : "", s.text);
    gr_str_release(&s);
}

/* Go down to a key or an index; up with the length that was. */
GR_PRINTF(2, 3) static size_t down(reader *r, const char *fmt, ...)
{
    size_t was = r->at.len;
    va_list ap;
    va_start(ap, fmt);
    gr_str_vprintf(&r->at, fmt, ap);
    va_end(ap);
    return was;
}

static void up(reader *r, size_t was)
{
    r->at.len = was;
    r->at.text[was] = 0;
}

/* The object has exactly these keys. */
static void check_keys(reader *r, json_t *o, const char *const *keys, size_t n)
{
    const char *key;
    json_t *value;
    if (!json_is_object(o)) {
        bad(r, NULL, "should be an object");
        return;
    }
    json_object_foreach(o, key, value)
    {
        size_t i = 0;
        while (i < n && strcmp(keys[i], key)) i++;
        const char *near = i == n ? gr_near(key, keys, n) : NULL;
        if (i == n)
            bad(r, NULL, "unknown key '%s'%s%s%s", key, near ? "; did you mean '" : "", near ? near : "",
                near ? "'?" : "");
    }
    for (size_t i = 0; i < n; i++)
        if (!json_object_get(o, keys[i])) bad(r, NULL, "key '%s' is missing", keys[i]);
}

static const char *text_of(reader *r, json_t *o, const char *key, bool may_be_null)
{
    json_t *v = json_object_get(o, key);
    if (json_is_string(v)) return gr_arena_strdup(r->p->arena, json_string_value(v));
    if (!(may_be_null && json_is_null(v))) bad(r, key, "should be a string");
    return may_be_null ? NULL : "";
}

static uint64_t number_of(reader *r, json_t *o, const char *key, uint64_t limit)
{
    json_t *v = json_object_get(o, key);
    json_int_t x = json_is_integer(v) ? json_integer_value(v) : -1;
    if (x >= 0 && (uint64_t)x <= limit) return (uint64_t)x;
    if (json_is_integer(v))
        bad(r, key, "%lld is not in 0 .. %llu", (long long)x, (unsigned long long)limit);
    else
        bad(r, key, "should be a whole number");
    return 0;
}

static uint64_t ns_of(reader *r, json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    double x = json_is_number(v) ? json_number_value(v) : -1;
    if (!(x >= 0 && x < 1e9)) {
        bad(r, key, "should be a number of seconds");
        return 0;
    }
    return (uint64_t)llround(x * 1e9);
}

static bool flag_of(reader *r, json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!json_is_boolean(v)) bad(r, key, "should be true or false");
    return json_is_true(v);
}

/* Index of a word in a list of names. */
static int word_of(reader *r, json_t *o, const char *key, const char *const *words, size_t n)
{
    const char *text = json_string_value(json_object_get(o, key));
    for (size_t i = 0; text && i < n; i++)
        if (!strcmp(words[i], text)) return (int)i;
    const char *near = text ? gr_near(text, words, n) : NULL;
    if (near)
        bad(r, key, "unknown '%s'; did you mean '%s'?", text, near);
    else
        bad(r, key, "unknown '%s'", text ? text : "");
    return 0;
}

static json_t *array_of(reader *r, json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!json_is_array(v)) bad(r, key, "should be a list");
    return v;
}

/* The wait of a recv for its send, "role:step", at the end of `after`; taken out of the list. */
static gr_meeting meeting_of(reader *r, json_t *o)
{
    json_t *a = json_object_get(o, "after");
    size_t n = json_array_size(a);
    const char *text = n ? json_string_value(json_array_get(a, n - 1)) : NULL;
    unsigned role = 0, step = 0;
    int end = 0;
    if (!text || strspn(text, "0123456789:") != strlen(text) ||
        sscanf(text, "%9u:%9u%n", &role, &step, &end) != 2 || text[end])
        bad(r, "after", "a recv waits for its send last, \"role:step\"");
    else
        json_array_remove(a, n - 1);
    return (gr_meeting){role, step};
}

static uint32_t *ids_of(reader *r, json_t *o, const char *key, uint32_t limit, uint32_t *n)
{
    json_t *a = array_of(r, o, key);
    uint32_t count = (uint32_t)json_array_size(a);
    uint32_t *out = gr_arena_alloc(r->p->arena, (count + 1) * sizeof(*out));
    for (uint32_t i = 0; i < count; i++) {
        json_t *v = json_array_get(a, i);
        json_int_t x = json_is_integer(v) ? json_integer_value(v) : -1;
        if (x < 0 || x >= (json_int_t)limit)
            bad(r, key, "[%u] should be a number below %u", i, limit);
        else
            out[i] = (uint32_t)x;
    }
    *n = count;
    return out;
}

#define X(name, text) text,
static const char *const lanes[] = {GR_LANE_MAP(X)};
static const char *const categories[] = {GR_CATEGORY_MAP(X)};
static const char *const kinds[] = {GR_STEP_MAP(X)};
static const char *const places[] = {GR_PLACE_MAP(X)};
#undef X
static const char *const trips[] = {"static", "agreed"};

static void read_entry(reader *r, json_t *o, uint32_t id)
{
    static const char *const keys[] = {"id", "what", "category", "bytes", "offset", "first", "last", "place"};
    check_keys(r, o, keys, GR_LEN(keys));
    if (r->failed) return;
    if (number_of(r, o, "id", GR_NONE) != id) bad(r, "id", "should be %u", id);
    uint32_t last_step = r->n_steps ? r->n_steps - 1 : 0;
    gr_entry *e = &r->p->ledger[id];
    e->what = text_of(r, o, "what", false);
    e->category = (gr_category)word_of(r, o, "category", categories, GR_LEN(categories));
    e->place = (gr_place)word_of(r, o, "place", places, GR_LEN(places));
    e->bytes = number_of(r, o, "bytes", INT64_MAX / 2);
    e->offset = number_of(r, o, "offset", INT64_MAX / 2);
    e->first = (uint32_t)number_of(r, o, "first", last_step);
    e->last = (uint32_t)number_of(r, o, "last", last_step);
    if (!e->bytes || e->bytes % GR_ALIGN) bad(r, "bytes", "should be a multiple of %d above 0", GR_ALIGN);
    if (e->offset % GR_ALIGN) bad(r, "offset", "should be a multiple of %d", GR_ALIGN);
}

static void read_step(reader *r, json_t *o, uint32_t i, uint32_t n, gr_step *s)
{
    static const char *const keys[] = {"i",       "kind",      "what",      "node",   "bytes",
                                       "lane",    "after",     "reads",     "writes", "resident_bytes",
                                       "seconds", "body_last", "trips_max", "trips"};
    const char *kind = json_string_value(json_object_get(o, "kind"));
    bool loop = kind && !strcmp(kind, "loop");
    check_keys(r, o, keys, GR_LEN(keys) - (loop ? 0 : 3));
    if (r->failed) return;
    if (number_of(r, o, "i", GR_NONE) != i) bad(r, "i", "should be %u", i);
    s->kind = (gr_step_kind)word_of(r, o, "kind", kinds, GR_LEN(kinds));
    s->what = text_of(r, o, "what", false);
    s->node = text_of(r, o, "node", true);
    s->lane = (gr_lane)word_of(r, o, "lane", lanes, GR_LEN(lanes));
    s->bytes = number_of(r, o, "bytes", INT64_MAX / 2);
    if (s->kind == GR_STEP_RECV) s->meets = meeting_of(r, o);
    s->after = ids_of(r, o, "after", i, &s->n_after);
    s->reads = ids_of(r, o, "reads", r->p->n_ledger, &s->n_reads);
    s->writes = ids_of(r, o, "writes", r->p->n_ledger, &s->n_writes);
    s->resident_bytes = number_of(r, o, "resident_bytes", INT64_MAX / 2);
    s->ns = ns_of(r, o, "seconds");
    s->body_last = GR_NONE;
    if (!loop) return;
    s->body_last = (uint32_t)number_of(r, o, "body_last", n - 1);
    s->trips_max = (uint32_t)number_of(r, o, "trips_max", GR_NONE);
    s->agreed = word_of(r, o, "trips", trips, GR_LEN(trips)) == 1;
    if (s->body_last <= i) bad(r, "body_last", "should be a later step");
    if (!s->trips_max) bad(r, "trips_max", "should be above 0");
}

static void read_steps(reader *r, json_t *o, gr_path *path)
{
    json_t *a = array_of(r, o, "steps");
    path->n = (uint32_t)json_array_size(a);
    path->steps = gr_arena_alloc(r->p->arena, (path->n + 1) * sizeof(*path->steps));
    for (uint32_t i = 0; i < path->n && !r->failed; i++) {
        size_t was = down(r, ".steps[%u]", i);
        read_step(r, json_array_get(a, i), i, path->n, &path->steps[i]);
        up(r, was);
    }
}

static void read_paths(reader *r, json_t *o)
{
    static const char *const names[] = {"init", "resume", "validate", "checkpoint", "final"};
    static const char *const keys[] = {"entry", "exit", "steps"};
    size_t was = down(r, ".paths");
    check_keys(r, o, names, GR_LEN(names));
    for (size_t i = 0; i < GR_LEN(names) && !r->failed; i++) {
        json_t *v = json_object_get(o, names[i]);
        gr_path *path = &r->p->paths[i + 1];
        size_t before = down(r, ".%s", names[i]);
        check_keys(r, v, keys, GR_LEN(keys));
        if (!r->failed) {
            path->entry = ids_of(r, v, "entry", r->p->n_ledger, &path->n_entry);
            path->exit = ids_of(r, v, "exit", r->p->n_ledger, &path->n_exit);
            read_steps(r, v, path);
        }
        up(r, before);
    }
    up(r, was);
    gr_path *steady = &r->p->paths[GR_PATH_STEADY]; /* between init and checkpoint: what those say */
    steady->entry = r->p->paths[GR_PATH_INIT].exit;
    steady->n_entry = r->p->paths[GR_PATH_INIT].n_exit;
    steady->exit = r->p->paths[GR_PATH_CHECKPOINT].entry;
    steady->n_exit = r->p->paths[GR_PATH_CHECKPOINT].n_entry;
}

/* A key that only plans with a disk have; it is gone then. */
static uint64_t take_bytes(reader *r, json_t *o, const char *key)
{
    if (!json_object_get(o, key)) return 0;
    const uint64_t bytes = number_of(r, o, key, INT64_MAX / 2);
    json_object_del(o, key);
    return bytes;
}

/* Of one role, where there are several. */
static uint32_t take_hosts(reader *r, json_t *o)
{
    if (!json_object_get(o, "hosts")) return 0;
    const uint32_t hosts = (uint32_t)number_of(r, o, "hosts", GR_RANKS_MAX);
    json_object_del(o, "hosts");
    return hosts;
}

/* Keys of a role that only one of several has come last. */
static void read_role(reader *r, json_t *o, bool several)
{
    static const char *const keys[] = {"ranks",          "peak_bytes",      "peak_step",  "arena_bytes",
                                       "overhead_bytes", "host_peak_bytes", "ledger",     "steps",
                                       "paths",          "pools",           "own_seconds"};
    gr_plan *p = r->p;
    p->disk_bytes = take_bytes(r, o, "disk_peak_bytes");
    check_keys(r, o, keys, GR_LEN(keys) - (several ? 0 : 2));
    if (r->failed) return;
    p->ranks = text_of(r, o, "ranks", false);
    p->pools = several ? text_of(r, o, "pools", false) : "";
    p->own_ns = several ? ns_of(r, o, "own_seconds") : p->ns;
    p->arena_bytes = number_of(r, o, "arena_bytes", INT64_MAX / 2);
    p->overhead_bytes = number_of(r, o, "overhead_bytes", INT64_MAX / 2);
    p->host_bytes = number_of(r, o, "host_peak_bytes", INT64_MAX / 2);
    p->peak_bytes = number_of(r, o, "peak_bytes", INT64_MAX);
    p->fits = gr_plan_within(p, p->budget_bytes, p->host_budget_bytes, p->disk_budget_bytes);
    json_t *ledger = array_of(r, o, "ledger"), *steps = array_of(r, o, "steps");
    const json_t *validate = json_object_get(json_object_get(o, "paths"), "validate");
    r->n_steps = (uint32_t)(json_array_size(steps) + json_array_size(json_object_get(validate, "steps")));
    p->peak_step = (uint32_t)number_of(r, o, "peak_step", r->n_steps ? r->n_steps - 1 : 0);
    p->n_ledger = (uint32_t)json_array_size(ledger);
    p->ledger = gr_arena_alloc(p->arena, (p->n_ledger + 1) * sizeof(*p->ledger));
    for (uint32_t e = 0; e < p->n_ledger && !r->failed; e++) {
        size_t was = down(r, ".ledger[%u]", e);
        read_entry(r, json_array_get(ledger, e), e);
        up(r, was);
    }
    if (!r->failed) read_steps(r, o, &p->paths[GR_PATH_STEADY]);
    if (!r->failed) read_paths(r, json_object_get(o, "paths"));
}

/* Another role of the plan: its texts and budgets are the first one's. */
static gr_plan *new_role(const gr_plan *head)
{
    gr_arena *arena = gr_arena_new();
    gr_plan *p = gr_arena_alloc(arena, sizeof(*p));
    *p = (gr_plan){.arena = arena,
                   .graph = head->graph,
                   .graph_text = head->graph_text,
                   .hardware = head->hardware,
                   .numerics = head->numerics,
                   .device = head->device,
                   .notes = head->notes,
                   .reasons = head->reasons,
                   .budget_bytes = head->budget_bytes,
                   .host_budget_bytes = head->host_budget_bytes,
                   .disk_budget_bytes = head->disk_budget_bytes,
                   .ns = head->ns,
                   .hosts = head->hosts};
    return p;
}

static void read_roles(reader *r, json_t *o)
{
    gr_plan *head = r->p;
    json_t *ranks = array_of(r, o, "ranks");
    size_t n = json_array_size(ranks);
    if (!n) bad(r, "ranks", "should hold a role of ranks");
    if (n > 1) head->more = gr_arena_alloc(head->arena, n * sizeof(*head->more));
    for (size_t c = 0; c < n && !r->failed; c++) {
        size_t was = down(r, ".ranks[%zu]", c);
        if (c) r->p = head->more[head->n_more++] = new_role(head);
        read_role(r, json_array_get(ranks, c), n > 1);
        up(r, was);
    }
    r->p = head;
}

static void read_settings(reader *r, json_t *o)
{
    static const char *const keys[] = {"node", "name", "value"};
    json_t *a = array_of(r, o, "settings");
    gr_plan *p = r->p;
    p->n_settings = (uint32_t)json_array_size(a);
    p->settings = gr_arena_alloc(p->arena, (p->n_settings + 1) * sizeof(*p->settings));
    for (uint32_t i = 0; i < p->n_settings && !r->failed; i++) {
        size_t was = down(r, ".settings[%u]", i);
        json_t *v = json_array_get(a, i);
        check_keys(r, v, keys, GR_LEN(keys));
        if (!r->failed)
            p->settings[i] = (gr_setting){text_of(r, v, "node", false), text_of(r, v, "name", false),
                                          number_of(r, v, "value", UINT32_MAX)};
        up(r, was);
    }
}

static void read_plan(reader *r, json_t *o)
{
    static const char *const keys[] = {"version",           "graph",    "graph_text", "hardware",
                                       "numerics",          "settings", "notes",      "peak_bytes",
                                       "budget_bytes",      "fits",     "seconds",    "ranks",
                                       "host_budget_bytes", "device",   "hosts",      "order"};
    gr_plan *p = r->p;
    json_t *version = json_object_get(o, "version");
    if (json_is_integer(version) && json_integer_value(version) != GR_PLAN_VERSION)
        bad(r, "version", "%lld is not the version that this program reads, %d",
            (long long)json_integer_value(version), GR_PLAN_VERSION);
    bool several = json_array_size(json_object_get(o, "ranks")) > 1;
    const bool reasons = json_object_get(o, "reasons") != NULL; /* older plans say none */
    p->reasons = reasons ? text_of(r, o, "reasons", false) : "";
    json_object_del(o, "reasons");
    p->disk_budget_bytes = take_bytes(r, o, "disk_budget_bytes");
    if (!several) p->hosts = take_hosts(r, o);
    check_keys(r, o, keys, GR_LEN(keys) - (several ? 0 : 2)); /* of several roles */
    if (r->failed) return;
    (void)number_of(r, o, "version", GR_PLAN_VERSION);
    p->graph = text_of(r, o, "graph", false);
    p->graph_text = text_of(r, o, "graph_text", false);
    p->hardware = text_of(r, o, "hardware", false);
    p->device = text_of(r, o, "device", false);
    p->numerics = text_of(r, o, "numerics", false);
    p->notes = text_of(r, o, "notes", false);
    read_settings(r, o);
    p->budget_bytes = number_of(r, o, "budget_bytes", INT64_MAX);
    p->host_budget_bytes = number_of(r, o, "host_budget_bytes", INT64_MAX);
    p->ns = ns_of(r, o, "seconds");
    if (several) p->hosts = (uint32_t)number_of(r, o, "hosts", GR_RANKS_MAX);
    if (several) p->order = (uint32_t)number_of(r, o, "order", UINT32_MAX);
    read_roles(r, o);
    if (!r->failed && number_of(r, o, "peak_bytes", INT64_MAX) != gr_plan_peak(p))
        bad(r, "peak_bytes", "is not the highest of the ranks' peak_bytes");
    if (!several)
        p->fits = flag_of(r, o, "fits"); /* the verifier says whether it is true */
    else if (!r->failed && flag_of(r, o, "fits") != gr_plan_fits(p))
        bad(r, "fits", "is not what the peaks and the budget say");
}

gr_status gr_plan_read_json(gr_plan **out, const char *path, gr_diag *d)
{
    char *text;
    size_t n;
    gr_status st = gr_file_read(path, 1ULL << 30, &text, &n, d);
    if (st) return st;
    json_error_t err;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &err);
    free(text);
    if (!root)
        return gr_diag_error(d,
                             (gr_loc){path, (unsigned)GR_MAX(err.line, 1), (unsigned)GR_MAX(err.column, 1)},
                             GR_E_INVALID, "no whole JSON file: %s", err.text);
    gr_arena *arena = gr_arena_new();
    reader r = {.file = path, .d = d, .p = gr_arena_alloc(arena, sizeof(gr_plan))};
    r.p->arena = arena;
    gr_str_puts(&r.at, "$");
    read_plan(&r, root);
    json_decref(root);
    gr_str_release(&r.at);
    if (r.failed) {
        gr_plan_free(r.p);
        return GR_E_INVALID;
    }
    *out = r.p;
    return GR_OK;
}
