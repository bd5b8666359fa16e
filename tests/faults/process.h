/* tests/faults/process.h: commands run in the folder `scratch`, their output in the files out and err beside
 * it.
 *
 * Each leads a process group of its own, of which nothing is left when it has ended. One at a time.
 */
#ifndef GR_TESTS_PROCESS_H
#define GR_TESTS_PROCESS_H

#include <stdbool.h>

__attribute__((format(printf, 1, 2))) char *text_of(const char *fmt, ...); /* a new text */

/* The status as waitpid gives it; -1: it did not end within a minute. prepare, which may be NULL, is called
 * in the child. */
int run_command(char *const command[], void (*prepare)(void *user), void *user);
int run_shell(const char *command);

bool has_message(void); /* whether err has text */
void show_begin(const char *path);

#endif
