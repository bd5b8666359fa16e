/* ops/kernels/kernels.h: what ops ask of a device: the ends of a model's passes and the few flat-array
 * kernels around them. What lies between, the layers, is composed for every device alike
 * (ops/kernels/layer.h).
 *
 * Ops hold no loops over elements: they call these, so they do not know which device they are on. All
 * pointers are device pointers (on the CPU device: host addresses inside the arena) unless a comment says
 * "host". Kernels allocate nothing: workspaces come from the caller, sized by the *_bytes functions, which
 * are pure functions of shape and bounds and are what the planner counts. Alignment of every buffer: 256
 * bytes. Weights and hidden states have the device's own type (fp32 on the CPU device, bf16 on CUDA), which
 * is why they travel as void; logits, statistics and log-probs are fp32 everywhere, gradients and training
 * state as the graph says.
 *
 * Batch invariance (`invariant`; the CPU device always, CUDA under `strict: true`): the result for a token
 * depends on the token, its prefix and the weights alone: not on other sequences, on the packing, on chunk
 * sizes, on threads, nor on whether its keys came through gr_layer_forward or gr_layer_extend. So rollout,
 * log-prob and training passes agree to the bit. Gradients of weights (`chained`; the CPU device): sums over
 * tokens in order of their place in the packed batch, independent of threads and of how a batch is cut into
 * passes.
 *
 * Slices: gr_layer_forward without acts, and gr_layer_extend, take a shape with `parts` and the layer's slice
 * (ops/model/tp.h). All of the queue's peers then make the same calls, and each of these has two sums
 * over them (gr_tp_sum), of what o and down gave for [T, H]; x is whole on each rank, with the same bits.
 */
#ifndef GR_OPS_KERNELS_KERNELS_H
#define GR_OPS_KERNELS_KERNELS_H

#include "ops/kernels/divergence.h"
#include "memplan/plan/plan.h"
#include "ops/kernels/checksum.h"
#include "ops/kernels/optim.h"
#include "ops/kernels/routing.h"
#include "runtime/device/device.h"

struct gr_code_call; /* graphs/expr/code.h */

#define GR_KV_BLOCK 16 /* tokens a KV block holds */

/* Sequences packed end to end: tokens of sequence i are [offset[i], offset[i + 1]), positions from 0. Several
 * may share their beginning, which is packed once: with prefix[i] = j other than i, sequence i goes on behind
 * the tokens of j. Its positions count them, and it sees all of them. j itself goes on from none, and those
 * that go on from it stand right behind it. */
typedef struct gr_packed {
    uint32_t n_tokens, n_seqs;
    const int32_t *ids;                   /* [n_tokens] */
    const uint32_t *offset;               /* [n_seqs + 1] */
    const uint32_t *host_offset;          /* the same, on the host */
    const uint32_t *prefix, *host_prefix; /* [n_seqs] likewise; NULL: none shares */
    const int32_t *position; /* [n_tokens] of each token in its sequence; the CPU device does not read it */
    /* Ranks that these sequences' tokens are cut over, as many each: the queue's group. n_tokens and ids are
     * then this rank's, in their order; offset and position are of all of them. 0, 1: they are not cut. Where
     * the shape is a slice's, these ranks have the other slices (ops/kernels/layer_cut.c). */
    uint32_t cut;
    const gr_routing *routing; /* NULL: of its experts nothing is asked */
    uint32_t expert_run;       /* as of gr_pass_bounds */
    bool experts_again;        /* likewise */
    void *carried,
        *d_carried; /* what layers hand on, and d loss / d it (ops/kernels/carried.h); NULL: nothing
                     */
} gr_packed;

/* Bounds that sizes are computed from. */
typedef struct gr_pass_bounds {
    uint32_t tokens, seqs; /* of one pass */
    uint32_t length;       /* of one sequence, or of its keys */
    unsigned threads;
    uint32_t cut;        /* as in gr_packed: tokens are of one rank, sequences of all */
    bool shared;         /* sequences may go on from others (gr_packed.prefix) */
    bool experts_again;  /* where experts are divided, their first product is not kept but made again */
    uint32_t expert_run; /* tokens that go through the experts of a layer at once, at most; 0: as many as keep
                            the device busy (ops/kernels/experts.h) */
    const gr_model_shape *adapters; /* of a backward pass whose gradients are theirs; NULL: the weights' */
} gr_pass_bounds;

/* Rows of hidden states that the head reads, and what it is asked about them. */
typedef struct gr_head_rows {
    uint32_t n;
    const uint32_t *row;   /* [n] token index whose hidden state predicts; strictly increasing */
    const int32_t *target; /* [n] id whose log-prob is asked */
    float inv_temperature; /* logits are multiplied by it; 1 where the rollout was greedy */
    bool keep; /* head_backward follows: logits stay in the workspace, which is one of GR_HEAD_GRADIENT */
    /* What head_backward adds to the gradient of row i's logits z, which are scaled by the temperature:
     * d_divergence [n] times slope [n, V], as gr_kernels.teach left it; slope NULL: nothing. */
    const float *slope, *d_divergence;
} gr_head_rows;

/* What the student's head is compared with, row by row. */
typedef struct gr_head_teacher {
    const gr_model_shape *s; /* the teacher's; of its ids those of the student are looked at, and are all */
    const void *lm;          /* its output matrix */
    const void *hidden;      /* [n, its H] behind its final norm, as gr_head_ops.hidden gives it */
    gr_divergence kind;
    float beta;
} gr_head_teacher;

/* Outputs of one chunk of head rows; any may be NULL except logprob. [n] each. */
typedef struct gr_head_stats {
    float *logprob, *entropy, *sum_p2;
} gr_head_stats;

/* Which keys a decode step reads where layers have this window (0: none) and so many query heads a kv head,
 * in the device's form. */
typedef struct gr_decode_list {
    uint32_t window, group;
    void *work;
} gr_decode_list;

/* What the attention of a decode step is told beside gr_extend; see gr_cu_decode of
 * ops/kernels/cuda/launch.h. Arrays on the device. */
typedef struct gr_decode {
    const uint32_t *length; /* [n_seqs] keys, the new one included; 0: the slot is empty */
    const uint32_t *member, *group_first, *shared; /* slots that share the keys of a prompt */
    uint32_t n_groups, max_length, each;
    gr_decode_list lists[GR_LAYER_KINDS_MAX + 1]; /* of layers, and of one that drafts */
    uint32_t n_lists;
    void *ws; /* the device's own */
} gr_decode;

/* A value head: final norm and a linear map to one number. */
typedef struct gr_value_head {
    const void *norm, *weight; /* [H] */
    const void *bias;          /* [1]; NULL: none */
} gr_value_head;

/* Where its gradients are added. */
typedef struct gr_value_grads {
    gr_dtype type;
    void *norm, *weight; /* [H]; norm NULL: not that one */
    void *bias;          /* [1]; NULL: none */
} gr_value_grads;

/* New tokens of several sequences, whose keys and values go into the paged pool. */
typedef struct gr_extend {
    uint32_t n_tokens, n_seqs;
    const int32_t *ids;          /* [n_tokens] */
    const uint32_t *offset;      /* [n_seqs + 1] into the new tokens */
    const uint32_t *cached;      /* [n_seqs] tokens that are in the pool already */
    const uint32_t *block_table; /* [n_seqs, table_stride] block of each GR_KV_BLOCK positions */
    uint32_t table_stride;
    /* Column of the table from which on it has the blocks of layers with a window, where these are others
     * (they come again as the window moves on); 0: they are the same. */
    uint32_t window_at;
    const int32_t *position;     /* [n_tokens] of each new token in its sequence */
    const uint32_t *slot;        /* [n_tokens] where its keys go: block * GR_KV_BLOCK + place */
    const uint32_t *window_slot; /* the same of layers with a window, where window_at */
    uint32_t longest;            /* most new tokens of one sequence */
    /* [n_seqs] of a state of one size (gr_layer_slot_bytes): its place among those of a layer; UINT32_MAX:
     * none, and what the sequence gives is 0. In a step of slots with several rows (decode->each) the place
     * where that behind each row is left; the first row goes on from what is in its own. NULL where no layer
     * has one. */
    const uint32_t *held;
    /* [n_tokens] a place where that state is left, too, as it is behind the token; UINT32_MAX: nowhere. NULL:
     * of no token. */
    const uint32_t *held_after;
    const gr_decode *decode;   /* a step of slots, one token each, some of them empty; NULL: not one */
    const gr_routing *routing; /* record and exchanges alone; NULL: of its experts nothing is asked */
    uint32_t expert_run;       /* as of gr_pass_bounds; where experts are divided the same on all holders */
    void *carried;             /* as of gr_packed */
} gr_extend;

/* What a workspace is for: one that is for less may be smaller. */
typedef enum gr_layer_use {
    GR_LAYER_FORWARD, /* packed, without acts */
    GR_LAYER_KEEP,    /* with them */
    GR_LAYER_BACKWARD,
    GR_LAYER_EXTEND,
} gr_layer_use;

typedef enum gr_head_use {
    GR_HEAD_LOGPROB,  /* head_forward */
    GR_HEAD_GRADIENT, /* head_forward, then head_backward */
    GR_HEAD_SAMPLE,   /* head_sample from the whole distribution */
    GR_HEAD_TRUNCATE, /* head_sample with top_k or top_p */
} gr_head_use;

/* How the next token is drawn. */
typedef struct gr_sampling {
    float temperature; /* 0: greedy, ties to the lowest id */
    float top_p;       /* 1: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed, stream;
    const void *device; /* the same in the device's form, read there when the work runs (it may be captured
                           once and run often); NULL: the device gets the values above */
} gr_sampling;

/* What head_sample needs for it, of so many ids. */
static inline gr_head_use gr_sampling_use(const gr_sampling *how, uint32_t vocab)
{
    const bool truncates = how->top_p < 1 || (how->top_k && how->top_k < vocab);
    return how->temperature > 0 && truncates ? GR_HEAD_TRUNCATE : GR_HEAD_SAMPLE;
}

typedef struct gr_optim {
    double lr, beta1, beta2, eps, weight_decay; /* double: 1 - beta2 has few digits left in a float */
    uint32_t step;                              /* from 1 */
    float grad_scale;                           /* gradients are multiplied by it first (clipping) */
    gr_optim_kind kind;
} gr_optim;

/* The same elements of a model's parts. */
typedef struct gr_optim_range {
    void *w;                  /* working weights */
    const void *g;            /* gradients, of type grads */
    float *master;            /* NULL: w itself, or with low */
    uint16_t *low;            /* NULL: none; else w, which is bf16, and this are the master (gr_f32_join) */
    void *m, *v;              /* of type moments; v: of AdamW alone */
    float *m_scale, *v_scale; /* of int8: of their blocks of 64, in whole blocks (ops/simd/moments.h) */
    gr_dtype grads, moments;
    gr_chance chance; /* of int8: how they are rounded, by the key of this step */
} gr_optim_range;

/* Sizes of passes that keep the device busy, without more memory than that needs. */
typedef struct gr_pass_sizes {
    uint32_t micro_tokens, concurrent, prefill_tokens;
    uint32_t head_elems, head_rows; /* of one head chunk: logits, rows at most */
    uint32_t head_step;             /* and a multiple of so many rows, where it has as many */
    bool head_sums; /* log-probs without gradients keep no logits: rows alone bound their chunks */
} gr_pass_sizes;

/* What kernels are for. A device has all of a set or none of it, and then not its sizes either: so a plan
 * knows, also where it is made in a build that cannot run it. */
typedef enum gr_kernel_set {
    GR_KERNELS_FORWARD = 1 << 0,    /* embedding and layers over packed sequences */
    GR_KERNELS_BACKWARD = 1 << 1,   /* their gradients, and the optimizer */
    GR_KERNELS_LM_HEAD = 1 << 2,    /* of a language model: log-probs, and their gradients */
    GR_KERNELS_VALUE_HEAD = 1 << 3, /* and of a value head */
    GR_KERNELS_ROLLOUT = 1 << 4,    /* layers over the paged pool, sampling */
} gr_kernel_set;

#define GR_UNFIT_MAX 96

typedef struct gr_kernels gr_kernels;
struct gr_kernels {
    const char *device;
    gr_dtype dtype;   /* of weights and hidden states */
    bool master;      /* trained weights have a master beside them, else they are their own: fp32 */
    gr_place columns; /* where values of the batch lie; on the host, kernels reach them through its pool */
    bool queued;      /* its device runs work later than it is given (runtime/device/device.h) */
    bool invariant;   /* batch invariance holds: see above */
    bool unordered;   /* sums are in no fixed order */
    bool rings;       /* blocks of layers with a window may come again (gr_extend.window_at): tried on it */
    bool chained;     /* and of the sums of gradients */
    const gr_kernels *strict; /* the same device with batch invariance; NULL: this is it */
    const gr_kernels
        *nondeterministic; /* and with sums in no fixed order; NULL: it has none, or this is it */
    gr_pass_sizes sizes;
    double attention_cost; /* seconds of attention in a forward pass, over those of the device's fastest */
    /* What the kernels keep with a queue, where they keep something: attach before the first call on a queue,
     * detach after the last; check tells the first failure since it was last asked. */
    gr_status (*attach)(gr_queue *q, gr_diag *d);
    void (*detach)(gr_queue *q);
    gr_status (*check)(gr_queue *q, gr_diag *d);
    const char *(*numerics)(void); /* what of the device changes bits, for the numerics hash: "cpu-fma" */
    /* What of a shape they are not made for, as a text in buf; NULL: nothing. No function: they are for all
     * that the parts of their layers are for (gr_layers_unfit of ops/kernels/layer.h asks both). */
    const char *(*unfit)(const gr_model_shape *s, char buf[GR_UNFIT_MAX]);

    /* ---- sizes in bytes ---- */
    uint64_t (*head_ws_bytes)(const gr_model_shape *s, uint32_t chunk_rows, gr_head_use use,
                              unsigned threads); /* logits included */
    uint64_t (*value_ws_bytes)(const gr_model_shape *s, uint32_t chunk_rows, unsigned threads);

    /* ---- model, packed sequences ---- */
    /* x [T, H] = embedding rows of ids; 0 where an id is below 0, and backward nothing. */
    void (*embed_forward)(gr_queue *q, const gr_model_shape *s, const void *embed, const gr_packed *b,
                          void *x);
    /* grad_embed [V, H] += dx [T, H] by id, in token order. */
    void (*embed_backward)(gr_queue *q, const gr_model_shape *s, const gr_packed *b, const void *dx,
                           void *grad_embed, gr_dtype grads, void *ws);
    uint64_t (*embed_ws_bytes)(uint32_t tokens); /* of embed_backward */
    /* What a layer is composed of (ops/kernels/layer.h). */
    const struct gr_layer_ops *layer;

    /* ---- head: final norm and output matrix, a chunk of rows at a time ---- */
    /* norm [H], lm [V, H]. rows->n <= chunk_rows of ws. The statistics have the same bits whether logits are
     * kept or not. */
    void (*head_forward)(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm,
                         const void *x, const gr_head_rows *rows, const gr_head_stats *out, void *ws);
    /* For the chunk that head_forward just left in ws (rows->keep): d_logprob [n], d_entropy [n] or NULL, are
     * the loss's derivatives; dx rows named by rows are written (not added), grad_norm [H] and grad_lm [V, H]
     * are added to, where not NULL. */
    void (*head_backward)(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm,
                          const void *x, const gr_head_rows *rows, const float *d_logprob,
                          const float *d_entropy, void *dx, void *grad_norm, void *grad_lm, gr_dtype grads,
                          void *ws);

    /* For the chunk that head_forward just left in ws (rows->keep): divergence [n] from a teacher. taught, of
     * teach_ws_bytes, begins with its slope [n, V] by the logits, for head_backward. */
    void (*teach)(gr_queue *q, const gr_model_shape *s, const gr_head_rows *rows, const gr_head_teacher *t,
                  float *divergence, void *ws, void *taught);
    uint64_t (*teach_ws_bytes)(const gr_model_shape *s, const gr_model_shape *teacher, uint32_t chunk_rows,
                               unsigned threads);

    /* The same, and the embedding, where ranks have parts of the vocabulary (ops/kernels/head.h). */
    const struct gr_head_ops *head;

    /* ---- value head, a chunk of rows at a time ---- */
    /* value[i], i < n, of the hidden state at token row[i]; row strictly increasing, n <= chunk_rows of ws.
     */
    void (*value_forward)(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                          const uint32_t *row, uint32_t n, float *value, void *ws);
    /* For the chunk that value_forward just left in ws: d_value [n] is the loss's derivative; the rows of dx
     * named by row are written (not added), grad is added to. */
    void (*value_backward)(gr_queue *q, const gr_model_shape *s, const gr_value_head *head, const void *x,
                           const uint32_t *row, uint32_t n, const float *d_value, void *dx,
                           const gr_value_grads *grad, void *ws);

    /* ---- rollout ---- */
    /* Copy block src[i] to dst[i], of so many bytes each. */
    void (*copy_blocks)(gr_queue *q, void *blocks, uint64_t block_bytes, const uint32_t *src,
                        const uint32_t *dst, uint32_t n);
    /* Draw one id for each row of x named by row[n] (chunked by the caller as for head_forward). draw[i] =
     * {sequence, token}: the counter of the draw, so that it does not depend on the batch. logprob: of the
     * drawn id under log-softmax(logits / T), no truncation (T 0 counts as 1). */
    void (*head_sample)(gr_queue *q, const gr_model_shape *s, const void *norm, const void *lm, const void *x,
                        const uint32_t *row, uint32_t n, const gr_sampling *how, const uint32_t (*draw)[2],
                        int32_t *id, float *logprob, void *ws);

    /* ---- flat arrays ---- */
    void (*zero)(gr_queue *q, void *p, uint64_t bytes);
    void (*copy)(gr_queue *q, void *to, const void *from, uint64_t bytes);
    /* n rows of so many bytes, at multiples of to_stride and of from_stride bytes. */
    void (*copy_rows)(gr_queue *q, void *to, uint64_t to_stride, const void *from, uint64_t from_stride,
                      uint64_t row_bytes, uint64_t n);
    /* y [n, width] = rows row [n] of x, of the device's dtype; width: of hidden states. */
    void (*gather)(gr_queue *q, const void *x, const uint32_t *row, uint32_t n, uint32_t width, void *y);
    /* to [n] += from [n], both of one type. */
    void (*add)(gr_queue *q, void *to, const void *from, gr_dtype type, uint64_t n);
    /* to [n] = decay to + share from, of the device's dtype. master [n] not NULL: it stands for to in the sum
     * and holds it, and to is what it rounds to. Two products and a sum, each rounded: the same bits on every
     * device. */
    void (*blend)(gr_queue *q, void *to, float *master, const void *from, float decay, float share,
                  uint64_t n);
    /* x [n] of the device's dtype divided by the root of *squares, or by 1e-7 where that is less. */
    void (*to_unit)(gr_queue *q, void *x, uint64_t n, const double *squares);
    /* Muon's momentum (ops/kernels/optim.h), by how->beta1 and grad_scale; what is made orthogonal, u [n], is
     * of the device's dtype. Moments are fp32. */
    void (*muon_mix)(gr_queue *q, const gr_optim *how, const gr_optim_range *r, void *u, uint64_t n);
    /* *out = sum of squares in double, in a fixed order that does not depend on threads. */
    void (*sum_squares)(gr_queue *q, const void *x, gr_dtype type, uint64_t n, double *out, void *ws);
    uint64_t (*sum_squares_ws_bytes)(void);
    /* parts [GR_CHECKSUM_PARTS] of the host pool: their sum is the checksum of the bytes
     * (ops/kernels/checksum.h). */
    void (*checksum)(gr_queue *q, const void *x, uint64_t bytes, uint64_t *parts);
    /* One flat range; decay: whether weight decay applies to it. */
    void (*optim_step)(gr_queue *q, const gr_optim *how, bool decay, const gr_optim_range *r, uint64_t n);

    /* One pass of a compiled expression (graphs/expr/code.h). Where losses are evaluated on the device, the
     * fresh values and adjoints of an update stay there (ops/loss_device.h); else the host evaluates them
     * where they lie. */
    bool losses;
    void (*code_run)(gr_queue *q, const struct gr_code_call *c);

    /* Rollout whose state lives on the device (ops/kernels/steps.h); NULL: the host leads it, step by step.
     */
    const struct gr_steps_ops *steps;
};

/* The optimizer step of a range in the host pool, on the queue's team: w of type weights, whatever the
 * device. The arithmetic is the CPU device's: where weights, gradients and moments are fp32, its bits. Others
 * are widened to fp32 and rounded to nearest even again. ops/kernels/cpu/optim_cpu.c */
void gr_host_optim_step(gr_queue *q, gr_dtype weights, const gr_optim *how, bool decay,
                        const gr_optim_range *r, uint64_t n);

/* The same of host memory, on the queue's team, whatever the device. ops/kernels/cpu/optim_cpu.c */
void gr_host_checksum(gr_queue *q, const void *x, uint64_t bytes, uint64_t *parts);
/* Their sum. */
uint64_t gr_checksum_of(const uint64_t *parts);

/* In a build without CUDA its table has the sizes alone, for planning: what runs is NULL. */
extern const gr_kernels gr_kernels_cpu, gr_kernels_cuda;

/* All of them, ending with NULL. */
extern const gr_kernels *const gr_all_kernels[];
/* By the device's name, "cpu" or "cuda"; NULL: there is none. */
const gr_kernels *gr_kernels_find(const char *device);
/* Those of k's device that keep what a graph asks for: `strict: true`, `deterministic: false`. */
const gr_kernels *gr_kernels_as(const gr_kernels *k, bool strict, bool deterministic);

/* The sets that a device has; and their names in words, "training, value heads". */
unsigned gr_kernels_sets(const gr_kernels *k);
void gr_kernel_sets_name(unsigned sets, gr_str *out);

#endif
