/* runtime/io/progress.c: lines about progress, on a terminal or in a log. */
#include "runtime/io/progress.h"
#include "runtime/base/visible.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

char *gr_duration_format(double seconds, char *buf)
{
    if (!(seconds < 1e10)) return snprintf(buf, 32, "?"), buf;
    unsigned long long s = (unsigned long long)fmax(seconds + 0.5, 0), m = s / 60, h = m / 60;
    if (s < 60)
        snprintf(buf, 32, "%llus", s);
    else if (h < 1)
        snprintf(buf, 32, "%llum%02llus", m, s % 60);
    else if (h < 24)
        snprintf(buf, 32, "%lluh%02llum", h, m % 60);
    else
        snprintf(buf, 32, "%llud%02lluh", h / 24, h % 24);
    return buf;
}

void gr_progress_init(gr_progress *p, FILE *to, bool plain)
{
    pthread_condattr_t a;
    *p = (gr_progress){.to = to, .terminal = to && !plain && isatty(fileno(to))};
    p->every_ns = (p->terminal ? 1 : 600) * SECOND_NS;
    if (!to) return;
    pthread_mutex_init(&p->at_lock, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &a);
    pthread_condattr_destroy(&a);
}

/* ---- the line ------------------------------------------------------------------------------------------ */

static size_t columns_of(const gr_progress *p)
{
    struct winsize w;
    return !ioctl(fileno(p->to), TIOCGWINSZ, &w) && w.ws_col > 1 ? w.ws_col : 80;
}

/* In the line's place, with blanks over what was longer before; where there is no terminal, a line. Its words
 * are ours and the names of nodes, which are letters and digits. */
static void put(gr_progress *p, const char *text)
{
    const size_t width = GR_MIN(strlen(text), columns_of(p) - 1); /* one that wraps cannot be rewritten */
    if (p->terminal)
        fprintf(p->to, "\r%-*.*s", (int)GR_MAX(width, p->width), (int)width, text);
    else
        fprintf(p->to, "%s\n", text);
    fflush(p->to);
    p->width = width;
}

/* ---- while an iteration runs --------------------------------------------------------------------------- */

/* "rollout 1234/4096 tokens  1m05s" */
static void add_place(gr_progress *p, uint64_t now, gr_str *out)
{
    char elapsed[32];
    pthread_mutex_lock(&p->at_lock);
    const gr_progress_place at = p->at;
    pthread_mutex_unlock(&p->at_lock);
    if (at.node) gr_str_puts(out, at.node);
    if (at.unit)
        gr_str_printf(out, " %llu/%llu %s", (unsigned long long)at.done, (unsigned long long)at.total,
                      at.unit);
    if (at.node) gr_str_puts(out, "  ");
    gr_str_puts(out, gr_duration_format((double)((now - p->began_ns) / SECOND_NS), elapsed));
}

/* Behind the line of the iteration before where there is room for both. */
static void tell(gr_progress *p, uint64_t now)
{
    gr_str place = {0}, text = {0};
    add_place(p, now, &place);
    if (p->terminal && p->line.len)
        gr_str_printf(&text, "%s  | %llu: %s", p->line.text, (unsigned long long)p->step, place.text);
    if (!text.len || text.len >= columns_of(p)) {
        text.len = 0;
        gr_str_printf(&text, "step %llu/%llu  %s", (unsigned long long)p->step, (unsigned long long)p->steps,
                      place.text);
    }
    put(p, text.text);
    gr_str_release(&place);
    gr_str_release(&text);
}

static void wait_until(gr_progress *p, uint64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
    pthread_cond_timedwait(&p->changed, &p->lock, &t);
}

static void *tick(void *arg)
{
    gr_progress *p = arg;
    pthread_mutex_lock(&p->lock);
    while (!p->over) {
        const uint64_t now = gr_now_ns();
        if (p->runs && now >= p->told_ns + p->every_ns) {
            tell(p, now);
            p->told_ns = now;
        }
        wait_until(p, p->runs ? p->told_ns + p->every_ns : now + p->every_ns);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Signals are for the thread that has started this one; without this one, the line stands still. */
static void start(gr_progress *p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    p->started = !pthread_create(&p->thread, NULL, tick, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void gr_progress_begin(gr_progress *p, uint64_t step, uint64_t steps)
{
    if (!p->to) return;
    pthread_mutex_lock(&p->lock);
    p->runs = true;
    p->step = step;
    p->steps = steps;
    p->began_ns = p->told_ns = gr_now_ns();
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_lock(&p->at_lock);
    p->at = (gr_progress_place){0};
    pthread_mutex_unlock(&p->at_lock);
    if (!p->started) start(p);
}

void gr_progress_at(gr_progress *p, const char *node, uint64_t done, uint64_t total, const char *unit)
{
    if (!p || !p->to) return;
    pthread_mutex_lock(&p->at_lock);
    if (unit || node != p->at.node) p->at = (gr_progress_place){node, unit, done, total};
    pthread_mutex_unlock(&p->at_lock);
}

/* ---- after it ------------------------------------------------------------------------------------------ */

void gr_progress_step(gr_progress *p, uint64_t step, uint64_t steps, double reward, double loss,
                      double tokens, double seconds)
{
    char left[32];
    if (!p->to) return;
    pthread_mutex_lock(&p->lock);
    p->mean_seconds = p->mean_seconds > 0 ? 0.8 * p->mean_seconds + 0.2 * seconds : seconds;
    gr_str *line = &p->line;
    line->len = 0;
    gr_str_printf(line, "step %llu/%llu", (unsigned long long)step, (unsigned long long)steps);
    if (!isnan(reward)) gr_str_printf(line, "  reward %.3f", reward);
    if (!isnan(loss)) gr_str_printf(line, "  loss %.4f", loss);
    if (seconds > 0 && !isnan(tokens)) gr_str_printf(line, "  %.0f tokens/s", tokens / seconds);
    gr_str_printf(line, "  %.2f s/step  %s left", p->mean_seconds,
                  gr_duration_format(step < steps ? p->mean_seconds * (double)(steps - step) : 0, left));
    put(p, line->text);
    if (step >= p->step) p->runs = false; /* of several roles of ranks the next one may run already */
    pthread_mutex_unlock(&p->lock);
}

void gr_progress_say(gr_progress *p, const char *text)
{
    if (!p->to) return;
    gr_str line = {0};
    gr_str_visible(&line, text, strlen(text), false);
    pthread_mutex_lock(&p->lock);
    fprintf(p->to, "%s%-*s\n", p->terminal && p->width ? "\r" : "", p->terminal ? (int)p->width : 0,
            line.len ? line.text : "");
    fflush(p->to);
    p->width = p->line.len = 0;
    pthread_mutex_unlock(&p->lock);
    gr_str_release(&line);
}

void gr_progress_end(gr_progress *p)
{
    if (!p->to) return;
    pthread_mutex_lock(&p->lock);
    p->over = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    if (p->started) pthread_join(p->thread, NULL);
    if (p->terminal && p->width) fputc('\n', p->to);
    fflush(p->to);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->at_lock);
    gr_str_release(&p->line);
    *p = (gr_progress){0};
}
