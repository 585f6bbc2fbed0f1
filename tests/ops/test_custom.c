/* SPDX-License-Identifier: Apache-2.0
 *
 * User primitives: values against plain loops, strides and threads, derivatives against finite
 * differences, plans that tell primitives and parameters apart, and every way of asking for what is
 * not there.
 */
#include "../test.h"

#include "../base/fail_alloc.h"
#include "core/scope.h"

#include <math.h>
#include <string.h>

/* y = scale x^power w, with w [D] along the last axis: rows of x [..., D]. */
typedef struct bent_params {
    double scale;
    int32_t power, sign;
} bent_params;

static qn_status infer_bent(const qn_view *in, const void *params, qn_view *out, qn_error *err)
{
    (void)params;
    *out = in[0];
    if (in[0].ndim > 0 && in[1].ndim == 1 && in[1].shape[0] == in[0].shape[in[0].ndim - 1] &&
        in[0].dtype == in[1].dtype && (in[0].dtype == QN_F64 || in[0].dtype == QN_F32))
        return QN_OK;
    snprintf(err->message, sizeof err->message, "w must be [D] of the type of x, f32 or f64");
    return err->code = QN_INVALID;
}

static double element(const qn_view *v, int64_t at)
{
    return v->dtype == QN_F64 ? ((const double *)v->data)[at] : ((const float *)v->data)[at];
}

/* scratch holds the row first, as a kernel with a real need for it would. */
static void run_bent(const qn_view *in, const qn_view *y, const void *params, int64_t begin,
                     int64_t end, void *scratch)
{
    const bent_params *p = params;
    const qn_view *x = &in[0], *w = &in[1];
    int last = x->ndim - 1;
    int64_t d = x->shape[last];
    double *row = scratch;
    for (int64_t r = begin; r < end; r++) {
        int64_t at = 0, rest = r;
        for (int k = last - 1; k >= 0; rest /= x->shape[k--])
            at += rest % x->shape[k] * x->stride[k];
        for (int64_t i = 0; i < d; i++)
            row[i] = p->sign * p->scale * pow(element(x, at + i * x->stride[last]), p->power) *
                     element(w, i * w->stride[0]);
        for (int64_t i = 0; i < d; i++) {
            if (y->dtype == QN_F64)
                ((double *)y->data)[r * d + i] = row[i];
            else
                ((float *)y->data)[r * d + i] = (float)row[i];
        }
    }
}

static qn_array *power_of(qn_scope *s, qn_array *x, int n)
{
    qn_array *y = qn_scalar(s, qn_array_dtype(x), 1);
    for (int i = 0; i < n; i++)
        y = qn_multiply(s, y, x);
    return y;
}

static qn_array *factor(qn_scope *s, qn_array *x, const bent_params *p, double by)
{
    return qn_scalar(s, qn_array_dtype(x), p->sign * p->scale * by);
}

static qn_array *slope_x(qn_scope *s, qn_array *const *in, const bent_params *p)
{
    qn_array *y = qn_multiply(s, power_of(s, in[0], p->power - 1), in[1]);
    return qn_multiply(s, y, factor(s, in[0], p, p->power));
}

static void vjp_bent(qn_scope *s, qn_array *const *in, qn_array *y, const void *params,
                     qn_array *ct, const bool *want, qn_array **grads)
{
    (void)y;
    if (want[0])
        grads[0] = qn_multiply(s, ct, slope_x(s, in, params));
    if (want[1]) {
        const bent_params *p = params;
        qn_array *g = qn_multiply(s, power_of(s, in[0], p->power), factor(s, in[0], p, 1));
        grads[1] = qn_multiply(s, ct, g);
        while (qn_array_ndim(grads[1]) > 1)
            grads[1] = qn_sum(s, grads[1], 0, false);
    }
}

static qn_array *jvp_bent(qn_scope *s, qn_array *const *in, qn_array *y, const void *params,
                          qn_array *const *tangents)
{
    const bent_params *p = params;
    qn_array *out = qn_multiply(s, y, qn_scalar(s, qn_array_dtype(y), 0));
    if (tangents[0])
        out = qn_add(s, out, qn_multiply(s, slope_x(s, in, p), tangents[0]));
    if (tangents[1]) {
        qn_array *g = qn_multiply(s, power_of(s, in[0], p->power), factor(s, in[0], p, 1));
        out = qn_add(s, out, qn_multiply(s, g, tangents[1]));
    }
    return out;
}

enum { LONGEST_ROW = 512 };

static const qn_primitive_def bent = {.size = sizeof bent,
                                      .name = "bent",
                                      .version = 1,
                                      .n_inputs = 2,
                                      .params_size = sizeof(bent_params),
                                      .scratch = LONGEST_ROW * sizeof(double),
                                      .infer = infer_bent,
                                      .cpu = run_bent,
                                      .vjp = vjp_bent,
                                      .jvp = jvp_bent};

/* No parameters, no shape rule, one unit. */
static void run_reverse(const qn_view *in, const qn_view *y, const void *params, int64_t begin,
                        int64_t end, void *scratch)
{
    (void)params, (void)scratch;
    int64_t n = in->shape[0];
    assert_true(begin == 0 && end == 1);
    for (int64_t i = 0; i < n; i++)
        ((float *)y->data)[i] = ((const float *)in->data)[(n - 1 - i) * in->stride[0]];
}

static void run_double(const qn_view *in, const qn_view *y, const void *params, int64_t begin,
                       int64_t end, void *scratch)
{
    (void)params, (void)scratch;
    for (int64_t i = begin; i < end; i++)
        ((float *)y->data)[i] = 2 * ((const float *)in->data)[i * in->stride[0]];
}

static const qn_primitive_def reverse = {.size = sizeof reverse,
                                         .name = "change",
                                         .version = 1,
                                         .n_inputs = 1,
                                         .unit = QN_UNIT_WHOLE,
                                         .cpu = run_reverse};
static const qn_primitive_def doubled = {.size = sizeof doubled,
                                         .name = "change",
                                         .version = 3,
                                         .n_inputs = 1,
                                         .unit = QN_UNIT_ELEMENT,
                                         .cpu = run_double};

static const qn_primitive *add(qn_device *device, const qn_primitive_def *def)
{
    qn_error err = {0};
    if (qn_primitive_register(device, "test", def, &err) != QN_OK)
        fail_msg("%s", err.message);
    const qn_primitive *p = qn_primitive_find(device, "test", def->name, def->version, &err);
    assert_non_null(p);
    return p;
}

static qn_array *random_array(qn_scope *s, qn_dtype dtype, int ndim, const int64_t *shape,
                              uint64_t seed)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= shape[i];
    double *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = test_random(&seed);
    qn_array *a = qn_cast(s, qn_from(s, QN_F64, ndim, shape, values), dtype);
    free(values);
    return a;
}

static void test_values(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {70, 300}, {0, 4}, {5, 0}};
    const bent_params params = {0.5, 3, -1};
    for (int threads = 1; threads <= 3; threads++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            qn_device *device = open_cpu_threads(threads);
            const qn_primitive *p = add(device, &bent);
            qn_scope *s = qn_scope_begin(device);
            int64_t n = shapes[k][0], d = shapes[k][1];
            qn_array *x = random_array(s, QN_F32, 2, (int64_t[]){d, n}, 1),
                     *w = random_array(s, QN_F32, 1, &d, 2);
            qn_array *in[] = {qn_transpose(s, x, NULL), w}; /* lazy, and not contiguous */
            qn_array *y =
                qn_add(s, qn_custom(s, p, in, 2, &params, sizeof params), qn_scalar(s, QN_F32, 1));
            size_t size = (size_t)(n * d);
            float *ys = malloc(size * 4 + 4), *xs = malloc(size * 4 + 4), ws[LONGEST_ROW];
            if (qn_read_f32(s, y, ys, size) != QN_OK || qn_read_f32(s, x, xs, size) != QN_OK ||
                qn_read_f32(s, w, ws, (size_t)d) != QN_OK)
                fail_msg("%s", qn_scope_error(s));
            for (int64_t i = 0; i < n * d; i++) {
                double v = xs[i % d * n + i / d];
                float want = (float)(-0.5 * pow(v, 3) * ws[i % d]) + 1;
                assert_true(ys[i] == want);
            }
            free(xs);
            free(ys);
            qn_scope_end(s);
            qn_device_close(device);
        }
}

/* The sum of y c at inputs moved by h along one element. */
static double loss_at(qn_device *device, const qn_primitive *p, const bent_params *params,
                      int which, int64_t element_at, double h)
{
    qn_scope *s = qn_scope_begin(device);
    const int64_t shape[] = {3, 4};
    qn_array *in[] = {random_array(s, QN_F64, 2, shape, 5),
                      random_array(s, QN_F64, 1, shape + 1, 6)};
    qn_array *c = random_array(s, QN_F64, 2, shape, 7);
    double move[12] = {0}, value;
    move[element_at] = h;
    in[which] =
        qn_add(s, in[which], qn_from(s, QN_F64, which ? 1 : 2, which ? shape + 1 : shape, move));
    qn_array *y = qn_sum(s, qn_multiply(s, qn_custom(s, p, in, 2, params, sizeof *params), c),
                         QN_ALL_AXES, false);
    assert_int_equal(qn_read(s, y, &value, sizeof value), QN_OK);
    qn_scope_end(s);
    return value;
}

static void test_derivatives(void **state)
{
    (void)state;
    qn_device *device = open_cpu(NULL);
    const qn_primitive *p = add(device, &bent);
    const bent_params params = {1.5, 3, 1};
    const int64_t shape[] = {3, 4};
    qn_scope *s = qn_scope_begin(device);
    qn_array *in[] = {random_array(s, QN_F64, 2, shape, 5),
                      random_array(s, QN_F64, 1, shape + 1, 6)},
             *g[2];
    qn_array *c = random_array(s, QN_F64, 2, shape, 7);
    qn_array *y = qn_custom(s, p, in, 2, &params, sizeof params);
    qn_array *loss = qn_sum(s, qn_multiply(s, y, c), QN_ALL_AXES, false);
    qn_grad(s, loss, in, 2, g);
    double gradient[2][12], tangent, along = 0;
    if (qn_read(s, g[0], gradient[0], 96) != QN_OK || qn_read(s, g[1], gradient[1], 32) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_array *directions[] = {random_array(s, QN_F64, 2, shape, 8),
                              random_array(s, QN_F64, 1, shape + 1, 9)};
    double d[2][12];
    assert_int_equal(qn_read(s, directions[0], d[0], 96), QN_OK);
    assert_int_equal(qn_read(s, directions[1], d[1], 32), QN_OK);
    assert_int_equal(qn_read(s, qn_jvp(s, loss, in, directions, 2), &tangent, 8), QN_OK);
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < (which ? 4 : 12); i++) {
            double h = 1e-5, up = loss_at(device, p, &params, which, i, h);
            double slope = (up - loss_at(device, p, &params, which, i, -h)) / (2 * h);
            along += gradient[which][i] * d[which][i];
            if (fabs(slope - gradient[which][i]) > 1e-8)
                fail_msg("input %d, element %d: %.12g, finite differences %.12g", which, i,
                         gradient[which][i], slope);
        }
    assert_true(fabs(tangent - along) < 1e-12);
    qn_scope_end(s);
    qn_device_close(device);
}

static void read_custom(qn_device *device, const qn_primitive *p, float *y)
{
    static const float values[] = {1, 2, 3};
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_from_f32(s, values, 3);
    if (qn_read_f32(s, qn_custom(s, p, &x, 1, NULL, 0), y, 3) != QN_OK)
        fail_msg("%s", qn_scope_error(s));
    qn_scope_end(s);
}

/* Graphs that differ in the primitive or its parameters alone have plans of their own. */
static void test_plans(void **state)
{
    (void)state;
    qn_device *device = open_cpu(NULL);
    const qn_primitive *a = add(device, &reverse), *b = add(device, &doubled),
                       *p = add(device, &bent);
    float y[3];
    for (int i = 0; i < 3; i++) {
        read_custom(device, a, y);
        assert_true(y[0] == 3 && y[1] == 2 && y[2] == 1);
        read_custom(device, b, y);
        assert_true(y[0] == 2 && y[1] == 4 && y[2] == 6);
    }
    assert_int_equal(plans_of(device).misses, 2);
    for (int i = 0; i < 6; i++) {
        const bent_params params = {i % 2 ? 2 : 3, 1, 1};
        qn_scope *s = qn_scope_begin(device);
        qn_array *one = qn_from_f32(s, (float[]){1, 1}, 2), *in[] = {one, one};
        assert_int_equal(qn_read_f32(s, qn_custom(s, p, in, 2, &params, sizeof params), y, 2),
                         QN_OK);
        assert_true(y[0] == (float)params.scale);
        qn_scope_end(s);
    }
    assert_int_equal(plans_of(device).misses, 4);
    qn_device_close(device);
}

static void assert_line(const qn_error *err, qn_status code, const char *part)
{
    if (err->code != code || !strstr(err->message, part) || strchr(err->message, '\n'))
        fail_msg("expected \"%s\", got %s: %s", part, qn_status_text(err->code), err->message);
}

static void test_names(void **state)
{
    (void)state;
    qn_device *device = open_cpu(NULL);
    qn_error err = {0};
    assert_null(qn_primitive_find(device, "test", "change", 0, &err));
    assert_line(&err, QN_NOT_FOUND, "no primitive test/change; there are none");
    const qn_primitive *one = add(device, &reverse), *three = add(device, &doubled);
    assert_true(one != three);
    assert_ptr_equal(qn_primitive_find(device, "test", "change", 0, NULL), three); /* the newest */
    assert_ptr_equal(qn_primitive_find(device, "test", "change", 1, NULL), one);
    err = (qn_error){0};
    assert_null(qn_primitive_find(device, "test", "change", 2, &err));
    assert_line(&err, QN_NOT_FOUND,
                "no primitive test/change version 2; there are test/change 3, test/change 1");
    err = (qn_error){0};
    assert_int_equal(qn_primitive_register(device, "test", &reverse, &err), QN_INVALID);
    assert_line(&err, QN_INVALID, "test/change version 1 is registered already");
    assert_int_equal(qn_primitive_register(device, "other", &reverse, NULL), QN_OK);

    static const qn_cuda_kernel nameless = {.size = sizeof nameless, .source = ""},
                                twofold = {.size = sizeof twofold,
                                           .source = "",
                                           .ptx = "",
                                           .name = "x"},
                                sizeless = {.source = "", .name = "x"};
    static const struct {
        qn_primitive_def def;
        const char *part;
    } bad[] = {
        {{.size = 0, .name = "x"}, "qn_primitive_def.size"},
        {{.size = sizeof bent, .name = "a b"}, "letters, digits"},
        {{.size = sizeof bent, .name = "x"}, "version is below 1"},
        {{.size = sizeof bent, .name = "x", .version = 1, .n_inputs = 9}, "n_inputs is not 1 to 8"},
        {{.size = sizeof bent, .name = "x", .version = 1, .n_inputs = 1, .params_size = 241},
         "params_size is above 240"},
        {{.size = sizeof bent, .name = "x", .version = 1, .n_inputs = 1}, "there is no kernel"},
        {{.size = sizeof bent, .name = "x", .version = 1, .n_inputs = 1, .cuda = &nameless},
         "test/x: cuda: the kernel has no name"},
        {{.size = sizeof bent, .name = "x", .version = 1, .n_inputs = 1, .cuda = &twofold},
         "test/x: cuda: source or ptx is wanted"},
        {{.size = sizeof bent, .name = "x", .version = 1, .n_inputs = 1, .cuda = &sizeless},
         "qn_cuda_kernel"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (qn_error){0};
        assert_int_equal(qn_primitive_register(device, "test", &bad[i].def, &err), QN_INVALID);
        assert_line(&err, QN_INVALID, bad[i].part);
    }
    qn_device_close(device);
}

static void expect_error(qn_scope *s, const char *part)
{
    if (qn_scope_status(s) == QN_OK || !strstr(qn_scope_error(s), part))
        fail_msg("expected \"%s\", got \"%s\"", part, qn_scope_error(s));
    qn_scope_end(s);
}

static void test_wrong_calls(void **state)
{
    (void)state;
    qn_device *device = open_cpu(NULL), *other = open_cpu(NULL);
    const qn_primitive *p = add(device, &bent), *r = add(device, &reverse);
    const bent_params params = {1, 1, 1};
    static const float values[] = {1, 2, 3};
    qn_array *gradient;
    qn_scope *s = qn_scope_begin(device);
    qn_array *in[] = {qn_from_f32(s, values, 3), qn_from_f32(s, values, 2)};
    qn_custom(s, p, in, 1, &params, sizeof params);
    expect_error(s, "test/bent: 1 inputs and 16 bytes of parameters; it takes 2 and 16");
    s = qn_scope_begin(device);
    in[0] = qn_from_f32(s, values, 3);
    in[1] = qn_from_f32(s, values, 2);
    qn_custom(s, p, in, 2, &params, sizeof params);
    expect_error(s, "test/bent: [3] f32: w must be [D] of the type of x");
    s = qn_scope_begin(other);
    in[0] = qn_from_f32(s, values, 3);
    qn_custom(s, r, in, 1, NULL, 0);
    expect_error(s, "on a device where it is not registered");
    s = qn_scope_begin(device);
    qn_custom(s, NULL, in, 1, NULL, 0);
    expect_error(s, "the primitive is NULL");
    s = qn_scope_begin(device);
    in[0] = qn_from_f32(s, values, 3);
    qn_grad(s, qn_sum(s, qn_custom(s, r, in, 1, NULL, 0), 0, false), in, 1, &gradient);
    expect_error(s, "test/change has no derivative");
    qn_device_close(other);
    qn_device_close(device);
}

/* A good shared object is for examples/03_extend. */
/* A primitive for GPUs alone is there, but does not run here. */
static void test_gpu_alone(void **state)
{
    (void)state;
    static const qn_cuda_kernel kernel = {.size = sizeof kernel, .source = "", .name = "x"};
    static const qn_primitive_def def = {
        .size = sizeof def, .name = "x", .version = 1, .n_inputs = 1, .cuda = &kernel};
    qn_device *device = open_cpu(NULL);
    const qn_primitive *p = add(device, &def);
    qn_scope *s = qn_scope_begin(device);
    qn_array *x = qn_ones(s, QN_F32, 0, NULL);
    qn_custom(s, p, &x, 1, NULL, 0);
    assert_int_equal(qn_scope_status(s), QN_UNSUPPORTED);
    expect_error(s, "test/x: it has no kernel for device cpu; it has one for cuda");
    qn_device_close(device);
}

/* A kernel during which its own run is cancelled, as by another thread. */
static atomic_bool cancel;

static void run_cancel(const qn_view *in, const qn_view *y, const void *params, int64_t begin,
                       int64_t end, void *scratch)
{
    run_reverse(in, y, params, begin, end, scratch);
    atomic_store(&cancel, true);
}

static void test_cancelled(void **state)
{
    (void)state;
    static const qn_primitive_def def = {.size = sizeof def,
                                         .name = "cancel",
                                         .version = 1,
                                         .n_inputs = 1,
                                         .unit = QN_UNIT_WHOLE,
                                         .cpu = run_cancel};
    qn_device *device = open_cpu(NULL);
    const qn_primitive *p = add(device, &def);
    for (int polled = 1; polled >= 0; polled--) {
        float y[3] = {0};
        qn_scope *s = qn_scope_begin(device);
        qn_array *x = qn_from_f32(s, (const float[]){1, 2, 3}, 3);
        atomic_store(&cancel, false);
        s->cancel = polled ? &cancel : NULL;
        qn_status status = qn_read_f32(s, qn_custom(s, p, &x, 1, NULL, 0), y, 3);
        assert_int_equal(status, polled ? QN_CANCELLED : QN_OK);
        assert_true(atomic_load(&cancel)); /* it has run, to its end or not */
        assert_true(y[0] == (polled ? 0 : 3) && y[2] == (polled ? 0 : 1));
        qn_scope_end(s);
    }
    qn_device_close(device);
}

static void test_libraries(void **state)
{
    (void)state;
    qn_device *device = open_cpu(NULL);
    qn_error err = {0};
    assert_int_equal(qn_device_load_library(device, "/nowhere/x.so", NULL, &err), QN_IO);
    assert_line(&err, QN_IO, "/nowhere/x.so");
    err = (qn_error){0};
    assert_int_equal(qn_device_load_library(device, "libm.so.6", NULL, &err), QN_FORMAT);
    assert_line(&err, QN_FORMAT, "libm.so.6: it exports no quern_library");
    qn_device_close(device);
}

static void test_failed_allocations(void **state)
{
    (void)state;
    qn_device *device = open_cpu(NULL);
    bool more = true;
    for (long n = 0; more; n++) {
        fail_allocation_begin(n);
        qn_status status = qn_primitive_register(device, "test", &bent, NULL);
        more = fail_allocation_end();
        assert_int_equal(status, more ? QN_MEMORY : QN_OK);
    }
    qn_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_derivatives),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_gpu_alone),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_libraries),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
