/* Runs a command again and again, each time with another of its calls of libc disturbed (inject.c), and holds
 * that
 *
 *   - it ends with 0 and what an undisturbed run makes, bit for bit, or with 1 to 3 and a message, or is
 * killed by us; no other signal, and within a minute;
 *   - files under their final names are those of before or those of the undisturbed run; lines of a log are
 * the first ones of its lines, the last perhaps cut short;
 *   - where a way to go on is given (-r), it ends with 0, and leaves what the undisturbed run leaves.
 *
 * usage: drive -i INJECT.SO -f FAULTS [OPTION]... COMMAND [ARGUMENT]...
 *   -f FILE     a fault a line, KIND HOW, or KIND HOW lasts: the call and all behind it
 *   -s N        at most N of the calls, evenly spread (all of them)
 *   -t FOLDER   what is there before
 *   -r COMMAND  how to go on, to the shell
 *   -c          standard output is compared, too
 *   -o          only calls of the program and its libraries (FAULT_CALLER)
 *   -v          say what each disturbed run did
 *   -n N        only the N-th call
 *   -a FOLDER   what may be there besides, such as checkpoints not yet pruned
 * Processes that the command starts are left alone, but for those of its own program. The command runs in a
 * folder `scratch`, which is made in the current one; each fault prints a row of docs/RELIABILITY.md, where
 * the command makes such calls.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/faults.h"
#include "tests/faults/process.h"
#include "tests/faults/tree.h"

enum { MOST_FAILURES = 10 };

static const char *const kind_names[] = {
#define X(name) #name,
    FAULT_KINDS(X)
#undef X
};

typedef struct driver {
    const char *inject, *faults, *before, *besides, *go_on, *program;
    bool own, output, loud;
    unsigned long sharding, only;
    char kind[16], how[16]; /* of the row that is tried */
    bool lasts;
    char **command;
    char *counts_path;
    fault_counts *counts;
    tree start, good, also;
} driver;

/* What became of the disturbed runs. */
typedef struct tally {
    uint64_t calls, runs, injected, unharmed, refused, killed, went_on, debris, wrong;
} tally;

/* ---- one run
 * ---------------------------------------------------------------------------------------------------------
 */

static void set(const char *name, char *value)
{
    setenv(name, value, 1);
    free(value);
}

typedef struct disturbance {
    const driver *v;
    uint64_t n; /* 0: calls are only counted */
} disturbance;

static void disturb(void *user)
{
    const disturbance *d = user;
    const driver *v = d->v;
    set("LD_PRELOAD", text_of("%s", v->inject));
    set("FAULT_COUNTS", text_of("%s", v->counts_path));
    set("FAULT_PROGRAM", text_of("%s", v->program));
    if (d->n) set("FAULT", text_of("%s:%llu:%s", v->kind, (unsigned long long)d->n, v->how));
    if (v->lasts) setenv("FAULT_LASTS", "1", 1);
    if (v->own) setenv("FAULT_CALLER", "own", 1);
}

static int run_disturbed(const driver *v, uint64_t n)
{
    disturbance d = {v, n};
    return run_command(v->command, disturb, &d);
}

static void begin(const driver *v)
{
    tree_remove("scratch");
    if (mkdir("scratch", 0777)) abort();
    tree_put(&v->start, "scratch");
    memset(v->counts, 0, sizeof(*v->counts));
}

/* What a run has left, and what it has printed where that counts. */
static tree left(const driver *v)
{
    unlink("scratch/standard-output");
    if (v->output && rename("out", "scratch/standard-output")) abort();
    return tree_take("scratch");
}

/* ---- what must hold
 * -------------------------------------------------------------------------------------------------- */

static bool is_log(const char *path)
{
    const size_t n = strlen(path);
    return n > 6 && !strcmp(path + n - 6, ".jsonl");
}

/* Whether a folder of a checkpoint has all that it should. */
static bool is_complete(const tree *all, const tree *t, const tree_node *folder)
{
    const size_t n = strlen(folder->path);
    for (size_t i = 0; i < all->n; i++) {
        const char *path = all->nodes[i].path;
        if (!strncmp(path, folder->path, n) && path[n] == '/' && !tree_find(t, path)) return false;
    }
    return true;
}

/* Whether a link points at what is there, beside it: `best` may be that of an earlier iteration. */
static bool leads_somewhere(const tree *t, const tree_node *link)
{
    const char *slash = strrchr(link->path, '/');
    char *path = text_of("%.*s%s", slash ? (int)(slash - link->path) + 1 : 0, link->path, link->bytes);
    const bool there = tree_find(t, path) != NULL;
    free(path);
    return there;
}

/* Why what is there under final names is not whole, or NULL. */
static char *is_damaged(const driver *v, const tree *t)
{
    for (size_t i = 0; i < t->n; i++) {
        const tree_node *x = &t->nodes[i], *was = tree_find(&v->start, x->path),
                        *good = tree_find(&v->good, x->path);
        if (!good) good = tree_find(&v->also, x->path);
        if (tree_is_aside(x->path) || (was && tree_same(x, was)) || !strcmp(x->path, "standard-output"))
            continue;
        if (!good && x->kind == 'd') continue;
        if (x->kind == 'l' && leads_somewhere(t, x)) continue;
        if (!good) return text_of("a file that nobody expects: %s", x->path);
        if (x->kind == 'd' && strstr(x->path, "checkpoints/step-") &&
            !(is_complete(&v->good, t, x) && is_complete(&v->also, t, x)))
            return text_of("half of %s", x->path);
        if (!(is_log(x->path) ? tree_begins(x, good) : tree_same(x, good)))
            return text_of("a half %s", x->path);
    }
    return NULL;
}

static void complain(const driver *v, tally *t, uint64_t n, char *why)
{
    t->wrong++;
    printf("WRONG %s %s call %llu (%s): %s\n", v->kind, v->how, (unsigned long long)n, v->counts->what, why);
    show_begin("err");
    free(why);
}

/* The way on is undisturbed. */
static char *go_on(const driver *v, tally *t)
{
    const int status = run_shell(v->go_on);
    if (status) return text_of("it does not go on: status %x", (unsigned)status);
    tree now = left(v);
    char *why = tree_differs(&now, &v->good, &v->also, &t->debris);
    if (why) {
        char *longer = text_of("it goes on to %s", why);
        free(why);
        why = longer;
    }
    tree_release(&now);
    t->went_on += !why;
    return why;
}

/* Why a disturbed run did what it must not, or NULL. */
static char *judge(const driver *v, tally *t, int status)
{
    tree now = left(v);
    char *why = NULL;
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !strncmp(v->how, "kill", 4);
    if (status == -1)
        why = text_of("hangs");
    else if (!killed && !WIFEXITED(status))
        why = text_of("signal %d", WTERMSIG(status));
    else if (!status)
        why = tree_differs(&now, &v->good, &v->also, &t->debris);
    else if (!killed && (WEXITSTATUS(status) > 3 || !has_message()))
        why =
            text_of("exit status %d and %s", WEXITSTATUS(status), has_message() ? "a message" : "no message");
    else
        why = is_damaged(v, &now);
    tree_release(&now);
    t->unharmed += !why && !status;
    t->killed += !why && killed;
    t->refused += !why && status && !killed;
    if (!why && status && v->go_on) why = go_on(v, t);
    return why;
}

/* ---- all runs
 * -------------------------------------------------------------------------------------------------------- */

/* What the command does undisturbed, and how often it makes calls of each kind. */
static fault_counts study(driver *v)
{
    begin(v);
    const int status = run_disturbed(v, 0);
    if (status) {
        printf("faults: undisturbed, it ends with status %x\n", (unsigned)status);
        show_begin("err");
        exit(2);
    }
    v->good = left(v);
    return *v->counts;
}

static uint64_t calls_of(const char *kind, const fault_counts *calls)
{
    for (size_t k = 0; k < FAULT_N_KINDS; k++)
        if (!strcmp(kind, kind_names[k])) return calls->n[k];
    printf("faults: no kind '%s'\n", kind);
    exit(2);
}

static void disturb_one(const driver *v, tally *t, uint64_t n)
{
    begin(v);
    const int status = run_disturbed(v, n);
    t->runs++;
    t->injected += v->counts->injected > 0 || !strncmp(v->how, "kill", 4);
    char *why = judge(v, t, status);
    if (v->loud) {
        printf("%s %s call %llu (%s): status %x\n", v->kind, v->how, (unsigned long long)n, v->counts->what,
               (unsigned)status);
        show_begin("err");
    }
    if (why) complain(v, t, n, why);
}

static void parse(driver *v, int argc, char **argv)
{
    *v = (driver){.sharding = 1UL << 62};
    for (int c; (c = getopt(argc, argv, "+i:f:s:t:a:r:ocvn:")) != -1;) switch (c) {
        case 'i':
            v->inject = realpath(optarg, NULL);
            break;
        case 'f':
            v->faults = optarg;
            break;
        case 's':
            v->sharding = strtoul(optarg, NULL, 10);
            break;
        case 't':
            v->before = optarg;
            break;
        case 'a':
            v->besides = optarg;
            break;
        case 'r':
            v->go_on = optarg;
            break;
        case 'o':
            v->own = true;
            break;
        case 'c':
            v->output = true;
            break;
        case 'v':
            v->loud = true;
            break;
        case 'n':
            v->only = strtoul(optarg, NULL, 10);
            break;
        default:
            exit(2);
        }
    v->command = argv + optind;
    if (optind < argc)
        v->program = strrchr(argv[optind], '/') ? strrchr(argv[optind], '/') + 1 : argv[optind];
    if (!v->inject || !v->faults || optind == argc) {
        fprintf(stderr, "usage: see the head of drive.c\n");
        exit(2);
    }
}

static void make_counts(driver *v)
{
    v->counts_path = text_of("%s/counts", getcwd(NULL, 0));
    const int fd = open(v->counts_path, O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof(*v->counts))) abort();
    v->counts = mmap(NULL, sizeof(*v->counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (v->counts == MAP_FAILED) abort();
    close(fd);
}

/* Whether all is well with this fault. */
static bool try_fault(const driver *v, uint64_t calls)
{
    tally t = {.calls = calls};
    if (!calls) return true;
    const uint64_t runs = calls < v->sharding ? calls : v->sharding;
    for (uint64_t i = 0; i < runs && t.wrong < MOST_FAILURES; i++) {
        const uint64_t n = 1 + i * calls / runs + (calls / runs) / 2;
        if (!v->only || v->only == n) disturb_one(v, &t, n);
    }
    printf("| %s %s%s | %llu | %llu | %llu | %llu | %llu | %llu | %llu |\n", v->kind, v->how,
           v->lasts ? " from then on" : "", (unsigned long long)t.calls, (unsigned long long)t.injected,
           (unsigned long long)t.unharmed, (unsigned long long)t.refused, (unsigned long long)t.killed,
           (unsigned long long)t.went_on, (unsigned long long)t.wrong);
    if (t.debris && v->loud) printf("%llu files were left aside\n", (unsigned long long)t.debris);
    return !t.wrong;
}

int main(int argc, char **argv)
{
    driver v;
    parse(&v, argc, argv);
    make_counts(&v);
    if (v.before) v.start = tree_take(v.before);
    if (v.besides) v.also = tree_take(v.besides);
    FILE *faults = fopen(v.faults, "re");
    if (!faults) abort();
    const fault_counts calls = study(&v);
    bool well = true;
    for (char line[64], lasts[8] = ""; fgets(line, sizeof(line), faults); lasts[0] = 0) {
        if (sscanf(line, "%15s %15s %7s", v.kind, v.how, lasts) < 2) abort();
        v.lasts = !strcmp(lasts, "lasts");
        well &= try_fault(&v, calls_of(v.kind, &calls));
    }
    fclose(faults);
    return well ? 0 : 1;
}
