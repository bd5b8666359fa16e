/* runtime/comm/loopback.c: graphrun_loopback.so, loaded into mpirun alone where all ranks are on this host.
 *
 * Open MPI 4.1 listens on all addresses, whatever interfaces it is told to use (oob_tcp_if_include says whom
 * it answers). Here what would be bound to any address is bound to the loopback device. Programs that mpirun
 * starts are left as they are: this library takes itself out of LD_PRELOAD.
 */
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int bind_as_ever(int fd, const struct sockaddr *to, socklen_t n)
{
    int (*real)(int, const struct sockaddr *, socklen_t);
    void *found = dlsym(RTLD_NEXT, "bind");
    memcpy(&real, &found, sizeof(real)); /* ISO C has no conversion from one to the other */
    return real(fd, to, n);
}

/* As glibc declares it. */
__attribute__((visibility("default"))) int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t n)
{
    const struct sockaddr *to = address.__sockaddr__;
    struct sockaddr_storage here = {0};
    struct sockaddr_in *v4 = (void *)&here;
    struct sockaddr_in6 *v6 = (void *)&here;
    if (!to || n > sizeof(here)) return bind_as_ever(fd, to, n);
    memcpy(&here, to, n);
    if (to->sa_family == AF_INET && v4->sin_addr.s_addr == htonl(INADDR_ANY))
        v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (to->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
        v6->sin6_addr = in6addr_loopback;
    return bind_as_ever(fd, (const struct sockaddr *)&here, n);
}

/* It is the first one there. */
__attribute__((constructor)) static void leave_no_trace(void)
{
    const char *all = getenv("LD_PRELOAD"), *rest = all ? strchr(all, ':') : NULL;
    char *kept = rest ? strdup(rest + 1) : NULL;
    if (kept)
        setenv("LD_PRELOAD", kept, 1);
    else
        unsetenv("LD_PRELOAD");
    free(kept);
}
