/* What checkpoints hold of training state in its several forms, between memory and files, without a device.
 */
#include "runtime/run/bytes.h"

#include "graphs/loader/load.h"
#include "ops/parallel/parts.h"
#include "runtime/base/half.h"
#include "memplan/verify/verify.h"
#include "scheduler/search/planner.h"

#include "tests/unit/test.h"
#include "tests/unit/test_folder.h"

/* A graph planned for CUDA, whose weights are bf16, and memory for what is kept of its actor. */
typedef struct side {
    gr_graph *g;
    gr_planned *p;
    gr_bytes *b;
    char *at[64]; /* objects of the actor that are kept */
    uint32_t object[64], n;
} side;

static gr_kernels of_files;

static void restore(side *s, const char *from)
{
    gr_bytes_from(s->b, from);
    for (uint32_t i = 0; i < s->n; i++)
        if (gr_bytes_restore(s->b, s->p->tasks->objects[s->object[i]].name, s->at[i], &(gr_queue){0}, NULL))
            fail_msg("cannot restore");
}

static void *address(const side *s, uint32_t object)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->object[i] == object) return s->at[i];
    fail_msg("no object %u", object);
    return NULL;
}

static void save(side *s, const char *to)
{
    assert_int_equal(gr_dir_make(to, NULL), GR_OK);
    assert_int_equal(gr_bytes_to(s->b, to, NULL), GR_OK);
    for (uint32_t i = 0; i < s->n; i++) {
        const gr_object *o = &s->p->tasks->objects[s->object[i]];
        const void *with = o->saved_with ? address(s, o->saved_with - 1) : NULL;
        assert_int_equal(gr_bytes_save(s->b, o->name, s->at[i], with, &(gr_queue){0}, NULL), GR_OK);
    }
    assert_int_equal(gr_bytes_finish(s->b, NULL), GR_OK);
    assert_true(gr_bytes_finite(s->b));
}

static side open_side(const char *train)
{
    side s = {0};
    const char *const sets[] = {"model=tests/cli/model/config.json",
                                "batch=4",
                                "mini_batch=2",
                                "max_prompt=16",
                                "max_tokens=16",
                                train};
    gr_load_options o = {.set = sets, .n_set = GR_LEN(sets), .need_shapes = true, .ranks = 1};
    gr_plan_options how = {.kernels = gr_kernels_find("cuda"), .policy = GR_POLICY_KEEP, .threads = 1};
    assert_int_equal(gr_graph_load(&s.g, "graphs/grpo.yaml", &o, NULL), GR_OK);
    assert_int_equal(gr_hardware_find(&how.hardware, "h200", NULL), GR_OK);
    assert_int_equal(gr_plan_graph(&s.p, s.g, &how, NULL), GR_OK);
    of_files = *how.kernels; /* sizes alone, in a build without CUDA */
    of_files.zero = gr_kernels_cpu.zero;
    for (uint32_t i = 0; i < s.p->tasks->n_objects; i++) {
        const gr_object *of = &s.p->tasks->objects[i];
        if (of->span != GR_SPAN_KEEP || !of->model || strcmp(of->model, "actor")) continue;
        s.object[s.n] = i;
        s.at[s.n++] = gr_calloc(1, of->bytes);
        assert_in_range(s.n, 0, GR_LEN(s.at) - 1);
    }
    s.b = gr_bytes_new(s.g, s.p->tasks, &of_files, NULL, (gr_bytes_saved){.state = 1u << 0});
    assert_string_equal(s.g->models[0]->name, "actor");
    return s;
}

static void close_side(side *s)
{
    for (uint32_t i = 0; i < s->n; i++) free(s->at[i]);
    gr_bytes_free(s->b);
    gr_planned_free(s->p);
    gr_graph_free(s->g);
}

static void *part(const side *s, const char *name, uint32_t bucket)
{
    char *of = gr_printf("actor.%s.%u", name, bucket);
    void *at = address(s, gr_tasks_find(s->p->tasks, of));
    free(of);
    return at;
}

static uint64_t elems(const side *s, uint32_t bucket)
{
    return gr_bucket_elems(&s->g->models[0]->shape, bucket);
}

/* As training leaves it: numbers of all sizes, ties among them. */
static void make_state(side *s)
{
    for (uint32_t b = 0; b < gr_model_buckets(&s->g->models[0]->shape); b++) {
        float *state = part(s, "state", b);
        uint16_t *w = part(s, "params", b);
        const uint64_t n = elems(s, b);
        for (uint64_t i = 0; i < 3 * n; i++) {
            const bool master = i < n, pad = state[i % n] == 0; /* between tensors */
            float x = sinf((float)(i + 7 * b)) * (master ? 1 : 1e-3f);
            if (i % 11 == 5) x = gr_f32_of_bits((gr_bits_of_f32(x) & 0xffff0000) | 0x8000);
            state[i] = pad ? 0 : i < 2 * n ? x : x * x;
        }
        for (uint64_t i = 0; i < n; i++) w[i] = gr_f32_to_bf16(state[i]);
    }
}

static void copy_state(side *to, const side *from)
{
    for (uint32_t i = 0; i < to->n; i++)
        memcpy(to->at[i], from->at[i], to->p->tasks->objects[to->object[i]].bytes);
}

/* A run with an fp32 master goes on with a split one, and the other way, with every bit of it. */
static void test_a_split_master_is_the_fp32_one_in_files(void **state)
{
    (void)state;
    side wide = open_side("models.actor.train.master=fp32"),
         split = open_side("models.actor.train.master=split"),
         back = open_side("models.actor.train.master=fp32");
    char *first = in_dir("wide"), *second = in_dir("split");
    restore(&wide, NULL);
    restore(&split, NULL);
    make_state(&wide);
    save(&wide, first);
    restore(&split, first);
    save(&split, second);
    copy_state(&back, &wide);
    restore(&back, second);
    uint64_t ties = 0;
    for (uint32_t b = 0; b < gr_model_buckets(&wide.g->models[0]->shape); b++) {
        const uint64_t n = elems(&wide, b);
        const float *master = part(&wide, "state", b), *again = part(&back, "state", b);
        const uint16_t *high = part(&split, "params", b), *low = part(&split, "state", b);
        assert_memory_equal(again, master, 3 * n * sizeof(*master));
        for (uint64_t i = 0; i < n; i++) {
            assert_int_equal(gr_bits_of_f32(gr_f32_join(high[i], low[i])), gr_bits_of_f32(master[i]));
            if (low[i] == 0x8000)
                ties++;
            else
                assert_int_equal(high[i], gr_f32_to_bf16(master[i]));
        }
        assert_memory_equal(low + n, master + n, 2 * n * sizeof(*master)); /* moments stay as they are */
    }
    assert_true(ties > 100);
    close_side(&wide), close_side(&split), close_side(&back);
    free(first), free(second);
}

/* Moments of 8 bits are fp32 in files: they come back as the same codes and scales, near what they were. */
static void test_moments_of_8_bits_in_files(void **state)
{
    (void)state;
    side wide = open_side("models.actor.train.moments=fp32"),
         small = open_side("models.actor.train.moments=int8"),
         again = open_side("models.actor.train.moments=int8");
    char *first = in_dir("fp32"), *second = in_dir("int8");
    restore(&wide, NULL);
    make_state(&wide);
    save(&wide, first);
    restore(&small, first);
    save(&small, second);
    restore(&again, second);
    for (uint32_t b = 0; b < gr_model_buckets(&wide.g->models[0]->shape); b++) {
        const uint64_t n = elems(&wide, b);
        const float *state32 = part(&wide, "state", b);
        const char *codes = (const char *)part(&small, "state", b) + n * sizeof(float);
        const float *scale = (const float *)(const void *)(codes + n);
        assert_memory_equal(part(&again, "state", b), part(&small, "state", b),
                            n * sizeof(float) + 2 * gr_moment_bytes(GR_I8, n));
        for (uint64_t i = 0; i < n; i++) {
            const float m = gr_moment_m(((const int8_t *)codes)[i], scale[i / 64]), want = state32[n + i];
            assert_close(m, want, 1e-5 * (double)scale[i / 64], 0.07);
        }
    }
    close_side(&wide), close_side(&small), close_side(&again);
    free(first), free(second);
}

/* A save of the lower halves that does not read the upper ones, or reads others, is refused. */
static void test_halves_are_saved_together(void **state)
{
    (void)state;
    side s = open_side("models.actor.train.master=split");
    gr_path *path = &s.p->plan->paths[GR_PATH_FINAL];
    uint32_t i = 0;
    while (path->steps[i].n_reads != 2) i++;
    gr_step *save = &path->steps[i];
    const uint32_t other = path->steps[i + 1].reads[0], own = save->reads[1];
    assert_int_equal(gr_plan_verify(s.p->plan, s.p->tasks, NULL), GR_OK);
    save->n_reads = 1;
    assert_int_equal(gr_plan_verify(s.p->plan, s.p->tasks, NULL), GR_E_INVALID);
    save->n_reads = 2, save->reads[1] = other;
    assert_int_equal(gr_plan_verify(s.p->plan, s.p->tasks, NULL), GR_E_INVALID);
    save->reads[1] = own;
    assert_int_equal(gr_plan_verify(s.p->plan, s.p->tasks, NULL), GR_OK);
    close_side(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_split_master_is_the_fp32_one_in_files),
                                       cmocka_unit_test(test_moments_of_8_bits_in_files),
                                       cmocka_unit_test(test_halves_are_saved_together)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
