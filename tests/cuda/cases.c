/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks, times, random inputs, comparing.
 */
#include "cases.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

atomic_int n_failed, n_checks;

void check(bool ok, const char *what, const char *detail)
{
    n_checks++;
    if (ok)
        return;
    n_failed++;
    printf("FAILED  %s: %s\n", what, detail);
}

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of the part under way: when it began, and what cases took of it, those of all threads. */
static struct {
    pthread_mutex_t lock;
    double begun, inputs, results[2]; /* of the CPU and of CUDA */
} part = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add_times(double inputs, double result, bool cuda)
{
    pthread_mutex_lock(&part.lock);
    part.inputs += inputs;
    part.results[cuda] += result;
    pthread_mutex_unlock(&part.lock);
}

void begin_parts(void)
{
    part.begun = now();
}

void end_part(const char *name)
{
    const double end = now();
    printf("%s: %.1f s", name, end - part.begun);
    if (part.inputs > 0)
        printf(" (inputs %.1f, the CPU %.1f, CUDA %.1f)", part.inputs, part.results[0],
               part.results[1]);
    printf("\n");
    part.begun = end;
    part.inputs = part.results[0] = part.results[1] = 0;
}

_Thread_local uint64_t seed;

double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(seed >> 11) / (double)(1ll << 52) - 1.0;
}

static int64_t count_of(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    return n;
}

qn_array *noise(qn_scope *s, qn_dtype type, double scale, int ndim, const int64_t *shape)
{
    int64_t n = count_of(ndim, shape);
    size_t size = qn_dtype_size(type);
    char *data = malloc((size_t)n * size + 1);
    for (int64_t i = 0; data && i < n; i++)
        qn__element_from_f64(data + (size_t)i * size, type, uniform() * scale);
    qn_array *a = qn_from(s, type, ndim, shape, data);
    free(data);
    return a;
}

qn_array *indices(qn_scope *s, int64_t n, bool outside, int ndim, const int64_t *shape)
{
    int64_t count = count_of(ndim, shape);
    int32_t *data = malloc((size_t)count * 4 + 4);
    for (int64_t i = 0; data && i < count; i++)
        data[i] = (int32_t)floor((uniform() + 1) / 2 * (double)n) + (outside && i % 7 == 3) * 1000;
    qn_array *a = qn_from(s, QN_I32, ndim, shape, data);
    free(data);
    return a;
}

qn_array *f32(qn_scope *s, int ndim, const int64_t *shape)
{
    return noise(s, QN_F32, 1.5, ndim, shape);
}

qn_array *keep(qn_scope *s, qn_array *a)
{
    if (qn_eval(s, a) != QN_OK)
        return NULL;
    return qn_retain(a);
}

/* A case's result on a device: bytes, and as f32; NULL with the failure recorded. */
static void *run_case(const op_case *c, qn_device *dev, bool cuda, size_t *n, qn_dtype *type)
{
    const double begun = now();
    seed = 42;
    qn_scope *s = qn_scope_begin(dev);
    qn_array *y = c->build(s);
    const double built = now();
    void *data = NULL;
    if (qn_scope_status(s) == QN_OK) {
        *n = (size_t)qn_array_elements(y);
        *type = qn_array_dtype(y);
        data = malloc(*n * 8 + 8);
        if (qn_read(s, y, data, *n * qn_dtype_size(*type)) != QN_OK) {
            free(data);
            data = NULL;
        }
    }
    if (!data)
        check(false, c->name, qn_scope_error(s));
    qn_scope_end(s);
    add_times(built - begun, now() - built, cuda);
    return data;
}

static bool same_bits(const char *a, const char *b, size_t n, qn_dtype type)
{
    size_t size = qn_dtype_size(type);
    for (size_t i = 0; i < n; i++, a += size, b += size)
        if (memcmp(a, b, size)) {
            double x = qn__element_to_f64(a, type), y = qn__element_to_f64(b, type);
            if (x == x || y == y) /* any NaN equals any other */
                return false;
        }
    return true;
}

void compare_case(const op_case *c, qn_device *cpu, qn_device *cuda)
{
    size_t n = 0, m = 0;
    qn_dtype t = QN_F32, u = QN_F32;
    char *want = run_case(c, cpu, false, &n, &t), *got = run_case(c, cuda, true, &m, &u);
    double error = 0, power = 0;
    char text[128];
    if (want && got) {
        CHECK(c->name, n == m && t == u);
        size_t size = qn_dtype_size(t);
        for (size_t i = 0; i < n && n == m; i++) {
            double x = qn__element_to_f64(want + i * size, t);
            double d = qn__element_to_f64(got + i * size, t) - x;
            error += d * d;
            power += x * x;
        }
        double nmse = power > 0 ? error / power : error;
        bool exact = c->tolerance == 0, same = same_bits(want, got, n, t);
        snprintf(text, sizeof text, "%zu of %s: %s bits, nmse %.3g", n, qn_dtype_name(t),
                 same ? "the same" : "other", same ? 0 : nmse);
        check(exact ? same : nmse <= c->tolerance, c->name, text);
        printf("%-18s %s\n", c->name, text);
    }
    free(want);
    free(got);
}

void compare_list(const op_case *cases, size_t n, qn_device *cpu, qn_device *cuda)
{
    for (size_t i = 0; i < n; i++)
        compare_case(&cases[i], cpu, cuda);
}
