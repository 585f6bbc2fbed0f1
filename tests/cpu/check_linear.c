/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear layers on packed weights of every encoding: packing under any cut and back to the byte,
 * values with each kind of products against f64 on the encoding's own decoded values, the same bits
 * for one row and many, any panel or column cut, any alignment of x and y; products of bytes, with
 * a scale for each group or each row, also the same in every tier, those of bf16 in the order of
 * the tier's instruction.
 */
#include "check.h"

/* A weight: its encoded rows, decoded values, and units. */
typedef struct weight {
    const qn__layout *l;
    qn__layout_id id;
    size_t n, k, row_bytes;
    uint8_t *rows;
    float *values; /* [n][k] */
    void *units;
} weight;

static int sane(const float *v, size_t n)
{
    float most = 0.0f;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(v[i]))
            return 0;
        most = fabsf(v[i]) > most ? fabsf(v[i]) : most;
    }
    return most < 8.0f && most > 1e-3f;
}

/* One block: of random values where the encoding can write, else random bytes. */
static void random_block(const qn__encoding *e, uint8_t *block, float *values)
{
    if (e->encode) {
        random_fill(values, e->block_elements);
        e->encode(e, values, NULL, 1, block);
        e->decode(e, block, 1, values);
        return;
    }
    do {
        for (size_t i = 0; i < e->block_bytes; i++)
            block[i] = (uint8_t)random_u32();
        e->decode(e, block, 1, values);
    } while (!sane(values, e->block_elements));
}

static weight empty_weight(qn__layout_id id, size_t n, size_t k)
{
    weight w = {.l = qn__layout_of(id), .id = id, .n = n, .k = k};
    w.row_bytes = qn__encoding_row_bytes(w.l->encoding, (int64_t)k);
    w.rows = new_bytes(n * w.row_bytes);
    w.values = new_floats(n * k);
    w.units = new_bytes(qn__layout_bytes(id, (int64_t)n, (int64_t)k));
    return w;
}

/* In random cuts. */
static void pack_weight(weight *w)
{
    for (size_t r = 0, r1; r < w->n; r = r1) {
        r1 = r + 1 + random_below(w->n - r);
        qn__layout_pack(w->l, w->units, (int64_t)w->n, (int64_t)w->k, w->rows + r * w->row_bytes,
                        w->row_bytes, (int64_t)r, (int64_t)(r1 - r));
    }
}

static weight new_weight(qn__layout_id id, size_t n, size_t k)
{
    weight w = empty_weight(id, n, k);
    const qn__encoding *e = w.l->encoding;
    for (size_t b = 0; b < n * k / e->block_elements; b++)
        random_block(e, w.rows + b * e->block_bytes, w.values + b * e->block_elements);
    pack_weight(&w);
    return w;
}

static void free_weight(weight *w)
{
    free(w->rows), free(w->values), free(w->units);
}

static void label(char *text, size_t room, const char *what, const weight *w, size_t m)
{
    snprintf(text, room, "%s %s %zux%zux%zu", what, w->l->encoding->name, m, w->n, w->k);
}

/* Rows come back as they were, and as values; a second packing in one piece gives the same units.
 */
static void pack_case(qn__layout_id id, size_t n, size_t k)
{
    char name[80];
    weight w = new_weight(id, n, k);
    size_t bytes = qn__layout_bytes(id, (int64_t)n, (int64_t)k);
    uint8_t *row = new_bytes(w.row_bytes + 4);
    float *values = new_floats(k);
    int ok = 1;
    for (size_t r = 0; r < n; r++) {
        qn__layout_unpack_row(w.l, w.units, (int64_t)k, (int64_t)r, row);
        ok &= memcmp(row, w.rows + r * w.row_bytes, w.row_bytes) == 0;
        qn__layout_row_values(w.l, w.units, (int64_t)k, (int64_t)r, values);
        ok &= memcmp(values, w.values + r * k, k * 4) == 0;
    }
    for (size_t r = n; r < (n + 15) / 16 * 16;
         r++) { /* the rows that pad the last units are zero */
        qn__layout_unpack_row(w.l, w.units, (int64_t)k, (int64_t)r, row);
        for (size_t i = 0; i < w.row_bytes; i++)
            ok &= row[i] == 0;
    }
    void *whole = new_bytes(bytes);
    memset(whole, 0, bytes);
    qn__layout_pack(w.l, whole, (int64_t)n, (int64_t)k, w.rows, w.row_bytes, 0, (int64_t)n);
    if (w.l->columns == 1) /* no bytes between the words */
        ok &= memcmp(whole, w.units, bytes) == 0;
    label(name, sizeof name, "pack", &w, 0);
    check(name, "-", ok);
    free(whole), free(row), free(values);
    free_weight(&w);
}

/* ---- what is expected, in f64 ---- */

static float rounded_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return f;
}

/* x as the products see it. */
static void seen(qn__cpu_type products, const qn__layout *l, const float *x, size_t k, double *to)
{
    bool rows = products == QN__CPU_INT8_ROWS;
    size_t span = rows ? k : l->step > 32 ? l->step : 32;
    for (size_t i = 0; i < k; i++)
        to[i] = products == QN__CPU_BF16 ? rounded_bf16(x[i]) : x[i];
    for (size_t g = 0; (rows || products == QN__CPU_INT8) && g < k; g += span) {
        size_t end = k - g < span ? k : g + span;
        float most = rows ? 1e-5f : 0.0f;
        for (size_t i = g; i < end; i++)
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        float scale = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
        for (size_t i = g; i < end; i++)
            to[i] = (double)scale * rintf(x[i] * inverse);
    }
}

static float *multiply(const qn__cpu_kernels *t, qn__cpu_type products, const weight *w,
                       const float *x, size_t ldx, size_t m, size_t ldy, int cuts)
{
    float *y = new_floats(m * ldy + 3);
    void *xp = new_bytes(qn__cpu_prepared_bytes(m, w->k));
    for (size_t r = 0, r1; r < m; r = r1) {
        r1 = cuts ? r + 1 + random_below(m - r) : m;
        t->prepare[products](w->l, xp, x, ldx, m, w->k, r, r1);
    }
    qn__cpu_linear a = {w->l, t->unpack[w->id],   w->units, w->n, w->k, m, 0, m,
                        xp,   y + 3 * (cuts > 0), ldy};
    size_t panels = qn__cpu_panels(w->n);
    for (size_t p = 0, p1; p < panels; p = p1) {
        p1 = cuts ? p + 1 + random_below(panels - p < 6 ? panels - p : 6) : panels;
        for (a.m0 = 0; a.m0 < m; a.m0 = a.m1) {
            a.m1 = cuts ? a.m0 + t->cut[products].block_rows * (1 + random_below(3)) : m;
            a.m1 = a.m1 < m ? a.m1 : m;
            t->linear[products](&a, p, p1);
        }
    }
    free(xp);
    if (cuts)
        memmove(y, y + 3, m * ldy * 4);
    return y;
}

static int right_values(qn__cpu_type products, const weight *w, const float *x, size_t ldx,
                        size_t m, const float *y, size_t ldy)
{
    double *sees = new_bytes(w->k * 8);
    nmse e = {0, 0};
    for (size_t r = 0; r < m; r += 1 + m / 5) {
        seen(products, w->l, x + r * ldx, w->k, sees);
        for (size_t j = 0; j < w->n; j++) {
            double sum = 0;
            for (size_t i = 0; i < w->k; i++)
                sum += sees[i] * w->values[j * w->k + i];
            nmse_add(&e, y[r * ldy + j], sum);
        }
    }
    free(sees);
    return nmse_ok(&e, 1e-11 + 4e-15 * (double)w->k);
}

/* Groups of rows of any size, any cut, and rows alone. */
static int same_in_company(const qn__cpu_kernels *t, qn__cpu_type products, const weight *w,
                           const float *x, size_t ldx, size_t m, const float *y, size_t ldy)
{
    int same = 1;
    for (size_t r = 0, g; r < m; r += g) {
        g = m - r < 41 ? 1 + random_below(m - r) : 1 + random_below(40);
        float *z = multiply(t, products, w, x + r * ldx, ldx, g, ldy, 1);
        for (size_t i = 0; i < g; i++)
            same &= memcmp(z + i * ldy, y + (r + i) * ldy, w->n * 4) == 0;
        free(z);
    }
    for (size_t r = 0; r < m; r += 1 + m / 9) {
        float *z = multiply(t, products, w, x + r * ldx, ldx, 1, w->n, 0);
        same &= memcmp(z, y + r * ldy, w->n * 4) == 0;
        free(z);
    }
    return same;
}

static void linear_case(const qn__cpu_kernels *t, const qn__cpu_kernels *ref, qn__cpu_type products,
                        qn__layout_id id, size_t m, size_t n, size_t k)
{
    static const char *const kinds[] = {"linear f32", "linear bf16", "linear int8",
                                        "linear int8 rows"};
    size_t ldx = k + 1, ldy = n + 2;
    char name[80];
    weight w = new_weight(id, n, k);
    float *x = new_floats(m * ldx + 1) + 1;
    random_fill(x, m * ldx);
    for (size_t i = 0; i < ldx; i++) /* one row with a group of zeros and a large one */
        x[i] *= i % 96 < 32 ? 0.0f : i % 96 < 64 ? 1.0f : 100.0f;
    float *y = multiply(t, products, &w, x, ldx, m, ldy, 0);
    int ok = right_values(products, &w, x, ldx, m, y, ldy);
    for (size_t r = 0; r + 1 < m; r++) { /* nothing past column n is written */
        uint32_t u[2];
        memcpy(u, y + r * ldy + n, 8);
        ok &= u[0] == 0xffffffffu && u[1] == 0xffffffffu;
    }
    label(name, sizeof name, kinds[products], &w, m);
    check(name, t->tier, ok);
    check("the same in any company", t->tier, same_in_company(t, products, &w, x, ldx, m, y, ldy));
    if (products == QN__CPU_INT8 || products == QN__CPU_INT8_ROWS) {
        float *z = multiply(ref, products, &w, x, ldx, m, ldy, 0);
        int same = 1;
        for (size_t r = 0; r < m; r++)
            same &= memcmp(z + r * ldy, y + r * ldy, n * 4) == 0;
        check("the same in every tier", t->tier, same);
        free(z);
    }
    free(x - 1), free(y);
    free_weight(&w);
}

/* ---- the exact bits of bf16 products, where the processor's own instruction sums them ---- */

/* As the instructions take and leave f32: a denormal is a zero. */
static float flushed(float f)
{
    return fpclassify(f) == FP_SUBNORMAL ? copysignf(0.0f, f) : f;
}

static float flushed_fma(float a, float b, float c)
{
    return flushed(fmaf(flushed(a), flushed(b), c));
}

/* vdpbf16ps: one chain, of each pair the odd element first. */
static float sum_of_pairs(const float *x, const float *w, size_t k)
{
    float c = 0;
    for (size_t i = 0; i < k; i += 2) {
        c = i + 1 < k ? flushed_fma(x[i + 1], w[i + 1], c) : flushed_fma(0, 0, c);
        c = flushed_fma(x[i], w[i], c);
    }
    return c;
}

/* tdpbf16ps: 32 k at a time, the even and the odd ones in chains of their own. */
static float sum_of_tiles(const float *x, const float *w, size_t k)
{
    float c = 0;
    for (size_t step = 0; step < k; step += 32) {
        float half[2] = {0, 0};
        for (size_t i = step; i < step + 32; i++)
            half[i % 2] =
                i < k ? flushed_fma(x[i], w[i], half[i % 2]) : flushed_fma(0, 0, half[i % 2]);
        c = flushed(c + flushed(half[0] + half[1]));
    }
    return c;
}

typedef float sum_order(const float *x, const float *w, size_t k);

static sum_order *order_of(const qn__cpu_kernels *t)
{
    return !strcmp(t->tier, "amx")      ? sum_of_tiles
           : !strcmp(t->tier, "avx512") ? sum_of_pairs
                                        : NULL;
}

/* Rows whose products lie about the smallest normal number. In every fourth column x is a denormal
 * that would count if it were not a zero, in the next one w. */
static void fill_tiny(float *x, size_t n, size_t k, size_t denormal)
{
    for (size_t i = 0; i < n * k; i++) {
        size_t column = i % k % 4;
        int place = column == denormal ? -128 : column < 2 ? 3 : -63 + (int)random_below(3);
        x[i] = ldexpf(random_unit(), place);
    }
}

static void order_case(const qn__cpu_kernels *t, size_t m, size_t n, size_t k, int tiny)
{
    sum_order *sum = order_of(t);
    char name[80];
    weight w = new_weight(QN__UNITS_OF(QN__BF16), n, k);
    float *x = new_floats(m * k);
    random_fill(x, m * k);
    if (tiny) {
        fill_tiny(x, m, k, 0);
        fill_tiny(w.values, n, k, 1);
        for (size_t i = 0; i < n * k; i++) {
            uint32_t u;
            w.values[i] = rounded_bf16(w.values[i]);
            memcpy(&u, w.values + i, 4);
            u >>= 16;
            memcpy(w.rows + 2 * i, &u, 2);
        }
        pack_weight(&w);
    }
    float *y = multiply(t, QN__CPU_BF16, &w, x, k, m, n, 1);
    size_t wrong = 0;
    for (size_t i = 0; i < m * k; i++)
        x[i] = rounded_bf16(x[i]);
    for (size_t r = 0; r < m; r++)
        for (size_t j = 0; j < n; j++) {
            float want = sum(x + r * k, w.values + j * k, k);
            wrong += memcmp(&want, &y[r * n + j], 4) != 0;
        }
    label(name, sizeof name, tiny ? "order, tiny" : "order", &w, m);
    check(name, t->tier, wrong == 0);
    free(x), free(y);
    free_weight(&w);
}

static void check_order(const qn__cpu_kernels *t)
{
    static const size_t sizes[][3] = {{1, 40, 300}, {16, 50, 64}, {17, 33, 2050}, {40, 70, 333}};
    for (size_t i = 0; order_of(t) && i < 8; i++)
        order_case(t, sizes[i / 2][0], sizes[i / 2][1], sizes[i / 2][2], i % 2);
}

/* Columns of g that begin with n0 times as many rows of w, n0 a multiple of 16. */
static void multiply_back(const qn__cpu_kernels *t, qn__cpu_type products, const weight *w,
                          size_t n0, size_t n, const float *g, size_t ldg, size_t m, float *y,
                          size_t ldy, int cuts)
{
    size_t panels = qn__cpu_panels(w->k), step = qn__cpu_back_panels(w->l);
    void *xp = new_bytes(qn__cpu_prepared_bytes(m, n));
    t->prepare_back[products](xp, g + n0, ldg, m, n, 0, m);
    qn__cpu_linear a = {.layout = w->l,
                        .unpack = t->unpack[w->id],
                        .w = (const char *)w->units +
                             n0 / 16 * qn__layout_group_bytes(w->l, (int64_t)w->k),
                        .n = n,
                        .k = w->k,
                        .m = m,
                        .x = xp,
                        .y = y,
                        .ldy = ldy,
                        .add = n0 > 0};
    for (size_t p = 0, p1; p < panels; p = p1) {
        p1 = cuts ? p + step * (1 + random_below(2)) : panels;
        p1 = p1 < panels ? p1 : panels;
        for (a.m0 = 0; a.m0 < m; a.m0 = a.m1) {
            a.m1 = cuts ? a.m0 + t->cut[QN__CPU_F32].block_rows * (1 + random_below(3)) : m;
            a.m1 = a.m1 < m ? a.m1 : m;
            t->linear_back[products](&a, p, p1);
        }
    }
    free(xp);
}

/* Against f64; the same bits for rows in any company, any cut of rows and columns, and where the
 * sum over n is made in two calls. */
static void back_case_by(const qn__cpu_kernels *t, qn__cpu_type products, qn__layout_id id,
                         size_t m, size_t n, size_t k)
{
    bool half = products == QN__CPU_BF16;
    size_t ldg = n + 3, ldy = k + 1, first = n / 2 / 16 * 16;
    char name[80];
    weight w = new_weight(id, n, k);
    float *g = new_floats(m * ldg), *y = new_floats(m * ldy), *z = new_floats(m * ldy);
    memset(g, 0xff, m * ldg * 4);
    for (size_t r = 0; r < m; r++)
        random_fill(g + r * ldg, n);
    multiply_back(t, products, &w, 0, n, g, ldg, m, y, ldy, 0);
    nmse e = {0, 0};
    for (size_t r = 0; r < m; r += 1 + m / 50)
        for (size_t i = 0; i < k; i++) {
            double sum = 0;
            for (size_t j = 0; j < n; j++) {
                float a = g[r * ldg + j], b = w.values[j * k + i];
                sum += half ? (double)rounded_bf16(a) * rounded_bf16(b) : (double)a * b;
            }
            nmse_add(&e, y[r * ldy + i], sum);
        }
    for (size_t r = 0, rows; r < m; r += rows) {
        rows = 1 + random_below(m - r);
        if (first)
            multiply_back(t, products, &w, 0, first, g + r * ldg, ldg, rows, z + r * ldy, ldy, 1);
        multiply_back(t, products, &w, first, n - first, g + r * ldg, ldg, rows, z + r * ldy, ldy,
                      1);
    }
    label(name, sizeof name, half ? "linear_back bf16" : "linear_back", &w, m);
    check(name, t->tier, nmse_ok(&e, 1e-12) && memcmp(y, z, m * ldy * 4) == 0);
    free(g), free(y), free(z);
    free_weight(&w);
}

static void back_case(const qn__cpu_kernels *t, qn__layout_id id, size_t m, size_t n, size_t k)
{
    back_case_by(t, QN__CPU_F32, id, m, n, k);
    back_case_by(t, QN__CPU_BF16, id, m, n, k);
}

/* Rows of the identity give the values themselves: of any finite block, the tiniest scales too. */
static void exact_case(const qn__cpu_kernels *t, qn__layout_id id)
{
    const qn__encoding *e = qn__layout_of(id)->encoding;
    size_t k = e->block_elements < 2 ? 6 : e->block_elements, n = 48;
    char name[80];
    weight w = new_weight(id, n, k);
    for (size_t b = 0; b < n * k / e->block_elements; b++) {
        uint8_t *block = w.rows + b * e->block_bytes;
        float *values = w.values + b * e->block_elements;
        int finite = 0;
        while (!finite) {
            for (size_t i = 0; i < e->block_bytes; i++)
                block[i] = (uint8_t)random_u32();
            e->decode(e, block, 1, values);
            finite = 1;
            for (size_t i = 0; i < e->block_elements; i++)
                finite &= isfinite(values[i]) != 0;
        }
    }
    qn__layout_pack(w.l, w.units, (int64_t)n, (int64_t)k, w.rows, w.row_bytes, 0, (int64_t)n);
    float *x = new_floats(k * k);
    for (size_t i = 0; i < k * k; i++)
        x[i] = i % (k + 1) == 0 ? 1.0f : 0.0f;
    float *y = multiply(t, QN__CPU_F32, &w, x, k, k, n, 0);
    int ok = 1;
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < n; j++)
            ok &= y[i * n + j] == w.values[j * k + i];
    label(name, sizeof name, "values", &w, k);
    check(name, t->tier, ok);
    free(x), free(y);
    free_weight(&w);
}

/* Plain floats at awkward sizes; `many`: at all of them. */
static void check_float(const qn__cpu_kernels *t, const qn__cpu_kernels *ref, qn__cpu_type products,
                        qn__layout_id id, bool many)
{
    static const size_t sizes[][2] = {{1, 1},   {16, 2},   {17, 3},    {5, 64},
                                      {33, 65}, {48, 128}, {100, 129}, {64, 1031}};
    int slow = !strcmp(t->tier, "ref");
    for (size_t i = 0; i < 8; i++) {
        if (slow)
            pack_case(id, sizes[i][0], sizes[i][1]);
        linear_case(t, ref, products, id, 1 + random_below(40), sizes[i][0], sizes[i][1]);
        back_case(t, id, 1 + random_below(12), sizes[i][0], sizes[i][1]);
    }
    for (size_t m = 2; m <= 40; m += slow ? 7 : many ? 1 : 5)
        linear_case(t, ref, products, id, m, 112, 300);
    linear_case(t, ref, products, id, slow ? 50 : 512, 160, 2050);
    if (many)
        linear_case(t, ref, products, id, slow ? 3 : 70, 330, 8192);
    back_case(t, id, 40, 330, 200);
    if (!slow)
        back_case(t, id, 230, 700, 330);
}

static void check_floats(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
    check_float(t, ref, QN__CPU_F32, QN__UNITS_OF(QN__F32), true);
    check_float(t, ref, QN__CPU_BF16, QN__UNITS_OF(QN__BF16), true);
    check_float(t, ref, QN__CPU_F32, QN__UNITS_OF(QN__BF16), false);
    check_float(t, ref, QN__CPU_F32, QN__UNITS_OF(QN__F16), false);
}

/* Every encoding, at sizes of whole blocks that are no whole units. */
static void check_encoded(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
    static const size_t sizes[][2] = {{16, 1}, {5, 3}, {37, 2}, {100, 5}};
    int slow = !strcmp(t->tier, "ref");
    for (int id = QN__UNITS_OF(QN__Q4_0); id < QN__LAYOUT_COUNT; id++) {
        size_t block = qn__encodings[id - 1].block_elements;
        for (size_t i = 0; i < 4; i++) {
            size_t n = sizes[i][0], k = sizes[i][1] * block;
            if (slow)
                pack_case((qn__layout_id)id, n, k);
            size_t least = i == 3 ? 16 : 1; /* tiles have 16 rows */
            linear_case(t, ref, QN__CPU_INT8, (qn__layout_id)id, least + random_below(20), n, k);
            linear_case(t, ref, QN__CPU_INT8_ROWS, (qn__layout_id)id, least + random_below(20), n,
                        k);
            linear_case(t, ref, QN__CPU_F32, (qn__layout_id)id, 1 + random_below(20), n, k);
            if (i < 3)
                back_case(t, (qn__layout_id)id, 1 + random_below(9), n, k);
        }
    }
    static const qn__encoding_id large[] = {
        QN__Q4_0, QN__Q8_0, QN__Q4_K, QN__Q6_K, QN__AFFINE4_G64_BF16, QN__TQ2_0};
    for (size_t i = 0; i < sizeof large / sizeof *large && !slow; i++)
        linear_case(t, ref, QN__CPU_INT8, QN__UNITS_OF(large[i]), i < 2 ? 270 : 100, 176, 2304);
    if (!slow)
        linear_case(t, ref, QN__CPU_INT8_ROWS, QN__UNITS_OF(QN__I2_S), 100, 176, 2304);
}

#if defined(__x86_64__) && !defined(QN_CPU_REF_ONLY)
/* Both ways give the same gradients, of weights so small that f16 has no exponent for them, too. */
static void same_back(const qn__cpu_kernels *t, const qn__cpu_kernels *other, qn__layout_id id)
{
    enum { M = 37, N = 301, K = 224 };
    weight w = new_weight(id, N, K);
    float *g = new_floats(M * N), *y = new_floats(M * K), *z = new_floats(M * K);
    char name[80];
    random_fill(g, M * N);
    if (id == QN__UNITS_OF(QN__F16)) {
        for (size_t i = 0; i < N * K; i += 3)
            w.rows[2 * i + 1] &= 0x83;
        qn__layout_pack(w.l, w.units, N, K, w.rows, w.row_bytes, 0, N);
    }
    multiply_back(t, QN__CPU_BF16, &w, 0, N, g, N, M, y, K, 0);
    multiply_back(other, QN__CPU_BF16, &w, 0, N, g, N, M, z, K, 0);
    label(name, sizeof name, "linear_back bf16, the other way", &w, M);
    check(name, t->tier, memcmp(y, z, M * K * sizeof *y) == 0);
    free(g), free(y), free(z);
    free_weight(&w);
}
#endif

/* Which of its two ways with bf16 a processor takes in this tier is measured: this is the other. */
static void check_other(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
#if defined(__x86_64__) && !defined(QN_CPU_REF_ONLY)
    if (strcmp(t->tier, "avx512") != 0)
        return;
    qn__cpu_kernels other = *t;
    qn__cpu_fill_linear_avx512(&other);
    qn__cpu_fill_prepare_avx512(&other);
    qn__cpu_fill_back_avx512(&other);
    other.cut[QN__CPU_BF16] = other.cut[QN__CPU_F32];
    if (other.linear[QN__CPU_BF16] == t->linear[QN__CPU_BF16])
        qn__cpu_fill_fma_avx512(&other);
    check_float(&other, ref, QN__CPU_BF16, QN__UNITS_OF(QN__BF16), true);
    check_order(&other);
    same_back(t, &other, QN__UNITS_OF(QN__Q4_0));
    same_back(t, &other, QN__UNITS_OF(QN__F16));
#else
    (void)t, (void)ref;
#endif
}

void check_linear(const qn__cpu_kernels *t, const qn__cpu_kernels *ref)
{
    check_floats(t, ref);
    check_order(t);
    check_other(t, ref);
    check_encoded(t, ref);
    for (int id = 1; id < QN__LAYOUT_COUNT; id++)
        exact_case(t, (qn__layout_id)id);
}
