/* tools/http_worker.c: graphrun-http, a worker whose answers come from a server.
 *
 * It speaks the protocol of workers (docs/ENVIRONMENTS.md): a JSON object a line comes in and is sent to one
 * URL by POST; what the server answers goes out as a line with the object's id. Many requests are open at
 * once. What goes wrong with one is an answer with `error`, and the others go on. A request that never
 * reached the server, or that it put off (429, 503), is sent again until its time is up; no other is, for the
 * server may have acted on it. GRAPHRUN_HTTP_TOKEN of the environment goes along as a bearer token.
 *
 * usage: graphrun-http [--timeout SECONDS] [--in-flight N] URL
 */
#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/base/visible.h"

enum { REPLY_BYTES = 4 << 20, FIRST_WAIT_MS = 100, LONGEST_WAIT_MS = 2000 };

typedef struct request {
    struct request *next; /* of those that wait to be sent again */
    CURL *easy;
    json_t *id;
    bool told; /* nobody waits for an answer */
    gr_str body, reply;
    bool too_long;   /* the reply */
    uint64_t due_ns; /* when its time is up */
    uint64_t again_ns;
    unsigned wait_ms; /* before it is sent again */
} request;

typedef struct client {
    const char *url;
    double timeout;
    CURLM *multi;
    struct curl_slist *headers;
    gr_str input;
    request *waiting;
    unsigned open; /* requests with an answer to come, and told ones */
} client;

/* ---- answers --------------------------------------------------------------------------------------------
 */

static void put_line(json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);
    if (text) puts(text);
    if (fflush(stdout)) exit(1);
    free(text);
    json_decref(line);
}

static void fail(const request *r, bool late, const char *why)
{
    if (r->told) return;
    json_t *line = json_pack("{s:O, s:s}", "id", r->id, "error", why);
    if (late) json_object_set_new(line, "late", json_true());
    put_line(line);
}

/* Of an answer with a status of success. */
static void pass_on(const request *r)
{
    if (r->told) return;
    json_error_t e = {0};
    json_t *reply =
        r->reply.len ? json_loadb(r->reply.text, r->reply.len, JSON_REJECT_DUPLICATES, &e) : json_object();
    const json_t *id = json_object_get(reply, "id");
    if (!json_is_object(reply) || (id && !json_equal(id, r->id))) {
        char *shown = gr_excerpt(r->reply.text, r->reply.len);
        char *why = !reply ? gr_printf("the server's reply is not JSON (%s): '%s'", e.text, shown)
                    : json_is_object(reply) ? gr_printf("the server's reply is to another 'id': '%s'", shown)
                                            : gr_printf("the server's reply is no object: '%s'", shown);
        fail(r, false, why);
        free(why);
        free(shown);
        json_decref(reply);
        return;
    }
    json_object_set(reply, "id", r->id);
    put_line(reply);
}

static void refuse(const request *r, long status)
{
    char *shown = gr_excerpt(r->reply.text, r->reply.len),
         *why = gr_printf("the server answers with status %ld: '%s'", status, shown);
    fail(r, false, why);
    free(why);
    free(shown);
}

/* ---- requests -------------------------------------------------------------------------------------------
 */

static size_t take_reply(char *bytes, size_t size, size_t n, void *user)
{
    request *r = user;
    r->too_long = r->reply.len + size * n > REPLY_BYTES;
    if (r->too_long) return 0;
    gr_str_add(&r->reply, bytes, size * n);
    return size * n;
}

static void release(client *c, request *r)
{
    curl_easy_cleanup(r->easy);
    json_decref(r->id);
    gr_str_release(&r->body);
    gr_str_release(&r->reply);
    free(r);
    c->open--;
}

static void give_up_late(const client *c, const request *r)
{
    char *why = gr_printf("no reply of %s within %g seconds", c->url, c->timeout);
    fail(r, true, why);
    free(why);
}

static void send_request(client *c, request *r)
{
    const uint64_t now = gr_now_ns();
    if (now >= r->due_ns) {
        give_up_late(c, r);
        release(c, r);
        return;
    }
    r->reply.len = 0;
    curl_easy_setopt(r->easy, CURLOPT_TIMEOUT_MS, (long)((r->due_ns - now) / 1000000 + 1));
    curl_multi_add_handle(c->multi, r->easy);
}

static void open_request(client *c, json_t *line, const char *text, size_t n)
{
    request *r = gr_calloc(1, sizeof(*r));
    const char *type = json_string_value(json_object_get(line, "type"));
    r->id = json_incref(json_object_get(line, "id"));
    r->told = type && !strcmp(type, "end");
    r->wait_ms = FIRST_WAIT_MS;
    r->due_ns = gr_now_ns() + (uint64_t)(c->timeout * 1e9);
    gr_str_add(&r->body, text, n);
    r->easy = curl_easy_init();
    if (!r->easy) {
        fputs("graphrun-http: out of memory\n", stderr);
        exit(1);
    }
    curl_easy_setopt(r->easy, CURLOPT_URL, c->url);
    curl_easy_setopt(r->easy, CURLOPT_PRIVATE, r);
    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
    curl_easy_setopt(r->easy, CURLOPT_POSTFIELDS, r->body.text);
    curl_easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, take_reply);
    curl_easy_setopt(r->easy, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(r->easy, CURLOPT_NOSIGNAL, 1L);
    c->open++;
    send_request(c, r);
}

/* Sent again later, where the server cannot have acted on it; else false. */
static bool put_off(client *c, request *r, CURLcode code, long status)
{
    const bool unsent = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST;
    if (!unsent && !(code == CURLE_OK && (status == 429 || status == 503))) return false;
    const uint64_t now = gr_now_ns();
    r->again_ns = now + r->wait_ms * 1000000ull;
    if (r->again_ns >= r->due_ns) return false; /* and why is told now */
    r->wait_ms = GR_MIN(2 * r->wait_ms, (unsigned)LONGEST_WAIT_MS);
    r->next = c->waiting;
    c->waiting = r;
    return true;
}

static void finish(client *c, request *r, CURLcode code)
{
    long status = 0;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_multi_remove_handle(c->multi, r->easy);
    if (put_off(c, r, code, status)) return;
    if (code == CURLE_OPERATION_TIMEDOUT) {
        give_up_late(c, r);
    } else if (code != CURLE_OK) {
        char *why = r->too_long ? gr_printf("the server's reply has more than %d MiB", REPLY_BYTES >> 20)
                                : gr_printf("%s: %s", c->url, curl_easy_strerror(code));
        fail(r, false, why);
        free(why);
    } else if (status < 200 || status > 299) {
        refuse(r, status);
    } else {
        pass_on(r);
    }
    release(c, r);
}

/* ---- the loop -------------------------------------------------------------------------------------------
 */

static void take_line(client *c, const char *text, size_t n)
{
    json_error_t e;
    json_t *line = json_loadb(text, n, 0, &e);
    if (!json_object_get(line, "id")) {
        char *shown = gr_excerpt(text, n);
        fprintf(stderr, "graphrun-http: no object with an 'id': %s\n", shown);
        free(shown);
        exit(1);
    }
    open_request(c, line, text, n);
    json_decref(line);
}

/* False: the input has ended. */
static bool read_input(client *c)
{
    char block[65536];
    const ssize_t got = read(STDIN_FILENO, block, sizeof(block));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got <= 0) return false;
    gr_str_add(&c->input, block, (size_t)got);
    size_t from = 0, n;
    for (const char *line; (line = gr_str_line(&c->input, &from, &n));) take_line(c, line, n);
    gr_str_drop(&c->input, from);
    return true;
}

/* Those whose time to be sent again has come. Returns the milliseconds until the next one's. */
static int send_waiting(client *c)
{
    const uint64_t now = gr_now_ns();
    uint64_t next = now + 1000000000;
    for (request **at = &c->waiting; *at;) {
        request *r = *at;
        if (r->again_ns > now) {
            next = GR_MIN(next, r->again_ns);
            at = &r->next;
            continue;
        }
        *at = r->next;
        send_request(c, r);
    }
    return (int)((next - now) / 1000000) + 1;
}

static void take_finished(client *c)
{
    int running = 0, left = 0;
    curl_multi_perform(c->multi, &running);
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));) {
        request *r = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &r);
        finish(c, r, code);
    }
}

/* Until the input has ended and all is answered. */
static void serve(client *c)
{
    for (bool more = true; more || c->open;) {
        take_finished(c);
        if (!more && !c->open) break;
        struct curl_waitfd in = {.fd = STDIN_FILENO, .events = CURL_WAIT_POLLIN};
        const int wait = send_waiting(c);
        if (curl_multi_poll(c->multi, &in, more, wait, NULL) != CURLM_OK) exit(1);
        if (more && in.revents) more = read_input(c);
    }
}

static struct curl_slist *headers(void)
{
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    const char *token = getenv("GRAPHRUN_HTTP_TOKEN");
    list = curl_slist_append(list, "Expect:"); /* no round trip before the body */
    if (!token || !*token) return list;
    char *line = gr_printf("Authorization: Bearer %s", token);
    list = curl_slist_append(list, line);
    free(line);
    return list;
}

static bool number(const char *text, double least, double most, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= least && *out <= most;
}

int main(int argc, char **argv)
{
    client c = {.timeout = 60};
    double at_once = 64;
    bool bad = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--timeout") && i + 1 < argc)
            bad = bad || !number(argv[++i], 0.001, 86400, &c.timeout);
        else if (!strcmp(argv[i], "--in-flight") && i + 1 < argc)
            bad = bad || !number(argv[++i], 1, 65536, &at_once);
        else if (*argv[i] == '-' || c.url)
            bad = true;
        else
            c.url = argv[i];
    }
    if (bad || !c.url) {
        fputs("usage: graphrun-http [--timeout SECONDS] [--in-flight N] URL\n", stderr);
        return 2;
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) || !(c.multi = curl_multi_init())) return 1;
    c.headers = headers();
    curl_multi_setopt(c.multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)at_once);
    curl_multi_setopt(c.multi, CURLMOPT_MAXCONNECTS, (long)at_once);
    serve(&c);
    curl_slist_free_all(c.headers);
    curl_multi_cleanup(c.multi);
    curl_global_cleanup();
    gr_str_release(&c.input);
    return 0;
}
