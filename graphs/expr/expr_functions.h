/* graphs/expr/expr_functions.h: how each function of the table is lowered; private to graphs/. */
#ifndef GR_GRAPHS_EXPR_EXPR_FUNCTIONS_H
#define GR_GRAPHS_EXPR_EXPR_FUNCTIONS_H

#include "graphs/expr/expr_ast.h"

typedef enum gr_form {
    GR_FORM_POINTWISE, /* detail: the instruction */
    GR_FORM_REDUCE,    /* detail: target level << 3 | statistic; what is reduced is in the name */
    GR_FORM_MIN,
    GR_FORM_MAX,
    GR_FORM_WHERE,
    GR_FORM_NEXT,
    GR_FORM_PREV,
    GR_FORM_PREFIX,
    GR_FORM_SUFFIX,
    GR_FORM_DISCOUNTED,
    GR_FORM_AT_LAST,
    GR_FORM_RANK,
    GR_FORM_NTH, /* detail: statistic, SUM or COUNT */
    GR_FORM_REPEAT,
    GR_FORM_QUANTILE, /* detail: target level << 1 | whether it is the median */
    GR_FORM_WHITEN,
    GR_FORM_RANDOM,
    GR_FORM_CHOOSE,
    GR_FORM_TOP,
    GR_FORM_TOKEN,
} gr_form;

typedef enum gr_stat { GR_STAT_SUM, GR_STAT_MEAN, GR_STAT_STD, GR_STAT_MAX, GR_STAT_COUNT } gr_stat;

#endif
