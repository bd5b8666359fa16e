/* ops/kernels/slots.h: what the host tells the device about the slots of a rollout between two chunks of
 * decode steps. C and CUDA C++ both read it. */
#ifndef GR_OPS_KERNELS_SLOTS_H
#define GR_OPS_KERNELS_SLOTS_H

#include <stdint.h>

#define GR_SLOT_SET   UINT32_MAX       /* a sequence begins here: the fields below, and a table */
#define GR_SLOT_CLEAR (UINT32_MAX - 1) /* the slot becomes empty */

enum { GR_STEPS_EMPTY = -1, GR_STEPS_REJECTED = -2 }; /* instead of a token: see gr_steps_report */

typedef struct gr_slot_change {
    uint32_t slot;
    uint32_t from;            /* SET, CLEAR, or the slot whose sequence moves here and that becomes empty */
    int32_t id;               /* SET: the token to feed first */
    uint32_t position;        /* SET: its position; those before it have their keys in the pool */
    uint32_t sequence, token; /* SET: of the first draw */
    uint32_t text, prompt;    /* SET, where tokens are looked up: which text is its own, and how many of its
                                 tokens others are not to draft */
} gr_slot_change;

#endif
