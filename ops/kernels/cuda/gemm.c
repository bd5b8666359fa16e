/* ops/kernels/cuda/gemm.c: products by cuBLASLt: descriptions, algorithms chosen once, epilogues. */
#include "ops/kernels/cuda/gemm.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The M whose algorithm says of which kind those of every M are under strict. */
#define STRICT_M   256
#define CANDIDATES 16
#define FEW_ROWS   256 /* of a decode step, at most */
#define ALONE_ROWS 128 /* from here on prefer_alone */
#define USUAL      (-1)

/* All that the choice of an algorithm may depend on. Compared as bytes: no padding, see key_of. */
struct key {
    uint64_t lda, ldb, ldc, ldd;
    uint32_t m, n, k;
    uint8_t form, type, add, bias, strict, fp8, pad[2];
    uint16_t align_a, align_b, align_c, align_d;
};

struct entry {
    struct key key;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t a, b, c, d; /* as cuBLASLt sees them: see describe() */
    cublasLtMatmulAlgo_t algo;
    uint64_t ws_bytes;
    bool none; /* there is no algorithm */
};

struct gr_cu_gemm {
    cublasLtHandle_t handle;
    struct entry **slot; /* open addressing, a power of two of them, at most half full */
    size_t n, cap;
    uint32_t processors; /* of the device */
};

static const char *const form_name[] = {"NT", "NN", "TN"};

static gr_status failed(const gr_cu_gemm_call *c, cublasStatus_t st, const char *what, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, st == CUBLAS_STATUS_ALLOC_FAILED ? GR_E_NOMEM : GR_E_FAILED,
                         "%s: %s (matrix product %s %u x %u x %u%s, leading dimensions %llu %llu %llu%s%s%s)",
                         what, cublasLtGetStatusString(st), form_name[c->form], c->m, c->n, c->k,
                         c->a_scales ? " in FP8" : "", (unsigned long long)c->lda, (unsigned long long)c->ldb,
                         (unsigned long long)c->ldd, c->type == GR_CU_F32 ? ", fp32" : "",
                         c->c ? ", added" : "", c->bias ? ", bias" : "");
}

/* What algorithms ask about: 256 is what arenas give, 16 what their vector loads need. */
static uint16_t alignment(const void *p)
{
    const uintptr_t at = (uintptr_t)p;
    if (at % 256 == 0) return 256;
    return at % 16 == 0 ? 16 : (uint16_t)(at & -at);
}

static struct key key_of(const gr_cu_gemm_call *c)
{
    struct key k;
    memset(&k, 0, sizeof(k));
    k.lda = c->lda;
    k.ldb = c->ldb;
    k.ldc = c->c ? c->ldc : c->ldd;
    k.ldd = c->ldd;
    k.m = c->m;
    k.n = c->n;
    k.k = c->k;
    k.form = (uint8_t)c->form;
    k.type = (uint8_t)c->type;
    k.add = c->c != NULL;
    k.bias = c->bias != NULL;
    k.strict = c->strict;
    k.fp8 = c->a_scales != NULL;
    k.align_a = alignment(c->a);
    k.align_b = alignment(c->b);
    k.align_c = alignment(c->c ? c->c : c->d);
    k.align_d = alignment(c->d);
    return k;
}

static struct entry **find_slot(struct entry **slot, size_t cap, const struct key *key)
{
    size_t i = XXH64(key, sizeof(*key), 0) & (cap - 1);
    while (slot[i] && memcmp(&slot[i]->key, key, sizeof(*key)) != 0) i = (i + 1) & (cap - 1);
    return &slot[i];
}

static void grow(gr_cu_gemm *g)
{
    const size_t cap = g->cap ? 2 * g->cap : 64;
    struct entry **slot = gr_calloc(cap, sizeof(struct entry *));
    for (size_t i = 0; i < g->cap; i++)
        if (g->slot[i]) *find_slot(slot, cap, &g->slot[i]->key) = g->slot[i];
    free(g->slot);
    g->slot = slot;
    g->cap = cap;
}

static void entry_free(struct entry *e)
{
    if (!e) return;
    if (e->how) cublasLtMatmulDescDestroy(e->how);
    cublasLtMatrixLayout_t *const all[] = {&e->a, &e->b, &e->c, &e->d};
    for (size_t i = 0; i < GR_LEN(all); i++)
        if (*all[i]) cublasLtMatrixLayoutDestroy(*all[i]);
    free(e);
}

gr_status gr_cu_gemm_open(gr_cu_gemm **out, gr_diag *d)
{
    gr_cu_gemm *g = gr_calloc(1, sizeof(*g));
    const cublasStatus_t st = cublasLtCreate(&g->handle);
    if (st != CUBLAS_STATUS_SUCCESS) {
        free(g);
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cublasLtCreate: %s", cublasLtGetStatusString(st));
    }
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    g->processors = (uint32_t)processors;
    grow(g);
    *out = g;
    return GR_OK;
}

void gr_cu_gemm_close(gr_cu_gemm *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->cap; i++) entry_free(g->slot[i]);
    free(g->slot);
    cublasLtDestroy(g->handle);
    free(g);
}

#define TRY(call)                              \
    do {                                       \
        const cublasStatus_t try_st = (call);  \
        if (try_st != CUBLAS_STATUS_SUCCESS) { \
            *what = #call;                     \
            return try_st;                     \
        }                                      \
    } while (0)

/* Where scales lie may change from call to call; that they are there must not. */
static cublasStatus_t point_scales(const struct entry *e, const gr_cu_gemm_call *c, const char **what)
{
    if (!e->key.fp8) return CUBLAS_STATUS_SUCCESS;
    TRY(cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c->b_scales,
                                       sizeof(c->b_scales)));
    TRY(cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &c->a_scales,
                                       sizeof(c->a_scales)));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t describe_scales(struct entry *e, const char **what)
{
    const int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                  rows = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    if (!e->key.fp8) return CUBLAS_STATUS_SUCCESS;
    TRY(cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &blocks, sizeof(blocks)));
    TRY(cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &rows, sizeof(rows)));
    return CUBLAS_STATUS_SUCCESS;
}

/* cuBLASLt counts in columns: a row-major [r, c] is a column-major [c, r] to it. So it is asked for the
 * transpose, D^T[N, M] = op(B)^T op(A)^T, and our B is its first factor. */
static cublasStatus_t describe(struct entry *e, uint32_t m, const char **what)
{
    const struct key *k = &e->key;
    const cudaDataType_t type = k->type == GR_CU_F32 ? CUDA_R_32F : CUDA_R_16BF,
                         of = k->fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    const cublasOperation_t first = k->form == GR_CU_GEMM_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = k->form == GR_CU_GEMM_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    TRY(cublasLtMatmulDescCreate(&e->how, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first)));
    TRY(cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second)));
    if (k->bias)
        TRY(cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof(bias)));
    const uint64_t b_cols = k->form == GR_CU_GEMM_NT ? k->k : k->n,
                   b_rows = k->form == GR_CU_GEMM_NT ? k->n : k->k;
    const uint64_t a_cols = k->form == GR_CU_GEMM_TN ? m : k->k, a_rows = k->form == GR_CU_GEMM_TN ? k->k : m;
    TRY(cublasLtMatrixLayoutCreate(&e->a, of, b_cols, b_rows, (int64_t)k->ldb));
    TRY(cublasLtMatrixLayoutCreate(&e->b, of, a_cols, a_rows, (int64_t)k->lda));
    TRY(cublasLtMatrixLayoutCreate(&e->c, type, k->n, m, (int64_t)k->ldc));
    TRY(cublasLtMatrixLayoutCreate(&e->d, type, k->n, m, (int64_t)k->ldd));
    return describe_scales(e, what);
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t pref, const struct key *k, const char **what)
{
    const uint64_t ws = GR_CU_GEMM_WS_BYTES;
    /* Split-K only where the parts are added in order from the workspace, in fp32: INPLACE adds them into the
     * result behind locks, OUTPUT_TYPE rounds each to bf16. */
    const uint32_t schemes =
        k->strict ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t first = k->align_b, second = k->align_a, c = k->align_c, d = k->align_d;
    TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws,
                                             sizeof(ws)));
    TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof(schemes)));
    TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first,
                                             sizeof(first)));
    TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second,
                                             sizeof(second)));
    TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c,
                                             sizeof(c)));
    TRY(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d,
                                             sizeof(d)));
    return CUBLAS_STATUS_SUCCESS;
}

struct config {
    int32_t id, split;
    uint32_t tile, stages, scheme, swizzle;
    uint16_t cluster;
};

static struct config config_of(const cublasLtMatmulAlgo_t *algo)
{
    struct config c = {.id = -1, .split = 1};
    size_t n;
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_ID, &c.id, sizeof(c.id), &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &c.split, sizeof(c.split),
                                         &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &c.tile, sizeof(c.tile), &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, &c.stages, sizeof(c.stages),
                                         &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &c.scheme,
                                         sizeof(c.scheme), &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &c.swizzle,
                                         sizeof(c.swizzle), &n);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &c.cluster,
                                         sizeof(c.cluster), &n);
    return c;
}

/* The mask above asks for this; what a library returns is looked at all the same. */
static bool is_allowed(const struct key *k, const cublasLtMatmulAlgo_t *algo)
{
    const struct config c = config_of(algo);
    if (c.scheme == CUBLASLT_REDUCTION_SCHEME_NONE) return !k->strict || c.split <= 1;
    return !k->strict && c.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* Of few rows the heuristics split k where their usual tiles are too few, though smaller ones would do: tiles
 * of 128 x 64, one a multiprocessor, take 48.1 us for 256 x 4096 x 12288 on an H200 against 52.9
 * (tests/gpu/gpu_gemm --bench ranks). */
static bool fills(const gr_cu_gemm *g, const struct key *k, const cublasLtMatmulAlgo_t *algo)
{
    const struct config c = config_of(algo);
    const uint32_t tiles = (k->n + 127) / 128 * ((k->m + 63) / 64);
    return c.tile == CUBLASLT_MATMUL_TILE_128x64 && c.split <= 1 && tiles <= g->processors &&
           16 * tiles >= 15 * g->processors;
}

/* found [n], n > 0: those that are allowed, in the order of the heuristics. */
static int usual_rank(const gr_cu_gemm *g, const struct key *k, const cublasLtMatmulHeuristicResult_t *found,
                      int n)
{
    if (k->form != GR_CU_GEMM_NT || k->fp8 || k->m > FEW_ROWS || config_of(&found[0].algo).split <= 1)
        return 0;
    for (int i = 1; i < n; i++)
        if (fills(g, k, &found[i].algo)) return i;
    return 0;
}

/* Of 128 to 256 rows, the kernel and tile that heuristics name take less time on clusters of one CTA and in
 * the plain variant, where there is one: 256 x 4096 x 4096 15.6 us on an H200 against 17.9, 192 x 4096 x
 * 12288 39 against 56; never more than 5 % longer (tests/gpu/gpu_gemm --bench ranks). */
static void prefer_alone(gr_cu_gemm *g, struct entry *e)
{
    const uint16_t cluster = CUBLASLT_CLUSTER_SHAPE_1x1x1;
    const uint32_t plain = 0;
    cublasLtMatmulAlgo_t algo = e->algo;
    cublasLtMatmulHeuristicResult_t check;
    if (e->key.strict || e->key.fp8 || e->key.form != GR_CU_GEMM_NT || e->key.m < ALONE_ROWS ||
        e->key.m > FEW_ROWS)
        return;
    if (cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                             sizeof(cluster)) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoConfigSetAttribute(&algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &plain,
                                             sizeof(plain)) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoCheck(g->handle, e->how, e->a, e->b, e->c, e->d, &algo, &check) !=
            CUBLAS_STATUS_SUCCESS ||
        check.workspaceSize > GR_CU_GEMM_WS_BYTES)
        return;
    e->algo = algo;
    e->ws_bytes = check.workspaceSize;
}

static cublasStatus_t choose(gr_cu_gemm *g, struct entry *e, int rank, cublasLtMatmulPreference_t pref,
                             const char **what)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0, allowed = 0;
    TRY(prefer(pref, &e->key, what));
    TRY(cublasLtMatmulAlgoGetHeuristic(g->handle, e->how, e->a, e->b, e->c, e->d, pref, CANDIDATES, found,
                                       &n));
    for (int i = 0; i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && is_allowed(&e->key, &found[i].algo))
            found[allowed++] = found[i];
    const bool usual = rank == USUAL;
    if (allowed && usual) rank = usual_rank(g, &e->key, found, allowed);
    if (rank >= 0 && rank < allowed) {
        e->algo = found[rank].algo;
        e->ws_bytes = found[rank].workspaceSize;
        if (usual) prefer_alone(g, e);
        return CUBLAS_STATUS_SUCCESS;
    }
    *what = "cublasLtMatmulAlgoGetHeuristic: no deterministic algorithm";
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* rank: of the allowed ones, or USUAL. */
static cublasStatus_t choose_for(gr_cu_gemm *g, struct entry *e, int rank, const char **what)
{
    cublasLtMatmulPreference_t pref;
    TRY(cublasLtMatmulPreferenceCreate(&pref));
    const cublasStatus_t st = choose(g, e, rank, pref, what);
    cublasLtMatmulPreferenceDestroy(pref);
    return st;
}

/* What m takes without strict, where strict may have it. */
static bool takes_default(gr_cu_gemm *g, struct entry *e, int32_t id)
{
    const char *what;
    e->key.strict = false;
    const bool found = choose_for(g, e, USUAL, &what) == CUBLAS_STATUS_SUCCESS;
    e->key.strict = true;
    return found && is_allowed(&e->key, &e->algo) && config_of(&e->algo).id == id;
}

/* strict: what m takes without it, where that is of the kind that STRICT_M has and does not split k; else the
 * very algorithm of STRICT_M. (What is ranked first among those that do not split serves few rows badly.) */
static cublasStatus_t fill_strict(gr_cu_gemm *g, struct entry *e, const gr_cu_gemm_call *c, const char **what)
{
    struct entry *fixed = gr_calloc(1, sizeof(*fixed));
    cublasLtMatmulHeuristicResult_t check;
    fixed->key = e->key;
    fixed->key.align_a = fixed->key.align_b = fixed->key.align_c = fixed->key.align_d = 16;
    cublasStatus_t st = describe(fixed, STRICT_M, what);
    if (st == CUBLAS_STATUS_SUCCESS) st = point_scales(fixed, c, what);
    if (st == CUBLAS_STATUS_SUCCESS) st = choose_for(g, fixed, USUAL, what);
    const cublasLtMatmulAlgo_t algo = fixed->algo;
    entry_free(fixed);
    if (st != CUBLAS_STATUS_SUCCESS) return st;
    if (takes_default(g, e, config_of(&algo).id)) return CUBLAS_STATUS_SUCCESS;
    e->algo = algo;
    TRY(cublasLtMatmulAlgoCheck(g->handle, e->how, e->a, e->b, e->c, e->d, &e->algo, &check));
    e->ws_bytes = check.workspaceSize;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t fill(gr_cu_gemm *g, struct entry *e, const gr_cu_gemm_call *c, const char **what)
{
    TRY(describe(e, e->key.m, what));
    TRY(point_scales(e, c, what));
    return e->key.strict ? fill_strict(g, e, c, what) : choose_for(g, e, USUAL, what);
}

static struct entry *new_entry(gr_cu_gemm *g, const gr_cu_gemm_call *c, const struct key *key,
                               cublasStatus_t *st, const char **what)
{
    struct entry *e = gr_calloc(1, sizeof(*e));
    e->key = *key;
    *st = fill(g, e, c, what);
    if (*st == CUBLAS_STATUS_SUCCESS && e->ws_bytes > GR_CU_GEMM_WS_BYTES) {
        *st = CUBLAS_STATUS_NOT_SUPPORTED;
        *what = "the algorithm wants a larger workspace";
    }
    e->none = *st != CUBLAS_STATUS_SUCCESS;
    return e;
}

/* Of FP8 it is kept, too, that there is none. */
static gr_status entry_for(gr_cu_gemm *g, const gr_cu_gemm_call *c, struct entry **out, gr_diag *d)
{
    if (c->strict && (c->form == GR_CU_GEMM_TN || c->c))
        return failed(c, CUBLAS_STATUS_NOT_SUPPORTED,
                      "strict is for products whose m counts rows of a batch, and that nothing is added to",
                      d);
    const struct key key = key_of(c);
    const char *what = "no algorithm";
    cublasStatus_t st = CUBLAS_STATUS_NOT_SUPPORTED;
    struct entry **slot = find_slot(g->slot, g->cap, &key);
    if (!*slot) {
        struct entry *e = new_entry(g, c, &key, &st, &what);
        if (e->none && !key.fp8) {
            entry_free(e);
            return failed(c, st, what, d);
        }
        if (2 * (g->n + 1) > g->cap) {
            grow(g);
            slot = find_slot(g->slot, g->cap, &key);
        }
        *slot = e;
        g->n++;
    }
    *out = *slot;
    return (*out)->none ? failed(c, st, what, d) : GR_OK;
}

bool gr_cu_gemm_fits(gr_cu_gemm *g, const gr_cu_gemm_call *c)
{
    gr_diag said;
    struct entry *e;
    gr_diag_init(&said);
    const bool fits = entry_for(g, c, &e, &said) == GR_OK;
    gr_diag_release(&said);
    return fits;
}

gr_status gr_cu_gemm_run(gr_cu_gemm *g, cudaStream_t stream, const gr_cu_gemm_call *c, void *ws, gr_diag *d)
{
    const float alpha = c->scale != 0 ? c->scale : 1, beta = c->c ? 1 : 0;
    struct entry *e;
    if (!c->m || !c->n) return GR_OK;
    if (!c->k) return failed(c, CUBLAS_STATUS_INVALID_VALUE, "k is 0", d);
    if (c->bias && (c->type != GR_CU_BF16 || c->c))
        return failed(c, CUBLAS_STATUS_NOT_SUPPORTED, "a bias goes with bf16 results that are not added", d);
    const gr_status found = entry_for(g, c, &e, d);
    if (found != GR_OK) return found;
    const char *what = "cublasLtMatmul";
    cublasStatus_t st = point_scales(e, c, &what);
    if (c->bias && st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmulDescSetAttribute(e->how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias,
                                            sizeof(c->bias));
    if (st == CUBLAS_STATUS_SUCCESS)
        st = cublasLtMatmul(g->handle, e->how, &alpha, c->b, e->a, c->a, e->b, &beta, c->c ? c->c : c->d,
                            e->c, c->d, e->d, &e->algo, ws, e->ws_bytes, stream);
    return st == CUBLAS_STATUS_SUCCESS ? GR_OK : failed(c, st, what, d);
}

bool gr_cu_gemm_take(gr_cu_gemm *g, const gr_cu_gemm_call *call, uint32_t rank, gr_diag *d)
{
    struct entry *e;
    const char *what = "";
    return entry_for(g, call, &e, d) == GR_OK &&
           choose_for(g, e, (int)rank, &what) == CUBLAS_STATUS_SUCCESS && e->ws_bytes <= GR_CU_GEMM_WS_BYTES;
}

gr_status gr_cu_gemm_describe(gr_cu_gemm *g, const gr_cu_gemm_call *call, char *buf, gr_diag *d)
{
    struct entry *e;
    const gr_status st = entry_for(g, call, &e, d);
    if (st != GR_OK) return st;
    const struct config c = config_of(&e->algo);
    snprintf(buf, 128, "id %d tile %u cluster %u stages %u split %d scheme %u swizzle %u, ws %llu", c.id,
             c.tile, c.cluster, c.stages, c.split, c.scheme, c.swizzle, (unsigned long long)e->ws_bytes);
    return GR_OK;
}
