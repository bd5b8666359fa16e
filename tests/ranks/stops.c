/* Loaded into ranks (LD_PRELOAD): the rank of STOP_RANK stops itself, as by SIGSTOP, at the moment that
 * STOP_AT names: load, before main; init and finalize, in front of the two calls of MPI; in_init and
 * in_finalize, STOP_AFTER microseconds after they have begun; exit, behind main. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

SHOWN int MPI_Init_thread(int *argc, char ***argv, int wanted, int *given);
SHOWN int MPI_Finalize(void);

static void stop_at(const char *moment)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *who = getenv("STOP_RANK"), *when = getenv("STOP_AT");
    if (rank && who && when && !strcmp(rank, who) && !strcmp(when, moment)) kill(getpid(), SIGSTOP);
}

static void *stop_soon(void *moment)
{
    const char *after = getenv("STOP_AFTER");
    usleep(after ? (useconds_t)atoi(after) : 0);
    stop_at(moment);
    return NULL;
}

static void stop_within(const char *moment)
{
    pthread_t thread;
    if (!pthread_create(&thread, NULL, stop_soon, (void *)moment)) pthread_detach(thread);
}

/* MPI is loaded later than this library is. */
static void find(void *function, const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &found, sizeof(found)); /* ISO C has no conversion from one to the other */
}

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *given)
{
    int (*real)(int *, char ***, int, int *);
    find(&real, "PMPI_Init_thread");
    stop_at("init");
    stop_within("in_init");
    return real(argc, argv, wanted, given);
}

int MPI_Finalize(void)
{
    int (*real)(void);
    find(&real, "PMPI_Finalize");
    stop_at("finalize");
    stop_within("in_finalize");
    return real();
}

__attribute__((constructor)) static void on_load(void)
{
    stop_at("load");
}

__attribute__((destructor)) static void on_exit_(void)
{
    stop_at("exit");
}
