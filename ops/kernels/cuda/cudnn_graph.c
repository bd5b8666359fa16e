/* ops/kernels/cuda/cudnn_graph.c: cuDNN's backend API as far as it is used: descriptors, graphs, engines. */
#include "ops/kernels/cuda/cudnn_graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VIRTUAL_UIDS 1000 /* uids from here on are the graph's own */

void gr_cudnn_graph_init(gr_cudnn_graph *g, cudnnHandle_t handle, gr_cudnn_desc device)
{
    *g = (gr_cudnn_graph){.handle = handle, .device = device, .next_uid = VIRTUAL_UIDS};
}

void gr_cudnn_graph_release(gr_cudnn_graph *g)
{
    while (g->n_made) cudnnBackendDestroyDescriptor(g->made[--g->n_made]);
    free(g->made);
    g->made = NULL;
    g->cap_made = 0;
}

static void note(gr_cudnn_graph *g, cudnnStatus_t status, const char *call)
{
    if (status == CUDNN_STATUS_SUCCESS || g->failed) return;
    g->status = status;
    g->failed = call;
    cudnnGetLastErrorString(g->why, sizeof(g->why));
}

static gr_cudnn_desc create(gr_cudnn_graph *g, cudnnBackendDescriptorType_t type, const char *call)
{
    gr_cudnn_desc desc = NULL;
    if (g->failed) return NULL;
    note(g, cudnnBackendCreateDescriptor(type, &desc), call);
    if (!g->failed) GR_PUSH(g->made, g->n_made, g->cap_made, desc);
    return g->failed ? NULL : desc;
}

static void set(gr_cudnn_graph *g, gr_cudnn_desc desc, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value, const char *call)
{
    if (!g->failed) note(g, cudnnBackendSetAttribute(desc, name, type, n, value), call);
}

static void set_desc(gr_cudnn_graph *g, gr_cudnn_desc desc, cudnnBackendAttributeName_t name,
                     gr_cudnn_desc value, const char *call)
{
    if (value) set(g, desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, call);
}

static void finalize(gr_cudnn_graph *g, gr_cudnn_desc desc, const char *call)
{
    if (!g->failed) note(g, cudnnBackendFinalize(desc), call);
}

#define SET(desc, name, type, value) \
    set(g, desc, CUDNN_ATTR_##name, CUDNN_TYPE_##type, 1, &(value), "set " #name)
#define SET_DESC(desc, name, value) set_desc(g, desc, CUDNN_ATTR_##name, value, "set " #name)
#define CREATE(name)                create(g, CUDNN_BACKEND_##name##_DESCRIPTOR, "create " #name)
#define FINALIZE(desc, name)        finalize(g, desc, "finalize " #name)

/* ---- tensors --------------------------------------------------------------------------------------------
 */

static gr_cudnn_desc tensor(gr_cudnn_graph *g, int64_t uid, cudnnDataType_t type, const gr_cudnn_shape *s,
                            gr_cudnn_desc ragged, bool is_virtual, bool by_value)
{
    const int64_t alignment = 16;
    gr_cudnn_desc t = CREATE(TENSOR);
    SET(t, TENSOR_DATA_TYPE, DATA_TYPE, type);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, s->dim, "set TENSOR_DIMENSIONS");
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, s->stride, "set TENSOR_STRIDES");
    SET(t, TENSOR_UNIQUE_ID, INT64, uid);
    SET(t, TENSOR_BYTE_ALIGNMENT, INT64, alignment);
    if (is_virtual) SET(t, TENSOR_IS_VIRTUAL, BOOLEAN, is_virtual);
    if (by_value) SET(t, TENSOR_IS_BY_VALUE, BOOLEAN, by_value);
    SET_DESC(t, TENSOR_RAGGED_OFFSET_DESC, ragged);
    FINALIZE(t, TENSOR);
    return t;
}

gr_cudnn_desc gr_cudnn_tensor(gr_cudnn_graph *g, int64_t uid, cudnnDataType_t type, const gr_cudnn_shape *s,
                              gr_cudnn_desc ragged)
{
    return tensor(g, uid, type, s, ragged, false, false);
}

gr_cudnn_desc gr_cudnn_scalar(gr_cudnn_graph *g, int64_t uid)
{
    const gr_cudnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    return tensor(g, uid, CUDNN_DATA_FLOAT, &one, NULL, false, true);
}

gr_cudnn_desc gr_cudnn_virtual(gr_cudnn_graph *g, cudnnDataType_t type, const gr_cudnn_shape *s,
                               gr_cudnn_desc ragged)
{
    return tensor(g, g->next_uid++, type, s, ragged, true, false);
}

/* ---- operations -----------------------------------------------------------------------------------------
 */

static void add_op(gr_cudnn_graph *g, gr_cudnn_desc op)
{
    if (g->failed) return;
    if (g->n_ops == GR_CUDNN_OPS_MAX) {
        note(g, CUDNN_STATUS_BAD_PARAM, "more operations than GR_CUDNN_OPS_MAX");
        return;
    }
    g->ops[g->n_ops++] = op;
}

static gr_cudnn_desc pointwise(gr_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math,
                               const int64_t *axis, gr_cudnn_desc x, gr_cudnn_desc b, gr_cudnn_desc t,
                               gr_cudnn_desc y)
{
    const float one = 1;
    gr_cudnn_desc how = CREATE(POINTWISE);
    SET(how, POINTWISE_MODE, POINTWISE_MODE, mode);
    SET(how, POINTWISE_MATH_PREC, DATA_TYPE, math);
    if (axis) SET(how, POINTWISE_AXIS, INT64, *axis);
    FINALIZE(how, POINTWISE);
    gr_cudnn_desc op = CREATE(OPERATION_POINTWISE);
    SET_DESC(op, OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    SET_DESC(op, OPERATION_POINTWISE_XDESC, x);
    SET_DESC(op, OPERATION_POINTWISE_YDESC, y);
    SET_DESC(op, OPERATION_POINTWISE_BDESC, b);
    SET_DESC(op, OPERATION_POINTWISE_TDESC, t);
    SET(op, OPERATION_POINTWISE_ALPHA1, FLOAT, one);
    SET(op, OPERATION_POINTWISE_ALPHA2, FLOAT, one);
    FINALIZE(op, OPERATION_POINTWISE);
    add_op(g, op);
    return y;
}

gr_cudnn_desc gr_cudnn_pointwise(gr_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t math,
                                 gr_cudnn_desc x, gr_cudnn_desc b, gr_cudnn_desc t, gr_cudnn_desc y)
{
    return pointwise(g, mode, math, NULL, x, b, t, y);
}

gr_cudnn_desc gr_cudnn_index(gr_cudnn_graph *g, int64_t axis, cudnnDataType_t math, gr_cudnn_desc x,
                             gr_cudnn_desc y)
{
    return pointwise(g, CUDNN_POINTWISE_GEN_INDEX, math, &axis, x, NULL, NULL, y);
}

gr_cudnn_desc gr_cudnn_matmul(gr_cudnn_graph *g, gr_cudnn_desc a, gr_cudnn_desc b, gr_cudnn_desc c,
                              gr_cudnn_desc m, gr_cudnn_desc n, gr_cudnn_desc k)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    gr_cudnn_desc how = CREATE(MATMUL);
    SET(how, MATMUL_COMP_TYPE, DATA_TYPE, math);
    FINALIZE(how, MATMUL);
    gr_cudnn_desc op = CREATE(OPERATION_MATMUL);
    SET_DESC(op, OPERATION_MATMUL_ADESC, a);
    SET_DESC(op, OPERATION_MATMUL_BDESC, b);
    SET_DESC(op, OPERATION_MATMUL_CDESC, c);
    SET_DESC(op, OPERATION_MATMUL_DESC, how);
    SET_DESC(op, OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, m);
    SET_DESC(op, OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, n);
    SET_DESC(op, OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, k);
    FINALIZE(op, OPERATION_MATMUL);
    add_op(g, op);
    return c;
}

gr_cudnn_desc gr_cudnn_reduce(gr_cudnn_graph *g, cudnnReduceTensorOp_t op_kind, gr_cudnn_desc x,
                              gr_cudnn_desc y)
{
    const cudnnDataType_t math = CUDNN_DATA_FLOAT;
    gr_cudnn_desc how = CREATE(REDUCTION);
    SET(how, REDUCTION_COMP_TYPE, DATA_TYPE, math);
    SET(how, REDUCTION_OPERATOR, REDUCTION_OPERATOR_TYPE, op_kind);
    FINALIZE(how, REDUCTION);
    gr_cudnn_desc op = CREATE(OPERATION_REDUCTION);
    SET_DESC(op, OPERATION_REDUCTION_DESC, how);
    SET_DESC(op, OPERATION_REDUCTION_XDESC, x);
    SET_DESC(op, OPERATION_REDUCTION_YDESC, y);
    FINALIZE(op, OPERATION_REDUCTION);
    add_op(g, op);
    return y;
}

gr_cudnn_desc gr_cudnn_reshape(gr_cudnn_graph *g, gr_cudnn_desc x, gr_cudnn_desc y)
{
    gr_cudnn_desc op = CREATE(OPERATION_RESHAPE);
    SET_DESC(op, OPERATION_RESHAPE_XDESC, x);
    SET_DESC(op, OPERATION_RESHAPE_YDESC, y);
    FINALIZE(op, OPERATION_RESHAPE);
    add_op(g, op);
    return y;
}

/* ---- plans ----------------------------------------------------------------------------------------------
 */

#define CONFIGS_MAX 16

static gr_cudnn_desc operation_graph(gr_cudnn_graph *g)
{
    gr_cudnn_desc graph = CREATE(OPERATIONGRAPH);
    if (!g->device) SET(graph, OPERATIONGRAPH_HANDLE, HANDLE, g->handle);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops,
        "set OPERATIONGRAPH_OPS");
    FINALIZE(graph, OPERATIONGRAPH);
    return graph;
}

/* Engine configurations that one mode of the heuristics proposes, best first. */
static int64_t propose(gr_cudnn_graph *g, gr_cudnn_desc graph, cudnnBackendHeurMode_t mode,
                       gr_cudnn_desc config[CONFIGS_MAX])
{
    int64_t n = 0;
    gr_cudnn_desc heuristic = CREATE(ENGINEHEUR);
    SET_DESC(heuristic, ENGINEHEUR_OPERATION_GRAPH, graph);
    SET(heuristic, ENGINEHEUR_MODE, HEUR_MODE, mode);
    SET_DESC(heuristic, ENGINEHEUR_DEVICEPROP, g->device);
    FINALIZE(heuristic, ENGINEHEUR);
    for (int i = 0; i < CONFIGS_MAX; i++) config[i] = CREATE(ENGINECFG);
    if (g->failed) return 0;
    note(g,
         cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  CONFIGS_MAX, &n, config),
         "get ENGINEHEUR_RESULTS");
    return g->failed ? 0 : GR_MIN(n, CONFIGS_MAX);
}

/* Name the engine of a configuration; false where it may not be used. */
static bool look_at(gr_cudnn_graph *g, gr_cudnn_desc config, bool deterministic, char name[64])
{
    cudnnBackendNumericalNote_t notes[16];
    int64_t n = 0, index = -1, n_notes = 0;
    gr_cudnn_desc engine = CREATE(ENGINE);
    if (!engine) return false;
    note(g,
         cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                  &engine),
         "get ENGINECFG_ENGINE");
    if (!g->failed)
        note(
            g,
            cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n, &index),
            "get ENGINE_GLOBAL_INDEX");
    if (!g->failed)
        note(g,
             cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                      GR_LEN(notes), &n_notes, notes),
             "get ENGINE_NUMERICAL_NOTE");
    bool nondeterministic = false;
    for (int64_t i = 0; i < n_notes && !g->failed; i++)
        nondeterministic |= notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    snprintf(name, 64, "engine %lld%s", (long long)index, nondeterministic ? ", nondeterministic" : "");
    return !g->failed && !(deterministic && nondeterministic);
}

/* An engine that cannot take the graph says so here, which is no error of the graph. */
static cudnnStatus_t try_config(gr_cudnn_graph *g, gr_cudnn_desc config, gr_cudnn_plan *out)
{
    gr_cudnn_desc plan = NULL;
    int64_t n = 0, ws = 0;
    cudnnStatus_t st = cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
    if (st == CUDNN_STATUS_SUCCESS && !g->device)
        st = cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                      &g->handle);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (st == CUDNN_STATUS_SUCCESS) st = cudnnBackendFinalize(plan);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
                                      &ws);
    if (st != CUDNN_STATUS_SUCCESS) {
        cudnnGetLastErrorString(g->why, sizeof(g->why));
        if (plan) cudnnBackendDestroyDescriptor(plan);
        return st;
    }
    out->plan = plan;
    out->ws_bytes = (uint64_t)ws;
    return st;
}

gr_status gr_cudnn_plan_build(gr_cudnn_plan *out, gr_cudnn_graph *g, bool deterministic, const char *what,
                              gr_diag *d)
{
    const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    gr_cudnn_desc graph = operation_graph(g), config[CONFIGS_MAX];
    cudnnStatus_t last = CUDNN_STATUS_NOT_SUPPORTED;
    for (size_t m = 0; m < GR_LEN(modes) && !g->failed; m++) {
        const int64_t n = propose(g, graph, modes[m], config);
        for (int64_t i = 0; i < n; i++) {
            if (!look_at(g, config[i], deterministic, out->engine)) continue;
            last = try_config(g, config[i], out);
            if (last != CUDNN_STATUS_SUCCESS) continue;
            out->graph = *g;
            gr_cudnn_graph_init(g, g->handle, g->device);
            return GR_OK;
        }
    }
    if (g->failed)
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cuDNN %zu: %s: %s: %s (%s)", cudnnGetVersion(),
                             g->failed, cudnnGetErrorString(g->status), g->why, what);
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cuDNN %zu has no engine: %s: %s (%s)",
                         cudnnGetVersion(), cudnnGetErrorString(last), g->why, what);
}

void gr_cudnn_plan_release(gr_cudnn_plan *p)
{
    if (p->plan) cudnnBackendDestroyDescriptor(p->plan);
    p->plan = NULL;
    gr_cudnn_graph_release(&p->graph);
}

gr_status gr_cudnn_plan_execute(const gr_cudnn_plan *p, cudnnHandle_t handle, const int64_t *uid,
                                void *const *pointer, size_t n, void *ws, const char *what, gr_diag *d)
{
    gr_cudnn_graph call, *g = &call; /* of one descriptor */
    gr_cudnn_graph_init(g, handle, NULL);
    gr_cudnn_desc pack = CREATE(VARIANT_PACK);
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, (int64_t)n, uid,
        "set VARIANT_PACK_UNIQUE_IDS");
    set(g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, (int64_t)n, pointer,
        "set VARIANT_PACK_DATA_POINTERS");
    SET(pack, VARIANT_PACK_WORKSPACE, VOID_PTR, ws);
    FINALIZE(pack, VARIANT_PACK);
    if (!g->failed) note(g, cudnnBackendExecute(handle, p->plan, pack), "cudnnBackendExecute");
    gr_cudnn_graph_release(g);
    if (!g->failed) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "cuDNN: %s: %s: %s (%s)", g->failed,
                         cudnnGetErrorString(g->status), g->why, what);
}
