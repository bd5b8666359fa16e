/* runtime/comm/watchdog.c: what this process is at, noted by those who do it, and what rank 0 makes of what
 * all are at. */
#include "runtime/comm/watchdog.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/comm/comm.h"

#define SECOND_NS UINT64_C(1000000000)

enum { BETWEEN = GR_WATCHDOG_LANES, N_PLACES }; /* lanes, and what is between steps */

struct place {
    const char *step; /* NULL: at none, as always between steps */
    uint32_t iteration, limit;
    uint64_t since_ns;
    bool waits;
};

static struct {
    pthread_mutex_t lock; /* guards all below */
    struct place at[N_PLACES];
    uint64_t changed_ns; /* the last time that anything here did */
    uint32_t path_limit;
    bool path;          /* lanes have the word */
    bool later;         /* and the device does steps later */
    uint32_t iteration; /* of the last step that began */
    const char *step;
    bool watched;
    gr_sign *board; /* [n_board], or NULL */
    uint32_t rank, n_board;
} self = {.lock = PTHREAD_MUTEX_INITIALIZER, .at[BETWEEN] = {.limit = GR_WATCHDOG_TIMEOUT}};

static _Thread_local struct place *own; /* what this thread is at; NULL: what is between steps */

/* ---- notes -----------------------------------------------------------------------------------------------
 */

/* Who reads the board may see half of a text: it is for people. */
static void tell_board(uint32_t rank, uint32_t iteration, const char *step, bool watched)
{
    if (!self.board || rank >= self.n_board) return;
    gr_sign *board = &self.board[rank];
    __atomic_store_n(&board->iteration, iteration, __ATOMIC_RELAXED);
    __atomic_store_n(&board->watched, watched, __ATOMIC_RELAXED);
    for (size_t i = 0; i < sizeof(board->step); i++) {
        char c = i + 1 < sizeof(board->step) ? *step : '\0';
        __atomic_store_n(&board->step[i], c, __ATOMIC_RELAXED);
        if (!c) return;
        step++;
    }
}

void gr_watchdog_step(unsigned lane, uint32_t iteration, const char *step, uint32_t limit)
{
    uint64_t now = gr_now_ns();
    own = &self.at[lane];
    pthread_mutex_lock(&self.lock);
    *own = (struct place){step, iteration, limit, now, false};
    self.changed_ns = now;
    self.iteration = iteration;
    self.step = step;
    tell_board(self.rank, iteration, step, self.watched);
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_done(unsigned lane)
{
    own = NULL;
    pthread_mutex_lock(&self.lock);
    self.at[lane] = (struct place){0};
    self.changed_ns = gr_now_ns();
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_goes_on(uint32_t limit)
{
    struct place *at = own ? own : &self.at[BETWEEN];
    pthread_mutex_lock(&self.lock);
    if (at->limit) at->limit = GR_MAX(at->limit, limit);
    at->since_ns = self.changed_ns = gr_now_ns();
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_between(uint32_t limit)
{
    pthread_mutex_lock(&self.lock);
    self.at[BETWEEN].limit = limit;
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_path(bool runs, bool later, uint32_t limit)
{
    pthread_mutex_lock(&self.lock);
    self.path = runs;
    self.later = later;
    self.path_limit = limit;
    self.changed_ns = self.at[BETWEEN].since_ns = gr_now_ns();
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_wait(bool waits)
{
    struct place *at = own ? own : &self.at[BETWEEN];
    pthread_mutex_lock(&self.lock);
    at->waits = waits;
    at->since_ns = self.changed_ns = gr_now_ns();
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_at(const char *step, bool watched)
{
    pthread_mutex_lock(&self.lock);
    self.step = step;
    self.watched = watched;
    self.changed_ns = self.at[BETWEEN].since_ns = gr_now_ns();
    tell_board(self.rank, self.iteration, step, watched);
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_where(uint32_t *iteration, const char **step)
{
    pthread_mutex_lock(&self.lock);
    *iteration = self.iteration;
    *step = self.step ? self.step : "start";
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_tell(gr_sign *board, uint32_t rank, uint32_t n)
{
    pthread_mutex_lock(&self.lock);
    self.board = board;
    self.rank = rank;
    self.n_board = n;
    pthread_mutex_unlock(&self.lock);
}

void gr_watchdog_tell_of(uint32_t rank, const gr_sign *heard)
{
    pthread_mutex_lock(&self.lock);
    tell_board(rank, heard->iteration, heard->step, heard->watched);
    pthread_mutex_unlock(&self.lock);
}

/* ---- a sign ----------------------------------------------------------------------------------------------
 */

/* Of the lanes that are at a step, and do or do not wait, the one that has for longest. */
static const struct place *longest(bool waits)
{
    const struct place *found = NULL;
    for (unsigned i = 0; i < GR_WATCHDOG_LANES; i++)
        if (self.at[i].step && self.at[i].waits == waits && (!found || self.at[i].since_ns < found->since_ns))
            found = &self.at[i];
    return found;
}

static uint32_t seconds_since(uint64_t then, uint64_t now)
{
    return now > then ? (uint32_t)((now - then) / SECOND_NS) : 0;
}

/* What is between steps counts where no lane is at one: outside of paths, or within, since the last change.
 */
static bool waits_between(void)
{
    return self.path ? self.later : self.at[BETWEEN].waits;
}

void gr_watchdog_sign(gr_sign *out)
{
    uint64_t now = gr_now_ns();
    memset(out, 0, sizeof(*out)); /* it goes to other processes, whole */
    pthread_mutex_lock(&self.lock);
    const struct place *works = longest(false), *at = works ? works : longest(true);
    out->waits = !works && (at || waits_between());
    out->seconds = seconds_since(works ? works->since_ns : self.changed_ns, now);
    out->limit = works ? works->limit : out->waits && self.path ? self.path_limit : self.at[BETWEEN].limit;
    out->watched = self.watched;
    out->iteration = at ? at->iteration : self.iteration;
    snprintf(out->step, sizeof(out->step), "%s", at ? at->step : self.step ? self.step : "start");
    pthread_mutex_unlock(&self.lock);
}

/* ---- judgement -------------------------------------------------------------------------------------------
 */

static uint32_t silence = GR_COMM_SILENCE; /* set before there are threads */

gr_status gr_watchdog_set_silence(const char *text, gr_diag *d)
{
    char *end;
    const long seconds = strtol(text, &end, 10);
    if (*end || end == text || seconds < 2 || seconds > 86400)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID,
                             "the environment says " GR_WATCHDOG_SILENCE "='%s': 2 to 86400 seconds", text);
    silence = (uint32_t)seconds;
    return GR_OK;
}

uint32_t gr_watchdog_silence(void)
{
    return silence;
}

uint32_t gr_watchdog_silence_alone(void)
{
    return silence + silence / 2;
}

char *gr_watchdog_lost(const gr_watched *ranks, uint32_t n, uint64_t now_ns)
{
    uint32_t r = 0;
    while (r < n && seconds_since(ranks[r].heard_ns, now_ns) <= silence) r++;
    if (r == n) return NULL;
    const gr_sign *s = &ranks[r].sign;
    return gr_printf(
        "rank %u on host %s has not answered for %u s; it was last heard of in iteration %u, step '%s': all "
        "ranks are ended",
        r, ranks[r].host, silence, s->iteration, s->step);
}

static char *stuck(const gr_watched *ranks, uint32_t r, uint32_t waiter)
{
    const gr_sign *s = &ranks[r].sign, *w = &ranks[waiter].sign;
    return gr_printf("rank %u on host %s has been in iteration %u, step '%s', for %u s, which is too long "
                     "(see run: {timeout}), "
                     "and rank %u waits for others in step '%s': all ranks are ended",
                     r, ranks[r].host, s->iteration, s->step, s->seconds, waiter, w->step);
}

static bool same_place(const gr_sign *a, const gr_sign *b)
{
    return a->iteration == b->iteration && !strcmp(a->step, b->step);
}

/* The ranks that are where r is, the first ones by name; nothing where one before r is there. */
static void list_place(gr_str *out, const gr_watched *ranks, uint32_t n, uint32_t r)
{
    const gr_sign *s = &ranks[r].sign;
    uint32_t there = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!same_place(s, &ranks[i].sign)) continue;
        if (i < r) return;
        if (there < 3) gr_str_printf(out, "%s rank %u on host %s", there ? "," : ";", i, ranks[i].host);
        there++;
    }
    if (there > 3) gr_str_printf(out, " and %u more", there - 3);
    gr_str_printf(out, " in iteration %u, step '%s'", s->iteration, s->step);
}

static char *all_wait(const gr_watched *ranks, uint32_t n)
{
    gr_str text = {0};
    gr_str_printf(&text, "for %u s all ranks have waited for each other, or for their devices",
                  ranks[0].sign.seconds);
    for (uint32_t r = 0; r < n; r++) list_place(&text, ranks, n, r);
    gr_str_puts(&text, ": all ranks are ended");
    return text.text;
}

static bool is_over(const gr_sign *s)
{
    return s->limit && s->seconds >= s->limit;
}

/* How far beyond its limit; so that of several the one that others wait for is named, or at least the worst.
 */
static uint32_t excess(const gr_sign *s)
{
    return s->seconds - s->limit;
}

char *gr_watchdog_judge(const gr_watched *ranks, uint32_t n, uint64_t now_ns)
{
    uint32_t worst = n, waiter = n, over = 0;
    char *silent = gr_watchdog_lost(ranks, n, now_ns);
    if (silent) return silent;
    for (uint32_t r = 0; r < n; r++) {
        const gr_sign *s = &ranks[r].sign;
        if (s->waits && (waiter == n || s->seconds > ranks[waiter].sign.seconds)) waiter = r;
        if (!s->waits && is_over(s) && (worst == n || excess(s) > excess(&ranks[worst].sign))) worst = r;
        over += s->waits && is_over(s);
    }
    if (over == n) return all_wait(ranks, n);
    if (worst == n || waiter == n) return NULL;
    if (ranks[waiter].sign.seconds < GR_MIN(ranks[worst].sign.limit, GR_WATCHDOG_PATIENCE)) return NULL;
    return stuck(ranks, worst, waiter);
}
