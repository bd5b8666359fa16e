/* memplan/pack/sections.h: steps between which nothing changes that decides what may share bytes, as one. */
#ifndef GR_MEMPLAN_PACK_SECTIONS_H
#define GR_MEMPLAN_PACK_SECTIONS_H

#include "memplan/pack/pack.h"

enum { BEGINS, ENDS, SIDES };

/* Sets, of each of n_steps + 1 steps, section[BEGINS] to the section of what begins there, and section[ENDS]
 * to that of what ends before it. A section begins where something begins after something has ended. No life
 * wraps. Returns how many sections there are. */
uint32_t gr_pack_sections(uint32_t *const section[SIDES], const gr_pack_item *items, size_t n,
                          uint32_t n_steps);

#endif
