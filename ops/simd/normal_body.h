/* ops/simd/normal_body.h: normal random numbers, for ops/simd/simd_body.h. Loops of a constant number of
 * turns over local arrays, which compilers put into vectors; no multiply-add is fused, so every instruction
 * set gives the same bits, and no library's logarithm has a say in them.
 *
 * Box and Muller's transform in double: z = sqrt(-2 log u) (cos, sin)(2 pi t), u and t odd multiples of 2^-24
 * between 0 and 1. The logarithm is that of the inverse hyperbolic tangent's series, sine and cosine are
 * Taylor's about the nearest quarter of a turn: both to the last bits of a double, of which a float keeps
 * half.
 */
#define N_COUNTERS (GR_NORMALS / 4)
#define N_PAIRS    (GR_NORMALS / 2)

static void random_words(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t c[4][N_COUNTERS])
{
    for (uint32_t i = 0; i < N_COUNTERS; i++) {
        const uint64_t at = counter + i;
        const uint32_t in[4] = {(uint32_t)at, (uint32_t)(at >> 32), 0, 0};
        uint32_t out[4];
        gr_philox_4x32(seed, stream, in, out);
        for (int k = 0; k < 4; k++) c[k][i] = out[k];
    }
}

/* sqrt(-2 log(v / 2^24)) for odd v. */
INLINE double radius(double v)
{
    const uint64_t root_half = UINT64_C(0x3fe6a09e667f3bcd), one = UINT64_C(0x3ff0000000000000);
    uint64_t bits, m_bits, k_bits;
    double m, k;
    memcpy(&bits, &v, sizeof(bits));
    bits += one - root_half; /* v = 2^k m, m from sqrt(1/2) to sqrt(2) */
    m_bits = (bits & UINT64_C(0x000fffffffffffff)) + root_half;
    k_bits = bits >> 52 | UINT64_C(0x4330000000000000); /* 2^52 + the biased exponent, as a double */
    memcpy(&m, &m_bits, sizeof(m));
    memcpy(&k, &k_bits, sizeof(k));
    k -= 0x1p52 + 1023 + 24;
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 1.0 / 23;
    p = p * z + 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return sqrt(-2 * (k * 0.69314718055994531 + 2 * (s + s * z * p)));
}

/* Cosine and sine of w / 2^24 turns, 0 < w < 2^24. */
INLINE void turn(int32_t w, double *cosine, double *sine)
{
    const int32_t quarter = (w + (1 << 21)) >> 22;
    const double x = (w - (quarter << 22)) * (6.283185307179586 * 0x1p-24), z = x * x;
    double s = -1.0 / 1307674368000, c = 1.0 / 20922789888000;
    s = s * z + 1.0 / 6227020800;
    s = s * z - 1.0 / 39916800;
    s = s * z + 1.0 / 362880;
    s = s * z - 1.0 / 5040;
    s = s * z + 1.0 / 120;
    s = s * z - 1.0 / 6;
    s = x + x * z * s;
    c = c * z - 1.0 / 87178291200;
    c = c * z + 1.0 / 479001600;
    c = c * z - 1.0 / 3628800;
    c = c * z + 1.0 / 40320;
    c = c * z - 1.0 / 720;
    c = c * z + 1.0 / 24;
    c = c * z - 0.5;
    c = c * z + 1;
    const uint64_t q = (uint64_t)quarter, other = -(q & 1);
    uint64_t a, b, to_cos, to_sin;
    memcpy(&a, &c, sizeof(a));
    memcpy(&b, &s, sizeof(b));
    to_cos = ((a & ~other) | (b & other)) ^ ((q + 1) >> 1 & 1) << 63;
    to_sin = ((b & ~other) | (a & other)) ^ (q >> 1 & 1) << 63;
    memcpy(cosine, &to_cos, sizeof(a));
    memcpy(sine, &to_sin, sizeof(b));
}

static void normals(uint64_t seed, uint64_t stream, uint64_t counter, double std, float dst[GR_NORMALS])
{
    uint32_t c[4][N_COUNTERS];
    double r[N_PAIRS], x[N_PAIRS], y[N_PAIRS];
    random_words(seed, stream, counter, c);
    for (uint32_t half = 0; half < 2; half++) {
        double *to_r = r + half * N_COUNTERS, *to_x = x + half * N_COUNTERS, *to_y = y + half * N_COUNTERS;
        const uint32_t *u = c[2 * half], *t = c[2 * half + 1];
        for (uint32_t i = 0; i < N_COUNTERS; i++) to_r[i] = radius((double)(int32_t)(u[i] >> 9 << 1 | 1));
        for (uint32_t i = 0; i < N_COUNTERS; i++) turn((int32_t)(t[i] >> 9 << 1 | 1), &to_x[i], &to_y[i]);
    }
    for (uint32_t i = 0; i < N_COUNTERS; i++)
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t at = half * N_COUNTERS + i;
            dst[4 * i + 2 * half] = (float)(std * (r[at] * x[at]));
            dst[4 * i + 2 * half + 1] = (float)(std * (r[at] * y[at]));
        }
}
