/* A folder's files in memory: see tests/faults/tree.h. */
#include "tests/faults/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *doing, const char *path)
{
    fprintf(stderr, "faults: cannot %s '%s'\n", doing, path);
    perror("faults");
    exit(2);
}

static char *join(const char *a, const char *b)
{
    char *out = NULL;
    if (asprintf(&out, "%s%s%s", a, *a && *b ? "/" : "", b) < 0) abort();
    return out;
}

/* ---- taken
 * -----------------------------------------------------------------------------------------------------------
 */

static bool is_left_out(const char *name)
{
    return !strcmp(name, "trace.json") || !strcmp(name, ".lock") || !strncmp(name, "events.out.", 11);
}

static void read_file(const char *path, tree_node *to, size_t size)
{
    const int fd = open(path, O_RDONLY);
    to->bytes = malloc(size + 1);
    if (fd < 0 || !to->bytes) die("read", path);
    for (ssize_t got; (got = read(fd, to->bytes + to->n, size - to->n)) > 0;) to->n += (size_t)got;
    to->bytes[to->n] = '\0';
    close(fd);
}

static void take(tree *t, const char *folder, const char *below);

static void take_one(tree *t, const char *folder, char *path)
{
    char *whole = join(folder, path);
    struct stat s;
    tree_node node = {.path = path};
    if (lstat(whole, &s)) die("look at", whole);
    node.kind = S_ISDIR(s.st_mode) ? 'd' : S_ISLNK(s.st_mode) ? 'l' : 'f';
    if (node.kind == 'f') read_file(whole, &node, (size_t)s.st_size);
    if (node.kind == 'l') {
        node.bytes = calloc(1, 4096);
        node.n = (size_t)readlink(whole, node.bytes, 4095);
    }
    if (t->n == t->cap) t->nodes = realloc(t->nodes, (t->cap = t->cap ? 2 * t->cap : 64) * sizeof(node));
    t->nodes[t->n++] = node;
    if (node.kind == 'd') take(t, folder, path);
    free(whole);
}

static void take(tree *t, const char *folder, const char *below)
{
    char *whole = join(folder, below);
    DIR *d = opendir(whole);
    if (!d) die("read", whole);
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && !is_left_out(e->d_name))
            take_one(t, folder, join(below, e->d_name));
    closedir(d);
    free(whole);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const tree_node *)a)->path, ((const tree_node *)b)->path);
}

tree tree_take(const char *folder)
{
    tree t = {0};
    take(&t, folder, "");
    if (t.n) qsort(t.nodes, t.n, sizeof(*t.nodes), by_path);
    return t;
}

void tree_release(tree *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->nodes[i].path);
        free(t->nodes[i].bytes);
    }
    free(t->nodes);
    *t = (tree){0};
}

const tree_node *tree_find(const tree *t, const char *path)
{
    const tree_node key = {.path = (char *)path};
    return t->n ? bsearch(&key, t->nodes, t->n, sizeof(key), by_path) : NULL;
}

/* ---- put back
 * -------------------------------------------------------------------------------------------------------- */

static void write_file(const char *path, const tree_node *node)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0 || write(fd, node->bytes, node->n) != (ssize_t)node->n) die("write", path);
    close(fd);
}

void tree_put(const tree *t, const char *folder)
{
    for (size_t i = 0; i < t->n; i++) { /* a folder stands before what is in it */
        const tree_node *node = &t->nodes[i];
        char *path = join(folder, node->path);
        if (node->kind == 'f')
            write_file(path, node);
        else if (node->kind == 'd' ? mkdir(path, 0777) : symlink(node->bytes, path))
            die("make", path);
        free(path);
    }
}

void tree_remove(const char *folder)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *path = join(folder, e->d_name);
        if (unlink(path)) tree_remove(path);
        free(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

/* ---- compared
 * -------------------------------------------------------------------------------------------------------- */

/* Whether a key of a line of metrics is measured: then its value is another each time. */
static bool is_measured(const char *key, size_t n)
{
    static const char *const parts[] = {"seconds", "per_second", "peak_bytes"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        if (memmem(key, n, parts[i], strlen(parts[i]))) return true;
    return false;
}

/* Lines of numbers without what is measured: each key stands behind `{"` or `, "`, and no text has these. */
static tree_node without_measures(const tree_node *from)
{
    tree_node to = {.bytes = malloc(from->n + 1), .kind = 'f'};
    const char *at = from->bytes, *end = from->bytes + from->n;
    while (at < end) {
        const char *next = at + 1;
        while (next < end && !(next[0] == ',' && next[1] == ' ') && next[0] != '\n') next++;
        const char *quote = memchr(at, '"', (size_t)(next - at));
        const char *last = quote ? memchr(quote + 1, '"', (size_t)(next - quote - 1)) : NULL;
        if (!last || !is_measured(quote, (size_t)(last - quote))) {
            memcpy(to.bytes + to.n, at, (size_t)(next - at));
            to.n += (size_t)(next - at);
        }
        at = next;
    }
    return to;
}

static bool is_called(const tree_node *t, const char *name)
{
    const char *slash = strrchr(t->path, '/');
    return !strcmp(slash ? slash + 1 : t->path, name);
}

/* The id of a run is another each time, and so are hashes over it: who resumes or exports holds files to
 * these. */
static bool is_seal(const tree_node *t)
{
    return is_called(t, "manifest.json") || is_called(t, "run.json");
}

static bool equal(const tree_node *a, const tree_node *b)
{
    return a->n == b->n && (!a->n || !memcmp(a->bytes, b->bytes, a->n));
}

bool tree_same(const tree_node *a, const tree_node *b)
{
    if (a->kind != b->kind) return false;
    if (is_seal(a)) return a->n > 0;
    if (!is_called(a, "metrics.jsonl")) return equal(a, b);
    tree_node x = without_measures(a), y = without_measures(b);
    const bool same = equal(&x, &y);
    free(x.bytes);
    free(y.bytes);
    return same;
}

static size_t whole_lines(const tree_node *a)
{
    const char *last = a->n ? memrchr(a->bytes, '\n', a->n) : NULL;
    return last ? (size_t)(last - a->bytes) + 1 : 0;
}

bool tree_begins(const tree_node *a, const tree_node *b)
{
    tree_node lines = {.path = a->path, .bytes = a->bytes, .n = whole_lines(a), .kind = 'f'};
    tree_node x = without_measures(&lines), y = without_measures(b);
    const bool begins = x.n <= y.n && !memcmp(x.bytes, y.bytes, x.n);
    free(x.bytes);
    free(y.bytes);
    return begins;
}

bool tree_is_aside(const char *path)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const size_t n = strlen(path);
    return *name == '.' || strstr(path, "/aside-") || strstr(path, "/.") || strstr(path, ".tmp/") ||
           strstr(path, ".graphrun-") || (n > 4 && !strcmp(path + n - 4, ".tmp"));
}

static char *why(const char *what, const char *path)
{
    char *out;
    if (asprintf(&out, "%s %s", what, path) < 0) abort();
    return out;
}

char *tree_differs(const tree *t, const tree *good, const tree *also, uint64_t *debris)
{
    for (size_t i = 0; i < good->n; i++) {
        const tree_node *want = &good->nodes[i], *found = tree_find(t, want->path);
        if (tree_is_aside(want->path)) continue;
        if (!found) return why("no", want->path);
        if (!tree_same(found, want)) return why("another", want->path);
    }
    for (size_t i = 0; i < t->n; i++) {
        const tree_node *x = &t->nodes[i], *may = tree_find(also, x->path);
        if (tree_find(good, x->path) || (may && tree_same(may, x))) continue;
        if (!tree_is_aside(x->path)) return why("a file too many:", x->path);
        ++*debris;
    }
    return NULL;
}
