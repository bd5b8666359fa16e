/* runtime/io/inputs_ranks.c: what the ranks of a run read, compared on rank 0, to whom all of them write. Of
 * a file that several ranks of a host see, one hashes what is large. See inputs.h. */
#include "runtime/io/inputs_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages --------------------------------------------------------------------------------------------
 */

/* Takes the reference. */
static gr_status post(gr_comm *c, json_t *message, uint32_t to, gr_diag *d)
{
    char *text = json_dumps(message, JSON_COMPACT);
    gr_status st = text ? c->type->post(c, text, strlen(text), to, d)
                        : gr_diag_error(d, (gr_loc){0}, GR_E_NOMEM, "cannot tell rank %u what is read", to);
    json_decref(message);
    free(text);
    return st;
}

static gr_status collect(gr_comm *c, json_t **message, uint32_t from, gr_diag *d)
{
    void *text = NULL;
    uint64_t bytes = 0;
    gr_status st = c->type->collect(c, &text, &bytes, from, d);
    *message = st ? NULL : json_loadb(text, bytes, 0, NULL);
    free(text);
    if (st || *message) return st;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "what rank %u has told of its inputs cannot be read",
                         from);
}

/* ---- who hashes what ------------------------------------------------------------------------------------
 */

/* A file that ranks of one host see, and who of them hashes it. */
typedef struct shared_file {
    uint64_t bytes;
    uint32_t *ranks; /* the first of each rank's inputs that is this file, in order */
    size_t *input;
    size_t n, cap, cap_input;
} shared_file;

typedef struct sharing {
    const gr_inputs_told *told;
    gr_arena *arena;
    gr_index index;
    shared_file *files;
    size_t n, cap;
} sharing;

/* A file by its host; NULL: not one that is shared out. */
static const char *file_key(gr_arena *p, const gr_inputs_told *t, const gr_input *x)
{
    return x->kind == GR_INPUT_WEIGHTS && x->same ? gr_arena_printf(p, "%s %s", t->host, x->same) : NULL;
}

static void note_file(sharing *s, uint32_t rank, size_t input)
{
    const gr_input *x = &s->told[rank].in->at[input];
    const char *key = file_key(s->arena, &s->told[rank], x);
    if (!key) return;
    if (gr_index_add(&s->index, key, (uint32_t)s->n))
        GR_PUSH(s->files, s->n, s->cap, ((shared_file){.bytes = x->bytes}));
    shared_file *f = &s->files[gr_index_find(&s->index, key, strlen(key))];
    if (f->n && f->ranks[f->n - 1] == rank) return;
    size_t n = f->n;
    GR_PUSH(f->input, n, f->cap_input, input);
    GR_PUSH(f->ranks, f->n, f->cap, rank);
}

/* The one with least to do so far, of equal ones the first. */
static size_t least_busy(const shared_file *f, const uint64_t *busy)
{
    size_t least = 0;
    for (size_t i = 1; i < f->n; i++)
        if (busy[f->ranks[i]] < busy[f->ranks[least]]) least = i;
    return least;
}

/* [ranks] of lists of inputs; json_decref it. */
static json_t *share_out(const gr_inputs_told *told, uint32_t ranks)
{
    sharing s = {.told = told, .arena = gr_arena_new()};
    uint64_t *busy = gr_calloc(ranks, sizeof(*busy));
    json_t *tasks = json_array();
    for (uint32_t r = 0; r < ranks; r++) {
        json_array_append_new(tasks, json_array());
        for (size_t i = 0; i < told[r].in->n; i++) note_file(&s, r, i);
    }
    for (size_t i = 0; i < s.n; i++) {
        shared_file *f = &s.files[i];
        const size_t by = least_busy(f, busy);
        busy[f->ranks[by]] += f->bytes;
        json_array_append_new(json_array_get(tasks, f->ranks[by]), json_integer((json_int_t)f->input[by]));
        free(f->ranks);
        free(f->input);
    }
    free(s.files);
    free(busy);
    gr_index_release(&s.index);
    gr_arena_free(s.arena);
    return tasks;
}

/* ---- begin ----------------------------------------------------------------------------------------------
 */

/* {"host": ..., "inputs": [...]} */
static json_t *own_message(const gr_inputs *in, const gr_comm *c)
{
    json_t *message = json_object();
    json_object_set_new(message, "host", json_string(c ? c->host : ""));
    json_object_set_new(message, "inputs", gr_inputs_list(in, true));
    return message;
}

static gr_status take_told(gr_inputs_told *t, uint32_t rank, const json_t *message, gr_diag *d)
{
    const char *host = json_string_value(json_object_get(message, "host"));
    t->in = gr_inputs_new();
    t->host = gr_strdup(host ? host : "?");
    return gr_inputs_read(t->in, json_object_get(message, "inputs"))
               ? GR_OK
               : gr_diag_error(d, (gr_loc){0}, GR_E_FAILED,
                               "what rank %u has told of its inputs cannot be read", rank);
}

/* Rank 0 learns what all read, and tells each what to hash. */
static gr_status give_tasks(gr_inputs *in, gr_comm *c, json_t **own, gr_diag *d)
{
    const uint32_t ranks = gr_comm_ranks(c);
    gr_status st = GR_OK;
    in->told = gr_calloc(ranks, sizeof(*in->told));
    in->n_told = ranks;
    for (uint32_t r = 0; r < ranks && !st; r++) {
        json_t *message = r ? NULL : own_message(in, c);
        if (r) st = collect(c, &message, r, d);
        if (!st) st = take_told(&in->told[r], r, message, d);
        json_decref(message);
    }
    json_t *tasks = st ? NULL : share_out(in->told, ranks);
    for (uint32_t r = 1; r < ranks && !st; r++) st = post(c, json_incref(json_array_get(tasks, r)), r, d);
    *own = st ? NULL : json_incref(json_array_get(tasks, 0));
    json_decref(tasks);
    return st;
}

static gr_status take_tasks(const gr_inputs *in, gr_comm *c, json_t **own, gr_diag *d)
{
    gr_status st = post(c, own_message(in, c), 0, d);
    return st ? st : collect(c, own, 0, d);
}

gr_status gr_inputs_begin(gr_inputs *in, gr_comm *c, unsigned threads, gr_diag *d)
{
    json_t *tasks = NULL;
    gr_status st = gr_comm_rank(c) ? take_tasks(in, c, &tasks, d) : give_tasks(in, c, &tasks, d);
    const size_t n = json_array_size(tasks);
    size_t *wanted = gr_calloc(n + 1, sizeof(*wanted));
    for (size_t i = 0; i < n; i++) wanted[i] = (size_t)json_integer_value(json_array_get(tasks, i));
    json_decref(tasks);
    if (!st) return gr_hashing_begin(in, wanted, n, threads, d);
    free(wanted);
    return st;
}

/* ---- end ------------------------------------------------------------------------------------------------
 */

/* What each has hashed; null: another does. */
static json_t *own_hashes(const gr_inputs *in)
{
    json_t *hashes = json_array();
    char text[GR_HASH_HEX];
    for (size_t i = 0; i < in->n; i++)
        json_array_append_new(hashes, in->at[i].hashed ? json_string(gr_hash_hex(in->at[i].hash, text))
                                                       : json_null());
    return hashes;
}

static void take_hashes(gr_inputs *in, const json_t *hashes)
{
    for (size_t i = 0; i < in->n; i++)
        in->at[i].hashed = gr_input_hash_of(json_array_get(hashes, i), &in->at[i].hash);
}

/* Hashes by the files of each host. */
typedef struct known_files {
    gr_arena *arena;
    gr_index index;
    gr_hash *hash;
    size_t n, cap;
} known_files;

static void note_hash(known_files *k, const gr_inputs_told *t, const gr_input *x)
{
    const char *key = x->hashed ? file_key(k->arena, t, x) : NULL;
    if (key && gr_index_add(&k->index, key, (uint32_t)k->n)) GR_PUSH(k->hash, k->n, k->cap, x->hash);
}

static void find_hash(const known_files *k, const gr_inputs_told *t, gr_input *x)
{
    const char *key = x->hashed ? NULL : file_key(k->arena, t, x);
    const uint32_t i = key ? gr_index_find(&k->index, key, strlen(key)) : UINT32_MAX;
    if (i == UINT32_MAX) return;
    x->hash = k->hash[i];
    x->hashed = true;
}

/* Give each rank's files the hashes that others of its host have made. */
static void sharding_hashes(const gr_inputs_told *told, uint32_t ranks)
{
    known_files k = {.arena = gr_arena_new()};
    for (uint32_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < told[r].in->n; i++) note_hash(&k, &told[r], &told[r].in->at[i]);
    for (uint32_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < told[r].in->n; i++) find_hash(&k, &told[r], &told[r].in->at[i]);
    free(k.hash);
    gr_index_release(&k.index);
    gr_arena_free(k.arena);
}

/* All that ranks read so far, in the order of ranks. */
typedef struct gathered {
    const gr_inputs_told *told;
    gr_inputs *all;
    gr_inputs_index index; /* of all, as it was before the rank that is looked at */
    uint32_t *rank;        /* [all->n] who was the first to read it */
    bool *said;            /* [all->n] that it differs: once, however many ranks have the other one */
    size_t cap, cap_said;
    gr_diag *d;
    gr_status st;
} gathered;

static void gather(gathered *g, const gr_input *x, uint32_t rank)
{
    size_t n = g->all->n, same = n;
    gr_inputs_add(g->all, *x);
    GR_PUSH(g->said, n, g->cap_said, false);
    GR_PUSH(g->rank, same, g->cap, rank);
}

/* Either may be NULL: it is not there. */
static void say_difference(gathered *g, uint32_t first_rank, const gr_input *first, uint32_t rank,
                           const gr_input *x)
{
    const gr_input *named = x ? x : first;
    char *here = x ? gr_input_describe(x) : gr_strdup("it is not there"),
         *there = first ? gr_input_describe(first) : gr_strdup("it is not there");
    g->st =
        gr_diag_error(g->d, (gr_loc){0}, GR_E_INVALID,
                      "rank %u on host %s has another '%s' of %s than rank %u on host %s: %s; on rank %u %s",
                      rank, g->told[rank].host, named->name, named->owner, first_rank,
                      g->told[first_rank].host, here, first_rank, there);
    free(here);
    free(there);
}

/* What is read of an owner, all who name it read. */
static void compare_first(gathered *g, size_t i, uint32_t rank, const gr_inputs_index *own)
{
    const gr_input *first = &g->all->at[i];
    const uint32_t k = gr_inputs_find(own, first);
    const gr_input *x = k == UINT32_MAX ? NULL : &g->told[rank].in->at[k];
    const bool same = x ? gr_input_same(x, first) : gr_inputs_find_owner(own, first) == UINT32_MAX;
    if (same || g->said[i]) return;
    g->said[i] = true;
    say_difference(g, g->rank[i], first, rank, x);
}

static void compare_new(gathered *g, const gr_input *x, uint32_t rank)
{
    const uint32_t other = gr_inputs_find_owner(&g->index, x);
    if (gr_inputs_find(&g->index, x) != UINT32_MAX) return;
    if (other != UINT32_MAX) say_difference(g, g->rank[other], NULL, rank, x);
    gather(g, x, rank);
}

static void compare_rank(gathered *g, uint32_t rank)
{
    const gr_inputs *in = g->told[rank].in;
    gr_inputs_index own = gr_inputs_index_of(in);
    const size_t before = g->all->n;
    g->index = gr_inputs_index_of(g->all);
    for (size_t i = 0; i < before; i++) compare_first(g, i, rank, &own);
    for (size_t i = 0; i < in->n; i++) compare_new(g, &in->at[i], rank);
    gr_inputs_index_release(&g->index);
    gr_inputs_index_release(&own);
}

/* The list of rank 0 has what it reads and what others read; its own weights, as others have hashed them. */
static void take_gathered(gr_inputs *in, const gr_inputs *all)
{
    gr_inputs_index own = gr_inputs_index_of(in);
    for (size_t i = 0; i < all->n; i++) {
        gr_input x = all->at[i];
        const uint32_t k = gr_inputs_find(&own, &x);
        x.same = NULL; /* of another host, perhaps */
        if (k == UINT32_MAX) {
            gr_inputs_add(in, x);
        } else {
            in->at[k].hash = x.hash;
            in->at[k].hashed = true;
        }
    }
    gr_inputs_index_release(&own);
}

static gr_status compare(gr_inputs *in, gr_diag *d)
{
    gathered g = {.told = in->told, .all = gr_inputs_new(), .d = d};
    for (uint32_t r = 0; r < in->n_told; r++) compare_rank(&g, r);
    if (!g.st) take_gathered(in, g.all);
    gr_inputs_free(g.all);
    free(g.rank);
    free(g.said);
    return g.st;
}

/* Rank 0 has all hashes. */
static gr_status take_all(gr_inputs *in, gr_comm *c, gr_diag *d)
{
    gr_status st = GR_OK;
    for (uint32_t r = 0; r < in->n_told && !st; r++) {
        json_t *hashes = r ? NULL : own_hashes(in);
        if (r) st = collect(c, &hashes, r, d);
        if (!st) take_hashes(in->told[r].in, hashes);
        json_decref(hashes);
    }
    if (!st) sharding_hashes(in->told, in->n_told);
    return st;
}

gr_status gr_inputs_end(gr_inputs *in, gr_comm *c, gr_diag *d)
{
    gr_status st = gr_hashing_end(in, d);
    if (!st) st = gr_comm_rank(c) ? post(c, own_hashes(in), 0, d) : take_all(in, c, d);
    if (st) return st; /* alone: who calls ends the others */
    uint64_t verdict = gr_comm_rank(c) ? GR_OK : compare(in, d);
    st = gr_comm_agree(c, &verdict, d);
    return st ? st : (gr_status)verdict;
}
