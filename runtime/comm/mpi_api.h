/* runtime/comm/mpi_api.h: the few calls of MPI that runtime/comm/comm_mpi.c makes, as a table of functions.
 *
 * The table is all that the module graphrun_mpi.so exports: it alone is linked with libmpi and is loaded when
 * a run has several ranks. So the program itself needs no MPI, neither to start nor to run one rank, and
 * nothing of MPI's headers reaches it.
 *
 * Operations begin and are then tested until they are done. Functions that return a text return NULL when all
 * is well; texts stay as they are until the next call. Each group has one operation at a time. Threads: one
 * thread at a time.
 */
#ifndef GR_RUNTIME_COMM_MPI_API_H
#define GR_RUNTIME_COMM_MPI_API_H

#include <stdbool.h>
#include <stdint.h>

#define GR_MPI_API_VERSION 4
#define GR_MPI_API_SYMBOL  "gr_mpi_api_table"

typedef struct gr_mpi_group gr_mpi_group; /* ranks that speak to each other */

typedef struct gr_mpi_place { /* of this rank in a group */
    gr_mpi_group *group;
    int rank, ranks, local, locals; /* local: among the group's on this host */
    char host[64];
} gr_mpi_place;

typedef enum gr_mpi_reduction { GR_MPI_SUM_F64, GR_MPI_MAX_U8, GR_MPI_MAX_U64 } gr_mpi_reduction;

typedef struct gr_mpi_api {
    int version;
    const char *(*start)(gr_mpi_place *world); /* all ranks; stop ends it */
    void (*stop)(void);
    void (*abort)(int status);
    /* Those of a group that give the same color, which is not negative, ranked as they are in it. All of `of`
     * call it, and it waits for them. leave: by each when it is done with it. */
    const char *(*split)(gr_mpi_group *of, int color, gr_mpi_place *place);
    void (*leave)(gr_mpi_group *g);
    /* unit: bytes of an element, 1, 2, 4 or 8; counts and places are of elements, one a rank. Arrays stay
     * until the operation is done. */
    const char *(*all_gather)(gr_mpi_group *g, void *whole, const int *count, const int *place, int unit);
    const char *(*all_to_all)(gr_mpi_group *g, const void *from, const int *from_count, const int *from_place,
                              void *to, const int *to_count, const int *to_place, int unit);
    const char *(*all_reduce)(gr_mpi_group *g, void *x, int n, gr_mpi_reduction how);
    const char *(*broadcast)(gr_mpi_group *g, void *x, int bytes);
    const char *(*barrier)(gr_mpi_group *g);
    const char *(*send)(gr_mpi_group *g, const void *x, int bytes, int to);
    const char *(*recv)(gr_mpi_group *g, void *x, int bytes, int from);
    /* Messages: post copies x and sends it whenever the other takes it; message looks whether one has come,
     * and of how many bytes; take begins to receive it. */
    const char *(*post)(gr_mpi_group *g, const void *x, int bytes, int to);
    const char *(*message)(gr_mpi_group *g, int from, int *bytes, bool *came);
    const char *(*take)(gr_mpi_group *g, void *x, int bytes, int from);
    /* The operation that the group began: *done when it is. */
    const char *(*test)(gr_mpi_group *g, bool *done);
    /* Signs of life, beside everything else, of one length: to another rank of all, unless the last one to it
     * has not left yet; and from any: *from, -1 where none has come. */
    const char *(*beat)(const void *x, int bytes, int to);
    const char *(*heard)(void *x, int bytes, int *from);
} gr_mpi_api;

#endif
