/* SPDX-License-Identifier: Apache-2.0 */
/* Row kernels and rope: values against the f64 kernels, same bits for any cut, alignment and tier.
 */
#include "check.h"

enum { ROWS = 7, WIDEST = 1100 };

static const size_t widths[] = {1,  2,  15,  16,  17,  31,  33,   49,  63,
                                64, 65, 127, 128, 129, 200, 1000, 1099};

typedef struct row_data {
    float *x, *w, *y, *z;
    double *xd, *wd, *yd;
} row_data;

static void rows_values(const qn__cpu_kernels *t, const row_data *d, size_t n)
{
    size_t ld = n + 1;
    nmse m = {0, 0};
    t->rms_norm(d->y, ld, d->x, ld, d->w, 1e-6f, n, 0, ROWS);
    t->rms_norm_f64(d->yd, ld, d->xd, ld, d->wd, 1e-6, n, 0, ROWS);
    for (size_t i = 0; i < ROWS * ld; i++)
        if (i % ld < n)
            nmse_add(&m, d->y[i], d->yd[i]);
    check("rms_norm", t->tier, nmse_ok(&m, 1e-14));
    m = (nmse){0, 0};
    t->softmax(d->y, ld, d->x, ld, n, 0, ROWS);
    t->softmax_f64(d->yd, ld, d->xd, ld, n, 0, ROWS);
    for (size_t i = 0; i < ROWS * ld; i++)
        if (i % ld < n)
            nmse_add(&m, d->y[i], d->yd[i]);
    check("softmax", t->tier, nmse_ok(&m, 1e-13));
    size_t whole = n & -n; /* the largest power of two that divides it */
    m = (nmse){0, 0};
    t->hadamard(d->y, ld, d->x, ld, 0.25f, whole, 0, ROWS);
    t->hadamard_f64(d->yd, ld, d->xd, ld, 0.25, whole, 0, ROWS);
    for (size_t i = 0; i < ROWS * ld; i++)
        if (i % ld < whole)
            nmse_add(&m, d->y[i], d->yd[i]);
    check("hadamard", t->tier, nmse_ok(&m, 1e-13));
    int ok = 1;
    t->logsumexp(d->y, d->x, ld, n, 0, ROWS);
    t->logsumexp_f64(d->yd, d->xd, ld, n, 0, ROWS);
    for (int r = 0; r < ROWS; r++)
        ok &= fabs(d->y[r] - d->yd[r]) <= 1e-6 * (1 + fabs(d->yd[r]));
    check("logsumexp", t->tier, ok);
    ok = 1;
    t->sum(d->y, d->x, ld, n, 0, ROWS);
    t->sum_f64(d->yd, d->xd, ld, n, 0, ROWS);
    for (int r = 0; r < ROWS; r++)
        ok &= fabs(d->y[r] - d->yd[r]) <= 1e-7 * (double)n + 1e-6;
    check("sum", t->tier, ok);
    ok = 1;
    t->max(d->y, d->x, ld, n, 0, ROWS);
    int64_t at[ROWS], at64[ROWS];
    t->argmax(at, d->x, ld, n, 0, ROWS);
    t->argmax_f64(at64, d->xd, ld, n, 0, ROWS);
    ok = memcmp(at, at64, sizeof at) == 0;
    for (int r = 0; r < ROWS; r++)
        ok &= d->y[r] == d->x[(size_t)r * ld + (size_t)at[r]];
    check("max, argmax", t->tier, ok);
}

/* One call of each into out (rows apart), from the given data; returns floats written. */
static void rows_once(const qn__cpu_kernels *t, float *out, const float *x, const float *w,
                      size_t ld, size_t n, size_t r0, size_t r1)
{
    size_t part = ROWS * ld;
    t->rms_norm(out, ld, x, ld, w, 1e-5f, n, r0, r1);
    t->rms_norm(out + part, ld, x, ld, NULL, 1e-5f, n, r0, r1);
    t->softmax(out + 2 * part, ld, x, ld, n, r0, r1);
    t->logsumexp(out + 3 * part, x, ld, n, r0, r1);
    t->sum(out + 3 * part + ROWS, x, ld, n, r0, r1);
    t->max(out + 3 * part + 2 * ROWS, x, ld, n, r0, r1);
    t->hadamard(out + 3 * part + 3 * ROWS, ld, x, ld, 0.3f, n & -n, r0, r1);
}

static void rows_bits(const qn__cpu_kernels *t, const qn__cpu_kernels *ref, const row_data *d,
                      size_t n)
{
    size_t ld = n + 1, all = 4 * ROWS * ld + 3 * ROWS;
    float *a = new_floats(all), *b = new_floats(all), *x = new_floats(ROWS * ld + 16);
    rows_once(ref, a, d->x, d->w, ld, n, 0, ROWS);
    int ok = 1;
    for (size_t shift = 0; shift < 9; shift += 3) {
        memcpy(x + shift, d->x, ROWS * ld * 4);
        memset(b, 0xff, all * 4);
        for (size_t r = 0; r < ROWS;) {
            size_t r1 = r + 1 + random_below(ROWS - r);
            rows_once(t, b, x + shift, d->w, ld, n, r, r1);
            r = r1;
        }
        ok &= memcmp(a, b, all * 4) == 0; /* also that nothing past a row is written */
    }
    check("rows bits: cut, place, tier", t->tier, ok);
    free(a), free(b), free(x);
}

static void rows_specials(const qn__cpu_kernels *t)
{
    float x[200], y;
    int64_t at;
    int ok = 1;
    for (int where = 0; where < 200; where++) {
        for (int i = 0; i < 200; i++)
            x[i] = -2.0f;
        x[where] = NAN;
        x[(where + 70) % 200] = INFINITY;
        t->max(&y, x, 200, 200, 0, 1);
        t->argmax(&at, x, 200, 200, 0, 1);
        ok &= isnan(y) && at == where;
        x[where] = -2.0f;
        x[(where + 7) % 200] = INFINITY; /* the first of two */
        t->argmax(&at, x, 200, 200, 0, 1);
        t->max(&y, x, 200, 200, 0, 1);
        int p = (where + 70) % 200, q = (where + 7) % 200;
        ok &= y == INFINITY && at == (p < q ? p : q);
        t->argmax(&at, x, 200, (size_t)(p < q ? p : q), 0, 1);
        ok &= at == 0;
    }
    for (int i = 0; i < 200; i++)
        x[i] = -INFINITY;
    t->logsumexp(&y, x, 200, 200, 0, 1);
    ok &= y == -INFINITY;
    t->max(&y, x, 200, 200, 0, 1);
    ok &= y == -INFINITY;
    t->argmax(&at, x, 200, 33, 0, 1);
    ok &= at == 0;
    t->sum(&y, x, 200, 0, 0, 1);
    ok &= y == 0.0f;
    x[3] = 1.0f; /* masked row: exact zeros elsewhere */
    t->softmax(x, 200, x, 200, 200, 0, 1);
    for (int i = 0; i < 200; i++)
        ok &= x[i] == (i == 3 ? 1.0f : 0.0f);
    check("rows specials", t->tier, ok);
}

static void rope_case(const qn__cpu_kernels *t, const qn__cpu_kernels *ref, size_t half, size_t d,
                      int interleaved)
{
    enum { H = 3, R = 5 };
    size_t row = H * d + 3, n = R * row;
    float *x = new_floats(n), *y = new_floats(n), *z = new_floats(n), *c = new_floats(R * half),
          *s = new_floats(R * half);
    double *xd = new_bytes(n * 8), *yd = new_bytes(n * 8), *cd = new_bytes(R * half * 8),
           *sd = new_bytes(R * half * 8);
    random_fill(x, n);
    for (size_t i = 0; i < n; i++)
        xd[i] = x[i];
    for (size_t i = 0; i < R * half; i++) {
        c[i] = random_unit(), s[i] = random_unit();
        cd[i] = c[i], sd[i] = s[i];
    }
    qn__cpu_rope a = {H, d, half, interleaved, x, row, d, y, row, d, c, s, half}, b = a;
    qn__cpu_rope_f64 e = {H, d, half, interleaved, xd, row, d, yd, row, d, cd, sd, half};
    b.y = z;
    t->rope(&a, 0, 2);
    t->rope(&a, 2, R);
    ref->rope(&b, 0, R);
    t->rope_f64(&e, 0, R);
    nmse m = {0, 0};
    for (size_t i = 0; i < n; i++)
        if (i % row < H * d)
            nmse_add(&m, y[i], yd[i]);
    int ok = nmse_ok(&m, 1e-14) && memcmp(y, z, n * 4) == 0;
    a.y = x; /* in place */
    t->rope(&a, 0, R);
    for (size_t r = 0; r < R; r++)
        ok &= memcmp(x + r * row, y + r * row, H * d * 4) == 0;
    check(interleaved ? "rope interleaved" : "rope split", t->tier, ok);
    free(x), free(y), free(z), free(c), free(s), free(xd), free(yd), free(cd), free(sd);
}

/* What the passes over n logits give, one behind the other; returns how many floats. Whether it is
 * right is for tests/generate/test_sampler.c. */
static size_t run_passes(const qn__cpu_kernels *t, const float *x, size_t n, float *out)
{
    enum { MOST = 512, BLOCKS = MOST / 64 };
    float tops[BLOCKS], kept[MOST], weight[64];
    double sums[BLOCKS], split[3], all;
    size_t blocks = (n + 63) / 64, at = 0, most;
    out[at++] = t->block_tops(x, n, tops);
    memcpy(out + at, tops, blocks * sizeof *tops);
    at += blocks;
    all = t->weigh(x, n, tops, 5.0f, 1.7f, -0.5f, sums);
    memcpy(out + at, &all, sizeof all);
    memcpy(out + at + 2, sums, blocks * sizeof *sums);
    at += 2 + 2 * blocks;
    t->weigh_block(x, n < 64 ? n : 64, 5.0f, 0.3f, -INFINITY, weight);
    memcpy(out + at, weight, sizeof weight);
    t->split(x, n, 5.0f, 1.0f, -1.0f, 2.0f, split);
    memcpy(out + at + 64, split, sizeof split);
    at += 64 + 6;
    most = t->collect(x, n, tops, -1.0f, 2.0f, kept);
    memcpy(out + at, kept, most * sizeof *kept);
    return at + most;
}

static void passes_bits(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
    static float x[512], got[1024], want[1024];
    int ok = 1;
    for (size_t n = 1; n <= 512; n += n < 140 ? 1 : 93)
        for (int odd = 0; odd < 2; odd++) {
            random_fill(x, n);
            for (size_t i = 0; i < n; i++)
                x[i] = odd && i % 5 == 2 ? NAN : odd && i % 7 == 3 ? -INFINITY : x[i] * 5.0f;
            size_t size = run_passes(ref, x, n, want);
            ok &= run_passes(t, x, n, got) == size && memcmp(got, want, size * 4) == 0;
        }
    check("sampling passes", t->tier, ok);
}

void check_rows(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
    passes_bits(t, ref);
    size_t n = ROWS * (WIDEST + 1);
    row_data d = {new_floats(n),    new_floats(n),    new_floats(n),   new_floats(n),
                  new_bytes(n * 8), new_bytes(n * 8), new_bytes(n * 8)};
    random_fill(d.x, n);
    random_fill(d.w, n);
    for (size_t i = 0; i < n; i++) {
        d.x[i] *= 5.0f;
        d.xd[i] = d.x[i];
        d.wd[i] = d.w[i];
    }
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        rows_values(t, &d, widths[i]);
        rows_bits(t, ref, &d, widths[i]);
    }
    rows_specials(t);
    static const size_t halves[] = {1, 8, 13, 16, 20, 32, 64, 128};
    for (size_t i = 0; i < 8; i++)
        for (int interleaved = 0; interleaved < 2; interleaved++)
            for (size_t extra = 0; extra < 20; extra += 19)
                rope_case(t, ref, halves[i], 2 * halves[i] + extra, interleaved);
    free(d.x), free(d.w), free(d.y), free(d.z), free(d.xd), free(d.wd), free(d.yd);
}
