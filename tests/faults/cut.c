/* A power cut at each point of a run. A run is traced (inject.c); from the trace come the states that its
 * folder may have when the power goes behind the k-th change, by what file systems promise; and from each
 * state the run must go on to the bits of an undisturbed one, or be refused with the name of an earlier
 * checkpoint from which it does.
 *
 * Of a change only this is certain: bytes of a file that was synced behind it, names in a folder that was
 * synced behind it. The rest may be there or not:
 *
 *   strict     all of it is there, in order; the last write perhaps in part
 *   empty      all names are there, bytes that were not synced are not: files are shorter (ext4 with late
 * allocation) zeros      all names are there and files have their lengths, bytes that were not synced are
 * zeros (XFS, writeback) journal    names up to some point, and all that any sync covered; of other bytes
 * some (ext4, ordered by its journal) loose      of each folder its names up to a point of its own; of other
 * bytes some (what POSIX says)
 *
 * usage: cut -i INJECT.SO -t FOLDER -r COMMAND [-s STATES] [-x CHECKPOINTS] [-m] [-u] COMMAND [ARGUMENT]...
 *   -t FOLDER   what is there before, all of it on the disk
 *   -r COMMAND  how to go on, to the shell: from $FROM where that is set
 *   -s STATES   at most so many states (all points, each model, twice)
 *   -x FOLDER   where checkpoints step-N lie: one whose name was synced may not be lost
 *   -m          lines of metrics and samples may not be lost either
 *   -a FOLDER   what may be there besides, such as checkpoints not yet pruned
 *   -u          as if nothing had been synced: what then goes wrong shows that this program sees it
 *   -n STATE    only this one, and leave it in scratch-STATE
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/faults/faults.h"
#include "tests/faults/process.h"
#include "tests/faults/tree.h"

#define MODELS(X) X(strict) X(empty) X(zeros) X(journal) X(nondeterministic)

enum model {
#define X(name) MODEL_##name,
    MODELS(X)
#undef X
        N_MODELS
};

static const char *const model_names[] = {
#define X(name) #name,
    MODELS(X)
#undef X
};

enum { MOST_FILES = 20000, MOST_FDS = 4096, MOST_FAILURES = 10 };

/* ---- files as a trace makes them
 * ------------------------------------------------------------------------------------- */

/* A file, folder or link by its number, whatever names it has. Number 0 is the folder of the run. */
typedef struct object {
    char kind; /* as tree_node's */
    char *bytes;
    size_t n;
} object;

/* A name in a folder. */
typedef struct entry {
    int folder, object; /* object -1: the name is gone */
    char *name;
} entry;

typedef struct disk {
    object objects[MOST_FILES];
    int n_objects;
    entry *entries;
    size_t n_entries, cap_entries;
} disk;

static void disk_clear(disk *d)
{
    for (int i = 0; i < d->n_objects; i++) free(d->objects[i].bytes);
    for (size_t i = 0; i < d->n_entries; i++) free(d->entries[i].name);
    d->n_entries = 0;
    d->n_objects = 1;
    memset(d->objects, 0, sizeof(d->objects));
    d->objects[0].kind = 'd';
}

static entry *find_entry(const disk *d, int folder, const char *name)
{
    for (size_t i = 0; i < d->n_entries; i++)
        if (d->entries[i].folder == folder && d->entries[i].object >= 0 && !strcmp(d->entries[i].name, name))
            return &d->entries[i];
    return NULL;
}

static void put_entry(disk *d, int folder, const char *name, int to)
{
    entry *e = find_entry(d, folder, name);
    if (e) {
        e->object = to;
        return;
    }
    if (to < 0) return;
    if (d->n_entries == d->cap_entries) {
        d->cap_entries = d->cap_entries ? 2 * d->cap_entries : 256;
        d->entries = realloc(d->entries, d->cap_entries * sizeof(*d->entries));
    }
    d->entries[d->n_entries++] = (entry){folder, to, text_of("%s", name)};
}

static void resize(object *o, size_t n)
{
    if (n > o->n) {
        o->bytes = realloc(o->bytes, n + 1);
        memset(o->bytes + o->n, 0, n - o->n);
    }
    o->n = n;
}

static void overwrite(object *o, uint64_t at, const char *bytes, size_t n)
{
    if (at + n > o->n) resize(o, at + n);
    if (n) memcpy(o->bytes + at, bytes, n);
}

/* The object of a path below the run's folder; its folder and last name too. -1: none. */
static int look_up(const disk *d, const char *path, int *folder, char name[256])
{
    int at = 0;
    *folder = -1;
    name[0] = '\0';
    for (const char *c = path; *c && at >= 0;) {
        const size_t n = strcspn(c, "/");
        if (n && !(n == 1 && *c == '.')) {
            snprintf(name, 256, "%.*s", (int)n, c);
            *folder = at;
            const entry *e = find_entry(d, at, name);
            at = e ? e->object : -1;
        }
        c += n + (c[n] == '/');
        if (at < 0 && *c) *folder = -1; /* a folder on the way is not there */
    }
    return at;
}

static void disk_of_tree(disk *d, const tree *t)
{
    disk_clear(d);
    for (size_t i = 0; i < t->n; i++) {
        int folder;
        char name[256];
        look_up(d, t->nodes[i].path, &folder, name);
        const int o = d->n_objects++;
        d->objects[o].kind = t->nodes[i].kind;
        overwrite(&d->objects[o], 0, t->nodes[i].bytes, t->nodes[i].n);
        put_entry(d, folder, name, o);
    }
}

static void write_out(const disk *d, int folder, const char *path)
{
    for (size_t i = 0; i < d->n_entries; i++) {
        const entry *e = &d->entries[i];
        if (e->folder != folder || e->object < 0) continue;
        const object *o = &d->objects[e->object];
        char *child = text_of("%s/%s", path, e->name);
        if (o->kind == 'd') {
            if (mkdir(child, 0777)) abort();
            write_out(d, e->object, child);
        } else if (o->kind == 'l') {
            char *target = text_of("%.*s", (int)o->n, o->n ? o->bytes : "");
            if (symlink(target, child)) abort();
            free(target);
        } else {
            const int fd = open(child, O_WRONLY | O_CREAT | O_TRUNC, 0666);
            if (fd < 0 || (o->n && write(fd, o->bytes, o->n) != (ssize_t)o->n)) abort();
            close(fd);
        }
        free(child);
    }
}

/* ---- the trace
 * ------------------------------------------------------------------------------------------------------- */

enum what { NAME, BYTES, LENGTH, SYNC };

/* A change, of what it changes by number. */
typedef struct change {
    enum what what;
    int object;              /* NAME: that gets it, -1: none; BYTES, LENGTH, SYNC: of it */
    char kind;               /* NAME: of an object that it makes; 0: it makes none */
    int folder, from_folder; /* NAME; from_folder -1: it had no other name */
    char *name, *from;
    uint64_t offset;
    char *bytes;
    size_t n;
} change;

typedef struct history {
    change *all;
    size_t n, cap;
} history;

static change *add(history *h, change c)
{
    if (h->n == h->cap) h->all = realloc(h->all, (h->cap = h->cap ? 2 * h->cap : 1024) * sizeof(*h->all));
    h->all[h->n] = c;
    return &h->all[h->n++];
}

/* The state that a change makes on a disk where it happens. */
static void apply(disk *d, const change *c)
{
    if (c->what == SYNC) return;
    if (c->what == BYTES) {
        overwrite(&d->objects[c->object], c->offset, c->bytes, c->n);
    } else if (c->what == LENGTH) {
        resize(&d->objects[c->object], c->offset);
    } else {
        if (c->kind) d->objects[c->object].kind = c->kind;
        if (c->kind == 'l') overwrite(&d->objects[c->object], 0, c->bytes, c->n);
        const entry *was = c->from ? find_entry(d, c->from_folder, c->from) : NULL;
        if (c->from && !was) return; /* what it moves never came */
        if (c->from) put_entry(d, c->from_folder, c->from, -1);
        put_entry(d, c->folder, c->name, c->object);
    }
}

static void record(history *h, disk *d, change c)
{
    apply(d, add(h, c));
}

typedef struct reader {
    const char *root; /* the folder of the run, with a slash at its end */
    disk *d;
    history *h;
    int fds[MOST_FDS]; /* objects */
} reader;

static const char *below(const reader *r, const char *path)
{
    const size_t n = strlen(r->root);
    return strncmp(path, r->root, n) ? "" : path + n;
}

static int new_object(reader *r, int folder, const char *name, char kind, const char *bytes, size_t n)
{
    const int o = r->d->n_objects++;
    if (o == MOST_FILES) abort();
    record(r->h, r->d,
           (change){.what = NAME,
                    .object = o,
                    .kind = kind,
                    .folder = folder,
                    .from_folder = -1,
                    .name = text_of("%s", name),
                    .bytes = (char *)bytes,
                    .n = n});
    return o;
}

static void read_open(reader *r, const trace_record *t, const char *path)
{
    int folder;
    char name[256];
    int o = look_up(r->d, below(r, path), &folder, name);
    if (o < 0)
        o = new_object(r, folder, name, 'f', NULL, 0);
    else if (t->flags & O_TRUNC && r->d->objects[o].n)
        record(r->h, r->d, (change){.what = LENGTH, .object = o});
    if (t->fd < MOST_FDS) r->fds[t->fd] = o;
}

static void read_name(reader *r, const trace_record *t, const char *path, const char *more)
{
    int folder, to_folder;
    char name[256], to[256];
    const int o = look_up(r->d, below(r, path), &folder, name);
    if (t->op == TRACE_UNLINK) {
        record(r->h, r->d,
               (change){.what = NAME,
                        .object = -1,
                        .folder = folder,
                        .from_folder = -1,
                        .name = text_of("%s", name)});
    } else if (t->op == TRACE_MKDIR) {
        new_object(r, folder, name, 'd', NULL, 0);
    } else if (t->op == TRACE_SYMLINK) {
        new_object(r, folder, name, 'l', more, t->n);
    } else {
        look_up(r->d, below(r, more), &to_folder, to);
        record(r->h, r->d,
               (change){.what = NAME,
                        .object = o,
                        .folder = to_folder,
                        .name = text_of("%s", to),
                        .from_folder = t->op == TRACE_LINK ? -1 : folder,
                        .from = t->op == TRACE_LINK ? NULL : text_of("%s", name)});
    }
}

static void read_record(reader *r, const trace_record *t, const char *path, char *more)
{
    const int o = t->fd >= 0 && t->fd < MOST_FDS ? r->fds[t->fd] : 0;
    switch (t->op) {
    case TRACE_OPEN:
        read_open(r, t, path);
        break;
    case TRACE_WRITE:
        record(r->h, r->d,
               (change){.what = BYTES, .object = o, .offset = t->offset, .bytes = more, .n = t->n});
        break;
    case TRACE_TRUNCATE:
        record(r->h, r->d, (change){.what = LENGTH, .object = o, .offset = t->offset});
        break;
    case TRACE_SYNC:
        record(r->h, r->d, (change){.what = SYNC, .object = o});
        break;
    default:
        read_name(r, t, path, more);
    }
}

static void read_trace(history *h, disk *d, const char *file, const char *root)
{
    reader r = {.root = root, .d = d, .h = h};
    trace_record t;
    FILE *f = fopen(file, "r");
    if (!f) abort();
    while (fread(&t, sizeof(t), 1, f) == 1) {
        char *path = calloc(1, t.path_bytes + 1), *more = calloc(1, t.n + 1);
        if (fread(path, 1, t.path_bytes, f) != t.path_bytes || fread(more, 1, t.n, f) != t.n) abort();
        read_record(&r, &t, path, more);
        free(path); /* more is the change's */
    }
    fclose(f);
}

/* ---- states behind a cut
 * --------------------------------------------------------------------------------------------- */

static uint64_t random_state;

/* Below n. xorshift64*, Vigna 2016. */
static uint64_t draw(uint64_t n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (random_state * 2685821657736338717u >> 33) % n;
}

typedef struct cut {
    const history *h;
    size_t k; /* changes [0, k) came before it */
    enum model model;
    size_t *promised; /* [objects] behind the last sync of each */
    size_t *synced;   /* [objects] the same, but with -u: changes before it are certain */
    size_t any_sync;  /* behind the last of all */
    size_t *names_to; /* [objects] of each folder: names before it are there */
    size_t torn;      /* bytes of the last write */
} cut;

static void study(cut *c, int n_objects, bool no_sync)
{
    c->promised = calloc((size_t)n_objects, sizeof(*c->promised));
    c->synced = calloc((size_t)n_objects, sizeof(*c->synced));
    c->names_to = calloc((size_t)n_objects, sizeof(*c->names_to));
    for (size_t i = 0; i < c->k; i++)
        if (c->h->all[i].what == SYNC) c->promised[c->h->all[i].object] = i + 1;
    for (int o = 0; o < n_objects && !no_sync; o++) {
        c->synced[o] = c->promised[o];
        c->any_sync = c->any_sync > c->synced[o] ? c->any_sync : c->synced[o];
    }
    const size_t together = c->any_sync + draw(c->k - c->any_sync + 1);
    for (int o = 0; o < n_objects; o++)
        c->names_to[o] = c->model == MODEL_journal            ? together
                         : c->model == MODEL_nondeterministic ? c->synced[o] + draw(c->k - c->synced[o] + 1)
                                                              : c->k;
    const change *last = &c->h->all[c->k - 1];
    c->torn = last->what == BYTES && c->model == MODEL_strict ? draw(last->n + 1) : SIZE_MAX;
}

/* Whether a name is there: of one that moves, both folders know. */
static bool has_name(const cut *c, size_t i)
{
    const change *x = &c->h->all[i];
    return i < c->names_to[x->folder] && (x->from_folder < 0 || i < c->names_to[x->from_folder]);
}

static bool has_bytes(const cut *c, size_t i)
{
    if (c->model == MODEL_strict || i < c->synced[c->h->all[i].object]) return true;
    return (c->model == MODEL_journal || c->model == MODEL_nondeterministic) && draw(2);
}

static void make_state(disk *d, const cut *c)
{
    for (size_t i = 0; i < c->k; i++) {
        change x = c->h->all[i];
        if (x.what == NAME && has_name(c, i)) apply(d, &x);
        if (x.what == LENGTH && has_bytes(c, i)) apply(d, &x);
        if (x.what != BYTES) continue;
        if (i + 1 == c->k && c->torn < x.n) x.n = c->torn;
        if (has_bytes(c, i))
            apply(d, &x);
        else if (c->model == MODEL_zeros && x.offset + x.n > d->objects[x.object].n)
            resize(&d->objects[x.object], x.offset + x.n);
    }
}

/* The last checkpoint whose name was certain: -1, none. */
static long certain_step(const cut *c, const disk *whole, const char *checkpoints)
{
    long last = -1;
    int folder;
    char name[256];
    const int o = checkpoints ? look_up(whole, checkpoints, &folder, name) : -1;
    for (size_t i = 0; o >= 0 && i < c->promised[o]; i++) {
        const change *x = &c->h->all[i];
        if (x->what == NAME && x->folder == o && x->object >= 0 && !strncmp(x->name, "step-", 5))
            last = strtol(x->name + 5, NULL, 10);
    }
    return last;
}

/* ---- what must hold
 * -------------------------------------------------------------------------------------------------- */

typedef struct cutter {
    const char *inject, *before, *go_on, *checkpoints, *besides;
    bool history_too, no_sync;
    size_t states, only;
    char **command;
    tree start, good, also;
    history h;
    disk first, whole;
} cutter;

typedef struct tally {
    size_t states, went_on, anew, went_back, lines_lost, wrong;
} tally;

/* "iterations 3 to 4" of what a run says: 2 were done; -1: it says nothing of the kind. */
static long done_before(void)
{
    char text[4096] = "";
    const int fd = open("out", O_RDONLY);
    (void)!read(fd, text, sizeof(text) - 1);
    close(fd);
    const char *at = strstr(text, "iterations ");
    return at ? strtol(at + strlen("iterations "), NULL, 10) - 1 : -1;
}

/* RUN@STEP of "graphrun exec --resume RUN@STEP goes on", of what was refused; NULL: it names none. */
static char *named_way_on(void)
{
    char text[4096] = "", from[256];
    const int fd = open("err", O_RDONLY);
    (void)!read(fd, text, sizeof(text) - 1);
    close(fd);
    const char *at = strstr(text, "exec --resume ");
    return at && sscanf(at, "exec --resume %255s", from) == 1 && strchr(from, '@') ? text_of("%s", from)
                                                                                   : NULL;
}

static bool is_log(const char *path)
{
    const size_t n = strlen(path);
    return n > 6 && !strcmp(path + n - 6, ".jsonl");
}

/* Logs count where they are asked for. */
static tree without_logs(const tree *t)
{
    tree out = {.nodes = malloc((t->n + 1) * sizeof(*t->nodes))};
    for (size_t i = 0; i < t->n; i++)
        if (!is_log(t->nodes[i].path)) out.nodes[out.n++] = t->nodes[i];
    return out;
}

/* How the folder differs from an undisturbed run's. */
static char *compare(const cutter *v, tally *t)
{
    uint64_t debris = 0;
    tree now = tree_take("scratch"), a = without_logs(&now), b = without_logs(&v->good);
    char *all = tree_differs(&now, &v->good, &v->also, &debris),
         *why = tree_differs(&a, &b, &v->also, &debris);
    if (all && !why) t->lines_lost++;
    if (v->history_too && !why) {
        why = all;
        all = NULL;
    }
    free(all);
    free(a.nodes);
    free(b.nodes);
    tree_release(&now);
    return why;
}

static char *go_back(const cutter *v, tally *t, long certain)
{
    char *from = named_way_on();
    if (!from && certain < 0) {
        t->anew++;
        return NULL; /* refused, and nothing was promised yet */
    }
    if (!from) return text_of("it is refused, and names no way on, though step %ld was certain", certain);
    setenv("FROM", from, 1);
    const int status = run_shell(v->go_on);
    unsetenv("FROM");
    free(from);
    t->went_back++;
    return status ? text_of("the way on that it names is none: status %x", (unsigned)status) : compare(v, t);
}

static char *judge(const cutter *v, tally *t, long certain)
{
    const int status = run_shell(v->go_on);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 3) return text_of("status %x", (unsigned)status);
    if (status && !has_message()) return text_of("it is refused without a word");
    if (status) return go_back(v, t, certain);
    if (v->checkpoints && done_before() >= 0 && done_before() < certain)
        return text_of("it goes on from %ld, though step %ld was certain", done_before(), certain);
    t->went_on++;
    return compare(v, t);
}

static void try_state(cutter *v, tally *t, size_t i, size_t n)
{
    static disk d;
    cut c = {.h = &v->h, .k = 1 + i * v->h.n / n, .model = (enum model)(i % N_MODELS)};
    c.k = c.k > v->h.n ? v->h.n : c.k;
    random_state = 88172645463325252u + 7919 * i;
    study(&c, v->whole.n_objects, v->no_sync);
    disk_of_tree(&d, &v->start);
    d.n_objects = v->whole.n_objects;
    make_state(&d, &c);
    const long certain = certain_step(&c, &v->whole, v->checkpoints);
    tree_remove("scratch");
    if (mkdir("scratch", 0777)) abort();
    write_out(&d, 0, "scratch");
    if (v->only != SIZE_MAX) {
        char *copy = text_of("rm -rf ../scratch-%zu && cp -r . ../scratch-%zu", i, i);
        run_shell(copy);
        free(copy);
    }
    char *why = judge(v, t, certain);
    t->states++;
    if (why) {
        t->wrong++;
        printf("WRONG state %zu (%s, behind change %zu of %zu): %s\n", i, model_names[c.model], c.k, v->h.n,
               why);
        show_begin("err");
    }
    free(why);
    free(c.promised);
    free(c.synced);
    free(c.names_to);
}

/* ---- the run that is traced
 * ------------------------------------------------------------------------------------------ */

static void trace(void *user)
{
    const cutter *v = user;
    char *folder = getcwd(NULL, 0);
    setenv("LD_PRELOAD", v->inject, 1);
    setenv("FAULT_TRACE", text_of("%s/trace", folder), 1);
    setenv("FAULT_PATH", text_of("%s/scratch", folder), 1);
    setenv("FAULT_PROGRAM", strrchr(v->command[0], '/') ? strrchr(v->command[0], '/') + 1 : v->command[0], 1);
}

static void run_once(cutter *v)
{
    char *root = text_of("%s/scratch/", getcwd(NULL, 0));
    tree_remove("scratch");
    if (mkdir("scratch", 0777)) abort();
    unlink("trace");
    v->start = tree_take(v->before);
    tree_put(&v->start, "scratch");
    const int status = run_command(v->command, trace, v);
    if (status) {
        printf("faults: undisturbed, it ends with status %x\n", (unsigned)status);
        show_begin("err");
        exit(2);
    }
    v->good = tree_take("scratch");
    disk_of_tree(&v->whole, &v->start);
    read_trace(&v->h, &v->whole, "trace", root);
    free(root);
}

/* What the trace makes is what the run has made: else it is no trace. */
static void check_trace(const cutter *v)
{
    uint64_t debris = 0;
    tree_remove("scratch");
    if (mkdir("scratch", 0777)) abort();
    write_out(&v->whole, 0, "scratch");
    tree made = tree_take("scratch");
    char *why = tree_differs(&made, &v->good, &v->also, &debris);
    if (why || debris) {
        printf("faults: the trace makes %s, %llu files aside\n", why ? why : "no other file",
               (unsigned long long)debris);
        exit(2);
    }
    tree_release(&made);
}

static void parse(cutter *v, int argc, char **argv)
{
    v->states = v->only = SIZE_MAX;
    for (int c; (c = getopt(argc, argv, "+i:t:r:s:x:n:a:mu")) != -1;) switch (c) {
        case 'i':
            v->inject = realpath(optarg, NULL);
            break;
        case 't':
            v->before = optarg;
            break;
        case 'r':
            v->go_on = optarg;
            break;
        case 's':
            v->states = strtoul(optarg, NULL, 10);
            break;
        case 'x':
            v->checkpoints = optarg;
            break;
        case 'n':
            v->only = strtoul(optarg, NULL, 10);
            break;
        case 'm':
            v->history_too = true;
            break;
        case 'a':
            v->besides = optarg;
            break;
        case 'u':
            v->no_sync = true;
            break;
        default:
            exit(2);
        }
    v->command = argv + optind;
    if (!v->inject || !v->before || !v->go_on || optind == argc) {
        fprintf(stderr, "usage: see the head of cut.c\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    static cutter v;
    tally t = {0};
    parse(&v, argc, argv);
    if (v.besides) v.also = tree_take(v.besides);
    run_once(&v);
    check_trace(&v);
    const size_t all = 2 * N_MODELS * v.h.n, n = all < v.states ? all : v.states;
    for (size_t i = 0; i < n && t.wrong < MOST_FAILURES; i++)
        if (v.only == SIZE_MAX || v.only == i) try_state(&v, &t, i, n);
    printf("| %zu | %zu | %zu | %zu | %zu | %zu | %zu |\n", v.h.n, t.states, t.went_on, t.went_back, t.anew,
           t.lines_lost, t.wrong);
    return t.wrong ? 1 : 0;
}
