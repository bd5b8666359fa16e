/* runtime/comm/mpi_module.c: graphrun_mpi.so, see runtime/comm/mpi_api.h. */
#include "runtime/comm/mpi_api.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DATA_TAG = 1, BEAT_TAG = 2, MESSAGE_TAG = 3 };

struct message { /* on its way */
    struct message *next;
    MPI_Request request;
    char bytes[];
};

struct gr_mpi_group {
    MPI_Comm comm;
    MPI_Request current;
};

static gr_mpi_group world = {.current = MPI_REQUEST_NULL};
static MPI_Comm life; /* for signs of life */
static struct beat {
    MPI_Request leaving;
    char x[256];
} * beats; /* [n_beats], to each rank; there from start to stop */
static int n_beats;
static MPI_Request hearing = MPI_REQUEST_NULL;
static char beat_in[sizeof(((struct beat *)0)->x)], text[MPI_MAX_ERROR_STRING + 64];
static struct message *messages;

static const char *failed(int code, const char *what)
{
    char why[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (code == MPI_SUCCESS) return NULL;
    MPI_Error_string(code, why, &n);
    snprintf(text, sizeof(text), "%s: %s", what, why);
    return text;
}

static const char *find_place(gr_mpi_group *g, gr_mpi_place *w)
{
    MPI_Comm here;
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    w->group = g;
    MPI_Comm_rank(g->comm, &w->rank);
    MPI_Comm_size(g->comm, &w->ranks);
    int n = 0, code = MPI_Comm_split_type(g->comm, MPI_COMM_TYPE_SHARED, w->rank, MPI_INFO_NULL, &here);
    if (code) return failed(code, "MPI_Comm_split_type");
    MPI_Comm_rank(here, &w->local);
    MPI_Comm_size(here, &w->locals);
    MPI_Comm_free(&here);
    MPI_Get_processor_name(name, &n);
    snprintf(w->host, sizeof(w->host), "%.*s", (int)sizeof(w->host) - 1, name);
    return NULL;
}

static const char *start(gr_mpi_place *w)
{
    int given, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
    if (code) return failed(code, "MPI_Init_thread");
    if (given < MPI_THREAD_SERIALIZED) return "this MPI lets no thread but the first call it";
    code = MPI_Comm_dup(MPI_COMM_WORLD, &world.comm);
    if (!code) code = MPI_Comm_dup(MPI_COMM_WORLD, &life);
    if (code) return failed(code, "MPI_Comm_dup");
    MPI_Comm_set_errhandler(world.comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(life, MPI_ERRORS_RETURN);
    MPI_Comm_size(life, &n_beats);
    beats = calloc((size_t)n_beats, sizeof(*beats));
    if (!beats) return "out of host memory";
    for (int r = 0; r < n_beats; r++) beats[r].leaving = MPI_REQUEST_NULL;
    return find_place(&world, w);
}

/* Free the messages that have been sent. */
static void forget_messages(void)
{
    for (struct message **at = &messages, *l; (l = *at);) {
        int left = 0;
        MPI_Test(&l->request, &left, MPI_STATUS_IGNORE);
        if (!left) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
}

static void stop(void)
{
    if (hearing != MPI_REQUEST_NULL) {
        MPI_Cancel(&hearing);
        MPI_Wait(&hearing, MPI_STATUS_IGNORE);
    }
    for (int r = 0; r < n_beats; r++)
        if (beats[r].leaving != MPI_REQUEST_NULL) MPI_Request_free(&beats[r].leaving);
    forget_messages(); /* all have been taken, unless the run has failed */
    MPI_Comm_free(&life);
    MPI_Comm_free(&world.comm);
    MPI_Finalize(); /* by then every sign has left */
    free(beats);
}

static void end_all(int status)
{
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void leave(gr_mpi_group *g)
{
    MPI_Comm_free(&g->comm);
    free(g);
}

static const char *split(gr_mpi_group *of, int color, gr_mpi_place *place)
{
    gr_mpi_group *g = malloc(sizeof(*g));
    if (!g) return "out of host memory";
    g->current = MPI_REQUEST_NULL;
    int code = MPI_Comm_split(of->comm, color, 0, &g->comm); /* equal keys: ranked as they were */
    if (code) {
        free(g);
        return failed(code, "MPI_Comm_split");
    }
    const char *why = find_place(g, place);
    if (why) leave(g);
    return why;
}

static MPI_Datatype type_of(int unit)
{
    return unit == 8 ? MPI_UINT64_T : unit == 4 ? MPI_UINT32_T : unit == 2 ? MPI_UINT16_T : MPI_UINT8_T;
}

static const char *all_gather(gr_mpi_group *g, void *whole, const int *count, const int *place, int unit)
{
    return failed(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, whole, count, place, type_of(unit),
                                  g->comm, &g->current),
                  "MPI_Iallgatherv");
}

static const char *all_to_all(gr_mpi_group *g, const void *from, const int *from_count, const int *from_place,
                              void *to, const int *to_count, const int *to_place, int unit)
{
    return failed(MPI_Ialltoallv(from, from_count, from_place, type_of(unit), to, to_count, to_place,
                                 type_of(unit), g->comm, &g->current),
                  "MPI_Ialltoallv");
}

static const char *all_reduce(gr_mpi_group *g, void *x, int n, gr_mpi_reduction how)
{
    MPI_Datatype type = how == GR_MPI_SUM_F64  ? MPI_DOUBLE
                        : how == GR_MPI_MAX_U8 ? MPI_UINT8_T
                                               : MPI_UINT64_T;
    return failed(MPI_Iallreduce(MPI_IN_PLACE, x, n, type, how == GR_MPI_SUM_F64 ? MPI_SUM : MPI_MAX, g->comm,
                                 &g->current),
                  "MPI_Iallreduce");
}

static const char *broadcast(gr_mpi_group *g, void *x, int bytes)
{
    return failed(MPI_Ibcast(x, bytes, MPI_BYTE, 0, g->comm, &g->current), "MPI_Ibcast");
}

static const char *barrier(gr_mpi_group *g)
{
    return failed(MPI_Ibarrier(g->comm, &g->current), "MPI_Ibarrier");
}

static const char *send_to(gr_mpi_group *g, const void *x, int bytes, int to)
{
    return failed(MPI_Isend(x, bytes, MPI_BYTE, to, DATA_TAG, g->comm, &g->current), "MPI_Isend");
}

static const char *recv_from(gr_mpi_group *g, void *x, int bytes, int from)
{
    return failed(MPI_Irecv(x, bytes, MPI_BYTE, from, DATA_TAG, g->comm, &g->current), "MPI_Irecv");
}

static const char *post(gr_mpi_group *g, const void *x, int bytes, int to)
{
    struct message *l = malloc(sizeof(*l) + (size_t)bytes);
    forget_messages();
    if (!l) return "out of host memory";
    memcpy(l->bytes, x, (size_t)bytes);
    const char *why =
        failed(MPI_Isend(l->bytes, bytes, MPI_BYTE, to, MESSAGE_TAG, g->comm, &l->request), "MPI_Isend");
    if (why) {
        free(l);
        return why;
    }
    l->next = messages;
    messages = l;
    return NULL;
}

static const char *message(gr_mpi_group *g, int from, int *bytes, bool *came)
{
    MPI_Status status;
    int flag = 0;
    const char *why = failed(MPI_Iprobe(from, MESSAGE_TAG, g->comm, &flag, &status), "MPI_Iprobe");
    *came = !why && flag;
    if (*came) MPI_Get_count(&status, MPI_BYTE, bytes);
    return why;
}

static const char *take(gr_mpi_group *g, void *x, int bytes, int from)
{
    return failed(MPI_Irecv(x, bytes, MPI_BYTE, from, MESSAGE_TAG, g->comm, &g->current), "MPI_Irecv");
}

static const char *test(gr_mpi_group *g, bool *done)
{
    int flag = 0;
    const char *why = failed(MPI_Test(&g->current, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    *done = flag;
    return why;
}

static const char *beat(const void *x, int bytes, int to)
{
    int left = 1;
    struct beat *b = &beats[to];
    if (bytes > (int)sizeof(b->x)) return "a sign of life is too long";
    if (b->leaving != MPI_REQUEST_NULL) MPI_Test(&b->leaving, &left, MPI_STATUS_IGNORE);
    if (!left) return NULL;
    memcpy(b->x, x, (size_t)bytes);
    return failed(MPI_Isend(b->x, bytes, MPI_BYTE, to, BEAT_TAG, life, &b->leaving), "MPI_Isend");
}

static const char *heard(void *x, int bytes, int *from)
{
    int came = 0;
    const char *why = NULL;
    MPI_Status status;
    *from = -1;
    if (bytes > (int)sizeof(beat_in)) return "a sign of life is too long";
    if (hearing == MPI_REQUEST_NULL)
        why = failed(MPI_Irecv(beat_in, bytes, MPI_BYTE, MPI_ANY_SOURCE, BEAT_TAG, life, &hearing),
                     "MPI_Irecv");
    if (!why) why = failed(MPI_Test(&hearing, &came, &status), "MPI_Test");
    if (why || !came) return why;
    memcpy(x, beat_in, (size_t)bytes);
    *from = status.MPI_SOURCE;
    return NULL;
}

extern const gr_mpi_api gr_mpi_api_table;
__attribute__((visibility("default"))) const gr_mpi_api gr_mpi_api_table = {
    .version = GR_MPI_API_VERSION,
    .start = start,
    .stop = stop,
    .abort = end_all,
    .split = split,
    .leave = leave,
    .all_gather = all_gather,
    .all_to_all = all_to_all,
    .all_reduce = all_reduce,
    .broadcast = broadcast,
    .barrier = barrier,
    .send = send_to,
    .recv = recv_from,
    .post = post,
    .message = message,
    .take = take,
    .test = test,
    .beat = beat,
    .heard = heard,
};
