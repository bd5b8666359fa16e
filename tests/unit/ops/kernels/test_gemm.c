#include "tests/unit/test.h"

#include "ops/kernels/cpu/gemm.h"

static float value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-23f - 1;
}

static float *random_floats(size_t n, uint32_t seed)
{
    float *x = gr_malloc((n + 1) * sizeof(*x));
    for (size_t i = 0; i < n; i++) x[i] = value(&seed);
    return x;
}

struct sides {
    size_t m, n, k;
};

struct operands {
    struct sides z;
    float *a, *b, *c0;
};

static struct operands operands_new(size_t m, size_t n, size_t k)
{
    return (struct operands){
        {m, n, k}, random_floats(m * k, 1), random_floats(k * n, 2), random_floats(m * n, 3)};
}

static void operands_free(struct operands *o)
{
    free(o->a), free(o->b), free(o->c0);
}

/* c, new, from o with the forms asked; at: A is stored [k, m], bt: B is stored [n, k]. */
static float *product(const struct operands *o, bool at, bool bt, bool add, const gr_simd *simd,
                      gr_team *team)
{
    const struct sides z = o->z;
    float *c = gr_malloc((z.m * z.n + 1) * sizeof(*c));
    memcpy(c, o->c0, z.m * z.n * sizeof(*c));
    gr_gemm_job job = {z.m, z.n, z.k, {o->a, at ? z.m : z.k, at}, {o->b, bt ? z.k : z.n, bt}, c,
                       z.n, add, simd};
    void *ws = gr_malloc(gr_gemm_ws_bytes(&job, gr_team_size(team))); /* AddressSanitizer holds it to them */
    gr_gemm(&(gr_queue){.team = team}, &job, ws);
    free(ws);
    return c;
}

/* The definition: one chain of fused multiply-adds. */
static float chain(const struct operands *o, bool at, bool bt, bool add, size_t i, size_t j)
{
    const struct sides z = o->z;
    float s = add ? o->c0[i * z.n + j] : 0;
    for (size_t p = 0; p < z.k; p++)
        s = fmaf(o->a[at ? p * z.m + i : i * z.k + p], o->b[bt ? j * z.k + p : p * z.n + j], s);
    return s;
}

static void test_every_element_is_one_chain_of_fma_in_order(void **state)
{
    (void)state;
    static const struct sides sides[] = {{1, 1, 1},     {3, 5, 7},     {13, 33, 257},
                                         {64, 40, 300}, {65, 47, 20},  {70, 16, 96},
                                         {241, 97, 31}, {100, 530, 9}, {300, 33, 513}};
    const gr_simd *sets[GR_SIMD_MAX];
    const size_t n_sets = gr_simd_all(sets);
    for (size_t i = 0; i < GR_LEN(sides); i++) {
        struct operands o = operands_new(sides[i].m, sides[i].n, sides[i].k);
        for (unsigned form = 0; form < 8; form++) {
            const bool at = form & 1, bt = form & 2, add = form & 4;
            for (size_t s = 0; s < n_sets; s++) {
                float *c = product(&o, at, bt, add, sets[s], NULL);
                for (size_t e = 0; e < o.z.m * o.z.n; e += 1 + e / 97) {
                    const float want = chain(&o, at, bt, add, e / o.z.n, e % o.z.n);
                    if (memcmp(&c[e], &want, sizeof(want)))
                        fail_msg("%s, %zu x %zu x %zu, form %u, element %zu: %.9g, want %.9g", sets[s]->name,
                                 o.z.m, o.z.n, o.z.k, form, e, (double)c[e], (double)want);
                }
                free(c);
            }
        }
        operands_free(&o);
    }
}

static void test_a_product_is_near_the_one_in_double(void **state)
{
    (void)state;
    struct operands o = operands_new(37, 51, 700);
    float *c = product(&o, false, true, false, NULL, NULL);
    for (size_t i = 0; i < o.z.m; i++)
        for (size_t j = 0; j < o.z.n; j++) {
            double want = 0;
            for (size_t p = 0; p < o.z.k; p++)
                want += (double)o.a[i * o.z.k + p] * (double)o.b[j * o.z.k + p];
            assert_close(c[i * o.z.n + j], want, 2e-5, 1e-5);
        }
    free(c);
    operands_free(&o);
}

static void test_a_row_has_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    struct operands o = operands_new(70, 48, 333);
    float *all = product(&o, false, true, false, NULL, NULL);
    for (o.z.m = 1; o.z.m < 70; o.z.m++) {
        float *c = product(&o, false, true, false, NULL, NULL);
        assert_memory_equal(c, all, o.z.m * o.z.n * sizeof(*c));
        free(c);
    }
    free(all);
    operands_free(&o);
}

static void test_threads_do_not_change_bits(void **state)
{
    (void)state;
    static const struct sides sides[] = {{300, 100, 300}, {20, 200, 300}, {5, 3, 300}};
    for (size_t i = 0; i < GR_LEN(sides); i++)
        for (unsigned n = 2; n <= 3; n++) {
            struct operands o = operands_new(sides[i].m, sides[i].n, sides[i].k);
            gr_team *team = NULL;
            assert_int_equal(gr_team_new(&team, n, NULL), GR_OK);
            for (unsigned form = 0; form < 4; form++) {
                float *one = product(&o, form & 1, form & 2, true, NULL, NULL);
                float *some = product(&o, form & 1, form & 2, true, NULL, team);
                assert_memory_equal(one, some, o.z.m * o.z.n * sizeof(*one));
                free(one), free(some);
            }
            gr_team_free(team);
            operands_free(&o);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_element_is_one_chain_of_fma_in_order),
        cmocka_unit_test(test_a_product_is_near_the_one_in_double),
        cmocka_unit_test(test_a_row_has_the_same_bits_in_any_batch),
        cmocka_unit_test(test_threads_do_not_change_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
