/* runtime/io/inputs.c: the list of what a run reads: hashed, as JSON, and compared with an older one. See
 * inputs.h. */
#include "runtime/io/inputs_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/json.h"

static const char *const kinds[] = {
#define X(name, text) text,
    GR_INPUT_MAP(X)
#undef X
};

gr_inputs *gr_inputs_new(void)
{
    gr_inputs *in = gr_calloc(1, sizeof(*in));
    in->arena = gr_arena_new();
    return in;
}

void gr_inputs_free(gr_inputs *in)
{
    if (!in) return;
    atomic_store(&in->hashing.stop, true);
    gr_status st = gr_hashing_end(in, NULL);
    (void)st; /* nobody asks any more */
    for (uint32_t r = 0; r < in->n_told; r++) {
        gr_inputs_free(in->told[r].in);
        free(in->told[r].host);
    }
    free(in->told);
    free(in->at);
    gr_arena_free(in->arena);
    free(in);
}

char *gr_inputs_node(const char *name)
{
    return gr_printf("nodes.%s", name);
}

char *gr_inputs_model(const char *name)
{
    return gr_printf("models.%s", name);
}

size_t gr_inputs_count(const gr_inputs *in)
{
    return in->n;
}

const gr_input *gr_inputs_at(const gr_inputs *in, size_t i)
{
    return &in->at[i];
}

static const char *kept(gr_inputs *in, const char *text)
{
    return text ? gr_arena_strdup(in->arena, text) : NULL;
}

void gr_inputs_add(gr_inputs *in, gr_input x)
{
    x.owner = kept(in, x.owner);
    x.name = kept(in, x.name);
    x.path = kept(in, x.path);
    x.same = kept(in, x.same);
    GR_PUSH(in->at, in->n, in->cap, x);
}

/* ---- files ----------------------------------------------------------------------------------------------
 */

/* Which file it is, and as of when: of one host, and as far as its times tell. */
static gr_status identify(const char *path, char text[160], uint64_t *bytes, gr_diag *d)
{
    struct stat s;
    if (stat(path, &s))
        return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot read '%s': %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        return gr_diag_error(d, (gr_loc){path, 0, 0}, GR_E_INVALID, "not a regular file");
    snprintf(text, 160, "%llx.%llx %lld %lld.%09ld %lld.%09ld", (unsigned long long)s.st_dev,
             (unsigned long long)s.st_ino, (long long)s.st_size, (long long)s.st_mtim.tv_sec,
             s.st_mtim.tv_nsec, (long long)s.st_ctim.tv_sec, s.st_ctim.tv_nsec);
    *bytes = (uint64_t)s.st_size;
    return GR_OK;
}

static gr_status unmoved(const gr_input *x, gr_diag *d)
{
    char same[160];
    uint64_t bytes;
    gr_status st = identify(x->path, same, &bytes, d);
    if (st || !strcmp(same, x->same)) return st;
    return gr_diag_error(d, (gr_loc){x->path, 0, 0}, GR_E_INVALID, "the file has changed while it was read");
}

/* It is the file that was added, before and after. */
static gr_status hash_file(gr_input *x, gr_diag *d)
{
    gr_status st = unmoved(x, d);
    if (!st) st = gr_hash_file(x->path, &x->hash, &x->bytes, d);
    if (!st) st = unmoved(x, d);
    x->hashed = !st;
    return st;
}

gr_status gr_inputs_add_file(gr_inputs *in, gr_input_kind kind, const char *owner, const char *name,
                             const char *path, gr_diag *d)
{
    char same[160];
    gr_input x = {.kind = kind, .owner = owner, .name = name, .path = path, .same = same};
    gr_status st = identify(path, same, &x.bytes, d);
    if (!st && kind != GR_INPUT_WEIGHTS) st = hash_file(&x, d);
    if (!st) gr_inputs_add(in, x);
    return st;
}

/* ---- threads --------------------------------------------------------------------------------------------
 */

static void *hash_wanted(void *arg)
{
    struct gr_hasher *me = arg;
    gr_hashing *h = me->of;
    for (size_t i; !me->st && !atomic_load(&h->stop) && (i = atomic_fetch_add(&h->next, 1)) < h->n_wanted;)
        me->st = hash_file(&h->in->at[h->wanted[i]], &me->d);
    return NULL;
}

gr_status gr_hashing_begin(gr_inputs *in, size_t *wanted, size_t n_wanted, unsigned threads, gr_diag *d)
{
    gr_hashing *h = &in->hashing;
    const unsigned n = (unsigned)GR_MIN((size_t)threads, n_wanted);
    *h = (gr_hashing){.in = in, .wanted = wanted, .n_wanted = n_wanted};
    h->hashers = gr_calloc(n + 1, sizeof(*h->hashers));
    int error = 0;
    for (unsigned i = 0; i < n && !error; i++) {
        h->hashers[i].of = h;
        gr_diag_init(&h->hashers[i].d);
        error = pthread_create(&h->hashers[i].thread, NULL, hash_wanted, &h->hashers[i]);
        if (!error) h->n_hashers++;
    }
    if (!n_wanted || h->n_hashers) return GR_OK; /* fewer of them take longer */
    return gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "cannot start a thread that hashes weights: %s",
                         strerror(error));
}

static void take_messages(gr_diag *to, gr_diag *from, gr_status st)
{
    for (size_t i = 0; i < from->n; i++)
        gr_diag_error(to, from->messages[i].at, st, "%s", from->messages[i].text);
    gr_diag_release(from);
}

gr_status gr_hashing_end(gr_inputs *in, gr_diag *d)
{
    gr_hashing *h = &in->hashing;
    gr_status st = GR_OK;
    for (unsigned i = 0; i < h->n_hashers; i++) {
        struct gr_hasher *x = &h->hashers[i];
        pthread_join(x->thread, NULL);
        take_messages(d, &x->d, x->st);
        st = st ? st : x->st;
    }
    free(h->hashers);
    free(h->wanted);
    h->hashers = NULL;
    h->wanted = NULL;
    h->n_hashers = 0;
    return st;
}

/* ---- JSON -----------------------------------------------------------------------------------------------
 */

static void set_text(json_t *to, const char *key, const char *text)
{
    if (text) json_object_set_new(to, key, gr_json_string(text, strlen(text)));
}

static json_t *json_of(const gr_input *x, bool same)
{
    json_t *j = json_object();
    char hash[GR_HASH_HEX];
    set_text(j, "kind", kinds[x->kind]);
    set_text(j, "owner", x->owner);
    set_text(j, "name", x->name);
    set_text(j, "path", x->path);
    json_object_set_new(j, "bytes", json_integer((json_int_t)x->bytes));
    if (x->hashed) set_text(j, "xxh3", gr_hash_hex(x->hash, hash));
    if (same) set_text(j, "same", x->same);
    return j;
}

json_t *gr_inputs_list(const gr_inputs *in, bool same)
{
    json_t *list = json_array();
    for (size_t i = 0; i < in->n; i++) json_array_append_new(list, json_of(&in->at[i], same));
    return list;
}

json_t *gr_inputs_json(const gr_inputs *in)
{
    return gr_inputs_list(in, false);
}

bool gr_input_hash_of(const json_t *text, gr_hash *out)
{
    return json_string_length(text) == GR_HASH_HEX - 1 && gr_hash_parse(json_string_value(text), out);
}

static bool read_input(gr_input *x, const json_t *j)
{
    const char *kind = json_string_value(json_object_get(j, "kind"));
    const json_t *bytes = json_object_get(j, "bytes"), *hash = json_object_get(j, "xxh3");
    *x = (gr_input){.kind = GR_N_INPUT_KINDS,
                    .owner = json_string_value(json_object_get(j, "owner")),
                    .name = json_string_value(json_object_get(j, "name")),
                    .path = json_string_value(json_object_get(j, "path")),
                    .same = json_string_value(json_object_get(j, "same")),
                    .bytes = (uint64_t)json_integer_value(bytes),
                    .hashed = hash != NULL};
    for (size_t k = 0; kind && k < GR_N_INPUT_KINDS; k++)
        if (!strcmp(kind, kinds[k])) x->kind = (gr_input_kind)k;
    return x->kind < GR_N_INPUT_KINDS && x->owner && x->name && json_is_integer(bytes) &&
           (!hash || gr_input_hash_of(hash, &x->hash));
}

bool gr_inputs_read(gr_inputs *to, const json_t *list)
{
    bool ok = json_is_array(list);
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        gr_input x;
        ok = read_input(&x, json_array_get(list, i));
        if (ok) gr_inputs_add(to, x);
    }
    return ok;
}

/* ---- two lists ------------------------------------------------------------------------------------------
 */

static char *owner_key(gr_arena *p, const gr_input *x)
{
    return gr_arena_printf(p, "%s%s", x->owner, x->kind == GR_INPUT_WEIGHTS ? " weights" : "");
}

/* A node has its data from one place, whatever that is called. */
static char *key_of(gr_arena *p, const gr_input *x)
{
    return gr_arena_printf(p, "%s\n%s", owner_key(p, x), x->kind == GR_INPUT_DATA ? "data" : x->name);
}

gr_inputs_index gr_inputs_index_of(const gr_inputs *in)
{
    gr_inputs_index x = {.arena = gr_arena_new()};
    for (size_t i = 0; i < in->n; i++) {
        gr_index_add(&x.inputs, key_of(x.arena, &in->at[i]), (uint32_t)i);
        gr_index_add(&x.owners, owner_key(x.arena, &in->at[i]), (uint32_t)i);
    }
    return x;
}

void gr_inputs_index_release(gr_inputs_index *x)
{
    gr_index_release(&x->inputs);
    gr_index_release(&x->owners);
    gr_arena_free(x->arena);
}

uint32_t gr_inputs_find(const gr_inputs_index *x, const gr_input *like)
{
    const char *key = key_of(x->arena, like);
    return gr_index_find(&x->inputs, key, strlen(key));
}

uint32_t gr_inputs_find_owner(const gr_inputs_index *x, const gr_input *like)
{
    const char *key = owner_key(x->arena, like);
    return gr_index_find(&x->owners, key, strlen(key));
}

bool gr_input_same(const gr_input *a, const gr_input *b)
{
    return a->bytes == b->bytes && gr_hash_same(a->hash, b->hash);
}

char *gr_input_describe(const gr_input *x)
{
    char hash[GR_HASH_HEX];
    return gr_printf("%llu bytes, xxh3 %s%s%s%s", (unsigned long long)x->bytes, gr_hash_hex(x->hash, hash),
                     x->path ? " ('" : "", x->path ? x->path : "", x->path ? "')" : "");
}

/* ---- compared with what was recorded ---------------------------------------------------------------------
 */

typedef struct held {
    gr_inputs *now, *was;
    gr_inputs_index in_now, in_was;
    const char *from;
    bool accept;
    gr_diag *d;
    gr_status st;
} held;

/* Either may be NULL. */
static void say_change(held *h, const gr_input *was, const gr_input *now)
{
    const gr_input *x = now ? now : was;
    char *before = was ? gr_input_describe(was) : gr_strdup("not there"),
         *after = now ? gr_input_describe(now) : gr_strdup("gone");
    const gr_loc at = {h->from, 0, 0};
    static const char text[] = "'%s' of %s is not what the checkpoint was made with: it was %s, and is %s";
    if (x->kind == GR_INPUT_PROGRAM)
        gr_diag_warn(h->d, at, "this is another build of %s: it was %s, and is %s", x->owner, before, after);
    else if (h->accept)
        gr_diag_warn(h->d, at, text, x->name, x->owner, before, after);
    else
        h->st = gr_diag_error(h->d, at, GR_E_INVALID, text, x->name, x->owner, before, after);
    free(before);
    free(after);
}

static void hold_one(held *h, const gr_input *now)
{
    const uint32_t i = gr_inputs_find(&h->in_was, now);
    const gr_input *was = i == UINT32_MAX ? NULL : &h->was->at[i];
    const bool known = was || gr_inputs_find_owner(&h->in_was, now) != UINT32_MAX;
    if (now->kind != GR_INPUT_GRAPH && known && !(was && gr_input_same(was, now))) say_change(h, was, now);
}

static void hold_gone(held *h, const gr_input *was)
{
    if (gr_inputs_find(&h->in_now, was) != UINT32_MAX || was->kind == GR_INPUT_GRAPH) return;
    if (gr_inputs_find_owner(&h->in_now, was) != UINT32_MAX)
        say_change(h, was, NULL);
    else if (was->kind == GR_INPUT_WEIGHTS)
        gr_inputs_add(h->now, *was);
}

gr_status gr_inputs_hold(gr_inputs *in, const json_t *pinned, const char *from, bool accept, gr_diag *d)
{
    held h = {.now = in, .was = gr_inputs_new(), .from = from, .accept = accept, .d = d};
    const size_t n = in->n;
    const bool sound = gr_inputs_read(h.was, pinned);
    h.in_now = gr_inputs_index_of(in);
    h.in_was = gr_inputs_index_of(h.was);
    if (!sound)
        h.st = gr_diag_error(d, (gr_loc){from, 0, 0}, GR_E_INVALID, "its list of inputs cannot be read");
    for (size_t i = 0; sound && i < n; i++) hold_one(&h, &in->at[i]);
    for (size_t i = 0; sound && i < h.was->n; i++) hold_gone(&h, &h.was->at[i]);
    if (h.st && sound)
        gr_diag_note(d, (gr_loc){0},
                     "put back what it was, or let the run go on with what it is: --accept-changes");
    gr_inputs_index_release(&h.in_now);
    gr_inputs_index_release(&h.in_was);
    gr_inputs_free(h.was);
    return h.st;
}

gr_status gr_inputs_loaded(const gr_inputs *in, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < in->n && !st; i++)
        if (in->at[i].kind == GR_INPUT_WEIGHTS && in->at[i].same) st = unmoved(&in->at[i], d);
    return st;
}

/* ---- while running --------------------------------------------------------------------------------------
 */

static gr_status unchanged(const gr_input *was, gr_diag *d)
{
    gr_input now = {.path = was->path};
    gr_status st = gr_hash_file(now.path, &now.hash, &now.bytes, d);
    if (st || gr_input_same(was, &now)) return st ? GR_E_FAILED : GR_OK;
    char *before = gr_input_describe(was), *after = gr_input_describe(&now);
    st = gr_diag_error(d, (gr_loc){was->path, 0, 0}, GR_E_FAILED,
                       "'%s' of %s has changed while the run uses it: it was %s, and is %s", was->name,
                       was->owner, before, after);
    free(before);
    free(after);
    return st;
}

gr_status gr_inputs_unchanged(const gr_inputs *in, const char *owner, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; in && i < in->n && !st; i++) {
        const gr_input *x = &in->at[i];
        if (x->same && x->kind != GR_INPUT_WEIGHTS && !strcmp(x->owner, owner)) st = unchanged(x, d);
    }
    return st;
}
