/* scheduler/search/prices.h: what residencies were found to take, so that none is laid out twice.
 *
 * A key is 128 bits of all that a price follows from; keys that are equal are taken to be of the same.
 */
#ifndef GR_SCHEDULER_SEARCH_PRICES_H
#define GR_SCHEDULER_SEARCH_PRICES_H

#include <stddef.h>
#include <stdint.h>

typedef struct gr_price_key {
    uint64_t a, b; /* a: odd; 0: of nothing */
} gr_price_key;

typedef struct gr_price {
    gr_price_key key;
    double device_over, host_over; /* bytes above each budget: at the worst instant, and in the mean */
    uint64_t ns;                   /* UINT64_MAX: not asked for yet */
} gr_price;

typedef struct gr_prices { /* {0}: none */
    gr_price *all;
    size_t n, size; /* size: a power of two, or 0 */
} gr_prices;

/* The place of a key: key 0 where it is new, to be filled in. Valid until the next call. Where there are very
 * many, all are forgotten first. */
gr_price *gr_price_at(gr_prices *p, gr_price_key key);
void gr_prices_release(gr_prices *p);

#endif
