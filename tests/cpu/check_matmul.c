/* SPDX-License-Identifier: Apache-2.0 */
/* Strided matmul: values against f64, and the same bits however the rows are cut. */
#include "check.h"

/* The sum over k in two calls. */
static int same_in_parts(const qn__cpu_kernels *t, const qn__cpu_dense *d, size_t m,
                         const float *want)
{
    qn__cpu_dense part = *d;
    part.k = d->k / 2;
    t->dense(&part, 0, m);
    part.a += (ptrdiff_t)part.k * d->cas;
    part.b += (ptrdiff_t)part.k * d->rbs;
    part.k = d->k - part.k;
    part.add = true;
    t->dense(&part, 0, m);
    return memcmp(want, d->c, m * (size_t)d->ldc * 4) == 0;
}

static int same_in_parts_f64(const qn__cpu_kernels *t, const qn__cpu_dense_f64 *d, size_t m,
                             const double *want)
{
    qn__cpu_dense_f64 part = *d;
    part.k = d->k / 2;
    t->dense_f64(&part, 0, m);
    part.a += (ptrdiff_t)part.k * d->cas;
    part.b += (ptrdiff_t)part.k * d->rbs;
    part.k = d->k - part.k;
    part.add = true;
    t->dense_f64(&part, 0, m);
    return memcmp(want, d->c, m * (size_t)d->ldc * 8) == 0;
}

/* B laid out before. */
static int same_with_panels(const qn__cpu_kernels *t, const qn__cpu_dense *d, size_t m,
                            const float *want)
{
    qn__cpu_dense laid_out = *d;
    size_t panels = (d->n + 15) / 16, half = panels / 2;
    if (!t->dense_panels)
        return 1;
    float *to = new_floats(panels * 16 * d->k);
    t->dense_panels(d, half, panels, to);
    t->dense_panels(d, 0, half, to);
    laid_out.panels = to;
    laid_out.b = NULL;
    memset(d->c, 0xff, m * (size_t)d->ldc * 4);
    for (size_t r = 0; r < m; r++) /* as `want` has it: between the rows nothing is written */
        d->c[r * (size_t)d->ldc + d->n] = want[r * (size_t)d->ldc + d->n];
    t->dense(&laid_out, 0, m / 3);
    t->dense(&laid_out, m / 3, m);
    free(to);
    return memcmp(want, d->c, m * (size_t)d->ldc * 4) == 0;
}

static void dense_case(const qn__cpu_kernels *t, size_t m, size_t n, size_t k, int ta, int tb)
{
    size_t ldc = n + 1;
    float *a = new_floats(m * k + 2 * m + 2 * k), *b = new_floats(n * k + 2 * n + 2 * k),
          *c = new_floats(m * ldc);
    double *ad = new_bytes((m * k + 2 * m + 2 * k) * 8),
           *bd = new_bytes((n * k + 2 * n + 2 * k) * 8), *cd = new_bytes(m * ldc * 8);
    random_fill(a, m * k + 2 * m + 2 * k);
    random_fill(b, n * k + 2 * n + 2 * k);
    for (size_t i = 0; i < m * k + 2 * m + 2 * k; i++)
        ad[i] = a[i];
    for (size_t i = 0; i < n * k + 2 * n + 2 * k; i++)
        bd[i] = b[i];
    ptrdiff_t ras = ta == 1 ? 1 : ta == 2 ? 2 : (ptrdiff_t)k + 1;
    ptrdiff_t cas = ta == 1 ? (ptrdiff_t)m + 1 : ta == 2 ? 0 : 1;
    ptrdiff_t rbs = tb == 1 ? 1 : tb == 2 ? (ptrdiff_t)n * 0 + 2 : (ptrdiff_t)n + 1;
    ptrdiff_t cbs = tb == 1 ? (ptrdiff_t)k + 1 : tb == 2 ? 0 : 1;
    qn__cpu_dense e = {n, k, a, ras, cas, b, rbs, cbs, c, (ptrdiff_t)ldc};
    qn__cpu_dense_f64 f = {n, k, ad, ras, cas, bd, rbs, cbs, cd, (ptrdiff_t)ldc};
    if (tb == 2 && 2 * k > n * k + 2 * n + 2 * k)
        return;
    t->dense(&e, 0, m);
    t->dense_f64(&f, 0, m);
    nmse s = {0, 0};
    for (size_t r = 0; r < m; r++)
        for (size_t j = 0; j < n; j++)
            nmse_add(&s, c[r * ldc + j], cd[r * ldc + j]);
    /* all columns, or a row's products, are one sum, which may be small */
    int ok = nmse_ok(&s, tb == 2 || ta == 2 ? 1e-8 : 1e-12);
    float *z = new_floats(m * ldc);
    e.c = z;
    for (size_t r = 0; r < m;) {
        size_t r1 = r + 1 + random_below(m - r);
        t->dense(&e, r, r1);
        r = r1;
    }
    ok &= memcmp(c, z, m * ldc * 4) == 0;
    ok &= same_in_parts(t, &e, m, c);
    ok &= same_with_panels(t, &e, m, c);
    double *whole = new_bytes(m * ldc * 8);
    memcpy(whole, cd, m * ldc * 8);
    ok &= same_in_parts_f64(t, &f, m, whole);
    free(whole);
    char name[64];
    snprintf(name, sizeof name, "dense %zux%zux%zu %s%s", m, n, k,
             ta == 1 ? "At"
             : ta    ? "A0"
                     : "A",
             tb == 1 ? "Bt"
             : tb    ? "B0"
                     : "B");
    check(name, t->tier, ok);
    free(a), free(b), free(c), free(ad), free(bd), free(cd), free(z);
}

void check_matmul(const qn__cpu_kernels *t)
{
    static const size_t dense[][3] = {{1, 1, 1},     {3, 5, 7},      {8, 48, 64},   {9, 49, 65},
                                      {1, 100, 300}, {11, 32, 270},  {40, 77, 600}, {65, 130, 33},
                                      {4, 9, 0},     {200, 100, 300}};
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        for (int ta = 0; ta < 3; ta++)
            for (int tb = 0; tb < 3; tb++)
                dense_case(t, dense[i][0], dense[i][1], dense[i][2], ta, tb);
}
