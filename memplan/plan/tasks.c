/* memplan/plan/tasks.c: task graphs while they are built: objects, tasks, loops. */
#include "memplan/plan/tasks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

gr_tasks *gr_tasks_new(void)
{
    gr_tasks *p = gr_calloc(1, sizeof(*p));
    p->arena = gr_arena_new();
    p->ranks = 1;
    p->validate = GR_NONE;
    return p;
}

void gr_tasks_free(gr_tasks *p)
{
    if (!p) return;
    gr_arena_free(p->arena);
    free(p->objects);
    free(p->task);
    gr_index_release(&p->names);
    gr_str_release(&p->name);
    free(p);
}

void gr_tasks_validate(gr_tasks *p, uint32_t every)
{
    assert(p->validate == GR_NONE && p->n_tasks && !p->depth && every);
    p->validate = (uint32_t)p->n_tasks;
    p->validate_every = every;
    for (uint32_t m = 0; m < p->n_placed; m++) p->placed[m].made = 0;
}

uint32_t gr_tasks_steady(const gr_tasks *p)
{
    return p->validate == GR_NONE ? (uint32_t)p->n_tasks : p->validate;
}

void gr_tasks_node(gr_tasks *p, const char *node, gr_lane lane, bool optional)
{
    p->node = gr_arena_strdup(p->arena, node);
    p->lane = lane;
    p->optional = optional;
    p->rollout = p->lagged = false;
}

uint32_t gr_tasks_find(const gr_tasks *p, const char *name)
{
    return gr_index_find(&p->names, name, strlen(name));
}

uint32_t gr_tasks_object(gr_tasks *p, const gr_object *o)
{
    uint64_t bytes = o->bytes ? gr_align(o->bytes, GR_ALIGN) : GR_ALIGN;
    uint32_t found = gr_tasks_find(p, o->name);
    if (found != GR_NONE) {
        const gr_object *f = &p->objects[found];
        assert(f->bytes == bytes && f->category == o->category && f->span == o->span && f->place == o->place);
        (void)f;
        return found;
    }
    gr_object copy = *o;
    copy.name = gr_arena_strdup(p->arena, o->name);
    copy.model = o->model ? gr_arena_strdup(p->arena, o->model) : NULL;
    copy.bytes = bytes;
    gr_index_add(&p->names, copy.name, (uint32_t)p->n_objects);
    GR_PUSH(p->objects, p->n_objects, p->cap_objects, copy);
    return (uint32_t)p->n_objects - 1;
}

/* "NODE.what", until the next one is asked for: nearly all are of objects that are there already. */
GR_PRINTF(2, 0) static const char *node_name(gr_tasks *p, const char *fmt, va_list ap)
{
    assert(p->node);
    p->name.len = 0;
    gr_str_puts(&p->name, p->node);
    gr_str_putc(&p->name, '.');
    gr_str_vprintf(&p->name, fmt, ap);
    return p->name.text;
}

static uint32_t add_temp(gr_tasks *p, gr_category c, gr_place place, uint64_t bytes, const char *name)
{
    return gr_tasks_object(p, &(gr_object){.name = name,
                                           .category = c,
                                           .span = GR_SPAN_TEMP,
                                           .place = place,
                                           .bytes = bytes,
                                           .bucket = GR_NONE});
}

uint32_t gr_tasks_spill(gr_tasks *p, gr_category c, const char *model, uint64_t bytes, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *name = node_name(p, fmt, ap);
    va_end(ap);
    return gr_tasks_object(p, &(gr_object){.name = name,
                                           .category = c,
                                           .span = GR_SPAN_SPILL,
                                           .place = GR_DEVICE,
                                           .bytes = bytes,
                                           .model = model,
                                           .bucket = GR_NONE});
}

uint32_t gr_tasks_temp(gr_tasks *p, gr_category c, uint64_t bytes, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *name = node_name(p, fmt, ap);
    va_end(ap);
    return add_temp(p, c, GR_DEVICE, bytes, name);
}

uint32_t gr_tasks_host(gr_tasks *p, gr_category c, uint64_t bytes, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *name = node_name(p, fmt, ap);
    va_end(ap);
    return add_temp(p, c, GR_HOST, bytes, name);
}

uint32_t gr_tasks_value(gr_tasks *p, gr_category c, uint64_t bytes, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *name = node_name(p, fmt, ap);
    va_end(ap);
    return add_temp(p, c, p->values, bytes, name);
}

static gr_task *add_task(gr_tasks *p, const char *what, uint32_t kernel, uint32_t arg)
{
    gr_task w = {.what = what,
                 .node = p->node,
                 .kind = GR_STEP_RUN,
                 .lane = p->lane,
                 .comm.peer = GR_NONE,
                 .kernel = kernel,
                 .arg = arg,
                 .loop.body_last = GR_NONE,
                 .uses.host_with = GR_NONE,
                 .optional = p->optional,
                 .rollout = p->rollout};
    GR_PUSH(p->task, p->n_tasks, p->cap_tasks, w);
    return &p->task[p->n_tasks - 1];
}

gr_task *gr_tasks_run(gr_tasks *p, uint32_t kernel, uint32_t arg, const gr_use *uses, size_t n,
                      const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *what = gr_arena_strdup(p->arena, node_name(p, fmt, ap));
    va_end(ap);
    gr_task *w = add_task(p, what, kernel, arg);
    w->uses.list = gr_arena_alloc(p->arena, (n ? n : 1) * sizeof(*uses));
    w->uses.n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        assert(uses[i].object == GR_NONE || uses[i].object < p->n_objects);
        for (size_t j = 0; j < i; j++) assert(uses[i].object == GR_NONE || uses[i].object != uses[j].object);
        w->uses.list[i] = uses[i];
    }
    return w;
}

gr_task *gr_tasks_loop(gr_tasks *p, uint32_t kernel, uint32_t trips_max, bool agreed, const char *what)
{
    assert(p->node && p->depth < GR_LEN(p->loops) && trips_max > 0);
    gr_task *w = add_task(p, gr_arena_printf(p->arena, "%s.%s", p->node, what), kernel, 0);
    w->loop.trips_max = w->loop.trips_expected = trips_max;
    w->loop.agreed = agreed;
    w->kind = GR_STEP_LOOP;
    w->uses.by_code = true;
    w->lane = GR_LANE_COMPUTE; /* the lane that decides */
    p->loops[p->depth++] = (uint32_t)p->n_tasks - 1;
    return w;
}

void gr_tasks_waits(gr_task *w)
{
    w->uses.by_code = w->uses.waits = true;
}

void gr_tasks_end(gr_tasks *p)
{
    assert(p->depth > 0);
    uint32_t loop = p->loops[--p->depth];
    assert(p->n_tasks - 1 > loop); /* an empty body is no loop */
    p->task[loop].loop.body_last = (uint32_t)p->n_tasks - 1;
}
