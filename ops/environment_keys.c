/* ops/environment_keys.c: what the map `environment` of a rollout says, and what does not go with it. */
#include "ops/environment_keys.h"

#include "ops/reward/http_command.h"

#include <stdlib.h>
#include <string.h>

static const char *const known[] = {"command", "http",    "function", "workers", "in_flight", "timeout",
                                    "retries", "metrics", "record",   "replay",  "opens",     NULL};

gr_status gr_map_text(const char **out, const gr_pair *p, gr_diag *d)
{
    if (p->value.kind != GR_VALUE_SCALAR || !*p->value.text)
        return gr_diag_error(d, p->value.at, GR_E_INVALID, "'%s' must be a text", p->key);
    *out = p->value.text;
    return GR_OK;
}

static gr_status read_url(const char **out, const gr_pair *p, gr_diag *d)
{
    const gr_status st = gr_map_text(out, p, d);
    const char *why = st ? NULL : gr_http_url_error(*out);
    return why ? gr_diag_error(d, p->value.at, GR_E_INVALID, "'%s': %s is no URL: %s", p->key, *out, why)
               : st;
}

gr_status gr_map_count(uint32_t *out, const gr_pair *p, uint32_t least, uint32_t most, gr_diag *d)
{
    const char *text = p->value.kind == GR_VALUE_SCALAR ? p->value.text : "";
    char *end = NULL;
    const unsigned long x = strtoul(text, &end, 10);
    if (end == text || *end || *text == '-' || x < least || x > most)
        return gr_diag_error(d, p->value.at, GR_E_INVALID, "'%s' must be a whole number from %u to %u",
                             p->key, least, most);
    *out = (uint32_t)x;
    return GR_OK;
}

/* Seconds: 10, 0.5 or 10s. */
static gr_status read_seconds(double *out, const gr_pair *p, gr_diag *d)
{
    const char *text = p->value.kind == GR_VALUE_SCALAR ? p->value.text : "";
    char *end = NULL;
    *out = strtod(text, &end);
    if (end != text && !strcmp(end, "s")) end++;
    if (end == text || *end || !(*out >= 0.001 && *out <= 86400))
        return gr_diag_error(d, p->value.at, GR_E_INVALID,
                             "'%s' must be a number of seconds from 0.001 to 86400, such as 10s", p->key);
    return GR_OK;
}

gr_status gr_map_flag(bool *out, const gr_pair *p, gr_diag *d)
{
    const char *text = p->value.kind == GR_VALUE_SCALAR ? p->value.text : "";
    *out = !strcmp(text, "true");
    if (*out || !strcmp(text, "false")) return GR_OK;
    return gr_diag_error(d, p->value.at, GR_E_INVALID, "'%s' must be true or false", p->key);
}

static bool is_name(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n && !text[n] && (*text < '0' || *text > '9');
}

/* What metrics.jsonl has of each conversation by itself. */
static const char *const counted[] = {"failed",       "turns_mean",   "decode_steps",
                                      "decode_batch", "decode_width", "read_tokens"};

static bool is_in(const char *const *list, size_t n, const char *text)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], text)) return true;
    return false;
}

static gr_status read_metrics(gr_texts *out, const gr_pair *p, const gr_node *n, gr_arena *arena, gr_diag *d)
{
    const gr_value *v = &p->value, *items = v->kind == GR_VALUE_LIST ? v->items : v;
    const size_t count = v->kind == GR_VALUE_LIST ? v->n : 1;
    const char **text = gr_arena_alloc(arena, GR_MAX(count, (size_t)1) * sizeof(*text));
    gr_status st = GR_OK;
    for (size_t i = 0; i < count; i++) {
        text[i] = items[i].kind == GR_VALUE_SCALAR ? items[i].text : "";
        bool own = is_in(counted, GR_LEN(counted), text[i]);
        for (const gr_field *f = n->op->fields; f->name; f++) own = own || !strcmp(f->name, text[i]);
        if (is_in(text, i, text[i]))
            st = gr_diag_error(d, items[i].at, GR_E_INVALID, "'%s' is there twice", text[i]);
        if (own || !is_name(text[i]))
            st = gr_diag_error(d, items[i].at, GR_E_INVALID,
                               own ? "'%s' is a value of each '%s' node: a metric needs another name"
                                   : "'%s' is no name of a metric of '%s': letters, digits and _",
                               text[i], n->op->name);
    }
    *out = (gr_texts){.text = text, .n = count};
    return st;
}

static gr_status read_pair(gr_environment_cfg *e, const gr_pair *p, const gr_node *n, gr_arena *arena,
                           gr_diag *d)
{
    if (!strcmp(p->key, "command")) return gr_map_text(&e->command, p, d);
    if (!strcmp(p->key, "http")) return read_url(&e->http, p, d);
    if (!strcmp(p->key, "function")) return gr_map_text(&e->function, p, d);
    if (!strcmp(p->key, "workers")) return gr_map_count(&e->workers, p, 1, 1024, d);
    if (!strcmp(p->key, "in_flight")) return gr_map_count(&e->in_flight, p, 1, 65536, d);
    if (!strcmp(p->key, "retries")) return gr_map_count(&e->retries, p, 0, 100, d);
    if (!strcmp(p->key, "timeout")) return read_seconds(&e->timeout, p, d);
    if (!strcmp(p->key, "metrics")) return read_metrics(&e->metrics, p, n, arena, d);
    if (!strcmp(p->key, "record")) return gr_map_text(&e->record, p, d);
    if (!strcmp(p->key, "replay")) return gr_map_text(&e->replay, p, d);
    if (!strcmp(p->key, "opens")) return gr_map_flag(&e->opens, p, d);
    const char *near = gr_near(p->key, known, GR_LEN(known) - 1);
    return gr_diag_error(d, p->at, GR_E_INVALID, "unknown key '%s' in environment%s%s%s", p->key,
                         near ? "; did you mean '"
                              : "; it has command, http, function, workers, in_flight, timeout, retries, "
                                "metrics, record, replay, opens",
                         near ? near : "", near ? "'?" : "");
}

static void check_alone(const gr_node *n, gr_diag *d)
{
    static const char *const keys[] = {"turns", "max_context"};
    for (size_t i = 0; i < GR_LEN(keys); i++)
        if (gr_value_get(n->value, keys[i]))
            gr_diag_error(d, gr_value_get(n->value, keys[i])->at, GR_E_INVALID,
                          "'%s' goes with 'environment', which answers the model's turns", keys[i]);
}

/* The prompt is made anew of the record, with what the environment says. */
static void check_opens(const gr_value *v, const gr_generate_cfg *c, gr_diag *d)
{
    const gr_loc at = gr_value_get(v, "opens")->at;
    const gr_data_cfg *prompts = c->prompts->cfg;
    if (c->endpoint)
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'opens' does not go with 'serve': the calls of a harness bring their messages and tools");
    else if (prompts->of)
        gr_diag_error(d, at, GR_E_INVALID,
                      "'opens' goes with prompts that are drawn: '%s' makes its own of the rows of '%s'",
                      c->prompts->name, c->prompts->of->name);
    else if (!prompts->template || strcmp(prompts->template, "chat"))
        gr_diag_error(
            d, at, GR_E_INVALID,
            "'opens' goes with prompts of 'template: chat': messages and tools are put into words by "
            "the chat template, and '%s' has another",
            c->prompts->name);
}

static void check_context(const gr_node *n, const gr_generate_cfg *c, gr_diag *d)
{
    const uint32_t prompt = c->prompts->bounds.prompt_tokens;
    if (!c->max_context)
        gr_diag_error(d, c->environment.at, GR_E_INVALID,
                      "'%s' needs 'max_context': the most tokens of a conversation, its prompt and what "
                      "the environment says included",
                      c->serve.open ? "serve" : "environment");
    else if (c->endpoint && c->max_context <= c->max_tokens)
        gr_diag_error(d, gr_value_get(n->value, "max_context")->at, GR_E_INVALID,
                      "max_context: %u holds no turn of %u tokens and what it answers", c->max_context,
                      c->max_tokens);
    else if (!c->endpoint && c->max_context < (uint64_t)prompt + c->max_tokens)
        gr_diag_error(d, gr_value_get(n->value, "max_context")->at, GR_E_INVALID,
                      "max_context: %u holds no prompt of %u tokens and one turn of %u", c->max_context,
                      prompt, c->max_tokens);
}

bool gr_environment_read(gr_generate_cfg *c, const gr_node *n, gr_arena *arena, gr_diag *d)
{
    const gr_value *v = c->answers;
    const size_t before = d->n_errors;
    gr_environment_cfg *e = &c->environment;
    *e = (gr_environment_cfg){0};
    if (c->serve.open) { /* who calls answers; a session that fails is its caller's */
        *e = (gr_environment_cfg){.at = c->endpoint->at, .timeout = 60};
        check_context(n, c, d);
        return d->n_errors == before;
    }
    if (!v) {
        check_alone(n, d);
        return false;
    }
    *e = (gr_environment_cfg){.at = v->at, .in_flight = 256, .retries = 1, .timeout = 60};
    for (size_t i = 0; v->kind == GR_VALUE_MAP && i < v->n; i++)
        (void)!read_pair(e, &v->pairs[i], n, arena, d);
    if (d->n_errors == before && !!e->command + !!e->http + !!e->function + !!e->replay != 1)
        gr_diag_error(d, v->at, GR_E_INVALID,
                      "'environment' is a map with 'command', whose processes answer, 'http', the URL of a "
                      "server that does, 'function', one of the program that runs the graph, or 'replay', a "
                      "file of their answers");
    else if (e->replay && e->record)
        gr_diag_error(d, v->at, GR_E_INVALID, "'record' goes with who answers, not with 'replay'");
    static const char *const of_processes[] = {"workers", "in_flight", "timeout"};
    for (size_t i = 0; e->function && i < GR_LEN(of_processes); i++)
        if (gr_value_get(v, of_processes[i]))
            gr_diag_error(d, gr_value_get(v, of_processes[i])->at, GR_E_INVALID,
                          "'%s' goes with 'command': a function is called with all messages there are",
                          of_processes[i]);
    if (e->http && e->workers)
        gr_diag_error(d, v->at, GR_E_INVALID, "'workers' goes with 'command': one process asks the server");
    if (!e->workers) e->workers = 1;
    if (e->opens) check_opens(v, c, d);
    check_context(n, c, d);
    return d->n_errors == before;
}
