/* runtime/run/run_keep.h: `samples: all`: a line of JSON for each response of an iteration, in RUN/samples.
 *
 * A line has step, sequence, group and record; prompt, response and, of a conversation, segments; prompt_ids
 * and ids, which hold whatever the texts say, and of a conversation sampled, whether the model did;
 * truncated; logprobs, as sampled, and versions, where there are any; reward, advantage, and values: what the
 * policy's loss reads, a number or one for each id of the response. Floats have nine digits, from which they
 * read back as they were.
 *
 * Memory: for each thread of the team the lines of sixteen sequences, and the same packed.
 */
#ifndef GR_RUNTIME_RUN_KEEP_H
#define GR_RUNTIME_RUN_KEEP_H

#include "ops/base/session.h"

/* gr_session.keep, into session.keep_dir. */
GR_NODISCARD gr_status gr_run_keep(gr_session *s, const struct gr_shown *what, struct gr_team *team,
                                   gr_diag *d);

#endif
