/* ops/simd/moments_body.h: moments in 8 bits and masters in halves, for ops/simd/simd_body.h. Loops of a
 * constant number of turns over local arrays, which compilers put into vectors. */
#define MOMENT_BLOCK ((size_t)GR_MOMENT_BLOCK)

static void moments_widen(bool root, const void *codes, const float *scales, float *x, size_t n)
{
    for (size_t at = 0; at < n; at += MOMENT_BLOCK) {
        const float scale = scales[at / MOMENT_BLOCK];
        float wide[MOMENT_BLOCK];
        if (root)
            for (size_t i = 0; i < MOMENT_BLOCK; i++)
                wide[i] = gr_moment_v(((const uint8_t *)codes)[at + i], scale);
        else
            for (size_t i = 0; i < MOMENT_BLOCK; i++)
                wide[i] = gr_moment_m(((const int8_t *)codes)[at + i], scale);
        memcpy(x + at, wide, GR_MIN(MOMENT_BLOCK, n - at) * sizeof(*x));
    }
}

/* The largest of 64, none of them negative: by their bits, which have the same order, and NaN above all. */
INLINE float block_scale(const float *x, float least)
{
    uint32_t most = gr_moment_bits(least);
    for (size_t i = 0; i < MOMENT_BLOCK; i++) most = GR_MAX(most, gr_moment_bits(x[i]));
    return gr_moment_float(most);
}

INLINE void chance_of(const gr_chance *by, size_t at, uint32_t chance[MOMENT_BLOCK])
{
    const uint64_t first = by ? by->first + at : 0;
    const uint32_t key = by ? gr_moment_key(by->key, first) : 0, low = (uint32_t)first;
    for (uint32_t i = 0; i < MOMENT_BLOCK; i++) chance[i] = gr_moment_mix((low + i) ^ key);
    for (uint32_t i = 0; i < MOMENT_BLOCK && !by; i++) chance[i] = GR_MOMENT_NEAREST;
}

INLINE float m_codes(const float *m, const uint32_t *chance, uint32_t *code)
{
    float size[MOMENT_BLOCK];
    for (size_t i = 0; i < MOMENT_BLOCK; i++) size[i] = fabsf(m[i]);
    const float scale = block_scale(size, GR_MOMENT_M_LEAST), inverse = gr_moment_inverse(scale);
    for (size_t i = 0; i < MOMENT_BLOCK; i++)
        code[i] = (uint32_t)gr_moment_m_code(m[i], scale, inverse, chance[i]);
    return scale;
}

INLINE float v_codes(const float *v, const uint32_t *chance, uint32_t *code)
{
    float root[MOMENT_BLOCK];
    for (size_t i = 0; i < MOMENT_BLOCK; i++) root[i] = sqrtf(v[i]);
    const float scale = block_scale(root, GR_MOMENT_V_LEAST), inverse = gr_moment_inverse(scale);
    for (size_t i = 0; i < MOMENT_BLOCK; i++) code[i] = gr_moment_v_code(root[i], scale, inverse, chance[i]);
    return scale;
}

static void moments_narrow(bool root, const float *x, size_t n, const gr_chance *by, void *codes,
                           float *scales)
{
    for (size_t at = 0; at < n; at += MOMENT_BLOCK) {
        float from[MOMENT_BLOCK] = {0};
        uint32_t chance[MOMENT_BLOCK], code[MOMENT_BLOCK];
        uint8_t small[MOMENT_BLOCK];
        memcpy(from, x + at, GR_MIN(MOMENT_BLOCK, n - at) * sizeof(*x));
        chance_of(by, at, chance);
        scales[at / MOMENT_BLOCK] = root ? v_codes(from, chance, code) : m_codes(from, chance, code);
        for (size_t i = 0; i < MOMENT_BLOCK; i++) small[i] = (uint8_t)code[i];
        memcpy((uint8_t *)codes + at, small, sizeof(small));
    }
}

static void halves_join(const uint16_t *high, const uint16_t *low, float *x, size_t n)
{
    for (size_t at = 0; at < n; at += MOMENT_BLOCK) {
        const size_t bytes = GR_MIN(MOMENT_BLOCK, n - at) * sizeof(*high);
        uint16_t h[MOMENT_BLOCK] = {0}, l[MOMENT_BLOCK] = {0};
        float whole[MOMENT_BLOCK];
        memcpy(h, high + at, bytes);
        memcpy(l, low + at, bytes);
        for (size_t i = 0; i < MOMENT_BLOCK; i++) whole[i] = gr_f32_join(h[i], l[i]);
        memcpy(x + at, whole, 2 * bytes);
    }
}

static void halves_split(const float *x, uint16_t *high, uint16_t *low, size_t n)
{
    for (size_t at = 0; at < n; at += MOMENT_BLOCK) {
        const size_t bytes = GR_MIN(MOMENT_BLOCK, n - at) * sizeof(*high);
        uint16_t h[MOMENT_BLOCK], l[MOMENT_BLOCK];
        float whole[MOMENT_BLOCK] = {0};
        memcpy(whole, x + at, 2 * bytes);
        for (size_t i = 0; i < MOMENT_BLOCK; i++) h[i] = gr_f32_high(whole[i]);
        for (size_t i = 0; i < MOMENT_BLOCK; i++) l[i] = gr_f32_low(whole[i]);
        memcpy(high + at, h, bytes);
        memcpy(low + at, l, bytes);
    }
}

#undef MOMENT_BLOCK
