/* ops/reward/rules.h: reward rules: find the answer in a response, compare it with the truth, give a score.
 *
 * A rule looks at the last `tail` characters of the response, finds `extract` there (its group 1 where the
 * pattern has one, else the whole match; the first or the last match), finds `answer_extract` in the answer
 * field likewise, and compares the two:
 *
 *     string  equal bytes, after white space at both ends is cut and the characters of `strip` are removed
 *     number  equal numbers (ops/reward/math_number.h): "1,000", "$5", "72.", "+3", "50%", "1/2"; else string
 *     math    the same mathematics, in LaTeX or plain text (ops/reward/math_compare.h)
 *     prefix  dense: each leading character equal to the right answer's gives 1 / (its characters + 1); the
 *             first other character ends it
 *
 * A response where `extract` finds nothing scores 0. An answer where `answer_extract` finds nothing is a
 * fault of the data or of the rule, and an error. Without `extract`, math looks for the answer by itself
 * (ops/reward/math_find.h).
 *
 * Dense rewards are per token: a character's reward goes to the token that holds its last byte. A closing end
 * token gets what the last character got, or, after an empty response, 1 where the truth is empty too. Source
 * of `prefix`: verl, the digit completion task of its end-to-end tests.
 *
 * Patterns are PCRE2 in UTF-8 mode; a byte that is not UTF-8 is seen as the character SUB (U+001A).
 * Backtracking is limited: a pattern that exceeds the limit scores 0 and says so in the result.
 *
 * Threads: a rule keeps the memory of its matches; one thread at a time scores with it.
 */
#ifndef GR_OPS_REWARD_RULES_H
#define GR_OPS_REWARD_RULES_H

#include "runtime/base/base.h"

typedef enum gr_compare {
    GR_COMPARE_STRING,
    GR_COMPARE_NUMBER,
    GR_COMPARE_MATH,
    GR_COMPARE_PREFIX
} gr_compare;

/* false where name is none of the four. */
bool gr_compare_find(const char *name, gr_compare *out);
extern const char *const gr_compare_names[4]; /* in the order of the enumeration */

/* A rule as configured. NULL patterns: the whole text. Texts are read by gr_rule_new and not kept. */
typedef struct gr_rule_config {
    const char *extract, *answer_extract;
    const char *strip; /* characters removed from both sides before string comparison, NULL: none */
    size_t tail;       /* characters (code points), 0: all */
    bool take_first;   /* take: first; default is the last match */
    bool boxed;        /* both sides: what the last \boxed{} holds; an answer without one is taken whole */
    gr_compare compare;
    gr_loc at, extract_at, answer_extract_at; /* places in the graph */
} gr_rule_config;

/* The rule behind a short name: exact, prefix, gsm8k (verl's strict form: the last "#### number" of the last
 * 300 characters, equal as text without commas and "$"; an answer is a number, or a solution that ends in
 * "#### number"), boxed, math. GR_E_INVALID, with the nearest name, for any other. */
GR_NODISCARD gr_status gr_rule_config_find(const char *name, gr_loc at, gr_rule_config *out, gr_diag *d);

typedef struct gr_rule gr_rule;
/* GR_E_INVALID, at the pattern's place, for a pattern that PCRE2 refuses. */
GR_NODISCARD gr_status gr_rule_new(gr_rule **out, const gr_rule_config *c, gr_diag *d);
void gr_rule_free(gr_rule *r);           /* NULL is fine */
bool gr_rule_is_dense(const gr_rule *r); /* it scores tokens; else sequences */

typedef struct gr_rule_input {
    const char *text; /* the response, decoded, stop tokens cut off */
    size_t n;         /* bytes */
    /* Token t is bytes [ends[t - 1], ends[t]) of text, ends[-1] being 0; an end token cut from the text is
     * empty. Read only where per_token is asked for. */
    const uint32_t *ends;
    size_t n_tokens;
    bool ended; /* the last token is a stop token, not part of text */
    const char *answer;
    size_t n_answer;
    gr_loc at; /* place of the answer (gr_jsonl_at), for messages */
} gr_rule_input;

typedef struct gr_rule_output {
    double score;    /* of the sequence; of a dense rule, the sum */
    bool found;      /* extract found something */
    bool over_limit; /* a pattern ran into the backtracking limit */
    float *
        per_token; /* NULL, or n_tokens values to be filled: a score of a sequence is put on its last token */
} gr_rule_output;

/* Where the rule sees the truth in an answer: lets a data set be checked before anything runs. */
GR_NODISCARD gr_status gr_rule_truth(const gr_rule *r, const char *answer, size_t n, gr_loc at,
                                     const char **truth, size_t *n_truth, gr_diag *d);

/* per_token is the caller's; the rest is set. GR_E_INVALID where answer_extract does not fit the answer. */
GR_NODISCARD gr_status gr_rule_score(const gr_rule *r, const gr_rule_input *in, gr_rule_output *out,
                                     gr_diag *d);

/* ---- rules chosen by a field --------------------------------------------------------------------------- */

typedef struct gr_rule_set gr_rule_set;
gr_rule_set *gr_rule_set_new(void);
void gr_rule_set_free(gr_rule_set *s); /* and its rules; NULL is fine */
/* Rows whose field equals value get this rule. The set takes the rule over; value is copied. GR_E_INVALID,
 * and the rule is freed, for a value that has a rule already. */
GR_NODISCARD gr_status gr_rule_set_add(gr_rule_set *s, const char *value, gr_rule *r, gr_loc at, gr_diag *d);
/* GR_E_INVALID, with the nearest value, where there is none; at is the row's place. */
GR_NODISCARD gr_status gr_rule_set_find(const gr_rule_set *s, const char *value, gr_loc at,
                                        const gr_rule **out, gr_diag *d);
bool gr_rule_set_is_dense(const gr_rule_set *s); /* any rule is: score all per token */

#endif
