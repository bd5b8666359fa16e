#include "graphs/graph/graph.h"

#include <unistd.h>

#include "graphs/loader/loader.h"
#include "ops/base/configs.h"
#include "tests/unit/test.h"
#include "runtime/base/files.h"
#include "graphs/loader/load.h"
#include "graphs/loader/print.h"
#include "graphs/loader/schema.h"

#define FOLDER "tests/golden/graphs"

static gr_graph *load(const char *text, const char *const *set, size_t n_set)
{
    gr_diag d;
    gr_diag_init(&d);
    gr_graph *g = NULL;
    const gr_load_options o = {.set = set, .n_set = n_set};
    gr_status st = gr_graph_parse(&g, text, strlen(text), FOLDER "/t.yaml", &o, &d);
    for (size_t i = 0; st && i < d.n; i++) print_message("%s\n", d.messages[i].text);
    gr_diag_release(&d);
    assert_int_equal(st, GR_OK);
    return g;
}

static const char *order_of(const gr_graph *g)
{
    static char text[1024];
    *text = '\0';
    for (size_t i = 0; i < g->n_nodes; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "", g->nodes[i]->name);
    return text;
}

static void test_readers_of_the_old_weights_come_before_the_update(void **state)
{
    (void)state;
    gr_graph *g =
        load("graph: t\n"
             "use: parts/base.yaml\n"
             "nodes:\n"
             "  late: {op: logprob, model: actor, of: rollout, after: update}\n"
             "  probe: {op: logprob, model: actor, of: rollout, metrics: {e: token_mean(probe.entropy)}}\n"
             "log: {moved: token_mean(late - old_logprob)}\n",
             NULL, 0);
    assert_string_equal(order_of(g), "prompts rollout reward old_logprob advantage probe update late");
    assert_true(gr_graph_node(g, "late")->timing.new_version);
    assert_false(gr_graph_node(g, "probe")->timing.new_version);
    assert_ptr_equal(gr_graph_model(g, "actor")->update, gr_graph_node(g, "update"));
    gr_graph_free(g);
}

static void test_only_fields_that_are_read_are_columns(void **state)
{
    (void)state;
    gr_graph *g = load("graph: t\nuse: parts/base.yaml\nlog: {n: batch_mean(rollout.length)}\n", NULL, 0);
    const gr_node *rollout = gr_graph_node(g, "rollout");
    assert_int_equal(rollout->results.n_columns, 1);
    assert_string_equal(gr_node_column(rollout, "length")->name, "rollout.length");
    assert_null(gr_node_column(rollout, "truncated"));
    const gr_column *advantage = gr_node_column(gr_graph_node(g, "advantage"), NULL);
    assert_int_equal(advantage->level, GR_LEVEL_SEQ);
    assert_ptr_equal(advantage->rows, rollout);
    gr_graph_free(g);
}

static bool reads_epoch(const char *more)
{
    char *text = gr_printf("graph: t\nuse: parts/base.yaml\n%s", more);
    gr_graph *g = load(text, NULL, 0);
    bool reads = g->columns[g->column_epoch]->read;
    assert_false(g->columns[g->column_progress]->read);
    gr_graph_free(g);
    free(text);
    return reads;
}

static void test_who_reads_the_epoch_is_known_by_columns(void **state)
{
    (void)state;
    assert_true(reads_epoch("log: {e: epoch}\n"));
    assert_true(reads_epoch("state: {beta: {init: 1, next: beta + epoch}}\n"));
    assert_true(reads_epoch("nodes: {advantage: {expr: reward * epoch}}\n"));
    assert_true(reads_epoch("nodes: {rollout: {metrics: {m: batch_mean(rollout.length) + epoch}}}\n"));
    assert_true(reads_epoch("nodes: {update: {loss: token_mean(-logprob * advantage) * (1 + epoch)}}\n"));
    assert_true(reads_epoch("nodes: {update: {metrics: {m: epoch}}}\n"));
    /* the word alone says nothing: in a comment, a text, a line that is not used, a node that is left out */
    assert_false(reads_epoch("nodes: {advantage: {expr: \"reward # an epoch\"}}\n"));
    assert_false(reads_epoch("nodes: {prompts: {template: \"epoch {question}\"}}\n"));
    assert_false(reads_epoch("functions: {f(epoch): epoch + 1}\nlog: {e: f(step)}\n"));
    assert_false(reads_epoch("log:\n  e: |\n    unused = epoch\n    step\n"));
    assert_false(reads_epoch("nodes: {dead: {op: compute, of: rollout, expr: reward * epoch}}\n"));
    assert_false(reads_epoch("run: {epochs: 2}\n"));
}

static void test_settings_replace_parameters_and_keys(void **state)
{
    (void)state;
    const char *const set[] = {"group=2", "nodes.rollout.temperature=0.5", "run.steps=7"};
    gr_graph *g = load("graph: t\nuse: parts/base.yaml\n", set, 3);
    const gr_generate_cfg *c = gr_graph_node(g, "rollout")->cfg;
    assert_int_equal(c->samples, 2);
    assert_close(c->temperature.value, 0.5, 0, 0);
    assert_int_equal(g->run.steps, 7);
    assert_int_equal(gr_graph_node(g, "advantage")->bounds.seqs, 16); /* 8 prompts, 2 samples each */
    gr_graph_free(g);
}

static void refused(const char *setting, const char *message)
{
    static const char text[] = "graph: t\nuse: parts/base.yaml\n";
    gr_diag d;
    gr_diag_init(&d);
    gr_graph *g = NULL;
    const gr_load_options o = {.set = &setting, .n_set = 1};
    assert_int_equal(gr_graph_parse(&g, text, strlen(text), FOLDER "/t.yaml", &o, &d), GR_E_INVALID);
    char *got = gr_message_format(&d.messages[0]);
    assert_string_equal(got, message);
    free(got);
    gr_diag_release(&d);
}

static void test_wrong_settings_are_named(void **state)
{
    (void)state;
    refused("grup=2", "--set 'grup=2': error: unknown parameter 'grup'; did you mean 'group'?");
    refused("nodes.rolout.samples=2",
            "--set 'nodes.rolout.samples=2': error: unknown name 'rolout'; did you mean 'rollout'?");
    refused("group=two",
            "--set 'group=two': error: 'samples' must be a whole number from 1 to 65536, not 'two'");
    refused("group", "--set 'group': error: expected NAME=VALUE");
    refused("learning_rate=1",
            "--set 'learning_rate=1': error: unknown parameter 'learning_rate'; there are model, group, "
            "clip, and keys by their paths, such as models.actor.train.lr");
    refused("nodes.rollout.temperature='1'",
            "--set 'nodes.rollout.temperature='1'':1:2: error: 'temperature' must be a "
            "number from 0 to 100, not the quoted text '1'");
}

static void test_paths_belong_to_the_file_they_stand_in(void **state)
{
    (void)state;
    gr_graph *g = load("graph: t\nuse: parts/base.yaml\n", NULL, 0);
    assert_string_equal(((const gr_data_cfg *)gr_graph_node(g, "prompts")->cfg)->file,
                        FOLDER "/parts/data.jsonl");
    assert_string_equal(gr_graph_model(g, "actor")->files.checkpoint, FOLDER "/parts/config.json");
    assert_true(gr_graph_model(g, "actor")->files.random);
    assert_int_equal(gr_graph_model(g, "actor")->shape.layers, 2);
    gr_graph_free(g);
}

/* A log-prob that is left out, because the update makes one step, is written where it stood: else the update
 * would wait for it when the text is read again, and another one would come first. */
static void test_what_is_left_out_keeps_its_place(void **state)
{
    (void)state;
    gr_graph *g = load("graph: t\n"
                       "use: parts/base.yaml\n"
                       "models: {second: {checkpoint: $model, train: {lr: 0.1}}}\n"
                       "nodes:\n"
                       "  other: {op: generate, model: second, prompts: prompts, max_tokens: 4}\n"
                       "  train: {op: update, model: second, of: other, loss: token_mean(-logprob)}\n",
                       NULL, 0);
    gr_str text = {0};
    gr_graph_resolved(g, GR_PATHS_WHOLE, &text);
    gr_graph *again = load(text.text, NULL, 0);
    char *order = gr_strdup(order_of(g));
    assert_null(gr_graph_node(g, "old_logprob"));
    assert_true(strstr(order, "update other train") != NULL);
    assert_string_equal(order, order_of(again));
    free(order);
    gr_str_release(&text);
    gr_graph_free(again);
    gr_graph_free(g);
}

static void test_a_resolved_graph_loads_again_to_the_same(void **state)
{
    (void)state;
    gr_graph *g =
        load("graph: t\n"
             "use: parts/base.yaml\n"
             "state: {beta: {init: 0.1, next: beta * 0.5}}\n"
             "functions:\n"
             "  half(x): |\n"
             "    # of it\n"
             "    y = x / 2\n"
             "    y\n"
             "  both(x, y): half(x) + half(y)\n"
             "nodes:\n"
             "  advantage: {expr: \"both(reward, 2)\"}\n"
             "  reward: {rule: {extract: '#### (.+)$', answer_extract: \"a\\\"b\\n\", compare: number}}\n"
             "  update: {when: step >= 1, metrics: {kl: token_mean(old_logprob - logprob)}}\n"
             "log: {b: beta}\n"
             "run: {epochs: 2, checkpoint: {every: 5}}\n",
             NULL, 0);
    gr_str one = {0}, two = {0};
    gr_graph_resolved(g, GR_PATHS_WHOLE, &one);
    gr_graph *again = load(one.text, NULL, 0);
    gr_graph_resolved(again, GR_PATHS_WHOLE, &two);
    assert_string_equal(one.text, two.text);
    assert_non_null(strstr(one.text, "extract: \"#### (.+)$\""));
    gr_str explained[2] = {{0}, {0}};
    gr_graph_explain(g, &explained[0]);
    gr_graph_explain(again, &explained[1]);
    const char *nodes[] = {strstr(explained[0].text, "node "), strstr(explained[1].text, "node ")};
    assert_string_equal(nodes[0], nodes[1]);
    for (size_t i = 0; i < 2; i++) gr_str_release(&explained[i]);
    gr_str_release(&one);
    gr_str_release(&two);
    gr_graph_free(again);
    gr_graph_free(g);
}

/* A parameter that a key has, too, is put in: set anew of a resolved graph, it would change the expression
 * and not the key. One that only expressions have can be set. */
static void test_a_resolved_graph_has_no_half_of_a_parameter(void **state)
{
    (void)state;
    gr_graph *g = load("graph: t\n"
                       "use: parts/base.yaml\n"
                       "params: {low: -2.5, only: 3}\n"
                       "state: {beta: {init: $low, next: \"beta * $only + $low\"}}\n"
                       "nodes:\n"
                       "  advantage: {expr: \"$group * reward + $low^2 + $only\"}\n"
                       "  update: {when: step >= $group, metrics: {kl: token_mean(logprob) - $group}}\n"
                       "  reward: {rule: {extract: '(.+)$group', compare: string}}\n"
                       "log: {b: beta + $low}\n",
                       NULL, 0);
    gr_str one = {0}, two = {0};
    gr_graph_resolved(g, GR_PATHS_WHOLE, &one);
    assert_non_null(strstr(one.text, "params: {clip: 0.2, only: 3}\n"));
    assert_non_null(strstr(one.text, "expr: \"4 * reward + (-2.5)^2 + $only\"\n"));
    assert_non_null(strstr(one.text, "next: \"beta * $only + (-2.5)\""));
    assert_non_null(strstr(one.text, "when: \"step >= 4\"\n"));
    assert_non_null(strstr(one.text, "metrics: {kl: \"token_mean(logprob) - 4\"}\n"));
    assert_non_null(strstr(one.text, "log: {b: \"beta + (-2.5)\"}\n"));
    assert_non_null(strstr(one.text, "extract: \"(.+)4\""));
    gr_graph *again = load(one.text, NULL, 0);
    gr_graph_resolved(again, GR_PATHS_WHOLE, &two);
    assert_string_equal(one.text, two.text);
    gr_str_release(&one);
    gr_str_release(&two);
    gr_graph_free(again);
    gr_graph_free(g);
}

static const char *text_key(const gr_graph *g, const char *node, const char *key)
{
    const gr_value *v = gr_value_get(gr_graph_node(g, node)->value, key);
    return v && v->kind == GR_VALUE_SCALAR ? v->text : NULL;
}

static void check_texts(const gr_graph *g)
{
    assert_string_equal(text_key(g, "prompts", "template"), "Q: {question}\nlenth $5 $ 7$$ 5$$money");
    assert_string_equal(text_key(g, "prompts", "messages"), "Q: \n$lead ${lead} $len $$by $$ $\n");
    assert_non_null(
        strstr(((const gr_data_cfg *)gr_graph_node(g, "prompts")->cfg)->file, "/train.len.$jsonl"));
    assert_string_equal(text_key(g, "reward", "command"), "score --by 'len' --home $HOME");
    const gr_texts *stop = &((const gr_generate_cfg *)gr_graph_node(g, "rollout")->cfg)->stop;
    assert_string_equal(stop->text[0], "</len>");
    assert_string_equal(stop->text[1], "$end");
    assert_string_equal(g->run.best, "response_tokens_mean");
    assert_string_equal(g->name, "g_len");
}

/* Plain, quoted and block texts alike, in every key that is no expression; parameters of parameters. Before a
 * name two dollars are one, also where the resolved file is read again. */
static void test_parameters_are_put_into_every_text(void **state)
{
    (void)state;
    static const char *const set[] = {"nodes.reward.command=score --by '$by' --home $$HOME"};
    gr_graph *g = load(
        "graph: 'g_$by'\n"
        "use: parts/base.yaml\n"
        "params: {lead: 'Q: ', by: len, what: tokens, file: 'train.$by.$$jsonl', end: '</$by>', money: 5$}\n"
        "nodes:\n"
        "  prompts:\n"
        "    file: \"$file\"\n"
        "    template: \"$lead{question}\\n${by}th $5 $ 7$$ $money$$money\"\n"
        "    messages: |\n"
        "      $lead\n"
        "      $$lead $${lead} $$$by $$$$by $$ $\n"
        "  rollout: {stop: ['$end', \"$$end\"]}\n"
        "  reward: {rule: null, answer: null, command: x}\n"
        "run: {checkpoint: {best: 'response_${what}_mean'}}\n",
        set, GR_LEN(set));
    check_texts(g);
    gr_str text = {0};
    gr_graph_resolved(g, GR_PATHS_WHOLE, &text);
    gr_graph *again = load(text.text, NULL, 0);
    check_texts(again);
    gr_graph_free(again);
    gr_graph_free(g);
    gr_str_release(&text);
}

static void test_a_file_may_begin_with_a_byte_order_mark(void **state)
{
    (void)state;
    gr_graph *g = load("\xEF\xBB\xBFgraph: t\r\nuse: parts/base.yaml\r\n", NULL, 0);
    assert_string_equal(g->name, "t");
    gr_graph_free(g);
}

/* YAML would take some of them for a line's end, and refuse others. */
static void test_a_resolved_graph_has_every_character(void **state)
{
    (void)state;
    static const char *const ends[] = {"", "\\n", "\\nx"}; /* alone, and where a block could hold the lines */
    for (size_t i = 0; i < GR_LEN(ends); i++) {
        char *text =
            gr_printf("graph: t\nuse: parts/base.yaml\nnodes:\n  prompts: {template: \"{question}\\N a\\L "
                      "b\\P c\\x01\\t\\x7f\\u0090\\uFEFF\\uFFFE d\\u00e9%s\"}\n",
                      ends[i]);
        gr_graph *g = load(text, NULL, 0);
        gr_str one = {0};
        gr_graph_resolved(g, GR_PATHS_WHOLE, &one);
        gr_graph *again = load(one.text, NULL, 0);
        const gr_data_cfg *a = gr_graph_node(g, "prompts")->cfg, *b = gr_graph_node(again, "prompts")->cfg;
        assert_string_equal(a->template, b->template);
        assert_non_null(strstr(a->template, "\xc2\x85 a\xe2\x80\xa8 b"));
        gr_str_release(&one);
        gr_graph_free(again);
        gr_graph_free(g);
        free(text);
    }
}

static gr_status load_model(const char *checkpoint, gr_graph **g, gr_diag *d)
{
    char *text = gr_printf(
        "graph: t\nnodes:\n  p: {op: prompts, file: x, batch: 1, max_tokens: 4, template: a}\n"
        "  r: {op: generate, model: m, prompts: p, max_tokens: 4, metrics: {n: batch_mean(r.length)}}\n"
        "models: {m: {checkpoint: %s}}\n",
        checkpoint);
    gr_diag_init(d);
    *g = NULL;
    const gr_load_options o = {.need_shapes = true};
    gr_status st = gr_graph_parse(g, text, strlen(text), "t.yaml", &o, d);
    free(text);
    return st;
}

static void found_at(const char *dir, const char *written, const char *want)
{
    gr_diag d;
    gr_graph *g;
    char *checkpoint = gr_printf("%s/%s", dir, written), *path = gr_printf("%s/%s", dir, want);
    assert_int_equal(load_model(checkpoint, &g, &d), GR_OK);
    assert_string_equal(g->models[0]->files.checkpoint, path);
    assert_int_equal(g->models[0]->shape.layers, 2);
    gr_graph_free(g);
    gr_diag_release(&d);
    free(checkpoint);
    free(path);
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = gr_printf("%s/%s", dir, name),
         *parent = gr_strndup(path, (size_t)(strrchr(path, '/') - path));
    assert_int_equal(gr_dir_make(parent, NULL), GR_OK);
    assert_int_equal(gr_file_write(path, text, strlen(text), NULL), GR_OK);
    free(path);
    free(parent);
}

static void test_checkpoints_are_found_in_every_form(void **state)
{
    (void)state;
    char dir[] = "/tmp/gr_graph_XXXXXX", *config = NULL;
    size_t n;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(gr_file_read(FOLDER "/parts/config.json", 0, &config, &n, NULL), GR_OK);
    put(dir, "hf/config.json", config);
    put(dir, "models--a--b/refs/main", "0123abc\n");
    put(dir, "models--a--b/snapshots/0123abc/config.json", config);
    put(dir, "step-3/m/config.json", config);
    put(dir, "step-3/critic/config.json", config);
    put(dir, "step-4/other/config.json", config);
    put(dir, "step-5/one/config.json", config);
    put(dir, "step-5/two/config.json", config);
    found_at(dir, "hf", "hf");
    found_at(dir, "hf/config.json", "hf/config.json");
    found_at(dir, "models--a--b", "models--a--b/snapshots/0123abc");
    found_at(dir, "step-3", "step-3/m");
    found_at(dir, "step-4", "step-4/other");
    gr_diag d;
    gr_graph *g;
    char *several = gr_printf("%s/step-5", dir);
    assert_int_equal(load_model(several, &g, &d), GR_E_INVALID);
    assert_non_null(strstr(d.messages[0].text, "several models and none is called 'm'"));
    gr_diag_release(&d);
    free(several);
    free(config);
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
}

static void test_a_missing_checkpoint_says_how_to_get_it(void **state)
{
    (void)state;
    gr_diag d;
    gr_graph *g;
    assert_int_equal(load_model("Qwen/Qwen3-0.6B", &g, &d), GR_E_INVALID);
    assert_int_equal(d.n, 4);
    assert_string_equal(d.messages[0].text, "no checkpoint at 'Qwen/Qwen3-0.6B'");
    assert_string_equal(d.messages[1].text,
                        "download one: hf download Qwen/Qwen3-0.6B --local-dir Qwen/Qwen3-0.6B");
    assert_non_null(strstr(d.messages[2].text, "graphrun init"));
    assert_non_null(strstr(d.messages[3].text, "its config.json is enough"));
    gr_diag_release(&d);
    /* once, though three models begin with it */
    assert_int_equal(load_model("absent}, n: {checkpoint: absent}, o: {checkpoint: absent", &g, &d),
                     GR_E_INVALID);
    assert_int_equal(d.n_errors, 1);
    gr_diag_release(&d);
}

static void above(const char *file, const char *path, const char *want)
{
    gr_arena *arena = gr_arena_new();
    assert_string_equal(gr_path_from(arena, (gr_loc){file, 1, 1}, path), want);
    gr_arena_free(arena);
}

static void test_paths_above_a_file_are_short(void **state)
{
    (void)state;
    char dir[] = "/tmp/gr_graph_XXXXXX";
    assert_non_null(mkdtemp(dir));
    put(dir, "a/b/c", "");
    char *b = gr_printf("%s/a/b/g.yaml", dir), *link = gr_printf("%s/link", dir),
         *linked = gr_printf("%s/link/g.yaml", dir), *data = gr_printf("%s/a/data", dir),
         *top = gr_printf("%s/data", dir), *kept = gr_printf("%s/link/../data", dir);
    assert_int_equal(symlink("a/b", link), 0);
    above(b, "../data", data);
    above(b, "../../data", top);
    above(linked, "../data", kept); /* which is a/data */
    above("tests/g.yaml", "../data", "data");
    above("../g.yaml", "../data", "../../data");
    above("./g.yaml", "../data", "./../data");
    above("g.yaml", "../data", "../data");
    above(b, "/data", "/data");
    free(b);
    free(link);
    free(linked);
    free(data);
    free(top);
    free(kept);
    assert_int_equal(gr_path_remove(dir, NULL), GR_OK);
}

static void test_ops_and_schema_come_from_the_tables(void **state)
{
    (void)state;
    gr_str ops = {0}, schema = {0};
    gr_graph_ops(&ops);
    gr_graph_schema(&schema);
    assert_non_null(strstr(ops.text, "max_tokens"));
    assert_non_null(strstr(ops.text, "group_mean("));
    assert_non_null(strstr(schema.text, "\"too_long\""));
    gr_str_release(&ops);
    gr_str_release(&schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers_of_the_old_weights_come_before_the_update),
        cmocka_unit_test(test_only_fields_that_are_read_are_columns),
        cmocka_unit_test(test_who_reads_the_epoch_is_known_by_columns),
        cmocka_unit_test(test_settings_replace_parameters_and_keys),
        cmocka_unit_test(test_wrong_settings_are_named),
        cmocka_unit_test(test_paths_belong_to_the_file_they_stand_in),
        cmocka_unit_test(test_what_is_left_out_keeps_its_place),
        cmocka_unit_test(test_a_resolved_graph_loads_again_to_the_same),
        cmocka_unit_test(test_a_resolved_graph_has_no_half_of_a_parameter),
        cmocka_unit_test(test_parameters_are_put_into_every_text),
        cmocka_unit_test(test_a_file_may_begin_with_a_byte_order_mark),
        cmocka_unit_test(test_a_resolved_graph_has_every_character),
        cmocka_unit_test(test_checkpoints_are_found_in_every_form),
        cmocka_unit_test(test_a_missing_checkpoint_says_how_to_get_it),
        cmocka_unit_test(test_paths_above_a_file_are_short),
        cmocka_unit_test(test_ops_and_schema_come_from_the_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
