/* Mixtures of experts on the CPU device: each primitive, and the MLP over them, against loops in double. */
#include "tests/unit/test.h"

#include "ops/kernels/experts.h"
#include "ops/kernels/layer_ops.h"
#include "tests/unit/thread_ranks.h"

static const gr_experts_ops *const ops = &gr_experts_cpu;

static float value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

static float *floats(size_t n, float scale, uint32_t seed)
{
    float *x = gr_malloc((n + 1) * sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = scale * value(&seed);
    return x;
}

static void assert_near(const char *what, const float *got, const double *want, size_t n, double tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("%s[%zu]: got %.9g, want %.9g", what, i, (double)got[i], want[i]);
}

/* ---- router -------------------------------------------------------------------------------------------- */

static const gr_experts_desc routers[] = {
    {.count = 128, .top_k = 8, .scale = 1, .normalize = true},
    {.count = 60, .top_k = 4, .scale = 1},
    {.count = 32, .top_k = 4, .scale = 1, .softmax_after = true},
    {.count = 256,
     .top_k = 8,
     .groups = 8,
     .top_groups = 4,
     .scale = 2.5f,
     .normalize = true,
     .selection_bias = true,
     .router = GR_ROUTER_SIGMOID},
    {.count = 7, .top_k = 3, .scale = 1.5f, .router = GR_ROUTER_SIGMOID},
    {.count = 24, .top_k = 2, .groups = 6, .top_groups = 1, .scale = 1, .normalize = true},
    {.count = 512, .top_k = 32, .scale = 1, .normalize = true, .selection_bias = true},
    {.count = 1, .top_k = 1, .scale = 1},
    {.count = 3, .top_k = 3, .scale = 1},
};

static double score_of(const gr_experts_desc *e, const double *z, uint32_t i)
{
    double sum = 0;
    if (e->router == GR_ROUTER_SIGMOID) return 1 / (1 + exp(-z[i]));
    for (uint32_t n = 0; n < e->count; n++) sum += exp(z[n] - z[i]);
    return 1 / sum;
}

/* The weight of choice j, of experts that are given. */
static double weight_of(const gr_experts_desc *e, const double *z, const uint16_t *expert, uint32_t j)
{
    double below = 1;
    if (e->normalize || e->softmax_after) {
        below = 0;
        for (uint32_t i = 0; i < e->top_k; i++) below += score_of(e, z, expert[i]);
    }
    return e->scale * score_of(e, z, expert[j]) / below;
}

static double group_of(const gr_experts_desc *e, const double *by, uint32_t g)
{
    const uint32_t size = e->count / e->groups;
    double best = -INFINITY;
    for (uint32_t a = 0; a < size; a++)
        for (uint32_t b = 0; b < size; b++)
            if (a != b || size == 1) best = fmax(best, by[g * size + a] + (size > 1 ? by[g * size + b] : 0));
    return best;
}

/* How many are before i: better, or as good and of a lower index. */
static uint32_t place_of(const double *x, const bool *in, uint32_t n, uint32_t i)
{
    uint32_t before = 0;
    for (uint32_t a = 0; a < n; a++)
        if (in[a]) before += x[a] > x[i] || (x[a] == x[i] && a < i);
    return before;
}

static double compared(const gr_experts_desc *e, const double *z, const float *selection, uint32_t i)
{
    return score_of(e, z, i) + (selection ? (double)selection[i] : 0);
}

static void choose(const gr_experts_desc *e, const double *z, const float *selection, uint16_t *expert)
{
    double by[GR_EXPERTS_MAX], group[GR_GROUPS_MAX];
    bool in[GR_EXPERTS_MAX], all[GR_GROUPS_MAX];
    for (uint32_t i = 0; i < e->count; i++) by[i] = compared(e, z, selection, i);
    for (uint32_t g = 0; g < e->groups; g++) {
        group[g] = group_of(e, by, g);
        all[g] = true;
    }
    for (uint32_t i = 0; i < e->count; i++)
        in[i] = e->groups < 2 || place_of(group, all, e->groups, i / (e->count / e->groups)) < e->top_groups;
    for (uint32_t i = 0; i < e->count; i++) {
        const uint32_t at = in[i] ? place_of(by, in, e->count, i) : UINT32_MAX;
        if (at < e->top_k) expert[at] = (uint16_t)i;
    }
}

/* Steps of 1/8, so that many logits are equal, and equal in double too. */
static float *coarse_logits(uint32_t T, uint32_t E, uint32_t seed)
{
    float *z = floats((size_t)T * E, 3, seed);
    for (size_t i = 0; i < (size_t)T * E; i++) z[i] = roundf(z[i] * 8) / 8;
    return z;
}

static void widen(const float *x, size_t n, double *to)
{
    for (size_t i = 0; i < n; i++) to[i] = (double)x[i];
}

/* How selection is held: [n, GR_SELECTION_PARTS]; x NULL: NULL. */
static float *parts_of(const float *x, size_t n)
{
    float *parts = x ? gr_malloc(n * GR_SELECTION_PARTS * sizeof(*parts)) : NULL;
    for (size_t i = 0; x && i < n; i++) gr_selection_parts(x[i], parts + i * GR_SELECTION_PARTS);
    return parts;
}

static void check_router(const gr_experts_desc *e, bool coarse)
{
    enum { T = 37 };
    const size_t E = e->count, k = e->top_k;
    float *z = coarse ? coarse_logits(T, e->count, 5) : floats(T * E, 4, 6);
    float *bias = e->selection_bias ? coarse_logits(1, e->count, 7) : NULL, *weight = floats(T * k, 1, 8);
    uint16_t *expert = gr_malloc(T * k * sizeof(*expert)), want[GR_CHOICES_MAX];
    float *parts = parts_of(bias, E);
    ops->route(&(gr_queue){0}, e, z, parts, NULL, T, expert, weight);
    for (size_t t = 0; t < T; t++) {
        double wide[GR_EXPERTS_MAX];
        widen(z + t * E, E, wide);
        choose(e, wide, bias, want);
        if (!bias) assert_memory_equal(expert + t * k, want, k * sizeof(*want));
        for (uint32_t j = 0; j < k; j++) /* a sum in fp32 may bring two together */
            assert_close(compared(e, wide, bias, expert[t * k + j]), compared(e, wide, bias, want[j]), 1e-6,
                         0);
        memcpy(want, expert + t * k, k * sizeof(*want));
        for (uint32_t j = 0; j < k; j++)
            assert_close(weight[t * k + j], weight_of(e, wide, want, j), 1e-6, 2e-6);
    }
    free(z), free(bias), free(parts), free(weight), free(expert);
}

/* Every fp32 is the sum of its parts, which bf16 holds: their lower bits are 0. */
static void test_selection_is_held_exactly(void **state)
{
    (void)state;
    uint32_t random = 1;
    for (int i = 0; i < 100000; i++) {
        const float x = ldexpf(value(&random), i % 60 - 40);
        float part[GR_SELECTION_PARTS];
        gr_selection_parts(x, part);
        assert_memory_equal(&(float){gr_selection_sum(part)}, &x, sizeof(x));
        for (int p = 0; p < GR_SELECTION_PARTS; p++) {
            uint32_t bits;
            memcpy(&bits, &part[p], sizeof(bits));
            assert_int_equal(bits & 0xffff, 0);
        }
        assert_true(part[3] == 0);
    }
    const float zero = 0;
    float part[GR_SELECTION_PARTS];
    gr_selection_parts(zero, part);
    assert_true(gr_selection_sum(part) == 0);
}

/* Biases that bf16 would make one choose: the lower index, not the higher bias. */
static void test_selection_is_not_rounded(void **state)
{
    (void)state;
    const gr_experts_desc e = {
        .count = 8, .top_k = 1, .scale = 1, .selection_bias = true, .router = GR_ROUTER_SIGMOID};
    const float z[8] = {0};
    for (uint16_t best = 0; best < 8; best++) {
        float bias[8], weight;
        uint16_t expert;
        for (int i = 0; i < 8; i++) bias[i] = 5.001f + (i == best ? 1e-5f : 0);
        float *parts = parts_of(bias, 8);
        ops->route(&(gr_queue){0}, &e, z, parts, NULL, 1, &expert, &weight);
        assert_int_equal(expert, best);
        free(parts);
    }
}

static void test_the_best_experts_are_chosen_and_weighed(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(routers); i++) check_router(&routers[i], false);
}

static void test_equal_logits_go_to_the_lower_index(void **state)
{
    (void)state;
    static const gr_experts_desc plain[] = {{.count = 128, .top_k = 8, .scale = 1, .normalize = true},
                                            {.count = 64, .top_k = 6, .scale = 1}};
    for (size_t i = 0; i < GR_LEN(plain); i++) check_router(&plain[i], true);
    const float zeros[4] = {0.0f, -0.0f, 0.0f, -0.0f};
    uint16_t expert[4];
    float weight[4];
    ops->route(&(gr_queue){0}, &(gr_experts_desc){.count = 4, .top_k = 4, .scale = 1}, zeros, NULL, NULL, 1,
               expert, weight);
    for (uint16_t i = 0; i < 4; i++) assert_int_equal(expert[i], i);
}

static void test_logits_that_are_no_numbers_still_choose_different_experts(void **state)
{
    (void)state;
    const gr_experts_desc e = {.count = 40, .top_k = 8, .scale = 1, .normalize = true};
    const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    for (uint32_t seed = 0; seed < 50; seed++) {
        uint32_t random = seed;
        float z[40], weight[8];
        uint16_t expert[8];
        bool seen[40] = {false};
        for (size_t i = 0; i < 40; i++) z[i] = odd[(uint32_t)((value(&random) + 1) * 3) % GR_LEN(odd)];
        ops->route(&(gr_queue){0}, &e, z, NULL, NULL, 1, expert, weight);
        for (size_t j = 0; j < 8; j++) {
            assert_in_range(expert[j], 0, 39);
            assert_false(seen[expert[j]]);
            seen[expert[j]] = true;
        }
    }
}

static void test_the_routers_gradient_is_the_slope_of_its_weights(void **state)
{
    (void)state;
    for (size_t r = 0; r < GR_LEN(routers); r++) {
        const gr_experts_desc *e = &routers[r];
        float *z = floats(e->count, 2, 9), *dw = floats(e->top_k, 1, 10);
        float weight[GR_CHOICES_MAX], dz[GR_EXPERTS_MAX];
        uint16_t expert[GR_CHOICES_MAX];
        double wide[GR_EXPERTS_MAX], want[GR_EXPERTS_MAX];
        ops->route(&(gr_queue){0}, e, z, NULL, NULL, 1, expert, weight);
        ops->route_backward(&(gr_queue){0}, e, z, expert, dw, 1, dz);
        widen(z, e->count, wide);
        for (uint32_t i = 0; i < e->count; i++) {
            const double step = 1e-4, at = wide[i];
            want[i] = 0;
            for (int side = -1; side <= 1; side += 2) {
                wide[i] = at + side * step;
                for (uint32_t j = 0; j < e->top_k; j++)
                    want[i] += side * (double)dw[j] * weight_of(e, wide, expert, j) / (2 * step);
            }
            wide[i] = at;
        }
        assert_near("d_logits", dz, want, e->count, 2e-6);
        free(z), free(dw);
    }
}

/* ---- dispatch ------------------------------------------------------------------------------------------ */

struct sorted {
    gr_dispatch d;
    void *memory;
};

static struct sorted sort(uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert)
{
    struct sorted s;
    gr_workspace c = {0};
    gr_dispatch_layout(&c, E, k, T, &s.d);
    c = (gr_workspace){.base = s.memory = gr_malloc(c.used + 1)};
    gr_dispatch_layout(&c, E, k, T, &s.d);
    void *ws = gr_malloc(ops->dispatch_ws_bytes(E, k, T));
    ops->dispatch(&(gr_queue){0}, E, k, T, expert, &s.d, ws);
    free(ws);
    return s;
}

static void check_dispatch(uint32_t E, uint32_t k, uint32_t T, const uint16_t *expert)
{
    struct sorted s = sort(E, k, T, expert);
    assert_int_equal(s.d.first[0], 0);
    assert_int_equal(s.d.first[E], T * k);
    for (uint32_t e = 0; e < E; e++)
        for (uint32_t r = s.d.first[e]; r < s.d.first[e + 1]; r++) {
            assert_int_equal(expert[s.d.choice[r]], e);
            assert_int_equal(s.d.row[s.d.choice[r]], r);
            if (r > s.d.first[e]) assert_true(s.d.choice[r] > s.d.choice[r - 1]);
        }
    free(s.memory);
}

static uint16_t *random_choices(uint32_t E, uint32_t k, uint32_t T, uint32_t seed)
{
    uint16_t *expert = gr_malloc(((size_t)T * k + 1) * sizeof(*expert));
    for (size_t t = 0; t < T; t++)
        for (uint32_t j = 0; j < k; j++) /* different ones: each from its own part of the experts */
            expert[t * k + j] = (uint16_t)(j * (E / k) + (uint32_t)((value(&seed) + 1) * 1000) % (E / k));
    return expert;
}

static void test_rows_are_sorted_by_expert_and_then_by_token(void **state)
{
    (void)state;
    static const uint32_t sides[][3] = {{8, 2, 1},     {8, 2, 100}, {128, 8, 333},
                                        {512, 10, 64}, {1, 1, 9},   {5, 1, 0}};
    for (size_t i = 0; i < GR_LEN(sides); i++) {
        const uint32_t *z = sides[i];
        uint16_t *expert = random_choices(z[0], z[1], z[2], 11);
        check_dispatch(z[0], z[1], z[2], expert);
        for (size_t c = 0; c < (size_t)z[2] * z[1]; c++)
            expert[c] = (uint16_t)(z[0] - 1); /* all to the last */
        check_dispatch(z[0], z[1], z[2], expert);
        free(expert);
    }
}

/* ---- the MLP ------------------------------------------------------------------------------------------- */

struct mlp {
    gr_experts_desc e;
    uint32_t T, H;
    bool again; /* of divided experts */
    float *x, *base, *dy, *router, *router_bias, *selection, *gate_up, *gate_up_bias, *down, *down_bias;
};

static struct mlp mlp_new(gr_experts_desc e, uint32_t T, uint32_t H)
{
    const size_t E = e.count, n = e.inner;
    return (struct mlp){.e = e,
                        .T = T,
                        .H = H,
                        .x = floats((size_t)T * H, 1, 21),
                        .base = floats((size_t)T * H, 1, 22),
                        .dy = floats((size_t)T * H, 1, 23),
                        .router = floats(E * H, 0.3f, 24),
                        .router_bias = e.router_bias ? floats(E, 0.5f, 25) : NULL,
                        .selection = e.selection_bias ? floats(E * GR_SELECTION_PARTS, 0.05f, 26) : NULL,
                        .gate_up = floats(E * 2 * n * H, 0.4f, 27),
                        .gate_up_bias = e.bias ? floats(E * 2 * n, 1, 28) : NULL,
                        .down = floats(E * H * n, 0.3f, 29),
                        .down_bias = e.bias ? floats(E * H, 0.5f, 30) : NULL};
}

static void mlp_free(struct mlp *m)
{
    float *const all[] = {m->x,         m->base,    m->dy,           m->router, m->router_bias,
                          m->selection, m->gate_up, m->gate_up_bias, m->down,   m->down_bias};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

/* What a pass over it gives. */
struct passed {
    void *acts_memory;
    gr_experts_acts acts;
    float *y, *dx, *router, *router_bias, *gate_up, *gate_up_bias, *down, *down_bias;
};

static void passed_free(struct passed *p)
{
    float *const all[] = {p->y,       p->dx,           p->router, p->router_bias,
                          p->gate_up, p->gate_up_bias, p->down,   p->down_bias};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
    free(p->acts_memory);
}

static gr_experts_call call_of(const struct mlp *m, uint32_t run, const uint16_t *given)
{
    return (gr_experts_call){.ops = ops,
                             .k = &gr_kernels_cpu,
                             .e = &m->e,
                             .type = GR_F32,
                             .T = m->T,
                             .H = m->H,
                             .run = GR_MIN(run, m->T),
                             .most = run,
                             .again = m->again,
                             .scale = 0.5f,
                             .x = m->x,
                             .given = given,
                             .w = {m->router, m->router_bias, m->selection, m->gate_up, m->gate_up_bias,
                                   m->down, m->down_bias, NULL}};
}

/* Gradients hold 1 already. */
static float *ones(size_t n)
{
    float *x = gr_malloc((n + 1) * sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = 1;
    return x;
}

static void *exactly(uint64_t bytes) /* AddressSanitizer holds it to them */
{
    void *p = gr_malloc(bytes + 1);
    memset(p, 0xff, bytes);
    return p;
}

static struct passed pass_on(gr_queue *q, const struct mlp *m, uint32_t run, const uint16_t *given)
{
    const size_t E = m->e.count, n = m->e.inner, H = m->H;
    const unsigned team = gr_team_size(q->team);
    gr_experts_call call = call_of(m, run, given);
    gr_workspace c = {0};
    struct passed p = {.y = exactly(m->T * H * 4),
                       .dx = exactly(m->T * H * 4),
                       .router = ones(E * H),
                       .router_bias = ones(E),
                       .gate_up = ones(E * 2 * n * H),
                       .gate_up_bias = ones(E * 2 * n),
                       .down = ones(E * H * n),
                       .down_bias = ones(E * H)};
    gr_experts_acts_layout(&c, &call, m->T, &p.acts);
    c = (gr_workspace){.base = p.acts_memory = exactly(c.used)};
    gr_experts_acts_layout(&c, &call, m->T, &p.acts);
    void *ws = exactly(gr_experts_ws_bytes(&call, GR_LAYER_KEEP));
    call.products = exactly(gr_experts_products_bytes(&call, team, false));
    gr_experts_forward(q, &call, m->base, p.y, &p.acts, ws);
    free(ws), free(call.products);
    const gr_experts_grads grads = {GR_F32,
                                    p.router,
                                    m->router_bias ? p.router_bias : NULL,
                                    p.gate_up,
                                    m->gate_up_bias ? p.gate_up_bias : NULL,
                                    p.down,
                                    m->down_bias ? p.down_bias : NULL,
                                    NULL};
    ws = exactly(gr_experts_ws_bytes(&call, GR_LAYER_BACKWARD));
    call.products = exactly(gr_experts_products_bytes(&call, team, true));
    gr_experts_backward(q, &call, &p.acts, m->dy, false, p.dx, &grads, ws);
    free(ws), free(call.products);
    return p;
}

static struct passed pass(const struct mlp *m, uint32_t run, const uint16_t *given, gr_team *team)
{
    return pass_on(&(gr_queue){.team = team}, m, run, given);
}

/* Gate and up to h; with its slopes. */
static double act(const gr_experts_desc *e, double g, double u)
{
    const double c = sqrt(2 / acos(-1.0));
    if (e->act == GR_ACT_SILU) return g / (1 + exp(-g)) * u;
    if (e->act == GR_ACT_GELU_TANH) return 0.5 * g * (1 + tanh(c * (g + 0.044715 * g * g * g))) * u;
    g = fmin(g, (double)e->limit);
    u = fmax(fmin(u, (double)e->limit), -(double)e->limit);
    return g / (1 + exp(-1.702 * g)) * (u + 1);
}

/* Of a dense MLP: against the formula, and its slopes against differences. */
static void test_a_dense_mlp_has_clamped_swiglu(void **state)
{
    (void)state;
    enum { T = 5, I = 300 };
    const gr_dense_desc d = {.inner = I, .act = GR_ACT_SWIGLU_OAI, .limit = 1.5f};
    const gr_experts_desc e = {.act = d.act, .limit = d.limit};
    const gr_layer_ops *layer = gr_kernels_cpu.layer;
    assert_true(layer->acts >> GR_ACT_SWIGLU_OAI & 1);
    float *in = floats(T * 2 * I, 3, 61), *dh = floats(T * I, 1, 62), *h = exactly(T * I * 4),
          *again = exactly(T * I * 4), *back = exactly(T * 2 * I * 4);
    layer->activate(&(gr_queue){0}, &d, T, in, h);
    layer->activate_backward(&(gr_queue){0}, &d, T, in, dh, back, again);
    assert_memory_equal(h, again, T * I * 4);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < I; i++) {
            const size_t at = t * 2 * I + i;
            const double g = (double)in[at], u = (double)in[at + I], step = 1e-6, by = (double)dh[t * I + i];
            assert_close(h[t * I + i], act(&e, g, u), 1e-6, 1e-5);
            if (fabs(g - 1.5) < 1e-4 || fabs(fabs(u) - 1.5) < 1e-4) continue; /* where slopes jump */
            assert_close(back[at], by * (act(&e, g + step, u) - act(&e, g - step, u)) / (2 * step), 1e-5,
                         1e-4);
            assert_close(back[at + I], by * (act(&e, g, u + step) - act(&e, g, u - step)) / (2 * step), 1e-5,
                         1e-4);
        }
    free(in), free(dh), free(h), free(again), free(back);
}

struct reference {
    double *y, *dx, *router, *router_bias, *gate_up, *gate_up_bias, *down, *down_bias;
};

static double *doubles(size_t n, double x)
{
    double *to = gr_malloc((n + 1) * sizeof(*to));
    for (size_t i = 0; i < n; i++) to[i] = x;
    return to;
}

/* One choice of a token through its expert, and back: adds to y and to all gradients, returns d_weight. */
static double expert_reference(const struct mlp *m, struct reference *r, size_t t, size_t e, double weight)
{
    const size_t n = m->e.inner, H = m->H;
    const float *x = m->x + t * H, *wg = m->gate_up + e * 2 * n * H, *wd = m->down + e * H * n;
    double *gu = doubles(2 * n, 0), *h = doubles(n, 0), *dh = doubles(n, 0), d_weight = 0;
    for (size_t i = 0; i < 2 * n; i++) {
        gu[i] = m->gate_up_bias ? (double)m->gate_up_bias[e * 2 * n + i] : 0;
        for (size_t c = 0; c < H; c++) gu[i] += (double)wg[i * H + c] * (double)x[c];
    }
    for (size_t i = 0; i < n; i++) h[i] = act(&m->e, gu[i], gu[n + i]);
    for (size_t c = 0; c < H; c++) {
        const double dy = (double)m->dy[t * H + c];
        double out = m->down_bias ? (double)m->down_bias[e * H + c] : 0;
        for (size_t i = 0; i < n; i++) out += (double)wd[c * n + i] * h[i];
        r->y[t * H + c] += 0.5 * weight * out;
        d_weight += dy * out;
        r->down_bias[e * H + c] += weight * dy;
        for (size_t i = 0; i < n; i++) {
            dh[i] += weight * dy * (double)wd[c * n + i];
            r->down[(e * H + c) * n + i] += weight * dy * h[i];
        }
    }
    for (size_t i = 0; i < 2 * n; i++) {
        const double s = 1e-5, a = gu[i % n], b = gu[n + i % n];
        const double up = i < n ? act(&m->e, a + s, b) : act(&m->e, a, b + s);
        const double low = i < n ? act(&m->e, a - s, b) : act(&m->e, a, b - s),
                     d = dh[i % n] * (up - low) / (2 * s);
        r->gate_up_bias[e * 2 * n + i] += d;
        for (size_t c = 0; c < H; c++) {
            r->dx[t * H + c] += d * (double)wg[i * H + c];
            r->gate_up[(e * 2 * n + i) * H + c] += d * (double)x[c];
        }
    }
    free(gu), free(h), free(dh);
    return d_weight;
}

static void token_reference(const struct mlp *m, struct reference *r, size_t t, const uint16_t *expert)
{
    const size_t E = m->e.count, H = m->H;
    double z[GR_EXPERTS_MAX], dw[GR_CHOICES_MAX];
    for (size_t i = 0; i < E; i++) {
        z[i] = m->router_bias ? (double)m->router_bias[i] : 0;
        for (size_t c = 0; c < H; c++) z[i] += (double)m->router[i * H + c] * (double)m->x[t * H + c];
    }
    for (uint32_t j = 0; j < m->e.top_k; j++)
        dw[j] = expert_reference(m, r, t, expert[j], weight_of(&m->e, z, expert, j));
    for (size_t i = 0; i < E; i++) {
        const double step = 1e-5, at = z[i];
        double dz = 0;
        for (int side = -1; side <= 1; side += 2) {
            z[i] = at + side * step;
            for (uint32_t j = 0; j < m->e.top_k; j++)
                dz += side * dw[j] * weight_of(&m->e, z, expert, j) / (2 * step);
        }
        z[i] = at;
        r->router_bias[i] += dz;
        for (size_t c = 0; c < H; c++) {
            r->router[i * H + c] += dz * (double)m->x[t * H + c];
            r->dx[t * H + c] += dz * (double)m->router[i * H + c];
        }
    }
}

static void check_against_reference(const struct mlp *m, const struct passed *p)
{
    const size_t E = m->e.count, n = m->e.inner, H = m->H, all = m->T * H;
    struct reference r = {doubles(all, 0),       doubles(all, 0),           doubles(E * H, 1),
                          doubles(E, 1),         doubles(E * 2 * n * H, 1), doubles(E * 2 * n, 1),
                          doubles(E * H * n, 1), doubles(E * H, 1)};
    widen(m->base, all, r.y);
    for (size_t t = 0; t < m->T; t++) token_reference(m, &r, t, p->acts.expert + t * m->e.top_k);
    assert_near("y", p->y, r.y, all, 1e-5);
    assert_near("dx", p->dx, r.dx, all, 1e-4);
    assert_near("router", p->router, r.router, E * H, 1e-4);
    assert_near("gate_up", p->gate_up, r.gate_up, E * 2 * n * H, 1e-4);
    assert_near("down", p->down, r.down, E * H * n, 1e-4);
    if (m->router_bias) assert_near("router_bias", p->router_bias, r.router_bias, E, 1e-4);
    if (m->gate_up_bias) assert_near("gate_up_bias", p->gate_up_bias, r.gate_up_bias, E * 2 * n, 1e-4);
    if (m->down_bias) assert_near("down_bias", p->down_bias, r.down_bias, E * H, 1e-4);
    double *const every[] = {r.y,       r.dx,           r.router, r.router_bias,
                             r.gate_up, r.gate_up_bias, r.down,   r.down_bias};
    for (size_t i = 0; i < GR_LEN(every); i++) free(every[i]);
}

static const struct {
    gr_experts_desc e;
    uint32_t T, H;
} shapes[] = {
    {{.count = 8, .top_k = 2, .inner = 24, .scale = 1, .normalize = true}, 29, 40},
    {{.count = 5, .top_k = 3, .inner = 7, .scale = 1}, 13, 11},
    {{.count = 6,
      .top_k = 2,
      .inner = 17,
      .scale = 1,
      .softmax_after = true,
      .router_bias = true,
      .bias = true,
      .act = GR_ACT_SWIGLU_OAI,
      .limit = 1.5f},
     23,
     19},
    {{.count = 16,
      .top_k = 4,
      .inner = 12,
      .scale = 2.5f,
      .normalize = true,
      .groups = 4,
      .top_groups = 2,
      .selection_bias = true,
      .router = GR_ROUTER_SIGMOID},
     31,
     24},
    {{.count = 4, .top_k = 1, .inner = 300, .scale = 1, .act = GR_ACT_GELU_TANH}, 3, 9},
    {{.count = 64, .top_k = 8, .inner = 8, .scale = 1, .normalize = true}, 1, 16},
    {{.count = 1, .top_k = 1, .inner = 5, .scale = 1}, 70, 6},
};

static void test_the_mlp_and_its_gradients_are_those_in_double(void **state)
{
    (void)state;
    for (size_t i = 0; i < GR_LEN(shapes); i++) {
        struct mlp m = mlp_new(shapes[i].e, shapes[i].T, shapes[i].H);
        struct passed p = pass(&m, m.T, NULL, NULL);
        check_against_reference(&m, &p);
        passed_free(&p);
        mlp_free(&m);
    }
}

static void assert_same_bits(const struct mlp *m, const struct passed *a, const struct passed *b)
{
    const size_t E = m->e.count, n = m->e.inner, H = m->H;
    assert_memory_equal(a->y, b->y, m->T * H * 4);
    assert_memory_equal(a->dx, b->dx, m->T * H * 4);
    assert_memory_equal(a->router, b->router, E * H * 4);
    assert_memory_equal(a->gate_up, b->gate_up, E * 2 * n * H * 4);
    assert_memory_equal(a->down, b->down, E * H * n * 4);
    assert_memory_equal(a->down_bias, b->down_bias, E * H * 4);
}

static void test_runs_of_tokens_and_threads_do_not_change_bits(void **state)
{
    (void)state;
    gr_diag d;
    gr_team *team;
    gr_diag_init(&d);
    assert_int_equal(gr_team_new(&team, 3, &d), GR_OK);
    for (size_t i = 0; i < GR_LEN(shapes); i++) {
        struct mlp m = mlp_new(shapes[i].e, shapes[i].T, shapes[i].H);
        struct passed whole = pass(&m, m.T, NULL, NULL);
        for (uint32_t run = 1; run <= m.T; run += 1 + run / 2) {
            struct passed p = pass(&m, run, NULL, run % 2 ? team : NULL);
            assert_same_bits(&m, &whole, &p);
            passed_free(&p);
        }
        passed_free(&whole);
        mlp_free(&m);
    }
    gr_team_free(team);
    gr_diag_release(&d);
}

static void test_a_token_has_the_same_bits_alone(void **state)
{
    (void)state;
    struct mlp m = mlp_new(shapes[0].e, shapes[0].T, shapes[0].H);
    struct passed all = pass(&m, m.T, NULL, NULL);
    for (uint32_t t = 0; t < m.T; t++) {
        struct mlp one = m;
        one.T = 1;
        one.x += (size_t)t * m.H;
        one.base += (size_t)t * m.H;
        one.dy += (size_t)t * m.H;
        struct passed p = pass(&one, 1, NULL, NULL);
        assert_memory_equal(p.y, all.y + (size_t)t * m.H, m.H * 4);
        assert_memory_equal(p.dx, all.dx + (size_t)t * m.H, m.H * 4);
        passed_free(&p);
    }
    passed_free(&all);
    mlp_free(&m);
}

static void test_experts_that_are_given_are_followed(void **state)
{
    (void)state;
    struct mlp m = mlp_new(shapes[3].e, shapes[3].T, shapes[3].H);
    struct passed chosen = pass(&m, m.T, NULL, NULL), again = pass(&m, 7, chosen.acts.expert, NULL);
    assert_same_bits(&m, &chosen, &again);
    uint16_t *other = random_choices(m.e.count, m.e.top_k, m.T, 31);
    struct passed p = pass(&m, 10, other, NULL);
    assert_memory_equal(p.acts.expert, other, (size_t)m.T * m.e.top_k * sizeof(*other));
    check_against_reference(&m, &p);
    passed_free(&p), passed_free(&chosen), passed_free(&again);
    free(other);
    mlp_free(&m);
}

/* All tokens to the same experts: exact, in the same workspace. */
static void test_a_router_that_sends_all_to_one_expert_is_exact(void **state)
{
    (void)state;
    struct mlp m = mlp_new(
        (gr_experts_desc){
            .count = 8, .top_k = 2, .inner = 24, .scale = 1, .normalize = true, .router_bias = true},
        60, 16);
    for (size_t i = 0; i < m.e.count; i++) m.router_bias[i] = i == 5 ? 100 : i == 2 ? 50 : 0;
    const gr_experts_call call = call_of(&m, 16, NULL);
    const uint64_t bytes = gr_experts_ws_bytes(&call, GR_LAYER_BACKWARD);
    struct passed p = pass(&m, 16, NULL, NULL);
    for (size_t t = 0; t < m.T; t++) {
        assert_int_equal(p.acts.expert[2 * t], 5);
        assert_int_equal(p.acts.expert[2 * t + 1], 2);
    }
    check_against_reference(&m, &p);
    struct mlp more = m;
    more.T = 4000; /* the workspace is that of a run */
    const gr_experts_call large = call_of(&more, 16, NULL);
    assert_int_equal(gr_experts_ws_bytes(&large, GR_LAYER_BACKWARD), bytes);
    passed_free(&p);
    mlp_free(&m);
}

/* ---- experts over ranks, which are threads here ---------------------------------------------------------
 */

enum { RANKS_MAX = 4 };

struct rank {
    struct thread_comm at;
    gr_tp_group peers;
    struct mlp m;
    uint32_t run;
    const uint16_t *given;
    struct passed passed;
    pthread_t thread;
};

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    gr_queue q = {.holders = &r->peers};
    r->passed = pass_on(&q, &r->m, r->run, r->given);
    return NULL;
}

/* Rank r of n of a whole: tokens [first, end), and its experts. */
static struct mlp share_of(const struct mlp *m, uint32_t r, uint32_t n, uint32_t first, uint32_t end)
{
    const size_t at = (size_t)first * m->H, e = (size_t)r * m->e.count / n, I = m->e.inner, H = m->H;
    struct mlp s = *m;
    s.e.holders = n;
    s.T = end - first;
    s.x += at, s.base += at, s.dy += at;
    s.gate_up += e * 2 * I * H, s.down += e * H * I;
    if (m->e.bias) s.gate_up_bias += e * 2 * I, s.down_bias += e * H;
    return s;
}

static void assert_sums(const char *what, const float *want, size_t n, const float *const *parts,
                        uint32_t ranks)
{
    double *sum = doubles(n, 1); /* they hold 1 from the beginning */
    for (uint32_t r = 0; r < ranks; r++)
        for (size_t i = 0; i < n; i++) sum[i] += (double)parts[r][i] - 1;
    assert_near(what, want, sum, n, 1e-4);
    free(sum);
}

/* Of all ranks' parts of gradients: a router's are added up, experts' stand side by side. */
static void check_gradients(const struct mlp *m, const struct passed *whole, const struct rank *rank,
                            uint32_t n)
{
    const size_t E = m->e.count, held = E / n, I = m->e.inner, H = m->H;
    const float *router[RANKS_MAX], *bias[RANKS_MAX];
    for (uint32_t r = 0; r < n; r++) {
        const struct passed *p = &rank[r].passed;
        const size_t e = r * held;
        router[r] = p->router, bias[r] = p->router_bias;
        assert_sums("gate_up", whole->gate_up + e * 2 * I * H, held * 2 * I * H, &(const float *){p->gate_up},
                    1);
        assert_sums("down", whole->down + e * H * I, held * H * I, &(const float *){p->down}, 1);
        assert_sums("gate_up_bias", whole->gate_up_bias + e * 2 * I, held * 2 * I,
                    &(const float *){p->gate_up_bias}, 1);
        assert_sums("down_bias", whole->down_bias + e * H, held * H, &(const float *){p->down_bias}, 1);
    }
    assert_sums("router", whole->router, E * H, router, n);
    assert_sums("router_bias", whole->router_bias, E, bias, n);
}

/* How many exchanges it took. Tokens are dealt unevenly, and one rank may have none. */
static uint32_t check_ranks(const struct mlp *m, uint32_t n, uint32_t run, const uint16_t *given)
{
    struct thread_group group = {.n = n};
    struct rank rank[RANKS_MAX];
    struct passed whole = pass(m, m->T, given, NULL);
    uint32_t first = 0;
    pthread_barrier_init(&group.barrier, NULL, n);
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t end = r + 1 == n ? m->T : r == 1 ? first : first + m->T / n;
        rank[r] = (struct rank){.at = thread_comm_of(&group, r, n),
                                .m = share_of(m, r, n, first, end),
                                .run = run,
                                .given = given ? given + (size_t)first * m->e.top_k : NULL};
        rank[r].peers.comm = &rank[r].at.comm;
        first = end;
    }
    for (uint32_t r = 0; r < n; r++) pthread_create(&rank[r].thread, NULL, run_rank, &rank[r]);
    for (uint32_t r = 0; r < n; r++) pthread_join(rank[r].thread, NULL);
    for (uint32_t r = 0; r < n; r++) {
        const size_t at = (size_t)(rank[r].m.x - m->x), bytes = (size_t)rank[r].m.T * m->H * sizeof(float);
        assert_memory_equal(rank[r].passed.y, whole.y + at, bytes);
        assert_memory_equal(rank[r].passed.dx, whole.dx + at, bytes);
    }
    check_gradients(m, &whole, rank, n);
    for (uint32_t r = 0; r < n; r++) passed_free(&rank[r].passed);
    passed_free(&whole);
    pthread_barrier_destroy(&group.barrier);
    return group.moves;
}

static void test_experts_over_ranks_give_a_token_the_same_bits(void **state)
{
    (void)state;
    const size_t shape[] = {0, 2, 3};
    for (size_t i = 0; i < GR_LEN(shape); i++) {
        const gr_experts_desc e = shapes[shape[i]].e;
        struct mlp m = mlp_new(e, shapes[shape[i]].T, shapes[shape[i]].H);
        uint16_t *given = random_choices(e.count, e.top_k, m.T, 31);
        for (uint32_t n = 2; n <= RANKS_MAX; n++)
            for (uint32_t run = 1; run <= 2 * m.T && e.count % n == 0; run *= 3, m.again = !m.again)
                check_ranks(&m, n, run, run % 2 ? NULL : given);
        check_ranks(&m, 2, 5, given);
        free(given);
        mlp_free(&m);
    }
}

/* All rows to one rank: exact, in the same buffers, by more trips. */
static void test_a_router_that_sends_all_to_one_rank_takes_more_trips(void **state)
{
    (void)state;
    const gr_experts_desc e = {
        .count = 8, .top_k = 2, .inner = 12, .scale = 1, .normalize = true, .router_bias = true};
    struct mlp m = mlp_new(e, 64, 16), share = share_of(&m, 0, 4, 0, 16);
    uint16_t *even = gr_malloc(64 * 2 * sizeof(*even));
    for (uint16_t i = 0; i < 128; i++) even[i] = i % 8;
    const uint32_t told = 2 * 3; /* once a run */
    const gr_experts_call call = call_of(&share, 16, NULL);
    const uint64_t bytes = gr_experts_ws_bytes(&call, GR_LAYER_BACKWARD);
    /* forward 3 and backward 6 exchanges a trip; ranks have 16, 0, 16 and 32 tokens: two runs of 16, and one
     * more because the last was full */
    assert_int_equal(check_ranks(&m, 4, 16, even), 2 * (3 + 6) + told);
    for (size_t i = 0; i < 8; i++) m.router_bias[i] = i == 3 ? 100 : i == 2 ? 50 : 0;
    assert_int_equal(gr_experts_slot(&share.e, 16), 16);
    assert_int_equal(check_ranks(&m, 4, 16, NULL), 2 * 2 * (3 + 6) + told);
    share.T = 4000;
    const gr_experts_call large = call_of(&share, 16, NULL);
    assert_int_equal(gr_experts_ws_bytes(&large, GR_LAYER_BACKWARD), bytes);
    free(even);
    mlp_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_best_experts_are_chosen_and_weighed),
        cmocka_unit_test(test_equal_logits_go_to_the_lower_index),
        cmocka_unit_test(test_a_dense_mlp_has_clamped_swiglu),
        cmocka_unit_test(test_selection_is_held_exactly),
        cmocka_unit_test(test_selection_is_not_rounded),
        cmocka_unit_test(test_logits_that_are_no_numbers_still_choose_different_experts),
        cmocka_unit_test(test_the_routers_gradient_is_the_slope_of_its_weights),
        cmocka_unit_test(test_rows_are_sorted_by_expert_and_then_by_token),
        cmocka_unit_test(test_the_mlp_and_its_gradients_are_those_in_double),
        cmocka_unit_test(test_runs_of_tokens_and_threads_do_not_change_bits),
        cmocka_unit_test(test_a_token_has_the_same_bits_alone),
        cmocka_unit_test(test_experts_that_are_given_are_followed),
        cmocka_unit_test(test_a_router_that_sends_all_to_one_expert_is_exact),
        cmocka_unit_test(test_experts_over_ranks_give_a_token_the_same_bits),
        cmocka_unit_test(test_a_router_that_sends_all_to_one_rank_takes_more_trips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
