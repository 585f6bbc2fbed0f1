/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference in f64: rows, rope and maps, the yardstick for gradients and for every f32 tier.
 * Approach: plain loops from left to right, the C library's functions.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

static double f64_row_max(const double *x, size_t n)
{
    double m = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (x[i] > m || x[i] != x[i])
            m = x[i] != x[i] ? NAN : x[i];
        else if (m != m)
            break;
    return m;
}

static double f64_row_sum_squares(const double *x, size_t n)
{
    double s = 0.0;
    for (size_t i = 0; i < n; i++)
        s += x[i] * x[i];
    return s;
}

static void f64_rms_norm(double *y, size_t ldy, const double *x, size_t ldx, const double *w,
                         double eps, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        double s = 1.0 / sqrt(f64_row_sum_squares(x + r * ldx, n) / (double)n + eps);
        for (size_t i = 0; i < n; i++)
            y[r * ldy + i] = x[r * ldx + i] * s * (w ? w[i] : 1.0);
    }
}

static void f64_softmax(double *y, size_t ldy, const double *x, size_t ldx, size_t n, size_t r0,
                        size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        double m = f64_row_max(x + r * ldx, n), s = 0.0;
        for (size_t i = 0; i < n; i++)
            s += y[r * ldy + i] = exp(x[r * ldx + i] - m);
        for (size_t i = 0; i < n; i++)
            y[r * ldy + i] /= s;
    }
}

static void f64_hadamard(double *y, size_t ldy, const double *x, size_t ldx, double scale, size_t n,
                         size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        double *out = y + r * ldy;
        memmove(out, x + r * ldx, n * sizeof *out);
        for (size_t apart = 1; apart < n; apart *= 2)
            for (size_t i = 0; i < n; i++)
                if (!(i & apart)) {
                    double low = out[i], high = out[i + apart];
                    out[i] = low + high;
                    out[i + apart] = low - high;
                }
        for (size_t i = 0; i < n; i++)
            out[i] *= scale;
    }
}

static void f64_logsumexp(double *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        double m = f64_row_max(x + r * ldx, n), s = 0.0;
        for (size_t i = 0; i < n; i++)
            s += exp(x[r * ldx + i] - m);
        out[r] = m == INFINITY || m == -INFINITY ? m : m + log(s);
    }
}

static void f64_sum(double *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        double s = 0.0;
        for (size_t i = 0; i < n; i++)
            s += x[r * ldx + i];
        out[r] = s;
    }
}

static void f64_max(double *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++)
        out[r] = f64_row_max(x + r * ldx, n);
}

static void f64_argmax(int64_t *out, const double *x, size_t ldx, size_t n, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        const double *in = x + r * ldx;
        size_t at = 0;
        for (size_t i = 1; i < n && in[at] == in[at]; i++)
            if (in[i] > in[at] || in[i] != in[i])
                at = i;
        out[r] = (int64_t)at;
    }
}

static void f64_rope(const qn__cpu_rope_f64 *a, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        for (size_t h = 0; h < a->heads; h++) {
            const double *x = a->x + r * a->x_row + h * a->x_head;
            double *y = a->y + r * a->y_row + h * a->y_head;
            for (size_t i = 0; i < a->half; i++) {
                double c = a->cos[r * a->cs_row + i], s = a->sin[r * a->cs_row + i];
                size_t p = a->interleaved ? 2 * i : i, q = a->interleaved ? 2 * i + 1 : i + a->half;
                double u = x[p], v = x[q];
                y[p] = u * c - v * s;
                y[q] = v * c + u * s;
            }
            for (size_t i = 2 * a->half; i < a->d; i++)
                y[i] = x[i];
        }
    }
}

static double f64_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1.0 + exp(x)) : 1.0 / (1.0 + exp(-x));
}

static double f64_rsqrt(double x)
{
    return 1.0 / sqrt(x);
}

static inline __attribute__((always_inline)) void f64_map_with(double (*f)(double), double *y,
                                                               const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = f(x[i]);
}

static void f64_map_exp(double *y, const double *x, size_t n)
{
    f64_map_with(exp, y, x, n);
}

static void f64_map_log(double *y, const double *x, size_t n)
{
    f64_map_with(log, y, x, n);
}

static void f64_map_tanh(double *y, const double *x, size_t n)
{
    f64_map_with(tanh, y, x, n);
}

static void f64_map_sin(double *y, const double *x, size_t n)
{
    f64_map_with(sin, y, x, n);
}

static void f64_map_cos(double *y, const double *x, size_t n)
{
    f64_map_with(cos, y, x, n);
}

static void f64_map_erf(double *y, const double *x, size_t n)
{
    f64_map_with(erf, y, x, n);
}

static void f64_map_sqrt(double *y, const double *x, size_t n)
{
    f64_map_with(sqrt, y, x, n);
}

static void f64_map_sigmoid(double *y, const double *x, size_t n)
{
    f64_map_with(f64_sigmoid, y, x, n);
}

static void f64_map_rsqrt(double *y, const double *x, size_t n)
{
    f64_map_with(f64_rsqrt, y, x, n);
}

static void f64_pow(double *y, const double *x, const double *e, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = pow(x[i], e[i]);
}

void qn__cpu_fill_ref_f64(qn__cpu_kernels *t)
{
    t->rms_norm_f64 = f64_rms_norm;
    t->softmax_f64 = f64_softmax;
    t->hadamard_f64 = f64_hadamard;
    t->logsumexp_f64 = f64_logsumexp;
    t->sum_f64 = f64_sum;
    t->max_f64 = f64_max;
    t->argmax_f64 = f64_argmax;
    t->rope_f64 = f64_rope;
    t->map_f64[QN__CPU_EXP] = f64_map_exp;
    t->map_f64[QN__CPU_LOG] = f64_map_log;
    t->map_f64[QN__CPU_TANH] = f64_map_tanh;
    t->map_f64[QN__CPU_SIGMOID] = f64_map_sigmoid;
    t->map_f64[QN__CPU_SIN] = f64_map_sin;
    t->map_f64[QN__CPU_COS] = f64_map_cos;
    t->map_f64[QN__CPU_ERF] = f64_map_erf;
    t->map_f64[QN__CPU_RSQRT] = f64_map_rsqrt;
    t->map_f64[QN__CPU_SQRT] = f64_map_sqrt;
    t->pow_f64 = f64_pow;
}
