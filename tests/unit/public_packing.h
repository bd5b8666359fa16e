/* tests/unit/public_packing.h: the public instances of data/minimalloc. */
#ifndef GR_TESTS_PUBLIC_PACKING_H
#define GR_TESTS_PUBLIC_PACKING_H

#include "memplan/pack/pack.h"

#include <stdio.h>
#include <stdlib.h>

enum { PUBLIC_STEPS = 1 << 21, PUBLIC_CAPACITY = 1048576, PUBLIC_ITEMS = 500 };
static const char public_names[] = "ABCDEFGHIJK";

/* Read one; 0 where the data are not there. reversed: time runs backwards. */
static inline size_t public_read(gr_pack_item *items, const char *folder, char name, bool reversed)
{
    char line[200], *path = gr_printf("%s/%c.1048576.csv", folder, name);
    FILE *f = fopen(path, "r");
    free(path);
    size_t n = 0;
    while (f && n < PUBLIC_ITEMS && fgets(line, sizeof(line), f)) {
        unsigned lower, upper, size;
        if (sscanf(line, "%*u,%u,%u,%u", &lower, &upper, &size) != 3) continue; /* the header */
        if (reversed)
            items[n++] = (gr_pack_item){size, PUBLIC_STEPS - upper, PUBLIC_STEPS - 1 - lower, 0};
        else
            items[n++] = (gr_pack_item){size, lower, upper - 1, 0};
    }
    if (f) fclose(f);
    return n;
}

#endif
