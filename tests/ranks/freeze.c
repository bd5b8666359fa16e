/* Stop one thread of a process for ever, as a kernel that never ends would: usage: freeze PID. The thread is
 * the main one, caught in the program's own code and not in a library, where it might hold a lock that others
 * need. Ends with the process; 77 where the system lets nobody trace. */
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

static bool is_own_code(pid_t pid, unsigned long at)
{
    char path[64], exe[4096], line[8192];
    bool own = false;
    snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, exe, sizeof(exe) - 1);
    exe[n > 0 ? n : 0] = '\0';
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && !own && fgets(line, sizeof(line), f)) {
        unsigned long from, to;
        own = sscanf(line, "%lx-%lx", &from, &to) == 2 && at >= from && at < to && n > 0 && strstr(line, exe);
    }
    if (f) fclose(f);
    return own;
}

int main(int argc, char **argv)
{
    pid_t pid = argc == 2 ? (pid_t)atoi(argv[1]) : 0;
    int status;
    if (pid <= 0 || ptrace(PTRACE_SEIZE, pid, NULL, NULL)) {
        fprintf(stderr, "freeze: %s\n", strerror(errno));
        return 77;
    }
    for (;;) {
        if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) || waitpid(pid, &status, __WALL) < 0 ||
            WIFEXITED(status))
            return 1;
        if (is_own_code(pid, place_of(pid))) break;
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
