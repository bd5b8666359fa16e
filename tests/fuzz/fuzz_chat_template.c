/* tests/fuzz/fuzz_chat_template.c: any bytes as a chat template, rendered on a short conversation. */
#include "ops/text/chat_template.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char conversation[] =
        "[{\"role\":\"system\",\"content\":\" s\\n\"},{\"role\":\"user\",\"content\":\"h\\u00e9\"},"
        "{\"role\":\"assistant\",\"content\":null,\"n\":[1,2.5,{\"k\":true}]}]";
    gr_diag d;
    gr_diag_init(&d);
    gr_chat_template *t = NULL;
    gr_chat_text x = {0};
    gr_status st = gr_chat_template_parse(&t, (const char *)data, n, &d);
    if (st == GR_OK) {
        json_t *messages = json_loads(conversation, 0, NULL);
        st = gr_chat_render(t, NULL, messages,
                            &(gr_chat_options){.add_generation_prompt = true, .date = "2024-07-26"}, &x, &d);
        for (size_t i = 0; i < x.n_fields; i++)
            if (x.fields[i].begin >= x.fields[i].end || x.fields[i].end > x.text.len) abort();
        json_decref(messages);
    }
    if ((st == GR_OK) != (d.n_errors == 0)) abort(); /* refused without a message, or the reverse */
    gr_chat_text_release(&x);
    gr_chat_template_free(t);
    gr_diag_release(&d);
    return 0;
}
