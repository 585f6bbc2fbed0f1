/* SPDX-License-Identifier: Apache-2.0 */
/* Transposes sixteen registers of sixteen 32-bit lanes in place: r[i] lane j becomes r[j] lane i.
 */
#ifndef QN_CPU_TRANSPOSE_AVX512_H
#define QN_CPU_TRANSPOSE_AVX512_H

#include <immintrin.h>

static inline void transpose_16x16(__m512i r[16])
{
    __m512i a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16;
         i += 4) { /* b[i + j], 128-bit lane l: column 4 l + j of rows i .. i + 3 */
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i even0 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88),
                odd0 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        __m512i even1 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        __m512i odd1 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        r[j] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        r[4 + j] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        r[8 + j] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
        r[12 + j] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
    }
}

#endif
