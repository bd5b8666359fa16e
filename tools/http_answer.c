/* tools/http_answer.c: see its header. */
#include "tools/http_answer.h"

#include <string.h>
#include <strings.h>
#include <sys/socket.h>

enum MHD_Result gr_http_send(struct MHD_Connection *c, unsigned status, const char *type, gr_str *text,
                             const gr_http_header *headers, size_t n)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(
        text->len, text->text ? text->text : gr_strdup(""), MHD_RESPMEM_MUST_FREE);
    if (!r) gr_str_release(text);
    *text = (gr_str){0};
    if (!r) return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    for (size_t i = 0; i < n; i++) MHD_add_response_header(r, headers[i][0], headers[i][1]);
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == MHD_HTTP_TOO_MANY_REQUESTS) MHD_add_response_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    const enum MHD_Result sent = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return sent;
}

const char *gr_http_bearer(struct MHD_Connection *c)
{
    static const char scheme[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    return given && !strncasecmp(given, scheme, strlen(scheme)) ? given + strlen(scheme) : NULL;
}

struct addrinfo *gr_http_address(const char *host, const char *port, const char **why)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    const int wrong = getaddrinfo(host, port, &hints, &found);
    *why = wrong ? gai_strerror(wrong) : NULL;
    return wrong ? NULL : found;
}

unsigned gr_http_port(struct MHD_Daemon *d)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(d, MHD_DAEMON_INFO_BIND_PORT);
    return info ? info->port : 0;
}
