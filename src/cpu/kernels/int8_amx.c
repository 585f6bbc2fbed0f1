/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX: linear by exact products of bytes (int8.inl says of what), for 16 rows of x and more, by
 * tile products of 16 rows x a step of columns x a panel. Fewer rows are AVX-512's.
 *
 * Unpacked codes are B tiles as they lie, a step after the other; where a layout has a zero it is
 * subtracted first, so that sums begin at 0. x is laid out as A tiles: blocks of 16 rows (the last
 * filled up with zeros), [step][row][column]; then for each block and step the rows' scales and,
 * where there are biases, scale times the sum of the step's bytes, [1 or 2][16] f32.
 *
 * A tile's sums pass through memory into registers, where they are converted, scaled and added.
 * That sets the bound, whatever a step's columns are: storing a tile takes 30 cycles, adding it 28
 * (16 rows x 3 instructions on two pipes; 4 with biases), and neither hides the other.
 *
 * Three tiles are used because a busy processor has few registers to rename them to: with eight in
 * use a product, its loads and its store take 35 ns there, with three 20 (13 on a quiet one).
 *
 * The tiles' shape is thread state: it is set at the start of a call and released at its end.
 */
#include "linear_avx512.h"
#include "tiles_amx.h"
#include "vec_avx512.h"

#include "int8_x.inl"

enum {
    ROWS = 16,       /* of an A tile; fewer in all meet AVX-512 */
    PANELS = 2,      /* unpacked at a time */
    CHUNK = 512,     /* columns unpacked at a time: they and a block of x lie in the first cache */
    BAND_ROWS = 256, /* whose sums lie in the second until the last chunk */
    AHEAD = 2        /* steps from a tile product to where its sums are wanted */
};

#define ALWAYS static inline __attribute__((always_inline))

/* ---- x ---- */

static size_t meta_floats(const qn__layout *l)
{
    return l->biased ? 2 * ROWS : ROWS;
}

static uint8_t *block_codes(const qn__layout *l, const void *x, size_t k, size_t row)
{
    return (uint8_t *)x + row / ROWS * ROWS * int8_padded(l, k);
}

static float *block_meta(const qn__layout *l, const void *x, size_t m, size_t k, size_t row)
{
    return (float *)block_codes(l, x, k, m + ROWS - 1) +
           row / ROWS * (int8_padded(l, k) / l->step) * meta_floats(l);
}

/* Row r of dst, as it is in x; past the last: zeros. */
static void prepare_row(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                        size_t k, size_t r, int whole)
{
    size_t padded = int8_padded(l, k), step = l->step, span = int8_span(l);
    uint8_t *codes = block_codes(l, dst, k, r) + r % ROWS * step;
    float *meta = block_meta(l, dst, m, k, r) + r % ROWS;
    int8_row row = int8_row_of(l, x + (r < m ? r : 0) * ldx, r < m ? k : 0, whole);
    for (size_t c = 0; c < padded; c += span) {
        int8_t bytes[INT8_MOST_SPAN];
        float scale = int8_columns(&row, c, span, bytes);
        for (size_t s = 0; s < span; s += step) {
            memcpy(codes, bytes + s, step);
            meta[0] = scale;
            if (l->biased)
                meta[ROWS] = scale * (float)int8_sum(bytes + s, step);
            codes += ROWS * step;
            meta += meta_floats(l);
        }
    }
}

ALWAYS void prepare(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m, size_t k,
                    size_t m0, size_t m1, int whole)
{
    if (m < ROWS) {
        qn__cpu_prepare_int8_avx512(l, dst, x, ldx, m, k, m0, m1, whole);
        return;
    }
    size_t end = m1 < m ? m1 : (m + ROWS - 1) / ROWS * ROWS;
    for (size_t r = m0; r < end; r++)
        prepare_row(l, dst, x, ldx, m, k, r, whole);
}

static void prepare_groups(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                           size_t k, size_t m0, size_t m1)
{
    prepare(l, dst, x, ldx, m, k, m0, m1, 0);
}

static void prepare_rows(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                         size_t k, size_t m0, size_t m1)
{
    prepare(l, dst, x, ldx, m, k, m0, m1, 1);
}

/* ---- products ---- */

/* A chunk of a panel. */
typedef struct unpacked {
    _Alignas(64) uint8_t codes[CHUNK * 16]; /* [column / 4][16][4] */
    float scale[CHUNK], bias[CHUNK];        /* [step][16], steps of 16 columns at least */
} unpacked;

/* Sums 0, A 1, B 2. */
static void set_byte_shape(size_t step)
{
    tile_shape s = {.palette = 1};
    for (int i = 0; i < 3; i++) {
        s.row_bytes[i] = i == 1 ? (uint16_t)step : 64;
        s.rows[i] = i < 2 ? ROWS : (uint8_t)(step / 4);
    }
    STORES_DONE();
    _tile_loadconfig(&s);
}

/* A block of x meets a chunk. */
typedef struct meet_args {
    const unpacked *w;
    const uint8_t *x;
    const float *meta;
    size_t step, steps;
    size_t rows;
    __mmask16 last;    /* lanes that exist */
    const float *from; /* the sums so far, NULL: none */
    float *to;
    size_t from_row, to_row;
} meet_args;

#define EACH_ROW(F)                                                                                \
    F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)

ALWAYS void meet(int biased, const meet_args *a)
{
    _Alignas(64) int32_t sums[2 * AHEAD][ROWS * 16];
    const uint8_t *codes = a->w->codes, *x = a->x;
    const float *scale = a->w->scale, *bias = a->w->bias, *meta = a->meta;
    const size_t step = a->step, steps = a->steps;
#define SUM(s)                                                                                     \
    _tile_zero(0);                                                                                 \
    _tile_loadd(1, x, (long)step);                                                                 \
    _tile_loadd(2, codes, 64);                                                                     \
    if (biased)                                                                                    \
        _tile_dpbsud(0, 1, 2);                                                                     \
    else                                                                                           \
        _tile_dpbssd(0, 1, 2);                                                                     \
    _tile_stored(0, sums[(s) % (2 * AHEAD)], 64);                                                  \
    x += ROWS * step;                                                                              \
    codes += 16 * step;
    for (size_t s = 0; s < AHEAD && s < steps; s++) {
        SUM(s)
    }
#define MASK(r) (r < a->rows ? a->last : (__mmask16)0)
#define BEGIN(r)                                                                                   \
    __m512 f##r =                                                                                  \
        a->from ? _mm512_maskz_loadu_ps(MASK(r), a->from + r * a->from_row) : _mm512_setzero_ps();
    EACH_ROW(BEGIN)
#undef BEGIN
#define ADD_ROW(r)                                                                                 \
    f##r = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(c + 16 * r)),                      \
                           _mm512_mul_ps(w, _mm512_set1_ps(meta[r])), f##r);                       \
    if (biased)                                                                                    \
        f##r = _mm512_fmadd_ps(b, _mm512_set1_ps(meta[ROWS + r]), f##r);
    for (size_t s = 0; s < steps; s++) {
        if (s + AHEAD < steps) {
            SUM(s + AHEAD)
        }
        const int32_t *c = sums[s % (2 * AHEAD)];
        __m512 w = _mm512_load_ps(scale), b = biased ? _mm512_load_ps(bias) : w;
        EACH_ROW(ADD_ROW)
        scale += 16;
        bias += 16;
        meta += biased ? 2 * ROWS : ROWS;
    }
#undef ADD_ROW
#undef SUM
#define SAVE(r) _mm512_mask_storeu_ps(a->to + r * a->to_row, MASK(r), f##r);
    EACH_ROW(SAVE)
#undef SAVE
#undef MASK
}

/* Bytes are signed once the zero is subtracted: then sums need nothing more. */
static void subtract(uint8_t *codes, size_t bytes, uint8_t zero)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm512_store_si512(
            codes + i, _mm512_sub_epi8(_mm512_load_si512(codes + i), _mm512_set1_epi8((char)zero)));
}

/* Units unit .. unit + units - 1 of panel p. */
static void unpack(const qn__cpu_linear *a, size_t p, size_t unit, size_t units, unpacked *to)
{
    const qn__layout *l = a->layout;
    size_t steps = l->columns / l->step;
    const uint8_t *from =
        (const uint8_t *)a->w + (p * (int8_padded(l, a->k) / l->columns) + unit) * l->unit_bytes;
    for (size_t u = 0; u < units; u++)
        a->unpack(l, from + u * l->unit_bytes, to->codes + u * l->columns * 16,
                  to->scale + u * steps * 16, to->bias + u * steps * 16);
    if (!l->biased)
        subtract(to->codes, units * l->columns * 16, l->zero);
}

/* Rows row .. row + 15, of which those up to m1 exist, meet columns column .. end - 1 of panel p.
 * The sums are kept in `partial` until there are no more columns. */
static void meet_panel(const qn__cpu_linear *a, size_t row, size_t m1, size_t column, size_t end,
                       size_t p, const unpacked *w, float *partial)
{
    const qn__layout *l = a->layout;
    size_t left = a->n - p * 16;
    meet_args t = {.w = w,
                   .x = block_codes(l, a->x, a->k, row) + column * ROWS,
                   .meta = block_meta(l, a->x, a->m, a->k, row) + column / l->step * meta_floats(l),
                   .step = l->step,
                   .steps = (end - column) / l->step,
                   .rows = m1 - row < ROWS ? m1 - row : ROWS,
                   .last = v_first(left < 16 ? left : 16),
                   .from = column ? partial : NULL,
                   .from_row = 16,
                   .to = partial,
                   .to_row = 16};
    if (end >= a->k) {
        t.to = a->y + row * a->ldy + p * 16;
        t.to_row = a->ldy;
    }
    if (l->biased)
        meet(1, &t);
    else
        meet(0, &t);
}

/* Rows m0 .. m1 - 1, a band, of panels p .. p + panels - 1. */
static void band(const qn__cpu_linear *a, size_t p, size_t panels, size_t m0, size_t m1)
{
    unpacked w[PANELS];
    _Alignas(64) float partial[BAND_ROWS / ROWS][PANELS][ROWS * 16];
    size_t columns = a->layout->columns, units = int8_padded(a->layout, a->k) / columns,
           chunk = CHUNK / columns;
    for (size_t u = 0; u < units; u += chunk) {
        size_t n = units - u < chunk ? units - u : chunk;
        for (size_t q = 0; q < panels; q++)
            unpack(a, p + q, u, n, &w[q]);
        STORES_DONE();
        for (size_t r = m0; r < m1; r += ROWS)
            for (size_t q = 0; q < panels; q++)
                meet_panel(a, r, m1, u * columns, (u + n) * columns, p + q, &w[q],
                           partial[(r - m0) / ROWS][q]);
    }
}

static void linear_bytes(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    if (a->m < ROWS) {
        qn__cpu_linear_int8_avx512(a, p0, p1);
        return;
    }
    set_byte_shape(a->layout->step);
    for (size_t p = p0; p < p1; p += PANELS)
        for (size_t m0 = a->m0; m0 < a->m1; m0 += BAND_ROWS)
            band(a, p, p1 - p < PANELS ? p1 - p : PANELS, m0,
                 a->m1 - m0 < BAND_ROWS ? a->m1 : m0 + BAND_ROWS);
    _tile_release();
}

void qn__cpu_fill_int8_amx(qn__cpu_kernels *t)
{
    t->linear[QN__CPU_INT8] = t->linear[QN__CPU_INT8_ROWS] = linear_bytes;
    t->prepare[QN__CPU_INT8] = prepare_groups;
    t->prepare[QN__CPU_INT8_ROWS] = prepare_rows;
    t->cut[QN__CPU_INT8] = t->cut[QN__CPU_INT8_ROWS] = (qn__cpu_cut){ROWS, PANELS, BAND_ROWS};
}
