/* ops/reward/http_command.c: see its header. */
#include "ops/reward/http_command.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/guard.h"

const char *gr_http_url_error(const char *url)
{
    if (strncmp(url, "http://", 7) && strncmp(url, "https://", 8))
        return "it begins with http:// or https://";
    if (!strstr(url, "//")[2]) return "it names no host";
    for (; *url; url++)
        if (*url <= ' ' || *url > '~' || strchr("'\"\\", *url))
            return "a character in it must be escaped (%XX)";
    return NULL;
}

gr_status gr_http_command(char **out, const char *url, double timeout, unsigned in_flight, gr_loc at,
                          gr_diag *d)
{
    char *path = gr_program_beside("graphrun-http");
    gr_status st = GR_OK;
    if (access(path, X_OK))
        st = gr_diag_error(d, at, GR_E_IO,
                           "'http' needs the program '%s', which is built where there is libcurl", path);
    else
        *out = gr_printf("exec '%s' --timeout %.17g --in-flight %u '%s'", path, timeout, in_flight, url);
    free(path);
    return st;
}
