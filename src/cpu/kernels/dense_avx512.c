/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512: plain f32 matmul with any strides, in tiles of 8 rows x 48 columns. */
#include "kernels.h"
#include "transpose_avx512.h"
#include "vec_avx512.h"

#include <string.h>

#define ALWAYS        static inline __attribute__((always_inline))
#define DENSE_EACH(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
enum { DENSE_TILE_ROWS = 8, DENSE_PARTS = 3 };

ALWAYS vf v_fma_into(vf c, float s, vf b)
{
    return v_fma(v_set(s), b, c);
}

static void v_turn(float *to, const float *from, ptrdiff_t step)
{
    __m512i r[16];
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_si512(from + i * step);
    transpose_16x16(r);
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(to + 16 * i, r[i]);
}

#include "dense.inl"

void qn__cpu_fill_dense_avx512(qn__cpu_kernels *t)
{
    t->dense = dense_rows;
    t->dense_panels = dense_lay_out;
}
