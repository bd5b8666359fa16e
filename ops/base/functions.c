/* ops/base/functions.c: functions of the program that runs a graph, by their names. */
#include "ops/base/functions.h"

#include <stdlib.h>
#include <string.h>

static gr_status not_there(const gr_functions *f, const char *name, bool answers, gr_loc at, gr_diag *d)
{
    const char *what = answers ? "answers" : "scores";
    const char *names[64];
    size_t n = 0;
    if (!f || !f->n)
        return gr_diag_error(d, at, GR_E_INVALID,
                             "'function: %s' is a function of the program that runs the graph: run it from "
                             "Python (graphrun.run(..., functions={'%s': ...})) or from C (graphrun.h)",
                             name, name);
    for (size_t i = 0; i < f->n && n < GR_LEN(names); i++)
        if (answers ? f->of[i].answer != NULL : f->of[i].score != NULL) names[n++] = f->of[i].name;
    const char *near = gr_near(name, names, n);
    return gr_diag_error(d, at, GR_E_INVALID,
                         "the program that runs the graph has no function '%s' that %s%s%s%s", name, what,
                         near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

gr_status gr_function_find(const gr_function **out, const gr_functions *f, const char *name, bool answers,
                           gr_loc at, gr_diag *d)
{
    for (size_t i = 0; f && i < f->n; i++) {
        const gr_function *x = &f->of[i];
        if (strcmp(x->name, name) || !(answers ? x->answer != NULL : x->score != NULL)) continue;
        *out = x;
        return GR_OK;
    }
    return not_there(f, name, answers, at, d);
}
