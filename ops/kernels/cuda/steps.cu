/* ops/kernels/cuda/steps.cu: the state of a rollout's slots between two steps of the model, on the device.
 *
 * A few hundred bytes a slot: what bounds these is the launch. One CTA a change of a slot; one CTA for the
 * step after sampling, so that it can count steps without a second kernel. Drafts are looked up by one CTA a
 * slot, which reads the texts of its group once: of most places it compares one token, the next to feed. Those
 * of a layer wait from the end of a step to the beginning of the next, as slots may move in between.
 */
#include "ops/kernels/cuda/chained.cuh"
#include "ops/kernels/cuda/launch.h"

#include <cuda_runtime.h>

namespace
{

constexpr uint32_t BLOCK = 16;                        /* GR_KV_BLOCK */
constexpr uint32_t LONGEST_MATCH = 32, REST_MOST = 5; /* as ops/drafts.c */
constexpr uint32_t LOOKERS = 256;                     /* threads that look up for a slot */

__device__ void empty_row(const gr_cu_slots &s, uint32_t row)
{
    s.id[row] = 0;
    s.position[row] = 0;
    s.kv_slot[row] = UINT32_MAX;
    if (s.window_slot) s.window_slot[row] = UINT32_MAX;
    if (s.held) s.held[row] = UINT32_MAX;
    s.length[row] = 0;
}

/* Between two steps the rows behind the first mean nothing: each step begins with them. */
__device__ void make_empty(const gr_cu_slots &s, uint32_t slot)
{
    empty_row(s, slot * s.each);
}

/* The token to feed, and where its keys go and its state. */
__device__ void feed(const gr_cu_slots &s, uint32_t row, const uint32_t *table, int32_t id, uint32_t position)
{
    s.id[row] = id;
    s.position[row] = static_cast<int32_t>(position);
    s.length[row] = position + 1;
    s.kv_slot[row] = table[position / BLOCK] * BLOCK + position % BLOCK;
    if (s.window_slot) s.window_slot[row] = table[s.window_at + position / BLOCK] * BLOCK + position % BLOCK;
    if (s.held) s.held[row] = s.places[row];
}

__device__ const uint32_t *table_of(const gr_cu_slots &s, uint32_t slot)
{
    return s.table + (size_t)slot * s.each * s.stride;
}

/* What a layer has drafted for row r of a slot, r > 0. */
__device__ int32_t *drafted_at(const gr_cu_slots &s, uint32_t slot, uint32_t r)
{
    return s.ahead.drafted + (size_t)(r - 1) * s.slots + slot;
}

__global__ void clear_kernel(const gr_cu_slots s)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (s.texts.ids && i < s.texts.seqs) s.texts.n[i] = 0;
    if (s.texts.ids && i < s.slots) s.texts.of[i] = 0;
    if (i >= s.slots * s.each) return;
    empty_row(s, i);
    s.draw[i][0] = s.draw[i][1] = 0;
}

/* What a sequence has said so far, for its own drafts and for others'. */
__device__ void set_text(const gr_cu_slots &s, const gr_slot_change &c, const int32_t *text)
{
    int32_t *to = s.texts.ids + (size_t)c.text * s.texts.longest;
    for (uint32_t i = threadIdx.x; i <= c.position; i += blockDim.x) to[i] = text[i];
    if (threadIdx.x) return;
    s.texts.n[c.text] = c.position + 1;
    s.texts.prompt[c.text] = c.prompt;
    s.texts.of[c.slot] = c.text;
}

__device__ void set_slot(const gr_cu_slots &s, const gr_slot_change &c, const uint32_t *table,
                         const uint32_t *places)
{
    const uint32_t row = c.slot * s.each;
    for (uint32_t r = 0; s.held && r < s.each; r++) s.places[row + r] = places[r];
    for (uint32_t r = 1; s.ahead.drafted && r < s.each; r++) *drafted_at(s, c.slot, r) = -1;
    if (s.each > 1) s.rests[c.slot][0] = s.rests[c.slot][1] = 0;
    feed(s, row, table, c.id, c.position);
    s.draw[row][0] = c.sequence;
    s.draw[row][1] = c.token;
}

/* Also of a slot that has become empty meanwhile. */
__device__ void move_slot(const gr_cu_slots &s, const gr_slot_change &c)
{
    const uint32_t to = c.slot * s.each, from = c.from * s.each;
    s.id[to] = s.id[from];
    s.position[to] = s.position[from];
    s.kv_slot[to] = s.kv_slot[from];
    if (s.window_slot) s.window_slot[to] = s.window_slot[from];
    s.length[to] = s.length[from];
    s.draw[to][0] = s.draw[from][0];
    s.draw[to][1] = s.draw[from][1];
    for (uint32_t r = 0; s.held && r < s.each; r++) s.places[to + r] = s.places[from + r];
    if (s.held) s.held[to] = s.held[from];
    for (uint32_t r = 1; s.ahead.drafted && r < s.each; r++)
        *drafted_at(s, c.slot, r) = *drafted_at(s, c.from, r);
    if (s.texts.ids) s.texts.of[c.slot] = s.texts.of[c.from];
    if (s.each > 1) {
        s.rests[c.slot][0] = s.rests[c.from][0];
        s.rests[c.slot][1] = s.rests[c.from][1];
    }
    make_empty(s, c.from);
}

__global__ void change_kernel(const gr_cu_slots s, const gr_slot_change *change, const uint32_t *table,
                              const uint32_t *held, const int32_t *text)
{
    const gr_slot_change c = change[blockIdx.x];
    if (c.from == GR_SLOT_CLEAR) {
        if (threadIdx.x == 0) make_empty(s, c.slot);
        return;
    }
    const bool set = c.from == GR_SLOT_SET;
    const uint32_t *from = set ? table + (size_t)blockIdx.x * s.stride : table_of(s, c.from);
    uint32_t *to = s.table + (size_t)c.slot * s.each * s.stride;
    for (uint32_t i = threadIdx.x; i < s.stride; i += blockDim.x)
        for (uint32_t r = 0; r < s.each; r++) to[r * s.stride + i] = from[i];
    if (set && s.texts.ids) set_text(s, c, text + (size_t)blockIdx.x * s.texts.longest);
    if (threadIdx.x) return;
    if (set)
        set_slot(s, c, from, held + (size_t)blockIdx.x * s.each);
    else
        move_slot(s, c);
}

/* ---- drafts ---------------------------------------------------------------------------------------------
 */

/* How many tokens before a and before b are the same, up to the longest that counts. */
__device__ uint32_t same_before(const int32_t *a, uint32_t at_a, const int32_t *b, uint32_t at_b)
{
    const uint32_t most = min(min(at_a, at_b), LONGEST_MATCH);
    uint32_t n = 0;
    while (n < most && a[at_a - 1 - n] == b[at_b - 1 - n]) n++;
    return n;
}

/* The order in which gr_draft prefers matches: longer ones, then the sequence's own and the first of the
 * others, then the latest of a text. */
__device__ unsigned long long rank_of(uint32_t length, uint32_t source, uint32_t at)
{
    return (unsigned long long)length << 58 | (unsigned long long)((1u << 25) - 1 - source) << 32 | at;
}

/* The best match of the end of the text `own` in all texts of its group, by all threads of the CTA; 0: there
 * is none. */
__device__ unsigned long long best_match(const gr_cu_texts &t, uint32_t own, unsigned long long *shared)
{
    const uint32_t group = own / t.samples * t.samples, end = min(group + t.samples, t.seqs), n = t.n[own];
    const int32_t *ids = t.ids + (size_t)own * t.longest;
    unsigned long long best = 0;
    for (uint32_t text = group; text < end; text++) {
        const uint32_t source = text == own ? 0 : 1 + text - group;
        const int32_t *in = t.ids + (size_t)text * t.longest;
        for (uint32_t i = max(text == own ? 1 : t.prompt[text], 1u) + threadIdx.x; i < t.n[text];
             i += LOOKERS) {
            const uint32_t same = same_before(in, i, ids, n);
            if (same >= t.match) best = max(best, rank_of(same, source, i));
        }
    }
    if (threadIdx.x == 0) *shared = 0;
    __syncthreads();
    if (best) atomicMax(shared, best);
    __syncthreads();
    return *shared;
}

/* Tokens that may be drafted for a slot in this step; those that a sequence has no room for, behind the one
 * that is sampled in any case, would be sampled in vain. */
__device__ uint32_t most_drafts(const gr_cu_slots &s, uint32_t slot)
{
    const uint32_t row = slot * s.each, tokens = s.draw[row][1], most = s.ending->max_tokens;
    if (!s.length[row] || tokens + 1 >= most || s.rests[slot][1]) return 0;
    return min(s.each - 1, most - tokens - 1);
}

__device__ void put_draft(const gr_cu_slots &s, uint32_t slot, uint32_t r, int32_t id)
{
    const uint32_t first = slot * s.each, row = first + r;
    feed(s, row, table_of(s, slot), id, s.length[first] - 1 + r);
    s.draw[row][0] = s.draw[first][0];
    s.draw[row][1] = s.draw[first][1] + r;
}

/* Row r of a slot, of thread r: a draft of it, or nothing; with the CTA's other threads, which have all read
 * how long the slot rests. */
__device__ void put_row(const gr_cu_slots &s, uint32_t slot, uint32_t r, bool some, int32_t id)
{
    __syncthreads();
    if (r == 0 && s.rests[slot][1] && s.length[slot * s.each]) s.rests[slot][1]--;
    if (r == 0 || r >= s.each) return;
    if (some)
        put_draft(s, slot, r, id);
    else
        empty_row(s, slot * s.each + r);
}

__global__ void __launch_bounds__(LOOKERS) draft_kernel(const gr_cu_slots s)
{
    __shared__ unsigned long long shared;
    const gr_cu_texts &t = s.texts;
    const uint32_t slot = blockIdx.x, most = most_drafts(s, slot), own = t.of[slot];
    const unsigned long long best = most ? best_match(t, own, &shared) : 0;
    const uint32_t place = (1u << 25) - 1 - (uint32_t)(best >> 32 & ((1u << 26) - 1)), at = (uint32_t)best;
    const uint32_t text = best && place ? own / t.samples * t.samples + place - 1 : own;
    const uint32_t found = best ? min(most, t.n[text] - at) : 0, r = threadIdx.x;
    const bool some = r && r <= found;
    put_row(s, slot, r, some, some ? t.ids[(size_t)text * t.longest + at + r - 1] : -1);
}

__global__ void __launch_bounds__(64) drafted_kernel(const gr_cu_slots s)
{
    const uint32_t slot = blockIdx.x, r = threadIdx.x, most = most_drafts(s, slot);
    const int32_t id = r && r <= most ? *drafted_at(s, slot, r) : -1;
    put_row(s, slot, r, id >= 0, id);
}

/* As gr_draft_went. */
__device__ void draft_went(const gr_cu_slots &s, uint32_t slot, uint32_t drafted, uint32_t accepted)
{
    uint32_t(&rests)[2] = s.rests[slot];
    if (!drafted) return;
    rests[0] = accepted ? 0 : min(rests[0] + 1, REST_MOST);
    rests[1] = (1u << rests[0]) - 1;
}

/* ---- the end of a step ----------------------------------------------------------------------------------
 */

__device__ bool is_last(const gr_cu_slots &s, int32_t id, uint32_t tokens)
{
    bool last = tokens >= s.ending->max_tokens;
    for (uint32_t i = 0; i < s.ending->n_stop; i++) last = last || id == s.stop[i];
    return last;
}

/* What was sampled behind a row, into the text of its slot. */
__device__ void append(const gr_cu_slots &s, uint32_t slot, uint32_t length, int32_t id)
{
    const uint32_t text = s.texts.of[slot];
    if (length >= s.texts.longest) return;
    s.texts.ids[(size_t)text * s.texts.longest + length] = id;
    s.texts.n[text] = length + 1;
}

/* How many of a slot's sampled tokens count: up to the first that was not drafted, or that ends it. */
__device__ uint32_t count_taken(const gr_cu_slots &s, uint32_t slot)
{
    const uint32_t first = slot * s.each, tokens = s.draw[first][1];
    uint32_t taken = s.length[first] > 0;
    while (taken && taken < s.each && s.length[first + taken] &&
           s.id[first + taken] == s.drawn[first + taken - 1] &&
           !is_last(s, s.drawn[first + taken - 1], tokens + taken))
        taken++;
    return taken;
}

__device__ void advance(const gr_cu_slots &s, uint32_t slot, size_t report)
{
    const uint32_t first = slot * s.each, taken = count_taken(s, slot);
    uint32_t fed = 0;
    for (uint32_t row = first; row < first + s.each; row++) {
        const uint32_t length = s.length[row];
        const bool valid = row < first + taken;
        const int32_t id = s.drawn[row];
        s.report_id[report + row] = valid ? id : length ? GR_STEPS_REJECTED : GR_STEPS_EMPTY;
        s.report_logprob[report + row] = valid ? s.logprob[row] : 0;
        fed += length > 0;
        if (valid && s.texts.ids) append(s, slot, length, id);
    }
    if (!taken) return;
    const uint32_t last = first + taken - 1, tokens = s.draw[first][1] + taken;
    if (s.each > 1) draft_went(s, slot, fed - 1, taken - 1);
    s.draw[first][1] = tokens;
    if (s.held) { /* it goes on from the state behind the last token that counts */
        const uint32_t place = s.places[first];
        s.places[first] = s.places[last];
        s.places[last] = place;
    }
    if (is_last(s, s.drawn[last], tokens))
        make_empty(s, slot);
    else
        feed(s, first, table_of(s, slot), s.drawn[last], s.length[last]);
}

__global__ void __launch_bounds__(1024, 1) advance_kernel(const gr_cu_slots s, uint32_t n)
{
    gr_chain_release();
    gr_chain_wait();
    const size_t report = (size_t)*s.step * s.slots * s.each;
    for (uint32_t slot = threadIdx.x; slot < n; slot += blockDim.x) advance(s, slot, report);
    __syncthreads(); /* all have read the count */
    if (threadIdx.x == 0) ++*s.step;
}

/* ---- passes of a layer that drafts ----------------------------------------------------------------------
 */

__global__ void last_kernel(const gr_cu_slots s, uint32_t n)
{
    const uint32_t slot = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot < n) s.ahead.last[slot] = slot * s.each + max(count_taken(s, slot), 1u) - 1;
}

__global__ void ahead_kernel(const gr_cu_slots s, uint32_t n, uint32_t pass, const uint32_t *member,
                             const uint32_t *group_first)
{
    const uint32_t slot = blockIdx.x * blockDim.x + threadIdx.x, first = slot * s.each;
    const gr_cu_ahead &a = s.ahead;
    if (slot <= n) a.group_first[slot] = group_first[slot] / s.each;
    if (slot >= n) return;
    const bool live = s.length[first] && s.draw[first][1] + 1 + pass < s.ending->max_tokens;
    const uint32_t position = live ? (uint32_t)s.position[first] + pass - 1 : 0;
    a.member[slot] = member[first] / s.each;
    a.position[slot] = (int32_t)position;
    a.length[slot] = live ? position + 1 : 0;
    a.kv_slot[slot] = live ? table_of(s, slot)[position / BLOCK] * BLOCK + position % BLOCK : UINT32_MAX;
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
    const uint32_t rows = s->slots * s->each, texts = s->texts.ids ? s->texts.seqs : 0;
    clear_kernel<<<((rows > texts ? rows : texts) + 127) / 128, 128, 0, st>>>(*s);
}

extern "C" void gr_cu_slots_change(cudaStream_t st, const gr_cu_slots *s, const gr_slot_change *change,
                                   const uint32_t *table, const uint32_t *held, const int32_t *text,
                                   uint32_t n)
{
    cudaMemsetAsync(s->step, 0, sizeof(*s->step), st);
    if (n) change_kernel<<<n, 128, 0, st>>>(*s, change, table, held, text);
}

extern "C" void gr_cu_slots_draft(cudaStream_t st, const gr_cu_slots *s, uint32_t n)
{
    if (!n || s->each == 1) return;
    if (s->ahead.drafted)
        drafted_kernel<<<n, 64, 0, st>>>(*s);
    else
        draft_kernel<<<n, LOOKERS, 0, st>>>(*s);
}

extern "C" void gr_cu_slots_last(cudaStream_t st, const gr_cu_slots *s, uint32_t n)
{
    if (n) last_kernel<<<(n + 127) / 128, 128, 0, st>>>(*s, n);
}

extern "C" void gr_cu_slots_ahead(cudaStream_t st, const gr_cu_slots *s, uint32_t n, uint32_t pass,
                                  const uint32_t *member, const uint32_t *group_first)
{
    if (n) ahead_kernel<<<n / 128 + 1, 128, 0, st>>>(*s, n, pass, member, group_first);
}

extern "C" void gr_cu_slots_advance(cudaStream_t st, const gr_cu_slots *s, uint32_t n)
{
    const uint32_t threads = n < 1024 ? (n + 31) / 32 * 32 : 1024;
    gr_chain(st, advance_kernel, dim3(1), dim3(threads), 0, *s, n);
}
