/* Reward rules on any response and answer: the first byte chooses the rule, the last NUL parts the two. */
#include "ops/reward/rules.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static gr_rule *make_rule(unsigned which)
{
    static const char *const names[] = {"exact", "prefix", "gsm8k", "boxed", "math"};
    gr_rule_config c;
    gr_rule *r = NULL;
    if (gr_rule_config_find(names[which % 5], (gr_loc){0}, &c, NULL)) abort();
    if (which >= 5) c.compare = which % 2 ? GR_COMPARE_MATH : GR_COMPARE_NUMBER;
    if (gr_rule_new(&r, &c, NULL)) abort();
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static gr_rule *rules[10];
    float per_token[64];
    uint32_t ends[64];
    if (!rules[0])
        for (unsigned i = 0; i < 10; i++) rules[i] = make_rule(i);
    if (n < 2) return 0;
    const gr_rule *r = rules[data[0] % 10];
    const char *text = (const char *)data + 1, *cut = memrchr(text, 0, n - 1);
    if (!cut) return 0;
    size_t n_text = (size_t)(cut - text);
    for (uint32_t i = 0; i < 64; i++) ends[i] = (uint32_t)(n_text * (i + 1) / 64);
    gr_rule_input in = {.text = text,
                        .n = n_text,
                        .ends = ends,
                        .n_tokens = 64,
                        .ended = data[0] & 16,
                        .answer = cut + 1,
                        .n_answer = n - n_text - 2};
    gr_rule_output out = {.per_token = data[0] & 32 ? per_token : NULL};
    if (!gr_rule_score(r, &in, &out, NULL) && !(out.score >= 0 && out.score <= 1 + 1e-9)) abort();
    return 0;
}
