/* graphs/loader/functions.c: `functions: {NAME(ARG, ...): body}`, expressions with a name, for what is needed
 * more than once.
 */
#include "graphs/loader/loader.h"

#include <ctype.h>
#include <string.h>

enum { ARGS_MAX = 8, FUNCTIONS_MAX = 1000 };

/* ---- NAME(ARG, ...) --------------------------------------------------------------------------------------
 */

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t");
}

/* The name at p, and what follows it; NULL: there is none. */
static const char *take_name(gr_loader *l, const char *p, const char **name)
{
    const char *end = p;
    while (isalnum((unsigned char)*end) || *end == '_') end++;
    if (end == p || isdigit((unsigned char)*p)) return NULL;
    *name = gr_arena_strndup(l->arena, p, (size_t)(end - p));
    return skip_blanks(end);
}

static bool read_args(gr_loader *l, const char *p, gr_expr_custom *f)
{
    const char **args = gr_arena_alloc(l->arena, ARGS_MAX * sizeof(*args));
    f->args = args;
    if (*p++ != '(') return false;
    while (f->n_args < ARGS_MAX) {
        if (!(p = take_name(l, skip_blanks(p), &args[f->n_args++]))) return false;
        if (*p == ')') return !*skip_blanks(p + 1);
        if (*p++ != ',') return false;
    }
    return false;
}

static bool read_signature(gr_loader *l, const gr_pair *p, gr_expr_custom *f)
{
    const char *rest = take_name(l, skip_blanks(p->key), &f->name);
    if (rest && read_args(l, rest, f)) return gr_name_allowed(l, "a function", f->name, p->at);
    gr_diag_error(l->d, p->at, GR_E_INVALID,
                  "'%s': a function is written as NAME(ARGUMENT, ...), with 1 to %d arguments", p->key,
                  ARGS_MAX);
    return false;
}

/* ---- bodies ----------------------------------------------------------------------------------------------
 */

static bool is_arg(const gr_expr_custom *f, const char *name)
{
    for (unsigned i = 0; i < f->n_args; i++)
        if (!strcmp(f->args[i], name)) return true;
    return false;
}

/* What is not an argument would mean another thing in each graph that uses the function. */
static bool sees_arguments_only(gr_loader *l, const gr_expr_custom *f)
{
    size_t n;
    bool ok = true;
    const gr_expr_name *names = gr_expr_names(f->body, &n);
    for (size_t i = 0; i < n; i++) {
        if (is_arg(f, names[i].name)) continue;
        gr_diag_error(l->d, names[i].at, GR_E_INVALID,
                      "'%s' is no argument of '%s': a function sees its arguments only; hand it over",
                      names[i].name, f->name);
        ok = false;
    }
    return ok;
}

static bool is_new(gr_loader *l, const gr_pair *p, const char *name)
{
    const gr_source *s = l->g->source;
    for (size_t i = 0; i < s->n_functions; i++) {
        if (strcmp(s->functions[i].name, name)) continue;
        gr_diag_error(l->d, p->at, GR_E_INVALID, "function '%s' is defined twice, with other arguments",
                      name);
        return false;
    }
    return true;
}

static void read_function(gr_loader *l, const gr_pair *p)
{
    gr_source *s = l->g->source;
    gr_expr_custom f = {0};
    gr_expr *body = NULL;
    const char *text = p->value.broken ? NULL : gr_value_text(l, p->key, &p->value);
    const gr_expr_source source = {text, p->value.at, p->value.indent};
    if (!read_signature(l, p, &f) || !is_new(l, p, f.name) || !text || gr_expr_parse(&body, &source, l->d))
        return;
    f.body = body;
    if (sees_arguments_only(l, &f))
        s->functions[s->n_functions++] = f;
    else
        gr_expr_free(body);
}

void gr_read_functions(gr_loader *l)
{
    const gr_value *v = gr_value_get(&l->g->source->root, "functions");
    if (!v || v->kind == GR_VALUE_NULL || v->broken || !gr_value_is_map(l, "functions", v)) return;
    if (v->n > FUNCTIONS_MAX) {
        gr_diag_error(l->d, v->at, GR_E_INVALID, "more than %d functions", FUNCTIONS_MAX);
        return;
    }
    l->g->source->functions = gr_arena_alloc(l->arena, v->n * sizeof(*l->g->source->functions));
    for (size_t i = 0; i < v->n; i++) read_function(l, &v->pairs[i]);
}
