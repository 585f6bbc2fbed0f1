/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear by exact products of bytes for tiers without an instruction for it: tiles of four rows and
 * one panel, their sums in y's place on the stack between steps.
 */

enum { INT8_ROWS = 4, INT8_PANELS = 1 };

#include "int8.inl"

#define INT8_EACH_ROW(F) F(0) F(1) F(2) F(3)

/* One step: quads words of codes. */
ALWAYS void int8_vec_step(int rows, int wide, int biased, const uint8_t *codes, const float *scale,
                          const float *bias, const uint8_t *x, const uint8_t *meta, size_t quads,
                          float *sums)
{
#define BEGIN(r)                                                                                   \
    vi c##r = vi_set(0);                                                                           \
    if (rows > r) {                                                                                \
        uint32_t begin;                                                                            \
        memcpy(&begin, meta + 4 * (rows + r), 4);                                                  \
        c##r = vi_set(begin);                                                                      \
    }
    INT8_EACH_ROW(BEGIN)
#undef BEGIN
    for (size_t q = 0; q < quads; q++, codes += 64, x += 4 * rows) {
        vi w = vi_load(codes);
#define STEP(r)                                                                                    \
    if (rows > r)                                                                                  \
        c##r = wide ? vi_dot_wide(c##r, w, x + 4 * r) : vi_dot(c##r, w, x + 4 * r);
        INT8_EACH_ROW(STEP)
#undef STEP
    }
    vf s = v_load(scale), b = biased ? v_load(bias) : s;
#define END(r)                                                                                     \
    if (rows > r) {                                                                                \
        float of_x[2];                                                                             \
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

ALWAYS void int8_vec_tile(int rows, int wide, int biased, const int8_args *a)
{
    float sums[INT8_ROWS * 16];
    for (int r = 0; r < rows; r++)
        v_store(sums + 16 * r,
                a->resume ? v_load_n(a->y + (size_t)r * a->ldy, a->last, 0.0f) : v_set(0.0f));
    for (size_t s = 0; s < a->steps; s++)
        int8_vec_step(rows, wide, biased, a->codes + s * a->quads * 64, a->scale + 16 * s,
                      a->bias + 16 * s, a->x + s * a->quads * 4 * (size_t)rows,
                      a->meta + s * 12 * (size_t)rows, a->quads, sums);
    for (int r = 0; r < rows; r++)
        v_store_n(a->y + (size_t)r * a->ldy, a->last, v_load(sums + 16 * r));
}

static void int8_tile(size_t rows, size_t panels, const int8_args *a)
{
    (void)panels;
    switch (rows * 4 + (size_t)(2 * a->wide + a->biased)) {
#define SHAPE(r)                                                                                   \
    case 4 * r + 4: int8_vec_tile(r + 1, 0, 0, a); break;                                          \
    case 4 * r + 5: int8_vec_tile(r + 1, 0, 1, a); break;                                          \
    case 4 * r + 6: int8_vec_tile(r + 1, 1, 0, a); break;                                          \
    case 4 * r + 7: int8_vec_tile(r + 1, 1, 1, a); break;
        INT8_EACH_ROW(SHAPE)
#undef SHAPE
    default: break;
    }
}

static void fill_vec_int8(qn__cpu_kernels *t)
{
    fill_vec_units(t);
    t->prepare[QN__CPU_INT8] = prepare_int8;
    t->linear[QN__CPU_INT8] = linear_int8;
}
