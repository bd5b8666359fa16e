/* tests/unit/mesh_fixture.h: a small graph of an iteration, of dense layers or of experts, with what a test
 * sets of its ranks. */
#ifndef GR_TESTS_MESH_FIXTURE_H
#define GR_TESTS_MESH_FIXTURE_H

#include "tests/unit/parsed.h"
#include "tests/unit/planned.h"

static const char *const config_text =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 512, \"hidden_size\": 32, \"num_hidden_layers\": 3, "
    "\"rms_norm_eps\": 1e-06, \"max_position_embeddings\": 256, \"eos_token_id\": 2, "
    "\"intermediate_size\": 48, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 8, "
    "\"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";
/* The same with experts. */
static const char *const experts_text =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 64, \"hidden_size\": 32, \"num_hidden_layers\": 3, "
    "\"rms_norm_eps\": 1e-06, \"max_position_embeddings\": 256, \"eos_token_id\": 2, "
    "\"intermediate_size\": 48, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 8, "
    "\"num_experts\": 12, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 40, "
    "\"norm_topk_prob\": true, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";
static const char *const graph_text =
    "graph: mesh\n"
    "models:\n"
    "  actor: {checkpoint: %s, train: {lr: 0.01}%s}\n"
    "  ref: {checkpoint: %s}\n"
    "nodes:\n"
    "  prompts: {op: prompts, file: none.jsonl, batch: 8, max_tokens: 24, template: '{q}'}\n"
    "  rollout: {op: generate, model: actor, prompts: prompts, samples: 2, max_tokens: 40, kv_blocks: 8%s}\n"
    "  reward: {op: reward, of: rollout, answer: prompts.a, rule: {extract: '(.)', compare: string}}\n"
    "  old: {op: logprob, model: actor, of: rollout, micro_tokens: 128}\n"
    "  ref_logprob: {op: logprob, model: ref, of: rollout}\n"
    "  update: {op: update, model: actor, of: rollout, mini_batch: 8, micro_tokens: 128, loss: \"%s\"}\n"
    "run: {steps: 2}\n%s";

static const char *const by_token = "token_mean(reward * (logprob - old) + ref_logprob * 0)",
                         *const by_sequence = "batch_mean(reward * exp(seq_mean(logprob - old)) + "
                                              "seq_mean(ref_logprob) * 0)";

typedef struct config {
    const char *model, *rollout, *loss, *more;
    uint32_t ranks, hosts;
    gr_policy policy;
    bool experts, deep, many; /* deep: six layers; many: nine of 96 experts */
} config;

static inline char *put_model(const config *c)
{
    static const char key[] = "\"num_hidden_layers\": ", experts[] = "\"num_experts\": ";
    char *text = gr_printf("%s", c->experts ? experts_text : config_text);
    if (c->deep) strstr(text, key)[sizeof(key) - 1] = '6';
    if (c->many) strstr(text, key)[sizeof(key) - 1] = '9';
    if (c->many) memcpy(strstr(text, experts) + sizeof(experts) - 1, "96", 2);
    char *path = put_config(text);
    free(text);
    return path;
}

static inline gr_status try_load(gr_graph **g, const config *c, gr_diag *d)
{
    char *path = put_model(c);
    char *text = gr_printf(graph_text, path, c->model ? c->model : "", path, c->rollout ? c->rollout : "",
                           c->loss ? c->loss : by_token, c->more ? c->more : "");
    free(path);
    return parse_text(g, text, c->ranks, c->hosts, d);
}

static inline gr_graph *load(const config *c)
{
    gr_graph *g = NULL;
    gr_diag d;
    gr_diag_init(&d);
    assert_loaded(try_load(&g, c, &d), &d);
    return g;
}

static inline gr_planned *plan(const config *c, const gr_graph *g)
{
    gr_planned *p = plan_or_null(g, c->policy, 0, GR_MAX(c->hosts, 1u));
    assert_non_null(p);
    return p;
}

#endif
