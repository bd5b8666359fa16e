/* ops/serve_keys.c: what the map `serve` of a rollout says, and what does not go with it. */
#include "ops/serve_keys.h"

#include <string.h>

#include "ops/environment_keys.h"

static const char *const known[] = {"port", "host", "token", "name", "calls", "body", "open", NULL};

static gr_status read_bytes(uint64_t *out, const gr_pair *p, gr_diag *d)
{
    const bool scalar = p->value.kind == GR_VALUE_SCALAR;
    if (scalar && gr_bytes_parse(p->value.text, out) && *out >= 1024 && *out <= 1u << 30) return GR_OK;
    return gr_diag_error(d, p->value.at, GR_E_INVALID, "'%s' must be a size from 1KiB to 1GiB, such as 4MiB",
                         p->key);
}

static gr_status read_token(const char **out, const gr_pair *p, gr_diag *d)
{
    const gr_status st = gr_map_text(out, p, d);
    if (st) return st;
    for (const char *c = *out; *c; c++)
        if (*c <= ' ' || *c > '~')
            return gr_diag_error(d, p->value.at, GR_E_INVALID,
                                 "'%s' goes into a header: it has no blanks and is ASCII", p->key);
    return GR_OK;
}

static gr_status read_pair(gr_serve_cfg *s, const gr_pair *p, gr_diag *d)
{
    if (!strcmp(p->key, "port")) return gr_map_count(&s->port, p, 0, 65535, d);
    if (!strcmp(p->key, "calls")) return gr_map_count(&s->calls, p, 1, 65536, d);
    if (!strcmp(p->key, "host")) return gr_map_text(&s->host, p, d);
    if (!strcmp(p->key, "name")) return gr_map_text(&s->name, p, d);
    if (!strcmp(p->key, "token")) return read_token(&s->token, p, d);
    if (!strcmp(p->key, "body")) return read_bytes(&s->body, p, d);
    if (!strcmp(p->key, "open")) return gr_map_flag(&s->open, p, d);
    const char *near = gr_near(p->key, known, GR_LEN(known) - 1);
    return gr_diag_error(d, p->at, GR_E_INVALID, "unknown key '%s' in serve%s%s%s", p->key,
                         near ? "; did you mean '" : "; it has port, host, token, name, calls, body, open",
                         near ? near : "", near ? "'?" : "");
}

bool gr_serve_read(gr_generate_cfg *c, const gr_node *n, gr_diag *d)
{
    const gr_value *v = c->endpoint;
    const size_t before = d->n_errors;
    c->serve = (gr_serve_cfg){0};
    if (!v) return false;
    c->serve = (gr_serve_cfg){.host = "127.0.0.1", .name = n->model->name, .calls = 256, .body = 4 << 20};
    if (v->kind != GR_VALUE_MAP && v->kind != GR_VALUE_NULL)
        gr_diag_error(d, v->at, GR_E_INVALID, "'serve' is a map, such as {port: 0}");
    for (size_t i = 0; v->kind == GR_VALUE_MAP && i < v->n; i++) (void)!read_pair(&c->serve, &v->pairs[i], d);
    if (!c->answers && !c->serve.open)
        gr_diag_error(d, v->at, GR_E_INVALID,
                      "'serve' needs 'environment': its processes are the harnesses that call");
    if (c->answers && c->serve.open)
        gr_diag_error(d, v->at, GR_E_INVALID,
                      "'open' of 'serve' does not go with 'environment': who calls begins the sessions");
    if (c->serve.open && n->timing.every)
        gr_diag_error(d, v->at, GR_E_INVALID,
                      "'open' of 'serve' is of no validation: it goes on until it is asked to stop");
    if (c->answers && c->answers->kind == GR_VALUE_MAP && gr_value_get(c->answers, "function"))
        gr_diag_error(d, v->at, GR_E_INVALID,
                      "'serve' needs an environment of processes ('command' or 'http'): a function is "
                      "called, and calls nobody");
    if (gr_node_keeps(n))
        gr_diag_error(d, v->at, GR_E_INVALID,
                      "'serve' does not go with 'over' or a 'lag' above 1: a session whose row is kept would "
                      "wait over the "
                      "update, beyond the calls that its harness waits for");
    return d->n_errors == before;
}
