/* ops/kernels/checksum.h: the checksum of bytes that several ranks hold alike, for the host and for device
 * code.
 *
 * The sum, modulo 2^64, of a hash of each word of 8 bytes with its place; the last word is filled up with
 * zeros. A sum of integers has no order: any number of threads and any device give the same. For one place
 * the hash is one to one, so that a change of one word always shows.
 */
#ifndef GR_OPS_KERNELS_CHECKSUM_H
#define GR_OPS_KERNELS_CHECKSUM_H

#include "runtime/base/philox.h" /* GR_BOTH */

#define GR_CHECKSUM_PARTS 128 /* sums that a kernel leaves, to be added */

/* The finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA'14), of the word in its place. */
GR_BOTH uint64_t gr_checksum_word(uint64_t place, uint64_t word)
{
    uint64_t x = word + (place + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

#endif
