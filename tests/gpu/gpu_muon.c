/* tests/gpu/gpu_muon.c: Muon on CUDA: its momentum against the formula in double, and matrices made
 * orthogonal against those of the CPU device, which are fp32: as far as bf16 products let them; the same bits
 * again.
 *
 *     gpu_muon           compare; a line for each
 *     gpu_muon --small   the same with smaller matrices
 */
#include "ops/kernels/muon.h"
#include "tests/gpu/device.h"

typedef struct devices {
    gr_queue cpu, cuda;
} devices;

static devices devices_open(void)
{
    devices d = {.cpu = {.team = NULL}};
    gr_diag told;
    gr_diag_init(&told);
    if (gr_team_new(&d.cpu.team, (unsigned)GR_MIN(sysconf(_SC_NPROCESSORS_ONLN), 16), NULL) != GR_OK) exit(1);
    if (gr_kernels_cuda.attach(&d.cuda, &told) != GR_OK) exit(1);
    gr_diag_release(&told);
    return d;
}

static void devices_close(devices *d)
{
    gr_kernels_cuda.detach(&d->cuda);
    gr_team_free(d->cpu.team);
}

/* ---- momentum ------------------------------------------------------------------------------------------ */

static void check_mix(uint32_t n, gr_cu_dtype type)
{
    enum { STEPS = 3 };
    const float mu = 0.95f, scale = 0.7f;
    char name[64];
    uint64_t seed = 4;
    snprintf(name, sizeof(name), "mix n %u grads %s", n, type == GR_CU_F32 ? "fp32" : "bf16");
    double *m = gr_calloc(n, sizeof(*m)), *u = gr_calloc(n, sizeof(*u));
    float *zeros = gr_calloc(n, sizeof(*zeros)), *d_m = device_copy(zeros, n * 4);
    gr_bf16 *d_u = device_poisoned(n * 2);
    for (int step = 0; step < STEPS; step++) {
        float *g = gr_malloc(n * 4);
        gr_bf16 *half = gr_malloc(n * 2);
        for (uint32_t i = 0; i < n; i++) {
            half[i] = bf16_of(random_float(&seed));
            g[i] = of_bf16(half[i]);
            const double x = (double)(g[i] * scale);
            m[i] += (1 - (double)mu) * (x - m[i]);
            u[i] = x + (double)mu * (m[i] - x);
        }
        void *d_g = type == GR_CU_F32 ? device_copy(g, n * 4) : device_copy(half, n * 2);
        gr_cu_muon_mix(NULL, d_g, type, scale, mu, d_m, d_u, n);
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaFree(d_g));
        free(g), free(half);
    }
    gr_bf16 *got = take(name, d_u, n * 2);
    float *got_m = take(name, d_m, n * 4);
    errors of_u = {0}, of_m = {0};
    for (uint32_t i = 0; i < n; i++)
        errors_add(&of_u, of_bf16(got[i]), u[i]), errors_add(&of_m, got_m[i], m[i]);
    report_errors(&of_u, name, "u", 3e-3);
    report_errors(&of_m, name, "m", 1e-6);
    free(got), free(got_m), free(m), free(u), free(zeros);
}

/* ---- orthogonal ---------------------------------------------------------------------------------------- */

static gr_bf16 *orthogonal(devices *d, const gr_kernels *k, const gr_bf16 *x, uint32_t rows, uint32_t cols)
{
    const size_t n = (size_t)rows * cols;
    gr_bf16 *on = device_copy(x, n * 2);
    void *ws = device_poisoned(gr_muon_ws_bytes(k, rows, cols, 1));
    gr_muon_orthogonalize(k, &d->cuda, on, rows, cols, ws);
    CUDA(cudaStreamSynchronize(d->cuda.stream));
    CUDA(cudaFree(ws));
    return take("orthogonal", on, n * 2);
}

static void check_orthogonal(devices *d, uint32_t rows, uint32_t cols, double bound)
{
    char name[64];
    const size_t n = (size_t)rows * cols;
    snprintf(name, sizeof(name), "orthogonal %u x %u", rows, cols);
    gr_bf16 *x = random_bf16(n, 0.3f, rows + cols);
    float *wide = aligned_alloc(256, gr_align(n * 4, 256));
    for (size_t i = 0; i < n; i++) wide[i] = of_bf16(x[i]);
    void *ws = aligned_alloc(256, gr_muon_ws_bytes(&gr_kernels_cpu, rows, cols, gr_team_size(d->cpu.team)));
    gr_muon_orthogonalize(&gr_kernels_cpu, &d->cpu, wide, rows, cols, ws);
    gr_bf16 *got = orthogonal(d, &gr_kernels_cuda, x, rows, cols),
            *again = orthogonal(d, &gr_kernels_cuda, x, rows, cols);
    errors e = {0};
    for (size_t i = 0; i < n; i++) errors_add(&e, of_bf16(got[i]), (double)wide[i]);
    report_errors(&e, name, "x", bound);
    report_equal(name, "again", got, again, n * 2);
    free(x), free(wide), free(ws), free(got), free(again);
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    need_device();
    devices d = devices_open();
    check_mix(1000, GR_CU_F32);
    check_mix(4099, GR_CU_BF16);
    check_orthogonal(&d, 64, 256, 0.05);
    check_orthogonal(&d, 256, 64, 0.05);
    check_orthogonal(&d, 8, 72, 0.05);
    check_orthogonal(&d, 128, 128, 0.12); /* singular values near 0 are mostly rounding */
    if (!check_small) check_orthogonal(&d, 512, 2048, 0.05);
    if (!check_small) check_orthogonal(&d, 1536, 512, 0.05);
    devices_close(&d);
    printf("%d failures\n", check_failures);
    return check_failures ? 1 : 0;
}
