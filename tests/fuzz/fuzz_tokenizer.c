/* tests/fuzz/fuzz_tokenizer.c: any bytes as tokenizer.json. Input: the file, then after a 0xff byte a text to
 * encode with it. */
#include "ops/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *json = (const char *)data, *cut = memchr(data, 0xff, n);
    size_t n_json = cut ? (size_t)(cut - json) : n;
    const char *text = cut ? cut + 1 : "a b c";
    size_t n_text = cut ? n - n_json - 1 : 5;
    gr_diag d;
    gr_diag_init(&d);
    gr_tokenizer *t = NULL;
    if (gr_tokenizer_parse(&t, json, n_json, NULL, 0, &d) == GR_OK) {
        gr_ids ids = {0};
        gr_str back = {0};
        for (unsigned flags = 0; flags < 4; flags++)
            if (gr_tokenizer_encode(t, text, n_text, flags, &ids, &d) == GR_OK)
                gr_tokenizer_decode(t, ids.id, ids.n, flags & 1, &back);
        gr_str_release(&back);
        free(ids.id);
        gr_tokenizer_free(t);
    } else if (!d.n_errors) {
        abort(); /* refused without a message */
    }
    t = NULL;
    if (gr_tokenizer_parse(&t, NULL, 0, json, n_json, &d) == GR_OK) gr_tokenizer_free(t);
    gr_diag_release(&d);
    return 0;
}
