/* scheduler/report/draw_dot.c: a plan as a graph for Graphviz. */
#include "scheduler/report/draw.h"

#include "ops/base/op.h"

#include <stdlib.h>
#include <string.h>

typedef struct drawing {
    gr_view **views;  /* of the roles of ranks */
    const gr_view *v; /* of the node being drawn */
    gr_str *out;
} drawing;

/* The largest four, a line each. */
static void put_holds(const drawing *d, const char *node)
{
    uint64_t *bytes = gr_calloc(d->v->n_series + 1, sizeof(*bytes));
    char buf[32];
    gr_view_node_holds(d->v, node, bytes);
    for (int shown = 0; shown < 4; shown++) {
        uint32_t top = 0;
        for (uint32_t k = 1; k < d->v->n_series; k++)
            if (d->v->series[k].place == GR_DEVICE && bytes[k] > bytes[top]) top = k;
        if (!d->v->n_series || d->v->series[top].place != GR_DEVICE || !bytes[top]) break;
        gr_str_printf(d->out, "<tr><td align=\"left\"><font color=\"%s\">&#9632;</font> ",
                      d->v->series[top].colour);
        gr_xml_put(d->out, d->v->series[top].name);
        gr_str_printf(d->out, "</td><td align=\"right\">%s</td></tr>", gr_bytes_format(bytes[top], buf));
        bytes[top] = 0;
    }
    free(bytes);
}

/* A name as a quoted identifier. */
static void put_id(gr_str *out, const char *prefix, const char *name)
{
    gr_str_printf(out, "\"%s", prefix);
    for (; *name; name++) {
        if (*name == '"' || *name == '\\') gr_str_putc(out, '\\');
        gr_str_putc(out, *name);
    }
    gr_str_putc(out, '"');
}

static void put_node(const drawing *d, const gr_node *n)
{
    gr_str_puts(d->out, "  ");
    put_id(d->out, "node ", n->name);
    gr_str_puts(d->out, " [shape=plain, label=<<table border=\"1\" cellborder=\"0\" cellspacing=\"0\" "
                        "cellpadding=\"3\" style=\"rounded\" color=\"#8a8f99\"><tr><td align=\"left\"><b>");
    gr_xml_put(d->out, n->name);
    gr_str_printf(d->out, "</b></td><td align=\"right\"><font color=\"#6b7280\">%s, ", n->op->name);
    gr_time_put(d->out, gr_view_node_ns(d->v, n->name));
    gr_str_puts(d->out, "</font></td></tr>");
    put_holds(d, n->name);
    gr_str_puts(d->out, "</table>>];\n");
}

static void put_edges(const drawing *d, const gr_node *n)
{
    for (size_t i = 0; i < n->n_inputs; i++) {
        gr_str_puts(d->out, "  ");
        put_id(d->out, "node ", n->inputs[i]->name);
        gr_str_puts(d->out, " -> ");
        put_id(d->out, "node ", n->name);
        gr_str columns = {0};
        gr_view_columns(d->v, n->inputs[i]->name, n->name, &columns);
        gr_str_puts(d->out, " [label=");
        put_id(d->out, "", columns.len ? columns.text : "");
        gr_str_puts(d->out, "];\n");
        gr_str_release(&columns);
    }
    if (n->second) {
        gr_str_puts(d->out, "  ");
        put_id(d->out, "model ", n->second->name);
        gr_str_puts(d->out, " -> ");
        put_id(d->out, "node ", n->name);
        gr_str_puts(d->out, " [style=dashed, color=\"#3f6fb5\"];\n");
    }
    if (!n->model) return;
    gr_str_puts(d->out, "  ");
    put_id(d->out, "model ", n->model->name);
    gr_str_puts(d->out, " -> ");
    put_id(d->out, "node ", n->name);
    gr_str_printf(d->out, " [style=dashed, color=\"#3f6fb5\"%s];\n",
                  n->model->update == n ? ", dir=both" : "");
}

static void put_model(const drawing *d, const gr_model *m)
{
    uint64_t bytes[GR_N_PLACES] = {0};
    char buf[32];
    for (uint32_t k = 0; k < d->v->n_series; k++) {
        size_t len = strlen(m->name);
        const gr_series *s = &d->v->series[k];
        if (!strncmp(s->name, m->name, len) && s->name[len] == ' ') bytes[s->place] += s->most;
    }
    gr_str_puts(d->out, "  ");
    put_id(d->out, "model ", m->name);
    gr_str_puts(d->out, " [shape=cylinder, color=\"#3f6fb5\", label=<<b>");
    gr_xml_put(d->out, m->name);
    gr_str_printf(d->out, "</b>%s", m->follows ? "&#160; follows" : m->trained ? "&#160; trained" : "");
    gr_str_printf(d->out, "<br/>device %s", gr_bytes_format(bytes[GR_DEVICE], buf));
    if (bytes[GR_HOST]) gr_str_printf(d->out, "<br/>host %s", gr_bytes_format(bytes[GR_HOST], buf));
    if (bytes[GR_DISK]) gr_str_printf(d->out, "<br/>disk %s", gr_bytes_format(bytes[GR_DISK], buf));
    gr_str_puts(d->out, ">];\n");
}

/* Where it is trained, or where the first node runs that reads it. */
static uint32_t role_of_model(const gr_graph *g, const gr_model *m)
{
    if (m->update) return m->update->placement.role;
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i]->model == m) return g->nodes[i]->placement.role;
    return 0;
}

/* Nodes of one role, in a box where there are several. */
static void put_role(drawing *d, const gr_graph *g, uint32_t role)
{
    const gr_plan *p = d->views[role]->plan;
    bool several = d->views[role]->all->n_more > 0;
    d->v = d->views[role];
    if (several) {
        char *label = gr_printf("ranks %s: %s", p->ranks, p->pools);
        gr_str_printf(d->out, "  subgraph cluster_%u {\n  label=", role);
        put_id(d->out, "", label);
        gr_str_puts(d->out,
                    ";\n  fontname=\"Helvetica,Arial,sans-serif\"; fontsize=11; color=\"#c9cdd4\";\n");
        free(label);
    }
    for (size_t i = 0; i < g->n_models; i++)
        if (!several || role_of_model(g, g->models[i]) == role) put_model(d, g->models[i]);
    for (size_t i = 0; i < g->n_nodes; i++)
        if (!several || g->nodes[i]->placement.role == role) put_node(d, g->nodes[i]);
    if (several) gr_str_puts(d->out, "  }\n");
}

void gr_draw_dot(const gr_plan *p, const gr_graph *g, gr_str *out)
{
    drawing d = {.views = gr_calloc(p->n_more + 1, sizeof(gr_view *)), .out = out};
    for (uint32_t c = 0; c <= p->n_more; c++) d.views[c] = gr_view_of_role(p, c);
    gr_str_puts(out, "digraph ");
    put_id(out, "", p->graph);
    gr_str_puts(out, " {\n  rankdir=LR;\n  node [fontname=\"Helvetica,Arial,sans-serif\", fontsize=11];\n"
                     "  edge [fontname=\"Helvetica,Arial,sans-serif\", fontsize=9, color=\"#6b7280\", "
                     "fontcolor=\"#4b5563\"];\n");
    for (uint32_t c = 0; c <= p->n_more; c++) put_role(&d, g, c);
    for (size_t i = 0; i < g->n_nodes; i++) {
        d.v = d.views[p->n_more ? g->nodes[i]->placement.role : 0];
        put_edges(&d, g->nodes[i]);
    }
    gr_str_puts(out, "}\n");
    for (uint32_t c = 0; c <= p->n_more; c++) gr_view_free(d.views[c]);
    free(d.views);
}
