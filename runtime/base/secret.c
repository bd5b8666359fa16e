/* runtime/base/secret.c: see its header. */
#include "runtime/base/secret.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

gr_status gr_secret_new(char text[GR_SECRET_HEX], gr_diag *d)
{
    unsigned char bytes[(GR_SECRET_HEX - 1) / 2];
    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
        return gr_diag_error(d, (gr_loc){0}, GR_E_FAILED, "no random bytes: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(bytes); i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return GR_OK;
}

bool gr_secret_same(const char *given, const char *secret)
{
    const size_t n = strlen(secret), m = given ? strlen(given) : 0;
    unsigned char differs = n != m;
    for (size_t i = 0; i < n; i++) differs |= (unsigned char)(secret[i] ^ (m ? given[i % m] : 0));
    return !differs;
}
