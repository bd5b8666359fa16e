/* graphrun serve: the endpoint of a rollout that serves, over a checkpoint and without a graph of one's own.
 *
 * It runs a graph that is written here: rows that wait for callers, and a rollout whose endpoint is open. So
 * it is planned as any graph is, prints that plan, and never takes more memory than it says.
 */
#include "tools/cmd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/base/functions.h"
#include "ops/model/checkpoint.h"
#include "ops/model/peft.h"
#include "runtime/base/files.h"
#include "runtime/base/signals.h"
#include "runtime/run/run.h"
#include "scheduler/report/report.h"

/* A session's record is its number; nothing reads it but `prompts`, which needs one for each row. */
static const char graph[] =
    "graph: serve\n"
    "params: {sessions: 64, turns: 64, max_tokens: 1024, max_context: 4096, temperature: 1, top_p: 1, top_k: "
    "0, "
    "calls: 256, body: 4MiB}\n"
    "models: {%s: {checkpoint: \"%s\"}}\n"
    "nodes:\n"
    "  rows: {op: prompts, command: 'seq -f ''{\"row\": \"%%.0f\"}'' $sessions', batch: $sessions, "
    "shuffle: false, template: \"{row}\", max_tokens: 32}\n"
    "  rollout:\n"
    "    op: generate\n"
    "    model: %s\n"
    "    prompts: rows\n"
    "    turns: $turns\n"
    "    max_tokens: $max_tokens\n"
    "    max_context: $max_context\n"
    "    temperature: $temperature\n"
    "    top_p: $top_p\n"
    "    top_k: $top_k\n"
    "    serve: {open: true, host: \"%s\", port: %u, name: \"%s\", calls: $calls, body: $body}\n"
    "    metrics: {turns: batch_mean(rollout.turns)}\n"
    "run: {steps: 1, samples: 0, timeout: 0, checkpoint: {last: false}}\n";

/* As it stands in quotes of YAML, where a dollar would name a parameter. */
static char *quoted(const char *text)
{
    gr_str out = {0};
    for (; *text; text++) {
        if (strchr("\"\\", *text)) gr_str_puts(&out, "\\");
        if (*text == '$') gr_str_puts(&out, "$");
        if ((unsigned char)*text < ' ')
            gr_str_printf(&out, "\\x%02x", (unsigned)*text);
        else
            gr_str_add(&out, text, 1);
    }
    return out.text ? out.text : gr_strdup("");
}

static bool is_run(const char *path)
{
    char *checkpoints = gr_printf("%s/checkpoints", path), *state = gr_printf("%s/state.json", path);
    const bool is =
        gr_path_exists(checkpoints) || gr_path_exists(state) || (strrchr(path, '@') && !gr_path_exists(path));
    free(checkpoints);
    free(state);
    return is;
}

/* The folder of the model, to free(). */
static gr_status find_model(char **out, const gr_args *a, gr_diag *d)
{
    const char *given = a->operand[0];
    gr_status st = GR_OK;
    if (is_run(given))
        st = gr_checkpoint_find(out, given, a->model, d);
    else if (a->model)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--model is for a run: '%s' is none", given);
    else
        *out = gr_strdup(given);
    if (st || !gr_peft_is(*out)) return st;
    return gr_diag_error(d, (gr_loc){*out, 0, 0}, GR_E_INVALID,
                         "adapters are no whole model: graphrun export %s --merge -o DIR makes one", given);
}

/* What calls name the model by: the last part of what was given. */
static char *name_of(const char *given)
{
    size_t n = strlen(given);
    while (n > 1 && given[n - 1] == '/') n--;
    size_t from = n;
    while (from && given[from - 1] != '/') from--;
    return gr_strndup(given + from, n - from);
}

static char *graph_of(const gr_args *a, const char *folder)
{
    char *path = quoted(folder), *given = name_of(a->operand[0]), *name = quoted(given),
         *host = quoted(a->host ? a->host : "127.0.0.1");
    const char *model = a->model ? a->model : "model";
    char *text = gr_printf(graph, model, path, model, host, (unsigned)a->port, name);
    free(path);
    free(given);
    free(name);
    free(host);
    return text;
}

static void say_listens(void *user, const char *url, const char *token)
{
    const gr_graph *g = user;
    printf("%s listens on %s/v1, token %s; it ends with SIGINT or SIGTERM\n", g->models[0]->files.checkpoint,
           url, getenv("GRAPHRUN_SERVE_TOKEN") ? "of GRAPHRUN_SERVE_TOKEN" : token);
    fflush(stdout);
}

static void say(gr_diag *d)
{
    gr_cmd_say(d, NULL);
}

static gr_status serve(const gr_prepared *x, gr_diag *d)
{
    const gr_functions functions = {.listens = say_listens, .user = x->g};
    const gr_run_options run = {.out = x->out, .threads = x->o.threads, .say = say, .functions = &functions};
    gr_str table = {0};
    gr_plan_table(x->p->plan, &table, false);
    fputs(table.text, stdout);
    fflush(stdout);
    gr_str_release(&table);
    gr_signals_catch();
    return gr_run(x->g, x->p, x->p->kernels, &run, d);
}

/* Files of the run that nobody asked for: in a folder that goes with it. */
static gr_status own_folder(char **out, gr_diag *d)
{
    const char *tmp = getenv("TMPDIR");
    *out = gr_printf("%s/graphrun-serve.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (mkdtemp(*out)) return GR_OK;
    const gr_status st =
        gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot make '%s': %s", *out, strerror(errno));
    free(*out);
    *out = NULL;
    return st;
}

static int serve_graph(gr_request *ask, gr_diag *d)
{
    gr_prepared x = {0};
    char *own = NULL;
    gr_status st = ask->out ? GR_OK : own_folder(&own, d);
    if (own) ask->out = own;
    if (!st) st = gr_request_prepare(&x, ask, d);
    const int invalid = gr_exit_status_input(st);
    if (!st) st = serve(&x, d);
    const int status = invalid ? invalid : gr_exit_status(st);
    gr_prepared_release(&x);
    if (own && gr_path_remove(own, d) && !status) gr_cmd_say(d, NULL);
    free(own);
    return status;
}

int gr_cmd_serve(const gr_args *a, gr_diag *d)
{
    char *folder = NULL;
    const gr_status st = find_model(&folder, a, d);
    if (st) return gr_exit_status_input(st);
    char *text = graph_of(a, folder);
    gr_request ask = a->ask;
    ask.graph = "serve";
    ask.text = text;
    ask.text_bytes = strlen(text);
    const int status = serve_graph(&ask, d);
    free(text);
    free(folder);
    return status;
}
