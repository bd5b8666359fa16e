/* memplan/plan/plan_json.c: a plan as JSON: the same plan, the same bytes. */
#include "memplan/plan/plan.h"

#include <inttypes.h>

static void put_string(gr_str *s, const char *text)
{
    gr_str_putc(s, '"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            gr_str_printf(s, "\\%c", *c);
        else if (*c == '\n')
            gr_str_puts(s, "\\n");
        else if (*c < 0x20)
            gr_str_printf(s, "\\u%04x", *c);
        else
            gr_str_putc(s, (char)*c);
    }
    gr_str_putc(s, '"');
}

static void put_text(gr_str *s, const char *key, const char *text)
{
    gr_str_printf(s, "\"%s\": ", key);
    if (text)
        put_string(s, text);
    else
        gr_str_puts(s, "null");
}

static void put_ids(gr_str *s, const char *key, const uint32_t *ids, uint32_t n)
{
    gr_str_printf(s, "\"%s\": [", key);
    for (uint32_t i = 0; i < n; i++) gr_str_printf(s, i ? ", %u" : "%u", ids[i]);
    gr_str_putc(s, ']');
}

/* Of a recv, the send that it meets is one more: "role:step". */
static void put_waits(gr_str *s, const gr_step *t)
{
    put_ids(s, "after", t->after, t->n_after);
    if (t->kind != GR_STEP_RECV) return;
    s->len--;
    gr_str_printf(s, "%s\"%u:%u\"]", t->n_after ? ", " : "", t->meets.role, t->meets.step);
}

/* Nanoseconds as seconds, without the rounding of a double. */
static void put_time(gr_str *s, const char *key, uint64_t ns)
{
    gr_str_printf(s, "\"%s\": %" PRIu64 ".%09" PRIu64, key, ns / 1000000000, ns % 1000000000);
}

static void put_seconds(gr_str *s, uint64_t ns)
{
    put_time(s, "seconds", ns);
}

static void put_entry(gr_str *s, uint32_t id, const gr_entry *e)
{
    gr_str_printf(s, "    {\"id\": %u, ", id);
    put_text(s, "what", e->what);
    gr_str_printf(s,
                  ", \"category\": \"%s\", \"bytes\": %" PRIu64 ", \"offset\": %" PRIu64
                  ", \"first\": %u, \"last\": %u, \"place\": \"%s\"}",
                  gr_category_str(e->category), e->bytes, e->offset, e->first, e->last,
                  gr_place_str(e->place));
}

static void put_step(gr_str *s, uint32_t i, const gr_step *t)
{
    gr_str_printf(s, "    {\"i\": %u, \"kind\": \"%s\", ", i, gr_step_kind_str(t->kind));
    put_text(s, "what", t->what);
    gr_str_puts(s, ", ");
    put_text(s, "node", t->node);
    gr_str_printf(s, ", \"bytes\": %" PRIu64 ", \"lane\": \"%s\", ", t->bytes, gr_lane_str(t->lane));
    put_waits(s, t);
    gr_str_puts(s, ", ");
    put_ids(s, "reads", t->reads, t->n_reads);
    gr_str_puts(s, ", ");
    put_ids(s, "writes", t->writes, t->n_writes);
    gr_str_printf(s, ", \"resident_bytes\": %" PRIu64 ", ", t->resident_bytes);
    put_seconds(s, t->ns);
    if (t->kind == GR_STEP_LOOP)
        gr_str_printf(s, ", \"body_last\": %u, \"trips_max\": %u, \"trips\": \"%s\"", t->body_last,
                      t->trips_max, t->agreed ? "agreed" : "static");
    gr_str_putc(s, '}');
}

static void put_steps(gr_str *s, const gr_path *p)
{
    gr_str_puts(s, "\"steps\": [");
    for (uint32_t i = 0; i < p->n; i++) {
        gr_str_puts(s, i ? ",\n" : "\n");
        put_step(s, i, &p->steps[i]);
    }
    gr_str_puts(s, p->n ? "\n   ]" : "]");
}

static void put_paths(gr_str *s, const gr_plan *p)
{
    gr_str_puts(s, "   \"paths\": {");
    for (int i = GR_PATH_STEADY + 1; i < GR_N_PATHS; i++) {
        const gr_path *path = &p->paths[i];
        gr_str_printf(s, "%s\n   \"%s\": {", i > GR_PATH_STEADY + 1 ? "," : "", gr_path_str(i));
        put_ids(s, "entry", path->entry, path->n_entry);
        gr_str_puts(s, ", ");
        put_ids(s, "exit", path->exit, path->n_exit);
        gr_str_puts(s, ", ");
        put_steps(s, path);
        gr_str_putc(s, '}');
    }
    gr_str_putc(s, '}');
}

static void put_settings(gr_str *s, const gr_plan *p)
{
    gr_str_puts(s, ",\n \"settings\": [");
    for (uint32_t i = 0; i < p->n_settings; i++) {
        gr_str_puts(s, i ? ", {" : "{");
        put_text(s, "node", p->settings[i].node);
        gr_str_puts(s, ", ");
        put_text(s, "name", p->settings[i].name);
        gr_str_printf(s, ", \"value\": %" PRIu64 "}", p->settings[i].value);
    }
    gr_str_puts(s, "], ");
    put_text(s, "notes", p->notes);
    if (!*p->reasons) return;
    gr_str_puts(s, ",\n ");
    put_text(s, "reasons", p->reasons);
}

/* A role of ranks; of several, its pools and its own time too. */
static void put_role(gr_str *s, const gr_plan *p, bool several)
{
    gr_str_putc(s, '{');
    put_text(s, "ranks", p->ranks);
    if (several) {
        gr_str_puts(s, ", ");
        put_text(s, "pools", p->pools);
        gr_str_puts(s, ", ");
        put_time(s, "own_seconds", p->own_ns);
    }
    gr_str_printf(s,
                  ", \"peak_bytes\": %" PRIu64 ", \"peak_step\": %u, \"arena_bytes\": %" PRIu64
                  ", \"overhead_bytes\": %" PRIu64 ", \"host_peak_bytes\": %" PRIu64,
                  p->peak_bytes, p->peak_step, p->arena_bytes, p->overhead_bytes, p->host_bytes);
    if (p->disk_budget_bytes) gr_str_printf(s, ", \"disk_peak_bytes\": %" PRIu64, p->disk_bytes);
    gr_str_puts(s, ",\n   \"ledger\": [");
    for (uint32_t e = 0; e < p->n_ledger; e++) {
        gr_str_puts(s, e ? ",\n" : "\n");
        put_entry(s, e, &p->ledger[e]);
    }
    gr_str_puts(s, p->n_ledger ? "\n   ],\n   " : "],\n   ");
    put_steps(s, &p->paths[GR_PATH_STEADY]);
    gr_str_puts(s, ",\n");
    put_paths(s, p);
    gr_str_putc(s, '}');
}

void gr_plan_write_json(const gr_plan *p, gr_str *s)
{
    gr_str_printf(s, "{\"version\": %d, ", GR_PLAN_VERSION);
    put_text(s, "graph", p->graph);
    gr_str_puts(s, ",\n ");
    put_text(s, "graph_text", p->graph_text);
    gr_str_puts(s, ",\n ");
    put_text(s, "hardware", p->hardware);
    gr_str_puts(s, ", ");
    put_text(s, "device", p->device);
    gr_str_puts(s, ", ");
    put_text(s, "numerics", p->numerics);
    put_settings(s, p);
    gr_str_printf(s,
                  ",\n \"peak_bytes\": %" PRIu64 ", \"budget_bytes\": %" PRIu64
                  ", \"host_budget_bytes\": %" PRIu64 ", ",
                  gr_plan_peak(p), p->budget_bytes, p->host_budget_bytes);
    if (p->disk_budget_bytes) gr_str_printf(s, "\"disk_budget_bytes\": %" PRIu64 ", ", p->disk_budget_bytes);
    gr_str_printf(s, "\"fits\": %s, ", gr_plan_fits(p) ? "true" : "false");
    put_seconds(s, p->ns);
    if (p->hosts) gr_str_printf(s, ", \"hosts\": %u", p->hosts);
    if (p->n_more) gr_str_printf(s, ", \"order\": %u", p->order);
    gr_str_puts(s, ",\n \"ranks\": [\n  ");
    for (uint32_t c = 0; c <= p->n_more; c++) {
        gr_str_puts(s, c ? ",\n  " : "");
        put_role(s, gr_plan_role(p, c), p->n_more > 0);
    }
    gr_str_puts(s, "\n ]}\n");
}
