/* memplan/pack/sections.c: cuts time where a start follows an end. */
#include "memplan/pack/sections.h"

#include <stdlib.h>

uint32_t gr_pack_sections(uint32_t *const section[SIDES], const gr_pack_item *items, size_t n,
                          uint32_t n_steps)
{
    uint8_t *is = gr_calloc((size_t)n_steps + 1, 1);
    for (size_t i = 0; i < n; i++) {
        is[items[i].first] |= 1;
        is[items[i].last + 1] |= 2;
    }
    uint32_t k = 0;
    bool ended = false;
    for (uint32_t t = 0; t <= n_steps; t++) {
        section[ENDS][t] = k;
        ended = ended || is[t] & 2;
        if (is[t] & 1) {
            k += ended;
            ended = false;
        }
        section[BEGINS][t] = k;
    }
    free(is);
    return k + 1;
}
