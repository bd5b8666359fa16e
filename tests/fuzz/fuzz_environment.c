/* A line of an environment, of a grader or of a record: its answers are read, and a turn's calls of tools.
 * What is read is written and read again, and means the same. */
#include "ops/reward/environment.h"
#include "ops/text/tool_calls.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const metrics[] = {"calls", "wrong"};

static void read_answer(const json_t *reply, gr_answer_to to)
{
    char *why = NULL;
    gr_answer *a = gr_answer_read(reply, to, metrics, 2, &why);
    if (!a == !why) abort();
    if (a && a->text && a->messages) abort();
    if (a && !(a->reward - a->reward == 0)) abort();
    gr_answer_free(a);
    free(why);
}

/* A turn that holds a call that was read, as its model would write it. */
static void write_again(const json_t *calls)
{
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        if (json_object_get(call, "error")) continue;
        char *text = json_dumps(call, JSON_COMPACT | JSON_ENSURE_ASCII);
        json_t *back = gr_tool_calls(GR_TOOLS_LLAMA, text, strlen(text));
        if (json_array_size(back) != 1 || !json_equal(json_array_get(back, 0), call)) abort();
        json_decref(back);
        free(text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *line = json_loadb((const char *)data, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    for (size_t i = 0; i < json_array_size(line); i++) read_answer(json_array_get(line, i), GR_ANSWER_STEP);
    read_answer(line, GR_ANSWER_STEP);
    read_answer(line, GR_ANSWER_START);
    read_answer(line, GR_ANSWER_SESSION);
    json_decref(line);
    for (gr_tool_form form = GR_TOOLS_HERMES; form <= GR_TOOLS_HARMONY; form++) {
        json_t *calls = gr_tool_calls(form, (const char *)data, n);
        write_again(calls);
        json_decref(calls);
    }
    return 0;
}
