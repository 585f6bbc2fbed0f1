/* SPDX-License-Identifier: Apache-2.0
 *
 * A shared object with an operation of its own, for 03_extend.c: softplus, log(1 + exp(b x)) / b,
 * with its kernel and its derivatives. It is not linked with Quern: the program that loads it has
 * the functions.
 */
#include <quern/quern.h>

#include <math.h>
#include <stdio.h>

typedef struct softplus_params {
    double b;
} softplus_params;

static qn_status infer(const qn_view *in, const void *params, qn_view *out, qn_error *err)
{
    (void)params;
    *out = *in;
    if (in->dtype == QN_F32 || in->dtype == QN_F64)
        return QN_OK;
    snprintf(err->message, sizeof err->message, "f32 and f64 are supported");
    return err->code = QN_UNSUPPORTED;
}

/* max(x, 0) + log(1 + exp(-|b x|)) / b, which cannot overflow */
static double softplus(double x, double b)
{
    return fmax(x, 0) + log1p(exp(-fabs(b * x))) / b;
}

/* The elements begin .. end - 1, in row-major order; x may have any strides. */
static void kernel(const qn_view *x, const qn_view *y, const void *params, int64_t begin,
                   int64_t end, void *scratch)
{
    const softplus_params *p = params;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = 0, rest = i;
        for (int d = x->ndim - 1; d >= 0; rest /= x->shape[d--])
            at += rest % x->shape[d] * x->stride[d];
        if (x->dtype == QN_F32)
            ((float *)y->data)[i] = (float)softplus(((const float *)x->data)[at], p->b);
        else
            ((double *)y->data)[i] = softplus(((const double *)x->data)[at], p->b);
    }
}

/* d softplus / dx = sigmoid(b x) */
static qn_array *slope(qn_scope *s, qn_array *x, const softplus_params *p)
{
    return qn_sigmoid(s, qn_multiply(s, x, qn_scalar(s, qn_array_dtype(x), p->b)));
}

static void vjp(qn_scope *s, qn_array *const *in, qn_array *y, const void *params, qn_array *ct,
                const bool *want, qn_array **grads)
{
    (void)y;
    if (want[0])
        grads[0] = qn_multiply(s, ct, slope(s, in[0], params));
}

static qn_array *jvp(qn_scope *s, qn_array *const *in, qn_array *y, const void *params,
                     qn_array *const *tangents)
{
    (void)y;
    return tangents[0] ? qn_multiply(s, tangents[0], slope(s, in[0], params)) : NULL;
}

static const qn_primitive_def primitives[] = {
    {.size = sizeof(qn_primitive_def),
     .name = "softplus",
     .version = 1,
     .n_inputs = 1,
     .params_size = sizeof(softplus_params),
     .unit = QN_UNIT_ELEMENT,
     .infer = infer,
     .cpu = kernel,
     .vjp = vjp,
     .jvp = jvp},
};

QN_API const qn_library quern_library = {
    .size = sizeof quern_library, .name = "example", .primitives = primitives, .n = 1};
