/* The gated delta rule of the CPU device: against its definition in double, gradients against differences of
 * that, Hugging Face transformers, and the same bits however sequences are packed or cut. Sizes of CUDA's. */
#include <jansson.h>

#include "ops/kernels/delta.h"
#include "tests/unit/model_fixture.h"

enum { SEQS_MAX = 8, HEADS_MAX = 8, DIM_MAX = 32 };

typedef struct problem {
    gr_delta_call c;
    uint32_t offset[SEQS_MAX + 1];
    float *in, *dout, *conv, *a_log, *dt_bias, *norm;
    gr_queue q;
} problem;

static float *random_floats(size_t n, float scale, uint32_t seed)
{
    float *x = gr_calloc(n, sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = scale * fx_random(&seed);
    return x;
}

static problem problem_new(gr_delta_desc d, uint32_t n_seqs, const uint32_t *length, unsigned threads)
{
    problem p = {.c = {.d = d, .eps = 1e-6f, .n_seqs = n_seqs}};
    for (uint32_t i = 0; i < n_seqs; i++) {
        p.offset[i + 1] = p.offset[i] + length[i];
        p.c.longest = GR_MAX(p.c.longest, length[i]);
    }
    p.c.n_tokens = p.offset[n_seqs];
    p.in = random_floats((size_t)p.c.n_tokens * gr_delta_in(&d), 2, 1);
    p.dout = random_floats((size_t)p.c.n_tokens * gr_delta_out(&d), 1, 2);
    p.conv = random_floats((size_t)gr_delta_channels(&d) * d.conv, 1, 3);
    p.a_log = random_floats(d.value_heads, 1, 4);
    p.dt_bias = random_floats(d.value_heads, 1, 5);
    p.norm = random_floats(d.value_dim, 1, 6);
    assert_int_equal(gr_team_new(&p.q.team, threads, NULL), GR_OK);
    return p;
}

static void problem_free(problem *p)
{
    float *const all[] = {p->in, p->dout, p->conv, p->a_log, p->dt_bias, p->norm};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
    gr_team_free(p->q.team);
}

/* The call of a problem, whose workspace the caller frees. */
static gr_delta_call call_of(problem *p, gr_layer_use use)
{
    gr_delta_call c = p->c;
    const gr_pass_bounds b = {
        .tokens = c.n_tokens, .seqs = c.n_seqs, .length = c.longest, .threads = gr_team_size(p->q.team)};
    c.conv = p->conv, c.a_log = p->a_log, c.dt_bias = p->dt_bias, c.norm = p->norm;
    c.in = p->in;
    c.offset = p->offset;
    c.ws = fx_dirty(gr_delta_cpu.ws_bytes(&c.d, &b, use));
    return c;
}

typedef struct result {
    float *out, *mixed, *din, *conv, *a_log, *dt_bias, *norm;
} result;

static result run(problem *p)
{
    const gr_delta_desc *d = &p->c.d;
    const size_t t = p->c.n_tokens;
    result r = {.out = fx_dirty(t * gr_delta_out(d) * 4),
                .mixed = fx_dirty(t * gr_delta_out(d) * 4),
                .din = fx_dirty(t * gr_delta_in(d) * 4),
                .conv = gr_calloc((size_t)gr_delta_channels(d) * d->conv, 4),
                .a_log = gr_calloc(d->value_heads, 4),
                .dt_bias = gr_calloc(d->value_heads, 4),
                .norm = gr_calloc(d->value_dim, 4)};
    const gr_delta_grads g = {GR_F32, r.conv, r.a_log, r.dt_bias, r.norm};
    gr_delta_call c = call_of(p, GR_LAYER_FORWARD), back = call_of(p, GR_LAYER_BACKWARD);
    gr_delta_cpu.forward(&p->q, &c, r.out, r.mixed);
    gr_delta_cpu.backward(&p->q, &back, r.mixed, p->dout, r.din, &g);
    free(c.ws), free(back.ws);
    return r;
}

static void result_free(result *r)
{
    float *const all[] = {r->out, r->mixed, r->din, r->conv, r->a_log, r->dt_bias, r->norm};
    for (size_t i = 0; i < GR_LEN(all); i++) free(all[i]);
}

/* ---- the definition, in double --------------------------------------------------------------------------
 */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* One channel of q, k and v. */
static double channel(const problem *p, uint32_t first, uint32_t t, uint32_t i)
{
    const uint32_t taps = p->c.d.conv, width = gr_delta_in(&p->c.d);
    double sum = 0;
    for (uint32_t k = 0; k < taps && k <= t; k++)
        sum += (double)p->conv[i * taps + taps - 1 - k] * (double)p->in[(size_t)(first + t - k) * width + i];
    return silu(sum);
}

static void unit(const problem *p, uint32_t first, uint32_t t, uint32_t at, double *x)
{
    double sum = 1e-6;
    for (uint32_t i = 0; i < p->c.d.key_dim; i++) {
        x[i] = channel(p, first, t, at + i);
        sum += x[i] * x[i];
    }
    for (uint32_t i = 0; i < p->c.d.key_dim; i++) x[i] /= sqrt(sum);
}

static void define_step(const problem *p, uint32_t first, uint32_t t, uint32_t h, double (*s)[DIM_MAX],
                        double *out)
{
    const gr_delta_desc *d = &p->c.d;
    const uint32_t kh = h / (d->value_heads / d->key_heads),
                   v_at = 2 * d->key_heads * d->key_dim + h * d->value_dim;
    const float *row = p->in + (size_t)(first + t) * gr_delta_in(d),
                *z = row + gr_delta_channels(d) + h * d->value_dim;
    const float *ba = row + gr_delta_in(d) - 2 * d->value_heads;
    double q[DIM_MAX], k[DIM_MAX], u[DIM_MAX], sum = 0;
    const double beta = 1 / (1 + exp(-(double)ba[h]));
    const double decay =
        exp(-exp((double)p->a_log[h]) * log1p(exp((double)ba[d->value_heads + h] + (double)p->dt_bias[h])));
    unit(p, first, t, kh * d->key_dim, q);
    unit(p, first, t, (d->key_heads + kh) * d->key_dim, k);
    for (uint32_t c = 0; c < d->value_dim; c++) {
        double r = 0;
        for (uint32_t i = 0; i < d->key_dim; i++) r += (s[i][c] *= decay) * k[i];
        u[c] = beta * (channel(p, first, t, v_at + c) - r);
    }
    for (uint32_t c = 0; c < d->value_dim; c++) {
        out[c] = 0;
        for (uint32_t i = 0; i < d->key_dim; i++)
            out[c] += (s[i][c] += k[i] * u[c]) * q[i] / sqrt((double)d->key_dim);
        sum += out[c] * out[c];
    }
    for (uint32_t c = 0; c < d->value_dim; c++)
        out[c] *= (double)p->norm[c] / sqrt(sum / d->value_dim + (double)p->c.eps) * silu((double)z[c]);
}

/* Sum of out times dout; want, where not NULL, receives out. */
static double define(const problem *p, double *want)
{
    const gr_delta_desc *d = &p->c.d;
    double loss = 0, out[DIM_MAX], s[DIM_MAX][DIM_MAX];
    for (uint32_t seq = 0; seq < p->c.n_seqs; seq++)
        for (uint32_t h = 0; h < d->value_heads; h++) {
            memset(s, 0, sizeof(s));
            for (uint32_t t = p->offset[seq]; t < p->offset[seq + 1]; t++) {
                const size_t at = (size_t)t * gr_delta_out(d) + h * d->value_dim;
                define_step(p, p->offset[seq], t - p->offset[seq], h, s, out);
                for (uint32_t c = 0; c < d->value_dim; c++) loss += out[c] * (double)p->dout[at + c];
                if (want) memcpy(want + at, out, d->value_dim * sizeof(*want));
            }
        }
    return loss;
}

static void check_slopes(problem *p, float *x, const float *got, size_t n, size_t step)
{
    for (size_t i = 0; i < n; i += step) {
        const float was = x[i], up = was + 0x1p-13f, down = was - 0x1p-13f;
        x[i] = up;
        const double high = define(p, NULL);
        x[i] = down;
        const double low = define(p, NULL);
        x[i] = was;
        assert_close(got[i], (high - low) / ((double)up - (double)down), 4e-4, 4e-4);
    }
}

/* ---- tests ----------------------------------------------------------------------------------------------
 */

static const gr_delta_desc shapes[] = {{1, 1, 8, 8, 4, false, false},
                                       {2, 4, 16, 24, 4, false, false},
                                       {2, 2, 20, 12, 2, false, false},
                                       {1, 3, 8, 32, 5, true, false}};

static void test_outputs_and_gradients_agree_with_their_definition(void **state)
{
    (void)state;
    const uint32_t length[] = {1, 0, 37, 2, 66};
    for (size_t s = 0; s < GR_LEN(shapes); s++) {
        const gr_delta_desc *d = &shapes[s];
        problem p = problem_new(*d, GR_LEN(length), length, 2);
        const size_t n_out = (size_t)p.c.n_tokens * gr_delta_out(d),
                     n_in = (size_t)p.c.n_tokens * gr_delta_in(d);
        double *want = gr_calloc(n_out, sizeof(*want));
        result r = run(&p);
        define(&p, want);
        for (size_t i = 0; i < n_out; i++) assert_close(r.out[i], want[i], 2e-5, 2e-5);
        check_slopes(&p, p.in, r.din, n_in, n_in / 41);
        check_slopes(&p, p.conv, r.conv, (size_t)gr_delta_channels(d) * d->conv, 17);
        check_slopes(&p, p.a_log, r.a_log, d->value_heads, 1);
        check_slopes(&p, p.dt_bias, r.dt_bias, d->value_heads, 1);
        check_slopes(&p, p.norm, r.norm, d->value_dim, 5);
        free(want);
        result_free(&r);
        problem_free(&p);
    }
}

static void test_a_packed_sequence_has_the_bits_of_one_alone(void **state)
{
    (void)state;
    const uint32_t length[] = {5, 70, 1, 0, 33};
    problem p = problem_new(shapes[1], 5, length, 3);
    const size_t out = gr_delta_out(&p.c.d), in = gr_delta_in(&p.c.d);
    result packed = run(&p);
    for (uint32_t i = 0; i < 5; i++) {
        const size_t t = p.offset[i];
        problem one = p;
        one.c.n_seqs = 1, one.c.n_tokens = one.c.longest = one.offset[1] = length[i];
        one.in = p.in + t * in, one.dout = p.dout + t * out;
        result alone = run(&one);
        assert_memory_equal(alone.out, packed.out + t * out, length[i] * out * 4);
        assert_memory_equal(alone.din, packed.din + t * in, length[i] * in * 4);
        result_free(&alone);
    }
    result_free(&packed);
    problem_free(&p);
}

static void test_gradients_of_weights_go_on_where_an_earlier_pass_left_them(void **state)
{
    (void)state;
    const uint32_t length[] = {40, 9};
    problem p = problem_new(shapes[1], 2, length, 2);
    result both = run(&p), first;
    problem one = p, two = p;
    one.c.n_seqs = two.c.n_seqs = 1;
    one.c.n_tokens = 40, two.c.n_tokens = 9, two.offset[1] = 9;
    two.in = p.in + 40 * gr_delta_in(&p.c.d), two.dout = p.dout + 40 * gr_delta_out(&p.c.d);
    first = run(&one);
    const gr_delta_grads g = {GR_F32, first.conv, first.a_log, first.dt_bias, first.norm};
    gr_delta_call c = call_of(&two, GR_LAYER_BACKWARD);
    gr_delta_cpu.backward(&p.q, &c, both.mixed + 40 * gr_delta_out(&p.c.d), two.dout, first.din, &g);
    assert_memory_equal(first.conv, both.conv, gr_delta_channels(&p.c.d) * p.c.d.conv * 4);
    assert_memory_equal(first.a_log, both.a_log, p.c.d.value_heads * 4);
    assert_memory_equal(first.dt_bias, both.dt_bias, p.c.d.value_heads * 4);
    assert_memory_equal(first.norm, both.norm, p.c.d.value_dim * 4);
    free(c.ws);
    result_free(&both), result_free(&first);
    problem_free(&p);
}

/* Two sequences in slots 3 and 1 of four, each call as many tokens of both as `calls` says. */
static void run_in_calls(problem *p, const uint32_t *calls, size_t n_calls, float *out, float *states)
{
    const uint32_t slot[] = {3, 1}, n = p->offset[1];
    const size_t in = gr_delta_in(&p->c.d), wide = gr_delta_out(&p->c.d);
    uint32_t cached[] = {0, 0};
    float *rows = gr_calloc(2 * n * in, 4), *got = gr_calloc(2 * n * wide, 4);
    for (size_t i = 0; i < n_calls; i++) {
        problem part = *p;
        const uint32_t t = calls[i];
        for (uint32_t s = 0; s < 2; s++)
            memcpy(rows + s * t * in, p->in + (p->offset[s] + cached[s]) * in, t * in * 4);
        part.in = rows;
        part.offset[1] = part.c.longest = t, part.offset[2] = part.c.n_tokens = 2 * t;
        gr_delta_call c = call_of(&part, GR_LAYER_FORWARD);
        c.state = states, c.slot = slot, c.cached = cached;
        gr_delta_cpu.forward(&p->q, &c, got, NULL);
        for (uint32_t s = 0; s < 2; s++) {
            memcpy(out + (p->offset[s] + cached[s]) * wide, got + s * t * wide, t * wide * 4);
            cached[s] += t;
        }
        free(c.ws);
    }
    free(rows), free(got);
}

static void test_parts_and_steps_have_the_bits_of_the_whole(void **state)
{
    (void)state;
    const uint32_t length[] = {90, 90}, steps[90] = {0}, parts[] = {1, 2, 64, 1, 1, 3, 18}, whole[] = {90};
    uint32_t ones[90];
    for (int i = 0; i < 90; i++) ones[i] = 1 + steps[i];
    for (size_t s = 0; s < GR_LEN(shapes); s++) {
        problem p = problem_new(shapes[s], 2, length, 2);
        const size_t bytes = 180 * gr_delta_out(&p.c.d) * 4, of = gr_delta_state_bytes(&p.c.d);
        float *out = fx_dirty(bytes), *states[3];
        result r = run(&p);
        for (int i = 0; i < 3; i++) {
            states[i] = fx_dirty(4 * of); /* slots of unknown content */
            run_in_calls(&p,
                         i == 0   ? ones
                         : i == 1 ? parts
                                  : whole,
                         i == 0   ? 90
                         : i == 1 ? 7
                                  : 1,
                         out, states[i]);
            assert_memory_equal(out, r.out, bytes);
            assert_memory_equal(states[i], states[0], 4 * of);
        }
        for (int i = 0; i < 3; i++) free(states[i]);
        free(out);
        result_free(&r);
        problem_free(&p);
    }
}

/* However tokens come in calls the bits are the same; and near those of states in fp32, in half of the bytes.
 */
static void test_states_in_bf16_are_rounded_behind_each_token(void **state)
{
    (void)state;
    const uint32_t length[] = {90, 90}, parts[] = {1, 2, 64, 1, 1, 3, 18}, whole[] = {90};
    for (size_t s = 0; s < GR_LEN(shapes); s++) {
        gr_delta_desc d = shapes[s];
        problem wide = problem_new(d, 2, length, 2);
        result r = run(&wide);
        d.bf16_state = true;
        problem p = problem_new(d, 2, length, 2);
        const size_t n = 180 * gr_delta_out(&d), bytes = gr_delta_state_bytes(&d),
                     values = (size_t)d.value_heads * d.key_dim * d.value_dim;
        assert_int_equal(gr_delta_state_bytes(&shapes[s]) - bytes, 2 * values);
        float *out = fx_dirty(n * 4), *again = fx_dirty(n * 4), *states = fx_dirty(4 * bytes),
              *others = fx_dirty(4 * bytes);
        double apart = 0, size = 0;
        run_in_calls(&p, parts, GR_LEN(parts), out, states);
        run_in_calls(&p, whole, 1, again, others);
        assert_memory_equal(out, again, n * 4);
        assert_memory_equal(states, others, 4 * bytes);
        for (size_t i = 0; i < n; i++) {
            apart += pow((double)out[i] - (double)r.out[i], 2);
            size += pow((double)r.out[i], 2);
        }
        assert_true(sqrt(apart / size) > 1e-5 && sqrt(apart / size) < 1e-2);
        free(out), free(again), free(states), free(others);
        result_free(&r);
        problem_free(&wide), problem_free(&p);
    }
}

static void test_a_sequence_without_a_slot_gives_zeros_and_leaves_states_alone(void **state)
{
    (void)state;
    const uint32_t length[] = {1, 1}, slot[] = {UINT32_MAX, 0}, cached[] = {7, 0};
    problem p = problem_new(shapes[0], 2, length, 1);
    const size_t wide = gr_delta_out(&p.c.d);
    float *out = fx_dirty(2 * wide * 4), *slots = fx_dirty(2 * gr_delta_state_bytes(&p.c.d));
    result r = run(&p);
    gr_delta_call c = call_of(&p, GR_LAYER_FORWARD);
    c.state = slots, c.slot = slot, c.cached = cached;
    gr_delta_cpu.forward(&p.q, &c, out, NULL);
    for (size_t i = 0; i < wide; i++) assert_true(out[i] == 0);
    assert_memory_equal(out + wide, r.out + wide, wide * 4);
    assert_true(isnan(slots[gr_delta_state_bytes(&p.c.d) / 4])); /* of the second slot */
    free(out), free(slots), free(c.ws);
    result_free(&r);
    problem_free(&p);
}

/* ---- Hugging Face transformers: tests/oracle/delta_goldens.py --------------------------------------------
 */

static float *golden(const json_t *root, const char *name)
{
    const json_t *list = json_object_get(root, name);
    float *x = gr_calloc(json_array_size(list), sizeof(*x));
    for (size_t i = 0; i < json_array_size(list); i++)
        x[i] = (float)json_number_value(json_array_get(list, i));
    return x;
}

/* To 1e-4 of the tensor's largest number: torch's own sums are fp32. */
static void compare(const json_t *root, const char *name, const float *got)
{
    const size_t n = json_array_size(json_object_get(root, name));
    float *want = golden(root, name), most = 0;
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) most = fmaxf(most, fabsf(want[i]));
    for (size_t i = 0; i < n; i++) assert_close(got[i], (double)want[i], 1e-4 * (double)most, 0);
    free(want);
}

static void test_numbers_of_transformers(void **state)
{
    (void)state;
    json_t *root = json_load_file("tests/golden/delta.json", 0, NULL);
    assert_non_null(root);
    const json_t *dims = json_object_get(root, "dims");
    uint32_t d[5], length[] = {(uint32_t)json_integer_value(json_object_get(root, "tokens"))};
    const uint32_t slot[] = {0}, cached[] = {0};
    for (size_t i = 0; i < 5; i++) d[i] = (uint32_t)json_integer_value(json_array_get(dims, i));
    problem p = problem_new((gr_delta_desc){d[0], d[1], d[2], d[3], d[4], false, false}, 1, length, 1), g = p;
    g.in = golden(root, "in"), g.dout = golden(root, "dout"), g.conv = golden(root, "conv");
    g.a_log = golden(root, "a_log"), g.dt_bias = golden(root, "dt_bias"), g.norm = golden(root, "norm");
    result r = run(&g);
    float *slots = fx_dirty(gr_delta_state_bytes(&g.c.d));
    gr_delta_call c = call_of(&g, GR_LAYER_FORWARD);
    c.state = slots, c.slot = slot, c.cached = cached;
    gr_delta_cpu.forward(&g.q, &c, r.out, NULL);
    compare(root, "out", r.out);
    compare(root, "state", slots + gr_delta_tail(&g.c.d));
    compare(root, "d_in", r.din);
    compare(root, "d_conv", r.conv);
    compare(root, "d_a_log", r.a_log);
    compare(root, "d_dt_bias", r.dt_bias);
    compare(root, "d_norm", r.norm);
    free(c.ws), free(slots);
    result_free(&r);
    g.q.team = NULL;
    problem_free(&g), problem_free(&p);
    json_decref(root);
}

/* A plan made for bounds holds for every pass within them. */
static void test_workspaces_on_cuda_grow_with_tokens_and_with_sequences(void **state)
{
    (void)state;
    const gr_delta_desc d = {2, 4, 40, 72, 4, false, false};
    const gr_layer_use uses[] = {GR_LAYER_FORWARD, GR_LAYER_BACKWARD};
    for (size_t u = 0; u < GR_LEN(uses); u++)
        for (uint32_t tokens = 1; tokens < 300; tokens += 7)
            for (uint32_t seqs = 1; seqs < 9; seqs++) {
                const gr_pass_bounds b = {.tokens = tokens, .seqs = seqs},
                                     longer = {.tokens = tokens + 1, .seqs = seqs},
                                     more = {.tokens = tokens, .seqs = seqs + 1};
                const uint64_t bytes = gr_delta_cuda.ws_bytes(&d, &b, uses[u]);
                assert_true(bytes > 0);
                assert_true(gr_delta_cuda.ws_bytes(&d, &longer, uses[u]) >= bytes);
                assert_true(gr_delta_cuda.ws_bytes(&d, &more, uses[u]) >= bytes);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs_and_gradients_agree_with_their_definition),
        cmocka_unit_test(test_a_packed_sequence_has_the_bits_of_one_alone),
        cmocka_unit_test(test_gradients_of_weights_go_on_where_an_earlier_pass_left_them),
        cmocka_unit_test(test_parts_and_steps_have_the_bits_of_the_whole),
        cmocka_unit_test(test_states_in_bf16_are_rounded_behind_each_token),
        cmocka_unit_test(test_a_sequence_without_a_slot_gives_zeros_and_leaves_states_alone),
        cmocka_unit_test(test_numbers_of_transformers),
        cmocka_unit_test(test_workspaces_on_cuda_grow_with_tokens_and_with_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
