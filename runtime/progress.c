#include "runtime/progress.h"

#include <math.h>
#include <unistd.h>

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
    *p = (gr_progress){.to = to, .terminal = to && !plain && isatty(fileno(to))};
}

void gr_progress_step(gr_progress *p, uint64_t step, uint64_t steps, double reward, double loss,
                      double tokens, double seconds)
{
    char left[32];
    if (!p->to) return;
    p->mean_seconds = p->mean_seconds > 0 ? 0.8 * p->mean_seconds + 0.2 * seconds : seconds;
    gr_str line = {0};
    gr_str_printf(&line, "step %llu/%llu", (unsigned long long)step, (unsigned long long)steps);
    if (!isnan(reward)) gr_str_printf(&line, "  reward %.3f", reward);
    if (!isnan(loss)) gr_str_printf(&line, "  loss %.4f", loss);
    if (seconds > 0) gr_str_printf(&line, "  %.0f tokens/s", tokens / seconds);
    gr_str_printf(&line, "  %.2f s/step  %s left", p->mean_seconds,
                  gr_duration_format(step < steps ? p->mean_seconds * (double)(steps - step) : 0, left));
    size_t width = line.len;
    if (p->terminal) /* blanks over what was longer before */
        fprintf(p->to, "\r%-*s", (int)GR_MAX(width, p->width), line.text);
    else
        fprintf(p->to, "%s\n", line.text);
    fflush(p->to);
    p->width = width;
    gr_str_release(&line);
}

void gr_progress_say(gr_progress *p, const char *text)
{
    if (!p->to) return;
    fprintf(p->to, "%s%-*s\n", p->terminal && p->width ? "\r" : "", p->terminal ? (int)p->width : 0, text);
    fflush(p->to);
    p->width = 0;
}

void gr_progress_end(gr_progress *p)
{
    if (!p->to) return;
    if (p->terminal && p->width) fputc('\n', p->to);
    fflush(p->to);
    p->width = 0;
}
