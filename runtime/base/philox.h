/* runtime/base/philox.h: counter-based random numbers, for the host (gr_philox of runtime/base/base.h) and
 * for device code.
 *
 * Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 */
#ifndef GR_RUNTIME_BASE_PHILOX_H
#define GR_RUNTIME_BASE_PHILOX_H

#include <stdint.h>

/* A function of the header for whoever compiles it. */
#ifdef __CUDACC__
#define GR_BOTH static __device__ __forceinline__
#else
#define GR_BOTH static inline __attribute__((always_inline))
#endif

GR_BOTH void gr_philox_4x32(uint64_t seed, uint64_t stream, const uint32_t counter[4], uint32_t out[4])
{
    /* the stream is mixed into the key, so that streams of one seed do not share counters */
    uint64_t key = seed ^ (stream * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0xD1B54A32D192ED03));
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
