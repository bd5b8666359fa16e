/* ops/rollout_served.c: a rollout that is served: its endpoint, and a session's turns (ops/serve/serve.h). */
#include "ops/rollout_impl.h"

#include "ops/base/functions.h"
#include "ops/encode.h"
#include "runtime/base/secret.h"

#include <stdlib.h>

struct gr_served {
    gr_serve *serve;
    gr_chat_template *chat;
    char *no_chat; /* why there is no template; NULL: there is */
    char *program, *token;
};

/* The graph's, that of GRAPHRUN_SERVE_TOKEN, or a new one; to free(). */
static gr_status token_of(const gr_serve_cfg *s, char **out, gr_diag *d)
{
    const char *own = getenv("GRAPHRUN_SERVE_TOKEN");
    char new[GR_SECRET_HEX];
    const bool given = s->token || (own && *own);
    const gr_status st = given ? GR_OK : gr_secret_new(new, d);
    if (!st) *out = gr_strdup(s->token ? s->token : given ? own : new);
    return st;
}

static gr_serve_rules rules_of(const gr_rollout *r)
{
    const gr_generate_cfg *c = r->cfg;
    const gr_stop_ids stop = gr_rollout_stop_ids(r->node);
    return (gr_serve_rules){.model = c->serve.name,
                            .temperature = c->temperature.value,
                            .top_p = c->top_p,
                            .top_k = c->top_k,
                            .stop = c->stop.text,
                            .n_stop = c->stop.n,
                            .stop_ids = stop.id,
                            .n_stop_ids = stop.n,
                            .ignore_eos = c->ignore_eos,
                            .max_tokens = c->max_tokens,
                            .max_context = c->max_context,
                            .turns = r->node->bounds.turns,
                            .vocab = gr_node_shape(r->node)->vocab};
}

/* Without a template that can be read, calls with messages are refused, with the reason. */
static void load_chat(struct gr_served *s, const char *folder)
{
    gr_diag d;
    gr_diag_init(&d);
    if (gr_chat_template_load(&s->chat, folder, &d)) s->no_chat = gr_strdup(d.n ? d.messages[0].text : "");
    gr_diag_release(&d);
}

gr_status gr_served_open(struct gr_served **out, const gr_rollout *r, gr_diag *d)
{
    const gr_serve_cfg *c = &r->cfg->serve;
    const gr_loc at = r->cfg->endpoint->at;
    struct gr_served *s = gr_calloc(1, sizeof(*s));
    *out = s;
    gr_status st = gr_wire_program(&s->program, at, d);
    if (!st) st = token_of(c, &s->token, d);
    const unsigned port = c->port ? c->port + r->session->rank : 0;
    if (!st && c->open && r->session->ranks > 1)
        st = gr_diag_error(d, at, GR_E_INVALID, "'open' of 'serve' is of one rank: its callers know one URL");
    if (!st && port > 65535)
        st = gr_diag_error(d, at, GR_E_INVALID, "port: rank %u would listen on %u", r->session->rank, port);
    if (st) return st;
    load_chat(s, r->node->model->files.folder);
    s->serve = gr_serve_new(&(gr_serve_config){.wire = {.program = s->program,
                                                        .host = c->host,
                                                        .token = s->token,
                                                        .port = port,
                                                        .calls = c->calls,
                                                        .body_bytes = c->body,
                                                        .at = at},
                                               .rules = rules_of(r),
                                               .tokenizer = gr_session_tokenizer(r->session, r->node),
                                               .chat = s->chat,
                                               .no_chat = s->no_chat,
                                               .date = gr_default_date,
                                               .sessions = r->node->bounds.seqs,
                                               .open = c->open});
    return GR_OK;
}

void gr_served_close(struct gr_served *s)
{
    if (!s) return;
    gr_serve_free(s->serve);
    gr_chat_template_free(s->chat);
    free(s->no_chat);
    free(s->token);
    free(s->program);
    free(s);
}

void gr_served_begin(struct gr_served *s, const gr_rollout *r)
{
    if (s) gr_serve_temperature(s->serve, gr_session_number(r->session, &r->cfg->temperature));
}

void gr_served_listens(const struct gr_served *s, const gr_rollout *r)
{
    const gr_functions *f = r->session->functions;
    if (!s || !r->cfg->serve.open || !f || !f->listens) return;
    char *url = gr_serve_url(s->serve);
    f->listens(f->user, url, s->token);
    free(url);
}

const gr_chat_template *gr_served_chat(const struct gr_served *s)
{
    return s ? s->chat : NULL;
}

gr_serve *gr_served_by(const struct gr_served *s)
{
    return s ? s->serve : NULL;
}

gr_stopped gr_served_stopped(const gr_rows *rows, uint32_t seq, gr_serve_end_reason refused)
{
    if (refused == GR_SERVE_ROOM || rows->truncated[seq]) return GR_STOPPED_TOKENS;
    return refused == GR_SERVE_TURNS ? GR_STOPPED_TURNS : GR_STOPPED_DONE;
}
