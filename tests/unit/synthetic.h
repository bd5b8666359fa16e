/* tests/unit/synthetic.h: programs that look like GRPO, without any op behind them. */
#ifndef GR_TESTS_SYNTHETIC_H
#define GR_TESTS_SYNTHETIC_H

#include "scheduler/search/schedule.h"

#include "tests/unit/test.h"

typedef struct shape {
    uint32_t layers, micro, mini, decode;
    uint64_t layer_bytes, act_bytes, kv_bytes;
    bool reference, host_reward, optional_ref, recompute, validates, host_step;
} shape;

static inline uint32_t named(gr_tasks *p, const char *model, const char *kind, uint32_t i, gr_category c,
                             gr_span span, uint64_t bytes)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%s.%u", model, kind, i);
    return gr_tasks_object(p, &(gr_object){name, c, span, GR_DEVICE, bytes, model, i, 0});
}

static inline void cost(gr_task *w, uint64_t bytes, double tokens)
{
    w->cost.flops = tokens * (double)bytes / 2;
    w->cost.bytes = (double)bytes;
}

/* One forward pass over all layers: params, hidden state, and per-layer activations where kept. */
static inline void forward(gr_tasks *p, const shape *s, const char *model, const char *what, uint32_t hidden,
                           const uint32_t *acts, double tokens)
{
    for (uint32_t l = 0; l < s->layers; l++) {
        uint32_t w = named(p, model, "params", l, GR_CAT_WEIGHTS, GR_SPAN_KEEP, s->layer_bytes);
        uint32_t ws = gr_tasks_temp(p, GR_CAT_WORKSPACE, s->act_bytes / 2, "%s.ws.%u", what, l);
        gr_use u[] = {{w, GR_READ},
                      {hidden, l ? GR_UPDATE : GR_WRITE},
                      {ws, GR_WRITE},
                      {acts ? acts[l] : GR_NONE, GR_WRITE}};
        cost(gr_tasks_run(p, 1, l, u, 4, "%s.%u", what, l), s->layer_bytes, tokens);
    }
}

static inline void rollout(gr_tasks *p, const shape *s, const char *node, uint32_t tokens)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.kv", node);
    gr_tasks_node(p, node, GR_LANE_COMPUTE, false);
    p->rollout = true;
    uint32_t kv = gr_tasks_object(
        p, &(gr_object){name, GR_CAT_KV, GR_SPAN_SCRATCH, GR_DEVICE, s->kv_bytes, NULL, GR_NONE, 0});
    uint32_t hidden = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, s->act_bytes, "hidden");
    uint32_t next = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, 256, "next");
    forward(p, s, "actor", "prefill", hidden, NULL, 100);
    gr_use pre[] = {{hidden, GR_READ}, {kv, GR_WRITE}, {next, GR_WRITE}, {tokens, GR_WRITE}};
    cost(gr_tasks_run(p, 2, 0, pre, 4, "first"), s->act_bytes, 1);
    gr_task *loop = gr_tasks_loop(p, 3, s->decode, true, "decode");
    loop->loop.trips_expected = s->decode;
    forward(p, s, "actor", "step", hidden, NULL, 1);
    gr_use dec[] = {{hidden, GR_READ}, {kv, GR_UPDATE}, {next, GR_UPDATE}, {tokens, GR_UPDATE}};
    cost(gr_tasks_run(p, 4, 0, dec, 4, "sample"), s->act_bytes, 1);
    gr_tasks_end(p);
}

static inline void logprob(gr_tasks *p, const shape *s, const char *node, const char *model, bool optional,
                           uint32_t tokens, uint32_t out)
{
    gr_tasks_node(p, node, GR_LANE_COMPUTE, optional);
    uint32_t hidden = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, s->act_bytes, "hidden");
    gr_tasks_loop(p, 5, s->micro * s->mini, false, "micro");
    forward(p, s, model, "forward", hidden, NULL, 100);
    gr_use u[] = {{hidden, GR_READ}, {tokens, GR_READ}, {out, GR_UPDATE}};
    cost(gr_tasks_run(p, 6, 0, u, 3, "head"), s->act_bytes, 100);
    gr_tasks_end(p);
}

static inline void update(gr_tasks *p, const shape *s, const uint32_t *columns, uint32_t n_columns)
{
    gr_tasks_node(p, "update", GR_LANE_COMPUTE, false);
    uint32_t hidden = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, s->act_bytes, "hidden");
    uint32_t grad = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, s->act_bytes, "grad");
    uint32_t acts[64], g[64];
    for (uint32_t l = 0; l < s->layers; l++) {
        acts[l] = gr_tasks_temp(p, GR_CAT_ACTIVATIONS, s->recompute ? s->act_bytes : 4 * s->act_bytes,
                                "acts.%u", l);
        g[l] = named(p, "actor", "grads", l, GR_CAT_GRADIENTS, GR_SPAN_SCRATCH, s->layer_bytes);
    }
    gr_tasks_loop(p, 7, s->mini, false, "mini");
    for (uint32_t l = 0; l < s->layers; l++) {
        gr_use u[] = {{g[l], GR_WRITE}};
        cost(gr_tasks_run(p, 8, l, u, 1, "zero.%u", l), s->layer_bytes, 0);
    }
    gr_tasks_loop(p, 9, s->micro, false, "micro");
    forward(p, s, "actor", "forward", hidden, acts, s->recompute ? 150 : 100);
    gr_use loss[8] = {{hidden, GR_READ}, {grad, GR_WRITE}};
    for (uint32_t c = 0; c < n_columns; c++) loss[2 + c] = (gr_use){columns[c], GR_READ};
    cost(gr_tasks_run(p, 10, 0, loss, 2 + n_columns, "loss"), s->act_bytes, 100);
    for (uint32_t l = s->layers; l-- > 0;) {
        uint32_t w = named(p, "actor", "params", l, GR_CAT_WEIGHTS, GR_SPAN_KEEP, s->layer_bytes);
        uint32_t ws = gr_tasks_temp(p, GR_CAT_WORKSPACE, s->act_bytes, "backward.ws.%u", l);
        gr_use u[] = {{w, GR_READ}, {acts[l], GR_READ}, {grad, GR_UPDATE}, {g[l], GR_UPDATE}, {ws, GR_WRITE}};
        cost(gr_tasks_run(p, 11, l, u, 5, "backward.%u", l), s->layer_bytes, 200);
    }
    gr_tasks_end(p);
    for (uint32_t l = 0; l < s->layers; l++) {
        uint32_t w = named(p, "actor", "params", l, GR_CAT_WEIGHTS, GR_SPAN_KEEP, s->layer_bytes);
        uint32_t m = named(p, "actor", "moments", l, GR_CAT_OPTIMIZER, GR_SPAN_KEEP, 2 * s->layer_bytes);
        gr_use u[] = {{g[l], GR_READ}, {m, GR_UPDATE}, {w, GR_UPDATE}};
        gr_task *step = gr_tasks_run(p, 12, l, u, 3, "step.%u", l);
        cost(step, 4 * s->layer_bytes, 0);
        if (s->host_step) step->uses.host_with = m;
    }
    gr_tasks_end(p);
}

static inline gr_tasks *grpo(const shape *s)
{
    gr_tasks *p = gr_tasks_new();
    gr_tasks_node(p, "batch", GR_LANE_COMPUTE, false);
    uint32_t tokens = gr_tasks_temp(p, GR_CAT_COLUMNS, 4096, "tokens");
    uint32_t old = gr_tasks_temp(p, GR_CAT_COLUMNS, 4096, "old"),
             ref = gr_tasks_temp(p, GR_CAT_COLUMNS, 4096, "ref");
    uint32_t reward = gr_tasks_object(
        p, &(gr_object){"batch.reward", GR_CAT_COLUMNS, GR_SPAN_TEMP, GR_HOST, 1024, NULL, GR_NONE, 0});
    uint32_t adv = gr_tasks_temp(p, GR_CAT_COLUMNS, 4096, "advantage");
    gr_use clear[] = {{old, GR_WRITE}, {ref, GR_WRITE}};
    gr_tasks_run(p, 14, 0, clear, 2, "clear");
    rollout(p, s, "rollout", tokens);
    gr_tasks_node(p, "reward", s->host_reward ? GR_LANE_HOST : GR_LANE_COMPUTE, false);
    gr_use r[] = {{tokens, GR_READ}, {reward, GR_WRITE}};
    cost(gr_tasks_run(p, 20, 0, r, 2, "rule"), 1 << 20, 100);
    logprob(p, s, "old_logprob", "actor", false, tokens, old);
    if (s->reference) logprob(p, s, "ref_logprob", "ref", s->optional_ref, tokens, ref);
    gr_tasks_node(p, "advantage", GR_LANE_COMPUTE, false);
    gr_use a[] = {{reward, GR_READ}, {adv, GR_WRITE}};
    gr_tasks_run(p, 21, 0, a, 2, "expr");
    update(p, s, (uint32_t[]){tokens, old, ref, adv}, 4);
    if (!s->validates) return p;
    gr_tasks_validate(p, 10);
    gr_tasks_node(p, "check", GR_LANE_COMPUTE, false);
    uint32_t answers = gr_tasks_temp(p, GR_CAT_COLUMNS, 4096, "tokens");
    rollout(p, s, "check", answers);
    gr_tasks_node(p, "score", GR_LANE_HOST, false);
    uint32_t score = gr_tasks_host(p, GR_CAT_COLUMNS, 1024, "reward");
    gr_use v[] = {{answers, GR_READ}, {score, GR_WRITE}};
    cost(gr_tasks_run(p, 20, 0, v, 2, "rule"), 1 << 20, 100);
    return p;
}

static inline gr_hardware machine(void)
{
    return (gr_hardware){.name = "test",
                         .device = "cpu",
                         .flops = 1e12,
                         .memory_bytes = 1e11,
                         .copies = {{1, 2e10, 2e10, 2e10}},
                         .n_copies = 1,
                         .copy = {1, 2e10, 2e10, 2e10},
                         .host_memory = 5e10,
                         .disk = 1e9,
                         .device_bytes = 1ULL << 40,
                         .host_bytes = 1ULL << 40,
                         .overhead_bytes = 1 << 20,
                         .step_ns = 1000,
                         .link = 2e10,
                         .collective_ns = 10000,
                         .sum_ns = 3000,
                         .network = 1e10,
                         .devices = 8};
}

static inline gr_tasks *build_shape(void *user, const uint32_t *level)
{
    shape s = *(const shape *)user;
    if (level) s.recompute = level[0];
    return grpo(&s);
}

#define SMALL                                                                                          \
    {                                                                                                  \
        .layers = 4, .micro = 3, .mini = 2, .decode = 8, .layer_bytes = 1 << 20, .act_bytes = 1 << 18, \
        .kv_bytes = 1 << 21, .reference = true, .host_reward = true                                    \
    }

#endif
