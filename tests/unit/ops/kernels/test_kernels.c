/* Kernels one at a time: inner loops in every instruction set, RoPE, sampling, AdamW. */
#include <jansson.h>

#include "ops/kernels/experts.h"
#include "ops/kernels/muon.h"
#include "tests/unit/model_fixture.h"
#include "runtime/base/half.h"
#include "ops/kernels/cpu/cpu.h"

/* ---- inner loops --------------------------------------------------------------------------------------- */

enum { ODD = 1061 };

static void fill(float *x, size_t n, uint32_t seed, float scale)
{
    for (size_t i = 0; i < n; i++) x[i] = scale * fx_random(&seed);
}

/* Everything that one instruction set makes of the same numbers, one after another. */
static size_t run_rows(const gr_simd *v, float *out)
{
    float x[ODD], y[ODD], z[ODD], w[ODD], lanes[16] = {0};
    double sums[3], blocks[2];
    size_t at = 0;
    fill(x, ODD, 1, 3);
    fill(y, ODD, 2, 2);
    fill(z, ODD, 3, 20);
    fill(w, ODD, 4, 1);
    out[at++] = v->dot(x, y, ODD);
    out[at++] = v->dot3(x, y, w, ODD);
    out[at++] = v->max(z, ODD);
    v->softmax_sums(z, out[at - 1], ODD, sums, blocks);
    for (int i = 0; i < 3; i++) out[at++] = (float)sums[i];
    out[at++] = (float)blocks[1];
    out[at++] = (float)v->sum_squares(x, ODD);
    v->add(x, y, ODD);
    v->scale(x, x, 1.7f, ODD);
    v->axpy(x, y, 0.3f, ODD);
    v->mul(x, w, ODD);
    v->softcap(w, out + at, 0.7f, ODD);
    at += ODD;
    v->rms_apply(y, y, w, 0.9f, ODD);
    v->rms_back(x, x, y, z, w, 0.8f, 0.1f, ODD);
    v->mul_axpy(w, x, y, 0.2f, ODD);
    v->silu_mul(out + at, z, y, ODD);
    at += ODD;
    v->silu_mul_back(out + at, out + at + ODD, x, z, y, ODD);
    at += 2 * ODD;
    v->rotate(x, y, w, w, -1, ODD);
    memcpy(out + at, x, sizeof(x));
    memcpy(out + at + ODD, y, sizeof(y));
    at += 2 * ODD;
    memcpy(x, z, sizeof(x));
    v->softmax_back(x, 21, 0.5f, 0.3f, 0.2f, 0.7f, ODD);
    v->attend_back(z, y, 20, 0.1f, 1000, 1056);
    memcpy(out + at, x, sizeof(x));
    memcpy(out + at + ODD, y, sizeof(y));
    memcpy(out + at + 2 * ODD, z, sizeof(z));
    at += 3 * ODD;
    v->exp_sum(w, 1, lanes, ODD);
    memcpy(out + at, w, sizeof(w));
    memcpy(out + at + ODD, lanes, sizeof(lanes));
    at += ODD + 16;
    v->transpose(w, 33, 31, 33, out + at, 32);
    return at + 33 * 32;
}

static void test_instruction_sets_have_the_same_bits(void **state)
{
    (void)state;
    const gr_simd *sets[GR_SIMD_MAX];
    const size_t n_sets = gr_simd_all(sets);
    float *want = gr_calloc(13 * ODD, sizeof(*want)), *got = gr_calloc(13 * ODD, sizeof(*got));
    const size_t n = run_rows(&gr_simd_portable, want);
    for (size_t s = 0; s < n_sets; s++) {
        assert_int_equal(run_rows(sets[s], got), n);
        for (size_t i = 0; i < n; i++)
            if (memcmp(&got[i], &want[i], sizeof(*got)))
                fail_msg("%s, number %zu: %.9g, want %.9g", sets[s]->name, i, (double)got[i],
                         (double)want[i]);
    }
    free(want), free(got);
}

static void test_exp_is_within_two_units_in_the_last_place(void **state)
{
    (void)state;
    float lanes[16] = {0};
    for (int i = -87000; i <= 87000; i += 7) {
        float x = (float)i * 1e-3f, e = x;
        gr_simd_best()->exp_sum(&e, 0, lanes, 1);
        assert_close(e, exp((double)x), 0, 2 * 0x1p-23);
    }
    float ends[] = {-INFINITY, -88, -1e30f, NAN};
    gr_simd_best()->exp_sum(ends, 0, lanes, 4);
    for (int i = 0; i < 3; i++) assert_true(ends[i] == 0);
    assert_true(isnan(ends[3]));
}

/* ---- q, k and v ---------------------------------------------------------------------------------------- */

enum { V_TOKENS = 3, V_DIM = 12, V_WIDE = 4 * V_DIM }; /* of rows of two heads of q, and one of k and of v */

/* Of y = x / sqrt(mean of x^2 + eps), the sum of y d. */
static double normed_sum(const float *x, const float *d)
{
    double squares = 0, sum = 0;
    for (int i = 0; i < V_DIM; i++) squares += (double)x[i] * (double)x[i];
    for (int i = 0; i < V_DIM; i++) sum += (double)x[i] / sqrt(squares / V_DIM + 1e-6) * (double)d[i];
    return sum;
}

static void test_values_are_normalised_and_some_pairs_are_rotated(void **state)
{
    (void)state;
    const gr_attention_desc a = {.heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = V_DIM,
                                 .value_norm = true,
                                 .rope = {.type = GR_ROPE_PROPORTIONAL,
                                          .dims = V_DIM,
                                          .theta = 100,
                                          .factor = 2,
                                          .share = 0.4}}; /* of six pairs the first two */
    const uint32_t offset[] = {0, V_TOKENS};
    const gr_tokens b = {.n = V_TOKENS, .n_seqs = 1, .offset = offset, .host_offset = offset};
    const gr_rotate c = {.d = &a, .b = &b, .eps = 1e-6f};
    float x[V_TOKENS][V_WIDE], y[V_TOKENS][V_WIDE], d[V_TOKENS][V_WIDE], dx[V_TOKENS][V_WIDE];
    for (int t = 0; t < V_TOKENS; t++)
        fill(x[t], V_WIDE, 5 + (uint32_t)t, 2), fill(d[t], V_WIDE, 9 + (uint32_t)t, 1);
    gr_queue q = {0};
    assert_int_equal(gr_team_new(&q.team, 2, NULL), GR_OK);
    gr_cpu_rotate(&q, &c, x, y, NULL);
    const gr_layer_desc layer = {.attention = a};
    void *ws = fx_dirty(gr_cpu_back_ws_bytes(&layer, V_DIM, V_TOKENS));
    memcpy(dx, d, sizeof(d));
    gr_cpu_rotate_backward(&q, &c, x, V_WIDE, dx, NULL, NULL, GR_F32, ws);
    for (int t = 0; t < V_TOKENS; t++) {
        const float *v = x[t] + 3 * V_DIM, *dv = d[t] + 3 * V_DIM;
        for (int i = 0; i < V_DIM; i++) {
            float moved[V_DIM], unit[V_DIM] = {0};
            unit[i] = 1;
            assert_close(y[t][3 * V_DIM + i], normed_sum(v, unit), 1e-6, 1e-6);
            memcpy(moved, v, sizeof(moved));
            moved[i] += 0x1p-9f;
            const double high = normed_sum(moved, dv);
            moved[i] -= 0x1p-8f;
            assert_close(dx[t][3 * V_DIM + i], (high - normed_sum(moved, dv)) * 0x1p8, 1e-4, 1e-4);
        }
        for (int i = 0; i < V_DIM / 2; i++) {
            const double angle = i < 2 ? t * pow(100, -2.0 * i / V_DIM) / 2 : 0;
            const double low = (double)x[t][i], high = (double)x[t][i + V_DIM / 2];
            assert_close(y[t][i], low * cos(angle) - high * sin(angle), 1e-6, 1e-6);
            assert_close(y[t][i + V_DIM / 2], high * cos(angle) + low * sin(angle), 1e-6, 1e-6);
        }
    }
    free(ws);
    gr_team_free(q.team);
}

/* ---- choices' weights ---------------------------------------------------------------------------------- */

static void test_weights_of_choices_are_multiplied_by_their_experts_numbers(void **state)
{
    (void)state;
    const uint16_t expert[] = {2, 0, 2, 1};
    const float plain[] = {0.75f, 0.25f, 0.5f, 0.5f}, scale[] = {2, 3, 0};
    float weight[4], d[] = {1, 2, 3, 4}, grad[] = {10, 20, 30};
    gr_experts_cpu.scale_choices(NULL, 2, 2, expert, scale, plain, weight);
    const float want[] = {0, 0.5f, 0, 1.5f}, back[] = {0, 4, 0, 12}, sums[] = {10.5f, 22, 32.25f};
    gr_experts_cpu.scale_choices_backward(NULL, 3, 2, 2, expert, scale, plain, d, grad, GR_F32);
    assert_memory_equal(weight, want, sizeof(want));
    assert_memory_equal(d, back, sizeof(back));
    assert_memory_equal(grad, sums, sizeof(sums));
}

/* ---- RoPE ---------------------------------------------------------------------------------------------- */

static void test_llama3_frequencies_agree_with_the_golden_list(void **state)
{
    (void)state;
    need_shared(path, "weights/rope/llama3_1_inv_freq_golden.json");
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    const json_t *golden = json_object_get(root, "golden");
    const gr_rope_desc d = {.type = GR_ROPE_LLAMA3,
                            .dims = 128,
                            .theta = 500000,
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_positions = 8192};
    gr_rope r;
    gr_rope_init(&r, &d);
    assert_int_equal(json_array_size(golden), r.n);
    for (uint32_t i = 0; i < r.n; i++)
        assert_close(1 / (double)r.inv_freq[i], json_number_value(json_array_get(golden, i)), 0, 3e-7);
    json_decref(root);
}

/* ---- sampling ------------------------------------------------------------------------------------------ */

enum { VOCAB = 16, DRAWS = 20000, AT_ONCE = 500 };

/* A head whose logits are logit[]: the output matrix has them in its first column, the state is (1, 0, ...),
 * which the norm makes sqrt(16) = 4. */
struct sampler {
    gr_model_shape s;
    float norm[VOCAB], lm[VOCAB * VOCAB], x[VOCAB];
    void *ws;
};

static void sampler_init(struct sampler *p, const float logit[VOCAB])
{
    *p = (struct sampler){.s = {.vocab = VOCAB, .hidden = VOCAB, .logit_scale = 1}};
    for (int i = 0; i < VOCAB; i++) {
        p->norm[i] = 1;
        p->lm[i * VOCAB] = logit[i] / 4;
    }
    p->x[0] = 1;
    p->ws = fx_dirty(K.head_ws_bytes(&p->s, AT_ONCE, GR_HEAD_TRUNCATE, 1));
}

static void sample(struct sampler *p, const gr_sampling *how, uint32_t first, int32_t id[AT_ONCE],
                   float logprob[AT_ONCE])
{
    uint32_t row[AT_ONCE] = {0}, draw[AT_ONCE][2];
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        draw[i][0] = (first + i) / 7;
        draw[i][1] = (first + i) % 7;
    }
    K.head_sample(&(gr_queue){.team = NULL}, &p->s, p->norm, p->lm, p->x, row, AT_ONCE, how,
                  (const uint32_t(*)[2])draw, id, logprob, p->ws);
}

/* Frequencies lie within five standard deviations of want[]; ids with 0 never come. */
static void assert_draws(const float logit[VOCAB], const gr_sampling *how, const double want[VOCAB])
{
    struct sampler p;
    sampler_init(&p, logit);
    int32_t id[AT_ONCE];
    float logprob[AT_ONCE];
    double count[VOCAB] = {0}, sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp((double)logit[i] / (double)how->temperature);
    for (uint32_t first = 0; first < DRAWS; first += AT_ONCE) {
        sample(&p, how, first, id, logprob);
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            assert_in_range(id[i], 0, VOCAB - 1);
            count[id[i]]++;
            assert_close(logprob[i], (double)logit[id[i]] / (double)how->temperature - log(sum), 1e-5, 1e-5);
        }
    }
    for (int i = 0; i < VOCAB; i++)
        assert_close(count[i] / DRAWS, want[i], 5 * sqrt(want[i] * (1 - want[i]) / DRAWS), 0);
    free(p.ws);
}

/* Weights 8, 4, 2, 1, 1, 0...: in ids 3, 0, 7, 9, 12. */
#define LN2 0.69314718f
static const float halves[VOCAB] = {2 * LN2, -90, -90, 3 * LN2, -90, -90, -90, LN2,
                                    -90,     0,   -90, -90,     0,   -90, -90, -90};

static void test_draws_follow_the_softmax(void **state)
{
    (void)state;
    const gr_sampling plain = {.temperature = 1, .top_p = 1, .seed = 1}, hot = {.temperature = 2, .top_p = 1};
    const double want[VOCAB] = {[3] = 0.5, [0] = 0.25, [7] = 0.125, [9] = 0.0625, [12] = 0.0625};
    assert_draws(halves, &plain, want);
    const double root[] = {sqrt(8), 2, sqrt(2), 1, 1}, sum = sqrt(8) + 2 + sqrt(2) + 2;
    const double warm[VOCAB] = {
        [3] = root[0] / sum, [0] = root[1] / sum, [7] = root[2] / sum, [9] = 1 / sum, [12] = 1 / sum};
    assert_draws(halves, &hot, warm);
}

static void test_top_k_keeps_what_equals_the_kth(void **state)
{
    (void)state;
    const gr_sampling two = {.temperature = 1, .top_p = 1, .top_k = 2};
    assert_draws(halves, &two, (const double[VOCAB]){[3] = 8 / 12.0, [0] = 4 / 12.0});
    const gr_sampling four = {.temperature = 1, .top_p = 1, .top_k = 4}; /* the fourth and fifth are equal */
    assert_draws(halves, &four,
                 (const double[VOCAB]){[3] = 0.5, [0] = 0.25, [7] = 0.125, [9] = 0.0625, [12] = 0.0625});
}

static void test_top_p_keeps_the_fewest_that_reach_it_of_what_top_k_left(void **state)
{
    (void)state;
    const gr_sampling p = {.temperature = 1, .top_p = 0.7f}; /* 0.5 < 0.7 <= 0.75 */
    assert_draws(halves, &p, (const double[VOCAB]){[3] = 8 / 12.0, [0] = 4 / 12.0});
    const gr_sampling tiny = {.temperature = 1, .top_p = 1e-6f};
    assert_draws(halves, &tiny, (const double[VOCAB]){[3] = 1});
    const gr_sampling both = {.temperature = 1, .top_p = 0.6f, .top_k = 2}; /* 8 / 12 reaches it */
    assert_draws(halves, &both, (const double[VOCAB]){[3] = 1});
}

static void test_a_draw_depends_on_its_counter_alone(void **state)
{
    (void)state;
    struct sampler p;
    sampler_init(&p, halves);
    const gr_sampling how = {.temperature = 1, .top_p = 1, .seed = 9, .stream = 4};
    int32_t a[AT_ONCE], b[AT_ONCE];
    float logprob[AT_ONCE];
    sample(&p, &how, 0, a, logprob);
    sample(&p, &how, 100, b, logprob);
    assert_memory_equal(a + 100, b, (AT_ONCE - 100) * sizeof(*a));
    free(p.ws);
}

static void test_greedy_takes_the_lowest_of_equal_ids(void **state)
{
    (void)state;
    struct sampler p;
    const float logit[VOCAB] = {[0] = -1, [5] = 2, [6] = 1, [11] = 2};
    sampler_init(&p, logit);
    int32_t id[AT_ONCE];
    float logprob[AT_ONCE];
    sample(&p, &(gr_sampling){.top_p = 0.5f, .top_k = 3}, 0, id, logprob);
    assert_int_equal(id[0], 5);
    assert_close(logprob[0], 2 - log(12 + exp(-1) + exp(1) + 2 * exp(2)), 1e-6, 1e-6);
    free(p.ws);
}

static void test_logits_that_are_no_numbers_give_some_id(void **state)
{
    (void)state;
    struct sampler p;
    const float logit[VOCAB] = {[3] = NAN};
    sampler_init(&p, logit);
    int32_t id[AT_ONCE];
    float logprob[AT_ONCE];
    const gr_sampling how[] = {{.temperature = 0, .top_p = 1},
                               {.temperature = 1, .top_p = 1},
                               {.temperature = 1, .top_p = 0.5f, .top_k = 3}};
    for (size_t i = 0; i < GR_LEN(how); i++) {
        sample(&p, &how[i], 0, id, logprob);
        assert_in_range(id[0], 0, VOCAB - 1);
    }
    free(p.ws);
}

/* ---- head statistics ----------------------------------------------------------------------------------- */

static void test_statistics_of_a_row_are_those_of_its_softmax(void **state)
{
    (void)state;
    struct sampler p;
    sampler_init(&p, halves);
    float logprob, entropy, sum_p2;
    const gr_head_rows rows = {.n = 1,
                               .row = (const uint32_t[]){0},
                               .target = (const int32_t[]){7},
                               .inv_temperature = 1,
                               .keep = false};
    K.head_forward(&(gr_queue){.team = NULL}, &p.s, p.norm, p.lm, p.x, &rows,
                   &(gr_head_stats){&logprob, &entropy, &sum_p2}, p.ws);
    assert_close(logprob, log(0.125), 1e-6, 0);
    assert_close(entropy, log(2) * (0.5 * 1 + 0.25 * 2 + 0.125 * 3 + 2 * 0.0625 * 4), 1e-6,
                 0); /* 1.875 bits */
    assert_close(sum_p2, 0.25 + 0.0625 + 0.015625 + 2 * 0.00390625, 1e-6, 0);
    free(p.ws);
}

/* ---- a teacher ------------------------------------------------------------------------------------------
 */

enum { TAUGHT_ROWS = 5, TAUGHT_VOCAB = 11, TAUGHT_STATES = 8 };

/* A student and a teacher whose hidden states are the rows of a unit matrix, so that logits are what the
 * output matrices say; the norm gives the student's sqrt(8) for 1, and its matrix is as much smaller. Of the
 * teacher's ids one is more than the student has. */
typedef struct lesson {
    gr_model_shape s, t;
    float norm[TAUGHT_STATES], lm[TAUGHT_VOCAB][TAUGHT_STATES], x[TAUGHT_ROWS][TAUGHT_STATES];
    float taught_lm[TAUGHT_VOCAB + 1][TAUGHT_ROWS], hidden[TAUGHT_ROWS][TAUGHT_ROWS];
    float divergence[TAUGHT_ROWS], grad[TAUGHT_VOCAB][TAUGHT_STATES], dx[TAUGHT_ROWS][TAUGHT_STATES];
} lesson;

static void lesson_init(lesson *l, double cap, double taught_cap)
{
    *l = (lesson){
        .s = {.vocab = TAUGHT_VOCAB, .hidden = TAUGHT_STATES, .logit_scale = 1, .logit_softcap = (float)cap},
        .t = {.vocab = TAUGHT_VOCAB + 1,
              .hidden = TAUGHT_ROWS,
              .logit_scale = 1,
              .logit_softcap = (float)taught_cap}};
    for (int i = 0; i < TAUGHT_STATES; i++) l->norm[i] = 1;
    for (int i = 0; i < TAUGHT_ROWS; i++) {
        l->x[i][i] = l->hidden[i][i] = 1;
        for (int j = 0; j < TAUGHT_VOCAB; j++) {
            l->lm[j][i] = (float)(3 * sin(1.3 * i + 0.7 * j) / sqrt(TAUGHT_STATES));
            l->taught_lm[j][i] = (float)(3 * cos(0.9 * i + 1.1 * j));
        }
        l->taught_lm[TAUGHT_VOCAB][i] = 50; /* never looked at */
    }
}

/* Of the loss that weighs row i by cos(i), and adds so much of its log-prob and entropy. */
static void lesson_run(lesson *l, gr_divergence kind, float beta, float others, unsigned threads)
{
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, threads, NULL), GR_OK);
    gr_queue q = {.team = team};
    void *ws = fx_dirty(K.head_ws_bytes(&l->s, TAUGHT_ROWS, GR_HEAD_GRADIENT, threads)),
         *taught = fx_dirty(K.teach_ws_bytes(&l->s, &l->t, TAUGHT_ROWS, threads));
    float weight[TAUGHT_ROWS], other[TAUGHT_ROWS], logprob[TAUGHT_ROWS];
    for (int i = 0; i < TAUGHT_ROWS; i++) weight[i] = (float)cos(i), other[i] = others;
    gr_head_rows rows = {.n = TAUGHT_ROWS,
                         .row = (const uint32_t[]){0, 1, 2, 3, 4},
                         .target = (const int32_t[]){3, 1, 4, 1, 5},
                         .inv_temperature = 1 / 0.8f,
                         .keep = true};
    const gr_head_teacher teacher = {&l->t, l->taught_lm, l->hidden, kind, beta};
    K.head_forward(&q, &l->s, l->norm, l->lm, l->x, &rows, &(gr_head_stats){.logprob = logprob}, ws);
    K.teach(&q, &l->s, &rows, &teacher, l->divergence, ws, taught);
    rows.slope = taught, rows.d_divergence = weight;
    K.head_backward(&q, &l->s, l->norm, l->lm, l->x, &rows, other, others != 0 ? other : NULL, l->dx, NULL,
                    l->grad, GR_F32, ws);
    free(ws), free(taught);
    gr_team_free(team);
}

/* tests/oracle/teach_goldens.py has made them, with TRL's function. */
static void test_divergences_and_their_gradients_equal_trl(void **state)
{
    static const char *const names[] = {
        [GR_REVERSE_KL] = "reverse_kl", [GR_FORWARD_KL] = "forward_kl", [GR_JSD] = "jsd"};
    (void)state;
    char name[16];
    double beta, cap, taught_cap, want;
    int cases = 0;
    FILE *f = fopen("tests/golden/teach.txt", "r");
    assert_non_null(f);
    for (; fscanf(f, "%15s %lf %lf %lf", name, &beta, &cap, &taught_cap) == 4; cases++) {
        lesson l;
        int kind = 0;
        while (strcmp(names[kind], name) != 0) kind++;
        lesson_init(&l, cap, taught_cap);
        lesson_run(&l, (gr_divergence)kind, (float)beta, 0, 1 + (unsigned)cases % 3);
        for (int i = 0; i < TAUGHT_ROWS && fscanf(f, "%lf", &want) == 1; i++)
            assert_close(l.divergence[i], want, 1e-6, 2e-6);
        for (int i = 0; i < TAUGHT_ROWS * TAUGHT_VOCAB && fscanf(f, "%lf", &want) == 1; i++)
            assert_close((double)l.grad[i % TAUGHT_VOCAB][i / TAUGHT_VOCAB] / sqrt(TAUGHT_STATES), want, 1e-6,
                         5e-6);
    }
    fclose(f);
    assert_int_equal(cases, 8);
}

/* What a teacher adds, it adds to what log-prob and entropy say. */
static void test_gradients_of_a_lesson_are_added(void **state)
{
    (void)state;
    lesson taught, both, none;
    lesson_init(&taught, 0, 0), lesson_init(&both, 0, 0), lesson_init(&none, 0, 0);
    lesson_run(&taught, GR_JSD, 0.3f, 0, 1);
    lesson_run(&both, GR_JSD, 0.3f, 0.7f, 1);
    none.t = none.s, none.t.hidden = TAUGHT_ROWS; /* a teacher that says what the student does */
    for (int j = 0; j < TAUGHT_VOCAB; j++)
        for (int i = 0; i < TAUGHT_ROWS; i++)
            none.taught_lm[j][i] = none.lm[j][i] * (float)sqrt(TAUGHT_STATES);
    lesson_run(&none, GR_JSD, 0.3f, 0.7f, 1);
    for (int i = 0; i < TAUGHT_ROWS; i++) assert_close(none.divergence[i], 0, 1e-7, 0);
    for (int j = 0; j < TAUGHT_VOCAB; j++)
        for (int i = 0; i < TAUGHT_STATES; i++)
            assert_close(both.grad[j][i], (double)taught.grad[j][i] + (double)none.grad[j][i], 1e-6, 1e-6);
}

/* Probabilities that are 0 to a float give numbers. */
static void test_a_teacher_that_is_sure_gives_numbers(void **state)
{
    (void)state;
    for (int kind = GR_REVERSE_KL; kind <= GR_JSD; kind++) {
        lesson l;
        lesson_init(&l, 0, 0);
        for (int i = 0; i < TAUGHT_ROWS; i++) l.taught_lm[i][i] = 3e4f, l.lm[2 + i][i] = -1e4f;
        lesson_run(&l, (gr_divergence)kind, 0.5f, 0, 1);
        for (int i = 0; i < TAUGHT_ROWS; i++) assert_true(isfinite(l.divergence[i]) && l.divergence[i] > 0);
        for (int i = 0; i < TAUGHT_ROWS * TAUGHT_VOCAB; i++)
            assert_true(isfinite(l.grad[i % TAUGHT_VOCAB][i / TAUGHT_VOCAB]));
    }
}

/* ---- flat arrays --------------------------------------------------------------------------------------- */

static void test_adamw_follows_its_formula_in_double(void **state)
{
    (void)state;
    enum { M = 4099 };
    static float w[M], g[M], m[M], v[M];
    static double dw[M], dm[M], dv[M];
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, 2, NULL), GR_OK);
    fill(w, M, 1, 1);
    for (int i = 0; i < M; i++) dw[i] = (double)w[i];
    for (uint32_t step = 1; step <= 20; step++) {
        const gr_optim how = {1e-2, 0.9, 0.999, 1e-8, 0.1, step, 0.5f, GR_OPTIM_ADAMW};
        fill(g, M, step, step % 3 ? 1 : 1e-3f);
        K.optim_step(&(gr_queue){.team = team}, &how, true, &(gr_optim_range){.w = w, .g = g, .m = m, .v = v},
                     M);
        for (int i = 0; i < M; i++) {
            const double gi = 0.5 * (double)g[i];
            dm[i] = 0.9 * dm[i] + (1 - 0.9) * gi;
            dv[i] = 0.999 * dv[i] + (1 - 0.999) * gi * gi;
            const double m_hat = dm[i] / (1 - pow(0.9, step)), v_hat = dv[i] / (1 - pow(0.999, step));
            dw[i] -= 1e-2 * 0.1 * dw[i];
            dw[i] -= 1e-2 * m_hat / (sqrt(v_hat) + 1e-8);
        }
    }
    for (int i = 0; i < M; i++) assert_close(w[i], dw[i], 1e-6, 1e-6);
    float one = 2, kept = 0, still = 0;
    const gr_optim_range single = {.w = &one, .g = &(float){0}, .m = &kept, .v = &still};
    K.optim_step(&(gr_queue){.team = team}, &(gr_optim){1, 0.9, 0.999, 1, 0.5, 1, 1, GR_OPTIM_ADAMW}, false,
                 &single, 1);
    assert_true(one == 2); /* no decay, no gradient */
    gr_team_free(team);
}

/* tests/oracle/optim_goldens.py has made them, with torch where torch has the optimizer. */
static void test_optimizers_equal_torch_and_the_paper(void **state)
{
    enum { N = 7, STEPS = 6 };
    static const char *const names[] = {"adamw", "lion", "sgd"};
    (void)state;
    FILE *f = fopen("tests/golden/optim.txt", "r");
    assert_non_null(f);
    for (int kind = 0; kind < 3; kind++) {
        float w[N], g[N], m[N] = {0}, v[N] = {0};
        for (int i = 0; i < N; i++) w[i] = (float)cos(i);
        for (int step = 1; step <= STEPS; step++) {
            char name[16];
            int at;
            const gr_optim how = {0.02, 0.9, 0.99, 1e-8, 0.1, (uint32_t)step, 1, (gr_optim_kind)kind};
            for (int i = 0; i < N; i++) g[i] = (float)(sin(3 * i + step) / 2);
            K.optim_step(&(gr_queue){0}, &how, true, &(gr_optim_range){.w = w, .g = g, .m = m, .v = v}, N);
            assert_int_equal(fscanf(f, "%15s %d", name, &at), 2);
            assert_string_equal(name, names[kind]);
            assert_int_equal(at, step);
            for (int i = 0; i < N; i++) {
                double want;
                assert_int_equal(fscanf(f, "%lf", &want), 1);
                assert_close(w[i], want, 1e-6, 1e-6);
            }
        }
    }
    fclose(f);
}

/* Lion's sign of nothing is nothing; matrices alone decay; v is not asked for. */
/* tests/oracle/optim_goldens.py has made them, beside torch.optim.Muon. The last step of a matrix is descent
 * along what is orthogonal, as ops/train.c has it. */
static void muon_steps(FILE *f, uint32_t rows, uint32_t cols, unsigned threads)
{
    enum { MOST = 24, STEPS = 3 };
    float w[MOST], g[MOST], m[MOST] = {0}, kept[MOST] = {0}, u[MOST];
    const uint32_t n = rows * cols;
    uint32_t of_rows, of_cols;
    double want;
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, threads, NULL), GR_OK);
    gr_queue q = {.team = team};
    void *ws = fx_dirty(gr_muon_ws_bytes(&K, rows, cols, threads));
    for (uint32_t i = 0; i < n; i++) w[i] = (float)cos(i);
    for (int step = 1; step <= STEPS; step++) {
        for (uint32_t i = 0; i < n; i++) g[i] = (float)sin(0.7 * i * i + step) / 2;
        const gr_optim mix = {.beta1 = 0.95, .grad_scale = 1},
                       move = {.lr = 0.02,
                               .weight_decay = 0.1,
                               .grad_scale = 0.2f * sqrtf((float)GR_MAX(rows, cols)),
                               .kind = GR_OPTIM_SGD};
        K.muon_mix(&q, &mix, &(gr_optim_range){.g = g, .m = m}, u, n);
        gr_muon_orthogonalize(&K, &q, u, rows, cols, ws);
        K.optim_step(&q, &move, true, &(gr_optim_range){.w = w, .g = u, .m = kept}, n);
        assert_int_equal(fscanf(f, "%u %u", &of_rows, &of_cols), 2);
        assert_true(of_rows == rows && of_cols == cols);
        for (uint32_t i = 0; i < n && fscanf(f, "%lf", &want) == 1; i++) assert_close(w[i], want, 2e-5, 0);
    }
    free(ws);
    gr_team_free(team);
}

static void test_muon_equals_its_formula_in_float64(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/muon.txt", "r");
    assert_non_null(f);
    muon_steps(f, 3, 7, 1);
    muon_steps(f, 6, 4, 2);
    fclose(f);
}

static void test_lion_and_sgd_keep_one_moment(void **state)
{
    (void)state;
    for (int kind = GR_OPTIM_LION; kind <= GR_OPTIM_SGD; kind++) {
        float w = 2, m = 0;
        const gr_optim how = {0.5, 0.9, 0.99, 0, 0.5, 1, 1, (gr_optim_kind)kind};
        const gr_optim_range r = {.w = &w, .g = &(float){0}, .m = &m};
        K.optim_step(&(gr_queue){0}, &how, false, &r, 1);
        assert_true(w == 2 && m == 0);
        K.optim_step(&(gr_queue){0}, &how, true, &r, 1);
        assert_true(w == 1.5f);
        uint16_t half = gr_f32_to_bf16(1), moment = 0;
        const gr_optim_range narrow = {
            .w = &half, .g = &(float){1}, .m = &moment, .grads = GR_F32, .moments = GR_BF16};
        gr_host_optim_step(&(gr_queue){0}, GR_BF16, &how, false, &narrow, 1);
        assert_true(half == gr_f32_to_bf16(0.5f) && gr_bf16_to_f32(moment) > 0);
    }
}

/* Two products and a sum, each rounded to fp32, whatever the team; a share of all of it is a copy. */
static void test_blend_is_a_moving_average(void **state)
{
    (void)state;
    enum { M = 9001 };
    static float to[M], from[M], want[M];
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, 3, NULL), GR_OK);
    fill(to, M, 1, 1), fill(from, M, 2, 1);
    for (int i = 0; i < M; i++) {
        const volatile float kept = 0.75f * to[i], taken = 0.25f * from[i];
        want[i] = kept + taken;
    }
    K.blend(&(gr_queue){.team = team}, to, NULL, from, 0.75f, 0.25f, M);
    assert_memory_equal(to, want, sizeof(want));
    K.blend(&(gr_queue){0}, to, NULL, from, 0, 1, M);
    assert_memory_equal(to, from, sizeof(from));
    gr_team_free(team);
}

/* Of an optimizer step on the host. fp32: the device's bits. Else the same step of the widened values, each
 * rounded to nearest even; the master, which is fp32, has no rounding. */
static void test_adamw_on_the_host_rounds_what_is_no_fp32(void **state)
{
    (void)state;
    enum { M = 9001 };
    static float w[M], g[M], m[M], v[M], wide_w[M], wide_g[M], wide_m[M], wide_v[M], master[M];
    static uint16_t hw[M], hg[M], hm[M], hv[M];
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, 3, NULL), GR_OK);
    gr_queue q = {.team = team};
    fill(w, M, 1, 1), fill(g, M, 2, 1), fill(m, M, 3, 0.1f);
    for (int i = 0; i < M; i++) {
        v[i] = m[i] * m[i];
        hw[i] = gr_f32_to_bf16(w[i]), hg[i] = gr_f32_to_bf16(g[i]);
        hm[i] = gr_f32_to_bf16(m[i]), hv[i] = gr_f32_to_bf16(v[i]);
        wide_w[i] = gr_bf16_to_f32(hw[i]), wide_g[i] = gr_bf16_to_f32(hg[i]);
        wide_m[i] = gr_bf16_to_f32(hm[i]), wide_v[i] = gr_bf16_to_f32(hv[i]);
        master[i] = w[i];
    }
    const gr_optim how = {1e-2, 0.9, 0.999, 1e-8, 0.1, 3, 0.5f, GR_OPTIM_ADAMW};
    const gr_optim_range narrow = {.w = hw, .g = hg, .m = hm, .v = hv, .grads = GR_BF16, .moments = GR_BF16};
    const gr_optim_range wide = {.w = wide_w, .g = wide_g, .m = wide_m, .v = wide_v};
    gr_host_optim_step(&q, GR_BF16, &how, true, &narrow, M);
    K.optim_step(&q, &how, true, &wide, M);
    for (int i = 0; i < M; i++) {
        assert_int_equal(hw[i], gr_f32_to_bf16(wide_w[i]));
        assert_int_equal(hm[i], gr_f32_to_bf16(wide_m[i]));
        assert_int_equal(hv[i], gr_f32_to_bf16(wide_v[i]));
    }
    static float m2[M], v2[M];
    memcpy(m2, m, sizeof(m)), memcpy(v2, v, sizeof(v));
    const gr_optim_range kept = {.w = hw, .g = g, .master = master, .m = m2, .v = v2};
    const gr_optim_range plain = {.w = w, .g = g, .m = m, .v = v};
    gr_host_optim_step(&q, GR_BF16, &how, true, &kept, M);
    gr_queue alone = {0};
    gr_host_optim_step(&alone, GR_F32, &how, true, &plain, M);
    for (int i = 0; i < M; i++) assert_int_equal(hw[i], gr_f32_to_bf16(master[i]));
    assert_memory_equal(master, w, sizeof(w));
    assert_memory_equal(m2, m, sizeof(m));
    assert_memory_equal(v2, v, sizeof(v));
    gr_team_free(team);
}

/* Every fp32 in halves is itself again, and its upper half is the nearest bf16; the only one of two where
 * ties to even would be the other one is at a tie. */
static void test_halves_of_fp32_are_exact(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 1u << 16; high++)
        for (uint32_t k = 0; k < 12; k++) {
            static const uint16_t low[] = {0,      1,      2,      0x7ffe, 0x7fff, 0x8000,
                                           0x8001, 0x8002, 0xfffe, 0xffff, 0x1234, 0xabcd};
            const float x = gr_f32_of_bits(high << 16 | low[k]);
            const uint16_t h = gr_f32_high(x), l = gr_f32_low(x);
            if (isnan(x)) {
                assert_true(isnan(gr_f32_join(h, l)) && isnan(gr_bf16_to_f32(h)));
                continue;
            }
            assert_int_equal(gr_bits_of_f32(gr_f32_join(h, l)), gr_bits_of_f32(x));
            if (l != 0x8000) assert_int_equal(h, gr_f32_to_bf16(x));
            if (l == 0x8000) assert_true(fabsf(gr_bf16_to_f32(h)) > fabsf(x));
        }
}

/* Steps with a split master are those with an fp32 one, to the bit: master, moments, and weights but for
 * ties. */
static void test_a_split_master_steps_as_fp32(void **state)
{
    (void)state;
    enum { M = 9001 };
    static float master[M], g[M], m[2][M], v[2][M];
    static uint16_t w[2][M], low[M], hg[M];
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, 3, NULL), GR_OK);
    for (int kind = GR_OPTIM_ADAMW; kind <= GR_OPTIM_SGD; kind++) {
        fill(master, M, 1, 1);
        for (int i = 0; i < M; i++) w[1][i] = gr_f32_high(master[i]), low[i] = gr_f32_low(master[i]);
        memset(m, 0, sizeof(m)), memset(v, 0, sizeof(v));
        for (uint32_t step = 1; step <= 6; step++) {
            const gr_optim how = {1e-3, 0.9, 0.999, 1e-8, 0.1, step, 0.5f, (gr_optim_kind)kind};
            fill(g, M, step, 1);
            for (int i = 0; i < M; i++) hg[i] = gr_f32_to_bf16(g[i]);
            for (int k = 0; k < 2; k++) {
                const gr_optim_range r = {.w = w[k],
                                          .g = hg,
                                          .master = k ? NULL : master,
                                          .low = k ? low : NULL,
                                          .m = m[k],
                                          .v = kind == GR_OPTIM_ADAMW ? v[k] : NULL,
                                          .grads = GR_BF16};
                gr_host_optim_step(&(gr_queue){.team = team}, GR_BF16, &how, true, &r, M);
            }
        }
        for (int i = 0; i < M; i++) {
            assert_int_equal(gr_bits_of_f32(gr_f32_join(w[1][i], low[i])), gr_bits_of_f32(master[i]));
            assert_true(w[0][i] == w[1][i] || low[i] == 0x8000);
        }
        assert_memory_equal(m[0], m[1], sizeof(m[0]));
        assert_memory_equal(v[0], v[1], sizeof(v[0]));
    }
    gr_team_free(team);
}

/* tests/oracle/moment_goldens.py has made them, from the definition in float64. */
static void test_moments_of_8_bits_are_as_defined(void **state)
{
    (void)state;
    char line[128], kind;
    int code, seen = 0;
    double x;
    FILE *f = fopen("tests/golden/moments.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        seen++;
        if (sscanf(line, "nearest %c %lf %d", &kind, &x, &code) == 3) {
            const float from = (float)x;
            if (kind == 'm') assert_int_equal(gr_moment_m_code(from, 1, 1, GR_MOMENT_NEAREST), code);
            if (kind == 'm')
                assert_int_equal(gr_moment_m_code(-from, 1, 1, GR_MOMENT_NEAREST), -code);
            else
                assert_int_equal(gr_moment_v_code(from, 1, 1, GR_MOMENT_NEAREST), code);
            continue;
        }
        assert_int_equal(sscanf(line, "%c %d %lf", &kind, &code, &x), 3);
        if (kind == 'm')
            assert_close(gr_moment_m(-code, 3), -3 * x, 1e-6, 1e-6);
        else
            assert_close(gr_moment_v((uint32_t)code, 3), 9 * x * x, 0, 1e-6);
    }
    assert_true(seen > 1000);
    fclose(f);
}

/* What is rounded to the nearest again keeps code and scale; the largest keeps its value; every instruction
 * set has the same; and by chance the mean is right. */
static void test_moments_of_8_bits_come_back(void **state)
{
    (void)state;
    enum { N = 1000, TRIES = 4000, BLOCKS = (N + 63) / 64 };
    static float x[N], wide[N], scale[BLOCKS], again_scale[BLOCKS], set_scale[BLOCKS];
    static int8_t code[64 * BLOCKS], again[64 * BLOCKS], set_code[64 * BLOCKS];
    static double mean[N];
    const gr_simd *sets[GR_SIMD_MAX];
    const size_t n_sets = gr_simd_all(sets);
    for (int root = 0; root < 2; root++) {
        fill(x, N, 7, 1);
        for (int i = 0; i < N; i++) {
            x[i] *= powf(10, (float)(-(i / 64)) * 3); /* blocks down to nothing */
            if (root) x[i] *= x[i];
            if (i % 50 == 3) x[i] = 0;
        }
        const gr_chance by = {12345, 640};
        sets[0]->moments_narrow(root, x, N, &by, code, scale);
        for (size_t s = 0; s < n_sets; s++) {
            sets[s]->moments_narrow(root, x, N, &by, set_code, set_scale);
            assert_memory_equal(set_code, code, sizeof(code));
            assert_memory_equal(set_scale, scale, sizeof(scale));
            sets[s]->moments_widen(root, code, scale, wide, N);
            sets[s]->moments_narrow(root, wide, N, NULL, again, again_scale);
            assert_memory_equal(again, code, sizeof(code));
            assert_memory_equal(again_scale, scale, sizeof(scale));
        }
        memset(mean, 0, sizeof(mean));
        for (uint32_t t = 0; t < TRIES; t++) {
            sets[0]->moments_narrow(root, x, N, &(gr_chance){t, 64}, code, scale);
            sets[0]->moments_widen(root, code, scale, wide, N);
            for (int i = 0; i < N; i++) mean[i] += (double)(root ? sqrtf(wide[i]) : wide[i]) / TRIES;
        }
        for (int i = 0; i < N; i++) {
            const double want = (double)(root ? sqrtf(x[i]) : x[i]), least = (double)scale[i / 64];
            assert_close(mean[i], want, 2e-4 * least, 3e-3);
            if (x[i] == 0) assert_true(mean[i] == 0);
            if (root && x[i] > 0 && i < 640) assert_true(wide[i] > 0);
        }
    }
    const float bad[2] = {1, NAN};
    sets[0]->moments_narrow(false, bad, 2, NULL, code, scale);
    sets[0]->moments_widen(false, code, scale, wide, 2);
    assert_true(isnan(wide[0]));
}

/* Steps with moments of 8 bits stay by those with fp32, on one thread or several. */
static void test_adamw_with_moments_of_8_bits_stays_near(void **state)
{
    (void)state;
    enum { M = 9001, BLOCKS = (M + 63) / 64, STEPS = 300 };
    static float w[3][M], g[M], m[M], v[M], m_scale[2][BLOCKS], v_scale[2][BLOCKS];
    static uint8_t m8[2][64 * BLOCKS], v8[2][64 * BLOCKS];
    gr_team *team = NULL;
    assert_int_equal(gr_team_new(&team, 3, NULL), GR_OK);
    for (uint32_t step = 1; step <= STEPS; step++) {
        const gr_optim how = {1e-3, 0.9, 0.95, 1e-8, 0, step, 1, GR_OPTIM_ADAMW};
        fill(g, M, step, 1);
        for (int i = 0; i < M; i++) g[i] = (g[i] + 0.3f) * (i % 7 ? 1 : 1e-3f);
        K.optim_step(&(gr_queue){0}, &how, true, &(gr_optim_range){.w = w[0], .g = g, .m = m, .v = v}, M);
        for (int k = 0; k < 2; k++) {
            const gr_optim_range r = {.w = w[1 + k],
                                      .g = g,
                                      .m = m8[k],
                                      .v = v8[k],
                                      .m_scale = m_scale[k],
                                      .v_scale = v_scale[k],
                                      .moments = GR_I8,
                                      .chance = {gr_moment_mix(step), 64}};
            K.optim_step(&(gr_queue){.team = k ? team : NULL}, &how, true, &r, M);
        }
    }
    assert_memory_equal(w[1], w[2], sizeof(w[1]));
    assert_memory_equal(v8[0], v8[1], sizeof(v8[0]));
    double off = 0, size = 0, mean = 0;
    for (int i = 0; i < M; i++) {
        off += pow((double)w[1][i] - (double)w[0][i], 2), size += pow((double)w[0][i], 2);
        mean += (double)w[1][i] / (double)w[0][i] / M;
    }
    assert_true(sqrt(off / size) < 0.05);
    assert_close(mean, 1, 0.02, 0);
    gr_team_free(team);
}

static uint64_t checksum(gr_team *team, const void *x, uint64_t bytes)
{
    uint64_t parts[GR_CHECKSUM_PARTS];
    memset(parts, 0xa5, sizeof(parts));
    K.checksum(&(gr_queue){.team = team}, x, bytes, parts);
    return gr_checksum_of(parts);
}

static void test_a_checksum_is_the_same_on_any_team_and_another_one_for_every_bit(void **state)
{
    (void)state;
    enum { M = 5003 };
    unsigned char x[M] = {0};
    uint64_t want = 0, word;
    for (int i = 0; i < M; i++) x[i] = (unsigned char)(i * i * 31 + i / 7);
    for (uint64_t i = 0; i < M; i += 8) { /* by hand: words in their places, the last one of 3 bytes */
        word = 0;
        for (uint64_t b = i; b < i + 8 && b < M; b++) word |= (uint64_t)x[b] << 8 * (b - i);
        want += gr_checksum_word(i / 8, word);
    }
    for (unsigned n = 1; n <= 3; n++) {
        gr_team *team = NULL;
        assert_int_equal(gr_team_new(&team, n, NULL), GR_OK);
        assert_true(checksum(team, x, M) == want);
        gr_team_free(team);
    }
    for (int bit = 0; bit < 8 * M; bit++) {
        x[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(checksum(NULL, x, M) != want);
        x[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    x[7] ^= 128; /* the highest bits of two words, and two words that change places */
    x[15] ^= 128;
    assert_true(checksum(NULL, x, M) != want);
    memset(x, 0, M);
    x[0] = 1;
    want = checksum(NULL, x, M);
    x[0] = 0;
    x[8] = 1;
    assert_true(checksum(NULL, x, M) != want);
    assert_true(checksum(NULL, x, 0) == 0);
}

static double sum(gr_team *team, const float *x, uint64_t n)
{
    double out = NAN;
    K.sum_squares(&(gr_queue){.team = team}, x, GR_F32, n, &out, NULL);
    return out;
}

static void test_the_sum_of_squares_is_exact_for_integers_and_the_same_on_any_team(void **state)
{
    (void)state;
    enum { M = 70001 };
    float *x = gr_malloc(M * sizeof(*x)), *r = gr_malloc(M * sizeof(*r));
    double want = 0;
    for (int i = 0; i < M; i++) {
        x[i] = (float)(i % 4001);
        want += (double)x[i] * (double)x[i];
    }
    fill(r, M, 1, 1);
    const double alone = sum(NULL, r, M);
    for (unsigned n = 1; n <= 3; n++) {
        gr_team *team = NULL;
        assert_int_equal(gr_team_new(&team, n, NULL), GR_OK);
        assert_true(sum(team, x, M) == want);
        assert_true(sum(team, r, M) == alone);
        assert_true(sum(team, x, 0) == 0);
        K.zero(&(gr_queue){.team = team}, x, 5);
        gr_team_free(team);
    }
    free(x), free(r);
}

/* Box and Muller's transform by the library's functions, to half a unit in a float's last place at 0.1; and
 * no set has other bits. */
static void test_normals_are_those_of_the_formula_in_every_instruction_set(void **state)
{
    (void)state;
    enum { BLOCKS = 50, COUNTERS = GR_NORMALS / 4 };
    const gr_simd *sets[GR_SIMD_MAX];
    const size_t n_sets = gr_simd_all(sets);
    float z[GR_SIMD_MAX][GR_NORMALS];
    for (uint64_t from = 0; from < BLOCKS * COUNTERS; from += COUNTERS) {
        for (size_t k = 0; k < n_sets; k++) {
            sets[k]->normals(7, 3, from, 0.02, z[k]);
            assert_memory_equal(z[k], z[0], sizeof(z[0]));
        }
        for (uint32_t i = 0; i < GR_NORMALS; i += 2) {
            uint32_t bits[4];
            gr_philox(7, 3, (uint32_t[]){(uint32_t)from + i / 4, 0, 0, 0}, bits);
            const double r = sqrt(-2 * log((double)gr_uniform(bits[i % 4])));
            const double angle = 6.283185307179586 * (double)gr_uniform(bits[i % 4 + 1]);
            assert_true(fabs((double)z[0][i] - 0.02 * r * cos(angle)) <= 4e-9);
            assert_true(fabs((double)z[0][i + 1] - 0.02 * r * sin(angle)) <= 4e-9);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instruction_sets_have_the_same_bits),
        cmocka_unit_test(test_normals_are_those_of_the_formula_in_every_instruction_set),
        cmocka_unit_test(test_exp_is_within_two_units_in_the_last_place),
        cmocka_unit_test(test_values_are_normalised_and_some_pairs_are_rotated),
        cmocka_unit_test(test_weights_of_choices_are_multiplied_by_their_experts_numbers),
        cmocka_unit_test(test_llama3_frequencies_agree_with_the_golden_list),
        cmocka_unit_test(test_draws_follow_the_softmax),
        cmocka_unit_test(test_top_k_keeps_what_equals_the_kth),
        cmocka_unit_test(test_top_p_keeps_the_fewest_that_reach_it_of_what_top_k_left),
        cmocka_unit_test(test_a_draw_depends_on_its_counter_alone),
        cmocka_unit_test(test_greedy_takes_the_lowest_of_equal_ids),
        cmocka_unit_test(test_logits_that_are_no_numbers_give_some_id),
        cmocka_unit_test(test_statistics_of_a_row_are_those_of_its_softmax),
        cmocka_unit_test(test_divergences_and_their_gradients_equal_trl),
        cmocka_unit_test(test_gradients_of_a_lesson_are_added),
        cmocka_unit_test(test_a_teacher_that_is_sure_gives_numbers),
        cmocka_unit_test(test_adamw_follows_its_formula_in_double),
        cmocka_unit_test(test_adamw_on_the_host_rounds_what_is_no_fp32),
        cmocka_unit_test(test_halves_of_fp32_are_exact),
        cmocka_unit_test(test_moments_of_8_bits_are_as_defined),
        cmocka_unit_test(test_moments_of_8_bits_come_back),
        cmocka_unit_test(test_adamw_with_moments_of_8_bits_stays_near),
        cmocka_unit_test(test_a_split_master_steps_as_fp32),
        cmocka_unit_test(test_optimizers_equal_torch_and_the_paper),
        cmocka_unit_test(test_muon_equals_its_formula_in_float64),
        cmocka_unit_test(test_lion_and_sgd_keep_one_moment),
        cmocka_unit_test(test_blend_is_a_moving_average),
        cmocka_unit_test(test_a_checksum_is_the_same_on_any_team_and_another_one_for_every_bit),
        cmocka_unit_test(test_the_sum_of_squares_is_exact_for_integers_and_the_same_on_any_team),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
