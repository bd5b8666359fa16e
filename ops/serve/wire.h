/* ops/serve/wire.h: the process that takes calls over HTTP (tools/httpd.c), and the lines that it exchanges
 * with us.
 *
 * The process settles what needs no model: the token, and how large, how many and how slow calls may be. A
 * call that may come in is a line, and waits until a line answers it.
 *
 * Threads: a wire belongs to one thread at a time.
 */
#ifndef GR_OPS_SERVE_WIRE_H
#define GR_OPS_SERVE_WIRE_H

#include <jansson.h>

#include "runtime/base/base.h"

typedef struct gr_wire_config {
    const char *program; /* gr_wire_program */
    const char *host;
    const char *token;
    unsigned port;     /* 0: a free one */
    unsigned calls;    /* open at once */
    size_t body_bytes; /* of one call */
    gr_loc at;
} gr_wire_config;

typedef struct gr_wire gr_wire;

/* The program, in *out to free(), found once: while a run goes on this one may be replaced. GR_E_IO where it
 * lies nowhere: it is built where there is libmicrohttpd. */
GR_NODISCARD gr_status gr_wire_program(char **out, gr_loc at, gr_diag *d);

/* Start the process and wait until it listens. GR_E_IO. */
GR_NODISCARD gr_status gr_wire_open(gr_wire **out, const gr_wire_config *c, gr_diag *d);
void gr_wire_close(gr_wire *w); /* calls that are open are told so. NULL is fine */

unsigned gr_wire_port(const gr_wire *w); /* that it listens on */
int gr_wire_fd(const gr_wire *w);        /* readable when a call has come */

/* The next call, or NULL where none is there; the caller frees it. Never blocks. A process that has ended is
 * started again, on the same port: whoever waited for an answer of it sees a connection that broke. GR_E_IO
 * where it ends again and again. */
GR_NODISCARD gr_status gr_wire_next(gr_wire *w, json_t **call, gr_diag *d);

/* Answer call number `call`. reply: read during the call; a list is sent as server-sent events, one each.
 * Never blocks. */
void gr_wire_answer(gr_wire *w, json_int_t call, unsigned status, const json_t *reply);

#endif
