/* scheduler/report/draw_svg.c: a plan as a picture: memory over time, lanes. */
#include "scheduler/report/draw.h"

#include "scheduler/report/facts.h"
#include "scheduler/report/picture.h"

#include <stdlib.h>
#include <string.h>

enum { WIDTH = 1304, LEFT = 84, RIGHT = 300, MEMORY = 330, HOST = 96, ROW = 26, STRIP = 20, LEGEND = 17 };

typedef struct picture {
    const gr_view *v;
    gr_str *out;
    uint64_t *reached;  /* [n + 1] of the view's steps: when each is, the steps before it too; and the end */
    gr_place place;     /* of the panel being drawn */
    double top, height; /* of it, pixels */
    uint64_t most;      /* bytes at its upper edge */
    uint64_t ns;        /* at the right edge, of all roles */
} picture;

static const double plot = WIDTH - LEFT - RIGHT;
static const char overhead_colour[] = "#bbbbbb";

static double time_x(const picture *c, uint64_t ns)
{
    return LEFT + plot * (double)ns / (double)GR_MAX(c->ns, (uint64_t)1);
}

/* Where step i begins in a chart of memory. */
static double step_x(const picture *c, uint32_t i)
{
    return time_x(c, c->reached[i]);
}

/* A step of another lane may begin before those in front of it: memory is drawn in the order of steps. */
static void show_view(picture *c, const gr_view *v)
{
    c->v = v;
    free(c->reached);
    c->reached = gr_calloc(v->n + 2, sizeof(*c->reached));
    for (uint32_t i = 0; i < v->n; i++) {
        c->reached[i] = GR_MAX(v->begin[i], i ? c->reached[i - 1] : 0);
        c->reached[v->n] = GR_MAX(c->reached[v->n], GR_MAX(v->end[i], c->reached[i]));
    }
}

static double byte_y(const picture *c, uint64_t bytes)
{
    return c->top + c->height * (1 - (double)bytes / (double)GR_MAX(c->most, (uint64_t)1));
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* The upper edge of a stack, from left to right or back: M or L to its begin first. */
static void put_edge(const picture *c, const uint64_t *height, bool back)
{
    uint32_t n = c->v->n;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = back ? n - 1 - k : k, last = i;
        while (k + 1 < n && height[back ? last - 1 : last + 1] == height[i]) last += back ? -1 : 1, k++;
        double y = byte_y(c, height[i]);
        if (!back && i == 0) gr_str_printf(c->out, "M%.1f %.1f", step_x(c, 0), y);
        gr_str_printf(c->out, "V%.1fH%.1f", y, step_x(c, back ? last : last + 1));
    }
}

static void put_area(const picture *c, const char *name, const char *colour, uint64_t most,
                     const uint64_t *under, const uint64_t *over)
{
    char buf[32];
    gr_str_printf(c->out, "<path class=\"area\" fill=\"%s\" d=\"", colour);
    put_edge(c, over, false);
    put_edge(c, under, true);
    gr_str_puts(c->out, "Z\"><title>");
    gr_xml_put(c->out, name);
    gr_str_printf(c->out, ": at most %s</title></path>\n", gr_bytes_format(most, buf));
}

static void put_swatch(const picture *c, double x, double y, const char *colour)
{
    gr_str_printf(c->out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"11\" height=\"11\" rx=\"2\" fill=\"%s\"/>", x,
                  y - 9.5, colour);
}

static void put_legend(const picture *c, double y, const char *name, const char *colour, uint64_t most)
{
    char buf[32];
    double x = WIDTH - RIGHT + 18;
    put_swatch(c, x, y, colour);
    gr_text_cut(c->out, x + 18, y, RIGHT - 18 - 18 - 92, "legend", name);
    gr_text_put(c->out, WIDTH - 14, y, "legend end", gr_bytes_format(most, buf));
}

static uint32_t legend_rows(const gr_view *v, gr_place place)
{
    uint32_t rows = place == GR_DEVICE && v->plan->overhead_bytes;
    for (uint32_t k = 0; k < v->n_series; k++) rows += v->series[k].place == place;
    return rows;
}

/* The stack of a place, from the overhead up, and its legend from the top down. */
static void put_stack(const picture *c)
{
    const gr_view *v = c->v;
    uint64_t *under = gr_calloc(v->n + 1, sizeof(*under)), *over = gr_calloc(v->n + 1, sizeof(*over));
    uint64_t overhead = c->place == GR_DEVICE ? v->plan->overhead_bytes : 0;
    double y = c->top + 10 + LEGEND * legend_rows(v, c->place);
    for (uint32_t i = 0; i < v->n; i++) over[i] = overhead;
    if (overhead) {
        put_area(c, "overhead", overhead_colour, overhead, under, over);
        put_legend(c, y -= LEGEND, "overhead", overhead_colour, overhead);
    }
    for (uint32_t k = 0; k < v->n_series; k++) {
        const gr_series *s = &v->series[k];
        if (s->place != c->place) continue;
        memcpy(under, over, v->n * sizeof(*under));
        for (uint32_t i = 0; i < v->n; i++) over[i] += s->bytes[i];
        put_area(c, s->name, s->colour, s->most, under, over);
        put_legend(c, y -= LEGEND, s->name, s->colour, s->most);
    }
    free(under);
    free(over);
}

static void put_bytes_axis(const picture *c)
{
    uint64_t tick = gr_tick_bytes(c->most, c->height < 150 ? 3 : 6);
    char buf[32];
    for (uint64_t b = 0; b <= c->most; b += tick) {
        double y = byte_y(c, b);
        gr_str_printf(c->out, "<path class=\"grid\" d=\"M%d %.1fH%.1f\"/>", LEFT, y, LEFT + plot);
        gr_text_put(c->out, LEFT - 8, y + 4, "axis end", gr_tick_format(b, buf));
    }
}

/* A text over the line of the budget, beside its own: at the other side. */
static bool peak_is_right(const picture *c)
{
    const uint32_t at = c->v->plan->peak_step;
    return (step_x(c, at) + step_x(c, at + 1)) / 2 > LEFT + plot * 0.5;
}

static void put_peak(const picture *c)
{
    const gr_plan *p = c->v->plan;
    char a[32];
    if (!c->v->n) return;
    const double x = (step_x(c, p->peak_step) + step_x(c, p->peak_step + 1)) / 2,
                 y = byte_y(c, p->peak_bytes), line = byte_y(c, p->budget_bytes),
                 text_y = line < y - 26 || line > y ? y - 10 : line - 6;
    const bool right = peak_is_right(c);
    gr_str_printf(c->out, "<circle class=\"peak\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", x, y);
    char *text = gr_printf("peak %s: step %u %s", gr_bytes_format(p->peak_bytes, a), p->peak_step,
                           c->v->steps[p->peak_step].what);
    gr_text_put(c->out, right ? x + 5 : x - 5, text_y, right ? "peak-text end" : "peak-text", text);
    free(text);
}

static void put_budget(const picture *c, uint64_t budget)
{
    char buf[32];
    if (budget > c->most) return;
    const bool left = c->place == GR_HOST || peak_is_right(c);
    double y = byte_y(c, budget);
    char *text = gr_printf("budget %s", gr_bytes_format(budget, buf));
    gr_str_printf(c->out, "<path class=\"budget\" d=\"M%d %.1fH%.1f\"/>", LEFT, y, LEFT + plot);
    gr_text_put(c->out, left ? LEFT + 6 : LEFT + plot - 6, y - 5, left ? "budget-text" : "budget-text end",
                text);
    free(text);
}

static void put_memory(picture *c, gr_place place, double height, uint64_t peak, uint64_t budget)
{
    bool near = budget <= peak + peak / 2;
    c->place = place;
    c->height = height;
    c->most = near ? GR_MAX(budget, peak) + GR_MAX(budget, peak) / 12 : peak + peak / 8;
    put_stack(c);
    put_bytes_axis(c);
    put_budget(c, budget);
    if (place == GR_DEVICE) put_peak(c);
    c->top += height;
}

/* What the panel is high at least, for its legend not to meet what follows. */
static double panel_height(const gr_view *v, gr_place place, double height)
{
    return GR_MAX(height, (double)LEGEND * legend_rows(v, place));
}

/* ---- what fills the peak ------------------------------------------------------------------------------ */

typedef struct part {
    const char *name, *colour;
    uint64_t bytes;
} part;

static int by_bytes(const void *a, const void *b)
{
    const part *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes > y->bytes ? -1 : 1) : strcmp(x->name, y->name);
}

/* What is on the device at the peak, the largest first; returns how many. Caller frees. */
static uint32_t peak_parts(const gr_view *v, part **out)
{
    part *parts = gr_calloc(v->n_series + 2, sizeof(*parts));
    uint32_t n = 0;
    if (v->plan->overhead_bytes) parts[n++] = (part){"overhead", overhead_colour, v->plan->overhead_bytes};
    for (uint32_t k = 0; k < v->n_series && v->n; k++) {
        const gr_series *s = &v->series[k];
        const uint64_t bytes = s->bytes[v->plan->peak_step];
        if (s->place == GR_DEVICE && bytes) parts[n++] = (part){s->name, s->colour, bytes};
    }
    qsort(parts, n, sizeof(*parts), by_bytes);
    *out = parts;
    return n;
}

/* Names of the parts under the bar, as many lines as they take. */
static void put_part_names(picture *c, const part *parts, uint32_t n)
{
    double x = 20;
    char buf[32];
    for (uint32_t i = 0; i < n; i++) {
        char *text = gr_printf("%s %s", parts[i].name, gr_bytes_format(parts[i].bytes, buf));
        const double width = 18 + gr_text_width(text) + 18;
        if (x + width > WIDTH - 14 && x > 20) x = 20, c->top += LEGEND;
        put_swatch(c, x, c->top + 12, parts[i].colour);
        gr_text_put(c->out, x + 16, c->top + 12, "legend", text);
        x += width;
        free(text);
    }
    c->top += LEGEND + 8;
}

/* One bar: its whole length is the budget, or the peak where that is more. */
static void put_peak_bar(picture *c)
{
    const gr_plan *p = c->v->plan;
    enum { HEIGHT = 24 };
    const double whole = WIDTH - 34,
                 scale = whole / (double)GR_MAX(GR_MAX(p->peak_bytes, p->budget_bytes), (uint64_t)1);
    part *parts;
    const uint32_t n = peak_parts(c->v, &parts);
    char a[32];
    double x = 20;
    gr_str_printf(c->out, "<rect class=\"free\" x=\"20\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"3\"/>",
                  c->top, whole, HEIGHT);
    for (uint32_t i = 0; i < n; i++) {
        const double w = scale * (double)parts[i].bytes;
        gr_str_printf(
            c->out,
            "<rect class=\"area\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"><title>", x,
            c->top, w, HEIGHT, parts[i].colour);
        gr_xml_put(c->out, parts[i].name);
        gr_str_printf(c->out, " at the peak: %s</title></rect>\n", gr_bytes_format(parts[i].bytes, a));
        x += w;
    }
    const double edge = 20 + scale * (double)p->budget_bytes;
    if (p->peak_bytes > p->budget_bytes)
        gr_str_printf(c->out, "<path class=\"budget\" d=\"M%.1f %.1fv%d\"/>", edge, c->top - 4, HEIGHT + 8);
    c->top += HEIGHT + 4;
    put_part_names(c, parts, n);
    free(parts);
}

/* ---- nodes under the steps ---------------------------------------------------------------------------- */

static bool same_node(const gr_step *a, const gr_step *b)
{
    return a->node && b->node ? !strcmp(a->node, b->node) : a->node == b->node;
}

/* Bands of the steps that serve one node, and brackets over loops. */
static void put_strip(picture *c)
{
    const gr_view *v = c->v;
    for (uint32_t i = 0, last; i < v->n; i = last + 1) {
        for (last = i; last + 1 < v->n && same_node(&v->steps[i], &v->steps[last + 1]);) last++;
        double x = step_x(c, i), w = step_x(c, last + 1) - x;
        const char *name = v->steps[i].node ? v->steps[i].node : "";
        if (w < 0.2) continue; /* of no time */
        gr_str_printf(c->out, "<g><title>%s: steps %u to %u</title>", name, i, last);
        gr_str_printf(c->out,
                      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>",
                      x + 0.3, c->top + 3, GR_MAX(w - 0.6, 0.6), STRIP - 3, gr_node_colour(v, name));
        gr_text_fit(c->out, x + w / 2, c->top + 16, w, "band", name);
        gr_str_puts(c->out, "</g>\n");
    }
    c->top += STRIP;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->steps[i].kind != GR_STEP_LOOP || v->depth[i] > 1) continue;
        double x = step_x(c, i), w = step_x(c, v->steps[i].body_last + 1) - x,
               y = c->top + 4 + 16 * v->depth[i];
        if (w < 3) continue;
        char *text = gr_printf("%s%u×", v->steps[i].agreed ? "≤ " : "", v->steps[i].trips_max);
        gr_str_printf(c->out,
                      "<path class=\"loop\" d=\"M%.1f %.1fv4H%.1fv-4\"><title>%s: %s%u trips</title></path>",
                      x + 1, y, x + w - 1, v->steps[i].what, v->steps[i].agreed ? "at most " : "",
                      v->steps[i].trips_max);
        gr_text_fit(c->out, x + w / 2, y + 14, w, "small middle", text);
        free(text);
    }
    c->top += 44;
    gr_text_put(c->out, LEFT - 8, c->top - 44 - 5, "axis end", "node");
    gr_text_put(c->out, LEFT - 8, c->top - 44 + 14, "axis end", "loops");
}

/* ---- lanes -------------------------------------------------------------------------------------------- */

static const char *block_colour(const gr_view *v, const gr_step *s)
{
    if (s->kind == GR_STEP_RUN) return gr_node_colour(v, s->node ? s->node : "");
    if (s->kind == GR_STEP_LOAD || s->kind == GR_STEP_FETCH) return "#6f9bd8";
    return s->kind == GR_STEP_OFFLOAD || s->kind == GR_STEP_STORE ? "#b57fc6" : "#b4b9c2";
}

/* One block for steps [i, last] of a lane that touch at this scale and look the same. */
static void put_block(const picture *c, uint32_t i, uint32_t last, uint32_t n, double y)
{
    const gr_step *s = &c->v->steps[i];
    double x = time_x(c, c->v->begin[i]), w = GR_MAX(time_x(c, c->v->end[last]) - x, 0.5);
    bool run = s->kind == GR_STEP_RUN;
    gr_str_printf(c->out, "<g><title>%s%s%s: %u step%s, %u to %u, ", run ? "" : gr_step_kind_str(s->kind),
                  run ? "" : " for ", s->node ? s->node : "", n, n == 1 ? "" : "s", i, last);
    gr_time_put(c->out, c->v->begin[i]);
    gr_str_puts(c->out, " to ");
    gr_time_put(c->out, c->v->end[last]);
    gr_str_printf(c->out, "</title><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>", x,
                  y, w, ROW - 6, block_colour(c->v, s));
    gr_text_fit(c->out, x + w / 2, y + 14, w, "band", run ? s->node : gr_step_kind_str(s->kind));
    gr_str_puts(c->out, "</g>\n");
}

static void put_lane(const picture *c, gr_lane lane, double y)
{
    const gr_view *v = c->v;
    uint32_t first = GR_NONE, last = GR_NONE, n = 0;
    for (uint32_t i = 0; i <= v->n; i++) {
        const gr_step *s = i < v->n ? &v->steps[i] : NULL;
        bool draws = s && s->lane == lane && s->kind != GR_STEP_LOOP && v->end[i] > v->begin[i];
        if (s && !draws) continue;
        bool joins = s && last != GR_NONE && same_node(s, &v->steps[first]) &&
                     s->kind == v->steps[first].kind &&
                     time_x(c, v->begin[i]) - time_x(c, v->end[last]) < 0.6;
        if (!joins && n) put_block(c, first, last, n, y);
        first = joins ? first : i;
        n = joins ? n + 1 : 1;
        last = i;
    }
}

static bool lane_is_used(const gr_view *v, gr_lane lane)
{
    for (uint32_t i = 0; i < v->n; i++)
        if (v->steps[i].lane == lane && v->steps[i].kind != GR_STEP_LOOP && v->steps[i].ns) return true;
    return false;
}

static void put_time_axis(const picture *c)
{
    uint64_t tick = gr_tick_ns(c->ns, 8);
    for (uint64_t t = 0; t <= c->ns; t += tick) {
        double x = time_x(c, t);
        gr_str text = {0};
        gr_tick_time(&text, t, tick);
        gr_str_printf(c->out, "<path class=\"grid\" d=\"M%.1f %.1fv%.1f\"/>", x, c->top - c->height,
                      c->height + 4);
        gr_text_put(c->out, x, c->top + 17, "axis middle", text.text);
        gr_str_release(&text);
    }
}

static void put_lanes(picture *c)
{
    double begin = c->top;
    for (int lane = 0; lane < GR_N_LANES; lane++) c->top += lane_is_used(c->v, lane) ? ROW : 0;
    c->height = c->top - begin;
    put_time_axis(c);
    for (int lane = 0; lane < GR_N_LANES; lane++) {
        if (!lane_is_used(c->v, lane)) continue;
        gr_text_put(c->out, LEFT - 8, begin + 18, "axis end", gr_lane_str(lane));
        put_lane(c, lane, begin + 4);
        begin += ROW;
    }
    c->top += 26;
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static void put_about(gr_str *s, const gr_plan *p, const gr_plan *all)
{
    char a[32], b[32], host[32];
    uint64_t moved;
    uint32_t n = gr_transitions(&p->paths[GR_PATH_STEADY], &moved);
    if (all->n_more) gr_str_printf(s, "ranks %s: %s    ", p->ranks, p->pools);
    gr_str_printf(s, "peak %s of %s    host pool %s    ", gr_bytes_format(p->peak_bytes, a),
                  gr_bytes_format(p->budget_bytes, b), gr_bytes_format(p->host_bytes, host));
    if (p->disk_bytes) gr_str_printf(s, "disk %s    ", gr_bytes_format(p->disk_bytes, host));
    gr_str_puts(s, "predicted ");
    gr_time_put(s, all->n_more ? p->own_ns : p->ns);
    gr_str_puts(s, all->n_more ? " of its own    " : " an iteration    ");
    gr_str_printf(s, n ? "%u transition steps" : "no transitions", n);
}

/* What models, how large a batch, how fast, on what. */
static void put_facts(picture *c, const gr_graph *g)
{
    gr_fact facts[GR_N_FACTS];
    gr_str s = {0};
    gr_facts(c->v->all, g, facts);
    for (int i = 0; i < GR_N_FACTS; i++) {
        if (!*facts[i].value) continue;
        gr_str_printf(&s, "%s%s", s.len ? "    " : "", facts[i].value);
        if (i == GR_FACT_BATCH) gr_str_printf(&s, " (%s)", facts[i].note);
    }
    gr_text_cut(c->out, 20, 60, (WIDTH - 34) * 12 / 14, "sub", s.text);
    gr_str_release(&s);
    gr_facts_release(facts);
}

/* A line of a note in as many lines as it takes. */
static void put_note(picture *c, const char *line, size_t len)
{
    enum { COLUMNS = 190 };
    for (size_t n; len; len -= n, line += n) {
        n = GR_MIN(len, (size_t)COLUMNS);
        while (n < len && n && line[n] != ' ') n--;
        if (!n) n = GR_MIN(len, (size_t)COLUMNS);
        char *text = gr_printf("%.*s", (int)n, line);
        gr_text_put(c->out, 20, c->top += 17, "note", text);
        free(text);
    }
}

static void put_head(picture *c, const gr_graph *g)
{
    const gr_plan *p = c->v->all;
    gr_str s = {0};
    bool fits = gr_plan_fits(p);
    gr_str_printf(&s, "%s on %s", p->graph, p->hardware);
    gr_text_cut(c->out, 20, 36, (WIDTH - 170) * 12 / 22, "title", s.text);
    gr_text_put(c->out, WIDTH - 14, 36, fits ? "fits end" : "over end", fits ? "fits" : "does not fit");
    put_facts(c, g);
    s.len = 0;
    if (p->n_more) {
        gr_str_printf(&s, "%u ranks in %u roles    predicted ", gr_plan_all_ranks(p), p->n_more + 1);
        gr_time_put(&s, p->ns);
        gr_str_puts(&s, " an iteration of all");
    } else {
        put_about(&s, p, p);
    }
    gr_text_put(c->out, 20, 82, "sub", s.text);
    c->top = 88;
    for (const char *line = p->notes; *line;) {
        size_t len = strcspn(line, "\n");
        put_note(c, line, len);
        line += len + (line[len] != 0);
    }
    c->top += 14;
    gr_str_release(&s);
}

static void put_title(picture *c, const char *text)
{
    gr_text_put(c->out, 20, c->top + 16, "panel", text);
    c->top += 30;
}

static void put_role_memory(picture *c)
{
    const gr_plan *p = c->v->plan;
    if (c->v->all->n_more) {
        gr_str s = {0};
        put_about(&s, p, c->v->all);
        gr_text_put(c->out, 20, c->top + 16, "sub", s.text);
        c->top += 20;
        gr_str_release(&s);
    }
    put_title(c, "What fills the peak");
    put_peak_bar(c);
    put_title(c, "Device memory over predicted time (of a loop one trip, stretched to all of them)");
    put_memory(c, GR_DEVICE, panel_height(c->v, GR_DEVICE, MEMORY), p->peak_bytes, p->budget_bytes);
    put_strip(c);
    uint64_t host = gr_view_most(c->v, GR_HOST);
    if (host <= p->peak_bytes / 50) return;
    put_title(c, "Host pool");
    put_memory(c, GR_HOST, panel_height(c->v, GR_HOST, HOST), host, p->host_budget_bytes);
    c->top += 22;
}

/* All roles on one axis of time. */
static void put_role_lanes(picture *c)
{
    if (c->v->all->n_more) {
        char *text = gr_printf("ranks %s: %s", c->v->plan->ranks, c->v->plan->pools);
        gr_text_put(c->out, LEFT, c->top + 10, "sub", text);
        c->top += 18;
        free(text);
    }
    put_lanes(c);
}

void gr_draw_svg(const gr_plan *p, const gr_graph *g, gr_str *out)
{
    uint32_t n = p->n_more + 1;
    gr_view **v = gr_calloc(n, sizeof(gr_view *));
    gr_str body = {0};
    picture c = {.out = &body};
    for (uint32_t k = 0; k < n; k++) {
        v[k] = gr_view_of_role(p, k);
        c.ns = GR_MAX(c.ns, v[k]->ns);
    }
    show_view(&c, v[0]);
    put_head(&c, g);
    for (uint32_t k = 0; k < n; k++) {
        show_view(&c, v[k]);
        put_role_memory(&c);
    }
    put_title(&c, "Lanes");
    for (uint32_t k = 0; k < n; k++) {
        show_view(&c, v[k]);
        put_role_lanes(&c);
    }
    gr_picture_begin(out, WIDTH, c.top);
    gr_str_add(out, body.text, body.len);
    gr_picture_end(out);
    gr_str_release(&body);
    free(c.reached);
    for (uint32_t k = 0; k < n; k++) gr_view_free(v[k]);
    free(v);
}
