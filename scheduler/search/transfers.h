/* scheduler/search/transfers.h: for one choice of residencies, every step and every ledger entry, not yet
 * packed.
 *
 * What a program's objects need is worked out once (gr_analysis); a choice then says which objects of each
 * group stay resident and how the others come and go; a layout is the steps that follow from it.
 *
 * An object that does not stay has its home in the host pool and is on the device for segments: from a load
 * (or resume) before the first use of a segment to an offload (written) or release (not written) after its
 * last. Segments follow the scopes of the program: a segment lies in one loop body or at the top. Streaming
 * makes segments in the innermost body around each use; otherwise a node's uses are one segment at the top.
 *
 * Under the policy `transition` a segment ends where a rollout begins that does not use the object, and the
 * next begins with the first use after it. What training changes is on the device across the iteration's end
 * then: its home is there, and its lifetime wraps.
 *
 * An optimizer step may be done on the host lane instead (gr_task_uses.host_with): its state has no copy on
 * the device then, and weights and gradients of the same bucket have segments between such works only:
 * gradients are moved off after their last use before it, weights are loaded again for their first use after
 * it. These segments lie in the innermost body that holds such a work, too. What "stays" of them is one
 * segment from the first use to the next such work.
 *
 * Where the host pool has no room for all homes and there is a disk, some of them lie there
 * (transfers_disk.c): each use of one in the pool then has a copy of its own, which a fetch fills or a store
 * empties.
 */
#ifndef GR_SCHEDULER_SEARCH_TRANSFERS_H
#define GR_SCHEDULER_SEARCH_TRANSFERS_H

#include "scheduler/search/schedule.h"

#define GR_PARTS   240u /* of a group that can stay resident: 0, 1/240, ... all of its objects */
#define GR_QUARTER (GR_PARTS / 4)

/* Loads begin so many units of work before the object's first use at the least: 0, or 1, which is one for the
 * whole program; segments that only so many lie between are one. How much earlier depends on the room that
 * there is: see gr_transfers_widen. */
#define GR_N_AHEAD 2

/* Objects whose residency is chosen together: one model's weights, moments or gradients; one KV pool. */
typedef struct gr_group {
    const char *name; /* "actor weights" */
    const char *model;
    gr_category category;
    gr_span span;
    uint32_t n_objects;
    uint64_t bytes; /* of all of them */
    uint64_t nodes; /* bits of the nodes that use it */
    bool may_host;  /* all that uses it may be done on the host lane with it */
} gr_group;

/* How many objects of a group stay; the least parts with which as many do; those with which one more does. */
static inline uint32_t gr_group_stays(const gr_group *g, uint32_t parts)
{
    return g->n_objects * parts / GR_PARTS;
}

static inline uint16_t gr_group_parts_of(const gr_group *g, uint32_t n)
{
    return (uint16_t)((n * GR_PARTS + g->n_objects - 1) / g->n_objects);
}

static inline uint16_t gr_group_parts(const gr_group *g, uint32_t parts)
{
    return gr_group_parts_of(g, gr_group_stays(g, parts));
}

static inline uint16_t gr_group_more(const gr_group *g, uint32_t parts)
{
    return gr_group_parts_of(g, GR_MIN(gr_group_stays(g, parts) + 1, g->n_objects));
}

/* What may lie on a disk, and what the host pool has room for, without which nothing does. bytes 0: there is
 * no disk. */
typedef struct gr_disk_room {
    uint64_t bytes, host;
} gr_disk_room;

typedef struct gr_ref { /* one use of an object */
    uint32_t work;
    gr_use_mode mode;
} gr_ref;

typedef struct gr_item { /* a step to be */
    gr_step_kind kind;
    uint32_t work, object; /* GR_NONE where there is none */
    /* Transitions: the device copy, and, of a load or offload, the host copy. Of a fetch or store: the host
     * copy, and that on the disk. */
    uint32_t entry, home;
    uint32_t scope;     /* the loop (a work) around it, or GR_NONE */
    uint32_t body_last; /* loops: last item of the body */
    gr_lane lane;
    const char *node;
    bool optional;
    uint64_t ns, begin; /* begin: in loops, of the trip looked at last */
} gr_item;

typedef struct gr_analysis {
    const gr_tasks *g;
    gr_arena *arena; /* of everything below */
    uint32_t *parent, *prev, *depth,
        *top;       /* of works: loop around, sibling before, loops around, unit at top */
    uint32_t *node; /* of works: number of the node of the unit at the top */
    uint32_t n_nodes;
    uint32_t *begin; /* uses of object o: refs[begin[o]] to refs[begin[o + 1]] */
    gr_ref *refs;
    uint32_t *use_begin;    /* of works: where its uses begin in arrays over all uses */
    uint32_t *used;         /* of all uses: the object, or GR_NONE */
    gr_item *steps;         /* of works: its step, where it is not moved to the host lane */
    uint32_t *first, *last; /* of objects: where a temporary one begins and ends; last GR_NONE: at the end */
    uint32_t *group, *rank; /* of objects: group or GR_NONE, and place in it */
    gr_group *groups;
    uint32_t n_groups;
    uint32_t *cross_begin, *cross;  /* of works: works on other lanes that it waits for */
    uint64_t *ns, *host_ns;         /* of works; of those that may be moved to the host lane, there */
    uint64_t *lost_ns;              /* of works on other lanes: what `compute` loses to them */
    uint32_t n_movable;             /* works that may */
    uint32_t *rollouts, n_rollouts; /* units at the top that generate, and always run */
    bool *waits_outside;            /* of loops: whether works inside wait for other lanes' works outside */
    gr_hardware hardware;
    gr_disk_room disk;
} gr_analysis;

gr_analysis *gr_analysis_new(const gr_tasks *g, const gr_hardware *hw);
void gr_analysis_free(gr_analysis *f);

typedef struct gr_choice {
    uint64_t stream;  /* nodes, by bit, in which the others are streamed */
    uint16_t parts;   /* how much stays resident, of GR_PARTS */
    uint16_t host;    /* 1: the others stay in the host pool, and what uses them is done there */
    gr_policy policy; /* AUTO: by those above; else they say nothing */
} gr_choice;

typedef struct gr_copy { /* of an object: a ledger entry to be */
    uint32_t object;
    gr_place place;
    uint32_t first, last;
    uint64_t busy_ns; /* once there are times: when its last use or copy ends */
} gr_copy;

typedef struct gr_transfers {
    gr_item *items;
    uint32_t n_items;
    gr_copy *copies;
    uint32_t n_copies;
    uint32_t *use_entry; /* [all uses], see use_begin */
    uint32_t *home;      /* [objects] of span KEEP: the entry that holds it between iterations */
    uint32_t *hosted;    /* [objects] the copy in the host pool, where there is one */
    uint32_t *staged;    /* [objects] of those on the disk, a copy in the host pool; else GR_NONE */
    bool *moved;         /* [works] done on the host lane instead of their own */
    bool *meets;         /* [objects] used by a moved work, and no temporary one */
    unsigned *lanes;     /* [works] loops: mask of the lanes that meet at its trips' ends */
    uint64_t live;       /* most bytes live on the device: no packing is lower */
    uint64_t host_live;
    uint64_t disk_live;
    uint64_t ns;          /* of the iteration */
    uint64_t validate_ns; /* of one validation */
    uint32_t validate;    /* first item of the path validate; n_items where it has none */
    uint64_t copied;      /* bytes that transitions move in an iteration, and its part of a validation */
    uint32_t n_transitions;
    uint32_t caps[3]; /* allocated items, copies, inserts */
    struct gr_insert *inserts;
    uint32_t n_inserts;
    uint32_t *step_of; /* [works] */
    uint64_t work; /* steps looked at since it was {0}, about, and kept when it is released: what searches are
                      limited by */
} gr_transfers;

/* Lay out a choice [n_groups]; l is reused, {0} at first. ahead: below GR_N_AHEAD. Loads whose time is the
 * planner's choice stand as early as they can without taking more bytes on the device than the choice takes
 * somewhere anyway: past other nodes and whole loops, in the order in which they are needed. */
void gr_transfers_make(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead);
/* In two halves: steps and live bytes, where loads stand as late as they may; then loads as early as they can
 * and the time. */
void gr_transfers_place(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead);
void gr_transfers_time(gr_transfers *l, const gr_analysis *f, const gr_choice *choice);
/* Of what has been placed: the bytes of a place above its room, at the worst step and in the mean of all. */
typedef struct gr_excess {
    uint64_t most;
    uint32_t at; /* the first item with as many */
    double mean;
} gr_excess;
gr_excess gr_transfers_excess(const gr_transfers *l, const gr_analysis *f, gr_place place, uint64_t room);
/* The same where so many bytes may be taken: more room never makes it slower. choice: as it was made with. */
void gr_transfers_widen(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint64_t room);
/* Both, with no more of the room than makes it faster. */
void gr_transfers_fit(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead,
                      uint64_t room);
/* Loads as early as they can without more than so many bytes where they stand, which may be fewer than live
 * elsewhere: the less they take, the easier offsets are found. */
void gr_transfers_within(gr_transfers *l, const gr_analysis *f, const gr_choice *choice, uint32_t ahead,
                         uint64_t room);
void gr_transfers_release(gr_transfers *l);

/* layout_time.c: predicted time of an iteration, in ns: lanes run side by side; a load begins when what
 * stands before it on the compute lane and on the other copy lane is done, which is never sooner than a
 * plan's waits allow; copies both ways at once slow each other; what comes next on the compute lane ends
 * later by what a reduction takes from it. Sets the time of copies and loop items, and validate_ns. */
uint64_t gr_transfers_ns(gr_transfers *l, const gr_analysis *f);
/* Of a copy on the device whose life does not wrap: the last step that begins before its last use or copy has
 * ended; of others its last step. After gr_transfers_ns. */
uint32_t gr_transfers_clear(const gr_transfers *l, uint32_t copy);

#endif
