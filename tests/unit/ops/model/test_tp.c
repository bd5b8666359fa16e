/* A model cut for tensor parallelism: layouts against the definition, written out plainly here. */
#include "ops/pass.h"
#include "ops/parallel/reshard.h"

#include "tests/unit/test.h"

static uint32_t next(uint64_t *seed, uint32_t most)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % most;
}

/* Sizes that are no multiples of anything but the parts. */
static gr_model_shape some_shape(uint64_t *seed, uint32_t parts)
{
    gr_model_shape s = {.vocab = 5 + next(seed, 40), .hidden = 1 + next(seed, 30), .layers = 2};
    const uint32_t inner = parts * (1 + next(seed, 20)), kv_heads = parts * (1 + next(seed, 3)),
                   head_dim = 2 * (1 + next(seed, 5));
    s.tied = next(seed, 2);
    gr_layer_desc d = gr_layer_plain(kv_heads * (1 + next(seed, 4)), kv_heads, head_dim, inner);
    d.attention.qkv_bias = next(seed, 2);
    d.attention.qk_norm = next(seed, 2) ? GR_QK_NORM_HEAD : GR_QK_NORM_NONE;
    d.attention.gate = next(seed, 2);
    gr_model_of(&s, &d);
    return s;
}

/* A number for each element of a tensor, the same in whole models and slices: bucket, tensor, row, column. */
static double named(uint32_t bucket, int tensor, uint64_t row, uint64_t col)
{
    return ((bucket * 16.0 + tensor + 1) * 4096 + (double)row) * 4096 + (double)col;
}

/* Write rows [first, first + rows) and columns [left, left + cols) of a tensor at *at, row by row. */
static void put(double **at, uint32_t bucket, int tensor, uint64_t first, uint64_t rows, uint64_t left,
                uint64_t cols)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) *(*at)++ = named(bucket, tensor, first + r, left + c);
}

static void align(double **at, const double *from)
{
    while ((*at - from) % 64) *(*at)++ = 0;
}

/* A layer's bucket, or slice `place` of `parts`, by the definition of tensor parallelism. */
static size_t write_layer(double *out, const gr_model_shape *s, uint32_t bucket, uint32_t place,
                          uint32_t parts)
{
    const gr_attention_desc *a = &gr_layer(s, bucket - 1)->attention;
    const uint64_t h = s->hidden, q = (uint64_t)a->heads * a->head_dim / parts,
                   kv = (uint64_t)a->kv_heads * a->head_dim / parts,
                   f = gr_layer(s, bucket - 1)->dense.inner / parts;
    double *at = out;
    put(&at, bucket, 0, 0, h, 0, 1), align(&at, out);
    put(&at, bucket, 1, place * q, q, 0, h), put(&at, bucket, 2, place * kv, kv, 0, h);
    put(&at, bucket, 3, place * kv, kv, 0, h);
    if (a->gate) put(&at, bucket, 14, place * q, q, 0, h);
    align(&at, out);
    if (a->qkv_bias) {
        put(&at, bucket, 4, place * q, q, 0, 1), put(&at, bucket, 5, place * kv, kv, 0, 1);
        put(&at, bucket, 6, place * kv, kv, 0, 1);
        if (a->gate) put(&at, bucket, 15, place * q, q, 0, 1);
        align(&at, out);
    }
    if (a->qk_norm) {
        put(&at, bucket, 7, 0, a->head_dim, 0, 1), align(&at, out);
        put(&at, bucket, 8, 0, a->head_dim, 0, 1), align(&at, out);
    }
    put(&at, bucket, 9, 0, h, place * q, q), align(&at, out);
    put(&at, bucket, 10, 0, h, 0, 1), align(&at, out);
    put(&at, bucket, 11, place * f, f, 0, h), put(&at, bucket, 12, place * f, f, 0, h), align(&at, out);
    put(&at, bucket, 13, 0, h, place * f, f), align(&at, out);
    return (size_t)(at - out);
}

static size_t write_bucket(double *out, const gr_model_shape *s, uint32_t bucket, uint32_t place,
                           uint32_t parts)
{
    if (bucket > 0 && bucket <= s->layers) return write_layer(out, s, bucket, place, parts);
    double *at = out;
    if (bucket) put(&at, bucket, 0, 0, s->hidden, 0, 1), align(&at, out);
    if (!bucket || !s->tied) put(&at, bucket, 1, 0, s->vocab, 0, s->hidden), align(&at, out);
    return (size_t)(at - out);
}

static void copy_block(double *slice, const double *whole, const gr_tp_block *b)
{
    for (uint64_t i = 0; i < b->count; i++)
        memcpy(slice + b->to + i * b->to_stride, whole + b->from + i * b->from_stride, b->n * sizeof(double));
}

static void test_blocks_make_the_slices(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 60; round++) {
        const uint32_t parts = 1u << next(&seed, 4);
        const gr_model_shape s = some_shape(&seed, parts), shape = gr_tp_shape(&s, (gr_slicing){parts, 1, 1});
        char buf[48];
        assert_null(gr_tp_uneven(&s, (gr_slicing){parts, 1, 1}, buf));
        for (uint32_t b = 0; b < gr_model_buckets(&s); b++) {
            const uint64_t n = gr_bucket_elems(&s, b), part = gr_bucket_elems(&shape, b);
            double *whole = calloc(n, sizeof(double)), *got = calloc(part, sizeof(double)),
                   *want = calloc(part, sizeof(double));
            assert_int_equal(gr_align(write_bucket(whole, &s, b, 0, 1), 4096), n);
            for (uint32_t place = 0; place < parts; place++) {
                gr_tp_block blocks[GR_TP_BLOCKS_MAX];
                memset(got, 0, part * sizeof(double));
                memset(want, 0, part * sizeof(double));
                const size_t n_blocks = gr_tp_blocks(&s, (gr_slicing){parts, 1, 1}, place, b, blocks);
                for (size_t i = 0; i < n_blocks; i++) copy_block(got, whole, &blocks[i]);
                assert_int_equal(gr_align(write_bucket(want, &s, b, place, parts), 4096), part);
                assert_memory_equal(got, want, part * sizeof(double));
            }
            free(whole), free(got), free(want);
        }
    }
}

/* Any shards of a bucket hold together what its blocks have, each element once and in order. */
static void test_pieces_of_shards_make_the_blocks(void **state)
{
    (void)state;
    uint64_t seed = 2;
    for (int round = 0; round < 60; round++) {
        const uint32_t parts = 1u << next(&seed, 4), shard = 1 + next(&seed, 700);
        const gr_model_shape s = some_shape(&seed, parts), shape = gr_tp_shape(&s, (gr_slicing){parts, 1, 1});
        const uint64_t n = gr_bucket_elems(&s, 1), part = gr_bucket_elems(&shape, 1);
        double *whole = calloc(n, sizeof(double)), *got = calloc(part, sizeof(double)),
               *want = calloc(part, sizeof(double));
        write_bucket(whole, &s, 1, 0, 1);
        for (uint32_t place = 0; place < parts; place++) {
            gr_tp_block blocks[GR_TP_BLOCKS_MAX], piece[3];
            const size_t n_blocks = gr_tp_blocks(&s, (gr_slicing){parts, 1, 1}, place, 1, blocks);
            memset(got, 0, part * sizeof(double));
            uint64_t sum = 0;
            for (uint64_t first = 0; first < n; first += shard) {
                const uint64_t end = GR_MIN(first + shard, n);
                uint64_t here = 0;
                for (size_t i = 0; i < n_blocks; i++)
                    for (size_t k = 0, m = gr_tp_cut(&blocks[i], first, end, piece); k < m; k++) {
                        const gr_tp_block *p = &piece[k];
                        assert_true(p->n && p->count && p->from >= first &&
                                    p->from + (p->count - 1) * p->from_stride + p->n <= end);
                        copy_block(got, whole, p);
                        here += p->n * p->count;
                    }
                assert_int_equal(here, gr_tp_count(blocks, n_blocks, first, end));
                sum += here;
            }
            assert_int_equal(sum, gr_tp_count(blocks, n_blocks, 0, n)); /* none twice */
            write_bucket(want, &s, 1, place, parts);
            assert_memory_equal(got, want, part * sizeof(double));
        }
        free(whole), free(got), free(want);
    }
}

/* All ranks in thought: what each packs for the slice that another has is what that one expects, and unpacked
 * it makes the slices, though they held something else; both within the room that is planned for. */
static void reshard(const gr_model_shape *s, gr_slicing cut, uint32_t ranks, uint32_t b, const float *whole)
{
    const uint32_t parts = gr_slicing_parts(cut);
    const gr_model_shape shape = gr_tp_shape(s, cut);
    const uint64_t n = gr_bucket_elems(s, b), part = gr_bucket_elems(&shape, b),
                   shard = gr_shard_elems(n, ranks), room = gr_reshard_room(s, cut, b, ranks);
    float *padded = calloc(shard * ranks, sizeof(float)), *buffers = calloc(room * ranks, sizeof(float)),
          *got = calloc(part, sizeof(float)), *want = calloc(part, sizeof(float));
    gr_reshard_part *out = calloc((size_t)ranks * parts, sizeof(*out)), *in = calloc(ranks, sizeof(*in));
    memcpy(padded, whole, n * sizeof(float));
    gr_queue q = {0};
    gr_reshard r = {s, cut, b, 0, ranks, &gr_kernels_cpu, &q};
    for (r.rank = 0; r.rank < ranks; r.rank++)
        gr_reshard_pack(&r, padded + r.rank * shard, buffers + r.rank * room, out + r.rank * parts);
    for (r.rank = 0; r.rank < ranks; r.rank++) {
        float *own = buffers + r.rank * room;
        gr_reshard_expect(&r, in);
        for (uint32_t from = 0; from < ranks; from++) {
            const gr_reshard_part *sent = &out[from * parts + r.rank % parts];
            assert_int_equal(in[from].n, sent->n);
            assert_true(in[from].at + in[from].n <= room);
            for (uint32_t k = 0; k < parts; k++)
                assert_true(out[r.rank * parts + k].at + out[r.rank * parts + k].n <= in[0].at);
            memcpy(own + in[from].at, buffers + from * room + sent->at, sent->n * sizeof(float));
        }
        for (uint64_t i = 0; i < part; i++) got[i] = want[i] = NAN;
        gr_reshard_unpack(&r, in, own, got);
        gr_reshard_local(&r, whole, want);
        assert_memory_equal(got, want, part * sizeof(float));
    }
    free(padded), free(buffers), free(got), free(want), free(out), free(in);
}

static void test_shards_are_packed_and_unpacked_into_slices(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 60; round++) {
        const uint32_t parts = 1u << next(&seed, 4), ranks = parts * (1 + next(&seed, 5));
        const gr_model_shape s = some_shape(&seed, parts);
        const uint64_t n = gr_bucket_elems(&s, 1);
        float *whole = calloc(n, sizeof(float));
        double *named_ones = calloc(n, sizeof(double));
        write_bucket(named_ones, &s, 1, 0, 1);
        for (uint64_t i = 0; i < n; i++) whole[i] = named_ones[i] != 0 ? (float)(i + 1) : 0;
        reshard(&s, (gr_slicing){parts, 1, 1}, ranks, 1, whole);
        free(whole), free(named_ones);
    }
}

/* Of a tensor's elements, where it lies in a bucket. */
static const float *values_of(const gr_model_shape *s, gr_tensor_slot slot, const float *bucket)
{
    return bucket + gr_tensor_offset(s, 1, slot);
}

/* The rows of a slice's heads, of so many; both go on to what stands behind them. */
static void want_heads(const float **whole, float **own, uint32_t place, uint32_t rows, uint32_t parts,
                       uint32_t cols)
{
    const uint64_t n = (uint64_t)rows / parts * cols;
    memcpy(*own, *whole + place * n, n * sizeof(float));
    *own += n;
    *whole += (uint64_t)rows * cols;
}

/* Of the gated delta rule each part has key heads and the value heads on them: rows of q, of k and of v,
 * which stand in one tensor, and channels of the convolution alike; columns of what it gives. */
static void test_heads_of_the_delta_rule_are_cut(void **state)
{
    (void)state;
    for (uint32_t parts = 1; parts <= 4; parts *= 2)
        for (int by_head = 0; by_head < 2; by_head++) {
            gr_model_shape s = {.vocab = 8, .hidden = 6, .layers = 1};
            gr_layer_desc d = gr_layer_plain(4, 4, 4, 8);
            d.mixer = GR_MIXER_DELTA;
            d.attention = (gr_attention_desc){0};
            d.delta = (gr_delta_desc){4, 12, 3, 5, 2, by_head, false};
            gr_model_of(&s, &d);
            const gr_slicing cut = {parts, 1, 1};
            const gr_model_shape slice = gr_tp_shape(&s, cut);
            const uint64_t n = gr_bucket_elems(&s, 1), part = gr_bucket_elems(&slice, 1);
            float *whole = calloc(n, sizeof(float)), *got = calloc(part, sizeof(float)), want[168 * 6];
            char buf[48];
            for (uint64_t i = 0; i < n; i++) whole[i] = (float)(i + 1);
            assert_null(gr_tp_uneven(&s, cut, buf));
            assert_string_equal(gr_tp_uneven(&s, (gr_slicing){8, 1, 1}, buf),
                                "4 key heads of the gated delta rule");
            for (uint32_t place = 0; place < parts; place++) {
                const gr_reshard r = {&s, cut, 1, place, parts, &gr_kernels_cpu, &(gr_queue){0}};
                gr_reshard_local(&r, whole, got);
                const uint32_t rows[] = {12, 12, 60, 60, 12, 12}; /* q, k, v, z, b, a */
                const float *from = values_of(&s, GR_T_DELTA_IN, whole);
                float *to = want;
                for (size_t i = 0; i < GR_LEN(rows); i++) want_heads(&from, &to, place, rows[i], parts, 6);
                assert_memory_equal(values_of(&slice, GR_T_DELTA_IN, got), want,
                                    (uint64_t)(to - want) * sizeof(float));
                from = values_of(&s, GR_T_DELTA_CONV, whole);
                to = want;
                for (size_t i = 0; i < 3; i++) want_heads(&from, &to, place, rows[i], parts, 2);
                assert_memory_equal(values_of(&slice, GR_T_DELTA_CONV, got), want,
                                    (uint64_t)(to - want) * sizeof(float));
                assert_memory_equal(values_of(&slice, GR_T_DELTA_A_LOG, got),
                                    values_of(&s, GR_T_DELTA_A_LOG, whole) + place * 12 / parts,
                                    12 / parts * sizeof(float));
                for (uint32_t row = 0; row < 6; row++)
                    assert_memory_equal(values_of(&slice, GR_T_DELTA_OUT, got) + row * 60 / parts,
                                        values_of(&s, GR_T_DELTA_OUT, whole) + row * 60 + place * 60 / parts,
                                        60 / parts * sizeof(float));
            }
            for (uint32_t ranks = parts; ranks <= 3 * parts; ranks += parts) {
                gr_tensor t[GR_BUCKET_TENSORS_MAX];
                memset(whole, 0, n * sizeof(float));
                for (size_t i = gr_bucket_ranges(&s, 1, t); i-- > 0;)
                    for (uint64_t k = 0, m = (uint64_t)t[i].rows * GR_MAX(t[i].cols, 1u); k < m; k++)
                        whole[t[i].offset + k] = (float)(t[i].offset + k + 1);
                reshard(&s, cut, ranks, 1, whole);
            }
            free(whole), free(got);
        }
}

static gr_model_shape expert_shape(uint32_t count, bool bias)
{
    gr_model_shape s = {.vocab = 7, .hidden = 10, .layers = 2, .model_type = "qwen3_moe"};
    gr_layer_desc d = gr_layer_plain(2, 1, 4, 0);
    d.mlp = GR_MLP_EXPERTS;
    d.experts = (gr_experts_desc){.count = count, .top_k = 2, .inner = 3, .bias = bias, .shared_inner = 5};
    gr_model_of(&s, &d);
    return s;
}

/* Each part has its experts, side by side, and all else. */
static void test_experts_are_divided_whole(void **state)
{
    (void)state;
    for (uint32_t parts = 2; parts <= 8; parts *= 2)
        for (uint32_t count = parts; count <= 16; count += parts) {
            const gr_slicing cut = {1, parts, 1};
            const gr_model_shape s = expert_shape(count, count % 3 == 0), slice = gr_tp_shape(&s, cut);
            const uint64_t n = gr_bucket_elems(&s, 1), part = gr_bucket_elems(&slice, 1);
            float *whole = calloc(n, sizeof(float)), *own = calloc(part, sizeof(float));
            gr_tensor t[GR_BUCKET_TENSORS_MAX];
            for (size_t i = gr_bucket_ranges(&s, 1, t); i-- > 0;)
                for (uint64_t k = 0; k < (uint64_t)t[i].rows * GR_MAX(t[i].cols, 1u); k++)
                    whole[t[i].offset + k] = (float)(t[i].offset + k + 1);
            const uint32_t held = count / parts;
            assert_int_equal(gr_experts_held(&gr_layer(&slice, 0)->experts), held);
            for (uint32_t place = 0; place < parts; place++) {
                const gr_reshard r = {&s, cut, 1, place, parts, &gr_kernels_cpu, &(gr_queue){0}};
                gr_reshard_local(&r, whole, own);
                assert_memory_equal(values_of(&slice, GR_T_EXPERTS_GATE_UP, own),
                                    values_of(&s, GR_T_EXPERTS_GATE_UP, whole) + place * held * 6 * 10,
                                    held * 6 * 10 * sizeof(float));
                assert_memory_equal(values_of(&slice, GR_T_EXPERTS_DOWN, own),
                                    values_of(&s, GR_T_EXPERTS_DOWN, whole) + place * held * 10 * 3,
                                    held * 10 * 3 * sizeof(float));
                assert_memory_equal(values_of(&slice, GR_T_ROUTER, own), values_of(&s, GR_T_ROUTER, whole),
                                    count * 10 * sizeof(float));
                assert_memory_equal(values_of(&slice, GR_T_SHARED_DOWN, own),
                                    values_of(&s, GR_T_SHARED_DOWN, whole), 10 * 5 * sizeof(float));
            }
            for (uint32_t ranks = parts; ranks <= 3 * parts; ranks += parts)
                reshard(&s, cut, ranks, 1, whole);
            free(whole), free(own);
        }
}

/* Along both: attention along the one, experts, which are whole, along the other; what is cut along the
 * smaller number is in several slices. */
static void test_experts_are_divided_beside_slices(void **state)
{
    (void)state;
    const gr_slicing cuts[] = {{2, 2, 1}, {2, 4, 1}, {4, 2, 1}, {2, 8, 2}};
    gr_model_shape s = {.vocab = 8, .hidden = 12, .layers = 2, .model_type = "qwen3_moe"};
    gr_layer_desc d = gr_layer_plain(8, 4, 4, 0);
    d.mlp = GR_MLP_EXPERTS;
    d.experts = (gr_experts_desc){.count = 8, .top_k = 2, .inner = 5, .shared_inner = 7};
    gr_model_of(&s, &d);
    const uint64_t n = gr_bucket_elems(&s, 1);
    float *whole = calloc(n, sizeof(float));
    gr_tensor t[GR_BUCKET_TENSORS_MAX];
    for (size_t i = gr_bucket_ranges(&s, 1, t); i-- > 0;)
        for (uint64_t k = 0, m = (uint64_t)t[i].rows * GR_MAX(t[i].cols, 1u); k < m; k++)
            whole[t[i].offset + k] = (float)(t[i].offset + k + 1);
    for (size_t i = 0; i < GR_LEN(cuts); i++) {
        const gr_slicing cut = cuts[i];
        const uint32_t parts = GR_MAX(cut.width, cut.experts);
        const gr_model_shape slice = gr_tp_shape(&s, cut);
        uint64_t seen = 0, both = 0;
        char buf[48];
        assert_null(gr_tp_uneven(&s, cut, buf));
        assert_int_equal(slice.kinds[0].attention.heads, 8 / cut.width);
        assert_int_equal(gr_experts_held(&slice.kinds[0].experts), 8 / cut.experts);
        assert_int_equal(slice.kinds[0].experts.inner, 5);
        assert_int_equal(slice.kinds[0].experts.shared_inner, 7);
        for (uint32_t place = 0; place < parts; place++) {
            gr_tp_block b[GR_TP_BLOCKS_MAX];
            for (size_t k = gr_tp_blocks(&s, cut, place, 1, b); k-- > 0;) {
                seen += b[k].n * b[k].count;
                both += b[k].several && !b[k].common ? b[k].n * b[k].count : 0;
            }
        }
        const uint64_t attention = (uint64_t)(8 + 2 * 4) * 4 * 12 + 12 * 8 * 4, experts = 8 * 3 * 5 * 12,
                       common = gr_tp_common(&s, cut, 1);
        const uint32_t most = parts / cut.width, of_experts = parts / cut.experts;
        assert_int_equal(seen, parts * common + most * attention + of_experts * experts);
        assert_int_equal(both, (most > 1) * most * attention + (of_experts > 1) * of_experts * experts);
        for (uint32_t ranks = parts; ranks <= 3 * parts; ranks += parts) reshard(&s, cut, ranks, 1, whole);
    }
    free(whole);
}

static void test_what_is_not_divided_is_common(void **state)
{
    (void)state;
    const gr_model_shape s = expert_shape(8, false), slice = gr_tp_shape(&s, (gr_slicing){1, 4, 1});
    const uint64_t experts = 8 * 3 * 3 * 10;
    assert_int_equal(gr_tp_common(&s, (gr_slicing){1, 4, 1}, 1), gr_model_params(&s) / 2 - 5 - 70 - experts);
    assert_true(gr_tp_is_cut(&s, (gr_slicing){1, 4, 1}, 1));
    assert_false(gr_tp_is_cut(&s, (gr_slicing){1, 4, 1}, 0));
    assert_false(gr_tp_is_cut(&s, (gr_slicing){1, 1, 1}, 1));
    assert_true(gr_bucket_elems(&slice, 1) < gr_bucket_elems(&s, 1) || experts < 4096);
    char buf[48];
    assert_null(gr_tp_uneven(&s, (gr_slicing){1, 4, 1}, buf));
    assert_string_equal(gr_tp_uneven(&s, (gr_slicing){1, 3, 1}, buf), "8 experts");
    gr_model_shape dense = {.layers = 3};
    const gr_layer_desc d = gr_layer_plain(12, 2, 8, 90);
    gr_model_of(&dense, &d);
    assert_string_equal(gr_tp_uneven(&dense, (gr_slicing){1, 2, 1}, buf), "layers, which have no experts");
    gr_model_shape beside = s;
    for (uint32_t i = 0; i < s.n_kinds; i++) beside.kinds[i].dense.inner = 8;
    assert_string_equal(gr_tp_uneven(&beside, (gr_slicing){1, 4, 1}, buf), "experts beside a dense MLP");
    assert_string_equal(gr_tp_uneven(&beside, (gr_slicing){2, 1, 1}, buf), "experts beside a dense MLP");
    assert_null(gr_tp_uneven(&beside, (gr_slicing){1, 1, 1}, buf));
}

/* By hand, of the Qwen3-8B geometry in two parts: half of all matrices, and all of both norms of a layer and
 * of the heads. */
static void test_a_slice_has_its_part_of_a_layer(void **state)
{
    (void)state;
    gr_model_shape s = {.vocab = 151936, .hidden = 4096, .layers = 36};
    gr_layer_desc d = gr_layer_plain(32, 8, 128, 12288);
    d.attention.qk_norm = GR_QK_NORM_HEAD;
    gr_model_of(&s, &d);
    const gr_model_shape half = gr_tp_shape(&s, (gr_slicing){2, 1, 1});
    assert_int_equal(gr_layer(&half, 35)->attention.heads, 16);
    assert_int_equal(gr_layer(&half, 35)->attention.kv_heads, 4);
    assert_int_equal(gr_layer(&half, 35)->dense.inner, 6144);
    assert_int_equal(half.parts, 2);
    /* q and o 4096 x 4096, k and v 1024 x 4096, gate, up, down 12288 x 4096 */
    const uint64_t matrices = 2 * 4096ull * 4096 + 2 * 1024ull * 4096 + 3 * 12288ull * 4096;
    assert_int_equal(gr_bucket_elems(&half, 1), gr_align(matrices / 2 + 2 * 4096 + 2 * 128, 4096));
    assert_int_equal(gr_tp_common(&s, (gr_slicing){2, 1, 1}, 1), 2 * 4096 + 2 * 128);
    assert_int_equal(gr_tp_common(&s, (gr_slicing){2, 1, 1}, 0), 151936ull * 4096);
    assert_int_equal(gr_bucket_elems(&half, 0), gr_bucket_elems(&s, 0));
}

static void test_what_does_not_come_out_even_is_named(void **state)
{
    (void)state;
    char buf[48];
    gr_model_shape s = {.layers = 3};
    const gr_layer_desc d = gr_layer_plain(12, 2, 8, 90);
    gr_model_of(&s, &d);
    assert_null(gr_tp_uneven(&s, (gr_slicing){2, 1, 1}, buf));
    assert_string_equal(gr_tp_uneven(&s, (gr_slicing){4, 1, 1}, buf), "2 KV heads");
    assert_string_equal(gr_tp_uneven(&s, (gr_slicing){8, 1, 1}, buf), "12 heads");
    s.kinds[0].attention.kv_heads = 12;
    assert_string_equal(gr_tp_uneven(&s, (gr_slicing){4, 1, 1}, buf),
                        "90 columns of the feed-forward network");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_make_the_slices),
        cmocka_unit_test(test_pieces_of_shards_make_the_blocks),
        cmocka_unit_test(test_shards_are_packed_and_unpacked_into_slices),
        cmocka_unit_test(test_heads_of_the_delta_rule_are_cut),
        cmocka_unit_test(test_experts_are_divided_whole),
        cmocka_unit_test(test_experts_are_divided_beside_slices),
        cmocka_unit_test(test_what_is_not_divided_is_common),
        cmocka_unit_test(test_a_slice_has_its_part_of_a_layer),
        cmocka_unit_test(test_what_does_not_come_out_even_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
