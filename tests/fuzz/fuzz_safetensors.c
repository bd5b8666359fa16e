/* Fuzzes safetensors files and indexes of sharded sets: what opens must read, whole, without a fault. An
 * input that starts with '{' is an index beside one sound shard, any other is a file. */
#include "runtime/io/safetensors.h"
#include "runtime/base/files.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char dir[] = "/dev/shm/fuzz_safetensors_XXXXXX", shard[64], index_file[64], file[64];

static void write_plain(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f)) abort();
}

static void remove_all(void)
{
    if (gr_path_remove(dir, NULL)) abort();
}

static void prepare(void)
{
    static const char sound[] =
        "\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}"
        "          12345678";
    if (shard[0]) return;
    if (!mkdtemp(dir)) abort();
    atexit(remove_all);
    snprintf(shard, sizeof(shard), "%s/s.safetensors", dir);
    snprintf(index_file, sizeof(index_file), "%s/m.index.json", dir);
    snprintf(file, sizeof(file), "%s/x.safetensors", dir);
    write_plain(shard, sound, 8 + 64 + 8);
}

static void read_all(const gr_safetensors *s, size_t n_bytes)
{
    for (size_t i = 0; i < gr_safetensors_count(s); i++) {
        const gr_st_tensor *t = gr_safetensors_at(s, i);
        if (t->n_dims < 1 || t->n_dims > 2 || t->dtype > GR_ST_F16) continue;
        uint64_t rows = t->dims[0], cols = t->n_dims == 2 ? t->dims[1] : 0;
        if (t->n_dims == 2 && !cols) continue;
        uint64_t n = rows * (cols ? cols : 1);
        assert(n <= n_bytes); /* the file holds it: at least a byte each */
        float *x = malloc(n * sizeof(*x) + 1);
        if (gr_safetensors_read_f32(s, t->name, rows, cols, x, NULL)) abort();
        free(x);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    prepare();
    const char *path = n && data[0] == '{' ? index_file : file;
    write_plain(path, data, n);
    gr_safetensors *s = NULL;
    gr_diag d;
    gr_diag_init(&d);
    gr_status st = gr_safetensors_open(&s, path, &d);
    if (!st) read_all(s, path == file ? n : 80);
    assert(!st == !d.n_errors); /* refused with a message, or sound */
    gr_safetensors_free(s);
    gr_diag_release(&d);
    return 0;
}
