/* ops/reward/command_files.h: which files a shell command names.
 *
 * The words of the command that are regular files here: as they stand, or after a `=` (--rules=FILE,
 * RULES=FILE); and of the words that are commands themselves the script that PATH has for them, which begins
 * with "#!". Quotes and backslashes are the shell's; a word after `>` is written to, and left out.
 * What the shell puts in place of a word ($HOME, *), and what a program finds by itself (a module that is
 * imported, a folder that was entered with cd), is not seen.
 */
#ifndef GR_OPS_REWARD_COMMAND_FILES_H
#define GR_OPS_REWARD_COMMAND_FILES_H

#include "runtime/io/inputs.h"

/* Call fn for each, once, in the order of the command. word: as the command names it; path: where it is. */
void gr_command_files(const char *command, void (*fn)(void *user, const char *word, const char *path),
                      void *user);

/* Add the files that a worker's command names as what `owner` has read. */
GR_NODISCARD gr_status gr_command_inputs(const char *command, const char *owner, gr_inputs *in, gr_diag *d);

#endif
