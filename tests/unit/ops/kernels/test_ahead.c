/* The layer that predicts a further token, against tests/oracle/mtp_goldens.py: logits of the first token
 * that is drafted at every position, and of those after it. */
#include "ops/kernels/ahead.h"
#include "ops/model/ahead.h"
#include "tests/unit/model_fixture.h"

enum { N = 62, SEQS = 3, PASSES = 3, VOCAB = 32, LONGEST = 37 }; /* of every golden */

static const char *const names[] = {"qwen3_5_text", "qwen3_next", "glm4_moe", "deepseek_v3"};

struct golden {
    const char *name;
    fixture model, ahead;
    gr_safetensors *file;
    int32_t ids[N];
    uint32_t offset[SEQS + 1];
    float *hidden; /* [N, H] what the oracle goes by */
    void *ws;
    gr_diag d;
};

static void read_floats(const struct golden *g, const char *name, uint64_t rows, uint64_t cols, float *out)
{
    assert_int_equal(gr_safetensors_read_f32(g->file, name, rows, cols, out, NULL), GR_OK);
}

static void read_ids(const struct golden *g, const char *name, uint64_t rows, uint64_t cols, int32_t *out)
{
    float x[N];
    read_floats(g, name, rows, cols, x);
    for (uint64_t i = 0; i < rows * GR_MAX(cols, UINT64_C(1)); i++) out[i] = (int32_t)x[i];
}

static void golden_open(struct golden *g, const char *name)
{
    char path[256];
    gr_model_shape s;
    snprintf(path, sizeof(path), "tests/golden/mtp/%s", name);
    gr_diag_init(&g->d);
    g->name = name;
    assert_int_equal(gr_model_shape_read(&s, path, &g->d), GR_OK);
    assert_int_equal(s.n_ahead, 1);
    assert_int_equal(s.vocab, VOCAB);
    const gr_model_shape one = gr_ahead_shape(&s);
    g->model = fx_new(&s, 2);
    g->ahead = fx_new(&one, 2);
    fx_read(&g->model, path, "", g->model.w);
    fx_read(&g->ahead, path, "", g->ahead.w);
    assert_int_equal(gr_safetensors_open(&g->file, path, &g->d), GR_OK);
    read_ids(g, "golden.ids", N, 0, g->ids);
    read_ids(g, "golden.offset", SEQS + 1, 0, (int32_t *)g->offset);
    g->hidden = gr_malloc((size_t)N * s.hidden * sizeof(float));
    read_floats(g, "golden.hidden", N, s.hidden, g->hidden);
    g->ws = fx_dirty(gr_ahead_ws_bytes(&K, &one, N, 2));
}

static void golden_release(struct golden *g)
{
    gr_safetensors_free(g->file);
    fx_free(&g->model);
    fx_free(&g->ahead);
    free(g->hidden), free(g->ws);
    gr_diag_release(&g->d);
}

/* Logits of n rows of x less the first of each row, by the log-prob of every id. */
static void logits_of(struct golden *g, const float *x, uint32_t n, float *out)
{
    float first[LONGEST] = {0}, logprob[LONGEST];
    uint32_t row[LONGEST];
    int32_t target[LONGEST];
    for (uint32_t at = 0; at < n; at += FX_CHUNK) {
        const uint32_t some = GR_MIN(n - at, (uint32_t)FX_CHUNK);
        for (uint32_t v = 0; v < VOCAB; v++) {
            for (uint32_t i = 0; i < some; i++) row[i] = at + i, target[i] = (int32_t)v;
            const gr_head_rows rows = {.n = some, .row = row, .target = target, .inv_temperature = 1};
            K.head_forward(&g->model.q, &g->model.s, fx_norm(&g->ahead), fx_lm(&g->model), x, &rows,
                           &(gr_head_stats){.logprob = logprob}, g->model.ws);
            for (uint32_t i = 0; i < some; i++) {
                if (!v) first[i] = logprob[i];
                out[(at + i) * VOCAB + v] = logprob[i] - first[i];
            }
        }
    }
}

static void assert_logits(const struct golden *g, const float *got, const float *want, uint32_t n)
{
    for (uint32_t i = 0; i < n * VOCAB; i++) {
        const double to = (double)want[i] - (double)want[i - i % VOCAB];
        if (!(fabs((double)got[i] - to) <= 1e-4))
            fail_msg("%s, row %u, id %u: got %.9g, want %.9g", g->name, i / VOCAB, i % VOCAB, (double)got[i],
                     to);
    }
}

/* n tokens, of which `cached` are in the pool: what the layer gives, in g->ahead.x. */
static void step(struct golden *g, const int32_t *ids, uint32_t n, uint32_t cached, const float *hidden)
{
    const uint32_t offset[] = {0, n}, table[] = {4, 0, 7};
    const gr_extend e = {.n_tokens = n,
                         .n_seqs = 1,
                         .ids = ids,
                         .offset = offset,
                         .cached = &cached,
                         .block_table = table,
                         .table_stride = 3};
    const gr_packed b = {.n_tokens = n, .n_seqs = 1, .ids = ids, .offset = offset};
    fixture *f = &g->ahead;
    gr_ahead_enter(&(gr_ahead_call){&K, &f->q, &f->s, g->model.w[0], f->w[0], &b, hidden, g->ws}, f->x);
    gr_layer_extend(&K, &f->q, &f->s, 0, f->w[1], &e, f->x, f->kv, f->ws);
}

static uint32_t best(const float *z)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < VOCAB; i++)
        if (z[i] > z[at]) at = i;
    return at;
}

/* Drafts behind one sequence: cut says how many of its tokens are read first. */
static void try_sequence(struct golden *g, uint32_t seq, uint32_t cut, const float *first,
                         const float *further, const int32_t *drafted)
{
    const uint32_t h = g->model.s.hidden, at = g->offset[seq], n = g->offset[seq + 1] - at - 1;
    float z[LONGEST * VOCAB], *hidden = gr_malloc(h * sizeof(*hidden));
    step(g, g->ids + at + 1, cut, 0, g->hidden + (size_t)at * h);
    logits_of(g, g->ahead.x, cut, z);
    step(g, g->ids + at + 1 + cut, n - cut, cut, g->hidden + (size_t)(at + cut) * h);
    logits_of(g, g->ahead.x, n - cut, z + cut * VOCAB);
    assert_logits(g, z, first, n);
    const float *last = z + (n - 1) * VOCAB;
    for (uint32_t i = 0; i < PASSES; i++) {
        assert_int_equal(best(last), drafted[i]);
        if (i + 1 == PASSES) break;
        const uint32_t row = i ? 0 : n - cut - 1;
        gr_ahead_again(&K, &g->ahead.q, &g->ahead.s, fx_norm(&g->ahead), g->ahead.x, &row, 1, hidden);
        step(g, drafted + i, 1, n + i, hidden);
        logits_of(g, g->ahead.x, 1, z);
        assert_logits(g, z, further + (size_t)i * VOCAB, 1);
        last = z;
    }
    free(hidden);
}

static void test_drafts_are_those_of_the_oracle(void **state)
{
    (void)state;
    for (size_t k = 0; k < GR_LEN(names); k++) {
        struct golden g;
        golden_open(&g, names[k]);
        float first[(N - SEQS) * VOCAB], further[SEQS * (PASSES - 1) * VOCAB];
        int32_t drafted[SEQS * PASSES];
        read_floats(&g, "golden.draft_logits", N - SEQS, VOCAB, first);
        read_floats(&g, "golden.further_logits", SEQS * (PASSES - 1), VOCAB, further);
        read_ids(&g, "golden.drafted", SEQS, PASSES, drafted);
        for (uint32_t s = 0, at = 0; s < SEQS; s++) {
            try_sequence(&g, s, 1 + s, first + at * VOCAB, further + (size_t)s * (PASSES - 1) * VOCAB,
                         drafted + s * PASSES);
            at += g.offset[s + 1] - g.offset[s] - 1;
        }
        golden_release(&g);
    }
}

/* What it begins with is behind the model's final norm. */
static void test_hidden_states_are_the_models(void **state)
{
    (void)state;
    for (size_t k = 0; k < GR_LEN(names); k++) {
        struct golden g;
        golden_open(&g, names[k]);
        fixture *f = &g.model;
        fx_forward(
            f,
            &(gr_packed){
                .n_tokens = N, .n_seqs = SEQS, .ids = g.ids, .offset = g.offset, .host_offset = g.offset},
            NULL, NULL);
        gr_ahead_norm(&K, &f->q, &f->s, fx_norm(f), f->x, N, f->x);
        for (uint32_t i = 0; i < N * f->s.hidden; i++) assert_close(f->x[i], (double)g.hidden[i], 1e-4, 1e-4);
        golden_release(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts_are_those_of_the_oracle),
        cmocka_unit_test(test_hidden_states_are_the_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
