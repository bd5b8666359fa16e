/* usage: terminal FILE COMMAND...: run a command on a terminal of its own, which goes away once FILE is there
 * and not empty. Ends as the command does: 99 where it was a signal. */
#include <poll.h>
#include <pty.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char text[4096];
    int terminal, status;
    struct stat s;
    if (argc < 3) return 98;
    const pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    if (pid < 0) return 77;
    if (!pid) {
        execvp(argv[2], argv + 2);
        _exit(98);
    }
    while (stat(argv[1], &s) || !s.st_size) {
        if (poll(&(struct pollfd){terminal, POLLIN, 0}, 1, 20) <= 0) continue;
        const ssize_t n = read(terminal, text, sizeof(text));
        if (n <= 0) break;
        fwrite(text, 1, (size_t)n, stdout);
    }
    close(terminal);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
