/* scheduler/search/refuse.c: what is said where nothing fits: the instant, the bytes, and what would. */
#include "scheduler/search/schedule_parts.h"

#include <inttypes.h>
#include <stdlib.h>

enum { PRICE = 4 }; /* what would fit is priced by so small a part of a search */

static bool lives_at(const gr_entry *e, uint32_t i)
{
    return e->first <= e->last ? e->first <= i && i <= e->last : i >= e->first || i <= e->last;
}

/* The first step at which most bytes of a place are live. */
static uint32_t worst_step(const gr_plan *p, gr_place place)
{
    uint64_t most = 0;
    uint32_t worst = 0;
    for (uint32_t i = 0; i < gr_plan_steps(p); i++) {
        uint64_t live = 0;
        for (uint32_t e = 0; e < p->n_ledger; e++)
            if (p->ledger[e].place == place && lives_at(&p->ledger[e], i)) live += p->ledger[e].bytes;
        if (live > most) most = live, worst = i;
    }
    return worst;
}

/* "actor weights 2.31 GiB, ..." of what is live at a step: the largest of the groups of entries. */
static void add_culprits(gr_str *out, const gr_plan *p, gr_place place, uint32_t step)
{
    uint64_t sum[GR_N_CATEGORIES] = {0};
    for (uint32_t e = 0; e < p->n_ledger; e++)
        if (p->ledger[e].place == place && lives_at(&p->ledger[e], step))
            sum[p->ledger[e].category] += p->ledger[e].bytes;
    for (int shown = 0; shown < 3; shown++) {
        int top = 0;
        char buf[32];
        for (int c = 1; c < GR_N_CATEGORIES; c++)
            if (sum[c] > sum[top]) top = c;
        if (!sum[top]) break;
        gr_str_printf(out, "%s%s %s", shown ? ", " : "", gr_category_str(top),
                      gr_bytes_format(sum[top], buf));
        sum[top] = 0;
    }
}

void gr_note_fits(gr_diag *d, const char *what, uint64_t ns)
{
    gr_str time = {0};
    gr_time_put(&time, ns);
    gr_diag_note(d, (gr_loc){0}, "would fit: %s, with a predicted %s an iteration", what, time.text);
    gr_str_release(&time);
}

/* Whether something fits with other options: in a short search. Of what does, the host pool's bytes, where
 * those are asked for; and the time, by a search with just them that is about as good as a plan's; 0: nothing
 * does. */
static uint64_t time_with(const gr_schedule_search *s, gr_schedule_options o, uint64_t *host)
{
    uint32_t *level = gr_calloc(s->src->n_knobs + 1, sizeof(*level));
    gr_plan *p = NULL;
    uint64_t ns = 0;
    o.quick = true;
    bool fits = gr_schedule(&p, level, s->src, &o, NULL) == GR_OK;
    if (fits && host) o.host_budget_bytes = *host = p->host_bytes;
    gr_plan_free(p);
    o.quick = false;
    o.hurry = GR_MAX(o.hurry, (uint32_t)PRICE);
    if (fits) {
        fits = gr_schedule(&p, level, s->src, &o, NULL) == GR_OK;
        if (fits) ns = GR_MAX(p->ns, (uint64_t)1);
        gr_plan_free(p);
    }
    free(level);
    return ns;
}

static void suggest(const gr_schedule_search *s, const gr_schedule_options *o, const char *what, gr_diag *d)
{
    const uint64_t ns = time_with(s, *o, NULL);
    if (ns) gr_note_fits(d, what, ns);
}

/* Where the device has room enough for what the host pool cannot take. */
static void suggest_host(const gr_schedule_search *s, gr_diag *d)
{
    gr_schedule_options o = *s->o;
    char text[32];
    uint64_t host;
    o.host_budget_bytes = UINT64_MAX;
    const uint64_t ns = time_with(s, o, &host);
    if (!ns) return;
    char *what = gr_printf("--host-budget %" PRIu64 " (%s)", host, gr_bytes_format(host, text));
    gr_note_fits(d, what, ns);
    free(what);
}

static void suggest_options(const gr_schedule_search *s, bool host, gr_diag *d)
{
    gr_schedule_options o = *s->o;
    if (!host && o.parts < 2) suggest_host(s, d); /* of one role: others may lack what the host cannot have */
    if (o.bits == GR_BITS_KEEP) {
        o.bits = GR_BITS_FIT;
        suggest(s, &o, "with run.bits=fit", d);
    }
    if (!o.policy && !o.n_rules) return;
    const char *what = o.n_rules ? "'auto' for all in 'residency' and --policy" : "--policy auto";
    o = *s->o;
    o.policy = GR_POLICY_AUTO;
    o.n_rules = 0;
    suggest(s, &o, what, d);
}

gr_status gr_refuse(const gr_schedule_search *s, const gr_plan *p, gr_diag *d)
{
    const gr_schedule_options *o = s->o;
    bool host = p->peak_bytes <= o->budget_bytes;
    gr_place place = host ? GR_HOST : GR_DEVICE;
    uint64_t need = host ? p->host_bytes : p->peak_bytes,
             have = host ? o->host_budget_bytes : o->budget_bytes;
    uint32_t at = worst_step(p, place);
    gr_str culprits = {0};
    add_culprits(&culprits, p, place, at);
    char a[32], b[32], c[32];
    gr_diag_error(d, (gr_loc){0}, GR_E_NOFIT,
                  "the smallest plan found needs %s of %s memory and the budget is %s: %s missing at step %u "
                  "'%s'; alive "
                  "then: %s",
                  gr_bytes_format(need, a), host ? "host" : "device", gr_bytes_format(have, b),
                  gr_bytes_format(need - have, c), at, gr_plan_step(p, at)->what,
                  culprits.len ? culprits.text : "nothing");
    gr_str_release(&culprits);
    if (o->parts < 2) gr_note_budgets(d, o, p->peak_bytes, p->host_bytes);
    if (d && !o->quick) suggest_options(s, host, d);
    return GR_E_NOFIT;
}
