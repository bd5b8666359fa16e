/* runtime/api/engine.h: a thread of the library that works while its caller waits, and rests while its caller
 * does not. Where memory runs out on it, or on a thread of the run, it stops where it is, for ever, and the
 * caller goes on: so a program is never ended by its library.
 *
 * Threads: one caller at a time.
 */
#ifndef GR_RUNTIME_API_ENGINE_H
#define GR_RUNTIME_API_ENGINE_H

#include <pthread.h>

#include "runtime/base/base.h"

typedef enum gr_engine_at { GR_ENGINE_WORKS, GR_ENGINE_RESTS, GR_ENGINE_ENDED, GR_ENGINE_LOST } gr_engine_at;

typedef struct gr_engine {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    gr_engine_at at; /* guarded by lock */
    void (*work)(void *user);
    void *user;
} gr_engine;

/* Begin work(user), on a thread that blocks all signals. false: there can be no thread. Memory of a lost
 * engine, and all that its work uses, must never be freed. */
bool gr_engine_start(gr_engine *e, void (*work)(void *user), void *user);
/* Wait while it works. */
gr_engine_at gr_engine_await(gr_engine *e);
/* On its own thread: rest until gr_engine_go. */
void gr_engine_rest(gr_engine *e);
/* Of one that rests. */
void gr_engine_go(gr_engine *e);
/* Of one that has ended. */
void gr_engine_join(gr_engine *e);

/* A run's threads are its engine's: one run at a time in a process. false: there is one. */
bool gr_engine_take_run(gr_engine *e);
void gr_engine_drop_run(void);

#endif
