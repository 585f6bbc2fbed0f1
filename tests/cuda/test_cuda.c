/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device against the CPU: every operation on random inputs (cases_*.c), a small Llama
 * (llama.c), and lifetimes. A plain program without a test library, so that it can be carried to a
 * machine with a GPU. Exits with 77 (skipped) and the reason where there is none.
 */
#include "base/clock.h"
#include "cases.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static size_t active_bytes(qn_device *device)
{
    qn_memory_stats stats = QN_INIT(qn_memory_stats);
    qn_device_memory(device, &stats);
    return stats.active;
}
/* ---- lifetimes ------------------------------------------------------------------------------- */

/* The scope ends while its evaluation may still run; the result is right all the same. */
static void test_async(qn_device *dev)
{
    qn_array *kept = NULL;
    for (int i = 0; i < 200; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float one = 1;
        qn_array *x = kept ? kept : qn_from_f32(s, &one, 1);
        qn_array *y = qn_add(s, x, qn_from_f32(s, &one, 1));
        CHECK("async", qn_eval_async(s, &y, 1) == QN_OK);
        qn_array *next = qn_retain(y);
        qn_scope_end(s);
        qn_release(kept);
        kept = next;
    }
    qn_scope *s = qn_scope_begin(dev);
    float y = 0;
    CHECK("async", qn_read_f32(s, kept, &y, 1) == QN_OK && y == 201);
    qn_scope_end(s);
    qn_release(kept);
}

static void *run_thread(void *device)
{
    long bad = 0;
    for (int i = 0; i < 50; i++) {
        qn_scope *s = qn_scope_begin(device);
        float y[40];
        qn_array *x = qn_arange(s, QN_F32, 40);
        bad +=
            qn_read_f32(
                s, qn_matmul(s, qn_reshape(s, x, SHAPE(40, 1)), qn_full(s, QN_F32, SHAPE(1, 1), i)),
                y, 40) != QN_OK;
        for (int k = 0; k < 40; k++)
            bad += y[k] != (float)(k * i);
        qn_scope_end(s);
    }
    return (void *)bad;
}

static void test_threads(qn_device *dev)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, run_thread, dev);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        CHECK("threads", bad == NULL);
    }
}

/* Row 3 of x has the same result, to the bit, in whatever company: linear layers. */
enum { UNITS = QN_DTYPE_COUNT }; /* the type of a weight that lies in them */

static qn_array *company_weight(qn_scope *s, int type, int64_t rows, int64_t columns)
{
    case_encoding = QN__Q4_K;
    return type == UNITS ? in_units(s, rows, columns)
                         : keep(s, noise(s, (qn_dtype)type, 1, SHAPE(rows, columns)));
}

static void test_company(qn_device *dev, qn_products products, int type, int64_t width)
{
    enum { COLUMNS = 4352, WIDEST = 4112, MOST = 150 };
    static float alone[WIDEST], beside[MOST * WIDEST];
    const size_t bytes = (size_t)width * sizeof *alone;
    static const int64_t companies[] = {4, 8, 9, 16, 17, 32, 33, 64, 65, 110, MOST},
                         rows[] = {3, 3, 3, 3, 3, 3, 3, 3, 3, 107, 141};
    seed = 5;
    qn_scope *s = qn_scope_begin(dev);
    qn_array *w = company_weight(s, type, width, COLUMNS),
             *x = keep(s, f32(s, SHAPE(MOST, COLUMNS)));
    qn_scope_end(s);
    for (size_t i = 0; i < sizeof companies / sizeof *companies; i++) {
        int64_t n = companies[i], row = rows[i];
        s = qn_scope_begin(dev);
        qn_array *y = qn_linear_with(s, qn_slice(s, x, 0, 0, n, 1), w, NULL, products);
        qn_array *one = qn_linear_with(s, qn_slice(s, x, 0, row, row + 1, 1), w, NULL, products);
        CHECK("company", qn_read_f32(s, y, beside, (size_t)(n * width)) == QN_OK);
        CHECK("company", qn_read_f32(s, one, alone, (size_t)width) == QN_OK);
        CHECK("company", !memcmp(alone, beside + row * width, bytes));
        qn_scope_end(s);
    }
    qn_release(w);
    qn_release(x);
}

/* The bits of a product of plain matrices are those of sums in the order that matmul.cuh promises,
 * whichever kernel makes it: by tiles of each size, or of few rows or columns. */
static void test_order(qn_device *dev)
{
    enum { SPAN = 128, K = 700, MOST = 300 };
    static const int64_t shapes[][2] = {{1, 300}, {7, 129}, {300, 1}, {40, 33}, {300, 290}};
    static float x[MOST * K], w[MOST * K], got[MOST * MOST];
    seed = 9;
    for (int i = 0; i < MOST * K; i++) {
        x[i] = (float)uniform();
        w[i] = (float)uniform();
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t m = shapes[i][0], n = shapes[i][1];
        qn_scope *s = qn_scope_begin(dev);
        qn_array *a = qn_from(s, QN_F32, SHAPE(m, K), x), *b = qn_from(s, QN_F32, SHAPE(n, K), w);
        bool same = qn_read_f32(s, qn_matmul(s, a, qn_swap_axes(s, b, 0, 1)), got,
                                (size_t)(m * n)) == QN_OK;
        for (int64_t e = 0; e < m * n && same; e++) {
            float total = 0;
            for (int64_t first = 0; first < K; first += SPAN) {
                float sum = 0;
                for (int64_t k = first; k < first + SPAN && k < K; k++)
                    sum = fmaf(x[e / n * K + k], w[e % n * K + k], sum);
                total += sum;
            }
            same = total == got[e];
        }
        CHECK("order", same);
        qn_scope_end(s);
    }
}

/* A row has the same sum, to the bit, alone, among many, and where its elements lie across memory.
 */
static void test_sums(qn_device *dev)
{
    enum { ROWS = 2500, MOST = 10000 };
    static const int64_t lengths[] = {5, 16, 31, 40, 700, 3000, MOST};
    static float many[ROWS], across[ROWS], alone;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int64_t n = lengths[i], rows = n == MOST ? 100 : ROWS;
        qn_scope *s = qn_scope_begin(dev);
        seed = 13;
        qn_array *x = f32(s, SHAPE(rows, n)), *turned = qn_contiguous(s, qn_swap_axes(s, x, 0, 1));
        bool read =
            qn_read_f32(s, qn_sum(s, x, 1, false), many, (size_t)rows) == QN_OK &&
            qn_read_f32(s, qn_sum(s, turned, 0, false), across, (size_t)rows) == QN_OK &&
            qn_read_f32(s, qn_sum(s, qn_slice(s, x, 0, 7, 8, 1), 1, false), &alone, 1) == QN_OK;
        CHECK("sums", read && !memcmp(many, across, (size_t)rows * sizeof *many));
        CHECK("sums", many[7] == alone);
        qn_scope_end(s);
    }
}

/* An activation and a gate have the same bits behind their layers, in the launch of these, as in a
 * launch of their own. */
static qn_array *squared_relu(qn_scope *s, qn_array *x)
{
    return qn_square(s, qn_relu(s, x));
}

static void test_gates(qn_device *dev, qn_products products)
{
    enum { WIDE = 512, N = 200, MOST = 150 };
    static float behind[MOST * N], alone[MOST * N];
    static const int64_t counts[] = {1, 3, 12, 40, MOST};
    qn_array *(*const activations[])(qn_scope *, qn_array *) = {qn_silu, squared_relu,
                                                                qn_gelu_tanh};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (size_t k = 0; k < 3; k++) {
            const size_t n = (size_t)counts[i] * N;
            seed = 11;
            qn_scope *s = qn_scope_begin(dev);
            const int type = products == QN_PRODUCTS_BF16  ? QN_BF16
                             : products == QN_PRODUCTS_F16 ? QN_F16
                                                           : UNITS;
            qn_array *gate = company_weight(s, type, N, WIDE),
                     *up = company_weight(s, type, N, WIDE),
                     *x = keep(s, noise(s, QN_F32, 0.3, SHAPE(counts[i], WIDE)));
            qn_array *g = qn_linear_with(s, x, gate, NULL, products),
                     *u = qn_linear_with(s, x, up, NULL, products),
                     *y = qn_multiply(s, activations[k](s, g), u);
            CHECK("gates", qn_read_f32(s, y, behind, n) == QN_OK);
            qn_array *made[] = {keep(s, qn_linear_with(s, x, gate, NULL, products)),
                                keep(s, qn_linear_with(s, x, up, NULL, products))};
            y = qn_multiply(s, activations[k](s, made[0]), made[1]);
            CHECK("gates", qn_read_f32(s, y, alone, n) == QN_OK);
            CHECK("gates", !memcmp(behind, alone, n * sizeof *alone));
            qn_scope_end(s);
            qn_release(gate);
            qn_release(up);
            qn_release(x);
            qn_release(made[0]);
            qn_release(made[1]);
        }
}

/* Runs whose arrays lie elsewhere go into the executable graphs that are there. */
static void test_updates(qn_device *dev)
{
    qn__cuda_stats before = qn__cuda_stats_get(dev);
    qn_array *held[4] = {NULL};
    for (int i = 0; i < 4; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float x[3 * 77];
        for (int k = 0; k < 3 * 77; k++)
            x[k] = (float)i + 1;
        held[i] = keep(s, qn_sum(s, qn_from(s, QN_F32, SHAPE(3, 77), x), -1, false));
        qn_scope_end(s);
    }
    qn__cuda_stats after = qn__cuda_stats_get(dev);
    CHECK("updates", after.instantiations - before.instantiations == QN__CUDA_GRAPHS);
    CHECK("updates", after.updates - before.updates == 4 - QN__CUDA_GRAPHS);
    for (int i = 0; i < 4; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float y[3] = {0};
        CHECK("updates", qn_read_f32(s, held[i], y, 3) == QN_OK && y[2] == 77.0f * (float)(i + 1));
        qn_scope_end(s);
        qn_release(held[i]);
    }
}

/* Small writes go beside the submission before, unless that still reads what they write over: a
 * long one reads what was written for it at its end, and the next one gets that buffer. */
static void test_writes(qn_device *dev)
{
    enum { RUNS = 30, N = 64, WIDE = 2048, PRODUCTS = 4 };
    qn_scope *s = qn_scope_begin(dev);
    qn_array *w = keep(s, qn_full(s, QN_F32, SHAPE(WIDE, WIDE), 1.0 / WIDE)), *before = NULL;
    qn_scope_end(s);
    for (int i = 0; i <= RUNS; i++) {
        float values[N], got[N];
        for (int k = 0; k < N; k++)
            values[k] = (float)i;
        s = qn_scope_begin(dev);
        qn_array *a = qn_from_f32(s, values, N), *x = w;
        for (int k = 0; k < PRODUCTS; k++)
            x = qn_matmul(s, x, w); /* each is w */
        x = qn_reshape(s, qn_slice(s, qn_slice(s, x, 0, 0, 1, 1), 1, 0, N, 1), 1, (int64_t[]){N});
        qn_array *y = qn_add(s, a, x);
        CHECK("writes", qn_eval_async(s, &y, 1) == QN_OK);
        y = qn_retain(y);
        if (before) {
            qn_scope *reads = qn_scope_begin(dev);
            CHECK("writes", qn_read_f32(reads, before, got, N) == QN_OK);
            qn_scope_end(reads);
            qn_release(before);
            CHECK("writes", got[N - 1] == (float)(i - 1) + 1.0f / WIDE);
        }
        qn_scope_end(s); /* whose buffer is the first to be given again */
        before = y;
    }
    qn_release(before);
    qn_release(w);
}

static void test_limit(qn_device *dev)
{
    size_t before = qn_device_set_memory_limit(dev, active_bytes(dev) + (1 << 20));
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = qn_full(s, QN_F32, SHAPE(1 << 20), 1);
    CHECK("limit", qn_eval(s, x) == QN_LIMIT);
    qn_scope_end(s);
    qn_device_set_memory_limit(dev, before);
}

/* ---- ceilings -------------------------------------------------------------------------------- */

/* Seconds until the sum of x, or of its products with w, is there: the best of a few. */
static double time_sum(qn_device *dev, qn_array *x, qn_array *w)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        qn_scope *s = qn_scope_begin(dev);
        float sum = 0;
        double begun = qn__seconds();
        qn_array *y = qn_cast(s, w ? qn_linear(s, x, w, NULL) : x, QN_F32);
        CHECK("ceilings", qn_read_f32(s, qn_sum(s, y, QN_ALL_AXES, false), &sum, 1) == QN_OK);
        double taken = qn__seconds() - begun;
        best = taken < best ? taken : best;
        qn_scope_end(s);
    }
    return best;
}

/* Whether what the device's own kernels reach is below, and not by far. */
static bool ceilings_hold(qn_device *dev, qn_array *x, qn_array *w)
{
    qn_ceilings best = QN_INIT(qn_ceilings);
    double n = (double)qn_array_dim(w, 0);
    CHECK("ceilings", qn_device_ceilings(dev, &best) == QN_OK);
    double read = 4.0 * (double)qn_array_elements(x) / time_sum(dev, x, NULL),
           products = 2 * n * n * n / time_sum(dev, w, w);
    printf("reads %.0f of %.0f GB/s, multiplies %.0f of %.0f GOP/s\n", read / 1e9, best.read / 1e9,
           products / 1e9, best.bf16 / 1e9);
    return read < 1.02 * best.read && read > 0.5 * best.read && products < 1.05 * best.bf16 &&
           products > 0.4 * best.bf16;
}

/* Others may use the GPU meanwhile, and end: once is enough. */
static void test_ceilings(qn_device *dev)
{
    qn_scope *s = qn_scope_begin(dev);
    qn_array *x = keep(s, qn_full(s, QN_F32, SHAPE(1 << 28), 1));
    qn_array *w = keep(s, qn_full(s, QN_BF16, SHAPE(8192, 8192), 1));
    bool hold = false;
    qn_scope_end(s);
    for (int i = 0; i < 100 && !hold; i++) {
        hold = ceilings_hold(dev, x, w);
        if (!hold)
            sleep(1);
    }
    CHECK("ceilings", hold);
    qn_release(x);
    qn_release(w);
}

/* ---- what needs no GPU ----------------------------------------------------------------------- */

/* Every instruction and every cast, rendered and compiled. */
static void every_instruction(qn__ir *ir, qn_dtype type)
{
    qn__ir_begin(ir);
    qn__ir_value a = qn__ir_input(ir, 0, type), b = qn__ir_input(ir, 1, type), last = a;
    qn__ir_value c = qn__ir_input(ir, 2, QN_BOOL);
    bool real = qn__is_float(type), half = type == QN_F16 || type == QN_BF16;
    for (int op = QN__IR_CAST + 1; op < QN__IR_COUNT && !half; op++) {
        bool any = op == QN__IR_NEG || op == QN__IR_ABS || op == QN__IR_SIGN;
        bool whole = op == QN__IR_NOT || op == QN__IR_AND || op == QN__IR_OR || op == QN__IR_XOR ||
                     op == QN__IR_SHL || op == QN__IR_SHR;
        int n = qn__ir_operands((qn__ir_op)op);
        if ((whole && real) || op == QN__IR_SELECT || (op == QN__IR_ATAN2 && !real) ||
            (n == 1 && !any && !whole && !real) || (n == 3 && !real))
            continue;
        last = n == 1   ? qn__ir_unary(ir, (qn__ir_op)op, a)
               : n == 2 ? qn__ir_binary(ir, (qn__ir_op)op, a, b)
                        : qn__ir_ternary(ir, (qn__ir_op)op, a, b, a);
    }
    qn__ir_ternary(ir, QN__IR_SELECT, c, a, qn__ir_integer(ir, type, 3));
    for (int to = 0; to < QN_DTYPE_COUNT; to++)
        qn__ir_cast(ir, a, (qn_dtype)to);
    ir->result = last;
}

static void test_programs(void)
{
    qn__nvrtc nvrtc = {0};
    qn_error err = {0};
    qn_status status = qn__nvrtc_load(&nvrtc, &err);
    if (status != QN_OK) {
        printf("programs: skipped: %s\n", err.message);
        CHECK("programs", status == QN_UNSUPPORTED && strstr(err.message, "libnvrtc"));
        return;
    }
    static char text[1 << 16];
    static qn__ir ir;
    for (int type = QN_U8; type < QN_DTYPE_COUNT; type++) {
        every_instruction(&ir, (qn_dtype)type);
        size_t n = ir.failed ? 0 : qn__cuda_chain_text(&ir, text, sizeof text);
        CHECK("programs", n > 0 && n < sizeof text);
        size_t size;
        const qn__cuda_source source = {
            .what = "a chain", .text = text, .n = n, .kernel = "chain", .exact = true};
        char *code = n ? qn__cuda_compile(&nvrtc, &source, type % 2 ? 80 : 90, &size, &err) : NULL;
        check(code != NULL, qn_dtype_name((qn_dtype)type), err.message);
        free(code);
    }
    const qn__cuda_source none = {.what = "none", .text = "no program", .n = 10, .kernel = "chain"};
    size_t size;
    CHECK("programs", !qn__cuda_compile(&nvrtc, &none, 80, &size, &err) && err.code == QN_DEVICE);
    qn__nvrtc_unload(&nvrtc);
    printf("programs: compiled for every type; a wrong one says: %s\n", err.message);
}

static void test_absent(void)
{
    qn_device *none = NULL;
    qn_error err = {0};
    CHECK("absent", qn_device_open(&none, "cuda:999", NULL, &err) == QN_UNSUPPORTED && !none);
    printf("absent: %s\n", err.message);
}

/* A kernel that faults: the evaluation fails with the error's name, later ones too, and closing
 * works. Nothing on this GPU works afterwards in this process. */
static void test_fault(void)
{
    qn_device *dev = NULL;
    qn_scope *s = qn_device_open(&dev, "cuda:0", NULL, NULL) == QN_OK ? qn_scope_begin(dev) : NULL;
    qn_array *x = keep(s, qn_zeros(s, QN_F32, SHAPE(100)));
    if (!x) {
        check(false, "fault", qn_scope_error(s));
        return;
    }
    void *data = x->buffer->data;
    x->buffer->data = (void *)64;
    CHECK("fault", qn_eval(s, qn_sum(s, x, 0, false)) == QN_DEVICE);
    printf("fault: %s\n", qn_scope_error(s));
    qn_scope_end(s);
    x->buffer->data = data;
    s = qn_scope_begin(dev);
    CHECK("fault", qn_eval(s, qn_sum(s, x, 0, false)) == QN_DEVICE);
    printf("fault: %s\n", qn_scope_error(s));
    qn_scope_end(s);
    qn_release(x);
    qn_device_close(dev);
}

/* All cases, or those of the files that are named. */
static void compare_all(qn_device *cpu, qn_device *cuda, int n_names, char **names)
{
    static const struct {
        const char *name;
        void (*compare)(qn_device *cpu, qn_device *cuda);
    } files[] = {{"arrays", compare_arrays}, {"products", compare_products},
                 {"rows", compare_rows},     {"attention", compare_attention},
                 {"blocks", compare_blocks}, {"exact", compare_exact},
                 {"units", compare_units}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bool wanted = n_names == 0;
        only_encoding = NULL;
        for (int k = 0; k < n_names; k++) {
            size_t n = strlen(files[i].name);
            bool is = !strncmp(names[k], files[i].name, n);
            if (is && names[k][n] == ':')
                only_encoding = names[k] + n + 1;
            wanted = wanted || (is && (!names[k][n] || names[k][n] == ':'));
        }
        if (wanted) {
            files[i].compare(cpu, cuda);
            end_part(files[i].name);
        }
    }
}

/* Words: of the comparisons with the CPU the cases of cases_WORD.c alone, gates and company;
 * units:ENCODING those of one encoding. */
int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    qn_device *cpu = NULL, *cuda = NULL;
    qn_error err = {0};
    if (qn_device_open(&cpu, "cpu", NULL, &err) != QN_OK) {
        printf("cpu: %s\n", err.message);
        return 1;
    }
    begin_parts();
    test_absent();
    test_programs();
    end_part("programs");
    qn_status status = qn_device_open(&cuda, "cuda:0", NULL, &err);
    if (status == QN_UNSUPPORTED) {
        printf("skipped: %s\n", err.message);
        compare_llama(cpu, NULL, QN_F32); /* that the reference itself is sound */
        end_part("llama");
        compare_all(cpu, cpu, argc - 1, argv + 1);
        qn_device_close(cpu);
        return n_failed ? 1 : 77;
    }
    if (status != QN_OK) {
        printf("cuda: %s\n", err.message);
        return 1;
    }
    char text[160];
    qn_device_describe(cuda, text, sizeof text);
    printf("device: %s\n", text);
    end_part("device");
    compare_all(cpu, cuda, argc - 1, argv + 1);
    test_order(cuda);
    test_sums(cuda);
    test_gates(cuda, QN_PRODUCTS_BF16);
    test_gates(cuda, QN_PRODUCTS_F16);
    test_gates(cuda, QN_PRODUCTS_INT8);
    test_gates(cuda, QN_PRODUCTS_F32);
    test_company(cuda, QN_PRODUCTS_BF16, QN_BF16, 72);
    test_company(cuda, QN_PRODUCTS_BF16, QN_BF16, 4112);
    test_company(cuda, QN_PRODUCTS_F32, QN_F32, 72);
    test_company(cuda, QN_PRODUCTS_F32, QN_F16, 4112);
    test_company(cuda, QN_PRODUCTS_F16, QN_F16, 72);
    test_company(cuda, QN_PRODUCTS_F16, QN_F16, 4112);
    forget_weights();
    end_part("gates");
    if (argc > 1) {
        qn_device_close(cuda);
        qn_device_close(cpu);
        printf("%d checks, %d failed\n", n_checks, n_failed);
        return n_failed != 0;
    }
    compare_llama(cpu, cuda, QN_F32);
    compare_llama(cpu, cuda, QN_BF16);
    end_part("llama");
    test_async(cuda);
    test_threads(cuda);
    test_updates(cuda);
    end_part("lifetimes");
    test_company(cuda, QN_PRODUCTS_INT8, UNITS, 72);
    test_company(cuda, QN_PRODUCTS_F32, UNITS, 72);
    forget_weights();
    end_part("company");
    if (!getenv("QN_TEST_NO_FAULT")) /* as tools see it nothing is as fast as it is */
        test_ceilings(cuda);
    end_part("ceilings");
    test_writes(cuda);
    test_limit(cuda);
    CHECK("all buffers are back", active_bytes(cuda) == 0);
    qn_device_close(cuda);
    qn_device_close(cpu);
    if (!getenv("QN_TEST_NO_FAULT")) /* memory checkers stop at the first fault */
        test_fault();
    end_part("limit and fault");
    printf("%d checks, %d failed\n", n_checks, n_failed);
    return n_failed ? 1 : 0;
}
