/* ops/simd/moments_body.h: moments in 8 bits, for ops/simd/simd_body.h. Loops of a constant number of turns
 * over local arrays, which compilers put into vectors. */
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
    for (size_t i = 0; i < MOMENT_BLOCK; i++)
        chance[i] = by ? gr_moment_chance(by->key, by->first + at + i) : GR_MOMENT_NEAREST;
}

static void moments_narrow(bool root, const float *x, size_t n, const gr_chance *by, void *codes,
                           float *scales)
{
    for (size_t at = 0; at < n; at += MOMENT_BLOCK) {
        float size[MOMENT_BLOCK], from[MOMENT_BLOCK] = {0};
        uint32_t chance[MOMENT_BLOCK];
        memcpy(from, x + at, GR_MIN(MOMENT_BLOCK, n - at) * sizeof(*x));
        for (size_t i = 0; i < MOMENT_BLOCK; i++) size[i] = root ? sqrtf(from[i]) : fabsf(from[i]);
        const float scale = block_scale(size, root ? GR_MOMENT_V_LEAST : GR_MOMENT_M_LEAST),
                    inverse = gr_moment_inverse(scale);
        chance_of(by, at, chance);
        scales[at / MOMENT_BLOCK] = scale;
        if (root)
            for (size_t i = 0; i < MOMENT_BLOCK; i++)
                ((uint8_t *)codes)[at + i] = (uint8_t)gr_moment_v_code(size[i], scale, inverse, chance[i]);
        else
            for (size_t i = 0; i < MOMENT_BLOCK; i++)
                ((int8_t *)codes)[at + i] = (int8_t)gr_moment_m_code(from[i], scale, inverse, chance[i]);
    }
}

#undef MOMENT_BLOCK
