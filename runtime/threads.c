/* runtime/threads.c: see runtime/threads.h.
 *
 * A run is announced by one more on the generation counter and ends when the count of busy workers is 0.
 * Both sides watch these atomics for a short while before they sleep: kernels come microseconds apart.
 */
#include "runtime/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { SPINS = 4000 }; /* some tens of microseconds */

struct worker {
    gr_team *team;
    unsigned rank;
    pthread_t thread;
};

struct gr_team {
    unsigned n, n_started;
    void (*fn)(void *arg, unsigned rank, unsigned n);
    void *arg;
    bool stop;              /* these three are published by generation */
    atomic_uint generation; /* changes under lock */
    atomic_uint busy;       /* workers that have not finished the run; reaches 0 under lock */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct worker *workers; /* [n - 1] */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void await_generation(gr_team *t, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&t->generation, memory_order_acquire) != seen) return;
        relax();
    }
    pthread_mutex_lock(&t->lock);
    while (atomic_load_explicit(&t->generation, memory_order_relaxed) == seen)
        pthread_cond_wait(&t->work, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    gr_team *t = w->team;
    for (unsigned seen = 0;; seen++) {
        await_generation(t, seen);
        if (t->stop) return NULL;
        t->fn(t->arg, w->rank, t->n);
        if (atomic_fetch_sub_explicit(&t->busy, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&t->lock);
            pthread_cond_signal(&t->done);
            pthread_mutex_unlock(&t->lock);
        }
    }
}

static void announce(gr_team *t)
{
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_release);
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
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
    for (unsigned i = 0; i + 1 < n; i++) {
        struct worker *w = &t->workers[i];
        *w = (struct worker){.team = t, .rank = i + 1};
        int err = pthread_create(&w->thread, NULL, worker_main, w);
        if (err) {
            gr_team_free(t);
            return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cannot start thread %u of %u: %s", i + 1, n,
                                 strerror(err));
        }
        t->n_started++;
    }
    *out = t;
    return GR_OK;
}

void gr_team_free(gr_team *t)
{
    if (!t) return;
    t->stop = true;
    announce(t);
    for (unsigned i = 0; i < t->n_started; i++) pthread_join(t->workers[i].thread, NULL);
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
    atomic_store_explicit(&t->busy, t->n - 1, memory_order_relaxed);
    announce(t);
    fn(arg, 0, t->n);
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
