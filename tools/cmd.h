/* tools/cmd.h: the sub-commands of graphrun. Each prints what it is asked for and returns the exit status: 0
 * done, 1 failed while running, 2 usage or invalid input, 3 does not fit. Messages go to d; main prints them.
 */
#ifndef GR_TOOLS_CMD_H
#define GR_TOOLS_CMD_H

#include "tools/args.h"

int gr_cmd_check(const gr_args *a, gr_diag *d);
int gr_cmd_plan(const gr_args *a, gr_diag *d);
int gr_cmd_exec(const gr_args *a, gr_diag *d);
int gr_cmd_verify(const gr_args *a, gr_diag *d);
int gr_cmd_init(const gr_args *a, gr_diag *d);
int gr_cmd_export(const gr_args *a, gr_diag *d);
int gr_cmd_pack(const gr_args *a, gr_diag *d);
int gr_cmd_ops(const gr_args *a, gr_diag *d);
int gr_cmd_schema(const gr_args *a, gr_diag *d);
int gr_cmd_report(const gr_args *a, gr_diag *d);

/* The exit status of a library call. */
int gr_exit_status(gr_status st);

/* The same for what is done before anything runs: a file that cannot be read was named wrongly. */
int gr_exit_status_input(gr_status st);

#endif
