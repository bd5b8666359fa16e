/* graphs/expr/expr_functions.c: the table of functions. A new pointwise function needs a row here, its
 * instruction in expr_ops.h, its value in expr_apply.h and its derivative in expr_grad.c. */
#include "graphs/expr/expr_functions.h"

#define POINTWISE(name, args, n, op, doc)                                   \
    {                                                                       \
        name, args, "any", "same", doc, n, n, GR_FORM_POINTWISE, GR_IR_##op \
    }
#define DETAILED(name, args, min, max, source, result, form, detail, doc) \
    {                                                                     \
        name, args, source, result, doc, min, max, GR_FORM_##form, detail \
    }
#define SPECIAL(name, args, min, max, source, result, form, doc) \
    DETAILED(name, args, min, max, source, result, form, 0, doc)
#define REDUCE(name, source, target, level, stat, doc)                                                   \
    {                                                                                                    \
        name, GR_STAT_##stat == GR_STAT_COUNT ? "[x][, mask]" : "x[, mask]", source, target, doc,        \
            GR_STAT_##stat != GR_STAT_COUNT, 2, GR_FORM_REDUCE, (GR_LEVEL_##level << 3) | GR_STAT_##stat \
    }
#define NTH(name, min, stat, doc)                                                                           \
    {                                                                                                       \
        name, min ? "x[, mask]" : "[x][, mask]", "token", "token", doc, min, 2, GR_FORM_NTH, GR_STAT_##stat \
    }
#define QUANTILES(prefix, source, target, level, of)                                                        \
    DETAILED(prefix "_median", "x[, mask]", 1, 2, source, target, QUANTILE, (GR_LEVEL_##level << 1) | 1,    \
             "median of " of "; 0 where there is none"),                                                    \
        DETAILED(prefix "_quantile", "x, q[, mask]", 2, 3, source, target, QUANTILE, GR_LEVEL_##level << 1, \
                 "what a share q of " of " lies below, interpolated; 0 where there is none")
#define THREE(prefix, source, target, level, of)                                                       \
    REDUCE(prefix "_count", source, target, level, COUNT,                                              \
           "number of " of "; of a condition: where it holds"),                                        \
        REDUCE(prefix "_max", source, target, level, MAX, "largest of " of "; 0 where there is none"), \
        REDUCE(prefix "_mean", source, target, level, MEAN, "mean over " of "; 0 where there is none")
#define TWO(prefix, source, target, level, of)                                                           \
    REDUCE(prefix "_std", source, target, level, STD, "standard deviation (n - 1) of " of "; 0 of one"), \
        REDUCE(prefix "_sum", source, target, level, SUM, "sum over " of)
#define BATCH "the sequences (of a prompt value: the prompts) of the batch"

static const gr_expr_function table[] = {
    POINTWISE("abs", "x", 1, ABS, "absolute value"),
    SPECIAL("at_last", "x", 1, 1, "sequence", "token", AT_LAST,
            "x on the last response token, 0 on the others"),
    THREE("batch", "sequence or prompt", "scalar", SCALAR, BATCH),
    QUANTILES("batch", "sequence or prompt", "scalar", SCALAR, BATCH),
    TWO("batch", "sequence or prompt", "scalar", SCALAR, BATCH),
    SPECIAL("choose", "cond, k", 2, 2, "any", "same", CHOOSE,
            "true for k random elements of those where cond holds"),
    POINTWISE("clip", "x, lo, hi", 3, CLIP, "x, not below lo and not above hi"),
    SPECIAL("discounted_sum", "x, gamma", 2, 2, "token", "token", DISCOUNTED,
            "x + gamma * (the value at the next token), from the last token back"),
    POINTWISE("exp", "x", 1, EXP, "exponential"),
    POINTWISE("floor", "x", 1, FLOOR, "largest integer not above x"),
    REDUCE("group_count", "sequence or token", "prompt", GROUP, COUNT,
           "number of sequences (tokens) of the group; of a condition: where it holds"),
    REDUCE("group_max", "sequence or token", "prompt", GROUP, MAX,
           "largest in the group; 0 where there is none"),
    REDUCE("group_mean", "sequence or token", "prompt", GROUP, MEAN,
           "mean over the group; 0 where there is none"),
    QUANTILES("group", "sequence", "prompt", GROUP, "the group's values"),
    SPECIAL("group_rank", "x", 1, 1, "sequence", "sequence", RANK,
            "0 for the largest of its group, then 1; ties by index"),
    REDUCE("group_std", "sequence or token", "prompt", GROUP, STD,
           "standard deviation (n - 1) in the group; 0 of one"),
    REDUCE("group_sum", "sequence or token", "prompt", GROUP, SUM, "sum over the group"),
    POINTWISE("log", "x", 1, LOG, "natural logarithm"),
    SPECIAL("max", "x, y, ...", 2, GR_AST_ARGS, "any", "same", MAX, "the largest"),
    SPECIAL("min", "x, y, ...", 2, GR_AST_ARGS, "any", "same", MIN, "the smallest"),
    SPECIAL("next", "x, fill", 2, 2, "token", "token", NEXT, "x at the next token; fill at the last"),
    NTH("nth_count", 0, COUNT, "sequences of the group that have as many tokens as come up to this one"),
    NTH("nth_sum", 1, SUM, "sum over the group's tokens that are the n-th of their sequence, as this one is"),
    POINTWISE("pass_at", "n, c, k", 3, PASS,
              "pass@k of n answers of which c are right: the chance that k of them hold a right one"),
    REDUCE("position_count", "token", "position", POSITION, COUNT,
           "sequences of the group that have this position"),
    REDUCE("position_sum", "token", "position", POSITION, SUM,
           "sum over the group's tokens at the same position"),
    SPECIAL("prefix_sum", "x", 1, 1, "token", "token", PREFIX, "sum up to and including this token"),
    SPECIAL("prev", "x, fill", 2, 2, "token", "token", PREV, "x at the token before; fill at the first"),
    SPECIAL("random", "[x]", 0, 1, "any", "same", RANDOM,
            "uniform in (0, 1), one an element of x (none: a token)"),
    SPECIAL("repeat", "x", 1, 1, "sequence", "token", REPEAT,
            "x on every token, also for sums along a sequence: each token counts it"),
    THREE("seq", "token", "sequence", SEQ, "the sequence's tokens"),
    TWO("seq", "token", "sequence", SEQ, "the sequence's tokens"),
    POINTWISE("sigmoid", "x", 1, SIGMOID, "1 / (1 + exp(-x))"),
    POINTWISE("sqrt", "x", 1, SQRT, "square root"),
    POINTWISE("stop_gradient", "x", 1, STOP, "x, a constant to the derivative"),
    SPECIAL("suffix_sum", "x", 1, 1, "token", "token", SUFFIX, "sum from this token to the last"),
    POINTWISE("tanh", "x", 1, TANH, "hyperbolic tangent"),
    SPECIAL("token", "\"text\"", 1, 1, "text", "scalar", TOKEN, "id of the token that is this text"),
    REDUCE("token_count", "token", "scalar", SCALAR, COUNT,
           "number of the batch's tokens; of a condition: where it holds"),
    REDUCE("token_max", "token", "scalar", SCALAR, MAX,
           "largest of the batch's tokens; 0 where there is none"),
    REDUCE("token_mean", "token", "scalar", SCALAR, MEAN,
           "mean over the batch's tokens; 0 where there is none"),
    QUANTILES("token", "token", "scalar", SCALAR, "the batch's tokens"),
    REDUCE("token_std", "token", "scalar", SCALAR, STD,
           "standard deviation (n - 1) of the batch's tokens; 0 of one"),
    REDUCE("token_sum", "token", "scalar", SCALAR, SUM, "sum over the batch's tokens"),
    SPECIAL("token_whiten", "x[, mask]", 1, 2, "token", "token", WHITEN,
            "(x - mean) / sqrt(variance + 1e-8) over the batch's tokens; 0 of one"),
    SPECIAL("top", "x, k, cond", 3, 3, "any", "same", TOP,
            "true for the k largest x of those where cond holds"),
    SPECIAL("where", "cond, x, y", 3, 3, "any", "same", WHERE, "x where cond holds, else y"),
};

const gr_expr_function *gr_expr_functions(size_t *n)
{
    *n = GR_LEN(table);
    return table;
}
