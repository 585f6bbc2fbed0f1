/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear by exact products of bytes for tiers without an instruction for it: tiles of four rows and
 * one panel, their sums in y's place on the stack between steps.
 */

enum { INT8_ROWS = 4, INT8_PANELS = 1 };

#include "int8.inl"

#define INT8_EACH_ROW(F) F(0) F(1) F(2) F(3)

/* One step: `quads` words of codes. run: so many words' products fit 16 bits together (VEC_PAIRS);
 * 1: they are summed in 32; 0: codes above 127. Integer sums are exact, so what they begin with
 * comes last: a step that is one run needs no registers for it. */
ALWAYS void int8_vec_step(int rows, int run, int biased, const uint8_t *codes, const float *scale,
                          const float *bias, const uint8_t *x, const uint8_t *meta, size_t quads,
                          float *sums)
{
#define BEGIN(r) vi c##r = vi_set(0);
    INT8_EACH_ROW(BEGIN)
#undef BEGIN
#ifdef VEC_PAIRS
    for (size_t q = 0; run > 1 && q < quads; q += (size_t)run) {
#define CLEAR(r) vi h##r = vi_set(0);
        INT8_EACH_ROW(CLEAR)
#undef CLEAR
#pragma GCC unroll 8
        for (int i = 0; i < run; i++, codes += 64, x += 4 * rows) {
            vi w = vi_load(codes);
#define STEP(r)                                                                                    \
    if (rows > r)                                                                                  \
        h##r = vi_add_pairs(h##r, vi_pairs(w, x + 4 * r));
            INT8_EACH_ROW(STEP)
#undef STEP
        }
#define SUM(r)                                                                                     \
    if (rows > r)                                                                                  \
        c##r = vi_sum_pairs(c##r, h##r);
        INT8_EACH_ROW(SUM)
#undef SUM
    }
#endif
    for (size_t q = 0; run < 2 && q < quads; q++, codes += 64, x += 4 * rows) {
        vi w = vi_load(codes);
#define STEP(r)                                                                                    \
    if (rows > r)                                                                                  \
        c##r = run ? vi_dot(c##r, w, x + 4 * r) : vi_dot_wide(c##r, w, x + 4 * r);
        INT8_EACH_ROW(STEP)
#undef STEP
    }
    vf s = v_load(scale), b = biased ? v_load(bias) : s;
#define END(r)                                                                                     \
    if (rows > r) {                                                                                \
        float of_x[2];                                                                             \
        uint32_t begin;                                                                            \
        memcpy(&begin, meta + 4 * (rows + r), 4);                                                  \
        c##r = vi_add(c##r, vi_set(begin));                                                        \
        memcpy(of_x, meta + 4 * r, 4);                                                             \
        memcpy(of_x + 1, meta + 4 * (2 * rows + r), 4);                                            \
        vf y = v_fma(v_of_int(c##r), v_mul(s, v_set(of_x[0])), v_load(sums + 16 * r));             \
        if (biased)                                                                                \
            y = v_fma(b, v_set(of_x[1]), y);                                                       \
        v_store(sums + 16 * r, y);                                                                 \
    }
    INT8_EACH_ROW(END)
#undef END
}

ALWAYS void int8_vec_tile(int rows, int run, int biased, const int8_args *a)
{
    float sums[INT8_ROWS * 16];
    for (int r = 0; r < rows; r++)
        v_store(sums + 16 * r,
                a->resume ? v_load_n(a->y + (size_t)r * a->ldy, a->last, 0.0f) : v_set(0.0f));
    for (size_t s = 0; s < a->steps && run > 1 && a->quads == (size_t)run; s++)
        int8_vec_step(rows, run, biased, a->codes + s * a->quads * 64, a->scale + 16 * s,
                      a->bias + 16 * s, a->x + s * a->quads * 4 * (size_t)rows,
                      a->meta + s * 12 * (size_t)rows, (size_t)run, sums);
    for (size_t s = 0; s < a->steps && (run < 2 || a->quads != (size_t)run); s++)
        int8_vec_step(rows, run, biased, a->codes + s * a->quads * 64, a->scale + 16 * s,
                      a->bias + 16 * s, a->x + s * a->quads * 4 * (size_t)rows,
                      a->meta + s * 12 * (size_t)rows, a->quads, sums);
    for (int r = 0; r < rows; r++)
        v_store_n(a->y + (size_t)r * a->ldy, a->last, v_load(sums + 16 * r));
}

/* How many words' products to sum in 16 bits: a power of two, a step's words at most. With more
 * rows the registers are wanted otherwise. */
static int int8_run(size_t rows, const int8_args *a)
{
#ifdef VEC_PAIRS
    int run = rows > 2 ? 1 : (int)a->quads < 8 ? (int)a->quads : 8;
    while (run > 1 && run * a->top * 2 * 127 > INT16_MAX)
        run /= 2;
    return a->top > 127 ? 0 : run;
#else
    (void)rows;
    return a->top > 127 ? 0 : 1;
#endif
}

ALWAYS void int8_vec_rows(int run, int biased, size_t rows, const int8_args *a)
{
    switch (rows) {
#define SHAPE(r)                                                                                   \
    case r + 1: int8_vec_tile(r + 1, run, biased, a); break;
        INT8_EACH_ROW(SHAPE)
#undef SHAPE
    default: break;
    }
}

static void int8_tile(size_t rows, size_t panels, const int8_args *a)
{
    (void)panels;
    switch (int8_run(rows, a) * 2 + a->biased) {
#define RUN(n)                                                                                     \
    case 2 * n: int8_vec_rows(n, 0, rows, a); break;                                               \
    case 2 * n + 1: int8_vec_rows(n, 1, rows, a); break;
        RUN(0)
        RUN(1)
#ifdef VEC_PAIRS
        RUN(2)
        RUN(4)
        RUN(8)
#endif
#undef RUN
    default: break;
    }
}

static void fill_vec_int8(qn__cpu_kernels *t)
{
    fill_vec_units(t);
    t->prepare[QN__CPU_INT8] = prepare_int8;
    t->linear[QN__CPU_INT8] = linear_int8;
    t->cut[QN__CPU_INT8] = (qn__cpu_cut){INT8_ROWS, 3, 96};
}
