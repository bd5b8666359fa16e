/* Text from others, escaped so that a terminal shows it and does not interpret it. */
#include "runtime/base/base.h"
#include "runtime/base/visible.h"

#include <string.h>
#include <utf8proc.h>

/* Joiners are parts of words and of signs. */
static bool is_hidden(utf8proc_int32_t code)
{
    const utf8proc_category_t c = utf8proc_category(code);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP ||
           (c == UTF8PROC_CATEGORY_CF && code != 0x200c && code != 0x200d);
}

static void add_code(gr_str *s, utf8proc_int32_t code)
{
    if (code == '\n')
        gr_str_puts(s, "\\n");
    else if (code == '\r')
        gr_str_puts(s, "\\r");
    else
        gr_str_printf(s, code < 0x80 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)code);
}

void gr_str_visible(gr_str *s, const char *bytes, size_t n, bool lines)
{
    while (n) {
        utf8proc_int32_t code;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)bytes, (utf8proc_ssize_t)n, &code);
        if (used <= 0) {
            gr_str_printf(s, "\\x%02x", (unsigned char)*bytes);
            used = 1;
        } else if (is_hidden(code) && code != '\t' && !(code == '\n' && lines)) {
            add_code(s, code);
        } else {
            gr_str_add(s, bytes, (size_t)used);
        }
        bytes += used;
        n -= (size_t)used;
    }
}

char *gr_excerpt(const char *bytes, size_t n)
{
    char text[64];
    const size_t shown = GR_MIN(n, sizeof(text) - 4);
    for (size_t i = 0; i < shown; i++) text[i] = bytes[i] < 32 || bytes[i] > 126 ? '?' : bytes[i];
    strcpy(text + shown, shown < n ? "..." : "");
    return gr_strdup(text);
}
