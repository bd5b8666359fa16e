/* ops/serve/wire.c: see its header. */
#include "ops/serve/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/guard.h"

enum { START_MS = 60000, MOST_STARTS = 10, STARTS = MOST_STARTS + 1, LINE_SPARE = 1 << 20 };

struct gr_wire {
    gr_wire_config cfg;
    char *program, *host, *token;
    gr_guard guard;        /* pid 0: it does not run */
    int fd;                /* our end of its input and output */
    unsigned port, starts; /* starts: of the process, ever; each numbers its calls from 1 */
    gr_str in, out;        /* read and not yet a whole line; to be written */
};

gr_status gr_wire_program(char **out, gr_loc at, gr_diag *d)
{
    char *path = gr_program_beside("graphrun-httpd");
    if (access(path, X_OK)) {
        const gr_status st = gr_diag_error(
            d, at, GR_E_IO, "'serve' needs the program '%s', which is built where there is libmicrohttpd",
            path);
        free(path);
        return st;
    }
    *out = path;
    return GR_OK;
}

/* ---- the process ----------------------------------------------------------------------------------------
 */

static int spawn(gr_wire *w, int fd)
{
    char port[16], calls[16], body[32];
    snprintf(port, sizeof(port), "%u", w->port);
    snprintf(calls, sizeof(calls), "%u", w->cfg.calls);
    snprintf(body, sizeof(body), "%zu", w->cfg.body_bytes);
    const char *const argv[] = {w->program, "--host", w->host,  "--port", port,
                                "--calls",  calls,    "--body", body,     NULL};
    return gr_guard_start(&w->guard, &(gr_guarded){.argv = argv, .in = fd, .out = fd, .err = STDERR_FILENO});
}

static void end(gr_wire *w)
{
    if (!w->guard.pid) return;
    close(w->fd);
    const uint64_t until = gr_now_ns() + 1000000000; /* its input has ended, and so will it */
    while (waitpid(w->guard.pid, NULL, WNOHANG) == 0 && gr_now_ns() < until) poll(NULL, 0, 2);
    close(w->guard.leash);
    kill(w->guard.pid, SIGCONT);
    while (waitpid(w->guard.pid, NULL, 0) < 0 && errno == EINTR) {
    }
    w->guard.pid = 0;
    w->fd = -1;
    w->in.len = w->out.len = 0;
}

/* Read what there is. False: it has ended, or says more than it may. */
static bool read_more(gr_wire *w)
{
    char block[65536];
    for (;;) {
        const ssize_t got = recv(w->fd, block, sizeof(block), MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return true;
        if (got <= 0) return false;
        gr_str_add(&w->in, block, (size_t)got);
        if (w->in.len > (w->cfg.body_bytes + LINE_SPARE) * 2) return true; /* there is a line among it */
    }
}

/* The next whole line; NULL: there is none. */
static json_t *take_line(gr_wire *w)
{
    size_t from = 0, n;
    const char *text = gr_str_line(&w->in, &from, &n);
    if (!text) return NULL;
    json_t *line = json_loadb(text, n, 0, NULL);
    gr_str_drop(&w->in, from);
    return line ? line : json_object();
}

static void write_more(gr_wire *w)
{
    while (w->out.len) {
        const ssize_t put = send(w->fd, w->out.text, w->out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return; /* later, or its end is seen when it is read */
        gr_str_drop(&w->out, (size_t)put);
    }
}

static void write_line(gr_wire *w, json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);
    if (text) gr_str_printf(&w->out, "%s\n", text);
    free(text);
    json_decref(line);
    write_more(w);
}

/* Tell it the token, which no list of processes shows, and wait for the line that says where it listens. */
static bool hear_port(gr_wire *w)
{
    write_line(w, json_pack("{s:s}", "token", w->token));
    const uint64_t until = gr_now_ns() + START_MS * UINT64_C(1000000);
    json_t *line = NULL;
    bool runs = true;
    while (runs && !(line = take_line(w)) && gr_now_ns() < until) {
        poll(&(struct pollfd){w->fd, POLLIN, 0}, 1, 100);
        runs = read_more(w);
    }
    w->port = (unsigned)json_integer_value(json_object_get(line, "port"));
    json_decref(line);
    return w->port;
}

static gr_status start(gr_wire *w, gr_diag *d)
{
    const unsigned port = w->port;
    int fds[2];
    int err = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) ? errno : 0;
    if (!err) {
        err = spawn(w, fds[1]);
        close(fds[1]);
        if (err) close(fds[0]);
    }
    if (err)
        return gr_diag_error(d, w->cfg.at, GR_E_IO, "'serve': graphrun-httpd cannot be started: %s",
                             strerror(err));
    w->fd = fds[0];
    w->starts++;
    if (hear_port(w)) return GR_OK;
    end(w);
    w->port = port;
    return gr_diag_error(d, w->cfg.at, GR_E_IO, "'serve': graphrun-httpd does not listen on %s, port %u",
                         w->host, port);
}

gr_status gr_wire_open(gr_wire **out, const gr_wire_config *c, gr_diag *d)
{
    gr_wire *w = gr_calloc(1, sizeof(*w));
    w->cfg = *c;
    w->program = gr_strdup(c->program);
    w->host = gr_strdup(c->host);
    w->token = gr_strdup(c->token);
    w->port = c->port;
    w->fd = -1;
    const gr_status st = start(w, d);
    if (st)
        gr_wire_close(w);
    else
        *out = w;
    return st;
}

void gr_wire_close(gr_wire *w)
{
    if (!w) return;
    if (w->guard.pid) write_more(w);
    end(w);
    gr_str_release(&w->in);
    gr_str_release(&w->out);
    free(w->program);
    free(w->host);
    free(w->token);
    free(w);
}

unsigned gr_wire_port(const gr_wire *w)
{
    return w->port;
}

int gr_wire_fd(const gr_wire *w)
{
    return w->fd;
}

/* ---- calls ----------------------------------------------------------------------------------------------
 */

static gr_status start_again(gr_wire *w, gr_diag *d)
{
    end(w);
    if (w->starts >= MOST_STARTS)
        return gr_diag_error(d, w->cfg.at, GR_E_IO, "'serve': graphrun-httpd has ended %u times", w->starts);
    return start(w, d);
}

/* A call's number among those of all processes: what one that has ended was asked is not answered to another
 * one's caller. */
static json_t *take_call(gr_wire *w)
{
    json_t *call = take_line(w);
    const json_t *number = json_object_get(call, "call");
    if (number)
        json_object_set_new(call, "call", json_integer(json_integer_value(number) * STARTS + w->starts));
    return call;
}

gr_status gr_wire_next(gr_wire *w, json_t **call, gr_diag *d)
{
    write_more(w);
    *call = take_call(w);
    if (*call) return GR_OK;
    if (!read_more(w)) return start_again(w, d);
    *call = take_call(w);
    return GR_OK;
}

void gr_wire_answer(gr_wire *w, json_int_t call, unsigned status, const json_t *reply)
{
    if (call % STARTS != w->starts) return;
    write_line(w, json_pack("{s:I, s:i, s:O}", "call", call / STARTS, "status", (int)status, "reply", reply));
}
