/* tools/httpd.c: graphrun-httpd, the wire of a rollout that serves.
 *
 * It answers HTTP and knows nothing of models: whose calls may come in, how large and how many they are, and
 * how long they may take to arrive is settled here; each one that may goes out as a line, an object of JSON,
 * to the process that started it, and waits for the line that answers it.
 *
 *     out   {"port": 40123}                                                        once it listens
 *           {"call": 7, "method": "POST", "path": "/v1/x", "session"?: "...", "body"?: {...}}
 *     in    {"token": "..."}                                                       first: what callers must
 * bring
 *           {"call": 7, "status": 200, "reply": {...}}          or a list of events
 *
 * It ends with its input.
 *
 * usage: graphrun-httpd [--host ADDRESS] [--port N] [--calls N] [--body BYTES] [--patience SECONDS]
 */
#include <errno.h>
#include <jansson.h>
#include <microhttpd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/base/secret.h"
#include "tools/http_answer.h"

enum { PATH_BYTES = 512, SPARE_CONNECTIONS = 64, LINE_BYTES = 64 << 20 };

typedef struct call {
    struct call *next; /* of those that are open */
    uint64_t number;
    struct MHD_Connection *connection;
    uint64_t since_ns;
    gr_str body;
    bool open, suspended;
    unsigned status; /* of the answer; 0: none yet */
    json_t *reply;
} call;

typedef struct server {
    const char *host;
    char *token; /* NULL: still to come */
    unsigned port, calls, patience;
    size_t body;
    struct MHD_Daemon *daemon;
    call *open;
    unsigned n_open;
    uint64_t last; /* number of a call */
    gr_str input;
} server;

/* ---- answers --------------------------------------------------------------------------------------------
 */

static json_t *error_of(const char *code, const char *why)
{
    return json_pack("{s:{s:s, s:s, s:s}}", "error", "message", why, "type", "invalid_request_error", "code",
                     code);
}

/* Server-sent events, as clients of OpenAI read an answer that comes in chunks. */
static enum MHD_Result send_events(struct MHD_Connection *c, unsigned status, const json_t *events)
{
    static const gr_http_header now[] = {{MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache"}};
    gr_str text = {0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        char *event = json_dumps(json_array_get(events, i), JSON_COMPACT);
        if (event) gr_str_printf(&text, "data: %s\n\n", event);
        free(event);
    }
    gr_str_puts(&text, "data: [DONE]\n\n");
    return gr_http_send(c, status, "text/event-stream", &text, now, GR_LEN(now));
}

static enum MHD_Result send_reply(struct MHD_Connection *c, unsigned status, const json_t *reply)
{
    if (json_is_array(reply)) return send_events(c, status, reply);
    char *body = json_dumps(reply, JSON_COMPACT);
    gr_str text = {.text = body, .len = body ? strlen(body) : 0};
    return body ? gr_http_send(c, status, "application/json", &text, NULL, 0) : MHD_NO;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned status, const char *code, const char *why)
{
    json_t *reply = error_of(code, why);
    const enum MHD_Result sent = send_reply(c, status, reply);
    json_decref(reply);
    return sent;
}

/* ---- calls ----------------------------------------------------------------------------------------------
 */

static bool may_call(const server *s, struct MHD_Connection *c)
{
    return gr_secret_same(gr_http_bearer(c), s->token);
}

static bool too_long(const server *s, struct MHD_Connection *c)
{
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return length && strtoull(length, NULL, 10) > s->body;
}

/* What can be said of a call before its body has come. */
static enum MHD_Result begin(server *s, struct MHD_Connection *c, const char *path, const char *method,
                             void **own)
{
    if (!may_call(s, c))
        return refuse(c, MHD_HTTP_UNAUTHORIZED, "wrong_token",
                      "this server wants 'Authorization: Bearer' and its token");
    if (strcmp(method, MHD_HTTP_METHOD_POST) && strcmp(method, MHD_HTTP_METHOD_GET))
        return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "method", "GET or POST is wanted");
    if (strlen(path) > PATH_BYTES) return refuse(c, MHD_HTTP_URI_TOO_LONG, "path", "the path is too long");
    if (too_long(s, c))
        return refuse(c, MHD_HTTP_CONTENT_TOO_LARGE, "too_large", "the body is larger than 'body' allows");
    if (s->n_open >= s->calls)
        return refuse(c, MHD_HTTP_TOO_MANY_REQUESTS, "too_many_calls",
                      "as many calls as 'calls' allows are open: come again");
    call *k = gr_calloc(1, sizeof(*k));
    k->connection = c;
    k->since_ns = gr_now_ns();
    k->number = ++s->last;
    k->next = s->open;
    s->open = k;
    s->n_open++;
    *own = k;
    return MHD_YES;
}

/* One more piece of a body: what comes too slowly, or is more than was said, loses its connection. */
static enum MHD_Result take_piece(const server *s, call *k, const char *bytes, size_t n)
{
    const bool late = gr_now_ns() - k->since_ns > s->patience * UINT64_C(1000000000);
    if (late || k->body.len + n > s->body) return MHD_NO;
    gr_str_add(&k->body, bytes, n);
    return MHD_YES;
}

static void put_line(json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);
    if (text) puts(text);
    if (fflush(stdout)) exit(1);
    free(text);
    json_decref(line);
}

/* All of it is there: it goes out, and waits. */
static enum MHD_Result pass_on(call *k, const char *path, const char *method)
{
    json_error_t e = {0};
    const bool has = k->body.len, post = !strcmp(method, MHD_HTTP_METHOD_POST);
    json_t *body = has ? json_loadb(k->body.text, k->body.len, JSON_REJECT_DUPLICATES, &e) : NULL;
    if (post && !json_is_object(body)) {
        char *why = body || !has
                        ? gr_strdup("the body must be one object of JSON")
                        : gr_printf("the body is not JSON: line %d, column %d: %s", e.line, e.column, e.text);
        const enum MHD_Result sent = refuse(k->connection, MHD_HTTP_BAD_REQUEST, "not_json", why);
        json_decref(body);
        free(why);
        return sent;
    }
    const char *session = MHD_lookup_connection_value(k->connection, MHD_HEADER_KIND, "X-Session-ID");
    json_t *line =
        json_pack("{s:I, s:s, s:s}", "call", (json_int_t)k->number, "method", method, "path", path);
    if (line && session) json_object_set_new(line, "session", json_string(session));
    if (line && body) json_object_set(line, "body", body);
    json_decref(body);
    gr_str_release(&k->body);
    if (!line) return refuse(k->connection, MHD_HTTP_BAD_REQUEST, "path", "the path is no UTF-8");
    MHD_suspend_connection(k->connection);
    k->suspended = true;
    put_line(line);
    return MHD_YES;
}

static enum MHD_Result handle(void *user, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version, const char *bytes, size_t *n, void **own)
{
    server *s = user;
    call *k = *own;
    (void)version;
    if (!k) return begin(s, c, path, method, own);
    if (*n) {
        const enum MHD_Result taken = take_piece(s, k, bytes, *n);
        *n = 0;
        return taken;
    }
    if (k->status) return send_reply(c, k->status, k->reply);
    return pass_on(k, path, method);
}

static void forget(void *user, struct MHD_Connection *c, void **own, enum MHD_RequestTerminationCode why)
{
    server *s = user;
    call *k = *own;
    (void)c, (void)why;
    if (!k) return;
    call **at = &s->open;
    while (*at != k) at = &(*at)->next;
    *at = k->next;
    s->n_open--;
    json_decref(k->reply);
    gr_str_release(&k->body);
    free(k);
    *own = NULL;
}

/* ---- the loop -------------------------------------------------------------------------------------------
 */

static void take_line(server *s, const json_t *line)
{
    const json_t *number = json_object_get(line, "call");
    const char *token = json_string_value(json_object_get(line, "token"));
    if (!s->token && token) s->token = gr_strdup(token);
    for (call *k = s->open; k; k = k->next) {
        if (!k->suspended || (json_int_t)k->number != json_integer_value(number)) continue;
        k->status = (unsigned)json_integer_value(json_object_get(line, "status"));
        k->reply = json_incref(json_object_get(line, "reply"));
        k->suspended = false;
        MHD_resume_connection(k->connection);
        return;
    }
}

/* False: the input has ended. */
static bool read_input(server *s)
{
    char block[65536];
    const ssize_t got = read(STDIN_FILENO, block, sizeof(block));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got <= 0 || s->input.len > LINE_BYTES) return false;
    gr_str_add(&s->input, block, (size_t)got);
    size_t from = 0, n;
    for (const char *text; (text = gr_str_line(&s->input, &from, &n));) {
        json_t *line = json_loadb(text, n, 0, NULL);
        take_line(s, line);
        json_decref(line);
    }
    gr_str_drop(&s->input, from);
    return true;
}

static void serve(server *s)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (!info) return;
    struct pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {info->epoll_fd, POLLIN, 0}};
    for (bool more = true; more;) {
        MHD_UNSIGNED_LONG_LONG wait_ms = 0;
        const int wait =
            MHD_get_timeout(s->daemon, &wait_ms) == MHD_YES ? (int)GR_MIN(wait_ms, 1000ull) : 1000;
        poll(fds, GR_LEN(fds), wait);
        if (fds[0].revents) more = read_input(s);
        MHD_run(s->daemon);
    }
}

static struct addrinfo *address_of(const server *s)
{
    char port[16];
    const char *why;
    snprintf(port, sizeof(port), "%u", s->port);
    struct addrinfo *found = gr_http_address(s->host, port, &why);
    if (!found) fprintf(stderr, "graphrun-httpd: %s: %s\n", s->host, why);
    return found;
}

static bool open_daemon(server *s)
{
    struct addrinfo *at = address_of(s);
    if (!at) return false;
    const unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (at->ai_family == AF_INET6 ? MHD_USE_IPv6 : MHD_NO_FLAG);
    s->daemon = MHD_start_daemon(
        flags, (uint16_t)s->port, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR, at->ai_addr,
        MHD_OPTION_NOTIFY_COMPLETED, forget, s, MHD_OPTION_CONNECTION_LIMIT, s->calls + SPARE_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, s->patience, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    if (!s->daemon)
        fprintf(stderr, "graphrun-httpd: cannot listen on %s, port %u: %s\n", s->host, s->port,
                strerror(errno));
    freeaddrinfo(at);
    return s->daemon;
}

/* Those that still wait must not be suspended when the daemon stops. */
static void close_daemon(server *s)
{
    for (call *k = s->open; k; k = k->next) {
        if (!k->suspended) continue;
        k->suspended = false;
        k->status = MHD_HTTP_SERVICE_UNAVAILABLE;
        k->reply = error_of("closed", "the rollout has ended");
        MHD_resume_connection(k->connection);
    }
    for (int i = 0; i < 3; i++) MHD_run(s->daemon); /* what can be said is said */
    MHD_stop_daemon(s->daemon);
}

static bool number(const char *text, unsigned long most, unsigned long *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoul(text, &end, 10);
    return end != text && !*end && *text != '-' && !errno && *out <= most;
}

static bool read_option(server *s, const char *name, const char *value)
{
    unsigned long x = 0;
    if (!strcmp(name, "--host")) {
        s->host = value;
        return true;
    }
    if (!number(value, 1ul << 30, &x)) return false;
    if (!strcmp(name, "--port") && x < 65536)
        s->port = (unsigned)x;
    else if (!strcmp(name, "--calls") && x && x <= 65536)
        s->calls = (unsigned)x;
    else if (!strcmp(name, "--body") && x)
        s->body = x;
    else if (!strcmp(name, "--patience") && x && x <= 86400)
        s->patience = (unsigned)x;
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    server s = {.host = "127.0.0.1", .calls = 256, .body = 4 << 20, .patience = 30};
    bool bad = argc % 2 == 0;
    for (int i = 1; i + 1 < argc; i += 2) bad = bad || !read_option(&s, argv[i], argv[i + 1]);
    if (bad) {
        fputs("usage: graphrun-httpd [--host ADDRESS] [--port N] [--calls N] [--body BYTES] [--patience "
              "SECONDS]\n",
              stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    while (!s.token)
        if (!read_input(&s)) return 1;
    if (!*s.token || !open_daemon(&s)) return 1;
    put_line(json_pack("{s:i}", "port", (int)gr_http_port(s.daemon)));
    serve(&s);
    close_daemon(&s);
    gr_str_release(&s.input);
    free(s.token);
    return 0;
}
