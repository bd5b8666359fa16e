/* ops/kernels/cuda/hopper.cuh: what Hopper's tensor cores are fed with: barriers in shared memory, tiles by
 * the bulk copy engine, warpgroup products. All of it needs sm_90a: kernels that include this have an empty
 * body elsewhere (GR_HOPPER), and launchers do not launch them.
 *
 * Addresses are of shared memory, 32 bits. Tiles are rows of 64 bf16 (128 bytes) in the 128-byte swizzle, on
 * 1024 bytes.
 */
#ifndef GR_OPS_KERNELS_CUDA_HOPPER_CUH
#define GR_OPS_KERNELS_CUDA_HOPPER_CUH

#include "ops/kernels/cuda/device.cuh"

#include <cuda.h>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GR_HOPPER 1
#else
#define GR_HOPPER 0
#endif

enum { GR_TILE_DEPTH = 64, GR_WARPGROUP = 128 }; /* bf16 of a tile's row; threads */

GR_DEVICE uint32_t gr_shared(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ------------------------------------------------------------------------------------------
 */

GR_DEVICE void gr_barrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Barriers that were made are there for the other CTAs of the cluster and for the copy engine, after
 * gr_cluster_meet. */
GR_DEVICE void gr_barriers_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* All threads of all CTAs of the cluster. This and what products need want a warp's lanes together
 * (`.aligned`), which they are not behind a wait that they left in different turns, or a branch. */
GR_DEVICE void gr_cluster_meet()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

GR_DEVICE uint32_t gr_cluster_rank()
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

/* Arrive, and let the phase wait for so many bytes of copies. */
GR_DEVICE void gr_barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

GR_DEVICE void gr_barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrive at the same barrier of another CTA of the cluster, or of this one. */
GR_DEVICE void gr_barrier_arrive_at(uint32_t barrier, uint32_t cta)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(barrier),
                 "r"(cta)
                 : "memory");
}

/* Until the phase of this parity is over. */
GR_DEVICE void gr_barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t over;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(over)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!over);
}

/* ---- copies of tiles -----------------------------------------------------------------------------------
 */

/* A box of the matrix whose first element is (column, row); what lies outside the matrix becomes zeros. */
GR_DEVICE void gr_tile_copy(uint32_t to, const CUtensorMap *from, uint32_t barrier, uint32_t column,
                            uint32_t row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%3, %4}], [%2];" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}

/* The same to the same place of each CTA in the mask, counted by the barrier of each. */
GR_DEVICE void gr_tile_copy_to(uint16_t mask, uint32_t to, const CUtensorMap *from, uint32_t barrier,
                               uint32_t column, uint32_t row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
                 "cluster [%0], [%1, {%4, %5}], "
                 "[%2], %3;" ::"r"(to),
                 "l"(from), "r"(barrier), "h"(mask), "r"(column), "r"(row)
                 : "memory");
}

/* Bytes in a row, on 16 bytes and a multiple of them, from memory to shared memory. */
GR_DEVICE void gr_row_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* From shared memory back; of this thread's group, see gr_stores_commit. */
GR_DEVICE void gr_row_store(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                 "r"(bytes)
                 : "memory");
}

/* A box of a stack of matrices (gr_box_map) whose first element is (column, row) of matrix z. */
GR_DEVICE void gr_box_copy(uint32_t to, const CUtensorMap *from, uint32_t barrier, uint32_t column,
                           uint32_t row, uint32_t z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(from), "r"(barrier), "r"(column), "r"(row), "r"(z)
                 : "memory");
}

/* From shared memory back, but for what lies outside the matrix; of this thread's group, see
 * gr_stores_commit. */
GR_DEVICE void gr_box_store(const CUtensorMap *to, uint32_t from, uint32_t column, uint32_t row, uint32_t z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(to),
                 "r"(from), "r"(column), "r"(row), "r"(z)
                 : "memory");
}

GR_DEVICE void gr_stores_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Until what this thread's groups store has left shared memory, but for the last N groups. */
template <int N> GR_DEVICE void gr_stores_left()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Until all of it has arrived. */
GR_DEVICE void gr_stores_arrived()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Four blocks of 8 x 8 bf16: lanes 0 to 7 have the addresses of the first one's rows, 16 bytes each, 8 to 15
 * those of the second, and so on; lane l two values of each block, row l / 4, columns 2 (l % 4) and the next.
 */
GR_DEVICE void gr_blocks_store(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* What this thread wrote to shared memory is there for the tensor cores and the copy engine, behind a barrier
 * among those who wrote. */
GR_DEVICE void gr_writes_shown()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- products ------------------------------------------------------------------------------------------
 */

/* Of a tile in shared memory: the next 16 of its 64 columns are 2 further. */
GR_DEVICE uint64_t gr_tile_operand(uint32_t address)
{
    const uint64_t swizzle_128 = UINT64_C(1) << 62, eight_rows = (uint64_t)(1024 >> 4) << 32;
    return swizzle_128 | eight_rows | UINT64_C(1) << 16 | (address & 0x3ffff) >> 4;
}

/* The same tiles, rows and columns exchanged: what is multiplied over are the tile's rows, and further tiles
 * of 64 columns follow every tile_bytes. The next 16 rows are 128 further. (PTX ISA, "Shared Memory Matrix
 * Layout": M-or-N-major, the leading dimension from tile to tile, the stride from 8 rows to 8 rows.)
 */
GR_DEVICE uint64_t gr_tile_turned(uint32_t address, uint32_t tile_bytes)
{
    const uint64_t swizzle_128 = UINT64_C(1) << 62, eight_rows = (uint64_t)(1024 >> 4) << 32,
                   next_tile = (uint64_t)(tile_bytes >> 4) << 16;
    return swizzle_128 | eight_rows | next_tile | (address & 0x3ffff) >> 4;
}

GR_DEVICE void gr_products_begin()
{
    __syncwarp();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

GR_DEVICE void gr_products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most N of the groups that were committed are not through. */
template <int N> GR_DEVICE void gr_products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* d [64, 2 N] (+)= a [64, 16] b [2 N, 16]^T, N floats a thread. Lane l of warp w of the warpgroup holds in
 * d[4 j + 2 h + e] row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + e. TURNED: that operand is from
 * gr_tile_turned. */
template <bool A_TURNED = false, bool B_TURNED = false>
GR_DEVICE void gr_product(float (&d)[128], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, "
                 "%72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, "
                 "%88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, "
                 "%104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, "
                 "%120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, p, 1, 1, %131, %132;\n"
                 "}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                   "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
                   "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
                   "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
                   "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
                   "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                   "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
                   "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
                   "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
                   "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
                   "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
                   "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),
                   "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                   "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),
                   "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
                   "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
                   "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
                 : "l"(a), "l"(b), "r"((int32_t)add), "n"((int)A_TURNED), "n"((int)B_TURNED));
}

GR_DEVICE void gr_product(float (&d)[96], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, "
                 "%8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, "
                 "%24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, "
                 "%40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, "
                 "%72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, "
                 "%88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1, 0, 0;\n"
                 "}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                   "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
                   "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
                   "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
                   "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
                   "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                   "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
                   "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
                   "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
                   "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
                   "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
                   "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
                 : "l"(a), "l"(b), "r"((int32_t)add));
}

/* Registers of each thread of this warpgroup from here on: the sum over the CTA must not grow. */
template <int N> GR_DEVICE void gr_registers_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> GR_DEVICE void gr_registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
