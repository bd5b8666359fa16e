/* tools/cmd.h: the sub-commands of graphrun. Each gets its own arguments, argv[0] being its name, prints, and
 * returns the exit status: 0 done, 1 failed while running, 2 usage or invalid input, 3 does not fit. */
#ifndef GR_TOOLS_CMD_H
#define GR_TOOLS_CMD_H

int gr_cmd_init(int argc, char **argv);
int gr_cmd_export(int argc, char **argv);

#endif
