/* tests/faults/tree.h: a folder's files in memory: taken, put back, and compared.
 *
 * Left out of all of it is what is only looked at, and never read again: trace.json, events of TensorBoard,
 * .lock. Memory that cannot be had, and files that cannot be read, end the test.
 */
#ifndef GR_TESTS_TREE_H
#define GR_TESTS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tree_node {
    char *path; /* below the folder */
    char *bytes;
    size_t n;
    char kind; /* f: a file, d: a folder, l: a link, whose bytes are its target */
} tree_node;

typedef struct tree {
    tree_node *nodes; /* sorted by path */
    size_t n, cap;
} tree;

tree tree_take(const char *folder);
void tree_release(tree *t);
void tree_put(const tree *t, const char *folder); /* the folder is there, and empty */
const tree_node *tree_find(const tree *t, const char *path);

/* Whether two nodes hold the same. Of metrics.jsonl what is measured (seconds, bytes) does not count,
 * and of manifest.json and run.json only that they are there: they have a run's random id. */
bool tree_same(const tree_node *a, const tree_node *b);
/* Whether the lines of a are the first ones of b; the last may be cut short. */
bool tree_begins(const tree_node *a, const tree_node *b);

/* What is in the making, or was set aside: names that begin with a dot or end with .tmp, and all below. */
bool tree_is_aside(const char *path);
/* How t is not the good one, new text, or NULL. What is in `also` may be there too; so may what is aside,
 * which is counted in *debris. */
char *tree_differs(const tree *t, const tree *good, const tree *also, uint64_t *debris);

void tree_remove(const char *folder); /* with all that is in it; missing is fine */

#endif
