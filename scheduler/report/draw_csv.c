/* scheduler/report/draw_csv.c: a plan as CSV. */
#include "scheduler/report/draw.h"

#include <inttypes.h>

static void put_seconds(gr_str *out, uint64_t ns)
{
    gr_str_printf(out, ",%" PRIu64 ".%09" PRIu64, ns / 1000000000, ns % 1000000000);
}

static void put_row(gr_str *out, const gr_view *v, uint32_t i)
{
    const gr_step *s = &v->steps[i];
    if (v->all->n_more) gr_str_printf(out, "%u,", v->role);
    gr_str_printf(out, "%u,%s,", i, gr_step_kind_str(s->kind));
    gr_csv_put(out, s->what);
    gr_str_putc(out, ',');
    gr_csv_put(out, s->node ? s->node : "");
    gr_str_printf(out, ",%s,", gr_lane_str(s->lane));
    if (v->parent[i] != GR_NONE) gr_str_printf(out, "%u", v->parent[i]);
    gr_str_putc(out, ',');
    if (s->kind == GR_STEP_LOOP) gr_str_printf(out, "%u", s->trips_max);
    gr_str_printf(out, ",%" PRIu64 ",%" PRIu64, s->bytes, s->resident_bytes);
    put_seconds(out, s->ns);
    put_seconds(out, v->begin[i]);
    put_seconds(out, v->end[i]);
    gr_str_putc(out, '\n');
}

void gr_draw_csv(const gr_plan *p, gr_str *out)
{
    gr_str_printf(out, "%si,kind,what,node,lane,loop,trips_max,bytes,resident_bytes,seconds,begin,end\n",
                  p->n_more ? "class," : "");
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_view *v = gr_view_of_role(p, c);
        for (uint32_t i = 0; i < v->n; i++) put_row(out, v, i);
        gr_view_free(v);
    }
}
