/* tools/cmd.h: the sub-commands of graphrun. Each prints what it is asked for and returns the exit status: 0
 * done, 1 failed while running, 2 usage or invalid input, 3 does not fit. Messages go to d; main prints them.
 */
#ifndef GR_TOOLS_CMD_H
#define GR_TOOLS_CMD_H

#include "scheduler/search/planner.h"
#include "tools/args.h"

int gr_cmd_check(const gr_args *a, gr_diag *d);
int gr_cmd_plan(const gr_args *a, gr_diag *d);
int gr_cmd_sweep(const gr_args *a, gr_diag *d);   /* plan --sweep */
int gr_cmd_explore(const gr_args *a, gr_diag *d); /* plan --explore */
int gr_cmd_diff(const gr_args *a, gr_diag *d);
int gr_cmd_exec(const gr_args *a, gr_diag *d);
int gr_cmd_verify(const gr_args *a, gr_diag *d);
int gr_cmd_init(const gr_args *a, gr_diag *d);
int gr_cmd_export(const gr_args *a, gr_diag *d);
int gr_cmd_calibrate(const gr_args *a, gr_diag *d);
int gr_cmd_pack(const gr_args *a, gr_diag *d);
int gr_cmd_ops(const gr_args *a, gr_diag *d);
int gr_cmd_schema(const gr_args *a, gr_diag *d);
int gr_cmd_report(const gr_args *a, gr_diag *d);
int gr_cmd_watch(const gr_args *a, gr_diag *d);
int gr_cmd_audit(const gr_args *a, gr_diag *d);
int gr_cmd_serve(const gr_args *a, gr_diag *d);

/* The exit status of a library call. */
int gr_exit_status(gr_status st);

/* The same for what is done before anything runs: a file that cannot be read was named wrongly. */
int gr_exit_status_input(gr_status st);

/* Run this very command on so many ranks, by mpirun; returns its exit status. hosts: names with commas
 * between, `ranks` over all of them; NULL: this machine. run: the run directory, where it is known. */
int gr_cmd_launch(uint32_t ranks, const char *hosts, const char *run, gr_diag *d);
/* How many names. */
uint32_t gr_cmd_count_hosts(const char *hosts);
/* In a rank that was launched so: tell the launcher where this rank is, for what it says when the rank dies.
 * launched: before it joins the others; listens: once it has, and signals are caught. */
void gr_cmd_launched(void);
void gr_cmd_listens(uint32_t rank);

/* In the environment of a run under exec --restarts. What is exit status 1 for everybody else it tells by one
 * of its own where the run has diverged, and would do so again. */
#define GR_SUPERVISED    "GRAPHRUN_SUPERVISED"
#define GR_EXIT_DIVERGED 4

/* exec --restarts: run this very command without it, and go on with the run in the folder `run` while it
 * fails; returns its exit status. Signals are passed on. */
int gr_cmd_supervise(const gr_args *a, const char *run, gr_diag *d);

/* Print the messages of d to stderr, and empty it. before: of each line; NULL: nothing. */
void gr_cmd_say(gr_diag *d, const char *before);

/* Write s to path, or print it where that is NULL, and release it. Returns an exit status. */
int gr_cmd_finish(gr_str *s, const char *path, gr_diag *d);

#endif
