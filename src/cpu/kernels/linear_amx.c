/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX: linear on packed bf16 weights, by tile products of 16 rows x 32 k x 16 columns.
 *
 * A panel is a column of B tiles as it lies: 16 units of 64 bytes are one tile. x is laid out as A
 * tiles: blocks of 16 rows (the last of m % 16), [step of 32 k][row][32], K filled up with zeros,
 * so that a row costs what its elements do and decoding multiplies tiles of one row.
 *
 * Bits: a step sums the even k and the odd k in two fma chains e and o from 0, then c + (e + o),
 * all rounded to f32, denormals zero everywhere; steps follow in order of k. Sums pass through y
 * exactly. So nothing depends on rows, tiles, chunks or cuts. Products in f32 and of bytes stay
 * with AVX-512.
 *
 * Up to 16 rows: two panels at a time stream past once, prefetched across their end. More rows: 2 x
 * 2 tiles of sums over a chunk of K; all rows of a band pass two panels, which stay in the second
 * cache, while those of the next two are fetched.
 *
 * The tiles' shape is thread state: it is set at the start of a call and released at its end.
 */
#include "kernels.h"
#include "tiles_amx.h"

enum {
    ROWS = 16,   /* of an A tile */
    STEP_K = 32, /* k of a tile product */
    TILE_BYTES = 1024,
    CHUNK_STEPS = 64, /* 128 KB of two panels */
    BAND_ROWS = 128,  /* with a chunk's 4 KB each, they stay in the second cache */
    AHEAD_STEPS = 4   /* prefetch distance with few rows, 4 KB a panel */
};

#define ALWAYS static inline __attribute__((always_inline))

/* Sums 0 to 3 and A 4, 5 of `rows` rows; B 6, 7. */
static void set_shape(size_t rows)
{
    tile_shape s = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        s.row_bytes[i] = 64;
        s.rows[i] = i < 6 ? (uint8_t)rows : 16;
    }
    STORES_DONE();
    _tile_loadconfig(&s);
}

typedef struct sums_args {
    const char *w; /* first panel, at the first step */
    size_t panel_bytes;
    const char *x; /* first block, at the first step */
    size_t block_bytes, step_bytes;
    size_t steps;      /* whole ones */
    size_t tail_units; /* of a last, short one */
    float *y;
    size_t ldy;
    size_t rows;    /* of a block */
    int resume;     /* take sums from y */
    __mmask16 last; /* lanes of the last panel that exist */
    /* Each step prefetches `lines` lines of a panel at `ahead`, from step `turn` on at `then`. */
    const char *ahead, *then;
    size_t lines, turn;
} sums_args;

/* The sums of a panel of which some columns do not exist pass through `edge`. */
static void edge_copy(float edge[ROWS * 16], const sums_args *a, const float *y)
{
    for (size_t r = 0; r < a->rows; r++)
        _mm512_store_ps(edge + r * 16, _mm512_maskz_loadu_ps(a->last, y + r * a->ldy));
    STORES_DONE();
}

static void edge_back(float *y, const sums_args *a, const float edge[ROWS * 16])
{
    for (size_t r = 0; r < a->rows; r++)
        _mm512_mask_storeu_ps(y + r * a->ldy, a->last, _mm512_load_ps(edge + r * 16));
}

/* The tile of a short step: units past the end are zeros. */
static void short_tile(char to[TILE_BYTES], const char *w, size_t units)
{
    for (size_t u = 0; u < 16; u++)
        _mm512_store_si512(to + u * 64,
                           u < units ? _mm512_load_si512(w + u * 64) : _mm512_setzero_si512());
    STORES_DONE();
}

/* blocks x panels of sums, each 1 or 2, constants at every call. */
ALWAYS void sums(int blocks, int panels, const sums_args *a)
{
    _Alignas(64) float edge[ROWS * 16];
    _Alignas(64) char short0[TILE_BYTES], short1[TILE_BYTES];
    const char *w = a->w, *x = a->x, *ahead = a->ahead;
    size_t pb = a->panel_bytes, xb = a->block_bytes;
    long y_bytes = (long)(a->ldy * 4);
    float *y = a->y, *below = a->y + ROWS * a->ldy;
    int partial = a->last != 0xffff;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (a->resume) {
#define RESUME(tile, from, panel)                                                                  \
    if (partial && panels == panel + 1) {                                                          \
        edge_copy(edge, a, from + panel * 16);                                                     \
        _tile_loadd(tile, edge, 64);                                                               \
    } else {                                                                                       \
        _tile_loadd(tile, from + panel * 16, y_bytes);                                             \
    }
        RESUME(0, y, 0)
        if (panels > 1) {
            RESUME(1, y, 1)
        }
        if (blocks > 1) {
            RESUME(2, below, 0)
        }
        if (blocks > 1 && panels > 1) {
            RESUME(3, below, 1)
        }
#undef RESUME
    }
/* Zeroed, a tile needs no register: a busy processor has few of them, and loads would wait. */
#define PRODUCTS(w0, w1)                                                                           \
    _tile_loadd(4, x, 64);                                                                         \
    _tile_loadd(6, w0, 64);                                                                        \
    _tile_dpbf16ps(0, 4, 6);                                                                       \
    if (panels > 1) {                                                                              \
        _tile_loadd(7, w1, 64);                                                                    \
        _tile_dpbf16ps(1, 4, 7);                                                                   \
    }                                                                                              \
    _tile_zero(4);                                                                                 \
    if (blocks > 1) {                                                                              \
        _tile_loadd(5, x + xb, 64);                                                                \
        _tile_dpbf16ps(2, 5, 6);                                                                   \
    }                                                                                              \
    _tile_zero(6);                                                                                 \
    if (blocks > 1 && panels > 1) {                                                                \
        _tile_dpbf16ps(3, 5, 7);                                                                   \
    }                                                                                              \
    _tile_zero(5);                                                                                 \
    _tile_zero(7);
    for (size_t s = 0; s < a->steps; s++) {
        PRODUCTS(w, w + pb)
        if (s == a->turn)
            ahead = a->then;
        for (size_t i = 0; i < a->lines; i++) {
            _mm_prefetch(ahead + i * 64, _MM_HINT_T0);
            if (panels > 1)
                _mm_prefetch(ahead + pb + i * 64, _MM_HINT_T0);
        }
        ahead += TILE_BYTES;
        w += TILE_BYTES;
        x += a->step_bytes;
    }
    if (a->tail_units) {
        short_tile(short0, w, a->tail_units);
        if (panels > 1)
            short_tile(short1, w + pb, a->tail_units);
        PRODUCTS(short0, short1)
    }
#undef PRODUCTS
#define SAVE(tile, to, panel)                                                                      \
    if (partial && panels == panel + 1) {                                                          \
        _tile_stored(tile, edge, 64);                                                              \
        edge_back(to + panel * 16, a, edge);                                                       \
    } else {                                                                                       \
        _tile_stored(tile, to + panel * 16, y_bytes);                                              \
    }
    SAVE(0, y, 0)
    if (panels > 1) {
        SAVE(1, y, 1)
    }
    if (blocks > 1) {
        SAVE(2, below, 0)
    }
    if (blocks > 1 && panels > 1) {
        SAVE(3, below, 1)
    }
#undef SAVE
}

static void sums_of(int blocks, size_t panels, const sums_args *a)
{
    if (blocks == 2 && panels == 2)
        sums(2, 2, a);
    else if (blocks == 2)
        sums(2, 1, a);
    else if (panels == 2)
        sums(1, 2, a);
    else
        sums(1, 1, a);
}

static __mmask16 lanes_of(size_t n, size_t panel)
{
    size_t left = n - panel * QN__CPU_PANEL;
    return left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* Up to 16 rows: each pair of panels once, straight through; its last steps fetch the next pair. */
static void tiles_few(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    size_t units = (a->k + 1) / 2, steps = units / 16, pb = units * 64;
    set_shape(a->m);
    for (size_t p = p0; p < p1; p += 2) {
        size_t panels = p1 - p < 2 ? 1 : 2;
        const char *w = (const char *)a->w + p * pb;
        sums_args t = {.w = w,
                       .panel_bytes = pb,
                       .x = a->x,
                       .step_bytes = a->m * 64,
                       .steps = steps,
                       .tail_units = units % 16,
                       .y = a->y + p * 16,
                       .ldy = a->ldy,
                       .rows = a->m,
                       .last = lanes_of(a->n, p + panels - 1),
                       .ahead = w + AHEAD_STEPS * TILE_BYTES,
                       .then = w + panels * pb,
                       .lines = 16,
                       .turn = steps > AHEAD_STEPS ? steps - AHEAD_STEPS : 0};
        sums_of(1, panels, &t);
    }
}

/* The rows m0 .. m1 - 1 of a chunk of steps from s on, of one or two panels from p on. Each block
 * of rows fetches its share of what follows: the same steps of the next panels. */
static void pass(const qn__cpu_linear *a, size_t p, size_t panels, size_t s, size_t s1, size_t m0,
                 size_t m1)
{
    size_t units = (a->k + 1) / 2, row_bytes = (units + 15) / 16 * 64, rows = ROWS;
    sums_args t = {.w = (const char *)a->w + p * units * 64 + s * TILE_BYTES,
                   .panel_bytes = units * 64,
                   .block_bytes = ROWS * row_bytes,
                   .steps = (s1 < units / 16 ? s1 : units / 16) - s,
                   .tail_units = s1 > units / 16 ? units % 16 : 0,
                   .ldy = a->ldy,
                   .resume = s > 0,
                   .last = lanes_of(a->n, p + panels - 1),
                   .turn = SIZE_MAX};
    const char *next = t.w + panels * t.panel_bytes;
    for (size_t r = m0; r < m1; r += rows) {
        rows = m1 - r >= 2 * ROWS ? 2 * ROWS : m1 - r >= ROWS ? ROWS : m1 - r;
        t.rows = rows < ROWS ? rows : ROWS;
        t.step_bytes = t.rows * 64;
        t.x = (const char *)a->x + r * row_bytes + s * t.step_bytes;
        t.y = a->y + r * a->ldy + p * 16;
        size_t first = (r - m0) * 16 / (m1 - m0);
        t.ahead = next + first * 64;
        t.lines = (r - m0 + rows) * 16 / (m1 - m0) - first;
        if (rows < ROWS)
            set_shape(rows);
        sums_of(rows > ROWS ? 2 : 1, panels, &t);
    }
    if (rows < ROWS)
        set_shape(ROWS);
}

static void linear_amx(const qn__cpu_linear *a, size_t p0, size_t p1)
{
    size_t steps = (a->k + STEP_K - 1) / STEP_K;
    if (a->m <= ROWS) {
        tiles_few(a, p0, p1);
    } else {
        set_shape(ROWS);
        for (size_t m0 = a->m0; m0 < a->m1; m0 += BAND_ROWS) {
            size_t m1 = a->m1 - m0 < BAND_ROWS ? a->m1 : m0 + BAND_ROWS;
            for (size_t s = 0; s < steps; s += CHUNK_STEPS)
                for (size_t p = p0; p < p1; p += 2)
                    pass(a, p, p1 - p < 2 ? 1 : 2, s,
                         steps - s < CHUNK_STEPS ? steps : s + CHUNK_STEPS, m0, m1);
        }
    }
    _tile_release();
}

/* Rows m0 .. m1 - 1 as the rows of A tiles. Denormals become zeros before they are rounded. */
static void prepare_amx(const qn__layout *l, void *dst, const float *x, size_t ldx, size_t m,
                        size_t k, size_t m0, size_t m1)
{
    (void)l;
    size_t steps = (k + STEP_K - 1) / STEP_K;
    for (size_t r = m0; r < m1; r++) {
        size_t block = r / ROWS * ROWS, rows = m - block < ROWS ? m - block : ROWS;
        char *to = (char *)dst + (block * steps + (r - block)) * 64;
        const float *from = x + r * ldx;
        for (size_t s = 0; s < steps; s++, from += STEP_K, to += rows * 64) {
            size_t left = k - s * STEP_K;
            uint32_t mask = left < STEP_K ? (1u << left) - 1 : ~0u;
            __m512 low = _mm512_maskz_loadu_ps((__mmask16)mask, from);
            __m512 high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + 16);
            _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

void qn__cpu_fill_linear_amx(qn__cpu_kernels *t)
{
    t->linear[QN__CPU_BF16] = linear_amx;
    t->prepare[QN__CPU_BF16] = prepare_amx;
    t->cut[QN__CPU_BF16] = (qn__cpu_cut){ROWS, 4, BAND_ROWS};
}
