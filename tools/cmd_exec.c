/* graphrun exec: on one rank, or as one of the ranks that mpirun, srun or this program itself has started. */
#include "scheduler/search/meshes.h"
#include "tools/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "ops/model/checkpoint.h"
#include "runtime/base/limits.h"
#include "runtime/io/manifest.h"
#include "runtime/run/run.h"
#include "runtime/base/signals.h"
#include "runtime/base/files.h"
#include "graphs/loader/load.h"

/* ---- ranks together --------------------------------------------------------------------------------------
 */

/* How many ranks to start here: as asked, else as many as a resumed run had. */
static gr_status ranks_to_start(const gr_args *a, uint32_t *ranks, gr_diag *d)
{
    uint32_t hosts;
    gr_plan *plan = NULL;
    char *own = a->ask.ranks ? NULL : gr_request_own_plan(&a->ask);
    gr_status st = gr_request_ranks(a->ask.ranks, &hosts, ranks, d);
    uint32_t named = a->hosts ? gr_cmd_count_hosts(a->hosts) : 0;
    if (!st && a->hosts && hosts != named)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--hosts '%s' names %u hosts: --ranks %ux8, for one",
                           a->hosts, named, named);
    if (!st && hosts > 1 && !a->hosts)
        st = gr_diag_error(
            d, (gr_loc){0}, GR_E_INVALID,
            "--ranks %s: exec starts ranks on this host alone; of several hosts, --hosts, mpirun or srun "
            "starts them",
            a->ask.ranks);
    if (!st && own) st = gr_plan_read_json(&plan, own, d);
    if (plan) *ranks = GR_MAX(gr_plan_all_ranks(plan), 1u);
    gr_plan_free(plan);
    free(own);
    return st;
}

static void say_lost(const char *message)
{
    fprintf(stderr, "graphrun: error: %s\n", message);
}

/* What was asked for is what was started; as hosts by devices where each host has as many. Hosts by devices
 * that are asked for are taken as nodes: a node is a host, or an equal part of one. */
static gr_status name_ranks(gr_args *a, gr_comm *c, char text[32], gr_diag *d)
{
    uint32_t hosts, asked;
    bool even;
    gr_status st = gr_request_ranks(a->ask.ranks, &hosts, &asked, d);
    if (!st && a->ask.ranks && asked != c->ranks)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--ranks %s, but %u were started", a->ask.ranks,
                           c->ranks);
    gr_status same = gr_comm_same(c, c->locals, &even, d);
    even = even && c->ranks % c->locals == 0;
    uint32_t devices = even ? c->locals : 1;
    if (!st && hosts) devices = asked / hosts;
    if (!st && (even ? c->locals : 1) % devices)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--ranks %s, but %u ranks were started on this host",
                           a->ask.ranks, c->locals);
    snprintf(text, 32, "%ux%u", c->ranks / devices, devices);
    a->ask.ranks = text;
    return st ? st : same;
}

static void drop(gr_diag *d)
{
    gr_diag_release(d);
    gr_diag_init(d);
}

/* All ranks learn whether all are well; of those that are not the first one speaks, and of warnings rank 0.
 * The others' messages are dropped, which are the same, or follow from it. */
static gr_status meet(gr_comm *c, gr_status st, gr_diag *d)
{
    uint64_t first_failed = st ? c->ranks - c->rank : 0, status = st; /* the largest is of the least rank */
    gr_status failed = c ? gr_comm_agree(c, &first_failed, d) : GR_OK;
    if (!failed) failed = gr_comm_agree(c, &status, d);
    uint32_t speaker = first_failed ? c->ranks - (uint32_t)first_failed : 0;
    if (c->rank == speaker || (failed && st))
        gr_cmd_say(d, NULL);
    else
        drop(d);
    return failed ? failed : (gr_status)status;
}

/* Threads of this rank: cores that its launcher has bound it to are its own, cores that ranks of its host
 * have in common are divided. So is the time that a control group leaves them. */
static gr_status share_cores(gr_comm *c, unsigned *threads, gr_diag *d)
{
    gr_core_set *sets = gr_calloc(c->ranks, sizeof(*sets));
    sets[c->rank] = gr_core_set_own(XXH3_64bits(c->host, strlen(c->host)));
    gr_status st = c->type->host_reduce(c, sets, c->ranks * sizeof(*sets), GR_COMM_MAX_U8, d);
    unsigned share = st ? 0 : gr_core_sets_share(sets, c->ranks, c->rank);
    if (!share) share = gr_usable_cores() / c->locals;
    *threads = GR_MAX(GR_MIN(share, gr_group_cores("") / c->locals), 1u);
    free(sets);
    return st;
}

/* The hash of what each rank is about to run is the same. */
static gr_status compare_plans(gr_comm *c, const gr_plan *p, gr_diag *d)
{
    gr_str text = {0};
    bool same;
    gr_plan_write_json(p, &text);
    uint64_t own = XXH3_64bits(text.text, text.len), first = own;
    gr_str_release(&text);
    gr_status st = gr_comm_same(c, own, &same, d);
    if (st || same) return st;
    st = c->type->broadcast(c, &first, sizeof(first), d);
    if (st || own == first) return st;
    return gr_diag_error(
        d, (gr_loc){0}, GR_E_INVALID,
        "rank %u on host %s has another plan (%016llx) than rank 0 (%016llx): other options, "
        "another graph file, or another machine (--hardware FILE makes them alike)",
        c->rank, c->host, (unsigned long long)own, (unsigned long long)first);
}

/* The run directory is rank 0's: its name may hold the time. */
static gr_status share_out(gr_comm *c, char **out, gr_diag *d)
{
    char name[4096] = "";
    snprintf(name, sizeof(name), "%s", *out);
    gr_status st = c->type->broadcast(c, name, sizeof(name), d);
    free(*out);
    *out = gr_strdup(name);
    return st;
}

/* A rank that fails while running ends the others, which wait for it. What all ranks have found wrong rank 0
 * says at once, and its word ends the others before theirs. */
static void end_ranks(gr_comm *c, gr_status st, gr_diag *d)
{
    char *before = gr_printf("rank %u on host %s: ", c->rank, c->host);
    if (c->rank) sleep(2);
    gr_cmd_say(d, before);
    fflush(NULL);
    gr_comm_abort(c, gr_exit_status(st));
}

/* ---- exec ------------------------------------------------------------------------------------------------
 */

static void say(gr_diag *d)
{
    gr_cmd_say(d, NULL);
}

static gr_status run_graph(gr_prepared *x, const gr_args *a, gr_comm *c, gr_diag *d)
{
    gr_run_options run = {.out = x->out,
                          .resume = a->ask.resume != NULL,
                          .has_from = x->has_step,
                          .from = x->step,
                          .until = (uint32_t)GR_MIN(a->until, (uint64_t)UINT32_MAX),
                          .accept_changes = a->accept_changes,
                          .poison = a->ask.check_memory,
                          .disk = x->disk,
                          .threads = x->o.threads,
                          .progress = gr_comm_rank(c) ? NULL : stdout,
                          .say = gr_comm_rank(c) ? NULL : say,
                          .comm = c};
    gr_status st = gr_run(x->g, x->p, x->p->kernels, &run, d);
    if (!st && !gr_comm_rank(c)) printf("results are in %s\n", x->out);
    if (st && c) end_ranks(c, st, d);
    if (gr_comm_rank(c)) drop(d); /* rank 0 warns of the same */
    return st;
}

static int exec_one(gr_prepared *x, const gr_args *a, gr_diag *d)
{
    gr_status st = gr_request_prepare(x, &a->ask, d);
    if (st) return gr_exit_status_input(st);
    gr_signals_catch();
    gr_signals_say();
    return gr_exit_status(run_graph(x, a, NULL, d));
}

/* Messages are printed while all ranks are still there: a launcher ends them all when one ends badly. */
static int exec_many(gr_prepared *x, const gr_args *given, gr_comm *c, gr_diag *d)
{
    char ranks[32];
    gr_args a = *given;
    gr_cmd_listens(c->rank);
    bool sees_peers = gr_comm_take_device(c->local, c->locals);
    gr_status st = share_cores(c, &a.ask.threads, d);
    if (!st) st = name_ranks(&a, c, ranks, d);
    a.ask.follows = c->rank > 0;
    if (!st) st = gr_request_prepare(x, &a.ask, d);
    if (!st && !sees_peers && !strcmp(x->p->plan->device, "cuda"))
        gr_diag_warn(d, (gr_loc){0},
                     "each rank sees its own GPU alone (CUDA_VISIBLE_DEVICES=%s), so gathers will wait for "
                     "compute: let the launcher give every rank all GPUs of its host (srun: --gpus-per-node "
                     "in place of --gpus-per-task)",
                     getenv("CUDA_VISIBLE_DEVICES"));
    st = meet(c, st, d);
    if (st) return gr_exit_status_input(st);
    st = meet(c, compare_plans(c, x->p->plan, d), d);
    if (!st) st = meet(c, share_out(c, &x->out, d), d);
    if (!st) st = run_graph(x, &a, c, d);
    return gr_exit_status(st);
}

static int exec_from(const gr_args *a, gr_diag *d)
{
    bool started;
    uint32_t ranks = 1;
    gr_comm *c = NULL;
    gr_status st = gr_comm_started(&started, d);
    if (!st && !started) st = ranks_to_start(a, &ranks, d);
    if (st) return gr_exit_status_input(st);
    if (ranks > 1) return gr_cmd_launch(ranks, a->hosts, a->ask.resume ? a->ask.resume : a->ask.out, d);
    gr_prepared x = {0};
    if (started) {
        gr_signals_catch(); /* before a signal meant for the run can come */
        gr_cmd_launched();
        st = gr_comm_open_mpi(&c, say_lost, d);
    }
    int status = st ? gr_exit_status(st) : c ? exec_many(&x, a, c, d) : exec_one(&x, a, d);
    gr_comm_close(c); /* whose signs of life name steps of the plan */
    gr_prepared_release(&x);
    return status;
}

/* Where the run will be: its name is chosen here, so that it is known when it goes on. */
static gr_status choose_out(char **out, const gr_args *a, gr_diag *d)
{
    gr_graph *g = NULL;
    gr_status st = GR_OK;
    *out = a->ask.resume ? gr_strdup(a->ask.resume) : a->ask.out ? gr_strdup(a->ask.out) : NULL;
    if (!*out) st = gr_request_load(&g, &a->ask, NULL, d);
    if (!st && !*out) *out = gr_request_new_out(g);
    if (!st) drop(d); /* the run warns of it */
    gr_graph_free(g);
    return st;
}

static int exec_restarting(const gr_args *a, gr_diag *d)
{
    bool started;
    char *out = NULL;
    gr_status st = gr_comm_started(&started, d);
    if (!st && started)
        st = gr_diag_error(
            d, (gr_loc){0}, GR_E_INVALID,
            "--restarts is of an exec that starts its ranks itself (--ranks, --hosts): whoever has "
            "started this rank ends with it");
    if (!st) st = choose_out(&out, a, d);
    const int status = st ? gr_exit_status_input(st) : gr_cmd_supervise(a, out, d);
    free(out);
    return status;
}

int gr_cmd_exec(const gr_args *given, gr_diag *d)
{
    gr_args a = *given;
    char *run = a.ask.resume ? gr_checkpoint_run(a.ask.resume, &a.ask.at) : NULL;
    a.ask.resume = run;
    const int status = a.restarts ? exec_restarting(&a, d) : exec_from(&a, d);
    free(run);
    return status;
}
