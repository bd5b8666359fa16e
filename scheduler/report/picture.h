/* scheduler/report/picture.h: what SVG pictures share: frame and style, texts, round numbers on axes,
 * colours.
 *
 * Pictures use no fonts, styles or scripts from outside. Private to scheduler/.
 */
#ifndef GR_SCHEDULER_REPORT_PICTURE_H
#define GR_SCHEDULER_REPORT_PICTURE_H

#include "scheduler/report/view.h"

void gr_picture_begin(gr_str *out, double width, double height);
void gr_picture_end(gr_str *out);

/* A line of text at (x, y), its base line; style: classes of the frame's style sheet. */
void gr_text_put(gr_str *out, double x, double y, const char *style, const char *text);

/* In the middle at x, where it is not wider than about `width`; else nothing. */
void gr_text_fit(gr_str *out, double x, double y, double width, const char *style, const char *text);

/* About how wide a text of the usual size is; one that is wider than `width` is cut in its middle, and
 * is whole under the pointer. */
double gr_text_width(const char *text);
void gr_text_cut(gr_str *out, double x, double y, double width, const char *style, const char *text);

/* A round distance between at most `ticks` marks up to most. */
uint64_t gr_tick_bytes(uint64_t most, unsigned ticks);
uint64_t gr_tick_ns(uint64_t most, unsigned ticks);

char *gr_tick_format(uint64_t bytes, char *buf); /* "120 GiB", without needless digits; buf of 32 */
void gr_tick_time(gr_str *out, uint64_t ns, uint64_t tick);

/* The colour of a node: by its place among the nodes of the steps. */
const char *gr_node_colour(const gr_view *v, const char *node);

#endif
