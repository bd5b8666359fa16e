/* The body of a call of the endpoint, as each kind of call. What is read keeps its bounds, and says the same
 * once more. */
#include "ops/serve/call.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const stop[] = {"END", "."};
static const int32_t stop_ids[] = {2, 7};

static void check(const gr_serve_call *c, const gr_serve_rules *rules)
{
    if (c->max_tokens > rules->max_tokens || c->ids.n > rules->max_context) abort();
    for (size_t i = 0; i < c->ids.n; i++)
        if (c->ids.id[i] < 0 || c->ids.id[i] >= (int32_t)rules->vocab) abort();
    for (size_t i = 0; i < json_array_size(c->messages); i++) {
        const json_t *m = json_array_get(c->messages, i);
        if (!json_is_string(json_object_get(m, "role")) || !json_is_string(json_object_get(m, "content")))
            abort();
        if (!gr_serve_same_message(m, m)) abort();
    }
    if (c->kind == GR_CALL_CHAT && !c->messages) abort();
    if (c->kind == GR_CALL_TOKENS && !c->ids.n) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const gr_serve_rules rules = {.model = "actor",
                                  .temperature = 1,
                                  .top_p = 1,
                                  .stop = stop,
                                  .n_stop = 2,
                                  .stop_ids = stop_ids,
                                  .n_stop_ids = 2,
                                  .max_tokens = 16,
                                  .max_context = 64,
                                  .turns = 4,
                                  .vocab = 100};
    json_t *body = json_loadb((const char *)data, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    for (gr_call_kind kind = GR_CALL_CHAT; json_is_object(body) && kind <= GR_CALL_TOKENIZE; kind++) {
        gr_serve_call call;
        char *why = gr_serve_call_read(&call, kind, body, &rules);
        if (!why) check(&call, &rules);
        gr_serve_call_release(&call);
        free(why);
    }
    json_decref(body);
    return 0;
}
