/* tools/args.h: the commands of graphrun and their options, from one table (tools/args.c): parsing, --help,
 * the man page and shell completion are made from it, so that they never disagree.
 */
#ifndef GR_TOOLS_ARGS_H
#define GR_TOOLS_ARGS_H

#include "runtime/api/request.h"

#define GR_OPERANDS_MAX 8

/* What was given; what was not is 0, NULL or false. Texts point into argv. */
typedef struct gr_args {
    const char *command;                  /* as in the table */
    const char *operand[GR_OPERANDS_MAX]; /* GRAPH, PLAN.json, RUN, ... in order; as many as it takes */
    size_t n_operands;
    gr_request ask;    /* of a graph */
    const char **from; /* n_from runs */
    size_t n_from, cap_from;
    const char *hosts, *format, *sweep, *host;
    const char *config, *tokenizer, *model, *dtype, *shard, *mtp;
    uint64_t capacity; /* bytes; 0: not given */
    uint64_t until, restarts, port;
    bool explain, explore, accept_changes, merge, help;
} gr_args;

/* Parse the arguments of a program: argv[1] is a command, the rest its own. Options may stand anywhere, as
 * --name VALUE or --name=VALUE; -- ends them. GR_E_INVALID with a message for each error; then and otherwise
 * gr_args_release frees. help is set for --help and for `graphrun help`; command is then NULL for the whole.
 */
GR_NODISCARD gr_status gr_args_parse(gr_args *a, int argc, char **argv, gr_diag *d);
void gr_args_release(gr_args *a);

/* The text of --help, of all (command NULL) or of one command. */
void gr_args_help(const char *command, gr_str *out);
void gr_args_man(gr_str *out); /* docs/graphrun.1 */
/* tools/completion.SHELL, of bash, zsh or fish; false: of no other. */
bool gr_args_completion(const char *shell, gr_str *out);

#endif
