/* memplan/plan/plan.h: a finished plan: what `graphrun plan` shows, `verify` proves and `exec` runs.
 *
 * A plan has steps for the steady iteration and for the other paths (init, resume, checkpoint, ...), and a
 * ledger: every copy of every object with its place, offset and lifetime. Nothing else may hold memory
 * whose size depends on the plan.
 *
 * Steps are flat and numbered in pre-order: a loop step is followed by its body, body_last is the number of
 * the last step of the body (loops nest). Within a path, each lane runs its own steps in this order; `after`
 * names steps of other lanes that must have completed: the same trip's where both are in the same body, all
 * trips of a loop where `after` names the loop step from outside. Lanes meet at the end of a path; and those
 * with steps in a loop's body, with the lane `compute`, which leads it, at the end of each of its trips. The
 * others pass the loop by: what they do before and after it in their order may run beside it, as far as their
 * waits allow.
 *
 * An entry is live from step `first` to step `last`, both included; last < first wraps round the iteration's
 * end. A life lies in one loop body, or holds whole loops. An entry live in a loop body only is dead at the
 * trip's end: contents never cross it. Entries that hold contents between paths (a path's entry and exit) are
 * live in the first step and in the last: in all, or wrapping.
 *
 * The path validate runs tasks, too, between iterations: the ledger counts the iteration's steps and then,
 * from there on, those of validate. Entries that neither hold contents between paths nor stay for ever live
 * on one of the two, so that what one path frees the other may use.
 *
 * What does not fit into the host pool may lie on a disk. A `fetch` copies it from there into the host pool,
 * before a load or before a task that uses it there; a `store` copies it back, behind an offload or such a
 * task. Both are of the lane `disk`. The copy in the host pool begins with the fetch, the offload or the task
 * that writes it, and ends with the last step that names it. In the paths that save and restore it is used as
 * well: nothing else that holds contents then has its bytes.
 *
 * Steps of a node that is skipped are left out, and waits for them are void: no other step counts on them.
 * Neither a lane's way into a loop nor a loop that ran no trip orders one lane's steps after another's.
 *
 * Ranks that do different things have different roles. Each role has a plan of its own, and the first (of
 * rank 0) holds the others. A transfer from one role to another is a `send` of the one and a `recv` of the
 * other: of one object, in one order on both sides, and in no loop. They meet: neither ends before both
 * began. A recv names the send it meets, the only wait for a step of another role. Roles meet nowhere else:
 * one may be in the next iteration already while another is still in this one.
 *
 * Ranks of one role that have the stages of a model (ops/parallel/stages.h) send each other activations and
 * their gradients: an `exchange` is with the next stage, or with the one before, of messages both ways at
 * once. All ranks have the same steps; the first stage has no one before it, the last none behind.
 *
 * Units: bytes; nanoseconds for time. Threads: a plan never changes once made; any thread may read it.
 */
#ifndef GR_MEMPLAN_PLAN_PLAN_H
#define GR_MEMPLAN_PLAN_PLAN_H

#include "runtime/base/base.h"

#define GR_PLAN_VERSION 1
#define GR_ALIGN        256 /* of every offset and size in the ledger */
#define GR_NONE         UINT32_MAX

#define GR_DISK_ALIGN 4096 /* of offsets on the disk, and of what goes there in the host pool */

/* On the disk lies what lives on; tasks use none of it there. It is brought into the host pool, and back. */
#define GR_PLACE_MAP(X) \
    X(DEVICE, "device") \
    X(HOST, "host")     \
    X(DISK, "disk")
typedef enum gr_place {
#define X(name, text) GR_##name,
    GR_PLACE_MAP(X)
#undef X
        GR_N_PLACES
} gr_place;

#define GR_LANE_MAP(X)    \
    X(COMPUTE, "compute") \
    X(H2D, "h2d")         \
    X(D2H, "d2h")         \
    X(COMM, "comm")       \
    X(HOST, "host")       \
    X(DISK, "disk")
typedef enum gr_lane {
#define X(name, text) GR_LANE_##name,
    GR_LANE_MAP(X)
#undef X
        GR_N_LANES
} gr_lane;

#define GR_CATEGORY_MAP(X)        \
    X(WEIGHTS, "weights")         \
    X(ROLLOUT, "rollout weights") \
    X(GRADIENTS, "gradients")     \
    X(OPTIMIZER, "optimizer")     \
    X(KV, "kv")                   \
    X(ACTIVATIONS, "activations") \
    X(WORKSPACE, "workspace")     \
    X(COLUMNS, "columns")         \
    X(COMM, "comm")
typedef enum gr_category {
#define X(name, text) GR_CAT_##name,
    GR_CATEGORY_MAP(X)
#undef X
        GR_N_CATEGORIES
} gr_category;

#define GR_STEP_MAP(X)      \
    X(LOAD, "load")         \
    X(OFFLOAD, "offload")   \
    X(FETCH, "fetch")       \
    X(STORE, "store")       \
    X(RELEASE, "release")   \
    X(RESUME, "resume")     \
    X(GATHER, "gather")     \
    X(REDUCE, "reduce")     \
    X(SYNC, "sync")         \
    X(SEND, "send")         \
    X(RECV, "recv")         \
    X(EXCHANGE, "exchange") \
    X(SAVE, "save")         \
    X(RESTORE, "restore")   \
    X(AGREE, "agree")       \
    X(LOOP, "loop")         \
    X(RUN, "run")
typedef enum gr_step_kind {
#define X(name, text) GR_STEP_##name,
    GR_STEP_MAP(X)
#undef X
        GR_N_STEP_KINDS
} gr_step_kind;

/* One copy of one object. */
typedef struct gr_entry {
    const char *what; /* the object's name: "actor.params.3", "update.acts.2", "rollout.logprob" */
    gr_category category;
    gr_place place;
    uint64_t bytes, offset; /* multiples of GR_ALIGN */
    uint32_t first, last;   /* steps of the iteration; from its number of steps on, those of validate */
} gr_entry;

/* A step of another role, in the same path. */
typedef struct gr_meeting {
    uint32_t role, step;
} gr_meeting;

/* One step. Entries are named by their index in the ledger. Arrays belong to the plan's pool. */
typedef struct gr_step {
    gr_step_kind kind;
    const char
        *what; /* run: "NODE.STEP" as the op declared it ("update.forward.3"); else the object or loop */
    const char *node; /* the node it serves; NULL: none */
    gr_lane lane;
    uint64_t bytes; /* moved by load, offload, fetch, store, save, restore; of gather, reduce, sync, exchange:
                     * what a rank receives; of send and recv: what all ranks of the role send or receive, the
                     * same on both sides */
    uint32_t *after, n_after;
    gr_meeting meets;           /* of a recv: the send */
    uint32_t *reads, n_reads;   /* load, store: the host copy; offload: the device copy; fetch: that on the
                                   disk; run: inputs */
    uint32_t *writes, n_writes; /* load: the device copy; fetch: the host copy; store: that on the disk;
                                   release: the entry that ends; resume: that begins */
    uint32_t body_last;         /* loop: last step of the body; else GR_NONE */
    uint32_t trips_max;         /* loop: most trips; else 0 */
    bool agreed;                /* loop: trips are decided while running; else always trips_max */
    uint64_t resident_bytes; /* device, the most during this step (a loop: and its body), copies included */
    uint64_t ns;             /* predicted, one execution; a loop: of all its trips */
} gr_step;

#define GR_PATH_MAP(X)          \
    X(STEADY, "steady")         \
    X(INIT, "init")             \
    X(RESUME, "resume")         \
    X(VALIDATE, "validate")     \
    X(CHECKPOINT, "checkpoint") \
    X(FINAL, "final")
typedef enum gr_path_id {
#define X(name, text) GR_PATH_##name,
    GR_PATH_MAP(X)
#undef X
        GR_N_PATHS
} gr_path_id;

/* Steps of one path. after and body_last count within the path. entry and exit: ledger entries that hold
 * contents when it begins and when it ends. */
typedef struct gr_path {
    gr_step *steps;
    uint32_t n;
    uint32_t *entry, n_entry, *exit, n_exit;
} gr_path;

/* A choice the planner made for a node, beyond where things lie: "kv_blocks" of "rollout". With the graph,
 * the settings say which task graph a plan is of. */
typedef struct gr_setting {
    const char *node, *name;
    uint64_t value;
} gr_setting;

/* The plan of a role of equal ranks. Of several roles, the first one's holds the others' in `more`; texts,
 * settings, budgets and the predicted time are those of all. */
typedef struct gr_plan {
    gr_arena *arena;                                      /* owns everything below */
    const char *graph, *graph_text, *hardware, *numerics; /* name; resolved text; profile; hash */
    const char *device;                                   /* "cpu" or "cuda": whose kernels it is for */
    const char *notes;                                    /* what had to change to fit, a line each; "" */
    const char
        *reasons; /* of what is not at its best: what one more would need, where, and save; a line each; "" */
    gr_setting *settings;
    uint32_t n_settings;
    uint64_t budget_bytes, host_budget_bytes;
    uint64_t disk_budget_bytes; /* 0: no disk is to be used */
    bool fits;
    uint64_t ns;       /* predicted, one iteration, of all roles */
    uint64_t own_ns;   /* of this role alone, as if it never waited for another */
    const char *ranks; /* "0", "0-7", "0-3,8" */
    const char *pools; /* of several roles: the names of the pools of these ranks, "train, ref"; else "" */
    uint32_t hosts;    /* that all ranks are on; 0: not said, they are of one role and on one host */
    uint32_t order;    /* of several roles: the order of transfers between them (scheduler/search/roles.h) */
    uint64_t arena_bytes, overhead_bytes,
        host_bytes;      /* peak_bytes = arena + overhead; host_bytes: the pool */
    uint64_t disk_bytes; /* of the file on the disk */
    uint64_t peak_bytes;
    uint32_t peak_step; /* counted as the ledger does */
    gr_entry *ledger;
    uint32_t n_ledger;
    gr_path paths[GR_N_PATHS];
    struct gr_plan **more; /* the other roles; of the first one only */
    uint32_t n_more;
} gr_plan;

void gr_plan_free(gr_plan *p); /* NULL is fine; the other roles with it */

/* Role c of 1 + n_more. */
static inline gr_plan *gr_plan_role(const gr_plan *p, uint32_t c)
{
    return c ? p->more[c - 1] : (gr_plan *)(uintptr_t)p;
}

#define GR_RANKS_MAX (1u << 20)

/* The spans of a list of ranks, "0-3,8": rising, none twice. */
typedef struct gr_rank_list {
    const char *at;
    uint32_t first, last; /* of the current span, both included */
    uint32_t end;         /* after the last one so far */
    bool bad;
} gr_rank_list;
void gr_rank_list_begin(gr_rank_list *l, const char *text);
bool gr_rank_list_next(gr_rank_list *l); /* false: that was all, or the list is bad */

/* How many ranks run it: 8 for "0-7", 5 for "0-3,8"; 0: it is no rising list. */
uint32_t gr_plan_ranks(const gr_plan *p);
/* Of all roles together; 0: one's ranks are no list. */
uint32_t gr_plan_all_ranks(const gr_plan *p);
/* The highest peak of the roles, and whether all fit. */
uint64_t gr_plan_peak(const gr_plan *p);
bool gr_plan_fits(const gr_plan *p);

/* Whether a step is a task of the task graph (memplan/plan/tasks.h), not a transition that the planner added.
 */
static inline bool gr_step_is_task(gr_step_kind k)
{
    return k == GR_STEP_RUN || k == GR_STEP_LOOP || k == GR_STEP_GATHER || k == GR_STEP_REDUCE ||
           k == GR_STEP_SYNC || k == GR_STEP_AGREE || k == GR_STEP_SEND || k == GR_STEP_RECV ||
           k == GR_STEP_EXCHANGE;
}

/* Steps as the ledger counts them: how many there are, and one of them. */
uint32_t gr_plan_steps(const gr_plan *p);
const gr_step *gr_plan_step(const gr_plan *p, uint32_t i);

/* Whether what it takes of each place is within the budgets. */
static inline bool gr_plan_within(const gr_plan *p, uint64_t device, uint64_t host, uint64_t disk)
{
    return p->peak_bytes <= device && p->host_bytes <= host && p->disk_bytes <= disk;
}

const char *gr_place_str(gr_place p);
const char *gr_lane_str(gr_lane l);
const char *gr_category_str(gr_category c);
const char *gr_step_kind_str(gr_step_kind k);
const char *gr_path_str(gr_path_id p);

/* Append the plan as JSON, with all its roles; the same plan gives the same bytes. */
void gr_plan_write_json(const gr_plan *p, gr_str *out);

/* Read it back. Every key, index, range and enum is checked; what is wrong is said with its JSON path. The
 * file has no notes ("" then) and no host budget (UINT64_MAX then). */
GR_NODISCARD gr_status gr_plan_read_json(gr_plan **out, const char *path, gr_diag *d);

#endif
