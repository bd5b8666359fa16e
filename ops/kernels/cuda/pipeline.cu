/* ops/kernels/cuda/pipeline.cu: the host's part of pipeline.cuh: maps of matrices for the copy engine, and
 * what the device has. */
#include "ops/kernels/cuda/pipeline.cuh"

namespace
{

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* What does not change while a process runs, which has one device. */
struct facts {
    encode_function encode; /* NULL: the driver has no maps */
    int processors, major;
};

encode_function find_encode()
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return (encode_function)f;
}

int attribute(cudaDeviceAttr what)
{
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, what, device);
    return value;
}

/* Looked up once, by whichever thread launches first. */
const facts &known()
{
    static const facts f = {find_encode(), attribute(cudaDevAttrMultiProcessorCount),
                            attribute(cudaDevAttrComputeCapabilityMajor)};
    return f;
}

} // namespace

bool gr_tile_map(CUtensorMap *map, const gr_bf16 *p, uint64_t all, uint64_t columns, uint32_t rows)
{
    const encode_function encode = known().encode;
    const cuuint64_t size[] = {columns, all}, stride[] = {columns * sizeof(*p)};
    const cuuint32_t box[] = {GR_TILE_DEPTH, rows}, step[] = {1, 1};
    return encode &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)p, size, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool gr_box_map(CUtensorMap *map, const gr_bf16 *p, uint64_t stack, uint64_t rows, uint64_t columns)
{
    const encode_function encode = known().encode;
    const cuuint64_t size[] = {columns, rows, stack},
                     stride[] = {columns * sizeof(*p), rows * columns * sizeof(*p)};
    const cuuint32_t box[] = {GR_TILE_DEPTH, 64, 1}, step[] = {1, 1, 1};
    return encode &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)p, size, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

uint32_t gr_pipe_clusters()
{
    return (uint32_t)known().processors / GR_PIPE_CLUSTER;
}

bool gr_pipe_takes(const gr_bf16 *w, uint32_t columns)
{
    return known().major == 9 && columns % 8 == 0 && (uintptr_t)w % 16 == 0;
}
