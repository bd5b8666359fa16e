/* tools/http_answer.h: what programs that answer over libmicrohttpd share: bodies, tokens, addresses.
 *
 * Threads: any.
 */
#ifndef GR_TOOLS_HTTP_ANSWER_H
#define GR_TOOLS_HTTP_ANSWER_H

#include <microhttpd.h>
#include <netdb.h>

#include "runtime/base/base.h"

typedef const char *gr_http_header[2];

/* Answer with a text, which is taken over; headers: n of them beside the type, which may be NULL. Of 401 the
 * answer says that a token is wanted, of 429 that one may come again. */
enum MHD_Result gr_http_send(struct MHD_Connection *c, unsigned status, const char *type, gr_str *text,
                             const gr_http_header *headers, size_t n);

/* The token of `Authorization: Bearer`; NULL: there is none. */
const char *gr_http_bearer(struct MHD_Connection *c);

/* What to listen on, to freeaddrinfo(); NULL: there is no such address, and *why says so. */
struct addrinfo *gr_http_address(const char *host, const char *port, const char **why);
unsigned gr_http_port(struct MHD_Daemon *d); /* that it listens on; 0: unknown */

#endif
