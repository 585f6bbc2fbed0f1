/* SPDX-License-Identifier: Apache-2.0
 *
 * Users' own kernels on a GPU: as CUDA C++ and as PTX, among the library's operations, replayed;
 * what is wrong with them is told by name. Without a GPU their text is only compiled.
 */
#include "cuda/cuda.h"
#include "quern/quern.h"

#include <stdio.h>
#include <stdlib.h>

static int n_checks, n_failed;

static void check(bool ok, const char *what, const char *detail)
{
    n_checks++;
    if (ok)
        return;
    n_failed++;
    printf("FAILED %s: %s\n", what, detail);
}

#define CHECK(what, condition) check(condition, what, #condition)

/* ---- primitives: y = x scale --------------------------------------------------------------------
 */

static const char in_cuda[] =
    "extern \"C\" __global__ void scaled(const __grid_constant__ qn_cuda_call call)\n"
    "{\n"
    "    const qn_cuda_view &x = call.view[0];\n"
    "    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x, at = 0, rest = i;\n"
    "    if (i >= call.units || x.dtype != qn_dtype_F32 || call.view[1].ndim != x.ndim)\n"
    "        return;\n"
    "    for (int d = x.ndim - 1; d >= 0; rest /= x.shape[d--])\n"
    "        at += rest % x.shape[d] * x.stride[d];\n"
    "    double scale = *(const double *)call.params;\n"
    "    ((float *)call.data[1])[i] = ((const float *)call.data[0])[at] * (float)scale;\n"
    "}\n";

/* The same of an x without gaps, by one block, at most 1024 elements; the parameters stand behind
 * the other members. */
static const char in_ptx[] = "// a comment\n"
                             ".version 7.0\n"
                             ".target sm_80\n"
                             ".address_size 64\n"
                             ".visible .entry scaled(.param .align 8 .b8 call[%zu])\n"
                             "{\n"
                             "    .reg .pred %%p<2>;\n"
                             "    .reg .b32 %%r<2>;\n"
                             "    .reg .b64 %%d<8>;\n"
                             "    .reg .f32 %%f<3>;\n"
                             "    .reg .f64 %%s<2>;\n"
                             "    ld.param.u64 %%d1, [call];\n"
                             "    ld.param.u64 %%d2, [call+8];\n"
                             "    ld.param.u64 %%d3, [call+%zu];\n"
                             "    ld.param.f64 %%s1, [call+%zu];\n"
                             "    mov.u32 %%r1, %%tid.x;\n"
                             "    cvt.u64.u32 %%d4, %%r1;\n"
                             "    setp.ge.u64 %%p1, %%d4, %%d3;\n"
                             "    @%%p1 bra END;\n"
                             "    shl.b64 %%d5, %%d4, 2;\n"
                             "    add.u64 %%d6, %%d1, %%d5;\n"
                             "    add.u64 %%d7, %%d2, %%d5;\n"
                             "    ld.global.f32 %%f1, [%%d6];\n"
                             "    cvt.rn.f32.f64 %%f2, %%s1;\n"
                             "    mul.rn.f32 %%f1, %%f1, %%f2;\n"
                             "    st.global.f32 [%%d7], %%f1;\n"
                             "END:\n"
                             "    ret;\n"
                             "}\n";

static const char wrong[] = "extern \"C\" __global__ void scaled(const qn_cuda_call call)\n"
                            "{\n"
                            "    nothing = 1;\n"
                            "}\n";

/* Backwards through more shared memory than every kernel may have. */
static const char in_shared[] =
    "extern __shared__ float rows[];\n"
    "extern \"C\" __global__ void scaled(const __grid_constant__ qn_cuda_call call)\n"
    "{\n"
    "    long long n = call.units, last = 20000;\n"
    "    for (long long i = threadIdx.x; i < n; i += blockDim.x)\n"
    "        rows[last - i] = ((const float *)call.data[0])[i];\n"
    "    __syncthreads();\n"
    "    for (long long i = threadIdx.x; i < n; i += blockDim.x)\n"
    "        ((float *)call.data[1])[i] = rows[last - i] * (float)*(const double *)call.params;\n"
    "}\n";

static int shared_bytes = 80004, threads = 1024;

static qn_status one_block(const qn_view *in, const qn_view *out, const void *params,
                           qn_cuda_grid *grid, qn_error *err)
{
    (void)in, (void)out, (void)params;
    *grid = (qn_cuda_grid){.blocks = 1, .threads = threads, .shared = shared_bytes};
    if (threads >= 0)
        return QN_OK;
    snprintf(err->message, sizeof err->message, "it will not");
    return err->code = QN_LIMIT;
}

static qn_status never_on_cpu(qn_device *cpu)
{
    qn_error err = {0};
    const double scale = 1;
    const float values[] = {1, 2};
    const qn_primitive *p = qn_primitive_find(cpu, "test", "in_cuda", 0, &err);
    qn_scope *s = qn_scope_begin(cpu);
    qn_array *x = qn_from_f32(s, values, 2);
    qn_custom(s, p, &x, 1, &scale, sizeof scale);
    qn_status status = qn_scope_status(s);
    CHECK("no CPU kernel", strstr(qn_scope_error(s), "test/in_cuda") != NULL);
    qn_scope_end(s);
    return status;
}

static void add(qn_device *device, const char *name, const qn_cuda_kernel *kernel)
{
    qn_error err = {0};
    const qn_primitive_def def = {.size = sizeof def,
                                  .name = name,
                                  .version = 1,
                                  .n_inputs = 1,
                                  .params_size = sizeof(double),
                                  .unit = QN_UNIT_ELEMENT,
                                  .cuda = kernel};
    check(qn_primitive_register(device, "test", &def, &err) == QN_OK, name, err.message);
}

static char ptx[4096];
static const qn_cuda_kernel kernels[] = {
    {.size = sizeof *kernels, .source = in_cuda, .name = "scaled"},
    {.size = sizeof *kernels, .ptx = ptx, .name = "scaled", .grid = one_block},
    {.size = sizeof *kernels, .source = in_shared, .name = "scaled", .grid = one_block},
    {.size = sizeof *kernels, .source = wrong, .name = "scaled"},
    {.size = sizeof *kernels, .source = in_cuda, .name = "unscaled"},
};
static const char *const names[] = {"in_cuda", "in_ptx", "in_shared", "wrong", "unnamed"};
enum { N_KERNELS = sizeof kernels / sizeof *kernels, N = 1000 };

static void add_all(qn_device *device)
{
    snprintf(ptx, sizeof ptx, in_ptx, sizeof(qn_cuda_call), offsetof(qn_cuda_call, units),
             offsetof(qn_cuda_call, params));
    for (int i = 0; i < N_KERNELS; i++)
        add(device, names[i], &kernels[i]);
}

/* ---- without a GPU ------------------------------------------------------------------------------
 */

static void test_text(qn_device *any)
{
    qn__nvrtc nvrtc = {0};
    qn_error err = {0};
    if (qn__nvrtc_load(&nvrtc, &err) != QN_OK) {
        printf("text: skipped: %s\n", err.message);
        return;
    }
    for (int i = 0; i < N_KERNELS; i++) {
        qn__cuda_source source = {.what = names[i], .kernel = "scaled"};
        char *text = kernels[i].source
                         ? qn__cuda_custom_text(qn_primitive_find(any, "test", names[i], 0, &err),
                                                &kernels[i], &source.n)
                         : NULL;
        size_t size;
        source.text = text;
        char *code = text ? qn__cuda_compile(&nvrtc, &source, i % 2 ? 80 : 90, &size, &err) : NULL;
        bool fails = kernels[i].source == wrong;
        if (text)
            check(fails == !code, names[i], err.message);
        if (fails)
            check(strstr(err.message, "test/wrong(3): error") != NULL, "the line", err.message);
        err = (qn_error){0};
        free(code);
        free(text);
    }
    qn__nvrtc_unload(&nvrtc);
}

/* ---- with one -----------------------------------------------------------------------------------
 */

/* (x + 1) scale - x, of every second x. */
static bool run(qn_device *device, const char *name, double scale, float first, char *message)
{
    static float values[2 * N], y[N];
    qn_error err = {0};
    const qn_primitive *p = qn_primitive_find(device, "test", name, 0, &err);
    for (int i = 0; i < 2 * N; i++)
        values[i] = first + (float)i;
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_slice(s, qn_from_f32(s, values, 2 * N), 0, 0, 2 * N, 2);
    qn_array *more = qn_add(s, x, qn_scalar(s, QN_F32, 1));
    qn_array *z = qn_custom(s, p, &more, 1, &scale, sizeof scale);
    bool ok = qn_read_f32(s, qn_subtract(s, z, x), y, N) == QN_OK;
    snprintf(message, 500, "%s", ok ? "a wrong value" : qn_scope_error(s));
    for (int i = 0; i < N && ok; i++)
        ok = y[i] == (values[2 * i] + 1) * (float)scale - values[2 * i];
    qn_scope_end(s);
    return ok;
}

/* x as it lies: every second element of what was given. */
static void test_strides(qn_device *device)
{
    float values[12], y[6];
    qn_error err = {0};
    const double scale = 3;
    const qn_primitive *p = qn_primitive_find(device, "test", "in_cuda", 0, &err);
    for (int i = 0; i < 12; i++)
        values[i] = (float)i;
    const int64_t shape[] = {3, 4};
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_reshape(s, qn_from_f32(s, values, 12), 2, shape);
    qn_array *turned = qn_transpose(s, qn_slice(s, x, 1, 0, 4, 2), NULL); /* [2, 3] */
    qn_array *z = qn_custom(s, p, &turned, 1, &scale, sizeof scale);
    bool ok = qn_read_f32(s, z, y, 6) == QN_OK;
    check(ok, "strides", qn_scope_error(s));
    for (int i = 0; i < 6 && ok; i++)
        CHECK("strides", y[i] == 3 * (float)(4 * (i % 3) + 2 * (i / 3)));
    qn_scope_end(s);
}

static void test_gpu(qn_device *device)
{
    char message[500];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 20; k++)
            check(run(device, names[i], 2 + k % 3, (float)k, message), names[i], message);
    test_strides(device);
    CHECK("compile", !run(device, "wrong", 1, 0, message));
    check(strstr(message, "test/wrong(3): error") != NULL, "compile", message);
    CHECK("name", !run(device, "unnamed", 1, 0, message));
    check(strstr(message, "unscaled") != NULL, "name", message);
    threads = 1025;
    CHECK("threads", !run(device, "in_shared", 5, 0, message));
    check(strstr(message, "1025 threads") != NULL, "threads", message);
    threads = 1024;
    shared_bytes = 1 << 28;
    CHECK("shared", !run(device, "in_shared", 6, 0, message));
    check(strstr(message, "268435456 bytes of shared memory") != NULL, "shared", message);
    threads = -1;
    CHECK("grid", !run(device, "in_shared", 7, 0, message));
    check(strstr(message, "test/in_shared: it will not") != NULL, "grid", message);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    qn_device *cpu = NULL, *cuda = NULL;
    qn_error err = {0};
    if (qn_device_open(&cpu, "cpu", NULL, &err) != QN_OK)
        return printf("cpu: %s\n", err.message), 1;
    add_all(cpu);
    test_text(cpu);
    CHECK("no CPU kernel", never_on_cpu(cpu) == QN_UNSUPPORTED);
    qn_status status = qn_device_open(&cuda, "cuda:0", NULL, &err);
    if (status == QN_OK) {
        add_all(cuda);
        test_gpu(cuda);
        qn_device_close(cuda);
    }
    qn_device_close(cpu);
    printf("%d checks, %d failed%s%s\n", n_checks, n_failed,
           status == QN_OK ? "" : ", skipped: ", status == QN_OK ? "" : err.message);
    return n_failed || (status != QN_OK && status != QN_UNSUPPORTED) ? 1 : status == QN_OK ? 0 : 77;
}
