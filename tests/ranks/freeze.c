/* Stop one thread of a process for ever, as a kernel that never ends would: usage: freeze PID <PLACES, which
 * are lines of an address and a size in hexadecimal digits, as nm -S prints them of the process's program.
 * The thread is the main one, caught in one of these functions, which hold no lock that others need. Ends
 * with the process; 77 where the system lets nobody trace. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Where a stopped thread is: 0, it is in the kernel, or that cannot be read. */
static unsigned long place_of(pid_t pid)
{
    char path[64], text[256] = "";
    unsigned long at = 0;
    long call = 0;
    snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
    FILE *f = fopen(path, "r");
    bool read = f && fgets(text, sizeof(text), f) && sscanf(text, "%ld %*x %lx", &call, &at) == 2;
    if (f) fclose(f);
    return read && call == -1 ? at : 0;
}

/* Where the program begins in the process's memory. */
static unsigned long base_of(pid_t pid)
{
    char path[64], exe[4096], line[8192];
    unsigned long base = 0;
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, exe, sizeof(exe) - 1);
    exe[n > 0 ? n : 0] = '\0';
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && !base && fgets(line, sizeof(line), f))
        if (n > 0 && strstr(line, exe)) base = strtoul(line, NULL, 16);
    if (f) fclose(f);
    return base;
}

typedef struct place {
    unsigned long at, bytes;
} place;

enum { MOST_PLACES = 64 };

static bool is_in(const place *places, int n, unsigned long at)
{
    for (int i = 0; i < n; i++)
        if (at >= places[i].at && at - places[i].at < places[i].bytes) return true;
    return false;
}

int main(int argc, char **argv)
{
    pid_t pid = argc == 2 ? (pid_t)atoi(argv[1]) : 0;
    int status, n = 0;
    place places[MOST_PLACES];
    while (n < MOST_PLACES && scanf("%lx %lx", &places[n].at, &places[n].bytes) == 2) n++;
    if (!n) {
        fprintf(stderr, "freeze: no places on standard input\n");
        return 1;
    }
    if (pid <= 0 || ptrace(PTRACE_SEIZE, pid, NULL, NULL)) {
        fprintf(stderr, "freeze: %s\n", strerror(errno));
        return 77;
    }
    const unsigned long base = base_of(pid);
    for (;;) {
        if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) || waitpid(pid, &status, __WALL) < 0 ||
            WIFEXITED(status))
            return 1;
        const unsigned long at = place_of(pid);
        if (at && is_in(places, n, at - base)) break;
        ptrace(PTRACE_CONT, pid, NULL, NULL);
        usleep(300);
    }
    puts("frozen");
    fflush(stdout);
    while (waitpid(pid, &status, __WALL) >= 0 && !WIFEXITED(status) &&
           !WIFSIGNALED(status)) { /* signals wait, too */
    }
    return 0;
}
