/* runtime/io/tensorboard.c: TensorBoard's event files. */
#include "runtime/io/tensorboard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct gr_tensorboard {
    FILE *file;
    char *path;
};

uint32_t gr_crc32c(const void *bytes, size_t n)
{
    uint32_t crc = ~UINT32_C(0);
    for (const unsigned char *b = bytes; n--; b++) {
        crc ^= *b;
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82F63B78) : 0); /* Castagnoli */
    }
    return ~crc;
}

static void add_fixed(gr_str *s, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) gr_str_putc(s, (char)(value >> 8 * i & 255));
}

static void add_varint(gr_str *s, uint64_t value)
{
    for (; value > 127; value >>= 7) gr_str_putc(s, (char)((value & 127) | 128));
    gr_str_putc(s, (char)value);
}

/* Field numbers and wire types as protobuf encodes them: number << 3 | type. */
static void add_bytes(gr_str *s, unsigned field, const char *bytes, size_t n)
{
    add_varint(s, field << 3 | 2);
    add_varint(s, n);
    gr_str_add(s, bytes, n);
}

static void add_masked_crc(gr_str *s, const char *bytes, size_t n)
{
    uint32_t crc = gr_crc32c(bytes, n);
    add_fixed(s, (uint32_t)((crc >> 15 | crc << 17) + UINT32_C(0xA282EAD8)), 4);
}

/* An Event: wall_time (1), step (2) and one more field. */
static void write_event(gr_tensorboard *t, uint64_t step, unsigned field, const char *bytes, size_t n)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof(bits));
    gr_str event = {0}, record = {0};
    add_varint(&event, 1 << 3 | 1);
    add_fixed(&event, bits, 8);
    add_varint(&event, 2 << 3 | 0);
    add_varint(&event, step);
    add_bytes(&event, field, bytes, n);
    add_fixed(&record, event.len, 8);
    add_masked_crc(&record, record.text, 8);
    gr_str_add(&record, event.text, event.len);
    add_masked_crc(&record, event.text, event.len);
    fwrite(record.text, 1, record.len, t->file); /* errors show in flush */
    gr_str_release(&event);
    gr_str_release(&record);
}

gr_status gr_tensorboard_open(gr_tensorboard **out, const char *dir, gr_diag *d)
{
    char host[256] = "localhost";
    gethostname(host, sizeof(host) - 1);
    char *path = gr_printf("%s/events.out.tfevents.%010lld.%s", dir, (long long)time(NULL), host);
    FILE *file = fopen(path, "abe");
    if (!file) {
        gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': %s", path, strerror(errno));
        free(path);
        return GR_E_IO;
    }
    *out = gr_calloc(1, sizeof(**out));
    **out = (gr_tensorboard){file, path};
    write_event(*out, 0, 3, "brain.Event:2", 13); /* file_version */
    return gr_tensorboard_flush(*out, d);
}

void gr_tensorboard_free(gr_tensorboard *t)
{
    if (!t) return;
    fclose(t->file);
    free(t->path);
    free(t);
}

void gr_tensorboard_scalar(gr_tensorboard *t, uint64_t step, const char *tag, double value)
{
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof(bits));
    gr_str v = {0}, summary = {0};
    add_bytes(&v, 1, tag, strlen(tag));
    add_varint(&v, 2 << 3 | 5); /* simple_value */
    add_fixed(&v, bits, 4);
    add_bytes(&summary, 1, v.text, v.len);
    write_event(t, step, 5, summary.text, summary.len);
    gr_str_release(&v);
    gr_str_release(&summary);
}

gr_status gr_tensorboard_flush(gr_tensorboard *t, gr_diag *d)
{
    if (!fflush(t->file) && !ferror(t->file)) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_IO, "cannot write '%s': %s", t->path, strerror(errno));
}
