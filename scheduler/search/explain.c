/* scheduler/search/explain.c: why what is not at its best is not: the instant, the bytes, and what it costs.
 */
#include "scheduler/search/schedule_parts.h"

#include <string.h>

static const char *what_of(const gr_analysis *f, const gr_item *it)
{
    return it->work == GR_NONE ? f->g->objects[it->object].name : f->g->task[it->work].what;
}

/* What is missing for what was placed last, and where; false: nothing is. */
static bool put_missing(gr_schedule_search *s, uint32_t set, gr_str *out)
{
    const gr_transfers *l = &s->transfers;
    const gr_analysis *f = gr_level_set_take(s, set)->analysis;
    const gr_excess device = gr_transfers_excess(l, f, GR_DEVICE, gr_arena_budget(s, set, l->host_live)),
                    host = gr_transfers_excess(l, f, GR_HOST, gr_host_room(s, set)),
                    *most = device.most >= host.most ? &device : &host;
    char bytes[32];
    if (!most->most) return false;
    gr_str_printf(out, " would need %s more %s memory than there is at '%s', and save ",
                  gr_bytes_format(most->most, bytes), most == &device ? "device" : "host",
                  what_of(f, &l->items[most->at]));
    return true;
}

/* " would need 1.2 GiB more device memory than there is at 'update.norm', and save 0.3 s". */
static void put_price(gr_schedule_search *s, const gr_stand *now, gr_stand *next, gr_str *out)
{
    gr_stand_price(s, next, true);
    const bool faster = next->ns < now->ns;
    gr_stand_place(s, next); /* bytes are those before loads are moved up */
    const bool missing = put_missing(s, next->set, out);
    if (!missing) gr_str_puts(out, " would save ");
    if (faster)
        gr_time_put(out, now->ns - next->ns);
    else
        gr_str_puts(out, "nothing");
    gr_str_puts(out, faster && !missing ? ", but no offsets were found for it\n" : "\n");
}

static void explain_knob(gr_schedule_search *s, const gr_stand *now, size_t k, gr_str *out)
{
    const uint32_t better = s->sets[now->set].level[k] - 1;
    gr_stand next = gr_stand_at_level(s, now, k, better);
    gr_str_printf(out, "%s: ", s->src->knobs[k].name);
    if (s->src->describe)
        s->src->describe(s->src->user, k, better, out);
    else
        gr_str_printf(out, "level %u", better);
    put_price(s, now, &next, out);
}

/* Of what would not be any faster nothing is said: it is where it should be. */
static void explain_group(gr_schedule_search *s, const gr_stand *now, uint32_t g, gr_str *out)
{
    const gr_analysis *f = gr_level_set_take(s, now->set)->analysis;
    const gr_group *x = &f->groups[g];
    gr_stand next = *now;
    next.choice = gr_arena_alloc(s->arena, (f->n_groups + 1) * sizeof(*next.choice));
    memcpy(next.choice, now->choice, f->n_groups * sizeof(*next.choice));
    next.choice[g].parts = gr_group_more(x, now->choice[g].parts);
    if (next.choice[g].parts == GR_PARTS) next.choice[g] = (gr_choice){.parts = GR_PARTS};
    gr_stand_price(s, &next, true);
    if (next.ns >= now->ns) return;
    gr_str_printf(out, "%s: %u of %u stay on the device; one more", x->name,
                  gr_group_stays(x, now->choice[g].parts), x->n_objects);
    put_price(s, now, &next, out);
}

const char *gr_explain(gr_schedule_search *s, const gr_residency *taken, gr_arena *arena)
{
    gr_stand now = {.set = taken->level, .choice = taken->choice, .ahead = taken->ahead};
    gr_str text = {0};
    gr_stand_price(s, &now, true);
    for (size_t k = 0; k < s->src->n_knobs; k++)
        if (s->sets[now.set].level[k]) explain_knob(s, &now, k, &text);
    const uint32_t n_groups = gr_level_set_take(s, now.set)->analysis->n_groups;
    for (uint32_t g = 0; g < n_groups; g++)
        if (now.choice[g].parts < GR_PARTS && !now.choice[g].policy) explain_group(s, &now, g, &text);
    const char *reasons = text.len ? gr_arena_strdup(arena, text.text) : "";
    gr_str_release(&text);
    return reasons;
}
