/* tests/gpu/gpu_steps.c: slots, chunks and their graphs (ops/kernels/cuda/steps.c) against a simulation on
 * the host.
 *
 * The model of this test is a table: the token after `id` is next[id], its log-prob value[id]. Orders are
 * random; after every chunk its report, and at times all state on the device, must be what the simulation
 * says. Where tokens are looked up the simulation drafts with gr_draft, which defines it. A layer that drafts
 * is another table, which often guesses right: the token behind `id` is guess[id]. One line a case, exit 1
 * where one fails, 77 where there is no device. --small: fewer trips, for tools that slow kernels down;
 * --race: five of the cases, as short.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/drafts.h"
#include "ops/kernels/cuda/steps_layout.h"

enum {
    VOCAB = 500,
    FEW = 12, /* ids where tokens are drafted: they come again */
    ROW = 8,  /* of the table: 8 bf16, of which the first 8 bytes count */
};

static int failures;
static uint32_t trips = 60; /* of a rollout */

static void check_cuda(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
#define CUDA(call) check_cuda((call), #call)

static uint64_t random_state = 88172645463325252ull;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(((random_state >> 32) * n) >> 32);
}

typedef struct token { /* what the table says of one id */
    int32_t next;
    float value;
} token;

typedef struct sim { /* one slot */
    bool live;
    int32_t id;
    uint32_t position, sequence, token, text;
    uint32_t places[1 + GR_DRAFT_MOST]; /* of its state, and those that it may be left in */
    gr_draft_record drafts;
    uint32_t n_draft; /* of this step */
    int32_t draft[GR_DRAFT_MOST];
    int32_t ahead[GR_DRAFT_MOST]; /* what the layer drafts for the next one; below 0: nothing so far */
} sim;

typedef struct world {
    gr_model_shape shape;
    gr_steps_bounds b;
    gr_steps_rules rules;
    int32_t stop[3];
    token table[VOCAB][2], guess[VOCAB][2]; /* ROW bf16 each */
    gr_bf16 *d_table, *d_x, *d_guess, *d_hidden;
    int32_t *d_ids;      /* [slots] */
    uint32_t pass, *log; /* log [tokens, 3, slots] on the device: positions, places, lengths of passes */
    gr_queue q;
    gr_steps *steps;
    char *device, *host;
    gr_cu_steps_device at; /* where steps keeps what, for a look at it */
    sim *slots;
    uint32_t *tables;
    uint32_t each, vocab;    /* rows of a slot; ids that there are */
    int32_t *text;           /* [seqs, max_length] */
    uint32_t *said, *prompt; /* [seqs] tokens of a text, and those that others do not draft */
    uint64_t drafted, accepted;
    int32_t *want_id[2]; /* [chunk, rows] of the last two trips */
    float *want_logprob[2];
    uint32_t n[2];
    uint64_t wrong, tokens, ended;
} world;

static void model(void *user, gr_queue *q, const gr_extend *e, const gr_steps_draw *d)
{
    world *w = user;
    cudaStream_t st = q->stream;
    gr_cu_embed(st, w->d_table, e->ids, 1, w->d_x, e->n_seqs, ROW);
    const size_t pitch = ROW * sizeof(gr_bf16);
    CUDA(cudaMemcpy2DAsync(d->id, 4, w->d_x, pitch, 4, e->n_seqs, cudaMemcpyDeviceToDevice, st));
    CUDA(cudaMemcpy2DAsync(d->logprob, 4, (char *)w->d_x + 4, pitch, 4, e->n_seqs, cudaMemcpyDeviceToDevice,
                           st));
}

/* A pass goes by the token that it is given, or by the row that it goes on from, which is of the same one. */
static void ahead(void *user, gr_queue *q, const gr_extend *e, const uint32_t *from, const gr_steps_draw *d)
{
    world *w = user;
    cudaStream_t st = q->stream;
    const size_t pitch = ROW * sizeof(gr_bf16), words = e->n_seqs * sizeof(uint32_t);
    const int32_t *ids = e->ids;
    w->pass = from ? w->pass + 1 : 0;
    if (from) {
        uint32_t *log = w->log + (size_t)w->pass * 3 * w->b.slots;
        const void *step[] = {e->position, e->slot, e->decode->length};
        for (uint32_t i = 0; i < 3; i++)
            CUDA(cudaMemcpyAsync(log + i * w->b.slots, step[i], words, cudaMemcpyDeviceToDevice, st));
        gr_cu_embed(st, w->d_x, (const int32_t *)from, 1, w->d_hidden, e->n_seqs, ROW);
        CUDA(cudaMemcpy2DAsync(w->d_ids, 4, w->d_hidden, pitch, 4, e->n_seqs, cudaMemcpyDeviceToDevice, st));
        if (w->pass % 2) ids = w->d_ids;
    }
    gr_cu_embed(st, w->d_guess, ids, 1, w->d_x, e->n_seqs, ROW);
    gr_cu_embed(st, w->d_x, (const int32_t *)d->row, 1, w->d_hidden, d->n, ROW);
    CUDA(cudaMemcpy2DAsync(d->id, 4, w->d_hidden, pitch, 4, d->n, cudaMemcpyDeviceToDevice, st));
}

/* ---- the simulation -------------------------------------------------------------------------------------
 */

static const int32_t *text_of(const world *w, uint32_t text)
{
    return w->text + (size_t)text * w->b.max_length;
}

static void simulate_draft(world *w, sim *s)
{
    const gr_steps_drafts *how = &w->b.drafts;
    gr_draft_source sources[8];
    const uint32_t room = w->rules.max_tokens - s->token - 1, group = s->text / GR_MAX(how->samples, 1u);
    uint32_t n = 1;
    s->n_draft = 0;
    const bool rests = s->drafts.rest > 0;
    if (rests) s->drafts.rest--;
    if (!how->tokens || !room || rests) return;
    if (how->ahead) {
        s->n_draft = s->ahead[0] < 0 ? 0 : GR_MIN(how->tokens, room);
        memcpy(s->draft, s->ahead, s->n_draft * sizeof(*s->draft));
        return;
    }
    sources[0] = (gr_draft_source){text_of(w, s->text), 1, w->said[s->text]};
    for (uint32_t t = group * how->samples; t < GR_MIN((group + 1) * how->samples, how->seqs); t++)
        if (t != s->text) sources[n++] = (gr_draft_source){text_of(w, t), w->prompt[t], w->said[t]};
    s->n_draft = gr_draft(sources, n, how->match, GR_MIN(how->tokens, room), s->draft);
}

/* What is sampled behind s->id; whether it was the last one. */
static bool simulate_token(world *w, sim *s, int32_t *id, float *logprob)
{
    *id = w->table[s->id][0].next;
    *logprob = w->table[s->id][0].value;
    s->id = *id;
    s->position++;
    s->token++;
    w->tokens++;
    if (gr_steps_look_up(&w->b)) {
        w->text[(size_t)s->text * w->b.max_length + s->position] = s->id;
        w->said[s->text] = s->position + 1;
    }
    bool last = s->token >= w->rules.max_tokens;
    for (uint32_t k = 0; k < w->rules.n_stop; k++) last = last || s->id == w->stop[k];
    return last;
}

static void simulate_slot(world *w, sim *s, int32_t *id, float *logprob)
{
    uint32_t taken = 0;
    bool last = false;
    for (uint32_t r = 0; r < w->each; r++) {
        id[r] = s->live && r <= s->n_draft ? GR_STEPS_REJECTED : GR_STEPS_EMPTY;
        logprob[r] = 0;
    }
    if (!s->live) return;
    do {
        last = simulate_token(w, s, &id[taken], &logprob[taken]);
        taken++;
    } while (!last && taken <= s->n_draft && s->id == s->draft[taken - 1]);
    const uint32_t place = s->places[0]; /* the state behind the last token that was fed is its own */
    s->places[0] = s->places[taken - 1];
    s->places[taken - 1] = place;
    gr_draft_went(&s->drafts, s->n_draft, taken - 1);
    for (uint32_t k = 0; k < w->b.drafts.tokens; k++)
        s->ahead[k] = w->guess[k ? s->ahead[k - 1] : s->id][0].next;
    w->drafted += s->n_draft;
    w->accepted += taken - 1;
    s->live = !last;
    w->ended += last;
}

static void simulate_step(world *w, uint32_t n, int32_t *id, float *logprob)
{
    for (uint32_t i = 0; i < n; i++)
        if (w->slots[i].live) simulate_draft(w, &w->slots[i]);
    for (uint32_t i = 0; i < n; i++)
        simulate_slot(w, &w->slots[i], id + (size_t)i * w->each, logprob + (size_t)i * w->each);
}

static void expect(world *w, const char *what, uint32_t i, long long got, long long want)
{
    if (got == want) return;
    if (w->wrong++ < 5) printf("  %s of slot %u: %lld instead of %lld\n", what, i, got, want);
}

static void check_report(world *w, uint32_t trip)
{
    gr_steps_report r;
    gr_diag d;
    gr_diag_init(&d);
    if (gr_steps_cuda.report(w->steps, trip, &r, &d)) {
        printf("  report failed: %s\n", d.n ? d.messages[0].text : "");
        exit(1);
    }
    for (uint32_t k = 0; k < w->b.chunk; k++)
        for (uint32_t i = 0; i < w->n[trip % 2] * w->each; i++) {
            const size_t at = (size_t)k * gr_steps_rows(&w->b) + i;
            uint32_t a, b;
            memcpy(&a, &r.logprob[at], 4);
            memcpy(&b, &w->want_logprob[trip % 2][at], 4);
            expect(w, "token", i / w->each, r.id[at], w->want_id[trip % 2][at]);
            expect(w, "log-prob", i / w->each, a, b);
        }
    gr_diag_release(&d);
}

static void read_words(const void *from, uint32_t *to, size_t n)
{
    CUDA(cudaMemcpy(to, from, n * sizeof(*to), cudaMemcpyDeviceToHost));
}

static void check_rests(world *w)
{
    uint32_t *rests = malloc(2 * w->b.slots * sizeof(*rests));
    read_words(w->at.slots.rests, rests, 2 * (size_t)w->b.slots);
    for (uint32_t i = 0; i < w->b.slots; i++) {
        if (!w->slots[i].live) continue;
        expect(w, "drafts in vain", i, rests[2 * i], w->slots[i].drafts.misses);
        expect(w, "steps to rest", i, rests[2 * i + 1], w->slots[i].drafts.rest);
    }
    free(rests);
}

static void check_texts(world *w)
{
    const gr_steps_drafts *d = &w->b.drafts;
    uint32_t *said = malloc(d->seqs * sizeof(*said)),
             *ids = malloc((size_t)d->seqs * w->b.max_length * sizeof(*ids));
    read_words(w->at.slots.texts.n, said, d->seqs);
    read_words(w->at.slots.texts.ids, ids, (size_t)d->seqs * w->b.max_length);
    for (uint32_t t = 0; t < d->seqs; t++) {
        expect(w, "tokens of a text", t, said[t], w->said[t]);
        for (uint32_t k = 0; k < GR_MIN(said[t], w->said[t]); k++)
            expect(w, "text", t, (int32_t)ids[(size_t)t * w->b.max_length + k], text_of(w, t)[k]);
    }
    free(said);
    free(ids);
}

/* What a pass drafts counts where its slot has room for it. */
static bool goes_on(const world *w, const sim *s, uint32_t pass)
{
    return s->live && s->token + 1 + pass < w->rules.max_tokens;
}

static void check_drafted(world *w)
{
    const uint32_t slots = w->b.slots;
    uint32_t *ids = malloc((size_t)slots * w->b.drafts.tokens * sizeof(*ids));
    read_words(w->at.slots.ahead.drafted, ids, (size_t)slots * w->b.drafts.tokens);
    for (uint32_t k = 0; k < w->b.drafts.tokens; k++)
        for (uint32_t i = 0; i < slots; i++)
            if (goes_on(w, &w->slots[i], k))
                expect(w, "draft", i, (int32_t)ids[(size_t)k * slots + i], w->slots[i].ahead[k]);
    free(ids);
}

/* The steps of the passes behind the last step of n slots. */
static void check_passes(world *w, uint32_t n)
{
    const uint32_t slots = w->b.slots, tokens = w->b.drafts.tokens;
    uint32_t *x = malloc((size_t)tokens * 3 * slots * sizeof(*x)),
             *first = malloc(2 * (n + 1) * sizeof(*first)),
             *member = malloc((slots + gr_steps_rows(&w->b)) * sizeof(*member));
    read_words(w->log, x, (size_t)tokens * 3 * slots);
    for (uint32_t k = 1; k < tokens; k++)
        for (uint32_t i = 0; i < n; i++) {
            const sim *s = &w->slots[i];
            const uint32_t *at = x + (size_t)k * 3 * slots + i, position = s->position + k - 1;
            const uint32_t block =
                w->tables[(size_t)i * w->b.stride + GR_MIN(position / 16, w->b.stride - 1)];
            const bool runs = goes_on(w, s, k);
            if (runs) expect(w, "position of a pass", i, at[0], position);
            expect(w, "a pass's place of keys", i, at[slots], runs ? block * 16 + position % 16 : UINT32_MAX);
            expect(w, "length of a pass", i, at[2 * slots], runs ? position + 1 : 0);
        }
    read_words(w->at.orders.group_first, first, n + 1);
    read_words(w->at.slots.ahead.group_first, first + n + 1, n + 1);
    read_words(w->at.orders.member, member, gr_steps_rows(&w->b));
    read_words(w->at.slots.ahead.member, member + gr_steps_rows(&w->b), slots);
    for (uint32_t i = 0; i <= n && tokens > 1; i++)
        expect(w, "first slot of a group", i, first[n + 1 + i], first[i] / w->each);
    for (uint32_t i = 0; tokens > 1 && i < first[n] / w->each; i++)
        expect(w, "slot of a group", i, member[gr_steps_rows(&w->b) + i], member[i * w->each] / w->each);
    free(x), free(first), free(member);
}

/* The first row of each slot of an array by rows, `words` a row, moves to the place of the slot. */
static void keep_first_rows(const world *w, uint32_t *x, uint32_t words)
{
    for (uint32_t i = 1; i < w->b.slots; i++)
        memmove(x + (size_t)i * words, x + (size_t)i * w->each * words, words * sizeof(*x));
}

static void check_state(world *w)
{
    const uint32_t n = gr_steps_rows(&w->b), stride = w->b.stride;
    uint32_t *x = malloc((9 * (size_t)n + (size_t)n * stride) * sizeof(*x));
    uint32_t *id = x, *position = x + n, *kv = x + 2 * n, *length = x + 3 * n, *draw = x + 4 * n,
             *held = x + 6 * n, *window = x + 7 * n, *places = x + 8 * n, *table = x + 9 * n;
    CUDA(cudaStreamSynchronize(w->q.stream));
    read_words(w->at.slots.id, id, n);
    read_words(w->at.slots.position, position, n);
    read_words(w->at.slots.kv_slot, kv, n);
    read_words(w->at.slots.length, length, n);
    read_words(w->at.slots.draw, draw, 2 * (size_t)n);
    read_words(w->at.slots.table, table, (size_t)n * stride);
    if (w->b.states) read_words(w->at.slots.held, held, n);
    if (w->b.states) read_words(w->at.slots.places, places, n);
    if (w->b.window_at) read_words(w->at.slots.window_slot, window, n);
    for (uint32_t r = 0; r < n; r++) /* every row has its slot's table */
        for (uint32_t k = 0; k < stride && w->slots[r / w->each].live; k++)
            expect(w, "a row's table", r, table[(size_t)r * stride + k],
                   w->tables[(size_t)(r / w->each) * stride + k]);
    for (uint32_t r = 0; r < n && w->b.states; r++)
        if (w->slots[r / w->each].live)
            expect(w, "a place for a state", r, places[r], w->slots[r / w->each].places[r % w->each]);
    uint32_t *const by_rows[] = {id, position, kv, length, held, window};
    for (size_t i = 0; i < GR_LEN(by_rows); i++) keep_first_rows(w, by_rows[i], 1);
    keep_first_rows(w, draw, 2);
    if (w->each > 1) check_rests(w);
    if (gr_steps_look_up(&w->b)) check_texts(w);
    if (w->b.drafts.ahead) check_drafted(w);
    for (uint32_t i = 0; i < w->b.slots; i++) {
        const sim *s = &w->slots[i];
        expect(w, "length", i, length[i], s->live ? s->position + 1 : 0);
        if (w->b.states) expect(w, "place of its state", i, held[i], s->live ? s->places[0] : UINT32_MAX);
        if (!s->live) {
            expect(w, "place of keys", i, kv[i], UINT32_MAX);
            if (w->b.window_at) expect(w, "place of a window's keys", i, window[i], UINT32_MAX);
            continue;
        }
        const uint32_t column = s->position / 16, block = w->tables[(size_t)i * stride + column];
        expect(w, "id", i, (int32_t)id[i], s->id);
        expect(w, "position", i, position[i], s->position);
        expect(w, "place of keys", i, kv[i], block * 16 + s->position % 16);
        if (w->b.window_at)
            expect(w, "place of a window's keys", i, window[i],
                   w->tables[(size_t)i * stride + w->b.window_at + column] * 16 + s->position % 16);
        expect(w, "sequence", i, draw[2 * i], s->sequence);
        expect(w, "draw", i, draw[2 * i + 1], s->token);
    }
    free(x);
}

/* ---- random orders --------------------------------------------------------------------------------------
 */

/* A text that no slot has. */
static uint32_t free_text(const world *w)
{
    for (uint32_t t = random_below(w->b.drafts.seqs);; t = (t + 1) % w->b.drafts.seqs) {
        bool taken = false;
        for (uint32_t i = 0; i < w->b.slots; i++)
            taken = taken || (w->slots[i].live && w->slots[i].text == t);
        if (!taken) return t;
    }
}

/* Random tokens, the last of them to be fed; what follows is often not what the model says. */
static void order_text(world *w, const gr_steps_input *in, uint32_t n, sim *s)
{
    s->text = free_text(w);
    int32_t *to = w->text + (size_t)s->text * w->b.max_length;
    for (uint32_t i = 0; i < s->position; i++) to[i] = (int32_t)random_below(w->vocab);
    to[s->position] = s->id;
    w->said[s->text] = s->position + 1;
    w->prompt[s->text] = s->position + 1 - random_below(s->position);
    memcpy(in->text + (size_t)n * w->b.max_length, to, (s->position + 1) * sizeof(*to));
}

static void order_set(world *w, const gr_steps_input *in, uint32_t n, uint32_t slot, uint32_t trip)
{
    sim *s = &w->slots[slot];
    *s = (sim){.id = (int32_t)random_below(w->vocab),
               .position = 16 + random_below(w->b.max_length - w->rules.max_tokens - 16),
               .sequence = trip * 1000 + slot};
    for (uint32_t r = 0; r < w->each; r++) s->places[r] = random_below(1000000);
    for (uint32_t k = 0; k < w->b.drafts.tokens; k++) s->ahead[k] = -1;
    if (gr_steps_look_up(&w->b)) order_text(w, in, n, s);
    s->live = true;
    uint32_t *row = w->tables + (size_t)slot * w->b.stride;
    for (uint32_t k = 0; k < w->b.stride; k++) row[k] = random_below(1000000);
    memcpy(in->table + (size_t)n * w->b.stride, row, w->b.stride * sizeof(*row));
    if (w->b.states) memcpy(in->held + (size_t)n * w->each, s->places, w->each * sizeof(*s->places));
    in->change[n] = (gr_slot_change){slot, GR_SLOT_SET, s->id, s->position, s->sequence, 0, s->text, 0};
    if (gr_steps_look_up(&w->b)) in->change[n].prompt = w->prompt[s->text];
}

static void order_move(world *w, const gr_steps_input *in, uint32_t n, uint32_t slot, uint32_t from)
{
    const size_t row = w->b.stride * sizeof(*w->tables);
    memcpy((char *)w->tables + slot * row, (char *)w->tables + from * row, row);
    w->slots[slot] = w->slots[from];
    w->slots[from].live = false;
    in->change[n] = (gr_slot_change){.slot = slot, .from = from};
}

/* Each slot is named once at most: they are taken from a shuffled list. */
static uint32_t give_orders(world *w, const gr_steps_input *in, uint32_t trip)
{
    const uint32_t n = w->b.slots;
    uint32_t *order = malloc(n * sizeof(*order)), n_changes = 0;
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i-- > 1;) {
        const uint32_t j = random_below(i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t what = random_below(8);
        if (what < 3 && !w->slots[order[i]].live) {
            order_set(w, in, n_changes++, order[i], trip);
        } else if (what == 3) {
            w->slots[order[i]].live = false;
            in->change[n_changes++] = (gr_slot_change){.slot = order[i], .from = GR_SLOT_CLEAR};
        } else if (what == 4 && i + 1 < n) {
            order_move(w, in, n_changes++, order[i], order[i + 1]);
            i++;
        }
    }
    free(order);
    return n_changes;
}

static uint32_t give_groups(const world *w, const gr_steps_input *in)
{
    uint32_t n = 0, n_groups = 0;
    for (uint32_t i = 0; i < w->b.slots; i++) {
        if (!w->slots[i].live) continue;
        if (!n || random_below(3) == 0) {
            in->shared[n_groups] = 16 * random_below(2);
            in->group_first[n_groups++] = n;
        }
        for (uint32_t r = 0; r < w->each; r++) in->member[n++] = i * w->each + r;
    }
    in->group_first[n_groups] = n;
    return n_groups;
}

static void one_trip(world *w, uint32_t trip, uint64_t key)
{
    if (trip >= 2) check_report(w, trip - 2);
    const gr_steps_input in = gr_steps_cuda.input(w->steps, trip);
    const uint32_t n_changes = give_orders(w, &in, trip);
    gr_steps_cuda.change(w->steps, &w->q, trip, n_changes, give_groups(w, &in));
    if (trip % 7 == 3) check_state(w);
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->b.slots; i++) n = w->slots[i].live ? i + 1 : n;
    if (random_below(2)) n = w->b.slots;
    const gr_steps_chunk c = {.n = n, .step = model, .ahead = ahead, .user = w, .key = key};
    gr_steps_cuda.run(w->steps, &w->q, trip, &c);
    w->n[trip % 2] = n;
    for (uint32_t k = 0; k < w->b.chunk; k++)
        simulate_step(w, n, w->want_id[trip % 2] + (size_t)k * gr_steps_rows(&w->b),
                      w->want_logprob[trip % 2] + (size_t)k * gr_steps_rows(&w->b));
    if (trip % 7 != 5) return;
    check_state(w);
    if (w->b.drafts.ahead && n) check_passes(w, n);
}

/* Texts end in circles of the table, some of two or three ids: in each, one guess at least is wrong. */
static void guess_wrong_somewhere(world *w)
{
    for (uint32_t i = 0; i < w->vocab; i++) {
        uint32_t at = i, right = 0;
        for (uint32_t k = 0; k < w->vocab; k++) at = (uint32_t)w->table[at][0].next;
        for (uint32_t k = 0; k < w->vocab; k++, at = (uint32_t)w->table[at][0].next)
            right += w->guess[at][0].next == w->table[at][0].next;
        if (right == w->vocab) w->guess[at][0].next = (w->guess[at][0].next + 1) % (int32_t)w->vocab;
    }
}

static void fill_table(world *w)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        w->table[i][0] = (token){(int32_t)random_below(w->vocab), -(float)random_below(1000) * 0x1p-6f};
        w->table[i][1] = w->guess[i][1] = (token){-5, 1e30f};
        w->guess[i][0] = w->table[i][0];
        if (!random_below(4)) w->guess[i][0].next = (int32_t)random_below(w->vocab);
    }
    guess_wrong_somewhere(w);
    for (int i = 0; i < 3; i++)
        w->stop[i] = (int32_t)random_below(VOCAB); /* with few ids, often none of them */
    CUDA(cudaMemcpy(w->d_table, w->table, sizeof(w->table), cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(w->d_guess, w->guess, sizeof(w->guess), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize());
}

/* window: layers with one have blocks of their own. */
static void check_case(uint32_t slots, uint32_t chunk, uint32_t max_tokens, uint32_t max_length, bool states,
                       bool window, gr_steps_drafts drafts)
{
    const uint32_t blocks = (max_length + 15) / 16;
    world *w = calloc(1, sizeof(*w));
    const gr_layer_desc plain = gr_layer_plain(4, 2, 16, 64);
    w->shape = (gr_model_shape){.layers = 2};
    gr_model_of(&w->shape, &plain);
    w->b = (gr_steps_bounds){.slots = slots,
                             .stride = window ? 2 * blocks : blocks,
                             .window_at = window ? blocks : 0,
                             .max_length = max_length,
                             .chunk = chunk,
                             .stop_ids = 3,
                             .states = states,
                             .drafts = drafts};
    w->each = 1 + drafts.tokens;
    w->vocab = drafts.tokens ? FEW : VOCAB;
    w->text = calloc((size_t)drafts.seqs * max_length + 1, sizeof(*w->text));
    w->said = calloc(2 * (size_t)drafts.seqs + 1, sizeof(*w->said));
    w->prompt = w->said + drafts.seqs;
    w->rules = (gr_steps_rules){.max_tokens = max_tokens, .stop = w->stop, .n_stop = 3};
    w->slots = calloc(slots, sizeof(*w->slots));
    w->tables = calloc((size_t)slots * w->b.stride, sizeof(*w->tables));
    for (int i = 0; i < 2; i++) {
        w->want_id[i] = calloc((size_t)slots * w->each * chunk, sizeof(int32_t));
        w->want_logprob[i] = calloc((size_t)slots * w->each * chunk, sizeof(float));
    }
    CUDA(cudaStreamCreateWithFlags((cudaStream_t *)&w->q.stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&w->d_table, sizeof(w->table)));
    const size_t rows = (size_t)slots * w->each * ROW * sizeof(gr_bf16);
    CUDA(cudaMalloc((void **)&w->d_guess, sizeof(w->guess)));
    CUDA(cudaMalloc((void **)&w->d_x, rows));
    CUDA(cudaMalloc((void **)&w->d_hidden, rows));
    CUDA(cudaMalloc((void **)&w->d_ids, slots * sizeof(*w->d_ids)));
    CUDA(cudaMalloc((void **)&w->log, (size_t)w->each * 3 * slots * sizeof(*w->log)));
    const uint64_t bytes = gr_steps_cuda.device_bytes(&w->shape, &w->b);
    CUDA(cudaMalloc((void **)&w->device, bytes));
    CUDA(cudaMemset(w->device, 0xFF, bytes));
    CUDA(cudaHostAlloc((void **)&w->host, gr_steps_cuda.host_bytes(&w->shape, &w->b), cudaHostAllocDefault));
    fill_table(w);
    gr_diag d;
    gr_diag_init(&d);
    const gr_cu_steps_model model = gr_cu_steps_model_of(&w->shape);
    gr_workspace c = {.base = w->device};
    gr_cu_steps_layout_device(&c, &model, &w->b, &w->at);
    gr_status st = gr_steps_cuda.open(&w->steps, &w->shape, &w->b, &d);
    for (uint32_t rollout = 0; rollout < 2 && !st; rollout++) {
        memset(w->slots, 0, slots * sizeof(*w->slots));
        memset(w->said, 0, drafts.seqs * sizeof(*w->said));
        st = gr_steps_cuda.begin(w->steps, &w->q, w->device, w->host, &w->rules, &d);
        for (uint32_t trip = 0; trip < trips && !st; trip++) one_trip(w, trip, trip > trips / 2);
        for (uint32_t trip = trips - 2; trip < trips && !st; trip++) check_report(w, trip);
        if (!st) check_state(w);
    }
    if (st) printf("  %s\n", d.n ? d.messages[0].text : gr_status_str(st));
    const bool some = !drafts.tokens || (w->accepted && w->accepted < w->drafted);
    const bool ok = !st && !w->wrong && w->tokens && w->ended && some;
    printf("steps: %u slots%s%s%s, chunks of %u, %u tokens at most: %llu tokens, %llu ends, %llu of %llu "
           "drafted "
           "ones accepted, %llu wrong %s\n",
           slots, states ? " with states" : "", window ? " and windows" : "",
           drafts.ahead ? " and a layer that drafts" : "", chunk, max_tokens, (unsigned long long)w->tokens,
           (unsigned long long)w->ended, (unsigned long long)w->accepted, (unsigned long long)w->drafted,
           (unsigned long long)w->wrong, ok ? "OK" : "FAIL");
    failures += !ok;
    gr_steps_cuda.close(w->steps);
    gr_diag_release(&d);
    CUDA(cudaFree(w->d_table));
    CUDA(cudaFree(w->d_guess));
    CUDA(cudaFree(w->d_x));
    CUDA(cudaFree(w->d_hidden));
    CUDA(cudaFree(w->d_ids));
    CUDA(cudaFree(w->log));
    CUDA(cudaFree(w->device));
    CUDA(cudaFreeHost(w->host));
    CUDA(cudaStreamDestroy(w->q.stream));
    for (int i = 0; i < 2; i++) {
        free(w->want_id[i]);
        free(w->want_logprob[i]);
    }
    free(w->text);
    free(w->said);
    free(w->slots);
    free(w->tables);
    free(w);
}

static int ended(void)
{
    printf("%s\n", failures ? "FAILED" : "all OK");
    return failures > 0;
}

int main(int argc, char **argv)
{
    int count = 0;
    bool small = false, race = false;
    for (int i = 1; i < argc; i++) {
        small = small || !strcmp(argv[i], "--small");
        race = race || !strcmp(argv[i], "--race");
    }
    if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
        puts("no CUDA device: skipped");
        return 77;
    }
    const gr_steps_drafts none = {0}, alone = {.tokens = 4, .match = 2, .seqs = 20, .samples = 1},
                          group = {.tokens = 7, .match = 1, .seqs = 150, .samples = 5},
                          one = {.tokens = 1, .ahead = true}, four = {.tokens = 4, .ahead = true};
    if (small) trips = race ? 12 : 20;
    check_case(7, 3, 30, 200, false, true, none);
    check_case(7, 3, race ? 20 : 60, 200, true, true, alone);
    check_case(race ? 16 : 64, 8, 50, 700, true, false, group);
    if (race) trips = 6;
    check_case(race ? 16 : 64, 8, 50, 700, true, true, four);
    check_case(1500, 8, 9, 300, true, false, none); /* more than one CTA has threads */
    if (race) return ended();
    check_case(1, 8, 20, 100, false, false, none);
    check_case(7, 3, 30, 200, false, false, none);
    check_case(64, 8, 50, 700, false, false, none);
    check_case(64, 8, 50, 700, true, true, none);
    check_case(7, 3, 60, 200, false, true, alone);
    check_case(64, 8, 50, 700, false, false, group);
    check_case(1, 8, 40, 400, false, false, group);
    check_case(7, 3, 60, 200, false, false, one);
    check_case(1, 8, 40, 400, false, false, four);
    check_case(300, 8, 20, 200, false, false, four);
    return ended();
}
