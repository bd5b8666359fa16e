/* runtime/base/secret.h: tokens that only those know who were told.
 *
 * Threads: any.
 */
#ifndef GR_RUNTIME_BASE_SECRET_H
#define GR_RUNTIME_BASE_SECRET_H

#include "runtime/base/base.h"

#define GR_SECRET_HEX 33 /* 128 bits as lower-case digits, and a NUL */

/* A new one of the system's random bytes. GR_E_FAILED where it has none. */
GR_NODISCARD gr_status gr_secret_new(char text[GR_SECRET_HEX], gr_diag *d);

/* Takes as long for a wrong token as for the right one, so that time tells nothing of it. given: NULL is
 * wrong. */
bool gr_secret_same(const char *given, const char *secret);

#endif
