/* ops/reward/http_command.h: servers in place of worker processes: the command of the process that asks one
 * (tools/http_worker.c).
 *
 * Threads: any.
 */
#ifndef GR_OPS_REWARD_HTTP_COMMAND_H
#define GR_OPS_REWARD_HTTP_COMMAND_H

#include "runtime/base/base.h"

/* NULL, or why `url` is none that a server can be asked at. */
const char *gr_http_url_error(const char *url);

/* The command that asks url, in *out to free(); timeout: seconds for one answer. GR_E_IO where graphrun-http
 * lies nowhere: it is built where there is libcurl. */
GR_NODISCARD gr_status gr_http_command(char **out, const char *url, double timeout, unsigned in_flight,
                                       gr_loc at, gr_diag *d);

/* What a pool waits longer for a reply than the process does for its server: so it is the process that says
 * which request is late, and the others go on. */
enum { GR_HTTP_GRACE_MS = 2000 };

#endif
