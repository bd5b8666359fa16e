/* runtime/run/record.h: what an iteration was like: metrics, times, samples, and what ops have to keep. It
 * becomes a line of metrics.jsonl, and is what roles of ranks tell each other.
 *
 * A record owns what it points to. Threads: one at a time.
 */
#ifndef GR_RUNTIME_RUN_RECORD_H
#define GR_RUNTIME_RUN_RECORD_H

#include "ops/base/rows.h"
#include "ops/base/session.h"
#include "ops/summary.h"

typedef struct gr_sample {
    uint32_t seq;
    gr_str prompt, response;
    gr_str segments; /* of a conversation who said what, as JSON; else empty */
    bool has_advantage;
    double score, advantage; /* NaN: there is none */
} gr_sample;

typedef struct gr_record {
    uint32_t step;           /* 0: of a validation before the first iteration */
    bool asked_to_stop;      /* a rank was, while it ran or before */
    uint64_t ns, peak_bytes; /* the highest of the ranks, measured */
    uint64_t *node_ns;       /* [n_nodes] by node index, the summaries last: the longest of the ranks */
    size_t n_nodes;
    struct gr_metric *metrics;
    size_t n_metrics, cap_metrics;
    gr_str notes; /* what is to be warned of, a line each */
    gr_sample *samples;
    size_t n_samples, cap_samples;
    gr_str state; /* of the role's ops behind it, as text (runtime/io/state.h); empty: not kept */
} gr_record;

gr_record *gr_record_new(size_t n_nodes);
void gr_record_free(gr_record *r); /* NULL is fine */

/* Take the metrics and notes that the session has now. */
void gr_record_take_measures(gr_record *r, gr_session *s);
/* gr_session.sample; user: the gr_record. */
void gr_record_sample(gr_session *s, const gr_shown *what, uint32_t seq);
/* Who said what of a response, as JSON: [{"by": "model", "text": ...}, {"by": "environment", ...}]; tokens:
 * with the tokens of each. */
void gr_record_segments(const gr_tokenizer *t, const gr_rows *rows, uint32_t seq, bool tokens, gr_str *out);

const struct gr_metric *gr_record_find(const gr_record *r, const char *name); /* NULL: there is none */

/* Add what another role says of the same iteration: of metrics that both have this one's stay, of times and
 * peaks the larger ones, all notes; samples are of one role. from is left without samples. */
void gr_record_merge(gr_record *r, gr_record *from);

/* As bytes, for ranks of the same program on machines of one kind; and back. */
void gr_record_pack(const gr_record *r, gr_str *out);
/* GR_E_FAILED: the bytes are no record of so many nodes. *out: gr_record_free. */
GR_NODISCARD gr_status gr_record_unpack(gr_record **out, const void *bytes, uint64_t n, size_t n_nodes,
                                        gr_diag *d);

#endif
