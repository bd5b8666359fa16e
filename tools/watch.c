/* tools/watch.c: graphrun-watch, which serves the page of runs (tools/run.html) while they go on.
 *
 *     GET /?token=T                              the page
 *     GET /data?run=N&metrics=PLACE&samples=PLACE  lines that came behind these places; a place is BYTES or
 * BYTES-MARK
 *     GET /responses?run=N&step=S                all responses of an iteration, of a run that keeps them
 *     GET /metrics                               the last iteration of each run, for Prometheus
 *
 * The page has the token in its address; whoever asks for the others sends it as `Authorization: Bearer T`. A
 * request names no file: runs are those that were given, by number. Nothing can be changed from outside. One
 * thread answers; it reads at most GR_PAGE_LINES_BYTES of a file at a time.
 *
 * usage: graphrun-watch ADDRESS PORT RUN...   (graphrun watch starts it so)
 */
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/secret.h"
#include "tools/http_answer.h"
#include "tools/run_page.h"

enum { CONNECTIONS = 32, PATIENCE = 30 /* seconds that a connection may be silent */ };

typedef struct server {
    const char *const *runs;
    size_t n_runs;
    char token[GR_SECRET_HEX];
} server;

/* ---- answers --------------------------------------------------------------------------------------------
 */

/* text is taken over. */
static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type, gr_str *text)
{
    static const gr_http_header headers[] = {
        {MHD_HTTP_HEADER_CACHE_CONTROL, "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
         "connect-src 'self'; img-src data:; frame-ancestors 'none'"},
    };
    return gr_http_send(c, status, type, text, headers, GR_LEN(headers));
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned status, const char *why)
{
    gr_str text = {0};
    gr_str_puts(&text, why);
    return answer(c, status, "text/plain; charset=utf-8", &text);
}

/* What went wrong with a run's files is said to who looks, and does not end us. */
static enum MHD_Result failed(struct MHD_Connection *c, const gr_diag *d)
{
    char *why = d->n ? gr_message_format(&d->messages[d->n - 1]) : gr_strdup("failed");
    const enum MHD_Result sent = refuse(c, MHD_HTTP_INTERNAL_SERVER_ERROR, why);
    free(why);
    return sent;
}

/* ---- requests -------------------------------------------------------------------------------------------
 */

static const char *argument(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, name);
}

static bool is_known(const server *s, struct MHD_Connection *c)
{
    const char *bearer = gr_http_bearer(c);
    return gr_secret_same(bearer ? bearer : argument(c, "token"), s->token);
}

/* "BYTES-MARK"; what is no such place is the start. */
static gr_page_place place_of(const char *text)
{
    gr_page_place at = {0};
    if (!text || sscanf(text, "%" SCNu64 "-%16[0-9a-f]", &at.to, at.mark) != 2) return (gr_page_place){0};
    return at;
}

static bool add_lines(json_t *all, const char *run, const char *key, const char *file, const char *from,
                      gr_diag *d)
{
    gr_page_place at = place_of(from);
    json_t *lines = gr_page_lines(run, file, &at, d);
    if (!lines) return false;
    char *place = gr_printf("%" PRIu64 "-%s", at.to, at.mark);
    json_object_set_new(all, key,
                        json_pack("{s:b, s:s, s:I, s:o}", "anew", !at.from, "to", place, "damaged",
                                  (json_int_t)at.damaged, "lines", lines));
    free(place);
    return true;
}

/* Takes all. */
static enum MHD_Result answer_json(struct MHD_Connection *c, json_t *all)
{
    char *text = json_dumps(all, JSON_COMPACT);
    gr_str body = {.text = text, .len = text ? strlen(text) : 0};
    json_decref(all);
    return answer(c, MHD_HTTP_OK, "application/json", &body);
}

/* NULL: there is none of the number that was asked for. */
static const char *run_asked(const server *s, struct MHD_Connection *c)
{
    const char *number = argument(c, "run");
    char *end = NULL;
    const unsigned long i = number ? strtoul(number, &end, 10) : s->n_runs;
    return i >= s->n_runs || *end ? NULL : s->runs[i];
}

static const char no_run[] = "'run' is not the number of a run";

static enum MHD_Result send_responses(const server *s, struct MHD_Connection *c)
{
    const char *run = run_asked(s, c), *step = argument(c, "step");
    uint64_t number = 0;
    int end = 0;
    if (!run) return refuse(c, MHD_HTTP_BAD_REQUEST, no_run);
    if (!step || sscanf(step, "%" SCNu64 "%n", &number, &end) != 1 || step[end])
        return refuse(c, MHD_HTTP_BAD_REQUEST, "'step' is not the number of an iteration");
    gr_diag d;
    gr_diag_init(&d);
    json_t *got = gr_page_responses(run, number, &d);
    const enum MHD_Result sent = got ? answer_json(c, got) : failed(c, &d);
    gr_diag_release(&d);
    return sent;
}

static enum MHD_Result send_data(const server *s, struct MHD_Connection *c)
{
    const char *run = run_asked(s, c);
    if (!run) return refuse(c, MHD_HTTP_BAD_REQUEST, no_run);
    gr_diag d;
    gr_diag_init(&d);
    json_t *all = json_object();
    const bool ok = add_lines(all, run, "metrics", "metrics.jsonl", argument(c, "metrics"), &d) &&
                    add_lines(all, run, "samples", "samples.jsonl", argument(c, "samples"), &d);
    json_object_set_new(all, "kept", gr_page_kept(run));
    const enum MHD_Result sent = ok ? answer_json(c, json_incref(all)) : failed(c, &d);
    json_decref(all);
    gr_diag_release(&d);
    return sent;
}

static enum MHD_Result send_page(const server *s, struct MHD_Connection *c)
{
    gr_str text = {0};
    gr_diag d;
    gr_diag_init(&d);
    const gr_status st = gr_page_runs(s->runs, s->n_runs, true, &text, &d);
    const enum MHD_Result sent =
        st ? failed(c, &d) : answer(c, MHD_HTTP_OK, "text/html; charset=utf-8", &text);
    gr_str_release(&text);
    gr_diag_release(&d);
    return sent;
}

static enum MHD_Result send_numbers(const server *s, struct MHD_Connection *c)
{
    gr_str text = {0};
    gr_diag d;
    gr_diag_init(&d);
    const gr_status st = gr_page_prometheus(s->runs, s->n_runs, &text, &d);
    const enum MHD_Result sent =
        st ? failed(c, &d) : answer(c, MHD_HTTP_OK, "text/plain; version=0.0.4", &text);
    gr_str_release(&text);
    gr_diag_release(&d);
    return sent;
}

static enum MHD_Result handle(void *user, struct MHD_Connection *c, const char *path, const char *method,
                              const char *version, const char *bytes, size_t *n, void **own)
{
    static const struct {
        const char *path;
        enum MHD_Result (*send)(const server *s, struct MHD_Connection *c);
    } pages[] = {
        {"/", send_page}, {"/data", send_data}, {"/responses", send_responses}, {"/metrics", send_numbers}};
    const server *s = user;
    (void)version, (void)bytes, (void)own;
    if (strcmp(method, MHD_HTTP_METHOD_GET) || *n)
        return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET is wanted");
    if (!is_known(s, c))
        return refuse(c, MHD_HTTP_UNAUTHORIZED, "the token that graphrun watch printed is wanted");
    for (size_t i = 0; i < GR_LEN(pages); i++)
        if (!strcmp(path, pages[i].path)) return pages[i].send(s, c);
    return refuse(c, MHD_HTTP_NOT_FOUND, "there is no such page");
}

/* ---- the server -----------------------------------------------------------------------------------------
 */

static struct MHD_Daemon *start(server *s, const char *host, const char *port, gr_diag *d)
{
    const char *why;
    struct addrinfo *at = gr_http_address(host, port, &why);
    if (!at) {
        gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--host '%s': %s", host, why);
        return NULL;
    }
    const unsigned flags =
        MHD_USE_AUTO_INTERNAL_THREAD | (at->ai_family == AF_INET6 ? MHD_USE_IPv6 : MHD_NO_FLAG);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        flags, (uint16_t)atoi(port), NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR, at->ai_addr,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)PATIENCE,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    freeaddrinfo(at);
    if (!daemon)
        gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot listen on %s, port %s: %s", host, port,
                      strerror(errno));
    return daemon;
}

/* Until somebody asks for the end. The signals are blocked in all threads. */
static void wait_for_end(const sigset_t *ends)
{
    int which;
    while (sigwait(ends, &which)) {
    }
}

static int serve(server *s, const char *host, const char *port, gr_diag *d)
{
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    gr_str page = {0};
    gr_status st =
        gr_page_runs(s->runs, s->n_runs, true, &page, d); /* a folder that is no run is said at once */
    gr_str_release(&page);
    if (st) return 2;
    if (gr_secret_new(s->token, d)) return 1;
    struct MHD_Daemon *daemon = start(s, host, port, d);
    if (!daemon) return 1;
    const bool six = strchr(host, ':') != NULL;
    printf("http://%s%s%s:%u/?token=%s\n", six ? "[" : "", host, six ? "]" : "", gr_http_port(daemon),
           s->token);
    if (!fflush(stdout)) wait_for_end(&ends);
    MHD_stop_daemon(daemon);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("usage: graphrun-watch ADDRESS PORT RUN...\n", stderr);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    gr_diag d;
    gr_diag_init(&d);
    server s = {.runs = (const char *const *)(argv + 3), .n_runs = (size_t)argc - 3};
    const int status = serve(&s, argv[1], argv[2], &d);
    for (size_t i = 0; i < d.n; i++) {
        char *text = gr_message_format(&d.messages[i]);
        fprintf(stderr, "%s\n", text);
        free(text);
    }
    gr_diag_release(&d);
    return status;
}
