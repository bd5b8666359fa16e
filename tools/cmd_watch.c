/* graphrun watch: hands over to graphrun-watch (tools/watch.c), a program of its own, so that graphrun itself
 * needs no HTTP library. */
#include "tools/cmd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/guard.h"

int gr_cmd_watch(const gr_args *a, gr_diag *d)
{
    char *path = gr_program_beside("graphrun-watch"), *port = gr_printf("%u", (unsigned)a->port);
    const char *argv[4 + GR_OPERANDS_MAX] = {"graphrun-watch", a->host ? a->host : "127.0.0.1", port};
    memcpy(argv + 3, a->operand, a->n_operands * sizeof(*argv));
    execv(path, (char **)(uintptr_t)argv);
    gr_diag_error(d, (gr_loc){0}, GR_E_IO,
                  "watch needs the program '%s', which is built where there is libmicrohttpd: %s", path,
                  strerror(errno));
    free(path);
    free(port);
    return 1;
}
