/* runtime/api/engine.c: see its header. What is called when memory has run out takes none. */
#include "runtime/api/engine.h"

#include <signal.h>
#include <unistd.h>

static _Thread_local gr_engine *own;
static pthread_mutex_t run_lock = PTHREAD_MUTEX_INITIALIZER;
static gr_engine *run; /* guarded by run_lock */

static void move_to(gr_engine *e, gr_engine_at at)
{
    pthread_mutex_lock(&e->lock);
    if (e->at != GR_ENGINE_LOST) e->at = at;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Lanes and other threads of a run have no engine of their own. */
static void stop_here(void)
{
    gr_engine *e = own;
    if (!e) {
        pthread_mutex_lock(&run_lock);
        e = run;
        pthread_mutex_unlock(&run_lock);
    }
    if (e) move_to(e, GR_ENGINE_LOST);
    for (;;) pause();
}

__attribute__((constructor)) static void keep_the_program(void)
{
    gr_out_of_memory_set(stop_here);
}

static void *work(void *user)
{
    own = user;
    own->work(own->user);
    move_to(own, GR_ENGINE_ENDED);
    return NULL;
}

bool gr_engine_start(gr_engine *e, void (*fn)(void *user), void *user)
{
    sigset_t all, before;
    e->work = fn;
    e->user = user;
    e->at = GR_ENGINE_WORKS;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&e->thread, NULL, work, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !error;
}

gr_engine_at gr_engine_await(gr_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->at == GR_ENGINE_WORKS) pthread_cond_wait(&e->changed, &e->lock);
    const gr_engine_at at = e->at;
    pthread_mutex_unlock(&e->lock);
    return at;
}

void gr_engine_rest(gr_engine *e)
{
    move_to(e, GR_ENGINE_RESTS);
    pthread_mutex_lock(&e->lock);
    while (e->at != GR_ENGINE_WORKS) pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

void gr_engine_go(gr_engine *e)
{
    move_to(e, GR_ENGINE_WORKS);
}

void gr_engine_join(gr_engine *e)
{
    pthread_join(e->thread, NULL);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
}

bool gr_engine_take_run(gr_engine *e)
{
    pthread_mutex_lock(&run_lock);
    const bool free_now = !run;
    if (free_now) run = e;
    pthread_mutex_unlock(&run_lock);
    return free_now;
}

void gr_engine_drop_run(void)
{
    pthread_mutex_lock(&run_lock);
    run = NULL;
    pthread_mutex_unlock(&run_lock);
}
