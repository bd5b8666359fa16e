/* runtime/io/tensorboard.h: scalars for TensorBoard: events.out.tfevents.TIME.HOST, records of TFRecord
 * framing (length, masked CRC32C, data, masked CRC32C) that hold Event messages in protobuf's wire format. */
#ifndef GR_RUNTIME_IO_TENSORBOARD_H
#define GR_RUNTIME_IO_TENSORBOARD_H

#include "runtime/base/base.h"

typedef struct gr_tensorboard gr_tensorboard;

GR_NODISCARD gr_status gr_tensorboard_open(gr_tensorboard **out, const char *dir, gr_diag *d);
void gr_tensorboard_free(gr_tensorboard *t); /* NULL is fine */

/* One scalar of a step; gr_tensorboard_flush after each iteration. */
void gr_tensorboard_scalar(gr_tensorboard *t, uint64_t step, const char *tag, double value);
GR_NODISCARD gr_status gr_tensorboard_flush(gr_tensorboard *t, gr_diag *d);

uint32_t gr_crc32c(const void *bytes, size_t n);

#endif
