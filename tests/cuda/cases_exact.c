/* SPDX-License-Identifier: Apache-2.0
 *
 * Every cast and every exact instruction, on all bit patterns.
 */
#include "cases.h"

#include <pthread.h>

static _Thread_local qn_dtype case_type;

static qn_array *any_bits(qn_scope *s, qn_dtype type, int64_t n)
{
    static const double ends[] = {0.0,  -0.0,         INFINITY, -INFINITY,
                                  NAN,  65519.9,      65520.0,  1e-45,
                                  6e-8, 2147483648.0, -9.3e18,  1.8446744073709552e19,
                                  127.5};
    size_t size = qn_dtype_size(type);
    char *data = malloc((size_t)n * 8);
    for (int64_t i = 0; data && i < n; i++) {
        double u = uniform(), v = uniform() * 300;
        uint64_t bits = seed ^ seed >> 29;
        if (type == QN_BOOL)
            data[i] = u > 0;
        else if (u > 0.2)
            memcpy(data + (size_t)i * size, &bits, size);
        else
            qn__element_from_f64(data + (size_t)i * size, type,
                                 u > -0.3             ? v
                                 : qn__is_float(type) ? ends[i % 13]
                                                      : 0);
    }
    qn_array *a = qn_from(s, type, 1, &n, data);
    free(data);
    return a;
}

/* Appends y as f64 and, of 64-bit integers, the low bits that f64 would hide. */
static void show_bits(qn_scope *s, qn_array *y, qn_array **parts, int *n)
{
    qn_dtype type = qn_array_dtype(y);
    parts[(*n)++] = qn_cast(s, y, QN_F64);
    if (type == QN_I64 || type == QN_U64)
        parts[(*n)++] = qn_cast(s, qn_cast(s, y, QN_U32), QN_F64);
}

static qn_array *op_cast_to_all(qn_scope *s)
{
    qn_array *x = any_bits(s, case_type, 3000), *parts[2 * QN_DTYPE_COUNT];
    int n = 0;
    for (int to = 0; to < QN_DTYPE_COUNT; to++)
        show_bits(s, qn_cast(s, x, (qn_dtype)to), parts, &n);
    return qn_concatenate(s, parts, n, 0);
}

static qn_array *op_exact_functions(qn_scope *s)
{
    qn_array *a = any_bits(s, case_type, 3000), *b = any_bits(s, case_type, 3000);
    qn_array *parts[] = {qn_negative(s, a),
                         qn_abs(s, a),
                         qn_sign(s, a),
                         qn_floor(s, a),
                         qn_ceil(s, a),
                         qn_round(s, a),
                         qn_sqrt(s, a),
                         qn_rsqrt(s, a),
                         qn_square(s, a),
                         qn_relu(s, a),
                         qn_add(s, a, b),
                         case_type == QN_BOOL ? a
                                              : qn_subtract(s, a, b), /* bools have no difference */
                         qn_multiply(s, a, b),
                         qn_divide(s, a, b),
                         qn_maximum(s, a, b),
                         qn_minimum(s, a, b),
                         qn_equal(s, a, b),
                         qn_not_equal(s, a, b),
                         qn_less(s, a, b),
                         qn_less_equal(s, a, b),
                         qn_where(s, qn_less(s, a, b), a, b)};
    enum { PARTS = sizeof parts / sizeof *parts };
    qn_array *all[2 * PARTS];
    int n = 0;
    for (int i = 0; i < PARTS; i++)
        show_bits(s, parts[i], all, &n);
    return qn_concatenate(s, all, n, 0);
}

/* Sorting and scattering, a column alone and several. */
static qn_array *op_order(qn_scope *s)
{
    static const qn_scatter_mode modes[] = {QN_SCATTER_SET, QN_SCATTER_ADD, QN_SCATTER_MAX,
                                            QN_SCATTER_MIN};
    qn_array *x = any_bits(s, case_type, 1000), *u = any_bits(s, case_type, 3000), *all[2 * 8 + 4];
    qn_array *ids = indices(s, 1000, true, SHAPE(3000)), *few = indices(s, 40, true, SHAPE(120));
    int n = 0;
    for (int mode = 0; mode < 4; mode++) {
        show_bits(s, qn_scatter(s, x, ids, u, 0, modes[mode]), all, &n);
        qn_array *rows = qn_scatter(s, qn_reshape(s, x, SHAPE(40, 25)), few,
                                    qn_reshape(s, u, SHAPE(120, 25)), 0, modes[mode]);
        show_bits(s, qn_reshape(s, rows, SHAPE(1000)), all, &n);
    }
    for (int descending = 0; descending < 2; descending++) {
        qn_array *rows = qn_argsort(s, qn_reshape(s, x, SHAPE(40, 25)), 1, descending);
        all[n++] = qn_cast(s, qn_argsort(s, u, 0, descending), QN_F64);
        all[n++] = qn_cast(s, qn_reshape(s, rows, SHAPE(1000)), QN_F64);
    }
    return qn_concatenate(s, all, n, 0);
}

/* A type's cases. */
typedef struct exact_type {
    qn_dtype type;
    qn_device *cpu, *cuda;
    pthread_t thread;
} exact_type;

static void *compare_type(void *arg)
{
    const exact_type *of = arg;
    const char *type = qn_dtype_name(of->type);
    const bool own = of->cuda != of->cpu;
    qn_device *cuda = of->cuda;
    qn_error err = {0};
    char name[32];
    case_type = of->type;
    if (own && qn_device_open(&cuda, "cuda:0", NULL, &err) != QN_OK) {
        check(false, type, err.message);
        return NULL;
    }
    snprintf(name, sizeof name, "casts of %s", type);
    compare_case(&(op_case){name, op_cast_to_all, 0}, of->cpu, cuda);
    snprintf(name, sizeof name, "functions of %s", type);
    compare_case(&(op_case){name, op_exact_functions, 0}, of->cpu, cuda);
    snprintf(name, sizeof name, "order of %s", type);
    compare_case(&(op_case){name, op_order, 0}, of->cpu, cuda);
    if (own)
        qn_device_close(cuda);
    return NULL;
}

/* Almost all of their time is the compiler's, for hundreds of programs: a thread for each type,
 * with a device of its own, since a device compiles one program at a time. */
void compare_exact(qn_device *cpu, qn_device *cuda)
{
    exact_type types[QN_DTYPE_COUNT];
    for (int t = 0; t < QN_DTYPE_COUNT; t++) {
        types[t] = (exact_type){.type = (qn_dtype)t, .cpu = cpu, .cuda = cuda};
        pthread_create(&types[t].thread, NULL, compare_type, &types[t]);
    }
    for (int t = 0; t < QN_DTYPE_COUNT; t++)
        pthread_join(types[t].thread, NULL);
}
