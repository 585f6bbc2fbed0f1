/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed and strided matmul: packing round trips under any cut, values against f64, and the same
 * bits for one row and many, any panel or column cut, any alignment of x and y.
 */
#include "check.h"

static float round_to(qn__cpu_type type, float f, const qn__cpu_kernels *t)
{
    uint16_t h;
    if (type == QN__CPU_BF16) {
        t->bf16_from_f32(&h, &f, 1);
        t->f32_from_bf16(&f, &h, 1);
    } else if (type == QN__CPU_F16) {
        t->f16_from_f32(&h, &f, 1);
        t->f32_from_f16(&f, &h, 1);
    }
    return f;
}

/* Packs plain f32 rows from a source of type src in random cuts; w[] is rounded to what was stored.
 */
static void *packed(const qn__cpu_kernels *t, qn__cpu_type type, qn__cpu_type src, float *w,
                    size_t n, size_t k)
{
    size_t ld = k + random_below(3);
    char *from = new_bytes(n * ld * 4 + 8), *base = from + (src == QN__CPU_F32 ? 4 : 2);
    for (size_t i = 0; i < n * k; i++) {
        w[i] = round_to(src, w[i], t);
        char *at = base + (i / k * ld + i % k) * (src == QN__CPU_F32 ? 4 : 2);
        if (src == QN__CPU_F32)
            memcpy(at, w + i, 4);
        else if (src == QN__CPU_BF16)
            t->bf16_from_f32((uint16_t *)at, w + i, 1);
        else
            t->f16_from_f32((uint16_t *)at, w + i, 1);
        w[i] = round_to(type, w[i], t);
    }
    void *p = new_bytes(qn__cpu_packed_bytes(type, n, k));
    for (size_t r = 0; r < n;) {
        size_t r1 = r + 1 + random_below(n - r);
        t->pack_rows(type, p, n, k, src, base + r * ld * (src == QN__CPU_F32 ? 4 : 2), ld, r, r1);
        r = r1;
    }
    free(from);
    return p;
}

static void pack_case(const qn__cpu_kernels *t, qn__cpu_type type, qn__cpu_type src, size_t n,
                      size_t k)
{
    float *w = new_floats(n * k), *row = new_floats(k + 1);
    char *raw = new_bytes(k * 4 + 4);
    random_fill(w, n * k);
    float *p = packed(t, type, src, w, n, k);
    int ok = 1;
    for (size_t r = 0; r < n; r++) {
        t->unpack_raw(type, p, n, k, r, raw);
        if (type == QN__CPU_BF16)
            t->f32_from_bf16(row + 1, (uint16_t *)raw, k);
        ok &= memcmp(type == QN__CPU_BF16 ? (char *)(row + 1) : raw, w + r * k, k * 4) == 0;
    }
    size_t bytes = qn__cpu_packed_bytes(type, n, k), zeros = 0, want = 0;
    if (type == QN__CPU_BF16) { /* the padding is zero: count elements that are neither */
        for (size_t i = 0; i < bytes / 2; i++)
            zeros += ((uint16_t *)p)[i] == 0;
        want = bytes / 2 - n * k;
    } else {
        for (size_t i = 0; i < bytes / 4; i++)
            zeros += p[i] == 0.0f;
        want = bytes / 4 - n * k;
    }
    for (size_t i = 0; i < n * k; i++)
        want += w[i] == 0.0f && !signbit(w[i]);
    check("pack, unpack", t->tier, ok && zeros == want);
    free(w), free(row), free(raw), free(p);
}

static float *multiply(const qn__cpu_kernels *t, qn__cpu_type type, const void *w, const float *x,
                       size_t ldx, size_t m, size_t n, size_t k, size_t ldy, int cuts)
{
    float *xp = new_bytes(qn__cpu_prepared_bytes(m, k)), *y = new_floats(m * ldy + 3);
    for (size_t r = 0; r < m;) {
        size_t r1 = cuts ? r + 1 + random_below(m - r) : m;
        t->prepare(type, xp, x, ldx, m, k, r, r1);
        r = r1;
    }
    qn__cpu_linear a = {type, w, n, k, m, 0, m, xp, y + 3 * (cuts > 0), ldy};
    size_t panels = qn__cpu_panels(n);
    for (size_t p = 0; p < panels;) {
        size_t p1 = cuts ? p + 1 + random_below(panels - p < 6 ? panels - p : 6) : panels;
        for (a.m0 = 0; a.m0 < m; a.m0 = a.m1) {
            a.m1 = cuts ? a.m0 + QN__CPU_BLOCK_ROWS * (1 + random_below(3)) : m;
            a.m1 = a.m1 < m ? a.m1 : m;
            t->linear(&a, p, p1);
        }
        p = p1;
    }
    free(xp);
    if (cuts)
        memmove(y, y + 3, m * ldy * 4);
    return y;
}

static void linear_case(const qn__cpu_kernels *t, qn__cpu_type type, size_t m, size_t n, size_t k)
{
    size_t ldx = k + 1, ldy = n + 2;
    float *w = new_floats(n * k), *x = new_floats(m * ldx + 1) + 1;
    random_fill(w, n * k);
    random_fill(x, m * ldx);
    void *p = packed(t, type, type, w, n, k);
    float *y = multiply(t, type, p, x, ldx, m, n, k, ldy, 0);
    nmse e = {0, 0};
    int ok = 1, same = 1;
    for (size_t r = 0; r < m; r += 1 + m / 5)
        for (size_t j = 0; j < n; j++) {
            double sum = 0;
            for (size_t i = 0; i < k; i++)
                sum += (double)round_to(type, x[r * ldx + i], t) * w[j * k + i];
            nmse_add(&e, y[r * ldy + j], sum);
        }
    ok &= nmse_ok(&e, 1e-12 + 1e-15 * (double)k);
    for (size_t r = 0; r + 1 < m; r++) { /* nothing past column n is written */
        uint32_t u[2];
        memcpy(u, y + r * ldy + n, 8);
        ok &= u[0] == 0xffffffffu && u[1] == 0xffffffffu;
    }
    for (size_t r = 0; r < m;) { /* groups of any size, any cut */
        size_t g = m - r < 41 ? 1 + random_below(m - r) : 1 + random_below(40);
        float *z = multiply(t, type, p, x + r * ldx, ldx, g, n, k, ldy, 1);
        for (size_t i = 0; i < g; i++)
            same &= memcmp(z + i * ldy, y + (r + i) * ldy, n * 4) == 0;
        free(z);
        r += g;
    }
    for (size_t r = 0; r < m; r += 1 + m / 9) {
        float *z = multiply(t, type, p, x + r * ldx, ldx, 1, n, k, n, 0);
        same &= memcmp(z, y + r * ldy, n * 4) == 0;
        free(z);
    }
    char name[64];
    snprintf(name, sizeof name, "linear %s %zux%zux%zu", type == QN__CPU_F32 ? "f32" : "bf16", m, n,
             k);
    check(name, t->tier, ok);
    snprintf(name, sizeof name, "linear %s %zux%zux%zu bits", type == QN__CPU_F32 ? "f32" : "bf16",
             m, n, k);
    check(name, t->tier, same);
    free(w), free(x - 1), free(p), free(y);
}

static void back_case(const qn__cpu_kernels *t, qn__cpu_type type, size_t m, size_t n, size_t k)
{
    size_t ldg = n + 3, ldy = k + 1;
    float *w = new_floats(n * k), *g = new_floats(m * ldg), *y = new_floats(m * ldy),
          *z = new_floats(m * ldy);
    random_fill(w, n * k);
    memset(g, 0xff, m * ldg * 4);
    for (size_t r = 0; r < m; r++)
        random_fill(g + r * ldg, n);
    void *p = packed(t, type, type, w, n, k);
    qn__cpu_linear_back a = {type, p, n, k, m, g, ldg, y, ldy};
    t->linear_back(&a, 0, k);
    nmse e = {0, 0};
    for (size_t r = 0; r < m; r++)
        for (size_t i = 0; i < k; i++) {
            double sum = 0;
            for (size_t j = 0; j < n; j++)
                sum += (double)g[r * ldg + j] * w[j * k + i];
            nmse_add(&e, y[r * ldy + i], sum);
        }
    int ok = nmse_ok(&e, 1e-12);
    for (size_t r = 0; r < m;) {
        size_t rows = 1 + random_below(m - r);
        qn__cpu_linear_back b = {type, p, n, k, rows, g + r * ldg, ldg, z + r * ldy, ldy};
        for (size_t c = 0; c < k;) {
            size_t c1 = c + 2 * (1 + random_below(30));
            t->linear_back(&b, c, c1 < k ? c1 : k);
            c = c1;
        }
        r += rows;
    }
    check(type == QN__CPU_F32 ? "linear_back f32" : "linear_back bf16", t->tier,
          ok && memcmp(y, z, m * ldy * 4) == 0);
    free(w), free(g), free(y), free(z), free(p);
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
    ptrdiff_t ras = ta ? 1 : (ptrdiff_t)k + 1, cas = ta ? (ptrdiff_t)m + 1 : 1;
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
    int ok = nmse_ok(&s, 1e-12);
    float *z = new_floats(m * ldc);
    e.c = z;
    for (size_t r = 0; r < m;) {
        size_t r1 = r + 1 + random_below(m - r);
        t->dense(&e, r, r1);
        r = r1;
    }
    ok &= memcmp(c, z, m * ldc * 4) == 0;
    char name[64];
    snprintf(name, sizeof name, "dense %zux%zux%zu %s%s", m, n, k, ta ? "At" : "A",
             tb == 1 ? "Bt"
             : tb    ? "B0"
                     : "B");
    check(name, t->tier, ok);
    free(a), free(b), free(c), free(ad), free(bd), free(cd), free(z);
}

void check_matmul(const qn__cpu_kernels *t)
{
    static const size_t sizes[][2] = {{1, 1},   {16, 2},   {17, 3},    {5, 64},
                                      {33, 65}, {48, 128}, {100, 129}, {64, 1031}};
    int slow = !strcmp(t->tier, "ref");
    for (int type = 0; type < 2; type++) {
        for (int src = 0; src < 3; src++)
            for (size_t i = 0; i < 7; i++)
                pack_case(t, (qn__cpu_type)type, (qn__cpu_type)src, sizes[i][0], sizes[i][1]);
        for (size_t i = 0; i < 8; i++) {
            linear_case(t, (qn__cpu_type)type, 1 + random_below(40), sizes[i][0], sizes[i][1]);
            back_case(t, (qn__cpu_type)type, 1 + random_below(12), sizes[i][0], sizes[i][1]);
        }
        for (size_t m = 2; m <= 40; m += slow ? 7 : 1)
            linear_case(t, (qn__cpu_type)type, m, 112, 300);
        linear_case(t, (qn__cpu_type)type, slow ? 50 : 512, 160, 2050);
        linear_case(t, (qn__cpu_type)type, slow ? 3 : 70, 330, 8192);
        back_case(t, (qn__cpu_type)type, 40, 330, 200);
    }
    static const size_t dense[][3] = {{1, 1, 1},     {3, 5, 7},     {8, 48, 64},   {9, 49, 65},
                                      {1, 100, 300}, {40, 77, 600}, {65, 130, 33}, {4, 9, 0}};
    for (size_t i = 0; i < 8; i++)
        for (int ta = 0; ta < 2; ta++)
            for (int tb = 0; tb < 3; tb++)
                dense_case(t, dense[i][0], dense[i][1], dense[i][2], ta, tb);
}
