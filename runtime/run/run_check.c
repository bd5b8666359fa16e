/* runtime/run/run_check.c: whether ranks still hold alike what they should (ops/alike.h), and keep the same
 * states: checksums, summed where a work uses what they are of, and compared when the iteration has ended. */
#include "runtime/run/run_parts.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "ops/alike.h"

typedef struct gr_checked {
    uint32_t object;
    gr_alike alike;
    atomic_bool summed; /* in this iteration */
} checked;

/* ---- what there is --------------------------------------------------------------------------------------
 */

static void find_alike(gr_running *r, const gr_kernels *k)
{
    const gr_tasks *p = r->p->tasks;
    gr_checks *c = &r->checks;
    c->of = gr_calloc(p->n_objects, sizeof(*c->of));
    c->by_object = gr_malloc((p->n_objects + 1) * sizeof(*c->by_object));
    for (uint32_t i = 0; i < p->n_objects; i++) {
        gr_alike a;
        const bool alike = gr_alike_of(&a, p, r->g, k, i, gr_comm_rank(r->comms.own));
        c->by_object[i] = alike ? c->n : GR_NONE;
        if (!alike) continue;
        c->of[c->n].object = i;
        c->of[c->n++].alike = a;
    }
}

void gr_run_open_checks(gr_running *r, const gr_kernels *k, gr_diag *d)
{
    gr_checks *c = &r->checks;
    if (!r->g->run.check || gr_comm_ranks(r->comms.own) < 2) return;
    find_alike(r, k);
    if (!k->queued)
        c->parts = c->own = gr_calloc((size_t)c->n * GR_CHECKSUM_PARTS + 1, sizeof(*c->own));
    else
        c->parts = gr_executor_spare(r->executor, gr_alike_room(r->p->tasks, r->g, k));
    if (c->parts) return;
    gr_diag_warn(d, (gr_loc){0},
                 "the plan has no room to compare the weights of ranks (run: check), so they are not: it was "
                 "made without; --replan makes one that has");
    c->n = 0;
}

void gr_run_close_checks(gr_running *r)
{
    free(r->checks.of);
    free(r->checks.by_object);
    free(r->checks.own);
    r->checks = (gr_checks){0};
}

void gr_run_begin_check(gr_running *r, uint32_t step)
{
    gr_checks *c = &r->checks;
    c->due =
        c->of && step && (step % r->g->run.check == 0 || gr_run_is_due(r, step) || step == r->session.steps);
    for (uint32_t i = 0; i < c->n; i++) atomic_store(&c->of[i].summed, false);
}

/* ---- sums -----------------------------------------------------------------------------------------------
 */

/* The copy that this work uses: on the device, or in the host pool, where the work is done there. */
static void sum(const gr_running *r, uint32_t i, const void *x, gr_queue *q)
{
    const gr_checks *c = &r->checks;
    uint64_t *parts = c->parts + (size_t)i * GR_CHECKSUM_PARTS;
    const uint64_t bytes = c->of[i].alike.bytes;
    if (q->device && q->stream)
        r->session.kernels->checksum(q, x, bytes, parts);
    else
        gr_host_checksum(q, x, bytes, parts);
}

void gr_run_check_task(gr_running *r, const gr_task *w, const gr_call *call)
{
    gr_checks *c = &r->checks;
    for (uint32_t u = 0; c->due && c->n && u < w->uses.n; u++) {
        const uint32_t object = w->uses.list[u].object,
                       i = object == GR_NONE ? GR_NONE : c->by_object[object];
        if (i == GR_NONE || !call->ptr[u]) continue;
        const gr_use_mode wanted = c->of[i].alike.written ? GR_WRITE : GR_READ;
        if ((w->uses.list[u].mode & wanted) && !atomic_exchange(&c->of[i].summed, true))
            sum(r, i, call->ptr[u], call->queue);
    }
}

/* What each rank keeps of its own, which follows from what all have computed alike. */
static uint64_t sum_states(const gr_running *r)
{
    gr_state_file *f = gr_state_new();
    gr_str text = {0};
    for (size_t i = 0; i < r->g->n_state; i++)
        gr_state_set_number(f, "state", r->g->state[i].name, r->session.next_state[i]);
    gr_run_save_ops(r, false, f);
    gr_state_text(f, &text);
    const uint64_t hash = XXH3_64bits(text.text, text.len);
    gr_str_release(&text);
    gr_state_free(f);
    return hash;
}

/* ---- compared -------------------------------------------------------------------------------------------
 */

/* [ranks][n] sums, of which the last ones are of states; 0: this rank has not come by. */
typedef struct table {
    uint64_t *sum;
    uint32_t *group; /* the same: who is compared with whom */
    uint32_t n, ranks;
    struct place {
        uint32_t rank; /* of the run */
        char host[64];
    } * places;
} table;

static uint64_t *row(const table *t, uint32_t rank)
{
    return t->sum + (size_t)rank * t->n;
}

static void fill_own(const gr_running *r, table *t)
{
    const gr_checks *c = &r->checks;
    const uint32_t rank = gr_comm_rank(r->comms.own);
    uint64_t *own = row(t, rank);
    for (uint32_t i = 0; i < c->n; i++) {
        if (!atomic_load(&c->of[i].summed)) continue;
        own[i] = gr_checksum_of(c->parts + (size_t)i * GR_CHECKSUM_PARTS);
        own[i] += !own[i];
        t->group[(size_t)rank * t->n + i] = c->of[i].alike.group;
    }
    own[c->n] = sum_states(r);
    own[c->n] += !own[c->n];
    t->places[rank].rank = gr_comm_rank(r->comms.all);
    memcpy(t->places[rank].host, r->comms.all->host, sizeof(t->places[rank].host));
}

/* Every rank has the whole table then. */
static gr_status fill(const gr_running *r, table *t, gr_diag *d)
{
    gr_comm *c = r->comms.own;
    const size_t cells = (size_t)t->n * t->ranks;
    t->sum = gr_calloc(cells, sizeof(*t->sum));
    t->group = gr_calloc(cells, sizeof(*t->group));
    t->places = gr_calloc(t->ranks, sizeof(*t->places));
    fill_own(r, t);
    gr_status st = c->type->host_reduce(c, t->sum, cells * sizeof(*t->sum), GR_COMM_MAX_U64, d);
    if (!st) st = c->type->host_reduce(c, t->group, cells * sizeof(*t->group), GR_COMM_MAX_U8, d);
    if (!st) st = c->type->host_reduce(c, t->places, t->ranks * sizeof(*t->places), GR_COMM_MAX_U8, d);
    return st;
}

static void release(table *t)
{
    free(t->sum);
    free(t->group);
    free(t->places);
}

/* Whether a and b are compared at all. */
static bool meet(const table *t, uint32_t i, uint32_t a, uint32_t b)
{
    return row(t, a)[i] && row(t, b)[i] && t->group[(size_t)a * t->n + i] == t->group[(size_t)b * t->n + i];
}

/* How many of those that it is compared with a rank agrees with, itself included. */
static uint32_t friends(const table *t, uint32_t i, uint32_t rank)
{
    uint32_t n = 0;
    for (uint32_t o = 0; o < t->ranks; o++) n += meet(t, i, rank, o) && row(t, o)[i] == row(t, rank)[i];
    return n;
}

/* Of those that rank is compared with, the first of the largest party. */
static uint32_t judge(const table *t, uint32_t i, uint32_t rank)
{
    uint32_t best = rank, most = friends(t, i, rank);
    for (uint32_t o = t->ranks; o-- > 0;) {
        const uint32_t n = meet(t, i, rank, o) ? friends(t, i, o) : 0;
        if (n > most || (n == most && o < best)) {
            best = o;
            most = n;
        }
    }
    return best;
}

static bool all_agree(const table *t, uint32_t i)
{
    bool agree = true;
    for (uint32_t r = 1; r < t->ranks && agree;
         r++) { /* ranks of a group are regularly placed: with any before */
        uint32_t before = r;
        while (before-- > 0 && !meet(t, i, r, before)) {
        }
        agree = before == UINT32_MAX || row(t, before)[i] == row(t, r)[i];
    }
    return agree;
}

static gr_status say_drift(const gr_running *r, const table *t, uint32_t i, uint32_t rank, gr_diag *d)
{
    const uint32_t other = judge(t, i, rank), with = friends(t, i, other), own = friends(t, i, rank);
    const struct place *a = &t->places[rank], *b = &t->places[other];
    const char *what = i == r->checks.n ? "the states that its nodes keep"
                                        : r->p->tasks->objects[r->checks.of[i].object].name;
    if (other == rank) return GR_OK;
    if (own == with)
        return gr_diag_error(
            d, (gr_loc){0}, GR_E_FAILED,
            "iteration %u: rank %u on host %s and rank %u on host %s have drifted apart: %s, which "
            "they hold alike, is another on each",
            r->session.step, a->rank, a->host, b->rank, b->host, what);
    return gr_diag_error(
        d, (gr_loc){0}, GR_E_FAILED,
        "iteration %u: rank %u on host %s has drifted: its %s is not that of %u other ranks, of which "
        "rank %u on host %s is the first",
        r->session.step, a->rank, a->host, what, with, b->rank, b->host);
}

/* The first thing that differs, with all who have another one. */
static gr_status compare(const gr_running *r, const table *t, gr_diag *d)
{
    gr_status st = GR_OK;
    for (uint32_t i = 0; i < t->n && !st; i++)
        for (uint32_t rank = 0; rank < t->ranks && !all_agree(t, i); rank++) {
            gr_status one = row(t, rank)[i] && row(t, judge(t, i, rank))[i] != row(t, rank)[i]
                                ? say_drift(r, t, i, rank, d)
                                : GR_OK;
            st = one ? one : st;
        }
    return st;
}

gr_status gr_run_end_check(gr_running *r, gr_diag *d)
{
    table t = {.n = r->checks.n + 1, .ranks = gr_comm_ranks(r->comms.own)};
    if (!r->checks.due) return GR_OK;
    gr_status st = fill(r, &t, d);
    if (!st) st = compare(r, &t, d);
    if (st)
        gr_diag_note(
            d, (gr_loc){0},
            "memory, a link or a device of that host may be faulty; nothing of this iteration is kept: go on "
            "from the last checkpoint, without it");
    release(&t);
    return st;
}
