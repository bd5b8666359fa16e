/* runtime/base/threads.c: see runtime/base/threads.h.
 *
 * The ranks of a run are handed out by a ticket: whoever is running takes the next one, the caller too. So a
 * worker that the system does not let run costs nothing: the caller does its part. The ticket holds the
 * number of the run, so that a late worker cannot take a rank of a run it has not seen begin. A run ends when
 * no rank is unfinished. Both sides watch the atomics for a short while before they sleep: kernels come
 * microseconds apart.
 */
#include "runtime/base/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SPINS = 4000 }; /* some tens of microseconds */

struct gr_team {
    unsigned n, n_started;
    void (*fn)(void *arg, unsigned rank, unsigned n);
    void *arg;               /* both are read by who has taken a rank */
    atomic_bool stop;        /* set before the last run is announced */
    _Atomic uint64_t ticket; /* number of the run << 32 | next rank; a new run begins under lock */
    atomic_uint busy;        /* ranks that are not finished; reaches 0 under lock */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    pthread_t *workers; /* [n - 1] */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t run_of(uint64_t ticket)
{
    return (uint32_t)(ticket >> 32);
}

/* The next rank of a run, or n where all are taken or the run is over. */
static unsigned take_rank(gr_team *t, uint32_t run)
{
    uint64_t ticket = atomic_load_explicit(&t->ticket, memory_order_acquire);
    do {
        if (run_of(ticket) != run || (uint32_t)ticket >= t->n) return t->n;
    } while (!atomic_compare_exchange_weak_explicit(&t->ticket, &ticket, ticket + 1, memory_order_acq_rel,
                                                    memory_order_acquire));
    return (uint32_t)ticket;
}

static void take_part(gr_team *t, uint32_t run)
{
    for (unsigned rank; (rank = take_rank(t, run)) < t->n;) {
        t->fn(t->arg, rank, t->n);
        if (atomic_fetch_sub_explicit(&t->busy, 1, memory_order_acq_rel) != 1) continue;
        pthread_mutex_lock(&t->lock);
        pthread_cond_signal(&t->done);
        pthread_mutex_unlock(&t->lock);
    }
}

/* The number of a run after `seen`. */
static uint32_t await_run(gr_team *t, uint32_t seen)
{
    uint32_t run;
    for (int i = 0; i < SPINS; i++) {
        run = run_of(atomic_load_explicit(&t->ticket, memory_order_acquire));
        if (run != seen) return run;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    while ((run = run_of(atomic_load_explicit(&t->ticket, memory_order_acquire))) == seen)
        pthread_cond_wait(&t->work, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return run;
}

static void *worker_main(void *arg)
{
    gr_team *t = arg;
    for (uint32_t run = 0;;) {
        run = await_run(t, run);
        if (atomic_load_explicit(&t->stop, memory_order_acquire)) return NULL;
        take_part(t, run);
    }
}

/* Begin a run; its number. */
static uint32_t announce(gr_team *t)
{
    pthread_mutex_lock(&t->lock);
    uint32_t run = run_of(atomic_load_explicit(&t->ticket, memory_order_relaxed)) + 1;
    atomic_store_explicit(&t->ticket, (uint64_t)run << 32, memory_order_release);
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    return run;
}

static void await_done(gr_team *t)
{
    for (int i = 0; i < SPINS; i++) {
        if (!atomic_load_explicit(&t->busy, memory_order_acquire)) return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    while (atomic_load_explicit(&t->busy, memory_order_acquire)) pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

gr_status gr_team_new(gr_team **out, unsigned n, gr_diag *d)
{
    gr_team *t = gr_calloc(1, sizeof(*t));
    t->n = n;
    t->workers = gr_calloc(n, sizeof(*t->workers));
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    for (; t->n_started + 1 < n; t->n_started++) {
        int err = pthread_create(&t->workers[t->n_started], NULL, worker_main, t);
        if (!err) continue;
        gr_status st = gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot start thread %u of %u: %s",
                                     t->n_started + 1, n, strerror(err));
        gr_team_free(t);
        return st;
    }
    *out = t;
    return GR_OK;
}

void gr_team_free(gr_team *t)
{
    if (!t) return;
    atomic_store_explicit(&t->stop, true, memory_order_release);
    announce(t);
    for (unsigned i = 0; i < t->n_started; i++) pthread_join(t->workers[i], NULL);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t->workers);
    free(t);
}

unsigned gr_team_size(const gr_team *t)
{
    return t ? t->n : 1;
}

void gr_team_run(gr_team *t, void (*fn)(void *arg, unsigned rank, unsigned n), void *arg)
{
    if (gr_team_size(t) == 1) {
        fn(arg, 0, 1);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    atomic_store_explicit(&t->busy, t->n, memory_order_relaxed);
    take_part(t, announce(t));
    await_done(t);
}

void gr_team_range(uint64_t n, uint64_t grain, unsigned rank, unsigned size, uint64_t *first, uint64_t *last)
{
    uint64_t units = (n + grain - 1) / grain;
    uint64_t a = units / size * rank + GR_MIN(units % size, rank);
    uint64_t b = a + units / size + (rank < units % size);
    *first = GR_MIN(a * grain, n);
    *last = GR_MIN(b * grain, n);
}
