/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise maps and conversions: error in ulps over all magnitudes, specials, same bits in any
 * place and tier. */
#include "check.h"

typedef struct map_bound {
    const char *name;
    double ulps;     /* largest error in units of the result's last place ... */
    double absolute; /* ... or, where larger, in units of |x| or 1, whichever is smaller */
} map_bound;

static const map_bound bounds[QN__CPU_MAP_COUNT] = {
    [QN__CPU_EXP] = {"exp", 1.1, 0},    [QN__CPU_LOG] = {"log", 1.5, 0},
    [QN__CPU_TANH] = {"tanh", 2, 0},    [QN__CPU_SIGMOID] = {"sigmoid", 2.6, 0},
    [QN__CPU_SIN] = {"sin", 1.6, 0},    [QN__CPU_COS] = {"cos", 1.6, 0},
    [QN__CPU_ERF] = {"erf", 3, 0},      [QN__CPU_RSQRT] = {"rsqrt", 1.6, 0},
    [QN__CPU_SQRT] = {"sqrt", 0.51, 0},
};

static const float specials[] = {
    0.0f,       -0.0f,     INFINITY,      -INFINITY,      NAN,    1.0f,   -1.0f,  0x1p-149f,
    -0x1p-149f, 0x1p-126f, 3.4028235e38f, -3.4028235e38f, 88.72f, 88.73f, -87.4f, -103.9f,
    -104.1f,    65535.9f,  65536.0f,      1e10f,          0.625f, 0.92f,  4.0f,   -4.0f,
    -14.9f,     -15.1f,    0.70710678f};

/* Every magnitude, dense ordinary values, specials. */
static size_t map_inputs(float *x, size_t n)
{
    size_t at = 0;
    for (; at < sizeof specials / sizeof *specials; at++)
        x[at] = specials[at];
    for (; at < n; at++) {
        uint32_t u = random_u32();
        switch (at % 4) {
        case 0: memcpy(&x[at], &u, 4); break;
        case 1: x[at] = 100.0f * random_unit(); break;
        case 2: x[at] = 5.0f * random_unit(); break;
        default: x[at] = 1.0f + 0.5f * random_unit();
        }
    }
    return at;
}

static double map_error(int id, float x, float got, double want)
{
    double e = ulps(got, want), size = fmin(fabs((double)x), 1.0);
    if (bounds[id].absolute > 0 && fabs(got - want) <= bounds[id].absolute * size)
        return 0;
    return e;
}

static int map_place_free(void (*f)(float *, const float *, size_t), const float *x, const float *y)
{
    float out[80], in[80];
    for (int k = 0; k < 400; k++) {
        size_t n = 1 + random_below(70), at = random_below(5000), shift = random_below(8);
        memcpy(in + shift, x + at, n * 4);
        memset(out, 0xff, sizeof out);
        f(out + shift, in + shift, n);
        uint32_t past;
        memcpy(&past, out + shift + n, 4);
        if (memcmp(out + shift, y + at, n * 4) != 0 || past != 0xffffffffu)
            return 0;
        f(in + shift, in + shift, n); /* in place */
        if (memcmp(in + shift, y + at, n * 4) != 0)
            return 0;
    }
    return 1;
}

static void check_conversions(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
    enum { N = 65536 };
    uint16_t *h = new_bytes(N * 2 + 64), *back = new_bytes(N * 2 + 64), *other = new_bytes(N * 2);
    float *f = new_floats(N + 16), *g = new_floats(N);
    for (int i = 0; i < N; i++)
        h[i + 1] = (uint16_t)i;
    int bf16_ok = 1, f16_ok = 1, nan_ok = 1;
    t->f32_from_bf16(f + 3, h + 1, N);
    t->bf16_from_f32(back + 1, f + 3, N);
    for (int i = 0; i < N; i++) {
        uint32_t u;
        memcpy(&u, f + 3 + i, 4);
        bf16_ok &= u == (uint32_t)i << 16;
        if (!isnan(f[3 + i]))
            bf16_ok &= back[1 + i] == i;
        else
            nan_ok &= (back[1 + i] & 0x7fc0) == 0x7fc0;
    }
    t->f32_from_f16(f + 3, h + 1, N);
    t->f16_from_f32(back + 1, f + 3, N);
    for (int i = 0; i < N; i++) {
        int e = i >> 10 & 31, m = i & 1023;
        double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        v = i & 0x8000 ? -v : v;
        f16_ok &= isnan(v) ? isnan(f[3 + i]) : v == f[3 + i] && !signbit(v) == !signbit(f[3 + i]);
        if (!isnan(v))
            f16_ok &= back[1 + i] == i;
        else
            nan_ok &= (back[1 + i] & 0x7e00) == 0x7e00;
    }
    /* midpoints between neighbours go to the even one; a hair beyond goes up */
    for (int i = 0; i < 0x7bff; i++) {
        float lo, hi;
        uint16_t two[2] = {(uint16_t)i, (uint16_t)(i + 1)}, got[3];
        float pair[2];
        t->f32_from_f16(pair, two, 2);
        lo = pair[0], hi = pair[1];
        float in[3] = {(lo + hi) / 2, nextafterf((lo + hi) / 2, INFINITY),
                       nextafterf((lo + hi) / 2, 0.0f)};
        t->f16_from_f32(got, in, 3);
        f16_ok &= got[0] == i + (i & 1) && got[1] == i + 1 && got[2] == i;
        uint32_t mid = (uint32_t)i << 16 | 0x8000;
        memcpy(&in[0], &mid, 4);
        mid++;
        memcpy(&in[1], &mid, 4);
        mid -= 2;
        memcpy(&in[2], &mid, 4);
        t->bf16_from_f32(got, in, 3);
        bf16_ok &= got[0] == i + (i & 1) && got[1] == i + 1 && got[2] == i;
    }
    for (int i = 0; i < N; i++) {
        uint32_t u = random_u32();
        memcpy(g + i, &u, 4);
    }
    t->bf16_from_f32(back, g, N);
    ref->bf16_from_f32(other, g, N);
    bf16_ok &= memcmp(back, other, N * 2) == 0;
    t->f16_from_f32(back, g, N);
    ref->f16_from_f32(other, g, N);
    f16_ok &= memcmp(back, other, N * 2) == 0;
    check("bf16 conversion", t->tier, bf16_ok);
    check("f16 conversion", t->tier, f16_ok);
    check("half NaN", t->tier, nan_ok);
    free(h), free(back), free(other), free(f), free(g);
}

void check_maps(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
    enum { N = 400000 };
    float *x = new_floats(N), *y = new_floats(N), *z = new_floats(N);
    double *xd = new_bytes(N * 8), *yd = new_bytes(N * 8);
    map_inputs(x, N);
    for (int i = 0; i < N; i++)
        xd[i] = x[i];
    for (int id = 0; id < QN__CPU_MAP_COUNT; id++) {
        char name[64];
        double worst = 0;
        int at = 0;
        t->map[id](y, x, N);
        ref->map[id](z, x, N);
        t->map_f64[id](yd, xd, N);
        for (int i = 0; i < N; i++) {
            double e = map_error(id, x[i], y[i], yd[i]);
            if (e > worst)
                worst = e, at = i;
        }
        snprintf(name, sizeof name, "%s (%.2f ulp)", bounds[id].name, worst);
        check(name, t->tier, worst <= bounds[id].ulps);
        if (worst > bounds[id].ulps)
            printf("   x %.9g got %.9g want %.9g\n", x[at], y[at], yd[at]);
        snprintf(name, sizeof name, "%s bits: place, tier", bounds[id].name);
        check(name, t->tier, map_place_free(t->map[id], x, y) && memcmp(y, z, N * 4) == 0);
    }
    double worst = 0;
    for (int i = 0; i < N; i++)
        z[i] = x[N - 1 - i];
    t->pow(y, x, z, N);
    for (int i = 0; i < N; i++)
        worst = fmax(worst, ulps(y[i], pow(x[i], z[i])));
    check("pow", t->tier, worst <= 1.1);
    check_conversions(t, ref);
    free(x), free(y), free(z), free(xd), free(yd);
}
