/* graphs/loader/schema.c: what the tables say, for editors (JSON Schema) and for readers (`graphrun ops`). */
#include "graphs/loader/loader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "ops/model/tp.h"
#include "ops/registry.h"
#include "graphs/loader/schema.h"

/* ---- JSON Schema -----------------------------------------------------------------------------------------
 */

/* A $name may stand for any value, or be in its text. YAML 1.1 readers take 1e-6 for a text, so numbers may
 * be texts too. */
#define PARAM  "\\$(\\{[A-Za-z_][A-Za-z0-9_]*\\}|[A-Za-z_][A-Za-z0-9_]*)"
#define NUMBER "^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$"

/* A whole graph has all it needs. A part, which uses others or is used by them, changes what these say:
 * nothing is required of it, and a null takes a key of theirs away. */
typedef enum form { WHOLE, PART } form;

static json_t *any_of(json_t *a, json_t *b)
{
    return json_pack("{s:[o,o]}", "anyOf", a, b);
}

static json_t *pattern(const char *p)
{
    return json_pack("{s:s, s:s}", "type", "string", "pattern", p);
}

/* Of a value, or of a parameter in its place. */
static json_t *value_of(json_t *schema, form f)
{
    json_t *s = any_of(schema, pattern(PARAM));
    if (f == PART) json_array_append_new(json_object_get(s, "anyOf"), json_pack("{s:s}", "type", "null"));
    return s;
}

static json_t *number_schema(const gr_key *k, bool whole)
{
    json_t *n = json_pack("{s:s}", "type", whole ? "integer" : "number");
    bool ranged = k->min != 0 || k->max != 0;
    if (ranged || whole) json_object_set_new(n, "minimum", json_real(k->min));
    if (ranged && isfinite(k->max)) json_object_set_new(n, "maximum", json_real(k->max));
    return whole ? n : any_of(n, pattern(NUMBER));
}

static json_t *choices_schema(const gr_key *k)
{
    json_t *list = json_array();
    for (size_t i = 0; k->choices[i]; i++) json_array_append_new(list, json_string(k->choices[i]));
    return json_pack("{s:o}", "enum", list);
}

static json_t *many(json_t *one)
{
    json_t *list = json_pack("{s:s, s:O}", "type", "array", "items", one);
    return any_of(one, list);
}

static json_t *scalar_schema(void)
{
    return json_pack("{s:[s,s,s]}", "type", "string", "number", "boolean");
}

static json_t *kind_schema(const gr_key *k)
{
    switch (k->kind) {
    case GR_KEY_BOOL:
        return json_pack("{s:s}", "type", "boolean");
    case GR_KEY_UINT:
        return k->choices ? any_of(number_schema(k, true), choices_schema(k)) : number_schema(k, true);
    case GR_KEY_NUMBER:
        return number_schema(k, false);
    case GR_KEY_SCALAR:
        return any_of(number_schema(k, false), json_pack("{s:s}", "type", "string"));
    case GR_KEY_ENUM:
        return choices_schema(k);
    case GR_KEY_TEXTS:
        return many(scalar_schema());
    case GR_KEY_UINTS:
        return many(number_schema(k, true));
    case GR_KEY_FIELD:
        return pattern("^[^.]+\\..+$");
    case GR_KEY_NODE:
    case GR_KEY_MODEL:
    case GR_KEY_SECOND_MODEL:
        return json_pack("{s:s}", "type", "string");
    case GR_KEY_VALUE:
        return json_object();
    default:
        return scalar_schema();
    }
}

static json_t *key_schema(const gr_key *k, form f)
{
    json_t *s = value_of(kind_schema(k), f);
    json_object_set_new(s, "description", json_string(k->doc));
    if (k->fallback) json_object_set_new(s, "default", json_string(k->fallback));
    return s;
}

static json_t *closed_map(json_t *properties, json_t *required, form f)
{
    json_t *map =
        json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties, "additionalProperties",
                  f == WHOLE ? json_false() : json_pack("{s:s}", "type", "null"));
    if (f == WHOLE)
        json_object_set_new(map, "required", required);
    else
        json_decref(required);
    return map;
}

static json_t *table_schema(const gr_key *keys, json_t *properties, form f)
{
    json_t *required = json_array();
    for (const gr_key *k = keys; k && k->name; k++) {
        json_object_set_new(properties, k->name, key_schema(k, f));
        if (k->required) json_array_append_new(required, json_string(k->name));
    }
    return closed_map(properties, required, f);
}

static json_t *map_of(json_t *value)
{
    return json_pack("{s:s, s:o}", "type", "object", "additionalProperties", value);
}

static json_t *text_schema(void)
{
    return json_pack("{s:s}", "type", "string");
}

/* What nodes of any op have. */
static json_t *common_keys(form f)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "when", value_of(scalar_schema(), f), "every",
                     key_schema(&gr_validate_keys[0], f), "before", key_schema(&gr_validate_keys[1], f),
                     "after", value_of(many(scalar_schema()), f), "pool", value_of(text_schema(), f),
                     "metrics", value_of(map_of(value_of(scalar_schema(), f)), f));
}

/* A key that an op has, beside those of its name that others have. */
static void add_key(json_t *properties, const gr_key *k)
{
    json_t *there = json_object_get(properties, k->name), *own = key_schema(k, PART);
    if (there && !json_equal(there, own)) own = any_of(json_incref(there), own);
    json_object_set_new(properties, k->name, own);
}

/* Of a part, a node whose op is said elsewhere: any key that an op has. */
static json_t *node_of_any_op(void)
{
    json_t *properties = common_keys(PART);
    for (const gr_op *const *op = gr_ops; *op; op++)
        for (const gr_key *k = (*op)->keys; k && k->name; k++) add_key(properties, k);
    return closed_map(properties, json_array(), PART);
}

static json_t *node_schema(form f)
{
    json_t *names = json_array(), *all = json_array();
    for (const gr_op *const *op = gr_ops; *op; op++) {
        json_t *properties = common_keys(f);
        json_object_set_new(properties, "op", json_pack("{s:s}", "const", (*op)->name));
        json_array_append_new(names, json_string((*op)->name));
        json_array_append_new(all, json_pack("{s:{s:[s], s:{s:{s:s}}}, s:o}", "if", "required", "op",
                                             "properties", "op", "const", (*op)->name, "then",
                                             table_schema((*op)->keys, properties, f)));
    }
    if (f == PART)
        json_array_append_new(all, json_pack("{s:{s:[s]}, s:o, s:o}", "if", "required", "op", "then",
                                             json_object(), "else", node_of_any_op()));
    json_t *node = json_pack("{s:s, s:{s:o}, s:o}", "type", "object", "properties", "op",
                             any_of(json_pack("{s:o}", "enum", names), pattern(PARAM)), "allOf", all);
    if (f == WHOLE) json_object_set_new(node, "required", json_pack("[s]", "op"));
    return f == PART ? any_of(node, json_pack("{s:s}", "type", "null")) : node;
}

static json_t *one_of(const char *const *choices, form f)
{
    const gr_key k = {.choices = choices};
    return value_of(choices_schema(&k), f);
}

static json_t *auto_schema(void)
{
    return json_pack("{s:s}", "const", "auto");
}

static json_t *train_schema(form f)
{
    json_t *train = table_schema(gr_train_keys, json_object(), f),
           *group = value_of(table_schema(gr_group_keys, json_object(), f), f);
    json_object_set_new(json_object_get(train, "properties"), "groups",
                        value_of(json_pack("{s:s, s:o}", "type", "array", "items", group), f));
    json_object_set_new(json_object_get(train, "properties"), "lora",
                        value_of(table_schema(gr_lora_keys, json_object(), f), f));
    return train;
}

static json_t *model_schema(form f)
{
    static const char *const heads[] = {"value", NULL}, *const gathers[] = {"direct", "whole", "layer", NULL},
                             *const shards[] = {"auto", "all", "node", NULL};
    json_t *tensor = json_pack("{s:s, s:i, s:i}", "type", "integer", "minimum", 1, "maximum", GR_TP_MAX),
           *expert = json_deep_copy(tensor);
    json_t *properties = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "checkpoint", value_of(text_schema(), f),
        "head", one_of(heads, f), "train", value_of(train_schema(f), f), "precision",
        value_of(table_schema(gr_precision_keys, json_object(), f), f), "residency",
        value_of(table_schema(gr_residency_keys, json_object(), f), f), "gather", one_of(gathers, f), "shard",
        one_of(shards, f), "tensor", value_of(tensor, f), "expert", value_of(expert, f), "parallel",
        value_of(any_of(table_schema(gr_parallel_keys, json_object(), f), auto_schema()), f), "pool",
        value_of(text_schema(), f));
    return value_of(closed_map(properties, json_pack("[s]", "checkpoint"), f), f);
}

static json_t *state_schema(form f)
{
    static const gr_key init = {.name = "init", .doc = "the first value"};
    json_t *properties = json_pack("{s:o, s:o}", "init", value_of(number_schema(&init, false), f), "next",
                                   value_of(scalar_schema(), f));
    return value_of(closed_map(properties, json_pack("[s,s]", "init", "next"), f), f);
}

static json_t *run_schema(form f)
{
    json_t *run = table_schema(gr_run_keys, json_object(), f);
    json_object_set_new(json_object_get(run, "properties"), "checkpoint",
                        value_of(table_schema(gr_checkpoint_keys, json_object(), f), f));
    return run;
}

static json_t *file_schema(form f)
{
    json_t *tracker = json_pack("{s:s}", "type", "object"),
           *logged = map_of(value_of(any_of(scalar_schema(), tracker), f)),
           *pools = map_of(value_of(table_schema(gr_pool_keys, json_object(), f), f));
    json_t *properties = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "on",
                                   value_of(table_schema(gr_on_keys, json_object(), f), f), "pools", pools,
                                   "models", map_of(model_schema(f)), "nodes", map_of(node_schema(f)),
                                   "state", map_of(state_schema(f)), "log", logged, "run", run_schema(f));
    return json_pack("{s:o}", "properties", properties);
}

/* Whole is a file with a name that uses no other. */
void gr_graph_schema(gr_str *out)
{
    json_t *flag = value_of(json_pack("{s:s}", "type", "boolean"), WHOLE), *top = json_object();
    for (const char *const *k = gr_top_keys; *k; k++) json_object_set_new(top, *k, json_object());
    json_object_set_new(top, "graph", text_schema());
    json_object_set_new(top, "doc", text_schema());
    json_object_set_new(top, "params", json_pack("{s:s}", "type", "object"));
    json_object_set_new(top, "use", many(text_schema()));
    json_object_set_new(top, "functions", map_of(scalar_schema()));
    json_object_set(top, "strict", flag);
    json_object_set(top, "deterministic", flag);
    json_object_set_new(top, "canonical", flag);
    json_t *schema = closed_map(top, json_array(), PART);
    json_object_set_new(schema, "if",
                        json_pack("{s:[s], s:{s:[s]}}", "required", "graph", "not", "required", "use"));
    json_object_set_new(schema, "then", file_schema(WHOLE));
    json_object_set_new(schema, "else", file_schema(PART));
    json_object_set_new(schema, "$schema", json_string("http://json-schema.org/draft-07/schema#"));
    json_object_set_new(schema, "title", json_string("graphrun graph file"));
    char *text = json_dumps(schema, JSON_INDENT(1));
    gr_str_printf(out, "%s\n", text);
    free(text);
    json_decref(schema);
}

/* ---- graphrun ops ----------------------------------------------------------------------------------------
 */

static const char *kind_name(const gr_key *k)
{
    static const char *const names[] = {
        "bool",       "whole number", "number",       "number or expression", "text",
        "path",       "choice",       "text or list", "whole number or list", "node",
        "NODE.FIELD", "model",        "model",        "expression",           "loss expression",
        "value"};
    return names[k->kind];
}

static void print_key_row(const gr_key *k, gr_str *out)
{
    gr_str_printf(out, "    %-18s %s", k->name, k->doc);
    gr_str_printf(out, " (%s", kind_name(k));
    for (size_t i = 0; k->choices && k->choices[i]; i++)
        gr_str_printf(out, "%s%s", i ? ", " : ": ", k->choices[i]);
    if (k->required) gr_str_puts(out, "; required");
    if (k->fallback) gr_str_printf(out, "; default %s", k->fallback);
    gr_str_puts(out, ")\n");
}

static void print_keys_of(const char *title, const gr_key *keys, gr_str *out)
{
    gr_str_printf(out, "%s\n", title);
    for (const gr_key *k = keys; k && k->name; k++) print_key_row(k, out);
}

static void print_op(const gr_op *op, gr_str *out)
{
    gr_str_printf(out, "%s: %s [", op->name, op->summary);
    gr_op_devices(op, out);
    gr_str_puts(out, "]\n");
    if (op->doc) gr_str_printf(out, "  %s\n", op->doc);
    print_keys_of("  keys", op->keys, out);
    if (op->fields && op->fields->name) gr_str_puts(out, "  fields\n");
    for (const gr_field *f = op->fields; f && f->name; f++)
        gr_str_printf(out, "    %-18s %s (a value a %s%s)\n", f->name, f->doc, gr_level_str(f->level),
                      f == op->fields ? "; the node's own name" : "");
    gr_str_putc(out, '\n');
}

void gr_graph_ops(gr_str *out)
{
    for (const gr_op *const *op = gr_ops; *op; op++) print_op(*op, out);
    gr_str_puts(out,
                "every node also has\n"
                "    when               run the node only in iterations where this holds (expression over\n"
                "                       step, epoch, progress and states)\n");
    for (const gr_key *k = gr_validate_keys; k->name; k++) print_key_row(k, out);
    gr_str_puts(
        out,
        "    after              node or list of nodes that come before it; after an update of its model\n"
        "                       it reads the new weights\n"
        "    pool               the ranks that run it; default: its model's, else those of what it "
        "reads\n"
        "    metrics            {name: expression}: one number an iteration each\n\n");
    gr_str_puts(
        out,
        "models: NAME\n"
        "    checkpoint         a folder in Hugging Face form, a run's step (its folder, RUN@STEP or\n"
        "                       RUN@best), or a config.json: random weights (path; required)\n"
        "    head               value: a head that gives one number a token, in place of the output\n"
        "                       matrix: the checkpoint's if it has one, else drawn at random; default:\n"
        "                       the checkpoint's own head\n"
        "    train              settings of the optimizer; without it the model never changes\n"
        "    precision          whether the products of its layers, and keys and values, are in FP8, and "
        "states of\n"
        "                       rollouts in bf16; default: they are not\n"
        "    residency          where its state is kept; default: --policy\n"
        "    gather             how a rollout's own copy is filled where training's weights are sharded:\n"
        "                       whole, through a gathered copy of all weights; layer, through one layer\n"
        "                       at a time; default: straight from the shards\n"
        "    shard              the ranks that it is sharded over: all; node, those of each host, and the\n"
        "                       hosts are replicas; auto, the planner's choice (default)\n"
        "    tensor             tensor-parallel rollout: so many neighbouring ranks of one host have a\n"
        "                       part of each layer, and generate together; must divide heads, KV heads\n"
        "                       and the width of the feed-forward network; default: 1, whole\n"
        "    expert             experts of a rollout: so many neighbouring ranks of one host have a part of\n"
        "                       those of each layer, and sequences of their own, whose rows go to the\n"
        "                       experts and back; must divide the experts; default: 1, all on each rank,\n"
        "                       or with 'parallel: auto' the planner's choice\n"
        "    parallel           how ranks share the sequences of log-prob passes and updates; auto: the\n"
        "                       planner's choice; default: each sequence is one rank's\n"
        "    pool               the ranks that hold and train it, and run its nodes; default: the first "
        "pool\n");
    print_keys_of("models: NAME: train", gr_train_keys, out);
    print_keys_of("models: NAME: train: lora", gr_lora_keys, out);
    print_keys_of("models: NAME: train: groups", gr_group_keys, out);
    print_keys_of("models: NAME: precision", gr_precision_keys, out);
    print_keys_of("models: NAME: residency", gr_residency_keys, out);
    print_keys_of("models: NAME: parallel", gr_parallel_keys, out);
    print_keys_of("pools: NAME", gr_pool_keys, out);
    print_keys_of("run", gr_run_keys, out);
    print_keys_of("run: checkpoint", gr_checkpoint_keys, out);
    print_keys_of("on", gr_on_keys, out);
    gr_str_puts(out,
                "log\n"
                "    NAME               an expression: its value is NAME in metrics.jsonl\n"
                "    wandb              a map of arguments of wandb.init, such as {project: NAME}: the run\n"
                "                       is told to Weights & Biases\n"
                "    mlflow             {tracking_uri, experiment, run_name, tags}: to MLflow\n");
    gr_str_puts(out, "\nfunctions of expressions\n");
    size_t n;
    const gr_expr_function *f = gr_expr_functions(&n);
    for (size_t i = 0; i < n; i++) {
        char *call = gr_printf("%s(%s)", f[i].name, f[i].args);
        gr_str_printf(out, "    %-34s %s -> %s: %s\n", call, f[i].source, f[i].result, f[i].doc);
        free(call);
    }
}
