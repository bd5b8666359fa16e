/* Fuzzes config.json: what is read has sizes that neither overflow nor contradict each other, and reads again
 * with a value head put on. */
#include "ops/model/checkpoint.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_shape(const gr_model_shape *s)
{
    uint64_t params = 0;
    for (uint32_t l = 0; l < s->layers; l++) {
        const gr_attention_desc *a = &gr_layer(s, l)->attention;
        assert(s->kind_of[l] < s->n_kinds);
        if (gr_layer(s, l)->mixer == GR_MIXER_ATTENTION)
            assert(a->heads % a->kv_heads == 0 && a->head_dim % 2 == 0);
    }
    assert(s->n_eos <= GR_EOS_MAX);
    for (uint32_t b = 0; b < gr_model_buckets(s); b++) {
        gr_tensor t[GR_BUCKET_TENSORS_MAX];
        size_t n = gr_bucket_tensors(s, b, t);
        uint64_t end = 0;
        for (size_t i = 0; i < n; i++) {
            uint64_t elems = (uint64_t)t[i].rows * (t[i].cols ? t[i].cols : 1);
            assert(t[i].offset >= end && elems > 0);
            end = t[i].offset + elems;
            params += elems;
        }
        assert(end <= gr_bucket_elems(s, b));
    }
    assert(params == gr_model_params(s) && params < UINT64_C(1) << 58);
}

/* Keys written with escapes are not found again in the text: no writer of configs does that. */
static void check_value_head(gr_model_shape s, const char *path, const uint8_t *data, size_t n)
{
    static char dir[] = "/tmp/fuzz_config_XXXXXX";
    static bool made;
    if (memchr(data, '\\', n)) return;
    if (!made && !mkdtemp(dir)) abort();
    made = true;
    gr_model_shape_to_value(&s);
    check_shape(&s);
    gr_diag d;
    gr_diag_init(&d);
    if (gr_checkpoint_write_config(dir, &s, path, NULL, GR_ST_F32, &d)) abort();
    gr_model_shape again;
    gr_status st = gr_model_shape_read(&again, dir, &d);
    assert(!st && again.head == GR_HEAD_VALUE && again.value_bias == s.value_bias);
    assert(gr_model_params(&again) == gr_model_params(&s));
    gr_diag_release(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    gr_model_shape s;
    gr_diag d;
    gr_diag_init(&d);
    gr_status st = gr_model_shape_read(&s, path, &d);
    if (!st) check_shape(&s);
    if (!st) check_value_head(s, path, data, n);
    assert(!st == !d.n_errors); /* refused with a message, or sound */
    gr_diag_release(&d);
    close(fd);
    return 0;
}
