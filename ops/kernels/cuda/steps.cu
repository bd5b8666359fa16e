/* ops/kernels/cuda/steps.cu: the state of a rollout's slots between two steps of the model, on the device.
 *
 * A few hundred bytes a slot: what bounds these is the launch. One CTA a change of a slot; one CTA for the
 * step after sampling, so that it can count steps without a second kernel.
 */
#include "ops/kernels/cuda/launch.h"

#include <cuda_runtime.h>

namespace
{

constexpr uint32_t BLOCK = 16; /* GR_KV_BLOCK */

__device__ void make_empty(const gr_cu_slots &s, uint32_t slot)
{
    s.id[slot] = 0;
    s.position[slot] = 0;
    s.kv_slot[slot] = UINT32_MAX;
    if (s.window_slot) s.window_slot[slot] = UINT32_MAX;
    s.length[slot] = 0;
    if (s.held) s.held[slot] = UINT32_MAX;
}

/* The token to feed, and where its keys go. */
__device__ void feed(const gr_cu_slots &s, uint32_t slot, const uint32_t *table, int32_t id,
                     uint32_t position)
{
    s.id[slot] = id;
    s.position[slot] = static_cast<int32_t>(position);
    s.length[slot] = position + 1;
    s.kv_slot[slot] = table[position / BLOCK] * BLOCK + position % BLOCK;
    if (s.window_slot)
        s.window_slot[slot] = table[s.window_at + position / BLOCK] * BLOCK + position % BLOCK;
}

__global__ void clear_kernel(const gr_cu_slots s)
{
    const uint32_t slot = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot >= s.slots) return;
    make_empty(s, slot);
    s.draw[slot][0] = s.draw[slot][1] = 0;
}

__global__ void change_kernel(const gr_cu_slots s, const gr_slot_change *change, const uint32_t *table,
                              const uint32_t *held)
{
    const gr_slot_change c = change[blockIdx.x];
    if (c.from == GR_SLOT_CLEAR) {
        if (threadIdx.x == 0) make_empty(s, c.slot);
        return;
    }
    const bool set = c.from == GR_SLOT_SET;
    const uint32_t *from = set ? table + (size_t)blockIdx.x * s.stride : s.table + (size_t)c.from * s.stride;
    uint32_t *to = s.table + (size_t)c.slot * s.stride;
    for (uint32_t i = threadIdx.x; i < s.stride; i += blockDim.x) to[i] = from[i];
    if (threadIdx.x) return;
    if (set) {
        feed(s, c.slot, from, c.id, c.position);
        s.draw[c.slot][0] = c.sequence;
        s.draw[c.slot][1] = c.token;
        if (s.held) s.held[c.slot] = held[blockIdx.x];
    } else { /* also of a slot that has become empty meanwhile */
        s.id[c.slot] = s.id[c.from];
        s.position[c.slot] = s.position[c.from];
        s.kv_slot[c.slot] = s.kv_slot[c.from];
        if (s.window_slot) s.window_slot[c.slot] = s.window_slot[c.from];
        s.length[c.slot] = s.length[c.from];
        s.draw[c.slot][0] = s.draw[c.from][0];
        s.draw[c.slot][1] = s.draw[c.from][1];
        if (s.held) s.held[c.slot] = s.held[c.from];
        make_empty(s, c.from);
    }
}

__device__ bool is_last(const gr_cu_slots &s, int32_t id, uint32_t tokens)
{
    bool last = tokens >= s.ending->max_tokens;
    for (uint32_t i = 0; i < s.ending->n_stop; i++) last = last || id == s.stop[i];
    return last;
}

__global__ void __launch_bounds__(1024, 1) advance_kernel(const gr_cu_slots s, uint32_t n)
{
    const size_t report = (size_t)*s.step * s.slots;
    for (uint32_t slot = threadIdx.x; slot < n; slot += blockDim.x) {
        const uint32_t length = s.length[slot];
        const int32_t id = length ? s.drawn[slot] : -1;
        s.report_id[report + slot] = id;
        s.report_logprob[report + slot] = length ? s.logprob[slot] : 0;
        if (!length) continue;
        const uint32_t tokens = ++s.draw[slot][1];
        if (is_last(s, id, tokens))
            make_empty(s, slot);
        else
            feed(s, slot, s.table + (size_t)slot * s.stride, id, length);
    }
    __syncthreads(); /* all have read the count */
    if (threadIdx.x == 0) ++*s.step;
}

__global__ void __launch_bounds__(256)
    choices_kernel(const uint32_t *step, const uint16_t *__restrict__ choices, uint32_t n, uint32_t most,
                   uint16_t *__restrict__ report)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) report[(size_t)*step * most + i] = choices[i];
}

} // namespace

extern "C" void gr_cu_slots_choices(cudaStream_t st, const gr_cu_slots *s, const uint16_t *choices,
                                    uint32_t n, uint32_t most, uint16_t *report)
{
    if (n) choices_kernel<<<(n + 255) / 256, 256, 0, st>>>(s->step, choices, n, most, report);
}

extern "C" void gr_cu_slots_clear(cudaStream_t st, const gr_cu_slots *s)
{
    clear_kernel<<<(s->slots + 127) / 128, 128, 0, st>>>(*s);
}

extern "C" void gr_cu_slots_change(cudaStream_t st, const gr_cu_slots *s, const gr_slot_change *change,
                                   const uint32_t *table, const uint32_t *held, uint32_t n)
{
    cudaMemsetAsync(s->step, 0, sizeof(*s->step), st);
    if (n) change_kernel<<<n, 128, 0, st>>>(*s, change, table, held);
}

extern "C" void gr_cu_slots_advance(cudaStream_t st, const gr_cu_slots *s, uint32_t n)
{
    const uint32_t threads = n < 1024 ? (n + 31) / 32 * 32 : 1024;
    advance_kernel<<<1, threads, 0, st>>>(*s, n);
}
