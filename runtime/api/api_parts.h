/* runtime/api/api_parts.h: the parts of the library behind graphrun.h; private to runtime/api.
 *
 *     api.c       version, messages, check
 *     api_plan.c  plans
 *     api_run.c   runs
 *     api_calls.c functions and watches of the caller
 */
#ifndef GR_RUNTIME_API_API_PARTS_H
#define GR_RUNTIME_API_API_PARTS_H

#include "ops/base/functions.h"
#include "runtime/api/engine.h"
#include "runtime/api/graphrun.h"
#include "runtime/api/request.h"
#include "runtime/run/run.h"

/* ---- api.c ---- */

/* Before the first engine of a process: where the program graphrun is. */
void gr_api_begin(void);

/* An ask of this or an older size, as this one's, and as a request. GRAPHRUN_E_INVALID: of a size that is
 * none. */
graphrun_status gr_api_read_ask(graphrun_ask *out, const graphrun_ask *a, graphrun_log *l);
gr_request gr_api_request(const graphrun_ask *a);

/* Messages go to l, which may be NULL; d is then empty. On an engine's thread. */
void gr_api_take_messages(graphrun_log *l, gr_diag *d);

/* Do work(user) on an engine, and wait. GRAPHRUN_E_NOMEM: user is lost, and may not be freed. */
graphrun_status gr_api_do(void (*work)(void *user), void *user);

/* ---- api_calls.c ---- */

/* What a run calls of its caller. */
typedef struct gr_api_calls gr_api_calls;
gr_api_calls *gr_api_calls_new(const graphrun_ask *a);
void gr_api_calls_free(gr_api_calls *c);
const gr_functions *gr_api_calls_functions(const gr_api_calls *c);
const char *const *gr_api_calls_watched(const gr_api_calls *c, size_t *n);
gr_status gr_api_calls_saw(gr_api_calls *c, const gr_seen *seen, gr_diag *d);

#endif
