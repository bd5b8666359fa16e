/* tests/unit/code_host.h: passes of graphs/expr/code.h on the host, a thread at a time, in an order that
 * shows where one would need another of its pass: the last element first. */
#ifndef GR_TESTS_CODE_HOST_H
#define GR_TESTS_CODE_HOST_H

#include "graphs/expr/code_run.h"
#include "runtime/device/device.h"

static inline double code_host_fold(const gr_code_call *c, const gr_code_instr *x, uint32_t unit)
{
    double lane[GR_CODE_LANES], next[GR_CODE_LANES];
    for (uint32_t l = 0; l < GR_CODE_LANES; l++) lane[l] = gr_code_fold_lane(c, x, unit, l);
    for (uint32_t o = GR_CODE_LANES / 2; o; o /= 2) {
        for (uint32_t l = 0; l < GR_CODE_LANES; l++) next[l] = gr_code_fold_join(x, lane[l], lane[l ^ o]);
        memcpy(lane, next, sizeof(lane));
    }
    return lane[0];
}

static inline void code_host_unit(const gr_code_call *c, uint32_t i)
{
    if (c->pass.form == GR_CODE_EACH) gr_code_each(c, i);
    for (uint32_t k = 0; k < c->pass.n_instrs && c->pass.form != GR_CODE_EACH; k++) {
        const gr_code_instr *x = &c->pass.instr[k];
        if (c->pass.form == GR_CODE_SCAN) {
            gr_code_scan(c, x, i);
            continue;
        }
        gr_code_place p = gr_code_at(c, c->pass.level, i);
        gr_code_put(c, x->to, &p, NULL, code_host_fold(c, x, i));
    }
}

static inline void code_host_run(gr_queue *q, const gr_code_call *c)
{
    (void)q;
    gr_code_selection s;
    if (c->pass.form != GR_CODE_SELECT) {
        for (uint32_t i = c->n; i-- > 0;) code_host_unit(c, c->first + i);
        return;
    }
    for (uint32_t k = 0; k < c->pass.n_instrs; k++) gr_code_select(c, &c->pass.instr[k], 0, 1, &s);
}

#endif
