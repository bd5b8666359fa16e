/* memplan/plan/tasks.h: the task graph: what an iteration needs, as the ops declare it, before
 * anything is placed.
 *
 * Objects are pieces of memory with a name and a size. Tasks are pieces of work with the objects they use, in
 * the order they run, with loops. Ops declare tasks (ops/base/op.h), the planner turns a task graph into a
 * plan, and the verifier reads the same task graph again and compares the plan with it.
 */
#ifndef GR_MEMPLAN_PLAN_TASKS_H
#define GR_MEMPLAN_PLAN_TASKS_H

#include "memplan/plan/plan.h"
#include "runtime/comm/mesh.h"
#include "runtime/base/index.h"

/* How long an object's contents matter. */
typedef enum gr_span {
    GR_SPAN_TEMP,    /* from its first use to its last, within one iteration (or one trip, see below) */
    GR_SPAN_KEEP,    /* a version lives on across iterations: weights, optimizer moments */
    GR_SPAN_SCRATCH, /* as TEMP, but a resource with resume and release steps: KV cache, gradients */
    GR_SPAN_SPILL,   /* as TEMP, but it may wait in the host pool from one use to another: activations */
} gr_span;

typedef struct gr_object {
    const char *name; /* unique: "actor.params.3" */
    gr_category category;
    gr_span span;
    gr_place place; /* where steps need it: GR_HOST objects lie in the host pool always */
    uint64_t bytes;
    const char *model; /* weights, gradients, moments, KV caches: whose; else NULL */
    uint32_t bucket;   /* of the model; else GR_NONE */
    /* 1 + an object of the same span without which its contents cannot be saved: its save step reads both; 0:
     * there is none. */
    uint32_t saved_with;
} gr_object;

/* The two times of a lane. On a device that runs work later than it is given (gr_tasks.queued; CUDA), a lane
 * is a thread and a queue. A task's own code runs on the thread when the task is enqueued; its kernels and
 * copies run in the queue later. The executor orders the two so, and nothing else does:
 *   - A step's code begins when all steps in its `after` have been enqueued, by the threads of their lanes.
 *     It knows what those threads have done. It knows nothing of what their queues, or its own, have done.
 *   - What it leaves in its queue begins after everything that its lane enqueued before, after what its
 *     thread knows by then, and after the events of the steps in `after` on other lanes. An event comes when
 *     all is done that its lane enqueued up to the step's end.
 *   - The lane `host` has no queue. Its thread waits for those events itself, so it knows what queues have
 *     done. Its own steps are done when they return.
 *   - At the end of a trip the threads of the loop's lanes meet. Then the queue of `compute` follows theirs,
 *     and they follow it into the next trip or out of the loop. No thread waits for a queue, except that of
 *     `host` for `compute`'s.
 *   - At the end of a path everything is waited for.
 *   - A task that says so (gr_tasks_waits) waits for its queue before its code touches the host pool, and so
 *     for all that its queue follows. runtime/run/run_steps.c checks that it does.
 *
 * Bytes on the device are used by queues alone, and so is all that loads, offloads, saves and restores touch;
 * releases and resumes touch nothing; agreeing on and counting a loop's trips is code. For a task's other
 * uses in the host pool the op says who makes them (GR_BY_*). Unsaid, they are both's, from the begin of the
 * code to the end in the queue. So code that reads what kernels wrote, or writes what they may still read,
 * needs its task to wait; the verifier refuses a plan in which it does not. */
typedef enum gr_use_mode {
    GR_READ = 1,
    GR_WRITE = 2, /* contents before do not matter */
    GR_UPDATE = 3,
    /* Of bytes in the host pool, where the device runs work later than it is given (gr_tasks.queued): who
     * reads or writes them; none of these: both, for all that is known. */
    GR_BY_CODE = 4,  /* the task's own code, while it is enqueued */
    GR_BY_QUEUE = 8, /* kernels and copies that it leaves in its queue */
    GR_BY_TURNS = 16 /* both, and the op itself makes its code and its queue take turns, from task to task of
                      * one lane: memory that no other op uses */
} gr_use_mode;

typedef struct gr_use {
    uint32_t object;
    gr_use_mode mode;
} gr_use;

/* Which ranks take part in a collective: all; those of a host (NODE); or replicas, the ranks that have the
 * same shard on each host. */
typedef enum gr_comm_group { GR_GROUP_ALL, GR_GROUP_NODE, GR_GROUP_REPLICAS } gr_comm_group;

/* How a part of a model lies on the ranks of a role: all of it on each; in flat shards, one on each of a
 * group (gr_shard_elems); in slices along the dimensions of its tensors (ops/model/tp.h); or not at all, for
 * the ranks of another role have it and send it. */
typedef enum gr_spread { GR_SPREAD_WHOLE, GR_SPREAD_FLAT, GR_SPREAD_SLICED, GR_SPREAD_AWAY } gr_spread;

/* Where a model lies on the ranks of a role. What training alone keeps, gradients and moments, is in flat
 * shards over a group. Its weights, which an update steps, are over the same group, or whole, or away. From
 * this follows how all other parts lie (gr_part_spread), and who does a collective. */
typedef struct gr_placement {
    gr_spread weights;
    gr_comm_group group; /* ALL or NODE; of the second, REPLICAS have the same shards */
    uint32_t shards;     /* ranks of this group; 1: each has all */
    unsigned made;       /* GR_MADE_*; while building */
} gr_placement;

/* What has been made of a model's weights as they are now: the copy that generates, adapters merged into
 * them, their form in FP8. */
enum { GR_MADE_COPY = 1, GR_MADE_MERGED = 2, GR_MADE_FP8 = 4 };

/* What a collective does, for the cost model: shards are gathered, or reduced into; or all ranks end with all
 * of it, on the device, or in the host pool, where MPI does it. */
typedef enum gr_comm_form { GR_FORM_SHARDS, GR_FORM_ALL_REDUCE, GR_FORM_HOST_REDUCE } gr_comm_form;

/* What a task uses, and how its code and its queue share what lies in the host pool. */
typedef struct gr_task_uses {
    gr_use *list;
    uint32_t n;
    /* It may run on the lane `host` instead, if this object of its uses, which lives on across iterations,
     * always stays in the host pool. All of its uses but the temporary ones, which it only reads, are then of
     * copies there. GR_NONE: never. */
    uint32_t host_with;
    bool by_code; /* its own code makes all of its uses in the host pool, as GR_BY_CODE says of one */
    bool waits;   /* before that it waits for its queue (gr_queue_finish), and so for all that this follows */
} gr_task_uses;

/* Of layers of experts, what is theirs: rows in groups, each multiplied by the weights of one expert. */
typedef struct gr_experts_cost {
    double products;  /* arithmetic of these, or of the gradients of rows */
    double gradients; /* and of the gradients of weights */
    double weights;   /* bytes of experts' weights that they read: of those that have rows */
    double sums;      /* bytes of gradients of weights, read and written */
    double moved;     /* bytes of rows gathered, activated and summed up, read and written */
    double launches;  /* kernels */
    double rows;      /* of an expert that has some, on average */
    uint32_t width;   /* about the sides of its weights */
} gr_experts_cost;

/* What one execution takes, for the cost model. */
typedef struct gr_task_cost {
    double flops, bytes;    /* arithmetic of matrix products; memory read and written */
    double host_bytes;      /* as which these count on the lane `host`; 0: bytes */
    double fp8;             /* of flops, that of products in FP8 */
    uint32_t rows, width;   /* of the products: rows of the batch, about the sides of the weights; 0: large */
    double attention, kv;   /* arithmetic of attention; bytes of keys and values read from the pool */
    uint32_t length;        /* of the sequences attended to */
    double head, logits;    /* arithmetic of the output matrix's products; logits whose softmax is taken */
    bool backward, paged;   /* products for gradients; attention to keys and values in the pool */
    bool unordered;         /* its sums need no fixed order */
    double moved, launches; /* what kernels beside the products read and write, and how many there are: what
                               a layer of attention has of those is within the rate of its products */
    gr_experts_cost experts;
} gr_task_cost;

/* What it exchanges with other ranks. */
typedef struct gr_task_comm {
    uint64_t moved;         /* bytes that a rank receives from others; of a sync within the device: 0; of a
                             * send or recv: the bytes of the transfer */
    gr_comm_group group;    /* of a collective: who takes part, */
    gr_comm_form form;      /* and what it does */
    uint32_t peer, channel; /* of a send or recv: the other role, and the number of the transfer */
    double rate;            /* of these: bytes a second, all ranks together; */
    double messages_ns;     /* and what a rank's messages take, however short they are */
    /* Of a collective: what it uses keeps its bytes until the next task of `compute` in its loop is done, so
     * that this task need not wait for it. */
    bool beside;
    uint32_t peers;      /* ranks of the group that do it together, side by side; 0: it is done alone */
    gr_mesh mesh;        /* how: its groups along each axis */
    bool to_next;        /* of an exchange: with the next stage; else with the one before */
    double sums, summed; /* their sums or exchanges within it: how many; bytes that a rank receives */
    double exchanged;    /* and bytes that it receives of the holders of experts, of each as many */
    bool agrees; /* within it its holders agree on whether anything is left for this trip of its loop, and so
                    on how many trips that has */
} gr_task_comm;

/* Of a loop, as in gr_step. */
typedef struct gr_task_loop {
    uint32_t body_last, trips_max, trips_expected; /* expected: for the cost model */
    bool agreed;
} gr_task_loop;

/* A task: one piece of work, or the begin of a loop (kind LOOP). */
typedef struct gr_task {
    const char *what; /* unique within the task graph: "update.forward.3" */
    const char *node;
    gr_step_kind kind;    /* RUN, LOOP, or of many ranks GATHER, REDUCE, SYNC, AGREE, SEND, RECV, EXCHANGE */
    gr_lane lane;         /* GR_LANE_COMPUTE or GR_LANE_HOST; collectives: GR_LANE_COMM */
    uint32_t kernel, arg; /* for the op's run function: which of its tasks, and e.g. the layer */
    bool optional;        /* its node has `when:`: an iteration may skip every step of the node */
    bool rollout;         /* generates: policies move state where such tasks begin */
    gr_task_uses uses;
    gr_task_cost cost;
    gr_task_comm comm;
    gr_task_loop loop;
} gr_task;

/* Whether it dies at the end of a trip or an iteration, with no steps that say so. */
static inline bool gr_span_is_brief(gr_span s)
{
    return s == GR_SPAN_TEMP || s == GR_SPAN_SPILL;
}

/* Whether a use of an object is of its copy in the host pool; moved: the task is done on the lane `host`
 * instead of its own. */
static inline bool gr_use_on_host(const gr_object *o, bool moved)
{
    return o->place == GR_HOST || (moved && !gr_span_is_brief(o->span));
}

/* An object that is used inside a loop body and was written before the loop, or is read after it, or whose
 * first use in the body reads, lives over the whole loop. The contents of others, but those of span KEEP,
 * die at each trip's end; those of all die at the iteration's end.
 *
 * Tasks are those of the iteration and, after them, those of the path `validate`, which runs between
 * iterations. An object of another span than KEEP is used on one of the two alone. */
typedef struct gr_tasks {
    gr_arena *arena;
    gr_object *objects;
    size_t n_objects, cap_objects;
    gr_task *task;
    size_t n_tasks, cap_tasks;
    uint32_t validate;       /* first task of the path validate; GR_NONE: it has none */
    uint32_t validate_every; /* iterations from one validation to the next, for the cost model; 0: none */
    /* while building */
    const char *node;
    gr_lane lane;
    bool optional, rollout;
    uint32_t ranks;       /* 1, or more: sizes are of one of them (ops/parallel/sharding.h) */
    uint32_t groups;      /* further communicators: of some of these ranks; of the ranks of all roles */
    uint32_t messages;    /* ranks of this host that messages go to or come from, of all communicators */
    uint32_t leaves;      /* leaves of a mini-batch on one rank, where gradients are summed by tree
                             reduction; 0: they are not */
    gr_placement *placed; /* [n_placed] by index of the model */
    uint32_t n_placed;
    uint32_t node_ranks; /* of GR_GROUP_NODE; 0: no model is sharded so */
    uint32_t captured;   /* layers in the graphs of kernels that a device captures once and keeps */
    bool lagged;         /* the current node reads the weights of the iteration before */
    uint32_t loops[8], depth;
    gr_place values; /* where gr_tasks_value places what it adds; at first on the device */
    bool queued;     /* the device runs work later than it is given: a lane's code goes ahead of its queue */
    gr_index names;  /* of objects */
    gr_str name;     /* the one asked for last */
    uint64_t spare_bytes; /* at the end of the host pool, for what runs between tasks (ops/alike.h) */
} gr_tasks;

gr_tasks *gr_tasks_new(void);
void gr_tasks_free(gr_tasks *p); /* NULL is fine */

/* What follows is run by the path validate, every so many iterations. */
void gr_tasks_validate(gr_tasks *p, uint32_t every);
/* Tasks of the iteration: those before this one. */
uint32_t gr_tasks_steady(const gr_tasks *p);

/* Begin the tasks of a node, in the loop that is open, if one is; names that follow are prefixed with it. An
 * op that generates sets p->rollout before its first task that does. */
void gr_tasks_node(gr_tasks *p, const char *node, gr_lane lane, bool optional);

/* Add an object, or find it again by its name (then size and kind must agree). bytes are rounded up to
 * GR_ALIGN; 0 bytes become GR_ALIGN. Returns its index. */
uint32_t gr_tasks_object(gr_tasks *p, const gr_object *o);
/* A TEMP object of the current node on the device: name "NODE.what". */
GR_PRINTF(4, 5) uint32_t gr_tasks_temp(gr_tasks *p, gr_category c, uint64_t bytes, const char *fmt, ...);
/* The same of span SPILL, of a model. */
GR_PRINTF(5, 6)
uint32_t gr_tasks_spill(gr_tasks *p, gr_category c, const char *model, uint64_t bytes, const char *fmt, ...);
/* A TEMP object in the host pool. */
GR_PRINTF(4, 5) uint32_t gr_tasks_host(gr_tasks *p, gr_category c, uint64_t bytes, const char *fmt, ...);
/* The same where the values of the batch lie: columns, and what expressions work in. */
GR_PRINTF(4, 5) uint32_t gr_tasks_value(gr_tasks *p, gr_category c, uint64_t bytes, const char *fmt, ...);
uint32_t gr_tasks_find(const gr_tasks *p, const char *name); /* GR_NONE: there is none */

/* Add a task of the current node, named "NODE.what". Returns it, to set costs; valid until the next
 * call. Uses are copied; an object appears in them once. A use with object GR_NONE keeps its place and is
 * NULL when the op runs. */
GR_PRINTF(6, 7)
gr_task *gr_tasks_run(gr_tasks *p, uint32_t kernel, uint32_t arg, const gr_use *uses, size_t n,
                      const char *fmt, ...);
gr_task *gr_tasks_loop(gr_tasks *p, uint32_t kernel, uint32_t trips_max, bool agreed, const char *what);
void gr_tasks_end(gr_tasks *p);  /* of the innermost loop */
void gr_tasks_waits(gr_task *w); /* sets by_code and waits */

#endif
