/* tests/unit/plan_edit.h: valid plans, and changes to them that keep their indices right. */
#ifndef GR_TESTS_PLAN_EDIT_H
#define GR_TESTS_PLAN_EDIT_H

#include "memplan/verify/verify.h"
#include "scheduler/search/build.h"
#include "tests/unit/synthetic.h"

/* A plan for a budget a good part below what all resident takes, with transitions of all kinds. */
static inline gr_plan *tight_plan(gr_tasks *(*build)(void *, const uint32_t *), void *user, uint32_t percent)
{
    gr_tasks_source src = {.user = user, .build = build};
    gr_schedule_options o = {.hardware = machine(),
                             .policy = GR_POLICY_AUTO,
                             .budget_bytes = 1ULL << 40,
                             .host_budget_bytes = 1ULL << 40};
    gr_plan *p = NULL;
    assert_int_equal(gr_schedule(&p, NULL, &src, &o, NULL), GR_OK);
    if (percent == 100) return p;
    gr_plan *whole = p;
    o.budget_bytes = o.hardware.overhead_bytes + whole->arena_bytes * percent / 100;
    if (gr_schedule(&p, NULL, &src, &o, NULL) == GR_OK) {
        gr_plan_free(whole);
        return p;
    }
    gr_plan_free(p);
    return whole;
}

/* A program like GRPO, of whose state much may lie on a disk: of any form, with sizes that are no whole
 * blocks. */
static inline gr_tasks *build_stateful(void *user, const uint32_t *level)
{
    const uint64_t seed = *(const uint64_t *)user;
    shape s = SMALL;
    s.layers = 2 + seed % 3, s.micro = s.decode = 2, s.mini = 1 + seed % 2;
    s.layer_bytes = (1 << 16) + GR_ALIGN * (seed % 5), s.act_bytes = 1 << 14, s.kv_bytes = 1 << 16;
    s.optional_ref = seed % 3 == 0, s.validates = seed % 4 == 1, s.host_step = seed % 4 > 1;
    return build_shape(&s, level);
}

/* The same with a part of the host pool that it takes, and a disk; on_host: optimizer steps are done on the
 * host. NULL: nothing has to go to the disk, or nothing fits. */
static inline gr_plan *disk_plan(gr_tasks *(*build)(void *, const uint32_t *), void *user, uint32_t percent,
                                 uint32_t of_host, bool on_host)
{
    static const gr_rule host = {"actor", GR_CAT_OPTIMIZER, GR_POLICY_HOST};
    gr_tasks_source src = {.user = user, .build = build};
    gr_plan *whole = tight_plan(build, user, percent), *p = NULL;
    gr_schedule_options o = {.hardware = machine(),
                             .policy = GR_POLICY_AUTO,
                             .rules = &host,
                             .n_rules = on_host,
                             .budget_bytes = whole->peak_bytes,
                             .host_budget_bytes = 1ULL << 40};
    gr_plan_free(whole);
    (void)!gr_schedule(&whole, NULL, &src, &o, NULL);
    o.host_budget_bytes = whole->host_bytes * of_host / 100;
    o.disk_budget_bytes = 1ULL << 40;
    gr_plan_free(whole);
    const bool fits = !gr_schedule(&p, NULL, &src, &o, NULL);
    if (fits && p->disk_bytes) return p;
    gr_plan_free(p);
    return NULL;
}

/* The plan of a program as it stands: nothing moves, and it fits. */
static inline gr_plan *still_plan(const gr_tasks *g, const char *ranks)
{
    const gr_hardware hw = machine();
    gr_analysis *f = gr_analysis_new(g, &hw);
    gr_transfers l = {0};
    const gr_choice stays[1] = {{0}};
    gr_transfers_make(&l, f, stays, 0);
    gr_plan *p = gr_plan_pack(&l, f, NULL, (gr_apart){0, 0}, 10);
    gr_plan_finish(p, &l, f);
    p->ranks = ranks;
    p->budget_bytes = p->host_budget_bytes = 1ULL << 40;
    p->fits = true;
    gr_transfers_release(&l);
    gr_analysis_free(f);
    return p;
}

static inline gr_plan *copy_plan(const gr_plan *p)
{
    char path[64];
    snprintf(path, sizeof(path), "/tmp/graphrun-verify-%d.json", (int)getpid());
    gr_str text = {0};
    gr_plan_write_json(p, &text);
    FILE *f = fopen(path, "w");
    assert_int_equal(fwrite(text.text, 1, text.len, f), text.len);
    fclose(f);
    gr_str_release(&text);
    gr_plan *copy = NULL;
    assert_int_equal(gr_plan_read_json(&copy, path, NULL), GR_OK);
    unlink(path);
    return copy;
}

static inline bool accepted(const gr_plan *p, const gr_tasks *g, gr_str *why)
{
    gr_diag d;
    gr_diag_init(&d);
    bool ok = gr_plan_verify(p, g, &d) == GR_OK;
    assert_int_equal(ok, d.n == 0);
    if (why) why->len = 0;
    for (size_t i = 0; why && i < d.n; i++) gr_str_printf(why, "%s\n", d.messages[i].text);
    gr_diag_release(&d);
    return ok;
}

/* Numbers of steps after one was taken out of a path or put in: waits, bodies and lifetimes follow. */
static inline uint32_t moved(uint32_t x, uint32_t at, int by)
{
    return x == GR_NONE || x < at || (by < 0 && x == at) ? x : (uint32_t)((int)x + by);
}

static inline void renumber(gr_plan *p, gr_path_id id, uint32_t at, int by)
{
    gr_path *path = &p->paths[id];
    for (uint32_t i = 0; i < path->n; i++) {
        path->steps[i].body_last =
            by < 0 && path->steps[i].body_last == at ? at - 1 : moved(path->steps[i].body_last, at, by);
        for (uint32_t k = 0; k < path->steps[i].n_after; k++)
            path->steps[i].after[k] = moved(path->steps[i].after[k], at, by);
    }
    if (id == GR_PATH_VALIDATE) at += p->paths[GR_PATH_STEADY].n; /* as the ledger counts */
    if (id != GR_PATH_STEADY && id != GR_PATH_VALIDATE) return;
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        p->ledger[e].first = moved(p->ledger[e].first, at, by);
        p->ledger[e].last =
            by < 0 && p->ledger[e].last == at && at ? at - 1 : moved(p->ledger[e].last, at, by);
    }
    p->peak_step = moved(p->peak_step, at, by);
}

static inline void delete_step(gr_plan *p, gr_path_id id, uint32_t at)
{
    gr_path *path = &p->paths[id];
    for (uint32_t i = 0; i < path->n; i++) { /* nobody waits for it any more */
        gr_step *s = &path->steps[i];
        uint32_t n = 0;
        for (uint32_t k = 0; k < s->n_after; k++)
            if (s->after[k] != at) s->after[n++] = s->after[k];
        s->n_after = n;
    }
    renumber(p, id, at, -1);
    memmove(&path->steps[at], &path->steps[at + 1], (path->n - at - 1) * sizeof(gr_step));
    path->n--;
    uint32_t last = gr_plan_steps(p) - 1;
    for (uint32_t e = 0; e < p->n_ledger && (id == GR_PATH_STEADY || id == GR_PATH_VALIDATE); e++)
        p->ledger[e].last = GR_MIN(p->ledger[e].last, last),
        p->ledger[e].first = GR_MIN(p->ledger[e].first, last);
}

/* The same step again, right behind it. The array has a spare place (see gr_plan_read_json). */
static inline void double_step(gr_plan *p, gr_path_id id, uint32_t at)
{
    gr_path *path = &p->paths[id];
    gr_step *grown = gr_arena_alloc(p->arena, (path->n + 1) * sizeof(gr_step));
    renumber(p, id, at + 1, 1);
    memcpy(grown, path->steps, (at + 1) * sizeof(gr_step));
    memcpy(grown + at + 1, path->steps + at, (path->n - at) * sizeof(gr_step));
    path->steps = grown;
    path->n++;
}

/* A step goes to another place of its path, and nobody waits for it any more; what it waits for itself
 * follows. */
static inline void move_step(gr_plan *p, gr_path_id id, uint32_t from, uint32_t to)
{
    gr_path *path = &p->paths[id];
    gr_step s = path->steps[from];
    for (uint32_t k = 0; k < s.n_after; k++) s.after[k] = moved(moved(s.after[k], from, -1), to, 1);
    delete_step(p, id, from);
    renumber(p, id, to, 1);
    memmove(&path->steps[to + 1], &path->steps[to], (path->n - to) * sizeof(gr_step));
    path->steps[to] = s;
    path->n++;
}

/* Two steps change places; what names them follows or stays. */
static inline void swap_steps(gr_plan *p, gr_path_id id, uint32_t a, uint32_t b)
{
    gr_path *path = &p->paths[id];
    gr_step t = path->steps[a];
    path->steps[a] = path->steps[b];
    path->steps[b] = t;
}

/* What is resident at each step, as the ledger says. */
static inline void fix_resident(gr_plan *p)
{
    gr_path *path = &p->paths[GR_PATH_STEADY];
    for (uint32_t i = path->n; i-- > 0;) {
        gr_step *s = &path->steps[i];
        s->resident_bytes = 0;
        for (uint32_t e = 0; e < p->n_ledger; e++)
            if (p->ledger[e].place == GR_DEVICE && p->ledger[e].first <= i && i <= p->ledger[e].last)
                s->resident_bytes += p->ledger[e].bytes;
        for (uint32_t j = i + 1; s->kind == GR_STEP_LOOP && j <= s->body_last; j++)
            s->resident_bytes = GR_MAX(s->resident_bytes, path->steps[j].resident_bytes);
    }
}

static inline void refuse(const gr_plan *p, const gr_tasks *g, const char *rule)
{
    gr_str why = {0};
    assert_false(accepted(p, g, &why));
    if (!strstr(why.text, rule)) fail_msg("not because of '%s': %s", rule, why.text);
    gr_str_release(&why);
}

/* Whether loop step i lies between a copy's step and the copy's first use, and no copy is in the loop. */
static inline bool is_passed(const gr_path *path, uint32_t load, uint32_t i)
{
    const gr_step *loop = &path->steps[i];
    bool used = false;
    if (loop->kind != GR_STEP_LOOP || load > i) return false;
    for (uint32_t k = load + 1; k <= loop->body_last; k++) {
        const gr_step *s = &path->steps[k];
        if (s->kind == GR_STEP_LOOP && s->body_last > loop->body_last) return false;
        used |= k > i && s->lane == GR_LANE_H2D;
        for (uint32_t u = 0; u < s->n_reads; u++) used |= s->reads[u] == path->steps[load].writes[0];
        for (uint32_t u = 0; u < s->n_writes; u++) used |= s->writes[u] == path->steps[load].writes[0];
    }
    return !used;
}

/* A load of the iteration that may run while a whole loop does, and the first such loop; false: none may. */
static inline bool find_passing(const gr_plan *p, uint32_t *load, uint32_t *loop)
{
    const gr_path *path = &p->paths[GR_PATH_STEADY];
    for (*load = 0; *load < path->n; ++*load)
        for (*loop = *load + 1; path->steps[*load].kind == GR_STEP_LOAD && *loop < path->n; ++*loop)
            if (is_passed(path, *load, *loop)) return true;
    return false;
}

static inline uint32_t find_step(const gr_plan *p, gr_step_kind kind, uint32_t from)
{
    for (uint32_t i = from; i < p->paths[GR_PATH_STEADY].n; i++)
        if (p->paths[GR_PATH_STEADY].steps[i].kind == kind) return i;
    fail_msg("no step of kind %s", gr_step_kind_str(kind));
    return 0;
}

#endif
