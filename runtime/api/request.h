/* runtime/api/request.h: what is asked for, of a graph: to check it, to plan it, to run it. The program
 * (tools/) and the library (runtime/api/graphrun.h) both ask so, and there is no other way.
 *
 * Settings that a request is given are texts as the command line has them, and messages call them as it does
 * (--budget).
 *
 *     request.c          the graph, what it is planned with, whether it is right
 *     request_plan.c     its plan: a new one, one of a file, or that of a run which goes on
 *     request_advice.c   what would fit, where nothing does
 *
 * Threads: any; a request is read alone.
 */
#ifndef GR_RUNTIME_API_REQUEST_H
#define GR_RUNTIME_API_REQUEST_H

#include "scheduler/search/planner.h"

/* What was not asked for is 0, NULL or false. All texts are the caller's. */
typedef struct gr_request {
    const char *graph; /* its file; of a text: what messages call it, and what paths in it are relative to */
    const char *text;  /* in place of the file's; NULL: the file is read */
    size_t text_bytes;
    const char **set; /* n_set times "key=value" */
    size_t n_set, cap_set;
    const char *ranks, *device, *hardware, *policy;
    uint64_t budget, host_budget; /* bytes; 0: not given ("max" too) */
    const char *disk;             /* "FOLDER:SIZE" of a disk for what memory has no room for */
    uint64_t steps, seed;
    bool has_steps, has_seed;
    const char *out, *plan;  /* run directory; file of a plan */
    const char *resume, *at; /* the folder of a run that goes on; the checkpoint, of RUN@AT; NULL: the last */
    bool replan, check_memory;
    unsigned threads; /* 0: as many as there are cores */
    bool follows;     /* it is of a rank behind the first, which makes and says what all have in common */
    bool grows;       /* more ranks and other machines are advised, too, where it does not fit */
} gr_request;

/* --ranks N or HxD, NULL: 1. hosts 0: N, as few hosts as the hardware allows. */
gr_status gr_request_ranks(const char *text, uint32_t *hosts, uint32_t *ranks, gr_diag *d);

/* Folder (the caller frees it) and bytes of a disk, of q->disk; NULL and 0: there is none. */
gr_status gr_request_disk(char **folder, uint64_t *bytes, const gr_request *q, gr_diag *d);

/* What a plan is made with: machine, budget, policy, threads. */
gr_status gr_request_options(gr_plan_options *o, const gr_request *q, gr_diag *d);

/* The graph, with what is set; --steps and --seed are settings of the graph. o: what it is planned with;
 * NULL: it is only checked, and goes without the models' shapes. */
gr_status gr_request_load(gr_graph **g, const gr_request *q, const gr_plan_options *o, gr_diag *d);

/* The graph, where it has no error, and files that it names and that are not here as warnings. */
gr_status gr_request_check(gr_graph **g, const gr_request *q, gr_diag *d);

/* Files that nodes will read and that are not here; returns how many. Warnings, for elsewhere they may be; of
 * a run that goes on (its folder) errors, which say how it is told where they are. */
size_t gr_request_files(const gr_graph *g, const char *run, gr_diag *d);

/* A new plan, with hints. *p is there also where it does not fit (GR_E_NOFIT), with advice in d. Graph and
 * options must outlive it. */
gr_status gr_request_plan(gr_planned **p, gr_graph **g, gr_plan_options *o, const gr_request *q, gr_diag *d);

/* After GR_E_NOFIT: adds to d the nearest changes of g's settings with which a plan fits; at most 32 plans
 * are made. */
void gr_request_advise(const gr_graph *g, const gr_request *q, const gr_plan_options *o, gr_diag *d);

/* ---- to run it ---- */

/* The file of a resumed run's own plan, where it is to be used; NULL: none. The caller frees it. */
char *gr_request_own_plan(const gr_request *q);

/* A run directory, made here, that nobody has: runs/NAME-TIME. What cannot be made is said by who opens it.
 * The caller frees it. */
char *gr_request_new_out(const gr_graph *g);

/* All that gr_run takes. */
typedef struct gr_prepared {
    gr_graph *g;
    gr_plan_options o;
    gr_planned *p;
    char *graph_path, *out; /* out: the run directory; "": the first rank has it */
    char *disk;             /* folder for state; NULL: none */
    bool has_step;          /* to go on from iteration `step` */
    uint64_t step;
} gr_prepared;

/* The plan is of a file, or a resumed run's own, or a new one: also where the run had other ranks, or pools.
 * A resumed run goes on in its own directory, from its own random state. Release x in any case. */
gr_status gr_request_prepare(gr_prepared *x, const gr_request *q, gr_diag *d);
void gr_prepared_release(gr_prepared *x);

#endif
